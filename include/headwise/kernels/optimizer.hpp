// What the kernels of an optimiser's step are called with: the numbers that are the same for every
// element, worked out once.
#pragma once

#include <limits>
#include <type_traits>

#include "headwise/kernels/matrix.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// The least normal number: a mean of squares below has lost digits. 0 for scalars that are no
/// floating-point numbers.
///@{
template <class T>
T least_square() {
  if constexpr (std::is_floating_point_v<T>) return (std::numeric_limits<T>::min)();
  return T(0);
}
/// The least moment or velocity, 7.9e-31 in float, 1.5e-300 in double: what is made of one below
/// would be denormal in part.
template <class T>
T least_moment() {
  if constexpr (std::is_floating_point_v<T>) return least_square<T>() * T(0x1p26);
  return T(0);
}
///@}

/// A step of AdamW: kernels/optimizer.inc says what is done with each.
template <class T>
struct AdamWStep {
  T gradient_scale;    // what gradients are multiplied by before anything else
  T keep;              // 1 - learning_rate weight_decay
  T one_minus_beta1;   // the weight of a new gradient in m
  T rest_of_m;         // 1 less that; read where it is below one half
  T beta2;             // the weight of the old v
  T one_minus_beta2;   // the weight of a new square in v
  T root_correction;   // sqrt(1 - beta2^t)
  T epsilon;           // added to the root
  T minus_step;        // -learning_rate / (1 - beta1^t)
  bool near_gradient;  // whether beta1 is at most one half
  T least_moment{};    // below, m counts as 0
  T least_square{};    // below, v does
};

/// A step of gradient descent.
template <class T>
struct SgdStep {
  T gradient_scale;       // what gradients are multiplied by before anything else
  T weight_decay;         // read where `decays`
  T momentum;             // read where there is a velocity
  T one_minus_dampening;  // the weight of a new gradient in it
  T minus_rate;           // -learning_rate
  T least_velocity{};     // below, the velocity counts as 0
  bool decays = false;    // whether weight_decay is not 0
  bool first = false;     // whether the velocity is still to be set
  bool nesterov = false;  // whether the step looks ahead
};

/// What squares are summed in: double for float, T itself for what is wider.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, float>, double, T>;

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
