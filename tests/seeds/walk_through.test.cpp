// The NumPy walk-through of multi-head attention, number by number to the digits that it prints.
// It has no W_O: the merged heads are its result, so W_O is the identity here.
#include <cmath>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"

namespace seeds_walk_through {

using namespace headwise;

namespace {

constexpr Index B = 2, S = 6, N = 4, H = 2;

const Tensor3<double>& input() {
  static const Tensor3<double> x(
      {B, S, N},
      {-0.78, 0.19,  1.48,  -1.23, 1.96,  0.47,  -0.4,  0.59,  -0.1,  -0.76, 0.97,  1.61,
       1.63,  -0.93, 3.04,  -0.44, -1.11, 1.49,  -0.39, -0.31, -1.87, 0.83,  -0.9,  0.39,
       0.68,  -1.06, 0.47,  -0.77, 0.64,  -1.77, -0.7,  -2.07, -0.54, -0.03, -1.02, -0.56,
       -1.35, -0.49, -0.42, -0.7,  -0.03, 0.45,  -0.36, 0.96,  -0.23, -0.91, 1.46,  0.07});
  return x;
}

MultiHeadAttention<double> module() {
  MultiHeadAttention<double> m({.d_model = N, .num_heads = H, .o_bias = false});
  const Tensor2<double> w_q({N, N}, {0.1, 0.27, -0.35, -0.11, -1.86, -0.25, -1.25, -0.36, -0.71,
                                     1.71, -1.17, 1.05, 0.08, 1.76, 0.53, -0.1});
  const Tensor2<double> w_k({N, N}, {0.7, -1.52, 2.67, 0.06, -1.46, 2.02, -0.78, -0.83, 1.39, -1.07,
                                     -0.52, 1.11, 1.73, 1.05, 1.47, 1.17});
  const Tensor2<double> w_v({N, N}, {-1.26, 0.25, 0.03, 1.92, 0.58, -0.25, -0.46, 1.69, 0.08, -1.85,
                                     -0.71, 0.3, 1.64, -0.9, 1.04, 0.72});
  copy(In<double, 2>(w_q), m.parameters().W_Q());
  copy(In<double, 2>(w_k), m.parameters().W_K());
  copy(In<double, 2>(w_v), m.parameters().W_V());
  for_each_index(Shape{N, N},
                 [&](const Shape<2>& i) { m.parameters().w_o(i) = i[0] == i[1] ? 1 : 0; });
  return m;
}

struct Step {
  Trace trace;
  Tensor3<double> y, dx;
  MultiHeadAttentionGradients<double> gradients;

