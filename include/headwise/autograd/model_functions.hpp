// What a language model has around its attention, on the tape: activations, rms norm, embeddings,
// tied heads, rotary positions, cross-entropy. Each calls its pair, to the same bits.
#pragma once

#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/elementwise.hpp"
#include "headwise/nn/embedding.hpp"
#include "headwise/ops/activation.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "headwise/ops/embedding.hpp"
#include "headwise/ops/packed_rotary.hpp"
#include "headwise/ops/rms_norm_heads.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// An activation of each element of x [...], which is kept. Throws as activation_forward.
template <Scalar T, int R>
Variable<T, R> activation(Activation which, const Variable<T, R>& x) {
  return apply_to_rows(
      {"activation"}, x,
      [which](In<T, 2> rows, Out<T, 2> y, const Context& context) {
        activation_forward(which, rows, y, context);
      },
      [which](In<T, 2> dy, In<T, 2> rows, Out<T, 2> dx, const Context& context) {
        activation_backward(which, dy, rows, dx, context);
      });
}
/// max(x, 0).
template <Scalar T, int R>
Variable<T, R> relu(const Variable<T, R>& x) {
  return activation(Activation::relu, x);
}
/// x Phi(x), Phi the distribution of a normal number.
template <Scalar T, int R>
Variable<T, R> gelu(const Variable<T, R>& x) {
  return activation(Activation::gelu, x);
}
/// x / (1 + e^-x).
template <Scalar T, int R>
Variable<T, R> silu(const Variable<T, R>& x) {
  return activation(Activation::silu, x);
}

/// silu(gate) up, element by element, of one shape [...]; both are kept. Where they are slices of
/// one product, their gradients are written side by side into its gradient. Throws as
/// swiglu_forward.
template <Scalar T, int R>
Variable<T, R> swiglu(const Variable<T, R>& gate, const Variable<T, R>& up) {
  const Variable<T, 2> gate_rows = as_rows(gate), up_rows = as_rows(up);
  return like_rows_of(gate.shape(), detail::apply_pair<detail::OutputSaved::no>(
                                        {"swiglu"}, gate_rows.shape(), swiglu_forward<T>,
                                        swiglu_backward<T>, gate_rows, up_rows));
}

/// Rms norm over the last axis.
///
/// x       [..., D]
/// gamma   [D]        or {} for 1
///
/// Keeps x, gamma and a number a row. Throws as rms_norm_forward.
template <Scalar T, int R>
Variable<T, R> rms_norm(const Variable<T, R>& x, const Variable<T, 1>& gamma = {},
                        const std::type_identity_t<T>& epsilon = T(1e-6)) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"rms_norm"}, rows, gamma);
  const Out<T, 2> y = call.output(rows.shape());
  const auto rstd = call.kept(Shape{rows.extent(0)});
  rms_norm_forward(rows.value(), gamma.value(), epsilon, y, rstd, call.context());
  const auto to_x = call.target(rows);
  const auto to_gamma = call.added_target(gamma);
  const In<T, 2> kept_x = call.save(rows);
  const In<T, 1> kept_gamma = call.save(gamma), kept_rstd = rstd;
  const auto backward = [=](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> dx, InOut<T, 1> dgamma) {
      rms_norm_backward(dy, kept_x, kept_gamma, kept_rstd, dx, dgamma, pass.context());
    };
    pass.assign(into, to_x, to_gamma);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// The same of queries or keys as heads, in whatever strides they come.
///
/// x       [B, H, L, d]
/// gamma   [d]        or {} for 1
///
/// Keeps x, gamma and a number a row. Throws as rms_norm_forward.
template <Scalar T>
Variable<T, 4> rms_norm(const Variable<T, 4>& x, const Variable<T, 1>& gamma = {},
                        const std::type_identity_t<T>& epsilon = T(1e-6)) {
  Recording<T> call({"rms_norm"}, x, gamma);
  const Out<T, 4> y = call.output(x.shape());
  const auto rstd = call.kept(Shape{x.extent(0), x.extent(1), x.extent(2)});
  rms_norm_forward(x.value(), gamma.value(), epsilon, y, rstd, call.context());
  const auto to_x = call.target(x);
  const auto to_gamma = call.added_target(gamma);
  const In<T, 4> kept_x = call.save(x);
  const In<T, 1> kept_gamma = call.save(gamma);
  const In<T, 3> kept_rstd = rstd;
  const auto backward = [=](BackwardPass<T>& pass, In<T, 4> dy) {
    const auto into = [&](Out<T, 4> dx, InOut<T, 1> dgamma) {
      rms_norm_backward(dy, kept_x, kept_gamma, kept_rstd, dx, dgamma, pass.context());
    };
    pass.assign(into, to_x, to_gamma);
  };
  return call.finish(In<T, 4>(y), backward);
}

