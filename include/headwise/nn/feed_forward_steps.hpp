// The steps of a FeedForward, forward and backward.
//
//   1 linear       h = x W_in + b_in        [N, F], or [N, 2 F]: gate | up
//   2 activation   a = f(h), or f(gate) up  [N, F]
//   3 dropout      of a, optional
//   4 linear       y = a W_out + b_out      [N, D]
//   5 dropout      of y, optional
//
// Backward walks the same list up.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "headwise/nn/feed_forward_parameters.hpp"
#include "headwise/ops/activation.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/runtime/viewed_input.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// gate | up of [N, 2 F]; up is absent where there is one half alone.
template <class View>
struct GateAndUp {
  View gate, up;  // [N, F]

  template <class X>
  GateAndUp(X& hidden, const FeedForwardOptions& o)
      : gate(slice(hidden, 1, 0, o.d_hidden)),
        up(o.gated ? View(slice(hidden, 1, o.d_hidden, o.d_hidden)) : View()) {}
};

/// Fills the cache, which says what it is kept as. The shapes are its caller's to check.
template <class T, class W>
void feed_forward_forward(const FeedForwardOptions& o, const FeedForwardParameters<T, W>& p,
                          In<T, 2> x, FeedForwardCache<T>& cache, Out<T, 2> y,
                          const Context& context) {
  const Index N = x.extent(0);
  cache.x = x;
  cache.module = o;
  // 1 linear
  cache.hidden = Tensor<T, 2>::uninitialized({N, o.in_width()}, context.memory);
  run_linear_forward<T, W, OutputMemory::fresh>(x, p.w_in, p.b_in, cache.hidden, context);
  round_saved(cache.hidden, cache.saved, context);
  // 2 activation
  cache.activated = Tensor<T, 2>::uninitialized({N, o.d_hidden}, context.memory);
  const GateAndUp<In<T, 2>> h(std::as_const(cache.hidden), o);
  if (N != 0) activate_rows<T>(o.activation, h.gate, h.up, cache.activated, context);
  // 3 dropout
  if (cache.call.hidden_dropout.active()) {
    drop_forward<T>(cache.activated, cache.call.hidden_dropout, DropoutStream::hidden,
                    cache.activated, context);
  }
  round_saved(cache.activated, cache.saved, context);
  // 4 linear
  run_linear_forward<T, W, OutputMemory::fresh>(cache.activated, p.w_out, p.b_out, y, context);
  // 5 dropout
  if (cache.call.output_dropout.active()) {
    drop_forward<T>(y, cache.call.output_dropout, DropoutStream::feed_forward, y, context);
  }
  drop_saved_floats(cache.hidden, cache.saved);
  drop_saved_floats(cache.activated, cache.saved);
  cache.filled = true;
}

/// A cache of the numbers that another keeps in 16 bits; it views what that one does. Throws
/// std::bad_alloc.
template <std::same_as<float> T>
FeedForwardCache<T> wide_feed_forward_cache(const FeedForwardCache<T>& cache,
                                            const Context& context) {
  FeedForwardCache<T> wide;
  wide.x = cache.x;
  wide.hidden = widen_saved(cache.hidden, cache.saved, context);
  wide.activated = widen_saved(cache.activated, cache.saved, context);
  wide.module = cache.module;
  wide.call = cache.call;
  wide.filled = cache.filled;
  return wide;
}

/// Throws for a cache that this module did not fill, and for gradients of another.
template <class T>
void require_feed_forward_cache(std::string_view function, const FeedForwardOptions& o,
                                const FeedForwardCache<T>& cache) {
  require_filled(function, cache);
  require(cache.module.same_shape(o), function,
          "the cache is of a module of another shape, expected one that this module filled");
  const Index N = cache.x.extent(0);
  const auto whence = "what forward left: a cache that was moved from is empty";
  require_saved_shape(function, "cache.hidden", cache.hidden, cache.saved, Shape{N, o.in_width()},
                      whence);
  require_saved_shape(function, "cache.activated", cache.activated, cache.saved,
                      Shape{N, o.d_hidden}, whence);
}

/// Throws ShapeError unless every gradient has the shape of its parameter.
template <class T, class W>
void require_feed_forward_gradients(std::string_view function, const FeedForwardParameters<T, W>& p,
                                    const FeedForwardParameters<T>& gradients) {
  const auto check = [&](const char* name, const auto& mine, const auto& theirs) {
    require_shape(function, name, mine, theirs.shape(), "zero_gradients()");
  };
  check("gradients.w_in", gradients.w_in, p.w_in);
  check("gradients.b_in", gradients.b_in, p.b_in);
  check("gradients.w_out", gradients.w_out, p.w_out);
  check("gradients.b_out", gradients.b_out, p.b_out);
}

