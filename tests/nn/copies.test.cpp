// Copies of what owns parameters, where memory runs out half-way: all of it or nothing.
#include <limits>
#include <memory_resource>
#include <new>
#include <vector>

#include "headwise/nn/embedding.hpp"
#include "headwise/nn/layer_norm.hpp"
#include "headwise/nn/linear.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/ops/rotary_table.hpp"
#include "headwise/optim/adamw.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/parameter_values.hpp"

namespace nn_copies {

using namespace headwise_tests;

namespace {

constexpr int enough = std::numeric_limits<int>::max();

/// The default resource as long as it lives.
class Memory : public FailingMemory {
 public:
  Memory() : FailingMemory(enough), before_(std::pmr::set_default_resource(this)) {}
  ~Memory() override { std::pmr::set_default_resource(before_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  std::pmr::memory_resource* before_;
};

/// Assigns a copy with memory for 0, 1, 2 .. allocations until it is made; how often it was not, or
/// -1 where numbers(to) were others than before, or than those of `from` in the end.
template <class X, class Numbers>
int failures_that_change_nothing(Memory& memory, X& to, const X& from, const Numbers& numbers) {
  const std::vector<double> before = numbers(to);
  if (before == numbers(from)) return -1;
  for (int served = 0; served < 1000; ++served) {
    memory.serve(served);
    bool copied = true;
    try {
      to = from;
    } catch (const std::bad_alloc&) {
      copied = false;
    }
    memory.serve(enough);
    if (numbers(to) != (copied ? numbers(from) : before)) return -1;
    if (copied) return served;
  }
  return -1;
}

constexpr auto parameters_of = [](const auto& module) {
  return values_of<double>(module.parameters());
};

}  // namespace

TEST_CASE("a module that is assigned a copy has all of it, or is as it was where memory runs out",
          "[nn]") {
  Memory memory;
  const auto failures = [&](auto to, const auto& from) {
    return failures_that_change_nothing(memory, to, from, parameters_of);
  };
  using Attention = MultiHeadAttention<double>;
  using Block = TransformerBlock<double>;
  const TransformerDecoderOptions small{
      .vocabulary = 7, .max_length = 5, .num_blocks = 2, .block = {.d_model = 8, .num_heads = 2}};
  TransformerDecoderOptions other = small;
  other.block.seed = 1;

  CHECK(failures(Linear<double>(3, 2), Linear<double>(4, 5)) == 2);
  CHECK(failures(LayerNorm<double>(3), LayerNorm<double>(5)) == 2);
  CHECK(failures(Embedding<double>(3, 2), Embedding<double>(4, 5)) == 1);
  CHECK(failures(FeedForward<double>({.d_model = 4, .d_hidden = 6}),
                 FeedForward<double>({.d_model = 4, .d_hidden = 8})) == 4);
  CHECK(failures(Attention(8, 2), Attention({.d_model = 8, .num_heads = 4, .sinks = true})) == 4);
  CHECK(failures(Block({.d_model = 8, .num_heads = 2}),
                 Block({.d_model = 8, .num_heads = 2, .seed = 1})) > 8);
  CHECK(failures(TransformerDecoder<double>(small), TransformerDecoder<double>(other)) > 16);
}

TEST_CASE("a rotary table and an optimiser are copied whole, or are as they were", "[nn]") {
  Memory memory;
  RotaryTable<double> table(8), other(8, {.theta = 50});
  table.grow(3), other.grow(9);
  const auto of_table = [](const RotaryTable<double>& of) {
    const auto cosines = of.angles().cosines;
    std::vector<double> all;
    for_each_index(cosines.shape(), [&](const Shape<2>& at) { all.push_back(cosines(at)); });
    return all;
  };
  CHECK(failures_that_change_nothing(memory, table, other, of_table) == 2);

  Tensor2<double> w({2, 3}), dw({2, 3}), b({1, 4}), db({1, 4});
  fill(dw, 1.0), fill(db, 2.0);
  ParameterList<double> list;
  list.add("w", w, dw), list.add("b", b, db);
  AdamW<double> adamw(list), later(list);
  adamw.step();
  for (int n = 0; n < 3; ++n) later.step();
  const auto of_state = [](const AdamW<double>& of) {
    std::vector<double> all;
    of.for_each_state([&](const auto& state) {
      for_each_index(state.view.shape(), [&](const auto& at) { all.push_back(state.view(at)); });
    });
    return all;
  };
  CHECK(failures_that_change_nothing(memory, adamw, later, of_state) == 4);
}

}  // namespace nn_copies
