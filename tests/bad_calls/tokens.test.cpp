// Embedding and cross-entropy: every argument wrong in every way that has a rule.
#include "support/refusal_rules.hpp"

namespace bad_calls_tokens {

using namespace headwise_tests;

namespace {

using Tokens = Tensor1<std::int64_t>;

/// Tokens of the call's, which nobody writes.
Tokens& tokens_of(Witness& m, std::initializer_list<std::int64_t> values) {
  return m.keep(m.make<Tokens>(Shape{static_cast<Index>(values.size())}, values));
}
// Each call struct holds what its function takes, all of it right.

struct EmbeddingForward {
  Witness& m;
  In<std::int64_t, 1> tokens = tokens_of(m, {4, 0});
  Matrix table = m.tensor(5, 3), y = m.tensor(2, 3);
  void call() { embedding_forward(tokens, table, y, m.context()); }
};
struct EmbeddingBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), dtable = m.tensor(5, 3);
  In<std::int64_t, 1> tokens = tokens_of(m, {4, 0});
  void call() { embedding_backward(dy, tokens, dtable, m.context()); }
};
struct EntropyForward {
  Witness& m;
  Matrix logits = m.tensor(2, 3);
  In<std::int64_t, 1> targets = tokens_of(m, {2, -100});
  Vector logsumexp = m.tensor(2);
  CrossEntropyOptions options = {};
  void call() { (void)cross_entropy_forward(logits, targets, options, logsumexp, m.context()); }
};
struct EntropyBackward {
  Witness& m;
  Matrix logits = m.tensor(2, 3), d_logits = m.tensor(2, 3);
  In<std::int64_t, 1> targets = tokens_of(m, {2, -100});
  Vector logsumexp = m.tensor(2);
  CrossEntropyOptions options = {};
  void call() {
    cross_entropy_backward(1.0, logits, targets, logsumexp, options, d_logits, m.context());
  }
};

/// The rules of tokens that others take their count from.
template <class Call>
std::vector<Refusal> tokens_that_count(const std::string& argument,
                                       In<std::int64_t, 1> Call::*member) {
  const auto with = [=](const In<std::int64_t, 1>& view) {
    return [=](Witness& memory) {
      Call c{memory};
      c.*member = view;
      c.call();
    };
  };
  static const std::int64_t some[1] = {};
  return {
      shape_error(argument + " is [-1], expected extents of 0 or more", with({some, Shape{-1}})),
      shape_error(argument + " is [2] at a null address, expected its elements",
                  with({nullptr, Shape{2}})),
      shape_error(
          argument + " is [281474976710657], expected extents whose product is at most 2^48",
          with({some, Shape{(Index{1} << 48) + 1}}))};
}
/// The rule that an output lies apart from the tokens.
template <class Call, int R>
Refusal over_tokens(const std::string& message, View<R> Call::*out,
                    In<std::int64_t, 1> Call::*tokens) {
  return shape_error(message, [=](Witness& memory) {
    Call c{memory};
    const auto block = memory.tensor((c.*out).shape());
    c.*out = block;
    c.*tokens = {reinterpret_cast<const std::int64_t*>(block.data()), (c.*tokens).shape()};
    c.call();
  });
}
template <class Call>
Refusal token(const std::string& message, In<std::int64_t, 1> Call::*member,
              std::initializer_list<std::int64_t> values) {
  const std::vector<std::int64_t> all = values;
  return argument_error(message, [=](Witness& memory) {
    Call c{memory};
    Tokens& bad = memory.make<Tokens>(Shape{static_cast<Index>(all.size())});
    std::copy(all.begin(), all.end(), bad.begin());
    c.*member = memory.keep(bad);
    c.call();
  });
}