/// Throws ShapeError where a gradient shares memory with what backward reads while it adds to it.
template <class T>
void require_gradients_clear_of(std::string_view function,
                                const FeedForwardParameters<T>& gradients, const Footprint& read) {
  require_disjoint(function, {"gradients.w_in", gradients.w_in}, {&read, 1});
  require_disjoint(function, {"gradients.b_in", gradients.b_in}, {&read, 1});
  require_disjoint(function, {"gradients.w_out", gradients.w_out}, {&read, 1});
  require_disjoint(function, {"gradients.b_out", gradients.b_out}, {&read, 1});
}

/// Steps 5 to 1 up to dx and, when nothing can fail any more, the gradients of the parameters.
template <class T, class W>
class FeedForwardBackward {
 public:
  /// dy [N, D] and the cache have to stay. Writes dx [N, D]. Throws std::bad_alloc.
  FeedForwardBackward(const FeedForwardOptions& o, const FeedForwardParameters<T, W>& p,
                      In<T, 2> dy, const FeedForwardCache<T>& cache, Out<T, 2> dx,
                      const Context& context)
      : x_(viewed_numbers(cache.x, widened_x_, context)), d_y_(dy) {
    const Index N = cache.x.extent(0);
    // 5 dropout
    if (cache.call.output_dropout.active()) {
      dropped_ = Tensor<T, 2>::uninitialized(dy.shape(), context.memory);
      drop_backward<T>(dy, cache.call.output_dropout, DropoutStream::feed_forward, dropped_,
                       context);
      d_y_ = dropped_;
    }
    // 4 linear
    auto d_activated = Tensor<T, 2>::uninitialized({N, o.d_hidden}, context.memory);
    run_linear_backward<T, W, OutputMemory::fresh>(d_y_, cache.activated, p.w_out, d_activated, {},
                                                   {}, context);
    // 3 dropout
    if (cache.call.hidden_dropout.active()) {
      drop_backward<T>(d_activated, cache.call.hidden_dropout, DropoutStream::hidden, d_activated,
                       context);
    }
    // 2 activation; in place where there is no gate
    if (o.gated) d_hidden_ = Tensor<T, 2>::uninitialized({N, o.in_width()}, context.memory);
    const GateAndUp<In<T, 2>> h(cache.hidden, o);
    const GateAndUp<Out<T, 2>> d_h(o.gated ? d_hidden_ : d_activated, o);
    if (N != 0) {
      activate_rows_backward<T>(o.activation, d_activated, h.gate, h.up, d_h.gate, d_h.up, context);
    }
    if (!o.gated) d_hidden_ = std::move(d_activated);
    // 1 linear
    run_linear_backward<T, W, OutputMemory::fresh>(d_hidden_, x_, p.w_in, dx, {}, {}, context);
    // The gradients of the parameters of 4 linear and 1 linear
    of_w_out_.emplace(d_y_, cache.activated, context);
    of_w_in_.emplace(d_hidden_, x_, context);
    workspace_.emplace(context.executor.concurrency(),
                       std::max<Index>(of_w_out_->scratch(), of_w_in_->scratch()), context.memory);
  }
  FeedForwardBackward(const FeedForwardBackward&) = delete;
  FeedForwardBackward& operator=(const FeedForwardBackward&) = delete;

  void add_to(FeedForwardParameters<T>& gradients, const Context& context) {
    of_w_out_->add_to(gradients.w_out, *workspace_, context);
    if (!gradients.b_out.absent())
      run_bias_backward<T, OutputMemory::fresh>(d_y_, gradients.b_out, context);
    of_w_in_->add_to(gradients.w_in, *workspace_, context);
    if (!gradients.b_in.absent())
      run_bias_backward<T, OutputMemory::fresh>(d_hidden_, gradients.b_in, context);
  }

 private:
  Tensor<T, 2> widened_x_;  // [N, D]; where the cache views 16 bits
  const In<T, 2> x_;        // [N, D]
  Tensor<T, 2> dropped_;    // [N, D]
  In<T, 2> d_y_;            // [N, D]
  Tensor<T, 2> d_hidden_;   // [N, F], or [N, 2 F]
  std::optional<LinearWeightGradient<T>> of_w_out_, of_w_in_;
  std::optional<Workspace<T>> workspace_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
