// Weights of a MultiHeadAttention, and their gradients: plain tensors, walked by name.
#pragma once

#include <array>
#include <string>

#include "headwise/nn/multi_head_attention_options.hpp"
#include "headwise/nn/named.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// Weights are [in, out]. W_Q, W_K and W_V are the columns Q | K | V of one matrix where their
/// inputs are equally wide, head i in its own d columns; and three matrices where they are not. The
/// matrices are kept as numbers of type W.
template <Scalar T, KeptAs<T> W = T>
struct MultiHeadAttentionParameters {
  Tensor<W, 2> w_qkv;    // [D, H d + G d + G dv]; absent where kdim or vdim differ from D
  Tensor<W, 2> w_q;      // [D, H d]       only where w_qkv is absent
  Tensor<W, 2> w_k;      // [kdim, G d]    only where w_qkv is absent
  Tensor<W, 2> w_v;      // [vdim, G dv]   only where w_qkv is absent
  Tensor<W, 2> w_o;      // [H dv, D]
  Tensor<T, 1> b_q;      // [H d]     each bias absent where it is not asked for
  Tensor<T, 1> b_k;      // [G d]
  Tensor<T, 1> b_v;      // [G dv]
  Tensor<T, 1> b_o;      // [D]
  Tensor<T, 1> gamma;    // [D]
  Tensor<T, 1> beta;     // [D]
  Tensor<T, 1> gamma_q;  // [d]     of qk_norm, each for all heads
  Tensor<T, 1> gamma_k;  // [d]
  // What is done to scores, as in ScoreOptions; each absent where it is not asked for:
  Tensor<T, 1> sinks;                           // [H]
  Tensor<T, 1> alibi_slopes;                    // [H]
  Tensor<T, 2> relative_bias;                   // [H, 2 R + 1]
  Index q_width = 0, k_width = 0, v_width = 0;  // columns of W_Q, W_K, W_V

  MultiHeadAttentionParameters() = default;

  /// All 0. The options are resolved ones.
  explicit MultiHeadAttentionParameters(
      const MultiHeadAttentionOptions& o,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : q_width(o.q_width()), k_width(o.k_width()), v_width(o.v_width()) {
    const auto matrix = [&](Index in, Index out) { return Tensor<W, 2>({in, out}, memory); };
    const auto vector = [&](Index width) { return Tensor<T, 1>({width}, memory); };
    if (o.fused()) {
      w_qkv = matrix(o.d_model, q_width + k_width + v_width);
    } else {
      w_q = matrix(o.d_model, q_width);
      w_k = matrix(o.kdim, k_width);
      w_v = matrix(o.vdim, v_width);
    }
    w_o = matrix(o.context_width(), o.d_model);
    if (o.q_bias) b_q = vector(q_width);
    if (o.k_bias) b_k = vector(k_width);
    if (o.v_bias) b_v = vector(v_width);
    if (o.o_bias) b_o = vector(o.d_model);
    if (o.layer_norm && o.layer_norm_affine) {
      gamma = vector(o.d_model);
      beta = vector(o.d_model);
    }
    if (o.qk_norm && o.qk_norm_affine) {
      gamma_q = vector(o.d_head);
      gamma_k = vector(o.d_head);
    }
    if (o.sinks) sinks = vector(o.num_heads);
    if (o.alibi) alibi_slopes = vector(o.num_heads);
    if (o.relative_reach > 0) {
      relative_bias = Tensor<T, 2>({o.num_heads, 2 * o.relative_reach + 1}, memory);
    }
  }

  /// Whether W_Q, W_K and W_V are columns of w_qkv.
  bool fused() const { return w_qkv.size() != 0; }

  /// Each projection by itself, [D, H d], [kdim, G d] and [vdim, G dv]: a view, whichever way it is
  /// stored.
  ///@{
  TensorView<W, 2> W_Q() { return fused() ? slice(w_qkv, 1, 0, q_width) : as_view(w_q); }
  TensorView<W, 2> W_K() { return fused() ? slice(w_qkv, 1, q_width, k_width) : as_view(w_k); }
  TensorView<W, 2> W_V() {
    return fused() ? slice(w_qkv, 1, q_width + k_width, v_width) : as_view(w_v);
  }
  In<W, 2> W_Q() const { return fused() ? slice(w_qkv, 1, 0, q_width) : as_view(w_q); }
  In<W, 2> W_K() const { return fused() ? slice(w_qkv, 1, q_width, k_width) : as_view(w_k); }
  In<W, 2> W_V() const {
    return fused() ? slice(w_qkv, 1, q_width + k_width, v_width) : as_view(w_v);
  }
  ///@}

  /// f(name, view) for each parameter that is there; names W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O,
  /// gamma, beta, gamma_Q, gamma_K, sinks, alibi_slopes, relative_bias behind `prefix`. Views are
  /// writable where this is not const.
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
    for (const auto& [name, view] : matrices_of(self))
      detail::call_named(f, prefix + name, as_view(view));
    for (const auto& [name, vector] : vectors_of(self)) {
      if (!vector->absent()) detail::call_named(f, prefix + name, as_view(*vector));
    }
    if (!self.relative_bias.absent())
      detail::call_named(f, prefix + "relative_bias", as_view(self.relative_bias));
  }
  template <class Self>
  static auto matrices_of(Self& self) {
    using detail::Named;
    return std::array{Named{"W_Q", self.W_Q()}, Named{"W_K", self.W_K()}, Named{"W_V", self.W_V()},
                      Named{"W_O", as_view(self.w_o)}};
  }
  template <class Self>
  static auto vectors_of(Self& self) {
    using detail::Named;
    return std::array{Named{"b_Q", &self.b_q},         Named{"b_K", &self.b_k},
                      Named{"b_V", &self.b_v},         Named{"b_O", &self.b_o},
                      Named{"gamma", &self.gamma},     Named{"beta", &self.beta},
                      Named{"gamma_Q", &self.gamma_q}, Named{"gamma_K", &self.gamma_k},
                      Named{"sinks", &self.sinks},     Named{"alibi_slopes", &self.alibi_slopes}};
  }
};

