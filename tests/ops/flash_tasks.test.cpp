// How flash attention is cut into tasks, and where it reads its operands, changes no bit.
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_flash_tasks {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("forward has the same bits in tasks of any size, over dense and strided rows",
                   "[ops]", float, double) {
  constexpr Index L = 1100, d = 16;  // three tasks of one thread, more of others
  Numbers numbers(77);
  const auto dense = [&] { return numbers.tensor<TestType, 4>(Shape{1, 2, L, d}); };
  const Tensor4<TestType> q = dense(), k = dense(), v = dense();
  Tensor3<TestType> k_rows(Shape{1, L, 3 * d}), v_rows(k_rows.shape());
  const Out<TestType, 4> k_strided = split_heads(slice(k_rows, 2, d, 2 * d), 2),
                         v_strided = split_heads(slice(v_rows, 2, d, 2 * d), 2);
  copy(In<TestType, 4>(k), k_strided);
  copy(In<TestType, 4>(v), v_strided);
  AttentionOptions<TestType> options;
  if (GENERATE(false, true)) options.mask.add(causal);
  const auto forward = [&](In<TestType, 4> of_q, In<TestType, 4> of_k, In<TestType, 4> of_v,
                           const Context& context = {}) {
    Tensor4<TestType> o(of_q.shape());
    flash_attention_forward<TestType>(of_q, of_k, of_v, options, o, {}, context);
    return o;
  };
  const auto o = forward(q, k, v);
  CHECK(same_bits<TestType, 4>(forward(q, k_strided, v_strided), o));
  for (const Index threads : {2, 3, 16}) {
    ThreadPool pool(threads);
    CHECK(same_bits<TestType, 4>(forward(q, k_strided, v_strided, {.executor = pool}), o));
  }
  // The last queries alone, few of them, read keys and values where they lie.
  const auto last = forward(slice(q, 2, L - 70, 70), k_strided, v_strided);
  CHECK(same_bits<TestType, 4>(last, In<TestType, 4>(slice(o, 2, L - 70, 70))));
}

}  // namespace ops_flash_tasks
