// Heat maps: what they show of a matrix, and that no title or entry can break their output.
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

#include "../../examples/support/svg.hpp"
#include "../../examples/support/terminal.hpp"
#include "../support/catch.hpp"

namespace examples_heat_map {

namespace {

using namespace headwise;
using namespace headwise::examples;

constexpr double hidden = -std::numeric_limits<double>::infinity();

std::vector<Panel> causal_panel() {
  const Tensor<double, 2> p(Shape{2, 2}, {1.0, hidden, 0.25, 0.75});
  return {make_panel("head 0", p)};
}

std::string drawn(std::span<const Panel> panels, const TerminalOptions& options = {}) {
  std::ostringstream out;
  draw(out, panels, options);
  return out.str();
}

std::string svg(std::span<const Panel> panels, const SvgOptions& options = {}) {
  std::ostringstream out;
  write_svg(out, panels, options);
  return out.str();
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a heat map into a stream that is no terminal is plain characters") {
  CHECK(drawn(causal_panel()) ==
        "  head 0\n"
        "  0 1\n"
        "0 @@/\n"
        "1 ::##\n"
        "\n"
        "0 [ .:-=+*#%@] 1   / masked   query i down, key j across\n");
}

TEST_CASE("a coloured heat map paints each visible cell and ends every line without colour") {
  const auto panels = causal_panel();
  for (Colour colour : {Colour::ansi24bit, Colour::ansi256}) {
    std::istringstream lines(drawn(panels, {.colour = colour}));
    for (std::string line; std::getline(lines, line);) {
      const auto last = line.rfind("\x1b[");
      CAPTURE(line);
      CHECK((last == std::string::npos || line.compare(last, 4, "\x1b[0m") == 0));
    }
    CHECK(contains(drawn(panels, {.colour = colour}), "\u00b7"));
  }
}

TEST_CASE("no line of a heat map exceeds the columns it may take") {
  for (Index keys : {1, 7, 35, 39, 40, 64, 65, 200}) {
    const Tensor<float, 3> p(Shape{3, 5, keys});
    for (Colour colour : {Colour::none, Colour::ansi24bit}) {
      std::istringstream lines(drawn(head_panels(p), {.colour = colour}));
      for (std::string line; std::getline(lines, line);) {
        Index width = 0;
        bool escape = false;
        for (char c : line) {
          if (c == '\x1b') escape = true;
          if (!escape && (static_cast<unsigned char>(c) & 0xc0u) != 0x80u) ++width;
          if (c == 'm') escape = false;
        }
        CAPTURE(keys, line);
        CHECK(width <= 80);
      }
    }
  }
}

TEST_CASE("pooling takes visible entries only, and a block without any stays masked") {
  const Tensor<double, 2> x(Shape{2, 5}, {-1.0, hidden, hidden, hidden, 4.0,  //
                                          -3.0, hidden, hidden, hidden, 6.0});
  const auto max = pool(x, 2, 2, Pooling::max);
  const auto mean = pool(x, 2, 2, Pooling::mean);
  REQUIRE(max.shape() == Shape{1, 3});
  CHECK(max(0, 0) == -1.0);
  CHECK(mean(0, 0) == -2.0);
  CHECK(is_masked(max(0, 1)));
  CHECK(is_masked(mean(0, 1)));
  CHECK(max(0, 2) == 6.0);
  CHECK(mean(0, 2) == 5.0);
}

TEST_CASE("the range of a heat map ignores masked entries and starts at 0 for weights") {
  const auto panels = causal_panel();
  CHECK(common_range(panels).low == 0.0);
  CHECK(common_range(panels).high == 1.0);
  const Tensor<double, 2> scores(Shape{1, 3}, {-2.0, 5.0, std::nan("")});
  const std::vector<Panel> signed_panel{make_panel("s", scores)};
  CHECK(common_range(signed_panel).low == -2.0);
  CHECK(common_range(signed_panel).high == 5.0);
}

TEST_CASE("the palette grows lighter at every step") {
  double before = -1;
  for (int n = 0; n <= 64; ++n) {
    const Rgb rgb = palette(n / 64.0);
    const auto linear = [](int value) { return std::pow(value / 255.0, 2.2); };
    const double luminance =
        0.2126 * linear(rgb.red) + 0.7152 * linear(rgb.green) + 0.0722 * linear(rgb.blue);
    CAPTURE(n);
    CHECK(luminance > before);
    before = luminance;
  }
}

TEST_CASE("an SVG heat map escapes its titles and hatches the masked cells") {
  const Tensor<double, 2> p(Shape{2, 2}, {1.0, hidden, 0.25, 0.75});
  const std::vector<Panel> panels{make_panel("a < b & \"c\" \x1b\xff", p)};
  const std::string text = svg(panels, {.title = "<script>"});
  CHECK(contains(text, "a &lt; b &amp; &quot;c&quot; ??"));
  CHECK(!contains(text, "<script>"));
  CHECK(occurrences(text, "fill=\"url(#masked)\"") == 1);
  CHECK(contains(text, ">query i<"));
  CHECK(contains(text, ">key j<"));
}

TEST_CASE("an SVG heat map has the same bytes on every call and in every locale") {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
  };
  const auto panels = causal_panel();
  const std::string text = svg(panels);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const std::string again = svg(panels);
  std::locale::global(before);
  CHECK(text == again);
}

TEST_CASE("a heat map of nothing draws nothing and does not fail") {
  const Tensor<double, 2> no_queries(Shape{0, 3}), no_keys(Shape{3, 0});
  const std::vector<Panel> panels{make_panel("a", no_queries), make_panel("b", no_keys)};
  CHECK_NOTHROW(drawn(panels));
  CHECK_NOTHROW(drawn(panels, {.colour = Colour::ansi24bit}));
  CHECK_NOTHROW(svg(panels));
  CHECK_NOTHROW(svg({}));
}

TEST_CASE("a heat map refuses options that have no meaning, and a path it cannot write") {
  const auto panels = causal_panel();
  CHECK_THROWS_AS(drawn(panels, {.max_cells = 0}), ArgumentError);
  CHECK_THROWS_AS(drawn(panels, {.range = Range{1, 0}}), ArgumentError);
  CHECK_THROWS_AS(svg(panels, {.panels_a_row = 0}), ArgumentError);
  CHECK_THROWS_AS(write_svg("/nowhere/at/all.svg", panels), FileError);
}

}  // namespace examples_heat_map
