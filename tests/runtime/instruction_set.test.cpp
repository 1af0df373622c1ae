#include "headwise/runtime/instruction_set.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "headwise/kernels/kernels.hpp"
#include "support/catch.hpp"
#include "support/instruction_sets.hpp"

namespace runtime_instruction_set {

using namespace headwise;
using headwise_tests::supported_instruction_sets;

namespace {

constexpr InstructionSet all[] = {InstructionSet::generic, InstructionSet::avx2,
                                  InstructionSet::avx512};

std::string refusal_of(const char* text) {
  try {
    (void)choose_instruction_set(text);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("an instruction set is chosen by its name, where the processor runs it", "[runtime]") {
  CHECK(name_of(InstructionSet::generic) == "generic");
  CHECK(name_of(InstructionSet::avx2) == "avx2");
  CHECK(name_of(InstructionSet::avx512) == "avx512");
  for (const auto set : all) {
    const std::string name(name_of(set));
    CAPTURE(name);
    if (is_supported(set)) {
      CHECK(choose_instruction_set(name.c_str()) == set);
    } else {
      CHECK(refusal_of(name.c_str()) ==
            "HEADWISE_SIMD: it is " + name +
                ", which this processor does not run; it has: " + processor_features());
    }
  }
}

TEST_CASE("without a name the widest instruction set of the processor is chosen", "[runtime]") {
  const InstructionSet widest = supported_instruction_sets().back();
  CHECK(choose_instruction_set(nullptr) == widest);
  CHECK(choose_instruction_set("") == widest);
}

TEST_CASE("every processor runs generic, and avx2 where it runs avx512", "[runtime]") {
  CHECK(is_supported(InstructionSet::generic));
  const bool avx512_without_avx2 =
      is_supported(InstructionSet::avx512) && !is_supported(InstructionSet::avx2);
  CHECK_FALSE(avx512_without_avx2);
}

TEST_CASE("another name is refused, and the message says which there are", "[runtime]") {
  for (const std::string name : {"avx", "avx2 ", "Generic", "sse2", "0"}) {
    CHECK(refusal_of(name.c_str()) ==
          "HEADWISE_SIMD: it is \"" + name + "\", expected generic, avx2 or avx512");
  }
}

TEST_CASE("a process has the instruction set that HEADWISE_SIMD says", "[runtime]") {
  CHECK(instruction_set() == choose_instruction_set(std::getenv("HEADWISE_SIMD")));
  CHECK(kernels::kernels_here<float>().instruction_set == instruction_set());
  CHECK(kernels::kernels_here<double>().instruction_set == instruction_set());
}

TEST_CASE("kernels of float and double are those that were asked for, others are generic",
          "[runtime]") {
  for (const auto set : supported_instruction_sets()) {
    CAPTURE(name_of(set));
    const Index bytes = set == InstructionSet::avx512 ? 64 : set == InstructionSet::avx2 ? 32 : 16;
    CHECK(headwise::vector_bytes(set) == bytes);
    CHECK(kernels::kernels_of<float>(set).instruction_set == set);
    CHECK(kernels::kernels_of<float>(set).lanes == bytes / 4);
    CHECK(kernels::kernels_of<double>(set).instruction_set == set);
    CHECK(kernels::kernels_of<double>(set).lanes == bytes / 8);
    CHECK(kernels::kernels_of<long double>(set).instruction_set == InstructionSet::generic);
    CHECK(kernels::kernels_of<long double>(set).lanes == 1);
  }
}

}  // namespace runtime_instruction_set
