// The laws that hold a kernel against itself on a part of the problem, or on the same problem put
// otherwise: batches, chunks, repeated heads, a second call.
#pragma once

#include <set>
#include <utility>

#include "headwise/testing/law_result.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// How two answers to one question have to agree.
enum class Agreement { bits, rounding };

template <class T>
void compare_answers(const LawTrial<T>& trial, Agreement agreement, const In<T, 4>& actual,
                     const In<T, 4>& expected, LawResult& result) {
  add_finding(result, "o",
              agreement == Agreement::bits ? equal_bits(actual, expected)
                                           : close_to(actual, expected, trial.tolerance(),
                                                      {.floor = size_of<T>(trial.oracle().o)}));
}

/// `count` indices of one axis, from `begin` on.
template <class T>
Tensor<T, 4> part(const Tensor<T, 4>& tensor, int axis, Index begin, Index count) {
  if (tensor.absent()) return {};
  return contiguous(slice(tensor, axis, begin, count));
}

/// Queries [begin, end) by themselves, with the keys that stood there when the last of them did.
template <class T>
LawData<T> chunk_of(const LawData<T>& data, Index begin, Index end) {
  const Index L = data.q.extent(2), S = data.k.extent(2), keys = data.causal ? end + (S - L) : S;
  return {part(data.q, 2, begin, end - begin),
          part(data.k, 2, 0, keys),
          part(data.v, 2, 0, keys),
          part(data.d_o, 2, begin, end - begin),
          part(part(data.keep, 2, data.keep.absent() ? 0 : begin, end - begin), 3, 0, keys),
          data.causal,
          data.scale};
}

template <class T>
LawResult chunk_law(const LawTrial<T>& trial, Agreement agreement) {
  LawResult result;
  const LawData<T>& data = trial.data();
  const Index L = data.q.extent(2), S = data.k.extent(2);
  if (L < 2) return result;
  for (const auto& [begin, end] : std::set<std::pair<Index, Index>>{
           {0, 1}, {0, L / 2}, {L / 2, L / 2 + 1}, {L / 3, L}, {L / 2, L}, {L - 1, L}}) {
    if (begin >= end || (data.causal && end + (S - L) < 1)) continue;
    if (end != L && !data.causal && trial.kernel().variant.by_place()) continue;  // they would move
    compare_answers<T>(trial, agreement, trial.forward(chunk_of(data, begin, end)).o,
                       part(trial.answer().o, 2, begin, end - begin), result);
  }
  return result;
}

template <class T>
LawResult batch_law(const LawTrial<T>& trial, Agreement agreement) {
  LawResult result;
  const LawData<T>& data = trial.data();
  if (data.q.extent(0) < 2) return result;
  for (Index b = 0; b < data.q.extent(0); ++b) {
    const LawData<T> alone{part(data.q, 0, b, 1),
                           part(data.k, 0, b, 1),
                           part(data.v, 0, b, 1),
                           part(data.d_o, 0, b, 1),
                           part(data.keep, 0, b, 1),
                           data.causal,
                           data.scale};
    compare_answers<T>(trial, agreement, trial.forward(alone).o, part(trial.answer().o, 0, b, 1),
                       result);
  }
  return result;
}

/// [B, G, S, W] with every head written `group` times: [B, G group, S, W].
template <class T>
Tensor<T, 4> repeat_heads(const Tensor<T, 4>& x, Index group) {
  Tensor<T, 4> y({x.extent(0), x.extent(1) * group, x.extent(2), x.extent(3)});
  for_each_index(y.shape(),
                 [&](const Shape<4>& at) { y(at) = x(at[0], at[1] / group, at[2], at[3]); });
  return y;
}

template <class T>
LawResult grouped_law(const LawTrial<T>& trial) {
  LawResult result;
  LawData<T> data = trial.data();
  const Index group = data.q.extent(1) / data.k.extent(1);
  if (group == 1) return result;
  data.k = repeat_heads(data.k, group);
  data.v = repeat_heads(data.v, group);
  compare_answers<T>(trial, Agreement::rounding, trial.forward(data).o, trial.answer().o, result);
  return result;
}

template <class T>
LawResult repeat_law(const LawTrial<T>& trial) {
  LawResult result;
  compare_answers<T>(trial, Agreement::bits, trial.forward(trial.data()).o, trial.answer().o,
                     result);
  return result;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
