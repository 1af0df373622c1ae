// A value of a tape: what functions of the tape take and give.
#pragma once

#include <utility>

#include "headwise/autograd/storage.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
class TapeCore;

inline constexpr Index no_node = -1;

/// What a variable is without its rank: its tape, its place on it, its elements.
template <class T>
struct Handle {
  TapeCore<T>* tape = nullptr;
  Index node = no_node;  // none: no gradient flows here
  Index step = 0;        // the tape's when it was made: another one follows each clear()
  StorageRef<T> storage;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A value on a Tape, or a view of one: a handle, cheap to copy, that keeps the elements alive.
///
/// The elements stay until neither a variable nor a node that needs them in backward holds them. It
/// must not be used with its tape gone, or on another thread than the tape's.
template <Scalar T, int R>
class Variable {
 public:
  /// The type of an element.
  using value_type = T;
  /// The number of axes.
  static constexpr int rank = R;

  /// No variable: what stands for a bias that is not there.
  Variable() = default;
  /// Of a handle and a view of its elements; what makes variables is Tape.
  Variable(detail::Handle<T> handle, const In<T, R>& value)
      : handle_(std::move(handle)), value_(value) {}

  /// The elements, to be read. Valid as long as this variable is.
  const In<T, R>& value() const { return value_; }
  /// The extents of all axes.
  const Shape<R>& shape() const { return value_.shape(); }
  /// The extent of one axis.
  Index extent(int axis) const { return value_.extent(axis); }
  /// The number of elements.
  Index size() const { return value_.size(); }
  /// Whether this is `{}`.
  bool absent() const { return handle_.tape == nullptr; }
  /// Whether backward brings a gradient here.
  bool has_gradient() const { return handle_.node != detail::no_node; }
  /// The tape's own.
  const detail::Handle<T>& handle() const { return handle_; }

 private:
  detail::Handle<T> handle_;
  In<T, R> value_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
