// Which elements dropout keeps: a function of (seed, step, b, h, i, j), so that any tiling, thread
// count, path or recomputation draws the same mask and nothing is stored.
#pragma once

#include <array>
#include <cstdint>

#include "headwise/tensor/error.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

HEADWISE_STRICT_MATH_BEGIN

/// Elements are zeroed with probability `rate` and the others multiplied by 1 / (1 - rate).
/// Rate 0, the default, is inference. `step` is what changes from one training step to the next.
struct Dropout {
  double rate = 0.0;       // 0 to 1
  std::uint64_t seed = 0;  // of the run
  std::uint64_t step = 0;  // of training: another for each

  /// Whether a mask of this rate drops anything: masks are drawn to 2^-16.
  bool active() const { return rate >= 0x1p-17; }

  /// Throws ArgumentError unless the rate is in [0, 1].
  void require_valid(std::string_view function) const {
    require(rate >= 0.0 && rate <= 1.0, function, "dropout rate is ", rate, ", expected 0 to 1");
  }
};

HEADWISE_STRICT_MATH_END

/// What a dropout is applied to. The same seed draws unrelated masks for each.
enum class DropoutStream : std::uint32_t {
  weights = 1,      // of attention
  output = 2,       // of attention, or a matrix by itself
  hidden = 3,       // what is within a feed-forward part
  feed_forward = 4  // its output
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// The mask of one call.
///
/// One Philox block serves 8 neighbours along j with 16 bits each: the rate is met to 2^-17. 7
/// rounds are the fewest that pass BigCrush. (A word a pair at 10 rounds, the usual choice, is
/// nearly three times the work: twice the blocks, of 10 rounds instead of 7.)
class DropoutMask {
 public:
  /// Keeps everything.
  DropoutMask() = default;
  /// The mask that seed, step and stream name.
  DropoutMask(const Dropout& dropout, DropoutStream stream) {
    if (!dropout.active()) return;
    key_ = philox_key(dropout.seed, static_cast<std::uint32_t>(stream), dropout.step);
    threshold_ = static_cast<std::uint32_t>(std::lround(dropout.rate * 65536.0));
    keep_factor_ = dropout.rate < 1.0 ? 1.0 / (1.0 - dropout.rate) : 0.0;
  }

  /// Whether it drops anything.
  bool active() const { return threshold_ != 0; }

  /// What a kept element is multiplied by.
  double keep_factor() const { return keep_factor_; }

  /// Who draws many blocks at once draws philox<7> of the counter (j / 8, i, h, b), each index
  /// modulo 2^32, with this key: element j % 8 = e has the 16 bits of word e / 2, the lower ones
  /// first, and is kept where they are >= threshold().
  const std::array<std::uint32_t, 2>& key() const { return key_; }
  /// What the 16 bits of a kept element reach; 0 to 2^16.
  std::uint32_t threshold() const { return threshold_; }

  /// Whether element (b, h, i, j) is kept, with probability 1 - rate.
  bool kept(Index b, Index h, Index i, Index j) const {
    const auto words = block(b, h, i, j / 8);
    return bits(words, static_cast<int>(j % 8)) >= threshold_;
  }

  /// factors[t] = 0 or `factor` for pairs (i, j + t), t in [0, count).
  template <class T>
  void row(Index b, Index h, Index i, Index j, Index count, T factor, T* factors) const {
    for (Index t = 0; t < count;) {
      const auto words = block(b, h, i, (j + t) / 8);
      for (int lane = static_cast<int>((j + t) % 8); lane < 8 && t < count; ++lane, ++t) {
        factors[t] = bits(words, lane) >= threshold_ ? factor : T(0);
      }
    }
  }

 private:
  std::array<std::uint32_t, 4> block(Index b, Index h, Index i, Index j8) const {
    return philox<7>({static_cast<std::uint32_t>(j8), static_cast<std::uint32_t>(i),
                      static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(b)},
                     key_);
  }
  static std::uint32_t bits(const std::array<std::uint32_t, 4>& words, int lane) {
    return (words[static_cast<std::size_t>(lane / 2)] >> (16 * (lane % 2))) & 0xFFFFu;
  }

  std::array<std::uint32_t, 2> key_{};
  std::uint32_t threshold_ = 0;
  double keep_factor_ = 1.0;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
