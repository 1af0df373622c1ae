#include "headwise/testing/laws.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "support/catch.hpp"

using namespace headwise;

namespace {

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

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const std::vector<LawShape>& small_shapes() {
  static const std::vector<LawShape> shapes = {{2, 4, 2, 7, 7, 5, 3, true},
                                               {2, 4, 2, 5, 11, 4, 3, true, true},
                                               {2, 2, 1, 8, 5, 4, 6, true},
                                               {1, 1, 1, 65, 67, 3, 2, false, true}};
  return shapes;
}

}  // namespace

TEMPLATE_TEST_CASE("both paths of this library keep every law of attention", "[testing]", float,
                   double) {
  const auto materialized = run_laws(materialized_kernel<TestType>());
  CAPTURE(materialized.format());
  CHECK(materialized);
  for (const auto& row : materialized.rows) {
    CAPTURE(row.law);
    CHECK(row.shapes > 0);
    CHECK(row.worst.status == LawStatus::pass);
  }
  const auto flash = run_laws(flash_kernel<TestType>());
  CAPTURE(flash.format());
  CHECK(flash);
  CHECK(flash["weights sum to 1 over keys"].worst.status == LawStatus::not_applicable);
}

TEMPLATE_TEST_CASE("plain loops without a fault keep every law of attention", "[testing]", float,
                   double) {
  const auto card = run_laws(loops_kernel<TestType>(Fault::none));
  CAPTURE(card.format());
  CHECK(card);
}

TEMPLATE_TEST_CASE("a planted fault of attention is caught by the law that names it", "[testing]",
                   float, double) {
  struct Plant {
    Fault fault;
    std::string law;
  };
  const auto plant = GENERATE(values<Plant>({
      {Fault::softmax_over_queries, "equal values come out as they are"},
      {Fault::softmax_over_queries, "weights sum to 1 over keys"},
      {Fault::softmax_over_queries, "agrees with plain loops"},
      {Fault::causal_off_by_one, "the future changes no bit"},
      {Fault::causal_off_by_one, "agrees with plain loops"},
      {Fault::causal_top_left, "agrees with plain loops"},
      {Fault::causal_top_left, "a chunk as in the whole, to rounding"},
      {Fault::scale_forgotten, "agrees with plain loops"},
      {Fault::wrong_group, "grouped heads are repeated heads"},
      {Fault::last_key_dropped, "agrees with plain loops"},
      {Fault::last_key_dropped, "the order of keys is nothing"},
      {Fault::last_key_dropped, "what is seen shows"},
      {Fault::nan_leak, "what is hidden changes no bit"},
      {Fault::nan_leak, "what is hidden moves no gradient"},
      {Fault::nan_swallowed, "what is seen shows"},
      {Fault::no_maximum, "a shift of all scores is nothing"},
      {Fault::dead_row_uniform, "a query that sees nothing gets 0"},
      {Fault::bits_of_the_batch, "alone as in a batch, same bits"},
      {Fault::bits_of_the_length, "a chunk as in the whole, same bits"},
      {Fault::delta_forgotten, "backward is forward's adjoint"},
      {Fault::delta_forgotten, "gradients agree with plain loops"},
      {Fault::dk_transposed, "backward is forward's adjoint"},
      {Fault::dk_transposed, "gradients agree with plain loops"},
      {Fault::dk_of_last_head, "backward is forward's adjoint"},
      {Fault::dead_row_gradient, "a query that sees nothing gives 0"},
      {Fault::output_left, "agrees with plain loops"},
      {Fault::throws, "agrees with plain loops"},
  }));
  const auto card = run_laws(loops_kernel<TestType>(plant.fault), {.shapes = small_shapes()});
  CAPTURE(plant.law, card.format());
  CHECK_FALSE(card);
  CHECK(contains(card.failed(), plant.law));
}

TEST_CASE("a softmax over queries with its own right gradient passes the adjoint law",
          "[testing]") {
  const auto card = run_laws(loops_kernel<double>(Fault::softmax_over_queries),
                             {.shapes = {{1, 2, 1, 5, 7, 3, 2}}});
  CAPTURE(card.format());
  CHECK_FALSE(contains(card.failed(), "backward is forward's adjoint"));
  CHECK(card["equal values come out as they are"].worst.status == LawStatus::fail);
}

TEST_CASE("what only bits tell passes the laws to rounding", "[testing]") {
  const auto batch = run_laws(loops_kernel<float>(Fault::bits_of_the_batch));
  CHECK(batch.failed() == std::vector<std::string>{"alone as in a batch, same bits"});
  const auto length = run_laws(loops_kernel<float>(Fault::bits_of_the_length));
  CHECK(length.failed() == std::vector<std::string>{"a chunk as in the whole, same bits"});
}

