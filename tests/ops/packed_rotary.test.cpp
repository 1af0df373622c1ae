// Rotary positions of sequences that lie one behind the other, against each of them alone.
#include "headwise/ops/packed_rotary.hpp"

#include <vector>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_packed_rotary {

using namespace headwise;

namespace {

using Starts = std::vector<Index>;

template <class T>
Tensor3<T> normal(const Shape<3>& shape, std::uint64_t seed) {
  Tensor3<T> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// The rows of one sequence [n, H, d] as [1, H, n, d].
template <class T>
Tensor4<T> alone(const Tensor3<T>& x, Index begin, Index end) {
  const In<T, 3> rows = transpose(slice(as_view(x), 0, begin, end - begin), 0, 1);
  Tensor4<T> copied(Shape{Index{1}, x.extent(1), end - begin, x.extent(2)});
  copy(rows, select(as_view(copied), 0));
  return copied;
}

template <class T>
void check_sequences(const Starts& starts, const RotaryOptions& options) {
  const Index N = starts.back(), H = 3, d = 10;
  const auto x = normal<T>(Shape{N, H, d}, 1);
  Tensor3<T> y(x.shape()), dx(x.shape());
  packed_rotary_forward(x, starts, options, y);
  packed_rotary_backward(x, starts, options, dx);
  for (std::size_t b = 1; b < starts.size(); ++b) {
    CAPTURE(b, starts[b - 1], starts[b], sizeof(T));
    Tensor4<T> expected = alone(x, starts[b - 1], starts[b]);
    Tensor4<T> turned(expected.shape());
    rotary_forward(expected, options, turned);
    CHECK(bitwise_equal(alone(y, starts[b - 1], starts[b]), turned));
    rotary_backward(expected, options, turned);
    CHECK(bitwise_equal(alone(dx, starts[b - 1], starts[b]), turned));
  }
}

}  // namespace

TEST_CASE("rotary positions of packed sequences have the bits of each sequence alone", "[ops]") {
  const Tensor1<double> frequencies(Shape{3}, {0.5, -0.25, 0.0});
  const std::vector<RotaryOptions> all = {
      {},
      {.theta = 500, .width = 4, .pairing = RotaryPairing::interleaved, .offset = 7},
      {.width = 6, .offset = 2, .frequencies = frequencies}};
  for (const RotaryOptions& options : all) {
    for (const Starts& starts : {Starts{0, 4, 4, 5, 90}, Starts{0, 0, 300, 300}, Starts{0, 6}}) {
      check_sequences<float>(starts, options);
      check_sequences<double>(starts, options);
      check_sequences<long double>(starts, options);
    }
  }
}

TEST_CASE("packed rotary positions have the same bits in place, by any strides and on any threads",
          "[ops]") {
  const Starts starts = {0, 60, 61, 61, 200};
  const RotaryOptions options{.width = 8, .offset = 3};
  const auto x = normal<float>(Shape{200, 4, 12}, 2);
  Tensor3<float> y(x.shape()), in_place = x, turned(Shape{12, 4, 200});
  packed_rotary_forward(x, starts, options, y);
  packed_rotary_forward(in_place, starts, options, in_place);
  CHECK(bitwise_equal(in_place, y));
  const auto odd = transpose(as_view(turned), 0, 2);
  copy(x, odd);
  packed_rotary_forward(In<float, 3>(odd), starts, options, odd);
  CHECK(bitwise_equal(In<float, 3>(odd), In<float, 3>(y)));
  for (Index threads : {2, 5}) {
    ThreadPool pool(threads);
    Tensor3<float> here(x.shape());
    packed_rotary_forward(x, starts, options, here, {.executor = pool});
    CHECK(bitwise_equal(here, y));
  }
}

TEST_CASE("the gradient of packed rotary positions is that of differences", "[ops]") {
  const Starts starts = {0, 2, 2, 5};
  const RotaryOptions options{.pairing = RotaryPairing::interleaved, .offset = 1};
  const auto turned = [&](const Tensor3<long double>& x, bool back) {
    Tensor3<long double> y(x.shape());
    back ? packed_rotary_backward(x, starts, options, y)
         : packed_rotary_forward(x, starts, options, y);
    return y;
  };
  const auto x = normal<long double>(Shape{5, 2, 4}, 3);
  const auto report = check_op([&](const Tensor3<long double>& at) { return turned(at, false); },
                               [&](const Tensor3<long double>& dy) { return turned(dy, true); },
                               In<long double, 3>(x), {.tolerance = 1e-12});
  CAPTURE(report);
  CHECK(report);
}

TEST_CASE("packed rotary positions count what they turn, and take no rows at all", "[ops]") {
  FlopTally tally;
  const auto x = normal<float>(Shape{9, 2, 6}, 4);
  Tensor3<float> y(x.shape());
  packed_rotary_forward(x, Starts{0, 5, 9}, {.width = 4}, y, {.flops = &tally});
  CHECK(tally.useful == 3 * 9 * 2 * 4);
  const Tensor3<float> none(Shape{0, 2, 6});
  Tensor3<float> nothing(none.shape());
  packed_rotary_forward(none, Starts{0, 0, 0}, {}, nothing);
  packed_rotary_backward(none, Starts{0}, {}, nothing);
}

}  // namespace ops_packed_rotary
