// A table of token vectors that owns its weights, and the head that shares them: logits = h
// table^T.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "headwise/nn/init.hpp"
#include "headwise/nn/named.hpp"
#include "headwise/ops/embedding.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// What an Embedding learns; its gradients have the same form. The table is kept as numbers of type
/// W.
template <Scalar T, KeptAs<T> W = T>
struct EmbeddingParameters {
  Tensor<W, 2> table;  // [V, D]

  /// f(name, view); `prefix` goes in front of the name. The view is writable where this is not
  /// const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    detail::call_named(f, prefix + "table", as_view(table));
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    detail::call_named(f, prefix + "table", as_view(table));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// All rules of tied_head_forward, whatever the table is kept as.
template <class T, class W>
void require_tied_head(const In<T, 2>& h, const In<W, 2>& table, const Out<T, 2>& logits) {
  constexpr std::string_view function = "tied_head_forward";
  require_countable(function, "h", h);
  require_shape(function, "table", table, Shape{table.extent(0), h.extent(1)}, "columns of h");
  require_shape(function, "logits", logits, Shape{h.extent(0), table.extent(0)},
                "rows of h, rows of table");
  require_apart(function, {"logits", logits}, {{"h", h}, {"table", table}});
}

/// tied_head_backward, whatever the table is kept as.
template <class T, class W>
void run_tied_head_backward(const In<T, 2>& d_logits, const In<T, 2>& h, const In<W, 2>& table,
                            const Out<T, 2>& dh, const InOut<T, 2>& dtable,
                            const Context& context) {
  constexpr std::string_view function = "tied_head_backward";
  const Index N = h.extent(0), D = h.extent(1), V = table.extent(0);
  require_countable(function, "h", h);
  require_shape(function, "table", table, Shape{V, D}, "columns of h");
  require_shape(function, "d_logits", d_logits, Shape{N, V}, "rows of h, rows of table");
  if (!dh.absent()) require_shape(function, "dh", dh, Shape{N, D}, "the shape of h");
  if (!dtable.absent())
    require_shape(function, "dtable", dtable, Shape{V, D}, "the shape of table");
  require_apart(function, {"dh", dh}, {{"d_logits", d_logits}, {"h", h}, {"table", table}});
  require_apart(function, {"dtable", dtable},
                {{"d_logits", d_logits}, {"h", h}, {"table", table}, {"dh", dh}});

  // d_logits^T h rather than its transpose: rows of dtable are written as they lie.
  const bool wants_dtable = dtable.size() != 0 && N != 0;
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  const kernels::Extents of_dtable{V, D, N};
  Tensor<T, 2> cleared;
  In<T, 2> learned = h;
  if (wants_dtable) learned = without_idle_rows<T>(run, h, d_logits, cleared, context);
  Workspace<T> workspace(wants_dtable ? context.executor.concurrency() : 0,
                         wants_dtable ? run.gemm_scratch(of_dtable) : 0, context.memory);
  if (dh.size() != 0) run_linear_forward<T, W>(d_logits, table, {}, dh, context);
  if (!wants_dtable) return;
  add_product<T>(kernels::matrix(d_logits).transposed(), kernels::matrix(learned),
                 kernels::matrix(Out<T, 2>(dtable)), of_dtable, workspace, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// logits = h table^T: the output head of a model whose embedding has this table.
///
/// h       [N, D]   in
/// table   [V, D]   in
/// logits  [N, V]   out; must not overlap the inputs
///
/// Works and throws as linear_forward does with w = table^T: 2 N D V FLOPs, no copy of the table.
/// Source: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017, arXiv
/// 1608.05859.
template <Scalar T>
void tied_head_forward(In<T, 2> h, In<std::type_identity_t<T>, 2> table,
                       Out<std::type_identity_t<T>, 2> logits, const Context& context = {}) {
  detail::require_tied_head<T, T>(h, table, logits);
  linear_forward(h, transpose(table, 0, 1), {}, logits, context);
}
/// The same of a table that is kept in 16 bits.
template <std::same_as<float> T, NarrowFloat W>
void tied_head_forward(In<T, 2> h, In<W, 2> table, Out<std::type_identity_t<T>, 2> logits,
                       const Context& context = {}) {
  detail::require_tied_head<T, W>(h, table, logits);
  linear_forward(h, transpose(table, 0, 1), {}, logits, context);
}

/// The gradients of tied_head_forward.
///
/// d_logits  [N, V]   in
/// h         [N, D]   in; as in forward
/// table     [V, D]   in; as in forward
/// dh        [N, D]   out: d_logits table; {} for none
/// dtable    [V, D]   added to: d_logits^T h, to which embedding_backward adds too; {} for none
///
/// A row of h whose d_logits are 0 adds nothing to dtable, even if it holds NaN or infinity.
/// Outputs must not overlap the inputs or each other.
///
/// Work    2 N D V FLOPs for each of dh and dtable.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void tied_head_backward(In<T, 2> d_logits, In<std::type_identity_t<T>, 2> h,
                        In<std::type_identity_t<T>, 2> table, Out<std::type_identity_t<T>, 2> dh,
                        InOut<std::type_identity_t<T>, 2> dtable, const Context& context = {}) {
  detail::run_tied_head_backward<T, T>(d_logits, h, table, dh, dtable, context);
}
/// The same of a table that is kept in 16 bits; dtable stays floats.
template <std::same_as<float> T, NarrowFloat W>
void tied_head_backward(In<T, 2> d_logits, In<std::type_identity_t<T>, 2> h, In<W, 2> table,
                        Out<std::type_identity_t<T>, 2> dh,
                        InOut<std::type_identity_t<T>, 2> dtable, const Context& context = {}) {
  detail::run_tied_head_backward<T, W>(d_logits, h, table, dh, dtable, context);
}

/// y_n = table_{tokens_n}. Const calls may run at the same time. Where the table is kept in 16
/// bits, its gradient is floats.
template <Scalar T, KeptAs<T> W = T>
class Embedding {
 public:
  /// What backward adds to.
  using Gradients = EmbeddingParameters<T>;
  /// What forward leaves for backward: a copy of the tokens, which are small beside all else.
  struct Cache {
    Tensor<std::int64_t, 1> tokens;  // [N]
    bool filled = false;             // whether forward has been called with it
  };

  /// A table of normal numbers of this standard deviation. Throws ArgumentError for a negative
  /// extent or a deviation that is none.
  Embedding(Index vocabulary, Index width, double std_deviation = 0.02, std::uint64_t seed = 0) {
    require(vocabulary >= 0, "Embedding", "vocabulary is ", vocabulary, ", expected >= 0");
    require(width >= 0, "Embedding", "width is ", width, ", expected >= 0");
    parameters_.table = Tensor<W, 2>({vocabulary, width});
    init_normal<W>(parameters_.table, std_deviation, seed, 0);
  }
  /// Of parameters that are taken as they are.
  Embedding(EmbeddingParameters<T, W> parameters, detail::Unchecked)
      : parameters_(std::move(parameters)) {}
  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  Embedding(const Embedding&) = default;
  Embedding(Embedding&&) noexcept = default;
  Embedding& operator=(const Embedding& other) { return *this = Embedding(other); }
  Embedding& operator=(Embedding&&) noexcept = default;
  ///@}

  /// y [N, D] for tokens [N]: inference. Throws and works as embedding_forward does.
  template <TokenId Id>
  Tensor<T, 2> forward(In<Id, 1> tokens, const Context& context = {}) const {
    require_countable("Embedding::forward", "tokens", tokens);
    auto y = Tensor<T, 2>::uninitialized({tokens.extent(0), parameters_.table.extent(1)},
                                         context.memory);
    embedding_forward(tokens, In<W, 2>(parameters_.table), y, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  template <TokenId Id>
  Tensor<T, 2> forward(In<Id, 1> tokens, Cache& cache, const Context& context = {}) const {
    Tensor<T, 2> y = forward(tokens, context);
    auto kept = Tensor<std::int64_t, 1>::uninitialized(tokens.shape(), context.memory);
    for (Index n = 0; n < kept.size(); ++n) kept(n) = tokens(n);
    cache = {std::move(kept), true};
    return y;
  }

  /// Adds the gradient of the table to `gradients`, for dy [N, D].
  ///
  /// Throws ArgumentError for an empty cache or one of a larger table, ShapeError; nothing is
  /// changed then.
  void backward(In<T, 2> dy, const Cache& cache, EmbeddingParameters<T>& gradients,
                const Context& context = {}) const {
    constexpr std::string_view function = "Embedding::backward";
    detail::require_filled(function, cache);
    require_shape(function, "dy", dy, Shape{cache.tokens.extent(0), parameters_.table.extent(1)},
                  "the output");
    require_gradients(function, gradients);
    embedding_backward(dy, In<std::int64_t, 1>(cache.tokens), gradients.table, context);
  }

  /// Logits [N, V] for h [N, D] by the same table: tied_head_forward.
  Tensor<T, 2> logits(In<T, 2> h, const Context& context = {}) const {
    require_shape("Embedding::logits", "h", h, Shape{h.extent(0), parameters_.table.extent(1)},
                  "the width of the table");
    auto result =
        Tensor<T, 2>::uninitialized({h.extent(0), parameters_.table.extent(0)}, context.memory);
    tied_head_forward(h, In<W, 2>(parameters_.table), result, context);
    return result;
  }
  /// dh [N, D] for d_logits [N, V] and the h of `logits`; the table's gradient is added to
  /// `gradients`. Throws ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> logits_backward(In<T, 2> d_logits, In<T, 2> h, EmbeddingParameters<T>& gradients,
                               const Context& context = {}) const {
    constexpr std::string_view function = "Embedding::logits_backward";
    require_shape(function, "h", h, Shape{h.extent(0), parameters_.table.extent(1)},
                  "the width of the table");
    require_gradients(function, gradients);
    auto dh = Tensor<T, 2>::uninitialized(h.shape(), context.memory);
    tied_head_backward(d_logits, h, In<W, 2>(parameters_.table), dh, gradients.table, context);
    return dh;
  }

  /// Gradients of the right shape, all 0. Throws std::bad_alloc.
  EmbeddingParameters<T> zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    EmbeddingParameters<T> gradients;
    gradients.table = Tensor<T, 2>(parameters_.table.shape(), memory);
    return gradients;
  }

  /// The table, to be read and written.
  EmbeddingParameters<T, W>& parameters() { return parameters_; }
  /// The table.
  const EmbeddingParameters<T, W>& parameters() const { return parameters_; }

 private:
  void require_gradients(std::string_view function, const EmbeddingParameters<T>& gradients) const {
    require_shape(function, "gradients.table", gradients.table, parameters_.table.shape(),
                  "zero_gradients()");
    require(static_cast<const void*>(&gradients) != &parameters_, function,
            "gradients are the module's parameters, expected a table of their own "
            "(zero_gradients())");
  }

  EmbeddingParameters<T, W> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
