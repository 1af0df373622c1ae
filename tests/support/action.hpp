// What a table of thousands of small callables holds.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

namespace headwise_tests {

/// A callable that lives as long as the program.
struct KeptCallable {
  KeptCallable() = default;
  KeptCallable(const KeptCallable&) = delete;
  KeptCallable& operator=(const KeptCallable&) = delete;
  virtual ~KeptCallable() = default;
};

/// Owns it from here on.
inline void keep(KeptCallable* callable) {
  static std::vector<std::unique_ptr<KeptCallable>> all;
  all.emplace_back(callable);
}

/// A callable of any type. (std::function and smart pointers of its own cost a compiler a dozen
/// functions for each of them, which were a third of all in a program of such tables.)
template <class... Arguments>
class Action {
 public:
  template <class F>
  Action(F f) {
    if constexpr (std::is_default_constructible_v<F>) {  // captures nothing
      call_ = [](const KeptCallable*, Arguments... arguments) { F{}(arguments...); };
    } else {
      auto* kept = new Kept<F>(f);
      keep(kept);
      callable_ = kept;
      call_ = [](const KeptCallable* callable, Arguments... arguments) {
        static_cast<const Kept<F>*>(callable)->f(arguments...);
      };
    }
  }

  void operator()(Arguments... arguments) const { call_(callable_, arguments...); }

 private:
  template <class F>
  struct Kept : KeptCallable {
    explicit Kept(const F& callable) : f(callable) {}
    F f;
  };

  const KeptCallable* callable_ = nullptr;
  void (*call_)(const KeptCallable*, Arguments...) = nullptr;
};

}  // namespace headwise_tests
