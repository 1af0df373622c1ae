// Predictions and tallies side by side, as text.
#pragma once

#include <iomanip>
#include <ostream>

#include "headwise/analysis/count_flops.hpp"
#include "headwise/analysis/count_memory.hpp"
#include "headwise/runtime/tally.hpp"

namespace headwise::inline v0_1 {

/// A call's FLOPs by step, their sum, and what was counted while it ran.
inline void report_flops(std::ostream& out, std::string_view title, const FlopCount& predicted,
                         const FlopTally& counted) {
  out << title << '\n';
  for (const auto& [name, flops] : predicted.steps()) {
    if (flops != 0) {
      out << "  " << std::left << std::setw(20) << name << std::right << std::setw(16) << flops
          << '\n';
    }
  }
  const std::int64_t useful = counted.useful.load(), executed = counted.executed.load();
  out << "  " << std::left << std::setw(20) << "predicted" << std::right << std::setw(16)
      << predicted.total() << " FLOPs\n"
      << "  " << std::left << std::setw(20) << "counted" << std::right << std::setw(16) << useful
      << (useful == predicted.total() ? " FLOPs, equal\n" : " FLOPs, NOT EQUAL\n") << "  "
      << std::left << std::setw(20) << "executed in tiles" << std::right << std::setw(16)
      << executed << " FLOPs\n";
}

/// A call's bytes by stage, their peak, and the peak that was counted while it ran.
inline void report_memory(std::ostream& out, std::string_view title, const MemoryCount& predicted,
                          std::int64_t counted_peak) {
  out << title << '\n';
  for (const MemoryCount::Stage& stage : predicted.stages) {
    out << "  " << std::left << std::setw(20) << stage.name << std::right << std::setw(16)
        << stage.live << " live + " << stage.scratch << " scratch\n";
  }
  out << "  " << std::left << std::setw(20) << "predicted peak" << std::right << std::setw(16)
      << predicted.peak() << " bytes\n"
      << "  " << std::left << std::setw(20) << "counted peak" << std::right << std::setw(16)
      << counted_peak
      << (counted_peak == predicted.peak() ? " bytes, equal\n" : " bytes, NOT EQUAL\n");
}

}  // namespace headwise::inline v0_1
