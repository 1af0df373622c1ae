// The tensors of two modules of the same options, or of their gradients, side by side.
#pragma once

#include <string>
#include <string_view>

#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// f(to, from) for each tensor of `to` and the one of `from` that has its name. Throws ShapeError
/// unless that has its shape: what was moved from has none.
template <class To, class From, class F>
void for_each_of_both(std::string_view function, const std::string& argument, To& to,
                      const From& from, F&& f) {
  to.for_each([&](const std::string& name, auto x) {
    constexpr int rank = decltype(x)::rank;
    Shape<rank> found{};
    from.for_each([&](const std::string& other, auto y) {
      if constexpr (decltype(y)::rank == rank) {
        if (other != name) return;
        found = y.shape();
        if (found == x.shape()) f(x, y);
      }
    });
    if (found == x.shape()) return;
    raise<ShapeError>(function, ": ", argument, name, " is ", found, ", expected ", x.shape(),
                      " (the module's options)");
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
