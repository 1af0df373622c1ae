// Parameters that are there to be saved and loaded: what refuses them.
#include "headwise/optim/adamw.hpp"
#include "headwise/optim/gradients.hpp"
#include "headwise/optim/sgd.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_parameters_without_gradients {

using namespace headwise_tests;

namespace {

/// Gives `call` a list whose second parameter has no gradient, and sees that nothing is written.
Refusal refused_by(const std::string& function, void (*call)(const ParameterList<double>&)) {
  const auto given = [call](Witness& m) {
    ParameterList<double> list;
    list.add("w", m.tensor(2, 3), m.tensor(2, 3));
    list.add("b", m.tensor(3));
    call(list);
  };
  return argument_error(
      function + ": parameter b has no gradient, expected one, as collect adds it", given);
}

const Refusals refusals({
    refused_by("gradient_norm", [](const auto& list) { (void)gradient_norm(list); }),
    refused_by("scale_gradients", [](const auto& list) { scale_gradients(list, 2); }),
    refused_by("clip_grad_norm", [](const auto& list) { clip_grad_norm(list, 1); }),
    refused_by("zero_gradients", [](const auto& list) { zero_gradients(list); }),
    refused_by("Optimizer::add_group",
               [](const auto& list) { (void)AdamW<double>(list, AdamWOptions()); }),
    refused_by("Optimizer::add_group",
               [](const auto& list) { (void)Sgd<double>(list, SgdOptions()); }),
});

}  // namespace

TEST_CASE("gradients of parameters that have none are refused, and nothing is written",
          "[bad_calls]") {
  refusals.check();
}

}  // namespace bad_calls_parameters_without_gradients
