// How much SafetensorsWriter writes: what its own reader takes, and nothing beyond.
#include "io/written_files.hpp"

namespace io_written_limits {

using namespace headwise_tests;

TEST_CASE("names and metadata are refused where the reader has no memory for them", "[io]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  constexpr std::size_t most = std::size_t{48} << 20;
  const auto with_value = [](std::size_t bytes) {
    SafetensorsWriter writer;
    writer.add_scalar("x", 1.5);
    writer.set_metadata("k", std::string(bytes, 'a'));
    return writer;
  };
  // What the rest takes is what `most` of value are beyond it, as the refusal says.
  const std::string refusal = error_of([&] { (void)with_value(most).bytes(); }).value_or("");
  const std::string before = "metadata take ";
  REQUIRE_THAT(refusal, ContainsSubstring(before));
  const std::size_t taken = std::stoull(refusal.substr(refusal.find(before) + before.size()));
  const std::size_t fits = most - (taken - most), too_much = fits + 1;
  CHECK(SafetensorsFile::parse(with_value(fits).bytes()).scalar<double>("x") == 1.5);
  CHECK_THROWS_AS(with_value(too_much).write(path), ArgumentError);
  CHECK_THROWS_WITH(with_value(too_much).write(path),
                    "SafetensorsWriter::write: names, shapes and metadata take 50331649 bytes of "
                    "the reader's memory, expected at most 50331648");
  CHECK(folder.num_files() == 0);
}

TEST_CASE("a header that is too long is refused before anything is made", "[io]") {
  const TemporaryFolder folder;
  SafetensorsWriter writer;
  writer.set_metadata("k", std::string(20'000'000, '\1'));  // six bytes each
  CHECK_THROWS_AS(writer.write(folder / "x"), ArgumentError);
  CHECK_THROWS_WITH(writer.write(folder / "missing" / "x"),
                    ContainsSubstring("SafetensorsWriter::write: the header has 12000"));
  CHECK(folder.num_files() == 0);
}

TEST_CASE("the most tensors that a writer takes are read", "[io]") {
  SafetensorsWriter writer;
  int count = 0;
  for (bool full = false; !full;) {
    for (const int end = count + 80'000; count < end; ++count) {
      writer.add_scalar(std::to_string(count), true);
    }
    std::vector<std::byte> bytes;
    try {
      bytes = writer.bytes();
    } catch (const ArgumentError&) {
      full = true;
    }
    if (!full) CHECK_NOTHROW(SafetensorsFile::parse(bytes));
  }
  CHECK(count > 150'000);
}

}  // namespace io_written_limits
