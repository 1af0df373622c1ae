// Layer normalisation that owns its gain and offset.
#pragma once

#include <string>

#include "headwise/nn/epsilon.hpp"
#include "headwise/nn/named.hpp"
#include "headwise/nn/narrow_ends.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// What a LayerNorm learns; its gradients have the same form.
template <Scalar T>
struct LayerNormParameters {
  Tensor<T, 1> gamma;  // [D], or absent
  Tensor<T, 1> beta;   // [D], or absent

  /// f(name, view) for each that is there; `prefix` goes in front of the names. Views are writable
  /// where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    using detail::Named;
    for (const auto& [name, vector] : {Named{"gamma", &self.gamma}, Named{"beta", &self.beta}}) {
      if (!vector->absent()) detail::call_named(f, prefix + name, as_view(*vector));
    }
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = (x - mean) / sqrt(variance + epsilon) gamma + beta over the last axis.
template <Scalar T>
class LayerNorm {
 public:
  /// What backward adds to.
  using Gradients = LayerNormParameters<T>;
  /// What forward leaves for backward. It views x, whose elements must stay until the backward
  /// call: after x = norm.forward(x, cache) they are gone.
  struct Cache {
    ViewedInput<T, 2> x;  // [N, D]
    Tensor<T, 1> mean;    // [N]
    Tensor<T, 1> rstd;    // [N]
    bool filled = false;  // whether forward has been called with it
  };

  /// gamma 1 and beta 0, or neither. Throws ArgumentError for a negative width or an epsilon that
  /// is not above 0.
  explicit LayerNorm(Index width, bool affine = true, double epsilon = 1e-5)
      : width_(width), epsilon_(epsilon), affine_(affine) {
    require(width >= 0, "LayerNorm", "width is ", width, ", expected >= 0");
    detail::require_epsilon<T>("LayerNorm", "epsilon", epsilon);
    if (!affine) return;
    parameters_.gamma = Tensor<T, 1>({width});
    parameters_.beta = Tensor<T, 1>({width});
    fill(Out<T, 1>(parameters_.gamma), T(1));
  }

  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  LayerNorm(const LayerNorm&) = default;
  LayerNorm(LayerNorm&&) noexcept = default;
  LayerNorm& operator=(const LayerNorm& other) { return *this = LayerNorm(other); }
  LayerNorm& operator=(LayerNorm&&) noexcept = default;
  ///@}

  /// y [N, D] for x [N, D]: inference. Throws and works as layer_norm_forward does.
  Tensor<T, 2> forward(In<T, 2> x, const Context& context = {}) const {
    require_width(x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    layer_norm_forward(x, {parameters_.gamma, parameters_.beta}, T(epsilon_), y, {{}, {}}, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  Tensor<T, 2> forward(In<T, 2> x, Cache& cache, const Context& context = {}) const {
    require_width(x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    Cache filled{x, Tensor<T, 1>::uninitialized({x.extent(0)}, context.memory),
                 Tensor<T, 1>::uninitialized({x.extent(0)}, context.memory), true};
    layer_norm_forward(x, {parameters_.gamma, parameters_.beta}, T(epsilon_), y,
                       {filled.mean, filled.rstd}, context);
    cache = std::move(filled);
    return y;
  }
  Tensor<T, 2> forward(const Tensor<T, 2>&& temporary, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// The same of x in 16 bits, for modules of float: y has its type, and the bits of the module's
  /// floats, each rounded to the nearest. The cache views x.
  ///@{
  template <NarrowFloat U>
  Tensor<U, 2> forward(In<U, 2> x,
                       const Context& context = {}) const requires std::same_as<T, float> {
    require_width(x);
    return detail::narrow_forward(x, context,
                                  [&](In<T, 2> wide) { return forward(wide, context); });
  }
  template <NarrowFloat U>
  Tensor<U, 2> forward(In<U, 2> x, Cache& cache,
                       const Context& context = {}) const requires std::same_as<T, float> {
    require_width(x);
    return detail::narrow_forward(
        x, cache, context,
        [&](In<T, 2> wide, Cache& filled) { return forward(wide, filled, context); },
        [](Cache& filled, const auto& view) { filled.x = view; });
  }
  template <NarrowFloat U>
  Tensor<U, 2> forward(const Tensor<U, 2>&& temporary, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward
  ///@}

  /// dx [N, D] for dy [N, D]; the gradients of gamma and beta are added to `gradients`.
  ///
  /// Throws ArgumentError for an empty cache, ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, LayerNormParameters<T>& gradients,
                        const Context& context = {}) const {
    require_backward(dy, cache, gradients);
    Tensor<T, 2> storage;
    const In<T, 2> x = detail::viewed_numbers(cache.x, storage, context);
    auto dx = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    layer_norm_backward(dy, x, parameters_.gamma, {cache.mean, cache.rstd}, dx,
                        {gradients.gamma, gradients.beta}, context);
    return dx;
  }
  /// The same of dy in 16 bits, of which dx has the type; the gradients stay floats.
  template <NarrowFloat U>
  Tensor<U, 2> backward(In<U, 2> dy, const Cache& cache, LayerNormParameters<T>& gradients,
                        const Context& context = {}) const requires std::same_as<T, float> {
    require_backward(dy, cache, gradients);
    return detail::narrow_backward(dy, cache.x.shape(), context, [&](In<T, 2> wide) {
      return backward(wide, cache, gradients, context);
    });
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  LayerNormParameters<T> zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    LayerNormParameters<T> gradients;
    if (parameters_.gamma.size() == 0) return gradients;
    gradients.gamma = Tensor<T, 1>(parameters_.gamma.shape(), memory);
    gradients.beta = Tensor<T, 1>(parameters_.beta.shape(), memory);
    return gradients;
  }

  /// What is added to the variance.
  double epsilon() const { return epsilon_; }
  /// gamma and beta, to be read and written.
  LayerNormParameters<T>& parameters() { return parameters_; }
  /// gamma and beta.
  const LayerNormParameters<T>& parameters() const { return parameters_; }

 private:
  template <class U>
  void require_width(const In<U, 2>& x) const {
    require_whole("LayerNorm::forward");
    require_shape("LayerNorm::forward", "x", x, Shape{x.extent(0), width_},
                  "the width of the module");
  }
  template <class U>
  void require_backward(const In<U, 2>& dy, const Cache& cache,
                        const LayerNormParameters<T>& gradients) const {
    constexpr std::string_view function = "LayerNorm::backward";
    const Shape<2> of_x{cache.x.extent(0), width_};
    detail::require_filled(function, cache);
    require_whole(function);
    detail::require_viewed_shape(function, "cache.x", cache.x, of_x, "the width of the module");
    require_shape(function, "dy", dy, of_x, "the output");
    require_shape(function, "gradients.gamma", gradients.gamma, parameters_.gamma.shape(),
                  "zero_gradients()");
    require_shape(function, "gradients.beta", gradients.beta, parameters_.beta.shape(),
                  "zero_gradients()");
  }

  void require_whole(std::string_view function) const {
    require(!affine_ || !parameters_.gamma.absent(), function,
            "gamma is absent: a module that was moved from has none");
  }

  Index width_;
  double epsilon_;
  bool affine_;
  LayerNormParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