/// Rows of a table, by number.
///
/// tokens    [N]      have to outlive backward
/// table     [V, D]
/// returns   [N, D]
///
/// Nothing is kept; the gradient of the table is added where it is kept. Throws as
/// embedding_forward.
template <TokenId Id, Scalar T>
Variable<T, 2> embedding(In<Id, 1> tokens, const Variable<T, 2>& table) {
  Recording<T> call({"embedding"}, table);
  const Out<T, 2> y = call.output(Shape{tokens.extent(0), table.extent(1)});
  embedding_forward(tokens, table.value(), y, call.context());
  const auto backward = [tokens, to = call.added_target(table)](BackwardPass<T>& pass,
                                                                In<T, 2> dy) {
    pass.assign([&](InOut<T, 2> dtable) { embedding_backward(dy, tokens, dtable, pass.context()); },
                to);
  };
  return call.finish(In<T, 2>(y), backward);
}

template <TokenId Id, Scalar T>
void embedding(const Tensor<Id, 1>&& temporary, const Variable<T, 2>& table) = delete;

/// Logits by the table of an embedding: h times its transpose.
///
/// h         [..., D]
/// table     [V, D]
/// returns   [..., V]
///
/// Both are kept. The table's gradient is added where it is kept, row by row, as the table lies.
/// Throws as tied_head_forward.
template <Scalar T, int R>
Variable<T, R> tied_head(const Variable<T, R>& h, const Variable<T, 2>& table) {
  const Variable<T, 2> rows = as_rows(h);
  Recording<T> call({"tied_head"}, rows, table);
  const Out<T, 2> logits = call.output(Shape{rows.extent(0), table.extent(0)});
  tied_head_forward(rows.value(), table.value(), logits, call.context());
  const auto to_h = call.optional_target(rows);
  const auto to_table = call.added_target(table);
  const In<T, 2> kept_h = call.save(rows), kept_table = call.save(table);
  const auto backward = [=](BackwardPass<T>& pass, In<T, 2> d_logits) {
    const auto into = [&](Out<T, 2> dh, InOut<T, 2> d_table) {
      tied_head_backward(d_logits, kept_h, kept_table, dh, d_table, pass.context());
    };
    pass.assign(into, to_h, to_table);
  };
  return like_rows_of(h.shape(), call.finish(In<T, 2>(logits), backward));
}

/// Queries or keys [B, H, L, d], turned by where they stand. Nothing is kept but a copy
/// of the frequencies. Throws as rotary_forward.
template <Scalar T>
Variable<T, 4> rotary(const Variable<T, 4>& x, const RotaryOptions& options) {
  Recording<T> call({"rotary"}, x);
  const Out<T, 4> y = call.output(x.shape());
  rotary_forward(x.value(), options, y, call.context());
  const auto backward = [to = call.target(x), kept = options.owned()](BackwardPass<T>& pass,
                                                                      In<T, 4> dy) {
    pass.assign([&](Out<T, 4> dx) { rotary_backward(dy, kept, dx, pass.context()); }, to);
  };
  return call.finish(In<T, 4>(y), backward);
}

/// Queries or keys [N, H, d] of sequences that lie one behind the other, each turned from where it
/// begins; starts have to outlive backward. Nothing is kept but a copy of the frequencies.
/// Throws as packed_rotary_forward.
template <Scalar T>
Variable<T, 3> packed_rotary(const Variable<T, 3>& x, LastingSpan<Index> starts,
                             const RotaryOptions& options) {
  Recording<T> call({"packed_rotary"}, x);
  const Out<T, 3> y = call.output(x.shape());
  packed_rotary_forward(x.value(), starts, options, y, call.context());
  const auto backward = [starts, kept = options.owned(), to = call.target(x)](BackwardPass<T>& pass,
                                                                              In<T, 3> dy) {
    const auto into = [&](Out<T, 3> dx) {
      packed_rotary_backward(dy, starts, kept, dx, pass.context());
    };
    pass.assign(into, to);
  };
  return call.finish(In<T, 3>(y), backward);
}

/// The loss of logits, [1].
///
/// logits    [..., V]
/// targets   [N]        for the rows of logits, in order; have to outlive backward
///
/// Keeps logits and a number a row. Throws as cross_entropy_forward.
template <TokenId Id, Scalar T, int R>
Variable<T, 1> cross_entropy(const Variable<T, R>& logits, In<Id, 1> targets,
                             const CrossEntropyOptions& options = {}) {
  const Variable<T, 2> rows = as_rows(logits);
  Recording<T> call({"cross_entropy"}, rows);
  const Out<T, 1> loss = call.output(Shape{1});
  const auto lse = call.kept(Shape{rows.extent(0)});
  loss(0) = cross_entropy_forward(rows.value(), targets, options, lse, call.context());
  const In<T, 2> kept = call.save(rows);
  const In<T, 1> kept_lse = lse;
  const auto backward = [=, to = call.target(rows)](BackwardPass<T>& pass, In<T, 1> d_loss) {
    const auto into = [&](Out<T, 2> d_logits) {
      cross_entropy_backward(d_loss(0), kept, targets, kept_lse, options, d_logits, pass.context());
    };
    pass.assign(into, to);
  };
  return call.finish(In<T, 1>(loss), backward);
}
template <TokenId Id, Scalar T, int R>
void cross_entropy(const Variable<T, R>& logits, const Tensor<Id, 1>&& temporary,
                   const CrossEntropyOptions& options = {}) = delete;

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
