"""The four pictures of a run: time against L, share of the peak, memory against L, the roofline."""
import math

from figures import count_of, find, peak_of, rate_of, seconds_of, shape_name, share_of_peak
from svg import Axis, Page, decades, fine_ticks, spread

PARTNERS = (("headwise", "headwise", 0), ("torch", "PyTorch", 1), ("eigen", "plain Eigen", 2))
SERIES = (1, 512, 8, 8)  # B, D, H, G of the curves against L


def plain(value):
    """12, 0.5, 2k: as short as it can be said."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    if value >= 1e3:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


def setting(results):
    return (f"{results['machine']['processor']}, {count_of(results['settings']['threads'], 'thread')}, "
            f"float32, median of {count_of(results['settings']['rounds'], 'round')}")


def curves_page(title, subtitle, panels, lengths, unit, names, along="sequence length L"):
    """Panels side by side: (heading, {who: [(L, value)]}), both axes logarithmic."""
    width, height, top, bottom = 900, 430, 112, 370
    page = Page(width, height, title, subtitle)
    ticks = fine_ticks([value for _, lines in panels for points in lines.values()
                        for _, value in points])
    panel_width = (width - 40) / len(panels)
    for n, (heading, lines) in enumerate(panels):
        left = 20 + n * panel_width + 62
        right = left + panel_width - 62 - 96
        x = Axis(lengths[0], lengths[-1], left, right, True)
        y = Axis(ticks[0], ticks[-1], bottom, top, True)
        page.text(left, top - 16, heading, size=13, weight=600)
        for tick in ticks:
            page.line(left, y.at(tick), right, y.at(tick), "grid")
            page.text(left - 8, y.at(tick) + 4, plain(tick), anchor="end", kind="quiet")
        for length in lengths:
            page.line(x.at(length), top, x.at(length), bottom, "grid")
            page.text(x.at(length), bottom + 18, str(length), anchor="middle", kind="quiet", size=11)
        page.line(left, bottom, right, bottom, "axis")
        page.text((left + right) / 2, bottom + 40, along, anchor="middle")
        page.text(left - 46, (top + bottom) / 2, unit, anchor="middle", turn=-90)
        drawn = [(who, name, colour) for who, name, colour in names if lines.get(who)]
        for who, _, colour in drawn:
            points = [(x.at(length), y.at(value)) for length, value in lines[who]]
            page.path(points, f"line s{colour}")
            for at_x, at_y in points:
                page.mark(at_x, at_y, "circle", colour, size=4)
        whole = [one for one in drawn if lines[one[0]][-1][0] == lengths[-1]]
        places = spread([y.at(lines[who][-1][1]) for who, _, _ in whole], 16)
        for (who, name, colour), place in zip(whole, places):
            page.text(x.at(lengths[-1]) + 10, place + 4, name, kind=f"f{colour}", weight=600)
        for who, name, colour in drawn:  # one that ends early has its name above its end
            length, value = lines[who][-1]
            if length != lengths[-1]:
                page.text(x.at(length), y.at(value) - 10, name, anchor="end", kind=f"f{colour}",
                          weight=600)
    return page.write()


def time_against_length(results):
    panels, lengths = [], set()
    for causal, heading in ((0, "not causal"), (1, "causal")):
        lines = {}
        for case in find(results, "mha/forward_backward", causal=causal):
            B, L, D, H, G, _ = case["values"]
            if (B, D, H, G) != SERIES:
                continue
            lengths.add(L)
            for who, _, _ in PARTNERS:
                if seconds_of(case, who):
                    lines.setdefault(who, []).append((L, seconds_of(case, who) * 1e3))
        if lines:
            panels.append((heading, {who: sorted(points) for who, points in lines.items()}))
    if len(lengths) < 2:
        return None
    return curves_page("Time of forward + backward",
                       f"Module with B = 1, D = 512, H = 8; {setting(results)}\nLower is better.",
                       panels, sorted(lengths), "milliseconds", PARTNERS)


def memory_against_length(results):
    lines, lengths = {}, set()
    for entry in sorted(results["memory"], key=lambda entry: entry["values"][1]):
        length = entry["values"][1]
        lengths.add(length)
        lines.setdefault(entry["who"], []).append((length, entry["peak"] / 2**20))
        if entry["who"] == "headwise":
            lines.setdefault("asked", []).append((length, entry["asked"] / 2**20))
    if len(lengths) < 2:
        return None
    names = PARTNERS + (("asked", "one call asks", 5),)
    return curves_page("Memory of forward + backward",
                       "Module with B = 1, D = 512, H = 8, float32, not causal. Most that a fresh "
                       "process held (VmHWM),\nfor PyTorch with the interpreter and its libraries; "
                       "grey: what one call of headwise asks for.",
                       [("peak of the whole process", lines)], sorted(lengths), "MiB", names)


def share_of_peak_page(results):
    """A row a shape, a mark a pass."""
    passes = (("mha/forward", "headwise", "module, forward", "circle", 0, True),
              ("mha/forward_backward", "headwise", "forward + backward", "circle", 0, False),
              ("mha/forward_backward", "torch", "the same, PyTorch", "diamond", 1, False),
              ("sdpa/forward", "headwise", "attention, forward", "square", 2, True),
              ("sdpa/backward", "headwise", "backward", "square", 2, False))
    legend = [entry[2:] for entry in passes] + [("product", "triangle", 3, False)]
    rows = {}
    for family, who, _, shape, colour, is_open in passes:
        for case in find(results, family, ("standard", "small", "grouped", "long", "asked")):
            share = share_of_peak(results, case, who)
            if share is not None:
                name = shape_name(case["values"]) + (", causal" if case["values"][5] else "")
                rows.setdefault(name, []).append((share, shape, colour, is_open))
    for case in results["cases"]:
        if case["family"].startswith("gemm/"):
            rows[case["family"]] = [(share_of_peak(results, case), "triangle", 3, False)]
    if not rows:
        return None
    left, right, top, step = 220, 860, 116, 26
    bottom = top + step * len(rows)
    page = Page(900, bottom + 56, "Share of the machine's peak",
                f"{setting(results)}; peak {peak_of(results) / 1e9:.0f} GFLOP/s. "
                "Shapes are (B, L, D, H[, G]).")
    page.legend(32, 88, legend)
    x = Axis(0, 100, left, right)
    for tick in range(0, 101, 10):
        page.line(x.at(tick), top - 8, x.at(tick), bottom, "grid")
        page.text(x.at(tick), bottom + 18, str(tick), anchor="middle", kind="quiet")
    page.line(left, bottom, right, bottom, "axis")
    page.text((left + right) / 2, bottom + 40, "% of the highest rate of multiply-adds", anchor="middle")
    for n, (name, marks) in enumerate(rows.items()):
        y = top + step * n + step / 2
        page.text(left - 12, y + 4, name, anchor="end")
        page.line(left, y, right, y, "grid")
        for share, shape, colour, is_open in marks:
            above = 0 if len(marks) == 1 else 5 if shape == "square" else -5  # two lanes a row
            page.mark(x.at(min(share, 1) * 100), y + above, shape, colour, is_open)
    return page.write()


def roofline(results):
    kinds = (("mha/", "module", "circle", 0), ("sdpa/", "attention", "square", 2),
             ("gemm/", "product", "triangle", 3), ("layer_norm/", "layer norm", "diamond", 1),
             ("softmax/", "softmax", "diamond", 4), ("dropout/", "dropout", "diamond", 5))
    points = []
    for case in results["cases"]:
        for prefix, _, shape, colour in kinds:
            if case["family"].startswith(prefix):
                points.append((case["flops"] / case["bytes"], rate_of(case) / 1e9, shape, colour))
    if not points:
        return None
    peak, roofs = peak_of(results) / 1e9, results["bandwidth"]
    x_ticks = decades([point[0] for point in points] + [0.1, 100])
    y_ticks = decades([point[1] for point in points] + [peak])
    left, right, top, bottom = 76, 860, 116, 500
    page = Page(900, 560, "Roofline",
                f"{setting(results)}. Bytes: inputs, parameters and outputs, each once.")
    page.legend(32, 88, [(name, shape, colour, False) for _, name, shape, colour in kinds])
    x = Axis(x_ticks[0], x_ticks[-1], left, right, True)
    y = Axis(y_ticks[0], y_ticks[-1], bottom, top, True)
    for tick in x_ticks:
        page.line(x.at(tick), top, x.at(tick), bottom, "grid")
        page.text(x.at(tick), bottom + 18, plain(tick), anchor="middle", kind="quiet")
    for tick in y_ticks:
        page.line(left, y.at(tick), right, y.at(tick), "grid")
        page.text(left - 8, y.at(tick) + 4, plain(tick), anchor="end", kind="quiet")
    page.line(left, bottom, right, bottom, "axis")
    page.text((left + right) / 2, bottom + 40, "FLOPs a byte", anchor="middle")
    page.text(left - 52, (top + bottom) / 2, "GFLOP/s", anchor="middle", turn=-90)
    page.line(left, y.at(peak), right, y.at(peak), "roof")
    page.text(right, y.at(peak) - 8, f"multiply-adds: {peak:.0f} GFLOP/s", anchor="end", kind="quiet")
    slope = -math.degrees(math.atan2(y.at(1) - y.at(10), x.at(10) - x.at(1)))
    for size, rate in sorted(roofs.items(), key=lambda roof: int(roof[0])):
        rate /= 1e9
        first = max(x_ticks[0], y_ticks[0] / rate)
        page.line(x.at(first), y.at(first * rate), x.at(peak / rate), y.at(peak), "roof")
        words = f"{int(size) // 1024} KiB" if int(size) < 2**20 else f"{int(size) // 2**20} MiB"
        page.text(x.at(first) + 10, y.at(first * rate) - 9, f"reading {words}: {rate:.0f} GB/s",
                  kind="quiet", size=11, turn=round(slope, 1))
    for intensity, rate, shape, colour in points:
        page.mark(x.at(intensity), y.at(rate), shape, colour)
    return page.write()


def draw_all(results):
    """File names and pictures; one for which too little was measured is left out."""
    pictures = {"time.svg": time_against_length(results), "peak.svg": share_of_peak_page(results),
                "memory.svg": memory_against_length(results), "roofline.svg": roofline(results)}
    return {name: text for name, text in pictures.items() if text is not None}
