// What changes the scores of packed sequences, and its gradients: the bits of one call for each
// sequence after the other, all adding to the same gradients.
#include "headwise/kernels/score_function.hpp"
#include "headwise/ops/packed_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/packed_sequence.hpp"
#include "support/score_tensors.hpp"

namespace ops_packed_scores {

using namespace headwise_tests;

namespace {

constexpr Index H = 4, G = 2, d = 6, dv = 5;
const std::vector<Index> query_starts = {0, 5, 5, 136, 137, 400, 400, 613};
const std::vector<Index> key_starts = {0, 7, 10, 141, 141, 460, 461, 780};
const Index B = static_cast<Index>(query_starts.size()) - 1;

/// All that can be learned, biases with a number a sequence and head, a head, and one alone.
template <class T>
ScoreTensors<T> everything(Numbers& numbers) {
  ScoreTensors<T> x;
  x.scale = Tensor<T, 1>(Shape{1}, {T(0.4)});
  x.slopes = numbers.tensor<T>(Shape{H});
  x.sinks = numbers.tensor<T>(Shape{H});
  x.table = numbers.tensor<T>(Shape{Index{1}, Index{41}});
  x.biases = {numbers.tensor<T>(Shape{B, H, Index{1}, Index{1}}),
              numbers.tensor<T>(Shape{Index{1}, H, Index{1}, Index{1}}),
              numbers.tensor<T>(Shape{Index{1}, Index{1}, Index{1}, Index{1}})};
  return x;
}

/// A function of one's own with two parameters.
template <class T>
auto own_function() {
  return score_function(std::array{T(0.9), T(0.01)},
                        [](const auto& s, const Position& at, const auto& w) {
                          return w[0] * s + w[1] * (s * s) / T(1 + at.key);
                        });
}

/// The options of a call that sees biases as they are, or those of sequence b alone.
template <class T, class Function>
AttentionOptions<T> options_of(const ScoreTensors<T>& x, const Function& function, Index b = -1) {
  AttentionOptions<T> options{.mask = {causal}, .scale = x.scale(0)};
  options.score = x.options(T(3));
  options.score.function = function;
  for (const Tensor<T, 4>& bias : x.biases) {
    const bool own = b >= 0 && bias.extent(0) == B;
    options.mask.add(Mask::bias(own ? In<T, 4>(slice(In<T, 4>(bias), 0, b, 1)) : In<T, 4>(bias)));
  }
  return options;
}

/// Outputs of a call, and the gradients of what is learned, which begin with 1.
template <class T>
struct Results {
  Tensor3<T> o{Shape{query_starts.back(), H, dv}};
  Tensor3<T> lse{Shape{query_starts.back(), H, Index{2}}};
  Tensor3<T> dq{Shape{query_starts.back(), H, d}};
  Tensor3<T> dk{Shape{key_starts.back(), G, d}};
  Tensor3<T> dv_{Shape{key_starts.back(), G, dv}};
  ScoreTensors<T> learned;
  Tensor<T, 1> function{Shape{2}};

  explicit Results(const ScoreTensors<T>& of) : learned(of.zeros()) {
    learned.for_each([](const char*, auto& x) { std::fill(x.begin(), x.end(), T(1)); });
    std::fill(function.begin(), function.end(), T(1));
  }
  ScoreGradients<T> gradients() {
    auto to = learned.gradients();
    to.d_function = function;
    return to;
  }
};

}  // namespace

TEMPLATE_TEST_CASE(
    "gradients of what changes the scores of packed sequences have the bits of calls "
    "for each of them in turn",
    "[ops]", float, double) {
  using T = TestType;
  const Index threads = GENERATE(1, 3);
  ThreadPool pool(threads);
  const Context context{.executor = pool};
  Numbers numbers(77);
  const auto q = numbers.tensor<T>(Shape{query_starts.back(), H, d}),
             d_o = numbers.tensor<T>(Shape{query_starts.back(), H, dv}),
             k = numbers.tensor<T>(Shape{key_starts.back(), G, d}),
             v = numbers.tensor<T>(Shape{key_starts.back(), G, dv});
  const auto x = everything<T>(numbers);
  const auto function = own_function<T>();

  Results<T> packed(x), alone(x);
  const PackedSequences<T> inputs{q, k, v, query_starts, key_starts};
  const auto options = options_of(x, function);
  packed_attention_forward(inputs, options, packed.o, packed.lse, context);
  packed_attention_backward(d_o, inputs, packed.o, packed.lse, options,
                            {packed.dq, packed.dk, packed.dv_, packed.gradients()}, context);
  for (Index b = 0; b < B; ++b) {
    const auto of_queries = [&](auto& t) { return sequence(t, query_starts, b); };
    const auto of_keys = [&](auto& t) { return sequence(t, key_starts, b); };
    const auto own = options_of(x, function, b);
    auto to = alone.gradients();
    to.d_biases[0] = slice(InOut<T, 4>(alone.learned.biases[0]), 0, b, 1);
    flash_attention_forward<T>(of_queries(q), of_keys(k), of_keys(v), own, of_queries(alone.o),
                               of_queries(alone.lse), context);
    flash_attention_backward<T>(of_queries(d_o), {of_queries(q), of_keys(k), of_keys(v)},
                                of_queries(alone.o), of_queries(alone.lse), own,
                                {of_queries(alone.dq), of_keys(alone.dk), of_keys(alone.dv_), to},
                                context);
  }
  CAPTURE(threads);
  CHECK(same_bits<T, 3>(packed.dq, alone.dq));
  CHECK(same_bits<T, 3>(packed.dk, alone.dk));
  CHECK(same_bits<T, 3>(packed.dv_, alone.dv_));
  CHECK(same_bits<T, 1>(packed.function, alone.function));
  packed.learned.for_each(
      [](const char* name, auto& mine, auto& theirs) {
        INFO(name);
        CHECK(std::equal(mine.begin(), mine.end(), theirs.begin()));
        CHECK(std::any_of(mine.begin(), mine.end(), [](T y) { return y != T(1); }));
      },
      alone.learned);
}

}  // namespace ops_packed_scores
