// A program that needs headwise::io: a tensor goes into a safetensors file and comes out again.
#include <cstdio>
#include <headwise/io/safetensors.hpp>

using namespace headwise;

int main() {
  const char* path = "consumer.safetensors";
  const Tensor2<float> written({2, 3}, {1, 2, 3, 4, 5, 6});
  SafetensorsWriter writer;
  writer.add("x", In<float, 2>(written));
  writer.write(path);
  const Tensor2<float> read = SafetensorsFile::read(path).get<float, 2>("x");
  std::remove(path);
  return read.shape() == written.shape() && read(1, 2) == 6 ? 0 : 1;
}
