// What works row by row, by the kernels of every instruction set of this processor: against the
// readable rows in long double, and to the bit between strides, for lengths around a piece of four
// vectors (8 elements, at most 64).
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/all_kernels.hpp"
#include "support/catch.hpp"

namespace kernels_rows {

using namespace headwise;
using headwise_tests::for_all_kernels;
using kernels::Kernels;
using kernels::Matrix;
using kernels::Row;

namespace {

constexpr Index lengths[] = {1, 2, 3, 7, 8, 9, 15, 17, 31, 63, 64, 65, 97, 128, 200};

/// Rows of N elements, `step` apart, between elements that nobody may touch.
template <class T>
struct Rows {
  Index rows, N, step;
  std::vector<T> storage;

  Rows(Index rows_, Index N_, Index step_, std::uint64_t seed, T offset = T(0))
      : rows(rows_), N(N_), step(step_), storage(static_cast<std::size_t>(rows * N * step + 3)) {
    for (T& x : storage) x = T(-7);
    for (Index i = 0; i < rows; ++i) {
      for (Index n = 0; n < N; ++n) {
        const auto place = static_cast<std::uint64_t>(1000 * i + n);
        matrix()(i, n) = offset + static_cast<T>(philox_normal(philox_key(seed), place));
      }
    }
  }
  Matrix<T> matrix() { return {storage.data() + 1, N * step, step}; }
  Row<T> row(Index i) { return kernels::row(matrix(), i); }
  T& operator()(Index i, Index n) { return matrix()(i, n); }
  bool same_as(Rows& other) {
    bool same = true;
    for (Index i = 0; i < rows; ++i) {
      for (Index n = 0; n < N; ++n) {
        same = same && std::memcmp(&(*this)(i, n), &other(i, n), sizeof(T)) == 0;
      }
    }
    return same;
  }
  /// Whether what lies between the elements is as it was.
  bool untouched_between() const {
    bool same = storage.front() == T(-7) && storage.back() == T(-7);
    for (std::size_t n = 1; step > 1 && n + 2 < storage.size(); ++n) {
      if ((n - 1) % static_cast<std::size_t>(step) != 0) same = same && storage[n] == T(-7);
    }
    return same;
  }
};

using Wide = long double;

/// The rows as long double.
template <class T>
Rows<Wide> wide(Rows<T>& x) {
  Rows<Wide> result(x.rows, x.N, 1, 0);
  for (Index i = 0; i < x.rows; ++i) {
    for (Index n = 0; n < x.N; ++n) result(i, n) = static_cast<Wide>(x(i, n));
  }
  return result;
}

template <class T>
Wide unit() {
  return static_cast<Wide>(std::numeric_limits<T>::epsilon());
}

/// All that layer norm reads and writes.
template <class T>
struct Norm {
  Index N, D;
  Rows<T> x, dy, y, dx, gamma, beta, moments, sums;

  Norm(Index N_, Index D_, Index step, T offset)
      : N(N_),
        D(D_),
        x(N, D, step, 1, offset),
        dy(N, D, step, 2),
        y(N, D, step, 3),
        dx(N, D, step, 4),
        gamma(1, D, step, 5),
        beta(1, D, step, 6),
        moments(2, N, step, 7),
        sums(2, D, step, 8) {}

