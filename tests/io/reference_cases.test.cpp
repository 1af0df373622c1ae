// PyTorch's own numbers, case by case: both paths, forward and backward, double and float.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "../../examples/support/reference_case.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

using namespace headwise;
using namespace headwise::examples;

namespace {

namespace fs = std::filesystem;

std::string data_path(const std::string& name) {
  return std::string(HEADWISE_TEST_DATA "/") + name + ".safetensors";
}

ReferenceCase data_case(const std::string& name) {
  return read_reference_case(fs::path(data_path(name)));
}

SafetensorsFile reread(const SafetensorsWriter& writer) {
  return SafetensorsFile::parse(writer.bytes());
}

const std::vector<std::string> case_names = {
    "mha_bool_mask",    "mha_cross",         "mha_cross_kdim_vdim",
    "mha_float_mask",   "mha_large_scores",  "mha_long",
    "mha_padding",      "mha_per_head_mask", "mha_self",
    "mha_self_causal",  "mha_self_no_bias",  "mha_single_head",
    "mha_single_token", "sdpa_causal_rect",  "sdpa_dead_rows",
    "sdpa_dv",          "sdpa_gqa",          "sdpa_long",
    "sdpa_mqa",         "sdpa_plain",        "sdpa_scale",
    "sdpa_window"};

/// Every expected tensor is there and within the tolerance; weights are the materialized path's.
template <class T>
void check_case(const std::string& name, Path path, double tolerance) {
  const ReferenceCase c = data_case(name);
  const auto rows = compare_with_expected(c, reread(run_reference_case<T>(c, path)), tolerance);
  std::size_t compared = 0;
  for (const CaseComparison& row : rows) {
    INFO("tensor " << row.name);
    if (row.closeness) {
      ++compared;
      CHECK(*row.closeness);
    } else {
      CHECK((row.name == "weights" && path == Path::flash));
    }
  }
  CHECK(compared >= 4);
}

/// A case in memory: B = H = L = S = d = 1, with one line of metadata more.
ReferenceCase small_case(const std::string& key, const std::string& value) {
  SafetensorsWriter writer;
  for (const char* name : {"query", "key", "value", "grad_output"}) {
    writer.add(name, Tensor4<double>(Shape{1, 1, 1, 1}, {0.5}));
  }
  writer.set_metadata("kind", "sdpa");
  writer.set_metadata("num_heads", "1");
  writer.set_metadata(key, value);
  return read_reference_case(reread(writer), "small.safetensors");
}

/// A plain loop in float for causal self-attention, forward and backward, every sum from left to
/// right: what float can be expected to give. Nothing of the library's arithmetic is in it.
struct PlainLoop {
  using Vector = std::vector<float>;

  std::size_t B, L, D, H;
  Vector x, w, b, w_o, b_o, dy;          // [B, L, D], [3 D, D], [3 D], [D, D], [D], [B, L, D]
  Vector qkv, p, context, y;             // [B, L, 3 D], [B, H, L, L], [B, L, D], [B, L, D]
  Vector dx, dw, db, dw_o, db_o, d_qkv;  // as what they are gradients of
  float scale;

  explicit PlainLoop(const ReferenceCase& c) {
    const auto& shape = c.file.shape("query");
    B = static_cast<std::size_t>(shape[0]);
    L = static_cast<std::size_t>(shape[1]);
    D = static_cast<std::size_t>(shape[2]);
    H = static_cast<std::size_t>(c.num_heads);
    scale = 1 / std::sqrt(static_cast<float>(D / H));
    x = read(c, "query"), dy = read(c, "grad_output");
    w = read(c, "in_proj_weight"), b = read(c, "in_proj_bias");
    w_o = read(c, "out_proj.weight"), b_o = read(c, "out_proj.bias");
    qkv.resize(B * L * 3 * D), p.resize(B * H * L * L);
    context.resize(B * L * D), y.resize(B * L * D);
    dx.resize(x.size()), dw.resize(w.size()), db.resize(b.size());
    dw_o.resize(w_o.size()), db_o.resize(b_o.size()), d_qkv.resize(qkv.size());
    linear(x, w, b, qkv, D, 3 * D);
    for (std::size_t n = 0; n < B * H * L; ++n) attend(n / (H * L), n / L % H, n % L);
    linear(context, w_o, b_o, y, D, D);
    Vector d_context(context.size());
    linear_backward(dy, context, w_o, d_context, dw_o, db_o, D, D);
    for (std::size_t n = 0; n < B * H * L; ++n) {
      attend_backward(d_context, n / (H * L), n / L % H, n % L);
    }
    linear_backward(d_qkv, x, w, dx, dw, db, D, 3 * D);
  }

