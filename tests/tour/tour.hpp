// A tour of the library: ops, kernels and modules once, forward and backward, float and double,
// on both paths, with every mask, dead rows and values that are not finite. Including files are
// compiled in ways in which a library may be compiled (-ffast-math, -mavx2, sanitizers, without
// exceptions), and their results are compared (compare.hpp) with those of a plain build, which the
// rest of the tests hold to be right. No test framework, no files, no streams.
#pragma once

#include "headwise/runtime/thread_pool.hpp"
#include "tour/attention.hpp"
#include "tour/module.hpp"
#include "tour/ops.hpp"
#include "tour/tape.hpp"
#include "tour/tokens.hpp"

namespace headwise_tests {
namespace {  // whoever includes it has a copy of its own

template <class T>
void visit_all(const std::string& type, const Context& context, std::vector<Named>& results) {
  visit_pair_masks<T>(type, context, results);
  visit_biases<T>(type, context, results);
  visit_sizes<T>(type, context, results);
  visit_softmax<T>(type, context, results);
  visit_dropout<T>(type, context, results);
  visit_layer_norm<T>(type, context, results);
  visit_rms_norm<T>(type, context, results);
  visit_activations<T>(type, context, results);
  visit_linear<T>(type, context, results);
  visit_embedding<T>(type, context, results);
  visit_cross_entropy<T>(type, context, results);
  visit_rotary<T>(type, context, results);
  visit_decoding<T>(type, context, results);
  visit_elementwise<T>(type, context, results);
  for (const Path path : {Path::materialized, Path::flash}) {
    const std::string name = type + (path == Path::flash ? "flash, " : "weights kept, ");
    visit_self_attention<T>(name, path, context, results);
    visit_cross_attention<T>(name, path, context, results);
    visit_block<T>(name, path, context, results);
    visit_decoder<T>(name, path, context, results);
    visit_tape<T>(name, path, context, results);
  }
  visit_module_tools<T>(type, context, results);
}

/// float on a pool of threads, double on the calling one.
inline std::vector<Named> tour() {
  std::vector<Named> results;
  ThreadPool pool(3);
  visit_all<float>("float, ", {.executor = pool}, results);
  visit_all<double>("double, ", {}, results);
  return results;
}

}  // namespace
}  // namespace headwise_tests
