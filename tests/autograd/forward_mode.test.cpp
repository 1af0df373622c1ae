// jvp and hessian_vector_product: on functions whose derivatives are known, over whole modules,
// and on the tape.
#include "headwise/autograd/forward_mode.hpp"

#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "support/catch.hpp"
#include "support/dual_pair.hpp"
#include "support/parameter_values.hpp"

namespace autograd_forward_mode {

using namespace headwise_tests;

namespace {

/// sum of x_n^3 / 3 and its gradient.
const auto cubes = [](const auto& x) {
  typename std::remove_cvref_t<decltype(x)>::value_type sum(0);
  for (const auto& element : x) sum = sum + element * element * element / 3;
  return sum;
};
const auto squares = [](const auto& x) {
  auto y = x;
  for (auto& element : y) element = element * element;
  return y;
};

/// The training step of a loss sum (y - target)^2 / 2 of self-attention.
struct AttentionStep {
  Tensor3<double> x, target;
  Path path = Path::flash;

  template <class T>
  void operator()(const MultiHeadAttention<T>& module,
                  MultiHeadAttentionGradients<T>& gradients) const {
    const auto in = convert<T>(In<double, 3>(x));
    MultiHeadAttentionCache<T> cache;
    auto dy =
        module.forward(in, {.mask = causal, .path = path, .weight_dropout = {0.2, 1, 2}}, cache);
    for_each_index(dy.shape(), [&](const Shape<3>& at) { dy(at) = dy(at) - T(target(at)); });
    (void)module.backward(dy, cache, gradients);
  }
};

/// One of next-token prediction by a decoder.
struct DecoderStep {
  Tensor2<std::int32_t> tokens, targets;

