// Few queries over many keys with masks of pairs and biases: the kernels of decoding give the bits
// that the same queries have among many, which go the general way.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/bent_score.hpp"
#include "support/catch.hpp"
#include "support/converted.hpp"
#include "support/transposed_copy.hpp"

namespace ops_decode_masks {

using namespace headwise_tests;

namespace {

template <class T>
Index few_queries() {
  return kernels::kernels_here<T>().decode.queries;
}

/// Queries, keys, values and masks at random.
template <class T>
struct MaskedCase {
  Numbers numbers;
  Index B, G, H, few, many, S, d, dv;
  Tensor4<T> q, k, v;
  std::vector<PairMask> pairs;  // of all queries, as in the mask of a call of them
  std::vector<BiasMask<T>> biases;
  std::vector<Tensor<bool, 4>> bits;
  std::vector<Tensor4<T>> values;
  std::vector<Index> lengths;
  Tensor<Index, 2> ids;
  std::optional<MaskFunction<CoinPattern, ScatteredBounds>> function;
  Tensor<T, 1> slopes, sinks;
  AttentionOptions<T> options;  // but for pairs and biases
  std::string what;

  explicit MaskedCase(std::uint64_t seed) : numbers(seed) {
    B = 1 + numbers.below(3), G = 1 + numbers.below(2), H = G * (1 + numbers.below(3));
    few = 1 + numbers.below(few_queries<T>()), many = few_queries<T>() + 24;
    S = 1 + numbers.below(numbers.coin(0.3) ? 40 : 700);
    if (numbers.coin(0.2)) S += 1024;  // of which threads share the keys of a head
    d = numbers.coin(0.5) ? 16 : 1 + numbers.below(40);
    dv = numbers.coin(0.5) ? 32 : 1 + numbers.below(40);
    q = numbers.tensor<T>(Shape{B, H, many, d}), k = numbers.tensor<T>(Shape{B, G, S, d});
    v = numbers.tensor<T>(Shape{B, G, S, dv});
    bits.reserve(4), values.reserve(4);
    const Index count = numbers.below(4);
    for (Index n = 0; n < count; ++n) numbers.coin(0.5) ? add_bits() : add_bias();
    if (numbers.coin(0.3)) options.mask.add(causal), what += "causal ";
    if (numbers.coin(0.3)) {
      const Index first = numbers.coin(0.5) ? 0 : 1 + numbers.below(9);
      options.mask.add(Mask::window(1 + numbers.below(S)).keeping_first(first));
      what += "window and " + std::to_string(first) + " first keys ";
    }
    if (numbers.coin(0.2)) {
      ids = Tensor<Index, 2>(Shape{numbers.coin(0.5) ? B : 1, S});
      const Index length = 1 + numbers.below(S);
      for_each_index(ids.shape(), [&](const Shape<2>& at) { ids(at) = (at[1] + at[0]) / length; });
      options.mask.add(Mask::documents(ids)), what += "documents ";
    }
    if (numbers.coin(0.2)) {
      for (Index b = 0; b < B; ++b) lengths.push_back(numbers.below(S + 1));
      options.mask.add(Mask::key_lengths(lengths)), what += "lengths ";
    }
    if (numbers.coin(0.3)) {
      const CoinPattern coins{static_cast<std::uint64_t>(numbers.below(1000)), 6};
      function.emplace(coins, ScatteredBounds{S, numbers.coin(0.5)});
      options.mask.add(Mask::function(*function)), what += "function ";
    }
    if (numbers.coin(0.2)) options.score.softcap = T(2), what += "softcap ";
    if (numbers.coin(0.2)) options.score.alibi_slopes = slopes = numbers.tensor<T>(Shape{H});
    if (numbers.coin(0.2)) options.score.sinks = sinks = numbers.tensor<T>(Shape{H});
    what += "B " + std::to_string(B) + " G " + std::to_string(G) + " H " + std::to_string(H) +
            " few " + std::to_string(few) + " S " + std::to_string(S) + " d " + std::to_string(d) +
            " dv " + std::to_string(dv) + " seed " + std::to_string(seed);
  }
  MaskedCase(const MaskedCase&) = delete;
  MaskedCase& operator=(const MaskedCase&) = delete;

