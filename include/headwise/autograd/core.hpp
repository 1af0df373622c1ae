// The tape's own: nodes in the order in which they were recorded, and the sweep over them from the
// last to the first. It is a loop, so that a chain of any length can be swept.
#pragma once

#include <tuple>
#include <utility>

#include "headwise/autograd/gradients.hpp"
#include "headwise/autograd/profile.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What a node's backward is called with.
template <class T>
class Pass {
 public:
  Pass(TapeCore<T>& tape, Index node, Index number) : tape_(tape), node_(node), number_(number) {}

  /// What the tape was made with.
  const Context& context() const;

  /// call(Out ...) with memory for the gradient of each target: InOut for one that is added to. It
  /// has to write all of each; what cannot be written in place is added afterwards.
  template <class Call, int... R, Wanted... wanted>
  void assign(Call&& call, const Target<R, wanted>&... targets);

  /// Adds values to the gradient of a target.
  template <int R, Wanted wanted>
  void contribute(const Target<R, wanted>& target, const In<T, R>& values);

  /// Adds dy to the gradient of a target; without a copy where nothing is there and nobody else
  /// reads dy any more: the last thing that a node does.
  template <int R, Wanted wanted>
  void hand_on(const Target<R, wanted>& target, const In<T, R>& dy);

  /// Records run() -> variable again and sweeps what it recorded, with dy the gradient of it.
  template <class Run, int R>
  void recompute(Run&& run, const In<T, R>& dy);

  /// The gradient of a part of this node's output.
  template <int R>
  In<T, R> gradient(Index offset, const Shape<R>& shape, const Shape<R>& strides) const;

 private:
  template <Wanted wanted, int R>
  static auto memory_of(const Opened<T, R>& opened) {
    if constexpr (wanted == Wanted::added) {
      return InOut<T, R>(opened.to);
    } else {
      return opened.to;
    }
  }

  TapeCore<T>& tape_;
  const Index node_, number_;
};

/// What a Tape holds.
template <class T>
class TapeCore {
 public:
  enum class State { recording, sweeping, swept };

  TapeCore(const Context& with, TapeProfile* profile_of_it)
      : context(profile_of_it == nullptr ? with : profile_of_it->counting(with)),
        profile(profile_of_it),
        nodes(memory_of(with)),
        closures(with.memory),
        gradients(nodes, context) {}
  TapeCore(const TapeCore&) = delete;
  TapeCore& operator=(const TapeCore&) = delete;
  ~TapeCore() { drop_nodes(0); }

  /// Whether what is computed now is recorded.
  bool records() const { return values_only == 0; }
  /// Whether a node may be added.
  bool may_record() const { return state == State::recording || recomputing != 0; }

  Node<T>& node(Index n) { return nodes[static_cast<std::size_t>(n)]; }
  Index count() const { return static_cast<Index>(nodes.size()); }
  /// Room for one more. Throws std::bad_alloc.
  void reserve() {
    if (nodes.size() == nodes.capacity()) nodes.reserve(2 * nodes.size() + 16);
  }

  /// Takes back all nodes from the end to `begin`.
  void drop_nodes(Index begin) {
    while (count() > begin) {
      release(nodes.back());
      nodes.pop_back();
    }
  }

  /// From the last node to `begin`: each one's gradient is complete when it is reached, and what it
  /// kept is released when it is passed.
  void sweep(Index begin) {
    for (Index n = count() - 1; n >= begin; --n) pass(n);
  }

  /// Throws ArgumentError where a value that one of the nodes from `begin` on keeps has changed.
  void require_unchanged(Index begin) {
    for (Index n = begin; n < count(); ++n) {
      for (const SavedValue<T>* saved = node(n).saved; saved != nullptr; saved = saved->next) {
        require(saved->storage->version == saved->version, "Tape::backward", "a value that ",
                node(n).name,
                " kept has been written to since, expected it as it was (copy it before)");
      }
    }
  }

  const Context context;
  TapeProfile* const profile;  // null for none
  std::pmr::vector<Node<T>> nodes;
  Stack closures;  // and lists of saved values
  Gradients<T> gradients;
  State state = State::recording;
  Index step = 1;
  int values_only = 0;  // guards that are alive
  int recomputing = 0;  // nodes that record again what they swept over
  Index passes = 0;

