// The tape: what a forward pass was computed from, so that one sweep gives the gradients. It holds
// no formula: nodes call the forward and backward of the library's operations, or of the user's.
#pragma once

#include "headwise/autograd/recording.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Records what is computed from its variables, and sweeps back over it.
///
///   Tape<float> tape(context);
///   const auto x = tape.constant(batch);                     // no gradient
///   const auto w = tape.parameter(weights, d_weights);       // its gradient is added to d_weights
///   const auto loss = mean(multiply(linear(x, w), target));
///   tape.backward(loss);
///   tape.clear();                                            // the next step, in the same memory
///
/// A tape and its variables belong to one thread (operations run on the context's threads). Values
/// are given back as soon as neither a variable nor a node holds them, gradients as soon as they
/// have been passed. After a first step of the same shapes it takes no more from context.memory
/// than that step did, and with recycled memory nothing from the system.
template <Scalar T>
class Tape {
 public:
  /// An empty tape, which fills a profile where one is given. What the context refers to and the
  /// profile must outlive it. Throws ArgumentError for a context without memory.
  explicit Tape(const Context& context, TapeProfile* profile = nullptr) : core_(context, profile) {}
  /// The same with a default context.
  Tape() : Tape(Context()) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The caller's elements, without a gradient. They are viewed: they must outlive the step.
  template <int R>
  Variable<T, R> constant(const In<T, R>& value) {
    require_countable("Tape::constant", "value", value);
    return leaf(value, detail::no_node);
  }
  template <int R>
  void constant(const Tensor<T, R>&& temporary) = delete;  // gone before it is used

  /// The caller's elements, whose gradient backward adds to `gradient`. Both are viewed.
  ///
  /// value      [...]   in
  /// gradient   [...]   added to in backward; of the strides of value, apart from it
  ///
  /// The same parameter may be made a variable any number of times. Throws ShapeError, and
  /// ArgumentError where the tape has been swept; std::bad_alloc.
  template <int R>
  Variable<T, R> parameter(const In<T, R>& value, const InOut<T, R>& gradient) {
    constexpr std::string_view function = "Tape::parameter";
    require_countable(function, "value", value);
    require_shape(function, "gradient", gradient, value.shape(), "the shape of value");
    for (int r = 0; r < R; ++r) {
      if (value.extent(r) <= 1 || value.stride(r) == gradient.stride(r)) continue;
      raise<ShapeError>("Tape::parameter: strides of gradient are ", gradient.strides(),
                        ", expected those of value, ", value.strides());
    }
    require_apart(function, {"gradient", gradient}, {{"value", value}});
    if (!core_.records()) return leaf(value, detail::no_node);
    require_recordable(function);
    Variable<T, R> variable = leaf(value, core_.count());
    detail::Node<T> node;
    node.name = "parameter";
    node.to_caller = true;
    node.callers = gradient.data();
    add(std::move(node));
    return variable;
  }
  template <int R>
  void parameter(const Tensor<T, R>&& temporary, const InOut<T, R>& gradient) = delete;

  /// The caller's elements, whose gradient the tape keeps: see gradient(). They are viewed where
  /// they are dense, and copied otherwise. Throws ShapeError, and ArgumentError where the tape has
  /// been swept; std::bad_alloc.
  template <int R>
  Variable<T, R> input(const In<T, R>& value) {
    constexpr std::string_view function = "Tape::input";
    require_countable(function, "value", value);
    if (!core_.records()) return leaf(value, detail::no_node);
    require_recordable(function);
    Variable<T, R> variable = leaf(value, core_.count());
    detail::Node<T> node;
    node.name = "input";
    node.count = value.size();
    node.watched = true;
    if (value.dense()) {
      add(std::move(node));
      return variable;
    }
    detail::Handle<T> handle = variable.handle();
    handle.storage = detail::StorageRef<T>::make(value.size(), core_.context.memory);
    const Out<T, R> own(handle.storage->own, value.shape());
    detail::combine_into<T, R>(kernels::Combination::first, value, own, core_.context);
    add(std::move(node));
    return {handle, own};
  }
  template <int R>
  void input(const Tensor<T, R>&& temporary) = delete;

  /// Keeps the gradient of a variable (and of what it is a view of) for gradient(). Throws
  /// ArgumentError for a variable that has none, and where the tape has been swept.
  template <int R>
  void watch(const Variable<T, R>& x) {
    require_of_this("Tape::watch", "x", x);
    require(x.has_gradient(), "Tape::watch",
            "x has no gradient, expected what is computed from a parameter or an input");
    require_recordable("Tape::watch");
    core_.node(x.handle().node).watched = true;
  }

  /// The gradient of an input or of a watched variable, as backward left it; of a parameter, the
  /// caller's. Valid until clear(). Throws ArgumentError before backward, and for others.
  template <int R>
  In<T, R> gradient(const Variable<T, R>& x) {
    constexpr std::string_view function = "Tape::gradient";
    require_of_this(function, "x", x);
    require(core_.state == detail::TapeCore<T>::State::swept, function,
            "backward has not come to its end, expected it before");
    const bool known = x.has_gradient() && x.handle().node < core_.count();
    const bool kept =
        known && (core_.node(x.handle().node).watched || core_.node(x.handle().node).to_caller);
    require(kept, function, "x was not watched, expected watch(x) before backward");
    const auto target = detail::target_of<detail::Wanted::added>(x);
    return core_.gradients.view(core_.node(target.node), target.offset, target.shape,
                                target.strides);
  }

