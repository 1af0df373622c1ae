// Modules whose matrices are kept as other numbers than they are computed with: half the memory,
// and half of what is read for each token that is decoded. An optimiser steps the floats that they
// are the nearest numbers to.
#pragma once

#include "headwise/nn/embedding.hpp"
#include "headwise/nn/linear.hpp"
#include "headwise/nn/same_parameters.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/ops/stored_rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// to = from, each number as the nearest one of its new type. Of one shape.
template <class To, class From, int R>
void copy_rounded(const In<From, R>& from, const Out<To, R>& to, const Context& context) {
  const Index N = to.extent(R - 1), width = from.stride(R - 1), step = to.stride(R - 1);
  for_rows(context, N == 0 ? 0 : to.size() / N, N, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const kernels::Row<const From> x{from.data() + row_offset(from, row), width};
      const kernels::Row<To> y{to.data() + row_offset(In<To, R>(to), row), step};
      for (Index n = 0; n < N; ++n) y[n] = number_as<To>(x[n]);
    }
  });
}

/// The parameters of one module in those of another of the same options. Throws ShapeError before
/// anything is written.
template <class From, class To>
void copy_parameters_as(std::string_view function, const From& from, To& to,
                        const Context& context = {}) {
  for_each_of_both(function, "", to, from, [](auto, auto) {});
  for_each_of_both(function, "", to, from, [&](auto target, auto source) {
    using Source = typename decltype(source)::value_type;
    copy_rounded(In<Source, decltype(source)::rank>(source), target, context);
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The same module with its matrices kept as numbers of type W, each the nearest one: BFloat16,
/// Float16, or T to widen them again. Biases, gains and vectors of positions stay as they are.
///
///   const TransformerDecoder<float, BFloat16> small = store_weights_as<BFloat16>(decoder);
///
/// What it computes, gradients too, has the bits of the module over T with those rounded weights.
/// Throws ShapeError for a module that was moved from, std::bad_alloc.
///@{
template <class W, Scalar T, KeptAs<T> From>
requires KeptAs<W, T> Linear<T, W> store_weights_as(const Linear<T, From>& module) {
  LinearParameters<T, W> parameters;
  parameters.w = Tensor<W, 2>(module.parameters().w.shape());
  parameters.b = module.parameters().b;
  detail::copy_parameters_as("store_weights_as", module.parameters(), parameters);
  return {std::move(parameters), detail::Unchecked()};
}
template <class W, Scalar T, KeptAs<T> From>
requires KeptAs<W, T> Embedding<T, W> store_weights_as(const Embedding<T, From>& module) {
  EmbeddingParameters<T, W> parameters;
  parameters.table = Tensor<W, 2>(module.parameters().table.shape());
  detail::copy_parameters_as("store_weights_as", module.parameters(), parameters);
  return {std::move(parameters), detail::Unchecked()};
}
template <class W, template <Scalar T, KeptAs<T> U> class Module, Scalar T, KeptAs<T> From>
requires KeptAs<W, T> Module<T, W> store_weights_as(const Module<T, From>& module) {
  typename Module<T, W>::Parameters parameters(module.options());
  detail::copy_parameters_as("store_weights_as", module.parameters(), parameters);
  return {module.options(), std::move(parameters), detail::Unchecked()};
}
///@}

/// The same into a module that there is, of the same options: in training, where an optimiser steps
/// weights of T and forward and backward read what is kept.
///
///   optimizer.step();             // of decoder's weights, by small's gradients
///   store_weights(decoder, small);
///
/// Throws ShapeError unless all shapes agree, before anything is written; std::bad_alloc.
template <template <Scalar T, KeptAs<T> U> class Module, Scalar T, KeptAs<T> From, KeptAs<T> W>
void store_weights(const Module<T, From>& module, Module<T, W>& kept, const Context& context = {}) {
  detail::copy_parameters_as("store_weights", module.parameters(), kept.parameters(), context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
