#include "headwise/ops/embedding.hpp"

#include <limits>
#include <vector>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_embedding {

using namespace headwise;

namespace {

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// N tokens of V, some of them often.
template <class I>
Tensor1<I> some_tokens(Index N, Index V, std::uint64_t seed = 1) {
  Tensor1<I> tokens(N);
  for (Index n = 0; n < N; ++n) {
    const auto words = philox<10>({static_cast<std::uint32_t>(n), 0, 0, 0}, philox_key(seed));
    const auto drawn = static_cast<Index>(words[0] % static_cast<std::uint32_t>(V));
    tokens(n) = static_cast<I>(words[1] % 3 == 0 ? V / 2 : drawn);
  }
  return tokens;
}

/// start + what the tokens' rows add, one after the other.
template <class T, class I>
Tensor2<T> added(Tensor2<T> start, const Tensor2<T>& dy, const Tensor1<I>& tokens) {
  for (Index n = 0; n < tokens.size(); ++n) {
    for (Index j = 0; j < dy.extent(1); ++j) {
      T& sum = start(static_cast<Index>(tokens(n)), j);
      sum = sum + dy(n, j);
    }
  }
  return start;
}

template <class T, class I>
void check_pair(Index N, Index V, Index D) {
  CAPTURE(sizeof(T), sizeof(I), N, V, D);
  const auto table = normal<T>(Shape{V, D}, 1), dy = normal<T>(Shape{N, D}, 2);
  const auto tokens = some_tokens<I>(N, V);
  Tensor2<T> y(Shape{N, D}), dtable = table;
  embedding_forward(tokens, table, y);
  for (Index n = 0; n < N; ++n) {
    CHECK(bitwise_equal(In<T, 1>(select(y, n)),
                        In<T, 1>(select(table, static_cast<Index>(tokens(n))))));
  }
  embedding_backward(dy, tokens, dtable);
  CHECK(bitwise_equal(dtable, added(table, dy, tokens)));
}

}  // namespace

TEST_CASE("embedding_forward copies rows and embedding_backward adds them in the order of tokens",
          "[ops]") {
  for (Index N : {1, 2, 37}) {
    for (Index V : {1, 5, 64}) {
      for (Index D : {1, 3, 8, 63, 64, 65, 130, 257}) {
        check_pair<float, std::int32_t>(N, V, D);
        check_pair<double, std::int64_t>(N, V, D);
      }
    }
  }
  check_pair<long double, std::int32_t>(19, 4, 7);
}

TEST_CASE("the gradient of an embedding's table is the slope of forward", "[ops]") {
  const auto tokens = some_tokens<std::int32_t>(6, 4);
  const auto table = normal<long double>(Shape{4, 3}, 3);
  const auto forward = [&](const Tensor2<long double>& at) {
    Tensor2<long double> y(Shape{6, 3});
    embedding_forward(tokens, at, y);
    return y;
  };
  const auto backward = [&](const Tensor2<long double>& dy) {
    Tensor2<long double> dtable(table.shape());
    embedding_backward(dy, tokens, dtable);
    return dtable;
  };
  const auto report = check_op(forward, backward, In<long double, 2>(table), {.tolerance = 1e-12});
  CAPTURE(report);
  CHECK(report);
}

TEST_CASE("embedding has the same bits on any threads and through any strides", "[ops]") {
  const Index N = 200, V = 11, D = 300;
  const auto table = normal<float>(Shape{V, D}, 4), dy = normal<float>(Shape{N, D}, 5);
  const auto tokens = some_tokens<std::int64_t>(N, V);
  Tensor2<float> y(Shape{N, D}), dtable = table;
  embedding_forward(tokens, table, y);
  embedding_backward(dy, tokens, dtable);
  for (Index threads : {2, 3, 7, 16}) {
    ThreadPool pool(threads);
    const Context context{.executor = pool};
    Tensor2<float> y_here(Shape{N, D}), dtable_here = table;
    embedding_forward(tokens, table, y_here, context);
    embedding_backward(dy, tokens, dtable_here, context);
    CHECK(bitwise_equal(y_here, y));
    CHECK(bitwise_equal(dtable_here, dtable));
  }
  Tensor2<float> turned_table(Shape{D, V}), turned_y(Shape{D, N}), turned_dy(Shape{D, N});
  copy(table, transpose(turned_table, 0, 1));
  copy(dy, transpose(turned_dy, 0, 1));
  Tensor1<std::int64_t> wide(2 * N);
  for (Index n = 0; n < N; ++n) wide(2 * n) = tokens(n), wide(2 * n + 1) = -5;
  const In<std::int64_t, 1> every_other(wide.data(), Shape{N}, Shape{2});
  embedding_forward(every_other, In<float, 2>(transpose(turned_table, 0, 1)),
                    transpose(turned_y, 0, 1));
  CHECK(bitwise_equal(In<float, 2>(transpose(turned_y, 0, 1)), In<float, 2>(y)));
  embedding_backward(In<float, 2>(transpose(turned_dy, 0, 1)), every_other,
                     transpose(turned_table, 0, 1));
  CHECK(bitwise_equal(In<float, 2>(transpose(turned_table, 0, 1)), In<float, 2>(dtable)));
}

TEST_CASE("rows of the table that no token names are neither read nor written", "[ops]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor2<double> table(Shape{5, 66}), y(Shape{3, 66});
  fill(table, nan);
  fill(select(table, 2), 1.5);
  const Tensor1<std::int32_t> tokens(Shape{3}, {2, 2, 2});
  embedding_forward(tokens, table, y);
  for (double element : y) CHECK(element == 1.5);
  Tensor2<double> expected = table;
  fill(select(expected, 2), 6.0);
  embedding_backward(y, tokens, table);
  CHECK(bitwise_equal(table, expected));
}

TEST_CASE("an embedding of no token, or of no width, is nothing", "[ops]") {
  const Tensor1<std::int32_t> none(Shape{0}), one(Shape{1}, {0});
  Tensor2<float> empty(Shape{0, 4}), table(Shape{0, 4}), flat(Shape{1, 0}), y(Shape{1, 0});
  CHECK_NOTHROW(embedding_forward(none, table, empty));
  CHECK_NOTHROW(embedding_backward(empty, none, table));
  CHECK_NOTHROW(embedding_forward(one, flat, y));
  CHECK_NOTHROW(embedding_backward(y, one, flat));
}

TEST_CASE("embedding tallies an addition an element of dy, whatever the table", "[ops]") {
  using headwise_tests::Counting;
  const auto dy = normal<Counting>(Shape{5, 70}, 6);
  const auto tokens = some_tokens<std::int32_t>(5, 1000);
  Tensor2<Counting> dtable(Shape{1000, 70});
  FlopTally flops;
  const auto counted = headwise_tests::count_operations(
      [&] { embedding_backward(dy, tokens, dtable, {.flops = &flops}); });
  CHECK(flops.useful == 5 * 70);
  CHECK(counted.total() == 5 * 70);
  CHECK(counted.additions == 5 * 70);
}

}  // namespace ops_embedding
