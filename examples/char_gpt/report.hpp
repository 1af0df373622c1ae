// What a training ends with: lines to read, one line of JSON, a picture of the loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "../support/svg.hpp"
#include "training.hpp"

namespace char_gpt {

/// The figures of a run. Of a run without steps, losses and times are NaN.
struct Report {
  double held_out_loss = 0;
  double last_train_loss = 0;
  double step_s = 0;  // the median
  Index parameters = 0, steps = 0, threads = 0;
  double tokens_s = std::nan("");  // of the sample; NaN without one
};

/// The middle one, the upper of two; NaN of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A number as JSON has it: null where it is none.
inline std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(9);
  text << value;
  return text.str();
}

inline std::string json_line(const Report& r) {
  return "{\"held_out_loss\": " + json_number(r.held_out_loss) +
         ", \"last_train_loss\": " + json_number(r.last_train_loss) +
         ", \"step_s\": " + json_number(r.step_s) +
         ", \"parameters\": " + std::to_string(r.parameters) +
         ", \"steps\": " + std::to_string(r.steps) + ", \"threads\": " + std::to_string(r.threads) +
         ", \"tokens_s\": " + json_number(r.tokens_s) + "}";
}

inline std::string readable(const Report& r) {
  char text[256];
  std::string all;
  std::snprintf(text, sizeof text, "%td parameters, %td steps on %td threads", r.parameters,
                r.steps, r.threads);
  all += text;
  if (std::isfinite(r.step_s)) {  // else no step was taken in this run
    std::snprintf(text, sizeof text, ", %.2f ms a step\nloss of the last batch %.4f",
                  1e3 * r.step_s, r.last_train_loss);
    all += text;
  }
  std::snprintf(text, sizeof text, "\nloss of what is held out %.4f nats a character\n",
                r.held_out_loss);
  return all + text;
}

/// The losses as the points of a line in a picture of this size: means of as many neighbours as
/// share a pixel.
inline std::string loss_points(std::span<const double> losses, double width, double height,
                               double most) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(5);
  const std::size_t pixels = std::min(losses.size(), static_cast<std::size_t>(width));
  for (std::size_t n = 0; n < pixels; ++n) {
    const std::size_t begin = n * losses.size() / pixels, end = (n + 1) * losses.size() / pixels;
    double sum = 0;
    for (const double loss : losses.subspan(begin, end - begin)) sum += loss;
    const double mean = sum / static_cast<double>(end - begin);
    const double x = pixels < 2 ? 0 : static_cast<double>(n) / static_cast<double>(pixels - 1);
    text << (n == 0 ? "" : " ") << x * width << ',' << height * (1 - mean / most);
  }
  return text.str();
}

/// The loss of each step of this run as a line, and what is held out as a dashed one. `first` is
/// the step that the run began with.
inline std::string loss_svg(std::span<const double> losses, Index first, double held_out) {
  constexpr double width = 640, height = 320;
  double most = std::isfinite(held_out) ? held_out : 0;
  for (const double loss : losses) most = std::max(most, loss);
  if (!(most > 0)) most = 1;
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(5);
  out << R"svg(<svg xmlns="http://www.w3.org/2000/svg" width="760" height="410" viewBox="0 0 760 410" role="img">
<title>training loss</title>
<style>
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d0d7de; } .frame { fill: none; stroke: #6e7781; }
.loss { fill: none; stroke: #0969da; stroke-width: 1.5; } .rest { stroke: #bc4c00; stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .card { fill: #161b22; stroke: #30363d; } .frame { stroke: #8b949e; }
.loss { stroke: #58a6ff; } .rest { stroke: #f0883e; }
}
</style>
<rect class="card" x="0.5" y="0.5" width="759" height="409" rx="8"/>
<g transform="translate(70 30)">
<rect class="frame" width="640" height="320"/>
)svg";
  for (int n = 0; n <= 4; ++n) {
    const double y = height * (4 - n) / 4;
    out << "<text x=\"-8\" y=\"" << y + 4 << "\" text-anchor=\"end\">"
        << headwise::examples::format_number(most * n / 4) << "</text>\n";
  }
  out << "<text x=\"0\" y=\"340\">" << first << "</text><text x=\"640\" y=\"340\" "
      << "text-anchor=\"end\">" << first + std::ssize(losses) << "</text>\n"
      << "<text x=\"320\" y=\"355\" text-anchor=\"middle\">step</text>\n"
      << "<text x=\"0\" y=\"-10\">loss, nats a character</text>\n"
      << "<polyline class=\"loss\" points=\"" << loss_points(losses, width, height, most)
      << "\"/>\n";
  if (std::isfinite(held_out)) {
    const double y = height * (1 - held_out / most);
    out << "<path class=\"rest\" d=\"M0 " << y << "h640\"/><text x=\"632\" y=\"" << y - 6
        << "\" text-anchor=\"end\">held out " << headwise::examples::format_number(held_out)
        << "</text>\n";
  }
  out << "</g>\n</svg>\n";
  return out.str();
}

/// Throws headwise::FileError where it cannot be written.
inline void write_loss_svg(const std::string& path, std::span<const double> losses, Index first,
                           double held_out) {
  std::ofstream file(path, std::ios::binary);
  file << loss_svg(losses, first, held_out);
  file.close();
  if (!file) headwise::raise<headwise::FileError>("cannot write " + path);
}

}  // namespace char_gpt
