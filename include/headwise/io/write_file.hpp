// A file that is written whole or not at all: into a temporary neighbour, which then takes its
// name. A reader sees the old content or the new, never a part; so does the disk after a crash.
//
// It replaces regular files alone, and the new file keeps the old one's permissions, but neither
// set-user-ID nor set-group-ID: those were given to the old content. A symbolic link stays: the
// file that it leads to is the one that is written, and there has to be one. Folders, pipes and
// devices are refused before anything is made.
//
// A process that is killed while it writes leaves its temporary file, .headwise-<process>-<n>.tmp,
// in the folder of what it wrote. Nobody reads it, and later writes take the next number; it is
// deleted by hand alone, for it might be another process that is writing.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "headwise/io/read_file.hpp"

namespace headwise::inline v0_1::detail {

/// The file that a path leads to. Throws FileError for a symbolic link to nothing.
inline std::filesystem::path follow_link(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) return path;
  std::filesystem::path file = std::filesystem::canonical(path, error);
  if (error) raise_file_error(path.string(), "cannot be followed", error.value());
  return file;
}

/// Who may read, write and execute the file at `path`; nothing where there is none. Throws
/// FileError where there is something else.
inline std::optional<::mode_t> permissions_at(const std::filesystem::path& path,
                                              const std::string& name) {
  struct ::stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT && !path.empty()) return std::nullopt;
    raise_file_error(name, "cannot be written", errno);
  }
  require_regular(name, status);
  return status.st_mode & 0777;
}

/// Gone with the object, unless it has replaced its target.
class TemporaryFile {
 public:
  /// Throws FileError where the target is no regular file, and where its folder does not take a new
  /// one.
  explicit TemporaryFile(const std::filesystem::path& target)
      : name_(target.string()),
        target_(follow_link(target)),
        folder_(target_.has_parent_path() ? target_.parent_path() : ".") {
    const std::optional<::mode_t> permissions = permissions_at(target_, name_);
    // Nobody may open it who may not read what it replaces.
    const ::mode_t mode = permissions ? 0600 : 0666;
    const std::string stem = ".headwise-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      // Not the target's name and a suffix: that could be longer than a name may be.
      path_ = target_.parent_path() / (stem + std::to_string(attempt) + ".tmp");
      descriptor_ = Descriptor::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, mode);
      if (descriptor_ >= 0 || errno != EEXIST) break;
    }
    if (descriptor_ < 0) {
      raise_file_error(name_, "no temporary file can be made in its folder", errno);
    }
    if (permissions) keep_permissions(*permissions);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { discard(); }

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
  void keep_permissions(::mode_t permissions) {
    while (::fchmod(descriptor_, permissions) != 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      discard();  // the destructor of what was never whole does not run
      raise_file_error(name_, "its permissions cannot be kept", error);
    }
  }
  void discard() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    if (!renamed_) ::unlink(path_.c_str());
  }
  [[noreturn]] void fail(std::string_view what) const { raise_file_error(name_, what, errno); }
  [[noreturn]] void fail_write(int error) const {
    raise_file_error(name_, "byte " + std::to_string(written_) + ": cannot be written", error);
  }

  std::string name_;              // of the target, as it was given
  std::filesystem::path target_;  // behind all links
  std::filesystem::path folder_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool renamed_ = false;
};

}  // namespace headwise::inline v0_1::detail
