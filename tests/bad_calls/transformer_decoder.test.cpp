// TransformerDecoder: tokens, caches, states and gradients that do not fit.
#include "support/refusal_rules.hpp"

namespace bad_calls_transformer_decoder {

using namespace headwise_tests;

namespace {

const TransformerDecoderOptions small{.vocabulary = 5,
                                      .max_length = 6,
                                      .num_blocks = 2,
                                      .block = {.d_model = 4, .num_heads = 2, .d_hidden = 5}};
using Tokens = Tensor2<std::int64_t>;

enum class Method { forward, backward, step, step_each };

/// 5 tokens, 2 blocks 4 wide; a call of 2 sequences of 3 tokens is pending, a state has seen 4.
struct Decoder {
  Witness& m;
  TransformerDecoder<double>& decoder = m.make<TransformerDecoder<double>>(small);
  Tokens& storage = m.make<Tokens>(Shape{2, 3});
  In<std::int64_t, 2> tokens = storage;
  TransformerDecoderCall with = {};
  Matrix d_logits = m.tensor(6, 5);
  TransformerDecoderCache<double>& cache = m.make<TransformerDecoderCache<double>>();
  TransformerDecoderGradients<double>& gradients =
      m.make<TransformerDecoderGradients<double>>(decoder.zero_gradients());
  TransformerDecoderState<double>& state =
      m.make<TransformerDecoderState<double>>(decoder.state(2));
  std::vector<Index> counts = {};
  Method method = Method::backward;

