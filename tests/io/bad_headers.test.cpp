// Headers that no safetensors file may have: impossible lengths, and what is not a JSON object.
#include <limits>

#include "io/bad_files.hpp"

namespace io_bad_headers {

using namespace headwise_tests;

namespace {

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
      {"root array", file_of("[]", 0), "t: byte 8: the header is an array, expected an object"},
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
      {"no colon", file_of(R"({"a"{}})", 0),
       "t: byte 12: the header is not JSON: expected ':', got \"{\""},
      {"no comma", file_of(R"({"__metadata__":{}"a":{}})", 0), "not JSON: expected '}', got "},
      {"no value", file_of(R"({"a":})", 0), "not JSON: expected a value, got \"}\""},
      {"no key", file_of("{:1}", 0), "not JSON: expected a name in quotes, got \":\""},
      {"word that is no value", file_of(R"({"a":nil})", 0),
       "not JSON: expected a value, got \"n\""},
      {"capital literal", file_of(R"({"a":True})", 0), "not JSON: expected a value, got \"T\""},
      {"name without an end", file_of(R"({"a)", 0),
       "t: byte 11: the header is not JSON: a string has no end"},
      {"name that ends in a backslash", file_of("{\"a\\", 0),
       "not JSON: an escape that JSON does not know"},
      {"escaped end of a name", file_of(R"({"a\":{}})", 0), "a string has no end"},
      {"unknown escape", file_of(R"({"\x41":{}})", 0), "an escape that JSON does not know"},
      {"short code", file_of(R"({"\u00e":{}})", 0), "\\u without four hexadecimal digits"},
      {"code with a sign", file_of(R"({"\u+0e9":{}})", 0), "\\u without four hexadecimal digits"},
      {"low surrogate first", file_of(R"({"\udc00\ud800":{}})", 0), "half a surrogate pair"},
      {"high surrogate twice", file_of(R"({"\ud800\ud800":{}})", 0), "half a surrogate pair"},
      {"above U+10FFFF", file_of("{\"\xF4\x90\x80\x80\":{}}", 0), "ill-formed UTF-8"},
      {"half a character at the end of a name", file_of("{\"\xC3\":{}}", 0), "ill-formed UTF-8"},
      {"vertical tab between", file_of("{\v}", 0),
       "not JSON: expected a name in quotes, got \"\\x0b\""},
      {"no-break space between", file_of("{\xC2\xA0}", 0),
       "not JSON: expected a name in quotes, got \"\\xc2\""},
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
       file_of("{" + entry("a", "U8", "[1e999]", "[0,1]") + "}", 1),
       "shape holds a number with a fra"},
      {"nested 100000 deep", file_of(nested(100'000), 0), "the header is an array"},
      {"nested 100000 deep in a shape",
       file_of("{" + entry("a", "U8", nested(100'000), "[0,1]") + "}", 1),
       "tensor \"a\": shape holds an array, expected an unsigned integer"},
      {"nested in metadata", file_of(R"({"__metadata__":{"a":{"b":{}}}})", 0),
       "__metadata__: \"a\" is an object, expected a string"},
  };
}

}  // namespace

TEST_CASE("a file whose header length is impossible is refused", "[io]") {
  check_refused(bad_lengths());
}

TEST_CASE("a file whose header is not a JSON object is refused", "[io]") {
  check_refused(bad_json());
}

}  // namespace io_bad_headers
