// AdamW: Adam with weight decay that is apart from the gradient.
#pragma once

#include <cmath>

#include "headwise/optim/gradients.hpp"
#include "headwise/optim/optimizer.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Options of AdamW; the defaults are PyTorch's.
struct AdamWOptions {
  double learning_rate = 1e-3;  // >= 0
  double beta1 = 0.9;           // in [0, 1): how much of m is kept
  double beta2 = 0.999;         // in [0, 1): how much of v is kept
  double epsilon = 1e-8;        // >= 0, added to the root
  double weight_decay = 1e-2;   // >= 0, times the learning rate

  /// Throws ArgumentError for one that is out of range, of parameters of T.
  template <Scalar T>
  void require_step_options(std::string_view function) const {
    const auto require_beta = [&](std::string_view option, double value) {
      require(is_finite_option(value) && value >= 0 && value < 1, function, option, " is ", value,
              ", expected 0 or more and below 1");
    };
    detail::require_from_0<T>(function, "learning_rate", learning_rate);
    require_beta("beta1", beta1);
    require_beta("beta2", beta2);
    detail::require_from_0<T>(function, "epsilon", epsilon);
    require(epsilon == 0 || !(T(epsilon) == T(0)), function, "epsilon is ", epsilon,
            " and rounds to 0 in the parameters' type, expected a greater one, or 0");
    detail::require_from_0<T>(function, "weight_decay", weight_decay);
  }
  /// The names of its tensors of state.
  std::vector<std::string_view> state_kinds() const { return {"m", "v"}; }
};

/// With step t = 1, 2, ... and, an element each, the gradient g and the value w:
///
///   w = w - rate decay w
///   m = beta1 m + (1 - beta1) g
///   v = beta2 v + (1 - beta2) g^2
///   w = w - rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
///
/// in the order of operations of PyTorch 2.6 (torch.optim.AdamW, for each tensor). State: m and v
/// of every parameter. Where epsilon is at least 2^-30, beside which they are not felt, an m below
/// 7.9e-31 and a v below 1.2e-38 (1.5e-300 and 2.2e-308 in double) become 0.
/// Source: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2019, arXiv 1711.05101;
/// Kingma, Ba, "Adam", 2015, arXiv 1412.6980.
template <Scalar T>
class AdamW : public Optimizer<T, AdamWOptions> {
 public:
  /// Without groups; see add_group.
  AdamW() = default;
  /// All parameters with the same options. Throws as add_group does.
  explicit AdamW(ParameterList<T> parameters, const AdamWOptions& options = {},
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    this->add_group(std::move(parameters), options, memory);
  }

  /// One step along the gradients, which stay as they are.
  ///
  /// An element is computed from itself alone: the same bits for any strides, number of threads and
  /// instruction set. NaN in a gradient shows in the value from then on.
  /// Work    15 FLOPs an element, in one pass over w, g, m and v.
  /// Throws  ArgumentError without groups and for options out of range, before anything is written.
  void step(const Context& context = {}) { step(1, context); }
  /// The same with gradients times gradient_scale, a finite number: a clip_factor, or 1 / n of n
  /// batches.
  void step(double gradient_scale, const Context& context = {}) {
    constexpr std::string_view function = "AdamW::step";
    this->require_groups(function);
    for (const auto& group : this->groups_)
      group.options.template require_step_options<T>(function);
    detail::require_finite_factor<T>(function, "gradient_scale", gradient_scale);
    const std::int64_t steps = this->steps_ + 1;
    const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
    for (auto& group : this->groups_) {
      const kernels::AdamWStep<T> now = numbers(group.options, steps, gradient_scale);
      detail::for_tasks(group.parameters, context, [&](const Parameter<T>& p, const auto& task) {
        T* const m = group.state_of(0, task.parameter).data();
        T* const v = group.state_of(1, task.parameter).data();
        detail::update_runs(p, task, [&](T* value, const T* gradient, Index first, Index count) {
          run.adamw(now, value, gradient, m + first, v + first, count);
        });
      });
      context.count_flops(15 * group.parameters.elements(), 15 * group.parameters.elements());
    }
    this->steps_ = steps;  // not where an executor threw
  }

 private:
  static kernels::AdamWStep<T> numbers(const AdamWOptions& o, std::int64_t steps, double scale) {
    const auto t = static_cast<double>(steps);
    const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
    const double weight = 1 - o.beta1;
    const bool tiny_are_unfelt = o.epsilon >= 0x1p-30;
    return {.gradient_scale = T(scale),
            .keep = T(1 - o.learning_rate * o.weight_decay),
            .one_minus_beta1 = T(weight),
            .rest_of_m = T(1 - weight),
            .beta2 = T(o.beta2),
            .one_minus_beta2 = T(1 - o.beta2),
            .root_correction = T(std::sqrt(correction2)),
            .epsilon = T(o.epsilon),
            .minus_step = T(-(o.learning_rate / correction1)),
            .near_gradient = weight >= 0.5,
            .least_moment = tiny_are_unfelt ? kernels::least_moment<T>() : T(0),
            .least_square = tiny_are_unfelt ? kernels::least_square<T>() : T(0)};
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
