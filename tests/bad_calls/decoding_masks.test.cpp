// Masks that a step over a cache does not take, of attention and of a block.
#include "bad_calls/step_calls.hpp"

namespace bad_calls_decoding_masks {

using namespace headwise_tests;
using namespace headwise_tests::step_calls;

namespace {

const Tensor2<Index> parts(Shape{1, 2}, {1, 2});
const std::vector<Index> both = {2, 2};

/// Masks, for steps of both: 2 heads, 2 sequences of 2 new tokens, none before.
template <class C>
std::vector<Refusal> of_masks(const std::string& function) {
  const std::string fits = ", expected [2, 2, 2, 2] or 1 on an axis (scores are [B, H, L, S])";
  const std::string kinds =
      "mask holds a window, key lengths or documents, expected functions, keep and drop masks and "
      "biases: windows and lengths are the cache's";
  return {
      shape<C>(function + "Mask::keep is [1, 1, 2, 3]" + fits,
               [](auto& c) {
                 c.options.mask.add(Mask::keep(c.m.bools(Shape{2, 3})));
               }),
      shape<C>(function + "Mask::drop_keys is [3, 1, 1, 2]" + fits,
               [](auto& c) {
                 c.options.mask.add(Mask::drop_keys(c.m.bools(Shape{3, 2})));
               }),
      shape<C>(function + "Mask::keep is [1, 1, 2, 2] at a null address, expected its elements",
               [](auto& c) {
                 c.options.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{2, 2})));
               }),
      shape<C>(function + "Mask::bias is [1, 1, 3, 2]" + fits,
               [](auto& c) { c.options.mask.add(Mask::bias(c.m.tensor(3, 2))); }),
      shape<C>(function + "Mask::bias is [1, 1, 2, 2] at a null address, expected its elements",
               [](auto& c) { c.options.mask.add(Mask::bias(c.m.null(2, 2))); }),
      argument<C>(function + kinds, [](auto& c) { c.options.mask.add(Mask::key_lengths(both)); }),
      argument<C>(function + kinds, [](auto& c) { c.options.mask.add(Mask::window(2)); }),
      argument<C>(function + kinds, [](auto& c) { c.options.mask.add(Mask::documents(parts)); }),
  };
}

/// Masks of pairs where not all keys are held.
template <class C>
std::vector<Refusal> beside_a_window(const std::string& function, void (*window)(C&)) {
  const auto refused = [&](void (*give)(C&)) {
    return argument_error(function +
                              "mask holds keep or drop masks or biases beside a window of the "
                              "cache, expected functions: not all keys are held",
                          [=](Witness& m) {
                            C c{m};
                            window(c);
                            give(c);
                            c.call();
                          });
  };
  return {refused([](C& c) {
            c.options.mask.add(Mask::keep(c.m.bools(Shape{2, 2})));
          }),
          refused([](C& c) { c.options.mask.add(Mask::bias(c.m.tensor(2, 2))); })};
}

const KeyValueCacheOptions windowed = {.batch_size = 2, .window = 2};
const std::string attention = "multi_head_attention_step: ", block = "transformer_block_step: ";
const Refusals of_attention(all_of({of_masks<Step>(attention),
                                    beside_a_window<Step>(attention, [](Step& c) {
                                      c.cache = key_value_cache(c.attention, windowed);
                                    })}));
const Refusals of_block(all_of({of_masks<BlockStep>(block),
                                beside_a_window<BlockStep>(block, [](BlockStep& c) {
                                  c.cache = key_value_cache<double>(c.block.options().attention(),
                                                                    windowed);
                                })}));

}  // namespace

TEST_CASE("a step over a cache refuses masks that do not fit", "[bad_calls]") {
  of_attention.check();
}

TEST_CASE("a step of a block refuses masks that do not fit", "[bad_calls]") { of_block.check(); }

}  // namespace bad_calls_decoding_masks
