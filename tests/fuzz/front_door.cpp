// Fuzz target: calls of attention, flash attention and the module with shapes, strides, masks and
// options of any kind. Each is either refused with nothing written, exactly where it should be, or
// computes what naive loops compute.
#include <algorithm>
#include <optional>

#include "fuzz/attention_call.hpp"
#include "headwise/nn/multi_head_attention.hpp"

namespace headwise_fuzz {
namespace {

using Module = MultiHeadAttention<double>;

MultiHeadAttentionOptions draw_module_options(ByteReader& in) {
  MultiHeadAttentionOptions o;
  o.num_heads = in.between(1, 3) - (in.once_in(16) ? 1 : 0);
  o.d_model = in.once_in(8) ? in.between(-1, 6) : o.num_heads * in.between(1, 2);
  if (in.once_in(4)) o.num_kv_heads = in.between(-1, 3);
  if (in.once_in(4)) o.d_head = in.between(-1, 3);
  if (in.once_in(4)) o.d_value = in.between(-1, 3);
  if (in.once_in(4)) o.kdim = in.between(-1, 4);
  if (in.once_in(4)) o.vdim = in.between(-1, 4);
  const unsigned flags = in.byte();
  o.q_bias = (flags & 1u) != 0, o.k_bias = (flags & 2u) != 0, o.v_bias = (flags & 4u) != 0;
  o.o_bias = (flags & 8u) != 0;
  o.seed = in.byte();
  return o;
}

/// y = x w + b, a row [in] to a row [out], in long double.
std::vector<Real> affine(const std::vector<Real>& x, const In<double, 2>& w,
                         const In<double, 1>& b) {
  std::vector<Real> y;
  for (Index o = 0; o < w.extent(1); ++o) {
    Real sum = b.absent() ? 0 : Real{b(o)};
    for (Index i = 0; i < w.extent(0); ++i) sum += x[static_cast<std::size_t>(i)] * Real{w(i, o)};
    y.push_back(sum);
  }
  return y;
}

/// The heads of x w + b: [B, heads, N, width], as the oracle takes them.
Field project(const In<double, 3>& x, const In<double, 2>& w, const In<double, 1>& b, Index heads) {
  const Index B = x.extent(0), N = x.extent(1), width = w.extent(1) / std::max(heads, Index{1});
  Field field(B * heads * N * width);
  for (Index n = 0; n < B * N; ++n) {
    std::vector<Real> row;
    for (Index i = 0; i < x.extent(2); ++i) row.push_back(Real{x(n / N, n % N, i)});
    const auto y = affine(row, w, b);
    for (Index h = 0; h < heads; ++h) {
      for (Index c = 0; c < width; ++c) {
        field[((n / N * heads + h) * N + n % N) * width + c] =
            y[static_cast<std::size_t>(h * width + c)];
      }
    }
  }
  return field;
}

struct ModuleInputs {
  In<double, 3> query, key, value;
  bool is_causal;
};

/// The module written down: projections, the oracle's attention, the output projection.
Field naive_module(const Module& module, const ModuleInputs& x) {
  const auto& o = module.options();
  const auto& p = module.parameters();
  const Index B = x.query.extent(0), L = x.query.extent(1), S = x.key.extent(1), H = o.num_heads;
  OracleProblem problem;
  problem.sizes = {B, H, o.num_kv_heads, L, S, o.d_head, o.d_value};
  problem.q = project(x.query, p.W_Q(), p.b_q, H);
  problem.k = project(x.key, p.W_K(), p.b_k, o.num_kv_heads);
  problem.v = project(x.value, p.W_V(), p.b_v, o.num_kv_heads);
  problem.d_o = Field(B * H * L * o.d_value);
  problem.scale = 1 / std::sqrt(static_cast<Real>(o.d_head));
  if (x.is_causal) {
    problem.visible = [=](Index, Index, Index i, Index j) { return j <= i + S - L; };
  }
  const OracleResult heads = oracle_attention(problem);
  Field y(B * L * o.d_model);
  for (Index n = 0; n < B * L; ++n) {
    std::vector<Real> row;
    for (Index h = 0; h < H; ++h) {
      for (Index c = 0; c < o.d_value; ++c) {
        row.push_back(heads.o[((n / L * H + h) * L + n % L) * o.d_value + c]);
      }
    }
    const auto out = affine(row, p.w_o, p.b_o);
    for (Index c = 0; c < o.d_model; ++c) {
      y.add(n * o.d_model + c, out[static_cast<std::size_t>(c)],
            1 + heads.o.size() + heads.condition);
    }
  }
  return y;
}

std::vector<double> values_of(const Module::Gradients& gradients) {
  std::vector<double> values;
  gradients.for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) { values.push_back(view(at)); });
  });
  return values;
}

void run_module(ByteReader& in) {
  std::optional<Module> module;
  try {
    module.emplace(draw_module_options(in));
  } catch (const ArgumentError&) {
    return;
  } catch (const ShapeError&) {
    return;
  }
  const auto& o = module->options();
  const Index B = in.between(0, 2), L = in.between(0, 4), S = in.between(0, 4);
  const bool self = in.flag() && o.kdim == o.d_model && o.vdim == o.d_model, is_causal = in.flag();
  const Index off = in.once_in(8) ? 1 : 0;
  Numbers numbers(in);
  const auto input = [&](const Shape<3>& shape) {
    Placed<double, 3> x(in, shape, Role::input, std::numeric_limits<double>::quiet_NaN());
    x.set([&] { return numbers.next(); });
    return x;
  };
  const auto query = input({B, L, o.d_model + off}), key = input({B, S, o.kdim}),
             value = input({B, S, o.vdim}), dy = input({B, L, o.d_model});
  MultiHeadAttentionCall<double> call;
  if (is_causal) call.mask.add(causal);
  std::array<Module::Gradients, 2> gradients{module->zero_gradients(), module->zero_gradients()};
  for (const Path path : {Path::materialized, Path::flash}) {
    call.path = path;
    Module::Cache cache;
    Tensor<double, 3> y;
    try {
      y = self ? module->forward(query.view(), call, cache)
               : module->forward(query.view(), key.view(), value.view(), call, cache);
    } catch (const ShapeError&) {
      check(off != 0, "a module's inputs that fit are not refused");
      check(!cache.filled, "a refused forward fills no cache");
      return;
    }
    check(off == 0, "a module's inputs that do not fit are refused");
    const In<double, 3> x = query.view();
    const Field expected = self ? naive_module(*module, {x, x, x, is_causal})
                                : naive_module(*module, {x, key.view(), value.view(), is_causal});
    check(near<double, 3>(y, expected, 1024), "y is the naive loops'");
    auto& sums = gradients[path == Path::flash ? 1 : 0];
    if (self) {
      (void)module->backward(dy.view(), cache, sums);
    } else {
      (void)module->backward_cross(dy.view(), cache, sums);
    }
  }
  const auto kept = values_of(gradients[0]), tiled = values_of(gradients[1]);
  double worst = 0, size = 1;
  for (std::size_t n = 0; n < kept.size(); ++n) {
    worst = std::max(worst, std::abs(kept[n] - tiled[n]));
    size = std::max(size, std::abs(kept[n]));
  }
  check(worst <= 1e-9 * size * size, "both paths have the same gradients");
}

}  // namespace
}  // namespace headwise_fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise_fuzz;
  ByteReader in(data, size);
  switch (in.byte() % 4) {
    case 0:
      AttentionCall<float>(in, true).run();
      break;
    case 3:
      run_module(in);
      break;
    default:
      AttentionCall<double>(in, true).run();
      break;
  }
  return 0;
}
