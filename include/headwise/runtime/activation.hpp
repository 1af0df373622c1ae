// What stands between two linear layers.
#pragma once

namespace headwise::inline v0_1 {

/// A function of one number, applied to each element.
enum class Activation {
  relu,       ///< max(x, 0)
  gelu,       ///< x Phi(x), Phi the normal distribution; Hendrycks, Gimpel, 2016, arXiv 1606.08415
  gelu_tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: near gelu, from the same paper
  silu,       ///< x / (1 + e^-x); Elfwing, Uchibe, Doya, 2017, arXiv 1702.03118
};

}  // namespace headwise::inline v0_1
