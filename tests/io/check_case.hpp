// Reference cases of tests/data, run and held against what PyTorch computed.
#pragma once

#include <filesystem>
#include <string>

#include "../../examples/support/reference_case.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "io/pytorch_modules.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise::examples;

inline std::string data_path(const std::string& name) {
  return std::string(HEADWISE_TEST_DATA "/") + name + ".safetensors";
}

inline ReferenceCase data_case(const std::string& name) {
  return read_reference_case(std::filesystem::path(data_path(name)));
}

/// Every expected tensor is there and within the tolerance; weights are the materialized path's,
/// and left out of cases that would be large.
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
      CHECK(row.name == "weights");
      CHECK(c.file.contains("expected.weights") == (path == Path::flash));
    }
  }
  CHECK(compared >= 4);
}

/// A run has the same bits for 1 and 3 threads.
inline void check_threads(const std::string& name, Path path) {
  const ReferenceCase c = data_case(name);
  ThreadPool pool(3);
  CHECK(run_reference_case<float>(c, path, Context{.executor = pool}).bytes() ==
        run_reference_case<float>(c, path).bytes());
}

}  // namespace headwise_tests
