"""PyTorch's side of the comparison: multi-head attention as it runs fastest there on a CPU.

    python3 torch_attention.py SECONDS      (or: python3 -c "$(cat torch_attention.py)" SECONDS)

Reads a request a line and answers each with a line of JSON, as headwise_bench --turns does:

    FAMILY B L D H G CAUSAL    {"seconds": median, "best": .., "runs": ..}
    FAMILY B S D H G           likewise, for decode/cache/f32, by_head/f32 and by_token/f32
    scores/CHANGE/f32 B L D H G    likewise: attention alone, forward and backward
    about                      {"version": .., "threads": .., "processor": ..}

FAMILY is mha/forward/f32, without autograd, or mha/forward_backward/f32, with the gradients of the
input and of every parameter. The module is one linear layer for queries, keys and values, then
scaled_dot_product_attention, whose kernel keeps nothing of size L x L, then a linear layer. What is
done to scores is given to that function as far as it takes it: as a mask of bool or of float, made
before; a softcap, which it does not know, is written out. What this does not know is answered with
{"error": ".."}. It needs torch and nothing else.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F


class Attention(torch.nn.Module):
    def __init__(self, d_model, heads, kv_heads, causal):
        super().__init__()
        self.heads, self.kv_heads, self.causal = heads, kv_heads, causal
        self.width = d_model // heads
        self.qkv = torch.nn.Linear(d_model, (heads + 2 * kv_heads) * self.width)
        self.out = torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        batch, length, d_model = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.width).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        grouped = {"enable_gqa": True} if self.kv_heads != self.heads else {}
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, **grouped)
        return self.out(y.transpose(1, 2).reshape(batch, length, d_model))


def make_decoding(family, values):
    """One query a head against keys and values that lie head by head, as a cache of torch's has
    them, or token by token."""
    batch, length, d_model, heads, kv_heads = values
    width = d_model // heads
    q = torch.randn(batch, heads, 1, width)

    def cache():
        if family == "decode/by_token/f32":
            return torch.randn(batch, length, kv_heads, width).transpose(1, 2)
        return torch.randn(batch, kv_heads, length, width)

    k, v = cache(), cache()
    grouped = {"enable_gqa": True} if kv_heads != heads else {}

    def forward():
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, **grouped)

    return forward


def mask_of(change, length, heads):
    """What headwise_bench's family scores/CHANGE does to pairs, as attn_mask."""
    positions = torch.arange(length)
    distance = positions[:, None] - positions[None, :]
    seen = distance >= 0
    nothing = torch.tensor(float("-inf"))
    if change == "causal_bias":
        return torch.where(seen, torch.tensor(0.0), nothing)
    if change == "padding_bias":
        return torch.where(positions < 3 * length // 4, torch.tensor(0.0), nothing)[None]
    if change == "keep":
        pairs = torch.arange(length * length).view(length, length)
        return seen & (pairs % 7 != 3)
    if change == "documents":
        return seen & (positions[:, None] // 512 == positions[None, :] // 512)
    if change == "window":
        return seen & (distance < 256)
    if change == "alibi":
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        return torch.where(seen, -slopes[:, None, None] * distance, nothing)[None]
    raise ValueError("there is no change " + change)


def make_scores(change, values):
    """Causal attention of one tensor each, forward and backward, with a change of its scores."""
    batch, length, d_model, heads, kv_heads = values
    width = d_model // heads
    q = torch.randn(batch, heads, length, width, requires_grad=True)
    k, v = (torch.randn(batch, kv_heads, length, width, requires_grad=True) for _ in range(2))
    learned, dy = [q, k, v], torch.randn(batch, heads, length, width)
    hidden = torch.ones(length, length).triu(1).bool()

    def attend(**arguments):
        return F.scaled_dot_product_attention(q, k, v, **arguments)

    if change == "plain":
        forward = lambda: attend(is_causal=True)
    elif change == "dropout":
        forward = lambda: attend(is_causal=True, dropout_p=0.1)
    elif change == "bias":
        bias = torch.randn(1, heads, length, length, requires_grad=True)
        learned.append(bias)
        forward = lambda: attend(attn_mask=bias.masked_fill(hidden, float("-inf")))
    elif change == "softcap":
        def forward():
            scores = 30 * torch.tanh(q @ k.transpose(2, 3) * (width ** -0.5 / 30))
            return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    else:
        mask = mask_of(change, length, heads)
        forward = lambda: attend(attn_mask=mask)

    def forward_backward():
        for x in learned:
            x.grad = None
        forward().backward(dy)

    return forward_backward


def make_case(family, values):
    """A function without arguments: one run of what is timed."""
    if family.startswith("scores/"):
        return make_scores(family.split("/")[1], values)
    if family in ("decode/cache/f32", "decode/by_head/f32", "decode/by_token/f32"):
        return make_decoding(family, values)
    batch, length, d_model, heads, kv_heads, causal = values
    torch.manual_seed(0)
    module = Attention(d_model, heads, kv_heads, causal != 0)
    x = torch.randn(batch, length, d_model, requires_grad=True)
    dy = torch.randn(batch, length, d_model)

    def forward():
        with torch.no_grad():
            module(x)

    def forward_backward():
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x).backward(dy)

    cases = {"mha/forward/f32": forward, "mha/forward_backward/f32": forward_backward}
    if family not in cases:
        raise ValueError("there is no family " + family)
    return cases[family]


def measure(run, seconds):
    run()
    times, start = [], time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return {"seconds": sorted(times)[len(times) // 2], "best": min(times), "runs": len(times)}


def answer(line, seconds):
    family, *values = line.split()
    if family == "about":
        return {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": torch.backends.cpu.get_cpu_capability()
            if hasattr(torch.backends, "cpu") else "",
        }
    return measure(make_case(family, [int(value) for value in values]), seconds)


def main(seconds):
    for line in sys.stdin:
        try:
            reply = answer(line, seconds)
        except Exception as error:  # the partner is told, whatever it is
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