  /// The elements of a value that the tape has made, to be written to. A node that kept them for
  /// backward makes backward refuse then. Throws ArgumentError for the caller's elements.
  template <int R>
  Out<T, R> mutable_value(const Variable<T, R>& x) {
    constexpr std::string_view function = "Tape::mutable_value";
    require_of_this(function, "x", x);
    const detail::StorageRef<T>& storage = x.handle().storage;
    require(storage->own != nullptr, function,
            "x is the caller's memory, expected a value of the tape's (write there, and tell it by "
            "mark_written)");
    ++storage->version;
    return {storage->own + (x.value().data() - storage->begin), x.shape(), x.value().strides()};
  }
  /// Says that the caller has written to elements that a variable views: a node that kept them for
  /// backward makes backward refuse then.
  template <int R>
  void mark_written(const Variable<T, R>& x) {
    require_of_this("Tape::mark_written", "x", x);
    ++x.handle().storage->version;
  }

  /// Adds the gradients of a loss of one element to those of the parameters, and keeps those of
  /// what is watched.
  ///
  /// Once a step: clear() comes before the next. Throws ArgumentError or ShapeError before anything
  /// is written: for a loss of another tape or step, one that no gradient flows from, a value that
  /// has been written to since a node kept it; std::bad_alloc, before anything is written or in the
  /// middle: the parameters' gradients are then added to in part, and the tape is to be cleared.
  template <int R>
  void backward(const Variable<T, R>& loss) {
    require(loss.size() == 1, "Tape::backward", "loss is ", loss.shape(),
            ", expected one element (or pass its gradient)");
    Shape<R> ones, strides;
    for (int r = 0; r < R; ++r) ones[r] = 1;
    const T one = T(1);
    backward(loss, In<T, R>(&one, ones, strides));
  }
  /// The same from dy [...], the gradient of y [...].
  template <int R>
  void backward(const Variable<T, R>& y, const In<T, R>& dy) {
    using State = typename detail::TapeCore<T>::State;
    constexpr std::string_view function = "Tape::backward";
    require_of_this(function, "loss", y);
    require(core_.state == State::recording, function,
            "it has been called before, expected once until clear()");
    require(y.has_gradient(), function,
            "loss has no gradient, expected what is computed from a parameter or an input");
    require_shape(function, "dy", dy, y.shape(), "the shape of y");
    core_.require_unchanged(0);
    core_.state = State::sweeping;
    core_.gradients.add(detail::target_of<detail::Wanted::added>(y), dy);
    core_.sweep(0);
    core_.gradients.forget_pieces();
    core_.state = State::swept;
  }

  /// Forgets what was recorded and begins the next step in the same memory: variables of this one
  /// are refused from here on, but their values stay with them.
  void clear() {
    core_.drop_nodes(0);
    core_.closures.rewind({});
    core_.gradients.forget_pieces();
    core_.state = detail::TapeCore<T>::State::recording;
    ++core_.step;
  }

  /// How many calls, parameters and inputs are recorded.
  Index size() const { return core_.count(); }
  /// What it was made with; with a profile, it counts FLOPs.
  const Context& context() const { return core_.context; }
  /// The tape's own.
  detail::TapeCore<T>& core() { return core_; }

 private:
  template <int R>
  Variable<T, R> leaf(const In<T, R>& value, Index node) {
    detail::Handle<T> handle{&core_, node, core_.step, {}};
    handle.storage = detail::StorageRef<T>::refer_to(value.data(), core_.context.memory);
    return {handle, value};
  }
  void add(detail::Node<T>&& node) {
    core_.reserve();
    core_.nodes.push_back(std::move(node));
  }
  void require_recordable(std::string_view function) const {
    require(core_.may_record(), function,
            "the tape has been swept by backward, expected clear() before the next step");
  }
  template <int R>
  void require_of_this(std::string_view function, std::string_view argument,
                       const Variable<T, R>& x) const {
    require(x.handle().tape == &core_, function, argument,
            " is of another tape, expected one of this");
    require(x.handle().step == core_.step, function, argument,
            " is of a step before clear(), expected one of this step");
  }

  detail::TapeCore<T> core_;
};

/// While it is alive, what is computed on a tape is a value alone: nothing is recorded, and no
/// gradient flows through it.
template <Scalar T>
class NoGrad {
 public:
  /// Of this tape, which must outlive it.
  explicit NoGrad(Tape<T>& tape) : NoGrad(tape.core()) {}
  /// The tape's own.
  explicit NoGrad(detail::TapeCore<T>& core) : core_(core) { ++core_.values_only; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;
  ~NoGrad() { --core_.values_only; }

 private:
  detail::TapeCore<T>& core_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
