// The laws of attention, for anybody's kernel and without a test framework: a list of laws, a list
// of shapes, and a score card that says which laws hold, and where the worst number stands if one
// does not. It proves nothing about speed, and nothing about numbers that no shape here has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/testing/backward_laws.hpp"
#include "headwise/testing/forward_laws.hpp"
#include "headwise/testing/invariance_laws.hpp"

namespace headwise::inline v0_1 {

/// One law over all shapes.
struct ScoreCardRow {
  std::string law, statement;  // its name, and what it demands
  LawResult worst;             // its status is the law's
  LawShape shape;              // of the worst
  int shapes = 0;              // that the law says something about
  int failures = 0;            // of those
};

/// All laws of one kernel. Converts to bool where a condition is expected; prints as a table.
struct ScoreCard {
  std::string kernel;              // its name
  std::vector<ScoreCardRow> rows;  // in the order of the laws

  /// The laws that fail on some shape.
  std::vector<std::string> failed() const {
    std::vector<std::string> names;
    for (const ScoreCardRow& row : rows) {
      if (row.worst.status == LawStatus::fail) names.push_back(row.law);
    }
    return names;
  }
  /// Whether no law fails.
  explicit operator bool() const { return failed().empty(); }

  /// The row of a law. Throws ArgumentError where the card has no such law.
  const ScoreCardRow& operator[](std::string_view law) const {
    for (const ScoreCardRow& row : rows) {
      if (row.law == law) return row;
    }
    raise<ArgumentError>("ScoreCard: law is " + std::string(law) + ", expected one of its rows");
  }

  /// Puts the rows of another card of the same kernel below its own.
  void append(ScoreCard other) {
    for (ScoreCardRow& row : other.rows) rows.push_back(std::move(row));
  }

  /// A line a law: name, result, worst error and what it was held against, shapes, worst shape;
  /// below a law that fails, what it demands and the worst number.
  std::string format() const {
    std::size_t longest = 0;
    for (const ScoreCardRow& row : rows) longest = std::max<std::size_t>(longest, row.law.size());
    const int width = static_cast<int>(longest) + 2;
    std::ostringstream out;
    out << kernel << '\n' << std::left;
    out << "  " << std::setw(width) << "law" << std::setw(8) << "result" << std::setw(12) << "worst"
        << std::setw(10) << "allowed" << std::setw(8) << "shapes"
        << "worst shape\n";
    for (const ScoreCardRow& row : rows) {
      const LawResult& worst = row.worst;
      out << "  " << std::setw(width) << row.law << std::setw(8);
      if (worst.status == LawStatus::not_applicable) {
        out << "-"
            << "not applicable\n";
        continue;
      }
      const bool fails = row.failures > 0, number = worst.thrown.empty();
      out << (fails ? "FAIL" : "pass") << std::setw(12)
          << (number ? detail::format_error(worst.worst.error) : "-") << std::setw(10)
          << (number ? detail::format_number(worst.worst.tolerance) : "-") << std::setw(8)
          << std::to_string(row.shapes - row.failures) + "/" + std::to_string(row.shapes)
          << row.shape.format() << '\n';
      if (fails) out << "      " << row.statement << "\n      " << worst.message() << '\n';
    }
    const auto count = failed().size();
    out << "  " << (count == 0 ? "every law that applies holds" : std::to_string(count) + " failed")
        << '\n';
    return out.str();
  }

