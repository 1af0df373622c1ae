// What a table of thousands of small callables holds.
#pragma once

#include <type_traits>
#include <vector>

namespace headwise_tests {

/// Holds on to what lives as long as the program, so that no search for leaks reports it.
inline void keep(const void* object) {
  static auto& all = *new std::vector<const void*>;
  all.push_back(object);
}

/// A callable of any type, which is never taken down. (std::function, smart pointers and virtual
/// destructors cost a compiler a dozen functions for each of them, which were a third of all in a
/// program of such tables; a lambda in place of `call` costs two.)
template <class... Arguments>
class Action {
 public:
  template <class F>
  Action(F f) : call_(&call<F>) {
    if constexpr (!std::is_default_constructible_v<F>) {  // captures something
      callable_ = new F(f);
      keep(callable_);
    }
  }

  void operator()(Arguments... arguments) const { call_(callable_, arguments...); }

 private:
  template <class F>
  static void call([[maybe_unused]] const void* callable, Arguments... arguments) {
    if constexpr (std::is_default_constructible_v<F>) {
      F{}(arguments...);
    } else {
      (*static_cast<const F*>(callable))(arguments...);
    }
  }

  const void* callable_ = nullptr;
  void (*call_)(const void*, Arguments...);
};

}  // namespace headwise_tests
