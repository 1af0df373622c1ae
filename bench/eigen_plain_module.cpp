// Compiled with -O3 -march=native where the compiler has it: Eigen vectorises for what the compiler
// is told and nothing more. Eigen's namespace has another name here, so that the linker cannot mix
// these functions with the ones of files that are compiled for every machine.
#define Eigen headwise_bench_native_eigen
#include "eigen_plain_module.hpp"

#include <Eigen/Core>
#include <cmath>
#include <vector>

namespace headwise::bench {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowVector = Eigen::Matrix<float, 1, Eigen::Dynamic>;
using Input = Eigen::Map<const Matrix>;
using Output = Eigen::Map<Matrix>;

}  // namespace

struct EigenPlainModule::State {
  EigenPlainParameters p;
  Eigen::Index d, width;
  float scale;
  Input w_qkv, w_o;
  Eigen::Map<const RowVector> b_qkv, b_o;
  Matrix qkv, context, d_qkv, d_context, dp;
  std::vector<Matrix> weights;  // [L, L] for each batch element and head
  Matrix d_w_qkv, d_w_o;
  RowVector d_b_qkv, d_b_o;

  explicit State(const EigenPlainParameters& parameters)
      : p(parameters),
        d(p.D / p.H),
        width((p.H + 2 * p.G) * d),
        scale(1.0f / std::sqrt(static_cast<float>(d))),
        w_qkv(p.w_qkv, p.D, width),
        w_o(p.w_o, p.D, p.D),
        b_qkv(p.b_qkv, width),
        b_o(p.b_o, p.D),
        qkv(p.B * p.L, width),
        context(p.B * p.L, p.D),
        d_qkv(p.B * p.L, width),
        d_context(p.B * p.L, p.D),
        dp(p.L, p.L),
        weights(static_cast<std::size_t>(p.B * p.H), Matrix(p.L, p.L)),
        d_w_qkv(Matrix::Zero(p.D, width)),
        d_w_o(Matrix::Zero(p.D, p.D)),
        d_b_qkv(RowVector::Zero(width)),
        d_b_o(RowVector::Zero(p.D)) {}

  // Columns of a head's query, key and value; H / G query heads share the latter two.
  Eigen::Index q_at(Eigen::Index h) const { return h * d; }
  Eigen::Index k_at(Eigen::Index h) const { return (p.H + h / (p.H / p.G)) * d; }
  Eigen::Index v_at(Eigen::Index h) const { return k_at(h) + p.G * d; }
  Matrix& weights_of(Eigen::Index b, Eigen::Index h) {
    return weights[static_cast<std::size_t>(b * p.H + h)];
  }
};

EigenPlainModule::EigenPlainModule(const EigenPlainParameters& parameters)
    : state_(std::make_unique<State>(parameters)) {}
EigenPlainModule::~EigenPlainModule() = default;

void EigenPlainModule::forward(const float* x_data, float* y_data) {
  State& s = *state_;
  const auto& p = s.p;
  const Input x(x_data, p.B * p.L, p.D);
  Output y(y_data, p.B * p.L, p.D);
  s.qkv.noalias() = x * s.w_qkv;
  s.qkv.rowwise() += s.b_qkv;
  for (Eigen::Index b = 0; b < p.B; ++b) {
    for (Eigen::Index h = 0; h < p.H; ++h) {
      const auto q = s.qkv.block(b * p.L, s.q_at(h), p.L, s.d);
      const auto k = s.qkv.block(b * p.L, s.k_at(h), p.L, s.d);
      const auto v = s.qkv.block(b * p.L, s.v_at(h), p.L, s.d);
      Matrix& weights = s.weights_of(b, h);
      weights.noalias() = q * k.transpose();
      for (Eigen::Index i = 0; i < p.L; ++i) {
        const Eigen::Index seen = p.is_causal ? i + 1 : p.L;
        auto row = weights.row(i).head(seen).array();
        row = ((row - row.maxCoeff()) * s.scale).exp();
        row *= 1.0f / row.sum();
        weights.row(i).tail(p.L - seen).setZero();
      }
      s.context.block(b * p.L, s.q_at(h), p.L, s.d).noalias() = weights * v;
    }
  }
  y.noalias() = s.context * s.w_o;
  y.rowwise() += s.b_o;
}

void EigenPlainModule::backward(const float* x_data, const float* dy_data, float* dx_data) {
  State& s = *state_;
  const auto& p = s.p;
  const Input x(x_data, p.B * p.L, p.D), dy(dy_data, p.B * p.L, p.D);
  Output dx(dx_data, p.B * p.L, p.D);
  s.d_w_o.noalias() += s.context.transpose() * dy;
  s.d_b_o += dy.colwise().sum();
  s.d_context.noalias() = dy * s.w_o.transpose();
  if (p.G != p.H) s.d_qkv.setZero();
  for (Eigen::Index b = 0; b < p.B; ++b) {
    for (Eigen::Index h = 0; h < p.H; ++h) {
      const auto q = s.qkv.block(b * p.L, s.q_at(h), p.L, s.d);
      const auto k = s.qkv.block(b * p.L, s.k_at(h), p.L, s.d);
      const auto v = s.qkv.block(b * p.L, s.v_at(h), p.L, s.d);
      auto dq = s.d_qkv.block(b * p.L, s.q_at(h), p.L, s.d);
      auto dk = s.d_qkv.block(b * p.L, s.k_at(h), p.L, s.d);
      auto dv = s.d_qkv.block(b * p.L, s.v_at(h), p.L, s.d);
      const auto d_o = s.d_context.block(b * p.L, s.q_at(h), p.L, s.d);
      const Matrix& weights = s.weights_of(b, h);
      s.dp.noalias() = d_o * v.transpose();
      for (Eigen::Index i = 0; i < p.L; ++i) {
        const auto w = weights.row(i).array();
        auto row = s.dp.row(i).array();
        const float along = (row * w).sum();
        row = w * (row - along) * s.scale;
      }
      dq.noalias() = s.dp * k;
      if (p.G == p.H) {
        dv.noalias() = weights.transpose() * d_o;
        dk.noalias() = s.dp.transpose() * q;
      } else {
        dv.noalias() += weights.transpose() * d_o;
        dk.noalias() += s.dp.transpose() * q;
      }
    }
  }
  s.d_w_qkv.noalias() += x.transpose() * s.d_qkv;
  s.d_b_qkv += s.d_qkv.colwise().sum();
  dx.noalias() = s.d_qkv * s.w_qkv.transpose();
}

const float* EigenPlainModule::d_w_qkv() const { return state_->d_w_qkv.data(); }
const float* EigenPlainModule::d_w_o() const { return state_->d_w_o.data(); }

}  // namespace headwise::bench
