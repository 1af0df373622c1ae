// The steps of a TransformerBlock, forward and backward. Its halves are alike: a branch, attention
// or feed-forward, is added to what it started from.
//
//   pre-LN                       post-LN
//   1 norm    n = norm(x)        2 branch  b = branch(x)
//   2 branch  b = branch(n)      3 add     s = x + b
//   3 add     y = x + b          1 norm    y = norm(s)
//
// Backward walks the same list up.
#pragma once

#include "headwise/nn/feed_forward_steps.hpp"
#include "headwise/nn/multi_head_attention_backward.hpp"
#include "headwise/nn/multi_head_attention_forward.hpp"
#include "headwise/nn/transformer_block_parameters.hpp"
#include "headwise/ops/elementwise.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/rms_norm.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A tensor of x's shape, not initialised. Throws std::bad_alloc.
template <class T, class View>
Tensor<T, 3> like(const View& x, const Context& context) {
  return Tensor<T, 3>::uninitialized(x.shape(), context.memory);
}

/// x + b, in b.
template <class T>
void add_to_branch(const In<T, 3>& x, Tensor<T, 3>& b, const Context& context) {
  add_forward(In<T, 2>(merge_rows(x)), In<T, 2>(merge_rows(b)), merge_rows(b), context);
}

/// One norm of a block, of either kind.
template <class T>
struct BlockNorm {
  const TransformerBlockOptions& options;
  const LayerNormParameters<T>& p;

  /// Step 1: y = norm(x).
  Tensor<T, 3> forward(In<T, 3> x, TransformerHalfCache<T>& cache, const Context& context) const {
    const Index N = x.extent(0) * x.extent(1);
    Tensor<T, 3> y = like<T>(x, context);
    const T epsilon = T(options.norm_epsilon);
    cache.norm_input = x;
    cache.rstd = Tensor<T, 1>::uninitialized({N}, context.memory);
    if (options.norm == NormKind::rms_norm) {
      rms_norm_forward(In<T, 2>(merge_rows(x)), p.gamma, epsilon, merge_rows(y), cache.rstd,
                       context);
      return y;
    }
    cache.mean = Tensor<T, 1>::uninitialized({N}, context.memory);
    layer_norm_forward(In<T, 2>(merge_rows(x)), {p.gamma, p.beta}, epsilon, merge_rows(y),
                       {cache.mean, cache.rstd}, context);
    return y;
  }
  /// dx [B L, D], overwritten, and the gradients, added to, for dy [B, L, D] and the input
  /// [B, L, D] that forward read, as numbers of T; {} and null for none.
  void backward(In<T, 3> dy, In<T, 3> input, const TransformerHalfCache<T>& cache, Out<T, 2> dx,
                LayerNormParameters<T>* gradients, const Context& context) const {
    const In<T, 2> x = merge_rows(input), dy_rows = merge_rows(dy);
    const InOut<T, 1> none;
    const InOut<T, 1> dgamma = gradients == nullptr ? none : InOut<T, 1>(gradients->gamma);
    if (options.norm == NormKind::rms_norm) {
      return rms_norm_backward(dy_rows, x, p.gamma, cache.rstd, dx, dgamma, context);
    }
    const InOut<T, 1> dbeta = gradients == nullptr ? none : InOut<T, 1>(gradients->beta);
    layer_norm_backward(dy_rows, x, p.gamma, {cache.mean, cache.rstd}, dx, {dgamma, dbeta},
                        context);
  }
};

/// Steps 1 to 3 of a half: branch(n) is a tensor of its own.
template <class T, class Branch>
Tensor<T, 3> half_forward(const BlockNorm<T>& norm, In<T, 3> x, TransformerHalfCache<T>& cache,
                          const Saved& saved, const Context& context, const Branch& branch) {
  if (norm.options.norm_first) {
    cache.normed = norm.forward(x, cache, context);
    round_saved(cache.normed, saved, context);
    Tensor<T, 3> y = branch(In<T, 3>(cache.normed));
    add_to_branch(x, y, context);
    drop_saved_floats(cache.normed, saved);
    return y;
  }
  cache.sum = branch(x);
  add_to_branch(x, cache.sum, context);
  return norm.forward(cache.sum, cache, context);
}

/// Steps 3 to 1 of a half. What the norm's gradients are of is kept: they come when nothing can
/// fail any more.
template <class T>
class HalfBackward {
 public:
  HalfBackward(const BlockNorm<T>& norm, const TransformerHalfCache<T>& cache, In<T, 3> dy,
               const Context& context)
      : norm_(norm),
        cache_(cache),
        norm_input_(viewed_numbers(cache.norm_input, widened_, context)),
        dy_(dy),
        d_sum_(dy) {
    if (norm_.options.norm_first) return;
    d_sum_storage_ = like<T>(dy, context);
    norm_.backward(dy_, norm_input_, cache_, merge_rows(d_sum_storage_), nullptr, context);
    d_sum_ = d_sum_storage_;
  }
  HalfBackward(const HalfBackward&) = delete;
  HalfBackward& operator=(const HalfBackward&) = delete;

