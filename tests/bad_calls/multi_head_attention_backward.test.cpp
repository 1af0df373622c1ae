// MultiHeadAttention: caches that it did not fill and gradients that do not fit.
#include "bad_calls/multi_head_attention_calls.hpp"

namespace bad_calls_multi_head_attention_backward {

using namespace headwise_tests;
using namespace headwise_tests::multi_head_attention_calls;

namespace {

/// Each for backward of a self-attention and backward_cross of one that is not.
std::vector<Refusal> of_backward(const std::vector<Spoilt>& rules) {
  std::vector<Refusal> refusals;
  for (const bool self : {true, false}) {
    const std::string function = self ? "backward" : "backward_cross";
    for (const Spoilt& rule : rules) {
      refusals.push_back({"MultiHeadAttention::" + function + ": " + rule.message, rule.error,
                          [=](Witness& memory) {
                            Attention a{memory, self};
                            a.fill_cache();
                            rule.spoil(a);
                            self ? a.backward() : a.backward_cross();
                          }});
    }
  }
  return refusals;
}

/// The cache of another module, which takes the same x.
void refill(Attention& a, const Options& o) {
  a.cache = Cache();
  const Module other(o);
  if (a.self) {
    (void)other.forward(a.x, {}, a.cache);
  } else {
    (void)other.forward(a.x, a.key, a.value, {}, a.cache);
  }
}
const std::string foreign =
    "the cache is of a module of another shape, expected one that this module filled";
const std::string left = " (what forward left: a cache that was moved from is empty)";

const Refusals bad_caches(of_backward({
    {true, argument_of, "the cache is empty: pass it to forward first",
     [](Attention& a) { a.cache = Cache(); }},
    {true, argument_of, foreign, [](Attention& a) { refill(a, {.d_model = 8, .num_heads = 2}); }},
    {true, argument_of, foreign, [](Attention& a) { refill(a, {.d_model = 8, .num_heads = 4}); }},
    {true, argument_of, foreign,
     [](Attention& a) {
       refill(a, {.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .d_value = 3});
     }},
    {true, argument_of, foreign,
     [](Attention& a) {
       refill(a, {.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .layer_norm = true});
     }},
    {true, argument_of, foreign,
     [](Attention& a) {
       refill(a, {.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .rotary = RotaryOptions{}});
     }},
    {true, argument_of, foreign,
     [](Attention& a) {
       a.cache = Cache();
       a.x = a.m.tensor(2, 3, 12), a.key = a.value = a.m.tensor(2, 5, 12);
       refill(a, {.d_model = 12, .num_heads = 4, .num_kv_heads = 2});
     }},
    {true, shape_of, "cache.context is [0, 0, 0], expected [2, 3, 8]" + left,
     [](Attention& a) { const Cache taken = std::move(a.cache); }},
    {true, shape_of, "cache.lse is [0, 0, 0, 0], expected [2, 4, 3, 2]" + left,
     [](Attention& a) { a.cache.lse = {}; }},
}));

const Refusals bad_weights_kept({
    {"MultiHeadAttention::backward: cache.weights is [0, 0, 0, 0], expected [2, 4, 3, 3]" + left,
     shape_of,
     [](Witness& memory) {
       Attention a{memory, true};
       a.fill_cache();
       a.cache.call.path = Path::materialized;
       a.backward();
     }},
    {"MultiHeadAttention::backward_cross: cache.weights is [0, 0, 0, 0], expected [2, 4, 3, 5]" +
         left,
     shape_of,
     [](Witness& memory) {
       Attention a{memory, false};
       a.fill_cache();
       a.cache.call.path = Path::materialized;
       a.backward_cross();
     }},
    {"MultiHeadAttention::backward: the cache is of a call with separate keys and values: use "
     "backward_cross",
     argument_of,
     [](Witness& memory) {
       Attention a{memory, false};
       a.fill_cache();
       a.backward();
     }},
    {"MultiHeadAttention::backward_cross: the cache is of self-attention: use backward",
     argument_of,
     [](Witness& memory) {
       Attention a{memory, true};
       a.fill_cache();
       a.backward_cross();
     }},
});

const Refusals bad_gradients(of_backward({
    {true, shape_of, "dy is [2, 2, 8], expected [2, 3, 8] (the output)",
     [](Attention& a) { a.dy = a.m.tensor(2, 2, 8); }},
    {true, shape_of, "dy is [2, 3, 8] at a null address, expected its elements",
     [](Attention& a) { a.dy = a.m.null(2, 3, 8); }},
    {true, shape_of,
     "W_O is [0, 0], expected [8, 8] (the options: a module that was moved from has none)",
     [](Attention& a) { const auto taken = std::move(a.module); }},
    {true, shape_of, "gradients.w_qkv is [0, 0], expected [8, 16] (zero_gradients())",
     [](Attention& a) { a.gradients = Gradients(); }},
    {true, shape_of, "gradients.W_Q is [8, 4], expected [8, 8] (zero_gradients())",
     [](Attention& a) { a.gradients.q_width = 4; }},
    {true, shape_of, "gradients.W_K is [8, 2], expected [8, 4] (zero_gradients())",
     [](Attention& a) { a.gradients.k_width = 2; }},
    {true, shape_of, "gradients.W_V is [8, 2], expected [8, 4] (zero_gradients())",
     [](Attention& a) { a.gradients.v_width = 2; }},
    {true, shape_of, "gradients.w_o is [8, 7], expected [8, 8] (zero_gradients())",
     [](Attention& a) {
       a.gradients.w_o = Tensor2<double>({8, 7});
     }},
    {true, shape_of, "gradients.w_q is [8, 8], expected [0, 0] (zero_gradients())",
     [](Attention& a) {
       a.gradients.w_q = Tensor2<double>({8, 8});
     }},
    {true, shape_of, "gradients.w_k is [8, 4], expected [0, 0] (zero_gradients())",
     [](Attention& a) {
       a.gradients.w_k = Tensor2<double>({8, 4});
     }},
    {true, shape_of, "gradients.w_v is [8, 4], expected [0, 0] (zero_gradients())",
     [](Attention& a) {
       a.gradients.w_v = Tensor2<double>({8, 4});
     }},
    {true, shape_of, "gradients.b_q is [8], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.b_q = Tensor1<double>(8); }},
    {true, shape_of, "gradients.b_k is [4], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.b_k = Tensor1<double>(4); }},
    {true, shape_of, "gradients.b_v is [4], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.b_v = Tensor1<double>(4); }},
    {true, shape_of, "gradients.b_o is [0], expected [8] (zero_gradients())",
     [](Attention& a) { a.gradients.b_o = {}; }},
    {true, shape_of, "gradients.gamma is [8], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.gamma = Tensor1<double>(8); }},
    {true, shape_of, "gradients.beta is [8], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.beta = Tensor1<double>(8); }},
    {true, shape_of, "gradients.sinks is [4], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.sinks = Tensor1<double>(4); }},
    {true, shape_of, "gradients.alibi_slopes is [4], expected [0] (zero_gradients())",
     [](Attention& a) { a.gradients.alibi_slopes = Tensor1<double>(4); }},
    {true, shape_of, "gradients.relative_bias is [4, 5], expected [0, 0] (zero_gradients())",
     [](Attention& a) {
       a.gradients.relative_bias = Tensor2<double>({4, 5});
     }},
}));

/// Gradients of a module with scores of its own that name a place for those of a call, too.
Refusal given_twice(const std::string& function, const std::string& name,
                    void (*call)(Attention&)) {
  return argument_error(
      function + ": gradients.score." + name +
          " is given, expected none: the module has a gradient of its own",
      [=](Witness& memory) {
        Attention a{memory, function != "MultiHeadAttention::backward_cross"};
        a.module = Module(
            {.d_model = 8, .num_heads = 4, .sinks = true, .alibi = true, .relative_reach = 2});
        a.gradients = a.module.zero_gradients();
        a.fill_cache();
        ScoreGradients<double>& score = a.gradients.score;
        if (name == "d_sinks") score.d_sinks = memory.tensor(4);
        if (name == "d_alibi_slopes") score.d_alibi_slopes = memory.tensor(4);
        if (name == "d_relative_bias") score.d_relative_bias = memory.tensor(4, 5);
        call(a);
      });
}
std::vector<Refusal> all_given_twice() {
  std::vector<Refusal> table;
  for (const char* name : {"d_sinks", "d_alibi_slopes", "d_relative_bias"}) {
    table.push_back(
        given_twice("MultiHeadAttention::backward", name, [](Attention& a) { a.backward(); }));
    table.push_back(given_twice("MultiHeadAttention::backward_cross", name,
                                [](Attention& a) { a.backward_cross(); }));
    table.push_back(given_twice("MultiHeadAttentionGradients::add", name,
                                [](Attention& a) { a.gradients.add(a.module.zero_gradients()); }));
  }
  return table;
}
const Refusals bad_score_gradients(all_given_twice());

}  // namespace

TEST_CASE("MultiHeadAttention refuses caches that it did not fill", "[bad_calls]") {
  bad_caches.check();
  bad_weights_kept.check();
}

TEST_CASE("MultiHeadAttention refuses gradients of another shape", "[bad_calls]") {
  bad_gradients.check();
  bad_score_gradients.check();
}

TEST_CASE("the calls of a module that are spoilt are right before", "[bad_calls]") {
  for (const bool self : {true, false}) {
    Witness memory;
    Attention a{memory, self};
    a.forward();
    CHECK(memory.written() == "an object");  // the cache
    CHECK_NOTHROW(a.infer());
    CHECK_NOTHROW(self ? a.backward() : a.backward_cross());
  }
}

TEST_CASE("backward refuses the cache of a module whose positions are others", "[bad_calls]") {
  const Tensor1<double> frequencies({2}, {1, 0.5}), others({2}, {1, 0.25});
  const RotaryOptions base{.theta = 100};
  const RotaryOptions given{.theta = 100, .frequencies = frequencies};
  const std::vector<std::pair<RotaryOptions, RotaryOptions>> apart = {
      {base, {.theta = 5}},
      {base, {.theta = 100, .width = 2}},
      {base, {.theta = 100, .pairing = RotaryPairing::interleaved}},
      {base, {.theta = 100, .offset = 1}},
      {base, given},
      {given, {.theta = 100, .frequencies = others}}};
  const std::vector<std::pair<RotaryOptions, RotaryOptions>> alike = {
      {base, base},
      {base, {.theta = 100, .width = 4}},
      {given, {.theta = 7, .frequencies = std::vector<double>{1, 0.5}}}};
  const auto backward = [](const RotaryOptions& filled, const RotaryOptions& asked) {
    const auto module = [](const RotaryOptions& rotary) {
      return Module({.d_model = 8, .num_heads = 2, .rotary = rotary});
    };
    const Module other = module(filled), own = module(asked);
    const Tensor3<double> x({1, 3, 8});
    Cache cache;
    (void)other.forward(x, {}, cache);
    auto gradients = own.zero_gradients();
    (void)own.backward(x, cache, gradients);
  };
  for (const auto& [filled, asked] : apart) {
    CHECK_THROWS_WITH(backward(filled, asked), "MultiHeadAttention::backward: " + foreign);
    CHECK_THROWS_WITH(backward(asked, filled), "MultiHeadAttention::backward: " + foreign);
  }
  for (const auto& [filled, asked] : alike) CHECK_NOTHROW(backward(filled, asked));
}

}  // namespace bad_calls_multi_head_attention_backward
