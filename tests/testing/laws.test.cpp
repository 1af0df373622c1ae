#include "headwise/testing/laws.hpp"

#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/law_kernels.hpp"

namespace testing_laws {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("both paths of this library keep every law of attention", "[testing]", float,
                   double) {
  const auto materialized = run_laws(materialized_kernel<TestType>());
  CAPTURE(materialized.format());
  CHECK(materialized);
  for (const auto& row : materialized.rows) {
    CAPTURE(row.law);
    CHECK(row.shapes > 0);
    CHECK(row.worst.status == LawStatus::pass);
  }
  const auto flash = run_laws(flash_kernel<TestType>());
  CAPTURE(flash.format());
  CHECK(flash);
  CHECK(flash["weights sum to 1 over keys"].worst.status == LawStatus::not_applicable);
}

TEMPLATE_TEST_CASE("plain loops without a fault keep every law of attention", "[testing]", float,
                   double) {
  const auto card = run_laws(loops_kernel<TestType>(Fault::none));
  CAPTURE(card.format());
  CHECK(card);
}

TEMPLATE_TEST_CASE("a planted fault of attention is caught by the law that names it", "[testing]",
                   float, double) {
  struct Plant {
    Fault fault;
    std::string law;
  };
  const auto plant = GENERATE(values<Plant>({
      {Fault::softmax_over_queries, "equal values come out as they are"},
      {Fault::softmax_over_queries, "weights sum to 1 over keys"},
      {Fault::softmax_over_queries, "agrees with plain loops"},
      {Fault::causal_off_by_one, "the future changes no bit"},
      {Fault::causal_off_by_one, "agrees with plain loops"},
      {Fault::causal_top_left, "agrees with plain loops"},
      {Fault::causal_top_left, "a chunk as in the whole, to rounding"},
      {Fault::scale_forgotten, "agrees with plain loops"},
      {Fault::wrong_group, "grouped heads are repeated heads"},
      {Fault::last_key_dropped, "agrees with plain loops"},
      {Fault::last_key_dropped, "the order of keys is nothing"},
      {Fault::last_key_dropped, "what is seen shows"},
      {Fault::nan_leak, "what is hidden changes no bit"},
      {Fault::nan_leak, "what is hidden moves no gradient"},
      {Fault::nan_swallowed, "what is seen shows"},
      {Fault::no_maximum, "a shift of all scores is nothing"},
      {Fault::dead_row_uniform, "a query that sees nothing gets 0"},
      {Fault::bits_of_the_batch, "alone as in a batch, same bits"},
      {Fault::bits_of_the_length, "a chunk as in the whole, same bits"},
      {Fault::delta_forgotten, "backward is forward's adjoint"},
      {Fault::delta_forgotten, "gradients agree with plain loops"},
      {Fault::dk_transposed, "backward is forward's adjoint"},
      {Fault::dk_transposed, "gradients agree with plain loops"},
      {Fault::dk_of_last_head, "backward is forward's adjoint"},
      {Fault::dead_row_gradient, "a query that sees nothing moves no gradient"},
      {Fault::output_left, "agrees with plain loops"},
      {Fault::throws, "agrees with plain loops"},
  }));
  const auto card = run_laws(loops_kernel<TestType>(plant.fault), {.shapes = small_shapes()});
  CAPTURE(plant.law, card.format());
  CHECK_FALSE(card);
  CHECK(contains(card.failed(), plant.law));
}

TEST_CASE("a softmax over queries with its own right gradient passes the adjoint law",
          "[testing]") {
  const auto card = run_laws(loops_kernel<double>(Fault::softmax_over_queries),
                             {.shapes = {{1, 2, 1, 5, 7, 3, 2}}});
  CAPTURE(card.format());
  CHECK_FALSE(contains(card.failed(), "backward is forward's adjoint"));
  CHECK(card["equal values come out as they are"].worst.status == LawStatus::fail);
}

TEST_CASE("what only bits tell passes the laws to rounding", "[testing]") {
  const auto batch = run_laws(loops_kernel<float>(Fault::bits_of_the_batch));
  CHECK(batch.failed() == std::vector<std::string>{"alone as in a batch, same bits"});
  const auto length = run_laws(loops_kernel<float>(Fault::bits_of_the_length));
  CHECK(length.failed() == std::vector<std::string>{"a chunk as in the whole, same bits"});
}

TEST_CASE("a law that fails says the worst number, where and on which shape", "[testing]") {
  const auto card = run_laws(loops_kernel<double>(Fault::dead_row_uniform),
                             {.shapes = {{1, 1, 1, 3, 3, 2, 2}, {1, 1, 1, 3, 2, 2, 2, true}}});
  const auto& row = card["a query that sees nothing gets 0"];
  CHECK(row.shapes == 1);
  CHECK(row.failures == 1);
  CHECK(row.shape.format() == "B1 H1 G1 L3 S2 d2 dv2 causal");
  CHECK(row.worst.tensor == "o");
  CHECK(row.worst.worst.index == std::vector<Index>{0, 0, 0, 0});
  CHECK_THAT(row.worst.message(), ContainsSubstring("o[0, 0, 0, 0] is "));
  CHECK_THAT(row.worst.message(), ContainsSubstring(", expected 0, error "));
}

TEST_CASE("score_card prints a line a law and returns how many failed", "[testing]") {
  const ScoreCardOptions options{.shapes = {{1, 2, 1, 8, 5, 4, 6, true}}};
  std::ostringstream good, bad;
  CHECK(score_card(good, loops_kernel<float>(Fault::none), options) == 0);
  CHECK_THAT(good.str(), ContainsSubstring("every law that applies holds"));
  for (const auto& law : attention_laws<float>())
    CHECK_THAT(good.str(), ContainsSubstring(law.name));
  CHECK(score_card(bad, loops_kernel<float>(Fault::throws), options) == 17);
  CHECK_THAT(bad.str(), ContainsSubstring("threw: more queries than keys"));
}

TEST_CASE("what a kernel throws fails the laws that say something of it, and no other",
          "[testing]") {
  auto good = loops_kernel<float>(Fault::none), bad = loops_kernel<float>(Fault::throws);
  if (GENERATE(false, true)) {
    good.backward = bad.backward = {};
    good.gives_weights = bad.gives_weights = false;
  }
  const ScoreCardOptions options{
      .shapes = {{1, 2, 1, 8, 5, 4, 6, true}, {2, 2, 2, 8, 5, 4, 6, false, true}}};
  const auto passed = run_laws(good, options), thrown = run_laws(bad, options);
  CAPTURE(passed.format(), thrown.format());
  for (std::size_t n = 0; n < passed.rows.size(); ++n) {
    CAPTURE(passed.rows[n].law);
    CHECK(thrown.rows[n].shapes == passed.rows[n].shapes);
    CHECK(thrown.rows[n].failures == passed.rows[n].shapes);
  }
}

TEST_CASE("the columns of a score card stand below each other, whatever a law is called",
          "[testing]") {
  ScoreCard card{"kernel", {{"a law of attention", "it holds", {}, {}}}};
  card.rows.push_back({std::string(60, 'x'), "it holds", {}, {}});
  card.rows[0].worst.status = card.rows[1].worst.status = LawStatus::pass;
  std::istringstream lines(card.format());
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  const auto at = line.find("result");
  for (const auto& row : card.rows) {
    std::getline(lines, line);
    CAPTURE(line);
    CHECK(line.find(row.law) == 2);
    CHECK(line.find("pass") == at);
  }
}

TEST_CASE("a kernel is not given what it does not take", "[testing]") {
  auto kernel = loops_kernel<double>(Fault::none);
  kernel.backward = {};
  kernel.gives_weights = kernel.takes_causal = kernel.takes_keep = false;
  kernel.takes_groups = kernel.takes_scale = false;
  const auto inner = kernel.forward;
  kernel.forward = [inner](const AttentionProblem<double>& x, const AttentionAnswer<double>& y) {
    REQUIRE(!x.causal);
    REQUIRE(x.keep.absent());
    REQUIRE(y.weights.absent());
    REQUIRE(x.q.extent(1) == x.k.extent(1));
    REQUIRE(x.scale == 1 / std::sqrt(static_cast<double>(x.q.extent(3))));
    inner(x, y);
  };
  const auto card = run_laws(kernel);
  CAPTURE(card.format());
  CHECK(card);
  CHECK(card["agrees with plain loops"].shapes == 3);
  CHECK(card["the future changes no bit"].shapes == 0);
  CHECK(card["backward is forward's adjoint"].shapes == 0);
}

TEMPLATE_TEST_CASE("a pair of plain functions over arrays is a kernel", "[testing]", float,
                   double) {
  using T = TestType;
  const auto kernel = attention_kernel<T>(
      "functions",
      [](const AttentionArrays<T>* x, T* o) {
        loops_forward<T>(*x, Fault::none, {{o, Shape{x->B, x->H, x->L, x->dv}}, {}});
      },
      [](const AttentionArrays<T>* x, const T* d_o, T* dq, T* dk, T* dv) {
        loops_backward<T>(*x, Fault::none, d_o,
                          {{dq, Shape{x->B, x->H, x->L, x->d}},
                           {dk, Shape{x->B, x->G, x->S, x->d}},
                           {dv, Shape{x->B, x->G, x->S, x->dv}}});
      });
  const auto card = run_laws(kernel, {.shapes = small_shapes()});
  CAPTURE(card.format());
  CHECK(card);
  CHECK(card["gradients agree with plain loops"].shapes == 4);
}

TEST_CASE("a law of one's own is run beside others", "[testing]") {
  const std::vector<AttentionLaw<float>> laws = {
      {"o is never negative", "it is, for normal values", [](const LawTrial<float>& trial) {
         LawResult result;
         auto negative = trial.answer().o;
         for (float& x : negative) x = std::min(x, 0.0f);
         add_finding(result, "o", all_zero(In<float, 4>(negative)));
         return result;
       }}};
  const auto card = run_laws(flash_kernel<float>(), {.shapes = small_shapes()}, laws);
  CHECK(card.failed() == std::vector<std::string>{"o is never negative"});
}

}  // namespace testing_laws
