// Multi-head attention as a module: projections, heads, attention on either path, output.
// The step numbers are those of docs/derivations/attention_backward.md.
#pragma once

#include "headwise/nn/epsilon.hpp"
#include "headwise/nn/multi_head_attention_backward.hpp"
#include "headwise/nn/multi_head_attention_forward.hpp"
#include "headwise/nn/narrow_ends.hpp"
#include "headwise/nn/same_parameters.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/score/alibi.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// MultiHead(x) = Concat(head_1 ... head_H) W_O + b_O, head_i = softmax(scale q_i k_i^T) v_i.
///
/// Parameters are plain data; forward and backward are const and keep everything that a backward
/// needs in a cache of the caller's, so that many calls may be pending and run at the same time.
/// A call that throws, std::bad_alloc included, leaves cache and gradients as they were; only an
/// executor of the caller's that throws while it runs leaves gradients that are added to in part.
/// Source: Vaswani et al., 2017, arXiv 1706.03762, section 3.2.2; grouped: Ainslie et al., 2023,
/// arXiv 2305.13245; pre-LN: Xiong et al., 2020, arXiv 2002.04745; norms of queries and keys:
/// Dehghani et al., 2023, arXiv 2302.05442; rotary positions: Su et al., 2021, arXiv 2104.09864;
/// slopes by distance: Press et al., 2022, arXiv 2108.12409; biases of distances: Raffel et al.,
/// 2020, arXiv 1910.10683, section 2.1; sinks: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card",
/// 2025, arXiv 2508.10925.
///
/// Matrices may be kept as BFloat16 or Float16 (store_weights_as); gradients are floats, then.
template <Scalar T, KeptAs<T> W = T>
class MultiHeadAttention {
 public:
  /// What it learns.
  using Parameters = MultiHeadAttentionParameters<T, W>;
  /// What one call is asked for: masks, path, scale, dropout.
  using Call = MultiHeadAttentionCall<T>;
  /// What forward leaves for backward.
  using Cache = MultiHeadAttentionCache<T>;
  /// What backward adds to.
  using Gradients = MultiHeadAttentionGradients<T>;

  /// Weights by options.init and options.seed, biases, sinks and beta 0, every gamma 1, slopes
  /// those of alibi_slopes.
  /// Throws ArgumentError or ShapeError for options that make no module.
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : options_(options.resolved()), parameters_(options_) {
    constexpr std::string_view name = "MultiHeadAttention";
    detail::require_epsilon<T>(name, "layer_norm_epsilon", options_.layer_norm_epsilon);
    detail::require_epsilon<T>(name, "qk_norm_epsilon", options_.qk_norm_epsilon);
    init_weights<W>(parameters_.W_Q(), options_.init, options_.seed, 0);
    init_weights<W>(parameters_.W_K(), options_.init, options_.seed, 1);
    init_weights<W>(parameters_.W_V(), options_.init, options_.seed, 2);
    init_weights<W>(parameters_.w_o, options_.init, options_.seed, 3);
    for (Tensor<T, 1>* gamma : {&parameters_.gamma, &parameters_.gamma_q, &parameters_.gamma_k}) {
      fill(Out<T, 1>(*gamma), T(1));
    }
    if (options_.alibi) parameters_.alibi_slopes = headwise::alibi_slopes<T>(options_.num_heads);
  }
  /// Of parameters that are taken as they are.
  MultiHeadAttention(MultiHeadAttentionOptions options,
                     MultiHeadAttentionParameters<T, W> parameters, detail::Unchecked)
      : options_(std::move(options)), parameters_(std::move(parameters)) {}
  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  MultiHeadAttention(const MultiHeadAttention&) = default;
  MultiHeadAttention(MultiHeadAttention&&) noexcept = default;
  MultiHeadAttention& operator=(const MultiHeadAttention& other) {
    return *this = MultiHeadAttention(other);
  }
  MultiHeadAttention& operator=(MultiHeadAttention&&) noexcept = default;
  ///@}
  /// d_model wide, num_heads heads, everything else by default.
  explicit MultiHeadAttention(Index d_model, Index num_heads)
      : MultiHeadAttention(MultiHeadAttentionOptions{.d_model = d_model, .num_heads = num_heads}) {}

