// Documents that lie one after the other in a sequence: which keys are a query's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/score/key_range.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1 {

/// A sequence holds documents: query i sees key j only where both are of one, that of the query
/// being ids(b, i + S - L). One of the two views is given.
struct Documents {
  In<Index, 2> ids;                // [B or 1, S]
  In<std::int32_t, 2> narrow_ids;  // [B or 1, S]
  bool given = false;              // also by ids that are absent, which fit no keys

  /// Whether there are any.
  bool present() const { return given; }

  /// Throws ShapeError or ArgumentError unless there is an id for each of S keys, and each document
  /// is one run of neighbours. Work S, or S log S where ids do not rise. Throws std::bad_alloc.
  void require_fits(std::string_view function, Index B, Index S) const {
    if (!given) return;
    if (narrow_ids.absent()) return require_runs(function, ids, B, S);
    require_runs(function, narrow_ids, B, S);
  }

 private:
  template <class Id>
  static void require_runs(std::string_view function, const In<Id, 2>& ids, Index B, Index S) {
    require_countable(function, "Mask::documents", ids);
    if ((ids.extent(0) != B && ids.extent(0) != 1) || ids.extent(1) != S) {
      raise<ShapeError>(function, ": Mask::documents is ", ids.shape(), ", expected ", Shape{B, S},
                        " or ", Shape{Index{1}, S}, " (an id for each key)");
    }
    for (Index b = 0; b < ids.extent(0); ++b) {
      require_runs(function, ids, b);
    }
  }

  /// Ids that rise make runs that are new; others are sorted, to find those that two runs have.
  template <class Id>
  static void require_runs(std::string_view function, const In<Id, 2>& ids, Index b) {
    const Index S = ids.extent(1);
    bool rise = true;
    for (Index j = 1; j < S; ++j) rise = rise && ids(b, j - 1) <= ids(b, j);
    if (rise) return;
    std::vector<Run> runs;
    for (Index j = 0; j < S; ++j) {
      if (j == 0 || ids(b, j - 1) != ids(b, j)) runs.emplace_back(ids(b, j), j);
    }
    require_one_each(function, runs, b);
  }

  /// A document, and the first key of a run of it.
  using Run = std::pair<Index, Index>;
  static void require_one_each(std::string_view function, std::vector<Run>& runs, Index b) {
    std::sort(runs.begin(), runs.end());
    const Run* before = nullptr;
    const Run* again = nullptr;  // the first run of a document that has one before it
    for (std::size_t first = 0, n = 1; n < runs.size(); ++n) {
      if (runs[n].first != runs[first].first) {
        first = n;
      } else if (again == nullptr || runs[n].second < again->second) {
        before = &runs[first];
        again = &runs[n];
      }
    }
    if (again == nullptr) return;
    raise<ArgumentError>(
        function, ": Mask::documents has document ", again->first, " at ", Shape{b, before->second},
        " and, behind another, at ", Shape{b, again->second},
        ", expected the keys of a document side by side (Mask::keep takes any pairs)");
  }
};

/// The documents of one element of the batch.
class DocumentRow {
 public:
  /// None: every key is of one document.
  DocumentRow() = default;
  /// Of documents that fit.
  DocumentRow(const Documents& documents, Index b) {
    if (!documents.ids.absent()) view(documents.ids, b, wide_);
    if (!documents.narrow_ids.absent()) view(documents.narrow_ids, b, narrow_);
  }

  /// Whether there are any.
  bool present() const { return wide_ != nullptr || narrow_ != nullptr; }

  /// The keys of the document of key j. Both ends grow with j; in time as the logarithm of their
  /// number, for each document is one run.
  KeyRange around(Index j) const {
    return wide_ != nullptr ? run_around(wide_, j) : run_around(narrow_, j);
  }

 private:
  template <class Id>
  void view(const In<Id, 2>& ids, Index b, const Id*& row) {
    count_ = ids.extent(1);
    step_ = ids.stride(1);
    if (count_ != 0) row = &ids(ids.extent(0) == 1 ? 0 : b, 0);
  }

  template <class Id>
  KeyRange run_around(const Id* row, Index j) const {
    return {j - reach(row, j, -1), j + reach(row, j, 1) + 1};
  }

  /// How far from key j, towards `direction`, its document goes: by steps that double, then halve.
  template <class Id>
  Index reach(const Id* row, Index j, Index direction) const {
    const Id id = row[j * step_];
    const auto holds = [&](Index steps) {
      const Index key = j + direction * steps;
      return key >= 0 && key < count_ && row[key * step_] == id;
    };
    Index distance = 0, step = 1;
    for (; holds(distance + step); step *= 2) distance += step;
    for (step /= 2; step > 0; step /= 2) distance += holds(distance + step) ? step : 0;
    return distance;
  }

  const Index* wide_ = nullptr;
  const std::int32_t* narrow_ = nullptr;
  Index step_ = 0, count_ = 0;
};

}  // namespace headwise::inline v0_1