  /// The options of a call of the last n queries.
  AttentionOptions<T> of_last(Index n) const {
    AttentionOptions<T> some = options;
    const auto rows = [&](const auto& x) {
      return x.extent(2) == 1 ? x : slice(x, 2, many - n, n);
    };
    for (const PairMask& mask : pairs) some.mask.add(PairMask{rows(mask.pairs), mask.keep});
    for (const BiasMask<T>& bias : biases) some.mask.add(Mask::bias(rows(bias.values)));
    some.origin.query = many - n;
    return some;
  }
  /// o and lse of the last n queries over some keys and values.
  template <class Keys, class U>
  Outputs<T> last(Index n, const Keys& keys, const In<U, 4>& rows, const Context& context = {}) {
    Outputs<T> y;
    y.o = Tensor4<T>(Shape{B, H, n, dv}), y.lse = Tensor4<T>(Shape{B, H, n, Index{2}});
    for (auto* x : {&y.o, &y.lse}) std::fill(x->begin(), x->end(), T(777));
    const auto some = contiguous(slice(q, 2, many - n, n));
    if constexpr (std::same_as<T, U>) {
      flash_attention_forward<T>(some, keys, rows, of_last(n), y.o, y.lse, context);
    } else {
      flash_attention_forward(some, keys, rows, of_last(n), y.o, y.lse, context);
    }
    return y;
  }
  /// FLOPs of a call of the last few queries, pair by pair.
  std::int64_t useful_flops() const {
    const auto some = of_last(few);
    std::int64_t visible = 0;
    for_each_index(Shape{B, H, few}, [&](const Shape<3>& at) {
      visible += HeadVisibility<T>(some.mask, at[0], at[1], few, S, some.origin).count(at[2]);
    });
    const auto changes = static_cast<Index>(biases.size()) + (options.score.softcap ? 3 : 0) +
                         (slopes.absent() ? 0 : 2);
    return visible * (2 * (d + dv) + 5 + changes);
  }
  /// Keys and values become NaN: all that none of the last queries sees, and of others a few.
  void poison() {
    const auto some = of_last(few);
    for_each_index(Shape{B, G, S}, [&](const Shape<3>& at) {
      bool seen = numbers.coin(0.01);
      for (Index h = at[1] * (H / G); h < (at[1] + 1) * (H / G) && !seen; ++h) {
        const HeadVisibility<T> rules(some.mask, at[0], h, few, S, some.origin);
        for (Index i = 0; i < few; ++i) seen = seen || sees(rules, i, at[2]);
      }
      if (seen && !numbers.coin(0.01)) return;
      k(at[0], at[1], at[2], numbers.below(d)) = std::numeric_limits<T>::quiet_NaN();
      v(at[0], at[1], at[2], numbers.below(dv)) = std::numeric_limits<T>::infinity();
    });
  }

 private:
  static bool sees(const HeadVisibility<T>& rules, Index i, Index j) {
    const KeyRange range = rules.own_range(i);
    bool seen = j >= range.begin && j < range.end && rules.kept(i, j);
    for (int n = 0; n < rules.bias_count(); ++n) {
      seen = seen && !(rules.bias_plane(n).at(i, j) < rules.hidden_below());
    }
    return seen;
  }
  Shape<4> any_shape() {
    const auto one_or = [&](Index n) { return numbers.coin(0.5) ? 1 : n; };
    return {one_or(B), one_or(H), one_or(many), numbers.coin(0.9) ? S : 1};
  }
  /// Whether a pair is hidden: by a coin, or as padding before or behind.
  auto hiding() {
    const double share = numbers.coin(0.5) ? 0.1 : numbers.unit();
    const Index kind = numbers.below(3), cut = numbers.below(S + 1);
    return [this, share, kind, cut](const Shape<4>& at) {
      return kind == 0 ? numbers.coin(share) : kind == 1 ? at[3] < cut : at[3] >= cut;
    };
  }
  void add_bits() {
    const bool keep = numbers.coin(0.5);
    Tensor<bool, 4>& x = bits.emplace_back(any_shape());
    const auto hides = hiding();
    for_each_index(x.shape(), [&](const Shape<4>& at) { x(at) = hides(at) != keep; });
    pairs.push_back(keep ? Mask::keep(x) : Mask::drop(x));
    what += keep ? "keep " : "drop ";
  }
  void add_bias() {
    Tensor4<T>& x = values.emplace_back(any_shape());
    const auto hides = hiding();
    const bool zeros = numbers.coin(0.5), some = numbers.coin(0.7);
    for_each_index(x.shape(), [&](const Shape<4>& at) {
      const bool hidden = some && hides(at);
      x(at) = hidden  ? -std::numeric_limits<T>::infinity()
              : zeros ? T(0)
                      : static_cast<T>(numbers.number());
    });
    biases.push_back(Mask::bias(x));
    what += "bias ";
  }
};

/// Whether two tensors are the same to the bit, but for which NaN stands where one does.
template <class T>
bool same_numbers(const In<T, 4>& a, const In<T, 4>& b) {
  if (a.shape() != b.shape()) return false;
  bool same = true;
  for_each_index(a.shape(), [&](const Shape<4>& at) {
    const T x = a(at), y = b(at);
    same = same && (std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y)));
  });
  return same;
}
template <class T>
bool same_results(const Outputs<T>& a, const Outputs<T>& b) {
  const Index n = b.o.extent(2), first = a.o.extent(2) - n;
  return same_numbers<T>(slice(a.o, 2, first, n), b.o) &&
         same_numbers<T>(slice(a.lse, 2, first, n), b.lse);
}

}  // namespace

