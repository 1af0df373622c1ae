// A step over a cache of keys and values, of attention and of a block.
#include "bad_calls/step_calls.hpp"

namespace bad_calls_decoding_steps {

using namespace headwise_tests;
using namespace headwise_tests::step_calls;

namespace {

const std::vector<Index> three_counts = {1, 1, 1}, too_great = {1, 3}, greater = {2, 4};

/// What changes scores, for steps of attention and of a block alike: 2 heads.
template <class C>
std::vector<Refusal> of_scores(const std::string& function) {
  return {
      argument<C>(function + "scale is inf, expected a finite number, or none for 1 / sqrt(d)",
                  [](auto& c) { c.options.scale = std::numeric_limits<double>::infinity(); }),
      argument<C>(
          function + "softcap is -1, expected a finite, normal number above 0, or none for no cap",
          [](auto& c) { c.options.score.softcap = -1.0; }),
      shape<C>(function + "sinks is [3], expected [2] (the number of heads)",
               [](auto& c) { c.options.score.sinks = c.m.tensor(3); }),
      shape<C>(function + "alibi_slopes is [1], expected [2] (the number of heads)",
               [](auto& c) { c.options.score.alibi_slopes = c.m.tensor(1); }),
      shape<C>(function + "relative_bias is [2, 4], expected [2 or 1, 2 R + 1] (a number for each "
                          "distance from -R to R)",
               [](auto& c) { c.options.score.relative_bias = c.m.tensor(2, 4); }),
      shape<C>(function + "relative_bias is [2, -5], expected extents of 0 or more",
               [](auto& c) { c.options.score.relative_bias = c.m.null(2, -5); }),
  };
}

/// What the module has of its own, and is given: `own` makes it a module of that.
template <class C>
std::vector<Refusal> given_twice(const std::string& function, void (*own)(C&)) {
  const auto twice = [&](const std::string& name, void (*give)(C&)) {
    return argument_error(
        function + "score." + name + " is given, expected none: the module has its own",
        [=](Witness& m) {
          C c{m};
          own(c);
          give(c);
          c.call();
        });
  };
  return {twice("sinks", [](C& c) { c.options.score.sinks = c.m.tensor(2); }),
          twice("alibi_slopes", [](C& c) { c.options.score.alibi_slopes = c.m.tensor(2); }),
          twice("relative_bias", [](C& c) { c.options.score.relative_bias = c.m.tensor(1, 3); })};
}

/// What is the module's own, of another shape than its options have it.
template <class C>
std::vector<Refusal> misshapen(const std::string& function,
                               MultiHeadAttentionParameters<double>& (*of)(C&)) {
  const auto spoilt = [&](const std::string& rule, auto spoil) {
    return shape_error(function + rule + " (the module's options)", [=](Witness& m) {
      C c{m};
      spoil(of(c));
      c.call();
    });
  };
  using Parameters = MultiHeadAttentionParameters<double>;
  return {spoilt("sinks is [2], expected [0]", [](Parameters& p) { p.sinks = Tensor1<double>(2); }),
          spoilt("alibi_slopes is [2], expected [0]",
                 [](Parameters& p) { p.alibi_slopes = Tensor1<double>(2); }),
          spoilt("relative_bias is [2, 3], expected [0, 0]", [](Parameters& p) {
            p.relative_bias = Tensor2<double>({2, 3});
          })};
}

const Refusals steps(all_of({
    of_scores<Step>("multi_head_attention_step: "),
    misshapen<Step>(
        "multi_head_attention_step: ", [](Step& c) -> auto& { return c.attention.parameters(); }),
    given_twice<Step>("multi_head_attention_step: ",
                      [](Step& c) {
                        c.attention = MultiHeadAttention<double>({.d_model = 6,
                                                                  .num_heads = 2,
                                                                  .sinks = true,
                                                                  .alibi = true,
                                                                  .relative_reach = 2});
                      }),
    {
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
        argument<Step>("multi_head_attention_step: 4 tokens behind 0 of sequence 0 are more than "
                       "the capacity 3 of the cache: roll it back, clear it or make a larger one",
                       [](auto& c) { c.x = c.m.tensor(2, 4, 6); }),
        argument<Step>("multi_head_attention_step: counts are 3, expected 2 (the batch size), or "
                       "none for all",
                       [](auto& c) { c.counts = three_counts; }),
        argument<Step>(
            "multi_head_attention_step: counts holds 3, expected 0 to 2 (the tokens given)",
            [](auto& c) { c.counts = too_great; }),
        argument<Step>("multi_head_attention_step: 4 tokens behind 0 of sequence 1 are more than "
                       "the capacity 3 of the cache: roll it back, clear it or make a larger one",
                       [](auto& c) {
                         c.x = c.m.tensor(2, 4, 6);
                         c.counts = greater;
                       }),
        argument_error(
            "multi_head_attention_step: 9999 tokens behind 0 of sequence 0 are more than the " +
                std::to_string(KeyValueCache<double>({.window = 2}).room()) +
                " that fit beside the window: take fewer at a time",
            [](Witness& m) {
              Step c{m};
              c.cache = key_value_cache(c.attention, {.batch_size = 2, .window = 2});
              c.x = m.tensor(2, 9999, 6);
              c.call();
            }),
        argument_error("KeyValueCache: capacity is -1, expected >= 0",
                       [](Witness& m) { (void)key_value_cache(Step{m}.attention, 1, -1); }),
    },
}));

const Refusals block_steps(all_of(
    {of_scores<BlockStep>("transformer_block_step: "),

     misshapen<BlockStep>(
         "transformer_block_step: ", [](BlockStep& c) -> auto& {
           return c.block.parameters().attention;
         }),
     given_twice<BlockStep>("transformer_block_step: ",
                            [](BlockStep& c) {
                              c.block = TransformerBlock<double>({.d_model = 4,
                                                                  .num_heads = 2,
                                                                  .d_hidden = 5,
                                                                  .sinks = true,
                                                                  .alibi = true,
                                                                  .relative_reach = 2});
                            }),
     {
         shape<BlockStep>("transformer_block_step: W_O is [0, 0], expected [4, 4] (the options: a "
                          "module that was moved from has none)",
                          [](auto& c) { const auto taken = std::move(c.block); }),
         shape<BlockStep>(
             "transformer_block_step: x is [1, 2, 4], expected [2, 2, 4] (batch of the "
             "cache, d_model)",
             [](auto& c) { c.x = c.m.tensor(1, 2, 4); }),
         shape<BlockStep>("transformer_block_step: x is [2, 2, 4] at a null address, expected its "
                          "elements",
                          [](auto& c) { c.x = c.m.null(2, 2, 4); }),
         argument<BlockStep>(
             "transformer_block_step: cache is of 1 heads of widths 4 and 4, expected 2 "
             "of 2 and 2 (the module)",
             [](auto& c) {
               c.cache = KeyValueCache<double>({.batch_size = 2, .capacity = 3, .d_head = 4});
             }),
         argument<BlockStep>(
             "transformer_block_step: counts are 3, expected 2 (the batch size), or none "
             "for all",
             [](auto& c) { c.counts = three_counts; }),
         argument<BlockStep>(
             "transformer_block_step: counts holds 3, expected 0 to 2 (the tokens given)",
             [](auto& c) { c.counts = too_great; }),
         argument_error(
             "transformer_block_step: 9999 tokens behind 0 of sequence 0 are more than the " +
                 std::to_string(KeyValueCache<double>({.window = 2}).room()) +
                 " that fit beside the window: take fewer at a time",
             [](Witness& m) {
               BlockStep c{m};
               c.cache = key_value_cache<double>(c.block.options().attention(),
                                                 {.batch_size = 2, .window = 2});
               c.x = m.tensor(2, 9999, 4);
               c.call();
             }),
         argument<BlockStep>(
             "transformer_block_step: 4 tokens behind 0 of sequence 0 are more "
             "than the capacity 3 of the cache: roll it back, clear it or make a larger one",
             [](auto& c) { c.x = c.m.tensor(2, 4, 4); }),
     }}));

}  // namespace

TEST_CASE("a step over a cache refuses bad calls", "[bad_calls]") { steps.check(); }

TEST_CASE("a step of a block refuses bad calls", "[bad_calls]") { block_steps.check(); }

TEST_CASE("the steps that are spoilt are right before", "[bad_calls]") {
  Witness memory;
  CHECK_NOTHROW(Step{memory}.call());
  BlockStep step{memory};
  step.call();
  CHECK(memory.written() == "an object");  // the cache
}

}  // namespace bad_calls_decoding_steps
