// Forward mode: derivatives along a direction, of what is computed on dual numbers. Along a
// gradient that was derived by hand, that is a product with the Hessian. Not one formula of its
// own: every operation is the one that other scalars take, so that one wrong step of a backward is
// as wrong here.
#pragma once

#include <type_traits>

#include "headwise/nn/same_parameters.hpp"
#include "headwise/tensor/dual_view.hpp"

namespace headwise::inline v0_1 {

/// What a function gives at x, and how that moves where x moves along u.
template <class Y>
struct Jvp {
  Y value;       // f(x), a tensor or a number
  Y derivative;  // J u, of the same shape
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class Y>
auto parts_of(const Y& y) {
  if constexpr (DualViewable<const Y&>) {
    using Part = decltype(contiguous(values(y)));
    return Jvp<Part>{contiguous(values(y)), contiguous(derivatives(y))};
  } else {
    return Jvp<decltype(Y::value)>{y.value, y.derivative};
  }
}

/// A module's scalar type, and the same module of another one.
template <class Module>
struct ModuleScalar;
template <template <class...> class Module, class T, class... W>
struct ModuleScalar<Module<T, W...>> {
  using Type = T;
  template <class U>
  using Of = Module<U>;
};
template <class Module, class U>
using ModuleOf = typename ModuleScalar<Module>::template Of<U>;
template <class Module>
using DualModule = ModuleOf<Module, Dual<typename ModuleScalar<Module>::Type>>;

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A module on dual numbers whose parameters move along u.
///
/// module   MultiHeadAttention, FeedForward, TransformerBlock, TransformerDecoder: what has options
///          and is made from them
/// u        in the form of its gradients: module.zero_gradients(), filled
///
/// Throws   ShapeError for a direction of another module; std::bad_alloc.
template <class Module>
detail::DualModule<Module> along(const Module& module, const typename Module::Gradients& u) {
  detail::DualModule<Module> result(module.options());
  auto& parameters = result.parameters();
  detail::for_each_of_both("along", "", parameters, module.parameters(), [](auto to, auto from) {
    copy(from, values(to));
    fill(derivatives(to), 0);
  });
  detail::for_each_of_both("along", "u.", parameters, u,
                           [](auto to, auto from) { copy(from, derivatives(to)); });
  return result;
}

/// f(x) and its derivative along u, J u: one pass forward, exact to rounding.
///
/// f   from a Tensor<Dual<T>, R> to a tensor of dual numbers or to one; called once
/// x   [...]   in
/// u   [...]   in; the shape of x
///
/// What f reads besides x and does not move, it converts: convert<Dual<T>>(w). To move several
/// tensors at once, call f with along(x, u), along(w, v) and take derivatives() of the result.
/// Where a pair has f and its backward, <dy, J u> = <J^T dy, u>.
/// Work    that of f three times over, and on a scalar type without vectors.
/// Throws  ShapeError unless the shapes of x and u agree, what f throws, and std::bad_alloc.
/// Source  Griewank and Walther, Evaluating Derivatives (2008), chapter 3.1.
template <class F, Scalar T, int R>
auto jvp(F&& f, In<T, R> x, In<std::type_identity_t<T>, R> u) {
  const Tensor<Dual<T>, R> moving = along(x, u);
  const auto y = f(moving);
  return detail::parts_of(y);
}

/// H u, the Hessian of a loss times a direction: the derivative of its gradient along u.
///
/// gradient   from a Tensor<Dual<T>, R> to one of its shape: the loss's gradient there, by a
///            backward or a tape; called once
/// x          [...]   in
/// u          [...]   in; the shape of x
///
/// H is symmetric: <w, H u> = <u, H w>. Of a gradient that is no gradient, it would not be.
/// Throws  ShapeError unless the shapes of x, u and the gradient agree, what `gradient` throws, and
///         std::bad_alloc.
/// Source  Pearlmutter, "Fast Exact Multiplication by the Hessian", Neural Computation 6 (1994).
template <class F, Scalar T, int R>
Tensor<T, R> hessian_vector_product(F&& gradient, In<T, R> x, In<std::type_identity_t<T>, R> u) {
  Tensor<T, R> product = jvp(gradient, x, u).derivative;
  require_shape("hessian_vector_product", "the gradient", In<T, R>(product), x.shape(),
                "the shape of x");
  return product;
}

/// The same where a module's parameters are what the loss depends on.
///
/// gradient   gradient(module, gradients), as in a training step: forward, loss and backward of a
///            module of dual numbers, whose gradients are 0 when it is called; called once
/// module     what along takes
/// u          in the form of its gradients
///
/// Throws  ShapeError for a direction of another module, what `gradient` throws, and
///         std::bad_alloc.
template <class F, class Module>
typename Module::Gradients hessian_vector_product(F&& gradient, const Module& module,
                                                  const typename Module::Gradients& u) {
  const auto moving = along(module, u);
  auto gradients = moving.zero_gradients();
  gradient(moving, gradients);
  auto product = module.zero_gradients();
  detail::for_each_of_both("hessian_vector_product", "gradients.", product, gradients,
                           [](auto to, auto from) { copy(derivatives(from), to); });
  return product;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