  std::map<std::string, Vector> results() const {
    return {{"output", y},
            {"weights", p},
            {"grad.query", dx},
            {"grad.in_proj_weight", dw},
            {"grad.in_proj_bias", db},
            {"grad.out_proj.weight", dw_o},
            {"grad.out_proj.bias", db_o}};
  }

 private:
  static Vector read(const ReferenceCase& c, const char* name) {
    const auto bytes = c.file.bytes(name);
    std::vector<double> wide(bytes.size() / sizeof(double));
    std::memcpy(wide.data(), bytes.data(), bytes.size());
    Vector narrow;
    for (const double value : wide) narrow.push_back(static_cast<float>(value));
    return narrow;
  }

  void linear(const Vector& in, const Vector& weight, const Vector& bias, Vector& out,
              std::size_t I, std::size_t O) const {
    for (std::size_t n = 0; n < B * L; ++n) {
      for (std::size_t o = 0; o < O; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < I; ++i) sum += in[n * I + i] * weight[o * I + i];
        out[n * O + o] = sum + bias[o];
      }
    }
  }
  void linear_backward(const Vector& d_out, const Vector& in, const Vector& weight, Vector& d_in,
                       Vector& d_weight, Vector& d_bias, std::size_t I, std::size_t O) const {
    for (std::size_t n = 0; n < B * L; ++n) {
      for (std::size_t o = 0; o < O; ++o) {
        d_bias[o] += d_out[n * O + o];
        for (std::size_t i = 0; i < I; ++i) {
          d_weight[o * I + i] += d_out[n * O + o] * in[n * I + i];
          d_in[n * I + i] += d_out[n * O + o] * weight[o * I + i];
        }
      }
    }
  }

  /// Where column c of head h begins in row i: part 0 queries, 1 keys, 2 values.
  std::size_t at(std::size_t part, std::size_t batch, std::size_t h, std::size_t i) const {
    return (batch * L + i) * 3 * D + part * D + h * (D / H);
  }
  float dot(const float* u, const float* v) const {
    float sum = 0;
    for (std::size_t c = 0; c < D / H; ++c) sum += u[c] * v[c];
    return sum;
  }

  void attend(std::size_t batch, std::size_t h, std::size_t i) {
    float* row = &p[((batch * H + h) * L + i) * L];
    for (std::size_t j = 0; j <= i; ++j) {
      row[j] = scale * dot(&qkv[at(0, batch, h, i)], &qkv[at(1, batch, h, j)]);
    }
    const float greatest = *std::max_element(row, row + i + 1);
    float sum = 0;
    for (std::size_t j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - greatest);
    for (std::size_t j = 0; j <= i; ++j) row[j] /= sum;
    float* o = &context[(batch * L + i) * D + h * (D / H)];
    for (std::size_t j = 0; j <= i; ++j) {
      for (std::size_t c = 0; c < D / H; ++c) o[c] += row[j] * qkv[at(2, batch, h, j) + c];
    }
  }
  void attend_backward(const Vector& d_context, std::size_t batch, std::size_t h, std::size_t i) {
    const float* row = &p[((batch * H + h) * L + i) * L];
    const float* d_o = &d_context[(batch * L + i) * D + h * (D / H)];
    Vector dp(i + 1);
    float delta = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      dp[j] = dot(d_o, &qkv[at(2, batch, h, j)]);
      delta += row[j] * dp[j];
    }
    for (std::size_t j = 0; j <= i; ++j) {
      const float ds = row[j] * (dp[j] - delta) * scale;
      for (std::size_t c = 0; c < D / H; ++c) {
        d_qkv[at(0, batch, h, i) + c] += ds * qkv[at(1, batch, h, j) + c];
        d_qkv[at(1, batch, h, j) + c] += ds * qkv[at(0, batch, h, i) + c];
        d_qkv[at(2, batch, h, j) + c] += row[j] * d_o[c];
      }
    }
  }
};

