// All of the library in one translation unit, instantiated: what clang-tidy reads.
#include <iostream>

#include "headwise/headwise.hpp"
#include "headwise/io/checkpoint.hpp"
#include "headwise/io/pytorch.hpp"
#include "headwise/io/safetensors.hpp"
#include "headwise/testing/laws.hpp"
#include "tour/tour.hpp"

void everything();
void everything() {
  using namespace headwise;
  const AttentionKernel<double> nothing;
  std::cout << headwise_tests::tour().size() << run_laws(nothing);
  SafetensorsWriter writer;
  add_pytorch(writer, MultiHeadAttention<double>(4, 2));
  writer.write("everything.safetensors");
  const auto file = SafetensorsFile::read("everything.safetensors");
  std::cout << from_pytorch<float>(file, 2).parameters().w_o;
  const Tensor2<double> x({1, 3});
  const auto same = [](const Tensor2<double>& at) { return at; };
  std::cout << check_op(same, same, x) << close_to(x, x, 0) << eigen_map(x).sum();
  Tensor<BFloat16, 4> heads({1, 1, 2, 4});
  Tensor4<float> lse({1, 1, 2, 2});
  flash_attention_forward<BFloat16>(heads, heads, heads, {}, heads, lse);
  flash_attention_backward<BFloat16>(heads, {heads, heads, heads}, heads, lse, {},
                                     {heads, heads, heads});
  const auto moving = [](const Tensor2<Dual<double>>& at) { return at; };
  std::cout << jvp(moving, x, x).derivative << hessian_vector_product(moving, x, x);
  GradientCheck<double> check;
  std::cout << check.run([] { return 0.0; });
}
