// The kernels of an optimiser's step, of every instruction set of this processor: to the bit what
// their formulas say of one element, whatever its place in a vector or at the end of a row.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/all_kernels.hpp"
#include "support/catch.hpp"

namespace kernels_optimizer {

using namespace headwise;
using headwise_tests::for_all_model_kernels;

namespace {

template <class T>
std::vector<T> normal(Index n, std::uint64_t seed) {
  std::vector<T> x;
  for (Index i = 0; i < n; ++i) {
    x.push_back(static_cast<T>(philox_normal(philox_key(seed), static_cast<std::uint64_t>(i))));
  }
  return x;
}

template <class T>
std::vector<T> squares(Index n, std::uint64_t seed) {
  std::vector<T> x = normal<T>(n, seed);
  for (T& element : x) element = element * element;
  return x;
}

/// Whether two are the same number, in bits; where clang's -ffast-math fuses products with sums all
/// the same (tensor/config.hpp), whether some roundings lie between them.
template <class T>
bool same(T a, T b) {
#if defined(__clang__) && defined(__FAST_MATH__)
  return std::abs(a - b) <= 64 * std::numeric_limits<T>::epsilon() * (1 + std::abs(b));
#else
  return a == b;
#endif
}

/// Each result is stored, so that no compiler keeps it wider or fuses it with the next.
template <class T>
T stored(T x) {
  volatile T memory = x;
  return memory;
}

template <class T>
kernels::AdamWStep<T> adamw_step(bool near_gradient) {
  return {.gradient_scale = T(0.7),
          .keep = T(0.999),
          .one_minus_beta1 = T(near_gradient ? 0.6 : 0.1),
          .rest_of_m = T(1) - T(near_gradient ? 0.6 : 0.1),
          .beta2 = T(0.99),
          .one_minus_beta2 = T(0.01),
          .root_correction = T(0.3),
          .epsilon = T(1e-8),
          .minus_step = T(-0.02),
          .near_gradient = near_gradient};
}

template <class T>
struct Element {
  T p, m, v;
};

template <class T>
Element<T> adamw_of(const kernels::AdamWStep<T>& s, T p, T g, T m, T v) {
  const T gradient = stored<T>(g * s.gradient_scale), way = stored<T>(gradient - m);
  const T m_now = s.near_gradient ? stored<T>(gradient - stored<T>(way * s.rest_of_m))
                                  : stored<T>(m + stored<T>(s.one_minus_beta1 * way));
  const T square = stored<T>(stored<T>(s.one_minus_beta2 * gradient) * gradient);
  const T v_now = stored<T>(stored<T>(v * s.beta2) + square);
  const T root = stored<T>(stored<T>(stored<T>(std::sqrt(v_now)) / s.root_correction) + s.epsilon);
  const T step = stored<T>(stored<T>(s.minus_step * m_now) / root);
  return {stored<T>(stored<T>(p * s.keep) + step), m_now, v_now};
}

const Index lengths[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 100, 257};

}  // namespace

TEST_CASE("adamw is its formula to the bit, wherever an element stands in a vector", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const bool near_gradient : {false, true}) {
      const auto step = adamw_step<T>(near_gradient);
      for (const Index n : lengths) {
        // One element more than the call is told of: it stays as it is.
        const auto g = normal<T>(n + 1, 1);
        const auto p = normal<T>(n + 1, 2), m = normal<T>(n + 1, 3), v = squares<T>(n + 1, 4);
        auto p_now = p, m_now = m, v_now = v;
        run.adamw(step, p_now.data(), g.data(), m_now.data(), v_now.data(), n);
        bool right = true;
        for (std::size_t i = 0; i < p.size(); ++i) {
          Element<T> expected{p[i], m[i], v[i]};
          if (i + 1 < p.size()) expected = adamw_of(step, p[i], g[i], m[i], v[i]);
          right = right && same(p_now[i], expected.p) && same(m_now[i], expected.m) &&
                  same(v_now[i], expected.v);
        }
        CAPTURE(sizeof(T), n, near_gradient);
        CHECK(right);
      }
    }
  });
}