  /// Self-attention, inference: y [B, L, D] for x [B, L, D].
  ///
  /// call.mask must fit [B, H, L, L]. All of forward throws ShapeError or ArgumentError for inputs
  /// and masks that do not fit, before anything is written or counted, and std::bad_alloc.
  /// Work: count_flops of the shape.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call = {}, const Context& context = {}) const {
    return infer({x, x, x, true}, call, context);
  }
  /// Self-attention: fills the cache. The elements of x must stay until the backward call: after
  /// x = attention.forward(x, call, cache) they are gone.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    return train({x, x, x, true}, call, cache, context);
  }

  Tensor<T, 3> forward(const Tensor<T, 3>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// Cross-attention, inference: y [B, L, D] for query [B, L, D], key [B, S, kdim],
  /// value [B, S, vdim]; call.mask must fit [B, H, L, S].
  Tensor<T, 3> forward(In<T, 3> query, In<T, 3> key, In<T, 3> value, const Call& call = {},
                       const Context& context = {}) const {
    return infer({query, key, value, false}, call, context);
  }
  /// Cross-attention: fills the cache. The inputs must outlive the backward call.
  Tensor<T, 3> forward(In<T, 3> query, In<T, 3> key, In<T, 3> value, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    return train({query, key, value, false}, call, cache, context);
  }

  // Gone before backward: the cache views its inputs.
  template <class Q, class K, class V>
  requires(OwnsItsElements<Q> || OwnsItsElements<K> || OwnsItsElements<V>)  // without a name
      void forward(Q&& query, K&& key, V&& value, const Call& call, Cache& cache,
                   const Context& context = {}) const = delete;

  /// The four above for inputs in 16 bits (U), of modules of float: y [B, L, D] in U, each number
  /// the nearest one to that of the same inputs as floats. The cache views the inputs. Throws as
  /// they do.
  ///@{
  template <NarrowFloat U>
  Tensor<U, 3> forward(In<U, 3> x, const Call& call = {},
                       const Context& context = {}) const requires std::same_as<T, float> {
    return narrow_infer<U>({x, x, x, true}, call, context);
  }
  template <NarrowFloat U>
  Tensor<U, 3> forward(In<U, 3> x, const Call& call, Cache& cache,
                       const Context& context = {}) const requires std::same_as<T, float> {
    return narrow_train<U>({x, x, x, true}, call, cache, context);
  }
  template <NarrowFloat U>
  Tensor<U, 3> forward(In<U, 3> query, In<U, 3> key, In<U, 3> value, const Call& call = {},
                       const Context& context = {}) const requires std::same_as<T, float> {
    return narrow_infer<U>({query, key, value, false}, call, context);
  }
  template <NarrowFloat U>
  Tensor<U, 3> forward(In<U, 3> query, In<U, 3> key, In<U, 3> value, const Call& call, Cache& cache,
                       const Context& context = {}) const requires std::same_as<T, float> {
    return narrow_train<U>({query, key, value, false}, call, cache, context);
  }
  template <NarrowFloat U>
  Tensor<U, 3> forward(const Tensor<U, 3>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward
  ///@}

  /// dx [B, L, D] of a self-attention; the parameters' gradients are added to `gradients`.
  ///
  /// dy [B, L, D]. Throws ArgumentError for a cache that is empty, of cross-attention, or of a
  /// module of another shape; ShapeError; std::bad_alloc. Work: count_backward_flops.
  Tensor<T, 3> backward(In<T, 3> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const {
    require_backward("MultiHeadAttention::backward", dy, cache, gradients, true);
    return detail::multi_head_attention_backward(options_, parameters_, dy, cache, gradients,
                                                 context)
        .query;
  }
  /// The gradients of all three inputs of a cross-attention: dy [B, L, D] gives [B, L, D],
  /// [B, S, kdim] and [B, S, vdim]. Adds and throws as backward does, of self-attention.
  CrossAttentionGradients<T> backward_cross(In<T, 3> dy, const Cache& cache, Gradients& gradients,
                                            const Context& context = {}) const {
    require_backward("MultiHeadAttention::backward_cross", dy, cache, gradients, false);
    return detail::multi_head_attention_backward(options_, parameters_, dy, cache, gradients,
                                                 context);
  }

  /// Both for dy [B, L, D] in 16 bits (U): the gradients of the inputs are in U, too, and those of
  /// the parameters stay floats.
  ///@{
  template <NarrowFloat U>
  Tensor<U, 3> backward(In<U, 3> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const requires std::same_as<T, float> {
    require_backward("MultiHeadAttention::backward", dy, cache, gradients, true);
    return detail::narrow_backward(dy, cache.query.shape(), context, [&](In<T, 3> wide) {
      return backward(wide, cache, gradients, context);
    });
  }
  template <NarrowFloat U>
  CrossAttentionGradients<U> backward_cross(
      In<U, 3> dy, const Cache& cache, Gradients& gradients,
      const Context& context = {}) const requires std::same_as<T, float> {
    require_backward("MultiHeadAttention::backward_cross", dy, cache, gradients, false);
    CrossAttentionGradients<U> d{{},
                                 Tensor<U, 3>::uninitialized(cache.key.shape(), context.memory),
                                 Tensor<U, 3>::uninitialized(cache.value.shape(), context.memory)};
    d.query = detail::narrow_backward(dy, cache.query.shape(), context, [&](In<T, 3> wide) {
      CrossAttentionGradients<T> of_floats = backward_cross(wide, cache, gradients, context);
      detail::round_to(of_floats.key, d.key, context);
      detail::round_to(of_floats.value, d.value, context);
      return std::move(of_floats.query);
    });
    return d;
  }
  ///@}

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }
  /// The weights, to be read and written.
  MultiHeadAttentionParameters<T, W>& parameters() { return parameters_; }
  /// The weights.
  const MultiHeadAttentionParameters<T, W>& parameters() const { return parameters_; }

 private:
  Tensor<T, 3> infer(const detail::ModuleInputs<T>& inputs, const Call& call,
                     const Context& context) const {
    require_parameters();
    Cache scratch;  // of this call alone
    return detail::multi_head_attention_forward(options_, parameters_, inputs, call, scratch, false,
                                                context);
  }
  /// The caller's cache changes only when all has gone well.
  Tensor<T, 3> train(const detail::ModuleInputs<T>& inputs, const Call& call, Cache& cache,
                     const Context& context) const {
    require_parameters();
    Cache fresh;
    Tensor<T, 3> y = detail::multi_head_attention_forward(options_, parameters_, inputs, call,
                                                          fresh, true, context);
    cache = std::move(fresh);
    return y;
  }

  template <class U>
  Tensor<U, 3> narrow_infer(const detail::ModuleInputs<U>& inputs, const Call& call,
                            const Context& context) const {
    require_parameters();
    const detail::WidenedInputs wide(options_, parameters_, inputs, call, context);
    return detail::narrowed<U>(infer(wide.views(), call, context), context);
  }
  template <class U>
  Tensor<U, 3> narrow_train(const detail::ModuleInputs<U>& inputs, const Call& call, Cache& cache,
                            const Context& context) const {
    require_parameters();
    const detail::WidenedInputs wide(options_, parameters_, inputs, call, context);
    Cache filled;
    Tensor<U, 3> y = detail::narrowed<U>(train(wide.views(), call, filled, context), context);
    filled.query = detail::viewed(inputs.query);
    filled.key = detail::viewed(inputs.key);
    filled.value = detail::viewed(inputs.value);
    cache = std::move(filled);
    return y;
  }
  void require_parameters(std::string_view function = "MultiHeadAttention::forward") const {
    detail::require_whole(function, options_, parameters_);
  }

  template <class U>
  void require_backward(std::string_view function, const In<U, 3>& dy, const Cache& cache,
                        const Gradients& gradients, bool self) const {
    require_cache(function, cache, self);
    const Index B = cache.query.extent(0), L = cache.query.extent(1);
    require_shape(function, "dy", dy, Shape{B, L, options_.d_model}, "the output");
    require_parameters(function);
    gradients.require_shapes_of(parameters_, function);
    gradients.require_clear_of(function, {"dy", dy});
    detail::require_given_score_gradients(function, parameters_, gradients, cache, {"dy", dy});
  }
  void require_cache(std::string_view function, const Cache& cache, bool self) const {
    detail::require_filled(function, cache);
    require(cache.self_attention == self, function,
            self ? "the cache is of a call with separate keys and values: use backward_cross"
                 : "the cache is of self-attention: use backward");
    require(cache.module.same_shape(options_), function,
            "the cache is of a module of another shape, expected one that this module filled");
    const Index B = cache.query.extent(0), L = cache.query.extent(1), H = options_.num_heads;
    const auto whence = "what forward left: a cache that was moved from is empty";
    require_shape(function, "cache.context", cache.context, Shape{B, L, options_.context_width()},
                  whence);
    if (cache.call.path == Path::materialized) {
      require_shape(function, "cache.weights", cache.weights, Shape{B, H, L, cache.key.extent(1)},
                    whence);
    } else {
      require_shape(function, "cache.lse", cache.lse, Shape{B, H, L, 2}, whence);
    }
  }

  MultiHeadAttentionOptions options_;
  MultiHeadAttentionParameters<T, W> parameters_;
};

/// The same module with its parameters in another scalar type, as static_cast rounds them. Throws
/// ShapeError for a module that was moved from, std::bad_alloc.
template <Scalar To, Scalar From>
MultiHeadAttention<To> convert(const MultiHeadAttention<From>& module) {
  MultiHeadAttention<To> result(module.options());
  detail::for_each_of_both(
      "convert", "", result.parameters(), module.parameters(), [](auto to, auto from) {
        for_each_index(to.shape(), [&](const auto& at) { to(at) = static_cast<To>(from(at)); });
      });
  return result;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
