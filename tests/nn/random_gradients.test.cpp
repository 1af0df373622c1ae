// Every gradient of thousands of random configurations against differences in long double.
//
// The analytic gradients are computed in double on both paths. The reference is the readable path
// of a MultiHeadAttention<long double> with the same parameters, by central differences, and once
// more by the five-point stencil where these are not near enough: they take half the time, and
// about one configuration in two hundred is more curved than they can follow. The configurations
// are cut into four test cases, which ctest runs beside one another; each ends with one line: how
// many, the worst error, and which configuration has it.
//
// Environment: HEADWISE_SEED=n runs configuration n alone. HEADWISE_CONFIGURATIONS=n runs n of them
// instead of 2,000, from number HEADWISE_FIRST=m on (1), so that processes may share a long run.
// 100,000 on 16 cores:
//
//   for n in $(seq 1 6250 100000); do echo HEADWISE_FIRST=$n; done | xargs -P 16 -I{}
//     env {} HEADWISE_CONFIGURATIONS=6250 ./headwise_tests_nn "gradients of random*"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/configuration_features.hpp"
#include "support/configuration_numbers.hpp"
#include "support/random_configuration.hpp"

namespace nn_random_gradients {

using namespace headwise_tests;

namespace {

constexpr double tolerance = 1e-9;
// Beyond it an error is asked for again by five points: most of it is that of two.
constexpr double near_enough = tolerance / 4;

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

/// The least standard deviation that layer_norm divides a row by, rounded down to a power of 2.
double least_spread(const MultiHeadAttentionOptions& o, In<double, 3> x) {
  const auto D = static_cast<double>(o.d_model);
  double least = 1;
  for_each_index(Shape{x.extent(0), x.extent(1)}, [&](const Shape<2>& row) {
    double mean = 0, variance = 0;
    for (Index n = 0; n < o.d_model; ++n) mean += x(row[0], row[1], n) / D;
    for (Index n = 0; n < o.d_model; ++n) {
      variance += std::pow(x(row[0], row[1], n) - mean, 2) / D;
    }
    least = std::min(least, std::sqrt(variance + o.layer_norm_epsilon));
  });
  return std::exp2(std::floor(std::log2(least)));
}

/// Every element of a tensor of up to 12, in each 20th configuration of up to 120; along random
/// directions otherwise: four, or two where sequences are long. (Those are a sixth of the
/// configurations, and with four directions they took three quarters of the time.)
GradientCheckOptions check_options(const RandomConfiguration& c, Stencil stencil, double max_dy,
                                   double spread = 1) {
  GradientCheckOptions options;
  options.tolerance = tolerance;
  options.stencil = stencil;
  // Truncation and rounding meet here: with five points and 2^-13 two of 100,000 were off by up to
  // 1.8e-9, along directions in W_Q that turn every score at once. layer_norm bends at the scale of
  // its row's deviation: with one step for all, a row of 3 that deviates by 4e-3 was off by 2e-6,
  // once in 100,000. Slopes of ALiBi move keys 260 apart by 260 steps: where a function bends such
  // scores, two of 6,000 were off by up to 6e-9 with 2^-14.
  const double wide = c.score.tensors.function.absent() ? 0x1.0p-14 : 0x1.0p-16;
  options.step = (stencil == Stencil::five_point ? wide : 0x1.0p-22) * spread;
  options.seed = c.seed;
  options.full_below = c.seed % 20 == 0 ? 120 : 12;
  options.directions = c.L > 44 ? 2 : 4;
  options.max_dy = max_dy;
  return options;
}

struct Verdict {
  GradientReport report;
  double paths = 0;  // the worst error of one path against the other
  double worst() const { return std::max(report.worst().error, paths); }
  bool ok() const { return report.ok(tolerance) && paths <= tolerance; }
};

struct ModuleGradients {
  CrossAttentionGradients<double> inputs;
  MultiHeadAttentionGradients<double> parameters;
  ScoreTensors<double> scores;
};

ModuleGradients module_gradients(const MultiHeadAttention<double>& module,
                                 const RandomConfiguration& c, Path path, In<double, 3> query,
                                 In<double, 3> key, In<double, 3> value, In<double, 3> dy) {
  MultiHeadAttentionCache<double> cache;
  ModuleGradients d{{}, module.zero_gradients(), c.score.tensors.zeros()};
  d.parameters.score = d.scores.gradients();
  if (c.self) {
    (void)module.forward(query, c.call<double>(path), cache);
    d.inputs.query = module.backward(dy, cache, d.parameters);
  } else {
    (void)module.forward(query, key, value, c.call<double>(path), cache);
    d.inputs = module.backward_cross(dy, cache, d.parameters);
  }
  return d;
}

Verdict check_module(const RandomConfiguration& c, Stencil stencil) {
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
  ModuleGradients flash = analytic(Path::flash), kept = analytic(Path::materialized);

  MultiHeadAttention<long double> reference(o);
  auto wide_query = convert<long double>(In<double, 3>(query));
  auto wide_key = convert<long double>(In<double, 3>(key));
  auto wide_value = convert<long double>(In<double, 3>(value));
  const double max_dy = greatest<3>(dy);
  const double spread = o.layer_norm ? least_spread(o, query) : 1;
  GradientCheck<long double> check(check_options(c, stencil, max_dy));
  GradientCheck<long double> check_normed(check_options(c, stencil, max_dy, spread));
  Verdict verdict;
  const auto compare = [&](const std::string& name, auto wide, const auto& a, const auto& b) {
    (o.layer_norm && name == "query" ? check_normed : check).input(name, wide, a);
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
  ScoreTensors<long double> scores = c.score.tensors.converted<long double>();
  scores.for_each(
      [&](const char* name, auto& x, auto& a, auto& b) {
        constexpr int rank = std::decay_t<decltype(x)>::rank;
        compare(name, as_view(x), In<double, rank>(a), In<double, rank>(b));
      },
      flash.scores, kept.scores);
  const auto loss = [&] {
    const MovedCall moved(c, scores, Path::materialized);
    return weighted_sum(dy, c.self
                                ? reference.forward(wide_query, moved.call)
                                : reference.forward(wide_query, wide_key, wide_value, moved.call));
  };
  verdict.report = check.run(loss);
  if (o.layer_norm) verdict.report.inputs.push_back(check_normed.run(loss).inputs.front());
  return verdict;
}

Verdict check_attention(const RandomConfiguration& c, Stencil stencil) {
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
  ScoreTensors<double> flash_scores = c.score.tensors.zeros(), kept_scores = flash_scores;
  flash_attention_backward<double>(
      d_out.view, {q.view, k.view, v.view}, flash.y.view, lse.view, options,
      {flash.dq.view, flash.dk.view, flash.dv.view, flash_scores.gradients()});
  attention_forward<double>(q.view, k.view, v.view, options, weights.view, kept.y.view);
  attention_backward<double>(d_out.view, {q.view, k.view, v.view}, weights.view, options,
                             {kept.dq.view, kept.dk.view, kept.dv.view, kept_scores.gradients()});

  auto wide_q = convert<long double>(In<double, 4>(query));
  auto wide_k = convert<long double>(In<double, 4>(key));
  auto wide_v = convert<long double>(In<double, 4>(value));
  const double max_dy = greatest<4>(dy);
  GradientCheck<long double> check(check_options(c, stencil, max_dy));
  check.input("q", as_view(wide_q), kept.dq.view);
  check.input("k", as_view(wide_k), kept.dk.view);
  check.input("v", as_view(wide_v), kept.dv.view);
  Verdict verdict;
  verdict.paths = std::max({error_of<4>(flash.dq.view, kept.dq.view, max_dy),
                            error_of<4>(flash.dk.view, kept.dk.view, max_dy),
                            error_of<4>(flash.dv.view, kept.dv.view, max_dy)});
  ScoreTensors<long double> scores = c.score.tensors.converted<long double>();
  scores.for_each(
      [&](const char* name, auto& x, auto& a, auto& b) {
        constexpr int rank = std::decay_t<decltype(x)>::rank;
        check.input(name, as_view(x), In<double, rank>(a));
        verdict.paths = std::max(verdict.paths, error_of<rank>(b, a, max_dy));
      },
      flash_scores, kept_scores);
  Tensor4<long double> wide_weights(Shape{c.B, H, c.L, c.S}), wide_y(dy.shape());
  verdict.report = check.run([&] {
    const MovedCall moved(c, scores, Path::materialized);
    attention_forward<long double>(wide_q, wide_k, wide_v, moved.call.attention(), wide_weights,
                                   wide_y);
    return weighted_sum(dy, wide_y);
  });
  return verdict;
}

Verdict check(const RandomConfiguration& c) {
  const auto by = c.bare ? &check_attention : &check_module;
  const Verdict verdict = by(c, Stencil::central);
  return verdict.ok() && verdict.worst() <= near_enough ? verdict : by(c, Stencil::five_point);
}

void check_quarter(std::uint64_t part) {
  const auto [first, count] = quarter_of_configurations(part);
  if (count == 0) return;
  double worst = -1;
  std::uint64_t worst_number = 0;
  for (std::uint64_t number = first; number < first + count; ++number) {
    const RandomConfiguration c = random_configuration(number);
    INFO(describe(c));
    const Verdict verdict = check(c);
    INFO(verdict.report << "\none path against the other: " << verdict.paths);
    CHECK(verdict.ok());
    if (verdict.worst() > worst) worst = verdict.worst(), worst_number = number;
  }
  WARN(count << " configurations from " << first << " on: worst error " << worst << ", in number "
             << worst_number);
}

}  // namespace

TEST_CASE("gradients of random configurations are their differences in long double, part 1 of 4",
          "[nn]") {
  check_quarter(0);
}
TEST_CASE("gradients of random configurations are their differences in long double, part 2 of 4",
          "[nn]") {
  check_quarter(1);
}
TEST_CASE("gradients of random configurations are their differences in long double, part 3 of 4",
          "[nn]") {
  check_quarter(2);
}
TEST_CASE("gradients of random configurations are their differences in long double, part 4 of 4",
          "[nn]") {
  check_quarter(3);
}

}  // namespace nn_random_gradients
