// Activations by the vectors of every instruction set of this processor, against their definitions
// in long double: a sum or a quotient each, by the functions of the standard library.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/all_kernels.hpp"
#include "support/catch.hpp"

namespace kernels_activation {

using namespace headwise;
using headwise_tests::for_all_model_kernels;
using kernels::Matrix;
using kernels::ModelKernels;

namespace {

using Wide = long double;
constexpr Activation all[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh,
                              Activation::silu};

struct Exact {
  Wide value, slope;
  Wide terms;     // of the slope, without their signs
  Wide exponent;  // of the power of e that the function falls with
};

Exact exact(Activation which, Wide x) {
  const Wide root_2 = std::sqrt(Wide{2}), pi = std::acos(Wide{-1});
  if (which == Activation::relu) return {x > 0 ? x : 0, x > 0 ? Wide{1} : Wide{0}, 1, 0};
  if (which == Activation::gelu) {
    const Wide share = std::erfc(-x / root_2) / 2;
    const Wide density = std::exp(-x * x / 2) / std::sqrt(2 * pi);
    return {x * share, share + x * density, share + std::abs(x * density), 0};
  }
  Wide z = x, rise = 1;
  if (which == Activation::gelu_tanh) {
    z = 2 * std::sqrt(2 / pi) * (x + Wide{44715} / 1000000 * x * x * x);
    rise = 2 * std::sqrt(2 / pi) * (1 + 3 * Wide{44715} / 1000000 * x * x);
  }
  const Wide share = 1 / (1 + std::exp(-z));
  const Wide density = rise / (2 + std::exp(z) + std::exp(-z));
  return {x * share, share + x * density, share + std::abs(x * density),
          which == Activation::gelu_tanh ? std::abs(z) : 0};
}

/// Numbers all over the range in which no activation is 0 or x to the last bit, powers of 2, and
/// where gelu of 3 million drawn numbers was off most.
template <class T>
std::vector<T> numbers() {
  const double most = sizeof(T) == 4 ? 100 : 740;
  std::vector<T> x;
  for (int n = 0; n <= 40000; ++n) {
    const double part = n / 40000.0;
    for (const double at : {most * part, 15 * part, 3 * part}) {
      x.push_back(static_cast<T>(at));
      x.push_back(static_cast<T>(-at));
    }
  }
  for (int e = -100; e < 5; ++e) {
    x.push_back(static_cast<T>(std::ldexp(1.1, e)));
    x.push_back(static_cast<T>(-std::ldexp(1.1, e)));
  }
  for (const double at :
       {-22.781807707739148, -27.303313739551673, -27.655198713113091, -10.3095, -12.3350}) {
    x.push_back(static_cast<T>(at));
  }
  return x;
}

template <class T>
Matrix<T> row_of(std::vector<T>& x) {
  return {x.data(), 0, 1};
}
template <class T>
Matrix<const T> row_of(const std::vector<T>& x) {
  return {x.data(), 0, 1};
}
constexpr int none = 0;  // no step: a matrix that is not there
template <class T>
Matrix<T> no_matrix() {
  return {nullptr, none, none};
}

template <class T>
std::vector<T> values_of(const ModelKernels<T>& run, Activation which, const std::vector<T>& x) {
  std::vector<T> y(x.size());
  run.activation_rows(
      {which, static_cast<Index>(x.size()), row_of(x), no_matrix<const T>(), row_of(y)}, 0, 1);
  return y;
}
template <class T>
std::vector<T> slopes_of(const ModelKernels<T>& run, Activation which, const std::vector<T>& x) {
  const std::vector<T> ones(x.size(), T(1));
  std::vector<T> dx(x.size());
  run.activation_backward_rows({which, static_cast<Index>(x.size()), row_of(ones), row_of(x),
                                no_matrix<const T>(), row_of(dx), no_matrix<T>()},
                               0, 1);
  return dx;
}

/// Rows of numbers, `step` apart, between elements that nobody may touch.
template <class T>
struct Rows {
  Index rows, F, step;
  std::vector<T> storage;
  Rows(Index rows_, Index F_, Index step_, std::uint64_t seed)
      : rows(rows_), F(F_), step(step_), storage(static_cast<std::size_t>(rows * F * step), T(-7)) {
    for (Index i = 0; i < rows; ++i) {
      for (Index n = 0; n < F; ++n) {
        const auto place = static_cast<std::uint64_t>(1000 * i + n);
        matrix()(i, n) = static_cast<T>(2 * philox_normal(philox_key(seed), place));
      }
    }
  }
  Matrix<T> matrix() { return {storage.data(), F * step, step}; }
  bool same_as(Rows& other) {
    bool same = true;
    for (Index i = 0; i < rows; ++i) {
      for (Index n = 0; n < F; ++n) {
        same = same && std::memcmp(&matrix()(i, n), &other.matrix()(i, n), sizeof(T)) == 0;
      }
    }
    return same;
  }
  bool untouched_between() const {
    bool same = true;
    for (std::size_t n = 0; step > 1 && n < storage.size(); ++n) {
      if (n % static_cast<std::size_t>(step) != 0) same = same && storage[n] == T(-7);
    }
    return same;
  }
};

}  // namespace

TEST_CASE("an activation by vectors is within 7 epsilon of its definition, however small",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    const std::vector<T> x = numbers<T>();
    constexpr Wide unit = std::numeric_limits<T>::epsilon(), least = std::numeric_limits<T>::min();
    for (const Activation which : all) {
      const std::vector<T> y = values_of(run, which, x), slope = slopes_of(run, which, x);
      Wide worst = 0, worst_slope = 0;
      T at = 0, slope_at = 0;
      for (std::size_t n = 0; n < x.size(); ++n) {
        const Exact e = exact(which, static_cast<Wide>(x[n]));
        // Below the normal numbers of the power there is 0, or a number with fewer digits.
        const Wide tiny =
            std::abs(e.value) < 4096 * least ? 4096 * least / unit : std::abs(e.value);
        const Wide error = std::abs(static_cast<Wide>(y[n]) - e.value) / tiny / (1 + e.exponent);
        const Wide tiny_slope = e.terms < 4096 * least ? 4096 * least / unit : e.terms;
        const Wide slope_error =
            std::abs(static_cast<Wide>(slope[n]) - e.slope) / tiny_slope / (1 + e.exponent);
        if (!(error <= worst)) worst = error, at = x[n];
        if (!(slope_error <= worst_slope)) worst_slope = slope_error, slope_at = x[n];
      }
      CAPTURE(sizeof(T), static_cast<int>(which), at, slope_at, worst / unit, worst_slope / unit);
      CHECK(worst <= 7 * unit);
      CHECK(worst_slope <= 3 * unit);
    }
  });
}

