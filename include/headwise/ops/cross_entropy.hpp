// Softmax cross-entropy of logits with targets, in one pass over what softmax and a logarithm would
// take several for, and its gradient. It refuses targets that are no column; it has no class
// weights and no targets that are distributions.
#pragma once

#include <cstdint>
#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/tokens.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// What becomes of the losses of all rows.
enum class Reduction {
  mean,  ///< their sum over the number of rows that are not left out
  sum,   ///< their sum
};

/// How losses of rows become one.
struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;       // rows of this target are left out, whatever they hold
  Reduction reduction = Reduction::mean;  // of the losses of the others
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Targets as columns, below 0 where a row is left out.
struct TargetColumns {
  Tensor<Index, 1> columns;  // [N]
  Index count = 0;           // of rows that are not left out
};

/// Throws ArgumentError for a target that is neither a column nor the ignored one.
template <TokenId Id, class T>
TargetColumns target_columns(std::string_view function, const In<T, 2>& logits,
                             const In<Id, 1>& targets, std::int64_t ignored,
                             const Context& context) {
  const auto is_ignored = [&](std::int64_t target) { return target == ignored; };
  require_tokens(
      function, "targets", targets, logits.extent(1),
      [&] {
        return "columns of logits " + logits.shape().format() + ", or ignore_index " +
               std::to_string(ignored);
      },
      is_ignored);
  TargetColumns result{Tensor<Index, 1>::uninitialized(targets.shape(), context.memory)};
  for (Index n = 0; n < targets.extent(0); ++n) {
    const bool left_out = is_ignored(targets(n));
    result.columns(n) = left_out ? -1 : static_cast<Index>(targets(n));
    if (!left_out) ++result.count;
  }
  return result;
}

/// The sum of count numbers in a type of its own: chains of 16, then pairwise.
template <class Sum, class T>
Sum pairwise_sum(const T* x, Index count) {
  constexpr Index chain = 16;
  if (count <= chain) {
    Sum sum = count == 0 ? Sum(0) : Sum(x[0]);
    for (Index n = 1; n < count; ++n) sum = sum + Sum(x[n]);
    return sum;
  }
  const Index half = (count + chain) / (2 * chain) * chain;
  return pairwise_sum<Sum>(x, half) + pairwise_sum<Sum>(x + half, count - half);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// loss = sum_n (logsumexp_n - logits_{n, targets_n}), over their number with Reduction::mean.
///
/// logits     [N, V]   in
/// targets    [N]      in; each a column of logits, or options.ignore_index
/// options             which rows are left out; mean or sum
/// logsumexp  [N]      out; log sum_v e^logits_{n, v}, kept for backward, {} for inference; 0 for
///                     a row that is left out
///
/// Returns the loss; 0 where every row is left out, and where there is none (PyTorch: NaN). Sums
/// along a row run in T, the sum over rows pairwise, in double for float and in T for others. The
/// greatest logit is subtracted before e^x, and a target ahead of all others has its loss from
/// log(1 + x): 1e-30 is no 0. A logit of -infinity has no part in its row; as target it costs
/// infinity. NaN or +infinity in a row that is not left out make the loss NaN, as does nothing but
/// -infinity.
/// Work    3 V + 5 FLOPs a row that is not left out.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs",
/// 1990.
template <Scalar T, TokenId Id>
T cross_entropy_forward(In<T, 2> logits, In<Id, 1> targets, const CrossEntropyOptions& options,
                        Out<std::type_identity_t<T>, 1> logsumexp, const Context& context = {}) {
  constexpr std::string_view function = "cross_entropy_forward";
  const Index N = logits.extent(0), V = logits.extent(1);
  require_countable(function, "logits", logits);
  require_shape(function, "targets", targets, Shape{N}, "rows of logits");
  if (!logsumexp.absent()) {
    require_shape(function, "logsumexp", logsumexp, Shape{N}, "rows of logits");
  }
  require_apart(function, {"logsumexp", logsumexp}, {{"logits", logits}, {"targets", targets}});
  const auto [columns, count] =
      detail::target_columns(function, logits, targets, options.ignore_index, context);
  auto losses = Tensor<T, 1>::uninitialized({N}, context.memory);
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CrossEntropyRows<T> rows{kernels::matrix(logits), V, columns.data(), losses.data(),
                                          kernels::row(logsumexp)};
  detail::for_rows(context, N, V,
                   [&](Index begin, Index end) { run.cross_entropy_rows(rows, begin, end); });
  const std::int64_t flops = count * (3 * std::int64_t{V} + 5);
  context.count_flops(flops, flops);
  if (count == 0) return T(0);
  using Sum = std::conditional_t<std::same_as<T, float>, double, T>;
  const Sum sum = detail::pairwise_sum<Sum>(losses.data(), N);
  return options.reduction == Reduction::sum
             ? static_cast<T>(sum)
             : static_cast<T>(sum / Sum(static_cast<double>(count)));
}

/// The gradient of cross_entropy_forward: d_logits_{n, v} = d_loss / count (e^(logits_{n, v} -
/// logsumexp_n) - [v = targets_n]), count 1 with Reduction::sum.
///
/// d_loss              the gradient of the loss; 1 where the loss is what is minimised
/// logits     [N, V]   in; as in forward
/// targets    [N]      in; as in forward
/// logsumexp  [N]      in; what forward left
/// options             as in forward
/// d_logits   [N, V]   out; may be logits
///
/// Rows that are left out become 0, whatever they hold. The target's own element is minus the sum
/// of its row's others: no digits are lost where its probability is near 1, and rows sum to 0. What
/// the rounding of logsumexp lost, which is much where logits are large, is made good.
/// Work    4 V + 2 FLOPs a row that is not left out.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  docs/derivations/cross_entropy_backward.md.
template <Scalar T, TokenId Id>
void cross_entropy_backward(std::type_identity_t<T> d_loss, In<T, 2> logits, In<Id, 1> targets,
                            In<std::type_identity_t<T>, 1> logsumexp,
                            const CrossEntropyOptions& options,
                            Out<std::type_identity_t<T>, 2> d_logits, const Context& context = {}) {
  constexpr std::string_view function = "cross_entropy_backward";
  const Index N = logits.extent(0), V = logits.extent(1);
  require_countable(function, "logits", logits);
  require_shape(function, "targets", targets, Shape{N}, "rows of logits");
  require_shape(function, "logsumexp", logsumexp, Shape{N}, "rows of logits");
  require_shape(function, "d_logits", d_logits, logits.shape(), "the shape of logits");
  require_apart(function, {"d_logits", d_logits}, {{"targets", targets}, {"logsumexp", logsumexp}});
  require_same_or_apart(function, {"d_logits", d_logits}, {"logits", logits});
  const auto [columns, count] =
      detail::target_columns(function, logits, targets, options.ignore_index, context);
  const bool mean = options.reduction == Reduction::mean && count != 0;
  const T factor = mean ? T(d_loss / T(static_cast<double>(count))) : d_loss;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CrossEntropyBackwardRows<T> rows{
      kernels::matrix(logits), V,      columns.data(),
      kernels::row(logsumexp), factor, kernels::matrix(Out<T, 2>(d_logits))};
  detail::for_rows(context, N, V, [&](Index begin, Index end) {
    run.cross_entropy_backward_rows(rows, begin, end);
  });
  const std::int64_t flops = count * (4 * std::int64_t{V} + 2);
  context.count_flops(flops, flops);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
