// Attention as one node of the tape, on either path.
#pragma once

#include "headwise/autograd/views.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/path.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What an attention is called with, but its inputs' elements.
template <class T>
struct AttentionNode {
  AttentionInputs<T> inputs;
  In<T, 4> o;
  In<T, 4> kept;  // lse [B, H, L, 2], or the weights [B, H, L, S]
  AttentionOptions<T> options;
  Path path;

  void backward(const In<T, 4>& d_o, Out<T, 4> dq, Out<T, 4> dk, Out<T, 4> dv,
                const ScoreGradients<T>& score, const Context& context) const {
    const AttentionGradients<T> to{dq, dk, dv, score};
    if (path == Path::flash) {
      flash_attention_backward(d_o, inputs, o, kept, options, to, context);
    } else {
      attention_backward(d_o, inputs, kept, options, to, context);
    }
  }
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What changes the scores of an attention and is learned; {} for what is not there. What is not
/// learned stands in the options.
template <Scalar T>
struct LearnedScores {
  Variable<T, 1> scale = {};          // [1], instead of 1 / sqrt(d)
  Variable<T, 1> alibi_slopes = {};   // [H]
  Variable<T, 2> relative_bias = {};  // [H or 1, 2 R + 1]
  Variable<T, 1> sinks = {};          // [H]
  Variable<T, 4> bias = {};           // [B or 1, H or 1, L or 1, S or 1]
  /// [P], the parameters of the options' score function, which was made of their values.
  Variable<T, 1> function = {};
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The options with what is learned, of which backward reads the values, too.
template <class T>
AttentionOptions<T> with_learned(std::string_view function, AttentionOptions<T> options,
                                 const LearnedScores<T>& learned, Recording<T>& call) {
  const auto take = [&](std::string_view name, auto& option, bool given, const auto& variable) {
    if (variable.absent()) return;
    require(!given, function, name, " is in the options and learned, expected one of them");
    option = call.save(variable);
  };
  ScoreOptions<T>& score = options.score;
  take("alibi_slopes", score.alibi_slopes, !score.alibi_slopes.absent(), learned.alibi_slopes);
  take("sinks", score.sinks, !score.sinks.absent(), learned.sinks);
  take("relative_bias", score.relative_bias, !score.relative_bias.absent(), learned.relative_bias);
  if (!learned.function.absent()) {
    require(!score.function.absent(), function,
            "function is learned, expected the score function that has its numbers as parameters "
            "in the options");
    require_shape(function, "function", learned.function.value(), Shape{score.function.parameters},
                  "the parameters of the score function");
    for (Index p = 0; p < score.function.parameters; ++p) {
      const T now = learned.function.value()(p), made_of = score.function.values[p];
      require(!(now < made_of || made_of < now), function, "function's parameter ", p,
              " is another number than the score function in the options was made of, expected "
              "one that is made of these (anew where an optimiser has changed them)");
    }
  }
  if (!learned.bias.absent()) options.mask.add(BiasMask<T>{call.save(learned.bias)});
  if (learned.scale.absent()) return options;
  require(!options.scale, function, "scale is in the options and learned, expected one of them");
  require_shape(function, "scale", learned.scale.value(), Shape{1}, "one for all heads");
  options.scale = call.save(learned.scale)(0);
  return options;
}

/// The recording of an attention, the last part of it: o as a variable, and how its gradient goes
/// on through the node to q, k, v and what is learned.
template <class T, int R, class Node>
Variable<T, R> finish_attention(Recording<T>& call, const Variable<T, R>& q,
                                const Variable<T, R>& k, const Variable<T, R>& v,
                                const LearnedScores<T>& learned, In<T, R> o, const Node& node) {
  const auto to_q = call.target(q), to_k = call.target(k), to_v = call.target(v);
  const auto to_scale = call.added_target(learned.scale),
             to_slopes = call.added_target(learned.alibi_slopes),
             to_sinks = call.added_target(learned.sinks),
             to_function = call.added_target(learned.function);
  const auto to_table = call.added_target(learned.relative_bias);
  const auto to_bias = call.added_target(learned.bias);
  const auto backward = [=](BackwardPass<T>& pass, In<T, R> d_o) {
    const auto into = [&](Out<T, R> dq, Out<T, R> dk, Out<T, R> dv, InOut<T, 1> d_scale,
                          InOut<T, 1> d_slopes, InOut<T, 1> d_sinks, InOut<T, 1> d_function,
                          InOut<T, 2> d_table, InOut<T, 4> d_bias) {
      ScoreGradients<T> score{d_scale, d_slopes, d_table, d_sinks, d_function, {}};
      if (!d_bias.absent()) score.d_biases[node.options.mask.biases().size() - 1] = d_bias;
      node.backward(d_o, dq, dk, dv, score, pass.context());
    };
    pass.assign(into, to_q, to_k, to_v, to_scale, to_slopes, to_sinks, to_function, to_table,
                to_bias);
  };
  return call.finish(o, backward);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// o = softmax(scale q k^T + bias over visible keys) v.
///
/// q         [B, H, L, d]
/// k         [B, G, S, d]    G divides H
/// v         [B, G, S, dv]
/// options                   masks, scale, dropout and what changes scores; what they view has to
///                           outlive backward
/// learned                   what changes scores and has a gradient: added to the options'
/// returns   [B, H, L, dv]   laid out as [B, L, H dv], so that merge_heads of it is a view
///
/// Path::flash keeps q, k, v, o and two numbers a query, Path::materialized q, k, v and the
/// weights. Where q, k and v are slices of one projection, their gradients are written side by side
/// into its gradient. Throws as flash_attention_forward or attention_forward, ArgumentError where
/// the options have what is learned, too.
template <Scalar T>
Variable<T, 4> attention(const Variable<T, 4>& q, const Variable<T, 4>& k, const Variable<T, 4>& v,
                         const AttentionOptions<std::type_identity_t<T>>& options,
                         const LearnedScores<std::type_identity_t<T>>& learned,
                         Path path = Path::flash) {
  Recording<T> call({"attention"}, q, k, v, learned.scale, learned.alibi_slopes,
                    learned.relative_bias, learned.sinks, learned.bias, learned.function);
  const Index B = q.extent(0), H = q.extent(1), L = q.extent(2);
  const AttentionOptions<T> all = detail::with_learned("attention", options, learned, call);
  const Out<T, 4> heads = call.output(Shape{B, L, H, v.extent(3)});
  const Out<T, 4> o = transpose(heads, 1, 2);
  Out<T, 4> kept;
  if (path == Path::flash) {
    kept = call.kept(Shape{B, H, L, 2});
    flash_attention_forward(q.value(), k.value(), v.value(), all, o, kept, call.context());
    call.save_output();
  } else {
    kept = call.scratch(Shape{B, H, L, k.extent(2)});
    attention_forward(q.value(), k.value(), v.value(), all, kept, o, call.context());
  }
  const detail::AttentionNode<T> node{
      {call.save(q), call.save(k), call.save(v)}, o, kept, all, path};
  return detail::finish_attention(call, q, k, v, learned, In<T, 4>(o), node);
}
/// The same, nothing learned but q, k and v.
template <Scalar T>
Variable<T, 4> attention(const Variable<T, 4>& q, const Variable<T, 4>& k, const Variable<T, 4>& v,
                         const AttentionOptions<std::type_identity_t<T>>& options = {},
                         Path path = Path::flash) {
  return attention(q, k, v, options, LearnedScores<T>{}, path);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
