// The whole of headwise on one case that PyTorch wrote: both paths forward and backward, held
// against PyTorch, against finite differences and against each other; cost predicted and counted;
// and what the heads look at. Usage: demo CASE.safetensors (of self-attention)
#include <cstdio>
#include <iostream>

#include "headwise/headwise.hpp"
#include "support/reference_case.hpp"
#include "support/terminal.hpp"

using namespace headwise;

namespace {

bool all_right = true;

/// One line of the report: what was compared, how far apart, and whether that is near enough.
void line(const std::string& what, double error, double allowed) {
  const bool right = error <= allowed;
  all_right = all_right && right;
  std::printf("  %-58s %9.1e  %s %.0e\n", what.c_str(), error, right ? "<=" : "ABOVE", allowed);
}

void against_pytorch(const ReferenceCase& c, Path path, const char* name) {
  const auto bytes = examples::run_reference_case<double>(c, path).bytes();
  const auto results = SafetensorsFile::parse(bytes, "results");
  double gradients = 0;
  for (const auto& row : examples::compare_with_expected(c, results)) {
    if (!row.closeness) continue;
    if (row.name.starts_with("grad.")) {
      gradients = std::max(gradients, row.closeness->error);
    } else {
      line(std::string(name) + " against PyTorch: " + row.name, row.closeness->error, 1e-11);
    }
  }
  line(std::string(name) + " against PyTorch: worst gradient", gradients, 1e-11);
}

void against_each_other(const ReferenceCase& c) {
  const auto kept = examples::run_reference_case<double>(c, Path::materialized).bytes();
  const auto tiled = examples::run_reference_case<double>(c, Path::flash).bytes();
  const auto a = SafetensorsFile::parse(kept, "kept"), b = SafetensorsFile::parse(tiled, "tiled");
  line("flash against weights kept: output",
       close_to(b.get<double, 3>("output"), a.get<double, 3>("output"), 0).error, 1e-12);
  line("flash against weights kept: gradient of the input",
       close_to(b.get<double, 3>("grad.query"), a.get<double, 3>("grad.query"), 0).error, 1e-12);
}

/// Gradients in double against five-point differences of the readable path in long double.
void against_finite_differences(const MultiHeadAttention<double>& module, const Tensor3<double>& x,
                                const Tensor3<double>& dy, MultiHeadAttentionCall<double> call) {
  auto wide = convert<long double>(module);
  auto wide_x = convert<long double>(In<double, 3>(x));
  MultiHeadAttentionCall<long double> readable{.path = Path::materialized};
  if (call.mask.is_causal()) readable.mask.add(causal);
  if (call.mask.window() != 0) readable.mask.add(Mask::window(call.mask.window()));
  for (const PairMask& mask : call.mask.pair_masks()) readable.mask.add(mask);
  for (const Path path : {Path::materialized, Path::flash}) {
    call.path = path;
    MultiHeadAttention<double>::Cache cache;
    auto gradients = module.zero_gradients();
    module.forward(x, call, cache);
    const Tensor3<double> dx = module.backward(dy, cache, gradients);
    GradientCheck<long double> check({.stencil = Stencil::five_point});
    check.input("dx", Out<long double, 3>(wide_x), In<double, 3>(dx));
    for_each_with_gradient(
        wide.parameters(), gradients,
        [&](const std::string& name, auto p, auto dp) { check.input(name, p, dp); });
    const auto report = check.run([&] { return weighted_sum(dy, wide.forward(wide_x, readable)); });
    line(std::string(path == Path::flash ? "flash" : "weights kept") +
             " against finite differences: worst of " + std::to_string(report.inputs.size()),
         report.worst().error, 1e-9);
  }
}

void cost(const MultiHeadAttention<double>& module, const Tensor3<double>& x,
          const Tensor3<double>& dy, const MultiHeadAttentionCall<double>& call) {
  const auto shape = attention_shape(module.options(), call, x.extent(0), x.extent(1));
  const auto forward = count_flops(shape), backward = count_backward_flops(shape, Path::flash);
  const auto memory = count_memory<double>(shape, Path::flash, true);
  const auto backward_memory = count_backward_memory<double>(shape, Path::flash);
  FlopTally forward_tally, backward_tally;
  MemoryTally bytes;
  MultiHeadAttention<double>::Cache cache;
  auto gradients = module.zero_gradients();
  const Tensor3<double> y =
      module.forward(x, call, cache, {.memory = &bytes, .flops = &forward_tally});
  const auto peak = bytes.peak(), before = bytes.live();
  bytes.reset_peak();
  module.backward(dy, cache, gradients, {.memory = &bytes, .flops = &backward_tally});
  const auto backward_peak = bytes.peak() - before;
  report_flops(std::cout, "forward, flash", forward, forward_tally);
  report_flops(std::cout, "backward, flash", backward, backward_tally);
  report_memory(std::cout, "bytes of the forward call, flash", memory, peak);
  report_memory(std::cout, "bytes of the backward call, flash", backward_memory, backward_peak);
  all_right = all_right && forward_tally.useful == forward.total() &&
              backward_tally.useful == backward.total() && peak == memory.peak() &&
              backward_peak == backward_memory.peak();
}

void heat_map(const MultiHeadAttention<double>& module, const Tensor3<double>& x,
              MultiHeadAttentionCall<double> call) {
  call.path = Path::materialized;
  MultiHeadAttention<double>::Cache cache;
  module.forward(x, call, cache);
  examples::draw(std::cout, examples::head_panels(select(cache.weights, 0)),
                 {.title = "attention weights of the first sequence, a panel a head"});
}

int run(const std::string& path) {
  const auto c = read_reference_case(path);
  if (c.kind != CaseKind::mha || c.file.contains("key")) {
    raise<ArgumentError>("demo: " + path + " is not a case of self-attention");
  }
  if (c.file.contains("attn_mask")) raise<ArgumentError>("demo: " + path + " has an attn_mask");
  const auto module = from_pytorch<double>(c.file, c.num_heads);
  const auto x = c.file.get<double, 3>("query");
  const auto dy = c.file.get<double, 3>("grad_output");
  const examples::CaseMasks<double> masks(c);
  const MultiHeadAttentionCall<double> call{.mask = masks.mask()};

  std::cout << path << ": x " << x.shape() << ", " << c.num_heads << " heads"
            << (c.causal ? ", causal" : "") << ", double\n\n"
            << "error relative to the largest value\n"
            << std::flush;
  against_pytorch(c, Path::materialized, "weights kept");
  against_pytorch(c, Path::flash, "flash");
  against_each_other(c);
  against_finite_differences(module, x, dy, call);
  std::fflush(stdout);
  std::cout << '\n';
  cost(module, x, dy, call);
  std::cout << '\n';
  heat_map(module, x, call);
  std::cout << (all_right ? "\nall agree\n" : "\nNOT all agree\n");
  return all_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: demo CASE.safetensors\n");
    return 2;
  }
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "demo: %s\n", error.what());
    return 1;
  }
}
