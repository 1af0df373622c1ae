// Catch2 for every test, 3 or 2.13. Nothing here but what differs between the two: test cases,
// GENERATE and matchers read the same after this include.
#pragma once

#include "support/catch_version.hpp"

#if HEADWISE_CATCH2 >= 3
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_tostring.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>

namespace headwise_tests {
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
}  // namespace headwise_tests
#else
#include <catch2/catch.hpp>

namespace headwise_tests {
using Catch::Detail::Approx;

/// Catch2 3's name for what 2.13 calls Contains.
inline auto ContainsSubstring(const std::string& text) { return Catch::Matchers::Contains(text); }
}  // namespace headwise_tests
#endif

using headwise_tests::Approx;
using headwise_tests::ContainsSubstring;