  /// The gradient of what the branch gave.
  In<T, 3> d_branch() const { return d_sum_; }
  /// dx, from the gradient of what the branch read.
  void finish(Tensor<T, 3> d_read, Tensor<T, 3>& dx, const Context& context) {
    d_read_ = std::move(d_read);
    if (norm_.options.norm_first) {
      norm_.backward(d_read_, norm_input_, cache_, merge_rows(dx), nullptr, context);
      add_to_branch(d_sum_, dx, context);
    } else {
      add_forward(In<T, 2>(merge_rows(d_sum_)), merge_rows(In<T, 3>(d_read_)), merge_rows(dx),
                  context);
    }
  }
  /// The gradients of the norm.
  void add_to(LayerNormParameters<T>& gradients, const Context& context) const {
    norm_.backward(norm_.options.norm_first ? In<T, 3>(d_read_) : dy_, norm_input_, cache_, {},
                   &gradients, context);
  }

 private:
  const BlockNorm<T> norm_;
  const TransformerHalfCache<T>& cache_;
  Tensor<T, 3> widened_;        // [B, L, D]; where the cache views 16 bits
  const In<T, 3> norm_input_;   // [B, L, D]
  const In<T, 3> dy_;           // [B, L, D]
  In<T, 3> d_sum_;              // [B, L, D]; dy, or past the norm
  Tensor<T, 3> d_sum_storage_;  // post-LN
  Tensor<T, 3> d_read_;         // [B, L, D]
};

/// Both halves, by whatever attends; what they keep goes into the cache.
template <class T, class W, class Attend>
Tensor<T, 3> block_halves(const TransformerBlockOptions& o,
                          const TransformerBlockParameters<T, W>& p, In<T, 3> x_in,
                          const FeedForwardCall& call, TransformerBlockCache<T>& cache,
                          const Context& context, const Attend& attend_to) {
  cache.module = o;
  cache.x = uniform_rows(x_in, cache.x_copy, context.memory);
  const auto feed_forward = [&](In<T, 3> x) {
    Tensor<T, 3> y = like<T>(x, context);
    cache.feed_forward.call = call;
    cache.feed_forward.saved = cache.saved;
    feed_forward_forward<T>(o.feed_forward(), p.feed_forward, merge_rows(x), cache.feed_forward,
                            merge_rows(y), context);
    return y;
  };
  cache.h = half_forward<T>({o, p.norm1}, cache.x, cache.first, cache.saved, context, attend_to);
  return half_forward<T>({o, p.norm2}, cache.h, cache.second, cache.saved, context, feed_forward);
}

/// What the branches of pre-LN read: what the norms gave, where that is there.
template <class T>
void view_branch_inputs(TransformerBlockCache<T>& cache) {
  if (!cache.module.norm_first) return;
  MultiHeadAttentionCache<T>& attention = cache.attention;
  attention.query = attention.key = attention.value = cache.first.normed;
  cache.feed_forward.x = merge_rows(In<T, 3>(cache.second.normed));
}

/// x is what a cache views, in place of the floats that forward read.
template <class T>
void view_block_input(TransformerBlockCache<T>& cache, const ViewedInput<T, 3>& x) {
  cache.x = x;
  if (cache.module.norm_first) {
    cache.first.norm_input = x;
  } else {
    cache.attention.query = cache.attention.key = cache.attention.value = x;
  }
}

template <std::same_as<float> T>
TransformerHalfCache<T> wide_half_cache(const TransformerHalfCache<T>& cache, const Saved& saved,
                                        const Context& context) {
  TransformerHalfCache<T> wide;
  wide.norm_input = cache.norm_input;
  wide.normed = widen_saved(cache.normed, saved, context);
  wide.mean = contiguous(cache.mean, context.memory);
  wide.rstd = contiguous(cache.rstd, context.memory);
  return wide;
}

/// A cache of the numbers that another keeps in 16 bits, of which it views the rest: what backward
/// reads. Throws std::bad_alloc.
template <std::same_as<float> T>
TransformerBlockCache<T> wide_block_cache(const TransformerBlockCache<T>& cache,
                                          const Context& context) {
  TransformerBlockCache<T> wide;
  wide.filled = cache.filled;
  wide.module = cache.module;
  wide.x = cache.x;
  wide.first = wide_half_cache(cache.first, cache.saved, context);
  wide.attention = wide_attention_cache(cache.attention, context);
  wide.second = wide_half_cache(cache.second, cache.saved, context);
  wide.feed_forward = wide_feed_forward_cache(cache.feed_forward, context);
  view_branch_inputs(wide);
  return wide;
}

