// What both heat maps, the terminal's and the SVG's, have in common: panels, the range of their
// values, pooling of what is too large to show, and the palette. It draws nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <locale>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/tensor/error.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::examples {

/// One matrix with its title. It keeps a copy, so that its source may go.
struct Panel {
  std::string title = {};
  Tensor<double, 2> values = {};  // [L, S]; an entry that is not finite counts as masked
};

template <std::floating_point T>
Panel make_panel(std::string title, In<T, 2> values) {
  return {std::move(title), convert<double>(values)};
}

/// A panel a head, titled "head 0", "head 1", ...
///
/// weights  [H, L, S]  in; one batch of attention weights or scores: select(weights, b)
template <std::floating_point T>
std::vector<Panel> head_panels(In<T, 3> weights, std::string_view name = "head") {
  std::vector<Panel> panels;
  for (Index h = 0; h < weights.extent(0); ++h) {
    panels.push_back(make_panel(std::string(name) + " " + std::to_string(h), select(weights, h)));
  }
  return panels;
}

/// Read from the bits: isfinite(x) is constant true under -ffast-math.
inline bool is_masked(double value) {
  constexpr std::uint64_t exponent = 0x7ff0000000000000;
  return (std::bit_cast<std::uint64_t>(value) & exponent) == exponent;
}

inline bool any_masked(std::span<const Panel> panels) {
  return std::any_of(panels.begin(), panels.end(), [](const Panel& panel) {
    return std::any_of(panel.values.begin(), panel.values.end(), is_masked);
  });
}

/// The values that the two ends of the palette stand for.
struct Range {
  double low = 0;
  double high = 1;
};

/// Smallest and largest visible value of all panels, so that equal colours mean equal values. Where
/// none is negative it starts at 0, and where all are 0, or none is visible, it is [0, 1].
inline Range common_range(std::span<const Panel> panels) {
  std::optional<Range> range;
  for (const Panel& panel : panels) {
    for (double value : panel.values) {
      if (is_masked(value)) continue;
      if (!range) range = Range{value, value};
      range->low = std::min(range->low, value);
      range->high = std::max(range->high, value);
    }
  }
  if (!range) return {};
  range->low = range->low < 0 ? range->low : 0;
  if (range->low == 0 && range->high == 0) range->high = 1;
  return *range;
}

/// Where a value lies in the range, 0 to 1; 1/2 in a range of one point.
inline double position(double value, const Range& range) {
  if (range.low >= range.high) return 0.5;
  return std::clamp((value - range.low) / (range.high - range.low), 0.0, 1.0);
}

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

/// What a cell shows that stands for several entries. The maximum keeps a lone peak and a thin
/// diagonal in sight, which the mean fades out.
enum class Pooling { max, mean };

/// Blocks of row_step x column_step entries, each as one: of its visible entries only. A block of
/// masked entries stays masked.
inline Tensor<double, 2> pool(In<double, 2> values, Index row_step, Index column_step,
                              Pooling pooling) {
  const Index rows = values.extent(0), columns = values.extent(1);
  Tensor<double, 2> cells(Shape{ceil_div(rows, row_step), ceil_div(columns, column_step)});
  for_each_index(cells.shape(), [&](const Shape<2>& cell) {
    const Index row = cell[0] * row_step, column = cell[1] * column_step;
    double sum = 0, max = 0;
    Index visible = 0;
    for (Index i = row; i < std::min(rows, row + row_step); ++i) {
      for (Index j = column; j < std::min(columns, column + column_step); ++j) {
        if (is_masked(values(i, j))) continue;
        max = visible == 0 ? values(i, j) : std::max(max, values(i, j));
        sum += values(i, j);
        ++visible;
      }
    }
    if (visible == 0) {
      cells(cell) = values(row, column);
    } else {
      cells(cell) = pooling == Pooling::max ? max : sum / static_cast<double>(visible);
    }
  });
  return cells;
}

/// " (max of 4 x 4)", or nothing where every entry has its own cell.
inline std::string pooling_note(Index row_step, Index column_step, Pooling pooling) {
  if (row_step == 1 && column_step == 1) return {};
  return std::string(pooling == Pooling::max ? " (max of " : " (mean of ") +
         std::to_string(row_step) + " x " + std::to_string(column_step) + ")";
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... that is not below `at_least`.
inline Index tick_step(Index at_least) {
  for (Index decade = 1;; decade *= 10) {
    for (Index factor : {1, 2, 5}) {
      if (factor * decade >= at_least) return factor * decade;
    }
  }
}

struct Rgb {
  int red = 0;
  int green = 0;
  int blue = 0;
};

/// The palette at t in [0, 1]: from dark violet over blue and green to pale yellow.
///
/// Lightness grows in equal steps, so that order is seen without hue: in grey print, and by
/// colour-blind readers. Five points in Oklab, joined by straight lines.
///
/// Source: Ottosson 2020, "A perceptual color space for image processing" (the two matrices).
inline Rgb palette(double t) {
  struct Point {
    double lightness, a, b;
  };
  constexpr std::array<Point, 5> points{{{0.240, 0.040, -0.070},
                                         {0.420, 0.022, -0.130},
                                         {0.600, -0.070, -0.075},
                                         {0.780, -0.135, 0.070},
                                         {0.960, -0.035, 0.130}}};
  const double at = std::clamp(t, 0.0, 1.0) * static_cast<double>(points.size() - 1);
  const auto left = std::min(static_cast<std::size_t>(at), points.size() - 2);
  const double share = at - static_cast<double>(left);
  const auto mix = [&](double Point::*part) {
    return points[left].*part + share * (points[left + 1].*part - points[left].*part);
  };
  const double lightness = mix(&Point::lightness), a = mix(&Point::a), b = mix(&Point::b);

  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
  const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
  const double s = cube(lightness - 0.0894841775 * a - 1.2914855480 * b);
  const auto encode = [](double linear) {  // the sRGB transfer curve, in 0 ... 255
    const double x = std::clamp(linear, 0.0, 1.0);
    const double y = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
    return static_cast<int>(std::lround(255 * y));
  };
  return {encode(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          encode(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          encode(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

/// Three significant digits, in any locale.
inline std::string format_number(double value) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(3);
  text << value;
  return text.str();
}

/// Bytes of the well-formed UTF-8 character at `at`; 0 for an ill-formed one or a control.
inline std::size_t character_size(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t n) {
    return at + n < text.size() ? static_cast<unsigned char>(text[at + n]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  unsigned code = lead & (0x7fu >> size);
  for (std::size_t n = 1; n < size; ++n) {
    if ((byte(n) & 0xc0u) != 0x80u) return 0;
    code = code << 6 | (byte(n) & 0x3fu);
  }
  const unsigned least = size == 2 ? 0xa0 : size == 3 ? 0x800 : 0x10000;  // 0x80-0x9f: controls
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool excluded = surrogate || code == 0xfffe || code == 0xffff;
  return lead >= 0xc2 && lead < 0xf5 && code >= least && code < 0x110000 && !excluded ? size : 0;
}

/// A title with every control character and ill-formed byte as '?': it can neither steer a terminal
/// nor break a document.
inline std::string clean_text(std::string_view text) {
  std::string clean;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = character_size(text, at);
    clean += size == 0 ? std::string_view("?") : text.substr(at, size);
    at += std::max<std::size_t>(size, 1);
  }
  return clean;
}

/// Characters of a clean text.
inline Index text_width(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; });
}

}  // namespace headwise::examples
