// A number that counts what is done with it: a double whose additions, multiplications, divisions
// and elementary functions add to a tally. Comparisons, copies and negations cost nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace headwise_tests {

struct Operations {
  std::int64_t additions = 0;  // and subtractions
  std::int64_t multiplications = 0;
  std::int64_t divisions = 0;
  std::int64_t functions = 0;  // exp, log, erfc, sqrt

  std::int64_t total() const { return additions + multiplications + divisions + functions; }
  friend bool operator==(const Operations&, const Operations&) = default;
};

/// What this thread has counted so far.
inline thread_local Operations operations;

struct Counting {
  double value = 0;

  Counting() = default;
  explicit Counting(double x) : value(x) {}
  explicit operator double() const { return value; }

  friend Counting operator+(Counting a, Counting b) {
    ++operations.additions;
    return Counting(a.value + b.value);
  }
  friend Counting operator-(Counting a, Counting b) {
    ++operations.additions;
    return Counting(a.value - b.value);
  }
  friend Counting operator*(Counting a, Counting b) {
    ++operations.multiplications;
    return Counting(a.value * b.value);
  }
  friend Counting operator/(Counting a, Counting b) {
    ++operations.divisions;
    return Counting(a.value / b.value);
  }
  friend Counting operator-(Counting a) { return Counting(-a.value); }
  friend bool operator<(Counting a, Counting b) { return a.value < b.value; }
  friend bool operator>(Counting a, Counting b) { return a.value > b.value; }
  friend bool operator==(Counting a, Counting b) { return a.value == b.value; }

  friend Counting exp(Counting x) {
    ++operations.functions;
    return Counting(std::exp(x.value));
  }
  friend Counting log(Counting x) {
    ++operations.functions;
    return Counting(std::log(x.value));
  }
  friend Counting erfc(Counting x) {
    ++operations.functions;
    return Counting(std::erfc(x.value));
  }
  friend Counting tanh(Counting x) {
    ++operations.functions;
    return Counting(std::tanh(x.value));
  }
  friend Counting sqrt(Counting x) {
    ++operations.functions;
    return Counting(std::sqrt(x.value));
  }
};

/// The operations that a call of f does.
template <class F>
Operations count_operations(F&& f) {
  operations = {};
  f();
  return operations;
}

}  // namespace headwise_tests

template <>
class std::numeric_limits<headwise_tests::Counting> : public std::numeric_limits<double> {
  using Number = headwise_tests::Counting;
  using Base = std::numeric_limits<double>;

 public:
  static Number min() { return Number(Base::min()); }
  static Number max() { return Number(Base::max()); }
  static Number lowest() { return Number(Base::lowest()); }
  static Number epsilon() { return Number(Base::epsilon()); }
  static Number infinity() { return Number(Base::infinity()); }
  static Number quiet_NaN() { return Number(Base::quiet_NaN()); }
  static Number denorm_min() { return Number(Base::denorm_min()); }
};
