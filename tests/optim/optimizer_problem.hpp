// Parameters with gradients, as the tests of optimisers walk them: of several ranks, dense or as
// slices of something wider, with numbers that a seed decides.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "headwise/headwise.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

/// How the elements of a parameter lie.
enum class Layout { dense, columns, transposed };

/// Parameters "p0", "p1" ... of given shapes. Values and gradients hold the same numbers whatever
/// the layout.
template <class T>
class OptimizerProblem {
 public:
  OptimizerProblem(const std::vector<Shape<2>>& shapes, Layout values, Layout gradients) {
    for (const Shape<2>& shape : shapes) {
      const std::string name = "p" + std::to_string(list.size());
      const std::uint64_t seed = 10 * list.size();
      list.add(name, view(shape, values, seed), view(shape, gradients, seed + 1));
    }
  }
  OptimizerProblem(const std::vector<Shape<2>>& shapes, Layout layout)
      : OptimizerProblem(shapes, layout, layout) {}

  /// Another gradient.
  void set_gradients(std::uint64_t seed) {
    for (const Parameter<T>& p : list) fill_normal(p.gradient, ++seed);
  }
  /// Every value, parameter after parameter.
  std::vector<T> values() const {
    std::vector<T> all;
    for (const Parameter<T>& p : list) {
      for_each_index(p.view.shape(), [&](const auto& at) { all.push_back(p.view(at)); });
    }
    return all;
  }
  std::vector<T> gradients() const {
    std::vector<T> all;
    for (const Parameter<T>& p : list) {
      for_each_index(p.view.shape(), [&](const auto& at) { all.push_back(p.gradient(at)); });
    }
    return all;
  }
  /// Whether what lies behind the columns of a slice is as it was.
  bool rest_untouched() const {
    bool untouched = true;
    for (std::size_t n = 0; n < columns_.size(); ++n) {
      for_each_index(storage_[n]->shape(), [&](const Shape<2>& at) {
        untouched = untouched && (at[1] < columns_[n] || (*storage_[n])(at) == T(77));
      });
    }
    return untouched;
  }

  ParameterList<T> list;

 private:
  template <int R>
  static void fill_normal(const TensorView<T, R>& view, std::uint64_t seed) {
    std::uint64_t n = 0;
    for_each_index(view.shape(),
                   [&](const auto& at) { view(at) = T(philox_normal(philox_key(seed), n++)); });
  }

  TensorView<T, 2> view(const Shape<2>& shape, Layout layout, std::uint64_t seed) {
    const auto [rows, columns] = shape.extents;
    const bool turned = layout == Layout::transposed;
    const Index extra = layout == Layout::columns ? 3 : 0;
    storage_.push_back(std::make_unique<Tensor<T, 2>>(turned ? Shape{columns, rows}
                                                             : Shape{rows, columns + extra}));
    Tensor<T, 2>& all = *storage_.back();
    fill(Out<T, 2>(all), T(77));
    TensorView<T, 2> part = turned ? transpose(all, 0, 1) : slice(all, 1, 0, columns);
    fill_normal(part, seed);
    columns_.push_back(turned ? rows : columns);
    return part;
  }

  std::vector<std::unique_ptr<Tensor<T, 2>>> storage_;
  std::vector<Index> columns_;  // of each storage that are a parameter's
};

/// One element, rows and columns at the edges of vectors, several tasks.
inline std::vector<Shape<2>> parameter_shapes() {
  return {{1, 1}, {3, 7}, {1, 17}, {31, 1}, {5, 64}, {130, 257}, {0, 4}};
}

}  // namespace headwise_tests
