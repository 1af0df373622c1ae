// Kernels that do what a variant says: this library's two paths, by their options, and plain loops
// that may do another thing than they declare.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/rms_norm_heads.hpp"
#include "headwise/ops/rotary.hpp"
#include "headwise/runtime/path.hpp"
#include "headwise/testing/laws.hpp"
#include "support/law_variants.hpp"

namespace headwise_tests {

// ---- This library's options of a recipe ---------------------------------------------------------

struct HeadScale {
  template <class S>
  S operator()(const S& s, const Position& at, const std::array<S, 4>& w) const {
    return w[static_cast<std::size_t>(at.head)] * s;
  }
};
struct Fading {
  Index offset;  // S - L
  template <class S>
  S operator()(const S& s, const Position& at, const std::array<S, 2>& w) const {
    const Index distance = at.query + offset - at.key;
    const auto apart = static_cast<float>(distance < 0 ? -distance : distance);
    return s / (w[0] + S(apart / 8)) +
           w[1] * S(static_cast<float>(at.head + 1)) * s / (S(1.0f) + s * s);
  }
};
struct SeesTwoOfThree {
  bool operator()(const Position& at) const { return at.key % 3 != at.head % 3; }
};
struct Dilated {
  Index offset;  // S - L
  bool operator()(const Position& at) const {
    return (at.query + offset - at.key) % (at.head + 1) == 0;
  }
};
struct DilatedBounds {
  Index offset;  // S - L
  KeyRange operator()(const Position& at) const {
    const Index here = at.query + offset;
    return {here - VariantRecipe::dilated_reach, here + VariantRecipe::dilated_reach + 1};
  }
};

/// Rows turned in place, the first at position `first`: at one below 0 the other way.
template <class T>
void turn_rows(const VariantRecipe& r, const Out<T, 4>& x, Index first, bool back) {
  const Index L = x.extent(2);
  const auto pairing = r.turn == Turn::halves ? RotaryPairing::halves : RotaryPairing::interleaved;
  RotaryOptions options{.theta = VariantRecipe::theta, .width = r.turned, .pairing = pairing};
  const auto turn = [&](Index begin, Index count, bool other_way) {
    const Out<T, 4> rows = slice(x, 2, begin, count);
    if (other_way) {
      rotary_backward<T>(rows, options, rows);
    } else {
      rotary_forward<T>(rows, options, rows);
    }
  };
  const Index before = std::clamp<Index>(-first, 0, L);
  for (Index i = 0; i < before; ++i) {
    options.offset = -(first + i);
    turn(i, 1, !back);
  }
  options.offset = first + before;
  turn(before, L - before, back);
}

/// A call of a recipe on a problem: its rows, and its options with what they view.
template <class T>
struct VariantCall {
  const VariantRecipe& r;
  const AttentionProblem<T>& x;
  const Index B = x.q.extent(0), H = x.q.extent(1), G = x.k.extent(1), L = x.q.extent(2),
              S = x.k.extent(2), d = x.q.extent(3), offset = S - L;
  Tensor4<T> q, k;    // as they go into q k^T
  Tensor1<T> gq, gk;  // [d]
  Tensor3<T> rq, rk;  // the norms' rstd
  Tensor1<T> slopes, sinks;
  Tensor2<T> table;    // [H, 2 R + 1]
  Tensor4<T> bias;     // [1, H, L, S]
  Tensor2<Index> ids;  // [1, S]
  Tensor2<bool> kept;  // [1, S]
  std::vector<Index> lengths;
  ScoreFunction<T, 4, HeadScale> head_scale{{}, {}};
  ScoreFunction<T, 2, Fading> fading{Fading{offset}, {T(1), T(0.25)}};
  MaskFunction<SeesTwoOfThree, AllKeys> two_of_three{{}, {}};
  MaskFunction<Dilated, DilatedBounds> dilated{{offset}, {offset}};
  AttentionOptions<T> options;

  VariantCall(const VariantRecipe& recipe, const AttentionProblem<T>& problem)
      : r(recipe), x(problem), q(contiguous(x.q)), k(contiguous(x.k)) {
    options.scale = x.scale;
    encode();
    bend();
    hide();
  }
  VariantCall(const VariantCall&) = delete;
  VariantCall& operator=(const VariantCall&) = delete;

  void encode() {
    if (r.norm) {
      gq = gk = Tensor1<T>(Shape{d});
      for (Index c = 0; c < d; ++c) {
        gq(c) = T(VariantRecipe::gamma_of(false, c));
        gk(c) = T(VariantRecipe::gamma_of(true, c));
      }
      rq = Tensor3<T>({B, H, L});
      rk = Tensor3<T>({B, G, S});
      rms_norm_forward<T>(x.q, gq, T(VariantRecipe::epsilon), q, rq);
      rms_norm_forward<T>(x.k, gk, T(VariantRecipe::epsilon), k, rk);
    }
    if (r.turn == Turn::none) return;
    turn_rows<T>(r, q, offset, false);
    turn_rows<T>(r, k, 0, false);
  }