/// y [B, L, D] of x_in [B, L, D], into a cache that is fresh; after a throw it is to be dropped.
/// Where `training`, it keeps what backward reads. Throws as its halves do, std::bad_alloc.
template <class T, class W>
Tensor<T, 3> transformer_block_forward(const TransformerBlockOptions& o,
                                       const TransformerBlockParameters<T, W>& p, In<T, 3> x_in,
                                       const TransformerBlockCall<T>& call,
                                       TransformerBlockCache<T>& cache, bool training,
                                       const Context& context) {
  if (training) cache.saved = saved_of<T>(context, call.path);
  const auto attend_to = [&](In<T, 3> x) {
    return multi_head_attention_forward<T>(o.attention(), p.attention, {x, x, x, true},
                                           call.attention(), cache.attention, training, context);
  };
  Tensor<T, 3> y = block_halves<T>(o, p, x_in, call.feed_forward(), cache, context, attend_to);
  view_branch_inputs(cache);
  cache.filled = true;
  return y;
}

/// Throws ShapeError unless every gradient has the shape of its parameter and shares no memory with
/// dy.
template <class T, class W>
void require_block_gradients(const TransformerBlockParameters<T, W>& p,
                             const TransformerBlockGradients<T>& gradients, const Footprint& dy) {
  constexpr std::string_view function = "TransformerBlock::backward";
  const auto check = [&](const char* name, const Tensor<T, 1>& mine, const Tensor<T, 1>& theirs) {
    require_shape(function, name, mine, theirs.shape(), "zero_gradients()");
    require_disjoint(function, {name, mine}, {&dy, 1});
  };
  check("gradients.norm1.gamma", gradients.norm1.gamma, p.norm1.gamma);
  check("gradients.norm1.beta", gradients.norm1.beta, p.norm1.beta);
  check("gradients.norm2.gamma", gradients.norm2.gamma, p.norm2.gamma);
  check("gradients.norm2.beta", gradients.norm2.beta, p.norm2.beta);
  constexpr std::string_view of_attention = "MultiHeadAttention::backward",
                             of_feed_forward = "FeedForward::backward";
  gradients.attention.require_shapes_of(p.attention, of_attention);
  gradients.attention.require_clear_of(of_attention, dy);
  require_feed_forward_gradients(of_feed_forward, p.feed_forward, gradients.feed_forward);
  require_gradients_clear_of(of_feed_forward, gradients.feed_forward, dy);
}

/// dx [B, L, D] of dy_in [B, L, D] and what forward kept; adds to gradients. A cache in 16 bits is
/// widened first. Throws ShapeError before anything is added, std::bad_alloc.
template <class T, class W>
Tensor<T, 3> transformer_block_backward(const TransformerBlockOptions& o,
                                        const TransformerBlockParameters<T, W>& p, In<T, 3> dy_in,
                                        const TransformerBlockCache<T>& cache,
                                        TransformerBlockGradients<T>& gradients,
                                        const Context& context) {
  if constexpr (std::same_as<T, float>) {
    if (!cache.saved.exact()) {
      return transformer_block_backward(o, p, dy_in, wide_block_cache(cache, context), gradients,
                                        context);
    }
  }
  Tensor<T, 3> dy_storage, dh = like<T>(cache.x, context), dx = like<T>(cache.x, context);
  const In<T, 3> dy = uniform_rows(dy_in, dy_storage, context.memory);
  // The second half
  HalfBackward<T> second({o, p.norm2}, cache.second, dy, context);
  Tensor<T, 3> d_read = like<T>(cache.x, context);
  FeedForwardBackward<T, W> feed_forward(o.feed_forward(), p.feed_forward,
                                         merge_rows(second.d_branch()), cache.feed_forward,
                                         merge_rows(d_read), context);
  second.finish(std::move(d_read), dh, context);
  // The first half. Attention writes its gradients last; nothing that follows can fail.
  HalfBackward<T> first({o, p.norm1}, cache.first, dh, context);
  auto d_attended = multi_head_attention_backward<T>(o.attention(), p.attention, first.d_branch(),
                                                     cache.attention, gradients.attention, context);
  first.finish(std::move(d_attended.query), dx, context);
  feed_forward.add_to(gradients.feed_forward, context);
  second.add_to(gradients.norm2, context);
  first.add_to(gradients.norm1, context);
  return dx;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
