#include "headwise/runtime/bf16_unit.hpp"

#include <string>

#include "headwise/ops/bf16_products.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"

namespace runtime_bf16_unit {

using namespace headwise_tests;

namespace {

std::string refusal_of(Bf16Unit unit) {
  try {
    (void)bf16_products(unit);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("what multiplies bf16 has a name, and is refused where the processor has it not",
          "[bf16_unit]") {
  CHECK(name_of(Bf16Unit::multiply_add) == "multiply_add");
  CHECK(name_of(Bf16Unit::avx512) == "avx512_bf16");
  CHECK(name_of(Bf16Unit::amx) == "amx");
  CHECK(is_supported(Bf16Unit::multiply_add));
  for (const auto unit : {Bf16Unit::multiply_add, Bf16Unit::avx512, Bf16Unit::amx}) {
    const std::string name(name_of(unit));
    CAPTURE(name);
    CHECK(refusal_of(unit) == (is_supported(unit) ? "none"
                                                  : "bf16_products: the unit is " + name +
                                                        ", which this processor does not have"));
    CHECK(is_supported(unit) == is_supported(unit));  // permission that was given is given again
  }
}

TEST_CASE("a unit beyond multiply_add needs AVX-512, and AMX the instructions of AVX512_BF16",
          "[bf16_unit]") {
  const bool avx512 = is_supported(Bf16Unit::avx512), amx = is_supported(Bf16Unit::amx);
  CHECK((!avx512 || is_supported(InstructionSet::avx512)));
  CHECK((!amx || avx512));
}

TEST_CASE("a process multiplies bf16 by the fastest unit beside its instruction set",
          "[bf16_unit]") {
  const bool wide = instruction_set() == InstructionSet::avx512;
  CAPTURE(name_of(instruction_set()));
  CHECK(bf16_unit() == (wide ? supported_bf16_units().back() : Bf16Unit::multiply_add));
  CHECK(bf16_products().kernels() == bf16_products(bf16_unit()).kernels());
  const auto& plain = kernels::bf16_kernels_of<float>(Bf16Unit::multiply_add, instruction_set());
  CHECK(bf16_products(Bf16Unit::multiply_add).kernels() == &plain);
  CHECK(plain.instruction_set == (instruction_set() == InstructionSet::generic
                                      ? InstructionSet::generic
                                      : InstructionSet::avx2));
}

}  // namespace runtime_bf16_unit