struct LargestError {
  double error = 0;  // max |actual - expected|
  double size = 0;   // max |expected|
};

LargestError largest_error(const std::vector<float>& actual, const ReferenceCase& c,
                           const std::string& name) {
  const auto bytes = c.file.bytes("expected." + name);
  std::vector<double> expected(bytes.size() / sizeof(double));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  REQUIRE(expected.size() == actual.size());
  LargestError largest;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const double error = std::abs(double{actual[n]} - expected[n]);
    REQUIRE(error < 1e30);  // NaN fails this
    largest.error = std::max(largest.error, error);
    largest.size = std::max(largest.size, std::abs(expected[n]));
  }
  return largest;
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

TEST_CASE("every PyTorch case is met on both paths in double", "[io]") {
  const auto name = GENERATE(from_range(case_names));
  const auto path = GENERATE(Path::flash, Path::materialized);
  INFO("case " << name << (path == Path::flash ? ", flash" : ", materialized"));
  check_case<double>(name, path, 1e-11);
}

TEST_CASE("every PyTorch case but that of large scores is met on both paths in float", "[io]") {
  const auto name = GENERATE(from_range(case_names));
  const auto path = GENERATE(Path::flash, Path::materialized);
  if (name == "mha_large_scores") return;  // see the next test
  INFO("case " << name << (path == Path::flash ? ", flash" : ", materialized"));
  check_case<float>(name, path, 3e-5);
}

// Scores in the thousands: float's rounding of a score is a large relative error of its weight, for
// anybody. The measure is a plain loop's error. Where every weight is 0 or 1 the loop may be exact
// by luck, or nearly: 8 epsilon of the largest value, the rounding of a few terms, is allowed in
// any case.
TEST_CASE("PyTorch case mha_large_scores is met in float within twice a plain loop's error",
          "[io]") {
  const auto path = GENERATE(Path::flash, Path::materialized);
  INFO((path == Path::flash ? "flash" : "materialized"));
  const ReferenceCase c = data_case("mha_large_scores");
  const auto ours = reread(run_reference_case<float>(c, path));
  for (const auto& [name, values] : PlainLoop(c).results()) {
    if (name == "weights" && path == Path::flash) continue;
    INFO("tensor " << name);
    const LargestError plain = largest_error(values, c, name);
    const LargestError error = largest_error(floats(ours, name), c, name);
    const double floor = 8 * double{std::numeric_limits<float>::epsilon()} * plain.size;
    CHECK(error.error <= std::max(2 * plain.error, floor));
  }
}

// The measure itself: where scores are small, the plain loop meets PyTorch's numbers.
TEST_CASE("the plain loop in float meets PyTorch case mha_self_causal", "[io]") {
  const ReferenceCase c = data_case("mha_self_causal");
  for (const auto& [name, values] : PlainLoop(c).results()) {
    INFO("tensor " << name);
    const LargestError plain = largest_error(values, c, name);
    CHECK(plain.error <= 3e-6 * plain.size);
  }
}

TEST_CASE("every reference case among the test data is replayed", "[io]") {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(HEADWISE_TEST_DATA)) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with("mha_") || name.starts_with("sdpa_")) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  CHECK(found == case_names);
}

TEST_CASE("a comparison with PyTorch fails for a tensor that is wrong in one element", "[io]") {
  const ReferenceCase c = data_case("sdpa_plain");
  const auto right = reread(run_reference_case<double>(c, Path::flash));
  auto output = right.get<double, 4>("output");
  output(1, 2, 3, 4) += 1e-9;
  SafetensorsWriter wrong;
  wrong.add("output", output);
  const auto rows = compare_with_expected(c, reread(wrong), 1e-11);
  REQUIRE(rows.front().name == "output");
  CHECK_FALSE(*rows.front().closeness);
  CHECK(rows.front().closeness->index == std::vector<Index>{1, 2, 3, 4});
}

