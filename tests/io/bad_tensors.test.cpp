// Entries of a header that no safetensors file may have, and tensors that do not tile the data.
#include "io/bad_files.hpp"

namespace io_bad_tensors {

using namespace headwise_tests;

namespace {

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

}  // namespace

TEST_CASE("a file with a field that is missing, twice, unknown or of another kind is refused",
          "[io]") {
  check_refused(bad_fields());
}

TEST_CASE("a file whose tensors do not tile its data is refused", "[io]") {
  check_refused(bad_layouts());
}

}  // namespace io_bad_tensors
