#include "headwise/score/mask_function.hpp"

#include <algorithm>
#include <vector>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/score/visibility.hpp"
#include "support/catch.hpp"
#include "support/instruction_sets.hpp"
#include "support/mask_patterns.hpp"

namespace score_mask_function {

using namespace headwise;
using headwise_tests::CoinPattern;
using headwise_tests::ScatteredBounds;

namespace {

bool within(const ScatteredBounds& bounds, Index i, Index j) {
  const KeyRange own = bounds({1, 2, i, 0});
  return j >= own.begin && j < own.end;
}

/// Every L and S of a few, causal or not, with windows and first keys or none.
template <class F>
void for_each_case(F&& check) {
  for (const Index L : {1, 5, 12}) {
    for (const Index S : {1, 7, 30}) {
      for (const bool is_causal : {false, true}) {
        for (const Window& window : {Window{0}, Window{3}, Window{2, 4}, Window{1, 20}}) {
          const CoinPattern coins{9, 4};
          const ScatteredBounds bounds{S};
          const auto f = mask_function(coins, bounds);
          AttentionMask<float> mask = {Mask::function(f)};
          if (window.size != 0) mask.add(window);
          AttentionMask<float> others;
          if (window.size != 0) others.add(window);
          if (is_causal) mask.add(causal), others.add(causal);
          CAPTURE(L, S, is_causal, window.size, window.first_keys);
          const HeadVisibility<float> without(others, 1, 2, L, S);
          check(
              HeadVisibility<float>(mask, 1, 2, L, S), L, S,
              [&](Index i, Index j) { return without.visible(i, j) && within(bounds, i, j); },
              coins);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("a pair is visible where the bounds hold it and the function says so", "[score]") {
  for_each_case([](const auto& rules, Index L, Index S, const auto& may_see, const auto& coins) {
    bool pairs_agree = true, runs_agree = true, ranges_agree = true, counted = true;
    for (Index i = 0; i < L; ++i) {
      const KeyRange keys = rules.range(i);
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(keys.size() + 1), 7);
      rules.kept(i, keys, bytes.data());
      runs_agree = runs_agree && bytes.back() == 7;
      Index count = 0;
      for (Index j = 0; j < S; ++j) {
        const bool seen = may_see(i, j) && coins({1, 2, i, j});
        pairs_agree = pairs_agree && rules.visible(i, j) == seen;
        if (keys.in({j, j + 1}).size() == 0) continue;
        runs_agree =
            runs_agree && bytes[static_cast<std::size_t>(j - keys.begin)] == (seen ? 1 : 0);
        const KeyRange own = rules.own_range(i);
        const bool asked = j >= own.begin && j < own.end;
        ranges_agree = ranges_agree && (asked || !may_see(i, j));
        count += may_see(i, j) ? 1 : 0;
      }
      counted = counted && rules.count(i) == count;
    }
    CHECK(pairs_agree);
    CHECK(runs_agree);
    CHECK(ranges_agree);
    CHECK(counted);
    CHECK_FALSE(rules.sees_all());
  });
}

TEST_CASE("keys around a gap are asked for where they stand, within the bounds there", "[score]") {
  const CoinPattern coins{9, 4};
  const Index L = 40, S = 300, first_key = 1000;
  const KeyGap gap = GENERATE(KeyGap{128, 50}, KeyGap{0, 128}, KeyGap{256, 1000});
  const Index end = first_key + gap.at + gap.size;
  const auto bounds = [=](const Position& query) {
    const Index i = query.query;
    return KeyRange{end - 80 + 3 * i, end - 30 + 60 * (i % 2) + i};
  };
  const auto f = mask_function(coins, bounds);
  const AttentionMask<float> mask = Mask::function(f);
  const HeadVisibility<float> rules(mask, 1, 2, L, S, {.key = first_key}, gap);
  bool pairs_agree = true, runs_agree = true;
  for (Index i = 0; i < L; ++i) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(S), 7);
    rules.kept(i, {0, S}, bytes.data());
    for (Index j = 0; j < S; ++j) {
      const Position at{1, 2, i, first_key + j + (j < gap.at ? 0 : gap.size)};
      const bool seen = bounds(at).in({at.key, at.key + 1}).size() == 1 && coins(at);
      pairs_agree = pairs_agree && rules.visible(i, j) == seen;
      runs_agree = runs_agree && bytes[static_cast<std::size_t>(j)] == (seen ? 1 : 0);
    }
  }
  CHECK(pairs_agree);
  CHECK(runs_agree);
}

TEST_CASE("queries look at every block of keys within their bounds, and at none beyond all of them",
          "[score]") {
  for_each_case([](const auto& rules, Index L, Index S, const auto& may_see, const auto&) {
    bool all = true, none = true, held = true, counted = true;
    for (Index first = 0; first < L; ++first) {
      for (Index count = 1; count <= L - first; ++count) {
        for (const Index size : {1, 4, 8}) {
          const KeyBlocks blocks = rules.blocks(first, count, size);
          Index low = S, high = 0, walked = 0;
          for (Index i = first; i < first + count; ++i) {
            const KeyRange own = ScatteredBounds{S}({1, 2, i, 0}).in({0, S});
            if (own.size() != 0) low = std::min(low, own.begin), high = std::max(high, own.end);
          }
          std::vector<Index> seen;
          for (Index j = blocks.first(); j < blocks.keys.end; j = blocks.next(j)) {
            counted = counted && blocks.before(j) == walked++;
            seen.push_back(j);
          }
          for (Index j0 = 0; j0 < S; j0 += size) {
            const bool looks = std::find(seen.begin(), seen.end(), j0) != seen.end();
            bool any = false;
            for (Index i = first; i < first + count; ++i) {
              for (Index j = j0; j < std::min(S, j0 + size); ++j) any = any || may_see(i, j);
            }
            all = all && (looks || !any);
            none = none && !(looks && (j0 >= high || j0 + size <= low));
            held = held && looks == blocks.holds(j0);
          }
        }
      }
    }
    CHECK(all);
    CHECK(none);
    CHECK(held);
    CHECK(counted);
  });
}

TEST_CASE("a mask function is told where its head stands, in any set of instructions", "[score]") {
  using F = MaskFunction<CoinPattern, AllKeys>;
  const CoinPattern coins{3, 2};
  const F f(coins, {});
  for (const auto set : headwise_tests::supported_instruction_sets()) {
    CAPTURE(static_cast<int>(set));
    auto* hide = &mask_functions::generic::hide<F>;
#if HEADWISE_X86
    if (set == InstructionSet::avx2) hide = &mask_functions::avx2::hide<F>;
    if (set == InstructionSet::avx512) hide = &mask_functions::avx512::hide<F>;
#endif
    for (Index count = 0; count < 70; ++count) {
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count + 1), 1);
      if (count > 2) bytes[2] = 0;
      hide(&f, {4, 5, 6, 100}, count, bytes.data());
      bool agree = bytes.back() == 1;
      for (Index n = 0; n < count; ++n) {
        const bool seen = n != 2 && coins({4, 5, 6, 100 + n});
        agree = agree && bytes[static_cast<std::size_t>(n)] == (seen ? 1 : 0);
      }
      CHECK(agree);
    }
  }
}

TEST_CASE("masks with functions add up to four, and a view of none adds nothing", "[score]") {
  const auto f = mask_function(CoinPattern{1, 2});
  AttentionMask<double> mask{Mask::function(f), MaskFunctionRef{}};
  CHECK(mask.functions().size() == 1);
  CHECK(mask.functions()[0].function == &f);
  CHECK(mask.functions()[0].bounds == nullptr);
  mask.add(AttentionMask<double>(mask, mask));
  CHECK(mask.functions().size() == 3);
  CHECK_THROWS_AS(mask.add(mask), ArgumentError);
  CHECK(mask.functions().size() == 3);
}

}  // namespace score_mask_function
