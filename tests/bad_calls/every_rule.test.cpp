// Every rule of the headers has a call in the catalogue: no require and no raise whose message no
// table of this program holds. (The tables' own tests show that the calls are refused so.)
#include <filesystem>

#include "bad_calls/rule_sites.hpp"
#include "support/refusal.hpp"

namespace bad_calls_every_rule {

using namespace headwise_tests;

namespace {

namespace fs = std::filesystem;

/// Rules without a call, by their form, each with its reason. None may stand here in vain.
struct Exception {
  std::string form, reason;
};
std::vector<Exception> exceptions() {
  std::vector<Exception> all = {
      {"Trace: *", "traced_scores looks at heads that forward has checked under its own name"},
      {"HEADWISE_SIMD: it is *, which this processor does not run; it has: *",
       "a processor that runs all of them has no such call"},
      {"HEADWISE_VECTOR_BYTES: it is *, for *, which this processor does not run; it has: *",
       "of a program that defines it: tests/kernels/one_set"},
      {"HEADWISE_SIMD: it is *, expected *, the only one of a program with HEADWISE_VECTOR_BYTES *",
       "of a program that defines it: tests/kernels/one_set"},
      {"kernels_of: the instruction set is *, expected the one of HEADWISE_VECTOR_BYTES",
       "who asks in such a program has asked instruction_set_here"},
      {"bf16_products: the unit is *, which this processor does not have",
       "nor has one that has all units (tests/runtime/bf16_unit.test.cpp asks where it has not)"},
      {"layer_norm_backward: beta is *", "backward takes no beta"},
      {"MultiHeadAttention::backward: the cache is of self-attention: use backward",
       "that cache is the right one"},
      {"MultiHeadAttention::backward_cross: the cache is of a call with separate keys and values: "
       "use backward_cross",
       "that cache is the right one"},
      {"multi_head_attention_step: Mask::documents *", "it takes none of these"},
      {"multi_head_attention_step: Mask::key_lengths *", "it takes none of these"},
      {"transformer_block_step: Mask::documents *", "it takes none of these"},
      {"transformer_block_step: Mask::key_lengths *", "it takes none of these"},
      {"packed_attention_forward: * overlaps Mask::documents, *", "it takes none of these"},
      {"packed_attention_backward: * overlaps Mask::documents, *", "it takes none of these"},
      {"MultiHeadAttention::forward: query_starts has 0 *", "none: a batch"},
      {"TransformerDecoder::forward: starts has 0 *", "none: a batch"},
      {"SafetensorsWriter::merge: name __metadata__ is the format's own",
       "no writer holds such a tensor"},
  };
  for (const std::string function :
       {"attention_backward", "flash_attention_backward", "packed_attention_backward",
        "MultiHeadAttention::backward", "MultiHeadAttention::backward_cross",
        "TransformerBlock::backward", "TransformerDecoder::backward"}) {
    all.push_back({function + ": d_scale holds one element*", "it is of one element"});
  }
  for (const std::string field :
       {"key_len", "num_kv_heads", "d_head", "d_value", "kdim", "vdim", "window", "first_keys",
        "mask_biases", "own_distances", "rotary_width"}) {
    all.push_back({"count_memory_bytes: " + field + " is *", "it takes none of these"});
  }
  for (const std::string function : {"visible_pairs", "count_flops", "count_backward_flops",
                                     "count_kv_bytes", "count_memory", "count_backward_memory"}) {
    all.push_back({function + ": query_starts has 0 *", "none: a batch"});
  }
  for (const std::string rule : {"key_lengths *", "query_starts *", "key_starts *",
                                 "batch_size is *, expected 1 (packed*"}) {
    all.push_back({"count_memory_bytes: " + rule, "it takes none of these"});
  }
  return all;
}

bool has_call(const RuleSite& rule, const std::vector<std::string>& messages) {
  for (const std::string& form : rule.forms) {
    for (const std::string& message : messages) {
      if (is_of_form(message, form)) return true;
    }
  }
  return false;
}

std::vector<RuleSite> rules_of_headers() {
  const fs::path root = HEADWISE_INCLUDE_DIR;
  RuleReader reader;
  std::vector<fs::path> headers;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".hpp") continue;
    if (path.filename() == "error.hpp") continue;  // what require and raise are
    headers.push_back(path);
  }
  std::sort(headers.begin(), headers.end());
  for (const fs::path& header : headers) reader.read(root, header);
  std::vector<RuleSite> rules;  // each once, however many ways lead to it
  for (const RuleSite& rule : reader.rules()) {
    const auto same = [&](const RuleSite& r) {
      return r.where == rule.where && r.forms == rule.forms;
    };
    if (std::none_of(rules.begin(), rules.end(), same)) rules.push_back(rule);
  }
  return rules;
}

}  // namespace

