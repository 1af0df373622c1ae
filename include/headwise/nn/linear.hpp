// A linear layer that owns its weights.
#pragma once

#include <string>

#include "headwise/nn/init.hpp"
#include "headwise/nn/named.hpp"
#include "headwise/nn/narrow_ends.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/runtime/viewed_input.hpp"

namespace headwise::inline v0_1 {

/// What a Linear learns; its gradients have the same form. W is the type in which the matrix
/// is kept.
template <Scalar T, KeptAs<T> W = T>
struct LinearParameters {
  Tensor<W, 2> w;  // [K, O]
  Tensor<T, 1> b;  // [O], or absent

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
    detail::call_named(f, prefix + "W", as_view(self.w));
    if (!self.b.absent()) detail::call_named(f, prefix + "b", as_view(self.b));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x W + b. Const calls may run at the same time. Where W is kept in 16 bits, its gradient is
/// floats.
template <Scalar T, KeptAs<T> W = T>
class Linear {
 public:
  /// What backward adds to.
  using Gradients = LinearParameters<T>;
  /// What forward leaves for backward. It views x, whose elements must stay until the backward
  /// call: after x = layer.forward(x, cache) they are gone.
  struct Cache {
    ViewedInput<T, 2> x;  // [N, K]
    bool filled = false;  // whether forward has been called with it
  };

  /// Weights by `init`, bias 0; layers of one seed and shape start alike. Throws ArgumentError for
  /// a negative width.
  Linear(Index in, Index out, bool bias = true, Init init = Init::xavier_normal,
         std::uint64_t seed = 0) {
    require(in >= 0, "Linear", "in is ", in, ", expected >= 0");
    require(out >= 0, "Linear", "out is ", out, ", expected >= 0");
    parameters_.w = Tensor<W, 2>({in, out});
    if (bias) parameters_.b = Tensor<T, 1>({out});
    init_weights<W>(parameters_.w, init, seed, 0);
  }
  /// Of parameters that are taken as they are.
  Linear(LinearParameters<T, W> parameters, detail::Unchecked)
      : parameters_(std::move(parameters)) {}

  /// Copied whole, or, where memory runs out, not at all.
  ///@{
  Linear(const Linear&) = default;
  Linear(Linear&&) noexcept = default;
  Linear& operator=(const Linear& other) { return *this = Linear(other); }
  Linear& operator=(Linear&&) noexcept = default;
  ///@}

  /// y [N, O] for x [N, K]: inference. Throws and works as linear_forward does.
  Tensor<T, 2> forward(In<T, 2> x, const Context& context = {}) const {
    require_input(x);
    auto y = Tensor<T, 2>::uninitialized({x.extent(0), parameters_.w.extent(1)}, context.memory);
    detail::run_linear_forward<T, W, detail::OutputMemory::fresh>(x, parameters_.w, parameters_.b,
                                                                  y, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  Tensor<T, 2> forward(In<T, 2> x, Cache& cache, const Context& context = {}) const {
    Tensor<T, 2> y = forward(x, context);
    cache = {x, true};
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
    require_input(x);
    return detail::narrow_forward(x, context,
                                  [&](In<T, 2> wide) { return forward(wide, context); });
  }
  template <NarrowFloat U>
  Tensor<U, 2> forward(In<U, 2> x, Cache& cache,
                       const Context& context = {}) const requires std::same_as<T, float> {
    Tensor<U, 2> y = forward(x, context);
    cache = {detail::viewed(x), true};
    return y;
  }
  template <NarrowFloat U>
  Tensor<U, 2> forward(const Tensor<U, 2>&& temporary, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward
  ///@}

  /// dx [N, K] for dy [N, O]; the gradients of W and b are added to `gradients`.
  ///
  /// Throws ArgumentError for an empty cache, ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, LinearParameters<T>& gradients,
                        const Context& context = {}) const {
    require_backward(dy, cache, gradients);
    Tensor<T, 2> storage;
    const In<T, 2> x = detail::viewed_numbers(cache.x, storage, context);
    auto dx = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    linear_backward(dy, x, In<W, 2>(parameters_.w), dx, gradients.w, gradients.b, context);
    return dx;
  }
  /// The same of dy in 16 bits, of which dx has the type; the gradients stay floats.
  template <NarrowFloat U>
  Tensor<U, 2> backward(In<U, 2> dy, const Cache& cache, LinearParameters<T>& gradients,
                        const Context& context = {}) const requires std::same_as<T, float> {
    require_backward(dy, cache, gradients);
    return detail::narrow_backward(dy, cache.x.shape(), context, [&](In<T, 2> wide) {
      return backward(wide, cache, gradients, context);
    });
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  LinearParameters<T> zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    LinearParameters<T> gradients;
    gradients.w = Tensor<T, 2>(parameters_.w.shape(), memory);
    if (parameters_.b.size() != 0) gradients.b = Tensor<T, 1>(parameters_.b.shape(), memory);
    return gradients;
  }

  /// W and b, to be read and written.
  LinearParameters<T, W>& parameters() { return parameters_; }
  /// W and b.
  const LinearParameters<T, W>& parameters() const { return parameters_; }

 private:
  template <class U>
  void require_input(const In<U, 2>& x) const {
    require_shape("Linear::forward", "x", x, Shape{x.extent(0), parameters_.w.extent(0)},
                  "the rows of W");
  }
  template <class U>
  void require_backward(const In<U, 2>& dy, const Cache& cache,
                        const LinearParameters<T>& gradients) const {
    constexpr std::string_view function = "Linear::backward";
    const Index N = cache.x.extent(0), K = parameters_.w.extent(0), O = parameters_.w.extent(1);
    detail::require_filled(function, cache);
    detail::require_viewed_shape(function, "cache.x", cache.x, Shape{N, K}, "the rows of W");
    require_shape(function, "dy", dy, Shape{N, O}, "the output");
    require_shape(function, "gradients.w", gradients.w, parameters_.w.shape(), "zero_gradients()");
    require_shape(function, "gradients.b", gradients.b, parameters_.b.shape(), "zero_gradients()");
  }

  LinearParameters<T, W> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
