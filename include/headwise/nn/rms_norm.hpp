// Root-mean-square normalisation that owns its gain.
#pragma once

#include <string>

#include "headwise/nn/epsilon.hpp"
#include "headwise/nn/named.hpp"
#include "headwise/nn/narrow_ends.hpp"
#include "headwise/ops/rms_norm.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// What an RMSNorm learns; its gradients have the same form.
template <Scalar T>
struct RMSNormParameters {
  Tensor<T, 1> gamma;  // [D], or absent

  /// f(name, view) for what is there; `prefix` goes in front of the name. The view is writable
  /// where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    if (!gamma.absent()) detail::call_named(f, prefix + "gamma", as_view(gamma));
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    if (!gamma.absent()) detail::call_named(f, prefix + "gamma", as_view(gamma));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x / sqrt(mean(x^2) + epsilon) gamma over the last axis.
template <Scalar T>
class RMSNorm {
 public:
  /// What backward adds to.
  using Gradients = RMSNormParameters<T>;
  /// What forward leaves for backward. It views x, whose elements must stay until the backward
  /// call: after x = norm.forward(x, cache) they are gone.
  struct Cache {
    ViewedInput<T, 2> x;  // [N, D]
    Tensor<T, 1> rstd;    // [N]
    bool filled = false;  // whether forward has been called with it
  };

  /// gamma 1, or none. Throws ArgumentError for a negative width or an epsilon that is not above 0.
  explicit RMSNorm(Index width, bool affine = true, double epsilon = 1e-6)
      : width_(width), epsilon_(epsilon), affine_(affine) {
    require(width >= 0, "RMSNorm", "width is ", width, ", expected >= 0");
    detail::require_epsilon<T>("RMSNorm", "epsilon", epsilon);
    if (!affine) return;
    parameters_.gamma = Tensor<T, 1>({width});
    fill(Out<T, 1>(parameters_.gamma), T(1));
  }

  /// y [N, D] for x [N, D]: inference. Throws and works as rms_norm_forward does.
  Tensor<T, 2> forward(In<T, 2> x, const Context& context = {}) const {
    require_width(x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    rms_norm_forward(x, parameters_.gamma, T(epsilon_), y, {}, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  Tensor<T, 2> forward(In<T, 2> x, Cache& cache, const Context& context = {}) const {
    require_width(x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    Cache filled{x, Tensor<T, 1>::uninitialized({x.extent(0)}, context.memory), true};
    rms_norm_forward(x, parameters_.gamma, T(epsilon_), y, filled.rstd, context);
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

  /// dx [N, D] for dy [N, D]; the gradient of gamma is added to `gradients`.
  ///
  /// Throws ArgumentError for an empty cache, ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, RMSNormParameters<T>& gradients,
                        const Context& context = {}) const {
    require_backward(dy, cache, gradients);
    Tensor<T, 2> storage;
    const In<T, 2> x = detail::viewed_numbers(cache.x, storage, context);
    auto dx = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    rms_norm_backward(dy, x, parameters_.gamma, cache.rstd, dx, gradients.gamma, context);
    return dx;
  }
  /// The same of dy in 16 bits, of which dx has the type; the gradients stay floats.
  template <NarrowFloat U>
  Tensor<U, 2> backward(In<U, 2> dy, const Cache& cache, RMSNormParameters<T>& gradients,
                        const Context& context = {}) const requires std::same_as<T, float> {
    require_backward(dy, cache, gradients);
    return detail::narrow_backward(dy, cache.x.shape(), context, [&](In<T, 2> wide) {
      return backward(wide, cache, gradients, context);
    });
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  RMSNormParameters<T> zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    RMSNormParameters<T> gradients;
    if (parameters_.gamma.size() == 0) return gradients;
    gradients.gamma = Tensor<T, 1>(parameters_.gamma.shape(), memory);
    return gradients;
  }

  /// What is added to the mean square.
  double epsilon() const { return epsilon_; }
  /// gamma, to be read and written.
  RMSNormParameters<T>& parameters() { return parameters_; }
  /// gamma.
  const RMSNormParameters<T>& parameters() const { return parameters_; }

 private:
  template <class U>
  void require_width(const In<U, 2>& x) const {
    require_whole("RMSNorm::forward");
    require_shape("RMSNorm::forward", "x", x, Shape{x.extent(0), width_},
                  "the width of the module");
  }
  template <class U>
  void require_backward(const In<U, 2>& dy, const Cache& cache,
                        const RMSNormParameters<T>& gradients) const {
    constexpr std::string_view function = "RMSNorm::backward";
    const Shape<2> of_x{cache.x.extent(0), width_};
    detail::require_filled(function, cache);
    require_whole(function);
    detail::require_viewed_shape(function, "cache.x", cache.x, of_x, "the width of the module");
    require_shape(function, "dy", dy, of_x, "the output");
    require_shape(function, "gradients.gamma", gradients.gamma, parameters_.gamma.shape(),
                  "zero_gradients()");
  }

  void require_whole(std::string_view function) const {
    require(!affine_ || !parameters_.gamma.absent(), function,
            "gamma is absent: a module that was moved from has none");
  }

  Index width_;
  double epsilon_;
  bool affine_;
  RMSNormParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
