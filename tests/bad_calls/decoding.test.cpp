// Embedding as a module, its tied head, sampling, and decoding from a cache.
#include "support/refusal_rules.hpp"

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

using Table = EmbeddingParameters<double>;
std::string state(const Table& p) { return headwise_tests::state_of(p.table); }

/// An embedding of 5 tokens of width 3; a call of 2 tokens is pending.
struct Layer {
  Witness& m;
  Embedding<double> embedding{5, 3};
  Tensor1<std::int64_t>& tokens = m.make<Tensor1<std::int64_t>>(Shape{2});
  Embedding<double>::Cache cache = {};
  Table gradients = embedding.zero_gradients();
  Matrix dy = m.tensor(2, 3);
};
template <class Spoil>
std::function<void(Witness&)> backward(Spoil spoil, bool pending = true) {
  return [=](Witness& memory) {
    Layer c{memory};
    if (pending) (void)c.embedding.forward(c.tokens, c.cache);
    spoil(c);
    const std::string before = state(c.gradients);
    const auto check = [&] { CHECK(state(c.gradients) == before); };
    try {
      c.embedding.backward(c.dy, c.cache, c.gradients, memory.context());
    } catch (...) {
      check();
      throw;
    }
  };
}

struct TiedForward {
  Witness& m;
  Matrix h = m.tensor(2, 3), table = m.tensor(5, 3), logits = m.tensor(2, 5);
  void call() { tied_head_forward(h, table, logits, m.context()); }
};
struct TiedBackward {
  Witness& m;
  Matrix d_logits = m.tensor(2, 5), h = m.tensor(2, 3), table = m.tensor(5, 3), dh = m.tensor(2, 3),
         dtable = m.tensor(5, 3);
  void call() { tied_head_backward(d_logits, h, table, dh, dtable, m.context()); }
};
struct Start {
  Witness& m;
  Matrix w = m.tensor(2, 3);
  void call() { init_normal<double>(w, 0.02, 1, 0); }
};

using TF = TiedForward;
using TB = TiedBackward;
const Refusals embeddings(all_of({
    {
        argument_error("Embedding: vocabulary is -1, expected >= 0",
                       [](Witness&) { Embedding<double>(-1, 3); }),
        argument_error("Embedding: width is -3, expected >= 0",
                       [](Witness&) { Embedding<double>(1, -3); }),
        argument_error(
            "init_normal: std_deviation is -0.500000, expected a finite number of 0 or more",
            [](Witness&) { Embedding<double>(1, 3, -0.5); }),
        argument_error("init_normal: std_deviation is nan, expected a finite number of 0 or more",
                       [](Witness& m) { init_normal<double>(m.tensor(2, 3), nan, 1, 0); }),
        argument_error("init_normal: std_deviation is inf, expected a finite number of 0 or more",
                       [](Witness& m) { init_normal<double>(m.tensor(2, 3), infinity, 1, 0); }),
        shape_error("Embedding::forward: tokens is [-2], expected extents of 0 or more",
                    [](Witness& m) {
                      Layer c{m};
                      const In<std::int64_t, 1> none(c.tokens.data(), Shape{-2});
                      (void)c.embedding.forward(none, c.cache, m.context());
                    }),
        shape_error("Embedding::forward: tokens is [2] at a null address, expected its elements",
                    [](Witness& m) {
                      Layer c{m};
                      (void)c.embedding.forward(In<std::int64_t, 1>(nullptr, Shape{2}), c.cache);
                    }),
        argument_error("embedding_forward: tokens(1) is 5, expected 0 or more and below 5 (rows of "
                       "table [5, 3])",
                       [](Witness& m) {
                         Layer c{m};
                         c.tokens(1) = 5;
                         (void)c.embedding.forward(c.tokens, c.cache, m.context());
                       }),
        argument_error("Embedding::backward: the cache is empty: pass it to forward first",
                       backward([](Layer&) {}, false)),
        shape_error("Embedding::backward: dy is [3, 3], expected [2, 3] (the output)",
                    backward([](Layer& c) { c.dy = c.m.tensor(3, 3); })),
        shape_error("Embedding::backward: dy is [2, 3] at a null address, expected its elements",
                    backward([](Layer& c) { c.dy = Witness::null(2, 3); })),
        shape_error(
            "Embedding::backward: gradients.table is [0, 0], expected [5, 3] (zero_gradients())",
            backward([](Layer& c) { c.gradients.table = {}; })),
        argument_error("embedding_backward: tokens(0) is 5, expected 0 or more and below 5 (rows "
                       "of dtable [5, 3])",
                       backward([](Layer& c) {
                         const Embedding<double> larger(6, 3);
                         c.tokens(0) = 5;
                         (void)larger.forward(c.tokens, c.cache);
                       })),
        shape_error("Embedding::logits: h is [2, 4], expected [2, 3] (the width of the table)",
                    [](Witness& m) { (void)Layer{m}.embedding.logits(m.tensor(2, 4)); }),
        shape_error(
            "Embedding::logits_backward: h is [2, 4], expected [2, 3] (the width of the table)",
            [](Witness& m) {
              Layer c{m};
              (void)c.embedding.logits_backward(m.tensor(2, 5), m.tensor(2, 4), c.gradients);
            }),
        shape_error("Embedding::logits_backward: gradients.table is [5, 2], expected [5, 3] "
                    "(zero_gradients())",
                    [](Witness& m) {
                      Layer c{m};
                      c.gradients.table = Tensor2<double>({5, 2});
                      (void)c.embedding.logits_backward(m.tensor(2, 5), c.dy, c.gradients);
                    }),
    },
    countable("init_normal: w", &Start::w, {2, 3}),
    countable("tied_head_forward: h", &TF::h, {2, 3}),
    output("tied_head_forward", "logits", &TF::logits, {2, 5}, "rows of h, rows of table"),
    {
        shape<TF>("tied_head_forward: table is [5, 4], expected [5, 3] (columns of h)",
                  [](auto& c) { c.table = c.m.tensor(5, 4); }),
        shape<TF>("tied_head_forward: table is [-5, 3], expected extents of 0 or more",
                  [](auto& c) { c.table = c.m.unfounded(-5, 3); }),
        repeated("tied_head_forward: logits", &TF::logits),
        overlapping("tied_head_forward: logits", &TF::logits, "h", &TF::h),
        overlapping("tied_head_forward: logits", &TF::logits, "table", &TF::table),
    },
    countable("tied_head_backward: h", &TB::h, {2, 3}),
    output("tied_head_backward", "d_logits", &TB::d_logits, {2, 5}, "rows of h, rows of table"),
    output("tied_head_backward", "dh", &TB::dh, {2, 3}, "the shape of h"),
    output("tied_head_backward", "dtable", &TB::dtable, {5, 3}, "the shape of table"),
    {
        shape<TB>("tied_head_backward: table is [5, 4], expected [5, 3] (columns of h)",
                  [](auto& c) { c.table = c.m.tensor(5, 4); }),
        repeated("tied_head_backward: dh", &TB::dh),
        overlapping("tied_head_backward: dh", &TB::dh, "d_logits", &TB::d_logits),
        overlapping("tied_head_backward: dh", &TB::dh, "h", &TB::h),
        overlapping("tied_head_backward: dh", &TB::dh, "table", &TB::table),
        repeated("tied_head_backward: dtable", &TB::dtable),
        overlapping("tied_head_backward: dtable", &TB::dtable, "d_logits", &TB::d_logits),
        overlapping("tied_head_backward: dtable", &TB::dtable, "h", &TB::h),
        overlapping("tied_head_backward: dtable", &TB::dtable, "table", &TB::table),
        overlapping("tied_head_backward: dtable", &TB::dtable, "dh", &TB::dh),
    },
}));

