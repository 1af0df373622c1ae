// The linear layer: a matrix product with a bias, of weights of any kind, and its gradients.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/linear_products.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/runtime/workspace.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// All rules of linear_forward, whatever w is kept as.
template <class T, class W, OutputMemory memory>
void require_linear(const In<T, 2>& x, const In<W, 2>& w, const In<T, 1>& b, const Out<T, 2>& y) {
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  require_countable("linear_forward", "x", x);
  require_countable("linear_forward", "w", w);
  require_shape("linear_forward", "w", w, Shape{K, O}, K, " from x ", x.shape());
  if (!b.absent()) {
    require_shape("linear_forward", "b", b, Shape{O}, O, " from w ", w.shape());
  }
  require_shape("linear_forward", "y", y, Shape{N, O}, "rows of x, columns of w");
  if constexpr (memory == OutputMemory::given) {
    require_apart("linear_forward", {"y", y}, {{"x", x}, {"w", w}, {"b", b}});
  }
}

/// All rules of linear_backward.
template <class T, class W, OutputMemory memory>
void require_linear_backward(const In<T, 2>& dy, const In<T, 2>& x, const In<W, 2>& w,
                             const Out<T, 2>& dx, const InOut<T, 2>& dw, const InOut<T, 1>& db) {
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  require_countable("linear_backward", "x", x);
  require_countable("linear_backward", "w", w);
  require_shape("linear_backward", "w", w, Shape{K, O}, K, " from x ", x.shape());
  require_shape("linear_backward", "dy", dy, Shape{N, O}, "rows of x, columns of w");
  if (!dx.absent()) require_shape("linear_backward", "dx", dx, Shape{N, K}, "the shape of x");
  if (!dw.absent()) require_shape("linear_backward", "dw", dw, Shape{K, O}, "the shape of w");
  if (!db.absent()) require_shape("linear_backward", "db", db, Shape{O}, "columns of w");
  if constexpr (memory == OutputMemory::given) {
    require_outputs_apart("linear_backward", {{"dx", dx}, {"dw", dw}, {"db", db}},
                          {{"dy", dy}, {"x", x}, {"w", w}});
  }
}

/// A bias as products read it.
template <class T>
class DenseBias {
 public:
  /// Throws std::bad_alloc.
  DenseBias(const In<T, 1>& b, std::pmr::memory_resource* memory)
      : data_(b.absent() ? nullptr : b.data()) {
    if (b.absent() || b.stride(0) == 1) return;
    copy_ = contiguous(b, memory);
    data_ = copy_.data();
  }
  const T* data() const { return data_; }

 private:
  Tensor<T, 1> copy_;
  const T* data_;
};

/// linear_forward, whatever w is kept as.
template <class T, class W, OutputMemory memory = OutputMemory::given>
void run_linear_forward(const In<T, 2>& x, const In<W, 2>& w, const In<T, 1>& b, const Out<T, 2>& y,
                        const Context& context) {
  require_linear<T, W, memory>(x, w, b, y);
  const kernels::Extents size{x.extent(0), w.extent(1), x.extent(1)};
  if (size.M == 0 || size.N == 0) return;
  const DenseBias<T> bias(b, context.memory);
  const LinearProduct<T, W> product(w, size, context);
  Workspace<T> workspace(context.executor.concurrency(), product.scratch(), context.memory);
  product.run(x, y, bias.data(), workspace, context);
}

