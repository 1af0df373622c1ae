// What optimisers share: groups of parameters with options of their own, tensors of state beside
// them, and the number of steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/optim/parameter_runs.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Whether an optimiser may have taken so many: a double tells each number of them from the next.
constexpr bool may_be_steps(std::int64_t steps) {
  return steps >= 0 && steps <= std::int64_t{1} << 53;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Parameters that are stepped with the same options.
template <Scalar T, class Options>
struct OptimizerGroup {
  ParameterList<T> parameters;          // what is stepped
  Options options;                      // may be changed between steps
  std::vector<Tensor<T, 1>> state;      // [elements]: kind after kind, as the parameters stand
  std::vector<std::string_view> kinds;  // of state: "m", "v"

  /// State of one kind of one parameter.
  Tensor<T, 1>& state_of(std::size_t kind, std::size_t parameter) {
    return state[kind * parameters.size() + parameter];
  }
  /// The same, to be read.
  const Tensor<T, 1>& state_of(std::size_t kind, std::size_t parameter) const {
    return state[kind * parameters.size() + parameter];
  }
};

/// Groups, their state and the number of steps: plain data, to be walked and written to. What a
/// step does stands in Sgd and AdamW.
template <Scalar T, class Options>
class Optimizer {
 public:
  /// A group, as add_group makes it.
  using Group = OptimizerGroup<T, Options>;

  /// Adds parameters that are stepped with these options; their state is 0. What the list views has
  /// to outlive the optimiser.
  ///
  /// Throws   ArgumentError for a parameter without a gradient, a name or an element, of a value or
  ///          a gradient, that is in a group already, options out of range and after the first
  ///          step; std::bad_alloc. The optimiser then is as it was.
  void add_group(ParameterList<T> parameters, const Options& options,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    constexpr std::string_view function = "Optimizer::add_group";
    options.template require_step_options<T>(function);
    parameters.require_gradients(function);
    require(steps_ == 0, function, steps_,
            " steps were taken, expected all groups before the first");
    for (const Group& group : groups_) {
      for (const Parameter<T>& there : group.parameters) {
        for (const Parameter<T>& p : parameters) {
          require(p.name != there.name, function, "parameter ", p.name, " is in a group already");
          require(!detail::share_elements(p, there), function, "parameter ", p.name,
                  " shares elements with ", there.name,
                  ", which is in a group already: expected each once");
        }
      }
    }
    Group group{std::move(parameters), options, {}, options.state_kinds()};
    for (std::size_t kind = 0; kind < group.kinds.size(); ++kind) {
      for (const Parameter<T>& p : group.parameters) {
        group.state.emplace_back(Shape<1>(p.view.size()), memory);
      }
    }
    groups_.push_back(std::move(group));
  }

  /// The groups; their options may be changed between steps.
  std::span<Group> groups() { return groups_; }
  /// The same, to be read.
  std::span<const Group> groups() const { return groups_; }

  /// Sets the learning rate of every group: what a schedule says of the step that comes.
  void set_learning_rate(double learning_rate) {
    for (Group& group : groups_) group.options.learning_rate = learning_rate;
  }

  /// The steps that were taken.
  std::int64_t steps() const { return steps_; }
  /// As if so many had been taken: for a state that was loaded. Throws ArgumentError for a number
  /// below 0 or above 2^53.
  void set_steps(std::int64_t steps) {
    require(detail::may_be_steps(steps), "Optimizer::set_steps", "steps is ", steps,
            ", expected 0 to 2^53");
    steps_ = steps;
  }

  /// f(tensor) for each tensor of state, a NamedTensor<T> in the shape of its parameter: "m.W_Q".
  template <class F>
  void for_each_state(F&& f) {
    visit_state<T>(groups_, f);
  }
  /// The same of NamedTensor<const T>, to be read.
  template <class F>
  void for_each_state(F&& f) const {
    visit_state<const T>(groups_, f);
  }

 protected:
  /// Without groups.
  Optimizer() = default;
  ~Optimizer() = default;
  /// A copy has state of its own, and steps the same parameters.
  Optimizer(const Optimizer&) = default;
  /// Takes groups, state and steps.
  Optimizer(Optimizer&&) noexcept = default;
  /// A copy has state of its own, and steps the same parameters.
  Optimizer& operator=(const Optimizer& other) {
    Optimizer copy(other);  // where memory runs out, this is as it was
    return *this = std::move(copy);
  }
  /// Takes groups, state and steps.
  Optimizer& operator=(Optimizer&&) noexcept = default;

  /// Throws ArgumentError where there is nothing to step.
  void require_groups(std::string_view function) const {
    const bool any = std::any_of(groups_.begin(), groups_.end(),
                                 [](const Group& group) { return !group.parameters.empty(); });
    require(any, function, "there are no parameters, expected a group of them");
  }

  std::vector<Group> groups_;  // as they were added
  std::int64_t steps_ = 0;     // taken

 private:
  template <class U, class Groups, class F>
  static void visit_state(Groups& groups, F& f) {
    for (auto& group : groups) {
      for (std::size_t kind = 0; kind < group.kinds.size(); ++kind) {
        for (std::size_t n = 0; n < group.parameters.size(); ++n) {
          const Parameter<T>& p = group.parameters[n];
          f(NamedTensor<U>{std::string(group.kinds[kind]) + "." + p.name,
                           p.rank,
                           {group.state_of(kind, n).data(), p.view.shape()}});
        }
      }
    }
  }
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The rule of a factor of parameters of T, which 1e300 is not for float.
template <class T>
void require_finite_factor(std::string_view function, std::string_view option, double value) {
  require(is_finite_option(T(value)), function, option, " is ", value,
          ", expected a number that is finite in the parameters' type");
}
/// The rule of one that is a number from 0 on.
template <class T>
void require_from_0(std::string_view function, std::string_view option, double value) {
  require(is_finite_option(T(value)) && value >= 0, function, option, " is ", value,
          ", expected 0 or more, finite in the parameters' type");
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
