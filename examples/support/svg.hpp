// Heat maps as an SVG picture: a panel a head in a grid, one colour bar. Needs no other program.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <locale>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "heat_map.hpp"

namespace headwise::examples {

struct SvgOptions {
  std::string title = {};
  std::string row_label = "query i";
  std::string column_label = "key j";
  Index panels_a_row = 4;
  Index max_cells = 128;  // along either axis; a larger matrix is pooled
  Pooling pooling = Pooling::max;
  std::optional<Range> range = {};      // common_range() of the panels unless given
  std::vector<std::string> names = {};  // of the entries along both axes; their numbers for none
};

/// Text for an XML document, between tags or in an attribute.
inline std::string xml_text(std::string_view text) {
  constexpr std::string_view special = "&<>\"'";
  constexpr std::array names = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"};
  std::string escaped;
  for (char c : clean_text(text)) {
    const std::size_t found = special.find(c);
    escaped += found == std::string_view::npos ? std::string(1, c) : names[found];
  }
  return escaped;
}

inline std::string hex_colour(const Rgb& rgb) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "#";
  for (int value : {rgb.red, rgb.green, rgb.blue}) {
    text += digits[static_cast<std::size_t>(value / 16)];
    text += digits[static_cast<std::size_t>(value % 16)];
  }
  return text;
}

/// A panel made ready: its cells, and how many pixels they take.
struct Plot {
  Tensor<double, 2> cells = {};
  std::string title = {};
  Index step = 1;  // entries a cell, along either axis
  Index cell = 1;  // pixels
  Index rows = 0;  // entries
  Index columns = 0;
  Index width() const { return cells.extent(1) * cell; }
  Index height() const { return cells.extent(0) * cell; }
};

inline Plot make_plot(const Panel& panel, const SvgOptions& options) {
  constexpr Index side = 256;  // pixels of the longer side, at most
  Plot plot;
  plot.rows = panel.values.extent(0);
  plot.columns = panel.values.extent(1);
  const Index longer = std::max(plot.rows, plot.columns);
  plot.step = std::max<Index>(1, ceil_div(longer, std::min(options.max_cells, side)));
  plot.cells = pool(panel.values, plot.step, plot.step, options.pooling);
  plot.cell = std::clamp<Index>(side / std::max<Index>(1, ceil_div(longer, plot.step)), 1, 32);
  plot.title = clean_text(panel.title) + pooling_note(plot.step, plot.step, options.pooling);
  return plot;
}

/// Pixels from edge to edge; every length of the picture that is not a cell's.
struct SvgLayout {
  static constexpr Index edge = 16, gap = 22, heading = 34;
  static constexpr Index panel_title = 20, ticks = 20, label = 18, digit = 7;
  static constexpr Index bar_width = 14, bar_gap = 26, bar_text = 64;
  Index row_ticks = 0;  // left of every plot
  Index slot_width = 0, slot_height = 0;
  Index columns = 1, rows = 1;
  Index bar_height = 0;
  Index top = edge;

  static Index pixels(std::string_view text, Index font) { return text_width(text) * font * 5 / 8; }

  SvgLayout(std::span<const Plot> plots, const SvgOptions& options) {
    const Index count = std::ssize(plots);
    columns = std::clamp<Index>(count, 1, options.panels_a_row);
    rows = std::max<Index>(1, ceil_div(count, columns));
    slot_width = pixels(options.column_label, 12);
    slot_height = pixels(options.row_label, 12);
    for (const Plot& plot : plots) {
      row_ticks = std::max(row_ticks, digit * std::ssize(std::to_string(plot.rows)) + 10);
      slot_width = std::max({slot_width, plot.width(), pixels(plot.title, 13)});
      slot_height = std::max(slot_height, plot.height());
    }
    bar_height = std::clamp<Index>(slot_height, 96, 256);
    if (!options.title.empty()) top += heading;
    width_ =
        std::max(bar_left() + bar_width + bar_text, edge + pixels(clean_text(options.title), 17)) +
        edge;
  }
  Index left_of(Index n) const {
    return edge + label + row_ticks + n % columns * (slot_width + row_ticks + gap);
  }
  Index top_of(Index n) const {
    return top + panel_title + n / columns * (panel_title + slot_height + ticks + label + gap / 2);
  }
  Index bar_left() const { return left_of(columns - 1) + slot_width + bar_gap; }
  Index width() const { return width_; }
  Index height() const {
    const Index grid = top_of((rows - 1) * columns) + slot_height + ticks + label;
    return std::max(grid, top_of(0) + bar_height + 40) + edge / 2;
  }

 private:
  Index width_ = 0;
};

