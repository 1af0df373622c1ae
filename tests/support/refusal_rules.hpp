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
std::function<void(Witness&)> spoilt(void (*spoil)(Call&)) {
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

/// The rules of every output: its shape, an address, elements of its own.
template <class Call, int R>
std::vector<Refusal> output(const std::string& function, const std::string& name,
                            View<R> Call::*member, const Shape<R>& right,
                            const std::string& whence) {
  std::vector<Refusal> refusals;
  const std::string argument = function + ": " + name;
  const auto add = [&](const std::string& message, std::function<void(Call&)> spoil) {
    refusals.push_back(shape_error(argument + message, [spoil](Witness& memory) {
      Call call{memory};
      spoil(call);
      call.call();
    }));
  };
  for (int axis = 0; axis < R; ++axis) {
    for (const Index more : {-1, 1}) {
      Shape<R> got = right;
      got[axis] += more;
      add(" is " + got.format() + ", expected " + right.format() + " (" + whence + ")",
          [=](Call& c) { c.*member = c.m.tensor(got); });
    }
  }
  add(" is " + right.format() + " at a null address, expected its elements",
      [=](Call& c) { c.*member = View<R>(nullptr, right); });
  return refusals;
}
template <class Call, int R>
Refusal repeated(const std::string& argument, View<R> Call::*member) {
  return shape_error(argument + " holds one element at two indices, expected elements of their own",
                     [=](Witness& memory) {
                       Call c{memory};
                       c.*member = {(c.*member).data(), (c.*member).shape(), Shape<R>()};
                       c.call();
                     });
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
template <class Call, int R>
std::vector<Refusal> countable(const std::string& argument, View<R> Call::*member,
                               const Shape<R>& right) {
  const auto with = [=](const View<R>& view) {
    return [=](Witness& memory) {
      Call c{memory};
      c.*member = view;
      c.call();
    };
  };
  static double some[1] = {};  // never read: its extents are refused
  Shape<R> negative = right, huge = right;
  negative[0] = -1;
  huge[R - 1] = (Index{1} << 48) + 1;
  return {
      shape_error(argument + " is " + negative.format() + ", expected extents of 0 or more",
                  with({some, negative})),
      shape_error(
          argument + " is " + huge.format() + ", expected extents whose product is at most 2^48",
          with({some, huge})),
      shape_error(argument + " is " + right.format() + " at a null address, expected its elements",
                  with({nullptr, right}))};
}

/// Several tables as one.
inline std::vector<Refusal> all_of(std::initializer_list<std::vector<Refusal>> tables) {
  std::vector<Refusal> sum;
  for (const auto& table : tables) sum.insert(sum.end(), table.begin(), table.end());
  return sum;
}

}  // namespace headwise_tests
