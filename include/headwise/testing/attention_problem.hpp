// Attention as a problem that anybody's kernel can be given: what goes in, what comes out, and how
// a kernel is introduced. No kernel of this library is known here.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "headwise/tensor/require.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/testing/attention_variant.hpp"

namespace headwise::inline v0_1 {

/// o = softmax(scale q k^T over the keys that a query sees) v, and what the kernel's variant does
/// beyond. The laws give dense tensors.
template <class T>
struct AttentionProblem {
  In<T, 4> q;        // [B, H, L, d]
  In<T, 4> k;        // [B, G, S, d]; query head h reads key head h / (H / G)
  In<T, 4> v;        // [B, G, S, dv]
  bool causal;       // query i sees key j only where j <= i + (S - L)
  In<bool, 4> keep;  // [B, H, L, S], true where the query may see the key; {} for every pair
  T scale;           // what q k^T is multiplied by
  /// The kernel's, viewed; null for none.
  const AttentionVariant* variant = nullptr;

  /// Where a pair stands to a variant.
  VariantPosition position(Index h, Index i, Index j) const {
    return {h, i + (k.extent(2) - q.extent(2)), j};
  }
  /// Whether query i of head h sees key j.
  bool sees(Index b, Index h, Index i, Index j) const {
    const VariantPosition at = position(h, i, j);
    if (causal && j > at.query) return false;
    if (!keep.absent() && !keep(b, h, i, j)) return false;
    return variant == nullptr || !variant->hides || !variant->hides(at);
  }
};

/// What a forward overwrites; it holds NaN before. A query that sees no key gets zeros.
template <class T>
struct AttentionAnswer {
  Out<T, 4> o;        // [B, H, L, dv]
  Out<T, 4> weights;  // [B, H, L, S], 0 for hidden pairs; {} where the kernel does not give them
};

/// What a backward overwrites; it holds NaN before.
template <class T>
struct AttentionAnswerGradients {
  Out<T, 4> dq;  // [B, H, L, d]
  Out<T, 4> dk;  // [B, G, S, d], summed over the query heads of a group
  Out<T, 4> dv;  // [B, G, S, dv], likewise
};

/// A kernel under test, and what it can do. What it cannot take it is not given.
template <class T>
struct AttentionKernel {
  std::string name;  // as the score card prints it
  /// Overwrites the answer.
  std::function<void(const AttentionProblem<T>&, const AttentionAnswer<T>&)> forward;
  /// From the problem and d_o [B, H, L, dv]; it runs its own forward where it needs one. May be {}.
  std::function<void(const AttentionProblem<T>&, const In<T, 4>&,
                     const AttentionAnswerGradients<T>&)>
      backward = {};
  bool gives_weights = false;  // whether forward writes them
  bool takes_causal = true;    // the causal mask
  bool takes_keep = true;      // masks of single pairs
  bool takes_groups = true;    // G < H
  bool takes_scale = true;     // false: it multiplies by 1 / sqrt(d) whatever the problem says
  /// What it does to any problem beyond what the problem says.
  AttentionVariant variant = {};
};

/// The same problem for a function that C can hold: dense row-major arrays and their extents.
template <class T>
struct AttentionArrays {
  const T* q;                  // [B, H, L, d]
  const T* k;                  // [B, G, S, d]
  const T* v;                  // [B, G, S, dv]
  const bool* keep;            // [B, H, L, S] or null
  Index B, H, G, L, S, d, dv;  // the extents above
  bool causal;                 // query i sees key j only where j <= i + (S - L)
  T scale;                     // what q k^T is multiplied by
};

/// o [B, H, L, dv] is overwritten.
template <class T>
using AttentionForwardFunction = void (*)(const AttentionArrays<T>* problem, T* o);
/// From d_o [B, H, L, dv]: dq [B, H, L, d], dk [B, G, S, d] and dv [B, G, S, dv] are overwritten.
template <class T>
using AttentionBackwardFunction = void (*)(const AttentionArrays<T>* problem, const T* d_o, T* dq,
                                           T* dk, T* dv);

inline namespace HEADWISE_CODE {

/// The arrays of a problem. Throws ShapeError unless all its tensors are dense.
template <class T>
AttentionArrays<T> attention_arrays(const AttentionProblem<T>& x) {
  const auto require_dense = [](std::string_view argument, const auto& tensor) {
    if (tensor.dense()) return;
    raise<ShapeError>("attention_arrays: " + std::string(argument) + " has strides " +
                      tensor.strides().format() + ", expected a dense tensor");
  };
  require_dense("q", x.q);
  require_dense("k", x.k);
  require_dense("v", x.v);
  require_dense("keep", x.keep);
  return {x.q.data(),    x.k.data(),    x.v.data(),    x.keep.data(), x.q.extent(0),
          x.q.extent(1), x.k.extent(1), x.q.extent(2), x.k.extent(2), x.q.extent(3),
          x.v.extent(3), x.causal,      x.scale};
}

/// A kernel from a pair of plain functions over arrays; backward may be null.
template <class T>
AttentionKernel<T> attention_kernel(std::string name, AttentionForwardFunction<T> forward,
                                    AttentionBackwardFunction<T> backward = nullptr) {
  require(forward != nullptr, "attention_kernel", "forward is null, expected a function");
  AttentionKernel<T> kernel{std::move(name), {}};
  kernel.forward = [forward](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
    const auto arrays = attention_arrays(x);
    forward(&arrays, y.o.data());
  };
  if (backward != nullptr) {
    kernel.backward = [backward](const AttentionProblem<T>& x, const In<T, 4>& d_o,
                                 const AttentionAnswerGradients<T>& y) {
      const auto arrays = attention_arrays(x);
      backward(&arrays, d_o.data(), y.dq.data(), y.dk.data(), y.dv.data());
    };
  }
  return kernel;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
