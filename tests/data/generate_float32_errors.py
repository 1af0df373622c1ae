#!/usr/bin/env python3
"""Measures PyTorch's float32 error in attention, forward and backward, and writes float32_errors.json.

Usage: OMP_NUM_THREADS=1 generate_float32_errors.py OUT.json     (any Python with torch >= 2.5 and numpy)

Every case is computed in float64 and in float32 from the same inputs, in two ways: "fused", by
F.scaled_dot_product_attention (what nn.MultiheadAttention calls with need_weights=False), and
"weights", with the attention weights kept. No input is stored: each is made of integers by a recipe
that tests/accuracy/float32_case.hpp follows too, exact in float32, with a checksum in the file. Of
every result the file holds both float32 errors and, of the float64 values, some samples and a sum over
all elements. Refuses dead rows, for which PyTorch gives NaN, and leaves out dropout, whose masks differ.
"""
import json
import math
import os
import platform
import sys

import numpy as np
import torch
import torch.nn.functional as F

SAMPLES = 4


def hashed(stream, count):
    """SplitMix64 of n = 0 ... count - 1 in a stream."""
    n = np.arange(1, count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = n * np.uint64(0x9E3779B97F4A7C15) + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def integers(stream, count):
    """Three 20-bit numbers summed, less their mean, times 1, 2, 4 or 8: below 2^25 with 22 bits each."""
    z = hashed(stream, count)
    fields = [(z >> np.uint64(20 * i)) & np.uint64(0xFFFFF) for i in range(3)]
    return (2 * sum(field.astype(np.int64) for field in fields) - 3 * 0xFFFFF) << (z >> np.uint64(62)).astype(np.int64)


def numbers(stream, shape, exponent):
    """Deviation 1.15 x 2^exponent, exact in float32."""
    values = integers(stream, math.prod(shape)).astype(np.float64) * 2.0 ** (exponent - 22)
    return torch.from_numpy(values.reshape(shape))


class Inputs:
    """The tensors of a case in the order in which they are made; the n-th has stream 64 seed + n."""

    def __init__(self, seed):
        self.stream, self.specs, self.tensors, self.checksum = 64 * seed, [], {}, 0

    def _add(self, name, shape, spec, tensor):
        self.specs.append(dict(name=name, shape=list(shape), **spec))
        self.tensors[name] = tensor
        self.stream += 1

    def number(self, name, shape, exponent=0):
        whole = integers(self.stream, math.prod(shape))
        weights = np.arange(len(whole), dtype=np.int64) % 97 + 1
        self.checksum += int((whole * weights).sum())
        self._add(name, shape, dict(exponent=exponent), numbers(self.stream, shape, exponent))

    def hidden_pairs(self, name, shape, sixteenths):
        """True for that share of the pairs, never for key 0."""
        hidden = (hashed(self.stream, math.prod(shape)) >> np.uint64(60)) < np.uint64(sixteenths)
        hidden = torch.from_numpy(hidden.reshape(shape))
        hidden[..., 0] = False
        self._add(name, shape, dict(hidden_sixteenths=sixteenths), hidden)

    def padding(self, name, S, lengths):
        hidden = torch.arange(S)[None, :] >= torch.tensor(lengths)[:, None]
        self._add(name, [len(lengths), S], dict(lengths=lengths), hidden)

    def copies(self, dtype):
        return {k: v.clone() if v.dtype == torch.bool else v.to(dtype, copy=True) for k, v in self.tensors.items()}


def reach(L, S, causal, window):
    """[L, S], true where causality and window let a query see a key."""
    i, j = torch.arange(L)[:, None] + (S - L), torch.arange(S)[None, :]
    keep = torch.ones(L, S, dtype=torch.bool)
    if causal:
        keep &= j <= i
    if window:
        keep &= (i - j).abs() < window
    return keep


def mha_case(seed, *, B, L, D, H, S=None, bias=True, causal=False, window=0, kdim=None, vdim=None,
             lengths=None, mask=None, x=0, w=-2):
    """torch.nn.MultiheadAttention; inputs of deviation 1.15 x 2^x, weights 1.15 x 2^w."""
    cross, S = S is not None, S or L
    inputs = Inputs(seed)
    inputs.number("query", [B, L, D], x)
    if cross:
        inputs.number("key", [B, S, kdim or D], x)
        inputs.number("value", [B, S, vdim or D], x)
    inputs.number("grad_output", [B, L, D])
    if kdim or vdim:
        for name, width in dict(q=D, k=kdim or D, v=vdim or D).items():
            inputs.number(f"{name}_proj_weight", [D, width], w)
    else:
        inputs.number("in_proj_weight", [3 * D, D], w)
    inputs.number("out_proj.weight", [D, D], w)
    if bias:
        inputs.number("in_proj_bias", [3 * D], -1)
        inputs.number("out_proj.bias", [D], -1)
    if mask == "bool":
        inputs.hidden_pairs("attn_mask", [L, S], 5)
    if mask == "float":
        inputs.number("attn_mask", [L, S])
    if mask == "per_head":
        inputs.number("attn_mask", [B, H, L, S])
    if lengths:
        inputs.padding("key_padding_mask", S, lengths)

    def run(dtype, kept):
        t = inputs.copies(dtype)
        m = torch.nn.MultiheadAttention(D, H, bias=bias, batch_first=True, kdim=kdim, vdim=vdim, dtype=dtype)
        with torch.no_grad():
            for name, p in m.named_parameters():
                p.copy_(t[name])
        q = t["query"].requires_grad_()
        k = t["key"].requires_grad_() if cross else q
        v = t["value"].requires_grad_() if cross else q
        attn_mask = t.get("attn_mask")
        if causal or window:
            assert attn_mask is None
            attn_mask = ~reach(L, S, causal, window)
        elif mask == "per_head":
            attn_mask = attn_mask.view(B * H, L, S)
        padding = t.get("key_padding_mask")
        if padding is not None and attn_mask is not None and attn_mask.dtype != torch.bool:
            padding = torch.zeros(B, S, dtype=dtype).masked_fill(padding, float("-inf"))
        y, _ = m(q, k, v, attn_mask=attn_mask, key_padding_mask=padding, need_weights=kept)
        y.backward(t["grad_output"])
        results = {"output": y, "grad.query": q.grad}
        if cross:
            results.update({"grad.key": k.grad, "grad.value": v.grad})
        results.update({f"grad.{name}": p.grad for name, p in m.named_parameters()})
        return results

    return dict(kind="mha", num_heads=H, causal=int(causal), window=window), inputs, run


def sdpa_case(seed, *, B, H, L, d, G=None, S=None, dv=None, causal=False, window=0, scale=None, x=0):
    """Scaled dot-product attention alone."""
    G, S, dv = G or H, S or L, dv or d
    scale = scale or 1 / math.sqrt(d)
    inputs = Inputs(seed)
    inputs.number("query", [B, H, L, d], x)
    inputs.number("key", [B, G, S, d], x)
    inputs.number("value", [B, G, S, dv])
    inputs.number("grad_output", [B, H, L, dv])
    keep = reach(L, S, causal, window)

    def run(dtype, kept):
        t = inputs.copies(dtype)
        q, k, v = (t[name].requires_grad_() for name in ("query", "key", "value"))
        kr, vr = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        if kept:
            score = (q @ kr.transpose(-1, -2) * scale).masked_fill(~keep, float("-inf"))
            y = torch.softmax(score, -1) @ vr
        else:
            y = F.scaled_dot_product_attention(q, kr, vr, None if keep.all() else keep, scale=scale)
        dq, dk, d_v = torch.autograd.grad(y, (q, k, v), t["grad_output"])
        return {"output": y, "grad.query": dq, "grad.key": dk, "grad.value": d_v}

    meta = dict(kind="sdpa", num_heads=H, num_kv_heads=G, causal=int(causal), window=window, scale=scale)
    return meta, inputs, run


def errors(x, reference):
    """The largest and the root of the mean squared error over the same of the reference."""
    gap = x.double() - reference
    return [float(f"{v:.5g}") for v in (gap.abs().max() / reference.abs().max(),
                                        gap.square().mean().sqrt() / reference.square().mean().sqrt())]


def measure(name, seed, make, settings):
    meta, inputs, run = make(seed, **settings)
    wide = {k: v.detach() for k, v in run(torch.float64, True).items()}
    narrow = {way: run(torch.float32, way == "weights") for way in ("fused", "weights")}
    results = {}
    for key, reference in wide.items():
        assert reference.isfinite().all(), (name, key)
        flat, count = reference.flatten(), reference.numel()
        weights = numbers(1, [count], 0)
        results[key] = dict(count=count, greatest=float(flat.abs().max()), weighted_sum=float((flat * weights).sum()),
                            samples=[float(flat[n * (count - 1) // (SAMPLES - 1)]) for n in range(SAMPLES)],
                            **{way: errors(narrow[way][key].detach(), reference) for way in narrow})
    return dict(name=name, seed=seed, **meta, inputs=inputs.specs, checksum=inputs.checksum, results=results)


MHA, SDPA = mha_case, sdpa_case
CASES = [
    ("self", MHA, dict(B=12, L=24, D=32, H=4)),
    ("self, no biases", MHA, dict(B=8, L=33, D=48, H=4, bias=False)),
    ("self, odd sizes", MHA, dict(B=7, L=37, D=35, H=5)),
    ("self, one head", MHA, dict(B=12, L=40, D=24, H=1)),
    ("self, d 1", MHA, dict(B=20, L=50, D=16, H=16)),
    ("self, one token", MHA, dict(B=256, L=1, D=64, H=4)),
    ("self, many short", MHA, dict(B=16, L=16, D=32, H=4)),
    ("self, batch of 8", MHA, dict(B=8, L=64, D=64, H=4)),
    ("self, L 128", MHA, dict(B=2, L=128, D=64, H=8)),
    ("self, L 512", MHA, dict(B=1, L=512, D=32, H=2)),
    ("self, L 1024", MHA, dict(B=1, L=1024, D=32, H=4)),
    ("self, D 256", MHA, dict(B=4, L=64, D=256, H=8, w=-4)),
    ("self, D 512", MHA, dict(B=2, L=48, D=512, H=8, w=-4)),
    ("self, small inputs", MHA, dict(B=6, L=48, D=32, H=4, x=-5)),
    ("self, large scores", MHA, dict(B=6, L=48, D=32, H=4, x=1)),
    ("self, scores in the hundreds", MHA, dict(B=16, L=48, D=32, H=4, x=3)),
    ("causal", MHA, dict(B=4, L=64, D=64, H=4, causal=True)),
    ("causal, L 256", MHA, dict(B=1, L=256, D=64, H=4, causal=True)),
    ("causal, L 1024", MHA, dict(B=1, L=1024, D=32, H=2, causal=True)),
    ("causal, padding", MHA, dict(B=3, L=96, D=64, H=4, causal=True, lengths=[96, 61, 80])),
    ("padding", MHA, dict(B=6, L=48, D=32, H=4, lengths=[48, 31, 7, 20, 40, 1])),
    ("bool mask", MHA, dict(B=5, L=60, D=32, H=4, mask="bool")),
    ("bool mask, padding", MHA, dict(B=4, L=72, D=48, H=6, mask="bool", lengths=[72, 40, 3, 55])),
    ("float bias", MHA, dict(B=5, L=60, D=32, H=4, mask="float")),
    ("float bias, padding", MHA, dict(B=4, L=66, D=32, H=4, mask="float", lengths=[66, 35, 50, 10])),
    ("float bias by head", MHA, dict(B=7, L=40, D=32, H=4, mask="per_head")),
    ("window", MHA, dict(B=1, L=256, D=32, H=4, window=16)),
    ("causal window", MHA, dict(B=1, L=256, D=48, H=4, causal=True, window=24)),
    ("cross", MHA, dict(B=9, L=30, S=50, D=48, H=4)),
    ("cross, no biases", MHA, dict(B=6, L=50, S=30, D=64, H=8, bias=False)),
    ("cross, S 700", MHA, dict(B=4, L=64, S=700, D=64, H=4)),
    ("cross, S 5", MHA, dict(B=8, L=40, S=5, D=32, H=4)),
    ("cross, causal", MHA, dict(B=7, L=40, S=100, D=32, H=4, causal=True)),
    ("cross, bool mask", MHA, dict(B=6, L=45, S=65, D=32, H=4, mask="bool")),
    ("cross, float bias, padding", MHA, dict(B=4, L=64, S=80, D=32, H=4, mask="float", lengths=[80, 47, 13, 66])),
    ("kdim, vdim", MHA, dict(B=7, L=40, S=56, D=32, H=4, kdim=20, vdim=24)),
    ("kdim, vdim, wide", MHA, dict(B=4, L=64, S=64, D=64, H=4, kdim=192, vdim=160, w=-3)),
    ("sdpa", SDPA, dict(B=2, H=4, L=64, d=16)),
    ("sdpa, L is not S", SDPA, dict(B=2, H=3, L=47, S=131, d=24)),
    ("sdpa, d 4", SDPA, dict(B=4, H=2, L=100, d=4)),
    ("sdpa, d 128", SDPA, dict(B=1, H=2, L=96, d=128)),
    ("sdpa, d 256", SDPA, dict(B=2, H=2, L=80, d=256)),
    ("sdpa, dv is not d", SDPA, dict(B=2, H=4, L=50, S=70, d=16, dv=40)),
    ("sdpa, scale", SDPA, dict(B=2, H=4, L=64, d=32, scale=0.5)),
    ("sdpa, large scores", SDPA, dict(B=2, H=2, L=64, d=32, x=2)),
    ("sdpa, grouped", SDPA, dict(B=2, H=8, G=2, L=64, d=16)),
    ("sdpa, multi-query", SDPA, dict(B=1, H=8, G=1, L=80, d=32)),
    ("sdpa, grouped causal window", SDPA, dict(B=1, H=6, G=3, L=160, d=16, causal=True, window=40)),
    ("sdpa, causal L is not S", SDPA, dict(B=2, H=2, L=40, S=100, d=32, causal=True)),
    ("sdpa, causal L 512", SDPA, dict(B=1, H=2, L=512, d=32, causal=True)),
    ("sdpa, S 1024", SDPA, dict(B=1, H=4, L=64, S=1024, d=32)),
    ("sdpa, window", SDPA, dict(B=2, H=2, L=130, d=16, window=20)),
]


def main():
    torch.manual_seed(0)
    processor = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                     platform.processor())
    run_with = dict(torch=torch.__version__, threads=torch.get_num_threads(), machine=platform.machine(),
                    processor=processor, vectors=torch.backends.cpu.get_cpu_capability(),
                    openblas=os.environ.get("OPENBLAS_CORETYPE", "kernels of the machine's own choice"),
                    command="OMP_NUM_THREADS=1 python3 generate_float32_errors.py float32_errors.json",
                    errors="[largest, root of the mean square], each over the same of the float64 result")
    cases = [measure(name, seed, make, settings) for seed, (name, make, settings) in enumerate(CASES, 1)]
    assert len({case["name"] for case in cases}) == len(cases)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        out.write(f'{{"run_with":{json.dumps(run_with)},\n"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
