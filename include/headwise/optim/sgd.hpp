// Gradient descent, with momentum where it is asked for.
#pragma once

#include "headwise/optim/gradients.hpp"
#include "headwise/optim/optimizer.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Options of Sgd; the defaults are PyTorch's.
struct SgdOptions {
  double learning_rate = 1e-3;  // >= 0
  double momentum = 0;          // >= 0; 0 for none, and no state
  double dampening = 0;         // how much of a gradient does not reach the velocity
  bool nesterov = false;        // look ahead along the velocity: momentum above 0, no dampening
  double weight_decay = 0;      // >= 0, times the value, added to the gradient

  /// Throws ArgumentError for one that is out of range.
  template <Scalar T>
  void require_step_options(std::string_view function) const {
    detail::require_from_0<T>(function, "learning_rate", learning_rate);
    detail::require_from_0<T>(function, "momentum", momentum);
    detail::require_finite_factor<T>(function, "dampening", dampening);
    require(!nesterov || (momentum > 0 && !(dampening < 0) && !(dampening > 0)), function,
            "nesterov is set, expected a momentum above 0 and no dampening with it");
    detail::require_from_0<T>(function, "weight_decay", weight_decay);
  }
  /// The names of its tensors of state.
  std::vector<std::string_view> state_kinds() const {
    return momentum > 0 ? std::vector<std::string_view>{"velocity"}
                        : std::vector<std::string_view>{};
  }
};

/// With, an element each, the gradient g, the value w and the velocity u:
///
///   g = g + decay w
///   u = momentum u + (1 - dampening) g; the first time u = g
///   g = u, or g + momentum u with nesterov
///   w = w - rate g
///
/// in the order of operations of PyTorch 2.6 (torch.optim.SGD, for each tensor). State: u of every
/// parameter whose group has momentum when it is added; one below 7.9e-31 (1.5e-300 in double)
/// becomes 0.
/// Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in
/// deep learning", ICML 2013.
template <Scalar T>
class Sgd : public Optimizer<T, SgdOptions> {
 public:
  /// Without groups; see add_group.
  Sgd() = default;
  /// All parameters with the same options. Throws as add_group does.
  explicit Sgd(ParameterList<T> parameters, const SgdOptions& options = {},
               std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    this->add_group(std::move(parameters), options, memory);
  }

  /// One step along the gradients, which stay as they are.
  ///
  /// An element is computed from itself alone: the same bits for any strides, number of threads and
  /// instruction set. NaN in a gradient shows in the value from then on.
  /// Work    3 FLOPs an element, 2 more with weight decay, 3 with momentum from the second step on,
  ///         2 with nesterov.
  /// Throws  ArgumentError without groups and for options out of range, before anything is written.
  void step(const Context& context = {}) { step(1, context); }
  /// The same with gradients times gradient_scale, a finite number: a clip_factor, or 1 / n of n
  /// batches.
  void step(double gradient_scale, const Context& context = {}) {
    constexpr std::string_view function = "Sgd::step";
    this->require_groups(function);
    for (const auto& group : this->groups_) {
      group.options.template require_step_options<T>(function);
      require((group.options.momentum > 0) == !group.kinds.empty(), function,
              "momentum is 0 where it was not when the group was added, or the other way round");
    }
    detail::require_finite_factor<T>(function, "gradient_scale", gradient_scale);
    const bool first = this->steps_ == 0;
    const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
    for (auto& group : this->groups_) {
      const SgdOptions& o = group.options;
      const bool moves = !group.kinds.empty();
      const kernels::SgdStep<T> now = numbers(o, first, gradient_scale);
      detail::for_tasks(group.parameters, context, [&](const Parameter<T>& p, const auto& task) {
        T* const u = moves ? group.state_of(0, task.parameter).data() : nullptr;
        detail::update_runs(
            p, task, [&](T* value, const T* gradient, Index first_element, Index count) {
              run.sgd(now, value, gradient, moves ? u + first_element : nullptr, count);
            });
      });
      const std::int64_t each =
          3 + (now.decays ? 2 : 0) + (moves && !first ? 3 : 0) + (now.nesterov ? 2 : 0);
      context.count_flops(each * group.parameters.elements(), each * group.parameters.elements());
    }
    ++this->steps_;  // not where an executor threw
  }

 private:
  static kernels::SgdStep<T> numbers(const SgdOptions& o, bool first, double scale) {
    return {.gradient_scale = T(scale),
            .weight_decay = T(o.weight_decay),
            .momentum = T(o.momentum),
            .one_minus_dampening = T(1 - o.dampening),
            .minus_rate = T(-o.learning_rate),
            .least_velocity = kernels::least_moment<T>(),
            .decays = o.weight_decay > 0,
            .first = first,
            .nesterov = o.nesterov};
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
