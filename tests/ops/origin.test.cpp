// A part of a call that is told where it stands in the whole: functions of pairs and dropout take
// it for what it is there.
#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/mask_patterns.hpp"
#include "support/mask_recipes.hpp"

namespace ops_origin {

using namespace headwise_tests;

namespace {

/// A score that every coordinate of its pair changes, to another value by each.
constexpr auto placed_score = [](auto s, const Position& at, const auto& w) {
  const auto remainder = (at.batch * 11 + at.head * 7 + at.query * 5 + at.key * 3) % 13;
  return s * w[0] + w[1] * static_cast<double>(remainder);
};
constexpr auto band = [](const Position& at) {
  return KeyRange{at.query / 2, at.query / 2 + 70 + at.batch};
};

struct Functions {
  ScoreFunction<double, 2, std::decay_t<decltype(placed_score)>> score =
      score_function<double>(std::array{0.7, 0.1}, placed_score);
  MaskFunction<CoinPattern, std::decay_t<decltype(band)>> mask =
      mask_function(CoinPattern{3, 5}, band);

  AttentionOptions<double> options(const Position& origin, double rate = 0) const {
    AttentionOptions<double> o{.score = {.function = score}, .origin = origin};
    o.mask.add(mask);
    if (rate > 0) o.dropout = {rate, 5, 6};
    return o;
  }
};

}  // namespace

TEST_CASE("batch elements and heads that are told where they stand have the bits of the whole",
          "[ops]") {
  const Functions f;
  const Path path = GENERATE(Path::materialized, Path::flash);
  const double rate = GENERATE(0.0, 0.4);
  const Case<double> x(Sizes{3, 4, 2, 67, 131, 9, 17}, 6100);
  const auto whole = run<double>(path, x.q, x.k, x.v, x.d_o, f.options({}, rate));
  for (Index b = 0; b < 3; ++b) {
    for (Index g = 0; g < 2; ++g) {
      const auto heads = [&](const Tensor4<double>& t, Index per_group) {
        return slice(slice(t, 0, b, 1), 1, g * per_group, per_group);
      };
      const auto part = run<double>(path, heads(x.q, 2), heads(x.k, 1), heads(x.v, 1),
                                    heads(x.d_o, 2), f.options({.batch = b, .head = 2 * g}, rate));
      CAPTURE(b, g, rate);
      CHECK(same_bits<double, 4>(heads(whole.o, 2), part.o));
      CHECK(same_bits<double, 4>(heads(whole.dq, 2), part.dq));
      CHECK(same_bits<double, 4>(heads(whole.dk, 1), part.dk));
      CHECK(same_bits<double, 4>(heads(whole.dv, 1), part.dv));
    }
  }
}

TEST_CASE("queries that are told where they stand have the bits of the whole", "[ops]") {
  const Functions f;
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Case<double> x(Sizes{2, 2, 1, 97, 131, 9, 17}, 6200);
  const auto whole = run<double>(path, x.q, x.k, x.v, x.d_o, f.options({}));
  for (Index n : {1, 7, 60}) {
    for (Index i = 0; i < 97; i += n) {
      const Index count = std::min<Index>(n, 97 - i);
      const auto rows = [&](const Tensor4<double>& t) { return slice(t, 2, i, count); };
      const auto part =
          run<double>(path, rows(x.q), x.k, x.v, rows(x.d_o), f.options({.query = i}));
      CAPTURE(i, count);
      CHECK(same_bits<double, 4>(rows(whole.o), part.o));
      CHECK(same_bits<double, 4>(rows(whole.dq), part.dq));
    }
  }
}

TEST_CASE("keys that are told where they stand give what the whole gives of them alone", "[ops]") {
  const Functions f;
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Case<double> x(Sizes{2, 2, 1, 49, 200, 9, 17}, 6300);
  for (Index j : {0, 1, 64, 77}) {
    const Index count = 90;
    auto options = f.options({});
    const auto own =
        mask_function([=](const Position& at) { return at.key >= j && at.key < j + count; });
    options.mask.add(own);
    const auto whole = run<double>(path, x.q, x.k, x.v, x.d_o, options);
    const auto keys = [&](const Tensor4<double>& t) { return slice(t, 2, j, count); };
    const auto part = run<double>(path, x.q, keys(x.k), keys(x.v), x.d_o, f.options({.key = j}));
    CAPTURE(j);
    CHECK(close_to(part.o, whole.o, 1e-13));
    CHECK(close_to(part.dq, whole.dq, 1e-13));
    CHECK(close_to(part.dk, keys(whole.dk), 1e-13));
    CHECK(close_to(part.dv, keys(whole.dv), 1e-13));
  }
}

TEST_CASE("keys around a gap give what they give where those between are hidden", "[ops]") {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const KeyGap gap = GENERATE(KeyGap{128, 256}, KeyGap{0, 128}, KeyGap{256, 128});
  const Index end = gap.at + gap.size;
  const Index L = GENERATE(1, 3, 49);
  const Case<double> x(Sizes{2, 4, 2, L, 600, 9, 17}, 6500);
  const auto function = score_function<double>(std::array{0.7, 0.1}, placed_score);
  const auto slopes = random_tensor<double>(Shape{4}, 1);
  const auto table = random_tensor<double>(Shape{4, Index{2 * 590 + 1}}, 2);
  const ScoreOptions<double> scores[] = {
      {.alibi_slopes = slopes},
      {.relative_bias = table},
      {.function = function},
      {.softcap = 2.0, .alibi_slopes = slopes, .relative_bias = table, .function = function}};
  const auto between =
      mask_function([=](const Position& p) { return p.key < gap.at || p.key >= end; });
  const auto scattered = mask_function(CoinPattern{3, 5});
  const auto bounded = mask_function(CoinPattern{3, 5}, [](const Position& query) {
    const Index begin = 9 * query.query + 20;  // before the gap, in it and behind it, as its end
    return KeyRange{begin, begin + 400 + query.batch};
  });
  const AttentionMask<double> masks[] = {
      causal, {causal, Mask::function(scattered)}, {causal, Mask::function(bounded)}};
  const auto around = [&](const Tensor4<double>& t) {
    const Shape<4>& s = t.shape();
    Tensor4<double> part({s[0], s[1], s[2] - gap.size, s[3]});
    copy(In<double, 4>(slice(t, 2, 0, gap.at)), slice(part, 2, 0, gap.at));
    copy(In<double, 4>(slice(t, 2, end, s[2] - end)), slice(part, 2, gap.at, s[2] - end));
    return part;
  };
  const auto forward = [&](const auto& k, const auto& v, const AttentionOptions<double>& options) {
    Tensor4<double> o({2, 4, L, 17}), p({2, 4, L, k.extent(2)});
    if (path == Path::flash) {
      flash_attention_forward(x.q, k, v, options, o, {});
    } else {
      attention_forward(x.q, k, v, options, p, o);
    }
    return o;
  };
  const auto check = [&](const ScoreOptions<double>& score, const AttentionMask<double>& mask) {
    AttentionOptions<double> whole{.mask = mask, .score = score};
    whole.mask.add(between);
    const AttentionOptions<double> part{.mask = mask, .score = score, .gap = gap};
    CAPTURE(path, gap.at, gap.size, L);
    const auto one = forward(x.k, x.v, whole), other = forward(around(x.k), around(x.v), part);
    CHECK(close_to(other, one, 1e-14));
    if (path == Path::flash) CHECK(same_bits<double, 4>(other, one));  // blocks of keys as before
  };
  for (const ScoreOptions<double>& score : scores) check(score, causal);
  for (const AttentionMask<double>& mask : masks) check(scores[3], mask);
}

TEST_CASE("an origin far off counts as it is", "[ops]") {
  const Case<double> x(Sizes{1, 1, 1, 5, 40, 4, 4}, 6400);
  constexpr Index far = Index{1} << 62;
  const auto near_it = mask_function([](const Position& at) { return at.key - at.query < 9; },
                                     [](const Position& at) {
                                       return KeyRange{at.query, at.query + 1000};
                                     });
  AttentionOptions<double> here, there;
  here.mask.add(near_it), there.mask.add(near_it);
  there.origin = {far, far, far, far};
  for (Path path : {Path::materialized, Path::flash}) {
    CHECK(bit_difference(run<double>(path, x.q, x.k, x.v, x.d_o, there),
                         run<double>(path, x.q, x.k, x.v, x.d_o, here)) == "");
  }
}

}  // namespace ops_origin
