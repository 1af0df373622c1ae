// What a cache of keys and values is made of.
#pragma once

#include <string_view>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// How much a KeyValueCache holds.
struct KeyValueCacheOptions {
  Index batch_size = 1;    // B
  Index num_kv_heads = 1;  // G
  Index capacity = 0;      // most tokens of a sequence; with a window, that are held at least
  Index d_head = 0;        // d
  Index d_value = 0;       // dv; 0: d
  Index window = 0;        // keys that a query sees, its own among them; 0: all before it
  Index first_keys = 0;    // keys that it sees beside the window, from the first on
  /// In 16 bits keys and values take half the memory, and half the time to read: caches of float
  /// alone. A number is rounded once, when it is appended, to nearest, ties to even.
  StoredAs stored_as = StoredAs::same;

  /// Throws ArgumentError for a negative extent, or what does not go together. Of a cache of float
  /// or of another type.
  void require_valid(bool of_float) const {
    constexpr std::string_view function = "KeyValueCache";
    const auto require_extent = [&](const char* name, Index extent) {
      require(extent >= 0, function, name, " is ", extent, ", expected >= 0");
    };
    require_extent("batch_size", batch_size);
    require_extent("num_kv_heads", num_kv_heads);
    require_extent("capacity", capacity);
    require_extent("d_head", d_head);
    require_extent("d_value", d_value);
    require_extent("window", window);
    require_extent("first_keys", first_keys);
    const auto require_countable_slots = [&](const char* name, Index slots) {
      constexpr Index most = Index{1} << 48;
      require(window == 0 || slots <= most, function, name, " is ", slots,
              ", expected at most 2^48 beside a window");
    };
    require_countable_slots("capacity", capacity);
    require_countable_slots("window", window);
    require_countable_slots("first_keys", first_keys);
    require(window != 0 || first_keys == 0, function, "first_keys is ", first_keys,
            " and window 0, expected a window beside which they are kept");
    require(of_float || stored_as == StoredAs::same, function,
            "stored_as is of 16 bits, expected StoredAs::same: the cache is not of float");
  }
};

}  // namespace headwise::inline v0_1
