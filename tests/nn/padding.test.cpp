// Padding that a mask hides as keys, as Mask::key_lengths does, and that has no part in the loss:
// whatever it holds, it reaches no gradient. Its own queries are computed from it, and are not
// numbers.
#include <cmath>
#include <limits>

#include "headwise/nn/transformer_block.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/parameter_values.hpp"

namespace nn_padding {

using namespace headwise_tests;

namespace {

const std::vector<Index> lengths{4, 7};
constexpr Index L = 7, D = 24;

bool is_padding(const Shape<3>& at) { return at[1] >= lengths[static_cast<std::size_t>(at[0])]; }

template <class T>
struct Padded {
  Tensor3<T> x = random_tensor<T>(Shape{Index{2}, L, D}, 1);
  Tensor3<T> dy = random_tensor<T>(Shape{Index{2}, L, D}, 2);

  explicit Padded(T padding) {
    for_each_index(x.shape(), [&](const Shape<3>& at) {
      if (!is_padding(at)) return;
      x(at) = at[2] % 3 == 1 ? T(0) : padding;
      dy(at) = T(0);
    });
  }
};

/// dx and all gradients are those of padding of zeros, and its own dx is 0.
template <class T, class Module>
void check_padding(const Module& module, const typename Module::Call& call,
                   const Context& context = {}) {
  const auto run = [&](const Padded<T>& of) {
    typename Module::Cache cache;
    auto gradients = module.zero_gradients();
    (void)module.forward(of.x, call, cache, context);
    Tensor3<T> dx = module.backward(of.dy, cache, gradients, context);
    return std::pair{std::move(dx), values_of<T>(gradients)};
  };
  const auto [dx, gradients] = run(Padded<T>(T(0)));
  for (const T padding :
       {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
        (std::numeric_limits<T>::max)(), T(std::sqrt((std::numeric_limits<T>::max)()))}) {
    const auto [dx_padded, gradients_padded] = run(Padded<T>(padding));
    CAPTURE(padding);
    CHECK(bitwise_equal(dx_padded, dx));
    CHECK(same_bits(gradients_padded, gradients));
    bool zero = true;
    for_each_index(dx.shape(), [&, &of_padding = dx_padded](const Shape<3>& at) {
      zero = zero && (!is_padding(at) || of_padding(at) == T(0));
    });
    CHECK(zero);
  }
}

template <class Module>
Module drawn_module(Module module) {
  draw_all(module.parameters(), 3);
  return module;
}

}  // namespace

TEMPLATE_TEST_CASE("padding reaches no gradient of attention, whatever it holds", "[nn]", float,
                   double) {
  const std::vector<MultiHeadAttentionOptions> all = {
      {.d_model = D, .num_heads = 3},
      {.d_model = D, .num_heads = 4, .num_kv_heads = 2, .d_head = 10, .d_value = 5},
      {.d_model = D, .num_heads = 2, .layer_norm = true},
      {.d_model = D, .num_heads = D},  // scores of one product, which may all be infinite
      {.d_model = D, .num_heads = D, .sinks = true},
      {.d_model = D, .num_heads = 2, .qk_norm = true, .rotary = RotaryOptions{}}};
  for (const MultiHeadAttentionOptions& options : all) {
    const auto module = drawn_module(MultiHeadAttention<TestType>(options));
    for (const Path path : {Path::flash, Path::materialized}) {
      MultiHeadAttentionCall<TestType> call{.path = path};
      call.mask = {causal, Mask::key_lengths(lengths)};
      check_padding<TestType>(module, call);
      call.mask = {Mask::key_lengths(lengths)};
      check_padding<TestType>(module, call);
      call.weight_dropout = {.rate = 0.3, .seed = 5};
      call.score.softcap = TestType(4);
      check_padding<TestType>(module, call);
    }
  }
}

TEMPLATE_TEST_CASE("padding reaches no gradient of a block, whatever it holds", "[nn]", float,
                   double) {
  for (const bool norm_first : {true, false}) {
    for (const NormKind norm : {NormKind::layer_norm, NormKind::rms_norm}) {
      const auto block = drawn_module(TransformerBlock<TestType>({.d_model = D,
                                                                  .num_heads = 3,
                                                                  .gated = norm_first,
                                                                  .norm_first = norm_first,
                                                                  .norm = norm}));
      TransformerBlockCall<TestType> call;
      call.mask = {Mask::key_lengths(lengths)};
      for (const Path path : {Path::flash, Path::materialized}) {
        call.path = path;
        check_padding<TestType>(block, call);
      }
    }
  }
}

TEST_CASE("padding reaches nothing by a cache that is kept in 16 bits", "[nn]") {
  const auto block = drawn_module(TransformerBlock<float>({.d_model = D, .num_heads = 3}));
  TransformerBlockCall<float> call;
  call.mask = {Mask::key_lengths(lengths)};
  check_padding<float>(block, call, {.saved = saved_in<BFloat16>()});
}

}  // namespace nn_padding
