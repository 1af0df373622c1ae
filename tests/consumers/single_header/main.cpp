// The half of a program that is compiled with single_include/; other.cpp is the other half. Both
// must mean the same types and compute the same bits.
#include <headwise/headwise.hpp>

#include <algorithm>

#include "attend.hpp"

headwise::Tensor4<float> attend_elsewhere(const headwise::Tensor4<float>& x);

int main() {
  headwise::Tensor4<float> x({1, 2, 5, 4});  // [B, H, L, d]
  for (headwise::Index n = 0; n < x.size(); ++n) x.data()[n] = 0.1f * static_cast<float>(n % 7);
  const headwise::Tensor4<float> here = attend(x), there = attend_elsewhere(x);
  return there(0, 1, 4, 3) != 0 && std::equal(here.begin(), here.end(), there.begin()) ? 0 : 1;
}
