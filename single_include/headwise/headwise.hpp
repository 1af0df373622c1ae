// headwise 0.1.0: headwise/headwise.hpp and the headers below it in one file, made from include/ by
// tools/amalgamate. It is not for editing.
//
// MIT License
//
// Copyright (c) 2026 The headwise authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#pragma once

#ifdef HEADWISE_CODE
#error "headwise is included twice in this file: from include/, and as a single header"
#endif

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <iomanip>
#include <limits>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <numbers>
#include <optional>
#include <ostream>
#include <pthread.h>
#include <sched.h>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

// headwise/tensor/config.hpp
// What the compiler is and how it was called. The only header that asks.
//
// Data types live in `headwise::v0_1`, whose layout no flag changes. Functions and modules live one
// namespace deeper, in one that is named after the flags that change what a function compiles to,
// so that two translation units with different -m or fast-math flags do not share their bodies.
// (What is shared: the small members of data types.)

#if defined(_MSC_VER)
#error "headwise needs g++ >= 12 or clang >= 14: its kernels are written in their vector extensions"
#elif defined(__clang__)
#if __clang_major__ < 14
#error "headwise needs clang >= 14"
#endif
#elif !defined(__GNUC__) || __GNUC__ < 12
#error "headwise needs g++ >= 12 or clang >= 14"
#endif

#if __cplusplus < 202002L
#error "headwise needs C++20: add -std=c++20"
#endif

#if defined(__AVX512F__)
#define HEADWISE_CONFIG_VECTORS avx512
#elif defined(__AVX2__)
#define HEADWISE_CONFIG_VECTORS avx2
#elif defined(__AVX__)
#define HEADWISE_CONFIG_VECTORS avx
#else
#define HEADWISE_CONFIG_VECTORS base
#endif

#if defined(__FMA__)
#define HEADWISE_CONFIG_FMA fma
#else
#define HEADWISE_CONFIG_FMA nofma
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#define HEADWISE_CONFIG_MATH fast
#else
#define HEADWISE_CONFIG_MATH strict
#endif

// Without exceptions, errors go to a handler (tensor/error.hpp).
#if defined(__cpp_exceptions)
#define HEADWISE_HAS_EXCEPTIONS 1
#define HEADWISE_CONFIG_ERRORS throws
#else
#define HEADWISE_HAS_EXCEPTIONS 0
#define HEADWISE_CONFIG_ERRORS handler
#endif

// Compiled as most programs are: what headwise::compiled was compiled for.
#if defined(__AVX__) || defined(__FMA__) || defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || \
    !HEADWISE_HAS_EXCEPTIONS
#define HEADWISE_CONFIG_PLAIN 0
#else
#define HEADWISE_CONFIG_PLAIN 1
#endif

#if defined(HEADWISE_COMPILED)
#define HEADWISE_USES_COMPILED HEADWISE_CONFIG_PLAIN
#else
#define HEADWISE_USES_COMPILED 0
#endif

#if defined(__x86_64__)
#define HEADWISE_X86 1
#else
#define HEADWISE_X86 0
#endif

#if defined(__clang__)
#define HEADWISE_COMPILER "clang++"
#else
#define HEADWISE_COMPILER "g++"
#endif

#define HEADWISE_CONFIG_JOIN(a, b, c, d) code_##a##_##b##_##c##_##d
#define HEADWISE_CONFIG_EXPAND(a, b, c, d) HEADWISE_CONFIG_JOIN(a, b, c, d)
#define HEADWISE_CODE                                                                        \
  HEADWISE_CONFIG_EXPAND(HEADWISE_CONFIG_VECTORS, HEADWISE_CONFIG_FMA, HEADWISE_CONFIG_MATH, \
                         HEADWISE_CONFIG_ERRORS)
#define HEADWISE_CONFIG_QUOTE(name) #name
#define HEADWISE_CONFIG_STRING(name) HEADWISE_CONFIG_QUOTE(name)
#define HEADWISE_CODE_NAME HEADWISE_CONFIG_STRING(HEADWISE_CODE)

#define HEADWISE_INLINE [[gnu::always_inline]] inline
#define HEADWISE_ALWAYS_INLINE __attribute__((always_inline))  // behind a lambda's parameters

// Code between HEADWISE_REGION and its END is compiled for an instruction set, whatever the user's
// -m flags; who calls it has asked the processor. In there neither compiler defines __AVX512F__ and
// its like, and a standard header that is first included in there would be compiled for it, too.
// (g++ 12, clang 14 and 19.)
#define HEADWISE_AVX2 "avx2,fma"
#define HEADWISE_AVX512 "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
#define HEADWISE_CONFIG_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HEADWISE_REGION(features) \
  HEADWISE_CONFIG_PRAGMA(         \
      clang attribute push(__attribute__((target(features))), apply_to = function))
#define HEADWISE_REGION_END _Pragma("clang attribute pop")
#else
#define HEADWISE_REGION(features)                                          \
  _Pragma("GCC push_options") HEADWISE_CONFIG_PRAGMA(GCC target(features)) \
      _Pragma("GCC target(\"prefer-vector-width=512\")")
#define HEADWISE_REGION_END _Pragma("GCC pop_options")
#endif

// Arithmetic stands between these two: whatever the user's flags, no reassociation, no assumption
// that numbers are finite, and no fusing of a product and a sum where it was not written, which
// would make bits depend on which of two loops the compiler fused. (Each compiler honours its own
// form: g++ 12, clang 14 and 19. But clang with -ffast-math and FMA fuses all the same unless
// -ffp-contract=on stands beside it: results stay right, bits differ from a build without.)
#if defined(__clang__)
#define HEADWISE_STRICT_MATH_BEGIN                                     \
  _Pragma("float_control(push)") _Pragma("float_control(precise, on)") \
      _Pragma("clang fp contract(off)")
#define HEADWISE_STRICT_MATH_END _Pragma("float_control(pop)")
#else
#define HEADWISE_STRICT_MATH_BEGIN \
  _Pragma("GCC push_options") _Pragma("GCC optimize(\"no-fast-math\", \"fp-contract=off\")")
#define HEADWISE_STRICT_MATH_END _Pragma("GCC pop_options")
#endif

// headwise/tensor/error.hpp
// What a caller's mistake turns into. Every public function checks its arguments before it writes
// anything, in release builds too; the sentence says what was given and what is expected. Where
// exceptions are switched off it goes to a handler of the user's.

namespace headwise::inline v0_1 {

/// A tensor has another shape or layout than the call needs.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An option, an index or a state does not fit the call.
class ArgumentError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A file cannot be read or written, or is not what its format says.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

inline std::atomic<void (*)(const char*)> error_handler = nullptr;

}  // namespace detail

/// What a program built with -fno-exceptions does about an error: it gets the sentence that would
/// have been thrown, and must not return (the program ends if it does).
using ErrorHandler = void (*)(const char* message);

/// Sets the handler for -fno-exceptions and returns the one before; nullptr brings back the
/// default, which prints to stderr and aborts. Code with exceptions throws and never asks it. A
/// std::bad_alloc and what else the standard library throws does not come here.
inline ErrorHandler set_error_handler(ErrorHandler handler) {
  return detail::error_handler.exchange(handler);
}

inline namespace HEADWISE_CODE {  // what they do depends on a flag

/// The message of the std::exception that `call` throws, or nothing. Without exceptions it only
/// calls.
template <class Call>
std::optional<std::string> error_of(Call&& call) {
#if HEADWISE_HAS_EXCEPTIONS
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
#else
  call();
#endif
  return std::nullopt;
}

/// The one place where the library throws.
template <class Error>
[[noreturn, gnu::cold, gnu::noinline]] void raise(const std::string& message) {
#if HEADWISE_HAS_EXCEPTIONS
  throw Error(message);
#else
  if (const ErrorHandler handler = detail::error_handler.load()) handler(message.c_str());
  std::fprintf(stderr, "headwise: %s\n", message.c_str());
  std::abort();
#endif
}

/// Throws ArgumentError `function: message` unless `rule` holds. The message may be a callable, so
/// that a call that is right builds no text.
template <class Message>
void require(bool rule, std::string_view function, Message&& message) {
  if (rule) [[likely]]
    return;
  if constexpr (std::is_invocable_v<Message>) {
    raise<ArgumentError>(std::string(function) + ": " + std::string(message()));
  } else {
    raise<ArgumentError>(std::string(function) + ": " + std::string(message));
  }
}

}  // namespace HEADWISE_CODE

}  // namespace headwise::inline v0_1

// headwise/tensor/shape.hpp
// Extents of a tensor, and the strides that go with them.

namespace headwise::inline v0_1 {

/// Counts and offsets, in elements. Signed, so that differences are numbers.
using Index = std::ptrdiff_t;

/// `[2, 3, 4]`
inline std::string format_extents(std::span<const Index> extents) {
  std::string text = "[";
  for (std::size_t r = 0; r < extents.size(); ++r) {
    if (r != 0) text += ", ";
    text += std::to_string(extents[r]);
  }
  return text + "]";
}

namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_extents(std::span<const Index> extents,
                                                                 const char* expected) {
  raise<ShapeError>("Shape: extents are " + format_extents(extents) + ", expected " + expected);
}

}  // namespace detail

/// The extents of R axes, outermost first: `Shape{B, H, L, d}`. Any of them may be 0.
template <int R>
struct Shape {
  static_assert(R >= 1, "a shape has at least one axis");
  std::array<Index, static_cast<std::size_t>(R)> extents{};  // outermost first

  /// All 0.
  constexpr Shape() = default;

  /// As many extents as there are axes.
  template <std::integral... Ints>
  requires(sizeof...(Ints) == R) constexpr Shape(Ints... extent)
      : extents{static_cast<Index>(extent)...} {}

  /// The extent of one axis, 0 to R - 1.
  constexpr Index operator[](int axis) const { return extents[static_cast<std::size_t>(axis)]; }
  /// The same, to be written to.
  constexpr Index& operator[](int axis) { return extents[static_cast<std::size_t>(axis)]; }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

  /// The number of elements. Throws ShapeError for a negative extent or one more than Index holds.
  constexpr Index size() const {
    Index count = 1;
    bool none = false;
    for (Index extent : extents) {
      if (extent < 0) detail::raise_extents(extents, "0 or more");
      if (extent == 0) none = true;
    }
    if (none) return 0;
    for (Index extent : extents) {
      if (count > (std::numeric_limits<Index>::max)() / extent) {
        detail::raise_extents(extents, "a product below 2^63");
      }
      count *= extent;
    }
    return count;
  }

  /// How far apart neighbours along each axis lie in dense row-major storage.
  constexpr Shape row_major_strides() const {
    Shape strides;
    std::size_t step = 1;  // unsigned: beside an extent of 0 the others may be of any size
    for (int r = R - 1; r >= 0; --r) {
      strides[r] = static_cast<Index>(step);
      step *= static_cast<std::size_t>((*this)[r]);
    }
    return strides;
  }

  /// `[2, 3, 4]`
  std::string format() const { return format_extents(extents); }
};

/// `Shape{2, 3}` is a Shape<2>.
template <class... Ints>
Shape(Ints...) -> Shape<static_cast<int>(sizeof...(Ints))>;

/// Prints `[2, 3, 4]`.
template <int R>
std::ostream& operator<<(std::ostream& out, const Shape<R>& shape) {
  return out << shape.format();
}

/// Calls f(Shape<R>) for every index of a tensor of this shape, last axis fastest.
template <int R, class F>
void for_each_index(const Shape<R>& shape, F&& f) {
  const Index count = shape.size();
  Shape<R> index;
  for (Index n = 0; n < count; ++n) {
    f(index);
    for (int r = R - 1; r >= 0; --r) {
      if (++index[r] < shape[r]) break;
      index[r] = 0;
    }
  }
}

}  // namespace headwise::inline v0_1

// headwise/analysis/attention_shape.hpp
// The shape of a multi-head attention as far as its cost goes, and how many pairs it sees.

namespace headwise::inline v0_1 {

/// What a call costs depends on these alone. Widths of 0 take the default that stands beside them.
/// Every formula throws ArgumentError for a shape that no call can have, or whose cost is beyond
/// what can be counted.
struct AttentionShape {
  Index batch_size = 1;                     // B
  Index seq_len = 0;                        // L
  std::optional<Index> key_len = {};        // S; none: self-attention, S = L
  Index d_model = 0;                        // D
  Index num_heads = 1;                      // H
  Index num_kv_heads = 0;                   // G; H
  Index d_head = 0;                         // d; D / H
  Index d_value = 0;                        // dv; d
  Index kdim = 0;                           // D
  Index vdim = 0;                           // D
  bool causal = false;                      // query i sees key j only where j <= i + (S - L)
  Index window = 0;                         // 0: none
  std::span<const Index> key_lengths = {};  // [B]; empty: all S
  Index mask_biases = 0;                    // how many Mask::bias are added to the scores
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false;  // of the projections
  bool layer_norm = false, layer_norm_affine = false;   // before them; with gamma and beta
  bool weight_dropout = false, output_dropout = false;  // whether each is active

  /// Whether keys and values come from the query input.
  bool self_attention() const { return !key_len; }
  /// Keys.
  Index S() const { return key_len.value_or(seq_len); }
  /// Key/value heads.
  Index G() const { return num_kv_heads == 0 ? num_heads : num_kv_heads; }
  /// Width of a query and key head.
  Index d() const { return d_head == 0 ? d_model / num_heads : d_head; }
  /// Width of a value head.
  Index dv() const { return d_value == 0 ? d() : d_value; }
  /// Width of the input of W_K.
  Index k_in() const { return kdim == 0 ? d_model : kdim; }
  /// Width of the input of W_V.
  Index v_in() const { return vdim == 0 ? d_model : vdim; }
  /// H d, the columns of W_Q.
  Index q_width() const { return num_heads * d(); }
  /// G d, the columns of W_K.
  Index k_width() const { return G() * d(); }
  /// G dv, the columns of W_V.
  Index v_width() const { return G() * dv(); }
  /// H dv, the rows of W_O.
  Index context_width() const { return num_heads * dv(); }
  /// B L.
  Index query_rows() const { return batch_size * seq_len; }
  /// B S.
  Index key_rows() const { return batch_size * S(); }
};

namespace detail::inline HEADWISE_CODE {

/// The sum of clamp(m, 0, K) over all m <= n.
constexpr std::int64_t clamped_sum(std::int64_t n, std::int64_t K) {
  if (n <= 0) return 0;
  if (n <= K) return n * (n + 1) / 2;
  return K * (K + 1) / 2 + (n - K) * K;
}

/// Pairs 0 <= i < L, 0 <= j < K with j - i <= t.
constexpr std::int64_t pairs_up_to(std::int64_t L, std::int64_t K, std::int64_t t) {
  return clamped_sum(L + t, K) - clamped_sum(t, K);
}

/// Throws ArgumentError unless a size is between its least value and 2^30.
constexpr void require_size(std::string_view function, std::string_view argument, Index size,
                            Index least) {
  if (size >= least && size <= Index{1} << 30) return;
  raise<ArgumentError>(std::string(function) + ": " + std::string(argument) + " is " +
                       std::to_string(size) + ", expected " + std::to_string(least) + " to 2^30");
}

inline void require_key_lengths(std::string_view function, const AttentionShape& shape) {
  const auto count = static_cast<Index>(shape.key_lengths.size());
  require(count == 0 || count == shape.batch_size, function, [&] {
    return "key_lengths has " + std::to_string(count) + " lengths, expected " +
           std::to_string(shape.batch_size) + " (the batch size) or none";
  });
  for (const Index length : shape.key_lengths) {
    require(length >= 0 && length <= shape.S(), function, [&] {
      return "key_lengths holds " + std::to_string(length) + ", expected 0 to " +
             std::to_string(shape.S()) + " (the number of keys)";
    });
  }
}

/// Throws ArgumentError unless there is a call of this shape whose cost, up to `times` the largest
/// of its terms, can be counted.
inline void require_shape_of_call(std::string_view function, const AttentionShape& s,
                                  double times = 1) {
  require_size(function, "batch_size", s.batch_size, 0);
  require_size(function, "seq_len", s.seq_len, 0);
  require_size(function, "key_len", s.S(), 0);
  require_size(function, "d_model", s.d_model, 0);
  require_size(function, "num_heads", s.num_heads, 1);
  require_size(function, "num_kv_heads", s.num_kv_heads, 0);
  require_size(function, "d_head", s.d_head, 0);
  require_size(function, "d_value", s.d_value, 0);
  require_size(function, "kdim", s.kdim, 0);
  require_size(function, "vdim", s.vdim, 0);
  require_size(function, "window", s.window, 0);
  require_size(function, "mask_biases", s.mask_biases, 0);
  require(s.num_heads % s.G() == 0, function, [&] {
    return "num_kv_heads is " + std::to_string(s.num_kv_heads) +
           ", expected a divisor of num_heads " + std::to_string(s.num_heads);
  });
  require(s.d_head != 0 || s.d_model % s.num_heads == 0, function, [&] {
    return "num_heads is " + std::to_string(s.num_heads) + ", expected a divisor of d_model " +
           std::to_string(s.d_model) + " (or give d_head)";
  });
  require_key_lengths(function, s);
  const auto product = [](auto... sizes) { return (static_cast<double>(sizes) * ... * 1.0); };
  const double B = product(s.batch_size), H = product(s.num_heads), L = product(s.seq_len),
               S = product(s.S()), heads = H * product(s.d() + s.dv() + s.mask_biases + 1);
  const double cost = B * L * S * heads +
                      (B * L + B * S + 1) * product(s.d_model + s.k_in() + s.v_in() + 1) * heads;
  require(64 * times * cost < 0x1p63, function,
          "the cost of this shape is beyond 2^63, expected smaller sizes");
}

}  // namespace detail::inline HEADWISE_CODE

/// The pairs (i, j) of one head that causality, window and `keys` keys leave, in closed form:
/// j - i between S - L - (window - 1) and S - L, or S - L + (window - 1) where not causal.
constexpr std::int64_t visible_pairs(Index L, Index S, Index keys, bool is_causal, Index window) {
  detail::require_size("visible_pairs", "L", L, 0);
  detail::require_size("visible_pairs", "S", S, 0);
  detail::require_size("visible_pairs", "keys", keys, 0);
  detail::require_size("visible_pairs", "window", window, 0);
  const std::int64_t offset = S - L;
  std::int64_t highest = keys;  // j - i is below the number of keys
  if (is_causal) highest = offset;
  if (window != 0) highest = std::min<Index>(highest, offset + window - 1);
  std::int64_t pairs = detail::pairs_up_to(L, keys, highest);
  if (window != 0) pairs -= detail::pairs_up_to(L, keys, offset - window);
  return std::max<std::int64_t>(pairs, 0);
}

/// The same for all heads and the whole batch.
inline std::int64_t visible_pairs(const AttentionShape& shape) {
  detail::require_shape_of_call("visible_pairs", shape);
  std::int64_t pairs = 0;
  if (shape.key_lengths.empty()) {
    pairs = shape.batch_size *
            visible_pairs(shape.seq_len, shape.S(), shape.S(), shape.causal, shape.window);
  }
  for (const Index keys : shape.key_lengths) {
    pairs += visible_pairs(shape.seq_len, shape.S(), keys, shape.causal, shape.window);
  }
  return shape.num_heads * pairs;
}

}  // namespace headwise::inline v0_1

// headwise/runtime/path.hpp
// The two ways in which attention is computed.

namespace headwise::inline v0_1 {

/// Both give the same function.
enum class Path {
  flash,         ///< in tiles: nothing of size L x S
  materialized,  ///< with the weights [B, H, L, S] kept
};

}  // namespace headwise::inline v0_1

// headwise/analysis/count_flops.hpp
// Floating-point operations in closed form, from shapes alone. A multiply-add is two; comparisons
// and copies are none; e^x is one. Conventions, a pair being a visible (query, key) of one head:
//   linear        2 N K O, and N O for a bias
//   scores        2 d a pair            context  2 dv a pair
//   softmax       5 a pair: scale, subtract the maximum, e^x, sum, divide

namespace headwise::inline v0_1 {

/// FLOPs by step, in the order of the computation.
struct FlopCount {
  std::int64_t layer_norm = 0;    // step 1
  std::int64_t q_projection = 0;  // step 2, 2 N D H d
  std::int64_t k_projection = 0;  // step 2
  std::int64_t v_projection = 0;  // step 2
  std::int64_t scores = 0;        // step 4a
  std::int64_t softmax = 0;       // step 4c
  std::int64_t context = 0;       // step 4e
  std::int64_t o_projection = 0;  // step 6
  std::int64_t biases = 0;        // of the projections, and of masks
  std::int64_t dropout = 0;       // steps 4d and 7

  /// Steps 2 and 6, without their biases.
  std::int64_t projections() const {
    return q_projection + k_projection + v_projection + o_projection;
  }
  /// Matrix products alone.
  std::int64_t products() const { return projections() + scores + context; }
  /// All of them.
  std::int64_t total() const { return products() + softmax + layer_norm + biases + dropout; }

  /// One of them by its name.
  struct Step {
    std::string_view name;  // as reports print it
    std::int64_t flops;     // a multiply-add is two
  };
  /// All of them by name, in the order above.
  std::array<Step, 10> steps() const {
    return {{{"layer_norm", layer_norm},
             {"q projection", q_projection},
             {"k projection", k_projection},
             {"v projection", v_projection},
             {"scores", scores},
             {"softmax", softmax},
             {"context", context},
             {"o projection", o_projection},
             {"biases", biases},
             {"dropout", dropout}}};
  }
};

/// Forward, either path.
inline FlopCount count_flops(const AttentionShape& s) {
  detail::require_shape_of_call("count_flops", s);
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const std::int64_t pairs = visible_pairs(s);
  FlopCount count;
  if (s.layer_norm) count.layer_norm = N * ((s.layer_norm_affine ? 8 : 6) * D + 5);
  count.q_projection = 2 * N * D * s.q_width();
  count.k_projection = 2 * M * s.k_in() * s.k_width();
  count.v_projection = 2 * M * s.v_in() * s.v_width();
  count.scores = 2 * s.d() * pairs;
  count.softmax = 5 * pairs;
  count.context = 2 * s.dv() * pairs;
  count.o_projection = 2 * N * s.context_width() * D;
  count.biases = (s.q_bias ? N * s.q_width() : 0) + (s.k_bias ? M * s.k_width() : 0) +
                 (s.v_bias ? M * s.v_width() : 0) + (s.o_bias ? N * D : 0) + s.mask_biases * pairs;
  count.dropout = (s.weight_dropout ? pairs : 0) + (s.output_dropout ? N * D : 0);
  return count;
}

/// Backward. Products cost twice the forward's: one for each operand's gradient. Flash computes
/// scores again: `scores` is 6 d a pair, against 4 d with kept weights.
///
/// softmax, a pair: dp p summed (2), subtract, multiply, scale; flash: scale, subtract both parts
/// of the logsumexp (2), e^x again, then subtract, multiply, scale, and 2 dv a query for
/// rowsum(d_o o).
inline FlopCount count_backward_flops(const AttentionShape& s, Path path) {
  detail::require_shape_of_call("count_backward_flops", s);
  const bool flash = path == Path::flash;
  const FlopCount forward = count_flops(s);
  const std::int64_t N = s.query_rows(), D = s.d_model, pairs = visible_pairs(s);
  FlopCount count;
  if (s.layer_norm) count.layer_norm = N * ((s.layer_norm_affine ? 18 : 11) * D + 2);
  count.q_projection = 2 * forward.q_projection;
  count.k_projection = 2 * forward.k_projection;
  count.v_projection = 2 * forward.v_projection;
  count.o_projection = 2 * forward.o_projection;
  count.scores = (flash ? 6 : 4) * s.d() * pairs;
  count.context = 4 * s.dv() * pairs;
  count.softmax = flash ? 7 * pairs + 2 * s.dv() * s.num_heads * s.query_rows() : 5 * pairs;
  count.biases = forward.biases - (flash ? 0 : s.mask_biases * pairs);
  count.dropout = (s.weight_dropout ? 2 * pairs : 0) + (s.output_dropout ? N * D : 0);
  return count;
}

/// Forward FLOPs of plain self-attention: 8 B L D^2 + 4 B L^2 D + 5 B H L^2.
inline std::int64_t count_flops(Index batch_size, Index seq_len, Index d_model, Index n_heads) {
  return count_flops(AttentionShape{.batch_size = batch_size,
                                    .seq_len = seq_len,
                                    .d_model = d_model,
                                    .num_heads = n_heads})
      .total();
}

}  // namespace headwise::inline v0_1

// headwise/simd/constants.hpp
// What the vector functions share over all instruction sets: which types have vectors, and the
// coefficients of their polynomials.

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd {

template <class T>
inline constexpr bool vectorised = std::same_as<T, float> || std::same_as<T, double>;

/// 2^f as a polynomial that is 1 at 0 and elsewhere nearest by relative error, over
/// [-1/2, 1/2]. Each coefficient is rounded before those above it are fitted, so that they make up
/// for its rounding; what is left is in the comments.
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
  static constexpr int mantissa_bits = 23;
  // x + shift has round(x) + 127, the exponent's bits of 2^round(x), in its lowest bits.
  static constexpr float shift = 0x1.8p23f + 127;
  static constexpr float lowest = -126.0f;  // below, 2^x is denormal
  // log2(e) in two parts: the product of the first with a number of 18 bits is exact.
  static constexpr float log2e_high = 0x1.7p+0f, log2e_low = 0x1.547652p-8f;
  static constexpr int low_bits = 15;  // a square without them has 18
  // 3.6e-9
  static constexpr float terms[] = {0x1.0p+0f,     0x1.62e43p-1f,   0x1.ebfbd8p-3f, 0x1.c6af78p-5f,
                                    0x1.3b30bp-7f, 0x1.5f0a66p-10f, 0x1.3f906cp-13f};
};

template <>
struct Exp2Constants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr double shift = 0x1.8p52 + 1023;
  static constexpr double lowest = -1022.0;
  static constexpr double log2e_high = 0x1.715p+0, log2e_low = 0x1.1d94ae0bf85dep-14;
  static constexpr int low_bits = 33;  // a square without them has 40
  // 5.6e-18
  static constexpr double terms[] = {0x1.0p+0,
                                     0x1.62e42fefa39efp-1,
                                     0x1.ebfbdff82c5a5p-3,
                                     0x1.c6b08d704a122p-5,
                                     0x1.3b2ab6fb9ffb3p-7,
                                     0x1.5d87fe78a111cp-10,
                                     0x1.4309130f139cbp-13,
                                     0x1.ffcbfc595bcf6p-17,
                                     0x1.62bfc71ea7788p-20,
                                     0x1.b5253f6036401p-24,
                                     0x1.e61c1058a1947p-28,
                                     0x1.e9471c875b804p-32};
};

/// What a normal distribution has beyond t, over e^(-t^2 / 2): a quotient of two polynomials that
/// is 1/2 at 0 and elsewhere nearest by relative error, up to where the power is 0. All terms are
/// above 0, so that no digit is lost in the sums. With what the coefficients are rounded by:
template <class T>
struct NormalConstants;

template <>
struct NormalConstants<float> {
  static constexpr float bound = 14.5f;  // e^(-bound^2 / 2) is 0
  // 4.6e-8
  static constexpr float over[] = {0.5f, 0x1.c00f4ap-2f, 0x1.7617bep-3f, 0x1.4b38ccp-5f,
                                   0x1.0ba8f0p-8f};
  static constexpr float under[] = {1.0f,           0x1.ac49d2p+0f, 0x1.333f32p+0f,
                                    0x1.df2ec4p-2f, 0x1.9f26eap-4f, 0x1.4f753ap-7f};
};

template <>
struct NormalConstants<double> {
  static constexpr double bound = 38.7;
  // 1.2e-16
  static constexpr double over[] = {0.5,
                                    0x1.8c8162598299ap-1,
                                    0x1.2fd0aa33c7c96p-1,
                                    0x1.27ca9c189fdecp-2,
                                    0x1.8f4c227df4e7dp-4,
                                    0x1.81f1d515e43b8p-6,
                                    0x1.0b109c9d98019p-8,
                                    0x1.0006ee6b8aba2p-11,
                                    0x1.36e59c0e55316p-15,
                                    0x1.719f512ea47cbp-20};
  static constexpr double under[] = {1.0,
                                     0x1.2c61c5fc12252p+1,
                                     0x1.4793e0e998435p+1,
                                     0x1.b65697275ec58p+0,
                                     0x1.8fb73ff518c5fp-1,
                                     0x1.047dfd72a2fddp-2,
                                     0x1.edae50fe8b76cp-5,
                                     0x1.51c2a68cdbc20p-7,
                                     0x1.41c9824706ad2p-10,
                                     0x1.85a6c86b23d51p-14,
                                     0x1.cf40bdb65eb68p-19};
};

/// Beyond these |x|, e^-|x| is 0, and e^-|z| of gelu_tanh.
template <class T>
struct LogisticConstants {
  static constexpr T bound = sizeof(T) == 4 ? T(105) : T(750);
  static constexpr T tanh_bound = sizeof(T) == 4 ? T(11) : T(22);
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd

// headwise/tensor/scalar.hpp
// Which types numbers may have. float and double run vectorised; long double, or a type of one's
// own that counts or differentiates, runs the same source one element at a time.

namespace headwise::inline v0_1 {

/// Arithmetic, order, std::numeric_limits, conversion from double, and exp, log and sqrt found by
/// argument-dependent lookup or in std.
template <class T>
concept Scalar = std::numeric_limits<T>::is_specialized && !std::same_as<T, bool> &&
                 std::constructible_from<T, double> && requires(T a, T b) {
  a + b;
  a - b;
  a* b;
  a / b;
  a < b;
};

inline namespace HEADWISE_CODE {

/// x = -infinity, written by its bits: some compilers refuse the literal under -ffast-math, and
/// clang 19 lets no function return it. It is stored in results, never computed with.
template <Scalar T>
void set_negative_infinity(T& x) {
  constexpr std::uint32_t single = 0xFF800000u;
  constexpr std::uint64_t twice = 0xFFF0000000000000u;
  if constexpr (std::same_as<T, float>) {
    std::memcpy(&x, &single, sizeof x);
  } else if constexpr (std::same_as<T, double>) {
    std::memcpy(&x, &twice, sizeof x);
  } else {
    x = T(std::bit_cast<double>(twice));
  }
}

HEADWISE_STRICT_MATH_BEGIN

/// Whether an option is a number to compute with: neither NaN nor infinite. By comparisons, for a
/// scalar type that counts its operations; strict, so that -ffast-math does not decide it unseen.
template <Scalar T>
bool is_finite_option(const T& value) {
  const T most = (std::numeric_limits<T>::max)(), least = std::numeric_limits<T>::lowest();
  return !(value < least) && !(most < value) && (value < most || least < value);
}

HEADWISE_STRICT_MATH_END

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/tensor/view.hpp
// Strided views: a pointer, extents, strides. They own nothing and copy nothing.
//
// A function's signature says what it does with each: In is read, Out is overwritten, InOut is
// added to. TensorView and Tensor pass to all three with the scalar type deduced, because the
// three are their bases. Const flows inward: a const Tensor passes only as In.

namespace headwise::inline v0_1 {

/// What owns its elements is derived from this; see Tensor.
struct OwnsElements {};

template <class U>
concept OwnsItsElements = std::derived_from<std::remove_const_t<U>, OwnsElements>;

/// A tensor that is read. `{}` is an absent one. Elements lie where their type may: an address that
/// T is not aligned for is the caller's fault, and is not found out.
template <class T, int R>
class In {
 public:
  /// The type of an element.
  using value_type = T;
  /// The number of axes.
  static constexpr int rank = R;
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = In<T, Q>;

  /// An absent tensor.
  constexpr In() = default;

  /// Dense row-major storage of this shape.
  constexpr In(const T* data, const Shape<R>& shape) : In(data, shape, shape.row_major_strides()) {}

  /// Element (i, j, ...) is data[i strides[0] + j strides[1] + ...].
  constexpr In(const T* data, const Shape<R>& shape, const Shape<R>& strides)
      : data_(data), shape_(shape), strides_(strides) {}

  /// Element (0, 0, ...); null for an absent tensor.
  constexpr const T* data() const { return data_; }
  /// The extents of all axes.
  constexpr const Shape<R>& shape() const { return shape_; }
  /// How far apart neighbours along each axis lie, in elements.
  constexpr const Shape<R>& strides() const { return strides_; }
  /// The extent of one axis.
  constexpr Index extent(int axis) const { return shape_[axis]; }
  /// The stride of one axis.
  constexpr Index stride(int axis) const { return strides_[axis]; }
  /// The number of elements. Throws ShapeError where it cannot be counted.
  constexpr Index size() const { return shape_.size(); }
  /// Whether this is `{}`.
  constexpr bool absent() const { return data_ == nullptr && shape_ == Shape<R>(); }

  /// Whether the elements lie one behind the other in row-major order.
  constexpr bool dense() const {
    if (size() == 0) return true;
    Index step = 1;
    for (int r = R - 1; r >= 0; --r) {
      if (shape_[r] != 1 && strides_[r] != step) return false;
      step *= shape_[r];
    }
    return true;
  }

  /// Element (i, j, ...); its bounds are an assertion.
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) constexpr const T& operator()(Ints... index) const {
    return data_[offset(Shape<R>(index...))];
  }
  /// Element `index`.
  constexpr const T& operator()(const Shape<R>& index) const { return data_[offset(index)]; }

  /// How far element `index` lies behind element (0, 0, ...).
  constexpr Index offset(const Shape<R>& index) const {
    Index sum = 0;
    for (int r = 0; r < R; ++r) {
      assert(index[r] >= 0 && index[r] < shape_[r]);
      sum += index[r] * strides_[r];
    }
    return sum;
  }

 private:
  const T* data_ = nullptr;
  Shape<R> shape_;
  Shape<R> strides_;
};

/// A tensor that is overwritten. What it held before is never read.
template <class T, int R>
class Out : public In<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = Out<T, Q>;

  /// An absent tensor.
  constexpr Out() = default;
  /// Dense row-major storage of this shape.
  constexpr Out(T* data, const Shape<R>& shape) : In<T, R>(data, shape), data_(data) {}
  /// Element (i, j, ...) is data[i strides[0] + j strides[1] + ...].
  constexpr Out(T* data, const Shape<R>& shape, const Shape<R>& strides)
      : In<T, R>(data, shape, strides), data_(data) {}

  /// The elements of a Tensor.
  template <OwnsItsElements U>
  requires(!std::is_const_v<U> && std::derived_from<U, Out<T, R>>) constexpr Out(U& tensor)
      : Out(tensor.data(), tensor.shape(), tensor.strides()) {}
  template <OwnsItsElements U>
  requires std::derived_from<U, Out<T, R>> Out(const U& tensor)
  = delete;  // a const Tensor is not written to

  /// Element (0, 0, ...); null for an absent tensor.
  constexpr T* data() const { return data_; }

  /// Element (i, j, ...); its bounds are an assertion.
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) constexpr T& operator()(Ints... index) const {
    return data_[this->offset(Shape<R>(index...))];
  }
  /// Element `index`.
  constexpr T& operator()(const Shape<R>& index) const { return data_[this->offset(index)]; }

 private:
  T* data_ = nullptr;
};

/// A tensor that is added to: what it holds before the call is kept.
template <class T, int R>
class InOut : public Out<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = InOut<T, Q>;
  using Out<T, R>::Out;
  /// An absent tensor.
  constexpr InOut() = default;
  /// Adds to what could be overwritten.
  explicit constexpr InOut(const Out<T, R>& out) : Out<T, R>(out) {}
};

/// A view for keeping: what users build over their own memory.
template <class T, int R>
class TensorView : public InOut<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = TensorView<T, Q>;
  using InOut<T, R>::InOut;
  constexpr TensorView() = default;
};

/// A view for keeping that only reads.
template <class T, int R>
class TensorView<const T, R> : public In<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = TensorView<const T, Q>;
  using In<T, R>::In;
  constexpr TensorView() = default;
  /// Keeps what was passed in.
  constexpr TensorView(const In<T, R>& view) : In<T, R>(view) {}
};

/// A vector over memory of the caller's.
template <class T>
using View1 = TensorView<T, 1>;
/// A matrix over memory of the caller's.
template <class T>
using View2 = TensorView<T, 2>;
/// Three axes, as [B, L, D], over memory of the caller's.
template <class T>
using View3 = TensorView<T, 3>;
/// Four axes, as [B, H, L, d], over memory of the caller's.
template <class T>
using View4 = TensorView<T, 4>;

}  // namespace headwise::inline v0_1

// headwise/kernels/matrix.hpp
// What a kernel sees of a matrix: a pointer and two strides. No shapes, no ownership, no checks.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// Element (i, j) is data[i row + j column].
template <class T>
struct Matrix {
  T* data;
  Index row;
  Index column;

  T& operator()(Index i, Index j) const { return data[i * row + j * column]; }
  Matrix transposed() const { return {data, column, row}; }
  Matrix from(Index i, Index j) const { return {data + i * row + j * column, row, column}; }
  operator Matrix<const T>() const { return {data, row, column}; }
};

/// Element n is data[n step]. Null where there is none.
template <class T>
struct Row {
  T* data;
  Index step;

  T& operator[](Index n) const { return data[n * step]; }
  operator Row<const T>() const { return {data, step}; }
};

template <class T>
Row<const T> row(const In<T, 1>& view) {
  return {view.absent() ? nullptr : view.data(), view.stride(0)};
}
template <class T>
Row<T> row(const Out<T, 1>& view) {
  return {view.absent() ? nullptr : view.data(), view.stride(0)};
}
/// Row i of a matrix.
template <class T>
Row<T> row(const Matrix<T>& matrix, Index i) {
  return {matrix.data + i * matrix.row, matrix.column};
}

/// Whether a view has no elements. From its pointer, which may be null, no step may be taken.
template <class T, int R>
bool is_empty(const In<T, R>& view) {
  bool empty = false;
  for (int r = 0; r < R; ++r) empty = empty || view.extent(r) == 0;
  return empty;
}

template <class T>
Matrix<const T> matrix(const In<T, 2>& view) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data(), view.stride(0), view.stride(1)};
}
template <class T>
Matrix<T> matrix(const Out<T, 2>& view) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data(), view.stride(0), view.stride(1)};
}
/// The matrix of batch element b and head h.
template <class T>
Matrix<const T> matrix(const In<T, 4>& view, Index b, Index h) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data() + b * view.stride(0) + h * view.stride(1), view.stride(2), view.stride(3)};
}
template <class T>
Matrix<T> matrix(const Out<T, 4>& view, Index b, Index h) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data() + b * view.stride(0) + h * view.stride(1), view.stride(2), view.stride(3)};
}

constexpr Index round_up(Index n, Index step) { return (n + step - 1) / step * step; }

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/tensor/philox.hpp
// Counter-based random numbers: a number is a function of a key and a position, so that any
// thread, tiling or recomputation draws the same one and nothing needs to be stored.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Philox4x32: 128 random bits from a 128-bit counter and a 64-bit key.
///
/// `rounds` 10 is the published default, 7 the fewest that pass BigCrush.
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
template <int rounds = 10>
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(even)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// The two halves of a seed.
constexpr std::array<std::uint32_t, 2> philox_key(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

/// A key of its own for each (seed, stream, step): what is drawn under one says nothing about
/// what is drawn under another.
constexpr std::array<std::uint32_t, 2> philox_key(std::uint64_t seed, std::uint32_t stream,
                                                  std::uint64_t step) {
  const auto words = philox<10>({static_cast<std::uint32_t>(step),
                                 static_cast<std::uint32_t>(step >> 32), stream, 0x68656164u},
                                philox_key(seed));
  return {words[0], words[1]};
}

/// A number in (0, 1] from 53 random bits.
constexpr double unit_interval(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bits = ((std::uint64_t{high} << 32) | low) >> 11;
  return (static_cast<double>(bits) + 1.0) * 0x1.0p-53;
}

/// The standard normal number at `position` of the stream named by the key (Box and Muller).
inline double philox_normal(std::array<std::uint32_t, 2> key, std::uint64_t position) {
  const auto words = philox<10>(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0u, 0u},
      key);
  const double radius = std::sqrt(-2.0 * std::log(unit_interval(words[0], words[1])));
  return radius * std::cos(2.0 * std::numbers::pi * unit_interval(words[2], words[3]));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/score/dropout_mask.hpp
// Which elements dropout keeps: a function of (seed, step, b, h, i, j), so that any tiling, thread
// count, path or recomputation draws the same mask and nothing is stored.

namespace headwise::inline v0_1 {

HEADWISE_STRICT_MATH_BEGIN

/// Elements are zeroed with probability `rate` and the others multiplied by 1 / (1 - rate).
/// Rate 0, the default, is inference. `step` is what changes from one training step to the next.
struct Dropout {
  double rate = 0.0;       // 0 to 1
  std::uint64_t seed = 0;  // of the run
  std::uint64_t step = 0;  // of training: another for each

  /// Whether a mask of this rate drops anything: masks are drawn to 2^-16.
  bool active() const { return rate >= 0x1p-17; }

  /// Throws ArgumentError unless the rate is in [0, 1].
  void require_valid(std::string_view function) const {
    require(rate >= 0.0 && rate <= 1.0, function,
            [&] { return "dropout rate is " + std::to_string(rate) + ", expected 0 to 1"; });
  }
};

HEADWISE_STRICT_MATH_END

/// What a dropout is applied to. The same seed draws unrelated masks for each.
enum class DropoutStream : std::uint32_t { weights = 1, output = 2 };

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// The mask of one call.
///
/// One Philox block serves 8 neighbours along j with 16 bits each: the rate is met to 2^-17. 7
/// rounds are the fewest that pass BigCrush. (A word a pair at 10 rounds, the usual choice, is
/// nearly three times the work: twice the blocks, of 10 rounds instead of 7.)
class DropoutMask {
 public:
  /// Keeps everything.
  DropoutMask() = default;
  /// The mask that seed, step and stream name.
  DropoutMask(const Dropout& dropout, DropoutStream stream)
      : key_(philox_key(dropout.seed, static_cast<std::uint32_t>(stream), dropout.step)),
        threshold_(static_cast<std::uint32_t>(std::lround(dropout.rate * 65536.0))),
        keep_factor_(dropout.rate < 1.0 ? 1.0 / (1.0 - dropout.rate) : 0.0) {}

  /// Whether it drops anything.
  bool active() const { return threshold_ != 0; }

  /// What a kept element is multiplied by.
  double keep_factor() const { return keep_factor_; }

  /// Who draws many blocks at once draws philox<7> of the counter (j / 8, i, h, b), each index
  /// modulo 2^32, with this key: element j % 8 = e has the 16 bits of word e / 2, the lower ones
  /// first, and is kept where they are >= threshold().
  const std::array<std::uint32_t, 2>& key() const { return key_; }
  /// What the 16 bits of a kept element reach; 0 to 2^16.
  std::uint32_t threshold() const { return threshold_; }

  /// Whether element (b, h, i, j) is kept, with probability 1 - rate.
  bool kept(Index b, Index h, Index i, Index j) const {
    const auto words = block(b, h, i, j / 8);
    return bits(words, static_cast<int>(j % 8)) >= threshold_;
  }

  /// factors[t] = 0 or `factor` for pairs (i, j + t), t in [0, count).
  template <class T>
  void row(Index b, Index h, Index i, Index j, Index count, T factor, T* factors) const {
    for (Index t = 0; t < count;) {
      const auto words = block(b, h, i, (j + t) / 8);
      for (int lane = static_cast<int>((j + t) % 8); lane < 8 && t < count; ++lane, ++t) {
        factors[t] = bits(words, lane) >= threshold_ ? factor : T(0);
      }
    }
  }

 private:
  std::array<std::uint32_t, 4> block(Index b, Index h, Index i, Index j8) const {
    return philox<7>({static_cast<std::uint32_t>(j8), static_cast<std::uint32_t>(i),
                      static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(b)},
                     key_);
  }
  static std::uint32_t bits(const std::array<std::uint32_t, 4>& words, int lane) {
    return (words[static_cast<std::size_t>(lane / 2)] >> (16 * (lane % 2))) & 0xFFFFu;
  }

  std::array<std::uint32_t, 2> key_{};
  std::uint32_t threshold_ = 0;
  double keep_factor_ = 1.0;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/tensor/overlap.hpp
// Whether two views share memory, decided from addresses, extents and strides alone: heads that
// lie between each other in one row are apart, though their ranges of memory are not.
//   require_apart("linear_forward", {"y", y}, {{"x", x}, {"w", w}})

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A view without its types: where its elements lie, under the name that an error calls it by.
struct Footprint {
  std::string_view name;
  std::uintptr_t address = 0;
  std::uintptr_t low = 0, high = 0;  // of the first bytes of elements
  Index element_bytes = 1;
  int axes = 0;                           // those with more than one index
  std::array<Index, 8> extents, strides;  // of those; what is behind them is not set
  bool empty = false;  // without elements, or beyond any memory: nothing is decided there

  template <class T, int R>
  Footprint(std::string_view argument, const In<T, R>& view)
      : name(argument),
        address(reinterpret_cast<std::uintptr_t>(view.data())),
        element_bytes(static_cast<Index>(sizeof(T))) {
    static_assert(R <= 8);
    walk(view.shape().extents, view.strides().extents);
  }

 private:
  [[gnu::noinline]] void walk(std::span<const Index> all_extents,
                              std::span<const Index> all_strides) {
    constexpr Index longest = Index{1} << 58;
    low = high = address;
    empty = address == 0;
    for (std::size_t r = 0; r < all_extents.size(); ++r) {
      const Index extent = all_extents[r], stride = all_strides[r];
      if (extent <= 0) empty = true;
      if (extent <= 1) continue;
      if (stride > longest || stride < -longest) empty = true;
      extents[static_cast<std::size_t>(axes)] = extent;
      strides[static_cast<std::size_t>(axes++)] = stride;
      const auto reach = static_cast<std::uintptr_t>(stride) *
                         static_cast<std::uintptr_t>(extent - 1) *
                         static_cast<std::uintptr_t>(element_bytes);
      (stride < 0 ? low : high) += reach;
    }
  }
};

/// sum of step x over x in [0, most], one of several: all steps are above 0.
struct StepSum {
  Index step, most;
};

/// How many of up to `wanted` ways there are to reach the target, the steps falling. It looks at no
/// more than `budget` cases and says 0 beyond them; nested strides need one or two an axis.
inline int count_ways(std::span<const StepSum> sums, Index target, int wanted, int& budget) {
  if (target < 0) return 0;
  if (sums.empty()) return target == 0 ? 1 : 0;
  Index rest = 0;
  for (const StepSum& inner : sums.subspan(1)) rest += inner.step * inner.most;
  const auto [step, most] = sums.front();
  const Index low = target <= rest ? 0 : (target - rest + step - 1) / step;
  const Index high = target / step < most ? target / step : most;
  int ways = 0;
  for (Index x = low; x <= high && ways < wanted && --budget > 0; ++x) {
    ways += count_ways(sums.subspan(1), target - x * step, wanted - ways, budget);
  }
  return ways;
}

/// The equation that two elements lie at one address: a sum over the axes of both views.
class Meeting {
 public:
  explicit Meeting(Index distance) : target_(distance) {}

  /// Adds stride x for x in [0, most].
  void add(Index stride, Index most) {
    constexpr Index limit = Index{1} << 58;  // beyond any memory: nothing is decided there
    if (stride == 0 || most == 0) return;
    if (stride > limit / most || stride < -(limit / most)) undecided_ = true;
    if (undecided_) return;
    if (stride < 0) target_ -= stride * most;
    const StepSum sum{stride < 0 ? -stride : stride, most};
    for (std::size_t n = 0; n < count_; ++n) {
      if (sums_[n].step == sum.step) return void(sums_[n].most += most);
    }
    sums_[count_++] = sum;
  }

  bool has_solutions(int wanted) {
    if (undecided_) return false;
    std::sort(sums_.begin(), sums_.begin() + static_cast<std::ptrdiff_t>(count_),
              [](const StepSum& a, const StepSum& b) { return a.step > b.step; });
    int budget = 4096;
    return count_ways({sums_.data(), count_}, target_, wanted, budget) >= wanted;
  }

 private:
  Index target_;
  bool undecided_ = false;
  std::size_t count_ = 0;
  std::array<StepSum, 18> sums_{};
};

/// Whether the two share a byte. Views whose layout would take too long to decide count as apart.
inline bool overlap(const Footprint& a, const Footprint& b) {
  if (a.empty || b.empty || a.high + (static_cast<std::uintptr_t>(a.element_bytes) - 1) < b.low ||
      b.high + (static_cast<std::uintptr_t>(b.element_bytes) - 1) < a.low) {
    return false;
  }
  const auto bytes = static_cast<Index>(b.address - a.address);
  // In elements where they are alike, in bytes otherwise: then each byte of an element counts.
  const bool alike = a.element_bytes == b.element_bytes && bytes % a.element_bytes == 0;
  const Index unit = alike ? a.element_bytes : 1;
  Meeting meeting(bytes / unit);
  const auto add = [&](const Footprint& x, Index sign) {
    for (std::size_t r = 0; r < static_cast<std::size_t>(x.axes); ++r) {
      meeting.add(sign * x.strides[r] * (x.element_bytes / unit), x.extents[r] - 1);
    }
    if (!alike) meeting.add(sign, x.element_bytes - 1);
  };
  add(a, 1);
  add(b, -1);
  return meeting.has_solutions(1);
}

/// Whether two indices of one view name the same element.
inline bool repeats_elements(const Footprint& a) {
  if (a.empty) return false;
  const std::uintptr_t element = static_cast<std::uintptr_t>(a.element_bytes);
  std::uintptr_t inner = 0;  // how far the axes behind reach: a longer stride leads beyond them
  int nested = a.axes;
  for (; nested > 0; --nested) {
    const auto r = static_cast<std::size_t>(nested - 1);
    if (a.strides[r] <= 0 || static_cast<std::uintptr_t>(a.strides[r]) * element <= inner) break;
    inner += static_cast<std::uintptr_t>(a.strides[r]) *
             static_cast<std::uintptr_t>(a.extents[r] - 1) * element;
  }
  if (nested == 0) return false;
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
    if (a.strides[r] == 0) return true;
  }
  Index middle = 0;  // every x at half of its range: the indices are equal
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
    const Index step = a.strides[r] < 0 ? -a.strides[r] : a.strides[r];
    if (step > (Index{1} << 56) / a.extents[r]) return false;
    middle += step * (a.extents[r] - 1);
    for (std::size_t s = 0; s < r; ++s) {
      if (a.strides[s] == a.strides[r] || a.strides[s] == -a.strides[r]) return true;
    }
  }
  Meeting meeting(middle);
  for (std::size_t r = 0; r < static_cast<std::size_t>(a.axes); ++r) {
    meeting.add(a.strides[r] < 0 ? -a.strides[r] : a.strides[r], 2 * (a.extents[r] - 1));
  }
  return meeting.has_solutions(2);
}

/// Whether they are the same elements in the same order.
inline bool same_elements(const Footprint& a, const Footprint& b) {
  return a.address == b.address && a.element_bytes == b.element_bytes && a.axes == b.axes &&
         std::equal(a.extents.begin(), a.extents.begin() + a.axes, b.extents.begin()) &&
         std::equal(a.strides.begin(), a.strides.begin() + a.axes, b.strides.begin());
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError unless every index of `out` names an element of its own. (None of these is
/// worth inlining; inlined, g++ 12 warns of its own std::string.)
[[gnu::noinline]] inline void require_distinct(std::string_view function,
                                               const detail::Footprint& out) {
  if (!detail::repeats_elements(out)) [[likely]]
    return;
  raise<ShapeError>(std::string(function) + ": " + std::string(out.name) +
                    " holds one element at two indices, expected elements of their own");
}

/// Throws ShapeError unless `out` shares no element with any of the others, nor any with itself.
[[gnu::noinline]] inline void require_apart(std::string_view function, const detail::Footprint& out,
                                            std::initializer_list<detail::Footprint> others) {
  require_distinct(function, out);
  for (const detail::Footprint& other : others) {
    if (!detail::overlap(out, other)) [[likely]]
      continue;
    raise<ShapeError>(std::string(function) + ": " + std::string(out.name) + " overlaps " +
                      std::string(other.name) + ", expected memory of its own");
  }
}

/// Throws ShapeError unless `out` is `in`, element for element, or shares none with it.
[[gnu::noinline]] inline void require_same_or_apart(std::string_view function,
                                                    const detail::Footprint& out,
                                                    const detail::Footprint& in) {
  if (detail::same_elements(out, in) || !detail::overlap(out, in)) [[likely]]
    return;
  raise<ShapeError>(std::string(function) + ": " + std::string(out.name) + " overlaps " +
                    std::string(in.name) + " shifted, expected " + std::string(in.name) +
                    " itself or memory of its own");
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/tensor/require.hpp
// The shape rules of a call, a line each:
//   require_shape("linear_forward", "w", w, Shape{I, O}, "I from x " + ...)

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

// Without types and ranks, so that a program holds them once and not for each view that it checks.

[[gnu::noinline]] inline void require_countable(std::string_view function,
                                                std::string_view argument,
                                                std::span<const Index> extents, const void* data) {
  const auto subject = [&] {
    return std::string(function) + ": " + std::string(argument) + " is " + format_extents(extents);
  };
  constexpr Index most = Index{1} << 48;
  Index count = 1;
  bool some = true;
  for (const Index extent : extents) {
    if (extent < 0) raise<ShapeError>(subject() + ", expected extents of 0 or more");
    if (extent > 0 && count > most / extent) {
      raise<ShapeError>(subject() + ", expected extents whose product is at most 2^48");
    }
    some = some && extent > 0;
    if (extent > 0) count *= extent;
  }
  if (some && data == nullptr) {
    raise<ShapeError>(subject() + " at a null address, expected its elements");
  }
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_shape(std::string_view function,
                                                               std::string_view argument,
                                                               std::span<const Index> extents,
                                                               std::span<const Index> expected,
                                                               std::string_view whence) {
  raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                    format_extents(extents) + ", expected " + format_extents(expected) + " (" +
                    std::string(whence) + ")");
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError for a view with an extent below 0, with more elements than any memory holds
/// (an extent of 0 counts as 1, so that no product of extents overflows), or with elements and
/// no address.
template <class T, int R>
void require_countable(std::string_view function, std::string_view argument,
                       const In<T, R>& tensor) {
  detail::require_countable(function, argument, tensor.shape().extents, tensor.data());
}

/// Throws ShapeError `function: argument is [got], expected [wanted] (whence)` unless they agree,
/// and for a view that is not countable. `whence` is called only then, so that a call that is right
/// builds no text.
template <class T, int R, class Whence>
void require_shape(std::string_view function, std::string_view argument, const In<T, R>& tensor,
                   const Shape<R>& expected, Whence&& whence) {
  if (tensor.shape() == expected) [[likely]]
    return require_countable(function, argument, tensor);
  const auto& got = tensor.shape().extents;
  if constexpr (std::is_invocable_v<Whence>) {
    detail::raise_shape(function, argument, got, expected.extents, whence());
  } else {
    detail::raise_shape(function, argument, got, expected.extents, whence);
  }
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/tensor/tensor.hpp
// A tensor that owns its elements: dense, row-major, 64-byte aligned, from a memory resource.

namespace headwise::inline v0_1 {

/// Every block that the library asks a memory resource for starts on such a boundary.
inline constexpr std::size_t storage_alignment = 64;

/// The bytes that an owning tensor asks its memory resource for.
template <class T>
constexpr std::size_t storage_bytes(Index elements) {
  return static_cast<std::size_t>(elements) * sizeof(T);
}

/// Owns its elements. Zero-initialised, but by uninitialized(). Copies are deep; a const Tensor is
/// read-only.
///
/// A failed allocation throws std::bad_alloc and leaves every object as it was.
template <class T, int R>
class Tensor : public InOut<T, R>, public OwnsElements {
 public:
  /// An absent tensor.
  Tensor() noexcept = default;

  /// Zeros. Throws ShapeError for a negative extent, std::bad_alloc.
  explicit Tensor(const Shape<R>& shape,
                  std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : Tensor(shape, allocate(shape, memory), memory) {
    std::uninitialized_value_construct_n(data(), this->size());
  }

  /// Elements that have no values yet, for who writes each before it is read. Throws as above.
  static Tensor uninitialized(
      const Shape<R>& shape, std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    Tensor tensor(shape, allocate(shape, memory), memory);
    std::uninitialized_default_construct_n(tensor.data(), tensor.size());
    return tensor;
  }

  /// A vector of `count` elements.
  explicit Tensor(Index count, std::pmr::memory_resource* memory =
                                   std::pmr::get_default_resource()) requires(R == 1)
      : Tensor(Shape<1>(count), memory) {}

  /// The values in row-major order. Throws ShapeError unless there are as many as the shape says.
  Tensor(const Shape<R>& shape, std::initializer_list<T> values,
         std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : Tensor(shape, memory) {
    if (static_cast<Index>(values.size()) != this->size()) {
      raise<ShapeError>("Tensor: values are " + std::to_string(values.size()) + ", expected " +
                        std::to_string(this->size()) + " (shape " + shape.format() + ")");
    }
    std::copy(values.begin(), values.end(), data());
  }

  /// A deep copy from the same memory resource.
  Tensor(const Tensor& other)
      : Tensor(other.shape(), allocate(other.shape(), other.memory_), other.memory_) {
    std::uninitialized_copy_n(other.data(), this->size(), data());
  }
  /// Takes the elements; `other` is absent then.
  Tensor(Tensor&& other) noexcept { swap(other); }
  /// A deep copy; where it throws, this is as it was.
  Tensor& operator=(const Tensor& other) {
    if (this != &other) Tensor(other).swap(*this);
    return *this;
  }
  /// Takes the elements.
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor(std::move(other)).swap(*this);
    return *this;
  }
  ~Tensor() {
    if (data() == nullptr) return;
    std::destroy_n(data(), this->size());
    memory_->deallocate(data(), storage_bytes<T>(this->size()), storage_alignment);
  }

  /// Exchanges elements and memory resources.
  void swap(Tensor& other) noexcept {
    std::swap(static_cast<InOut<T, R>&>(*this), static_cast<InOut<T, R>&>(other));
    std::swap(memory_, other.memory_);
  }

  /// The first element; null where there is none.
  T* data() { return InOut<T, R>::data(); }
  /// The same, to be read.
  const T* data() const { return In<T, R>::data(); }

  /// Element (i, j, ...).
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) T& operator()(Ints... index) {
    return InOut<T, R>::operator()(index...);
  }
  /// The same, to be read.
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) const T& operator()(Ints... index) const {
    return In<T, R>::operator()(index...);
  }
  /// Element `index`.
  T& operator()(const Shape<R>& index) { return InOut<T, R>::operator()(index); }
  /// The same, to be read.
  const T& operator()(const Shape<R>& index) const { return In<T, R>::operator()(index); }

  /// All elements in row-major order, as a range.
  ///@{
  T* begin() { return data(); }
  T* end() { return data() + this->size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + this->size(); }
  ///@}

  /// Where the elements came from; null for an absent tensor.
  std::pmr::memory_resource* memory() const { return memory_; }

 private:
  Tensor(const Shape<R>& shape, T* storage, std::pmr::memory_resource* memory)
      : InOut<T, R>(storage, shape), memory_(memory) {}

  static T* allocate(const Shape<R>& shape, std::pmr::memory_resource* memory) {
    const Index count = shape.size();
    if (count == 0) return nullptr;
    if (count > (std::numeric_limits<Index>::max)() / static_cast<Index>(sizeof(T))) {
      raise<ShapeError>("Tensor: shape is " + shape.format() + ", expected below 2^63 bytes");
    }
    require(memory != nullptr, "Tensor", "memory is null, expected a memory resource");
    return static_cast<T*>(memory->allocate(storage_bytes<T>(count), storage_alignment));
  }

  std::pmr::memory_resource* memory_ = nullptr;
};

/// A vector that owns its elements.
template <class T>
using Tensor1 = Tensor<T, 1>;
/// A matrix that owns its elements.
template <class T>
using Tensor2 = Tensor<T, 2>;
/// Three axes, as [B, L, D].
template <class T>
using Tensor3 = Tensor<T, 3>;
/// Four axes, as [B, H, L, d].
template <class T>
using Tensor4 = Tensor<T, 4>;

}  // namespace headwise::inline v0_1

// headwise/tensor/view_ops.hpp
// Views of views: slices, transposes, heads. Nothing here copies but `copy` and `contiguous`.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

inline void require_axis(std::string_view function, int axis, int rank) {
  require(axis >= 0 && axis < rank, function, [&] {
    return "axis is " + std::to_string(axis) + ", expected 0 to " + std::to_string(rank - 1);
  });
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_slice(Index begin, Index count, int axis,
                                                               std::span<const Index> extents) {
  raise<ShapeError>("slice: begin is " + std::to_string(begin) + " and count " +
                    std::to_string(count) + ", expected a part of axis " + std::to_string(axis) +
                    " of " + format_extents(extents));
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The view of a Tensor.
template <class T, int R>
TensorView<T, R> as_view(Tensor<T, R>& tensor) {
  return {tensor.data(), tensor.shape(), tensor.strides()};
}
/// The view of a const Tensor: to be read.
template <class T, int R>
In<T, R> as_view(const Tensor<T, R>& tensor) {
  return tensor;
}
/// A view is its own.
template <class V>
requires(!OwnsItsElements<V>) V as_view(const V& view) { return view; }

/// What can be viewed: any view, and a Tensor that has a name and so outlives the call.
template <class V>
concept Viewable = requires {
  typename std::remove_cvref_t<V>::template with_rank<1>;
}
&&(!OwnsItsElements<std::remove_reference_t<V>> || std::is_lvalue_reference_v<V>);

/// What as_view gives.
template <class V>
using view_of = decltype(as_view(std::declval<V>()));
/// The same with Q axes.
template <class V, int Q>
using view_of_rank = typename view_of<V>::template with_rank<Q>;

/// Elements begin, begin + 1, ... begin + count - 1 of one axis.
/// Throws ShapeError unless 0 <= begin <= begin + count <= extent.
template <Viewable V>
view_of<V&> slice(V&& tensor, int axis, Index begin, Index count) {
  const auto view = as_view(tensor);
  detail::require_axis("slice", axis, view.rank);
  if (begin < 0 || count < 0 || begin > view.extent(axis) - count) {
    detail::raise_slice(begin, count, axis, view.shape().extents);
  }
  auto shape = view.shape();
  shape[axis] = count;
  return {view.data() + (view.data() == nullptr ? 0 : begin * view.stride(axis)), shape,
          view.strides()};
}

/// One index of the first axis; the view that remains has one axis less.
/// Throws ShapeError unless 0 <= index < extent.
template <Viewable V>
auto select(V&& tensor, Index index) {
  const auto view = as_view(tensor);
  using View = std::remove_const_t<decltype(view)>;
  constexpr int rank = View::rank - 1;
  if (index < 0 || index >= view.extent(0)) {
    raise<ShapeError>("select: index is " + std::to_string(index) + ", expected one of axis 0 of " +
                      view.shape().format());
  }
  Shape<rank> shape, strides;
  for (int r = 0; r < rank; ++r) {
    shape[r] = view.extent(r + 1);
    strides[r] = view.stride(r + 1);
  }
  const Index offset = view.data() == nullptr ? 0 : index * view.stride(0);
  return view_of_rank<V&, rank>(view.data() + offset, shape, strides);
}

/// Two axes exchanged. Throws ArgumentError for an axis that is not there.
template <Viewable V>
view_of<V&> transpose(V&& tensor, int axis_a, int axis_b) {
  const auto view = as_view(tensor);
  detail::require_axis("transpose", axis_a, view.rank);
  detail::require_axis("transpose", axis_b, view.rank);
  auto shape = view.shape();
  auto strides = view.strides();
  std::swap(shape[axis_a], shape[axis_b]);
  std::swap(strides[axis_a], strides[axis_b]);
  return {view.data(), shape, strides};
}

/// [B, L, C] as the matrix [B L, C]: possible where batch follows batch at the distance of L rows.
template <class V>
bool rows_are_uniform(const V& tensor) {
  return tensor.extent(0) <= 1 || tensor.extent(1) <= 1 ||
         tensor.stride(0) == tensor.extent(1) * tensor.stride(1);
}

/// [B, L, C] seen as [B L, C]. Throws ShapeError where no strides describe that.
template <Viewable V>
auto merge_rows(V&& tensor) {
  const auto view = as_view(tensor);
  require_countable("merge_rows", "x", view);
  if (!rows_are_uniform(view)) {
    raise<ShapeError>("merge_rows: strides of x " + view.shape().format() + " are " +
                      view.strides().format() +
                      ", expected rows at one common distance; copy it first");
  }
  return view_of_rank<V&, 2>(view.data(), Shape{view.extent(0) * view.extent(1), view.extent(2)},
                             Shape{view.stride(view.extent(1) == 1 ? 0 : 1), view.stride(2)});
}

/// [B, L, H d] seen as [B, H, L, d], head i in columns i d ... (i + 1) d - 1.
///
/// Over rows at distance W the strides are (L W, d, W, 1): no element moves.
/// Throws ShapeError unless num_heads divides the width.
template <Viewable V>
auto split_heads(V&& tensor, Index num_heads) {
  const auto view = as_view(tensor);
  require_countable("split_heads", "x", view);
  if (num_heads <= 0 || view.extent(2) % num_heads != 0) {
    raise<ShapeError>("split_heads: x is " + view.shape().format() + ", expected a width of " +
                      std::to_string(num_heads) + " equal heads, at least 1");
  }
  const Index width = view.extent(2) / num_heads;
  return view_of_rank<V&, 4>(
      view.data(), Shape{view.extent(0), num_heads, view.extent(1), width},
      Shape{view.stride(0), width * view.stride(2), view.stride(1), view.stride(2)});
}

/// [B, H, L, d] seen as [B, L, H d]: the inverse of split_heads on the same storage.
/// Throws ShapeError where the heads do not lie side by side in a row.
template <Viewable V>
auto merge_heads(V&& tensor) {
  const auto view = as_view(tensor);
  require_countable("merge_heads", "x", view);
  if (view.extent(1) > 1 && view.stride(1) != view.extent(3) * view.stride(3)) {
    raise<ShapeError>("merge_heads: strides of x " + view.shape().format() + " are " +
                      view.strides().format() +
                      ", expected heads side by side; copy it into such a layout first");
  }
  return view_of_rank<V&, 3>(view.data(),
                             Shape{view.extent(0), view.extent(2), view.extent(1) * view.extent(3)},
                             Shape{view.stride(0), view.stride(2), view.stride(3)});
}

/// to = from, element by element. Throws ShapeError unless the shapes are equal and the two are one
/// tensor or lie apart.
template <class T, int R>
void copy(In<T, R> from, Out<std::type_identity_t<T>, R> to) {
  require_countable("copy", "from", from);
  require_shape("copy", "to", to, from.shape(), "from");
  require_distinct("copy", {"to", to});
  require_same_or_apart("copy", {"to", to}, {"from", from});
  for_each_index(from.shape(), [&](const Shape<R>& index) { to(index) = from(index); });
}

/// A dense copy. Throws std::bad_alloc.
template <class T, int R>
Tensor<T, R> contiguous(In<T, R> from,
                        std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  auto result = Tensor<T, R>::uninitialized(from.shape(), memory);
  copy(from, result);
  return result;
}

/// Every element = value.
template <class T, int R>
void fill(Out<T, R> tensor, const std::type_identity_t<T>& value) {
  require_countable("fill", "tensor", tensor);
  for_each_index(tensor.shape(), [&](const Shape<R>& index) { tensor(index) = value; });
}

/// The same values in another scalar type, as static_cast rounds them. Throws std::bad_alloc.
template <class To, class From, int R>
Tensor<To, R> convert(In<From, R> from) {
  require_countable("convert", "from", from);
  Tensor<To, R> result(from.shape());
  for_each_index(from.shape(),
                 [&](const Shape<R>& index) { result(index) = static_cast<To>(from(index)); });
  return result;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/score/mask.hpp
// Which query may see which key, and what is added to their score. Each kind of mask is a type of
// its own, so that "true" can't be taken for its opposite; a raw array of bool does not compile.

namespace headwise::inline v0_1 {

/// Query i sees key j only where j <= i + (S - L): the last query sees the last key.
struct Causal {};
/// The causal mask, as calls name it: `{.mask = causal}`.
inline constexpr Causal causal{};

/// Query i sees key j only where |i + (S - L) - j| < size.
struct Window {
  Index size;  // 1: itself alone
};

/// Element b of the batch has keys 0 ... lengths[b] - 1.
struct KeyLengths {
  std::span<const Index> lengths;  // [B]
};

/// A pair is visible where keep(b, h, i, j) == keep. Axes of extent 1 stand for all.
struct PairMask {
  In<bool, 4> pairs;  // [B or 1, H or 1, L or 1, S or 1]
  bool keep;          // what `pairs` holds where a pair is visible
};

/// Added to the scaled score. A value below -max/4, -infinity among them, hides the pair.
template <Scalar T>
struct BiasMask {
  In<T, 4> values;  // [B or 1, H or 1, L or 1, S or 1]
};

/// The masks by name. Views are kept, not copied: they must outlive the call, and for training the
/// backward call too.
struct Mask {
  /// True where the query may see the key.
  static PairMask keep(In<bool, 4> pairs) { return {pairs, true}; }  // [B, H, L, S] or 1
  /// The same [L, S] for all batches and heads.
  static PairMask keep(In<bool, 2> pairs) { return {all(pairs), true}; }  // [L, S]
  /// True where the query may not see the key.
  static PairMask drop(In<bool, 4> pairs) { return {pairs, false}; }  // [B, H, L, S] or 1
  /// The same [L, S] for all batches and heads.
  static PairMask drop(In<bool, 2> pairs) { return {all(pairs), false}; }
  /// True where a key counts: [B, S], for all heads and queries.
  static PairMask keep_keys(In<bool, 2> keys) { return {of_keys(keys), true}; }
  /// True where a key is padding: [B, S], for all heads and queries.
  static PairMask drop_keys(In<bool, 2> keys) { return {of_keys(keys), false}; }
  /// Added to the scores: ALiBi, relative positions, or a mask of -infinity.
  template <class V>
  requires(view_of<V&>::rank == 4 || view_of<V&>::rank == 2) static auto bias(const V& values) {
    using T = std::remove_const_t<typename V::value_type>;
    if constexpr (view_of<V&>::rank == 4) {
      return BiasMask<T>{In<T, 4>(values)};
    } else {
      return BiasMask<T>{all(In<T, 2>(values))};
    }
  }
  /// The masks view their tensors: one without a name would be gone before the call.
  template <class T, int R>
  static void keep(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void drop(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void keep_keys(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void drop_keys(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void bias(const Tensor<T, R>&& temporary) = delete;

  /// Element b of the batch has keys 0 ... lengths[b] - 1: [B], viewed.
  static KeyLengths key_lengths(std::span<const Index> lengths) { return {lengths}; }
  static void key_lengths(const std::vector<Index>&& temporary) = delete;
  /// Query i sees key j only where |i + (S - L) - j| < size; size >= 1.
  static Window window(Index size) { return {size}; }

 private:
  template <class T>
  static In<T, 4> all(In<T, 2> pairs) {
    return {pairs.data(), Shape{1, 1, pairs.extent(0), pairs.extent(1)},
            Shape{0, 0, pairs.stride(0), pairs.stride(1)}};
  }
  static In<bool, 4> of_keys(In<bool, 2> keys) {
    return {keys.data(), Shape{keys.extent(0), 1, 1, keys.extent(1)},
            Shape{keys.stride(0), 0, 0, keys.stride(1)}};
  }
};

template <Scalar T>
class AttentionMask;

/// What an AttentionMask<T> is put together from.
template <class Term, class T>
concept MaskTerm = std::same_as<Term, Causal> || std::same_as<Term, Window> ||
    std::same_as<Term, KeyLengths> || std::same_as<Term, PairMask> ||
    std::same_as<Term, BiasMask<T>> || std::same_as<Term, AttentionMask<T>>;

/// All masks of a call together: a pair is visible where every one of them lets it be.
///   AttentionMask<float> mask = {causal, Mask::key_lengths(lengths), Mask::bias(alibi)};
template <Scalar T>
class AttentionMask {
 public:
  static constexpr int most = 4;  // pair masks and, apart from them, biases

  /// No mask: every query sees every key.
  AttentionMask() noexcept {}  // not defaulted: g++ 12 fails to compute its exception specification
  /// All terms together. Throws ArgumentError for what does not go together.
  template <class... Terms>
  requires(sizeof...(Terms) >= 1 && (MaskTerm<Terms, T> && ...))
      AttentionMask(const Terms&... terms) {
    (add(terms), ...);
  }

  /// Adds a term; throws ArgumentError where it does not go together with those before it.
  void add(Causal) { causal_ = true; }
  /// Of several windows the smallest holds. Throws ArgumentError for a size below 1.
  void add(Window window) {
    require(window.size >= 1, "Mask::window",
            "size is " + std::to_string(window.size) + ", expected >= 1");
    constexpr Index widest = (std::numeric_limits<Index>::max)() / 4;  // wider than any sequence
    window_ = std::min<Index>(window_ == 0 ? widest : window_, window.size);
  }
  /// Throws ArgumentError where there are key lengths already.
  void add(KeyLengths keys) {
    require(!has_key_lengths_, "AttentionMask", "key lengths are given twice, expected once");
    key_lengths_ = keys.lengths;
    has_key_lengths_ = true;
  }
  /// Throws ArgumentError for more than 4 keep and drop masks.
  void add(const PairMask& mask) {
    require(pair_count_ < most, "AttentionMask",
            "keep and drop masks are 5, expected at most 4 (combine some into one tensor)");
    pairs_[static_cast<std::size_t>(pair_count_++)] = mask;
  }
  /// Throws ArgumentError for more than 4 biases.
  void add(const BiasMask<T>& mask) {
    require(bias_count_ < most, "AttentionMask",
            "biases are 5, expected at most 4 (add some up into one tensor)");
    biases_[static_cast<std::size_t>(bias_count_++)] = mask;
  }
  /// All terms of another mask, or, where they do not go together, an error and none.
  void add(const AttentionMask& other) {
    AttentionMask sum = *this;
    sum.causal_ = causal_ || other.causal_;
    if (other.window_ != 0) sum.add(Window{other.window_});
    if (other.has_key_lengths_) sum.add(KeyLengths{other.key_lengths_});
    for (const PairMask& mask : other.pair_masks()) sum.add(mask);
    for (const BiasMask<T>& mask : other.biases()) sum.add(mask);
    *this = sum;
  }

  /// Whether causality is among the terms.
  bool is_causal() const { return causal_; }
  /// The smallest window, or 0 for none.
  Index window() const { return window_; }  // 0: none
  /// Whether key lengths are among the terms.
  bool has_key_lengths() const { return has_key_lengths_; }
  /// They, [B], or empty.
  std::span<const Index> key_lengths() const { return key_lengths_; }
  /// The keep and drop masks among the terms.
  std::span<const PairMask> pair_masks() const {
    return {pairs_.data(), static_cast<std::size_t>(pair_count_)};
  }
  /// The biases among the terms.
  std::span<const BiasMask<T>> biases() const {
    return {biases_.data(), static_cast<std::size_t>(bias_count_)};
  }

  /// Throws ShapeError or ArgumentError unless every term fits scores [B, H, L, S].
  void require_fits(std::string_view function, Index B, Index H, Index L, Index S) const {
    for (const PairMask& mask : pair_masks()) {
      require_broadcast(function, mask.keep ? "Mask::keep" : "Mask::drop", mask.pairs,
                        Shape{B, H, L, S});
    }
    for (const BiasMask<T>& mask : biases()) {
      require_broadcast(function, "Mask::bias", mask.values, Shape{B, H, L, S});
    }
    if (!has_key_lengths_) return;
    require(static_cast<Index>(key_lengths_.size()) == B, function, [&] {
      return "Mask::key_lengths has " + std::to_string(key_lengths_.size()) +
             " lengths, expected " + std::to_string(B) + " (the batch size)";
    });
    for (Index length : key_lengths_) {
      require(length >= 0 && length <= S, function, [&] {
        return "Mask::key_lengths holds " + std::to_string(length) + ", expected 0 to " +
               std::to_string(S) + " (the number of keys)";
      });
    }
  }

 private:
  template <class V>
  static void require_broadcast(std::string_view function, std::string_view argument,
                                const In<V, 4>& mask, const Shape<4>& wanted) {
    const Shape<4>& got = mask.shape();
    require_countable(function, argument, mask);
    for (int r = 0; r < 4; ++r) {
      if (got[r] == wanted[r] || got[r] == 1) continue;
      raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                        got.format() + ", expected " + wanted.format() +
                        " or 1 on an axis (scores are [B, H, L, S])");
    }
  }

  bool causal_ = false;
  bool has_key_lengths_ = false;
  int pair_count_ = 0;
  int bias_count_ = 0;
  Index window_ = 0;
  std::span<const Index> key_lengths_;
  std::array<PairMask, most> pairs_{};
  std::array<BiasMask<T>, most> biases_{};
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A causal mask as values to add: 0 where j <= i, `fill` above the diagonal; for Mask::bias.
/// With the default fill it is a number like others: a row of nothing but fills is no masked row.
/// Throws ShapeError for n < 0, std::bad_alloc.
template <Scalar T>
Tensor<T, 2> causal_mask(Index n, T fill = T(-1e9)) {
  Tensor<T, 2> mask({n, n});
  for (Index i = 0; i < n; ++i) {
    for (Index j = i + 1; j < n; ++j) mask(i, j) = fill;
  }
  return mask;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/score/visibility.hpp
// The masks of one head as scalar functions of a pair (i, j), with the bounds of what a query can
// see. Bounds let whole tiles be skipped; what is left is asked pair by pair.

namespace headwise::inline v0_1 {

/// Keys begin ... end - 1.
struct KeyRange {
  Index begin;  // the first
  Index end;    // one behind the last
  /// How many they are.
  Index size() const { return end - begin; }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// What batch element b and head h may see, of L queries and S keys.
template <Scalar T>
class HeadVisibility {
 public:
  /// Of a mask that fits; what the mask views must outlive this.
  HeadVisibility(const AttentionMask<T>& mask, Index b, Index h, Index L, Index S)
      : offset_(S - L),
        causal_(mask.is_causal()),
        window_(mask.window()),
        keys_(mask.has_key_lengths() ? mask.key_lengths()[static_cast<std::size_t>(b)] : S),
        all_keys_(S),
        hidden_below_(std::numeric_limits<T>::lowest()) {
    if (!mask.biases().empty()) hidden_below_ = hidden_below_ / T(4);
    for (const PairMask& term : mask.pair_masks()) {
      pairs_[static_cast<std::size_t>(pair_count_++)] = {plane(term.pairs, b, h), term.keep};
    }
    for (const BiasMask<T>& term : mask.biases()) {
      biases_[static_cast<std::size_t>(bias_count_++)] = plane(term.values, b, h);
    }
  }

  /// The keys that causality, window and length leave to query i. Both ends grow with i.
  KeyRange range(Index i) const {
    const Index diagonal = i + offset_;
    Index begin = 0;
    Index end = keys_;
    if (causal_) end = std::min<Index>(end, diagonal + 1);
    if (window_ != 0) {
      begin = diagonal - window_ + 1;
      end = std::min<Index>(end, diagonal + window_);
    }
    begin = std::clamp(begin, Index{0}, keys_);
    return {begin, std::max<Index>(end, begin)};
  }

  /// The keys that at least one of the queries first ... first + count - 1 has in its range.
  KeyRange range(Index first, Index count) const {
    const KeyRange low = range(first);
    const KeyRange high = range(first + count - 1);
    return {low.begin, std::max<Index>(high.end, low.begin)};
  }

  /// Whether each of the queries first ... first + count - 1 sees each of the keys.
  bool sees_all(Index first, Index count, KeyRange keys) const {
    return !has_pair_masks() && range(first + count - 1).begin <= keys.begin &&
           range(first).end >= keys.end;
  }

  /// Whether pairs within the range have to be asked for one by one.
  bool has_pair_masks() const { return pair_count_ != 0 || bias_count_ != 0; }
  /// How many biases are added to a score.
  Index bias_count() const { return bias_count_; }

  /// Whether every query sees every key.
  bool sees_all() const {
    return !causal_ && window_ == 0 && keys_ == all_keys_ && !has_pair_masks();
  }

  /// For a pair within the range: whether no mask hides it.
  bool pair_visible(Index i, Index j) const {
    for (int t = 0; t < pair_count_; ++t) {
      const auto& [pairs, keep] = pairs_[static_cast<std::size_t>(t)];
      if (pairs.at(i, j) != keep) return false;
    }
    for (int t = 0; t < bias_count_; ++t) {
      if (biases_[static_cast<std::size_t>(t)].at(i, j) < hidden_below_) return false;
    }
    return true;
  }

  /// Whether query i sees key j.
  bool visible(Index i, Index j) const {
    const KeyRange keys = range(i);
    return j >= keys.begin && j < keys.end && pair_visible(i, j);
  }

  /// What is added to the score of a visible pair; 0 without biases.
  T bias(Index i, Index j) const {
    if (bias_count_ == 0) return T(0);
    T sum = biases_[0].at(i, j);
    for (int t = 1; t < bias_count_; ++t) sum = sum + biases_[static_cast<std::size_t>(t)].at(i, j);
    return sum;
  }

 private:
  template <class V>
  struct Plane {
    const V* data = nullptr;
    Index row = 0;
    Index column = 0;
    const V& at(Index i, Index j) const { return data[i * row + j * column]; }
  };
  struct PairPlane {
    Plane<bool> pairs;
    bool keep = true;
  };

  template <class V>
  static Plane<V> plane(const In<V, 4>& view, Index b, Index h) {
    const auto step = [&](int axis) {
      return view.extent(axis) == 1 ? Index{0} : view.stride(axis);
    };
    if (view.size() == 0) return {view.data(), 0, 0};  // null, perhaps: no step may be taken
    return {view.data() + b * step(0) + h * step(1), step(2), step(3)};
  }

  Index offset_;
  bool causal_;
  Index window_;
  Index keys_;
  Index all_keys_;
  T hidden_below_;
  int pair_count_ = 0;
  int bias_count_ = 0;
  std::array<PairPlane, AttentionMask<T>::most> pairs_{};
  std::array<Plane<T>, AttentionMask<T>::most> biases_{};
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/kernels/arguments.hpp
// What kernels are called with: plain data that looks the same from every instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// Of a product: rows of the result, columns of the result, inner length.
struct Extents {
  Index M, N, K;
};

/// What happens to a sum before it is stored: c = alpha sum + bias, or c = c + alpha sum.
template <class T>
struct Epilogue {
  T alpha = T(1);
  const T* bias = nullptr;  // [N], dense; only where c is overwritten
  bool accumulate = false;
};

/// What one head of one batch element attends with, on either path.
template <class T>
struct AttentionHead {
  Matrix<const T> q;  // [L, d]
  Matrix<const T> k;  // [S, d]
  Matrix<const T> v;  // [S, dv]
  Index L, S, d, dv;
  T scale;
  HeadVisibility<T> visibility;
  DropoutMask dropout;
  Index b, h;  // where the head stands: what its dropout mask is drawn from
};

/// Operations that a pair costs on top of its softmax: one a bias, and `a_dropout` with dropout.
template <class T>
constexpr std::int64_t score_extras(const AttentionHead<T>& head, std::int64_t a_dropout) {
  return head.visibility.bias_count() + (head.dropout.active() ? a_dropout : 0);
}

/// Where the gradients of a head go: dq [L, d] is overwritten; dk [S, d] and dv [S, dv] too, or
/// added to where another head of the same group was there before.
template <class T>
struct HeadGradients {
  Matrix<T> dq, dk, dv;
  bool accumulate;
};

/// A head, what its forward pass left, and where the gradient of its queries is summed up.
template <class T>
struct FlashHead {
  AttentionHead<T> forward;
  Matrix<const T> o;    // [L, dv]
  Matrix<const T> d_o;  // [L, dv]
  Matrix<const T> lse;  // [L, 2]
  const T* delta;       // [L], rowsum(d_o * o)
  Matrix<T> dq;         // [L, d], added to: each block of keys adds its part
};

/// What a task of attention has done: the pairs that causality, window and lengths leave to its
/// queries, and the multiply-adds and score operations that ran, padding and masked pairs too.
struct TileWork {
  std::int64_t pairs = 0;
  std::int64_t executed_flops = 0;
};

/// Layer normalisation of rows; gamma, beta, mean and rstd may be null. Of rms norm, beta and mean
/// are.
template <class T>
struct LayerNormRows {
  Matrix<const T> x;  // [N, D]
  Index D;
  Row<const T> gamma, beta;  // [D]
  T epsilon;
  Matrix<T> y;        // [N, D]
  Row<T> mean, rstd;  // [N]
};

/// Its gradients. gamma, dgamma and dbeta may be null; of rms norm, mean and dbeta are.
template <class T>
struct LayerNormBackwardRows {
  Matrix<const T> dy, x;  // [N, D]
  Index N, D;
  Row<const T> gamma;       // [D]
  Row<const T> mean, rstd;  // [N]
  Matrix<T> dx;             // [N, D], overwritten
  Row<T> dgamma, dbeta;     // [D], added to
};

/// Whether a product with it is exact.
template <class T>
bool is_power_of_two(const T& x) {
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
    int exponent = 0;
    return std::frexp(x, &exponent) == T(0.5);
  }
  return false;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/column_sums.hpp
// Sums down the columns of a matrix: the gradients of what was broadcast over its rows.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// Columns that are summed together, so that rows are read along.
inline constexpr Index columns_together = 64;

/// sums_n = sum of term(i, n) over rows i = begin ... end - 1, n < count <= columns_together:
/// chains of 16 rows, then pairwise, so that the error grows with the logarithm of the rows.
template <class T, class Term>
void sum_columns(Index begin, Index end, Index count, const Term& term, T* sums) {
  constexpr Index chain = 16;
  if (end - begin <= chain) {
    for (Index n = 0; n < count; ++n) sums[n] = term(begin, n);
    for (Index i = begin + 1; i < end; ++i) {
      for (Index n = 0; n < count; ++n) sums[n] = sums[n] + term(i, n);
    }
    return;
  }
  const Index middle = begin + (end - begin + chain) / (2 * chain) * chain;
  T lower[columns_together];
  sum_columns(begin, middle, count, term, sums);
  sum_columns(middle, end, count, term, lower);
  for (Index n = 0; n < count; ++n) sums[n] = sums[n] + lower[n];
}

/// out_n += sum over i of term(i, n), added to out once. What a column gives depends on its rows
/// alone.
template <class T, class Term>
void add_column_sums(Index rows, Index columns, Term term, T* out, Index step) {
  if (rows == 0) return;
  for (Index n0 = 0; n0 < columns; n0 += columns_together) {
    const Index count = std::min<Index>(columns_together, columns - n0);
    T sums[columns_together];
    sum_columns(
        Index{0}, rows, count, [&](Index i, Index n) { return term(i, n0 + n); }, sums);
    for (Index n = 0; n < count; ++n) out[(n0 + n) * step] = out[(n0 + n) * step] + sums[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/layer_norm.hpp
// Layer normalisation of one row, forward and backward. Sums run in T, in a fixed order.
// The equations are derived in docs/derivations/layer_norm_backward.md.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// What a row was normalised with.
template <class T>
struct RowMoments {
  T mean;
  T rstd;  // 1 / sqrt(variance + epsilon)
};

/// Steps 1a and 1b. Two passes, so that the variance of a row far from 0 keeps its digits.
template <class T>
RowMoments<T> row_moments(Row<const T> x, Index D, T epsilon) {
  using std::sqrt;
  T sum = T(0);
  for (Index n = 0; n < D; ++n) sum = sum + x[n];
  const T mean = sum / T(static_cast<double>(D));
  T squares = T(0);
  for (Index n = 0; n < D; ++n) {
    const T centred = x[n] - mean;
    squares = squares + centred * centred;
  }
  return {mean, T(1) / T(sqrt(squares / T(static_cast<double>(D)) + epsilon))};
}

/// Steps 1c and 1d: y = (x - mean) rstd gamma + beta; gamma and beta may be null. y may be x.
template <class T>
void normalise_row(Row<const T> x, Index D, RowMoments<T> moments, Row<const T> gamma,
                   Row<const T> beta, Row<T> y) {
  for (Index n = 0; n < D; ++n) {
    T value = (x[n] - moments.mean) * moments.rstd;
    if (gamma.data != nullptr) value = value * gamma[n];
    if (beta.data != nullptr) value = value + beta[n];
    y[n] = value;
  }
}

/// Steps 1d to 1a: dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma,
/// xhat = (x - mean) rstd; 0 where dy is 0 throughout, whatever x holds. dx may be dy.
template <class T>
void layer_norm_backward_row(Row<const T> dy, Row<const T> x, Index D, RowMoments<T> moments,
                             Row<const T> gamma, Row<T> dx) {
  const auto g = [&](Index n) { return gamma.data == nullptr ? dy[n] : dy[n] * gamma[n]; };
  T sum_g = T(0), sum_g_xhat = T(0);
  bool idle = true;
  for (Index n = 0; n < D; ++n) {
    const T gn = g(n);
    idle = idle && dy[n] == T(0);
    sum_g = sum_g + gn;
    sum_g_xhat = sum_g_xhat + gn * ((x[n] - moments.mean) * moments.rstd);
  }
  const T count = T(static_cast<double>(D));
  const T mean_g = sum_g / count, mean_g_xhat = sum_g_xhat / count;
  for (Index n = 0; n < D; ++n) {
    const T xhat = (x[n] - moments.mean) * moments.rstd;
    dx[n] = idle ? T(0) : moments.rstd * (g(n) - mean_g - xhat * mean_g_xhat);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/runtime/activation.hpp
// What stands between two linear layers.

namespace headwise::inline v0_1 {

/// A function of one number, applied to each element.
enum class Activation {
  relu,       ///< max(x, 0)
  gelu,       ///< x Phi(x), Phi the normal distribution; Hendrycks, Gimpel, 2016, arXiv 1606.08415
  gelu_tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: near gelu, from the same paper
  silu,       ///< x / (1 + e^-x); Elfwing, Uchibe, Doya, 2017, arXiv 1702.03118
};

}  // namespace headwise::inline v0_1

// headwise/kernels/activation.hpp
// Activations of one number and their slopes, for every type. All but relu are x share(x), where
// share rises from 0 to 1: that of gelu is the normal distribution, that of silu and gelu_tanh the
// logistic one. Then the slope is share(x) + x density(x).
//
// relu      max(x, 0)
// gelu      share Phi(x) = erfc(-x / sqrt(2)) / 2, density e^(-x^2 / 2) / sqrt(2 pi)
// silu      share s(x) = 1 / (1 + e^-x), density s(x) s(-x)
// gelu_tanh share s(z), z = 2 sqrt(2 / pi) (x + 0.044715 x^3), density z' s(z) s(-z):
//           (1 + tanh(u)) / 2 is s(2 u)

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// 1 - erf(x) for a type that has no erfc of its own, to its epsilon where x <= 0: a series near 0,
/// further out a continued fraction.
template <class T>
T erfc_by_series(const T& x) {
  using std::exp;
  if (x < T(0)) return T(2) - erfc_by_series<T>(T(0) - x);
  const T scale = exp(T(0) - x * x) * T(std::numbers::inv_sqrtpi);
  if (x < T(2.5)) {
    T term = T(2) * x, sum = term;  // sum of 2 x (2 x^2)^n / (1 3 5 ... (2 n + 1))
    for (int n = 1; n < 60; ++n) {
      term = term * (T(2) * x * x) / T(2.0 * n + 1);
      sum = sum + term;
    }
    return T(1) - scale * sum;
  }
  T fraction = x;  // x + (1/2) / (x + (2/2) / (x + (3/2) / ...))
  for (int n = 60; n >= 1; --n) fraction = x + T(n / 2.0) / fraction;
  return scale / fraction;
}

/// 1 - erf(x).
template <class T>
T complementary_error(const T& x) {
  using std::erfc;
  if constexpr (requires {
                  { erfc(x) } -> std::same_as<T>;
                }) {
    return erfc(x);
  } else {
    return erfc_by_series<T>(x);
  }
}

template <class T>
T negated(const T& x) {
  if constexpr (requires { T(-x); }) {
    return T(-x);
  } else {
    return T(0) - x;
  }
}

/// The logistic distribution at z, and what it leaves to 1.
template <class T>
struct Logistic {
  bool negative;
  T power, sum;  // e^-|z|, 1 + e^-|z|

  explicit Logistic(const T& z)
      : negative(z < T(0)), power(power_of_e(negative ? z : negated(z))), sum(T(1) + power) {}
  T share() const { return (negative ? power : T(1)) / sum; }
  T rest() const { return (negative ? T(1) : power) / sum; }

 private:
  static T power_of_e(const T& x) {
    using std::exp;
    return exp(x);
  }
};

/// As near as T comes: a long double keeps its digits.
template <class T>
T number(long double x) {
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(x);
  } else {
    return T(static_cast<double>(x));
  }
}

/// z = x (linear + cubic x^2) of gelu_tanh.
struct GeluTanh {
  static constexpr long double linear = 1.59576912160573071175978423973752747L;
  static constexpr long double cubic = linear * 0.044715L;
};

template <class T>
struct ShareAndDensity {
  T share, density;
};

/// Of every activation but relu.
template <class T>
T activation_share(Activation which, const T& x) {
  if (which == Activation::silu) return Logistic<T>(x).share();
  if (which == Activation::gelu) {
    return T(0.5) * complementary_error<T>(x * number<T>(-0.70710678118654752440084436210484904L));
  }
  const T linear = number<T>(GeluTanh::linear), cubic = number<T>(GeluTanh::cubic);
  return Logistic<T>(x * (linear + cubic * (x * x))).share();
}

/// Of every activation but relu.
template <class T>
ShareAndDensity<T> share_and_density(Activation which, const T& x) {
  using std::exp;
  if (which == Activation::gelu) {
    return {activation_share<T>(which, x),
            exp(T(-0.5) * (x * x)) * number<T>(0.39894228040143267793994605993438187L)};
  }
  if (which == Activation::silu) {
    const Logistic<T> of(x);
    const T share = of.share();
    return {share, share * of.rest()};
  }
  const T linear = number<T>(GeluTanh::linear), cubic = number<T>(GeluTanh::cubic);
  const T square = x * x;
  const Logistic<T> of(x * (linear + cubic * square));
  const T share = of.share(), both = share * of.rest();
  const T rise = linear + number<T>(3 * GeluTanh::cubic) * square;  // dz / dx
  return {share, both == T(0) ? T(0) : T(rise * both)};
}

/// f(x). That of -infinity is 0.
template <class T>
T activation_value(Activation which, const T& x) {
  if (which == Activation::relu) return x < T(0) ? T(0) : x;
  const T share = activation_share<T>(which, x);
  return share == T(0) ? T(0) : T(x * share);
}

/// f(x), if it is asked for, and f'(x). That of relu at 0 is 0.
template <class T>
struct ValueAndSlope {
  T value, slope;

  ValueAndSlope(Activation which, const T& x, bool with_value) : value(x), slope(T(1)) {
    if (which == Activation::relu) {
      if (x < T(0)) value = T(0);
      if (value == T(0)) slope = T(0);
      return;
    }
    const auto [share, density] = share_and_density<T>(which, x);
    if (with_value) value = share == T(0) ? T(0) : T(x * share);
    slope = density == T(0) ? share : T(share + x * density);
  }
};

/// Operations of forward an element, and of backward where dx alone is asked for.
struct ActivationFlops {
  int forward, backward;

  explicit constexpr ActivationFlops(Activation which)
      : forward(which == Activation::relu        ? 0
                : which == Activation::gelu_tanh ? 8
                                                 : 4),
        backward(which == Activation::relu        ? 1
                 : which == Activation::gelu      ? 10
                 : which == Activation::gelu_tanh ? 15
                                                  : 8) {}
  /// A product with the gate's other input, two more backward and, but of relu, f(x) again.
  static constexpr int gated = 1;
  constexpr int gated_backward() const { return backward + (forward == 0 ? 2 : 3); }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/softmax.hpp
// Softmax of one row, forward and backward.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// The sum of term(j) over visible j: `block` terms at a time, counted from j = 0, so that hidden
/// elements at the end of a row change no bit. (One chain of 1,024 lost twice the digits.)
template <class T, class Visible, class Term>
T sum_visible(Index n, Visible visible, Term term) {
  constexpr Index block = 16;
  T total = T(0);
  for (Index j0 = 0; j0 < n; j0 += block) {
    T sum = T(0);
    bool any = false;
    for (Index j = j0, end = std::min<Index>(n, j0 + block); j < end; ++j) {
      if (!visible(j)) continue;
      sum = any ? sum + term(j) : term(j);
      any = true;
    }
    if (any) total = total + sum;
  }
  return total;
}

/// In place over the elements j of a row with visible(j): x_j becomes e^(x_j - max) / sum, the
/// others 0, whatever they held; a row in which nothing is visible becomes 0 throughout.
template <class T, class Visible>
void softmax_row(Row<T> x, Index n, Visible visible) {
  using std::exp;
  T greatest = std::numeric_limits<T>::lowest();
  for (Index j = 0; j < n; ++j) {
    if (!visible(j)) continue;
    if (greatest < x[j]) greatest = x[j];
  }
  for (Index j = 0; j < n; ++j) x[j] = visible(j) ? T(exp(x[j] - greatest)) : T(0);
  const T sum = sum_visible<T>(n, visible, [&](Index j) { return x[j]; });
  for (Index j = 0; j < n; ++j) {
    if (visible(j)) x[j] = x[j] / sum;
  }
}

/// dx_j = p_j (dp_j - sum_k dp_k p_k) for visible j, 0 for the others. dx may be dp.
template <class T, class Visible>
void softmax_backward_row(Row<const T> dp, Row<const T> p, Row<T> dx, Index n, Visible visible) {
  const T sum = sum_visible<T>(n, visible, [&](Index j) { return dp[j] * p[j]; });
  for (Index j = 0; j < n; ++j) dx[j] = visible(j) ? p[j] * (dp[j] - sum) : T(0);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/cross_entropy.hpp
// Softmax cross-entropy of one row of logits, forward and backward. Sums run in T, in a fixed
// order.
//
//   loss = lse - x_t,   lse = log sum_v e^{x_v},   d loss / d x_v = e^{x_v - lse} - [v = t]
//
// Where the target is certain, 1 + the others' sum and 1 - the target's probability would lose what
// is to be learned: the target's own term is left out of both sums. The steps are those of
// docs/derivations/cross_entropy_backward.md.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// What a row gives.
template <class T>
struct CrossEntropy {
  T lse, loss;
};

/// log(1 + x), x >= 0, to the last digits of a small x.
template <class T>
T log_of_one_plus(const T& x) {
  if constexpr (std::floating_point<T>) {
    return std::log1p(x);
  } else {  // Kahan's: what rounding does to 1 + x happens to both, and cancels
    using std::log;
    const T sum = T(1) + x, rounded = sum - T(1);
    if (!(T(0) < rounded)) return x;
    return T(log(sum)) * x / rounded;
  }
}

/// From the greatest logit, the target's, and the sums of weights e^{x - greatest}: of the target,
/// and of all others. An infinite greatest logit gives NaN.
template <class T>
CrossEntropy<T> cross_entropy_from(T greatest, T target, T weight, T others) {
  using std::log;
  const bool ahead = target == greatest;  // its weight is 1
  const T rest = ahead ? log_of_one_plus(others) : T(log(weight + others));
  return {greatest + rest, (greatest - target) + rest};
}

/// Forward of one row of V logits.
template <class T>
CrossEntropy<T> cross_entropy_row(Row<const T> x, Index V, Index target) {
  using std::exp;
  T greatest = std::numeric_limits<T>::lowest();
  for (Index v = 0; v < V; ++v) {
    if (greatest < x[v]) greatest = x[v];
  }
  const T others = sum_visible<T>(
      V, [&](Index v) { return v != target; }, [&](Index v) { return T(exp(x[v] - greatest)); });
  return cross_entropy_from<T>(greatest, x[target], T(exp(x[target] - greatest)), others);
}

/// Backward of one row: dx_v = factor (e^{x_v - lse} - [v = target]). dx may be x.
template <class T>
void cross_entropy_backward_row(Row<const T> x, Index V, Index target, T lse, T factor, Row<T> dx) {
  using std::exp;
  const T weight = T(exp(x[target] - lse));
  const auto term = [&](Index v) {
    const T p = T(exp(x[v] - lse));
    dx[v] = factor * p;
    return p;
  };
  const T others = sum_visible<T>(
      V, [&](Index v) { return v != target; }, term);
  dx[target] = T(0) - factor * (others + T(0) * weight);  // 0 times NaN shows
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/optimizer.hpp
// What the kernels of an optimiser's step are called with: the numbers that are the same for every
// element, worked out once.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

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
};

/// A step of gradient descent.
template <class T>
struct SgdStep {
  T gradient_scale;       // what gradients are multiplied by before anything else
  T weight_decay;         // read where `decays`
  T momentum;             // read where there is a velocity
  T one_minus_dampening;  // the weight of a new gradient in it
  T minus_rate;           // -learning_rate
  bool decays = false;    // whether weight_decay is not 0
  bool first = false;     // whether the velocity is still to be set
  bool nesterov = false;  // whether the step looks ahead
};

/// What squares are summed in: double for float, T itself for what is wider.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, float>, double, T>;

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/rms_norm.hpp
// Root-mean-square normalisation of one row, forward and backward: layer norm without its mean.
// Sums run in T, in a fixed order.
//
// xhat = x rstd, rstd = 1 / sqrt(mean(x^2) + epsilon), y = xhat gamma. A change of x_j moves every
// xhat_i by rstd ((i == j) - xhat_i xhat_j / D), so that with g = dy gamma
// dx = rstd (g - xhat mean(g xhat)).

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// rstd
template <class T>
T root_mean_square(Row<const T> x, Index D, T epsilon) {
  using std::sqrt;
  T squares = T(0);
  for (Index n = 0; n < D; ++n) squares = squares + x[n] * x[n];
  return T(1) / T(sqrt(squares / T(static_cast<double>(D)) + epsilon));
}

/// y = x rstd gamma; gamma may be null. y may be x.
template <class T>
void rms_norm_row(Row<const T> x, Index D, T rstd, Row<const T> gamma, Row<T> y) {
  for (Index n = 0; n < D; ++n) {
    T value = x[n] * rstd;
    if (gamma.data != nullptr) value = value * gamma[n];
    y[n] = value;
  }
}

/// dx = rstd (g - xhat mean(g xhat)) with g = dy gamma, xhat = x rstd; 0 where dy is 0 throughout,
/// whatever x holds. dx may be dy.
template <class T>
void rms_norm_backward_row(Row<const T> dy, Row<const T> x, Index D, T rstd, Row<const T> gamma,
                           Row<T> dx) {
  const auto g = [&](Index n) { return gamma.data == nullptr ? dy[n] : dy[n] * gamma[n]; };
  T sum = T(0);
  bool idle = true;
  for (Index n = 0; n < D; ++n) {
    idle = idle && dy[n] == T(0);
    sum = sum + g(n) * (x[n] * rstd);
  }
  const T mean = sum / T(static_cast<double>(D));
  for (Index n = 0; n < D; ++n) dx[n] = idle ? T(0) : rstd * (g(n) - x[n] * rstd * mean);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/kernels/model_kernels.hpp
// The kernels of what a model has around attention: sums and products, activations, rms norm, what
// stands at a language model's ends, optimisers. A table of their own, so that a program that calls
// attention alone compiles none of them.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// What two elements become.
enum class Combination {
  first,                      // a
  sum,                        // a + b
  difference,                 // a - b
  product,                    // a b
  quotient,                   // a / b
  scaled,                     // alpha a
  gradient_product,           // a b, 0 where a is 0 whatever b holds
  gradient_quotient,          // a / b, likewise
  negative_gradient_product,  // -a b, likewise
};

/// Rows that are combined element by element. A row stride of 0 makes one row stand for all.
template <class T>
struct CombinedRows {
  Matrix<const T> a, b;  // [rows, N]; where only a is combined, b is a
  Matrix<T> y;           // [rows, N], overwritten; null where sums are taken
  Index N;
  T alpha = T(1);  // of Combination::scaled
};

/// Softmax cross-entropy of rows. lse may be null.
template <class T>
struct CrossEntropyRows {
  Matrix<const T> logits;  // [N, V]
  Index V;
  const Index* targets;  // [N]; below 0: the row is left out
  T* losses;             // [N]
  Row<T> lse;            // [N]
};

/// Its gradients.
template <class T>
struct CrossEntropyBackwardRows {
  Matrix<const T> logits;  // [N, V]
  Index V;
  const Index* targets;  // [N]; below 0: the row is left out
  Row<const T> lse;      // [N]
  T factor;              // of the loss of a row
  Matrix<T> d_logits;    // [N, V]
};

/// How rows of d elements are rotated, each by a row of the tables.
template <class T>
struct RotaryRows {
  Matrix<const T> cosines, sines;  // [rows, width / 2]
  Index d, width;                  // elements of a row, and the first of them, which rotate
  bool interleaved;                // pairs are neighbours; else one half of the width and the other
  bool transposed;                 // the other way round
};

/// An activation of rows, times `up` where that is not null.
template <class T>
struct ActivationRows {
  Activation which;
  Index F;
  Matrix<const T> x, up;  // [N, F]
  Matrix<T> y;            // [N, F]; may be x or up
};

/// Its gradients. up and d_up may be null, together.
template <class T>
struct ActivationBackwardRows {
  Activation which;
  Index F;
  Matrix<const T> dy, x, up;  // [N, F]
  Matrix<T> dx, d_up;         // [N, F], overwritten; dx may be dy
};

/// The kernels of one instruction set for T. What each does and takes is said where it is defined:
/// kernels/<file>.inc. Rows are a part of all rows, or of the columns where sums run down them.
template <Scalar T>
struct ModelKernels {
  // elementwise.inc
  void (*combine_rows)(Combination how, const CombinedRows<T>& of, Index begin, Index end);
  void (*combine_columns)(Combination how, const CombinedRows<T>& of, Index rows, Index begin,
                          Index end, Row<T> to);

  // activation.inc and rms_norm.inc
  void (*activation_rows)(const ActivationRows<T>& of, Index begin, Index end);
  void (*activation_backward_rows)(const ActivationBackwardRows<T>& of, Index begin, Index end);
  void (*rms_norm_rows)(const LayerNormRows<T>& of, Index begin, Index end);
  void (*rms_norm_backward_rows)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*rms_norm_columns)(const LayerNormBackwardRows<T>& of, Index begin, Index end);

  // embedding.inc, cross_entropy.inc and rotary.inc
  void (*add_row)(Row<const T> x, Index N, Row<T> to);
  void (*cross_entropy_rows)(const CrossEntropyRows<T>& of, Index begin, Index end);
  void (*cross_entropy_backward_rows)(const CrossEntropyBackwardRows<T>& of, Index begin,
                                      Index end);
  void (*rotate_rows)(const RotaryRows<T>& of, Matrix<const T> x, Matrix<T> y, Index begin,
                      Index end);

  // optimizer.inc, over dense elements
  void (*adamw)(const AdamWStep<T>& step, T* p, const T* g, T* m, T* v, Index n);
  void (*sgd)(const SgdStep<T>& step, T* p, const T* g, T* u, Index n);
  void (*scale_elements)(T factor, T* x, Index n);
  SumOf<T> (*sum_of_squares)(const T* x, Index n);
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/runtime/processor.hpp
// What the processor that runs the program can do, and how it is told to wait.

namespace headwise::inline v0_1 {

/// The instruction sets that matter to kernels, by their usual names: "sse2 avx avx2 fma avx512f".
/// Empty on other machines than x86-64.
inline std::string processor_features() {
  std::string names;
#if HEADWISE_X86
  const auto add = [&](bool has, const char* name) {
    if (!has) return;
    if (!names.empty()) names += ' ';
    names += name;
  };
  add(__builtin_cpu_supports("sse2"), "sse2");
  add(__builtin_cpu_supports("avx"), "avx");
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
#endif
  return names;
}

namespace detail {

/// Tells the processor that a loop only waits.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace detail

}  // namespace headwise::inline v0_1

// headwise/runtime/instruction_set.hpp
// The instruction sets that kernels are compiled for, and which of them this process uses.

namespace headwise::inline v0_1 {

/// From the narrowest vectors to the widest.
enum class InstructionSet {
  generic,  ///< 16 bytes, without fused multiply-add: every machine
  avx2,     ///< 32 bytes: AVX2 and FMA
  avx512,   ///< 64 bytes: AVX-512 F, DQ, BW and VL
};

/// Its name, as HEADWISE_SIMD takes it.
constexpr std::string_view name_of(InstructionSet set) {
  return set == InstructionSet::avx512 ? "avx512"
         : set == InstructionSet::avx2 ? "avx2"
                                       : "generic";
}

/// The size of its vectors.
constexpr int vector_bytes(InstructionSet set) {
  return set == InstructionSet::avx512 ? 64 : set == InstructionSet::avx2 ? 32 : 16;
}

/// Whether this processor runs it.
inline bool is_supported(InstructionSet set) {
  if (set == InstructionSet::generic) return true;
#if HEADWISE_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (set == InstructionSet::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

/// What a text chooses: null or empty the widest that this processor runs, else the one that it
/// names. Throws ArgumentError for another name, or one that this processor does not run.
inline InstructionSet choose_instruction_set(const char* text) {
  const std::string_view name = text == nullptr ? "" : text;
  for (const auto set : {InstructionSet::avx512, InstructionSet::avx2, InstructionSet::generic}) {
    if (name.empty() && is_supported(set)) return set;
    if (name != name_of(set)) continue;
    if (is_supported(set)) return set;
    raise<ArgumentError>("HEADWISE_SIMD: it is " + std::string(name) +
                         ", which this processor does not run; it has: " + processor_features());
  }
  raise<ArgumentError>("HEADWISE_SIMD: it is \"" + std::string(name) +
                       "\", expected generic, avx2 or avx512");
}

/// The instruction set of this process: that of the environment variable HEADWISE_SIMD, read at the
/// first call, or the widest that the processor runs. Throws ArgumentError as
/// choose_instruction_set.
inline InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_instruction_set(std::getenv("HEADWISE_SIMD"));
  return chosen;
}

}  // namespace headwise::inline v0_1

// headwise/runtime/workspace.hpp
// Scratch memory of a call: one block, an equal part for each worker, given back at the end.

namespace headwise::inline v0_1 {

/// Elements rounded up so that what follows starts on a 64-byte boundary.
template <class T>
constexpr Index padded(Index elements) {
  constexpr Index step =
      storage_alignment % sizeof(T) == 0 ? Index{storage_alignment / sizeof(T)} : Index{16};
  return (elements + step - 1) / step * step;
}

/// Hands out parts of a block of scratch, one behind the other. Over null it only counts: so the
/// buffers of a task are named once, and their size is what naming them takes.
template <class T>
class Scratch {
 public:
  /// Hands out from `begin` on; null to count only.
  explicit constexpr Scratch(T* begin = nullptr) : begin_(begin) {}
  /// The next part, on a 64-byte boundary.
  constexpr T* take(Index elements) {
    T* part = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += padded<T>(elements);
    return part;
  }
  /// Elements handed out so far, padding included.
  constexpr Index taken() const { return taken_; }

 private:
  T* begin_;
  Index taken_ = 0;
};

/// `elements` of T for each of `workers`, not initialised. Throws std::bad_alloc.
///
/// (Filling them with 0 took nine tenths of a call on few and short rows.)
template <class T>
class Workspace {
 public:
  /// Throws std::bad_alloc.
  Workspace(Index workers, Index elements, std::pmr::memory_resource* memory)
      : elements_(padded<T>(elements)), count_(workers * elements_), memory_(memory) {
    if (count_ == 0) return;
    require(memory_ != nullptr, "Workspace", "memory is null, expected a memory resource");
    block_ = static_cast<T*>(memory_->allocate(storage_bytes<T>(count_), storage_alignment));
    std::uninitialized_default_construct_n(block_, count_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (count_ == 0) return;
    std::destroy_n(block_, count_);
    memory_->deallocate(block_, storage_bytes<T>(count_), storage_alignment);
  }

  /// The part of one worker, all of it to be handed out.
  Scratch<T> of(Index worker) { return Scratch<T>(block_ + worker * elements_); }

 private:
  Index elements_;
  Index count_;
  std::pmr::memory_resource* memory_;
  T* block_ = nullptr;
};

}  // namespace headwise::inline v0_1

// headwise/kernels/kernels.hpp
// The kernels: matrix products, rows and attention of one head, compiled once for each instruction
// set and chosen when the program runs. They see pointers and strides; they check, allocate and
// throw nothing and know no threads.

// Where another translation unit compiles the kernels for float and double, with the same flags,
// only the generic ones are read here, for other types.
#if HEADWISE_USES_COMPILED || defined(HEADWISE_EXTERN_KERNELS)
#define HEADWISE_CONFIG_VECTOR_KERNELS 0
#else
#define HEADWISE_CONFIG_VECTOR_KERNELS HEADWISE_X86
#endif

#if HEADWISE_CONFIG_VECTOR_KERNELS
#include <immintrin.h>
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// The kernels of one instruction set for T. What each does and takes is said where it is defined:
/// kernels/<file>.inc.
template <Scalar T>
struct Kernels {
  InstructionSet instruction_set;
  Index lanes;             // of a vector
  Index forward_queries;   // most of a task of flash_forward
  Index forward_keys;      // of its blocks of keys
  Index backward_queries;  // of a tile of flash_backward_tile
  Index backward_keys;     // of a block of keys
  Index columns;           // of a panel: products are cut in multiples of it

  bool (*all_finite)(Matrix<const T> x, Index rows, Index columns);

  // gemm.inc
  Index (*gemm_scratch)(const Extents& size);
  void (*gemm)(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
               const Epilogue<T>& epilogue, T* scratch);
  std::int64_t (*executed_gemm_flops)(const Extents& size);

  // column_sums.inc, layer_norm.inc, softmax.inc and dropout.inc, each over a part of the rows or,
  // where sums run down them, of the columns
  void (*add_rows)(Matrix<const T> x, Index rows, Index begin, Index end, Row<T> to);
  void (*layer_norm_rows)(const LayerNormRows<T>& of, Index begin, Index end);
  void (*layer_norm_backward_rows)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*layer_norm_columns)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*softmax_rows)(Matrix<const T> x, Matrix<T> p, Index N, Index begin, Index end);
  void (*softmax_backward_rows)(Matrix<const T> dp, Matrix<const T> p, Matrix<T> dx, Index N,
                                Index begin, Index end);
  void (*drop_rows)(const DropoutMask& mask, Matrix<const T> x, Matrix<T> y, Index N, Index begin,
                    Index end);

  // attention_head.inc
  Index (*attention_forward_scratch)(Index L, Index S, Index d, Index dv, bool dropout);
  Index (*attention_backward_scratch)(Index L, Index S, Index d, Index dv, bool dropout);
  void (*score_head)(const AttentionHead<T>& head, Matrix<T> scores, T* scratch);
  void (*attention_head_forward)(const AttentionHead<T>& head, Matrix<T> weights, Matrix<T> o,
                                 Scratch<T> memory);
  void (*attention_head_backward)(const AttentionHead<T>& head, Matrix<const T> d_o,
                                  Matrix<const T> weights, const HeadGradients<T>& to,
                                  Scratch<T> memory);

  // flash_forward.inc and flash_backward.inc
  Index (*flash_forward_scratch)(Index d, Index dv);
  Index (*flash_backward_scratch)(Index d, Index dv);
  TileWork (*flash_forward)(const AttentionHead<T>& head, Index i0, Index rows, Matrix<T> o,
                            Matrix<T> lse, Scratch<T> memory);
  void (*row_deltas)(const FlashHead<T>& head, Index i0, Index rows, T* delta);
  void (*flash_backward_begin)(const AttentionHead<T>& head, Index j0, Index n, Scratch<T> memory);
  TileWork (*flash_backward_tile)(const FlashHead<T>& head, Index i0, Index rows, Index j0, Index n,
                                  Scratch<T> memory);
  void (*flash_backward_end)(const AttentionHead<T>& head, Index j0, Index n, Matrix<T> dk,
                             Matrix<T> dv, Scratch<T> memory);

  // simd/exp.inc
  void (*weights_of)(const T* x, Index n, T* y);
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

#define HEADWISE_ISA generic
#define HEADWISE_ISA_BYTES 16

// headwise/kernels/isa.inc
// All that is compiled for an instruction set: read once for each, inside its region. HEADWISE_ISA
// is its name and the innermost namespace, HEADWISE_ISA_BYTES the size of its vectors. In this
// order: each needs those above it.
// clang-format off
// headwise/simd/vector.inc
// Vectors of float and double on the compilers' vector extensions, and of every other scalar at
// width 1, so that a kernel is written once. Read once for each instruction set, inside its region
// (kernels/kernels.hpp): HEADWISE_ISA names it, HEADWISE_ISA_BYTES is its vectors' size.
//
// No vector crosses a function that is not always inlined: at -O0 g++ would pass it wrongly.

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Vectors of T: width, load, store and lane-wise functions. This one has width 1.
template <Scalar T>
struct Simd {
  using Vector = T;
  using Int = std::int64_t;
  using IntVector = Int;
  static constexpr int width = 1;

  HEADWISE_INLINE static Vector zero() { return T(0); }
  HEADWISE_INLINE static Vector broadcast(const T& x) { return x; }
  HEADWISE_INLINE static IntVector broadcast_int(Int x) { return x; }
  HEADWISE_INLINE static IntVector lane_numbers() { return 0; }
  HEADWISE_INLINE static Vector load(const T* from) { return *from; }
  HEADWISE_INLINE static void store(const Vector& x, T* to) { *to = x; }
  HEADWISE_INLINE static IntVector load_bytes(const std::uint8_t* from) { return *from; }
  HEADWISE_INLINE static IntVector load_ints(const Int* from) { return *from; }
  HEADWISE_INLINE static void store_ints(IntVector x, Int* to) { *to = x; }
  HEADWISE_INLINE static Vector fma(const Vector& a, const Vector& b, const Vector& c) {
    return a * b + c;
  }
  HEADWISE_INLINE static Vector greater(const Vector& a, const Vector& b) { return a < b ? b : a; }
  HEADWISE_INLINE static IntVector within(Int x, Int begin, Int end) {
    return x >= begin && x < end;
  }
  HEADWISE_INLINE static IntVector both(IntVector a, IntVector b) { return a != 0 && b != 0; }
  HEADWISE_INLINE static Vector select(IntVector condition, const Vector& yes, const Vector& no) {
    return condition != 0 ? yes : no;
  }
};

template <Scalar T>
requires vectorised<T>
struct Simd<T> {
  static constexpr int width = HEADWISE_ISA_BYTES / static_cast<int>(sizeof(T));
  typedef T Vector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  using Int = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef Int IntVector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  using Bits = std::make_unsigned_t<Int>;
  typedef Bits BitVector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  typedef std::uint8_t ByteVector __attribute__((vector_size(HEADWISE_ISA_BYTES / sizeof(T))));

  HEADWISE_INLINE static Vector zero() { return Vector{}; }
  HEADWISE_INLINE static Vector broadcast(T x) { return x - Vector{}; }  // folds to one shuffle
  HEADWISE_INLINE static IntVector broadcast_int(Int x) { return x - IntVector{}; }
  /// 0, 1, 2 ...
  HEADWISE_INLINE static IntVector lane_numbers() {
    Int numbers[std::size_t{width}];
    for (int i = 0; i < width; ++i) numbers[i] = i;
    return load_ints(numbers);
  }
  HEADWISE_INLINE static Vector load(const T* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store(Vector x, T* to) { std::memcpy(to, &x, sizeof x); }
  HEADWISE_INLINE static IntVector load_ints(const Int* from) {
    IntVector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store_ints(IntVector x, Int* to) { std::memcpy(to, &x, sizeof x); }
  /// `width` bytes, each to a lane.
  HEADWISE_INLINE static IntVector load_bytes(const std::uint8_t* from) {
    ByteVector x;
    std::memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, IntVector);
  }
  /// a b + c, rounded once where the instruction set can.
  HEADWISE_INLINE static Vector fma(Vector a, Vector b, Vector c) {
#if HEADWISE_ISA_BYTES == 64
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(
          Vector, _mm512_fmadd_ps(__builtin_bit_cast(__m512, a), __builtin_bit_cast(__m512, b),
                                  __builtin_bit_cast(__m512, c)));
    } else {
      return __builtin_bit_cast(
          Vector, _mm512_fmadd_pd(__builtin_bit_cast(__m512d, a), __builtin_bit_cast(__m512d, b),
                                  __builtin_bit_cast(__m512d, c)));
    }
#elif HEADWISE_ISA_BYTES == 32
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(
          Vector, _mm256_fmadd_ps(__builtin_bit_cast(__m256, a), __builtin_bit_cast(__m256, b),
                                  __builtin_bit_cast(__m256, c)));
    } else {
      return __builtin_bit_cast(
          Vector, _mm256_fmadd_pd(__builtin_bit_cast(__m256d, a), __builtin_bit_cast(__m256d, b),
                                  __builtin_bit_cast(__m256d, c)));
    }
#else
    return a * b + c;
#endif
  }
  /// The greater of two, lane by lane; a NaN in b is passed over. (The masked form of the
  /// intrinsic: g++ 12 warns of its own header at the other one.)
  HEADWISE_INLINE static Vector greater(Vector a, Vector b) {
#if HEADWISE_ISA_BYTES == 64
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(Vector, _mm512_maskz_max_ps(0xFFFF, __builtin_bit_cast(__m512, b),
                                                            __builtin_bit_cast(__m512, a)));
    } else {
      return __builtin_bit_cast(Vector, _mm512_maskz_max_pd(0xFF, __builtin_bit_cast(__m512d, b),
                                                            __builtin_bit_cast(__m512d, a)));
    }
#else
    return a < b ? b : a;
#endif
  }
  /// Whether begin <= x < end.
  HEADWISE_INLINE static IntVector within(IntVector x, IntVector begin, IntVector end) {
    return (x >= begin) & (x < end);
  }
  HEADWISE_INLINE static IntVector both(IntVector a, IntVector b) { return (a != 0) & (b != 0); }
  HEADWISE_INLINE static Vector select(IntVector condition, Vector yes, Vector no) {
    return condition != 0 ? yes : no;
  }
};

/// a b + c as a lane of Simd::fma computes it.
template <Scalar T>
HEADWISE_INLINE T multiply_add(const T& a, const T& b, const T& c) {
  if constexpr (HEADWISE_ISA_BYTES >= 32 && std::same_as<T, float>) {
    return __builtin_fmaf(a, b, c);
  } else if constexpr (HEADWISE_ISA_BYTES >= 32 && std::same_as<T, double>) {
    return __builtin_fma(a, b, c);
  } else {
    return a * b + c;
  }
}

/// f(0) f(1) ... f(count - 1), written out, so that an array of vectors stays in registers whatever
/// the level of optimisation. The numbers are constants of the type, not values: g++ -O1 and -O3
/// would keep an array that is indexed by values in memory, at half the speed.
template <int count, class F>
HEADWISE_INLINE void unrolled(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) HEADWISE_ALWAYS_INLINE {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, count>());
}

/// The sum of all lanes, pairwise.
template <Scalar T>
HEADWISE_INLINE T sum_lanes(typename Simd<T>::Vector x) {
  using S = Simd<T>;
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  for (int half = S::width / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/simd/exp.inc
// Powers of 2 and of e for all lanes at once. Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// c_0 + c_1 x + ... by Horner's rule.
template <Scalar T, std::size_t count>
HEADWISE_INLINE typename Simd<T>::Vector polynomial(const T (&coefficients)[count],
                                                    typename Simd<T>::Vector x) {
  using S = Simd<T>;
  auto sum = S::broadcast(coefficients[count - 1]);
  unrolled<static_cast<int>(count) - 1>([&](auto n) HEADWISE_ALWAYS_INLINE {
    sum = S::fma(sum, x, S::broadcast(coefficients[count - 2 - std::size_t{n}]));
  });
  return sum;
}

/// What a difference of scores is multiplied by before weight_of.
template <Scalar T>
T weight_unit() {
  if constexpr (vectorised<T>) return std::numbers::log2e_v<T>;
  return T(1);
}

/// The weight of a softmax from x, what lies between a score and the greatest one, in units of
/// weight_unit: 2^x (e^x at width 1) within 1 unit in the last place, 1.1 without fused
/// multiply-adds, for x <= 0 where the result is not denormal, and 0 (with AVX-512: the denormal)
/// below. At 0 exactly 1, at -infinity 0, NaN stays NaN.
template <Scalar T>
HEADWISE_INLINE typename Simd<T>::Vector weight_of(const typename Simd<T>::Vector& x) {
  if constexpr (!vectorised<T>) {
    using std::exp;
    return exp(x);
  } else {
    using S = Simd<T>;
    using C = Exp2Constants<T>;
#if HEADWISE_ISA_BYTES == 64
    // 2^x = 2^n 2^f: an instruction each for f = x - round(x), which is 0 at infinity, and for the
    // product. (n = floor(x) would save the subtraction and lose bits: x + 1 is rounded.)
    using Vector = typename S::Vector;
    if constexpr (sizeof(T) == 4) {
      const auto f = __builtin_bit_cast(
          Vector, _mm512_maskz_reduce_ps(0xFFFF, __builtin_bit_cast(__m512, x), 0));
      return __builtin_bit_cast(
          Vector,
          _mm512_maskz_scalef_ps(0xFFFF, __builtin_bit_cast(__m512, polynomial<T>(C::terms, f)),
                                 __builtin_bit_cast(__m512, x - f)));
    } else {
      const auto f = __builtin_bit_cast(
          Vector, _mm512_maskz_reduce_pd(0xFF, __builtin_bit_cast(__m512d, x), 0));
      return __builtin_bit_cast(
          Vector,
          _mm512_maskz_scalef_pd(0xFF, __builtin_bit_cast(__m512d, polynomial<T>(C::terms, f)),
                                 __builtin_bit_cast(__m512d, x - f)));
    }
#else
    using Vector = typename S::Vector;
    using BitVector = typename S::BitVector;
    // 1. n = round(x) stands, as the exponent's bits of 2^n, in the low bits of the shifted sum.
    const Vector shifted = x + C::shift;
    const Vector f = x - (shifted - C::shift);
    const Vector scale =
        __builtin_bit_cast(Vector, __builtin_bit_cast(BitVector, shifted) << C::mantissa_bits);
    // 2. 2^f 2^n
    return S::select(x < C::lowest, S::zero(), polynomial<T>(C::terms, f) * scale);
#endif
  }
}

/// y_n = weight_of(x_n), n < count.
template <Scalar T>
void weights_of(const T* x, Index count, T* y) {
  using S = Simd<T>;
  T part[std::size_t{S::width}] = {};
  Index n = 0;
  for (; n + S::width <= count; n += S::width) S::store(weight_of<T>(S::load(x + n)), y + n);
  for (Index lane = 0; n + lane < count; ++lane) part[lane] = x[n + lane];
  S::store(weight_of<T>(S::load(part)), part);
  for (Index lane = 0; n + lane < count; ++lane) y[n + lane] = part[lane];
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/simd/tails.inc
// What the logistic and the normal distribution have beyond |x|, for all lanes at once and with the
// relative error of a few units in the last place, however far out. Read once for each instruction
// set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// x without the lowest bits of its fraction: the square is exact, and what is left over, too.
template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector leading(
    const typename Simd<T>::Vector& x) {
  using S = Simd<T>;
  using Bits = typename S::Bits;
  constexpr Bits mask = static_cast<Bits>(~Bits{0}) << Exp2Constants<T>::low_bits;
  return __builtin_bit_cast(typename S::Vector,
                            __builtin_bit_cast(typename S::BitVector, x) & mask);
}

/// -|x|, but not below -bound. NaN stays NaN.
template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector below_zero(
    const typename Simd<T>::Vector& x, T bound) {
  using S = Simd<T>;
  using Bits = typename S::Bits;
  constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
  const auto below =
      __builtin_bit_cast(typename S::Vector, __builtin_bit_cast(typename S::BitVector, x) | sign);
  return S::greater(below, S::broadcast(-bound));
}

/// e^(high + low) for sums from -1150 to 0, high of 18 bits (float) or 40 (double), |low| below 1:
/// the product of high is exact, so that the result's relative error does not grow with the sum. 0
/// (with AVX-512: the denormal) below the normal numbers; NaN stays NaN.
template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector power_of_e(
    const typename Simd<T>::Vector& high, const typename Simd<T>::Vector& low) {
  using S = Simd<T>;
  using C = Exp2Constants<T>;
  using Vector = typename S::Vector;
  // 1. (high + low) log2(e)
  const Vector whole = high * C::log2e_high;
  const Vector part = S::fma(low, S::broadcast(std::numbers::log2e_v<T>), high * C::log2e_low);
  // 2. = n + f, |f| <= 1/2; the first difference is exact
  const Vector shifted = (whole + part) + C::shift;
  const Vector n = shifted - C::shift;
  const Vector f = (whole - n) + part;
  // 3. 2^f 2^n
#if HEADWISE_ISA_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(
        Vector,
        _mm512_maskz_scalef_ps(0xFFFF, __builtin_bit_cast(__m512, polynomial<T>(C::terms, f)),
                               __builtin_bit_cast(__m512, n)));
  } else {
    return __builtin_bit_cast(
        Vector,
        _mm512_maskz_scalef_pd(0xFF, __builtin_bit_cast(__m512d, polynomial<T>(C::terms, f)),
                               __builtin_bit_cast(__m512d, n)));
  }
#else
  using BitVector = typename S::BitVector;
  const Vector scale =
      __builtin_bit_cast(Vector, __builtin_bit_cast(BitVector, shifted) << C::mantissa_bits);
  return S::select(n < C::lowest, S::zero(), polynomial<T>(C::terms, f) * scale);
#endif
}

/// e^x for x from -1150 to 0.
template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector power_of_e(
    const typename Simd<T>::Vector& x) {
  const auto high = leading<T>(x);
  return power_of_e<T>(high, x - high);
}

/// e^(-x^2 / 2) for |x| <= NormalConstants::bound.
template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector normal_power(
    const typename Simd<T>::Vector& x) {
  const auto high = leading<T>(x);
  return power_of_e<T>(T(-0.5) * (high * high), T(-0.5) * ((x - high) * (x + high)));
}

/// Phi(x) over normal_power(x) for -NormalConstants::bound <= x <= 0.
template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector normal_tail(
    const typename Simd<T>::Vector& x) {
  using C = NormalConstants<T>;
  return polynomial<T>(C::over, -x) / polynomial<T>(C::under, -x);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/kernels/tile.inc
// The register tile that every matrix product is made of. Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

using simd::HEADWISE_ISA::Simd;
using simd::HEADWISE_ISA::unrolled;

/// The register tile: `rows` x `vectors` sums, `vectors` of b and one of a fill the registers (29
/// of 32 with AVX-512, 15 of 16 below).
template <class T>
struct Tile {
  static constexpr int rows = 6;
  static constexpr int vectors = HEADWISE_ISA_BYTES == 64 ? 4 : 2;
  static constexpr Index width = Simd<T>::width;
  static constexpr Index columns = vectors * width;
};

/// x [count] = 0, in whole vectors: there has to be room up to the next one.
template <class T>
void set_zero(T* x, Index count) {
  using S = Simd<T>;
  for (Index n = 0; n < count; n += S::width) S::store(S::zero(), x + n);
}

/// An operand as a tile walks it: elements m row + k step of a, rows k step of b.
template <class T>
struct Walk {
  const T* data;
  Index row;                         // of a: from one row of the result to the next within a tile
  Index step;                        // from one inner index to the next
  Index tile = Tile<T>::rows * row;  // of a: from one tile's first row to the next one's
};

/// What becomes of the sums.
enum class Finish {
  assign,   // c = alpha sum + bias
  add,      // c = c + alpha sum
  rescale,  // c = factor_m c + sum
};

template <class T>
struct TileStore {
  T* c;
  Index row;
  Finish finish = Finish::assign;
  T alpha = T(1);
  const T* bias = nullptr;    // [columns]
  const T* factor = nullptr;  // [rows]
};

/// What the tiles of a panel share. It stays as it is from tile to tile, and its members stand in
/// another order than those that they are copied from: a vector that is loaded where two numbers
/// have just been stored waits until the stores, and the tile before them, are done (60 of 840
/// cycles a tile, by g++'s copies of structures).
template <class T>
struct Panel {
  const T* a;
  const T* b;
  T* c;
  Index a_row, b_step, c_row, a_step, a_tile;
  const T* bias;
  Index K;
  const T* factor;
  Finish finish;
  T alpha;

  HEADWISE_INLINE Panel(const Walk<T>& left, const Walk<T>& right, Index steps,
                        const TileStore<T>& to)
      : a(left.data),
        b(right.data),
        c(to.c),
        a_row(left.row),
        b_step(right.step),
        c_row(to.row),
        a_step(left.step),
        a_tile(left.tile),
        bias(to.bias),
        K(steps),
        factor(to.factor),
        finish(to.finish),
        alpha(to.alpha) {}
};

/// Rows m ... m + M - 1 of c [.., V vectors] from K steps: each element one chain of multiply-adds
/// in the order of k. The epilogue is written straight from the registers.
template <class T, int M, int V>
void run_tile(const Panel<T>& panel, Index first) {
  using S = Simd<T>;
  T* const c = panel.c + first * panel.c_row;
  typename S::Vector sum[std::size_t{M}][std::size_t{V}];
  const auto each = [&](auto&& f) HEADWISE_ALWAYS_INLINE {
    unrolled<M>([&](auto m) HEADWISE_ALWAYS_INLINE {
      unrolled<V>([&](auto v)
                      HEADWISE_ALWAYS_INLINE { f(m, v, c + m * panel.c_row + v * S::width); });
    });
  };
  each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE { sum[m][v] = S::zero(); });
  if (panel.finish == Finish::add) {
    each([&](auto, auto, T* at) HEADWISE_ALWAYS_INLINE { __builtin_prefetch(at, 1); });
  }
  const T* a = panel.a + first / Tile<T>::rows * panel.a_tile + first % Tile<T>::rows * panel.a_row;
  const T* b = panel.b;
  for (Index k = 0; k < panel.K; ++k) {
    typename S::Vector in_b[std::size_t{V}];
    unrolled<V>([&](auto v) HEADWISE_ALWAYS_INLINE { in_b[v] = S::load(b + v * S::width); });
    unrolled<M>([&](auto m) HEADWISE_ALWAYS_INLINE {
      const auto x = S::broadcast(a[m * panel.a_row]);
      unrolled<V>([&](auto v)
                      HEADWISE_ALWAYS_INLINE { sum[m][v] = S::fma(x, in_b[v], sum[m][v]); });
    });
    a += panel.a_step;
    b += panel.b_step;
  }
  if (panel.finish == Finish::rescale) {
    each([&](auto m, auto v, T* at) HEADWISE_ALWAYS_INLINE {
      S::store(S::fma(S::broadcast(panel.factor[first + m]), S::load(at), sum[m][v]), at);
    });
    return;
  }
  if (panel.alpha != T(1)) {
    const auto alpha = S::broadcast(panel.alpha);
    each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE { sum[m][v] = alpha * sum[m][v]; });
  }
  if (panel.finish == Finish::add) {
    each([&](auto m, auto v, T* at)
             HEADWISE_ALWAYS_INLINE { S::store(S::load(at) + sum[m][v], at); });
    return;
  }
  if (panel.bias != nullptr) {
    each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE {
      sum[m][v] = sum[m][v] + S::load(panel.bias + v * S::width);
    });
  }
  each([&](auto m, auto v, T* at) HEADWISE_ALWAYS_INLINE { S::store(sum[m][v], at); });
}

/// run_tile over `M` rows, six at a time, then four, two, one.
template <class T, int V>
void run_rows(const Panel<T>& panel, Index M) {
  Index m = 0;
  for (; m + 6 <= M; m += 6) run_tile<T, 6, V>(panel, m);
  if (m + 4 <= M) run_tile<T, 4, V>(panel, m), m += 4;
  if (m + 2 <= M) run_tile<T, 2, V>(panel, m), m += 2;
  if (m < M) run_tile<T, 1, V>(panel, m);
}

/// The same for `vectors` vectors of columns, 1 to Tile::vectors.
template <class T>
void run_panel(const Panel<T>& panel, Index M, Index vectors) {
  if constexpr (Tile<T>::vectors == 4) {
    if (vectors == 4) return run_rows<T, 4>(panel, M);
    if (vectors == 3) return run_rows<T, 3>(panel, M);
  }
  if (vectors == 2) return run_rows<T, 2>(panel, M);
  if (vectors == 1) run_rows<T, 1>(panel, M);
}
template <class T>
HEADWISE_INLINE void run_panel(const Walk<T>& a, const Walk<T>& b, Index M, Index vectors, Index K,
                               const TileStore<T>& to) {
  run_panel<T>(Panel<T>(a, b, K, to), M, vectors);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/pack.inc
// Copies of operands in the order in which tiles read them. Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Whether no element is infinite or NaN: x - x is 0 for a finite x alone.
template <class T>
bool all_finite(Matrix<const T> x, Index rows, Index columns) {
  using S = Simd<T>;
  auto sums = S::zero();
  T rest = T(0);
  for (Index i = 0; i < rows; ++i) {
    const T* row = x.data + i * x.row;
    Index j = 0;
    if (x.column == 1) {
      for (; j + S::width <= columns; j += S::width) {
        const auto part = S::load(row + j);
        sums = sums + (part - part);
      }
    }
    for (; j < columns; ++j) rest = rest + (row[j * x.column] - row[j * x.column]);
  }
  return simd::HEADWISE_ISA::sum_lanes<T>(sums) + rest == T(0);
}

/// Stage of a transpose of width x width elements: rows `half` apart exchange the halves of their
/// blocks of 2 half lanes.
template <Scalar T, int half>
HEADWISE_INLINE void exchange_halves(
    typename Simd<T>::Vector (&rows)[std::size_t{Simd<T>::width}]) {
  constexpr int width = Simd<T>::width;
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE {
    if constexpr ((r & half) == 0) {
      const auto upper = rows[r], lower = rows[r + half];
      [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
        rows[r] =
            __builtin_shufflevector(upper, lower, ((n & half) == 0 ? n : n - half + width)...);
        rows[r + half] =
            __builtin_shufflevector(upper, lower, ((n & half) == 0 ? n + half : n + width)...);
      }
      (std::make_integer_sequence<int, width>());
    }
  });
}

/// to [width, width] = from^T: from's rows lie `from_row` apart, to's `to_row`.
template <Scalar T>
HEADWISE_INLINE void transpose_square(const T* from, Index from_row, T* to, Index to_row) {
  using S = Simd<T>;
  constexpr int width = S::width;
  typename S::Vector rows[std::size_t{width}];
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE { rows[r] = S::load(from + r * from_row); });
  if constexpr (width > 8) exchange_halves<T, 8>(rows);
  if constexpr (width > 4) exchange_halves<T, 4>(rows);
  if constexpr (width > 2) exchange_halves<T, 2>(rows);
  if constexpr (width > 1) exchange_halves<T, 1>(rows);
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE { S::store(rows[r], to + r * to_row); });
}

/// One panel: rows k of `count` columns of b, to [K][Tile::columns], columns beyond `count` as 0.
/// Rows k with keep(k) false are 0, whatever they hold.
template <Scalar T, class Keep>
void pack_panel(Matrix<const T> b, Index K, Index count, T* packed, const Keep& keep) {
  constexpr Index columns = Tile<T>::columns;
  for (Index k = 0; k < K; ++k, packed += columns) {
    const T* from = b.data + k * b.row;
    const Index filled = keep(k) ? count : 0;
    for (Index n = 0; n < filled; ++n) packed[n] = from[n * b.column];
    for (Index n = filled; n < columns; ++n) packed[n] = T(0);
  }
}

/// A whole panel of a matrix whose columns lie in a row: copied by vectors.
template <Scalar T>
void pack_rows(const T* from, Index row, Index K, T* packed) {
  using S = Simd<T>;
  constexpr Index columns = Tile<T>::columns;
  for (Index k = 0; k < K; ++k, from += row, packed += columns) {
    unrolled<Tile<T>::vectors>([&](auto v) HEADWISE_ALWAYS_INLINE {
      S::store(S::load(from + v * S::width), packed + v * S::width);
    });
  }
}

/// `count` columns, each lying in a row: transposed by squares.
template <Scalar T>
void pack_columns(const T* from, Index column, Index K, Index count, T* packed) {
  constexpr Index width = Simd<T>::width, columns = Tile<T>::columns;
  const Index whole_k = K / width * width, whole_n = count / width * width;
  for (Index n = 0; n < whole_n; n += width) {
    for (Index k = 0; k < whole_k; k += width) {
      transpose_square<T>(from + n * column + k, column, packed + k * columns + n, columns);
    }
  }
  for (Index k = 0; k < K; ++k) {
    T* to = packed + k * columns;
    for (Index n = k < whole_k ? whole_n : 0; n < count; ++n) to[n] = from[n * column + k];
    for (Index n = count; n < columns; ++n) to[n] = T(0);
  }
}

/// Packs b [K, N] into panels [ceil(N / columns)][K][columns], columns beyond N as 0.
template <Scalar T>
void pack(Matrix<const T> b, Index K, Index N, T* packed) {
  constexpr Index columns = Tile<T>::columns;
  for (Index n = 0; n < N; n += columns, packed += K * columns) {
    const Index count = std::min<Index>(columns, N - n);
    const auto panel = b.from(0, n);
    if (b.column == 1 && count == columns) {
      pack_rows<T>(panel.data, b.row, K, packed);
    } else if (b.row == 1) {
      pack_columns<T>(panel.data, b.column, K, count, packed);
    } else {
      pack_panel<T>(panel, K, count, packed, [](Index) { return true; });
    }
  }
}
/// The same without the rows k for which keep(k) is false: they are packed as 0.
template <Scalar T, class Keep>
void pack_kept(Matrix<const T> b, Index K, Index N, T* packed, const Keep& keep) {
  constexpr Index columns = Tile<T>::columns;
  for (Index n = 0; n < N; n += columns, packed += K * columns) {
    pack_panel<T>(b.from(0, n), K, std::min<Index>(columns, N - n), packed, keep);
  }
}

/// a [M, K], of which columns lie in a row, as tiles read it: [ceil(M / rows)][K][rows], rows those
/// of a tile. What stands behind the last row is not written, and not read.
template <Scalar T>
Walk<T> pack_left(Matrix<const T> a, Index M, Index K, T* packed) {
  constexpr Index rows = Tile<T>::rows;
  Index m = 0;
  for (; m + rows <= M; m += rows) {
    const T* from = a.data + m;
    T* to = packed + m * K;
    for (Index k = 0; k < K; ++k, from += a.column, to += rows) std::copy_n(from, rows, to);
  }
  for (Index k = 0; k < K && m < M; ++k) {
    std::copy_n(a.data + m + k * a.column, M - m, packed + m * K + k * rows);
  }
  return {packed, 1, rows, rows * K};
}

/// A right operand [K, N] as tiles read it: column n of whole panels begins at data + n panel.
template <class T>
struct Operand {
  const T* data;
  Index step;   // from row to row
  Index panel;  // 1 in place; the rows of a panel where packed
  bool finite;  // no infinity, no NaN; or nobody asks

  Walk<T> walk(Index n, Index row = 0) const { return {data + n * panel + row * step, 0, step}; }
};

/// Asks for `rows` rows of N before they are read: rows of heads lie on pages of their own, which
/// the processor does not foresee.
template <class T>
void prefetch_rows(Matrix<const T> b, Index rows, Index N) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (b.column != 1) return;
  for (Index r = 0; r < rows; ++r) {
    for (Index n = 0; n < N; n += line) __builtin_prefetch(b.data + r * b.row + n, 0, 2);
  }
}

/// Elements of a dense copy of rows of N.
template <class T>
constexpr Index copied_size(Index rows, Index N) {
  return rows * round_up(N, Tile<T>::width);
}

/// A dense copy [rows, N], rows of whole vectors, elements beyond N as 0: what tiles walk again and
/// again. (Rows of heads lie on pages of their own: a backward tile over rows 3 KiB apart ran at 81
/// to 85 % of the peak, over dense ones at 85 to 88 %.)
template <class T>
Operand<T> copy_rows(Matrix<const T> b, Index rows, Index N, bool finite, T* to) {
  using S = Simd<T>;
  const Index row = round_up(N, S::width);
  for (Index k = 0; k < rows; ++k) {
    const T* from = b.data + k * b.row;
    T* out = to + k * row;
    Index n = 0;
    if (b.column == 1) {
      for (; n + S::width <= N; n += S::width) S::store(S::load(from + n), out + n);
    }
    for (; n < N; ++n) out[n] = from[n * b.column];
    for (; n < row; ++n) out[n] = T(0);
  }
  return {to, row, 1, finite || all_finite<T>({to, row, 1}, rows, N)};
}
/// The same, rows r with keep(r) false as 0, whatever they hold.
template <class T, class Keep>
Operand<T> copy_kept_rows(Matrix<const T> b, Index rows, Index N, T* to, const Keep& keep) {
  const Index row = round_up(N, Tile<T>::width);
  for (Index k = 0; k < rows; ++k) {
    for (Index n = 0; n < row; ++n) to[k * row + n] = n < N && keep(k) ? b(k, n) : T(0);
  }
  return {to, row, 1, true};
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/gemm.inc
// Matrix products. Row-invariant: an element of the result depends on its row of a, its column of
// b and the inner length alone, never on how many other rows or columns there are or how they are
// cut into tiles. Each element is a sum of ordered chains of multiply-adds, `k_block` terms long.
// Read once for each instruction set.
//
// Traffic: b is packed once for each block, or read where it lies by few rows of a (read and
// written once, then read from cache for every six rows of a); c is read and written once for each
// k block. a is read where it lies, but for a transposed one that meets many columns of b: its rows
// stand side by side, a line of the cache holds two tiles and two thirds, and lines far apart share
// few places of the first cache. Copied in the order of the tiles, 96 rows at a time, it saves 5 to
// 15 % (Xeon of family 6, model 167; dW of 384 x 1536 and 1536 x 384 over 2048 rows); copied as
// rows of 96 or 192 numbers it saves nothing.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// The cache blocks. They depend on the type and the instruction set alone. Without fused
/// multiply-adds every term is rounded twice: chains of 64 then lose as few digits as PyTorch does.
template <class T>
struct GemmBlocks {
  static constexpr Index k = HEADWISE_ISA_BYTES >= 32 ? 384 : 64;
  static constexpr Index m = 192;
  static constexpr Index packed_m = 96;  // rows of a that are copied together
  static constexpr Index n = 768;
};

/// Every row of b counts.
struct KeepAll {};

/// Elements that K rows of N columns take when packed.
template <class T>
constexpr Index packed_size(Index K, Index N) {
  return K * round_up(N, Tile<T>::columns);
}

/// Scratch of a product, in elements.
template <class T>
constexpr Index gemm_scratch(const Extents& size) {
  using Blocks = GemmBlocks<T>;
  const Index K = std::min<Index>(size.K, Blocks::k);
  const Index rows = round_up(std::min<Index>(size.M, Blocks::packed_m), Tile<T>::rows);
  return padded<T>(packed_size<T>(K, std::min<Index>(size.N, Blocks::n))) + padded<T>(rows * K);
}

/// A panel of which the result does not lie in whole vectors: by way of a small array.
template <class T>
void run_edge(Walk<T> a, Walk<T> b, Index M, Index count, Index K, Matrix<T> c,
              const TileStore<T>& store) {
  constexpr Index rows = Tile<T>::rows, columns = Tile<T>::columns, width = Tile<T>::width;
  T part[std::size_t{rows * columns}], bias[std::size_t{columns}] = {};
  TileStore<T> to = store;
  to.c = part;
  to.row = columns;
  for (Index n = 0; store.bias != nullptr && n < count; ++n) bias[n] = store.bias[n];
  if (store.bias != nullptr) to.bias = bias;
  for (Index m = 0; m < M; m += rows) {
    const Index these = std::min<Index>(rows, M - m);
    for (Index r = 0; r < these && store.finish != Finish::assign; ++r) {
      for (Index n = 0; n < count; ++n) part[r * columns + n] = c(m + r, n);
      for (Index n = count; n < columns; ++n) part[r * columns + n] = T(0);
    }
    run_panel<T>({a.data + m / rows * a.tile, a.row, a.step}, b, these, (count + width - 1) / width,
                 K, to);
    for (Index r = 0; r < these; ++r) {
      for (Index n = 0; n < count; ++n) c(m + r, n) = part[r * columns + n];
    }
  }
}

/// c [M, N] from a [M, K] and b [K, N]. Returns the multiply-adds.
template <class T>
std::int64_t multiply(Walk<T> a, const Operand<T>& b, Matrix<T> c, const Extents& size,
                      const Epilogue<T>& epilogue) {
  constexpr Index columns = Tile<T>::columns, width = Tile<T>::width;
  for (Index n = 0; n < size.N; n += columns) {
    const Index count = std::min<Index>(columns, size.N - n);
    const auto to = c.from(0, n);
    const TileStore<T> store{to.data,
                             to.row,
                             epilogue.accumulate ? Finish::add : Finish::assign,
                             epilogue.alpha,
                             epilogue.bias == nullptr ? nullptr : epilogue.bias + n,
                             nullptr};
    if (c.column == 1 && count % width == 0) {
      run_panel<T>(a, b.walk(n), size.M, count / width, size.K, store);
    } else {
      run_edge<T>(a, b.walk(n), size.M, count, size.K, to, store);
    }
  }
  return std::int64_t{size.M} * round_up(size.N, width) * size.K;
}

/// A block of b as tiles read it, `size` being that of its product: packed, or where it lies if its
/// rows are whole vectors and few rows of a are to pay for the copy. Row k is b's row first + k.
template <class T, class Keep>
Operand<T> right_block(Matrix<const T> b, const Extents& size, T* scratch, Index first,
                       const Keep& keep) {
  constexpr Index few = 4 * Tile<T>::rows;
  if constexpr (std::same_as<Keep, KeepAll>) {
    if (size.M <= few && b.column == 1 && size.N % Tile<T>::width == 0) {
      return {b.data, b.row, 1, true};
    }
    pack<T>(b, size.K, size.N, scratch);
  } else {
    pack_kept<T>(b, size.K, size.N, scratch, [&](Index row) { return keep(first + row); });
  }
  return {scratch, Tile<T>::columns, size.K, true};
}

/// c [M, N] from a [M, K] and a block of b, row block by row block. `scratch` takes packed_m rows
/// of a.
template <class T>
void multiply_blocks(Matrix<const T> a, const Operand<T>& b, Matrix<T> c, const Extents& size,
                     const Epilogue<T>& epilogue, T* scratch) {
  using Blocks = GemmBlocks<T>;
  const bool copied = a.row == 1 && a.column != 1 && size.N >= 2 * Tile<T>::columns;
  const Index step = copied ? Blocks::packed_m : Blocks::m;
  for (Index m = 0; m < size.M; m += step) {
    const Index M = std::min<Index>(step, size.M - m);
    const auto rows = a.from(m, 0);
    const Walk<T> left =
        copied ? pack_left<T>(rows, M, size.K, scratch) : Walk<T>{rows.data, rows.row, rows.column};
    multiply<T>(left, b, c.from(m, 0), {M, size.N, size.K}, epilogue);
  }
}

/// c [M, N] = alpha a [M, K] b [K, N] + bias, or c + alpha a b. b's rows k with keep(k) false count
/// as 0; `scratch` holds gemm_scratch elements.
template <class T, class Keep>
void gemm_kept(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
               const Epilogue<T>& epilogue, T* scratch, const Keep& keep) {
  using Blocks = GemmBlocks<T>;
  for (Index n = 0; n < size.N; n += Blocks::n) {
    const Index N = std::min<Index>(Blocks::n, size.N - n);
    for (Index k = 0; k == 0 || k < size.K; k += Blocks::k) {
      const Index K = std::min<Index>(Blocks::k, size.K - k);
      Epilogue<T> here = epilogue;
      if (here.bias != nullptr) here.bias += n;
      if (k != 0) here.accumulate = true;
      const Operand<T> block = right_block<T>(b.from(k, n), {size.M, N, K}, scratch, k, keep);
      T* const behind = scratch + padded<T>(packed_size<T>(K, N));
      multiply_blocks<T>(a.from(0, k), block, c.from(0, n), {size.M, N, K}, here, behind);
    }
  }
}
template <class T>
void gemm(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
          const Epilogue<T>& epilogue, T* scratch) {
  gemm_kept<T>(a, b, c, size, epilogue, scratch, KeepAll{});
}

/// Like gemm, where of a [M, K] only pairs (m, k) with sees(m, k) count: the others are 0, and what
/// b holds in row k must not reach row m even if it is infinite or NaN (0 * NaN is NaN). `all`:
/// every pair counts. Same bits as gemm wherever b is finite.
template <class T, class Sees>
void gemm_visible(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
                  const Epilogue<T>& epilogue, T* scratch, bool all, const Sees& sees) {
  if (all || all_finite<T>(b, size.K, size.N)) return gemm<T>(a, b, c, size, epilogue, scratch);
  for (Index m = 0; m < size.M; ++m) {
    gemm_kept<T>(a.from(m, 0), b, c.from(m, 0), {1, size.N, size.K}, epilogue, scratch,
                 [&](Index k) { return sees(m, k); });
  }
}

/// FLOPs of gemm as its tiles run: whole vectors of columns, and an addition for each block of K
/// that joins those before it.
template <class T>
std::int64_t executed_gemm_flops(const Extents& size) {
  const Index joins = size.K == 0 ? 0 : (size.K - 1) / GemmBlocks<T>::k;
  return (std::int64_t{2} * size.K + joins) * size.M * round_up(size.N, Tile<T>::width);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rows.inc
// Rows that are read and written piece by piece, the same for every stride: a piece is four
// vectors, counted from the row's begin, and sums have a chain for each of its lanes. So what a row
// gives depends on its elements alone. Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// A piece: what is in the registers together.
template <class T>
struct Piece {
  static constexpr int vectors = 4;
  static constexpr Index width = Simd<T>::width;
  static constexpr Index size = vectors * width;
  T data[std::size_t{size}];
};

/// Copies x_n ... x_{n + count - 1}, and `rest` behind.
template <class T>
[[gnu::noinline]] void gather(Row<const T> x, Index n, Index count, T rest, Piece<T>& to) {
  if (x.step == 1) {
    std::memcpy(to.data, x.data + n, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (Index t = 0; t < count; ++t) to.data[t] = x[n + t];
  }
  for (Index t = count; t < Piece<T>::size; ++t) to.data[t] = rest;
}

/// Copies the first `count` elements to y_n ...
template <class T>
[[gnu::noinline]] void scatter(const Piece<T>& from, Index n, Index count, Row<T> y) {
  if (y.step == 1) {
    std::memcpy(y.data + n, from.data, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (Index t = 0; t < count; ++t) y[n + t] = from.data[t];
  }
}

/// x_0 ... x_{count - 1} in the lanes of a vector, and `rest` in the others.
template <class T>
HEADWISE_INLINE typename Simd<T>::Vector load_lanes(Row<const T> x, Index count, const T& rest) {
  using S = Simd<T>;
  if (x.step == 1 && count >= S::width) return S::load(x.data);
  T lanes[std::size_t{S::width}];
  for (Index n = 0; n < S::width; ++n) lanes[n] = n < count ? x[n] : rest;
  return S::load(lanes);
}
/// The first `count` lanes to y_0 ...
template <class T>
HEADWISE_INLINE void store_lanes(const typename Simd<T>::Vector& x, Row<T> y, Index count) {
  using S = Simd<T>;
  if (y.step == 1 && count >= S::width) return S::store(x, y.data);
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  for (Index n = 0; n < S::width && n < count; ++n) y[n] = lanes[n];
}

/// A row of N elements, piece by piece. (A copy costs less than a second form of every loop.)
template <class T>
struct RowPieces {
  Index N;

  Index count(Index n) const { return std::min<Index>(Piece<T>::size, N - n); }
  /// A whole piece from element n on: where it lies, or a copy with `rest` behind the row's end.
  HEADWISE_INLINE const T* read(Row<const T> x, Index n, T rest, Piece<T>& copy) const {
    if (x.step == 1 && n + Piece<T>::size <= N) return x.data + n;
    gather<T>(x, n, count(n), rest, copy);
    return copy.data;
  }
  /// Where a whole piece is to be written before `written`.
  HEADWISE_INLINE T* write(Row<T> y, Index n, Piece<T>& copy) const {
    return y.step == 1 && n + Piece<T>::size <= N ? y.data + n : copy.data;
  }
  HEADWISE_INLINE void written(const T* at, Row<T> y, Index n, const Piece<T>& copy) const {
    if (at == copy.data) scatter<T>(copy, n, count(n), y);
  }
};

/// Asks for the piece from element n of row i on, if there is one among `rows` rows of N. (Where
/// each piece is read, worked on for long and written, or rows are read side by side, the processor
/// foresees nothing: dropout of 8192 rows of 768 took 1.25 ns an element without and 0.3 with, the
/// sums of a layer norm down their columns 0.44 and 0.26, on an EPYC of family 26.)
template <int write, class T>
HEADWISE_INLINE void prefetch_piece(Matrix<T> x, Index rows, Index N, Index i, Index n) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (x.column != 1 || n >= N || i >= rows) return;
  const T* at = &x(i, n);
  const Index count = std::min<Index>(Piece<std::remove_const_t<T>>::size, N - n);
  for (Index t = 0; t < count; t += line) __builtin_prefetch(at + t, write, 3);
}
/// The same, four pieces behind element n of row i.
template <int write, class T>
HEADWISE_INLINE void prefetch_ahead(Matrix<T> x, Index rows, Index N, Index i, Index n) {
  n += 4 * Piece<std::remove_const_t<T>>::size;
  prefetch_piece<write>(x, rows, N, n < N ? i : i + 1, n < N ? n : n - N);
}

/// f(n) for each piece of a row.
template <class T, class F>
HEADWISE_INLINE void each_piece(RowPieces<T> row, F&& f) {
  for (Index n = 0; n < row.N; n += Piece<T>::size) f(n);
}

/// f(v, element) for the vectors of a piece, v a constant.
template <class T, class F>
HEADWISE_INLINE void each_vector(F&& f) {
  unrolled<Piece<T>::vectors>([&](auto v) HEADWISE_ALWAYS_INLINE { f(v, v * Piece<T>::width); });
}

/// The chains of a sum along a row.
template <class T>
struct Chains {
  using Vector = typename Simd<T>::Vector;
  Vector sums[std::size_t{Piece<T>::vectors}];

  HEADWISE_INLINE Chains() {
    each_vector<T>([&](auto v, Index) HEADWISE_ALWAYS_INLINE { sums[v] = Simd<T>::zero(); });
  }
  /// Their sum, pairwise.
  HEADWISE_INLINE T total() const {
    const Vector joined = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    return simd::HEADWISE_ISA::sum_lanes<T>(joined);
  }
};

/// Whether a lane is not 0.
template <class T>
HEADWISE_INLINE bool any_lane(typename Simd<T>::IntVector x) {
  typename Simd<T>::Int lanes[std::size_t{Simd<T>::width}], any = 0;
  Simd<T>::store_ints(x, lanes);
  for (const auto lane : lanes) any |= lane;
  return any != 0;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/column_sums.inc
// Sums down columns, a lane a column: kernels/column_sums.hpp by vectors, to the same bits. Read
// once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Columns that are summed together: long enough pieces of a row that memory is read along.
template <class T>
inline constexpr Index columns_of_sum = 4 * Piece<T>::size;

/// Rows of a chain; the next one's are asked for meanwhile.
inline constexpr Index rows_of_chain = 16;

/// sums[k][n - n0] = sum of the k-th term over rows begin ... end - 1, columns n0 ... row.N - 1:
/// chains of 16 rows, then pairwise. terms(i, row, n, add) calls add(v, term, ...) for the vectors
/// of the piece of row i from column n on.
template <class T, int kinds, class Terms>
void sum_columns_of(Index begin, Index end, RowPieces<T> row, Index n0, const Terms& terms,
                    T (*sums)[std::size_t{columns_of_sum<T>}]) {
  using S = Simd<T>;
  constexpr Index chain = rows_of_chain;
  if (end - begin > chain) {
    const Index middle = begin + (end - begin + chain) / (2 * chain) * chain;
    T lower[std::size_t{kinds}][std::size_t{columns_of_sum<T>}];
    sum_columns_of<T, kinds>(begin, middle, row, n0, terms, sums);
    sum_columns_of<T, kinds>(middle, end, row, n0, terms, lower);
    for (int k = 0; k < kinds; ++k) {
      for (Index n = 0; n < kernels::round_up(row.N - n0, Piece<T>::size); n += S::width) {
        S::store(S::load(sums[k] + n) + S::load(lower[k] + n), sums[k] + n);
      }
    }
    return;
  }
  for (Index n = n0; n < row.N; n += Piece<T>::size) {
    Chains<T> sum[std::size_t{kinds}];
    for (Index i = begin; i < end; ++i) {
      terms(i, row, n, [&](auto v, auto... term) HEADWISE_ALWAYS_INLINE {
        int k = 0;
        ((sum[k].sums[v] = sum[k].sums[v] + term, ++k), ...);
      });
    }
    for (int k = 0; k < kinds; ++k) {
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        S::store(sum[k].sums[v], sums[k] + (n - n0) + at);
      });
    }
  }
}

/// to[k]_n += sum of the k-th term over all rows, begin <= n < end, added once; null for none.
template <class T, int kinds, class Terms>
void add_columns(Index rows, Index begin, Index end, const Terms& terms,
                 const Row<T> (&to)[std::size_t{kinds}]) {
  T sums[std::size_t{kinds}][std::size_t{columns_of_sum<T>}];
  if (rows == 0) return;
  for (Index n0 = begin; n0 < end; n0 += columns_of_sum<T>) {
    const Index last = std::min<Index>(end, n0 + columns_of_sum<T>);
    sum_columns_of<T, kinds>(0, rows, RowPieces<T>{last}, n0, terms, sums);
    for (int k = 0; k < kinds; ++k) {
      if (to[k].data == nullptr) continue;
      for (Index n = n0; n < last; ++n) to[k][n] = to[k][n] + sums[k][n - n0];
    }
  }
}

/// to_n += sum of x(i, n) over rows i, begin <= n < end.
template <Scalar T>
void add_rows(Matrix<const T> x, Index rows, Index begin, Index end, Row<T> to) {
  if constexpr (simd::vectorised<T>) {
    Piece<T> copy;
    const auto terms = [&](Index i, RowPieces<T> row, Index n, auto&& add) HEADWISE_ALWAYS_INLINE {
      const T* in = row.read(kernels::row(x, i), n, T(0), copy);
      prefetch_piece<0>(x, rows, end, i + rows_of_chain, n);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { add(v, Simd<T>::load(in + at)); });
    };
    add_columns<T, 1>(rows, begin, end, terms, {to});
  } else {
    const auto term = [&](Index i, Index n) { return x(i, begin + n); };
    add_column_sums(rows, end - begin, term, &to[begin], to.step);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/elementwise.inc
// Rows combined element by element, and the sums of what they give down columns. A row stride of 0
// makes one row stand for all. Other types than float and double take a plain loop of the same
// formula. Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// use(f) with f(a, b) of a combination, for vectors and, of other types, for elements. In a
/// gradient an element that is 0 adds nothing, whatever it is multiplied with or divided by.
template <Scalar T, class Use>
HEADWISE_INLINE void with_combination(Combination how, const T& alpha, Use&& use) {
  using S = Simd<T>;
  using V = typename S::Vector;
  switch (how) {
    case Combination::first:
      return use([&](const V& a, const V&) HEADWISE_ALWAYS_INLINE { return a; });
    case Combination::sum:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a + b; });
    case Combination::difference:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a - b; });
    case Combination::product:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a * b; });
    case Combination::quotient:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a / b; });
    case Combination::scaled: {
      const V factor = S::broadcast(alpha);
      return use([&](const V& a, const V&) HEADWISE_ALWAYS_INLINE { return a * factor; });
    }
    case Combination::gradient_product:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), d * b);
      });
    case Combination::gradient_quotient:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), d / b);
      });
    case Combination::negative_gradient_product:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), S::zero() - d * b);
      });
  }
}

/// Rows begin ... end - 1 of y = f(a, b). y may be a or b.
template <Scalar T>
void combine_rows(Combination how, const CombinedRows<T>& of, Index begin, Index end) {
  with_combination<T>(how, of.alpha, [&](const auto& f) HEADWISE_ALWAYS_INLINE {
    Piece<T> copied_a, copied_b, result;
    const RowPieces<T> pieces{of.N};
    for (Index i = begin; i < end; ++i) {
      const Row<const T> a = row(of.a, i), b = row(of.b, i);
      const Row<T> y = row(of.y, i);
      if constexpr (simd::vectorised<T>) {
        each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
          const T* in_a = pieces.read(a, n, T(0), copied_a);
          const T* in_b = pieces.read(b, n, T(1), copied_b);
          T* out = pieces.write(y, n, result);
          each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
            Simd<T>::store(f(Simd<T>::load(in_a + at), Simd<T>::load(in_b + at)), out + at);
          });
          pieces.written(out, y, n, result);
        });
      } else {
        for (Index n = 0; n < of.N; ++n) y[n] = f(a[n], b[n]);
      }
    }
  });
}

/// to_n += sum of f(a(i, n), b(i, n)) over rows i, begin <= n < end.
template <Scalar T>
void combine_columns(Combination how, const CombinedRows<T>& of, Index rows, Index begin, Index end,
                     Row<T> to) {
  with_combination<T>(how, of.alpha, [&](const auto& f) HEADWISE_ALWAYS_INLINE {
    if constexpr (simd::vectorised<T>) {
      Piece<T> copied_a, copied_b;
      const auto terms = [&](Index i, RowPieces<T> pieces, Index n, auto&& add)
                             HEADWISE_ALWAYS_INLINE {
                               const T* in_a = pieces.read(row(of.a, i), n, T(0), copied_a);
                               const T* in_b = pieces.read(row(of.b, i), n, T(1), copied_b);
                               prefetch_piece<0>(of.a, rows, end, i + rows_of_chain, n);
                               prefetch_piece<0>(of.b, rows, end, i + rows_of_chain, n);
                               each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
                                 add(v, f(Simd<T>::load(in_a + at), Simd<T>::load(in_b + at)));
                               });
                             };
      add_columns<T, 1>(rows, begin, end, terms, {to});
    } else {
      const auto term = [&](Index i, Index n) -> T {
        return f(of.a(i, begin + n), of.b(i, begin + n));
      };
      add_column_sums(rows, end - begin, term, &to[begin], to.step);
    }
  });
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/layer_norm.inc
// Layer normalisation of rows: kernels/layer_norm.hpp by vectors, and the sums down its columns.
// Other types than float and double take the rows there. Read once for each instruction set.
//
// A row is read from memory once and stays in the first cache: forward reads x and writes y,
// backward reads dy and x and writes dx, the sums down the columns read dy and x once more.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// The mean of (x - mean)^2.
template <class T>
T mean_square(Row<const T> x, Index D, T mean) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  Piece<T> copy;
  Chains<T> squares;
  const auto means = S::broadcast(mean);
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, mean, copy);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const auto centred = S::load(in + at) - means;
      squares.sums[v] = S::fma(centred, centred, squares.sums[v]);
    });
  });
  return squares.total() / T(D);
}

/// Steps 1a and 1b.
template <class T>
RowMoments<T> moments_of(Row<const T> x, Index D, T epsilon) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  Piece<T> copy;
  Chains<T> sum;
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    each_vector<T>([&](auto v, Index at)
                       HEADWISE_ALWAYS_INLINE { sum.sums[v] = sum.sums[v] + S::load(in + at); });
  });
  const T mean = sum.total() / T(D);
  return {mean, T(1) / std::sqrt(mean_square<T>(x, D, mean) + epsilon)};
}

/// Steps 1c and 1d.
template <class T>
void normalise(Row<const T> x, Index D, RowMoments<T> moments, Row<const T> gamma,
               Row<const T> beta, Row<T> y) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  const auto mean = S::broadcast(moments.mean), rstd = S::broadcast(moments.rstd);
  Piece<T> copy, copied_gamma, copied_beta, result;
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    T* out = row.write(y, n, result);
    typename S::Vector value[std::size_t{Piece<T>::vectors}];
    each_vector<T>([&](auto v, Index at)
                       HEADWISE_ALWAYS_INLINE { value[v] = (S::load(in + at) - mean) * rstd; });
    if (gamma.data != nullptr) {
      const T* by = row.read(gamma, n, T(0), copied_gamma);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { value[v] = value[v] * S::load(by + at); });
    }
    if (beta.data != nullptr) {
      const T* by = row.read(beta, n, T(0), copied_beta);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { value[v] = value[v] + S::load(by + at); });
    }
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE { S::store(value[v], out + at); });
    row.written(out, y, n, result);
  });
}

/// Rows begin ... end - 1, forward.
template <Scalar T>
void layer_norm_rows(const LayerNormRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.x, n);
    RowMoments<T> moments{T(0), T(0)};  // of an empty row, 0 / 0 is no mean
    if constexpr (simd::vectorised<T>) {
      if (of.D != 0) moments = moments_of<T>(x, of.D, of.epsilon);
      normalise<T>(x, of.D, moments, of.gamma, of.beta, row(of.y, n));
    } else {
      if (of.D != 0) moments = row_moments<T>(x, of.D, of.epsilon);
      normalise_row<T>(x, of.D, moments, of.gamma, of.beta, row(of.y, n));
    }
    if (of.mean.data != nullptr) of.mean[n] = moments.mean;
    if (of.rstd.data != nullptr) of.rstd[n] = moments.rstd;
  }
}

/// Steps 1d to 1a of a row; of one that was not centred, whose mean is 0, without the mean of g.
template <class T, bool centred>
void normalise_backward(Row<const T> dy, Row<const T> x, Index D, RowMoments<T> moments,
                        Row<const T> gamma, Row<T> dx) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{D};
  const auto mean = S::broadcast(moments.mean), rstd = S::broadcast(moments.rstd);
  Piece<T> copied_dy, copied_x, copied_gamma, result;
  Chains<T> of_g, of_g_xhat;
  auto any = S::broadcast_int(0);
  // f(v, element, dy, g, xhat) for the vectors of the piece from n on.
  const auto each = [&](Index n, auto&& f) HEADWISE_ALWAYS_INLINE {
    const T* in_dy = row.read(dy, n, T(0), copied_dy);
    const T* in_x = row.read(x, n, moments.mean, copied_x);
    const T* by = gamma.data == nullptr ? nullptr : row.read(gamma, n, T(0), copied_gamma);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const Vector d = S::load(in_dy + at);
      f(v, at, d, by == nullptr ? d : d * S::load(by + at), (S::load(in_x + at) - mean) * rstd);
    });
  };
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    each(n, [&](auto v, Index, const Vector& d, const Vector& g, const Vector& xhat)
                HEADWISE_ALWAYS_INLINE {
                  any = any | (d != S::zero());
                  of_g.sums[v] = of_g.sums[v] + g;
                  of_g_xhat.sums[v] = S::fma(g, xhat, of_g_xhat.sums[v]);
                });
  });
  const bool idle = !any_lane<T>(any);
  const auto mean_g = S::broadcast(centred ? of_g.total() / T(D) : T(0));
  const auto mean_g_xhat = S::broadcast(of_g_xhat.total() / T(D));
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    T* out = row.write(dx, n, result);
    each(n, [&](auto, Index at, const Vector&, const Vector& g, const Vector& xhat)
                HEADWISE_ALWAYS_INLINE {
                  const Vector flow = rstd * (g - mean_g - xhat * mean_g_xhat);
                  S::store(idle ? S::zero() : flow, out + at);
                });
    row.written(out, dx, n, result);
  });
}

/// Rows begin ... end - 1, backward: dx alone.
template <Scalar T>
void layer_norm_backward_rows(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto dy = row(of.dy, n), x = row(of.x, n);
    const RowMoments<T> moments{of.mean[n], of.rstd[n]};
    if constexpr (simd::vectorised<T>) {
      normalise_backward<T, true>(dy, x, of.D, moments, of.gamma, row(of.dx, n));
    } else {
      layer_norm_backward_row<T>(dy, x, of.D, moments, of.gamma, row(of.dx, n));
    }
  }
}

/// Columns begin ... end - 1 of dgamma and dbeta, added to; null for none. A mean that is null is
/// 0.
template <class T>
void norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  Piece<T> copied_dy, copied_x;
  const auto terms = [&](Index i, RowPieces<T> row, Index n, auto&& add) HEADWISE_ALWAYS_INLINE {
    const T* dy = row.read(kernels::row(of.dy, i), n, T(0), copied_dy);
    const T* x = row.read(kernels::row(of.x, i), n, T(0), copied_x);
    prefetch_piece<0>(of.dy, of.N, end, i + rows_of_chain, n);
    prefetch_piece<0>(of.x, of.N, end, i + rows_of_chain, n);
    const auto mean = S::broadcast(of.mean.data == nullptr ? T(0) : of.mean[i]);
    const auto rstd = S::broadcast(of.rstd[i]);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const auto d = S::load(dy + at);
      const auto flow = d * ((S::load(x + at) - mean) * rstd);
      add(v, S::select(d == S::zero(), S::zero(), flow), d);
    });
  };
  add_columns<T, 2>(of.N, begin, end, terms, {of.dgamma, of.dbeta});
}

/// The same. An element whose dy is 0 adds 0, whatever x holds.
template <Scalar T>
void layer_norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    norm_columns<T>(of, begin, end);
  } else {
    const auto flow = [&](Index i, Index n) {
      const T dy = of.dy(i, begin + n);
      return dy == T(0) ? T(0) : T(dy * ((of.x(i, begin + n) - of.mean[i]) * of.rstd[i]));
    };
    const auto plain = [&](Index i, Index n) { return of.dy(i, begin + n); };
    const Row<T>&dgamma = of.dgamma, &dbeta = of.dbeta;
    if (dgamma.data != nullptr) {
      add_column_sums(of.N, end - begin, flow, &dgamma[begin], dgamma.step);
    }
    if (dbeta.data != nullptr) {
      add_column_sums(of.N, end - begin, plain, &dbeta[begin], dbeta.step);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rms_norm.inc
// Root-mean-square normalisation of rows: kernels/rms_norm.hpp by the vectors of layer norm, whose
// mean is 0 here. Other types than float and double take the rows there. Read once for each
// instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Rows begin ... end - 1, forward. beta and mean are null.
template <Scalar T>
void rms_norm_rows(const LayerNormRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.x, n);
    T rstd = T(0);  // of an empty row
    if constexpr (simd::vectorised<T>) {
      if (of.D != 0) rstd = T(1) / std::sqrt(mean_square<T>(x, of.D, T(0)) + of.epsilon);
      normalise<T>(x, of.D, {T(0), rstd}, of.gamma, {nullptr, 0}, row(of.y, n));
    } else {
      if (of.D != 0) rstd = root_mean_square<T>(x, of.D, of.epsilon);
      rms_norm_row<T>(x, of.D, rstd, of.gamma, row(of.y, n));
    }
    if (of.rstd.data != nullptr) of.rstd[n] = rstd;
  }
}

/// Rows begin ... end - 1, backward: dx alone.
template <Scalar T>
void rms_norm_backward_rows(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto dy = row(of.dy, n), x = row(of.x, n);
    if constexpr (simd::vectorised<T>) {
      normalise_backward<T, false>(dy, x, of.D, {T(0), of.rstd[n]}, of.gamma, row(of.dx, n));
    } else {
      rms_norm_backward_row<T>(dy, x, of.D, of.rstd[n], of.gamma, row(of.dx, n));
    }
  }
}

/// Columns begin ... end - 1 of dgamma, added to. An element whose dy is 0 adds 0, whatever x
/// holds.
template <Scalar T>
void rms_norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    norm_columns<T>(of, begin, end);
  } else {
    const auto flow = [&](Index i, Index n) {
      const T dy = of.dy(i, begin + n);
      return dy == T(0) ? T(0) : T(dy * (of.x(i, begin + n) * of.rstd[i]));
    };
    add_column_sums(of.N, end - begin, flow, &of.dgamma[begin], of.dgamma.step);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/softmax.inc
// Softmax of rows: kernels/softmax.hpp by vectors. Other types than float and double take the rows
// there. Read once for each instruction set.
//
// Chains of a sum are counted from element 0 and hidden elements add exact zeros, so that neither
// what is hidden nor how much of it follows changes a bit.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Which elements of a piece are visible, a byte each.
template <class T>
struct PieceMask {
  std::uint8_t bytes[std::size_t{Piece<T>::size}];

  /// yes in the visible lanes of the vector from element `at` on, no in the others.
  HEADWISE_INLINE typename Simd<T>::Vector select(Index at, const typename Simd<T>::Vector& yes,
                                                  const typename Simd<T>::Vector& no) const {
    return Simd<T>::select(Simd<T>::load_bytes(bytes + at), yes, no);
  }
};

/// Which elements of row i are visible: a range, and in it what the masks of pairs leave. Where
/// there are no rules, the whole range.
template <class T>
struct RowMask {
  KeyRange range;
  const HeadVisibility<T>* rules = nullptr;  // null unless pairs have to be asked for
  Index i = 0;

  RowMask(Index N) : range{0, N} {}
  RowMask(const HeadVisibility<T>& visibility, Index row) : range(visibility.range(row)), i(row) {
    if (visibility.has_pair_masks()) rules = &visibility;
  }

  /// Whether the whole piece from n on is visible.
  bool whole(Index n) const {
    return rules == nullptr && n >= range.begin && n + Piece<T>::size <= range.end;
  }
  /// A byte for each element of the piece from n on: whether it is visible.
  [[gnu::noinline]] void look(Index n, PieceMask<T>& seen) const {
    const Index begin = std::max<Index>(range.begin - n, 0);
    const Index end = std::min<Index>(range.end - n, Piece<T>::size);
    for (Index t = 0; t < Piece<T>::size; ++t) seen.bytes[t] = t >= begin && t < end;
    for (Index t = begin; rules != nullptr && t < end; ++t) {
      seen.bytes[t] = rules->pair_visible(i, n + t);
    }
  }
  /// f(n, all, seen) for the pieces that hold something visible: all of it, or what is seen.
  template <class F>
  HEADWISE_INLINE void each_piece(F&& f) const {
    PieceMask<T> seen;
    Index n = range.begin / Piece<T>::size * Piece<T>::size;
    for (; n < range.end; n += Piece<T>::size) {
      const bool all = whole(n);
      if (!all) look(n, seen);
      f(n, all, seen);
    }
  }
};

/// y_n = 0 for the pieces that hold nothing visible.
template <class T>
void clear_hidden(const RowMask<T>& mask, Index N, Row<T> y) {
  const Index begin = mask.range.begin / Piece<T>::size * Piece<T>::size;
  const bool none = mask.range.begin >= mask.range.end;
  for (Index n = 0; n < (none ? N : begin); ++n) y[n] = T(0);
  for (Index n = round_up(mask.range.end, Piece<T>::size); !none && n < N; ++n) y[n] = T(0);
}

/// The greatest visible element; where there is none, the lowest number.
template <class T>
T greatest_of(Row<const T> x, Index N, const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copy;
  T lanes[std::size_t{S::width}];
  const auto lowest = S::broadcast(std::numeric_limits<T>::lowest());
  typename S::Vector most[] = {lowest, lowest, lowest, lowest};
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto value = S::load(in + at);
      if (!all) value = seen.select(at, value, lowest);
      most[v] = S::greater(most[v], value);
    });
  });
  S::store(S::greater(S::greater(most[0], most[1]), S::greater(most[2], most[3])), lanes);
  T greatest = lanes[0];
  for (const T lane : lanes) greatest = greatest < lane ? lane : greatest;
  return greatest;
}

/// p_j = e^(x_j - max) / sum where visible, 0 elsewhere, whatever stood there. p may be x.
template <class T>
void softmax_of(Row<const T> x, Row<T> p, Index N, const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copy, result;
  const auto greatest = S::broadcast(greatest_of<T>(x, N, mask));
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Chains<T> sums;
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    T* out = row.write(p, n, result);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto weight = simd::HEADWISE_ISA::weight_of<T>((S::load(in + at) - greatest) * unit);
      if (!all) weight = seen.select(at, weight, S::zero());
      S::store(weight, out + at);
      sums.sums[v] = sums.sums[v] + weight;
    });
    row.written(out, p, n, result);
  });
  const T total = sums.total();
  const auto sum = S::broadcast(total);
  const bool ask = !(T(0) < total);  // 0 / total is 0 otherwise
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(p, n, T(0), copy);
    T* out = row.write(p, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      auto weight = S::load(in + at) / sum;
      if (!all && ask) weight = seen.select(at, weight, S::zero());
      S::store(weight, out + at);
    });
    row.written(out, p, n, result);
  });
  clear_hidden<T>(mask, N, p);
}

/// dx_j = scale p_j (dp_j - sum_k dp_k p_k) where visible, 0 elsewhere. dx may be dp.
template <class T>
void softmax_backward_of(Row<const T> dp, Row<const T> p, Row<T> dx, Index N, T scale,
                         const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copied_dp, copied_p, result;
  Chains<T> sums;
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T *in = row.read(dp, n, T(0), copied_dp), *by = row.read(p, n, T(0), copied_p);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto term = S::load(in + at) * S::load(by + at);
      if (!all) term = seen.select(at, term, S::zero());
      sums.sums[v] = sums.sums[v] + term;
    });
  });
  const auto sum = S::broadcast(sums.total()), factor = S::broadcast(scale);
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T *in = row.read(dp, n, T(0), copied_dp), *by = row.read(p, n, T(0), copied_p);
    T* out = row.write(dx, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      auto flow = factor * (S::load(by + at) * (S::load(in + at) - sum));
      if (!all) flow = seen.select(at, flow, S::zero());
      S::store(flow, out + at);
    });
    row.written(out, dx, n, result);
  });
  clear_hidden<T>(mask, N, dx);
}

/// Rows begin ... end - 1 of softmax_forward, nothing hidden.
template <Scalar T>
void softmax_rows(Matrix<const T> x, Matrix<T> p, Index N, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    if constexpr (simd::vectorised<T>) {
      softmax_of<T>(row(x, i), row(p, i), N, RowMask<T>(N));
    } else {
      for (Index j = 0; j < N; ++j) p(i, j) = x(i, j);
      softmax_row(row(p, i), N, [](Index) { return true; });
    }
  }
}

/// Rows begin ... end - 1 of softmax_backward.
template <Scalar T>
void softmax_backward_rows(Matrix<const T> dp, Matrix<const T> p, Matrix<T> dx, Index N,
                           Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    if constexpr (simd::vectorised<T>) {
      softmax_backward_of<T>(row(dp, i), row(p, i), row(dx, i), N, T(1), RowMask<T>(N));
    } else {
      softmax_backward_row<T>(row(dp, i), row(p, i), row(dx, i), N, [](Index) { return true; });
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/dropout.inc
// Dropout's draws, many Philox blocks at once: the mask of score/dropout_mask.hpp to the bit. Read
// once for each instruction set; the generic one and other types than float and double draw block
// by block there.
//
// A block is a lane of 64 bits, of which the products read the lower half: 32 x 32 to 64 bits is
// one instruction with AVX2 and AVX-512, its upper half one shift, and its lower half is there.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
inline constexpr bool draws_by_lanes = HEADWISE_ISA_BYTES >= 32 && simd::vectorised<T>;

#if HEADWISE_ISA_BYTES >= 32
typedef std::uint64_t PhiloxLanes __attribute__((vector_size(HEADWISE_ISA_BYTES)));
inline constexpr int philox_lanes = HEADWISE_ISA_BYTES / 8;

/// The lower 32 bits of each lane times b.
HEADWISE_INLINE PhiloxLanes multiply_low(PhiloxLanes a, std::uint32_t b) {
  const PhiloxLanes by = PhiloxLanes{} + std::uint64_t{b};
#if HEADWISE_ISA_BYTES == 64
  return __builtin_bit_cast(PhiloxLanes,
                            _mm512_maskz_mul_epu32(0xFF, __builtin_bit_cast(__m512i, a),
                                                   __builtin_bit_cast(__m512i, by)));
#else
  return __builtin_bit_cast(PhiloxLanes, _mm256_mul_epu32(__builtin_bit_cast(__m256i, a),
                                                          __builtin_bit_cast(__m256i, by)));
#endif
}

/// philox<7> of the counters in the lanes' lower halves; what stands in the upper ones is
/// undefined, before and after.
HEADWISE_INLINE void draw_blocks(PhiloxLanes (&c)[4], std::array<std::uint32_t, 2> key) {
  unrolled<7>([&](auto) HEADWISE_ALWAYS_INLINE {
    const PhiloxLanes even = multiply_low(c[0], 0xD2511F53u), odd = multiply_low(c[2], 0xCD9E8D57u);
    c[0] = (odd >> 32) ^ c[1] ^ std::uint64_t{key[0]};
    c[1] = odd;
    c[2] = (even >> 32) ^ c[3] ^ std::uint64_t{key[1]};
    c[3] = even;
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  });
}

/// An index in each lane.
HEADWISE_INLINE PhiloxLanes in_all_lanes(Index n) {
  return PhiloxLanes{} + static_cast<std::uint64_t>(n);
}
/// first, first + 1, first + 2 ...
HEADWISE_INLINE PhiloxLanes counting_from(Index first) {
  std::uint64_t numbers[std::size_t{philox_lanes}];
  for (std::size_t n = 0; n < std::size_t{philox_lanes}; ++n) numbers[n] = n;
  PhiloxLanes steps;
  std::memcpy(&steps, numbers, sizeof steps);
  return in_all_lanes(first) + steps;
}

/// The 16 bits of the elements of as many blocks as there are lanes, from block j8 of query i on.
template <class Bits>
HEADWISE_INLINE void draw_row(const DropoutMask& mask, Index b, Index h, Index i, Index j8,
                              Bits& bits) {
  PhiloxLanes c[4] = {counting_from(j8), in_all_lanes(i), in_all_lanes(h), in_all_lanes(b)};
  draw_blocks(c, mask.key());
  constexpr std::uint64_t low = 0xFFFFFFFFu;
  const PhiloxLanes first = (c[0] & low) | (c[1] << 32), second = (c[2] & low) | (c[3] << 32);
  // Block n's elements 0 to 3 are in lane n of the first, 4 to 7 in lane n of the second.
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    const PhiloxLanes front =
        __builtin_shufflevector(first, second, (n / 2 + n % 2 * philox_lanes)...);
    const PhiloxLanes back = __builtin_shufflevector(
        first, second, (n / 2 + n % 2 * philox_lanes + philox_lanes / 2)...);
    std::memcpy(bits, &front, sizeof front);
    std::memcpy(bits + sizeof(front) / 2, &back, sizeof back);
  }
  (std::make_integer_sequence<int, philox_lanes>());
}
#endif

/// factors[t] = 0 or keep_factor for pairs (i, j + t), t in [0, count), j a multiple of 8.
template <class T>
[[gnu::noinline]] void dropout_factors(const DropoutMask& mask, Index b, Index h, Index i, Index j,
                                       Index count, T* factors) {
  const T factor = T(mask.keep_factor());
#if HEADWISE_ISA_BYTES >= 32
  if constexpr (draws_by_lanes<T>) {
    using S = Simd<T>;
    typedef std::uint16_t HalfVector __attribute__((vector_size(2 * S::width)));
    constexpr Index drawn = Index{8} * philox_lanes;
    std::uint16_t bits[std::size_t{drawn}];
    const auto limit = S::broadcast_int(static_cast<typename S::Int>(mask.threshold()));
    const auto kept = S::broadcast(factor);
    for (Index t = 0, n = 0; t < count; t += n) {
      draw_row(mask, b, h, i, (j + t) / 8, bits);
      n = std::min<Index>(drawn, count - t);
      Index m = 0;
      for (; m + S::width <= n; m += S::width) {
        HalfVector half;
        std::memcpy(&half, bits + m, sizeof half);
        const auto wide = __builtin_convertvector(half, typename S::IntVector);
        S::store(S::select(wide >= limit, kept, S::zero()), factors + t + m);
      }
      for (; m < n; ++m) {
        factors[t + m] = bits[m] >= mask.threshold() ? factor : T(0);
      }
    }
    return;
  }
#endif
  mask.row(b, h, i, j, count, factor, factors);
}

/// Elements n0 ... n0 + count - 1 of row i of y = x factors, 0 where the factor is 0, whatever x
/// holds; rows end before `end`.
template <class T>
void drop_pieces(Matrix<const T> x, Matrix<T> y, Index N, Index i, Index end, Index n0, Index count,
                 const T* factors) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  const auto from = kernels::row(x, i);
  const auto to = kernels::row(y, i);
  Piece<T> copy, result;
  for (Index n = n0; n < n0 + count; n += Piece<T>::size) {
    prefetch_ahead<0>(x, end, N, i, n);
    prefetch_ahead<1>(y, end, N, i, n);
    const T* in = row.read(from, n, T(0), copy);
    T* out = row.write(to, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      const auto factor = S::load(factors + (n - n0) + at);
      S::store(S::select(factor == S::zero(), S::zero(), S::load(in + at) * factor), out + at);
    });
    row.written(out, to, n, result);
  }
}

/// Rows begin ... end - 1 of y = x times the keep factor where kept, 0 elsewhere. y may be x.
/// Factors are drawn for some pieces at once: one draw of all lanes is more than a piece of
/// doubles.
template <Scalar T>
void drop_rows(const DropoutMask& mask, Matrix<const T> x, Matrix<T> y, Index N, Index begin,
               Index end) {
  constexpr Index drawn = 4 * Piece<T>::size;
  T factors[std::size_t{drawn}];
  for (Index i = begin; i < end; ++i) {
    for (Index n0 = 0; n0 < N; n0 += drawn) {
      const Index count = std::min<Index>(drawn, N - n0);
      dropout_factors<T>(mask, 0, 0, i, n0, count, factors);
      if constexpr (simd::vectorised<T>) {
        for (Index t = count; t < drawn; ++t) factors[t] = T(0);
        drop_pieces<T>(x, y, N, i, end, n0, count, factors);
      } else {
        for (Index t = 0; t < count; ++t) {
          y(i, n0 + t) = factors[t] == T(0) ? T(0) : T(x(i, n0 + t) * factors[t]);
        }
      }
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/embedding.inc
// A row that is added to another: the gradient of a table's row. Read once for each instruction
// set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// to_n += x_n, n < N.
template <Scalar T>
void add_row(Row<const T> x, Index N, Row<T> to) {
  if constexpr (simd::vectorised<T>) {
    using S = Simd<T>;
    const RowPieces<T> row{N};
    Piece<T> copy, sums;
    each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* in = row.read(x, n, T(0), copy);
      T* at = row.write(to, n, sums);
      if (at == sums.data) gather<T>(to, n, row.count(n), T(0), sums);
      each_vector<T>([&](auto, Index element) HEADWISE_ALWAYS_INLINE {
        S::store(S::load(at + element) + S::load(in + element), at + element);
      });
      row.written(at, to, n, sums);
    });
  } else {
    for (Index n = 0; n < N; ++n) to[n] = to[n] + x[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/cross_entropy.inc
// Softmax cross-entropy of rows: kernels/cross_entropy.hpp by vectors. Other types than float and
// double take the rows there. Read once for each instruction set.
//
// Forward reads a row twice, the second time from a cache where it fits one; backward reads and
// writes it once. Chains of a sum are counted from element 0 and joined every 16 pieces, so that a
// vocabulary of 50,000 costs a sum no digits.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// f(n, whole, at) for each piece of a row, from element n on: whether all of it lies in the row
/// and it does not hold the target, and which of its elements is the target, or -1. Every 16 pieces
/// `sums` are joined to `totals`.
template <class T, class F>
HEADWISE_INLINE void each_piece_but_target(RowPieces<T> row, Index target, Chains<T>& sums,
                                           Chains<T>& totals, F&& f) {
  constexpr Index size = Piece<T>::size, together = 16 * size;
  for (Index n0 = 0; n0 < row.N; n0 += together) {
    sums = Chains<T>();
    for (Index n = n0, end = std::min<Index>(row.N, n0 + together); n < end; n += size) {
      const bool holds = target >= n && target < n + size;
      f(n, !holds && n + size <= row.N, holds ? target - n : Index{-1});
    }
    each_vector<T>([&](auto v, Index)
                       HEADWISE_ALWAYS_INLINE { totals.sums[v] = totals.sums[v] + sums.sums[v]; });
  }
}

/// f(v, element, counts) for the vectors that hold one of the first `count` elements of a piece;
/// counts(x) is x in the lanes of those elements but the one at `target`, and 0 in the others.
template <class T, class F>
HEADWISE_INLINE void each_vector_but_target(Index count, Index target, F&& f) {
  using S = Simd<T>;
  using Int = typename S::Int;
  const auto lanes = S::lane_numbers();
  each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
    if (at >= count) return;
    const auto counted =
        S::both(S::within(lanes, S::broadcast_int(0), S::broadcast_int(Int(count - at))),
                lanes != S::broadcast_int(Int(target - at)));
    f(v, at, [&](const typename S::Vector& x) HEADWISE_ALWAYS_INLINE {
      return S::select(counted, x, S::zero());
    });
  });
}

/// The greatest lane. (Vector by vector: lane after lane was a third of a row of 65.)
template <class T>
HEADWISE_INLINE T greatest_lane(typename Simd<T>::Vector x) {
  using S = Simd<T>;
  const auto with = [&](auto half) HEADWISE_ALWAYS_INLINE {
    if constexpr (half != 0) {
      [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
        x = S::greater(x, __builtin_shufflevector(x, x, (n ^ half)...));
      }
      (std::make_integer_sequence<int, S::width>());
    }
  };
  with(std::integral_constant<int, S::width / 2>{});
  with(std::integral_constant<int, S::width / 4>{});
  with(std::integral_constant<int, S::width / 8>{});
  with(std::integral_constant<int, S::width / 16>{});
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  return lanes[0];
}

/// The greatest element; NaN is passed over.
template <class T>
T greatest_logit(Row<const T> x, Index V) {
  using S = Simd<T>;
  constexpr T least = std::numeric_limits<T>::lowest();
  const RowPieces<T> row{V};
  Piece<T> copy;
  const auto lowest = S::broadcast(least);
  typename S::Vector most[] = {lowest, lowest, lowest, lowest};
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const Index count = row.count(n);
    if (count == Piece<T>::size) {
      const T* in = row.read(x, n, least, copy);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        most[v] = S::greater(most[v], S::load(in + at));
      });
      return;
    }
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      if (at >= count) return;
      most[v] = S::greater(most[v], load_lanes<T>({&x[n + at], x.step}, count - at, least));
    });
  });
  return greatest_lane<T>(S::greater(S::greater(most[0], most[1]), S::greater(most[2], most[3])));
}

/// Forward of one row.
template <class T>
CrossEntropy<T> cross_entropy_of(Row<const T> x, Index V, Index target) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{V};
  const T most = greatest_logit<T>(x, V);
  const auto greatest = S::broadcast(most);
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Piece<T> copy, weights;
  Chains<T> sums, totals;
  T of_target = T(0);
  const auto weight_at = [&](const Vector& in) HEADWISE_ALWAYS_INLINE {
    return simd::HEADWISE_ISA::weight_of<T>((in - greatest) * unit);
  };
  const auto add = [&](Index n, bool whole, Index at_target) HEADWISE_ALWAYS_INLINE {
    if (whole) {
      const T* in = row.read(x, n, most, copy);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        sums.sums[v] = sums.sums[v] + weight_at(S::load(in + at));
      });
      return;
    }
    const Index count = row.count(n);
    each_vector_but_target<T>(
        count, at_target, [&](auto v, Index at, auto counts) HEADWISE_ALWAYS_INLINE {
          const auto weight = weight_at(load_lanes<T>({&x[n + at], x.step}, count - at, most));
          S::store(weight, weights.data + at);
          sums.sums[v] = sums.sums[v] + counts(weight);
        });
    if (at_target >= 0) of_target = weights.data[at_target];
  };
  each_piece_but_target<T>(row, target, sums, totals, add);
  return cross_entropy_from<T>(most, x[target], of_target, totals.total());
}

/// Backward of one row. dx may be x.
template <class T>
void cross_entropy_backward_of(Row<const T> x, Index V, Index target, T lse, T factor, Row<T> dx) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{V};
  const auto centre = S::broadcast(lse), by = S::broadcast(factor);
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Piece<T> copy, result, weights;
  Chains<T> sums, totals;
  T of_target = T(0);
  const auto weight_at = [&](const Vector& in) HEADWISE_ALWAYS_INLINE {
    return simd::HEADWISE_ISA::weight_of<T>((in - centre) * unit);
  };
  const auto flow = [&](Index n, bool whole, Index at_target) HEADWISE_ALWAYS_INLINE {
    if (whole) {
      const T* in = row.read(x, n, lse, copy);
      T* out = row.write(dx, n, result);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        const auto p = weight_at(S::load(in + at));
        S::store(by * p, out + at);
        sums.sums[v] = sums.sums[v] + p;
      });
      row.written(out, dx, n, result);
      return;
    }
    const Index count = row.count(n);
    each_vector_but_target<T>(
        count, at_target, [&](auto v, Index at, auto counts) HEADWISE_ALWAYS_INLINE {
          const auto p = weight_at(load_lanes<T>({&x[n + at], x.step}, count - at, lse));
          S::store(p, weights.data + at);
          store_lanes<T>(by * p, {&dx[n + at], dx.step}, count - at);
          sums.sums[v] = sums.sums[v] + counts(p);
        });
    if (at_target >= 0) of_target = weights.data[at_target];
  };
  each_piece_but_target<T>(row, target, sums, totals, flow);
  dx[target] = T(0) - factor * (totals.total() + T(0) * of_target);
}

/// Rows begin ... end - 1, forward: lse may be null.
template <Scalar T>
void cross_entropy_rows(const CrossEntropyRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    CrossEntropy<T> result{T(0), T(0)};
    if (of.targets[n] >= 0) {
      const auto x = row(of.logits, n);
      if constexpr (simd::vectorised<T>) {
        result = cross_entropy_of<T>(x, of.V, of.targets[n]);
      } else {
        result = cross_entropy_row<T>(x, of.V, of.targets[n]);
      }
    }
    of.losses[n] = result.loss;
    if (of.lse.data != nullptr) of.lse[n] = result.lse;
  }
}

/// Rows begin ... end - 1, backward.
template <Scalar T>
void cross_entropy_backward_rows(const CrossEntropyBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.logits, n);
    const auto dx = row(of.d_logits, n);
    if (of.targets[n] < 0) {
      for (Index v = 0; v < of.V; ++v) dx[v] = T(0);
    } else if constexpr (simd::vectorised<T>) {
      cross_entropy_backward_of<T>(x, of.V, of.targets[n], of.lse[n], of.factor, dx);
    } else {
      cross_entropy_backward_row<T>(x, of.V, of.targets[n], of.lse[n], of.factor, dx);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rotary.inc
// Rotation of pairs of a row's elements. Read once for each instruction set.
//
// A vector of first elements and one of second elements are rotated together, whichever way pairs
// lie in the row: halves are read as they are, neighbours are parted and joined again. A row of 64
// is one or two vectors a half, so that pieces of four would be copies.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Pairs in neighbouring elements, as many as lanes: the first of each, the second of each.
template <class T>
HEADWISE_INLINE void load_neighbours(const T* from, typename Simd<T>::Vector& first,
                                     typename Simd<T>::Vector& second) {
  constexpr int width = Simd<T>::width;
  const auto low = Simd<T>::load(from), high = Simd<T>::load(from + width);
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    first = __builtin_shufflevector(low, high, (2 * n)...);
    second = __builtin_shufflevector(low, high, (2 * n + 1)...);
  }
  (std::make_integer_sequence<int, width>());
}
template <class T>
HEADWISE_INLINE void store_neighbours(const typename Simd<T>::Vector& first,
                                      const typename Simd<T>::Vector& second, T* to) {
  constexpr int width = Simd<T>::width;
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    Simd<T>::store(__builtin_shufflevector(first, second, (n / 2 + n % 2 * width)...), to);
    Simd<T>::store(__builtin_shufflevector(first, second, (n / 2 + n % 2 * width + width / 2)...),
                   to + width);
  }
  (std::make_integer_sequence<int, width>());
}

/// Where pairs lie in a row: element t of the first ones, of the second ones.
template <class T>
struct RowPairs {
  Row<T> first, second;

  RowPairs(Row<T> x, const RotaryRows<std::remove_const_t<T>>& of)
      : first(of.interleaved ? Row<T>{x.data, 2 * x.step} : x),
        second(of.interleaved ? Row<T>{x.data + x.step, 2 * x.step}
                              : Row<T>{x.data + of.width / 2 * x.step, x.step}) {}
  Row<T> first_from(Index t) const { return {&first[t], first.step}; }
  Row<T> second_from(Index t) const { return {&second[t], second.step}; }
};

/// One row: (a, b) becomes (a c - b s, a s + b c). y may be x.
template <class T>
void rotate_row(const RotaryRows<T>& of, Row<const T> cosines, Row<const T> sines, Row<const T> x,
                Row<T> y) {
  using S = Simd<T>;
  const RowPairs<const T> from(x, of);
  const RowPairs<T> to(y, of);
  const Index pairs = of.width / 2;
  const bool neighbours = of.interleaved && x.step == 1 && y.step == 1;
  for (Index t = 0; t < pairs; t += S::width) {
    const Index count = std::min<Index>(S::width, pairs - t);
    const auto c = load_lanes<T>({&cosines[t], cosines.step}, count, T(0));
    auto s = load_lanes<T>({&sines[t], sines.step}, count, T(0));
    if (of.transposed) s = S::zero() - s;
    const bool parted = neighbours && count == S::width;
    typename S::Vector a, b;
    if (parted) {
      load_neighbours<T>(x.data + 2 * t, a, b);
    } else {
      a = load_lanes<T>(from.first_from(t), count, T(0));
      b = load_lanes<T>(from.second_from(t), count, T(0));
    }
    const auto first = S::fma(a, c, S::zero() - b * s), second = S::fma(a, s, b * c);
    if (parted) {
      store_neighbours<T>(first, second, y.data + 2 * t);
    } else {
      store_lanes<T>(first, to.first_from(t), count);
      store_lanes<T>(second, to.second_from(t), count);
    }
  }
}

/// Rows begin ... end - 1, each by its own row of the tables, and the elements behind `width`
/// copied. y may be x.
template <Scalar T>
void rotate_rows(const RotaryRows<T>& of, Matrix<const T> x, Matrix<T> y, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    const auto from = row(x, i);
    const auto to = row(y, i);
    const auto cosines = row(of.cosines, i), sines = row(of.sines, i);
    if constexpr (simd::vectorised<T>) {
      rotate_row<T>(of, cosines, sines, from, to);
    } else {
      const RowPairs<const T> in(from, of);
      const RowPairs<T> out(to, of);
      for (Index t = 0; t < of.width / 2; ++t) {
        const T a = in.first[t], b = in.second[t], c = cosines[t];
        const T s = of.transposed ? T(T(0) - sines[t]) : sines[t];
        out.first[t] = a * c - b * s;
        out.second[t] = a * s + b * c;
      }
    }
    if (from.data == to.data) continue;
    for (Index n = of.width; n < of.d; ++n) to[n] = from[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/optimizer.inc
// The element-wise half of an optimiser: one pass over values, gradients and state, which waits for
// memory and for nothing else. Read once for each instruction set.
//
// No product is fused with a sum here, as in the formulas that these steps repeat: so an element
// gets the same bits from every instruction set, from a vector or from the end of a row.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// The root of each lane, rounded once. (The masked forms: g++ 12 warns of its own header at the
/// others.)
template <Scalar T>
HEADWISE_INLINE typename Simd<T>::Vector square_root(const typename Simd<T>::Vector& x) {
  using Vector [[maybe_unused]] = typename Simd<T>::Vector;
  if constexpr (!simd::vectorised<T>) {
    using std::sqrt;
    return sqrt(x);
#if HEADWISE_ISA_BYTES == 64
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(Vector, _mm512_maskz_sqrt_ps(0xFFFF, __builtin_bit_cast(__m512, x)));
  } else {
    return __builtin_bit_cast(Vector, _mm512_maskz_sqrt_pd(0xFF, __builtin_bit_cast(__m512d, x)));
#elif HEADWISE_ISA_BYTES == 32
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(Vector, _mm256_sqrt_ps(__builtin_bit_cast(__m256, x)));
  } else {
    return __builtin_bit_cast(Vector, _mm256_sqrt_pd(__builtin_bit_cast(__m256d, x)));
#else
  } else {
    T lanes[std::size_t{Simd<T>::width}];
    Simd<T>::store(x, lanes);
    for (T& lane : lanes) lane = std::sqrt(lane);
    return Simd<T>::load(lanes);
#endif
  }
}

/// Calls f(from, to ...) with pointers to whole vectors: where they lie, and for the end of the row
/// copies, of which those that are written to are copied back.
template <Scalar T, class F, class... To>
HEADWISE_INLINE void each_whole_vector(Index n, const F& f, const T* from, To*... to) {
  constexpr Index width = Simd<T>::width;
  Index i = 0;
  for (; i + width <= n; i += width) f(from + i, (to + i)...);
  if constexpr (width > 1) {
    if (i == n) return;
    T read[std::size_t{width}] = {}, written[sizeof...(to)][std::size_t{width}] = {};
    const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(T);
    std::memcpy(read, from + i, bytes);
    [&]<std::size_t... k>(std::index_sequence<k...>) HEADWISE_ALWAYS_INLINE {
      (std::memcpy(written[k], to + i, bytes), ...);
      f(read, written[k]...);
      (std::memcpy(to + i, written[k], bytes), ...);
    }
    (std::index_sequence_for<To...>());
  }
}

/// Elements 0 ... n - 1 of dense values p, gradients g and moments m and v:
///   1  p = p (1 - rate decay)
///   2  m = m + (1 - beta1) (g - m)
///   3  v = beta2 v + (1 - beta2) g g
///   4  p = p - step m / (sqrt(v) / root_correction + epsilon)
/// 15 FLOPs an element, with the scale of g.
template <Scalar T>
void adamw(const AdamWStep<T>& step, T* p, const T* g, T* m, T* v, Index n) {
  using S = Simd<T>;
  const auto scale = S::broadcast(step.gradient_scale), keep = S::broadcast(step.keep);
  const auto new_m = S::broadcast(step.one_minus_beta1), rest = S::broadcast(step.rest_of_m);
  const auto beta2 = S::broadcast(step.beta2), new_v = S::broadcast(step.one_minus_beta2);
  const auto correction = S::broadcast(step.root_correction);
  const auto epsilon = S::broadcast(step.epsilon), minus_step = S::broadcast(step.minus_step);
  const auto update = [&](const T* g_at, T* p_at, T* m_at, T* v_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = S::load(g_at) * scale;
    const auto old_m = S::load(m_at);
    const auto way = gradient - old_m;
    const auto m_now = step.near_gradient ? gradient - way * rest : old_m + new_m * way;
    const auto v_now = S::load(v_at) * beta2 + new_v * gradient * gradient;
    const auto root = square_root<T>(v_now) / correction + epsilon;
    S::store(S::load(p_at) * keep + minus_step * m_now / root, p_at);
    S::store(m_now, m_at);
    S::store(v_now, v_at);
  };
  each_whole_vector(n, update, g, p, m, v);
}

/// Elements 0 ... n - 1 of dense values p and gradients g:
///   1  g' = g + decay p
///   2  u = momentum u + (1 - dampening) g', and g' the first time
///   3  g' = u, or g' + momentum u where the step looks ahead
///   4  p = p - rate g'
/// u is null where there is no momentum: then 2 and 3 are left out.
template <Scalar T>
void sgd(const SgdStep<T>& step, T* p, const T* g, T* u, Index n) {
  using S = Simd<T>;
  const auto scale = S::broadcast(step.gradient_scale), decay = S::broadcast(step.weight_decay);
  const auto momentum = S::broadcast(step.momentum);
  const auto fresh = S::broadcast(step.one_minus_dampening);
  const auto minus_rate = S::broadcast(step.minus_rate);
  const auto gradient_of = [&](const T* p_at, const T* g_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = S::load(g_at) * scale;
    return step.decays ? gradient + decay * S::load(p_at) : gradient;
  };
  if (u == nullptr) {
    const auto update = [&](const T* g_at, T* p_at) HEADWISE_ALWAYS_INLINE {
      S::store(S::load(p_at) + minus_rate * gradient_of(p_at, g_at), p_at);
    };
    return each_whole_vector(n, update, g, p);
  }
  const auto update = [&](const T* g_at, T* p_at, T* u_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = gradient_of(p_at, g_at);
    const auto velocity = step.first ? gradient : S::load(u_at) * momentum + fresh * gradient;
    const auto by = step.nesterov ? gradient + momentum * velocity : velocity;
    S::store(S::load(p_at) + minus_rate * by, p_at);
    S::store(velocity, u_at);
  };
  each_whole_vector(n, update, g, p, u);
}

/// x_i = factor x_i.
template <Scalar T>
void scale_elements(T factor, T* x, Index n) {
  using S = Simd<T>;
  const auto by = S::broadcast(factor);
  const auto update = [&](const T* from, T* to)
                          HEADWISE_ALWAYS_INLINE { S::store(S::load(from) * by, to); };
  each_whole_vector(n, update, static_cast<const T*>(x), x);
}

/// A vector of SumOf<T> from as many elements. (__builtin_convertvector makes two halves of it.)
template <Scalar T>
HEADWISE_INLINE typename Simd<SumOf<T>>::Vector widened(const T* from) {
  using Vector [[maybe_unused]] = typename Simd<SumOf<T>>::Vector;
  if constexpr (std::same_as<T, SumOf<T>>) {
    return Simd<T>::load(from);
  } else {
    typedef float Half __attribute__((vector_size(HEADWISE_ISA_BYTES / 2)));
    Half half;
    std::memcpy(&half, from, sizeof half);
#if HEADWISE_ISA_BYTES == 64
    return __builtin_bit_cast(Vector,
                              _mm512_maskz_cvtps_pd(0xFF, __builtin_bit_cast(__m256, half)));
#elif HEADWISE_ISA_BYTES == 32
    return __builtin_bit_cast(Vector, _mm256_cvtps_pd(__builtin_bit_cast(__m128, half)));
#else
    return __builtin_convertvector(half, Vector);
#endif
  }
}

/// The sum of the squares of dense elements, in double where T is float: chains as in a row's sums,
/// then pairwise.
template <Scalar T>
SumOf<T> sum_of_squares(const T* x, Index n) {
  using S = Simd<SumOf<T>>;
  constexpr Index together = Piece<SumOf<T>>::size;
  if constexpr (S::width == 1) {
    SumOf<T> sum = T(0);
    for (Index i = 0; i < n; ++i) sum = sum + x[i] * x[i];
    return sum;
  } else {
    Chains<SumOf<T>> chains;
    T copy[std::size_t{together}] = {};
    for (Index i = 0; i < n; i += together) {
      const T* from = x + i;
      if (i + together > n) {
        std::memcpy(copy, from, static_cast<std::size_t>(n - i) * sizeof(T));
        from = copy;
      }
      each_vector<SumOf<T>>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        const auto y = widened<T>(from + at);
        chains.sums[v] = S::fma(y, y, chains.sums[v]);
      });
    }
    return chains.total();
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/activation.inc
// Activations of rows and their gradients: kernels/activation.hpp by vectors. Other types than
// float and double take the functions there. Read once for each instruction set.
//
// A power of e and one quotient an element; forward reads x and writes y, backward reads dy and x
// and writes dx. Beyond a bound where the share is 0 or 1 to the last bit, x counts as the bound,
// so that infinities meet no 0.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// The share at x and the density, of one vector; the density costs nothing where it is not read.
template <class T, Activation which>
struct Shares {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  using Logistic = simd::LogisticConstants<T>;
  static constexpr T bound = which == Activation::gelu   ? simd::NormalConstants<T>::bound
                             : which == Activation::silu ? Logistic::bound
                                                         : Logistic::tanh_bound;
  typename S::IntVector negative;
  Vector below;  // -|x|, at least -bound
  Vector share, density;

  HEADWISE_INLINE explicit Shares(const Vector& x)
      : negative(x < S::zero()), below(simd::HEADWISE_ISA::below_zero<T>(x, bound)) {
    if constexpr (which == Activation::gelu) {
      const Vector power = simd::HEADWISE_ISA::normal_power<T>(below);
      const Vector tail = power * simd::HEADWISE_ISA::normal_tail<T>(below);
      share = S::select(negative, tail, T(1) - tail);
      constexpr T peak = static_cast<T>(0.39894228040143267793994605993438187L);  // 1 / sqrt(2 pi)
      density = power * peak;
    } else if constexpr (which == Activation::silu) {
      logistic(below);
    } else {
      constexpr T linear = static_cast<T>(GeluTanh::linear),
                  cubic = static_cast<T>(GeluTanh::cubic);
      const Vector square = below * below;
      logistic(below * S::fma(square, S::broadcast(cubic), S::broadcast(linear)));
      density = density * S::fma(square, S::broadcast(3 * cubic), S::broadcast(linear));
    }
  }
  /// x share(x)
  HEADWISE_INLINE Vector value(const Vector& x) const {
    return S::select(negative, below, x) * share;
  }
  /// share(x) + x density(x)
  HEADWISE_INLINE Vector slope() const {
    return S::fma(S::select(negative, below, -below), density, share);
  }

 private:
  HEADWISE_INLINE void logistic(const Vector& z) {  // <= 0
    const Vector power = simd::HEADWISE_ISA::power_of_e<T>(z);
    const Vector most = T(1) / (T(1) + power), least = power * most;
    share = S::select(negative, least, most);
    density = least * most;
  }
};

/// relu: the share is a step, and no product is needed.
template <class T>
struct Shares<T, Activation::relu> {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  Vector x;

  HEADWISE_INLINE explicit Shares(const Vector& of) : x(of) {}
  HEADWISE_INLINE Vector value(const Vector&) const {
    return S::select(x < S::zero(), S::zero(), x);
  }
  HEADWISE_INLINE Vector slope() const {
    return S::select(x <= S::zero(), S::zero(), S::broadcast(T(1)));
  }
};

template <class T, Activation which>
void activate(const ActivationRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  const RowPieces<T> pieces{of.F};
  Piece<T> copied_x, copied_up, result;
  for (Index i = begin; i < end; ++i) {
    const auto x = row(of.x, i), up = row(of.up, i);
    const auto y = row(of.y, i);
    each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* in = pieces.read(x, n, T(0), copied_x);
      const T* by = of.up.data == nullptr ? nullptr : pieces.read(up, n, T(0), copied_up);
      T* out = pieces.write(y, n, result);
      each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
        const auto value = S::load(in + at);
        auto got = Shares<T, which>(value).value(value);
        if (by != nullptr) got = got * S::load(by + at);
        S::store(got, out + at);
      });
      pieces.written(out, y, n, result);
    });
  }
}

/// dx = dy up f'(x), d_up = dy f(x); where dy or the slope is 0, 0, whatever x and up hold.
template <class T, Activation which>
void activate_backward(const ActivationBackwardRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  const RowPieces<T> pieces{of.F};
  Piece<T> copied_dy, copied_x, copied_up, result, result_up;
  for (Index i = begin; i < end; ++i) {
    const auto dy = row(of.dy, i), x = row(of.x, i), up = row(of.up, i);
    const auto dx = row(of.dx, i), d_up = row(of.d_up, i);
    each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* flow = pieces.read(dy, n, T(0), copied_dy);
      const T* in = pieces.read(x, n, T(0), copied_x);
      const T* by = of.up.data == nullptr ? nullptr : pieces.read(up, n, T(0), copied_up);
      T* out = pieces.write(dx, n, result);
      T* out_up = by == nullptr ? nullptr : pieces.write(d_up, n, result_up);
      each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
        const auto d = S::load(flow + at), value = S::load(in + at);
        const Shares<T, which> shares(value);
        const auto slope = shares.slope();
        const auto idle = d == S::zero();
        auto through = d;
        if (by != nullptr) {
          through = d * S::load(by + at);
          S::store(S::select(idle, S::zero(), d * shares.value(value)), out_up + at);
        }
        S::store(S::select(idle | (slope == S::zero()), S::zero(), through * slope), out + at);
      });
      pieces.written(out, dx, n, result);
      if (by != nullptr) pieces.written(out_up, d_up, n, result_up);
    });
  }
}

/// Rows begin ... end - 1 of y = f(x), or f(x) up.
template <Scalar T>
void activation_rows(const ActivationRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    using enum Activation;
    if (of.which == relu) return activate<T, relu>(of, begin, end);
    if (of.which == gelu) return activate<T, gelu>(of, begin, end);
    if (of.which == gelu_tanh) return activate<T, gelu_tanh>(of, begin, end);
    activate<T, silu>(of, begin, end);
  } else {
    for (Index i = begin; i < end; ++i) {
      for (Index n = 0; n < of.F; ++n) {
        const T value = activation_value<T>(of.which, of.x(i, n));
        of.y(i, n) = of.up.data == nullptr ? value : T(value * of.up(i, n));
      }
    }
  }
}

/// Rows begin ... end - 1 of its gradients.
template <Scalar T>
void activation_backward_rows(const ActivationBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    using enum Activation;
    if (of.which == relu) return activate_backward<T, relu>(of, begin, end);
    if (of.which == gelu) return activate_backward<T, gelu>(of, begin, end);
    if (of.which == gelu_tanh) return activate_backward<T, gelu_tanh>(of, begin, end);
    activate_backward<T, silu>(of, begin, end);
  } else {
    const bool gated = of.up.data != nullptr;
    for (Index i = begin; i < end; ++i) {
      for (Index n = 0; n < of.F; ++n) {
        const T dy = of.dy(i, n);
        const ValueAndSlope<T> f(of.which, of.x(i, n), gated);
        const T through = gated ? T(dy * of.up(i, n)) : dy;
        const bool idle = dy == T(0);
        if (gated) of.d_up(i, n) = idle ? T(0) : T(dy * f.value);
        of.dx(i, n) = idle || f.slope == T(0) ? T(0) : T(through * f.slope);
      }
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/attention_head.inc
// Attention of one head with its weights kept: the readable specification, matrix by matrix. The
// step numbers are those of docs/derivations/attention_backward.md. Read once for each instruction
// set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Scratch of the products of a head: scores, and sums over keys and over queries.
template <class T>
Index head_products_scratch(Index L, Index S, Index d, Index dv) {
  const Index width = std::max<Index>(d, dv);
  return std::max<Index>({gemm_scratch<T>({L, S, width}), gemm_scratch<T>({L, width, S}),
                          gemm_scratch<T>({S, width, L})});
}
/// Scratch, in elements, of one head: a packed block, and [L, S] for dropped weights.
template <class T>
Index attention_forward_scratch(Index L, Index S, Index d, Index dv, bool dropout) {
  return head_products_scratch<T>(L, S, d, dv) + (dropout ? padded<T>(L * S) : 0);
}
/// The same for backward, with [L, S] for the gradient of the scores besides.
template <class T>
Index attention_backward_scratch(Index L, Index S, Index d, Index dv, bool dropout) {
  return head_products_scratch<T>(L, S, d, dv) + padded<T>(L * S) * (dropout ? 2 : 1);
}

/// Step 4d: dropped [L, S], dense, = weights where dropout keeps them, times 1 / (1 - rate).
template <class T>
void drop_weights(const AttentionHead<T>& head, Matrix<const T> weights, T* dropped) {
  for (Index i = 0; i < head.L; ++i, dropped += head.S) {
    dropout_factors<T>(head.dropout, head.b, head.h, i, 0, head.S, dropped);
    for (Index j = 0; j < head.S; ++j) dropped[j] = dropped[j] * weights(i, j);
  }
}

/// Steps 4a and 4b: scores [L, S] = scale q k^T + bias. Masked pairs are computed and not read.
template <class T>
void score_head(const AttentionHead<T>& head, Matrix<T> scores, T* scratch) {
  gemm<T>(head.q, head.k.transposed(), scores, {head.L, head.S, head.d}, {.alpha = head.scale},
          scratch);
  if (head.visibility.bias_count() == 0) return;
  for (Index i = 0; i < head.L; ++i) {
    for (Index j = 0; j < head.S; ++j) {
      if (head.visibility.visible(i, j)) scores(i, j) = scores(i, j) + head.visibility.bias(i, j);
    }
  }
}

/// Step 4c of query i: p = softmax of the visible x, in place.
template <class T>
void softmax_head_row(const AttentionHead<T>& head, Index i, Row<T> x) {
  if constexpr (simd::vectorised<T>) {
    softmax_of<T>(x, x, head.S, RowMask<T>(head.visibility, i));
  } else {
    softmax_row(x, head.S, [&](Index j) { return head.visibility.visible(i, j); });
  }
}

/// Steps 4d to 4a of query i downwards, in place: from dp, what flows out of its dropped weights,
/// to the gradient of its unscaled scores, 0 where they are hidden.
template <class T>
void softmax_head_row_backward(const AttentionHead<T>& head, Index i, Row<const T> p, T* dp) {
  Piece<T> factors;
  const Index S = head.S;
  // 4d dp where dropout kept the weight, 0 elsewhere
  for (Index j = 0; head.dropout.active() && j < S; j += Piece<T>::size) {
    const Index count = std::min<Index>(Piece<T>::size, S - j);
    dropout_factors<T>(head.dropout, head.b, head.h, i, j, count, factors.data);
    for (Index t = 0; t < count; ++t) {
      const T& factor = factors.data[t];
      dp[j + t] = factor == T(0) ? T(0) : T(dp[j + t] * factor);
    }
  }
  // 4c ds = p (dp - rowsum(dp p)),  4b 0 where hidden,  4a times scale
  const Row<T> ds{dp, 1};
  if constexpr (simd::vectorised<T>) {
    softmax_backward_of<T>(ds, p, ds, S, head.scale, RowMask<T>(head.visibility, i));
  } else {
    softmax_backward_row<T>(ds, p, ds, S, [&](Index j) { return head.visibility.visible(i, j); });
    for (Index j = 0; j < S; ++j) dp[j] = head.scale * dp[j];
  }
}

/// weights [L, S] and o [L, dv] are overwritten.
template <class T>
void attention_head_forward(const AttentionHead<T>& head, Matrix<T> weights, Matrix<T> o,
                            Scratch<T> memory) {
  T* packed = memory.take(head_products_scratch<T>(head.L, head.S, head.d, head.dv));
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  // 4a s = scale q k^T,  4b bias
  score_head<T>(head, weights, packed);
  // 4c p = softmax of the visible s
  for (Index i = 0; i < head.L; ++i) softmax_head_row<T>(head, i, row(weights, i));
  // 4d dropout
  Matrix<const T> p = weights;
  if (head.dropout.active()) {
    T* dropped = memory.take(head.L * head.S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, head.S, 1};
  }
  // 4e o = p v
  gemm_visible<T>(p, head.v, o, {head.L, head.dv, head.S}, {}, packed, head.visibility.sees_all(),
                  sees);
}

/// dq, dk and dv as HeadGradients says.
template <class T>
void attention_head_backward(const AttentionHead<T>& head, Matrix<const T> d_o,
                             Matrix<const T> weights, const HeadGradients<T>& to,
                             Scratch<T> memory) {
  const auto& [q, k, v, L, S, d, dv, scale, visibility, dropout, b, h] = head;
  T* packed = memory.take(head_products_scratch<T>(L, S, d, dv));
  const Matrix<T> ds{memory.take(L * S), S, 1};
  const bool all = visibility.sees_all();
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  const auto seen_by = [&](Index j, Index i) { return head.visibility.visible(i, j); };

  // 4e dp = d_o v^T,  dv = p^T d_o
  gemm<T>(d_o, v.transposed(), ds, {L, S, dv}, {}, packed);
  Matrix<const T> p = weights;
  if (dropout.active()) {
    T* dropped = memory.take(L * S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, S, 1};
  }
  gemm_visible<T>(p.transposed(), d_o, to.dv, {S, dv, L}, {.accumulate = to.accumulate}, packed,
                  all, seen_by);
  for (Index i = 0; i < L; ++i) {
    softmax_head_row_backward<T>(head, i, row(weights, i), ds.data + i * S);  // 4d to 4a
  }
  // 4a dq = ds k,  dk = ds^T q
  gemm_visible<T>(ds, k, to.dq, {L, d, S}, {}, packed, all, sees);
  gemm_visible<T>(Matrix<const T>(ds).transposed(), q, to.dk, {S, d, L},
                  {.accumulate = to.accumulate}, packed, all, seen_by);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/tile_mask.inc
// Which pairs of a tile of attention are visible. Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Queries i0 ... i0 + rows - 1, of which i0 is the task's query number `first`, against keys
/// j0 + begin ... j0 + end - 1.
struct TileBlock {
  Index i0, rows, first, j0, begin, end;
};

/// The pairs of at most `queries` and `keys` that ranges and masks leave visible: ranges of keys
/// for each query, and bytes where pairs have to be asked for one by one.
template <class T, Index queries, Index keys, bool keys_in_rows>
class TileMask {
 public:
  using S = Simd<T>;
  using Int = typename S::Int;

  /// Cuts the block to the keys that some query sees.
  void fill(const HeadVisibility<T>& rules, TileBlock& block) {
    const auto in_block = [&](Index j) { return std::clamp(j - block.j0, Index{0}, block.end); };
    asked_ = rules.has_pair_masks();
    full_ = rules.sees_all(block.i0, block.rows, {block.j0, block.j0 + block.end});
    pairs_ = std::int64_t{block.rows} * block.end;
    if (full_) return;
    pairs_ = 0;
    for (Index r = 0; r < queries; ++r) {
      const KeyRange range = r < block.rows ? rules.range(block.i0 + r) : KeyRange{0, 0};
      begin_[r] = static_cast<Int>(in_block(range.begin));
      end_[r] = std::max<Int>(begin_[r], static_cast<Int>(in_block(range.end)));
      pairs_ += end_[r] - begin_[r];
      for (Index j = begin_[r]; asked_ && j < end_[r]; ++j) {
        bytes_[at(r, j)] = rules.pair_visible(block.i0 + r, block.j0 + j);
      }
    }
    block.begin = begin_[0];
    block.end = end_[block.rows - 1];
  }

  bool full() const { return full_; }
  /// Pairs that causality, window and length leave.
  std::int64_t pairs() const { return pairs_; }
  /// The keys that range leaves to query r; both ends grow with r. Not of a full tile.
  KeyRange range(Index r) const { return {begin_[r], end_[r]}; }
  bool visible(Index r, Index j) const {
    return full_ || (j >= begin_[r] && j < end_[r] && (!asked_ || bytes_[at(r, j)] != 0));
  }
  /// Whether key j is visible to the queries from r on.
  HEADWISE_INLINE typename S::IntVector to_queries(Index j, Index r) const {
    const auto key = S::broadcast_int(static_cast<Int>(j));
    const auto seen = S::within(key, S::load_ints(begin_ + r), S::load_ints(end_ + r));
    return asked_ ? S::both(seen, S::load_bytes(bytes_ + at(r, j))) : seen;
  }
  /// Whether query r sees the keys from j on.
  HEADWISE_INLINE typename S::IntVector of_keys(Index r, Index j) const {
    const auto key = S::lane_numbers() + S::broadcast_int(static_cast<Int>(j));
    const auto seen = S::within(key, S::broadcast_int(begin_[r]), S::broadcast_int(end_[r]));
    return asked_ ? S::both(seen, S::load_bytes(bytes_ + at(r, j))) : seen;
  }

 private:
  static constexpr Index at(Index r, Index j) {
    return keys_in_rows ? r * keys + j : j * queries + r;
  }

  bool full_ = false, asked_ = false;
  std::int64_t pairs_ = 0;
  Int begin_[static_cast<std::size_t>(queries)], end_[static_cast<std::size_t>(queries)];
  std::uint8_t bytes_[static_cast<std::size_t>(queries * keys)];
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/online_softmax.inc
// The softmax of flash attention, one block of keys after the other. Read once for each instruction
// set.
//
// Scores stand transposed: a row is a key, its lanes are queries, so that maxima and sums run down
// the lanes and masks are comparisons of lanes.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Sizes of the forward tiles. They depend on the type and the instruction set alone, so that a
/// query meets its keys in the same blocks whatever else is computed beside it.
template <class T>
struct ForwardTile {
  static constexpr Index lanes = Tile<T>::columns;  // queries of a panel
  static constexpr Index queries = 512;             // most of a task: whole panels
  static constexpr Index keys = 128;                // of a block
};

template <class T>
using ForwardMask = TileMask<T, ForwardTile<T>::lanes, ForwardTile<T>::keys, false>;

/// The softmax of the queries of a task so far.
template <class T>
struct OnlineSoftmax {
  static constexpr std::size_t queries = static_cast<std::size_t>(ForwardTile<T>::queries);
  using Int = typename Simd<T>::Int;

  T greatest[queries];
  T sum[queries];
  T factor[queries];  // what the context is multiplied by when a block of keys is added
  Int any[queries];   // whether a key was visible

  /// Of so many queries.
  explicit OnlineSoftmax(Index rows) {
    using S = Simd<T>;
    for (Index r = 0; r < rows; r += S::width) {
      S::store(S::broadcast(std::numeric_limits<T>::lowest()), greatest + r);
      S::store(S::zero(), sum + r);
      S::store_ints(S::broadcast_int(0), any + r);
    }
  }
};

/// Every pair is visible.
struct AllVisible {};

/// Takes in the scores of one more block of keys for the lanes of one vector: `s` [keys, lanes]
/// becomes e^(s - m) for the new maximum m, and the factor is left that brings to it what was
/// summed up before. Sums run in eight chains, by the key's number in the block, and are joined
/// pairwise, so that keys that nobody sees change no bit. Source: Milakov and Gimelshein, 2018,
/// arXiv 1805.02867.
template <class T, class Visible>
void take_scores(T* s, const TileBlock& block, T unit, const Visible& visible, Index lane,
                 OnlineSoftmax<T>& softmax) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  using simd::HEADWISE_ISA::weight_of;
  constexpr bool all = std::same_as<Visible, AllVisible>;
  constexpr Index lanes = ForwardTile<T>::lanes;
  constexpr int chains = 8;
  s += lane;
  const Index at = block.first + lane;
  const Index begin = all ? 0 : block.begin / chains * chains, end = block.end;
  const Vector before = S::load(softmax.greatest + at), units = S::broadcast(unit);
  auto any = all ? S::broadcast_int(-1) : S::load_ints(softmax.any + at);

  Vector greatest[4] = {before, before, before, before};
  const auto compare = [&](Index j, Vector& so_far) HEADWISE_ALWAYS_INLINE {
    Vector x = S::load(s + j * lanes);
    if constexpr (!all) {
      const auto seen = visible.to_queries(j, lane);
      any = any | seen;
      x = S::select(seen, x, before);
    }
    so_far = S::greater(so_far, x);
  };
  Index j = begin;
  for (; j + 4 <= end; j += 4) {
    unrolled<4>([&](auto t) HEADWISE_ALWAYS_INLINE { compare(j + t, greatest[t]); });
  }
  for (; j < end; ++j) compare(j, greatest[0]);
  const Vector m =
      S::greater(S::greater(greatest[0], greatest[1]), S::greater(greatest[2], greatest[3]));

  Vector sums[std::size_t{chains}];
  unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE { sums[t] = S::zero(); });
  const auto weigh = [&](Index key, Vector& sum) HEADWISE_ALWAYS_INLINE {
    Vector x = S::load(s + key * lanes);
    if constexpr (!all) x = S::select(visible.to_queries(key, lane), x, m);  // nobody wrote it
    Vector p = weight_of<T>((x - m) * units);
    if constexpr (!all) p = S::select(visible.to_queries(key, lane), p, S::zero());
    S::store(p, s + key * lanes);
    sum = sum + p;
  };
  for (j = begin; j + chains <= end; j += chains) {
    unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE { weigh(j + t, sums[t]); });
  }
  unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE {
    if (j + t < end) weigh(j + t, sums[t]);
  });
  unrolled<4>([&](auto t) HEADWISE_ALWAYS_INLINE { sums[t] = sums[t] + sums[t + 4]; });
  const Vector total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  const Vector factor = weight_of<T>((before - m) * units);
  S::store(S::fma(S::load(softmax.sum + at), factor, total), softmax.sum + at);
  S::store(m, softmax.greatest + at);
  S::store(factor, softmax.factor + at);
  S::store_ints(any, softmax.any + at);
}

/// The logsumexp m + log(sum) of a row as a number and what rounding it left out: a float near
/// -1e9 is 64 from its neighbours, and e^(s - lse) would miss by as much. Where nothing was
/// visible: -infinity and 0.
template <class T>
void store_logsumexp(bool any, T m, T sum, Matrix<T> lse, Index i) {
  using std::log;
  if (!any) {
    set_negative_infinity(lse(i, 0));
    lse(i, 1) = T(0);
    return;
  }
  const T log_sum = T(log(sum)), rounded = m + log_sum;
  const bool m_is_larger = (m < T(0) ? T(0) - m : m) > (log_sum < T(0) ? T(0) - log_sum : log_sum);
  lse(i, 0) = rounded;
  lse(i, 1) = m_is_larger ? log_sum - (rounded - m) : m - (rounded - log_sum);  // exact
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/dropout_panel.inc
// Dropout of a panel of scores as flash attention forward has them: a row a key, a lane a query.
// Read once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

#if HEADWISE_ISA_BYTES >= 32
/// The four words of block j8 of as many queries as a vector has lanes, from query i on: the 32
/// bits of each are a lane's lower ones.
template <class T>
HEADWISE_INLINE void draw_queries(const AttentionHead<T>& head, Index i, Index j8,
                                  typename Simd<T>::BitVector (&words)[4]) {
  const auto draw = [&](Index first, PhiloxLanes(&c)[4]) HEADWISE_ALWAYS_INLINE {
    c[0] = in_all_lanes(j8);
    c[1] = counting_from(first);
    c[2] = in_all_lanes(head.h);
    c[3] = in_all_lanes(head.b);
    draw_blocks(c, head.dropout.key());
  };
  PhiloxLanes low[4];
  draw(i, low);
  if constexpr (sizeof(T) == 8) {
    unrolled<4>([&](auto w) HEADWISE_ALWAYS_INLINE { words[w] = low[w]; });
  } else {
    using Bits = typename Simd<T>::BitVector;
    PhiloxLanes high[4];
    draw(i + philox_lanes, high);
    [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
      unrolled<4>([&](auto w) HEADWISE_ALWAYS_INLINE {
        words[w] = __builtin_shufflevector(__builtin_bit_cast(Bits, low[w]),
                                           __builtin_bit_cast(Bits, high[w]), (2 * n)...);
      });
    }
    (std::make_integer_sequence<int, Simd<T>::width>());
  }
}
#endif

/// Step 4d of a panel of transposed scores: s [keys, lanes] of visible keys times 0 or the keep
/// factor. A lane is a query, so that blocks of queries are drawn for eight keys at a time.
template <class T>
void drop_panel(const AttentionHead<T>& head, const TileBlock& block, T* s, T* factors) {
  constexpr Index lanes = ForwardTile<T>::lanes;
#if HEADWISE_ISA_BYTES >= 32
  if constexpr (draws_by_lanes<T>) {
    using S = Simd<T>;
    using Bits = typename S::BitVector;
    const auto limit = S::broadcast_int(static_cast<typename S::Int>(head.dropout.threshold()));
    const auto factor = S::broadcast(T(head.dropout.keep_factor()));
    const Index first = (block.j0 + block.begin) / 8 * 8 - block.j0;
    for (Index lane = 0; lane < block.rows; lane += S::width) {
      for (Index j = first; j < block.end; j += 8) {
        Bits words[4];
        draw_queries<T>(head, block.i0 + lane, (block.j0 + j) / 8, words);
        unrolled<8>([&](auto e) HEADWISE_ALWAYS_INLINE {
          if (j + e < block.begin || j + e >= block.end) return;
          const auto bits = (e % 2 == 0 ? words[e / 2] : words[e / 2] >> 16) & 0xFFFFu;
          const auto kept = __builtin_convertvector(bits, typename S::IntVector) >= limit;
          T* p = s + (j + e) * lanes + lane;
          S::store(S::load(p) * S::select(kept, factor, S::zero()), p);
        });
      }
    }
    return;
  }
#endif
  for (Index r = 0; r < block.rows; ++r) {
    head.dropout.row(head.b, head.h, block.i0 + r, block.j0 + block.begin, block.end - block.begin,
                     T(head.dropout.keep_factor()), factors);
    for (Index j = block.begin; j < block.end; ++j) {
      T& p = s[j * lanes + r];
      p = p * factors[j - block.begin];
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_forward.inc
// Flash attention forward: a block of queries against all their keys, nothing of size L x S. Read
// once for each instruction set.
//
// Scores stand transposed: a row is a key, its lanes are a panel of queries. So maxima and sums run
// down the lanes, masks are comparisons of lanes, q is packed once, and keys and values are read
// where they lie or, by many queries, from dense copies. Traffic of a block of queries: q is read
// once, k and v once, o and logsumexp written once; the scores of a panel and a block of keys live
// in the first two cache levels. Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", 2022, arXiv
// 2205.14135, algorithm 1, with the queries outside as in Dao, "FlashAttention-2", 2023, arXiv
// 2307.08691, algorithm 1. The steps are numbered in docs/derivations/flash_backward.md.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// The buffers of a task.
template <class T>
struct ForwardScratch {
  using Sizes = ForwardTile<T>;

  T* q;        // q^T in panels [d, lanes]
  T* s;        // [keys, lanes]
  T* k;        // [keys, d], dense
  T* v;        // [keys, dv], dense
  T* kept;     // v without what one query may not see
  T* context;  // [queries, dv], rows of whole vectors
  T* factors;  // [keys], dropout of a row

  constexpr ForwardScratch(Scratch<T>& memory, Index d, Index dv)
      : q(memory.take(packed_size<T>(d, Sizes::queries))),
        s(memory.take(Sizes::keys * Sizes::lanes)),
        k(memory.take(copied_size<T>(Sizes::keys, d))),
        v(memory.take(copied_size<T>(Sizes::keys, dv))),
        kept(memory.take(copied_size<T>(Sizes::keys, dv))),
        context(memory.take(Sizes::queries * round_up(dv, Tile<T>::width))),
        factors(memory.take(Sizes::keys)) {}
};

/// Scratch, in elements, of a task: constant for each thread whatever L and S are.
template <class T>
constexpr Index flash_forward_scratch(Index d, Index dv) {
  Scratch<T> count;
  ForwardScratch<T>(count, d, dv);
  return count.taken();
}

/// Steps 4a and 4b: s = scale q k^T + bias, but for vectors in which no query sees the keys.
/// Returns the multiply-adds.
template <class T>
std::int64_t score_panel(const AttentionHead<T>& head, Matrix<const T> keys, const TileBlock& block,
                         const ForwardMask<T>& mask, T alpha, const ForwardScratch<T>& buffers) {
  constexpr Index lanes = ForwardTile<T>::lanes, width = Tile<T>::width;
  const T* q = buffers.q + block.first * head.d;
  const Index vectors = (block.rows + width - 1) / width;
  std::int64_t count = 0;
  for (Index j = block.begin, n = 0; j < block.end; j += n) {
    n = mask.full() ? block.end - block.begin : std::min<Index>(Tile<T>::rows, block.end - j);
    Index from = 0, to = vectors;
    // Ranges grow with the query: the first lanes have seen enough, the last do not begin yet.
    while (!mask.full() && from < to &&
           mask.range(std::min<Index>(block.rows, (from + 1) * width) - 1).end <= j) {
      ++from;
    }
    while (!mask.full() && from < to && mask.range((to - 1) * width).begin >= j + n) --to;
    const auto k = keys.from(j, 0);
    run_panel<T>({k.data, k.row, k.column}, {q + from * width, 0, lanes}, n, to - from, head.d,
                 {buffers.s + j * lanes + from * width, lanes, Finish::assign, alpha});
    count += n * (to - from) * width * head.d;
  }
  if (head.visibility.bias_count() == 0) return count;
  for (Index r = 0; r < block.rows; ++r) {
    for (Index j = block.begin; j < block.end; ++j) {
      T& s = buffers.s[j * lanes + r];
      if (mask.visible(r, j)) s = s + head.visibility.bias(block.i0 + r, block.j0 + j);
    }
  }
  return count;
}

/// Steps 4c and 4d: scores become weights, not divided by their sum yet.
template <class T>
void weigh_panel(const AttentionHead<T>& head, const TileBlock& block, const ForwardMask<T>& mask,
                 T unit, const ForwardScratch<T>& buffers, OnlineSoftmax<T>& softmax) {
  for (Index lane = 0; lane < block.rows; lane += Tile<T>::width) {
    if (mask.full()) {
      take_scores<T>(buffers.s, block, unit, AllVisible{}, lane, softmax);
    } else {
      take_scores<T>(buffers.s, block, unit, mask, lane, softmax);
    }
  }
  if (head.dropout.active()) drop_panel<T>(head, block, buffers.s, buffers.factors);
}

/// Step 4e of queries r ... r + n - 1 over keys low ... high - 1: context = factor context + p v.
/// Returns the multiply-adds.
template <class T>
std::int64_t add_values(const ForwardScratch<T>& buffers, const Operand<T>& v, Index dv,
                        const TileBlock& block, Index r, Index n, KeyRange range,
                        const OnlineSoftmax<T>& softmax) {
  constexpr Index lanes = ForwardTile<T>::lanes, width = Tile<T>::width;
  const Index row = round_up(dv, width), at = block.first + r;
  std::int64_t count = 0;
  for (Index c = 0; c < dv; c += Tile<T>::columns) {
    const Index vectors = (std::min<Index>(Tile<T>::columns, dv - c) + width - 1) / width;
    run_panel<T>(
        {buffers.s + range.begin * lanes + r, 1, lanes}, v.walk(c, range.begin), n, vectors,
        range.size(),
        {buffers.context + at * row + c, row, Finish::rescale, T(1), nullptr, softmax.factor + at});
    count += n * vectors * width * range.size();
  }
  return count;
}

/// Step 4e of a panel: each six queries over the keys that they see. Where some do not see what
/// others do and a value is infinite or NaN, each query has the values packed anew without those
/// that it may not see: the same bits otherwise, for a hidden pair adds exactly 0.
template <class T>
std::int64_t add_visible_values(const AttentionHead<T>& head, const ForwardScratch<T>& buffers,
                                const Operand<T>& v, const TileBlock& block,
                                const ForwardMask<T>& mask, const OnlineSoftmax<T>& softmax) {
  if (mask.full()) {
    return add_values<T>(buffers, v, head.dv, block, 0, block.rows, {block.begin, block.end},
                         softmax);
  }
  std::int64_t count = 0;
  const Index together = v.finite ? Tile<T>::rows : 1;
  for (Index r = 0; r < block.rows; r += together) {
    const Index n = std::min<Index>(together, block.rows - r);
    const KeyRange range{mask.range(r).begin, mask.range(r + n - 1).end};
    if (range.begin >= range.end) continue;
    Operand<T> seen = v;
    if (!v.finite) {
      seen = copy_kept_rows<T>({v.data, v.step, 1}, range.end, head.dv, buffers.kept,
                               [&](Index j) { return mask.visible(r, j); });
    }
    count += add_values<T>(buffers, seen, head.dv, block, r, n, range, softmax);
  }
  return count;
}

/// What the panels of queries of a task read of one block of keys.
template <class T>
struct KeyBlock {
  Matrix<const T> k;
  Operand<T> v;
};

/// The n keys from j0 on. Three panels of queries and more read dense copies: rows of heads lie on
/// pages of their own and meet in few sets of the caches (in place with 128 queries a task, the
/// pass ran at 76 % of the peak; with copies and 512 at 82). Fewer read k, and v if its rows are
/// whole vectors, where they lie.
template <class T>
KeyBlock<T> key_block(const AttentionHead<T>& head, Index j0, Index n, bool few, bool all_seen,
                      const ForwardScratch<T>& buffers) {
  const auto k = head.k.from(j0, 0), v = head.v.from(j0, 0);
  const auto stays = [&](Matrix<const T> x, Index N) {
    return x.column == 1 && N % Tile<T>::width == 0 && (few || x.row == N);
  };
  KeyBlock<T> block{k, {v.data, v.row, 1, true}};
  if (!few && !stays(k, head.d)) {
    const auto copy = copy_rows<T>(k, n, head.d, true, buffers.k);
    block.k = {copy.data, copy.step, 1};
  }
  if (!stays(v, head.dv)) {
    block.v = copy_rows<T>(v, n, head.dv, all_seen, buffers.v);
  } else {
    block.v.finite = all_seen || all_finite<T>(v, n, head.dv);
  }
  return block;
}

/// Row 0 of `to` [N] = from / divisor.
template <class T>
void divide_row(const T* from, T divisor, Index N, Matrix<T> to) {
  using S = Simd<T>;
  const auto by = S::broadcast(divisor);
  Index n = 0;
  for (; to.column == 1 && n + S::width <= N; n += S::width) {
    S::store(S::load(from + n) / by, to.data + n);
  }
  for (; n < N; ++n) to(0, n) = from[n] / divisor;
}

/// o rows i0 ... i0 + rows - 1 and their logsumexp [L, 2] (null for none) are overwritten.
template <class T>
TileWork flash_forward(const AttentionHead<T>& head, Index i0, Index rows, Matrix<T> o,
                       Matrix<T> lse, Scratch<T> memory) {
  constexpr Index lanes = ForwardTile<T>::lanes, keys = ForwardTile<T>::keys;
  const ForwardScratch<T> buffers(memory, head.d, head.dv);
  const Index context_row = round_up(head.dv, Tile<T>::width);
  OnlineSoftmax<T> softmax(rows);
  ForwardMask<T> mask;
  TileWork work;
  pack<T>(head.q.from(i0, 0).transposed(), head.d, rows, buffers.q);
  set_zero<T>(buffers.context, rows * context_row);
  // A scale that is a power of 2 changes no digit: it goes into the weights' unit.
  const bool folded = head.visibility.bias_count() == 0 && is_power_of_two(head.scale);
  const T alpha = folded ? T(1) : head.scale;
  const T unit = simd::HEADWISE_ISA::weight_unit<T>() * (folded ? head.scale : T(1));

  const KeyRange range = head.visibility.range(i0, rows);
  for (Index j0 = range.begin / keys * keys; j0 < range.end; j0 += keys) {
    const Index n = std::min<Index>(keys, range.end - j0);
    const bool all_seen = head.visibility.sees_all(i0, rows, {j0, j0 + n});
    const auto keys_here = key_block<T>(head, j0, n, rows <= 2 * lanes, all_seen, buffers);
    for (Index first = 0; first < rows; first += lanes) {
      TileBlock block{i0 + first, std::min<Index>(lanes, rows - first), first, j0, 0, n};
      mask.fill(head.visibility, block);
      if (block.begin >= block.end) continue;
      // 4a s = scale q k^T,  4b bias,  4c softmax,  4d dropout,  4e o += p v
      std::int64_t products = score_panel<T>(head, keys_here.k, block, mask, alpha, buffers);
      weigh_panel<T>(head, block, mask, unit, buffers, softmax);
      products += add_visible_values<T>(head, buffers, keys_here.v, block, mask, softmax);
      work.pairs += mask.pairs();
      work.executed_flops += 2 * products + (5 + score_extras(head, 1)) *
                                                round_up(block.rows, Tile<T>::width) *
                                                (block.end - block.begin);
    }
  }
  // The sums become a softmax; a query that has seen no key has 0 and -infinity.
  for (Index r = 0; r < rows; ++r) {
    const bool any = softmax.any[r] != 0;
    if (!any) softmax.sum[r] = T(1);
    divide_row<T>(buffers.context + r * context_row, softmax.sum[r], head.dv, o.from(i0 + r, 0));
    const T greatest = folded ? softmax.greatest[r] * head.scale : softmax.greatest[r];
    if (lse.data != nullptr) store_logsumexp<T>(any, greatest, softmax.sum[r], lse, i0 + r);
  }
  return work;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_backward_rows.inc
// Flash attention backward, the rows of a tile: the weights of queries, computed again, and what
// flows into their scores. Read once for each instruction set. Rows of a tile are queries, its
// lanes keys.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// Sizes of the backward tiles. They depend on the type and the instruction set alone.
template <class T>
struct BackwardTile {
  static constexpr Index queries = 128;
  static constexpr Index keys = 256;   // whole panels
  static constexpr Index drawn = 128;  // keys whose dropout is drawn at once: whole panels
  // From row to row of scores: a cache line more, or six keys of all queries would meet in the same
  // few sets of the cache.
  static constexpr Index row = keys + std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
};

template <class T>
using BackwardMask = TileMask<T, BackwardTile<T>::queries, BackwardTile<T>::keys, true>;

/// The buffers of a task.
template <class T>
struct BackwardScratch {
  static constexpr Index queries = BackwardTile<T>::queries, keys = BackwardTile<T>::keys;
  static_assert(queries <= keys, "rows of q are kept where rows of k fit");

  T* p;        // [queries, row]
  T* ds;       // [queries, row]
  T* factors;  // [rows, keys], dropout of six queries
  T* k_t;      // k^T in panels [d, columns]
  T* v_t;      // v^T in panels [dv, columns]
  T* k;        // [keys, d], dense
  T* q;        // [queries, d], dense
  T* d_o;      // [queries, dv], dense
  T* kept;     // one of these without what one row may not see
  T* dk;       // [keys, d], rows of whole vectors
  T* dv;       // [keys, dv], likewise

  constexpr BackwardScratch(Scratch<T>& memory, Index d, Index width_v)
      : p(memory.take(queries * BackwardTile<T>::row)),
        ds(memory.take(queries * BackwardTile<T>::row)),
        factors(memory.take(Tile<T>::rows * keys)),
        k_t(memory.take(packed_size<T>(d, keys))),
        v_t(memory.take(packed_size<T>(width_v, keys))),
        k(memory.take(copied_size<T>(keys, d))),
        q(memory.take(copied_size<T>(queries, d))),
        d_o(memory.take(copied_size<T>(queries, width_v))),
        kept(memory.take(
            std::max<Index>(copied_size<T>(keys, d), copied_size<T>(queries, width_v)))),
        dk(memory.take(copied_size<T>(keys, d))),
        dv(memory.take(copied_size<T>(keys, width_v))) {}

  Matrix<T> sums_of_k(Index d) const { return {dk, round_up(d, Tile<T>::width), 1}; }
  Matrix<T> sums_of_v(Index width_v) const { return {dv, round_up(width_v, Tile<T>::width), 1}; }
};

/// Scratch, in elements, of a task: constant for each thread whatever L and S are.
template <class T>
constexpr Index flash_backward_scratch(Index d, Index dv) {
  Scratch<T> count;
  BackwardScratch<T>(count, d, dv);
  return count.taken();
}

/// delta_r = rowsum(d_o * o) for `rows` queries from i0 on, by the chain of multiply-adds that a
/// tile forms d_o v^T by, so that dp - delta is exactly 0 where o is one of the values. (Summed in
/// another order the difference is rounding noise, which large keys blow up: 3,000 times the error
/// of plain loops in dW_Q for scores in the thousands.) A lane is a query: squares are transposed.
template <class T>
void row_deltas(const FlashHead<T>& head, Index i0, Index rows, T* delta) {
  using S = Simd<T>;
  constexpr Index width = S::width;
  const Index dv = head.forward.dv;
  const bool dense = head.d_o.column == 1 && head.o.column == 1;
  T left[std::size_t{S::width * S::width}], right[std::size_t{S::width * S::width}];
  for (Index r = 0; r < rows; r += width) {
    const Index count = std::min<Index>(width, rows - r);
    const auto d_o = head.d_o.from(i0 + r, 0), o = head.o.from(i0 + r, 0);
    auto sums = S::zero();
    Index n = 0;
    for (; dense && count == width && n + width <= dv; n += width) {
      transpose_square<T>(d_o.data + n, d_o.row, left, width);
      transpose_square<T>(o.data + n, o.row, right, width);
      for (Index t = 0; t < width; ++t) {
        sums = S::fma(S::load(left + t * width), S::load(right + t * width), sums);
      }
    }
    S::store(sums, left);
    for (; n < dv; ++n) {
      for (Index lane = 0; lane < count; ++lane) {
        left[lane] = simd::HEADWISE_ISA::multiply_add<T>(d_o(lane, n), o(lane, n), left[lane]);
      }
    }
    for (Index lane = 0; lane < count; ++lane) delta[r + lane] = left[lane];
  }
}

/// Steps 4d to 4b of the tile's r-th query against the keys of `panel`, whole vectors: p becomes
/// e^(scale s - lse) with dropout, ds what flows into the scaled score. `factors` of dropout begin
/// with the tile's first key; null for none.
template <class T>
void backward_row(const FlashHead<T>& head, const TileBlock& block, Index r, KeyRange panel,
                  T scale, const T* factors, const BackwardScratch<T>& buffers,
                  const BackwardMask<T>& mask) {
  using S = Simd<T>;
  using simd::HEADWISE_ISA::weight_of;
  const Index i = block.i0 + r;
  T* p = buffers.p + r * BackwardTile<T>::row;
  T* ds = buffers.ds + r * BackwardTile<T>::row;
  const bool full = mask.full();
  KeyRange range = panel;
  if (!full) {
    // Products read six keys and six queries at a time: what no query of theirs sees must be 0.
    const KeyRange seen = mask.range(r);
    range.begin = std::clamp<Index>(seen.begin / S::width * S::width, panel.begin, panel.end);
    range.end = std::clamp<Index>(round_up(seen.end, S::width), range.begin, panel.end);
    if (seen.size() == 0) range.end = range.begin;
    set_zero<T>(p + panel.begin, range.begin - panel.begin);
    set_zero<T>(ds + panel.begin, range.begin - panel.begin);
    set_zero<T>(p + range.end, panel.end - range.end);
    set_zero<T>(ds + range.end, panel.end - range.end);
  }
  const auto factor_of_s = S::broadcast(scale), minus_lse = S::broadcast(T(0) - head.lse(i, 0));
  const auto rest = S::broadcast(head.lse(i, 1));
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  const auto delta = S::broadcast(head.delta[i]);
  for (Index j = range.begin; j < range.end; j += S::width) {
    const auto below = S::fma(S::load(p + j), factor_of_s, minus_lse) - rest;
    auto weight = weight_of<T>(below * unit);  // 4c
    auto dp = S::load(ds + j);
    auto kept = weight;
    if (factors != nullptr) {  // 4d
      const auto factor = S::load(factors + j);
      const auto dropped = factor == S::zero();
      dp = S::select(dropped, S::zero(), dp * factor);
      kept = weight * factor;
    }
    auto flow = weight * (dp - delta);  // 4c
    if (!full) {                        // 4b
      const auto seen = mask.of_keys(r, j);
      kept = S::select(seen, kept, S::zero());
      flow = S::select(seen, flow, S::zero());
    }
    S::store(kept, p + j);
    S::store(flow, ds + j);
  }
}

/// Steps 4a and 4e downwards of `n` queries from r on and a panel of keys from c on, for the
/// vectors of keys that one of them sees: s = scale q k^T + bias and dp = d_o v^T, then
/// backward_row while they are in the first cache level. Returns the multiply-adds.
template <class T>
std::int64_t backward_panel(const FlashHead<T>& head, const TileBlock& block, Index r, Index n,
                            Index c, const Operand<T>& q, const Operand<T>& d_o, const T* factors,
                            const BackwardScratch<T>& buffers, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row, columns = Tile<T>::columns, width = Tile<T>::width;
  const Index d = head.forward.d, dv = head.forward.dv;
  const T scale = head.forward.scale;
  const HeadVisibility<T>& rules = head.forward.visibility;
  const KeyRange panel{c, std::min<Index>(c + columns, round_up(block.end, width))};
  KeyRange range = panel;
  if (!mask.full()) {
    range.begin = std::max<Index>(c, mask.range(r).begin);
    range.end = std::min<Index>(panel.end, mask.range(r + n - 1).end);
  }
  // A scale that is a power of 2 changes no digit: the rows apply it at no cost.
  const bool folded = rules.bias_count() == 0 && is_power_of_two(scale);
  std::int64_t count = 0;
  if (range.begin < range.end) {
    const Index from = (range.begin - c) / width, to = (range.end - c + width - 1) / width;
    const Index at = c + from * width;
    run_panel<T>({q.data + r * q.step, q.step, 1}, {buffers.k_t + c * d + from * width, 0, columns},
                 n, to - from, d,
                 {buffers.p + r * row + at, row, Finish::assign, folded ? T(1) : scale});
    run_panel<T>({d_o.data + r * d_o.step, d_o.step, 1},
                 {buffers.v_t + c * dv + from * width, 0, columns}, n, to - from, dv,
                 {buffers.ds + r * row + at, row});
    count = n * (to - from) * width * (d + dv);
  }
  for (Index at = r; at < r + n; ++at) {
    for (Index j = range.begin;
         rules.bias_count() != 0 && j < std::min<Index>(range.end, block.end); ++j) {
      T& s = buffers.p[at * row + j];
      if (mask.visible(at, j)) s = s + rules.bias(block.i0 + at, block.j0 + j);
    }
    backward_row<T>(head, block, at, panel, folded ? scale : T(1), factors, buffers, mask);
    if (factors != nullptr) factors += BackwardTile<T>::keys;
  }
  return count;
}

/// Asks for the rows of the next tile that stand where `n` rows from r on do in this one.
template <class T>
void prefetch_next_tile(const FlashHead<T>& head, const TileBlock& block, Index r, Index n) {
  const Index next = block.i0 + BackwardTile<T>::queries + r;
  const Index ahead = std::min<Index>(n, head.forward.L - next);
  if (ahead <= 0) return;
  prefetch_rows<T>(head.forward.q.from(next, 0), ahead, head.forward.d);
  prefetch_rows<T>(head.d_o.from(next, 0), ahead, head.forward.dv);
  prefetch_rows<T>(head.dq.from(next, 0), ahead, head.forward.d);
}

/// backward_panel for the whole tile. Panels are outside: the two of k^T and v^T stay in the first
/// cache level while all queries pass (with the queries outside they came from the second for each
/// six). Where dropout is drawn, as many panels go together as a draw is for.
template <class T>
std::int64_t backward_scores(const FlashHead<T>& head, const TileBlock& block, const Operand<T>& q,
                             const Operand<T>& d_o, const BackwardScratch<T>& buffers,
                             const BackwardMask<T>& mask) {
  constexpr Index columns = Tile<T>::columns, drawn = BackwardTile<T>::drawn;
  const AttentionHead<T>& forward = head.forward;
  const bool drops = forward.dropout.active();
  const Index together = drops ? drawn : columns;
  std::int64_t count = 0;
  for (Index c0 = 0; c0 < block.end; c0 += together) {
    const Index keys = std::min<Index>(together, round_up(block.end - c0, Tile<T>::width));
    for (Index r = 0; r < block.rows; r += Tile<T>::rows) {
      const Index n = std::min<Index>(Tile<T>::rows, block.rows - r);
      if (c0 == 0) prefetch_next_tile<T>(head, block, r, n);
      for (Index m = 0; drops && m < n; ++m) {
        dropout_factors<T>(forward.dropout, forward.b, forward.h, block.i0 + r + m, block.j0 + c0,
                           keys, buffers.factors + m * BackwardTile<T>::keys + c0);
      }
      for (Index c = c0; c < std::min<Index>(c0 + together, block.end); c += columns) {
        count += backward_panel<T>(head, block, r, n, c, q, d_o, drops ? buffers.factors : nullptr,
                                   buffers, mask);
      }
    }
  }
  return count;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_backward.inc
// Flash attention backward: a block of keys against the queries of its heads, tile by tile. Read
// once for each instruction set.
//
// Weights are computed again, p = e^(s - lse), instead of kept. Rows of a tile are queries, its
// lanes are keys: k^T and v^T are packed and k copied once for a block of keys, q and d_o copied
// for each tile, p^T and ds^T read through their strides. Traffic of a block of keys: k and v read
// once, q, d_o and dq once for each block; p and ds are made in the first cache level and kept in
// the second; dk and dv are summed in scratch and written once. Source: Dao, "FlashAttention-2",
// 2023, arXiv 2307.08691, algorithm 2. The steps are numbered in
// docs/derivations/flash_backward.md.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

/// c [keys, N] += a^T b over visible pairs, a [queries, keys] being p or ds and b [queries, N] rows
/// of q or d_o: six keys at a time over the queries that see them, or one where b is not finite.
template <class T>
std::int64_t add_by_key(const T* a, const Operand<T>& b, Index N, Matrix<T> c,
                        const TileBlock& block, T* kept, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row;
  const Epilogue<T> add{.accumulate = true};
  if (mask.full()) return multiply<T>({a, 1, row}, b, c, {block.end, N, block.rows}, add);
  const Index together = b.finite ? Tile<T>::rows : 1;
  std::int64_t count = 0;
  Index low = 0, high = 0;  // queries that see these keys; both grow with the key
  for (Index j = 0; j < block.end; j += together) {
    const Index n = std::min<Index>(together, block.end - j);
    while (low < block.rows && mask.range(low).end <= j) ++low;
    while (high < block.rows && mask.range(high).begin < j + n) ++high;
    if (low >= high) continue;
    Operand<T> seen = b;
    if (!b.finite) {
      seen = copy_kept_rows<T>({b.data, b.step, 1}, block.rows, N, kept,
                               [&](Index r) { return mask.visible(r, j); });
    }
    seen.data += low * seen.step;
    count += multiply<T>({a + low * row + j, 1, row}, seen, c.from(j, 0), {n, N, high - low}, add);
  }
  return count;
}

/// dq [queries, d] += scale ds k over visible pairs: six queries at a time over the keys that they
/// see, or one where k is not finite.
template <class T>
std::int64_t add_by_query(const FlashHead<T>& head, const Operand<T>& k, const TileBlock& block,
                          const BackwardScratch<T>& buffers, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row;
  const Index d = head.forward.d;
  const Epilogue<T> add{.alpha = head.forward.scale, .accumulate = true};
  const auto dq = head.dq.from(block.i0, 0);
  if (mask.full()) {
    return multiply<T>({buffers.ds, row, 1}, k, dq, {block.rows, d, block.end}, add);
  }
  const Index together = k.finite ? Tile<T>::rows : 1;
  std::int64_t count = 0;
  for (Index r = 0; r < block.rows; r += together) {
    const Index n = std::min<Index>(together, block.rows - r);
    const KeyRange range{mask.range(r).begin, mask.range(r + n - 1).end};
    if (range.begin >= range.end) continue;
    Operand<T> seen = k;
    if (!k.finite) {
      seen = copy_kept_rows<T>({k.data, k.step, 1}, block.end, d, buffers.kept,
                               [&](Index j) { return mask.visible(r, j); });
    }
    seen.data += range.begin * seen.step;
    count += multiply<T>({buffers.ds + r * row + range.begin, row, 1}, seen, dq.from(r, 0),
                         {n, d, range.size()}, add);
  }
  return count;
}

/// Begins with keys j0 ... j0 + n - 1 of the head: packs them, and sets their sums to 0.
template <class T>
void flash_backward_begin(const AttentionHead<T>& head, Index j0, Index n, Scratch<T> memory) {
  const BackwardScratch<T> buffers(memory, head.d, head.dv);
  copy_rows<T>(head.k.from(j0, 0), n, head.d, true, buffers.k);
  pack<T>(head.k.from(j0, 0).transposed(), head.d, n, buffers.k_t);
  pack<T>(head.v.from(j0, 0).transposed(), head.dv, n, buffers.v_t);
  set_zero<T>(buffers.dk, copied_size<T>(n, head.d));
  set_zero<T>(buffers.dv, copied_size<T>(n, head.dv));
}

/// Queries i0 ... i0 + rows - 1 of a head against the keys that were begun with: adds to their sums
/// and to dq.
template <class T>
TileWork flash_backward_tile(const FlashHead<T>& head, Index i0, Index rows, Index j0, Index n,
                             Scratch<T> memory) {
  const Index d = head.forward.d, dv = head.forward.dv;
  const BackwardScratch<T> buffers(memory, d, dv);
  BackwardMask<T> mask;
  TileBlock block{i0, rows, 0, j0, 0, n};
  mask.fill(head.forward.visibility, block);
  block.end = n;  // what lies behind the last key that is seen is set to 0, not cut off
  const bool all = mask.full();
  const auto q = copy_rows<T>(head.forward.q.from(i0, 0), rows, d, all, buffers.q);
  const auto d_o = copy_rows<T>(head.d_o.from(i0, 0), rows, dv, all, buffers.d_o);
  Operand<T> k{buffers.k, round_up(d, Tile<T>::width), 1, true};
  k.finite = all || all_finite<T>({k.data, k.step, 1}, n, d);

  std::int64_t products = backward_scores<T>(head, block, q, d_o, buffers, mask);
  // 4e dv += p^T d_o,  4a dk += ds^T q, dq += scale ds k
  products += add_by_key<T>(buffers.p, d_o, dv, buffers.sums_of_v(dv), block, buffers.kept, mask);
  products += add_by_key<T>(buffers.ds, q, d, buffers.sums_of_k(d), block, buffers.kept, mask);
  products += add_by_query<T>(head, k, block, buffers, mask);
  return {mask.pairs(),
          2 * products + (7 + score_extras(head.forward, 2)) * rows * round_up(n, Tile<T>::width)};
}

/// to [rows, N] = scale from.
template <class T>
void write_scaled(Matrix<const T> from, T scale, Index rows, Index N, Matrix<T> to) {
  using S = Simd<T>;
  const auto factor = S::broadcast(scale);
  for (Index r = 0; r < rows; ++r) {
    const T* in = from.data + r * from.row;
    Index n = 0;
    for (; to.column == 1 && n + S::width <= N; n += S::width) {
      S::store(factor * S::load(in + n), &to(r, n));
    }
    for (; n < N; ++n) to(r, n) = scale * in[n];
  }
}

/// Writes the sums of keys j0 ... j0 + n - 1: rows of dk and dv.
template <class T>
void flash_backward_end(const AttentionHead<T>& head, Index j0, Index n, Matrix<T> dk, Matrix<T> dv,
                        Scratch<T> memory) {
  const BackwardScratch<T> buffers(memory, head.d, head.dv);
  write_scaled<T>(buffers.sums_of_k(head.d), head.scale, n, head.d, dk.from(j0, 0));
  write_scaled<T>(buffers.sums_of_v(head.dv), T(1), n, head.dv, dv.from(j0, 0));
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/table.inc
// The kernels of an instruction set, to be called from code that is compiled for any machine. Read
// once for each instruction set.

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

template <Scalar T>
inline constexpr Kernels<T> table = {
    .instruction_set = InstructionSet::HEADWISE_ISA,
    .lanes = Simd<T>::width,
    .forward_queries = ForwardTile<T>::queries,
    .forward_keys = ForwardTile<T>::keys,
    .backward_queries = BackwardTile<T>::queries,
    .backward_keys = BackwardTile<T>::keys,
    .columns = Tile<T>::columns,
    .all_finite = &all_finite<T>,
    .gemm_scratch = &gemm_scratch<T>,
    .gemm = &gemm<T>,
    .executed_gemm_flops = &executed_gemm_flops<T>,
    .add_rows = &add_rows<T>,
    .layer_norm_rows = &layer_norm_rows<T>,
    .layer_norm_backward_rows = &layer_norm_backward_rows<T>,
    .layer_norm_columns = &layer_norm_columns<T>,
    .softmax_rows = &softmax_rows<T>,
    .softmax_backward_rows = &softmax_backward_rows<T>,
    .drop_rows = &drop_rows<T>,
    .attention_forward_scratch = &attention_forward_scratch<T>,
    .attention_backward_scratch = &attention_backward_scratch<T>,
    .score_head = &score_head<T>,
    .attention_head_forward = &attention_head_forward<T>,
    .attention_head_backward = &attention_head_backward<T>,
    .flash_forward_scratch = &flash_forward_scratch<T>,
    .flash_backward_scratch = &flash_backward_scratch<T>,
    .flash_forward = &flash_forward<T>,
    .row_deltas = &row_deltas<T>,
    .flash_backward_begin = &flash_backward_begin<T>,
    .flash_backward_tile = &flash_backward_tile<T>,
    .flash_backward_end = &flash_backward_end<T>,
    .weights_of = &simd::HEADWISE_ISA::weights_of<T>,
};

template <Scalar T>
inline constexpr ModelKernels<T> model_table = {
    .combine_rows = &combine_rows<T>,
    .combine_columns = &combine_columns<T>,
    .activation_rows = &activation_rows<T>,
    .activation_backward_rows = &activation_backward_rows<T>,
    .rms_norm_rows = &rms_norm_rows<T>,
    .rms_norm_backward_rows = &rms_norm_backward_rows<T>,
    .rms_norm_columns = &rms_norm_columns<T>,
    .add_row = &add_row<T>,
    .cross_entropy_rows = &cross_entropy_rows<T>,
    .cross_entropy_backward_rows = &cross_entropy_backward_rows<T>,
    .rotate_rows = &rotate_rows<T>,
    .adamw = &adamw<T>,
    .sgd = &sgd<T>,
    .scale_elements = &scale_elements<T>,
    .sum_of_squares = &sum_of_squares<T>,
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// clang-format on

#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES

#if HEADWISE_CONFIG_VECTOR_KERNELS
HEADWISE_REGION(HEADWISE_AVX2)
#define HEADWISE_ISA avx2
#define HEADWISE_ISA_BYTES 32

// headwise/kernels/isa.inc
// headwise/simd/vector.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
struct Simd {
  using Vector = T;
  using Int = std::int64_t;
  using IntVector = Int;
  static constexpr int width = 1;

  HEADWISE_INLINE static Vector zero() { return T(0); }
  HEADWISE_INLINE static Vector broadcast(const T& x) { return x; }
  HEADWISE_INLINE static IntVector broadcast_int(Int x) { return x; }
  HEADWISE_INLINE static IntVector lane_numbers() { return 0; }
  HEADWISE_INLINE static Vector load(const T* from) { return *from; }
  HEADWISE_INLINE static void store(const Vector& x, T* to) { *to = x; }
  HEADWISE_INLINE static IntVector load_bytes(const std::uint8_t* from) { return *from; }
  HEADWISE_INLINE static IntVector load_ints(const Int* from) { return *from; }
  HEADWISE_INLINE static void store_ints(IntVector x, Int* to) { *to = x; }
  HEADWISE_INLINE static Vector fma(const Vector& a, const Vector& b, const Vector& c) {
    return a * b + c;
  }
  HEADWISE_INLINE static Vector greater(const Vector& a, const Vector& b) { return a < b ? b : a; }
  HEADWISE_INLINE static IntVector within(Int x, Int begin, Int end) {
    return x >= begin && x < end;
  }
  HEADWISE_INLINE static IntVector both(IntVector a, IntVector b) { return a != 0 && b != 0; }
  HEADWISE_INLINE static Vector select(IntVector condition, const Vector& yes, const Vector& no) {
    return condition != 0 ? yes : no;
  }
};

template <Scalar T>
requires vectorised<T>
struct Simd<T> {
  static constexpr int width = HEADWISE_ISA_BYTES / static_cast<int>(sizeof(T));
  typedef T Vector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  using Int = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef Int IntVector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  using Bits = std::make_unsigned_t<Int>;
  typedef Bits BitVector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  typedef std::uint8_t ByteVector __attribute__((vector_size(HEADWISE_ISA_BYTES / sizeof(T))));

  HEADWISE_INLINE static Vector zero() { return Vector{}; }
  HEADWISE_INLINE static Vector broadcast(T x) { return x - Vector{}; }  // folds to one shuffle
  HEADWISE_INLINE static IntVector broadcast_int(Int x) { return x - IntVector{}; }
  HEADWISE_INLINE static IntVector lane_numbers() {
    Int numbers[std::size_t{width}];
    for (int i = 0; i < width; ++i) numbers[i] = i;
    return load_ints(numbers);
  }
  HEADWISE_INLINE static Vector load(const T* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store(Vector x, T* to) { std::memcpy(to, &x, sizeof x); }
  HEADWISE_INLINE static IntVector load_ints(const Int* from) {
    IntVector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store_ints(IntVector x, Int* to) { std::memcpy(to, &x, sizeof x); }
  HEADWISE_INLINE static IntVector load_bytes(const std::uint8_t* from) {
    ByteVector x;
    std::memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, IntVector);
  }
  HEADWISE_INLINE static Vector fma(Vector a, Vector b, Vector c) {
#if HEADWISE_ISA_BYTES == 64
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(
          Vector, _mm512_fmadd_ps(__builtin_bit_cast(__m512, a), __builtin_bit_cast(__m512, b),
                                  __builtin_bit_cast(__m512, c)));
    } else {
      return __builtin_bit_cast(
          Vector, _mm512_fmadd_pd(__builtin_bit_cast(__m512d, a), __builtin_bit_cast(__m512d, b),
                                  __builtin_bit_cast(__m512d, c)));
    }
#elif HEADWISE_ISA_BYTES == 32
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(
          Vector, _mm256_fmadd_ps(__builtin_bit_cast(__m256, a), __builtin_bit_cast(__m256, b),
                                  __builtin_bit_cast(__m256, c)));
    } else {
      return __builtin_bit_cast(
          Vector, _mm256_fmadd_pd(__builtin_bit_cast(__m256d, a), __builtin_bit_cast(__m256d, b),
                                  __builtin_bit_cast(__m256d, c)));
    }
#else
    return a * b + c;
#endif
  }
  HEADWISE_INLINE static Vector greater(Vector a, Vector b) {
#if HEADWISE_ISA_BYTES == 64
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(Vector, _mm512_maskz_max_ps(0xFFFF, __builtin_bit_cast(__m512, b),
                                                            __builtin_bit_cast(__m512, a)));
    } else {
      return __builtin_bit_cast(Vector, _mm512_maskz_max_pd(0xFF, __builtin_bit_cast(__m512d, b),
                                                            __builtin_bit_cast(__m512d, a)));
    }
#else
    return a < b ? b : a;
#endif
  }
  HEADWISE_INLINE static IntVector within(IntVector x, IntVector begin, IntVector end) {
    return (x >= begin) & (x < end);
  }
  HEADWISE_INLINE static IntVector both(IntVector a, IntVector b) { return (a != 0) & (b != 0); }
  HEADWISE_INLINE static Vector select(IntVector condition, Vector yes, Vector no) {
    return condition != 0 ? yes : no;
  }
};

template <Scalar T>
HEADWISE_INLINE T multiply_add(const T& a, const T& b, const T& c) {
  if constexpr (HEADWISE_ISA_BYTES >= 32 && std::same_as<T, float>) {
    return __builtin_fmaf(a, b, c);
  } else if constexpr (HEADWISE_ISA_BYTES >= 32 && std::same_as<T, double>) {
    return __builtin_fma(a, b, c);
  } else {
    return a * b + c;
  }
}

template <int count, class F>
HEADWISE_INLINE void unrolled(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) HEADWISE_ALWAYS_INLINE {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, count>());
}

template <Scalar T>
HEADWISE_INLINE T sum_lanes(typename Simd<T>::Vector x) {
  using S = Simd<T>;
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  for (int half = S::width / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/simd/exp.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T, std::size_t count>
HEADWISE_INLINE typename Simd<T>::Vector polynomial(const T (&coefficients)[count],
                                                    typename Simd<T>::Vector x) {
  using S = Simd<T>;
  auto sum = S::broadcast(coefficients[count - 1]);
  unrolled<static_cast<int>(count) - 1>([&](auto n) HEADWISE_ALWAYS_INLINE {
    sum = S::fma(sum, x, S::broadcast(coefficients[count - 2 - std::size_t{n}]));
  });
  return sum;
}

template <Scalar T>
T weight_unit() {
  if constexpr (vectorised<T>) return std::numbers::log2e_v<T>;
  return T(1);
}

template <Scalar T>
HEADWISE_INLINE typename Simd<T>::Vector weight_of(const typename Simd<T>::Vector& x) {
  if constexpr (!vectorised<T>) {
    using std::exp;
    return exp(x);
  } else {
    using S = Simd<T>;
    using C = Exp2Constants<T>;
#if HEADWISE_ISA_BYTES == 64
    using Vector = typename S::Vector;
    if constexpr (sizeof(T) == 4) {
      const auto f = __builtin_bit_cast(
          Vector, _mm512_maskz_reduce_ps(0xFFFF, __builtin_bit_cast(__m512, x), 0));
      return __builtin_bit_cast(
          Vector,
          _mm512_maskz_scalef_ps(0xFFFF, __builtin_bit_cast(__m512, polynomial<T>(C::terms, f)),
                                 __builtin_bit_cast(__m512, x - f)));
    } else {
      const auto f = __builtin_bit_cast(
          Vector, _mm512_maskz_reduce_pd(0xFF, __builtin_bit_cast(__m512d, x), 0));
      return __builtin_bit_cast(
          Vector,
          _mm512_maskz_scalef_pd(0xFF, __builtin_bit_cast(__m512d, polynomial<T>(C::terms, f)),
                                 __builtin_bit_cast(__m512d, x - f)));
    }
#else
    using Vector = typename S::Vector;
    using BitVector = typename S::BitVector;
    const Vector shifted = x + C::shift;
    const Vector f = x - (shifted - C::shift);
    const Vector scale =
        __builtin_bit_cast(Vector, __builtin_bit_cast(BitVector, shifted) << C::mantissa_bits);
    return S::select(x < C::lowest, S::zero(), polynomial<T>(C::terms, f) * scale);
#endif
  }
}

template <Scalar T>
void weights_of(const T* x, Index count, T* y) {
  using S = Simd<T>;
  T part[std::size_t{S::width}] = {};
  Index n = 0;
  for (; n + S::width <= count; n += S::width) S::store(weight_of<T>(S::load(x + n)), y + n);
  for (Index lane = 0; n + lane < count; ++lane) part[lane] = x[n + lane];
  S::store(weight_of<T>(S::load(part)), part);
  for (Index lane = 0; n + lane < count; ++lane) y[n + lane] = part[lane];
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/simd/tails.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector leading(
    const typename Simd<T>::Vector& x) {
  using S = Simd<T>;
  using Bits = typename S::Bits;
  constexpr Bits mask = static_cast<Bits>(~Bits{0}) << Exp2Constants<T>::low_bits;
  return __builtin_bit_cast(typename S::Vector,
                            __builtin_bit_cast(typename S::BitVector, x) & mask);
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector below_zero(
    const typename Simd<T>::Vector& x, T bound) {
  using S = Simd<T>;
  using Bits = typename S::Bits;
  constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
  const auto below =
      __builtin_bit_cast(typename S::Vector, __builtin_bit_cast(typename S::BitVector, x) | sign);
  return S::greater(below, S::broadcast(-bound));
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector power_of_e(
    const typename Simd<T>::Vector& high, const typename Simd<T>::Vector& low) {
  using S = Simd<T>;
  using C = Exp2Constants<T>;
  using Vector = typename S::Vector;
  const Vector whole = high * C::log2e_high;
  const Vector part = S::fma(low, S::broadcast(std::numbers::log2e_v<T>), high * C::log2e_low);
  const Vector shifted = (whole + part) + C::shift;
  const Vector n = shifted - C::shift;
  const Vector f = (whole - n) + part;
#if HEADWISE_ISA_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(
        Vector,
        _mm512_maskz_scalef_ps(0xFFFF, __builtin_bit_cast(__m512, polynomial<T>(C::terms, f)),
                               __builtin_bit_cast(__m512, n)));
  } else {
    return __builtin_bit_cast(
        Vector,
        _mm512_maskz_scalef_pd(0xFF, __builtin_bit_cast(__m512d, polynomial<T>(C::terms, f)),
                               __builtin_bit_cast(__m512d, n)));
  }
#else
  using BitVector = typename S::BitVector;
  const Vector scale =
      __builtin_bit_cast(Vector, __builtin_bit_cast(BitVector, shifted) << C::mantissa_bits);
  return S::select(n < C::lowest, S::zero(), polynomial<T>(C::terms, f) * scale);
#endif
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector power_of_e(
    const typename Simd<T>::Vector& x) {
  const auto high = leading<T>(x);
  return power_of_e<T>(high, x - high);
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector normal_power(
    const typename Simd<T>::Vector& x) {
  const auto high = leading<T>(x);
  return power_of_e<T>(T(-0.5) * (high * high), T(-0.5) * ((x - high) * (x + high)));
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector normal_tail(
    const typename Simd<T>::Vector& x) {
  using C = NormalConstants<T>;
  return polynomial<T>(C::over, -x) / polynomial<T>(C::under, -x);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/kernels/tile.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

using simd::HEADWISE_ISA::Simd;
using simd::HEADWISE_ISA::unrolled;

template <class T>
struct Tile {
  static constexpr int rows = 6;
  static constexpr int vectors = HEADWISE_ISA_BYTES == 64 ? 4 : 2;
  static constexpr Index width = Simd<T>::width;
  static constexpr Index columns = vectors * width;
};

template <class T>
void set_zero(T* x, Index count) {
  using S = Simd<T>;
  for (Index n = 0; n < count; n += S::width) S::store(S::zero(), x + n);
}

template <class T>
struct Walk {
  const T* data;
  Index row;                         // of a: from one row of the result to the next within a tile
  Index step;                        // from one inner index to the next
  Index tile = Tile<T>::rows * row;  // of a: from one tile's first row to the next one's
};

enum class Finish {
  assign,   // c = alpha sum + bias
  add,      // c = c + alpha sum
  rescale,  // c = factor_m c + sum
};

template <class T>
struct TileStore {
  T* c;
  Index row;
  Finish finish = Finish::assign;
  T alpha = T(1);
  const T* bias = nullptr;    // [columns]
  const T* factor = nullptr;  // [rows]
};

template <class T>
struct Panel {
  const T* a;
  const T* b;
  T* c;
  Index a_row, b_step, c_row, a_step, a_tile;
  const T* bias;
  Index K;
  const T* factor;
  Finish finish;
  T alpha;

  HEADWISE_INLINE Panel(const Walk<T>& left, const Walk<T>& right, Index steps,
                        const TileStore<T>& to)
      : a(left.data),
        b(right.data),
        c(to.c),
        a_row(left.row),
        b_step(right.step),
        c_row(to.row),
        a_step(left.step),
        a_tile(left.tile),
        bias(to.bias),
        K(steps),
        factor(to.factor),
        finish(to.finish),
        alpha(to.alpha) {}
};

template <class T, int M, int V>
void run_tile(const Panel<T>& panel, Index first) {
  using S = Simd<T>;
  T* const c = panel.c + first * panel.c_row;
  typename S::Vector sum[std::size_t{M}][std::size_t{V}];
  const auto each = [&](auto&& f) HEADWISE_ALWAYS_INLINE {
    unrolled<M>([&](auto m) HEADWISE_ALWAYS_INLINE {
      unrolled<V>([&](auto v)
                      HEADWISE_ALWAYS_INLINE { f(m, v, c + m * panel.c_row + v * S::width); });
    });
  };
  each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE { sum[m][v] = S::zero(); });
  if (panel.finish == Finish::add) {
    each([&](auto, auto, T* at) HEADWISE_ALWAYS_INLINE { __builtin_prefetch(at, 1); });
  }
  const T* a = panel.a + first / Tile<T>::rows * panel.a_tile + first % Tile<T>::rows * panel.a_row;
  const T* b = panel.b;
  for (Index k = 0; k < panel.K; ++k) {
    typename S::Vector in_b[std::size_t{V}];
    unrolled<V>([&](auto v) HEADWISE_ALWAYS_INLINE { in_b[v] = S::load(b + v * S::width); });
    unrolled<M>([&](auto m) HEADWISE_ALWAYS_INLINE {
      const auto x = S::broadcast(a[m * panel.a_row]);
      unrolled<V>([&](auto v)
                      HEADWISE_ALWAYS_INLINE { sum[m][v] = S::fma(x, in_b[v], sum[m][v]); });
    });
    a += panel.a_step;
    b += panel.b_step;
  }
  if (panel.finish == Finish::rescale) {
    each([&](auto m, auto v, T* at) HEADWISE_ALWAYS_INLINE {
      S::store(S::fma(S::broadcast(panel.factor[first + m]), S::load(at), sum[m][v]), at);
    });
    return;
  }
  if (panel.alpha != T(1)) {
    const auto alpha = S::broadcast(panel.alpha);
    each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE { sum[m][v] = alpha * sum[m][v]; });
  }
  if (panel.finish == Finish::add) {
    each([&](auto m, auto v, T* at)
             HEADWISE_ALWAYS_INLINE { S::store(S::load(at) + sum[m][v], at); });
    return;
  }
  if (panel.bias != nullptr) {
    each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE {
      sum[m][v] = sum[m][v] + S::load(panel.bias + v * S::width);
    });
  }
  each([&](auto m, auto v, T* at) HEADWISE_ALWAYS_INLINE { S::store(sum[m][v], at); });
}

template <class T, int V>
void run_rows(const Panel<T>& panel, Index M) {
  Index m = 0;
  for (; m + 6 <= M; m += 6) run_tile<T, 6, V>(panel, m);
  if (m + 4 <= M) run_tile<T, 4, V>(panel, m), m += 4;
  if (m + 2 <= M) run_tile<T, 2, V>(panel, m), m += 2;
  if (m < M) run_tile<T, 1, V>(panel, m);
}

template <class T>
void run_panel(const Panel<T>& panel, Index M, Index vectors) {
  if constexpr (Tile<T>::vectors == 4) {
    if (vectors == 4) return run_rows<T, 4>(panel, M);
    if (vectors == 3) return run_rows<T, 3>(panel, M);
  }
  if (vectors == 2) return run_rows<T, 2>(panel, M);
  if (vectors == 1) run_rows<T, 1>(panel, M);
}
template <class T>
HEADWISE_INLINE void run_panel(const Walk<T>& a, const Walk<T>& b, Index M, Index vectors, Index K,
                               const TileStore<T>& to) {
  run_panel<T>(Panel<T>(a, b, K, to), M, vectors);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/pack.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
bool all_finite(Matrix<const T> x, Index rows, Index columns) {
  using S = Simd<T>;
  auto sums = S::zero();
  T rest = T(0);
  for (Index i = 0; i < rows; ++i) {
    const T* row = x.data + i * x.row;
    Index j = 0;
    if (x.column == 1) {
      for (; j + S::width <= columns; j += S::width) {
        const auto part = S::load(row + j);
        sums = sums + (part - part);
      }
    }
    for (; j < columns; ++j) rest = rest + (row[j * x.column] - row[j * x.column]);
  }
  return simd::HEADWISE_ISA::sum_lanes<T>(sums) + rest == T(0);
}

template <Scalar T, int half>
HEADWISE_INLINE void exchange_halves(
    typename Simd<T>::Vector (&rows)[std::size_t{Simd<T>::width}]) {
  constexpr int width = Simd<T>::width;
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE {
    if constexpr ((r & half) == 0) {
      const auto upper = rows[r], lower = rows[r + half];
      [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
        rows[r] =
            __builtin_shufflevector(upper, lower, ((n & half) == 0 ? n : n - half + width)...);
        rows[r + half] =
            __builtin_shufflevector(upper, lower, ((n & half) == 0 ? n + half : n + width)...);
      }
      (std::make_integer_sequence<int, width>());
    }
  });
}

template <Scalar T>
HEADWISE_INLINE void transpose_square(const T* from, Index from_row, T* to, Index to_row) {
  using S = Simd<T>;
  constexpr int width = S::width;
  typename S::Vector rows[std::size_t{width}];
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE { rows[r] = S::load(from + r * from_row); });
  if constexpr (width > 8) exchange_halves<T, 8>(rows);
  if constexpr (width > 4) exchange_halves<T, 4>(rows);
  if constexpr (width > 2) exchange_halves<T, 2>(rows);
  if constexpr (width > 1) exchange_halves<T, 1>(rows);
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE { S::store(rows[r], to + r * to_row); });
}

template <Scalar T, class Keep>
void pack_panel(Matrix<const T> b, Index K, Index count, T* packed, const Keep& keep) {
  constexpr Index columns = Tile<T>::columns;
  for (Index k = 0; k < K; ++k, packed += columns) {
    const T* from = b.data + k * b.row;
    const Index filled = keep(k) ? count : 0;
    for (Index n = 0; n < filled; ++n) packed[n] = from[n * b.column];
    for (Index n = filled; n < columns; ++n) packed[n] = T(0);
  }
}

template <Scalar T>
void pack_rows(const T* from, Index row, Index K, T* packed) {
  using S = Simd<T>;
  constexpr Index columns = Tile<T>::columns;
  for (Index k = 0; k < K; ++k, from += row, packed += columns) {
    unrolled<Tile<T>::vectors>([&](auto v) HEADWISE_ALWAYS_INLINE {
      S::store(S::load(from + v * S::width), packed + v * S::width);
    });
  }
}

template <Scalar T>
void pack_columns(const T* from, Index column, Index K, Index count, T* packed) {
  constexpr Index width = Simd<T>::width, columns = Tile<T>::columns;
  const Index whole_k = K / width * width, whole_n = count / width * width;
  for (Index n = 0; n < whole_n; n += width) {
    for (Index k = 0; k < whole_k; k += width) {
      transpose_square<T>(from + n * column + k, column, packed + k * columns + n, columns);
    }
  }
  for (Index k = 0; k < K; ++k) {
    T* to = packed + k * columns;
    for (Index n = k < whole_k ? whole_n : 0; n < count; ++n) to[n] = from[n * column + k];
    for (Index n = count; n < columns; ++n) to[n] = T(0);
  }
}

template <Scalar T>
void pack(Matrix<const T> b, Index K, Index N, T* packed) {
  constexpr Index columns = Tile<T>::columns;
  for (Index n = 0; n < N; n += columns, packed += K * columns) {
    const Index count = std::min<Index>(columns, N - n);
    const auto panel = b.from(0, n);
    if (b.column == 1 && count == columns) {
      pack_rows<T>(panel.data, b.row, K, packed);
    } else if (b.row == 1) {
      pack_columns<T>(panel.data, b.column, K, count, packed);
    } else {
      pack_panel<T>(panel, K, count, packed, [](Index) { return true; });
    }
  }
}
template <Scalar T, class Keep>
void pack_kept(Matrix<const T> b, Index K, Index N, T* packed, const Keep& keep) {
  constexpr Index columns = Tile<T>::columns;
  for (Index n = 0; n < N; n += columns, packed += K * columns) {
    pack_panel<T>(b.from(0, n), K, std::min<Index>(columns, N - n), packed, keep);
  }
}

template <Scalar T>
Walk<T> pack_left(Matrix<const T> a, Index M, Index K, T* packed) {
  constexpr Index rows = Tile<T>::rows;
  Index m = 0;
  for (; m + rows <= M; m += rows) {
    const T* from = a.data + m;
    T* to = packed + m * K;
    for (Index k = 0; k < K; ++k, from += a.column, to += rows) std::copy_n(from, rows, to);
  }
  for (Index k = 0; k < K && m < M; ++k) {
    std::copy_n(a.data + m + k * a.column, M - m, packed + m * K + k * rows);
  }
  return {packed, 1, rows, rows * K};
}

template <class T>
struct Operand {
  const T* data;
  Index step;   // from row to row
  Index panel;  // 1 in place; the rows of a panel where packed
  bool finite;  // no infinity, no NaN; or nobody asks

  Walk<T> walk(Index n, Index row = 0) const { return {data + n * panel + row * step, 0, step}; }
};

template <class T>
void prefetch_rows(Matrix<const T> b, Index rows, Index N) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (b.column != 1) return;
  for (Index r = 0; r < rows; ++r) {
    for (Index n = 0; n < N; n += line) __builtin_prefetch(b.data + r * b.row + n, 0, 2);
  }
}

template <class T>
constexpr Index copied_size(Index rows, Index N) {
  return rows * round_up(N, Tile<T>::width);
}

template <class T>
Operand<T> copy_rows(Matrix<const T> b, Index rows, Index N, bool finite, T* to) {
  using S = Simd<T>;
  const Index row = round_up(N, S::width);
  for (Index k = 0; k < rows; ++k) {
    const T* from = b.data + k * b.row;
    T* out = to + k * row;
    Index n = 0;
    if (b.column == 1) {
      for (; n + S::width <= N; n += S::width) S::store(S::load(from + n), out + n);
    }
    for (; n < N; ++n) out[n] = from[n * b.column];
    for (; n < row; ++n) out[n] = T(0);
  }
  return {to, row, 1, finite || all_finite<T>({to, row, 1}, rows, N)};
}
template <class T, class Keep>
Operand<T> copy_kept_rows(Matrix<const T> b, Index rows, Index N, T* to, const Keep& keep) {
  const Index row = round_up(N, Tile<T>::width);
  for (Index k = 0; k < rows; ++k) {
    for (Index n = 0; n < row; ++n) to[k * row + n] = n < N && keep(k) ? b(k, n) : T(0);
  }
  return {to, row, 1, true};
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/gemm.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct GemmBlocks {
  static constexpr Index k = HEADWISE_ISA_BYTES >= 32 ? 384 : 64;
  static constexpr Index m = 192;
  static constexpr Index packed_m = 96;  // rows of a that are copied together
  static constexpr Index n = 768;
};

struct KeepAll {};

template <class T>
constexpr Index packed_size(Index K, Index N) {
  return K * round_up(N, Tile<T>::columns);
}

template <class T>
constexpr Index gemm_scratch(const Extents& size) {
  using Blocks = GemmBlocks<T>;
  const Index K = std::min<Index>(size.K, Blocks::k);
  const Index rows = round_up(std::min<Index>(size.M, Blocks::packed_m), Tile<T>::rows);
  return padded<T>(packed_size<T>(K, std::min<Index>(size.N, Blocks::n))) + padded<T>(rows * K);
}

template <class T>
void run_edge(Walk<T> a, Walk<T> b, Index M, Index count, Index K, Matrix<T> c,
              const TileStore<T>& store) {
  constexpr Index rows = Tile<T>::rows, columns = Tile<T>::columns, width = Tile<T>::width;
  T part[std::size_t{rows * columns}], bias[std::size_t{columns}] = {};
  TileStore<T> to = store;
  to.c = part;
  to.row = columns;
  for (Index n = 0; store.bias != nullptr && n < count; ++n) bias[n] = store.bias[n];
  if (store.bias != nullptr) to.bias = bias;
  for (Index m = 0; m < M; m += rows) {
    const Index these = std::min<Index>(rows, M - m);
    for (Index r = 0; r < these && store.finish != Finish::assign; ++r) {
      for (Index n = 0; n < count; ++n) part[r * columns + n] = c(m + r, n);
      for (Index n = count; n < columns; ++n) part[r * columns + n] = T(0);
    }
    run_panel<T>({a.data + m / rows * a.tile, a.row, a.step}, b, these, (count + width - 1) / width,
                 K, to);
    for (Index r = 0; r < these; ++r) {
      for (Index n = 0; n < count; ++n) c(m + r, n) = part[r * columns + n];
    }
  }
}

template <class T>
std::int64_t multiply(Walk<T> a, const Operand<T>& b, Matrix<T> c, const Extents& size,
                      const Epilogue<T>& epilogue) {
  constexpr Index columns = Tile<T>::columns, width = Tile<T>::width;
  for (Index n = 0; n < size.N; n += columns) {
    const Index count = std::min<Index>(columns, size.N - n);
    const auto to = c.from(0, n);
    const TileStore<T> store{to.data,
                             to.row,
                             epilogue.accumulate ? Finish::add : Finish::assign,
                             epilogue.alpha,
                             epilogue.bias == nullptr ? nullptr : epilogue.bias + n,
                             nullptr};
    if (c.column == 1 && count % width == 0) {
      run_panel<T>(a, b.walk(n), size.M, count / width, size.K, store);
    } else {
      run_edge<T>(a, b.walk(n), size.M, count, size.K, to, store);
    }
  }
  return std::int64_t{size.M} * round_up(size.N, width) * size.K;
}

template <class T, class Keep>
Operand<T> right_block(Matrix<const T> b, const Extents& size, T* scratch, Index first,
                       const Keep& keep) {
  constexpr Index few = 4 * Tile<T>::rows;
  if constexpr (std::same_as<Keep, KeepAll>) {
    if (size.M <= few && b.column == 1 && size.N % Tile<T>::width == 0) {
      return {b.data, b.row, 1, true};
    }
    pack<T>(b, size.K, size.N, scratch);
  } else {
    pack_kept<T>(b, size.K, size.N, scratch, [&](Index row) { return keep(first + row); });
  }
  return {scratch, Tile<T>::columns, size.K, true};
}

template <class T>
void multiply_blocks(Matrix<const T> a, const Operand<T>& b, Matrix<T> c, const Extents& size,
                     const Epilogue<T>& epilogue, T* scratch) {
  using Blocks = GemmBlocks<T>;
  const bool copied = a.row == 1 && a.column != 1 && size.N >= 2 * Tile<T>::columns;
  const Index step = copied ? Blocks::packed_m : Blocks::m;
  for (Index m = 0; m < size.M; m += step) {
    const Index M = std::min<Index>(step, size.M - m);
    const auto rows = a.from(m, 0);
    const Walk<T> left =
        copied ? pack_left<T>(rows, M, size.K, scratch) : Walk<T>{rows.data, rows.row, rows.column};
    multiply<T>(left, b, c.from(m, 0), {M, size.N, size.K}, epilogue);
  }
}

template <class T, class Keep>
void gemm_kept(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
               const Epilogue<T>& epilogue, T* scratch, const Keep& keep) {
  using Blocks = GemmBlocks<T>;
  for (Index n = 0; n < size.N; n += Blocks::n) {
    const Index N = std::min<Index>(Blocks::n, size.N - n);
    for (Index k = 0; k == 0 || k < size.K; k += Blocks::k) {
      const Index K = std::min<Index>(Blocks::k, size.K - k);
      Epilogue<T> here = epilogue;
      if (here.bias != nullptr) here.bias += n;
      if (k != 0) here.accumulate = true;
      const Operand<T> block = right_block<T>(b.from(k, n), {size.M, N, K}, scratch, k, keep);
      T* const behind = scratch + padded<T>(packed_size<T>(K, N));
      multiply_blocks<T>(a.from(0, k), block, c.from(0, n), {size.M, N, K}, here, behind);
    }
  }
}
template <class T>
void gemm(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
          const Epilogue<T>& epilogue, T* scratch) {
  gemm_kept<T>(a, b, c, size, epilogue, scratch, KeepAll{});
}

template <class T, class Sees>
void gemm_visible(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
                  const Epilogue<T>& epilogue, T* scratch, bool all, const Sees& sees) {
  if (all || all_finite<T>(b, size.K, size.N)) return gemm<T>(a, b, c, size, epilogue, scratch);
  for (Index m = 0; m < size.M; ++m) {
    gemm_kept<T>(a.from(m, 0), b, c.from(m, 0), {1, size.N, size.K}, epilogue, scratch,
                 [&](Index k) { return sees(m, k); });
  }
}

template <class T>
std::int64_t executed_gemm_flops(const Extents& size) {
  const Index joins = size.K == 0 ? 0 : (size.K - 1) / GemmBlocks<T>::k;
  return (std::int64_t{2} * size.K + joins) * size.M * round_up(size.N, Tile<T>::width);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rows.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct Piece {
  static constexpr int vectors = 4;
  static constexpr Index width = Simd<T>::width;
  static constexpr Index size = vectors * width;
  T data[std::size_t{size}];
};

template <class T>
[[gnu::noinline]] void gather(Row<const T> x, Index n, Index count, T rest, Piece<T>& to) {
  if (x.step == 1) {
    std::memcpy(to.data, x.data + n, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (Index t = 0; t < count; ++t) to.data[t] = x[n + t];
  }
  for (Index t = count; t < Piece<T>::size; ++t) to.data[t] = rest;
}

template <class T>
[[gnu::noinline]] void scatter(const Piece<T>& from, Index n, Index count, Row<T> y) {
  if (y.step == 1) {
    std::memcpy(y.data + n, from.data, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (Index t = 0; t < count; ++t) y[n + t] = from.data[t];
  }
}

template <class T>
HEADWISE_INLINE typename Simd<T>::Vector load_lanes(Row<const T> x, Index count, const T& rest) {
  using S = Simd<T>;
  if (x.step == 1 && count >= S::width) return S::load(x.data);
  T lanes[std::size_t{S::width}];
  for (Index n = 0; n < S::width; ++n) lanes[n] = n < count ? x[n] : rest;
  return S::load(lanes);
}
template <class T>
HEADWISE_INLINE void store_lanes(const typename Simd<T>::Vector& x, Row<T> y, Index count) {
  using S = Simd<T>;
  if (y.step == 1 && count >= S::width) return S::store(x, y.data);
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  for (Index n = 0; n < S::width && n < count; ++n) y[n] = lanes[n];
}

template <class T>
struct RowPieces {
  Index N;

  Index count(Index n) const { return std::min<Index>(Piece<T>::size, N - n); }
  HEADWISE_INLINE const T* read(Row<const T> x, Index n, T rest, Piece<T>& copy) const {
    if (x.step == 1 && n + Piece<T>::size <= N) return x.data + n;
    gather<T>(x, n, count(n), rest, copy);
    return copy.data;
  }
  HEADWISE_INLINE T* write(Row<T> y, Index n, Piece<T>& copy) const {
    return y.step == 1 && n + Piece<T>::size <= N ? y.data + n : copy.data;
  }
  HEADWISE_INLINE void written(const T* at, Row<T> y, Index n, const Piece<T>& copy) const {
    if (at == copy.data) scatter<T>(copy, n, count(n), y);
  }
};

template <int write, class T>
HEADWISE_INLINE void prefetch_piece(Matrix<T> x, Index rows, Index N, Index i, Index n) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (x.column != 1 || n >= N || i >= rows) return;
  const T* at = &x(i, n);
  const Index count = std::min<Index>(Piece<std::remove_const_t<T>>::size, N - n);
  for (Index t = 0; t < count; t += line) __builtin_prefetch(at + t, write, 3);
}
template <int write, class T>
HEADWISE_INLINE void prefetch_ahead(Matrix<T> x, Index rows, Index N, Index i, Index n) {
  n += 4 * Piece<std::remove_const_t<T>>::size;
  prefetch_piece<write>(x, rows, N, n < N ? i : i + 1, n < N ? n : n - N);
}

template <class T, class F>
HEADWISE_INLINE void each_piece(RowPieces<T> row, F&& f) {
  for (Index n = 0; n < row.N; n += Piece<T>::size) f(n);
}

template <class T, class F>
HEADWISE_INLINE void each_vector(F&& f) {
  unrolled<Piece<T>::vectors>([&](auto v) HEADWISE_ALWAYS_INLINE { f(v, v * Piece<T>::width); });
}

template <class T>
struct Chains {
  using Vector = typename Simd<T>::Vector;
  Vector sums[std::size_t{Piece<T>::vectors}];

  HEADWISE_INLINE Chains() {
    each_vector<T>([&](auto v, Index) HEADWISE_ALWAYS_INLINE { sums[v] = Simd<T>::zero(); });
  }
  HEADWISE_INLINE T total() const {
    const Vector joined = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    return simd::HEADWISE_ISA::sum_lanes<T>(joined);
  }
};

template <class T>
HEADWISE_INLINE bool any_lane(typename Simd<T>::IntVector x) {
  typename Simd<T>::Int lanes[std::size_t{Simd<T>::width}], any = 0;
  Simd<T>::store_ints(x, lanes);
  for (const auto lane : lanes) any |= lane;
  return any != 0;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/column_sums.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
inline constexpr Index columns_of_sum = 4 * Piece<T>::size;

inline constexpr Index rows_of_chain = 16;

template <class T, int kinds, class Terms>
void sum_columns_of(Index begin, Index end, RowPieces<T> row, Index n0, const Terms& terms,
                    T (*sums)[std::size_t{columns_of_sum<T>}]) {
  using S = Simd<T>;
  constexpr Index chain = rows_of_chain;
  if (end - begin > chain) {
    const Index middle = begin + (end - begin + chain) / (2 * chain) * chain;
    T lower[std::size_t{kinds}][std::size_t{columns_of_sum<T>}];
    sum_columns_of<T, kinds>(begin, middle, row, n0, terms, sums);
    sum_columns_of<T, kinds>(middle, end, row, n0, terms, lower);
    for (int k = 0; k < kinds; ++k) {
      for (Index n = 0; n < kernels::round_up(row.N - n0, Piece<T>::size); n += S::width) {
        S::store(S::load(sums[k] + n) + S::load(lower[k] + n), sums[k] + n);
      }
    }
    return;
  }
  for (Index n = n0; n < row.N; n += Piece<T>::size) {
    Chains<T> sum[std::size_t{kinds}];
    for (Index i = begin; i < end; ++i) {
      terms(i, row, n, [&](auto v, auto... term) HEADWISE_ALWAYS_INLINE {
        int k = 0;
        ((sum[k].sums[v] = sum[k].sums[v] + term, ++k), ...);
      });
    }
    for (int k = 0; k < kinds; ++k) {
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        S::store(sum[k].sums[v], sums[k] + (n - n0) + at);
      });
    }
  }
}

template <class T, int kinds, class Terms>
void add_columns(Index rows, Index begin, Index end, const Terms& terms,
                 const Row<T> (&to)[std::size_t{kinds}]) {
  T sums[std::size_t{kinds}][std::size_t{columns_of_sum<T>}];
  if (rows == 0) return;
  for (Index n0 = begin; n0 < end; n0 += columns_of_sum<T>) {
    const Index last = std::min<Index>(end, n0 + columns_of_sum<T>);
    sum_columns_of<T, kinds>(0, rows, RowPieces<T>{last}, n0, terms, sums);
    for (int k = 0; k < kinds; ++k) {
      if (to[k].data == nullptr) continue;
      for (Index n = n0; n < last; ++n) to[k][n] = to[k][n] + sums[k][n - n0];
    }
  }
}

template <Scalar T>
void add_rows(Matrix<const T> x, Index rows, Index begin, Index end, Row<T> to) {
  if constexpr (simd::vectorised<T>) {
    Piece<T> copy;
    const auto terms = [&](Index i, RowPieces<T> row, Index n, auto&& add) HEADWISE_ALWAYS_INLINE {
      const T* in = row.read(kernels::row(x, i), n, T(0), copy);
      prefetch_piece<0>(x, rows, end, i + rows_of_chain, n);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { add(v, Simd<T>::load(in + at)); });
    };
    add_columns<T, 1>(rows, begin, end, terms, {to});
  } else {
    const auto term = [&](Index i, Index n) { return x(i, begin + n); };
    add_column_sums(rows, end - begin, term, &to[begin], to.step);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/elementwise.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T, class Use>
HEADWISE_INLINE void with_combination(Combination how, const T& alpha, Use&& use) {
  using S = Simd<T>;
  using V = typename S::Vector;
  switch (how) {
    case Combination::first:
      return use([&](const V& a, const V&) HEADWISE_ALWAYS_INLINE { return a; });
    case Combination::sum:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a + b; });
    case Combination::difference:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a - b; });
    case Combination::product:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a * b; });
    case Combination::quotient:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a / b; });
    case Combination::scaled: {
      const V factor = S::broadcast(alpha);
      return use([&](const V& a, const V&) HEADWISE_ALWAYS_INLINE { return a * factor; });
    }
    case Combination::gradient_product:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), d * b);
      });
    case Combination::gradient_quotient:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), d / b);
      });
    case Combination::negative_gradient_product:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), S::zero() - d * b);
      });
  }
}

template <Scalar T>
void combine_rows(Combination how, const CombinedRows<T>& of, Index begin, Index end) {
  with_combination<T>(how, of.alpha, [&](const auto& f) HEADWISE_ALWAYS_INLINE {
    Piece<T> copied_a, copied_b, result;
    const RowPieces<T> pieces{of.N};
    for (Index i = begin; i < end; ++i) {
      const Row<const T> a = row(of.a, i), b = row(of.b, i);
      const Row<T> y = row(of.y, i);
      if constexpr (simd::vectorised<T>) {
        each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
          const T* in_a = pieces.read(a, n, T(0), copied_a);
          const T* in_b = pieces.read(b, n, T(1), copied_b);
          T* out = pieces.write(y, n, result);
          each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
            Simd<T>::store(f(Simd<T>::load(in_a + at), Simd<T>::load(in_b + at)), out + at);
          });
          pieces.written(out, y, n, result);
        });
      } else {
        for (Index n = 0; n < of.N; ++n) y[n] = f(a[n], b[n]);
      }
    }
  });
}

template <Scalar T>
void combine_columns(Combination how, const CombinedRows<T>& of, Index rows, Index begin, Index end,
                     Row<T> to) {
  with_combination<T>(how, of.alpha, [&](const auto& f) HEADWISE_ALWAYS_INLINE {
    if constexpr (simd::vectorised<T>) {
      Piece<T> copied_a, copied_b;
      const auto terms = [&](Index i, RowPieces<T> pieces, Index n, auto&& add)
                             HEADWISE_ALWAYS_INLINE {
                               const T* in_a = pieces.read(row(of.a, i), n, T(0), copied_a);
                               const T* in_b = pieces.read(row(of.b, i), n, T(1), copied_b);
                               prefetch_piece<0>(of.a, rows, end, i + rows_of_chain, n);
                               prefetch_piece<0>(of.b, rows, end, i + rows_of_chain, n);
                               each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
                                 add(v, f(Simd<T>::load(in_a + at), Simd<T>::load(in_b + at)));
                               });
                             };
      add_columns<T, 1>(rows, begin, end, terms, {to});
    } else {
      const auto term = [&](Index i, Index n) -> T {
        return f(of.a(i, begin + n), of.b(i, begin + n));
      };
      add_column_sums(rows, end - begin, term, &to[begin], to.step);
    }
  });
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/layer_norm.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
T mean_square(Row<const T> x, Index D, T mean) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  Piece<T> copy;
  Chains<T> squares;
  const auto means = S::broadcast(mean);
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, mean, copy);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const auto centred = S::load(in + at) - means;
      squares.sums[v] = S::fma(centred, centred, squares.sums[v]);
    });
  });
  return squares.total() / T(D);
}

template <class T>
RowMoments<T> moments_of(Row<const T> x, Index D, T epsilon) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  Piece<T> copy;
  Chains<T> sum;
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    each_vector<T>([&](auto v, Index at)
                       HEADWISE_ALWAYS_INLINE { sum.sums[v] = sum.sums[v] + S::load(in + at); });
  });
  const T mean = sum.total() / T(D);
  return {mean, T(1) / std::sqrt(mean_square<T>(x, D, mean) + epsilon)};
}

template <class T>
void normalise(Row<const T> x, Index D, RowMoments<T> moments, Row<const T> gamma,
               Row<const T> beta, Row<T> y) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  const auto mean = S::broadcast(moments.mean), rstd = S::broadcast(moments.rstd);
  Piece<T> copy, copied_gamma, copied_beta, result;
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    T* out = row.write(y, n, result);
    typename S::Vector value[std::size_t{Piece<T>::vectors}];
    each_vector<T>([&](auto v, Index at)
                       HEADWISE_ALWAYS_INLINE { value[v] = (S::load(in + at) - mean) * rstd; });
    if (gamma.data != nullptr) {
      const T* by = row.read(gamma, n, T(0), copied_gamma);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { value[v] = value[v] * S::load(by + at); });
    }
    if (beta.data != nullptr) {
      const T* by = row.read(beta, n, T(0), copied_beta);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { value[v] = value[v] + S::load(by + at); });
    }
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE { S::store(value[v], out + at); });
    row.written(out, y, n, result);
  });
}

template <Scalar T>
void layer_norm_rows(const LayerNormRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.x, n);
    RowMoments<T> moments{T(0), T(0)};  // of an empty row, 0 / 0 is no mean
    if constexpr (simd::vectorised<T>) {
      if (of.D != 0) moments = moments_of<T>(x, of.D, of.epsilon);
      normalise<T>(x, of.D, moments, of.gamma, of.beta, row(of.y, n));
    } else {
      if (of.D != 0) moments = row_moments<T>(x, of.D, of.epsilon);
      normalise_row<T>(x, of.D, moments, of.gamma, of.beta, row(of.y, n));
    }
    if (of.mean.data != nullptr) of.mean[n] = moments.mean;
    if (of.rstd.data != nullptr) of.rstd[n] = moments.rstd;
  }
}

template <class T, bool centred>
void normalise_backward(Row<const T> dy, Row<const T> x, Index D, RowMoments<T> moments,
                        Row<const T> gamma, Row<T> dx) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{D};
  const auto mean = S::broadcast(moments.mean), rstd = S::broadcast(moments.rstd);
  Piece<T> copied_dy, copied_x, copied_gamma, result;
  Chains<T> of_g, of_g_xhat;
  auto any = S::broadcast_int(0);
  const auto each = [&](Index n, auto&& f) HEADWISE_ALWAYS_INLINE {
    const T* in_dy = row.read(dy, n, T(0), copied_dy);
    const T* in_x = row.read(x, n, moments.mean, copied_x);
    const T* by = gamma.data == nullptr ? nullptr : row.read(gamma, n, T(0), copied_gamma);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const Vector d = S::load(in_dy + at);
      f(v, at, d, by == nullptr ? d : d * S::load(by + at), (S::load(in_x + at) - mean) * rstd);
    });
  };
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    each(n, [&](auto v, Index, const Vector& d, const Vector& g, const Vector& xhat)
                HEADWISE_ALWAYS_INLINE {
                  any = any | (d != S::zero());
                  of_g.sums[v] = of_g.sums[v] + g;
                  of_g_xhat.sums[v] = S::fma(g, xhat, of_g_xhat.sums[v]);
                });
  });
  const bool idle = !any_lane<T>(any);
  const auto mean_g = S::broadcast(centred ? of_g.total() / T(D) : T(0));
  const auto mean_g_xhat = S::broadcast(of_g_xhat.total() / T(D));
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    T* out = row.write(dx, n, result);
    each(n, [&](auto, Index at, const Vector&, const Vector& g, const Vector& xhat)
                HEADWISE_ALWAYS_INLINE {
                  const Vector flow = rstd * (g - mean_g - xhat * mean_g_xhat);
                  S::store(idle ? S::zero() : flow, out + at);
                });
    row.written(out, dx, n, result);
  });
}

template <Scalar T>
void layer_norm_backward_rows(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto dy = row(of.dy, n), x = row(of.x, n);
    const RowMoments<T> moments{of.mean[n], of.rstd[n]};
    if constexpr (simd::vectorised<T>) {
      normalise_backward<T, true>(dy, x, of.D, moments, of.gamma, row(of.dx, n));
    } else {
      layer_norm_backward_row<T>(dy, x, of.D, moments, of.gamma, row(of.dx, n));
    }
  }
}

template <class T>
void norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  Piece<T> copied_dy, copied_x;
  const auto terms = [&](Index i, RowPieces<T> row, Index n, auto&& add) HEADWISE_ALWAYS_INLINE {
    const T* dy = row.read(kernels::row(of.dy, i), n, T(0), copied_dy);
    const T* x = row.read(kernels::row(of.x, i), n, T(0), copied_x);
    prefetch_piece<0>(of.dy, of.N, end, i + rows_of_chain, n);
    prefetch_piece<0>(of.x, of.N, end, i + rows_of_chain, n);
    const auto mean = S::broadcast(of.mean.data == nullptr ? T(0) : of.mean[i]);
    const auto rstd = S::broadcast(of.rstd[i]);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const auto d = S::load(dy + at);
      const auto flow = d * ((S::load(x + at) - mean) * rstd);
      add(v, S::select(d == S::zero(), S::zero(), flow), d);
    });
  };
  add_columns<T, 2>(of.N, begin, end, terms, {of.dgamma, of.dbeta});
}

template <Scalar T>
void layer_norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    norm_columns<T>(of, begin, end);
  } else {
    const auto flow = [&](Index i, Index n) {
      const T dy = of.dy(i, begin + n);
      return dy == T(0) ? T(0) : T(dy * ((of.x(i, begin + n) - of.mean[i]) * of.rstd[i]));
    };
    const auto plain = [&](Index i, Index n) { return of.dy(i, begin + n); };
    const Row<T>&dgamma = of.dgamma, &dbeta = of.dbeta;
    if (dgamma.data != nullptr) {
      add_column_sums(of.N, end - begin, flow, &dgamma[begin], dgamma.step);
    }
    if (dbeta.data != nullptr) {
      add_column_sums(of.N, end - begin, plain, &dbeta[begin], dbeta.step);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rms_norm.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
void rms_norm_rows(const LayerNormRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.x, n);
    T rstd = T(0);  // of an empty row
    if constexpr (simd::vectorised<T>) {
      if (of.D != 0) rstd = T(1) / std::sqrt(mean_square<T>(x, of.D, T(0)) + of.epsilon);
      normalise<T>(x, of.D, {T(0), rstd}, of.gamma, {nullptr, 0}, row(of.y, n));
    } else {
      if (of.D != 0) rstd = root_mean_square<T>(x, of.D, of.epsilon);
      rms_norm_row<T>(x, of.D, rstd, of.gamma, row(of.y, n));
    }
    if (of.rstd.data != nullptr) of.rstd[n] = rstd;
  }
}

template <Scalar T>
void rms_norm_backward_rows(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto dy = row(of.dy, n), x = row(of.x, n);
    if constexpr (simd::vectorised<T>) {
      normalise_backward<T, false>(dy, x, of.D, {T(0), of.rstd[n]}, of.gamma, row(of.dx, n));
    } else {
      rms_norm_backward_row<T>(dy, x, of.D, of.rstd[n], of.gamma, row(of.dx, n));
    }
  }
}

template <Scalar T>
void rms_norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    norm_columns<T>(of, begin, end);
  } else {
    const auto flow = [&](Index i, Index n) {
      const T dy = of.dy(i, begin + n);
      return dy == T(0) ? T(0) : T(dy * (of.x(i, begin + n) * of.rstd[i]));
    };
    add_column_sums(of.N, end - begin, flow, &of.dgamma[begin], of.dgamma.step);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/softmax.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct PieceMask {
  std::uint8_t bytes[std::size_t{Piece<T>::size}];

  HEADWISE_INLINE typename Simd<T>::Vector select(Index at, const typename Simd<T>::Vector& yes,
                                                  const typename Simd<T>::Vector& no) const {
    return Simd<T>::select(Simd<T>::load_bytes(bytes + at), yes, no);
  }
};

template <class T>
struct RowMask {
  KeyRange range;
  const HeadVisibility<T>* rules = nullptr;  // null unless pairs have to be asked for
  Index i = 0;

  RowMask(Index N) : range{0, N} {}
  RowMask(const HeadVisibility<T>& visibility, Index row) : range(visibility.range(row)), i(row) {
    if (visibility.has_pair_masks()) rules = &visibility;
  }

  bool whole(Index n) const {
    return rules == nullptr && n >= range.begin && n + Piece<T>::size <= range.end;
  }
  [[gnu::noinline]] void look(Index n, PieceMask<T>& seen) const {
    const Index begin = std::max<Index>(range.begin - n, 0);
    const Index end = std::min<Index>(range.end - n, Piece<T>::size);
    for (Index t = 0; t < Piece<T>::size; ++t) seen.bytes[t] = t >= begin && t < end;
    for (Index t = begin; rules != nullptr && t < end; ++t) {
      seen.bytes[t] = rules->pair_visible(i, n + t);
    }
  }
  template <class F>
  HEADWISE_INLINE void each_piece(F&& f) const {
    PieceMask<T> seen;
    Index n = range.begin / Piece<T>::size * Piece<T>::size;
    for (; n < range.end; n += Piece<T>::size) {
      const bool all = whole(n);
      if (!all) look(n, seen);
      f(n, all, seen);
    }
  }
};

template <class T>
void clear_hidden(const RowMask<T>& mask, Index N, Row<T> y) {
  const Index begin = mask.range.begin / Piece<T>::size * Piece<T>::size;
  const bool none = mask.range.begin >= mask.range.end;
  for (Index n = 0; n < (none ? N : begin); ++n) y[n] = T(0);
  for (Index n = round_up(mask.range.end, Piece<T>::size); !none && n < N; ++n) y[n] = T(0);
}

template <class T>
T greatest_of(Row<const T> x, Index N, const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copy;
  T lanes[std::size_t{S::width}];
  const auto lowest = S::broadcast(std::numeric_limits<T>::lowest());
  typename S::Vector most[] = {lowest, lowest, lowest, lowest};
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto value = S::load(in + at);
      if (!all) value = seen.select(at, value, lowest);
      most[v] = S::greater(most[v], value);
    });
  });
  S::store(S::greater(S::greater(most[0], most[1]), S::greater(most[2], most[3])), lanes);
  T greatest = lanes[0];
  for (const T lane : lanes) greatest = greatest < lane ? lane : greatest;
  return greatest;
}

template <class T>
void softmax_of(Row<const T> x, Row<T> p, Index N, const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copy, result;
  const auto greatest = S::broadcast(greatest_of<T>(x, N, mask));
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Chains<T> sums;
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    T* out = row.write(p, n, result);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto weight = simd::HEADWISE_ISA::weight_of<T>((S::load(in + at) - greatest) * unit);
      if (!all) weight = seen.select(at, weight, S::zero());
      S::store(weight, out + at);
      sums.sums[v] = sums.sums[v] + weight;
    });
    row.written(out, p, n, result);
  });
  const T total = sums.total();
  const auto sum = S::broadcast(total);
  const bool ask = !(T(0) < total);  // 0 / total is 0 otherwise
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(p, n, T(0), copy);
    T* out = row.write(p, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      auto weight = S::load(in + at) / sum;
      if (!all && ask) weight = seen.select(at, weight, S::zero());
      S::store(weight, out + at);
    });
    row.written(out, p, n, result);
  });
  clear_hidden<T>(mask, N, p);
}

template <class T>
void softmax_backward_of(Row<const T> dp, Row<const T> p, Row<T> dx, Index N, T scale,
                         const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copied_dp, copied_p, result;
  Chains<T> sums;
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T *in = row.read(dp, n, T(0), copied_dp), *by = row.read(p, n, T(0), copied_p);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto term = S::load(in + at) * S::load(by + at);
      if (!all) term = seen.select(at, term, S::zero());
      sums.sums[v] = sums.sums[v] + term;
    });
  });
  const auto sum = S::broadcast(sums.total()), factor = S::broadcast(scale);
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T *in = row.read(dp, n, T(0), copied_dp), *by = row.read(p, n, T(0), copied_p);
    T* out = row.write(dx, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      auto flow = factor * (S::load(by + at) * (S::load(in + at) - sum));
      if (!all) flow = seen.select(at, flow, S::zero());
      S::store(flow, out + at);
    });
    row.written(out, dx, n, result);
  });
  clear_hidden<T>(mask, N, dx);
}

template <Scalar T>
void softmax_rows(Matrix<const T> x, Matrix<T> p, Index N, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    if constexpr (simd::vectorised<T>) {
      softmax_of<T>(row(x, i), row(p, i), N, RowMask<T>(N));
    } else {
      for (Index j = 0; j < N; ++j) p(i, j) = x(i, j);
      softmax_row(row(p, i), N, [](Index) { return true; });
    }
  }
}

template <Scalar T>
void softmax_backward_rows(Matrix<const T> dp, Matrix<const T> p, Matrix<T> dx, Index N,
                           Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    if constexpr (simd::vectorised<T>) {
      softmax_backward_of<T>(row(dp, i), row(p, i), row(dx, i), N, T(1), RowMask<T>(N));
    } else {
      softmax_backward_row<T>(row(dp, i), row(p, i), row(dx, i), N, [](Index) { return true; });
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/dropout.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
inline constexpr bool draws_by_lanes = HEADWISE_ISA_BYTES >= 32 && simd::vectorised<T>;

#if HEADWISE_ISA_BYTES >= 32
typedef std::uint64_t PhiloxLanes __attribute__((vector_size(HEADWISE_ISA_BYTES)));
inline constexpr int philox_lanes = HEADWISE_ISA_BYTES / 8;

HEADWISE_INLINE PhiloxLanes multiply_low(PhiloxLanes a, std::uint32_t b) {
  const PhiloxLanes by = PhiloxLanes{} + std::uint64_t{b};
#if HEADWISE_ISA_BYTES == 64
  return __builtin_bit_cast(PhiloxLanes,
                            _mm512_maskz_mul_epu32(0xFF, __builtin_bit_cast(__m512i, a),
                                                   __builtin_bit_cast(__m512i, by)));
#else
  return __builtin_bit_cast(PhiloxLanes, _mm256_mul_epu32(__builtin_bit_cast(__m256i, a),
                                                          __builtin_bit_cast(__m256i, by)));
#endif
}

HEADWISE_INLINE void draw_blocks(PhiloxLanes (&c)[4], std::array<std::uint32_t, 2> key) {
  unrolled<7>([&](auto) HEADWISE_ALWAYS_INLINE {
    const PhiloxLanes even = multiply_low(c[0], 0xD2511F53u), odd = multiply_low(c[2], 0xCD9E8D57u);
    c[0] = (odd >> 32) ^ c[1] ^ std::uint64_t{key[0]};
    c[1] = odd;
    c[2] = (even >> 32) ^ c[3] ^ std::uint64_t{key[1]};
    c[3] = even;
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  });
}

HEADWISE_INLINE PhiloxLanes in_all_lanes(Index n) {
  return PhiloxLanes{} + static_cast<std::uint64_t>(n);
}
HEADWISE_INLINE PhiloxLanes counting_from(Index first) {
  std::uint64_t numbers[std::size_t{philox_lanes}];
  for (std::size_t n = 0; n < std::size_t{philox_lanes}; ++n) numbers[n] = n;
  PhiloxLanes steps;
  std::memcpy(&steps, numbers, sizeof steps);
  return in_all_lanes(first) + steps;
}

template <class Bits>
HEADWISE_INLINE void draw_row(const DropoutMask& mask, Index b, Index h, Index i, Index j8,
                              Bits& bits) {
  PhiloxLanes c[4] = {counting_from(j8), in_all_lanes(i), in_all_lanes(h), in_all_lanes(b)};
  draw_blocks(c, mask.key());
  constexpr std::uint64_t low = 0xFFFFFFFFu;
  const PhiloxLanes first = (c[0] & low) | (c[1] << 32), second = (c[2] & low) | (c[3] << 32);
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    const PhiloxLanes front =
        __builtin_shufflevector(first, second, (n / 2 + n % 2 * philox_lanes)...);
    const PhiloxLanes back = __builtin_shufflevector(
        first, second, (n / 2 + n % 2 * philox_lanes + philox_lanes / 2)...);
    std::memcpy(bits, &front, sizeof front);
    std::memcpy(bits + sizeof(front) / 2, &back, sizeof back);
  }
  (std::make_integer_sequence<int, philox_lanes>());
}
#endif

template <class T>
[[gnu::noinline]] void dropout_factors(const DropoutMask& mask, Index b, Index h, Index i, Index j,
                                       Index count, T* factors) {
  const T factor = T(mask.keep_factor());
#if HEADWISE_ISA_BYTES >= 32
  if constexpr (draws_by_lanes<T>) {
    using S = Simd<T>;
    typedef std::uint16_t HalfVector __attribute__((vector_size(2 * S::width)));
    constexpr Index drawn = Index{8} * philox_lanes;
    std::uint16_t bits[std::size_t{drawn}];
    const auto limit = S::broadcast_int(static_cast<typename S::Int>(mask.threshold()));
    const auto kept = S::broadcast(factor);
    for (Index t = 0, n = 0; t < count; t += n) {
      draw_row(mask, b, h, i, (j + t) / 8, bits);
      n = std::min<Index>(drawn, count - t);
      Index m = 0;
      for (; m + S::width <= n; m += S::width) {
        HalfVector half;
        std::memcpy(&half, bits + m, sizeof half);
        const auto wide = __builtin_convertvector(half, typename S::IntVector);
        S::store(S::select(wide >= limit, kept, S::zero()), factors + t + m);
      }
      for (; m < n; ++m) {
        factors[t + m] = bits[m] >= mask.threshold() ? factor : T(0);
      }
    }
    return;
  }
#endif
  mask.row(b, h, i, j, count, factor, factors);
}

template <class T>
void drop_pieces(Matrix<const T> x, Matrix<T> y, Index N, Index i, Index end, Index n0, Index count,
                 const T* factors) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  const auto from = kernels::row(x, i);
  const auto to = kernels::row(y, i);
  Piece<T> copy, result;
  for (Index n = n0; n < n0 + count; n += Piece<T>::size) {
    prefetch_ahead<0>(x, end, N, i, n);
    prefetch_ahead<1>(y, end, N, i, n);
    const T* in = row.read(from, n, T(0), copy);
    T* out = row.write(to, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      const auto factor = S::load(factors + (n - n0) + at);
      S::store(S::select(factor == S::zero(), S::zero(), S::load(in + at) * factor), out + at);
    });
    row.written(out, to, n, result);
  }
}

template <Scalar T>
void drop_rows(const DropoutMask& mask, Matrix<const T> x, Matrix<T> y, Index N, Index begin,
               Index end) {
  constexpr Index drawn = 4 * Piece<T>::size;
  T factors[std::size_t{drawn}];
  for (Index i = begin; i < end; ++i) {
    for (Index n0 = 0; n0 < N; n0 += drawn) {
      const Index count = std::min<Index>(drawn, N - n0);
      dropout_factors<T>(mask, 0, 0, i, n0, count, factors);
      if constexpr (simd::vectorised<T>) {
        for (Index t = count; t < drawn; ++t) factors[t] = T(0);
        drop_pieces<T>(x, y, N, i, end, n0, count, factors);
      } else {
        for (Index t = 0; t < count; ++t) {
          y(i, n0 + t) = factors[t] == T(0) ? T(0) : T(x(i, n0 + t) * factors[t]);
        }
      }
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/embedding.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
void add_row(Row<const T> x, Index N, Row<T> to) {
  if constexpr (simd::vectorised<T>) {
    using S = Simd<T>;
    const RowPieces<T> row{N};
    Piece<T> copy, sums;
    each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* in = row.read(x, n, T(0), copy);
      T* at = row.write(to, n, sums);
      if (at == sums.data) gather<T>(to, n, row.count(n), T(0), sums);
      each_vector<T>([&](auto, Index element) HEADWISE_ALWAYS_INLINE {
        S::store(S::load(at + element) + S::load(in + element), at + element);
      });
      row.written(at, to, n, sums);
    });
  } else {
    for (Index n = 0; n < N; ++n) to[n] = to[n] + x[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/cross_entropy.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T, class F>
HEADWISE_INLINE void each_piece_but_target(RowPieces<T> row, Index target, Chains<T>& sums,
                                           Chains<T>& totals, F&& f) {
  constexpr Index size = Piece<T>::size, together = 16 * size;
  for (Index n0 = 0; n0 < row.N; n0 += together) {
    sums = Chains<T>();
    for (Index n = n0, end = std::min<Index>(row.N, n0 + together); n < end; n += size) {
      const bool holds = target >= n && target < n + size;
      f(n, !holds && n + size <= row.N, holds ? target - n : Index{-1});
    }
    each_vector<T>([&](auto v, Index)
                       HEADWISE_ALWAYS_INLINE { totals.sums[v] = totals.sums[v] + sums.sums[v]; });
  }
}

template <class T, class F>
HEADWISE_INLINE void each_vector_but_target(Index count, Index target, F&& f) {
  using S = Simd<T>;
  using Int = typename S::Int;
  const auto lanes = S::lane_numbers();
  each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
    if (at >= count) return;
    const auto counted =
        S::both(S::within(lanes, S::broadcast_int(0), S::broadcast_int(Int(count - at))),
                lanes != S::broadcast_int(Int(target - at)));
    f(v, at, [&](const typename S::Vector& x) HEADWISE_ALWAYS_INLINE {
      return S::select(counted, x, S::zero());
    });
  });
}

template <class T>
HEADWISE_INLINE T greatest_lane(typename Simd<T>::Vector x) {
  using S = Simd<T>;
  const auto with = [&](auto half) HEADWISE_ALWAYS_INLINE {
    if constexpr (half != 0) {
      [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
        x = S::greater(x, __builtin_shufflevector(x, x, (n ^ half)...));
      }
      (std::make_integer_sequence<int, S::width>());
    }
  };
  with(std::integral_constant<int, S::width / 2>{});
  with(std::integral_constant<int, S::width / 4>{});
  with(std::integral_constant<int, S::width / 8>{});
  with(std::integral_constant<int, S::width / 16>{});
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  return lanes[0];
}

template <class T>
T greatest_logit(Row<const T> x, Index V) {
  using S = Simd<T>;
  constexpr T least = std::numeric_limits<T>::lowest();
  const RowPieces<T> row{V};
  Piece<T> copy;
  const auto lowest = S::broadcast(least);
  typename S::Vector most[] = {lowest, lowest, lowest, lowest};
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const Index count = row.count(n);
    if (count == Piece<T>::size) {
      const T* in = row.read(x, n, least, copy);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        most[v] = S::greater(most[v], S::load(in + at));
      });
      return;
    }
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      if (at >= count) return;
      most[v] = S::greater(most[v], load_lanes<T>({&x[n + at], x.step}, count - at, least));
    });
  });
  return greatest_lane<T>(S::greater(S::greater(most[0], most[1]), S::greater(most[2], most[3])));
}

template <class T>
CrossEntropy<T> cross_entropy_of(Row<const T> x, Index V, Index target) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{V};
  const T most = greatest_logit<T>(x, V);
  const auto greatest = S::broadcast(most);
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Piece<T> copy, weights;
  Chains<T> sums, totals;
  T of_target = T(0);
  const auto weight_at = [&](const Vector& in) HEADWISE_ALWAYS_INLINE {
    return simd::HEADWISE_ISA::weight_of<T>((in - greatest) * unit);
  };
  const auto add = [&](Index n, bool whole, Index at_target) HEADWISE_ALWAYS_INLINE {
    if (whole) {
      const T* in = row.read(x, n, most, copy);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        sums.sums[v] = sums.sums[v] + weight_at(S::load(in + at));
      });
      return;
    }
    const Index count = row.count(n);
    each_vector_but_target<T>(
        count, at_target, [&](auto v, Index at, auto counts) HEADWISE_ALWAYS_INLINE {
          const auto weight = weight_at(load_lanes<T>({&x[n + at], x.step}, count - at, most));
          S::store(weight, weights.data + at);
          sums.sums[v] = sums.sums[v] + counts(weight);
        });
    if (at_target >= 0) of_target = weights.data[at_target];
  };
  each_piece_but_target<T>(row, target, sums, totals, add);
  return cross_entropy_from<T>(most, x[target], of_target, totals.total());
}

template <class T>
void cross_entropy_backward_of(Row<const T> x, Index V, Index target, T lse, T factor, Row<T> dx) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{V};
  const auto centre = S::broadcast(lse), by = S::broadcast(factor);
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Piece<T> copy, result, weights;
  Chains<T> sums, totals;
  T of_target = T(0);
  const auto weight_at = [&](const Vector& in) HEADWISE_ALWAYS_INLINE {
    return simd::HEADWISE_ISA::weight_of<T>((in - centre) * unit);
  };
  const auto flow = [&](Index n, bool whole, Index at_target) HEADWISE_ALWAYS_INLINE {
    if (whole) {
      const T* in = row.read(x, n, lse, copy);
      T* out = row.write(dx, n, result);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        const auto p = weight_at(S::load(in + at));
        S::store(by * p, out + at);
        sums.sums[v] = sums.sums[v] + p;
      });
      row.written(out, dx, n, result);
      return;
    }
    const Index count = row.count(n);
    each_vector_but_target<T>(
        count, at_target, [&](auto v, Index at, auto counts) HEADWISE_ALWAYS_INLINE {
          const auto p = weight_at(load_lanes<T>({&x[n + at], x.step}, count - at, lse));
          S::store(p, weights.data + at);
          store_lanes<T>(by * p, {&dx[n + at], dx.step}, count - at);
          sums.sums[v] = sums.sums[v] + counts(p);
        });
    if (at_target >= 0) of_target = weights.data[at_target];
  };
  each_piece_but_target<T>(row, target, sums, totals, flow);
  dx[target] = T(0) - factor * (totals.total() + T(0) * of_target);
}

template <Scalar T>
void cross_entropy_rows(const CrossEntropyRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    CrossEntropy<T> result{T(0), T(0)};
    if (of.targets[n] >= 0) {
      const auto x = row(of.logits, n);
      if constexpr (simd::vectorised<T>) {
        result = cross_entropy_of<T>(x, of.V, of.targets[n]);
      } else {
        result = cross_entropy_row<T>(x, of.V, of.targets[n]);
      }
    }
    of.losses[n] = result.loss;
    if (of.lse.data != nullptr) of.lse[n] = result.lse;
  }
}

template <Scalar T>
void cross_entropy_backward_rows(const CrossEntropyBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.logits, n);
    const auto dx = row(of.d_logits, n);
    if (of.targets[n] < 0) {
      for (Index v = 0; v < of.V; ++v) dx[v] = T(0);
    } else if constexpr (simd::vectorised<T>) {
      cross_entropy_backward_of<T>(x, of.V, of.targets[n], of.lse[n], of.factor, dx);
    } else {
      cross_entropy_backward_row<T>(x, of.V, of.targets[n], of.lse[n], of.factor, dx);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rotary.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
HEADWISE_INLINE void load_neighbours(const T* from, typename Simd<T>::Vector& first,
                                     typename Simd<T>::Vector& second) {
  constexpr int width = Simd<T>::width;
  const auto low = Simd<T>::load(from), high = Simd<T>::load(from + width);
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    first = __builtin_shufflevector(low, high, (2 * n)...);
    second = __builtin_shufflevector(low, high, (2 * n + 1)...);
  }
  (std::make_integer_sequence<int, width>());
}
template <class T>
HEADWISE_INLINE void store_neighbours(const typename Simd<T>::Vector& first,
                                      const typename Simd<T>::Vector& second, T* to) {
  constexpr int width = Simd<T>::width;
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    Simd<T>::store(__builtin_shufflevector(first, second, (n / 2 + n % 2 * width)...), to);
    Simd<T>::store(__builtin_shufflevector(first, second, (n / 2 + n % 2 * width + width / 2)...),
                   to + width);
  }
  (std::make_integer_sequence<int, width>());
}

template <class T>
struct RowPairs {
  Row<T> first, second;

  RowPairs(Row<T> x, const RotaryRows<std::remove_const_t<T>>& of)
      : first(of.interleaved ? Row<T>{x.data, 2 * x.step} : x),
        second(of.interleaved ? Row<T>{x.data + x.step, 2 * x.step}
                              : Row<T>{x.data + of.width / 2 * x.step, x.step}) {}
  Row<T> first_from(Index t) const { return {&first[t], first.step}; }
  Row<T> second_from(Index t) const { return {&second[t], second.step}; }
};

template <class T>
void rotate_row(const RotaryRows<T>& of, Row<const T> cosines, Row<const T> sines, Row<const T> x,
                Row<T> y) {
  using S = Simd<T>;
  const RowPairs<const T> from(x, of);
  const RowPairs<T> to(y, of);
  const Index pairs = of.width / 2;
  const bool neighbours = of.interleaved && x.step == 1 && y.step == 1;
  for (Index t = 0; t < pairs; t += S::width) {
    const Index count = std::min<Index>(S::width, pairs - t);
    const auto c = load_lanes<T>({&cosines[t], cosines.step}, count, T(0));
    auto s = load_lanes<T>({&sines[t], sines.step}, count, T(0));
    if (of.transposed) s = S::zero() - s;
    const bool parted = neighbours && count == S::width;
    typename S::Vector a, b;
    if (parted) {
      load_neighbours<T>(x.data + 2 * t, a, b);
    } else {
      a = load_lanes<T>(from.first_from(t), count, T(0));
      b = load_lanes<T>(from.second_from(t), count, T(0));
    }
    const auto first = S::fma(a, c, S::zero() - b * s), second = S::fma(a, s, b * c);
    if (parted) {
      store_neighbours<T>(first, second, y.data + 2 * t);
    } else {
      store_lanes<T>(first, to.first_from(t), count);
      store_lanes<T>(second, to.second_from(t), count);
    }
  }
}

template <Scalar T>
void rotate_rows(const RotaryRows<T>& of, Matrix<const T> x, Matrix<T> y, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    const auto from = row(x, i);
    const auto to = row(y, i);
    const auto cosines = row(of.cosines, i), sines = row(of.sines, i);
    if constexpr (simd::vectorised<T>) {
      rotate_row<T>(of, cosines, sines, from, to);
    } else {
      const RowPairs<const T> in(from, of);
      const RowPairs<T> out(to, of);
      for (Index t = 0; t < of.width / 2; ++t) {
        const T a = in.first[t], b = in.second[t], c = cosines[t];
        const T s = of.transposed ? T(T(0) - sines[t]) : sines[t];
        out.first[t] = a * c - b * s;
        out.second[t] = a * s + b * c;
      }
    }
    if (from.data == to.data) continue;
    for (Index n = of.width; n < of.d; ++n) to[n] = from[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/optimizer.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
HEADWISE_INLINE typename Simd<T>::Vector square_root(const typename Simd<T>::Vector& x) {
  using Vector [[maybe_unused]] = typename Simd<T>::Vector;
  if constexpr (!simd::vectorised<T>) {
    using std::sqrt;
    return sqrt(x);
#if HEADWISE_ISA_BYTES == 64
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(Vector, _mm512_maskz_sqrt_ps(0xFFFF, __builtin_bit_cast(__m512, x)));
  } else {
    return __builtin_bit_cast(Vector, _mm512_maskz_sqrt_pd(0xFF, __builtin_bit_cast(__m512d, x)));
#elif HEADWISE_ISA_BYTES == 32
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(Vector, _mm256_sqrt_ps(__builtin_bit_cast(__m256, x)));
  } else {
    return __builtin_bit_cast(Vector, _mm256_sqrt_pd(__builtin_bit_cast(__m256d, x)));
#else
  } else {
    T lanes[std::size_t{Simd<T>::width}];
    Simd<T>::store(x, lanes);
    for (T& lane : lanes) lane = std::sqrt(lane);
    return Simd<T>::load(lanes);
#endif
  }
}

template <Scalar T, class F, class... To>
HEADWISE_INLINE void each_whole_vector(Index n, const F& f, const T* from, To*... to) {
  constexpr Index width = Simd<T>::width;
  Index i = 0;
  for (; i + width <= n; i += width) f(from + i, (to + i)...);
  if constexpr (width > 1) {
    if (i == n) return;
    T read[std::size_t{width}] = {}, written[sizeof...(to)][std::size_t{width}] = {};
    const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(T);
    std::memcpy(read, from + i, bytes);
    [&]<std::size_t... k>(std::index_sequence<k...>) HEADWISE_ALWAYS_INLINE {
      (std::memcpy(written[k], to + i, bytes), ...);
      f(read, written[k]...);
      (std::memcpy(to + i, written[k], bytes), ...);
    }
    (std::index_sequence_for<To...>());
  }
}

template <Scalar T>
void adamw(const AdamWStep<T>& step, T* p, const T* g, T* m, T* v, Index n) {
  using S = Simd<T>;
  const auto scale = S::broadcast(step.gradient_scale), keep = S::broadcast(step.keep);
  const auto new_m = S::broadcast(step.one_minus_beta1), rest = S::broadcast(step.rest_of_m);
  const auto beta2 = S::broadcast(step.beta2), new_v = S::broadcast(step.one_minus_beta2);
  const auto correction = S::broadcast(step.root_correction);
  const auto epsilon = S::broadcast(step.epsilon), minus_step = S::broadcast(step.minus_step);
  const auto update = [&](const T* g_at, T* p_at, T* m_at, T* v_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = S::load(g_at) * scale;
    const auto old_m = S::load(m_at);
    const auto way = gradient - old_m;
    const auto m_now = step.near_gradient ? gradient - way * rest : old_m + new_m * way;
    const auto v_now = S::load(v_at) * beta2 + new_v * gradient * gradient;
    const auto root = square_root<T>(v_now) / correction + epsilon;
    S::store(S::load(p_at) * keep + minus_step * m_now / root, p_at);
    S::store(m_now, m_at);
    S::store(v_now, v_at);
  };
  each_whole_vector(n, update, g, p, m, v);
}

template <Scalar T>
void sgd(const SgdStep<T>& step, T* p, const T* g, T* u, Index n) {
  using S = Simd<T>;
  const auto scale = S::broadcast(step.gradient_scale), decay = S::broadcast(step.weight_decay);
  const auto momentum = S::broadcast(step.momentum);
  const auto fresh = S::broadcast(step.one_minus_dampening);
  const auto minus_rate = S::broadcast(step.minus_rate);
  const auto gradient_of = [&](const T* p_at, const T* g_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = S::load(g_at) * scale;
    return step.decays ? gradient + decay * S::load(p_at) : gradient;
  };
  if (u == nullptr) {
    const auto update = [&](const T* g_at, T* p_at) HEADWISE_ALWAYS_INLINE {
      S::store(S::load(p_at) + minus_rate * gradient_of(p_at, g_at), p_at);
    };
    return each_whole_vector(n, update, g, p);
  }
  const auto update = [&](const T* g_at, T* p_at, T* u_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = gradient_of(p_at, g_at);
    const auto velocity = step.first ? gradient : S::load(u_at) * momentum + fresh * gradient;
    const auto by = step.nesterov ? gradient + momentum * velocity : velocity;
    S::store(S::load(p_at) + minus_rate * by, p_at);
    S::store(velocity, u_at);
  };
  each_whole_vector(n, update, g, p, u);
}

template <Scalar T>
void scale_elements(T factor, T* x, Index n) {
  using S = Simd<T>;
  const auto by = S::broadcast(factor);
  const auto update = [&](const T* from, T* to)
                          HEADWISE_ALWAYS_INLINE { S::store(S::load(from) * by, to); };
  each_whole_vector(n, update, static_cast<const T*>(x), x);
}

template <Scalar T>
HEADWISE_INLINE typename Simd<SumOf<T>>::Vector widened(const T* from) {
  using Vector [[maybe_unused]] = typename Simd<SumOf<T>>::Vector;
  if constexpr (std::same_as<T, SumOf<T>>) {
    return Simd<T>::load(from);
  } else {
    typedef float Half __attribute__((vector_size(HEADWISE_ISA_BYTES / 2)));
    Half half;
    std::memcpy(&half, from, sizeof half);
#if HEADWISE_ISA_BYTES == 64
    return __builtin_bit_cast(Vector,
                              _mm512_maskz_cvtps_pd(0xFF, __builtin_bit_cast(__m256, half)));
#elif HEADWISE_ISA_BYTES == 32
    return __builtin_bit_cast(Vector, _mm256_cvtps_pd(__builtin_bit_cast(__m128, half)));
#else
    return __builtin_convertvector(half, Vector);
#endif
  }
}

template <Scalar T>
SumOf<T> sum_of_squares(const T* x, Index n) {
  using S = Simd<SumOf<T>>;
  constexpr Index together = Piece<SumOf<T>>::size;
  if constexpr (S::width == 1) {
    SumOf<T> sum = T(0);
    for (Index i = 0; i < n; ++i) sum = sum + x[i] * x[i];
    return sum;
  } else {
    Chains<SumOf<T>> chains;
    T copy[std::size_t{together}] = {};
    for (Index i = 0; i < n; i += together) {
      const T* from = x + i;
      if (i + together > n) {
        std::memcpy(copy, from, static_cast<std::size_t>(n - i) * sizeof(T));
        from = copy;
      }
      each_vector<SumOf<T>>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        const auto y = widened<T>(from + at);
        chains.sums[v] = S::fma(y, y, chains.sums[v]);
      });
    }
    return chains.total();
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/activation.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T, Activation which>
struct Shares {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  using Logistic = simd::LogisticConstants<T>;
  static constexpr T bound = which == Activation::gelu   ? simd::NormalConstants<T>::bound
                             : which == Activation::silu ? Logistic::bound
                                                         : Logistic::tanh_bound;
  typename S::IntVector negative;
  Vector below;  // -|x|, at least -bound
  Vector share, density;

  HEADWISE_INLINE explicit Shares(const Vector& x)
      : negative(x < S::zero()), below(simd::HEADWISE_ISA::below_zero<T>(x, bound)) {
    if constexpr (which == Activation::gelu) {
      const Vector power = simd::HEADWISE_ISA::normal_power<T>(below);
      const Vector tail = power * simd::HEADWISE_ISA::normal_tail<T>(below);
      share = S::select(negative, tail, T(1) - tail);
      constexpr T peak = static_cast<T>(0.39894228040143267793994605993438187L);  // 1 / sqrt(2 pi)
      density = power * peak;
    } else if constexpr (which == Activation::silu) {
      logistic(below);
    } else {
      constexpr T linear = static_cast<T>(GeluTanh::linear),
                  cubic = static_cast<T>(GeluTanh::cubic);
      const Vector square = below * below;
      logistic(below * S::fma(square, S::broadcast(cubic), S::broadcast(linear)));
      density = density * S::fma(square, S::broadcast(3 * cubic), S::broadcast(linear));
    }
  }
  HEADWISE_INLINE Vector value(const Vector& x) const {
    return S::select(negative, below, x) * share;
  }
  HEADWISE_INLINE Vector slope() const {
    return S::fma(S::select(negative, below, -below), density, share);
  }

 private:
  HEADWISE_INLINE void logistic(const Vector& z) {  // <= 0
    const Vector power = simd::HEADWISE_ISA::power_of_e<T>(z);
    const Vector most = T(1) / (T(1) + power), least = power * most;
    share = S::select(negative, least, most);
    density = least * most;
  }
};

template <class T>
struct Shares<T, Activation::relu> {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  Vector x;

  HEADWISE_INLINE explicit Shares(const Vector& of) : x(of) {}
  HEADWISE_INLINE Vector value(const Vector&) const {
    return S::select(x < S::zero(), S::zero(), x);
  }
  HEADWISE_INLINE Vector slope() const {
    return S::select(x <= S::zero(), S::zero(), S::broadcast(T(1)));
  }
};

template <class T, Activation which>
void activate(const ActivationRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  const RowPieces<T> pieces{of.F};
  Piece<T> copied_x, copied_up, result;
  for (Index i = begin; i < end; ++i) {
    const auto x = row(of.x, i), up = row(of.up, i);
    const auto y = row(of.y, i);
    each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* in = pieces.read(x, n, T(0), copied_x);
      const T* by = of.up.data == nullptr ? nullptr : pieces.read(up, n, T(0), copied_up);
      T* out = pieces.write(y, n, result);
      each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
        const auto value = S::load(in + at);
        auto got = Shares<T, which>(value).value(value);
        if (by != nullptr) got = got * S::load(by + at);
        S::store(got, out + at);
      });
      pieces.written(out, y, n, result);
    });
  }
}

template <class T, Activation which>
void activate_backward(const ActivationBackwardRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  const RowPieces<T> pieces{of.F};
  Piece<T> copied_dy, copied_x, copied_up, result, result_up;
  for (Index i = begin; i < end; ++i) {
    const auto dy = row(of.dy, i), x = row(of.x, i), up = row(of.up, i);
    const auto dx = row(of.dx, i), d_up = row(of.d_up, i);
    each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* flow = pieces.read(dy, n, T(0), copied_dy);
      const T* in = pieces.read(x, n, T(0), copied_x);
      const T* by = of.up.data == nullptr ? nullptr : pieces.read(up, n, T(0), copied_up);
      T* out = pieces.write(dx, n, result);
      T* out_up = by == nullptr ? nullptr : pieces.write(d_up, n, result_up);
      each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
        const auto d = S::load(flow + at), value = S::load(in + at);
        const Shares<T, which> shares(value);
        const auto slope = shares.slope();
        const auto idle = d == S::zero();
        auto through = d;
        if (by != nullptr) {
          through = d * S::load(by + at);
          S::store(S::select(idle, S::zero(), d * shares.value(value)), out_up + at);
        }
        S::store(S::select(idle | (slope == S::zero()), S::zero(), through * slope), out + at);
      });
      pieces.written(out, dx, n, result);
      if (by != nullptr) pieces.written(out_up, d_up, n, result_up);
    });
  }
}

template <Scalar T>
void activation_rows(const ActivationRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    using enum Activation;
    if (of.which == relu) return activate<T, relu>(of, begin, end);
    if (of.which == gelu) return activate<T, gelu>(of, begin, end);
    if (of.which == gelu_tanh) return activate<T, gelu_tanh>(of, begin, end);
    activate<T, silu>(of, begin, end);
  } else {
    for (Index i = begin; i < end; ++i) {
      for (Index n = 0; n < of.F; ++n) {
        const T value = activation_value<T>(of.which, of.x(i, n));
        of.y(i, n) = of.up.data == nullptr ? value : T(value * of.up(i, n));
      }
    }
  }
}

template <Scalar T>
void activation_backward_rows(const ActivationBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    using enum Activation;
    if (of.which == relu) return activate_backward<T, relu>(of, begin, end);
    if (of.which == gelu) return activate_backward<T, gelu>(of, begin, end);
    if (of.which == gelu_tanh) return activate_backward<T, gelu_tanh>(of, begin, end);
    activate_backward<T, silu>(of, begin, end);
  } else {
    const bool gated = of.up.data != nullptr;
    for (Index i = begin; i < end; ++i) {
      for (Index n = 0; n < of.F; ++n) {
        const T dy = of.dy(i, n);
        const ValueAndSlope<T> f(of.which, of.x(i, n), gated);
        const T through = gated ? T(dy * of.up(i, n)) : dy;
        const bool idle = dy == T(0);
        if (gated) of.d_up(i, n) = idle ? T(0) : T(dy * f.value);
        of.dx(i, n) = idle || f.slope == T(0) ? T(0) : T(through * f.slope);
      }
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/attention_head.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
Index head_products_scratch(Index L, Index S, Index d, Index dv) {
  const Index width = std::max<Index>(d, dv);
  return std::max<Index>({gemm_scratch<T>({L, S, width}), gemm_scratch<T>({L, width, S}),
                          gemm_scratch<T>({S, width, L})});
}
template <class T>
Index attention_forward_scratch(Index L, Index S, Index d, Index dv, bool dropout) {
  return head_products_scratch<T>(L, S, d, dv) + (dropout ? padded<T>(L * S) : 0);
}
template <class T>
Index attention_backward_scratch(Index L, Index S, Index d, Index dv, bool dropout) {
  return head_products_scratch<T>(L, S, d, dv) + padded<T>(L * S) * (dropout ? 2 : 1);
}

template <class T>
void drop_weights(const AttentionHead<T>& head, Matrix<const T> weights, T* dropped) {
  for (Index i = 0; i < head.L; ++i, dropped += head.S) {
    dropout_factors<T>(head.dropout, head.b, head.h, i, 0, head.S, dropped);
    for (Index j = 0; j < head.S; ++j) dropped[j] = dropped[j] * weights(i, j);
  }
}

template <class T>
void score_head(const AttentionHead<T>& head, Matrix<T> scores, T* scratch) {
  gemm<T>(head.q, head.k.transposed(), scores, {head.L, head.S, head.d}, {.alpha = head.scale},
          scratch);
  if (head.visibility.bias_count() == 0) return;
  for (Index i = 0; i < head.L; ++i) {
    for (Index j = 0; j < head.S; ++j) {
      if (head.visibility.visible(i, j)) scores(i, j) = scores(i, j) + head.visibility.bias(i, j);
    }
  }
}

template <class T>
void softmax_head_row(const AttentionHead<T>& head, Index i, Row<T> x) {
  if constexpr (simd::vectorised<T>) {
    softmax_of<T>(x, x, head.S, RowMask<T>(head.visibility, i));
  } else {
    softmax_row(x, head.S, [&](Index j) { return head.visibility.visible(i, j); });
  }
}

template <class T>
void softmax_head_row_backward(const AttentionHead<T>& head, Index i, Row<const T> p, T* dp) {
  Piece<T> factors;
  const Index S = head.S;
  for (Index j = 0; head.dropout.active() && j < S; j += Piece<T>::size) {
    const Index count = std::min<Index>(Piece<T>::size, S - j);
    dropout_factors<T>(head.dropout, head.b, head.h, i, j, count, factors.data);
    for (Index t = 0; t < count; ++t) {
      const T& factor = factors.data[t];
      dp[j + t] = factor == T(0) ? T(0) : T(dp[j + t] * factor);
    }
  }
  const Row<T> ds{dp, 1};
  if constexpr (simd::vectorised<T>) {
    softmax_backward_of<T>(ds, p, ds, S, head.scale, RowMask<T>(head.visibility, i));
  } else {
    softmax_backward_row<T>(ds, p, ds, S, [&](Index j) { return head.visibility.visible(i, j); });
    for (Index j = 0; j < S; ++j) dp[j] = head.scale * dp[j];
  }
}

template <class T>
void attention_head_forward(const AttentionHead<T>& head, Matrix<T> weights, Matrix<T> o,
                            Scratch<T> memory) {
  T* packed = memory.take(head_products_scratch<T>(head.L, head.S, head.d, head.dv));
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  score_head<T>(head, weights, packed);
  for (Index i = 0; i < head.L; ++i) softmax_head_row<T>(head, i, row(weights, i));
  Matrix<const T> p = weights;
  if (head.dropout.active()) {
    T* dropped = memory.take(head.L * head.S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, head.S, 1};
  }
  gemm_visible<T>(p, head.v, o, {head.L, head.dv, head.S}, {}, packed, head.visibility.sees_all(),
                  sees);
}

template <class T>
void attention_head_backward(const AttentionHead<T>& head, Matrix<const T> d_o,
                             Matrix<const T> weights, const HeadGradients<T>& to,
                             Scratch<T> memory) {
  const auto& [q, k, v, L, S, d, dv, scale, visibility, dropout, b, h] = head;
  T* packed = memory.take(head_products_scratch<T>(L, S, d, dv));
  const Matrix<T> ds{memory.take(L * S), S, 1};
  const bool all = visibility.sees_all();
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  const auto seen_by = [&](Index j, Index i) { return head.visibility.visible(i, j); };

  gemm<T>(d_o, v.transposed(), ds, {L, S, dv}, {}, packed);
  Matrix<const T> p = weights;
  if (dropout.active()) {
    T* dropped = memory.take(L * S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, S, 1};
  }
  gemm_visible<T>(p.transposed(), d_o, to.dv, {S, dv, L}, {.accumulate = to.accumulate}, packed,
                  all, seen_by);
  for (Index i = 0; i < L; ++i) {
    softmax_head_row_backward<T>(head, i, row(weights, i), ds.data + i * S);  // 4d to 4a
  }
  gemm_visible<T>(ds, k, to.dq, {L, d, S}, {}, packed, all, sees);
  gemm_visible<T>(Matrix<const T>(ds).transposed(), q, to.dk, {S, d, L},
                  {.accumulate = to.accumulate}, packed, all, seen_by);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/tile_mask.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

struct TileBlock {
  Index i0, rows, first, j0, begin, end;
};

template <class T, Index queries, Index keys, bool keys_in_rows>
class TileMask {
 public:
  using S = Simd<T>;
  using Int = typename S::Int;

  void fill(const HeadVisibility<T>& rules, TileBlock& block) {
    const auto in_block = [&](Index j) { return std::clamp(j - block.j0, Index{0}, block.end); };
    asked_ = rules.has_pair_masks();
    full_ = rules.sees_all(block.i0, block.rows, {block.j0, block.j0 + block.end});
    pairs_ = std::int64_t{block.rows} * block.end;
    if (full_) return;
    pairs_ = 0;
    for (Index r = 0; r < queries; ++r) {
      const KeyRange range = r < block.rows ? rules.range(block.i0 + r) : KeyRange{0, 0};
      begin_[r] = static_cast<Int>(in_block(range.begin));
      end_[r] = std::max<Int>(begin_[r], static_cast<Int>(in_block(range.end)));
      pairs_ += end_[r] - begin_[r];
      for (Index j = begin_[r]; asked_ && j < end_[r]; ++j) {
        bytes_[at(r, j)] = rules.pair_visible(block.i0 + r, block.j0 + j);
      }
    }
    block.begin = begin_[0];
    block.end = end_[block.rows - 1];
  }

  bool full() const { return full_; }
  std::int64_t pairs() const { return pairs_; }
  KeyRange range(Index r) const { return {begin_[r], end_[r]}; }
  bool visible(Index r, Index j) const {
    return full_ || (j >= begin_[r] && j < end_[r] && (!asked_ || bytes_[at(r, j)] != 0));
  }
  HEADWISE_INLINE typename S::IntVector to_queries(Index j, Index r) const {
    const auto key = S::broadcast_int(static_cast<Int>(j));
    const auto seen = S::within(key, S::load_ints(begin_ + r), S::load_ints(end_ + r));
    return asked_ ? S::both(seen, S::load_bytes(bytes_ + at(r, j))) : seen;
  }
  HEADWISE_INLINE typename S::IntVector of_keys(Index r, Index j) const {
    const auto key = S::lane_numbers() + S::broadcast_int(static_cast<Int>(j));
    const auto seen = S::within(key, S::broadcast_int(begin_[r]), S::broadcast_int(end_[r]));
    return asked_ ? S::both(seen, S::load_bytes(bytes_ + at(r, j))) : seen;
  }

 private:
  static constexpr Index at(Index r, Index j) {
    return keys_in_rows ? r * keys + j : j * queries + r;
  }

  bool full_ = false, asked_ = false;
  std::int64_t pairs_ = 0;
  Int begin_[static_cast<std::size_t>(queries)], end_[static_cast<std::size_t>(queries)];
  std::uint8_t bytes_[static_cast<std::size_t>(queries * keys)];
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/online_softmax.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct ForwardTile {
  static constexpr Index lanes = Tile<T>::columns;  // queries of a panel
  static constexpr Index queries = 512;             // most of a task: whole panels
  static constexpr Index keys = 128;                // of a block
};

template <class T>
using ForwardMask = TileMask<T, ForwardTile<T>::lanes, ForwardTile<T>::keys, false>;

template <class T>
struct OnlineSoftmax {
  static constexpr std::size_t queries = static_cast<std::size_t>(ForwardTile<T>::queries);
  using Int = typename Simd<T>::Int;

  T greatest[queries];
  T sum[queries];
  T factor[queries];  // what the context is multiplied by when a block of keys is added
  Int any[queries];   // whether a key was visible

  explicit OnlineSoftmax(Index rows) {
    using S = Simd<T>;
    for (Index r = 0; r < rows; r += S::width) {
      S::store(S::broadcast(std::numeric_limits<T>::lowest()), greatest + r);
      S::store(S::zero(), sum + r);
      S::store_ints(S::broadcast_int(0), any + r);
    }
  }
};

struct AllVisible {};

template <class T, class Visible>
void take_scores(T* s, const TileBlock& block, T unit, const Visible& visible, Index lane,
                 OnlineSoftmax<T>& softmax) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  using simd::HEADWISE_ISA::weight_of;
  constexpr bool all = std::same_as<Visible, AllVisible>;
  constexpr Index lanes = ForwardTile<T>::lanes;
  constexpr int chains = 8;
  s += lane;
  const Index at = block.first + lane;
  const Index begin = all ? 0 : block.begin / chains * chains, end = block.end;
  const Vector before = S::load(softmax.greatest + at), units = S::broadcast(unit);
  auto any = all ? S::broadcast_int(-1) : S::load_ints(softmax.any + at);

  Vector greatest[4] = {before, before, before, before};
  const auto compare = [&](Index j, Vector& so_far) HEADWISE_ALWAYS_INLINE {
    Vector x = S::load(s + j * lanes);
    if constexpr (!all) {
      const auto seen = visible.to_queries(j, lane);
      any = any | seen;
      x = S::select(seen, x, before);
    }
    so_far = S::greater(so_far, x);
  };
  Index j = begin;
  for (; j + 4 <= end; j += 4) {
    unrolled<4>([&](auto t) HEADWISE_ALWAYS_INLINE { compare(j + t, greatest[t]); });
  }
  for (; j < end; ++j) compare(j, greatest[0]);
  const Vector m =
      S::greater(S::greater(greatest[0], greatest[1]), S::greater(greatest[2], greatest[3]));

  Vector sums[std::size_t{chains}];
  unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE { sums[t] = S::zero(); });
  const auto weigh = [&](Index key, Vector& sum) HEADWISE_ALWAYS_INLINE {
    Vector x = S::load(s + key * lanes);
    if constexpr (!all) x = S::select(visible.to_queries(key, lane), x, m);  // nobody wrote it
    Vector p = weight_of<T>((x - m) * units);
    if constexpr (!all) p = S::select(visible.to_queries(key, lane), p, S::zero());
    S::store(p, s + key * lanes);
    sum = sum + p;
  };
  for (j = begin; j + chains <= end; j += chains) {
    unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE { weigh(j + t, sums[t]); });
  }
  unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE {
    if (j + t < end) weigh(j + t, sums[t]);
  });
  unrolled<4>([&](auto t) HEADWISE_ALWAYS_INLINE { sums[t] = sums[t] + sums[t + 4]; });
  const Vector total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  const Vector factor = weight_of<T>((before - m) * units);
  S::store(S::fma(S::load(softmax.sum + at), factor, total), softmax.sum + at);
  S::store(m, softmax.greatest + at);
  S::store(factor, softmax.factor + at);
  S::store_ints(any, softmax.any + at);
}

template <class T>
void store_logsumexp(bool any, T m, T sum, Matrix<T> lse, Index i) {
  using std::log;
  if (!any) {
    set_negative_infinity(lse(i, 0));
    lse(i, 1) = T(0);
    return;
  }
  const T log_sum = T(log(sum)), rounded = m + log_sum;
  const bool m_is_larger = (m < T(0) ? T(0) - m : m) > (log_sum < T(0) ? T(0) - log_sum : log_sum);
  lse(i, 0) = rounded;
  lse(i, 1) = m_is_larger ? log_sum - (rounded - m) : m - (rounded - log_sum);  // exact
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/dropout_panel.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

#if HEADWISE_ISA_BYTES >= 32
template <class T>
HEADWISE_INLINE void draw_queries(const AttentionHead<T>& head, Index i, Index j8,
                                  typename Simd<T>::BitVector (&words)[4]) {
  const auto draw = [&](Index first, PhiloxLanes(&c)[4]) HEADWISE_ALWAYS_INLINE {
    c[0] = in_all_lanes(j8);
    c[1] = counting_from(first);
    c[2] = in_all_lanes(head.h);
    c[3] = in_all_lanes(head.b);
    draw_blocks(c, head.dropout.key());
  };
  PhiloxLanes low[4];
  draw(i, low);
  if constexpr (sizeof(T) == 8) {
    unrolled<4>([&](auto w) HEADWISE_ALWAYS_INLINE { words[w] = low[w]; });
  } else {
    using Bits = typename Simd<T>::BitVector;
    PhiloxLanes high[4];
    draw(i + philox_lanes, high);
    [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
      unrolled<4>([&](auto w) HEADWISE_ALWAYS_INLINE {
        words[w] = __builtin_shufflevector(__builtin_bit_cast(Bits, low[w]),
                                           __builtin_bit_cast(Bits, high[w]), (2 * n)...);
      });
    }
    (std::make_integer_sequence<int, Simd<T>::width>());
  }
}
#endif

template <class T>
void drop_panel(const AttentionHead<T>& head, const TileBlock& block, T* s, T* factors) {
  constexpr Index lanes = ForwardTile<T>::lanes;
#if HEADWISE_ISA_BYTES >= 32
  if constexpr (draws_by_lanes<T>) {
    using S = Simd<T>;
    using Bits = typename S::BitVector;
    const auto limit = S::broadcast_int(static_cast<typename S::Int>(head.dropout.threshold()));
    const auto factor = S::broadcast(T(head.dropout.keep_factor()));
    const Index first = (block.j0 + block.begin) / 8 * 8 - block.j0;
    for (Index lane = 0; lane < block.rows; lane += S::width) {
      for (Index j = first; j < block.end; j += 8) {
        Bits words[4];
        draw_queries<T>(head, block.i0 + lane, (block.j0 + j) / 8, words);
        unrolled<8>([&](auto e) HEADWISE_ALWAYS_INLINE {
          if (j + e < block.begin || j + e >= block.end) return;
          const auto bits = (e % 2 == 0 ? words[e / 2] : words[e / 2] >> 16) & 0xFFFFu;
          const auto kept = __builtin_convertvector(bits, typename S::IntVector) >= limit;
          T* p = s + (j + e) * lanes + lane;
          S::store(S::load(p) * S::select(kept, factor, S::zero()), p);
        });
      }
    }
    return;
  }
#endif
  for (Index r = 0; r < block.rows; ++r) {
    head.dropout.row(head.b, head.h, block.i0 + r, block.j0 + block.begin, block.end - block.begin,
                     T(head.dropout.keep_factor()), factors);
    for (Index j = block.begin; j < block.end; ++j) {
      T& p = s[j * lanes + r];
      p = p * factors[j - block.begin];
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_forward.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct ForwardScratch {
  using Sizes = ForwardTile<T>;

  T* q;        // q^T in panels [d, lanes]
  T* s;        // [keys, lanes]
  T* k;        // [keys, d], dense
  T* v;        // [keys, dv], dense
  T* kept;     // v without what one query may not see
  T* context;  // [queries, dv], rows of whole vectors
  T* factors;  // [keys], dropout of a row

  constexpr ForwardScratch(Scratch<T>& memory, Index d, Index dv)
      : q(memory.take(packed_size<T>(d, Sizes::queries))),
        s(memory.take(Sizes::keys * Sizes::lanes)),
        k(memory.take(copied_size<T>(Sizes::keys, d))),
        v(memory.take(copied_size<T>(Sizes::keys, dv))),
        kept(memory.take(copied_size<T>(Sizes::keys, dv))),
        context(memory.take(Sizes::queries * round_up(dv, Tile<T>::width))),
        factors(memory.take(Sizes::keys)) {}
};

template <class T>
constexpr Index flash_forward_scratch(Index d, Index dv) {
  Scratch<T> count;
  ForwardScratch<T>(count, d, dv);
  return count.taken();
}

template <class T>
std::int64_t score_panel(const AttentionHead<T>& head, Matrix<const T> keys, const TileBlock& block,
                         const ForwardMask<T>& mask, T alpha, const ForwardScratch<T>& buffers) {
  constexpr Index lanes = ForwardTile<T>::lanes, width = Tile<T>::width;
  const T* q = buffers.q + block.first * head.d;
  const Index vectors = (block.rows + width - 1) / width;
  std::int64_t count = 0;
  for (Index j = block.begin, n = 0; j < block.end; j += n) {
    n = mask.full() ? block.end - block.begin : std::min<Index>(Tile<T>::rows, block.end - j);
    Index from = 0, to = vectors;
    while (!mask.full() && from < to &&
           mask.range(std::min<Index>(block.rows, (from + 1) * width) - 1).end <= j) {
      ++from;
    }
    while (!mask.full() && from < to && mask.range((to - 1) * width).begin >= j + n) --to;
    const auto k = keys.from(j, 0);
    run_panel<T>({k.data, k.row, k.column}, {q + from * width, 0, lanes}, n, to - from, head.d,
                 {buffers.s + j * lanes + from * width, lanes, Finish::assign, alpha});
    count += n * (to - from) * width * head.d;
  }
  if (head.visibility.bias_count() == 0) return count;
  for (Index r = 0; r < block.rows; ++r) {
    for (Index j = block.begin; j < block.end; ++j) {
      T& s = buffers.s[j * lanes + r];
      if (mask.visible(r, j)) s = s + head.visibility.bias(block.i0 + r, block.j0 + j);
    }
  }
  return count;
}

template <class T>
void weigh_panel(const AttentionHead<T>& head, const TileBlock& block, const ForwardMask<T>& mask,
                 T unit, const ForwardScratch<T>& buffers, OnlineSoftmax<T>& softmax) {
  for (Index lane = 0; lane < block.rows; lane += Tile<T>::width) {
    if (mask.full()) {
      take_scores<T>(buffers.s, block, unit, AllVisible{}, lane, softmax);
    } else {
      take_scores<T>(buffers.s, block, unit, mask, lane, softmax);
    }
  }
  if (head.dropout.active()) drop_panel<T>(head, block, buffers.s, buffers.factors);
}

template <class T>
std::int64_t add_values(const ForwardScratch<T>& buffers, const Operand<T>& v, Index dv,
                        const TileBlock& block, Index r, Index n, KeyRange range,
                        const OnlineSoftmax<T>& softmax) {
  constexpr Index lanes = ForwardTile<T>::lanes, width = Tile<T>::width;
  const Index row = round_up(dv, width), at = block.first + r;
  std::int64_t count = 0;
  for (Index c = 0; c < dv; c += Tile<T>::columns) {
    const Index vectors = (std::min<Index>(Tile<T>::columns, dv - c) + width - 1) / width;
    run_panel<T>(
        {buffers.s + range.begin * lanes + r, 1, lanes}, v.walk(c, range.begin), n, vectors,
        range.size(),
        {buffers.context + at * row + c, row, Finish::rescale, T(1), nullptr, softmax.factor + at});
    count += n * vectors * width * range.size();
  }
  return count;
}

template <class T>
std::int64_t add_visible_values(const AttentionHead<T>& head, const ForwardScratch<T>& buffers,
                                const Operand<T>& v, const TileBlock& block,
                                const ForwardMask<T>& mask, const OnlineSoftmax<T>& softmax) {
  if (mask.full()) {
    return add_values<T>(buffers, v, head.dv, block, 0, block.rows, {block.begin, block.end},
                         softmax);
  }
  std::int64_t count = 0;
  const Index together = v.finite ? Tile<T>::rows : 1;
  for (Index r = 0; r < block.rows; r += together) {
    const Index n = std::min<Index>(together, block.rows - r);
    const KeyRange range{mask.range(r).begin, mask.range(r + n - 1).end};
    if (range.begin >= range.end) continue;
    Operand<T> seen = v;
    if (!v.finite) {
      seen = copy_kept_rows<T>({v.data, v.step, 1}, range.end, head.dv, buffers.kept,
                               [&](Index j) { return mask.visible(r, j); });
    }
    count += add_values<T>(buffers, seen, head.dv, block, r, n, range, softmax);
  }
  return count;
}

template <class T>
struct KeyBlock {
  Matrix<const T> k;
  Operand<T> v;
};

template <class T>
KeyBlock<T> key_block(const AttentionHead<T>& head, Index j0, Index n, bool few, bool all_seen,
                      const ForwardScratch<T>& buffers) {
  const auto k = head.k.from(j0, 0), v = head.v.from(j0, 0);
  const auto stays = [&](Matrix<const T> x, Index N) {
    return x.column == 1 && N % Tile<T>::width == 0 && (few || x.row == N);
  };
  KeyBlock<T> block{k, {v.data, v.row, 1, true}};
  if (!few && !stays(k, head.d)) {
    const auto copy = copy_rows<T>(k, n, head.d, true, buffers.k);
    block.k = {copy.data, copy.step, 1};
  }
  if (!stays(v, head.dv)) {
    block.v = copy_rows<T>(v, n, head.dv, all_seen, buffers.v);
  } else {
    block.v.finite = all_seen || all_finite<T>(v, n, head.dv);
  }
  return block;
}

template <class T>
void divide_row(const T* from, T divisor, Index N, Matrix<T> to) {
  using S = Simd<T>;
  const auto by = S::broadcast(divisor);
  Index n = 0;
  for (; to.column == 1 && n + S::width <= N; n += S::width) {
    S::store(S::load(from + n) / by, to.data + n);
  }
  for (; n < N; ++n) to(0, n) = from[n] / divisor;
}

template <class T>
TileWork flash_forward(const AttentionHead<T>& head, Index i0, Index rows, Matrix<T> o,
                       Matrix<T> lse, Scratch<T> memory) {
  constexpr Index lanes = ForwardTile<T>::lanes, keys = ForwardTile<T>::keys;
  const ForwardScratch<T> buffers(memory, head.d, head.dv);
  const Index context_row = round_up(head.dv, Tile<T>::width);
  OnlineSoftmax<T> softmax(rows);
  ForwardMask<T> mask;
  TileWork work;
  pack<T>(head.q.from(i0, 0).transposed(), head.d, rows, buffers.q);
  set_zero<T>(buffers.context, rows * context_row);
  const bool folded = head.visibility.bias_count() == 0 && is_power_of_two(head.scale);
  const T alpha = folded ? T(1) : head.scale;
  const T unit = simd::HEADWISE_ISA::weight_unit<T>() * (folded ? head.scale : T(1));

  const KeyRange range = head.visibility.range(i0, rows);
  for (Index j0 = range.begin / keys * keys; j0 < range.end; j0 += keys) {
    const Index n = std::min<Index>(keys, range.end - j0);
    const bool all_seen = head.visibility.sees_all(i0, rows, {j0, j0 + n});
    const auto keys_here = key_block<T>(head, j0, n, rows <= 2 * lanes, all_seen, buffers);
    for (Index first = 0; first < rows; first += lanes) {
      TileBlock block{i0 + first, std::min<Index>(lanes, rows - first), first, j0, 0, n};
      mask.fill(head.visibility, block);
      if (block.begin >= block.end) continue;
      std::int64_t products = score_panel<T>(head, keys_here.k, block, mask, alpha, buffers);
      weigh_panel<T>(head, block, mask, unit, buffers, softmax);
      products += add_visible_values<T>(head, buffers, keys_here.v, block, mask, softmax);
      work.pairs += mask.pairs();
      work.executed_flops += 2 * products + (5 + score_extras(head, 1)) *
                                                round_up(block.rows, Tile<T>::width) *
                                                (block.end - block.begin);
    }
  }
  for (Index r = 0; r < rows; ++r) {
    const bool any = softmax.any[r] != 0;
    if (!any) softmax.sum[r] = T(1);
    divide_row<T>(buffers.context + r * context_row, softmax.sum[r], head.dv, o.from(i0 + r, 0));
    const T greatest = folded ? softmax.greatest[r] * head.scale : softmax.greatest[r];
    if (lse.data != nullptr) store_logsumexp<T>(any, greatest, softmax.sum[r], lse, i0 + r);
  }
  return work;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_backward_rows.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct BackwardTile {
  static constexpr Index queries = 128;
  static constexpr Index keys = 256;   // whole panels
  static constexpr Index drawn = 128;  // keys whose dropout is drawn at once: whole panels
  static constexpr Index row = keys + std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
};

template <class T>
using BackwardMask = TileMask<T, BackwardTile<T>::queries, BackwardTile<T>::keys, true>;

template <class T>
struct BackwardScratch {
  static constexpr Index queries = BackwardTile<T>::queries, keys = BackwardTile<T>::keys;
  static_assert(queries <= keys, "rows of q are kept where rows of k fit");

  T* p;        // [queries, row]
  T* ds;       // [queries, row]
  T* factors;  // [rows, keys], dropout of six queries
  T* k_t;      // k^T in panels [d, columns]
  T* v_t;      // v^T in panels [dv, columns]
  T* k;        // [keys, d], dense
  T* q;        // [queries, d], dense
  T* d_o;      // [queries, dv], dense
  T* kept;     // one of these without what one row may not see
  T* dk;       // [keys, d], rows of whole vectors
  T* dv;       // [keys, dv], likewise

  constexpr BackwardScratch(Scratch<T>& memory, Index d, Index width_v)
      : p(memory.take(queries * BackwardTile<T>::row)),
        ds(memory.take(queries * BackwardTile<T>::row)),
        factors(memory.take(Tile<T>::rows * keys)),
        k_t(memory.take(packed_size<T>(d, keys))),
        v_t(memory.take(packed_size<T>(width_v, keys))),
        k(memory.take(copied_size<T>(keys, d))),
        q(memory.take(copied_size<T>(queries, d))),
        d_o(memory.take(copied_size<T>(queries, width_v))),
        kept(memory.take(
            std::max<Index>(copied_size<T>(keys, d), copied_size<T>(queries, width_v)))),
        dk(memory.take(copied_size<T>(keys, d))),
        dv(memory.take(copied_size<T>(keys, width_v))) {}

  Matrix<T> sums_of_k(Index d) const { return {dk, round_up(d, Tile<T>::width), 1}; }
  Matrix<T> sums_of_v(Index width_v) const { return {dv, round_up(width_v, Tile<T>::width), 1}; }
};

template <class T>
constexpr Index flash_backward_scratch(Index d, Index dv) {
  Scratch<T> count;
  BackwardScratch<T>(count, d, dv);
  return count.taken();
}

template <class T>
void row_deltas(const FlashHead<T>& head, Index i0, Index rows, T* delta) {
  using S = Simd<T>;
  constexpr Index width = S::width;
  const Index dv = head.forward.dv;
  const bool dense = head.d_o.column == 1 && head.o.column == 1;
  T left[std::size_t{S::width * S::width}], right[std::size_t{S::width * S::width}];
  for (Index r = 0; r < rows; r += width) {
    const Index count = std::min<Index>(width, rows - r);
    const auto d_o = head.d_o.from(i0 + r, 0), o = head.o.from(i0 + r, 0);
    auto sums = S::zero();
    Index n = 0;
    for (; dense && count == width && n + width <= dv; n += width) {
      transpose_square<T>(d_o.data + n, d_o.row, left, width);
      transpose_square<T>(o.data + n, o.row, right, width);
      for (Index t = 0; t < width; ++t) {
        sums = S::fma(S::load(left + t * width), S::load(right + t * width), sums);
      }
    }
    S::store(sums, left);
    for (; n < dv; ++n) {
      for (Index lane = 0; lane < count; ++lane) {
        left[lane] = simd::HEADWISE_ISA::multiply_add<T>(d_o(lane, n), o(lane, n), left[lane]);
      }
    }
    for (Index lane = 0; lane < count; ++lane) delta[r + lane] = left[lane];
  }
}

template <class T>
void backward_row(const FlashHead<T>& head, const TileBlock& block, Index r, KeyRange panel,
                  T scale, const T* factors, const BackwardScratch<T>& buffers,
                  const BackwardMask<T>& mask) {
  using S = Simd<T>;
  using simd::HEADWISE_ISA::weight_of;
  const Index i = block.i0 + r;
  T* p = buffers.p + r * BackwardTile<T>::row;
  T* ds = buffers.ds + r * BackwardTile<T>::row;
  const bool full = mask.full();
  KeyRange range = panel;
  if (!full) {
    const KeyRange seen = mask.range(r);
    range.begin = std::clamp<Index>(seen.begin / S::width * S::width, panel.begin, panel.end);
    range.end = std::clamp<Index>(round_up(seen.end, S::width), range.begin, panel.end);
    if (seen.size() == 0) range.end = range.begin;
    set_zero<T>(p + panel.begin, range.begin - panel.begin);
    set_zero<T>(ds + panel.begin, range.begin - panel.begin);
    set_zero<T>(p + range.end, panel.end - range.end);
    set_zero<T>(ds + range.end, panel.end - range.end);
  }
  const auto factor_of_s = S::broadcast(scale), minus_lse = S::broadcast(T(0) - head.lse(i, 0));
  const auto rest = S::broadcast(head.lse(i, 1));
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  const auto delta = S::broadcast(head.delta[i]);
  for (Index j = range.begin; j < range.end; j += S::width) {
    const auto below = S::fma(S::load(p + j), factor_of_s, minus_lse) - rest;
    auto weight = weight_of<T>(below * unit);  // 4c
    auto dp = S::load(ds + j);
    auto kept = weight;
    if (factors != nullptr) {  // 4d
      const auto factor = S::load(factors + j);
      const auto dropped = factor == S::zero();
      dp = S::select(dropped, S::zero(), dp * factor);
      kept = weight * factor;
    }
    auto flow = weight * (dp - delta);  // 4c
    if (!full) {                        // 4b
      const auto seen = mask.of_keys(r, j);
      kept = S::select(seen, kept, S::zero());
      flow = S::select(seen, flow, S::zero());
    }
    S::store(kept, p + j);
    S::store(flow, ds + j);
  }
}

template <class T>
std::int64_t backward_panel(const FlashHead<T>& head, const TileBlock& block, Index r, Index n,
                            Index c, const Operand<T>& q, const Operand<T>& d_o, const T* factors,
                            const BackwardScratch<T>& buffers, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row, columns = Tile<T>::columns, width = Tile<T>::width;
  const Index d = head.forward.d, dv = head.forward.dv;
  const T scale = head.forward.scale;
  const HeadVisibility<T>& rules = head.forward.visibility;
  const KeyRange panel{c, std::min<Index>(c + columns, round_up(block.end, width))};
  KeyRange range = panel;
  if (!mask.full()) {
    range.begin = std::max<Index>(c, mask.range(r).begin);
    range.end = std::min<Index>(panel.end, mask.range(r + n - 1).end);
  }
  const bool folded = rules.bias_count() == 0 && is_power_of_two(scale);
  std::int64_t count = 0;
  if (range.begin < range.end) {
    const Index from = (range.begin - c) / width, to = (range.end - c + width - 1) / width;
    const Index at = c + from * width;
    run_panel<T>({q.data + r * q.step, q.step, 1}, {buffers.k_t + c * d + from * width, 0, columns},
                 n, to - from, d,
                 {buffers.p + r * row + at, row, Finish::assign, folded ? T(1) : scale});
    run_panel<T>({d_o.data + r * d_o.step, d_o.step, 1},
                 {buffers.v_t + c * dv + from * width, 0, columns}, n, to - from, dv,
                 {buffers.ds + r * row + at, row});
    count = n * (to - from) * width * (d + dv);
  }
  for (Index at = r; at < r + n; ++at) {
    for (Index j = range.begin;
         rules.bias_count() != 0 && j < std::min<Index>(range.end, block.end); ++j) {
      T& s = buffers.p[at * row + j];
      if (mask.visible(at, j)) s = s + rules.bias(block.i0 + at, block.j0 + j);
    }
    backward_row<T>(head, block, at, panel, folded ? scale : T(1), factors, buffers, mask);
    if (factors != nullptr) factors += BackwardTile<T>::keys;
  }
  return count;
}

template <class T>
void prefetch_next_tile(const FlashHead<T>& head, const TileBlock& block, Index r, Index n) {
  const Index next = block.i0 + BackwardTile<T>::queries + r;
  const Index ahead = std::min<Index>(n, head.forward.L - next);
  if (ahead <= 0) return;
  prefetch_rows<T>(head.forward.q.from(next, 0), ahead, head.forward.d);
  prefetch_rows<T>(head.d_o.from(next, 0), ahead, head.forward.dv);
  prefetch_rows<T>(head.dq.from(next, 0), ahead, head.forward.d);
}

template <class T>
std::int64_t backward_scores(const FlashHead<T>& head, const TileBlock& block, const Operand<T>& q,
                             const Operand<T>& d_o, const BackwardScratch<T>& buffers,
                             const BackwardMask<T>& mask) {
  constexpr Index columns = Tile<T>::columns, drawn = BackwardTile<T>::drawn;
  const AttentionHead<T>& forward = head.forward;
  const bool drops = forward.dropout.active();
  const Index together = drops ? drawn : columns;
  std::int64_t count = 0;
  for (Index c0 = 0; c0 < block.end; c0 += together) {
    const Index keys = std::min<Index>(together, round_up(block.end - c0, Tile<T>::width));
    for (Index r = 0; r < block.rows; r += Tile<T>::rows) {
      const Index n = std::min<Index>(Tile<T>::rows, block.rows - r);
      if (c0 == 0) prefetch_next_tile<T>(head, block, r, n);
      for (Index m = 0; drops && m < n; ++m) {
        dropout_factors<T>(forward.dropout, forward.b, forward.h, block.i0 + r + m, block.j0 + c0,
                           keys, buffers.factors + m * BackwardTile<T>::keys + c0);
      }
      for (Index c = c0; c < std::min<Index>(c0 + together, block.end); c += columns) {
        count += backward_panel<T>(head, block, r, n, c, q, d_o, drops ? buffers.factors : nullptr,
                                   buffers, mask);
      }
    }
  }
  return count;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_backward.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
std::int64_t add_by_key(const T* a, const Operand<T>& b, Index N, Matrix<T> c,
                        const TileBlock& block, T* kept, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row;
  const Epilogue<T> add{.accumulate = true};
  if (mask.full()) return multiply<T>({a, 1, row}, b, c, {block.end, N, block.rows}, add);
  const Index together = b.finite ? Tile<T>::rows : 1;
  std::int64_t count = 0;
  Index low = 0, high = 0;  // queries that see these keys; both grow with the key
  for (Index j = 0; j < block.end; j += together) {
    const Index n = std::min<Index>(together, block.end - j);
    while (low < block.rows && mask.range(low).end <= j) ++low;
    while (high < block.rows && mask.range(high).begin < j + n) ++high;
    if (low >= high) continue;
    Operand<T> seen = b;
    if (!b.finite) {
      seen = copy_kept_rows<T>({b.data, b.step, 1}, block.rows, N, kept,
                               [&](Index r) { return mask.visible(r, j); });
    }
    seen.data += low * seen.step;
    count += multiply<T>({a + low * row + j, 1, row}, seen, c.from(j, 0), {n, N, high - low}, add);
  }
  return count;
}

template <class T>
std::int64_t add_by_query(const FlashHead<T>& head, const Operand<T>& k, const TileBlock& block,
                          const BackwardScratch<T>& buffers, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row;
  const Index d = head.forward.d;
  const Epilogue<T> add{.alpha = head.forward.scale, .accumulate = true};
  const auto dq = head.dq.from(block.i0, 0);
  if (mask.full()) {
    return multiply<T>({buffers.ds, row, 1}, k, dq, {block.rows, d, block.end}, add);
  }
  const Index together = k.finite ? Tile<T>::rows : 1;
  std::int64_t count = 0;
  for (Index r = 0; r < block.rows; r += together) {
    const Index n = std::min<Index>(together, block.rows - r);
    const KeyRange range{mask.range(r).begin, mask.range(r + n - 1).end};
    if (range.begin >= range.end) continue;
    Operand<T> seen = k;
    if (!k.finite) {
      seen = copy_kept_rows<T>({k.data, k.step, 1}, block.end, d, buffers.kept,
                               [&](Index j) { return mask.visible(r, j); });
    }
    seen.data += range.begin * seen.step;
    count += multiply<T>({buffers.ds + r * row + range.begin, row, 1}, seen, dq.from(r, 0),
                         {n, d, range.size()}, add);
  }
  return count;
}

template <class T>
void flash_backward_begin(const AttentionHead<T>& head, Index j0, Index n, Scratch<T> memory) {
  const BackwardScratch<T> buffers(memory, head.d, head.dv);
  copy_rows<T>(head.k.from(j0, 0), n, head.d, true, buffers.k);
  pack<T>(head.k.from(j0, 0).transposed(), head.d, n, buffers.k_t);
  pack<T>(head.v.from(j0, 0).transposed(), head.dv, n, buffers.v_t);
  set_zero<T>(buffers.dk, copied_size<T>(n, head.d));
  set_zero<T>(buffers.dv, copied_size<T>(n, head.dv));
}

template <class T>
TileWork flash_backward_tile(const FlashHead<T>& head, Index i0, Index rows, Index j0, Index n,
                             Scratch<T> memory) {
  const Index d = head.forward.d, dv = head.forward.dv;
  const BackwardScratch<T> buffers(memory, d, dv);
  BackwardMask<T> mask;
  TileBlock block{i0, rows, 0, j0, 0, n};
  mask.fill(head.forward.visibility, block);
  block.end = n;  // what lies behind the last key that is seen is set to 0, not cut off
  const bool all = mask.full();
  const auto q = copy_rows<T>(head.forward.q.from(i0, 0), rows, d, all, buffers.q);
  const auto d_o = copy_rows<T>(head.d_o.from(i0, 0), rows, dv, all, buffers.d_o);
  Operand<T> k{buffers.k, round_up(d, Tile<T>::width), 1, true};
  k.finite = all || all_finite<T>({k.data, k.step, 1}, n, d);

  std::int64_t products = backward_scores<T>(head, block, q, d_o, buffers, mask);
  products += add_by_key<T>(buffers.p, d_o, dv, buffers.sums_of_v(dv), block, buffers.kept, mask);
  products += add_by_key<T>(buffers.ds, q, d, buffers.sums_of_k(d), block, buffers.kept, mask);
  products += add_by_query<T>(head, k, block, buffers, mask);
  return {mask.pairs(),
          2 * products + (7 + score_extras(head.forward, 2)) * rows * round_up(n, Tile<T>::width)};
}

template <class T>
void write_scaled(Matrix<const T> from, T scale, Index rows, Index N, Matrix<T> to) {
  using S = Simd<T>;
  const auto factor = S::broadcast(scale);
  for (Index r = 0; r < rows; ++r) {
    const T* in = from.data + r * from.row;
    Index n = 0;
    for (; to.column == 1 && n + S::width <= N; n += S::width) {
      S::store(factor * S::load(in + n), &to(r, n));
    }
    for (; n < N; ++n) to(r, n) = scale * in[n];
  }
}

template <class T>
void flash_backward_end(const AttentionHead<T>& head, Index j0, Index n, Matrix<T> dk, Matrix<T> dv,
                        Scratch<T> memory) {
  const BackwardScratch<T> buffers(memory, head.d, head.dv);
  write_scaled<T>(buffers.sums_of_k(head.d), head.scale, n, head.d, dk.from(j0, 0));
  write_scaled<T>(buffers.sums_of_v(head.dv), T(1), n, head.dv, dv.from(j0, 0));
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/table.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

template <Scalar T>
inline constexpr Kernels<T> table = {
    .instruction_set = InstructionSet::HEADWISE_ISA,
    .lanes = Simd<T>::width,
    .forward_queries = ForwardTile<T>::queries,
    .forward_keys = ForwardTile<T>::keys,
    .backward_queries = BackwardTile<T>::queries,
    .backward_keys = BackwardTile<T>::keys,
    .columns = Tile<T>::columns,
    .all_finite = &all_finite<T>,
    .gemm_scratch = &gemm_scratch<T>,
    .gemm = &gemm<T>,
    .executed_gemm_flops = &executed_gemm_flops<T>,
    .add_rows = &add_rows<T>,
    .layer_norm_rows = &layer_norm_rows<T>,
    .layer_norm_backward_rows = &layer_norm_backward_rows<T>,
    .layer_norm_columns = &layer_norm_columns<T>,
    .softmax_rows = &softmax_rows<T>,
    .softmax_backward_rows = &softmax_backward_rows<T>,
    .drop_rows = &drop_rows<T>,
    .attention_forward_scratch = &attention_forward_scratch<T>,
    .attention_backward_scratch = &attention_backward_scratch<T>,
    .score_head = &score_head<T>,
    .attention_head_forward = &attention_head_forward<T>,
    .attention_head_backward = &attention_head_backward<T>,
    .flash_forward_scratch = &flash_forward_scratch<T>,
    .flash_backward_scratch = &flash_backward_scratch<T>,
    .flash_forward = &flash_forward<T>,
    .row_deltas = &row_deltas<T>,
    .flash_backward_begin = &flash_backward_begin<T>,
    .flash_backward_tile = &flash_backward_tile<T>,
    .flash_backward_end = &flash_backward_end<T>,
    .weights_of = &simd::HEADWISE_ISA::weights_of<T>,
};

template <Scalar T>
inline constexpr ModelKernels<T> model_table = {
    .combine_rows = &combine_rows<T>,
    .combine_columns = &combine_columns<T>,
    .activation_rows = &activation_rows<T>,
    .activation_backward_rows = &activation_backward_rows<T>,
    .rms_norm_rows = &rms_norm_rows<T>,
    .rms_norm_backward_rows = &rms_norm_backward_rows<T>,
    .rms_norm_columns = &rms_norm_columns<T>,
    .add_row = &add_row<T>,
    .cross_entropy_rows = &cross_entropy_rows<T>,
    .cross_entropy_backward_rows = &cross_entropy_backward_rows<T>,
    .rotate_rows = &rotate_rows<T>,
    .adamw = &adamw<T>,
    .sgd = &sgd<T>,
    .scale_elements = &scale_elements<T>,
    .sum_of_squares = &sum_of_squares<T>,
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
HEADWISE_REGION_END

HEADWISE_REGION(HEADWISE_AVX512)
#define HEADWISE_ISA avx512
#define HEADWISE_ISA_BYTES 64

// headwise/kernels/isa.inc
// headwise/simd/vector.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
struct Simd {
  using Vector = T;
  using Int = std::int64_t;
  using IntVector = Int;
  static constexpr int width = 1;

  HEADWISE_INLINE static Vector zero() { return T(0); }
  HEADWISE_INLINE static Vector broadcast(const T& x) { return x; }
  HEADWISE_INLINE static IntVector broadcast_int(Int x) { return x; }
  HEADWISE_INLINE static IntVector lane_numbers() { return 0; }
  HEADWISE_INLINE static Vector load(const T* from) { return *from; }
  HEADWISE_INLINE static void store(const Vector& x, T* to) { *to = x; }
  HEADWISE_INLINE static IntVector load_bytes(const std::uint8_t* from) { return *from; }
  HEADWISE_INLINE static IntVector load_ints(const Int* from) { return *from; }
  HEADWISE_INLINE static void store_ints(IntVector x, Int* to) { *to = x; }
  HEADWISE_INLINE static Vector fma(const Vector& a, const Vector& b, const Vector& c) {
    return a * b + c;
  }
  HEADWISE_INLINE static Vector greater(const Vector& a, const Vector& b) { return a < b ? b : a; }
  HEADWISE_INLINE static IntVector within(Int x, Int begin, Int end) {
    return x >= begin && x < end;
  }
  HEADWISE_INLINE static IntVector both(IntVector a, IntVector b) { return a != 0 && b != 0; }
  HEADWISE_INLINE static Vector select(IntVector condition, const Vector& yes, const Vector& no) {
    return condition != 0 ? yes : no;
  }
};

template <Scalar T>
requires vectorised<T>
struct Simd<T> {
  static constexpr int width = HEADWISE_ISA_BYTES / static_cast<int>(sizeof(T));
  typedef T Vector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  using Int = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef Int IntVector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  using Bits = std::make_unsigned_t<Int>;
  typedef Bits BitVector __attribute__((vector_size(HEADWISE_ISA_BYTES)));
  typedef std::uint8_t ByteVector __attribute__((vector_size(HEADWISE_ISA_BYTES / sizeof(T))));

  HEADWISE_INLINE static Vector zero() { return Vector{}; }
  HEADWISE_INLINE static Vector broadcast(T x) { return x - Vector{}; }  // folds to one shuffle
  HEADWISE_INLINE static IntVector broadcast_int(Int x) { return x - IntVector{}; }
  HEADWISE_INLINE static IntVector lane_numbers() {
    Int numbers[std::size_t{width}];
    for (int i = 0; i < width; ++i) numbers[i] = i;
    return load_ints(numbers);
  }
  HEADWISE_INLINE static Vector load(const T* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store(Vector x, T* to) { std::memcpy(to, &x, sizeof x); }
  HEADWISE_INLINE static IntVector load_ints(const Int* from) {
    IntVector x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  HEADWISE_INLINE static void store_ints(IntVector x, Int* to) { std::memcpy(to, &x, sizeof x); }
  HEADWISE_INLINE static IntVector load_bytes(const std::uint8_t* from) {
    ByteVector x;
    std::memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, IntVector);
  }
  HEADWISE_INLINE static Vector fma(Vector a, Vector b, Vector c) {
#if HEADWISE_ISA_BYTES == 64
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(
          Vector, _mm512_fmadd_ps(__builtin_bit_cast(__m512, a), __builtin_bit_cast(__m512, b),
                                  __builtin_bit_cast(__m512, c)));
    } else {
      return __builtin_bit_cast(
          Vector, _mm512_fmadd_pd(__builtin_bit_cast(__m512d, a), __builtin_bit_cast(__m512d, b),
                                  __builtin_bit_cast(__m512d, c)));
    }
#elif HEADWISE_ISA_BYTES == 32
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(
          Vector, _mm256_fmadd_ps(__builtin_bit_cast(__m256, a), __builtin_bit_cast(__m256, b),
                                  __builtin_bit_cast(__m256, c)));
    } else {
      return __builtin_bit_cast(
          Vector, _mm256_fmadd_pd(__builtin_bit_cast(__m256d, a), __builtin_bit_cast(__m256d, b),
                                  __builtin_bit_cast(__m256d, c)));
    }
#else
    return a * b + c;
#endif
  }
  HEADWISE_INLINE static Vector greater(Vector a, Vector b) {
#if HEADWISE_ISA_BYTES == 64
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(Vector, _mm512_maskz_max_ps(0xFFFF, __builtin_bit_cast(__m512, b),
                                                            __builtin_bit_cast(__m512, a)));
    } else {
      return __builtin_bit_cast(Vector, _mm512_maskz_max_pd(0xFF, __builtin_bit_cast(__m512d, b),
                                                            __builtin_bit_cast(__m512d, a)));
    }
#else
    return a < b ? b : a;
#endif
  }
  HEADWISE_INLINE static IntVector within(IntVector x, IntVector begin, IntVector end) {
    return (x >= begin) & (x < end);
  }
  HEADWISE_INLINE static IntVector both(IntVector a, IntVector b) { return (a != 0) & (b != 0); }
  HEADWISE_INLINE static Vector select(IntVector condition, Vector yes, Vector no) {
    return condition != 0 ? yes : no;
  }
};

template <Scalar T>
HEADWISE_INLINE T multiply_add(const T& a, const T& b, const T& c) {
  if constexpr (HEADWISE_ISA_BYTES >= 32 && std::same_as<T, float>) {
    return __builtin_fmaf(a, b, c);
  } else if constexpr (HEADWISE_ISA_BYTES >= 32 && std::same_as<T, double>) {
    return __builtin_fma(a, b, c);
  } else {
    return a * b + c;
  }
}

template <int count, class F>
HEADWISE_INLINE void unrolled(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) HEADWISE_ALWAYS_INLINE {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, count>());
}

template <Scalar T>
HEADWISE_INLINE T sum_lanes(typename Simd<T>::Vector x) {
  using S = Simd<T>;
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  for (int half = S::width / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/simd/exp.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T, std::size_t count>
HEADWISE_INLINE typename Simd<T>::Vector polynomial(const T (&coefficients)[count],
                                                    typename Simd<T>::Vector x) {
  using S = Simd<T>;
  auto sum = S::broadcast(coefficients[count - 1]);
  unrolled<static_cast<int>(count) - 1>([&](auto n) HEADWISE_ALWAYS_INLINE {
    sum = S::fma(sum, x, S::broadcast(coefficients[count - 2 - std::size_t{n}]));
  });
  return sum;
}

template <Scalar T>
T weight_unit() {
  if constexpr (vectorised<T>) return std::numbers::log2e_v<T>;
  return T(1);
}

template <Scalar T>
HEADWISE_INLINE typename Simd<T>::Vector weight_of(const typename Simd<T>::Vector& x) {
  if constexpr (!vectorised<T>) {
    using std::exp;
    return exp(x);
  } else {
    using S = Simd<T>;
    using C = Exp2Constants<T>;
#if HEADWISE_ISA_BYTES == 64
    using Vector = typename S::Vector;
    if constexpr (sizeof(T) == 4) {
      const auto f = __builtin_bit_cast(
          Vector, _mm512_maskz_reduce_ps(0xFFFF, __builtin_bit_cast(__m512, x), 0));
      return __builtin_bit_cast(
          Vector,
          _mm512_maskz_scalef_ps(0xFFFF, __builtin_bit_cast(__m512, polynomial<T>(C::terms, f)),
                                 __builtin_bit_cast(__m512, x - f)));
    } else {
      const auto f = __builtin_bit_cast(
          Vector, _mm512_maskz_reduce_pd(0xFF, __builtin_bit_cast(__m512d, x), 0));
      return __builtin_bit_cast(
          Vector,
          _mm512_maskz_scalef_pd(0xFF, __builtin_bit_cast(__m512d, polynomial<T>(C::terms, f)),
                                 __builtin_bit_cast(__m512d, x - f)));
    }
#else
    using Vector = typename S::Vector;
    using BitVector = typename S::BitVector;
    const Vector shifted = x + C::shift;
    const Vector f = x - (shifted - C::shift);
    const Vector scale =
        __builtin_bit_cast(Vector, __builtin_bit_cast(BitVector, shifted) << C::mantissa_bits);
    return S::select(x < C::lowest, S::zero(), polynomial<T>(C::terms, f) * scale);
#endif
  }
}

template <Scalar T>
void weights_of(const T* x, Index count, T* y) {
  using S = Simd<T>;
  T part[std::size_t{S::width}] = {};
  Index n = 0;
  for (; n + S::width <= count; n += S::width) S::store(weight_of<T>(S::load(x + n)), y + n);
  for (Index lane = 0; n + lane < count; ++lane) part[lane] = x[n + lane];
  S::store(weight_of<T>(S::load(part)), part);
  for (Index lane = 0; n + lane < count; ++lane) y[n + lane] = part[lane];
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/simd/tails.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector leading(
    const typename Simd<T>::Vector& x) {
  using S = Simd<T>;
  using Bits = typename S::Bits;
  constexpr Bits mask = static_cast<Bits>(~Bits{0}) << Exp2Constants<T>::low_bits;
  return __builtin_bit_cast(typename S::Vector,
                            __builtin_bit_cast(typename S::BitVector, x) & mask);
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector below_zero(
    const typename Simd<T>::Vector& x, T bound) {
  using S = Simd<T>;
  using Bits = typename S::Bits;
  constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
  const auto below =
      __builtin_bit_cast(typename S::Vector, __builtin_bit_cast(typename S::BitVector, x) | sign);
  return S::greater(below, S::broadcast(-bound));
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector power_of_e(
    const typename Simd<T>::Vector& high, const typename Simd<T>::Vector& low) {
  using S = Simd<T>;
  using C = Exp2Constants<T>;
  using Vector = typename S::Vector;
  const Vector whole = high * C::log2e_high;
  const Vector part = S::fma(low, S::broadcast(std::numbers::log2e_v<T>), high * C::log2e_low);
  const Vector shifted = (whole + part) + C::shift;
  const Vector n = shifted - C::shift;
  const Vector f = (whole - n) + part;
#if HEADWISE_ISA_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(
        Vector,
        _mm512_maskz_scalef_ps(0xFFFF, __builtin_bit_cast(__m512, polynomial<T>(C::terms, f)),
                               __builtin_bit_cast(__m512, n)));
  } else {
    return __builtin_bit_cast(
        Vector,
        _mm512_maskz_scalef_pd(0xFF, __builtin_bit_cast(__m512d, polynomial<T>(C::terms, f)),
                               __builtin_bit_cast(__m512d, n)));
  }
#else
  using BitVector = typename S::BitVector;
  const Vector scale =
      __builtin_bit_cast(Vector, __builtin_bit_cast(BitVector, shifted) << C::mantissa_bits);
  return S::select(n < C::lowest, S::zero(), polynomial<T>(C::terms, f) * scale);
#endif
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector power_of_e(
    const typename Simd<T>::Vector& x) {
  const auto high = leading<T>(x);
  return power_of_e<T>(high, x - high);
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector normal_power(
    const typename Simd<T>::Vector& x) {
  const auto high = leading<T>(x);
  return power_of_e<T>(T(-0.5) * (high * high), T(-0.5) * ((x - high) * (x + high)));
}

template <Scalar T>
requires vectorised<T> HEADWISE_INLINE typename Simd<T>::Vector normal_tail(
    const typename Simd<T>::Vector& x) {
  using C = NormalConstants<T>;
  return polynomial<T>(C::over, -x) / polynomial<T>(C::under, -x);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd::HEADWISE_ISA

// headwise/kernels/tile.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

using simd::HEADWISE_ISA::Simd;
using simd::HEADWISE_ISA::unrolled;

template <class T>
struct Tile {
  static constexpr int rows = 6;
  static constexpr int vectors = HEADWISE_ISA_BYTES == 64 ? 4 : 2;
  static constexpr Index width = Simd<T>::width;
  static constexpr Index columns = vectors * width;
};

template <class T>
void set_zero(T* x, Index count) {
  using S = Simd<T>;
  for (Index n = 0; n < count; n += S::width) S::store(S::zero(), x + n);
}

template <class T>
struct Walk {
  const T* data;
  Index row;                         // of a: from one row of the result to the next within a tile
  Index step;                        // from one inner index to the next
  Index tile = Tile<T>::rows * row;  // of a: from one tile's first row to the next one's
};

enum class Finish {
  assign,   // c = alpha sum + bias
  add,      // c = c + alpha sum
  rescale,  // c = factor_m c + sum
};

template <class T>
struct TileStore {
  T* c;
  Index row;
  Finish finish = Finish::assign;
  T alpha = T(1);
  const T* bias = nullptr;    // [columns]
  const T* factor = nullptr;  // [rows]
};

template <class T>
struct Panel {
  const T* a;
  const T* b;
  T* c;
  Index a_row, b_step, c_row, a_step, a_tile;
  const T* bias;
  Index K;
  const T* factor;
  Finish finish;
  T alpha;

  HEADWISE_INLINE Panel(const Walk<T>& left, const Walk<T>& right, Index steps,
                        const TileStore<T>& to)
      : a(left.data),
        b(right.data),
        c(to.c),
        a_row(left.row),
        b_step(right.step),
        c_row(to.row),
        a_step(left.step),
        a_tile(left.tile),
        bias(to.bias),
        K(steps),
        factor(to.factor),
        finish(to.finish),
        alpha(to.alpha) {}
};

template <class T, int M, int V>
void run_tile(const Panel<T>& panel, Index first) {
  using S = Simd<T>;
  T* const c = panel.c + first * panel.c_row;
  typename S::Vector sum[std::size_t{M}][std::size_t{V}];
  const auto each = [&](auto&& f) HEADWISE_ALWAYS_INLINE {
    unrolled<M>([&](auto m) HEADWISE_ALWAYS_INLINE {
      unrolled<V>([&](auto v)
                      HEADWISE_ALWAYS_INLINE { f(m, v, c + m * panel.c_row + v * S::width); });
    });
  };
  each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE { sum[m][v] = S::zero(); });
  if (panel.finish == Finish::add) {
    each([&](auto, auto, T* at) HEADWISE_ALWAYS_INLINE { __builtin_prefetch(at, 1); });
  }
  const T* a = panel.a + first / Tile<T>::rows * panel.a_tile + first % Tile<T>::rows * panel.a_row;
  const T* b = panel.b;
  for (Index k = 0; k < panel.K; ++k) {
    typename S::Vector in_b[std::size_t{V}];
    unrolled<V>([&](auto v) HEADWISE_ALWAYS_INLINE { in_b[v] = S::load(b + v * S::width); });
    unrolled<M>([&](auto m) HEADWISE_ALWAYS_INLINE {
      const auto x = S::broadcast(a[m * panel.a_row]);
      unrolled<V>([&](auto v)
                      HEADWISE_ALWAYS_INLINE { sum[m][v] = S::fma(x, in_b[v], sum[m][v]); });
    });
    a += panel.a_step;
    b += panel.b_step;
  }
  if (panel.finish == Finish::rescale) {
    each([&](auto m, auto v, T* at) HEADWISE_ALWAYS_INLINE {
      S::store(S::fma(S::broadcast(panel.factor[first + m]), S::load(at), sum[m][v]), at);
    });
    return;
  }
  if (panel.alpha != T(1)) {
    const auto alpha = S::broadcast(panel.alpha);
    each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE { sum[m][v] = alpha * sum[m][v]; });
  }
  if (panel.finish == Finish::add) {
    each([&](auto m, auto v, T* at)
             HEADWISE_ALWAYS_INLINE { S::store(S::load(at) + sum[m][v], at); });
    return;
  }
  if (panel.bias != nullptr) {
    each([&](auto m, auto v, T*) HEADWISE_ALWAYS_INLINE {
      sum[m][v] = sum[m][v] + S::load(panel.bias + v * S::width);
    });
  }
  each([&](auto m, auto v, T* at) HEADWISE_ALWAYS_INLINE { S::store(sum[m][v], at); });
}

template <class T, int V>
void run_rows(const Panel<T>& panel, Index M) {
  Index m = 0;
  for (; m + 6 <= M; m += 6) run_tile<T, 6, V>(panel, m);
  if (m + 4 <= M) run_tile<T, 4, V>(panel, m), m += 4;
  if (m + 2 <= M) run_tile<T, 2, V>(panel, m), m += 2;
  if (m < M) run_tile<T, 1, V>(panel, m);
}

template <class T>
void run_panel(const Panel<T>& panel, Index M, Index vectors) {
  if constexpr (Tile<T>::vectors == 4) {
    if (vectors == 4) return run_rows<T, 4>(panel, M);
    if (vectors == 3) return run_rows<T, 3>(panel, M);
  }
  if (vectors == 2) return run_rows<T, 2>(panel, M);
  if (vectors == 1) run_rows<T, 1>(panel, M);
}
template <class T>
HEADWISE_INLINE void run_panel(const Walk<T>& a, const Walk<T>& b, Index M, Index vectors, Index K,
                               const TileStore<T>& to) {
  run_panel<T>(Panel<T>(a, b, K, to), M, vectors);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/pack.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
bool all_finite(Matrix<const T> x, Index rows, Index columns) {
  using S = Simd<T>;
  auto sums = S::zero();
  T rest = T(0);
  for (Index i = 0; i < rows; ++i) {
    const T* row = x.data + i * x.row;
    Index j = 0;
    if (x.column == 1) {
      for (; j + S::width <= columns; j += S::width) {
        const auto part = S::load(row + j);
        sums = sums + (part - part);
      }
    }
    for (; j < columns; ++j) rest = rest + (row[j * x.column] - row[j * x.column]);
  }
  return simd::HEADWISE_ISA::sum_lanes<T>(sums) + rest == T(0);
}

template <Scalar T, int half>
HEADWISE_INLINE void exchange_halves(
    typename Simd<T>::Vector (&rows)[std::size_t{Simd<T>::width}]) {
  constexpr int width = Simd<T>::width;
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE {
    if constexpr ((r & half) == 0) {
      const auto upper = rows[r], lower = rows[r + half];
      [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
        rows[r] =
            __builtin_shufflevector(upper, lower, ((n & half) == 0 ? n : n - half + width)...);
        rows[r + half] =
            __builtin_shufflevector(upper, lower, ((n & half) == 0 ? n + half : n + width)...);
      }
      (std::make_integer_sequence<int, width>());
    }
  });
}

template <Scalar T>
HEADWISE_INLINE void transpose_square(const T* from, Index from_row, T* to, Index to_row) {
  using S = Simd<T>;
  constexpr int width = S::width;
  typename S::Vector rows[std::size_t{width}];
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE { rows[r] = S::load(from + r * from_row); });
  if constexpr (width > 8) exchange_halves<T, 8>(rows);
  if constexpr (width > 4) exchange_halves<T, 4>(rows);
  if constexpr (width > 2) exchange_halves<T, 2>(rows);
  if constexpr (width > 1) exchange_halves<T, 1>(rows);
  unrolled<width>([&](auto r) HEADWISE_ALWAYS_INLINE { S::store(rows[r], to + r * to_row); });
}

template <Scalar T, class Keep>
void pack_panel(Matrix<const T> b, Index K, Index count, T* packed, const Keep& keep) {
  constexpr Index columns = Tile<T>::columns;
  for (Index k = 0; k < K; ++k, packed += columns) {
    const T* from = b.data + k * b.row;
    const Index filled = keep(k) ? count : 0;
    for (Index n = 0; n < filled; ++n) packed[n] = from[n * b.column];
    for (Index n = filled; n < columns; ++n) packed[n] = T(0);
  }
}

template <Scalar T>
void pack_rows(const T* from, Index row, Index K, T* packed) {
  using S = Simd<T>;
  constexpr Index columns = Tile<T>::columns;
  for (Index k = 0; k < K; ++k, from += row, packed += columns) {
    unrolled<Tile<T>::vectors>([&](auto v) HEADWISE_ALWAYS_INLINE {
      S::store(S::load(from + v * S::width), packed + v * S::width);
    });
  }
}

template <Scalar T>
void pack_columns(const T* from, Index column, Index K, Index count, T* packed) {
  constexpr Index width = Simd<T>::width, columns = Tile<T>::columns;
  const Index whole_k = K / width * width, whole_n = count / width * width;
  for (Index n = 0; n < whole_n; n += width) {
    for (Index k = 0; k < whole_k; k += width) {
      transpose_square<T>(from + n * column + k, column, packed + k * columns + n, columns);
    }
  }
  for (Index k = 0; k < K; ++k) {
    T* to = packed + k * columns;
    for (Index n = k < whole_k ? whole_n : 0; n < count; ++n) to[n] = from[n * column + k];
    for (Index n = count; n < columns; ++n) to[n] = T(0);
  }
}

template <Scalar T>
void pack(Matrix<const T> b, Index K, Index N, T* packed) {
  constexpr Index columns = Tile<T>::columns;
  for (Index n = 0; n < N; n += columns, packed += K * columns) {
    const Index count = std::min<Index>(columns, N - n);
    const auto panel = b.from(0, n);
    if (b.column == 1 && count == columns) {
      pack_rows<T>(panel.data, b.row, K, packed);
    } else if (b.row == 1) {
      pack_columns<T>(panel.data, b.column, K, count, packed);
    } else {
      pack_panel<T>(panel, K, count, packed, [](Index) { return true; });
    }
  }
}
template <Scalar T, class Keep>
void pack_kept(Matrix<const T> b, Index K, Index N, T* packed, const Keep& keep) {
  constexpr Index columns = Tile<T>::columns;
  for (Index n = 0; n < N; n += columns, packed += K * columns) {
    pack_panel<T>(b.from(0, n), K, std::min<Index>(columns, N - n), packed, keep);
  }
}

template <Scalar T>
Walk<T> pack_left(Matrix<const T> a, Index M, Index K, T* packed) {
  constexpr Index rows = Tile<T>::rows;
  Index m = 0;
  for (; m + rows <= M; m += rows) {
    const T* from = a.data + m;
    T* to = packed + m * K;
    for (Index k = 0; k < K; ++k, from += a.column, to += rows) std::copy_n(from, rows, to);
  }
  for (Index k = 0; k < K && m < M; ++k) {
    std::copy_n(a.data + m + k * a.column, M - m, packed + m * K + k * rows);
  }
  return {packed, 1, rows, rows * K};
}

template <class T>
struct Operand {
  const T* data;
  Index step;   // from row to row
  Index panel;  // 1 in place; the rows of a panel where packed
  bool finite;  // no infinity, no NaN; or nobody asks

  Walk<T> walk(Index n, Index row = 0) const { return {data + n * panel + row * step, 0, step}; }
};

template <class T>
void prefetch_rows(Matrix<const T> b, Index rows, Index N) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (b.column != 1) return;
  for (Index r = 0; r < rows; ++r) {
    for (Index n = 0; n < N; n += line) __builtin_prefetch(b.data + r * b.row + n, 0, 2);
  }
}

template <class T>
constexpr Index copied_size(Index rows, Index N) {
  return rows * round_up(N, Tile<T>::width);
}

template <class T>
Operand<T> copy_rows(Matrix<const T> b, Index rows, Index N, bool finite, T* to) {
  using S = Simd<T>;
  const Index row = round_up(N, S::width);
  for (Index k = 0; k < rows; ++k) {
    const T* from = b.data + k * b.row;
    T* out = to + k * row;
    Index n = 0;
    if (b.column == 1) {
      for (; n + S::width <= N; n += S::width) S::store(S::load(from + n), out + n);
    }
    for (; n < N; ++n) out[n] = from[n * b.column];
    for (; n < row; ++n) out[n] = T(0);
  }
  return {to, row, 1, finite || all_finite<T>({to, row, 1}, rows, N)};
}
template <class T, class Keep>
Operand<T> copy_kept_rows(Matrix<const T> b, Index rows, Index N, T* to, const Keep& keep) {
  const Index row = round_up(N, Tile<T>::width);
  for (Index k = 0; k < rows; ++k) {
    for (Index n = 0; n < row; ++n) to[k * row + n] = n < N && keep(k) ? b(k, n) : T(0);
  }
  return {to, row, 1, true};
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/gemm.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct GemmBlocks {
  static constexpr Index k = HEADWISE_ISA_BYTES >= 32 ? 384 : 64;
  static constexpr Index m = 192;
  static constexpr Index packed_m = 96;  // rows of a that are copied together
  static constexpr Index n = 768;
};

struct KeepAll {};

template <class T>
constexpr Index packed_size(Index K, Index N) {
  return K * round_up(N, Tile<T>::columns);
}

template <class T>
constexpr Index gemm_scratch(const Extents& size) {
  using Blocks = GemmBlocks<T>;
  const Index K = std::min<Index>(size.K, Blocks::k);
  const Index rows = round_up(std::min<Index>(size.M, Blocks::packed_m), Tile<T>::rows);
  return padded<T>(packed_size<T>(K, std::min<Index>(size.N, Blocks::n))) + padded<T>(rows * K);
}

template <class T>
void run_edge(Walk<T> a, Walk<T> b, Index M, Index count, Index K, Matrix<T> c,
              const TileStore<T>& store) {
  constexpr Index rows = Tile<T>::rows, columns = Tile<T>::columns, width = Tile<T>::width;
  T part[std::size_t{rows * columns}], bias[std::size_t{columns}] = {};
  TileStore<T> to = store;
  to.c = part;
  to.row = columns;
  for (Index n = 0; store.bias != nullptr && n < count; ++n) bias[n] = store.bias[n];
  if (store.bias != nullptr) to.bias = bias;
  for (Index m = 0; m < M; m += rows) {
    const Index these = std::min<Index>(rows, M - m);
    for (Index r = 0; r < these && store.finish != Finish::assign; ++r) {
      for (Index n = 0; n < count; ++n) part[r * columns + n] = c(m + r, n);
      for (Index n = count; n < columns; ++n) part[r * columns + n] = T(0);
    }
    run_panel<T>({a.data + m / rows * a.tile, a.row, a.step}, b, these, (count + width - 1) / width,
                 K, to);
    for (Index r = 0; r < these; ++r) {
      for (Index n = 0; n < count; ++n) c(m + r, n) = part[r * columns + n];
    }
  }
}

template <class T>
std::int64_t multiply(Walk<T> a, const Operand<T>& b, Matrix<T> c, const Extents& size,
                      const Epilogue<T>& epilogue) {
  constexpr Index columns = Tile<T>::columns, width = Tile<T>::width;
  for (Index n = 0; n < size.N; n += columns) {
    const Index count = std::min<Index>(columns, size.N - n);
    const auto to = c.from(0, n);
    const TileStore<T> store{to.data,
                             to.row,
                             epilogue.accumulate ? Finish::add : Finish::assign,
                             epilogue.alpha,
                             epilogue.bias == nullptr ? nullptr : epilogue.bias + n,
                             nullptr};
    if (c.column == 1 && count % width == 0) {
      run_panel<T>(a, b.walk(n), size.M, count / width, size.K, store);
    } else {
      run_edge<T>(a, b.walk(n), size.M, count, size.K, to, store);
    }
  }
  return std::int64_t{size.M} * round_up(size.N, width) * size.K;
}

template <class T, class Keep>
Operand<T> right_block(Matrix<const T> b, const Extents& size, T* scratch, Index first,
                       const Keep& keep) {
  constexpr Index few = 4 * Tile<T>::rows;
  if constexpr (std::same_as<Keep, KeepAll>) {
    if (size.M <= few && b.column == 1 && size.N % Tile<T>::width == 0) {
      return {b.data, b.row, 1, true};
    }
    pack<T>(b, size.K, size.N, scratch);
  } else {
    pack_kept<T>(b, size.K, size.N, scratch, [&](Index row) { return keep(first + row); });
  }
  return {scratch, Tile<T>::columns, size.K, true};
}

template <class T>
void multiply_blocks(Matrix<const T> a, const Operand<T>& b, Matrix<T> c, const Extents& size,
                     const Epilogue<T>& epilogue, T* scratch) {
  using Blocks = GemmBlocks<T>;
  const bool copied = a.row == 1 && a.column != 1 && size.N >= 2 * Tile<T>::columns;
  const Index step = copied ? Blocks::packed_m : Blocks::m;
  for (Index m = 0; m < size.M; m += step) {
    const Index M = std::min<Index>(step, size.M - m);
    const auto rows = a.from(m, 0);
    const Walk<T> left =
        copied ? pack_left<T>(rows, M, size.K, scratch) : Walk<T>{rows.data, rows.row, rows.column};
    multiply<T>(left, b, c.from(m, 0), {M, size.N, size.K}, epilogue);
  }
}

template <class T, class Keep>
void gemm_kept(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
               const Epilogue<T>& epilogue, T* scratch, const Keep& keep) {
  using Blocks = GemmBlocks<T>;
  for (Index n = 0; n < size.N; n += Blocks::n) {
    const Index N = std::min<Index>(Blocks::n, size.N - n);
    for (Index k = 0; k == 0 || k < size.K; k += Blocks::k) {
      const Index K = std::min<Index>(Blocks::k, size.K - k);
      Epilogue<T> here = epilogue;
      if (here.bias != nullptr) here.bias += n;
      if (k != 0) here.accumulate = true;
      const Operand<T> block = right_block<T>(b.from(k, n), {size.M, N, K}, scratch, k, keep);
      T* const behind = scratch + padded<T>(packed_size<T>(K, N));
      multiply_blocks<T>(a.from(0, k), block, c.from(0, n), {size.M, N, K}, here, behind);
    }
  }
}
template <class T>
void gemm(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
          const Epilogue<T>& epilogue, T* scratch) {
  gemm_kept<T>(a, b, c, size, epilogue, scratch, KeepAll{});
}

template <class T, class Sees>
void gemm_visible(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const Extents& size,
                  const Epilogue<T>& epilogue, T* scratch, bool all, const Sees& sees) {
  if (all || all_finite<T>(b, size.K, size.N)) return gemm<T>(a, b, c, size, epilogue, scratch);
  for (Index m = 0; m < size.M; ++m) {
    gemm_kept<T>(a.from(m, 0), b, c.from(m, 0), {1, size.N, size.K}, epilogue, scratch,
                 [&](Index k) { return sees(m, k); });
  }
}

template <class T>
std::int64_t executed_gemm_flops(const Extents& size) {
  const Index joins = size.K == 0 ? 0 : (size.K - 1) / GemmBlocks<T>::k;
  return (std::int64_t{2} * size.K + joins) * size.M * round_up(size.N, Tile<T>::width);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rows.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct Piece {
  static constexpr int vectors = 4;
  static constexpr Index width = Simd<T>::width;
  static constexpr Index size = vectors * width;
  T data[std::size_t{size}];
};

template <class T>
[[gnu::noinline]] void gather(Row<const T> x, Index n, Index count, T rest, Piece<T>& to) {
  if (x.step == 1) {
    std::memcpy(to.data, x.data + n, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (Index t = 0; t < count; ++t) to.data[t] = x[n + t];
  }
  for (Index t = count; t < Piece<T>::size; ++t) to.data[t] = rest;
}

template <class T>
[[gnu::noinline]] void scatter(const Piece<T>& from, Index n, Index count, Row<T> y) {
  if (y.step == 1) {
    std::memcpy(y.data + n, from.data, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (Index t = 0; t < count; ++t) y[n + t] = from.data[t];
  }
}

template <class T>
HEADWISE_INLINE typename Simd<T>::Vector load_lanes(Row<const T> x, Index count, const T& rest) {
  using S = Simd<T>;
  if (x.step == 1 && count >= S::width) return S::load(x.data);
  T lanes[std::size_t{S::width}];
  for (Index n = 0; n < S::width; ++n) lanes[n] = n < count ? x[n] : rest;
  return S::load(lanes);
}
template <class T>
HEADWISE_INLINE void store_lanes(const typename Simd<T>::Vector& x, Row<T> y, Index count) {
  using S = Simd<T>;
  if (y.step == 1 && count >= S::width) return S::store(x, y.data);
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  for (Index n = 0; n < S::width && n < count; ++n) y[n] = lanes[n];
}

template <class T>
struct RowPieces {
  Index N;

  Index count(Index n) const { return std::min<Index>(Piece<T>::size, N - n); }
  HEADWISE_INLINE const T* read(Row<const T> x, Index n, T rest, Piece<T>& copy) const {
    if (x.step == 1 && n + Piece<T>::size <= N) return x.data + n;
    gather<T>(x, n, count(n), rest, copy);
    return copy.data;
  }
  HEADWISE_INLINE T* write(Row<T> y, Index n, Piece<T>& copy) const {
    return y.step == 1 && n + Piece<T>::size <= N ? y.data + n : copy.data;
  }
  HEADWISE_INLINE void written(const T* at, Row<T> y, Index n, const Piece<T>& copy) const {
    if (at == copy.data) scatter<T>(copy, n, count(n), y);
  }
};

template <int write, class T>
HEADWISE_INLINE void prefetch_piece(Matrix<T> x, Index rows, Index N, Index i, Index n) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (x.column != 1 || n >= N || i >= rows) return;
  const T* at = &x(i, n);
  const Index count = std::min<Index>(Piece<std::remove_const_t<T>>::size, N - n);
  for (Index t = 0; t < count; t += line) __builtin_prefetch(at + t, write, 3);
}
template <int write, class T>
HEADWISE_INLINE void prefetch_ahead(Matrix<T> x, Index rows, Index N, Index i, Index n) {
  n += 4 * Piece<std::remove_const_t<T>>::size;
  prefetch_piece<write>(x, rows, N, n < N ? i : i + 1, n < N ? n : n - N);
}

template <class T, class F>
HEADWISE_INLINE void each_piece(RowPieces<T> row, F&& f) {
  for (Index n = 0; n < row.N; n += Piece<T>::size) f(n);
}

template <class T, class F>
HEADWISE_INLINE void each_vector(F&& f) {
  unrolled<Piece<T>::vectors>([&](auto v) HEADWISE_ALWAYS_INLINE { f(v, v * Piece<T>::width); });
}

template <class T>
struct Chains {
  using Vector = typename Simd<T>::Vector;
  Vector sums[std::size_t{Piece<T>::vectors}];

  HEADWISE_INLINE Chains() {
    each_vector<T>([&](auto v, Index) HEADWISE_ALWAYS_INLINE { sums[v] = Simd<T>::zero(); });
  }
  HEADWISE_INLINE T total() const {
    const Vector joined = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    return simd::HEADWISE_ISA::sum_lanes<T>(joined);
  }
};

template <class T>
HEADWISE_INLINE bool any_lane(typename Simd<T>::IntVector x) {
  typename Simd<T>::Int lanes[std::size_t{Simd<T>::width}], any = 0;
  Simd<T>::store_ints(x, lanes);
  for (const auto lane : lanes) any |= lane;
  return any != 0;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/column_sums.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
inline constexpr Index columns_of_sum = 4 * Piece<T>::size;

inline constexpr Index rows_of_chain = 16;

template <class T, int kinds, class Terms>
void sum_columns_of(Index begin, Index end, RowPieces<T> row, Index n0, const Terms& terms,
                    T (*sums)[std::size_t{columns_of_sum<T>}]) {
  using S = Simd<T>;
  constexpr Index chain = rows_of_chain;
  if (end - begin > chain) {
    const Index middle = begin + (end - begin + chain) / (2 * chain) * chain;
    T lower[std::size_t{kinds}][std::size_t{columns_of_sum<T>}];
    sum_columns_of<T, kinds>(begin, middle, row, n0, terms, sums);
    sum_columns_of<T, kinds>(middle, end, row, n0, terms, lower);
    for (int k = 0; k < kinds; ++k) {
      for (Index n = 0; n < kernels::round_up(row.N - n0, Piece<T>::size); n += S::width) {
        S::store(S::load(sums[k] + n) + S::load(lower[k] + n), sums[k] + n);
      }
    }
    return;
  }
  for (Index n = n0; n < row.N; n += Piece<T>::size) {
    Chains<T> sum[std::size_t{kinds}];
    for (Index i = begin; i < end; ++i) {
      terms(i, row, n, [&](auto v, auto... term) HEADWISE_ALWAYS_INLINE {
        int k = 0;
        ((sum[k].sums[v] = sum[k].sums[v] + term, ++k), ...);
      });
    }
    for (int k = 0; k < kinds; ++k) {
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        S::store(sum[k].sums[v], sums[k] + (n - n0) + at);
      });
    }
  }
}

template <class T, int kinds, class Terms>
void add_columns(Index rows, Index begin, Index end, const Terms& terms,
                 const Row<T> (&to)[std::size_t{kinds}]) {
  T sums[std::size_t{kinds}][std::size_t{columns_of_sum<T>}];
  if (rows == 0) return;
  for (Index n0 = begin; n0 < end; n0 += columns_of_sum<T>) {
    const Index last = std::min<Index>(end, n0 + columns_of_sum<T>);
    sum_columns_of<T, kinds>(0, rows, RowPieces<T>{last}, n0, terms, sums);
    for (int k = 0; k < kinds; ++k) {
      if (to[k].data == nullptr) continue;
      for (Index n = n0; n < last; ++n) to[k][n] = to[k][n] + sums[k][n - n0];
    }
  }
}

template <Scalar T>
void add_rows(Matrix<const T> x, Index rows, Index begin, Index end, Row<T> to) {
  if constexpr (simd::vectorised<T>) {
    Piece<T> copy;
    const auto terms = [&](Index i, RowPieces<T> row, Index n, auto&& add) HEADWISE_ALWAYS_INLINE {
      const T* in = row.read(kernels::row(x, i), n, T(0), copy);
      prefetch_piece<0>(x, rows, end, i + rows_of_chain, n);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { add(v, Simd<T>::load(in + at)); });
    };
    add_columns<T, 1>(rows, begin, end, terms, {to});
  } else {
    const auto term = [&](Index i, Index n) { return x(i, begin + n); };
    add_column_sums(rows, end - begin, term, &to[begin], to.step);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/elementwise.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T, class Use>
HEADWISE_INLINE void with_combination(Combination how, const T& alpha, Use&& use) {
  using S = Simd<T>;
  using V = typename S::Vector;
  switch (how) {
    case Combination::first:
      return use([&](const V& a, const V&) HEADWISE_ALWAYS_INLINE { return a; });
    case Combination::sum:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a + b; });
    case Combination::difference:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a - b; });
    case Combination::product:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a * b; });
    case Combination::quotient:
      return use([&](const V& a, const V& b) HEADWISE_ALWAYS_INLINE { return a / b; });
    case Combination::scaled: {
      const V factor = S::broadcast(alpha);
      return use([&](const V& a, const V&) HEADWISE_ALWAYS_INLINE { return a * factor; });
    }
    case Combination::gradient_product:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), d * b);
      });
    case Combination::gradient_quotient:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), d / b);
      });
    case Combination::negative_gradient_product:
      return use([&](const V& d, const V& b) HEADWISE_ALWAYS_INLINE {
        return S::select(d == S::zero(), S::zero(), S::zero() - d * b);
      });
  }
}

template <Scalar T>
void combine_rows(Combination how, const CombinedRows<T>& of, Index begin, Index end) {
  with_combination<T>(how, of.alpha, [&](const auto& f) HEADWISE_ALWAYS_INLINE {
    Piece<T> copied_a, copied_b, result;
    const RowPieces<T> pieces{of.N};
    for (Index i = begin; i < end; ++i) {
      const Row<const T> a = row(of.a, i), b = row(of.b, i);
      const Row<T> y = row(of.y, i);
      if constexpr (simd::vectorised<T>) {
        each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
          const T* in_a = pieces.read(a, n, T(0), copied_a);
          const T* in_b = pieces.read(b, n, T(1), copied_b);
          T* out = pieces.write(y, n, result);
          each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
            Simd<T>::store(f(Simd<T>::load(in_a + at), Simd<T>::load(in_b + at)), out + at);
          });
          pieces.written(out, y, n, result);
        });
      } else {
        for (Index n = 0; n < of.N; ++n) y[n] = f(a[n], b[n]);
      }
    }
  });
}

template <Scalar T>
void combine_columns(Combination how, const CombinedRows<T>& of, Index rows, Index begin, Index end,
                     Row<T> to) {
  with_combination<T>(how, of.alpha, [&](const auto& f) HEADWISE_ALWAYS_INLINE {
    if constexpr (simd::vectorised<T>) {
      Piece<T> copied_a, copied_b;
      const auto terms = [&](Index i, RowPieces<T> pieces, Index n, auto&& add)
                             HEADWISE_ALWAYS_INLINE {
                               const T* in_a = pieces.read(row(of.a, i), n, T(0), copied_a);
                               const T* in_b = pieces.read(row(of.b, i), n, T(1), copied_b);
                               prefetch_piece<0>(of.a, rows, end, i + rows_of_chain, n);
                               prefetch_piece<0>(of.b, rows, end, i + rows_of_chain, n);
                               each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
                                 add(v, f(Simd<T>::load(in_a + at), Simd<T>::load(in_b + at)));
                               });
                             };
      add_columns<T, 1>(rows, begin, end, terms, {to});
    } else {
      const auto term = [&](Index i, Index n) -> T {
        return f(of.a(i, begin + n), of.b(i, begin + n));
      };
      add_column_sums(rows, end - begin, term, &to[begin], to.step);
    }
  });
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/layer_norm.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
T mean_square(Row<const T> x, Index D, T mean) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  Piece<T> copy;
  Chains<T> squares;
  const auto means = S::broadcast(mean);
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, mean, copy);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const auto centred = S::load(in + at) - means;
      squares.sums[v] = S::fma(centred, centred, squares.sums[v]);
    });
  });
  return squares.total() / T(D);
}

template <class T>
RowMoments<T> moments_of(Row<const T> x, Index D, T epsilon) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  Piece<T> copy;
  Chains<T> sum;
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    each_vector<T>([&](auto v, Index at)
                       HEADWISE_ALWAYS_INLINE { sum.sums[v] = sum.sums[v] + S::load(in + at); });
  });
  const T mean = sum.total() / T(D);
  return {mean, T(1) / std::sqrt(mean_square<T>(x, D, mean) + epsilon)};
}

template <class T>
void normalise(Row<const T> x, Index D, RowMoments<T> moments, Row<const T> gamma,
               Row<const T> beta, Row<T> y) {
  using S = Simd<T>;
  const RowPieces<T> row{D};
  const auto mean = S::broadcast(moments.mean), rstd = S::broadcast(moments.rstd);
  Piece<T> copy, copied_gamma, copied_beta, result;
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    T* out = row.write(y, n, result);
    typename S::Vector value[std::size_t{Piece<T>::vectors}];
    each_vector<T>([&](auto v, Index at)
                       HEADWISE_ALWAYS_INLINE { value[v] = (S::load(in + at) - mean) * rstd; });
    if (gamma.data != nullptr) {
      const T* by = row.read(gamma, n, T(0), copied_gamma);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { value[v] = value[v] * S::load(by + at); });
    }
    if (beta.data != nullptr) {
      const T* by = row.read(beta, n, T(0), copied_beta);
      each_vector<T>([&](auto v, Index at)
                         HEADWISE_ALWAYS_INLINE { value[v] = value[v] + S::load(by + at); });
    }
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE { S::store(value[v], out + at); });
    row.written(out, y, n, result);
  });
}

template <Scalar T>
void layer_norm_rows(const LayerNormRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.x, n);
    RowMoments<T> moments{T(0), T(0)};  // of an empty row, 0 / 0 is no mean
    if constexpr (simd::vectorised<T>) {
      if (of.D != 0) moments = moments_of<T>(x, of.D, of.epsilon);
      normalise<T>(x, of.D, moments, of.gamma, of.beta, row(of.y, n));
    } else {
      if (of.D != 0) moments = row_moments<T>(x, of.D, of.epsilon);
      normalise_row<T>(x, of.D, moments, of.gamma, of.beta, row(of.y, n));
    }
    if (of.mean.data != nullptr) of.mean[n] = moments.mean;
    if (of.rstd.data != nullptr) of.rstd[n] = moments.rstd;
  }
}

template <class T, bool centred>
void normalise_backward(Row<const T> dy, Row<const T> x, Index D, RowMoments<T> moments,
                        Row<const T> gamma, Row<T> dx) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{D};
  const auto mean = S::broadcast(moments.mean), rstd = S::broadcast(moments.rstd);
  Piece<T> copied_dy, copied_x, copied_gamma, result;
  Chains<T> of_g, of_g_xhat;
  auto any = S::broadcast_int(0);
  const auto each = [&](Index n, auto&& f) HEADWISE_ALWAYS_INLINE {
    const T* in_dy = row.read(dy, n, T(0), copied_dy);
    const T* in_x = row.read(x, n, moments.mean, copied_x);
    const T* by = gamma.data == nullptr ? nullptr : row.read(gamma, n, T(0), copied_gamma);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const Vector d = S::load(in_dy + at);
      f(v, at, d, by == nullptr ? d : d * S::load(by + at), (S::load(in_x + at) - mean) * rstd);
    });
  };
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    each(n, [&](auto v, Index, const Vector& d, const Vector& g, const Vector& xhat)
                HEADWISE_ALWAYS_INLINE {
                  any = any | (d != S::zero());
                  of_g.sums[v] = of_g.sums[v] + g;
                  of_g_xhat.sums[v] = S::fma(g, xhat, of_g_xhat.sums[v]);
                });
  });
  const bool idle = !any_lane<T>(any);
  const auto mean_g = S::broadcast(centred ? of_g.total() / T(D) : T(0));
  const auto mean_g_xhat = S::broadcast(of_g_xhat.total() / T(D));
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    T* out = row.write(dx, n, result);
    each(n, [&](auto, Index at, const Vector&, const Vector& g, const Vector& xhat)
                HEADWISE_ALWAYS_INLINE {
                  const Vector flow = rstd * (g - mean_g - xhat * mean_g_xhat);
                  S::store(idle ? S::zero() : flow, out + at);
                });
    row.written(out, dx, n, result);
  });
}

template <Scalar T>
void layer_norm_backward_rows(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto dy = row(of.dy, n), x = row(of.x, n);
    const RowMoments<T> moments{of.mean[n], of.rstd[n]};
    if constexpr (simd::vectorised<T>) {
      normalise_backward<T, true>(dy, x, of.D, moments, of.gamma, row(of.dx, n));
    } else {
      layer_norm_backward_row<T>(dy, x, of.D, moments, of.gamma, row(of.dx, n));
    }
  }
}

template <class T>
void norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  Piece<T> copied_dy, copied_x;
  const auto terms = [&](Index i, RowPieces<T> row, Index n, auto&& add) HEADWISE_ALWAYS_INLINE {
    const T* dy = row.read(kernels::row(of.dy, i), n, T(0), copied_dy);
    const T* x = row.read(kernels::row(of.x, i), n, T(0), copied_x);
    prefetch_piece<0>(of.dy, of.N, end, i + rows_of_chain, n);
    prefetch_piece<0>(of.x, of.N, end, i + rows_of_chain, n);
    const auto mean = S::broadcast(of.mean.data == nullptr ? T(0) : of.mean[i]);
    const auto rstd = S::broadcast(of.rstd[i]);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      const auto d = S::load(dy + at);
      const auto flow = d * ((S::load(x + at) - mean) * rstd);
      add(v, S::select(d == S::zero(), S::zero(), flow), d);
    });
  };
  add_columns<T, 2>(of.N, begin, end, terms, {of.dgamma, of.dbeta});
}

template <Scalar T>
void layer_norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    norm_columns<T>(of, begin, end);
  } else {
    const auto flow = [&](Index i, Index n) {
      const T dy = of.dy(i, begin + n);
      return dy == T(0) ? T(0) : T(dy * ((of.x(i, begin + n) - of.mean[i]) * of.rstd[i]));
    };
    const auto plain = [&](Index i, Index n) { return of.dy(i, begin + n); };
    const Row<T>&dgamma = of.dgamma, &dbeta = of.dbeta;
    if (dgamma.data != nullptr) {
      add_column_sums(of.N, end - begin, flow, &dgamma[begin], dgamma.step);
    }
    if (dbeta.data != nullptr) {
      add_column_sums(of.N, end - begin, plain, &dbeta[begin], dbeta.step);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rms_norm.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
void rms_norm_rows(const LayerNormRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.x, n);
    T rstd = T(0);  // of an empty row
    if constexpr (simd::vectorised<T>) {
      if (of.D != 0) rstd = T(1) / std::sqrt(mean_square<T>(x, of.D, T(0)) + of.epsilon);
      normalise<T>(x, of.D, {T(0), rstd}, of.gamma, {nullptr, 0}, row(of.y, n));
    } else {
      if (of.D != 0) rstd = root_mean_square<T>(x, of.D, of.epsilon);
      rms_norm_row<T>(x, of.D, rstd, of.gamma, row(of.y, n));
    }
    if (of.rstd.data != nullptr) of.rstd[n] = rstd;
  }
}

template <Scalar T>
void rms_norm_backward_rows(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto dy = row(of.dy, n), x = row(of.x, n);
    if constexpr (simd::vectorised<T>) {
      normalise_backward<T, false>(dy, x, of.D, {T(0), of.rstd[n]}, of.gamma, row(of.dx, n));
    } else {
      rms_norm_backward_row<T>(dy, x, of.D, of.rstd[n], of.gamma, row(of.dx, n));
    }
  }
}

template <Scalar T>
void rms_norm_columns(const LayerNormBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    norm_columns<T>(of, begin, end);
  } else {
    const auto flow = [&](Index i, Index n) {
      const T dy = of.dy(i, begin + n);
      return dy == T(0) ? T(0) : T(dy * (of.x(i, begin + n) * of.rstd[i]));
    };
    add_column_sums(of.N, end - begin, flow, &of.dgamma[begin], of.dgamma.step);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/softmax.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct PieceMask {
  std::uint8_t bytes[std::size_t{Piece<T>::size}];

  HEADWISE_INLINE typename Simd<T>::Vector select(Index at, const typename Simd<T>::Vector& yes,
                                                  const typename Simd<T>::Vector& no) const {
    return Simd<T>::select(Simd<T>::load_bytes(bytes + at), yes, no);
  }
};

template <class T>
struct RowMask {
  KeyRange range;
  const HeadVisibility<T>* rules = nullptr;  // null unless pairs have to be asked for
  Index i = 0;

  RowMask(Index N) : range{0, N} {}
  RowMask(const HeadVisibility<T>& visibility, Index row) : range(visibility.range(row)), i(row) {
    if (visibility.has_pair_masks()) rules = &visibility;
  }

  bool whole(Index n) const {
    return rules == nullptr && n >= range.begin && n + Piece<T>::size <= range.end;
  }
  [[gnu::noinline]] void look(Index n, PieceMask<T>& seen) const {
    const Index begin = std::max<Index>(range.begin - n, 0);
    const Index end = std::min<Index>(range.end - n, Piece<T>::size);
    for (Index t = 0; t < Piece<T>::size; ++t) seen.bytes[t] = t >= begin && t < end;
    for (Index t = begin; rules != nullptr && t < end; ++t) {
      seen.bytes[t] = rules->pair_visible(i, n + t);
    }
  }
  template <class F>
  HEADWISE_INLINE void each_piece(F&& f) const {
    PieceMask<T> seen;
    Index n = range.begin / Piece<T>::size * Piece<T>::size;
    for (; n < range.end; n += Piece<T>::size) {
      const bool all = whole(n);
      if (!all) look(n, seen);
      f(n, all, seen);
    }
  }
};

template <class T>
void clear_hidden(const RowMask<T>& mask, Index N, Row<T> y) {
  const Index begin = mask.range.begin / Piece<T>::size * Piece<T>::size;
  const bool none = mask.range.begin >= mask.range.end;
  for (Index n = 0; n < (none ? N : begin); ++n) y[n] = T(0);
  for (Index n = round_up(mask.range.end, Piece<T>::size); !none && n < N; ++n) y[n] = T(0);
}

template <class T>
T greatest_of(Row<const T> x, Index N, const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copy;
  T lanes[std::size_t{S::width}];
  const auto lowest = S::broadcast(std::numeric_limits<T>::lowest());
  typename S::Vector most[] = {lowest, lowest, lowest, lowest};
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto value = S::load(in + at);
      if (!all) value = seen.select(at, value, lowest);
      most[v] = S::greater(most[v], value);
    });
  });
  S::store(S::greater(S::greater(most[0], most[1]), S::greater(most[2], most[3])), lanes);
  T greatest = lanes[0];
  for (const T lane : lanes) greatest = greatest < lane ? lane : greatest;
  return greatest;
}

template <class T>
void softmax_of(Row<const T> x, Row<T> p, Index N, const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copy, result;
  const auto greatest = S::broadcast(greatest_of<T>(x, N, mask));
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Chains<T> sums;
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(x, n, T(0), copy);
    T* out = row.write(p, n, result);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto weight = simd::HEADWISE_ISA::weight_of<T>((S::load(in + at) - greatest) * unit);
      if (!all) weight = seen.select(at, weight, S::zero());
      S::store(weight, out + at);
      sums.sums[v] = sums.sums[v] + weight;
    });
    row.written(out, p, n, result);
  });
  const T total = sums.total();
  const auto sum = S::broadcast(total);
  const bool ask = !(T(0) < total);  // 0 / total is 0 otherwise
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T* in = row.read(p, n, T(0), copy);
    T* out = row.write(p, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      auto weight = S::load(in + at) / sum;
      if (!all && ask) weight = seen.select(at, weight, S::zero());
      S::store(weight, out + at);
    });
    row.written(out, p, n, result);
  });
  clear_hidden<T>(mask, N, p);
}

template <class T>
void softmax_backward_of(Row<const T> dp, Row<const T> p, Row<T> dx, Index N, T scale,
                         const RowMask<T>& mask) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  Piece<T> copied_dp, copied_p, result;
  Chains<T> sums;
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T *in = row.read(dp, n, T(0), copied_dp), *by = row.read(p, n, T(0), copied_p);
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      auto term = S::load(in + at) * S::load(by + at);
      if (!all) term = seen.select(at, term, S::zero());
      sums.sums[v] = sums.sums[v] + term;
    });
  });
  const auto sum = S::broadcast(sums.total()), factor = S::broadcast(scale);
  mask.each_piece([&](Index n, bool all, const PieceMask<T>& seen) HEADWISE_ALWAYS_INLINE {
    const T *in = row.read(dp, n, T(0), copied_dp), *by = row.read(p, n, T(0), copied_p);
    T* out = row.write(dx, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      auto flow = factor * (S::load(by + at) * (S::load(in + at) - sum));
      if (!all) flow = seen.select(at, flow, S::zero());
      S::store(flow, out + at);
    });
    row.written(out, dx, n, result);
  });
  clear_hidden<T>(mask, N, dx);
}

template <Scalar T>
void softmax_rows(Matrix<const T> x, Matrix<T> p, Index N, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    if constexpr (simd::vectorised<T>) {
      softmax_of<T>(row(x, i), row(p, i), N, RowMask<T>(N));
    } else {
      for (Index j = 0; j < N; ++j) p(i, j) = x(i, j);
      softmax_row(row(p, i), N, [](Index) { return true; });
    }
  }
}

template <Scalar T>
void softmax_backward_rows(Matrix<const T> dp, Matrix<const T> p, Matrix<T> dx, Index N,
                           Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    if constexpr (simd::vectorised<T>) {
      softmax_backward_of<T>(row(dp, i), row(p, i), row(dx, i), N, T(1), RowMask<T>(N));
    } else {
      softmax_backward_row<T>(row(dp, i), row(p, i), row(dx, i), N, [](Index) { return true; });
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/dropout.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
inline constexpr bool draws_by_lanes = HEADWISE_ISA_BYTES >= 32 && simd::vectorised<T>;

#if HEADWISE_ISA_BYTES >= 32
typedef std::uint64_t PhiloxLanes __attribute__((vector_size(HEADWISE_ISA_BYTES)));
inline constexpr int philox_lanes = HEADWISE_ISA_BYTES / 8;

HEADWISE_INLINE PhiloxLanes multiply_low(PhiloxLanes a, std::uint32_t b) {
  const PhiloxLanes by = PhiloxLanes{} + std::uint64_t{b};
#if HEADWISE_ISA_BYTES == 64
  return __builtin_bit_cast(PhiloxLanes,
                            _mm512_maskz_mul_epu32(0xFF, __builtin_bit_cast(__m512i, a),
                                                   __builtin_bit_cast(__m512i, by)));
#else
  return __builtin_bit_cast(PhiloxLanes, _mm256_mul_epu32(__builtin_bit_cast(__m256i, a),
                                                          __builtin_bit_cast(__m256i, by)));
#endif
}

HEADWISE_INLINE void draw_blocks(PhiloxLanes (&c)[4], std::array<std::uint32_t, 2> key) {
  unrolled<7>([&](auto) HEADWISE_ALWAYS_INLINE {
    const PhiloxLanes even = multiply_low(c[0], 0xD2511F53u), odd = multiply_low(c[2], 0xCD9E8D57u);
    c[0] = (odd >> 32) ^ c[1] ^ std::uint64_t{key[0]};
    c[1] = odd;
    c[2] = (even >> 32) ^ c[3] ^ std::uint64_t{key[1]};
    c[3] = even;
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  });
}

HEADWISE_INLINE PhiloxLanes in_all_lanes(Index n) {
  return PhiloxLanes{} + static_cast<std::uint64_t>(n);
}
HEADWISE_INLINE PhiloxLanes counting_from(Index first) {
  std::uint64_t numbers[std::size_t{philox_lanes}];
  for (std::size_t n = 0; n < std::size_t{philox_lanes}; ++n) numbers[n] = n;
  PhiloxLanes steps;
  std::memcpy(&steps, numbers, sizeof steps);
  return in_all_lanes(first) + steps;
}

template <class Bits>
HEADWISE_INLINE void draw_row(const DropoutMask& mask, Index b, Index h, Index i, Index j8,
                              Bits& bits) {
  PhiloxLanes c[4] = {counting_from(j8), in_all_lanes(i), in_all_lanes(h), in_all_lanes(b)};
  draw_blocks(c, mask.key());
  constexpr std::uint64_t low = 0xFFFFFFFFu;
  const PhiloxLanes first = (c[0] & low) | (c[1] << 32), second = (c[2] & low) | (c[3] << 32);
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    const PhiloxLanes front =
        __builtin_shufflevector(first, second, (n / 2 + n % 2 * philox_lanes)...);
    const PhiloxLanes back = __builtin_shufflevector(
        first, second, (n / 2 + n % 2 * philox_lanes + philox_lanes / 2)...);
    std::memcpy(bits, &front, sizeof front);
    std::memcpy(bits + sizeof(front) / 2, &back, sizeof back);
  }
  (std::make_integer_sequence<int, philox_lanes>());
}
#endif

template <class T>
[[gnu::noinline]] void dropout_factors(const DropoutMask& mask, Index b, Index h, Index i, Index j,
                                       Index count, T* factors) {
  const T factor = T(mask.keep_factor());
#if HEADWISE_ISA_BYTES >= 32
  if constexpr (draws_by_lanes<T>) {
    using S = Simd<T>;
    typedef std::uint16_t HalfVector __attribute__((vector_size(2 * S::width)));
    constexpr Index drawn = Index{8} * philox_lanes;
    std::uint16_t bits[std::size_t{drawn}];
    const auto limit = S::broadcast_int(static_cast<typename S::Int>(mask.threshold()));
    const auto kept = S::broadcast(factor);
    for (Index t = 0, n = 0; t < count; t += n) {
      draw_row(mask, b, h, i, (j + t) / 8, bits);
      n = std::min<Index>(drawn, count - t);
      Index m = 0;
      for (; m + S::width <= n; m += S::width) {
        HalfVector half;
        std::memcpy(&half, bits + m, sizeof half);
        const auto wide = __builtin_convertvector(half, typename S::IntVector);
        S::store(S::select(wide >= limit, kept, S::zero()), factors + t + m);
      }
      for (; m < n; ++m) {
        factors[t + m] = bits[m] >= mask.threshold() ? factor : T(0);
      }
    }
    return;
  }
#endif
  mask.row(b, h, i, j, count, factor, factors);
}

template <class T>
void drop_pieces(Matrix<const T> x, Matrix<T> y, Index N, Index i, Index end, Index n0, Index count,
                 const T* factors) {
  using S = Simd<T>;
  const RowPieces<T> row{N};
  const auto from = kernels::row(x, i);
  const auto to = kernels::row(y, i);
  Piece<T> copy, result;
  for (Index n = n0; n < n0 + count; n += Piece<T>::size) {
    prefetch_ahead<0>(x, end, N, i, n);
    prefetch_ahead<1>(y, end, N, i, n);
    const T* in = row.read(from, n, T(0), copy);
    T* out = row.write(to, n, result);
    each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
      const auto factor = S::load(factors + (n - n0) + at);
      S::store(S::select(factor == S::zero(), S::zero(), S::load(in + at) * factor), out + at);
    });
    row.written(out, to, n, result);
  }
}

template <Scalar T>
void drop_rows(const DropoutMask& mask, Matrix<const T> x, Matrix<T> y, Index N, Index begin,
               Index end) {
  constexpr Index drawn = 4 * Piece<T>::size;
  T factors[std::size_t{drawn}];
  for (Index i = begin; i < end; ++i) {
    for (Index n0 = 0; n0 < N; n0 += drawn) {
      const Index count = std::min<Index>(drawn, N - n0);
      dropout_factors<T>(mask, 0, 0, i, n0, count, factors);
      if constexpr (simd::vectorised<T>) {
        for (Index t = count; t < drawn; ++t) factors[t] = T(0);
        drop_pieces<T>(x, y, N, i, end, n0, count, factors);
      } else {
        for (Index t = 0; t < count; ++t) {
          y(i, n0 + t) = factors[t] == T(0) ? T(0) : T(x(i, n0 + t) * factors[t]);
        }
      }
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/embedding.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
void add_row(Row<const T> x, Index N, Row<T> to) {
  if constexpr (simd::vectorised<T>) {
    using S = Simd<T>;
    const RowPieces<T> row{N};
    Piece<T> copy, sums;
    each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* in = row.read(x, n, T(0), copy);
      T* at = row.write(to, n, sums);
      if (at == sums.data) gather<T>(to, n, row.count(n), T(0), sums);
      each_vector<T>([&](auto, Index element) HEADWISE_ALWAYS_INLINE {
        S::store(S::load(at + element) + S::load(in + element), at + element);
      });
      row.written(at, to, n, sums);
    });
  } else {
    for (Index n = 0; n < N; ++n) to[n] = to[n] + x[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/cross_entropy.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T, class F>
HEADWISE_INLINE void each_piece_but_target(RowPieces<T> row, Index target, Chains<T>& sums,
                                           Chains<T>& totals, F&& f) {
  constexpr Index size = Piece<T>::size, together = 16 * size;
  for (Index n0 = 0; n0 < row.N; n0 += together) {
    sums = Chains<T>();
    for (Index n = n0, end = std::min<Index>(row.N, n0 + together); n < end; n += size) {
      const bool holds = target >= n && target < n + size;
      f(n, !holds && n + size <= row.N, holds ? target - n : Index{-1});
    }
    each_vector<T>([&](auto v, Index)
                       HEADWISE_ALWAYS_INLINE { totals.sums[v] = totals.sums[v] + sums.sums[v]; });
  }
}

template <class T, class F>
HEADWISE_INLINE void each_vector_but_target(Index count, Index target, F&& f) {
  using S = Simd<T>;
  using Int = typename S::Int;
  const auto lanes = S::lane_numbers();
  each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
    if (at >= count) return;
    const auto counted =
        S::both(S::within(lanes, S::broadcast_int(0), S::broadcast_int(Int(count - at))),
                lanes != S::broadcast_int(Int(target - at)));
    f(v, at, [&](const typename S::Vector& x) HEADWISE_ALWAYS_INLINE {
      return S::select(counted, x, S::zero());
    });
  });
}

template <class T>
HEADWISE_INLINE T greatest_lane(typename Simd<T>::Vector x) {
  using S = Simd<T>;
  const auto with = [&](auto half) HEADWISE_ALWAYS_INLINE {
    if constexpr (half != 0) {
      [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
        x = S::greater(x, __builtin_shufflevector(x, x, (n ^ half)...));
      }
      (std::make_integer_sequence<int, S::width>());
    }
  };
  with(std::integral_constant<int, S::width / 2>{});
  with(std::integral_constant<int, S::width / 4>{});
  with(std::integral_constant<int, S::width / 8>{});
  with(std::integral_constant<int, S::width / 16>{});
  T lanes[std::size_t{S::width}];
  S::store(x, lanes);
  return lanes[0];
}

template <class T>
T greatest_logit(Row<const T> x, Index V) {
  using S = Simd<T>;
  constexpr T least = std::numeric_limits<T>::lowest();
  const RowPieces<T> row{V};
  Piece<T> copy;
  const auto lowest = S::broadcast(least);
  typename S::Vector most[] = {lowest, lowest, lowest, lowest};
  each_piece(row, [&](Index n) HEADWISE_ALWAYS_INLINE {
    const Index count = row.count(n);
    if (count == Piece<T>::size) {
      const T* in = row.read(x, n, least, copy);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        most[v] = S::greater(most[v], S::load(in + at));
      });
      return;
    }
    each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
      if (at >= count) return;
      most[v] = S::greater(most[v], load_lanes<T>({&x[n + at], x.step}, count - at, least));
    });
  });
  return greatest_lane<T>(S::greater(S::greater(most[0], most[1]), S::greater(most[2], most[3])));
}

template <class T>
CrossEntropy<T> cross_entropy_of(Row<const T> x, Index V, Index target) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{V};
  const T most = greatest_logit<T>(x, V);
  const auto greatest = S::broadcast(most);
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Piece<T> copy, weights;
  Chains<T> sums, totals;
  T of_target = T(0);
  const auto weight_at = [&](const Vector& in) HEADWISE_ALWAYS_INLINE {
    return simd::HEADWISE_ISA::weight_of<T>((in - greatest) * unit);
  };
  const auto add = [&](Index n, bool whole, Index at_target) HEADWISE_ALWAYS_INLINE {
    if (whole) {
      const T* in = row.read(x, n, most, copy);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        sums.sums[v] = sums.sums[v] + weight_at(S::load(in + at));
      });
      return;
    }
    const Index count = row.count(n);
    each_vector_but_target<T>(
        count, at_target, [&](auto v, Index at, auto counts) HEADWISE_ALWAYS_INLINE {
          const auto weight = weight_at(load_lanes<T>({&x[n + at], x.step}, count - at, most));
          S::store(weight, weights.data + at);
          sums.sums[v] = sums.sums[v] + counts(weight);
        });
    if (at_target >= 0) of_target = weights.data[at_target];
  };
  each_piece_but_target<T>(row, target, sums, totals, add);
  return cross_entropy_from<T>(most, x[target], of_target, totals.total());
}

template <class T>
void cross_entropy_backward_of(Row<const T> x, Index V, Index target, T lse, T factor, Row<T> dx) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  const RowPieces<T> row{V};
  const auto centre = S::broadcast(lse), by = S::broadcast(factor);
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  Piece<T> copy, result, weights;
  Chains<T> sums, totals;
  T of_target = T(0);
  const auto weight_at = [&](const Vector& in) HEADWISE_ALWAYS_INLINE {
    return simd::HEADWISE_ISA::weight_of<T>((in - centre) * unit);
  };
  const auto flow = [&](Index n, bool whole, Index at_target) HEADWISE_ALWAYS_INLINE {
    if (whole) {
      const T* in = row.read(x, n, lse, copy);
      T* out = row.write(dx, n, result);
      each_vector<T>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        const auto p = weight_at(S::load(in + at));
        S::store(by * p, out + at);
        sums.sums[v] = sums.sums[v] + p;
      });
      row.written(out, dx, n, result);
      return;
    }
    const Index count = row.count(n);
    each_vector_but_target<T>(
        count, at_target, [&](auto v, Index at, auto counts) HEADWISE_ALWAYS_INLINE {
          const auto p = weight_at(load_lanes<T>({&x[n + at], x.step}, count - at, lse));
          S::store(p, weights.data + at);
          store_lanes<T>(by * p, {&dx[n + at], dx.step}, count - at);
          sums.sums[v] = sums.sums[v] + counts(p);
        });
    if (at_target >= 0) of_target = weights.data[at_target];
  };
  each_piece_but_target<T>(row, target, sums, totals, flow);
  dx[target] = T(0) - factor * (totals.total() + T(0) * of_target);
}

template <Scalar T>
void cross_entropy_rows(const CrossEntropyRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    CrossEntropy<T> result{T(0), T(0)};
    if (of.targets[n] >= 0) {
      const auto x = row(of.logits, n);
      if constexpr (simd::vectorised<T>) {
        result = cross_entropy_of<T>(x, of.V, of.targets[n]);
      } else {
        result = cross_entropy_row<T>(x, of.V, of.targets[n]);
      }
    }
    of.losses[n] = result.loss;
    if (of.lse.data != nullptr) of.lse[n] = result.lse;
  }
}

template <Scalar T>
void cross_entropy_backward_rows(const CrossEntropyBackwardRows<T>& of, Index begin, Index end) {
  for (Index n = begin; n < end; ++n) {
    const auto x = row(of.logits, n);
    const auto dx = row(of.d_logits, n);
    if (of.targets[n] < 0) {
      for (Index v = 0; v < of.V; ++v) dx[v] = T(0);
    } else if constexpr (simd::vectorised<T>) {
      cross_entropy_backward_of<T>(x, of.V, of.targets[n], of.lse[n], of.factor, dx);
    } else {
      cross_entropy_backward_row<T>(x, of.V, of.targets[n], of.lse[n], of.factor, dx);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/rotary.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
HEADWISE_INLINE void load_neighbours(const T* from, typename Simd<T>::Vector& first,
                                     typename Simd<T>::Vector& second) {
  constexpr int width = Simd<T>::width;
  const auto low = Simd<T>::load(from), high = Simd<T>::load(from + width);
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    first = __builtin_shufflevector(low, high, (2 * n)...);
    second = __builtin_shufflevector(low, high, (2 * n + 1)...);
  }
  (std::make_integer_sequence<int, width>());
}
template <class T>
HEADWISE_INLINE void store_neighbours(const typename Simd<T>::Vector& first,
                                      const typename Simd<T>::Vector& second, T* to) {
  constexpr int width = Simd<T>::width;
  [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
    Simd<T>::store(__builtin_shufflevector(first, second, (n / 2 + n % 2 * width)...), to);
    Simd<T>::store(__builtin_shufflevector(first, second, (n / 2 + n % 2 * width + width / 2)...),
                   to + width);
  }
  (std::make_integer_sequence<int, width>());
}

template <class T>
struct RowPairs {
  Row<T> first, second;

  RowPairs(Row<T> x, const RotaryRows<std::remove_const_t<T>>& of)
      : first(of.interleaved ? Row<T>{x.data, 2 * x.step} : x),
        second(of.interleaved ? Row<T>{x.data + x.step, 2 * x.step}
                              : Row<T>{x.data + of.width / 2 * x.step, x.step}) {}
  Row<T> first_from(Index t) const { return {&first[t], first.step}; }
  Row<T> second_from(Index t) const { return {&second[t], second.step}; }
};

template <class T>
void rotate_row(const RotaryRows<T>& of, Row<const T> cosines, Row<const T> sines, Row<const T> x,
                Row<T> y) {
  using S = Simd<T>;
  const RowPairs<const T> from(x, of);
  const RowPairs<T> to(y, of);
  const Index pairs = of.width / 2;
  const bool neighbours = of.interleaved && x.step == 1 && y.step == 1;
  for (Index t = 0; t < pairs; t += S::width) {
    const Index count = std::min<Index>(S::width, pairs - t);
    const auto c = load_lanes<T>({&cosines[t], cosines.step}, count, T(0));
    auto s = load_lanes<T>({&sines[t], sines.step}, count, T(0));
    if (of.transposed) s = S::zero() - s;
    const bool parted = neighbours && count == S::width;
    typename S::Vector a, b;
    if (parted) {
      load_neighbours<T>(x.data + 2 * t, a, b);
    } else {
      a = load_lanes<T>(from.first_from(t), count, T(0));
      b = load_lanes<T>(from.second_from(t), count, T(0));
    }
    const auto first = S::fma(a, c, S::zero() - b * s), second = S::fma(a, s, b * c);
    if (parted) {
      store_neighbours<T>(first, second, y.data + 2 * t);
    } else {
      store_lanes<T>(first, to.first_from(t), count);
      store_lanes<T>(second, to.second_from(t), count);
    }
  }
}

template <Scalar T>
void rotate_rows(const RotaryRows<T>& of, Matrix<const T> x, Matrix<T> y, Index begin, Index end) {
  for (Index i = begin; i < end; ++i) {
    const auto from = row(x, i);
    const auto to = row(y, i);
    const auto cosines = row(of.cosines, i), sines = row(of.sines, i);
    if constexpr (simd::vectorised<T>) {
      rotate_row<T>(of, cosines, sines, from, to);
    } else {
      const RowPairs<const T> in(from, of);
      const RowPairs<T> out(to, of);
      for (Index t = 0; t < of.width / 2; ++t) {
        const T a = in.first[t], b = in.second[t], c = cosines[t];
        const T s = of.transposed ? T(T(0) - sines[t]) : sines[t];
        out.first[t] = a * c - b * s;
        out.second[t] = a * s + b * c;
      }
    }
    if (from.data == to.data) continue;
    for (Index n = of.width; n < of.d; ++n) to[n] = from[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/optimizer.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <Scalar T>
HEADWISE_INLINE typename Simd<T>::Vector square_root(const typename Simd<T>::Vector& x) {
  using Vector [[maybe_unused]] = typename Simd<T>::Vector;
  if constexpr (!simd::vectorised<T>) {
    using std::sqrt;
    return sqrt(x);
#if HEADWISE_ISA_BYTES == 64
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(Vector, _mm512_maskz_sqrt_ps(0xFFFF, __builtin_bit_cast(__m512, x)));
  } else {
    return __builtin_bit_cast(Vector, _mm512_maskz_sqrt_pd(0xFF, __builtin_bit_cast(__m512d, x)));
#elif HEADWISE_ISA_BYTES == 32
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(Vector, _mm256_sqrt_ps(__builtin_bit_cast(__m256, x)));
  } else {
    return __builtin_bit_cast(Vector, _mm256_sqrt_pd(__builtin_bit_cast(__m256d, x)));
#else
  } else {
    T lanes[std::size_t{Simd<T>::width}];
    Simd<T>::store(x, lanes);
    for (T& lane : lanes) lane = std::sqrt(lane);
    return Simd<T>::load(lanes);
#endif
  }
}

template <Scalar T, class F, class... To>
HEADWISE_INLINE void each_whole_vector(Index n, const F& f, const T* from, To*... to) {
  constexpr Index width = Simd<T>::width;
  Index i = 0;
  for (; i + width <= n; i += width) f(from + i, (to + i)...);
  if constexpr (width > 1) {
    if (i == n) return;
    T read[std::size_t{width}] = {}, written[sizeof...(to)][std::size_t{width}] = {};
    const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(T);
    std::memcpy(read, from + i, bytes);
    [&]<std::size_t... k>(std::index_sequence<k...>) HEADWISE_ALWAYS_INLINE {
      (std::memcpy(written[k], to + i, bytes), ...);
      f(read, written[k]...);
      (std::memcpy(to + i, written[k], bytes), ...);
    }
    (std::index_sequence_for<To...>());
  }
}

template <Scalar T>
void adamw(const AdamWStep<T>& step, T* p, const T* g, T* m, T* v, Index n) {
  using S = Simd<T>;
  const auto scale = S::broadcast(step.gradient_scale), keep = S::broadcast(step.keep);
  const auto new_m = S::broadcast(step.one_minus_beta1), rest = S::broadcast(step.rest_of_m);
  const auto beta2 = S::broadcast(step.beta2), new_v = S::broadcast(step.one_minus_beta2);
  const auto correction = S::broadcast(step.root_correction);
  const auto epsilon = S::broadcast(step.epsilon), minus_step = S::broadcast(step.minus_step);
  const auto update = [&](const T* g_at, T* p_at, T* m_at, T* v_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = S::load(g_at) * scale;
    const auto old_m = S::load(m_at);
    const auto way = gradient - old_m;
    const auto m_now = step.near_gradient ? gradient - way * rest : old_m + new_m * way;
    const auto v_now = S::load(v_at) * beta2 + new_v * gradient * gradient;
    const auto root = square_root<T>(v_now) / correction + epsilon;
    S::store(S::load(p_at) * keep + minus_step * m_now / root, p_at);
    S::store(m_now, m_at);
    S::store(v_now, v_at);
  };
  each_whole_vector(n, update, g, p, m, v);
}

template <Scalar T>
void sgd(const SgdStep<T>& step, T* p, const T* g, T* u, Index n) {
  using S = Simd<T>;
  const auto scale = S::broadcast(step.gradient_scale), decay = S::broadcast(step.weight_decay);
  const auto momentum = S::broadcast(step.momentum);
  const auto fresh = S::broadcast(step.one_minus_dampening);
  const auto minus_rate = S::broadcast(step.minus_rate);
  const auto gradient_of = [&](const T* p_at, const T* g_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = S::load(g_at) * scale;
    return step.decays ? gradient + decay * S::load(p_at) : gradient;
  };
  if (u == nullptr) {
    const auto update = [&](const T* g_at, T* p_at) HEADWISE_ALWAYS_INLINE {
      S::store(S::load(p_at) + minus_rate * gradient_of(p_at, g_at), p_at);
    };
    return each_whole_vector(n, update, g, p);
  }
  const auto update = [&](const T* g_at, T* p_at, T* u_at) HEADWISE_ALWAYS_INLINE {
    const auto gradient = gradient_of(p_at, g_at);
    const auto velocity = step.first ? gradient : S::load(u_at) * momentum + fresh * gradient;
    const auto by = step.nesterov ? gradient + momentum * velocity : velocity;
    S::store(S::load(p_at) + minus_rate * by, p_at);
    S::store(velocity, u_at);
  };
  each_whole_vector(n, update, g, p, u);
}

template <Scalar T>
void scale_elements(T factor, T* x, Index n) {
  using S = Simd<T>;
  const auto by = S::broadcast(factor);
  const auto update = [&](const T* from, T* to)
                          HEADWISE_ALWAYS_INLINE { S::store(S::load(from) * by, to); };
  each_whole_vector(n, update, static_cast<const T*>(x), x);
}

template <Scalar T>
HEADWISE_INLINE typename Simd<SumOf<T>>::Vector widened(const T* from) {
  using Vector [[maybe_unused]] = typename Simd<SumOf<T>>::Vector;
  if constexpr (std::same_as<T, SumOf<T>>) {
    return Simd<T>::load(from);
  } else {
    typedef float Half __attribute__((vector_size(HEADWISE_ISA_BYTES / 2)));
    Half half;
    std::memcpy(&half, from, sizeof half);
#if HEADWISE_ISA_BYTES == 64
    return __builtin_bit_cast(Vector,
                              _mm512_maskz_cvtps_pd(0xFF, __builtin_bit_cast(__m256, half)));
#elif HEADWISE_ISA_BYTES == 32
    return __builtin_bit_cast(Vector, _mm256_cvtps_pd(__builtin_bit_cast(__m128, half)));
#else
    return __builtin_convertvector(half, Vector);
#endif
  }
}

template <Scalar T>
SumOf<T> sum_of_squares(const T* x, Index n) {
  using S = Simd<SumOf<T>>;
  constexpr Index together = Piece<SumOf<T>>::size;
  if constexpr (S::width == 1) {
    SumOf<T> sum = T(0);
    for (Index i = 0; i < n; ++i) sum = sum + x[i] * x[i];
    return sum;
  } else {
    Chains<SumOf<T>> chains;
    T copy[std::size_t{together}] = {};
    for (Index i = 0; i < n; i += together) {
      const T* from = x + i;
      if (i + together > n) {
        std::memcpy(copy, from, static_cast<std::size_t>(n - i) * sizeof(T));
        from = copy;
      }
      each_vector<SumOf<T>>([&](auto v, Index at) HEADWISE_ALWAYS_INLINE {
        const auto y = widened<T>(from + at);
        chains.sums[v] = S::fma(y, y, chains.sums[v]);
      });
    }
    return chains.total();
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/activation.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T, Activation which>
struct Shares {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  using Logistic = simd::LogisticConstants<T>;
  static constexpr T bound = which == Activation::gelu   ? simd::NormalConstants<T>::bound
                             : which == Activation::silu ? Logistic::bound
                                                         : Logistic::tanh_bound;
  typename S::IntVector negative;
  Vector below;  // -|x|, at least -bound
  Vector share, density;

  HEADWISE_INLINE explicit Shares(const Vector& x)
      : negative(x < S::zero()), below(simd::HEADWISE_ISA::below_zero<T>(x, bound)) {
    if constexpr (which == Activation::gelu) {
      const Vector power = simd::HEADWISE_ISA::normal_power<T>(below);
      const Vector tail = power * simd::HEADWISE_ISA::normal_tail<T>(below);
      share = S::select(negative, tail, T(1) - tail);
      constexpr T peak = static_cast<T>(0.39894228040143267793994605993438187L);  // 1 / sqrt(2 pi)
      density = power * peak;
    } else if constexpr (which == Activation::silu) {
      logistic(below);
    } else {
      constexpr T linear = static_cast<T>(GeluTanh::linear),
                  cubic = static_cast<T>(GeluTanh::cubic);
      const Vector square = below * below;
      logistic(below * S::fma(square, S::broadcast(cubic), S::broadcast(linear)));
      density = density * S::fma(square, S::broadcast(3 * cubic), S::broadcast(linear));
    }
  }
  HEADWISE_INLINE Vector value(const Vector& x) const {
    return S::select(negative, below, x) * share;
  }
  HEADWISE_INLINE Vector slope() const {
    return S::fma(S::select(negative, below, -below), density, share);
  }

 private:
  HEADWISE_INLINE void logistic(const Vector& z) {  // <= 0
    const Vector power = simd::HEADWISE_ISA::power_of_e<T>(z);
    const Vector most = T(1) / (T(1) + power), least = power * most;
    share = S::select(negative, least, most);
    density = least * most;
  }
};

template <class T>
struct Shares<T, Activation::relu> {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  Vector x;

  HEADWISE_INLINE explicit Shares(const Vector& of) : x(of) {}
  HEADWISE_INLINE Vector value(const Vector&) const {
    return S::select(x < S::zero(), S::zero(), x);
  }
  HEADWISE_INLINE Vector slope() const {
    return S::select(x <= S::zero(), S::zero(), S::broadcast(T(1)));
  }
};

template <class T, Activation which>
void activate(const ActivationRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  const RowPieces<T> pieces{of.F};
  Piece<T> copied_x, copied_up, result;
  for (Index i = begin; i < end; ++i) {
    const auto x = row(of.x, i), up = row(of.up, i);
    const auto y = row(of.y, i);
    each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* in = pieces.read(x, n, T(0), copied_x);
      const T* by = of.up.data == nullptr ? nullptr : pieces.read(up, n, T(0), copied_up);
      T* out = pieces.write(y, n, result);
      each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
        const auto value = S::load(in + at);
        auto got = Shares<T, which>(value).value(value);
        if (by != nullptr) got = got * S::load(by + at);
        S::store(got, out + at);
      });
      pieces.written(out, y, n, result);
    });
  }
}

template <class T, Activation which>
void activate_backward(const ActivationBackwardRows<T>& of, Index begin, Index end) {
  using S = Simd<T>;
  const RowPieces<T> pieces{of.F};
  Piece<T> copied_dy, copied_x, copied_up, result, result_up;
  for (Index i = begin; i < end; ++i) {
    const auto dy = row(of.dy, i), x = row(of.x, i), up = row(of.up, i);
    const auto dx = row(of.dx, i), d_up = row(of.d_up, i);
    each_piece(pieces, [&](Index n) HEADWISE_ALWAYS_INLINE {
      const T* flow = pieces.read(dy, n, T(0), copied_dy);
      const T* in = pieces.read(x, n, T(0), copied_x);
      const T* by = of.up.data == nullptr ? nullptr : pieces.read(up, n, T(0), copied_up);
      T* out = pieces.write(dx, n, result);
      T* out_up = by == nullptr ? nullptr : pieces.write(d_up, n, result_up);
      each_vector<T>([&](auto, Index at) HEADWISE_ALWAYS_INLINE {
        const auto d = S::load(flow + at), value = S::load(in + at);
        const Shares<T, which> shares(value);
        const auto slope = shares.slope();
        const auto idle = d == S::zero();
        auto through = d;
        if (by != nullptr) {
          through = d * S::load(by + at);
          S::store(S::select(idle, S::zero(), d * shares.value(value)), out_up + at);
        }
        S::store(S::select(idle | (slope == S::zero()), S::zero(), through * slope), out + at);
      });
      pieces.written(out, dx, n, result);
      if (by != nullptr) pieces.written(out_up, d_up, n, result_up);
    });
  }
}

template <Scalar T>
void activation_rows(const ActivationRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    using enum Activation;
    if (of.which == relu) return activate<T, relu>(of, begin, end);
    if (of.which == gelu) return activate<T, gelu>(of, begin, end);
    if (of.which == gelu_tanh) return activate<T, gelu_tanh>(of, begin, end);
    activate<T, silu>(of, begin, end);
  } else {
    for (Index i = begin; i < end; ++i) {
      for (Index n = 0; n < of.F; ++n) {
        const T value = activation_value<T>(of.which, of.x(i, n));
        of.y(i, n) = of.up.data == nullptr ? value : T(value * of.up(i, n));
      }
    }
  }
}

template <Scalar T>
void activation_backward_rows(const ActivationBackwardRows<T>& of, Index begin, Index end) {
  if constexpr (simd::vectorised<T>) {
    using enum Activation;
    if (of.which == relu) return activate_backward<T, relu>(of, begin, end);
    if (of.which == gelu) return activate_backward<T, gelu>(of, begin, end);
    if (of.which == gelu_tanh) return activate_backward<T, gelu_tanh>(of, begin, end);
    activate_backward<T, silu>(of, begin, end);
  } else {
    const bool gated = of.up.data != nullptr;
    for (Index i = begin; i < end; ++i) {
      for (Index n = 0; n < of.F; ++n) {
        const T dy = of.dy(i, n);
        const ValueAndSlope<T> f(of.which, of.x(i, n), gated);
        const T through = gated ? T(dy * of.up(i, n)) : dy;
        const bool idle = dy == T(0);
        if (gated) of.d_up(i, n) = idle ? T(0) : T(dy * f.value);
        of.dx(i, n) = idle || f.slope == T(0) ? T(0) : T(through * f.slope);
      }
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/attention_head.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
Index head_products_scratch(Index L, Index S, Index d, Index dv) {
  const Index width = std::max<Index>(d, dv);
  return std::max<Index>({gemm_scratch<T>({L, S, width}), gemm_scratch<T>({L, width, S}),
                          gemm_scratch<T>({S, width, L})});
}
template <class T>
Index attention_forward_scratch(Index L, Index S, Index d, Index dv, bool dropout) {
  return head_products_scratch<T>(L, S, d, dv) + (dropout ? padded<T>(L * S) : 0);
}
template <class T>
Index attention_backward_scratch(Index L, Index S, Index d, Index dv, bool dropout) {
  return head_products_scratch<T>(L, S, d, dv) + padded<T>(L * S) * (dropout ? 2 : 1);
}

template <class T>
void drop_weights(const AttentionHead<T>& head, Matrix<const T> weights, T* dropped) {
  for (Index i = 0; i < head.L; ++i, dropped += head.S) {
    dropout_factors<T>(head.dropout, head.b, head.h, i, 0, head.S, dropped);
    for (Index j = 0; j < head.S; ++j) dropped[j] = dropped[j] * weights(i, j);
  }
}

template <class T>
void score_head(const AttentionHead<T>& head, Matrix<T> scores, T* scratch) {
  gemm<T>(head.q, head.k.transposed(), scores, {head.L, head.S, head.d}, {.alpha = head.scale},
          scratch);
  if (head.visibility.bias_count() == 0) return;
  for (Index i = 0; i < head.L; ++i) {
    for (Index j = 0; j < head.S; ++j) {
      if (head.visibility.visible(i, j)) scores(i, j) = scores(i, j) + head.visibility.bias(i, j);
    }
  }
}

template <class T>
void softmax_head_row(const AttentionHead<T>& head, Index i, Row<T> x) {
  if constexpr (simd::vectorised<T>) {
    softmax_of<T>(x, x, head.S, RowMask<T>(head.visibility, i));
  } else {
    softmax_row(x, head.S, [&](Index j) { return head.visibility.visible(i, j); });
  }
}

template <class T>
void softmax_head_row_backward(const AttentionHead<T>& head, Index i, Row<const T> p, T* dp) {
  Piece<T> factors;
  const Index S = head.S;
  for (Index j = 0; head.dropout.active() && j < S; j += Piece<T>::size) {
    const Index count = std::min<Index>(Piece<T>::size, S - j);
    dropout_factors<T>(head.dropout, head.b, head.h, i, j, count, factors.data);
    for (Index t = 0; t < count; ++t) {
      const T& factor = factors.data[t];
      dp[j + t] = factor == T(0) ? T(0) : T(dp[j + t] * factor);
    }
  }
  const Row<T> ds{dp, 1};
  if constexpr (simd::vectorised<T>) {
    softmax_backward_of<T>(ds, p, ds, S, head.scale, RowMask<T>(head.visibility, i));
  } else {
    softmax_backward_row<T>(ds, p, ds, S, [&](Index j) { return head.visibility.visible(i, j); });
    for (Index j = 0; j < S; ++j) dp[j] = head.scale * dp[j];
  }
}

template <class T>
void attention_head_forward(const AttentionHead<T>& head, Matrix<T> weights, Matrix<T> o,
                            Scratch<T> memory) {
  T* packed = memory.take(head_products_scratch<T>(head.L, head.S, head.d, head.dv));
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  score_head<T>(head, weights, packed);
  for (Index i = 0; i < head.L; ++i) softmax_head_row<T>(head, i, row(weights, i));
  Matrix<const T> p = weights;
  if (head.dropout.active()) {
    T* dropped = memory.take(head.L * head.S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, head.S, 1};
  }
  gemm_visible<T>(p, head.v, o, {head.L, head.dv, head.S}, {}, packed, head.visibility.sees_all(),
                  sees);
}

template <class T>
void attention_head_backward(const AttentionHead<T>& head, Matrix<const T> d_o,
                             Matrix<const T> weights, const HeadGradients<T>& to,
                             Scratch<T> memory) {
  const auto& [q, k, v, L, S, d, dv, scale, visibility, dropout, b, h] = head;
  T* packed = memory.take(head_products_scratch<T>(L, S, d, dv));
  const Matrix<T> ds{memory.take(L * S), S, 1};
  const bool all = visibility.sees_all();
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  const auto seen_by = [&](Index j, Index i) { return head.visibility.visible(i, j); };

  gemm<T>(d_o, v.transposed(), ds, {L, S, dv}, {}, packed);
  Matrix<const T> p = weights;
  if (dropout.active()) {
    T* dropped = memory.take(L * S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, S, 1};
  }
  gemm_visible<T>(p.transposed(), d_o, to.dv, {S, dv, L}, {.accumulate = to.accumulate}, packed,
                  all, seen_by);
  for (Index i = 0; i < L; ++i) {
    softmax_head_row_backward<T>(head, i, row(weights, i), ds.data + i * S);  // 4d to 4a
  }
  gemm_visible<T>(ds, k, to.dq, {L, d, S}, {}, packed, all, sees);
  gemm_visible<T>(Matrix<const T>(ds).transposed(), q, to.dk, {S, d, L},
                  {.accumulate = to.accumulate}, packed, all, seen_by);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/tile_mask.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

struct TileBlock {
  Index i0, rows, first, j0, begin, end;
};

template <class T, Index queries, Index keys, bool keys_in_rows>
class TileMask {
 public:
  using S = Simd<T>;
  using Int = typename S::Int;

  void fill(const HeadVisibility<T>& rules, TileBlock& block) {
    const auto in_block = [&](Index j) { return std::clamp(j - block.j0, Index{0}, block.end); };
    asked_ = rules.has_pair_masks();
    full_ = rules.sees_all(block.i0, block.rows, {block.j0, block.j0 + block.end});
    pairs_ = std::int64_t{block.rows} * block.end;
    if (full_) return;
    pairs_ = 0;
    for (Index r = 0; r < queries; ++r) {
      const KeyRange range = r < block.rows ? rules.range(block.i0 + r) : KeyRange{0, 0};
      begin_[r] = static_cast<Int>(in_block(range.begin));
      end_[r] = std::max<Int>(begin_[r], static_cast<Int>(in_block(range.end)));
      pairs_ += end_[r] - begin_[r];
      for (Index j = begin_[r]; asked_ && j < end_[r]; ++j) {
        bytes_[at(r, j)] = rules.pair_visible(block.i0 + r, block.j0 + j);
      }
    }
    block.begin = begin_[0];
    block.end = end_[block.rows - 1];
  }

  bool full() const { return full_; }
  std::int64_t pairs() const { return pairs_; }
  KeyRange range(Index r) const { return {begin_[r], end_[r]}; }
  bool visible(Index r, Index j) const {
    return full_ || (j >= begin_[r] && j < end_[r] && (!asked_ || bytes_[at(r, j)] != 0));
  }
  HEADWISE_INLINE typename S::IntVector to_queries(Index j, Index r) const {
    const auto key = S::broadcast_int(static_cast<Int>(j));
    const auto seen = S::within(key, S::load_ints(begin_ + r), S::load_ints(end_ + r));
    return asked_ ? S::both(seen, S::load_bytes(bytes_ + at(r, j))) : seen;
  }
  HEADWISE_INLINE typename S::IntVector of_keys(Index r, Index j) const {
    const auto key = S::lane_numbers() + S::broadcast_int(static_cast<Int>(j));
    const auto seen = S::within(key, S::broadcast_int(begin_[r]), S::broadcast_int(end_[r]));
    return asked_ ? S::both(seen, S::load_bytes(bytes_ + at(r, j))) : seen;
  }

 private:
  static constexpr Index at(Index r, Index j) {
    return keys_in_rows ? r * keys + j : j * queries + r;
  }

  bool full_ = false, asked_ = false;
  std::int64_t pairs_ = 0;
  Int begin_[static_cast<std::size_t>(queries)], end_[static_cast<std::size_t>(queries)];
  std::uint8_t bytes_[static_cast<std::size_t>(queries * keys)];
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/online_softmax.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct ForwardTile {
  static constexpr Index lanes = Tile<T>::columns;  // queries of a panel
  static constexpr Index queries = 512;             // most of a task: whole panels
  static constexpr Index keys = 128;                // of a block
};

template <class T>
using ForwardMask = TileMask<T, ForwardTile<T>::lanes, ForwardTile<T>::keys, false>;

template <class T>
struct OnlineSoftmax {
  static constexpr std::size_t queries = static_cast<std::size_t>(ForwardTile<T>::queries);
  using Int = typename Simd<T>::Int;

  T greatest[queries];
  T sum[queries];
  T factor[queries];  // what the context is multiplied by when a block of keys is added
  Int any[queries];   // whether a key was visible

  explicit OnlineSoftmax(Index rows) {
    using S = Simd<T>;
    for (Index r = 0; r < rows; r += S::width) {
      S::store(S::broadcast(std::numeric_limits<T>::lowest()), greatest + r);
      S::store(S::zero(), sum + r);
      S::store_ints(S::broadcast_int(0), any + r);
    }
  }
};

struct AllVisible {};

template <class T, class Visible>
void take_scores(T* s, const TileBlock& block, T unit, const Visible& visible, Index lane,
                 OnlineSoftmax<T>& softmax) {
  using S = Simd<T>;
  using Vector = typename S::Vector;
  using simd::HEADWISE_ISA::weight_of;
  constexpr bool all = std::same_as<Visible, AllVisible>;
  constexpr Index lanes = ForwardTile<T>::lanes;
  constexpr int chains = 8;
  s += lane;
  const Index at = block.first + lane;
  const Index begin = all ? 0 : block.begin / chains * chains, end = block.end;
  const Vector before = S::load(softmax.greatest + at), units = S::broadcast(unit);
  auto any = all ? S::broadcast_int(-1) : S::load_ints(softmax.any + at);

  Vector greatest[4] = {before, before, before, before};
  const auto compare = [&](Index j, Vector& so_far) HEADWISE_ALWAYS_INLINE {
    Vector x = S::load(s + j * lanes);
    if constexpr (!all) {
      const auto seen = visible.to_queries(j, lane);
      any = any | seen;
      x = S::select(seen, x, before);
    }
    so_far = S::greater(so_far, x);
  };
  Index j = begin;
  for (; j + 4 <= end; j += 4) {
    unrolled<4>([&](auto t) HEADWISE_ALWAYS_INLINE { compare(j + t, greatest[t]); });
  }
  for (; j < end; ++j) compare(j, greatest[0]);
  const Vector m =
      S::greater(S::greater(greatest[0], greatest[1]), S::greater(greatest[2], greatest[3]));

  Vector sums[std::size_t{chains}];
  unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE { sums[t] = S::zero(); });
  const auto weigh = [&](Index key, Vector& sum) HEADWISE_ALWAYS_INLINE {
    Vector x = S::load(s + key * lanes);
    if constexpr (!all) x = S::select(visible.to_queries(key, lane), x, m);  // nobody wrote it
    Vector p = weight_of<T>((x - m) * units);
    if constexpr (!all) p = S::select(visible.to_queries(key, lane), p, S::zero());
    S::store(p, s + key * lanes);
    sum = sum + p;
  };
  for (j = begin; j + chains <= end; j += chains) {
    unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE { weigh(j + t, sums[t]); });
  }
  unrolled<chains>([&](auto t) HEADWISE_ALWAYS_INLINE {
    if (j + t < end) weigh(j + t, sums[t]);
  });
  unrolled<4>([&](auto t) HEADWISE_ALWAYS_INLINE { sums[t] = sums[t] + sums[t + 4]; });
  const Vector total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  const Vector factor = weight_of<T>((before - m) * units);
  S::store(S::fma(S::load(softmax.sum + at), factor, total), softmax.sum + at);
  S::store(m, softmax.greatest + at);
  S::store(factor, softmax.factor + at);
  S::store_ints(any, softmax.any + at);
}

template <class T>
void store_logsumexp(bool any, T m, T sum, Matrix<T> lse, Index i) {
  using std::log;
  if (!any) {
    set_negative_infinity(lse(i, 0));
    lse(i, 1) = T(0);
    return;
  }
  const T log_sum = T(log(sum)), rounded = m + log_sum;
  const bool m_is_larger = (m < T(0) ? T(0) - m : m) > (log_sum < T(0) ? T(0) - log_sum : log_sum);
  lse(i, 0) = rounded;
  lse(i, 1) = m_is_larger ? log_sum - (rounded - m) : m - (rounded - log_sum);  // exact
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/dropout_panel.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

#if HEADWISE_ISA_BYTES >= 32
template <class T>
HEADWISE_INLINE void draw_queries(const AttentionHead<T>& head, Index i, Index j8,
                                  typename Simd<T>::BitVector (&words)[4]) {
  const auto draw = [&](Index first, PhiloxLanes(&c)[4]) HEADWISE_ALWAYS_INLINE {
    c[0] = in_all_lanes(j8);
    c[1] = counting_from(first);
    c[2] = in_all_lanes(head.h);
    c[3] = in_all_lanes(head.b);
    draw_blocks(c, head.dropout.key());
  };
  PhiloxLanes low[4];
  draw(i, low);
  if constexpr (sizeof(T) == 8) {
    unrolled<4>([&](auto w) HEADWISE_ALWAYS_INLINE { words[w] = low[w]; });
  } else {
    using Bits = typename Simd<T>::BitVector;
    PhiloxLanes high[4];
    draw(i + philox_lanes, high);
    [&]<int... n>(std::integer_sequence<int, n...>) HEADWISE_ALWAYS_INLINE {
      unrolled<4>([&](auto w) HEADWISE_ALWAYS_INLINE {
        words[w] = __builtin_shufflevector(__builtin_bit_cast(Bits, low[w]),
                                           __builtin_bit_cast(Bits, high[w]), (2 * n)...);
      });
    }
    (std::make_integer_sequence<int, Simd<T>::width>());
  }
}
#endif

template <class T>
void drop_panel(const AttentionHead<T>& head, const TileBlock& block, T* s, T* factors) {
  constexpr Index lanes = ForwardTile<T>::lanes;
#if HEADWISE_ISA_BYTES >= 32
  if constexpr (draws_by_lanes<T>) {
    using S = Simd<T>;
    using Bits = typename S::BitVector;
    const auto limit = S::broadcast_int(static_cast<typename S::Int>(head.dropout.threshold()));
    const auto factor = S::broadcast(T(head.dropout.keep_factor()));
    const Index first = (block.j0 + block.begin) / 8 * 8 - block.j0;
    for (Index lane = 0; lane < block.rows; lane += S::width) {
      for (Index j = first; j < block.end; j += 8) {
        Bits words[4];
        draw_queries<T>(head, block.i0 + lane, (block.j0 + j) / 8, words);
        unrolled<8>([&](auto e) HEADWISE_ALWAYS_INLINE {
          if (j + e < block.begin || j + e >= block.end) return;
          const auto bits = (e % 2 == 0 ? words[e / 2] : words[e / 2] >> 16) & 0xFFFFu;
          const auto kept = __builtin_convertvector(bits, typename S::IntVector) >= limit;
          T* p = s + (j + e) * lanes + lane;
          S::store(S::load(p) * S::select(kept, factor, S::zero()), p);
        });
      }
    }
    return;
  }
#endif
  for (Index r = 0; r < block.rows; ++r) {
    head.dropout.row(head.b, head.h, block.i0 + r, block.j0 + block.begin, block.end - block.begin,
                     T(head.dropout.keep_factor()), factors);
    for (Index j = block.begin; j < block.end; ++j) {
      T& p = s[j * lanes + r];
      p = p * factors[j - block.begin];
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_forward.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct ForwardScratch {
  using Sizes = ForwardTile<T>;

  T* q;        // q^T in panels [d, lanes]
  T* s;        // [keys, lanes]
  T* k;        // [keys, d], dense
  T* v;        // [keys, dv], dense
  T* kept;     // v without what one query may not see
  T* context;  // [queries, dv], rows of whole vectors
  T* factors;  // [keys], dropout of a row

  constexpr ForwardScratch(Scratch<T>& memory, Index d, Index dv)
      : q(memory.take(packed_size<T>(d, Sizes::queries))),
        s(memory.take(Sizes::keys * Sizes::lanes)),
        k(memory.take(copied_size<T>(Sizes::keys, d))),
        v(memory.take(copied_size<T>(Sizes::keys, dv))),
        kept(memory.take(copied_size<T>(Sizes::keys, dv))),
        context(memory.take(Sizes::queries * round_up(dv, Tile<T>::width))),
        factors(memory.take(Sizes::keys)) {}
};

template <class T>
constexpr Index flash_forward_scratch(Index d, Index dv) {
  Scratch<T> count;
  ForwardScratch<T>(count, d, dv);
  return count.taken();
}

template <class T>
std::int64_t score_panel(const AttentionHead<T>& head, Matrix<const T> keys, const TileBlock& block,
                         const ForwardMask<T>& mask, T alpha, const ForwardScratch<T>& buffers) {
  constexpr Index lanes = ForwardTile<T>::lanes, width = Tile<T>::width;
  const T* q = buffers.q + block.first * head.d;
  const Index vectors = (block.rows + width - 1) / width;
  std::int64_t count = 0;
  for (Index j = block.begin, n = 0; j < block.end; j += n) {
    n = mask.full() ? block.end - block.begin : std::min<Index>(Tile<T>::rows, block.end - j);
    Index from = 0, to = vectors;
    while (!mask.full() && from < to &&
           mask.range(std::min<Index>(block.rows, (from + 1) * width) - 1).end <= j) {
      ++from;
    }
    while (!mask.full() && from < to && mask.range((to - 1) * width).begin >= j + n) --to;
    const auto k = keys.from(j, 0);
    run_panel<T>({k.data, k.row, k.column}, {q + from * width, 0, lanes}, n, to - from, head.d,
                 {buffers.s + j * lanes + from * width, lanes, Finish::assign, alpha});
    count += n * (to - from) * width * head.d;
  }
  if (head.visibility.bias_count() == 0) return count;
  for (Index r = 0; r < block.rows; ++r) {
    for (Index j = block.begin; j < block.end; ++j) {
      T& s = buffers.s[j * lanes + r];
      if (mask.visible(r, j)) s = s + head.visibility.bias(block.i0 + r, block.j0 + j);
    }
  }
  return count;
}

template <class T>
void weigh_panel(const AttentionHead<T>& head, const TileBlock& block, const ForwardMask<T>& mask,
                 T unit, const ForwardScratch<T>& buffers, OnlineSoftmax<T>& softmax) {
  for (Index lane = 0; lane < block.rows; lane += Tile<T>::width) {
    if (mask.full()) {
      take_scores<T>(buffers.s, block, unit, AllVisible{}, lane, softmax);
    } else {
      take_scores<T>(buffers.s, block, unit, mask, lane, softmax);
    }
  }
  if (head.dropout.active()) drop_panel<T>(head, block, buffers.s, buffers.factors);
}

template <class T>
std::int64_t add_values(const ForwardScratch<T>& buffers, const Operand<T>& v, Index dv,
                        const TileBlock& block, Index r, Index n, KeyRange range,
                        const OnlineSoftmax<T>& softmax) {
  constexpr Index lanes = ForwardTile<T>::lanes, width = Tile<T>::width;
  const Index row = round_up(dv, width), at = block.first + r;
  std::int64_t count = 0;
  for (Index c = 0; c < dv; c += Tile<T>::columns) {
    const Index vectors = (std::min<Index>(Tile<T>::columns, dv - c) + width - 1) / width;
    run_panel<T>(
        {buffers.s + range.begin * lanes + r, 1, lanes}, v.walk(c, range.begin), n, vectors,
        range.size(),
        {buffers.context + at * row + c, row, Finish::rescale, T(1), nullptr, softmax.factor + at});
    count += n * vectors * width * range.size();
  }
  return count;
}

template <class T>
std::int64_t add_visible_values(const AttentionHead<T>& head, const ForwardScratch<T>& buffers,
                                const Operand<T>& v, const TileBlock& block,
                                const ForwardMask<T>& mask, const OnlineSoftmax<T>& softmax) {
  if (mask.full()) {
    return add_values<T>(buffers, v, head.dv, block, 0, block.rows, {block.begin, block.end},
                         softmax);
  }
  std::int64_t count = 0;
  const Index together = v.finite ? Tile<T>::rows : 1;
  for (Index r = 0; r < block.rows; r += together) {
    const Index n = std::min<Index>(together, block.rows - r);
    const KeyRange range{mask.range(r).begin, mask.range(r + n - 1).end};
    if (range.begin >= range.end) continue;
    Operand<T> seen = v;
    if (!v.finite) {
      seen = copy_kept_rows<T>({v.data, v.step, 1}, range.end, head.dv, buffers.kept,
                               [&](Index j) { return mask.visible(r, j); });
    }
    count += add_values<T>(buffers, seen, head.dv, block, r, n, range, softmax);
  }
  return count;
}

template <class T>
struct KeyBlock {
  Matrix<const T> k;
  Operand<T> v;
};

template <class T>
KeyBlock<T> key_block(const AttentionHead<T>& head, Index j0, Index n, bool few, bool all_seen,
                      const ForwardScratch<T>& buffers) {
  const auto k = head.k.from(j0, 0), v = head.v.from(j0, 0);
  const auto stays = [&](Matrix<const T> x, Index N) {
    return x.column == 1 && N % Tile<T>::width == 0 && (few || x.row == N);
  };
  KeyBlock<T> block{k, {v.data, v.row, 1, true}};
  if (!few && !stays(k, head.d)) {
    const auto copy = copy_rows<T>(k, n, head.d, true, buffers.k);
    block.k = {copy.data, copy.step, 1};
  }
  if (!stays(v, head.dv)) {
    block.v = copy_rows<T>(v, n, head.dv, all_seen, buffers.v);
  } else {
    block.v.finite = all_seen || all_finite<T>(v, n, head.dv);
  }
  return block;
}

template <class T>
void divide_row(const T* from, T divisor, Index N, Matrix<T> to) {
  using S = Simd<T>;
  const auto by = S::broadcast(divisor);
  Index n = 0;
  for (; to.column == 1 && n + S::width <= N; n += S::width) {
    S::store(S::load(from + n) / by, to.data + n);
  }
  for (; n < N; ++n) to(0, n) = from[n] / divisor;
}

template <class T>
TileWork flash_forward(const AttentionHead<T>& head, Index i0, Index rows, Matrix<T> o,
                       Matrix<T> lse, Scratch<T> memory) {
  constexpr Index lanes = ForwardTile<T>::lanes, keys = ForwardTile<T>::keys;
  const ForwardScratch<T> buffers(memory, head.d, head.dv);
  const Index context_row = round_up(head.dv, Tile<T>::width);
  OnlineSoftmax<T> softmax(rows);
  ForwardMask<T> mask;
  TileWork work;
  pack<T>(head.q.from(i0, 0).transposed(), head.d, rows, buffers.q);
  set_zero<T>(buffers.context, rows * context_row);
  const bool folded = head.visibility.bias_count() == 0 && is_power_of_two(head.scale);
  const T alpha = folded ? T(1) : head.scale;
  const T unit = simd::HEADWISE_ISA::weight_unit<T>() * (folded ? head.scale : T(1));

  const KeyRange range = head.visibility.range(i0, rows);
  for (Index j0 = range.begin / keys * keys; j0 < range.end; j0 += keys) {
    const Index n = std::min<Index>(keys, range.end - j0);
    const bool all_seen = head.visibility.sees_all(i0, rows, {j0, j0 + n});
    const auto keys_here = key_block<T>(head, j0, n, rows <= 2 * lanes, all_seen, buffers);
    for (Index first = 0; first < rows; first += lanes) {
      TileBlock block{i0 + first, std::min<Index>(lanes, rows - first), first, j0, 0, n};
      mask.fill(head.visibility, block);
      if (block.begin >= block.end) continue;
      std::int64_t products = score_panel<T>(head, keys_here.k, block, mask, alpha, buffers);
      weigh_panel<T>(head, block, mask, unit, buffers, softmax);
      products += add_visible_values<T>(head, buffers, keys_here.v, block, mask, softmax);
      work.pairs += mask.pairs();
      work.executed_flops += 2 * products + (5 + score_extras(head, 1)) *
                                                round_up(block.rows, Tile<T>::width) *
                                                (block.end - block.begin);
    }
  }
  for (Index r = 0; r < rows; ++r) {
    const bool any = softmax.any[r] != 0;
    if (!any) softmax.sum[r] = T(1);
    divide_row<T>(buffers.context + r * context_row, softmax.sum[r], head.dv, o.from(i0 + r, 0));
    const T greatest = folded ? softmax.greatest[r] * head.scale : softmax.greatest[r];
    if (lse.data != nullptr) store_logsumexp<T>(any, greatest, softmax.sum[r], lse, i0 + r);
  }
  return work;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_backward_rows.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
struct BackwardTile {
  static constexpr Index queries = 128;
  static constexpr Index keys = 256;   // whole panels
  static constexpr Index drawn = 128;  // keys whose dropout is drawn at once: whole panels
  static constexpr Index row = keys + std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
};

template <class T>
using BackwardMask = TileMask<T, BackwardTile<T>::queries, BackwardTile<T>::keys, true>;

template <class T>
struct BackwardScratch {
  static constexpr Index queries = BackwardTile<T>::queries, keys = BackwardTile<T>::keys;
  static_assert(queries <= keys, "rows of q are kept where rows of k fit");

  T* p;        // [queries, row]
  T* ds;       // [queries, row]
  T* factors;  // [rows, keys], dropout of six queries
  T* k_t;      // k^T in panels [d, columns]
  T* v_t;      // v^T in panels [dv, columns]
  T* k;        // [keys, d], dense
  T* q;        // [queries, d], dense
  T* d_o;      // [queries, dv], dense
  T* kept;     // one of these without what one row may not see
  T* dk;       // [keys, d], rows of whole vectors
  T* dv;       // [keys, dv], likewise

  constexpr BackwardScratch(Scratch<T>& memory, Index d, Index width_v)
      : p(memory.take(queries * BackwardTile<T>::row)),
        ds(memory.take(queries * BackwardTile<T>::row)),
        factors(memory.take(Tile<T>::rows * keys)),
        k_t(memory.take(packed_size<T>(d, keys))),
        v_t(memory.take(packed_size<T>(width_v, keys))),
        k(memory.take(copied_size<T>(keys, d))),
        q(memory.take(copied_size<T>(queries, d))),
        d_o(memory.take(copied_size<T>(queries, width_v))),
        kept(memory.take(
            std::max<Index>(copied_size<T>(keys, d), copied_size<T>(queries, width_v)))),
        dk(memory.take(copied_size<T>(keys, d))),
        dv(memory.take(copied_size<T>(keys, width_v))) {}

  Matrix<T> sums_of_k(Index d) const { return {dk, round_up(d, Tile<T>::width), 1}; }
  Matrix<T> sums_of_v(Index width_v) const { return {dv, round_up(width_v, Tile<T>::width), 1}; }
};

template <class T>
constexpr Index flash_backward_scratch(Index d, Index dv) {
  Scratch<T> count;
  BackwardScratch<T>(count, d, dv);
  return count.taken();
}

template <class T>
void row_deltas(const FlashHead<T>& head, Index i0, Index rows, T* delta) {
  using S = Simd<T>;
  constexpr Index width = S::width;
  const Index dv = head.forward.dv;
  const bool dense = head.d_o.column == 1 && head.o.column == 1;
  T left[std::size_t{S::width * S::width}], right[std::size_t{S::width * S::width}];
  for (Index r = 0; r < rows; r += width) {
    const Index count = std::min<Index>(width, rows - r);
    const auto d_o = head.d_o.from(i0 + r, 0), o = head.o.from(i0 + r, 0);
    auto sums = S::zero();
    Index n = 0;
    for (; dense && count == width && n + width <= dv; n += width) {
      transpose_square<T>(d_o.data + n, d_o.row, left, width);
      transpose_square<T>(o.data + n, o.row, right, width);
      for (Index t = 0; t < width; ++t) {
        sums = S::fma(S::load(left + t * width), S::load(right + t * width), sums);
      }
    }
    S::store(sums, left);
    for (; n < dv; ++n) {
      for (Index lane = 0; lane < count; ++lane) {
        left[lane] = simd::HEADWISE_ISA::multiply_add<T>(d_o(lane, n), o(lane, n), left[lane]);
      }
    }
    for (Index lane = 0; lane < count; ++lane) delta[r + lane] = left[lane];
  }
}

template <class T>
void backward_row(const FlashHead<T>& head, const TileBlock& block, Index r, KeyRange panel,
                  T scale, const T* factors, const BackwardScratch<T>& buffers,
                  const BackwardMask<T>& mask) {
  using S = Simd<T>;
  using simd::HEADWISE_ISA::weight_of;
  const Index i = block.i0 + r;
  T* p = buffers.p + r * BackwardTile<T>::row;
  T* ds = buffers.ds + r * BackwardTile<T>::row;
  const bool full = mask.full();
  KeyRange range = panel;
  if (!full) {
    const KeyRange seen = mask.range(r);
    range.begin = std::clamp<Index>(seen.begin / S::width * S::width, panel.begin, panel.end);
    range.end = std::clamp<Index>(round_up(seen.end, S::width), range.begin, panel.end);
    if (seen.size() == 0) range.end = range.begin;
    set_zero<T>(p + panel.begin, range.begin - panel.begin);
    set_zero<T>(ds + panel.begin, range.begin - panel.begin);
    set_zero<T>(p + range.end, panel.end - range.end);
    set_zero<T>(ds + range.end, panel.end - range.end);
  }
  const auto factor_of_s = S::broadcast(scale), minus_lse = S::broadcast(T(0) - head.lse(i, 0));
  const auto rest = S::broadcast(head.lse(i, 1));
  const auto unit = S::broadcast(simd::HEADWISE_ISA::weight_unit<T>());
  const auto delta = S::broadcast(head.delta[i]);
  for (Index j = range.begin; j < range.end; j += S::width) {
    const auto below = S::fma(S::load(p + j), factor_of_s, minus_lse) - rest;
    auto weight = weight_of<T>(below * unit);  // 4c
    auto dp = S::load(ds + j);
    auto kept = weight;
    if (factors != nullptr) {  // 4d
      const auto factor = S::load(factors + j);
      const auto dropped = factor == S::zero();
      dp = S::select(dropped, S::zero(), dp * factor);
      kept = weight * factor;
    }
    auto flow = weight * (dp - delta);  // 4c
    if (!full) {                        // 4b
      const auto seen = mask.of_keys(r, j);
      kept = S::select(seen, kept, S::zero());
      flow = S::select(seen, flow, S::zero());
    }
    S::store(kept, p + j);
    S::store(flow, ds + j);
  }
}

template <class T>
std::int64_t backward_panel(const FlashHead<T>& head, const TileBlock& block, Index r, Index n,
                            Index c, const Operand<T>& q, const Operand<T>& d_o, const T* factors,
                            const BackwardScratch<T>& buffers, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row, columns = Tile<T>::columns, width = Tile<T>::width;
  const Index d = head.forward.d, dv = head.forward.dv;
  const T scale = head.forward.scale;
  const HeadVisibility<T>& rules = head.forward.visibility;
  const KeyRange panel{c, std::min<Index>(c + columns, round_up(block.end, width))};
  KeyRange range = panel;
  if (!mask.full()) {
    range.begin = std::max<Index>(c, mask.range(r).begin);
    range.end = std::min<Index>(panel.end, mask.range(r + n - 1).end);
  }
  const bool folded = rules.bias_count() == 0 && is_power_of_two(scale);
  std::int64_t count = 0;
  if (range.begin < range.end) {
    const Index from = (range.begin - c) / width, to = (range.end - c + width - 1) / width;
    const Index at = c + from * width;
    run_panel<T>({q.data + r * q.step, q.step, 1}, {buffers.k_t + c * d + from * width, 0, columns},
                 n, to - from, d,
                 {buffers.p + r * row + at, row, Finish::assign, folded ? T(1) : scale});
    run_panel<T>({d_o.data + r * d_o.step, d_o.step, 1},
                 {buffers.v_t + c * dv + from * width, 0, columns}, n, to - from, dv,
                 {buffers.ds + r * row + at, row});
    count = n * (to - from) * width * (d + dv);
  }
  for (Index at = r; at < r + n; ++at) {
    for (Index j = range.begin;
         rules.bias_count() != 0 && j < std::min<Index>(range.end, block.end); ++j) {
      T& s = buffers.p[at * row + j];
      if (mask.visible(at, j)) s = s + rules.bias(block.i0 + at, block.j0 + j);
    }
    backward_row<T>(head, block, at, panel, folded ? scale : T(1), factors, buffers, mask);
    if (factors != nullptr) factors += BackwardTile<T>::keys;
  }
  return count;
}

template <class T>
void prefetch_next_tile(const FlashHead<T>& head, const TileBlock& block, Index r, Index n) {
  const Index next = block.i0 + BackwardTile<T>::queries + r;
  const Index ahead = std::min<Index>(n, head.forward.L - next);
  if (ahead <= 0) return;
  prefetch_rows<T>(head.forward.q.from(next, 0), ahead, head.forward.d);
  prefetch_rows<T>(head.d_o.from(next, 0), ahead, head.forward.dv);
  prefetch_rows<T>(head.dq.from(next, 0), ahead, head.forward.d);
}

template <class T>
std::int64_t backward_scores(const FlashHead<T>& head, const TileBlock& block, const Operand<T>& q,
                             const Operand<T>& d_o, const BackwardScratch<T>& buffers,
                             const BackwardMask<T>& mask) {
  constexpr Index columns = Tile<T>::columns, drawn = BackwardTile<T>::drawn;
  const AttentionHead<T>& forward = head.forward;
  const bool drops = forward.dropout.active();
  const Index together = drops ? drawn : columns;
  std::int64_t count = 0;
  for (Index c0 = 0; c0 < block.end; c0 += together) {
    const Index keys = std::min<Index>(together, round_up(block.end - c0, Tile<T>::width));
    for (Index r = 0; r < block.rows; r += Tile<T>::rows) {
      const Index n = std::min<Index>(Tile<T>::rows, block.rows - r);
      if (c0 == 0) prefetch_next_tile<T>(head, block, r, n);
      for (Index m = 0; drops && m < n; ++m) {
        dropout_factors<T>(forward.dropout, forward.b, forward.h, block.i0 + r + m, block.j0 + c0,
                           keys, buffers.factors + m * BackwardTile<T>::keys + c0);
      }
      for (Index c = c0; c < std::min<Index>(c0 + together, block.end); c += columns) {
        count += backward_panel<T>(head, block, r, n, c, q, d_o, drops ? buffers.factors : nullptr,
                                   buffers, mask);
      }
    }
  }
  return count;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/flash_backward.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

HEADWISE_STRICT_MATH_BEGIN

template <class T>
std::int64_t add_by_key(const T* a, const Operand<T>& b, Index N, Matrix<T> c,
                        const TileBlock& block, T* kept, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row;
  const Epilogue<T> add{.accumulate = true};
  if (mask.full()) return multiply<T>({a, 1, row}, b, c, {block.end, N, block.rows}, add);
  const Index together = b.finite ? Tile<T>::rows : 1;
  std::int64_t count = 0;
  Index low = 0, high = 0;  // queries that see these keys; both grow with the key
  for (Index j = 0; j < block.end; j += together) {
    const Index n = std::min<Index>(together, block.end - j);
    while (low < block.rows && mask.range(low).end <= j) ++low;
    while (high < block.rows && mask.range(high).begin < j + n) ++high;
    if (low >= high) continue;
    Operand<T> seen = b;
    if (!b.finite) {
      seen = copy_kept_rows<T>({b.data, b.step, 1}, block.rows, N, kept,
                               [&](Index r) { return mask.visible(r, j); });
    }
    seen.data += low * seen.step;
    count += multiply<T>({a + low * row + j, 1, row}, seen, c.from(j, 0), {n, N, high - low}, add);
  }
  return count;
}

template <class T>
std::int64_t add_by_query(const FlashHead<T>& head, const Operand<T>& k, const TileBlock& block,
                          const BackwardScratch<T>& buffers, const BackwardMask<T>& mask) {
  constexpr Index row = BackwardTile<T>::row;
  const Index d = head.forward.d;
  const Epilogue<T> add{.alpha = head.forward.scale, .accumulate = true};
  const auto dq = head.dq.from(block.i0, 0);
  if (mask.full()) {
    return multiply<T>({buffers.ds, row, 1}, k, dq, {block.rows, d, block.end}, add);
  }
  const Index together = k.finite ? Tile<T>::rows : 1;
  std::int64_t count = 0;
  for (Index r = 0; r < block.rows; r += together) {
    const Index n = std::min<Index>(together, block.rows - r);
    const KeyRange range{mask.range(r).begin, mask.range(r + n - 1).end};
    if (range.begin >= range.end) continue;
    Operand<T> seen = k;
    if (!k.finite) {
      seen = copy_kept_rows<T>({k.data, k.step, 1}, block.end, d, buffers.kept,
                               [&](Index j) { return mask.visible(r, j); });
    }
    seen.data += range.begin * seen.step;
    count += multiply<T>({buffers.ds + r * row + range.begin, row, 1}, seen, dq.from(r, 0),
                         {n, d, range.size()}, add);
  }
  return count;
}

template <class T>
void flash_backward_begin(const AttentionHead<T>& head, Index j0, Index n, Scratch<T> memory) {
  const BackwardScratch<T> buffers(memory, head.d, head.dv);
  copy_rows<T>(head.k.from(j0, 0), n, head.d, true, buffers.k);
  pack<T>(head.k.from(j0, 0).transposed(), head.d, n, buffers.k_t);
  pack<T>(head.v.from(j0, 0).transposed(), head.dv, n, buffers.v_t);
  set_zero<T>(buffers.dk, copied_size<T>(n, head.d));
  set_zero<T>(buffers.dv, copied_size<T>(n, head.dv));
}

template <class T>
TileWork flash_backward_tile(const FlashHead<T>& head, Index i0, Index rows, Index j0, Index n,
                             Scratch<T> memory) {
  const Index d = head.forward.d, dv = head.forward.dv;
  const BackwardScratch<T> buffers(memory, d, dv);
  BackwardMask<T> mask;
  TileBlock block{i0, rows, 0, j0, 0, n};
  mask.fill(head.forward.visibility, block);
  block.end = n;  // what lies behind the last key that is seen is set to 0, not cut off
  const bool all = mask.full();
  const auto q = copy_rows<T>(head.forward.q.from(i0, 0), rows, d, all, buffers.q);
  const auto d_o = copy_rows<T>(head.d_o.from(i0, 0), rows, dv, all, buffers.d_o);
  Operand<T> k{buffers.k, round_up(d, Tile<T>::width), 1, true};
  k.finite = all || all_finite<T>({k.data, k.step, 1}, n, d);

  std::int64_t products = backward_scores<T>(head, block, q, d_o, buffers, mask);
  products += add_by_key<T>(buffers.p, d_o, dv, buffers.sums_of_v(dv), block, buffers.kept, mask);
  products += add_by_key<T>(buffers.ds, q, d, buffers.sums_of_k(d), block, buffers.kept, mask);
  products += add_by_query<T>(head, k, block, buffers, mask);
  return {mask.pairs(),
          2 * products + (7 + score_extras(head.forward, 2)) * rows * round_up(n, Tile<T>::width)};
}

template <class T>
void write_scaled(Matrix<const T> from, T scale, Index rows, Index N, Matrix<T> to) {
  using S = Simd<T>;
  const auto factor = S::broadcast(scale);
  for (Index r = 0; r < rows; ++r) {
    const T* in = from.data + r * from.row;
    Index n = 0;
    for (; to.column == 1 && n + S::width <= N; n += S::width) {
      S::store(factor * S::load(in + n), &to(r, n));
    }
    for (; n < N; ++n) to(r, n) = scale * in[n];
  }
}

template <class T>
void flash_backward_end(const AttentionHead<T>& head, Index j0, Index n, Matrix<T> dk, Matrix<T> dv,
                        Scratch<T> memory) {
  const BackwardScratch<T> buffers(memory, head.d, head.dv);
  write_scaled<T>(buffers.sums_of_k(head.d), head.scale, n, head.d, dk.from(j0, 0));
  write_scaled<T>(buffers.sums_of_v(head.dv), T(1), n, head.dv, dv.from(j0, 0));
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

// headwise/kernels/table.inc

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA {

template <Scalar T>
inline constexpr Kernels<T> table = {
    .instruction_set = InstructionSet::HEADWISE_ISA,
    .lanes = Simd<T>::width,
    .forward_queries = ForwardTile<T>::queries,
    .forward_keys = ForwardTile<T>::keys,
    .backward_queries = BackwardTile<T>::queries,
    .backward_keys = BackwardTile<T>::keys,
    .columns = Tile<T>::columns,
    .all_finite = &all_finite<T>,
    .gemm_scratch = &gemm_scratch<T>,
    .gemm = &gemm<T>,
    .executed_gemm_flops = &executed_gemm_flops<T>,
    .add_rows = &add_rows<T>,
    .layer_norm_rows = &layer_norm_rows<T>,
    .layer_norm_backward_rows = &layer_norm_backward_rows<T>,
    .layer_norm_columns = &layer_norm_columns<T>,
    .softmax_rows = &softmax_rows<T>,
    .softmax_backward_rows = &softmax_backward_rows<T>,
    .drop_rows = &drop_rows<T>,
    .attention_forward_scratch = &attention_forward_scratch<T>,
    .attention_backward_scratch = &attention_backward_scratch<T>,
    .score_head = &score_head<T>,
    .attention_head_forward = &attention_head_forward<T>,
    .attention_head_backward = &attention_head_backward<T>,
    .flash_forward_scratch = &flash_forward_scratch<T>,
    .flash_backward_scratch = &flash_backward_scratch<T>,
    .flash_forward = &flash_forward<T>,
    .row_deltas = &row_deltas<T>,
    .flash_backward_begin = &flash_backward_begin<T>,
    .flash_backward_tile = &flash_backward_tile<T>,
    .flash_backward_end = &flash_backward_end<T>,
    .weights_of = &simd::HEADWISE_ISA::weights_of<T>,
};

template <Scalar T>
inline constexpr ModelKernels<T> model_table = {
    .combine_rows = &combine_rows<T>,
    .combine_columns = &combine_columns<T>,
    .activation_rows = &activation_rows<T>,
    .activation_backward_rows = &activation_backward_rows<T>,
    .rms_norm_rows = &rms_norm_rows<T>,
    .rms_norm_backward_rows = &rms_norm_backward_rows<T>,
    .rms_norm_columns = &rms_norm_columns<T>,
    .add_row = &add_row<T>,
    .cross_entropy_rows = &cross_entropy_rows<T>,
    .cross_entropy_backward_rows = &cross_entropy_backward_rows<T>,
    .rotate_rows = &rotate_rows<T>,
    .adamw = &adamw<T>,
    .sgd = &sgd<T>,
    .scale_elements = &scale_elements<T>,
    .sum_of_squares = &sum_of_squares<T>,
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels::HEADWISE_ISA

#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
HEADWISE_REGION_END
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// The kernels of an instruction set. Types other than float and double have the generic ones.
template <Scalar T>
const Kernels<T>& kernels_of([[maybe_unused]] InstructionSet set) {
#if HEADWISE_CONFIG_VECTOR_KERNELS
  if constexpr (simd::vectorised<T>) {
    if (set == InstructionSet::avx512) return avx512::table<T>;
    if (set == InstructionSet::avx2) return avx2::table<T>;
  }
#endif
  return generic::table<T>;
}

/// What a model has around attention, likewise.
template <Scalar T>
const ModelKernels<T>& model_kernels_of([[maybe_unused]] InstructionSet set) {
#if HEADWISE_CONFIG_VECTOR_KERNELS
  if constexpr (simd::vectorised<T>) {
    if (set == InstructionSet::avx512) return avx512::model_table<T>;
    if (set == InstructionSet::avx2) return avx2::model_table<T>;
  }
#endif
  return generic::model_table<T>;
}

#if HEADWISE_USES_COMPILED || defined(HEADWISE_EXTERN_KERNELS)
extern template const Kernels<float>& kernels_of<float>(InstructionSet);
extern template const Kernels<double>& kernels_of<double>(InstructionSet);
extern template const ModelKernels<float>& model_kernels_of<float>(InstructionSet);
extern template const ModelKernels<double>& model_kernels_of<double>(InstructionSet);
#endif

/// Those of this process. Throws ArgumentError where HEADWISE_SIMD asks for what cannot be had.
template <Scalar T>
const Kernels<T>& kernels_here() {
  return kernels_of<T>(instruction_set());
}
template <Scalar T>
const ModelKernels<T>& model_kernels_here() {
  return model_kernels_of<T>(instruction_set());
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

// headwise/analysis/count_memory.hpp
// Bytes in closed form, from shapes alone: what a cache holds, what a call needs at its peak. They
// are the sizes that are asked of the memory resource, equal to the byte to what a tally counts.

namespace headwise::inline v0_1 {

/// Scalar types by their size.
enum class ScalarType : std::size_t { f32 = 4, f64 = 8 };

/// The textbook's intermediates of plain self-attention: X, Q, K, V and the merged context,
/// B L D each, and the weights, B H L^2. (MultiHeadAttention keeps less: it only views X, and
/// flash attention keeps 2 B H L numbers in place of the weights; see count_memory.)
inline std::int64_t count_memory_bytes(Index batch_size, Index seq_len, Index d_model,
                                       Index n_heads, ScalarType dtype) {
  detail::require_shape_of_call(
      "count_memory_bytes",
      {.batch_size = batch_size, .seq_len = seq_len, .d_model = d_model, .num_heads = n_heads});
  const std::int64_t elements =
      5 * batch_size * seq_len * d_model + batch_size * n_heads * seq_len * seq_len;
  return elements * static_cast<std::int64_t>(dtype);
}

/// Bytes of keys and values, B S G (d + dv) elements: smaller by H / G with grouped heads.
inline std::int64_t count_kv_bytes(const AttentionShape& s, ScalarType dtype) {
  detail::require_shape_of_call("count_kv_bytes", s);
  return s.key_rows() * (s.k_width() + s.v_width()) * static_cast<std::int64_t>(dtype);
}

/// A call as a sequence of stages: what is live, and the scratch on top of it.
struct MemoryCount {
  /// One step of a call.
  struct Stage {
    std::string name;      // as reports print it
    std::int64_t live;     // bytes of tensors that stay behind the stage
    std::int64_t scratch;  // bytes that are returned at its end
  };
  std::vector<Stage> stages;  // in the order of the computation
  std::int64_t cache = 0;     // kept for backward after the call
  std::int64_t result = 0;    // returned to the caller

  /// The most that is live at once, scratch included.
  std::int64_t peak() const {
    std::int64_t most = 0;
    for (const Stage& stage : stages) most = std::max<Index>(most, stage.live + stage.scratch);
    return most;
  }
};

namespace detail {

/// Bytes of `elements` of T for each worker, as a Workspace asks for them.
template <class T>
std::int64_t workspace_bytes(Index workers, Index elements) {
  return workers * padded<T>(elements) * static_cast<std::int64_t>(sizeof(T));
}

inline namespace HEADWISE_CODE {  // tiles depend on flags

/// A product [M, K] [K, N], as linear_forward asks for its scratch.
template <class T>
std::int64_t gemm_workspace_bytes(Index workers, Index M, Index N, Index K) {
  const Index scratch = kernels::kernels_here<T>().gemm_scratch({M, N, K});
  return M == 0 || N == 0 ? 0 : workspace_bytes<T>(workers, scratch);
}
/// What flash_attention_backward asks for: scratch for each worker, a delta for each query, and a
/// count for each block of queries.
template <class T>
std::int64_t flash_backward_bytes(Index workers, const AttentionShape& s) {
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const Index heads = s.batch_size * s.num_heads;
  const Index blocks = (s.seq_len + run.backward_queries - 1) / run.backward_queries;
  return workspace_bytes<T>(workers, run.flash_backward_scratch(s.d(), s.dv())) +
         workspace_bytes<T>(1, heads * s.seq_len) + workspace_bytes<Index>(1, heads * blocks);
}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// The forward call of MultiHeadAttention: `training` fills a cache. Inputs are viewed.
template <Scalar T>
MemoryCount count_memory(const AttentionShape& s, Path path, bool training, Index workers = 1) {
  detail::require_size("count_memory", "workers", workers, 1);
  detail::require_shape_of_call("count_memory", s, static_cast<double>(workers));
  const bool flash = path == Path::flash;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  constexpr std::int64_t bytes = sizeof(T);
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const Index width = s.q_width() + s.k_width() + s.v_width();
  MemoryCount count;
  std::int64_t live = 0;
  const auto stage = [&](const char* name, std::int64_t more, std::int64_t scratch) {
    live += more * bytes;
    count.stages.push_back({name, live, scratch});
  };
  if (s.layer_norm) stage("layer_norm", N * D + 2 * N, 0);
  if (s.self_attention()) {
    const bool one_bias = s.q_bias && s.k_bias && s.v_bias;
    stage("qkv projection", N * width,
          detail::gemm_workspace_bytes<T>(workers, N, width, D) + (one_bias ? width * bytes : 0));
  } else {
    stage("q, k, v projections", N * s.q_width() + M * (s.k_width() + s.v_width()),
          std::max<Index>({detail::gemm_workspace_bytes<T>(workers, N, s.q_width(), D),
                           detail::gemm_workspace_bytes<T>(workers, M, s.k_width(), s.k_in()),
                           detail::gemm_workspace_bytes<T>(workers, M, s.v_width(), s.v_in())}));
  }
  const std::int64_t weights = s.num_heads * N * s.S(), lse = training ? 2 * s.num_heads * N : 0;
  const Index scratch =
      flash ? run.flash_forward_scratch(s.d(), s.dv())
            : run.attention_forward_scratch(s.seq_len, s.S(), s.d(), s.dv(), s.weight_dropout);
  stage("attention", N * s.context_width() + (flash ? lse : weights),
        detail::workspace_bytes<T>(workers, scratch));
  count.cache = live;
  stage("o projection", N * D, detail::gemm_workspace_bytes<T>(workers, N, D, s.context_width()));
  count.result = N * D * bytes;
  if (!training) count.cache = 0;
  return count;
}

/// The backward call, on top of what the forward call left.
template <Scalar T>
MemoryCount count_backward_memory(const AttentionShape& s, Path path, Index workers = 1) {
  detail::require_size("count_backward_memory", "workers", workers, 1);
  detail::require_shape_of_call("count_backward_memory", s, static_cast<double>(workers));
  const bool flash = path == Path::flash;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  constexpr std::int64_t bytes = sizeof(T);
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const Index width = s.q_width() + s.k_width() + s.v_width();
  const Index qw = s.q_width(), kw = s.k_width(), vw = s.v_width(), cw = s.context_width();
  MemoryCount count;
  std::int64_t live = 0;
  const auto stage = [&](const char* name, std::int64_t more, std::int64_t scratch) {
    live += more * bytes;
    count.stages.push_back({name, live, scratch});
  };
  const std::int64_t inputs = N * D + (s.self_attention() ? 0 : M * (s.k_in() + s.v_in()));
  const auto product = [&](Index rows, Index columns, Index inner) {
    return detail::gemm_workspace_bytes<T>(workers, rows, columns, inner);
  };
  stage("gradients of inputs", inputs, 0);
  if (s.output_dropout) stage("dropout", N * D, 0);
  stage("o projection", N * cw, product(N, cw, D));
  stage("attention", s.self_attention() ? N * width : N * qw + M * (kw + vw),
        flash ? detail::flash_backward_bytes<T>(workers, s)
              : detail::workspace_bytes<T>(
                    workers, run.attention_backward_scratch(s.seq_len, s.S(), s.d(), s.dv(),
                                                            s.weight_dropout)));
  if (s.self_attention()) {
    stage("projections", 0, product(N, D, width));
    stage("weights", 0, std::max<std::int64_t>(product(cw, D, N), product(D, width, N)));
  } else {
    stage("projections", 0,
          std::max<std::int64_t>(
              {product(N, D, qw), product(M, s.k_in(), kw), product(M, s.v_in(), vw)}));
    stage("weights", 0,
          std::max<std::int64_t>({product(cw, D, N), product(D, qw, N), product(s.k_in(), kw, M),
                                  product(s.v_in(), vw, M)}));
  }
  count.result = inputs * bytes;
  return count;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/runtime/tally.hpp
// What a computation cost, counted while it runs: floating-point operations and bytes.

namespace headwise::inline v0_1 {

/// Floating-point operations; a multiply-add is two.
///
/// `useful` counts what the mathematics asks for: the products of shapes and of the visible pairs
/// that a task's bounds name. `executed` counts what the tiles did, padding and masked pairs too.
struct FlopTally {
  std::atomic<std::int64_t> useful = 0;    // what the mathematics asks for
  std::atomic<std::int64_t> executed = 0;  // what the tiles did

  /// Adds to both; from any thread.
  void add(std::int64_t useful_flops, std::int64_t executed_flops) {
    useful.fetch_add(useful_flops, std::memory_order_relaxed);
    executed.fetch_add(executed_flops, std::memory_order_relaxed);
  }
  /// Both back to 0.
  void reset() {
    useful = 0;
    executed = 0;
  }
};

/// A memory resource that passes everything on and counts the bytes that it was asked for.
class MemoryTally : public std::pmr::memory_resource {
 public:
  /// Counts what it passes on to `upstream`, which must outlive it.
  explicit MemoryTally(std::pmr::memory_resource* upstream = std::pmr::get_default_resource())
      : upstream_(upstream) {
    require(upstream != nullptr, "MemoryTally", "upstream is null, expected a memory resource");
  }

  /// Bytes given out and not yet returned.
  std::int64_t live() const { return live_.load(); }
  /// The most that was ever live at once since the last reset_peak.
  std::int64_t peak() const { return peak_.load(); }
  /// How often memory was asked for.
  std::int64_t allocations() const { return allocations_.load(); }
  /// Starts a new peak from what is live.
  void reset_peak() { peak_.store(live_.load()); }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* memory = upstream_->allocate(bytes, alignment);
    allocations_.fetch_add(1);
    const std::int64_t now =
        live_.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes);
    std::int64_t peak = peak_.load();
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    live_.fetch_sub(static_cast<std::int64_t>(bytes));
    upstream_->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* upstream_;
  std::atomic<std::int64_t> live_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
  std::atomic<std::int64_t> allocations_ = 0;
};

}  // namespace headwise::inline v0_1

// headwise/analysis/report.hpp
// Predictions and tallies side by side, as text.

namespace headwise::inline v0_1 {

/// A call's FLOPs by step, their sum, and what was counted while it ran.
inline void report_flops(std::ostream& out, std::string_view title, const FlopCount& predicted,
                         const FlopTally& counted) {
  out << title << '\n';
  for (const auto& [name, flops] : predicted.steps()) {
    if (flops != 0) {
      out << "  " << std::left << std::setw(20) << name << std::right << std::setw(16) << flops
          << '\n';
    }
  }
  const std::int64_t useful = counted.useful.load(), executed = counted.executed.load();
  out << "  " << std::left << std::setw(20) << "predicted" << std::right << std::setw(16)
      << predicted.total() << " FLOPs\n"
      << "  " << std::left << std::setw(20) << "counted" << std::right << std::setw(16) << useful
      << (useful == predicted.total() ? " FLOPs, equal\n" : " FLOPs, NOT EQUAL\n") << "  "
      << std::left << std::setw(20) << "executed in tiles" << std::right << std::setw(16)
      << executed << " FLOPs\n";
}

/// A call's bytes by stage, their peak, and the peak that was counted while it ran.
inline void report_memory(std::ostream& out, std::string_view title, const MemoryCount& predicted,
                          std::int64_t counted_peak) {
  out << title << '\n';
  for (const MemoryCount::Stage& stage : predicted.stages) {
    out << "  " << std::left << std::setw(20) << stage.name << std::right << std::setw(16)
        << stage.live << " live + " << stage.scratch << " scratch\n";
  }
  out << "  " << std::left << std::setw(20) << "predicted peak" << std::right << std::setw(16)
      << predicted.peak() << " bytes\n"
      << "  " << std::left << std::setw(20) << "counted peak" << std::right << std::setw(16)
      << counted_peak
      << (counted_peak == predicted.peak() ? " bytes, equal\n" : " bytes, NOT EQUAL\n");
}

}  // namespace headwise::inline v0_1

// headwise/autograd/storage.hpp
// What variables and nodes share: a value's elements, counted by who holds them, and a stack of
// memory for what is recorded. Both belong to one thread.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Elements of the tape's, which stand behind this head in one block of memory, or of the caller's.
template <class T>
struct Storage {
  Index holders = 0;
  Index version = 0;         // how often it has been written to since forward made it
  const T* begin = nullptr;  // element 0
  T* own = nullptr;          // the same; null where the elements are the caller's
  Index count = 0;           // of own elements
  std::pmr::memory_resource* memory = nullptr;
};

/// One of those who hold a storage: the last one gives the memory back.
template <class T>
class StorageRef {
 public:
  StorageRef() = default;
  StorageRef(const StorageRef& other) : storage_(other.storage_) {
    if (storage_ != nullptr) ++storage_->holders;
  }
  StorageRef(StorageRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageRef& operator=(StorageRef other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StorageRef() {
    if (storage_ == nullptr || --storage_->holders != 0) return;
    std::pmr::memory_resource* const memory = storage_->memory;
    const Index count = storage_->count;
    if (storage_->own != nullptr) std::destroy_n(storage_->own, count);
    std::destroy_at(storage_);
    memory->deallocate(storage_, bytes_for(count), storage_alignment);
  }

  /// `count` elements without values. Throws std::bad_alloc.
  static StorageRef make(Index count, std::pmr::memory_resource* memory) {
    require(count <= (Index{1} << 48), "Tape", [&] {
      return "elements of a value are " + std::to_string(count) + ", expected at most 2^48";
    });
    StorageRef ref = block(count, memory);
    T* const own = reinterpret_cast<T*>(reinterpret_cast<std::byte*>(ref.storage_) + head);
    std::uninitialized_default_construct_n(own, count);
    ref.storage_->begin = ref.storage_->own = own;
    ref.storage_->count = count;
    return ref;
  }
  /// The elements of a view of the caller's. Throws std::bad_alloc.
  static StorageRef refer_to(const T* begin, std::pmr::memory_resource* memory) {
    StorageRef ref = block(0, memory);
    ref.storage_->begin = begin;
    return ref;
  }

  Storage<T>* operator->() const { return storage_; }
  explicit operator bool() const { return storage_ != nullptr; }

 private:
  static constexpr std::size_t head = storage_alignment;
  static_assert(sizeof(Storage<T>) <= head);

  static std::size_t bytes_for(Index count) { return head + storage_bytes<T>(count); }
  static StorageRef block(Index count, std::pmr::memory_resource* memory) {
    StorageRef ref;
    ref.storage_ = ::new (memory->allocate(bytes_for(count), storage_alignment)) Storage<T>;
    ref.storage_->holders = 1;
    ref.storage_->memory = memory;
    return ref;
  }

  Storage<T>* storage_ = nullptr;
};

/// Memory that is handed out piece behind piece and taken back from the end, or all at once. Its
/// blocks are kept until it is destroyed.
class Stack {
 public:
  /// How much has been handed out.
  struct Mark {
    std::size_t block = 0, used = 0;
  };

  explicit Stack(std::pmr::memory_resource* memory) : memory_(memory), blocks_(memory) {}
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() {
    for (const Block& block : blocks_) {
      memory_->deallocate(block.begin, block.bytes, storage_alignment);
    }
  }

  /// Room for an object. Throws std::bad_alloc.
  template <class X>
  void* room_for() {
    static_assert(alignof(X) <= storage_alignment);
    return take(sizeof(X));
  }
  Mark mark() const { return at_; }
  /// Takes back what was handed out since.
  void rewind(Mark mark) { at_ = mark; }

 private:
  struct Block {
    std::byte* begin;
    std::size_t bytes;
  };
  static constexpr std::size_t block_bytes = std::size_t{1} << 16;

  void* take(std::size_t bytes) {
    bytes = (bytes + storage_alignment - 1) / storage_alignment * storage_alignment;
    while (at_.block < blocks_.size() && blocks_[at_.block].bytes - at_.used < bytes) {
      at_ = {at_.block + 1, 0};
    }
    if (at_.block == blocks_.size()) {
      if (blocks_.size() == blocks_.capacity()) blocks_.reserve(2 * blocks_.size() + 1);
      const std::size_t size = bytes < block_bytes ? block_bytes : bytes;
      void* const memory = memory_->allocate(size, storage_alignment);
      blocks_.push_back({static_cast<std::byte*>(memory), size});
    }
    void* const room = blocks_[at_.block].begin + at_.used;
    at_.used += bytes;
    return room;
  }

  std::pmr::memory_resource* memory_;
  std::pmr::vector<Block> blocks_;
  Mark at_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/autograd/variable.hpp
// A value of a tape: what functions of the tape take and give.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
class TapeCore;

inline constexpr Index no_node = -1;

/// What a variable is without its rank: its tape, its place on it, its elements.
template <class T>
struct Handle {
  TapeCore<T>* tape = nullptr;
  Index node = no_node;  // none: no gradient flows here
  Index step = 0;        // the tape's when it was made: another one follows each clear()
  StorageRef<T> storage;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A value on a Tape, or a view of one: a handle, cheap to copy, that keeps the elements alive.
///
/// The elements stay until neither a variable nor a node that needs them in backward holds them. It
/// must not be used with its tape gone, or on another thread than the tape's.
template <Scalar T, int R>
class Variable {
 public:
  /// The type of an element.
  using value_type = T;
  /// The number of axes.
  static constexpr int rank = R;

  /// No variable: what stands for a bias that is not there.
  Variable() = default;
  /// Of a handle and a view of its elements; what makes variables is Tape.
  Variable(detail::Handle<T> handle, const In<T, R>& value)
      : handle_(std::move(handle)), value_(value) {}

  /// The elements, to be read. Valid as long as this variable is.
  const In<T, R>& value() const { return value_; }
  /// The extents of all axes.
  const Shape<R>& shape() const { return value_.shape(); }
  /// The extent of one axis.
  Index extent(int axis) const { return value_.extent(axis); }
  /// The number of elements.
  Index size() const { return value_.size(); }
  /// Whether this is `{}`.
  bool absent() const { return handle_.tape == nullptr; }
  /// Whether backward brings a gradient here.
  bool has_gradient() const { return handle_.node != detail::no_node; }
  /// The tape's own.
  const detail::Handle<T>& handle() const { return handle_; }

 private:
  detail::Handle<T> handle_;
  In<T, R> value_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/node.hpp
// What is recorded of a call, and where its gradient is put together.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
class Pass;

/// The name of a function of the tape, for messages.
struct NodeName {
  const char* text;
};

/// A value that backward reads, as forward left it.
template <class T>
struct SavedValue {
  StorageRef<T> storage;
  Index version;
  SavedValue* next;
};

/// A part of a gradient that has been written.
struct WrittenPart {
  Footprint place;
  WrittenPart* next;
};

/// A call that was recorded, or a leaf: a parameter, an input. It stands for its output's elements,
/// of which any number of variables are views; they share its gradient.
template <class T>
struct Node {
  const char* name = "";
  void (*run)(void* closure, Pass<T>& pass) = nullptr;  // backward; null for a leaf
  void (*destroy)(void* closure) = nullptr;
  void* closure = nullptr;
  SavedValue<T>* saved = nullptr;

  Index count = 0;                // elements of the value, and of a gradient of the tape's
  bool to_caller = false;         // its gradient is the caller's, and added to
  T* callers = nullptr;           // that one's element 0
  StorageRef<T> gradient;         // the tape's; none before it is first written to
  WrittenPart* pieces = nullptr;  // of it, disjoint; what is behind `written` elements
  Index written = 0;              // elements; all: there are no pieces any more
  Index opened_by = 0;            // the pass that last opened a part of it for writing in place
  bool reached = false;           // whether anything flows here
  bool watched = false;           // whether the gradient is kept for the caller
};

/// What backward may be given for the gradient of an input.
enum class Wanted {
  always,        // memory to overwrite, also where nobody asks for the gradient
  where_needed,  // memory to overwrite, or {}
  added,         // the gradient itself to add to, or {}
};

/// Where the gradient of an input goes: a view of its node's.
template <int R, Wanted wanted>
struct Target {
  Index node = no_node;
  Index offset = 0;  // of its first element from the node's
  Shape<R> shape, strides;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/runtime/executor.hpp
// How work is spread over threads. An operation cuts itself into tasks, by its shapes and the
// number of workers; what an element is computed from depends on no cut, and every task owns what
// it writes, so that an executor decides when a task runs and never what it computes: the same bits
// for any number of threads.

namespace headwise::inline v0_1 {

/// One of many tasks: called once for each task number, on one of `concurrency` workers.
class TaskRef {
 public:
  /// Refers to function(task, worker), which must outlive it.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, TaskRef>) TaskRef(const F& function)
      : closure_(std::addressof(function)),
        call_([](const void* closure, Index task, Index worker) {
          (*static_cast<const F*>(closure))(task, worker);
        }) {}

  /// Calls it.
  void operator()(Index task, Index worker) const { call_(closure_, task, worker); }

 private:
  const void* closure_;
  void (*call_)(const void*, Index, Index);
};

/// run(n, task) calls task(t, w) once for every t in [0, n), with w in [0, concurrency()), no two
/// calls with the same w at the same time, and returns when all are done. Tasks do not throw.
template <class E>
concept Executor = requires(E& executor, Index tasks, TaskRef task) {
  { executor.concurrency() } -> std::convertible_to<Index>;
  executor.run(tasks, task);
};

/// The calling thread does everything, in order.
struct SerialExecutor {
  /// One worker.
  Index concurrency() const { return 1; }
  /// Calls task(t, 0) for t = 0, 1, ... tasks - 1.
  void run(Index tasks, TaskRef task) const {
    for (Index t = 0; t < tasks; ++t) task(t, 0);
  }
};

}  // namespace headwise::inline v0_1

// headwise/runtime/thread_pool.hpp
// A small pool of threads for short parallel regions: between two runs its workers ask for the next
// one for a moment, and then sleep. A run allocates nothing and waits only for workers that have
// come in: one that is still asleep, or that the system lets wait, holds nobody up.

namespace headwise::inline v0_1 {

/// More than that is a mistake.
inline constexpr Index max_threads = 65536;

namespace detail {

/// Of a clock that only goes on. (<chrono> would cost every program 0.06 s to compile.)
inline std::int64_t nanoseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

/// Where one thread waits for something that others bring about: it asks for a while, then sleeps.
class alignas(64) Bell {
 public:
  /// Returns when ready() holds, after `spin` nanoseconds by sleep. What ready() reads has to be
  /// atomic, in sequential order, and changed before ring().
  template <class Ready>
  void wait(std::int64_t spin, const Ready& ready) {
    while (!spin_until(spin, ready)) {
      // Either ready() sees the change now, or ring() sees asleep_.
      asleep_.store(1);
      if (!ready()) asleep_.wait(1);
      asleep_.store(0);
    }
  }

  /// Wakes the thread that sleeps here, if there is one.
  void ring() {
    if (asleep_.load() != 0 && asleep_.exchange(0) != 0) asleep_.notify_one();
  }

 private:
  template <class Ready>
  static bool spin_until(std::int64_t spin, const Ready& ready) {
    constexpr int relaxes = 32;  // about a microsecond: asking what time it is costs 30 ns
    const std::int64_t end = nanoseconds_now() + spin;
    do {
      for (int n = 0; n < relaxes; ++n) {
        if (ready()) return true;
        relax();
      }
    } while (nanoseconds_now() < end);
    return false;
  }

  std::atomic<int> asleep_ = 0;
};

}  // namespace detail

/// `threads` workers, the calling thread among them as worker 0. Run from anywhere: a run that
/// meets another on the same pool, be it of another thread or of a task that it is itself part of,
/// does its tasks on its own thread until the workers are free. The numbers of workers belong to a
/// run: two runs at a time may both have a worker 0.
///
/// In a child process after fork() there are no workers: runs are serial there, and right.
class ThreadPool {
 public:
  /// Throws ArgumentError for fewer than 1 thread or more than 65536, std::system_error if one
  /// cannot be started.
  explicit ThreadPool(Index threads) {
    require(threads >= 1 && threads <= max_threads, "ThreadPool",
            "threads is " + std::to_string(threads) + ", expected 1 to 65536");
    // Where threads outnumber cores, one that spins takes the core of one that works.
    const Index cores = std::thread::hardware_concurrency();
    spin_ = cores == 0 || threads <= cores ? spin_time : 0;
    bells_ = std::make_unique<detail::Bell[]>(static_cast<std::size_t>(threads));
    workers_.threads.reserve(static_cast<std::size_t>(threads - 1));
    for (Index worker = 1; worker < threads; ++worker) {
      workers_.threads.emplace_back([this, worker] { serve(worker); });
    }
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Workers, the calling thread among them.
  Index concurrency() const { return static_cast<Index>(workers_.threads.size()) + 1; }

  /// As the Executor concept says: returns when every task is done.
  void run(Index tasks, TaskRef task) {
    Index first = 0;
    for (; concurrency() > 1 && tasks - first > 1; ++first) {
      if (!in_use_.load() && !in_use_.exchange(true)) {
        share(first, tasks, task);
        in_use_.store(false);
        return;
      }
      task(first, 0);
    }
    for (; first < tasks; ++first) task(first, 0);
  }

 private:
  /// Sends its threads home when it goes, also out of a constructor that could not start them all.
  struct Workers {
    ThreadPool& pool;
    pid_t process;
    std::vector<std::thread> threads;

    ~Workers() {
      if (::getpid() != process) {  // after fork(): these threads are the parent's
        static_cast<void>(std::make_unique<std::vector<std::thread>>(std::move(threads)).release());
        return;
      }
      pool.stop_ = true;
      for (Index worker = 1; worker < pool.concurrency(); ++worker) pool.bell_of(worker).ring();
      for (std::thread& thread : threads) thread.join();
    }
  };

  // What a run is at this moment, in one number: how many workers are inside, the first that it
  // has no work for, whether one may still come in, and which run it is. (That wraps: a worker that
  // slept through exactly 2^23 runs misses one.)
  static constexpr int limit_shift = 20, run_shift = 41;
  static constexpr std::uint64_t open = std::uint64_t{1} << 40, field = (1 << limit_shift) - 1;
  static Index inside(std::uint64_t state) { return static_cast<Index>(state & field); }
  static Index limit(std::uint64_t state) {
    return static_cast<Index>(state >> limit_shift & field);
  }
  static std::uint64_t run_number(std::uint64_t state) { return state >> run_shift; }

  // Nanoseconds that a thread asks before it sleeps: a dozen times what waking one costs a run.
  // Measured on 2 cores of an AMD EPYC server: an empty run takes 0.2 us with a worker that spins,
  // 7 us with one that has to be woken; with a mutex and a condition variable it took 24. Forward
  // of [1, 16, 64] with 4 heads: 37 us on one thread, 29 on two, 43 where they sleep at once; 1000
  // us instead of 200 changed nothing.
  static constexpr std::int64_t spin_time = 200000;

  detail::Bell& bell_of(Index worker) { return bells_[static_cast<std::size_t>(worker)]; }

  /// Tasks [first, tasks) by all workers. No exception may leave it: others work on.
  void share(Index first, Index tasks, TaskRef task) noexcept {
    task_ = task;
    tasks_ = tasks;
    next_.store(first, std::memory_order_relaxed);
    const Index workers = (std::min)(concurrency(), tasks - first);
    const std::uint64_t run = run_number(state_.load()) + 1;
    state_.store(run << run_shift | open | static_cast<std::uint64_t>(workers) << limit_shift);
    for (Index worker = 1; worker < workers; ++worker) bell_of(worker).ring();
    work(0);
    state_.fetch_and(~open);
    bell_of(0).wait(spin_, [this] { return inside(state_.load()) == 0; });
  }

  void work(Index worker) {
    const TaskRef task = *task_;
    const Index tasks = tasks_;
    const auto take = [this] { return next_.fetch_add(1, std::memory_order_relaxed); };
    for (Index t = take(); t < tasks; t = take()) task(t, worker);
  }

  void serve(Index worker) noexcept {
    std::uint64_t seen = 0;
    while (true) {
      std::uint64_t state = 0;
      bell_of(worker).wait(spin_, [&] {
        state = state_.load();
        return stop_.load() || (worker < limit(state) && run_number(state) != seen);
      });
      if (stop_.load()) return;
      // A run that is over already was missed; while they come this often, it does not sleep.
      if ((state & open) == 0) {
        seen = run_number(state);
        continue;
      }
      if (!state_.compare_exchange_weak(state, state + 1)) continue;  // it has changed: look again
      seen = run_number(state);
      work(worker);
      const std::uint64_t left = state_.fetch_sub(1) - 1;
      if ((left & open) == 0 && inside(left) == 0) bell_of(0).ring();
    }
  }

  alignas(64) std::atomic<std::uint64_t> state_ = 0;
  std::atomic<bool> in_use_ = false;
  std::atomic<bool> stop_ = false;
  std::int64_t spin_ = 0;  // nanoseconds
  std::unique_ptr<detail::Bell[]> bells_;
  alignas(64) std::atomic<Index> next_ = 0;  // with what is read beside it
  Index tasks_ = 0;
  std::optional<TaskRef> task_;
  Workers workers_{*this, ::getpid(), {}};  // the last: it goes first
};

}  // namespace headwise::inline v0_1

// headwise/runtime/num_threads.hpp
// How many threads a call without an executor works on, and the pool of them: the one piece of
// global state that is not constant. It is 1, the calling thread, until somebody asks for more;
// nothing is started behind a program's back.

namespace headwise::inline v0_1 {

namespace detail {

/// 0 until it is known. Apart from the pool, since it is asked also when that is gone, at the end
/// of a program.
inline std::atomic<Index> default_threads = 0;

struct DefaultPool {
  std::mutex mutex;
  std::shared_ptr<ThreadPool> pool;  // null for 1 thread, and before it is needed

  ~DefaultPool() { default_threads = 1; }
};
inline constinit DefaultPool default_pool;

/// What this value of HEADWISE_NUM_THREADS asks for; null: it is not set. Throws ArgumentError.
inline Index threads_asked_for(const char* value) {
  if (value == nullptr) return 1;
  const std::string_view text = value;
  Index threads = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  require(whole && threads >= 1 && threads <= max_threads, "num_threads", [&] {
    return "HEADWISE_NUM_THREADS is " + std::string(text.empty() ? "empty" : text) +
           ", expected 1 to 65536 (environment)";
  });
  return threads;
}

}  // namespace detail

/// Threads of a call whose Context names no executor: what set_num_threads last said; before, the
/// environment's HEADWISE_NUM_THREADS, which is read once; else 1. Throws ArgumentError if that is
/// no number from 1 to 65536.
inline Index num_threads() {
  if (const Index threads = detail::default_threads.load(); threads != 0) return threads;
  const std::lock_guard lock(detail::default_pool.mutex);
  if (detail::default_threads == 0) {
    detail::default_threads = detail::threads_asked_for(std::getenv("HEADWISE_NUM_THREADS"));
  }
  return detail::default_threads;
}

/// From now on a call whose Context names no executor works on so many threads, the calling one
/// among them. From any thread, at any time, also inside a task: calls that are under way, and a
/// Context made before, keep the threads that they have, which end with the last of them.
///
/// Throws ArgumentError for fewer than 1 or more than 65536, std::system_error if a thread cannot
/// be started; then nothing has changed.
inline void set_num_threads(Index threads) {
  require(threads >= 1 && threads <= max_threads, "set_num_threads",
          "threads is " + std::to_string(threads) + ", expected 1 to 65536");
  if (detail::default_threads == threads) return;
  std::shared_ptr<ThreadPool> pool;
  if (threads > 1) pool = std::make_shared<ThreadPool>(threads);
  const std::lock_guard lock(detail::default_pool.mutex);
  detail::default_pool.pool.swap(pool);
  detail::default_threads = threads;
}

namespace detail {

/// The default pool, started if it has not been; null where the calling thread is enough.
inline std::shared_ptr<ThreadPool> share_default_pool() {
  if (num_threads() == 1) return nullptr;
  const std::lock_guard lock(default_pool.mutex);
  if (!default_pool.pool && default_threads != 1) {
    default_pool.pool = std::make_shared<ThreadPool>(default_threads);
  }
  return default_pool.pool;
}

}  // namespace detail

}  // namespace headwise::inline v0_1

// headwise/runtime/executor_ref.hpp
// Any executor, by reference: what a Context carries and every operation runs its tasks on.

namespace headwise::inline v0_1 {

/// Any executor, by reference. What it refers to must outlive it.
///
/// By default it is what num_threads() says when it is made: the calling thread, or the default
/// pool, of which it keeps the threads for as long as it lives, also past a set_num_threads.
/// Throws ArgumentError for an executor without workers.
class ExecutorRef {
 public:
  /// The default. Throws as num_threads() does, and std::system_error where the default pool is
  /// needed for the first time and cannot be started.
  ExecutorRef() : default_pool_(detail::share_default_pool()) {
    if (default_pool_) refer_to(*default_pool_);
  }

  /// Refers to an executor, which must outlive it.
  template <Executor E>
  requires(!std::same_as<E, ExecutorRef>) ExecutorRef(E& executor) {
    refer_to(executor);
    require(concurrency() >= 1, "ExecutorRef", [&] {
      return "concurrency of the executor is " + std::to_string(concurrency()) + ", expected >= 1";
    });
  }

  /// How many workers there are.
  Index concurrency() const { return executor_ == nullptr ? 1 : concurrency_(executor_); }
  /// As the Executor concept says.
  void run(Index tasks, TaskRef task) const {
    if (executor_ == nullptr) {
      SerialExecutor().run(tasks, task);
    } else {
      run_(executor_, tasks, task);
    }
  }

 private:
  template <class E>
  void refer_to(E& executor) {
    executor_ = std::addressof(executor);
    concurrency_ = [](void* e) { return Index{static_cast<E*>(e)->concurrency()}; };
    run_ = [](void* e, Index tasks, TaskRef task) { static_cast<E*>(e)->run(tasks, task); };
  }

  std::shared_ptr<ThreadPool> default_pool_;  // of a default one; null otherwise
  void* executor_ = nullptr;
  Index (*concurrency_)(void*) = nullptr;
  void (*run_)(void*, Index, TaskRef) = nullptr;
};

}  // namespace headwise::inline v0_1

// headwise/runtime/recycled_memory.hpp
// Memory that is given back is kept for the next call of the same sizes: a training step that has
// run once asks the system for no more, and touches no page for the first time. (Fresh pages took 5
// % of forward and backward at [8, 1024, 768] and 16 % at [1, 128, 256]; huge ones saved 2 to 5 %
// more.)

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headwise::inline v0_1 {

class RecycledMemory;
inline RecycledMemory& recycled_memory();

/// A memory resource that keeps what it is given back. Of use to any number of threads.
///
/// Blocks are of fixed sizes, eight to each power of 2, and start on 64 bytes; from 4 MiB on they
/// ask for huge pages. Where 16 MiB and twice as many bytes wait as were ever in use at once, all
/// of them are let go: sizes that change from call to call do not pile up.
class RecycledMemory final : public std::pmr::memory_resource {
 public:
  RecycledMemory() = default;
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;
  ~RecycledMemory() override { release(); }

  /// Lets go of what is kept.
  void release() {
    lock();
    auto kept = kept_;
    kept_.fill(nullptr);
    kept_bytes_ = 0;
    unlock();
    for (int size = 0; size < sizes; ++size) {
      while (kept[index(size)] != nullptr) {
        Block* block = kept[index(size)];
        kept[index(size)] = block->next;
        let_go(block, size);
      }
    }
  }

  /// Bytes that wait for their next use.
  std::size_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }

 private:
  /// What a block holds while it is kept.
  struct Block {
    Block* next;
  };

  static constexpr int smallest_exponent = 6, steps = 8;  // from 64 bytes on
  static constexpr int sizes = (48 - smallest_exponent) * steps;
  static constexpr std::size_t huge_page = std::size_t{1} << 21, few_bytes = std::size_t{1} << 24;

  static std::size_t index(int size) { return static_cast<std::size_t>(size); }
  static std::size_t bytes_of(int size) {
    const std::size_t power = std::size_t{1} << (smallest_exponent + size / steps);
    const std::size_t bytes = power + power / steps * index(size % steps);
    return (bytes + storage_alignment - 1) / storage_alignment * storage_alignment;
  }
  /// The smallest that has room for so many bytes.
  static int size_for(std::size_t bytes) {
    if (bytes <= storage_alignment) return 0;
    const auto exponent = static_cast<int>(std::bit_width(bytes - 1)) - 1;
    const std::size_t power = std::size_t{1} << exponent;
    const auto step = static_cast<int>((bytes - 1 - power) / (power / steps)) + 1;
    return (exponent - smallest_exponent) * steps + step;
  }
  static std::align_val_t alignment_of(int size) {
    return std::align_val_t{bytes_of(size) >= 2 * huge_page ? huge_page : storage_alignment};
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const int size = size_for(bytes);
    if (size >= sizes || alignment > storage_alignment) {
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    lock();
    void* memory = kept_[index(size)];
    if (memory != nullptr) {
      kept_[index(size)] = kept_[index(size)]->next;
      kept_bytes_ -= bytes_of(size);
    }
    unlock();
    if (memory == nullptr) memory = fresh(size);
    lock();
    used_bytes_ += bytes_of(size);
    most_used_bytes_ = std::max<std::size_t>(most_used_bytes_, used_bytes_);
    unlock();
    return memory;
  }

  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    const int size = size_for(bytes);
    if (size >= sizes || alignment > storage_alignment) {
      return std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
    }
    lock();
    Block*& first = kept_[index(size)];
    first = ::new (memory) Block{first};
    kept_bytes_ += bytes_of(size);
    used_bytes_ -= bytes_of(size);
    const bool too_many = kept_bytes_ > few_bytes + 2 * most_used_bytes_;
    unlock();
    if (too_many) release();
  }

  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  /// From the system; what is kept in other sizes is given up before memory has run out.
  void* fresh(int size) {
    void* memory = ::operator new(bytes_of(size), alignment_of(size), std::nothrow);
    if (memory == nullptr) {
      release();
      memory = ::operator new(bytes_of(size), alignment_of(size));
    }
#if defined(__linux__)
    if (bytes_of(size) >= 2 * huge_page) {
      (void)madvise(memory, bytes_of(size) / huge_page * huge_page, MADV_HUGEPAGE);
    }
#endif
    return memory;
  }
  static void let_go(void* memory, int size) { ::operator delete(memory, alignment_of(size)); }

  friend RecycledMemory& recycled_memory();

  void lock() {
    constexpr int spins = 64;  // it is held for some nanoseconds, unless its thread has to wait
    for (int spin = 0; locked_.test_and_set(std::memory_order_acquire); ++spin) {
      if (spin < spins) {
        detail::relax();
      } else {
        sched_yield();
      }
    }
  }
  void unlock() { locked_.clear(std::memory_order_release); }

  std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
  std::array<Block*, std::size_t{sizes}> kept_{};
  std::atomic<std::size_t> kept_bytes_ = 0;
  std::size_t used_bytes_ = 0, most_used_bytes_ = 0;
};

namespace detail {

/// Whether each block is to come from the system and go back there: sanitizers see what happens to
/// memory in between, and HEADWISE_RECYCLE=0 (environment, read once) says so.
inline bool recycles() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) || \
    __has_feature(thread_sanitizer)
  return false;
#endif
#endif
  static const char* const wish = std::getenv("HEADWISE_RECYCLE");
  static const bool refused = wish != nullptr && wish[0] == '0' && wish[1] == '\0';
  return !refused;
#endif
}

}  // namespace detail

/// The one that a Context names unless it is told otherwise. It lives until the program ends.
inline RecycledMemory& recycled_memory() {
  static RecycledMemory* const memory = [] {
    auto* const made = new RecycledMemory;  // outlives every static tensor
    // A child process has no thread that would unlock what another held when it was made.
    pthread_atfork([] { recycled_memory().lock(); }, [] { recycled_memory().unlock(); },
                   [] { recycled_memory().unlock(); });
    return made;
  }();
  return *memory;
}

/// Where a call takes its memory from by default: recycled_memory(), or what the program has set by
/// std::pmr::set_default_resource.
inline std::pmr::memory_resource* default_memory() {
  std::pmr::memory_resource* const standard = std::pmr::get_default_resource();
  if (standard != std::pmr::new_delete_resource() || !detail::recycles()) return standard;
  return &recycled_memory();
}

}  // namespace headwise::inline v0_1

// headwise/runtime/trace.hpp
// Every intermediate of the textbook by name, for teaching and for finding faults.

namespace headwise::inline v0_1 {

/// Copies of the tensors that a traced call passed through, in the order of the computation.
/// Values are kept as double, row-major.
class Trace {
 public:
  /// One tensor.
  struct Entry {
    std::string name;            // by the textbook: X, Q, A, AS, dQ ...
    std::vector<Index> shape;    // extents
    std::vector<double> values;  // row-major
  };

  /// Appends a copy under a name, which may be there already. Throws std::bad_alloc.
  template <class T, int R>
  void record(std::string_view name, const In<T, R>& tensor) {
    require_countable("Trace::record", "tensor", tensor);
    Entry entry{
        std::string(name), {tensor.shape().extents.begin(), tensor.shape().extents.end()}, {}};
    entry.values.reserve(static_cast<std::size_t>(tensor.size()));
    for_each_index(tensor.shape(), [&](const Shape<R>& index) {
      entry.values.push_back(static_cast<double>(tensor(index)));
    });
    entries_.push_back(std::move(entry));
  }

  /// All of them, oldest first.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Forgets all of them.
  void clear() { entries_.clear(); }

  /// Whether a tensor of this name was recorded.
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// The newest tensor of this name. Throws ArgumentError, listing the names, if there is none.
  const Entry& at(std::string_view name) const {
    if (const Entry* entry = find(name)) return *entry;
    std::string names;
    for (const Entry& entry : entries_) names += " " + entry.name;
    raise<ArgumentError>("Trace::at: name is " + std::string(name) + ", expected one of:" + names);
  }

  /// The newest tensor of this name as a view of rank R. Throws ArgumentError or ShapeError.
  template <int R>
  In<double, R> view(std::string_view name) const {
    const Entry& entry = at(name);
    if (entry.shape.size() != static_cast<std::size_t>(R)) {
      raise<ShapeError>("Trace::view: " + entry.name + " is " + format_extents(entry.shape) +
                        ", expected " + std::to_string(R) + " axes");
    }
    Shape<R> shape;
    for (int r = 0; r < R; ++r) shape[r] = entry.shape[static_cast<std::size_t>(r)];
    return {entry.values.data(), shape};
  }

 private:
  const Entry* find(std::string_view name) const {
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->name == name) return &*entry;
    }
    return nullptr;
  }

  std::vector<Entry> entries_;
};

}  // namespace headwise::inline v0_1

// headwise/runtime/context.hpp
// What a call runs with: threads, memory, tallies, a trace. Passed last and by default empty:
// num_threads() threads, which is the calling one unless somebody asked for more, recycled memory,
// nothing counted, nothing recorded.

namespace headwise::inline v0_1 {

/// References to what a call uses; it owns none of it (but keeps the default pool that it was made
/// with). Cheap to copy.
struct Context {
  ExecutorRef executor = {};  // runs the tasks; num_threads() by default
  /// Of results, caches and scratch.
  std::pmr::memory_resource* memory = default_memory();
  FlopTally* flops = nullptr;  // counts, where it is given
  Trace* trace = nullptr;      // records, where it is given

  /// Adds to the tally, if there is one.
  void count_flops(std::int64_t useful, std::int64_t executed) const {
    if (flops != nullptr) flops->add(useful, executed);
  }
};

}  // namespace headwise::inline v0_1

// headwise/ops/rows.hpp
// How work along rows and down columns is cut into tasks. No element depends on the cut.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Elements of a task along rows: some microseconds.
inline constexpr Index elements_of_rows = 16384;

/// run(begin, end) for parts of N rows of `width` elements.
template <class F>
void for_rows(const Context& context, Index N, Index width, const F& run) {
  const Index rows = std::max<Index>(1, elements_of_rows / std::max<Index>(1, width));
  const auto task = [&](Index t, Index) { run(t * rows, std::min<Index>(N, (t + 1) * rows)); };
  context.executor.run((N + rows - 1) / rows, task);
}

/// run(begin, end) for parts of `columns` columns of N elements: as few as workers need, for a row
/// is read in parts as wide as they are.
template <class F>
void for_columns(const Context& context, Index N, Index columns, const F& run) {
  if (columns == 0) return;
  constexpr Index together = 64;
  const Index workers = context.executor.concurrency();
  const Index most = std::max<Index>(1, N * columns / elements_of_rows);
  const Index tasks = workers == 1 ? 1 : std::min<Index>(2 * workers, most);
  const Index pieces = (columns + together - 1) / together;
  const Index width = (pieces + tasks - 1) / tasks * together;
  const auto task = [&](Index t, Index) {
    run(t * width, std::min<Index>(columns, (t + 1) * width));
  };
  context.executor.run((columns + width - 1) / width, task);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/ops/elementwise_rows.hpp
// How element-by-element operations check their arguments and run their rows.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Checks y = f(a, b), where a and b are [N, M], or [1, M] for every row.
template <class T>
void require_combined(std::string_view function, const In<T, 2>& a, const In<T, 2>& b,
                      const Out<T, 2>& y) {
  require_countable(function, "a", a);
  require_countable(function, "b", b);
  const Index rows_a = a.extent(0), rows_b = b.extent(0), M = a.extent(1);
  if (b.extent(1) != M || (rows_a != rows_b && rows_a != 1 && rows_b != 1)) {
    raise<ShapeError>(std::string(function) + ": b is " + b.shape().format() +
                      ", expected the shape of a " + a.shape().format() + ", or one row of it");
  }
  require_shape(function, "y", y, Shape{rows_a == 1 ? rows_b : rows_a, M}, "rows of a and b");
  require_distinct(function, {"y", y});
  require_same_or_apart(function, {"y", y}, {"a", a});
  require_same_or_apart(function, {"y", y}, {"b", b});
}

/// The shape that a gradient may have: that of dy, or one row.
template <class T>
Shape<2> rows_or_one(const In<T, 2>& gradient, const In<T, 2>& dy) {
  return {gradient.extent(0) == 1 ? 1 : dy.extent(0), dy.extent(1)};
}

template <class T>
void require_gradient_of(std::string_view function, std::string_view argument,
                         const Out<T, 2>& gradient, const Shape<2>& expected,
                         std::string_view whence) {
  if (!gradient.absent()) require_shape(function, argument, gradient, expected, whence);
}

/// Checks da and db of a sum or a difference.
template <class T>
void require_gradients(std::string_view function, const In<T, 2>& dy, const Out<T, 2>& da,
                       const Out<T, 2>& db) {
  require_countable(function, "dy", dy);
  require_gradient_of<T>(function, "da", da, rows_or_one<T>(da, dy), "the shape of dy, or one row");
  require_gradient_of<T>(function, "db", db, rows_or_one<T>(db, dy), "the shape of dy, or one row");
  require_distinct(function, {"da", da});
  require_same_or_apart(function, {"da", da}, {"dy", dy});
  require_apart(function, {"db", db}, {{"da", da}});
  require_same_or_apart(function, {"db", db}, {"dy", dy});
}

/// Checks an input of backward: [N, M] as dy, or [1, M].
template <class T>
void require_factor(std::string_view function, std::string_view argument, const In<T, 2>& factor,
                    const In<T, 2>& dy) {
  require_countable(function, "dy", dy);
  require_shape(function, argument, factor, rows_or_one<T>(factor, dy),
                "the shape of dy, or one row");
}

/// The matrix of [rows, M], or of [1, M] seen `rows` times.
template <class T>
kernels::Matrix<const T> matrix_of_rows(const In<T, 2>& view, Index rows) {
  kernels::Matrix<const T> matrix = kernels::matrix(view);
  if (view.extent(0) == 1 && rows != 1) matrix.row = 0;
  return matrix;
}

/// f(a, b), whatever it goes to.
template <class T>
struct Combined {
  kernels::Combination how;
  In<T, 2> a, b;  // [N, M], or [1, M]; where only a is combined, b is a
  T alpha = T(1);

  kernels::CombinedRows<T> rows(Index N, Index M, kernels::Matrix<T> y) const {
    return {matrix_of_rows(a, N), matrix_of_rows(b, N), y, M, alpha};
  }
};

/// y = f(a, b).
template <class T>
void combine(const Combined<T>& of, const Out<T, 2>& y, const Context& context) {
  const Index N = y.extent(0), M = y.extent(1);
  if (N == 0 || M == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CombinedRows<T> rows = of.rows(N, M, kernels::matrix(y));
  for_rows(context, N, M,
           [&](Index begin, Index end) { run.combine_rows(of.how, rows, begin, end); });
  if (of.how != kernels::Combination::first) context.count_flops(y.size(), y.size());
}

/// The gradient f(a, b) [N, M], or its column sums where `to` is [1, M]; nothing where it is `{}`.
template <class T>
void combine_backward(const Combined<T>& of, Index N, const Out<T, 2>& to, const Context& context) {
  if (to.absent()) return;
  if (to.extent(0) == N) return combine(of, to, context);
  fill(to, T(0));
  const Index M = to.extent(1);
  if (N == 0 || M == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CombinedRows<T> rows = of.rows(N, M, {nullptr, 0, 0});
  const kernels::Row<T> sums{to.data(), to.stride(1)};
  for_columns(context, N, M, [&](Index begin, Index end) {
    run.combine_columns(of.how, rows, N, begin, end, sums);
  });
  const std::int64_t flops = std::int64_t{N} * M * (of.how == kernels::Combination::first ? 1 : 2);
  context.count_flops(flops, flops);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/ops/accumulate.hpp
// A tensor added to another, and its elements summed up, whatever the strides.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// to = f(from, to) for tensors of one shape, row by row: f is `first` or `sum`.
template <class T, int R>
void combine_into(kernels::Combination how, const In<T, R>& from, const Out<T, R>& to,
                  const Context& context) {
  if (to.size() == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  if (from.dense() && to.dense()) {
    return for_rows(context, to.size(), 1, [&](Index begin, Index end) {
      const kernels::Matrix<const T> a{from.data() + begin, 0, 1};
      const kernels::Matrix<T> y{to.data() + begin, 0, 1};
      run.combine_rows(how, {a, y, y, end - begin}, 0, 1);
    });
  }
  if constexpr (R == 1) {
    const kernels::Matrix<const T> a{from.data(), 0, from.stride(0)};
    const kernels::Matrix<T> y{to.data(), 0, to.stride(0)};
    run.combine_rows(how, {a, y, y, to.extent(0)}, 0, 1);
  } else {
    const Index L = to.extent(R - 2), M = to.extent(R - 1);
    for_rows(context, to.size() / M, M, [&](Index begin, Index end) {
      while (begin < end) {  // the matrices of the last two axes, one after the other
        Index matrix = begin / L, offset_from = 0, offset_to = 0;
        for (int r = R - 3; r >= 0; --r) {
          const Index i = matrix % to.extent(r);
          matrix /= to.extent(r);
          offset_from += i * from.stride(r);
          offset_to += i * to.stride(r);
        }
        const Index first = begin % L, last = std::min<Index>(L, first + end - begin);
        const kernels::Matrix<const T> a{from.data() + offset_from, from.stride(R - 2),
                                         from.stride(R - 1)};
        const kernels::Matrix<T> y{to.data() + offset_to, to.stride(R - 2), to.stride(R - 1)};
        run.combine_rows(how, {a, y, y, M}, first, last);
        begin += last - first;
      }
    });
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// sum += x, element by element.
///
/// x     [...]   in; any strides
/// sum   [...]   added to; may be x
///
/// Work    a FLOP an element.
/// Throws  ShapeError before anything is written.
template <Scalar T, int R>
void accumulate(In<T, R> x, InOut<std::type_identity_t<T>, R> sum, const Context& context = {}) {
  require_countable("accumulate", "x", x);
  require_shape("accumulate", "sum", sum, x.shape(), "the shape of x");
  require_distinct("accumulate", {"sum", sum});
  require_same_or_apart("accumulate", {"sum", sum}, {"x", x});
  detail::combine_into<T, R>(kernels::Combination::sum, x, sum, context);
  context.count_flops(x.size(), x.size());
}

/// total = the sum of all elements of x: down the columns, then along.
///
/// x       [N, M]   in; any strides
/// total   [1]      out; must not overlap x
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void sum_forward(In<T, 2> x, Out<std::type_identity_t<T>, 1> total, const Context& context = {}) {
  require_countable("sum_forward", "x", x);
  require_apart("sum_forward", {"total", total}, {{"x", x}});
  require_shape("sum_forward", "total", total, Shape{1}, "one number");
  const Index M = x.extent(1);
  Tensor<T, 2> columns(Shape{Index{1}, M}, context.memory);
  const Out<T, 2> sums = columns;
  detail::combine_backward<T>({kernels::Combination::first, x, x}, x.extent(0), sums, context);
  total(0) = T(0);
  if (M == 0) return;
  const kernels::Row<T> to{total.data(), total.stride(0)};
  kernels::kernels_here<T>().add_rows({columns.data(), 1, 0}, M, 0, 1, to);
}

/// dx = d_total everywhere: the gradient of sum_forward.
///
/// d_total   [1]      in
/// dx        [N, M]   out; must not overlap d_total
///
/// Throws  ShapeError before anything is written.
template <Scalar T>
void sum_backward(In<T, 1> d_total, Out<std::type_identity_t<T>, 2> dx,
                  const Context& context = {}) {
  require_shape("sum_backward", "d_total", d_total, Shape{1}, "one number");
  require_countable("sum_backward", "dx", dx);
  require_apart("sum_backward", {"dx", dx}, {{"d_total", d_total}});
  const In<T, 2> everywhere(d_total.data(), Shape{Index{1}, dx.extent(1)}, Shape{0, 0});
  detail::combine<T>({kernels::Combination::first, everywhere, everywhere}, dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/gradients.hpp
// How contributions become gradients. A gradient is not set to 0: the first contribution to a part
// of it overwrites that part in place, later ones are added, and what none has written when it is
// read is set to 0 then. So three slices of one tensor get their gradients written side by side
// into one, by who computes them.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Where a contribution is written: in place, or to a temporary that is added afterwards.
template <class T, int R>
struct Opened {
  Out<T, R> to;
  StorageRef<T> temporary;
};

/// The gradients of a tape's nodes.
template <class T>
class Gradients {
 public:
  Gradients(std::pmr::vector<Node<T>>& nodes, const Context& context)
      : nodes_(nodes), context_(context), pieces_(context.memory) {}

  /// The view of a gradient that is there.
  template <int R>
  Out<T, R> view(const Node<T>& node, Index offset, const Shape<R>& shape,
                 const Shape<R>& strides) const {
    T* const begin = node.to_caller ? node.callers : node.gradient ? node.gradient->own : nullptr;
    return {begin == nullptr || shape.size() == 0 ? nullptr : begin + offset, shape, strides};
  }

  /// Memory for a contribution of pass `pass`.
  template <int R, Wanted wanted>
  Opened<T, R> open(const Target<R, wanted>& at, Index pass) {
    if (at.node == no_node) {
      if (wanted != Wanted::always) return {};
      return temporary(at.shape, false);
    }
    Node<T>& node = node_at(at.node);
    node.reached = true;
    const bool first = node.opened_by != pass;
    if (node.to_caller) {
      if (wanted != Wanted::added || !first) return temporary(at.shape, wanted == Wanted::added);
      node.opened_by = pass;
      return {view(node, at.offset, at.shape, at.strides), {}};
    }
    begin(node);
    const Out<T, R> to = view(node, at.offset, at.shape, at.strides);
    if (is_free(node, to)) {
      mark(node, to);
      node.opened_by = pass;
      if (wanted == Wanted::added) fill(to, T(0));
      return {to, {}};
    }
    if (wanted != Wanted::added || !first) return temporary(at.shape, wanted == Wanted::added);
    node.opened_by = pass;
    cover(node, to);
    return {to, {}};
  }

  /// After the contribution was written.
  template <int R, Wanted wanted>
  void close(const Target<R, wanted>& at, const Opened<T, R>& opened) {
    if (opened.temporary && at.node != no_node) add(at, In<T, R>(opened.to));
  }

  /// Adds values to a gradient, or lets them be what it begins with.
  template <int R, Wanted wanted>
  void add(const Target<R, wanted>& at, const In<T, R>& values) {
    if (at.node == no_node) return;
    Node<T>& node = node_at(at.node);
    node.reached = true;
    if (!node.to_caller) begin(node);
    const Out<T, R> to = view(node, at.offset, at.shape, at.strides);
    if (!node.to_caller && is_free(node, to)) {
      mark(node, to);
      return combine_into<T, R>(kernels::Combination::first, values, to, context_);
    }
    if (!node.to_caller) cover(node, to);
    accumulate<T, R>(values, InOut<T, R>(to), context_);
  }

  /// The gradient of `from` becomes that of `to`, as it is.
  void move(Node<T>& from, Node<T>& to) {
    to.gradient = std::move(from.gradient);
    to.written = to.count;
    to.reached = true;
  }

  /// Sets to 0 what nobody has written.
  void complete(Node<T>& node) {
    begin(node);
    if (node.written == node.count) return;
    T* const own = node.gradient->own;
    if (node.written == 0) {
      std::fill_n(own, node.count, T(0));
    } else {
      Tensor<bool, 1> written(Shape{node.count}, context_.memory);
      for (const WrittenPart* piece = node.pieces; piece != nullptr; piece = piece->next) {
        note(piece->place, own, written);
      }
      for (Index n = 0; n < node.count; ++n) {
        if (!written(n)) own[n] = T(0);
      }
    }
    node.written = node.count;
    node.pieces = nullptr;
  }

  /// Forgets all pieces: no gradient is unfinished any more.
  void forget_pieces() { pieces_.rewind({}); }

 private:
  Node<T>& node_at(Index node) { return nodes_[static_cast<std::size_t>(node)]; }

  void begin(Node<T>& node) {
    if (!node.gradient) node.gradient = StorageRef<T>::make(node.count, context_.memory);
  }

  template <int R>
  Opened<T, R> temporary(const Shape<R>& shape, bool zero) {
    Opened<T, R> opened;
    opened.temporary = StorageRef<T>::make(shape.size(), context_.memory);
    opened.to = {shape.size() == 0 ? nullptr : opened.temporary->own, shape};
    if (zero) fill(opened.to, T(0));
    return opened;
  }

  /// Whether nothing of it has been written.
  template <int R>
  bool is_free(const Node<T>& node, const In<T, R>& to) const {
    if (node.written == 0) return true;
    if (node.written == node.count) return false;
    const Footprint place("", to);
    for (const WrittenPart* piece = node.pieces; piece != nullptr; piece = piece->next) {
      if (overlap(piece->place, place)) return false;
    }
    return true;
  }

  template <int R>
  void mark(Node<T>& node, const In<T, R>& to) {
    const Index size = to.size();
    if (size == 0) return;
    if (size != node.count) {
      node.pieces = ::new (pieces_.template room_for<WrittenPart>())
          WrittenPart{Footprint("", to), node.pieces};
    }
    node.written += size;
  }

  /// Sees to it that all of it has been written.
  template <int R>
  void cover(Node<T>& node, const In<T, R>& to) {
    if (node.written == node.count) return;
    const Footprint place("", to);
    for (const WrittenPart* piece = node.pieces; piece != nullptr; piece = piece->next) {
      if (same_elements(piece->place, place)) return;
    }
    complete(node);
  }

  /// written = true for the elements of a piece.
  static void note(const Footprint& place, const T* begin, Tensor<bool, 1>& written) {
    const auto bytes = place.address - reinterpret_cast<std::uintptr_t>(begin);
    Index at = static_cast<Index>(bytes / sizeof(T));
    std::array<Index, 8> index{};
    for (int axis = 0; axis >= 0;) {
      written(at) = true;
      for (axis = place.axes - 1; axis >= 0; --axis) {
        const auto r = static_cast<std::size_t>(axis);
        at += place.strides[r];
        if (++index[r] < place.extents[r]) break;
        at -= place.strides[r] * place.extents[r];
        index[r] = 0;
      }
    }
  }

  std::pmr::vector<Node<T>>& nodes_;
  const Context& context_;
  Stack pieces_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/autograd/core.hpp
// The tape's own: nodes in the order in which they were recorded, and the sweep over them from the
// last to the first. It is a loop, so that a chain of any length can be swept.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What a node's backward is called with.
template <class T>
class Pass {
 public:
  Pass(TapeCore<T>& tape, Index node, Index number) : tape_(tape), node_(node), number_(number) {}

  /// What the tape was made with.
  const Context& context() const;

  /// call(Out ...) with memory for the gradient of each target: InOut for one that is added to. It
  /// has to write all of each; what cannot be written in place is added afterwards.
  template <class Call, int... R, Wanted... wanted>
  void assign(Call&& call, const Target<R, wanted>&... targets);

  /// Adds values to the gradient of a target.
  template <int R, Wanted wanted>
  void contribute(const Target<R, wanted>& target, const In<T, R>& values);

  /// Adds dy to the gradient of a target; without a copy where nothing is there and nobody else
  /// reads dy any more: the last thing that a node does.
  template <int R, Wanted wanted>
  void hand_on(const Target<R, wanted>& target, const In<T, R>& dy);

  /// Records run() -> variable again and sweeps what it recorded, with dy the gradient of it.
  template <class Run, int R>
  void recompute(Run&& run, const In<T, R>& dy);

  /// The gradient of a part of this node's output.
  template <int R>
  In<T, R> gradient(Index offset, const Shape<R>& shape, const Shape<R>& strides) const;

 private:
  template <Wanted wanted, int R>
  static auto memory_of(const Opened<T, R>& opened) {
    if constexpr (wanted == Wanted::added) {
      return InOut<T, R>(opened.to);
    } else {
      return opened.to;
    }
  }

  TapeCore<T>& tape_;
  const Index node_, number_;
};

/// What a Tape holds.
template <class T>
class TapeCore {
 public:
  enum class State { recording, sweeping, swept };

  explicit TapeCore(const Context& with)
      : context(with), nodes(memory_of(with)), closures(with.memory), gradients(nodes, context) {}
  TapeCore(const TapeCore&) = delete;
  TapeCore& operator=(const TapeCore&) = delete;
  ~TapeCore() { drop_nodes(0); }

  /// Whether what is computed now is recorded.
  bool records() const { return values_only == 0; }
  /// Whether a node may be added.
  bool may_record() const { return state == State::recording || recomputing != 0; }

  Node<T>& node(Index n) { return nodes[static_cast<std::size_t>(n)]; }
  Index count() const { return static_cast<Index>(nodes.size()); }
  /// Room for one more. Throws std::bad_alloc.
  void reserve() {
    if (nodes.size() == nodes.capacity()) nodes.reserve(2 * nodes.size() + 16);
  }

  /// Takes back all nodes from the end to `begin`.
  void drop_nodes(Index begin) {
    while (count() > begin) {
      release(nodes.back());
      nodes.pop_back();
    }
  }

  /// From the last node to `begin`: each one's gradient is complete when it is reached, and what it
  /// kept is released when it is passed.
  void sweep(Index begin) {
    for (Index n = count() - 1; n >= begin; --n) pass(n);
  }

  /// Throws ArgumentError where a value that one of the nodes from `begin` on keeps has changed.
  void require_unchanged(Index begin) {
    for (Index n = begin; n < count(); ++n) {
      for (const SavedValue<T>* saved = node(n).saved; saved != nullptr; saved = saved->next) {
        require(saved->storage->version == saved->version, "Tape::backward", [&] {
          return "a value that " + std::string(node(n).name) +
                 " kept has been written to since, expected it as it was (copy it before)";
        });
      }
    }
  }

  const Context context;
  std::pmr::vector<Node<T>> nodes;
  Stack closures;  // and lists of saved values
  Gradients<T> gradients;
  State state = State::recording;
  Index step = 1;
  int values_only = 0;  // guards that are alive
  int recomputing = 0;  // nodes that record again what they swept over
  Index passes = 0;

 private:
  static std::pmr::memory_resource* memory_of(const Context& context) {
    require(context.memory != nullptr, "Tape", "memory is null, expected a memory resource");
    return context.memory;
  }

  /// What a node holds, but its gradient.
  static void release(Node<T>& of) {
    if (of.closure != nullptr) of.destroy(std::exchange(of.closure, nullptr));
    for (SavedValue<T>* saved = std::exchange(of.saved, nullptr); saved != nullptr;) {
      SavedValue<T>* const next = saved->next;
      std::destroy_at(saved);
      saved = next;
    }
  }

  void pass(Index n) {
    if (node(n).watched) node(n).reached = true;
    if (node(n).reached) {
      if (!node(n).to_caller) gradients.complete(node(n));
      if (node(n).run != nullptr) {
        Pass<T> now(*this, n, ++passes);
        node(n).run(node(n).closure, now);  // which may record: nodes may lie elsewhere then
      }
    }
    release(node(n));
    if (!node(n).watched) node(n).gradient = {};
  }
};

/// What is undone at the end of a recomputation, however it ends.
template <class T>
class Recomputation {
 public:
  explicit Recomputation(TapeCore<T>& tape)
      : tape_(tape),
        begin_(tape.count()),
        mark_(tape.closures.mark()),
        values_only_(std::exchange(tape.values_only, 0)) {
    ++tape_.recomputing;
  }
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;
  ~Recomputation() {
    tape_.drop_nodes(begin_);
    tape_.closures.rewind(mark_);
    tape_.values_only = values_only_;
    --tape_.recomputing;
  }
  Index begin() const { return begin_; }

 private:
  TapeCore<T>& tape_;
  const Index begin_;
  const Stack::Mark mark_;
  const int values_only_;
};

/// Where the gradient of a variable goes.
template <Wanted wanted, class T, int R>
Target<R, wanted> target_of(const Variable<T, R>& x) {
  const In<T, R>& value = x.value();
  Target<R, wanted> target{no_node, 0, value.shape(), value.strides()};
  if (x.absent() || !x.has_gradient()) return target;
  target.node = x.handle().node;
  if (value.data() != nullptr) target.offset = value.data() - x.handle().storage->begin;
  return target;
}

template <class T>
const Context& Pass<T>::context() const {
  return tape_.context;
}

template <class T>
template <int R>
In<T, R> Pass<T>::gradient(Index offset, const Shape<R>& shape, const Shape<R>& strides) const {
  return tape_.gradients.view(tape_.node(node_), offset, shape, strides);
}

template <class T>
template <class Call, int... R, Wanted... wanted>
void Pass<T>::assign(Call&& call, const Target<R, wanted>&... targets) {
  const auto run = [&](const Opened<T, R>&... opened) {
    call(memory_of<wanted>(opened)...);
    (tape_.gradients.close(targets, opened), ...);
  };
  // In braces, so that they are opened in this order.
  std::apply(run, std::tuple<Opened<T, R>...>{tape_.gradients.open(targets, number_)...});
}

template <class T>
template <int R, Wanted wanted>
void Pass<T>::contribute(const Target<R, wanted>& target, const In<T, R>& values) {
  tape_.gradients.add(target, values);
}

template <class T>
template <int R, Wanted wanted>
void Pass<T>::hand_on(const Target<R, wanted>& target, const In<T, R>& dy) {
  if (target.node == no_node) return;
  Node<T>&from = tape_.node(node_), &to = tape_.node(target.node);
  const bool alike = from.count == to.count && dy.size() == to.count &&
                     target.strides == dy.strides() && target.offset == 0 &&
                     (dy.data() == nullptr || dy.data() == from.gradient->own);
  if (alike && !to.to_caller && !to.gradient && !from.watched) {
    return tape_.gradients.move(from, to);
  }
  tape_.gradients.add(target, dy);
}

template <class T>
template <class Run, int R>
void Pass<T>::recompute(Run&& run, const In<T, R>& dy) {
  const Recomputation<T> again(tape_);
  const Variable<T, R> y = run();
  tape_.gradients.add(target_of<Wanted::added>(y), dy);
  tape_.sweep(again.begin());
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/autograd/recording.hpp
// How a function of the tape is written: the checks, the output, what backward reads, and the call
// that backward is. apply.hpp does all of it for a pair of functions.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What backward is called with: where it asks for the memory of its inputs' gradients.
template <Scalar T>
using BackwardPass = detail::Pass<T>;

/// One call, from its checks until it is a node of the tape or, where no gradient flows or a NoGrad
/// is alive, only a value:
///
///   Recording<T> call({"softmax"}, x);
///   const Out<T, 2> p = call.output(x.shape());
///   softmax_forward(x.value(), p, call.context());
///   call.save_output();
///   return call.finish(p, [p, to_x = call.target(x)](BackwardPass<T>& pass, In<T, 2> dp) {
///     pass.assign([&](Out<T, 2> dx) { softmax_backward(dp, p, dx, pass.context()); }, to_x);
///   });
///
/// Where forward throws, the tape is as it was.
template <Scalar T>
class Recording {
 public:
  /// Of a function of this name and its inputs, at least one of them there; `{}` for those that are
  /// not. Throws ArgumentError for inputs of several tapes, or of a step before clear(), and where
  /// the tape has been swept.
  template <int... R>
  explicit Recording(detail::NodeName name, const Variable<T, R>&... inputs) : name_(name) {
    Index position = 0;
    (look_at(inputs.handle(), position++), ...);
    require(tape_ != nullptr, name.text, "no input is a variable, expected at least one");
    recorded_ = recorded_ && tape_->records();
    require_recordable();
    nodes_ = tape_->count();
    mark_ = tape_->closures.mark();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    while (saved_ != nullptr) {
      detail::SavedValue<T>* const next = saved_->next;
      std::destroy_at(saved_);
      saved_ = next;
    }
    if (tape_ != nullptr && tape_->count() == nodes_) tape_->closures.rewind(mark_);
  }

  /// What the tape was made with.
  const Context& context() const { return tape_->context; }
  /// The tape's own.
  detail::TapeCore<T>& tape() const { return *tape_; }
  /// Whether this becomes a node: otherwise nothing has to be kept.
  bool recorded() const { return recorded_; }
  /// Makes a node of it although no input has a gradient: there are parameters inside.
  void record_anyway() {
    recorded_ = tape_->records();
    require_recordable();
  }

  /// The elements of the output, dense and without values. Throws ShapeError, std::bad_alloc.
  template <int R>
  Out<T, R> output(const Shape<R>& shape) {
    output_ = detail::StorageRef<T>::make(shape.size(), tape_->context.memory);
    return {shape.size() == 0 ? nullptr : output_->own, shape};
  }
  /// Memory that backward reads beside the output; `{}` where nothing is recorded.
  template <int R>
  Out<T, R> kept(const Shape<R>& shape) {
    return recorded_ ? scratch(shape) : Out<T, R>();
  }
  /// The same also where nothing is recorded, until this call ends.
  template <int R>
  Out<T, R> scratch(const Shape<R>& shape) {
    auto storage = detail::StorageRef<T>::make(shape.size(), tape_->context.memory);
    const Out<T, R> view(shape.size() == 0 ? nullptr : storage->own, shape);
    hold(storage);
    return view;
  }

  /// The elements of an input, for backward to read.
  template <int R>
  In<T, R> save(const Variable<T, R>& x) {
    if (recorded_ && !x.absent()) hold(x.handle().storage);
    return x.value();
  }
  /// Keeps the output for backward to read.
  void save_output() {
    if (recorded_) hold(output_);
  }

  /// Where the gradient of an input goes: memory to overwrite, always.
  template <int R>
  auto target(const Variable<T, R>& x) const {
    return detail::target_of<detail::Wanted::always>(x);
  }
  /// The same; `{}` where nobody asks for it.
  template <int R>
  auto optional_target(const Variable<T, R>& x) const {
    return detail::target_of<detail::Wanted::where_needed>(x);
  }
  /// The gradient itself, to be added to; `{}` where nobody asks for it.
  template <int R>
  auto added_target(const Variable<T, R>& x) const {
    return detail::target_of<detail::Wanted::added>(x);
  }

  /// The output as a variable. backward(pass, dy) is called in the sweep, once, if anything flows
  /// here; what it captures is destroyed behind it. y is the output, or another view of all of it.
  template <int R, class Backward>
  Variable<T, R> finish(const In<T, R>& y, Backward&& backward) {
    detail::Handle<T> handle{tape_, detail::no_node, tape_->step, output_};
    if (!recorded_) return {handle, y};
    using Node = detail::Node<T>;
    using Held = Closure<R, std::decay_t<Backward>>;
    tape_->reserve();
    void* const room = tape_->closures.template room_for<Held>();
    Node node;
    node.closure =
        ::new (room) Held{std::forward<Backward>(backward),
                          y.size() == 0 ? 0 : y.data() - output_->begin, y.shape(), y.strides()};
    node.name = name_.text;
    node.run = [](void* closure, detail::Pass<T>& pass) {
      Held& held = *static_cast<Held*>(closure);
      held.backward(pass, pass.gradient(held.offset, held.shape, held.strides));
    };
    node.destroy = [](void* closure) { std::destroy_at(static_cast<Held*>(closure)); };
    node.saved = std::exchange(saved_, nullptr);
    node.count = output_->count;
    handle.node = tape_->count();
    tape_->nodes.push_back(std::move(node));
    return {handle, y};
  }
  /// The same of an output that is there already: all elements of a variable without gradient.
  template <int R, class Backward>
  Variable<T, R> finish(const Variable<T, R>& y, Backward&& backward) {
    output_ = y.handle().storage;
    return finish(y.value(), std::forward<Backward>(backward));
  }

 private:
  template <int R, class Backward>
  struct Closure {
    Backward backward;
    Index offset;
    Shape<R> shape, strides;
  };

  void look_at(const detail::Handle<T>& input, Index position) {
    if (input.tape == nullptr) return;
    if (tape_ == nullptr) tape_ = input.tape;
    require(input.tape == tape_, name_.text, [&] {
      return "input " + std::to_string(position) +
             " is of another tape, expected all of them of one";
    });
    require(input.step == tape_->step, name_.text, [&] {
      return "input " + std::to_string(position) +
             " is of a step before clear(), expected one of this step";
    });
    recorded_ = recorded_ || input.node != detail::no_node;
  }
  void require_recordable() const {
    require(!recorded_ || tape_->may_record(), name_.text,
            "the tape has been swept by backward, expected clear() before the next step");
  }
  void hold(const detail::StorageRef<T>& storage) {
    void* const room = tape_->closures.template room_for<detail::SavedValue<T>>();
    saved_ = ::new (room) detail::SavedValue<T>{storage, storage->version, saved_};
  }

  detail::NodeName name_;
  detail::TapeCore<T>* tape_ = nullptr;
  bool recorded_ = false;
  Index nodes_ = 0;             // of the tape when this began
  detail::Stack::Mark mark_{};  // and what they had taken
  detail::StorageRef<T> output_;
  detail::SavedValue<T>* saved_ = nullptr;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/views.hpp
// Views of variables: they share the elements, and the gradient of a view is the same view of the
// gradient. Nothing is recorded for them, and backward through them costs nothing.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// All axes but the last as one: what strides describe, if they do.
template <class T, int R>
bool leading_axes_are_uniform(const In<T, R>& x) {
  Index distance = -1;  // of rows, from the innermost axis that has several
  Index rows = 1;
  for (int r = R - 2; r >= 0; --r) {
    if (x.extent(r) == 1) continue;
    if (distance >= 0 && x.stride(r) != distance * rows) return false;
    if (distance < 0) distance = x.stride(r);
    rows *= x.extent(r);
  }
  return true;
}

template <class T, int R>
In<T, 2> merge_leading_axes(const In<T, R>& x) {
  Index rows = 1, distance = x.extent(R - 1);
  for (int r = 0; r + 1 < R; ++r) {
    rows *= x.extent(r);
    if (x.extent(r) != 1) distance = x.stride(r);
  }
  return {x.data(), Shape{rows, x.extent(R - 1)}, Shape{distance, x.stride(R - 1)}};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The same values, through which no gradient flows.
template <Scalar T, int R>
Variable<T, R> detach(const Variable<T, R>& x) {
  detail::Handle<T> handle = x.handle();
  handle.node = detail::no_node;
  return {handle, x.value()};
}

/// Elements begin ... begin + count - 1 of one axis: a view. Throws as slice of a tensor.
template <Scalar T, int R>
Variable<T, R> slice(const Variable<T, R>& x, int axis, Index begin, Index count) {
  return {x.handle(), slice(x.value(), axis, begin, count)};
}

/// One index of the first axis: a view of one axis less. Throws as select of a tensor.
template <Scalar T, int R>
Variable<T, R - 1> select(const Variable<T, R>& x, Index index) {
  return {x.handle(), select(x.value(), index)};
}

/// Two axes exchanged: a view. Throws as transpose of a tensor.
template <Scalar T, int R>
Variable<T, R> transpose(const Variable<T, R>& x, int axis_a, int axis_b) {
  return {x.handle(), transpose(x.value(), axis_a, axis_b)};
}

/// [B, L, H d] seen as [B, H, L, d]. Throws as split_heads of a tensor.
template <Scalar T>
Variable<T, 4> split_heads(const Variable<T, 3>& x, Index num_heads) {
  return {x.handle(), split_heads(x.value(), num_heads)};
}

/// A dense copy, on the tape.
template <Scalar T, int R>
Variable<T, R> contiguous(const Variable<T, R>& x) {
  Recording<T> call({"contiguous"}, x);
  const Out<T, R> y = call.output(x.shape());
  detail::combine_into<T, R>(kernels::Combination::first, x.value(), y, call.context());
  return call.finish(y, [to_x = call.optional_target(x)](BackwardPass<T>& pass, In<T, R> dy) {
    pass.hand_on(to_x, dy);
  });
}

/// [B, H, L, d] seen as [B, L, H d]: a view where the heads lie side by side, as attention leaves
/// them, a dense copy elsewhere.
template <Scalar T>
Variable<T, 3> merge_heads(const Variable<T, 4>& x) {
  const In<T, 4>& value = x.value();
  if (value.extent(1) > 1 && value.stride(1) != value.extent(3) * value.stride(3)) {
    const Variable<T, 4> tokens = contiguous(transpose(x, 1, 2));  // [B, L, H, d]
    return merge_heads(transpose(tokens, 1, 2));
  }
  return {x.handle(), merge_heads(value)};
}

/// The elements in row-major order under another shape: a view where they are dense, else of a
/// dense copy. Throws ShapeError unless there are as many.
template <int Q, Scalar T, int R>
Variable<T, Q> reshape(const Variable<T, R>& x, const Shape<Q>& shape) {
  if (shape.size() != x.size()) {
    raise<ShapeError>("reshape: shape is " + shape.format() + ", expected " +
                      std::to_string(x.size()) + " elements (x is " + x.shape().format() + ")");
  }
  if (!x.value().dense()) return reshape(contiguous(x), shape);
  return {x.handle(), In<T, Q>(x.value().data(), shape)};
}

/// [..., M] seen as [N, M], all axes but the last as one: a view where strides describe that, else
/// of a dense copy. [M] is [1, M].
template <Scalar T, int R>
Variable<T, 2> as_rows(const Variable<T, R>& x) {
  if constexpr (R == 2) {
    return x;
  } else {
    if (!detail::leading_axes_are_uniform(x.value())) return as_rows(contiguous(x));
    return {x.handle(), detail::merge_leading_axes(x.value())};
  }
}

/// rows [N, M] seen under the shape of x [..., K], but M wide: the inverse of as_rows.
template <Scalar T, int R>
Variable<T, R> like_rows_of(const Shape<R>& x, const Variable<T, 2>& rows) {
  Shape<R> shape = x;
  shape[R - 1] = rows.extent(1);
  return reshape(rows, shape);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/apply.hpp
// A pair of functions as an operation of the tape: a user's own, in one call.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// function(arguments..., context) where it takes a context, function(arguments...) elsewhere.
template <class Function, class... Arguments>
void call_with(const Context& context, Function& function, const Arguments&... arguments) {
  if constexpr (std::is_invocable_v<Function&, const Arguments&..., const Context&>) {
    function(arguments..., context);
  } else {
    function(arguments...);
  }
}

/// Whether backward is told what forward returned, behind the inputs.
enum class OutputSaved { no, yes };

template <OutputSaved with_output, Scalar T, int R, class Forward, class Backward, int... Q>
Variable<T, R> apply_pair(NodeName name, const Shape<R>& shape, Forward& forward,
                          Backward& backward, const Variable<T, Q>&... inputs) {
  Recording<T> call(name, inputs...);
  const Out<T, R> y = call.output(shape);
  call_with(call.context(), forward, inputs.value()..., y);
  const std::tuple<In<T, Q>...> saved{call.save(inputs)...};
  const auto targets = std::make_tuple(call.target(inputs)...);
  if constexpr (with_output == OutputSaved::yes) call.save_output();
  const In<T, R> output = y;
  return call.finish(output, [=](BackwardPass<T>& pass, In<T, R> dy) {
    const auto run = [&](const In<T, Q>&... values) {
      const auto into = [&](const Out<T, Q>&... gradients) {
        if constexpr (with_output == OutputSaved::yes) {
          call_with(pass.context(), backward, dy, values..., output, gradients...);
        } else {
          call_with(pass.context(), backward, dy, values..., gradients...);
        }
      };
      std::apply([&](const auto&... to) { pass.assign(into, to...); }, targets);
    };
    std::apply(run, saved);
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = forward(inputs): an operation of one's own on the tape, from a pair of functions.
///
///   auto y = apply(x.shape(),
///                  [](In<T, 2> x, Out<T, 2> y) { ... },                 // writes all of y
///                  [](In<T, 2> dy, In<T, 2> x, Out<T, 2> dx) { ... },   // writes all of dx
///                  x);
///
/// shape               of y
/// forward             forward(In input..., Out y), and a const Context& behind if it takes one
/// backward            backward(In dy, In input..., Out gradient...), likewise; copied to the tape
/// inputs      [...]   at least one; each with a gradient that backward writes
///
/// What the pair needs besides (options, sizes) its lambdas capture by value. Inputs are kept for
/// backward. backward is not called where no gradient flows; it overwrites, and the tape adds where
/// an input has other uses. A pair that keeps something of its own between the two is written with
/// Recording. Throws what forward throws, and as Recording; the tape is then as it was.
template <int R, class Forward, class Backward, Scalar T, int... Q>
Variable<T, R> apply(const Shape<R>& shape, Forward forward, Backward backward,
                     const Variable<T, Q>&... inputs) {
  return detail::apply_pair<detail::OutputSaved::no>({"apply"}, shape, forward, backward,
                                                     inputs...);
}

/// The same with backward(In dy, In input..., In y, Out gradient...): it is told what forward
/// returned, too.
template <int R, class Forward, class Backward, Scalar T, int... Q>
Variable<T, R> apply_with_output(const Shape<R>& shape, Forward forward, Backward backward,
                                 const Variable<T, Q>&... inputs) {
  return detail::apply_pair<detail::OutputSaved::yes>({"apply"}, shape, forward, backward,
                                                      inputs...);
}

/// The same for an op of matrices over all axes but the last of x: forward(In<T, 2> x, Out<T, 2> y,
/// context) and backward(In<T, 2> dy, In<T, 2> x, Out<T, 2> dx, context).
template <Scalar T, int R, class Forward, class Backward>
Variable<T, R> apply_to_rows(detail::NodeName name, const Variable<T, R>& x, Forward forward,
                             Backward backward) {
  const Variable<T, 2> rows = as_rows(x);
  return like_rows_of(x.shape(), detail::apply_pair<detail::OutputSaved::no>(
                                     name, rows.shape(), forward, backward, rows));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/tape.hpp
// The tape: what a forward pass was computed from, so that one sweep gives the gradients. It holds
// no formula: nodes call the forward and backward of the library's operations, or of the user's.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Records what is computed from its variables, and sweeps back over it.
///
///   Tape<float> tape(context);
///   const auto x = tape.constant(batch);                     // no gradient
///   const auto w = tape.parameter(weights, d_weights);       // its gradient is added to d_weights
///   const auto loss = mean(multiply(linear(x, w), target));
///   tape.backward(loss);
///   tape.clear();                                            // the next step, in the same memory
///
/// A tape and its variables belong to one thread (operations run on the context's threads). Values
/// are given back as soon as neither a variable nor a node holds them, gradients as soon as they
/// have been passed. After a first step of the same shapes it asks context.memory for nothing that
/// it has not given back, and with recycled memory the system for nothing.
template <Scalar T>
class Tape {
 public:
  /// An empty tape. What the context refers to must outlive it. Throws ArgumentError for a context
  /// without memory.
  explicit Tape(const Context& context) : core_(context) {}
  /// The same with a default context.
  Tape() : Tape(Context()) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The caller's elements, without a gradient. They are viewed: they must outlive the step.
  template <int R>
  Variable<T, R> constant(const In<T, R>& value) {
    require_countable("Tape::constant", "value", value);
    return leaf(value, detail::no_node);
  }
  template <int R>
  void constant(const Tensor<T, R>&& temporary) = delete;  // gone before it is used

  /// The caller's elements, whose gradient backward adds to `gradient`. Both are viewed.
  ///
  /// value      [...]   in
  /// gradient   [...]   added to in backward; of the strides of value, apart from it
  ///
  /// The same parameter may be made a variable any number of times. Throws ShapeError, and
  /// ArgumentError where the tape has been swept; std::bad_alloc.
  template <int R>
  Variable<T, R> parameter(const In<T, R>& value, const InOut<T, R>& gradient) {
    constexpr std::string_view function = "Tape::parameter";
    require_countable(function, "value", value);
    require_shape(function, "gradient", gradient, value.shape(), "the shape of value");
    for (int r = 0; r < R; ++r) {
      if (value.extent(r) <= 1 || value.stride(r) == gradient.stride(r)) continue;
      raise<ShapeError>("Tape::parameter: strides of gradient are " + gradient.strides().format() +
                        ", expected those of value, " + value.strides().format());
    }
    require_apart(function, {"gradient", gradient}, {{"value", value}});
    if (!core_.records()) return leaf(value, detail::no_node);
    require_recordable(function);
    Variable<T, R> variable = leaf(value, core_.count());
    detail::Node<T> node;
    node.name = "parameter";
    node.to_caller = true;
    node.callers = gradient.data();
    add(std::move(node));
    return variable;
  }
  template <int R>
  void parameter(const Tensor<T, R>&& temporary, const InOut<T, R>& gradient) = delete;

  /// The caller's elements, whose gradient the tape keeps: see gradient(). They are viewed where
  /// they are dense, and copied otherwise. Throws ShapeError, and ArgumentError where the tape has
  /// been swept; std::bad_alloc.
  template <int R>
  Variable<T, R> input(const In<T, R>& value) {
    constexpr std::string_view function = "Tape::input";
    require_countable(function, "value", value);
    if (!core_.records()) return leaf(value, detail::no_node);
    require_recordable(function);
    Variable<T, R> variable = leaf(value, core_.count());
    detail::Node<T> node;
    node.name = "input";
    node.count = value.size();
    node.watched = true;
    if (value.dense()) {
      add(std::move(node));
      return variable;
    }
    detail::Handle<T> handle = variable.handle();
    handle.storage = detail::StorageRef<T>::make(value.size(), core_.context.memory);
    const Out<T, R> own(handle.storage->own, value.shape());
    detail::combine_into<T, R>(kernels::Combination::first, value, own, core_.context);
    add(std::move(node));
    return {handle, own};
  }
  template <int R>
  void input(const Tensor<T, R>&& temporary) = delete;

  /// Keeps the gradient of a variable (and of what it is a view of) for gradient(). Throws
  /// ArgumentError for a variable that has none.
  template <int R>
  void watch(const Variable<T, R>& x) {
    require_of_this("Tape::watch", "x", x);
    require(x.has_gradient(), "Tape::watch",
            "x has no gradient, expected what is computed from a parameter or an input");
    core_.node(x.handle().node).watched = true;
  }

  /// The gradient of an input or of a watched variable, as backward left it; of a parameter, the
  /// caller's. Valid until clear(). Throws ArgumentError before backward, and for others.
  template <int R>
  In<T, R> gradient(const Variable<T, R>& x) {
    constexpr std::string_view function = "Tape::gradient";
    require_of_this(function, "x", x);
    require(core_.state == detail::TapeCore<T>::State::swept, function,
            "backward has not come to its end, expected it before");
    const bool known = x.has_gradient() && x.handle().node < core_.count();
    const bool kept =
        known && (core_.node(x.handle().node).watched || core_.node(x.handle().node).to_caller);
    require(kept, function, "x was not watched, expected watch(x) before backward");
    const auto target = detail::target_of<detail::Wanted::added>(x);
    return core_.gradients.view(core_.node(target.node), target.offset, target.shape,
                                target.strides);
  }

  /// The elements of a value that the tape has made, to be written to. A node that kept them for
  /// backward makes backward refuse then. Throws ArgumentError for the caller's elements.
  template <int R>
  Out<T, R> mutable_value(const Variable<T, R>& x) {
    constexpr std::string_view function = "Tape::mutable_value";
    require_of_this(function, "x", x);
    const detail::StorageRef<T>& storage = x.handle().storage;
    require(storage->own != nullptr, function,
            "x is the caller's memory, expected a value of the tape's (write there, and tell it by "
            "mark_written)");
    ++storage->version;
    return {storage->own + (x.value().data() - storage->begin), x.shape(), x.value().strides()};
  }
  /// Says that the caller has written to elements that a variable views: a node that kept them for
  /// backward makes backward refuse then.
  template <int R>
  void mark_written(const Variable<T, R>& x) {
    require_of_this("Tape::mark_written", "x", x);
    ++x.handle().storage->version;
  }

  /// Adds the gradients of a loss of one element to those of the parameters, and keeps those of
  /// what is watched.
  ///
  /// Once a step: clear() comes before the next. Throws ArgumentError or ShapeError before anything
  /// is written: for a loss of another tape or step, one that no gradient flows from, a value that
  /// has been written to since a node kept it; std::bad_alloc, before anything is written or in the
  /// middle: the parameters' gradients are then added to in part, and the tape is to be cleared.
  template <int R>
  void backward(const Variable<T, R>& loss) {
    require(loss.size() == 1, "Tape::backward", [&] {
      return "loss is " + loss.shape().format() + ", expected one element (or pass its gradient)";
    });
    Shape<R> ones, strides;
    for (int r = 0; r < R; ++r) ones[r] = 1;
    const T one = T(1);
    backward(loss, In<T, R>(&one, ones, strides));
  }
  /// The same from dy [...], the gradient of y [...].
  template <int R>
  void backward(const Variable<T, R>& y, const In<T, R>& dy) {
    using State = typename detail::TapeCore<T>::State;
    constexpr std::string_view function = "Tape::backward";
    require_of_this(function, "loss", y);
    require(core_.state == State::recording, function,
            "it has been called before, expected once until clear()");
    require(y.has_gradient(), function,
            "loss has no gradient, expected what is computed from a parameter or an input");
    require_shape(function, "dy", dy, y.shape(), "the shape of y");
    core_.require_unchanged(0);
    core_.state = State::sweeping;
    core_.gradients.add(detail::target_of<detail::Wanted::added>(y), dy);
    core_.sweep(0);
    core_.gradients.forget_pieces();
    core_.state = State::swept;
  }

  /// Forgets what was recorded and begins the next step in the same memory: variables of this one
  /// are refused from here on, but their values stay with them.
  void clear() {
    core_.drop_nodes(0);
    core_.closures.rewind({});
    core_.gradients.forget_pieces();
    core_.state = detail::TapeCore<T>::State::recording;
    ++core_.step;
  }

  /// How many calls, parameters and inputs are recorded.
  Index size() const { return core_.count(); }
  /// What it was made with.
  const Context& context() const { return core_.context; }
  /// The tape's own.
  detail::TapeCore<T>& core() { return core_; }

 private:
  template <int R>
  Variable<T, R> leaf(const In<T, R>& value, Index node) {
    detail::Handle<T> handle{&core_, node, core_.step, {}};
    handle.storage = detail::StorageRef<T>::refer_to(value.data(), core_.context.memory);
    return {handle, value};
  }
  void add(detail::Node<T>&& node) {
    core_.reserve();
    core_.nodes.push_back(std::move(node));
  }
  void require_recordable(std::string_view function) const {
    require(core_.may_record(), function,
            "the tape has been swept by backward, expected clear() before the next step");
  }
  template <int R>
  void require_of_this(std::string_view function, std::string_view argument,
                       const Variable<T, R>& x) const {
    require(x.handle().tape == &core_, function,
            [&] { return std::string(argument) + " is of another tape, expected one of this"; });
    require(x.handle().step == core_.step, function, [&] {
      return std::string(argument) + " is of a step before clear(), expected one of this step";
    });
  }

  detail::TapeCore<T> core_;
};

/// While it is alive, what is computed on a tape is a value alone: nothing is recorded, and no
/// gradient flows through it.
template <Scalar T>
class NoGrad {
 public:
  /// Of this tape, which must outlive it.
  explicit NoGrad(Tape<T>& tape) : NoGrad(tape.core()) {}
  /// The tape's own.
  explicit NoGrad(detail::TapeCore<T>& core) : core_(core) { ++core_.values_only; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;
  ~NoGrad() { --core_.values_only; }

 private:
  detail::TapeCore<T>& core_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/checkpoint.hpp
// Memory for time: a part of the forward pass that keeps its inputs alone, and is run again when
// backward comes to it.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = f(inputs...), of which only the inputs are kept; f runs again in backward.
///
///   y = checkpoint([&](const Variable<float, 3>& x) { return block(tape, x); }, x);
///
/// f takes variables and returns one. It has to compute the same again: dropout does, for its mask
/// is a function of seed and step. Parameters, and other variables that it captures, get their
/// gradients as without; what it refers to has to outlive backward. Calls may be nested.
/// Work    that of f twice, forward.
/// Throws  what f throws, and as Recording; the tape is then as it was.
/// Source  Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016,
///         arXiv 1604.06174.
template <class F, Scalar T, int... R>
auto checkpoint(F f, const Variable<T, R>&... inputs) {
  Recording<T> call({"checkpoint"}, inputs...);
  call.record_anyway();
  const auto values = [&] {
    const NoGrad<T> values_only(call.tape());
    auto y = f(inputs...);
    return y.size() == y.handle().storage->count && y.value().data() == y.handle().storage->begin
               ? y
               : contiguous(y);
  };
  const auto y = values();
  constexpr int rank = decltype(values())::rank;
  (call.save(inputs), ...);
  return call.finish(y, [f = std::move(f), held = std::make_tuple(inputs...)](BackwardPass<T>& pass,
                                                                              In<T, rank> dy) {
    pass.recompute([&] { return std::apply(f, held); }, dy);
  });
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/attention_options.hpp
// What both attentions take, and the rules that their arguments keep.

namespace headwise::inline v0_1 {

/// How attention is computed. What it views (masks) must outlive the call.
template <Scalar T>
struct AttentionOptions {
  AttentionMask<T> mask = {};   // none: every query sees every key
  std::optional<T> scale = {};  // what q k^T is multiplied by; 1 / sqrt(d) if not given
  Dropout dropout = {};         // of the weights

  /// Throws ArgumentError unless scale and dropout are in range.
  void require_in_range(std::string_view function) const {
    require(!scale || is_finite_option(*scale), function,
            "scale is not finite, expected a number, or none for 1 / sqrt(d)");
    dropout.require_valid(function);
  }
};

/// Queries [B, H, L, d], keys [B, G, S, d] and values [B, G, S, dv], as a backward call reads them.
template <Scalar T>
struct AttentionInputs {
  In<T, 4> q, k, v;  // [B, H, L, d], [B, G, S, d], [B, G, S, dv]
};

/// Their gradients, of the same shapes; overwritten.
template <Scalar T>
struct AttentionGradients {
  Out<T, 4> dq, dk, dv;  // [B, H, L, d], [B, G, S, d], [B, G, S, dv]
};

/// The letters of an attention: queries [B, H, L, d], keys [B, G, S, d], values [B, G, S, dv].
struct AttentionSizes {
  Index B, H, G, L, S, d, dv;  // batch, heads, key/value heads, queries, keys, widths

  /// Query heads that share a key/value head.
  Index group() const { return G == 0 ? 0 : H / G; }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Checks queries, keys, values and options, and names their sizes.
template <class T>
AttentionSizes require_attention(std::string_view function, const In<T, 4>& q, const In<T, 4>& k,
                                 const In<T, 4>& v, const AttentionOptions<T>& options) {
  const AttentionSizes sizes{q.extent(0), q.extent(1), k.extent(1), q.extent(2),
                             k.extent(2), q.extent(3), v.extent(3)};
  const auto [B, H, G, L, S, d, dv] = sizes;
  require_countable(function, "q", q);
  require_countable(function, "k", k);
  require_countable(function, "v", v);
  require_shape(function, "k", k, Shape{B, G, S, d},
                [&] { return "batch and head width of q " + q.shape().format(); });
  require_shape(function, "v", v, Shape{B, G, S, dv},
                [&] { return "batch, heads and length of k " + k.shape().format(); });
  if (G == 0 ? H != 0 : H % G != 0) {
    raise<ShapeError>(std::string(function) + ": q has " + std::to_string(H) + " heads, k has " +
                      std::to_string(G) + ", expected a divisor of the former");
  }
  options.mask.require_fits(function, B, H, L, S);
  options.require_in_range(function);
  return sizes;
}

/// Throws ShapeError where an output shares memory with a mask.
template <class T>
void require_apart_from_masks(std::string_view function, const Footprint& out,
                              const AttentionMask<T>& mask) {
  for (const BiasMask<T>& bias : mask.biases()) {
    require_apart(function, out, {{"Mask::bias", bias.values}});
  }
  for (const PairMask& pairs : mask.pair_masks()) {
    require_apart(function, out, {{pairs.keep ? "Mask::keep" : "Mask::drop", pairs.pairs}});
  }
  if (!mask.has_key_lengths()) return;
  const std::span<const Index> lengths = mask.key_lengths();
  require_apart(function, out,
                {{"Mask::key_lengths",
                  In<Index, 1>(lengths.data(), Shape{static_cast<Index>(lengths.size())})}});
}

HEADWISE_STRICT_MATH_BEGIN

template <class T>
kernels::AttentionHead<T> attention_head(const AttentionSizes& sizes, const In<T, 4>& q,
                                         const In<T, 4>& k, const In<T, 4>& v,
                                         const AttentionOptions<T>& options, Index b, Index h) {
  using std::sqrt;
  const auto [B, H, G, L, S, d, dv] = sizes;
  const Index g = h / sizes.group();
  const T scale = options.scale ? *options.scale
                                : T(1) / T(sqrt(T(static_cast<double>(std::max<Index>(d, 1)))));
  return {kernels::matrix(q, b, h),
          kernels::matrix(k, b, g),
          kernels::matrix(v, b, g),
          L,
          S,
          d,
          dv,
          scale,
          HeadVisibility<T>(options.mask, b, h, L, S),
          DropoutMask(options.dropout, DropoutStream::weights),
          b,
          h};
}

HEADWISE_STRICT_MATH_END

/// The pairs that causality, window and key lengths leave to a head.
template <class T>
std::int64_t pairs_of(const HeadVisibility<T>& visible, Index L) {
  std::int64_t pairs = 0;
  for (Index i = 0; i < L; ++i) pairs += visible.range(i).size();
  return pairs;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/ops/attention.hpp
// Scaled dot-product attention with its weights kept: the specification that the tiled form in
// flash_attention.hpp is held against, and what gives weights to look at.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// weights = softmax(scale q k^T + bias over visible keys), o = weights v.
///
/// q        [B, H, L, d]    in
/// k        [B, G, S, d]    in; G divides H, query head h reads key head h / (H / G)
/// v        [B, G, S, dv]   in
/// options                  masks, scale, dropout of the weights
/// weights  [B, H, L, S]    out; before dropout: rows sum to 1
/// o        [B, H, L, dv]   out
///
/// A query that sees no key has weights 0 and o 0. What a hidden pair holds, NaN or infinity, does
/// not reach o. Any strides; outputs must not overlap inputs or each other.
/// Work    2 (d + dv) + 5 FLOPs a visible pair, one more a bias and one for dropout.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Vaswani et al., "Attention Is All You Need", 2017, arXiv 1706.03762, equation 1.
template <Scalar T>
void attention_forward(In<T, 4> q, In<std::type_identity_t<T>, 4> k,
                       In<std::type_identity_t<T>, 4> v,
                       const AttentionOptions<std::type_identity_t<T>>& options,
                       Out<std::type_identity_t<T>, 4> weights, Out<std::type_identity_t<T>, 4> o,
                       const Context& context = {}) {
  const auto sizes = detail::require_attention<T>("attention_forward", q, k, v, options);
  const auto [B, H, G, L, S, d, dv] = sizes;
  require_shape("attention_forward", "weights", weights, Shape{B, H, L, S}, "q by keys of k");
  require_shape("attention_forward", "o", o, Shape{B, H, L, dv}, "q, head width of v");
  require_apart("attention_forward", {"weights", weights}, {{"q", q}, {"k", k}, {"v", v}});
  require_apart("attention_forward", {"o", o},
                {{"q", q}, {"k", k}, {"v", v}, {"weights", weights}});
  detail::require_apart_from_masks<T>("attention_forward", {"weights", weights}, options.mask);
  detail::require_apart_from_masks<T>("attention_forward", {"o", o}, options.mask);
  if (weights.size() == 0 && o.size() == 0) return;

  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  Workspace<T> workspace(context.executor.concurrency(),
                         run.attention_forward_scratch(L, S, d, dv, options.dropout.active()),
                         context.memory);
  const auto task = [&, &sizes = sizes](Index t, Index worker) {
    const Index b = t / sizes.H, h = t % sizes.H;
    const auto head = detail::attention_head(sizes, q, k, v, options, b, h);
    run.attention_head_forward(head, kernels::matrix(weights, b, h), kernels::matrix(o, b, h),
                               workspace.of(worker));
    const std::int64_t pairs = detail::pairs_of(head.visibility, head.L);
    const std::int64_t extra = kernels::score_extras(head, 1);
    context.count_flops(pairs * (2 * (head.d + head.dv) + 5 + extra),
                        run.executed_gemm_flops({head.L, head.S, head.d}) +
                            run.executed_gemm_flops({head.L, head.dv, head.S}) +
                            (5 + extra) * head.L * head.S);
  };
  context.executor.run(B * H, task);
}

/// The gradients of attention_forward.
///
/// d_o      [B, H, L, dv]   in
/// q, k, v                  in; as in forward
/// weights  [B, H, L, S]    in; what forward returned
/// options                  as in forward
/// dq       [B, H, L, d]    out
/// dk       [B, G, S, d]    out; summed over the query heads of a group
/// dv       [B, G, S, dv]   out; summed likewise
///
/// Nothing flows through a hidden pair, whatever it holds. Outputs must not overlap inputs or each
/// other.
/// Work    4 (d + dv) + 5 FLOPs a visible pair, two more for dropout; scratch [L, S] a thread.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  docs/derivations/attention_backward.md, steps 4e to 4a.
template <Scalar T>
void attention_backward(In<T, 4> d_o, const AttentionInputs<std::type_identity_t<T>>& inputs,
                        In<std::type_identity_t<T>, 4> weights,
                        const AttentionOptions<std::type_identity_t<T>>& options,
                        const AttentionGradients<std::type_identity_t<T>>& gradients,
                        const Context& context = {}) {
  const In<T, 4> q = inputs.q, k = inputs.k, v = inputs.v;
  const Out<T, 4> dq = gradients.dq, dk = gradients.dk, dv = gradients.dv;
  const auto sizes = detail::require_attention<T>("attention_backward", q, k, v, options);
  const auto [B, H, G, L, S, d, width_v] = sizes;
  require_shape("attention_backward", "d_o", d_o, Shape{B, H, L, width_v}, "q, head width of v");
  require_shape("attention_backward", "weights", weights, Shape{B, H, L, S}, "q by keys of k");
  require_shape("attention_backward", "dq", dq, q.shape(), "the shape of q");
  require_shape("attention_backward", "dk", dk, k.shape(), "the shape of k");
  require_shape("attention_backward", "dv", dv, v.shape(), "the shape of v");
  require_apart("attention_backward", {"dq", dq},
                {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"weights", weights}});
  require_apart("attention_backward", {"dk", dk},
                {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"weights", weights}, {"dq", dq}});
  require_apart(
      "attention_backward", {"dv", dv},
      {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"weights", weights}, {"dq", dq}, {"dk", dk}});
  detail::require_apart_from_masks<T>("attention_backward", {"dq", dq}, options.mask);
  detail::require_apart_from_masks<T>("attention_backward", {"dk", dk}, options.mask);
  detail::require_apart_from_masks<T>("attention_backward", {"dv", dv}, options.mask);
  if (dq.size() == 0 && dk.size() == 0 && dv.size() == 0) return;

  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  Workspace<T> workspace(context.executor.concurrency(),
                         run.attention_backward_scratch(L, S, d, width_v, options.dropout.active()),
                         context.memory);
  const auto task = [&, &sizes = sizes](Index t, Index worker) {
    const Index b = t / sizes.G, g = t % sizes.G;
    if (sizes.group() == 0) {
      fill(select(select(dk, b), g), T(0));
      fill(select(select(dv, b), g), T(0));
    }
    for (Index n = 0; n < sizes.group(); ++n) {
      const Index h = g * sizes.group() + n;
      const auto head = detail::attention_head(sizes, q, k, v, options, b, h);
      run.attention_head_backward(
          head, kernels::matrix(d_o, b, h), kernels::matrix(weights, b, h),
          {kernels::matrix(dq, b, h), kernels::matrix(dk, b, g), kernels::matrix(dv, b, g), n != 0},
          workspace.of(worker));
      const std::int64_t pairs = detail::pairs_of(head.visibility, head.L);
      const std::int64_t extra = head.dropout.active() ? 2 : 0;
      context.count_flops(pairs * (4 * (head.d + head.dv) + 5 + extra),
                          run.executed_gemm_flops({head.L, head.S, head.dv}) +
                              run.executed_gemm_flops({head.S, head.dv, head.L}) +
                              run.executed_gemm_flops({head.L, head.d, head.S}) +
                              run.executed_gemm_flops({head.S, head.d, head.L}) +
                              (5 + extra) * head.L * head.S);
    }
  };
  context.executor.run(B * G, task);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/ordered_turns.hpp
// Turns: tasks that add to the same memory do so in one order, whichever threads run them.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// For each of `places` the number of turns that are done. A task that has turn n waits until n
/// are; so that it waits for nobody who waits for it, tasks are taken in the order of their turns,
/// by take() instead of by the number that the executor gives.
class OrderedTurns {
 public:
  /// Throws std::bad_alloc.
  OrderedTurns(Index places, std::pmr::memory_resource* memory)
      : counts_(1, places, memory), done_(counts_.of(0).take(places)) {
    for (Index place = 0; place < places; ++place) done_[place] = 0;
  }

  /// The next task.
  Index take() { return next_.fetch_add(1, std::memory_order_relaxed); }
  /// Returns when `turn` turns are done at a place.
  void wait(Index place, Index turn) {
    constexpr int spins = 512;  // some microseconds: who is before is a tile ahead
    const std::atomic_ref<Index> done(done_[place]);
    for (int spin = 0; done.load(std::memory_order_acquire) != turn; ++spin) {
      if (spin < spins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }
  /// One more is done.
  void finish(Index place) {
    std::atomic_ref<Index>(done_[place]).fetch_add(1, std::memory_order_release);
  }

 private:
  Workspace<Index> counts_;
  Index* done_;
  std::atomic<Index> next_ = 0;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/ops/flash_backward_call.hpp
// How the gradients of flash attention are cut into tasks.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// A call of flash_attention_backward whose arguments fit. A task is a block of keys of a key/value
/// head: it has dk and dv to itself; to dq the blocks of keys add one after the other, so that its
/// bits do not depend on threads. Tasks of one head may run beside each other, a tile behind the
/// one before: where there are fewer heads than threads, too.
template <class T>
class FlashBackwardCall {
 public:
  /// Throws std::bad_alloc.
  FlashBackwardCall(const In<T, 4>& d_o, const AttentionInputs<T>& inputs, const In<T, 4>& o,
                    const In<T, 4>& lse, const AttentionOptions<T>& options,
                    const AttentionGradients<T>& to, const AttentionSizes& sizes,
                    const Context& context)
      : d_o_(d_o),
        inputs_(inputs),
        o_(o),
        lse_(lse),
        options_(options),
        to_(to),
        sizes_(sizes),
        context_(context),
        run_(kernels::kernels_here<T>()),
        query_blocks_((sizes.L + run_.backward_queries - 1) / run_.backward_queries),
        workspace_(context.executor.concurrency(), run_.flash_backward_scratch(sizes.d, sizes.dv),
                   context.memory),
        delta_storage_(1, sizes.B * sizes.H * sizes.L, context.memory),
        deltas_(delta_storage_.of(0).take(0)),
        turns_(sizes.B * sizes.H * query_blocks_, context.memory) {}

  /// delta = rowsum(d_o * o) of every query; dq begins with 0.
  void prepare_queries() {
    const auto task = [&](Index t, Index) {
      const Index b = t / query_blocks_ / sizes_.H, h = t / query_blocks_ % sizes_.H;
      const Index i0 = t % query_blocks_ * run_.backward_queries;
      const Index rows = std::min<Index>(run_.backward_queries, sizes_.L - i0);
      const auto head = head_at(b, h);
      for (Index i = i0; i < i0 + rows; ++i) {
        for (Index n = 0; n < sizes_.d; ++n) head.dq(i, n) = T(0);
      }
      run_.row_deltas(head, i0, rows, deltas_of(b, h) + i0);
      context_.count_flops(2 * sizes_.dv * rows, 2 * sizes_.dv * rows);
    };
    context_.executor.run(sizes_.B * sizes_.H * query_blocks_, task);
  }

  /// Everything else.
  void run_key_blocks() {
    if (sizes_.group() == 0) {
      fill(to_.dk, T(0));
      fill(to_.dv, T(0));
      return;
    }
    const Index key_blocks = (sizes_.S + run_.backward_keys - 1) / run_.backward_keys;
    const Index heads = sizes_.B * sizes_.G;
    const auto task = [&](Index, Index worker) {
      const Index taken = turns_.take();
      run_block(taken % heads / sizes_.G, taken % sizes_.G, taken / heads, worker);
    };
    context_.executor.run(heads * key_blocks, task);
  }

 private:
  T* deltas_of(Index b, Index h) { return deltas_ + (b * sizes_.H + h) * sizes_.L; }

  kernels::FlashHead<T> head_at(Index b, Index h) {
    return {attention_head(sizes_, inputs_.q, inputs_.k, inputs_.v, options_, b, h),
            kernels::matrix(o_, b, h),
            kernels::matrix(d_o_, b, h),
            kernels::matrix(lse_, b, h),
            deltas_of(b, h),
            kernels::matrix(to_.dq, b, h)};
  }

  void run_block(Index b, Index g, Index block, Index worker) {
    const Index keys = run_.backward_keys, queries = run_.backward_queries;
    const Index j0 = block * keys, n = std::min<Index>(keys, sizes_.S - j0);
    const Index first = g * sizes_.group();
    const auto first_head = head_at(b, first);
    run_.flash_backward_begin(first_head.forward, j0, n, workspace_.of(worker));
    kernels::TileWork work;
    for (Index h = first; h < first + sizes_.group(); ++h) {
      const auto head = head_at(b, h);
      for (Index i0 = 0; i0 < sizes_.L; i0 += queries) {
        const Index rows = std::min<Index>(queries, sizes_.L - i0);
        const KeyRange range = head.forward.visibility.range(i0, rows);
        if (range.end <= j0 || range.begin >= j0 + n) continue;
        const Index place = (b * sizes_.H + h) * query_blocks_ + i0 / queries;
        turns_.wait(place, block - range.begin / keys);
        const auto tile = run_.flash_backward_tile(head, i0, rows, j0, n, workspace_.of(worker));
        turns_.finish(place);
        work.pairs += tile.pairs;
        work.executed_flops += tile.executed_flops;
      }
    }
    run_.flash_backward_end(first_head.forward, j0, n, kernels::matrix(to_.dk, b, g),
                            kernels::matrix(to_.dv, b, g), workspace_.of(worker));
    const std::int64_t extra = kernels::score_extras(first_head.forward, 2);
    context_.count_flops(work.pairs * (6 * sizes_.d + 4 * sizes_.dv + 7 + extra),
                         work.executed_flops);
  }

  const In<T, 4> d_o_;
  const AttentionInputs<T>& inputs_;
  const In<T, 4> o_, lse_;
  const AttentionOptions<T>& options_;
  const AttentionGradients<T>& to_;
  const AttentionSizes sizes_;
  const Context& context_;
  const kernels::Kernels<T>& run_;
  const Index query_blocks_;
  Workspace<T> workspace_, delta_storage_;
  T* deltas_;  // [B, H, L]
  OrderedTurns turns_;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/ops/flash_attention.hpp
// Scaled dot-product attention in tiles: the same function as in attention.hpp, with nothing of
// size L x S in either direction. Forward keeps the logsumexp of each query, from which backward
// computes the weights again.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Queries of a task of forward: as many as share a copy of their keys, in parts of one size, and
/// fewer where there are workers without a task. No result depends on it.
template <class T>
Index queries_of_task(const kernels::Kernels<T>& run, Index heads, Index L, Index workers) {
  constexpr Index tasks_a_worker = 4;
  const auto parts = [](Index n, Index part) { return (n + part - 1) / part; };
  Index most = run.forward_queries;
  while (workers > 1 && most / 2 >= run.columns &&
         heads * parts(L, most) < tasks_a_worker * workers) {
    most /= 2;
  }
  return kernels::round_up(parts(L, parts(L, most)), run.columns);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// o = softmax(scale q k^T + bias over visible keys) v.
///
/// q        [B, H, L, d]    in
/// k        [B, G, S, d]    in; G divides H, query head h reads key head h / (H / G)
/// v        [B, G, S, dv]   in
/// options                  masks, scale, dropout of the weights
/// o        [B, H, L, dv]   out
/// lse      [B, H, L, 2]    out; logsumexp of each query's visible scores, and beside it what its
///                          rounding left out; {} for inference
///
/// A query that sees no key has o 0 and lse -infinity. What a hidden pair holds, NaN or infinity,
/// does not reach o. A query's bits depend on its own row and the keys alone: not on the batch, the
/// other queries, or how many keys stand behind those it sees. Any strides; outputs must not
/// overlap inputs, masks or each other.
///
/// Work    2 (d + dv) + 5 FLOPs a visible pair, one more a bias and one for dropout; tiles without
///         a visible pair are skipped. Scratch constant for each thread.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Dao et al., 2022, arXiv 2205.14135; Dao, 2023, arXiv 2307.08691.
template <Scalar T>
void flash_attention_forward(In<T, 4> q, In<std::type_identity_t<T>, 4> k,
                             In<std::type_identity_t<T>, 4> v,
                             const AttentionOptions<std::type_identity_t<T>>& options,
                             Out<std::type_identity_t<T>, 4> o, Out<std::type_identity_t<T>, 4> lse,
                             const Context& context = {}) {
  const auto sizes = detail::require_attention<T>("flash_attention_forward", q, k, v, options);
  const auto [B, H, G, L, S, d, dv] = sizes;
  require_shape("flash_attention_forward", "o", o, Shape{B, H, L, dv}, "q, head width of v");
  if (!lse.absent()) {
    require_shape("flash_attention_forward", "lse", lse, Shape{B, H, L, 2},
                  "two numbers a query of q");
  }
  require_apart("flash_attention_forward", {"o", o}, {{"q", q}, {"k", k}, {"v", v}});
  require_apart("flash_attention_forward", {"lse", lse}, {{"q", q}, {"k", k}, {"v", v}, {"o", o}});
  detail::require_apart_from_masks<T>("flash_attention_forward", {"o", o}, options.mask);
  detail::require_apart_from_masks<T>("flash_attention_forward", {"lse", lse}, options.mask);
  if (o.size() == 0 && lse.size() == 0) return;

  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  Workspace<T> workspace(context.executor.concurrency(), run.flash_forward_scratch(d, dv),
                         context.memory);
  const Index queries = detail::queries_of_task(run, B * H, L, context.executor.concurrency());
  const Index blocks = (L + queries - 1) / queries;
  const auto task = [&, &sizes = sizes](Index t, Index worker) {
    const Index b = t / blocks / sizes.H, h = t / blocks % sizes.H, i0 = t % blocks * queries;
    const auto head = detail::attention_head(sizes, q, k, v, options, b, h);
    const auto head_lse =
        lse.absent() ? kernels::Matrix<T>{nullptr, 0, 0} : kernels::matrix(lse, b, h);
    const auto work = run.flash_forward(head, i0, std::min<Index>(queries, sizes.L - i0),
                                        kernels::matrix(o, b, h), head_lse, workspace.of(worker));
    const std::int64_t extra = kernels::score_extras(head, 1);
    context.count_flops(work.pairs * (2 * (sizes.d + sizes.dv) + 5 + extra), work.executed_flops);
  };
  context.executor.run(B * H * blocks, task);
}

/// The gradients of flash_attention_forward.
///
/// d_o      [B, H, L, dv]   in
/// q, k, v                  in; as in forward
/// o        [B, H, L, dv]   in; what forward returned
/// lse      [B, H, L, 2]    in; what forward returned
/// options                  as in forward
/// dq       [B, H, L, d]    out
/// dk       [B, G, S, d]    out; summed over the query heads of a group
/// dv       [B, G, S, dv]   out; summed likewise
///
/// Nothing flows through a hidden pair, whatever it holds. Outputs must not overlap inputs or each
/// other.
/// Work    6 d + 4 dv + 7 FLOPs a visible pair (one score product more than with kept weights), one
///         more a bias and two for dropout, 2 dv a query. Scratch constant for each thread.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Dao, 2023, arXiv 2307.08691, algorithm 2; docs/derivations/flash_backward.md.
template <Scalar T>
void flash_attention_backward(In<T, 4> d_o, const AttentionInputs<std::type_identity_t<T>>& inputs,
                              In<std::type_identity_t<T>, 4> o, In<std::type_identity_t<T>, 4> lse,
                              const AttentionOptions<std::type_identity_t<T>>& options,
                              const AttentionGradients<std::type_identity_t<T>>& gradients,
                              const Context& context = {}) {
  const In<T, 4> q = inputs.q, k = inputs.k, v = inputs.v;
  const Out<T, 4> dq = gradients.dq, dk = gradients.dk, dv = gradients.dv;
  const auto sizes = detail::require_attention<T>("flash_attention_backward", q, k, v, options);
  const auto [B, H, G, L, S, d, width_v] = sizes;
  constexpr std::string_view function = "flash_attention_backward";
  require_shape(function, "d_o", d_o, Shape{B, H, L, width_v}, "q, head width of v");
  require_shape(function, "o", o, Shape{B, H, L, width_v}, "q, head width of v");
  require_shape(function, "lse", lse, Shape{B, H, L, 2}, "two numbers a query of q");
  require_shape(function, "dq", dq, q.shape(), "the shape of q");
  require_shape(function, "dk", dk, k.shape(), "the shape of k");
  require_shape(function, "dv", dv, v.shape(), "the shape of v");
  require_apart(function, {"dq", dq},
                {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"o", o}, {"lse", lse}});
  require_apart(function, {"dk", dk},
                {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"o", o}, {"lse", lse}, {"dq", dq}});
  require_apart(
      function, {"dv", dv},
      {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"o", o}, {"lse", lse}, {"dq", dq}, {"dk", dk}});
  detail::require_apart_from_masks<T>(function, {"dq", dq}, options.mask);
  detail::require_apart_from_masks<T>(function, {"dk", dk}, options.mask);
  detail::require_apart_from_masks<T>(function, {"dv", dv}, options.mask);
  if (dq.size() == 0 && dk.size() == 0 && dv.size() == 0) return;

  detail::FlashBackwardCall<T> call(d_o, inputs, o, lse, options, gradients, sizes, context);
  call.prepare_queries();
  call.run_key_blocks();
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/attention.hpp
// Attention as one node of the tape, on either path.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What an attention is called with, but its inputs' elements.
template <class T>
struct AttentionNode {
  AttentionInputs<T> inputs;
  In<T, 4> o;
  In<T, 4> kept;  // lse [B, H, L, 2], or the weights [B, H, L, S]
  AttentionOptions<T> options;
  Path path;

  void backward(const In<T, 4>& d_o, const AttentionGradients<T>& to, const Context& context) {
    if (path == Path::flash) {
      flash_attention_backward(d_o, inputs, o, kept, options, to, context);
    } else {
      attention_backward(d_o, inputs, kept, options, to, context);
    }
  }
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// o = softmax(scale q k^T + bias over visible keys) v.
///
/// q         [B, H, L, d]
/// k         [B, G, S, d]    G divides H
/// v         [B, G, S, dv]
/// options                   masks, scale, dropout; what they view has to outlive backward
/// returns   [B, H, L, dv]   laid out as [B, L, H dv], so that merge_heads of it is a view
///
/// Path::flash keeps q, k, v, o and two numbers a query, Path::materialized q, k, v and the
/// weights. Where q, k and v are slices of one projection, their gradients are written side by side
/// into its gradient. Throws as flash_attention_forward or attention_forward.
template <Scalar T>
Variable<T, 4> attention(const Variable<T, 4>& q, const Variable<T, 4>& k, const Variable<T, 4>& v,
                         const AttentionOptions<std::type_identity_t<T>>& options = {},
                         Path path = Path::flash) {
  Recording<T> call({"attention"}, q, k, v);
  const Index B = q.extent(0), H = q.extent(1), L = q.extent(2);
  const Out<T, 4> heads = call.output(Shape{B, L, H, v.extent(3)});
  const Out<T, 4> o = transpose(heads, 1, 2);
  Out<T, 4> kept;
  if (path == Path::flash) {
    kept = call.kept(Shape{B, H, L, 2});
    flash_attention_forward(q.value(), k.value(), v.value(), options, o, kept, call.context());
    call.save_output();
  } else {
    kept = call.scratch(Shape{B, H, L, k.extent(2)});
    attention_forward(q.value(), k.value(), v.value(), options, kept, o, call.context());
  }
  detail::AttentionNode<T> node{{call.save(q), call.save(k), call.save(v)}, o, kept, options, path};
  const auto to_q = call.target(q), to_k = call.target(k), to_v = call.target(v);
  return call.finish(In<T, 4>(o),
                     [node, to_q, to_k, to_v](BackwardPass<T>& pass, In<T, 4> d_o) mutable {
                       pass.assign(
                           [&](Out<T, 4> dq, Out<T, 4> dk, Out<T, 4> dv) {
                             node.backward(d_o, {dq, dk, dv}, pass.context());
                           },
                           to_q, to_k, to_v);
                     });
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/concatenate.hpp
// Variables side by side, as one, on the tape.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Variables side by side along one axis; the others' extents are equal. Nothing is kept. Throws
/// ShapeError, and ArgumentError for an axis that is not there.
template <Scalar T, int R, std::same_as<Variable<T, R>>... More>
Variable<T, R> concatenate(int axis, const Variable<T, R>& first, const More&... more) {
  detail::require_axis("concatenate", axis, R);
  Shape<R> shape = first.shape();
  [[maybe_unused]] const auto append = [&](const Variable<T, R>& part) {
    Shape<R> expected = first.shape();
    expected[axis] = part.extent(axis);
    require_shape("concatenate", "a part", part.value(), expected,
                  [&] { return "the first " + first.shape().format(); });
    shape[axis] += part.extent(axis);
  };
  (append(more), ...);
  Recording<T> call({"concatenate"}, first, more...);
  const Out<T, R> y = call.output(shape);
  Index at = 0;
  const auto put = [&](const Variable<T, R>& part) {
    const Index count = part.extent(axis);
    detail::combine_into<T, R>(kernels::Combination::first, part.value(), slice(y, axis, at, count),
                               call.context());
    at += count;
  };
  (put(first), (put(more), ...));
  const auto targets = std::make_tuple(call.optional_target(first), call.optional_target(more)...);
  const auto backward = [targets, axis](BackwardPass<T>& pass, In<T, R> dy) {
    Index from = 0;
    const auto give = [&](const auto& target) {
      pass.contribute(target, slice(dy, axis, from, target.shape[axis]));
      from += target.shape[axis];
    };
    std::apply([&](const auto&... target) { (give(target), ...); }, targets);
  };
  return call.finish(In<T, R>(y), backward);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/elementwise.hpp
// Sums, differences, products and quotients of matrices, element by element, and their gradients. A
// matrix of one row stands for all rows: its gradient is summed over them.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = a + b.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void add_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> y,
                 const Context& context = {}) {
  detail::require_combined<T>("add_forward", a, b, y);
  detail::combine<T>({kernels::Combination::sum, a, b}, y, context);
}

/// The gradients of add_forward.
///
/// dy   [N, M]   in
/// da   [N, M]   out: dy; or [1, M]: the column sums of dy; {} for none
/// db   [N, M]   out: likewise
///
/// Outputs must not overlap dy (but may be dy where they have its shape) or each other.
/// Work    N M FLOPs for each of [1, M].
/// Throws  ShapeError before anything is written.
template <Scalar T>
void add_backward(In<T, 2> dy, Out<std::type_identity_t<T>, 2> da,
                  Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  detail::require_gradients<T>("add_backward", dy, da, db);
  const Index N = dy.extent(0);
  detail::combine_backward<T>({kernels::Combination::first, dy, dy}, N, da, context);
  detail::combine_backward<T>({kernels::Combination::first, dy, dy}, N, db, context);
}

/// y = a - b.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void subtract_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b,
                      Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_combined<T>("subtract_forward", a, b, y);
  detail::combine<T>({kernels::Combination::difference, a, b}, y, context);
}

/// The gradients of subtract_forward.
///
/// dy   [N, M]   in
/// da   [N, M]   out: dy; or [1, M]: summed over the rows; {} for none
/// db   [N, M]   out: -dy; or [1, M] likewise
///
/// Outputs must not overlap dy or each other.
/// Work    N M FLOPs for db, and for da of [1, M].
/// Throws  ShapeError before anything is written.
template <Scalar T>
void subtract_backward(In<T, 2> dy, Out<std::type_identity_t<T>, 2> da,
                       Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  detail::require_gradients<T>("subtract_backward", dy, da, db);
  const Index N = dy.extent(0);
  detail::combine_backward<T>({kernels::Combination::first, dy, dy}, N, da, context);
  detail::combine_backward<T>({kernels::Combination::scaled, dy, dy, T(-1)}, N, db, context);
}

/// y = a b, element by element.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void multiply_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b,
                      Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_combined<T>("multiply_forward", a, b, y);
  detail::combine<T>({kernels::Combination::product, a, b}, y, context);
}

/// The gradients of multiply_forward.
///
/// dy    [N, M]   in
/// a, b           in; as in forward
/// da    as a     out: dy b; summed over the rows where a is [1, M]; {} for none
/// db    as b     out: dy a; likewise
///
/// An element whose dy is 0 adds nothing, whatever a and b hold. Outputs must not overlap inputs or
/// each other.
/// Work    N M FLOPs for each, twice that for [1, M].
/// Throws  ShapeError before anything is written.
template <Scalar T>
void multiply_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> a,
                       In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> da,
                       Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  constexpr std::string_view function = "multiply_backward";
  detail::require_factor<T>(function, "a", a, dy);
  detail::require_factor<T>(function, "b", b, dy);
  detail::require_gradient_of<T>(function, "da", da, a.shape(), "the shape of a");
  detail::require_gradient_of<T>(function, "db", db, b.shape(), "the shape of b");
  require_apart(function, {"da", da}, {{"dy", dy}, {"a", a}, {"b", b}});
  require_apart(function, {"db", db}, {{"dy", dy}, {"a", a}, {"b", b}, {"da", da}});
  const Index N = dy.extent(0);
  detail::combine_backward<T>({kernels::Combination::gradient_product, dy, b}, N, da, context);
  detail::combine_backward<T>({kernels::Combination::gradient_product, dy, a}, N, db, context);
}

/// y = a / b, element by element.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void divide_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> y,
                    const Context& context = {}) {
  detail::require_combined<T>("divide_forward", a, b, y);
  detail::combine<T>({kernels::Combination::quotient, a, b}, y, context);
}

/// The gradients of divide_forward.
///
/// dy   [N, M]   in
/// b             in; as in forward
/// y    [N, M]   in; what forward returned
/// da   [N, M]   out: dy / b; or [1, M]: summed over the rows; {} for none
/// db   as b     out: -(dy / b) y; summed over the rows where b is [1, M]; {} for none
///
/// An element whose dy is 0 adds nothing, whatever b and y hold. Outputs must not overlap inputs or
/// each other.
/// Work    N M FLOPs, as many for da of [1, M] and for db, twice that for db of [1, M].
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void divide_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> b,
                     In<std::type_identity_t<T>, 2> y, Out<std::type_identity_t<T>, 2> da,
                     Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  constexpr std::string_view function = "divide_backward";
  const Index N = dy.extent(0);
  detail::require_factor<T>(function, "b", b, dy);
  require_shape(function, "y", y, dy.shape(), "the shape of dy");
  detail::require_gradient_of<T>(function, "da", da, detail::rows_or_one<T>(da, dy),
                                 "the shape of dy, or one row");
  detail::require_gradient_of<T>(function, "db", db, b.shape(), "the shape of b");
  require_apart(function, {"da", da}, {{"dy", dy}, {"b", b}, {"y", y}});
  require_apart(function, {"db", db}, {{"dy", dy}, {"b", b}, {"y", y}, {"da", da}});
  Tensor<T, 2> storage;  // dy / b, where that is not da
  Out<T, 2> quotients = da;
  if (da.absent() || da.extent(0) != N) {
    storage = Tensor<T, 2>::uninitialized(dy.shape(), context.memory);
    quotients = storage;
  }
  detail::combine<T>({kernels::Combination::gradient_quotient, dy, b}, quotients, context);
  if (storage.size() != 0 || da.extent(0) != N) {
    detail::combine_backward<T>({kernels::Combination::first, quotients, quotients}, N, da,
                                context);
  }
  detail::combine_backward<T>({kernels::Combination::negative_gradient_product, quotients, y}, N,
                              db, context);
}

/// y = alpha x.
///
/// x      [N, M]   in
/// alpha           a finite number
/// y      [N, M]   out; may be x
///
/// It is its own gradient: dx = scale_forward(dy, alpha).
/// Work    N M FLOPs.
/// Throws  ShapeError or ArgumentError before anything is written.
template <Scalar T>
void scale_forward(In<T, 2> x, const std::type_identity_t<T>& alpha,
                   Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  require_countable("scale_forward", "x", x);
  require_shape("scale_forward", "y", y, x.shape(), "the shape of x");
  require_distinct("scale_forward", {"y", y});
  require_same_or_apart("scale_forward", {"y", y}, {"x", x});
  require(is_finite_option(alpha), "scale_forward", "alpha is not finite, expected a number");
  detail::combine<T>({kernels::Combination::scaled, x, x, alpha}, y, context);
}

/// dx = alpha dy: the gradient of scale_forward. Throws as that does, under its name.
template <Scalar T>
void scale_backward(In<T, 2> dy, const std::type_identity_t<T>& alpha,
                    Out<std::type_identity_t<T>, 2> dx, const Context& context = {}) {
  scale_forward(dy, alpha, dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/elementwise.hpp
// Sums, differences, products and quotients on the tape. An operand of fewer axes stands for all
// indices of the axes that it lacks, which come first: a bias [D] is added to each row of [B, L,
// D], and its gradient is summed over them.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What an input was, where backward does not read it: its shape over elements that are there.
template <class T, int R>
In<T, R> unread(const In<T, R>& dy, const Shape<R>& shape) {
  return {dy.data(), shape, Shape<R>()};
}

/// An input that backward may not need: kept, or its shape alone.
template <class T>
struct MaybeSaved {
  In<T, 2> value;
  bool saved;

  In<T, 2> read(const In<T, 2>& dy) const { return saved ? value : unread(dy, value.shape()); }
};

template <class T>
MaybeSaved<T> save_if(bool needed, Recording<T>& call, const Variable<T, 2>& x, const In<T, 2>& y) {
  needed = needed || y.size() == 0;  // then nothing else is there to point to
  if (needed) call.save(x);
  return {x.value(), needed};
}

/// Two operands as matrices, [N, M] or one row, and the shape of what they give.
template <class T, int R>
struct Operands {
  Variable<T, 2> a, b;
  Shape<2> rows;
  Shape<R> shape;
};

/// Whether the axes of b are the last ones of a.
template <int R, int Q>
bool ends_with(const Shape<R>& a, const Shape<Q>& b) {
  for (int q = 0; q < Q; ++q) {
    if (a[R - Q + q] != b[q]) return false;
  }
  return true;
}

/// The operand of all axes, and the one that may lack some, as matrices.
template <class T, int R, int Q>
void as_matrices(const Variable<T, R>& whole, const Variable<T, Q>& part, Variable<T, 2>& rows,
                 Variable<T, 2>& row) {
  if constexpr (Q == R) {
    rows = as_rows(whole);
    row = as_rows(part);
  } else {
    const Index M = part.size();
    if constexpr (Q == 1) {
      rows = as_rows(whole);
    } else {
      rows = reshape(whole, Shape{M == 0 ? 0 : whole.size() / M, M});
    }
    row = reshape(part, Shape{Index{1}, M});
  }
}

template <class T, int R, int Q>
auto operands_of(NodeName name, const Variable<T, R>& a, const Variable<T, Q>& b) {
  constexpr int rank = R < Q ? Q : R;
  const auto fits = [&] {
    if constexpr (R >= Q) {
      return ends_with(a.shape(), b.shape());
    } else {
      return ends_with(b.shape(), a.shape());
    }
  };
  if (!fits()) {
    raise<ShapeError>(std::string(name.text) + ": b is " + b.shape().format() +
                      ", expected the shape of a " + a.shape().format() +
                      ", or the last axes of one of them as the other");
  }
  Operands<T, rank> of;
  if constexpr (R >= Q) {
    as_matrices(a, b, of.a, of.b);
    of.rows = of.a.shape();
    of.shape = a.shape();
  } else {
    as_matrices(b, a, of.b, of.a);
    of.rows = of.b.shape();
    of.shape = b.shape();
  }
  return of;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// a + b. Of one shape, or the axes of one are the last of the other. Throws ShapeError; and, as
/// all functions of the tape, as Recording, and std::bad_alloc.
template <Scalar T, int R, int Q>
auto add(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"add"}, a, b);
  Recording<T> call({"add"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  add_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const auto backward = [to_a, to_b](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto summed = [&](const auto& target) {
      pass.assign([&](Out<T, 2> d) { add_backward(dy, {}, d, pass.context()); }, target);
    };
    if (to_b.shape != dy.shape()) {
      summed(to_b);
      return pass.hand_on(to_a, dy);
    }
    to_a.shape == dy.shape() ? pass.contribute(to_a, dy) : summed(to_a);
    pass.hand_on(to_b, dy);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// a - b, of shapes as in add.
template <Scalar T, int R, int Q>
auto subtract(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"subtract"}, a, b);
  Recording<T> call({"subtract"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  subtract_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const auto backward = [to_a, to_b](BackwardPass<T>& pass, In<T, 2> dy) {
    pass.assign([&](Out<T, 2> da, Out<T, 2> db) { subtract_backward(dy, da, db, pass.context()); },
                to_a, to_b);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// a b, element by element, of shapes as in add. Each operand is kept for the gradient of the
/// other.
template <Scalar T, int R, int Q>
auto multiply(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"multiply"}, a, b);
  Recording<T> call({"multiply"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  multiply_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const auto kept_a = detail::save_if<T>(of.b.has_gradient(), call, of.a, y);
  const auto kept_b = detail::save_if<T>(of.a.has_gradient(), call, of.b, y);
  const auto backward = [to_a, to_b, kept_a, kept_b](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> da, Out<T, 2> db) {
      multiply_backward(dy, kept_a.read(dy), kept_b.read(dy), da, db, pass.context());
    };
    pass.assign(into, to_a, to_b);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// a / b, element by element, of shapes as in add. b and the quotient are kept.
template <Scalar T, int R, int Q>
auto divide(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"divide"}, a, b);
  Recording<T> call({"divide"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  divide_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const In<T, 2> kept_b = call.save(of.b);
  call.save_output();
  const auto backward = [to_a, to_b, kept_b, y](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> da, Out<T, 2> db) {
      divide_backward(dy, kept_b, y, da, db, pass.context());
    };
    pass.assign(into, to_a, to_b);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// alpha x. Throws ArgumentError for an alpha that is not finite.
template <Scalar T, int R>
Variable<T, R> scale(const Variable<T, R>& x, const std::type_identity_t<T>& alpha) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"scale"}, rows);
  const Out<T, 2> y = call.output(rows.shape());
  scale_forward(rows.value(), alpha, y, call.context());
  const auto backward = [to = call.target(rows), alpha](BackwardPass<T>& pass, In<T, 2> dy) {
    pass.assign([&](Out<T, 2> dx) { scale_backward(dy, alpha, dx, pass.context()); }, to);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// add, subtract, multiply, divide and scale as operators.
///@{
template <Scalar T, int R, int Q>
auto operator+(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return add(a, b);
}
template <Scalar T, int R, int Q>
auto operator-(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return subtract(a, b);
}
template <Scalar T, int R, int Q>
auto operator*(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return multiply(a, b);
}
template <Scalar T, int R, int Q>
auto operator/(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return divide(a, b);
}
template <Scalar T, int R>
Variable<T, R> operator*(const std::type_identity_t<T>& alpha, const Variable<T, R>& x) {
  return scale(x, alpha);
}
///@}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/dropout.hpp
// Dropout of a matrix, element by element. The mask is drawn from its position: nothing is stored.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y = x / (1 - rate) where kept, 0 elsewhere; y = x at rate 0.
///
/// x        [N, M]   in
/// dropout  rate in [0, 1], seed, step: row n and column m draw from (seed, step, n, m)
/// y        [N, M]   out; may be x
///
/// Work    N M FLOPs where the rate is not 0.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Srivastava et al., "Dropout", JMLR 15, 2014.
template <Scalar T>
void dropout_forward(In<T, 2> x, const Dropout& dropout, Out<std::type_identity_t<T>, 2> y,
                     const Context& context = {}) {
  require_countable("dropout_forward", "x", x);
  require_shape("dropout_forward", "y", y, x.shape(), "the shape of x");
  require_distinct("dropout_forward", {"y", y});
  require_same_or_apart("dropout_forward", {"y", y}, {"x", x});
  dropout.require_valid("dropout_forward");
  if (x.size() == 0) return;
  const DropoutMask mask(dropout, DropoutStream::output);
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, x.extent(0), x.extent(1), [&](Index begin, Index end) {
    if (mask.active()) {
      return run.drop_rows(mask, kernels::matrix(x), kernels::matrix(y), x.extent(1), begin, end);
    }
    for (Index n = begin; n < end; ++n) {
      for (Index m = 0; m < x.extent(1); ++m) y(n, m) = x(n, m);
    }
  });
  if (mask.active()) context.count_flops(x.size(), x.size());
}

/// dx = dy / (1 - rate) where forward kept the element, 0 elsewhere: the same mask in reverse.
///
/// dy       [N, M]   in
/// dropout  as in forward
/// dx       [N, M]   out; may be dy
///
/// Work    N M FLOPs where the rate is not 0.
/// Throws  ShapeError or ArgumentError before anything is written.
template <Scalar T>
void dropout_backward(In<T, 2> dy, const Dropout& dropout, Out<std::type_identity_t<T>, 2> dx,
                      const Context& context = {}) {
  require_countable("dropout_backward", "dy", dy);
  require_shape("dropout_backward", "dx", dx, dy.shape(), "the shape of dy");
  require_distinct("dropout_backward", {"dx", dx});
  require_same_or_apart("dropout_backward", {"dx", dx}, {"dy", dy});
  dropout.require_valid("dropout_backward");
  dropout_forward(dy, dropout, dx, context);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/layer_norm.hpp
// Layer normalisation, forward and backward.

namespace headwise::inline v0_1 {

/// Gain and offset of a layer norm, each [D] or absent.
template <class T>
struct LayerNormAffine {
  In<T, 1> gamma = {};  // [D]; {} for 1
  In<T, 1> beta = {};   // [D]; {} for 0
};

/// Where their gradients are added, each [D] or absent.
template <class T>
struct LayerNormGradients {
  InOut<T, 1> gamma = {};  // [D]; {} for none
  InOut<T, 1> beta = {};   // [D]; {} for none
};

/// What rows were normalised with, each [N]: written by forward, read by backward.
template <class View>
struct LayerNormMoments {
  View mean = {};  // [N]
  View rstd = {};  // [N]; 1 / sqrt(variance + epsilon)
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
void require_affine(std::string_view function, const LayerNormAffine<T>& affine, Index D) {
  const auto whence = [&] { return std::to_string(D) + ", the width of x"; };
  if (!affine.gamma.absent()) require_shape(function, "gamma", affine.gamma, Shape{D}, whence);
  if (!affine.beta.absent()) require_shape(function, "beta", affine.beta, Shape{D}, whence);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y = (x - mean) rstd gamma + beta, row by row, rstd = 1 / sqrt(variance + epsilon).
///
/// x                 [N, D]   in
/// affine.gamma      [D]      in; {} for 1
/// affine.beta       [D]      in; {} for 0
/// epsilon                    added to the variance (biased: divided by D); > 0
/// y                 [N, D]   out; may be x
/// moments.mean      [N]      out; kept for backward, {} for inference
/// moments.rstd      [N]      out; kept for backward, {} for inference
///
/// Outputs must not overlap anything else.
/// Work    6 D + 5 FLOPs a row, and D for each of gamma and beta.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv 1607.06450.
template <Scalar T>
void layer_norm_forward(In<T, 2> x, const LayerNormAffine<std::type_identity_t<T>>& affine,
                        std::type_identity_t<T> epsilon, Out<std::type_identity_t<T>, 2> y,
                        const LayerNormMoments<Out<std::type_identity_t<T>, 1>>& moments,
                        const Context& context = {}) {
  constexpr std::string_view function = "layer_norm_forward";
  const Index N = x.extent(0), D = x.extent(1);
  const Out<T, 1> mean = moments.mean, rstd = moments.rstd;
  require_countable(function, "x", x);
  detail::require_affine<T>(function, affine, D);
  require(T(0) < epsilon && is_finite_option(epsilon), function,
          "epsilon is not above 0, or not finite, expected a small number like 1e-5");
  require_shape(function, "y", y, x.shape(), "the shape of x");
  if (!mean.absent()) require_shape(function, "mean", mean, Shape{N}, "rows of x");
  if (!rstd.absent()) require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  require_apart(function, {"y", y}, {{"gamma", affine.gamma}, {"beta", affine.beta}});
  require_same_or_apart(function, {"y", y}, {"x", x});
  require_apart(function, {"mean", mean},
                {{"x", x}, {"gamma", affine.gamma}, {"beta", affine.beta}, {"y", y}});
  require_apart(
      function, {"rstd", rstd},
      {{"x", x}, {"gamma", affine.gamma}, {"beta", affine.beta}, {"y", y}, {"mean", mean}});
  if (x.size() == 0 && mean.absent() && rstd.absent()) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::LayerNormRows<T> rows{kernels::matrix(x),
                                       D,
                                       kernels::row(affine.gamma),
                                       kernels::row(affine.beta),
                                       epsilon,
                                       kernels::matrix(y),
                                       kernels::row(mean),
                                       kernels::row(rstd)};
  detail::for_rows(context, N, D,
                   [&](Index begin, Index end) { run.layer_norm_rows(rows, begin, end); });
  const std::int64_t a_column =
      6 + (affine.gamma.absent() ? 0 : 1) + (affine.beta.absent() ? 0 : 1);
  const std::int64_t flops = D == 0 ? 0 : std::int64_t{N} * (D * a_column + 5);
  context.count_flops(flops, flops);
}

/// The gradients of layer_norm_forward.
///
/// dy                [N, D]   in
/// x                 [N, D]   in; as in forward
/// gamma             [D]      in; as in forward, {} for 1
/// moments           [N]      in; mean and rstd from forward
/// dx                [N, D]   out; may be dy; {} for none
/// gradients.gamma   [D]      added to: sum over rows of dy xhat; {} for none
/// gradients.beta    [D]      added to: sum over rows of dy; {} for none
///
/// An element whose dy is 0 adds nothing, and a row whose dy is 0 throughout has dx 0, whatever x
/// holds. Outputs must not overlap anything else.
/// Work    11 D + 2 FLOPs a row for dx, 2 D with gamma, 4 D and D for the gradients of gamma and
///         beta.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/layer_norm_backward.md.
template <Scalar T>
void layer_norm_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                         In<std::type_identity_t<T>, 1> gamma,
                         const LayerNormMoments<In<std::type_identity_t<T>, 1>>& moments,
                         Out<std::type_identity_t<T>, 2> dx,
                         const LayerNormGradients<std::type_identity_t<T>>& gradients,
                         const Context& context = {}) {
  constexpr std::string_view function = "layer_norm_backward";
  const Index N = x.extent(0), D = x.extent(1);
  const In<T, 1> mean = moments.mean, rstd = moments.rstd;
  const auto& [dgamma, dbeta] = gradients;
  require_countable(function, "x", x);
  detail::require_affine<T>(function, {gamma, {}}, D);
  require_shape(function, "dy", dy, x.shape(), "the shape of x");
  require_shape(function, "mean", mean, Shape{N}, "rows of x");
  require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  if (!dx.absent()) require_shape(function, "dx", dx, x.shape(), "the shape of x");
  if (!dgamma.absent()) require_shape(function, "dgamma", dgamma, Shape{D}, "the width of x");
  if (!dbeta.absent()) require_shape(function, "dbeta", dbeta, Shape{D}, "the width of x");
  require_apart(function, {"dx", dx}, {{"x", x}, {"gamma", gamma}, {"mean", mean}, {"rstd", rstd}});
  require_same_or_apart(function, {"dx", dx}, {"dy", dy});
  require_apart(
      function, {"dgamma", dgamma},
      {{"dy", dy}, {"x", x}, {"gamma", gamma}, {"mean", mean}, {"rstd", rstd}, {"dx", dx}});
  require_apart(function, {"dbeta", dbeta},
                {{"dy", dy},
                 {"x", x},
                 {"gamma", gamma},
                 {"mean", mean},
                 {"rstd", rstd},
                 {"dx", dx},
                 {"dgamma", dgamma}});
  if (N == 0 || D == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::LayerNormBackwardRows<T> rows{kernels::matrix(dy),
                                               kernels::matrix(x),
                                               N,
                                               D,
                                               kernels::row(gamma),
                                               kernels::row(mean),
                                               kernels::row(rstd),
                                               kernels::matrix(dx),
                                               kernels::row(dgamma),
                                               kernels::row(dbeta)};
  // dx may be dy: the sums of dy come first.
  if (!dgamma.absent() || !dbeta.absent()) {
    detail::for_columns(context, N, D,
                        [&](Index begin, Index end) { run.layer_norm_columns(rows, begin, end); });
  }
  if (!dx.absent()) {
    detail::for_rows(context, N, D, [&](Index begin, Index end) {
      run.layer_norm_backward_rows(rows, begin, end);
    });
  }
  const std::int64_t of_dx = dx.absent() ? 0 : 11 + (gamma.absent() ? 0 : 2);
  const std::int64_t a_column = of_dx + (dgamma.absent() ? 0 : 4) + (dbeta.absent() ? 0 : 1);
  const std::int64_t flops = std::int64_t{N} * (D * a_column + (dx.absent() ? 0 : 2));
  context.count_flops(flops, flops);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/linear.hpp
// The linear layer: a matrix product with a bias, and its gradients.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// How a product is cut into tasks: columns first, for each task packs the columns that it needs.
/// What an element is computed from does not depend on it.
struct GemmTasks {
  Index rows, columns;  // of a task
  Index across;         // tasks side by side
  Index count;

  GemmTasks(const kernels::Extents& size, Index workers, Index panel) {
    constexpr Index tasks_a_worker = 2, fewest_columns = 192, fewest_rows = 48;
    const auto pieces = [](Index n, Index piece) { return (n + piece - 1) / piece; };
    const Index wanted = workers == 1 ? 1 : tasks_a_worker * workers;
    const Index most_across = std::max<Index>(1, size.N / fewest_columns);
    const Index most_down = std::max<Index>(1, size.M / fewest_rows);
    across = std::min<Index>(wanted, most_across);
    columns = kernels::round_up(pieces(size.N, across), panel);
    across = pieces(size.N, columns);
    rows = pieces(size.M, std::min<Index>(pieces(wanted, across), most_down));
    count = across * pieces(size.M, rows);
  }
};

template <class T>
void run_gemm(const kernels::Kernels<T>& run, const Context& context, Workspace<T>& workspace,
              kernels::Matrix<const T> a, kernels::Matrix<const T> b, kernels::Matrix<T> c,
              const kernels::Extents& size, const kernels::Epilogue<T>& epilogue) {
  const GemmTasks tasks(size, context.executor.concurrency(), run.columns);
  const auto task = [&](Index t, Index worker) {
    const Index m = t / tasks.across * tasks.rows, n = t % tasks.across * tasks.columns;
    kernels::Epilogue<T> here = epilogue;
    if (here.bias != nullptr) here.bias += n;
    run.gemm(a.from(m, 0), b.from(0, n), c.from(m, n),
             {std::min<Index>(tasks.rows, size.M - m), std::min<Index>(tasks.columns, size.N - n),
              size.K},
             here, workspace.of(worker).take(run.gemm_scratch(size)));
  };
  context.executor.run(tasks.count, task);
}

/// x with 0 in the rows whose dy is 0 throughout, in `storage`; or x itself where it is finite.
/// What had no part in the result has none in the gradient: 0 times NaN is not let in.
template <class T>
In<T, 2> without_idle_rows(const kernels::Kernels<T>& run, const In<T, 2>& x, const In<T, 2>& dy,
                           Tensor<T, 2>& storage, const Context& context) {
  if (run.all_finite(kernels::matrix(x), x.extent(0), x.extent(1))) return x;
  storage = contiguous(x, context.memory);
  for (Index n = 0; n < x.extent(0); ++n) {
    bool idle = true;
    for (Index o = 0; o < dy.extent(1); ++o) idle = idle && dy(n, o) == T(0);
    for (Index i = 0; idle && i < x.extent(1); ++i) storage(n, i) = T(0);
  }
  return storage;
}

/// dw += x^T dy in two steps: what may fail, then what writes.
template <class T>
class LinearWeightGradient {
 public:
  /// dy [N, O], x [N, K]; both have to stay. Throws std::bad_alloc.
  LinearWeightGradient(const In<T, 2>& dy, const In<T, 2>& x, const Context& context)
      : dy_(dy),
        x_(without_idle_rows<T>(kernels::kernels_here<T>(), x, dy, storage_, context)),
        size_{x.extent(1), dy.extent(1), x.extent(0)} {}
  LinearWeightGradient(const LinearWeightGradient&) = delete;
  LinearWeightGradient& operator=(const LinearWeightGradient&) = delete;

  /// Elements that each worker needs.
  Index scratch() const {
    return size_.M == 0 ? 0 : kernels::kernels_here<T>().gemm_scratch(size_);
  }
  /// dw [K, O].
  void add_to(const InOut<T, 2>& dw, Workspace<T>& workspace, const Context& context) const {
    if (size_.M == 0 || size_.N == 0 || size_.K == 0) return;
    const kernels::Kernels<T>& run = kernels::kernels_here<T>();
    run_gemm<T>(run, context, workspace, kernels::matrix(x_).transposed(), kernels::matrix(dy_),
                kernels::matrix(dw), size_, {.accumulate = true});
    context.count_flops(std::int64_t{2} * size_.M * size_.N * size_.K,
                        run.executed_gemm_flops(size_));
  }

 private:
  Tensor<T, 2> storage_;
  const In<T, 2> dy_, x_;
  const kernels::Extents size_;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x w + b, row by row.
///
/// x   [N, K]   in
/// w   [K, O]   in
/// b   [O]      in; {} for none
/// y   [N, O]   out; must not overlap the inputs
///
/// A row of y depends on that row of x alone, to the bit. Sums run in T.
/// Work    2 N K O FLOPs, and N O for the bias; scratch that does not grow with N.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void linear_forward(In<T, 2> x, In<std::type_identity_t<T>, 2> w, In<std::type_identity_t<T>, 1> b,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  const auto from_x = [&] { return std::to_string(K) + " from x " + x.shape().format(); };
  require_countable("linear_forward", "x", x);
  require_countable("linear_forward", "w", w);
  require_shape("linear_forward", "w", w, Shape{K, O}, from_x);
  if (!b.absent()) {
    require_shape("linear_forward", "b", b, Shape{O},
                  [&] { return std::to_string(O) + " from w " + w.shape().format(); });
  }
  require_shape("linear_forward", "y", y, Shape{N, O}, "rows of x, columns of w");
  require_apart("linear_forward", {"y", y}, {{"x", x}, {"w", w}, {"b", b}});
  if (N == 0 || O == 0) return;

  Tensor<T, 1> dense_bias;
  const T* bias = b.absent() ? nullptr : b.data();
  if (!b.absent() && b.stride(0) != 1) {
    dense_bias = contiguous(b, context.memory);
    bias = dense_bias.data();
  }
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  Workspace<T> workspace(context.executor.concurrency(), run.gemm_scratch({N, O, K}),
                         context.memory);
  detail::run_gemm<T>(run, context, workspace, kernels::matrix(x), kernels::matrix(w),
                      kernels::matrix(y), {N, O, K}, {.bias = bias});
  const std::int64_t bias_flops = b.absent() ? 0 : std::int64_t{N} * O;
  context.count_flops(std::int64_t{2} * N * K * O + bias_flops,
                      run.executed_gemm_flops({N, O, K}) + bias_flops);
}

/// db += the column sums of dy: the gradient of a bias that was added to every row.
///
/// dy  [N, O]   in
/// db  [O]      added to; must not overlap dy
///
/// Work    N O FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void bias_backward(In<T, 2> dy, InOut<std::type_identity_t<T>, 1> db, const Context& context = {}) {
  require_countable("bias_backward", "dy", dy);
  require_shape("bias_backward", "db", db, Shape{dy.extent(1)}, "columns of dy");
  require_apart("bias_backward", {"db", db}, {{"dy", dy}});
  if (dy.size() == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_columns(context, dy.extent(0), dy.extent(1), [&](Index begin, Index end) {
    run.add_rows(kernels::matrix(dy), dy.extent(0), begin, end, kernels::row(db));
  });
  context.count_flops(dy.size(), dy.size());
}

/// The gradients of linear_forward.
///
/// dy  [N, O]   in
/// x   [N, K]   in; as in forward
/// w   [K, O]   in; as in forward
/// dx  [N, K]   out: dy w^T; {} for none
/// dw  [K, O]   added to: x^T dy; {} for none
/// db  [O]      added to: the column sums of dy; {} for none
///
/// A row of x whose dy is 0 adds nothing to dw, even if it holds NaN or infinity: so padding that
/// attention hides does not reach the weights. dx, dw and db must not overlap the inputs or each
/// other.
/// Work    2 N K O FLOPs for each of dx and dw, N O for db.
/// Throws  ShapeError before anything is written; std::bad_alloc.
/// Source  docs/derivations/attention_backward.md, step 6.
template <Scalar T>
void linear_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                     In<std::type_identity_t<T>, 2> w, Out<std::type_identity_t<T>, 2> dx,
                     InOut<std::type_identity_t<T>, 2> dw, InOut<std::type_identity_t<T>, 1> db,
                     const Context& context = {}) {
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  require_countable("linear_backward", "x", x);
  require_countable("linear_backward", "w", w);
  require_shape("linear_backward", "w", w, Shape{K, O},
                [&] { return std::to_string(K) + " from x " + x.shape().format(); });
  require_shape("linear_backward", "dy", dy, Shape{N, O}, "rows of x, columns of w");
  if (!dx.absent()) require_shape("linear_backward", "dx", dx, Shape{N, K}, "the shape of x");
  if (!dw.absent()) require_shape("linear_backward", "dw", dw, Shape{K, O}, "the shape of w");
  if (!db.absent()) require_shape("linear_backward", "db", db, Shape{O}, "columns of w");
  require_apart("linear_backward", {"dx", dx}, {{"dy", dy}, {"x", x}, {"w", w}});
  require_apart("linear_backward", {"dw", dw}, {{"dy", dy}, {"x", x}, {"w", w}, {"dx", dx}});
  require_apart("linear_backward", {"db", db},
                {{"dy", dy}, {"x", x}, {"w", w}, {"dx", dx}, {"dw", dw}});

  const bool wants_dx = dx.size() != 0, wants_dw = dw.size() != 0 && N != 0;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::Extents of_dx{N, K, O};
  std::optional<detail::LinearWeightGradient<T>> of_dw;
  if (wants_dw) of_dw.emplace(dy, x, context);
  Workspace<T> workspace(
      wants_dx || wants_dw ? context.executor.concurrency() : 0,
      std::max<Index>(wants_dx ? run.gemm_scratch(of_dx) : 0, wants_dw ? of_dw->scratch() : 0),
      context.memory);
  if (wants_dx) {
    detail::run_gemm<T>(run, context, workspace, kernels::matrix(dy),
                        kernels::matrix(w).transposed(), kernels::matrix(dx), of_dx, {});
    context.count_flops(std::int64_t{2} * N * K * O, run.executed_gemm_flops(of_dx));
  }
  if (wants_dw) of_dw->add_to(dw, workspace, context);
  if (!db.absent()) bias_backward(dy, db, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/softmax.hpp
// Softmax over the rows of a matrix, its gradient, and its Jacobian for reference.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// p = e^(x - max x) / sum e^(x - max x), row by row.
///
/// x   [N, M]   in
/// p   [N, M]   out; may be x
///
/// Subtracting the maximum changes nothing but keeps e^x in range: 1000 is no overflow. A row that
/// holds NaN or +infinity, or -infinity alone, becomes NaN: nothing here is masked.
/// Work    4 N M FLOPs: subtract, e^x, sum, divide.
/// Throws  ShapeError before anything is written.
/// Source  Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs",
/// 1990.
template <Scalar T>
void softmax_forward(In<T, 2> x, Out<std::type_identity_t<T>, 2> p, const Context& context = {}) {
  require_countable("softmax_forward", "x", x);
  require_shape("softmax_forward", "p", p, x.shape(), "the shape of x");
  require_distinct("softmax_forward", {"p", p});
  require_same_or_apart("softmax_forward", {"p", p}, {"x", x});
  if (x.extent(1) == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, x.extent(0), x.extent(1), [&](Index begin, Index end) {
    run.softmax_rows(kernels::matrix(x), kernels::matrix(p), x.extent(1), begin, end);
  });
  context.count_flops(4 * std::int64_t{x.size()}, 4 * std::int64_t{x.size()});
}

/// dx = p (dp - rowsum(dp p)), row by row.
///
/// dp  [N, M]   in
/// p   [N, M]   in; what softmax_forward returned
/// dx  [N, M]   out; may be dp, must not overlap p
///
/// Work    4 N M FLOPs.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/attention_backward.md, step 4c.
template <Scalar T>
void softmax_backward(In<T, 2> dp, In<std::type_identity_t<T>, 2> p,
                      Out<std::type_identity_t<T>, 2> dx, const Context& context = {}) {
  require_countable("softmax_backward", "dp", dp);
  require_shape("softmax_backward", "p", p, dp.shape(), "the shape of dp");
  require_shape("softmax_backward", "dx", dx, dp.shape(), "the shape of dp");
  require_apart("softmax_backward", {"dx", dx}, {{"p", p}});
  require_same_or_apart("softmax_backward", {"dx", dx}, {"dp", dp});
  if (dp.extent(1) == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, dp.extent(0), dp.extent(1), [&](Index begin, Index end) {
    run.softmax_backward_rows(kernels::matrix(dp), kernels::matrix(p), kernels::matrix(dx),
                              dp.extent(1), begin, end);
  });
  context.count_flops(4 * std::int64_t{dp.size()}, 4 * std::int64_t{dp.size()});
}

/// The Jacobian of softmax at its output p: J = diag(p) - p p^T, J(i, j) = dp_i / dx_j.
///
/// p          [M]      in
/// jacobian   [M, M]   out; must not overlap p
///
/// softmax_backward is J^T dp without the M x M matrix.
/// Work    2 M^2 FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void softmax_jacobian(In<T, 1> p, Out<std::type_identity_t<T>, 2> jacobian) {
  const Index M = p.extent(0);
  require_countable("softmax_jacobian", "p", p);
  require_shape("softmax_jacobian", "jacobian", jacobian, Shape{M, M}, "the length of p, twice");
  require_apart("softmax_jacobian", {"jacobian", jacobian}, {{"p", p}});
  for (Index i = 0; i < M; ++i) {
    for (Index j = 0; j < M; ++j) {
      jacobian(i, j) = i == j ? p(i) * (T(1) - p(j)) : T(0) - p(i) * p(j);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/layers.hpp
// Linear layer, layer norm, softmax and dropout on the tape, each over the last axis. They call
// their pairs of ops/, to the same bits, and keep what those read in backward.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// x w + b over the last axis of x.
///
/// x   [..., K]
/// w   [K, O]
/// b   [O]       or {} for none
///
/// The gradients of w and b are added where they are kept, without a sum of their own in between. x
/// is kept where w has a gradient, w where x has one. Throws as linear_forward.
template <Scalar T, int R>
Variable<T, R> linear(const Variable<T, R>& x, const Variable<T, 2>& w,
                      const Variable<T, 1>& b = {}) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"linear"}, rows, w, b);
  const Out<T, 2> y = call.output(Shape{rows.extent(0), w.extent(1)});
  linear_forward(rows.value(), w.value(), b.value(), y, call.context());
  const auto to_x = call.optional_target(rows);
  const auto to_w = call.added_target(w);
  const auto to_b = call.added_target(b);
  const auto kept_x = detail::save_if<T>(w.has_gradient(), call, rows, y);
  const auto kept_w = detail::save_if<T>(rows.has_gradient(), call, w, y);
  const auto backward = [to_x, to_w, to_b, kept_x, kept_w](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> dx, InOut<T, 2> dw, InOut<T, 1> db) {
      linear_backward(dy, kept_x.read(dy), kept_w.read(dy), dx, dw, db, pass.context());
    };
    pass.assign(into, to_x, to_w, to_b);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// Layer normalisation over the last axis.
///
/// x       [..., D]
/// gamma   [D]        or {} for 1
/// beta    [D]        or {} for 0
///
/// Keeps x, gamma and two numbers a row. Throws as layer_norm_forward.
template <Scalar T, int R>
Variable<T, R> layer_norm(const Variable<T, R>& x, const Variable<T, 1>& gamma = {},
                          const Variable<T, 1>& beta = {},
                          const std::type_identity_t<T>& epsilon = T(1e-5)) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"layer_norm"}, rows, gamma, beta);
  const Out<T, 2> y = call.output(rows.shape());
  const auto mean = call.kept(Shape{rows.extent(0)}), rstd = call.kept(Shape{rows.extent(0)});
  layer_norm_forward(rows.value(), {gamma.value(), beta.value()}, epsilon, y, {mean, rstd},
                     call.context());
  const auto to_x = call.target(rows);
  const auto to_gamma = call.added_target(gamma), to_beta = call.added_target(beta);
  const In<T, 2> kept_x = call.save(rows);
  const In<T, 1> kept_gamma = call.save(gamma), kept_mean = mean, kept_rstd = rstd;
  const auto backward = [=](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> dx, InOut<T, 1> dgamma, InOut<T, 1> dbeta) {
      layer_norm_backward(dy, kept_x, kept_gamma, {kept_mean, kept_rstd}, dx, {dgamma, dbeta},
                          pass.context());
    };
    pass.assign(into, to_x, to_gamma, to_beta);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// Softmax over the last axis of x [..., M]; what it gives is kept. Throws as softmax_forward.
template <Scalar T, int R>
Variable<T, R> softmax(const Variable<T, R>& x) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"softmax"}, rows);
  const Out<T, 2> p = call.output(rows.shape());
  softmax_forward(rows.value(), p, call.context());
  call.save_output();
  const auto backward = [to = call.target(rows), p](BackwardPass<T>& pass, In<T, 2> dp) {
    pass.assign([&](Out<T, 2> dx) { softmax_backward(dp, p, dx, pass.context()); }, to);
  };
  return like_rows_of(x.shape(), call.finish(p, backward));
}

/// Dropout of x [..., M]: its rows in order draw as rows n of dropout_forward. Nothing is kept;
/// rate 0 is x itself. Give each dropout of a step a seed of its own. Throws as dropout_forward.
template <Scalar T, int R>
Variable<T, R> dropout(const Variable<T, R>& x, const Dropout& options) {
  if (options.rate == 0.0) return x;
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"dropout"}, rows);
  const Out<T, 2> y = call.output(rows.shape());
  dropout_forward(rows.value(), options, y, call.context());
  const auto backward = [to = call.target(rows), options](BackwardPass<T>& pass, In<T, 2> dy) {
    pass.assign([&](Out<T, 2> dx) { dropout_backward(dy, options, dx, pass.context()); }, to);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/matmul.hpp
// Products of matrices, or of as many pairs of them as the leading axes have, on the tape.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Matrix n of the last two axes, counted in row-major order of the others.
template <class V>
typename V::template with_rank<2> matrix_at(const V& view, Index n) {
  constexpr int rank = V::rank;
  Index offset = 0;
  for (int r = rank - 3; r >= 0; --r) {
    offset += n % view.extent(r) * view.stride(r);
    n /= view.extent(r);
  }
  auto* const data = view.data();
  return {data == nullptr ? data : data + offset,
          Shape{view.extent(rank - 2), view.extent(rank - 1)},
          Shape{view.stride(rank - 2), view.stride(rank - 1)}};
}

template <int R>
Index matrices_of(const Shape<R>& shape) {
  Index count = 1;
  for (int r = 0; r < R - 2; ++r) count *= shape[r];
  return count;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// a b, matrix by matrix.
///
/// a         [..., N, K]
/// b         [..., K, O]   of the same leading axes
/// returns   [..., N, O]
///
/// Both are kept. Throws ShapeError.
template <Scalar T, int R>
Variable<T, R> matmul(const Variable<T, R>& a, const Variable<T, R>& b) {
  static_assert(R >= 2, "matrices have two axes");
  Shape<R> expected = a.shape(), shape = a.shape();
  expected[R - 2] = a.extent(R - 1);
  expected[R - 1] = shape[R - 1] = b.extent(R - 1);
  require_shape("matmul", "b", b.value(), expected,
                [&] { return "leading axes and columns of a " + a.shape().format(); });
  Recording<T> call({"matmul"}, a, b);
  const Out<T, R> y = call.output(shape);
  for (Index n = 0; n < detail::matrices_of(shape); ++n) {
    linear_forward(detail::matrix_at(a.value(), n), detail::matrix_at(b.value(), n), {},
                   detail::matrix_at(y, n), call.context());
  }
  const auto to_a = call.optional_target(a);
  const auto to_b = call.added_target(b);
  const In<T, R> kept_a = call.save(a), kept_b = call.save(b);
  const auto backward = [to_a, to_b, kept_a, kept_b](BackwardPass<T>& pass, In<T, R> dy) {
    const auto into = [&](Out<T, R> da, InOut<T, R> db) {
      for (Index n = 0; n < detail::matrices_of(dy.shape()); ++n) {
        linear_backward(detail::matrix_at(dy, n), detail::matrix_at(kept_a, n),
                        detail::matrix_at(kept_b, n),
                        da.absent() ? Out<T, 2>() : detail::matrix_at(Out<T, R>(da), n),
                        db.absent() ? InOut<T, 2>() : detail::matrix_at(db, n), {}, pass.context());
      }
    };
    pass.assign(into, to_a, to_b);
  };
  return call.finish(In<T, R>(y), backward);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/activation.hpp
// Activations, element by element, and the gated pair: forward and backward.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// y = f(gate) up. The rules of memory are its caller's.
template <class T>
void activate_rows(Activation activation, const In<T, 2>& x, const In<T, 2>& up, const Out<T, 2>& y,
                   const Context& context) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::ActivationRows<T> rows{activation, x.extent(1), kernels::matrix(x),
                                        kernels::matrix(up), kernels::matrix(y)};
  for_rows(context, x.extent(0), x.extent(1),
           [&](Index begin, Index end) { run.activation_rows(rows, begin, end); });
  const kernels::ActivationFlops an_element(activation);
  const std::int64_t flops =
      x.size() * (an_element.forward + (up.absent() ? 0 : kernels::ActivationFlops::gated));
  context.count_flops(flops, flops);
}

/// d_gate = dy up f'(gate), d_up = dy f(gate). The rules of memory are its caller's.
template <class T>
void activate_rows_backward(Activation activation, const In<T, 2>& dy, const In<T, 2>& x,
                            const In<T, 2>& up, const Out<T, 2>& dx, const Out<T, 2>& d_up,
                            const Context& context) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::ActivationBackwardRows<T> rows{
      activation,          x.extent(1),         kernels::matrix(dy),  kernels::matrix(x),
      kernels::matrix(up), kernels::matrix(dx), kernels::matrix(d_up)};
  for_rows(context, x.extent(0), x.extent(1),
           [&](Index begin, Index end) { run.activation_backward_rows(rows, begin, end); });
  const kernels::ActivationFlops an_element(activation);
  const std::int64_t flops =
      x.size() * (up.absent() ? an_element.backward : an_element.gated_backward());
  context.count_flops(flops, flops);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = f(x), element by element.
///
/// activation  f
/// x           [N, F]   in
/// y           [N, F]   out; may be x
///
/// float and double within 6 units in the last place of f(x), also far below 0 where f is small, as
/// long as f(x) is no denormal number; that of gelu_tanh within 3 (1 + |z|), where f is x / (1 +
/// e^-z). NaN stays NaN; infinity stays, -infinity gives 0.
/// Work    0 FLOPs an element for relu, 4 for gelu and silu, 8 for gelu_tanh.
/// Throws  ShapeError before anything is written.
/// Source  see Activation.
template <Scalar T>
void activation_forward(Activation activation, In<T, 2> x, Out<std::type_identity_t<T>, 2> y,
                        const Context& context = {}) {
  require_countable("activation_forward", "x", x);
  require_shape("activation_forward", "y", y, x.shape(), "the shape of x");
  require_distinct("activation_forward", {"y", y});
  require_same_or_apart("activation_forward", {"y", y}, {"x", x});
  if (x.size() == 0) return;
  detail::activate_rows<T>(activation, x, {}, y, context);
}

/// dx = dy f'(x), element by element; that of relu at 0 is 0.
///
/// activation  f, as in forward
/// dy          [N, F]   in
/// x           [N, F]   in; as in forward
/// dx          [N, F]   out; may be dy; must not overlap x
///
/// An element whose dy is 0 has dx 0, whatever x holds.
/// Work    1 FLOP an element for relu, 10 for gelu, 15 for gelu_tanh, 8 for silu.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/transformer_block.md.
template <Scalar T>
void activation_backward(Activation activation, In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                         Out<std::type_identity_t<T>, 2> dx, const Context& context = {}) {
  require_countable("activation_backward", "dy", dy);
  require_shape("activation_backward", "x", x, dy.shape(), "the shape of dy");
  require_shape("activation_backward", "dx", dx, dy.shape(), "the shape of dy");
  require_apart("activation_backward", {"dx", dx}, {{"x", x}});
  require_same_or_apart("activation_backward", {"dx", dx}, {"dy", dy});
  if (dy.size() == 0) return;
  detail::activate_rows_backward<T>(activation, dy, x, {}, dx, {}, context);
}

/// y = silu(gate) up, element by element.
///
/// gate   [N, F]   in
/// up     [N, F]   in; gate and up may be halves of the columns of one matrix
/// y      [N, F]   out; may be gate or up
///
/// Work    5 FLOPs an element.
/// Throws  ShapeError before anything is written.
/// Source  Shazeer, "GLU Variants Improve Transformer", 2020, arXiv 2002.05202.
template <Scalar T>
void swiglu_forward(In<T, 2> gate, In<std::type_identity_t<T>, 2> up,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  require_countable("swiglu_forward", "gate", gate);
  require_shape("swiglu_forward", "up", up, gate.shape(), "the shape of gate");
  require_shape("swiglu_forward", "y", y, gate.shape(), "the shape of gate");
  require_distinct("swiglu_forward", {"y", y});
  require_same_or_apart("swiglu_forward", {"y", y}, {"gate", gate});
  require_same_or_apart("swiglu_forward", {"y", y}, {"up", up});
  if (gate.size() == 0) return;
  detail::activate_rows<T>(Activation::silu, gate, up, y, context);
}

/// d_gate = dy up silu'(gate), d_up = dy silu(gate), element by element.
///
/// dy       [N, F]   in
/// gate     [N, F]   in; as in forward
/// up       [N, F]   in; as in forward
/// d_gate   [N, F]   out; may be dy
/// d_up     [N, F]   out
///
/// An element whose dy is 0 has gradients 0, whatever gate and up hold. Outputs must not overlap
/// anything else.
/// Work    11 FLOPs an element.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void swiglu_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> gate,
                     In<std::type_identity_t<T>, 2> up, Out<std::type_identity_t<T>, 2> d_gate,
                     Out<std::type_identity_t<T>, 2> d_up, const Context& context = {}) {
  require_countable("swiglu_backward", "dy", dy);
  require_shape("swiglu_backward", "gate", gate, dy.shape(), "the shape of dy");
  require_shape("swiglu_backward", "up", up, dy.shape(), "the shape of dy");
  require_shape("swiglu_backward", "d_gate", d_gate, dy.shape(), "the shape of dy");
  require_shape("swiglu_backward", "d_up", d_up, dy.shape(), "the shape of dy");
  require_apart("swiglu_backward", {"d_gate", d_gate}, {{"gate", gate}, {"up", up}});
  require_same_or_apart("swiglu_backward", {"d_gate", d_gate}, {"dy", dy});
  require_apart("swiglu_backward", {"d_up", d_up},
                {{"dy", dy}, {"gate", gate}, {"up", up}, {"d_gate", d_gate}});
  if (dy.size() == 0) return;
  detail::activate_rows_backward<T>(Activation::silu, dy, gate, up, d_gate, d_up, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/tokens.hpp
// Tokens: rows of a table, or columns of logits, by number. What may be one, and the rule that all
// of a call's lie in range.

namespace headwise::inline v0_1 {

/// The types that tokens come in: what tokenizers write, and what PyTorch takes.
template <class Id>
concept TokenId = std::same_as<Id, std::int32_t> || std::same_as<Id, std::int64_t>;

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// No token is exempt.
struct NoneIgnored {
  bool operator()(std::int64_t) const { return false; }
};

/// Throws ArgumentError for the first token outside [0, V), but for those that ignored(token) says
/// yes to; `from` says where V comes from.
template <TokenId Id, class From, class Ignored = NoneIgnored>
void require_tokens(std::string_view function, std::string_view argument, const In<Id, 1>& tokens,
                    Index V, const From& from, const Ignored& ignored = {}) {
  for (Index n = 0; n < tokens.extent(0); ++n) {
    const std::int64_t token = tokens(n);
    if ((token >= 0 && token < V) || ignored(token)) [[likely]]
      continue;
    raise<ArgumentError>(std::string(function) + ": " + std::string(argument) + "(" +
                         std::to_string(n) + ") is " + std::to_string(token) +
                         ", expected 0 or more and below " + std::to_string(V) + " (" + from() +
                         ")");
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/ops/cross_entropy.hpp
// Softmax cross-entropy of logits with targets, in one pass over what softmax and a logarithm would
// take several for, and its gradient. It refuses targets that are no column; it has no class
// weights and no targets that are distributions.

namespace headwise::inline v0_1 {

/// What becomes of the losses of all rows.
enum class Reduction {
  mean,  ///< their sum over the number of rows that are not left out
  sum,   ///< their sum
};

/// How losses of rows become one.
struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;       // rows of this target are left out, whatever they hold
  Reduction reduction = Reduction::mean;  // of the losses of the others
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Targets as columns, below 0 where a row is left out.
struct TargetColumns {
  Tensor<Index, 1> columns;  // [N]
  Index count = 0;           // of rows that are not left out
};

/// Throws ArgumentError for a target that is neither a column nor the ignored one.
template <TokenId Id, class T>
TargetColumns target_columns(std::string_view function, const In<T, 2>& logits,
                             const In<Id, 1>& targets, std::int64_t ignored,
                             const Context& context) {
  const auto is_ignored = [&](std::int64_t target) { return target == ignored; };
  require_tokens(
      function, "targets", targets, logits.extent(1),
      [&] {
        return "columns of logits " + logits.shape().format() + ", or ignore_index " +
               std::to_string(ignored);
      },
      is_ignored);
  TargetColumns result{Tensor<Index, 1>::uninitialized(targets.shape(), context.memory)};
  for (Index n = 0; n < targets.extent(0); ++n) {
    const bool left_out = is_ignored(targets(n));
    result.columns(n) = left_out ? -1 : static_cast<Index>(targets(n));
    if (!left_out) ++result.count;
  }
  return result;
}

/// The sum of count numbers in a type of its own: chains of 16, then pairwise.
template <class Sum, class T>
Sum pairwise_sum(const T* x, Index count) {
  constexpr Index chain = 16;
  if (count <= chain) {
    Sum sum = count == 0 ? Sum(0) : Sum(x[0]);
    for (Index n = 1; n < count; ++n) sum = sum + Sum(x[n]);
    return sum;
  }
  const Index half = (count + chain) / (2 * chain) * chain;
  return pairwise_sum<Sum>(x, half) + pairwise_sum<Sum>(x + half, count - half);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// loss = sum_n (logsumexp_n - logits_{n, targets_n}), over their number with Reduction::mean.
///
/// logits     [N, V]   in
/// targets    [N]      in; each a column of logits, or options.ignore_index
/// options             which rows are left out; mean or sum
/// logsumexp  [N]      out; log sum_v e^logits_{n, v}, kept for backward, {} for inference; 0 for
///                     a row that is left out
///
/// Returns the loss; 0 where every row is left out, and where there is none (PyTorch: NaN). Sums
/// along a row run in T, the sum over rows pairwise, in double for float and in T for others. The
/// greatest logit is subtracted before e^x, and a target ahead of all others has its loss from
/// log(1 + x): 1e-30 is no 0. A logit of -infinity has no part in its row; as target it costs
/// infinity. NaN or +infinity in a row that is not left out make the loss NaN.
/// Work    3 V + 5 FLOPs a row that is not left out.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs",
/// 1990.
template <Scalar T, TokenId Id>
T cross_entropy_forward(In<T, 2> logits, In<Id, 1> targets, const CrossEntropyOptions& options,
                        Out<std::type_identity_t<T>, 1> logsumexp, const Context& context = {}) {
  constexpr std::string_view function = "cross_entropy_forward";
  const Index N = logits.extent(0), V = logits.extent(1);
  require_countable(function, "logits", logits);
  require_shape(function, "targets", targets, Shape{N}, "rows of logits");
  if (!logsumexp.absent()) {
    require_shape(function, "logsumexp", logsumexp, Shape{N}, "rows of logits");
  }
  require_apart(function, {"logsumexp", logsumexp}, {{"logits", logits}, {"targets", targets}});
  const auto [columns, count] =
      detail::target_columns(function, logits, targets, options.ignore_index, context);
  auto losses = Tensor<T, 1>::uninitialized({N}, context.memory);
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CrossEntropyRows<T> rows{kernels::matrix(logits), V, columns.data(), losses.data(),
                                          kernels::row(logsumexp)};
  detail::for_rows(context, N, V,
                   [&](Index begin, Index end) { run.cross_entropy_rows(rows, begin, end); });
  const std::int64_t flops = count * (3 * std::int64_t{V} + 5);
  context.count_flops(flops, flops);
  if (count == 0) return T(0);
  using Sum = std::conditional_t<std::same_as<T, float>, double, T>;
  const Sum sum = detail::pairwise_sum<Sum>(losses.data(), N);
  return options.reduction == Reduction::sum
             ? static_cast<T>(sum)
             : static_cast<T>(sum / Sum(static_cast<double>(count)));
}

/// The gradient of cross_entropy_forward: d_logits_{n, v} = d_loss / count (e^(logits_{n, v} -
/// logsumexp_n) - [v = targets_n]), count 1 with Reduction::sum.
///
/// d_loss              the gradient of the loss; 1 where the loss is what is minimised
/// logits     [N, V]   in; as in forward
/// targets    [N]      in; as in forward
/// logsumexp  [N]      in; what forward left
/// options             as in forward
/// d_logits   [N, V]   out; may be logits
///
/// Rows that are left out become 0, whatever they hold. The target's own element is minus the sum
/// of its row's others: no digits are lost where its probability is near 1, and rows sum to 0.
/// Work    4 V + 2 FLOPs a row that is not left out.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  docs/derivations/cross_entropy_backward.md.
template <Scalar T, TokenId Id>
void cross_entropy_backward(std::type_identity_t<T> d_loss, In<T, 2> logits, In<Id, 1> targets,
                            In<std::type_identity_t<T>, 1> logsumexp,
                            const CrossEntropyOptions& options,
                            Out<std::type_identity_t<T>, 2> d_logits, const Context& context = {}) {
  constexpr std::string_view function = "cross_entropy_backward";
  const Index N = logits.extent(0), V = logits.extent(1);
  require_countable(function, "logits", logits);
  require_shape(function, "targets", targets, Shape{N}, "rows of logits");
  require_shape(function, "logsumexp", logsumexp, Shape{N}, "rows of logits");
  require_shape(function, "d_logits", d_logits, logits.shape(), "the shape of logits");
  require_apart(function, {"d_logits", d_logits}, {{"targets", targets}, {"logsumexp", logsumexp}});
  require_same_or_apart(function, {"d_logits", d_logits}, {"logits", logits});
  const auto [columns, count] =
      detail::target_columns(function, logits, targets, options.ignore_index, context);
  const bool mean = options.reduction == Reduction::mean && count != 0;
  const T factor = mean ? T(d_loss / T(static_cast<double>(count))) : d_loss;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CrossEntropyBackwardRows<T> rows{
      kernels::matrix(logits), V,      columns.data(),
      kernels::row(logsumexp), factor, kernels::matrix(Out<T, 2>(d_logits))};
  detail::for_rows(context, N, V, [&](Index begin, Index end) {
    run.cross_entropy_backward_rows(rows, begin, end);
  });
  const std::int64_t flops = count * (4 * std::int64_t{V} + 2);
  context.count_flops(flops, flops);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/embedding.hpp
// The embedding of tokens: rows of a table, gathered by number, and the gradient of the table.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Asks for the begin of a row that is read or written soon. (Rows of a table are met in no order
/// that a processor foresees.)
template <int write, class T>
HEADWISE_INLINE void prefetch_row(const kernels::Matrix<T>& x, Index i, Index begin, Index end) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (x.column != 1) return;
  for (Index n = begin; n < std::min<Index>(end, begin + 8 * line); n += line) {
    __builtin_prefetch(&x(i, n), write, 3);
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y_n = table_{tokens_n}: row n of y is a copy of the table's row of token n.
///
/// tokens  [N]      in; each in [0, V)
/// table   [V, D]   in
/// y       [N, D]   out; must not overlap the inputs
///
/// Work    no FLOPs; N D elements are copied.
/// Throws  ShapeError, or ArgumentError for a token without a row, before anything is written.
template <TokenId Id, Scalar T>
void embedding_forward(In<Id, 1> tokens, In<T, 2> table, Out<std::type_identity_t<T>, 2> y,
                       const Context& context = {}) {
  constexpr std::string_view function = "embedding_forward";
  const Index N = tokens.extent(0), D = table.extent(1);
  require_countable(function, "tokens", tokens);
  require_countable(function, "table", table);
  require_shape(function, "y", y, Shape{N, D}, "tokens, columns of table");
  require_apart(function, {"y", y}, {{"tokens", tokens}, {"table", table}});
  detail::require_tokens(function, "tokens", tokens, table.extent(0),
                         [&] { return "rows of table " + table.shape().format(); });
  if (N == 0 || D == 0) return;
  const auto from = kernels::matrix(table);
  const auto to = kernels::matrix(Out<T, 2>(y));
  detail::for_rows(context, N, D, [&](Index begin, Index end) {
    for (Index n = begin; n < end; ++n) {
      const auto row = kernels::row(from, static_cast<Index>(tokens(n)));
      const auto out = kernels::row(to, n);
      if (n + 1 < end) detail::prefetch_row<0>(from, static_cast<Index>(tokens(n + 1)), 0, D);
      if (row.step == 1 && out.step == 1) {
        std::copy_n(row.data, D, out.data);
      } else {
        for (Index j = 0; j < D; ++j) out[j] = row[j];
      }
    }
  });
}

/// The gradient of the table: dtable_{tokens_n} += dy_n, in the order of n.
///
/// dy      [N, D]   in
/// tokens  [N]      in; as in forward
/// dtable  [V, D]   added to; must not overlap the inputs
///
/// A row of the table that no token names is not touched. Sums run in T, from row to row: the same
/// bits for any number of threads, for each owns columns.
/// Work    N D FLOPs, whatever V is.
/// Throws  ShapeError, or ArgumentError for a token without a row, before anything is written.
template <Scalar T, TokenId Id>
void embedding_backward(In<T, 2> dy, In<Id, 1> tokens, InOut<std::type_identity_t<T>, 2> dtable,
                        const Context& context = {}) {
  constexpr std::string_view function = "embedding_backward";
  const Index N = tokens.extent(0), D = dtable.extent(1);
  require_countable(function, "tokens", tokens);
  require_countable(function, "dtable", dtable);
  require_shape(function, "dy", dy, Shape{N, D}, "tokens, columns of dtable");
  require_apart(function, {"dtable", dtable}, {{"dy", dy}, {"tokens", tokens}});
  detail::require_tokens(function, "tokens", tokens, dtable.extent(0),
                         [&] { return "rows of dtable " + dtable.shape().format(); });
  if (N == 0 || D == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const auto from = kernels::matrix(dy);
  const auto to = kernels::matrix(Out<T, 2>(dtable));
  detail::for_columns(context, N, D, [&](Index begin, Index end) {
    for (Index n = 0; n < N; ++n) {
      const auto token = static_cast<Index>(tokens(n));
      if (n + 1 < N) {
        detail::prefetch_row<1>(to, static_cast<Index>(tokens(n + 1)), begin, end);
      }
      run.add_row(kernels::row(from.from(n, begin), 0), end - begin,
                  kernels::row(to.from(token, begin), 0));
    }
  });
  context.count_flops(std::int64_t{N} * D, std::int64_t{N} * D);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/rms_norm.hpp
// Root-mean-square normalisation, forward and backward.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y = x rstd gamma, row by row, rstd = 1 / sqrt(mean(x^2) + epsilon).
///
/// x         [N, D]   in
/// gamma     [D]      in; {} for 1
/// epsilon            added to the mean square; > 0
/// y         [N, D]   out; may be x
/// rstd      [N]      out; kept for backward, {} for inference
///
/// Outputs must not overlap anything else.
/// Work    3 D + 4 FLOPs a row, and D for gamma.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv 1910.07467.
template <Scalar T>
void rms_norm_forward(In<T, 2> x, In<std::type_identity_t<T>, 1> gamma,
                      std::type_identity_t<T> epsilon, Out<std::type_identity_t<T>, 2> y,
                      Out<std::type_identity_t<T>, 1> rstd, const Context& context = {}) {
  constexpr std::string_view function = "rms_norm_forward";
  const Index N = x.extent(0), D = x.extent(1);
  require_countable(function, "x", x);
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{D}, "the width of x");
  require(T(0) < epsilon && is_finite_option(epsilon), function,
          "epsilon is not above 0, or not finite, expected a small number like 1e-6");
  require_shape(function, "y", y, x.shape(), "the shape of x");
  if (!rstd.absent()) require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  require_apart(function, {"y", y}, {{"gamma", gamma}});
  require_same_or_apart(function, {"y", y}, {"x", x});
  require_apart(function, {"rstd", rstd}, {{"x", x}, {"gamma", gamma}, {"y", y}});
  if (x.size() == 0 && rstd.absent()) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::LayerNormRows<T> rows{.x = kernels::matrix(x),
                                       .D = D,
                                       .gamma = kernels::row(gamma),
                                       .beta = {nullptr, 0},
                                       .epsilon = epsilon,
                                       .y = kernels::matrix(y),
                                       .mean = {nullptr, 0},
                                       .rstd = kernels::row(rstd)};
  detail::for_rows(context, N, D,
                   [&](Index begin, Index end) { run.rms_norm_rows(rows, begin, end); });
  const std::int64_t a_column = 3 + (gamma.absent() ? 0 : 1);
  const std::int64_t flops = D == 0 ? 0 : std::int64_t{N} * (D * a_column + 4);
  context.count_flops(flops, flops);
}

/// The gradients of rms_norm_forward.
///
/// dy        [N, D]   in
/// x         [N, D]   in; as in forward
/// gamma     [D]      in; as in forward, {} for 1
/// rstd      [N]      in; from forward
/// dx        [N, D]   out: rstd (g - xhat mean(g xhat)), g = dy gamma, xhat = x rstd; may be dy; {}
///                    for none
/// dgamma    [D]      added to: sum over rows of dy xhat; {} for none
///
/// An element whose dy is 0 adds nothing, and a row whose dy is 0 throughout has dx 0, whatever x
/// holds. Outputs must not overlap anything else.
/// Work    7 D + 1 FLOPs a row for dx, 2 D with gamma, 3 D for the gradient of gamma.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/transformer_block.md.
template <Scalar T>
void rms_norm_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                       In<std::type_identity_t<T>, 1> gamma, In<std::type_identity_t<T>, 1> rstd,
                       Out<std::type_identity_t<T>, 2> dx, InOut<std::type_identity_t<T>, 1> dgamma,
                       const Context& context = {}) {
  constexpr std::string_view function = "rms_norm_backward";
  const Index N = x.extent(0), D = x.extent(1);
  require_countable(function, "x", x);
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{D}, "the width of x");
  require_shape(function, "dy", dy, x.shape(), "the shape of x");
  require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  if (!dx.absent()) require_shape(function, "dx", dx, x.shape(), "the shape of x");
  if (!dgamma.absent()) require_shape(function, "dgamma", dgamma, Shape{D}, "the width of x");
  require_apart(function, {"dx", dx}, {{"x", x}, {"gamma", gamma}, {"rstd", rstd}});
  require_same_or_apart(function, {"dx", dx}, {"dy", dy});
  require_apart(function, {"dgamma", dgamma},
                {{"dy", dy}, {"x", x}, {"gamma", gamma}, {"rstd", rstd}, {"dx", dx}});
  if (N == 0 || D == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::LayerNormBackwardRows<T> rows{.dy = kernels::matrix(dy),
                                               .x = kernels::matrix(x),
                                               .N = N,
                                               .D = D,
                                               .gamma = kernels::row(gamma),
                                               .mean = {nullptr, 0},
                                               .rstd = kernels::row(rstd),
                                               .dx = kernels::matrix(dx),
                                               .dgamma = kernels::row(dgamma),
                                               .dbeta = {nullptr, 0}};
  // dx may be dy: the sums of dy come first.
  if (!dgamma.absent()) {
    detail::for_columns(context, N, D,
                        [&](Index begin, Index end) { run.rms_norm_columns(rows, begin, end); });
  }
  if (!dx.absent()) {
    detail::for_rows(context, N, D,
                     [&](Index begin, Index end) { run.rms_norm_backward_rows(rows, begin, end); });
  }
  const std::int64_t of_dx = dx.absent() ? 0 : 7 + (gamma.absent() ? 0 : 2);
  const std::int64_t a_column = of_dx + (dgamma.absent() ? 0 : 3);
  const std::int64_t flops = std::int64_t{N} * (D * a_column + (dx.absent() ? 0 : 1));
  context.count_flops(flops, flops);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/rotary_table.hpp
// The angles of rotary positions: their cosines and sines, position by position, as a function of
// options alone. They are computed in double, so that position 100,000 is right in float.

namespace headwise::inline v0_1 {

/// Which elements of a head's row are a pair.
enum class RotaryPairing {
  halves,       ///< (t, t + width / 2): GPT-NeoX, LLaMA as Hugging Face stores it
  interleaved,  ///< (2 t, 2 t + 1): the paper, GPT-J
};

/// What rotary positions are. What it views must outlive the call.
struct RotaryOptions {
  double theta = 10000;  // pair t turns by theta^(-2 t / width) a position
  Index width = 0;       // of a row's elements, the first ones, that are rotated; 0: all
  RotaryPairing pairing = RotaryPairing::halves;  // which of them turn together
  Index offset = 0;                               // position of the first row
  In<double, 1> frequencies = {};  // [width / 2]; radians a position of each pair, instead of theta

  /// How many elements of a row of d are rotated.
  Index width_of(Index d) const { return width == 0 ? d : width; }
};

/// cos and sin of the angles of positions 0, 1, ...
template <class T>
struct RotaryAngles {
  In<T, 2> cosines;  // [positions, width / 2]
  In<T, 2> sines;    // [positions, width / 2]
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Throws ArgumentError or ShapeError for options that are none, of rows of d elements.
inline void require_rotary(std::string_view function, const RotaryOptions& options, Index d) {
  const Index width = options.width_of(d);
  require(width >= 0 && width <= d && width % 2 == 0, function, [&] {
    return "width is " + std::to_string(width) + ", expected an even number from 0 to " +
           std::to_string(d) + ", the width of a head";
  });
  constexpr Index farthest = Index{1} << 48;
  require(options.offset >= 0 && options.offset <= farthest, function,
          [&] { return "offset is " + std::to_string(options.offset) + ", expected 0 to 2^48"; });
  if (options.frequencies.absent()) {
    require(is_finite_option(options.theta) && options.theta > 0, function, [&] {
      return "theta is " + std::to_string(options.theta) + ", expected a finite number above 0";
    });
    return;
  }
  require_shape(function, "frequencies", options.frequencies, Shape{width / 2},
                "one for each pair of the width");
  for (Index t = 0; t < width / 2; ++t) {
    require(is_finite_option(options.frequencies(t)), function, [&] {
      return "frequencies(" + std::to_string(t) + ") is not finite, expected a number";
    });
  }
}

/// Rows [first, first + rows) of the tables.
template <class T>
void fill_angles(const RotaryOptions& options, Index width, Index first, Out<T, 2> cosines,
                 Out<T, 2> sines) {
  using Wide = std::conditional_t<std::same_as<T, long double>, long double, double>;
  const Wide theta = static_cast<Wide>(options.theta);
  for (Index t = 0; t < width / 2; ++t) {
    const Wide frequency =
        options.frequencies.absent()
            ? std::pow(theta, static_cast<Wide>(-2 * t) / static_cast<Wide>(width))
            : static_cast<Wide>(options.frequencies(t));
    for (Index i = 0; i < cosines.extent(0); ++i) {
      const Wide angle = static_cast<Wide>(first + i) * frequency;
      cosines(i, t) = T(std::cos(angle));
      sines(i, t) = T(std::sin(angle));
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Cosines and sines that are made once and read by many calls. A row is a function of the options
/// and of its position alone: growing changes none.
template <Scalar T>
class RotaryTable {
 public:
  /// Of heads of d elements, without a position yet. options.offset has no part in it; frequencies
  /// are copied. Throws ArgumentError or ShapeError for options that are none, std::bad_alloc.
  explicit RotaryTable(Index d, const RotaryOptions& options = {},
                       std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : options_(options), width_(options.width_of(d)), memory_(memory) {
    detail::require_rotary("RotaryTable", options, d);
    if (options.frequencies.absent()) return;
    frequencies_ = Tensor<double, 1>(options.frequencies.shape(), memory);
    for (Index t = 0; t < frequencies_.size(); ++t) frequencies_(t) = options.frequencies(t);
    options_.frequencies = {};
  }

  /// Makes it hold positions 0 to positions - 1 at least: views of it from before are void where it
  /// was shorter. Throws std::bad_alloc, and is as it was then.
  void grow(Index positions) {
    const Index held = cosines_.extent(0);
    if (positions <= held) return;
    const Index rows = positions < 2 * held ? 2 * held : positions;
    auto cosines = Tensor<T, 2>::uninitialized({rows, width_ / 2}, memory_);
    auto sines = Tensor<T, 2>::uninitialized({rows, width_ / 2}, memory_);
    RotaryOptions options = options_;
    options.frequencies = frequencies_;
    detail::fill_angles<T>(options, width_, 0, cosines, sines);
    cosines_ = std::move(cosines);
    sines_ = std::move(sines);
  }

  /// What it holds.
  RotaryAngles<T> angles() const { return {cosines_, sines_}; }
  /// The same, grown to `positions` before.
  RotaryAngles<T> angles(Index positions) {
    grow(positions);
    return angles();
  }

 private:
  RotaryOptions options_;
  Index width_;
  std::pmr::memory_resource* memory_;
  Tensor<double, 1> frequencies_;  // [width / 2], or absent
  Tensor<T, 2> cosines_, sines_;   // [positions, width / 2]
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/ops/rotary.hpp
// Rotary positions: pairs of a row's elements are turned by an angle that grows with the row's
// position, so that a product of a query and a key knows how far apart they are and nothing else of
// where they stand. A rotation is its own gradient, turned back.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The rules of a call but those of its tables.
template <class T>
void require_rotation(std::string_view function, std::string_view in, std::string_view out,
                      const In<T, 4>& x, const Out<T, 4>& y, const RotaryOptions& options) {
  require_countable(function, in, x);
  require_shape(function, out, y, x.shape(), [&] { return "the shape of " + std::string(in); });
  require_distinct(function, {out, y});
  require_same_or_apart(function, {out, y}, {in, x});
  require_rotary(function, options, x.extent(3));
}
template <class T>
void require_angles(std::string_view function, const Out<T, 4>& y, const RotaryAngles<T>& angles,
                    const RotaryOptions& options, std::string_view out) {
  const Index pairs = options.width_of(y.extent(3)) / 2, held = angles.cosines.extent(0);
  require_shape(function, "angles.cosines", angles.cosines, Shape{held, pairs},
                "half of the width");
  require_shape(function, "angles.sines", angles.sines, Shape{held, pairs}, "angles.cosines");
  require(held - options.offset >= y.extent(2), function, [&] {
    return "angles hold " + std::to_string(held) + " positions, expected at least " +
           std::to_string(options.offset + y.extent(2)) + " (offset and rows)";
  });
  require_apart(function, {out, y},
                {{"angles.cosines", angles.cosines}, {"angles.sines", angles.sines}});
}

/// Rotates all rows of y = x by tables whose row i is of row i. Position by position where heads
/// lie between each other, else head by head: along memory.
template <class T>
void rotate(const In<T, 4>& x, const In<T, 2>& cosines, const In<T, 2>& sines,
            const RotaryOptions& options, bool transposed, const Out<T, 4>& y,
            const Context& context) {
  if (x.size() == 0) return;
  const Index B = x.extent(0), H = x.extent(1), L = x.extent(2), d = x.extent(3);
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const auto magnitude = [](Index stride) { return stride < 0 ? -stride : stride; };
  const bool heads_inside = magnitude(x.stride(1)) < magnitude(x.stride(2));
  const kernels::RotaryRows<T> all{kernels::matrix(cosines),
                                   kernels::matrix(sines),
                                   d,
                                   options.width_of(d),
                                   options.pairing == RotaryPairing::interleaved,
                                   transposed};
  const Index rows = std::max<Index>(1, elements_of_rows / std::max<Index>(1, H * d));
  const Index blocks = (L + rows - 1) / rows;
  const auto task = [&](Index t, Index) {
    const Index b = t / blocks, begin = t % blocks * rows;
    const Index end = std::min<Index>(L, begin + rows);
    for (Index h = 0; h < H && !heads_inside; ++h) {
      run.rotate_rows(all, kernels::matrix(x, b, h), kernels::matrix(y, b, h), begin, end);
    }
    kernels::RotaryRows<T> here = all;
    here.cosines.row = here.sines.row = 0;  // one position for all heads
    for (Index i = begin; i < end && heads_inside; ++i) {
      here.cosines.data = all.cosines.data + i * all.cosines.row;
      here.sines.data = all.sines.data + i * all.sines.row;
      const kernels::Matrix<const T> from{x.data() + b * x.stride(0) + i * x.stride(2), x.stride(1),
                                          x.stride(3)};
      const kernels::Matrix<T> to{y.data() + b * y.stride(0) + i * y.stride(2), y.stride(1),
                                  y.stride(3)};
      run.rotate_rows(here, from, to, 0, H);
    }
  };
  context.executor.run(B * blocks, task);
  const std::int64_t flops = 3 * std::int64_t{B * H * L} * all.width;
  context.count_flops(flops, flops);
}

/// Rotates by tables of the rows' own positions, made for the call.
template <class T>
void rotate_by_options(const In<T, 4>& x, const RotaryOptions& options, bool transposed,
                       const Out<T, 4>& y, const Context& context) {
  const Index width = options.width_of(x.extent(3));
  const Shape<2> shape{x.size() == 0 ? 0 : x.extent(2), width / 2};
  auto cosines = Tensor<T, 2>::uninitialized(shape, context.memory);
  auto sines = Tensor<T, 2>::uninitialized(shape, context.memory);
  fill_angles<T>(options, width, options.offset, cosines, sines);
  rotate<T>(x, cosines, sines, options, transposed, y, context);
}
/// Rotates by tables whose rows are positions from 0 on.
template <class T>
void rotate_by_angles(const In<T, 4>& x, const RotaryAngles<T>& angles,
                      const RotaryOptions& options, bool transposed, const Out<T, 4>& y,
                      const Context& context) {
  if (x.size() == 0) return;
  const auto rows = [&](const In<T, 2>& table) {
    return In<T, 2>(table.data() + options.offset * table.stride(0),
                    Shape{x.extent(2), table.extent(1)}, table.strides());
  };
  rotate<T>(x, rows(angles.cosines), rows(angles.sines), options, transposed, y, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x with each pair (a, b) of a row turned: (a cos - b sin, a sin + b cos), by the angle
/// (offset + i) f_t of row i and pair t, f_t = theta^(-2 t / width) or as given.
///
/// x        [B, H, L, d]   in; queries or keys, any strides
/// options                 which elements are pairs, how fast they turn, position of row 0
/// y        [B, H, L, d]   out; may be x
///
/// Elements behind options.width are copied. Angles are computed in double (long double for long
/// double), once a call for all heads.
/// Work    3 FLOPs for each element that is rotated; scratch of 2 L width / 2.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Su et al., "RoFormer", 2021, arXiv 2104.09864, equation 34.
template <Scalar T>
void rotary_forward(In<T, 4> x, const RotaryOptions& options, Out<std::type_identity_t<T>, 4> y,
                    const Context& context = {}) {
  detail::require_rotation<T>("rotary_forward", "x", "y", x, y, options);
  detail::rotate_by_options<T>(x, options, false, y, context);
}
/// The same by a RotaryTable's angles: its options and these have to agree in all but the offset.
template <Scalar T>
void rotary_forward(In<T, 4> x, const RotaryAngles<std::type_identity_t<T>>& angles,
                    const RotaryOptions& options, Out<std::type_identity_t<T>, 4> y,
                    const Context& context = {}) {
  detail::require_rotation<T>("rotary_forward", "x", "y", x, y, options);
  detail::require_angles<T>("rotary_forward", y, angles, options, "y");
  detail::rotate_by_angles<T>(x, angles, options, false, y, context);
}

/// The gradient of rotary_forward: dx = dy turned back.
///
/// dy       [B, H, L, d]   in
/// options                 as in forward
/// dx       [B, H, L, d]   out; may be dy
///
/// Work    3 FLOPs for each element that is rotated.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
template <Scalar T>
void rotary_backward(In<T, 4> dy, const RotaryOptions& options, Out<std::type_identity_t<T>, 4> dx,
                     const Context& context = {}) {
  detail::require_rotation<T>("rotary_backward", "dy", "dx", dy, dx, options);
  detail::rotate_by_options<T>(dy, options, true, dx, context);
}
/// The same by a RotaryTable's angles, as in forward.
template <Scalar T>
void rotary_backward(In<T, 4> dy, const RotaryAngles<std::type_identity_t<T>>& angles,
                     const RotaryOptions& options, Out<std::type_identity_t<T>, 4> dx,
                     const Context& context = {}) {
  detail::require_rotation<T>("rotary_backward", "dy", "dx", dy, dx, options);
  detail::require_angles<T>("rotary_backward", dx, angles, options, "dx");
  detail::rotate_by_angles<T>(dy, angles, options, true, dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/model_functions.hpp
// What a language model has around its attention, on the tape: activations, rms norm, embeddings,
// rotary positions, cross-entropy. Each calls its pair of ops/, to the same bits.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// An activation of each element of x [...], which is kept. Throws as activation_forward.
template <Scalar T, int R>
Variable<T, R> activation(Activation which, const Variable<T, R>& x) {
  return apply_to_rows(
      {"activation"}, x,
      [which](In<T, 2> rows, Out<T, 2> y, const Context& context) {
        activation_forward(which, rows, y, context);
      },
      [which](In<T, 2> dy, In<T, 2> rows, Out<T, 2> dx, const Context& context) {
        activation_backward(which, dy, rows, dx, context);
      });
}
/// max(x, 0).
template <Scalar T, int R>
Variable<T, R> relu(const Variable<T, R>& x) {
  return activation(Activation::relu, x);
}
/// x Phi(x), Phi the distribution of a normal number.
template <Scalar T, int R>
Variable<T, R> gelu(const Variable<T, R>& x) {
  return activation(Activation::gelu, x);
}
/// x / (1 + e^-x).
template <Scalar T, int R>
Variable<T, R> silu(const Variable<T, R>& x) {
  return activation(Activation::silu, x);
}

/// silu(gate) up, element by element, of one shape [...]; both are kept. Where they are slices of
/// one product, their gradients are written side by side into its gradient. Throws as
/// swiglu_forward.
template <Scalar T, int R>
Variable<T, R> swiglu(const Variable<T, R>& gate, const Variable<T, R>& up) {
  const Variable<T, 2> gate_rows = as_rows(gate), up_rows = as_rows(up);
  return like_rows_of(gate.shape(), detail::apply_pair<detail::OutputSaved::no>(
                                        {"swiglu"}, gate_rows.shape(), swiglu_forward<T>,
                                        swiglu_backward<T>, gate_rows, up_rows));
}

/// Rms norm over the last axis.
///
/// x       [..., D]
/// gamma   [D]        or {} for 1
///
/// Keeps x, gamma and a number a row. Throws as rms_norm_forward.
template <Scalar T, int R>
Variable<T, R> rms_norm(const Variable<T, R>& x, const Variable<T, 1>& gamma = {},
                        const std::type_identity_t<T>& epsilon = T(1e-5)) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"rms_norm"}, rows, gamma);
  const Out<T, 2> y = call.output(rows.shape());
  const auto rstd = call.kept(Shape{rows.extent(0)});
  rms_norm_forward(rows.value(), gamma.value(), epsilon, y, rstd, call.context());
  const auto to_x = call.target(rows);
  const auto to_gamma = call.added_target(gamma);
  const In<T, 2> kept_x = call.save(rows);
  const In<T, 1> kept_gamma = call.save(gamma), kept_rstd = rstd;
  const auto backward = [=](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> dx, InOut<T, 1> dgamma) {
      rms_norm_backward(dy, kept_x, kept_gamma, kept_rstd, dx, dgamma, pass.context());
    };
    pass.assign(into, to_x, to_gamma);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// Rows of a table, by number.
///
/// tokens    [N]      have to outlive backward
/// table     [V, D]
/// returns   [N, D]
///
/// Nothing is kept; the gradient of the table is added where it is kept. Throws as
/// embedding_forward.
template <TokenId I, Scalar T>
Variable<T, 2> embedding(In<I, 1> tokens, const Variable<T, 2>& table) {
  Recording<T> call({"embedding"}, table);
  const Out<T, 2> y = call.output(Shape{tokens.extent(0), table.extent(1)});
  embedding_forward(tokens, table.value(), y, call.context());
  const auto backward = [tokens, to = call.added_target(table)](BackwardPass<T>& pass,
                                                                In<T, 2> dy) {
    pass.assign([&](InOut<T, 2> dtable) { embedding_backward(dy, tokens, dtable, pass.context()); },
                to);
  };
  return call.finish(In<T, 2>(y), backward);
}

/// Queries or keys [B, H, L, d], turned by where they stand. Nothing is kept. Throws as
/// rotary_forward.
template <Scalar T>
Variable<T, 4> rotary(const Variable<T, 4>& x, const RotaryOptions& options) {
  Recording<T> call({"rotary"}, x);
  const Out<T, 4> y = call.output(x.shape());
  rotary_forward(x.value(), options, y, call.context());
  const auto backward = [to = call.target(x), options](BackwardPass<T>& pass, In<T, 4> dy) {
    pass.assign([&](Out<T, 4> dx) { rotary_backward(dy, options, dx, pass.context()); }, to);
  };
  return call.finish(In<T, 4>(y), backward);
}

/// The loss of logits, [1].
///
/// logits    [..., V]
/// targets   [N]        for the rows of logits, in order; have to outlive backward
///
/// Keeps logits and a number a row. Throws as cross_entropy_forward.
template <TokenId I, Scalar T, int R>
Variable<T, 1> cross_entropy(const Variable<T, R>& logits, In<I, 1> targets,
                             const CrossEntropyOptions& options = {}) {
  const Variable<T, 2> rows = as_rows(logits);
  Recording<T> call({"cross_entropy"}, rows);
  const Out<T, 1> loss = call.output(Shape{1});
  const auto lse = call.kept(Shape{rows.extent(0)});
  loss(0) = cross_entropy_forward(rows.value(), targets, options, lse, call.context());
  const In<T, 2> kept = call.save(rows);
  const In<T, 1> kept_lse = lse;
  const auto backward = [=, to = call.target(rows)](BackwardPass<T>& pass, In<T, 1> d_loss) {
    const auto into = [&](Out<T, 2> d_logits) {
      cross_entropy_backward(d_loss(0), kept, targets, kept_lse, options, d_logits, pass.context());
    };
    pass.assign(into, to);
  };
  return call.finish(In<T, 1>(loss), backward);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/sum.hpp
// Sum and mean of all elements on the tape.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The sum of all elements, [1]. Nothing is kept.
template <Scalar T, int R>
Variable<T, 1> sum(const Variable<T, R>& x) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"sum"}, rows);
  const Out<T, 1> total = call.output(Shape{1});
  sum_forward(rows.value(), total, call.context());
  const auto backward = [to = call.target(rows)](BackwardPass<T>& pass, In<T, 1> dy) {
    pass.assign([&](Out<T, 2> dx) { sum_backward(dy, dx, pass.context()); }, to);
  };
  return call.finish(In<T, 1>(total), backward);
}

/// The mean of all elements, [1]. Throws ArgumentError where there are none.
template <Scalar T, int R>
Variable<T, 1> mean(const Variable<T, R>& x) {
  require(x.size() != 0, "mean", "x has no elements, expected at least one");
  return scale(sum(x), T(1) / T(static_cast<double>(x.size())));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/autograd/functions.hpp
// All functions of the tape: the library's operations on variables.


// headwise/nn/init.hpp
// How weights start: normal numbers drawn by position, so that a seed means the same everywhere.

namespace headwise::inline v0_1 {

/// The standard deviation of a [in, out] weight at the start.
enum class Init {
  xavier_normal,  ///< sqrt(2 / (in + out)); Glorot and Bengio, 2010
  he_normal,      ///< sqrt(2 / in); He et al., 2015, arXiv 1502.01852
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The standard deviation of a weight [in, out]; 0 for one without elements.
inline double init_std(Init init, Index in, Index out) {
  require(in >= 0, "init_std", [&] { return "in is " + std::to_string(in) + ", expected >= 0"; });
  require(out >= 0, "init_std",
          [&] { return "out is " + std::to_string(out) + ", expected >= 0"; });
  const double fan = static_cast<double>(init == Init::he_normal ? in : in + out);
  return fan == 0.0 ? 0.0 : std::sqrt(2.0 / fan);
}

/// Overwrites w with normal numbers of mean 0 and this standard deviation; `parameter` keeps those
/// of one seed apart. Throws ShapeError or ArgumentError before anything is written.
template <Scalar T>
void init_normal(Out<T, 2> w, double std_deviation, std::uint64_t seed, std::uint32_t parameter) {
  require_countable("init_normal", "w", w);
  require(is_finite_option(std_deviation) && std_deviation >= 0, "init_normal", [&] {
    return "std_deviation is " + std::to_string(std_deviation) +
           ", expected a finite number of 0 or more";
  });
  const auto key = philox_key(seed, 0x77000000u + parameter, 0);
  for (Index i = 0; i < w.extent(0); ++i) {
    for (Index o = 0; o < w.extent(1); ++o) {
      const auto position = static_cast<std::uint64_t>(i * w.extent(1) + o);
      w(i, o) = T(std_deviation * philox_normal(key, position));
    }
  }
}

/// Overwrites w [in, out] with normal numbers of init_std; `parameter` keeps those of one seed
/// apart.
template <Scalar T>
void init_weights(Out<T, 2> w, Init init, std::uint64_t seed, std::uint32_t parameter) {
  require_countable("init_weights", "w", w);
  init_normal<T>(w, init_std(init, w.extent(0), w.extent(1)), seed, parameter);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_options.hpp
// What a MultiHeadAttention is, and what one call of it is asked for.

namespace headwise::inline v0_1 {

/// The shape of a module. Widths of 0 take the default that stands beside them.
struct MultiHeadAttentionOptions {
  Index d_model = 0;        // D, width of queries and output
  Index num_heads = 1;      // H
  Index num_kv_heads = 0;   // G, divides H; H: 1 is multi-query, between is grouped-query
  Index d_head = 0;         // d; D / H, which must divide
  Index d_value = 0;        // dv; d
  Index kdim = 0;           // width of keys' input; D
  Index vdim = 0;           // width of values' input; D
  bool q_bias = false;      // b_Q [H d]
  bool k_bias = false;      // b_K [G d]
  bool v_bias = false;      // b_V [G dv]
  bool o_bias = true;       // b_O [D]
  bool layer_norm = false;  // of the query input, and with self-attention of keys and values too
  bool layer_norm_affine = true;     // gamma and beta [D]
  double layer_norm_epsilon = 1e-5;  // > 0
  Init init = Init::xavier_normal;   // the scale of the weights at the start
  std::uint64_t seed = 0;            // of the weights at the start

  /// All of them with every default filled in. Throws ArgumentError for what makes no module.
  MultiHeadAttentionOptions resolved() const {
    MultiHeadAttentionOptions full = *this;
    const auto name = "MultiHeadAttention";
    const auto require_width = [&](const char* option, Index width, Index least) {
      constexpr Index widest = Index{1} << 30;  // products of two widths can still be counted
      require(width >= least && width <= widest, name, [&] {
        return std::string(option) + " is " + std::to_string(width) + ", expected " +
               std::to_string(least) + " to 2^30";
      });
    };
    require_width("d_model", d_model, 1);
    require_width("num_heads", num_heads, 1);
    require_width("num_kv_heads", num_kv_heads, 0);
    require_width("d_head", d_head, 0);
    require_width("d_value", d_value, 0);
    require_width("kdim", kdim, 0);
    require_width("vdim", vdim, 0);
    if (d_head == 0) {
      require(d_model % num_heads == 0, name,
              "num_heads is " + std::to_string(num_heads) + ", expected a divisor of d_model " +
                  std::to_string(d_model) + " (or give d_head)");
      full.d_head = d_model / num_heads;
    }
    if (num_kv_heads == 0) full.num_kv_heads = num_heads;
    require(num_heads % full.num_kv_heads == 0, name,
            "num_kv_heads is " + std::to_string(num_kv_heads) +
                ", expected a divisor of num_heads " + std::to_string(num_heads));
    if (d_value == 0) full.d_value = full.d_head;
    if (kdim == 0) full.kdim = d_model;
    if (vdim == 0) full.vdim = d_model;
    require(is_finite_option(layer_norm_epsilon) && layer_norm_epsilon > 0, name, [&] {
      return "layer_norm_epsilon is " + std::to_string(layer_norm_epsilon) +
             ", expected a finite number above 0";
    });
    require_width("num_heads times d_head", num_heads * full.d_head, 1);
    require_width("num_heads times d_value", num_heads * full.d_value, 1);
    return full;
  }

  // Of resolved options:
  Index q_width() const { return num_heads * d_head; }         // H d
  Index k_width() const { return num_kv_heads * d_head; }      // G d
  Index v_width() const { return num_kv_heads * d_value; }     // G dv
  Index context_width() const { return num_heads * d_value; }  // H dv
  /// Whether what one of them left in a cache fits the other. Of resolved options.
  bool same_shape(const MultiHeadAttentionOptions& other) const {
    return d_model == other.d_model && num_heads == other.num_heads &&
           num_kv_heads == other.num_kv_heads && d_head == other.d_head &&
           d_value == other.d_value && kdim == other.kdim && vdim == other.vdim &&
           layer_norm == other.layer_norm;
  }
  /// Whether queries, keys and values are projected by one matrix.
  bool fused() const { return kdim == d_model && vdim == d_model; }
};

/// One call. Masks are viewed: they must outlive the call, and its backward too.
template <Scalar T>
struct MultiHeadAttentionCall {
  AttentionMask<T> mask = {};   // none: every query sees every key
  Path path = Path::flash;      // both give the same function
  std::optional<T> scale = {};  // 1 / sqrt(d_head)
  Dropout weight_dropout = {};  // of the attention weights; none: inference
  Dropout output_dropout = {};  // of the output, after its bias

  /// The part of it that concerns attention alone.
  AttentionOptions<T> attention() const { return {mask, scale, weight_dropout}; }
};

}  // namespace headwise::inline v0_1

// headwise/nn/cost.hpp
// The cost of a MultiHeadAttention's call, for the formulas of analysis/.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The shape of a call with L queries; S keys where they are separate, none with self-attention.
/// The key lengths of the call's mask are viewed. Throws ArgumentError for options that make no
/// module.
template <Scalar T>
AttentionShape attention_shape(const MultiHeadAttentionOptions& options,
                               const MultiHeadAttentionCall<T>& call, Index batch_size,
                               Index seq_len, std::optional<Index> key_len = {}) {
  const MultiHeadAttentionOptions o = options.resolved();
  AttentionShape shape;
  shape.batch_size = batch_size;
  shape.seq_len = seq_len;
  shape.key_len = key_len;
  shape.d_model = o.d_model;
  shape.num_heads = o.num_heads;
  shape.num_kv_heads = o.num_kv_heads;
  shape.d_head = o.d_head;
  shape.d_value = o.d_value;
  shape.kdim = o.kdim;
  shape.vdim = o.vdim;
  shape.causal = call.mask.is_causal();
  shape.window = call.mask.window();
  shape.key_lengths = call.mask.key_lengths();
  shape.mask_biases = static_cast<Index>(call.mask.biases().size());
  shape.q_bias = o.q_bias;
  shape.k_bias = o.k_bias;
  shape.v_bias = o.v_bias;
  shape.o_bias = o.o_bias;
  shape.layer_norm = o.layer_norm;
  shape.layer_norm_affine = o.layer_norm_affine;
  shape.weight_dropout = call.weight_dropout.active();
  shape.output_dropout = call.output_dropout.active();
  return shape;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/embedding.hpp
// A table of token vectors that owns its weights, and the head that shares them: logits = h
// table^T.

namespace headwise::inline v0_1 {

/// What an Embedding learns; its gradients have the same form.
template <Scalar T>
struct EmbeddingParameters {
  Tensor<T, 2> table;  // [V, D]

  /// f(name, view); `prefix` goes in front of the name. The view is writable where this is not
  /// const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    f(prefix + "table", as_view(table));
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    f(prefix + "table", as_view(table));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// logits = h table^T: the output head of a model whose embedding has this table.
///
/// h       [N, D]   in
/// table   [V, D]   in
/// logits  [N, V]   out; must not overlap the inputs
///
/// Works and throws as linear_forward does with w = table^T: 2 N D V FLOPs, no copy of the table.
/// Source: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017, arXiv
/// 1608.05859.
template <Scalar T>
void tied_head_forward(In<T, 2> h, In<std::type_identity_t<T>, 2> table,
                       Out<std::type_identity_t<T>, 2> logits, const Context& context = {}) {
  constexpr std::string_view function = "tied_head_forward";
  require_countable(function, "h", h);
  require_shape(function, "table", table, Shape{table.extent(0), h.extent(1)}, "columns of h");
  require_shape(function, "logits", logits, Shape{h.extent(0), table.extent(0)},
                "rows of h, rows of table");
  require_apart(function, {"logits", logits}, {{"h", h}, {"table", table}});
  linear_forward(h, transpose(table, 0, 1), {}, logits, context);
}

/// The gradients of tied_head_forward.
///
/// d_logits  [N, V]   in
/// h         [N, D]   in; as in forward
/// table     [V, D]   in; as in forward
/// dh        [N, D]   out: d_logits table; {} for none
/// dtable    [V, D]   added to: d_logits^T h, to which embedding_backward adds too; {} for none
///
/// A row of h whose d_logits are 0 adds nothing to dtable, even if it holds NaN or infinity.
/// Outputs must not overlap the inputs or each other. Work    2 N D V FLOPs for each of dh and
/// dtable. Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void tied_head_backward(In<T, 2> d_logits, In<std::type_identity_t<T>, 2> h,
                        In<std::type_identity_t<T>, 2> table, Out<std::type_identity_t<T>, 2> dh,
                        InOut<std::type_identity_t<T>, 2> dtable, const Context& context = {}) {
  constexpr std::string_view function = "tied_head_backward";
  const Index N = h.extent(0), D = h.extent(1), V = table.extent(0);
  require_countable(function, "h", h);
  require_shape(function, "table", table, Shape{V, D}, "columns of h");
  require_shape(function, "d_logits", d_logits, Shape{N, V}, "rows of h, rows of table");
  if (!dh.absent()) require_shape(function, "dh", dh, Shape{N, D}, "the shape of h");
  if (!dtable.absent())
    require_shape(function, "dtable", dtable, Shape{V, D}, "the shape of table");
  require_apart(function, {"dh", dh}, {{"d_logits", d_logits}, {"h", h}, {"table", table}});
  require_apart(function, {"dtable", dtable},
                {{"d_logits", d_logits}, {"h", h}, {"table", table}, {"dh", dh}});

  // d_logits^T h rather than its transpose: rows of dtable are written as they lie.
  const bool wants_dtable = dtable.size() != 0 && N != 0;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::Extents of_dtable{V, D, N};
  Tensor<T, 2> cleared;
  In<T, 2> learned = h;
  if (wants_dtable) learned = detail::without_idle_rows<T>(run, h, d_logits, cleared, context);
  Workspace<T> workspace(wants_dtable ? context.executor.concurrency() : 0,
                         wants_dtable ? run.gemm_scratch(of_dtable) : 0, context.memory);
  if (dh.size() != 0) linear_forward<T>(d_logits, table, {}, dh, context);
  if (!wants_dtable) return;
  detail::run_gemm<T>(run, context, workspace, kernels::matrix(d_logits).transposed(),
                      kernels::matrix(learned), kernels::matrix(Out<T, 2>(dtable)), of_dtable,
                      {.accumulate = true});
  context.count_flops(std::int64_t{2} * N * D * V, run.executed_gemm_flops(of_dtable));
}

/// y_n = table_{tokens_n}. Const calls may run at the same time.
template <Scalar T>
class Embedding {
 public:
  /// What forward leaves for backward: a copy of the tokens, which are small beside all else.
  struct Cache {
    Tensor<std::int64_t, 1> tokens;  // [N]
    bool filled = false;             // whether forward has been called with it
  };

  /// A table of normal numbers of this standard deviation. Throws ArgumentError for a negative
  /// extent or a deviation that is none.
  Embedding(Index vocabulary, Index width, double std_deviation = 0.02, std::uint64_t seed = 0) {
    require(vocabulary >= 0, "Embedding",
            "vocabulary is " + std::to_string(vocabulary) + ", expected >= 0");
    require(width >= 0, "Embedding", "width is " + std::to_string(width) + ", expected >= 0");
    parameters_.table = Tensor<T, 2>({vocabulary, width});
    init_normal<T>(parameters_.table, std_deviation, seed, 0);
  }

  /// y [N, D] for tokens [N]: inference. Throws and works as embedding_forward does.
  template <TokenId Id>
  Tensor<T, 2> forward(In<Id, 1> tokens, const Context& context = {}) const {
    require_countable("Embedding::forward", "tokens", tokens);
    auto y = Tensor<T, 2>::uninitialized({tokens.extent(0), parameters_.table.extent(1)},
                                         context.memory);
    embedding_forward(tokens, In<T, 2>(parameters_.table), y, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  template <TokenId Id>
  Tensor<T, 2> forward(In<Id, 1> tokens, Cache& cache, const Context& context = {}) const {
    Tensor<T, 2> y = forward(tokens, context);
    auto kept = Tensor<std::int64_t, 1>::uninitialized(tokens.shape(), context.memory);
    for (Index n = 0; n < kept.size(); ++n) kept(n) = tokens(n);
    cache = {std::move(kept), true};
    return y;
  }

  /// Adds the gradient of the table to `gradients`, for dy [N, D].
  ///
  /// Throws ArgumentError for an empty cache or one of a larger table, ShapeError; nothing is
  /// changed then.
  void backward(In<T, 2> dy, const Cache& cache, EmbeddingParameters<T>& gradients,
                const Context& context = {}) const {
    constexpr std::string_view function = "Embedding::backward";
    require(cache.filled, function, "the cache is empty: pass it to forward first");
    require_shape(function, "dy", dy, Shape{cache.tokens.extent(0), parameters_.table.extent(1)},
                  "the output");
    require_shape(function, "gradients.table", gradients.table, parameters_.table.shape(),
                  "zero_gradients()");
    embedding_backward(dy, In<std::int64_t, 1>(cache.tokens), gradients.table, context);
  }

  /// Logits [N, V] for h [N, D] by the same table: tied_head_forward.
  Tensor<T, 2> logits(In<T, 2> h, const Context& context = {}) const {
    require_shape("Embedding::logits", "h", h, Shape{h.extent(0), parameters_.table.extent(1)},
                  "the width of the table");
    auto result =
        Tensor<T, 2>::uninitialized({h.extent(0), parameters_.table.extent(0)}, context.memory);
    tied_head_forward(h, parameters_.table, result, context);
    return result;
  }
  /// dh [N, D] for d_logits [N, V] and the h of `logits`; the table's gradient is added to
  /// `gradients`. Throws ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> logits_backward(In<T, 2> d_logits, In<T, 2> h, EmbeddingParameters<T>& gradients,
                               const Context& context = {}) const {
    constexpr std::string_view function = "Embedding::logits_backward";
    require_shape(function, "h", h, Shape{h.extent(0), parameters_.table.extent(1)},
                  "the width of the table");
    require_shape(function, "gradients.table", gradients.table, parameters_.table.shape(),
                  "zero_gradients()");
    auto dh = Tensor<T, 2>::uninitialized(h.shape(), context.memory);
    tied_head_backward(d_logits, h, parameters_.table, dh, gradients.table, context);
    return dh;
  }

  /// Gradients of the right shape, all 0.
  EmbeddingParameters<T> zero_gradients() const {
    EmbeddingParameters<T> gradients;
    gradients.table = Tensor<T, 2>(parameters_.table.shape());
    return gradients;
  }

  /// The table, to be read and written.
  EmbeddingParameters<T>& parameters() { return parameters_; }
  /// The table.
  const EmbeddingParameters<T>& parameters() const { return parameters_; }

 private:
  EmbeddingParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/feed_forward_parameters.hpp
// What a FeedForward is, what one call of it is asked for, what it learns and what forward leaves.

namespace headwise::inline v0_1 {

/// The shape of a module.
struct FeedForwardOptions {
  Index d_model = 0;                         // D, width of input and output
  Index d_hidden = 0;                        // F, width in between; 4 D
  Activation activation = Activation::gelu;  // f
  bool gated = false;                        // f(gate) up; with silu: SwiGLU
  bool bias = true;                          // of all products
  Init init = Init::xavier_normal;           // the scale of the weights at the start
  std::uint64_t seed = 0;                    // of the weights at the start

  /// All of them with every default filled in. Throws ArgumentError for what makes no module.
  FeedForwardOptions resolved() const {
    FeedForwardOptions full = *this;
    constexpr Index widest = Index{1} << 30;  // products of two widths can still be counted
    require(d_model >= 1 && d_model <= widest, "FeedForward",
            [&] { return "d_model is " + std::to_string(d_model) + ", expected 1 to 2^30"; });
    if (d_hidden == 0) full.d_hidden = 4 * d_model;
    require(full.d_hidden >= 1 && full.d_hidden <= widest, "FeedForward", [&] {
      return "d_hidden is " + std::to_string(full.d_hidden) + ", expected 1 to 2^30 (0: 4 d_model)";
    });
    return full;
  }
  /// Columns of the first product: F, or 2 F where they are gate | up. Of resolved options.
  Index in_width() const { return gated ? 2 * d_hidden : d_hidden; }
  /// Whether what one of them left in a cache fits the other. Of resolved options.
  bool same_shape(const FeedForwardOptions& other) const {
    return d_model == other.d_model && d_hidden == other.d_hidden &&
           activation == other.activation && gated == other.gated;
  }
};

/// One call. Give each dropout a seed of its own.
struct FeedForwardCall {
  Dropout hidden_dropout = {};  // of what the second product reads; none: inference
  Dropout output_dropout = {};  // of the output, after its bias
};

/// Weights are [in, out]; its gradients have the same form.
template <Scalar T>
struct FeedForwardParameters {
  Tensor<T, 2> w_in;   // [D, F], or [D, 2 F]: columns gate | up
  Tensor<T, 1> b_in;   // [F], or [2 F]; or absent
  Tensor<T, 2> w_out;  // [F, D]
  Tensor<T, 1> b_out;  // [D], or absent
  bool gated = false;  // whether w_in and b_in are gate | up

  FeedForwardParameters() = default;
  /// All 0. The options are resolved ones.
  explicit FeedForwardParameters(const FeedForwardOptions& o, std::pmr::memory_resource* memory =
                                                                  std::pmr::get_default_resource())
      : w_in({o.d_model, o.in_width()}, memory),
        w_out({o.d_hidden, o.d_model}, memory),
        gated(o.gated) {
    if (!o.bias) return;
    b_in = Tensor<T, 1>({o.in_width()}, memory);
    b_out = Tensor<T, 1>({o.d_model}, memory);
  }

  /// f(name, view) for each that is there: W_gate, W_up, W_down, b_gate, b_up, b_down behind
  /// `prefix`, those of a gate only where there is one. Views are writable where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

  /// Everything to 0, as of gradients between two steps.
  void zero() {
    for_each([](const std::string&, auto view) { fill(view, T(0)); });
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    const Index half = self.w_out.extent(0);
    if (self.gated) f(prefix + "W_gate", slice(self.w_in, 1, 0, half));
    f(prefix + "W_up", self.gated ? slice(self.w_in, 1, half, half) : as_view(self.w_in));
    f(prefix + "W_down", as_view(self.w_out));
    if (self.b_in.absent()) return;
    if (self.gated) f(prefix + "b_gate", slice(self.b_in, 0, 0, half));
    f(prefix + "b_up", self.gated ? slice(self.b_in, 0, half, half) : as_view(self.b_in));
    f(prefix + "b_down", as_view(self.b_out));
  }
};

/// What a forward call leaves for its backward, owned by the caller. It views x, which must outlive
/// the backward call.
template <Scalar T>
struct FeedForwardCache {
  In<T, 2> x;                 // [N, D]
  Tensor<T, 2> hidden;        // [N, F], or [N, 2 F]: gate | up
  Tensor<T, 2> activated;     // [N, F]; after its dropout
  FeedForwardOptions module;  // of the module that filled it
  FeedForwardCall call;       // what forward was asked for
  bool filled = false;        // whether forward has been called with it
};

}  // namespace headwise::inline v0_1

// headwise/nn/feed_forward_steps.hpp
// The steps of a FeedForward, forward and backward.
//
//   1 linear       h = x W_in + b_in        [N, F], or [N, 2 F]: gate | up
//   2 activation   a = f(h), or f(gate) up  [N, F]
//   3 dropout      of a, optional
//   4 linear       y = a W_out + b_out      [N, D]
//   5 dropout      of y, optional
//
// Backward walks the same list up.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// gate | up of [N, 2 F]; up is absent where there is one half alone.
template <class View>
struct GateAndUp {
  View gate, up;  // [N, F]

  template <class X>
  GateAndUp(X& hidden, const FeedForwardOptions& o)
      : gate(slice(hidden, 1, 0, o.d_hidden)),
        up(o.gated ? View(slice(hidden, 1, o.d_hidden, o.d_hidden)) : View()) {}
};

/// Fills the cache. The shapes are its caller's to check.
template <class T>
void feed_forward_forward(const FeedForwardOptions& o, const FeedForwardParameters<T>& p,
                          In<T, 2> x, FeedForwardCache<T>& cache, Out<T, 2> y,
                          const Context& context) {
  const Index N = x.extent(0);
  cache.x = x;
  cache.module = o;
  // 1 linear
  cache.hidden = Tensor<T, 2>::uninitialized({N, o.in_width()}, context.memory);
  linear_forward(x, p.w_in, p.b_in, cache.hidden, context);
  // 2 activation
  cache.activated = Tensor<T, 2>::uninitialized({N, o.d_hidden}, context.memory);
  const GateAndUp<In<T, 2>> h(std::as_const(cache.hidden), o);
  if (N != 0) activate_rows<T>(o.activation, h.gate, h.up, cache.activated, context);
  // 3 dropout
  if (cache.call.hidden_dropout.active()) {
    dropout_forward(In<T, 2>(cache.activated), cache.call.hidden_dropout, cache.activated, context);
  }
  // 4 linear
  linear_forward(In<T, 2>(cache.activated), p.w_out, p.b_out, y, context);
  // 5 dropout
  if (cache.call.output_dropout.active()) {
    dropout_forward(In<T, 2>(y), cache.call.output_dropout, y, context);
  }
  cache.filled = true;
}

/// Throws for a cache that this module did not fill, and for gradients of another.
template <class T>
void require_feed_forward_cache(std::string_view function, const FeedForwardOptions& o,
                                const FeedForwardCache<T>& cache) {
  require(cache.filled, function, "the cache is empty: pass it to forward first");
  require(cache.module.same_shape(o), function,
          "the cache is of a module of another shape, expected one that this module filled");
  const Index N = cache.x.extent(0);
  const auto whence = "what forward left: a cache that was moved from is empty";
  require_shape(function, "cache.hidden", cache.hidden, Shape{N, o.in_width()}, whence);
  require_shape(function, "cache.activated", cache.activated, Shape{N, o.d_hidden}, whence);
}

/// Throws ShapeError unless every gradient has the shape of its parameter.
template <class T>
void require_feed_forward_gradients(std::string_view function, const FeedForwardParameters<T>& p,
                                    const FeedForwardParameters<T>& gradients) {
  const auto check = [&](const char* name, const auto& mine, const auto& theirs) {
    require_shape(function, name, mine, theirs.shape(), "zero_gradients()");
  };
  check("gradients.w_in", gradients.w_in, p.w_in);
  check("gradients.b_in", gradients.b_in, p.b_in);
  check("gradients.w_out", gradients.w_out, p.w_out);
  check("gradients.b_out", gradients.b_out, p.b_out);
}

/// Steps 5 to 1 up to dx and, when nothing can fail any more, the gradients of the parameters.
template <class T>
class FeedForwardBackward {
 public:
  /// dy [N, D] and the cache have to stay. Writes dx [N, D]. Throws std::bad_alloc.
  FeedForwardBackward(const FeedForwardOptions& o, const FeedForwardParameters<T>& p, In<T, 2> dy,
                      const FeedForwardCache<T>& cache, Out<T, 2> dx, const Context& context)
      : d_y_(dy) {
    const Index N = cache.x.extent(0);
    // 5 dropout
    if (cache.call.output_dropout.active()) {
      dropped_ = Tensor<T, 2>::uninitialized(dy.shape(), context.memory);
      dropout_backward(dy, cache.call.output_dropout, dropped_, context);
      d_y_ = dropped_;
    }
    // 4 linear
    auto d_activated = Tensor<T, 2>::uninitialized({N, o.d_hidden}, context.memory);
    linear_backward(d_y_, cache.activated, p.w_out, d_activated, {}, {}, context);
    // 3 dropout
    if (cache.call.hidden_dropout.active()) {
      dropout_backward(In<T, 2>(d_activated), cache.call.hidden_dropout, d_activated, context);
    }
    // 2 activation; in place where there is no gate
    if (o.gated) d_hidden_ = Tensor<T, 2>::uninitialized({N, o.in_width()}, context.memory);
    const GateAndUp<In<T, 2>> h(cache.hidden, o);
    const GateAndUp<Out<T, 2>> d_h(o.gated ? d_hidden_ : d_activated, o);
    if (N != 0) {
      activate_rows_backward<T>(o.activation, d_activated, h.gate, h.up, d_h.gate, d_h.up, context);
    }
    if (!o.gated) d_hidden_ = std::move(d_activated);
    // 1 linear
    linear_backward(In<T, 2>(d_hidden_), cache.x, p.w_in, dx, {}, {}, context);
    // The gradients of the parameters of 4 linear and 1 linear
    of_w_out_.emplace(d_y_, cache.activated, context);
    of_w_in_.emplace(d_hidden_, cache.x, context);
    workspace_.emplace(context.executor.concurrency(),
                       std::max<Index>(of_w_out_->scratch(), of_w_in_->scratch()), context.memory);
  }
  FeedForwardBackward(const FeedForwardBackward&) = delete;
  FeedForwardBackward& operator=(const FeedForwardBackward&) = delete;

  void add_to(FeedForwardParameters<T>& gradients, const Context& context) {
    of_w_out_->add_to(gradients.w_out, *workspace_, context);
    if (!gradients.b_out.absent()) bias_backward(d_y_, gradients.b_out, context);
    of_w_in_->add_to(gradients.w_in, *workspace_, context);
    if (!gradients.b_in.absent()) bias_backward(In<T, 2>(d_hidden_), gradients.b_in, context);
  }

 private:
  Tensor<T, 2> dropped_;   // [N, D]
  In<T, 2> d_y_;           // [N, D]
  Tensor<T, 2> d_hidden_;  // [N, F], or [N, 2 F]
  std::optional<LinearWeightGradient<T>> of_w_out_, of_w_in_;
  std::optional<Workspace<T>> workspace_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/nn/feed_forward.hpp
// The part of a transformer block that looks at each token by itself.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = f(x W_up + b_up) W_down + b_down; gated: (f(x W_gate + b_gate) (x W_up + b_up)) W_down +
/// b_down, its first two products one.
///
/// Parameters are plain data; forward and backward are const and keep what a backward needs in a
/// cache of the caller's. A call that throws leaves cache and gradients as they were.
/// Source: Vaswani et al., 2017, arXiv 1706.03762, section 3.3; gated: Shazeer, 2020, arXiv
/// 2002.05202.
template <Scalar T>
class FeedForward {
 public:
  /// What one call is asked for: dropouts.
  using Call = FeedForwardCall;
  /// What forward leaves for backward.
  using Cache = FeedForwardCache<T>;
  /// What backward adds to.
  using Gradients = FeedForwardParameters<T>;

  /// Weights by options.init and options.seed, biases 0. Throws ArgumentError for options that make
  /// no module.
  explicit FeedForward(const FeedForwardOptions& options)
      : options_(options.resolved()), parameters_(options_) {
    std::uint32_t number = 16;  // apart from an attention of the same seed
    parameters_.for_each([&](const std::string&, auto view) {
      if constexpr (decltype(view)::rank == 2) {
        init_weights<T>(view, options_.init, options_.seed, number++);
      }
    });
  }

  /// y [N, D] for x [N, D]: inference. Throws ShapeError or ArgumentError before anything is
  /// written or counted, and std::bad_alloc.
  Tensor<T, 2> forward(In<T, 2> x, const Call& call = {}, const Context& context = {}) const {
    Cache unused;
    return run(x, call, unused, context);
  }
  /// The same, and what backward needs into the cache, once all has gone well. x must outlive the
  /// backward call.
  Tensor<T, 2> forward(In<T, 2> x, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    Cache fresh;
    Tensor<T, 2> y = run(x, call, fresh, context);
    cache = std::move(fresh);
    return y;
  }
  Tensor<T, 2> forward(const Tensor<T, 2>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// dx [N, D] for dy [N, D]; the parameters' gradients are added to `gradients`.
  ///
  /// Throws ArgumentError for a cache that is empty or of a module of another shape, ShapeError,
  /// std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const {
    constexpr std::string_view function = "FeedForward::backward";
    detail::require_feed_forward_cache(function, options_, cache);
    require_shape(function, "dy", dy, cache.x.shape(), "the output");
    detail::require_feed_forward_gradients(function, parameters_, gradients);
    auto dx = Tensor<T, 2>::uninitialized(cache.x.shape(), context.memory);
    detail::FeedForwardBackward<T>(options_, parameters_, dy, cache, dx, context)
        .add_to(gradients, context);
    return dx;
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const FeedForwardOptions& options() const { return options_; }
  /// The weights, to be read and written.
  FeedForwardParameters<T>& parameters() { return parameters_; }
  /// The weights.
  const FeedForwardParameters<T>& parameters() const { return parameters_; }

 private:
  Tensor<T, 2> run(In<T, 2> x, const Call& call, Cache& cache, const Context& context) const {
    constexpr std::string_view function = "FeedForward::forward";
    require_shape(function, "x", x, Shape{x.extent(0), options_.d_model},
                  [&] { return "d_model " + std::to_string(options_.d_model); });
    require_shape(function, "w_in", In<T, 2>(parameters_.w_in),
                  Shape{options_.d_model, options_.in_width()},
                  "the options: a module that was moved from has none");
    call.hidden_dropout.require_valid(function);
    call.output_dropout.require_valid(function);
    cache.call = call;
    auto y = Tensor<T, 2>::uninitialized({x.extent(0), options_.d_model}, context.memory);
    detail::feed_forward_forward<T>(options_, parameters_, x, cache, y, context);
    return y;
  }

  FeedForwardOptions options_;
  FeedForwardParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_parameters.hpp
// Weights of a MultiHeadAttention, and their gradients: plain tensors, walked by name.

namespace headwise::inline v0_1 {

/// Weights are [in, out]. W_Q, W_K and W_V are the columns Q | K | V of one matrix where their
/// inputs are equally wide, head i in its own d columns; and three matrices where they are not.
template <Scalar T>
struct MultiHeadAttentionParameters {
  Tensor<T, 2> w_qkv;  // [D, H d + G d + G dv]; absent where kdim or vdim differ from D
  Tensor<T, 2> w_q;    // [D, H d]       only where w_qkv is absent
  Tensor<T, 2> w_k;    // [kdim, G d]    only where w_qkv is absent
  Tensor<T, 2> w_v;    // [vdim, G dv]   only where w_qkv is absent
  Tensor<T, 2> w_o;    // [H dv, D]
  Tensor<T, 1> b_q;    // [H d]     each bias absent where it is not asked for
  Tensor<T, 1> b_k;    // [G d]
  Tensor<T, 1> b_v;    // [G dv]
  Tensor<T, 1> b_o;    // [D]
  Tensor<T, 1> gamma;  // [D]
  Tensor<T, 1> beta;   // [D]
  Index q_width = 0, k_width = 0, v_width = 0;  // columns of W_Q, W_K, W_V

  MultiHeadAttentionParameters() = default;

  /// All 0. The options are resolved ones.
  explicit MultiHeadAttentionParameters(
      const MultiHeadAttentionOptions& o,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : q_width(o.q_width()), k_width(o.k_width()), v_width(o.v_width()) {
    const auto matrix = [&](Index in, Index out) { return Tensor<T, 2>({in, out}, memory); };
    const auto vector = [&](Index width) { return Tensor<T, 1>({width}, memory); };
    if (o.fused()) {
      w_qkv = matrix(o.d_model, q_width + k_width + v_width);
    } else {
      w_q = matrix(o.d_model, q_width);
      w_k = matrix(o.kdim, k_width);
      w_v = matrix(o.vdim, v_width);
    }
    w_o = matrix(o.context_width(), o.d_model);
    if (o.q_bias) b_q = vector(q_width);
    if (o.k_bias) b_k = vector(k_width);
    if (o.v_bias) b_v = vector(v_width);
    if (o.o_bias) b_o = vector(o.d_model);
    if (o.layer_norm && o.layer_norm_affine) {
      gamma = vector(o.d_model);
      beta = vector(o.d_model);
    }
  }

  /// Whether W_Q, W_K and W_V are columns of w_qkv.
  bool fused() const { return w_qkv.size() != 0; }

  /// Each projection by itself, [D, H d], [kdim, G d] and [vdim, G dv]: a view, whichever way it is
  /// stored.
  ///@{
  TensorView<T, 2> W_Q() { return fused() ? slice(w_qkv, 1, 0, q_width) : as_view(w_q); }
  TensorView<T, 2> W_K() { return fused() ? slice(w_qkv, 1, q_width, k_width) : as_view(w_k); }
  TensorView<T, 2> W_V() {
    return fused() ? slice(w_qkv, 1, q_width + k_width, v_width) : as_view(w_v);
  }
  In<T, 2> W_Q() const { return fused() ? slice(w_qkv, 1, 0, q_width) : as_view(w_q); }
  In<T, 2> W_K() const { return fused() ? slice(w_qkv, 1, q_width, k_width) : as_view(w_k); }
  In<T, 2> W_V() const {
    return fused() ? slice(w_qkv, 1, q_width + k_width, v_width) : as_view(w_v);
  }
  ///@}

  /// f(name, view) for each parameter that is there; names W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O,
  /// gamma, beta behind `prefix`. Views are writable where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    f(prefix + "W_Q", self.W_Q());
    f(prefix + "W_K", self.W_K());
    f(prefix + "W_V", self.W_V());
    f(prefix + "W_O", as_view(self.w_o));
    if (!self.b_q.absent()) f(prefix + "b_Q", as_view(self.b_q));
    if (!self.b_k.absent()) f(prefix + "b_K", as_view(self.b_k));
    if (!self.b_v.absent()) f(prefix + "b_V", as_view(self.b_v));
    if (!self.b_o.absent()) f(prefix + "b_O", as_view(self.b_o));
    if (!self.gamma.absent()) f(prefix + "gamma", as_view(self.gamma));
    if (!self.beta.absent()) f(prefix + "beta", as_view(self.beta));
  }
};

/// The gradients, in tensors of the parameters' shapes. A backward call adds to them.
template <Scalar T>
struct MultiHeadAttentionGradients : MultiHeadAttentionParameters<T> {
  using MultiHeadAttentionParameters<T>::MultiHeadAttentionParameters;

  /// Each gradient by its textbook name, in the shape of its parameter; absent where that is.
  ///@{
  In<T, 2> grad_W_Q() const { return this->W_Q(); }
  In<T, 2> grad_W_K() const { return this->W_K(); }
  In<T, 2> grad_W_V() const { return this->W_V(); }
  In<T, 2> grad_W_O() const { return this->w_o; }
  In<T, 1> grad_b_Q() const { return this->b_q; }
  In<T, 1> grad_b_K() const { return this->b_k; }
  In<T, 1> grad_b_V() const { return this->b_v; }
  In<T, 1> grad_b_O() const { return this->b_o; }
  In<T, 1> grad_gamma() const { return this->gamma; }
  In<T, 1> grad_beta() const { return this->beta; }
  ///@}

  /// f("grad_W_Q", view) and so on.
  template <class F>
  void for_each(F&& f) {
    MultiHeadAttentionParameters<T>::for_each(f, "grad_");
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f) const {
    MultiHeadAttentionParameters<T>::for_each(f, "grad_");
  }

  /// Everything back to 0.
  void zero() {
    for_each([](const std::string&, auto view) { fill(view, T(0)); });
  }
  /// Throws ShapeError unless every gradient has the shape of its parameter in `expected`.
  void require_shapes_of(const MultiHeadAttentionParameters<T>& expected,
                         std::string_view function) const {
    const auto check = [&](const char* name, const auto& mine, const auto& theirs) {
      require_shape(function, std::string("gradients.") + name, mine, theirs.shape(),
                    "zero_gradients()");
    };
    for_each_storage(*this, expected, check);
    // Of modules whose projections differ, what is fused may be alike.
    check("W_Q", this->W_Q(), expected.W_Q());
    check("W_K", this->W_K(), expected.W_K());
    check("W_V", this->W_V(), expected.W_V());
  }
  /// this += other. Throws ShapeError, before anything is added, unless all shapes agree.
  void add(const MultiHeadAttentionGradients& other) {
    require_shapes_of(other, "MultiHeadAttentionGradients::add");
    for_each_storage(*this, other, [](const char*, auto& mine, const auto& theirs) {
      const Index count = mine.size();
      for (Index n = 0; n < count; ++n) mine.data()[n] = mine.data()[n] + theirs.data()[n];
    });
  }

 private:
  template <class Self, class F>
  static void for_each_storage(Self& self, const MultiHeadAttentionParameters<T>& other, F&& f) {
    f("w_qkv", self.w_qkv, other.w_qkv);
    f("w_q", self.w_q, other.w_q);
    f("w_k", self.w_k, other.w_k);
    f("w_v", self.w_v, other.w_v);
    f("w_o", self.w_o, other.w_o);
    f("b_q", self.b_q, other.b_q);
    f("b_k", self.b_k, other.b_k);
    f("b_v", self.b_v, other.b_v);
    f("b_o", self.b_o, other.b_o);
    f("gamma", self.gamma, other.gamma);
    f("beta", self.beta, other.beta);
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// f(name, parameter, gradient) for each parameter: what an optimiser walks.
///   for_each_with_gradient(p, g, [](auto& name, auto w, auto dw) { w = w - 0.1 dw, elementwise });
/// (The two may differ in scalar type: differences are taken in a wider one.)
/// Throws ShapeError, before the first f, unless each parameter has a gradient of its shape.
template <Scalar T, Scalar U, class F>
void for_each_with_gradient(MultiHeadAttentionParameters<T>& parameters,
                            const MultiHeadAttentionGradients<U>& gradients, F&& f) {
  const auto for_each_pair = [&](auto&& g) {
    parameters.for_each([&](const std::string& name, auto parameter) {
      constexpr int rank = decltype(parameter)::rank;
      In<U, rank> found;
      gradients.for_each([&](const std::string& gradient_name, auto gradient) {
        if constexpr (rank == decltype(gradient)::rank) {
          if (gradient_name == "grad_" + name) found = gradient;
        }
      });
      g(name, parameter, found);
    });
  };
  for_each_pair([](const std::string& name, auto parameter, auto gradient) {
    require_shape("for_each_with_gradient", "grad_" + name, gradient, parameter.shape(),
                  "the shape of " + name);
  });
  for_each_pair(f);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_cache.hpp
// What a forward call of MultiHeadAttention leaves for its backward, owned by the caller.

namespace headwise::inline v0_1 {

/// Fill it by forward, hand it to backward; as many as there are forward calls pending. The inputs
/// and the masks are viewed, not copied: they must outlive the backward call.
template <Scalar T>
struct MultiHeadAttentionCache {
  /// Not filled.
  MultiHeadAttentionCache() = default;
  /// Moved, not copied: a view of a copy of an input would stay with the original.
  ///@{
  MultiHeadAttentionCache(MultiHeadAttentionCache&&) noexcept = default;
  MultiHeadAttentionCache& operator=(MultiHeadAttentionCache&&) noexcept = default;
  ///@}

  bool filled = false;               // whether forward has been called with it
  bool self_attention = false;       // keys and values come from the query input
  MultiHeadAttentionOptions module;  // of the module that filled it
  MultiHeadAttentionCall<T> call;    // what forward was asked for: masks and dropout of backward

  In<T, 3> query;                                 // [B, L, D]
  In<T, 3> key;                                   // [B, S, kdim]
  In<T, 3> value;                                 // [B, S, vdim]
  Tensor<T, 3> query_copy, key_copy, value_copy;  // where rows lie at no common distance

  Tensor<T, 3> x_norm;   // [B, L, D]                 with layer_norm
  Tensor<T, 1> mean;     // [B L]                     with layer_norm
  Tensor<T, 1> rstd;     // [B L]                     with layer_norm
  Tensor<T, 3> qkv;      // [B, L, H d + G d + G dv]  self-attention
  Tensor<T, 3> q;        // [B, L, H d]               cross-attention
  Tensor<T, 3> k;        // [B, S, G d]               cross-attention
  Tensor<T, 3> v;        // [B, S, G dv]              cross-attention
  Tensor<T, 3> context;  // [B, L, H dv]
  Tensor<T, 4> weights;  // [B, H, L, S]              Path::materialized; before dropout
  Tensor<T, 4> lse;      // [B, H, L, 2]              Path::flash

  /// What the projections read: the normalised input, or the input.
  In<T, 3> projected_query() const { return x_norm.absent() ? query : In<T, 3>(x_norm); }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// The mean over the heads of weights [B, H, L, S]: [B, L, S], 0 without heads. Throws
/// std::bad_alloc.
template <Scalar T>
Tensor<T, 3> average_heads(In<T, 4> weights,
                           std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  require_countable("average_heads", "weights", weights);
  const Index B = weights.extent(0), H = weights.extent(1);
  Tensor<T, 3> mean({B, weights.extent(2), weights.extent(3)}, memory);
  for_each_index(mean.shape(), [&](const Shape<3>& at) {
    T sum = T(0);
    for (Index h = 0; h < H; ++h) sum = sum + weights(at[0], h, at[1], at[2]);
    mean(at) = H == 0 ? T(0) : sum / T(static_cast<double>(H));
  });
  return mean;
}
/// The same of a tensor that owns its elements.
template <Scalar T>
Tensor<T, 3> average_heads(const Tensor<T, 4>& weights) {
  return average_heads(In<T, 4>(weights));
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The input itself, or a dense copy of it where its rows do not lie at one common distance.
template <class T>
In<T, 3> uniform_rows(In<T, 3> x, Tensor<T, 3>& storage, std::pmr::memory_resource* memory) {
  if (rows_are_uniform(x)) return x;
  storage = contiguous(x, memory);
  return storage;
}

/// The projected queries, keys and values of a cache as heads: views, whichever way it was filled.
template <class T>
struct Heads {
  In<T, 4> q;  // [B, H, L, d]
  In<T, 4> k;  // [B, G, S, d]
  In<T, 4> v;  // [B, G, S, dv]
};

template <class T>
Heads<T> heads_of(const MultiHeadAttentionOptions& o, const MultiHeadAttentionCache<T>& cache) {
  const Index H = o.num_heads, G = o.num_kv_heads;
  if (!cache.self_attention) {
    return {split_heads(cache.q, H), split_heads(cache.k, G), split_heads(cache.v, G)};
  }
  const Index q = o.q_width(), k = o.k_width(), v = o.v_width();
  return {split_heads(slice(cache.qkv, 2, 0, q), H), split_heads(slice(cache.qkv, 2, q, k), G),
          split_heads(slice(cache.qkv, 2, q + k, v), G)};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_trace.hpp
// The tensors of MultiHeadAttention under their textbook names. Called only where a trace is asked
// for: what the fast path never forms (scores, weights, the branches of dx) is formed here.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Scores [B, H, L, S] as softmax reads them: scaled, biased, -infinity where hidden.
template <class T>
Tensor<T, 4> traced_scores(const MultiHeadAttentionCache<T>& cache, const Heads<T>& heads) {
  const auto options = cache.call.attention();
  const auto sizes = require_attention<T>("Trace", heads.q, heads.k, heads.v, options);
  Tensor<T, 4> scores({sizes.B, sizes.H, sizes.L, sizes.S});
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  Tensor<T, 1> packed({run.gemm_scratch({sizes.L, sizes.S, sizes.d})});
  for (Index b = 0; b < sizes.B; ++b) {
    for (Index h = 0; h < sizes.H; ++h) {
      const auto head = attention_head(sizes, heads.q, heads.k, heads.v, options, b, h);
      run.score_head(head, kernels::matrix(Out<T, 4>(scores), b, h), packed.data());
      for (Index i = 0; i < sizes.L; ++i) {
        for (Index j = 0; j < sizes.S; ++j) {
          if (!head.visibility.visible(i, j)) set_negative_infinity(scores(b, h, i, j));
        }
      }
    }
  }
  return scores;
}

/// Steps 1 to 6; `y` is the output before dropout.
template <class T>
void trace_forward(const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<T>& p,
                   const MultiHeadAttentionCache<T>& cache, In<T, 3> y, Trace& trace) {
  const Heads<T> heads = heads_of(o, cache);
  trace.record("X", cache.query);
  trace.record("X_norm", cache.projected_query());
  trace.record("W_Q", p.W_Q());
  trace.record("W_K", p.W_K());
  trace.record("W_V", p.W_V());
  trace.record("W_O", p.w_o);
  if (!p.b_o.absent()) trace.record("b_O", p.b_o);
  trace.record("Q", heads.q);
  trace.record("K", heads.k);
  trace.record("V", heads.v);
  trace.record("A", traced_scores(cache, heads));
  if (cache.weights.absent()) {
    auto options = cache.call.attention();
    Tensor<T, 4> weights(
        {heads.q.extent(0), heads.q.extent(1), heads.q.extent(2), heads.k.extent(2)});
    Tensor<T, 4> unused(
        {heads.q.extent(0), heads.q.extent(1), heads.q.extent(2), heads.v.extent(3)});
    attention_forward(heads.q, heads.k, heads.v, options, weights, unused);
    trace.record("AS", weights);
  } else {
    trace.record("AS", cache.weights);
  }
  trace.record("AO_heads", split_heads(cache.context, o.num_heads));
  trace.record("AO_cat", cache.context);
  Tensor<T, 3> before_bias(y.shape());
  linear_forward(In<T, 2>(merge_rows(cache.context)), p.w_o, {}, merge_rows(before_bias));
  trace.record("AO_lin", before_bias);
  trace.record("AO_bias", y);
}

/// What one projection brings to the gradient of its input: dq W^T.
template <class T>
void trace_branch(std::string_view name, In<T, 3> d_projection, In<T, 2> w, Trace& trace) {
  Tensor<T, 3> branch({d_projection.extent(0), d_projection.extent(1), w.extent(0)});
  const Tensor<T, 2> x({branch.extent(0) * branch.extent(1), w.extent(0)});
  linear_backward(In<T, 2>(merge_rows(d_projection)), x, w, merge_rows(branch), {}, {});
  trace.record(name, branch);
}

/// Gradients from the output down to the heads.
template <class T>
void trace_backward_heads(In<T, 3> dy, In<T, 4> d_heads, In<T, 4> dq, In<T, 4> dk, In<T, 4> dv,
                          Trace& trace) {
  trace.record("dA_out", dy);
  trace.record("dAO_heads", d_heads);
  trace.record("dQ", dq);
  trace.record("dK", dk);
  trace.record("dK^T", transpose(dk, 2, 3));
  trace.record("dV", dv);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_backward.hpp
// The backward pass of MultiHeadAttention: the forward's steps, walked down.

namespace headwise::inline v0_1 {

/// The gradients of the inputs of cross-attention.
template <Scalar T>
struct CrossAttentionGradients {
  Tensor<T, 3> query;  // [B, L, D]
  Tensor<T, 3> key;    // [B, S, kdim]
  Tensor<T, 3> value;  // [B, S, vdim]
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Gradients of the projections: one tensor with self-attention, three without.
template <class T>
struct ProjectionGradients {
  Tensor<T, 3> qkv;      // [B, L, H d + G d + G dv]
  Tensor<T, 3> q, k, v;  // [B, L, H d], [B, S, G d], [B, S, G dv]
};

template <class T>
ProjectionGradients<T> projection_gradients(const MultiHeadAttentionCache<T>& cache,
                                            const Context& context) {
  ProjectionGradients<T> d;
  const auto like = [&](const Tensor<T, 3>& x) {
    return Tensor<T, 3>::uninitialized(x.shape(), context.memory);
  };
  if (cache.self_attention) {
    d.qkv = like(cache.qkv);
  } else {
    d.q = like(cache.q);
    d.k = like(cache.k);
    d.v = like(cache.v);
  }
  return d;
}

/// Steps 5 to 3: from the gradient of the context to those of the projections.
template <class T>
void backward_heads(const MultiHeadAttentionOptions& o, const MultiHeadAttentionCache<T>& cache,
                    In<T, 3> dy, const Tensor<T, 3>& d_context, ProjectionGradients<T>& d,
                    const Context& context) {
  const auto [q, k, v] = heads_of(o, cache);
  const Index qw = o.q_width(), kw = o.k_width(), vw = o.v_width();
  const bool self = cache.self_attention;
  const auto dq = split_heads(self ? slice(d.qkv, 2, 0, qw) : as_view(d.q), o.num_heads);
  const auto dk = split_heads(self ? slice(d.qkv, 2, qw, kw) : as_view(d.k), o.num_kv_heads);
  const auto dv = split_heads(self ? slice(d.qkv, 2, qw + kw, vw) : as_view(d.v), o.num_kv_heads);
  const In<T, 4> d_heads = split_heads(d_context, o.num_heads);
  const auto options = cache.call.attention();
  if (cache.call.path == Path::materialized) {
    attention_backward(d_heads, {q, k, v}, cache.weights, options, {dq, dk, dv}, context);
  } else {
    flash_attention_backward(d_heads, {q, k, v}, split_heads(cache.context, o.num_heads), cache.lse,
                             options, {dq, dk, dv}, context);
  }
  if (context.trace != nullptr) {
    trace_backward_heads<T>(dy, d_heads, dq, dk, dv, *context.trace);
  }
}

/// Step 2: through the projections, to what they were of.
template <class T>
void backward_projections(const MultiHeadAttentionParameters<T>& p,
                          const MultiHeadAttentionCache<T>& cache, const ProjectionGradients<T>& d,
                          CrossAttentionGradients<T>& inputs, const Context& context) {
  const auto through = [&](const Tensor<T, 3>& of, In<T, 3> x, In<T, 2> w, Tensor<T, 3>& to) {
    linear_backward(In<T, 2>(merge_rows(of)), merge_rows(x), w, merge_rows(to), {}, {}, context);
  };
  // One product sums the three branches: dx = [dq | dk | dv] [W_Q | W_K | W_V]^T.
  if (cache.self_attention) return through(d.qkv, cache.query, p.w_qkv, inputs.query);
  through(d.q, cache.query, p.W_Q(), inputs.query);
  through(d.k, cache.key, p.W_K(), inputs.key);
  through(d.v, cache.value, p.W_V(), inputs.value);
}

/// The gradients of the weights and biases of steps 6 and 2. Made before the first of them is
/// written, so that a call that gets no memory leaves the caller's as they were.
template <class T>
class WeightGradients {
 public:
  /// Throws std::bad_alloc.
  WeightGradients(const MultiHeadAttentionCache<T>& cache, In<T, 3> dy,
                  const ProjectionGradients<T>& d, const Context& context)
      : dy_(merge_rows(dy)), d_(d), self_(cache.self_attention) {
    of_w_o_.emplace(dy_, merge_rows(cache.context), context);
    if (self_) {
      of_w_qkv_.emplace(merge_rows(d.qkv), merge_rows(cache.projected_query()), context);
    } else {
      of_w_q_.emplace(merge_rows(d.q), merge_rows(cache.projected_query()), context);
      of_w_k_.emplace(merge_rows(d.k), merge_rows(cache.key), context);
      of_w_v_.emplace(merge_rows(d.v), merge_rows(cache.value), context);
    }
    Index scratch = 0;
    for (const auto* one : {&of_w_o_, &of_w_qkv_, &of_w_q_, &of_w_k_, &of_w_v_}) {
      if (*one) scratch = std::max<Index>(scratch, (*one)->scratch());
    }
    workspace_.emplace(context.executor.concurrency(), scratch, context.memory);
  }

  void add_to(MultiHeadAttentionGradients<T>& to, const Context& context) {
    const auto bias = [&](In<T, 2> d, Tensor<T, 1>& db) {
      if (!db.absent()) bias_backward(d, db, context);
    };
    of_w_o_->add_to(to.w_o, *workspace_, context);
    bias(dy_, to.b_o);
    if (self_) {
      of_w_qkv_->add_to(to.w_qkv, *workspace_, context);
      const In<T, 2> d_qkv = merge_rows(d_.qkv);
      bias(slice(d_qkv, 1, 0, to.q_width), to.b_q);
      bias(slice(d_qkv, 1, to.q_width, to.k_width), to.b_k);
      bias(slice(d_qkv, 1, to.q_width + to.k_width, to.v_width), to.b_v);
      return;
    }
    of_w_q_->add_to(to.W_Q(), *workspace_, context);
    of_w_k_->add_to(to.W_K(), *workspace_, context);
    of_w_v_->add_to(to.W_V(), *workspace_, context);
    bias(merge_rows(d_.q), to.b_q);
    bias(merge_rows(d_.k), to.b_k);
    bias(merge_rows(d_.v), to.b_v);
  }

 private:
  const In<T, 2> dy_;
  const ProjectionGradients<T>& d_;
  const bool self_;
  std::optional<LinearWeightGradient<T>> of_w_o_, of_w_qkv_, of_w_q_, of_w_k_, of_w_v_;
  std::optional<Workspace<T>> workspace_;
};

template <class T>
void trace_backward_inputs(const MultiHeadAttentionOptions& o,
                           const MultiHeadAttentionParameters<T>& p,
                           const ProjectionGradients<T>& d, bool self, In<T, 3> dx_norm,
                           Trace& trace) {
  const Index qw = o.q_width(), kw = o.k_width(), vw = o.v_width();
  const In<T, 3> dq = self ? In<T, 3>(slice(d.qkv, 2, 0, qw)) : In<T, 3>(d.q);
  const In<T, 3> dk = self ? In<T, 3>(slice(d.qkv, 2, qw, kw)) : In<T, 3>(d.k);
  const In<T, 3> dv = self ? In<T, 3>(slice(d.qkv, 2, qw + kw, vw)) : In<T, 3>(d.v);
  trace_branch("dX_norm,Q", dq, p.W_Q(), trace);
  trace_branch("dX_norm,K", dk, p.W_K(), trace);
  trace_branch("dX_norm,V", dv, p.W_V(), trace);
  trace.record("dX_norm", dx_norm);
}

/// With self-attention the gradient of query alone, the sum over its three uses.
template <class T>
CrossAttentionGradients<T> multi_head_attention_backward(std::string_view function,
                                                         const MultiHeadAttentionOptions& o,
                                                         const MultiHeadAttentionParameters<T>& p,
                                                         In<T, 3> dy_in,
                                                         const MultiHeadAttentionCache<T>& cache,
                                                         MultiHeadAttentionGradients<T>& gradients,
                                                         const Context& context) {
  require_shape(function, "dy", dy_in,
                Shape{cache.query.extent(0), cache.query.extent(1), o.d_model}, "the output");
  const auto like = [&](In<T, 3> x) {
    return Tensor<T, 3>::uninitialized(x.shape(), context.memory);
  };
  gradients.require_shapes_of(p, function);
  CrossAttentionGradients<T> inputs{like(cache.query), {}, {}};
  if (!cache.self_attention) {
    inputs.key = like(cache.key);
    inputs.value = like(cache.value);
  }

  // 7 dropout
  Tensor<T, 3> dy_storage;
  In<T, 3> dy = uniform_rows(dy_in, dy_storage, context.memory);
  if (cache.call.output_dropout.active()) {
    Tensor<T, 3> dropped = like(dy);
    dropout_backward(In<T, 2>(merge_rows(dy)), cache.call.output_dropout, merge_rows(dropped),
                     context);
    dy_storage = std::move(dropped);
    dy = dy_storage;
  }
  // 6 linear
  Tensor<T, 3> d_context = like(cache.context);
  linear_backward(In<T, 2>(merge_rows(dy)), merge_rows(cache.context), p.w_o, merge_rows(d_context),
                  {}, {}, context);
  // 5 merge_heads, 4 attention, 3 split_heads
  ProjectionGradients<T> d = projection_gradients(cache, context);
  backward_heads(o, cache, dy_in, d_context, d, context);
  // 2 linear
  backward_projections(p, cache, d, inputs, context);
  if (context.trace != nullptr) {
    trace_backward_inputs<T>(o, p, d, cache.self_attention, inputs.query, *context.trace);
  }
  // The gradients of the parameters of 6 linear and 2 linear, and
  // 1 layer_norm
  WeightGradients<T> of_weights(cache, dy, d, context);
  const auto finish = [&](Tensor<T, 3>& dx, MultiHeadAttentionGradients<T>& to,
                          const Context& with) {
    if (o.layer_norm) {  // first: it checks what the cache has of it
      layer_norm_backward(In<T, 2>(merge_rows(inputs.query)), merge_rows(cache.query), p.gamma,
                          {cache.mean, cache.rstd}, merge_rows(dx), {to.gamma, to.beta}, with);
    }
    of_weights.add_to(to, with);
  };
  if (context.trace != nullptr) {  // of this call alone, whatever `gradients` held
    Tensor<T, 3> dx = inputs.query;
    MultiHeadAttentionGradients<T> alone(o, context.memory);
    finish(dx, alone, {.executor = context.executor, .memory = context.memory});
    context.trace->record("dX", dx);
    alone.MultiHeadAttentionParameters<T>::for_each(
        [&](const std::string& name, auto view) { context.trace->record(name, view); }, "d");
  }
  finish(inputs.query, gradients, context);
  return inputs;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_forward.hpp
// The forward pass of MultiHeadAttention, step by step.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What a module attends with: x for all three, or inputs of their own.
template <class T>
struct ModuleInputs {
  In<T, 3> query, key, value;
  bool self_attention;
};

/// All rules of a call, before the first step of it is taken and counted.
template <class T>
void require_call(const MultiHeadAttentionOptions& o, const ModuleInputs<T>& inputs,
                  const MultiHeadAttentionCall<T>& call) {
  constexpr std::string_view function = "MultiHeadAttention::forward";
  const auto& [query, key, value, self] = inputs;
  const Index B = query.extent(0), L = query.extent(1), S = key.extent(1);
  require_shape(function, self ? "x" : "query", query, Shape{B, L, o.d_model},
                [&] { return "d_model " + std::to_string(o.d_model); });
  if (self) {
    require(o.fused(), function,
            "kdim or vdim differ from d_model, expected separate keys and values");
  } else {
    require_shape(function, "key", key, Shape{B, S, o.kdim},
                  [&] { return "batch of query, kdim " + std::to_string(o.kdim); });
    require_shape(function, "value", value, Shape{B, S, o.vdim},
                  [&] { return "batch and length of key, vdim " + std::to_string(o.vdim); });
  }
  call.mask.require_fits(function, B, o.num_heads, L, S);
  call.attention().require_in_range(function);
  call.output_dropout.require_valid(function);
}

/// Step 2 of self-attention: one product with the fused matrix. Where only some of q, k and v have
/// a bias, a product for each: the same bits, for a row of y knows only its own column of w.
template <class T>
void project_fused(const MultiHeadAttentionParameters<T>& p, In<T, 2> x, Out<T, 2> qkv,
                   const Context& context) {
  const bool all = !p.b_q.absent() && !p.b_k.absent() && !p.b_v.absent();
  const bool none = p.b_q.absent() && p.b_k.absent() && p.b_v.absent();
  if (all || none) {
    Tensor<T, 1> bias;  // [H d + G d + G dv]
    if (all) {
      bias = Tensor<T, 1>::uninitialized({p.q_width + p.k_width + p.v_width}, context.memory);
      copy(In<T, 1>(p.b_q), slice(bias, 0, 0, p.q_width));
      copy(In<T, 1>(p.b_k), slice(bias, 0, p.q_width, p.k_width));
      copy(In<T, 1>(p.b_v), slice(bias, 0, p.q_width + p.k_width, p.v_width));
    }
    linear_forward(x, p.w_qkv, bias, qkv, context);
    return;
  }
  linear_forward(x, p.W_Q(), p.b_q, slice(qkv, 1, 0, p.q_width), context);
  linear_forward(x, p.W_K(), p.b_k, slice(qkv, 1, p.q_width, p.k_width), context);
  linear_forward(x, p.W_V(), p.b_v, slice(qkv, 1, p.q_width + p.k_width, p.v_width), context);
}

/// Steps 1 and 2: what attention reads, into the cache.
template <class T>
void project(const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<T>& p,
             MultiHeadAttentionCache<T>& cache, const Context& context) {
  const Index B = cache.query.extent(0), L = cache.query.extent(1), S = cache.key.extent(1);
  const auto tensor = [&](Index length, Index width) {
    return Tensor<T, 3>::uninitialized({B, length, width}, context.memory);
  };
  // 1 layer_norm
  if (o.layer_norm) {
    cache.x_norm = tensor(L, o.d_model);
    cache.mean = Tensor<T, 1>::uninitialized({B * L}, context.memory);
    cache.rstd = Tensor<T, 1>::uninitialized({B * L}, context.memory);
    layer_norm_forward(In<T, 2>(merge_rows(cache.query)), {p.gamma, p.beta},
                       T(o.layer_norm_epsilon), merge_rows(cache.x_norm), {cache.mean, cache.rstd},
                       context);
  }
  // 2 linear
  const In<T, 2> x = merge_rows(cache.projected_query());
  if (cache.self_attention) {
    cache.qkv = tensor(L, p.q_width + p.k_width + p.v_width);
    project_fused(p, x, Out<T, 2>(merge_rows(cache.qkv)), context);
    return;
  }
  cache.q = tensor(L, p.q_width);
  cache.k = tensor(S, p.k_width);
  cache.v = tensor(S, p.v_width);
  linear_forward(x, p.W_Q(), p.b_q, merge_rows(cache.q), context);
  linear_forward(In<T, 2>(merge_rows(cache.key)), p.W_K(), p.b_k, merge_rows(cache.k), context);
  linear_forward(In<T, 2>(merge_rows(cache.value)), p.W_V(), p.b_v, merge_rows(cache.v), context);
}

/// Steps 3 to 5: heads are views of the projections and of the context.
template <class T>
void attend(const MultiHeadAttentionOptions& o, MultiHeadAttentionCache<T>& cache, bool training,
            const Context& context) {
  const Index B = cache.query.extent(0), L = cache.query.extent(1), S = cache.key.extent(1);
  const auto [q, k, v] = heads_of(o, cache);
  cache.context = Tensor<T, 3>::uninitialized({B, L, o.context_width()}, context.memory);
  const Out<T, 4> heads = split_heads(cache.context, o.num_heads);
  if (cache.call.path == Path::materialized) {
    cache.weights = Tensor<T, 4>::uninitialized({B, o.num_heads, L, S}, context.memory);
    attention_forward(q, k, v, cache.call.attention(), cache.weights, heads, context);
  } else {
    if (training) cache.lse = Tensor<T, 4>::uninitialized({B, o.num_heads, L, 2}, context.memory);
    flash_attention_forward(q, k, v, cache.call.attention(), heads, cache.lse, context);
  }
}

template <class T>
Tensor<T, 3> multi_head_attention_forward(const MultiHeadAttentionOptions& o,
                                          const MultiHeadAttentionParameters<T>& p,
                                          const ModuleInputs<T>& inputs,
                                          const MultiHeadAttentionCall<T>& call,
                                          MultiHeadAttentionCache<T>& cache, bool training,
                                          const Context& context) {
  require_call(o, inputs, call);
  const bool self = inputs.self_attention;
  cache.self_attention = self;
  cache.module = o;
  cache.call = call;
  cache.query = uniform_rows(inputs.query, cache.query_copy, context.memory);
  cache.key = self ? cache.query : uniform_rows(inputs.key, cache.key_copy, context.memory);
  cache.value = self ? cache.query : uniform_rows(inputs.value, cache.value_copy, context.memory);

  // 1 layer_norm, 2 linear
  project(o, p, cache, context);
  // 3 split_heads, 4 attention, 5 merge_heads
  attend(o, cache, training, context);
  // 6 linear
  auto y = Tensor<T, 3>::uninitialized({cache.query.extent(0), cache.query.extent(1), o.d_model},
                                       context.memory);
  linear_forward(In<T, 2>(merge_rows(cache.context)), p.w_o, p.b_o, merge_rows(y), context);
  if (context.trace != nullptr) trace_forward(o, p, cache, In<T, 3>(y), *context.trace);
  // 7 dropout
  if (call.output_dropout.active()) {
    dropout_forward(In<T, 2>(merge_rows(y)), call.output_dropout, merge_rows(y), context);
  }
  if (context.trace != nullptr) context.trace->record("A_out", y);
  cache.filled = true;
  return y;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/nn/multi_head_attention.hpp
// Multi-head attention as a module: projections, heads, attention on either path, output.
// The step numbers are those of docs/derivations/attention_backward.md.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// MultiHead(x) = Concat(head_1 ... head_H) W_O + b_O, head_i = softmax(scale q_i k_i^T) v_i.
///
/// Parameters are plain data; forward and backward are const and keep everything that a backward
/// needs in a cache of the caller's, so that many calls may be pending and run at the same time.
/// A call that throws, std::bad_alloc included, leaves cache and gradients as they were; only an
/// executor of the caller's that throws while it runs leaves gradients that are added to in part.
/// Source: Vaswani et al., 2017, arXiv 1706.03762, section 3.2.2; grouped: Ainslie et al., 2023,
/// arXiv 2305.13245; pre-LN: Xiong et al., 2020, arXiv 2002.04745.
template <Scalar T>
class MultiHeadAttention {
 public:
  /// What one call is asked for: masks, path, scale, dropout.
  using Call = MultiHeadAttentionCall<T>;
  /// What forward leaves for backward.
  using Cache = MultiHeadAttentionCache<T>;
  /// What backward adds to.
  using Gradients = MultiHeadAttentionGradients<T>;

  /// Weights by options.init and options.seed, biases 0, gamma 1, beta 0.
  /// Throws ArgumentError for options that make no module.
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : options_(options.resolved()), parameters_(options_) {
    init_weights<T>(parameters_.W_Q(), options_.init, options_.seed, 0);
    init_weights<T>(parameters_.W_K(), options_.init, options_.seed, 1);
    init_weights<T>(parameters_.W_V(), options_.init, options_.seed, 2);
    init_weights<T>(parameters_.w_o, options_.init, options_.seed, 3);
    fill(Out<T, 1>(parameters_.gamma), T(1));
  }
  /// d_model wide, num_heads heads, everything else by default.
  explicit MultiHeadAttention(Index d_model, Index num_heads)
      : MultiHeadAttention(MultiHeadAttentionOptions{.d_model = d_model, .num_heads = num_heads}) {}

  /// Self-attention, inference: y [B, L, D] for x [B, L, D].
  ///
  /// call.mask must fit [B, H, L, L]. All of forward throws ShapeError or ArgumentError for inputs
  /// and masks that do not fit, before anything is written or counted, and std::bad_alloc.
  /// Work: count_flops of the shape.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call = {}, const Context& context = {}) const {
    return infer({x, x, x, true}, call, context);
  }
  /// Self-attention: fills the cache. x must outlive the backward call.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    return train({x, x, x, true}, call, cache, context);
  }

  Tensor<T, 3> forward(const Tensor<T, 3>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// Cross-attention, inference: y [B, L, D] for query [B, L, D], key [B, S, kdim],
  /// value [B, S, vdim]; call.mask must fit [B, H, L, S].
  Tensor<T, 3> forward(In<T, 3> query, In<T, 3> key, In<T, 3> value, const Call& call = {},
                       const Context& context = {}) const {
    return infer({query, key, value, false}, call, context);
  }
  /// Cross-attention: fills the cache. The inputs must outlive the backward call.
  Tensor<T, 3> forward(In<T, 3> query, In<T, 3> key, In<T, 3> value, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    return train({query, key, value, false}, call, cache, context);
  }

  // Gone before backward: the cache views its inputs.
  Tensor<T, 3> forward(const Tensor<T, 3>&& query, In<T, 3> key, In<T, 3> value, const Call& call,
                       Cache& cache, const Context& context = {}) const = delete;
  Tensor<T, 3> forward(In<T, 3> query, const Tensor<T, 3>&& key, In<T, 3> value, const Call& call,
                       Cache& cache, const Context& context = {}) const = delete;
  Tensor<T, 3> forward(In<T, 3> query, In<T, 3> key, const Tensor<T, 3>&& value, const Call& call,
                       Cache& cache, const Context& context = {}) const = delete;

  /// dx [B, L, D] of a self-attention; the parameters' gradients are added to `gradients`.
  ///
  /// dy [B, L, D]. Throws ArgumentError for a cache that is empty, of cross-attention, or of a
  /// module of another shape; ShapeError; std::bad_alloc. Work: count_backward_flops.
  Tensor<T, 3> backward(In<T, 3> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const {
    constexpr std::string_view function = "MultiHeadAttention::backward";
    require_cache(function, cache, true);
    return detail::multi_head_attention_backward(function, options_, parameters_, dy, cache,
                                                 gradients, context)
        .query;
  }
  /// The gradients of all three inputs of a cross-attention: dy [B, L, D] gives [B, L, D],
  /// [B, S, kdim] and [B, S, vdim]. Adds and throws as backward does, of self-attention.
  CrossAttentionGradients<T> backward_cross(In<T, 3> dy, const Cache& cache, Gradients& gradients,
                                            const Context& context = {}) const {
    constexpr std::string_view function = "MultiHeadAttention::backward_cross";
    require_cache(function, cache, false);
    return detail::multi_head_attention_backward(function, options_, parameters_, dy, cache,
                                                 gradients, context);
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }
  /// The weights, to be read and written.
  MultiHeadAttentionParameters<T>& parameters() { return parameters_; }
  /// The weights.
  const MultiHeadAttentionParameters<T>& parameters() const { return parameters_; }

 private:
  Tensor<T, 3> infer(const detail::ModuleInputs<T>& inputs, const Call& call,
                     const Context& context) const {
    require_parameters();
    Cache unused;
    return detail::multi_head_attention_forward(options_, parameters_, inputs, call, unused, false,
                                                context);
  }
  /// The caller's cache changes only when all has gone well.
  Tensor<T, 3> train(const detail::ModuleInputs<T>& inputs, const Call& call, Cache& cache,
                     const Context& context) const {
    require_parameters();
    Cache fresh;
    Tensor<T, 3> y = detail::multi_head_attention_forward(options_, parameters_, inputs, call,
                                                          fresh, true, context);
    cache = std::move(fresh);
    return y;
  }

  void require_parameters() const {
    require_shape("MultiHeadAttention::forward", "W_O", In<T, 2>(parameters_.w_o),
                  Shape{options_.context_width(), options_.d_model},
                  "the options: a module that was moved from has none");
  }

  void require_cache(std::string_view function, const Cache& cache, bool self) const {
    require(cache.filled, function, "the cache is empty: pass it to forward first");
    require(cache.self_attention == self, function,
            self ? "the cache is of a call with separate keys and values: use backward_cross"
                 : "the cache is of self-attention: use backward");
    require(cache.module.same_shape(options_), function,
            "the cache is of a module of another shape, expected one that this module filled");
    const Index B = cache.query.extent(0), L = cache.query.extent(1), H = options_.num_heads;
    const auto whence = "what forward left: a cache that was moved from is empty";
    require_shape(function, "cache.context", cache.context, Shape{B, L, options_.context_width()},
                  whence);
    if (cache.call.path == Path::materialized) {
      require_shape(function, "cache.weights", cache.weights, Shape{B, H, L, cache.key.extent(1)},
                    whence);
    } else {
      require_shape(function, "cache.lse", cache.lse, Shape{B, H, L, 2}, whence);
    }
  }

  MultiHeadAttentionOptions options_;
  MultiHeadAttentionParameters<T> parameters_;
};

/// The same module with its parameters in another scalar type, as static_cast rounds them. Throws
/// std::bad_alloc.
template <Scalar To, Scalar From>
MultiHeadAttention<To> convert(const MultiHeadAttention<From>& module) {
  MultiHeadAttention<To> result(module.options());
  result.parameters().for_each([&](const std::string& name, auto to) {
    constexpr int rank = decltype(to)::rank;
    module.parameters().for_each([&](const std::string& other, auto from) {
      if constexpr (rank == decltype(from)::rank) {
        if (name != other) return;
        for_each_index(to.shape(),
                       [&](const Shape<rank>& at) { to(at) = static_cast<To>(from(at)); });
      }
    });
  });
  return result;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/head_parallel.hpp
// Heads split over workers: each holds the columns of W_Q, W_K and W_V and the rows of W_O that
// belong to its heads and sees the whole input; their outputs are summed.
// Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A module of heads first ... first + count - 1 of another, with copies of their weights: W_Q
/// [D, count d], W_K, W_V and W_O likewise, inputs and output as wide as those of the whole. Shards
/// that cover all heads once sum to the whole: outputs, and gradients of the input. The output
/// bias stays with the shard that holds head 0. Without dropout of the weights: a shard draws its
/// masks for heads counted from 0. Masks with an axis of heads have to be sliced by the caller.
/// Throws ArgumentError unless the heads exist and whole groups stay together; and for a module
/// with layer_norm, which is not a matter of heads: normalise the input before; std::bad_alloc.
template <Scalar T>
MultiHeadAttention<T> head_shard(const MultiHeadAttention<T>& whole, Index first, Index count) {
  const MultiHeadAttentionOptions& o = whole.options();
  const Index group = o.num_heads / o.num_kv_heads;
  const auto got = [&] {
    return "first is " + std::to_string(first) + " and count " + std::to_string(count);
  };
  require(first >= 0 && count >= 1 && count <= o.num_heads - first, "head_shard", [&] {
    return got() + ", expected at least one of heads 0 to " + std::to_string(o.num_heads - 1);
  });
  require(first % group == 0 && count % group == 0, "head_shard", [&] {
    return got() + ", expected multiples of " + std::to_string(group) + " (heads that share keys)";
  });
  require(!o.layer_norm, "head_shard",
          "the module has layer_norm, expected one without: normalise the input before");

  MultiHeadAttentionOptions part = o;
  part.num_heads = count;
  part.num_kv_heads = count / group;
  part.o_bias = o.o_bias && first == 0;
  MultiHeadAttention<T> shard(part);
  const MultiHeadAttentionParameters<T>& from = whole.parameters();
  MultiHeadAttentionParameters<T>& to = shard.parameters();
  const Index q0 = first * o.d_head, k0 = first / group * o.d_head, v0 = first / group * o.d_value;
  copy(slice(from.W_Q(), 1, q0, to.q_width), to.W_Q());
  copy(slice(from.W_K(), 1, k0, to.k_width), to.W_K());
  copy(slice(from.W_V(), 1, v0, to.v_width), to.W_V());
  copy(slice(from.w_o, 0, first * o.d_value, count * o.d_value), to.w_o);
  if (o.q_bias) copy(slice(from.b_q, 0, q0, to.q_width), to.b_q);
  if (o.k_bias) copy(slice(from.b_k, 0, k0, to.k_width), to.b_k);
  if (o.v_bias) copy(slice(from.b_v, 0, v0, to.v_width), to.b_v);
  if (part.o_bias) copy(In<T, 1>(from.b_o), to.b_o);
  return shard;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/kv_cache.hpp
// Keys and values of the tokens so far, for decoding one token, or a few, at a time: attention of
// new queries over the views of what is filled gives the bits that the whole sequence gives.

namespace headwise::inline v0_1 {

/// How much a KeyValueCache holds.
struct KeyValueCacheOptions {
  Index batch_size = 1;    // B
  Index num_kv_heads = 1;  // G
  Index capacity = 0;      // most tokens of a sequence
  Index d_head = 0;        // d
  Index d_value = 0;       // dv; 0: d
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
class AppendedTokens;

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Keys [B, G, length, d] and values [B, G, length, dv], appended in the order of their positions.
/// All sequences of the batch are equally long. What is behind the length is never read.
///
/// Memory: B G capacity (d + dv) elements, taken at once, so that views stay where they are.
template <Scalar T>
class KeyValueCache {
 public:
  /// Empty. Throws ArgumentError for a negative extent, ShapeError for more than memory holds,
  /// std::bad_alloc.
  explicit KeyValueCache(const KeyValueCacheOptions& options,
                         std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : options_(options) {
    const auto require_extent = [](const char* name, Index extent) {
      require(extent >= 0, "KeyValueCache", [&] {
        return std::string(name) + " is " + std::to_string(extent) + ", expected >= 0";
      });
    };
    require_extent("batch_size", options.batch_size);
    require_extent("num_kv_heads", options.num_kv_heads);
    require_extent("capacity", options.capacity);
    require_extent("d_head", options.d_head);
    require_extent("d_value", options.d_value);
    if (options_.d_value == 0) options_.d_value = options_.d_head;
    const auto [B, G, most, d, dv] = options_;
    k_ = Tensor<T, 4>::uninitialized({B, G, most, d}, memory);
    v_ = Tensor<T, 4>::uninitialized({B, G, most, dv}, memory);
  }

  /// A deep copy.
  KeyValueCache(const KeyValueCache& other) = default;
  /// Takes what is there; `other` has no capacity then.
  KeyValueCache(KeyValueCache&& other) noexcept { swap(other); }
  /// A copy or what was taken; where a copy throws, this is as it was.
  KeyValueCache& operator=(KeyValueCache other) noexcept {
    swap(other);
    return *this;
  }
  /// Exchanges all.
  void swap(KeyValueCache& other) noexcept {
    std::swap(options_, other.options_);
    k_.swap(other.k_);
    v_.swap(other.v_);
    std::swap(length_, other.length_);
  }

  /// Copies the keys [B, G, n, d] and values [B, G, n, dv] of n tokens behind what is there. Throws
  /// ShapeError, or ArgumentError where n is more than room(); nothing is changed then.
  void append(In<T, 4> k, In<T, 4> v) {
    constexpr std::string_view function = "KeyValueCache::append";
    const auto [B, G, most, d, dv] = options_;
    const Index n = k.extent(2);
    require_shape(function, "k", k, Shape{B, G, n, d}, "batch, heads and width of the cache");
    require_shape(function, "v", v, Shape{B, G, n, dv},
                  "batch, heads and width of the cache, length of k");
    require_room(function, n);
    const detail::Footprint mine[] = {{"", k_}, {"", v_}}, theirs[] = {{"k", k}, {"v", v}};
    for (const auto& from : theirs) {
      const bool apart = !detail::overlap(mine[0], from) && !detail::overlap(mine[1], from);
      require(apart, function, "k or v lie in the cache, expected memory of their own");
    }
    copy_behind(k, k_);
    copy_behind(v, v_);
    length_ += n;
  }

  /// Throws ArgumentError unless n more tokens fit.
  void require_room(std::string_view function, Index n) const {
    require(n <= room(), function, [&] {
      return std::to_string(n) + " tokens behind " + std::to_string(length_) +
             " are more than the capacity " + std::to_string(options_.capacity) +
             " of the cache: roll it back, clear it or make a larger one";
    });
  }

  /// Forgets the last n tokens. Throws ArgumentError unless there are so many.
  void rollback(Index n) {
    require(n >= 0 && n <= length_, "KeyValueCache::rollback", [&] {
      return "n is " + std::to_string(n) + ", expected 0 to " + std::to_string(length_) +
             ", the length";
    });
    length_ -= n;
  }
  /// Forgets all.
  void clear() { length_ = 0; }

  /// Tokens that are there.
  Index length() const { return length_; }
  /// Tokens that still fit.
  Index room() const { return options_.capacity - length_; }
  /// The options, d_value filled in.
  const KeyValueCacheOptions& options() const { return options_; }

  /// Keys so far [B, G, length, d]: a view, right until the cache goes or what it sees is rolled
  /// back.
  In<T, 4> k() const { return filled(k_); }
  /// Values so far [B, G, length, dv].
  In<T, 4> v() const { return filled(v_); }

 private:
  template <class>
  friend class detail::AppendedTokens;
  void forget_last(Index n) noexcept { length_ -= n; }

  In<T, 4> filled(const Tensor<T, 4>& all) const {
    Shape<4> shape = all.shape();
    shape[2] = length_;
    return {all.data(), shape, all.strides()};
  }
  void copy_behind(const In<T, 4>& from, Tensor<T, 4>& to) {
    const Index n = from.extent(2), width = from.extent(3);
    if (from.size() == 0) return;
    for (Index b = 0; b < from.extent(0); ++b) {
      for (Index g = 0; g < from.extent(1); ++g) {
        for (Index i = 0; i < n; ++i) {
          const T* in = &from(b, g, i, Index{0});
          T* out = &to(b, g, length_ + i, Index{0});
          if (from.stride(3) == 1) {
            std::copy_n(in, width, out);
          } else {
            for (Index t = 0; t < width; ++t) out[t] = in[t * from.stride(3)];
          }
        }
      }
    }
  }

  KeyValueCacheOptions options_;
  Tensor<T, 4> k_;  // [B, G, capacity, d]
  Tensor<T, 4> v_;  // [B, G, capacity, dv]
  Index length_ = 0;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/layer_norm.hpp
// Layer normalisation that owns its gain and offset.

namespace headwise::inline v0_1 {

/// What a LayerNorm learns; its gradients have the same form.
template <Scalar T>
struct LayerNormParameters {
  Tensor<T, 1> gamma;  // [D], or absent
  Tensor<T, 1> beta;   // [D], or absent

  /// f(name, view) for each that is there; `prefix` goes in front of the names. Views are writable
  /// where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    if (!self.gamma.absent()) f(prefix + "gamma", as_view(self.gamma));
    if (!self.beta.absent()) f(prefix + "beta", as_view(self.beta));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = (x - mean) / sqrt(variance + epsilon) gamma + beta over the last axis.
template <Scalar T>
class LayerNorm {
 public:
  /// What forward leaves for backward. It views x, which must outlive the backward call.
  struct Cache {
    In<T, 2> x;           // [N, D]
    Tensor<T, 1> mean;    // [N]
    Tensor<T, 1> rstd;    // [N]
    bool filled = false;  // whether forward has been called with it
  };

  /// gamma 1 and beta 0, or neither. Throws ArgumentError for a negative width or an epsilon that
  /// is not above 0.
  explicit LayerNorm(Index width, bool affine = true, double epsilon = 1e-5)
      : width_(width), epsilon_(epsilon) {
    require(width >= 0, "LayerNorm", "width is " + std::to_string(width) + ", expected >= 0");
    require(is_finite_option(epsilon) && epsilon > 0, "LayerNorm", [&] {
      return "epsilon is " + std::to_string(epsilon) + ", expected a finite number above 0";
    });
    if (!affine) return;
    parameters_.gamma = Tensor<T, 1>({width});
    parameters_.beta = Tensor<T, 1>({width});
    fill(Out<T, 1>(parameters_.gamma), T(1));
  }

  /// y [N, D] for x [N, D]: inference. Throws and works as layer_norm_forward does.
  Tensor<T, 2> forward(In<T, 2> x, const Context& context = {}) const {
    require_width("LayerNorm::forward", "x", x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    layer_norm_forward(x, {parameters_.gamma, parameters_.beta}, T(epsilon_), y, {{}, {}}, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  Tensor<T, 2> forward(In<T, 2> x, Cache& cache, const Context& context = {}) const {
    require_width("LayerNorm::forward", "x", x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    Cache filled{x, Tensor<T, 1>::uninitialized({x.extent(0)}, context.memory),
                 Tensor<T, 1>::uninitialized({x.extent(0)}, context.memory), true};
    layer_norm_forward(x, {parameters_.gamma, parameters_.beta}, T(epsilon_), y,
                       {filled.mean, filled.rstd}, context);
    cache = std::move(filled);
    return y;
  }
  Tensor<T, 2> forward(const Tensor<T, 2>&& temporary, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// dx [N, D] for dy [N, D]; the gradients of gamma and beta are added to `gradients`.
  ///
  /// Throws ArgumentError for an empty cache, ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, LayerNormParameters<T>& gradients,
                        const Context& context = {}) const {
    require(cache.filled, "LayerNorm::backward", "the cache is empty: pass it to forward first");
    require_width("LayerNorm::backward", "cache.x", cache.x);
    require_shape("LayerNorm::backward", "dy", dy, cache.x.shape(), "the output");
    require_shape("LayerNorm::backward", "gradients.gamma", gradients.gamma,
                  parameters_.gamma.shape(), "zero_gradients()");
    require_shape("LayerNorm::backward", "gradients.beta", gradients.beta, parameters_.beta.shape(),
                  "zero_gradients()");
    auto dx = Tensor<T, 2>::uninitialized(cache.x.shape(), context.memory);
    layer_norm_backward(dy, cache.x, parameters_.gamma, {cache.mean, cache.rstd}, dx,
                        {gradients.gamma, gradients.beta}, context);
    return dx;
  }

  /// Gradients of the right shapes, all 0.
  LayerNormParameters<T> zero_gradients() const {
    LayerNormParameters<T> gradients;
    if (parameters_.gamma.size() == 0) return gradients;
    gradients.gamma = Tensor<T, 1>(parameters_.gamma.shape());
    gradients.beta = Tensor<T, 1>(parameters_.beta.shape());
    return gradients;
  }

  /// What is added to the variance.
  double epsilon() const { return epsilon_; }
  /// gamma and beta, to be read and written.
  LayerNormParameters<T>& parameters() { return parameters_; }
  /// gamma and beta.
  const LayerNormParameters<T>& parameters() const { return parameters_; }

 private:
  void require_width(std::string_view function, std::string_view argument,
                     const In<T, 2>& x) const {
    require_shape(function, argument, x, Shape{x.extent(0), width_}, "the width of the module");
  }

  Index width_;
  double epsilon_;
  LayerNormParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/linear.hpp
// A linear layer that owns its weights.

namespace headwise::inline v0_1 {

/// What a Linear learns; its gradients have the same form.
template <Scalar T>
struct LinearParameters {
  Tensor<T, 2> w;  // [K, O]
  Tensor<T, 1> b;  // [O], or absent

  /// f(name, view) for each that is there; `prefix` goes in front of the names. Views are writable
  /// where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    f(prefix + "W", as_view(self.w));
    if (!self.b.absent()) f(prefix + "b", as_view(self.b));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x W + b. Const calls may run at the same time.
template <Scalar T>
class Linear {
 public:
  /// What forward leaves for backward. It views x, which must outlive the backward call.
  struct Cache {
    In<T, 2> x;           // [N, K]
    bool filled = false;  // whether forward has been called with it
  };

  /// Weights by `init`, bias 0. Throws ArgumentError for a negative width.
  Linear(Index in, Index out, bool bias = true, Init init = Init::xavier_normal,
         std::uint64_t seed = 0) {
    require(in >= 0, "Linear", "in is " + std::to_string(in) + ", expected >= 0");
    require(out >= 0, "Linear", "out is " + std::to_string(out) + ", expected >= 0");
    parameters_.w = Tensor<T, 2>({in, out});
    if (bias) parameters_.b = Tensor<T, 1>({out});
    init_weights<T>(parameters_.w, init, seed, 0);
  }

  /// y [N, O] for x [N, K]: inference. Throws and works as linear_forward does.
  Tensor<T, 2> forward(In<T, 2> x, const Context& context = {}) const {
    require_shape("Linear::forward", "x", x, Shape{x.extent(0), parameters_.w.extent(0)},
                  "the rows of W");
    auto y = Tensor<T, 2>::uninitialized({x.extent(0), parameters_.w.extent(1)}, context.memory);
    linear_forward(x, parameters_.w, parameters_.b, y, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  Tensor<T, 2> forward(In<T, 2> x, Cache& cache, const Context& context = {}) const {
    Tensor<T, 2> y = forward(x, context);
    cache = {x, true};
    return y;
  }
  Tensor<T, 2> forward(const Tensor<T, 2>&& temporary, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// dx [N, K] for dy [N, O]; the gradients of W and b are added to `gradients`.
  ///
  /// Throws ArgumentError for an empty cache, ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, LinearParameters<T>& gradients,
                        const Context& context = {}) const {
    const Index N = cache.x.extent(0), K = parameters_.w.extent(0), O = parameters_.w.extent(1);
    require(cache.filled, "Linear::backward", "the cache is empty: pass it to forward first");
    require_shape("Linear::backward", "cache.x", cache.x, Shape{N, K}, "the rows of W");
    require_shape("Linear::backward", "dy", dy, Shape{N, O}, "the output");
    require_shape("Linear::backward", "gradients.w", gradients.w, parameters_.w.shape(),
                  "zero_gradients()");
    require_shape("Linear::backward", "gradients.b", gradients.b, parameters_.b.shape(),
                  "zero_gradients()");
    auto dx = Tensor<T, 2>::uninitialized(cache.x.shape(), context.memory);
    linear_backward(dy, cache.x, parameters_.w, dx, gradients.w, gradients.b, context);
    return dx;
  }

  /// Gradients of the right shapes, all 0.
  LinearParameters<T> zero_gradients() const {
    LinearParameters<T> gradients;
    gradients.w = Tensor<T, 2>(parameters_.w.shape());
    if (parameters_.b.size() != 0) gradients.b = Tensor<T, 1>(parameters_.b.shape());
    return gradients;
  }

  /// W and b, to be read and written.
  LinearParameters<T>& parameters() { return parameters_; }
  /// W and b.
  const LinearParameters<T>& parameters() const { return parameters_; }

 private:
  LinearParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/multi_head_attention_step.hpp
// Causal self-attention of new tokens over a cache of those before: decoding with the bits of the
// whole sequence.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A cache that is as long as before unless the call that made it longer comes to its end.
template <class T>
class AppendedTokens {
 public:
  AppendedTokens(KeyValueCache<T>& cache, const In<T, 4>& k, const In<T, 4>& v)
      : cache_(cache), count_(k.extent(2)) {
    cache.append(k, v);
  }
  AppendedTokens(const AppendedTokens&) = delete;
  AppendedTokens& operator=(const AppendedTokens&) = delete;
  ~AppendedTokens() { cache_.forget_last(count_); }
  void keep() { count_ = 0; }

 private:
  KeyValueCache<T>& cache_;
  Index count_;
};

/// All rules of a step, before anything is computed.
template <class T>
void require_new_tokens(std::string_view function, const MultiHeadAttention<T>& attention,
                        const In<T, 3>& x, const KeyValueCache<T>& cache) {
  const MultiHeadAttentionOptions& o = attention.options();
  const KeyValueCacheOptions& c = cache.options();
  require(o.fused(), function,
          "kdim or vdim differ from d_model, expected a module of self-attention");
  require_shape(function, "W_O", In<T, 2>(attention.parameters().w_o),
                Shape{o.context_width(), o.d_model},
                "the options: a module that was moved from has none");
  require_shape(function, "x", x, Shape{c.batch_size, x.extent(1), o.d_model},
                "batch of the cache, d_model");
  const bool fits =
      c.num_kv_heads == o.num_kv_heads && c.d_head == o.d_head && c.d_value == o.d_value;
  require(fits, function, [&] {
    return "cache is of " + std::to_string(c.num_kv_heads) + " heads of widths " +
           std::to_string(c.d_head) + " and " + std::to_string(c.d_value) + ", expected " +
           std::to_string(o.num_kv_heads) + " of " + std::to_string(o.d_head) + " and " +
           std::to_string(o.d_value) + " (the module)";
  });
  cache.require_room(function, x.extent(1));
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// An empty cache for a module's self-attention. Throws ShapeError or ArgumentError for extents
/// that are none, std::bad_alloc.
template <Scalar T>
KeyValueCache<T> key_value_cache(
    const MultiHeadAttention<T>& attention, Index batch_size, Index capacity,
    std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  const MultiHeadAttentionOptions& o = attention.options();
  return KeyValueCache<T>({.batch_size = batch_size,
                           .num_kv_heads = o.num_kv_heads,
                           .capacity = capacity,
                           .d_head = o.d_head,
                           .d_value = o.d_value},
                          memory);
}

/// y [B, n, D] of n new tokens x [B, n, D] which see each other causally and all that is in the
/// cache: inference.
///
/// attention   a module of self-attention
/// x           [B, n, D]   in; the tokens behind those of the cache
/// cache                   keys and values of the tokens before; those of x are appended
///
/// The bits are those of attention.forward of the whole sequence with {.mask = causal}, for any cut
/// into steps. Work: the projections of n tokens, and n (length + (n + 1) / 2) pairs.
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it was
/// then.
template <Scalar T>
Tensor<T, 3> multi_head_attention_step(const MultiHeadAttention<T>& attention,
                                       In<std::type_identity_t<T>, 3> x, KeyValueCache<T>& cache,
                                       const Context& context = {}) {
  const MultiHeadAttentionOptions& o = attention.options();
  const MultiHeadAttentionParameters<T>& p = attention.parameters();
  detail::require_new_tokens<T>("multi_head_attention_step", attention, x, cache);
  const Index B = x.extent(0), n = x.extent(1);

  // 1 layer_norm, 2 linear
  MultiHeadAttentionCache<T> step;
  step.self_attention = true;
  step.query = detail::uniform_rows(x, step.query_copy, context.memory);
  detail::project(o, p, step, context);
  // 3 split_heads, 4 attention, 5 merge_heads
  const auto [q, k, v] = detail::heads_of(o, step);
  step.context = Tensor<T, 3>::uninitialized({B, n, o.context_width()}, context.memory);
  detail::AppendedTokens<T> appended(cache, k, v);
  flash_attention_forward(q, cache.k(), cache.v(), {.mask = causal},
                          split_heads(step.context, o.num_heads), {}, context);
  // 6 linear
  auto y = Tensor<T, 3>::uninitialized({B, n, o.d_model}, context.memory);
  linear_forward(In<T, 2>(merge_rows(step.context)), p.w_o, p.b_o, merge_rows(y), context);
  appended.keep();
  return y;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/rms_norm.hpp
// Root-mean-square normalisation that owns its gain.

namespace headwise::inline v0_1 {

/// What an RMSNorm learns; its gradients have the same form.
template <Scalar T>
struct RMSNormParameters {
  Tensor<T, 1> gamma;  // [D], or absent

  /// f(name, view) for what is there; `prefix` goes in front of the name. The view is writable
  /// where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    if (!gamma.absent()) f(prefix + "gamma", as_view(gamma));
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    if (!gamma.absent()) f(prefix + "gamma", as_view(gamma));
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x / sqrt(mean(x^2) + epsilon) gamma over the last axis.
template <Scalar T>
class RMSNorm {
 public:
  /// What forward leaves for backward. It views x, which must outlive the backward call.
  struct Cache {
    In<T, 2> x;           // [N, D]
    Tensor<T, 1> rstd;    // [N]
    bool filled = false;  // whether forward has been called with it
  };

  /// gamma 1, or none. Throws ArgumentError for a negative width or an epsilon that is not above 0.
  explicit RMSNorm(Index width, bool affine = true, double epsilon = 1e-6)
      : width_(width), epsilon_(epsilon) {
    require(width >= 0, "RMSNorm", "width is " + std::to_string(width) + ", expected >= 0");
    require(is_finite_option(epsilon) && epsilon > 0, "RMSNorm", [&] {
      return "epsilon is " + std::to_string(epsilon) + ", expected a finite number above 0";
    });
    if (!affine) return;
    parameters_.gamma = Tensor<T, 1>({width});
    fill(Out<T, 1>(parameters_.gamma), T(1));
  }

  /// y [N, D] for x [N, D]: inference. Throws and works as rms_norm_forward does.
  Tensor<T, 2> forward(In<T, 2> x, const Context& context = {}) const {
    require_width("RMSNorm::forward", "x", x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    rms_norm_forward(x, parameters_.gamma, T(epsilon_), y, {}, context);
    return y;
  }
  /// The same, and what backward needs into the cache, once all has gone well.
  Tensor<T, 2> forward(In<T, 2> x, Cache& cache, const Context& context = {}) const {
    require_width("RMSNorm::forward", "x", x);
    auto y = Tensor<T, 2>::uninitialized(x.shape(), context.memory);
    Cache filled{x, Tensor<T, 1>::uninitialized({x.extent(0)}, context.memory), true};
    rms_norm_forward(x, parameters_.gamma, T(epsilon_), y, filled.rstd, context);
    cache = std::move(filled);
    return y;
  }
  Tensor<T, 2> forward(const Tensor<T, 2>&& temporary, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// dx [N, D] for dy [N, D]; the gradient of gamma is added to `gradients`.
  ///
  /// Throws ArgumentError for an empty cache, ShapeError, std::bad_alloc; nothing is changed then.
  Tensor<T, 2> backward(In<T, 2> dy, const Cache& cache, RMSNormParameters<T>& gradients,
                        const Context& context = {}) const {
    require(cache.filled, "RMSNorm::backward", "the cache is empty: pass it to forward first");
    require_width("RMSNorm::backward", "cache.x", cache.x);
    require_shape("RMSNorm::backward", "dy", dy, cache.x.shape(), "the output");
    require_shape("RMSNorm::backward", "gradients.gamma", gradients.gamma,
                  parameters_.gamma.shape(), "zero_gradients()");
    auto dx = Tensor<T, 2>::uninitialized(cache.x.shape(), context.memory);
    rms_norm_backward(dy, cache.x, parameters_.gamma, cache.rstd, dx, gradients.gamma, context);
    return dx;
  }

  /// Gradients of the right shapes, all 0.
  RMSNormParameters<T> zero_gradients() const {
    RMSNormParameters<T> gradients;
    if (parameters_.gamma.size() != 0) gradients.gamma = Tensor<T, 1>(parameters_.gamma.shape());
    return gradients;
  }

  /// What is added to the mean square.
  double epsilon() const { return epsilon_; }
  /// gamma, to be read and written.
  RMSNormParameters<T>& parameters() { return parameters_; }
  /// gamma.
  const RMSNormParameters<T>& parameters() const { return parameters_; }

 private:
  void require_width(std::string_view function, std::string_view argument,
                     const In<T, 2>& x) const {
    require_shape(function, argument, x, Shape{x.extent(0), width_}, "the width of the module");
  }

  Index width_;
  double epsilon_;
  RMSNormParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/sampling.hpp
// The next token from a row of logits: a pure function of the row, the options, and of a seed and a
// step that name the random number. It refuses logits that are no numbers.

namespace headwise::inline v0_1 {

/// How a token is chosen. Tokens that top_k and top_p leave keep their odds among each other.
struct SamplingOptions {
  double temperature = 1;  // logits are divided by it; 0: the greatest, nothing is drawn
  Index top_k = 0;         // only among so many of the greatest logits; 0: all
  double top_p = 1;        // only among the fewest whose probability is so much, in (0, 1]
  std::uint64_t seed = 0;  // of the stream of random numbers
  std::uint64_t step = 0;  // its number: the position of the token, say
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

inline void require_sampling(std::string_view function, const SamplingOptions& o) {
  require(is_finite_option(o.temperature) && o.temperature >= 0, function, [&] {
    return "temperature is " + std::to_string(o.temperature) +
           ", expected a finite number of 0 or more";
  });
  require(o.top_k >= 0, function, [&] {
    return "top_k is " + std::to_string(o.top_k) + ", expected 1 or more, or 0 for all";
  });
  require(o.top_p > 0 && o.top_p <= 1, function, [&] {
    return "top_p is " + std::to_string(o.top_p) + ", expected above 0 and at most 1";
  });
}

/// The first of the greatest logits. Throws ArgumentError for NaN, +infinity, or nothing but
/// -infinity.
template <class T>
Index first_greatest(std::string_view function, const In<T, 1>& logits) {
  const T most = (std::numeric_limits<T>::max)(), least = std::numeric_limits<T>::lowest();
  Index greatest = -1;
  for (Index v = 0; v < logits.extent(0); ++v) {
    require(logits(v) <= most, function, [&] {
      return "logits(" + std::to_string(v) + ") is NaN or infinity, expected a number or -infinity";
    });
    const bool here = least <= logits(v);
    if (here && (greatest < 0 || logits(greatest) < logits(v))) greatest = v;
  }
  require(greatest >= 0, function, [&] {
    return "logits " + logits.shape().format() +
           " hold no number above -infinity, expected one token at least";
  });
  return greatest;
}

/// Tokens of a row by falling logit, equal ones by number; the first ones are sorted on demand.
template <class T>
class RankedTokens {
 public:
  /// order has room for as many numbers as there are logits.
  RankedTokens(const In<T, 1>& logits, Index* order)
      : logits_(logits), order_(order), count_(logits.extent(0)) {
    for (Index v = 0; v < count_; ++v) order_[v] = v;
  }
  /// The token of rank n.
  Index at(Index n) {
    while (n >= sorted_) {  // far fewer than all are asked for as a rule
      const Index next = std::min<Index>(count_, std::max<Index>(64, 8 * sorted_));
      std::partial_sort(order_ + sorted_, order_ + next, order_ + count_, [&](Index a, Index b) {
        const T x = logits_(a), y = logits_(b);
        return y < x || (!(x < y) && a < b);
      });
      sorted_ = next;
    }
    return order_[n];
  }

 private:
  In<T, 1> logits_;
  Index* order_;
  Index count_, sorted_ = 0;
};

/// Copies to `kept`, of zeros, the weights of the tokens that top_k and top_p leave.
template <class T>
void keep_top(const SamplingOptions& o, RankedTokens<T> ranked, In<double, 1> weights,
              Out<double, 1> kept) {
  const Index count = weights.extent(0);
  const Index most = o.top_k == 0 ? count : std::min<Index>(o.top_k, count);
  double total = 0, sum = 0;
  for (Index n = 0; n < most; ++n) {
    total = total + weights(most == count ? n : ranked.at(n));  // of all of them: in any order
  }
  for (Index n = 0; n < most && (n == 0 || o.top_p == 1 || sum < o.top_p * total); ++n) {
    const Index token = ranked.at(n);
    kept(token) = weights(token);
    sum = sum + weights(token);
  }
}

/// The token at which the weights of it and those before reach a part of all of them that is drawn.
inline Index draw_token(In<double, 1> weights, double part) {
  const Index count = weights.extent(0);
  double total = 0, sum = 0;
  for (Index v = 0; v < count; ++v) total = total + weights(v);
  Index token = 0;
  for (Index v = 0; v < count; ++v) {
    if (!(weights(v) > 0)) continue;
    token = v;
    sum = sum + weights(v);
    if (sum >= part * total) break;
  }
  return token;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// A token by its logit: token v with probability e^(logits_v / temperature), over the sum of those
/// that top_k and then top_p leave.
///
/// logits   [V]   in; -infinity for a token that is never chosen
/// options        how; the same seed and step choose the same token of the same logits
///
/// At temperature 0 it is the greatest logit. Of equal logits the lower token is ranked first,
/// everywhere. Probabilities are in double. What is drawn walks the tokens in order of their
/// numbers, so that options which leave all of them change nothing. Rows of a batch need a seed or
/// a step of their own. Work    V e^x; with top_k or top_p, ranking those that are asked for.
/// Throws  ArgumentError for options out of range, NaN, +infinity, or no number at all; ShapeError;
///         std::bad_alloc.
/// Source  top-p: Holtzman et al., 2020, arXiv 1904.09751.
template <Scalar T>
Index sample_token(In<T, 1> logits, const SamplingOptions& options, const Context& context = {}) {
  constexpr std::string_view function = "sample_token";
  require_countable(function, "logits", logits);
  detail::require_sampling(function, options);
  const Index V = logits.extent(0), greatest = detail::first_greatest(function, logits);
  if (options.temperature == 0) return greatest;
  const double most = static_cast<double>(logits(greatest));
  auto weights = Tensor<double, 1>::uninitialized({V}, context.memory);
  for (Index v = 0; v < V; ++v) {
    weights(v) = std::exp((static_cast<double>(logits(v)) - most) / options.temperature);
  }
  if ((options.top_k != 0 && options.top_k < V) || options.top_p != 1) {
    Tensor<double, 1> kept(Shape{V}, context.memory);
    auto order = Tensor<Index, 1>::uninitialized({V}, context.memory);
    detail::keep_top<T>(options, {logits, order.data()}, weights, kept);
    weights = std::move(kept);
  }
  const auto words = philox<10>({static_cast<std::uint32_t>(options.step),
                                 static_cast<std::uint32_t>(options.step >> 32), 0, 0x73616D70u},
                                philox_key(options.seed));
  return detail::draw_token(weights, unit_interval(words[0], words[1]));
}
/// The same of a tensor that owns its elements.
template <Scalar T>
Index sample_token(const Tensor<T, 1>& logits, const SamplingOptions& options,
                   const Context& context = {}) {
  return sample_token(In<T, 1>(logits), options, context);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/nn/transformer_block_parameters.hpp
// What a TransformerBlock is, what one call of it is asked for, what it learns and what forward
// leaves.

namespace headwise::inline v0_1 {

/// How rows are normalised.
enum class NormKind {
  layer_norm,  ///< (x - mean) / sqrt(variance + epsilon) gamma + beta
  rms_norm,    ///< x / sqrt(mean(x^2) + epsilon) gamma
};

/// The shape of a block.
struct TransformerBlockOptions {
  Index d_model = 0;                         // D
  Index num_heads = 1;                       // H
  Index num_kv_heads = 0;                    // G, divides H; H
  Index d_hidden = 0;                        // F; 4 D
  Activation activation = Activation::gelu;  // of the feed-forward
  bool gated = false;                        // its gate; with silu: SwiGLU
  bool norm_first = true;                    // pre-LN; else post-LN
  NormKind norm = NormKind::layer_norm;      // of both norms
  bool attention_bias = true;                // b_Q, b_K, b_V and b_O
  bool feed_forward_bias = true;             // of both its products
  bool norm_bias = true;                     // beta; rms_norm has none
  double norm_epsilon = 1e-5;                // > 0
  Init init = Init::xavier_normal;           // the scale of the weights at the start
  std::uint64_t seed = 0;                    // of the weights at the start

  /// All of them with every default filled in. Throws ArgumentError, in the words of the module
  /// within, for what makes no block.
  TransformerBlockOptions resolved() const {
    TransformerBlockOptions full = *this;
    full.num_kv_heads = of_attention().resolved().num_kv_heads;
    full.d_hidden = feed_forward().resolved().d_hidden;
    require(is_finite_option(norm_epsilon) && norm_epsilon > 0, "TransformerBlock", [&] {
      return "norm_epsilon is " + std::to_string(norm_epsilon) +
             ", expected a finite number above 0";
    });
    return full;
  }
  /// Of the module within. Of resolved options.
  MultiHeadAttentionOptions attention() const {
    MultiHeadAttentionOptions o = of_attention();
    o.d_head = o.d_value = d_model / num_heads;
    o.kdim = o.vdim = d_model;
    return o;
  }
  /// Of the module within. Of resolved options.
  FeedForwardOptions feed_forward() const {
    FeedForwardOptions o;
    o.d_model = d_model;
    o.d_hidden = d_hidden;
    o.activation = activation;
    o.gated = gated;
    o.bias = feed_forward_bias;
    o.init = init;
    o.seed = seed;
    return o;
  }
  /// Whether what one of them left in a cache fits the other. Of resolved options.
  bool same_shape(const TransformerBlockOptions& other) const {
    return attention().same_shape(other.attention()) &&
           feed_forward().same_shape(other.feed_forward()) && norm_first == other.norm_first &&
           norm == other.norm;
  }

 private:
  MultiHeadAttentionOptions of_attention() const {
    MultiHeadAttentionOptions o;
    o.d_model = d_model;
    o.num_heads = num_heads;
    o.num_kv_heads = num_kv_heads;
    o.q_bias = o.k_bias = o.v_bias = o.o_bias = attention_bias;
    o.init = init;
    o.seed = seed;
    return o;
  }
};

/// One call. The mask is viewed: it must outlive the call, and its backward too. Give each dropout
/// a seed of its own.
template <Scalar T>
struct TransformerBlockCall {
  AttentionMask<T> mask = {};      // none: every query sees every key
  Path path = Path::flash;         // both give the same function
  Dropout weight_dropout = {};     // of the attention weights; none: inference
  Dropout attention_dropout = {};  // of what attention adds
  Dropout hidden_dropout = {};     // between the products of the feed-forward
  Dropout output_dropout = {};     // of what the feed-forward adds

  /// Of the module within.
  MultiHeadAttentionCall<T> attention() const {
    return {mask, path, {}, weight_dropout, attention_dropout};
  }
  /// Of the module within.
  FeedForwardCall feed_forward() const { return {hidden_dropout, output_dropout}; }
};

/// What a block learns. `Attention` differs between weights and gradients.
template <Scalar T, class Attention = MultiHeadAttentionParameters<T>>
struct TransformerBlockParameters {
  LayerNormParameters<T> norm1;           // beta is absent with rms_norm
  Attention attention;                    // without a norm of its own
  LayerNormParameters<T> norm2;           // as norm1
  FeedForwardParameters<T> feed_forward;  // what follows it

  TransformerBlockParameters() = default;
  /// All 0. The options are resolved ones.
  explicit TransformerBlockParameters(
      const TransformerBlockOptions& o,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : attention(o.attention(), memory), feed_forward(o.feed_forward(), memory) {
    for (LayerNormParameters<T>* norm : {&norm1, &norm2}) {
      norm->gamma = Tensor<T, 1>({o.d_model}, memory);
      if (o.norm == NormKind::layer_norm && o.norm_bias) {
        norm->beta = Tensor<T, 1>({o.d_model}, memory);
      }
    }
  }

  /// f(name, view) for each that is there: norm1.gamma, norm1.beta, attention.W_Q ..., norm2.gamma,
  /// norm2.beta, feed_forward.W_up ... behind `prefix`; those of gradients are called alike. Views
  /// are writable where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

  /// Everything to 0, as of gradients between two steps.
  void zero() {
    for_each([](const std::string&, auto view) { fill(view, T(0)); });
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    self.norm1.for_each(f, prefix + "norm1.");
    self.attention.MultiHeadAttentionParameters<T>::for_each(f, prefix + "attention.");
    self.norm2.for_each(f, prefix + "norm2.");
    self.feed_forward.for_each(f, prefix + "feed_forward.");
  }
};

/// Gradients in tensors of the parameters' shapes. A backward call adds to them.
template <Scalar T>
using TransformerBlockGradients = TransformerBlockParameters<T, MultiHeadAttentionGradients<T>>;

/// What one half of a block keeps: x + branch(norm(x)), or norm(x + branch(x)).
template <Scalar T>
struct TransformerHalfCache {
  In<T, 3> norm_input;  // [B, L, D]
  Tensor<T, 3> normed;  // [B, L, D]; what the branch reads       pre-LN
  Tensor<T, 3> sum;     // [B, L, D]; what is normalised          post-LN
  Tensor<T, 1> mean;    // [B L]                                  layer_norm
  Tensor<T, 1> rstd;    // [B L]
};

/// What a forward call leaves for its backward, owned by the caller. The input and the mask are
/// viewed, not copied: they must outlive the backward call.
template <Scalar T>
struct TransformerBlockCache {
  /// Not filled.
  TransformerBlockCache() = default;
  /// Moved, not copied: parts of it view others.
  ///@{
  TransformerBlockCache(TransformerBlockCache&&) noexcept = default;
  TransformerBlockCache& operator=(TransformerBlockCache&&) noexcept = default;
  ///@}

  bool filled = false;                   // whether forward has been called with it
  TransformerBlockOptions module;        // of the block that filled it
  In<T, 3> x;                            // [B, L, D]
  Tensor<T, 3> x_copy;                   // where its rows lie at no common distance
  TransformerHalfCache<T> first;         // about attention
  MultiHeadAttentionCache<T> attention;  // what attention left
  Tensor<T, 3> h;                        // [B, L, D]; between the halves
  TransformerHalfCache<T> second;        // about the feed-forward
  FeedForwardCache<T> feed_forward;      // what it left
};

}  // namespace headwise::inline v0_1

// headwise/nn/transformer_block_steps.hpp
// The steps of a TransformerBlock, forward and backward. Its halves are alike: a branch, attention
// or feed-forward, is added to what it started from.
//
//   pre-LN                       post-LN
//   1 norm    n = norm(x)        2 branch  b = branch(x)
//   2 branch  b = branch(n)      3 add     s = x + b
//   3 add     y = x + b          1 norm    y = norm(s)
//
// Backward walks the same list up.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
Tensor<T, 3> like(const In<T, 3>& x, const Context& context) {
  return Tensor<T, 3>::uninitialized(x.shape(), context.memory);
}

/// x + b, in b.
template <class T>
void add_to_branch(const In<T, 3>& x, Tensor<T, 3>& b, const Context& context) {
  add_forward(In<T, 2>(merge_rows(x)), In<T, 2>(merge_rows(b)), merge_rows(b), context);
}

/// One norm of a block, of either kind.
template <class T>
struct BlockNorm {
  const TransformerBlockOptions& options;
  const LayerNormParameters<T>& p;

  /// Step 1: y = norm(x).
  Tensor<T, 3> forward(In<T, 3> x, TransformerHalfCache<T>& cache, const Context& context) const {
    const Index N = x.extent(0) * x.extent(1);
    Tensor<T, 3> y = like(x, context);
    const T epsilon = T(options.norm_epsilon);
    cache.norm_input = x;
    cache.rstd = Tensor<T, 1>::uninitialized({N}, context.memory);
    if (options.norm == NormKind::rms_norm) {
      rms_norm_forward(In<T, 2>(merge_rows(x)), p.gamma, epsilon, merge_rows(y), cache.rstd,
                       context);
      return y;
    }
    cache.mean = Tensor<T, 1>::uninitialized({N}, context.memory);
    layer_norm_forward(In<T, 2>(merge_rows(x)), {p.gamma, p.beta}, epsilon, merge_rows(y),
                       {cache.mean, cache.rstd}, context);
    return y;
  }
  /// dx, overwritten, and the gradients, added to; {} and null for none.
  void backward(In<T, 3> dy, const TransformerHalfCache<T>& cache, Out<T, 2> dx,
                LayerNormParameters<T>* gradients, const Context& context) const {
    const In<T, 2> x = merge_rows(cache.norm_input), dy_rows = merge_rows(dy);
    const InOut<T, 1> none;
    const InOut<T, 1> dgamma = gradients == nullptr ? none : InOut<T, 1>(gradients->gamma);
    if (options.norm == NormKind::rms_norm) {
      return rms_norm_backward(dy_rows, x, p.gamma, cache.rstd, dx, dgamma, context);
    }
    const InOut<T, 1> dbeta = gradients == nullptr ? none : InOut<T, 1>(gradients->beta);
    layer_norm_backward(dy_rows, x, p.gamma, {cache.mean, cache.rstd}, dx, {dgamma, dbeta},
                        context);
  }
};

/// Steps 1 to 3 of a half: branch(n) is a tensor of its own.
template <class T, class Branch>
Tensor<T, 3> half_forward(const BlockNorm<T>& norm, In<T, 3> x, TransformerHalfCache<T>& cache,
                          const Context& context, const Branch& branch) {
  if (norm.options.norm_first) {
    cache.normed = norm.forward(x, cache, context);
    Tensor<T, 3> y = branch(In<T, 3>(cache.normed));
    add_to_branch(x, y, context);
    return y;
  }
  cache.sum = branch(x);
  add_to_branch(x, cache.sum, context);
  return norm.forward(cache.sum, cache, context);
}

/// Steps 3 to 1 of a half. What the norm's gradients are of is kept: they come when nothing can
/// fail any more.
template <class T>
class HalfBackward {
 public:
  HalfBackward(const BlockNorm<T>& norm, const TransformerHalfCache<T>& cache, In<T, 3> dy,
               const Context& context)
      : norm_(norm), cache_(cache), dy_(dy), d_sum_(dy) {
    if (norm_.options.norm_first) return;
    d_sum_storage_ = like(dy, context);
    norm_.backward(dy_, cache_, merge_rows(d_sum_storage_), nullptr, context);
    d_sum_ = d_sum_storage_;
  }
  HalfBackward(const HalfBackward&) = delete;
  HalfBackward& operator=(const HalfBackward&) = delete;

  /// The gradient of what the branch gave.
  In<T, 3> d_branch() const { return d_sum_; }
  /// dx, from the gradient of what the branch read.
  void finish(Tensor<T, 3> d_read, Tensor<T, 3>& dx, const Context& context) {
    d_read_ = std::move(d_read);
    if (norm_.options.norm_first) {
      norm_.backward(d_read_, cache_, merge_rows(dx), nullptr, context);
      add_to_branch(d_sum_, dx, context);
    } else {
      add_forward(In<T, 2>(merge_rows(d_sum_)), merge_rows(In<T, 3>(d_read_)), merge_rows(dx),
                  context);
    }
  }
  /// The gradients of the norm.
  void add_to(LayerNormParameters<T>& gradients, const Context& context) const {
    norm_.backward(norm_.options.norm_first ? In<T, 3>(d_read_) : dy_, cache_, {}, &gradients,
                   context);
  }

 private:
  const BlockNorm<T> norm_;
  const TransformerHalfCache<T>& cache_;
  const In<T, 3> dy_;           // [B, L, D]
  In<T, 3> d_sum_;              // [B, L, D]; dy, or past the norm
  Tensor<T, 3> d_sum_storage_;  // post-LN
  Tensor<T, 3> d_read_;         // [B, L, D]
};

template <class T>
Tensor<T, 3> transformer_block_forward(const TransformerBlockOptions& o,
                                       const TransformerBlockParameters<T>& p, In<T, 3> x_in,
                                       const TransformerBlockCall<T>& call,
                                       TransformerBlockCache<T>& cache, bool training,
                                       const Context& context) {
  cache.module = o;
  cache.x = uniform_rows(x_in, cache.x_copy, context.memory);
  const auto attend_to = [&](In<T, 3> x) {
    return multi_head_attention_forward<T>(o.attention(), p.attention, {x, x, x, true},
                                           call.attention(), cache.attention, training, context);
  };
  const auto feed_forward = [&](In<T, 3> x) {
    Tensor<T, 3> y = like(x, context);
    cache.feed_forward.call = call.feed_forward();
    feed_forward_forward<T>(o.feed_forward(), p.feed_forward, merge_rows(x), cache.feed_forward,
                            merge_rows(y), context);
    return y;
  };
  cache.h = half_forward<T>({o, p.norm1}, cache.x, cache.first, context, attend_to);
  Tensor<T, 3> y = half_forward<T>({o, p.norm2}, cache.h, cache.second, context, feed_forward);
  cache.filled = true;
  return y;
}

template <class T>
Tensor<T, 3> transformer_block_backward(const TransformerBlockOptions& o,
                                        const TransformerBlockParameters<T>& p, In<T, 3> dy_in,
                                        const TransformerBlockCache<T>& cache,
                                        TransformerBlockGradients<T>& gradients,
                                        const Context& context) {
  Tensor<T, 3> dy_storage, dh = like(cache.x, context), dx = like(cache.x, context);
  const In<T, 3> dy = uniform_rows(dy_in, dy_storage, context.memory);
  // The second half
  HalfBackward<T> second({o, p.norm2}, cache.second, dy, context);
  Tensor<T, 3> d_read = like(cache.x, context);
  FeedForwardBackward<T> feed_forward(o.feed_forward(), p.feed_forward,
                                      merge_rows(second.d_branch()), cache.feed_forward,
                                      merge_rows(d_read), context);
  second.finish(std::move(d_read), dh, context);
  // The first half. Attention writes its gradients last; nothing that follows can fail.
  HalfBackward<T> first({o, p.norm1}, cache.first, dh, context);
  auto d_attended = multi_head_attention_backward<T>("MultiHeadAttention::backward", o.attention(),
                                                     p.attention, first.d_branch(), cache.attention,
                                                     gradients.attention, context);
  first.finish(std::move(d_attended.query), dx, context);
  first.add_to(gradients.norm1, context);
  second.add_to(gradients.norm2, context);
  feed_forward.add_to(gradients.feed_forward, context);
  return dx;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/nn/transformer_block.hpp
// A layer of a transformer: attention, then a feed-forward, each added to what it started from.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// pre-LN:  h = x + attention(norm1(x)), y = h + feed_forward(norm2(h))
/// post-LN: h = norm1(x + attention(x)), y = norm2(h + feed_forward(h))
///
/// Parameters are plain data; forward and backward are const and keep what a backward needs in a
/// cache of the caller's. A call that throws, std::bad_alloc included, leaves cache and gradients
/// as they were; only an executor of the caller's that throws while it runs leaves gradients that
/// are added to in part.
/// Source: Vaswani et al., 2017, arXiv 1706.03762, section 3.1; pre-LN: Xiong et al., 2020, arXiv
/// 2002.04745.
template <Scalar T>
class TransformerBlock {
 public:
  /// What one call is asked for: mask, path, dropouts.
  using Call = TransformerBlockCall<T>;
  /// What forward leaves for backward.
  using Cache = TransformerBlockCache<T>;
  /// What backward adds to.
  using Gradients = TransformerBlockGradients<T>;

  /// Weights by options.init and options.seed, biases 0, gamma 1, beta 0. Throws ArgumentError for
  /// options that make no block.
  explicit TransformerBlock(const TransformerBlockOptions& options)
      : options_(options.resolved()), parameters_(options_) {
    MultiHeadAttention<T> attention(options_.attention());
    FeedForward<T> feed_forward(options_.feed_forward());
    parameters_.attention = std::move(attention.parameters());
    parameters_.feed_forward = std::move(feed_forward.parameters());
    fill(Out<T, 1>(parameters_.norm1.gamma), T(1));
    fill(Out<T, 1>(parameters_.norm2.gamma), T(1));
  }

  /// y [B, L, D] for x [B, L, D]: inference.
  ///
  /// call.mask must fit [B, H, L, L]. Throws ShapeError or ArgumentError for what does not fit, in
  /// the words of the module within where it is that one's rule, before anything is written or
  /// counted; and std::bad_alloc.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call = {}, const Context& context = {}) const {
    Cache unused;
    return run(x, call, unused, false, context);
  }
  /// The same, and what backward needs into the cache, once all has gone well. x must outlive the
  /// backward call.
  Tensor<T, 3> forward(In<T, 3> x, const Call& call, Cache& cache,
                       const Context& context = {}) const {
    Cache fresh;
    Tensor<T, 3> y = run(x, call, fresh, true, context);
    cache = std::move(fresh);
    return y;
  }
  Tensor<T, 3> forward(const Tensor<T, 3>&& temporary, const Call& call, Cache& cache,
                       const Context& context = {}) const = delete;  // gone before backward

  /// dx [B, L, D] for dy [B, L, D]; the parameters' gradients are added to `gradients`.
  ///
  /// Throws ArgumentError for a cache that is empty or of a block of another shape, ShapeError,
  /// std::bad_alloc; nothing is changed then.
  Tensor<T, 3> backward(In<T, 3> dy, const Cache& cache, Gradients& gradients,
                        const Context& context = {}) const {
    constexpr std::string_view function = "TransformerBlock::backward";
    require(cache.filled, function, "the cache is empty: pass it to forward first");
    require(cache.module.same_shape(options_), function,
            "the cache is of a block of another shape, expected one that this block filled");
    require_shape(function, "cache.h", cache.h, cache.x.shape(),
                  "what forward left: a cache that was moved from is empty");
    require_shape(function, "dy", dy, cache.x.shape(), "the output");
    const auto check = [&](const char* name, const Tensor<T, 1>& mine, const Tensor<T, 1>& theirs) {
      require_shape(function, name, mine, theirs.shape(), "zero_gradients()");
    };
    check("gradients.norm1.gamma", gradients.norm1.gamma, parameters_.norm1.gamma);
    check("gradients.norm1.beta", gradients.norm1.beta, parameters_.norm1.beta);
    check("gradients.norm2.gamma", gradients.norm2.gamma, parameters_.norm2.gamma);
    check("gradients.norm2.beta", gradients.norm2.beta, parameters_.norm2.beta);
    gradients.attention.require_shapes_of(parameters_.attention, "MultiHeadAttention::backward");
    detail::require_feed_forward_gradients("FeedForward::backward", parameters_.feed_forward,
                                           gradients.feed_forward);
    return detail::transformer_block_backward<T>(options_, parameters_, dy, cache, gradients,
                                                 context);
  }

  /// Gradients of the right shapes, all 0. Throws std::bad_alloc.
  Gradients zero_gradients(
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    return Gradients(options_, memory);
  }

  /// The options with every default filled in.
  const TransformerBlockOptions& options() const { return options_; }
  /// The weights, to be read and written.
  TransformerBlockParameters<T>& parameters() { return parameters_; }
  /// The weights.
  const TransformerBlockParameters<T>& parameters() const { return parameters_; }

 private:
  Tensor<T, 3> run(In<T, 3> x, const Call& call, Cache& cache, bool training,
                   const Context& context) const {
    constexpr std::string_view function = "TransformerBlock::forward";
    const Index B = x.extent(0), L = x.extent(1);
    require_shape(function, "x", x, Shape{B, L, options_.d_model},
                  [&] { return "d_model " + std::to_string(options_.d_model); });
    require_shape(function, "norm1.gamma", In<T, 1>(parameters_.norm1.gamma),
                  Shape{options_.d_model}, "the options: a block that was moved from has none");
    detail::require_call<T>(options_.attention(), {x, x, x, true}, call.attention());
    call.hidden_dropout.require_valid(function);
    call.output_dropout.require_valid(function);
    return detail::transformer_block_forward<T>(options_, parameters_, x, call, cache, training,
                                                context);
  }

  TransformerBlockOptions options_;
  TransformerBlockParameters<T> parameters_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/optim/parameter_list.hpp
// What an optimiser walks: parameters by name, each with its values and its gradient, of any module
// and any number of axes. Views: nothing here owns or copies an element.
//   ParameterList<float> list;
//   collect(list, "attention.", attention.parameters(), gradients);

namespace headwise::inline v0_1 {

/// The most axes that a parameter may have: as many as a file can say.
inline constexpr int max_parameter_rank = 8;

/// A tensor by name, whatever its rank.
template <class T>
struct NamedTensor {
  std::string name;                        // as "blocks.0.W_Q"
  int rank = 0;                            // its axes, at least 1
  TensorView<T, max_parameter_rank> view;  // they come last: those in front have extent 1

  /// The extents of its own axes, outermost first.
  std::vector<Index> extents() const {
    const auto& all = view.shape().extents;
    return {all.end() - rank, all.end()};
  }
};

/// A parameter: what a step changes, and what it is changed by.
template <class T>
struct Parameter : NamedTensor<T> {
  TensorView<T, max_parameter_rank> gradient;  // of the shape of the values
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The same elements with axes of extent 1 in front.
template <class T, int R>
TensorView<T, max_parameter_rank> with_all_axes(const Out<T, R>& view) {
  static_assert(R <= max_parameter_rank, "a parameter has at most 8 axes");
  Shape<max_parameter_rank> shape, strides;
  for (int r = 0; r < max_parameter_rank; ++r) {
    const int from = r - (max_parameter_rank - R);
    shape[r] = from < 0 ? 1 : view.extent(from);
    strides[r] = from < 0 ? 0 : view.stride(from);
  }
  return {view.data(), shape, strides};
}

/// Elements begin ... end - 1 of a parameter, counted row-major: a part of a step.
struct ParameterTask {
  std::size_t parameter;
  Index begin, end;
};

/// Elements of a part: some microseconds.
inline constexpr Index elements_of_step = 16384;

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Parameters in the order in which they were added, no two of one name, none over another's
/// memory. What they view must outlive the list, and keeps its place: a module may be moved, but
/// not assigned to.
template <Scalar T>
class ParameterList {
 public:
  /// Adds a parameter, any strides.
  ///
  /// name       not empty, not added before
  /// value      written to by each step; absent tensors are no parameters
  /// gradient   the shape of value; written to by clip_grad_norm and zero_gradients
  ///
  /// Throws   ArgumentError or ShapeError, std::bad_alloc; the list then is as it was.
  template <int R>
  void add(std::string name, Out<T, R> value, Out<std::type_identity_t<T>, R> gradient) {
    constexpr std::string_view function = "ParameterList::add";
    require_countable(function, "value", value);
    require_shape(function, "gradient", gradient, value.shape(), "the shape of value");
    add_checked(function, {{std::move(name), R, detail::with_all_axes(value)},
                           detail::with_all_axes(gradient)});
  }
  /// Adds a parameter of another list. Throws as above.
  void add(const Parameter<T>& parameter) { add_checked("ParameterList::add", parameter); }

  /// How many parameters there are.
  std::size_t size() const { return parameters_.size(); }
  /// Whether there is none.
  bool empty() const { return parameters_.empty(); }
  /// How many numbers they hold together.
  Index elements() const { return elements_; }
  /// One of them.
  const Parameter<T>& operator[](std::size_t n) const { return parameters_[n]; }
  /// All of them, as a range.
  ///@{
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }
  ///@}

  /// Those with two axes or more: what weight decay is for.
  ParameterList matrices() const {
    return those([](const Parameter<T>& p) { return p.rank >= 2; });
  }
  /// Those with one axis: biases, gains and offsets.
  ParameterList vectors() const {
    return those([](const Parameter<T>& p) { return p.rank < 2; });
  }

  /// How a step over all of them is cut; by their shapes alone.
  const std::vector<detail::ParameterTask>& tasks() const { return tasks_; }

 private:
  void add_checked(std::string_view function, Parameter<T> added) {
    require(!added.name.empty(), function, "name is empty, expected one like W_Q");
    require_apart(function, {"value", added.view}, {{"gradient", added.gradient}});
    require_distinct(function, {"gradient", added.gradient});
    for (const Parameter<T>& p : parameters_) {
      require(p.name != added.name, function,
              [&] { return "name " + added.name + " was added before"; });
      require_apart(function, {"value", added.view},
                    {{"an earlier value", p.view}, {"an earlier gradient", p.gradient}});
      require_apart(function, {"gradient", added.gradient},
                    {{"an earlier value", p.view}, {"an earlier gradient", p.gradient}});
    }
    const Index count = added.view.size(), step = detail::elements_of_step;
    std::vector<detail::ParameterTask> tasks = tasks_;
    for (Index n = 0; n < count; n += step) {
      tasks.push_back({parameters_.size(), n, std::min<Index>(count, n + step)});
    }
    parameters_.push_back(std::move(added));
    tasks_.swap(tasks);
    elements_ += count;
  }

  template <class Wanted>
  ParameterList those(const Wanted& wanted) const {
    ParameterList part;
    for (const Parameter<T>& p : parameters_) {
      if (wanted(p)) part.add(p);
    }
    return part;
  }

  std::vector<Parameter<T>> parameters_;
  std::vector<detail::ParameterTask> tasks_;
  Index elements_ = 0;
};

/// Adds the parameters of a module, each with its gradient.
///
/// prefix       goes in front of the names: "blocks.0."
/// parameters   what a module's parameters() gives, or anything with for_each(f(name, view),
/// prefix) gradients    the same of zero_gradients(): the same tensors in the same order
///
/// Throws   ShapeError where they are of another module, and as ParameterList::add does; the list
///          then is as it was.
template <Scalar T, class Parameters, class Gradients>
void collect(ParameterList<T>& list, const std::string& prefix, Parameters& parameters,
             Gradients& gradients) {
  std::vector<NamedTensor<T>> values, slopes;
  const auto into = [](std::vector<NamedTensor<T>>& to) {
    return [&to](const std::string& name, auto view) {
      to.push_back({name, decltype(view)::rank, detail::with_all_axes(view)});
    };
  };
  parameters.for_each(into(values), prefix);
  if constexpr (requires { gradients.for_each(into(slopes), prefix); }) {
    gradients.for_each(into(slopes), prefix);
  } else {  // those that name themselves
    gradients.for_each(into(slopes));
  }
  require(values.size() == slopes.size(), "collect", [&] {
    return "gradients hold " + std::to_string(slopes.size()) + " tensors, expected " +
           std::to_string(values.size()) + " (parameters)";
  });
  ParameterList<T> longer = list;
  for (std::size_t n = 0; n < values.size(); ++n) {
    if (values[n].extents() != slopes[n].extents()) {
      raise<ShapeError>("collect: the gradient of " + values[n].name + " is " +
                        format_extents(slopes[n].extents()) + ", expected " +
                        format_extents(values[n].extents()) + " (zero_gradients())");
    }
    longer.add({std::move(values[n]), slopes[n].view});
  }
  list = std::move(longer);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/optim/parameter_runs.hpp
// Elements of a parameter as runs that kernels can take: where values and gradients are dense, all
// of a task at once; else row by row, and through copies where the elements of a row lie apart.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Elements that are copied at once.
inline constexpr Index elements_of_copy = 512;

/// Element n, counted row-major.
template <class T>
T* element_at(const TensorView<T, max_parameter_rank>& view, Index n) {
  Index offset = 0;
  for (int r = max_parameter_rank - 1; r >= 0; --r) {
    const Index extent = view.extent(r);
    if (extent == 1) continue;
    offset += n % extent * view.stride(r);
    n /= extent;
  }
  return view.data() + offset;
}

/// How far apart the elements of a run lie.
template <class T>
Index step_of(const TensorView<T, max_parameter_rank>& view) {
  return view.extent(max_parameter_rank - 1) == 1 ? 1 : view.stride(max_parameter_rank - 1);
}

/// f(first, count) for runs of elements: the whole where they are dense, else parts of rows.
template <class T, class F>
void for_runs(const TensorView<T, max_parameter_rank>& view, bool dense, Index begin, Index end,
              const F& f) {
  const Index width = view.extent(max_parameter_rank - 1);
  while (begin < end) {
    const Index stop = dense ? end : std::min<Index>(end, (begin / width + 1) * width);
    f(begin, stop - begin);
    begin = stop;
  }
}

/// f(value, gradient, first, count) over dense elements first ... first + count - 1. What f writes
/// to value is the parameter's.
template <class T, class F>
void update_runs(const Parameter<T>& p, const ParameterTask& task, const F& f) {
  const bool dense = p.view.dense() && p.gradient.dense();
  const Index step = dense ? 1 : step_of(p.view), gradient_step = dense ? 1 : step_of(p.gradient);
  for_runs(p.view, dense, task.begin, task.end, [&](Index first, Index count) {
    T* const value = element_at(p.view, first);
    T* const gradient = element_at(p.gradient, first);
    if (step == 1 && gradient_step == 1) return f(value, gradient, first, count);
    T values[std::size_t{elements_of_copy}], slopes[std::size_t{elements_of_copy}];
    for (Index begin = 0; begin < count; begin += elements_of_copy) {
      const Index n = std::min<Index>(elements_of_copy, count - begin);
      for (Index i = 0; i < n; ++i) values[i] = value[(begin + i) * step];
      for (Index i = 0; i < n; ++i) slopes[i] = gradient[(begin + i) * gradient_step];
      f(values, slopes, first + begin, n);
      for (Index i = 0; i < n; ++i) value[(begin + i) * step] = values[i];
    }
  });
}

HEADWISE_STRICT_MATH_BEGIN

/// The sum of the squares of a task's gradients, the same for any strides: of so many elements at
/// a time, one sum after the other.
template <class T>
kernels::SumOf<T> sum_task(const Parameter<T>& p, const ParameterTask& task) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const bool dense = p.gradient.dense();
  const Index step = step_of(p.gradient);
  kernels::SumOf<T> sum(0);
  for (Index begin = task.begin; begin < task.end; begin += elements_of_copy) {
    const Index end = std::min<Index>(task.end, begin + elements_of_copy);
    if (dense) {
      sum = sum + run.sum_of_squares(p.gradient.data() + begin, end - begin);
      continue;
    }
    T copy[std::size_t{elements_of_copy}];
    for_runs(p.gradient, false, begin, end, [&](Index first, Index count) {
      const T* const from = element_at(p.gradient, first);
      for (Index i = 0; i < count; ++i) copy[first - begin + i] = from[i * step];
    });
    sum = sum + run.sum_of_squares(copy, end - begin);
  }
  return sum;
}

HEADWISE_STRICT_MATH_END

/// f(parameter, task) for every task, on the context's workers.
template <class T, class F>
void for_tasks(const ParameterList<T>& list, const Context& context, const F& f) {
  const auto& tasks = list.tasks();
  const auto run = [&](Index t, Index) {
    const ParameterTask& task = tasks[static_cast<std::size_t>(t)];
    f(list[task.parameter], task);
  };
  context.executor.run(static_cast<Index>(tasks.size()), run);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/optim/gradients.hpp
// What is done with all gradients at once, between backward and the optimiser's step: their norm,
// clipping by it, setting them to 0.
//
// Gradients are added to by backward: n small batches one after the other leave the sum of theirs.
// Where the loss is a mean, the gradient of the whole is that sum times 1 / n, which a step takes
// as its gradient_scale.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// sqrt(sum of the squares of every gradient in the list).
///
/// Squares are summed in double (in T where that is wider), in an order that the shapes alone
/// decide: the same bits for any strides and number of threads. What is not finite shows.
/// Work    2 FLOPs an element.
/// Throws  std::bad_alloc.
template <Scalar T>
kernels::SumOf<T> gradient_norm(const ParameterList<T>& list, const Context& context = {}) {
  using Sum = kernels::SumOf<T>;
  const auto& tasks = list.tasks();
  std::vector<Sum> sums(tasks.size());
  const auto run = [&](Index t, Index) {
    const auto at = static_cast<std::size_t>(t);
    sums[at] = detail::sum_task(list[tasks[at].parameter], tasks[at]);
  };
  context.executor.run(static_cast<Index>(tasks.size()), run);
  Sum sum(0);
  for (const Sum& part : sums) sum = sum + part;
  context.count_flops(2 * list.elements(), 2 * list.elements());
  using std::sqrt;
  return sqrt(sum);
}

/// What gradients of this norm are multiplied by so that their norm is at most max_norm:
/// max_norm / (norm + 1e-6), and never above 1. NaN for a norm that is NaN, 0 for an infinite one.
///
/// norm       what gradient_norm gave
/// max_norm   above 0
///
/// Throws  ArgumentError.
template <Scalar Sum>
Sum clip_factor(const Sum& norm, double max_norm) {
  require(is_finite_option(max_norm) && max_norm > 0, "clip_factor", [&] {
    return "max_norm is " + std::to_string(max_norm) + ", expected a finite number above 0";
  });
  const Sum factor = Sum(max_norm) / (norm + Sum(1e-6));
  return Sum(1) < factor ? Sum(1) : factor;
}

/// Multiplies every gradient by `factor`. Work: 1 FLOP an element.
template <Scalar T>
void scale_gradients(const ParameterList<T>& list, const std::type_identity_t<T>& factor,
                     const Context& context = {}) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  detail::for_tasks(list, context, [&](const Parameter<T>& p, const auto& task) {
    const bool dense = p.gradient.dense();
    const Index step = dense ? 1 : detail::step_of(p.gradient);
    detail::for_runs(p.gradient, dense, task.begin, task.end, [&](Index first, Index count) {
      T* const at = detail::element_at(p.gradient, first);
      if (step == 1) return run.scale_elements(factor, at, count);
      for (Index i = 0; i < count; ++i) at[i * step] = at[i * step] * factor;
    });
  });
  context.count_flops(list.elements(), list.elements());
}

/// Multiplies the gradients by clip_factor of their norm, so that it is at most max_norm after.
/// Returns what the norm was.
///
/// (A step that is given clip_factor as its gradient_scale does the same in one pass less.)
/// Work    3 FLOPs an element.
/// Throws  ArgumentError for a max_norm that is not above 0, before anything is written;
///         std::bad_alloc.
/// Source  Pascanu, Mikolov, Bengio, 2013, arXiv 1211.5063; torch.nn.utils.clip_grad_norm_.
template <Scalar T>
kernels::SumOf<T> clip_grad_norm(const ParameterList<T>& list, double max_norm,
                                 const Context& context = {}) {
  require(is_finite_option(max_norm) && max_norm > 0, "clip_grad_norm", [&] {
    return "max_norm is " + std::to_string(max_norm) + ", expected a finite number above 0";
  });
  const auto norm = gradient_norm(list, context);
  scale_gradients(list, static_cast<T>(clip_factor(norm, max_norm)), context);
  return norm;
}

HEADWISE_STRICT_MATH_END

/// Every gradient to 0: before the first backward of a step.
template <Scalar T>
void zero_gradients(const ParameterList<T>& list, const Context& context = {}) {
  detail::for_tasks(list, context, [&](const Parameter<T>& p, const auto& task) {
    const bool dense = p.gradient.dense();
    const Index step = dense ? 1 : detail::step_of(p.gradient);
    detail::for_runs(p.gradient, dense, task.begin, task.end, [&](Index first, Index count) {
      T* const at = detail::element_at(p.gradient, first);
      if (step == 1) return void(std::fill_n(at, count, T(0)));
      for (Index i = 0; i < count; ++i) at[i * step] = T(0);
    });
  });
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/optim/optimizer.hpp
// What optimisers share: groups of parameters with options of their own, tensors of state beside
// them, and the number of steps.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Parameters that are stepped with the same options.
template <Scalar T, class Options>
struct OptimizerGroup {
  ParameterList<T> parameters;          // what is stepped
  Options options;                      // may be changed between steps
  std::vector<Tensor<T, 1>> state;      // [elements]: kind after kind, as the parameters stand
  std::vector<std::string_view> kinds;  // of state: "m", "v"

  /// State of one kind of one parameter.
  Tensor<T, 1>& state_of(std::size_t kind, std::size_t parameter) {
    return state[kind * parameters.size() + parameter];
  }
};

/// Groups, their state and the number of steps: plain data, to be walked and written to. What a
/// step does stands in Sgd and AdamW.
template <Scalar T, class Options>
class Optimizer {
 public:
  /// A group, as add_group makes it.
  using Group = OptimizerGroup<T, Options>;

  /// Adds parameters that are stepped with these options; their state is 0. What the list views has
  /// to outlive the optimiser.
  ///
  /// Throws   ArgumentError for a name that is in a group already, for options out of range and
  ///          after the first step; std::bad_alloc. The optimiser then is as it was.
  void add_group(ParameterList<T> parameters, const Options& options,
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    constexpr std::string_view function = "Optimizer::add_group";
    options.require_step_options(function);
    require(steps_ == 0, function, [&] {
      return std::to_string(steps_) + " steps were taken, expected all groups before the first";
    });
    for (const Group& group : groups_) {
      for (const Parameter<T>& there : group.parameters) {
        for (const Parameter<T>& p : parameters) {
          require(p.name != there.name, function,
                  [&] { return "parameter " + p.name + " is in a group already"; });
        }
      }
    }
    Group group{std::move(parameters), options, {}, options.state_kinds()};
    for (std::size_t kind = 0; kind < group.kinds.size(); ++kind) {
      for (const Parameter<T>& p : group.parameters) {
        group.state.emplace_back(Shape<1>(p.view.size()), memory);
      }
    }
    groups_.push_back(std::move(group));
  }

  /// The groups; their options may be changed between steps.
  std::span<Group> groups() { return groups_; }
  /// The same, to be read.
  std::span<const Group> groups() const { return groups_; }

  /// Sets the learning rate of every group: what a schedule says of the step that comes.
  void set_learning_rate(double learning_rate) {
    for (Group& group : groups_) group.options.learning_rate = learning_rate;
  }

  /// The steps that were taken.
  std::int64_t steps() const { return steps_; }
  /// As if so many had been taken: for a state that was loaded. Throws ArgumentError below 0.
  void set_steps(std::int64_t steps) {
    require(steps >= 0, "Optimizer::set_steps",
            [&] { return "steps is " + std::to_string(steps) + ", expected >= 0"; });
    steps_ = steps;
  }

  /// f(tensor) for each tensor of state, a NamedTensor<T> in the shape of its parameter: "m.W_Q".
  template <class F>
  void for_each_state(F&& f) {
    for (Group& group : groups_) {
      for (std::size_t kind = 0; kind < group.kinds.size(); ++kind) {
        for (std::size_t n = 0; n < group.parameters.size(); ++n) {
          const Parameter<T>& p = group.parameters[n];
          f(NamedTensor<T>{std::string(group.kinds[kind]) + "." + p.name,
                           p.rank,
                           {group.state_of(kind, n).data(), p.view.shape()}});
        }
      }
    }
  }

 protected:
  /// Without groups.
  Optimizer() = default;
  ~Optimizer() = default;
  /// A copy has state of its own, and steps the same parameters.
  Optimizer(const Optimizer&) = default;
  /// Takes groups, state and steps.
  Optimizer(Optimizer&&) noexcept = default;
  /// A copy has state of its own, and steps the same parameters.
  Optimizer& operator=(const Optimizer&) = default;
  /// Takes groups, state and steps.
  Optimizer& operator=(Optimizer&&) noexcept = default;

  std::vector<Group> groups_;  // as they were added
  std::int64_t steps_ = 0;     // taken
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The rule of an option that is a number from 0 on.
inline void require_from_0(std::string_view function, std::string_view option, double value) {
  require(is_finite_option(value) && value >= 0, function, [&] {
    return std::string(option) + " is " + std::to_string(value) +
           ", expected a finite number of 0 or more";
  });
}

inline void require_gradient_scale(std::string_view function, double scale) {
  require(is_finite_option(scale), function, [&] {
    return "gradient_scale is " + std::to_string(scale) + ", expected a finite number";
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/optim/adamw.hpp
// AdamW: Adam with weight decay that is apart from the gradient.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Options of AdamW; the defaults are PyTorch's.
struct AdamWOptions {
  double learning_rate = 1e-3;  // >= 0
  double beta1 = 0.9;           // in [0, 1): how much of m is kept
  double beta2 = 0.999;         // in [0, 1): how much of v is kept
  double epsilon = 1e-8;        // >= 0, added to the root
  double weight_decay = 1e-2;   // >= 0, times the learning rate

  /// Throws ArgumentError for one that is out of range.
  void require_step_options(std::string_view function) const {
    const auto require_beta = [&](std::string_view option, double value) {
      require(is_finite_option(value) && value >= 0 && value < 1, function, [&] {
        return std::string(option) + " is " + std::to_string(value) +
               ", expected 0 or more and below 1";
      });
    };
    detail::require_from_0(function, "learning_rate", learning_rate);
    require_beta("beta1", beta1);
    require_beta("beta2", beta2);
    detail::require_from_0(function, "epsilon", epsilon);
    detail::require_from_0(function, "weight_decay", weight_decay);
  }
  /// The names of its tensors of state.
  std::vector<std::string_view> state_kinds() const { return {"m", "v"}; }
};

/// With step t = 1, 2, ... and, an element each, the gradient g and the value w:
///
///   w = w - rate decay w
///   m = beta1 m + (1 - beta1) g
///   v = beta2 v + (1 - beta2) g^2
///   w = w - rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
///
/// in the order of operations of PyTorch 2.6 (torch.optim.AdamW, for each tensor). State: m and v
/// of every parameter.
/// Source: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2019, arXiv 1711.05101;
/// Kingma, Ba, "Adam", 2015, arXiv 1412.6980.
template <Scalar T>
class AdamW : public Optimizer<T, AdamWOptions> {
 public:
  /// Without groups; see add_group.
  AdamW() = default;
  /// All parameters with the same options. Throws as add_group does.
  explicit AdamW(ParameterList<T> parameters, const AdamWOptions& options = {},
                 std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    this->add_group(std::move(parameters), options, memory);
  }

  /// One step along the gradients, which stay as they are.
  ///
  /// An element is computed from itself alone: the same bits for any strides, number of threads and
  /// instruction set. NaN in a gradient shows in the value from then on.
  /// Work    15 FLOPs an element, in one pass over w, g, m and v.
  /// Throws  ArgumentError for options out of range, before anything is written.
  void step(const Context& context = {}) { step(1, context); }
  /// The same with gradients times gradient_scale: a clip_factor, or 1 / n of n batches.
  void step(double gradient_scale, const Context& context = {}) {
    constexpr std::string_view function = "AdamW::step";
    for (const auto& group : this->groups_) group.options.require_step_options(function);
    detail::require_gradient_scale(function, gradient_scale);
    ++this->steps_;
    const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
    for (auto& group : this->groups_) {
      const kernels::AdamWStep<T> now = numbers(group.options, this->steps_, gradient_scale);
      detail::for_tasks(group.parameters, context, [&](const Parameter<T>& p, const auto& task) {
        T* const m = group.state_of(0, task.parameter).data();
        T* const v = group.state_of(1, task.parameter).data();
        detail::update_runs(p, task, [&](T* value, const T* gradient, Index first, Index count) {
          run.adamw(now, value, gradient, m + first, v + first, count);
        });
      });
      context.count_flops(15 * group.parameters.elements(), 15 * group.parameters.elements());
    }
  }

 private:
  static kernels::AdamWStep<T> numbers(const AdamWOptions& o, std::int64_t steps, double scale) {
    const auto t = static_cast<double>(steps);
    const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
    const double weight = 1 - o.beta1;
    return {.gradient_scale = T(scale),
            .keep = T(1 - o.learning_rate * o.weight_decay),
            .one_minus_beta1 = T(weight),
            .rest_of_m = T(1 - weight),
            .beta2 = T(o.beta2),
            .one_minus_beta2 = T(1 - o.beta2),
            .root_correction = T(std::sqrt(correction2)),
            .epsilon = T(o.epsilon),
            .minus_step = T(-(o.learning_rate / correction1)),
            .near_gradient = weight >= 0.5};
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/optim/schedules.hpp
// Learning rates as pure functions of the step, which is counted from 0: nothing to save, nothing
// to advance. A schedule is called with the steps that were taken before.
//   optimizer.set_learning_rate(schedule(optimizer.steps()));

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

inline void require_step(std::string_view schedule, std::int64_t step) {
  require(step >= 0, schedule,
          [&] { return "step is " + std::to_string(step) + ", expected >= 0"; });
}

inline void require_rate(std::string_view schedule, std::string_view name, double rate) {
  require(is_finite_option(rate) && rate >= 0, schedule, [&] {
    return std::string(name) + " is " + std::to_string(rate) +
           ", expected a finite number of 0 or more";
  });
}

inline void require_span(std::string_view schedule, std::int64_t warmup, std::int64_t total) {
  require(warmup >= 0, schedule,
          [&] { return "warmup_steps is " + std::to_string(warmup) + ", expected >= 0"; });
  require(total >= warmup, schedule, [&] {
    return "total_steps is " + std::to_string(total) + ", expected at least warmup_steps, " +
           std::to_string(warmup);
  });
}

HEADWISE_STRICT_MATH_BEGIN

/// Where between the end of the warm-up, 0, and the last step, 1.
inline double progress(std::int64_t step, std::int64_t warmup, std::int64_t total) {
  if (step >= total) return 1;
  return static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// The same rate for ever.
struct ConstantSchedule {
  double rate = 1e-3;  // >= 0

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("ConstantSchedule", "rate", rate);
    detail::require_step("ConstantSchedule", step);
    return rate;
  }
};

/// Up to the peak in equal steps, then down to the floor along half a cosine:
///   peak (step + 1) / warmup_steps                            while step < warmup_steps,
///   floor + (peak - floor) (1 + cos(pi progress)) / 2         then; the floor from total_steps on.
/// Source: Loshchilov, Hutter, "SGDR", 2017, arXiv 1608.03983, equation 5, without restarts.
struct CosineSchedule {
  double peak = 1e-3;             // >= 0
  double floor = 0;               // >= 0
  std::int64_t warmup_steps = 0;  // >= 0
  std::int64_t total_steps = 1;   // >= warmup_steps

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("CosineSchedule", "peak", peak);
    detail::require_rate("CosineSchedule", "floor", floor);
    detail::require_span("CosineSchedule", warmup_steps, total_steps);
    detail::require_step("CosineSchedule", step);
    if (step < warmup_steps) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    }
    const double progress = detail::progress(step, warmup_steps, total_steps);
    return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
  }
};

/// Up to the peak as CosineSchedule, then down to the floor along a straight line.
struct LinearSchedule {
  double peak = 1e-3;             // >= 0
  double floor = 0;               // >= 0
  std::int64_t warmup_steps = 0;  // >= 0
  std::int64_t total_steps = 1;   // >= warmup_steps

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("LinearSchedule", "peak", peak);
    detail::require_rate("LinearSchedule", "floor", floor);
    detail::require_span("LinearSchedule", warmup_steps, total_steps);
    detail::require_step("LinearSchedule", step);
    if (step < warmup_steps) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    }
    return peak + (floor - peak) * detail::progress(step, warmup_steps, total_steps);
  }
};

/// initial factor^(step / every), the quotient rounded down.
struct StepSchedule {
  double initial = 1e-3;   // >= 0
  double factor = 0.1;     // >= 0
  std::int64_t every = 1;  // >= 1

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("StepSchedule", "initial", initial);
    detail::require_rate("StepSchedule", "factor", factor);
    require(every >= 1, "StepSchedule",
            [&] { return "every is " + std::to_string(every) + ", expected >= 1"; });
    detail::require_step("StepSchedule", step);
    const std::int64_t steps_down = step / every;
    return initial * std::pow(factor, static_cast<double>(steps_down));
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/optim/sgd.hpp
// Gradient descent, with momentum where it is asked for.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Options of Sgd; the defaults are PyTorch's.
struct SgdOptions {
  double learning_rate = 1e-3;  // >= 0
  double momentum = 0;          // >= 0; 0 for none, and no state
  double dampening = 0;         // how much of a gradient does not reach the velocity
  bool nesterov = false;        // look ahead along the velocity: momentum above 0, no dampening
  double weight_decay = 0;      // >= 0, times the value, added to the gradient

  /// Throws ArgumentError for one that is out of range.
  void require_step_options(std::string_view function) const {
    detail::require_from_0(function, "learning_rate", learning_rate);
    detail::require_from_0(function, "momentum", momentum);
    require(is_finite_option(dampening), function, [&] {
      return "dampening is " + std::to_string(dampening) + ", expected a finite number";
    });
    require(!nesterov || (momentum > 0 && !(dampening < 0) && !(dampening > 0)), function,
            "nesterov is set, expected a momentum above 0 and no dampening with it");
    detail::require_from_0(function, "weight_decay", weight_decay);
  }
  /// The names of its tensors of state.
  std::vector<std::string_view> state_kinds() const {
    return momentum > 0 ? std::vector<std::string_view>{"velocity"}
                        : std::vector<std::string_view>{};
  }
};

/// With, an element each, the gradient g, the value w and the velocity u:
///
///   g = g + decay w
///   u = momentum u + (1 - dampening) g; the first time u = g
///   g = u, or g + momentum u with nesterov
///   w = w - rate g
///
/// in the order of operations of PyTorch 2.6 (torch.optim.SGD, for each tensor). State: u of every
/// parameter whose group has momentum when it is added.
/// Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in
/// deep learning", ICML 2013.
template <Scalar T>
class Sgd : public Optimizer<T, SgdOptions> {
 public:
  /// Without groups; see add_group.
  Sgd() = default;
  /// All parameters with the same options. Throws as add_group does.
  explicit Sgd(ParameterList<T> parameters, const SgdOptions& options = {},
               std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    this->add_group(std::move(parameters), options, memory);
  }

  /// One step along the gradients, which stay as they are.
  ///
  /// An element is computed from itself alone: the same bits for any strides, number of threads and
  /// instruction set. NaN in a gradient shows in the value from then on.
  /// Work    3 FLOPs an element, 2 more with weight decay, 3 with momentum from the second step on,
  ///         2 with nesterov.
  /// Throws  ArgumentError for options out of range, before anything is written.
  void step(const Context& context = {}) { step(1, context); }
  /// The same with gradients times gradient_scale: a clip_factor, or 1 / n of n batches.
  void step(double gradient_scale, const Context& context = {}) {
    constexpr std::string_view function = "Sgd::step";
    for (const auto& group : this->groups_) {
      group.options.require_step_options(function);
      require((group.options.momentum > 0) == !group.kinds.empty(), function,
              "momentum is 0 where it was not when the group was added, or the other way round");
    }
    detail::require_gradient_scale(function, gradient_scale);
    const bool first = this->steps_++ == 0;
    const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
    for (auto& group : this->groups_) {
      const SgdOptions& o = group.options;
      const bool moves = !group.kinds.empty();
      const kernels::SgdStep<T> now = numbers(o, first, gradient_scale);
      detail::for_tasks(group.parameters, context, [&](const Parameter<T>& p, const auto& task) {
        T* const u = moves ? group.state_of(0, task.parameter).data() : nullptr;
        detail::update_runs(
            p, task, [&](T* value, const T* gradient, Index first_element, Index count) {
              run.sgd(now, value, gradient, moves ? u + first_element : nullptr, count);
            });
      });
      const std::int64_t each =
          3 + (now.decays ? 2 : 0) + (moves && !first ? 3 : 0) + (now.nesterov ? 2 : 0);
      context.count_flops(each * group.parameters.elements(), each * group.parameters.elements());
    }
  }

 private:
  static kernels::SgdStep<T> numbers(const SgdOptions& o, bool first, double scale) {
    return {.gradient_scale = T(scale),
            .weight_decay = T(o.weight_decay),
            .momentum = T(o.momentum),
            .one_minus_dampening = T(1 - o.dampening),
            .minus_rate = T(-o.learning_rate),
            .decays = o.weight_decay > 0,
            .first = first,
            .nesterov = o.nesterov};
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/version.hpp
// The one place of the version: CMake reads it from here. While MAJOR is 0, another MINOR may
// change the interface; the namespace headwise::v0_1 names both.

#if defined(HEADWISE_VERSION_MAJOR)
#error "two copies of headwise meet in one translation unit: look for two include paths to it"
#endif

#define HEADWISE_VERSION_MAJOR 0
#define HEADWISE_VERSION_MINOR 1
#define HEADWISE_VERSION_PATCH 0

/// #if HEADWISE_VERSION_AT_LEAST(0, 1, 0)
#define HEADWISE_VERSION_AT_LEAST(major, minor, patch) \
  (HEADWISE_VERSION >= (major)*10000 + (minor)*100 + (patch))
#define HEADWISE_VERSION \
  (HEADWISE_VERSION_MAJOR * 10000 + HEADWISE_VERSION_MINOR * 100 + HEADWISE_VERSION_PATCH)

// headwise/print_config.hpp
// What a report of a fault should begin with: versions, flags, vectors, processor. It says what
// this translation unit was compiled with, which may differ from others of the program.

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// One line a fact, a word and what it is: "headwise    0.1.0".
inline std::string format_config() {
  const auto dotted = [](int first, int second, int third) {
    return std::to_string(first) + "." + std::to_string(second) + "." + std::to_string(third);
  };
  const auto line = [](std::string word, const std::string& text) {
    word.resize(12, ' ');
    return word + text + "\n";
  };
  const auto yes_or_no = [](bool yes) { return std::string(yes ? "yes" : "no"); };
  std::string text;
  text += line("headwise",
               dotted(HEADWISE_VERSION_MAJOR, HEADWISE_VERSION_MINOR, HEADWISE_VERSION_PATCH));
  text += line("compiler", std::string(HEADWISE_COMPILER) + " " + __VERSION__ + ", C++ " +
                               std::to_string(__cplusplus));
#if defined(EIGEN_PATCH_VERSION)  // from 5 on; the "world" stays 3 for ever
  text += line("Eigen", dotted(EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION, EIGEN_PATCH_VERSION));
#else
  text += line("Eigen", dotted(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION));
#endif
  text += line("flags", HEADWISE_CODE_NAME);
  text += line("kernels", std::string(name_of(instruction_set())));
  // Not the kernels' own lanes: to name them here has them compiled wherever this is included.
  const auto bytes = static_cast<std::size_t>(vector_bytes(instruction_set()));
  text += line("vectors", std::to_string(bytes / sizeof(float)) + " float, " +
                              std::to_string(bytes / sizeof(double)) + " double");
  text += line("alignment", std::to_string(storage_alignment) + " bytes");
  text += line("processor", processor_features());
  text += line("threads", std::to_string(std::thread::hardware_concurrency()) + " in hardware");
  text += line("exceptions", yes_or_no(HEADWISE_HAS_EXCEPTIONS));
  text += line("compiled", yes_or_no(HEADWISE_USES_COMPILED));
  return text;
}

/// Prints format_config() to stdout.
inline void print_config() { std::fputs(format_config().c_str(), stdout); }

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/tensor/eigen.hpp
// The bridge to Eigen. Tensors are row-major; Eigen's default is column-major. What would be read
// transposed does not compile: convert it by name instead.

namespace headwise::inline v0_1 {

/// Eigen's matrix in row-major order: what headwise reads and writes in place.
template <class T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// Strides that are known only at run time.
using EigenStride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

/// A [N, M] view as an Eigen matrix expression over the same storage, whatever its strides.
template <class T>
Eigen::Map<const EigenMatrix<T>, 0, EigenStride> eigen_map(const In<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1), EigenStride(view.stride(0), view.stride(1))};
}
/// The same, to be written to.
template <class T>
Eigen::Map<EigenMatrix<T>, 0, EigenStride> eigen_map(const Out<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1), EigenStride(view.stride(0), view.stride(1))};
}
/// The same of a tensor.
template <class T>
auto eigen_map(Tensor<T, 2>& tensor) {
  return eigen_map(Out<T, 2>(tensor));
}
/// The same of a tensor that is only read.
template <class T>
auto eigen_map(const Tensor<T, 2>& tensor) {
  return eigen_map(In<T, 2>(tensor));
}

/// A [N] view as an Eigen row vector.
template <class T>
Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>, 0, Eigen::InnerStride<>> eigen_map(
    const In<T, 1>& view) {
  return {view.data(), view.extent(0), Eigen::InnerStride<>(view.stride(0))};
}

namespace detail {

template <class Derived>
inline constexpr bool eigen_is_writable =
    !std::is_const_v<Derived> && (static_cast<int>(Derived::Flags) & Eigen::LvalueBit) != 0;

template <class Derived>
inline constexpr bool reads_by_rows = static_cast<bool>(Derived::IsRowMajor) ||
                                      static_cast<bool>(Derived::IsVectorAtCompileTime);

/// Element (i, j) stays element (i, j), whichever way the matrix is stored.
template <class View, class Derived>
View eigen_view(Derived& m) {
  const Index outer = m.outerStride(), inner = m.innerStride();
  const bool by_rows = static_cast<bool>(Derived::IsRowMajor);
  return {m.data(), Shape{m.rows(), m.cols()}, by_rows ? Shape{outer, inner} : Shape{inner, outer}};
}

}  // namespace detail

/// A row-major Eigen matrix (or Map, Ref, Block of one), or a vector, as a view of its storage.
template <class Derived>
In<typename Derived::Scalar, 2> from_eigen(const Eigen::DenseBase<Derived>& matrix) {
  static_assert(detail::reads_by_rows<Derived>,
                "this Eigen matrix is column-major, Eigen's default, and headwise reads rows: pass "
                "from_column_major(m), which reads it in place as the same N x M matrix, or "
                "declare it as headwise::EigenMatrix<T>");
  return detail::eigen_view<In<typename Derived::Scalar, 2>>(matrix.derived());
}
/// The same, to be written to.
template <class Derived>
requires detail::eigen_is_writable<Derived> Out<typename Derived::Scalar, 2> from_eigen(
    Eigen::DenseBase<Derived>& matrix) {
  static_assert(detail::reads_by_rows<Derived>,
                "this Eigen matrix is column-major, Eigen's default, and headwise writes rows: "
                "pass from_column_major(m) or declare it as headwise::EigenMatrix<T>");
  return detail::eigen_view<Out<typename Derived::Scalar, 2>>(matrix.derived());
}

/// A column-major Eigen matrix in place: element (i, j) stays element (i, j).
template <class Derived>
In<typename Derived::Scalar, 2> from_column_major(const Eigen::DenseBase<Derived>& matrix) {
  static_assert(!static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is row-major: pass from_eigen(m)");
  return detail::eigen_view<In<typename Derived::Scalar, 2>>(matrix.derived());
}
/// The same, to be written to.
template <class Derived>
requires detail::eigen_is_writable<Derived> Out<typename Derived::Scalar, 2> from_column_major(
    Eigen::DenseBase<Derived>& matrix) {
  static_assert(!static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is row-major: pass from_eigen(m)");
  return detail::eigen_view<Out<typename Derived::Scalar, 2>>(matrix.derived());
}

}  // namespace headwise::inline v0_1

// headwise/tensor/print.hpp
// Tensors as text, nested in brackets as NumPy prints them.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T, int R>
void print_axis(std::ostream& out, const In<T, R>& tensor, Shape<R> index, int axis) {
  if (axis == R) {
    out << tensor(index);
    return;
  }
  out << '[';
  for (Index i = 0; i < tensor.extent(axis); ++i) {
    if (i != 0 && axis == R - 1) out << ", ";
    if (i != 0 && axis < R - 1) {
      out << std::string(static_cast<std::size_t>(R - 1 - axis), '\n')
          << std::string(static_cast<std::size_t>(axis) + 1, ' ');
    }
    index[axis] = i;
    print_axis(out, tensor, index, axis + 1);
  }
  out << ']';
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// All elements, with the stream's own precision and width for each.
template <class T, int R>
std::ostream& operator<<(std::ostream& out, const In<T, R>& tensor) {
  detail::print_axis(out, tensor, Shape<R>(), 0);
  return out;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

// headwise/testing/number.hpp
// What a number is, told by its bits: -ffast-math lets a compiler assume that no NaN and no
// infinity exists, whereupon std::isnan is false for all and a comparison that counts NaN passes.
// The bits are read from memory and pass an empty asm, through which no such assumption is seen.

namespace headwise::inline v0_1::detail {

enum class NumberKind { finite, infinite, nan };

/// The error that is reported where no difference can be formed. Not an infinity, so that it
/// compares truthfully under any flag.
inline constexpr double no_error_bound = (std::numeric_limits<double>::max)();

inline namespace HEADWISE_CODE {

/// The unsigned integer that lies at an address, unknown to the optimiser.
template <class Bits>
Bits hidden_bits(const void* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  asm volatile("" : "+r"(bits));
  return bits;
}

/// By reference: clang under -ffast-math may treat a NaN that is passed by value as no value.
template <class T>
NumberKind number_kind(const T& value) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  const auto kind = [](auto magnitude, auto infinity) {
    if (magnitude < infinity) return NumberKind::finite;
    return magnitude == infinity ? NumberKind::infinite : NumberKind::nan;
  };
  if constexpr (std::is_same_v<T, float>) {
    return kind(hidden_bits<std::uint32_t>(bytes) & 0x7FFFFFFFu, 0x7F800000u);
  } else if constexpr (std::is_same_v<T, double>) {
    return kind(hidden_bits<std::uint64_t>(bytes) & ~(std::uint64_t{1} << 63),
                std::uint64_t{0x7FF} << 52);
  } else if constexpr (std::is_same_v<T, long double> && std::numeric_limits<T>::digits == 64) {
    const auto fraction = hidden_bits<std::uint64_t>(bytes);
    const auto exponent = hidden_bits<std::uint16_t>(bytes + 8);
    if ((exponent & 0x7FFF) != 0x7FFF) return NumberKind::finite;
    return fraction << 1 == 0 ? NumberKind::infinite : NumberKind::nan;
  } else {
    const double narrowed = static_cast<double>(value);  // 16-bit structs, other long doubles
    return number_kind(narrowed);
  }
}

template <class T>
bool is_finite_number(const T& value) {
  return number_kind(value) == NumberKind::finite;
}

/// Whether two numbers have the same representation. The padding of an x87 long double is not it.
template <class T>
bool same_bits(const T& a, const T& b) {
  constexpr bool padded = std::is_same_v<T, long double> && std::numeric_limits<T>::digits == 64;
  return std::memcmp(&a, &b, padded ? 10 : sizeof(T)) == 0;
}

inline std::string format_number(const long double& value, int digits = 3) {
  const NumberKind kind = number_kind(value);
  if (kind == NumberKind::nan) return "nan";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*Lg", digits, value);
  return text.data();
}

/// Two numbers with as many digits as it takes to tell them apart.
inline std::array<std::string, 2> format_apart(const long double& a, const long double& b) {
  std::array<std::string, 2> texts;
  for (int digits : {6, 9, 12, 17, 21}) {
    texts = {format_number(a, digits), format_number(b, digits)};
    if (texts[0] != texts[1]) break;
  }
  return texts;
}

inline std::string format_error(double error) {
  return error == no_error_bound ? "not finite" : format_number(error);
}

template <int R>
std::vector<Index> index_of(const Shape<R>& index) {
  return {index.extents.begin(), index.extents.end()};
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1::detail

// headwise/testing/stencil.hpp
// Derivatives by differences: of a function of elements that are moved in place along a direction
// and are put back to the same bits, whatever happens meanwhile.

namespace headwise::inline v0_1 {

/// Two evaluations a derivative and an error that falls with the square of the step, or four and
/// the fourth power.
enum class Stencil { central, five_point };

/// The types that differences can be formed in.
template <class T>
inline constexpr bool differences_are_exact_enough =
    std::floating_point<T>&& std::numeric_limits<T>::digits >= 53;

/// The step at which truncation and rounding are of one size: the p-th root of the precision,
/// p = 3 and 5, as a power of two, so that x + step mostly needs no rounding.
///
/// Measured on a weighted softmax of 20 numbers, worst error of a right gradient:
///
///                   central           five_point
///   double          7.6e-6: 7e-11     9.8e-4: 1e-12
///   long double     4.8e-7: 8e-13     2.4e-4: 2e-15    (x87, 64 bits of precision)
///
/// No other power of two gave less than half of these errors.
template <class T>
constexpr T default_step(Stencil stencil) {
  T step = 1;
  for (int bit = std::numeric_limits<T>::digits / (stencil == Stencil::central ? 3 : 5); bit > 0;
       --bit) {
    step /= 2;
  }
  return step;
}

namespace detail {
inline namespace HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Holds elements while they are moved along a direction of signs; its end puts them back.
template <class T>
class Displacement {
 public:
  Displacement(std::span<T* const> elements, std::span<const signed char> signs)
      : elements_(elements), signs_(signs) {
    saved_.reserve(elements.size());
    for (const T* element : elements) saved_.push_back(*element);
  }
  Displacement(const Displacement&) = delete;
  Displacement& operator=(const Displacement&) = delete;
  ~Displacement() {
    for (std::size_t i = 0; i < elements_.size(); ++i) *elements_[i] = saved_[i];
  }

  /// Every element to x + sign t. Returns how far that really is, after rounding, on average.
  T move(T t) {
    T distance = 0;
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      const T sign = static_cast<T>(signs_[i]);
      *elements_[i] = saved_[i] + sign * t;
      distance += sign * (*elements_[i] - saved_[i]);
    }
    return distance / static_cast<T>(elements_.size());
  }

 private:
  std::span<T* const> elements_;
  std::span<const signed char> signs_;
  std::vector<T> saved_;
};

/// df/dt of each value of f where the elements are x + t signs, at t = 0.
template <class T, class F>
std::vector<T> derivative(Stencil stencil, T step, std::span<T* const> elements,
                          std::span<const signed char> signs, F&& f) {
  Displacement<T> x(elements, signs);
  const auto central = [&](T t) {
    const T above = x.move(t);
    std::vector<T> slope = f();
    const T below = x.move(-t);
    const std::vector<T> f_below = f();
    for (std::size_t i = 0; i < slope.size(); ++i) {
      slope[i] = (slope[i] - f_below[i]) / (above - below);
    }
    return slope;
  };
  std::vector<T> slope = central(step);
  if (stencil == Stencil::five_point) {
    const std::vector<T> wide = central(2 * step);
    for (std::size_t i = 0; i < slope.size(); ++i) slope[i] = (4 * slope[i] - wide[i]) / 3;
  }
  return slope;
}

HEADWISE_STRICT_MATH_END

}  // namespace HEADWISE_CODE
}  // namespace detail
}  // namespace headwise::inline v0_1

// headwise/testing/gradient_check_options.hpp
// What a gradient check may be told: tolerance, stencil, step, directions.

namespace headwise::inline v0_1 {

/// How gradients are differenced and what they are held against.
struct GradientCheckOptions {
  double tolerance = 1e-8;             // of GradientError::error
  Stencil stencil = Stencil::central;  // how a slope is formed
  double step = 0;                     // > 0, in units of the inputs; 0: default_step
  std::uint64_t seed = 1;              // of the random directions
  int directions = 8;                  // random directions for each input that is large
  Index full_below = 400;              // inputs of at most so many scalars: every element
  double max_dy = 1;                   // the largest |dy| of the upstream gradient
};

namespace detail {
inline namespace HEADWISE_CODE {

inline void require_valid(const GradientCheckOptions& options, std::string_view function) {
  const auto got = [](const char* option, auto value, const char* wanted) {
    return [=] {
      return std::string(option) + " is " + format_number(static_cast<long double>(value)) +
             ", expected " + wanted;
    };
  };
  const double tolerance = options.tolerance, step = options.step, max_dy = options.max_dy;
  require(is_finite_number(tolerance) && tolerance > 0, function,
          got("tolerance", tolerance, "a finite number above 0"));
  require(is_finite_number(step) && step >= 0, function,
          got("step", step, "a finite number above 0, or 0 for the default"));
  require(options.directions >= 1, function, got("directions", options.directions, "at least 1"));
  require(options.full_below >= 0, function, got("full_below", options.full_below, "at least 0"));
  require(is_finite_number(max_dy) && max_dy >= 0, function,
          got("max_dy", max_dy, "a finite number of at least 0"));
}

template <class T>
T chosen_step(const GradientCheckOptions& options) {
  return options.step > 0 ? static_cast<T>(options.step) : default_step<T>(options.stencil);
}

}  // namespace HEADWISE_CODE
}  // namespace detail
}  // namespace headwise::inline v0_1

// headwise/testing/gradient_report.hpp
// What a gradient check found, and how it says so.

namespace headwise::inline v0_1 {

/// One input: how far its analytic gradient is from differences, and where it is furthest.
///
///   error = max|analytic - numeric| / (max|numeric| + 1e-3 max|dy|)
///
/// The maxima go over the elements of the input, or over the random directions. The second term
/// keeps the rule from blowing up where the true gradient is 0.
struct GradientError {
  std::string input;          // its name
  std::vector<Index> index;   // of the worst element; empty where only a direction is known
  std::vector<Index> output;  // of a whole Jacobian: the element of y that is differentiated
  int direction = -1;         // the worst random direction; -1 where every element was differenced
  long double analytic = 0;   // at that element, or along that direction
  long double numeric = 0;    // likewise
  double error = 0;           // the largest double where a value is NaN or infinite
  Index compared = 0;         // elements or directions

  /// `dx[1, 0, 3]`, `dx[1, 0, 3] of y[2]`, `dx along random direction 5`
  std::string where() const {
    std::string text = "d" + input;
    if (!index.empty()) text += format_extents(index);
    if (!output.empty()) text += " of y" + format_extents(output);
    if (direction >= 0) {
      text += (index.empty() ? " along random direction " : " found in random direction ") +
              std::to_string(direction);
    }
    return text;
  }
};

/// All inputs of a check. Converts to bool where a condition is expected; prints as its message.
struct GradientReport {
  std::vector<GradientError> inputs;  // in the order in which they were added
  double tolerance = 0;               // what ok() holds errors against
  std::uint64_t seed = 0;             // of the random directions

  /// The input with the largest error. Throws ArgumentError where nothing was checked.
  const GradientError& worst() const {
    require(!inputs.empty(), "GradientReport",
            "inputs are 0, expected at least one that was checked");
    return *std::max_element(inputs.begin(), inputs.end(),
                             [](const auto& a, const auto& b) { return a.error < b.error; });
  }

  /// Whether no input is further off. Throws ArgumentError where nothing was checked.
  bool ok(double within) const { return worst().error <= within; }
  /// The same within `tolerance`.
  bool ok() const { return ok(tolerance); }
  /// ok().
  explicit operator bool() const { return ok(); }

  /// `dx[1, 0, 3]: analytic 0.123, numeric 0.124, error 0.003 > 1e-09 (seed 7); dw error 2e-11`
  std::string message(double within) const {
    const GradientError& first = worst();
    const auto values = detail::format_apart(first.analytic, first.numeric);
    std::string text = first.compared == 0
                           ? "d" + first.input + ": no elements"
                           : first.where() + ": analytic " + values[0] + ", numeric " + values[1];
    text += ", error " + detail::format_error(first.error) + (ok(within) ? " <= " : " > ") +
            detail::format_number(within) + " (seed " + std::to_string(seed) + ")";
    for (const GradientError& other : inputs) {
      if (&other == &first) continue;
      text += "; d" + other.input + " error " + detail::format_error(other.error);
    }
    return text;
  }
  /// The same within `tolerance`.
  std::string message() const { return message(tolerance); }

  friend std::ostream& operator<<(std::ostream& out, const GradientReport& report) {
    return out << report.message();
  }
};

}  // namespace headwise::inline v0_1

// headwise/testing/gradient_check.hpp
// Checks hand-derived gradients against finite differences, for anybody's function and under any
// test framework or none. Float is refused: its differences are good to two digits. Check the
// formulas in double or long double, then hold float results against double ones.

namespace headwise::inline v0_1 {

namespace detail {
inline namespace HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// |value|, or the largest finite value for what is not a number to compute with.
template <class T>
T magnitude(const T& value) {
  return is_finite_number(value) ? std::abs(value) : (std::numeric_limits<T>::max)();
}

/// Finds the worst of many comparisons.
template <class T>
class WorstGradient {
 public:
  void add(const T& analytic, const T& numeric, std::size_t where) {
    const T difference = magnitude<T>(analytic - numeric);
    if (is_finite_number(numeric)) largest_ = std::max<T>(largest_, std::abs(numeric));
    if (compared_++ == 0 || difference > difference_) {
      difference_ = difference;
      analytic_ = analytic;
      numeric_ = numeric;
      where_ = where;
    }
  }

  std::size_t where() const { return where_; }

  GradientError report(std::string input, double max_dy) const {
    GradientError result;
    result.input = std::move(input);
    result.analytic = analytic_;
    result.numeric = numeric_;
    result.compared = compared_;
    const T scale = largest_ + static_cast<T>(1e-3) * static_cast<T>(max_dy);
    if (difference_ == (std::numeric_limits<T>::max)()) {
      result.error = no_error_bound;
    } else if (difference_ > 0) {
      result.error = static_cast<double>(std::min<T>(no_error_bound, difference_ / scale));
    }
    return result;
  }

 private:
  T largest_ = 0, difference_ = 0, analytic_ = 0, numeric_ = 0;
  std::size_t where_ = 0;
  Index compared_ = 0;
};

template <class T>
T signed_sum(std::span<const T> values, std::span<const signed char> signs) {
  T sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += static_cast<T>(signs[i]) * values[i];
  return sum;
}

HEADWISE_STRICT_MATH_END

/// +1 or -1 for each element. Signs, not normal numbers: each direction sees each element in full.
inline std::vector<signed char> random_signs(std::size_t count, std::uint64_t seed,
                                             std::size_t input, int direction) {
  const auto key = philox_key(seed, static_cast<std::uint32_t>(direction), input);
  std::vector<signed char> signs(count);
  std::array<std::uint32_t, 4> words{};  // 128 signs
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 128 == 0) {
      const std::uint64_t block = i / 128;
      words =
          philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32)}, key);
    }
    const std::uint32_t bit = words[i / 32 % 4] >> (i % 32) & 1u;
    signs[i] = static_cast<signed char>(bit == 0u ? -1 : 1);
  }
  return signs;
}

/// The index of the element at a place in row-major order.
inline std::vector<Index> unflatten(const std::vector<Index>& shape, std::size_t place) {
  std::vector<Index> index(shape.size());
  auto rest = static_cast<Index>(place);
  for (std::size_t r = shape.size(); r-- > 0;) {
    index[r] = rest % shape[r];
    rest /= shape[r];
  }
  return index;
}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// sum(dy y): the loss whose gradient is the vector-Jacobian product of dy. Summed in T. Throws
/// ShapeError unless dy has the shape of y.
template <class D, class T, int R>
T weighted_sum(const In<D, R>& dy, const In<T, R>& y) {
  require_shape("weighted_sum", "dy", dy, y.shape(), "the shape of y");
  T sum = 0;
  for_each_index(y.shape(),
                 [&](const Shape<R>& index) { sum += static_cast<T>(dy(index)) * y(index); });
  return sum;
}

/// Holds analytic gradients of a loss against its differences, input by input.
///
///   GradientCheck<double> check({.stencil = Stencil::five_point});
///   check.input("x", x, dx);
///   check.input("w", w, dw);
///   GradientReport report = check.run([&] { return weighted_sum(dy, forward(x, w)); });
///   if (!report) std::cout << report << '\n';
///
/// Inputs of up to full_below scalars are differenced element by element. Larger ones along random
/// directions of signs u, <dx, u> against the slope of the loss; a direction that disagrees is
/// halved until it names an element. NaN or infinity on either side is a failure.
///
/// Work   2 losses (central) or 4 (five_point) an element or direction.
template <class T = double>
class GradientCheck {
  static_assert(differences_are_exact_enough<T>,
                "finite differences are for double or wider: check the formula in double, and hold "
                "float results against double ones");

 public:
  /// Throws ArgumentError for options out of range.
  explicit GradientCheck(const GradientCheckOptions& options = {}) : options_(options) {
    detail::require_valid(options, "GradientCheck");
  }

  /// Adds an input under its name.
  ///
  /// x   [...]   moved in place by run, and put back to the same bits, also if the loss throws;
  ///             viewed, so it must outlive run; no two elements in one place
  /// dx  [...]   the analytic gradient, copied; of any scalar type
  ///
  /// Throws ShapeError unless the shapes agree.
  template <class X, class A, int R>
  void input(std::string name, Out<X, R> x, const In<A, R>& dx) {
    static_assert(std::is_same_v<X, T>,
                  "GradientCheck<T> moves inputs of type T: name the type of this input there");
    require_countable("GradientCheck", name, x);
    require_distinct("GradientCheck", {name, x});
    require_shape("GradientCheck", "d" + name, dx, x.shape(), "the shape of " + name);
    Input added{std::move(name), detail::index_of(x.shape()), {}, {}};
    for_each_index(x.shape(), [&](const Shape<R>& index) {
      added.elements.push_back(&x(index));
      added.gradient.push_back(static_cast<T>(dx(index)));
    });
    inputs_.push_back(std::move(added));
  }

  /// Differences the loss, a function of no arguments that reads the inputs and returns a T.
  /// Throws ArgumentError where there is no input; what the loss throws passes through.
  template <class Loss>
  GradientReport run(Loss&& loss) const {
    static_assert(std::is_same_v<std::invoke_result_t<Loss&>, T>,
                  "the loss of GradientCheck<T> returns a T: sum it in the type of its inputs");
    require(!inputs_.empty(), "GradientCheck", "inputs are 0, expected at least one before run");
    const Losses losses = [&loss] { return std::vector<T>{loss()}; };
    GradientReport report{{}, options_.tolerance, options_.seed};
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const bool full = static_cast<Index>(inputs_[i].elements.size()) <= options_.full_below;
      report.inputs.push_back(full ? by_element(inputs_[i], losses)
                                   : by_direction(inputs_[i], i, losses));
    }
    return report;
  }

 private:
  using Losses = std::function<std::vector<T>()>;

  struct Input {
    std::string name;
    std::vector<Index> shape;
    std::vector<T*> elements;
    std::vector<T> gradient;
  };

  T slope(const Input& input, std::size_t begin, std::size_t count,
          std::span<const signed char> signs, const Losses& losses) const {
    return detail::derivative<T>(options_.stencil, detail::chosen_step<T>(options_),
                                 std::span(input.elements).subspan(begin, count), signs, losses)[0];
  }
  T slope(const Input& input, std::size_t element, const Losses& losses) const {
    const signed char forward = 1;
    return slope(input, element, 1, {&forward, 1}, losses);
  }

  GradientError by_element(const Input& input, const Losses& losses) const {
    detail::WorstGradient<T> worst;
    for (std::size_t i = 0; i < input.elements.size(); ++i) {
      worst.add(input.gradient[i], slope(input, i, losses), i);
    }
    GradientError error = worst.report(input.name, options_.max_dy);
    if (error.compared > 0) error.index = detail::unflatten(input.shape, worst.where());
    return error;
  }

  GradientError by_direction(const Input& input, std::size_t number, const Losses& losses) const {
    const std::span<const T> gradient(input.gradient);
    detail::WorstGradient<T> worst;
    for (int d = 0; d < options_.directions; ++d) {
      const auto signs = detail::random_signs(gradient.size(), options_.seed, number, d);
      worst.add(detail::signed_sum<T>(gradient, signs),
                slope(input, 0, gradient.size(), signs, losses), static_cast<std::size_t>(d));
    }
    GradientError error = worst.report(input.name, options_.max_dy);
    error.direction = static_cast<int>(worst.where());
    if (error.error <= options_.tolerance) return error;

    const auto signs =
        detail::random_signs(gradient.size(), options_.seed, number, error.direction);
    const std::size_t element = locate(input, signs, losses);
    error.index = detail::unflatten(input.shape, element);
    error.analytic = gradient[element];
    error.numeric = slope(input, element, losses);
    return error;
  }

  /// An element that is to blame for a direction: the half that disagrees more, again and again.
  std::size_t locate(const Input& input, std::span<const signed char> signs,
                     const Losses& losses) const {
    const auto disagreement = [&](std::size_t begin, std::size_t count) {
      const auto part = signs.subspan(begin, count);
      const T analytic =
          detail::signed_sum<T>(std::span(input.gradient).subspan(begin, count), part);
      return detail::magnitude<T>(analytic - slope(input, begin, count, part, losses));
    };
    std::size_t begin = 0, count = input.elements.size();
    while (count > 1) {
      const std::size_t half = count / 2;
      const bool first = disagreement(begin, half) >= disagreement(begin + half, count - half);
      begin += first ? 0 : half;
      count = first ? half : count - half;
    }
    return begin;
  }

  GradientCheckOptions options_;
  std::vector<Input> inputs_;
};

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/testing/check_op.hpp
// Checks an op that is a pair of functions, forward and backward, without a loss of its own: the
// whole Jacobian where it is small, random vector-Jacobian products where it is large.

namespace headwise::inline v0_1 {

namespace detail {
inline namespace HEADWISE_CODE {

template <class T, class U, int R>
std::vector<T> flatten(const In<U, R>& tensor) {
  std::vector<T> values;
  for_each_index(tensor.shape(),
                 [&](const Shape<R>& index) { values.push_back(static_cast<T>(tensor(index))); });
  return values;
}

/// A zeroed tensor of a tensor's type and shape.
template <class T, int R>
Tensor<T, R> zeros_like(const In<T, R>& tensor) {
  return Tensor<T, R>(tensor.shape());
}

/// dx = backward(dy), of the shape of x.
template <class Backward, class Dy, class T, int R>
auto checked_backward(Backward& backward, const Dy& dy, const In<T, R>& x) {
  auto dx = backward(dy);
  require_shape("check_op", "dx from backward", dx, x.shape(), "the shape of x");
  return dx;
}

/// Every dy[i] / dx[j]: rows from backward of unit vectors, columns from differences.
template <class T, int R, class Forward, class Backward, class Y>
GradientError whole_jacobian(Forward& forward, Backward& backward, Tensor<T, R>& x, const Y& y,
                             const GradientCheckOptions& options) {
  auto dy = zeros_like(y);
  const auto outputs = static_cast<std::size_t>(y.size());
  const auto inputs = static_cast<std::size_t>(x.size());

  std::vector<T> analytic;  // [outputs, inputs]
  for (T& unit : dy) {
    unit = 1;
    const auto row = flatten<T>(checked_backward(backward, dy, x));
    analytic.insert(analytic.end(), row.begin(), row.end());
    unit = 0;
  }

  WorstGradient<T> worst;
  const auto values = [&] { return flatten<T>(forward(std::as_const(x))); };
  const signed char up = 1;
  for (std::size_t j = 0; j < inputs; ++j) {
    T* element = x.data() + j;
    const auto column =
        derivative<T>(options.stencil, chosen_step<T>(options), {&element, 1}, {&up, 1}, values);
    for (std::size_t i = 0; i < outputs; ++i) {
      worst.add(analytic[i * inputs + j], column[i], i * inputs + j);
    }
  }
  GradientError error = worst.report("x", 1);
  if (error.compared > 0) {
    error.index = unflatten(index_of(x.shape()), worst.where() % inputs);
    error.output = unflatten(index_of(y.shape()), worst.where() / inputs);
  }
  return error;
}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// Holds backward against the differences of forward at x.
///
/// forward   y  = forward(x)     a Tensor of T; called with perturbed copies of x
/// backward  dx = backward(dy)   the vector-Jacobian product at x, which it knows by itself;
///                               called before forward is perturbed, after one forward of x
/// x         [...]               read
///
/// Where x and y have at most full_below scalars each, every element of the Jacobian is compared;
/// else backward of one random dy of signs is checked as GradientCheck does it. max_dy is 1.
///
/// Throws ShapeError unless dx has the shape of x.
template <class Forward, class Backward, class T, int R>
GradientReport check_op(Forward&& forward, Backward&& backward, const In<T, R>& x,
                        GradientCheckOptions options = {}) {
  static_assert(differences_are_exact_enough<T>,
                "finite differences are for double or wider: check the op in double, and hold "
                "float results against double ones");
  detail::require_valid(options, "check_op");
  options.max_dy = 1;
  Tensor<T, R> moved = contiguous(x);
  const auto y = forward(std::as_const(moved));
  static_assert(std::is_same_v<typename decltype(y)::value_type, T>,
                "forward returns a tensor of the type of x");

  if (std::max<Index>(x.size(), y.size()) <= options.full_below) {
    return {{detail::whole_jacobian(forward, backward, moved, y, options)},
            options.tolerance,
            options.seed};
  }
  auto dy = detail::zeros_like(y);
  const auto signs = detail::random_signs(static_cast<std::size_t>(y.size()), options.seed, 0, -1);
  std::copy(signs.begin(), signs.end(), dy.begin());
  const auto dx = detail::checked_backward(backward, std::as_const(dy), moved);
  GradientCheck<T> check(options);
  check.input("x", moved, dx);
  return check.run([&] { return weighted_sum(dy, forward(std::as_const(moved))); });
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/testing/close_to.hpp
// Holds one tensor against another and says where they differ most. Truthful in programs that are
// compiled with -ffast-math: a NaN is seen by its bits, the arithmetic stays strict.

namespace headwise::inline v0_1 {

/// What close_to is asked for besides its tolerance.
struct CloseToOptions {
  double floor = 0;  // max|expected| counts as at least this: for tensors that may be all zero
};

/// What close_to and bitwise_equal found. Converts to bool where a condition is expected; prints
/// as its message.
struct Closeness {
  bool ok = true;            // whether every element passes
  std::vector<Index> index;  // of the worst element; empty where there are no elements
  long double actual = 0;    // there
  long double expected = 0;  // there
  double error = 0;          // there; the largest double where no difference can be formed
  double tolerance = 0;      // what the error was held against
  Index failures = 0;        // elements that fail
  Index count = 0;           // elements compared

  /// ok.
  explicit operator bool() const { return ok; }

  /// `[1, 2] is 0.5, expected 0.25, error 0.1 > 1e-06; 3 of 24 elements fail`
  std::string message() const {
    if (count == 0) return "no elements, nothing differs";
    const auto values = detail::format_apart(actual, expected);
    return format_extents(index) + " is " + values[0] + ", expected " + values[1] + ", error " +
           detail::format_error(error) + (ok ? " <= " : " > ") + detail::format_number(tolerance) +
           "; " + std::to_string(failures) + " of " + std::to_string(count) + " elements fail";
  }

  friend std::ostream& operator<<(std::ostream& out, const Closeness& closeness) {
    return out << closeness.message();
  }
};

inline namespace HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Whether two tensors are equal up to a share of the largest expected value:
///
///   |actual - expected| <= tolerance max(max|expected|, floor)      for every element
///
/// actual     [...]   any scalar type
/// expected   [...]   any scalar type; NaN equals NaN, infinities equal those of their sign, and
///                    neither counts in max|expected|
/// tolerance  >= 0; with 0 the values have to be equal (0 equals -0)
///
/// Differences are formed in long double. Empty tensors are close.
/// Throws ShapeError unless the shapes agree, ArgumentError for a tolerance or floor below 0.
template <class A, class E, int R>
[[nodiscard]] Closeness close_to(const In<A, R>& actual, const In<E, R>& expected, double tolerance,
                                 const CloseToOptions& options = {}) {
  require_shape("close_to", "actual", actual, expected.shape(), "the shape of expected");
  require(detail::is_finite_number(tolerance) && tolerance >= 0, "close_to", [&] {
    return "tolerance is " + detail::format_number(tolerance) + ", expected a finite number >= 0";
  });
  require(detail::is_finite_number(options.floor) && options.floor >= 0, "close_to", [&] {
    return "floor is " + detail::format_number(options.floor) + ", expected a finite number >= 0";
  });

  long double scale = options.floor;
  for_each_index(expected.shape(), [&](const Shape<R>& index) {
    const E& e = expected(index);
    if (detail::is_finite_number(e))
      scale = std::max<long double>(scale, std::abs(static_cast<long double>(e)));
  });

  Closeness result;
  result.tolerance = tolerance;
  result.count = actual.size();
  long double worst = -1;
  for_each_index(actual.shape(), [&](const Shape<R>& index) {
    const A& a = actual(index);
    const E& e = expected(index);
    const detail::NumberKind kind = detail::number_kind(a);
    const auto wide_a = static_cast<long double>(a);
    const auto wide_e = static_cast<long double>(e);

    long double error = detail::no_error_bound;
    if (kind == detail::number_kind(e)) {
      if (kind == detail::NumberKind::nan) {
        error = 0;
      } else if (kind == detail::NumberKind::infinite) {
        if (std::signbit(wide_a) == std::signbit(wide_e)) error = 0;
      } else if (wide_a == wide_e) {
        error = 0;
      } else if (scale > 0) {
        error = std::min<long double>(error, std::abs(wide_a - wide_e) / scale);
      }
    }
    if (error > static_cast<long double>(tolerance)) ++result.failures;
    if (error > worst) {
      worst = error;
      result.index = detail::index_of(index);
      result.actual = wide_a;
      result.expected = wide_e;
      result.error = static_cast<double>(error);
    }
  });
  result.ok = result.failures == 0;
  return result;
}

HEADWISE_STRICT_MATH_END

/// Whether two tensors hold the same bits: 0 differs from -0, and one NaN from another.
/// Names the first element that differs. Throws ShapeError unless the shapes agree.
template <class T, int R>
[[nodiscard]] Closeness bitwise_equal(const In<T, R>& actual, const In<T, R>& expected) {
  require_shape("bitwise_equal", "actual", actual, expected.shape(), "the shape of expected");
  Closeness result;
  result.count = actual.size();
  for_each_index(actual.shape(), [&](const Shape<R>& index) {
    const bool equal = detail::same_bits(actual(index), expected(index));
    if (result.index.empty() || (!equal && result.failures == 0)) {
      result.index = detail::index_of(index);
      result.actual = static_cast<long double>(actual(index));
      result.expected = static_cast<long double>(expected(index));
    }
    if (!equal) ++result.failures;
  });
  result.ok = result.failures == 0;
  if (!result.ok) result.error = detail::no_error_bound;
  return result;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/headwise.hpp
// Everything but testing/laws.hpp, the executors on threads of Eigen's, OpenMP's and TBB's
// (headwise/runtime/eigen_executor.hpp ...), and io/ (headwise/io/safetensors.hpp, pytorch.hpp):
// that handles files by POSIX calls, and would take the compiler half as long again.

/// \namespace headwise
/// Multi-head attention for CPUs: everything public stands here, and each kind of thing in a header
/// of its own.

#if defined(HEADWISE_COMPILED)  // by the target headwise::compiled

// headwise/compiled.hpp
// The operations and the module for float and double, declared as compiled elsewhere: the target
// headwise::compiled holds them, and defines HEADWISE_COMPILED, by which headwise.hpp includes
// this (a file that includes single headers of the library includes this one, too). A translation
// unit that is compiled with flags of its own (-mavx2, -ffast-math and so on) compiles what it uses
// itself, as it would without.

#if !defined(HEADWISE_INSTANCE)
#define HEADWISE_INSTANCE extern template  // src/compiled.cpp: template
#endif

#define HEADWISE_INSTANCES_OF_OPS(T)                                                               \
  HEADWISE_INSTANCE void linear_forward<T>(In<T, 2>, In<T, 2>, In<T, 1>, Out<T, 2>,                \
                                           const Context&);                                        \
  HEADWISE_INSTANCE void linear_backward<T>(In<T, 2>, In<T, 2>, In<T, 2>, Out<T, 2>, InOut<T, 2>,  \
                                            InOut<T, 1>, const Context&);                          \
  HEADWISE_INSTANCE void softmax_forward<T>(In<T, 2>, Out<T, 2>, const Context&);                  \
  HEADWISE_INSTANCE void softmax_backward<T>(In<T, 2>, In<T, 2>, Out<T, 2>, const Context&);       \
  HEADWISE_INSTANCE void dropout_forward<T>(In<T, 2>, const Dropout&, Out<T, 2>, const Context&);  \
  HEADWISE_INSTANCE void dropout_backward<T>(In<T, 2>, const Dropout&, Out<T, 2>, const Context&); \
  HEADWISE_INSTANCE void layer_norm_forward<T>(In<T, 2>, const LayerNormAffine<T>&, T, Out<T, 2>,  \
                                               const LayerNormMoments<Out<T, 1>>&,                 \
                                               const Context&);                                    \
  HEADWISE_INSTANCE void layer_norm_backward<T>(In<T, 2>, In<T, 2>, In<T, 1>,                      \
                                                const LayerNormMoments<In<T, 1>>&, Out<T, 2>,      \
                                                const LayerNormGradients<T>&, const Context&);     \
  HEADWISE_INSTANCE void rms_norm_forward<T>(In<T, 2>, In<T, 1>, T, Out<T, 2>, Out<T, 1>,          \
                                             const Context&);                                      \
  HEADWISE_INSTANCE void rms_norm_backward<T>(In<T, 2>, In<T, 2>, In<T, 1>, In<T, 1>, Out<T, 2>,   \
                                              InOut<T, 1>, const Context&);                        \
  HEADWISE_INSTANCE void activation_forward<T>(Activation, In<T, 2>, Out<T, 2>, const Context&);   \
  HEADWISE_INSTANCE void activation_backward<T>(Activation, In<T, 2>, In<T, 2>, Out<T, 2>,         \
                                                const Context&);                                   \
  HEADWISE_INSTANCE void swiglu_forward<T>(In<T, 2>, In<T, 2>, Out<T, 2>, const Context&);         \
  HEADWISE_INSTANCE void swiglu_backward<T>(In<T, 2>, In<T, 2>, In<T, 2>, Out<T, 2>, Out<T, 2>,    \
                                            const Context&);                                       \
  HEADWISE_INSTANCE void add_forward<T>(In<T, 2>, In<T, 2>, Out<T, 2>, const Context&);            \
  HEADWISE_INSTANCE void attention_forward<T>(In<T, 4>, In<T, 4>, In<T, 4>,                        \
                                              const AttentionOptions<T>&, Out<T, 4>, Out<T, 4>,    \
                                              const Context&);                                     \
  HEADWISE_INSTANCE void attention_backward<T>(In<T, 4>, const AttentionInputs<T>&, In<T, 4>,      \
                                               const AttentionOptions<T>&,                         \
                                               const AttentionGradients<T>&, const Context&);      \
  HEADWISE_INSTANCE void flash_attention_forward<T>(In<T, 4>, In<T, 4>, In<T, 4>,                  \
                                                    const AttentionOptions<T>&, Out<T, 4>,         \
                                                    Out<T, 4>, const Context&);                    \
  HEADWISE_INSTANCE void flash_attention_backward<T>(                                              \
      In<T, 4>, const AttentionInputs<T>&, In<T, 4>, In<T, 4>, const AttentionOptions<T>&,         \
      const AttentionGradients<T>&, const Context&);

#define HEADWISE_INSTANCES_OF_MODULE(T)                                                            \
  HEADWISE_INSTANCE Tensor<T, 3> multi_head_attention_forward<T>(                                  \
      const MultiHeadAttentionOptions&, const MultiHeadAttentionParameters<T>&,                    \
      const ModuleInputs<T>&, const MultiHeadAttentionCall<T>&, MultiHeadAttentionCache<T>&, bool, \
      const Context&);                                                                             \
  HEADWISE_INSTANCE CrossAttentionGradients<T> multi_head_attention_backward<T>(                   \
      std::string_view, const MultiHeadAttentionOptions&, const MultiHeadAttentionParameters<T>&,  \
      In<T, 3>, const MultiHeadAttentionCache<T>&, MultiHeadAttentionGradients<T>&,                \
      const Context&);                                                                             \
  HEADWISE_INSTANCE Tensor<T, 3> transformer_block_forward<T>(                                     \
      const TransformerBlockOptions&, const TransformerBlockParameters<T>&, In<T, 3>,              \
      const TransformerBlockCall<T>&, TransformerBlockCache<T>&, bool, const Context&);            \
  HEADWISE_INSTANCE Tensor<T, 3> transformer_block_backward<T>(                                    \
      const TransformerBlockOptions&, const TransformerBlockParameters<T>&, In<T, 3>,              \
      const TransformerBlockCache<T>&, TransformerBlockGradients<T>&, const Context&);

#if HEADWISE_CONFIG_PLAIN
namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_INSTANCE const Kernels<float>& kernels_of<float>(InstructionSet);
HEADWISE_INSTANCE const ModelKernels<float>& model_kernels_of<float>(InstructionSet);
HEADWISE_INSTANCE const Kernels<double>& kernels_of<double>(InstructionSet);
HEADWISE_INSTANCE const ModelKernels<double>& model_kernels_of<double>(InstructionSet);

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_INSTANCES_OF_OPS(float)
HEADWISE_INSTANCES_OF_OPS(double)

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_INSTANCES_OF_MODULE(float)
HEADWISE_INSTANCES_OF_MODULE(double)

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
#endif

#undef HEADWISE_INSTANCES_OF_OPS
#undef HEADWISE_INSTANCES_OF_MODULE
#undef HEADWISE_INSTANCE

// headwise/headwise.hpp
#endif
