// TransformerDecoder: options that make none.
#include <limits>

#include "headwise/nn/transformer_decoder.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_transformer_decoder_options {

using namespace headwise_tests;

namespace {

const double nan = std::numeric_limits<double>::quiet_NaN();
const TransformerDecoderOptions small{.vocabulary = 5,
                                      .max_length = 6,
                                      .num_blocks = 2,
                                      .block = {.d_model = 4, .num_heads = 2, .d_hidden = 5}};

Refusal made(const std::string& message, void (*spoil)(TransformerDecoderOptions&)) {
  return argument_error(message, [=](Witness&) {
    TransformerDecoderOptions options = small;
    spoil(options);
    TransformerDecoder<double>{options};
  });
}
using Options = TransformerDecoderOptions;
constexpr Index too_many = (Index{1} << 30) + 1;
const std::string many = std::to_string(too_many),
                  no_deviation = ", expected a finite number of 0 or more";

const Refusals bad_options({
    made("TransformerDecoder: vocabulary is 0, expected 1 to 2^30",
         [](Options& o) { o.vocabulary = 0; }),
    made("TransformerDecoder: vocabulary is " + many + ", expected 1 to 2^30",
         [](Options& o) { o.vocabulary = too_many; }),
    made("TransformerDecoder: max_length is -1, expected 1 to 2^30",
         [](Options& o) { o.max_length = -1; }),
    made("TransformerDecoder: max_length is " + many + ", expected 1 to 2^30",
         [](Options& o) { o.max_length = too_many; }),
    made("TransformerDecoder: num_blocks is 0, expected 1 to 2^16",
         [](Options& o) { o.num_blocks = 0; }),
    made("TransformerDecoder: num_blocks is 65537, expected 1 to 2^16",
         [](Options& o) { o.num_blocks = 65537; }),
    made("TransformerDecoder: embedding_deviation is -0.5" + no_deviation,
         [](Options& o) { o.embedding_deviation = -0.5; }),
    made("TransformerDecoder: embedding_deviation is nan" + no_deviation,
         [](Options& o) { o.embedding_deviation = nan; }),
    made("TransformerDecoder: window is -1, expected >= 0", [](Options& o) { o.window = -1; }),
    made("TransformerDecoder: window is 3 and each position has a vector, expected "
         "position_vectors = false: a sequence may outgrow max_length",
         [](Options& o) { o.window = 3; }),
    made("TransformerDecoder: first_keys is -2, expected >= 0",
         [](Options& o) { o.first_keys = -2; }),
    made("TransformerDecoder: first_keys is 2 and window 0, expected a window beside which they "
         "are seen",
         [](Options& o) { o.first_keys = 2; }),
    made("TransformerDecoder: scale is nan, expected a finite number, or none for 1 / sqrt(d)",
         [](Options& o) { o.scale = nan; }),
    made("TransformerDecoder: softcap is 0, expected a finite, normal number above 0, or none for "
         "no cap",
         [](Options& o) { o.softcap = 0; }),
    made("MultiHeadAttention: d_model is 0, expected 1 to 2^30",
         [](Options& o) { o.block.d_model = 0; }),
});

}  // namespace

TEST_CASE("a TransformerDecoder refuses options that make none", "[bad_calls]") {
  bad_options.check();
}

TEST_CASE("a TransformerDecoder of float refuses numbers that are none in float", "[bad_calls]") {
  TransformerDecoderOptions low = small, high = small;
  low.softcap = 1e-60;
  high.scale = 1e60;
  CHECK_THROWS_WITH(TransformerDecoder<float>(low),
                    Catch::StartsWith("TransformerDecoder: softcap"));
  CHECK_THROWS_WITH(TransformerDecoder<float>(high),
                    Catch::StartsWith("TransformerDecoder: scale"));
  CHECK_NOTHROW(TransformerDecoder<double>(low));
  CHECK_NOTHROW(TransformerDecoder<double>(high));
}

}  // namespace bad_calls_transformer_decoder_options
