"""The results as Markdown."""
from figures import (count_of, find, geometric_mean, median, memory_at, peak_of, rate_of, seconds_of, shape_name,
                     share_of_peak, times_as_fast)

MASKS = {0: "no", 1: "yes"}


def milliseconds(seconds):
    return "" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def percent(share):
    return "" if share is None else f"{share * 100:.1f} %"


def times(ratio):
    return "" if ratio is None else f"{ratio:.2f}"


def mebibytes(count):
    return "" if count is None else f"{count / 2**20:.1f}"


def grid(titles, rows):
    """A Markdown table; nothing at all without rows."""
    if not rows:
        return []
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def heading(results):
    machine, settings, ours = results["machine"], results["settings"], results["headwise"]
    theirs = results["torch"]
    lines = ["# headwise beside other programs", ""]
    lines += [f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; "
              f"{count_of(settings['threads'], 'thread')}, "
              f"{count_of(settings['rounds'], 'round')}, medians; float32. headwise {ours['version']}, "
              f"compiled by {ours['compiler']}.", ""]
    if "absent" in theirs:
        lines += [f"**No PyTorch here**: {theirs['absent']}", ""]
    else:
        lines += [f"PyTorch {theirs['version']}, {count_of(theirs['threads'], 'thread')}, "
                  f"{theirs['processor']}.", ""]
    lines += [f"Peak: {peak_of(results) / 1e9:.0f} GFLOP/s, the highest of the run; the loop on "
              f"registers reached {min(results['peak']) / 1e9:.0f} to "
              f"{max(results['peak']) / 1e9:.0f}, median {median(results['peak']) / 1e9:.0f}.", ""]
    if machine["load"] > 0.3 * machine["cores"]:
        lines += [f"**The machine was busy** when this began (load {machine['load']:.1f}): the figures "
                  "say little.", ""]
    for problem in results["problems"]:
        lines += [f"**{problem}**", ""]
    return lines


def module_part(results):
    purposes = ("small", "standard", "grouped", "asked")
    lines = []
    for family, title in (("mha/forward", "Module, forward"),
                          ("mha/forward_backward", "Module, forward + backward")):
        cases = list(find(results, family, purposes))
        if not cases:
            continue
        lines += [f"## {title}", "", "Shapes are (B, L, D, H), with G behind it for grouped heads; "
                  "ms; ratios say how many times as fast headwise is.", ""]
        rows = [[shape_name(case["values"]), MASKS[case["values"][5]],
                 milliseconds(seconds_of(case)), percent(share_of_peak(results, case)),
                 milliseconds(seconds_of(case, "torch")), times(times_as_fast(case, "torch")),
                 milliseconds(seconds_of(case, "eigen")), times(times_as_fast(case, "eigen"))]
                for case in cases]
        lines += grid(["shape", "causal", "headwise", "of peak", "PyTorch", "ratio", "plain Eigen",
                       "ratio"], rows)
        for causal, name in ((0, "not causal"), (1, "causal")):
            ratios = [times_as_fast(case, "torch")
                      for case in find(results, family, ("standard",), causal)]
            ratios = [ratio for ratio in ratios if ratio is not None]
            if ratios:
                lines += [f"Standard shapes, {name}, against PyTorch: lowest {min(ratios):.2f}, "
                          f"median {median(ratios):.2f}, highest {max(ratios):.2f}.", ""]
    return lines


def attention_part(results):
    rows = []
    for forward in find(results, "sdpa/forward"):
        backward = [case for case in find(results, "sdpa/backward")
                    if case["values"] == forward["values"]]
        scratch = forward["peak_bytes"] / results["settings"]["threads"]
        rows.append([shape_name(forward["values"]), MASKS[forward["values"][5]],
                     milliseconds(seconds_of(forward)), percent(share_of_peak(results, forward)),
                     milliseconds(seconds_of(backward[0])) if backward else "",
                     percent(share_of_peak(results, backward[0])) if backward else "",
                     f"{scratch / 1024:.0f}"])
    if not rows:
        return []
    return ["## Attention alone", "", "Scratch: KiB a thread, forward.", ""] + grid(
        ["shape", "causal", "forward, ms", "of peak", "backward, ms", "of peak", "scratch"], rows)


def score_part(results):
    cases = [case for case in results["cases"] if case["purpose"] == "scores"]
    plain = [seconds_of(case) for case in cases if case["family"] == "scores/plain"]
    rows = [[case["family"].split("/")[1].replace("_", " "), milliseconds(seconds_of(case)),
             times(plain[0] / seconds_of(case)) if plain else "",
             milliseconds(seconds_of(case, "torch")), times(times_as_fast(case, "torch"))]
            for case in cases]
    return ["## What is done to scores", "", f"Attention alone of {shape_name(cases[0]['values'])}, "
            "forward + backward, causal but for padding, with the gradients of what is learned.",
            ""] + grid(["change", "headwise, ms", "of plain", "PyTorch", "ratio"],
                       rows) if rows else []


def decode_part(results):
    rows = []
    for case in results["cases"]:
        if case["purpose"] != "decode":
            continue
        rate = case["bytes"] / seconds_of(case)
        rows.append([shape_name(case["values"]), case["family"].split("/")[1].replace("_", " "),
                     milliseconds(seconds_of(case)), f"{rate / 1e9:.1f}",
                     percent(rate / case["read_bandwidth"]), milliseconds(seconds_of(case, "torch")),
                     times(times_as_fast(case, "torch"))])
    return ["## Decoding", "", "One query a head against a cache of S keys and values, (B, S, D, H): "
            "GB/s of them, and its share of what reading as many bytes reaches.", ""] + grid(
                ["shape", "cache", "ms", "GB/s", "of reading", "PyTorch", "ratio"],
                rows) if rows else []