  Decoder& pending() {
    (void)decoder.forward(tokens, {}, cache);
    const Tokens seen(Shape{2, 2});
    (void)decoder.step(seen, state);
    return *this;
  }
  void call() {
    m.keep(decoder.parameters()), m.keep(cache), m.keep(gradients), m.keep(state);
    if (method == Method::forward) {
      (void)decoder.forward(tokens, with, cache, m.context());
    } else if (method == Method::step) {
      (void)decoder.step(tokens, counts, state, m.context());
    } else if (method == Method::step_each) {
      (void)decoder.step_each(tokens, counts, state, m.context());
    } else {
      decoder.backward(d_logits, cache, gradients, m.context());
    }
  }
};

using Kind = Refusal (*)(std::string, Action<Witness&>);
Refusal of(Method method, const std::string& message, void (*spoil)(Decoder&), Kind kind) {
  return kind(message, [=](Witness& memory) {
    Decoder call{memory};
    call.pending();
    call.method = method;
    spoil(call);
    call.call();
  });
}
Refusal forward(const std::string& message, void (*spoil)(Decoder&), Kind kind = shape_error) {
  return of(Method::forward, message, spoil, kind);
}
Refusal backward(const std::string& message, void (*spoil)(Decoder&), Kind kind = shape_error) {
  return of(Method::backward, message, spoil, kind);
}

using Options = TransformerDecoderOptions;
const std::string zero = " (zero_gradients())";

const Refusals calls({
    forward("TransformerDecoder::forward: token is [0, 0], expected [5, 4] (the options: a decoder "
            "that was moved from has none)",
            [](Decoder& c) { const auto taken = std::move(c.decoder); }),
    forward("TransformerDecoder::forward: tokens is [-1, 3], expected extents of 0 or more",
            [](Decoder& c) {
              c.tokens = {c.storage.data(), Shape{-1, 3}};
            }),
    forward(
        "TransformerDecoder::forward: tokens is [2, 3] at a null address, expected its elements",
        [](Decoder& c) {
          c.tokens = {nullptr, Shape{2, 3}};
        }),
    forward(
        "TransformerDecoder::forward: tokens are [1, 7], expected sequences of at most 6 "
        "(max_length)",
        [](Decoder& c) {
          c.tokens = c.m.make<Tokens>(Shape{1, 7});
        },
        argument_error),
    forward(
        "TransformerDecoder::forward: dropout rate is 1.5, expected 0 to 1",
        [](Decoder& c) { c.with.weight_dropout.rate = 1.5; }, argument_error),
    forward(
        "TransformerDecoder::forward: dropout rate is 2.5, expected 0 to 1",
        [](Decoder& c) { c.with.attention_dropout.rate = 2.5; }, argument_error),
    forward(
        "TransformerDecoder::forward: dropout rate is -1, expected 0 to 1",
        [](Decoder& c) { c.with.hidden_dropout.rate = -1; }, argument_error),
    forward(
        "TransformerDecoder::forward: dropout rate is 3, expected 0 to 1",
        [](Decoder& c) { c.with.output_dropout.rate = 3; }, argument_error),
    forward(
        "embedding_forward: tokens(4) is 5, expected 0 or more and below 5 (rows of table [5, 4])",
        [](Decoder& c) { c.storage(1, 1) = 5; }, argument_error),
    argument_error("TransformerDecoder::backward: the cache is empty: pass it to forward first",
                   [](Witness& memory) { Decoder{memory}.call(); }),
    backward(
        "TransformerDecoder::backward: the cache is of a decoder of another shape, expected one "
        "that this decoder filled",
        [](Decoder& c) {
          Options options = small;
          options.block.norm_first = false;
          (void)TransformerDecoder<double>(options).forward(c.tokens, {}, c.cache);
        },
        argument_error),
    backward(
        "TransformerDecoder::backward: the cache or the decoder was moved from, expected a cache "
        "that this decoder filled",
        [](Decoder& c) { const auto taken = std::move(c.cache); }, argument_error),
    backward("TransformerDecoder::backward: d_logits is [5, 5], expected [6, 5] (the output)",
             [](Decoder& c) { c.d_logits = c.m.tensor(5, 5); }),
    backward("TransformerDecoder::backward: d_logits is [6, 5] at a null address, expected its "
             "elements",
             [](Decoder& c) { c.d_logits = c.m.null(6, 5); }),
    backward("TransformerDecoder::backward: gradients.token is [0, 0], expected [5, 4]" + zero,
             [](Decoder& c) { c.gradients.token = {}; }),
    backward("TransformerDecoder::backward: gradients.position is [5, 4], expected [6, 4]" + zero,
             [](Decoder& c) {
               c.gradients.position = Tensor2<double>({5, 4});
             }),
    backward("TransformerDecoder::backward: gradients.norm.gamma is [0], expected [4]" + zero,
             [](Decoder& c) { c.gradients.norm.gamma = {}; }),
    backward("TransformerDecoder::backward: gradients.norm.beta is [3], expected [4]" + zero,
             [](Decoder& c) { c.gradients.norm.beta = Tensor1<double>(3); }),
    backward(
        "TransformerDecoder::backward: gradients are of 1 blocks, expected 2" + zero,
        [](Decoder& c) { c.gradients.blocks.pop_back(); }, argument_error),
    backward("TransformerBlock::backward: gradients.norm2.gamma is [3], expected [4]" + zero,
             [](Decoder& c) { c.gradients.blocks[1].norm2.gamma = Tensor1<double>(3); }),
    backward("MultiHeadAttention::backward: gradients.w_o is [0, 0], expected [4, 4]" + zero,
             [](Decoder& c) { c.gradients.blocks[0].attention.w_o = {}; }),
});

/// Without position vectors; a state with a window has seen 2 tokens.
struct Windowed {
  static Options options() {
    Options o = small;
    o.position_vectors = false;
    return o;
  }
  TransformerDecoder<double> decoder{options()};
  TransformerDecoderState<double> state = decoder.state({.batch_size = 2, .window = 3});

