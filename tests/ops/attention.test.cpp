// The oracle itself, both attentions against it over layouts and empty shapes, and the laws that
// hold without an oracle.
#include <cmath>
#include <limits>
#include <numeric>

#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_attention {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{1, 1, 1, 1, 1, 1, 1},
                                   {2, 4, 2, 47, 65, 5, 3},
                                   {1, 3, 1, 67, 63, 8, 9},
                                   {2, 2, 2, 49, 131, 17, 4},
                                   beyond_tiles};

Real inner(const Field& a, const Field& b) {
  return std::inner_product(a.values.begin(), a.values.end(), b.values.begin(), Real{0});
}

/// x + step u
Field moved(const Field& x, const Field& u, Real step) {
  Field y = x;
  for (std::size_t n = 0; n < y.values.size(); ++n) y.values[n] += step * u.values[n];
  return y;
}

/// Both attentions through views of any strides; the results as dense copies.
template <class T>
Outputs<T> run_views(Path path, const Case<T>& x, View4<T> q, View4<T> k, View4<T> v, View4<T> d_o,
                     View4<T> weights, View4<T> lse, View4<T> o, View4<T> dq, View4<T> dk,
                     View4<T> dv) {
  copy(In<T, 4>(x.q), q), copy(In<T, 4>(x.k), k), copy(In<T, 4>(x.v), v);
  copy(In<T, 4>(x.d_o), d_o);
  Outputs<T> y;
  if (path == Path::materialized) {
    attention_forward(q, k, v, x.options, weights, o);
    attention_backward(d_o, {q, k, v}, weights, x.options, {dq, dk, dv});
    y.weights = contiguous(In<T, 4>(weights));
  } else {
    flash_attention_forward(q, k, v, x.options, o, lse);
    flash_attention_backward(d_o, {q, k, v}, o, lse, x.options, {dq, dk, dv});
    y.lse = contiguous(In<T, 4>(lse));
  }
  y.o = contiguous(In<T, 4>(o));
  y.dq = contiguous(In<T, 4>(dq));
  y.dk = contiguous(In<T, 4>(dk));
  y.dv = contiguous(In<T, 4>(dv));
  return y;
}

}  // namespace

TEST_CASE("the gradients of the oracle are its finite differences", "[ops]") {
  const Index kind = GENERATE(range(0, 5));
  Case<double> x(Sizes{2, 2, 1, 3, 4, 2, 3}, 10);
  if (kind == 1) x.causal(), x.keys(true);
  if (kind == 2) x.bias(Shape{2, 2, 3, 4}, 0.3, -std::numeric_limits<double>::infinity());
  if (kind == 3) x.dropout(0.4), x.scale(0.9);
  if (kind == 4) x.window(2), x.bias(Shape{1, 2, 1, 4}), x.dropout(0.2);
  CAPTURE(kind);
  const OracleProblem problem = x.problem();
  const OracleResult y = oracle_attention(problem);
  const auto greatest_gap = [&](Field OracleProblem::*input, const Field& gradient) {
    Real gap = 0;
    for (Index n = 0; n < static_cast<Index>(gradient.values.size()); ++n) {
      Field u(static_cast<Index>(gradient.values.size()));
      u[n] = 1;
      OracleProblem up = problem, down = problem;
      up.*input = moved(problem.*input, u, 1e-6L);
      down.*input = moved(problem.*input, u, -1e-6L);
      const Real slope =
          inner(problem.d_o, oracle_attention(up).o) - inner(problem.d_o, oracle_attention(down).o);
      gap = std::max(gap, std::abs(slope / 2e-6L - gradient[n]));
    }
    return gap;
  };
  // Truncation 1e-12 and cancellation 1e-19 / 1e-6.
  CHECK(greatest_gap(&OracleProblem::q, y.dq) < 1e-10L);
  CHECK(greatest_gap(&OracleProblem::k, y.dk) < 1e-10L);
  CHECK(greatest_gap(&OracleProblem::v, y.dv) < 1e-10L);
  Field wrong = y.dv;
  wrong[5] += 1e-9L;
  CHECK(greatest_gap(&OracleProblem::v, wrong) > 1e-10L);
}

