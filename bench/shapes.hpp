// The one list of shapes: the benchmark families take theirs from here, and so does the comparison,
// which asks headwise_bench for it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "headwise/tensor/shape.hpp"

namespace headwise::bench {

/// A multi-head attention to be timed.
struct BenchShape {
  Index B, L, D, H, G;
  std::string purpose;  // small, standard, grouped or length: one width and many lengths
};
inline const std::vector<BenchShape>& shapes() {
  static const std::vector<BenchShape> list = {
      {1, 16, 64, 4, 4, "small"},
      {1, 128, 256, 4, 4, "standard"},
      {4, 512, 768, 12, 12, "standard"},
      {8, 1024, 768, 12, 12, "standard"},
      {1, 2048, 768, 12, 12, "standard"},
      {1, 4096, 512, 8, 8, "standard"},
      {1, 8192, 512, 8, 8, "standard"},
      {4, 1024, 1024, 16, 4, "grouped"},
      {4, 1024, 1024, 16, 16, "ungrouped"},  // the same with a key head for each query head
      {1, 128, 512, 8, 8, "length"},
      {1, 256, 512, 8, 8, "length"},
      {1, 512, 512, 8, 8, "length"},
      {1, 1024, 512, 8, 8, "length"},
      {1, 2048, 512, 8, 8, "length"},
      {1, 65536, 64, 1, 1, "long"},  // forward and causal alone
  };
  return list;
}

/// A query of each head against a cache of S keys.
struct DecodeShape {
  Index B, S, D, H, G;
};
inline const std::vector<DecodeShape>& decode_shapes() {
  static const std::vector<DecodeShape> list = {
      {1, 2048, 768, 12, 12}, {1, 16384, 768, 12, 12}, {1, 16384, 1024, 16, 4}};
  return list;
}

/// A product of the linear layer y = x w, x [N, I], w [I, O].
struct GemmShape {
  std::string form;  // nn: x w, forward;  nt: dy w^T, dx;  tn: x^T dy, dw
  std::string name;  // which product of an attention module it is
  Index N, I, O;
  bool large;  // one of those that the geometric mean is formed of
};
inline const std::vector<GemmShape>& gemm_shapes() {
  static const std::vector<GemmShape> list = {
      {"nn", "qkv_forward", 2048, 768, 2304, true}, {"nn", "out_forward", 2048, 768, 768, true},
      {"nt", "qkv_dx", 2048, 768, 2304, true},      {"nt", "wide_dx", 2048, 2304, 768, true},
      {"nt", "out_dx", 2048, 768, 768, true},       {"tn", "qkv_dw", 2048, 768, 2304, true},
      {"tn", "out_dw", 2048, 768, 768, true},       {"nn", "short_forward", 128, 256, 256, false},
      {"nn", "tiny_forward", 64, 64, 64, false},
  };
  return list;
}

/// Rows and columns of what works row by row: layer norm, softmax, dropout.
inline const std::vector<std::array<Index, 2>>& row_shapes() {
  static const std::vector<std::array<Index, 2>> list = {
      {16, 64}, {128, 256}, {2048, 768}, {8192, 768}, {4096, 4096}};
  return list;
}

/// Rows and columns of logits: a vocabulary of characters, and one of a language model.
inline const std::vector<std::array<Index, 2>>& logits_shapes() {
  static const std::vector<std::array<Index, 2>> list = {{16384, 65}, {512, 50000}};
  return list;
}
/// Tokens, rows and columns of an embedding's table.
inline const std::vector<std::array<Index, 3>>& table_shapes() {
  static const std::vector<std::array<Index, 3>> list = {{16384, 65, 384}, {8192, 50000, 768}};
  return list;
}

}  // namespace headwise::bench
