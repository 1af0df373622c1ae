// What catches a planted fault where the test programs would be slow to build: attention and the
// whole module against plain loops in long double, gradients against differences of those loops,
// products against sums, tallies against counting pair by pair. It takes containers, masks' values
// and dropout's draws from the library, no arithmetic.
//
// usage: witness [check ...]: runs the checks named, or all; exits with 1 if one fails.
#include "witness_attention.hpp"
#include "witness_module.hpp"
#include "witness_products.hpp"

namespace {

/// Sizes one above and one below the tiles of 128 queries by 192 keys forward and 256 backward,
/// L != S, G < H, S - L even and odd.
constexpr AttentionSizes one_more{1, 2, 1, 129, 257, 5, 3}, one_less{1, 1, 1, 255, 191, 3, 5},
    several{2, 1, 1, 141, 520, 4, 4}, wide{1, 1, 1, 31, 46, 19, 17};

void plain() {
  check_attention(one_more, {}, {}, "no mask");
  check_attention(one_less, {}, {}, "no mask, S < L");
  check_attention(several, {}, {}, "no mask, three blocks of keys");
  check_attention(wide, {}, {}, "no mask, heads of more than a vector");
}

void masks() {
  const auto diagonal = [](const AttentionSizes& n, Index i) { return i + n.S - n.L; };
  for (const AttentionSizes& n : {one_more, one_less, several}) {
    Rules rules;
    rules.visible = [=](Index, Index, Index i, Index j) { return j <= diagonal(n, i); };
    check_attention(n, {.mask = causal}, rules, "causal");
  }
  for (const Index window : {9, 100}) {  // within a panel of keys, and over some whole ones
    Rules rules;
    rules.visible = [=](Index, Index, Index i, Index j) {
      return std::abs(j - diagonal(several, i)) < window;
    };
    check_attention(several, {.mask = Mask::window(window)}, rules, "window");
  }
  {
    const Index lengths[] = {300, 0};
    Rules rules;
    rules.visible = [&](Index b, Index, Index, Index j) { return j < lengths[b]; };
    check_attention(several, {.mask = Mask::key_lengths(lengths)}, rules, "key lengths");
  }
  {
    const auto n = several;
    const auto bias = random_tensor<double>(Shape{1, n.H, n.L, n.S});
    Tensor<bool, 4> keep(Shape{n.B, 1, n.L, n.S});
    for (bool& bit : keep) bit = number() < 0;
    for (Index j = 0; j < n.S; ++j) keep(0, 0, 55, j) = false;
    Rules rules;
    rules.visible = [&](Index b, Index, Index i, Index j) { return keep(b, Index{0}, i, j); };
    rules.bias = [&](Index, Index h, Index i, Index j) { return Real{bias(Index{0}, h, i, j)}; };
    check_attention(n, {.mask = {Mask::keep(keep), Mask::bias(bias)}}, rules, "keep and bias");
  }
  for (const auto& n : {one_more, several}) {  // by rows whose last vector is not whole, and blocks
    const auto bias = random_tensor<double>(Shape{1, n.H, n.L, n.S});
    Rules rules;
    rules.bias = [&](Index, Index h, Index i, Index j) { return Real{bias(Index{0}, h, i, j)}; };
    check_attention(n, {.mask = Mask::bias(bias)}, rules, "bias");
  }
}

void dropout() {
  const Dropout dropout{.rate = 0.3, .seed = 5, .step = 2};
  Rules rules;
  rules.factor = factor_of(dropout);
  check_attention(one_more, {.dropout = dropout}, rules, "dropout");
}

/// The last keys are hidden from the first half of the queries and hold NaN.
void nan_behind(Index hidden, const AttentionOptions<double>& options,
                const AttentionInputs<double>& inputs, const Tensor4<double>& d_o) {
  const auto& [q, k, v] = inputs;
  const Index S = k.extent(2);
  for (const Path path : {Path::materialized, Path::flash}) {
    const Results clean = run(path, inputs, d_o, options);
    // In the last column of a row, behind whole vectors, and in one within them.
    auto bad_k = contiguous(k), bad_v = contiguous(v);
    for (Index j = hidden; j < S; ++j) bad_k(0, 0, j, 8) = bad_v(0, 0, j, 5) = std::nan("");
    const Results got = run(path, {q, bad_k, bad_v}, d_o, options);
    const auto rows = [](const Tensor4<double>& x, Index count) {
      return numbers_of(slice(x, 2, 0, count));
    };
    check_close(rows(got.o, 4), rows(clean.o, 4), 0, "o beside hidden NaN" + name_of(path));
    check_close(rows(got.dq, 4), rows(clean.dq, 4), 0, "dq beside hidden NaN" + name_of(path));
    check(std::isnan(got.o(0, 0, 7, 0)), "a NaN that is seen shows" + name_of(path));
    // A query of NaN that sees only the first keys leaves the others' gradients alone.
    auto bad_q = contiguous(q);
    auto bad_d = d_o;
    for (Index c = 0; c < 9; ++c) bad_q(0, 0, 1, c) = bad_d(0, 0, 2, c) = std::nan("");
    const Results other = run(path, {bad_q, k, v}, bad_d, options);
    const auto behind = [&](const Tensor4<double>& x) {
      return numbers_of(slice(x, 2, hidden, S - hidden));
    };
    check_close(behind(other.dk), behind(clean.dk), 0, "dk behind NaN" + name_of(path));
    check_close(behind(other.dv), behind(clean.dv), 0, "dv behind NaN" + name_of(path));
  }
}

void nan() {
  constexpr Index L = 8, S = 460, hidden = 420;
  const auto q = random_tensor<double>(Shape{1, 1, L, 9}),
             k = random_tensor<double>(Shape{1, 1, S, 9});
  const auto v = random_tensor<double>(Shape{1, 1, S, 9});
  const auto d_o = random_tensor<double>(Shape{1, 1, L, 9});
  Tensor<bool, 4> keep(Shape{1, 1, L, S});
  for_each_index(keep.shape(), [&](const Shape<4>& n) { keep(n) = n[2] >= 4 || n[3] < hidden; });
  nan_behind(hidden, {.mask = Mask::keep(keep)}, {q, k, v}, d_o);
  nan_behind(S - 4, {.mask = causal}, {q, k, v}, d_o);
}

/// Rows of a layer norm whose gradient is 0 throughout: whatever they hold reaches nothing.
void idle_rows() {
  const auto x = random_tensor<double>(Shape{3, 4}), gamma_row = random_tensor<double>(Shape{1, 4});
  auto dy = random_tensor<double>(Shape{3, 4});
  for (Index n = 0; n < 4; ++n) dy(1, n) = 0;
  const auto gradients_of = [&](const Tensor<double, 2>& input) {
    const In<double, 1> gamma = select(gamma_row, 0);
    Tensor<double, 2> y(Shape{3, 4}), dx(Shape{3, 4});
    Tensor<double, 1> mean(Shape{3}), rstd(Shape{3}), dgamma(Shape{4}), dbeta(Shape{4});
    layer_norm_forward(In<double, 2>(input), {gamma, {}}, 1e-5, y, {mean, rstd});
    layer_norm_backward(In<double, 2>(dy), input, gamma, {mean, rstd}, dx, {dgamma, dbeta});
    Numbers all = numbers_of(dx);
    for (const Real value : numbers_of(dgamma)) all.push_back(value);
    for (const Real value : numbers_of(dbeta)) all.push_back(value);
    return all;
  };
  auto poisoned = x;
  poisoned(1, 2) = std::nan("");
  check_close(gradients_of(poisoned), gradients_of(x), 0, "layer norm beside an idle row of NaN");
}

/// Queries of a sliding window have the same bits alone and among others. (Six: fewer have kernels
/// of their own.)
void same_bits() {
  constexpr Index S = 400, window = 150, n = 6;
  const auto q = random_tensor<double>(Shape{1, 1, S, 4});
  const auto k = random_tensor<double>(Shape{1, 1, S, 4});
  const auto v = random_tensor<double>(Shape{1, 1, S, 4});
  const AttentionOptions<double> options = {.mask = {causal, Mask::window(window)}};
  Tensor4<double> whole(q.shape()), alone(Shape{1, 1, n, 4});
  flash_attention_forward(In<double, 4>(q), k, v, options, whole, {});
  bool same = true;
  for (Index i = 150; i + n <= S; i += 7) {
    flash_attention_forward(In<double, 4>(slice(q, 2, i, n)), slice(k, 2, 0, i + n),
                            slice(v, 2, 0, i + n), options, alone, {});
    same = same && std::memcmp(alone.data(), &whole(0, 0, i, 0), n * 4 * sizeof(double)) == 0;
  }
  check(same, "queries alone have other bits than among others");
}

void tallies() {
  const AttentionSizes n = one_more;
  const auto q = random_tensor<double>(Shape{n.B, n.H, n.L, n.d});
  const auto k = random_tensor<double>(Shape{n.B, n.G, n.S, n.d});
  const auto v = random_tensor<double>(Shape{n.B, n.G, n.S, n.dv});
  const auto d_o = random_tensor<double>(Shape{n.B, n.H, n.L, n.dv});
  Tensor<Index, 2> ids(Shape{n.B, n.S});
  for (Index j = 0; j < n.S; ++j) ids(0, j) = j / 50;
  for (const bool documents : {false, true}) {
    std::int64_t pairs = 0;
    for (Index i = 0; i < n.L; ++i) {
      const Index place = i + n.S - n.L;
      for (Index j = documents ? place / 50 * 50 : 0; j <= place; ++j) pairs += n.H;
    }
    AttentionMask<double> mask = causal;
    if (documents) mask = {causal, Mask::documents(ids)};
    for (const Path path : {Path::materialized, Path::flash}) {
      FlopTally tally;
      run(path, {q, k, v}, d_o, {.mask = mask}, {.flops = &tally});
      const std::int64_t forward = pairs * (2 * n.d + 2 * n.dv + 5);
      const std::int64_t backward = path == Path::flash
                                        ? pairs * (6 * n.d + 4 * n.dv + 7) + 2 * n.dv * n.H * n.L
                                        : pairs * (4 * n.d + 4 * n.dv + 5);
      check(tally.useful == forward + backward, "useful FLOPs" + name_of(path));
      check(tally.executed >= tally.useful, "executed FLOPs below useful ones" + name_of(path));
    }
  }
  FlopTally tally;
  Tensor<double, 2> y(Shape{3, 5});
  linear_forward(In<double, 2>(random_tensor<double>(Shape{3, 4})),
                 random_tensor<double>(Shape{4, 5}), {}, y, {.flops = &tally});
  check(tally.useful == 2 * 3 * 4 * 5, "useful FLOPs of a product");
  check(tally.executed > tally.useful, "five columns are computed without padding");
}

struct Check {
  const char* name;
  void (*run)();
};
constexpr Check checks[] = {
    {"plain", plain},    {"masks", masks},       {"dropout", dropout},     {"nan", nan},
    {"bits", same_bits}, {"threads", threads},   {"idle_rows", idle_rows}, {"tallies", tallies},
    {"module", module},  {"products", products}, {"weights", weights}};

}  // namespace

int main(int argc, char** argv) {
  int done = 0;
  for (const Check& one : checks) {
    bool wanted = argc == 1;
    for (int n = 1; n < argc; ++n) wanted = wanted || std::strcmp(argv[n], one.name) == 0;
    if (!wanted) continue;
    ++done;
    const int before = failures;
    try {
      one.run();
    } catch (const std::exception& error) {
      check(false, std::string(one.name) + " threw " + error.what());
    }
    std::printf("%s: %s\n", one.name, failures == before ? "passed" : "failed");
  }
  if (done != (argc == 1 ? static_cast<int>(std::size(checks)) : argc - 1)) {
    std::printf("a check of that name does not exist\n");
    return 2;
  }
  if (failures == 0) std::printf("All checks passed\n");
  return failures == 0 ? 0 : 1;
}