  /// Gradients of rows that went into q k^T become those of the problem's, in place.
  void way_back(const Out<T, 4>& dq, const Out<T, 4>& dk) {
    if (r.turn != Turn::none) {
      turn_rows<T>(r, dq, offset, true);
      turn_rows<T>(r, dk, 0, true);
    }
    if (!r.norm) return;
    rms_norm_backward<T>(dq, x.q, gq, rq, dq, {});
    rms_norm_backward<T>(dk, x.k, gk, rk, dk, {});
  }

  void bend() {
    ScoreOptions<T>& score = options.score;
    if (r.softcap) score.softcap = T(VariantRecipe::softcap_of);
    slopes = sinks = Tensor1<T>(Shape{H});
    table = Tensor2<T>({H, 2 * VariantRecipe::reach + 1});
    for (Index h = 0; h < H; ++h) {
      slopes(h) = T(VariantRecipe::slope_of(h));
      sinks(h) = T(VariantRecipe::sink_of(h));
      if (h < 4) {
        head_scale.parameters[static_cast<std::size_t>(h)] = T(VariantRecipe::scale_of(h));
      }
      for (Index n = 0; n < table.extent(1); ++n) table(h, n) = T(VariantRecipe::relative_of(h, n));
    }
    if (r.alibi) score.alibi_slopes = slopes;
    if (r.relative) score.relative_bias = table;
    if (r.sinks) score.sinks = sinks;
    if (r.head_scale) score.function = head_scale;
    if (r.fading) score.function = fading;
    if (!r.bias) return;
    bias = Tensor4<T>({1, H, L, S});
    for_each_index(bias.shape(), [&](const Shape<4>& at) {
      bias(at) = T(VariantRecipe::bias_of(at[1], at[2] + offset, at[3]));
    });
    options.mask.add(Mask::bias(bias));
  }

  void hide() {
    AttentionMask<T>& mask = options.mask;
    if (x.causal) mask.add(causal);
    if (!x.keep.absent()) mask.add(Mask::keep(x.keep));
    if (r.window > 0) mask.add(Mask::window(r.window).keeping_first(r.first_keys));
    if (r.every_third_hidden) mask.add(Mask::function(two_of_three));
    if (r.dilated) mask.add(Mask::function(dilated));
    ids = Tensor2<Index>({1, S});
    kept = Tensor2<bool>({1, S});
    for (Index j = 0; j < S; ++j) {
      ids(0, j) = r.document > 0 ? 100 - j / r.document : 0;
      kept(0, j) = j % 4 != 2;
    }
    if (r.document > 0) mask.add(Mask::documents(ids));
    if (r.kept_keys == 0) return;
    lengths.assign(static_cast<std::size_t>(B), std::min(S, r.kept_keys));
    mask.add(Mask::key_lengths(lengths));
    mask.add(Mask::keep_keys(kept));
  }
};

/// One of this library's paths with a recipe, and a backward with another where one is given.
template <class T>
AttentionKernel<T> variant_kernel(Path path, const VariantRecipe& r, const VariantRecipe& behind) {
  AttentionKernel<T> kernel{
      std::string(r.name) + (path == Path::flash ? ", flash" : ", materialized"), {}};
  kernel.gives_weights = path == Path::materialized;
  kernel.variant = variant_of(r);
  kernel.forward = [path, r](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
    const VariantCall<T> call(r, x);
    if (path == Path::flash) {
      flash_attention_forward<T>(call.q, call.k, x.v, call.options, y.o, {});
    } else {
      attention_forward<T>(call.q, call.k, x.v, call.options, y.weights, y.o);
    }
  };
  kernel.backward = [path, r = behind](const AttentionProblem<T>& x, const In<T, 4>& d_o,
                                       const AttentionAnswerGradients<T>& y) {
    VariantCall<T> call(r, x);
    const AttentionInputs<T> inputs{call.q, call.k, x.v};
    Tensor4<T> o(d_o.shape());
    if (path == Path::flash) {
      Tensor4<T> lse({call.B, call.H, call.L, 2});
      flash_attention_forward<T>(call.q, call.k, x.v, call.options, o, lse);
      flash_attention_backward<T>(d_o, inputs, o, lse, call.options, {y.dq, y.dk, y.dv});
    } else {
      Tensor4<T> weights({call.B, call.H, call.L, call.S});
      attention_forward<T>(call.q, call.k, x.v, call.options, weights, o);
      attention_backward<T>(d_o, inputs, weights, call.options, {y.dq, y.dk, y.dv});
    }
    call.way_back(y.dq, y.dk);
  };
  return kernel;
}
template <class T>
AttentionKernel<T> variant_kernel(Path path, const VariantRecipe& r) {
  return variant_kernel<T>(path, r, r);
}

/// L != S both ways, with and without causality, G < H, dv != d, above a tile, one query.
inline const std::vector<LawShape>& variant_shapes() {
  static const std::vector<LawShape> shapes = {
      {2, 4, 2, 7, 7, 6, 3, true},         {1, 4, 2, 5, 11, 4, 3, true, true},
      {2, 2, 1, 9, 5, 8, 6, true},         {1, 2, 2, 6, 13, 6, 5},
      {1, 3, 1, 11, 7, 4, 2, false, true}, {1, 2, 1, 66, 70, 8, 3, true},
      {2, 2, 1, 1, 67, 4, 4, true}};
  return shapes;
}

}  // namespace headwise_tests
