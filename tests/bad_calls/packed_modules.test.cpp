// Packed sequences in MultiHeadAttention, TransformerDecoder and on the tape: starts, shapes and
// paths that do not fit.
#include "bad_calls/multi_head_attention_calls.hpp"
#include "headwise/autograd/packed_attention.hpp"
#include "headwise/nn/transformer_decoder.hpp"

namespace bad_calls_packed_modules {

using namespace headwise_tests;
using namespace headwise_tests::multi_head_attention_calls;

namespace {

const std::vector<Index> of_three{0, 1, 3}, of_five{0, 2, 5}, more{0, 1, 2, 5}, falling{0, 2, 1, 3},
    late{1, 3};
/// x is [1, 3, 8] and keys are [1, 5, 8] of two sequences each, but for what `spoil` makes of it.
template <class Spoil>
Spoilt packed(bool self, const char* error, const std::string& message, Spoil spoil) {
  return {self, error, message, [self, spoil](Attention& a) {
            a.x = a.m.tensor(1, 3, 8);
            a.key = a.m.tensor(1, 5, 8), a.value = a.m.tensor(1, 5, 8);
            a.call.path = Path::flash;
            a.call.query_starts = of_three;
            if (!self) a.call.key_starts = of_five;
            spoil(a);
          }};
}
const Tensor4<bool> keep(Shape{1, 1, 3, 3});
const Tensor4<double> bias(Shape{1, 1, 3, 3});
const Tensor2<Index> ids(Shape{1, 3});
const std::vector<Index> three_lengths{1, 1, 1}, many{2, 4};
Spoilt mask(const std::string& name, const AttentionMask<double>& with) {
  return packed(true, shape_of,
                "Mask::" + name +
                    " is [1, 1, 3, 3], expected [2, 4, 1, 1] or 1 on an axis (packed sequences "
                    "have no [L, S] in common)",
                [with](Attention& a) { a.call.mask = with; });
}
const Refusals of_modules(of_forward({
    packed(true, shape_of, "x is [2, 3, 8], expected [1, 3, 8] (packed sequences, d_model 8)",
           [](Attention& a) { a.x = a.m.tensor(2, 3, 8); }),
    packed(false, shape_of, "key is [2, 5, 8], expected [1, 5, 8] (batch of query, kdim 8)",
           [](Attention& a) { a.key = a.m.tensor(2, 5, 8); }),
    packed(true, argument_of,
           "path is materialized, expected flash (packed sequences have no [L, S] in common)",
           [](Attention& a) { a.call.path = Path::materialized; }),
    packed(true, argument_of,
           "key_starts is given, expected none (keys and queries are rows of the same x)",
           [](Attention& a) { a.call.key_starts = of_three; }),
    packed(true, argument_of, "query_starts begins with 1, expected 0",
           [](Attention& a) { a.call.query_starts = late; }),
    packed(false, argument_of, "key_starts begins with 1, expected 0",
           [](Attention& a) { a.call.key_starts = late; }),
    packed(false, argument_of, "key_starts falls from 2 to 1 at 2, expected cumulative lengths",
           [](Attention& a) { a.call.key_starts = falling; }),
    packed(true, argument_of, "query_starts ends with 5, expected 3 (the rows of x)",
           [](Attention& a) { a.call.query_starts = of_five; }),
    packed(false, argument_of, "query_starts falls from 2 to 1 at 2, expected cumulative lengths",
           [](Attention& a) { a.call.query_starts = falling; }),
    packed(false, argument_of, "query_starts ends with 5, expected 3 (the rows of query)",
           [](Attention& a) { a.call.query_starts = of_five; }),
    packed(false, argument_of, "key_starts ends with 3, expected 5 (the rows of key)",
           [](Attention& a) { a.call.key_starts = of_three; }),
    packed(false, argument_of, "key_starts has 4 numbers, expected 3 (as many as query_starts)",
           [](Attention& a) { a.call.key_starts = more; }),
    packed(false, argument_of, "key_starts has 0 numbers, expected one more than sequences",
           [](Attention& a) { a.call.key_starts = {}; }),
    {false, argument_of, "key_starts is given without query_starts, expected both or none",
     [](Attention& a) { a.call.key_starts = of_five; }},
    mask("keep", Mask::keep(keep)),
    mask("drop", Mask::drop(keep)),
    mask("bias", Mask::bias(bias)),
    packed(true, argument_of,
           "Mask::documents is given, expected none (each packed sequence is one)",
           [](Attention& a) { a.call.mask = {Mask::documents(ids)}; }),
    packed(false, argument_of, "Mask::key_lengths has 3 lengths, expected 2 (one a sequence)",
           [](Attention& a) { a.call.mask = {Mask::key_lengths(three_lengths)}; }),
    packed(false, argument_of,
           "Mask::key_lengths holds 4 at 1, expected 0 to 3 (the keys of that sequence)",
           [](Attention& a) { a.call.mask = {Mask::key_lengths(many)}; }),
}));

/// 5 tokens in two sequences, but for what is given.
Refusal decoder(const std::string& message, std::vector<Index> starts, Index rows = 1,
                Path path = Path::flash) {
  return argument_error("TransformerDecoder::forward: " + message, [=](Witness& m) {
    const TransformerDecoderOptions options{
        .vocabulary = 5, .max_length = 3, .block = {.d_model = 4, .num_heads = 2}};
    auto& module = m.make<TransformerDecoder<double>>(options);
    auto& cache = m.make<TransformerDecoderCache<double>>();
    const Tensor2<std::int64_t> tokens(Shape{rows, Index{5}});
    TransformerDecoderCall call{.path = path};
    call.starts = starts;
    m.keep(module.parameters()), m.keep(cache);
    (void)module.forward(In<std::int64_t, 2>(tokens), call, cache, m.context());
  });
}
const Refusals of_decoders({
    decoder("tokens are [2, 5], expected [1, 5] (packed sequences)", {0, 2, 5}, 2),
    decoder("path is materialized, expected flash (packed sequences have no [L, S] in common)",
            {0, 2, 5}, 1, Path::materialized),
    decoder("starts begins with 1, expected 0", {1, 2, 5}),
    decoder("starts falls from 3 to 2 at 2, expected cumulative lengths", {0, 3, 2, 5}),
    decoder("starts ends with 4, expected 5 (the tokens)", {0, 2, 4}),
    decoder("sequence 1 has 4 tokens, expected sequences of at most 3 (max_length)", {0, 1, 5}),
});

const std::string no_place =
    "path is materialized, expected flash (packed sequences have no [L, S] in common)";
const AttentionShape in_two = {.seq_len = 3, .d_model = 8, .query_starts = of_three};
const Refusals of_formulas({
    argument_error("count_backward_flops: " + no_place,
                   [](Witness&) { (void)count_backward_flops(in_two, Path::materialized); }),
    argument_error("count_memory: " + no_place,
                   [](Witness&) { (void)count_memory<float>(in_two, Path::materialized, true); }),
    argument_error("count_backward_memory: " + no_place,
                   [](Witness&) {
                     (void)count_backward_memory<float>(in_two, Path::materialized);
                   }),
});

/// 3 rows of 4 heads on the tape; `give` learns something of it.
using Learn = void (*)(Witness&, Tape<double>&, AttentionOptions<double>&, LearnedScores<double>&);
Refusal taped(const std::string& message, bool of_shape, Learn give) {
  return {"packed_attention: " + message, of_shape ? shape_of : argument_of, [give](Witness& m) {
            Tape<double> tape;
            AttentionOptions<double> options;
            LearnedScores<double> learned;
            give(m, tape, options, learned);
            const auto q = tape.constant(m.tensor(3, 4, 2));
            (void)packed_attention(q, q, q, of_three, of_three, options, learned);
          }};
}
const std::string twice = " is in the options and learned, expected one of them";
const auto of_two = score_function(
    std::array{1.0, 2.0}, [](auto s, const Position&, const auto& w) { return w[0] + w[1] * s; });
const Refusals on_tape({
    taped("scale" + twice, false,
          [](auto& m, auto& tape, auto& options, auto& learned) {
            options.scale = 0.5;
            learned.scale = tape.input(m.tensor(1));
          }),
    taped("alibi_slopes" + twice, false,
          [](auto& m, auto& tape, auto& options, auto& learned) {
            options.score.alibi_slopes = m.tensor(4);
            learned.alibi_slopes = tape.input(m.tensor(4));
          }),
    taped("sinks" + twice, false,
          [](auto& m, auto& tape, auto& options, auto& learned) {
            options.score.sinks = m.tensor(4);
            learned.sinks = tape.input(m.tensor(4));
          }),
    taped("relative_bias" + twice, false,
          [](auto& m, auto& tape, auto& options, auto& learned) {
            options.score.relative_bias = m.tensor(4, 3);
            learned.relative_bias = tape.input(m.tensor(4, 3));
          }),
    taped("function is learned, expected the score function that has its numbers as parameters in "
          "the options",
          false,
          [](auto& m, auto& tape, auto&, auto& learned) {
            learned.function = tape.input(m.tensor(1));
          }),
    taped("function is [3], expected [2] (the parameters of the score function)", true,
          [](auto& m, auto& tape, auto& options, auto& learned) {
            options.score.function = of_two;
            learned.function = tape.input(m.tensor(3));
          }),
    taped(
        "function's parameter 1 is another number than the score function in the options was made "
        "of, expected one that is made of these (anew where an optimiser has changed them)",
        false,
        [](auto&, auto& tape, auto& options, auto& learned) {
          options.score.function = of_two;
          static const Tensor1<double> later({2}, {of_two.parameters[0], of_two.parameters[1] + 1});
          learned.function = tape.input(In<double, 1>(later));
        }),
    taped("scale is [2], expected [1] (one for all heads)", true,
          [](auto& m, auto& tape, auto&, auto& learned) {
            learned.scale = tape.input(m.tensor(2));
          }),
    argument_error("packed_attention_forward: key_starts ends with 5, expected 3 (the rows of k)",
                   [](Witness& m) {
                     Tape<double> tape;
                     const auto q = tape.input(m.tensor(3, 4, 2));
                     (void)packed_attention(q, q, q, of_three, of_five);
                   }),
});

}  // namespace

TEST_CASE("modules refuse packed sequences that do not fit", "[bad_calls]") {
  of_modules.check();
  of_decoders.check();
}

TEST_CASE("formulas of cost and the tape refuse packed sequences that do not fit", "[bad_calls]") {
  of_formulas.check();
  on_tape.check();
}

}  // namespace bad_calls_packed_modules
