// Linear, LayerNorm, shards, starts of weights and what walks parameters.
#include "support/refusal_rules.hpp"

namespace bad_calls_modules {

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

/// A layer of 5 inputs and 3 outputs; a call of 2 rows is pending.
struct LinearLayer {
  Witness& m;
  Linear<double>& layer = m.make<Linear<double>>(5, 3);
  Matrix x = m.tensor(2, 5), dy = m.tensor(2, 3);
  Linear<double>::Cache& cache = m.make<Linear<double>::Cache>();
  LinearParameters<double>& gradients = m.make<LinearParameters<double>>(layer.zero_gradients());
  bool backward = true;
  LinearLayer& pending() {
    (void)layer.forward(x, cache);
    return *this;
  }
  void call() {
    m.keep(layer), m.keep(cache), m.keep(gradients);
    if (backward) {
      (void)layer.backward(dy, cache, gradients, m.context());
    } else {
      (void)layer.forward(x, cache, m.context());
    }
  }
};

/// A layer norm of width 3; a call of 2 rows is pending.
struct NormLayer {
  Witness& m;
  LayerNorm<double>& layer = m.make<LayerNorm<double>>(3);
  Matrix x = m.tensor(2, 3), dy = m.tensor(2, 3);
  LayerNorm<double>::Cache& cache = m.make<LayerNorm<double>::Cache>();
  LayerNormParameters<double>& gradients =
      m.make<LayerNormParameters<double>>(layer.zero_gradients());
  bool backward = true;
  NormLayer& pending() {
    (void)layer.forward(x, cache);
    return *this;
  }
  void call() {
    m.keep(layer), m.keep(cache), m.keep(gradients);
    if (backward) {
      (void)layer.backward(dy, cache, gradients, m.context());
    } else {
      (void)layer.forward(x, cache, m.context());
    }
  }
};

template <class Layer>
Refusal forward(const std::string& message, void (*spoil)(Layer&)) {
  return shape_error(message, [=](Witness& memory) {
    Layer call{memory};
    call.backward = false;
    spoil(call);
    call.call();
  });
}
template <class Layer>
Refusal backward(const std::string& message, void (*spoil)(Layer&)) {
  return shape_error(message, [=](Witness& memory) {
    Layer call{memory};
    call.pending();
    spoil(call);
    call.call();
  });
}

using Lin = LinearLayer;
const Refusals linears({
    argument_error("Linear: in is -1, expected >= 0", [](Witness&) { Linear<double>(-1, 2); }),
    argument_error("Linear: out is -2, expected >= 0", [](Witness&) { Linear<double>(1, -2); }),
    forward<Lin>("Linear::forward: x is [2, 4], expected [2, 5] (the rows of W)",
                 [](Lin& c) { c.x = c.m.tensor(2, 4); }),
    forward<Lin>("Linear::forward: x is [-2, 5], expected extents of 0 or more",
                 [](Lin& c) { c.x = c.m.unfounded(-2, 5); }),
    forward<Lin>("Linear::forward: x is [2, 5] at a null address, expected its elements",
                 [](Lin& c) { c.x = c.m.null(2, 5); }),
    argument_error("Linear::backward: the cache is empty: pass it to forward first",
                   [](Witness& memory) { Lin{memory}.call(); }),
    backward<Lin>("Linear::backward: cache.x is [2, 4], expected [2, 5] (the rows of W)",
                  [](Lin& c) {
                    const Linear<double> other(4, 3);
                    (void)other.forward(c.m.tensor(2, 4), c.cache);
                  }),
    backward<Lin>("Linear::backward: dy is [2, 5], expected [2, 3] (the output)",
                  [](Lin& c) { c.dy = c.m.tensor(2, 5); }),
    backward<Lin>("Linear::backward: dy is [2, 3] at a null address, expected its elements",
                  [](Lin& c) { c.dy = c.m.null(2, 3); }),
    backward<Lin>("Linear::backward: gradients.w is [0, 0], expected [5, 3] (zero_gradients())",
                  [](Lin& c) { c.gradients.w = {}; }),
    backward<Lin>("Linear::backward: gradients.b is [5], expected [3] (zero_gradients())",
                  [](Lin& c) { c.gradients.b = Tensor1<double>(5); }),
});

using Norm = NormLayer;
const std::string no_epsilon = ", expected a finite number above 0";
const std::string moved_norm = "gamma is absent: a module that was moved from has none";
const Refusals norms({
    argument_error("LayerNorm: width is -1, expected >= 0",
                   [](Witness&) { LayerNorm<double>(-1); }),
    argument_error("LayerNorm: width is -1, expected >= 0",
                   [](Witness&) { LayerNorm<double>(-1, false); }),
    argument_error("LayerNorm: epsilon is 0" + no_epsilon,
                   [](Witness&) { LayerNorm<double>(3, true, 0); }),
    argument_error("LayerNorm: epsilon is inf" + no_epsilon,
                   [](Witness&) { LayerNorm<double>(3, true, infinity); }),
    argument_error("LayerNorm: epsilon is nan" + no_epsilon,
                   [](Witness&) { LayerNorm<double>(3, true, nan); }),
    argument_error("LayerNorm: epsilon is 1e+50, expected a number that the module's type tells "
                   "from 0 and infinity",
                   [](Witness&) { LayerNorm<float>(3, false, 1e50); }),
    forward<Norm>("LayerNorm::forward: x is [2, 4], expected [2, 3] (the width of the module)",
                  [](Norm& c) { c.x = c.m.tensor(2, 4); }),
    forward<Norm>("LayerNorm::forward: x is [2, 3] at a null address, expected its elements",
                  [](Norm& c) { c.x = c.m.null(2, 3); }),
    shape_error("LayerNorm::forward: x is [2, 4], expected [2, 3] (the width of the module)",
                [](Witness& m) {
                  const LayerNorm<double> plain(3, false);
                  (void)plain.forward(m.tensor(2, 4), m.context());
                }),
    argument_error("LayerNorm::forward: " + moved_norm,
                   [](Witness& memory) {
                     Norm c{memory};
                     c.backward = false;
                     const auto taken = std::move(c.layer);
                     c.call();
                   }),
    argument_error("LayerNorm::backward: " + moved_norm,
                   [](Witness& memory) {
                     Norm c{memory};
                     c.pending();
                     const auto taken = std::move(c.layer);
                     c.call();
                   }),
    argument_error("LayerNorm::backward: the cache is empty: pass it to forward first",
                   [](Witness& memory) { Norm{memory}.call(); }),
    backward<Norm>("LayerNorm::backward: cache.x is [2, 4], expected [2, 3] (the width of the "
                   "module)",
                   [](Norm& c) {
                     const LayerNorm<double> other(4);
                     (void)other.forward(c.m.tensor(2, 4), c.cache);
                   }),
    backward<Norm>("LayerNorm::backward: dy is [3, 3], expected [2, 3] (the output)",
                   [](Norm& c) { c.dy = c.m.tensor(3, 3); }),
    backward<Norm>("LayerNorm::backward: gradients.gamma is [0], expected [3] (zero_gradients())",
                   [](Norm& c) { c.gradients.gamma = {}; }),
    backward<Norm>("LayerNorm::backward: gradients.beta is [4], expected [3] (zero_gradients())",
                   [](Norm& c) { c.gradients.beta = Tensor1<double>(4); }),
});

// ---- what stands beside the modules -------------------------------------------------------------

Refusal shard(const std::string& message, Index first, Index count, bool layer_norm = false) {
  return argument_error("head_shard: " + message, [=](Witness& m) {
    auto& whole = m.keep(m.make<MultiHeadAttention<double>>(MultiHeadAttentionOptions{
        .d_model = 16, .num_heads = 8, .num_kv_heads = 4, .layer_norm = layer_norm}));
    (void)head_shard(whole, first, count);
  });
}
const std::string heads = ", expected at least one of heads 0 to 7",
                  groups = ", expected multiples of 2 (heads that share keys)";
const Index most = std::numeric_limits<Index>::max();

struct Start {
  Witness& m;
  Matrix w = m.tensor(2, 3);
  void call() { init_weights<double>(w, Init::xavier_normal, 1, 0); }
};
struct Mean {
  Witness& m;
  View<4> weights = m.tensor(1, 2, 3, 4);
  void call() { (void)average_heads(In<double, 4>(weights)); }
};

using Gradients = MultiHeadAttentionGradients<double>;
using Parameters = MultiHeadAttentionParameters<double>;
const MultiHeadAttentionOptions biased = {.d_model = 4, .num_heads = 2, .q_bias = true},
                                unbiased = {.d_model = 4, .num_heads = 2},
                                wide = {.d_model = 6, .num_heads = 2};

Refusal walk(const std::string& message, const MultiHeadAttentionOptions& of_gradients) {
  return shape_error("for_each_with_gradient: " + message, [of_gradients](Witness& m) {
    auto& parameters = m.keep(m.make<Parameters>(biased.resolved()));
    const Gradients gradients(of_gradients.resolved());
    for_each_with_gradient(parameters, gradients, [](const auto&, auto w, auto) { fill(w, 1); });
  });
}
Refusal sum(const std::string& message, const MultiHeadAttentionOptions& of_other) {
  return shape_error("MultiHeadAttentionGradients::add: " + message, [of_other](Witness& m) {
    auto& gradients = m.keep(m.make<Gradients>(biased.resolved()));
    gradients.add(Gradients(of_other.resolved()));
  });
}

/// gradients.add(other) with widths of projections that are not those of `biased`.
Refusal sum_of_widths(const std::string& message, Index Gradients::*width) {
  return shape_error("MultiHeadAttentionGradients::add: " + message, [width](Witness& m) {
    auto& gradients = m.keep(m.make<Gradients>(biased.resolved()));
    Gradients other(biased.resolved());
    other.*width = 2;
    gradients.add(other);
  });
}

const Refusals beside(all_of({
    {
        shard("first is 4 and count 5" + heads, 4, 5),
        shard("first is -2 and count 2" + heads, -2, 2),
        shard("first is 8 and count 1" + heads, 8, 1),
        shard("first is 0 and count 0" + heads, 0, 0),
        shard("first is 2 and count 9223372036854775807" + heads, 2, most),
        shard("first is 1 and count 2" + groups, 1, 2),
        shard("first is 2 and count 3" + groups, 2, 3),
        shard("the module has layer_norm, expected one without: normalise the input before", 0, 2,
              true),
        argument_error("init_std: in is -1, expected >= 0",
                       [](Witness&) { (void)init_std(Init::he_normal, -1, 2); }),
        argument_error("init_std: out is -2, expected >= 0",
                       [](Witness&) { (void)init_std(Init::he_normal, 1, -2); }),
        walk("the gradient of W_Q is [6, 6], expected [4, 4] (the shape of W_Q)", wide),
        walk("the gradient of b_Q is [0], expected [4] (the shape of b_Q)", unbiased),
        sum("gradients.w_qkv is [4, 12], expected [6, 18] (zero_gradients())", wide),
        sum("gradients.b_q is [4], expected [0] (zero_gradients())", unbiased),
        sum_of_widths("gradients.W_Q is [4, 4], expected [4, 2] (zero_gradients())",
                      &Gradients::q_width),
        sum_of_widths("gradients.W_K is [4, 4], expected [4, 2] (zero_gradients())",
                      &Gradients::k_width),
        sum_of_widths("gradients.W_V is [4, 4], expected [4, 2] (zero_gradients())",
                      &Gradients::v_width),
        shape_error("own: gradients.w_o is [4, 4], expected [6, 6] (zero_gradients())",
                    [](Witness&) {
                      Gradients mine(unbiased.resolved());
                      mine.w_qkv = Tensor2<double>({6, 18});
                      mine.require_shapes_of(Gradients(wide.resolved()), "own");
                    }),
        shape_error("convert: W_Q is [0, 0], expected [4, 4] (the module's options)",
                    [](Witness&) {
                      MultiHeadAttention<double> gone(4, 2);
                      const auto taken = std::move(gone);
                      (void)convert<float>(gone);
                    }),
        shape_error(
            "store_weights_as: blocks.0.norm1.gamma is [0], expected [4] (the module's options)",
            [](Witness&) {
              TransformerDecoder<float> gone(
                  {.vocabulary = 3, .max_length = 2, .block = {.d_model = 4, .num_heads = 2}});
              gone.parameters().blocks.clear();
              (void)store_weights_as<BFloat16>(gone);
            }),
        shape_error("store_weights: W_Q is [4, 4], expected [6, 6] (the module's options)",
                    [](Witness&) {
                      MultiHeadAttention<float, Float16> kept(6, 2);
                      store_weights(MultiHeadAttention<float>(4, 2), kept);
                    }),
        argument_error("ViewedFloats::as: the input is of floats, expected Float16",
                       [](Witness&) { (void)ViewedFloats<2>().as<Float16>(); }),
    },
    countable("init_weights: w", &Start::w, {2, 3}),
    countable("average_heads: weights", &Mean::weights, {1, 2, 3, 4}),
}));

}  // namespace

TEST_CASE("Linear refuses bad calls before anything is written", "[bad_calls]") { linears.check(); }

TEST_CASE("LayerNorm refuses bad calls before anything is written", "[bad_calls]") {
  norms.check();
}

TEST_CASE("shards, starts, means and walks of parameters refuse bad calls", "[bad_calls]") {
  beside.check();
}

TEMPLATE_TEST_CASE("the calls of a layer that are spoilt are right before", "[bad_calls]",
                   LinearLayer, NormLayer) {
  Witness memory;
  TestType call{memory};
  call.pending().call();
  CHECK(memory.written() == "an object");  // the gradients
}

}  // namespace bad_calls_modules
