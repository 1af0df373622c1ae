// A reference case run on either path and in either precision, and held against what it expects.
// What this library does not compute yet is refused by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention_case.hpp"
#include "headwise/io/pytorch.hpp"
#include "headwise/io/pytorch_block.hpp"
#include "headwise/io/reference_case.hpp"
#include "headwise/score/alibi.hpp"
#include "headwise/testing/close_to.hpp"

namespace headwise::examples {

/// Throws FileError for a case that asks for what this library does not compute yet.
inline void require_supported(const ReferenceCase& c) {
  const auto refuse = [&](const char* what) {
    detail::refuse_case(c.name, std::string(what) + " is not supported yet");
  };
  if (c.rotary && c.kind != CaseKind::sdpa) {
    refuse("rope_theta in kinds mha and encoder_layer");
  }
  if (c.kind != CaseKind::sdpa && c.num_kv_heads != c.num_heads) {
    refuse("num_kv_heads other than num_heads in kinds mha and encoder_layer");
  }
}

template <class T>
void run_mha(const ReferenceCase& c, Path path, const Context& context,
             SafetensorsWriter& results) {
  const auto attention = from_pytorch<T>(c.file, c.num_heads);
  const bool self = !c.file.contains("key") && !c.file.contains("value");
  const auto query = c.file.get<T, 3>("query");  // [B, L, D]
  const auto key = self ? Tensor<T, 3>() : c.file.get<T, 3>("key");
  const auto value = self ? Tensor<T, 3>() : c.file.get<T, 3>("value");
  const auto dy = c.file.get<T, 3>("grad_output");  // [B, L, D]
  const CaseMasks<T> masks(c);
  const auto slopes = alibi_slopes<T>(c.num_heads);
  MultiHeadAttentionCall<T> call{.mask = masks.mask(), .path = path};
  if (c.softcap != 0) call.score.softcap = T(c.softcap);
  if (c.alibi) call.score.alibi_slopes = slopes;
  if (c.scale) call.scale = T(*c.scale);

  MultiHeadAttentionCache<T> cache;
  auto gradients = attention.zero_gradients();
  if (self) {
    results.add("output", attention.forward(query, call, cache, context));
    results.add("grad.query", attention.backward(dy, cache, gradients, context));
  } else {
    results.add("output", attention.forward(query, key, value, call, cache, context));
    const auto d = attention.backward_cross(dy, cache, gradients, context);
    results.add("grad.query", d.query);
    results.add("grad.key", d.key);
    results.add("grad.value", d.value);
  }
  if (path == Path::materialized) results.add("weights", cache.weights);
  add_pytorch_gradients(results, attention, gradients);
}

template <class T>
void run_encoder_layer(const ReferenceCase& c, Path path, const Context& context,
                       SafetensorsWriter& results) {
  const auto block = from_pytorch<T>(c.file, TransformerBlockOptions{
                                                 .num_heads = c.num_heads,
                                                 .activation = c.activation,
                                                 .norm_first = c.norm_first,
                                                 .norm_epsilon = c.layer_norm_eps,
                                             });
  const auto x = c.file.get<T, 3>("query");         // [B, L, D]
  const auto dy = c.file.get<T, 3>("grad_output");  // [B, L, D]
  const CaseMasks<T> masks(c);
  TransformerBlockCache<T> cache;
  auto gradients = block.zero_gradients();
  const TransformerBlockCall<T> call{.mask = masks.mask(), .path = path};
  results.add("output", block.forward(x, call, cache, context));
  results.add("grad.query", block.backward(dy, cache, gradients, context));
  add_pytorch_gradients(results, block, gradients);
}

/// Forward and backward of a case in T: output, weights (Path::materialized), logsumexp (sdpa) and
/// grad.NAME for every input and weight.
/// Throws FileError, ShapeError or ArgumentError for a case whose tensors do not fit.
template <class T>
SafetensorsWriter run_reference_case(const ReferenceCase& c, Path path,
                                     const Context& context = {}) {
  require_supported(c);
  SafetensorsWriter results;
  if (c.kind == CaseKind::mha) {
    run_mha<T>(c, path, context, results);
  } else if (c.kind == CaseKind::encoder_layer) {
    run_encoder_layer<T>(c, path, context, results);
  } else {
    run_sdpa<T>(c, path, context, results);
  }
  return results;
}

/// One tensor of a run, beside what the case expects.
struct CaseComparison {
  std::string name;
  std::vector<Index> shape;
  std::optional<Closeness> closeness;  // absent: the run or the case has not brought it
};

template <int R>
Closeness compare_tensor(const SafetensorsFile& results, const SafetensorsFile& expected,
                         const std::string& name, double tolerance) {
  return close_to(results.get<double, R>(name), expected.get<double, R>("expected." + name),
                  tolerance);
}

/// Every tensor that a run has given or the case expects, by name; the error is relative to the
/// largest expected value. Throws FileError or ShapeError where a rank or shape is another.
inline std::vector<CaseComparison> compare_with_expected(const ReferenceCase& c,
                                                         const SafetensorsFile& results,
                                                         double tolerance = 0) {
  std::vector<CaseComparison> rows;
  for (const std::string& name : results.names()) {
    CaseComparison row{name, results.shape(name), {}};
    if (c.file.contains("expected." + name)) {
      switch (row.shape.size()) {
        case 1:
          row.closeness = compare_tensor<1>(results, c.file, name, tolerance);
          break;
        case 2:
          row.closeness = compare_tensor<2>(results, c.file, name, tolerance);
          break;
        case 3:
          row.closeness = compare_tensor<3>(results, c.file, name, tolerance);
          break;
        default:
          row.closeness = compare_tensor<4>(results, c.file, name, tolerance);
      }
    }
    rows.push_back(std::move(row));
  }
  constexpr std::string_view prefix = "expected.";
  for (const std::string& stored : c.file.names()) {
    if (!stored.starts_with(prefix)) continue;
    const std::string name = stored.substr(prefix.size());
    if (!results.contains(name)) rows.push_back({name, c.file.shape(stored), {}});
  }
  return rows;
}

}  // namespace headwise::examples
