// The cases of tests/data/float32_errors.json: their inputs, made anew by the recipe of
// generate_float32_errors.py beside it, and what PyTorch made of them. A recipe that has come apart
// from the generator's is refused by its checksum.
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../../examples/support/reference_case.hpp"

namespace headwise_tests {

using namespace headwise;

/// Number n = 0, 1 ... of a stream: SplitMix64. Source: Steele, Lea and Flood, 2014.
inline std::uint64_t hashed(std::uint64_t stream, std::uint64_t n) {
  std::uint64_t z = (n + 1) * 0x9E3779B97F4A7C15u + stream * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Three 20-bit numbers summed, less their mean, times 1, 2, 4 or 8: below 2^25 with 22 bits each.
inline std::int64_t hashed_integer(std::uint64_t stream, std::uint64_t n) {
  const std::uint64_t z = hashed(stream, n);
  std::uint64_t sum = 0;
  for (int field = 0; field < 3; ++field) sum += z >> (20 * field) & 0xFFFFFu;
  return (2 * static_cast<std::int64_t>(sum) - 3 * 0xFFFFF) * (std::int64_t{1} << (z >> 62));
}

/// The same times 2^(exponent - 22): deviation 1.15 x 2^exponent, exact in float.
inline double hashed_number(std::uint64_t stream, std::uint64_t n, int exponent) {
  return std::ldexp(static_cast<double>(hashed_integer(stream, n)), exponent - 22);
}

/// Makes the inputs of a case one by one; the n-th has stream 64 seed + n.
class Float32Inputs {
 public:
  explicit Float32Inputs(std::uint64_t seed) : stream_(64 * seed) {}

  void add(const nlohmann::json& spec) {
    switch (spec.at("shape").size()) {
      case 1:
        return add_shaped(spec, Shape<1>{extent(spec, 0)});
      case 2:
        return add_shaped(spec, Shape<2>{extent(spec, 0), extent(spec, 1)});
      case 3:
        return add_shaped(spec, Shape<3>{extent(spec, 0), extent(spec, 1), extent(spec, 2)});
      default:
        return add_shaped(
            spec, Shape<4>{extent(spec, 0), extent(spec, 1), extent(spec, 2), extent(spec, 3)});
    }
  }

  SafetensorsWriter& writer() { return writer_; }
  std::int64_t checksum() const { return checksum_; }

 private:
  static Index extent(const nlohmann::json& spec, std::size_t axis) {
    return spec.at("shape").at(axis).get<Index>();
  }

  template <int R>
  void add_shaped(const nlohmann::json& spec, const Shape<R>& shape) {
    const auto name = spec.at("name").get<std::string>();
    if (spec.contains("exponent")) {
      writer_.add(name, numbers(shape, spec.at("exponent").get<int>()));
    } else if (spec.contains("lengths")) {
      writer_.add(name, padding(shape, spec.at("lengths")));
    } else {
      writer_.add(name, hidden_pairs(shape, spec.at("hidden_sixteenths").get<std::uint64_t>()));
    }
    ++stream_;
  }

  template <int R>
  Tensor<double, R> numbers(const Shape<R>& shape, int exponent) {
    Tensor<double, R> x(shape);
    for (std::uint64_t n = 0; n < static_cast<std::uint64_t>(x.size()); ++n) {
      x.data()[n] = hashed_number(stream_, n, exponent);
      checksum_ += hashed_integer(stream_, n) * static_cast<std::int64_t>(n % 97 + 1);
    }
    return x;
  }
  /// [B, S]: true behind each length.
  template <int R>
  Tensor<bool, R> padding(const Shape<R>& shape, const nlohmann::json& lengths) const {
    Tensor<bool, R> hidden(shape);
    for_each_index(shape, [&](const Shape<R>& at) {
      hidden(at) = at[R - 1] >= lengths.at(static_cast<std::size_t>(at[0])).get<Index>();
    });
    return hidden;
  }
  /// True for that share of the pairs, never for key 0.
  template <int R>
  Tensor<bool, R> hidden_pairs(const Shape<R>& shape, std::uint64_t sixteenths) const {
    Tensor<bool, R> hidden(shape);
    std::uint64_t n = 0;
    for_each_index(shape, [&](const Shape<R>& at) {
      hidden(at) = hashed(stream_, n++) >> 60 < sixteenths && at[R - 1] != 0;
    });
    return hidden;
  }

  std::uint64_t stream_;
  std::int64_t checksum_ = 0;
  SafetensorsWriter writer_;
};

/// What PyTorch made of one result: the root of the mean squared float32 error over that of the
/// float64 result, and what the file keeps of the latter.
struct PyTorchResult {
  std::string name;
  Index count;
  double greatest, weighted_sum;
  std::vector<double> samples;  // of elements n (count - 1) / (samples - 1)
  double fused, weights;        // float32 error of each way
};

struct Float32Case {
  ReferenceCase inputs;
  std::vector<PyTorchResult> results;
};

/// Every case of the file. Throws FileError where the recipe gives other inputs than the file's.
inline std::vector<Float32Case> read_float32_cases(const std::string& path) {
  std::ifstream stream(path);
  const auto file = nlohmann::json::parse(stream);
  std::vector<Float32Case> cases;
  for (const auto& entry : file.at("cases")) {
    const auto name = entry.at("name").get<std::string>();
    Float32Inputs inputs(entry.at("seed").get<std::uint64_t>());
    for (const auto& spec : entry.at("inputs")) inputs.add(spec);
    if (inputs.checksum() != entry.at("checksum").get<std::int64_t>()) {
      raise<FileError>(path + ": " + name + ": the recipe gives other inputs than the generator's");
    }
    for (const char* key : {"kind", "num_heads", "num_kv_heads", "causal", "window", "scale"}) {
      if (!entry.contains(key)) continue;
      const auto& value = entry.at(key);
      inputs.writer().set_metadata(key,
                                   value.is_string() ? value.get<std::string>() : value.dump());
    }
    Float32Case& added = cases.emplace_back();
    added.inputs = read_reference_case(SafetensorsFile::parse(inputs.writer().bytes()), name);
    for (const auto& [key, result] : entry.at("results").items()) {
      added.results.push_back(
          {key, result.at("count").get<Index>(), result.at("greatest").get<double>(),
           result.at("weighted_sum").get<double>(), result.at("samples").get<std::vector<double>>(),
           result.at("fused").at(1).get<double>(), result.at("weights").at(1).get<double>()});
    }
  }
  return cases;
}

}  // namespace headwise_tests
