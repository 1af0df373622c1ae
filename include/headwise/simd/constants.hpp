// What the vector functions share over all instruction sets: which types have vectors, and the
// coefficients of their polynomials.
#pragma once

#include <concepts>
#include <cstdint>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd {

template <class T>
inline constexpr bool vectorised = std::same_as<T, float> || std::same_as<T, double>;

/// 2^f as a polynomial that is 1 at 0 and elsewhere nearest by relative error (Remez), over
/// [0, 1] and over [-1/2, 1/2].
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
  static constexpr float round = 0x1.8p23f;  // x + round - round is the nearest integer
  static constexpr float lowest = -126.0f;   // below, 2^x is denormal
  static constexpr int mantissa_bits = 23;
  // 2.0e-9
  static constexpr float from_floor[] = {1.0f,
                                         0.69314704443504465657f,
                                         0.24022930564466503725f,
                                         0.055485280265977792585f,
                                         0.0096754521710131208109f,
                                         0.0012467841655690357705f,
                                         0.000216129293233944403f};
  static constexpr float from_nearest[] = {1.0f,
                                           0.69314720285492610177f,
                                           0.24022647913530448682f,
                                           0.055503324711887840865f,
                                           0.0096184373669546926743f,
                                           0.0013398874417434821553f,
                                           0.00015353359810650499982f};
};

template <>
struct Exp2Constants<double> {
  static constexpr double round = 0x1.8p52;
  static constexpr double lowest = -1022.0;
  static constexpr int mantissa_bits = 52;
  // 3.2e-18
  static constexpr double from_floor[] = {1.0,
                                          0.69314718055994592849,
                                          0.24022650695906330065,
                                          0.055504108665602256182,
                                          0.0096181290995508903454,
                                          0.0013333558629557711572,
                                          0.00015403512310011130327,
                                          0.000015253175046361029131,
                                          1.3208367422668685948e-6,
                                          1.0253211273326500564e-7,
                                          6.5595348909703045699e-9,
                                          6.2634548331661569383e-10};
  static constexpr double from_nearest[] = {1.0,
                                            0.69314718055994532581,
                                            0.24022650695910131255,
                                            0.055504108664820082786,
                                            0.0096181291075941225634,
                                            0.001333355814677474092,
                                            0.00015403530458108738297,
                                            0.000015252733492997780878,
                                            1.3215435284037966148e-6,
                                            1.0178199630823285997e-7,
                                            7.0737829492008923759e-9,
                                            4.4347618429746901201e-10};
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd
