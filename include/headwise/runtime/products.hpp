// What products of float multiply.
#pragma once

namespace headwise::inline v0_1 {

/// How products of float are formed: by float's own multiply-adds, or by what bf16_products() and
/// split_products() return (ops/), which round or split the factors first. Sums run in float all
/// the same, and what is no product of matrices is computed in float: softmax, norms, biases, score
/// functions, optimisers. Products of other types are their own multiply-adds.
class Products {
 public:
  /// Float's own.
  constexpr Products() = default;
  /// Products by kernels::Kernels<float> that live as long as the process.
  explicit constexpr Products(const void* kernels) : kernels_(kernels) {}

  /// Whether they are float's own.
  constexpr bool of_float() const { return kernels_ == nullptr; }
  /// The kernels; null of float's own.
  constexpr const void* kernels() const { return kernels_; }

 private:
  const void* kernels_ = nullptr;
};

}  // namespace headwise::inline v0_1
