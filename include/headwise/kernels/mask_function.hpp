// A mask of one's own: a callable that says of a pair whether the query sees the key, and another,
// where it is given, between which keys that is asked at all.
#pragma once

#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "headwise/kernels/pair_functions.hpp"
#include "headwise/runtime/instruction_set.hpp"
#include "headwise/score/mask_function.hpp"

namespace headwise::inline v0_1 {

/// What may be a mask function: it takes where a pair stands and returns bool.
template <class F>
concept MaskCallable = std::copy_constructible<F> && requires(const F& f, const Position& at) {
  { f(at) } -> std::same_as<bool>;
};

/// What may be its bounds: it takes where a query stands (key is 0) and returns a KeyRange.
template <class B>
concept MaskBounds =
    std::copy_constructible<B> && std::is_invocable_r_v<KeyRange, const B&, const Position&>;

/// The bounds of a mask function that is asked about all keys.
struct AllKeys {
  /// All keys, for every query.
  KeyRange operator()(const Position&) const { return {0, (std::numeric_limits<Index>::max)()}; }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A callable and its bounds, for Mask::function.
template <MaskCallable F, MaskBounds B>
class MaskFunction {
 public:
  /// Of callables, which are copied.
  MaskFunction(F callable, B bounds) : callable_(std::move(callable)), bounds_(std::move(bounds)) {}

  /// Whether the query sees the key.
  HEADWISE_INLINE bool sees(const Position& at) const { return callable_(at); }

  /// A view for a mask: this must outlive the call, and its backward too.
  operator MaskFunctionRef() const& {
    constexpr auto bounds = std::same_as<B, AllKeys> ? nullptr : &bounds_of;
#if HEADWISE_X86
    const InstructionSet set = instruction_set_here();
    if constexpr (is_compiled(InstructionSet::avx512)) {
      if (set == InstructionSet::avx512) {
        return {this, &mask_functions::avx512::hide<MaskFunction>, bounds};
      }
    }
    if constexpr (is_compiled(InstructionSet::avx2)) {
      if (set == InstructionSet::avx2) {
        return {this, &mask_functions::avx2::hide<MaskFunction>, bounds};
      }
    }
#endif
    return {this, &mask_functions::generic::hide<MaskFunction>, bounds};
  }
  /// One without a name would be gone before the call.
  operator MaskFunctionRef() const&& = delete;

 private:
  static KeyRange bounds_of(const void* function, const Position& query) {
    return static_cast<const MaskFunction*>(function)->bounds_(query);
  }

  F callable_;
  B bounds_;
};

/// A mask of one's own: true where the query sees the key.
///   const auto dilated = mask_function([](const Position& at) {
///     return (at.query - at.key) % 4 == 0;
///   });
///   flash_attention_forward(q, k, v, {.mask = {causal, Mask::function(dilated)}}, o, lse);
///
/// Both attentions call it, and its bounds, many times for a pair, from several threads: they say
/// the same each time, and must not throw.
template <class F>
auto mask_function(F callable) {
  static_assert(MaskCallable<F>,
                "a mask function takes (const Position& at) and returns bool: "
                "true where the query sees the key");
  return MaskFunction<F, AllKeys>(std::move(callable), {});
}
/// The same with bounds: of a query, the keys between which it is asked. Those beyond are not seen,
/// and blocks of keys beyond the bounds of all queries of a tile are skipped:
/// mask_function(sees, [](const Position& at) { return KeyRange{at.query - 9, at.query + 10}; })
template <class F, class B>
auto mask_function(F callable, B bounds) {
  static_assert(MaskCallable<F>,
                "a mask function takes (const Position& at) and returns bool: "
                "true where the query sees the key");
  static_assert(MaskBounds<B>,
                "the bounds of a mask function take (const Position& query) and "
                "return the keys that it may see: a KeyRange{begin, end}");
  return MaskFunction<F, B>(std::move(callable), std::move(bounds));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
