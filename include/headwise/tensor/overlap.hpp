// Whether two views share memory, decided from addresses, extents and strides alone: heads that
// lie between each other in one row are apart, though their ranges of memory are not.
//   require_apart("linear_forward", {"y", y}, {{"x", x}, {"w", w}})
//   require_outputs_apart("f", {{"y", y}, {"z", z}}, {{"x", x}})
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A view without its types: where its elements lie, under the name that an error calls it by.
struct Footprint {
  std::string_view name;
  std::uintptr_t address = 0;
  std::uintptr_t low = 0, end = 0;  // of bytes; none where it is empty
  Index element_bytes = 1;
  int axes = 0;                           // those with more than one index
  std::array<Index, 8> extents, strides;  // of those; what is behind them is not set
  bool empty = true;  // without elements, or beyond any memory: nothing is decided there

  template <class T, int R>
  [[gnu::noinline]] Footprint(std::string_view argument, const In<T, R>& view)
      : name(argument),
        address(reinterpret_cast<std::uintptr_t>(view.data())),
        element_bytes(static_cast<Index>(sizeof(T))) {
    static_assert(R <= 8);
    if (address != 0) walk(view.shape().extents, view.strides().extents);
  }

 private:
  [[gnu::noinline]] void walk(std::span<const Index> all_extents,
                              std::span<const Index> all_strides) {
    constexpr Index longest = Index{1} << 58;
    low = address;
    end = address + static_cast<std::uintptr_t>(element_bytes);
    empty = false;
    for (std::size_t r = 0; r < all_extents.size(); ++r) {
      const Index extent = all_extents[r], stride = all_strides[r];
      if (extent <= 0) empty = true;
      if (extent <= 1) continue;
      if (stride > longest || stride < -longest) empty = true;
      extents[static_cast<std::size_t>(axes)] = extent;
      strides[static_cast<std::size_t>(axes++)] = stride;
      const auto reach = static_cast<std::uintptr_t>(stride) *
                         static_cast<std::uintptr_t>(extent - 1) *
                         static_cast<std::uintptr_t>(element_bytes);
      (stride < 0 ? low : end) += reach;
    }
    if (empty) low = end = 0;
  }
};

/// sum of step x over x in [0, most], one of several: all steps are above 0.
struct StepSum {
  Index step, most;
};

/// How many of up to `wanted` ways there are to reach the target, the steps falling. It looks at no
/// more than `budget` cases and says 0 beyond them; nested strides need one or two an axis. (g++ 12
/// inlines it into itself, to ten times the code.)
[[gnu::noinline]] inline int count_ways(std::span<const StepSum> sums, Index target, int wanted,
                                        int& budget) {
  if (target < 0) return 0;
  if (sums.empty()) return target == 0 ? 1 : 0;
  Index rest = 0;
  for (const StepSum& inner : sums.subspan(1)) rest += inner.step * inner.most;
  const auto [step, most] = sums.front();
  const Index low = target <= rest ? 0 : (target - rest + step - 1) / step;
  const Index high = target / step < most ? target / step : most;
  int ways = 0;
  for (Index x = low; x <= high && ways < wanted && --budget > 0; ++x) {
    ways += count_ways(sums.subspan(1), target - x * step, wanted - ways, budget);
  }
  return ways;
}

/// The equation that two elements lie at one address: a sum over the axes of both views.
class Meeting {
 public:
  explicit Meeting(Index distance) : target_(distance) {}

  /// Adds stride x for x in [0, most].
  void add(Index stride, Index most) {
    constexpr Index limit = Index{1} << 58;  // beyond any memory: nothing is decided there
    if (stride == 0 || most == 0) return;
    Index reach = 0;
    if (__builtin_mul_overflow(stride, most, &reach) || reach > limit || reach < -limit) {
      undecided_ = true;
    }
    if (undecided_) return;
    if (stride < 0) target_ -= reach;
    const Index step = stride < 0 ? -stride : stride;
    std::size_t at = count_;
    while (at > 0 && sums_[at - 1].step < step) --at;
    if (at > 0 && sums_[at - 1].step == step) return void(sums_[at - 1].most += most);
    for (std::size_t n = count_++; n > at; --n) sums_[n] = sums_[n - 1];
    sums_[at] = {step, most};
  }

  bool has_solutions(int wanted) {
    if (undecided_) return false;
    int budget = 4096;
    return count_ways({sums_.data(), count_}, target_, wanted, budget) >= wanted;
  }

 private:
  Index target_;
  bool undecided_ = false;
  std::size_t count_ = 0;
  std::array<StepSum, 18> sums_;  // the first `count_`, their steps falling
};

/// Whether the two share a byte, where their ranges of memory do.
[[gnu::noinline]] inline bool elements_meet(const Footprint& a, const Footprint& b) {
  const auto bytes = static_cast<Index>(b.address - a.address);
  // In elements where they are alike, in bytes otherwise: then each byte of an element counts.
  const bool alike = a.element_bytes == b.element_bytes && bytes % a.element_bytes == 0;
  const Index unit = alike ? a.element_bytes : 1;
  Meeting meeting(bytes / unit);
  const auto add = [&](const Footprint& x, Index sign) {
    const Index units = alike ? 1 : x.element_bytes;  // of an element
    for (std::size_t r = 0; r < static_cast<std::size_t>(x.axes); ++r) {
      meeting.add(sign * x.strides[r] * units, x.extents[r] - 1);
    }
    if (!alike) meeting.add(sign, x.element_bytes - 1);
  };
  add(a, 1);
  add(b, -1);
  return meeting.has_solutions(1);
}

