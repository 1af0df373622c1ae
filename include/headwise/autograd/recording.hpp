// How a function of the tape is written: the checks, the output, what backward reads, and the call
// that backward is. apply.hpp does all of it for a pair of functions.
#pragma once

#include <type_traits>

#include "headwise/autograd/core.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What backward is called with: where it asks for the memory of its inputs' gradients.
template <Scalar T>
using BackwardPass = detail::Pass<T>;

/// One call, from its checks until it is a node of the tape or, where no gradient flows or a NoGrad
/// is alive, only a value:
///
///   Recording<T> call({"softmax"}, x);
///   const Out<T, 2> p = call.output(x.shape());
///   softmax_forward(x.value(), p, call.context());
///   call.save_output();
///   return call.finish(p, [p, to_x = call.target(x)](BackwardPass<T>& pass, In<T, 2> dp) {
///     pass.assign([&](Out<T, 2> dx) { softmax_backward(dp, p, dx, pass.context()); }, to_x);
///   });
///
/// Where forward throws, the tape is as it was.
template <Scalar T>
class Recording {
 public:
  /// Of a function of this name and its inputs, at least one of them there; `{}` for those that are
  /// not. Throws ArgumentError for inputs of several tapes, or of a step before clear(), and where
  /// the tape has been swept.
  template <int... R>
  explicit Recording(detail::NodeName name, const Variable<T, R>&... inputs) : name_(name) {
    Index position = 0;
    (look_at(inputs.handle(), position++), ...);
    require(tape_ != nullptr, name.text, "no input is a variable, expected at least one");
    recorded_ = recorded_ && tape_->records();
    require_recordable();
    nodes_ = tape_->count();
    mark_ = tape_->closures.mark();
    scope_.start(tape_->profile, name.text,
                 tape_->recomputing != 0 ? &OpProfile::recomputed : &OpProfile::forward,
                 tape_->context.flops);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    while (saved_ != nullptr) {
      detail::SavedValue<T>* const next = saved_->next;
      std::destroy_at(saved_);
      saved_ = next;
    }
    if (tape_ != nullptr && tape_->count() == nodes_) tape_->closures.rewind(mark_);
  }

  /// What the tape was made with.
  const Context& context() const { return tape_->context; }
  /// The tape's own.
  detail::TapeCore<T>& tape() const { return *tape_; }
  /// Whether this becomes a node: otherwise nothing has to be kept.
  bool recorded() const { return recorded_; }
  /// Makes a node of it although no input has a gradient: there are parameters inside.
  void record_anyway() {
    recorded_ = tape_->records();
    require_recordable();
  }

  /// The elements of the output, dense and without values. Throws ShapeError, std::bad_alloc.
  template <int R>
  Out<T, R> output(const Shape<R>& shape) {
    output_ = detail::StorageRef<T>::make(shape.size(), tape_->context.memory);
    return {shape.size() == 0 ? nullptr : output_->own, shape};
  }
  /// Memory that backward reads beside the output; `{}` where nothing is recorded.
  template <int R>
  Out<T, R> kept(const Shape<R>& shape) {
    return recorded_ ? scratch(shape) : Out<T, R>();
  }
  /// The same also where nothing is recorded, until this call ends.
  template <int R>
  Out<T, R> scratch(const Shape<R>& shape) {
    auto storage = detail::StorageRef<T>::make(shape.size(), tape_->context.memory);
    const Out<T, R> view(shape.size() == 0 ? nullptr : storage->own, shape);
    hold(storage);
    return view;
  }

  /// The elements of an input, for backward to read.
  template <int R>
  In<T, R> save(const Variable<T, R>& x) {
    if (recorded_ && !x.absent()) hold(x.handle().storage);
    return x.value();
  }
  /// Keeps the output for backward to read.
  void save_output() {
    if (recorded_) hold(output_);
  }

  /// Where the gradient of an input goes: memory to overwrite, always.
  template <int R>
  auto target(const Variable<T, R>& x) const {
    return detail::target_of<detail::Wanted::always>(x);
  }
  /// The same; `{}` where nobody asks for it.
  template <int R>
  auto optional_target(const Variable<T, R>& x) const {
    return detail::target_of<detail::Wanted::where_needed>(x);
  }
  /// The gradient itself, to be added to; `{}` where nobody asks for it.
  template <int R>
  auto added_target(const Variable<T, R>& x) const {
    return detail::target_of<detail::Wanted::added>(x);
  }

  /// The output as a variable. backward(pass, dy) is called in the sweep, once, if anything flows
  /// here; what it captures is destroyed after that call. y is the output, or another view of all
  /// of it.
  template <int R, class Backward>
  Variable<T, R> finish(const In<T, R>& y, Backward&& backward) {
    detail::Handle<T> handle{tape_, detail::no_node, tape_->step, output_};
    if (!recorded_) {
      scope_.finish();
      return {handle, y};
    }
    using Node = detail::Node<T>;
    using Held = Closure<R, std::decay_t<Backward>>;
    tape_->reserve();
    void* const room = tape_->closures.template room_for<Held>();
    Node node;
    node.closure =
        ::new (room) Held{std::forward<Backward>(backward),
                          y.size() == 0 ? 0 : y.data() - output_->begin, y.shape(), y.strides()};
    node.name = name_.text;
    node.run = [](void* closure, detail::Pass<T>& pass) {
      Held& held = *static_cast<Held*>(closure);
      held.backward(pass, pass.gradient(held.offset, held.shape, held.strides));
    };
    node.destroy = [](void* closure) { std::destroy_at(static_cast<Held*>(closure)); };
    node.saved = std::exchange(saved_, nullptr);
    node.count = output_->count;
    handle.node = tape_->count();
    tape_->nodes.push_back(std::move(node));
    scope_.finish();
    return {handle, y};
  }
  /// The same of an output that is there already: all elements of a variable without gradient.
  template <int R, class Backward>
  Variable<T, R> finish(const Variable<T, R>& y, Backward&& backward) {
    output_ = y.handle().storage;
    return finish(y.value(), std::forward<Backward>(backward));
  }

 private:
  template <int R, class Backward>
  struct Closure {
    Backward backward;
    Index offset;
    Shape<R> shape, strides;
  };

  void look_at(const detail::Handle<T>& input, Index position) {
    if (input.tape == nullptr) return;
    if (tape_ == nullptr) tape_ = input.tape;
    require(input.tape == tape_, name_.text, "input ", position,
            " is of another tape, expected all of them of one");
    require(input.step == tape_->step, name_.text, "input ", position,
            " is of a step before clear(), expected one of this step");
    recorded_ = recorded_ || input.node != detail::no_node;
  }
  void require_recordable() const {
    require(!recorded_ || tape_->may_record(), name_.text,
            "the tape has been swept by backward, expected clear() before the next step");
  }
  void hold(const detail::StorageRef<T>& storage) {
    void* const room = tape_->closures.template room_for<detail::SavedValue<T>>();
    saved_ = ::new (room) detail::SavedValue<T>{storage, storage->version, saved_};
  }

  detail::NodeName name_;
  detail::TapeCore<T>* tape_ = nullptr;
  bool recorded_ = false;
  Index nodes_ = 0;             // of the tape when this began
  detail::Stack::Mark mark_{};  // and what they had taken
  detail::StorageRef<T> output_;
  detail::SavedValue<T>* saved_ = nullptr;
  detail::ProfileScope scope_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
