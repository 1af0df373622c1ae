// MultiHeadAttention as a module: self and cross, both paths, with everything that its options
// know; shards, tallies and the trace; blocks around it, decoders of them. Part of the tour
// (tour.hpp).
#pragma once

#include "headwise/analysis/count_flops.hpp"
#include "headwise/analysis/count_memory.hpp"
#include "headwise/nn/cost.hpp"
#include "headwise/nn/head_parallel.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "tour/attention.hpp"

namespace headwise_tests {
namespace {

template <class T>
void keep_gradients(const std::string& name, const MultiHeadAttentionGradients<T>& gradients,
                    std::vector<Named>& results) {
  gradients.for_each([&](const std::string& part, const auto& view) {
    Named named{name + part, {}, false};
    for_each_index(view.shape(), [&](const auto& at) { named.values.push_back(double(view(at))); });
    results.push_back(named);
  });
}

template <class T>
MultiHeadAttention<T> module_of(const MultiHeadAttentionOptions& options) {
  MultiHeadAttention<T> module(options);
  std::uint64_t seed = 20;
  for (Tensor1<T>* bias : {&module.parameters().b_q, &module.parameters().b_k,
                           &module.parameters().b_v, &module.parameters().b_o}) {
    if (bias->size() != 0) *bias = noise<T>(bias->shape(), ++seed);
  }
  return module;
}

template <class T>
void visit_self_attention(const std::string& type, Path path, const Context& context,
                          std::vector<Named>& results) {
  const auto module = module_of<T>({.d_model = 12,
                                    .num_heads = 4,
                                    .num_kv_heads = 2,
                                    .q_bias = true,
                                    .k_bias = true,
                                    .v_bias = true,
                                    .layer_norm = true,
                                    .seed = 1});
  auto x = noise<T>(Shape{2, 53, 12}, 21);
  const auto dy = noise<T>(Shape{2, 53, 12}, 22);
  const std::vector<Index> lengths = {53, 40};
  for (Index j = 40; j < 53; ++j) x(1, j, j % 12) = from_bits<T>(nan_bits);  // padding
  MultiHeadAttentionCall<T> call{.mask = {causal, Mask::key_lengths(lengths)}, .path = path};
  const std::string name = type + "self-attention, ";
  keep(results, name + "inference", module.forward(x, call, context));
  call.weight_dropout = {0.2, 3, 4};
  call.output_dropout = {0.1, 3, 4};
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  keep(results, name + "y", module.forward(x, call, cache, context));
  keep(results, name + "dx", module.backward(dy, cache, gradients, context));
  gradients.add(gradients);
  keep_gradients(name, gradients, results);
}

template <class T>
void visit_block(const std::string& type, Path path, const Context& context,
                 std::vector<Named>& results) {
  const auto dy = noise<T>(Shape{2, 23, 12}, 29);
  auto x = noise<T>(Shape{2, 23, 12}, 30);
  x(1, 20, 3) = from_bits<T>(nan_bits);  // a causal mask hides it from most
  for (const bool norm_first : {true, false}) {
    const TransformerBlock<T> block(
        {.d_model = 12,
         .num_heads = 4,
         .num_kv_heads = 2,
         .d_hidden = 19,
         .activation = Activation::silu,
         .gated = norm_first,
         .norm_first = norm_first,
         .norm = norm_first ? NormKind::rms_norm : NormKind::layer_norm});
    TransformerBlockCall<T> call{.mask = causal, .path = path};
    call.attention_dropout = {0.1, 3, 4};
    call.hidden_dropout = {0.1, 4, 4};
    call.output_dropout = {0.1, 5, 4};
    TransformerBlockCache<T> cache;
    auto gradients = block.zero_gradients();
    const std::string name = type + (norm_first ? "pre-LN block, " : "post-LN block, ");
    keep(results, name + "y", block.forward(x, call, cache, context));
    keep(results, name + "dx", block.backward(dy, cache, gradients, context));
    keep(results, name + "dgamma", gradients.norm1.gamma);
    keep(results, name + "dw_in", gradients.feed_forward.w_in);
    keep(results, name + "dw_o", gradients.attention.w_o);
  }
}

template <class T>
void visit_decoder(const std::string& type, Path path, const Context& context,
                   std::vector<Named>& results) {
  Tensor2<std::int32_t> tokens({2, 11});
  for (Index n = 0; n < 22; ++n) tokens.data()[n] = static_cast<std::int32_t>(n * n % 9);
  const auto d_logits = noise<T>(Shape{22, 9}, 36);
  for (const bool norm_first : {true, false}) {
    const TransformerDecoder<T> decoder({.vocabulary = 9,
                                         .max_length = 11,
                                         .num_blocks = 2,
                                         .block = {.d_model = 12,
                                                   .num_heads = 4,
                                                   .num_kv_heads = 2,
                                                   .d_hidden = 19,
                                                   .norm_first = norm_first},
                                         .embedding_deviation = 0.5});
    const std::string name = type + (norm_first ? "pre-LN decoder, " : "post-LN decoder, ");
    TransformerDecoderCache<T> cache;
    auto gradients = decoder.zero_gradients();
    const TransformerDecoderCall call{.path = path, .output_dropout = {0.1, 5, 4}};
    keep(results, name + "logits", decoder.forward(tokens, call, cache, context));
    decoder.backward(d_logits, cache, gradients, context);
    keep(results, name + "dtoken", gradients.token);
    keep(results, name + "dposition", gradients.position);
    keep(results, name + "dw_in", gradients.blocks[0].feed_forward.w_in);
    auto state = decoder.state(2);
    for (const Index n : {7, 1, 3}) {
      const Index begin = state.length();
      keep(results, name + "logits from " + std::to_string(begin),
           decoder.step(In<std::int32_t, 2>(slice(tokens, 1, begin, n)), state, context));
    }
  }
}

template <class T>
void visit_cross_attention(const std::string& type, Path path, const Context& context,
                           std::vector<Named>& results) {
  const auto module = module_of<T>({.d_model = 10,
                                    .num_heads = 3,
                                    .d_head = 5,
                                    .d_value = 4,
                                    .kdim = 7,
                                    .vdim = 6,
                                    .qk_norm = true,
                                    .sinks = true,
                                    .alibi = true,
                                    .relative_reach = 2,
                                    .rotary = RotaryOptions{.width = 4},
                                    .init = Init::he_normal,
                                    .seed = 2});
  const auto query = noise<T>(Shape{2, 5, 10}, 23), dy = noise<T>(Shape{2, 5, 10}, 24);
  const auto key = noise<T>(Shape{2, 8, 7}, 25);
  const auto value = noise<T>(Shape{2, 8, 6}, 26);
  const MultiHeadAttentionCall<T> call{.mask = Mask::window(6), .path = path};
  const std::string name = type + "cross-attention, ";
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  keep(results, name + "y", module.forward(query, key, value, call, cache, context));
  const auto inputs = module.backward_cross(dy, cache, gradients, context);
  keep(results, name + "dquery", inputs.query);
  keep(results, name + "dkey", inputs.key);
  keep(results, name + "dvalue", inputs.value);
  keep_gradients(name, gradients, results);
}

template <class T>
void visit_module_tools(const std::string& type, const Context& context,
                        std::vector<Named>& results) {
  const auto whole = module_of<T>({.d_model = 8, .num_heads = 4, .num_kv_heads = 2, .seed = 5});
  const auto x = noise<T>(Shape{1, 6, 8}, 27);
  keep(results, type + "a shard of heads", head_shard(whole, 2, 2).forward(x, {}, context));
  keep(results, type + "converted", convert<double>(whole).forward(noise<double>(x.shape(), 27)));
  Trace trace;
  FlopTally flops;
  MemoryTally bytes;
  const MultiHeadAttentionCall<T> call{.mask = causal, .path = Path::materialized};
  MultiHeadAttentionCache<T> cache;
  whole.forward(x, call, cache, {context.executor, &bytes, &flops, &trace});
  for (const Trace::Entry& entry : trace.entries()) {
    results.push_back({type + "trace, " + entry.name, entry.values});
  }
  const AttentionShape shape = attention_shape(whole.options(), call, 1, 6);
  const auto predicted_bytes =
      count_memory<T>(shape, Path::materialized, true, context.executor.concurrency()).peak();
  results.push_back({type + "FLOPs, and whether the bytes are as predicted",
                     {double(flops.useful), double(count_flops(shape).total()),
                      double(bytes.peak() == predicted_bytes)},
                     true});
}

}  // namespace
}  // namespace headwise_tests
