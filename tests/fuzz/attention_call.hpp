// A call of either attention, drawn from bytes: shapes, places, masks, what changes scores,
// options. It is run forward and backward and held against the naive loops of support/oracle.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "fuzz/attention_masks.hpp"
#include "fuzz/attention_scores.hpp"
#include "fuzz/near.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"

namespace headwise_fuzz {

using headwise_tests::oracle_attention;
using headwise_tests::OracleProblem;
using headwise_tests::OracleResult;

/// One extent of one tensor made wrong. The memory behind it stays as it is.
struct Wrong {
  int tensor = -1;  // 0 q, 1 k, 2 v, 3 o, 4 weights or lse, 5 d_o, 6 dq, 7 dk, 8 dv; -1 for none
  int axis = 0;
  Index extent = 0;

  Wrong() = default;
  explicit Wrong(ByteReader& in) {
    constexpr std::array<Index, 8> extents{
        0, -1, 1, 2, 3, 7, Index{1} << 40, std::numeric_limits<Index>::max()};
    if (!in.once_in(4)) return;
    tensor = static_cast<int>(in.between(0, 8));
    axis = static_cast<int>(in.between(0, 3));
    extent = extents[in.byte() % extents.size()];
  }

  template <class View>
  View applied(int which, const View& view) const {
    if (which != tensor) return view;
    Shape<4> shape = view.shape();
    shape[axis] = extent;
    return View(view.data(), shape, view.strides());
  }
};

template <class T>
class AttentionCall {
 public:
  /// with_faults   whether the call may be one that is to be refused
  AttentionCall(ByteReader& in, bool with_faults)
      : tiles_(in.flag()),
        sizes_(draw_sizes(in, with_faults)),
        wrong_(with_faults ? Wrong(in) : Wrong()) {
    const auto [B, H, G, L, S, d, dv] = sizes_;
    const Shape<4> at_q{B, H, L, d}, at_k{B, G, S, d}, at_v{B, G, S, dv}, at_o{B, H, L, dv};
    const T nan = std::numeric_limits<T>::quiet_NaN();
    hides_nan_ = in.flag();
    Numbers numbers(in);
    const auto input = [&](const Shape<4>& shape) {
      Placed<T, 4> x(in, shape, hides_nan_ ? Role::output : Role::input, nan);
      x.set([&] { return numbers.next(); });
      return x;
    };
    const auto output = [&](const Shape<4>& shape) {
      return Placed<T, 4>(in, shape, Role::output, T(777));
    };
    q_ = input(at_q), k_ = input(at_k), v_ = input(at_v), d_o_ = input(at_o);
    o_ = output(at_o), kept_ = output(tiles_ ? Shape<4>{B, H, L, Index{2}} : Shape<4>{B, H, L, S});
    dq_ = output(at_q), dk_ = output(at_k), dv_ = output(at_v);
    masks_.emplace(in, sizes_, with_faults, numbers);
    draw_options(in, with_faults);
    scores_.emplace(in, sizes_, with_faults, numbers);
    if (hides_nan_ && masks_->fits()) put_nan_out_of_sight();
  }

  /// Calls forward and backward, and checks what they do. Both attentions may throw nothing but
  /// ShapeError and ArgumentError.
  void run() {
    std::optional<AttentionOptions<T>> options;
    try {
      options = this->options();
    } catch (const ArgumentError&) {
      check(!masks_->allowed(), "a mask that is allowed is put together");
      return;
    }
    check(masks_->allowed(), "a mask that is not allowed is refused");
    const bool group_divides = sizes_.G == 0 ? sizes_.H == 0 : sizes_.H % sizes_.G == 0;
    const bool fits =
        masks_->fits() && options_are_valid_ && scores_->fits(dropout_) && group_divides;
    if (!attempt(fits && !is_wrong(0, 4), [&] { forward(*options); })) {
      check(o_.untouched() && kept_.untouched(), "a refused forward writes nothing");
      return;
    }
    check(o_.gaps_untouched() && kept_.gaps_untouched(), "forward writes its outputs alone");
    if (!attempt(fits && !is_wrong(0, 8), [&] { backward(*options); })) {
      check(dq_.untouched() && dk_.untouched() && dv_.untouched() && scores_->untouched(),
            "a refused backward writes nothing");
      return;
    }
    check(dq_.gaps_untouched() && dk_.gaps_untouched() && dv_.gaps_untouched() &&
              scores_->gaps_untouched(),
          "backward writes its outputs alone");
    compare();
  }

