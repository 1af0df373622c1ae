// Products that are no multiply-adds of the floats themselves, as a call asks for them.
#pragma once

#include <string>
#include <vector>

#include "headwise/ops/bf16_products.hpp"
#include "headwise/ops/split_products.hpp"
#include "support/bf16_units.hpp"

namespace headwise_tests {

/// Products, by the name that a failure shows.
struct NamedProducts {
  std::string name;
  Products products;
};

/// In pieces of bf16, where this processor has what multiplies them.
inline std::vector<NamedProducts> supported_split_products() {
  if (split_products().of_float()) return {};
  return {{"two pieces", split_products<2>()}, {"three pieces", split_products<3>()}};
}

/// Those, and by numbers rounded to bf16, of every unit.
inline std::vector<NamedProducts> supported_products() {
  std::vector<NamedProducts> all = supported_split_products();
  for (const Bf16Unit unit : supported_bf16_units()) {
    all.push_back({std::string(name_of(unit)), bf16_products(unit)});
  }
  return all;
}

}  // namespace headwise_tests