TEST_CASE("no activation is a denormal number, nor its slope", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    std::vector<T> x;
    for (int n = 0; n <= 60000; ++n) {
      x.push_back(static_cast<T>((sizeof(T) == 4 ? -120.0 : -800.0) * n / 60000));
      x.push_back(static_cast<T>(-40.0 * n / 60000));
    }
    const auto is_denormal = [](const T& y) { return std::fpclassify(y) == FP_SUBNORMAL; };
    for (const Activation which : all) {
      CAPTURE(sizeof(T), static_cast<int>(which));
      const std::vector<T> y = values_of(run, which, x), slope = slopes_of(run, which, x);
      CHECK(std::count_if(y.begin(), y.end(), is_denormal) == 0);
      CHECK(std::count_if(slope.begin(), slope.end(), is_denormal) == 0);
    }
  });
}

TEST_CASE("an activation of infinity is infinity, of minus infinity 0, and NaN stays NaN",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    using Limits = std::numeric_limits<T>;
    const std::vector<T> x = {Limits::infinity(),
                              -Limits::infinity(),
                              Limits::quiet_NaN(),
                              Limits::max(),
                              Limits::lowest(),
                              T(0),
                              T(1000),
                              T(-1000)};
    for (const Activation which : all) {
      CAPTURE(sizeof(T), static_cast<int>(which));
      const std::vector<T> y = values_of(run, which, x), slope = slopes_of(run, which, x);
      CHECK(y[0] == Limits::infinity());
      CHECK(y[1] == T(0));
      CHECK_FALSE(y[2] == y[2]);
      CHECK(y[3] == Limits::max());
      CHECK(y[4] == T(0));
      CHECK(y[5] == T(0));
      CHECK(y[6] == T(1000));
      CHECK(y[7] == T(0));
      CHECK((slope[0] == T(1) && slope[3] == T(1) && slope[6] == T(1)));
      CHECK((slope[1] == T(0) && slope[4] == T(0) && slope[7] == T(0)));
      if (which != Activation::relu) CHECK_FALSE(slope[2] == slope[2]);
      CHECK(slope[5] == (which == Activation::relu ? T(0) : T(0.5)));
    }
  });
}

