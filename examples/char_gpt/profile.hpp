// Where the time of the steps went, for --profile: function by function of the tape, and what a
// step does around it.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "headwise/autograd/profile.hpp"
#include "headwise/ops/linear.hpp"
#include "training.hpp"

namespace char_gpt {

using headwise::TapeProfile;

/// FLOP/s of the fastest of the products [n, n] [n, n] that linear_forward does in so many seconds,
/// at least one: what this library reaches here, with these threads. (The machine's peak is above
/// it.)
inline double best_product_rate(double seconds, Index n = 1024) {
  const Tensor<float, 2> a({n, n}), b({n, n});
  Tensor<float, 2> y({n, n});
  const double flops = 2.0 * static_cast<double>(n * n) * static_cast<double>(n);
  double best = 0;
  for (const double begin = now(); best == 0 || now() - begin < seconds;) {
    const double start = now();
    headwise::linear_forward<float>(a, b, {}, y);
    best = std::max(best, flops / (now() - start));
  }
  return best;
}

/// A line of the table: seconds and FLOPs of all steps.
struct ProfileRow {
  std::string name;
  double forward = 0, backward = 0;  // seconds; of what has no directions, forward alone
  double flops = 0;
};

/// The lines of a training, the longest first; what is measured but has no line of its own is
/// "else". Without calls in the tape's profile its part is one line.
inline std::vector<ProfileRow> profile_rows(const Training& training, const TapeProfile& tape) {
  std::vector<ProfileRow> rows;
  double rest = 0;
  for (const double seconds : training.seconds()) rest += seconds;
  const auto add = [&](const ProfileRow& row) {
    rest -= row.forward + row.backward;
    rows.push_back(row);
  };
  for (const headwise::OpProfile& op : tape.ops()) {
    add({op.name, op.forward.seconds, op.recomputed.seconds + op.backward.seconds,
         static_cast<double>(op.total().flops)});
  }
  // Steps of AdamW and the norm of the gradients, by what their comments say.
  const double an_update = 15 + 2;
  const auto steps = static_cast<double>(training.seconds().size());
  for (std::size_t n = 0; n < phases.size(); ++n) {
    if (n == differentiating && !tape.ops().empty()) continue;
    const double flops =
        n == updating ? an_update * steps * static_cast<double>(training.num_parameters()) : 0;
    add({phases[n], training.phase_seconds()[n], 0, flops});
  }
  std::sort(rows.begin(), rows.end(), [](const ProfileRow& a, const ProfileRow& b) {
    return a.forward + a.backward > b.forward + b.backward;
  });
  rows.push_back({"else", std::max(0.0, rest), 0, 0});
  return rows;
}

/// A number of so many places, or blanks where it is 0.
inline std::string cell(const char* format, double number) {
  char text[64];
  const int length = std::snprintf(text, sizeof text, format, number);
  return number == 0 ? std::string(static_cast<std::size_t>(length), ' ') : std::string(text);
}

inline std::string profile_line(const ProfileRow& row, double steps, double total, double best) {
  const double seconds = row.forward + row.backward;
  const double rate = seconds > 0 ? row.flops / seconds : 0;
  char name[64];
  std::snprintf(name, sizeof name, "  %-20s", row.name.c_str());
  return name + cell("%11.3f", 1e3 * row.forward / steps) +
         cell("%11.3f", 1e3 * row.backward / steps) +
         cell("%8.1f %%", total > 0 ? 100 * seconds / total : 0) + cell("%10.1f", rate / 1e9) +
         cell("%8.1f %%", 100 * rate / best) + "\n";
}

/// Milliseconds a step, share of the step, GFLOP/s and share of the best product's; then the whole.
inline std::string profile_table(const Training& training, const TapeProfile& tape, double best) {
  const auto steps = std::max<double>(1, static_cast<double>(training.seconds().size()));
  const std::vector<ProfileRow> rows = profile_rows(training, tape);
  ProfileRow sum{"a step", 0, 0, 0};
  for (const ProfileRow& row : rows) {
    sum.forward += row.forward;
    sum.backward += row.backward;
    sum.flops += row.flops;
  }
  const double total = sum.forward + sum.backward;
  std::string text = "  ms a step               forward   backward     share   GFLOP/s   of best\n";
  for (const ProfileRow& row : rows) text += profile_line(row, steps, total, best);
  text += profile_line(sum, steps, total, best);
  char line[160];
  std::snprintf(line, sizeof line,
                "%.3f GFLOP a step in %.3f ms; the best product of 1024 x 1024 x 1024 here: "
                "%.1f GFLOP/s\n",
                sum.flops / steps / 1e9, 1e3 * total / steps, best / 1e9);
  return text + line;
}

/// Bytes of forward and backward, those of parameters, their gradients and AdamW aside.
inline std::string memory_line(std::int64_t kept, std::int64_t peak) {
  constexpr double mebibyte = 1 << 20;
  char line[128];
  std::snprintf(line, sizeof line, "activations kept for backward: %.2f MiB, peak %.2f MiB\n",
                static_cast<double>(kept) / mebibyte, static_cast<double>(peak) / mebibyte);
  return line;
}

}  // namespace char_gpt