TEST_CASE("the comparisons of these tests refuse what is wrong", "[ops]") {
  Case<double> x(Sizes{1, 2, 1, 5, 7, 3, 4}, 20);
  x.causal();
  const OracleResult expected = oracle_attention(x.problem());
  const Outputs<double> right = run(Path::flash, x);
  REQUIRE(disagreement(right, expected, x.sizes) == "");
  REQUIRE(bit_difference(right, right) == "");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (double wrong : {right.dk(0, 0, 6, 2) + 1e-11, nan, infinity, -infinity}) {
    Outputs<double> y = right;
    y.dk(0, 0, 6, 2) = wrong;
    CAPTURE(wrong);
    CHECK_THAT(disagreement(y, expected, x.sizes), ContainsSubstring("dk is off"));
    CHECK(bit_difference(y, right) == "dk ");
  }
  Outputs<double> y = right;
  y.lse(0, 1, 4, 0) = -infinity;
  CHECK_THAT(disagreement(y, expected, x.sizes), ContainsSubstring("lse is off by inf"));
  y = right;
  y.o = Tensor4<double>(Shape{1, 2, 5, 3});
  CHECK_THAT(disagreement(y, expected, x.sizes), ContainsSubstring("o is off by inf"));
  CHECK(bit_difference(y, right) == "o ");
  y = right;
  y.dq(0, 0, 0, 0) = std::nextafter(y.dq(0, 0, 0, 0), infinity);
  CHECK(bit_difference(y, right) == "dq ");
  x.rules.clear();
  CHECK(disagreement(right, oracle_attention(x.problem()), x.sizes) != "");
}

TEMPLATE_TEST_CASE("both attentions equal the oracle, each in its own precision", "[ops]", float,
                   double, long double) {
  std::uint64_t seed = 30;
  for (const Sizes& sizes : shapes) {
    Case<TestType> x(sizes, ++seed);
    x.causal(), x.bias(Shape{1, sizes.H, sizes.L, sizes.S});
    CAPTURE(sizes.format(), seed);
    const OracleResult expected = oracle_attention(x.problem());
    CHECK(disagreement(run(Path::materialized, x), expected, sizes) == "");
    CHECK(disagreement(run(Path::flash, x), expected, sizes) == "");
  }
}

TEMPLATE_TEST_CASE("heads of one fused projection are read and written in place, to the same bits",
                   "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Sizes s = GENERATE(values<Sizes>({{2, 4, 2, 67, 67, 5, 3}, {2, 2, 1, 8, 8, 16, 16}}));
  const Index kd = s.H * s.d, vd = kd + s.G * s.d, end = vd + s.G * s.dv;
  Case<TestType> x(s, 40);
  x.causal(), x.keys(true);
  Tensor3<TestType> fused({s.B, s.L, end + 3}), d_fused(fused.shape());
  fill<TestType, 3>(d_fused, 555);
  Tensor3<TestType> context({s.B, s.L, s.H * s.dv}), d_context(context.shape());
  Tensor4<TestType> weights({s.B, s.L, s.H, s.S});
  Tensor4<TestType> lse({s.B, s.L, s.H, Index{2}});
  const auto heads = [](auto& storage, Index begin, Index last, Index count) {
    return split_heads(slice(storage, 2, begin, last - begin), count);
  };
  const Outputs<TestType> y = run_views<TestType>(
      path, x, heads(fused, 0, kd, s.H), heads(fused, kd, vd, s.G), heads(fused, vd, end, s.G),
      split_heads(d_context, s.H), transpose(weights, 1, 2), transpose(lse, 1, 2),
      split_heads(context, s.H), heads(d_fused, 0, kd, s.H), heads(d_fused, kd, vd, s.G),
      heads(d_fused, vd, end, s.G));
  CHECK(bit_difference(y, run(path, x)) == "");
  Index touched = 0;
  for_each_index(Shape{s.B, s.L, Index{3}}, [&](const Shape<3>& i) {
    touched += d_fused(i[0], i[1], end + i[2]) == 555 ? 0 : 1;
  });
  CHECK(touched == 0);
}

