// The whole module: projections with biases, attention, output projection.
#include "mha.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
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

/// Products of floats, and how far off results by them may be.
struct NamedProducts {
  Products products;
  double allowed;
};
/// bf16, two_pieces or three_pieces; by an empty name those of float.
NamedProducts products_named(std::string_view name) {
  if (name == "bf16") return {bf16_products(), of_bf16};
  if (name == "two_pieces") return {split_products<2>(), 0x1p-11};
  if (name == "three_pieces") return {split_products<3>(), tolerance<float>};
  require(name.empty(), "products_named", "there are no products ", name);
  return {{}, tolerance<float>};
}
/// What HEADWISE_BENCH_PRODUCTS names, in every case of mha/: so this program can be a partner of
/// itself.
NamedProducts asked_products() {
  const char* const name = std::getenv("HEADWISE_BENCH_PRODUCTS");
  return products_named(name == nullptr ? "" : name);
}

template <class T, bool with_backward, class E = T>
Case mha(const std::vector<Index>& values) {
  const auto module = std::make_shared<Module<T, E>>(values);
  Case one = case_of(module, with_backward);
  const NamedProducts by = asked_products();
  one.run = [module, by](Context context) {
    context.products = by.products;
    module->run(with_backward, context);
  };
  const double of_type = std::same_as<T, E> ? tolerance<T> : 0.01;  // bf16 has 8 binary digits
  const double allowed = std::same_as<T, float> ? std::max(of_type, by.allowed) : of_type;
  one.right = [module, allowed] { return right(*module, with_backward, allowed); };
  return one;
}

/// The same module by another context, whose results may be off by so much.
template <bool with_backward>
Case mha_by(const std::vector<Index>& values, double allowed, const Products& products,
            const Saved& saved) {
  const auto module = std::make_shared<Module<float>>(values);
  Case one = case_of(module, with_backward);
  one.run = [module, products, saved](Context context) {
    context.products = products;
    context.saved = saved;
    module->run(with_backward, context);
  };
  one.right = [module, allowed] { return right(*module, with_backward, allowed); };
  return one;
}
/// What backward needs is kept rounded.
Case kept_rounded(const std::vector<Index>& values) {
  return mha_by<true>(values, of_bf16, {}, saved_in<BFloat16>());
}
/// By products of that name.
template <bool with_backward>
auto by_products(const std::string& name) {
  return [name](const std::vector<Index>& values) {
    const NamedProducts by = products_named(name);
    return mha_by<with_backward>(values, by.allowed, by.products, {});
  };
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
  for (const std::string name : {"bf16", "two_pieces", "three_pieces"}) {
    families.push_back({name_of<float>("mha_" + name + "/forward"), attention_arguments(),
                        attention_values(8192), by_products<false>(name)});
    families.push_back({name_of<float>("mha_" + name + "/forward_backward"), attention_arguments(),
                        attention_values(8192), by_products<true>(name)});
  }
  families.push_back({name_of<float>("mha_saved/forward_backward"), attention_arguments(),
                      attention_values(8192), kept_rounded});
  families.push_back({name_of<float>("mha_inputs_bf16/forward"), attention_arguments(),
                      attention_values(8192), mha<float, false, BFloat16>});
  families.push_back({name_of<float>("mha_inputs_bf16/forward_backward"), attention_arguments(),
                      attention_values(8192), mha<float, true, BFloat16>});
  add<double>(families, 2048);
}

}  // namespace headwise::bench
