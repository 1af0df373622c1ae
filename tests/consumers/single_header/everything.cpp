// All that single_include/ has, in one file, twice and in an order of no help.
#include <headwise/io/pytorch.hpp>
#include <headwise/testing/laws.hpp>
#include <headwise/io/safetensors.hpp>
#include <headwise/headwise.hpp>
#include <headwise/io/pytorch.hpp>

using Pytorch = decltype(headwise::SafetensorsFile::parse({}));
