// Tensors that are kept in 16 bits from forward to backward. They are rounded while forward runs,
// before anything reads them: backward follows what forward computed.
#pragma once

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/runtime/path.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What a call that fills a cache of T keeps it as: of other types than float nothing is rounded,
/// and the path that keeps its weights keeps all as it is.
template <class T>
Saved saved_of(const Context& context, Path path = Path::flash) {
  return std::same_as<T, float> && path == Path::flash ? context.saved : Saved();
}

/// f(numbers of 16 bits of a SavedTensor), where it is kept in them.
template <class X, class F>
void with_kept(X& x, const Saved& saved, const F& f) {
  if constexpr (std::same_as<typename X::value_type, float>) {
    if (saved.as() == StoredAs::bf16) return f(x.template kept<BFloat16>());
    if (saved.as() == StoredAs::fp16) return f(x.template kept<Float16>());
  }
}

/// Each number becomes the nearest one of 16 bits, and is kept so. Throws std::bad_alloc.
template <class X>
void round_saved(X& x, const Saved& saved, const Context& context) {
  if (x.absent()) return;
  with_kept(x, saved, [&]<class U, int R>(Tensor<U, R>& kept) {
    kept = Tensor<U, R>::uninitialized(x.shape(), context.memory);
    for_rows(context, x.size(), 1, [&](Index begin, Index end) {
      saved.round(x.data() + begin, end - begin, kept.data() + begin);
    });
  });
}

/// Throws ShapeError unless a tensor has its shape, as what it is kept as.
template <class X, int R>
void require_saved_shape(std::string_view function, std::string_view argument, const X& x,
                         const Saved& saved, const Shape<R>& expected, std::string_view whence) {
  if (saved.exact()) return require_shape(function, argument, x, expected, whence);
  with_kept(x, saved,
            [&](const auto& kept) { require_shape(function, argument, kept, expected, whence); });
}

/// What is kept in 16 bits is no longer there as it was computed.
template <class X>
void drop_saved_floats(X& x, const Saved& saved) {
  with_kept(x, saved, [&](const auto&) { Tensor<typename X::value_type, X::rank>().swap(x); });
}

/// What round_saved made of it; absent where it was. Throws std::bad_alloc.
template <int R>
Tensor<float, R> widen_saved(const SavedFloats<R>& x, const Saved& saved, const Context& context) {
  Tensor<float, R> wide;
  with_kept(x, saved, [&](const auto& kept) {
    if (kept.absent()) return;
    wide = Tensor<float, R>::uninitialized(kept.shape(), context.memory);
    for_rows(context, wide.size(), 1, [&](Index begin, Index end) {
      saved.widen(kept.data() + begin, end - begin, wide.data() + begin);
    });
  });
  return wide;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What modules of float keep for backward in numbers of U, each the nearest one: for the context
/// of a forward call, `{.saved = saved_in<BFloat16>()}`.
///
/// Rounded are what attention reads, norms that projections read, and both sides of the
/// feed-forward's activation. Forward goes on from the rounded numbers and backward reads the same:
/// gradients are those of what forward computed, rounding taken for a step of slope 1. What is
/// added up from block to block stays as it is, and so do what attention gave, logsumexps, moments
/// of norms, and all that Path::materialized keeps. Where nothing is kept, in inference, nothing is
/// rounded.
///
/// Backward is not told: a cache knows what it is kept as. While it runs, the floats of one
/// module's or block's cache are there again.
template <NarrowFloat U>
Saved saved_in() {
  const auto widen = [](StoredAs as, const void* from, Index n, float* to) {
    kernels::model_kernels_here<float>().widen_rows(as, {from, n, 1}, 1, n, to);
  };
  return Saved(detail::stored_as<U>, kernels::model_kernels_here<float>().round_elements, widen);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
