// Tensors of a module by name, as loops over them read.
#pragma once

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

}  // namespace headwise::inline v0_1::detail
