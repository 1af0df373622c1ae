// TransformerBlock: its modules in a row, either order of the norms, either norm.
#include "headwise/nn/transformer_block.hpp"

#include "headwise/nn/rms_norm.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/laid_out.hpp"
#include "support/parameter_values.hpp"

namespace nn_transformer_block {

using namespace headwise_tests;

namespace {

template <class T>
TransformerBlock<T> drawn(const TransformerBlockOptions& options) {
  TransformerBlock<T> block(options);
  draw_all(block.parameters(), 7);
  return block;
}

const TransformerBlockOptions small{
    .d_model = 6, .num_heads = 3, .num_kv_heads = 1, .d_hidden = 5, .norm_epsilon = 1e-2};

TransformerBlockOptions with(bool norm_first, NormKind norm, bool gated = false) {
  TransformerBlockOptions o = small;
  o.norm_first = norm_first;
  o.norm = norm;
  o.gated = gated;
  return o;
}

TransformerBlockCall<double> dropping() {
  TransformerBlockCall<double> call;
  call.mask = {causal};
  call.weight_dropout = {.rate = 0.2, .seed = 1};
  call.attention_dropout = {.rate = 0.2, .seed = 2};
  call.hidden_dropout = {.rate = 0.2, .seed = 3};
  call.output_dropout = {.rate = 0.2, .seed = 4};
  return call;
}

/// The block by its modules.
template <class T>
Tensor3<T> by_modules(const TransformerBlock<T>& block, const Tensor3<T>& x,
                      const TransformerBlockCall<T>& call) {
  const TransformerBlockOptions& o = block.options();
  const TransformerBlockParameters<T>& p = block.parameters();
  MultiHeadAttention<T> attention(o.attention());
  attention.parameters() = p.attention;
  FeedForward<T> feed_forward(o.feed_forward());
  feed_forward.parameters() = p.feed_forward;
  const auto norm = [&](const Tensor3<T>& of, const LayerNormParameters<T>& with) {
    Tensor3<T> y(of.shape());
    const Tensor2<T> rows = contiguous(In<T, 2>(merge_rows(of)));
    Tensor2<T> normed;
    if (o.norm == NormKind::rms_norm) {
      RMSNorm<T> module(o.d_model, true, o.norm_epsilon);
      module.parameters().gamma = with.gamma;
      normed = module.forward(rows);
    } else {
      LayerNorm<T> module(o.d_model, true, o.norm_epsilon);
      module.parameters() = with;
      normed = module.forward(rows);
    }
    copy(In<T, 2>(normed), merge_rows(y));
    return y;
  };
  const auto plus = [](const Tensor3<T>& a, const Tensor3<T>& b) {
    Tensor3<T> y = a;
    for (Index n = 0; n < y.size(); ++n) y.data()[n] += b.data()[n];
    return y;
  };
  const auto attended = [&](const Tensor3<T>& of) {
    return attention.forward(of, call.attention());
  };
  const auto fed = [&](const Tensor3<T>& of) {
    Tensor3<T> y(of.shape());
    const Tensor2<T> rows = feed_forward.forward(merge_rows(of), call.feed_forward());
    copy(In<T, 2>(rows), merge_rows(y));
    return y;
  };
  if (o.norm_first) {
    const Tensor3<T> h = plus(x, attended(norm(x, p.norm1)));
    return plus(h, fed(norm(h, p.norm2)));
  }
  const Tensor3<T> h = norm(plus(x, attended(x)), p.norm1);
  return norm(plus(h, fed(h)), p.norm2);
}

}  // namespace

TEMPLATE_TEST_CASE("a TransformerBlock is its modules in a row", "[nn]", float, double) {
  using T = TestType;
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto block = drawn<T>(with(norm_first, norm, path == Path::flash));
  const auto x = random_tensor<T>(Shape{2, 5, 6}, 1);
  TransformerBlockCall<T> call;
  call.mask = {causal};
  call.path = path;
  call.attention_dropout = {.rate = 0.5, .seed = 1};
  call.hidden_dropout = {.rate = 0.5, .seed = 2};
  call.output_dropout = {.rate = 0.5, .seed = 3};
  TransformerBlockCache<T> cache;
  const auto y = block.forward(x, call, cache);
  CHECK(bitwise_equal(y, by_modules(block, x, call)));
  CHECK(bitwise_equal(y, block.forward(x, call)));
}

TEST_CASE("the gradients of a TransformerBlock are its differences", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool drops = GENERATE(false, true);
  auto block = drawn<double>(with(norm_first, norm, drops));
  auto x = random_tensor<double>(Shape{2, 4, 6}, 2);
  const auto dy = random_tensor<double>(x.shape(), 3);
  TransformerBlockCall<double> call;
  if (drops) call = dropping();
  call.path = path;
  TransformerBlockCache<double> cache;
  auto gradients = block.zero_gradients();
  (void)block.forward(x, call, cache);
  const auto dx = block.backward(dy, cache, gradients);
  // b_K has no gradient: its differences are what rounding leaves.
  GradientCheck<double> check({.tolerance = 1e-7, .stencil = Stencil::five_point});
  check.input("x", x, dx);
  check_inputs(check, block.parameters(), gradients);
  const auto report = check.run([&] { return weighted_sum(dy, block.forward(x, call)); });
  CAPTURE(norm_first, static_cast<int>(norm), drops, report);
  CHECK(report);
}

TEST_CASE("the parameters of a TransformerBlock have names, and its gradients the same", "[nn]") {
  TransformerBlockOptions o = small;
  const TransformerBlock<double> full(o);
  CHECK(names_of(full.parameters(), "blocks.0.") ==
        "blocks.0.norm1.gamma blocks.0.norm1.beta blocks.0.attention.W_Q blocks.0.attention.W_K "
        "blocks.0.attention.W_V blocks.0.attention.W_O blocks.0.attention.b_Q "
        "blocks.0.attention.b_K blocks.0.attention.b_V blocks.0.attention.b_O "
        "blocks.0.norm2.gamma blocks.0.norm2.beta blocks.0.feed_forward.W_up "
        "blocks.0.feed_forward.W_down blocks.0.feed_forward.b_up blocks.0.feed_forward.b_down ");
  CHECK(names_of(full.zero_gradients(), "a.") == names_of(full.parameters(), "a."));
  o.attention_bias = o.feed_forward_bias = o.norm_bias = false;
  o.gated = true;
  const TransformerBlock<double> bare(o);
  CHECK(names_of(bare.parameters()) ==
        "norm1.gamma attention.W_Q attention.W_K attention.W_V attention.W_O norm2.gamma "
        "feed_forward.W_gate feed_forward.W_up feed_forward.W_down ");
  CHECK(names_of(bare.zero_gradients()) == names_of(bare.parameters()));
}

TEST_CASE("a TransformerBlock starts by seed, its branches by numbers of their own", "[nn]") {
  const TransformerBlock<double> a({.d_model = 8, .num_heads = 2}),
      b({.d_model = 8, .num_heads = 2}), c({.d_model = 8, .num_heads = 2, .seed = 1});
  CHECK(a.options().d_hidden == 32);
  CHECK(a.options().num_kv_heads == 2);
  CHECK(same_bits(values_of<double>(a.parameters()), values_of<double>(b.parameters())));
  CHECK_FALSE(same_bits(values_of<double>(a.parameters()), values_of<double>(c.parameters())));
  const double ratio =
      a.parameters().attention.W_Q()(0, 0) / a.parameters().feed_forward.w_in(0, 0);
  const double next = a.parameters().attention.W_Q()(0, 1) / a.parameters().feed_forward.w_in(0, 1);
  CHECK(std::abs(ratio - next) > 1e-3);  // other draws, not the same ones scaled
}

TEST_CASE("a causal TransformerBlock knows nothing of the future, to the bit", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const auto block = drawn<float>(with(norm_first, NormKind::layer_norm));
  const auto x = random_tensor<float>(Shape{1, 9, 6}, 4);
  auto other = x;
  for (Index n = 0; n < 6; ++n) other(0, 6, n) = 100;
  const TransformerBlockCall<float> call{.mask = causal};
  const auto y = block.forward(x, call), changed = block.forward(other, call);
  CHECK(bitwise_equal(In<float, 3>(slice(y, 1, 0, 6)), In<float, 3>(slice(changed, 1, 0, 6))));
  CHECK_FALSE(bitwise_equal(y, changed));
}

TEST_CASE("the modules within a block are those of its options", "[nn]") {
  const TransformerBlockOptions o = small.resolved();
  const auto attention = o.attention(), resolved = attention.resolved();
  CHECK((attention.same_shape(resolved) && attention.q_width() == 6 && attention.k_width() == 2));
  CHECK((attention.d_value == 2 && attention.fused() && attention.o_bias && attention.q_bias));
  CHECK(o.feed_forward().same_shape(o.feed_forward().resolved()));
}

TEST_CASE("a TransformerBlock has the same bits for any strides and number of threads", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const auto block = drawn<float>(with(norm_first, NormKind::rms_norm, true));
  const auto x = random_tensor<float>(Shape{9, 70, 6}, 5), dy = random_tensor<float>(x.shape(), 6);
  const auto run = [&](In<float, 3> input, In<float, 3> flow, const Context& context) {
    TransformerBlockCache<float> cache, moved;
    auto gradients = block.zero_gradients();
    const auto y = block.forward(input, {}, cache, context);
    moved = std::move(cache);
    const auto dx = block.backward(flow, moved, gradients, context);
    auto values = values_of<float>(gradients);
    values.insert(values.end(), y.begin(), y.end());
    values.insert(values.end(), dx.begin(), dx.end());
    return values;
  };
  const auto plain = run(x, dy, {});
  ThreadPool pool(3);  // whose threads share so many tokens
  CHECK(same_bits(plain, run(x, dy, {.executor = pool})));
  const LaidOut<float, 3> turned(In<float, 3>(x), Layout::sequence_first),
      wide(In<float, 3>(dy), Layout::in_wider_rows);
  CHECK(same_bits(plain, run(turned.view, wide.view, {})));
  const LaidOut<float, 3> wide_x(In<float, 3>(x), Layout::in_wider_rows),
      turned_dy(In<float, 3>(dy), Layout::sequence_first);
  CHECK(same_bits(plain, run(wide_x.view, turned_dy.view, {})));
}

TEST_CASE("backward of a TransformerBlock adds to the gradients, zero sets them back", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const auto block = drawn<double>(with(norm_first, NormKind::layer_norm));
  const auto x = random_tensor<double>(Shape{2, 5, 6}, 7);
  TransformerBlockCache<double> cache;
  (void)block.forward(x, {}, cache);
  auto once = block.zero_gradients(), twice = block.zero_gradients();
  (void)block.backward(x, cache, once);
  for (int n = 0; n < 2; ++n) (void)block.backward(x, cache, twice);
  const auto a = values_of<double>(once), b = values_of<double>(twice);
  for (std::size_t n = 0; n < a.size(); ++n)
    CHECK(std::abs(b[n] - 2 * a[n]) <= 1e-13 * (1 + std::abs(a[n])));
  twice.zero();
  CHECK(same_bits(values_of<double>(twice), values_of<double>(block.zero_gradients())));
  const Tensor3<double> empty({0, 5, 6});
  CHECK(block.forward(empty, {}, cache).shape() == empty.shape());
  CHECK(block.backward(empty, cache, once).shape() == empty.shape());
  CHECK(same_bits(values_of<double>(once), a));
}

TEST_CASE("a TransformerBlock that runs out of memory leaves cache and gradients as they were",
          "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto block = drawn<double>(with(norm_first, NormKind::layer_norm, true));
  const auto x = random_tensor<double>(Shape{2, 5, 6}, 8),
             other = random_tensor<double>(Shape{1, 4, 6}, 9);
  auto call = dropping();
  call.path = path;
  TransformerBlockCache<double> cache;
  auto gradients = block.zero_gradients();
  (void)block.forward(x, call, cache);
  const auto dx = block.backward(x, cache, gradients);
  const auto once = values_of<double>(gradients);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)block.backward(x, cache, gradients, {.memory = memory});
            },
            [&] { return same_bits(values_of<double>(gradients), once); }) >= 12);
  CHECK_FALSE(same_bits(values_of<double>(gradients), once));
  bool replaced = false;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)block.forward(other, call, cache, {.memory = memory});
              replaced = cache.x.data() == other.data();
              cache = {};  // before its memory goes
            },
            [&] {
              auto unused = block.zero_gradients();
              return bitwise_equal(block.backward(x, cache, unused), dx);
            }) >= 8);
  CHECK(replaced);
}

