// Every intermediate of the textbook by name, for teaching and for finding faults.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1 {

/// Copies of the tensors that a traced call passed through, in the order of the computation.
/// Values are kept as double, row-major.
class Trace {
 public:
  /// One tensor.
  struct Entry {
    std::string name;            // by the textbook: X, Q, A, AS, dQ ...
    std::vector<Index> shape;    // extents
    std::vector<double> values;  // row-major
  };

  /// Appends a copy under a name, which may be there already. Throws std::bad_alloc.
  template <class T, int R>
  [[gnu::cold]] void record(std::string_view name, const In<T, R>& tensor) {
    require_countable("Trace::record", "tensor", tensor);
    Entry entry{std::string(name),
                {std::begin(tensor.shape().extents), std::end(tensor.shape().extents)},
                {}};
    entry.values.reserve(static_cast<std::size_t>(tensor.size()));
    for_each_index(tensor.shape(), [&](const Shape<R>& index) {
      if constexpr (NarrowFloat<T>) {
        entry.values.push_back(convert_float<double>(tensor(index)));
      } else {
        entry.values.push_back(static_cast<double>(tensor(index)));
      }
    });
    entries_.push_back(std::move(entry));
  }

  /// All of them, oldest first.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Forgets all of them.
  void clear() { entries_.clear(); }

  /// Whether a tensor of this name was recorded.
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// The newest tensor of this name. Throws ArgumentError, listing the names, if there is none.
  const Entry& at(std::string_view name) const {
    if (const Entry* entry = find(name)) return *entry;
    std::string names;
    for (const Entry& entry : entries_) names += " " + entry.name;
    raise<ArgumentError>("Trace::at: name is ", name, ", expected one of:", names);
  }

  /// The newest tensor of this name as a view of rank R. Throws ArgumentError or ShapeError.
  template <int R>
  In<double, R> view(std::string_view name) const {
    const Entry& entry = at(name);
    if (entry.shape.size() != static_cast<std::size_t>(R)) {
      raise<ShapeError>("Trace::view: ", entry.name, " is ", entry.shape, ", expected ", R,
                        " axes");
    }
    Shape<R> shape;
    for (int r = 0; r < R; ++r) shape[r] = entry.shape[static_cast<std::size_t>(r)];
    return {entry.values.data(), shape};
  }

 private:
  const Entry* find(std::string_view name) const {
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->name == name) return &*entry;
    }
    return nullptr;
  }

  std::vector<Entry> entries_;
};

}  // namespace headwise::inline v0_1
