// How many threads a call without an executor works on, and the pool of them: the one piece of
// global state that is not constant. It is 1, the calling thread, until somebody asks for more;
// nothing is started behind a program's back.
#pragma once

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

#include "headwise/runtime/thread_pool.hpp"

namespace headwise::inline v0_1 {

namespace detail {

/// 0 until it is known. Apart from the pool, since it is asked also when that is gone, at the end
/// of a program.
inline std::atomic<Index> default_threads = 0;

struct DefaultPool {
  std::mutex mutex;
  std::shared_ptr<ThreadPool> pool;  // null for 1 thread, and before it is needed

  ~DefaultPool() { default_threads = 1; }
};
inline constinit DefaultPool default_pool;

/// What this value of HEADWISE_NUM_THREADS asks for; null: it is not set. Throws ArgumentError.
inline Index threads_asked_for(const char* value) {
  if (value == nullptr) return 1;
  const std::string_view text = value;
  Index threads = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  require(whole && threads >= 1 && threads <= max_threads, "num_threads",
          "HEADWISE_NUM_THREADS is ", text.empty() ? "empty" : text, ", expected 1 to ",
          max_threads, " (environment)");
  return threads;
}

}  // namespace detail

/// Threads of a call whose Context names no executor: what set_num_threads last said; before, the
/// environment's HEADWISE_NUM_THREADS, which is read once; else 1. Throws ArgumentError if that is
/// no number from 1 to 65536.
inline Index num_threads() {
  if (const Index threads = detail::default_threads.load(); threads != 0) return threads;
  const std::lock_guard lock(detail::default_pool.mutex);
  if (detail::default_threads == 0) {
    detail::default_threads = detail::threads_asked_for(std::getenv("HEADWISE_NUM_THREADS"));
  }
  return detail::default_threads;
}

/// From now on a call whose Context names no executor works on so many threads, the calling one
/// among them. From any thread, at any time, also inside a task: calls that are under way, and a
/// Context made before, keep the threads that they have, which end with the last of them.
///
/// Throws ArgumentError for fewer than 1 or more than 65536, std::system_error if a thread cannot
/// be started; then nothing has changed.
inline void set_num_threads(Index threads) {
  require(threads >= 1 && threads <= max_threads, "set_num_threads", "threads is ", threads,
          ", expected 1 to ", max_threads);
  if (detail::default_threads == threads) return;
  std::shared_ptr<ThreadPool> pool;
  if (threads > 1) pool = std::make_shared<ThreadPool>(threads);
  const std::lock_guard lock(detail::default_pool.mutex);
  detail::default_pool.pool.swap(pool);
  detail::default_threads = threads;
}

namespace detail {

/// The default pool, started if it has not been; null where the calling thread is enough.
inline std::shared_ptr<ThreadPool> share_default_pool() {
  if (num_threads() == 1) return nullptr;
  const std::lock_guard lock(default_pool.mutex);
  if (!default_pool.pool && default_threads != 1) {
    default_pool.pool = std::make_shared<ThreadPool>(default_threads);
  }
  return default_pool.pool;
}

}  // namespace detail

}  // namespace headwise::inline v0_1
