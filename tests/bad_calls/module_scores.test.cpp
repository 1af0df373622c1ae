// Gradients of what changes scores that modules are handed: the rules of attention, under the names
// of the modules.
#include "bad_calls/score_gradient_rules.hpp"
#include "headwise/nn/transformer_decoder.hpp"

namespace bad_calls_module_scores {

using namespace headwise_tests;

namespace {

/// What a rule spoils: what a pending call changes scores by, and its gradients.
struct Call {
  Witness& memory;
  In<double, 4> q = {};  // no module has it
  AttentionOptions<double> options = {};
  ScoreGradients<double> learned = {};
  double* overlapped = nullptr;  // where dy shall begin

  View3<double> dy(Index B, Index L, Index D) const {
    return overlapped == nullptr ? memory.tensor(B, L, D)
                                 : View3<double>(overlapped, Shape{B, L, D});
  }
};

/// 4 heads, [2, 3, 8], 3 keys.
const ScoreGradientRules<Call> rules{{1, 4, 3, 3}, {1, 1, 3, 3}, {1, 1, 1, 3}, 2, true};

MultiHeadAttentionCall<double> of_module(const Call& c) {
  return {.mask = c.options.mask, .score = c.options.score};
}

void module_backward(Call& c, bool self) {
  const auto& module = c.memory.make<MultiHeadAttention<double>>(
      MultiHeadAttentionOptions{.d_model = 8, .num_heads = 4});
  auto& cache = c.memory.make<MultiHeadAttentionCache<double>>();
  auto& gradients = c.memory.make<MultiHeadAttentionGradients<double>>(module.zero_gradients());
  const auto x = c.memory.tensor(2, 3, 8), dy = c.dy(2, 3, 8);
  if (self) {
    (void)module.forward(x, {}, cache);
  } else {
    (void)module.forward(x, x, x, {}, cache);
  }
  cache.call = of_module(c);
  gradients.score = c.learned;
  c.memory.keep(module), c.memory.keep(gradients);
  if (self) {
    (void)module.backward(dy, cache, gradients, c.memory.context());
  } else {
    (void)module.backward_cross(dy, cache, gradients, c.memory.context());
  }
}
void block_backward(Call& c) {
  const auto& block = c.memory.make<TransformerBlock<double>>(
      TransformerBlockOptions{.d_model = 8, .num_heads = 4});
  auto& cache = c.memory.make<TransformerBlockCache<double>>();
  auto& gradients = c.memory.make<TransformerBlockGradients<double>>(block.zero_gradients());
  const auto x = c.memory.tensor(2, 3, 8), dy = c.dy(2, 3, 8);
  (void)block.forward(x, {}, cache);
  cache.attention.call = of_module(c);
  gradients.attention.score = c.learned;
  c.memory.keep(block.parameters()), c.memory.keep(gradients);
  (void)block.backward(dy, cache, gradients, c.memory.context());
}
void decoder_backward(Call& c) {
  const TransformerDecoderOptions options{
      .vocabulary = 8, .max_length = 3, .num_blocks = 2, .block = {.d_model = 8, .num_heads = 4}};
  const auto& decoder = c.memory.make<TransformerDecoder<double>>(options);
  auto& cache = c.memory.make<TransformerDecoderCache<double>>();
  auto& gradients = c.memory.make<TransformerDecoderGradients<double>>(decoder.zero_gradients());
  (void)decoder.forward(Tensor2<std::int64_t>({2, 3}), {}, cache);
  cache.blocks[1].attention.call = of_module(c);
  gradients.blocks[1].attention.score = c.learned;
  c.memory.keep(decoder.parameters()), c.memory.keep(gradients);
  const auto d_logits = c.dy(1, 6, 8);
  decoder.backward(select(d_logits, 0), cache, gradients, c.memory.context());
}

struct Backward {
  std::string name, dy;
  void (*run)(Call&);
};
const std::vector<Backward> functions = {
    {"MultiHeadAttention::backward", "dy", [](Call& c) { module_backward(c, true); }},
    {"MultiHeadAttention::backward_cross", "dy", [](Call& c) { module_backward(c, false); }},
    {"TransformerBlock::backward", "dy", block_backward},
    {"TransformerDecoder::backward", "d_logits", decoder_backward}};

/// A gradient where dy is.
std::vector<ScoreGradientRules<Call>::Rule> over_dy(const std::string& dy) {
  using Learned = ScoreGradients<double>;
  std::vector<ScoreGradientRules<Call>::Rule> over;
  const auto add = [&](const std::string& name, auto place) {
    over.push_back({name + " overlaps " + dy + ", expected memory of its own", [=](Call& c) {
                      rules.learn(c);
                      c.overlapped = c.memory.tensor(2, 3, 8).data();
                      place(c.learned, c.overlapped);
                    }});
  };
  const auto vector = [&](InOut<double, 1> Learned::*member, Index n) {
    return [=](Learned& to, double* at) { to.*member = {at, Shape{n}}; };
  };
  add("d_scale", vector(&Learned::d_scale, 1));
  add("d_function", vector(&Learned::d_function, 2));
  add("d_alibi_slopes", vector(&Learned::d_alibi_slopes, 4));
  add("d_sinks", vector(&Learned::d_sinks, 4));
  add("d_relative_bias", [](Learned& to, double* at) { to.d_relative_bias = {at, Shape{1, 5}}; });
  add("d_biases", [](Learned& to, double* at) { to.d_biases[0] = {at, Shape{1, 4, 3, 3}}; });
  return over;
}

std::vector<Refusal> all() {
  std::vector<Refusal> table;
  for (const Backward& backward : functions) {
    auto all_rules = rules.all();
    const auto more = over_dy(backward.dy);
    all_rules.insert(all_rules.end(), more.begin(), more.end());
    for (const auto& rule : all_rules) {
      if (rule.message.find(" overlaps q,") != std::string::npos) continue;
      table.push_back(shape_error(backward.name + ": " + rule.message,
                                  [run = backward.run, spoil = rule.spoil](Witness& memory) {
                                    Call call{memory};
                                    spoil(call);
                                    run(call);
                                  }));
    }
  }
  return table;
}
const Refusals bad_scores(all());

}  // namespace

TEST_CASE("modules refuse gradients of scores as attention does, before anything is written",
          "[bad_calls]") {
  bad_scores.check();
}

TEST_CASE("the calls whose gradients of scores are spoilt are right before", "[bad_calls]") {
  for (const Backward& backward : functions) {
    Witness memory;
    Call call{memory};
    rules.learn(call);
    CAPTURE(backward.name);
    CHECK_NOTHROW(backward.run(call));
  }
}

}  // namespace bad_calls_module_scores
