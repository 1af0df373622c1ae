// Rules that many functions share, as entries of the catalogue: outputs of one shape and of memory
// of their own, inputs that can be counted. A call is a struct of a Witness `m`, of views, all of
// them right, and of a member `call`.
#pragma once

#include "support/refusal.hpp"

namespace headwise_tests {

template <int R>
using View = TensorView<double, R>;
using Matrix = View<2>;
using Vector = View<1>;

template <class Call>
Action<Witness&> spoilt(void (*spoil)(Call&)) {
  return [spoil](Witness& memory) {
    Call call{memory};
    spoil(call);
    call.call();
  };
}
template <class Call>
Refusal shape(std::string message, void (*spoil)(Call&)) {
  return shape_error(std::move(message), spoilt(spoil));
}
template <class Call>
Refusal argument(std::string message, void (*spoil)(Call&)) {
  return argument_error(std::move(message), spoilt(spoil));
}

/// The last element of `out` becomes the first of `other`.
template <int R, int Q>
void lay_over(Witness& memory, View<R>& out, View<Q>& other) {
  const auto block = memory.tensor(out.size() + other.size() - 1);
  out = {block.data(), out.shape()};
  other = {block.data() + out.size() - 1, other.shape()};
}

/// Makes a call of which one view is changed. (What only asks for a view is compiled once for its
/// rank, not for each of the hundreds of calls.)
template <int R>
using ChangedCall = Action<Witness&, const Action<Witness&, View<R>&>&>;

template <class Call, int R>
ChangedCall<R> changed_call(View<R> Call::*member) {
  return [member](Witness& memory, const Action<Witness&, View<R>&>& change) {
    Call call{memory};
    change(memory, call.*member);
    call.call();
  };
}
template <int R>
Refusal changed_shape(std::string message, const ChangedCall<R>& call,
                      const Action<Witness&, View<R>&>& change) {
  return shape_error(std::move(message), [=](Witness& memory) { call(memory, change); });
}

/// The rules of every output: its shape, an address, elements of its own.
template <int R>
std::vector<Refusal> output_of(const std::string& argument, const ChangedCall<R>& call,
                               const Shape<R>& right, const std::string& whence) {
  std::vector<Refusal> refusals;
  for (int axis = 0; axis < R; ++axis) {
    for (const Index more : {-1, 1}) {
      Shape<R> got = right;
      got[axis] += more;
      refusals.push_back(changed_shape<R>(
          argument + " is " + got.format() + ", expected " + right.format() + " (" + whence + ")",
          call, [got](Witness& memory, View<R>& view) { view = memory.tensor(got); }));
    }
  }
  refusals.push_back(changed_shape<R>(
      argument + " is " + right.format() + " at a null address, expected its elements", call,
      [right](Witness&, View<R>& view) {
        view = {nullptr, right};
      }));
  return refusals;
}
template <class Call, int R>
std::vector<Refusal> output(const std::string& function, const std::string& name,
                            View<R> Call::*member, const Shape<R>& right,
                            const std::string& whence) {
  return output_of<R>(function + ": " + name, changed_call(member), right, whence);
}
template <int R>
Refusal repeated_of(const std::string& argument, const ChangedCall<R>& call) {
  return changed_shape<R>(
      argument + " holds one element at two indices, expected elements of their own", call,
      [](Witness&, View<R>& view) {
        view = {view.data(), view.shape(), Shape<R>()};
      });
}
template <class Call, int R>
Refusal repeated(const std::string& argument, View<R> Call::*member) {
  return repeated_of<R>(argument, changed_call(member));
}
template <class Call, int R, int Q>
Refusal overlapping(const std::string& argument, View<R> Call::*member, const std::string& other,
                    View<Q> Call::*other_member) {
  return shape_error(argument + " overlaps " + other + ", expected memory of its own",
                     [=](Witness& memory) {
                       Call c{memory};
                       lay_over(memory, c.*member, c.*other_member);
                       c.call();
                     });
}
template <class Call>
Refusal shifted(const std::string& function, const std::string& out, Matrix Call::*member,
                const std::string& in, Matrix Call::*other) {
  return shape_error(function + ": " + out + " overlaps " + in + " shifted, expected " + in +
                         " itself or memory of its own",
                     [=](Witness& memory) {
                       Call c{memory};
                       lay_over(memory, c.*member, c.*other);
                       c.call();
                     });
}

/// The rules of every input that others take their shape from.
template <int R>
std::vector<Refusal> countable_of(const std::string& argument, const ChangedCall<R>& call,
                                  const Shape<R>& right) {
  const auto with = [&](const std::string& message, const View<R>& other) {
    return changed_shape<R>(argument + message, call,
                            [other](Witness&, View<R>& view) { view = other; });
  };
  static double some[1] = {};  // never read: its extents are refused
  Shape<R> negative = right, huge = right;
  negative[0] = -1;
  huge[R - 1] = (Index{1} << 48) + 1;
  return {
      with(" is " + negative.format() + ", expected extents of 0 or more", {some, negative}),
      with(" is " + huge.format() + ", expected extents whose product is at most 2^48",
           {some, huge}),
      with(" is " + right.format() + " at a null address, expected its elements", {nullptr, right}),
  };
}
template <class Call, int R>
std::vector<Refusal> countable(const std::string& argument, View<R> Call::*member,
                               const Shape<R>& right) {
  return countable_of<R>(argument, changed_call(member), right);
}

/// Several tables as one.
inline std::vector<Refusal> all_of(std::initializer_list<std::vector<Refusal>> tables) {
  std::vector<Refusal> sum;
  for (const auto& table : tables) sum.insert(sum.end(), table.begin(), table.end());
  return sum;
}

}  // namespace headwise_tests
