// The laws of attention that need only a forward. Each is a function of a trial; nothing is known
// of the kernel but what it returns.
#pragma once

#include <algorithm>
#include <set>

#include "headwise/testing/law_result.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// o beside plain loops in long double, at all queries that see something.
template <class T>
LawResult oracle_law(const LawTrial<T>& trial) {
  LawResult result;
  const auto alive = [x = trial.problem()](Index b, Index h, Index i) {
    return sees_any(x, b, h, i);
  };
  const auto compare = [&](const char* name, const Tensor<T, 4>& actual, const LawSums& expected) {
    const auto narrow = convert<T>(In<long double, 4>(expected.values));
    add_finding(
        result, name,
        close_to(In<T, 4>(rows_where(actual, narrow, alive)), In<long double, 4>(expected.values),
                 trial.tolerance(), {.floor = size_of<T>(expected)}));
  };
  compare("o", trial.answer().o, trial.oracle().o);
  if (trial.kernel().gives_weights) {
    compare("weights", trial.answer().weights, trial.oracle().weights);
  }
  return result;
}

template <class T>
LawResult weights_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.kernel().gives_weights) return result;
  const AttentionProblem<T> x = trial.problem();
  const Tensor<T, 4>& weights = trial.answer().weights;
  const Index B = weights.extent(0), H = weights.extent(1), L = weights.extent(2);
  Tensor<long double, 3> sums(Shape{B, H, L}), ones(Shape{B, H, L});
  Tensor<T, 4> hidden(weights.shape());
  for_each_index(weights.shape(), [&](const Shape<4>& at) {
    const Shape<3> row{at[0], at[1], at[2]};
    if (!sees_any(x, at[0], at[1], at[2])) return;
    ones(row) = 1;
    sums(row) += static_cast<long double>(weights(at));
    if (!x.sees(at[0], at[1], at[2], at[3])) hidden(at) = weights(at);
  });
  if (!trial.kernel().variant.sink) {
    add_finding(result, "sum of weights", close_to(sums, ones, trial.tolerance()));
  }
  add_finding(result, "hidden weights", all_zero(In<T, 4>(hidden)));
  return result;
}

/// Where all values of a head are one row, every query that sees something returns that row.
template <class T>
LawResult equal_values_law(const LawTrial<T>& trial) {
  LawResult result;
  if (trial.kernel().variant.sink) return result;
  const AttentionProblem<T> x = trial.problem();
  LawData<T> data = trial.data();
  for_each_index(data.v.shape(),
                 [&](const Shape<4>& at) { data.v(at) = x.v(at[0], at[1], 0, at[3]); });
  Tensor<T, 4> expected(data.d_o.shape());
  const Index group = x.q.extent(1) / x.k.extent(1);
  for_each_index(expected.shape(),
                 [&](const Shape<4>& at) { expected(at) = x.v(at[0], at[1] / group, 0, at[3]); });
  const auto o = rows_where(trial.forward(data).o, expected,
                            [&](Index b, Index h, Index i) { return sees_any(x, b, h, i); });
  add_finding(result, "o", close_to(o, expected, trial.tolerance()));
  return result;
}

/// The first coordinate of all keys moves by one amount, so that all scores of a query move alike:
/// far enough for e^x to overflow where nothing is subtracted.
template <class T>
LawResult shift_law(const LawTrial<T>& trial) {
  LawResult result;
  LawData<T> data = trial.data();
  if (data.q.size() == 0 || trial.kernel().variant.bends()) return result;
  const T shift = std::numeric_limits<T>::digits < 53 ? 120 : 800;
  T greatest = 0;
  for (Index b = 0; b < data.q.extent(0); ++b) {
    for (Index h = 0; h < data.q.extent(1); ++h) {
      for (Index i = 0; i < data.q.extent(2); ++i) {
        greatest = std::max<T>(greatest, std::abs(data.scale * data.q(b, h, i, 0)));
      }
    }
  }
  for (Index b = 0; b < data.k.extent(0); ++b) {
    for (Index g = 0; g < data.k.extent(1); ++g) {
      for (Index j = 0; j < data.k.extent(2); ++j) data.k(b, g, j, 0) += shift / greatest;
    }
  }
  add_finding(result, "o",
              close_to(trial.forward(data).o, trial.answer().o,
                       trial.tolerance() * static_cast<double>(shift) / 4,
                       {.floor = size_of<T>(trial.oracle().o)}));
  return result;
}

HEADWISE_STRICT_MATH_END

