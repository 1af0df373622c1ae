// Views of views: slices, transposes, heads. Nothing here copies but `copy` and `contiguous`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

inline void require_axis(std::string_view function, int axis, int rank) {
  require(axis >= 0 && axis < rank, function, "axis is ", axis, ", expected 0 to ", rank - 1);
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_slice(Index begin, Index count, int axis,
                                                               std::span<const Index> extents) {
  raise<ShapeError>("slice: begin is ", begin, " and count ", count, ", expected a part of axis ",
                    axis, " of ", extents);
}

/// The shape with another extent of one axis. (Written to in its place it would be copied two
/// numbers at a time right after one of them is stored, which a processor waits for.)
template <int R>
constexpr Shape<R> with_extent(const Shape<R>& shape, int axis, Index extent) {
  return [&]<int... r>(std::integer_sequence<int, r...>) {
    return Shape<R>((r == axis ? extent : shape[r])...);
  }
  (std::make_integer_sequence<int, R>());
}

/// f(index of its first element) for each row, rows lying along the last axis. (Index by
/// index, 20 million numbers took 2 to 4 times as long to fill and 4 to 5 times to copy; EPYC of
/// family 26.)
template <int R, class F>
void for_each_row(Shape<R> shape, F&& f) {
  shape[R - 1] = 1;
  for_each_index(shape, f);
}

/// to[n] = value, n < count. (A value whose bytes all are 0 by memset: 256 MiB of zeros at 92 GB/s,
/// by std::fill_n, of which g++ 12 -O2 makes a loop of a number a cycle, at 32; EPYC of family 26.)
template <class T>
void fill_run(T* to, Index count, const std::type_identity_t<T>& value) {
  if constexpr (std::is_arithmetic_v<T> && sizeof(T) <= sizeof(double)) {  // others have padding
    constexpr T zero{};
    if (std::memcmp(&value, &zero, sizeof(T)) == 0) {
      return void(std::memset(to, 0, static_cast<std::size_t>(count) * sizeof(T)));
    }
  }
  std::fill_n(to, count, value);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The view of a Tensor.
template <class T, int R>
TensorView<T, R> as_view(Tensor<T, R>& tensor) {
  return {tensor.data(), tensor.shape(), tensor.strides()};
}
/// The view of a const Tensor: to be read.
template <class T, int R>
In<T, R> as_view(const Tensor<T, R>& tensor) {
  return tensor;
}
/// A view is its own.
template <class V>
requires(!OwnsItsElements<V>) V as_view(const V& view) { return view; }

/// What can be viewed: any view, and a Tensor that has a name and so outlives the call.
template <class V>
concept Viewable = requires {
  typename std::remove_cvref_t<V>::template with_rank<1>;
}
&&(!OwnsItsElements<std::remove_reference_t<V>> || std::is_lvalue_reference_v<V>);

/// What as_view gives.
template <class V>
using view_of = decltype(as_view(std::declval<V>()));
/// The same with Q axes.
template <class V, int Q>
using view_of_rank = typename view_of<V>::template with_rank<Q>;

/// Elements begin, begin + 1, ... begin + count - 1 of one axis.
/// Throws ShapeError unless 0 <= begin <= begin + count <= extent.
template <Viewable V>
view_of<V&> slice(V&& tensor, int axis, Index begin, Index count) {
  detail::require_axis("slice", axis, tensor.rank);
  if (begin < 0 || count < 0 || begin > tensor.extent(axis) - count) {
    detail::raise_slice(begin, count, axis, tensor.shape().extents);
  }
  return {tensor.data() + (tensor.data() == nullptr ? 0 : begin * tensor.stride(axis)),
          detail::with_extent(tensor.shape(), axis, count), tensor.strides()};
}

/// One index of the first axis; the view that remains has one axis less.
/// Throws ShapeError unless 0 <= index < extent.
template <Viewable V>
auto select(V&& tensor, Index index) {
  constexpr int rank = view_of<V&>::rank - 1;
  if (index < 0 || index >= tensor.extent(0)) {
    raise<ShapeError>("select: index is ", index, ", expected one of axis 0 of ", tensor.shape());
  }
  Shape<rank> shape, strides;
  for (int r = 0; r < rank; ++r) {
    shape[r] = tensor.extent(r + 1);
    strides[r] = tensor.stride(r + 1);
  }
  const Index offset = tensor.data() == nullptr ? 0 : index * tensor.stride(0);
  return view_of_rank<V&, rank>(tensor.data() + offset, shape, strides);
}

/// Two axes exchanged. Throws ArgumentError for an axis that is not there.
template <Viewable V>
view_of<V&> transpose(V&& tensor, int axis_a, int axis_b) {
  detail::require_axis("transpose", axis_a, tensor.rank);
  detail::require_axis("transpose", axis_b, tensor.rank);
  auto shape = tensor.shape();
  auto strides = tensor.strides();
  std::swap(shape[axis_a], shape[axis_b]);
  std::swap(strides[axis_a], strides[axis_b]);
  return {tensor.data(), shape, strides};
}

/// [B, L, C] as the matrix [B L, C]: possible where batch follows batch at the distance of L rows.
template <class V>
bool rows_are_uniform(const V& tensor) {
  return tensor.extent(0) <= 1 || tensor.extent(1) <= 1 ||
         tensor.stride(0) == tensor.extent(1) * tensor.stride(1);
}

/// [B, L, C] seen as [B L, C]. Throws ShapeError where no strides describe that.
template <Viewable V>
auto merge_rows(V&& tensor) {
  require_countable("merge_rows", "x", tensor);
  if (!rows_are_uniform(tensor)) {
    raise<ShapeError>("merge_rows: strides of x ", tensor.shape(), " are ", tensor.strides(),
                      ", expected rows at one common distance; copy it first");
  }
  return view_of_rank<V&, 2>(tensor.data(),
                             Shape{tensor.extent(0) * tensor.extent(1), tensor.extent(2)},
                             Shape{tensor.stride(tensor.extent(1) == 1 ? 0 : 1), tensor.stride(2)});
}

/// The elements in their order, under other extents: [2, 6] as [3, 4] or [12].
/// Throws ShapeError unless they are as many and lie one behind the other.
template <Viewable V, int Q>
view_of_rank<V&, Q> reshape(V&& tensor, const Shape<Q>& shape) {
  require_countable("reshape", "x", tensor);
  detail::require_countable("reshape", "shape", shape.extents, &tensor);
  if (tensor.size() != shape.size()) {
    raise<ShapeError>("reshape: shape is ", shape, ", expected ", tensor.size(), " elements (x is ",
                      tensor.shape(), ")");
  }
  if (!tensor.dense()) {
    raise<ShapeError>("reshape: strides of x ", tensor.shape(), " are ", tensor.strides(),
                      ", expected elements one behind the other; contiguous copies it so");
  }
  return {tensor.data(), shape};
}

/// [B, L, H d] seen as [B, H, L, d], head i in columns i d ... (i + 1) d - 1.
///
/// Over rows at distance W the strides are (L W, d, W, 1): no element moves.
/// Throws ShapeError unless num_heads divides the width.
template <Viewable V>
auto split_heads(V&& tensor, Index num_heads) {
  require_countable("split_heads", "x", tensor);
  if (num_heads <= 0 || tensor.extent(2) % num_heads != 0) {
    raise<ShapeError>("split_heads: x is ", tensor.shape(), ", expected a width of ", num_heads,
                      " equal heads, at least 1");
  }
  const Index width = tensor.extent(2) / num_heads;
  return view_of_rank<V&, 4>(
      tensor.data(), Shape{tensor.extent(0), num_heads, tensor.extent(1), width},
      Shape{tensor.stride(0), width * tensor.stride(2), tensor.stride(1), tensor.stride(2)});
}

/// [B, H, L, d] seen as [B, L, H d]: the inverse of split_heads on the same storage.
/// Throws ShapeError where the heads do not lie side by side in a row.
template <Viewable V>
auto merge_heads(V&& tensor) {
  require_countable("merge_heads", "x", tensor);
  if (tensor.extent(1) > 1 && tensor.stride(1) != tensor.extent(3) * tensor.stride(3)) {
    raise<ShapeError>("merge_heads: strides of x ", tensor.shape(), " are ", tensor.strides(),
                      ", expected heads side by side; copy it into such a layout first");
  }
  return view_of_rank<V&, 3>(
      tensor.data(), Shape{tensor.extent(0), tensor.extent(2), tensor.extent(1) * tensor.extent(3)},
      Shape{tensor.stride(0), tensor.stride(2), tensor.stride(3)});
}

/// to = from, element by element. Throws ShapeError unless the shapes are equal and the two are one
/// tensor or lie apart.
template <class T, int R>
void copy(In<T, R> from, Out<std::type_identity_t<T>, R> to) {
  require_countable("copy", "from", from);
  require_shape("copy", "to", to, from.shape(), "from");
  require_distinct("copy", {"to", to});
  require_same_or_apart("copy", {"to", to}, {"from", from});
  const Index N = from.extent(R - 1), step = from.stride(R - 1), to_step = to.stride(R - 1);
  if (N == 0) return;
  detail::for_each_row(from.shape(), [&](const Shape<R>& at) {
    const T* const x = &from(at);
    T* const y = &to(at);
    if (step == 1 && to_step == 1) return void(std::copy_n(x, N, y));
    for (Index n = 0; n < N; ++n) y[n * to_step] = x[n * step];
  });
}

/// A dense copy. Throws std::bad_alloc.
template <class T, int R>
Tensor<T, R> contiguous(In<T, R> from,
                        std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  auto result = Tensor<T, R>::uninitialized(from.shape(), memory);
  copy(from, result);
  return result;
}

/// Every element = value.
template <class T, int R>
void fill(Out<T, R> tensor, const std::type_identity_t<T>& value) {
  require_countable("fill", "tensor", tensor);
  const Index N = tensor.extent(R - 1), step = tensor.stride(R - 1);
  if (tensor.size() == 0) return;
  if (tensor.dense()) return detail::fill_run(tensor.data(), tensor.size(), value);
  detail::for_each_row(tensor.shape(), [&](const Shape<R>& at) {
    T* const row = &tensor(at);
    if (step == 1) return detail::fill_run(row, N, value);
    for (Index n = 0; n < N; ++n) row[n * step] = value;
  });
}

/// The same values in another type, as static_cast rounds them; to 16 bits the nearest ones. Those
/// of 16 bits go to and from float and double. Throws std::bad_alloc.
template <class To, class From, int R>
requires(!(NarrowFloat<To> || NarrowFloat<From>) || (StoredFloat<To> && StoredFloat<From>))
    Tensor<To, R> convert(In<From, R> from,
                          std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  require_countable("convert", "from", from);
  Tensor<To, R> result(from.shape(), memory);
  const Index N = from.extent(R - 1), step = from.stride(R - 1);
  if (N == 0) return result;
  detail::for_each_row(from.shape(), [&](const Shape<R>& at) {
    const From* const x = &from(at);
    To* const y = &result(at);
    for (Index n = 0; n < N; ++n) y[n] = detail::number_as<To>(x[n * step]);
  });
  return result;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
