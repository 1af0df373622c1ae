// Queries that have no part in the loss and that hold, or whose results are, no numbers: padding,
// say, that holds NaN and hides its keys alone. Backward of attention multiplies what they hold and
// weigh by 0, and 0 times NaN is NaN; so it reads 0 in their place. What others see is not looked
// at.
#pragma once

#include <algorithm>
#include <limits>
#include <memory_resource>
#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/score_options.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Whether the row of d_o that begins at `at` is 0 throughout.
template <class T, class U, int R>
bool is_idle(const In<U, R>& d_o, const Shape<R>& at) {
  if (d_o.extent(R - 1) == 0) return true;
  const U* const x = d_o.data() + d_o.offset(at);
  const Index step = d_o.stride(R - 1);
  for (Index n = 0; n < d_o.extent(R - 1); ++n) {
    if (!(number_as<T>(x[n * step]) == T(0))) return false;
  }
  return true;
}

/// Whether the row of x that begins at `at` is finite, and stays so where it is rounded to bf16:
/// below half of the greatest number.
template <class T, class U, int R>
bool row_is_finite(const In<U, R>& x, const Shape<R>& at) {
  if (x.extent(R - 1) == 0) return true;
  const T most = (std::numeric_limits<T>::max)() / T(2), least = T(0) - most;
  const U* const from = x.data() + x.offset(at);
  const Index step = x.stride(R - 1);
  for (Index n = 0; n < x.extent(R - 1); ++n) {
    const T number = number_as<T>(from[n * step]);
    if (!(number < most && least < number)) return false;
  }
  return true;
}

/// Whether x is sure to be finite, and to make finite products: found out by vectors.
/// (Query by query, those without a part in the loss alone, it took 3 to 20 % of backward.)
template <class T, class U, int R>
bool surely_finite(const In<U, R>& x, const Context& context) {
  if (x.size() == 0) return true;
  if constexpr (!std::same_as<T, U>) {
    return false;
  } else {
    bool finite = true;
    const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
    Shape<R> matrices = x.shape();
    matrices[R - 2] = matrices[R - 1] = 1;
    for_each_index(matrices, [&](const Shape<R>& at) {
      const kernels::Matrix<const T> rows{x.data() + x.offset(at), x.stride(R - 2),
                                          x.stride(R - 1)};
      finite = finite && run.all_finite(rows, x.extent(R - 2), x.extent(R - 1));
    });
    return finite;
  }
}

/// Whether results may be numbers where the scores that made them are not: a softcap bounds those,
/// a sink takes the weight of those that are -infinity, a function or a table leaves nothing of
/// them.
template <class T>
bool may_bound_infinities(const ScoreOptions<T>& score) {
  return score.softcap || !score.sinks.absent() || !score.function.absent() ||
         !score.relative_bias.absent();
}

/// The row of x that begins at `at` = value.
template <class T, int R>
void fill_row(Tensor<T, R>& x, const Shape<R>& at, const std::type_identity_t<T>& value) {
  if (x.extent(R - 1) != 0) std::fill_n(x.data() + x.offset(at), x.extent(R - 1), value);
}

/// Whether all are numbers, or -infinity: of lse [.., 2], where they lie dense.
template <class T, int R>
bool all_below_infinity(const In<T, R>& lse) {
  if (!lse.dense()) return false;
  const T most = (std::numeric_limits<T>::max)();
  const T *x = lse.data(), *const end = x + lse.size();
  while (x != end && *x < most) ++x;  // NaN is not below it
  return x == end;
}

/// What flash backward reads of queries: q [.., d] and lse [.., 2], or copies of them in which idle
/// queries without numbers are 0 and weigh no key, whatever their scores are: both numbers of their
/// lse are the greatest. (Of o nothing is read where d_o is 0.)
/// Where nothing bounds scores, a query without numbers shows in its lse, and no other is looked
/// at.
template <class T, class U, int R>
class FlashInputsWithoutIdle {
 public:
  /// Of d_o [.., dv]. Throws std::bad_alloc.
  FlashInputsWithoutIdle(const In<U, R>& d_o, const In<U, R>& given_q, const In<T, R>& given_lse,
                         const ScoreOptions<T>& score, const Context& context)
      : q(given_q), lse(given_lse) {
    const bool lse_may_hide = may_bound_infinities(score) && !surely_finite<T>(given_q, context);
    if (lse_may_hide || !all_below_infinity(given_lse)) {
      clear_idle(d_o, lse_may_hide, context.memory);
    }
  }
  FlashInputsWithoutIdle(const FlashInputsWithoutIdle&) = delete;
  FlashInputsWithoutIdle& operator=(const FlashInputsWithoutIdle&) = delete;

 private:
  [[gnu::cold, gnu::noinline]] void clear_idle(const In<U, R>& d_o, bool lse_may_hide,
                                               std::pmr::memory_resource* memory) {
    const T most = (std::numeric_limits<T>::max)();
    const In<T, R> given = lse;
    const In<U, R> of_query = q;
    for_each_row(given.shape(), [&](const Shape<R>& at) {
      const T* const of_row = given.data() + given.offset(at);
      const bool lse_shows = !(of_row[0] < most && of_row[given.stride(R - 1)] < most);
      if (!(lse_shows || lse_may_hide) || !is_idle<T>(d_o, at)) return;
      if (!lse_shows && row_is_finite<T>(of_query, at)) return;
      if (lse_.absent()) {
        q = q_ = contiguous(q, memory);
        lse = lse_ = contiguous(lse, memory);
      }
      fill_row(q_, at, U());
      fill_row(lse_, at, most);
    });
  }

  Tensor<U, R> q_;
  Tensor<T, R> lse_;

 public:
  In<U, R> q;
  In<T, R> lse;
};

/// The same of what backward of kept weights reads: q [B, H, L, d] and weights [B, H, L, S].
template <class T>
class AttentionInputsWithoutIdle {
 public:
  /// Of d_o [B, H, L, dv]. Throws std::bad_alloc.
  AttentionInputsWithoutIdle(const kernels::Kernels<T>& run, const In<T, 4>& d_o,
                             const In<T, 4>& given_q, const In<T, 4>& given_weights,
                             const Context& context)
      : q(given_q), weights(given_weights) {
    if (given_weights.size() == 0) return;
    for_each_row(d_o.shape(), [&](const Shape<4>& at) {
      if (!is_idle<T>(d_o, at)) return;
      const T* const of_row = given_weights.data() + given_weights.offset(at);
      const kernels::Matrix<const T> row{of_row, 0, given_weights.stride(3)};
      const bool numbers = run.all_finite(row, 1, given_weights.extent(3));
      if (!numbers || !row_is_finite<T>(given_q, at)) clear(at, context.memory);
    });
  }
  AttentionInputsWithoutIdle(const AttentionInputsWithoutIdle&) = delete;
  AttentionInputsWithoutIdle& operator=(const AttentionInputsWithoutIdle&) = delete;

 private:
  [[gnu::cold, gnu::noinline]] void clear(const Shape<4>& at, std::pmr::memory_resource* memory) {
    if (weights_.absent()) {
      q = q_ = contiguous(q, memory);
      weights = weights_ = contiguous(weights, memory);
    }
    fill_row(q_, at, T(0));
    fill_row(weights_, at, T(0));
  }

  Tensor<T, 4> q_, weights_;

 public:
  In<T, 4> q, weights;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