/// Keys with their values in another order; what hides them goes along.
template <class T>
LawResult permutation_law(const LawTrial<T>& trial) {
  LawResult result;
  const LawData<T>& data = trial.data();
  const AttentionProblem<T> x = data.problem();
  const Index S = data.k.extent(2);
  if (S < 2 || trial.kernel().variant.by_place()) return result;
  if (data.causal && !trial.kernel().takes_keep) return result;
  LawData<T> moved = data;
  const auto from = [&](Index j) {
    return j % 2 == 0 ? S - 1 - j / 2 : j / 2;
  };  // interleaved ends
  for_each_index(data.k.shape(), [&](const Shape<4>& at) {
    moved.k(at) = data.k(at[0], at[1], from(at[2]), at[3]);
  });
  for_each_index(data.v.shape(), [&](const Shape<4>& at) {
    moved.v(at) = data.v(at[0], at[1], from(at[2]), at[3]);
  });
  if (data.causal || !data.keep.absent()) {
    moved.causal = false;
    moved.keep = Tensor<bool, 4>({data.q.extent(0), data.q.extent(1), data.q.extent(2), S});
    for_each_index(moved.keep.shape(), [&](const Shape<4>& at) {
      moved.keep(at) = x.sees(at[0], at[1], at[2], from(at[3]));
    });
  }
  add_finding(result, "o",
              close_to(trial.forward(moved).o, trial.answer().o, trial.tolerance(),
                       {.floor = size_of<T>(trial.oracle().o)}));
  return result;
}

/// Everything behind a query is exchanged for other numbers.
template <class T>
LawResult future_law(const LawTrial<T>& trial) {
  LawResult result;
  const LawData<T>& data = trial.data();
  const Index L = data.q.extent(2), S = data.k.extent(2);
  if (!data.causal || L < 2) return result;
  for (const Index last : std::set<Index>{0, L / 3, L / 2, L - 2}) {
    LawData<T> other = data;
    const auto exchange = [&](Tensor<T, 4>& x, Index seen, std::uint32_t stream) {
      const auto fresh = law_normal<T>(x.shape(), trial.seed(), stream);
      for_each_index(x.shape(), [&](const Shape<4>& at) {
        if (at[2] >= seen) x(at) = 5 * fresh(at);
      });
    };
    exchange(other.q, last + 1, 5);
    exchange(other.k, last + 1 + (S - L), 6);
    exchange(other.v, last + 1 + (S - L), 7);
    const auto o = rows_where(trial.forward(other).o, trial.answer().o,
                              [&](Index, Index, Index i) { return i <= last; });
    add_finding(result, "o", equal_bits<T, 4>(o, trial.answer().o));
  }
  return result;
}

/// A few keys to poison: the first, the last, some between.
inline std::set<Index> keys_to_poison(Index S) { return {0, S / 3, S / 2, S - 1}; }

template <class T>
void poison_key(LawData<T>& data, Index j, bool nan, bool also_key) {
  for (Index b = 0; b < data.k.extent(0); ++b) {
    for (Index g = 0; g < data.k.extent(1); ++g) {
      for (Index c = 0; c < data.v.extent(3); ++c) poison(data.v(b, g, j, c), nan);
      if (!also_key) continue;
      for (Index c = 0; c < data.k.extent(3); ++c) poison(data.k(b, g, j, c), nan);
    }
  }
}

/// The o of queries that do not see a key, where that key and its value are NaN or infinite. (Rows
/// that were not finite before are another law's.)
template <class T>
LawResult hidden_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  for (const Index j : keys_to_poison(x.k.extent(2))) {
    for (const bool nan : {true, false}) {
      LawData<T> data = trial.data();
      poison_key(data, j, nan, true);
      bool any = false;
      const auto o =
          rows_where(trial.forward(data).o, trial.answer().o, [&](Index b, Index h, Index i) {
            const bool hidden =
                !x.sees(b, h, i, j) && is_finite_number(trial.answer().o(b, h, i, 0));
            any = any || hidden;
            return hidden;
          });
      if (any) add_finding(result, "o", equal_bits<T, 4>(o, trial.answer().o));
    }
  }
  return result;
}

/// A NaN in a value shows in every query that sees it: 1 where o is finite all the same.
template <class T>
LawResult seen_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  for (const Index j : keys_to_poison(x.k.extent(2))) {
    LawData<T> data = trial.data();
    poison_key(data, j, true, false);
    const auto answer = trial.forward(data);
    Tensor<T, 4> finite(answer.o.shape());
    bool any = false;
    for_each_index(finite.shape(), [&](const Shape<4>& at) {
      if (!x.sees(at[0], at[1], at[2], j)) return;
      any = true;
      if (is_finite_number(answer.o(at))) finite(at) = 1;
    });
    if (any) add_finding(result, "finite o", all_zero(In<T, 4>(finite)));
  }
  return result;
}

template <class T>
LawResult dead_rows_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  if (!has_dead_rows(x)) return result;
  const auto dead = [&](Index b, Index h, Index i) { return !sees_any(x, b, h, i); };
  const auto check = [&](const char* name, const Tensor<T, 4>& rows) {
    add_finding(result, name,
                all_zero(In<T, 4>(rows_where(rows, Tensor<T, 4>(rows.shape()), dead))));
  };
  check("o", trial.answer().o);
  if (trial.kernel().gives_weights) check("weights", trial.answer().weights);
  return result;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
