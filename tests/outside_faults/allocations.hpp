// Every allocation of this program, by operator new or by malloc and its kin, is counted, and one
// of them can be made to fail. What the C++ and C libraries take from their own malloc is not seen;
// operator new is theirs, too.
#pragma once

#include <cstddef>
#include <new>

#include "support/catch.hpp"

namespace headwise_tests {

struct Allocations {
  long count = 0;        // that were asked for since the last reset
  long live_blocks = 0;  // not yet given back
  std::size_t live = 0;  // bytes of them, as malloc rounds them
  std::size_t peak = 0;  // the most that were live at once since the last reset
};

/// How things stand.
Allocations allocations();

/// Counts from 0 again; the peak starts from what is live.
void reset_allocations();

/// The allocation with this number, counted from the last reset, fails; none for -1.
void fail_allocation(long number);

/// Calls `attempt` with its first allocation failing, then with its second, and so on until none
/// fails; returns how many did. Each failure must come out as std::bad_alloc, after which
/// `unchanged()` must hold and as many blocks be live as before.
template <class Attempt, class Unchanged>
long fail_each_allocation(Attempt&& attempt, Unchanged&& unchanged) {
  constexpr long most = 2000;
  for (long number = 0; number < most; ++number) {
    const long live_before = allocations().live_blocks;
    reset_allocations();
    fail_allocation(number);
    bool is_bad_alloc = false, is_other = false;
    try {
      attempt();
    } catch (const std::bad_alloc&) {
      is_bad_alloc = true;
    } catch (...) {
      is_other = true;
    }
    fail_allocation(-1);
    const Allocations after = allocations();
    CAPTURE(number);
    REQUIRE_FALSE(is_other);
    if (after.count <= number) return is_bad_alloc ? -1 : number;
    REQUIRE(is_bad_alloc);
    REQUIRE(after.live_blocks == live_before);
    REQUIRE(unchanged());
  }
  return -1;
}

}  // namespace headwise_tests
