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
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/io/pytorch_layout.hpp"
#include "headwise/nn/multi_head_attention.hpp"

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
