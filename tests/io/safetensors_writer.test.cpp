// What SafetensorsWriter puts together, and what it leaves on the disk.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "io/written_files.hpp"

namespace io_safetensors_writer {

using namespace headwise_tests;

TEST_CASE("the same content gives the same bytes in whatever order it was added", "[io]") {
  const Tensor<double, 1> x(Shape{3}, {1, 2, 3});
  const Tensor<bool, 1> keep(Shape{1}, {true});
  SafetensorsWriter one, other;
  one.add("b", x);
  one.add("a", keep);
  one.add("c", x, DType::f16);
  one.set_metadata("k", "v");
  one.set_metadata("j", "w");
  other.set_metadata("j", "w");
  other.add("c", x, DType::f16);
  other.set_metadata("k", "v");
  other.add("a", keep);
  other.add("b", x);
  CHECK(one.bytes() == other.bytes());

  const std::string header =
      R"({"__metadata__":{"j":"w","k":"v"},"b":{"dtype":"F64","shape":[3],"data_offsets":[0,24]},)"
      R"("c":{"dtype":"F16","shape":[3],"data_offsets":[24,30]},)"
      R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[30,31]}})";
  const std::string text = text_of(one.bytes());
  const std::size_t data = text.size() - 31;
  CHECK(data % 8 == 0);
  CHECK(data - 8 - header.size() < 8);
  CHECK(text.substr(8, data - 8) == header + std::string(data - 8 - header.size(), ' '));
}

TEST_CASE("a file that was written is read, and nothing else is left beside it", "[io]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x.safetensors";
  SafetensorsWriter writer;
  writer.add("x", awkward_numbers<float>());
  writer.write(path);
  writer.add("y", awkward_numbers<double>());
  writer.write(path);
  CHECK(folder.num_files() == 1);
  CHECK(content(path) == text_of(writer.bytes()));
  require_same_bits(SafetensorsFile::read(path).get<double, 3>("y"), awkward_numbers<double>());
}

TEST_CASE("a write that fails half-way leaves the old file as it was", "[io]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x.safetensors";
  SafetensorsWriter writer;
  writer.add("x", Tensor<float, 1>(Shape{4}, {1, 2, 3, 4}));
  writer.write(path);
  const std::string before = content(path);
  writer.add("large", Tensor<double, 1>(Shape{10000}));

  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{4096, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    writer.write(path);
  } catch (const FileError& error) {
    message = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, handler);

  CHECK_THAT(message, ContainsSubstring("x.safetensors: byte 4096: cannot be written: "));
  CHECK(content(path) == before);
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a write to where no file can be says so and leaves nothing behind", "[io]") {
  const TemporaryFolder folder;
  SafetensorsWriter writer;
  writer.add_scalar("x", 1.0);
  fs::create_directory(folder / "taken");
  CHECK_THROWS_WITH(writer.write(folder / "taken"),
                    ContainsSubstring("taken: is not a regular file"));
  CHECK_THROWS_AS(writer.write(folder / "missing" / "x"), FileError);
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a writer refuses what the format cannot say, and stays as it was", "[io]") {
  SafetensorsWriter writer;
  const Tensor<float, 1> x(Shape{2}, {1, 2});
  const Tensor<bool, 1> keep(Shape{2}, {true, false});
  writer.add("x", x);
  const auto before = writer.bytes();
  const auto says = [](const char* text) { return ContainsSubstring(text); };
  CHECK_THROWS_WITH(writer.add("x", x), says("name \"x\" was added before"));
  CHECK_THROWS_WITH(writer.add("__metadata__", x), says("name __metadata__ is the format's own"));
  CHECK_THROWS_WITH(writer.add("\xFF", x), says("is not UTF-8"));
  CHECK_THROWS_WITH(writer.set_metadata("k", "\xC3"), says("value \"\\xc3\" is not UTF-8"));
  CHECK_THROWS_WITH(writer.add("y", x, DType::i64),
                    says("tensor \"y\" of F32 does not convert to I64"));
  CHECK_THROWS_WITH(writer.add("y", x, DType::boolean), says("F32 does not convert to BOOL"));
  CHECK_THROWS_WITH(writer.add("y", keep, DType::f32), says("BOOL does not convert to F32"));
  CHECK_THROWS_AS(writer.add("y", x, DType::u8), ArgumentError);
  const float one = 1;
  const Index many = Index{1} << 62;
  const In<float, 2> vast(&one, Shape<2>(many, 2), Shape<2>(0, 0));
  CHECK_THROWS_AS(writer.add("y", vast), ShapeError);
  CHECK_THROWS_WITH(
      writer.add("y", In<float, 2>(nullptr, Shape{2, 3})),
      "SafetensorsWriter::add: tensor \"y\" is [2, 3] at a null address, expected its "
      "elements");
  CHECK_THROWS_WITH(
      writer.add("y", In<float, 2>(&one, Shape{-1, 3})),
      "SafetensorsWriter::add: tensor \"y\" is [-1, 3], expected extents of 0 or more");
  CHECK_THROWS_WITH(writer.add_scalar("x", 1.0F),
                    "SafetensorsWriter::add_scalar: name \"x\" was added before");
  CHECK_THROWS_WITH(writer.add_scalar("y", 1.0F, DType::i64),
                    "SafetensorsWriter::add_scalar: tensor \"y\" of F32 does not convert to I64");
  CHECK(writer.bytes() == before);
}

