// Rotary positions: pairs of a row's elements are turned by an angle that grows with the row's
// position, so that a product of a query and a key knows how far apart they are and nothing else of
// where they stand. A rotation is its own gradient, turned back.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/head_rows.hpp"
#include "headwise/ops/rotary_table.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The rules of a call but those of its tables.
template <class T, int R>
void require_rotation(std::string_view function, std::string_view in, std::string_view out,
                      const In<T, R>& x, const Out<T, R>& y, const RotaryOptions& options) {
  require_countable(function, in, x);
  require_shape(function, out, y, x.shape(), "the shape of ", in);
  require_distinct(function, {out, y});
  require_same_or_apart(function, {out, y}, {in, x});
  require_rotary(function, options, x.extent(R - 1));
}
template <class T>
void require_angles(std::string_view function, const Out<T, 4>& y, const RotaryAngles<T>& angles,
                    const RotaryOptions& options, std::string_view out) {
  const Index pairs = options.width_of(y.extent(3)) / 2, held = angles.cosines.extent(0);
  require_shape(function, "angles.cosines", angles.cosines, Shape{held, pairs},
                "half of the width");
  require_shape(function, "angles.sines", angles.sines, Shape{held, pairs}, "angles.cosines");
  require(held - options.offset >= y.extent(2), function, "angles hold ", held,
          " positions, expected at least ", options.offset + y.extent(2), " (offset and rows)");
  require_apart(function, {out, y},
                {{"angles.cosines", angles.cosines}, {"angles.sines", angles.sines}});
}

/// Rotates all rows of y = x by tables whose row i is of token i.
template <class T>
void rotate(const In<T, 4>& x, const In<T, 2>& cosines, const In<T, 2>& sines,
            const RotaryOptions& options, bool transposed, const Out<T, 4>& y,
            const Context& context) {
  if (x.size() == 0) return;
  const Index B = x.extent(0), H = x.extent(1), L = x.extent(2), d = x.extent(3);
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::RotaryRows<T> all{kernels::matrix(cosines),
                                   kernels::matrix(sines),
                                   d,
                                   options.width_of(d),
                                   options.pairing == RotaryPairing::interleaved,
                                   transposed};
  for_head_rows(x, context, [&](Index b, Index h, Index i, Index rows, int axis) {
    kernels::RotaryRows<T> here = all;
    here.cosines = all.cosines.from(i, 0);
    here.sines = all.sines.from(i, 0);
    if (axis == 1) here.cosines.row = here.sines.row = 0;  // one position for all heads
    run.rotate_rows(here, head_rows(x, b, h, i, axis), head_rows(y, b, h, i, axis), 0, rows);
  });
  const std::int64_t flops = 3 * std::int64_t{B * H * L} * all.width;
  context.count_flops(flops, flops);
}

/// Rotates by tables of the rows' own positions, made for the call.
template <class T>
void rotate_by_options(const In<T, 4>& x, const RotaryOptions& options, bool transposed,
                       const Out<T, 4>& y, const Context& context) {
  const Index width = options.width_of(x.extent(3));
  const Shape<2> shape{x.size() == 0 ? 0 : x.extent(2), width / 2};
  auto cosines = Tensor<T, 2>::uninitialized(shape, context.memory);
  auto sines = Tensor<T, 2>::uninitialized(shape, context.memory);
  const auto position = [&](Index i) { return options.offset + i; };
  fill_angles<T>(options, width, position, cosines, sines);
  rotate<T>(x, cosines, sines, options, transposed, y, context);
}
/// Rotates by tables whose rows are positions from 0 on.
template <class T>
void rotate_by_angles(const In<T, 4>& x, const RotaryAngles<T>& angles,
                      const RotaryOptions& options, bool transposed, const Out<T, 4>& y,
                      const Context& context) {
  if (x.size() == 0) return;
  const auto rows = [&](const In<T, 2>& table) {
    return In<T, 2>(table.data() + options.offset * table.stride(0),
                    Shape{x.extent(2), table.extent(1)}, table.strides());
  };
  rotate<T>(x, rows(angles.cosines), rows(angles.sines), options, transposed, y, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x with each pair (a, b) of a row turned: (a cos - b sin, a sin + b cos), by the angle
/// (offset + i) f_t of row i and pair t, f_t = theta^(-2 t / width) or as given.
///
/// x        [B, H, L, d]   in; queries or keys, any strides
/// options                 which elements are pairs, how fast they turn, position of row 0
/// y        [B, H, L, d]   out; may be x
///
/// Elements behind options.width are copied. Angles are computed in double (long double for long
/// double), once a call for all heads.
/// Work    3 FLOPs for each element that is rotated; scratch of 2 L width / 2.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Su et al., "RoFormer", 2021, arXiv 2104.09864, equation 34.
template <Scalar T>
void rotary_forward(In<T, 4> x, const RotaryOptions& options, Out<std::type_identity_t<T>, 4> y,
                    const Context& context = {}) {
  detail::require_rotation<T, 4>("rotary_forward", "x", "y", x, y, options);
  detail::rotate_by_options<T>(x, options, false, y, context);
}
/// The same by a RotaryTable's angles: its options and these have to agree in all but the offset.
template <Scalar T>
void rotary_forward(In<T, 4> x, const RotaryAngles<std::type_identity_t<T>>& angles,
                    const RotaryOptions& options, Out<std::type_identity_t<T>, 4> y,
                    const Context& context = {}) {
  detail::require_rotation<T, 4>("rotary_forward", "x", "y", x, y, options);
  detail::require_angles<T>("rotary_forward", y, angles, options, "y");
  detail::rotate_by_angles<T>(x, angles, options, false, y, context);
}

/// The gradient of rotary_forward: dx = dy turned back.
///
/// dy       [B, H, L, d]   in
/// options                 as in forward
/// dx       [B, H, L, d]   out; may be dy
///
/// Work    3 FLOPs for each element that is rotated.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
template <Scalar T>
void rotary_backward(In<T, 4> dy, const RotaryOptions& options, Out<std::type_identity_t<T>, 4> dx,
                     const Context& context = {}) {
  detail::require_rotation<T, 4>("rotary_backward", "dy", "dx", dy, dx, options);
  detail::rotate_by_options<T>(dy, options, true, dx, context);
}
/// The same by a RotaryTable's angles, as in forward.
template <Scalar T>
void rotary_backward(In<T, 4> dy, const RotaryAngles<std::type_identity_t<T>>& angles,
                     const RotaryOptions& options, Out<std::type_identity_t<T>, 4> dx,
                     const Context& context = {}) {
  detail::require_rotation<T, 4>("rotary_backward", "dy", "dx", dy, dx, options);
  detail::require_angles<T>("rotary_backward", dx, angles, options, "dx");
  detail::rotate_by_angles<T>(dy, angles, options, true, dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
