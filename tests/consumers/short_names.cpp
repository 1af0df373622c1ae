// A project with short names of its own whose warnings are errors: g++ says of templates in the
// headers that their parameters shadow these, where it does not know them as a system's.
#include <headwise/headwise.hpp>

constexpr headwise::Index L = 4, S = 5, N = 2;

int main() {
  const headwise::MultiHeadAttention<float> attention(8, 2);
  const headwise::Tensor3<float> query({N, L, 8}), memory({N, S, 8});
  headwise::MultiHeadAttention<float>::Cache cache;
  auto gradients = attention.zero_gradients();
  const auto y = attention.forward(query, memory, memory, {}, cache);
  return attention.backward_cross(y, cache, gradients).query.shape() == query.shape() ? 0 : 1;
}
