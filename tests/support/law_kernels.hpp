// Kernels that the laws of attention are tried on: this library's two paths, and plain loops with a
// fault planted in them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/testing/laws.hpp"

namespace headwise_tests {

using namespace headwise;

// ---- This library's two paths -----------------------------------------------------------------

template <class T>
AttentionOptions<T> options_of(const AttentionProblem<T>& x) {
  AttentionOptions<T> options{.scale = x.scale};
  if (x.causal) options.mask.add(causal);
  if (!x.keep.absent()) options.mask.add(Mask::keep(x.keep));
  return options;
}

template <class T>
AttentionKernel<T> materialized_kernel() {
  return {
      .name = "attention",
      .forward =
          [](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
            attention_forward(x.q, x.k, x.v, options_of(x), y.weights, y.o);
          },
      .backward =
          [](const AttentionProblem<T>& x, const In<T, 4>& d_o,
             const AttentionAnswerGradients<T>& y) {
            Tensor4<T> weights({x.q.extent(0), x.q.extent(1), x.q.extent(2), x.k.extent(2)});
            Tensor4<T> o(d_o.shape());
            attention_forward(x.q, x.k, x.v, options_of(x), weights, o);
            attention_backward(d_o, {x.q, x.k, x.v}, weights, options_of(x), {y.dq, y.dk, y.dv});
          },
      .gives_weights = true};
}

template <class T>
AttentionKernel<T> flash_kernel() {
  return {.name = "flash_attention",
          .forward =
              [](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
                flash_attention_forward(x.q, x.k, x.v, options_of(x), y.o, {});
              },
          .backward =
              [](const AttentionProblem<T>& x, const In<T, 4>& d_o,
                 const AttentionAnswerGradients<T>& y) {
                Tensor4<T> o(d_o.shape());
                Tensor4<T> lse({d_o.extent(0), d_o.extent(1), d_o.extent(2), 2});
                flash_attention_forward(x.q, x.k, x.v, options_of(x), o, lse);
                flash_attention_backward(d_o, {x.q, x.k, x.v}, o, lse, options_of(x),
                                         {y.dq, y.dk, y.dv});
              }};
}

// ---- Plain loops over arrays, with a fault to plant -------------------------------------------

enum class Fault {
  none,
  softmax_over_queries,
  causal_off_by_one,
  causal_top_left,
  scale_forgotten,
  wrong_group,
  last_key_dropped,
  nan_leak,
  nan_swallowed,
  no_maximum,
  dead_row_uniform,
  bits_of_the_batch,
  bits_of_the_length,
  delta_forgotten,
  dk_transposed,
  dk_of_last_head,
  dead_row_gradient,
  output_left,
  throws,
};

/// One head: the weights [L, S] and what its indices mean.
template <class T>
struct LoopHead {
  const AttentionArrays<T>& x;
  Fault fault;
  Index b, h;
  std::vector<T> p = {};  // [L, S]

  Index key_head() const { return fault == Fault::wrong_group ? h % x.G : h / (x.H / x.G); }
  const T* q(Index i) const { return x.q + ((b * x.H + h) * x.L + i) * x.d; }
  Index key(Index j) const { return (b * x.G + key_head()) * x.S + j; }
  T& weight(Index i, Index j) { return p[static_cast<std::size_t>(i * x.S + j)]; }

  bool sees(Index i, Index j) const {
    Index last = i + x.S - x.L;
    if (fault == Fault::causal_off_by_one) ++last;
    if (fault == Fault::causal_top_left) last = i;
    if (x.causal && j > last) return false;
    if (fault == Fault::last_key_dropped && x.S > 1 && j == x.S - 1) return false;
    return x.keep == nullptr || x.keep[((b * x.H + h) * x.L + i) * x.S + j];
  }

  /// Scores of `count` pairs with their weights in place of them; the softmax of one query, or,
  /// where that is the fault, of one key.
  void softmax(Index rows, Index columns, bool by_key) {
    for (Index r = 0; r < rows; ++r) {
      const auto at = [&](Index c) -> T& { return by_key ? weight(c, r) : weight(r, c); };
      const auto visible = [&](Index c) { return by_key ? sees(c, r) : sees(r, c); };
      T greatest = std::numeric_limits<T>::lowest(), mass = 0;
      Index seen = 0;
      for (Index c = 0; c < columns; ++c) {
        if (!visible(c)) continue;
        ++seen;
        greatest = std::max(greatest, at(c));
      }
      if (fault == Fault::no_maximum) greatest = 0;
      for (Index c = 0; c < columns; ++c) {
        at(c) = visible(c) ? std::exp(at(c) - greatest) : T(0);
        mass += at(c);
      }
      for (Index c = 0; c < columns; ++c) {
        if (seen > 0) at(c) /= mass;
        if (seen == 0 && fault == Fault::dead_row_uniform) at(c) = T(1) / T(columns);
      }
    }
  }

