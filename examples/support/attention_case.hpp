// A reference case of kind sdpa: attention alone, with whatever is done to its scores, and the
// gradients of all that is real-valued in it.
#pragma once

#include <string>
#include <utility>

#include "case_masks.hpp"
#include "headwise/io/reference_case.hpp"
#include "headwise/io/safetensors_writer.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/rms_norm.hpp"
#include "headwise/ops/rotary.hpp"
#include "headwise/runtime/path.hpp"
#include "headwise/score/alibi.hpp"

namespace headwise::examples {

/// What is done to the scores of a case: the tensors that its options view, and the gradients of
/// those that are learned.
template <class T>
class CaseScores {
 public:
  explicit CaseScores(const ReferenceCase& c) : masks_(c) {
    options.mask = masks_.mask();
    if (c.scale) options.scale = T(*c.scale);
    if (c.softcap != 0) options.score.softcap = T(c.softcap);
    if (c.alibi) options.score.alibi_slopes = slopes_ = alibi_slopes<T>(c.num_heads);
    if (c.learned_scale) gradients.d_scale = d_scale_ = Tensor<T, 1>(Shape{1});
    learn(c, "alibi_slopes", slopes_, d_slopes_, options.score.alibi_slopes,
          gradients.d_alibi_slopes);
    learn(c, "relative_bias", table_, d_table_, options.score.relative_bias,
          gradients.d_relative_bias);
    learn(c, "sinks", sinks_, d_sinks_, options.score.sinks, gradients.d_sinks);
    if (!options.mask.biases().empty()) {
      gradients.d_biases[0] = d_bias_ = Tensor<T, 4>(options.mask.biases()[0].values.shape());
    }
  }
  CaseScores(const CaseScores&) = delete;
  CaseScores& operator=(const CaseScores&) = delete;

  AttentionOptions<T> options;
  ScoreGradients<T> gradients;

  void add_gradients(SafetensorsWriter& results) const {
    const auto add = [&](const char* name, const auto& d) {
      if (!d.absent()) results.add(name, d);
    };
    add("grad.scale", d_scale_);
    add("grad.alibi_slopes", d_slopes_);
    add("grad.relative_bias", d_table_);
    add("grad.sinks", d_sinks_);
    if (!d_bias_.absent() && d_bias_.extent(0) == 1 && d_bias_.extent(1) == 1) {
      add("grad.attn_mask", In<T, 2>(d_bias_.data(), {d_bias_.extent(2), d_bias_.extent(3)}));
    } else {
      add("grad.attn_mask", d_bias_);
    }
  }

 private:
  template <int R>
  void learn(const ReferenceCase& c, const char* name, Tensor<T, R>& x, Tensor<T, R>& d,
             In<T, R>& of, InOut<T, R>& to) {
    if (!c.file.contains(name)) return;
    of = x = c.file.get<T, R>(name);
    to = d = Tensor<T, R>(x.shape());
  }

  CaseMasks<T> masks_;
  Tensor<T, 1> slopes_, sinks_, d_slopes_, d_sinks_, d_scale_;
  Tensor<T, 2> table_, d_table_;
  Tensor<T, 4> d_bias_;
};

/// Rows of queries or keys over their root mean square, where a case has gains for them.
template <class T>
class CaseNorm {
 public:
  CaseNorm(const ReferenceCase& c, const char* name) : name_(name), epsilon_(T(c.epsilon)) {
    if (c.file.contains(name))
      gain_ = c.file.get<T, 1>(name), d_gain_ = Tensor<T, 1>(gain_.shape());
  }

