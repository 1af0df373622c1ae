// The functions that stand in for the C library's, by -Wl,--wrap.
#include "outside_faults/system_calls.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cerrno>

extern "C" {
int __real_open(const char* path, int flags, mode_t mode);
int __real_stat(const char* path, struct stat* status);
int __real_fchmod(int file, mode_t mode);
int __real_fstat(int file, struct stat* status);
ssize_t __real_read(int file, void* to, std::size_t count);
ssize_t __real_write(int file, const void* from, std::size_t count);
int __real_fsync(int file);
int __real_close(int file);
int __real_rename(const char* from, const char* to);
}

namespace {

// Fixed in size: a record that allocated would be counted among the allocations.
std::array<const char*, 4096> record;
int num_recorded = 0;
bool recording = false;
headwise_tests::SystemFault fault;
std::size_t most_bytes = 0;

/// Whether this call is the one that fails.
bool fails(const char* name) {
  if (!recording) return false;
  record[static_cast<std::size_t>(num_recorded)] = name;
  if (num_recorded++ != fault.number) return false;
  errno = fault.error;
  return true;
}

int failed() { return fault.error == 0 ? 0 : -1; }

std::size_t limited(std::size_t count) {
  return recording && most_bytes != 0 ? std::min(count, most_bytes) : count;
}

}  // namespace

namespace headwise_tests {

SystemCalls::SystemCalls(SystemFault which, std::size_t most) {
  num_recorded = 0;
  fault = which;
  most_bytes = most;
  recording = true;
}

SystemCalls::~SystemCalls() { recording = false; }

std::vector<std::string> SystemCalls::names() const {
  return {record.begin(), record.begin() + num_recorded};
}

}  // namespace headwise_tests

extern "C" {

int __wrap_open(const char* path, int flags, mode_t mode) {
  return fails("open") ? -1 : __real_open(path, flags, mode);
}
int __wrap_stat(const char* path, struct stat* status) {
  return fails("stat") ? -1 : __real_stat(path, status);
}
int __wrap_fchmod(int file, mode_t mode) {
  return fails("fchmod") ? -1 : __real_fchmod(file, mode);
}
int __wrap_fstat(int file, struct stat* status) {
  return fails("fstat") ? -1 : __real_fstat(file, status);
}
ssize_t __wrap_read(int file, void* to, std::size_t count) {
  return fails("read") ? failed() : __real_read(file, to, limited(count));
}
ssize_t __wrap_write(int file, const void* from, std::size_t count) {
  return fails("write") ? failed() : __real_write(file, from, limited(count));
}
int __wrap_fsync(int file) { return fails("fsync") ? -1 : __real_fsync(file); }
int __wrap_close(int file) {
  const bool fail = fails("close");
  const int error = errno;
  const int result = __real_close(file);  // Linux closes it whatever it answers
  if (!fail) return result;
  errno = error;
  return -1;
}
int __wrap_rename(const char* from, const char* to) {
  return fails("rename") ? -1 : __real_rename(from, to);
}
}
