// All of headwise behind the macros that other headers leave lying about: Windows' min, max, near,
// far and ERROR, <complex.h>'s I, <termios.h>'s B0, X11's None and Status, the functions that
// <math.h> may define as macros; and with all names of std and Eigen in sight. The system's, the
// standard library's and Eigen's headers come first: they have to look after themselves.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <locale>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <numbers>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define min(a, b) this_is_not_your_minimum
#define max(a, b) this_is_not_your_maximum
#undef isnan
#undef isinf
#undef isfinite
#define isnan(x) this_is_not_your_isnan
#define isinf(x) this_is_not_your_isinf
#define isfinite(x) this_is_not_your_isfinite
#define FORBIDDEN (this name is not yours)
#define I FORBIDDEN
#define B0 FORBIDDEN
#define B1 FORBIDDEN
#define complex FORBIDDEN
#define near FORBIDDEN
#define far FORBIDDEN
#define small FORBIDDEN
#define interface FORBIDDEN
#define ERROR FORBIDDEN
#define DELETE FORBIDDEN
#define IN FORBIDDEN
#define OUT FORBIDDEN
#define OPTIONAL FORBIDDEN
#define TRUE FORBIDDEN
#define FALSE FORBIDDEN
#undef OVERFLOW
#undef DOMAIN
#define OVERFLOW FORBIDDEN
#define DOMAIN FORBIDDEN
#define None FORBIDDEN
#define Bool FORBIDDEN
#define Status FORBIDDEN
#define Success FORBIDDEN
#define Always FORBIDDEN
#undef major
#undef minor
#define major FORBIDDEN
#define minor FORBIDDEN
#define verify FORBIDDEN
#undef M_PI
#define M_PI FORBIDDEN

using namespace std;
using namespace Eigen;

#include "headwise/headwise.hpp"
#include "headwise/io/checkpoint.hpp"
#include "headwise/io/pytorch.hpp"
#include "headwise/io/safetensors.hpp"
#include "headwise/testing/laws.hpp"
#include "tour/tour.hpp"

int main() {
  using namespace headwise;
  for (const headwise_tests::Named& result : headwise_tests::tour()) {
    if (result.name.empty()) return 1;
  }
  const auto laws = attention_laws<double>();
  const Tensor2<double> x({1, 3}, {1.0, 2.0, 3.0});
  if (laws.empty() || !close_to(x, x, 0)) return 1;
  SafetensorsWriter writer;
  add_pytorch(writer, MultiHeadAttention<double>(4, 2));
  std::ostringstream text;
  text << x << ' ' << eigen_map(x).sum();
  return text.str().empty() ? 1 : 0;
}
