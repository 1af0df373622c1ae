// Rotary positions of sequences that lie one behind the other: each counts from where its own
// begins.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "headwise/ops/rotary.hpp"
#include "headwise/ops/sequence_rows.hpp"
#include "headwise/runtime/packed_starts.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Cosines and sines of positions, for queries and keys of all heads.
template <class T>
class Rotations {
 public:
  /// Row i of `count` is of position(i), counted behind the options' offset.
  template <class Position>
  Rotations(const RotaryOptions& options, Index d, Index count, const Position& position,
            std::pmr::memory_resource* memory)
      : options_(options) {
    const Index width = options.width_of(d);
    cosines_ = Tensor<T, 2>::uninitialized({count, width / 2}, memory);
    sines_ = Tensor<T, 2>::uninitialized({count, width / 2}, memory);
    const auto absolute = [&](Index i) { return options.offset + position(i); };
    fill_angles<T>(options, width, absolute, cosines_, sines_);
  }
  /// Of positions 0 to count - 1.
  Rotations(const RotaryOptions& options, Index d, Index count, std::pmr::memory_resource* memory)
      : Rotations(
            options, d, count, [](Index i) { return i; }, memory) {}
  /// Of rows of packed sequences: each counts from where its own begins.
  Rotations(const RotaryOptions& options, Index d, std::span<const Index> starts,
            std::pmr::memory_resource* memory)
      : options_(options) {
    const Rotations of_one(options, d, longest_of(starts), memory);
    const Shape<2> shape{starts.back(), options.width_of(d) / 2};
    cosines_ = Tensor<T, 2>::uninitialized(shape, memory);
    sines_ = Tensor<T, 2>::uninitialized(shape, memory);
    for (std::size_t b = 1; b < starts.size(); ++b) {
      const Index first = starts[b - 1] * shape[1], n = (starts[b] - starts[b - 1]) * shape[1];
      std::copy_n(of_one.cosines_.data(), n, cosines_.data() + first);
      std::copy_n(of_one.sines_.data(), n, sines_.data() + first);
    }
  }

  /// y = x [B, H, L, d] rotated, or the other way round: row i by row first + i of these. y may be
  /// x.
  void apply(const In<T, 4>& x, const Out<T, 4>& y, Index first, bool transposed,
             const Context& context) const {
    if (x.size() == 0) return;
    const Shape<2> shape{x.extent(2), cosines_.extent(1)};
    const Index begin = first * shape[1];
    rotate<T>(x, {cosines_.data() + begin, shape}, {sines_.data() + begin, shape}, options_,
              transposed, y, context);
  }
  /// The same in place.
  void apply(const Out<T, 4>& x, Index first, bool transposed, const Context& context) const {
    apply(x, x, first, transposed, context);
  }

 private:
  const RotaryOptions& options_;
  Tensor<T, 2> cosines_, sines_;  // [count, width / 2]
};

/// Rotates each sequence's rows, or, transposed, the other way round.
template <class T>
void rotate_packed(const In<T, 3>& x, std::span<const Index> starts, const RotaryOptions& options,
                   bool transposed, const Out<T, 3>& y, const Context& context) {
  const Rotations<T> rotations(options, x.extent(2), starts, context.memory);
  rotations.apply(by_sequence(x, 1), by_sequence(y, 1), 0, transposed, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// rotary_forward of each of the sequences that lie one behind the other: row n of the sequence
/// that begins at starts[b] stands at options.offset + n - starts[b].
///
/// x        [N, H, d]   in; queries or keys, any strides
/// starts   [B + 1]     cumulative lengths of the sequences, from 0 to N
/// options              as rotary_forward's; offset is the position of each sequence's first row
/// y        [N, H, d]   out; may be x
///
/// The bits of a sequence are those of rotary_forward of it alone.
/// Work    3 FLOPs for each element that is rotated; scratch of N width, and of the longest
///         sequence's rows likewise.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
template <Scalar T>
void packed_rotary_forward(In<T, 3> x, std::span<const Index> starts, const RotaryOptions& options,
                           Out<std::type_identity_t<T>, 3> y, const Context& context = {}) {
  constexpr std::string_view function = "packed_rotary_forward";
  detail::require_rotation<T, 3>(function, "x", "y", x, y, options);
  detail::require_starts(function, "starts", starts, x.extent(0), "the rows of x");
  require_apart(function, {"y", y}, {{"starts", detail::starts_view(starts)}});
  detail::rotate_packed<T>(x, starts, options, false, y, context);
}

/// The gradient of packed_rotary_forward: dx = dy turned back.
///
/// dy       [N, H, d]   in
/// starts   [B + 1]     as in forward
/// options              as in forward
/// dx       [N, H, d]   out; may be dy
///
/// Work    as forward's.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
template <Scalar T>
void packed_rotary_backward(In<T, 3> dy, std::span<const Index> starts,
                            const RotaryOptions& options, Out<std::type_identity_t<T>, 3> dx,
                            const Context& context = {}) {
  constexpr std::string_view function = "packed_rotary_backward";
  detail::require_rotation<T, 3>(function, "dy", "dx", dy, dx, options);
  detail::require_starts(function, "starts", starts, dy.extent(0), "the rows of dy");
  require_apart(function, {"dx", dx}, {{"starts", detail::starts_view(starts)}});
  detail::rotate_packed<T>(dy, starts, options, true, dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
