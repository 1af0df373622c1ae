// The whole module: projections with biases, attention, output projection.
#include "mha.hpp"

#include <cstdlib>
#include <memory>
#include <string_view>

namespace headwise::bench {

namespace {

constexpr double of_bf16 = 0.05;  // of the largest number: those of bf16 have 8 binary digits

/// The first sequence alone on the readable path gives the same, where that is short enough. Longer
/// ones are held to the readable path by sdpa/.
template <class T, class E>
bool right(const Module<T, E>& done, bool with_backward, double allowed) {
  if (done.sizes.L > 1024) return true;
  const auto first = [](const Tensor<E, 3>& tensor) {
    return convert<T>(In<E, 3>(slice(tensor, 0, 0, 1)));
  };
  const Tensor<T, 3> x = first(done.x), dy = first(done.dy);
  MultiHeadAttentionCall<T> readable = done.call;
  readable.path = Path::materialized;
  MultiHeadAttentionCache<T> cache;
  const auto y = done.module.forward(x, readable, cache);
  if (!close_to(In<T, 3>(first(done.y)), In<T, 3>(y), allowed)) return false;
  if (!with_backward) return true;
  auto gradients = done.module.zero_gradients();
  const auto dx = done.module.backward(dy, cache, gradients);
  return bool(close_to(In<T, 3>(first(done.dx)), In<T, 3>(dx), allowed));
}

template <class T, class E>
Case case_of(const std::shared_ptr<Module<T, E>>& module, bool with_backward) {
  Case one;
  one.flops = module->flops(with_backward);
  one.bytes = module->bytes(with_backward);
  one.tokens = module->sizes.tokens();
  return one;
}

/// What HEADWISE_BENCH_PRODUCTS asks for, bf16, two_pieces or three_pieces, in every case of mha/:
/// so this program can be a partner of itself.
Products asked_products() {
  const char* const text = std::getenv("HEADWISE_BENCH_PRODUCTS");
  const std::string_view asked = text == nullptr ? "" : text;
  if (asked == "bf16") return bf16_products();
  if (asked == "two_pieces") return split_products<2>();
  if (asked == "three_pieces") return split_products<3>();
  require(asked.empty(), "HEADWISE_BENCH_PRODUCTS", "there is no ", asked);
  return {};
}

template <class T, bool with_backward, class E = T>
Case mha(const std::vector<Index>& values) {
  const auto module = std::make_shared<Module<T, E>>(values);
  Case one = case_of(module, with_backward);
  const Products products = asked_products();
  one.run = [module, products](Context context) {
    context.products = products;
    module->run(with_backward, context);
  };
  const double allowed = products.exact() ? std::same_as<T, E> ? tolerance<T> : 0.01 : of_bf16;
  one.right = [module, allowed] { return right(*module, with_backward, allowed); };
  return one;
}

/// The same module by another context, whose results may be off by so much.
template <bool with_backward>
Case mha_by(const std::vector<Index>& values, double allowed, void (*change)(Context&)) {
  const auto module = std::make_shared<Module<float>>(values);
  Case one = case_of(module, with_backward);
  one.run = [module, change](Context context) {
    change(context);
    module->run(with_backward, context);
  };
  one.right = [module, allowed] { return right(*module, with_backward, allowed); };
  return one;
}
/// The factors of its products are rounded.
template <bool with_backward>
Case by_products(const std::vector<Index>& values) {
  return mha_by<with_backward>(values, of_bf16, [](Context& c) { c.products = bf16_products(); });
}
/// They are split into pieces, where the processor has what multiplies them.
template <bool with_backward, int pieces>
Case by_pieces(const std::vector<Index>& values) {
  return mha_by<with_backward>(values, pieces == 3 ? tolerance<float> : 0x1p-11,
                               [](Context& c) { c.products = split_products<pieces>(); });
}
/// What backward needs is kept rounded.
Case kept_rounded(const std::vector<Index>& values) {
  return mha_by<true>(values, of_bf16, [](Context& c) { c.saved = saved_in<BFloat16>(); });
}

template <class T>
void add(Families& families, Index longest) {
  families.push_back(
      {name_of<T>("mha/forward"), attention_arguments(), attention_values(longest), mha<T, false>});
  families.push_back({name_of<T>("mha/forward_backward"), attention_arguments(),
                      attention_values(longest), mha<T, true>});
}

}  // namespace

void add_mha(Families& families) {
  add<float>(families, 8192);
  families.push_back({name_of<float>("mha_bf16/forward"), attention_arguments(),
                      attention_values(8192), by_products<false>});
  families.push_back({name_of<float>("mha_bf16/forward_backward"), attention_arguments(),
                      attention_values(8192), by_products<true>});
  families.push_back({name_of<float>("mha_two_pieces/forward"), attention_arguments(),
                      attention_values(8192), by_pieces<false, 2>});
  families.push_back({name_of<float>("mha_two_pieces/forward_backward"), attention_arguments(),
                      attention_values(8192), by_pieces<true, 2>});
  families.push_back({name_of<float>("mha_three_pieces/forward"), attention_arguments(),
                      attention_values(8192), by_pieces<false, 3>});
  families.push_back({name_of<float>("mha_three_pieces/forward_backward"), attention_arguments(),
                      attention_values(8192), by_pieces<true, 3>});
  families.push_back({name_of<float>("mha_saved/forward_backward"), attention_arguments(),
                      attention_values(8192), kept_rounded});
  families.push_back({name_of<float>("mha_inputs_bf16/forward"), attention_arguments(),
                      attention_values(8192), mha<float, false, BFloat16>});
  families.push_back({name_of<float>("mha_inputs_bf16/forward_backward"), attention_arguments(),
                      attention_values(8192), mha<float, true, BFloat16>});
  add<double>(families, 2048);
}

}  // namespace headwise::bench
