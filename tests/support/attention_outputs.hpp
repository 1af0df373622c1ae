// What the library's two paths give for a case, and how that is compared: with the oracle within a
// tolerance, with each other bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>

#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/path.hpp"
#include "support/attention_case.hpp"
#include "support/oracle.hpp"

namespace headwise_tests {

template <class T>
struct Outputs {
  Tensor4<T> weights;  // of Path::materialized only
  Tensor4<T> lse;      // [B, H, L, 2], of Path::flash only
  Tensor4<T> o, dq, dk, dv;
};

/// Forward and backward. The outputs hold another number before: what is not written shows.
template <class T>
Outputs<T> run(Path path, In<T, 4> q, In<T, 4> k, In<T, 4> v, In<T, 4> d_o,
               const AttentionOptions<T>& options, const Context& context,
               const Context& backward) {
  const Index B = q.extent(0), H = q.extent(1), L = q.extent(2), S = k.extent(2);
  Outputs<T> y{{},
               {},
               Tensor4<T>(d_o.shape()),
               Tensor4<T>(q.shape()),
               Tensor4<T>(k.shape()),
               Tensor4<T>(v.shape())};
  for (Tensor4<T>* x : {&y.o, &y.dq, &y.dk, &y.dv}) std::fill(x->begin(), x->end(), T(777));
  if (path == Path::materialized) {
    y.weights = Tensor4<T>(Shape{B, H, L, S});
    std::fill(y.weights.begin(), y.weights.end(), T(777));
    attention_forward(q, k, v, options, y.weights, y.o, context);
    attention_backward(d_o, {q, k, v}, y.weights, options, {y.dq, y.dk, y.dv}, backward);
  } else {
    y.lse = Tensor4<T>(Shape{B, H, L, Index{2}});
    std::fill(y.lse.begin(), y.lse.end(), T(777));
    flash_attention_forward(q, k, v, options, y.o, y.lse, context);
    flash_attention_backward(d_o, {q, k, v}, y.o, y.lse, options, {y.dq, y.dk, y.dv}, backward);
  }
  return y;
}
template <class T>
Outputs<T> run(Path path, In<T, 4> q, In<T, 4> k, In<T, 4> v, In<T, 4> d_o,
               const AttentionOptions<T>& options, const Context& context = {}) {
  return run<T>(path, q, k, v, d_o, options, context, context);
}
template <class T>
Outputs<T> run(Path path, const Case<T>& x, const Context& context = {}) {
  return run<T>(path, x.q, x.k, x.v, x.d_o, x.options, context);
}

/// max |got - expected| over the size of the sums. Infinite where the number of elements or what is
/// not finite differs.
template <class T, int R>
Real relative_error(const In<T, R>& got, const Field& expected) {
  constexpr Real never = std::numeric_limits<Real>::infinity();
  if (got.size() != static_cast<Index>(expected.values.size())) return never;
  Real greatest = 0;
  Index n = 0;
  for_each_index(got.shape(), [&](const Shape<R>& index) {
    const Real a = static_cast<Real>(got(index)), b = expected[n++];
    if (a == b) return;
    greatest = std::isfinite(a) && std::isfinite(b) ? std::max(greatest, std::abs(a - b)) : never;
  });
  return greatest == 0 ? 0 : greatest / expected.size();
}

/// What of the outputs is not the oracle's, in words; empty if all is.
///
/// The tolerance is 4 epsilon (sqrt(n) + e), n the longest sum and e the size of a score's terms:
/// errors of a sum of n random terms grow as sqrt(n), exp turns a score's absolute error into a
/// relative one, and at most three sums and an exp stand behind one another.
template <class T>
std::string disagreement(const Outputs<T>& got, const OracleResult& expected, const Sizes& sizes,
                         Real epsilon = std::numeric_limits<T>::epsilon()) {
  const auto [B, H, G, L, S, d, dv] = sizes;
  const Index n = std::max({d, dv, S, G == 0 ? L : L * (H / G), Index{1}});
  const Real tolerance = 4 * epsilon * (std::sqrt(static_cast<Real>(n)) + expected.condition);
  std::ostringstream text;
  const auto compare = [&](const char* name, const auto& x, const Field& y) {
    const Real error = relative_error(x, y);
    if (!(error <= tolerance)) text << name << " is off by " << error << " > " << tolerance << "; ";
  };
  if (!got.weights.absent()) compare("weights", got.weights, expected.weights);
  if (!got.lse.absent()) compare("lse", slice(got.lse, 3, 0, 1), expected.lse);
  compare("o", got.o, expected.o);
  compare("dq", got.dq, expected.dq);
  compare("dk", got.dk, expected.dk);
  compare("dv", got.dv, expected.dv);
  return text.str();
}

/// Whether two tensors have the same shape and the same bits, NaN included.
template <class T, int R>
bool same_bits(const In<T, R>& a, const In<T, R>& b) {
  if (a.shape() != b.shape()) return false;
  bool same = true;
  for_each_index(a.shape(), [&](const Shape<R>& index) {
    same = same && std::memcmp(&a(index), &b(index), sizeof(T)) == 0;
  });
  return same;
}

/// The outputs that differ in a bit, by name; empty if none does.
template <class T>
std::string bit_difference(const Outputs<T>& a, const Outputs<T>& b) {
  std::string names;
  if (!same_bits(a.weights, b.weights)) names += "weights ";
  if (!same_bits(a.lse, b.lse)) names += "lse ";
  if (!same_bits(a.o, b.o)) names += "o ";
  if (!same_bits(a.dq, b.dq)) names += "dq ";
  if (!same_bits(a.dk, b.dk)) names += "dk ";
  if (!same_bits(a.dv, b.dv)) names += "dv ";
  return names;
}

}  // namespace headwise_tests
