// A layer of a transformer: attention, then a feed-forward, each added to what it started from.
#pragma once

#include "headwise/nn/epsilon.hpp"
#include "headwise/nn/feed_forward.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/nn/narrow_ends.hpp"
#include "headwise/nn/transformer_block_steps.hpp"
#include "headwise/runtime/viewed_input.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// pre-LN:  h = x + attention(norm1(x)), y = h + feed_forward(norm2(h))
/// post-LN: h = norm1(x + attention(x)), y = norm2(h + feed_forward(h))
///
/// Parameters are plain data; forward and backward are const and keep what a backward needs in a
/// cache of the caller's. A call that throws, std::bad_alloc included, leaves cache and gradients
/// as they were; only an executor of the caller's that throws while it runs leaves gradients that
/// are added to in part.
/// Source: Vaswani et al., 2017, arXiv 1706.03762, section 3.1; pre-LN: Xiong et al., 2020, arXiv
/// 2002.04745.
///
/// Matrices may be kept as BFloat16 or Float16 (store_weights_as); gradients are floats, then.
template <Scalar T, KeptAs<T> W = T>
class TransformerBlock {
 public:
  /// What it learns.
  using Parameters = TransformerBlockParameters<T, W>;
  /// What one call is asked for: mask, path, dropouts.
  using Call = TransformerBlockCall<T>;
  /// What forward leaves for backward.
  using Cache = TransformerBlockCache<T>;
  /// What backward adds to.
  using Gradients = TransformerBlockGradients<T>;

  /// Weights by options.init and options.seed, biases 0, gamma 1, beta 0. Throws ArgumentError for
  /// options that make no block.
  explicit TransformerBlock(const TransformerBlockOptions& options)
      : options_(options.resolved()), parameters_(options_) {
    detail::require_epsilon<T>("TransformerBlock", "norm_epsilon", options_.norm_epsilon);
    MultiHeadAttention<T, W> attention(options_.attention());
    FeedForward<T, W> feed_forward(options_.feed_forward());
    parameters_.attention = std::move(attention.parameters());
    parameters_.feed_forward = std::move(feed_forward.parameters());
    fill(Out<T, 1>(parameters_.norm1.gamma), T(1));
    fill(Out<T, 1>(parameters_.norm2.gamma), T(1));
  }
  /// Of parameters that are taken as they are.
  TransformerBlock(TransformerBlockOptions options, TransformerBlockParameters<T, W> parameters,
                   detail::Unchecked)
      : options_(std::move(options)), parameters_(std::move(parameters)) {}
  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  TransformerBlock(const TransformerBlock&) = default;
  TransformerBlock(TransformerBlock&&) noexcept = default;
  TransformerBlock& operator=(const TransformerBlock& other) {
    return *this = TransformerBlock(other);
  }
  TransformerBlock& operator=(TransformerBlock&&) noexcept = default;
  ///@}

