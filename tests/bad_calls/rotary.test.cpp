// Rotary positions: every argument wrong in every way that has a rule.
#include "support/refusal_rules.hpp"

namespace bad_calls_rotary {

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

// Each call struct holds what its function takes, all of it right.

struct RotaryForward {
  Witness& m;
  View<4> x = m.tensor(1, 2, 3, 6), y = m.tensor(1, 2, 3, 6);
  RotaryOptions options = {};
  void call() { rotary_forward(x, options, y, m.context()); }
};
struct RotaryBackward {
  Witness& m;
  View<4> dy = m.tensor(1, 2, 3, 6), dx = m.tensor(1, 2, 3, 6);
  RotaryOptions options = {};
  void call() { rotary_backward(dy, options, dx, m.context()); }
};
struct AnglesForward {
  Witness& m;
  View<4> x = m.tensor(1, 2, 3, 6), y = m.tensor(1, 2, 3, 6);
  Matrix cosines = m.tensor(5, 3), sines = m.tensor(5, 3);
  RotaryOptions options = {.offset = 1};
  void call() { rotary_forward(x, RotaryAngles<double>{cosines, sines}, options, y, m.context()); }
};
struct AnglesBackward {
  Witness& m;
  View<4> dy = m.tensor(1, 2, 3, 6), dx = m.tensor(1, 2, 3, 6);
  Matrix cosines = m.tensor(5, 3), sines = m.tensor(5, 3);
  RotaryOptions options = {.offset = 1};
  void call() {
    rotary_backward(dy, RotaryAngles<double>{cosines, sines}, options, dx, m.context());
  }
};

const std::vector<Index> starts = {0, 2, 3};
struct PackedForward {
  Witness& m;
  View<3> x = m.tensor(3, 2, 6), y = m.tensor(3, 2, 6);
  std::vector<Index> rows = starts;
  RotaryOptions options = {};
  void call() { packed_rotary_forward(x, rows, options, y, m.context()); }
};
struct PackedBackward {
  Witness& m;
  View<3> dy = m.tensor(3, 2, 6), dx = m.tensor(3, 2, 6);
  std::vector<Index> rows = starts;
  RotaryOptions options = {};
  void call() { packed_rotary_backward(dy, rows, options, dx, m.context()); }
};

template <class Call>
Refusal rotary(const std::string& message, void (*spoil)(RotaryOptions&)) {
  return argument_error(message, [spoil](Witness& memory) {
    Call call{memory};
    spoil(call.options);
    call.call();
  });
}
template <class Call, int R>
std::vector<Refusal> rotation(const std::string& function, const std::string& in,
                              View<R> Call::*from, const std::string& out, View<R> Call::*to,
                              const Shape<R>& shape) {
  const std::string rule = function + ": ", no_theta = ", expected a finite number above 0",
                    no_width = ", expected an even number from 0 to 6, the width of a head";
  return all_of({
      countable(rule + in, from, shape),
      output(function, out, to, shape, "the shape of " + in),
      {
          repeated(rule + out, to),
          shape_error(rule + out + " overlaps " + in + " shifted, expected " + in +
                          " itself or memory of its own",
                      [=](Witness& memory) {
                        Call call{memory};
                        lay_over(memory, call.*to, call.*from);
                        call.call();
                      }),
          rotary<Call>(rule + "width is 8" + no_width, [](auto& o) { o.width = 8; }),
          rotary<Call>(rule + "width is 3" + no_width, [](auto& o) { o.width = 3; }),
          rotary<Call>(rule + "width is -2" + no_width, [](auto& o) { o.width = -2; }),
          rotary<Call>(rule + "offset is -1, expected 0 to 2^48", [](auto& o) { o.offset = -1; }),
          rotary<Call>(rule + "offset is 9223372036854775807, expected 0 to 2^48",
                       [](auto& o) { o.offset = std::numeric_limits<Index>::max(); }),
          rotary<Call>(rule + "theta is 0" + no_theta, [](auto& o) { o.theta = 0; }),
          rotary<Call>(rule + "theta is -1" + no_theta, [](auto& o) { o.theta = -1; }),
          rotary<Call>(rule + "theta is nan" + no_theta, [](auto& o) { o.theta = nan; }),
          rotary<Call>(rule + "theta is inf" + no_theta, [](auto& o) { o.theta = infinity; }),
          shape_error(rule + "frequencies is [2], expected [3] (one for each pair of the width)",
                      [](Witness& memory) {
                        Call call{memory};
                        call.options.frequencies = memory.tensor(2);
                        call.call();
                      }),
          argument_error(rule + "frequencies(1) is inf, expected a finite number",
                         [](Witness& memory) {
                           static const double values[] = {1, infinity, 1};
                           Call call{memory};
                           call.options.frequencies = {values, Shape{3}};
                           call.call();
                         }),
      },
  });
}
template <class Call>
std::vector<Refusal> by_angles(const std::string& function, const std::string& out,
                               View<4> Call::*to) {
  const std::string rule = function + ": ";
  return {
      shape_error(rule + "angles.cosines is [5, 2], expected [5, 3] (half of the width)",
                  [](Witness& memory) {
                    Call call{memory};
                    call.cosines = memory.tensor(5, 2);
                    call.call();
                  }),
      shape_error(rule + "angles.cosines is [5, 3] at a null address, expected its elements",
                  [](Witness& memory) {
                    Call call{memory};
                    call.cosines = Witness::null(5, 3);
                    call.call();
                  }),
      shape_error(rule + "angles.sines is [4, 3], expected [5, 3] (angles.cosines)",
                  [](Witness& memory) {
                    Call call{memory};
                    call.sines = memory.tensor(4, 3);
                    call.call();
                  }),
      rotary<Call>(rule + "angles hold 5 positions, expected at least 6 (offset and rows)",
                   [](auto& o) { o.offset = 3; }),
      overlapping(rule + out, to, "angles.cosines", &Call::cosines),
      overlapping(rule + out, to, "angles.sines", &Call::sines),
  };
}

Refusal table_of(const std::string& message, const RotaryOptions& options) {
  return argument_error("RotaryTable: " + message,
                        [=](Witness&) { (void)RotaryTable<double>(6, options); });
}

template <class Call>
std::vector<Refusal> by_starts(const std::string& function, const std::string& in,
                               View<3> Call::*to, const std::string& out) {
  const std::string rule = function + ": ";
  const auto with = [&](const std::string& message, const std::vector<Index>& rows) {
    return argument_error(rule + "starts " + message, [rows](Witness& memory) {
      Call call{memory};
      call.rows = rows;
      call.call();
    });
  };
  return {
      with("has 0 numbers, expected one more than sequences", {}),
      with("begins with 1, expected 0", {1, 3}),
      with("falls from 4 to 3 at 2, expected cumulative lengths", {0, 4, 3}),
      with("ends with 2, expected 3 (the rows of " + in + ")", {0, 1, 2}),
      with("ends with 4, expected 3 (the rows of " + in + ")", {0, 4}),
      shape_error(rule + out + " overlaps starts, expected memory of its own",
                  [to](Witness& memory) {
                    Call call{memory};
                    call.rows.assign(36, 0);
                    call.rows.back() = 3;
                    call.*to = {reinterpret_cast<double*>(call.rows.data()), Shape{3, 2, 6}};
                    call.call();
                  }),
  };
}

const Shape<4> heads{1, 2, 3, 6};
const Shape<3> packed{3, 2, 6};
const Refusals rotary_refusals(all_of({
    rotation("rotary_forward", "x", &RotaryForward::x, "y", &RotaryForward::y, heads),
    rotation("rotary_backward", "dy", &RotaryBackward::dy, "dx", &RotaryBackward::dx, heads),
    rotation("rotary_forward", "x", &AnglesForward::x, "y", &AnglesForward::y, heads),
    rotation("rotary_backward", "dy", &AnglesBackward::dy, "dx", &AnglesBackward::dx, heads),
    rotation("packed_rotary_forward", "x", &PackedForward::x, "y", &PackedForward::y, packed),
    rotation("packed_rotary_backward", "dy", &PackedBackward::dy, "dx", &PackedBackward::dx,
             packed),
    by_starts("packed_rotary_forward", "x", &PackedForward::y, "y"),
    by_starts("packed_rotary_backward", "dy", &PackedBackward::dx, "dx"),
    by_angles("rotary_forward", "y", &AnglesForward::y),
    by_angles("rotary_backward", "dx", &AnglesBackward::dx),
    {
        table_of("width is 5, expected an even number from 0 to 6, the width of a head",
                 {.width = 5}),
        table_of("offset is -7, expected 0 to 2^48", {.offset = -7}),
        table_of("theta is -2, expected a finite number above 0", {.theta = -2}),
        shape_error(
            "RotaryTable: frequencies is [2], expected [3] (one for each pair of the width)",
            [](Witness& m) { (void)RotaryTable<double>(6, {.frequencies = m.tensor(2)}); }),
        argument_error("RotaryTable: frequencies(2) is nan, expected a finite number",
                       [](Witness&) {
                         static const double values[] = {1, 1, nan};
                         (void)RotaryTable<double>(
                             6, {.frequencies = In<double, 1>(values, Shape{3})});
                       }),
        argument_error("RotaryTable::grow: the table was moved from, expected one that has its "
                       "frequencies",
                       [](Witness& m) {
                         RotaryTable<double> table(6, {.frequencies = m.tensor(3)});
                         const auto taken = std::move(table);
                         table.grow(4);
                       }),
        argument_error("RotaryTable::grow: positions is 281474976710657, expected at most 2^48",
                       [](Witness&) { RotaryTable<double>(6).grow((Index{1} << 48) + 1); }),
    },
}));

}  // namespace

TEST_CASE("rotary positions refuse bad calls before anything is written", "[bad_calls]") {
  rotary_refusals.check();
}

TEMPLATE_TEST_CASE(
    "the calls of rotary positions that are spoilt are right before, and show when they write",
    "[bad_calls]", RotaryForward, RotaryBackward, AnglesForward, AnglesBackward, PackedForward,
    PackedBackward) {
  Witness memory;
  TestType call{memory};
  call.call();
  CHECK(memory.written() == "a tensor");
}

}  // namespace bad_calls_rotary
