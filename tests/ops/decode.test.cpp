// Few queries over many keys have kernels of their own: their results have the bits that the same
// queries have among many, which go the general way, whatever is done to scores.
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/bent_score.hpp"
#include "support/catch.hpp"
#include "support/transposed_copy.hpp"

namespace ops_decode {

using namespace headwise_tests;

namespace {

/// As BentScore bends a score, by a product in place of the cosine: with -ffast-math g++ takes one
/// from the C library's vectors for sixteen keys of a run, and by itself for those that are left.
struct SquaredScore {
  template <class S>
  S operator()(const S& s, const Position& at, const std::array<S, 2>& w) const {
    return (w[0] + S(BentScore::share(at))) * s + w[1] * (s * s) + S(BentScore::bias(at));
  }
};

/// So many queries go the general way, on every instruction set.
template <class T>
Index many_queries() {
  return kernels::kernels_here<T>().decode.queries + 24;
}

/// What a call of few queries sees: keys and values where a cache has them, masks and what is done
/// to scores at random.
template <class T>
struct DecodeCase {
  Numbers numbers;
  Index B, G, H, L, S, d, dv;
  Tensor4<T> q;                   // [B, H, many, d]
  Tensor<T, 1> k_cache, v_cache;  // more than is seen, NaN where it is not
  View4<T> k, v;                  // [B, G, S, d], [B, G, S, dv]
  std::vector<Index> lengths;     // [B]
  Tensor<T, 1> slopes, sinks;     // [H]
  Tensor<T, 2> table;             // [H or 1, 2 R + 1]
  std::optional<ScoreFunction<T, 2, SquaredScore>> function;
  AttentionOptions<T> options;
  std::string what;

  explicit DecodeCase(std::uint64_t seed) : numbers(seed) {
    const auto one_of = [&](std::initializer_list<Index> list) {
      return list.begin()[numbers.below(static_cast<Index>(list.size()))];
    };
    B = 1 + numbers.below(3), G = 1 + numbers.below(3), H = G * one_of({1, 1, 2, 3, 7, 9, 37});
    L = 1 + numbers.below(kernels::kernels_here<T>().decode.queries);
    if (numbers.coin(0.5)) L = 1;
    S = numbers.coin(0.5) ? 1 + numbers.below(60) : 100 + numbers.below(1500);
    if (numbers.coin(0.3)) S = one_of({127, 128, 129, 256, 512, 1023, 1024});
    d = one_of({1, 3, 5, 8, 15, 16, 17, 31, 32, 40, 64, 65});
    dv = one_of({1, 2, 7, 8, 16, 33, 64, 128, 150});
    q = numbers.tensor<T>(Shape{B, H, many_queries<T>(), d});
    k = place(k_cache, d), v = place(v_cache, dv);
    if (numbers.coin(0.4)) add("causal", causal);
    if (numbers.coin(0.3)) add("window", Mask::window(1 + numbers.below(S + 9)));
    if (numbers.coin(0.3)) {
      for (Index b = 0; b < B; ++b) lengths.push_back(numbers.below(S + 1));
      add("lengths", Mask::key_lengths(lengths));
    }
    if (numbers.coin(0.3)) options.scale = static_cast<T>(numbers.number());
    if (numbers.coin(0.6)) change_scores();
    what += " B " + std::to_string(B) + " G " + std::to_string(G) + " H " + std::to_string(H) +
            " L " + std::to_string(L) + " S " + std::to_string(S) + " d " + std::to_string(d) +
            " dv " + std::to_string(dv) + " seed " + std::to_string(seed);
  }
  DecodeCase(const DecodeCase&) = delete;
  DecodeCase& operator=(const DecodeCase&) = delete;

  /// o and lse of the last n queries.
  std::pair<Tensor4<T>, Tensor4<T>> last(Index n, const Context& context = {}) {
    return last_over(k, n, context);
  }
  /// The same over keys that lie transposed.
  std::pair<Tensor4<T>, Tensor4<T>> last_transposed(Index n, const Context& context = {}) {
    return last_over(TransposedCopy<T>(k).keys, n, context);
  }

