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
#include <system_error>
#include <utility>

#include "headwise/tensor/error.hpp"

namespace headwise::inline v0_1::detail {

/// Gone with the object, unless it has replaced its target.
class TemporaryFile {
 public:
  /// Throws FileError where the target's folder does not take a new file.
  explicit TemporaryFile(std::filesystem::path target) : target_(std::move(target)) {
    const std::string stem = ".headwise-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      // Not the target's name and a suffix: that could be longer than a name may be.
      path_ = target_.parent_path() / (stem + std::to_string(attempt) + ".tmp");
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ >= 0 || errno != EEXIST) break;
    }
    if (descriptor_ < 0) fail("no temporary file can be made in its folder");
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
      if (count <= 0) fail("cannot be written");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      written_ += static_cast<std::uint64_t>(count);
    }
  }

  void replace_target() {
    if (::fsync(descriptor_) != 0) fail("cannot be brought to the disk");
    const int closing = std::exchange(descriptor_, -1);
    if (::close(closing) != 0) fail("cannot be closed");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
    renamed_ = true;
    // The new name, too, on the disk. Some file systems refuse this for a folder; the content is
    // whole either way.
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    static_cast<void>(::fsync(descriptor));
    ::close(descriptor);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const std::string reason = std::generic_category().message(errno);
    raise<FileError>(target_.string() + ": byte " + std::to_string(written_) + ": " + what + ": " +
                     reason);
  }

  std::filesystem::path target_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool renamed_ = false;
};

}  // namespace headwise::inline v0_1::detail
