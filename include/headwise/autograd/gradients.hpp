// How contributions become gradients. A gradient is not set to 0: the first contribution to a part
// of it overwrites that part in place, later ones are added, and what none has written when it is
// read is set to 0 then. So three slices of one tensor get their gradients written side by side
// into one, by who computes them.
#pragma once

#include "headwise/autograd/node.hpp"
#include "headwise/ops/accumulate.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Where a contribution is written: in place, or to a temporary that is added afterwards.
template <class T, int R>
struct Opened {
  Out<T, R> to;
  StorageRef<T> temporary;
};

/// The gradients of a tape's nodes.
template <class T>
class Gradients {
 public:
  Gradients(std::pmr::vector<Node<T>>& nodes, const Context& context)
      : nodes_(nodes), context_(context), pieces_(context.memory), callers_(context.memory) {}

  /// The view of a gradient that is there.
  template <int R>
  Out<T, R> view(const Node<T>& node, Index offset, const Shape<R>& shape,
                 const Shape<R>& strides) const {
    T* const begin = node.to_caller ? node.callers : node.gradient ? node.gradient->own : nullptr;
    return {begin == nullptr || shape.size() == 0 ? nullptr : begin + offset, shape, strides};
  }

  /// Memory for a contribution of pass `pass`.
  template <int R, Wanted wanted>
  Opened<T, R> open(const Target<R, wanted>& at, Index pass) {
    if (at.node == no_node) {
      if (wanted != Wanted::always) return {};
      return temporary(at.shape, false);
    }
    Node<T>& node = node_at(at.node);
    node.reached = true;
    if (node.to_caller) {
      const Out<T, R> to = view(node, at.offset, at.shape, at.strides);
      if (wanted == Wanted::added && opens_first(to, pass)) return {to, {}};
      return temporary(at.shape, wanted == Wanted::added);
    }
    const bool first = node.opened_by != pass;
    begin(node);
    const Out<T, R> to = view(node, at.offset, at.shape, at.strides);
    if (is_free(node, to)) {
      mark(node, to);
      node.opened_by = pass;
      if (wanted == Wanted::added) fill(to, T(0));
      return {to, {}};
    }
    if (wanted != Wanted::added || !first) return temporary(at.shape, wanted == Wanted::added);
    node.opened_by = pass;
    cover(node, to);
    return {to, {}};
  }

  /// After the contribution was written.
  template <int R, Wanted wanted>
  void close(const Target<R, wanted>& at, const Opened<T, R>& opened) {
    if (opened.temporary && at.node != no_node) add(at, In<T, R>(opened.to));
  }

  /// Adds values to a gradient, or lets them be what it begins with.
  template <int R, Wanted wanted>
  void add(const Target<R, wanted>& at, const In<T, R>& values) {
    if (at.node == no_node) return;
    Node<T>& node = node_at(at.node);
    node.reached = true;
    if (!node.to_caller) begin(node);
    const Out<T, R> to = view(node, at.offset, at.shape, at.strides);
    if (!node.to_caller && is_free(node, to)) {
      mark(node, to);
      return combine_into<T, R>(kernels::Combination::first, values, to, context_);
    }
    if (!node.to_caller) cover(node, to);
    accumulate<T, R>(values, InOut<T, R>(to), context_);
  }

  /// The gradient of `from` becomes that of `to`, as it is.
  void move(Node<T>& from, Node<T>& to) {
    to.gradient = std::move(from.gradient);
    to.written = to.count;
    to.reached = true;
  }

  /// Sets to 0 what nobody has written.
  void complete(Node<T>& node) {
    begin(node);
    if (node.written == node.count) return;
    T* const own = node.gradient->own;
    if (node.written == 0) {
      fill_run(own, node.count, T(0));
    } else {
      Tensor<bool, 1> written(Shape{node.count}, context_.memory);
      for (const WrittenPart* piece = node.pieces; piece != nullptr; piece = piece->next) {
        note(piece->place, own, written);
      }
      for (Index n = 0; n < node.count; ++n) {
        if (!written(n)) own[n] = T(0);
      }
    }
    node.written = node.count;
    node.pieces = nullptr;
  }

  /// Forgets all pieces: no gradient is unfinished any more.
  void forget_pieces() { pieces_.rewind({}); }

 private:
  /// Whether memory of the caller's is opened by a pass for the first time: several nodes may be
  /// of the same. Throws std::bad_alloc.
  template <int R>
  bool opens_first(const In<T, R>& to, Index pass) {
    if (pass != callers_of_) callers_.clear();
    callers_of_ = pass;
    const Footprint place("", to);
    for (const Footprint& other : callers_) {
      if (overlap(other, place)) return false;
    }
    callers_.push_back(place);
    return true;
  }

  Node<T>& node_at(Index node) { return nodes_[static_cast<std::size_t>(node)]; }

  void begin(Node<T>& node) {
    if (!node.gradient) node.gradient = StorageRef<T>::make(node.count, context_.memory);
  }

  template <int R>
  Opened<T, R> temporary(const Shape<R>& shape, bool zero) {
    Opened<T, R> opened;
    opened.temporary = StorageRef<T>::make(shape.size(), context_.memory);
    opened.to = {shape.size() == 0 ? nullptr : opened.temporary->own, shape};
    if (zero) fill(opened.to, T(0));
    return opened;
  }

  /// Whether nothing of it has been written.
  template <int R>
  bool is_free(const Node<T>& node, const In<T, R>& to) const {
    if (node.written == 0) return true;
    if (node.written == node.count) return false;
    const Footprint place("", to);
    for (const WrittenPart* piece = node.pieces; piece != nullptr; piece = piece->next) {
      if (overlap(piece->place, place)) return false;
    }
    return true;
  }

  template <int R>
  void mark(Node<T>& node, const In<T, R>& to) {
    const Index size = to.size();
    if (size == 0) return;
    if (size != node.count) {
      node.pieces = ::new (pieces_.template room_for<WrittenPart>())
          WrittenPart{Footprint("", to), node.pieces};
    }
    node.written += size;
  }

  /// Sees to it that all of it has been written.
  template <int R>
  void cover(Node<T>& node, const In<T, R>& to) {
    if (node.written == node.count) return;
    const Footprint place("", to);
    for (const WrittenPart* piece = node.pieces; piece != nullptr; piece = piece->next) {
      if (same_elements(piece->place, place)) return;
    }
    complete(node);
  }

  /// written = true for the elements of a piece.
  static void note(const Footprint& place, const T* begin, Tensor<bool, 1>& written) {
    const auto bytes = place.address - reinterpret_cast<std::uintptr_t>(begin);
    Index at = static_cast<Index>(bytes / sizeof(T));
    std::array<Index, 8> index{};
    for (int axis = 0; axis >= 0;) {
      written(at) = true;
      for (axis = place.axes - 1; axis >= 0; --axis) {
        const auto r = static_cast<std::size_t>(axis);
        at += place.strides[r];
        if (++index[r] < place.extents[r]) break;
        at -= place.strides[r] * place.extents[r];
        index[r] = 0;
      }
    }
  }

  std::pmr::vector<Node<T>>& nodes_;
  const Context& context_;
  Stack pieces_;
  std::pmr::vector<Footprint> callers_;  // places that a pass has opened
  Index callers_of_ = 0;                 // that pass
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
