// A case that is ready to be timed: made, run once, and measured in bytes.
#pragma once

#include <memory>

#include "peak.hpp"
#include "support.hpp"

namespace headwise::bench {

struct Prepared {
  const Family* family;
  std::vector<Index> values;
  std::unique_ptr<MemoryTally> tally;  // of the first run, which left its results in it
  Case one;
  double peak_bytes;     // that one run asks of the memory resource, on top of what it is given
  bool checked = false;  // whether the last run's result was found right

  bool single_precision() const { return family->name.ends_with("f32"); }
};

/// The case of these values; the last one is kept, and given again without being made anew.
/// Throws ArgumentError for a number of values that the family does not take.
inline Prepared& prepare(const Family& family, const std::vector<Index>& values) {
  static std::unique_ptr<Prepared> last;
  if (last != nullptr && last->family == &family && last->values == values) return *last;
  require(values.size() == family.arguments.size(), family.name, [&] {
    return std::to_string(values.size()) + " values, expected " +
           std::to_string(family.arguments.size());
  });
  last.reset();  // memory of one case at a time
  auto tally = std::make_unique<MemoryTally>();
  Case one = family.make(values);
  Context counted;
  counted.memory = tally.get();
  one.run(counted);
  const auto peak_bytes = static_cast<double>(tally->peak());
  last = std::make_unique<Prepared>(
      Prepared{&family, values, std::move(tally), std::move(one), peak_bytes});
  return *last;
}

}  // namespace headwise::bench
