// What a query of a reference case may see.
#pragma once

#include <string>

#include "headwise/io/reference_case.hpp"
#include "headwise/score/mask.hpp"

namespace headwise::examples {

/// The masks of a case, and the tensors that they view.
template <class T>
class CaseMasks {
 public:
  explicit CaseMasks(const ReferenceCase& c) {
    if (c.causal) mask_.add(causal);
    if (c.window > 0) mask_.add(Mask::window(c.window).keeping_first(c.window_keeps));
    if (c.file.contains("documents")) {
      const auto ids = c.file.get<double, 2>("documents");  // [B, S]
      documents_ = Tensor<Index, 2>(ids.shape());
      for (Index n = 0; n < ids.size(); ++n) documents_.data()[n] = Index(ids.data()[n]);
      mask_.add(Mask::documents(documents_));
    }
    if (c.file.contains("key_padding_mask")) {
      padding_ = c.file.get<bool, 2>("key_padding_mask");
      mask_.add(Mask::drop_keys(padding_));
    }
    if (c.file.contains("attn_mask")) add_attn_mask(c);
  }
  CaseMasks(const CaseMasks&) = delete;
  CaseMasks& operator=(const CaseMasks&) = delete;

  const AttentionMask<T>& mask() const { return mask_; }

 private:
  void add_attn_mask(const ReferenceCase& c) {
    const std::size_t rank = c.file.shape("attn_mask").size();
    const bool drops = c.file.dtype("attn_mask") == DType::boolean;
    if (rank != 2 && rank != 4) {
      detail::refuse_case(c.name, "attn_mask is " + format_extents(c.file.shape("attn_mask")) +
                                      ", expected [L, S] or [B, H, L, S]");
    }
    if (drops && rank == 2) mask_.add(Mask::drop(drop2_ = c.file.get<bool, 2>("attn_mask")));
    if (drops && rank == 4) mask_.add(Mask::drop(drop4_ = c.file.get<bool, 4>("attn_mask")));
    if (!drops && rank == 2) mask_.add(Mask::bias(bias2_ = c.file.get<T, 2>("attn_mask")));
    if (!drops && rank == 4) mask_.add(Mask::bias(bias4_ = c.file.get<T, 4>("attn_mask")));
  }

  Tensor<Index, 2> documents_;
  Tensor<bool, 2> padding_, drop2_;
  Tensor<bool, 4> drop4_;
  Tensor<T, 2> bias2_;
  Tensor<T, 4> bias4_;
  AttentionMask<T> mask_;
};

}  // namespace headwise::examples