  friend std::ostream& operator<<(std::ostream& out, const ScoreCard& card) {
    return out << card.format();
  }
};

inline namespace HEADWISE_CODE {

/// All laws, in the order in which a fault is best read: what the textbook says first.
template <class T>
std::vector<AttentionLaw<T>> attention_laws() {
  using Trial = LawTrial<T>;
  using detail::Agreement;
  const auto batch = [](Agreement how) {
    return [how](const Trial& trial) { return detail::batch_law(trial, how); };
  };
  const auto chunk = [](Agreement how) {
    return [how](const Trial& trial) { return detail::chunk_law(trial, how); };
  };
  return {
      {"agrees with plain loops",
       "o, and the weights, are those of plain loops in long double, for queries that see a key",
       detail::oracle_law<T>},
      {"weights sum to 1 over keys",
       "the weights of a query that sees a key sum to 1, and are 0 where a pair is hidden",
       detail::weights_law<T>},
      {"equal values come out as they are",
       "where all values of a head are one row, o is that row: softmax is over the keys",
       detail::equal_values_law<T>},
      {"a shift of all scores is nothing",
       "one number added to all scores of a query, far beyond where e^x overflows, changes nothing",
       detail::shift_law<T>},
      {"the order of keys is nothing",
       "keys in another order, with their values and what hides them, give the same o",
       detail::permutation_law<T>},
      {"grouped heads are repeated heads",
       "G key/value heads give what H heads give that repeat each of them H / G times",
       detail::grouped_law<T>},
      {"the future changes no bit",
       "with causal, other queries, keys and values behind query i leave o up to i bit for bit",
       detail::future_law<T>},
      {"what is hidden changes no bit",
       "NaN or infinity in a key and its value does not reach a query that may not see it",
       detail::hidden_law<T>},
      {"what is seen shows", "NaN in a value makes o of every query that sees it not finite",
       detail::seen_law<T>},
      {"a query that sees nothing gets 0", "o, and the weights, of a query without keys are 0",
       detail::dead_rows_law<T>},
      {"twice the same, same bits", "a second call on the same problem gives the same bits",
       detail::repeat_law<T>},
      {"alone as in a batch, to rounding", "an element of a batch by itself gives the same o",
       batch(Agreement::rounding)},
      {"alone as in a batch, same bits", "an element of a batch by itself gives the same bits of o",
       batch(Agreement::bits)},
      {"a chunk as in the whole, to rounding",
       "a part of the queries, with the keys up to the last of them if causal, gives the same o",
       chunk(Agreement::rounding)},
      {"a chunk as in the whole, same bits",
       "a part of the queries, with the keys up to the last of them if causal, gives the same bits",
       chunk(Agreement::bits)},
      {"gradients agree with plain loops",
       "dq, dk and dv are those of plain loops in long double (of rows that a variant encodes, dv)",
       detail::gradient_oracle_law<T>},
      {"backward is forward's adjoint",
       "<d_o, J u> by differences of forward equals <J^T d_o, u> of backward, for random signs u",
       detail::adjoint_law<T>},
      {"what is hidden moves no gradient",
       "NaN or infinity in a hidden key and value leaves the gradients it may not reach bit for "
       "bit",
       detail::hidden_gradient_law<T>},
      {"a query that sees nothing moves no gradient",
       "a gradient that arrives at queries without keys alone gives dq, dk and dv of 0",
       detail::dead_gradient_law<T>},
  };
}

}  // namespace HEADWISE_CODE

/// Extents of 1, primes, one below and one above 64, L != S both ways, G < H, dv != d.
inline std::vector<LawShape> law_shapes() {
  return {
      {1, 1, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 2, 3, 1, true},
      {2, 2, 2, 7, 7, 5, 5},
      {2, 2, 1, 7, 7, 5, 3, true},
      {1, 4, 2, 5, 11, 8, 4, true, true},
      {2, 3, 1, 11, 5, 4, 6, true},
      {3, 4, 2, 13, 17, 7, 3, false, true},
      {2, 2, 1, 63, 63, 4, 5, true},
      {1, 2, 2, 65, 67, 6, 3, true, true},
      {2, 2, 2, 3, 131, 5, 2},
      {1, 4, 2, 67, 130, 17, 8, true},
      {2, 2, 2, 1, 65, 4, 4, true},
  };
}

/// What a kernel is tried on.
struct ScoreCardOptions {
  std::vector<LawShape> shapes = law_shapes();  // every extent >= 1, G divides H
  std::uint64_t seed = 1;                       // of the numbers
  double slack = 1;  // multiplies every tolerance: more than 1 for a kernel with a coarse e^x
};

namespace detail::inline HEADWISE_CODE {

/// Whether a law says anything of a kernel that threw: found out by a kernel that takes and gives
/// the same, and answers 0. A law that throws even then says something.
template <class T>
bool has_a_say(const AttentionLaw<T>& law, const AttentionKernel<T>& kernel,
               const LawShape& shape) {
  AttentionKernel<T> silent = kernel;
  silent.forward = [](const AttentionProblem<T>&, const AttentionAnswer<T>& y) {
    fill(y.o, T(0));
    if (!y.weights.absent()) fill(y.weights, T(0));
  };
  if (silent.backward) silent.backward = [](const auto&, const auto&, const auto&) {};
  LawResult result;
  const auto error = error_of([&] { result = law.holds(LawTrial<T>(silent, shape, 1)); });
  return error || result.status != LawStatus::not_applicable;
}

}  // namespace detail::inline HEADWISE_CODE

inline namespace HEADWISE_CODE {

/// Holds a kernel against laws, on every shape that it can take. What it throws is a failure.
///
/// T        float or double
/// kernel   called a few dozen times a shape, with tensors of thousands of numbers
/// options  shapes, seed, slack
/// laws     attention_laws(), some of them, or more
///
/// Throws ArgumentError for a shape with an extent below 1, with heads that do not divide, for a
/// kernel without forward, no shapes, no laws, or a slack that is not above 0.
template <class T>
ScoreCard run_laws(const AttentionKernel<T>& kernel, const ScoreCardOptions& options = {},
                   const std::vector<AttentionLaw<T>>& laws = attention_laws<T>()) {
  require(static_cast<bool>(kernel.forward), "run_laws",
          "kernel.forward is empty, expected a function");
  require(!options.shapes.empty(), "run_laws", "shapes are 0, expected at least one");
  require(detail::is_finite_number(options.slack) && options.slack > 0, "run_laws", [&] {
    return "slack is " + detail::format_number(options.slack) +
           ", expected a finite number above 0";
  });
  require(!laws.empty(), "run_laws", "laws are 0, expected at least one");
  ScoreCard card{kernel.name, {}};
  for (const AttentionLaw<T>& law : laws) card.rows.push_back({law.name, law.statement, {}, {}});
  for (const LawShape& shape : options.shapes) {
    const Index least =
        std::min<Index>({shape.B, shape.H, shape.G, shape.L, shape.S, shape.d, shape.dv});
    require(least >= 1 && shape.H % shape.G == 0, "run_laws", [&] {
      return "shape is " + shape.format() + ", expected extents >= 1 and G a divisor of H";
    });
  }
  for (const LawShape& shape : options.shapes) {
    if ((shape.causal && !kernel.takes_causal) || (shape.masked && !kernel.takes_keep) ||
        (shape.G != shape.H && !kernel.takes_groups)) {
      continue;
    }
    std::optional<LawTrial<T>> trial;
    for (std::size_t n = 0; n < laws.size(); ++n) {
      LawResult result;
      const auto error = error_of([&] {
        if (!trial) trial.emplace(kernel, shape, options.seed, options.slack);
        result = laws[n].holds(*trial);
      });
      if (error && (trial || detail::has_a_say(laws[n], kernel, shape))) {
        result = {LawStatus::fail, "", {}, *error};
      }
      if (result.status == LawStatus::not_applicable) continue;
      ScoreCardRow& row = card.rows[n];
      ++row.shapes;
      if (result.status == LawStatus::fail) ++row.failures;
      if (is_worse(result, row.worst)) {
        row.worst = result;
        row.shape = shape;
      }
    }
  }
  return card;
}

/// Prints the score card of a kernel and returns how many laws failed: 0 as an exit status. Throws
/// as run_laws does.
template <class T>
int score_card(std::ostream& out, const AttentionKernel<T>& kernel,
               const ScoreCardOptions& options = {}) {
  const ScoreCard card = run_laws(kernel, options);
  out << card;
  return static_cast<int>(card.failed().size());
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
