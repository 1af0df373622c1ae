// Turns a fuzzer's bytes into small decisions. Behind the last byte come zeros, so that every input
// means something, and a decision that is left out is the plain one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "headwise/tensor/shape.hpp"

namespace headwise_fuzz {

using headwise::Index;

class ByteReader {
 public:
  ByteReader(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}

  bool empty() const { return at_ >= bytes_.size(); }
  unsigned byte() { return empty() ? 0u : bytes_[at_++]; }
  bool flag() { return (byte() & 1u) != 0; }
  /// low to high, both included; low for a byte of 0.
  Index between(Index low, Index high) {
    return low + static_cast<Index>(byte()) % (high - low + 1);
  }
  /// True for one byte value in `n`, never for 0.
  bool once_in(unsigned n) { return byte() % n == n - 1; }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// Small numbers from a seed, which is cheaper than a byte for each. Multiples of 1/64.
class Numbers {
 public:
  /// One byte says what kind of numbers, the next is their seed.
  explicit Numbers(ByteReader& in) : kind_(in.byte() % 4), state_(in.byte() + 1) {}

  double next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    const double unit = static_cast<double>(static_cast<std::int64_t>(state_ % 257) - 128) / 64;
    if (kind_ == 1) return 0.375;                             // all the same
    if (kind_ == 2) return state_ % 3 == 0 ? unit : 0;        // many zeros
    if (kind_ == 3) return unit * (state_ % 5 == 0 ? 8 : 1);  // some large
    return unit;
  }

 private:
  unsigned kind_;
  std::uint64_t state_;
};

/// Ends the program, which is how a fuzzer learns of a fault.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not true: %s\n", what);
  std::abort();
}

}  // namespace headwise_fuzz
