// What a FeedForward is, what one call of it is asked for, what it learns and what forward leaves.
#pragma once

#include <array>
#include <span>
#include <string>

#include "headwise/nn/init.hpp"
#include "headwise/nn/named.hpp"
#include "headwise/runtime/activation.hpp"
#include "headwise/runtime/saved.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/score/dropout_mask.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// The shape of a module.
struct FeedForwardOptions {
  Index d_model = 0;                         // D, width of input and output
  Index d_hidden = 0;                        // F, width in between; 4 D
  Activation activation = Activation::gelu;  // f
  bool gated = false;                        // f(gate) up; with silu: SwiGLU
  bool bias = true;                          // of all products
  Init init = Init::xavier_normal;           // the scale of the weights at the start
  std::uint64_t seed = 0;  // of the weights at the start: modules of one start alike

  /// All of them with every default filled in. Throws ArgumentError for what makes no module.
  FeedForwardOptions resolved() const {
    FeedForwardOptions full = *this;
    constexpr Index widest = Index{1} << 30;  // products of two widths can still be counted
    require(d_model >= 1 && d_model <= widest, "FeedForward", "d_model is ", d_model,
            ", expected 1 to 2^30");
    if (d_hidden == 0) full.d_hidden = 4 * d_model;
    require(full.d_hidden >= 1 && full.d_hidden <= widest, "FeedForward", "d_hidden is ",
            full.d_hidden, ", expected 1 to 2^30 (0: 4 d_model)");
    return full;
  }
  /// Columns of the first product: F, or 2 F where they are gate | up. Of resolved options.
  Index in_width() const { return gated ? 2 * d_hidden : d_hidden; }
  /// Whether what one of them left in a cache fits the other. Of resolved options.
  bool same_shape(const FeedForwardOptions& other) const {
    return d_model == other.d_model && d_hidden == other.d_hidden &&
           activation == other.activation && gated == other.gated;
  }
};

/// One call.
struct FeedForwardCall {
  Dropout hidden_dropout = {};  // of what the second product reads; none: inference
  Dropout output_dropout = {};  // of the output, after its bias
};

/// Weights are [in, out]; its gradients have the same form. The matrices are kept as numbers of
/// type W.
template <Scalar T, KeptAs<T> W = T>
struct FeedForwardParameters {
  Tensor<W, 2> w_in;   // [D, F], or [D, 2 F]: columns gate | up
  Tensor<T, 1> b_in;   // [F], or [2 F]; or absent
  Tensor<W, 2> w_out;  // [F, D]
  Tensor<T, 1> b_out;  // [D], or absent
  bool gated = false;  // whether w_in and b_in are gate | up

  FeedForwardParameters() = default;
  /// All 0. The options are resolved ones.
  explicit FeedForwardParameters(const FeedForwardOptions& o, std::pmr::memory_resource* memory =
                                                                  std::pmr::get_default_resource())
      : w_in({o.d_model, o.in_width()}, memory),
        w_out({o.d_hidden, o.d_model}, memory),
        gated(o.gated) {
    if (!o.bias) return;
    b_in = Tensor<T, 1>({o.in_width()}, memory);
    b_out = Tensor<T, 1>({o.d_model}, memory);
  }

  /// f(name, view) for each that is there: W_gate, W_up, W_down, b_gate, b_up, b_down behind
  /// `prefix`, those of a gate only where there is one. Views are writable where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

  /// Everything to 0, as of gradients between two steps.
  void zero() {
    for_each([](const std::string&, auto view) { fill(view, T(0)); });
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    const auto visit = [&](const std::string& kind, const auto& parts) {
      for (const auto& [name, view] : std::span(parts).subspan(self.gated ? 0 : 1)) {
        detail::call_named(f, kind + name, as_view(view));
      }
    };
    visit(prefix + "W_", parts_of(self.gated, as_view(self.w_in), as_view(self.w_out)));
    if (self.b_in.absent()) return;
    visit(prefix + "b_", parts_of(self.gated, as_view(self.b_in), as_view(self.b_out)));
  }
  /// Gate | up of `in`, and `out`: weights or biases. Without a gate that part has no width.
  template <class View>
  static auto parts_of(bool gated, const View& in, const View& out) {
    using detail::Named;
    constexpr int last = View::rank - 1;
    const Index width = in.extent(last), gate = gated ? width / 2 : 0;
    return std::array{Named{"gate", slice(in, last, 0, gate)},
                      Named{"up", slice(in, last, gate, width - gate)}, Named{"down", out}};
  }
};

/// What a forward call leaves for its backward, owned by the caller. It views x, which must outlive
/// the backward call.
template <Scalar T>
struct FeedForwardCache {
  ViewedInput<T, 2> x;          // [N, D]
  SavedTensor<T, 2> hidden;     // [N, F], or [N, 2 F]: gate | up
  SavedTensor<T, 2> activated;  // [N, F]; after its dropout
  FeedForwardOptions module;    // of the module that filled it
  FeedForwardCall call;         // what forward was asked for
  Saved saved;                  // what the tensors of SavedTensor are kept as
  bool filled = false;          // whether forward has been called with it
};

}  // namespace headwise::inline v0_1