  template <class T>
  void operator()(const TransformerDecoder<T>& module,
                  TransformerDecoderGradients<T>& gradients) const {
    TransformerDecoderCache<T> cache;
    const Tensor<T, 2> logits = module.forward(In<std::int32_t, 2>(tokens), {}, cache);
    const In<std::int32_t, 1> wanted(targets.data(), Shape{targets.size()});
    Tensor<T, 1> lse(wanted.shape());
    Tensor<T, 2> d_logits(logits.shape());
    (void)cross_entropy_forward(In<T, 2>(logits), wanted, {}, lse);
    cross_entropy_backward(T(1), In<T, 2>(logits), wanted, lse, {}, d_logits);
    module.backward(d_logits, cache, gradients);
  }
};

/// A direction of random numbers.
template <class Module>
auto direction(const Module& module, std::uint64_t seed) {
  auto u = module.zero_gradients();
  draw_all(u, seed);
  return u;
}

template <class T, class Parameters>
Tensor1<T> flat(const Parameters& parameters) {
  const auto all = values_of<T>(parameters);
  Tensor1<T> x(static_cast<Index>(all.size()));
  std::copy(all.begin(), all.end(), x.begin());
  return x;
}

/// The gradient of a step at parameters that stand in one vector.
template <class Module, class T, class Step>
Tensor1<T> flat_gradient(const Step& step, const Module& like, const Tensor1<T>& at) {
  detail::ModuleOf<Module, T> module(like.options());
  Cut<T> cut(at);
  module.parameters().for_each(
      [&](const std::string&, auto view) { copy(cut.tensor(view.shape()), view); });
  auto gradients = module.zero_gradients();
  step(module, gradients);
  return flat<T>(gradients);
}

/// H u of a module against central differences of its gradient, and how symmetric H is.
template <class Module, class Step>
void check_module(const Step& step, const Module& module) {
  const auto u = direction(module, 11), w = direction(module, 12);
  const auto Hu = flat<double>(hessian_vector_product(step, module, u));
  const auto Hw = flat<double>(hessian_vector_product(step, module, w));
  const auto flat_u = flat<double>(u), flat_w = flat<double>(w);
  const auto at = [&](const Tensor1<long double>& x) { return flat_gradient(step, module, x); };
  const auto numeric = central_difference(at, flat<double>(module.parameters()), flat_u, 0x1p-15L);
  CHECK(greatest_error(Hu, numeric) < 1e-9);
  CHECK(error_between(InnerProduct(flat_w, Hu), InnerProduct(flat_u, Hw)) < 1e-12);
  CHECK(InnerProduct(Hu, Hu).sum > 1e-3L);
}

}  // namespace

TEST_CASE("jvp gives a function's value and its derivative along a direction", "[autograd]") {
  const Tensor2<double> x({1, 3}, {1, 2, -3}), u({1, 3}, {1, 0.5, 2});
  const auto number = jvp(cubes, x, u);
  CHECK(number.value == (1 + 8 - 27) / 3.0);
  CHECK(number.derivative == 1 + 2 + 18);
  const Jvp<Tensor2<double>> tensor = jvp(squares, x, u);
  CHECK(tensor.value(0, 2) == 9);
  CHECK(tensor.derivative(0, 1) == 2);
  CHECK(tensor.derivative(0, 2) == -12);
  // A view of a dual tensor that lives on is as good as a tensor.
  Tensor2<Dual<double>> kept;
  const auto view = [&](const Tensor2<Dual<double>>& y) {
    kept = squares(y);
    return slice(kept, 1, 1, 2);
  };
  CHECK(jvp(view, x, u).derivative(0, 1) == -12);
}

TEST_CASE("hessian_vector_product is the derivative of a gradient", "[autograd]") {
  const Tensor1<double> x({3}, {1, 2, -3}), u({3}, {1, 0.5, 2});
  const Tensor1<double> Hu = hessian_vector_product(squares, x, u);
  CHECK((Hu(0) == 2 && Hu(1) == 2 && Hu(2) == -12));
  // By duals of duals, from the function alone: <u, H u>.
  const auto slope = [&](const auto& at) {
    return Dual<double>(jvp(cubes, at, convert<Dual<double>>(In<double, 1>(u))).derivative);
  };
  CHECK(jvp(slope, x, u).derivative == static_cast<double>(InnerProduct(u, Hu).sum));
}

TEST_CASE("what is detached is a constant to products with the Hessian", "[autograd]") {
  const auto x = random_tensor<double>(Shape{3, 4}, 1), u = random_tensor<double>(Shape{3, 4}, 2);
  const auto gradient = [](const Tensor2<Dual<double>>& at) {
    Tape<Dual<double>> tape;
    const auto v = tape.input(at);
    const auto part = transpose(slice(v, 1, 1, 2), 0, 1);  // dy/dv = v, where v is not detached
    tape.backward(sum(part * detach(part)));
    return Tensor2<Dual<double>>(contiguous(tape.gradient(v)));
  };
  const auto dx = gradient(along(x, u));
  const auto Hu = hessian_vector_product(gradient, In<double, 2>(x), u);
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    CHECK(dx(at).value == (at[1] == 1 || at[1] == 2 ? x(at) : 0));
    CHECK(Hu(at) == 0);
  });
  Tape<Dual<Dual<double>>> twice;
  const Dual<Dual<double>> number(Dual<double>(2, 3), Dual<double>(4, 5));
  const Tensor1<Dual<Dual<double>>> moving({1}, {number}), none(Shape{0});
  CHECK(detach(twice.input(moving)).value()(0) == Dual<Dual<double>>(2));
  CHECK(detach(twice.input(none)).value().size() == 0);
}

TEST_CASE("a Hessian of attention is symmetric, and central differences of its gradient",
          "[autograd]") {
  const MultiHeadAttention<double> module({.d_model = 6,
                                           .num_heads = 2,
                                           .num_kv_heads = 1,
                                           .q_bias = true,
                                           .layer_norm = true,
                                           .seed = 3});
  AttentionStep step{random_tensor<double>(Shape{2, 5, 6}, 1),
                     random_tensor<double>(Shape{2, 5, 6}, 2)};
  for (const Path path : {Path::flash, Path::materialized}) {
    CAPTURE(path == Path::flash);
    step.path = path;
    check_module(step, module);
  }
}

TEST_CASE("a Hessian of a decoder is symmetric, and central differences of its gradient",
          "[autograd]") {
  TransformerDecoderOptions options;
  options.vocabulary = 7, options.max_length = 6, options.num_blocks = 2;
  options.block.d_model = 8, options.block.num_heads = 2;
  options.embedding_deviation = 0.5;
  const DecoderStep step{Tensor2<std::int32_t>(Shape{2, 4}, {1, 5, 0, 6, 2, 2, 3, 4}),
                         Tensor2<std::int32_t>(Shape{2, 4}, {5, 0, 6, 1, 2, 3, 4, 0})};
  check_module(step, TransformerDecoder<double>(options));
}

