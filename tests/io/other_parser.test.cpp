// The reader's verdict and what it reads, beside those of a parser from another hand (nlohmann's)
// and the rules of the format written once more over its tree: on files changed at random.
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "headwise/tensor/philox.hpp"
#include "io/bad_files.hpp"

namespace io_other_parser {

using namespace headwise_tests;

namespace {

using Json = nlohmann::json;

struct Listed {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin, end;
};

struct Listing {
  std::map<std::string, Listed> tensors;
  std::map<std::string, std::string> metadata;
};

/// The tree of a text, or nothing where it is no JSON or an object has a name twice.
std::optional<Json> tree_of(const std::string& text) {
  std::vector<std::set<std::string>> names;
  bool twice = false;
  const auto look = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key) {
      twice = !names.back().insert(parsed.get<std::string>()).second || twice;
    }
    return true;
  };
  if (text.find('\0') != std::string::npos || text.starts_with("\xEF\xBB\xBF")) return {};
  Json tree = Json::parse(text, look, false);
  if (tree.is_discarded() || twice) return {};
  return tree;
}

bool is_list_of_unsigned(const Json& value) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const Json& n) { return n.is_number_unsigned(); });
}

std::optional<Listed> tensor_of(const Json& entry) {
  if (!entry.is_object() || entry.size() != 3) return {};
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(field)) return {};
  }
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string() || !is_list_of_unsigned(shape) || !is_list_of_unsigned(offsets)) return {};
  if (shape.size() > 8 || offsets.size() != 2) return {};
  const auto known = dtype_from_name(dtype.get<std::string>());
  if (!known) return {};
  long double bytes = dtype_bytes(*known), counted = bytes;
  for (const Json& extent : shape) {
    const auto n = static_cast<long double>(extent.get<std::uint64_t>());
    bytes *= n;
    counted *= n == 0 ? 1 : n;
    if (n >= 0x1p63L) return {};
  }
  const std::uint64_t begin = offsets[0], end = offsets[1];
  if (counted >= 0x1p63L || begin > end || static_cast<long double>(end - begin) != bytes)
    return {};
  return Listed{dtype, shape.get<std::vector<std::uint64_t>>(), begin, end};
}

/// What a file holds; nothing where it is refused.
std::optional<Listing> listing_of(const std::string& file) {
  std::uint64_t length = 0;
  if (file.size() < 8) return {};
  std::memcpy(&length, file.data(), 8);
  if (length > file.size() - 8) return {};
  const auto tree = tree_of(file.substr(8, length));
  if (!tree || !tree->is_object()) return {};
  Listing listing;
  std::set<std::pair<std::uint64_t, std::uint64_t>> ranges;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> order;
  for (const auto& [name, entry] : tree->items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return {};
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) return {};
        listing.metadata[key] = value;
      }
      continue;
    }
    const auto tensor = tensor_of(entry);
    if (!tensor) return {};
    listing.tensors[name] = *tensor;
    order.emplace_back(tensor->begin, tensor->end);
  }
  std::ranges::sort(order);
  std::uint64_t filled = 0;
  for (const auto& [begin, end] : order) {
    if (begin != filled) return {};
    filled = end;
  }
  if (filled != file.size() - 8 - length) return {};
  return listing;
}

bool same(const SafetensorsFile& file, const Listing& listing) {
  if (file.metadata() != listing.metadata) return false;
  if (file.names().size() != listing.tensors.size()) return false;
  for (const auto& [name, tensor] : listing.tensors) {
    if (!file.contains(name) || dtype_name(file.dtype(name)) != tensor.dtype) return false;
    if (!std::ranges::equal(file.shape(name), tensor.shape, [](Index a, std::uint64_t b) {
          return static_cast<std::uint64_t>(a) == b;
        })) {
      return false;
    }
    if (file.bytes(name).size() != tensor.end - tensor.begin) return false;
  }
  return true;
}

/// A file with some of its bytes changed, dropped or doubled, the header length mostly right again.
std::string changed(std::string header, std::size_t data_bytes, std::uint32_t n) {
  static const std::vector<std::string> telling = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   ":",
                                                   ",",
                                                   "0",
                                                   "1",
                                                   "2",
                                                   "9",
                                                   "-",
                                                   ".",
                                                   "e",
                                                   "E",
                                                   "\\",
                                                   "u",
                                                   " ",
                                                   "\n",
                                                   "\t",
                                                   "\xFF",
                                                   "\xC3",
                                                   "null",
                                                   "true",
                                                   "\\u00e9",
                                                   "\\ud83d\\ude00",
                                                   "a",
                                                   "\"a\":",
                                                   "\"shape\":",
                                                   "\"dtype\":",
                                                   "\"data_offsets\":",
                                                   "18446744073709551615",
                                                   "\xC3\xA9",
                                                   "[]",
                                                   "{}",
                                                   "0,0",
                                                   "U8"};
  const auto words = philox({n, 0, 0, 0}, philox_key(19));
  for (std::uint32_t change = 0; change <= words[0] % 2; ++change) {
    const auto draw = philox({n, change, 1, 0}, philox_key(19));
    const std::size_t at = draw[0] % (header.size() + 1);
    const std::string& piece = telling[draw[1] % telling.size()];
    const std::size_t count = std::min<std::size_t>(draw[3] % 6, header.size() - at);
    if (draw[2] % 3 == 0) {
      header.replace(at, std::min(piece.size(), header.size() - at), piece);
    } else if (draw[2] % 3 == 1) {
      header.erase(at, count);
    } else {
      header.insert(at, draw[2] % 6 == 2 ? piece : header.substr(at, count));
    }
  }
  return with_length(header.size() + (words[1] % 16 == 0 ? words[2] % 3 : 0),
                     header + std::string(data_bytes, '\1'));
}

}  // namespace

TEST_CASE("the reader agrees with a parser of another hand on 60000 changed files", "[io]") {
  const std::string header =
      "{" + entry("a", "F64", "[2,2]", "[0,32]") + "," + entry("b", "F32", "[0]", "[32,32]") + "," +
      R"("__metadata__":{"k":"v","l":""},)" + entry("c\\n", "BOOL", "[]", "[32,33]") + "}";
  int num_read = 0, num_refused = 0;
  for (std::uint32_t n = 0; n < 60000; ++n) {
    const std::string file = changed(header, 33, n);
    const auto expected = listing_of(file);
    bool agrees = false;
    try {
      const SafetensorsFile got = parse(file);
      agrees = expected && same(got, *expected);
      ++num_read;
    } catch (const FileError&) {
      agrees = !expected;
      ++num_refused;
    }
    if (!agrees) {
      CAPTURE(n, file.substr(8));
      FAIL("another verdict, or another content");
    }
  }
  CHECK(num_read > 3000);
  CHECK(num_refused > 30000);
}

}  // namespace io_other_parser
