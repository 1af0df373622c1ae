// Gradients of modules that lie where dy, a parameter or another gradient does.
#include "bad_calls/multi_head_attention_calls.hpp"
#include "headwise/nn/transformer_block.hpp"

namespace bad_calls_gradients_apart {

using namespace headwise_tests;
using namespace headwise_tests::multi_head_attention_calls;

namespace {

const std::string own = ", expected memory of its own";

/// dy [..] of a module, every element the one at `data`.
template <int R>
TensorView<double, R> all_at(double* data, const Shape<R>& shape) {
  return {data, shape, Shape<R>()};
}

// ---- MultiHeadAttention
// ---------------------------------------------------------------------------

/// A module that learns all that it may; a call of it is pending.
Attention learning(Witness& memory, bool self) {
  Attention a{memory, self};
  Options options{.d_model = 8, .num_heads = 4, .q_bias = true, .k_bias = true, .v_bias = true};
  options.layer_norm = options.qk_norm = options.sinks = options.alibi = true;
  options.relative_reach = 2;
  a.module = Module(options);
  a.gradients = a.module.zero_gradients();
  a.fill_cache();
  return a;
}

using Place = double* (*)(Attention&);
Refusal attention(bool self, const std::string& message, const Action<Attention&>& spoil) {
  const std::string function = self ? "backward: " : "backward_cross: ";
  return shape_error("MultiHeadAttention::" + function + message + own, [=](Witness& memory) {
    Attention a = learning(memory, self);
    spoil(a);
    self ? a.backward() : a.backward_cross();
  });
}
/// dy, or the gradient of a call's scale, lies there.
void put_dy(Attention& a, double* there) { a.dy = all_at(there, Shape{2, 3, 8}); }
void put_score(Attention& a, double* there) {
  a.gradients.score.d_scale = InOut<double, 1>(View1<double>(there, Shape{1}));
}

using G = Gradients;
template <auto... members>
std::vector<Refusal> over_gradients(const std::vector<std::string>& names) {
  std::vector<Refusal> table;
  std::size_t n = 0;
  const auto add = [&](Place place) {
    const std::string name = "gradients." + names[n++];
    for (const bool self : {true, false}) {
      table.push_back(
          attention(self, name + " overlaps dy", [=](Attention& a) { put_dy(a, place(a)); }));
      table.push_back(attention(self, name + " overlaps gradients.score",
                                [=](Attention& a) { put_score(a, place(a)); }));
    }
  };
  (add([](Attention& a) { return (a.gradients.*members).data(); }), ...);
  return table;
}
const Refusals attention_gradients(
    over_gradients<&G::w_qkv, &G::w_o, &G::b_q, &G::b_k, &G::b_v, &G::b_o, &G::gamma, &G::beta,
                   &G::gamma_q, &G::gamma_k, &G::sinks, &G::alibi_slopes, &G::relative_bias>(
        {"w_qkv", "w_o", "b_q", "b_k", "b_v", "b_o", "gamma", "beta", "gamma_q", "gamma_k", "sinks",
         "alibi_slopes", "relative_bias"}));

std::vector<Refusal> over_parameters() {
  std::vector<Refusal> table;
  Witness memory;
  learning(memory, true).module.parameters().for_each([&](const std::string& name, const auto&) {
    if (name == "sinks" || name == "alibi_slopes" || name == "relative_bias") return;
    for (const bool self : {true, false}) {
      table.push_back(attention(self, "gradients.score overlaps " + name, [=](Attention& a) {
        a.module.parameters().for_each([&](const std::string& other, const auto& parameter) {
          if (other == name) put_score(a, parameter.data());
        });
      }));
    }
  });
  return table;
}
const Refusals attention_parameters(over_parameters());

// ---- FeedForward and TransformerBlock
// -------------------------------------------------------------

template <class Layer, class OfX>
struct Pending {
  Witness& memory;
  Layer& layer;
  OfX x = {};
  typename Layer::Cache& cache = memory.make<typename Layer::Cache>();
  typename Layer::Gradients& gradients =
      memory.make<typename Layer::Gradients>(layer.zero_gradients());

  void backward(double* dy) {
    (void)layer.forward(x, {}, cache);
    memory.keep(layer.parameters()), memory.keep(gradients);
    (void)layer.backward(all_at(dy, x.shape()), cache, gradients, memory.context());
  }
};
using Feed = Pending<FeedForward<double>, View2<double>>;
using Block = Pending<TransformerBlock<double>, View3<double>>;
Feed feed(Witness& m) {
  const FeedForwardOptions options{.d_model = 3, .d_hidden = 5};
  return {m, m.make<FeedForward<double>>(options), m.tensor(2, 3)};
}
Block block(Witness& m) {
  const TransformerBlockOptions options{.d_model = 4, .num_heads = 2, .d_hidden = 5};
  return {m, m.make<TransformerBlock<double>>(options), m.tensor(1, 2, 4)};
}

Refusal of_feed(const std::string& name, double* (*place)(FeedForwardParameters<double>&)) {
  return shape_error("FeedForward::backward: gradients." + name + " overlaps dy" + own,
                     [=](Witness& memory) {
                       Feed call = feed(memory);
                       call.backward(place(call.gradients));
                     });
}
Refusal of_block(const std::string& name, double* (*place)(TransformerBlockGradients<double>&)) {
  return shape_error(name + " overlaps dy" + own, [=](Witness& memory) {
    Block call = block(memory);
    call.backward(place(call.gradients));
  });
}
const Refusals feeds({
    of_feed("w_in", [](auto& g) { return g.w_in.data(); }),
    of_feed("b_in", [](auto& g) { return g.b_in.data(); }),
    of_feed("w_out", [](auto& g) { return g.w_out.data(); }),
    of_feed("b_out", [](auto& g) { return g.b_out.data(); }),
});
const std::string in_block = "TransformerBlock::backward: gradients.";
const Refusals blocks({
    of_block(in_block + "norm1.gamma", [](auto& g) { return g.norm1.gamma.data(); }),
    of_block(in_block + "norm1.beta", [](auto& g) { return g.norm1.beta.data(); }),
    of_block(in_block + "norm2.gamma", [](auto& g) { return g.norm2.gamma.data(); }),
    of_block(in_block + "norm2.beta", [](auto& g) { return g.norm2.beta.data(); }),
    of_block("MultiHeadAttention::backward: gradients.w_o",
             [](auto& g) { return g.attention.w_o.data(); }),
    of_block("FeedForward::backward: gradients.w_out",
             [](auto& g) { return g.feed_forward.w_out.data(); }),
});

}  // namespace

TEST_CASE("MultiHeadAttention refuses gradients where dy, a parameter or another gradient lies",
          "[bad_calls]") {
  attention_gradients.check();
  attention_parameters.check();
}

TEST_CASE("FeedForward and TransformerBlock refuse a dy that lies in their gradients",
          "[bad_calls]") {
  feeds.check();
  blocks.check();
}

TEST_CASE("the calls whose gradients lie elsewhere are right before", "[bad_calls]") {
  Witness memory;
  double dy = 1;
  for (const bool self : {true, false}) {
    Attention a = learning(memory, self);
    put_dy(a, &dy);
    CHECK_NOTHROW(self ? a.backward() : a.backward_cross());
  }
  CHECK_NOTHROW(feed(memory).backward(&dy));
  CHECK_NOTHROW(block(memory).backward(&dy));
}

}  // namespace bad_calls_gradients_apart
