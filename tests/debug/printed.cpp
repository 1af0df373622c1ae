// A program for the debugger: one variable of each kind that tools/debug shows.
#include <headwise/tensor/view_ops.hpp>

using namespace headwise;

[[gnu::noinline]] void stop_here() { asm volatile(""); }

int main() {
  const Shape<3> shape{2, 3, 4};
  Tensor2<float> tensor({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor<double, 1> vector({3}, {0.5, -1, 2});
  Tensor3<float> cube({2, 1, 2}, {1, 2, 3, 4});
  const Tensor2<float> nothing;
  const Tensor2<float> empty({0, 3});
  const In<float, 2> read = tensor;
  const Out<float, 2> columns = slice(tensor, 1, 1, 2);
  const TensorView<float, 2> transposed(tensor.data(), {3, 2}, {1, 3});
  const Tensor2<float>& reference = tensor;
  stop_here();
  return static_cast<int>(shape.size() + vector.size() + cube.size() + nothing.size() +
                          empty.size() + read.size() + columns.size() + transposed.size() +
                          reference.size()) == 54
             ? 0
             : 1;
}
