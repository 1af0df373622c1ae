#include "headwise/tensor/tensor.hpp"

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/runtime/workspace.hpp"
#include "support/catch.hpp"

namespace tensor_tensor {

using namespace headwise;

namespace {

/// Records what it was asked for; refuses everything once `refuses` is set.
struct Recorder : std::pmr::memory_resource {
  struct Block {
    void* begin;
    std::size_t bytes, alignment;
    bool operator==(const Block&) const = default;
  };
  std::vector<Block> given, returned;
  bool refuses = false;

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (refuses) throw std::bad_alloc();
    void* begin = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    given.push_back({begin, bytes, alignment});
    return begin;
  }
  void do_deallocate(void* begin, std::size_t bytes, std::size_t alignment) override {
    returned.push_back({begin, bytes, alignment});
    std::pmr::new_delete_resource()->deallocate(begin, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

/// An element of which no more than `most` can be at a time.
struct Rare {
  static inline int now = 0, most = 0;

  Rare() { appear(); }
  Rare(const Rare&) { appear(); }
  Rare& operator=(const Rare&) = default;
  ~Rare() { --now; }
  static void appear() {
    if (now == most) throw std::runtime_error("no more of them");
    ++now;
  }
};

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

}  // namespace

TEST_CASE("a new Tensor is zero, dense and starts on a 64-byte boundary", "[tensor]") {
  for (Index n : {1, 2, 3, 5, 17, 64, 129}) {
    const Tensor<float, 2> x(Shape{n, 3});
    const Tensor<long double, 1> y(Shape{n});
    CHECK(is_aligned(x.data()));
    CHECK(is_aligned(y.data()));
    CHECK(x.dense());
    for (float element : x) CHECK(element == 0.0f);
  }
}

TEST_CASE("a Tensor takes its values in row-major order", "[tensor]") {
  const Tensor2<int> x(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) CHECK(x(i, j) == 3 * i + j + 1);
  }
}

TEST_CASE("copies of a Tensor are deep", "[tensor]") {
  Tensor2<double> x(Shape{2, 2}, {1, 2, 3, 4});
  Tensor2<double> copy = x;
  Tensor2<double> assigned(Shape{5, 1});
  assigned = x;
  x(0, 0) = 9;
  for (const Tensor2<double>* y : {&copy, &assigned}) {
    CHECK(y->shape() == Shape{2, 2});
    CHECK((*y)(0, 0) == 1);
    CHECK((*y)(1, 1) == 4);
    CHECK(y->data() != x.data());
  }
  const Tensor2<double>& itself = x;
  x = itself;
  CHECK(x(0, 0) == 9);
  CHECK(x(1, 1) == 4);
}

TEST_CASE("a move takes the storage and leaves an absent Tensor that can be used again",
          "[tensor]") {
  Tensor2<double> x(Shape{2, 2}, {1, 2, 3, 4});
  const double* storage = x.data();
  Tensor2<double> y = std::move(x);
  CHECK(y.data() == storage);
  CHECK(x.absent());
  CHECK(x.size() == 0);
  CHECK(x.data() == nullptr);
  x = std::move(y);
  CHECK(x.data() == storage);
  CHECK(x(1, 0) == 3);
  CHECK(y.absent());
  y = x;
  CHECK(y(1, 1) == 4);
  const Tensor2<double> copy_of_empty = Tensor2<double>();
  CHECK(copy_of_empty.absent());
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<Tensor2<double>>);
  STATIC_REQUIRE(std::is_nothrow_move_assignable_v<Tensor2<double>>);
}

TEST_CASE("a Tensor asks its memory resource for its bytes at 64 and returns the same block",
          "[tensor]") {
  Recorder memory;
  {
    Tensor2<float> x(Shape{3, 5}, &memory);
    REQUIRE(memory.given.size() == 1);
    CHECK(memory.given[0].bytes == 60);
    CHECK(memory.given[0].alignment == 64);
    CHECK(memory.given[0].begin == x.data());
    CHECK(x.memory() == &memory);
    const Tensor2<float> copy = x;
    CHECK(copy.memory() == &memory);
    CHECK(memory.given.size() == 2);
    Tensor2<float> moved = std::move(x);
    CHECK(memory.given.size() == 2);
    CHECK(moved.memory() == &memory);
    const Tensor2<float> empty(Shape{0, 5}, &memory);
    CHECK(memory.given.size() == 2);
  }
  CHECK(memory.returned.size() == 2);
  for (const Recorder::Block& block : memory.given) {
    CHECK(std::count(memory.returned.begin(), memory.returned.end(), block) == 1);
  }
}

TEST_CASE("a failed allocation leaves every Tensor as it was", "[tensor]") {
  Recorder memory;
  Tensor2<float> small(Shape{1, 2}, {7, 8}, &memory);
  const Tensor2<float> large(Shape{2, 2}, {1, 2, 3, 4}, &memory);
  const float* storage = small.data();
  memory.refuses = true;
  CHECK_THROWS_AS(small = large, std::bad_alloc);
  CHECK_THROWS_AS(Tensor2<float>(large), std::bad_alloc);
  CHECK_THROWS_AS(Tensor2<float>(Shape{4, 4}, &memory), std::bad_alloc);
  CHECK(small.data() == storage);
  CHECK(small.shape() == Shape{1, 2});
  CHECK(small(0, 0) == 7);
  CHECK(small(0, 1) == 8);
  CHECK(large(1, 1) == 4);
  CHECK(memory.returned.empty());
}

TEST_CASE("where an element cannot be made, none is left of its Tensor or Workspace, nor memory",
          "[tensor]") {
  Recorder memory;
  const int allowed = GENERATE(0, 1, 5);
  Rare::most = 6;
  {
    Tensor2<Rare> whole(Shape{2, 3}, &memory);
    Rare::most += allowed;
    CHECK_THROWS_AS(Tensor2<Rare>(Shape{2, 3}, &memory), std::runtime_error);
    CHECK_THROWS_AS(Tensor2<Rare>::uninitialized(Shape{2, 3}, &memory), std::runtime_error);
    CHECK_THROWS_AS(Tensor2<Rare>(whole), std::runtime_error);
    CHECK_THROWS_AS(Workspace<Rare>(1, 6, &memory), std::runtime_error);
    CHECK(Rare::now == 6);
    CHECK(memory.given.size() == 5);
    CHECK(memory.returned.size() == 4);
  }
  CHECK(Rare::now == 0);
  for (const Recorder::Block& block : memory.given) {
    CHECK(std::count(memory.returned.begin(), memory.returned.end(), block) == 1);
  }
}

TEST_CASE("swap exchanges storage, shape and memory resource", "[tensor]") {
  Recorder memory;
  Tensor1<int> x(Shape{2}, {1, 2}, &memory);
  Tensor1<int> y(Shape{3}, {3, 4, 5});
  x.swap(y);
  CHECK(x.shape() == Shape{3});
  CHECK(x(2) == 5);
  CHECK(y(1) == 2);
  CHECK(y.memory() == &memory);
  CHECK(x.memory() != &memory);
}

}  // namespace tensor_tensor