 private:
  static Sizes draw_sizes(ByteReader& in, bool any_group) {
    Sizes s{};
    s.B = in.between(1, 2) - (in.once_in(16) ? 1 : 0);
    s.G = in.between(1, 2) - (in.once_in(16) ? 1 : 0);
    s.H = any_group && in.once_in(8) ? in.between(0, 3) : s.G * in.between(1, 2);
    s.L = in.between(0, 5), s.S = in.between(0, 5), s.d = in.between(0, 5), s.dv = in.between(0, 5);
    return s;
  }

  void draw_options(ByteReader& in, bool with_faults) {
    constexpr std::array<double, 5> scales{1, 0, -0.5, 0.25, 2};
    if (in.flag()) scale_ = T(scales[in.byte() % scales.size()]);
    const std::array<double, 8> rates{
        0, 0.5, 0.25, 1, 0x1p-18, -0.25, 1.5, std::numeric_limits<double>::quiet_NaN()};
    dropout_.rate = rates[in.byte() % (with_faults ? 8 : 5)];
    dropout_.seed = in.byte(), dropout_.step = in.byte();
    options_are_valid_ = dropout_.rate >= 0 && dropout_.rate <= 1;
  }

  AttentionOptions<T> options() const {
    AttentionOptions<T> options{.mask = masks_->mask(), .scale = scale_, .dropout = dropout_};
    scores_->set(options);
    return options;
  }
  bool visible(Index b, Index h, Index i, Index j) const {
    return masks_->visible(b, h, i, j) && scores_->visible(b, h, i, j);
  }

  /// Whether a tensor numbered first to last, or one that both calls read, is wrong.
  bool is_wrong(int first, int last) const {
    if (wrong_.tensor < first || wrong_.tensor > last) return false;
    const std::array<const Placed<T, 4>*, 9> tensors{&q_,   &k_,  &v_,  &o_, &kept_,
                                                     &d_o_, &dq_, &dk_, &dv_};
    return tensors[static_cast<std::size_t>(wrong_.tensor)]->view().extent(wrong_.axis) !=
           wrong_.extent;
  }

  /// Whether f did not throw; it has to where `allowed`, and must not elsewhere.
  template <class F>
  bool attempt(bool allowed, F&& f) {
    bool refused = false;
    try {
      f();
    } catch (const ShapeError&) {
      refused = true;
    } catch (const ArgumentError&) {
      refused = true;
    }
    check(refused != allowed,
          allowed ? "a call that fits is not refused" : "a call that does not fit is refused");
    return !refused;
  }

  void forward(const AttentionOptions<T>& options) {
    const In<T, 4> q = wrong_.applied(0, q_.view()), k = wrong_.applied(1, k_.view()),
                   v = wrong_.applied(2, v_.view());
    const auto o = wrong_.applied(3, o_.view()), kept = wrong_.applied(4, kept_.view());
    if (tiles_) {
      flash_attention_forward<T>(q, k, v, options, o, kept);
    } else {
      attention_forward<T>(q, k, v, options, kept, o);
    }
  }

  void backward(const AttentionOptions<T>& options) {
    const AttentionInputs<T> inputs{q_.view(), k_.view(), v_.view()};
    const AttentionGradients<T> gradients{wrong_.applied(6, dq_.view()),
                                          wrong_.applied(7, dk_.view()),
                                          wrong_.applied(8, dv_.view()), scores_->gradients()};
    const In<T, 4> d_o = wrong_.applied(5, d_o_.view());
    if (tiles_) {
      flash_attention_backward<T>(d_o, inputs, o_.view(), kept_.view(), options, gradients);
    } else {
      attention_backward<T>(d_o, inputs, kept_.view(), options, gradients);
    }
  }

  /// NaN in every key and value that no query sees, and in every query that sees no key.
  void put_nan_out_of_sight() {
    const auto [B, H, G, L, S, d, dv] = sizes_;
    if (G == 0 || H % G != 0) return;
    std::vector<char> sees(static_cast<std::size_t>(B * H * L)),
        seen(static_cast<std::size_t>(B * G * S));
    for_each_index(Shape<4>{B, H, L, S}, [&](const Shape<4>& at) {
      if (!visible(at[0], at[1], at[2], at[3])) return;
      const Index g = at[1] / (sizes_.H / sizes_.G);
      sees[static_cast<std::size_t>((at[0] * sizes_.H + at[1]) * sizes_.L + at[2])] = 1;
      seen[static_cast<std::size_t>((at[0] * sizes_.G + g) * sizes_.S + at[3])] = 1;
    });
    const auto poison = [](const Placed<T, 4>& x, const std::vector<char>& used) {
      const auto view = x.view();
      for_each_index(view.shape(), [&](const Shape<4>& at) {
        const Index row = (at[0] * view.extent(1) + at[1]) * view.extent(2) + at[2];
        if (used[static_cast<std::size_t>(row)] == 0)
          view(at) = std::numeric_limits<T>::quiet_NaN();
      });
    };
    poison(q_, sees), poison(k_, seen), poison(v_, seen);
  }