TEST_CASE("activations have the same bits at any stride, and f(x) up is its product", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Activation which : all) {
      for (const Index F : {1, 7, 8, 31, 64, 65, 130}) {
        CAPTURE(sizeof(T), static_cast<int>(which), F);
        constexpr Index N = 3;
        Rows<T> x(N, F, 1, 1), up(N, F, 1, 2), dy(N, F, 1, 3), plain(N, F, 1, 4), y(N, F, 1, 4),
            dx(N, F, 1, 5), d_up(N, F, 1, 6), plain_dx(N, F, 1, 7);
        const auto none_in = no_matrix<const T>();
        run.activation_rows({which, F, x.matrix(), none_in, plain.matrix()}, 0, N);
        run.activation_rows({which, F, x.matrix(), up.matrix(), y.matrix()}, 0, N);
        run.activation_backward_rows(
            {which, F, dy.matrix(), x.matrix(), none_in, plain_dx.matrix(), no_matrix<T>()}, 0, N);
        run.activation_backward_rows(
            {which, F, dy.matrix(), x.matrix(), up.matrix(), dx.matrix(), d_up.matrix()}, 0, N);
        for (Index i = 0; i < N; ++i) {
          for (Index n = 0; n < F; ++n) {
            CHECK(y.matrix()(i, n) == T(plain.matrix()(i, n) * up.matrix()(i, n)));
            CHECK(d_up.matrix()(i, n) == T(dy.matrix()(i, n) * plain.matrix()(i, n)));
            const Wide through = static_cast<Wide>(plain_dx.matrix()(i, n)) * up.matrix()(i, n);
            CHECK(std::abs(static_cast<Wide>(dx.matrix()(i, n)) - through) <=
                  2 * Wide{std::numeric_limits<T>::epsilon()} * std::abs(through));
          }
        }
        // In place, three elements apart, row by row.
        Rows<T> far_x(N, F, 3, 1), far_up(N, F, 3, 2), far_dy(N, F, 3, 3), far_d_up(N, F, 3, 6);
        for (Index i = 0; i < N; ++i) {
          run.activation_backward_rows({which, F, far_dy.matrix(), far_x.matrix(), far_up.matrix(),
                                        far_dy.matrix(), far_d_up.matrix()},
                                       i, i + 1);
          run.activation_rows({which, F, far_x.matrix(), far_up.matrix(), far_x.matrix()}, i,
                              i + 1);
        }
        CHECK((far_x.same_as(y) && far_dy.same_as(dx) && far_d_up.same_as(d_up)));
        CHECK((far_x.untouched_between() && far_dy.untouched_between()));
        CHECK(far_d_up.untouched_between());
      }
    }
  });
}

TEST_CASE("where dy is 0 no gradient of an activation sees what x and up hold", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    const T nan = std::numeric_limits<T>::quiet_NaN(),
            infinity = std::numeric_limits<T>::infinity();
    for (const Activation which : all) {
      for (const T bad : {nan, infinity, -infinity}) {
        Rows<T> x(1, 9, 1, 1), up(1, 9, 1, 2), dy(1, 9, 1, 3), dx(1, 9, 1, 4), d_up(1, 9, 1, 5);
        x.matrix()(0, 4) = up.matrix()(0, 4) = bad;
        dy.matrix()(0, 4) = T(0);
        run.activation_backward_rows(
            {which, 9, dy.matrix(), x.matrix(), up.matrix(), dx.matrix(), d_up.matrix()}, 0, 1);
        for (Index n = 0; n < 9; ++n) {
          CHECK(dx.matrix()(0, n) == dx.matrix()(0, n));
          CHECK(d_up.matrix()(0, n) == d_up.matrix()(0, n));
        }
        CHECK((dx.matrix()(0, 4) == T(0) && d_up.matrix()(0, 4) == T(0)));
      }
    }
  });
}

TEST_CASE("a type without erfc gets it from exp", "[kernels]") {
  for (double x = -6; x <= 6; x += 0.03125) {
    const double got = kernels::erfc_by_series<double>(x), wanted = std::erfc(x);
    CAPTURE(x, got, wanted);
    CHECK(std::abs(got - wanted) <= 1e-15 + (x >= 2.5 ? 1e-13 * wanted : 0));
    CHECK(kernels::complementary_error<double>(x) == wanted);
  }
}

}  // namespace kernels_activation
