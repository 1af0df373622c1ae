// A score function of one's own: a callable that attention inlines into its tiles, with gradients
// by dual numbers. It changes scores behind softcap and biases, before the mask.
#pragma once

#include <math.h>  // exp(x) of a float by its plain name: <cmath> leaves it the one of double

#include <array>
#include <utility>

#include "headwise/kernels/pair_functions.hpp"
#include "headwise/runtime/instruction_set.hpp"
#include "headwise/score/score_function.hpp"
#include "headwise/tensor/dual.hpp"

namespace headwise::inline v0_1 {

/// Whether F, called with X, returns an S. A dual number is made of a plain one, too, which has
/// lost its derivative on the way: that is none.
template <class S, class F, class... X>
concept ReturnsScore = std::is_invocable_r_v<S, const F&, X...> &&
    (std::floating_point<S> ||
     std::same_as<std::remove_cvref_t<std::invoke_result_t<const F&, X...>>, S>);

/// What may be a score function of P parameters: it takes a score of any type S, where the pair
/// stands and, with P > 0, std::array<S, P>, and returns the changed score, an S.
template <class F, class T, std::size_t P>
concept ScoreCallable = std::copy_constructible<F> &&
    ((P == 0 && ReturnsScore<T, F, T, const Position&> &&
      ReturnsScore<Dual<T>, F, Dual<T>, const Position&>) ||
     (P != 0 && ReturnsScore<T, F, T, const Position&, const std::array<T, P>&> &&
      ReturnsScore<Dual<T>, F, Dual<T>, const Position&, const std::array<Dual<T>, P>&>));

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A callable and its parameters, which are learned where a call asks for their gradients.
template <Scalar T, std::size_t P, ScoreCallable<T, P> F>
class ScoreFunction {
 public:
  /// Of the calls that it is for.
  using Score = T;
  /// How many parameters it has.
  static constexpr std::size_t parameter_count = P;
  /// What the callable is called with. [P]
  std::array<T, P> parameters;

  /// Of a callable, which is copied.
  ScoreFunction(F callable, const std::array<T, P>& values)
      : parameters(values), callable_(std::move(callable)) {}

  /// f of a score.
  HEADWISE_INLINE T value(const T& s, const Position& at) const { return call(s, at, parameters); }
  /// The parameters as numbers that have derivatives, all 0.
  HEADWISE_INLINE std::array<Dual<T>, P> constants() const {
    std::array<Dual<T>, P> values;
    for (std::size_t p = 0; p < P; ++p) values[p] = Dual<T>(parameters[p], T(0));
    return values;
  }
  /// f of a score that moves by `slope`, and of such parameters: the value and its derivative.
  HEADWISE_INLINE Dual<T> derivative(const T& s, T slope, const Position& at,
                                     const std::array<Dual<T>, P>& w) const {
    return call(Dual<T>(s, slope), at, w);
  }

  /// A view for a call's options: this must outlive the call, and its backward too.
  operator ScoreFunctionRef<T>() const& {
#if HEADWISE_X86
    const InstructionSet set = instruction_set_here();
    if constexpr (simd_type && is_compiled(InstructionSet::avx512)) {
      if (set == InstructionSet::avx512) {
        return {this, parameters, &score_functions::avx512::change<T, ScoreFunction>,
                &score_functions::avx512::change_with_slopes<T, ScoreFunction>,
                &score_functions::avx512::add_flows<T, ScoreFunction>};
      }
    }
    if constexpr (simd_type && is_compiled(InstructionSet::avx2)) {
      if (set == InstructionSet::avx2) {
        return {this, parameters, &score_functions::avx2::change<T, ScoreFunction>,
                &score_functions::avx2::change_with_slopes<T, ScoreFunction>,
                &score_functions::avx2::add_flows<T, ScoreFunction>};
      }
    }
#endif
    return {this, parameters, &score_functions::generic::change<T, ScoreFunction>,
            &score_functions::generic::change_with_slopes<T, ScoreFunction>,
            &score_functions::generic::add_flows<T, ScoreFunction>};
  }
  /// One without a name would be gone before the call.
  operator ScoreFunctionRef<T>() const&& = delete;

 private:
  static constexpr bool simd_type = std::same_as<T, float> || std::same_as<T, double>;

  template <class S>
  HEADWISE_INLINE S call(const S& s, const Position& at, const std::array<S, P>& w) const {
    if constexpr (P == 0) {
      return static_cast<S>(callable_(s, at));
    } else {
      return static_cast<S>(callable_(s, at, w));
    }
  }

  F callable_;
};

/// A score function without parameters, for attention of T:
///   const auto decay = score_function<float>([](auto s, const Position& at) {
///     return s * exp(-0.01f * static_cast<float>(at.query - at.key));
///   });
///   flash_attention_forward(q, k, v, {.mask = causal, .score = {.function = decay}}, o, lse);
///
/// The callable is called for pairs that a mask hides, too, and nothing comes of it. It must not
/// throw: threads of a pool may call it. Of a score that it casts to a number the derivative is
/// lost.
template <Scalar T, class F>
auto score_function(F callable) {
  static_assert(ScoreCallable<F, T, 0>,
                "a score function takes (auto score, const Position& at) and returns what the "
                "score is: a T, and a Dual<T> where its derivative is asked for; it calls exp, not "
                "std::exp, and is not mutable");
  return ScoreFunction<T, 0, F>(std::move(callable), {});
}
/// The same with parameters [P], which the callable gets as std::array in the type of the score:
/// score_function(std::array{0.5f}, [](auto s, const Position&, const auto& w) { return w[0] * s;
/// })
template <Scalar T, std::size_t P, class F>
auto score_function(const std::array<T, P>& parameters, F callable) {
  static_assert(ScoreCallable<F, T, P>,
                "a score function with parameters takes (auto score, const Position& at, const "
                "auto& parameters) and returns what the score is: a T, and a Dual<T> where a "
                "derivative is asked for; it calls exp, not std::exp, and is not mutable");
  return ScoreFunction<T, P, F>(std::move(callable), parameters);
}
/// Without the type of the call, or with parameters of another kind: none.
///@{
template <class F>
void score_function(F) {
  static_assert(sizeof(F) == 0,
                "a score function without parameters is made for the type of the call: "
                "score_function<float>(callable)");
}
template <class Parameters, class F>
requires(!std::floating_point<Parameters>) void score_function(const Parameters&, F) {
  static_assert(sizeof(F) == 0,
                "the parameters of a score function are a std::array in the type of the call: "
                "score_function(std::array{0.5f}, callable)");
}
///@}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
