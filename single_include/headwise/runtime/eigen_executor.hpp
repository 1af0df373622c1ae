// headwise 0.1.0: headwise/runtime/eigen_executor.hpp and the headers below it in one file, made from include/ by
// tools/amalgamate. It is not for editing.
//
// MIT License
//
// Copyright (c) 2026 The headwise authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "../headwise.hpp"

// headwise/runtime/eigen_executor.hpp
// Tasks on a thread pool of Eigen's that the program has already. For who includes it: the umbrella
// does not. Eigen's pool allocates for each function that it is given, so a run here does too.

#if __has_include(<Eigen/ThreadPool>)  // from Eigen 5 on
#include <Eigen/ThreadPool>
#elif __has_include(<unsupported/Eigen/CXX11/ThreadPool>)
#include <unsupported/Eigen/CXX11/ThreadPool>
#else
#error "headwise/runtime/eigen_executor.hpp needs Eigen's ThreadPool: this Eigen comes without it"
#endif

namespace headwise::inline v0_1 {

/// The threads of an Eigen::ThreadPool, which must outlive it, and the calling one. From any
/// thread, also one of the pool's own: a run waits for nothing that stands in the pool's queue, so
/// a pool that is busy with something else makes it slower and never stuck.
class EigenExecutor {
 public:
  /// Refers to the pool.
  explicit EigenExecutor(Eigen::ThreadPoolInterface& pool) : pool_(pool) {}

  /// The pool's threads and the calling one.
  Index concurrency() const { return Index{pool_.NumThreads()} + 1; }

  /// As the Executor concept says. What the pool gets no memory for runs on fewer threads.
  void run(Index tasks, TaskRef task) {
    const Index workers = (std::min)(tasks, concurrency());
    if (workers <= 1) return SerialExecutor().run(tasks, task);
    std::shared_ptr<Run> run;
    const auto schedule = [&] {
      run = std::make_shared<Run>(tasks, task);
      for (Index worker = 1; worker < workers; ++worker) {
        pool_.Schedule([run, worker] { run->help(worker); });
      }
    };
#if HEADWISE_HAS_EXCEPTIONS
    try {
      schedule();
    } catch (const std::bad_alloc&) {
      if (run == nullptr) return SerialExecutor().run(tasks, task);
    }
#else
    schedule();
#endif
    run->lead();
  }

 private:
  /// Outlives run() for the sake of functions that the pool comes to only when it is over.
  class Run {
   public:
    Run(Index tasks, TaskRef task) : tasks_(tasks), task_(task) {}

    void lead() noexcept {
      work(0);
      inside_.fetch_add(closed);
      bell_.wait(50000, [this] { return inside_.load() == closed; });
    }
    void help(Index worker) noexcept {
      if (inside_.fetch_add(1) < closed) work(worker);
      if (inside_.fetch_sub(1) == closed + 1) bell_.ring();
    }

   private:
    static constexpr Index closed = Index{1} << 32;

    void work(Index worker) {
      const auto take = [this] { return next_.fetch_add(1, std::memory_order_relaxed); };
      for (Index t = take(); t < tasks_; t = take()) task_(t, worker);
    }

    const Index tasks_;
    const TaskRef task_;
    std::atomic<Index> next_ = 0;
    std::atomic<Index> inside_ = 0;  // helpers, and `closed` once nobody may come in
    detail::Bell bell_;
  };

  Eigen::ThreadPoolInterface& pool_;
};

}  // namespace headwise::inline v0_1
