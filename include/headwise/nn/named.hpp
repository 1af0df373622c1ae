// Tensors of a module by name, as loops over them read.
#pragma once

#include <string>

namespace headwise::inline v0_1::detail {

/// A tensor, a view or a pointer to one, by its name:
///
///   for (const auto& [name, view] : {Named{"W", w}, Named{"V", v}}) f(name, view);
///
/// Whoever is called in a loop is compiled once. Called line by line it is compiled once a line,
/// and a visitor that visits others as often again in each.
template <class V>
struct Named {
  const char* name;
  V tensor;
};
template <class V>
Named(const char*, V) -> Named<V>;

/// f(name, view), for an f that may take the name as auto&.
template <class F, class V>
void call_named(F& f, const std::string& name, const V& view) {
  f(name, view);
}

}  // namespace headwise::inline v0_1::detail
