// The library built with -fno-exceptions -fno-rtti: the tour runs, weights go through a safetensors
// file's bytes, and a caller's mistake or a bad file goes to the handler that the program has set,
// with the sentence that would have been thrown, before anything is written.
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "headwise/headwise.hpp"
#include "headwise/io/checkpoint.hpp"
#include "headwise/io/pytorch.hpp"
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

std::vector<std::byte> weights() {
  headwise::SafetensorsWriter writer;
  headwise::add_pytorch(writer, headwise::MultiHeadAttention<float>(4, 2));
  return writer.bytes();
}
void no_file() { headwise::SafetensorsFile::read("no_exceptions.safetensors"); }
void no_json() {
  std::vector<std::byte> bytes = weights();
  bytes[9] = std::byte{','};  // the header's second byte, a quote
  headwise::SafetensorsFile::parse(bytes, "weights");
}
void no_such_tensor() {
  headwise::SafetensorsFile::parse(weights(), "weights").get<float, 2>("q_proj_weight");
}

}  // namespace

int main() {
  const auto before = headwise::set_error_handler(hear);
  bool right = refused(wrong_shape, "softmax_forward: p is [2, 3], expected [2, 4]");
  right = refused(wrong_option, "MultiHeadAttention: num_heads is 2") && right;
  right = refused(no_file, "no_exceptions.safetensors: cannot be opened for reading") && right;
  right = refused(no_json, "weights: byte 9: the header is not JSON: expected a name") && right;
  right = refused(no_such_tensor, "q_proj_weight") && right;
  const auto file = headwise::SafetensorsFile::parse(weights(), "weights");
  const auto loaded = headwise::from_pytorch<float>(file, 2);
  const headwise::MultiHeadAttention<float> saved(4, 2);
  right = headwise::bitwise_equal(loaded.parameters().W_V(), saved.parameters().W_V()).ok && right;
  for (const double value : untouched) right = right && value == 0;
  if (before != nullptr || headwise::set_error_handler(nullptr) != hear) {
    std::printf("FAILED: set_error_handler does not return the handler before\n");
    right = false;
  }
  return right && headwise_tests::tour().size() > 100 ? 0 : 1;
}
