// A number that poisons what it meets, in some rows of an input, and which outputs it may reach.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

enum class Place { k, v, q, d_o };
inline const char* const place_names[] = {"k", "v", "q", "d_o"};

template <class T>
inline const std::vector<T> poisons = {std::numeric_limits<T>::quiet_NaN(),
                                       std::numeric_limits<T>::infinity(),
                                       -std::numeric_limits<T>::infinity()};

/// Some rows: odd ones, and behind the first tiles even ones, since of pairs of rows both count.
inline bool is_poisoned(Index n) { return n % 10 == (n < 80 ? 5 : 4); }

/// The last element of some rows of one tensor becomes the poison.
template <class T>
Case<T> poisoned(const Case<T>& x, Place place, T poison) {
  Case<T> y = x;
  Tensor4<T>& t = place == Place::k   ? y.k
                  : place == Place::v ? y.v
                  : place == Place::q ? y.q
                                      : y.d_o;
  for (Index b = 0; b < t.extent(0); ++b) {
    for (Index h = 0; h < t.extent(1); ++h) {
      for (Index n = 0; n < t.extent(2); ++n) {
        if (is_poisoned(n)) t(b, h, n, t.extent(3) - 1) = poison;
      }
    }
  }
  return y;
}

/// Which rows of the outputs a poison may reach, from the masks alone.
struct Reach {
  std::vector<bool> query, key, seen;  // [B H L], [B G S], [B G S]
};

template <class T>
Reach reach(const Case<T>& x, Place place) {
  const auto [B, H, G, L, S, d, dv] = x.sizes;
  Reach r{std::vector<bool>(static_cast<std::size_t>(B * H * L)),
          std::vector<bool>(static_cast<std::size_t>(B * G * S)),
          std::vector<bool>(static_cast<std::size_t>(B * G * S))};
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < L; ++i) {
        const bool of_queries = place == Place::q || place == Place::d_o;
        bool dirty = of_queries && is_poisoned(i) && x.sees_any(b, h, i);
        for (Index j = 0; j < S && !of_queries; ++j) {
          dirty = dirty || (is_poisoned(j) && x.visible(b, h, i, j));
        }
        r.query[static_cast<std::size_t>((b * H + h) * L + i)] = dirty;
        for (Index j = 0; j < S; ++j) {
          if (!x.visible(b, h, i, j)) continue;
          const auto at = static_cast<std::size_t>((b * G + h / (H / G)) * S + j);
          r.seen[at] = true;
          if (dirty) r.key[at] = true;
        }
      }
    }
  }
  return r;
}

/// Rows of the last axis that differ in a bit though `dirty` is false for them.
template <class T>
Index changed_rows(const Tensor4<T>& a, const Tensor4<T>& b, const std::vector<bool>& dirty) {
  Index changed = 0, n = 0;
  for_each_index(Shape{a.extent(0), a.extent(1), a.extent(2)}, [&](const Shape<3>& row) {
    const auto width = static_cast<std::size_t>(a.extent(3)) * sizeof(T);
    if (dirty[static_cast<std::size_t>(n++)] || width == 0) return;
    const Index at = a.offset(Shape{row[0], row[1], row[2], Index{0}});
    changed += std::memcmp(a.data() + at, b.data() + at, width) == 0 ? 0 : 1;
  });
  return changed;
}

/// Rows that are `chosen` and hold no NaN, or hold something but 0.
template <class T>
Index rows_without_nan(const Tensor4<T>& a, const std::vector<bool>& chosen) {
  Index count = 0;
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const T* row = a.data() + static_cast<Index>(n) * a.extent(3);
    count += chosen[n] && std::none_of(row, row + a.extent(3), [](T x) { return std::isnan(x); });
  }
  return count;
}
template <class T>
Index rows_not_zero(const Tensor4<T>& a, const std::vector<bool>& unchosen) {
  Index count = 0;
  for (std::size_t n = 0; n < unchosen.size(); ++n) {
    const T* row = a.data() + static_cast<Index>(n) * a.extent(3);
    count += !unchosen[n] && std::any_of(row, row + a.extent(3), [](T x) { return !(x == 0); });
  }
  return count;
}

/// That a poison reaches no more than it may, to the bit, and that NaN reaches what it should.
template <class T>
void check_reach(Path path, const Case<T>& x, const Outputs<T>& finite, Place place, const Reach& r,
                 T poison, const Context& context = {}) {
  const Outputs<T> y = run(path, poisoned(x, place, poison), context);
  const std::vector<bool> nowhere(r.query.size());
  const bool forward = place != Place::d_o;
  CHECK(changed_rows(y.o, finite.o, forward ? r.query : nowhere) == 0);
  if (path == Path::materialized) {
    const bool scores = place == Place::k || place == Place::q;
    CHECK(changed_rows(y.weights, finite.weights, scores ? r.query : nowhere) == 0);
  }
  CHECK(changed_rows(y.dq, finite.dq, r.query) == 0);
  CHECK(changed_rows(y.dk, finite.dk, r.key) == 0);
  CHECK(changed_rows(y.dv, finite.dv, r.key) == 0);
  CHECK(rows_not_zero(y.dk, r.seen) == 0);
  CHECK(rows_not_zero(y.dv, r.seen) == 0);
  if (!std::isnan(poison)) return;
  if (forward) CHECK(rows_without_nan(y.o, r.query) == 0);
  CHECK(rows_without_nan(y.dq, r.query) == 0);
}

}  // namespace headwise_tests
