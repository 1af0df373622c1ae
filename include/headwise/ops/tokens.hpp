// Tokens: rows of a table, or columns of logits, by number. What may be one, and the rule that all
// of a call's lie in range.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include "headwise/tensor/require.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1 {

/// The types that tokens come in: what tokenizers write, and what PyTorch takes.
template <class Id>
concept TokenId = std::same_as<Id, std::int32_t> || std::same_as<Id, std::int64_t>;

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// No token is exempt.
struct NoneIgnored {
  bool operator()(std::int64_t) const { return false; }
};

/// Throws ArgumentError for the first token outside [0, V), but for those that ignored(token) says
/// yes to; `from` says where V comes from.
template <TokenId Id, class From, class Ignored = NoneIgnored>
void require_tokens(std::string_view function, std::string_view argument, const In<Id, 1>& tokens,
                    Index V, const From& from, const Ignored& ignored = {}) {
  for (Index n = 0; n < tokens.extent(0); ++n) {
    const std::int64_t token = tokens(n);
    if ((token >= 0 && token < V) || ignored(token)) [[likely]]
      continue;
    raise<ArgumentError>(function, ": ", argument, "(", n, ") is ", token,
                         ", expected 0 or more and below ", V, " (", from(), ")");
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
