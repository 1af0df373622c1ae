// Files at the edge of the format: what is odd and allowed, cut short, changed at random, or no
// file.
#include <algorithm>

#include "io/bad_files.hpp"

namespace io_odd_files {

using namespace headwise_tests;

TEST_CASE("what looks odd and is allowed is read", "[io]") {
  const std::string a = entry("a", "F32", "[2]", "[0,8]");
  CHECK(parse(file_of(" \t\r\n{" + a + "} \n ", 8)).contains("a"));
  CHECK(parse(file_of("{}", 0)).names().empty());
  CHECK(parse(file_of(R"({"__metadata__":{}})", 0)).metadata().empty());
  CHECK(parse(file_of(R"({"__metadata__":{"k":""}})", 0)).metadata().at("k").empty());
  CHECK(parse(file_of("{" + entry("x\\u0000y", "F32", "[2]", "[0,8]") + "}", 8))
            .contains(std::string("x\0y", 3)));
  CHECK(parse(file_of(
                  "{" + entry(R"(\"\\\/\b\f\n\r\t\u00e9\uD83D\ude00)", "F32", "[2]", "[0,8]") + "}",
                  8))
            .contains("\"\\/\b\f\n\r\t\xC3\xA9\xF0\x9F\x98\x80"));
  CHECK(parse(file_of("{" + entry("\x7F\xEF\xBF\xBF\xF4\x8F\xBF\xBF", "F32", "[2]", "[0,8]") + "}",
                      8))
            .contains("\x7F\xEF\xBF\xBF\xF4\x8F\xBF\xBF"));
  CHECK(parse(file_of("{" + entry("a", "F32", "[0,4294967296]", "[0,0]") + "}", 0))
            .get<float, 2>("a")
            .shape() == Shape<2>(0, 4294967296));
  CHECK(parse(file_of("{" + entry("a", "F32", "[1,1,1,1,1,1,1,2]", "[0,8]") + "}", 8))
            .get<float, 8>("a")
            .size() == 2);
  CHECK(
      parse(file_of(R"({"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}})", 1)).contains("a"));

  const auto backwards = parse(file_of("{" + entry("z", "U8", "[2]", "[6,8]") + "," +
                                           entry("empty", "U8", "[0]", "[6,6]") + "," +
                                           entry("b", "U8", "[6]", "[0,6]") + "}",
                                       8));
  CHECK(backwards.names() == std::vector<std::string>{"z", "empty", "b"});
  CHECK(backwards.bytes("b").size() == 6);
}

TEST_CASE("a type that this library does not compute with is held as bytes", "[io]") {
  const auto file = parse(file_of("{" + entry("ids", "I64", "[2]", "[0,16]") + "}", 16));
  CHECK(file.dtype("ids") == DType::i64);
  CHECK(file.bytes("ids").size() == 16);
  CHECK(file.bytes("ids")[3] == std::byte{1});
  CHECK_THROWS_WITH((file.get<double, 1>("ids")),
                    "t: byte 15: tensor \"ids\" is I64, which does not convert to F64");
}

TEST_CASE("a message shows no raw byte of the file but well-formed text", "[io]") {
  for (const std::string& header :
       {std::string("{\"a\xFF\":1}"), std::string("\x80"), std::string("{\"a\":\x1B[31m}"),
        "{" +
            entry("\xC2\x9B"
                  "31m",
                  "\xC3\xA9", "[]", "[0,0]") +
            "}",
        std::string("{\"__metadata__\":{\"a\\u001b\":1}}"),
        "{" + entry("a\\u0000", "\xC2\x80", "[]", "[0,0]") + "}"}) {
    std::string message;
    try {
      parse(file_of(header, 0));
    } catch (const FileError& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    CHECK(detail::is_utf8(message));
    CHECK(std::ranges::none_of(message, [](char c) { return (c >= 0 && c < 0x20) || c == 0x7F; }));
    CHECK(message.find("\xC2\x9B") == std::string::npos);
  }
}

TEST_CASE("a message stays short and on one line, whatever the file holds", "[io]") {
  const std::string shout(100'000, 'A');
  for (const std::string& header :
       {"{\"" + shout + "\":1}", "{\"" + shout, "{" + shout + "}",
        "{" + entry("a\\nb", shout, "[]", "[0,0]") + "}",
        "{\"__metadata__\":{\"" + shout + "\":1}}",
        "{" + entry("a", "U8", "[" + std::string(100'000, '9') + "]", "[0,0]") + "}"}) {
    std::string message;
    try {
      parse(file_of(header, 0));
    } catch (const FileError& error) {
      message = error.what();
    }
    CHECK_FALSE(message.empty());
    CHECK(message.size() < 300);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("a file cut short anywhere is refused", "[io]") {
  SafetensorsWriter writer;
  writer.add("a", Tensor<double, 2>(Shape{2, 2}, {1, 2, 3, 4}));
  writer.add("b", Tensor<bool, 1>(Shape{3}, {true, false, true}));
  writer.set_metadata("k", "v");
  const auto whole = writer.bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(SafetensorsFile::parse(std::span(whole).first(length)), FileError);
  }
}

TEST_CASE("what is no regular file is refused by its name", "[io]") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path();
  CHECK_THROWS_WITH(SafetensorsFile::read(folder), ContainsSubstring("is not a regular file"));
  CHECK_THROWS_WITH(SafetensorsFile::read("/dev/zero"), "/dev/zero: is not a regular file");
  CHECK_THROWS_AS(SafetensorsFile::read(folder / "no such folder" / "x"), FileError);
  CHECK_THROWS_WITH(SafetensorsFile::read("no such file"), ContainsSubstring("no such file: "));
}

}  // namespace io_odd_files