  void run(const Kernels<T>& run) {
    run.layer_norm_rows({x.matrix(), D, gamma.row(0), beta.row(0), T(1e-5), y.matrix(),
                         moments.row(0), moments.row(1)},
                        0, N);
    backward(run);
  }
  void backward(const Kernels<T>& run) {
    const kernels::LayerNormBackwardRows<T> back{
        dy.matrix(),    x.matrix(),     N,           D,           gamma.row(0),
        moments.row(0), moments.row(1), dx.matrix(), sums.row(0), sums.row(1)};
    run.layer_norm_backward_rows(back, 0, N);
    run.layer_norm_columns(back, 0, D);
  }
};

/// Against the readable rows in long double.
template <class T>
void check_norm(Norm<T>& got, Norm<T>& before) {
  auto x = wide(got.x), dy = wide(got.dy), gamma = wide(got.gamma), beta = wide(got.beta);
  Rows<Wide> y(1, got.D, 1, 0), dx(1, got.D, 1, 0);
  std::vector<Wide> dgamma(static_cast<std::size_t>(got.D)), size(dgamma.size());
  const Wide D = static_cast<Wide>(got.D);
  for (Index i = 0; i < got.N; ++i) {
    const auto moments = kernels::row_moments<Wide>(x.row(i), got.D, Wide{T(1e-5)});
    kernels::normalise_row<Wide>(x.row(i), got.D, moments, gamma.row(0), beta.row(0), y.row(0));
    kernels::layer_norm_backward_row<Wide>(dy.row(i), x.row(i), got.D, moments, gamma.row(0),
                                           dx.row(0));
    // A mean that is off by a rounding moves each xhat by as much, times rstd.
    const Wide e = unit<T>() * (std::abs(moments.mean) + 4) * (moments.rstd + 1);
    CHECK(std::abs(static_cast<Wide>(got.moments(0, i)) - moments.mean) <=
          4 * unit<T>() * (std::abs(moments.mean) + 4));
    Wide flow = 0;
    for (Index n = 0; n < got.D; ++n) flow += std::abs(dy(i, n) * gamma(0, n));
    for (Index n = 0; n < got.D; ++n) {
      const Wide xhat = (x(i, n) - moments.mean) * moments.rstd;
      CHECK(std::abs(static_cast<Wide>(got.y(i, n)) - y(0, n)) <=
            16 * e * (1 + std::abs(gamma(0, n))) * (1 + std::abs(xhat)));
      CHECK(std::abs(static_cast<Wide>(got.dx(i, n)) - dx(0, n)) <=
            16 * e * (1 + moments.rstd) * (1 + std::abs(xhat)) * (1 + flow / std::sqrt(D)));
      dgamma[static_cast<std::size_t>(n)] += dy(i, n) * xhat;
      size[static_cast<std::size_t>(n)] += std::abs(dy(i, n)) * (1 + std::abs(xhat)) * e;
    }
  }
  for (Index n = 0; n < got.D; ++n) {
    const auto at = static_cast<std::size_t>(n);
    Wide dbeta = static_cast<Wide>(before.sums(1, n)), added = 0;
    for (Index i = 0; i < got.N; ++i) dbeta += dy(i, n), added += std::abs(dy(i, n));
    const Wide wanted = static_cast<Wide>(before.sums(0, n)) + dgamma[at];
    CHECK(std::abs(static_cast<Wide>(got.sums(0, n)) - wanted) <= 16 * (size[at] + 4 * unit<T>()));
    CHECK(std::abs(static_cast<Wide>(got.sums(1, n)) - dbeta) <= 16 * unit<T>() * (added + 4));
  }
}

}  // namespace

TEST_CASE("layer_norm by vectors equals the readable rows, dense or strided to the same bits",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index D : lengths) {
      for (const T offset : {T(0), T(40)}) {
        CAPTURE(sizeof(T), D, offset);
        Norm<T> dense(3, D, 1, offset), strided(3, D, 3, offset), before(3, D, 1, offset);
        dense.run(run);
        strided.run(run);
        check_norm(dense, before);
        for (auto part : {&Norm<T>::y, &Norm<T>::dx, &Norm<T>::moments, &Norm<T>::sums}) {
          CHECK((dense.*part).same_as(strided.*part));
          CHECK((dense.*part).untouched_between());
          CHECK((strided.*part).untouched_between());
        }
      }
    }
  });
}

TEST_CASE("layer_norm by vectors makes 0 of a constant row, however far from 0 it lies",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index D : {Index{1}, Index{3}, Index{17}, Index{100}, Index{768}, Index{1000}}) {
      for (const T constant : {T(0.1), T(-1000.1), T(12345.678), T(1e6 + 0.7), T(-1e10), T(1e18)}) {
        Rows<T> x(1, D, 1, 1), y(1, D, 1, 2), moments(2, 1, 1, 3);
        for (Index n = 0; n < D; ++n) x(0, n) = constant;
        run.layer_norm_rows(
            {x.matrix(), D, {}, {}, T(0.0625), y.matrix(), moments.row(0), moments.row(1)}, 0, 1);
        bool zero = true;
        for (Index n = 0; n < D; ++n) zero = zero && y(0, n) == T(0);
        CAPTURE(sizeof(T), D, constant);
        CHECK(zero);
        CHECK(moments(0, 0) == constant);
        CHECK(moments(1, 0) == T(4));  // 1 / sqrt(epsilon)
      }
    }
  });
}

