// Modules whose matrices are kept as other numbers than they are computed with: half the memory,
// and half of what is read for each token that is decoded.
#pragma once

#include "headwise/nn/embedding.hpp"
#include "headwise/nn/linear.hpp"
#include "headwise/nn/same_parameters.hpp"
#include "headwise/nn/transformer_decoder.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// to = from, each number as the nearest one of its new type. Of one shape.
template <class To, class From, int R>
void copy_rounded(const In<From, R>& from, const Out<To, R>& to) {
  for_each_index(to.shape(), [&](const Shape<R>& at) {
    if constexpr (std::same_as<To, From>) {
      to(at) = from(at);
    } else {
      to(at) = convert_float<To>(from(at));
    }
  });
}

/// The parameters of one module in those of another of the same options.
template <class From, class To>
void copy_parameters_as(const From& from, To& to) {
  for_each_of_both("store_weights_as", "", to, from, [](auto target, auto source) {
    using Source = typename decltype(source)::value_type;
    copy_rounded(In<Source, decltype(source)::rank>(source), target);
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The same module with its matrices kept as numbers of type W, each the nearest one: BFloat16,
/// Float16, or T to widen them again. Biases, gains and vectors of positions stay as they are.
///
///   const TransformerDecoder<float, BFloat16> small = store_weights_as<BFloat16>(decoder);
///
/// What it computes has the bits of the module over T with those rounded weights. It infers and
/// decodes; it has no backward. Throws ShapeError for a module that was moved from, std::bad_alloc.
///@{
template <class W, Scalar T, KeptAs<T> From>
requires KeptAs<W, T> Linear<T, W> store_weights_as(const Linear<T, From>& module) {
  LinearParameters<T, W> parameters;
  parameters.w = Tensor<W, 2>(module.parameters().w.shape());
  parameters.b = module.parameters().b;
  detail::copy_parameters_as(module.parameters(), parameters);
  return {std::move(parameters), detail::Unchecked()};
}
template <class W, Scalar T, KeptAs<T> From>
requires KeptAs<W, T> Embedding<T, W> store_weights_as(const Embedding<T, From>& module) {
  EmbeddingParameters<T, W> parameters;
  parameters.table = Tensor<W, 2>(module.parameters().table.shape());
  detail::copy_parameters_as(module.parameters(), parameters);
  return {std::move(parameters), detail::Unchecked()};
}
template <class W, template <Scalar T, KeptAs<T> U> class Module, Scalar T, KeptAs<T> From>
requires KeptAs<W, T> Module<T, W> store_weights_as(const Module<T, From>& module) {
  typename Module<T, W>::Parameters parameters(module.options());
  detail::copy_parameters_as(module.parameters(), parameters);
  return {module.options(), std::move(parameters), detail::Unchecked()};
}
///@}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
