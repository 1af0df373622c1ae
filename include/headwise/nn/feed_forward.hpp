// The part of a transformer block that looks at each token by itself.
#pragma once

#include "headwise/nn/feed_forward_steps.hpp"
#include "headwise/nn/narrow_ends.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = f(x W_up + b_up) W_down + b_down; gated: (f(x W_gate + b_gate) (x W_up + b_up)) W_down +
/// b_down, its first two products one.
///
/// Parameters are plain data; forward and backward are const and keep what a backward needs in a
/// cache of the caller's. A call that throws leaves cache and gradients as they were.
/// Source: Vaswani et al., 2017, arXiv 1706.03762, section 3.3; gated: Shazeer, 2020, arXiv
/// 2002.05202.
///
/// Matrices may be kept as BFloat16 or Float16 (store_weights_as); gradients are floats, then.
template <Scalar T, KeptAs<T> W = T>
class FeedForward {
 public:
  /// What it learns.
  using Parameters = FeedForwardParameters<T, W>;
  /// What one call is asked for: dropouts.
  using Call = FeedForwardCall;
  /// What forward leaves for backward.
  using Cache = FeedForwardCache<T>;
  /// What backward adds to.
  using Gradients = FeedForwardParameters<T>;

  /// Weights by options.init and options.seed, biases 0. Throws ArgumentError for options that make
  /// no module.
  explicit FeedForward(const FeedForwardOptions& options)
      : options_(options.resolved()), parameters_(options_) {
    std::uint32_t number = 16;  // apart from an attention of the same seed
    parameters_.for_each([&](const std::string&, auto view) {
      if constexpr (decltype(view)::rank == 2) {
        init_weights<W>(view, options_.init, options_.seed, number++);
      }
    });
  }
  /// Of parameters that are taken as they are.
  FeedForward(const FeedForwardOptions& options, FeedForwardParameters<T, W> parameters,
              detail::Unchecked)
      : options_(options), parameters_(std::move(parameters)) {}

  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  FeedForward(const FeedForward&) = default;
  FeedForward(FeedForward&&) noexcept = default;
  FeedForward& operator=(const FeedForward& other) { return *this = FeedForward(other); }
  FeedForward& operator=(FeedForward&&) noexcept = default;
  ///@}

  /// y [N, D] for x [N, D]: inference. Throws ShapeError or ArgumentError before anything is
  /// written or counted, and std::bad_alloc.
  Tensor<T, 2> forward(In<T, 2> x, const Call& call = {}, const Context& context = {}) const {
    Cache scratch;  // of this call alone
    return run(x, call, scratch, context);
  }
  /// The same, and what backward needs into the cache, once all has gone well. The elements of x
  /// must stay until the backward call: after x = layer.forward(x, call, cache) they are gone.
  Tensor<T, 2> forward(In<T, 2> x, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    Cache fresh;
    fresh.saved = detail::saved_of<T>(context);
    Tensor<T, 2> y = run(x, call, fresh, context);
    cache = std::move(fresh);
    return y;
  }
  Tensor<T, 2> forward(const Tensor<T, 2>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// The same of x in 16 bits, for modules of float: y has its type, and the bits of the module's
  /// floats, each rounded to the nearest. The cache views x.
  ///@{
  template <NarrowFloat U>
  Tensor<U, 2> forward(In<U, 2> x, const Call& call = {},
                       const Context& context = {}) const requires std::same_as<T, float> {
    require_call(x, call);
    return detail::narrow_forward(x, context,
                                  [&](In<T, 2> wide) { return forward(wide, call, context); });
  }
  template <NarrowFloat U>
  Tensor<U, 2> forward(In<U, 2> x, const Call& call, Cache& cache,
                       const Context& context = {}) const requires std::same_as<T, float> {
    require_call(x, call);
    return detail::narrow_forward(
        x, cache, context,
        [&](In<T, 2> wide, Cache& filled) { return forward(wide, call, filled, context); },
        [](Cache& filled, const auto& view) { filled.x = view; });
  }
  template <NarrowFloat U>
  Tensor<U, 2> forward(const Tensor<U, 2>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward
  ///@}

  /// dx [N, D] for dy [N, D]; the parameters' gradients are added to `gradients`.
  ///
  /// Throws ArgumentError for a cache that is empty or of a module of another shape, ShapeError,
  /// std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const {
    require_backward(dy, cache, gradients);
    auto dx = Tensor<T, 2>::uninitialized(cache.x.shape(), context.memory);
    const auto through = [&](const Cache& kept) {
      detail::FeedForwardBackward<T, W>(options_, parameters_, dy, kept, dx, context)
          .add_to(gradients, context);
    };
    if constexpr (std::same_as<T, float>) {
      if (!cache.saved.exact()) {
        through(detail::wide_feed_forward_cache(cache, context));
        return dx;
      }
    }
    through(cache);
    return dx;
  }
  /// The same of dy in 16 bits, of which dx has the type; the gradients stay floats.
  template <NarrowFloat U>
  Tensor<U, 2> backward(In<U, 2> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const requires std::same_as<T, float> {
    require_backward(dy, cache, gradients);
    return detail::narrow_backward(dy, cache.x.shape(), context, [&](In<T, 2> wide) {
      return backward(wide, cache, gradients, context);
    });
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const FeedForwardOptions& options() const { return options_; }
  /// The weights, to be read and written.
  FeedForwardParameters<T, W>& parameters() { return parameters_; }
  /// The weights.
  const FeedForwardParameters<T, W>& parameters() const { return parameters_; }

 private:
  void require_whole(std::string_view function) const {
    require_shape(function, "w_in", In<W, 2>(parameters_.w_in),
                  Shape{options_.d_model, options_.in_width()},
                  "the options: a module that was moved from has none");
  }
  template <class U>
  void require_call(const In<U, 2>& x, const Call& call) const {
    constexpr std::string_view function = "FeedForward::forward";
    require_shape(function, "x", x, Shape{x.extent(0), options_.d_model}, "d_model ",
                  options_.d_model);
    require_whole(function);
    call.hidden_dropout.require_valid(function);
    call.output_dropout.require_valid(function);
  }
  template <class U>
  void require_backward(const In<U, 2>& dy, const Cache& cache, const Gradients& gradients) const {
    constexpr std::string_view function = "FeedForward::backward";
    detail::require_feed_forward_cache(function, options_, cache);
    require_shape(function, "dy", dy, cache.x.shape(), "the output");
    require_whole(function);
    detail::require_feed_forward_gradients(function, parameters_, gradients);
    detail::require_gradients_clear_of(function, gradients, {"dy", dy});
    require(static_cast<const void*>(&gradients) != &parameters_, function,
            "gradients are the module's parameters, expected tensors of their own "
            "(zero_gradients())");
  }
  Tensor<T, 2> run(In<T, 2> x, const Call& call, Cache& cache, const Context& context) const {
    require_call(x, call);
    cache.call = call;
    auto y = Tensor<T, 2>::uninitialized({x.extent(0), options_.d_model}, context.memory);
    detail::feed_forward_forward<T>(options_, parameters_, x, cache, y, context);
    return y;
  }

  FeedForwardOptions options_;
  FeedForwardParameters<T, W> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
