// headwise 0.1.0: headwise/io/pytorch.hpp and the headers below it in one file, made from include/ by
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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../headwise.hpp"
#include "../io/safetensors.hpp"

// headwise/io/pytorch_layout.hpp
// How the parameters of a module lie among PyTorch's tensors, and which modules have no place
// there. pytorch.hpp says what the names and layouts are.

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

// headwise/io/pytorch.hpp
// The weights of PyTorch's torch.nn.MultiheadAttention, in its names and layouts, both ways.
//
//   in_proj_weight [3 D, D]      rows W_Q | W_K | W_V; where kdim and vdim are D
//   q_proj_weight  [D, D]        and k_proj_weight [D, kdim], v_proj_weight [D, vdim] elsewhere
//   in_proj_bias   [3 D]         b_Q | b_K | b_V
//   out_proj.weight [D, D], out_proj.bias [D]
//
// Weights are [out, in] there and [in, out] here: the same numbers, transposed, to the bit. It is
// either all biases or none there; what a module here lacks is written as 0, and a bias that is 0
// fits a module without it. What that module cannot hold is refused by name: fewer key/value heads
// than heads, heads of another width than D / H, layer_norm, qk_norm, sinks, alibi, relative_reach,
// rotary; and add_bias_kv of theirs.

namespace headwise::inline v0_1 {

/// The options of the module whose weights a file holds; the number of heads is not among them.
///
/// file       PyTorch's names behind `prefix`
/// num_heads  H, divides D
/// prefix     "self_attn." for what state_dict() names "self_attn.in_proj_weight"
///
/// Throws   FileError for a tensor that is not there, ShapeError, ArgumentError.
inline MultiHeadAttentionOptions pytorch_options(const SafetensorsFile& file, Index num_heads,
                                                 std::string_view prefix = "") {
  constexpr std::string_view function = "pytorch_options";
  const std::string at{prefix};
  const auto matrix = [&](const char* name) {
    const std::vector<Index>& shape = file.shape(at + name);
    if (shape.size() != 2) {
      raise<ShapeError>(std::string(function) + ": " + at + name + " is " + format_extents(shape) +
                        ", expected 2 axes");
    }
    return Shape{shape[0], shape[1]};
  };
  MultiHeadAttentionOptions o;
  o.num_heads = num_heads;
  if (detail::has_separate_projections(function, file, at)) {
    o.d_model = matrix("q_proj_weight")[1];
    o.kdim = matrix("k_proj_weight")[1];
    o.vdim = matrix("v_proj_weight")[1];
  } else {
    o.d_model = matrix("in_proj_weight")[1];
  }
  o.q_bias = o.k_bias = o.v_bias = file.contains(at + "in_proj_bias");
  o.o_bias = file.contains(at + "out_proj.bias");
  return o.resolved();
}

/// Overwrites the weights of a module with those of a file, rounded where it holds others than the
/// module: matrices to W, biases to T.
///
/// file     PyTorch's names behind `prefix`; what else it holds is not looked at
/// module   its number of heads is taken as it is: no file tells it
///
/// A bias that the module has not must be 0 in the file; one that it has must be there.
/// Throws   FileError for a tensor that is not there, ShapeError or ArgumentError for one that does
///          not fit, ShapeError for a module that was moved from, std::bad_alloc; the module then
///          is as it was.
template <Scalar T, KeptAs<T> W>
requires StoredFloat<T>
void load_pytorch(const SafetensorsFile& file, MultiHeadAttention<T, W>& module,
                  std::string_view prefix = "") {
  constexpr std::string_view function = "load_pytorch";
  const MultiHeadAttentionOptions& o = module.options();
  const std::string at{prefix};
  detail::require_pytorch_module(function, o);
  detail::require_parameters(function, o, module.parameters());
  MultiHeadAttentionParameters<T, W> loaded(o);
  detail::read_pytorch_projections(function, file, at, o, loaded);
  const auto w_o = detail::get_shaped<W>(function, file, at + "out_proj.weight",
                                         Shape{o.d_model, o.d_model}, "d_model of the module");
  copy(In<W, 2>(transpose(w_o, 0, 1)), loaded.w_o);
  detail::read_pytorch_biases(function, file, at, o.d_model, loaded);

  // Element by element, so that views of the parameters stay what they are.
  MultiHeadAttentionParameters<T, W>& to = module.parameters();
  copy(In<W, 2>(loaded.W_Q()), to.W_Q());
  copy(In<W, 2>(loaded.W_K()), to.W_K());
  copy(In<W, 2>(loaded.W_V()), to.W_V());
  copy(In<W, 2>(loaded.w_o), to.w_o);
  copy(In<T, 1>(loaded.b_q), to.b_q);
  copy(In<T, 1>(loaded.b_k), to.b_k);
  copy(In<T, 1>(loaded.b_v), to.b_v);
  copy(In<T, 1>(loaded.b_o), to.b_o);
}

/// The module whose weights a file holds: pytorch_options, then load_pytorch. Throws as they do.
/// from_pytorch<float, BFloat16> keeps matrices as bf16, and never holds them as floats.
template <Scalar T, KeptAs<T> W = T>
requires StoredFloat<T> MultiHeadAttention<T, W> from_pytorch(const SafetensorsFile& file,
                                                              Index num_heads,
                                                              std::string_view prefix = "") {
  MultiHeadAttention<T, W> module(pytorch_options(file, num_heads, prefix));
  load_pytorch(file, module, prefix);
  return module;
}

/// Adds a module's weights, so that torch.nn.MultiheadAttention loads them: bias=True where the
/// module has any bias, and those that it has not are 0.
///
/// dtype   f64, f32, f16 or bf16; T's own: load_pytorch gives back the same bits
///
/// Throws   ArgumentError for a module that PyTorch's cannot hold, ShapeError for one that was
///          moved from, and as SafetensorsWriter::add does; std::bad_alloc. The writer then is as
///          it was.
template <Scalar T, KeptAs<T> W>
requires StoredFloat<T>
void add_pytorch(SafetensorsWriter& writer, const MultiHeadAttention<T, W>& module,
                 std::string_view prefix = "", DType dtype = dtype_of<T>) {
  const MultiHeadAttentionOptions& o = module.options();
  const MultiHeadAttentionParameters<T, W>& p = module.parameters();
  const std::string at{prefix};
  detail::require_pytorch_module("add_pytorch", o);
  detail::require_parameters("add_pytorch", o, p);
  SafetensorsWriter added;
  detail::add_pytorch_weights(added, p, at, dtype);
  const bool some = o.q_bias || o.k_bias || o.v_bias || o.o_bias;
  if (some) detail::add_pytorch_biases(added, p, o.d_model, at, dtype);
  writer.merge(std::move(added));
}

/// Adds the gradients of a module's weights as PyTorch's autograd lays them out:
/// "grad.in_proj_weight" and so on.
///
/// in_proj_bias is there where b_Q, b_K and b_V all are, and left out where none is: the gradient
/// of a bias that the module has not is not 0 but unknown, so that a part of them is refused.
/// Throws   ArgumentError for such a module and for one that PyTorch's cannot hold, ShapeError for
///          one that was moved from and for gradients of another module, and as
///          SafetensorsWriter::add does; std::bad_alloc. The writer then is as it was.
template <Scalar T>
requires StoredFloat<T>
void add_pytorch_gradients(SafetensorsWriter& writer, const MultiHeadAttention<T>& module,
                           const MultiHeadAttentionGradients<T>& gradients,
                           std::string_view prefix = "grad.", DType dtype = dtype_of<T>) {
  constexpr std::string_view function = "add_pytorch_gradients";
  const MultiHeadAttentionOptions& o = module.options();
  const std::string at{prefix};
  detail::require_pytorch_module(function, o);
  require(o.q_bias == o.k_bias && o.k_bias == o.v_bias, function,
          "only some of q_bias, k_bias and v_bias are set, expected all or none");
  const MultiHeadAttentionParameters<T>& p = module.parameters();
  detail::require_parameters(function, o, p);
  const auto match = [&](const char* name, const auto& gradient, const auto& parameter) {
    require_shape(function, name, gradient, parameter.shape(), "the shape of its parameter");
  };
  match("w_qkv", gradients.w_qkv, p.w_qkv);
  match("w_q", gradients.w_q, p.w_q);
  match("w_k", gradients.w_k, p.w_k);
  match("w_v", gradients.w_v, p.w_v);
  match("w_o", gradients.w_o, p.w_o);
  match("b_q", gradients.b_q, p.b_q);
  match("b_k", gradients.b_k, p.b_k);
  match("b_v", gradients.b_v, p.b_v);
  match("b_o", gradients.b_o, p.b_o);
  SafetensorsWriter added;
  detail::add_pytorch_weights<T>(added, gradients, at, dtype);
  if (o.q_bias) added.add(at + "in_proj_bias", detail::join_biases<T>(gradients, o.d_model), dtype);
  if (o.o_bias) added.add(at + "out_proj.bias", gradients.b_o, dtype);
  writer.merge(std::move(added));
}

}  // namespace headwise::inline v0_1
