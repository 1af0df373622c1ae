// What is recorded of a call, and where its gradient is put together.
#pragma once

#include "headwise/autograd/variable.hpp"
#include "headwise/tensor/overlap.hpp"

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
