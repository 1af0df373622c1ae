// The laws of attention with all that may be done beside it, declared as a variant.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "headwise/testing/laws.hpp"
#include "support/catch.hpp"
#include "support/law_kernels.hpp"
#include "support/law_variant_kernels.hpp"
#include "support/law_variant_loops.hpp"

namespace testing_law_variants {

using namespace headwise_tests;

namespace {

/// Few, where a fault is large: of them all laws say something.
const std::vector<LawShape> few_shapes = {
    {2, 4, 2, 5, 11, 4, 3, true, true}, {1, 2, 1, 9, 5, 6, 4, true}, {1, 2, 1, 6, 13, 4, 3}};

/// The laws that say nothing about a kernel on any of these shapes.
template <class T>
std::set<std::string> silent_laws(const AttentionKernel<T>& kernel) {
  std::set<std::string> names;
  for (const auto& row : run_laws(kernel, {.shapes = variant_shapes()}).rows) {
    if (row.shapes == 0) names.insert(row.law);
  }
  return names;
}

const VariantRecipe& recipe_of(const std::string& name) {
  const auto& recipes = variant_recipes();
  const auto found = std::find_if(recipes.begin(), recipes.end(),
                                  [&](const VariantRecipe& r) { return name == r.name; });
  REQUIRE(found != recipes.end());
  return *found;
}

}  // namespace

TEMPLATE_TEST_CASE("both paths of this library keep every law with every variant", "[testing]",
                   float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  for (const VariantRecipe& recipe : variant_recipes()) {
    const auto card =
        run_laws(variant_kernel<TestType>(path, recipe), {.shapes = variant_shapes()});
    CAPTURE(card.format());
    CHECK(card);
  }
}

TEMPLATE_TEST_CASE("plain loops that do what they declare keep every law with every variant",
                   "[testing]", float, double) {
  for (const VariantRecipe& recipe : variant_recipes()) {
    const AttentionVariant variant = variant_of(recipe);
    const auto card = run_laws(variant_loops_kernel<TestType>({variant, variant, variant}),
                               {.shapes = few_shapes});
    CAPTURE(recipe.name, card.format());
    CHECK(card);
  }
}

TEMPLATE_TEST_CASE("weights that underflow beside a sink are as good as 0", "[testing]", float,
                   double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const VariantRecipe recipe{.alibi = true, .sinks = true, .kept_keys = 60};
  const ScoreCardOptions options{.shapes = {{2, 1, 1, 6, 261, 8, 3, true}}};  // e^-100 and less
  const auto card = run_laws(variant_kernel<TestType>(path, recipe), options);
  CAPTURE(card.format());
  CHECK(card);
}

TEST_CASE("a law is silent about a variant only where it says another thing", "[testing]") {
  const std::string sums = "equal values come out as they are",
                    shift = "a shift of all scores is nothing",
                    order = "the order of keys is nothing";
  using Names = std::set<std::string>;
  const auto silent = [](const std::string& name) {
    return silent_laws(variant_kernel<double>(Path::materialized, recipe_of(name)));
  };
  CHECK(silent("softcap") == Names{shift});
  CHECK(silent("scale of a head") == Names{shift});
  CHECK(silent("norm of queries and keys") == Names{shift});
  CHECK(silent("sinks") == Names{shift, sums});
  CHECK(silent("window") == Names{order});
  CHECK(silent("documents") == Names{order});
  CHECK(silent("padding") == Names{order});
  CHECK(silent("ALiBi") == Names{shift, order});
  CHECK(silent("rotary, halves") == Names{shift, order});
  CHECK(silent("all") == Names{shift, sums, order});
}

TEMPLATE_TEST_CASE("a variant that is declared and not done is caught by the plain loops",
                   "[testing]", float, double) {
  for (const VariantRecipe& recipe : variant_recipes()) {
    auto kernel = loops_kernel<TestType>(Fault::none);
    kernel.variant = variant_of(recipe);
    const auto card = run_laws(kernel, {.shapes = few_shapes});
    CAPTURE(recipe.name, card.format());
    CHECK(contains(card.failed(), "agrees with plain loops"));
    CHECK(contains(card.failed(), "what is hidden changes no bit") ==
          static_cast<bool>(kernel.variant.hides));
  }
}

TEMPLATE_TEST_CASE("a variant that is done and not declared is caught by the plain loops",
                   "[testing]", float, double) {
  for (const VariantRecipe& recipe : variant_recipes()) {
    auto kernel = variant_kernel<TestType>(Path::flash, recipe);
    kernel.variant = {};
    const auto card = run_laws(kernel, {.shapes = few_shapes});
    CAPTURE(recipe.name, card.format());
    CHECK(contains(card.failed(), "agrees with plain loops"));
    CHECK(contains(card.failed(), "the order of keys is nothing") == variant_of(recipe).by_place());
  }
}

TEMPLATE_TEST_CASE("a variant that a backward forgets is caught by the adjoint law", "[testing]",
                   float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  for (const VariantRecipe& recipe : variant_recipes()) {
    const auto card =
        run_laws(variant_kernel<TestType>(path, recipe, VariantRecipe{}), {.shapes = few_shapes});
    CAPTURE(recipe.name, card.format());
    CHECK(contains(card.failed(), "backward is forward's adjoint"));
    CHECK(contains(card.failed(), "gradients agree with plain loops"));
    CHECK_FALSE(contains(card.failed(), "agrees with plain loops"));
  }
}

TEMPLATE_TEST_CASE(
    "a rotation or a norm that only gradients lack is caught by the adjoint law alone", "[testing]",
    float, double) {
  for (const char* name : {"rotary, halves", "norm of queries and keys"}) {
    auto kernel = variant_kernel<TestType>(Path::flash, recipe_of(name));
    kernel.backward = [name](const AttentionProblem<TestType>& x, const In<TestType, 4>& d_o,
                             const AttentionAnswerGradients<TestType>& y) {
      const VariantRecipe none;
      const VariantCall<TestType> encoded(recipe_of(name), x);
      AttentionProblem<TestType> given = x;
      given.q = encoded.q;
      given.k = encoded.k;
      variant_kernel<TestType>(Path::flash, none).backward(given, d_o, y);  // and no way back
    };
    const auto card = run_laws(kernel, {.shapes = few_shapes});
    CAPTURE(name, card.format());
    CHECK(card.failed() == std::vector<std::string>{"backward is forward's adjoint"});
  }
}

namespace {

/// A recipe, and another that is done in its place.
struct Plant {
  std::string fault;
  VariantRecipe declared, forward, backward;
  bool top_left;
  std::vector<std::string> laws;  // that name it, among others
};

std::vector<Plant> plants() {
  const std::string oracle = "agrees with plain loops", hidden = "what is hidden changes no bit",
                    hidden_gradient = "what is hidden moves no gradient",
                    dead = "a query that sees nothing gets 0", seen = "what is seen shows",
                    chunk = "a chunk as in the whole, to rounding",
                    gradients = "gradients agree with plain loops",
                    adjoint = "backward is forward's adjoint";
  const VariantRecipe alibi{.alibi = true}, relative{.relative = true}, sinks{.sinks = true},
      window{.window = 3}, wider{.window = 4}, first{.window = 3, .first_keys = 2},
      documents{.document = 4}, longer{.document = 5}, softcap{.softcap = true},
      dilated{.dilated = true}, halves{.turn = Turn::halves},
      interleaved{.turn = Turn::interleaved}, part{.turn = Turn::halves, .turned = 2};
  return {
      {"a window of one key more", window, wider, wider, false, {oracle, hidden, hidden_gradient}},
      {"a window of one key less", wider, window, window, false, {oracle, seen}},
      {"a window without its first keys", first, window, window, false, {oracle, seen}},
      {"a window that only forward has",
       window,
       window,
       {},
       false,
       {gradients, adjoint, hidden_gradient}},
      {"a window from the first query on", window, window, window, true, {oracle, hidden, chunk}},
      {"documents from the first query on",
       documents,
       documents,
       documents,
       true,
       {oracle, hidden, chunk}},
      {"documents of one key more", documents, longer, longer, false, {oracle, hidden, seen}},
      {"a mask function that forgets where it stands",
       dilated,
       dilated,
       dilated,
       true,
       {oracle, hidden, chunk}},
      {"ALiBi from the first query on", alibi, alibi, alibi, true, {oracle, chunk}},
      {"a relative bias from the first query on",
       relative,
       relative,
       relative,
       true,
       {oracle, chunk}},
      {"a softcap whose slope is forgotten", softcap, softcap, {}, false, {gradients, adjoint}},
      {"a sink that gradients forget", sinks, sinks, {}, false, {gradients, adjoint}},
      {"another pairing", interleaved, halves, {}, false, {oracle}},
      {"a part of the width alone", halves, part, {}, false, {oracle}},
      {"queries turned from 0 on", halves, halves, {}, true, {oracle, chunk}},
  };
}

}  // namespace

TEMPLATE_TEST_CASE("a planted fault of a variant is caught by the laws that name it", "[testing]",
                   float, double) {
  for (const Plant& plant : plants()) {
    const auto card = run_laws(
        variant_loops_kernel<TestType>({variant_of(plant.declared), variant_of(plant.forward),
                                        variant_of(plant.backward), plant.top_left}),
        {.shapes = few_shapes});
    for (const std::string& law : plant.laws) {
      CAPTURE(plant.fault, law, card.format());
      CHECK(contains(card.failed(), law));
    }
  }
}

TEST_CASE("a dependence on places that is not declared is caught by the order of keys",
          "[testing]") {
  auto kernel = variant_kernel<double>(Path::flash, recipe_of("ALiBi"));
  kernel.variant.by_position = false;
  const auto card = run_laws(kernel, {.shapes = few_shapes});
  CAPTURE(card.format());
  CHECK(contains(card.failed(), "the order of keys is nothing"));
  CHECK(contains(card.failed(), "a chunk as in the whole, to rounding"));
  CHECK_FALSE(contains(card.failed(), "agrees with plain loops"));
}

TEST_CASE("a kernel sees the variant that it declared in its problems", "[testing]") {
  auto kernel = variant_kernel<double>(Path::flash, recipe_of("window"));
  const auto inner = kernel.forward;
  kernel.forward = [inner](const AttentionProblem<double>& x, const AttentionAnswer<double>& y) {
    REQUIRE(x.variant != nullptr);
    const Index offset = x.k.extent(2) - x.q.extent(2);
    for (Index j = 0; j < x.k.extent(2); ++j) {
      REQUIRE(x.variant->hides(x.position(0, 0, j)) == (std::abs(offset - j) >= 3));
      if (std::abs(offset - j) >= 3) REQUIRE_FALSE(x.sees(0, 0, 0, j));
    }
    inner(x, y);
  };
  CHECK(run_laws(kernel, {.shapes = few_shapes}));
}

}  // namespace testing_law_variants
