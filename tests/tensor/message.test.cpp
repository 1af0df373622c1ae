// What a message is made of, held against the texts that std::to_string and its like write.
#include <string>
#include <vector>

#include "headwise/tensor/shape.hpp"
#include "support/catch.hpp"

namespace tensor_message {

using headwise::Index;
using headwise::Shape;
using headwise::detail::join;

TEST_CASE("a message is its texts, numbers and extents, one behind the other", "[tensor]") {
  const std::string name = "x";
  const std::vector<Index> list = {5, -6};
  CHECK(join({}) == "");
  CHECK(join({"f: ", name, std::string_view("yz").substr(0, 1)}) == "f: xy");
  CHECK(join({-3, " ", std::size_t{7}, " ", Index{1} << 62}) == "-3 7 4611686018427387904");
  CHECK(join({0.1, " ", 1e-5f}) == std::to_string(0.1) + " " + std::to_string(1e-5f));
  CHECK(join({Shape{2, 0, 4}, " of ", list, Shape{1}.extents}) == "[2, 0, 4] of [5, -6][1]");
}

TEST_CASE("a rule that holds asks no callable for its message", "[tensor]") {
  int calls = 0;
  const auto message = [&] {
    ++calls;
    return "n is " + std::to_string(calls);
  };
  headwise::require(true, "f", message);
  CHECK(calls == 0);
  CHECK(headwise::error_of([&] { headwise::require(false, "f", message); }) == "f: n is 1");
  CHECK(headwise::error_of([&] { headwise::require(false, "f", "n is ", 2); }) == "f: n is 2");
}

}  // namespace tensor_message
