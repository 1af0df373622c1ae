// A regular file that is read from its beginning. Folders, pipes and devices are refused: they have
// no size that a header could be held against.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "headwise/io/utf8.hpp"
#include "headwise/tensor/error.hpp"

namespace headwise::inline v0_1::detail {

/// A file descriptor, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  /// Opens again where a signal came between. A new file gets `mode`, less the umask.
  static int open(const char* path, int flags, ::mode_t mode = 0666) {
    for (;;) {
      const int number = ::open(path, flags | O_CLOEXEC, mode);
      if (number >= 0 || errno != EINTR) return number;
    }
  }

  int number() const { return number_; }

 private:
  int number_;
};

[[noreturn]] inline void raise_file_error(const std::string& file, std::string_view what,
                                          int error) {
  raise<FileError>(shown_name(file) + ": " + std::string(what) + ": " +
                   std::generic_category().message(error));
}

inline void require_regular(const std::string& file, const struct ::stat& status) {
  if (!S_ISREG(status.st_mode)) raise<FileError>(shown_name(file) + ": is not a regular file");
}

class InputFile {
 public:
  /// Throws FileError for what is not there, cannot be opened, or is no regular file.
  explicit InputFile(const std::filesystem::path& path)
      : name_(path.string()),
        // Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        file_(Descriptor::open(name_.c_str(), O_RDONLY | O_NONBLOCK)) {
    if (file_.number() < 0) raise_file_error(name_, "cannot be opened for reading", errno);
    struct ::stat status {};
    if (::fstat(file_.number(), &status) != 0) raise_file_error(name_, "cannot be read", errno);
    require_regular(name_, status);
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }

  /// The next `count` bytes. Throws FileError where they do not come.
  void read(void* to, std::uint64_t count) {
    auto* next = static_cast<std::byte*>(to);
    while (count != 0) {
      constexpr std::uint64_t most = std::uint64_t{1} << 30;  // what one call is sure to take
      const ::ssize_t got = ::read(file_.number(), next, std::min<std::uint64_t>(count, most));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(got < 0 ? errno : 0);
      next += got;
      position_ += static_cast<std::uint64_t>(got);
      count -= static_cast<std::uint64_t>(got);
    }
  }

 private:
  [[noreturn]] void fail(int error) const {
    const std::string what = "byte " + std::to_string(position_) + ": cannot be read further";
    if (error != 0) raise_file_error(name_, what, error);
    raise<FileError>(shown_name(name_) + ": " + what + ": it has become shorter");
  }

  std::string name_;
  Descriptor file_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace headwise::inline v0_1::detail
