// A mask function of the user's own, on both paths: the bits of the same pairs as a keep mask.
#include <algorithm>
#include <atomic>
#include <memory>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/ops/packed_attention.hpp"
#include "headwise/runtime/tally.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/mask_recipes.hpp"

namespace ops_mask_function {

using namespace headwise_tests;

namespace {

// Few queries, as when tokens are decoded, among them.
const std::vector<Sizes> shapes = {
    {1, 1, 1, 1, 1, 1, 1},
    {2, 4, 2, 1, 300, 5, 3},
    {1, 2, 1, 4, 67, 8, 8},
    {2, 2, 1, 47, 65, 8, 17},
    {1, 1, 1, 131, 67, 5, 3},
    {1, 2, 2, 97, 193, 3, 16},
    beyond_tiles,
};

/// The pairs for which f holds, as a keep mask.
template <class F>
Tensor<bool, 4> pairs_of(const Sizes& sizes, const F& f) {
  Tensor<bool, 4> pairs(Shape{sizes.B, sizes.H, sizes.L, sizes.S});
  for_each_index(pairs.shape(), [&](const Shape<4>& n) {
    pairs(n) = f(Position{n[0], n[1], n[2], n[3]});
  });
  return pairs;
}

/// Whether bounds hold a key.
template <class B>
bool holds(const B& bounds, const Position& at) {
  const KeyRange own = bounds(Position{at.batch, at.head, at.query, 0});
  return at.key >= own.begin && at.key < own.end;
}

/// Both paths with a mask more, and what of them differs from those with the same pairs kept.
template <class T>
std::string difference_from_keep(const Case<T>& x, const MaskFunctionRef& function,
                                 const Tensor<bool, 4>& pairs) {
  std::string difference;
  for (const Path path : {Path::materialized, Path::flash}) {
    Case<T> asked = x, kept = x;
    asked.options.mask.add(function);
    kept.options.mask.add(Mask::keep(pairs));
    const std::string names = bit_difference(run(path, asked), run(path, kept));
    if (!names.empty()) difference += (path == Path::flash ? "flash: " : "readable: ") + names;
  }
  return difference;
}

std::atomic<bool> asked_beyond = false;

/// Coins that remember whether somebody asked beyond the bounds, where they say true.
struct WatchedPattern {
  CoinPattern coins;
  ScatteredBounds bounds;
  bool operator()(const Position& at) const {
    const bool within = holds(bounds, at) && at.key >= 0 && at.key < bounds.S;
    if (!within) asked_beyond = true;
    return !within || coins(at);
  }
};

/// A band of 9 keys about a key that leaps with the query, 64 queries at a time.
constexpr auto leaping = [](const Position& query) {
  const Index middle = query.query / 64 * 517 % 1000;
  return KeyRange{middle, middle + 9};
};

}  // namespace

TEMPLATE_TEST_CASE("a mask function has the bits of its pairs as a keep mask, with every mask",
                   "[ops]", float, double) {
  std::uint64_t seed = 2000;
  for (const Recipe<TestType>& recipe : mask_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format());
      const CoinPattern coins{seed, seed % 2 == 0 ? 2u : 7u};
      const auto f = mask_function(coins);
      CHECK(difference_from_keep(x, Mask::function(f), pairs_of(sizes, coins)) == "");
    }
  }
}

TEMPLATE_TEST_CASE("bounds hide what is beyond them, in any order, and nobody asks there", "[ops]",
                   float, double) {
  std::uint64_t seed = 3000;
  asked_beyond = false;
  for (const Recipe<TestType>& recipe : mask_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format());
      const ScatteredBounds bounds{sizes.S};
      const WatchedPattern watched{{seed, seed % 3 + 2}, bounds};
      const auto f = mask_function(watched, bounds);
      const auto pairs = pairs_of(
          sizes, [&](const Position& at) { return holds(bounds, at) && watched.coins(at); });
      CHECK(difference_from_keep(x, Mask::function(f), pairs) == "");
      CHECK_FALSE(asked_beyond);
    }
  }
}

