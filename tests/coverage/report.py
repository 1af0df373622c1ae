"""Lines and branches of a folder's headers from llvm-cov's JSON: report.py JSON FOLDER LINES BRANCHES LIST.

A branch is a condition that came out true, or false. It is known by its place in the source; all
instantiations of a template, in all programs, count together. Conditions within assert() are left
out: no test can make them false. Prints a table of the headers; writes the places that nothing
reached to LIST. Exit status 1 if lines or branches are below the limits, which are in percent.
"""

import collections
import json
import os
import sys


def line_counts(segments):
    """The count of each line that holds code, as llvm-cov shows it."""
    counts, by_line = {}, collections.defaultdict(list)
    for segment in segments:
        by_line[segment[0]].append(segment)
    if not segments:
        return counts
    wrapped = None
    for line in range(segments[0][0], segments[-1][0] + 1):
        here = by_line.get(line, [])
        starts = [s for s in here if s[3] and s[4] and not s[5]]
        skipped = bool(here) and not here[0][3] and here[0][4]
        if not skipped and ((wrapped and wrapped[3]) or starts):
            count = wrapped[2] if wrapped and wrapped[3] else 0
            counts[line] = max([count] + [s[2] for s in starts])
        if here:
            wrapped = here[-1]
    return counts


def main():
    path, folder, line_limit, branch_limit, list_path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        data = json.load(file)["data"][0]
    root = os.path.realpath(folder) + "/"

    lines = {}
    for file in data["files"]:
        if file["filename"].startswith(root):
            lines[file["filename"]] = line_counts(file["segments"])
    sources = {}
    for name in lines:
        with open(name, encoding="utf-8") as file:
            sources[name] = file.read().split("\n")

    branches = collections.defaultdict(lambda: [0, 0])
    for function in data["functions"]:
        names = function["filenames"]
        for l1, c1, l2, c2, true, false, file_id, *_ in function["branches"]:
            name = names[file_id]
            if name in sources and "assert(" not in sources[name][l1 - 1]:
                counts = branches[name, l1, c1, l2, c2]
                counts[0] += true
                counts[1] += false

    totals = [0, 0, 0, 0]
    with open(list_path, "w", encoding="utf-8") as missing:
        print(f"{'header':52}{'lines':>12}{'branches':>16}")
        for name in sorted(lines):
            short = name[len(root):]
            mine = {k: v for k, v in branches.items() if k[0] == name}
            row = [sum(count > 0 for count in lines[name].values()), len(lines[name]),
                   sum((t > 0) + (f > 0) for t, f in mine.values()), 2 * len(mine)]
            totals = [a + b for a, b in zip(totals, row)]
            print(f"{short:52}{row[0]:6}/{row[1]:<6}{row[2]:8}/{row[3]:<6}")
            for line, count in sorted(lines[name].items()):
                if count == 0:
                    missing.write(f"{short}:{line}: never: {sources[name][line - 1].strip()}\n")
            for (_, l1, c1, l2, c2), (true, false) in sorted(mine.items()):
                if true and false:
                    continue
                text = sources[name][l1 - 1][c1 - 1:c2 - 1 if l1 == l2 else None]
                what = "reached" if not (true or false) else "true" if not true else "false"
                missing.write(f"{short}:{l1}: never {what}: {text}\n")
    line_rate, branch_rate = (100 * totals[n] / max(totals[n + 1], 1) for n in (0, 2))
    print(f"lines {line_rate:.2f} % of {totals[1]} (at least {line_limit}), "
          f"branches {branch_rate:.2f} % of {totals[3]} (at least {branch_limit}); "
          f"not reached: {list_path}")
    return line_rate < float(line_limit) or branch_rate < float(branch_limit)


if __name__ == "__main__":
    sys.exit(main())
