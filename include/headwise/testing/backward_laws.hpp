// The laws of attention's gradients. The adjoint law differences the kernel's own forward, in its
// own type; the others need no differences.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "headwise/testing/forward_laws.hpp"
#include "headwise/testing/gradient_check.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Of dq and dk the oracle has those of rows that are encoded: where that is another thing, they
/// are the adjoint law's.
template <class T>
LawResult gradient_oracle_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.has_backward()) return result;
  const auto actual = trial.backward(trial.data());
  const LawOracle& expected = trial.oracle();
  const auto compare = [&](const char* name, const Tensor<T, 4>& a, const LawSums& e) {
    add_finding(result, name,
                close_to(In<T, 4>(a), In<long double, 4>(e.values), trial.tolerance(),
                         {.floor = size_of<T>(e)}));
  };
  const AttentionVariant& variant = trial.kernel().variant;
  if (!variant.encode_query) compare("dq", actual.dq, expected.dq);
  if (!variant.encode_key) compare("dk", actual.dk, expected.dk);
  compare("dv", actual.dv, expected.dv);
  return result;
}

/// sum a b over numbers in row-major order, in long double.
template <class A, class B>
long double inner_product(std::span<const A> a, std::span<const B> b) {
  long double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    sum += static_cast<long double>(a[n]) * static_cast<long double>(b[n]);
  }
  return sum;
}

/// <d_o, J u> by central differences beside <J^T d_o, u>, u random signs over one input. The error
/// is of |d_o| (|J u| + |o|): a truncation of step^2, a rounding of epsilon / step.
template <class T>
void adjoint_of(const LawTrial<T>& trial, const char* name, const Tensor<T, 4>& gradient,
                LawData<T>& moved, Tensor<T, 4>& input, LawResult& result) {
  const auto values = [](const Tensor<T, 4>& x) {
    return std::span<const T>(x.data(), static_cast<std::size_t>(x.size()));
  };
  const T step = default_step<T>(Stencil::central);
  const double tolerance = trial.slack() * 32 * static_cast<double>(step) *
                           static_cast<double>(step) * (1 + trial.oracle().condition);
  std::vector<T*> elements;
  for (T& element : input) elements.push_back(&element);
  for (int direction = 0; direction < 3; ++direction) {
    const auto u =
        random_signs(elements.size(), trial.seed(), static_cast<std::size_t>(name[1]), direction);
    const auto ju = derivative<T>(Stencil::central, step, elements, u, [&] {
      const auto answer = trial.forward(moved);
      return std::vector<T>(answer.o.begin(), answer.o.end());
    });
    const std::span<const T> slope(ju), o = values(trial.answer().o);
    const std::span<const T> d_o = values(moved.d_o);
    Tensor<long double, 1> numeric(1), analytic(1);
    numeric(0) = inner_product(d_o, slope);
    analytic(0) = inner_product(values(gradient), std::span<const signed char>(u));
    const long double size =
        std::sqrt(inner_product(d_o, d_o)) *
        (std::sqrt(inner_product(slope, slope)) + std::sqrt(inner_product(o, o)));
    const bool finite = is_finite_number(size) && is_finite_number(analytic(0));
    Closeness found =
        close_to(analytic, numeric, tolerance, {.floor = finite ? static_cast<double>(size) : 1});
    if (!finite) {  // NaN on both sides is no agreement
      found.ok = false;
      found.failures = 1;
      found.error = no_error_bound;
    }
    add_finding(result, std::string("<") + name + ", u>", found);
  }
}

template <class T>
LawResult adjoint_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.has_backward()) return result;
  LawData<T> moved = trial.data();
  const auto gradients = trial.backward(moved);
  adjoint_of(trial, "dq", gradients.dq, moved, moved.q, result);
  adjoint_of(trial, "dk", gradients.dk, moved, moved.k, result);
  adjoint_of(trial, "dv", gradients.dv, moved, moved.v, result);
  return result;
}

HEADWISE_STRICT_MATH_END

/// Whether any query of a key head sees key j.
template <class T>
bool is_seen(const AttentionProblem<T>& x, Index b, Index g, Index j) {
  const Index group = x.q.extent(1) / x.k.extent(1);
  for (Index h = g * group; h < (g + 1) * group; ++h) {
    for (Index i = 0; i < x.q.extent(2); ++i) {
      if (x.sees(b, h, i, j)) return true;
    }
  }
  return false;
}

/// NaN or infinity in a key and its value: dq of queries that do not see it keeps its bits; where
/// nobody sees it, so do all of dk and dv, and its own are 0.
template <class T>
LawResult hidden_gradient_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.has_backward()) return result;
  const AttentionProblem<T> x = trial.problem();
  const auto before = trial.backward(trial.data());
  for (const Index j : keys_to_poison(x.k.extent(2))) {
    bool hidden = false;
    for_each_index(Shape{x.q.extent(0), x.q.extent(1), x.q.extent(2)}, [&](const Shape<3>& row) {
      hidden = hidden || !x.sees(row[0], row[1], row[2], j);
    });
    if (!hidden) continue;
    for (const bool nan : {true, false}) {
      LawData<T> data = trial.data();
      poison_key(data, j, nan, true);
      const auto after = trial.backward(data);
      const auto unseen = [&](Index b, Index h, Index i) {
        return !x.sees(b, h, i, j) && is_finite_number(before.dq(b, h, i, 0));
      };
      const auto of_unseen_heads = [&](Index b, Index g, Index) { return !is_seen(x, b, g, j); };
      add_finding(result, "dq",
                  equal_bits<T, 4>(rows_where(after.dq, before.dq, unseen), before.dq));
      add_finding(result, "dk",
                  equal_bits<T, 4>(rows_where(after.dk, before.dk, of_unseen_heads), before.dk));
      add_finding(result, "dv",
                  equal_bits<T, 4>(rows_where(after.dv, before.dv, of_unseen_heads), before.dv));
    }
  }
  return result;
}

/// Gradients that arrive at dead rows alone: nothing flows on.
template <class T>
LawResult dead_gradient_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  if (!trial.has_backward() || !has_dead_rows(x)) return result;
  LawData<T> data = trial.data();
  data.d_o = rows_where(data.d_o, Tensor<T, 4>(data.d_o.shape()),
                        [&](Index b, Index h, Index i) { return !sees_any(x, b, h, i); });
  const auto gradients = trial.backward(data);
  add_finding(result, "dq", all_zero(In<T, 4>(gradients.dq)));
  add_finding(result, "dk", all_zero(In<T, 4>(gradients.dk)));
  add_finding(result, "dv", all_zero(In<T, 4>(gradients.dv)));
  return result;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
