// A pair of functions as an operation of the tape: a user's own, in one call.
#pragma once

#include <tuple>

#include "headwise/autograd/views.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// function(arguments..., context) where it takes a context, function(arguments...) elsewhere.
template <class Function, class... Arguments>
void call_with(const Context& context, Function& function, const Arguments&... arguments) {
  if constexpr (std::is_invocable_v<Function&, const Arguments&..., const Context&>) {
    function(arguments..., context);
  } else {
    function(arguments...);
  }
}

/// Whether backward is told what forward returned, behind the inputs.
enum class OutputSaved { no, yes };

template <OutputSaved with_output, Scalar T, int R, class Forward, class Backward, int... Q>
Variable<T, R> apply_pair(NodeName name, const Shape<R>& shape, Forward& forward,
                          Backward& backward, const Variable<T, Q>&... inputs) {
  Recording<T> call(name, inputs...);
  const Out<T, R> y = call.output(shape);
  call_with(call.context(), forward, inputs.value()..., y);
  const std::tuple<In<T, Q>...> saved{call.save(inputs)...};
  const auto targets = std::make_tuple(call.target(inputs)...);
  if constexpr (with_output == OutputSaved::yes) call.save_output();
  const In<T, R> output = y;
  // A function as a pointer: clang does not let a lambda within one capture a reference to it.
  std::decay_t<Backward> backward_pair = backward;
  return call.finish(output, [=](BackwardPass<T>& pass, In<T, R> dy) {
    const auto run = [&](const In<T, Q>&... values) {
      const auto into = [&](const Out<T, Q>&... gradients) {
        if constexpr (with_output == OutputSaved::yes) {
          call_with(pass.context(), backward_pair, dy, values..., output, gradients...);
        } else {
          call_with(pass.context(), backward_pair, dy, values..., gradients...);
        }
      };
      std::apply([&](const auto&... to) { pass.assign(into, to...); }, targets);
    };
    std::apply(run, saved);
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = forward(inputs): an operation of one's own on the tape, from a pair of functions.
///
///   auto y = apply(x.shape(),
///                  [](In<T, 2> x, Out<T, 2> y) { ... },                 // writes all of y
///                  [](In<T, 2> dy, In<T, 2> x, Out<T, 2> dx) { ... },   // writes all of dx
///                  x);
///
/// shape               of y
/// forward             forward(In input..., Out y), and a const Context& behind if it takes one
/// backward            backward(In dy, In input..., Out gradient...), likewise; copied to the tape
/// inputs      [...]   at least one; each with a gradient that backward writes
///
/// What the pair needs besides (options, sizes) its lambdas capture by value. Inputs are kept for
/// backward. backward is not called where no gradient flows; it overwrites, and the tape adds where
/// an input has other uses. A pair that keeps something of its own between the two is written with
/// Recording. Throws what forward throws, and as Recording; the tape is then as it was.
template <int R, class Forward, class Backward, Scalar T, int... Q>
Variable<T, R> apply(const Shape<R>& shape, Forward forward, Backward backward,
                     const Variable<T, Q>&... inputs) {
  return detail::apply_pair<detail::OutputSaved::no>({"apply"}, shape, forward, backward,
                                                     inputs...);
}

/// The same with backward(In dy, In input..., In y, Out gradient...): it is told what forward
/// returned, too.
template <int R, class Forward, class Backward, Scalar T, int... Q>
Variable<T, R> apply_with_output(const Shape<R>& shape, Forward forward, Backward backward,
                                 const Variable<T, Q>&... inputs) {
  return detail::apply_pair<detail::OutputSaved::yes>({"apply"}, shape, forward, backward,
                                                      inputs...);
}

/// The same for an op of matrices over all axes but the last of x: forward(In<T, 2> x, Out<T, 2> y,
/// context) and backward(In<T, 2> dy, In<T, 2> x, Out<T, 2> dx, context).
template <Scalar T, int R, class Forward, class Backward>
Variable<T, R> apply_to_rows(detail::NodeName name, const Variable<T, R>& x, Forward forward,
                             Backward backward) {
  const Variable<T, 2> rows = as_rows(x);
  return like_rows_of(x.shape(), detail::apply_pair<detail::OutputSaved::no>(
                                     name, rows.shape(), forward, backward, rows));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