def grouped_part(results):
    rows = []
    for family in ("mha/forward", "mha/forward_backward"):
        for case in find(results, family, ("grouped",)):
            other = [full for full in find(results, family, ("ungrouped",), case["values"][5])
                     if full["values"][:4] == case["values"][:4]]
            if other:
                rows.append([shape_name(case["values"]), family, MASKS[case["values"][5]],
                             f"{rate_of(case) / 1e9:.0f}", f"{rate_of(other[0]) / 1e9:.0f}",
                             times(rate_of(case) / rate_of(other[0]))])
    if not rows:
        return []
    return ["## Grouped heads", "", "GFLOP/s against the same shape with a key head for each query "
            "head.", ""] + grid(["shape", "pass", "causal", "grouped", "G = H", "ratio"], rows)


def product_part(results):
    rows, shares, ratios = [], [], []
    for case in results["cases"]:
        if not case["family"].startswith("gemm/"):
            continue
        ratio = times_as_fast(case, "openblas")
        rows.append([case["family"][len("gemm/"):], " x ".join(str(v) for v in case["values"]),
                     f"{rate_of(case) / 1e9:.0f}", percent(share_of_peak(results, case)),
                     times(ratio)])
        if case["purpose"] == "large":
            shares.append(share_of_peak(results, case))
            if ratio is not None:
                ratios.append(ratio)
    if not rows:
        return []
    lines = ["## Products", "", "N x I x O of the linear layer: nn is x w, nt is dy w^T, tn is x^T dy.",
             ""] + grid(["product", "N x I x O", "GFLOP/s", "of peak", "OpenBLAS: ratio"], rows)
    if shares:
        lines += [f"Large ones: of peak, geometric mean {percent(geometric_mean(shares))}, lowest "
                  f"{percent(min(shares))}" +
                  (f"; against OpenBLAS, geometric mean {geometric_mean(ratios):.2f}, lowest "
                   f"{min(ratios):.2f}." if ratios else ". No OpenBLAS here."), ""]
    return lines


def against_part(results):
    """Other builds of headwise that were asked for with --against."""
    lines = []
    for name in results["settings"]["against"]:
        rows = [[case["family"], " ".join(str(v) for v in case["values"]),
                 milliseconds(seconds_of(case)), milliseconds(seconds_of(case, name)),
                 times(times_as_fast(case, name))]
                for case in results["cases"] if case["seconds"].get(name)]
        if rows:
            lines += [f"## headwise against {name}", ""] + grid(
                ["case", "values", "headwise, ms", f"{name}, ms", "ratio"], rows)
            ratios = [times_as_fast(case, name) for case in results["cases"]
                      if case["seconds"].get(name)]
            lines += [f"Geometric mean {geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}.", ""]
    return lines


def row_part(results):
    rows = []
    for case in results["cases"]:
        if case["purpose"] != "rows":
            continue
        rate = case["bytes"] / seconds_of(case)
        rows.append([case["family"], " x ".join(str(v) for v in case["values"]),
                     milliseconds(seconds_of(case)), f"{rate / 1e9:.1f}",
                     percent(rate / case["read_bandwidth"])])
    return ["## Row by row", "", "GB/s of inputs and outputs, each once, and its share of what reading "
            "as many bytes reaches.", ""] + grid(["operation", "N x D", "ms", "GB/s", "of reading"],
                                                 rows) if rows else []


def layout_part(results):
    lines = []
    for names, title, text in (
            (("heads/strided", "heads/copied", "heads/contiguous"), "Heads as views",
             "Attention on heads where they lie in one fused projection; with a copy of each head "
             "first; and on heads that lay apart already. ms."),
            (("projection/fused", "projection/three", "projection/by_head"), "One projection or many",
             "Q, K and V by one product, by three, by one for each head. ms.")):
        columns = [list(find(results, name)) for name in names]
        if not all(columns):
            continue
        rows = []
        for same in zip(*columns):
            base = seconds_of(same[0])
            rows.append([shape_name(same[0]["values"]), MASKS[same[0]["values"][5]]] +
                        [f"{milliseconds(seconds_of(case))} ({seconds_of(case) / base:.2f})"
                         for case in same])
        lines += [f"## {title}", "", text, ""] + grid(
            ["shape", "causal"] + [name.split("/")[1] for name in names], rows)
    return lines


def memory_part(results):
    shapes = []
    for entry in results["memory"]:
        if entry["values"] not in shapes:
            shapes.append(entry["values"])
    rows = []
    for values in shapes:
        row = [shape_name(values)]
        for who in ("headwise", "torch", "eigen"):
            entry = memory_at(results, who, values)
            row += [mebibytes(entry and entry["peak"]),
                    mebibytes(entry and entry["peak"] - entry["before"])]
        rows.append(row + [mebibytes(entry_bytes(results, values))])
    if not rows:
        return []
    return ["## Memory", "", "Forward + backward, not causal, each in a fresh process: VmHWM, and in "
            "the second column what of it came after the program had started; MiB. Asked: what one "
            "call asks of the memory resource at its peak.", ""] + grid(
                ["shape", "headwise", "grown", "PyTorch", "grown", "plain Eigen", "grown", "asked"], rows)


def entry_bytes(results, values):
    entry = memory_at(results, "headwise", values)
    return entry and entry.get("asked")


def write_table(results):
    """The whole page."""
    lines = heading(results)
    for part in (module_part, attention_part, score_part, decode_part, grouped_part, product_part, layout_part,
                 row_part, memory_part, against_part):
        lines += part(results)
    return "\n".join(lines).rstrip() + "\n"
