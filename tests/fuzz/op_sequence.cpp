// Fuzz target: ops one behind the other on small matrices at awkward places, forward and backward,
// each held against naive loops in long double. What one op returns is the next one's input.
#include <cmath>

#include "fuzz/attention_call.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/softmax.hpp"

namespace headwise_fuzz {
namespace {

constexpr Real slack = 128;

template <class T>
class Sequence {
 public:
  explicit Sequence(ByteReader& in) : in_(in), numbers_(in) {
    const Index N = in.between(0, 6);
    const Index M = in.between(0, 9);
    x_ = matrix(N, M);
  }

  void run() {
    constexpr int most = 4;
    for (int n = 0; n < most; ++n) {
      switch (in_.byte() % 6) {
        case 1:
          linear();
          break;
        case 2:
          softmax();
          break;
        case 3:
          layer_norm();
          break;
        case 4:
          dropout();
          break;
        case 5:
          AttentionCall<T>(in_, false).run();
          break;
        default:
          if (in_.empty()) return;
          break;
      }
    }
  }

 private:
  using Matrix = Placed<T, 2>;
  using Row = Placed<T, 1>;

  Matrix matrix(Index N, Index M) { return input(Shape<2>{N, M}); }

  template <int R>
  Placed<T, R> input(const Shape<R>& shape) {
    Placed<T, R> x(in_, shape, Role::input, std::numeric_limits<T>::quiet_NaN());
    x.set([this] { return numbers_.next(); });
    return x;
  }
  template <int R>
  Placed<T, R> output(const Shape<R>& shape) {
    return Placed<T, R>(in_, shape, Role::output, T(777));
  }
  /// An output that is added to, from 0.25.
  template <int R>
  Placed<T, R> sum(const Shape<R>& shape) {
    auto x = output(shape);
    x.set([] { return 0.25; });
    return x;
  }

  Index rows() const { return x_.view().extent(0); }
  Index columns() const { return x_.view().extent(1); }
  Real x(Index n, Index m) const { return Real{x_.view()(n, m)}; }

  template <int R>
  void compare(const Placed<T, R>& got, const Field& expected, const char* what) {
    check(got.gaps_untouched(), "an op writes its outputs alone");
    check(near<T, R>(got.view(), expected, slack), what);
  }

  void linear() {
    const Index N = rows(), I = columns(), O = in_.between(0, 9);
    const auto w = matrix(I, O), dy = matrix(N, O);
    const Row b = input(Shape<1>{O});
    auto y = output(Shape<2>{N, O}), dx = output(Shape<2>{N, I});
    auto dw = sum(Shape<2>{I, O});
    auto db = sum(Shape<1>{O});
    linear_forward<T>(x_.view(), w.view(), b.view(), y.view());
    linear_backward<T>(dy.view(), x_.view(), w.view(), dx.view(), dw.view(), db.view());
    Field y_n(N * O), dx_n(N * I), dw_n(I * O), db_n(O);
    const auto add = [](Field& to, Index at, Real term) { to.add(at, term, std::abs(term)); };
    for (Index o = 0; o < O; ++o) {
      add(db_n, o, 0.25L);
      for (Index i = 0; i < I; ++i) add(dw_n, i * O + o, 0.25L);
      for (Index n = 0; n < N; ++n) {
        const Real d = Real{dy.view()(n, o)};
        add(y_n, n * O + o, Real{b.view()(o)});
        add(db_n, o, d);
        for (Index i = 0; i < I; ++i) {
          add(y_n, n * O + o, x(n, i) * Real{w.view()(i, o)});
          add(dx_n, n * I + i, d * Real{w.view()(i, o)});
          add(dw_n, i * O + o, x(n, i) * d);
        }
      }
    }
    compare(y, y_n, "linear_forward is the sums");
    compare(dx, dx_n, "linear_backward's dx is the sums");
    compare(dw, dw_n, "linear_backward's dw is the sums");
    compare(db, db_n, "linear_backward's db is the sums");
    x_ = std::move(y);
  }

  void softmax() {
    const Index N = rows(), M = columns();
    auto p = output(Shape<2>{N, M}), dx = output(Shape<2>{N, M});
    const auto dp = matrix(N, M);
    softmax_forward<T>(x_.view(), p.view());
    softmax_backward<T>(dp.view(), p.view(), dx.view());
    Field p_n(N * M), dx_n(N * M);
    for (Index n = 0; n < N; ++n) {
      Real greatest = -std::numeric_limits<Real>::infinity(), mass = 0, dot = 0, dots = 0, far = 1;
      for (Index m = 0; m < M; ++m) greatest = std::max(greatest, x(n, m));
      for (Index m = 0; m < M; ++m) {
        mass += std::exp(x(n, m) - greatest);
        far = std::max(far, greatest - x(n, m));
        const Real term = Real{dp.view()(n, m)} * Real{p.view()(n, m)};
        dot += term, dots += std::abs(term);
      }
      for (Index m = 0; m < M; ++m) {
        const Real prob = Real{p.view()(n, m)}, d = Real{dp.view()(n, m)};
        p_n.add(n * M + m, std::exp(x(n, m) - greatest) / mass, far);
        dx_n.add(n * M + m, prob * (d - dot), prob * (std::abs(d) + dots));
      }
    }
    compare(p, p_n, "softmax_forward is e^x over its sum");
    compare(dx, dx_n, "softmax_backward is p (dp - sum)");
    x_ = std::move(p);
  }

