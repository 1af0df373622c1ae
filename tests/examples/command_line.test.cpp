// char_gpt itself, as a program: what it refuses before its first step, what a failure behind that
// leaves, when Ctrl-C ends it, and writing without training.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>

#include "char_gpt_program.hpp"

namespace examples_command_line {

using namespace headwise_tests;

namespace {

/// What a run printed, and how it ended.
struct Ended {
  int exit_status;
  std::string log;
};

struct Folder {
  TemporaryFolder folder;
  Folder() { write_small_text(folder); }
  std::string path(const char* name) const { return (folder / name).string(); }
  Ended run(const std::vector<std::string>& more, bool bare = false) const {
    Program program(folder, more, bare);
    program.wait();
    return {program.exit_status(), content(folder / "log")};
  }
};

/// Writes a checkpoint once more, with other bytes for some tensors.
void change_tensors(const std::string& path,
                    const std::map<std::string, std::span<const std::byte>>& changed) {
  const auto file = SafetensorsFile::read(path);
  SafetensorsWriter writer;
  for (const std::string& name : file.names()) {
    const auto found = changed.find(name);
    writer.add_bytes(name, file.dtype(name), file.shape(name),
                     found == changed.end() ? file.bytes(name) : found->second);
  }
  for (const auto& [key, line] : file.metadata()) writer.set_metadata(key, line);
  writer.write(path);
}

std::int64_t steps_in(const std::string& path) {
  std::int64_t count = 0;
  std::memcpy(&count, SafetensorsFile::read(path).bytes("optimizer.step").data(), sizeof count);
  return count;
}

/// Sets a variable of the environment for as long as it lives.
struct Environment {
  const char* const name;
  Environment(const char* variable, const char* value) : name(variable) {
    ::setenv(name, value, 1);
  }
  Environment(const Environment&) = delete;
  ~Environment() { ::unsetenv(name); }
};

}  // namespace

TEST_CASE("char_gpt refuses a file that cannot be made before its first step", "[examples]") {
  const Folder here;
  for (const std::string option : {"--save", "--svg", "--heads-svg"}) {
    // So many steps would take days.
    const Ended end = here.run({"--steps", "1000000000", option, here.path("none/x")});
    CHECK(end.exit_status == 1);
    CHECK_THAT(end.log, ContainsSubstring("char_gpt: " + option + " " + here.path("none/x") +
                                          ": no temporary file can be made in its folder"));
  }
  CHECK(here.run({"--steps", "0", "--save", here.path("x"), "--svg", here.path("y")}).exit_status ==
        0);
  CHECK(here.folder.num_files() == 4);  // those two, text and log: nothing was left behind
}

TEST_CASE("char_gpt whose picture fails prints sample and JSON, draws the other and ends with 1",
          "[examples]") {
  const Folder here;
  for (int attempt = 0;; ++attempt) {
    REQUIRE(attempt < 100);  // the folder was gone too early or too late, a hundred times
    fs::create_directory(here.folder / "pictures");
    fs::remove(here.folder / "x");
    fs::remove(here.folder / "heads.svg");
    Program run(here.folder, {"--svg", here.path("pictures/loss.svg"), "--heads-svg",
                              here.path("heads.svg"), "--save", here.path("x"), "--save-every", "1",
                              "--steps", "40", "--sample", "5", "--json"});
    while (!run.ended() && !fs::exists(here.folder / "x")) continue;
    fs::remove_all(here.folder / "pictures");
    run.wait();
    if (run.exit_status() != 1) continue;
    const std::string log = content(here.folder / "log");
    CHECK_THAT(log, ContainsSubstring("char_gpt: cannot write " + here.path("pictures/loss.svg")));
    CHECK_THAT(log, ContainsSubstring("characters a second"));
    CHECK(fs::exists(here.folder / "heads.svg"));
    CHECK_THAT(log, ContainsSubstring("{\"held_out_loss\": "));
    CHECK(log.ends_with("}\n"));
    break;
  }
}

TEST_CASE("char_gpt stops before a step without a number and saves what the steps before made",
          "[examples]") {
  const Folder here;
  const std::string path = here.path("x"), saved = here.path("saved");
  REQUIRE(here.run({"--save", path}).exit_status == 0);
  // Gone on with in the middle, by moments that carry parameters so far off in one step that their
  // product is no number.
  const std::int64_t step = 50;
  const std::size_t token_bytes = SafetensorsFile::read(path).bytes("token").size();
  const std::vector<float> moments(token_bytes / sizeof(float), 1e38f);
  const auto bytes = std::as_bytes(std::span(moments));
  change_tensors(path, {{"optimizer.step", std::as_bytes(std::span(&step, 1))},
                        {"optimizer.m.norm", bytes.first(8 * sizeof(float))},
                        {"optimizer.m.token", bytes}});
  const std::vector<std::string> rest = {"--resume", path, "--save", saved};
  const Ended end = here.run(rest);
  CHECK(end.exit_status == 1);
  CHECK_THAT(end.log, ContainsSubstring(" is no number at step 52; what the steps before it made "
                                        "is saved to " +
                                        saved + "\n"));
  CHECK(steps_in(saved) == 51);
  fs::remove(saved);
  const std::vector<float> no_numbers(8, std::nanf(""));
  change_tensors(path, {{"norm", std::as_bytes(std::span(no_numbers))}});
  CHECK(here.run(rest).log == "char_gpt: the loss is no number at step 51\n");
  CHECK_FALSE(fs::exists(saved));  // nothing was made that it could hold
}

TEST_CASE("char_gpt that Ctrl-C reaches while it writes a long sample ends at once", "[examples]") {
  const Folder here;
  Program run(here.folder, {"--steps", "1", "--sample", "1000000000"});
  while (!run.ended() && content(here.folder / "log").empty()) continue;
  run.send(SIGINT);
  run.wait();
  CHECK(run.killed_by() == SIGINT);
}

TEST_CASE("char_gpt that is only to write writes what it would behind its training, without text",
          "[examples]") {
  const Folder here;
  const std::string path = here.path("x");
  REQUIRE(here.run({"--save", path}).exit_status == 0);
  std::vector<std::string> words = {"--resume",      path,  "--sample", "60", "--prompt", "row",
                                    "--temperature", "0.5", "--seed",   "0"};
  const std::string whole = here.run(words).log;
  fs::remove(here.folder / "text");
  words.emplace_back("--sample-only");
  const Ended alone = here.run(words, true);
  CHECK(alone.exit_status == 0);
  const std::string written = alone.log.substr(0, 63);
  CHECK(written.starts_with("row"));
  CHECK_THAT(whole, ContainsSubstring("\n" + written + "\n"));
  CHECK_THAT(alone.log, ContainsSubstring(written + "\n"));
  CHECK(here.run({"--sample-only", "--resume", path, "--sample", "5"}, true).exit_status == 0);
  CHECK_THAT(
      here.run({"--sample-only", "--resume", path, "--sample", "5", "--prompt", "Z"}, true).log,
      ContainsSubstring("--prompt holds \"Z\""));
}

TEST_CASE("char_gpt that is only to write refuses a file that holds no model of its",
          "[examples]") {
  const Folder here;
  const std::string path = here.path("x");
  const std::vector<std::string> words = {"--sample-only", "--resume", path, "--sample", "5"};
  const std::map<std::string, std::string> right = {
      {"alphabet", "ab"}, {"layers", "1"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}};
  const auto log_with = [&](const std::string& key, const std::string& line) {
    SafetensorsWriter writer;
    std::map<std::string, std::string> lines = right;
    lines[key] = line;
    if (line.empty()) lines.erase(key);
    for (const auto& [name, value] : lines) writer.set_metadata(name, value);
    writer.add("token", Tensor<float, 2>({2, 4}));
    writer.add("position", Tensor<float, 2>({3, 4}));
    writer.write(path);
    const Ended end = here.run(words, true);
    CHECK(end.exit_status == 1);
    return end.log;
  };
  const std::string begin = "char_gpt: " + path;
  for (const auto& [key, line] : right) {
    CHECK(log_with(key, "") ==
          begin + " is no checkpoint of char_gpt: its metadata has no line " + key + "\n");
  }
  for (const char* bad : {"0", "-1", "4x", "99999999999999999999"}) {
    CHECK(log_with("width", bad) ==
          begin + " is no checkpoint of char_gpt: its metadata has width " + bad + "\n");
  }
  using Line = std::pair<std::string, std::string>;
  for (const auto& [key, line] :
       {Line("width", "1000000000000"), Line("context", "4"), Line("alphabet", "abc"),
        Line("layers", "1000000000000"), Line("heads", "3")}) {
    CHECK(log_with(key, line) == begin + " has other tensors than its metadata says\n");
  }
  CHECK_THAT(log_with("alphabet", "ab"), ContainsSubstring("headwise.checkpoint"));
}

TEST_CASE("char_gpt runs on the threads that are given, else on those of the environment",
          "[examples]") {
  const Folder here;
  const auto threads = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {here.path("text"), "--context", "8", "--steps", "0",
                                      "--width",         "8"};
    words.insert(words.end(), more.begin(), more.end());
    return here.run(words, true).log;
  };
  const Environment three("HEADWISE_NUM_THREADS", "3");
  CHECK_THAT(threads({}), ContainsSubstring(" on 3 threads"));
  CHECK_THAT(threads({"--threads", "0"}), ContainsSubstring(" on 3 threads"));
  CHECK_THAT(threads({"--threads", "2"}), ContainsSubstring(" on 2 threads"));
}

}  // namespace examples_command_line