using EF = EmbeddingForward;
using EB = EmbeddingBackward;
const Refusals embedding_refusals(all_of({
    tokens_that_count("embedding_forward: tokens", &EF::tokens),
    countable("embedding_forward: table", &EF::table, {5, 3}),
    output("embedding_forward", "y", &EF::y, {2, 3}, "tokens, columns of table"),
    {
        repeated("embedding_forward: y", &EF::y),
        overlapping("embedding_forward: y", &EF::y, "table", &EF::table),
        over_tokens("embedding_forward: y overlaps tokens, expected memory of its own", &EF::y,
                    &EF::tokens),
        token("embedding_forward: tokens(1) is 5, expected 0 or more and below 5 (rows of table "
              "[5, 3])",
              &EF::tokens, {0, 5}),
        token("embedding_forward: tokens(0) is -1, expected 0 or more and below 5 (rows of table "
              "[5, 3])",
              &EF::tokens, {-1, 7}),
        token("embedding_forward: tokens(1) is 4294967296, expected 0 or more and below 5 (rows of "
              "table [5, 3])",
              &EF::tokens, {0, std::int64_t{1} << 32}),
    },
    tokens_that_count("embedding_backward: tokens", &EB::tokens),
    countable("embedding_backward: dtable", &EB::dtable, {5, 3}),
    output("embedding_backward", "dy", &EB::dy, {2, 3}, "tokens, columns of dtable"),
    {
        repeated("embedding_backward: dtable", &EB::dtable),
        overlapping("embedding_backward: dtable", &EB::dtable, "dy", &EB::dy),
        over_tokens("embedding_backward: dtable overlaps tokens, expected memory of its own",
                    &EB::dtable, &EB::tokens),
        token("embedding_backward: tokens(1) is 5, expected 0 or more and below 5 (rows of dtable "
              "[5, 3])",
              &EB::tokens, {0, 5}),
    },
}));

template <class Call>
std::vector<Refusal> entropy(const std::string& function) {
  const std::string whence =
      ", expected 0 or more and below 3 (columns of logits [2, 3], or ignore_index -100)";
  return all_of({
      countable(function + ": logits", &Call::logits, {2, 3}),
      output(function, "logsumexp", &Call::logsumexp, {2}, "rows of logits"),
      {
          token(function + ": targets(0) is 3" + whence, &Call::targets, {3, 0}),
          token(function + ": targets(1) is -1" + whence, &Call::targets, {-100, -1}),
          argument_error(function + ": targets(1) is -100, expected 0 or more and below 3 (columns "
                                    "of logits [2, 3], or ignore_index -1)",
                         [](Witness& memory) {
                           Call c{memory};
                           c.options.ignore_index = -1;
                           c.call();
                         }),
          shape_error(function + ": targets is [1], expected [2] (rows of logits)",
                      [](Witness& memory) {
                        Call c{memory};
                        c.targets = tokens_of(memory, {1});
                        c.call();
                      }),
          shape_error(function + ": targets is [2] at a null address, expected its elements",
                      [](Witness& memory) {
                        Call c{memory};
                        c.targets = {nullptr, Shape{2}};
                        c.call();
                      }),
      },
  });
}

using XF = EntropyForward;
using XB = EntropyBackward;
const Refusals entropy_refusals(all_of({
    entropy<XF>("cross_entropy_forward"),
    {
        repeated("cross_entropy_forward: logsumexp", &XF::logsumexp),
        overlapping("cross_entropy_forward: logsumexp", &XF::logsumexp, "logits", &XF::logits),
        over_tokens("cross_entropy_forward: logsumexp overlaps targets, expected memory of its own",
                    &XF::logsumexp, &XF::targets),
    },
    entropy<XB>("cross_entropy_backward"),
    output("cross_entropy_backward", "d_logits", &XB::d_logits, {2, 3}, "the shape of logits"),
    {
        repeated("cross_entropy_backward: d_logits", &XB::d_logits),
        overlapping("cross_entropy_backward: d_logits", &XB::d_logits, "logsumexp", &XB::logsumexp),
        over_tokens("cross_entropy_backward: d_logits overlaps targets, expected memory of its own",
                    &XB::d_logits, &XB::targets),
        shifted("cross_entropy_backward", "d_logits", &XB::d_logits, "logits", &XB::logits),
    },
}));

}  // namespace

TEST_CASE("embedding refuses bad calls before anything is written", "[bad_calls]") {
  embedding_refusals.check();
}

TEST_CASE("cross_entropy refuses bad calls before anything is written", "[bad_calls]") {
  entropy_refusals.check();
}

TEMPLATE_TEST_CASE(
    "the calls about tokens that are spoilt are right before, and show when they write",
    "[bad_calls]", EmbeddingForward, EmbeddingBackward, EntropyForward, EntropyBackward) {
  Witness memory;
  TestType call{memory};
  call.call();
  CHECK(memory.written() == "a tensor");
}

}  // namespace bad_calls_tokens
