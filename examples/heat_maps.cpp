// Scores, mask and weights of four heads as heat maps: in the terminal, and as scores.svg, mask.svg
// and weights.svg in the folder that is named as the first argument, or in this one.
#include <iostream>
#include <string>
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
  const std::vector<examples::Panel> score_panels = examples::head_panels(scores);
  const std::vector<examples::Panel> weight_panels = examples::head_panels(In<double, 3>(weights));
  struct Picture {
    std::string name, title;
    const std::vector<examples::Panel>& panels;
  };
  const std::string folder = argc > 1 ? std::string(argv[1]) + "/" : "";
  for (const Picture& picture :
       {Picture{"mask", "causal, window 8: 1 is visible", mask_panel},
        Picture{"scores", "scores, scaled", score_panels},
        Picture{"weights", "attention weights, causal, window 8", weight_panels}}) {
    const std::string path = folder + picture.name + ".svg";
    examples::draw(std::cout, picture.panels, {.title = picture.title});
    examples::write_svg(path, picture.panels, {.title = picture.title});
    std::cout << "written: " << path << "\n\n";
  }
}
