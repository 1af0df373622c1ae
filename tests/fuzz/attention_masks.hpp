// The masks of an attention call, drawn from bytes: in the library's words, and as plain functions
// of a pair for naive loops.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "fuzz/placed.hpp"
#include "headwise/score/mask.hpp"
#include "support/oracle.hpp"

namespace headwise_fuzz {

using headwise_tests::Real;
using headwise_tests::Sizes;

template <class T>
class AttentionMasks {
 public:
  AttentionMasks(ByteReader& in, const Sizes& sizes, bool with_faults, Numbers& numbers)
      : sizes_(sizes) {
    const unsigned which = in.byte();
    causal_ = (which & 1u) != 0;
    if ((which & 2u) != 0) window_ = in.between(with_faults ? 0 : 1, 6);
    if ((which & 34u) == 34u) first_ = in.between(with_faults ? -1 : 0, 3);
    if ((which & 4u) != 0) {
      const Index count = sizes_.B + (with_faults && in.once_in(16) ? 1 : 0);
      for (Index b = 0; b < count; ++b) {
        Index length = in.between(0, sizes_.S);
        if (with_faults && in.once_in(32)) length = in.flag() ? -1 : sizes_.S + 1;
        fits_ = fits_ && length >= 0 && length <= sizes_.S;
        lengths_.push_back(length);
      }
      fits_ = fits_ && count == sizes_.B;
      has_lengths_ = true;
    }
    draw_tensors(in, which, with_faults, numbers);
  }

  /// Whether the terms go together, and whether they fit the scores.
  bool allowed() const {
    return pairs_.size() <= 4 && biases_.size() <= 4 && window_.value_or(1) >= 1 && first_ >= 0;
  }
  bool fits() const { return fits_; }

  /// Throws ArgumentError where the terms do not go together.
  AttentionMask<T> mask() const {
    AttentionMask<T> mask;
    if (causal_) mask.add(causal);
    if (window_) mask.add(Mask::window(*window_).keeping_first(first_));
    if (has_lengths_) mask.add(Mask::key_lengths(lengths_));
    for (std::size_t n = 0; n < pairs_.size(); ++n) {
      const In<bool, 4> pairs = pairs_[n].view();
      mask.add(keep_[n] ? Mask::keep(pairs) : Mask::drop(pairs));
    }
    for (const auto& bias : biases_) mask.add(BiasMask<T>{bias.view()});
    return mask;
  }

  bool visible(Index b, Index h, Index i, Index j) const {
    const Index diagonal = i + sizes_.S - sizes_.L;
    if (causal_ && j > diagonal) return false;
    if (window_ && std::abs(diagonal - j) >= *window_ && j >= first_) return false;
    if (has_lengths_ && j >= lengths_[static_cast<std::size_t>(b)]) return false;
    for (std::size_t n = 0; n < pairs_.size(); ++n) {
      if (broadcast<bool>(pairs_[n].view(), b, h, i, j) != keep_[n]) return false;
    }
    for (const auto& bias : biases_) {
      if (std::isinf(broadcast<T>(bias.view(), b, h, i, j))) return false;
    }
    return true;
  }

  Real bias(Index b, Index h, Index i, Index j) const {
    Real sum = 0;
    for (const auto& bias : biases_) sum += Real{broadcast<T>(bias.view(), b, h, i, j)};
    return sum;
  }

 private:
  /// An extent of a mask: whole or 1, or, rarely, another.
  Index mask_extent(ByteReader& in, bool with_faults, Index whole) {
    const Index extent = in.flag() ? whole : 1;
    return with_faults && in.once_in(32) ? extent + 1 : extent;
  }

  Shape<4> mask_shape(ByteReader& in, bool with_faults) {
    const auto [B, H, G, L, S, d, dv] = sizes_;
    const Shape<4> scores{B, H, L, S};
    Shape<4> shape;
    for (int r = 0; r < 4; ++r) {
      shape[r] = mask_extent(in, with_faults, scores[r]);
      fits_ = fits_ && (shape[r] == 1 || shape[r] == scores[r]);
    }
    return shape;
  }

  void draw_tensors(ByteReader& in, unsigned which, bool with_faults, Numbers& numbers) {
    const Index most = with_faults ? 5 : 2;
    if ((which & 8u) != 0) {
      for (Index n = in.between(1, most); n > 0; --n) {
        pairs_.emplace_back(in, mask_shape(in, with_faults), Role::input, false);
        keep_.push_back(in.flag());
        pairs_.back().set([&] { return (numbers.next() > 0.7) != keep_.back(); });
      }
    }
    if ((which & 16u) != 0) {
      for (Index n = in.between(1, most); n > 0; --n) {
        biases_.emplace_back(in, mask_shape(in, with_faults), Role::input, T(0));
        biases_.back().set([&] {
          const double x = numbers.next();
          return x > 1.5 ? -std::numeric_limits<double>::infinity() : x;
        });
      }
    }
  }

  template <class V>
  static V broadcast(const In<V, 4>& x, Index b, Index h, Index i, Index j) {
    const auto at = [&](int axis, Index n) { return x.extent(axis) == 1 ? Index{0} : n; };
    return x(at(0, b), at(1, h), at(2, i), at(3, j));
  }

  Sizes sizes_;
  bool causal_ = false, has_lengths_ = false, fits_ = true;
  std::optional<Index> window_;
  Index first_ = 0;
  std::vector<Index> lengths_;
  std::vector<Placed<bool, 4>> pairs_;
  std::vector<bool> keep_;
  std::vector<Placed<T, 4>> biases_;
};

}  // namespace headwise_fuzz
