// The line that shows how far a training is, on a terminal alone, and Ctrl-C: the step that runs is
// finished, then the program saves and ends; a second Ctrl-C ends it at once.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>

#include "training.hpp"

namespace char_gpt {

/// Whether Ctrl-C was pressed.
inline volatile std::sig_atomic_t interrupted = 0;

inline void watch_for_interrupts() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

/// From here on Ctrl-C ends the program at once.
inline void end_watch() { std::signal(SIGINT, SIG_DFL); }

/// 75 as "1:15", 3700 as "1:01:40".
inline std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::max(0.0, seconds) + 0.5);
  char text[64];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  }
  return text;
}

/// Where a training is.
struct ProgressState {
  Index step = 0, steps = 0;  // taken and wanted
  double loss = 0;
  double tokens_a_second = 0;
  double seconds_left = 0;
};

inline std::string progress_line(const ProgressState& state) {
  char text[160];
  std::snprintf(text, sizeof text, "step %td/%td  loss %.4f  %.0f tokens/s  %s left", state.step,
                state.steps, state.loss, state.tokens_a_second,
                clock_text(state.seconds_left).c_str());
  return text;
}

/// Writes over its own line of stderr, ten times a second; where that is no terminal, nothing.
class Progress {
 public:
  Progress() : shows_(::isatty(STDERR_FILENO) == 1), begun_(now()) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }

  /// After the step that makes `step` of `steps`, `done` of them in this run.
  void show(Index step, Index steps, Index done, Index tokens_a_step, double loss) {
    const double time = now();
    if (!shows_ || (time < next_ && step != steps)) return;
    next_ = time + 0.1;
    shown_ = true;
    const double rate = static_cast<double>(done) / std::max(time - begun_, 1e-9);
    const ProgressState state{step, steps, loss, rate * static_cast<double>(tokens_a_step),
                              static_cast<double>(steps - step) / rate};
    std::fprintf(stderr, "\r%s\x1b[K", progress_line(state).c_str());
    std::fflush(stderr);
  }

 private:
  bool shows_, shown_ = false;
  double begun_, next_ = 0;
};

}  // namespace char_gpt
