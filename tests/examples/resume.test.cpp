// char_gpt itself, as a program: killed at any moment, or stopped by Ctrl-C, and gone on with, it
// ends in the bytes of a run that nobody disturbed.
#include <chrono>
#include <thread>

#include "char_gpt_program.hpp"

namespace examples_resume {

using namespace headwise_tests;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

namespace {

constexpr Index steps = Program::steps;

/// A folder with a text, and what an undisturbed run makes of it.
struct Undisturbed {
  TemporaryFolder folder;
  std::string bytes;
  double seconds, seconds_of_none;  // of all steps, and of a run that has none to make

  Undisturbed() {
    write_small_text(folder);
    seconds = seconds_of({"--save", path("whole"), "--save-every", "1"});
    bytes = content(folder / "whole");
    REQUIRE(steps_in("whole") == steps);
    seconds_of_none = seconds_of({"--resume", path("whole")});
  }
  /// Of a run that nobody disturbs.
  double seconds_of(const std::vector<std::string>& more) const {
    const auto begin = Clock::now();
    Program run(folder, more);
    run.wait();
    INFO(content(folder / "log"));
    REQUIRE(run.exit_status() == 0);
    return Seconds(Clock::now() - begin).count();
  }

  std::string path(const char* name) const { return (folder / name).string(); }
  bool has(const char* name) const { return fs::exists(folder / name); }
  /// Whether a file holds what the run has made.
  bool same_as(const char* name) const { return content(folder / name) == bytes; }
  /// Of a checkpoint, which has to be one; 0 where there is none.
  std::int64_t steps_in(const char* name) const {
    std::int64_t count = 0;
    if (!has(name)) return count;
    const auto file = SafetensorsFile::read(folder / name);
    std::memcpy(&count, file.bytes("optimizer.step").data(), sizeof count);
    return count;
  }
  /// Files that a killed run was writing.
  Index leftovers() const {
    Index count = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(path("")))) {
      count += entry.path().extension() == ".tmp" ? 1 : 0;
    }
    return count;
  }
  /// Goes on from `name` where it is there, saving in it after every few steps.
  std::vector<std::string> going_on(const char* name, Index save_every) const {
    std::vector<std::string> words = {"--save", path(name), "--save-every",
                                      std::to_string(save_every)};
    if (has(name)) words.insert(words.end(), {"--resume", path(name)});
    return words;
  }
};

/// Numbers in (0, 1], the same in every run of the test.
class Moments {
 public:
  double next() {
    const auto words = philox<10>({count_++, 0, 0, 0}, philox_key(9));
    return unit_interval(words[0], words[1]);
  }

 private:
  std::uint32_t count_ = 0;
};

/// Waits until then, or until the program has ended; or, if it is to be caught while it writes, on
/// until its temporary file is there.
void wait_for_moment(Program& run, const Undisturbed& whole, Clock::time_point then, bool writing) {
  const std::string file = ".headwise-" + std::to_string(run.id()) + "-0.tmp";
  while (Clock::now() < then && !run.ended()) std::this_thread::sleep_for(Seconds(2e-5));
  while (writing && !run.ended() && !whole.has(file.c_str())) continue;
}

}  // namespace

TEST_CASE("char_gpt killed at 20 moments and gone on with ends in the bytes of a run that was not",
          "[examples]") {
  const Undisturbed whole;
  Moments moments;
  Index kills = 0, endings = 0, too_late = 0;
  const auto enough = [&] { return kills >= 20 && whole.leftovers() > 0; };
  for (Index run_number = 0; !enough() || endings == 0 || whole.has("killed"); ++run_number) {
    REQUIRE(run_number < 400);
    const std::int64_t before = whole.steps_in("killed");
    Program run(whole.folder, whole.going_on("killed", 1 + run_number % 3));
    // From the start of the program to a sixteenth of the steps, so that one training is killed
    // many times; two kills of three when they are due, the third when the next file is being
    // written.
    const Seconds due(moments.next() * (whole.seconds_of_none + whole.seconds / 16));
    const auto then = Clock::now() + std::chrono::duration_cast<Clock::duration>(due);
    const bool disturbed = !enough();
    if (disturbed) {
      wait_for_moment(run, whole, then, run_number % 3 == 2);
      run.send(SIGKILL);
    }
    run.wait();
    CAPTURE(run_number, before, content(whole.folder / "log"));
    CHECK(whole.steps_in("killed") >= before);  // it has gone on, and what is there is whole
    if ((run.killed_by() == SIGKILL)) {
      ++kills;
      continue;
    }
    REQUIRE(run.exit_status() == 0);
    too_late += disturbed ? 1 : 0;
    ++endings;
    CHECK(whole.same_as("killed"));
    fs::remove(whole.folder / "killed");  // the next kills are of a training anew
  }
  WARN(kills << " kills hit, " << whole.leftovers() << " of them while a checkpoint was written, "
             << too_late << " came too late; " << endings << " trainings ended in the same bytes");
  CHECK(enough());
}

TEST_CASE("char_gpt that Ctrl-C stops saves, ends with 130, and goes on to the same bytes",
          "[examples]") {
  const Undisturbed whole;
  constexpr Index saved = steps / 4;
  for (int attempt = 0;; ++attempt) {
    REQUIRE(attempt < 100);  // the signal came when the training was over, a hundred times
    fs::remove(whole.folder / "stopped");
    Program run(whole.folder,
                {"--save", whole.path("stopped"), "--save-every", std::to_string(saved)});
    while (!run.ended() && !whole.has("stopped")) continue;
    std::this_thread::sleep_for(Seconds(1e-4 * attempt));  // later and later behind that file
    run.send(SIGINT);
    run.wait();
    const std::string log = content(whole.folder / "log");
    INFO(log);
    REQUIRE((run.exit_status() == 0 || run.exit_status() == 130 || run.killed_by() == SIGINT));
    const std::int64_t there = whole.steps_in("stopped");
    if (run.exit_status() == 130 && there % saved != 0) {
      CHECK(there < steps);
      CHECK(log == "stopped after " + std::to_string(there) + " of 120 steps; saved to " +
                       whole.path("stopped") + "\n");  // and nothing that comes behind training
      break;  // saved because of the signal, in the middle of the training
    }
  }
  CHECK_FALSE(whole.same_as("stopped"));
  Program rest(whole.folder, {"--save", whole.path("stopped"), "--resume", whole.path("stopped")});
  rest.wait();
  CHECK(rest.exit_status() == 0);
  CHECK(whole.same_as("stopped"));
  CHECK(whole.leftovers() == 0);
}

}  // namespace examples_resume
