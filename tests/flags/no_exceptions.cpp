// The library built with -fno-exceptions -fno-rtti: the tour runs, and a caller's mistake goes to
// the handler that the program has set, with the sentence that would have been thrown, before
// anything is written.
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "headwise/headwise.hpp"
#include "tour/tour.hpp"

#if defined(__cpp_exceptions)
#error "this program is to be compiled with -fno-exceptions"
#endif

namespace {

std::jmp_buf back;
char heard[256];

/// Leaves by a jump: the library's objects on the way have to be trivial to abandon, or leak, as
/// the message does. A program would rather print and end.
[[noreturn]] void hear(const char* message) {
  std::strncpy(heard, message, sizeof heard - 1);
  std::longjmp(back, 1);
}

bool refused(void (*call)(), const char* sentence) {
  heard[0] = '\0';
  if (setjmp(back) == 0) {
    call();
    std::printf("FAILED: nothing was refused, expected %s\n", sentence);
    return false;
  }
  if (std::strstr(heard, sentence) != nullptr) return true;
  std::printf("FAILED: heard %s, expected %s\n", heard, sentence);
  return false;
}

headwise::Tensor2<double> untouched({2, 3});

void wrong_shape() {
  static const headwise::Tensor2<double> x({2, 4});
  headwise::softmax_forward(x, untouched);
}
void wrong_option() { headwise::MultiHeadAttention<float> none(7, 2); }

}  // namespace

int main() {
  const auto before = headwise::set_error_handler(hear);
  bool right = refused(wrong_shape, "softmax_forward: p is [2, 3], expected [2, 4]");
  right = refused(wrong_option, "MultiHeadAttention: num_heads is 2") && right;
  for (const double value : untouched) right = right && value == 0;
  if (before != nullptr || headwise::set_error_handler(nullptr) != hear) {
    std::printf("FAILED: set_error_handler does not return the handler before\n");
    right = false;
  }
  return right && headwise_tests::tour().size() > 100 ? 0 : 1;
}
