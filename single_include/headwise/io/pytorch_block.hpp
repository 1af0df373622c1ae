// headwise 0.1.0: headwise/io/pytorch_block.hpp and the headers below it in one file, made from include/ by
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

#include <concepts>

#include "../headwise.hpp"
#include "../io/safetensors.hpp"
#include "../io/pytorch.hpp"

// headwise/io/pytorch_block.hpp
// The weights of PyTorch's torch.nn.TransformerEncoderLayer, in its names and layouts, both ways.
//
//   self_attn.*                          as in pytorch.hpp
//   linear1.weight [F, D], linear1.bias [F]
//   linear2.weight [D, F], linear2.bias [D]
//   norm1.weight [D], norm1.bias [D]     gamma and beta; norm2 the same
//
// Weights are [out, in] there and [in, out] here: the same numbers, transposed, to the bit. What
// that layer cannot hold is refused by name: a gate, rms_norm, and what pytorch.hpp says. No file
// tells heads, activation, epsilon, nor whether norms come first.

namespace headwise::inline v0_1 {
namespace detail {

/// Throws ArgumentError for a block that PyTorch's layer cannot hold.
inline void require_pytorch_block(std::string_view function, const TransformerBlockOptions& o) {
  require(!o.gated, function, "gated is set, which PyTorch's layer has not");
  require(o.norm == NormKind::layer_norm, function,
          "norm is rms_norm, expected layer_norm (PyTorch's layer)");
  require_pytorch_module(function, o.attention());
}

/// Throws ShapeError for a block that was moved from.
template <class T, class W>
void require_block_parameters(std::string_view function, const TransformerBlock<T, W>& block) {
  require_shape(function, "norm1.gamma", block.parameters().norm1.gamma,
                Shape{block.options().d_model},
                "the block's options; a block that was moved from has no parameters");
}

/// f(name, tensor, width, option) for each of a block's vectors beside attention: option is what
/// asks for it, "" where it is always there.
template <class Parameters, class F>
void for_each_pytorch_vector(Parameters& p, F&& f) {
  f("linear1.bias", p.feed_forward.b_in, p.feed_forward.w_in.extent(1), "feed_forward_bias");
  f("linear2.bias", p.feed_forward.b_out, p.feed_forward.w_out.extent(1), "feed_forward_bias");
  f("norm1.weight", p.norm1.gamma, p.norm1.gamma.extent(0), "");
  f("norm1.bias", p.norm1.beta, p.norm1.gamma.extent(0), "norm_bias");
  f("norm2.weight", p.norm2.gamma, p.norm2.gamma.extent(0), "");
  f("norm2.bias", p.norm2.beta, p.norm2.gamma.extent(0), "norm_bias");
}

/// All but attention's.
template <class T, class W>
void read_pytorch_block(std::string_view function, const SafetensorsFile& file,
                        const std::string& prefix, TransformerBlockParameters<T, W>& to) {
  const auto matrix = [&](const char* name, Tensor<W, 2>& w) {
    const auto stored = get_shaped<W>(function, file, prefix + name,
                                      Shape{w.extent(1), w.extent(0)}, "the block's widths");
    copy(In<W, 2>(transpose(stored, 0, 1)), w);
  };
  matrix("linear1.weight", to.feed_forward.w_in);
  matrix("linear2.weight", to.feed_forward.w_out);
  for_each_pytorch_vector(
      to, [&](const char* name, Tensor<T, 1>& vector, Index width, const char* option) {
        const std::string full = prefix + name;
        if (vector.absent() && !file.contains(full)) return;
        const auto stored = get_shaped<T>(function, file, full, Shape{width}, "the block's widths");
        take_bias<T>(function, full, stored, option, vector);
      });
}

/// What a file has for a vector that the block lacks.
enum class LackingBias { none, zeros };

/// All but attention's.
template <class T, class W, class Attention>
void add_pytorch_block(SafetensorsWriter& writer,
                       const TransformerBlockParameters<T, W, Attention>& p,
                       const std::string& prefix, LackingBias lacking, DType dtype) {
  writer.add(prefix + "linear1.weight", transpose(p.feed_forward.w_in, 0, 1), dtype);
  writer.add(prefix + "linear2.weight", transpose(p.feed_forward.w_out, 0, 1), dtype);
  for_each_pytorch_vector(
      p, [&](const char* name, const Tensor<T, 1>& vector, Index width, const char*) {
        if (!vector.absent()) {
          writer.add(prefix + name, vector, dtype);
        } else if (lacking == LackingBias::zeros) {
          writer.add(prefix + name, Tensor<T, 1>({width}), dtype);
        }
      });
}

}  // namespace detail

/// The options of the block whose weights a file holds.
///
/// file     PyTorch's names behind `prefix`
/// known    num_heads, and what else no file tells: activation, norm_first, norm_epsilon
/// prefix   "layers.0." for what state_dict() names "layers.0.linear1.weight"
///
/// Throws   FileError for a tensor that is not there, ShapeError, ArgumentError.
inline TransformerBlockOptions pytorch_options(const SafetensorsFile& file,
                                               const TransformerBlockOptions& known,
                                               std::string_view prefix = "") {
  const std::string at{prefix}, linear1 = at + "linear1.weight";
  const MultiHeadAttentionOptions attention =
      pytorch_options(file, known.num_heads, at + "self_attn.");
  const std::vector<Index>& shape = file.shape(linear1);
  if (shape.size() != 2) {
    raise<ShapeError>("pytorch_options: " + linear1 + " is " + format_extents(shape) +
                      ", expected 2 axes");
  }
  TransformerBlockOptions o = known;
  o.d_model = attention.d_model;
  o.d_hidden = shape[0];
  o.attention_bias = attention.q_bias;
  o.feed_forward_bias = file.contains(at + "linear1.bias");
  o.norm_bias = file.contains(at + "norm1.bias");
  return o.resolved();
}

/// Overwrites the weights of a block with those of a file, rounded where it holds others than the
/// block: matrices to W, vectors to T.
///
/// A bias that the block has not must be 0 in the file; one that it has must be there.
/// Throws   FileError for a tensor that is not there, ShapeError or ArgumentError for one that does
///          not fit, std::bad_alloc; the block then is as it was.
template <Scalar T, KeptAs<T> W>
requires StoredFloat<T>
void load_pytorch(const SafetensorsFile& file, TransformerBlock<T, W>& block,
                  std::string_view prefix = "") {
  constexpr std::string_view function = "load_pytorch";
  const TransformerBlockOptions& o = block.options();
  const std::string at{prefix};
  detail::require_pytorch_block(function, o);
  detail::require_block_parameters(function, block);
  MultiHeadAttention<T, W> attention(o.attention());
  load_pytorch(file, attention, at + "self_attn.");
  TransformerBlockParameters<T, W> loaded(o);
  detail::read_pytorch_block(function, file, at, loaded);
  loaded.attention = std::move(attention.parameters());

  // Element by element, so that views of the parameters stay what they are.
  block.parameters().for_each([&]<class To>(const std::string& name, To to) {
    loaded.for_each([&]<class From>(const std::string& other, From from) {
      if constexpr (std::same_as<To, From>) {
        if (name == other) copy(In<typename From::value_type, From::rank>(from), to);
      }
    });
  });
}

/// The block whose weights a file holds: pytorch_options, then load_pytorch. Throws as they do.
template <Scalar T, KeptAs<T> W = T>
requires StoredFloat<T> TransformerBlock<T, W> from_pytorch(const SafetensorsFile& file,
                                                            const TransformerBlockOptions& known,
                                                            std::string_view prefix = "") {
  TransformerBlock<T, W> block(pytorch_options(file, known, prefix));
  load_pytorch(file, block, prefix);
  return block;
}

/// Adds a block's weights, so that torch.nn.TransformerEncoderLayer loads them: bias=True where the
/// block has any bias, and those that it has not are 0.
///
/// dtype   f64, f32, f16 or bf16; T's own: load_pytorch gives back the same bits
///
/// Throws   ArgumentError for a block that PyTorch's layer cannot hold, ShapeError for one that was
///          moved from, and as SafetensorsWriter::add does; std::bad_alloc. The writer then is as
///          it was.
template <Scalar T, KeptAs<T> W>
requires StoredFloat<T>
void add_pytorch(SafetensorsWriter& writer, const TransformerBlock<T, W>& block,
                 std::string_view prefix = "", DType dtype = dtype_of<T>) {
  const std::string at{prefix};
  const TransformerBlockOptions& o = block.options();
  detail::require_pytorch_block("add_pytorch", o);
  detail::require_block_parameters("add_pytorch", block);
  const MultiHeadAttentionParameters<T, W>& attention = block.parameters().attention;
  detail::require_parameters("add_pytorch", o.attention(), attention);
  SafetensorsWriter added;
  detail::add_pytorch_weights(added, attention, at + "self_attn.", dtype);
  const bool some = o.attention_bias || o.feed_forward_bias || o.norm_bias;
  if (some) detail::add_pytorch_biases(added, attention, o.d_model, at + "self_attn.", dtype);
  const auto lacking = some ? detail::LackingBias::zeros : detail::LackingBias::none;
  detail::add_pytorch_block(added, block.parameters(), at, lacking, dtype);
  writer.merge(std::move(added));
}

/// Adds the gradients of a block's weights as PyTorch's autograd lays them out:
/// "grad.linear1.weight" and so on. Those of biases that the block has not are left out: they are
/// not 0 but unknown.
///
/// Throws   as add_pytorch does, and ShapeError for gradients of another block. The writer then is
///          as it was.
template <Scalar T>
requires StoredFloat<T>
void add_pytorch_gradients(SafetensorsWriter& writer, const TransformerBlock<T>& block,
                           const TransformerBlockGradients<T>& gradients,
                           std::string_view prefix = "grad.", DType dtype = dtype_of<T>) {
  constexpr std::string_view function = "add_pytorch_gradients";
  const std::string at{prefix};
  detail::require_pytorch_block(function, block.options());
  detail::require_block_parameters(function, block);
  detail::require_feed_forward_gradients(function, block.parameters().feed_forward,
                                         gradients.feed_forward);
  const auto match = [&](const char* name, const auto& gradient, const auto& parameter) {
    require_shape(function, name, gradient, parameter.shape(), "the shape of its parameter");
  };
  match("norm1.gamma", gradients.norm1.gamma, block.parameters().norm1.gamma);
  match("norm1.beta", gradients.norm1.beta, block.parameters().norm1.beta);
  match("norm2.gamma", gradients.norm2.gamma, block.parameters().norm2.gamma);
  match("norm2.beta", gradients.norm2.beta, block.parameters().norm2.beta);
  const MultiHeadAttention<T> attention(block.options().attention());
  SafetensorsWriter added;
  add_pytorch_gradients(added, attention, gradients.attention, at + "self_attn.", dtype);
  detail::add_pytorch_block(added, gradients, at, detail::LackingBias::none, dtype);
  writer.merge(std::move(added));
}

}  // namespace headwise::inline v0_1
