// What is promised of bits, by products of bf16 and of numbers in pieces of it: the same for a
// query, a chunk or a batch element alone, on any threads, time after time; and nothing of what is
// hidden reaches anything.
#include <limits>

#include "headwise/ops/packed_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/mask_recipes.hpp"
#include "support/other_products.hpp"
#include "support/packed_sequence.hpp"
#include "support/poison_reach.hpp"

namespace ops_bf16_attention_bits {

using namespace headwise_tests;

namespace {

/// Masks of which a part of the queries and the first keys have their own parts.
struct Sequence {
  Case<float> x;
  bool causal;
  Tensor<bool, 4> pairs = {};  // [1, H, L, S]
  Tensor4<float> bias = {};    // [1, H, L, S]

  Sequence(const Sizes& s, bool causal_, Index window, Index first, bool by_pairs)
      : x(s, 5000), causal(causal_) {
    if (causal) x.causal();
    if (window != 0) x.window(window, first);
    if (!by_pairs) return;
    pairs = Tensor<bool, 4>(Shape{Index{1}, s.H, s.L, s.S});
    for (bool& bit : pairs) bit = x.numbers.coin(0.7);
    bias = x.numbers.tensor<float>(pairs.shape());
    for (float& value : bias) {
      if (x.numbers.coin(0.1)) value = -std::numeric_limits<float>::infinity();
    }
  }

  /// Elements [b, b + nb), queries [i, i + n), and the keys up to the last that they see.
  Outputs<float> part(Path path, Index b, Index nb, Index i, Index n,
                      const Context& context) const {
    const Index S = keys_of(i + n);
    const auto batch = [&](const auto& t) { return slice(t, 0, b, nb); };
    const auto square = [&](const auto& t) { return slice(slice(t, 2, i, n), 3, 0, S); };
    AttentionOptions<float> options = x.options;
    if (!pairs.absent()) options.mask.add(Mask::keep(square(pairs)));
    if (!bias.absent()) options.mask.add(Mask::bias(square(bias)));
    return run<float>(path, slice(batch(x.q), 2, i, n), slice(batch(x.k), 2, 0, S),
                      slice(batch(x.v), 2, 0, S), slice(batch(x.d_o), 2, i, n), options, context);
  }
  Outputs<float> whole(Path path, const Context& context) const {
    return part(path, 0, x.sizes.B, 0, x.sizes.L, context);
  }
  Index keys_of(Index queries) const {
    return causal ? queries + x.sizes.S - x.sizes.L : x.sizes.S;
  }

  /// What of queries [i, i + n) is not the same alone as in the whole.
  std::string difference(const Outputs<float>& all, const Outputs<float>& alone, Index i,
                         Index n) const {
    const auto same = [&](const auto& whole, const auto& part) {
      return same_bits<float, 4>(slice(whole, 2, i, n), part);
    };
    std::string names;
    if (!same(all.o, alone.o)) names += "o ";
    if (!same(all.dq, alone.dq)) names += "dq ";
    if (!all.lse.absent() && !same(all.lse, alone.lse)) names += "lse ";
    if (!all.weights.absent() && !same(slice(all.weights, 3, 0, keys_of(i + n)), alone.weights)) {
      names += "weights ";
    }
    return names;
  }
};

/// Calls f(sequence, path, products) for every shape, mask, path and kind.
template <class F>
void for_each_sequence(const F& f) {
  for (const Sizes& s : {Sizes{3, 2, 1, 7, 11, 3, 5}, Sizes{1, 4, 2, 49, 67, 17, 33},
                         Sizes{3, 1, 1, 97, 131, 33, 8}, Sizes{1, 1, 1, 131, 131, 64, 64}}) {
    const Sequence all[] = {{s, false, 0, 0, false}, {s, true, 0, 0, false},
                            {s, true, 13, 4, false}, {s, true, 80, 0, false},
                            {s, false, 0, 0, true},  {s, true, 60, 3, true}};
    for (const Sequence& sequence : all) {
      for (const auto& [name, products] : supported_products()) {
        for (Path path : {Path::materialized, Path::flash}) {
          const auto mask = &sequence - all;
          const bool tiled = path == Path::flash;
          CAPTURE(s.format(), mask, name, tiled);
          f(sequence, path, products);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "by bf16, whole or in pieces, a query alone, and any chunk, has the bits that it has among "
    "others",
    "[ops]") {
  for_each_sequence([](const Sequence& sequence, Path path, const Products& products) {
    const Context context{.products = products};
    const auto [B, H, G, L, S, d, dv] = sequence.x.sizes;
    const Outputs<float> all = sequence.whole(path, context);
    for (Index most : {1, 6, 16, 17, 50}) {
      std::string differences;
      for (Index i = 0, n = 0; i < L; i += n) {
        n = std::min(most, L - i);
        differences += sequence.difference(all, sequence.part(path, 0, B, i, n, context), i, n);
      }
      CAPTURE(most);
      CHECK(differences == "");
    }
  });
}

TEST_CASE(
    "by bf16, whole or in pieces, a batch element alone has the bits that it has in its batch",
    "[ops]") {
  for_each_sequence([](const Sequence& sequence, Path path, const Products& products) {
    const Context context{.products = products};
    const auto [B, H, G, L, S, d, dv] = sequence.x.sizes;
    const Outputs<float> all = sequence.whole(path, context);
    for (Index b = 0; b < B; ++b) {
      const Outputs<float> one = sequence.part(path, b, 1, 0, L, context);
      const auto same = [&](const auto& whole, const auto& alone) {
        return whole.absent() || same_bits<float, 4>(slice(whole, 0, b, 1), alone);
      };
      CHECK(same(all.o, one.o));
      CHECK(same(all.lse, one.lse));
      CHECK(same(all.weights, one.weights));
      CHECK(same(all.dq, one.dq));
      CHECK(same(all.dk, one.dk));
      CHECK(same(all.dv, one.dv));
    }
  });
}

TEST_CASE("by bf16, whole or in pieces, any number of threads gives the same bits, time after time",
          "[ops]") {
  ThreadPool one(1), two(2), three(3), eight(8);
  for_each_sequence([&](const Sequence& sequence, Path path, const Products& products) {
    Case<float> dropped = sequence.x;
    dropped.dropout(0.3);
    const Context serial{.executor = one, .products = products};
    const Outputs<float> whole = sequence.whole(path, serial), less = run(path, dropped, serial);
    for (ThreadPool* pool : {&one, &two, &three, &eight}) {
      const Context context{.executor = *pool, .products = products};
      for (int time = 0; time < 2; ++time) {
        CHECK(bit_difference(sequence.whole(path, context), whole) == "");
        CHECK(bit_difference(run(path, dropped, context), less) == "");
      }
    }
  });
}

TEST_CASE("by bf16, whole or in pieces, a packed sequence has the bits that it has alone",
          "[ops]") {
  const std::vector<Index> starts = {0, 5, 5, 6, 137, 204};
  Numbers numbers(5050);
  const auto q = numbers.tensor<float>(Shape{204, 4, 17}),
             k = numbers.tensor<float>(Shape{204, 2, 17}),
             v = numbers.tensor<float>(Shape{204, 2, 33}),
             d_o = numbers.tensor<float>(Shape{204, 4, 33});
  const PackedSequences<float> packed{q, k, v, starts, starts};
  ThreadPool pool(3);
  for (const AttentionMask<float>& mask :
       {AttentionMask<float>{}, AttentionMask<float>{causal},
        AttentionMask<float>{causal, Mask::window(13).keeping_first(3)}}) {
    const AttentionOptions<float> options{.mask = mask, .scale = 0.3f};
    for (const auto& [name, products] : supported_products()) {
      const Context context{.executor = pool, .products = products};
      Tensor3<float> o(d_o.shape()), lse(Shape{204, 4, 2}), dq(q.shape()), dk(k.shape()),
          dv(v.shape());
      packed_attention_forward(packed, options, o, lse, context);
      packed_attention_backward(d_o, packed, o, lse, options, {dq, dk, dv}, context);
      for (Index b = 0; b < 5; ++b) {
        const auto part = [&](const Tensor3<float>& t) { return sequence(t, starts, b); };
        const Outputs<float> alone = run<float>(Path::flash, part(q), part(k), part(v), part(d_o),
                                                options, {.products = context.products});
        CAPTURE(name, b);
        CHECK(same_bits<float, 4>(part(o), alone.o));
        CHECK(same_bits<float, 4>(part(lse), alone.lse));
        CHECK(same_bits<float, 4>(part(dq), alone.dq));
        CHECK(same_bits<float, 4>(part(dk), alone.dk));
        CHECK(same_bits<float, 4>(part(dv), alone.dv));
      }
    }
  }
}

TEST_CASE(
    "by bf16, whole or in pieces, what a query may not see never reaches it, and NaN in what it "
    "sees shows",
    "[ops]") {
  // The second is finite, but for bf16.
  const std::vector<float> all = {std::numeric_limits<float>::quiet_NaN(), 3.4e38f};
  constexpr Place places[] = {Place::k, Place::v, Place::q, Place::d_o};
  Index clean = 0, dirty = 0;
  for (const Recipe<float>& recipe : mask_recipes<float>()) {
    for (const Sizes& sizes :
         {Sizes{2, 2, 1, 7, 11, 3, 5}, Sizes{1, 2, 1, 67, 49, 17, 8}, beyond_tiles}) {
      Case<float> x(sizes, 5100);
      recipe.apply(x);
      std::vector<Reach> reaches;
      for (Place place : places) {
        reaches.push_back(reach(x, place));
        const std::vector<bool>& query = reaches.back().query;
        clean += std::count(query.begin(), query.end(), false);
        dirty += std::count(query.begin(), query.end(), true);
      }
      for (const auto& [name, products] : supported_products()) {
        const Context context{.products = products};
        for (Path path : {Path::materialized, Path::flash}) {
          const Outputs<float> finite = run(path, x, context);
          for (Place place : places) {
            const auto n = static_cast<std::size_t>(place);
            for (float poison : all) {
              const bool tiled = path == Path::flash;
              CAPTURE(recipe.name, sizes.format(), name, place_names[n], poison, tiled);
              check_reach(path, x, finite, place, reaches[n], poison, context);
            }
          }
        }
      }
    }
  }
  CHECK(clean > 1000);
  CHECK(dirty > 1000);
}

}  // namespace ops_bf16_attention_bits