TEST_CASE("padding that neither sees nor is seen reaches no gradient of a block, whatever it holds",
          "[nn]") {
  const auto block = drawn<double>(with(true, NormKind::layer_norm));
  Tensor4<bool> keep(Shape{2, 3, 5, 5});
  for_each_index(keep.shape(),
                 [&](const Shape<4>& i) { keep(i) = i[0] == 0 || (i[2] < 3 && i[3] < 3); });
  const auto x = random_tensor<double>(Shape{2, 5, 6}, 10);
  auto dy = random_tensor<double>(Shape{2, 5, 6}, 11), bad = x;
  for (Index i = 3; i < 5; ++i) {
    for (Index n = 0; n < 6; ++n) dy(1, i, n) = 0;
  }
  bad(1, 3, 2) = std::numeric_limits<double>::quiet_NaN();
  bad(1, 4, 0) = std::numeric_limits<double>::infinity();
  TransformerBlockCall<double> call;
  call.mask = {Mask::keep(keep)};
  call.path = GENERATE(Path::flash, Path::materialized);
  const auto run = [&](const Tensor3<double>& input) {
    TransformerBlockCache<double> cache;
    auto gradients = block.zero_gradients();
    (void)block.forward(input, call, cache);
    const auto dx = block.backward(dy, cache, gradients);
    auto values = values_of<double>(gradients);
    values.insert(values.end(), dx.begin(), dx.end());
    return values;
  };
  CHECK(same_bits(run(x), run(bad)));
}

}  // namespace nn_transformer_block
