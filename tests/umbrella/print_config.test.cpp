// What a program can learn about the headwise that it was compiled with.
#include "headwise/print_config.hpp"

#include <sstream>
#include <string>
#include <typeinfo>

#include "support/catch.hpp"

namespace umbrella_print_config {

namespace {

/// The rest of the line that starts with `word`.
std::string fact(const std::string& word) {
  std::istringstream lines(headwise::format_config());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(word + " ")) continue;
    return line.substr(line.find_first_not_of(' ', word.size()));
  }
  return "nothing";
}

}  // namespace

TEST_CASE("the version macros agree with each other and with the namespace", "[umbrella]") {
  const std::string minor =
      std::to_string(HEADWISE_VERSION_MAJOR) + "_" + std::to_string(HEADWISE_VERSION_MINOR);
  CHECK(std::string(typeid(headwise::ShapeError).name()).find("v" + minor) != std::string::npos);
  STATIC_REQUIRE(HEADWISE_VERSION_AT_LEAST(HEADWISE_VERSION_MAJOR, HEADWISE_VERSION_MINOR,
                                           HEADWISE_VERSION_PATCH));
  STATIC_REQUIRE_FALSE(HEADWISE_VERSION_AT_LEAST(HEADWISE_VERSION_MAJOR, HEADWISE_VERSION_MINOR,
                                                 HEADWISE_VERSION_PATCH + 1));
  STATIC_REQUIRE_FALSE(
      HEADWISE_VERSION_AT_LEAST(HEADWISE_VERSION_MAJOR + 1, 0, HEADWISE_VERSION_PATCH));
}

TEST_CASE("format_config names versions, compiler, flags, kernels, vectors and processor",
          "[umbrella]") {
  CHECK(fact("headwise") == std::to_string(HEADWISE_VERSION_MAJOR) + "." +
                                std::to_string(HEADWISE_VERSION_MINOR) + "." +
                                std::to_string(HEADWISE_VERSION_PATCH));
  CHECK(fact("compiler").find(__VERSION__) != std::string::npos);
  CHECK(fact("Eigen").starts_with(EIGEN_VERSION_AT_LEAST(5, 0, 0) ? "5." : "3."));
  CHECK(fact("flags").starts_with("code_"));
  CHECK(fact("kernels") == headwise::name_of(headwise::instruction_set()));
  CHECK(fact("vectors").find(" float, ") != std::string::npos);
  CHECK(fact("alignment") == "64 bytes");
  CHECK(fact("processor") == headwise::processor_features());
  CHECK(fact("exceptions") == "yes");
  CHECK(fact("compiled") == "no");
}

}  // namespace umbrella_print_config
