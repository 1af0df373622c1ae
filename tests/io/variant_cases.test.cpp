// What PyTorch computed of attention's variants, by formulas of tests/data/generate_variants.py
// alone: each with the gradients of all that is real-valued in it.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/check_case.hpp"
#include "support/catch.hpp"

namespace io_variant_cases {

using namespace headwise_tests;

namespace {

/// Names of the cases in tests/data/variants, as data_case takes them.
std::vector<std::string> variant_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(HEADWISE_TEST_DATA "/variants")) {
    names.push_back("variants/" + entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("there is a PyTorch case for every variant, with its gradients", "[io]") {
  const auto names = variant_names();
  CHECK(names.size() == 21);
  for (const char* input : {"query", "key", "value", "attn_mask", "alibi_slopes", "relative_bias",
                            "sinks", "scale", "q_norm", "k_norm"}) {
    CAPTURE(input);
    const std::string gradient = "expected.grad." + std::string(input);
    CHECK(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return data_case(name).file.contains(gradient);
    }));
  }
}

TEST_CASE("every variant that PyTorch computed is met on both paths in double and float", "[io]") {
  const auto name = GENERATE(from_range(variant_names()));
  const auto path = GENERATE(Path::flash, Path::materialized);
  INFO("case " << name << (path == Path::flash ? ", flash" : ", materialized"));
  check_case<double>(name, path, 1e-11);
  check_case<float>(name, path, 3e-5);
}

TEST_CASE("a variant's case has the same bits for 1 and 3 threads", "[io]") {
  const auto name = GENERATE(from_range(variant_names()));
  const auto path = GENERATE(Path::flash, Path::materialized);
  CAPTURE(name);
  check_threads(name, path);
}

TEST_CASE("what the metadata of a variant says is part of what is computed", "[io]") {
  const auto changed = [](const char* name, auto&& change) {
    ReferenceCase c = data_case(std::string("variants/") + name);
    change(c);
    const auto rows =
        compare_with_expected(c, reread(run_reference_case<double>(c, Path::flash)), 1e-6);
    return std::any_of(rows.begin(), rows.end(), [](const CaseComparison& row) {
      return row.name == "output" && !*row.closeness;
    });
  };
  CHECK(changed("sdpa_window_keeps", [](ReferenceCase& c) { c.window_keeps = 0; }));
  CHECK(changed("sdpa_rope_neighbours",
                [](ReferenceCase& c) { c.rotary->pairing = RotaryPairing::halves; }));
  CHECK(changed("sdpa_rope_part", [](ReferenceCase& c) { c.rotary->width = 0; }));
  CHECK(changed("sdpa_qk_norm_gqa", [](ReferenceCase& c) { c.epsilon += 0.1; }));
}

TEST_CASE("metadata that says no rotary pairs is refused", "[io]") {
  SafetensorsWriter writer;
  writer.add("query", Tensor4<double>(Shape{1, 1, 1, 2}));
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{
           {"kind", "sdpa"}, {"num_heads", "1"}, {"rope_theta", "100"}, {"rope_pairs", "thirds"}}) {
    writer.set_metadata(key, value);
  }
  CHECK_THROWS_WITH(read_reference_case(reread(writer), "x.safetensors"),
                    "x.safetensors: rope_pairs is \"thirds\", expected halves or neighbours");
}

}  // namespace io_variant_cases
