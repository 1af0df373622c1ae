// Tensors at awkward places: axes in any order, gaps between rows, backwards, one element for many.
// Their storage ends with their last element, so that a sanitizer sees a step beyond.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "fuzz/byte_reader.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise_fuzz {

using namespace headwise;

/// Inputs may share elements, outputs may not.
enum class Role { input, output };

template <class T, int R>
class Placed {
 public:
  Placed() = default;

  /// Everything, gaps too, is `fill`.
  Placed(ByteReader& in, const Shape<R>& shape, Role role, T fill) : fill_(fill) {
    const unsigned how = in.byte();
    std::array<int, R> order{};  // of the axes, innermost first
    for (int r = 0; r < R; ++r) order[static_cast<std::size_t>(r)] = R - 1 - r;
    if ((how & 1u) != 0) std::swap(order[0], order[R - 1]);
    if ((how & 2u) != 0) std::rotate(order.begin(), order.begin() + 1, order.end());
    const Index gap = (how & 4u) != 0 ? 3 : 0;
    const int backwards = (how & 8u) != 0 ? static_cast<int>((how >> 5) % R) : -1;
    const int shared =
        (how & 16u) != 0 && role == Role::input ? static_cast<int>((how >> 6) % R) : -1;

    Shape<R> strides;
    Index step = (how & 5u) == 5u ? 2 : 1, first = 0, last = 0;
    for (const int r : order) {
      strides[r] = r == shared ? 0 : r == backwards ? -step : step;
      const Index reach = (std::max(shape[r], Index{1}) - 1) * strides[r];
      (reach < 0 ? first : last) += reach;
      step = step * std::max(shape[r], Index{1}) + gap;
    }
    const bool none = shape.size() == 0;
    size_ = none ? 0 : static_cast<std::size_t>(last - first + 1);
    storage_ = std::make_unique<T[]>(size_);
    std::fill_n(storage_.get(), size_, fill);
    view_ = TensorView<T, R>(none ? storage_.get() : storage_.get() - first, shape, strides);
  }

  TensorView<T, R> view() const { return view_; }

  template <class Next>
  void set(Next&& next) {
    for_each_index(view_.shape(), [&](const Shape<R>& at) { view_(at) = static_cast<T>(next()); });
  }

  /// Whether nothing was written, or nothing but the elements.
  bool untouched() const { return all_are_fill(storage_.get()); }
  bool gaps_untouched() const {
    const auto copy = std::make_unique<T[]>(size_);
    std::copy_n(storage_.get(), size_, copy.get());
    for_each_index(view_.shape(), [&](const Shape<R>& at) {
      copy[static_cast<std::size_t>(view_.data() + view_.offset(at) - storage_.get())] = fill_;
    });
    return all_are_fill(copy.get());
  }

 private:
  bool all_are_fill(const T* elements) const {
    return std::all_of(elements, elements + size_,
                       [&](const T& x) { return std::memcmp(&x, &fill_, sizeof(T)) == 0; });
  }

  std::unique_ptr<T[]> storage_;
  std::size_t size_ = 0;
  T fill_{};
  TensorView<T, R> view_;
};

}  // namespace headwise_fuzz