TEST_CASE("where a loss is least its Hessian is that of the slopes, of rows without gradient too",
          "[autograd]") {
  // At y = target the gradient is 0, but not its derivative: H = J^T J. What leaves out elements
  // whose gradient is 0 must ask for both.
  const MultiHeadAttention<double> module({.d_model = 6, .num_heads = 2, .layer_norm = true});
  const auto x = random_tensor<double>(Shape{1, 5, 6}, 1);
  const auto outputs = [&](const MultiHeadAttentionGradients<double>& u) {
    return along(module, u).forward(convert<Dual<double>>(In<double, 3>(x)),
                                    {.mask = causal, .weight_dropout = {0.2, 1, 2}});
  };
  // (Other kernels than those of double: of them y would not be the target to the last bit.)
  const auto still = outputs(module.zero_gradients());
  const AttentionStep step{x, contiguous(values(still))};
  const auto u = direction(module, 11), w = direction(module, 12);
  const auto slope = [&](const MultiHeadAttentionGradients<double>& v) {
    const auto y = outputs(v);
    Tensor1<double> Jv(y.size());
    for (Index n = 0; n < y.size(); ++n) Jv(n) = y.data()[n].derivative;
    return Jv;
  };
  const InnerProduct by_slopes(slope(w), slope(u));
  const InnerProduct by_hessian(flat<double>(w),
                                flat<double>(hessian_vector_product(step, module, u)));
  CHECK(error_between(by_hessian, by_slopes) < 1e-12);
  CHECK(by_slopes.sum != 0);
}

TEST_CASE("padding that attention hides reaches no Hessian, even if it is NaN", "[autograd]") {
  const MultiHeadAttention<double> module({.d_model = 6, .num_heads = 2});
  auto clean = random_tensor<double>(Shape{1, 5, 6}, 1);
  auto dirty = clean;
  for (Index n = 0; n < 6; ++n) dirty(0, 4, n) = std::numeric_limits<double>::quiet_NaN();
  for (const Path path : {Path::flash, Path::materialized}) {
    CAPTURE(path == Path::flash);
    const std::vector<Index> lengths{4};
    const auto product = [&](const Tensor3<double>& x) {
      const auto step = [&](const auto& m, auto& gradients) {
        using T = typename std::remove_cvref_t<decltype(m.parameters().w_o)>::value_type;
        const auto in = convert<T>(In<double, 3>(x));
        MultiHeadAttentionCache<T> cache;
        MultiHeadAttentionCall<T> call;
        call.mask = Mask::key_lengths(lengths), call.path = path;
        auto dy = m.forward(in, call, cache);
        for (Index n = 0; n < 6; ++n) dy(0, 4, n) = T(0);
        (void)m.backward(dy, cache, gradients);
      };
      return flat<double>(hessian_vector_product(step, module, direction(module, 11)));
    };
    const auto a = product(clean), b = product(dirty);
    CHECK(greatest_error(b, a) == 0);
    CHECK(InnerProduct(a, a).sum > 1e-3L);
  }
}

TEST_CASE("a tape of dual numbers gives the Hessian of what it has recorded", "[autograd]") {
  const auto gradient = [](const auto& at) {
    using T = typename std::remove_cvref_t<decltype(at)>::value_type;
    Tape<T> tape;
    const auto x = tape.input(In<T, 2>(at.data(), Shape{3, 4}));
    const auto y = softmax(x) * x;
    tape.backward(sum(y * y));
    Tensor1<T> dx(at.shape());
    const In<T, 2> found = tape.gradient(x);
    for_each_index(found.shape(), [&](const Shape<2>& i) { dx(4 * i[0] + i[1]) = found(i); });
    return dx;
  };
  const auto x = normal_vector(12, 1), u = normal_vector(12, 2), w = normal_vector(12, 3);
  const auto Hu = hessian_vector_product(gradient, x, u);
  const auto Hw = hessian_vector_product(gradient, x, w);
  CHECK(greatest_error(Hu, central_difference(gradient, x, u, 0x1p-14L)) < 1e-9);
  CHECK(error_between(InnerProduct(w, Hu), InnerProduct(u, Hw)) < 1e-13);
}

}  // namespace autograd_forward_mode