  Windowed() { (void)decoder.step(Tokens(Shape{2, 2}), state); }
};
const Index too_long = Windowed{}.state.room() + 1;

Refusal no_room(Index capacity) {
  return argument_error("TransformerDecoder::state: capacity is " + std::to_string(capacity) +
                            ", expected 1 to max_length 6, or 0 for it",
                        [=](Witness& m) { (void)Decoder{m}.decoder.state(1, capacity); });
}

template <class Call>
Refusal of_moved_state(const std::string& function, Call call) {
  return argument_error("TransformerDecoderState::" + function +
                            ": the state was moved from, expected one that a decoder made",
                        [=](Witness& m) {
                          auto state = std::move(Decoder{m}.pending().state);
                          const auto taken = std::move(state);
                          call(state);
                        });
}

const Refusals states({
    no_room(7),
    no_room(-1),
    argument_error("TransformerDecoder::state: window is given to a decoder with position vectors, "
                   "expected none: a sequence would outgrow max_length",
                   [](Witness& m) { (void)Decoder{m}.decoder.state({.window = 3}); }),
    argument_error("TransformerDecoder::state: window is 3 with first_keys 1, expected 3 with 0, "
                   "the decoder's, or 0",
                   [](Witness&) {
                     Options options = small;
                     options.position_vectors = false, options.window = 3;
                     (void)TransformerDecoder<double>(options).state(
                         {.window = 3, .first_keys = 1});
                   }),
    argument_error("KeyValueCache: batch_size is -1, expected >= 0",
                   [](Witness& m) { (void)Decoder{m}.decoder.state(-1); }),
    argument_error("KeyValueCache::rollback: n is 3, expected 0 to 2, the length of sequence 0",
                   [](Witness& m) { Decoder{m}.pending().state.rollback(3); }),
    of_moved_state("rollback", [](auto& state) { state.rollback(1); }),
    of_moved_state("rollback", [](auto& state) { state.rollback(0, 1); }),
    of_moved_state("length", [](auto& state) { (void)state.length(0); }),
    of_moved_state("clear", [](auto& state) { state.clear(0); }),
});

/// Of step or of step_each.
std::vector<Refusal> of_steps(Method method, const std::string& name) {
  const auto step = [=](const std::string& message, void (*spoil)(Decoder&),
                        Kind kind = shape_error) { return of(method, message, spoil, kind); };
  const std::string no_state =
      name +
      ": the state is of a decoder of another shape, or was moved from, expected one that "
      "state() of this decoder made";
  return {
      step(name + ": token is [0, 0], expected [5, 4] (the options: a decoder that "
                  "was moved from has none)",
           [](Decoder& c) { const auto taken = std::move(c.decoder); }),
      step(
          no_state,
          [](Decoder& c) {
            Options options = small;
            options.max_length = 7;
            c.state = TransformerDecoder<double>(options).state(2);
          },
          argument_error),
      step(
          no_state, [](Decoder& c) { const auto taken = std::move(c.state); }, argument_error),
      step(name + ": tokens is [1, 3], expected [2, 3] (batch of the state)",
           [](Decoder& c) {
             c.tokens = c.m.make<Tokens>(Shape{1, 3});
           }),
      step(name + ": tokens is [2, 3] at a null address, expected its elements",
           [](Decoder& c) {
             c.tokens = {nullptr, Shape{2, 3}};
           }),
      step(
          name + ": tokens are none, expected at least one of each sequence",
          [](Decoder& c) {
            c.tokens = c.m.make<Tokens>(Shape{2, 0});
          },
          argument_error),
      step(
          name + ": counts are 1, expected 2 (the batch size), or none for all",
          [](Decoder& c) { c.counts = {1}; }, argument_error),
      step(
          name + ": counts holds 4, expected 0 to 3 (the tokens given)",
          [](Decoder& c) {
            c.counts = {1, 4};
          },
          argument_error),
      step(
          name + ": 5 tokens behind 2 of sequence 0 are more than the capacity 6 of "
                 "the cache: "
                 "roll it back, clear it or make a larger one",
          [](Decoder& c) {
            c.tokens = c.m.make<Tokens>(Shape{2, 5});
          },
          argument_error),
      step(
          name + ": " + std::to_string(too_long) +
              " tokens behind 2 of sequence 0 are more than the " + std::to_string(too_long - 1) +
              " that fit beside the window: take fewer at a time",
          [](Decoder& c) {
            Windowed windowed;
            c.decoder = std::move(windowed.decoder), c.state = std::move(windowed.state);
            c.tokens = c.m.make<Tokens>(Shape{2, too_long});
          },
          argument_error),
      step(
          "embedding_forward: tokens(0) is -1, expected 0 or more and below 5 (rows of table [5, "
          "4])",
          [](Decoder& c) { c.storage(0, 0) = -1; }, argument_error),
  };
}
const Refusals steps(of_steps(Method::step, "TransformerDecoder::step"));
const Refusals steps_each(of_steps(Method::step_each, "TransformerDecoder::step_each"));

}  // namespace

TEST_CASE("TransformerDecoder refuses bad calls before anything is written", "[bad_calls]") {
  calls.check();
}

TEST_CASE("steps of a TransformerDecoder refuse bad calls", "[bad_calls]") {
  states.check();
  steps.check();
  steps_each.check();
}

TEST_CASE("the calls of a decoder that are spoilt are right before", "[bad_calls]") {
  for (const Method method : {Method::forward, Method::backward, Method::step, Method::step_each}) {
    Witness memory;
    Decoder call{memory};
    call.pending().method = method;
    call.call();
    CHECK(memory.written() == "an object");  // cache, gradients, state
  }
}

}  // namespace bad_calls_transformer_decoder
