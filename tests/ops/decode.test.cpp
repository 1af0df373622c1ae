// Few queries over many keys have kernels of their own: their results have the bits that the same
// queries have among many, which go the general way.
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

using namespace headwise_tests;

namespace {

/// So many queries go the general way, on every instruction set.
template <class T>
Index many_queries() {
  return kernels::kernels_here<T>().decode.queries + 24;
}

/// What a call of few queries sees: keys and values where a cache has them, masks at random.
template <class T>
struct DecodeCase {
  Numbers numbers;
  Index B, G, H, L, S, d, dv;
  Tensor4<T> q;                   // [B, H, many, d]
  Tensor<T, 1> k_cache, v_cache;  // more than is seen, NaN where it is not
  View4<T> k, v;                  // [B, G, S, d], [B, G, S, dv]
  std::vector<Index> lengths;     // [B]
  AttentionOptions<T> options;
  std::string what;

  explicit DecodeCase(std::uint64_t seed) : numbers(seed) {
    const auto one_of = [&](std::initializer_list<Index> list) {
      return list.begin()[numbers.below(static_cast<Index>(list.size()))];
    };
    B = 1 + numbers.below(3), G = 1 + numbers.below(3), H = G * one_of({1, 1, 2, 3, 7, 9});
    L = 1 + numbers.below(kernels::kernels_here<T>().decode.queries);
    if (numbers.coin(0.5)) L = 1;
    S = numbers.coin(0.5) ? 1 + numbers.below(60) : 100 + numbers.below(1500);
    if (numbers.coin(0.3)) S = one_of({127, 128, 129, 256, 512, 1023, 1024});
    d = one_of({1, 3, 5, 8, 15, 16, 17, 31, 32, 40, 64, 65}), dv = one_of({1, 2, 7, 8, 16, 33, 64});
    q = numbers.tensor<T>(Shape{B, H, many_queries<T>(), d});
    k = place(k_cache, d), v = place(v_cache, dv);
    if (numbers.coin(0.4)) add("causal", causal);
    if (numbers.coin(0.3)) add("window", Mask::window(1 + numbers.below(S + 9)));
    if (numbers.coin(0.3)) {
      for (Index b = 0; b < B; ++b) lengths.push_back(numbers.below(S + 1));
      add("lengths", Mask::key_lengths(lengths));
    }
    if (numbers.coin(0.3)) options.scale = static_cast<T>(numbers.number());
    what += " B " + std::to_string(B) + " G " + std::to_string(G) + " H " + std::to_string(H) +
            " L " + std::to_string(L) + " S " + std::to_string(S) + " d " + std::to_string(d) +
            " dv " + std::to_string(dv) + " seed " + std::to_string(seed);
  }
  DecodeCase(const DecodeCase&) = delete;
  DecodeCase& operator=(const DecodeCase&) = delete;

  /// o and lse of the last n queries.
  std::pair<Tensor4<T>, Tensor4<T>> last(Index n, const Context& context = {}) {
    std::pair y{Tensor4<T>(Shape{B, H, n, dv}), Tensor4<T>(Shape{B, H, n, Index{2}})};
    for (auto* x : {&y.first, &y.second}) std::fill(x->begin(), x->end(), T(777));
    flash_attention_forward<T>(slice(q, 2, q.extent(2) - n, n), k, v, options, y.first, y.second,
                               context);
    return y;
  }

 private:
  template <class Term>
  void add(const char* name, Term term) {
    options.mask.add(term);
    what += std::string(name) + " ";
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
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    DecodeCase<TestType> one(seed);
    CAPTURE(one.what);
    const Index many = one.q.extent(2);
    const auto all = one.last(many), few = one.last(one.L);
    const auto same = [&](const Tensor4<TestType>& a, const Tensor4<TestType>& b) {
      return same_bits<TestType, 4>(slice(a, 2, many - one.L, one.L), b);
    };
    CHECK(same(all.first, few.first));
    CHECK(same(all.second, few.second));
    for (const Index threads : {2, 3}) {
      ThreadPool pool(threads);
      const auto shared = one.last(one.L, {.executor = pool});
      CAPTURE(threads);
      CHECK(same_bits<TestType, 4>(shared.first, few.first));
      CHECK(same_bits<TestType, 4>(shared.second, few.second));
    }
  }
}
