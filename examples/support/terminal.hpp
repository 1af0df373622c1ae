// Heat maps as text: colour blocks on a terminal, characters in a log.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "heat_map.hpp"

namespace headwise::examples {

enum class Colour {
  automatic,  // as terminal_colour() finds
  none,       // the characters " .:-=+*#%@", a masked entry as '/'
  ansi256,
  ansi24bit
};

struct TerminalOptions {
  std::string title = {};
  Colour colour = Colour::automatic;
  Index columns = 80;
  Index max_cells = 64;  // along either axis; a larger matrix is pooled
  Pooling pooling = Pooling::max;
  std::optional<Range> range = {};  // common_range() of the panels unless given
};

/// What the stream can show: no colour unless it is the process's own terminal, nor where NO_COLOR
/// (no-color.org) or TERM=dumb asks for none.
inline Colour terminal_colour(const std::ostream& out) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  const bool standard_out = out.rdbuf() == std::cout.rdbuf();
  const bool standard_error = out.rdbuf() == std::cerr.rdbuf() || out.rdbuf() == std::clog.rdbuf();
  const bool terminal = (standard_out && isatty(STDOUT_FILENO) == 1) ||
                        (standard_error && isatty(STDERR_FILENO) == 1);
  if (!terminal || !variable("NO_COLOR").empty() || variable("TERM") == "dumb") {
    return Colour::none;
  }
  const std::string_view depth = variable("COLORTERM");
  return depth == "truecolor" || depth == "24bit" ? Colour::ansi24bit : Colour::ansi256;
}

/// The arguments of an SGR sequence that set the palette's colour at t.
///
/// With 256 colours the nearest ones make a poor scale: red and blue steps out of order. These
/// eleven of the 6 x 6 x 6 cube go the palette's way, each lighter than the one before.
inline std::string sgr(double t, bool background, Colour colour) {
  const std::string plane = background ? "48;" : "38;";
  if (colour == Colour::ansi24bit) {
    const Rgb rgb = palette(t);
    return plane + "2;" + std::to_string(rgb.red) + ";" + std::to_string(rgb.green) + ";" +
           std::to_string(rgb.blue);
  }
  constexpr std::array<int, 11> cube{17, 18, 19, 25, 31, 37, 43, 114, 150, 192, 228};
  const auto n = std::lround(t * static_cast<double>(cube.size() - 1));
  return plane + "5;" + std::to_string(cube[static_cast<std::size_t>(n)]);
}

/// A line that grows from the left and knows how many columns it takes.
class Line {
 public:
  void put(std::string_view text, std::string_view style = {}) {
    if (style != style_) {
      text_ += "\x1b[0";
      if (!style.empty()) text_ += ';', text_ += style;
      text_ += "m";
      style_ = style;
    }
    text_ += text;
    width_ += text_width(text);
  }
  void fill_to(Index width) {
    put(std::string(static_cast<std::size_t>(std::max<Index>(0, width - width_)), ' '));
  }
  void append(Line other) {
    put({});
    other.put({});
    text_ += other.text_;
    width_ += other.width_;
  }

  Index width() const { return width_; }
  std::string text() && {
    put({});
    return text_.substr(0, text_.find_last_not_of(' ') + 1);
  }

 private:
  std::string text_;
  std::string style_;
  Index width_ = 0;
};

/// Draws cells of one range in one colour depth.
struct Painter {
  Range range = {};
  Colour colour = Colour::none;
  static constexpr std::string_view ramp = " .:-=+*#%@";
  static constexpr std::string_view dim = "2";

  bool plain() const { return colour == Colour::none; }

  char character(double value) const {
    if (is_masked(value)) return '/';
    const double last = static_cast<double>(ramp.size() - 1);
    return ramp[static_cast<std::size_t>(std::lround(position(value, range) * last))];
  }
  std::string style(double value, bool background) const {
    return sgr(position(value, range), background, colour);
  }

  /// A cell two columns wide, which looks square.
  void wide(Line& line, double value) const {
    if (plain()) {
      line.put(is_masked(value) ? std::string("/ ") : std::string(2, character(value)));
    } else if (is_masked(value)) {
      line.put("\u00b7 ", dim);
    } else {
      line.put("  ", style(value, true));
    }
  }

  /// Two cells, one above the other, in one column.
  void halves(Line& line, double upper, double lower) const {
    if (is_masked(upper) && is_masked(lower)) {
      line.put("\u00b7", dim);
    } else if (is_masked(upper)) {
      line.put("\u2584", style(lower, false));
    } else if (is_masked(lower)) {
      line.put("\u2580", style(upper, false));
    } else {
      line.put("\u2580", style(upper, false) + ";" + style(lower, true));
    }
  }
};

