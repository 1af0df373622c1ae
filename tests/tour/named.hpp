// What a tour of the library brings home: results by name. No arithmetic is done on them.
#pragma once

#include <string>
#include <vector>

namespace headwise_tests {

/// `exact` results are counts and bits: every build has to give the same ones.
struct Named {
  std::string name;
  std::vector<double> values;
  bool exact = false;
};

}  // namespace headwise_tests
