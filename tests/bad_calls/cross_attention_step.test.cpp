// Cross-attention over kept keys: what is projected into a cache, and what attends to it.
#include "support/refusal_rules.hpp"

namespace bad_calls_cross_attention_step {

using namespace headwise_tests;

namespace {

using Module = MultiHeadAttention<double>;
using Options = MultiHeadAttentionOptions;

const double infinity = std::numeric_limits<double>::infinity();
const std::vector<Index> three_counts = {1, 1, 1}, too_great = {1, 3}, greater = {2, 4};
const std::vector<Index> lengths = {4, 2}, three_lengths = {1, 2, 3}, outside = {1, 5};
const Tensor2<Index> parts(Shape{1, 4}, {1, 2, 1, 1}), short_ids(Shape{2, 2});

/// 6 wide, 2 heads, keys of width 5 and values of width 7; a cache of 2 sequences of at most 6
/// keys, of which there are 4.
struct Attention {
  explicit Attention(Witness& memory) : m(memory) {}
  Witness& m;
  Module& module = m.make<Module>(Options{.d_model = 6, .num_heads = 2, .kdim = 5, .vdim = 7});
  KeyValueCache<double>& cache = m.make<KeyValueCache<double>>(filled());
  std::vector<Index> counts = {};

  KeyValueCache<double> filled() const {
    auto cache_of_4 = key_value_cache(module, 2, 6);
    cross_attention_append(module, m.tensor(2, 4, 5), m.tensor(2, 4, 7), cache_of_4);
    return cache_of_4;
  }
};
struct Append : Attention {
  using Attention::Attention;
  View<3> key = m.tensor(2, 2, 5), value = m.tensor(2, 2, 7);
  void call() {
    m.keep(module), m.keep(cache);
    cross_attention_append(module, key, value, counts, cache, m.context());
  }
};
struct Step : Attention {
  using Attention::Attention;
  View<3> query = m.tensor(2, 3, 6);
  MultiHeadAttentionCall<double> options = {};
  void call() {
    m.keep(module), m.keep(cache);
    (void)cross_attention_step(module, query, options, cache, m.context());
  }
};

/// Of both.
template <class C>
std::vector<Refusal> of_module(const std::string& function) {
  return {
      shape<C>(function + "W_O is [0, 0], expected [6, 6] (the options: a module that was moved "
                          "from has none)",
               [](auto& c) { const Module taken = std::move(c.module); }),
      argument<C>(function + "cache is of 1 heads of widths 3 and 3, expected 2 of 3 and 3 (the "
                             "module)",
                  [](auto& c) {
                    c.cache = KeyValueCache<double>({.batch_size = 2, .capacity = 6, .d_head = 3});
                  }),
      argument<C>(
          function + "cache has a window of 3, expected none: cross-attention sees every key",
          [](auto& c) { c.cache = key_value_cache(c.module, {.batch_size = 2, .window = 3}); }),
  };
}

const std::string append = "cross_attention_append: ";
const Refusals appends(all_of({
    of_module<Append>(append),
    {
        shape<Append>(append + "key is [1, 2, 5], expected [2, 2, 5] (batch of the cache, kdim)",
                      [](auto& c) { c.key = c.m.tensor(1, 2, 5); }),
        shape<Append>(append + "key is [2, 2, 6], expected [2, 2, 5] (batch of the cache, kdim)",
                      [](auto& c) { c.key = c.m.tensor(2, 2, 6); }),
        shape<Append>(append + "key is [2, 2, 5] at a null address, expected its elements",
                      [](auto& c) { c.key = c.m.null(2, 2, 5); }),
        shape<Append>(append +
                          "value is [2, 3, 7], expected [2, 2, 7] (batch and length of key, vdim)",
                      [](auto& c) { c.value = c.m.tensor(2, 3, 7); }),
        shape<Append>(append +
                          "value is [2, 2, 5], expected [2, 2, 7] (batch and length of key, vdim)",
                      [](auto& c) { c.value = c.m.tensor(2, 2, 5); }),
        shape<Append>(append + "value is [2, 2, 7] at a null address, expected its elements",
                      [](auto& c) { c.value = c.m.null(2, 2, 7); }),
        argument<Append>(append + "counts are 3, expected 2 (the batch size), or none for all",
                         [](auto& c) { c.counts = three_counts; }),
        argument<Append>(append + "counts holds 3, expected 0 to 2 (the tokens given)",
                         [](auto& c) { c.counts = too_great; }),
        argument<Append>(append + "3 tokens behind 4 of sequence 0 are more than the capacity 6 of "
                                  "the cache: roll it back, clear it or make a larger one",
                         [](auto& c) {
                           c.key = c.m.tensor(2, 3, 5), c.value = c.m.tensor(2, 3, 7);
                         }),
        argument<Append>(append + "4 tokens behind 4 of sequence 1 are more than the capacity 6 of "
                                  "the cache: roll it back, clear it or make a larger one",
                         [](auto& c) {
                           c.key = c.m.tensor(2, 4, 5), c.value = c.m.tensor(2, 4, 7);
                           c.counts = greater;
                         }),
    },
}));

const Refusals beside_a_window(
    {argument_error(append + "9999 tokens behind 0 of sequence 0 are more than the " +
                        std::to_string(KeyValueCache<double>({.window = 2}).room()) +
                        " that fit beside the window: take fewer at a time",
                    [](Witness& m) {
                      Append c{m};
                      c.cache = key_value_cache(c.module, {.batch_size = 2, .window = 2});
                      c.key = m.tensor(2, 9999, 5), c.value = m.tensor(2, 9999, 7);
                      c.call();
                    })});

const std::string step = "cross_attention_step: ";
const Refusals of_inputs(all_of({
    of_module<Step>(step),
    {
        shape<Step>(step + "query is [3, 3, 6], expected [2, 3, 6] (batch of the cache, d_model)",
                    [](auto& c) { c.query = c.m.tensor(3, 3, 6); }),
        shape<Step>(step + "query is [2, 3, 5], expected [2, 3, 6] (batch of the cache, d_model)",
                    [](auto& c) { c.query = c.m.tensor(2, 3, 5); }),
        shape<Step>(step + "query is [2, 3, 6] at a null address, expected its elements",
                    [](auto& c) { c.query = c.m.null(2, 3, 6); }),
        argument<Step>(step + "query_starts or key_starts are given, expected none: a cache holds "
                              "a batch",
                       [](auto& c) { c.options.query_starts = three_counts; }),
        argument<Step>(step + "query_starts or key_starts are given, expected none: a cache holds "
                              "a batch",
                       [](auto& c) { c.options.key_starts = three_counts; }),
        argument<Step>(step + "path is materialized, expected flash: a step keeps no weights",
                       [](auto& c) { c.options.path = Path::materialized; }),
        argument<Step>(step + "origin.key is 2, expected 0: keys have their positions in the cache",
                       [](auto& c) { c.options.origin.key = 2; }),
        argument<Step>(step + "origin holds -1, expected 0 to 2^62",
                       [](auto& c) { c.options.origin.query = -1; }),
        argument<Step>(step + "origin moves queries or keys by 281474976710656, expected 0 to "
                              "281474976710653 (2^48 - the offset of rotary positions)",
                       [](auto& c) {
                         c.module =
                             Module(Options{.d_model = 6,
                                            .num_heads = 2,
                                            .kdim = 5,
                                            .vdim = 7,
                                            .rotary = RotaryOptions{.width = 2, .offset = 3}});
                         c.options.origin.query = Index{1} << 48;
                       }),
        argument<Step>(step + "origin moves queries or keys, expected 0 with dropout of the "
                              "weights: its masks count those of the call",
                       [](auto& c) {
                         c.options.origin.query = 1, c.options.weight_dropout.rate = 0.5;
                       }),
        argument<Step>(step + "dropout rate is 1.5, expected 0 to 1",
                       [](auto& c) { c.options.weight_dropout.rate = 1.5; }),
        argument<Step>(step + "dropout rate is -1, expected 0 to 1",
                       [](auto& c) { c.options.output_dropout.rate = -1; }),
        argument<Step>(step + "scale is inf, expected a finite number, or none for 1 / sqrt(d)",
                       [](auto& c) { c.options.scale = infinity; }),
    },
}));

const std::string broadcast = ", expected [2, 2, 3, 4] or 1 on an axis (scores are [B, H, L, S])";
const Refusals of_masks({
    shape<Step>(step + "Mask::keep is [1, 1, 3, 3]" + broadcast,
                [](auto& c) {
                  c.options.mask.add(Mask::keep(c.m.bools(Shape{3, 3})));
                }),
    shape<Step>(step + "Mask::keep is [1, 1, 3, 4] at a null address, expected its elements",
                [](auto& c) {
                  c.options.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{3, 4})));
                }),
    shape<Step>(step + "Mask::bias is [1, 1, 4, 4]" + broadcast,
                [](auto& c) { c.options.mask.add(Mask::bias(c.m.tensor(4, 4))); }),
    shape<Step>(step + "Mask::bias is [1, 1, 3, 4] at a null address, expected its elements",
                [](auto& c) { c.options.mask.add(Mask::bias(c.m.null(3, 4))); }),
    shape<Step>(step + "Mask::documents is [2, 2], expected [2, 4] or [1, 4] (an id for each key)",
                [](auto& c) { c.options.mask.add(Mask::documents(short_ids)); }),
    shape<Step>(step + "Mask::documents is [1, 4] at a null address, expected its elements",
                [](auto& c) {
                  c.options.mask.add(Mask::documents(In<Index, 2>(nullptr, Shape{1, 4})));
                }),
    argument<Step>(step + "Mask::documents has document 1 at [0, 0] and, behind another, at [0, "
                          "2], expected the keys of a document side by side (Mask::keep takes any "
                          "pairs)",
                   [](auto& c) { c.options.mask.add(Mask::documents(parts)); }),
    argument<Step>(step + "Mask::key_lengths has 3 lengths, expected 2 (the batch size)",
                   [](auto& c) { c.options.mask.add(Mask::key_lengths(three_lengths)); }),
    argument<Step>(step + "Mask::key_lengths holds 5, expected 0 to 4 (the number of keys)",
                   [](auto& c) { c.options.mask.add(Mask::key_lengths(outside)); }),
    argument<Step>(step + "Mask::key_lengths is given, expected none: the cache's sequences have "
                          "lengths of their own",
                   [](auto& c) {
                     c.cache.rollback(1, 1);
                     c.options.mask.add(Mask::key_lengths(lengths));
                   }),
});

