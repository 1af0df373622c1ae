#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "headwise/io/safetensors.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/catch.hpp"

using namespace headwise;

namespace {

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\1'));
}

/// A tensor's line in a header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

/// A header that holds one good tensor of 8 bytes, and what else is given.
std::string beside_good(const std::string& more) {
  return "{" + entry("good", "F32", "[2]", "[0,8]") + "," + more + "}";
}

SafetensorsFile parse(const std::string& file) {
  return SafetensorsFile::parse(std::as_bytes(std::span(file)), "t");
}

struct BadFile {
  const char* what;
  std::string file;
  const char* message;
};

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

std::vector<BadFile> bad_lengths() {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return {
      {"no byte", "", "t: byte 0: the file ends inside the header length"},
      {"7 bytes", std::string(7, '\0'), "t: byte 7: the file ends inside the header length"},
      {"length 2^64 - 1", with_length(most, "{}"), "the header length is 18446744073709551615, "},
      {"length 2^63", with_length(std::uint64_t{1} << 63, "{}"), "9223372036854775808, expected"},
      {"length 2^64 - 8", with_length(most - 7, "{}"), "expected at most 100000000"},
      {"length over the cap", with_length(100'000'001, "{}"),
       "t: byte 0: the header length is 100"},
      {"length past the end", with_length(3, "{}"), "is 3, but only 2 bytes follow it"},
      {"length at the cap, no bytes", with_length(100'000'000, ""), "but only 0 bytes follow it"},
      {"length 0", with_length(0, ""), "t: byte 8: the header is not JSON: "},
      {"length cuts the header", with_length(1, "{}"), "the header is not JSON: "},
  };
}