  /// y [B, L, D] for x [B, L, D]: inference.
  ///
  /// call.mask must fit [B, H, L, L]. Throws ShapeError or ArgumentError for what does not fit, in
  /// the words of the module within where it is that one's rule, before anything is written or
  /// counted; and std::bad_alloc.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call = {}, const Context& context = {}) const {
    Cache scratch;  // of this call alone
    return run(x, call, scratch, false, context);
  }
  /// The same, and what backward needs into the cache, once all has gone well. The elements of x
  /// must stay until the backward call: after x = block.forward(x, call, cache) they are gone.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    Cache fresh;
    Tensor<T, 3> y = run(x, call, fresh, true, context);
    cache = std::move(fresh);
    return y;
  }
  Tensor<T, 3> forward(const Tensor<T, 3>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// The same of x in 16 bits, for blocks of float: y has its type, and the bits of the block's
  /// floats, each rounded to the nearest. The cache views x.
  ///@{
  template <NarrowFloat U>
  Tensor<U, 3> forward(In<U, 3> x, const Call& call = {},
                       const Context& context = {}) const requires std::same_as<T, float> {
    require_call(x, call);
    return detail::narrow_forward(x, context,
                                  [&](In<T, 3> wide) { return forward(wide, call, context); });
  }
  template <NarrowFloat U>
  Tensor<U, 3> forward(In<U, 3> x, const Call& call, Cache& cache,
                       const Context& context = {}) const requires std::same_as<T, float> {
    require_call(x, call);
    return detail::narrow_forward(
        x, cache, context,
        [&](In<T, 3> wide, Cache& filled) { return forward(wide, call, filled, context); },
        [](Cache& filled, const auto& view) { detail::view_block_input<T>(filled, view); });
  }
  template <NarrowFloat U>
  Tensor<U, 3> forward(const Tensor<U, 3>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward
  ///@}

  /// dx [B, L, D] for dy [B, L, D]; the parameters' gradients are added to `gradients`.
  ///
  /// Throws ArgumentError for a cache that is empty or of a block of another shape, ShapeError,
  /// std::bad_alloc; nothing is changed then.
  Tensor<T, 3> backward(In<T, 3> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const {
    require_backward(dy, cache, gradients);
    return detail::transformer_block_backward<T>(options_, parameters_, dy, cache, gradients,
                                                 context);
  }
  /// The same of dy in 16 bits, of which dx has the type; the parameters' gradients stay floats.
  template <NarrowFloat U>
  Tensor<U, 3> backward(In<U, 3> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const requires std::same_as<T, float> {
    require_backward(dy, cache, gradients);
    return detail::narrow_backward(dy, cache.x.shape(), context, [&](In<T, 3> wide) {
      return backward(wide, cache, gradients, context);
    });
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const TransformerBlockOptions& options() const { return options_; }
  /// The weights, to be read and written.
  TransformerBlockParameters<T, W>& parameters() { return parameters_; }
  /// The weights.
  const TransformerBlockParameters<T, W>& parameters() const { return parameters_; }

 private:
  void require_whole(std::string_view function) const {
    require_shape(function, "norm1.gamma", In<T, 1>(parameters_.norm1.gamma),
                  Shape{options_.d_model}, "the options: a block that was moved from has none");
  }
  template <class U>
  void require_call(const In<U, 3>& x, const Call& call) const {
    constexpr std::string_view function = "TransformerBlock::forward";
    const Index B = x.extent(0), L = x.extent(1);
    require_shape(function, "x", x, Shape{B, L, options_.d_model}, "d_model ", options_.d_model);
    require_whole(function);
    detail::require_call(options_.attention(), parameters_.attention,
                         detail::ModuleInputs<U>{x, x, x, true}, call.attention());
    call.hidden_dropout.require_valid(function);
    call.output_dropout.require_valid(function);
  }
  template <class U>
  void require_backward(const In<U, 3>& dy, const Cache& cache, const Gradients& gradients) const {
    constexpr std::string_view function = "TransformerBlock::backward";
    detail::require_filled(function, cache);
    require(cache.module.same_shape(options_), function,
            "the cache is of a block of another shape, expected one that this block filled");
    require_shape(function, "cache.h", cache.h, cache.x.shape(),
                  "what forward left: a cache that was moved from is empty");
    require_shape(function, "dy", dy, cache.x.shape(), "the output");
    require_whole(function);
    detail::require_block_gradients<T>(parameters_, gradients, {"dy", dy});
    detail::require_given_score_gradients(function, parameters_.attention, gradients.attention,
                                          cache.attention, {"dy", dy});
  }
  Tensor<T, 3> run(In<T, 3> x, const Call& call, Cache& cache, bool training,
                   const Context& context) const {
    require_call(x, call);
    return detail::transformer_block_forward<T>(options_, parameters_, x, call, cache, training,
                                                context);
  }

  TransformerBlockOptions options_;
  TransformerBlockParameters<T, W> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
