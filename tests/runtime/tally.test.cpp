#include "headwise/runtime/tally.hpp"

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <optional>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/runtime/workspace.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"

namespace runtime_tally {

using namespace headwise;

TEST_CASE("a memory tally counts the bytes that are out and the most that ever were", "[runtime]") {
  MemoryTally memory;
  CHECK(memory.live() == 0);
  CHECK(memory.peak() == 0);
  {
    const Tensor2<float> x(Shape{3, 5}, &memory);  // 60 bytes
    CHECK(memory.live() == 60);
    {
      const Tensor1<double> y(Shape{10}, &memory);  // 80 bytes
      CHECK(memory.live() == 140);
    }
    CHECK(memory.live() == 60);
    CHECK(memory.peak() == 140);
    const Tensor1<double> z(Shape{5}, &memory);
    CHECK(memory.live() == 100);
    CHECK(memory.peak() == 140);
  }
  CHECK(memory.live() == 0);
  CHECK(memory.peak() == 140);
  CHECK(memory.allocations() == 3);
  memory.reset_peak();
  CHECK(memory.peak() == 0);
}

TEST_CASE("reset_peak starts again from what is live", "[runtime]") {
  MemoryTally memory;
  const Tensor1<double> kept(Shape{4}, &memory);
  std::optional<Tensor1<double>> dropped(Tensor1<double>(Shape{100}, &memory));
  dropped.reset();
  memory.reset_peak();
  CHECK(memory.peak() == 32);
}

TEST_CASE("a memory tally passes requests on and counts none that fails", "[runtime]") {
  MemoryTally refusing(std::pmr::null_memory_resource());
  CHECK_THROWS_AS(Tensor1<float>(Shape{1}, &refusing), std::bad_alloc);
  CHECK(refusing.live() == 0);
  CHECK(refusing.peak() == 0);

  MemoryTally below;
  MemoryTally above(&below);
  const Tensor1<float> x(Shape{16}, &above);
  CHECK(below.live() == 64);
  CHECK(above.live() == 64);
  CHECK(above.is_equal(above));
  CHECK_FALSE(above.is_equal(below));
}

TEST_CASE("tallies agree with the serial sum when many threads add to them", "[runtime]") {
  ThreadPool pool(4);
  MemoryTally memory;
  FlopTally flops;
  pool.run(2000, [&](Index task, Index) {
    const Tensor1<char> x(Shape{task + 1}, &memory);
    flops.add(task, 2 * task);
  });
  CHECK(memory.live() == 0);
  CHECK(memory.allocations() == 2000);
  CHECK(memory.peak() >= 2000);
  CHECK(memory.peak() <= 2000 + 1999 + 1998 + 1997);
  CHECK(flops.useful == 2000 * 1999 / 2);
  CHECK(flops.executed == 2000 * 1999);
  flops.reset();
  CHECK(flops.useful == 0);
  CHECK(flops.executed == 0);
}

namespace {

template <class T>
void check_workspace() {
  for (Index workers : {1, 2, 5}) {
    for (Index elements : {1, 7, 64, 100}) {
      CAPTURE(sizeof(T), workers, elements);
      MemoryTally memory;
      {
        Workspace<T> workspace(workers, padded<T>(elements) + padded<T>(3), &memory);
        CHECK(memory.allocations() == 1);
        const T* previous_end = nullptr;
        for (Index worker = 0; worker < workers; ++worker) {
          Scratch<T> scratch = workspace.of(worker);
          T* first = scratch.take(elements);
          T* second = scratch.take(3);
          CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
          CHECK(reinterpret_cast<std::uintptr_t>(second) % 64 == 0);
          CHECK(second >= first + elements);
          CHECK((previous_end == nullptr || first >= previous_end));
          previous_end = second + 3;
          CHECK(workspace.of(worker).take(1) == first);
          // Under a sanitizer, a part that reaches out of the block is seen here.
          std::fill(first, first + elements, T(1));
          std::fill(second, second + 3, T(2));
        }
      }
      CHECK(memory.live() == 0);
    }
  }
}

}  // namespace

TEST_CASE("the parts of a workspace are aligned and none overlaps another", "[runtime]") {
  check_workspace<float>();
  check_workspace<double>();
  check_workspace<long double>();
  struct Wide {  // no divisor of 64
    double a, b, c;
    Wide(double x = 0) : a(x), b(x), c(x) {}
  };
  check_workspace<Wide>();
}

TEST_CASE("padded rounds up to whole 64-byte lines and no further", "[runtime]") {
  CHECK(padded<float>(0) == 0);
  CHECK(padded<float>(1) == 16);
  CHECK(padded<float>(16) == 16);
  CHECK(padded<float>(17) == 32);
  CHECK(padded<double>(9) == 16);
}

}  // namespace runtime_tally
