// RMSNorm, FeedForward and TransformerBlock: options, inputs, caches and gradients that do not fit.
#include "support/refusal_rules.hpp"

namespace bad_calls_blocks {

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

/// A norm of width 3; a call of 2 rows is pending.
struct Rms {
  Witness& m;
  RMSNorm<double>& layer = m.make<RMSNorm<double>>(3);
  Matrix x = m.tensor(2, 3), dy = m.tensor(2, 3);
  RMSNorm<double>::Cache& cache = m.make<RMSNorm<double>::Cache>();
  RMSNormParameters<double>& gradients = m.make<RMSNormParameters<double>>(layer.zero_gradients());
  bool backward = true;
  Rms& pending() {
    (void)layer.forward(x, cache);
    return *this;
  }
  void call() {
    m.keep(layer.parameters()), m.keep(cache), m.keep(gradients);
    if (backward) {
      (void)layer.backward(dy, cache, gradients, m.context());
    } else {
      (void)layer.forward(x, cache, m.context());
    }
  }
};

/// 3 wide, 5 hidden; a call of 2 rows is pending.
struct Feed {
  Witness& m;
  FeedForward<double>& layer =
      m.make<FeedForward<double>>(FeedForwardOptions{.d_model = 3, .d_hidden = 5});
  Matrix x = m.tensor(2, 3), dy = m.tensor(2, 3);
  FeedForwardCall with = {};
  FeedForwardCache<double>& cache = m.make<FeedForwardCache<double>>();
  FeedForwardParameters<double>& gradients =
      m.make<FeedForwardParameters<double>>(layer.zero_gradients());
  bool backward = true;
  Feed& pending() {
    (void)layer.forward(x, {}, cache);
    return *this;
  }
  void call() {
    m.keep(layer.parameters()), m.keep(cache), m.keep(gradients);
    if (backward) {
      (void)layer.backward(dy, cache, gradients, m.context());
    } else {
      (void)layer.forward(x, with, cache, m.context());
    }
  }
};

/// 4 wide, 2 heads; a call of [1, 2, 4] is pending.
struct Block {
  Witness& m;
  TransformerBlock<double>& layer = m.make<TransformerBlock<double>>(
      TransformerBlockOptions{.d_model = 4, .num_heads = 2, .d_hidden = 5});
  View<3> x = m.tensor(1, 2, 4), dy = m.tensor(1, 2, 4);
  TransformerBlockCall<double> with = {};
  TransformerBlockCache<double>& cache = m.make<TransformerBlockCache<double>>();
  TransformerBlockGradients<double>& gradients =
      m.make<TransformerBlockGradients<double>>(layer.zero_gradients());
  bool backward = true;
  Block& pending() {
    (void)layer.forward(x, {}, cache);
    return *this;
  }
  void call() {
    m.keep(layer.parameters()), m.keep(cache), m.keep(gradients);
    if (backward) {
      (void)layer.backward(dy, cache, gradients, m.context());
    } else {
      (void)layer.forward(x, with, cache, m.context());
    }
  }
};

using Kind = Refusal (*)(std::string, Action<Witness&>);
template <class Layer>
Refusal forward(const std::string& message, void (*spoil)(Layer&), Kind kind = shape_error) {
  return kind(message, [=](Witness& memory) {
    Layer call{memory};
    call.backward = false;
    spoil(call);
    call.call();
  });
}
template <class Layer>
Refusal backward(const std::string& message, void (*spoil)(Layer&), Kind kind = shape_error) {
  return kind(message, [=](Witness& memory) {
    Layer call{memory};
    call.pending();
    spoil(call);
    call.call();
  });
}

template <class Layer>
void move_away(Layer& c) {
  const auto taken = std::move(c.layer);
}

const std::string no_epsilon = ", expected a finite number above 0";
const std::string out_of_type =
    ", expected a number that the module's type tells from 0 and infinity";
const std::string moved_norm = "gamma is absent: a module that was moved from has none";
const Refusals rms_norms({
    argument_error("RMSNorm: width is -1, expected >= 0", [](Witness&) { RMSNorm<double>(-1); }),
    argument_error("RMSNorm: epsilon is 0" + no_epsilon,
                   [](Witness&) { RMSNorm<double>(3, true, 0); }),
    argument_error("RMSNorm: epsilon is inf" + no_epsilon,
                   [](Witness&) { RMSNorm<double>(3, true, infinity); }),
    argument_error("RMSNorm: epsilon is nan" + no_epsilon,
                   [](Witness&) { RMSNorm<double>(3, false, nan); }),
    argument_error("RMSNorm: epsilon is 1e-50" + out_of_type,
                   [](Witness&) { RMSNorm<float>(3, true, 1e-50); }),
    forward<Rms>("RMSNorm::forward: x is [2, 4], expected [2, 3] (the width of the module)",
                 [](Rms& c) { c.x = c.m.tensor(2, 4); }),
    forward<Rms>("RMSNorm::forward: x is [2, 3] at a null address, expected its elements",
                 [](Rms& c) { c.x = c.m.null(2, 3); }),
    shape_error("RMSNorm::forward: x is [2, 4], expected [2, 3] (the width of the module)",
                [](Witness& m) {
                  const RMSNorm<double> plain(3, false);
                  (void)plain.forward(m.tensor(2, 4), m.context());
                }),
    forward<Rms>("RMSNorm::forward: " + moved_norm, move_away<Rms>, argument_error),
    backward<Rms>("RMSNorm::backward: " + moved_norm, move_away<Rms>, argument_error),
    argument_error("RMSNorm::backward: the cache is empty: pass it to forward first",
                   [](Witness& memory) { Rms{memory}.call(); }),
    backward<Rms>("RMSNorm::backward: cache.x is [2, 4], expected [2, 3] (the width of the module)",
                  [](Rms& c) {
                    const RMSNorm<double> other(4);
                    (void)other.forward(c.m.tensor(2, 4), c.cache);
                  }),
    backward<Rms>("RMSNorm::backward: dy is [3, 3], expected [2, 3] (the output)",
                  [](Rms& c) { c.dy = c.m.tensor(3, 3); }),
    backward<Rms>("RMSNorm::backward: gradients.gamma is [0], expected [3] (zero_gradients())",
                  [](Rms& c) { c.gradients.gamma = {}; }),
});

Refusal feed_forward(const std::string& message, const FeedForwardOptions& options) {
  return argument_error("FeedForward: " + message,
                        [options](Witness&) { FeedForward<double>{options}; });
}
constexpr Index too_wide = (Index{1} << 30) + 1;
const std::string moved_cache = " (what forward left: a cache that was moved from is empty)",
                  zero = " (zero_gradients())", wide = std::to_string(too_wide),
                  none = " that was moved from has none)",
                  moved_feed = "w_in is [0, 0], expected [3, 5] (the options: a module" + none,
                  moved_block = "norm1.gamma is [0], expected [4] (the options: a block" + none;

const Refusals feed_forwards({
    feed_forward("d_model is 0, expected 1 to 2^30", {}),
    feed_forward("d_model is " + wide + ", expected 1 to 2^30", {.d_model = too_wide}),
    feed_forward("d_hidden is -1, expected 1 to 2^30 (0: 4 d_model)",
                 {.d_model = 3, .d_hidden = -1}),
    feed_forward("d_hidden is " + wide + ", expected 1 to 2^30 (0: 4 d_model)",
                 {.d_model = 3, .d_hidden = too_wide}),
    forward<Feed>("FeedForward::forward: x is [2, 4], expected [2, 3] (d_model 3)",
                  [](Feed& c) { c.x = c.m.tensor(2, 4); }),
    forward<Feed>("FeedForward::forward: x is [2, 3] at a null address, expected its elements",
                  [](Feed& c) { c.x = c.m.null(2, 3); }),
    forward<Feed>("FeedForward::forward: " + moved_feed, move_away<Feed>),
    forward<Feed>(
        "FeedForward::forward: dropout rate is 1.5, expected 0 to 1",
        [](Feed& c) { c.with.hidden_dropout.rate = 1.5; }, argument_error),
    forward<Feed>(
        "FeedForward::forward: dropout rate is -0.25, expected 0 to 1",
        [](Feed& c) { c.with.output_dropout.rate = -0.25; }, argument_error),
    argument_error("FeedForward::backward: the cache is empty: pass it to forward first",
                   [](Witness& memory) { Feed{memory}.call(); }),
    backward<Feed>(
        "FeedForward::backward: the cache is of a module of another shape, expected one that this "
        "module filled",
        [](Feed& c) {
          const FeedForward<double> other({.d_model = 3, .d_hidden = 5, .gated = true});
          (void)other.forward(c.x, {}, c.cache);
        },
        argument_error),
    backward<Feed>("FeedForward::backward: cache.hidden is [0, 0], expected [2, 5]" + moved_cache,
                   [](Feed& c) { const auto taken = std::move(c.cache.hidden); }),
    backward<Feed>("FeedForward::backward: cache.activated is [0, 0], expected [2, 5]" +
                       moved_cache,
                   [](Feed& c) { const auto taken = std::move(c.cache.activated); }),
    backward<Feed>("FeedForward::backward: dy is [2, 4], expected [2, 3] (the output)",
                   [](Feed& c) { c.dy = c.m.tensor(2, 4); }),
    backward<Feed>("FeedForward::backward: " + moved_feed, move_away<Feed>),
    backward<Feed>("FeedForward::backward: gradients.w_in is [0, 0], expected [3, 5]" + zero,
                   [](Feed& c) { c.gradients.w_in = {}; }),
    backward<Feed>("FeedForward::backward: gradients.b_in is [0], expected [5]" + zero,
                   [](Feed& c) { c.gradients.b_in = {}; }),
    backward<Feed>("FeedForward::backward: gradients.w_out is [0, 0], expected [5, 3]" + zero,
                   [](Feed& c) { c.gradients.w_out = {}; }),
    backward<Feed>("FeedForward::backward: gradients.b_out is [4], expected [3]" + zero,
                   [](Feed& c) { c.gradients.b_out = Tensor1<double>(4); }),
    argument_error("FeedForward::backward: gradients are the module's parameters, expected tensors "
                   "of their own (zero_gradients())",
                   [](Witness& memory) {
                     Feed c{memory};
                     c.pending();
                     memory.keep(c.layer.parameters());
                     (void)c.layer.backward(c.dy, c.cache, c.layer.parameters());
                   }),
});

Refusal block(const std::string& message, const TransformerBlockOptions& options) {
  return argument_error(message, [options](Witness&) { TransformerBlock<double>{options}; });
}

const Refusals blocks({
    block("MultiHeadAttention: d_model is 0, expected 1 to 2^30", {}),
    block("MultiHeadAttention: num_heads is 3, expected a divisor of d_model 4 (or give d_head)",
          {.d_model = 4, .num_heads = 3}),
    block("FeedForward: d_hidden is -1, expected 1 to 2^30 (0: 4 d_model)",
          {.d_model = 4, .d_hidden = -1}),
    block("TransformerBlock: norm_epsilon is 0" + no_epsilon, {.d_model = 4, .norm_epsilon = 0}),
    block("TransformerBlock: norm_epsilon is nan" + no_epsilon,
          {.d_model = 4, .norm_epsilon = nan}),
    argument_error("TransformerBlock: norm_epsilon is 1e+50" + out_of_type,
                   [](Witness&) { TransformerBlock<float>({.d_model = 4, .norm_epsilon = 1e50}); }),
    forward<Block>("TransformerBlock::forward: x is [1, 2, 5], expected [1, 2, 4] (d_model 4)",
                   [](Block& c) { c.x = c.m.tensor(1, 2, 5); }),
    forward<Block>("TransformerBlock::forward: x is [1, 2, 4] at a null address, expected its "
                   "elements",
                   [](Block& c) { c.x = c.m.null(1, 2, 4); }),
    forward<Block>("TransformerBlock::forward: " + moved_block, move_away<Block>),
    forward<Block>(
        "TransformerBlock::forward: dropout rate is 1.5, expected 0 to 1",
        [](Block& c) { c.with.hidden_dropout.rate = 1.5; }, argument_error),
    forward<Block>(
        "TransformerBlock::forward: dropout rate is 2, expected 0 to 1",
        [](Block& c) { c.with.output_dropout.rate = 2; }, argument_error),
    forward<Block>(
        "MultiHeadAttention::forward: dropout rate is 2, expected 0 to 1",
        [](Block& c) { c.with.attention_dropout.rate = 2; }, argument_error),
    argument_error("TransformerBlock::backward: the cache is empty: pass it to forward first",
                   [](Witness& memory) { Block{memory}.call(); }),
    backward<Block>(
        "TransformerBlock::backward: the cache is of a block of another shape, expected one that "
        "this block filled",
        [](Block& c) {
          const TransformerBlock<double> other(
              {.d_model = 4, .num_heads = 2, .d_hidden = 5, .norm_first = false});
          (void)other.forward(c.x, {}, c.cache);
        },
        argument_error),
    backward<Block>("TransformerBlock::backward: cache.h is [0, 0, 0], expected [1, 2, 4]" +
                        moved_cache,
                    [](Block& c) { const auto taken = std::move(c.cache); }),
    backward<Block>("TransformerBlock::backward: dy is [1, 3, 4], expected [1, 2, 4] (the output)",
                    [](Block& c) { c.dy = c.m.tensor(1, 3, 4); }),
    backward<Block>("TransformerBlock::backward: " + moved_block, move_away<Block>),
    backward<Block>("TransformerBlock::backward: gradients.norm1.gamma is [0], expected [4]" + zero,
                    [](Block& c) { c.gradients.norm1.gamma = {}; }),
    backward<Block>("TransformerBlock::backward: gradients.norm1.beta is [0], expected [4]" + zero,
                    [](Block& c) { c.gradients.norm1.beta = {}; }),
    backward<Block>("TransformerBlock::backward: gradients.norm2.gamma is [3], expected [4]" + zero,
                    [](Block& c) { c.gradients.norm2.gamma = Tensor1<double>(3); }),
    backward<Block>("TransformerBlock::backward: gradients.norm2.beta is [0], expected [4]" + zero,
                    [](Block& c) { c.gradients.norm2.beta = {}; }),
    backward<Block>("MultiHeadAttention::backward: gradients.w_o is [0, 0], expected [4, 4]" + zero,
                    [](Block& c) { c.gradients.attention.w_o = {}; }),
    backward<Block>("FeedForward::backward: gradients.w_in is [0, 0], expected [4, 5]" + zero,
                    [](Block& c) { c.gradients.feed_forward.w_in = {}; }),
});

}  // namespace

TEST_CASE("RMSNorm refuses bad calls before anything is written", "[bad_calls]") {
  rms_norms.check();
}

TEST_CASE("FeedForward refuses bad calls before anything is written", "[bad_calls]") {
  feed_forwards.check();
}

TEST_CASE("TransformerBlock refuses bad calls before anything is written", "[bad_calls]") {
  blocks.check();
}

TEMPLATE_TEST_CASE("the calls of a part of a block that are spoilt are right before", "[bad_calls]",
                   Rms, Feed, Block) {
  Witness memory;
  TestType call{memory};
  call.pending().call();
  CHECK(memory.written() == "an object");  // the gradients
}

}  // namespace bad_calls_blocks
