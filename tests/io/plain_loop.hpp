// Causal self-attention as a plain loop in float, and how far off its numbers are: the measure
// where float itself is what limits a comparison. It knows no other mask and no options.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "headwise/io/reference_case.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

/// A plain loop in float for causal self-attention, forward and backward, every sum from left to
/// right: what float can be expected to give. Nothing of the library's arithmetic is in it.
struct PlainLoop {
  using Vector = std::vector<float>;

  std::size_t B, L, D, H;
  Vector x, w, b, w_o, b_o, dy;          // [B, L, D], [3 D, D], [3 D], [D, D], [D], [B, L, D]
  Vector qkv, p, context, y;             // [B, L, 3 D], [B, H, L, L], [B, L, D], [B, L, D]
  Vector dx, dw, db, dw_o, db_o, d_qkv;  // as what they are gradients of
  float scale;

  explicit PlainLoop(const ReferenceCase& c) {
    const auto& shape = c.file.shape("query");
    B = static_cast<std::size_t>(shape[0]);
    L = static_cast<std::size_t>(shape[1]);
    D = static_cast<std::size_t>(shape[2]);
    H = static_cast<std::size_t>(c.num_heads);
    scale = 1 / std::sqrt(static_cast<float>(D / H));
    x = read(c, "query"), dy = read(c, "grad_output");
    w = read(c, "in_proj_weight"), b = read(c, "in_proj_bias");
    w_o = read(c, "out_proj.weight"), b_o = read(c, "out_proj.bias");
    qkv.resize(B * L * 3 * D), p.resize(B * H * L * L);
    context.resize(B * L * D), y.resize(B * L * D);
    dx.resize(x.size()), dw.resize(w.size()), db.resize(b.size());
    dw_o.resize(w_o.size()), db_o.resize(b_o.size()), d_qkv.resize(qkv.size());
    linear(x, w, b, qkv, D, 3 * D);
    for (std::size_t n = 0; n < B * H * L; ++n) attend(n / (H * L), n / L % H, n % L);
    linear(context, w_o, b_o, y, D, D);
    Vector d_context(context.size());
    linear_backward(dy, context, w_o, d_context, dw_o, db_o, D, D);
    for (std::size_t n = 0; n < B * H * L; ++n) {
      attend_backward(d_context, n / (H * L), n / L % H, n % L);
    }
    linear_backward(d_qkv, x, w, dx, dw, db, D, 3 * D);
  }

  std::map<std::string, Vector> results() const {
    return {{"output", y},
            {"weights", p},
            {"grad.query", dx},
            {"grad.in_proj_weight", dw},
            {"grad.in_proj_bias", db},
            {"grad.out_proj.weight", dw_o},
            {"grad.out_proj.bias", db_o}};
  }

 private:
  static Vector read(const ReferenceCase& c, const char* name) {
    const auto bytes = c.file.bytes(name);
    std::vector<double> wide(bytes.size() / sizeof(double));
    std::memcpy(wide.data(), bytes.data(), bytes.size());
    Vector narrow;
    for (const double value : wide) narrow.push_back(static_cast<float>(value));
    return narrow;
  }

  void linear(const Vector& in, const Vector& weight, const Vector& bias, Vector& out,
              std::size_t I, std::size_t O) const {
    for (std::size_t n = 0; n < B * L; ++n) {
      for (std::size_t o = 0; o < O; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < I; ++i) sum += in[n * I + i] * weight[o * I + i];
        out[n * O + o] = sum + bias[o];
      }
    }
  }
  void linear_backward(const Vector& d_out, const Vector& in, const Vector& weight, Vector& d_in,
                       Vector& d_weight, Vector& d_bias, std::size_t I, std::size_t O) const {
    for (std::size_t n = 0; n < B * L; ++n) {
      for (std::size_t o = 0; o < O; ++o) {
        d_bias[o] += d_out[n * O + o];
        for (std::size_t i = 0; i < I; ++i) {
          d_weight[o * I + i] += d_out[n * O + o] * in[n * I + i];
          d_in[n * I + i] += d_out[n * O + o] * weight[o * I + i];
        }
      }
    }
  }

  /// Where column c of head h begins in row i: part 0 queries, 1 keys, 2 values.
  std::size_t at(std::size_t part, std::size_t batch, std::size_t h, std::size_t i) const {
    return (batch * L + i) * 3 * D + part * D + h * (D / H);
  }
  float dot(const float* u, const float* v) const {
    float sum = 0;
    for (std::size_t c = 0; c < D / H; ++c) sum += u[c] * v[c];
    return sum;
  }

  void attend(std::size_t batch, std::size_t h, std::size_t i) {
    float* row = &p[((batch * H + h) * L + i) * L];
    for (std::size_t j = 0; j <= i; ++j) {
      row[j] = scale * dot(&qkv[at(0, batch, h, i)], &qkv[at(1, batch, h, j)]);
    }
    const float greatest = *std::max_element(row, row + i + 1);
    float sum = 0;
    for (std::size_t j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - greatest);
    for (std::size_t j = 0; j <= i; ++j) row[j] /= sum;
    float* o = &context[(batch * L + i) * D + h * (D / H)];
    for (std::size_t j = 0; j <= i; ++j) {
      for (std::size_t c = 0; c < D / H; ++c) o[c] += row[j] * qkv[at(2, batch, h, j) + c];
    }
  }
  void attend_backward(const Vector& d_context, std::size_t batch, std::size_t h, std::size_t i) {
    const float* row = &p[((batch * H + h) * L + i) * L];
    const float* d_o = &d_context[(batch * L + i) * D + h * (D / H)];
    Vector dp(i + 1);
    float delta = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      dp[j] = dot(d_o, &qkv[at(2, batch, h, j)]);
      delta += row[j] * dp[j];
    }
    for (std::size_t j = 0; j <= i; ++j) {
      const float ds = row[j] * (dp[j] - delta) * scale;
      for (std::size_t c = 0; c < D / H; ++c) {
        d_qkv[at(0, batch, h, i) + c] += ds * qkv[at(1, batch, h, j) + c];
        d_qkv[at(1, batch, h, j) + c] += ds * qkv[at(0, batch, h, i) + c];
        d_qkv[at(2, batch, h, j) + c] += row[j] * d_o[c];
      }
    }
  }
};

/// How far off numbers are from those that a case expects under a name.
struct LargestError {
  double error = 0;  // max |actual - expected|
  double size = 0;   // max |expected|
};

inline LargestError largest_error(const std::vector<float>& actual, const ReferenceCase& c,
                                  const std::string& name) {
  const auto bytes = c.file.bytes("expected." + name);
  std::vector<double> expected(bytes.size() / sizeof(double));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  REQUIRE(expected.size() == actual.size());
  LargestError largest;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const double error = std::abs(double{actual[n]} - expected[n]);
    REQUIRE(error < 1e30);  // NaN fails this
    largest.error = std::max(largest.error, error);
    largest.size = std::max(largest.size, std::abs(expected[n]));
  }
  return largest;
}

}  // namespace headwise_tests