TEMPLATE_TEST_CASE("a mask function goes with dropout, softcap, a score function and sinks",
                   "[ops]", float, double) {
  for (const Sizes& sizes : shapes) {
    Case<TestType> x(sizes, 4000);
    x.dropout(0.2), x.softcap(2), x.alibi(), x.sinks(), x.window(30, 2);
    const auto bent = score_function<TestType>([](auto s, const Position&) { return s * s; });
    x.options.score.function = bent;
    CAPTURE(sizes.format());
    const ScatteredBounds bounds{sizes.S};
    const CoinPattern coins{5, 3};
    const auto f = mask_function(coins, bounds);
    const auto pairs =
        pairs_of(sizes, [&](const Position& at) { return holds(bounds, at) && coins(at); });
    CHECK(difference_from_keep(x, Mask::function(f), pairs) == "");
  }
}

TEST_CASE("a mask function of long double hides what a keep mask hides", "[ops]") {
  const Sizes sizes{1, 2, 1, 13, 29, 3, 2};
  Case<long double> x(sizes, 4100);
  const ScatteredBounds bounds{sizes.S};
  const CoinPattern coins{5, 3};
  const auto f = mask_function(coins, bounds);
  const auto pairs =
      pairs_of(sizes, [&](const Position& at) { return holds(bounds, at) && coins(at); });
  for (const Path path : {Path::materialized, Path::flash}) {
    x.options.mask = {causal, Mask::function(f)};
    const Outputs<long double> asked = run(path, x);
    x.options.mask = {causal, Mask::keep(pairs)};
    const Outputs<long double> kept = run(path, x);
    CAPTURE(path == Path::flash);
    CHECK(std::equal(asked.o.begin(), asked.o.end(), kept.o.begin()));
    CHECK(std::equal(asked.dq.begin(), asked.dq.end(), kept.dq.begin()));
    CHECK(std::equal(asked.dk.begin(), asked.dk.end(), kept.dk.begin()));
    CHECK(std::equal(asked.dv.begin(), asked.dv.end(), kept.dv.begin()));
  }
}

TEMPLATE_TEST_CASE("a mask function gives the same bits on any number of threads", "[ops]", float,
                   double) {
  Case<TestType> x(Sizes{2, 4, 2, 290, 530, 5, 3}, 4200);
  const auto f = mask_function(CoinPattern{7, 4}, ScatteredBounds{530});
  // What a callable holds need not be plain data.
  const auto of_table = [table = std::vector<char>{1, 1, 0, 1, 1}](const Position& at) {
    return table[static_cast<std::size_t>(at.key % 5)] != 0;
  };
  const auto g = mask_function(of_table);
  x.options.mask = {Mask::window(300), Mask::function(f), Mask::function(g)};
  ThreadPool one(1);
  for (const Path path : {Path::materialized, Path::flash}) {
    const auto alone = run(path, x, Context{one});
    for (const Index threads : {2, 3}) {
      ThreadPool pool(threads);
      CHECK(bit_difference(run(path, x, Context{pool}), alone) == "");
    }
  }
}

TEST_CASE("pairs between the bounds are counted, and keys beyond those of a tile are skipped",
          "[ops]") {
  const Sizes sizes{1, 2, 1, 1100, 1024, 16, 16};
  const Case<float> x(sizes, 4300);
  const auto everywhere = mask_function([](const Position&) { return true; });
  const auto banded = mask_function([](const Position& at) { return at.key % 2 == 0; }, leaping);
  struct Counted {
    std::int64_t useful, executed;
  };
  const auto count = [&](Path path, const AttentionMask<float>& mask) {
    Case<float> y = x;
    y.options.mask = mask;
    FlopTally tally;
    (void)run(path, y, {.flops = &tally});
    return Counted{tally.useful, tally.executed};
  };
  std::int64_t pairs = 0;
  for (Index i = 0; i < sizes.L; ++i) {
    const KeyRange past{0, std::clamp(i + sizes.S - sizes.L + 1, Index{0}, sizes.S)};
    pairs += sizes.H * leaping({0, 0, i, 0}).in(past).size();
  }
  for (const Path path : {Path::materialized, Path::flash}) {
    const bool flash = path == Path::flash;
    CAPTURE(flash);
    const Counted whole = count(path, {causal});
    const Counted asked = count(path, {causal, Mask::function(everywhere)});
    const Counted some = count(path, {causal, Mask::function(banded)});
    CHECK(asked.useful == whole.useful);  // a mask function counts as a keep mask does
    const Index d = sizes.d, rows = sizes.H * sizes.L;
    const std::int64_t forward = 4 * d + 5, backward = flash ? 10 * d + 7 : 8 * d + 5;
    CHECK(some.useful == pairs * (forward + backward) + (flash ? 2 * d * rows : 0));
    CHECK(some.executed >= some.useful);
    if (flash) CHECK(some.executed < whole.executed / 2);
  }
}

