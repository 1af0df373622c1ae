// What char_gpt draws of its heads: attention weights of text that it has not seen.
#include <sstream>

#include "../../examples/char_gpt/gpt.hpp"
#include "../../examples/char_gpt/heads.hpp"
#include "generation_case.hpp"
#include "support/catch.hpp"

namespace examples_heads {

using namespace char_gpt;
using headwise_tests::ContainsSubstring;

TEST_CASE("attention weights of a decoder sum to 1 and are 0 above the diagonal", "[examples]") {
  const Decoder<double> decoder = trained_decoder<double>(odd);
  for (const Index length : {1, 13, 23}) {
    const auto weights = attention_weights<double>(decoder, some_tokens(length));
    REQUIRE(weights.shape() == Shape{odd.layers, odd.heads, length, length});
    headwise::for_each_index(Shape{odd.layers, odd.heads, length}, [&](const Shape<3>& at) {
      double sum = 0;
      for (Index j = 0; j < length; ++j) {
        const double p = weights(at[0], at[1], at[2], j);
        if (j > at[2]) CHECK(p == 0);
        sum += p;
      }
      CHECK(std::abs(sum - 1) < 1e-12);
    });
  }
}

TEST_CASE("heads of the first layer attend by their queries and keys", "[examples]") {
  // softmax(q k^T / sqrt(d)) of the layer norm of token and position, head by head, in plain loops.
  const Decoder<double> decoder = trained_decoder<double>(odd);
  const Index L = 9, D = odd.width, d = D / odd.heads;
  const auto tokens = some_tokens(L);
  const auto weights = attention_weights<double>(decoder, tokens);
  const Block<double>& block = decoder.blocks().front();
  std::vector<std::vector<double>> projected;
  for (Index i = 0; i < L; ++i) {
    std::vector<double> x, row(static_cast<std::size_t>(2 * D));
    double mean = 0, variance = 0;
    for (Index n = 0; n < D; ++n) {
      x.push_back(decoder.token()(tokens[static_cast<std::size_t>(i)], n) +
                  decoder.position()(i, n));
      mean += x.back() / static_cast<double>(D);
    }
    for (const double value : x)
      variance += (value - mean) * (value - mean) / static_cast<double>(D);
    for (Index n = 0; n < D; ++n) {
      const double normed = (x[static_cast<std::size_t>(n)] - mean) / std::sqrt(variance + 1e-5) *
                            block.norm1.value(n);
      for (Index c = 0; c < 2 * D; ++c) {
        row[static_cast<std::size_t>(c)] += normed * block.qkv.value(n, c);
      }
    }
    projected.push_back(row);
  }
  for (Index h = 0; h < odd.heads; ++h) {
    for (Index i = 0; i < L; ++i) {
      std::vector<double> p;
      double sum = 0;
      for (Index j = 0; j <= i; ++j) {
        double score = 0;
        for (Index t = h * d; t < (h + 1) * d; ++t) {
          score += projected[static_cast<std::size_t>(i)][static_cast<std::size_t>(t)] *
                   projected[static_cast<std::size_t>(j)][static_cast<std::size_t>(D + t)];
        }
        p.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        sum += p.back();
      }
      for (Index j = 0; j <= i; ++j) {
        const double wanted = p[static_cast<std::size_t>(j)] / sum;
        CHECK(std::abs(weights(0, h, i, j) - wanted) < 1e-12);
      }
    }
  }
}

TEST_CASE("heads are drawn on what is held out, from the first word that begins in it",
          "[examples]") {
  const Text text(some_text(), small.context, "text");
  const std::size_t all = text.held_out().size();
  CHECK(text.decode(text.held_out().first(11)) == "the sum of ");
  CHECK(text.decode(window_to_draw(text, 7)) == "sum of ");
  CHECK(text.decode(window_to_draw(text, all - 4)).starts_with("sum of "));
  CHECK(text.decode(window_to_draw(text, all - 3)).starts_with("the sum of "));
  const Text one_word(std::string(200, 'x'), small.context, "text");
  CHECK(text.decode(window_to_draw(one_word, 12)).size() == 12);
}

TEST_CASE("the picture of the heads has a panel a head, and the characters at its edges",
          "[examples]") {
  const Text text("a<b\n " + some_text() + "a<b\n ", small.context, "text");
  const Gpt model(model_options(text, small));
  const auto tokens = text.held_out().first(11);
  const auto panels = attention_panels(model.attention_weights(tokens, {}));
  REQUIRE(panels.size() == 6);
  CHECK(panels[4].title == "layer 1, head 1");
  CHECK(panels[4].values(0, 0) == 1);
  CHECK(headwise::examples::is_masked(panels[4].values(3, 4)));
  CHECK(headwise::examples::any_masked(panels));

  std::ostringstream picture;
  const std::vector<std::string> names = {"a",
                                          visible(U' '),
                                          visible(U'\n'),
                                          visible(U'\t'),
                                          visible(U'<'),
                                          visible(1),
                                          "g",
                                          "h",
                                          "i",
                                          "j",
                                          "k"};
  headwise::examples::write_svg(picture, panels, {.panels_a_row = 3, .names = names});
  for (const char* name : {"a", "\u00b7", "\u21b5", "\u2192", "&lt;", "\u25a1", "k"}) {
    CHECK_THAT(picture.str(), ContainsSubstring("\">" + std::string(name) + "</text>"));
  }
  CHECK(picture.str().find("\">10</text>") == std::string::npos);
}

}  // namespace examples_heads
