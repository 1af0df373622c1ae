// Masks that leave ranges of keys, and what they let a query see, pair by pair.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "headwise/score/visibility.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

/// Every combination of causality, window, first keys and key length over sizes with 0, 1 and
/// primes.
inline const Window windows[] = {{0},    {1},    {2},    {3},    {6},   {20},
                                 {1, 1}, {1, 3}, {2, 2}, {3, 1}, {2, 9}};

/// S keys in documents of `kind` keys, but for the first, which has one more; ids fall.
inline Tensor2<Index> documents_of(Index kind, Index S) {
  Tensor2<Index> ids({1, S});
  for (Index j = 0; j < S; ++j) ids(0, j) = -(std::max<Index>(j - 1, 0) / std::max<Index>(kind, 1));
  return ids;
}

/// check(rules, L, S, sees) for each of them; sees(i, j) is the oracle.
template <class F>
void for_each_case(F&& check) {
  for (Index L : {0, 1, 2, 5, 7}) {
    for (Index S : {0, 1, 2, 5, 7}) {
      for (bool is_causal : {false, true}) {
        for (const Window& window : windows) {
          for (Index given = -1; given <= S + 3; ++given) {  // -1: no length
            const Index length = given > S ? -1 : given;
            const auto documents = documents_of(given - S, S);
            CAPTURE(L, S, is_causal, window.size, window.first_keys, length, given - S);
            const std::vector<Index> lengths = {length};
            AttentionMask<float> mask;
            if (given > S) mask.add(Mask::documents(documents));
            if (is_causal) mask.add(causal);
            if (window.size != 0) mask.add(window);
            if (length >= 0) mask.add(Mask::key_lengths(lengths));
            const auto sees = [=](Index i, Index j) {
              const Index diagonal = i + S - L;
              if (given > S && j >= 0 && j < S &&
                  (diagonal < 0 || documents(0, diagonal) != documents(0, j))) {
                return false;
              }
              return j >= 0 && j < S && (!is_causal || j <= diagonal) &&
                     (window.size == 0 || std::abs(diagonal - j) < window.size ||
                      j < window.first_keys) &&
                     (length < 0 || j < length);
            };
            check(HeadVisibility<float>(mask, 0, 0, L, S), L, S, sees);
          }
        }
      }
    }
  }
}

}  // namespace headwise_tests
