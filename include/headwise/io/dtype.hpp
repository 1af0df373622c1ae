// The element types of a safetensors file.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "headwise/tensor/float16.hpp"

namespace headwise::inline v0_1 {

/// What the bytes of a stored tensor are, narrow types first.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

namespace detail {

struct DTypeInfo {
  std::string_view name;
  unsigned bytes;
};

/// In the order of DType.
inline constexpr std::array<DTypeInfo, 17> dtype_infos{{{"BOOL", 1},
                                                        {"U8", 1},
                                                        {"I8", 1},
                                                        {"F8_E5M2", 1},
                                                        {"F8_E4M3", 1},
                                                        {"F8_E8M0", 1},
                                                        {"I16", 2},
                                                        {"U16", 2},
                                                        {"F16", 2},
                                                        {"BF16", 2},
                                                        {"I32", 4},
                                                        {"U32", 4},
                                                        {"F32", 4},
                                                        {"C64", 8},
                                                        {"F64", 8},
                                                        {"I64", 8},
                                                        {"U64", 8}}};

}  // namespace detail

/// `F64`, `BOOL`: as the file spells it.
constexpr std::string_view dtype_name(DType dtype) {
  return detail::dtype_infos[static_cast<std::size_t>(dtype)].name;
}

/// Bytes of one element.
constexpr unsigned dtype_bytes(DType dtype) {
  return detail::dtype_infos[static_cast<std::size_t>(dtype)].bytes;
}

/// The inverse of dtype_name; nothing for a name that this library does not know.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t d = 0; d < detail::dtype_infos.size(); ++d) {
    if (detail::dtype_infos[d].name == name) return static_cast<DType>(d);
  }
  return std::nullopt;
}

/// What a tensor of a file can be read as, and written from.
template <class T>
concept StoredScalar = StoredFloat<T> || std::same_as<T, bool>;

/// The type that holds a T without a conversion.
template <StoredScalar T>
inline constexpr DType dtype_of = std::same_as<T, double>     ? DType::f64
                                  : std::same_as<T, float>    ? DType::f32
                                  : std::same_as<T, Float16>  ? DType::f16
                                  : std::same_as<T, BFloat16> ? DType::bf16
                                                              : DType::boolean;

namespace detail {

/// Calls f with a std::type_identity of the type that holds this dtype; false if it is no float.
template <class F>
bool with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      f(std::type_identity<double>());
      return true;
    case DType::f32:
      f(std::type_identity<float>());
      return true;
    case DType::f16:
      f(std::type_identity<Float16>());
      return true;
    case DType::bf16:
      f(std::type_identity<BFloat16>());
      return true;
    default:
      return false;
  }
}

}  // namespace detail

}  // namespace headwise::inline v0_1
