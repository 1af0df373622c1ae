// Vectors of float and double on the compilers' vector extensions, and of every other scalar at
// width 1, so that a kernel is written once.
//
// No vector crosses a function that is not always inlined: at -O0 g++ would pass it wrongly.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd {

HEADWISE_STRICT_MATH_BEGIN

/// What every machine has: 16-byte vectors.
struct Generic {
  static constexpr int vector_bytes = 16;
};

/// The instruction set that operations use.
using Best = Generic;

template <class T>
inline constexpr bool vectorised = std::same_as<T, float> || std::same_as<T, double>;

/// Vectors of T: width, load, store and lane-wise functions. This one has width 1.
template <Scalar T, class Isa>
struct Simd {
  using Vector = T;
  static constexpr int width = 1;

  HEADWISE_INLINE static Vector zero() { return T(0); }
  HEADWISE_INLINE static Vector broadcast(const T& x) { return x; }
  HEADWISE_INLINE static Vector load(const T* from) { return *from; }
  HEADWISE_INLINE static void store(const Vector& x, T* to) { *to = x; }
  HEADWISE_INLINE static Vector greater(const Vector& a, const Vector& b) { return a < b ? b : a; }
  HEADWISE_INLINE static T lane(const Vector& x, int) { return x; }
};

template <Scalar T, class Isa>
requires vectorised<T>
struct Simd<T, Isa> {
  static constexpr int width = Isa::vector_bytes / static_cast<int>(sizeof(T));
  typedef T Vector __attribute__((vector_size(Isa::vector_bytes)));
  using Int = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef Int IntVector __attribute__((vector_size(Isa::vector_bytes)));
  using Bits = std::make_unsigned_t<Int>;
  typedef Bits BitVector __attribute__((vector_size(Isa::vector_bytes)));

  HEADWISE_INLINE static Vector zero() { return Vector{}; }
  HEADWISE_INLINE static Vector broadcast(T x) { return x - Vector{}; }  // folds to one shuffle
  HEADWISE_INLINE static Vector load(const T* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store(Vector x, T* to) { std::memcpy(to, &x, sizeof x); }
  HEADWISE_INLINE static Vector greater(Vector a, Vector b) { return a < b ? b : a; }
  HEADWISE_INLINE static T lane(Vector x, int i) { return x[i]; }
  HEADWISE_INLINE static Vector select(IntVector condition, Vector yes, Vector no) {
    return condition ? yes : no;
  }
};

/// f(0) f(1) ... f(count - 1), written out, so that an array of vectors stays in registers whatever
/// the level of optimisation. (g++ -O2 leaves the loop, and the sums in memory: half the speed.)
template <int count, class F>
HEADWISE_INLINE void unrolled(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) HEADWISE_ALWAYS_INLINE { (f(i), ...); }
  (std::make_integer_sequence<int, count>());
}

/// The sum of all lanes, pairwise.
template <Scalar T, class Isa>
HEADWISE_INLINE T sum_lanes(typename Simd<T, Isa>::Vector x) {
  using S = Simd<T, Isa>;
  T lanes[S::width];
  S::store(x, lanes);
  for (int half = S::width / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

/// The greatest lane. NaN lanes may be passed over.
template <Scalar T, class Isa>
HEADWISE_INLINE T max_lanes(typename Simd<T, Isa>::Vector x) {
  using S = Simd<T, Isa>;
  T greatest = S::lane(x, 0);
  for (int i = 1; i < S::width; ++i) {
    const T other = S::lane(x, i);
    if (greatest < other) greatest = other;
  }
  return greatest;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd
