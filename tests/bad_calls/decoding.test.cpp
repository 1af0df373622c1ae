// A cache of keys and values.
#include "support/refusal_rules.hpp"

namespace bad_calls_decoding {

using namespace headwise_tests;

namespace {

/// A cache of 2 sequences, 2 heads of widths 3 and 4, and 5 tokens, of which 3 are there.
struct Append {
  Witness& m;
  KeyValueCache<double> cache{
      {.batch_size = 2, .num_kv_heads = 2, .capacity = 5, .d_head = 3, .d_value = 4}};
  View<4> k = m.tensor(2, 2, 2, 3), v = m.tensor(2, 2, 2, 4);
  std::vector<Index> counts = {};
  void call() {
    const Tensor4<double> k0(Shape{2, 2, 3, 3}), v0(Shape{2, 2, 3, 4});
    cache.append(k0, v0);
    try {
      cache.append(k, v, counts);
    } catch (...) {
      CHECK(cache.length() == 3);
      throw;
    }
  }
};
Refusal made(const std::string& message, const KeyValueCacheOptions& options) {
  return argument_error("KeyValueCache: " + message,
                        [=](Witness&) { (void)KeyValueCache<double>(options); });
}
Refusal rolled_back(const std::string& message, Index n) {
  return argument_error("KeyValueCache::rollback: " + message, [=](Witness& m) {
    Append c{m};
    c.call();
    c.cache.rollback(n);
  });
}

/// A cache of one sequence, 1 wide, with a window: it has taken 5 blocks of tokens.
struct Windowed {
  Index block = kernels::kernels_here<double>().forward_keys;
  KeyValueCache<double> cache{{.d_head = 1, .window = 3, .first_keys = 1}};
  void take(Index n) {
    const Tensor4<double> tokens(Shape{Index{1}, Index{1}, n, Index{1}});
    cache.append(tokens, tokens);
  }
  Windowed() {
    for (int n = 0; n < 5; ++n) take(block);
  }
};
const std::vector<Index> three_counts = {1, 1, 1}, too_great = {1, 3}, below = {-1, 1};

const std::string too_many =
    "2 tokens behind 3 of sequence 0 are more than the capacity 4 of the cache: roll it "
    "back, clear it or make a larger one";

const Refusals decoding(all_of({
    {
        made("batch_size is -1, expected >= 0", {.batch_size = -1}),
        made("num_kv_heads is -2, expected >= 0", {.num_kv_heads = -2}),
        made("capacity is -3, expected >= 0", {.capacity = -3}),
        made("d_head is -4, expected >= 0", {.d_head = -4}),
        made("d_value is -5, expected >= 0", {.d_value = -5}),
        shape<Append>("KeyValueCache::append: k is [2, 1, 2, 3], expected [2, 2, 2, 3] (batch, "
                      "heads and width of the cache)",
                      [](auto& c) { c.k = c.m.tensor(2, 1, 2, 3); }),
        shape<Append>("KeyValueCache::append: k is [2, 2, 2, 3] at a null address, expected its "
                      "elements",
                      [](auto& c) { c.k = c.m.null(2, 2, 2, 3); }),
        shape<Append>("KeyValueCache::append: v is [2, 2, 1, 4], expected [2, 2, 2, 4] (batch, "
                      "heads and width of the cache, length of k)",
                      [](auto& c) { c.v = c.m.tensor(2, 2, 1, 4); }),
        argument<Append>("KeyValueCache::append: " + too_many,
                         [](auto& c) {
                           c.cache = KeyValueCache<double>({.batch_size = 2,
                                                            .num_kv_heads = 2,
                                                            .capacity = 4,
                                                            .d_head = 3,
                                                            .d_value = 4});
                         }),
        argument_error(
            "KeyValueCache::append: k or v lie in the cache, expected memory of their own",
            [](Witness& m) {
              KeyValueCache<double> cache({.capacity = 4, .d_head = 3});
              cache.append(m.tensor(1, 1, 2, 3), m.tensor(1, 1, 2, 3));
              cache.append(m.tensor(1, 1, 2, 3), cache.v());
            }),
        argument_error(
            "KeyValueCache::append: k or v lie in the cache, expected memory of their own",
            [](Witness& m) {
              KeyValueCache<double> cache({.capacity = 4, .d_head = 3});
              cache.append(m.tensor(1, 1, 2, 3), m.tensor(1, 1, 2, 3));
              const In<double, 5> blocks = cache.k().blocks;
              cache.append(In<double, 4>(&blocks(0, 0, 0, 2, 120), Shape{1, 1, 2, 3}),
                           m.tensor(1, 1, 2, 3));
            }),
        argument_error("KeyValueCache::append: 1 tokens behind 0 of sequence 0 are more than the "
                       "capacity 0 of the cache: roll it back, clear it or make a larger one",
                       [](Witness& m) {
                         KeyValueCache<double> cache({.capacity = 4, .d_head = 0});
                         const KeyValueCache<double> taken = std::move(cache);
                         cache.append(m.tensor(1, 1, 1, 0), m.tensor(1, 1, 1, 0));
                       }),
        argument_error("KeyValueCache::rollback: n is 1, expected 0 of a cache that was moved from",
                       [](Witness& m) {
                         KeyValueCache<double> cache({.capacity = 4, .d_head = 3});
                         cache.append(m.tensor(1, 1, 2, 3), m.tensor(1, 1, 2, 3));
                         const KeyValueCache<double> taken = std::move(cache);
                         cache.rollback(1);
                       }),
        made("window is -1, expected >= 0", {.window = -1}),
        made("first_keys is -1, expected >= 0", {.window = 4, .first_keys = -1}),
        made("first_keys is 281474976710657, expected at most 2^48 beside a window",
             {.window = 1, .first_keys = (Index{1} << 48) + 1}),
        made("first_keys is 2 and window 0, expected a window beside which they are kept",
             {.first_keys = 2}),
        made("capacity is 281474976710657, expected at most 2^48 beside a window",
             {.capacity = (Index{1} << 48) + 1, .window = 1}),
        made("window is 281474976710657, expected at most 2^48 beside a window",
             {.window = (Index{1} << 48) + 1}),
        made("stored_as is of 16 bits, expected StoredAs::same: the cache is not of float",
             {.stored_as = StoredAs::bf16}),
        argument_error(
            "KeyValueCache::k: a view of the cache's own type is asked for, expected one "
            "of Float16 (stored_as)",
            [](Witness&) { (void)KeyValueCache<float>({.stored_as = StoredAs::fp16}).k(); }),
        argument_error("KeyValueCache::v: a view of BFloat16 is asked for, expected one of the "
                       "cache's own type (stored_as)",
                       [](Witness&) {
                         (void)KeyValueCache<double>(KeyValueCacheOptions{}).v<BFloat16>(0);
                       }),
        argument<Append>(
            "KeyValueCache::append: counts are 3, expected 2 (the batch size), or none "
            "for all",
            [](auto& c) { c.counts = three_counts; }),
        argument<Append>(
            "KeyValueCache::append: counts holds 3, expected 0 to 2 (the tokens given)",
            [](auto& c) { c.counts = too_great; }),
        argument<Append>(
            "KeyValueCache::append: counts holds -1, expected 0 to 2 (the tokens given)",
            [](auto& c) { c.counts = below; }),
        argument_error(
            "KeyValueCache::append: 1000000 tokens behind " + std::to_string(5 * Windowed{}.block) +
                " of sequence 0 are more than the " + std::to_string(Windowed{}.cache.room()) +
                " that fit beside the window: take fewer at a time",
            [](Witness&) { Windowed{}.take(1000000); }),
        argument_error("KeyValueCache::rollback: n is " + std::to_string(3 * Windowed{}.block) +
                           ", expected fewer: keys that token " +
                           std::to_string(2 * Windowed{}.block) + " sees are no longer held",
                       [](Witness&) {
                         Windowed c;
                         c.cache.rollback(3 * c.block);
                       }),
        argument_error("KeyValueCache::rollback: b is 1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { Windowed{}.cache.rollback(1, 0); }),
        argument_error("KeyValueCache::clear: b is -1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { Windowed{}.cache.clear(-1); }),
        argument_error("KeyValueCache::length: b is 1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { (void)Windowed{}.cache.length(1); }),
        argument_error("KeyValueCache::room: b is -1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { (void)Windowed{}.cache.room(-1); }),
        argument_error("KeyValueCache::position: b is 1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { (void)Windowed{}.cache.position(1, 0); }),
        argument_error("KeyValueCache::position: slot is -1, expected one of the " +
                           std::to_string(Windowed{}.cache.v(0).extent(2)) + " keys that are held",
                       [](Witness&) { (void)Windowed{}.cache.position(0, -1); }),
        argument_error("KeyValueCache::gap: b is 1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { (void)Windowed{}.cache.gap(1); }),
        argument_error("KeyValueCache::k: b is 1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { (void)Windowed{}.cache.k(1); }),
        argument_error("KeyValueCache::v: b is 1, expected 0 to 0, a sequence of the batch",
                       [](Witness&) { (void)Windowed{}.cache.v(1); }),
        rolled_back("n is 6, expected 0 to 5, the length of sequence 0", 6),
        rolled_back("n is -1, expected 0 to 5, the length of sequence 0", -1),
    },
}));

}  // namespace

TEST_CASE("a cache of keys and values refuses bad calls", "[bad_calls]") { decoding.check(); }

TEST_CASE("the calls of a cache that are spoilt are right before", "[bad_calls]") {
  Witness memory;
  CHECK_NOTHROW(Append{memory}.call());
}

}  // namespace bad_calls_decoding
