// Memory for time: a part of the forward pass that keeps its inputs alone, and is run again when
// backward comes to it.
#pragma once

#include "headwise/autograd/tape.hpp"
#include "headwise/autograd/views.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = f(inputs...), of which only the inputs are kept; f runs again in backward.
///
///   y = checkpoint([&](const Variable<float, 3>& x) { return block(tape, x); }, x);
///
/// f takes variables and returns one. It has to compute the same again: dropout does, for its mask
/// is a function of seed and step. Parameters, and other variables that it captures, get their
/// gradients as without; what it refers to has to outlive backward, and its values to stay as they
/// are: that a captured one was written to (mutable_value) is seen of inputs alone. Calls may be
/// nested.
/// Work    that of f twice, forward.
/// Throws  what f throws, and as Recording; the tape is then as it was.
/// Source  Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016,
///         arXiv 1604.06174.
template <class F, Scalar T, int... R>
auto checkpoint(F f, const Variable<T, R>&... inputs) {
  Recording<T> call({"checkpoint"}, inputs...);
  call.record_anyway();
  const auto values = [&] {
    const NoGrad<T> values_only(call.tape());
    auto y = f(inputs...);
    return y.size() == y.handle().storage->count && y.value().data() == y.handle().storage->begin
               ? y
               : contiguous(y);
  };
  const auto y = values();
  constexpr int rank = decltype(values())::rank;
  (call.save(inputs), ...);
  return call.finish(y, [f = std::move(f), held = std::make_tuple(inputs...)](BackwardPass<T>& pass,
                                                                              In<T, rank> dy) {
    pass.recompute([&] { return std::apply(f, held); }, dy);
  });
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