  void forward(Tensor<T, 4>& x, const Context& context) {
    if (gain_.absent()) return;
    x_ = x;
    rstd_ = Tensor<T, 1>(Shape{rows(x).extent(0)});
    rms_norm_forward(In<T, 2>(rows(x_)), gain_, epsilon_, rows(x), rstd_, context);
  }
  void backward(Tensor<T, 4>& d, const Context& context) {
    if (gain_.absent()) return;
    Tensor<T, 4> dx(d.shape());
    rms_norm_backward(In<T, 2>(rows(d)), rows(x_), gain_, rstd_, rows(dx), d_gain_, context);
    d = std::move(dx);
  }
  void add_gradients(SafetensorsWriter& results) const {
    if (!gain_.absent()) results.add("grad." + std::string(name_), d_gain_);
  }

 private:
  static Out<T, 2> rows(Tensor<T, 4>& x) {
    return {x.data(), {x.size() / x.extent(3), x.extent(3)}};
  }

  const char* name_;
  T epsilon_;
  Tensor<T, 1> gain_, d_gain_, rstd_;
  Tensor<T, 4> x_;
};

template <class T>
void run_sdpa(const ReferenceCase& c, Path path, const Context& context,
              SafetensorsWriter& results) {
  auto q = c.file.get<T, 4>("query");                // [B, H, L, d]
  auto k = c.file.get<T, 4>("key");                  // [B, G, S, d]
  const auto v = c.file.get<T, 4>("value");          // [B, G, S, dv]
  const auto d_o = c.file.get<T, 4>("grad_output");  // [B, H, L, dv]
  if (q.extent(1) != c.num_heads || k.extent(1) != c.num_kv_heads) {
    detail::refuse_case(c.name, "query is " + q.shape().format() + ", key is " +
                                    k.shape().format() + ", expected num_heads " +
                                    std::to_string(c.num_heads) + " and num_kv_heads " +
                                    std::to_string(c.num_kv_heads) + " on axis 1");
  }
  CaseNorm<T> norm_of_q(c, "q_norm"), norm_of_k(c, "k_norm");
  norm_of_q.forward(q, context);
  norm_of_k.forward(k, context);
  if (c.rotary) {
    rotary_forward(q, *c.rotary, q, context);
    rotary_forward(k, *c.rotary, k, context);
  }

  CaseScores<T> scores(c);
  Tensor<T, 4> o(Shape{q.extent(0), q.extent(1), q.extent(2), v.extent(3)});
  Tensor<T, 4> lse(Shape{q.extent(0), q.extent(1), q.extent(2), Index{2}});
  Tensor<T, 4> dq(q.shape()), dk(k.shape()), dv(v.shape());
  const AttentionGradients<T> gradients{dq, dk, dv, scores.gradients};
  flash_attention_forward(q, k, v, scores.options, o, lse, context);
  if (path == Path::materialized) {
    // This path keeps weights and no logsumexp: that one stays the tiled path's.
    Tensor<T, 4> weights(Shape{q.extent(0), q.extent(1), q.extent(2), k.extent(2)});
    attention_forward(q, k, v, scores.options, weights, o, context);
    attention_backward(d_o, {q, k, v}, weights, scores.options, gradients, context);
    results.add("weights", weights);
  } else {
    flash_attention_backward(d_o, {q, k, v}, o, lse, scores.options, gradients, context);
  }
  if (c.rotary) {
    rotary_backward(dq, *c.rotary, dq, context);
    rotary_backward(dk, *c.rotary, dk, context);
  }
  norm_of_q.backward(dq, context);
  norm_of_k.backward(dk, context);
  results.add("output", o);
  Tensor<T, 3> logsumexp(Shape{q.extent(0), q.extent(1), q.extent(2)});
  for_each_index(logsumexp.shape(),
                 [&](const Shape<3>& at) { logsumexp(at) = lse(at[0], at[1], at[2], 0); });
  results.add("logsumexp", logsumexp);
  results.add("grad.query", dq);
  results.add("grad.key", dk);
  results.add("grad.value", dv);
  scores.add_gradients(results);
  norm_of_q.add_gradients(results);
  norm_of_k.add_gradients(results);
}

}  // namespace headwise::examples
