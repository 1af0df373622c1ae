#include "headwise/runtime/recycled_memory.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "headwise/headwise.hpp"
#include "support/catch.hpp"

namespace runtime_recycled_memory {

using namespace headwise;

TEST_CASE("recycled memory hands out what it was given back", "[runtime]") {
  RecycledMemory memory;
  for (const std::size_t bytes : {1u, 64u, 65u, 1000u, 4096u, 4097u, 1000000u, 5000000u}) {
    CAPTURE(bytes);
    void* first = memory.allocate(bytes, 64);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
    memory.deallocate(first, bytes, 64);
    CHECK(memory.kept_bytes() >= bytes);
    CHECK(memory.allocate(bytes, 64) == first);
    memory.deallocate(first, bytes, 64);
    memory.release();
    CHECK(memory.kept_bytes() == 0);
  }
}

TEST_CASE("recycled blocks never overlap, and hold what was asked for", "[runtime]") {
  RecycledMemory memory;
  struct Block {
    unsigned char* data;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> blocks;
  std::uint64_t state = 7;
  const auto draw = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  for (int turn = 0; turn < 20000; ++turn) {
    if (blocks.size() < 40 && draw() >> 63 == 0) {
      const std::size_t bytes = 1 + (draw() >> 33) % (std::size_t{1} << (draw() >> 60));
      auto* data = static_cast<unsigned char*>(memory.allocate(bytes, 64));
      blocks.push_back({data, bytes, static_cast<unsigned char>(turn)});
      std::fill_n(data, bytes, blocks.back().mark);
    } else if (!blocks.empty()) {
      std::swap(blocks[(draw() >> 33) % blocks.size()], blocks.back());
      const Block last = blocks.back();
      blocks.pop_back();
      bool whole = true;
      for (std::size_t n = 0; n < last.bytes; ++n) whole = whole && last.data[n] == last.mark;
      CHECK(whole);
      memory.deallocate(last.data, last.bytes, 64);
    }
  }
  for (const Block& block : blocks) memory.deallocate(block.data, block.bytes, 64);
}

TEST_CASE("what was never in use at once does not pile up", "[runtime]") {
  RecycledMemory memory;
  std::size_t most = 0;
  for (std::size_t bytes = 100000; bytes < 1000000; bytes += 10000) {
    memory.deallocate(memory.allocate(bytes, 64), bytes, 64);
    most = std::max(most, memory.kept_bytes());
  }
  CHECK(most > (10 << 20));
  CHECK(most <= (18 << 20));        // 16 MiB, and the largest twice
  if (!detail::recycles()) return;  // AddressSanitizer ends a program that asks for so much
  CHECK_THROWS_AS(memory.allocate(std::size_t{15} << 44, 64), std::bad_alloc);
  for (std::size_t bytes = 100000; bytes < 1000000; bytes += 10000) {
    memory.deallocate(memory.allocate(bytes, 64), bytes, 64);
    CHECK(memory.kept_bytes() <= (18 << 20));
  }
}

TEST_CASE("memory may be given back by another thread than it was asked for by", "[runtime]") {
  RecycledMemory memory;
  std::vector<std::thread> threads;
  std::atomic<void*> handed = nullptr;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 2000; ++turn) {
        void* mine = memory.allocate(512, 64);
        std::fill_n(static_cast<unsigned char*>(mine), 512, static_cast<unsigned char>(turn));
        void* theirs = handed.exchange(mine);
        if (theirs != nullptr) memory.deallocate(theirs, 512, 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  memory.deallocate(handed.load(), 512, 64);
  CHECK(memory.kept_bytes() >= 512);
}

TEST_CASE("a child process asks for memory, whatever threads of its parent were doing",
          "[runtime][forks]") {
  RecycledMemory& memory = recycled_memory();
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int n = 0; n < 2; ++n) {
    threads.emplace_back([&] {
      while (!ends) memory.deallocate(memory.allocate(512, 64), 512, 64);
    });
  }
  for (int turn = 0; turn < 50; ++turn) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends it if it waits for ever
      memory.deallocate(memory.allocate(512, 64), 512, 64);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a size beyond all steps and a wide alignment come from the system", "[runtime]") {
  RecycledMemory memory;
  void* wide = memory.allocate(100, 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(wide) % 4096 == 0);
  memory.deallocate(wide, 100, 4096);
  CHECK(memory.kept_bytes() == 0);
  if (detail::recycles()) {  // AddressSanitizer ends a program that asks for so much
    CHECK_THROWS_AS(memory.allocate(std::size_t{1} << 62, 64), std::bad_alloc);
  }
}

TEST_CASE("a default memory resource that the program has set is the one that calls use",
          "[runtime]") {
  MemoryTally mine(std::pmr::new_delete_resource());
  std::pmr::set_default_resource(&mine);
  CHECK(Context{}.memory == &mine);
  std::pmr::set_default_resource(nullptr);
  if (detail::recycles()) {
    CHECK(Context{}.memory == &recycled_memory());
  } else {
    CHECK(Context{}.memory == std::pmr::new_delete_resource());
  }
}

}  // namespace runtime_recycled_memory
