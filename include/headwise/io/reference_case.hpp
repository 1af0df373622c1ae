// A reference case: inputs, and what PyTorch made of them, in one safetensors file whose metadata
// says what is computed. Reading alone: nothing is run here.
//
// Tensors of kind sdpa: query [B, H, L, d], key [B, G, S, d], value [B, G, S, dv], grad_output
// [B, H, L, dv]; perhaps attn_mask, documents [B, S], what is learned of scores (alibi_slopes [H],
// relative_bias [H or 1, 2 R + 1], sinks [H]), and q_norm and k_norm [d], the gains of a norm over
// the rows of query and key. Under "expected." output, weights [B, H, L, S], logsumexp [B, H, L]
// and grad.NAME of every input of numbers. Of kind mha: a whole nn.MultiheadAttention. Of kind
// encoder_layer: an nn.TransformerEncoderLayer.
#pragma once

#include <algorithm>
#include <filesystem>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "headwise/io/safetensors_reader.hpp"
#include "headwise/ops/rotary_table.hpp"
#include "headwise/runtime/activation.hpp"

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
