// Every gradient of hundreds of random configurations against differences in long double.
//
// The analytic gradients are computed in double on both paths. The reference is the readable path
// of a MultiHeadAttention<long double> with the same parameters, differenced with the five-point
// stencil. Environment: HEADWISE_SEED=n runs configuration n alone, HEADWISE_CONFIGURATIONS=n the
// first n.
#include <cstdlib>
#include <map>

#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/random_configuration.hpp"

using namespace headwise_tests;

namespace {

constexpr double tolerance = 1e-9;

std::vector<std::uint64_t> configuration_numbers() {
  if (const char* one = std::getenv("HEADWISE_SEED")) return {std::strtoull(one, nullptr, 10)};
  const char* given = std::getenv("HEADWISE_CONFIGURATIONS");
  std::vector<std::uint64_t> numbers(given == nullptr ? 420 : std::strtoull(given, nullptr, 10));
  for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = n + 1;
  return numbers;
}

/// What the configuration has of all that may vary.
std::vector<std::string> features(const RandomConfiguration& c) {
  std::vector<std::string> names;
  const auto note = [&](bool has, const char* name) {
    if (has) names.push_back(name);
  };
  const MultiHeadAttentionOptions& o = c.options;
  const RandomMask& m = c.mask;
  note(c.bare, "attention alone");
  note(!c.bare && c.self, "self-attention");
  note(!c.bare && !c.self, "cross-attention");
  note(!c.bare && !o.fused(), "kdim or vdim");
  note(c.B == 0, "B 0"), note(c.L == 0, "L 0"), note(c.S == 0, "S 0"), note(c.L == 1, "L 1");
  note(c.L != c.S, "L is not S"), note(c.L > 48, "more than a tile of queries");
  note(c.S > 64, "more than a tile of keys");
  note(o.num_heads == 1, "one head"), note(o.num_kv_heads == o.num_heads, "a key head each");
  note(o.num_kv_heads != o.num_heads, "grouped"), note(o.d_head == 1, "d 1");
  note(o.d_head > 8, "d above 8"), note(o.d_value != o.d_head, "dv is not d");
  if (!c.bare) {
    note(true, o.q_bias ? "b_Q" : "no b_Q"), note(true, o.k_bias ? "b_K" : "no b_K");
    note(true, o.v_bias ? "b_V" : "no b_V"), note(true, o.o_bias ? "b_O" : "no b_O");
    note(true, o.layer_norm ? "layer_norm" : "no layer_norm");
    note(o.layer_norm && o.layer_norm_affine, "gamma and beta");
    note(o.layer_norm && !o.layer_norm_affine, "layer_norm without gamma");
  }
  note(m.terms() == 0, "no mask"), note(m.terms() == 1, "one mask");
  note(m.terms() >= 2, "two masks"), note(m.terms() >= 4, "four masks and more");
  note(m.causal, "causal"), note(m.window != 0, "window"),
      note(m.causal && c.L != c.S, "causal L S");
  note(m.lengths.has_value(), "key lengths");
  for (const auto& pairs : m.pairs) {
    const Shape<4>& s = pairs.values.shape();
    const bool full = pairs.form == RandomMask::Form::pairs;
    note(pairs.form == RandomMask::Form::square, pairs.keep ? "keep [L, S]" : "drop [L, S]");
    note(pairs.form == RandomMask::Form::keys, pairs.keep ? "keep keys" : "drop keys");
    note(full, pairs.keep ? "keep pairs" : "drop pairs");
    note(full && s[0] > 1, "pairs by batch"), note(full && s[1] > 1, "pairs by head");
  }
  for (const auto& bias : m.biases) {
    const Shape<4>& s = bias.values.shape();
    const auto holds = [&](double x) {
      return std::find(bias.values.begin(), bias.values.end(), x) != bias.values.end();
    };
    note(bias.square, "bias [L, S]"), note(!bias.square && s[0] > 1, "bias by batch");
    note(!bias.square && s[1] > 1, "bias by head"), note(s[2] == 1, "bias for all queries");
    note(s[3] == 1, "bias for all keys"), note(holds(-1e9), "bias -1e9");
    note(holds(-std::numeric_limits<double>::infinity()), "bias -inf");
  }
  note(m.biases.size() == 2, "two biases");
  note(c.dead_rows > 0, "dead rows"), note(c.scale.has_value(), "given scale");
  note(c.weight_dropout.active(), "weight dropout");
  note(c.output_dropout.active(), "output dropout");
  const std::array layouts = {"dense", "slices of wider rows", "slices of a longer sequence",
                              "sequence before batch", "columns before rows"};
  for (std::size_t n = 0; n < layouts.size(); ++n) {
    note(std::count(c.layouts.begin(), c.layouts.end(), static_cast<Layout>(n)) > 0, layouts[n]);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string describe(const RandomConfiguration& c) {
  const MultiHeadAttentionOptions& o = c.options;
  std::string text = "[B, L, S] " + Shape{c.B, c.L, c.S}.format() + ", [H, G, d, dv, D] " +
                     Shape{o.num_heads, o.num_kv_heads, o.d_head, o.d_value, o.d_model}.format();
  for (const std::string& feature : features(c)) text += ", " + feature;
  return text + "\nrepeat: HEADWISE_SEED=" + std::to_string(c.seed) +
         " ./headwise_tests_nn \"gradients of random configurations*\"";
}

template <int R>
double greatest(const In<double, R>& x) {
  double greatest = 0;
  for_each_index(x.shape(), [&](auto& at) { greatest = std::max(greatest, std::abs(x(at))); });
  return greatest;
}

/// The error of GradientCheck, of one path against the other.
template <int R>
double error_of(const In<double, R>& a, const In<double, R>& b, double max_dy) {
  Tensor<double, R> difference(b.shape());
  for_each_index(b.shape(), [&](const Shape<R>& at) { difference(at) = a(at) - b(at); });
  for (const double value : difference) {
    if (!(value - value == 0)) return std::numeric_limits<double>::max();  // NaN
  }
  const double gap = greatest<R>(difference);
  return gap == 0 ? 0 : gap / (greatest(b) + 1e-3 * max_dy);
}

/// Two random directions a tensor, and every element of tensors of up to 60 in each 100th call.
GradientCheckOptions check_options(const RandomConfiguration& c, double max_dy) {
  const MultiHeadAttentionOptions& o = c.options;
  GradientCheckOptions options;
  options.tolerance = tolerance;
  options.stencil = Stencil::five_point;
  // Truncation and rounding meet here; layer_norm of a row of 3 has fifth derivatives of 1e9.
  options.step = o.layer_norm && o.d_model < 6 ? 0x1.0p-15 : 0x1.0p-13;
  options.seed = c.seed;
  options.full_below = c.seed % 20 == 0 ? 120 : 12;
  options.directions = 4;
  options.max_dy = max_dy;
  return options;
}

struct Verdict {
  GradientReport report;
  double paths = 0;  // the worst error of one path against the other
  double worst() const { return std::max(report.worst().error, paths); }
};

struct ModuleGradients {
  CrossAttentionGradients<double> inputs;
  MultiHeadAttentionGradients<double> parameters;
};

ModuleGradients module_gradients(const MultiHeadAttention<double>& module,
                                 const RandomConfiguration& c, Path path, In<double, 3> query,
                                 In<double, 3> key, In<double, 3> value, In<double, 3> dy) {
  MultiHeadAttentionCache<double> cache;
  ModuleGradients d{{}, module.zero_gradients()};
  if (c.self) {
    (void)module.forward(query, c.call<double>(path), cache);
    d.inputs.query = module.backward(dy, cache, d.parameters);
  } else {
    (void)module.forward(query, key, value, c.call<double>(path), cache);
    d.inputs = module.backward_cross(dy, cache, d.parameters);
  }
  return d;
}

Verdict check_module(const RandomConfiguration& c) {
  const MultiHeadAttentionOptions& o = c.options;
  Draw draw(c.seed + 1000000);
  MultiHeadAttention<double> module(o);
  module.parameters().for_each([&](const std::string& name, auto view) {
    if (name[0] == 'W') return;
    for_each_index(view.shape(), [&](const auto& at) { view(at) = draw.normal(); });
  });
  const auto query = draw.tensor<double>(Shape{c.B, c.L, o.d_model});
  const auto key = draw.tensor<double>(Shape{c.B, c.S, o.kdim});
  const auto value = draw.tensor<double>(Shape{c.B, c.S, o.vdim});
  const auto dy = draw.tensor<double>(query.shape());
  const LaidOut<double, 3> q(query, c.layouts[0]), k(key, c.layouts[1]), v(value, c.layouts[2]),
      d_out(dy, c.layouts[3]);
  const auto analytic = [&](Path path) {
    return module_gradients(module, c, path, q.view, k.view, v.view, d_out.view);
  };
  const ModuleGradients flash = analytic(Path::flash), kept = analytic(Path::materialized);

  MultiHeadAttention<long double> reference(o);
  auto wide_query = convert<long double>(In<double, 3>(query));
  auto wide_key = convert<long double>(In<double, 3>(key));
  auto wide_value = convert<long double>(In<double, 3>(value));
  const double max_dy = greatest<3>(dy);
  GradientCheck<long double> check(check_options(c, max_dy));
  Verdict verdict;
  const auto compare = [&](const std::string& name, auto wide, const auto& a, const auto& b) {
    check.input(name, wide, a);
    verdict.paths = std::max(verdict.paths, error_of(b, a, max_dy));
  };
  compare("query", as_view(wide_query), flash.inputs.query, kept.inputs.query);
  if (!c.self) {
    compare("key", as_view(wide_key), flash.inputs.key, kept.inputs.key);
    compare("value", as_view(wide_value), flash.inputs.value, kept.inputs.value);
  }
  for_each_with_gradient(reference.parameters(), MultiHeadAttentionGradients<long double>(o),
                         [&](const std::string& name, auto wide, auto) {
                           constexpr int rank = decltype(wide)::rank;
                           const auto named = [&](const MultiHeadAttentionParameters<double>& all) {
                             In<double, rank> found;
                             all.for_each([&](const std::string& other, auto view) {
                               if constexpr (decltype(view)::rank == rank) {
                                 if (other == name) found = view;
                               }
                             });
                             return found;
                           };
                           const In<double, rank> narrow = named(module.parameters());
                           for_each_index(wide.shape(),
                                          [&](const auto& at) { wide(at) = narrow(at); });
                           compare(name, wide, named(flash.parameters), named(kept.parameters));
                         });
  const auto call = c.call<long double>(Path::materialized);
  verdict.report = check.run([&] {
    return weighted_sum(dy, c.self ? reference.forward(wide_query, call)
                                   : reference.forward(wide_query, wide_key, wide_value, call));
  });
  return verdict;
}

Verdict check_attention(const RandomConfiguration& c) {
  const MultiHeadAttentionOptions& o = c.options;
  Draw draw(c.seed + 1000000);
  const Index H = o.num_heads, G = o.num_kv_heads;
  const auto query = draw.tensor<double>(Shape{c.B, H, c.L, o.d_head});
  const auto key = draw.tensor<double>(Shape{c.B, G, c.S, o.d_head});
  const auto value = draw.tensor<double>(Shape{c.B, G, c.S, o.d_value});
  const auto dy = draw.tensor<double>(Shape{c.B, H, c.L, o.d_value});
  const LaidOut<double, 4> q(query, c.layouts[0]), k(key, c.layouts[1]), v(value, c.layouts[2]),
      d_out(dy, c.layouts[3]);
  struct Results {
    LaidOut<double, 4> y, dq, dk, dv;
  };
  const auto results = [&] {
    return Results{{dy.shape(), c.layouts[0]},
                   {query.shape(), c.layouts[1]},
                   {key.shape(), c.layouts[2]},
                   {value.shape(), c.layouts[3]}};
  };
  const auto options = c.call<double>(Path::flash).attention();
  const Results flash = results(), kept = results();
  const LaidOut<double, 4> weights(Shape{c.B, H, c.L, c.S}, c.layouts[1]);
  const LaidOut<double, 4> lse(Shape{c.B, H, c.L, 2}, c.layouts[0]);
  flash_attention_forward<double>(q.view, k.view, v.view, options, flash.y.view, lse.view);
  flash_attention_backward<double>(d_out.view, {q.view, k.view, v.view}, flash.y.view, lse.view,
                                   options, {flash.dq.view, flash.dk.view, flash.dv.view});
  attention_forward<double>(q.view, k.view, v.view, options, weights.view, kept.y.view);
  attention_backward<double>(d_out.view, {q.view, k.view, v.view}, weights.view, options,
                             {kept.dq.view, kept.dk.view, kept.dv.view});

  auto wide_q = convert<long double>(In<double, 4>(query));
  auto wide_k = convert<long double>(In<double, 4>(key));
  auto wide_v = convert<long double>(In<double, 4>(value));
  const double max_dy = greatest<4>(dy);
  GradientCheck<long double> check(check_options(c, max_dy));
  check.input("q", as_view(wide_q), kept.dq.view);
  check.input("k", as_view(wide_k), kept.dk.view);
  check.input("v", as_view(wide_v), kept.dv.view);
  Verdict verdict;
  verdict.paths = std::max({error_of<4>(flash.dq.view, kept.dq.view, max_dy),
                            error_of<4>(flash.dk.view, kept.dk.view, max_dy),
                            error_of<4>(flash.dv.view, kept.dv.view, max_dy)});
  const auto wide_options = c.call<long double>(Path::materialized).attention();
  Tensor4<long double> wide_weights(Shape{c.B, H, c.L, c.S}), wide_y(dy.shape());
  verdict.report = check.run([&] {
    attention_forward<long double>(wide_q, wide_k, wide_v, wide_options, wide_weights, wide_y);
    return weighted_sum(dy, wide_y);
  });
  return verdict;
}

}  // namespace

TEST_CASE("gradients of random configurations are their differences in long double", "[nn]") {
  double worst = 0;
  for (const std::uint64_t number : configuration_numbers()) {
    const RandomConfiguration c = random_configuration(number);
    INFO(describe(c));
    const Verdict verdict = c.bare ? check_attention(c) : check_module(c);
    INFO(verdict.report << "\none path against the other: " << verdict.paths);
    CHECK((verdict.report.ok(tolerance) && verdict.paths <= tolerance));
    worst = std::max(worst, verdict.worst());
  }
  WARN("worst error of a gradient: " << worst);
}

TEST_CASE("random configurations hold every feature at least 30 times", "[nn]") {
  if (std::getenv("HEADWISE_SEED") || std::getenv("HEADWISE_CONFIGURATIONS")) return;
  std::map<std::string, int> histogram;
  for (const std::uint64_t number : configuration_numbers()) {
    for (const std::string& feature : features(random_configuration(number))) ++histogram[feature];
  }
  std::string table;
  for (const auto& [feature, count] : histogram) {
    table += "\n  " + std::to_string(count) + "  " + feature;
    CAPTURE(feature);
    CHECK(count >= 30);
  }
  WARN("configurations that have" << table);
  CHECK(histogram.size() == 62);
}
