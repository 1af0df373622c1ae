// What the random configurations of the gradient checks hold: nothing that attention has is left
// out.
#include <map>

#include "support/catch.hpp"
#include "support/configuration_features.hpp"
#include "support/random_configuration.hpp"

namespace nn_random_configuration {

using namespace headwise_tests;

TEST_CASE("2,000 random configurations hold every feature at least 140 times, many tiles 15 times",
          "[nn]") {
  std::map<std::string, int> histogram;
  for (std::uint64_t number = 1; number <= 2000; ++number) {
    for (const std::string& feature : features(random_configuration(number))) ++histogram[feature];
  }
  std::string table;
  for (const auto& [feature, times] : histogram) {
    table += "\n  " + std::to_string(times) + "  " + feature;
    CAPTURE(feature);
    const bool is_dear = feature.starts_with("more than a tile");  // long double, L x S weights
    CHECK(times >= (is_dear ? 15 : 140));
  }
  WARN("configurations that have" << table);
  CHECK(histogram.size() == 87);
}

}  // namespace nn_random_configuration