 private:
  template <class Keys>
  std::pair<Tensor4<T>, Tensor4<T>> last_over(const Keys& keys, Index n, const Context& context) {
    std::pair y{Tensor4<T>(Shape{B, H, n, dv}), Tensor4<T>(Shape{B, H, n, Index{2}})};
    options.origin.query = q.extent(2) - n;
    for (auto* x : {&y.first, &y.second}) std::fill(x->begin(), x->end(), T(777));
    flash_attention_forward<T>(slice(q, 2, q.extent(2) - n, n), keys, v, options, y.first, y.second,
                               context);
    return y;
  }
  template <class Term>
  void add(const char* name, Term term) {
    options.mask.add(term);
    what += std::string(name) + " ";
  }
  void change_scores() {
    ScoreOptions<T>& score = options.score;
    const T nothing = -std::numeric_limits<T>::infinity();
    const auto chosen = [&](const char* name) {
      const bool taken = numbers.coin(0.4);
      if (taken) what += std::string(name) + " ";
      return taken;
    };
    if (chosen("softcap")) score.softcap = static_cast<T>(0.5 + std::abs(numbers.number()));
    if (chosen("alibi")) score.alibi_slopes = slopes = numbers.tensor<T>(Shape{H});
    if (chosen("table")) {
      table = numbers.tensor<T>(Shape{numbers.coin(0.5) ? H : 1, 2 * numbers.below(300) + 1});
      if (numbers.coin(0.2)) std::fill(table.begin(), table.end(), nothing);
      score.relative_bias = table;
    }
    if (chosen("sinks")) {
      sinks = numbers.tensor<T>(Shape{H});
      const T most = (std::numeric_limits<T>::max)();
      for (const T special : {nothing, -most, -most / 4, T(60), most}) {
        if (numbers.coin(0.1)) sinks(numbers.below(H)) = special;
      }
      score.sinks = sinks;
    }
    if (chosen("function")) {
      function.emplace(SquaredScore{}, std::array{T(0.75), T(0.5)});
      score.function = *function;
    }
  }
  /// Numbers, seen as [B, G, S, N]: heads behind each other, as KeyValueCache has them, or beside
  /// each other in the rows of tokens.
  View4<T> place(Tensor<T, 1>& storage, Index N) {
    const bool by_head = numbers.coin(0.5);
    const Index odd = numbers.below(3), room = S + numbers.below(3), row = G * N + odd;
    storage = Tensor<T, 1>({B * G * room * N + B * room * odd + 7});
    std::fill(storage.begin(), storage.end(), std::numeric_limits<T>::quiet_NaN());
    what += by_head ? "by head " : "by token ";
    View4<T> view(
        storage.data() + numbers.below(7), Shape{B, G, S, N},
        by_head ? Shape{G * room * N, room * N, N, Index{1}} : Shape{room * row, N, row, Index{1}});
    for_each_index(view.shape(),
                   [&](const Shape<4>& i) { view(i) = static_cast<T>(numbers.number()); });
    return view;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("few queries have the bits that they have among many", "[ops]", float, double) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    DecodeCase<TestType> one(seed);
    CAPTURE(one.what);
    const Index many = one.q.extent(2);
    const auto all = one.last(many), few = one.last(one.L);
    const auto same = [&](const Tensor4<TestType>& a, const Tensor4<TestType>& b) {
      return same_bits<TestType, 4>(slice(a, 2, many - one.L, one.L), b);
    };
    CHECK(same(all.first, few.first));
    CHECK(same(all.second, few.second));
    const auto transposed = one.last_transposed(one.L);
    CHECK(same_bits<TestType, 4>(transposed.first, few.first));
    CHECK(same_bits<TestType, 4>(transposed.second, few.second));
    for (const Index threads : {2, 3}) {
      ThreadPool pool(threads);
      const auto shared = one.last(one.L, {.executor = pool});
      CAPTURE(threads);
      CHECK(same_bits<TestType, 4>(shared.first, few.first));
      CHECK(same_bits<TestType, 4>(shared.second, few.second));
      const auto shared_transposed = one.last_transposed(one.L, {.executor = pool});
      CHECK(same_bits<TestType, 4>(shared_transposed.first, few.first));
      CHECK(same_bits<TestType, 4>(shared_transposed.second, few.second));
    }
  }
}

TEMPLATE_TEST_CASE("what few queries may not see reaches them not even as NaN", "[ops]", float,
                   double) {
  constexpr TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  for (std::uint64_t seed = 201; seed <= 280; ++seed) {
    DecodeCase<TestType> one(seed);
    CAPTURE(one.what);
    const auto before = one.last(one.L);
    for (Index b = 0; b < one.B; ++b) {
      const HeadVisibility<TestType> visible(one.options.mask, b, 0, one.L, one.S);
      const KeyRange range = visible.range(0, one.L);
      for (Index j = 0; j < one.S; ++j) {
        if (j >= range.begin && j < range.end) continue;
        for (Index g = 0; g < one.G; ++g) {
          for (Index n = 0; n < one.d; ++n) one.k(b, g, j, n) = nan;
          for (Index n = 0; n < one.dv; ++n) one.v(b, g, j, n) = nan;
        }
      }
    }
    const auto after = one.last(one.L);
    CHECK(same_bits<TestType, 4>(before.first, after.first));
    CHECK(same_bits<TestType, 4>(before.second, after.second));
    const auto transposed = one.last_transposed(one.L);
    CHECK(same_bits<TestType, 4>(before.first, transposed.first));
    CHECK(same_bits<TestType, 4>(before.second, transposed.second));
  }
}

TEMPLATE_TEST_CASE("FLOPs of few queries are counted exactly, for any number of threads", "[ops]",
                   float, double) {
  for (std::uint64_t seed = 301; seed <= 360; ++seed) {
    DecodeCase<TestType> one(seed);
    std::int64_t pairs = 0;
    for (Index b = 0; b < one.B; ++b) {
      const HeadVisibility<TestType> visible(one.options.mask, b, 0, one.L, one.S);
      for (Index i = 0; i < one.L; ++i) pairs += one.H * visible.range(i).size();
    }
    FlopTally serial;
    (void)one.last(one.L, {.flops = &serial});
    CAPTURE(one.what);
    const ScoreOptions<TestType>& score = one.options.score;
    const Index changes = (score.softcap ? 3 : 0) + (score.alibi_slopes.absent() ? 0 : 2) +
                          (score.relative_bias.absent() ? 0 : 1);
    CHECK(serial.useful == pairs * (2 * (one.d + one.dv) + 5 + changes));
    CHECK(serial.executed >= serial.useful);
    for (const Index threads : {2, 3}) {
      ThreadPool pool(threads);
      FlopTally shared;
      (void)one.last(one.L, {.executor = pool, .flops = &shared});
      CHECK(shared.useful == serial.useful);
      CHECK(shared.executed == serial.executed);
    }
  }
}

TEST_CASE("decoding asks the system for no memory after the first call of a shape", "[ops]") {
  for (const Index threads : {1, 3}) {
    ThreadPool pool(threads);
    RecycledMemory memory;
    const Context context{.executor = pool, .memory = &memory};
    Numbers numbers(7);
    const auto q = numbers.tensor<float>(Shape{1, 2, 1, 64});
    const auto k = numbers.tensor<float>(Shape{1, 1, 2100, 64}), v = k;
    Tensor4<float> o(q.shape());
    flash_attention_forward<float>(q, k, v, {}, o, {}, context);
    const std::size_t kept = memory.kept_bytes();
    CHECK(kept > 0);
    for (int n = 0; n < 3; ++n) flash_attention_forward<float>(q, k, v, {}, o, {}, context);
    CHECK(memory.kept_bytes() == kept);
  }
}

TEST_CASE("threads share the keys where there are fewer heads than threads, and parts of them only",
          "[ops]") {
  const auto& run = kernels::kernels_here<float>().decode;
  const auto parts = [&](Index groups, Index S, Index workers) {
    return kernels::DecodePlan(run, {groups, 1, 1, S, 64, 64, workers}).key_parts;
  };
  CHECK(parts(1, 16384, 1) == 1);
  CHECK(parts(12, 16384, 2) == 1);  // six heads each
  CHECK(parts(1, 16384, 2) == 8);
  CHECK(parts(3, 16384, 2) == 3);
  CHECK(parts(1, 1024, 2) == 2);  // no part is below four blocks
  CHECK(parts(1, 500, 2) == 1);
  CHECK(parts(0, 16384, 2) == 1);
}

}  // namespace ops_decode