TEST_CASE("a law that fails says the worst number, where and on which shape", "[testing]") {
  const auto card = run_laws(loops_kernel<double>(Fault::dead_row_uniform),
                             {.shapes = {{1, 1, 1, 3, 3, 2, 2}, {1, 1, 1, 3, 2, 2, 2, true}}});
  const auto& row = card["a query that sees nothing gets 0"];
  CHECK(row.shapes == 1);
  CHECK(row.failures == 1);
  CHECK(row.shape.format() == "B1 H1 G1 L3 S2 d2 dv2 causal");
  CHECK(row.worst.tensor == "o");
  CHECK(row.worst.worst.index == std::vector<Index>{0, 0, 0, 0});
  CHECK_THAT(row.worst.message(), ContainsSubstring("o[0, 0, 0, 0] is "));
  CHECK_THAT(row.worst.message(), ContainsSubstring(", expected 0, error "));
  CHECK_THROWS_AS(card["no such law"], ArgumentError);
}

TEST_CASE("score_card prints a line a law and returns how many failed", "[testing]") {
  const ScoreCardOptions options{.shapes = {{1, 2, 1, 8, 5, 4, 6, true}}};
  std::ostringstream good, bad;
  CHECK(score_card(good, loops_kernel<float>(Fault::none), options) == 0);
  CHECK_THAT(good.str(), ContainsSubstring("every law that applies holds"));
  for (const auto& law : attention_laws<float>())
    CHECK_THAT(good.str(), ContainsSubstring(law.name));
  CHECK(score_card(bad, loops_kernel<float>(Fault::throws), options) ==
        static_cast<int>(attention_laws<float>().size()));
  CHECK_THAT(bad.str(), ContainsSubstring("threw: more queries than keys"));
}

TEST_CASE("a kernel is not given what it does not take", "[testing]") {
  auto kernel = loops_kernel<double>(Fault::none);
  kernel.backward = {};
  kernel.gives_weights = kernel.takes_causal = kernel.takes_keep = false;
  kernel.takes_groups = kernel.takes_scale = false;
  const auto inner = kernel.forward;
  kernel.forward = [inner](const AttentionProblem<double>& x, const AttentionAnswer<double>& y) {
    REQUIRE(!x.causal);
    REQUIRE(x.keep.absent());
    REQUIRE(y.weights.absent());
    REQUIRE(x.q.extent(1) == x.k.extent(1));
    REQUIRE(x.scale == 1 / std::sqrt(static_cast<double>(x.q.extent(3))));
    inner(x, y);
  };
  const auto card = run_laws(kernel);
  CAPTURE(card.format());
  CHECK(card);
  CHECK(card["agrees with plain loops"].shapes == 3);
  CHECK(card["the future changes no bit"].shapes == 0);
  CHECK(card["backward is forward's adjoint"].shapes == 0);
}

TEMPLATE_TEST_CASE("a pair of plain functions over arrays is a kernel", "[testing]", float,
                   double) {
  using T = TestType;
  const auto kernel = attention_kernel<T>(
      "functions",
      [](const AttentionArrays<T>* x, T* o) {
        loops_forward<T>(*x, Fault::none, {{o, Shape{x->B, x->H, x->L, x->dv}}, {}});
      },
      [](const AttentionArrays<T>* x, const T* d_o, T* dq, T* dk, T* dv) {
        loops_backward<T>(*x, Fault::none, d_o,
                          {{dq, Shape{x->B, x->H, x->L, x->d}},
                           {dk, Shape{x->B, x->G, x->S, x->d}},
                           {dv, Shape{x->B, x->G, x->S, x->dv}}});
      });
  const auto card = run_laws(kernel, {.shapes = small_shapes()});
  CAPTURE(card.format());
  CHECK(card);
  CHECK(card["gradients agree with plain loops"].shapes == 4);
}

TEST_CASE("a law of one's own is run beside others", "[testing]") {
  const std::vector<AttentionLaw<float>> laws = {
      {"o is never negative", "it is, for normal values", [](const LawTrial<float>& trial) {
         LawResult result;
         auto negative = trial.answer().o;
         for (float& x : negative) x = std::min(x, 0.0f);
         add_finding(result, "o", all_zero(In<float, 4>(negative)));
         return result;
       }}};
  const auto card = run_laws(flash_kernel<float>(), {.shapes = small_shapes()}, laws);
  CHECK(card.failed() == std::vector<std::string>{"o is never negative"});
}

TEST_CASE("run_laws refuses shapes without elements, heads that do not divide, no forward",
          "[testing]") {
  const auto kernel = flash_kernel<float>();
  CHECK_THROWS_AS(run_laws(kernel, {.shapes = {{1, 1, 1, 0, 1, 1, 1}}}), ArgumentError);
  CHECK_THROWS_AS(run_laws(kernel, {.shapes = {{1, 3, 2, 1, 1, 1, 1}}}), ArgumentError);
  CHECK_THROWS_AS(run_laws(AttentionKernel<float>{}), ArgumentError);
}
