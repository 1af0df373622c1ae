// What MemorySanitizer and valgrind run: the tour, without a test framework, whose own library is
// not built for MemorySanitizer. Each result decides a branch, so that a number which nobody has
// written is reported. With --plant, the library is given such a number, and whoever watches has to
// report it. With a path, weights are written to that file and read again: not for MemorySanitizer,
// for std::map and streams live in a library that it does not see into.
//
// Build it with -D_GLIBCXX_EXTERN_TEMPLATE=0 for MemorySanitizer: std::string is then compiled, and
// watched, with the program.
#include <cstdio>
#include <cstdlib>

#include "headwise/io/pytorch.hpp"
#include "headwise/nn/transformer_block.hpp"
#include "headwise/ops/saved_in.hpp"
#include "tour/tour.hpp"

namespace {

using namespace headwise;

/// Every bit of the values, mixed into a number that decides a branch which no compiler can turn
/// into arithmetic. Returns how many values there were.
std::size_t look_at(const std::string& name, const std::vector<double>& values) {
  std::uint64_t mixed = 1;
  for (const double value : values)
    mixed = mixed * 0x9E3779B97F4A7C15u + std::bit_cast<std::uint64_t>(value);
  if (mixed == 0) std::printf("%s: the bits cancel\n", name.c_str());
  return values.size();
}

/// A block whose cache is kept in 16 bits: not in the tour, whose results are compared between
/// builds that differ in their last digits, which rounding makes greater.
template <class U>
std::size_t look_at_saved() {
  const TransformerBlock<float> block({.d_model = 12, .num_heads = 4, .gated = true});
  const auto x = headwise_tests::noise<float>(Shape{2, 23, 12}, 2);
  TransformerBlockCache<float> cache;
  auto gradients = block.zero_gradients();
  const auto y = block.forward(x, {}, cache, {.saved = saved_in<U>()});
  const auto dx = block.backward(y, cache, gradients);
  std::vector<double> values(dx.begin(), dx.end());
  gradients.for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) { values.push_back(double{view(at)}); });
  });
  return look_at("saved", values);
}

/// Attention whose tensors are of 16 bits, in tiles and of few queries.
template <class U>
std::size_t look_at_16_bits() {
  std::size_t count = 0;
  for (const Index L : {3, 150}) {
    const auto rounded = [&](Index length, std::uint64_t seed) {
      const auto numbers = headwise_tests::noise<float>(Shape{1, 2, length, 20}, seed);
      Tensor<U, 4> x(numbers.shape());
      for (Index n = 0; n < x.size(); ++n) x.data()[n] = convert_float<U>(numbers.data()[n]);
      return x;
    };
    const auto q = rounded(L, 1), k = rounded(270, 2), v = rounded(270, 3), d_o = rounded(L, 4);
    Tensor<U, 4> o(q.shape()), dq(q.shape()), dk(k.shape()), dv(v.shape());
    Tensor4<float> lse({1, 2, L, 2});
    flash_attention_forward<U>(q, k, v, {}, o, lse);
    flash_attention_backward<U>(d_o, {q, k, v}, o, lse, {}, {dq, dk, dv});
    for (const Tensor<U, 4>* x : {&o, &dq, &dk, &dv}) {
      std::vector<double> values;
      for (const U one : *x) values.push_back(double{convert_float<float>(one)});
      count += look_at("16 bits", values);
    }
  }
  return count;
}

/// Weights to a file and back.
bool survives_a_file(const char* path) {
  const MultiHeadAttention<float> module({.d_model = 8, .num_heads = 2, .seed = 3});
  SafetensorsWriter writer;
  add_pytorch(writer, module);
  writer.write(path);
  const auto loaded = from_pytorch<float>(SafetensorsFile::read(path), 2);
  std::remove(path);
  bool same = true;
  for (Index n = 0; n < module.parameters().w_o.size(); ++n) {
    same = same && loaded.parameters().w_o.data()[n] == module.parameters().w_o.data()[n];
  }
  return same;
}

/// Attention over keys of which one number was never written.
void read_what_nobody_wrote() {
  const auto q = headwise_tests::noise<double>(Shape{1, 1, 2, 3}, 1);
  double* raw = static_cast<double*>(std::malloc(6 * sizeof(double)));
  if (raw == nullptr) return;
  for (Index n = 0; n < 5; ++n) raw[n] = 1;
  const In<double, 4> k(raw, Shape{1, 1, 2, 3});
  Tensor4<double> o({1, 1, 2, 3});
  flash_attention_forward(q, k, q, {}, o, {});
  look_at("planted", {o.begin(), o.end()});
  std::free(raw);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--plant") == 0) {
    read_what_nobody_wrote();
    std::printf("a number that nobody wrote was read, and nothing was said\n");
    return 0;
  }
  std::size_t values = 0;
  for (const headwise_tests::Named& result : headwise_tests::tour()) {
    values += look_at(result.name, result.values);
  }
  values += look_at_saved<BFloat16>() + look_at_saved<Float16>();
  values += look_at_16_bits<BFloat16>() + look_at_16_bits<Float16>();
  const bool file = argc != 2 || survives_a_file(argv[1]);
  std::printf("%zu values%s\n", values, file ? "" : ", and the file DIFFERS");
  return values > 100000 && file ? 0 : 1;
}