std::vector<BadFile> bad_json() {
  return {
      {"root array", file_of("[]", 0), "t: byte 9: the header is an array, expected an object"},
      {"root number", file_of("7", 0), "the header is a number, expected an object"},
      {"root string", file_of("\"a\"", 0), "the header is a string, expected an object"},
      {"root null", file_of("null", 0), "the header is null, expected an object"},
      {"white space only", file_of("    ", 0), "the header is not JSON: "},
      {"byte order mark", file_of("\xEF\xBB\xBF{}", 0), "t: byte 8: the header begins with a byte"},
      {"byte order mark inside", file_of(" \xEF\xBB\xBF{}", 0), "the header is not JSON: "},
      {"zero byte behind", file_of(std::string("{}\0", 3), 0),
       "t: byte 10: the header holds a zero"},
      {"zero byte inside", file_of(std::string("{\0}", 3), 0),
       "t: byte 9: the header holds a zero"},
      {"text behind", file_of("{}{}", 0), "the header is not JSON: "},
      {"trailing comma", file_of("{" + entry("a", "U8", "[0]", "[0,0]") + ",}", 0), "not JSON: "},
      {"comment", file_of("{/**/}", 0), "the header is not JSON: "},
      {"single quotes", file_of("{'a':1}", 0), "the header is not JSON: "},
      {"unclosed", file_of("{", 0), "t: byte 9: the header is not JSON: "},
      {"bad UTF-8 in a name", file_of("{" + entry("\xFF", "U8", "[0]", "[0,0]") + "}", 0),
       "ill-formed UTF-8"},
      {"overlong UTF-8", file_of("{" + entry("\xC0\x80", "U8", "[0]", "[0,0]") + "}", 0),
       "ill-formed UTF-8"},
      {"encoded surrogate", file_of("{" + entry("\xED\xA0\x80", "U8", "[0]", "[0,0]") + "}", 0),
       "ill-formed UTF-8"},
      {"half a surrogate pair", file_of("{" + entry("\\ud800", "U8", "[0]", "[0,0]") + "}", 0),
       "surrogate"},
      {"control character in a name", file_of("{" + entry("a\nb", "U8", "[0]", "[0,0]") + "}", 0),
       "control character"},
      {"bad UTF-8 between", file_of("{\xFF}", 0), "the header is not JSON: "},
      {"NaN literal", file_of("{" + entry("a", "F32", "[NaN]", "[0,0]") + "}", 0), "not JSON: "},
      {"leading zero", file_of("{" + entry("a", "U8", "[01]", "[0,1]") + "}", 1), "not JSON: "},
      {"number too large for any type",
       file_of("{" + entry("a", "U8", "[1e999]", "[0,1]") + "}", 1), "not JSON: number overflow"},
      {"nested 100000 deep", file_of(nested(100'000), 0), "the header is an array"},
      {"nested 100000 deep in a shape",
       file_of("{" + entry("a", "U8", nested(100'000), "[0,1]") + "}", 1),
       "tensor \"a\": shape holds an array, expected an unsigned integer"},
      {"nested in metadata", file_of(R"({"__metadata__":{"a":{"b":{}}}})", 0),
       "__metadata__: \"a\" is an object, expected a string"},
  };
}

std::vector<BadFile> bad_fields() {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return file_of("{" + entry("a", dtype, shape, offsets) + "}", 8);
  };
  return {
      {"tensor is a number", file_of(R"({"a":1})", 0),
       "tensor \"a\" is a number, expected an object"},
      {"tensor is an array", file_of(R"({"a":[]})", 0), "tensor \"a\" is an array, expected"},
      {"unknown dtype", one("F128", "[1]", "[0,8]"), "tensor \"a\": dtype \"F128\" is not known"},
      {"dtype in small letters", one("f64", "[1]", "[0,8]"), "dtype \"f64\" is not known"},
      {"dtype of half a byte", one("F4", "[16]", "[0,8]"), "dtype \"F4\" is not known"},
      {"dtype is a number", file_of(R"({"a":{"dtype":64}})", 0),
       "dtype is a number, expected a str"},
      {"dtype is null", file_of(R"({"a":{"dtype":null}})", 0), "dtype is null, expected a string"},
      {"dtype is an array", file_of(R"({"a":{"dtype":["U8"]}})", 0),
       "dtype is an array, expected a"},
      {"shape is a number", one("F64", "1", "[0,8]"), "shape is a number, expected an array"},
      {"shape is null", one("F64", "null", "[0,8]"), "shape is null, expected an array"},
      {"shape is an object", one("F64", "{}", "[0,8]"), "shape is an object, expected an array"},
      {"shape is a string", one("F64", "\"[1]\"", "[0,8]"), "shape is a string, expected an array"},
      {"negative extent", one("F64", "[-1]", "[0,8]"),
       "shape holds a negative number, expected an un"},
      {"extent -0", one("F64", "[-0]", "[0,0]"), "shape holds a negative number"},
      {"extent with a fraction", one("F64", "[1.0]", "[0,8]"),
       "shape holds a number with a fraction"},
      {"extent with an exponent", one("F64", "[1e0]", "[0,8]"),
       "shape holds a number with a fraction"},
      {"extent as a string", one("F64", "[\"1\"]", "[0,8]"),
       "shape holds a string, expected an unsi"},
      {"extent true", one("F64", "[true]", "[0,8]"), "shape holds a boolean, expected an unsigned"},
      {"extent 2^63", one("U8", "[9223372036854775808]", "[0,8]"), "more than can be counted"},
      {"extent 2^64", one("U8", "[18446744073709551616]", "[0,8]"), "or too many digits"},
      {"shape overflows 64 bits to 8 bytes", one("U8", "[4294967296,4294967296,8]", "[0,8]"),
       "has more bytes than can be counted"},
      {"bytes overflow", one("F64", "[2305843009213693953]", "[0,8]"),
       "more bytes than can be count"},
      {"overflow beside a 0", one("U8", "[0,4294967296,4294967296]", "[0,0]"),
       "has more bytes than can be counted"},
      {"9 axes", one("F64", "[1,1,1,1,1,1,1,1,1]", "[0,8]"), "shape has more than 8 axes"},
      {"3 offsets", one("F64", "[1]", "[0,8,8]"), "data_offsets holds more than 2 numbers"},
      {"1 offset", one("F64", "[1]", "[0]"),
       "t: byte 13: tensor \"a\": data_offsets does not hold 2"},
      {"no offset", one("F64", "[1]", "[]"), "data_offsets does not hold 2 numbers"},
      {"negative offset", one("F64", "[1]", "[-8,0]"), "data_offsets holds a negative number"},
      {"offset with a fraction", one("F64", "[1]", "[0,8.5]"),
       "data_offsets holds a number with a f"},
      {"offset null", one("F64", "[1]", "[0,null]"),
       "data_offsets holds null, expected an unsigned"},
      {"no dtype", file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "dtype is missing"},
      {"no shape", file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "shape is missing"},
      {"no offsets", file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "data_offsets is missing"},
      {"empty entry", file_of(R"({"a":{}})", 0), "t: byte 13: tensor \"a\": dtype is missing"},
      {"unknown field", file_of(R"({"a":{"dtype":"U8","shape":[1],"strides":[1]}})", 1),
       "tensor \"a\": the field \"strides\" is not known"},
      {"dtype twice", file_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0), "dtype occurs twice"},
      {"shape twice", file_of(R"({"a":{"shape":[1],"shape":[1]}})", 0), "shape occurs twice"},
      {"field twice, once escaped", file_of(R"({"a":{"shape":[1],"sh\u0061pe":[1]}})", 0),
       "tensor \"a\": shape occurs twice"},
      {"metadata number", file_of(R"({"__metadata__":{"n":1}})", 0),
       "__metadata__: \"n\" is a number, expected a string"},
      {"metadata null value", file_of(R"({"__metadata__":{"n":null}})", 0),
       "\"n\" is null, expected a"},
      {"metadata array", file_of(R"({"__metadata__":[]})", 0),
       "__metadata__ is an array, expected an"},
      {"metadata null", file_of(R"({"__metadata__":null})", 0),
       "__metadata__ is null, expected an ob"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "metadata__ occurs twi"},
      {"metadata key twice", file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
       "__metadata__: the key \"k\" occurs twice"},
  };
}

std::vector<BadFile> bad_layouts() {
  return {
      {"begin behind end", file_of("{" + entry("a", "U8", "[8]", "[8,0]") + "}", 8),
       "data_offsets [8, 0] end before they begin"},
      {"begin behind end, difference wraps",
       file_of("{" + entry("a", "U8", "[1]", "[1,0]") + "}", 1), "end before they begin"},
      {"shape and offsets differ", file_of("{" + entry("a", "F64", "[3]", "[0,10]") + "}", 10),
       "t: byte 13: tensor \"a\": data_offsets [0, 10] hold 10 bytes, shape [3] of F64 needs 24"},
      {"a scalar of no bytes", file_of("{" + entry("a", "F64", "[]", "[0,0]") + "}", 0),
       "hold 0 bytes, shape [] of F64 needs 8"},
      {"an empty tensor of some bytes", file_of("{" + entry("a", "F64", "[0]", "[0,8]") + "}", 8),
       "hold 8 bytes, shape [0] of F64 needs 0"},
      {"hole at the start", file_of("{" + entry("a", "U8", "[4]", "[4,8]") + "}", 8),
       "tensor \"a\": data_offsets begin at 4, the tensors before end at 0"},
      {"hole between", file_of(beside_good(entry("b", "U8", "[4]", "[12,16]")), 16),
       "tensor \"b\": data_offsets begin at 12, the tensors before end at 8"},
      {"overlap", file_of(beside_good(entry("b", "U8", "[8]", "[4,12]")), 12),
       "tensor \"b\": data_offsets begin at 4, the tensors before end at 8"},
      {"same range twice", file_of(beside_good(entry("b", "F32", "[2]", "[0,8]")), 8),
       "tensor \"b\": data_offsets begin at 0, the tensors before end at 8"},
      {"range inside another", file_of(beside_good(entry("b", "U8", "[2]", "[2,4]")), 8),
       "tensor \"b\": data_offsets begin at 2, the tensors before end at 8"},
      {"empty tensor inside another", file_of(beside_good(entry("b", "U8", "[0]", "[4,4]")), 8),
       "tensor \"b\": data_offsets begin at 4, the tensors before end at 8"},
      {"empty tensor past the end", file_of(beside_good(entry("b", "U8", "[0]", "[9,9]")), 8),
       "tensor \"b\": data_offsets begin at 9, the tensors before end at 8"},
      {"trailing data", file_of("{" + entry("a", "U8", "[4]", "[0,4]") + "}", 5),
       "t: byte 65: the tensors take 4 bytes of data, the file holds 5"},
      {"short data", file_of("{" + entry("a", "U8", "[4]", "[0,4]") + "}", 3),
       "t: byte 64: the tensors take 4 bytes of data, the file holds 3"},
      {"data without a tensor", file_of("{}", 1),
       "the tensors take 0 bytes of data, the file holds 1"},
      {"a tensor larger than any memory",
       file_of("{" + entry("a", "U8", "[4611686018427387904]", "[0,4611686018427387904]") + "}", 0),
       "the tensors take 4611686018427387904 bytes of data, the file holds 0"},
      {"name twice", file_of(beside_good(entry("good", "F32", "[2]", "[8,16]")), 16),
       "t: byte 72: tensor \"good\" occurs twice"},
      {"name twice, the same", file_of(beside_good(entry("good", "F32", "[2]", "[0,8]")), 8),
       "tensor \"good\" occurs twice"},
      {"empty tensor's name twice",
       file_of(
           "{" + entry("a", "U8", "[0]", "[0,0]") + "," + entry("a", "U8", "[0]", "[0,0]") + "}",
           0),
       "tensor \"a\" occurs twice"},
  };
}

void check_refused(const std::vector<BadFile>& files) {
  for (const auto& [what, file, message] : files) {
    CAPTURE(what);
    CHECK_THROWS_AS(parse(file), FileError);
    CHECK_THROWS_WITH(parse(file), ContainsSubstring(message));
    CHECK_THROWS_WITH(parse(file), Catch::Matchers::StartsWith("t: byte "));
  }
}

}  // namespace

TEST_CASE("a file whose header length is impossible is refused", "[io]") {
  check_refused(bad_lengths());
}

TEST_CASE("a file whose header is not a JSON object is refused", "[io]") {
  check_refused(bad_json());
}

TEST_CASE("a file with a field that is missing, twice, unknown or of another kind is refused",
          "[io]") {
  check_refused(bad_fields());
}

TEST_CASE("a file whose tensors do not tile its data is refused", "[io]") {
  check_refused(bad_layouts());
}

TEST_CASE("what looks odd and is allowed is read", "[io]") {
  const std::string a = entry("a", "F32", "[2]", "[0,8]");
  CHECK(parse(file_of(" \t\r\n{" + a + "} \n ", 8)).contains("a"));
  CHECK(parse(file_of("{}", 0)).names().empty());
  CHECK(parse(file_of(R"({"__metadata__":{}})", 0)).metadata().empty());
  CHECK(parse(file_of(R"({"__metadata__":{"k":""}})", 0)).metadata().at("k").empty());
  CHECK(parse(file_of("{" + entry("x\\u0000y", "F32", "[2]", "[0,8]") + "}", 8))
            .contains(std::string("x\0y", 3)));
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

TEST_CASE("a file with some bytes changed is read or refused, and nothing else", "[io]") {
  SafetensorsWriter writer;
  writer.add("a", Tensor<double, 2>(Shape{2, 2}, {1, 2, 3, 4}));
  writer.add("b", Tensor<float, 1>(Shape{0}));
  writer.add_scalar("c", true);
  writer.set_metadata("k", "v");
  const auto whole = writer.bytes();
  constexpr std::string_view telling = "{}[]\":,0123456789-.eE\\u \n\0\xFFUF_";
  int num_read = 0;
  int num_refused = 0;
  for (std::uint32_t n = 0; n < 30000; ++n) {
    CAPTURE(n);
    auto bytes = whole;
    const auto words = philox({n, 0, 0, 0}, philox_key(19));
    for (std::uint32_t change = 0; change <= words[0] % 3; ++change) {
      const auto draw = philox({n, change, 1, 0}, philox_key(19));
      const std::size_t at = draw[0] % bytes.size();
      const auto byte = static_cast<std::byte>(telling[draw[1] % telling.size()]);
      switch (draw[2] % 3) {
        case 0:
          bytes[at] = byte;
          break;
        case 1:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        default:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), byte);
          break;
      }
    }
    // Half of them get a header length that is right again, so that the change is seen.
    if (n % 2 == 0 && bytes.size() > 41) {
      const std::uint64_t length = bytes.size() - 8 - 33;
      std::memcpy(bytes.data(), &length, 8);
    }
    try {
      const auto file = SafetensorsFile::parse(bytes);
      std::size_t held = 0;
      for (const auto& name : file.names()) held += file.bytes(name).size();
      if (held > bytes.size()) FAIL("holds more than the file");
      ++num_read;
    } catch (const FileError&) {
      ++num_refused;
    }
  }
  CHECK(num_read > 300);
  CHECK(num_refused > 3000);
}

TEST_CASE("what is no regular file is refused by its name", "[io]") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path();
  CHECK_THROWS_WITH(SafetensorsFile::read(folder), ContainsSubstring("is not a regular file"));
  CHECK_THROWS_WITH(SafetensorsFile::read("/dev/zero"), "/dev/zero: is not a regular file");
  CHECK_THROWS_AS(SafetensorsFile::read(folder / "no such folder" / "x"), FileError);
  CHECK_THROWS_WITH(SafetensorsFile::read("no such file"), ContainsSubstring("no such file: "));
}
