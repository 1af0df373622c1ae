// Which random configurations a run is asked for, by its environment: HEADWISE_SEED,
// HEADWISE_CONFIGURATIONS and HEADWISE_FIRST, as tests/nn/random_gradients.test.cpp says.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace headwise_tests {

inline std::optional<std::uint64_t> environment_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

/// Configurations first ... first + count - 1.
struct ConfigurationNumbers {
  std::uint64_t first, count;
};
inline ConfigurationNumbers all_configurations() {
  if (const auto one = environment_number("HEADWISE_SEED")) return {*one, 1};
  return {environment_number("HEADWISE_FIRST").value_or(1),
          environment_number("HEADWISE_CONFIGURATIONS").value_or(2000)};
}
/// Their part 0, 1, 2 or 3.
inline ConfigurationNumbers quarter_of_configurations(std::uint64_t part) {
  const auto [first, count] = all_configurations();
  const std::uint64_t begin = count * part / 4, end = count * (part + 1) / 4;
  return {first + begin, end - begin};
}

}  // namespace headwise_tests