 private:
  static std::pmr::memory_resource* memory_of(const Context& context) {
    require(context.memory != nullptr, "Tape", "memory is null, expected a memory resource");
    return context.memory;
  }

  /// What a node holds, but its gradient.
  static void release(Node<T>& of) {
    if (of.closure != nullptr) of.destroy(std::exchange(of.closure, nullptr));
    for (SavedValue<T>* saved = std::exchange(of.saved, nullptr); saved != nullptr;) {
      SavedValue<T>* const next = saved->next;
      std::destroy_at(saved);
      saved = next;
    }
  }

  void pass(Index n) {
    if (node(n).watched) node(n).reached = true;
    const bool runs = node(n).reached && node(n).run != nullptr;
    ProfileScope scope;
    if (runs) scope.start(profile, node(n).name, &OpProfile::backward, context.flops);
    if (node(n).reached) {
      if (!node(n).to_caller) gradients.complete(node(n));
      if (runs) {
        Pass<T> now(*this, n, ++passes);
        node(n).run(node(n).closure, now);  // which may record: nodes may lie elsewhere then
      }
    }
    release(node(n));
    if (!node(n).watched) node(n).gradient = {};
    scope.finish();
  }
};

/// What is undone at the end of a recomputation, however it ends.
template <class T>
class Recomputation {
 public:
  explicit Recomputation(TapeCore<T>& tape)
      : tape_(tape),
        begin_(tape.count()),
        mark_(tape.closures.mark()),
        values_only_(std::exchange(tape.values_only, 0)) {
    ++tape_.recomputing;
  }
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;
  ~Recomputation() {
    tape_.drop_nodes(begin_);
    tape_.closures.rewind(mark_);
    tape_.values_only = values_only_;
    --tape_.recomputing;
  }
  Index begin() const { return begin_; }

 private:
  TapeCore<T>& tape_;
  const Index begin_;
  const Stack::Mark mark_;
  const int values_only_;
};

/// Where the gradient of a variable goes.
template <Wanted wanted, class T, int R>
Target<R, wanted> target_of(const Variable<T, R>& x) {
  const In<T, R>& value = x.value();
  Target<R, wanted> target{no_node, 0, value.shape(), value.strides()};
  if (x.absent() || !x.has_gradient()) return target;
  target.node = x.handle().node;
  if (value.data() != nullptr) target.offset = value.data() - x.handle().storage->begin;
  return target;
}

template <class T>
const Context& Pass<T>::context() const {
  return tape_.context;
}

template <class T>
template <int R>
In<T, R> Pass<T>::gradient(Index offset, const Shape<R>& shape, const Shape<R>& strides) const {
  return tape_.gradients.view(tape_.node(node_), offset, shape, strides);
}

template <class T>
template <class Call, int... R, Wanted... wanted>
void Pass<T>::assign(Call&& call, const Target<R, wanted>&... targets) {
  const auto run = [&](const Opened<T, R>&... opened) {
    call(memory_of<wanted>(opened)...);
    (tape_.gradients.close(targets, opened), ...);
  };
  // In braces, so that they are opened in this order.
  std::apply(run, std::tuple<Opened<T, R>...>{tape_.gradients.open(targets, number_)...});
}

template <class T>
template <int R, Wanted wanted>
void Pass<T>::contribute(const Target<R, wanted>& target, const In<T, R>& values) {
  tape_.gradients.add(target, values);
}

template <class T>
template <int R, Wanted wanted>
void Pass<T>::hand_on(const Target<R, wanted>& target, const In<T, R>& dy) {
  if (target.node == no_node) return;
  Node<T>&from = tape_.node(node_), &to = tape_.node(target.node);
  const bool alike = from.count == to.count && dy.size() == to.count &&
                     target.strides == dy.strides() && target.offset == 0 &&
                     (dy.data() == nullptr || dy.data() == from.gradient->own);
  if (alike && !to.to_caller && !to.gradient && !from.watched) {
    return tape_.gradients.move(from, to);
  }
  tape_.gradients.add(target, dy);
}

template <class T>
template <class Run, int R>
void Pass<T>::recompute(Run&& run, const In<T, R>& dy) {
  const Recomputation<T> again(tape_);
  const Variable<T, R> y = run();
  tape_.gradients.add(target_of<Wanted::added>(y), dy);
  tape_.sweep(again.begin());
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
