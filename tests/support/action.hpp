// What a table of thousands of small callables holds.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace headwise_tests {

/// Memory that lives as long as the program, with what was made in it: nothing is taken down.
inline void* kept_memory(std::size_t bytes) {
  static auto& all = *new std::vector<std::unique_ptr<std::max_align_t[]>>;
  all.emplace_back(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
  return all.back().get();
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
      static_assert(alignof(F) <= alignof(std::max_align_t));
      callable_ = new (kept_memory(sizeof(F))) F(f);
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
