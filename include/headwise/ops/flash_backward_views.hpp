// What flash attention reads and overwrites on its way back, and the rules that it keeps: of a
// batch, where R is 4, and of packed sequences, where it is 3.
#pragma once

#include "headwise/ops/score_gradients.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What forward left: [B, H, L, dv] and [B, H, L, 2].
template <class T, class U = T>
struct FlashResults {
  In<U, 4> o;
  In<T, 4> lse;
};

/// [B, H, L, width] of queries and [B, G, S, width] of keys, or [N, H, width] and [M, G, width].
template <class T, int R, class U = T>
struct FlashBackwardViews {
  In<U, R> d_o;      // of queries, dv wide
  In<U, R> q, k, v;  // inputs of forward, which are checked before
  In<U, R> o;        // of queries, dv wide: what forward left
  In<T, R> lse;      // 2 wide, likewise
  Out<U, R> dq, dk, dv;
  In<Index, 1> query_starts = {}, key_starts = {};  // [sequences + 1] of packed ones
};

/// Throws ShapeError unless what forward left and all gradients have their shapes, and what is
/// written shares memory with nothing else; of dq, dk and dv with starts, that is their caller's to
/// check. Fresh gradients of what changes scores were made in the shapes of that, as well.
template <class T, int R, class U, OutputMemory memory>
void require_flash_backward(std::string_view function, const FlashBackwardViews<T, R, U>& x,
                            const AttentionOptions<T>& options, const ScoreGradients<T>& score) {
  const auto of_queries = [&](Index width) {
    Shape<R> shape = x.q.shape();
    shape[R - 1] = width;
    return shape;
  };
  const Shape<R> of_o = of_queries(x.v.extent(R - 1));
  require_shape(function, "d_o", x.d_o, of_o, "q, head width of v");
  require_shape(function, "o", x.o, of_o, "q, head width of v");
  require_shape(function, "lse", x.lse, of_queries(2), "two numbers a query of q");
  require_shape(function, "dq", x.dq, x.q.shape(), "the shape of q");
  require_shape(function, "dk", x.dk, x.k.shape(), "the shape of k");
  require_shape(function, "dv", x.dv, x.v.shape(), "the shape of v");
  if constexpr (memory == OutputMemory::fresh) return;
  require_outputs_apart(
      function, {{"dq", x.dq}, {"dk", x.dk}, {"dv", x.dv}},
      {{"d_o", x.d_o}, {"q", x.q}, {"k", x.k}, {"v", x.v}, {"o", x.o}, {"lse", x.lse}});
  require_apart_from_options<T>(function, {"dq", x.dq}, options);
  require_apart_from_options<T>(function, {"dk", x.dk}, options);
  require_apart_from_options<T>(function, {"dv", x.dv}, options);
  if (!score.any()) return;
  require_score_gradients<T>(function, score, options,
                             {{"d_o", x.d_o},
                              {"q", x.q},
                              {"k", x.k},
                              {"v", x.v},
                              {"o", x.o},
                              {"lse", x.lse},
                              {"dq", x.dq},
                              {"dk", x.dk},
                              {"dv", x.dv},
                              {"query_starts", x.query_starts},
                              {"key_starts", x.key_starts}});
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
