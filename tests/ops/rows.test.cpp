// How row-wise operations are cut into tasks, and that no bit depends on it.
#include "headwise/ops/rows.hpp"

#include <vector>

#include "headwise/ops/dropout.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/softmax.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"

namespace ops_rows {

using namespace headwise;

namespace {

Tensor<float, 2> normal(Index N, Index D, std::uint64_t seed) {
  Tensor<float, 2> x(Shape{N, D});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] =
        static_cast<float>(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// All that row-wise operations make of x and dy.
std::vector<Tensor<float, 2>> results(const Tensor<float, 2>& x, const Tensor<float, 2>& dy,
                                      const Context& context) {
  const Index N = x.extent(0), D = x.extent(1);
  std::vector<Tensor<float, 2>> all;
  for (int n = 0; n < 6; ++n) all.emplace_back(x.shape());
  all.emplace_back(Shape{3, D});
  Tensor<float, 1> mean(Shape{N}), rstd(Shape{N});
  const Dropout dropout{.rate = 0.3, .seed = 8};
  const auto sums = [&](Index row) { return select(all[6], row); };
  layer_norm_forward(x, {select(dy, 0), select(dy, 1)}, 1e-5f, all[0], {mean, rstd}, context);
  layer_norm_backward(In<float, 2>(dy), x, select(x, 0), {mean, rstd}, all[1], {sums(0), sums(1)},
                      context);
  bias_backward(In<float, 2>(dy), sums(2), context);
  softmax_forward(x, all[2], context);
  softmax_backward(In<float, 2>(dy), all[2], all[3], context);
  dropout_forward(x, dropout, all[4], context);
  dropout_forward(x, {}, all[5], context);
  return all;
}

/// Calls tasks from the last to the first and says that there are many workers.
struct Backwards {
  Index workers;
  Index concurrency() const { return workers; }
  void run(Index tasks, TaskRef task) const {
    for (Index t = tasks; t-- > 0;) task(t, t % workers);
  }
};

}  // namespace

TEST_CASE("work along rows and down columns is cut without a gap or an overlap", "[ops]") {
  for (const Index workers : {1, 2, 3, 16}) {
    Backwards executor{workers};
    const Context context{.executor = executor};
    for (const Index N : {0, 1, 5, 100, 3000}) {
      for (const Index D : {0, 1, 63, 64, 65, 1000, 20000}) {
        std::vector<int> rows(static_cast<std::size_t>(N)), columns(static_cast<std::size_t>(D));
        const auto count = [](std::vector<int>& of) {
          return [&](Index begin, Index end) {
            for (Index n = begin; n < end; ++n) ++of.at(static_cast<std::size_t>(n));
          };
        };
        detail::for_rows(context, N, D, count(rows));
        detail::for_columns(context, N, D, count(columns));
        CAPTURE(workers, N, D);
        CHECK(rows == std::vector<int>(rows.size(), 1));
        CHECK(columns == std::vector<int>(columns.size(), 1));
      }
    }
  }
}

TEST_CASE("row-wise operations have the same bits for any cut into tasks", "[ops]") {
  for (const Index D : {1, 70, 300}) {
    const auto x = normal(300, D, 1), dy = normal(300, D, 2);
    const auto expected = results(x, dy, {});
    for (const Index workers : {2, 3, 16}) {
      Backwards executor{workers};
      const auto got = results(x, dy, {.executor = executor});
      for (std::size_t n = 0; n < got.size(); ++n) {
        CAPTURE(D, workers, n);
        CHECK(bitwise_equal(In<float, 2>(got[n]), In<float, 2>(expected[n])));
      }
    }
  }
}

}  // namespace ops_rows
