#include "headwise/score/mask.hpp"

#include <concepts>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace score_mask {

using namespace headwise;

TEST_CASE("only masks that say what they mean make an AttentionMask", "[score]") {
  using M = AttentionMask<float>;
  STATIC_REQUIRE(std::is_constructible_v<M, Causal>);
  STATIC_REQUIRE(std::is_constructible_v<M, Causal, Window, KeyLengths, PairMask, BiasMask<float>>);
  STATIC_REQUIRE(std::is_constructible_v<M, M, PairMask>);
  STATIC_REQUIRE(std::is_constructible_v<M, Documents, Window>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, Tensor2<bool>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, In<bool, 4>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, bool>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, bool*>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, Tensor2<float>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<M, BiasMask<double>>);
}

TEST_CASE("the same masks in any order and nesting are the same mask", "[score]") {
  const Tensor2<bool> keep(Shape{2, 3}, {true, true, false, true, false, true});
  const Tensor2<float> bias(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  const std::vector<Index> lengths = {2};
  const AttentionMask<float> flat{causal, Mask::window(4), Mask::key_lengths(lengths),
                                  Mask::keep(keep), Mask::bias(bias)};
  const AttentionMask<float> inner{Mask::bias(bias), Mask::key_lengths(lengths), causal};
  const AttentionMask<float> nested{Mask::keep(keep), inner, Mask::window(4), Mask::window(9)};
  for (const AttentionMask<float>* mask : {&flat, &nested}) {
    CHECK(mask->is_causal());
    CHECK(mask->window() == 4);
    CHECK(mask->has_key_lengths());
    CHECK(mask->key_lengths()[0] == 2);
    REQUIRE(mask->pair_masks().size() == 1);
    CHECK(mask->pair_masks()[0].keep);
    CHECK(mask->pair_masks()[0].pairs.data() == keep.data());
    REQUIRE(mask->biases().size() == 1);
    CHECK(mask->biases()[0].values.data() == bias.data());
  }
}

TEST_CASE("of two windows the smaller one counts, whichever comes first", "[score]") {
  CHECK(AttentionMask<float>(Mask::window(3), Mask::window(7)).window() == 3);
  CHECK(AttentionMask<float>(Mask::window(7), Mask::window(3)).window() == 3);
}

TEST_CASE("two windows that keep first keys leave what both leave, or are refused", "[score]") {
  const auto sees = [](const Window& w, Index i, Index j) {
    return std::abs(i - j) < w.size || j < w.first_keys;
  };
  for (const Window& a : {Mask::window(2), Mask::window(2).keeping_first(3), Window{5, 1}}) {
    for (const Window& b : {Window{2, 1}, Window{3, 3}, Window{4, 9}, Mask::window(7)}) {
      const Window narrow = a.size < b.size ? a : b, wide = a.size < b.size ? b : a;
      CAPTURE(a.size, a.first_keys, b.size, b.first_keys);
      AttentionMask<float> mask;
      if (narrow.size != wide.size && narrow.first_keys > wide.first_keys) {
        CHECK_THROWS_AS(mask.add(AttentionMask<float>(a, b)), ArgumentError);
        continue;
      }
      mask.add(AttentionMask<float>(a, b));
      const Window both{mask.window(), mask.first_keys()};
      bool agrees = true;
      for (Index i = 0; i < 12; ++i) {
        for (Index j = 0; j < 12; ++j) {
          agrees = agrees && sees(both, i, j) == (sees(a, i, j) && sees(b, i, j));
        }
      }
      CHECK(agrees);
    }
  }
}

TEST_CASE("documents fit where each is one run of neighbours, under any ids", "[score]") {
  const Tensor2<Index> ids(Shape{2, 5}, {7, 7, -2, 9, 9, 0, 0, 0, 0, 0});
  const Tensor<std::int32_t, 2> narrow(Shape{1, 5}, {5, 4, 3, 2, 1});
  for (const Documents& documents : {Mask::documents(ids), Mask::documents(narrow)}) {
    CHECK_NOTHROW(AttentionMask<float>(documents).require_fits("f", 2, 4, 3, 5));
    CHECK(AttentionMask<float>(AttentionMask<float>(documents), causal).documents().present());
  }
  CHECK_FALSE(AttentionMask<float>(causal).documents().present());
}

TEST_CASE("masks that broadcast and lengths from 0 to the number of keys fit", "[score]") {
  const Tensor4<bool> broadcast(Shape{1, 4, 1, 5});
  const std::vector<Index> lengths{0, 5};
  CHECK_NOTHROW(AttentionMask<float>(Mask::keep(broadcast), Mask::key_lengths(lengths))
                    .require_fits("f", 2, 4, 3, 5));
}

TEST_CASE("masks of keys hold for all heads and queries, with their strides", "[score]") {
  const Tensor2<bool> keys(Shape{3, 8});
  const In<bool, 2> part = slice(keys, 1, 2, 5);
  for (const PairMask& mask : {Mask::keep_keys(part), Mask::drop_keys(part)}) {
    CHECK(mask.pairs.shape() == Shape{3, 1, 1, 5});
    CHECK(&mask.pairs(2, 0, 0, 4) == &keys(2, 6));
  }
  CHECK(Mask::keep_keys(part).keep);
  CHECK_FALSE(Mask::drop_keys(part).keep);
}

TEST_CASE("causal_mask is 0 up to the diagonal and the fill above", "[score]") {
  for (Index n : {0, 1, 2, 5}) {
    const Tensor2<double> mask = causal_mask<double>(n);
    CHECK(mask.shape() == Shape{n, n});
    for_each_index(mask.shape(),
                   [&](const Shape<2>& i) { CHECK(mask(i) == (i[1] <= i[0] ? 0.0 : -1e9)); });
  }
  CHECK(causal_mask<float>(2, -5.0f)(0, 1) == -5.0f);
}

}  // namespace score_mask
