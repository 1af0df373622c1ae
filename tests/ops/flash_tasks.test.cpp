// How flash attention is cut into tasks, and where it reads its operands, changes no bit; which
// calls threads share.
#include <array>
#include <vector>

#include "headwise/ops/packed_attention.hpp"
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

TEMPLATE_TEST_CASE("heads that share a learned bias add to its gradient in order, on any threads",
                   "[ops]", float, double) {
  constexpr Index B = 2, H = 6, G = 3, L = 350, S = 610, d = 8;
  Numbers numbers(78);
  const auto random = [&](Index heads, Index rows, Index width) {
    return numbers.tensor<TestType, 4>(Shape{B, heads, rows, width});
  };
  const Tensor4<TestType> q = random(H, L, d), k = random(G, S, d), v = random(G, S, d),
                          d_o = random(H, L, d);
  // Elements of heads, of heads of one sequence, of queries, too, and of keys.
  const auto shape = GENERATE(Shape{1, 1, L, S}, Shape{B, 1, L, S}, Shape{1, H, L, S},
                              Shape{1, 1, 1, S}, Shape{B, 1, 1, S}, Shape{1, 1, L, 1});
  const auto bias = numbers.tensor<TestType, 4>(shape);
  AttentionOptions<TestType> options{.mask = Mask::bias(bias)};
  // Of a window, heads go past most tiles without a pair.
  if (GENERATE(false, true)) options.mask.add(causal), options.mask.add(Mask::window(40));
  Tensor4<TestType> o(q.shape()), lse({B, H, L, 2});
  flash_attention_forward<TestType>(q, k, v, options, o, lse);
  const auto gradient = [&](const Context& context) {
    Tensor4<TestType> dq(q.shape()), dk(k.shape()), dv(v.shape()), d_bias(shape);
    ScoreGradients<TestType> learned;
    learned.d_biases[0] = d_bias;
    flash_attention_backward<TestType>(d_o, {q, k, v}, o, lse, options, {dq, dk, dv, learned},
                                       context);
    return d_bias;
  };
  const auto alone = gradient({});
  CHECK(alone(0, 0, shape[2] - 1, shape[3] - 1) != TestType(0));
  for (const Index threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    for (int run = 0; run < 3; ++run) {
      CHECK(same_bits<TestType, 4>(gradient({.executor = pool}), alone));
    }
  }
}

/// Two workers that count what they are asked for, and are one.
struct CountingExecutor {
  Index runs = 0;
  Index concurrency() const { return 2; }
  void run(Index tasks, TaskRef task) {
    ++runs;
    SerialExecutor().run(tasks, task);
  }
};

TEST_CASE("attention of few tokens stays with its thread, that of many is shared", "[ops]") {
  using T = float;
  const auto runs = [](Index L, Index S) {
    Numbers numbers(5);
    const auto q = numbers.tensor<T, 4>(Shape{1, 4, L, 16}),
               k = numbers.tensor<T, 4>({1, 4, S, 16});
    Tensor4<T> weights({1, 4, L, S}), o(q.shape()), lse({1, 4, L, 2}), dq(q.shape()), dk(k.shape()),
        dv(k.shape());
    std::array<Index, 4> counts{};
    const auto count = [&](std::size_t n, const auto& call) {
      CountingExecutor executor;
      call(Context{.executor = executor});
      counts[n] = executor.runs;
    };
    const AttentionInputs<T> inputs{q, k, k};
    const AttentionGradients<T> to{dq, dk, dv};
    count(0, [&](const Context& c) { attention_forward<T>(q, k, k, {}, weights, o, c); });
    count(1, [&](const Context& c) { attention_backward<T>(q, inputs, weights, {}, to, c); });
    count(2, [&](const Context& c) { flash_attention_forward<T>(q, k, k, {}, o, lse, c); });
    count(3, [&](const Context& c) { flash_attention_backward<T>(q, inputs, o, lse, {}, to, c); });
    return counts;
  };
  const std::array<Index, 4> none{};
  CHECK(runs(16, 16) == none);
  CHECK(runs(32, 32) == none);
  CHECK(runs(1, 64) == none);
  for (const Index count : runs(70, 70)) CHECK(count > 0);
  for (const Index count : runs(1, 8192)) CHECK(count > 0);
  // A key that is read for one query takes as long as four that are met by many.
  const auto decoding = runs(1, 2048);
  CHECK(decoding[0] == 0);
  CHECK(decoding[2] > 0);
}

TEST_CASE("packed sequences are shared by what they hold, not by their number", "[ops]") {
  const auto runs = [](Index count, Index length) {
    std::vector<Index> starts;
    for (Index b = 0; b <= count; ++b) starts.push_back(b * length);
    const auto q = Numbers(6).tensor<float>(Shape{count * length, 4, 16});
    Tensor3<float> o(q.shape());
    CountingExecutor executor;
    packed_attention_forward(PackedSequences<float>{q, q, q, starts, starts}, {}, o, {},
                             {.executor = executor});
    return executor.runs;
  };
  CHECK(runs(8, 16) == 0);
  CHECK(runs(8, 40) > 0);
}

}  // namespace ops_flash_tasks
