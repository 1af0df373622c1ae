// Safetensors files made by hand, byte by byte, and the check that each is refused in the words
// that stand beside it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "headwise/io/safetensors.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

inline std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

inline std::string file_of(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\1'));
}

/// A tensor's line in a header.
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

/// A header that holds one good tensor of 8 bytes, and what else is given.
inline std::string beside_good(const std::string& more) {
  return "{" + entry("good", "F32", "[2]", "[0,8]") + "," + more + "}";
}

inline SafetensorsFile parse(const std::string& file) {
  return SafetensorsFile::parse(std::as_bytes(std::span(file)), "t");
}

struct BadFile {
  const char* what;
  std::string file;
  const char* message;
};

inline void check_refused(const std::vector<BadFile>& files) {
  for (const auto& [what, file, message] : files) {
    CAPTURE(what);
    CHECK_THROWS_AS(parse(file), FileError);
    CHECK_THROWS_WITH(parse(file), ContainsSubstring(message));
    CHECK_THROWS_WITH(parse(file), Catch::Matchers::StartsWith("t: byte "));
  }
}

}  // namespace headwise_tests
