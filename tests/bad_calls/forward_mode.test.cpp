// Dual tensors and derivatives along directions: shapes that do not agree, modules of other shapes.
#include "headwise/autograd/forward_mode.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_forward_mode {

using namespace headwise_tests;

namespace {

using Attention = MultiHeadAttention<double>;

const auto same = [](const auto& x) { return x; };
const auto step = [](const auto&, auto&) {};

/// A module, and a direction of one that is `wider`.
struct Directed {
  Attention& module;
  Attention::Gradients& u;

  Directed(Witness& m, Index wider)
      : module(m.make<Attention>(6, 2)),
        u(m.make<Attention::Gradients>(Attention(6 + wider, 2).zero_gradients())) {
    m.keep(module);
  }
};

const Refusals tensor_refusals({
    shape_error("along: u is [3, 4], expected [4, 3] (the shape of x)",
                [](Witness& m) { along(m.tensor(4, 3), m.tensor(3, 4)); }),
    shape_error("along: x is [4, 3] at a null address, expected its elements",
                [](Witness& m) { along(Witness::null(4, 3), m.tensor(4, 3)); }),
    shape_error("along: u is [4, 3] at a null address, expected its elements",
                [](Witness& m) { along(m.tensor(4, 3), Witness::null(4, 3)); }),
    shape_error("along: u is [0, 0], expected [4, 3] (the shape of x)",
                [](Witness& m) { jvp(same, m.tensor(4, 3), In<double, 2>()); }),
    shape_error("along: u is [3, 4], expected [4, 3] (the shape of x)",
                [](Witness& m) { hessian_vector_product(same, m.tensor(4, 3), m.tensor(3, 4)); }),
    shape_error("hessian_vector_product: the gradient is [3, 4], expected [4, 3] (the shape of x)",
                [](Witness& m) {
                  const auto turned = [](const auto& x) {
                    return contiguous(as_view(transpose(x, 0, 1)));
                  };
                  hessian_vector_product(turned, m.tensor(4, 3), m.tensor(4, 3));
                }),
});

const Refusals module_refusals({
    shape_error("along: u.W_Q is [8, 8], expected [6, 6] (the module's options)",
                [](Witness& m) {
                  const Directed call(m, 2);
                  along(call.module, call.u);
                }),
    shape_error("along: u.b_O is [0], expected [6] (the module's options)",
                [](Witness& m) {
                  const Directed call(m, 0);
                  call.u.b_o = {};
                  along(call.module, call.u);
                }),
    shape_error("along: W_Q is [0, 0], expected [6, 6] (the module's options)",
                [](Witness& m) {
                  Directed call(m, 0);
                  Attention moved_from(6, 2);
                  const Attention now(std::move(moved_from));
                  along(moved_from, call.u);
                }),
    shape_error("along: u.W_Q is [8, 8], expected [6, 6] (the module's options)",
                [](Witness& m) {
                  const Directed call(m, 2);
                  hessian_vector_product(step, call.module, call.u);
                }),
    shape_error("hessian_vector_product: gradients.b_O is [0], expected [6] (the module's options)",
                [](Witness& m) {
                  const Directed call(m, 0);
                  const auto loses = [](const auto&, auto& gradients) { gradients.b_o = {}; };
                  hessian_vector_product(loses, call.module, call.u);
                }),
});

}  // namespace

TEST_CASE("directions of another shape, and gradients of another, are refused", "[bad_calls]") {
  tensor_refusals.check();
}

TEST_CASE("directions of another module, and gradients that lack a tensor, are refused",
          "[bad_calls]") {
  module_refusals.check();
}

}  // namespace bad_calls_forward_mode
