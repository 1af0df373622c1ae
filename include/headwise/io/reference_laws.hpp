// Reference cases as laws: whether anybody's attention computes what PyTorch computed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "headwise/io/reference_case.hpp"
#include "headwise/ops/rotary.hpp"
#include "headwise/testing/laws.hpp"

namespace headwise::inline v0_1 {
namespace detail::inline HEADWISE_CODE {

/// Whether a kernel can be given a case: some it says that it does not take, and what is done to
/// scores, documents and norms are no part of the problem, nor is a variant of a case. (Rotary
/// positions are turned before it is asked.)
template <class T>
bool takes_case(const AttentionKernel<T>& kernel, const ReferenceCase& c) {
  if (!kernel.variant.plain()) return false;
  if (c.kind != CaseKind::sdpa || c.softcap != 0 || c.alibi || c.window_keeps != 0) return false;
  for (const char* name :
       {"alibi_slopes", "relative_bias", "sinks", "documents", "q_norm", "k_norm"}) {
    if (c.file.contains(name)) return false;
  }
  const bool biased = c.file.contains("attn_mask") && c.file.dtype("attn_mask") != DType::boolean;
  const bool masked = c.window > 0 || c.file.contains("attn_mask");
  return !biased && (kernel.takes_causal || !c.causal) && (kernel.takes_keep || !masked) &&
         (kernel.takes_groups || c.num_heads == c.num_kv_heads);
}

/// The pairs that window and attn_mask (bool, true hides) leave; {} where a case has neither.
inline Tensor<bool, 4> keep_of(const ReferenceCase& c, const Shape<4>& pairs) {
  const bool masked = c.file.contains("attn_mask");
  if (c.window == 0 && !masked) return {};
  Tensor<bool, 4> keep(pairs);
  fill(Out<bool, 4>(keep), true);
  const Index offset = pairs[3] - pairs[2];
  const auto hide = [&](auto&& hidden) {
    for_each_index(pairs, [&](const Shape<4>& at) { keep(at) = keep(at) && !hidden(at); });
  };
  if (c.window > 0) {
    hide([&](const Shape<4>& at) { return std::abs(at[2] + offset - at[3]) >= c.window; });
  }
  if (masked && c.file.shape("attn_mask").size() == 2) {
    const auto mask = c.file.get<bool, 2>("attn_mask");  // [L, S]
    hide([&](const Shape<4>& at) { return mask(at[2], at[3]); });
  } else if (masked) {
    const auto mask = c.file.get<bool, 4>("attn_mask");  // [B, H, L, S]
    hide([&](const Shape<4>& at) { return mask(at); });
  }
  return keep;
}

/// x by the rotary positions of a case, if it has any.
template <class T>
void turn(const ReferenceCase& c, Tensor<T, 4>& x) {
  if (c.rotary) rotary_forward(x, *c.rotary, x);
}

template <class T>
LawData<T> data_of(const ReferenceCase& c) {
  LawData<T> data{c.file.get<T, 4>("query"),
                  c.file.get<T, 4>("key"),
                  c.file.get<T, 4>("value"),
                  c.file.get<T, 4>("grad_output"),
                  {},
                  c.causal};
  const Shape<4> q = data.q.shape(), k = data.k.shape();
  if (q[1] != c.num_heads || k[1] != c.num_kv_heads) {
    refuse_case(c.name, "query is " + q.format() + ", key is " + k.format() +
                            ", expected num_heads " + std::to_string(c.num_heads) +
                            " and num_kv_heads " + std::to_string(c.num_kv_heads) + " on axis 1");
  }
  turn(c, data.q);
  turn(c, data.k);
  data.keep = keep_of(c, {q[0], q[1], q[2], k[2]});
  using std::sqrt;
  data.scale = c.scale ? static_cast<T>(*c.scale) : T(1) / sqrt(static_cast<T>(q[3]));
  return data;
}

/// What the kernel makes of a case beside what it expects. The tolerance is that of the law that
/// holds it against plain loops.
template <class T>
LawResult reference_law(const LawTrial<T>& trial, const ReferenceCase& c) {
  LawResult result;
  const auto compare = [&](const char* name, const Tensor<T, 4>& actual, const LawSums& sums) {
    auto expected = c.file.get<double, 4>(std::string("expected.") + name);
    // A gradient of what is not turned yet, turned, is that of what the kernel was given.
    const std::string_view of = name;
    if (of == "grad.query" || of == "grad.key") turn(c, expected);
    add_finding(result, name,
                close_to(convert<double>(actual), expected, trial.tolerance(),
                         {.floor = size_of<T>(sums)}));
  };
  const LawOracle& sums = trial.oracle();
  compare("output", trial.answer().o, sums.o);
  if (trial.kernel().gives_weights) compare("weights", trial.answer().weights, sums.weights);
  if (trial.has_backward()) {
    const auto d = trial.backward(trial.data());
    compare("grad.query", d.dq, sums.dq);
    compare("grad.key", d.dk, sums.dk);
    compare("grad.value", d.dv, sums.dv);
  }
  return result;
}

}  // namespace detail::inline HEADWISE_CODE

inline namespace HEADWISE_CODE {

/// Holds a kernel against reference cases: a row of the score card for each, not applicable where
/// the kernel does not take it. What it throws is a failure.
///
/// T        float or double
/// cases    read_attention_cases(folder); the library brings some in tests/data, installed as
///          share/headwise/reference_cases
/// slack    multiplies every tolerance
///
/// Throws ArgumentError for a kernel without forward, FileError for a case without its tensors.
template <class T>
ScoreCard run_reference_cases(const AttentionKernel<T>& kernel,
                              std::span<const ReferenceCase> cases, double slack = 1) {
  require(static_cast<bool>(kernel.forward), "run_reference_cases", "the kernel has no forward");
  ScoreCard card{kernel.name, {}};
  for (const ReferenceCase& c : cases) {
    ScoreCardRow row{std::filesystem::path(c.name).stem().string(),
                     "PyTorch's output, weights and gradients",
                     {},
                     {}};
    if (detail::takes_case(kernel, c)) {
      const LawData<T> data = detail::data_of<T>(c);
      const Shape<4> q = data.q.shape(), k = data.k.shape();
      row.shape = {
          q[0], q[1], k[1], q[2], k[2], q[3], data.v.extent(3), data.causal, data.keep.size() != 0};
      row.shapes = 1;
      const auto error = error_of(
          [&] { row.worst = detail::reference_law(LawTrial<T>(kernel, data, 1, slack), c); });
      if (error) row.worst = {LawStatus::fail, "", {}, *error};
      if (row.worst.status == LawStatus::fail) row.failures = 1;
    }
    card.rows.push_back(std::move(row));
  }
  return card;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
