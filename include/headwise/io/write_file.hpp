// A file that is written whole or not at all: into a temporary neighbour, which then takes its
// name. A reader sees the old content or the new, never a part; so does the disk after a crash.
// A path that is a symbolic link is replaced by the file, what it pointed to stays.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "headwise/io/read_file.hpp"

namespace headwise::inline v0_1::detail {

/// Gone with the object, unless it has replaced its target.
class TemporaryFile {
 public:
  /// Throws FileError where the target's folder does not take a new file.
  explicit TemporaryFile(std::filesystem::path target)
      : target_(std::move(target)),
        folder_(target_.has_parent_path() ? target_.parent_path() : ".") {
    const std::string stem = ".headwise-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      // Not the target's name and a suffix: that could be longer than a name may be.
      path_ = target_.parent_path() / (stem + std::to_string(attempt) + ".tmp");
      descriptor_ = Descriptor::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL);
      if (descriptor_ >= 0 || errno != EEXIST) break;
    }
    if (descriptor_ < 0) {
      raise_file_error(target_.string(), "no temporary file can be made in its folder", errno);
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!renamed_) ::unlink(path_.c_str());
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ::ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail_write(count < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      written_ += static_cast<std::uint64_t>(count);
    }
  }

  void replace_target() {
    while (::fsync(descriptor_) != 0) {
      if (errno != EINTR) fail("cannot be brought to the disk");
    }
    // Linux closes a file even where a signal comes between.
    const int closing = std::exchange(descriptor_, -1);
    if (::close(closing) != 0 && errno != EINTR) fail("cannot be closed");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
    renamed_ = true;
    // The new name, too, on the disk. Some file systems refuse this for a folder; the content is
    // whole either way.
    const Descriptor folder(Descriptor::open(folder_.c_str(), O_RDONLY));
    if (folder.number() >= 0) static_cast<void>(::fsync(folder.number()));
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    raise_file_error(target_.string(), what, errno);
  }
  [[noreturn]] void fail_write(int error) const {
    raise_file_error(target_.string(), "byte " + std::to_string(written_) + ": cannot be written",
                     error);
  }

  std::filesystem::path target_;
  std::filesystem::path folder_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool renamed_ = false;
};

}  // namespace headwise::inline v0_1::detail
