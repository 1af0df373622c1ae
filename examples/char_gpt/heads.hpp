// What the heads of a trained model attend to, on a few characters: their weights, and a picture of
// them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../support/svg.hpp"
#include "generation.hpp"
#include "options.hpp"

namespace char_gpt {

/// The attention weights of every layer and head, a row a query: [layers, H, L, L]. Above the
/// diagonal they are 0.
///
/// tokens   [L]   at least one, at most the context
template <class T>
Tensor<T, 4> attention_weights(const Decoder<T>& decoder, std::span<const TokenId> tokens,
                               const Context& context = {}) {
  const Index L = std::ssize(tokens);
  Tensor<T, 4> weights(Shape{decoder.options().layers, decoder.options().heads, L, L});
  DecoderPass<T> pass(decoder, context);
  pass.logits(tokens, 0, [&](Index layer, In<T, 4> q, In<T, 4> k, In<T, 4> v, Out<T, 4> o) {
    attention_forward(q, k, v, {.mask = headwise::causal}, slice(weights, 0, layer, 1), o, context);
  });
  return weights;
}

/// A panel a head, layer by layer; keys that a query does not see count as masked.
inline std::vector<headwise::examples::Panel> attention_panels(const Tensor<float, 4>& weights) {
  const auto masked = std::bit_cast<double>(std::uint64_t{0xfff0000000000000});  // -infinity
  std::vector<headwise::examples::Panel> panels;
  for (Index layer = 0; layer < weights.extent(0); ++layer) {
    for (Index head = 0; head < weights.extent(1); ++head) {
      const auto title = "layer " + std::to_string(layer) + ", head " + std::to_string(head);
      const In<float, 2> values = headwise::select(headwise::select(weights, layer), head);
      panels.push_back(headwise::examples::make_panel(title, values));
      for (Index i = 0; i < values.extent(0); ++i) {
        for (Index j = i + 1; j < values.extent(1); ++j) panels.back().values(i, j) = masked;
      }
    }
  }
  return panels;
}

/// So many characters of what is held out, from the first word that begins in it; where none does,
/// from its first character.
inline std::span<const TokenId> window_to_draw(const Text& text, std::size_t length) {
  const auto held_out = text.held_out();
  for (std::size_t begin = 1; begin + length <= held_out.size(); ++begin) {
    const auto before = static_cast<std::size_t>(held_out[begin - 1]);
    if (text.alphabet()[before] == U' ') return held_out.subspan(begin, length);
  }
  return held_out.first(length);
}

/// The weights on at most 24 characters of what is held out as a grid: a row a layer, a column a
/// head. Throws headwise::FileError where the file cannot be written.
inline void write_heads_svg(const std::string& path, const Model& model, const Text& text,
                            const Options& options, const Context& context = {}) {
  const auto L = static_cast<std::size_t>(std::min<Index>(24, options.context));
  const auto tokens = window_to_draw(text, L);
  std::vector<std::string> names;
  for (const TokenId token : tokens) {
    names.push_back(visible(text.alphabet()[static_cast<std::size_t>(token)]));
  }
  const auto panels = attention_panels(model.attention_weights(tokens, context));
  headwise::examples::write_svg(path, panels,
                                {.title = "What each head attends to",
                                 .row_label = "from",
                                 .column_label = "to",
                                 .panels_a_row = options.heads,
                                 .names = names});
}

}  // namespace char_gpt