TEMPLATE_TEST_CASE("transposed storage gives the same bits as dense storage", "[ops]", float,
                   double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for (const Sizes& s : shapes) {
    Case<TestType> x(s, 50);
    x.causal(), x.bias(Shape{1, s.H, s.L, s.S});
    Tensor4<TestType> q({s.B, s.H, s.d, s.L}), k({s.G, s.d, s.B, s.S}), v({s.B, s.G, s.dv, s.S}),
        d_o({s.B, s.H, s.dv, s.L}), weights({s.B, s.H, s.S, s.L}), o(d_o.shape()), dq(q.shape()),
        dk({s.B, s.G, s.d, s.S}), dv(v.shape());
    Tensor4<TestType> lse({s.L, s.H, s.B, Index{2}});
    const bool tiled = path == Path::flash;
    CAPTURE(s.format(), tiled);
    const Outputs<TestType> y = run_views<TestType>(
        path, x, transpose(q, 2, 3), transpose(transpose(transpose(k, 0, 2), 1, 2), 2, 3),
        transpose(v, 2, 3), transpose(d_o, 2, 3), transpose(weights, 2, 3), transpose(lse, 0, 2),
        transpose(o, 2, 3), transpose(dq, 2, 3), transpose(dk, 2, 3), transpose(dv, 2, 3));
    CHECK(bit_difference(y, run(path, x)) == "");
  }
}

TEMPLATE_TEST_CASE("an extent of 0 gives empty outputs, zero outputs and zero gradients", "[ops]",
                   float, double) {
  for (Index Sizes::*extent : {&Sizes::B, &Sizes::H, &Sizes::L, &Sizes::S, &Sizes::d, &Sizes::dv}) {
    for (const bool masked : {false, true}) {
      Sizes s{2, 2, 1, 5, 7, 3, 4};
      s.*extent = 0;
      Case<TestType> x(s, 60);
      if (masked) x.causal(), x.keys(true), x.bias(Shape{1, 1, s.L, s.S}), x.dropout(0.5);
      CAPTURE(s.format(), masked);
      const OracleResult expected = oracle_attention(x.problem());
      CHECK(disagreement(run(Path::materialized, x), expected, s) == "");
      CHECK(disagreement(run(Path::flash, x), expected, s) == "");
    }
  }
  Case<TestType> x(Sizes{2, 0, 0, 5, 7, 3, 4}, 61);
  CHECK_NOTHROW(run(Path::materialized, x));
  CHECK_NOTHROW(run(Path::flash, x));
}

TEMPLATE_TEST_CASE("a constant added to all scores of a row changes nothing but its logsumexp",
                   "[ops]", float, double) {
  for (const Sizes& s : shapes) {
    Case<TestType> x(s, 70);
    x.causal();
    OracleResult expected = oracle_attention(x.problem());
    x.bias(Shape{1, s.H, s.L, 1}, 0.5, TestType(-40));
    expected.condition = oracle_attention(x.problem()).condition;
    for (Path path : {Path::materialized, Path::flash}) {
      Outputs<TestType> y = run(path, x);
      y.lse = {};
      CAPTURE(s.format());
      CHECK(disagreement(y, expected, s) == "");
    }
  }
}

TEMPLATE_TEST_CASE("keys may change places if their values do", "[ops]", float, double) {
  for (const Sizes& s : shapes) {
    const Case<TestType> x(s, 80);
    Case<TestType> turned = x;
    const auto place = [&](const Shape<4>& i) {
      return Shape{i[0], i[1], (i[2] * 2 + 5) % s.S, i[3]};  // 2 and S have no common divisor
    };
    for_each_index(x.k.shape(), [&](const Shape<4>& i) { turned.k(place(i)) = x.k(i); });
    for_each_index(x.v.shape(), [&](const Shape<4>& i) { turned.v(place(i)) = x.v(i); });
    const OracleResult expected = oracle_attention(x.problem());
    for (Path path : {Path::materialized, Path::flash}) {
      const Outputs<TestType> y = run(path, turned);
      Outputs<TestType> back = y;
      back.weights = {};
      for_each_index(x.k.shape(), [&](const Shape<4>& i) { back.dk(i) = y.dk(place(i)); });
      for_each_index(x.v.shape(), [&](const Shape<4>& i) { back.dv(i) = y.dv(place(i)); });
      CAPTURE(s.format());
      CHECK(disagreement(back, expected, s) == "");
    }
  }
}

