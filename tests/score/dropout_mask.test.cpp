#include "headwise/score/dropout_mask.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include "support/catch.hpp"

namespace score_dropout_mask {

using namespace headwise;

namespace {

/// The share of L x S pairs on which two masks agree.
double agreement(const DropoutMask& a, const DropoutMask& b) {
  constexpr Index L = 100, S = 100;
  Index equal = 0;
  for (Index i = 0; i < L; ++i) {
    for (Index j = 0; j < S; ++j) {
      if (a.kept(0, 0, i, j) == b.kept(0, 0, i, j)) ++equal;
    }
  }
  return static_cast<double>(equal) / (L * S);
}

const Dropout half{.rate = 0.5, .seed = 11, .step = 5};
const DropoutMask half_mask(half, DropoutStream::weights);

// 10000 pairs of fair coins agree on one half, give or take 0.005.
constexpr double half_bound = 4 * 0.005;

}  // namespace

TEST_CASE("dropout keeps a share of 1 - rate, within 4 standard deviations", "[score]") {
  constexpr Index count = 1 << 16;
  for (double rate : {0.001, 0.1, 0.25, 0.5, 0.9, 0.999}) {
    for (std::uint64_t seed : {1u, 2u, 3u}) {
      CAPTURE(rate, seed);
      const DropoutMask mask({.rate = rate, .seed = seed}, DropoutStream::weights);
      Index kept = 0;
      for (Index n = 0; n < count; ++n) kept += mask.kept(0, 0, n / 256, n % 256) ? 1 : 0;
      const double sigma = std::sqrt(rate * (1 - rate) * count);
      CHECK(std::abs(static_cast<double>(kept) - (1 - rate) * count) < 4 * sigma);
    }
  }
}

TEST_CASE("a row of dropout factors equals kept pair by pair, wherever it starts and ends",
          "[score]") {
  const DropoutMask mask({.rate = 0.4, .seed = 3, .step = 9}, DropoutStream::output);
  for (Index start = 0; start < 20; ++start) {
    for (Index count = 0; count < 30; ++count) {
      CAPTURE(start, count);
      std::vector<float> factors(static_cast<std::size_t>(count) + 1, -7.0f);
      mask.row(2, 3, 17, start, count, 2.5f, factors.data());
      bool equal = true;
      for (Index t = 0; t < count; ++t) {
        const float expected = mask.kept(2, 3, 17, start + t) ? 2.5f : 0.0f;
        equal = equal && factors[static_cast<std::size_t>(t)] == expected;
      }
      CHECK(equal);
      CHECK(factors.back() == -7.0f);
    }
  }
}

TEST_CASE("a mask drawn anew with the same seed and step is the same mask", "[score]") {
  CHECK(agreement(half_mask, DropoutMask(half, DropoutStream::weights)) == 1.0);
}

TEST_CASE("another seed, step, stream, batch element or head draws an unrelated mask", "[score]") {
  const auto unrelated = [](const Dropout& dropout, DropoutStream stream) {
    return std::abs(agreement(half_mask, DropoutMask(dropout, stream)) - 0.5);
  };
  CHECK(unrelated({0.5, 12, 5}, DropoutStream::weights) < half_bound);
  CHECK(unrelated({0.5, 11 + (std::uint64_t{1} << 32), 5}, DropoutStream::weights) < half_bound);
  CHECK(unrelated({0.5, 11, 6}, DropoutStream::weights) < half_bound);
  CHECK(unrelated({0.5, 11, 5 + (std::uint64_t{1} << 32)}, DropoutStream::weights) < half_bound);
  CHECK(unrelated({0.5, 11, 5}, DropoutStream::output) < half_bound);

  Index same_in_b = 0, same_in_h = 0;
  for (Index i = 0; i < 100; ++i) {
    for (Index j = 0; j < 100; ++j) {
      same_in_b += half_mask.kept(0, 0, i, j) == half_mask.kept(1, 0, i, j) ? 1 : 0;
      same_in_h += half_mask.kept(0, 0, i, j) == half_mask.kept(0, 1, i, j) ? 1 : 0;
    }
  }
  CHECK(std::abs(static_cast<double>(same_in_b) / 10000 - 0.5) < half_bound);
  CHECK(std::abs(static_cast<double>(same_in_h) / 10000 - 0.5) < half_bound);
}

TEST_CASE("neighbouring pairs are kept independently, within and across blocks of 8", "[score]") {
  for (const auto& [di, dj] : {std::pair<Index, Index>{0, 1}, {0, 2}, {0, 8}, {1, 0}, {1, 1}}) {
    Index equal = 0;
    for (Index i = 0; i < 100; ++i) {
      for (Index j = 0; j < 100; ++j) {
        equal += half_mask.kept(0, 0, i, j) == half_mask.kept(0, 0, i + di, j + dj) ? 1 : 0;
      }
    }
    CAPTURE(di, dj);
    CHECK(std::abs(static_cast<double>(equal) / 10000 - 0.5) < half_bound);
  }
}

TEST_CASE("a pair is dropped where its own 16 bits of philox are below the rate", "[score]") {
  const auto key = philox_key(11, 1, 5);
  for (double rate : {0.25, 1.0 / 512, 0.75}) {
    const DropoutMask mask({rate, 11, 5}, DropoutStream::weights);
    bool equal = true;
    for (Index j = 0; j < 4000; ++j) {
      const auto words = philox<7>({static_cast<std::uint32_t>(j / 8), 4, 3, 2}, key);
      const std::uint32_t word = words[static_cast<std::size_t>(j % 8 / 2)];
      const std::uint32_t own = j % 2 == 0 ? word % 65536 : word / 65536;
      equal = equal && mask.kept(2, 3, 4, j) == (own >= rate * 65536);
    }
    CAPTURE(rate);
    CHECK(equal);
  }
}

TEST_CASE("a higher rate keeps a subset of what a lower one keeps", "[score]") {
  const DropoutMask low({.rate = 0.2, .seed = 4}, DropoutStream::weights);
  const DropoutMask high({.rate = 0.7, .seed = 4}, DropoutStream::weights);
  bool subset = true;
  for (Index j = 0; j < 1000; ++j)
    subset = subset && (low.kept(0, 0, 0, j) || !high.kept(0, 0, 0, j));
  CHECK(subset);
}

TEST_CASE("rate 0 keeps everything and rate 1 nothing", "[score]") {
  const DropoutMask none({.rate = 0.0, .seed = 1}, DropoutStream::weights);
  const DropoutMask all({.rate = 1.0, .seed = 1}, DropoutStream::weights);
  CHECK_FALSE(none.active());
  CHECK_FALSE(DropoutMask().active());
  CHECK(all.active());
  CHECK(none.keep_factor() == 1.0);
  CHECK(all.keep_factor() == 0.0);
  bool keeps = true, drops = true;
  for (Index j = 0; j < 100000; ++j) {
    keeps = keeps && none.kept(0, 0, 1, j) && DropoutMask().kept(0, 0, 1, j);
    drops = drops && !all.kept(0, 0, 1, j);
  }
  CHECK(keeps);
  CHECK(drops);
}

TEST_CASE("kept elements are multiplied by 1 / (1 - rate)", "[score]") {
  for (double rate : {0.1, 0.5, 0.9}) {
    CHECK(DropoutMask({.rate = rate}, DropoutStream::output).keep_factor() == 1 / (1 - rate));
  }
}

TEST_CASE("dropout rates of 0 and 1 are taken", "[score]") {
  CHECK_NOTHROW(Dropout{.rate = 0.0}.require_valid("f"));
  CHECK_NOTHROW(Dropout{.rate = 1.0}.require_valid("f"));
}

}  // namespace score_dropout_mask
