// A gradient check of an op of the consumer's own, y = x^2, by what headwise installs.
#include <headwise/testing/check_op.hpp>

using namespace headwise;

int main() {
  const Tensor1<double> x({3}, {-2, 0.5, 4});
  const auto elementwise = [&](auto f) {
    Tensor1<double> result(x.shape());
    for_each_index(x.shape(), [&](const Shape<1>& i) { result(i) = f(i); });
    return result;
  };
  const auto forward = [&](const Tensor1<double>& at) {
    return elementwise([&](const Shape<1>& i) { return at(i) * at(i); });
  };
  const auto backward = [&](const Tensor1<double>& dy) {
    return elementwise([&](const Shape<1>& i) { return 2 * x(i) * dy(i); });
  };
  return check_op(forward, backward, x) ? 0 : 1;
}