// ---- sampling -----------------------------------------------------------------------------------

struct Sample {
  Witness& m;
  Vector logits = m.tensor(3);
  SamplingOptions options = {};
  void call() { (void)sample_token(In<double, 1>(logits), options, m.context()); }
};
Refusal sampled(const std::string& message, void (*spoil)(Sample&)) {
  return argument_error("sample_token: " + message, spoilt(spoil));
}
template <int place>
void with(Sample& c, double value) {
  static double logits[3];
  for (double& x : logits) x = 1;
  logits[place] = value;
  c.logits = {logits, Shape{3}};
}
const std::string no_temperature = ", expected a finite number of 0 or more",
                  no_part = ", expected above 0 and at most 1",
                  no_number = " is NaN or infinity, expected a number or -infinity",
                  no_token = " hold no number above -infinity, expected one token at least";

const Refusals samples(all_of({
    countable("sample_token: logits", &Sample::logits, {3}),
    {
        sampled("temperature is -1.000000" + no_temperature,
                [](Sample& c) { c.options.temperature = -1; }),
        sampled("temperature is nan" + no_temperature,
                [](Sample& c) { c.options.temperature = nan; }),
        sampled("temperature is inf" + no_temperature,
                [](Sample& c) { c.options.temperature = infinity; }),
        sampled("top_k is -1, expected 1 or more, or 0 for all",
                [](Sample& c) { c.options.top_k = -1; }),
        sampled("top_p is 0.000000" + no_part, [](Sample& c) { c.options.top_p = 0; }),
        sampled("top_p is 1.500000" + no_part, [](Sample& c) { c.options.top_p = 1.5; }),
        sampled("top_p is nan" + no_part, [](Sample& c) { c.options.top_p = nan; }),
        sampled("logits(1)" + no_number, [](Sample& c) { with<1>(c, nan); }),
        sampled("logits(2)" + no_number,
                [](Sample& c) {
                  with<2>(c, nan);
                  c.options.temperature = 0;
                }),
        sampled("logits(0)" + no_number, [](Sample& c) { with<0>(c, infinity); }),
        sampled("logits [0]" + no_token, [](Sample& c) { c.logits = {}; }),
        sampled("logits [1]" + no_token,
                [](Sample& c) {
                  with<0>(c, -infinity);
                  c.logits = {c.logits.data(), Shape{1}};
                }),
    },
}));