TEST_CASE("sgd is its formula to the bit, with and without decay, momentum and nesterov",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (int options = 0; options < 16; ++options) {
      const bool decays = (options & 1) != 0, moves = (options & 2) != 0;
      const kernels::SgdStep<T> s{.gradient_scale = T(0.7),
                                  .weight_decay = T(0.3),
                                  .momentum = T(0.9),
                                  .one_minus_dampening = T(0.8),
                                  .minus_rate = T(-0.1),
                                  .decays = decays,
                                  .first = (options & 4) != 0,
                                  .nesterov = (options & 8) != 0};
      for (const Index n : lengths) {
        const auto g = normal<T>(n + 1, 1), p = normal<T>(n + 1, 2), u = normal<T>(n + 1, 3);
        auto p_now = p, u_now = u;
        run.sgd(s, p_now.data(), g.data(), moves ? u_now.data() : nullptr, n);
        bool right = true;
        for (std::size_t i = 0; i < p.size(); ++i) {
          T gradient = stored<T>(g[i] * s.gradient_scale), expected_u = u[i], expected_p = p[i];
          if (decays) gradient = stored<T>(gradient + stored<T>(s.weight_decay * p[i]));
          if (i + 1 < p.size()) {
            const T old = stored<T>(u[i] * s.momentum);
            if (moves) {
              expected_u =
                  s.first ? gradient : stored<T>(old + stored<T>(s.one_minus_dampening * gradient));
            }
            const T ahead = stored<T>(gradient + stored<T>(s.momentum * expected_u));
            const T by = !moves ? gradient : s.nesterov ? ahead : expected_u;
            expected_p = stored<T>(p[i] + stored<T>(s.minus_rate * by));
          }
          right = right && same(p_now[i], expected_p) && same(u_now[i], expected_u);
        }
        CAPTURE(sizeof(T), n, options);
        CHECK(right);
      }
    }
  });
}

TEST_CASE("what an optimiser keeps decays to 0 where no gradient comes, and is no denormal number",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    const T least = std::numeric_limits<T>::min();
    // A moment above and one below 2^26 of the least normal number, and a square near that.
    const std::vector<T> p(2, T(1)), g(2, T(0)), moments{T(0x1.4p26) * least, -T(0x1p26) * least};
    auto p_now = p, m = moments, v = std::vector<T>{T(1.25) * least, T(1.0078125) * least};
    auto step = adamw_step<T>(false);
    step.least_moment = kernels::least_moment<T>(), step.least_square = kernels::least_square<T>();
    run.adamw(step, p_now.data(), g.data(), m.data(), v.data(), 2);
    CHECK(same(m[0], stored<T>(moments[0] + stored<T>(T(0.1) * -moments[0]))));
    CHECK(m[1] == T(0));
    CHECK(v[0] > T(0));
    CHECK(v[1] == T(0));
    auto u = moments;
    const kernels::SgdStep<T> s{.gradient_scale = T(1),
                                .weight_decay = T(0),
                                .momentum = T(0.9),
                                .one_minus_dampening = T(1),
                                .minus_rate = T(-0.1),
                                .least_velocity = kernels::least_moment<T>()};
    run.sgd(s, p_now.data(), g.data(), u.data(), 2);
    CHECK(same(u[0], stored<T>(moments[0] * T(0.9))));
    CHECK(u[1] == T(0));
  });
}

TEST_CASE("sum_of_squares is the sum in double, to a few roundings of it, also of float",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index n : lengths) {
      auto x = normal<T>(n + 1, 5);
      x.back() = std::numeric_limits<T>::quiet_NaN();  // behind the end: not read
      long double expected = 0;
      for (Index i = 0; i < n; ++i) {
        const auto element = static_cast<long double>(x[static_cast<std::size_t>(i)]);
        expected += element * element;
      }
      const double sum = run.sum_of_squares(x.data(), n);
      CAPTURE(sizeof(T), n);
      // Chains of at most n / 8 terms, and 5 additions that join them.
      const auto bound = static_cast<long double>(n / 8 + 6) * 0x1p-52L * expected;
      CHECK(std::abs(static_cast<long double>(sum) - expected) <= bound);
    }
  });
}

TEST_CASE("scale_elements multiplies n elements, and no other", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index n : lengths) {
      const auto x = normal<T>(n + 1, 6);
      auto scaled = x;
      run.scale_elements(T(0.3), scaled.data(), n);
      bool right = scaled.back() == x.back();
      for (std::size_t i = 0; i + 1 < x.size(); ++i) {
        right = right && scaled[i] == stored<T>(x[i] * T(0.3));
      }
      CAPTURE(sizeof(T), n);
      CHECK(right);
    }
  });
}

}  // namespace kernels_optimizer