/// One panel as lines: title, key numbers, then the rows with their query numbers.
///
/// Two columns a cell where that fits, else one: then a line holds two rows of cells as half
/// blocks, or, without colour, one row that pools twice as many queries.
inline std::vector<Line> panel_lines(const Panel& panel, const Painter& painter,
                                     const TerminalOptions& options) {
  const Index rows = panel.values.extent(0), columns = panel.values.extent(1);
  const Index margin = std::ssize(std::to_string(std::max<Index>(rows - 1, 0))) + 1;
  const Index room = std::max<Index>(options.columns - margin, 1);
  Index step = std::max<Index>(1, ceil_div(std::max(rows, columns), options.max_cells));
  const bool wide = 2 * ceil_div(columns, step) <= room;
  if (!wide) step = std::max(step, ceil_div(columns, room));
  const Index row_step = !wide && painter.plain() ? 2 * step : step;
  const Index lines_a_row = !wide && !painter.plain() ? 2 : 1;
  const Index cell_width = wide ? 2 : 1;
  const Tensor<double, 2> cells = pool(panel.values, row_step, step, options.pooling);

  std::vector<Line> lines(2);
  lines[0].fill_to(margin);
  lines[0].put(clean_text(panel.title) + pooling_note(row_step, step, options.pooling));

  const Index label_width = std::ssize(std::to_string(columns)) + 1;
  const Index key_step = tick_step(ceil_div(label_width * step, cell_width));
  for (Index j = 0; j < columns; j += key_step) {
    lines[1].fill_to(margin + j / step * cell_width);
    lines[1].put(std::to_string(j));
  }
  const Index query_step = rows <= 16 ? 1 : tick_step(2 * row_step * lines_a_row);
  for (Index i = 0; i < cells.extent(0); i += lines_a_row) {
    Line& line = lines.emplace_back();
    const Index first = i * row_step;  // the line's first query
    const Index tick = ceil_div(first, query_step) * query_step;
    if (tick < std::min(rows, first + row_step * lines_a_row)) {
      const std::string label = std::to_string(tick);
      line.fill_to(margin - 1 - std::ssize(label));
      line.put(label);
    }
    line.fill_to(margin);
    for (Index j = 0; j < cells.extent(1); ++j) {
      if (wide) {
        painter.wide(line, cells(i, j));
      } else if (painter.plain()) {
        line.put(std::string(1, painter.character(cells(i, j))));
      } else if (i + 1 < cells.extent(0)) {
        painter.halves(line, cells(i, j), cells(i + 1, j));
      } else if (is_masked(cells(i, j))) {
        line.put("\u00b7", Painter::dim);
      } else {
        line.put("\u2580", painter.style(cells(i, j), false));
      }
    }
  }
  return lines;
}

/// The scale: smallest value, the palette, largest value, and how a masked entry looks.
inline Line colour_bar(const Painter& painter, bool masked) {
  Line line;
  line.put(format_number(painter.range.low) + " ");
  if (painter.plain()) {
    line.put("[" + std::string(Painter::ramp) + "]");
  } else {
    constexpr int width = 24;
    for (int n = 0; n < width; ++n) {
      line.put(" ", sgr(n / double{width - 1}, true, painter.colour));
    }
  }
  line.put(" " + format_number(painter.range.high));
  if (masked) {
    line.put("   ");
    painter.plain() ? line.put("/") : line.put("\u00b7", Painter::dim);
    line.put(" masked");
  }
  line.put("   query i down, key j across");
  return line;
}

/// Draws the panels, as many side by side as the width allows, over one colour bar.
///
/// Throws ArgumentError unless max_cells >= 1 and range.low <= range.high.
inline void draw(std::ostream& out, std::span<const Panel> panels,
                 const TerminalOptions& options = {}) {
  const Range range = options.range ? *options.range : common_range(panels);
  require(options.max_cells >= 1, "draw", "max_cells must be at least 1");
  require(range.low <= range.high, "draw", "range.low must not exceed range.high");
  const Painter painter{
      range, options.colour == Colour::automatic ? terminal_colour(out) : options.colour};
  constexpr Index gap = 3;

  if (!options.title.empty()) out << clean_text(options.title) << "\n\n";
  for (std::size_t first = 0; first < panels.size();) {
    std::vector<Line> band;
    Index width = 0;
    std::size_t next = first;
    for (; next < panels.size(); ++next) {
      std::vector<Line> lines = panel_lines(panels[next], painter, options);
      const Index left = width == 0 ? 0 : width + gap;
      Index right = left;
      for (const Line& line : lines) right = std::max(right, left + line.width());
      if (next > first && right > options.columns) break;
      if (band.size() < lines.size()) band.resize(lines.size());
      for (std::size_t n = 0; n < lines.size(); ++n) {
        band[n].fill_to(left);
        band[n].append(std::move(lines[n]));
      }
      width = right;
    }
    for (Line& line : band) out << std::move(line).text() << '\n';
    out << '\n';
    first = next;
  }
  out << colour_bar(painter, any_masked(panels)).text() << '\n';
}

}  // namespace headwise::examples
