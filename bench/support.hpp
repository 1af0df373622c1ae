// What the benchmark families share: what a case and a family are, inputs, threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "headwise/headwise.hpp"
#include "shapes.hpp"

namespace headwise::bench {

/// One thing to be timed, with its inputs and outputs.
struct Case {
  std::function<void(const Context&)> run;  // what is timed
  std::function<bool()> right;              // whether the last run's result is; never timed
  double flops = 0;                         // of products, or what else the formulas count
  double bytes = 0;                         // inputs, parameters and outputs, each once
  double tokens = 0;                        // B L; 0 where there are none
};

/// Cases that differ in sizes alone.
struct Family {
  std::string name;                                                 // mha/forward/f32
  std::vector<std::string> arguments;                               // B, L, D, H, G, causal
  std::vector<std::vector<Index>> values;                           // of the arguments, a case each
  std::function<Case(const std::vector<Index>& values)> make = {};  // for any values
};
using Families = std::vector<Family>;

void add_gemm(Families& families);
void add_sdpa(Families& families);
void add_sdpa_stored(Families& families);
void add_decode(Families& families);
void add_step(Families& families);
void add_scores(Families& families);
void add_mha(Families& families);
void add_layout(Families& families);
void add_rows(Families& families);
void add_tokens(Families& families);
void add_optimizer(Families& families);
void add_eigen_plain(Families& families);

/// All of them.
inline const Families& families() {
  static const Families all = [] {
    Families list;
    for (auto* add : {add_gemm, add_sdpa, add_sdpa_stored, add_decode, add_step, add_scores,
                      add_mha, add_layout, add_rows, add_tokens, add_optimizer, add_eigen_plain}) {
      add(list);
    }
    return list;
  }();
  return all;
}

template <class T, int R>
Tensor<T, R> random_tensor(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> tensor(shape);
  const auto key = philox_key(seed);
  for (Index n = 0; n < tensor.size(); ++n) {
    // 4,096 different numbers are enough, and quicker to make than to use.
    tensor.data()[n] =
        n < 4096 ? T(philox_normal(key, static_cast<std::uint64_t>(n))) : tensor.data()[n - 4093];
  }
  return tensor;
}

/// Bytes of all these tensors together.
template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  const auto bytes = [](const auto& tensor) {
    return static_cast<double>(tensor.size()) * static_cast<double>(sizeof(*tensor.data()));
  };
  return (bytes(tensors) + ... + 0.0);
}

/// Runs from where it is made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// `family/f32` or `family/f64`.
template <class T>
std::string name_of(const std::string& family) {
  return family + (sizeof(T) == 4 ? "/f32" : "/f64");
}

/// How far two ways to compute the same may be apart, as a share of the largest value.
template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-4 : 1e-10;

inline const std::vector<std::string>& attention_arguments() {
  static const std::vector<std::string> names = {"B", "L", "D", "H", "G", "causal"};
  return names;
}

/// The values of attention_arguments().
struct AttentionCase {
  Index B, L, D, H, G;
  bool is_causal;

  explicit AttentionCase(const std::vector<Index>& values)
      : B(values.at(0)),
        L(values.at(1)),
        D(values.at(2)),
        H(values.at(3)),
        G(values.at(4)),
        is_causal(values.at(5) != 0) {}
  Index d() const { return D / H; }
  double tokens() const { return static_cast<double>(B * L); }
};

/// Every shape up to a length, causal and not.
inline std::vector<std::vector<Index>> attention_values(Index longest) {
  std::vector<std::vector<Index>> values;
  for (const BenchShape& s : shapes()) {
    for (const Index is_causal : {0, 1}) {
      if (s.L <= longest) values.push_back({s.B, s.L, s.D, s.H, s.G, is_causal});
    }
  }
  return values;
}

}  // namespace headwise::bench