/// The gradients, in tensors of the parameters' shapes. A backward call adds to them.
template <Scalar T>
struct MultiHeadAttentionGradients : MultiHeadAttentionParameters<T> {
  using MultiHeadAttentionParameters<T>::MultiHeadAttentionParameters;

  /// Of what changes scores, where a call's is learned: views of tensors of the caller's, added to.
  ScoreGradients<T> score = {};

  /// Each gradient by its textbook name, in the shape of its parameter; absent where that is.
  ///@{
  In<T, 2> grad_W_Q() const { return this->W_Q(); }
  In<T, 2> grad_W_K() const { return this->W_K(); }
  In<T, 2> grad_W_V() const { return this->W_V(); }
  In<T, 2> grad_W_O() const { return this->w_o; }
  In<T, 1> grad_b_Q() const { return this->b_q; }
  In<T, 1> grad_b_K() const { return this->b_k; }
  In<T, 1> grad_b_V() const { return this->b_v; }
  In<T, 1> grad_b_O() const { return this->b_o; }
  In<T, 1> grad_gamma() const { return this->gamma; }
  In<T, 1> grad_beta() const { return this->beta; }
  In<T, 1> grad_gamma_Q() const { return this->gamma_q; }
  In<T, 1> grad_gamma_K() const { return this->gamma_k; }
  In<T, 1> grad_sinks() const { return this->sinks; }
  In<T, 1> grad_alibi_slopes() const { return this->alibi_slopes; }
  In<T, 2> grad_relative_bias() const { return this->relative_bias; }
  ///@}

