// Read by the compiler before every file of the tests (-include) where all of them are compiled
// with -ffast-math: the library's headers come in as a user's build with that flag has them, and
// what follows them in the file, oracle and comparison, is compiled without.
//
// The headers of others that have inline functions over numbers come in without it too: a
// std::isnan that was read under -ffast-math says no to everything.
#pragma once

#if !defined(__FAST_MATH__)
#error "this is for builds with -ffast-math"
#endif

#include "headwise/tensor/config.hpp"

HEADWISE_STRICT_MATH_BEGIN
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "support/catch.hpp"
HEADWISE_STRICT_MATH_END

#include "headwise/headwise.hpp"
#include "headwise/io/pytorch.hpp"
#include "headwise/io/safetensors.hpp"
#include "headwise/testing/laws.hpp"

HEADWISE_STRICT_MATH_BEGIN
