// Reading and writing files while the system refuses: each call in turn, with each error.
#include "outside_faults/system_calls.hpp"

#include <cerrno>

#include "io/written_files.hpp"

namespace outside_faults_system_calls {

using namespace headwise_tests;

namespace {

using Names = std::vector<std::string>;

/// What an attempt did: its message, "" where it went well.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
    return "";
  } catch (const FileError& error) {
    return error.what();
  }
}

SafetensorsWriter some_tensors() {
  SafetensorsWriter writer;
  writer.add("x", awkward_numbers<double>());
  writer.add("y", awkward_numbers<float>());
  return writer;
}

}  // namespace

TEST_CASE("a new file is on the disk before it takes its name, and the name after", "[outside]") {
  const TemporaryFolder folder;
  const SafetensorsWriter writer = some_tensors();
  const fs::path path = folder / "x";
  Names names;
  {
    const SystemCalls calls;
    writer.write(path);
    names = calls.names();
  }
  const Names expected{"stat",  "open",   "write", "write", "write", "fsync",
                       "close", "rename", "open",  "fsync", "close"};
  CHECK(names == expected);
  {
    const SystemCalls calls;
    writer.write(path);
    names = calls.names();
  }
  // The old file's permissions come before any data.
  REQUIRE(names.size() > 2);
  CHECK(names[2] == "fchmod");
  names.erase(names.begin() + 2);
  CHECK(names == expected);
}

TEST_CASE("a file whose writing fails at any call stays as it was, and no temporary is left",
          "[outside]") {
  const bool exists = GENERATE(true, false);
  const int error = GENERATE(ENOSPC, EIO, EDQUOT, EACCES);
  const SafetensorsWriter writer = some_tensors();
  const int num_calls_that_count = exists ? 9 : 8;  // up to the rename, see above
  const int first_write = exists ? 3 : 2;
  for (int number = 0; number < num_calls_that_count; ++number) {
    CAPTURE(exists, error, number);
    const TemporaryFolder folder;
    const fs::path path = folder / "x";
    if (exists) std::ofstream(path) << "old";
    std::string message;
    {
      const SystemCalls calls({number, error});
      message = message_of([&] { writer.write(path); });
    }
    CHECK_THAT(message, Catch::Matchers::StartsWith(path.string() + ": "));
    CHECK_THAT(message, Catch::Matchers::EndsWith(": " + std::generic_category().message(error)));
    CHECK((message.find(": byte ") != message.npos) ==
          (number >= first_write && number < first_write + 3));
    CHECK(folder.num_files() == (exists ? 1 : 0));
    if (exists) CHECK(content(path) == "old");
  }
}

TEST_CASE("a folder that cannot be brought to the disk does not undo a file", "[outside]") {
  const SafetensorsWriter writer = some_tensors();
  for (int number = 8; number < 11; ++number) {
    CAPTURE(number);
    const TemporaryFolder folder;
    const fs::path path = folder / "x";
    {
      const SystemCalls calls({number, EINVAL});
      CHECK(message_of([&] { writer.write(path); }).empty());
    }
    CHECK(content(path) == text_of(writer.bytes()));
    CHECK(folder.num_files() == 1);
  }
}

TEST_CASE("signals and calls that take a part do not show in a written file", "[outside]") {
  const SafetensorsWriter writer = some_tensors();
  for (int number = 1; number < 12; ++number) {  // stat and rename: no signal ends them
    if (number == 8) continue;
    CAPTURE(number);
    const TemporaryFolder folder;
    const fs::path path = folder / "x";
    std::ofstream(path) << "old";
    {
      const SystemCalls calls({number, EINTR});
      CHECK(message_of([&] { writer.write(path); }).empty());
    }
    CHECK(content(path) == text_of(writer.bytes()));
  }
  for (const std::size_t most : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    const TemporaryFolder folder;
    const fs::path path = folder / "x";
    {
      const SystemCalls calls({}, most);
      writer.write(path);
    }
    CHECK(content(path) == text_of(writer.bytes()));
  }
}

TEST_CASE("a write that takes nothing and a disk that fills up half-way are told", "[outside]") {
  const SafetensorsWriter writer = some_tensors();
  for (const SystemFault fault : {SystemFault{3, 0}, SystemFault{7, ENOSPC}}) {
    const TemporaryFolder folder;
    std::string message;
    {
      const SystemCalls calls(fault, 16);
      message = message_of([&] { writer.write(folder / "x"); });
    }
    const int written = 16 * (fault.number - 2);
    CHECK_THAT(message, ContainsSubstring(": byte " + std::to_string(written) +
                                          ": cannot be written: No space left on device"));
    CHECK(folder.num_files() == 0);
  }
}

TEST_CASE("a file whose reading fails at any call is refused by name", "[outside]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  some_tensors().write(path);
  Names names;
  {
    const SystemCalls calls;
    (void)SafetensorsFile::read(path);
    names = calls.names();
  }
  REQUIRE(names == Names{"open", "fstat", "read", "read", "read", "close"});
  for (int number = 0; number < 5; ++number) {
    CAPTURE(number);
    std::string message;
    {
      const SystemCalls calls({number, EIO});
      message = message_of([&] { (void)SafetensorsFile::read(path); });
      names = calls.names();
    }
    CHECK_THAT(message, Catch::Matchers::StartsWith(path.string() + ": "));
    CHECK_THAT(message, ContainsSubstring("Input/output error"));
    if (number > 0) CHECK(names.back() == "close");
  }
  for (const int number : {2, 3, 4}) {
    const SystemCalls calls({number, 0});
    CHECK_THAT(message_of([&] { (void)SafetensorsFile::read(path); }),
               ContainsSubstring(": cannot be read further: it has become shorter"));
  }
}

TEST_CASE("signals and calls that give a part do not show in a file that is read", "[outside]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  some_tensors().write(path);
  const auto whole = SafetensorsFile::read(path);
  const auto check_same = [&](const SystemFault& fault, std::size_t most) {
    const SystemCalls calls(fault, most);
    const auto file = SafetensorsFile::read(path);
    CHECK(file.names() == whole.names());
    CHECK(std::ranges::equal(file.bytes("x"), whole.bytes("x")));
  };
  for (const int number : {0, 2, 3, 4}) check_same({number, EINTR}, 0);
  for (const std::size_t most : {std::size_t{1}, std::size_t{7}}) check_same({}, most);
}

}  // namespace outside_faults_system_calls
