// All that single_include/ has, in one file; the umbrella comes last and once more.
#include <headwise/io/pytorch.hpp>
#include <headwise/io/safetensors.hpp>
#include <headwise/testing/laws.hpp>

#include <headwise/headwise.hpp>

using File = decltype(headwise::SafetensorsFile::parse({}));