// ---- decoding -----------------------------------------------------------------------------------

/// A cache of 2 sequences, 2 heads of widths 3 and 4, and 5 tokens, of which 3 are there.
struct Append {
  Witness& m;
  KeyValueCache<double> cache{
      {.batch_size = 2, .num_kv_heads = 2, .capacity = 5, .d_head = 3, .d_value = 4}};
  View<4> k = m.tensor(2, 2, 2, 3), v = m.tensor(2, 2, 2, 4);
  void call() {
    const Tensor4<double> k0(Shape{2, 2, 3, 3}), v0(Shape{2, 2, 3, 4});
    cache.append(k0, v0);
    try {
      cache.append(k, v);
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

struct Step {
  Witness& m;
  MultiHeadAttention<double> attention{{.d_model = 6, .num_heads = 2}};
  KeyValueCache<double> cache = key_value_cache(attention, 2, 3);
  View<3> x = m.tensor(2, 2, 6);
  void call() {
    try {
      (void)multi_head_attention_step(attention, x, cache, m.context());
    } catch (...) {
      CHECK(cache.length() == 0);
      throw;
    }
  }
};
const std::string too_many =
    "2 tokens behind 3 are more than the capacity 4 of the cache: roll it "
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
              cache.append(m.tensor(1, 1, 2, 3), cache.k());
            }),
        argument_error(
            "KeyValueCache::append: 1 tokens behind 0 are more than the capacity 0 of the cache: "
            "roll it back, clear it or make a larger one",
            [](Witness& m) {
              KeyValueCache<double> cache({.capacity = 4, .d_head = 0});
              const KeyValueCache<double> taken = std::move(cache);
              cache.append(m.tensor(1, 1, 1, 0), m.tensor(1, 1, 1, 0));
            }),
        rolled_back("n is 6, expected 0 to 5, the length", 6),
        rolled_back("n is -1, expected 0 to 5, the length", -1),
        argument<Step>("multi_head_attention_step: kdim or vdim differ from d_model, expected a "
                       "module of self-attention",
                       [](auto& c) {
                         c.attention =
                             MultiHeadAttention<double>({.d_model = 6, .num_heads = 2, .kdim = 5});
                       }),
        shape<Step>("multi_head_attention_step: W_O is [0, 0], expected [6, 6] (the options: a "
                    "module that was moved from has none)",
                    [](auto& c) { const auto taken = std::move(c.attention); }),
        shape<Step>("multi_head_attention_step: x is [1, 2, 6], expected [2, 2, 6] (batch of the "
                    "cache, d_model)",
                    [](auto& c) { c.x = c.m.tensor(1, 2, 6); }),
        shape<Step>("multi_head_attention_step: x is [2, 2, 6] at a null address, expected its "
                    "elements",
                    [](auto& c) { c.x = c.m.null(2, 2, 6); }),
        argument<Step>("multi_head_attention_step: cache is of 1 heads of widths 6 and 6, expected "
                       "2 of 3 and 3 (the module)",
                       [](auto& c) {
                         c.cache =
                             KeyValueCache<double>({.batch_size = 2, .capacity = 9, .d_head = 6});
                       }),
        argument<Step>("multi_head_attention_step: 4 tokens behind 0 are more than the capacity 3 "
                       "of the cache: roll it back, clear it or make a larger one",
                       [](auto& c) { c.x = c.m.tensor(2, 4, 6); }),
        argument_error("KeyValueCache: capacity is -1, expected >= 0",
                       [](Witness& m) { (void)key_value_cache(Step{m}.attention, 1, -1); }),
    },
}));

}  // namespace

TEST_CASE("Embedding and its tied head refuse bad calls before anything is written",
          "[bad_calls]") {
  embeddings.check();
}

TEST_CASE("sample_token refuses bad options and logits", "[bad_calls]") { samples.check(); }

TEST_CASE("a cache of keys and values and a step over it refuse bad calls", "[bad_calls]") {
  decoding.check();
}

TEMPLATE_TEST_CASE("the calls of a tied head that are spoilt are right before", "[bad_calls]",
                   TiedForward, TiedBackward, Start) {
  Witness memory;
  TestType call{memory};
  call.call();
  CHECK(memory.written() == "a tensor");
}

TEST_CASE("the calls of sampling and decoding that are spoilt are right before", "[bad_calls]") {
  Witness memory;
  CHECK_NOTHROW(Sample{memory}.call());
  CHECK_NOTHROW(Append{memory}.call());
  CHECK_NOTHROW(Step{memory}.call());
}
