#include "headwise/score/visibility.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "score/visibility_cases.hpp"

namespace score_visibility {

using namespace headwise_tests;

namespace {

template <class T>
T from_bits(std::uint64_t bits) {
  return static_cast<T>(std::bit_cast<double>(bits));
}

template <class T>
void check_hidden_threshold() {
  const T quarter = std::numeric_limits<T>::lowest() / 4;
  const T infinity = from_bits<T>(std::uint64_t{0x7FF} << 52);
  const T nan = from_bits<T>(std::uint64_t{0x7FF8} << 48);
  const auto hidden = [](T value) {
    Tensor2<T> values(Shape{1, 1}, {value});
    const AttentionMask<T> mask(Mask::bias(values));
    return !HeadVisibility<T>(mask, 0, 0, 1, 1).visible(0, 0);
  };
  CHECK(hidden(-infinity));
  CHECK(hidden(std::numeric_limits<T>::lowest()));
  CHECK(hidden(std::nextafter(quarter, std::numeric_limits<T>::lowest())));
  CHECK_FALSE(hidden(quarter));
  CHECK_FALSE(hidden(std::nextafter(quarter, T(0))));
  CHECK_FALSE(hidden(T(-1e9)));
  CHECK_FALSE(hidden(T(0)));
  CHECK_FALSE(hidden(infinity));
  CHECK_FALSE(hidden(nan));  // what a query sees shows
}

}  // namespace

TEST_CASE("the range of a query is exactly the keys that causality, window and length leave",
          "[score]") {
  for_each_case([](const auto& rules, Index L, Index S, const auto& sees) {
    bool ranges_agree = true, pairs_agree = true, inside = true, counted = true;
    for (Index i = 0; i < L; ++i) {
      const KeyRange range = rules.range(i), gap = rules.hidden_between(i);
      inside = inside && 0 <= range.begin && range.begin <= range.end && range.end <= S &&
               0 <= gap.begin && gap.begin <= gap.end;
      Index seen = 0;
      for (Index j = 0; j < S; ++j) {
        const bool hidden = j >= gap.begin && j < gap.end;
        ranges_agree = ranges_agree && sees(i, j) == (j >= range.begin && j < range.end && !hidden);
        pairs_agree = pairs_agree && sees(i, j) == rules.visible(i, j);
        seen += sees(i, j) ? 1 : 0;
      }
      counted = counted && rules.count(i) == seen;
    }
    CHECK(ranges_agree);
    CHECK(pairs_agree);
    CHECK(inside);
    CHECK(counted);
  });
}

TEST_CASE("where causality, window and length alone make ranges, their ends step with the query",
          "[score]") {
  Index stepping = 0;
  for_each_case([&](const auto& rules, Index L, Index, const auto&) {
    bool agree = true;
    for (Index i = 0; rules.ranges_step() && i < L; ++i, ++stepping) {
      const KeyRange first = rules.reach_of_any_keys(0), range = rules.range(i);
      const Index begin = std::clamp(first.begin + i, Index{0}, rules.key_count());
      const Index end = std::clamp(first.end + i, begin, rules.key_count());
      agree = agree && range.begin == begin && range.end == end;
    }
    CHECK(agree);
  });
  CHECK(stepping > 0);
}

TEST_CASE("both ends of the range and of its gap grow with the query", "[score]") {
  for_each_case([](const auto& rules, Index L, Index, const auto&) {
    bool grows = true;
    for (Index i = 1; i < L; ++i) {
      grows = grows && rules.range(i - 1).begin <= rules.range(i).begin &&
              rules.range(i - 1).end <= rules.range(i).end &&
              rules.hidden_between(i - 1).begin <= rules.hidden_between(i).begin &&
              rules.hidden_between(i - 1).end <= rules.hidden_between(i).end;
    }
    CHECK(grows);
  });
}

TEST_CASE("queries look at every block of keys of which they see one, and at none in their gap",
          "[score]") {
  for_each_case([](const auto& rules, Index L, Index S, const auto& sees) {
    bool all = true, none = true, held = true, counted = true, promised = true;
    for (Index first = 0; first < L; ++first) {
      for (Index count = 1; count <= L - first; ++count) {
        for (Index size : {1, 2, 3}) {
          const KeyBlocks blocks = rules.blocks(first, count, size);
          std::vector<Index> walked;
          for (Index j = blocks.first(); j < blocks.keys.end; j = blocks.next(j)) {
            counted = counted && blocks.before(j) == static_cast<Index>(walked.size());
            walked.push_back(j);
          }
          const KeyRange gap = rules.hidden_between(first, count);
          for (Index j0 = 0; j0 < S; j0 += size) {
            const bool looks = std::find(walked.begin(), walked.end(), j0) != walked.end();
            const Index end = std::min<Index>(S, j0 + size);
            bool any = false, whole = true;
            for (Index i = first; i < first + count; ++i) {
              for (Index j = j0; j < end; ++j) {
                any = any || sees(i, j);
                whole = whole && sees(i, j);
              }
            }
            all = all && (looks || !any);
            none = none && !(looks && j0 >= gap.begin && j0 + size <= gap.end);
            held = held && looks == blocks.holds(j0);
            promised = promised && (whole || !rules.sees_all(first, count, {j0, end}));
          }
        }
      }
    }
    CHECK(all);
    CHECK(none);
    CHECK(held);
    CHECK(counted);
    CHECK(promised);
  });
}

TEST_CASE("the range of several queries holds each of theirs and ends with theirs", "[score]") {
  for_each_case([](const auto& rules, Index L, Index, const auto&) {
    bool holds = true, tight = true;
    for (Index first = 0; first < L; ++first) {
      for (Index count = 1; count <= L - first; ++count) {
        const KeyRange block = rules.range(first, count);
        Index begin = std::numeric_limits<Index>::max(), end = -1;
        for (Index i = first; i < first + count; ++i) {
          const KeyRange range = rules.range(i);
          if (range.size() == 0) continue;
          begin = std::min(begin, range.begin);
          end = std::max(end, range.end);
        }
        if (end < 0) continue;  // none of them sees anything: any range will do
        holds = holds && block.begin <= begin && block.end >= end;
        tight = tight && block.end == end;
      }
    }
    CHECK(holds);
    CHECK(tight);
  });
}

TEST_CASE("sees_all says whether every query sees every key by the rules alone", "[score]") {
  for_each_case([](const auto& rules, Index L, Index S, const auto& sees) {
    bool all = true;
    for (Index i = 0; i < L; ++i) {
      for (Index j = 0; j < S; ++j) all = all && sees(i, j);
    }
    CHECK((all || !rules.sees_all()));  // a promise: it may be withheld, never wrong
    CHECK_FALSE(rules.has_pair_masks());
    CHECK(rules.bias_count() == 0);
  });
  CHECK(HeadVisibility<float>(AttentionMask<float>(), 0, 0, 3, 5).sees_all());
}

TEST_CASE("a causal mask lets the last query see the last key", "[score]") {
  const HeadVisibility<double> more_keys(AttentionMask<double>(causal), 0, 0, 2, 5);
  CHECK(more_keys.range(0).end == 4);
  CHECK(more_keys.range(1).end == 5);
  const HeadVisibility<double> more_queries(AttentionMask<double>(causal), 0, 0, 5, 2);
  CHECK(more_queries.range(2).size() == 0);
  CHECK(more_queries.range(3).end == 1);
  CHECK(more_queries.range(4).end == 2);
}

TEST_CASE("a window far larger than the sequence hides nothing", "[score]") {
  const Index size = std::numeric_limits<Index>::max() / 2;
  const HeadVisibility<float> rules(AttentionMask<float>(Mask::window(size)), 0, 0, 3, 5);
  for (Index i = 0; i < 3; ++i) {
    CHECK(rules.range(i).begin == 0);
    CHECK(rules.range(i).end == 5);
  }
}

TEST_CASE("key lengths are those of the batch element", "[score]") {
  const std::vector<Index> lengths = {3, 0, 5};
  const AttentionMask<float> mask(Mask::key_lengths(lengths));
  for (Index b = 0; b < 3; ++b) {
    const HeadVisibility<float> rules(mask, b, 1, 2, 5);
    CHECK(rules.range(0).begin == 0);
    CHECK(rules.range(1).end == lengths[static_cast<std::size_t>(b)]);
    CHECK(rules.sees_all() == (b == 2));
  }
}

TEST_CASE("pair masks stand for all along axes of extent 1, on every choice of axes", "[score]") {
  const Shape<4> full{2, 3, 4, 5};
  for (int ones = 0; ones < 16; ++ones) {
    Shape<4> shape = full;
    for (int axis = 0; axis < 4; ++axis) {
      if ((ones >> axis & 1) != 0) shape[axis] = 1;
    }
    CAPTURE(shape.format());
    Tensor4<bool> pairs(shape);
    Tensor4<float> values(shape);
    Index n = 0;
    for_each_index(shape, [&](const Shape<4>& i) {
      pairs(i) = n * n % 7 < 3;
      values(i) = static_cast<float>(++n);
    });
    const AttentionMask<float> keep(Mask::keep(pairs)), drop(Mask::drop(pairs)),
        bias(Mask::bias(values));
    bool keep_agrees = true, drop_agrees = true, bias_agrees = true;
    for_each_index(full, [&](const Shape<4>& i) {
      Shape<4> source = i;
      for (int axis = 0; axis < 4; ++axis) source[axis] = std::min(i[axis], shape[axis] - 1);
      const auto rules = [&](const auto& mask) {
        return HeadVisibility<float>(mask, i[0], i[1], full[2], full[3]);
      };
      keep_agrees = keep_agrees && rules(keep).visible(i[2], i[3]) == pairs(source);
      drop_agrees = drop_agrees && rules(drop).visible(i[2], i[3]) != pairs(source);
      bias_agrees = bias_agrees && rules(bias).bias(i[2], i[3]) == values(source);
    });
    CHECK(keep_agrees);
    CHECK(drop_agrees);
    CHECK(bias_agrees);
  }
}

TEST_CASE("a pair is visible where every mask lets it be, and biases add up", "[score]") {
  const Tensor2<bool> keep(Shape{2, 3}, {true, true, false, true, false, true});
  const Tensor2<bool> padding(Shape{1, 3}, {true, false, false});
  const Tensor2<double> a(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor2<double> b(Shape{2, 3}, {10, 20, 30, 40, 50, 60});
  const AttentionMask<double> mask{causal, Mask::keep(keep), Mask::drop_keys(padding),
                                   Mask::bias(a), Mask::bias(b)};
  const HeadVisibility<double> rules(mask, 0, 0, 2, 3);
  CHECK(rules.bias_count() != 0);
  CHECK(rules.has_pair_masks());
  CHECK_FALSE(rules.sees_all());
  // causal leaves [1 1 0; 1 1 1], keep [1 1 0; 1 0 1], padding [0 1 1; 0 1 1]
  const bool expected[2][3] = {{false, true, false}, {false, false, true}};
  for (Index i = 0; i < 2; ++i) {
    for (Index j = 0; j < 3; ++j) {
      CHECK(rules.visible(i, j) == expected[i][j]);
      CHECK(rules.bias(i, j) == a(i, j) + b(i, j));
    }
  }
}

TEST_CASE("without biases 0 is added to a score", "[score]") {
  const HeadVisibility<float> rules(AttentionMask<float>(), 0, 0, 2, 2);
  CHECK(rules.bias(1, 1) == 0.0f);
}

TEST_CASE("a bias below a quarter of the lowest number hides the pair, and nothing else does",
          "[score]") {
  check_hidden_threshold<float>();
  check_hidden_threshold<double>();
}

}  // namespace score_visibility