  void layer_norm() {
    const Index N = rows(), D = columns();
    const T epsilon = T(1e-3);
    const bool affine = in_.flag();
    const Row gamma = affine ? input(Shape<1>{D}) : Row(),
              beta = affine ? input(Shape<1>{D}) : Row();
    const auto dy = matrix(N, D);
    auto y = output(Shape<2>{N, D}), dx = output(Shape<2>{N, D});
    auto mean = output(Shape<1>{N}), rstd = output(Shape<1>{N});
    auto dgamma = affine ? sum(Shape<1>{D}) : Row(), dbeta = affine ? sum(Shape<1>{D}) : Row();
    layer_norm_forward<T>(x_.view(), {gamma.view(), beta.view()}, epsilon, y.view(),
                          {mean.view(), rstd.view()});
    layer_norm_backward<T>(dy.view(), x_.view(), gamma.view(), {mean.view(), rstd.view()},
                           dx.view(), {dgamma.view(), dbeta.view()});
    Field y_n(N * D), dx_n(N * D), dgamma_n(affine ? D : 0), dbeta_n(affine ? D : 0);
    for (Index c = 0; affine && c < D; ++c) {
      dgamma_n.add(c, 0.25L, 1), dbeta_n.add(c, 0.25L, 1);
    }
    for (Index n = 0; n < N && D != 0; ++n) {
      const Real width = static_cast<Real>(D);
      Real m = 0, variance = 0, largest = 1;
      for (Index c = 0; c < D; ++c) {
        m += x(n, c) / width;
        largest = std::max(largest, std::abs(x(n, c)));
      }
      for (Index c = 0; c < D; ++c) variance += (x(n, c) - m) * (x(n, c) - m) / width;
      const Real r = 1 / std::sqrt(variance + Real{epsilon});
      const auto g = [&](Index c) {
        return Real{dy.view()(n, c)} * (affine ? Real{gamma.view()(c)} : 1);
      };
      Real sum_g = 0, sum_gx = 0, sizes = 0;
      for (Index c = 0; c < D; ++c) {
        const Real xhat = (x(n, c) - m) * r;
        sum_g += g(c) / width, sum_gx += g(c) * xhat / width;
        sizes += std::abs(g(c)) * (1 + std::abs(xhat));
      }
      // A sum of rounded numbers of size `largest` is off by as many epsilons, and r enlarges that.
      const Real off = largest * r;
      for (Index c = 0; c < D; ++c) {
        const Real xhat = (x(n, c) - m) * r, scale = affine ? Real{gamma.view()(c)} : 1;
        const Real shift = affine ? Real{beta.view()(c)} : 0;
        y_n.add(n * D + c, xhat * scale + shift, off * std::abs(scale) + std::abs(shift));
        dx_n.add(n * D + c, r * (g(c) - sum_g - xhat * sum_gx), r * off * (1 + off) * sizes);
        if (!affine) continue;
        const Real d = Real{dy.view()(n, c)};
        dgamma_n.add(c, d * xhat, std::abs(d) * off);
        dbeta_n.add(c, d, std::abs(d));
      }
    }
    compare(y, y_n, "layer_norm_forward is (x - mean) / deviation");
    compare(dx, dx_n, "layer_norm_backward's dx is the formula's");
    if (affine) {
      compare(dgamma, dgamma_n, "layer_norm_backward's dgamma is the sums");
      compare(dbeta, dbeta_n, "layer_norm_backward's dbeta is the sums");
    }
    x_ = std::move(y);
  }

  /// Which elements are kept is dropout's own affair; that backward keeps the same is checked, and
  /// what becomes of them.
  void dropout() {
    constexpr std::array<double, 4> rates{0, 0.5, 0.25, 1};
    const Dropout dropout{
        .rate = rates[in_.byte() % rates.size()], .seed = in_.byte(), .step = in_.byte()};
    const Index N = rows(), M = columns();
    auto y = output(Shape<2>{N, M}), kept = output(Shape<2>{N, M});
    Matrix ones = matrix(N, M);
    ones.set([] { return 1; });
    dropout_forward<T>(x_.view(), dropout, y.view());
    dropout_backward<T>(ones.view(), dropout, kept.view());
    const Real factor = 1 / (1 - Real{dropout.rate});
    Field y_n(N * M), kept_n(N * M);
    for (Index n = 0; n < N; ++n) {
      for (Index m = 0; m < M; ++m) {
        const bool is_kept = kept.view()(n, m) != 0;
        check(is_kept ? dropout.rate < 1 : dropout.rate > 0, "rate 0 keeps all, rate 1 nothing");
        const Real f = is_kept ? factor : 0;
        kept_n.add(n * M + m, f, f);
        y_n.add(n * M + m, f * x(n, m), std::abs(f * x(n, m)));
      }
    }
    compare(kept, kept_n, "what dropout keeps is multiplied by 1 / (1 - rate)");
    compare(y, y_n, "dropout's forward and backward keep the same elements");
    x_ = std::move(y);
  }

  ByteReader& in_;
  Numbers numbers_;
  Matrix x_;
};

}  // namespace
}  // namespace headwise_fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise_fuzz;
  ByteReader in(data, size);
  if (in.flag()) {
    Sequence<float>(in).run();
  } else {
    Sequence<double>(in).run();
  }
  return 0;
}