/// bias_backward, also where db is of a caller who knows that it shares memory with nothing.
template <class T, OutputMemory memory = OutputMemory::given>
void run_bias_backward(const In<T, 2>& dy, const InOut<T, 1>& db, const Context& context) {
  require_countable("bias_backward", "dy", dy);
  require_shape("bias_backward", "db", db, Shape{dy.extent(1)}, "columns of dy");
  if constexpr (memory == OutputMemory::given)
    require_apart("bias_backward", {"db", db}, {{"dy", dy}});
  if (dy.size() == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  for_columns(context, dy.extent(0), dy.extent(1), [&](Index begin, Index end) {
    run.add_rows(kernels::matrix(dy), dy.extent(0), begin, end, kernels::row(db));
  });
  context.count_flops(dy.size(), dy.size());
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x w + b, row by row.
///
/// x   [N, K]   in
/// w   [K, O]   in
/// b   [O]      in; {} for none
/// y   [N, O]   out; must not overlap the inputs
///
/// A row of y depends on that row of x alone, to the bit. Sums run in T.
/// Work    2 N K O FLOPs, and N O for the bias; scratch that does not grow with N.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void linear_forward(In<T, 2> x, In<std::type_identity_t<T>, 2> w, In<std::type_identity_t<T>, 1> b,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::run_linear_forward<T, T>(x, w, b, y, context);
}

/// y = x w + b, row by row, with w of 16 bits.
///
/// x   [N, K]   in
/// w   [K, O]   in; BFloat16 or Float16, rows or columns dense to be read fast
/// b   [O]      in; {} for none
/// y   [N, O]   out; must not overlap the inputs
///
/// The bits are those of linear_forward with the same numbers as floats. Half the bytes are read.
/// Work    2 N K O FLOPs, and N O for the bias; scratch that does not grow with N.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <std::same_as<float> T, NarrowFloat W>
void linear_forward(In<T, 2> x, In<W, 2> w, In<std::type_identity_t<T>, 1> b,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::run_linear_forward<T, W>(x, w, b, y, context);
}

/// db += the column sums of dy: the gradient of a bias that was added to every row.
///
/// dy  [N, O]   in
/// db  [O]      added to; must not overlap dy
///
/// Work    N O FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void bias_backward(In<T, 2> dy, InOut<std::type_identity_t<T>, 1> db, const Context& context = {}) {
  detail::run_bias_backward<T>(dy, db, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// linear_backward, whatever w is kept as.
template <class T, class W, OutputMemory memory = OutputMemory::given>
void run_linear_backward(const In<T, 2>& dy, const In<T, 2>& x, const In<W, 2>& w,
                         const Out<T, 2>& dx, const InOut<T, 2>& dw, const InOut<T, 1>& db,
                         const Context& context) {
  require_linear_backward<T, W, memory>(dy, x, w, dx, dw, db);
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  std::optional<LinearProduct<T, W>> of_dx;
  std::optional<LinearWeightGradient<T>> of_dw;
  if (dx.size() != 0) of_dx.emplace(transpose(w, 0, 1), kernels::Extents{N, K, O}, context);
  if (dw.size() != 0 && N != 0) of_dw.emplace(dy, x, context);
  Workspace<T> workspace(
      of_dx || of_dw ? context.executor.concurrency() : 0,
      std::max<Index>(of_dx ? of_dx->scratch() : 0, of_dw ? of_dw->scratch() : 0), context.memory);
  if (of_dx) of_dx->run(dy, dx, nullptr, workspace, context);
  if (of_dw) of_dw->add_to(dw, workspace, context);
  if (!db.absent()) run_bias_backward<T, OutputMemory::fresh>(dy, db, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The gradients of linear_forward.
///
/// dy  [N, O]   in
/// x   [N, K]   in; as in forward
/// w   [K, O]   in; as in forward
/// dx  [N, K]   out: dy w^T; {} for none
/// dw  [K, O]   added to: x^T dy; {} for none
/// db  [O]      added to: the column sums of dy; {} for none
///
/// A row of x whose dy is 0 adds nothing to dw, even if it holds NaN or infinity: so padding that
/// attention hides does not reach the weights. dx, dw and db must not overlap the inputs or each
/// other.
/// Work    2 N K O FLOPs for each of dx and dw, N O for db.
/// Throws  ShapeError before anything is written; std::bad_alloc.
/// Source  docs/derivations/attention_backward.md, step 6.
template <Scalar T>
void linear_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                     In<std::type_identity_t<T>, 2> w, Out<std::type_identity_t<T>, 2> dx,
                     InOut<std::type_identity_t<T>, 2> dw, InOut<std::type_identity_t<T>, 1> db,
                     const Context& context = {}) {
  detail::run_linear_backward<T, T>(dy, x, w, dx, dw, db, context);
}

/// The same with w of 16 bits, as forward reads it; dw and db stay floats, of which an optimiser
/// makes steps that w itself could not hold.
template <std::same_as<float> T, NarrowFloat W>
void linear_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x, In<W, 2> w,
                     Out<std::type_identity_t<T>, 2> dx, InOut<std::type_identity_t<T>, 2> dw,
                     InOut<std::type_identity_t<T>, 1> db, const Context& context = {}) {
  detail::run_linear_backward<T, W>(dy, x, w, dx, dw, db, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
