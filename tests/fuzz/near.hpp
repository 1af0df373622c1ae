// Results of the library held against sums that naive loops made.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "headwise/tensor/view_ops.hpp"
#include "support/oracle.hpp"

namespace headwise_fuzz {

using namespace headwise;
using headwise_tests::Field;
using headwise_tests::Real;

/// The elements of a view in row-major order, as an oracle takes them.
template <class T, int R>
Field field_of(const In<T, R>& x) {
  Field field(x.size());
  Index n = 0;
  for_each_index(x.shape(), [&](const Shape<R>& at) { field[n++] = static_cast<Real>(x(at)); });
  return field;
}

/// Whether `got` is `expected` to `slack` epsilon of the greatest sum behind it and to `least` of
/// the least normal number.
template <class T, int R>
bool near(const In<T, R>& got, const Field& expected, Real slack, Real least = 1) {
  const Real tolerance = slack * Real{std::numeric_limits<T>::epsilon()} * expected.size() +
                         least * Real{std::numeric_limits<T>::min()};
  bool is_near = got.size() == static_cast<Index>(expected.values.size());
  Index n = 0;
  for_each_index(got.shape(), [&](const Shape<R>& at) {
    const Real a = static_cast<Real>(got(at)), b = expected[n++];
    is_near = is_near && (a == b || std::abs(a - b) <= tolerance);
  });
  return is_near;
}

/// The greatest weight that attention counts as 0 though it is a normal number: one below 2^-64 of
/// the greatest of its row, 2^-512 in double. (As rounded: up to twice that.)
template <class T>
Real left_out(const Field& weights) {
  const Real least = std::ldexp(Real{1}, std::is_same_v<T, float> ? -63 : -511);
  Real greatest = 0;
  for (const Real weight : weights.values) {
    if (weight < least) greatest = std::max(greatest, weight);
  }
  return greatest;
}

}  // namespace headwise_fuzz
