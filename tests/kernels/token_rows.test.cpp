// Rows of cross-entropy, of rotation and of an embedding's gradient, by the kernels of every
// instruction set of this processor: against the readable rows in long double, and to the bit
// between strides, for lengths around a vector and a piece of four.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/all_kernels.hpp"
#include "support/catch.hpp"

namespace kernels_token_rows {

using namespace headwise;
using headwise_tests::for_all_kernels;
using headwise_tests::for_all_model_kernels;
using kernels::Kernels;
using kernels::Matrix;
using kernels::ModelKernels;
using kernels::Row;

namespace {

using Wide = long double;
constexpr Index lengths[] = {1, 2, 3, 7, 8, 9, 15, 17, 31, 32, 33, 63, 64, 65, 97, 128, 200, 1100};

/// One row of N numbers, `step` apart, between others that nobody may touch.
template <class T>
struct Line {
  Index N, step;
  std::vector<T> storage;

  Line(Index N_, Index step_, std::uint64_t seed)
      : N(N_), step(step_), storage(static_cast<std::size_t>(N * step + 2), T(-7)) {
    for (Index n = 0; n < N; ++n) {
      (*this)[n] =
          static_cast<T>(2 * philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
    }
  }
  Row<T> row() { return {storage.data() + 1, step}; }
  Matrix<T> matrix() { return {storage.data() + 1, 0, step}; }
  T& operator[](Index n) { return row()[n]; }
  bool same_as(Line& other) {
    bool same = true;
    for (Index n = 0; n < N; ++n) {
      same = same && std::memcmp(&(*this)[n], &other[n], sizeof(T)) == 0;
    }
    return same;
  }
  bool untouched_between() const {
    bool same = storage.front() == T(-7) && storage.back() == T(-7);
    for (std::size_t n = 1; step > 1 && n + 1 < storage.size(); ++n) {
      if ((n - 1) % static_cast<std::size_t>(step) != 0) same = same && storage[n] == T(-7);
    }
    return same;
  }
  std::vector<Wide> wide() {
    std::vector<Wide> values;
    for (Index n = 0; n < N; ++n) values.push_back(static_cast<Wide>((*this)[n]));
    return values;
  }
};

template <class T>
Wide unit() {
  return static_cast<Wide>(std::numeric_limits<T>::epsilon());
}

/// Loss, logsumexp and gradient of a row.
template <class T>
struct Entropy {
  T loss, lse;
  Line<T> dx;

  Entropy(const ModelKernels<T>& run, Line<T>& x, Index target) : dx(x.N, x.step, 99) {
    run.cross_entropy_rows({x.matrix(), x.N, &target, &loss, {&lse, 1}}, 0, 1);
    run.cross_entropy_backward_rows({x.matrix(), x.N, &target, {&lse, 1}, T(0.75), dx.matrix()}, 0,
                                    1);
  }
};

template <class T>
void check_entropy(const ModelKernels<T>& run, Index V, Index target) {
  CAPTURE(sizeof(T), V, target);
  Line<T> x(V, 1, 1), apart(V, 3, 1);
  Entropy<T> got(run, x, target), strided(run, apart, target);
  auto wide = x.wide();
  const auto want = kernels::cross_entropy_row<Wide>({wide.data(), 1}, V, target);
  // Roundings of the greatest logit's size, the weights' own, and chains of 16.
  const Wide bound = 60 * unit<T>();
  CHECK(std::abs(static_cast<Wide>(got.loss) - want.loss) <= bound * (1 + want.loss));
  CHECK(std::abs(static_cast<Wide>(got.lse) - want.lse) <= bound * (1 + std::abs(want.lse)));
  std::vector<Wide> dx(wide.size());
  kernels::cross_entropy_backward_row<Wide>({wide.data(), 1}, V, target, want.lse, 0.75L,
                                            {dx.data(), 1});
  bool close = true;
  for (Index v = 0; v < V; ++v) {
    const Wide wanted = dx[static_cast<std::size_t>(v)];
    close = close && std::abs(static_cast<Wide>(got.dx[v]) - wanted) <= bound * std::abs(wanted);
  }
  CHECK(close);
  CHECK(got.loss == strided.loss);
  CHECK(got.lse == strided.lse);
  CHECK(got.dx.same_as(strided.dx));
  CHECK(strided.dx.untouched_between());
  CHECK(got.dx.untouched_between());
}

template <class T>
void check_rotation(const Kernels<T>& run, Index d, Index width, bool interleaved) {
  for (const bool transposed : {false, true}) {
    CAPTURE(sizeof(T), d, width, interleaved, transposed);
    Line<T> x(d, 1, 2), apart(d, 3, 2), y(d, 1, 3), strided(d, 3, 4), c(width / 2, 1, 5),
        s(width / 2, 1, 6);
    const auto rotate = [&](Line<T>& from, Line<T>& to) {
      run.rotate_rows({c.matrix(), s.matrix(), d, width, interleaved, transposed}, from.matrix(),
                      to.matrix(), 0, 1);
    };
    rotate(x, y);
    rotate(apart, strided);
    bool close = true;
    for (Index n = 0; n < d; ++n) {
      const Index half = width / 2, t = interleaved ? n / 2 : n % std::max<Index>(1, half);
      const bool first = interleaved ? n % 2 == 0 : n < half;
      const Index other = interleaved ? (first ? n + 1 : n - 1) : (first ? n + half : n - half);
      Wide wanted = static_cast<Wide>(x[n]), size = std::abs(wanted);
      if (n < width) {
        const Wide turn = (first != transposed ? -1 : 1) * static_cast<Wide>(s[t]);
        wanted = wanted * c[t] + turn * x[other];
        size =
            size * std::abs(static_cast<Wide>(c[t])) + std::abs(turn * static_cast<Wide>(x[other]));
      }
      close = close && std::abs(static_cast<Wide>(y[n]) - wanted) <= 2 * unit<T>() * size;
    }
    CHECK(close);
    CHECK(y.same_as(strided));
    CHECK(y.untouched_between());
    CHECK(strided.untouched_between());
    rotate(x, x);
    rotate(apart, apart);
    CHECK(x.same_as(y));
    CHECK(apart.same_as(y));
  }
}

}  // namespace

TEST_CASE("cross-entropy of a row by vectors equals the readable one for every length and target",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (Index V : lengths) {
      for (Index target : {Index{0}, V / 3, V / 2, V - 1}) check_entropy<T>(run, V, target);
    }
  });
}

TEST_CASE("a rotated row by vectors equals the definition for every width and stride",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (Index pairs : {0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64}) {
      for (Index rest : {0, 1, 5}) {
        check_rotation<T>(run, 2 * pairs + rest, 2 * pairs, false);
        check_rotation<T>(run, 2 * pairs + rest, 2 * pairs, true);
      }
    }
  });
}

TEST_CASE("a row added by vectors is the sum of each element alone", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (Index N : lengths) {
      for (Index step : {1, 2}) {
        CAPTURE(sizeof(T), N, step);
        Line<T> x(N, step, 7), to(N, step, 8), sums(N, step, 8);
        run.add_row(x.row(), N, to.row());
        for (Index n = 0; n < N; ++n) sums[n] = sums[n] + x[n];
        CHECK(to.same_as(sums));
        CHECK(to.untouched_between());
      }
    }
  });
}

}  // namespace kernels_token_rows