TEST_CASE("what layer_norm by vectors does not see reaches no gradient, NaN and infinities too",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index D : {1, 5, 64, 70}) {
      Norm<T> clean(3, D, 1, T(0)), bad(3, D, 1, T(0));
      for (Norm<T>* norm : {&clean, &bad}) {
        norm->run(run);
        for (Index n = 0; n < D; ++n) norm->dy(1, n) = T(0);
        norm->sums = Rows<T>(2, D, 1, 9);
      }
      bad.x(1, D / 2) = std::numeric_limits<T>::quiet_NaN();
      bad.moments(0, 1) = std::numeric_limits<T>::infinity();
      clean.backward(run);
      bad.backward(run);
      CHECK(bad.dx.same_as(clean.dx));
      CHECK(bad.sums.same_as(clean.sums));
      for (Index n = 0; n < D; ++n) CHECK(bad.dx(1, n) == T(0));
    }
  });
}

TEST_CASE("sums down columns by vectors have the bits of the readable ones", "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index rows : {1, 15, 16, 17, 33, 100}) {
      for (const Index columns : {1, 5, 64, 70, 300}) {
        for (const Index step : {1, 2}) {
          CAPTURE(sizeof(T), rows, columns, step);
          Rows<T> x(rows, columns, step, 1), got(1, columns, step, 2), wanted = got;
          kernels::add_column_sums(
              rows, columns, [&](Index i, Index n) { return x(i, n); }, &wanted(0, 0), step);
          // Cut anywhere.
          run.add_rows(x.matrix(), rows, 0, columns / 3, got.row(0));
          run.add_rows(x.matrix(), rows, columns / 3, columns, got.row(0));
          CHECK(got.same_as(wanted));
          CHECK(got.untouched_between());
        }
      }
    }
  });
}

TEST_CASE("softmax by vectors equals the readable rows, dense or strided to the same bits",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Index N : lengths) {
      CAPTURE(sizeof(T), N);
      Rows<T> x(3, N, 1, 1, T(30)), p(3, N, 1, 2), spread(3, N, 2, 1, T(30)), dx(3, N, 1, 3),
          dp(3, N, 1, 4), spread_dp(3, N, 2, 4);
      run.softmax_rows(x.matrix(), p.matrix(), N, 0, 3);
      run.softmax_rows(spread.matrix(), spread.matrix(), N, 0, 3);
      CHECK(p.same_as(spread));
      run.softmax_backward_rows(dp.matrix(), p.matrix(), dx.matrix(), N, 0, 3);
      run.softmax_backward_rows(spread_dp.matrix(), spread.matrix(), spread_dp.matrix(), N, 0, 3);
      CHECK(dx.same_as(spread_dp));
      CHECK((spread.untouched_between() && spread_dp.untouched_between()));
      auto weights = wide(x), given = wide(p), flow = wide(dp);
      const auto all = [](Index) { return true; };
      for (Index i = 0; i < 3; ++i) {
        kernels::softmax_row(weights.row(i), N, all);
        Wide size = 0;
        for (Index j = 0; j < N; ++j) size += std::abs(given(i, j) * flow(i, j));
        kernels::softmax_backward_row<Wide>(flow.row(i), given.row(i), flow.row(i), N, all);
        for (Index j = 0; j < N; ++j) {
          // A power of a rounded product of at most 9: 9 roundings; a sum of equal signs: 8 more.
          CHECK(std::abs(given(i, j) - weights(i, j)) <= 24 * unit<T>() * weights(i, j));
          CHECK(std::abs(static_cast<Wide>(dx(i, j)) - flow(i, j)) <=
                16 * unit<T>() * given(i, j) * (size + std::abs(static_cast<Wide>(dp(i, j)))));
        }
      }
    }
  });
}

TEST_CASE("softmax by vectors holds at the ends of the type, and NaN shows", "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    using Limits = std::numeric_limits<T>;
    constexpr Index N = 70;
    Rows<T> x(4, N, 1, 1), p(4, N, 1, 2);
    for (Index j = 0; j < N; ++j) {
      x(0, j) = j % 35 == 34 ? Limits::max() : Limits::lowest();
      x(1, j) = Limits::lowest();
      x(2, j) = -Limits::infinity();
      if (j == 69) x(3, j) = Limits::quiet_NaN();
    }
    run.softmax_rows(x.matrix(), p.matrix(), N, 0, 4);
    for (Index j = 0; j < N; ++j) {
      CHECK(p(0, j) == (j % 35 == 34 ? T(0.5) : T(0)));
      CHECK(p(1, j) == T(1) / T(N));
      CHECK_FALSE(p(2, j) == p(2, j));
      CHECK_FALSE(p(3, j) == p(3, j));
    }
  });
}

}  // namespace kernels_rows