TEST_CASE("a writer knows what was added to it", "[io]") {
  SafetensorsWriter writer;
  CHECK_FALSE(writer.contains("x"));
  writer.add_scalar("x", 1.0);
  CHECK(writer.contains("x"));
  CHECK_FALSE(writer.contains("y"));
}

TEST_CASE("writers are merged whole or not at all", "[io]") {
  SafetensorsWriter left, right, both;
  for (SafetensorsWriter* writer : {&left, &both}) {
    writer->add_scalar("a", 1.0F);
    writer->set_metadata("k", "left");
    writer->set_metadata("l", "left");
  }
  for (SafetensorsWriter* writer : {&right, &both}) {
    writer->add_scalar("b", 2.0);
    writer->set_metadata("k", "right");
  }
  left.merge(std::move(right));
  CHECK(left.bytes() == both.bytes());

  SafetensorsWriter clash;
  clash.add_scalar("c", 3.0);
  clash.add_scalar("b", 3.0);
  const auto before = clash.bytes();
  CHECK_THROWS_WITH(left.merge(std::move(clash)),
                    "SafetensorsWriter::merge: name \"b\" was added before");
  CHECK(left.bytes() == both.bytes());
  CHECK(clash.bytes() == before);
}

TEST_CASE("a tensor of any type is passed on by its bytes", "[io]") {
  const Tensor<double, 1> bits(Shape{2}, {1.5, -2.5});
  const auto bytes = std::as_bytes(std::span(bits.data(), 2));
  SafetensorsWriter writer;
  const std::array<Index, 2> shape{1, 2};
  writer.add_bytes("ids", DType::i64, shape, bytes);
  writer.add_bytes("step", DType::u16, {}, bytes.first(2));
  const auto file = SafetensorsFile::parse(writer.bytes());
  CHECK(file.dtype("ids") == DType::i64);
  CHECK(file.shape("ids") == std::vector<Index>{1, 2});
  CHECK(std::ranges::equal(file.bytes("ids"), bytes));
  CHECK(std::ranges::equal(file.bytes("step"), bytes.first(2)));

  const auto before = writer.bytes();
  CHECK_THROWS_WITH(writer.add_bytes("x", DType::i64, shape, bytes.first(15)),
                    "SafetensorsWriter::add_bytes: tensor \"x\" has 15 bytes, which do not fit "
                    "shape [1, 2] of I64 with at most 8 axes");
  const std::array<Index, 9> nine{1, 1, 1, 1, 1, 1, 1, 1, 2};
  CHECK_THROWS_AS(writer.add_bytes("x", DType::i64, nine, bytes), ShapeError);
  const std::array<Index, 1> negative{-2};
  CHECK_THROWS_AS(writer.add_bytes("x", DType::i64, negative, bytes), ShapeError);
  CHECK_THROWS_AS(writer.add_bytes("ids", DType::i64, shape, bytes), ArgumentError);
  CHECK(writer.bytes() == before);
}

}  // namespace io_safetensors_writer
