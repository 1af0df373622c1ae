// The system calls that reading and writing a file make, on record, and one of them failing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headwise_tests {

/// What to do instead of one call.
struct SystemFault {
  int number = -1;  // of the call that fails, counted from 0; -1 for none
  int error = 0;    // what errno says then; 0: the call returns 0, as at the end of a file
};

/// While it lives, calls of open, fstat, read, write, fsync, close and rename are recorded.
class SystemCalls {
 public:
  /// most_bytes   what one read or write takes at most; 0 for any number
  explicit SystemCalls(SystemFault fault = {}, std::size_t most_bytes = 0);
  SystemCalls(const SystemCalls&) = delete;
  SystemCalls& operator=(const SystemCalls&) = delete;
  ~SystemCalls();

  /// Their names, first call first.
  std::vector<std::string> names() const;
};

}  // namespace headwise_tests