TEST_CASE("every rule of the headers has a bad call that shows it", "[bad_calls]") {
  const auto rules = rules_of_headers();
  const std::vector<Exception> exempt = exceptions();
  std::vector<bool> needed(exempt.size(), false);
  for (const RuleSite& rule : rules) {
    CAPTURE(rule.where);
    REQUIRE_FALSE(rule.forms.empty());  // else the reader has to learn a form
    if (has_call(rule, catalogued_messages())) continue;
    bool excepted = false;
    for (std::size_t n = 0; n < exempt.size(); ++n) {
      if (!is_of_form(rule.forms[0], exempt[n].form)) continue;
      excepted = needed[n] = true;
    }
    INFO("no call shows \"" << rule.forms[0] << '"');
    CHECK(excepted);
  }
  for (std::size_t n = 0; n < exempt.size(); ++n) {
    CAPTURE(exempt[n].form);
    CHECK(needed[n]);
  }
  WARN(catalogued_messages().size() << " bad calls for " << rules.size() << " rules");
  CHECK(rules.size() >= 2000);
  CHECK(catalogued_messages().size() >= 3000);
}

TEST_CASE("a rule without a call is found, whichever way it is written", "[bad_calls]") {
  RuleReader reader;
  reader.read_text("a.hpp", R"(
    inline void helper(std::string_view function, Index n) {
      require(n > 0, function, [&] { return "n is " + std::to_string(n) + ", expected > 0"; });
    }
    void f(Index n, bool b, In<double, 1> x) {
      helper("f", n);
      require(n < 7, "f", b ? "n" : "m", " is ", n, ", expected < 7");
      require_shape("f", x, x, Shape{n}, n, " from x ", x.shape());
      require_shape("f", b ? "x" : "y", x, Shape{n}, "the count");  // not "z"
      require_apart("f", {"x", x}, {{"y", y}});
      require_outputs_apart("f", {{"u", u}, {"v", v}}, {{"x", x}});
    }
    void g(Index n) {
      constexpr std::string_view function = "g";
      helper(function, n);
      if (n > 9) raise<ShapeError>("g: n is " + std::to_string(n));
      if (n > 8) raise<ShapeError>(function, ": n is ", n, ", expected <= 8");
    })");
  std::vector<std::string> forms;
  for (const RuleSite& rule : reader.rules()) forms.push_back(rule.forms[0]);
  CHECK(forms == std::vector<std::string>{
                     "f: n is *, expected > 0", "g: n is *, expected > 0",
                     "f: n is *, expected < 7", "f: m is *, expected < 7",
                     "f: * is *, expected * (* from x *)", "f: x is *, expected * (the count)",
                     "f: y is *, expected * (the count)", "f: x holds one element*",
                     "f: x overlaps y, *", "f: u holds one element*", "f: u overlaps x, *",
                     "f: v holds one element*", "f: v overlaps x, *", "f: v overlaps u, *",
                     "g: n is *", "g: n is *, expected <= 8"});
  CHECK(has_call({"", {"f: n is *, expected > 0"}}, {"f: n is -1, expected > 0"}));
  CHECK_FALSE(has_call({"", {"f: n is *, expected > 0"}},
                       {"g: n is -1, expected > 0", "f: n is -1", "f: n is -1, expected > 0!"}));
}

}  // namespace bad_calls_every_rule
