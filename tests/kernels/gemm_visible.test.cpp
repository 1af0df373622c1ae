// Products in which a row does not see every row of the other matrix: by the generic kernels, since
// what it sees is a template argument; the others are the same lines.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"
#include "support/instruction_sets.hpp"

namespace kernels_gemm_visible {

using namespace headwise;

namespace {

template <class T>
Tensor2<T> normal(Index rows, Index columns, std::uint64_t seed) {
  Tensor2<T> x(Shape{rows, columns});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = static_cast<T>(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

template <class T>
bool same_bits(const Tensor2<T>& a, const Tensor2<T>& b) {
  for (Index n = 0; n < a.size(); ++n) {
    if (std::memcmp(a.data() + n, b.data() + n, sizeof(T) == 16 ? 10 : sizeof(T)) != 0)
      return false;
  }
  return true;
}

template <class T>
std::vector<T> scratch(const kernels::Extents& size) {
  return std::vector<T>(static_cast<std::size_t>(kernels::generic::gemm_scratch<T>(size)));
}

template <class T>
T special(int kind) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  return kind == 0 ? std::numeric_limits<T>::quiet_NaN() : kind == 1 ? infinity : -infinity;
}

/// Pairs (m, k) with visible(m)(k), which are not all.
template <class Visible>
struct Seen {
  Visible visible;

  explicit Seen(const Visible& some) : visible(some) {}
  bool all() const { return false; }
  auto operator()(Index m) const { return visible(m); }
};

/// a [M, K] with 0 where row m does not see k, as weights of attention are.
template <class T, class Visible>
Tensor2<T> weights(Index M, Index K, Visible visible) {
  Tensor2<T> a = normal<T>(M, K, 1);
  for_each_index(a.shape(), [&](const Shape<2>& i) {
    if (!visible(i[0])(i[1])) a(i) = T(0);
  });
  return a;
}

template <class T>
void check_hidden_rows(Index M, Index N, Index K) {
  CAPTURE(sizeof(T), M, N, K);
  const auto visible = [](Index m) { return [m](Index k) { return (m * 5 + k * 3) % 4 != 0; }; };
  const Tensor2<T> a = weights<T>(M, K, visible);
  std::vector<T> packed = scratch<T>({M, N, K});
  for (int kind : {0, 1, 2}) {
    for (bool accumulate : {false, true}) {
      const Tensor2<T> clean = normal<T>(K, N, 2);
      Tensor2<T> b = clean;
      for (Index k = 0; k < K; k += 3) b(k, k % N) = special<T>(kind);
      Tensor2<T> c = normal<T>(M, N, 3), expected = c;
      kernels::generic::gemm_visible<T>(kernels::matrix<T>(a), kernels::matrix<T>(b),
                                        kernels::matrix(Out<T, 2>(c)), {M, N, K},
                                        {.accumulate = accumulate}, packed.data(), Seen{visible});
      // Row by row: what the row does not see is 0, whatever it was.
      for (Index m = 0; m < M; ++m) {
        Tensor2<T> seen = b;
        for_each_index(seen.shape(), [&](const Shape<2>& i) {
          if (!visible(m)(i[0])) seen(i) = T(0);
        });
        kernels::generic::gemm<T>(kernels::matrix<T>(a).from(m, 0), kernels::matrix<T>(seen),
                                  kernels::matrix(Out<T, 2>(expected)).from(m, 0), {1, N, K},
                                  {.accumulate = accumulate}, packed.data());
      }
      CHECK(same_bits(c, expected));
    }
  }
}

template <class T>
void check_finite(Index M, Index N, Index K) {
  CAPTURE(sizeof(T), M, N, K);
  const auto visible = [](Index m) { return [m](Index k) { return k <= m; }; };
  const Tensor2<T> a = weights<T>(M, K, visible), b = normal<T>(K, N, 2);
  std::vector<T> packed = scratch<T>({M, N, K});
  Tensor2<T> c(Shape{M, N}), plain(Shape{M, N});
  kernels::generic::gemm_visible<T>(kernels::matrix<T>(a), kernels::matrix<T>(b),
                                    kernels::matrix(Out<T, 2>(c)), {M, N, K}, {}, packed.data(),
                                    Seen{visible});
  kernels::generic::gemm<T>(kernels::matrix<T>(a), kernels::matrix<T>(b),
                            kernels::matrix(Out<T, 2>(plain)), {M, N, K}, {}, packed.data());
  CHECK(same_bits(c, plain));
}

/// A non-finite element in a row of b that only row 0 sees: the other rows keep their bits.
template <class T>
void check_other_rows_keep_their_bits() {
  constexpr Index M = 9, N = 7, K = 300;
  const auto visible = [](Index m) { return [m](Index k) { return k < 299 || m == 0; }; };
  const Tensor2<T> a = weights<T>(M, K, visible), clean = normal<T>(K, N, 2);
  Tensor2<T> b = clean;
  b(299, 3) = special<T>(0);
  std::vector<T> packed = scratch<T>({M, N, K});
  Tensor2<T> c(Shape{M, N}), plain(Shape{M, N});
  const auto run = [&](const Tensor2<T>& values, Tensor2<T>& result) {
    kernels::generic::gemm_visible<T>(kernels::matrix<T>(a), kernels::matrix<T>(values),
                                      kernels::matrix(Out<T, 2>(result)), {M, N, K}, {},
                                      packed.data(), Seen{visible});
  };
  run(b, c);
  run(clean, plain);
  bool shows_in_row_0 = !(c(0, 3) == c(0, 3));
  CHECK(shows_in_row_0);
  for (Index n = 0; n < N; ++n) c(0, n) = plain(0, n) = T(0);
  CHECK(same_bits(c, plain));
}

}  // namespace

TEST_CASE("gemm_visible has the bits of gemm where b is finite", "[kernels]") {
  for (Index K : {1, 5, 9, 257}) {
    check_finite<float>(8, 5, K);
    check_finite<double>(8, 5, K);
    check_finite<long double>(8, 5, K);
  }
}

TEST_CASE("what gemm_visible hides from a row counts as 0 there, NaN and infinities too",
          "[kernels]") {
  for (Index M : {1, 6, 7}) {
    for (Index K : {1, 5, 257}) {
      check_hidden_rows<float>(M, 9, K);
      check_hidden_rows<double>(M, 3, K);
      check_hidden_rows<long double>(M, 2, K);
    }
  }
}

TEST_CASE("a NaN that one row sees shows there and changes no bit elsewhere", "[kernels]") {
  check_other_rows_keep_their_bits<float>();
  check_other_rows_keep_their_bits<double>();
  check_other_rows_keep_their_bits<long double>();
}

TEST_CASE("all_finite sees one NaN or infinity anywhere and no large number", "[kernels]") {
  const auto check = [](auto type, InstructionSet set) {
    using T = decltype(type);
    CAPTURE(name_of(set), sizeof(T));
    const auto all_finite = kernels::kernels_of<T>(set).all_finite;
    for (const Index columns : {7, 37}) {
      Tensor2<T> x = normal<T>(5, columns, 4);
      const kernels::Matrix<const T> matrix = kernels::matrix<T>(x);
      x(0, 0) = std::numeric_limits<T>::max();
      x(4, 6) = std::numeric_limits<T>::lowest();
      x(2, 2) = std::numeric_limits<T>::denorm_min();
      CHECK(all_finite(matrix, 5, columns));
      int found = 0;
      for_each_index(x.shape(), [&](const Shape<2>& i) {
        const T before = x(i);
        for (int kind : {0, 1, 2}) {
          x(i) = special<T>(kind);
          found += all_finite(matrix, 5, columns) ? 0 : 1;
          found += all_finite(matrix.transposed(), columns, 5) ? 0 : 1;
        }
        x(i) = before;
      });
      CHECK(found == 5 * columns * 6);
      x(4, columns - 1) = special<T>(0);
      CHECK(all_finite(matrix, 4, columns));      // not beyond its rows
      CHECK(all_finite(matrix, 5, columns - 1));  // nor its columns
      CHECK(all_finite(matrix, 0, 0));
    }
  };
  for (const auto set : headwise_tests::supported_instruction_sets()) {
    check(float{}, set);
    check(double{}, set);
  }
  check(static_cast<long double>(0), InstructionSet::generic);
}

}  // namespace kernels_gemm_visible
