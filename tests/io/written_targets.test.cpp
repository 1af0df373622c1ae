// Where SafetensorsWriter writes and where it refuses to: pipes, folders, links, permissions. What
// is no regular file here are pipes and folders of a temporary folder, never a device.
#include <sys/stat.h>

#include "io/written_files.hpp"

namespace io_written_targets {

using namespace headwise_tests;

namespace {

SafetensorsWriter one_number() {
  SafetensorsWriter writer;
  writer.add_scalar("x", 1.5);
  return writer;
}

mode_t permissions_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

/// The umask of a block.
class Umask {
 public:
  explicit Umask(mode_t mask) : old_(::umask(mask)) {}
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;
  ~Umask() { ::umask(old_); }

 private:
  mode_t old_;
};

}  // namespace

TEST_CASE("a pipe or a folder is not replaced by a file", "[io]") {
  const TemporaryFolder folder;
  const fs::path pipe = folder / "pipe", taken = folder / "taken";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_directory(taken);
  fs::create_symlink("pipe", folder / "to_pipe");
  fs::create_directory_symlink("taken", folder / "to_taken");
  for (const char* name : {"pipe", "taken", "to_pipe", "to_taken"}) {
    const fs::path path = folder / name;
    CHECK_THROWS_AS(one_number().write(path), FileError);
    CHECK_THROWS_WITH(one_number().write(path), path.string() + ": is not a regular file");
  }
  CHECK(fs::is_fifo(pipe));
  CHECK(fs::is_empty(taken));
  CHECK(fs::is_symlink(folder / "to_pipe"));
  CHECK(folder.num_files() == 4);
}

TEST_CASE("a symbolic link stays, and the file that it leads to is written", "[io]") {
  const TemporaryFolder folder;
  const fs::path inner = folder / "inner", file = inner / "file", link = folder / "link";
  fs::create_directory(inner);
  std::ofstream(file) << "old";
  fs::create_symlink("inner/file", folder / "near");
  fs::create_symlink("near", link);
  one_number().write(link);
  CHECK(fs::read_symlink(link) == "near");
  CHECK(fs::is_symlink(folder / "near"));
  CHECK_FALSE(fs::is_symlink(file));
  CHECK(content(file) == text_of(one_number().bytes()));
  CHECK(folder.num_files() == 3);

  fs::remove(file);
  CHECK_THROWS_WITH(one_number().write(link), ContainsSubstring("link: cannot be followed: "));
  fs::create_symlink("circle", folder / "circle");
  CHECK_THROWS_WITH(one_number().write(folder / "circle"),
                    ContainsSubstring("circle: cannot be followed: "));
  CHECK(fs::is_empty(inner));
}

TEST_CASE("what a killed process of the same number left behind is passed over and stays", "[io]") {
  const TemporaryFolder folder;
  const std::string stem = ".headwise-" + std::to_string(::getpid()) + "-";
  for (const char* number : {"0.tmp", "1.tmp"}) {
    std::ofstream(folder / (stem + number).c_str()) << "a part of a file";
  }
  for (int time = 0; time < 2; ++time) {  // a new file, and one that is replaced
    one_number().write(folder / "file");
    CHECK(SafetensorsFile::read(folder / "file").contains("x"));
    CHECK(folder.num_files() == 3);
    CHECK(content(folder / (stem + "0.tmp").c_str()) == "a part of a file");
    CHECK(content(folder / (stem + "1.tmp").c_str()) == "a part of a file");
  }
}

TEST_CASE("a file that is written again keeps its permissions", "[io]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  const Umask mask(022);
  one_number().write(path);
  CHECK(permissions_of(path) == 0644);
  for (const mode_t mode : {0600u, 0640u, 0666u, 0777u}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    one_number().write(path);
    CHECK(permissions_of(path) == mode);
  }
  const Umask closed(077);
  one_number().write(folder / "y");
  CHECK(permissions_of(folder / "y") == 0600);
}

TEST_CASE("a file that is written again loses set-user-ID, set-group-ID and the sticky bit",
          "[io]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  one_number().write(path);
  int num_modes = 0;
  for (const mode_t mode : {04755u, 02755u, 01644u, 07777u}) {
    // Some sandboxes refuse set-user-ID and set-group-ID.
    if (::chmod(path.c_str(), mode) != 0 || permissions_of(path) != mode) continue;
    ++num_modes;
    one_number().write(path);
    CHECK(permissions_of(path) == (mode & 0777));
  }
  CHECK(num_modes > 0);
}

TEST_CASE("a file without a name is refused, and its name is shown in quotes", "[io]") {
  CHECK_THROWS_WITH(one_number().write(""), "\"\": cannot be written: No such file or directory");
  CHECK_THROWS_WITH(SafetensorsFile::read(""),
                    "\"\": cannot be opened for reading: No such file or directory");
  const auto message = [](const std::string& name) {
    try {
      (void)SafetensorsFile::parse({}, name);
    } catch (const FileError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string ends = ": byte 0: the file ends inside the header length, its first 8 bytes";
  CHECK(message("a\nb\x1B") == "\"a\\x0ab\\x1b\"" + ends);
  CHECK(message("\xFF") == "\"\\xff\"" + ends);
  CHECK(message("a \"b\" \xC3\xA9") == "a \"b\" \xC3\xA9" + ends);
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsFile::read(folder / "x\ny"),
                    ContainsSubstring("/x\\x0ay\": cannot"));
  fs::create_directory(folder / "x\ny");
  CHECK_THROWS_WITH(one_number().write(folder / "x\ny"), ContainsSubstring("/x\\x0ay\": is not"));
}

TEST_CASE("a file that was moved from is empty and says so", "[io]") {
  auto file = SafetensorsFile::parse(one_number().bytes(), "a name");
  const auto moved = std::move(file);
  CHECK(moved.scalar<double>("x") == 1.5);
  CHECK(file.names().empty());
  CHECK(file.name().empty());
  CHECK_THROWS_WITH(file.scalar<double>("x"), "\"\": holds no tensor \"x\", but 0");
}

}  // namespace io_written_targets