TEMPLATE_TEST_CASE("few queries with masks and biases have the bits that they have among many",
                   "[ops]", float, double) {
  ThreadPool pool(3);
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    MaskedCase<TestType> x(seed);
    CAPTURE(x.what);
    for (const bool poisoned : {false, true}) {
      if (poisoned) x.poison();
      CAPTURE(poisoned);
      const In<TestType, 4> k = x.k, v = x.v;
      const auto all = x.last(x.many, k, v), few = x.last(x.few, k, v);
      CHECK(same_results(all, few));
      FlopTally flops;
      (void)x.last(x.few, k, v, {.flops = &flops});
      CHECK(flops.useful == x.useful_flops());
      CHECK(same_results(few, x.last(x.few, TransposedCopy<TestType>(k).keys, v)));
      CHECK(same_results(few, x.last(x.few, k, v, {.executor = pool})));
    }
  }
}

TEMPLATE_TEST_CASE("few queries with masks over 16 bits have the bits of their numbers", "[ops]",
                   BFloat16, Float16) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    MaskedCase<float> x(seed);
    if (seed % 2 == 0) x.poison();
    const auto k = converted<TestType>(x.k), v = converted<TestType>(x.v);
    const auto wide_k = converted<float>(k), wide_v = converted<float>(v);
    CAPTURE(x.what);
    CHECK(same_results(x.last(x.few, In<float, 4>(wide_k), In<float, 4>(wide_v)),
                       x.last(x.few, In<TestType, 4>(k), In<TestType, 4>(v))));
  }
}

TEST_CASE("one query with masks is decoded, and blocks that they hide whole are skipped", "[ops]") {
  Numbers numbers(3);
  const Index S = 1024;
  const auto q = numbers.tensor<float>(Shape{1, 4, 1, 16}),
             k = numbers.tensor<float>(Shape{1, 2, S, 16}),
             v = numbers.tensor<float>(Shape{1, 2, S, 16});
  ThreadPool pool(3);
  const auto tally = [&](const AttentionMask<float>& mask) {
    FlopTally flops, shared;
    Tensor4<float> o(q.shape());
    flash_attention_forward<float>(q, k, v, {.mask = mask}, o, {}, {.flops = &flops});
    flash_attention_forward<float>(q, k, v, {.mask = mask}, o, {},
                                   {.executor = pool, .flops = &shared});
    CHECK(shared.executed == flops.executed);
    return std::pair{flops.useful.load(), flops.executed.load()};
  };
  const auto [useful, executed] = tally({});
  Tensor<bool, 4> keep({1, 1, 1, S}), of_heads({1, 4, 1, S});
  Tensor4<float> bias(keep.shape());
  for (Index j = 0; j < S; ++j) {
    keep(0, 0, 0, j) = j >= S / 2;
    bias(0, 0, 0, j) = j >= S / 2 ? 0 : -std::numeric_limits<float>::infinity();
    for (Index h = 0; h < 4; ++h) of_heads(0, h, 0, j) = j >= S / 2;
  }
  CHECK(tally(Mask::keep(keep)) == std::pair{useful, executed / 2});
  const auto with_bias = tally(Mask::bias(bias));
  CHECK(with_bias.first == useful + 4 * S);
  CHECK(with_bias.second == executed / 2 + 2 * S);
  // Of heads that share keys each has its own mask: they go the general way, in whole vectors.
  CHECK(tally(Mask::keep(of_heads)).second > executed);
}

}  // namespace ops_decode_masks
