// What products of float multiply.
#pragma once

namespace headwise::inline v0_1 {

/// What the factors of products are rounded to before they are multiplied: nothing by default. Of
/// another kind is what bf16_products() and split_products() return (ops/). Sums run in float all
/// the same, and what is no product of matrices is computed in float: softmax, norms, biases, score
/// functions, optimisers. Of other types than float nothing is rounded.
class Products {
 public:
  /// Nothing is rounded.
  constexpr Products() = default;
  /// Products by kernels::Kernels<float> that live as long as the process.
  explicit constexpr Products(const void* kernels) : kernels_(kernels) {}

  /// Whether nothing is rounded.
  constexpr bool exact() const { return kernels_ == nullptr; }
  /// The kernels; null where nothing is rounded.
  constexpr const void* kernels() const { return kernels_; }

 private:
  const void* kernels_ = nullptr;
};

}  // namespace headwise::inline v0_1
