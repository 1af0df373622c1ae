// The operations and the module for float and double, declared as compiled elsewhere: the target
// headwise::compiled holds them, and defines HEADWISE_COMPILED, by which headwise.hpp includes
// this (a file that includes single headers of the library includes this one, too). A translation
// unit that is compiled with flags of its own (-mavx2, -ffast-math and so on), or by another
// compiler than the library (g++, clang), compiles what it uses itself, as it would without.
#pragma once

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/nn/transformer_block.hpp"
#include "headwise/ops/packed_attention.hpp"
#include "headwise/ops/softmax.hpp"

#if HEADWISE_USES_COMPILED && !defined(HEADWISE_INSTANCE)
#define HEADWISE_INSTANCE extern template  // src/compiled/operations.hpp: template
#endif

#define HEADWISE_INSTANCES_OF_OPS(T)                                                               \
  HEADWISE_INSTANCE void linear_forward<T>(In<T, 2>, In<T, 2>, In<T, 1>, Out<T, 2>,                \
                                           const Context&);                                        \
  HEADWISE_INSTANCE void linear_backward<T>(In<T, 2>, In<T, 2>, In<T, 2>, Out<T, 2>, InOut<T, 2>,  \
                                            InOut<T, 1>, const Context&);                          \
  HEADWISE_INSTANCE void softmax_forward<T>(In<T, 2>, Out<T, 2>, const Context&);                  \
  HEADWISE_INSTANCE void softmax_backward<T>(In<T, 2>, In<T, 2>, Out<T, 2>, const Context&);       \
  HEADWISE_INSTANCE void dropout_forward<T>(In<T, 2>, const Dropout&, Out<T, 2>, const Context&);  \
  HEADWISE_INSTANCE void dropout_backward<T>(In<T, 2>, const Dropout&, Out<T, 2>, const Context&); \
  HEADWISE_INSTANCE void layer_norm_forward<T>(In<T, 2>, const LayerNormAffine<T>&, T, Out<T, 2>,  \
                                               const LayerNormMoments<Out<T, 1>>&,                 \
                                               const Context&);                                    \
  HEADWISE_INSTANCE void layer_norm_backward<T>(In<T, 2>, In<T, 2>, In<T, 1>,                      \
                                                const LayerNormMoments<In<T, 1>>&, Out<T, 2>,      \
                                                const LayerNormGradients<T>&, const Context&);     \
  HEADWISE_INSTANCE void rms_norm_forward<T>(In<T, 2>, In<T, 1>, T, Out<T, 2>, Out<T, 1>,          \
                                             const Context&);                                      \
  HEADWISE_INSTANCE void rms_norm_backward<T>(In<T, 2>, In<T, 2>, In<T, 1>, In<T, 1>, Out<T, 2>,   \
                                              InOut<T, 1>, const Context&);                        \
  HEADWISE_INSTANCE void activation_forward<T>(Activation, In<T, 2>, Out<T, 2>, const Context&);   \
  HEADWISE_INSTANCE void activation_backward<T>(Activation, In<T, 2>, In<T, 2>, Out<T, 2>,         \
                                                const Context&);                                   \
  HEADWISE_INSTANCE void swiglu_forward<T>(In<T, 2>, In<T, 2>, Out<T, 2>, const Context&);         \
  HEADWISE_INSTANCE void swiglu_backward<T>(In<T, 2>, In<T, 2>, In<T, 2>, Out<T, 2>, Out<T, 2>,    \
                                            const Context&);                                       \
  HEADWISE_INSTANCE void add_forward<T>(In<T, 2>, In<T, 2>, Out<T, 2>, const Context&);            \
  HEADWISE_INSTANCE void attention_forward<T>(In<T, 4>, In<T, 4>, In<T, 4>,                        \
                                              const AttentionOptions<T>&, Out<T, 4>, Out<T, 4>,    \
                                              const Context&);                                     \
  HEADWISE_INSTANCE void attention_backward<T>(In<T, 4>, const AttentionInputs<T>&, In<T, 4>,      \
                                               const AttentionOptions<T>&,                         \
                                               const AttentionGradients<T>&, const Context&);      \
  HEADWISE_INSTANCE void flash_attention_forward<T>(In<T, 4>, In<T, 4>, In<T, 4>,                  \
                                                    const AttentionOptions<T>&, Out<T, 4>,         \
                                                    Out<T, 4>, const Context&);                    \
  HEADWISE_INSTANCE void flash_attention_backward<T>(                                              \
      In<T, 4>, const AttentionInputs<T>&, In<T, 4>, In<T, 4>, const AttentionOptions<T>&,         \
      const AttentionGradients<T>&, const Context&);                                               \
  HEADWISE_INSTANCE void packed_attention_forward<T>(const PackedSequences<T>&,                    \
                                                     const AttentionOptions<T>&, Out<T, 3>,        \
                                                     Out<T, 3>, const Context&);                   \
  HEADWISE_INSTANCE void packed_attention_backward<T>(                                             \
      In<T, 3>, const PackedSequences<T>&, In<T, 3>, In<T, 3>, const AttentionOptions<T>&,         \
      const PackedGradients<T>&, const Context&);

#define HEADWISE_INSTANCES_OF_MODULE(T)                                                            \
  HEADWISE_INSTANCE Tensor<T, 3> multi_head_attention_forward<T>(                                  \
      const MultiHeadAttentionOptions&, const MultiHeadAttentionParameters<T>&,                    \
      const ModuleInputs<T>&, const MultiHeadAttentionCall<T>&, MultiHeadAttentionCache<T>&, bool, \
      const Context&);                                                                             \
  HEADWISE_INSTANCE CrossAttentionGradients<T> multi_head_attention_backward<T>(                   \
      const MultiHeadAttentionOptions&, const MultiHeadAttentionParameters<T>&, In<T, 3>,          \
      const MultiHeadAttentionCache<T>&, MultiHeadAttentionGradients<T>&, const Context&);         \
  HEADWISE_INSTANCE Tensor<T, 3> transformer_block_forward<T>(                                     \
      const TransformerBlockOptions&, const TransformerBlockParameters<T>&, In<T, 3>,              \
      const TransformerBlockCall<T>&, TransformerBlockCache<T>&, bool, const Context&);            \
  HEADWISE_INSTANCE Tensor<T, 3> transformer_block_backward<T>(                                    \
      const TransformerBlockOptions&, const TransformerBlockParameters<T>&, In<T, 3>,              \
      const TransformerBlockCache<T>&, TransformerBlockGradients<T>&, const Context&);

#if defined(HEADWISE_INSTANCE_SCALAR)
#define HEADWISE_INSTANCES(of) of(HEADWISE_INSTANCE_SCALAR)
#else
#define HEADWISE_INSTANCES(of) of(float) of(double)
#endif

#if defined(HEADWISE_INSTANCE)
namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_INSTANCES(HEADWISE_INSTANCES_OF_OPS)

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_INSTANCES(HEADWISE_INSTANCES_OF_MODULE)

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
#endif

#undef HEADWISE_INSTANCES
#undef HEADWISE_INSTANCES_OF_OPS
#undef HEADWISE_INSTANCES_OF_MODULE
#undef HEADWISE_INSTANCE
