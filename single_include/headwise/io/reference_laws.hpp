// headwise 0.1.0: headwise/io/reference_laws.hpp and the headers below it in one file, made from include/ by
// tools/amalgamate. It is not for editing.
//
// MIT License
//
// Copyright (c) 2026 The headwise authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#pragma once

#include <algorithm>
#include <filesystem>
#include <locale>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../headwise.hpp"
#include "../io/safetensors.hpp"
#include "../testing/laws.hpp"

// headwise/io/reference_case.hpp
// A reference case: inputs, and what PyTorch made of them, in one safetensors file whose metadata
// says what is computed. Reading alone: nothing is run here.
//
// Tensors of kind sdpa: query [B, H, L, d], key [B, G, S, d], value [B, G, S, dv], grad_output
// [B, H, L, dv]; perhaps attn_mask, documents [B, S], what is learned of scores (alibi_slopes [H],
// relative_bias [H or 1, 2 R + 1], sinks [H]), and q_norm and k_norm [d], the gains of a norm over
// the rows of query and key. Under "expected." output, weights [B, H, L, S], logsumexp [B, H, L]
// and grad.NAME of every input of numbers. Of kind mha: a whole nn.MultiheadAttention. Of kind
// encoder_layer: an nn.TransformerEncoderLayer.

