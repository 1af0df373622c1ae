// char_gpt as a program that a test starts, and the small text that it learns.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "../io/written_files.hpp"

namespace headwise_tests {

inline void write_small_text(const TemporaryFolder& folder) {
  std::ofstream text(folder / "text");
  for (int n = 0; n < 300; ++n) text << (n % 3 == 0 ? "sum " : n % 7 == 2 ? "row\n" : "head ");
}

/// char_gpt on a small model. What it prints goes to a file "log".
class Program {
 public:
  static constexpr Index steps = 120;
  /// What it is called with before what a test adds.
  static std::vector<std::string> recipe(const TemporaryFolder& folder) {
    std::vector<std::string> words = {(folder / "text").string()};
    for (const char* word : {"--threads", "1", "--layers", "1", "--heads", "2", "--width", "8",
                             "--context", "8", "--batch", "2", "--steps"}) {
      words.emplace_back(word);
    }
    words.push_back(std::to_string(steps));
    return words;
  }

  /// The recipe and more; with `bare`, `more` alone.
  Program(const TemporaryFolder& folder, const std::vector<std::string>& more, bool bare = false) {
    std::vector<std::string> words = {CHAR_GPT_PROGRAM};
    if (!bare) words = concatenated(words, recipe(folder));
    words = concatenated(words, more);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string log = (folder / "log").string();
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    const int error =
        posix_spawn(&process_, CHAR_GPT_PROGRAM, &files, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    REQUIRE(error == 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (!status_) send(SIGKILL), wait();
  }

  void send(int signal) const { ::kill(process_, signal); }
  /// Whether it has ended, by whatever.
  bool ended() {
    if (!status_) take_status(WNOHANG);
    return status_.has_value();
  }
  void wait() {
    while (!status_) take_status(0);
  }
  /// The signal that ended it; 0 of a program that ended itself.
  int killed_by() const { return WIFSIGNALED(*status_) ? WTERMSIG(*status_) : 0; }
  /// Of a program that ended itself; else -1.
  int exit_status() const { return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : -1; }
  ::pid_t id() const { return process_; }

 private:
  static std::vector<std::string> concatenated(std::vector<std::string> words,
                                               const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void take_status(int how) {
    int status = 0;
    if (::waitpid(process_, &status, how) == process_) status_ = status;
  }
  ::pid_t process_ = 0;
  std::optional<int> status_;
};

}  // namespace headwise_tests