/// Whether the two share a byte. Views whose layout would take too long to decide count as apart.
inline bool overlap(const Footprint& a, const Footprint& b) {
  return a.low < b.end && b.low < a.end && elements_meet(a, b);
}

/// Whether the axes are nested, in any order: each stride leads beyond all that smaller ones reach.
/// So lie rows, and heads within them.
inline bool are_nested(const Footprint& a) {
  std::uintptr_t reached = 0;  // bytes, by strides up to `last`
  Index last = 0;
  for (int done = 0; done < a.axes; ++done) {
    std::size_t next = 0;
    Index stride = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
      if (a.strides[r] > last && (stride == 0 || a.strides[r] < stride)) {
        next = r;
        stride = a.strides[r];
      }
    }
    const auto bytes = static_cast<std::uintptr_t>(stride * a.element_bytes);
    if (bytes <= reached) return false;  // none is left, where two are equal or below 1
    reached += bytes * static_cast<std::uintptr_t>(a.extents[next] - 1);
    last = stride;
  }
  return true;
}

/// Whether two indices of one view name the same element.
inline bool repeats_elements(const Footprint& a) {
  if (a.empty || are_nested(a)) return false;
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
    if (a.strides[r] == 0) return true;
  }
  Index middle = 0;  // every x at half of its range: the indices are equal
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
    const Index step = a.strides[r] < 0 ? -a.strides[r] : a.strides[r];
    if (step > (Index{1} << 56) / a.extents[r]) return false;
    middle += step * (a.extents[r] - 1);
    for (std::size_t s = 0; s < r; ++s) {
      if (a.strides[s] == a.strides[r] || a.strides[s] == -a.strides[r]) return true;
    }
  }
  Meeting meeting(middle);
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
    meeting.add(a.strides[r] < 0 ? -a.strides[r] : a.strides[r], 2 * (a.extents[r] - 1));
  }
  return meeting.has_solutions(2);
}

/// Whether they are the same elements in the same order.
inline bool same_elements(const Footprint& a, const Footprint& b) {
  return a.address == b.address && a.element_bytes == b.element_bytes && a.axes == b.axes &&
         std::equal(a.extents.begin(), a.extents.begin() + a.axes, b.extents.begin()) &&
         std::equal(a.strides.begin(), a.strides.begin() + a.axes, b.strides.begin());
}

/// What a call writes to: views of its caller's, which may lie over its inputs, or tensors that
/// were made for it. Of these nobody asks whether they share memory with anything.
enum class OutputMemory { given, fresh };

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError unless every index of `out` names an element of its own. (None of these is
/// worth inlining; inlined, g++ 12 warns of its own std::string.)
[[gnu::noinline]] inline void require_distinct(std::string_view function,
                                               const detail::Footprint& out) {
  if (!detail::repeats_elements(out)) [[likely]]
    return;
  raise<ShapeError>(function, ": ", out.name,
                    " holds one element at two indices, expected elements of their own");
}

/// Throws ShapeError where `out` shares an element with one of the others.
[[gnu::noinline]] inline void require_disjoint(std::string_view function,
                                               const detail::Footprint& out,
                                               std::span<const detail::Footprint> others) {
  for (const detail::Footprint& other : others) {
    if (!detail::overlap(out, other)) [[likely]]
      continue;
    raise<ShapeError>(function, ": ", out.name, " overlaps ", other.name,
                      ", expected memory of its own");
  }
}

/// Throws ShapeError unless `out` shares no element with any of the others, nor any with itself.
[[gnu::noinline]] inline void require_apart(std::string_view function, const detail::Footprint& out,
                                            std::initializer_list<detail::Footprint> others) {
  require_distinct(function, out);
  require_disjoint(function, out, {others.begin(), others.size()});
}

/// The same of each output of a call, of the inputs and the outputs before it.
[[gnu::noinline]] inline void require_outputs_apart(
    std::string_view function, std::initializer_list<detail::Footprint> outputs,
    std::initializer_list<detail::Footprint> inputs) {
  for (const detail::Footprint& out : outputs) {
    require_distinct(function, out);
    require_disjoint(function, out, {inputs.begin(), inputs.size()});
    require_disjoint(function, out, {outputs.begin(), &out});
  }
}

/// Throws ShapeError unless `out` is `in`, element for element, or shares none with it.
[[gnu::noinline]] inline void require_same_or_apart(std::string_view function,
                                                    const detail::Footprint& out,
                                                    const detail::Footprint& in) {
  if (detail::same_elements(out, in) || !detail::overlap(out, in)) [[likely]]
    return;
  raise<ShapeError>(function, ": ", out.name, " overlaps ", in.name, " shifted, expected ", in.name,
                    " itself or memory of its own");
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
