// Rows of random digits, and how many answers about them are right: what small models learn from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::examples {

inline constexpr Index digits = 10, length = 8;  // in a row

using Tokens = Tensor<std::int32_t, 1>;

/// Row after row of random digits, [rows length]: a function of the step.
inline Tokens draw(Index rows, std::uint64_t step) {
  Tokens tokens(Shape{rows * length});
  for (Index n = 0; n < tokens.size(); ++n) {
    const auto words = philox<10>({static_cast<std::uint32_t>(n), 0, 0, 0}, philox_key(7, 0, step));
    tokens(n) = static_cast<std::int32_t>(words[0] % digits);
  }
  return tokens;
}

/// Each row in order.
inline Tokens sorted(Tokens tokens) {
  for (Index n = 0; n < tokens.size(); n += length) {
    std::sort(tokens.data() + n, tokens.data() + n + length);
  }
  return tokens;
}

/// Which of a row of logits [N, digits] is the greatest: the answer.
inline Index answer(const In<float, 2>& logits, Index n) {
  const float* row = &logits(n, 0);
  return std::max_element(row, row + digits) - row;
}

/// The share of the answers that are those wanted.
inline double share_right(const In<float, 2>& logits, const Tokens& wanted) {
  Index right = 0;
  for (Index n = 0; n < wanted.size(); ++n) right += answer(logits, n) == wanted(n);
  return static_cast<double>(right) / static_cast<double>(wanted.size());
}

}  // namespace headwise::examples