TEST_CASE("a run gives the same bits for 1 and 3 threads", "[io]") {
  const auto name = GENERATE("mha_self", "mha_cross_kdim_vdim", "mha_long", "sdpa_gqa");
  const auto path = GENERATE(Path::flash, Path::materialized);
  CAPTURE(name);
  const ReferenceCase c = data_case(name);
  ThreadPool pool(3);
  CHECK(run_reference_case<float>(c, path, Context{.executor = pool}).bytes() ==
        run_reference_case<float>(c, path).bytes());
}

TEST_CASE("a run's file reads back with PyTorch's names and the run's type", "[io]") {
  const auto names_of = [](const std::string& name, Path path, DType dtype) {
    const ReferenceCase c = data_case(name);
    const auto file = reread(dtype == DType::f32 ? run_reference_case<float>(c, path)
                                                 : run_reference_case<double>(c, path));
    for (const std::string& tensor : file.names()) CHECK(file.dtype(tensor) == dtype);
    return file.names();
  };
  const std::vector<std::string> weights = {"grad.in_proj_bias",
                                            "grad.in_proj_weight",
                                            "grad.out_proj.bias",
                                            "grad.out_proj.weight",
                                            "grad.query",
                                            "output",
                                            "weights"};
  CHECK(names_of("mha_self", Path::materialized, DType::f32) == weights);
  CHECK(names_of("mha_self", Path::flash, DType::f64) ==
        std::vector<std::string>(weights.begin(), weights.end() - 1));
  CHECK(names_of("mha_cross_kdim_vdim", Path::flash, DType::f32) ==
        std::vector<std::string>{"grad.in_proj_bias", "grad.k_proj_weight", "grad.key",
                                 "grad.out_proj.bias", "grad.out_proj.weight", "grad.q_proj_weight",
                                 "grad.query", "grad.v_proj_weight", "grad.value", "output"});
  CHECK(names_of("sdpa_gqa", Path::materialized, DType::f64) ==
        std::vector<std::string>{"grad.key", "grad.query", "grad.value", "logsumexp", "output",
                                 "weights"});
}

TEST_CASE("what is not supported yet is refused by name", "[io]") {
  CHECK_NOTHROW(run_reference_case<double>(small_case("softcap", "0.0"), Path::flash));
  for (const char* key : {"softcap", "alibi", "rope_theta"}) {
    const auto c = small_case(key, std::string(key) == "alibi" ? "1" : "5.0");
    CHECK_THROWS_WITH(
        run_reference_case<double>(c, Path::flash),
        ContainsSubstring("small.safetensors: " + std::string(key) + " is not supported yet"));
  }
  CHECK_THROWS_WITH(small_case("kind", "encoder_layer"),
                    ContainsSubstring("kind encoder_layer is not supported yet"));
}

TEST_CASE("a case whose metadata or tensors make no sense is refused", "[io]") {
  const std::vector<std::array<const char*, 3>> faults = {
      {"kind", "linear", "kind is \"linear\", expected mha or sdpa"},
      {"causal", "2", "causal is 2, expected 0 or 1"},
      {"causal", "yes", "causal is \"yes\", expected a number"},
      {"window", "-1", "window is -1, expected >= 0"},
      {"num_heads", "1.5", "num_heads is \"1.5\", expected a number"},
      {"num_heads", "0", "num_heads is 0, expected >= 1"},
      {"scale", "0.5x", "scale is \"0.5x\", expected a number"}};
  for (const auto& [key, value, message] : faults) {
    CHECK_THROWS_WITH(small_case(key, value), ContainsSubstring(message));
  }
  CHECK_THROWS_WITH(run_reference_case<double>(small_case("num_heads", "2"), Path::flash),
                    ContainsSubstring("expected num_heads 2"));
  CHECK_THROWS_WITH(read_reference_case(SafetensorsFile(), "empty"),
                    ContainsSubstring("not a reference case"));
}