/// Colours follow the reader's light or dark setting; the card beneath is painted too, so that
/// letters have their contrast on any page, also where a viewer knows only the first half.
inline void write_svg_head(std::ostream& out, const SvgLayout& layout, const SvgOptions& options) {
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << layout.width() << "\" height=\""
      << layout.height() << "\" viewBox=\"0 0 " << layout.width() << ' ' << layout.height()
      << "\" role=\"img\">\n<title>" << xml_text(options.title.empty() ? "heat map" : options.title)
      << "</title>\n"
      << R"svg(<style>
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d0d7de; }
.frame, .tick { fill: none; stroke: #6e7781; }
.hatch { fill: #eceff2; } .hatch-line { stroke: #b1b8c0; }
.heading { font-size: 17px; font-weight: 600; }
.title { font-size: 13px; font-weight: 600; }
.label { font-size: 12px; }
.number { font-size: 11px; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.card { fill: #161b22; stroke: #30363d; }
.frame, .tick { stroke: #8b949e; }
.hatch { fill: #262c34; } .hatch-line { stroke: #565e68; }
}
</style>
<defs>
<pattern id="masked" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect class="hatch" width="6" height="6"/><path class="hatch-line" d="M0 0V6" stroke-width="2"/>
</pattern>
<linearGradient id="palette" x1="0" y1="1" x2="0" y2="0">
)svg";
  for (int n = 0; n <= 16; ++n) {
    out << "<stop offset=\"" << n / 16.0 << "\" stop-color=\"" << hex_colour(palette(n / 16.0))
        << "\"/>\n";
  }
  out << "</linearGradient>\n</defs>\n<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\""
      << layout.width() - 1 << "\" height=\"" << layout.height() - 1 << "\" rx=\"8\"/>\n";
  if (!options.title.empty()) {
    out << "<text class=\"heading\" x=\"" << SvgLayout::edge << "\" y=\"36\">"
        << xml_text(options.title) << "</text>\n";
  }
}

/// The cells as one path a colour, neighbours in a row joined; 128 colours are finer than the eye.
inline void write_svg_cells(std::ostream& out, const Plot& plot, const Range& range) {
  constexpr Index levels = 128;
  std::array<std::string, levels + 1> paths;  // the last holds the masked cells
  const auto level = [&](Index i, Index j) {
    const double value = plot.cells(i, j);
    return is_masked(value) ? levels : Index{std::lround(position(value, range) * (levels - 1))};
  };
  for (Index i = 0; i < plot.cells.extent(0); ++i) {
    for (Index j = 0; j < plot.cells.extent(1);) {
      const Index first = j, same = level(i, j);
      while (j < plot.cells.extent(1) && level(i, j) == same) ++j;
      const std::string length = std::to_string((j - first) * plot.cell);
      std::string& path = paths[static_cast<std::size_t>(same)];
      path += 'M';  // by itself: at -O3 g++ 12 sees copies of 2^63 bytes in "M" + std::string
      path += std::to_string(first * plot.cell) + " " + std::to_string(i * plot.cell) + "h" +
              length + "v" + std::to_string(plot.cell) + "h-" + length + "z";
    }
  }
  for (std::size_t n = 0; n < paths.size(); ++n) {
    if (paths[n].empty()) continue;
    out << "<path fill=\""
        << (n == levels ? "url(#masked)"
                        : hex_colour(palette(static_cast<double>(n) / (levels - 1))))
        << "\" shape-rendering=\"crispEdges\" d=\"" << paths[n] << "\"/>\n";
  }
}

/// One plot with its title, frame and ticks, at the origin.
inline void write_svg_plot(std::ostream& out, const Plot& plot, const Range& range,
                           std::span<const std::string> names) {
  out << "<text class=\"title\" x=\"0\" y=\"-8\">" << xml_text(plot.title) << "</text>\n";
  write_svg_cells(out, plot, range);
  out << "<rect class=\"frame\" x=\"-0.5\" y=\"-0.5\" width=\"" << plot.width() + 1
      << "\" height=\"" << plot.height() + 1 << "\"/>\n";
  const auto middle_of = [&](Index entry) {
    return static_cast<double>(entry / plot.step * plot.cell) + static_cast<double>(plot.cell) / 2;
  };
  const Index label_width = SvgLayout::digit * std::ssize(std::to_string(plot.columns)) + 8;
  const Index step =
      names.empty() ? tick_step(ceil_div(label_width * plot.step, plot.cell)) : plot.step;
  const auto name_of = [&](Index n) {
    const auto at = static_cast<std::size_t>(n);
    return at < names.size() ? xml_text(names[at]) : std::to_string(n);
  };
  for (Index j = 0; j < plot.columns; j += step) {
    out << "<path class=\"tick\" d=\"M" << middle_of(j) << ' ' << plot.height() << "v4\"/>"
        << "<text class=\"number middle\" x=\"" << middle_of(j) << "\" y=\"" << plot.height() + 15
        << "\">" << name_of(j) << "</text>\n";
  }
  for (Index i = 0; i < plot.rows; i += step) {
    out << "<path class=\"tick\" d=\"M0 " << middle_of(i) << "h-4\"/>"
        << "<text class=\"number end\" x=\"-7\" y=\"" << middle_of(i) + 4 << "\">" << name_of(i)
        << "</text>\n";
  }
}

/// The palette with five numbers, and how a masked entry looks.
inline void write_svg_bar(std::ostream& out, Index height, const Range& range, bool masked) {
  constexpr Index width = SvgLayout::bar_width;
  out << "<rect class=\"frame\" style=\"fill: url(#palette)\" x=\"-0.5\" y=\"-0.5\" width=\""
      << width + 1 << "\" height=\"" << height + 1 << "\"/>\n";
  for (int n = 0; n <= 4; ++n) {
    const double y = static_cast<double>(height) * (4 - n) / 4;
    const double value = range.low * ((4 - n) / 4.0) + range.high * (n / 4.0);
    out << "<path class=\"tick\" d=\"M" << width << ' ' << y << "h4\"/><text class=\"number\" x=\""
        << width + 8 << "\" y=\"" << y + 4 << "\">" << format_number(value) << "</text>\n";
  }
  if (masked) {
    out << "<rect class=\"frame\" style=\"fill: url(#masked)\" x=\"-0.5\" y=\""
        << static_cast<double>(height) + 18.5 << "\" width=\"" << width + 1 << "\" height=\""
        << width + 1 << "\"/><text class=\"number\" x=\"" << width + 8 << "\" y=\"" << height + 30
        << "\">masked</text>\n";
  }
}

/// Writes the panels as one picture. The same panels give the same bytes, in any locale.
///
/// Throws ArgumentError unless panels_a_row >= 1, max_cells >= 1 and range.low <= range.high.
inline void write_svg(std::ostream& out, std::span<const Panel> panels,
                      const SvgOptions& options = {}) {
  const Range range = options.range ? *options.range : common_range(panels);
  require(options.panels_a_row >= 1, "write_svg", "panels_a_row must be at least 1");
  require(options.max_cells >= 1, "write_svg", "max_cells must be at least 1");
  require(range.low <= range.high, "write_svg", "range.low must not exceed range.high");
  std::vector<Plot> plots;
  for (const Panel& panel : panels) plots.push_back(make_plot(panel, options));
  const SvgLayout layout(plots, options);

  std::ostringstream text;
  text.imbue(std::locale::classic());
  write_svg_head(text, layout, options);
  const auto group = [&](Index left, Index top) -> std::ostream& {
    return text << "<g transform=\"translate(" << left << ' ' << top << ")\">\n";
  };
  const Index count = std::ssize(plots);
  for (Index n = 0; n < count; ++n) {
    const Plot& plot = plots[static_cast<std::size_t>(n)];
    group(layout.left_of(n), layout.top_of(n));
    write_svg_plot(text, plot, range, options.names);
    if (n % layout.columns == 0) {  // the outer panels carry the axes' names
      const Index x = -layout.row_ticks - 4;
      const Index y = std::max(plot.height(), SvgLayout::pixels(options.row_label, 12)) / 2;
      text << "<text class=\"label middle\" transform=\"translate(" << x << ' ' << y
           << ") rotate(-90)\">" << xml_text(options.row_label) << "</text>\n";
    }
    if (n + layout.columns >= count) {
      const Index x = std::max(plot.width(), SvgLayout::pixels(options.column_label, 12)) / 2;
      text << "<text class=\"label middle\" x=\"" << x << "\" y=\"" << plot.height() + 32 << "\">"
           << xml_text(options.column_label) << "</text>\n";
    }
    text << "</g>\n";
  }
  group(layout.bar_left(), layout.top_of(0));
  write_svg_bar(text, layout.bar_height, range, any_masked(panels));
  text << "</g>\n</svg>\n";
  out << text.str();
}

/// The same, to a file. Throws FileError, with the path, where it cannot be written.
inline void write_svg(const std::string& path, std::span<const Panel> panels,
                      const SvgOptions& options = {}) {
  std::ostringstream text;
  write_svg(text, panels, options);
  std::ofstream file(path, std::ios::binary);
  file << text.str();
  file.close();
  if (!file) raise<FileError>("write_svg: cannot write " + path);
}

}  // namespace headwise::examples
