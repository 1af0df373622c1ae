// What works row by row and waits for memory: norms, softmax, dropout, activations. Their counters
// are held against the bandwidth that reading as many bytes reaches.
#include <cmath>
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

template <class T>
struct Rows {
  Index N, D;
  Tensor<T, 2> x, dy, y, dx;   // [N, D]
  Tensor<T, 1> gamma, beta;    // [D]
  Tensor<T, 1> mean, rstd;     // [N]
  Tensor<T, 1> dgamma, dbeta;  // [D]
  FlopTally flops;             // of one run

  explicit Rows(const std::vector<Index>& values)
      : N(values.at(0)),
        D(values.at(1)),
        x(random_tensor<T>(Shape{N, D}, 1)),
        dy(random_tensor<T>(Shape{N, D}, 2)),
        y({N, D}),
        dx({N, D}),
        gamma(random_tensor<T>(Shape{D}, 3)),
        beta(random_tensor<T>(Shape{D}, 4)),
        mean(Shape{N}),
        rstd(Shape{N}),
        dgamma(Shape{D}),
        dbeta(Shape{D}) {}
};

/// FLOPs as the operation itself counts them.
template <class T>
void count(Case& one, const std::shared_ptr<Rows<T>>& rows) {
  Context counted;
  counted.flops = &rows->flops;
  one.run(counted);
  one.flops = static_cast<double>(rows->flops.useful.load());
}

/// |sum over a row of f| below a bound, for the first and the last row.
template <class F>
bool for_both_ends(Index N, F&& holds) {
  return holds(Index{0}) && holds(N - 1);
}

template <class T, bool with_backward>
Case layer_norm(const std::vector<Index>& values) {
  const auto rows = std::make_shared<Rows<T>>(values);
  Case one;
  one.run = [rows](const Context& context) {
    Rows<T>& r = *rows;
    layer_norm_forward(r.x, {r.gamma, r.beta}, T(1e-5), r.y, {r.mean, r.rstd}, context);
    if constexpr (with_backward) {
      layer_norm_backward(In<T, 2>(r.dy), r.x, r.gamma, {r.mean, r.rstd}, r.dx, {r.dgamma, r.dbeta},
                          context);
    }
  };
  // Mean 0 and variance 1 before gamma and beta; what flows back is orthogonal to the constant.
  one.right = [rows] {
    const Rows<T>& r = *rows;
    return for_both_ends(r.N, [&](Index n) {
      double sum = 0, squares = 0, back = 0;
      for (Index m = 0; m < r.D; ++m) {
        const double centred = static_cast<double>(r.x(n, m)) - static_cast<double>(r.mean(n));
        const double scaled = centred * static_cast<double>(r.rstd(n));
        const double expected =
            scaled * static_cast<double>(r.gamma(m)) + static_cast<double>(r.beta(m));
        if (std::abs(static_cast<double>(r.y(n, m)) - expected) > 1e-4) return false;
        sum += scaled;
        squares += scaled * scaled;
        back += static_cast<double>(r.dx(n, m));
      }
      const auto D = static_cast<double>(r.D);
      return std::abs(sum) < 1e-4 * D && std::abs(squares - D) < 1e-3 * D &&
             std::abs(back) < 1e-3 * D;
    });
  };
  count(one, rows);
  one.bytes =
      bytes_of(rows->x, rows->y) + (with_backward ? bytes_of(rows->x, rows->dy, rows->dx) : 0);
  return one;
}

template <class T, bool with_backward>
Case rms_norm(const std::vector<Index>& values) {
  const auto rows = std::make_shared<Rows<T>>(values);
  Case one;
  one.run = [rows](const Context& context) {
    Rows<T>& r = *rows;
    rms_norm_forward(r.x, r.gamma, T(1e-6), r.y, r.rstd, context);
    if constexpr (with_backward) {
      rms_norm_backward(In<T, 2>(r.dy), r.x, r.gamma, r.rstd, r.dx, r.dgamma, context);
    }
  };
  // Mean square 1 before gamma; what flows back is orthogonal to the row.
  one.right = [rows] {
    const Rows<T>& r = *rows;
    return for_both_ends(r.N, [&](Index n) {
      double squares = 0, back = 0;
      for (Index m = 0; m < r.D; ++m) {
        const double scaled = static_cast<double>(r.x(n, m)) * static_cast<double>(r.rstd(n));
        const double expected = scaled * static_cast<double>(r.gamma(m));
        if (std::abs(static_cast<double>(r.y(n, m)) - expected) > 1e-4) return false;
        squares += scaled * scaled;
        back += static_cast<double>(r.dx(n, m)) * scaled;
      }
      const auto D = static_cast<double>(r.D);
      return std::abs(squares - D) < 1e-3 * D && std::abs(back) < 1e-3 * D;
    });
  };
  count(one, rows);
  one.bytes =
      bytes_of(rows->x, rows->y) + (with_backward ? bytes_of(rows->x, rows->dy, rows->dx) : 0);
  return one;
}

/// f(x) to 6 digits, by the standard library.
inline double activated(Activation activation, double x) {
  if (activation == Activation::relu) return x < 0 ? 0 : x;
  if (activation == Activation::gelu) return x * std::erfc(-x * std::sqrt(0.5)) / 2;
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  return x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))) / 2;
}