namespace headwise::inline v0_1 {

/// What a case computes: a whole module (PyTorch's nn.MultiheadAttention), attention alone, or a
/// block (nn.TransformerEncoderLayer).
enum class CaseKind { mha, sdpa, encoder_layer };

/// A file, and what its metadata says.
struct ReferenceCase {
  std::string name = {};                     // in messages
  SafetensorsFile file = {};                 // inputs, and what PyTorch made of them
  CaseKind kind = CaseKind::sdpa;            // what was computed
  Index num_heads = 0;                       // H
  Index num_kv_heads = 0;                    // G
  bool causal = false;                       // bottom-right
  Index window = 0;                          // 0: none
  Index window_keeps = 0;                    // first keys that a window leaves visible
  std::optional<double> scale = {};          // 1 / sqrt(d)
  double softcap = 0;                        // 0: none
  bool alibi = false;                        // biases that fall with the distance
  bool learned_scale = false;                // grad.scale is expected
  std::optional<RotaryOptions> rotary = {};  // none: no rotary positions
  double epsilon = 1e-6;                     // of q_norm and k_norm
  bool norm_first = false;                   // pre-LN                       encoder_layer
  Activation activation = Activation::relu;  // of its feed-forward  encoder_layer
  double layer_norm_eps = 1e-5;              //                      encoder_layer
};

namespace detail {

[[noreturn]] inline void refuse_case(const std::string& name, const std::string& message) {
  raise<FileError>(name + ": " + message);
}

/// A number of the metadata. Throws FileError where it is there and is not wholly a number.
template <class Number>
std::optional<Number> metadata_number(const SafetensorsFile& file, const std::string& name,
                                      const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return std::nullopt;
  std::istringstream text(found->second);
  text.imbue(std::locale::classic());
  Number number{};
  text >> std::noskipws >> number;
  if (!text || text.peek() != std::istringstream::traits_type::eof()) {
    refuse_case(name, "metadata " + key + " is " + quote(found->second) + ", expected a number");
  }
  return number;
}

inline CaseKind case_kind(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find("kind");
  if (found == file.metadata().end()) refuse_case(name, "no metadata kind: not a reference case");
  if (found->second == "mha") return CaseKind::mha;
  if (found->second == "sdpa") return CaseKind::sdpa;
  if (found->second == "encoder_layer") return CaseKind::encoder_layer;
  refuse_case(name, "kind is " + quote(found->second) + ", expected mha, sdpa or encoder_layer");
}

inline Activation case_activation(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find("activation");
  if (found == file.metadata().end() || found->second == "relu") return Activation::relu;
  if (found->second == "gelu") return Activation::gelu;
  refuse_case(name, "activation is " + quote(found->second) + ", expected relu or gelu");
}

/// Rotary positions, where a case has some.
inline std::optional<RotaryOptions> case_rotary(const SafetensorsFile& file,
                                                const std::string& name) {
  RotaryOptions rotary{.theta = metadata_number<double>(file, name, "rope_theta").value_or(0)};
  if (rotary.theta == 0) return std::nullopt;
  rotary.width = metadata_number<Index>(file, name, "rope_width").value_or(0);
  rotary.offset = metadata_number<Index>(file, name, "rope_offset").value_or(0);
  const auto found = file.metadata().find("rope_pairs");
  if (found == file.metadata().end() || found->second == "halves") return rotary;
  if (found->second != "neighbours") {
    refuse_case(name, "rope_pairs is " + quote(found->second) + ", expected halves or neighbours");
  }
  rotary.pairing = RotaryPairing::interleaved;
  return rotary;
}

}  // namespace detail

/// Reads what a case computes. Throws FileError `name: what is wrong`.
inline ReferenceCase read_reference_case(SafetensorsFile file, std::string name) {
  ReferenceCase c;
  c.kind = detail::case_kind(file, name);
  const auto integer = [&](const char* key, Index otherwise, Index least, Index most) {
    const Index value = detail::metadata_number<Index>(file, name, key).value_or(otherwise);
    if (value < least || value > most) {
      detail::refuse_case(name, "metadata " + std::string(key) + " is " + std::to_string(value) +
                                    ", expected " +
                                    (most == 1 ? "0 or 1" : ">= " + std::to_string(least)));
    }
    return value;
  };
  constexpr Index any = (std::numeric_limits<Index>::max)();
  c.num_heads = integer("num_heads", 0, 1, any);
  c.num_kv_heads = integer("num_kv_heads", c.num_heads, 1, any);
  c.window = integer("window", 0, 0, any);
  c.window_keeps = integer("window_keeps", 0, 0, any);
  c.causal = integer("causal", 0, 0, 1) == 1;
  c.alibi = integer("alibi", 0, 0, 1) == 1;
  c.scale = detail::metadata_number<double>(file, name, "scale");
  c.softcap = detail::metadata_number<double>(file, name, "softcap").value_or(0);
  c.learned_scale = integer("learned_scale", 0, 0, 1) == 1;
  c.rotary = detail::case_rotary(file, name);
  c.epsilon = detail::metadata_number<double>(file, name, "epsilon").value_or(1e-6);
  c.norm_first = integer("norm_first", 0, 0, 1) == 1;
  c.activation = detail::case_activation(file, name);
  c.layer_norm_eps = detail::metadata_number<double>(file, name, "layer_norm_eps").value_or(1e-5);
  c.name = std::move(name);
  c.file = std::move(file);
  return c;
}
/// The same of a file by its path. Throws FileError.
inline ReferenceCase read_reference_case(const std::filesystem::path& path) {
  return read_reference_case(SafetensorsFile::read(path), path.string());
}

/// Every case of kind sdpa in a folder (its files *.safetensors), by name. Throws FileError for a
/// file that is no case, and where there is none: what asks no case would pass.
inline std::vector<ReferenceCase> read_attention_cases(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".safetensors") paths.push_back(at->path());
  }
  if (error) raise<FileError>(folder.string() + ": cannot be listed: " + error.message());
  std::sort(paths.begin(), paths.end());
  std::vector<ReferenceCase> cases;
  for (const auto& path : paths) {
    ReferenceCase c = read_reference_case(path);
    if (c.kind == CaseKind::sdpa) cases.push_back(std::move(c));
  }
  if (cases.empty()) raise<FileError>(folder.string() + ": holds no case of kind sdpa");
  return cases;
}

}  // namespace headwise::inline v0_1

// headwise/io/reference_laws.hpp
// Reference cases as laws: whether anybody's attention computes what PyTorch computed.

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
