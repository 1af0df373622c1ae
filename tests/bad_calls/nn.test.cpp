// The modules: options that make none, inputs, caches and gradients that do not fit.
#include "support/refusal_rules.hpp"

using namespace headwise_tests;

namespace {

using Options = MultiHeadAttentionOptions;
using Module = MultiHeadAttention<double>;
using Cache = MultiHeadAttentionCache<double>;
using Gradients = MultiHeadAttentionGradients<double>;

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();
const Index far = (Index{1} << 30) + 1;

// ---- options ----------------------------------------------------------------------------------

Refusal options(const std::string& message, const Options& o) {
  return argument_error("MultiHeadAttention: " + message, [o](Witness&) { Module module(o); });
}
const Refusals no_modules({
    options("d_model is 0, expected 1 to 2^30", {.d_model = 0}),
    options("d_model is -8, expected 1 to 2^30", {.d_model = -8}),
    options("d_model is 1073741825, expected 1 to 2^30", {.d_model = far}),
    options("num_heads is 0, expected 1 to 2^30", {.d_model = 4, .num_heads = 0}),
    options("num_heads is 1073741825, expected 1 to 2^30", {.d_model = 4, .num_heads = far}),
    options("num_kv_heads is -1, expected 0 to 2^30", {.d_model = 4, .num_kv_heads = -1}),
    options("d_head is -1, expected 0 to 2^30", {.d_model = 4, .d_head = -1}),
    options("d_head is 1073741825, expected 0 to 2^30", {.d_model = 4, .d_head = far}),
    options("d_value is -1, expected 0 to 2^30", {.d_model = 4, .d_value = -1}),
    options("kdim is -1, expected 0 to 2^30", {.d_model = 4, .kdim = -1}),
    options("vdim is -1, expected 0 to 2^30", {.d_model = 4, .vdim = -1}),
    options("num_heads is 3, expected a divisor of d_model 8 (or give d_head)",
            {.d_model = 8, .num_heads = 3}),
    options("num_kv_heads is 3, expected a divisor of num_heads 4",
            {.d_model = 8, .num_heads = 4, .num_kv_heads = 3}),
    options("num_kv_heads is 8, expected a divisor of num_heads 4",
            {.d_model = 8, .num_heads = 4, .num_kv_heads = 8}),
    options("num_heads times d_head is 2147483648, expected 1 to 2^30",
            {.d_model = 8, .num_heads = 2, .d_head = far - 1}),
    options("num_heads times d_value is 2147483648, expected 1 to 2^30",
            {.d_model = 8, .num_heads = 2, .d_value = far - 1}),
    options("layer_norm_epsilon is 0.000000, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = 0}),
    options("layer_norm_epsilon is -1.000000, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = -1}),
    options("layer_norm_epsilon is inf, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = infinity}),
    options("layer_norm_epsilon is nan, expected a finite number above 0",
            {.d_model = 8, .layer_norm_epsilon = nan}),
});

// ---- calls of MultiHeadAttention ----------------------------------------------------------------

const Options plain = {.d_model = 8, .num_heads = 4, .num_kv_heads = 2};

/// A module, a pending call of it, and what a further call takes; x is [2, 3, 8], keys have 5.
struct Attention {
  Witness& m;
  bool self = true;
  Path path = Path::flash;
  Module& module = m.make<Module>(plain);
  View<3> x = m.tensor(2, 3, 8), key = m.tensor(2, 5, 8), value = m.tensor(2, 5, 8),
          dy = m.tensor(2, 3, 8);
  MultiHeadAttentionCall<double> call = {.path = path};
  Cache& cache = m.make<Cache>();
  Gradients& gradients = m.make<Gradients>(module.zero_gradients());

  void fill_cache() {
    if (self) {
      (void)module.forward(x, call, cache);
    } else {
      (void)module.forward(x, key, value, call, cache);
    }
  }
  void keep() { m.keep(module), m.keep(cache), m.keep(gradients); }
  void forward() {
    keep();
    if (self) {
      (void)module.forward(x, call, cache, m.context());
    } else {
      (void)module.forward(x, key, value, call, cache, m.context());
    }
  }
  void infer() {
    keep();
    if (self) {
      (void)module.forward(x, call, m.context());
    } else {
      (void)module.forward(x, key, value, call, m.context());
    }
  }
  void backward() {
    keep();
    (void)module.backward(dy, cache, gradients, m.context());
  }
  void backward_cross() {
    keep();
    (void)module.backward_cross(dy, cache, gradients, m.context());
  }
};

struct Spoilt {
  bool self;
  std::string error, message;
  void (*spoil)(Attention&);
};

/// Each with a cache that is pending, on both paths, and without a cache.
std::vector<Refusal> of_forward(const std::vector<Spoilt>& rules) {
  std::vector<Refusal> refusals;
  for (const Spoilt& rule : rules) {
    const std::string message = "MultiHeadAttention::forward: " + rule.message;
    for (const Path path : {Path::flash, Path::materialized}) {
      refusals.push_back({message, rule.error, [=](Witness& memory) {
                            Attention a{memory, rule.self, path};
                            a.fill_cache();
                            rule.spoil(a);
                            a.forward();
                          }});
    }
    refusals.push_back({message, rule.error, [=](Witness& memory) {
                          Attention a{memory, rule.self};
                          rule.spoil(a);
                          a.infer();
                        }});
  }
  return refusals;
}

const std::string shape_of = "ShapeError", argument_of = "ArgumentError";
const std::vector<Index> lengths{1, 2, 3}, outside{1, 9}, below{-1, 1};

const Refusals bad_inputs(of_forward({
    {true, shape_of, "x is [2, 3, 7], expected [2, 3, 8] (d_model 8)",
     [](Attention& a) { a.x = a.m.tensor(2, 3, 7); }},
    {true, shape_of, "x is [2, -3, 8], expected extents of 0 or more",
     [](Attention& a) { a.x = a.m.unfounded(2, -3, 8); }},
    {true, shape_of, "x is [2, 3, 8] at a null address, expected its elements",
     [](Attention& a) { a.x = a.m.null(2, 3, 8); }},
    {true, shape_of, "x is [2, 281474976710656, 8], expected extents whose product is at most 2^48",
     [](Attention& a) { a.x = a.m.unfounded(2, Index{1} << 48, 8); }},
    {false, shape_of, "query is [2, 3, 7], expected [2, 3, 8] (d_model 8)",
     [](Attention& a) { a.x = a.m.tensor(2, 3, 7); }},
    {false, shape_of, "query is [2, 3, 8] at a null address, expected its elements",
     [](Attention& a) { a.x = a.m.null(2, 3, 8); }},
    {false, shape_of, "key is [3, 5, 8], expected [2, 5, 8] (batch of query, kdim 8)",
     [](Attention& a) { a.key = a.m.tensor(3, 5, 8); }},
    {false, shape_of, "key is [2, 5, 9], expected [2, 5, 8] (batch of query, kdim 8)",
     [](Attention& a) { a.key = a.m.tensor(2, 5, 9); }},
    {false, shape_of, "key is [2, 5, 8] at a null address, expected its elements",
     [](Attention& a) { a.key = a.m.null(2, 5, 8); }},
    {false, shape_of, "value is [2, 4, 8], expected [2, 5, 8] (batch and length of key, vdim 8)",
     [](Attention& a) { a.value = a.m.tensor(2, 4, 8); }},
    {false, shape_of, "value is [2, 5, 7], expected [2, 5, 8] (batch and length of key, vdim 8)",
     [](Attention& a) { a.value = a.m.tensor(2, 5, 7); }},
    {false, shape_of, "value is [2, 5, 8] at a null address, expected its elements",
     [](Attention& a) { a.value = a.m.null(2, 5, 8); }},
    {true, argument_of, "kdim or vdim differ from d_model, expected separate keys and values",
     [](Attention& a) { a.module = Module(Options{.d_model = 8, .num_heads = 4, .kdim = 4}); }},
    {true, argument_of, "kdim or vdim differ from d_model, expected separate keys and values",
     [](Attention& a) { a.module = Module(Options{.d_model = 8, .num_heads = 4, .vdim = 4}); }},
    {true, shape_of,
     "W_O is [0, 0], expected [8, 8] (the options: a module that was moved from has none)",
     [](Attention& a) { const Module taken = std::move(a.module); }},
}));

const Refusals bad_options(of_forward({
    {true, shape_of,
     "Mask::keep is [1, 1, 3, 5], expected [2, 4, 3, 3] or 1 on an axis (scores are [B, H, L, S])",
     [](Attention& a) {
       a.call.mask.add(Mask::keep(a.m.bools(Shape{3, 5})));
     }},
    {false, shape_of,
     "Mask::drop is [1, 1, 3, 3], expected [2, 4, 3, 5] or 1 on an axis (scores are [B, H, L, S])",
     [](Attention& a) {
       a.call.mask.add(Mask::drop(a.m.bools(Shape{3, 3})));
     }},
    {true, shape_of,
     "Mask::bias is [2, 2, 3, 3], expected [2, 4, 3, 3] or 1 on an axis (scores are [B, H, L, S])",
     [](Attention& a) { a.call.mask.add(Mask::bias(a.m.tensor(2, 2, 3, 3))); }},
    {true, shape_of, "Mask::keep is [1, 1, 3, 3] at a null address, expected its elements",
     [](Attention& a) {
       a.call.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{3, 3})));
     }},
    {true, shape_of, "Mask::drop is [1, 1, -3, 3], expected extents of 0 or more",
     [](Attention& a) {
       a.call.mask.add(Mask::drop(In<bool, 2>(nullptr, Shape{-3, 3})));
     }},
    {true, shape_of, "Mask::bias is [1, 1, 3, 3] at a null address, expected its elements",
     [](Attention& a) { a.call.mask.add(Mask::bias(a.m.null(3, 3))); }},
    {true, shape_of,
     "Mask::bias is [1, 1, 1, 562949953421312], expected extents whose product is at most 2^48",
     [](Attention& a) { a.call.mask.add(Mask::bias(a.m.unfounded(1, Index{1} << 49))); }},
    {true, argument_of, "Mask::key_lengths has 3 lengths, expected 2 (the batch size)",
     [](Attention& a) { a.call.mask.add(Mask::key_lengths(lengths)); }},
    {false, argument_of, "Mask::key_lengths holds 9, expected 0 to 5 (the number of keys)",
     [](Attention& a) { a.call.mask.add(Mask::key_lengths(outside)); }},
    {true, argument_of, "Mask::key_lengths holds -1, expected 0 to 3 (the number of keys)",
     [](Attention& a) { a.call.mask.add(Mask::key_lengths(below)); }},
    {true, argument_of, "scale is not finite, expected a number, or none for 1 / sqrt(d)",
     [](Attention& a) { a.call.scale = nan; }},
    {true, argument_of, "dropout rate is 1.500000, expected 0 to 1",
     [](Attention& a) { a.call.weight_dropout.rate = 1.5; }},
    {true, argument_of, "dropout rate is -0.500000, expected 0 to 1",
     [](Attention& a) { a.call.output_dropout.rate = -0.5; }},
}));

// ---- backward -----------------------------------------------------------------------------------

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
    {true, shape_of, "gradients.w_qkv is [0, 0], expected [8, 16] (zero_gradients())",
     [](Attention& a) { a.gradients = Gradients(); }},
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
}));

}  // namespace

TEST_CASE("options that make no module are refused", "[bad_calls]") { no_modules.check(); }

TEST_CASE("MultiHeadAttention refuses inputs before anything is written", "[bad_calls]") {
  bad_inputs.check();
}

TEST_CASE("MultiHeadAttention refuses masks, scales and rates before anything is counted",
          "[bad_calls]") {
  bad_options.check();
}

TEST_CASE("MultiHeadAttention refuses caches that it did not fill", "[bad_calls]") {
  bad_caches.check();
  bad_weights_kept.check();
}

TEST_CASE("MultiHeadAttention refuses gradients of another shape", "[bad_calls]") {
  bad_gradients.check();
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