template <class T, Activation activation, bool with_backward>
Case activation_of(const std::vector<Index>& values) {
  const auto rows = std::make_shared<Rows<T>>(values);
  Case one;
  one.run = [rows](const Context& context) {
    Rows<T>& r = *rows;
    activation_forward(activation, r.x, r.y, context);
    if constexpr (with_backward) {
      activation_backward(activation, In<T, 2>(r.dy), r.x, r.dx, context);
    }
  };
  one.right = [rows] {
    const Rows<T>& r = *rows;
    return for_both_ends(r.N, [&](Index n) {
      for (Index m = 0; m < r.D; ++m) {
        const double x = static_cast<double>(r.x(n, m)), h = 1e-5;
        const auto f = [&](double at) { return activated(activation, at); };
        if (std::abs(static_cast<double>(r.y(n, m)) - f(x)) > 1e-5) return false;
        if (!with_backward || std::abs(x) < h) continue;
        const double slope = (f(x + h) - f(x - h)) / (2 * h), dy = static_cast<double>(r.dy(n, m));
        if (std::abs(static_cast<double>(r.dx(n, m)) - dy * slope) > 1e-4) return false;
      }
      return true;
    });
  };
  count(one, rows);
  one.bytes =
      bytes_of(rows->x, rows->y) + (with_backward ? bytes_of(rows->x, rows->dy, rows->dx) : 0);
  return one;
}

template <class T, bool with_backward>
Case softmax(const std::vector<Index>& values) {
  const auto rows = std::make_shared<Rows<T>>(values);
  Case one;
  one.run = [rows](const Context& context) {
    Rows<T>& r = *rows;
    softmax_forward(r.x, r.y, context);
    if constexpr (with_backward) softmax_backward(In<T, 2>(r.dy), r.y, r.dx, context);
  };
  one.right = [rows] {
    const Rows<T>& r = *rows;
    return for_both_ends(r.N, [&](Index n) {
      double sum = 0, back = 0;
      for (Index m = 0; m < r.D; ++m) {
        sum += static_cast<double>(r.y(n, m));
        back += static_cast<double>(r.dx(n, m));
      }
      return std::abs(sum - 1) < 1e-4 && std::abs(back) < 1e-4;
    });
  };
  count(one, rows);
  one.bytes =
      bytes_of(rows->x, rows->y) + (with_backward ? bytes_of(rows->y, rows->dy, rows->dx) : 0);
  return one;
}

template <class T>
Case dropout(const std::vector<Index>& values) {
  const auto rows = std::make_shared<Rows<T>>(values);
  const Dropout tenth = {.rate = 0.1, .seed = 1};
  Case one;
  one.run = [rows, tenth](const Context& context) {
    dropout_forward(rows->x, tenth, rows->y, context);
  };
  one.right = [rows] {
    Index kept = 0;
    for (Index n = 0; n < rows->x.size(); ++n) {
      const double x = static_cast<double>(rows->x.data()[n]);
      const double y = static_cast<double>(rows->y.data()[n]);
      if (y != 0) ++kept;
      if (y != 0 && std::abs(y - x / 0.9) > 1e-3 * std::abs(x)) return false;
    }
    const double size = static_cast<double>(rows->x.size());
    return std::abs(static_cast<double>(kept) / size - 0.9) < 4 * std::sqrt(0.09 / size);
  };
  count(one, rows);
  one.bytes = bytes_of(rows->x, rows->y);
  return one;
}

/// gate is x, up is dy.
template <class T>
Case swiglu(const std::vector<Index>& values) {
  const auto rows = std::make_shared<Rows<T>>(values);
  Case one;
  one.run = [rows](const Context& context) { swiglu_forward(rows->x, rows->dy, rows->y, context); };
  one.right = [rows] {
    const Rows<T>& r = *rows;
    return for_both_ends(r.N, [&](Index n) {
      for (Index m = 0; m < r.D; ++m) {
        const double expected = activated(Activation::silu, static_cast<double>(r.x(n, m))) *
                                static_cast<double>(r.dy(n, m));
        if (std::abs(static_cast<double>(r.y(n, m)) - expected) > 1e-4) return false;
      }
      return true;
    });
  };
  count(one, rows);
  one.bytes = bytes_of(rows->x, rows->dy, rows->y);
  return one;
}

std::vector<std::vector<Index>> row_values() {
  std::vector<std::vector<Index>> values;
  for (const auto& [N, D] : row_shapes()) values.push_back({N, D});
  return values;
}

/// And of a small transformer's hidden layer.
std::vector<std::vector<Index>> hidden_values() {
  std::vector<std::vector<Index>> values = row_values();
  values.push_back({768, 512});
  return values;
}

template <class T, Activation activation>
void add_activation(Families& families, const std::string& name) {
  families.push_back({name_of<T>("activation/" + name + "/forward"),
                      {"N", "F"},
                      hidden_values(),
                      activation_of<T, activation, false>});
  families.push_back({name_of<T>("activation/" + name + "/forward_backward"),
                      {"N", "F"},
                      hidden_values(),
                      activation_of<T, activation, true>});
}

template <class T>
void add(Families& families) {
  const auto add_one = [&](const char* name, Case (*make)(const std::vector<Index>&)) {
    families.push_back({name_of<T>(name), {"N", "D"}, row_values(), make});
  };
  add_one("layer_norm/forward", layer_norm<T, false>);
  add_one("layer_norm/forward_backward", layer_norm<T, true>);
  add_one("softmax/forward", softmax<T, false>);
  add_one("softmax/forward_backward", softmax<T, true>);
  add_one("dropout/forward", dropout<T>);
  add_one("rms_norm/forward", rms_norm<T, false>);
  add_one("rms_norm/forward_backward", rms_norm<T, true>);
  add_activation<T, Activation::relu>(families, "relu");
  add_activation<T, Activation::gelu>(families, "gelu");
  add_activation<T, Activation::gelu_tanh>(families, "gelu_tanh");
  add_activation<T, Activation::silu>(families, "silu");
  add_one("activation/swiglu/forward", swiglu<T>);
}

}  // namespace

void add_rows(Families& families) {
  add<float>(families);
  add<double>(families);
}

}  // namespace headwise::bench
