// The kernels of what a model has around attention: sums and products, activations, what stands at
// a language model's ends, optimisers, caches of 16 bits. A table of their own, so that a program
// that calls attention alone compiles none of them.
#pragma once

#include "headwise/kernels/activation.hpp"
#include "headwise/kernels/arguments.hpp"
#include "headwise/kernels/cross_entropy.hpp"
#include "headwise/kernels/decode.hpp"
#include "headwise/kernels/optimizer.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// What two elements become.
enum class Combination {
  first,                      // a
  sum,                        // a + b
  difference,                 // a - b
  product,                    // a b
  quotient,                   // a / b
  scaled,                     // alpha a
  gradient_product,           // a b, 0 where a is 0 whatever b holds
  gradient_quotient,          // a / b, likewise
  negative_gradient_product,  // -a b, likewise
};

/// Rows that are combined element by element. A row stride of 0 makes one row stand for all.
template <class T>
struct CombinedRows {
  Matrix<const T> a, b;  // [rows, N]; where only a is combined, b is a
  Matrix<T> y;           // [rows, N], overwritten; null where sums are taken
  Index N;
  T alpha = T(1);  // of Combination::scaled
};

/// Softmax cross-entropy of rows. lse may be null.
template <class T>
struct CrossEntropyRows {
  Matrix<const T> logits;  // [N, V]
  Index V;
  const Index* targets;  // [N]; below 0: the row is left out
  T* losses;             // [N]
  Row<T> lse;            // [N]
};

/// The gradients of the losses.
template <class T>
struct CrossEntropyBackwardRows {
  Matrix<const T> logits;  // [N, V]
  Index V;
  const Index* targets;  // [N]; below 0: the row is left out
  Row<const T> lse;      // [N]
  T factor;              // of the loss of a row
  Matrix<T> d_logits;    // [N, V]
};

/// An activation of rows, times `up` where that is not null.
template <class T>
struct ActivationRows {
  Activation which;
  Index F;
  Matrix<const T> x, up;  // [N, F]
  Matrix<T> y;            // [N, F]; may be x or up
};

/// The gradients of an activation of rows. up and d_up may be null, together.
template <class T>
struct ActivationBackwardRows {
  Activation which;
  Index F;
  Matrix<const T> dy, x, up;  // [N, F]
  Matrix<T> dx, d_up;         // [N, F], overwritten; dx may be dy
};

/// A product of few rows with a right factor of 16 bits: c = a w + bias.
template <class T>
struct FewRows {
  Extents size;
  Matrix<const T> a;  // [M, K]
  StoredMatrix w;     // [K, N], rows or columns dense
  StoredAs as;
  Matrix<T> c;    // [M, N], overwritten
  const T* bias;  // [N]; null for none
  T* sums;        // [Thin::sums], scratch
};

/// The kernels of one instruction set for T. What each does and takes is said where it is defined:
/// kernels/<file>.inc. Rows are a part of all rows, or of the columns where sums run down them.
template <Scalar T>
struct ModelKernels {
  // elementwise.inc
  void (*combine_rows)(Combination how, const CombinedRows<T>& of, Index begin, Index end);
  void (*combine_columns)(Combination how, const CombinedRows<T>& of, Index rows, Index begin,
                          Index end, Row<T> to);

  // activation.inc
  void (*activation_rows)(const ActivationRows<T>& of, Index begin, Index end);
  void (*activation_backward_rows)(const ActivationBackwardRows<T>& of, Index begin, Index end);

  // embedding.inc and cross_entropy.inc
  void (*add_row)(Row<const T> x, Index N, Row<T> to);
  void (*cross_entropy_rows)(const CrossEntropyRows<T>& of, Index begin, Index end);
  void (*cross_entropy_backward_rows)(const CrossEntropyBackwardRows<T>& of, Index begin,
                                      Index end);

  // widen_rows.inc and few_rows.inc, of float alone
  void (*widen_rows)(StoredAs as, StoredMatrix x, Index rows, Index N, T* y);
  void (*round_elements)(StoredAs as, T* x, Index n, void* y);
  void (*multiply_few_rows)(const FewRows<T>& of);

  // optimizer.inc, over dense elements
  void (*adamw)(const AdamWStep<T>& step, T* p, const T* g, T* m, T* v, Index n);
  void (*sgd)(const SgdStep<T>& step, T* p, const T* g, T* u, Index n);
  void (*scale_elements)(T factor, T* x, Index n);
  SumOf<T> (*sum_of_squares)(const T* x, Index n);

  // decode.inc, over keys and values of 16 bits; of float alone
  DecodeKernels<T> decode_bf16, decode_fp16;

  const DecodeKernels<T>& decode(StoredAs stored) const {
    return stored == StoredAs::bf16 ? decode_bf16 : decode_fp16;
  }
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
