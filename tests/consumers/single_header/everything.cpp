// All that single_include/ has, but for what adapts other libraries, in one file. The umbrella
// comes last and once more.
#include <headwise/io/checkpoint.hpp>
#include <headwise/io/pytorch.hpp>
#include <headwise/io/pytorch_block.hpp>
#include <headwise/io/safetensors.hpp>
#include <headwise/testing/laws.hpp>

#include <headwise/headwise.hpp>

using File = decltype(headwise::SafetensorsFile::parse({}));