  explicit Step(Path path) {
    const auto m = module();
    Tensor3<double> ones({B, S, N});
    fill(Out<double, 3>(ones), 1);
    Context context;
    context.trace = &trace;
    MultiHeadAttentionCache<double> cache;
    MultiHeadAttentionCall<double> call;
    call.path = path;
    gradients = m.zero_gradients();
    y = m.forward(input(), call, cache, context);
    dx = m.backward(ones, cache, gradients, context);
  }
};

/// Whether the numbers are those printed, with so many digits behind the point.
template <class T, int R>
void check_printed(const In<T, R>& got, const Tensor<T, R>& printed, int digits) {
  REQUIRE(got.shape() == printed.shape());
  const double half = 0.5000001 * std::pow(10.0, -digits);
  for_each_index(got.shape(), [&](const Shape<R>& at) {
    CAPTURE(at, got(at), printed(at));
    CHECK(std::abs(got(at) - printed(at)) <= half);
  });
}

template <int R>
In<double, R - 1> first(const In<double, R>& x, Index n = 0) {
  return select(x, n);
}

}  // namespace

TEST_CASE("Q_total is the printed table", "[seeds]") {
  const Step step(GENERATE(Path::flash, Path::materialized));
  const Tensor3<double> printed(
      {B, S, N},
      {-1.5806, 0.1079, -2.348,  1.6944,  -0.347, 0.7661,  -0.4928, -0.8638, 0.8437, 4.6553,
       0.7034,  1.1421, -0.3008, 5.0966,  -3.198, 3.3915,  -2.6303, -1.8847, -1.182, -0.7928,
       -1.0606, -1.565, 0.8767,  -1.0771, 1.6443, -0.1029, 0.129,   0.8773,  3.6876, -4.2249,
       1.7104,  0.0388, 0.6812,  -2.8681, 1.1231, -0.9448, 1.0186,  -2.1922, 1.2054, -0.0461,
       -0.5076, 0.9534, 0.378,   -0.6327, 0.6386, 2.7852,  -0.4531, 1.8789});
  Tensor3<double> q({B, S, N});
  copy(step.trace.view<4>("Q"), split_heads(q, H));
  check_printed<double, 3>(q, printed, 4);
}

TEST_CASE("the shapes are those of the summary table of the walk-through", "[seeds]") {
  const Step step(GENERATE(Path::flash, Path::materialized));
  CHECK(step.trace.view<3>("X").shape() == Shape{2, 6, 4});
  const Tensor3<double> projected({2, 6, 4});
  CHECK(split_heads(projected, 2).shape() == step.trace.view<4>("Q").shape());
  CHECK(merge_heads(split_heads(projected, 2)).shape() == Shape{2, 6, 4});
  CHECK(step.trace.view<4>("Q").shape() == Shape{2, 2, 6, 2});
  CHECK(step.trace.view<4>("K").shape() == Shape{2, 2, 6, 2});
  CHECK(step.trace.view<4>("V").shape() == Shape{2, 2, 6, 2});
  CHECK(step.trace.view<4>("A").shape() == Shape{2, 2, 6, 6});
  CHECK(step.trace.view<4>("AS").shape() == Shape{2, 2, 6, 6});
  CHECK(step.trace.view<4>("AO_heads").shape() == Shape{2, 2, 6, 2});
  CHECK(step.trace.view<3>("AO_cat").shape() == Shape{2, 6, 4});
}

TEST_CASE("the raw scores are those printed", "[seeds]") {
  const Step step(GENERATE(Path::flash, Path::materialized));
  auto scores = contiguous(step.trace.view<4>("A"));
  for (double& score : scores) score *= std::sqrt(2.0);  // the trace has them scaled
  const Tensor2<double> head0(
      {6, 6}, {1.27232943e+00,  -1.92447047e+00, -8.25559166e+00, -1.02962948e+01, 6.88779400e+00,
               5.53096911e+00,  -6.90044070e-01, -1.15176353e+00, -2.35481306e+00, -8.25242350e+00,
               5.06738728e+00,  5.58817185e+00,  -6.83277738e+00, -3.60222434e+00, 9.63466660e-01,
               -3.25417745e+01, 1.88925147e+01,  2.48136767e+01,  -6.38568534e+00, -5.35246058e+00,
               -5.27967452e+00, -4.29283892e+01, 2.56190627e+01,  3.09582266e+01,  4.81260402e+00,
               -1.17481934e+00, -1.22301061e+01, -4.73591260e-01, 1.57676188e+00,  -2.95740792e+00,
               2.99170296e+00,  3.17079200e-01,  -4.34330692e+00, 6.30654508e+00,  -3.21940552e+00,
               -5.93541324e+00});
  const Tensor2<double> head1_rows(
      {3, 6}, {1.12890025e+01, -1.39959745e+01, 9.37104080e-01, -3.72639280e-01, 6.72504624e+00,
               8.52151728e+00, 2.37031984e+00, -2.90553676e+00, -4.17519144e+00, -4.62580006e+00,
               3.97090246e+00, 3.42716164e+00, -3.38321258e+00, 4.14960944e+00, 5.63376646e+00,
               6.26385319e+00, -5.47720161e+00, -4.76969058e+00});
  const In<double, 3> batch0 = first(In<double, 4>(scores));
  check_printed(first(batch0), head0, 6);
  check_printed(slice(first(batch0, 1), 0, 0, 3), head1_rows, 6);
  CHECK(scores(0, 1, 3, 0) == Approx(15.3748698).epsilon(1e-8));
}

TEST_CASE("the scaled scores, weights and their row sums are those printed", "[seeds]") {
  const Step step(GENERATE(Path::flash, Path::materialized));
  const Tensor2<double> scaled(
      {6, 6},
      {0.9,   -1.36, -5.84, -7.28,  4.87,  3.91,  -0.49, -0.81, -1.67, -5.84,  3.58,  3.95,
       -4.83, -2.55, 0.68,  -23.01, 13.36, 17.55, -4.52, -3.78, -3.73, -30.35, 18.12, 21.89,
       3.4,   -0.83, -8.65, -0.33,  1.11,  -2.09, 2.12,  0.22,  -3.07, 4.46,   -2.28, -4.2});
  const Tensor2<double> weights(
      {6, 6},
      {0.01, 0, 0, 0, 0.71, 0.27, 0.01, 0,    0, 0,    0.4,  0.58, 0,    0,    0, 0,   0.01, 0.99,
       0,    0, 0, 0, 0.02, 0.98, 0.87, 0.01, 0, 0.02, 0.09, 0,    0.09, 0.01, 0, 0.9, 0,    0});
  check_printed(first(first(step.trace.view<4>("A"))), scaled, 2);
  const In<double, 4> all = step.trace.view<4>("AS");
  check_printed(first(first(all)), weights, 2);
  for_each_index(Shape{B, H, S}, [&](const Shape<3>& at) {
    double sum = 0;
    for (Index j = 0; j < S; ++j) sum += all(at[0], at[1], at[2], j);
    CHECK(std::abs(sum - 1) < 4e-16);
  });
}

TEST_CASE("the context vectors and the merged output are those printed", "[seeds]") {
  const Step step(GENERATE(Path::flash, Path::materialized));
  const Tensor4<double> context(
      {B, H, S, 2},
      {2.14402292,  0.39960117,  2.67248838,  0.49704621,  3.3800271,   0.63468213,  3.36749812,
       0.6325333,   -0.61925828, -1.69258463, -2.84382125, -4.2797494,  -2.01801767, -1.62729909,
       -0.56197836, -0.9495289,  -0.60145552, 1.72734375,  -2.36034517, -1.62563163, -0.61218319,
       -1.06819435, 0.70400426,  4.73762408,  -0.25085677, -2.23087072, -1.00781468, -1.51982567,
       -4.76704565, 3.07631155,  -3.52532198, 1.49825583,  0.43357436,  1.2195325,   1.7634395,
       -0.22815464, -0.27479377, -1.13175258, -0.01637377, -0.4856992,  -0.28047406, -1.7318373,
       -0.06779337, -0.73057099, -0.2201747,  -1.86373055, -0.49290634, -1.46183568});
  check_printed(step.trace.view<4>("AO_heads"), context, 8);
  Tensor3<double> merged({B, S, N});
  copy(In<double, 4>(context), split_heads(merged, H));
  check_printed(step.trace.view<3>("AO_cat"), merged, 8);
  check_printed<double, 3>(step.y, merged, 8);
  check_printed<double, 1>(first(first(In<double, 3>(step.y))),
                           Tensor1<double>({4}, {2.14402292, 0.39960117, -2.01801767, -1.62729909}),
                           8);
}

TEST_CASE("the exercise that the walk-through leaves unevaluated", "[seeds]") {
  const Tensor3<double> q({2, 3, 4},
                          {-1.5116, 1.5644,  2.1816, 3.3755,  -2.6180, 2.2626,  1.1976,  1.1208,
                           -3.0033, 0.1768,  0.5522, -0.1006, -1.7886, 3.2338,  0.2871,  -0.4054,
                           1.3256,  -2.1606, 0.2825, -0.0161, 0.7166,  -0.7093, -0.7909, -1.1111});
  Tensor2<double> w({4, 4});
  for (Index n = 0; n < 16; ++n) w.data()[n] = 0.1 * static_cast<double>(n + 1);
  Tensor3<double> y({2, 3, 4});
  linear_forward<double>(merge_rows(In<double, 3>(q)), w, {}, merge_rows(y));
  const In<double, 3> rows = y;
  check_printed(first(first(rows)), Tensor1<double>({4}, {6.9826, 7.5436, 8.1046, 8.6656}), 4);
  check_printed(first(first(rows, 1), 2),
                Tensor1<double>({4}, {-2.4392, -2.6287, -2.8182, -3.0076}), 4);
}

TEST_CASE("the gradients of the sum of the merged output", "[seeds]") {
  const Step step(GENERATE(Path::flash, Path::materialized));
  check_printed(first(first(In<double, 3>(step.dx))),
                Tensor1<double>({4}, {7.1484, 1.1297, -2.2518, 8.2248}), 4);
  check_printed(first(step.gradients.grad_W_Q()),
                Tensor1<double>({4}, {6.7095, -5.3998, -1.3472, -1.5091}), 4);
  check_printed(first(step.gradients.grad_W_K()),
                Tensor1<double>({4}, {2.0594, 0.7913, -0.8083, 0.1945}), 4);
  check_printed(first(step.gradients.grad_W_V()),
                Tensor1<double>({4}, {-5.3951, -5.3951, -0.491, -0.491}), 4);
}

}  // namespace seeds_walk_through