template <class Spoil>
Refusal of_another_module(const std::string& rule, Options options, Spoil spoil) {
  options.d_model = 6, options.num_heads = 2, options.kdim = 5, options.vdim = 7;
  return {step + rule, rule.find("given") != rule.npos ? "ArgumentError" : "ShapeError",
          [=](Witness& m) {
            Step c{m};
            c.module = Module(options);
            spoil(c);
            c.call();
          }};
}
const Refusals of_scores({
    argument<Step>(step + "softcap is -1, expected a finite, normal number above 0, or none for no "
                          "cap",
                   [](auto& c) { c.options.score.softcap = -1.0; }),
    shape<Step>(step + "sinks is [3], expected [2] (the number of heads)",
                [](auto& c) { c.options.score.sinks = c.m.tensor(3); }),
    shape<Step>(step + "alibi_slopes is [1], expected [2] (the number of heads)",
                [](auto& c) { c.options.score.alibi_slopes = c.m.tensor(1); }),
    shape<Step>(step + "relative_bias is [2, 4], expected [2 or 1, 2 R + 1] (a number for each "
                       "distance from -R to R)",
                [](auto& c) { c.options.score.relative_bias = c.m.tensor(2, 4); }),
    shape<Step>(step + "relative_bias is [2, -5], expected extents of 0 or more",
                [](auto& c) { c.options.score.relative_bias = c.m.null(2, -5); }),
    of_another_module("sinks is [3], expected [0] (the module's options)", {},
                      [](Step& c) { c.module.parameters().sinks = Tensor1<double>(3); }),
    of_another_module("alibi_slopes is [2], expected [0] (the module's options)", {},
                      [](Step& c) { c.module.parameters().alibi_slopes = Tensor1<double>(2); }),
    of_another_module("relative_bias is [2, 3], expected [0, 0] (the module's options)", {},
                      [](Step& c) {
                        c.module.parameters().relative_bias = Tensor2<double>({2, 3});
                      }),
    of_another_module("score.sinks is given, expected none: the module has its own",
                      {.sinks = true}, [](Step& c) { c.options.score.sinks = c.m.tensor(2); }),
    of_another_module("score.alibi_slopes is given, expected none: the module has its own",
                      {.alibi = true},
                      [](Step& c) { c.options.score.alibi_slopes = c.m.tensor(2); }),
    of_another_module("score.relative_bias is given, expected none: the module has its own",
                      {.relative_reach = 2},
                      [](Step& c) { c.options.score.relative_bias = c.m.tensor(1, 3); }),
});

}  // namespace

TEST_CASE("keys and values for cross-attention are refused before anything is written",
          "[bad_calls]") {
  appends.check();
  beside_a_window.check();
}

TEST_CASE("a step of cross-attention refuses inputs and options", "[bad_calls]") {
  of_inputs.check();
}

TEST_CASE("a step of cross-attention refuses masks", "[bad_calls]") { of_masks.check(); }

TEST_CASE("a step of cross-attention refuses what changes scores", "[bad_calls]") {
  of_scores.check();
}

TEST_CASE("the calls of cross-attention that are spoilt are right before", "[bad_calls]") {
  Witness memory;
  CHECK_NOTHROW(Step{memory}.call());
  Append appended{memory};
  appended.call();
  CHECK(memory.written() == "an object");  // the cache
}

}  // namespace bad_calls_cross_attention_step
