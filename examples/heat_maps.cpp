// Scores, mask and weights of four heads as heat maps: in the terminal, and as heat_maps.svg (or
// the file that is named as the first argument).
#include <iostream>
#include <vector>

#include "headwise/headwise.hpp"
#include "support/svg.hpp"
#include "support/terminal.hpp"

using namespace headwise;

int main(int argc, char** argv) {
  const MultiHeadAttention<double> attention({.d_model = 16, .num_heads = 4, .seed = 42});
  Tensor3<double> x({1, 12, 16});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = philox_normal({3, 1}, static_cast<std::uint64_t>(n));
  }
  // A trace keeps every intermediate by its textbook name: A are the scores, AS the weights.
  Trace trace;
  attention.forward(x, {.mask = {causal, Mask::window(8)}}, {.trace = &trace});
  const auto scores = select(trace.view<4>("A"), 0);  // [H, L, S], -infinity where masked
  Tensor3<double> weights = contiguous(select(trace.view<4>("AS"), 0));  // [H, L, S]
  Tensor2<double> mask({12, 12});
  for_each_index(weights.shape(), [&](const Shape<3>& at) {
    if (scores(at) < -1e300) weights(at) = scores(at);  // drawn as masked, not as 0
    if (at[0] == 0) mask(at[1], at[2]) = scores(at) < -1e300 ? 0 : 1;
  });
  const std::vector<examples::Panel> mask_panel = {examples::make_panel("mask", mask)};
  std::vector<examples::Panel> score_panels = examples::head_panels(scores);
  std::vector<examples::Panel> weight_panels = examples::head_panels(In<double, 3>(weights));
  examples::draw(std::cout, mask_panel, {.title = "causal, window 8: 1 is visible"});
  examples::draw(std::cout, score_panels, {.title = "scores"});
  examples::draw(std::cout, weight_panels, {.title = "weights"});

  const std::string path = argc > 1 ? argv[1] : "heat_maps.svg";
  examples::write_svg(path, weight_panels, {.title = "attention weights, causal, window 8"});
  std::cout << "written: " << path << '\n';
}
