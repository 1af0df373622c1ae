// Formulas of cost: shapes that no call can have, and costs beyond what can be counted.
#include "support/refusal_rules.hpp"

namespace bad_calls_analysis {

using namespace headwise_tests;

namespace {

struct Function {
  const char* name;
  void (*call)(const AttentionShape&);
};
const Function functions[] = {
    {"visible_pairs", [](const AttentionShape& s) { (void)visible_pairs(s); }},
    {"count_flops", [](const AttentionShape& s) { (void)count_flops(s); }},
    {"count_backward_flops",
     [](const AttentionShape& s) { (void)count_backward_flops(s, Path::flash); }},
    {"count_kv_bytes", [](const AttentionShape& s) { (void)count_kv_bytes(s, ScalarType::f32); }},
    {"count_memory",
     [](const AttentionShape& s) { (void)count_memory<float>(s, Path::flash, true); }},
    {"count_backward_memory",
     [](const AttentionShape& s) { (void)count_backward_memory<float>(s, Path::flash); }},
};

struct Spoilt {
  const char* message;
  void (*spoil)(AttentionShape&);
};
const std::vector<Index> three{1, 2, 3}, negative{1, -1}, longer{8, 1};
const Index far = (Index{1} << 30) + 1;
const std::vector<Index> starts{0, 2, 5}, key_starts{0, 3, 7}, one_sequence{0, 7}, late{2, 5},
    falling{0, 6, 5};
void pack(AttentionShape& s) {
  s.batch_size = 1, s.seq_len = 5, s.key_len = 7;
  s.query_starts = starts, s.key_starts = key_starts;
}
const Spoilt rules[] = {
    {"batch_size is -1, expected 0 to 2^30", [](auto& s) { s.batch_size = -1; }},
    {"batch_size is 1073741825, expected 0 to 2^30", [](auto& s) { s.batch_size = far; }},
    {"seq_len is -1, expected 0 to 2^30", [](auto& s) { s.seq_len = -1; }},
    {"key_len is -1, expected 0 to 2^30", [](auto& s) { s.key_len = -1; }},
    {"key_len is 1073741825, expected 0 to 2^30", [](auto& s) { s.key_len = far; }},
    {"d_model is -4, expected 0 to 2^30", [](auto& s) { s.d_model = -4; }},
    {"num_heads is 0, expected 1 to 2^30", [](auto& s) { s.num_heads = 0; }},
    {"num_kv_heads is -1, expected 0 to 2^30", [](auto& s) { s.num_kv_heads = -1; }},
    {"num_kv_heads is 3, expected a divisor of num_heads 4", [](auto& s) { s.num_kv_heads = 3; }},
    {"num_heads is 3, expected a divisor of d_model 8 (or give d_head)",
     [](auto& s) { s.num_heads = 3; }},
    {"d_head is -1, expected 0 to 2^30", [](auto& s) { s.d_head = -1; }},
    {"d_value is -1, expected 0 to 2^30", [](auto& s) { s.d_value = -1; }},
    {"kdim is -1, expected 0 to 2^30", [](auto& s) { s.kdim = -1; }},
    {"vdim is -1, expected 0 to 2^30", [](auto& s) { s.vdim = -1; }},
    {"own_distances is -1, expected 0 to 2^30", [](auto& s) { s.own_distances = -1; }},
    {"window is -1, expected 0 to 2^30", [](auto& s) { s.window = -1; }},
    {"first_keys is -1, expected 0 to 2^30", [](auto& s) { s.first_keys = -1; }},
    {"mask_biases is -1, expected 0 to 2^30", [](auto& s) { s.mask_biases = -1; }},
    {"rotary_width is -1, expected 0 to 2^30", [](auto& s) { s.rotary_width = -1; }},
    {"key_lengths has 3 lengths, expected 2 (the batch size) or none",
     [](auto& s) { s.key_lengths = three; }},
    {"key_lengths holds -1, expected 0 to 7 (the number of keys)",
     [](auto& s) { s.key_lengths = negative; }},
    {"key_lengths holds 8, expected 0 to 7 (the number of keys)",
     [](auto& s) { s.key_lengths = longer; }},
    {"key_starts is given without query_starts, expected both or none",
     [](auto& s) { s.key_starts = starts; }},
    {"batch_size is 2, expected 1 (packed sequences)", [](auto& s) { s.query_starts = starts; }},
    {"key_starts is given, expected none (key_len is not: keys are the queries' rows)",
     [](auto& s) { pack(s), s.key_len = {}; }},
    {"query_starts ends with 5, expected 4 (seq_len)", [](auto& s) { pack(s), s.seq_len = 4; }},
    {"key_starts ends with 7, expected 8 (key_len)", [](auto& s) { pack(s), s.key_len = 8; }},
    {"query_starts begins with 2, expected 0", [](auto& s) { pack(s), s.query_starts = late; }},
    {"key_starts begins with 2, expected 0", [](auto& s) { pack(s), s.key_starts = late; }},
    {"query_starts falls from 6 to 5 at 2, expected cumulative lengths",
     [](auto& s) { pack(s), s.query_starts = falling; }},
    {"key_starts falls from 6 to 5 at 2, expected cumulative lengths",
     [](auto& s) { pack(s), s.key_starts = falling; }},
    {"key_starts has 0 numbers, expected one more than sequences",
     [](auto& s) { pack(s), s.key_starts = {}; }},
    {"key_starts has 2 numbers, expected 3 (as many as query_starts)",
     [](auto& s) { pack(s), s.key_starts = one_sequence; }},
    {"key_lengths has 3 lengths, expected 2 (one a sequence) or none",
     [](auto& s) { pack(s), s.key_lengths = three; }},
    {"key_lengths holds 8, expected 0 to 3 (the number of keys)",
     [](auto& s) { pack(s), s.key_lengths = longer; }},
    {"the cost of this shape is beyond 2^63, expected smaller sizes",
     [](auto& s) { s.seq_len = far - 1, s.key_len = far - 1; }},
};

std::vector<Refusal> each_by_each() {
  std::vector<Refusal> refusals;
  for (const Function& function : functions) {
    for (const Spoilt& rule : rules) {
      refusals.push_back(
          argument_error(std::string(function.name) + ": " + rule.message, [=](Witness&) {
            AttentionShape shape{
                .batch_size = 2, .seq_len = 5, .key_len = 7, .d_model = 8, .num_heads = 4};
            rule.spoil(shape);
            function.call(shape);
          }));
    }
  }
  return refusals;
}

Refusal pairs(const std::string& message, Index L, Index S, Index keys, Index window,
              Index first_keys = 0) {
  return argument_error("visible_pairs: " + message, [=](Witness&) {
    (void)visible_pairs(L, S, keys, true, window, first_keys);
  });
}
Refusal bytes(const std::string& message, Index B, Index L, Index D, Index H) {
  return argument_error("count_memory_bytes: " + message,
                        [=](Witness&) { (void)count_memory_bytes(B, L, D, H, ScalarType::f64); });
}
const AttentionShape right = {.seq_len = 5, .d_model = 8};

const Refusals of_shapes(each_by_each());
const Refusals of_numbers({
    pairs("L is -1, expected 0 to 2^30", -1, 2, 2, 0),
    pairs("S is -1, expected 0 to 2^30", 1, -1, 0, 0),
    pairs("keys is -1, expected 0 to 2^30", 1, 2, -1, 0),
    pairs("window is -2, expected 0 to 2^30", 1, 2, 2, -2),
    pairs("first_keys is -3, expected 0 to 2^30", 1, 2, 2, 2, -3),
    bytes("batch_size is -1, expected 0 to 2^30", -1, 2, 8, 4),
    bytes("seq_len is -2, expected 0 to 2^30", 1, -2, 8, 4),
    bytes("seq_len is 1073741825, expected 0 to 2^30", 1, far, 8, 4),
    bytes("d_model is -8, expected 0 to 2^30", 1, 2, -8, 4),
    bytes("num_heads is 0, expected 1 to 2^30", 1, 2, 8, 0),
    bytes("num_heads is 3, expected a divisor of d_model 8 (or give d_head)", 1, 2, 8, 3),
    bytes("the cost of this shape is beyond 2^63, expected smaller sizes", far - 1, far - 1, 8, 1),
    argument_error("count_flops: num_heads is 0, expected 1 to 2^30",
                   [](Witness&) { (void)count_flops(1, 2, 8, 0); }),
    argument_error("count_memory: workers is 0, expected 1 to 2^30",
                   [](Witness&) { (void)count_memory<float>(right, Path::flash, true, 0); }),
    argument_error("count_backward_memory: workers is -1, expected 1 to 2^30",
                   [](Witness&) { (void)count_backward_memory<float>(right, Path::flash, -1); }),
});

}  // namespace

TEST_CASE("formulas of cost refuse shapes that no call can have", "[bad_calls]") {
  of_shapes.check();
}

TEST_CASE("formulas of plain numbers refuse those out of range", "[bad_calls]") {
  of_numbers.check();
}

TEST_CASE("pairs are still counted at compile time", "[bad_calls]") {
  STATIC_REQUIRE(visible_pairs(3, 5, 5, true, 0) == 12);
}

}  // namespace bad_calls_analysis
