"""Pictures by hand: a page with a title, panels with axes, lines, points and words, as SVG text.

Colours are classes, which change with the reader's scheme, light or dark; a viewer that knows no
schemes shows the light one. Everything is drawn on an opaque page, so that it can be read wherever
it is shown.
"""
import math
from xml.sax.saxutils import escape

STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
  .page { fill: #ffffff; } .quiet { fill: #59636e; } .grid { stroke: #d9dee3; stroke-width: 1; }
  .axis { stroke: #818b98; stroke-width: 1; } .line { fill: none; stroke-width: 2.5; }
  .roof { stroke: #818b98; stroke-width: 1.5; stroke-dasharray: 6 4; fill: none; }
  .s0 { stroke: #0969da; } .f0 { fill: #0969da; } .s1 { stroke: #d1570a; } .f1 { fill: #d1570a; }
  .s2 { stroke: #1a7f37; } .f2 { fill: #1a7f37; } .s3 { stroke: #8250df; } .f3 { fill: #8250df; }
  .s4 { stroke: #bf3989; } .f4 { fill: #bf3989; } .s5 { stroke: #6e7781; } .f5 { fill: #6e7781; }
  .open { fill: #ffffff; stroke-width: 2; } .point { stroke: #ffffff; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .page { fill: #0d1117; } .quiet { fill: #9aa4af; }
    .grid { stroke: #2b323a; } .axis, .roof { stroke: #848d97; }
    .s0 { stroke: #58a6ff; } .f0 { fill: #58a6ff; } .s1 { stroke: #f0883e; } .f1 { fill: #f0883e; }
    .s2 { stroke: #3fb950; } .f2 { fill: #3fb950; } .s3 { stroke: #bc8cff; } .f3 { fill: #bc8cff; }
    .s4 { stroke: #f778ba; } .f4 { fill: #f778ba; } .s5 { stroke: #9aa4af; } .f5 { fill: #9aa4af; }
    .open { fill: #0d1117; } .point { stroke: #0d1117; }
  }
"""


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Page:
    def __init__(self, width, height, title, subtitle):
        self.width, self.height, self.title = width, height, title
        self.parts = []
        self.text(24, 34, title, size=18, weight=600)
        for n, line in enumerate(subtitle.split("\n")):
            self.text(24, 55 + 16 * n, line, size=12, kind="quiet")

    def text(self, x, y, words, size=12, anchor="start", kind="", weight=400, turn=None):
        rotation = f' transform="rotate({turn} {number(x)} {number(y)})"' if turn else ""
        self.parts.append(f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" '
                          f'font-weight="{weight}" text-anchor="{anchor}" class="{kind}"{rotation}>'
                          f'{escape(words)}</text>')

    def line(self, x1, y1, x2, y2, kind):
        self.parts.append(f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" '
                          f'y2="{number(y2)}" class="{kind}"/>')

    def path(self, points, kind):
        text = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.parts.append(f'<polyline points="{text}" class="{kind}"/>')

    def mark(self, x, y, shape, colour, is_open=False, size=5):
        """shape: circle, square, diamond or triangle."""
        kind = f"open s{colour}" if is_open else f"point f{colour}"
        if shape == "circle":
            self.parts.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="{size}" class="{kind}"/>')
            return
        r = size * (0.9 if shape == "square" else 1.25)
        corners = {"square": [(-r, -r), (r, -r), (r, r), (-r, r)],
                   "diamond": [(0, -r), (r, 0), (0, r), (-r, 0)],
                   "triangle": [(0, -r), (r, r * 0.8), (-r, r * 0.8)]}[shape]
        text = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in corners)
        self.parts.append(f'<polygon points="{text}" class="{kind}"/>')

    def legend(self, x, y, entries):
        """entries: (words, shape, colour, is_open), side by side."""
        for words, shape, colour, is_open in entries:
            self.mark(x, y - 4, shape, colour, is_open)
            self.text(x + 11, y, words)
            x += 11 + width_of(words) + 24

    def write(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">\n'
                f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n"
                f'<rect class="page" width="{self.width}" height="{self.height}" rx="8"/>\n' +
                "\n".join(self.parts) + "\n</svg>\n")


def width_of(words, size=12):
    """About: viewers choose the font."""
    wide = {"m": 0.9, "w": 0.8, **dict.fromkeys("iljtf,.[]() ", 0.36)}
    return size * sum(wide.get(letter, 0.6) for letter in words)


class Axis:
    """From values to places on the page; logarithmic, or from the first to the last tick."""

    def __init__(self, low, high, begin, end, logarithmic=False):
        self.low, self.high, self.begin, self.end = low, high, begin, end
        self.logarithmic = logarithmic

    def at(self, value):
        if self.logarithmic:
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def decades(values):
    """The powers of ten around the values: at least one decade."""
    low = math.floor(math.log10(min(values)))
    high = max(low + 1, math.ceil(math.log10(max(values))))
    return [10.0 ** n for n in range(low, high + 1)]


def fine_ticks(values):
    """1, 2, 5, 10 .. as far as the values go, or powers of ten where those would be many."""
    coarse = decades(values)
    fine = [step * ten for ten in coarse for step in (1, 2, 5)]
    first = max(tick for tick in fine if tick <= min(values))
    last = min(tick for tick in fine if tick >= max(values))
    fine = [tick for tick in fine if first <= tick <= last]
    return fine if 2 <= len(fine) <= 8 else coarse


def spread(places, distance):
    """Places for labels, in the same order, moved apart until each has its distance."""
    order = sorted(range(len(places)), key=lambda n: places[n])
    moved = list(places)
    for _ in range(100):
        for a, b in zip(order, order[1:]):
            overlap = distance - (moved[b] - moved[a])
            if overlap > 1e-9:
                moved[a] -= overlap / 2
                moved[b] += overlap / 2
    return moved