  /// Everything back to 0, what `score` views too.
  void zero() {
    this->for_each([](const std::string&, auto view) { fill(view, T(0)); });
    score.zero();
  }
  /// Throws ShapeError unless every gradient has the shape of its parameter in `expected`.
  template <class W>
  void require_shapes_of(const MultiHeadAttentionParameters<T, W>& expected,
                         std::string_view function) const {
    const auto check = [&](const char* name, const auto& mine, const auto& theirs) {
      require_shape(function, name, mine, theirs.shape(), "zero_gradients()");
    };
    require_no_second(function, "d_sinks", this->sinks, score.d_sinks);
    require_no_second(function, "d_alibi_slopes", this->alibi_slopes, score.d_alibi_slopes);
    require_no_second(function, "d_relative_bias", this->relative_bias, score.d_relative_bias);
    for_each_storage(*this, expected, check);
    // Of modules whose projections differ, what is fused may be alike.
    check("gradients.W_Q", this->W_Q(), expected.W_Q());
    check("gradients.W_K", this->W_K(), expected.W_K());
    check("gradients.W_V", this->W_V(), expected.W_V());
  }
  /// Throws ShapeError where a gradient shares memory with what backward reads while it adds to it.
  void require_clear_of(std::string_view function, const detail::Footprint& read) const {
    for_each_storage(*this, *this, [&](const char* name, const auto& mine, const auto&) {
      require_disjoint(function, {name, mine}, {&read, 1});
    });
  }
  /// this += other. Throws ShapeError, before anything is added, unless all shapes agree.
  void add(const MultiHeadAttentionGradients& other) {
    require_shapes_of(other, "MultiHeadAttentionGradients::add");
    for_each_storage(*this, other, [](const char*, auto& mine, const auto& theirs) {
      const Index count = mine.size();
      for (Index n = 0; n < count; ++n) mine.data()[n] = mine.data()[n] + theirs.data()[n];
    });
  }

 private:
  /// What is learned by the module is not learned by a call, too.
  template <class Own, class Given>
  static void require_no_second(std::string_view function, const char* name, const Own& own,
                                const Given& given) {
    require(own.absent() || given.absent(), function, "gradients.score.", name,
            " is given, expected none: the module has a gradient of its own");
  }
  template <class Self, class Other, class F>
  static void for_each_storage(Self& self, const Other& other, F&& f) {
    f("gradients.w_qkv", self.w_qkv, other.w_qkv);
    f("gradients.w_q", self.w_q, other.w_q);
    f("gradients.w_k", self.w_k, other.w_k);
    f("gradients.w_v", self.w_v, other.w_v);
    f("gradients.w_o", self.w_o, other.w_o);
    f("gradients.b_q", self.b_q, other.b_q);
    f("gradients.b_k", self.b_k, other.b_k);
    f("gradients.b_v", self.b_v, other.b_v);
    f("gradients.b_o", self.b_o, other.b_o);
    f("gradients.gamma", self.gamma, other.gamma);
    f("gradients.beta", self.beta, other.beta);
    f("gradients.gamma_q", self.gamma_q, other.gamma_q);
    f("gradients.gamma_k", self.gamma_k, other.gamma_k);
    f("gradients.sinks", self.sinks, other.sinks);
    f("gradients.alibi_slopes", self.alibi_slopes, other.alibi_slopes);
    f("gradients.relative_bias", self.relative_bias, other.relative_bias);
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// f(name, parameter, gradient) for each parameter: what an optimiser walks.
///   for_each_with_gradient(p, g, [](auto& name, auto w, auto dw) { w = w - 0.1 dw, elementwise });
/// (The two may differ in scalar type: differences are taken in a wider one.)
/// Throws ShapeError, before the first f, unless each parameter has a gradient of its shape.
template <Scalar T, Scalar U, class F>
void for_each_with_gradient(MultiHeadAttentionParameters<T>& parameters,
                            const MultiHeadAttentionGradients<U>& gradients, F&& f) {
  const auto for_each_pair = [&](auto&& g) {
    parameters.for_each([&](const std::string& name, auto parameter) {
      constexpr int rank = decltype(parameter)::rank;
      In<U, rank> found;
      gradients.for_each([&](const std::string& gradient_name, auto gradient) {
        if constexpr (rank == decltype(gradient)::rank) {
          if (gradient_name == name) found = gradient;
        }
      });
      g(name, parameter, found);
    });
  };
  for_each_pair([](const std::string& name, auto parameter, auto gradient) {
    require_shape("for_each_with_gradient", "the gradient of " + name, gradient, parameter.shape(),
                  "the shape of ", name);
  });
  for_each_pair(f);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The module is whole. Of resolved options.
template <class T, class W>
void require_whole(std::string_view function, const MultiHeadAttentionOptions& o,
                   const MultiHeadAttentionParameters<T, W>& p) {
  require_shape(function, "W_O", In<W, 2>(p.w_o), Shape{o.context_width(), o.d_model},
                "the options: a module that was moved from has none");
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
