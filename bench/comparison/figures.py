"""What is computed from the recorded times: medians, ratios, shares of the peak."""
import math


def count_of(number, thing):
    """1 thread, 2 threads"""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def find(results, family, purposes=None, causal=None):
    """The cases of a family, in the order in which they were run."""
    for case in results["cases"]:
        if case["family"] != family:
            continue
        if purposes is not None and case["purpose"] not in purposes:
            continue
        if causal is not None and case["values"][5] != causal:
            continue
        yield case


def seconds_of(case, who="headwise"):
    """The median time, or None where that partner did not run the case."""
    times = case["seconds"].get(who)
    return median(times) if times else None


def times_as_fast(case, other, who="headwise"):
    """How many times as fast `who` is as `other`: the ratio in each round, and their median."""
    mine, theirs = case["seconds"].get(who), case["seconds"].get(other)
    if not mine or not theirs:
        return None
    return median([b / a for a, b in zip(mine, theirs)])


def rate_of(case, who="headwise"):
    """FLOP/s at the median time."""
    seconds = seconds_of(case, who)
    return None if seconds is None else case["flops"] / seconds


def peak_of(results):
    """The run's highest: the loop on registers, or a product."""
    rates = list(results["peak"])
    for case in results["cases"]:
        if case["family"].startswith("gemm/"):
            rates += [case["flops"] / seconds
                      for times in case["seconds"].values() for seconds in times]
    return max(rates)


def share_of_peak(results, case, who="headwise"):
    rate = rate_of(case, who)
    return None if rate is None else rate / peak_of(results)


def shape_name(values):
    """(4, 1024, 1024, 16, 4): B, L, D, H, and G where it is another number."""
    shown = values[:4] if values[4] == values[3] else values[:5]
    return "(" + ", ".join(str(value) for value in shown) + ")"


def memory_at(results, who, values):
    for entry in results["memory"]:
        if entry["who"] == who and entry["values"] == values:
            return entry
    return None