  void weigh() {
    p.assign(static_cast<std::size_t>(x.L * x.S), T(0));
    const T scale = fault == Fault::scale_forgotten ? T(1) : x.scale;
    for (Index i = 0; i < x.L; ++i) {
      for (Index j = 0; j < x.S; ++j) {
        T dot = 0;
        for (Index c = 0; c < x.d; ++c) dot += q(i)[c] * x.k[key(j) * x.d + c];
        weight(i, j) = scale * dot;
      }
    }
    if (fault == Fault::softmax_over_queries) {
      softmax(x.S, x.L, true);
    } else {
      softmax(x.L, x.S, false);
    }
  }
};

template <class T>
void loops_forward(const AttentionArrays<T>& x, Fault fault, const AttentionAnswer<T>& y) {
  if (fault == Fault::throws && x.L > x.S) throw std::runtime_error("more queries than keys");
  for (Index b = 0; b < x.B; ++b) {
    for (Index h = 0; h < x.H; ++h) {
      LoopHead<T> head{x, fault, b, h};
      head.weigh();
      for (Index i = 0; i < x.L; ++i) {
        if (fault == Fault::output_left && i == 64) break;
        if (!y.weights.absent()) {
          for (Index j = 0; j < x.S; ++j) y.weights(b, h, i, j) = head.weight(i, j);
        }
        for (Index c = 0; c < x.dv; ++c) {
          T sum = 0;
          const bool backwards = (fault == Fault::bits_of_the_batch && x.B > 1) ||
                                 (fault == Fault::bits_of_the_length && x.L % 2 == 1);
          for (Index n = 0; n < x.S; ++n) {
            const Index j = backwards ? x.S - 1 - n : n;
            if (!head.sees(i, j) && head.weight(i, j) == 0 && fault != Fault::nan_leak) continue;
            const T value = x.v[head.key(j) * x.dv + c];
            if (fault == Fault::nan_swallowed && !detail::is_finite_number(value)) continue;
            sum += head.weight(i, j) * value;
          }
          y.o(b, h, i, c) = sum;
        }
      }
    }
  }
}

template <class T>
void loops_backward(const AttentionArrays<T>& x, Fault fault, const T* d_o,
                    const AttentionAnswerGradients<T>& y) {
  for (const auto& gradient : {y.dq, y.dk, y.dv}) fill(gradient, 0);
  Tensor4<T> dk(y.dk.shape());
  for (Index b = 0; b < x.B; ++b) {
    for (Index h = 0; h < x.H; ++h) {
      LoopHead<T> head{x, fault, b, h};
      head.weigh();
      const auto dp = [&](Index i, Index j) {
        T dot = 0;
        for (Index c = 0; c < x.dv; ++c) {
          dot += d_o[((b * x.H + h) * x.L + i) * x.dv + c] * x.v[head.key(j) * x.dv + c];
        }
        return dot;
      };
      const auto delta = [&](Index i, Index j) {  // over the axis of the softmax
        T sum = 0;
        if (fault == Fault::softmax_over_queries) {
          for (Index n = 0; n < x.L; ++n) {
            if (head.sees(n, j)) sum += head.weight(n, j) * dp(n, j);
          }
        } else if (fault != Fault::delta_forgotten) {
          for (Index n = 0; n < x.S; ++n) {
            if (head.sees(i, n)) sum += head.weight(i, n) * dp(i, n);
          }
        }
        return sum;
      };
      const Index g = head.key_head();
      for (Index i = 0; i < x.L; ++i) {
        const T of_row = fault == Fault::softmax_over_queries ? T(0) : delta(i, 0);
        bool dead = true;
        for (Index j = 0; j < x.S; ++j) {
          if (!head.sees(i, j) && fault != Fault::nan_leak) continue;
          dead = false;
          const T p = head.weight(i, j);
          const T sum = fault == Fault::softmax_over_queries ? delta(i, j) : of_row;
          const T ds = x.scale * p * (dp(i, j) - sum);
          for (Index c = 0; c < x.d; ++c) {
            y.dq(b, h, i, c) += ds * x.k[head.key(j) * x.d + c];
            T& to = dk(b, g, j, c);
            if (fault == Fault::dk_of_last_head && i == 0) to = 0;
            to += ds * head.q(i)[c];
          }
          for (Index c = 0; c < x.dv; ++c) {
            y.dv(b, g, j, c) += p * d_o[((b * x.H + h) * x.L + i) * x.dv + c];
          }
        }
        if (dead && fault == Fault::dead_row_gradient) {
          for (Index c = 0; c < x.d; ++c) y.dq(b, h, i, c) = d_o[0];
        }
      }
    }
  }
  for (Index b = 0; b < x.B; ++b) {
    for (Index g = 0; g < x.G; ++g) {
      for (Index n = 0; n < x.S * x.d; ++n) {
        const bool transposed = fault == Fault::dk_transposed;
        const Index j = transposed ? n % x.S : n / x.d, c = transposed ? n / x.S : n % x.d;
        y.dk(b, g, n / x.d, n % x.d) = dk(b, g, j, c);
      }
    }
  }
}

template <class T>
AttentionKernel<T> loops_kernel(Fault fault) {
  return {.name = "plain loops",
          .forward =
              [fault](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
                loops_forward(attention_arrays(x), fault, y);
              },
          .backward =
              [fault](const AttentionProblem<T>& x, const In<T, 4>& d_o,
                      const AttentionAnswerGradients<T>& y) {
                loops_backward(attention_arrays(x), fault, d_o.data(), y);
              },
          .gives_weights = true};
}

inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline const std::vector<LawShape>& small_shapes() {
  static const std::vector<LawShape> shapes = {{2, 4, 2, 7, 7, 5, 3, true},
                                               {2, 4, 2, 5, 11, 4, 3, true, true},
                                               {2, 2, 1, 8, 5, 4, 6, true},
                                               {1, 1, 1, 65, 67, 3, 2, false, true}};
  return shapes;
}

}  // namespace headwise_tests
