// Embedding as a module, its tied head, and how weights start.
#include "support/refusal_rules.hpp"

namespace bad_calls_embedding {

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

using Table = EmbeddingParameters<double>;
std::string state(const Table& p) { return headwise_tests::state_of(p.table); }

/// An embedding of 5 tokens of width 3; a call of 2 tokens is pending.
struct Layer {
  Witness& m;
  Embedding<double> embedding{5, 3};
  Tensor1<std::int64_t>& tokens = m.make<Tensor1<std::int64_t>>(Shape{2});
  Embedding<double>::Cache cache = {};
  Table gradients = embedding.zero_gradients();
  Matrix dy = m.tensor(2, 3);
};
template <class Spoil>
Action<Witness&> backward(Spoil spoil, bool pending = true) {
  return [=](Witness& memory) {
    Layer c{memory};
    if (pending) (void)c.embedding.forward(c.tokens, c.cache);
    spoil(c);
    const std::string before = state(c.gradients);
    const auto check = [&] { CHECK(state(c.gradients) == before); };
    try {
      c.embedding.backward(c.dy, c.cache, c.gradients, memory.context());
    } catch (...) {
      check();
      throw;
    }
  };
}

struct TiedForward {
  Witness& m;
  Matrix h = m.tensor(2, 3), table = m.tensor(5, 3), logits = m.tensor(2, 5);
  void call() { tied_head_forward(h, table, logits, m.context()); }
};
struct TiedBackward {
  Witness& m;
  Matrix d_logits = m.tensor(2, 5), h = m.tensor(2, 3), table = m.tensor(5, 3), dh = m.tensor(2, 3),
         dtable = m.tensor(5, 3);
  void call() { tied_head_backward(d_logits, h, table, dh, dtable, m.context()); }
};
struct Start {
  Witness& m;
  Matrix w = m.tensor(2, 3);
  void call() { init_normal<double>(w, 0.02, 1, 0); }
};

using TF = TiedForward;
using TB = TiedBackward;
const Refusals embeddings(all_of({
    {
        argument_error("Embedding: vocabulary is -1, expected >= 0",
                       [](Witness&) { Embedding<double>(-1, 3); }),
        argument_error("Embedding: width is -3, expected >= 0",
                       [](Witness&) { Embedding<double>(1, -3); }),
        argument_error("init_normal: std_deviation is -0.5, expected a finite number of 0 or more",
                       [](Witness&) { Embedding<double>(1, 3, -0.5); }),
        argument_error("init_normal: std_deviation is nan, expected a finite number of 0 or more",
                       [](Witness& m) { init_normal<double>(m.tensor(2, 3), nan, 1, 0); }),
        argument_error("init_normal: std_deviation is inf, expected a finite number of 0 or more",
                       [](Witness& m) { init_normal<double>(m.tensor(2, 3), infinity, 1, 0); }),
        shape_error("Embedding::forward: tokens is [-2], expected extents of 0 or more",
                    [](Witness& m) {
                      Layer c{m};
                      const In<std::int64_t, 1> none(c.tokens.data(), Shape{-2});
                      (void)c.embedding.forward(none, c.cache, m.context());
                    }),
        shape_error("Embedding::forward: tokens is [2] at a null address, expected its elements",
                    [](Witness& m) {
                      Layer c{m};
                      (void)c.embedding.forward(In<std::int64_t, 1>(nullptr, Shape{2}), c.cache);
                    }),
        argument_error("embedding_forward: tokens(1) is 5, expected 0 or more and below 5 (rows of "
                       "table [5, 3])",
                       [](Witness& m) {
                         Layer c{m};
                         c.tokens(1) = 5;
                         (void)c.embedding.forward(c.tokens, c.cache, m.context());
                       }),
        argument_error("Embedding::backward: the cache is empty: pass it to forward first",
                       backward([](Layer&) {}, false)),
        shape_error("Embedding::backward: dy is [3, 3], expected [2, 3] (the output)",
                    backward([](Layer& c) { c.dy = c.m.tensor(3, 3); })),
        shape_error("Embedding::backward: dy is [2, 3] at a null address, expected its elements",
                    backward([](Layer& c) { c.dy = Witness::null(2, 3); })),
        shape_error(
            "Embedding::backward: gradients.table is [0, 0], expected [5, 3] (zero_gradients())",
            backward([](Layer& c) { c.gradients.table = {}; })),
        argument_error("Embedding::backward: gradients are the module's parameters, expected a "
                       "table of their own (zero_gradients())",
                       [](Witness& memory) {
                         auto& own = memory.make<Embedding<double>>(5, 3);
                         Embedding<double>::Cache cache;
                         (void)own.forward(Tensor1<std::int64_t>(2), cache);
                         memory.keep(own.parameters().table);
                         own.backward(memory.tensor(2, 3), cache, own.parameters());
                       }),
        argument_error("Embedding::logits_backward: gradients are the module's parameters, "
                       "expected a table of their own (zero_gradients())",
                       [](Witness& memory) {
                         auto& own = memory.make<Embedding<double>>(5, 3);
                         memory.keep(own.parameters().table);
                         (void)own.logits_backward(memory.tensor(2, 5), memory.tensor(2, 3),
                                                   own.parameters());
                       }),
        argument_error("embedding_backward: tokens(0) is 5, expected 0 or more and below 5 (rows "
                       "of dtable [5, 3])",
                       backward([](Layer& c) {
                         const Embedding<double> larger(6, 3);
                         c.tokens(0) = 5;
                         (void)larger.forward(c.tokens, c.cache);
                       })),
        shape_error("Embedding::logits: h is [2, 4], expected [2, 3] (the width of the table)",
                    [](Witness& m) { (void)Layer{m}.embedding.logits(m.tensor(2, 4)); }),
        shape_error(
            "Embedding::logits_backward: h is [2, 4], expected [2, 3] (the width of the table)",
            [](Witness& m) {
              Layer c{m};
              (void)c.embedding.logits_backward(m.tensor(2, 5), m.tensor(2, 4), c.gradients);
            }),
        shape_error("Embedding::logits_backward: gradients.table is [5, 2], expected [5, 3] "
                    "(zero_gradients())",
                    [](Witness& m) {
                      Layer c{m};
                      c.gradients.table = Tensor2<double>({5, 2});
                      (void)c.embedding.logits_backward(m.tensor(2, 5), c.dy, c.gradients);
                    }),
    },
    countable("init_normal: w", &Start::w, {2, 3}),
    countable("tied_head_forward: h", &TF::h, {2, 3}),
    output("tied_head_forward", "logits", &TF::logits, {2, 5}, "rows of h, rows of table"),
    {
        shape<TF>("tied_head_forward: table is [5, 4], expected [5, 3] (columns of h)",
                  [](auto& c) { c.table = c.m.tensor(5, 4); }),
        shape<TF>("tied_head_forward: table is [-5, 3], expected extents of 0 or more",
                  [](auto& c) { c.table = c.m.unfounded(-5, 3); }),
        repeated("tied_head_forward: logits", &TF::logits),
        overlapping("tied_head_forward: logits", &TF::logits, "h", &TF::h),
        overlapping("tied_head_forward: logits", &TF::logits, "table", &TF::table),
    },
    countable("tied_head_backward: h", &TB::h, {2, 3}),
    output("tied_head_backward", "d_logits", &TB::d_logits, {2, 5}, "rows of h, rows of table"),
    output("tied_head_backward", "dh", &TB::dh, {2, 3}, "the shape of h"),
    output("tied_head_backward", "dtable", &TB::dtable, {5, 3}, "the shape of table"),
    {
        shape<TB>("tied_head_backward: table is [5, 4], expected [5, 3] (columns of h)",
                  [](auto& c) { c.table = c.m.tensor(5, 4); }),
        repeated("tied_head_backward: dh", &TB::dh),
        overlapping("tied_head_backward: dh", &TB::dh, "d_logits", &TB::d_logits),
        overlapping("tied_head_backward: dh", &TB::dh, "h", &TB::h),
        overlapping("tied_head_backward: dh", &TB::dh, "table", &TB::table),
        repeated("tied_head_backward: dtable", &TB::dtable),
        overlapping("tied_head_backward: dtable", &TB::dtable, "d_logits", &TB::d_logits),
        overlapping("tied_head_backward: dtable", &TB::dtable, "h", &TB::h),
        overlapping("tied_head_backward: dtable", &TB::dtable, "table", &TB::table),
        overlapping("tied_head_backward: dtable", &TB::dtable, "dh", &TB::dh),
    },
}));

}  // namespace

TEST_CASE("Embedding and its tied head refuse bad calls before anything is written",
          "[bad_calls]") {
  embeddings.check();
}

TEMPLATE_TEST_CASE("the calls of a tied head that are spoilt are right before", "[bad_calls]",
                   TiedForward, TiedBackward, Start) {
  Witness memory;
  TestType call{memory};
  call.call();
  CHECK(memory.written() == "a tensor");
}

}  // namespace bad_calls_embedding
