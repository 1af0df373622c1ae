// A random configuration of multi-head attention as a pair: its inputs, a module's parameters, and
// what changes scores and is learned, in one vector.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "support/dual_pair.hpp"
#include "support/random_call.hpp"

namespace headwise_tests {

/// How many numbers of a configuration change scores and are learned.
inline Index score_numbers(const RandomConfiguration& c) {
  Index count = 0;
  ScoreTensors<double> scores = c.score.tensors;
  scores.for_each([&](const char*, const auto& x) { count += x.size(); });
  return count;
}
/// Sets the last numbers of x to those of the configuration: a function of one's own and biases of
/// -1e9 are not for any numbers.
inline void put_scores(const RandomConfiguration& c, Tensor1<double>& x) {
  double* next = x.end() - score_numbers(c);
  ScoreTensors<double> scores = c.score.tensors;
  scores.for_each([&](const char*, const auto& y) { next = std::copy(y.begin(), y.end(), next); });
}
/// As many numbers, cut off.
template <class T>
ScoreTensors<T> cut_scores(const RandomConfiguration& c, Cut<T>& cut) {
  ScoreTensors<T> scores = c.score.tensors.converted<T>();
  scores.for_each([&](const char*, auto& x) { copy(cut.tensor(x.shape()), as_view(x)); });
  return scores;
}
/// And put where they were cut off.
template <class T>
void put_scores(ScoreTensors<T>& scores, Cut<T>& cut) {
  scores.for_each([&](const char*, auto& x) { copy(as_view(x), cut.tensor(x.shape())); });
}

/// Attention alone: q, k, v, then what changes scores.
struct AttentionPair {
  const RandomConfiguration& c;
  Path path;

  Shape<4> q_shape() const { return {c.B, c.options.num_heads, c.L, c.options.d_head}; }
  Shape<4> k_shape() const { return {c.B, c.options.num_kv_heads, c.S, c.options.d_head}; }
  Shape<4> v_shape() const { return {c.B, c.options.num_kv_heads, c.S, c.options.d_value}; }
  Shape<4> o_shape() const { return {c.B, c.options.num_heads, c.L, c.options.d_value}; }
  Shape<4> kept_shape() const {
    return {c.B, c.options.num_heads, c.L, path == Path::flash ? 2 : c.S};
  }
  Index inputs() const {
    return q_shape().size() + k_shape().size() + v_shape().size() + score_numbers(c);
  }
  Index outputs() const { return o_shape().size(); }

  template <class T>
  struct Forward {
    AttentionInputs<T> inputs;
    ScoreTensors<T> scores;
    MovedCall<T> moved;
    Tensor4<T> kept;  // weights, or logsumexp
    Tensor1<T> o;
  };
  template <class T>
  Forward<T> run(const Tensor1<T>& x) const {
    Cut<T> cut(x);
    const auto q = cut.tensor(q_shape()), k = cut.tensor(k_shape()), v = cut.tensor(v_shape());
    auto scores = cut_scores(c, cut);
    const MovedCall<T> moved(c, scores, path);
    Forward<T> f{
        {q, k, v}, std::move(scores), moved, Tensor4<T>(kept_shape()), Tensor1<T>(outputs())};
    const Out<T, 4> o(f.o.data(), o_shape());
    const AttentionOptions<T> options = moved.call.attention();
    if (path == Path::flash) {
      flash_attention_forward<T>(q, k, v, options, o, f.kept);
    } else {
      attention_forward<T>(q, k, v, options, f.kept, o);
    }
    return f;
  }
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    return run(x).o;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    const Forward<T> f = run(x);
    Tensor1<T> dx(x.shape());
    Cut<T> cut(dx);
    const auto dq = cut.tensor(q_shape()), dk = cut.tensor(k_shape()), dv = cut.tensor(v_shape());
    ScoreTensors<T> d_scores = f.scores.zeros();
    const AttentionGradients<T> to{dq, dk, dv, d_scores.gradients()};
    const In<T, 4> d_o(dy.data(), o_shape()), o(f.o.data(), o_shape());
    const AttentionOptions<T> options = f.moved.call.attention();
    if (path == Path::flash) {
      flash_attention_backward<T>(d_o, f.inputs, o, f.kept, options, to);
    } else {
      attention_backward<T>(d_o, f.inputs, f.kept, options, to);
    }
    put_scores(d_scores, cut);
    return dx;
  }
};

/// A module: query, key and value (query alone where they are one), its parameters, then what
/// changes scores.
struct ModulePair {
  const RandomConfiguration& c;
  Path path;

  Shape<3> query_shape() const { return {c.B, c.L, c.options.d_model}; }
  Shape<3> key_shape() const { return {c.B, c.self ? 0 : c.S, c.options.kdim}; }
  Shape<3> value_shape() const { return {c.B, c.self ? 0 : c.S, c.options.vdim}; }
  Index inputs() const {
    Index count = query_shape().size() + key_shape().size() + value_shape().size();
    count += score_numbers(c);
    MultiHeadAttentionParameters<double>(c.options).for_each(
        [&](const std::string&, auto view) { count += view.size(); });
    return count;
  }
  Index outputs() const { return query_shape().size(); }

  template <class T>
  struct Forward {
    TensorView<T, 3> query, key, value;
    ScoreTensors<T> scores;
    MultiHeadAttention<T> module;
    std::shared_ptr<BentFunction<T>> function;
    MultiHeadAttentionCache<T> cache;
    Tensor<T, 3> y;
  };
  template <class T>
  Forward<T> run(const Tensor1<T>& x) const {
    Cut<T> cut(x);
    const auto query = cut.tensor(query_shape());
    const auto key = cut.tensor(key_shape()), value = cut.tensor(value_shape());
    Forward<T> f{query, key, value, {}, MultiHeadAttention<T>(c.options), {}, {}, {}};
    f.module.parameters().for_each([&](const std::string&, auto parameter) {
      copy(cut.tensor(parameter.shape()), parameter);
    });
    f.scores = cut_scores(c, cut);
    const MovedCall<T> moved(c, f.scores, path);
    f.function = moved.function;
    f.y = c.self ? f.module.forward(query, moved.call, f.cache)
                 : f.module.forward(query, key, value, moved.call, f.cache);
    return f;
  }
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    const Forward<T> f = run(x);
    Tensor1<T> y(outputs());
    std::copy(f.y.begin(), f.y.end(), y.begin());
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    const Forward<T> f = run(x);
    const In<T, 3> d_y(dy.data(), query_shape());
    auto gradients = f.module.zero_gradients();
    ScoreTensors<T> d_scores = f.scores.zeros();
    gradients.score = d_scores.gradients();
    Tensor1<T> dx(x.shape());
    Cut<T> cut(dx);
    if (c.self) {
      copy(as_view(f.module.backward(d_y, f.cache, gradients)), cut.tensor(query_shape()));
      cut.tensor(key_shape()), cut.tensor(value_shape());
    } else {
      const auto d = f.module.backward_cross(d_y, f.cache, gradients);
      copy(as_view(d.query), cut.tensor(query_shape()));
      copy(as_view(d.key), cut.tensor(key_shape()));
      copy(as_view(d.value), cut.tensor(value_shape()));
    }
    gradients.for_each(
        [&](const std::string&, auto gradient) { copy(gradient, cut.tensor(gradient.shape())); });
    put_scores(d_scores, cut);
    return dx;
  }
};

}  // namespace headwise_tests
