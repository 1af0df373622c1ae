// What a law says of a kernel, and the comparisons that laws are made of.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "headwise/testing/close_to.hpp"
#include "headwise/testing/law_trial.hpp"

namespace headwise::inline v0_1 {

/// A law that says nothing about a kernel or a shape is not applicable to it.
enum class LawStatus { pass, fail, not_applicable };

/// One law on one trial, or the worst of many.
struct LawResult {
  LawStatus status = LawStatus::not_applicable;  // of the trial
  std::string tensor = {};                       // the one that `worst` is about
  Closeness worst = {};                          // the worst number, and where
  std::string thrown = {};                       // what the kernel threw instead

  /// `o[0, 1, 3, 2] is nan, expected 0.25, error not finite > 1e-05; 3 of 24 elements fail`
  std::string message() const {
    if (!thrown.empty()) return "threw: " + thrown;
    if (status == LawStatus::not_applicable) return "not applicable";
    return tensor + worst.message();
  }
};

inline namespace HEADWISE_CODE {

/// A law by its name, and what it demands in one sentence. Users add their own.
template <class T>
struct AttentionLaw {
  std::string name, statement;                         // what the card prints; what the law demands
  std::function<LawResult(const LawTrial<T>&)> holds;  // asks a kernel
};

/// Whether `a` is the one to report of two: failure before success, then the larger error.
inline bool is_worse(const LawResult& a, const LawResult& b) {
  const auto severity = [](const LawResult& x) {
    if (!x.thrown.empty()) return 3;
    return x.status == LawStatus::fail ? 2 : x.status == LawStatus::pass ? 1 : 0;
  };
  if (severity(a) != severity(b)) return severity(a) > severity(b);
  return a.worst.error > b.worst.error;
}

/// Adds a comparison to what a law has found so far.
inline void add_finding(LawResult& result, std::string tensor, Closeness found) {
  if (found.count == 0) return;
  const LawResult next{found.ok ? LawStatus::pass : LawStatus::fail, std::move(tensor),
                       std::move(found)};
  if (is_worse(next, result)) result = next;
}

/// bitwise_equal, with how far apart the numbers are as its error.
template <class T, int R>
Closeness equal_bits(const In<T, R>& actual, const In<T, R>& expected) {
  Closeness bits = bitwise_equal(actual, expected);
  if (bits.ok) return bits;
  const Closeness numbers = close_to(actual, expected, 0);
  if (numbers.ok) {
    bits.error = 0;  // 0 and -0
    return bits;
  }
  const Index failures = bits.failures;
  bits = numbers;
  bits.failures = failures;
  return bits;
}

/// Elements that are to be 0, whatever the size of others. -0 is 0.
template <class T, int R>
Closeness all_zero(const In<T, R>& actual) {
  return close_to(actual, In<T, R>(Tensor<T, R>(actual.shape())), 0, {.floor = 1});
}

/// Those rows [b, h, i] of a [B, H, L, W] tensor that a rule picks; the others are `rest`'s.
template <class T, class Rule>
Tensor<T, 4> rows_where(const Tensor<T, 4>& picked, const Tensor<T, 4>& rest, Rule&& rule) {
  Tensor<T, 4> rows = picked;
  for_each_index(rows.shape(), [&](const Shape<4>& at) {
    if (!rule(at[0], at[1], at[2])) rows(at) = rest(at);
  });
  return rows;
}

/// Whether query (b, h, i) sees any key.
template <class T>
bool sees_any(const AttentionProblem<T>& x, Index b, Index h, Index i) {
  for (Index j = 0; j < x.k.extent(2); ++j) {
    if (x.sees(b, h, i, j)) return true;
  }
  return false;
}

/// Whether a trial has a query that sees no key.
template <class T>
bool has_dead_rows(const AttentionProblem<T>& x) {
  bool found = false;
  for_each_index(Shape{x.q.extent(0), x.q.extent(1), x.q.extent(2)}, [&](const Shape<3>& row) {
    found = found || !sees_any(x, row[0], row[1], row[2]);
  });
  return found;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
