// How weights start: normal numbers drawn by position, so that a seed means the same everywhere.
#pragma once

#include <cmath>
#include <cstdint>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1 {

/// The standard deviation of a [in, out] weight at the start.
enum class Init {
  xavier_normal,  ///< sqrt(2 / (in + out)); Glorot and Bengio, 2010
  he_normal,      ///< sqrt(2 / in); He et al., 2015, arXiv 1502.01852
};

namespace detail {

/// Chooses the constructor of a module that takes options, resolved ones, and parameters of their
/// shapes as they are.
struct Unchecked {};

}  // namespace detail
}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The standard deviation of a weight [in, out]; 0 for one without elements.
inline double init_std(Init init, Index in, Index out) {
  require(in >= 0, "init_std", "in is ", in, ", expected >= 0");
  require(out >= 0, "init_std", "out is ", out, ", expected >= 0");
  const double fan = static_cast<double>(init == Init::he_normal ? in : in + out);
  return fan == 0.0 ? 0.0 : std::sqrt(2.0 / fan);
}

/// Overwrites w with normal numbers of mean 0 and this standard deviation, of 16 bits with those of
/// float rounded; `parameter` keeps those of one seed apart. Throws ShapeError or ArgumentError
/// before anything is written.
template <class W>
requires Scalar<W> || NarrowFloat<W>
void init_normal(Out<W, 2> w, double std_deviation, std::uint64_t seed, std::uint32_t parameter) {
  require_countable("init_normal", "w", w);
  require(is_finite_option(std_deviation) && std_deviation >= 0, "init_normal", "std_deviation is ",
          std_deviation, ", expected a finite number of 0 or more");
  constexpr std::uint32_t weights = 0x77000000u;  // "w": apart from what dropout draws
  const auto key = philox_key(seed, weights + parameter, 0);
  for (Index i = 0; i < w.extent(0); ++i) {
    for (Index o = 0; o < w.extent(1); ++o) {
      const auto position = static_cast<std::uint64_t>(i * w.extent(1) + o);
      const double value = std_deviation * philox_normal(key, position);
      if constexpr (NarrowFloat<W>) {
        w(i, o) = convert_float<W>(static_cast<float>(value));
      } else {
        w(i, o) = W(value);
      }
    }
  }
}

/// Overwrites w [in, out] with normal numbers of init_std; `parameter` keeps those of one seed
/// apart.
template <class W>
requires Scalar<W> || NarrowFloat<W>
void init_weights(Out<W, 2> w, Init init, std::uint64_t seed, std::uint32_t parameter) {
  require_countable("init_weights", "w", w);
  init_normal<W>(w, init_std(init, w.extent(0), w.extent(1)), seed, parameter);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