  static Real greatest(const Field& x) {
    Real greatest = 0;
    for (const Real value : x.values) greatest = std::max(greatest, std::abs(value));
    return greatest;
  }
  /// Sums of `terms` behind an element.
  static void allow(Field& x, Real terms) {
    if (!x.values.empty()) x.add(0, 0, terms);
  }

  /// What a weight of 1 adds to any result at most. Weights below the least normal number count as
  /// 0, and what flows into a score does below 1 / epsilon of it: so much of either is then
  /// missing.
  Real least_terms(const OracleProblem& x) const {
    Real terms = static_cast<Real>(sizes_.B * sizes_.H * sizes_.L * sizes_.S) * scores_->size() *
                 (1 + std::abs(x.scale));
    for (const Field* field : {&x.q, &x.k, &x.v, &x.d_o}) terms *= 1 + greatest(*field);
    return terms;
  }

  void compare() {
    OracleProblem problem;
    problem.sizes = sizes_;
    problem.q = field_of<T, 4>(q_.view()), problem.k = field_of<T, 4>(k_.view());
    problem.v = field_of<T, 4>(v_.view()), problem.d_o = field_of<T, 4>(d_o_.view());
    problem.scale =
        scale_ ? Real{*scale_} : 1 / std::sqrt(static_cast<Real>(std::max(sizes_.d, Index{1})));
    problem.visible = [this](Index b, Index h, Index i, Index j) { return visible(b, h, i, j); };
    problem.bias = [this](Index b, Index h, Index i, Index j) { return masks_->bias(b, h, i, j); };
    problem.change = [&](Index b, Index h, Index i, Index j, Real s) {
      return scores_->change(b, h, i, j, s, problem.bias(b, h, i, j));
    };
    problem.sink = scores_->sink();
    const DropoutMask dropped(dropout_, DropoutStream::weights);
    if (dropout_.active()) {
      problem.factor = [&](Index b, Index h, Index i, Index j) {
        const Position& origin = scores_->origin();
        return dropped.kept(origin.batch + b, origin.head + h, i, j) ? 1 / (1 - Real{dropout_.rate})
                                                                     : Real{0};
      };
    }
    OracleResult expected = oracle_attention(problem);
    if (scores_->caps()) {
      // A cap's slope is 1 - tanh^2: where that is next to nothing its error is a unit of 1.
      const Real flow = expected.flow.size() * std::abs(problem.scale) * scores_->size();
      allow(expected.dq, flow * greatest(problem.k)),
          allow(expected.dk, flow * greatest(problem.q));
    }
    const Real slack = 64 * (1 + expected.condition) * scores_->size();
    constexpr Real normal = std::numeric_limits<T>::min();
    const Real terms = least_terms(problem);
    const Real weighed = std::max(Real{1}, left_out<T>(expected.weights) / normal);
    const Real sums_of_weights = terms * weighed;
    const Real flows = std::max(sums_of_weights, terms / Real{std::numeric_limits<T>::epsilon()});
    const auto hold = [&]<int R>(TensorView<T, R> got, const Field& sums, Real least,
                                 const char* what) {
      check(near<T, R>(got, sums, slack, least), what);
    };
    hold(o_.view(), expected.o, sums_of_weights, "o is the naive loops'");
    hold(dq_.view(), expected.dq, flows, "dq is the naive loops'");
    hold(dk_.view(), expected.dk, flows, "dk is the naive loops'");
    hold(dv_.view(), expected.dv, sums_of_weights, "dv is the naive loops'");
    scores_->compare(expected, problem.scale, problem.bias, [&](auto got, const Field& sums) {
      hold(got, sums, flows, "gradients of what changes scores are the naive loops'");
    });
    if (tiles_) {
      hold(slice(kept_.view(), 3, 0, 1), expected.lse, 1, "lse is the naive loops'");
    } else {
      hold(kept_.view(), expected.weights, weighed, "weights are the naive loops'");
    }
  }

  bool tiles_;
  Sizes sizes_;
  Wrong wrong_;
  Placed<T, 4> q_, k_, v_, d_o_, o_, kept_, dq_, dk_, dv_;
  std::optional<AttentionMasks<T>> masks_;
  std::optional<AttentionScores<T>> scores_;
  std::optional<T> scale_;
  Dropout dropout_;
  bool hides_nan_ = false, options_are_valid_ = true;
};

}  // namespace headwise_fuzz