TEST_CASE("both attentions count the same pairs between bounds, with every mask", "[ops]") {
  for (const Recipe<float>& recipe : mask_recipes<float>()) {
    for (const Sizes& sizes : shapes) {
      Case<float> x(sizes, 4350);
      recipe.apply(x);
      const auto f = mask_function(CoinPattern{2, 3}, ScatteredBounds{sizes.S});
      x.options.mask.add(Mask::function(f));
      Tensor4<float> o(x.d_o.shape()), weights(Shape{sizes.B, sizes.H, sizes.L, sizes.S});
      FlopTally readable, flash;
      attention_forward(x.q, x.k, x.v, x.options, weights, o, {.flops = &readable});
      flash_attention_forward(x.q, x.k, x.v, x.options, o, {}, {.flops = &flash});
      CAPTURE(recipe.name, sizes.format());
      CHECK(flash.useful == readable.useful);
      CHECK(flash.executed >= flash.useful);
    }
  }
}

TEMPLATE_TEST_CASE("a mask function of packed sequences counts within each of them", "[ops]", float,
                   double) {
  using T = TestType;
  const std::vector<Index> starts = {0, 131, 131, 132, 480};
  const Index H = 2, d = 5, N = starts.back();
  Numbers numbers(4400);
  const auto draw = [&] { return numbers.tensor<T>(Shape{N, H, d}); };
  const Tensor3<T> q = draw(), k = draw(), v = draw(), d_o = draw();
  const auto f = mask_function(CoinPattern{3, 3}, ScatteredBounds{348});
  const AttentionOptions<T> options{.mask = {causal, Mask::function(f)}};
  Tensor3<T> o(q.shape()), lse(Shape{N, H, 2}), dq(q.shape()), dk(q.shape()), dv(q.shape());
  const PackedSequences<T> all{q, k, v, starts, starts};
  packed_attention_forward(all, options, o, lse);
  packed_attention_backward<T>(d_o, all, o, lse, options, {dq, dk, dv});
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    const Index rows = starts[b + 1] - starts[b];
    const auto own = [&](const Tensor3<T>& x) {
      return In<T, 4>(x.data() + starts[b] * H * d, Shape{1, H, rows, d},
                      Shape{Index{0}, d, H * d, Index{1}});
    };
    // Alone it is element 0 of its batch.
    const auto g = mask_function(
        [=](const Position& at) {
          return CoinPattern{3, 3}({static_cast<Index>(b), at.head, at.query, at.key});
        },
        [=](const Position& at) {
          return ScatteredBounds{348}({static_cast<Index>(b), at.head, at.query, 0});
        });
    const Outputs<T> alone = run<T>(Path::flash, own(q), own(k), own(v), own(d_o),
                                    {.mask = {causal, Mask::function(g)}});
    CAPTURE(b);
    CHECK(same_bits<T, 4>(own(o), alone.o));
    CHECK(same_bits<T, 4>(own(dq), alone.dq));
    CHECK(same_bits<T, 4>(own(dk), alone.dk));
    CHECK(same_bits<T, 4>(own(dv), alone.dv));
  }
}

}  // namespace ops_mask_function
