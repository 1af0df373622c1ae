// MultiHeadAttention: options that make no module, inputs, masks and rates that do not fit.
#include "bad_calls/multi_head_attention_calls.hpp"

namespace bad_calls_multi_head_attention_forward {

using namespace headwise_tests;
using namespace headwise_tests::multi_head_attention_calls;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();
const Index far = (Index{1} << 30) + 1;
const std::vector<Index> lengths{1, 2, 3}, outside{1, 9}, below{-1, 1};
const Tensor2<Index> short_ids(Shape{2, 2}), parts(Shape{1, 3}, {1, 2, 1});

const std::string out_of_type =
    ", expected a number that the module's type tells from 0 and infinity";

Refusal options(const std::string& message, const Options& o) {
  return argument_error("MultiHeadAttention: " + message, [o](Witness&) { Module module(o); });
}
const Refusals no_modules({
    options("d_model is 0, expected 1 to 2^30", {.d_model = 0}),
    options("d_model is -8, expected 1 to 2^30", {.d_model = -8}),
    options("d_model is 1073741825, expected 1 to 2^30", {.d_model = far}),
    options("num_heads is 0, expected 1 to 2^30", {.d_model = 4, .num_heads = 0}),
    options("num_heads is 1073741825, expected 1 to 2^30", {.d_model = 4, .num_heads = far}),
    options("num_kv_heads is -1, expected 0 to 2^30", {.d_model = 4, .num_kv_heads = -1}),
    options("d_head is -1, expected 0 to 2^30", {.d_model = 4, .d_head = -1}),
    options("d_head is 1073741825, expected 0 to 2^30", {.d_model = 4, .d_head = far}),
    options("d_value is -1, expected 0 to 2^30", {.d_model = 4, .d_value = -1}),
    options("kdim is -1, expected 0 to 2^30", {.d_model = 4, .kdim = -1}),
    options("vdim is -1, expected 0 to 2^30", {.d_model = 4, .vdim = -1}),
    options("relative_reach is -1, expected 0 to 2^30", {.d_model = 4, .relative_reach = -1}),
    options("num_heads is 3, expected a divisor of d_model 8 (or give d_head)",
            {.d_model = 8, .num_heads = 3}),
    options("num_kv_heads is 3, expected a divisor of num_heads 4",
            {.d_model = 8, .num_heads = 4, .num_kv_heads = 3}),
    options("num_kv_heads is 8, expected a divisor of num_heads 4",
            {.d_model = 8, .num_heads = 4, .num_kv_heads = 8}),
    options("num_heads times d_head is 2147483648, expected 1 to 2^30",
            {.d_model = 8, .num_heads = 2, .d_head = far - 1}),
    options("num_heads times d_value is 2147483648, expected 1 to 2^30",
            {.d_model = 8, .num_heads = 2, .d_value = far - 1}),
    options("layer_norm_epsilon is 0, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = 0}),
    options("layer_norm_epsilon is -1, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = -1}),
    options("layer_norm_epsilon is inf, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = infinity}),
    options("layer_norm_epsilon is nan, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = nan}),
    options("qk_norm_epsilon is 0, expected a finite number above 0",
            {.d_model = 8, .qk_norm_epsilon = 0}),
    argument_error("MultiHeadAttention: layer_norm_epsilon is 1e-50" + out_of_type,
                   [](Witness&) {
                     MultiHeadAttention<float>({.d_model = 8, .layer_norm_epsilon = 1e-50});
                   }),
    argument_error("MultiHeadAttention: qk_norm_epsilon is 1e-50" + out_of_type,
                   [](Witness&) {
                     MultiHeadAttention<float>({.d_model = 8, .qk_norm_epsilon = 1e-50});
                   }),
    options("rotary: width is 7, expected an even number from 0 to 8, the width of a head",
            {.d_model = 8, .rotary = RotaryOptions{.width = 7}}),
    options("rotary: width is 5, expected an even number from 0 to 5, the width of a head",
            {.d_model = 8, .d_head = 5, .rotary = RotaryOptions{}}),
    options("rotary: width is 10, expected an even number from 0 to 8, the width of a head",
            {.d_model = 8, .rotary = RotaryOptions{.width = 10}}),
    options("rotary: offset is -1, expected 0 to 2^48",
            {.d_model = 8, .rotary = RotaryOptions{.offset = -1}}),
    options("rotary: theta is 0, expected a finite number above 0",
            {.d_model = 8, .rotary = RotaryOptions{.theta = 0}}),
    options("rotary: frequencies(1) is inf, expected a finite number",
            {.d_model = 4,
             .rotary = RotaryOptions{.frequencies = std::vector<double>{1, infinity}}}),
    shape_error("MultiHeadAttention: rotary: frequencies is [3], expected [2] (one for each pair "
                "of the width)",
                [](Witness&) {
                  Module({.d_model = 4,
                          .rotary = RotaryOptions{.frequencies = std::vector<double>{1, 2, 3}}});
                }),
});

const Refusals bad_inputs(of_forward({
    {true, shape_of, "x is [2, 3, 7], expected [2, 3, 8] (d_model 8)",
     [](Attention& a) { a.x = a.m.tensor(2, 3, 7); }},
    {true, shape_of, "x is [2, -3, 8], expected extents of 0 or more",
     [](Attention& a) { a.x = a.m.unfounded(2, -3, 8); }},
    {true, shape_of, "x is [2, 3, 8] at a null address, expected its elements",
     [](Attention& a) { a.x = a.m.null(2, 3, 8); }},
    {true, shape_of, "x is [2, 281474976710656, 8], expected extents whose product is at most 2^48",
     [](Attention& a) { a.x = a.m.unfounded(2, Index{1} << 48, 8); }},
    {false, shape_of, "query is [2, 3, 7], expected [2, 3, 8] (d_model 8)",
     [](Attention& a) { a.x = a.m.tensor(2, 3, 7); }},
    {false, shape_of, "query is [2, 3, 8] at a null address, expected its elements",
     [](Attention& a) { a.x = a.m.null(2, 3, 8); }},
    {false, shape_of, "key is [3, 5, 8], expected [2, 5, 8] (batch of query, kdim 8)",
     [](Attention& a) { a.key = a.m.tensor(3, 5, 8); }},
    {false, shape_of, "key is [2, 5, 9], expected [2, 5, 8] (batch of query, kdim 8)",
     [](Attention& a) { a.key = a.m.tensor(2, 5, 9); }},
    {false, shape_of, "key is [2, 5, 8] at a null address, expected its elements",
     [](Attention& a) { a.key = a.m.null(2, 5, 8); }},
    {false, shape_of, "value is [2, 4, 8], expected [2, 5, 8] (batch and length of key, vdim 8)",
     [](Attention& a) { a.value = a.m.tensor(2, 4, 8); }},
    {false, shape_of, "value is [2, 5, 7], expected [2, 5, 8] (batch and length of key, vdim 8)",
     [](Attention& a) { a.value = a.m.tensor(2, 5, 7); }},
    {false, shape_of, "value is [2, 5, 8] at a null address, expected its elements",
     [](Attention& a) { a.value = a.m.null(2, 5, 8); }},
    {true, argument_of, "kdim or vdim differ from d_model, expected separate keys and values",
     [](Attention& a) { a.module = Module(Options{.d_model = 8, .num_heads = 4, .kdim = 4}); }},
    {true, argument_of, "kdim or vdim differ from d_model, expected separate keys and values",
     [](Attention& a) { a.module = Module(Options{.d_model = 8, .num_heads = 4, .vdim = 4}); }},
    {true, shape_of,
     "W_O is [0, 0], expected [8, 8] (the options: a module that was moved from has none)",
     [](Attention& a) { const Module taken = std::move(a.module); }},
}));

const Refusals bad_options(of_forward({
    {true, shape_of,
     "Mask::keep is [1, 1, 3, 5], expected [2, 4, 3, 3] or 1 on an axis (scores are [B, H, L, S])",
     [](Attention& a) {
       a.call.mask.add(Mask::keep(a.m.bools(Shape{3, 5})));
     }},
    {false, shape_of,
     "Mask::drop is [1, 1, 3, 3], expected [2, 4, 3, 5] or 1 on an axis (scores are [B, H, L, S])",
     [](Attention& a) {
       a.call.mask.add(Mask::drop(a.m.bools(Shape{3, 3})));
     }},
    {true, shape_of,
     "Mask::bias is [2, 2, 3, 3], expected [2, 4, 3, 3] or 1 on an axis (scores are [B, H, L, S])",
     [](Attention& a) { a.call.mask.add(Mask::bias(a.m.tensor(2, 2, 3, 3))); }},
    {true, shape_of, "Mask::keep is [1, 1, 3, 3] at a null address, expected its elements",
     [](Attention& a) {
       a.call.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{3, 3})));
     }},
    {true, shape_of, "Mask::drop is [1, 1, -3, 3], expected extents of 0 or more",
     [](Attention& a) {
       a.call.mask.add(Mask::drop(In<bool, 2>(nullptr, Shape{-3, 3})));
     }},
    {true, shape_of, "Mask::bias is [1, 1, 3, 3] at a null address, expected its elements",
     [](Attention& a) { a.call.mask.add(Mask::bias(a.m.null(3, 3))); }},
    {true, shape_of,
     "Mask::bias is [1, 1, 1, 562949953421312], expected extents whose product is at most 2^48",
     [](Attention& a) { a.call.mask.add(Mask::bias(a.m.unfounded(1, Index{1} << 49))); }},
    {true, shape_of, "Mask::documents is [2, 2], expected [2, 3] or [1, 3] (an id for each key)",
     [](Attention& a) { a.call.mask.add(Mask::documents(short_ids)); }},
    {true, shape_of, "Mask::documents is [1, -3], expected extents of 0 or more",
     [](Attention& a) {
       a.call.mask.add(Mask::documents(In<Index, 2>(nullptr, Shape{1, -3})));
     }},
    {true, shape_of, "Mask::documents is [1, 3] at a null address, expected its elements",
     [](Attention& a) {
       a.call.mask.add(Mask::documents(In<Index, 2>(nullptr, Shape{1, 3})));
     }},
    {true, shape_of,
     "Mask::documents is [1, 562949953421312], expected extents whose product is at most 2^48",
     [](Attention& a) {
       a.call.mask.add(
           Mask::documents(In<Index, 2>(short_ids.data(), Shape{Index{1}, Index{1} << 49})));
     }},
    {true, argument_of,
     "Mask::documents has document 1 at [0, 0] and, behind another, at [0, 2], expected the keys "
     "of a document side by side (Mask::keep takes any pairs)",
     [](Attention& a) { a.call.mask.add(Mask::documents(parts)); }},
    {true, argument_of, "Mask::key_lengths has 3 lengths, expected 2 (the batch size)",
     [](Attention& a) { a.call.mask.add(Mask::key_lengths(lengths)); }},
    {false, argument_of, "Mask::key_lengths holds 9, expected 0 to 5 (the number of keys)",
     [](Attention& a) { a.call.mask.add(Mask::key_lengths(outside)); }},
    {true, argument_of, "Mask::key_lengths holds -1, expected 0 to 3 (the number of keys)",
     [](Attention& a) { a.call.mask.add(Mask::key_lengths(below)); }},
    {true, argument_of, "scale is nan, expected a finite number, or none for 1 / sqrt(d)",
     [](Attention& a) { a.call.scale = nan; }},
    {true, argument_of, "origin holds -1, expected 0 to 2^62",
     [](Attention& a) { a.call.origin.batch = -1; }},
    {true, argument_of,
     "origin moves queries or keys by 281474976710650, expected 0 to 281474976710649 (2^48 - the "
     "offset of rotary positions)",
     [](Attention& a) {
       a.module =
           Module(Options{.d_model = 8, .num_heads = 4, .rotary = RotaryOptions{.offset = 7}});
       a.call.origin.query = (Index{1} << 48) - 6;
     }},
    {true, argument_of,
     "origin moves queries or keys, expected 0 with dropout of the weights: its masks count those "
     "of the call",
     [](Attention& a) { a.call.origin.key = 1, a.call.weight_dropout.rate = 0.5; }},
    {true, argument_of,
     "softcap is 0, expected a finite, normal number above 0, or none for no cap",
     [](Attention& a) { a.call.score.softcap = 0; }},
    {true, shape_of, "alibi_slopes is [3], expected [4] (the number of heads)",
     [](Attention& a) { a.call.score.alibi_slopes = a.m.tensor(3); }},
    {true, shape_of, "sinks is [5], expected [4] (the number of heads)",
     [](Attention& a) { a.call.score.sinks = a.m.tensor(5); }},
    {true, shape_of, "sinks is [3], expected [0] (the module's options)",
     [](Attention& a) { a.module.parameters().sinks = Tensor1<double>(3); }},
    {true, shape_of, "alibi_slopes is [4], expected [0] (the module's options)",
     [](Attention& a) { a.module.parameters().alibi_slopes = Tensor1<double>(4); }},
    {true, shape_of, "relative_bias is [4, 7], expected [4, 5] (the module's options)",
     [](Attention& a) {
       a.module = Module(Options{.d_model = 8, .num_heads = 4, .relative_reach = 2});
       a.module.parameters().relative_bias = Tensor2<double>({4, 7});
     }},
    {true, argument_of, "score.sinks is given, expected none: the module has its own",
     [](Attention& a) {
       a.module = Module(Options{.d_model = 8, .num_heads = 4, .sinks = true});
       a.call.score.sinks = a.m.tensor(4);
     }},
    {true, argument_of, "score.alibi_slopes is given, expected none: the module has its own",
     [](Attention& a) {
       a.module = Module(Options{.d_model = 8, .num_heads = 4, .alibi = true});
       a.call.score.alibi_slopes = a.m.tensor(4);
     }},
    {true, argument_of, "score.relative_bias is given, expected none: the module has its own",
     [](Attention& a) {
       a.module = Module(Options{.d_model = 8, .num_heads = 4, .relative_reach = 2});
       a.call.score.relative_bias = a.m.tensor(1, 3);
     }},
    {true, shape_of,
     "relative_bias is [2, 5], expected [4 or 1, 2 R + 1] (a number for each distance from -R to "
     "R)",
     [](Attention& a) { a.call.score.relative_bias = a.m.tensor(2, 5); }},
    {true, shape_of, "relative_bias is [-4, 5], expected extents of 0 or more",
     [](Attention& a) {
       a.call.score.relative_bias = In<double, 2>(nullptr, Shape{-4, 5});
     }},
    {true, argument_of, "dropout rate is 1.5, expected 0 to 1",
     [](Attention& a) { a.call.weight_dropout.rate = 1.5; }},
    {true, argument_of, "dropout rate is -0.5, expected 0 to 1",
     [](Attention& a) { a.call.output_dropout.rate = -0.5; }},
}));

}  // namespace

TEST_CASE("options that make no module are refused", "[bad_calls]") { no_modules.check(); }

TEST_CASE("MultiHeadAttention refuses inputs before anything is written", "[bad_calls]") {
  bad_inputs.check();
}

TEST_CASE("MultiHeadAttention refuses masks, scales and rates before anything is counted",
          "[bad_calls]") {
  bad_options.check();
}

}  // namespace bad_calls_multi_head_attention_forward
