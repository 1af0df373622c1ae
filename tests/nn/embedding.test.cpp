#include "headwise/nn/embedding.hpp"

#include <cmath>
#include <limits>

#include "headwise/tensor/philox.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"

namespace nn_embedding {

using namespace headwise;

namespace {

using Real = long double;

template <class T>
Tensor2<T> normal(Index rows, Index columns, std::uint64_t seed) {
  Tensor2<T> x(Shape{rows, columns});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

const Tensor1<std::int32_t> tokens(Shape{6}, {3, 0, 3, 4, 1, 3});

}  // namespace

TEST_CASE("an embedding starts with normal numbers of deviation 0.02, the same for a seed",
          "[nn]") {
  const Embedding<double> embedding(300, 70);
  double sum = 0, squares = 0;
  for (double w : embedding.parameters().table) sum += w, squares += w * w;
  CHECK(std::abs(sum / 21000) < 4 * 0.02 / std::sqrt(21000.0));
  CHECK(std::abs(std::sqrt(squares / 21000) / 0.02 - 1) < 0.02);  // 4 / sqrt(2 * 21000)
  CHECK(bitwise_equal(embedding.parameters().table, Embedding<double>(300, 70).parameters().table));
  CHECK_FALSE(bitwise_equal(embedding.parameters().table,
                            Embedding<double>(300, 70, 0.02, 1).parameters().table));
  const Embedding<double> wide(300, 70, 0.5);
  CHECK(std::abs(wide.parameters().table(7, 7) - 25 * embedding.parameters().table(7, 7)) < 1e-14);
}

TEST_CASE("an embedding with its tied head has the gradients of its function", "[nn]") {
  Embedding<Real> embedding(5, 4, 1.0, 3);
  const auto d_logits = normal<Real>(6, 5, 4);
  const auto logits = [&] { return embedding.logits(embedding.forward(tokens)); };
  Embedding<Real>::Cache cache;
  auto gradients = embedding.zero_gradients();
  const auto h = embedding.forward(tokens, cache);
  CHECK(bitwise_equal(h, embedding.forward(tokens)));
  const auto dh = embedding.logits_backward(d_logits, h, gradients);
  embedding.backward(dh, cache, gradients);
  GradientCheck<Real> check({.tolerance = 1e-11, .stencil = Stencil::five_point});
  check.input("table", embedding.parameters().table, gradients.table);
  const auto report = check.run([&] { return weighted_sum(d_logits, logits()); });
  CAPTURE(report);
  CHECK(report);
}

TEST_CASE("the tied head is a linear layer whose weight is the table's transpose, to the bit",
          "[nn]") {
  for (Index V : {1, 17, 65, 130}) {
    for (Index N : {1, 5, 40}) {
      CAPTURE(V, N);
      const Index D = 33;
      const auto h = normal<float>(N, D, 5), table = normal<float>(V, D, 6),
                 d_logits = normal<float>(N, V, 7), start = normal<float>(V, D, 8);
      Tensor2<float> w(Shape{D, V}), logits(Shape{N, V}), want(Shape{N, V}), dh(h.shape()),
          want_dh(h.shape()), dtable = start, dw(Shape{D, V});
      copy(table, transpose(w, 0, 1));
      copy(start, transpose(dw, 0, 1));
      tied_head_forward(h, table, logits);
      linear_forward(h, w, {}, want);
      CHECK(bitwise_equal(logits, want));
      tied_head_backward(d_logits, h, table, dh, dtable);
      linear_backward(d_logits, h, w, want_dh, dw, {});
      CHECK(bitwise_equal(dh, want_dh));
      CHECK(bitwise_equal(In<float, 2>(dtable), In<float, 2>(transpose(dw, 0, 1))));
      Tensor2<float> only_dh(h.shape()), only_dtable = start;
      tied_head_backward(d_logits, h, table, only_dh, {});
      tied_head_backward(d_logits, h, table, {}, only_dtable);
      CHECK(bitwise_equal(only_dh, dh));
      CHECK(bitwise_equal(only_dtable, dtable));
    }
  }
}

TEST_CASE("a row that has no part in the loss adds nothing to the table, even if it holds NaN",
          "[nn]") {
  auto h = normal<double>(4, 3, 9), d_logits = normal<double>(4, 5, 10);
  const auto table = normal<double>(5, 3, 11);
  Tensor2<double> clean(table.shape()), spoilt(table.shape());
  fill(select(d_logits, 2), 0.0);
  tied_head_backward(d_logits, h, table, {}, clean);
  fill(select(h, 2), std::numeric_limits<double>::quiet_NaN());
  tied_head_backward(d_logits, h, table, {}, spoilt);
  CHECK(bitwise_equal(spoilt, clean));
}

TEST_CASE("parameters of an embedding are walked by name, and tokens may go before backward",
          "[nn]") {
  Embedding<float> embedding(5, 2);
  Embedding<float>::Cache cache;
  {
    const Tensor1<std::int64_t> gone(Shape{2}, {4, 1});
    (void)embedding.forward(gone, cache);
  }
  auto gradients = embedding.zero_gradients();
  embedding.backward(Tensor2<float>(Shape{2, 2}, {1, 2, 3, 4}), cache, gradients);
  CHECK(
      bitwise_equal(gradients.table, Tensor2<float>(Shape{5, 2}, {0, 0, 3, 4, 0, 0, 0, 0, 1, 2})));
  int walked = 0;
  embedding.parameters().for_each(
      [&](const std::string& name, auto view) {
        CHECK(name == "token.table");
        CHECK(view.shape() == Shape{5, 2});
        ++walked;
      },
      "token.");
  CHECK(walked == 1);
}

}  // namespace nn_embedding