TEMPLATE_TEST_CASE("grouped heads are repeated keys and values, and gradients sum over a group",
                   "[ops]", float, double) {
  const Index G = GENERATE(1, 2, 3, 6);
  const Sizes s{2, 6, G, 49, 67, 5, 4}, all{2, 6, 6, 49, 67, 5, 4};
  Case<TestType> x(s, 90), repeated(all, 90);
  x.causal(), repeated.causal();
  const auto of_group = [&](Shape<4> i) { return i[1] /= s.H / G, i; };
  repeated.q = x.q;
  repeated.d_o = x.d_o;
  for_each_index(repeated.k.shape(), [&](const Shape<4>& i) { repeated.k(i) = x.k(of_group(i)); });
  for_each_index(repeated.v.shape(), [&](const Shape<4>& i) { repeated.v(i) = x.v(of_group(i)); });
  const OracleResult expected = oracle_attention(x.problem());
  for (Path path : {Path::materialized, Path::flash}) {
    const Outputs<TestType> grouped = run(path, x), y = run(path, repeated);
    Outputs<TestType> summed = y;
    summed.dk = Tensor4<TestType>(x.k.shape());
    summed.dv = Tensor4<TestType>(x.v.shape());
    for_each_index(y.dk.shape(), [&](const Shape<4>& i) { summed.dk(of_group(i)) += y.dk(i); });
    for_each_index(y.dv.shape(), [&](const Shape<4>& i) { summed.dv(of_group(i)) += y.dv(i); });
    CAPTURE(G);
    CHECK(disagreement(summed, expected, s) == "");
    CHECK(disagreement(grouped, expected, s) == "");
    CHECK(same_bits(grouped.o, y.o));
    CHECK(same_bits(grouped.dq, y.dq));
  }
}

TEST_CASE("backward is the adjoint of the derivative of forward", "[ops]") {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for (const Sizes& s : shapes) {
    Case<double> x(s, 95);
    Case<long double> wide(s, 95);  // the same numbers
    x.causal(), wide.causal();
    Numbers numbers(96);
    const auto uq = numbers.tensor<long double>(x.q.shape());
    const auto uk = numbers.tensor<long double>(x.k.shape());
    const auto uv = numbers.tensor<long double>(x.v.shape());
    const auto loss = [&](Real step) {
      Tensor4<long double> q = wide.q, k = wide.k, v = wide.v, o(wide.d_o.shape());
      Tensor4<long double> weights(Shape{s.B, s.H, s.L, s.S});
      for_each_index(q.shape(), [&](const Shape<4>& i) { q(i) += step * uq(i); });
      for_each_index(k.shape(), [&](const Shape<4>& i) { k(i) += step * uk(i); });
      for_each_index(v.shape(), [&](const Shape<4>& i) { v(i) += step * uv(i); });
      attention_forward(q, k, v, wide.options, weights, o);
      return inner(field(wide.d_o), field(o));
    };
    const Outputs<double> y = run(path, x);
    const Real forward = (loss(1e-6L) - loss(-1e-6L)) / 2e-6L;
    const Real backward = inner(field(y.dq), field(uq)) + inner(field(y.dk), field(uk)) +
                          inner(field(y.dv), field(uv));
    CAPTURE(s.format());
    CHECK(std::abs(forward - backward) <= 1e-9L * (1 + std::abs(forward)));
    CHECK(std::abs(forward) > 0.01L);
  }
}

}  // namespace ops_attention
