// How the parameters of a module lie among PyTorch's tensors, and which modules have no place
// there. pytorch.hpp says what the names and layouts are.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/io/safetensors.hpp"
#include "headwise/nn/multi_head_attention_parameters.hpp"

namespace headwise::inline v0_1::detail {

/// Throws ArgumentError for a module that PyTorch's cannot hold.
inline void require_pytorch_module(std::string_view function, const MultiHeadAttentionOptions& o) {
  const std::string heads = std::to_string(o.num_heads);
  require(o.num_kv_heads == o.num_heads, function,
          "num_kv_heads is " + std::to_string(o.num_kv_heads) + ", expected num_heads " + heads +
              " (PyTorch's module has no grouped queries)");
  require(o.q_width() == o.d_model, function,
          "d_head is " + std::to_string(o.d_head) + ", expected d_model " +
              std::to_string(o.d_model) + " / num_heads " + heads + " (PyTorch's module)");
  require(o.d_value == o.d_head, function,
          "d_value is " + std::to_string(o.d_value) + ", expected d_head " +
              std::to_string(o.d_head) + " (PyTorch's module)");
  require(!o.layer_norm, function, "layer_norm is set, which PyTorch's module has not");
  require(!o.qk_norm, function, "qk_norm is set, which PyTorch's module has not");
  require(!o.sinks, function, "sinks is set, which PyTorch's module has not");
  require(!o.alibi, function, "alibi is set, which PyTorch's module has not");
  require(o.relative_reach == 0, function, "relative_reach is set, which PyTorch's module has not");
  require(!o.rotary, function, "rotary is set, which PyTorch's module has not");
}

/// Throws ShapeError unless the parameters are those of a module of these options, which
/// PyTorch's can hold. A module that was moved from has none.
template <class T, class W>
void require_parameters(std::string_view function, const MultiHeadAttentionOptions& o,
                        const MultiHeadAttentionParameters<T, W>& p) {
  const auto match = [&](const char* name, const auto& tensor, bool there, auto shape) {
    require_shape(function, name, tensor, there ? shape : decltype(shape)(),
                  "the module's options; a module that was moved from has no parameters");
  };
  const Index D = o.d_model;
  match("w_qkv", p.w_qkv, o.fused(), Shape{D, 3 * D});
  match("w_q", p.w_q, !o.fused(), Shape{D, D});
  match("w_k", p.w_k, !o.fused(), Shape{o.kdim, D});
  match("w_v", p.w_v, !o.fused(), Shape{o.vdim, D});
  match("w_o", p.w_o, true, Shape{D, D});
  match("b_q", p.b_q, o.q_bias, Shape{D});
  match("b_k", p.b_k, o.k_bias, Shape{D});
  match("b_v", p.b_v, o.v_bias, Shape{D});
  match("b_o", p.b_o, o.o_bias, Shape{D});
}

/// A tensor of the file. Throws ShapeError unless it has this shape.
template <class T, int R>
Tensor<T, R> get_shaped(std::string_view function, const SafetensorsFile& file,
                        const std::string& name, const Shape<R>& expected,
                        std::string_view whence) {
  const std::vector<Index>& shape = file.shape(name);
  if (!std::equal(shape.begin(), shape.end(), std::begin(expected.extents),
                  std::end(expected.extents))) {
    raise<ShapeError>(std::string(function) + ": " + name + " is " + format_extents(shape) +
                      ", expected " + expected.format() + " (" + std::string(whence) + ")");
  }
  return file.get<T, R>(name);
}

/// Whether the projections are three matrices. Throws ArgumentError for what no module here has.
inline bool has_separate_projections(std::string_view function, const SafetensorsFile& file,
                                     const std::string& prefix) {
  for (const char* name : {"bias_k", "bias_v"}) {
    require(!file.contains(prefix + name), function,
            prefix + name + " is there: add_bias_kv is not supported");
  }
  const bool separate = file.contains(prefix + "q_proj_weight");
  require(!separate || !file.contains(prefix + "in_proj_weight"), function,
          prefix + "in_proj_weight and " + prefix + "q_proj_weight are both there");
  return separate;
}

template <class T, class W>
void read_pytorch_projections(std::string_view function, const SafetensorsFile& file,
                              const std::string& prefix, const MultiHeadAttentionOptions& o,
                              MultiHeadAttentionParameters<T, W>& to) {
  const Index D = o.d_model;
  if (has_separate_projections(function, file, prefix)) {
    const auto read = [&](const char* name, Index in, const char* whence, auto w) {
      const auto stored = get_shaped<W>(function, file, prefix + name, Shape{D, in}, whence);
      copy(In<W, 2>(transpose(stored, 0, 1)), w);
    };
    read("q_proj_weight", D, "d_model, d_model of the module", to.W_Q());
    read("k_proj_weight", o.kdim, "d_model, kdim of the module", to.W_K());
    read("v_proj_weight", o.vdim, "d_model, vdim of the module", to.W_V());
    return;
  }
  const std::string name = prefix + "in_proj_weight";
  const std::string shape = format_extents(file.shape(name));
  if (!o.fused()) {
    raise<ShapeError>(std::string(function) + ": " + name + " is " + shape + ", expected " +
                      prefix + "q_proj_weight, k_proj_weight and v_proj_weight (d_model " +
                      std::to_string(D) + ", kdim " + std::to_string(o.kdim) + ", vdim " +
                      std::to_string(o.vdim) + " of the module)");
  }
  const auto stored = get_shaped<W>(function, file, name, Shape{3 * D, D},
                                    "3 d_model, d_model of the module's W_Q, W_K, W_V");
  copy(In<W, 2>(transpose(stored, 0, 1)), to.w_qkv);
}

/// A part of a stored bias goes to the module's; where that has none, it must be 0.
template <class T>
void take_bias(std::string_view function, const std::string& name, In<T, 1> stored,
               std::string_view option, Tensor<T, 1>& to) {
  if (!to.absent()) return copy(stored, to);
  for (Index n = 0; n < stored.size(); ++n) {
    require(stored(n) == T(0), function,
            name + " is not 0, the module has no bias for it (" + std::string(option) + ")");
  }
}

template <class T, class W>
void read_pytorch_biases(std::string_view function, const SafetensorsFile& file,
                         const std::string& prefix, Index D,
                         MultiHeadAttentionParameters<T, W>& to) {
  const std::string in = prefix + "in_proj_bias", out = prefix + "out_proj.bias";
  if (file.contains(in) || !to.b_q.absent() || !to.b_k.absent() || !to.b_v.absent()) {
    const auto stored =
        get_shaped<T>(function, file, in, Shape{3 * D}, "3 d_model of the module's b_Q, b_K, b_V");
    take_bias<T>(function, in, slice(stored, 0, 0, D), "q_bias", to.b_q);
    take_bias<T>(function, in, slice(stored, 0, D, D), "k_bias", to.b_k);
    take_bias<T>(function, in, slice(stored, 0, 2 * D, D), "v_bias", to.b_v);
  }
  if (file.contains(out) || !to.b_o.absent()) {
    const auto stored = get_shaped<T>(function, file, out, Shape{D}, "d_model of the module's b_O");
    take_bias<T>(function, out, stored, "o_bias", to.b_o);
  }
}

/// b_Q | b_K | b_V, each [D], 0 for one that is absent.
template <class T, class W>
Tensor<T, 1> join_biases(const MultiHeadAttentionParameters<T, W>& p, Index D) {
  Tensor<T, 1> joined({3 * D});
  if (!p.b_q.absent()) copy(In<T, 1>(p.b_q), slice(joined, 0, 0, D));
  if (!p.b_k.absent()) copy(In<T, 1>(p.b_k), slice(joined, 0, D, D));
  if (!p.b_v.absent()) copy(In<T, 1>(p.b_v), slice(joined, 0, 2 * D, D));
  return joined;
}

template <class T, class W>
void add_pytorch_weights(SafetensorsWriter& writer, const MultiHeadAttentionParameters<T, W>& p,
                         const std::string& prefix, DType dtype) {
  if (p.fused()) {
    writer.add(prefix + "in_proj_weight", transpose(p.w_qkv, 0, 1), dtype);
  } else {
    writer.add(prefix + "q_proj_weight", transpose(p.w_q, 0, 1), dtype);
    writer.add(prefix + "k_proj_weight", transpose(p.w_k, 0, 1), dtype);
    writer.add(prefix + "v_proj_weight", transpose(p.w_v, 0, 1), dtype);
  }
  writer.add(prefix + "out_proj.weight", transpose(p.w_o, 0, 1), dtype);
}

/// All biases, 0 where there is none.
template <class T, class W>
void add_pytorch_biases(SafetensorsWriter& writer, const MultiHeadAttentionParameters<T, W>& p,
                        Index D, const std::string& prefix, DType dtype) {
  writer.add(prefix + "in_proj_bias", join_biases(p, D), dtype);
  writer.add(prefix + "out_proj.bias", p.b_o.absent() ? Tensor<T, 1>({D}) : p.b_o, dtype);
}

}  // namespace headwise::inline v0_1::detail
