"""Writes cases of what may be done to scores, masks and positions of attention, in float64.

    python3 tests/data/generate_variants.py tests/data/variants [SEED]

Needs python3-torch >= 2.5 and python3-safetensors. Written from docs/features alone, without a look
at the library's code; `replay_pytorch` runs what it writes. Each file holds one case: inputs by
name, what the formulas written out pair by pair give, and what autograd makes of them, under
"expected.". Other seeds give other numbers and slightly other sizes.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, d and dv widths. The key beside
query i is number i + S - L; the distance of a pair is j - i - (S - L). Metadata are strings.

kind "sdpa": query [B, H, L, d], key [B, G, S, d], value [B, G, S, dv], grad_output [B, H, L, dv].
Expected: output, weights [B, H, L, S] without the share of a sink, logsumexp [B, H, L] with it, and
grad.NAME of each real input. The two cases named "_long" leave the weights out, for their size.
Inputs that only some cases have, in the order in which they act on scale q k^T, behind softcap:
  alibi_slopes [H]                       slope |distance| is subtracted
  relative_bias [H or 1, 2 R + 1]        number R + distance is added, the distance cut to -R ... R
  attn_mask [L, S] or [B, H, L, S]       numbers that are added
  documents [B, S]                       a pair is visible within one document
  sinks [H]                              one more logit of each row, behind the masks
  q_norm, k_norm [d]                     gains: before all else queries and keys are divided by
                                         sqrt(mean of squares + epsilon) and multiplied by these
Metadata beside those of sdpa elsewhere (alibi is 0: slopes are inputs here):
  learned_scale                          1: there is grad.scale [1]
  window_keeps                           keys before this one are visible beside the window, too
  rope_pairs, rope_width, rope_offset    "halves" (t, t + width / 2) or "neighbours" (2 t, 2 t + 1)
                                         of the first width numbers (0: all); position of row 0
"""
import math
import sys

import torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def normalised(x, gain, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * gain


def turned(x, meta):
    width = meta["rope_width"] or x.shape[-1]
    t = torch.arange(width // 2)
    halves = meta["rope_pairs"] == "halves"
    first, second = (t, t + width // 2) if halves else (2 * t, 2 * t + 1)
    position = meta["rope_offset"] + torch.arange(x.shape[-2])
    angle = position[:, None] * meta["rope_theta"] ** (-2.0 * t / width)
    a, b = x[..., first], x[..., second]
    y = x.clone()
    y[..., first] = a * angle.cos() - b * angle.sin()
    y[..., second] = a * angle.sin() + b * angle.cos()
    return y


def visible_pairs(distance, x, meta):
    """Which pairs no mask hides, [1 or B, 1, L, S]."""
    queries, keys = distance.shape
    visible = torch.ones_like(distance, dtype=torch.bool)
    if meta["window"]:
        kept = torch.arange(keys) < meta["window_keeps"]
        visible = (distance.abs() < meta["window"]) | kept
    if meta["causal"]:
        visible = visible & (distance <= 0)
    visible = visible[None, None]
    if "documents" in x:
        of_query = x["documents"][:, torch.arange(queries) + keys - queries]
        visible = visible & (of_query[:, None, :, None] == x["documents"][:, None, None, :])
    return visible


def changed_scores(score, distance, x, meta):
    if meta["softcap"]:
        score = meta["softcap"] * torch.tanh(score / meta["softcap"])
    if "alibi_slopes" in x:
        score = score - x["alibi_slopes"][:, None, None] * distance.abs()
    if "relative_bias" in x:
        reach = x["relative_bias"].shape[1] // 2
        score = score + x["relative_bias"][:, distance.clamp(-reach, reach) + reach]
    if "attn_mask" in x:
        score = score + x["attn_mask"]
    return score


def softmax_with_sink(score, visible, sink):
    """Weights and logsumexp; 0 and -infinity where a query sees no key."""
    hidden = score.masked_fill(~visible, -math.inf)
    logits = hidden if sink is None else torch.cat([hidden, sink.expand(*score.shape[:-1], 1)], -1)
    seen = visible.expand_as(score).any(-1, keepdim=True)
    top = torch.where(seen, logits.detach().amax(-1, keepdim=True), 0.0)
    total = torch.where(seen, torch.exp(logits - top).sum(-1, keepdim=True), 1.0)
    weights = torch.where(seen, torch.exp(hidden - top) / total, 0.0)
    return weights, torch.where(seen, top + torch.log(total), -math.inf).squeeze(-1)


def attention(x, scale, meta):
    q, k = x["query"], x["key"]
    if "q_norm" in x:
        q = normalised(q, x["q_norm"], meta["epsilon"])
        k = normalised(k, x["k_norm"], meta["epsilon"])
    if meta["rope_theta"]:
        q, k = turned(q, meta), turned(k, meta)
    group = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    k, v = k[:, group], x["value"][:, group]
    queries, keys = q.shape[2], k.shape[2]
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    score = changed_scores(scale * (q @ k.transpose(-1, -2)), distance, x, meta)
    sink = x["sinks"][:, None, None] if "sinks" in x else None
    weights, logsumexp = softmax_with_sink(score, visible_pairs(distance, x, meta), sink)
    return weights @ v, weights, logsumexp


def documents(sizes_and_ids, length):
    """Ids of documents side by side, [B, length]; the last one of a row takes what is left."""
    rows = []
    for row in sizes_and_ids:
        ids = [name for size, name in row for _ in range(size)]
        rows.append(ids + [row[-1][1]] * (length - len(ids)))
    return torch.tensor(rows, dtype=torch.float64)


def inputs(B, H, G, L, S, d, dv, magnitude, slopes, reach, shared, pairs, sinks, ids, norm):
    x = {"query": magnitude * torch.randn(B, H, L, d), "key": magnitude * torch.randn(B, G, S, d),
         "value": torch.randn(B, G, S, dv)}
    if slopes:
        x["alibi_slopes"] = 0.3 * torch.randn(H)
    if reach:
        x["relative_bias"] = torch.randn(1 if shared else H, 2 * reach + 1)
    if pairs:
        x["attn_mask"] = torch.randn(L, S) if pairs == "LS" else torch.randn(B, H, L, S)
    if sinks:
        x["sinks"] = torch.randn(H)
    if ids:
        x["documents"] = documents(ids, S)
    if norm:
        x["q_norm"] = 1 + 0.3 * torch.randn(d)
        x["k_norm"] = 1 + 0.3 * torch.randn(d)
    return x


def case(path, seed, *, B=2, H=2, G=None, L, S=None, d, dv=None, magnitude=1.0, slopes=False,
         reach=0, shared=False, pairs=None, sinks=False, ids=None, norm=False, causal=False,
         window=0, window_keeps=0, softcap=0.0, rope_theta=0.0, rope_pairs="halves", rope_width=0,
         rope_offset=0, scale=None, learned_scale=False, epsilon=1e-6, keep_weights=True):
    torch.manual_seed(seed)
    G, S, dv = G or H, S or L, dv or d
    scale = torch.tensor([scale or 1 / math.sqrt(d)])
    meta = dict(kind="sdpa", num_heads=H, num_kv_heads=G, causal=int(causal), window=window,
                window_keeps=window_keeps, softcap=softcap, alibi=0, rope_theta=rope_theta,
                rope_pairs=rope_pairs, rope_width=rope_width, rope_offset=rope_offset,
                scale=scale.item(), learned_scale=int(learned_scale))
    if norm:
        meta["epsilon"] = epsilon
    x = inputs(B, H, G, L, S, d, dv, magnitude, slopes, reach, shared, pairs, sinks, ids, norm)
    learned = {name: value for name, value in x.items() if name != "documents"}
    if learned_scale:
        learned["scale"] = scale
    for value in learned.values():
        value.requires_grad_()
    output, weights, logsumexp = attention(x, scale, meta)
    grad_output = torch.randn_like(output)
    gradients = torch.autograd.grad(output, list(learned.values()), grad_output)
    tensors = x | {"grad_output": grad_output, "expected.output": output,
                   "expected.logsumexp": logsumexp}
    if keep_weights:
        tensors["expected.weights"] = weights
    tensors |= {f"expected.grad.{name}": g for name, g in zip(learned, gradients)}
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, path,
              metadata={name: str(value) for name, value in meta.items()})


def main(folder, seed):
    def write(name, number, **options):
        case(f"{folder}/{name}.safetensors", 1000 * seed + number, **options)

    a = seed % 3
    write("sdpa_sinks", 101, L=5 + a, S=7 + a, d=4, sinks=True)
    write("sdpa_sinks_softcap_gqa", 102, B=1, H=4, G=2, L=6 + a, d=4, magnitude=2.0, causal=True,
          softcap=1.5, sinks=True)
    write("sdpa_sinks_dead_rows", 121, L=9 + a, S=5, d=4, sinks=True, causal=True)
    write("sdpa_alibi_slopes", 103, H=3, L=4 + a, S=7, d=3, slopes=True)
    write("sdpa_alibi_slopes_causal_gqa", 104, B=1, H=4, G=2, L=7 + a, d=4, slopes=True,
          causal=True)
    write("sdpa_relative_bias", 105, L=5 + a, S=8, d=4, reach=2)
    write("sdpa_relative_bias_shared", 106, B=1, H=4, G=2, L=7 + a, d=4, reach=3, shared=True,
          causal=True)
    write("sdpa_bias_pairs", 107, L=5 + a, S=7, d=4, pairs="LS")
    write("sdpa_bias_all", 108, L=5 + a, S=8 + a, d=4, pairs="BHLS", causal=True)
    write("sdpa_learned_scale", 109, L=6 + a, S=5 + a, d=4, scale=0.7, learned_scale=True)
    write("sdpa_window_keeps", 110, B=1, H=1, L=37 + a, d=4, causal=True, window=8, window_keeps=3)
    write("sdpa_window_keeps_sinks_long", 111, B=1, H=1, L=149 + a, d=16, dv=4, causal=True,
          window=12, window_keeps=3, sinks=True, keep_weights=False)
    ids = [[(4, 7), (1, 4), (5, 9)], [(6, -3), (2, 7)]]
    write("sdpa_documents", 112, L=10 + a, G=1, d=4, causal=True, ids=ids)
    write("sdpa_documents_bidirectional", 113, L=10 + a, G=1, d=4, ids=ids)
    rope = dict(B=1, causal=True, rope_theta=100.0)
    write("sdpa_rope_neighbours", 114, L=7 + a, d=8, G=1, rope_pairs="neighbours", **rope)
    write("sdpa_rope_part", 115, L=7 + a, d=10, G=1, dv=3, rope_width=6, rope_offset=5, **rope)
    write("sdpa_rope_neighbours_part_offset", 116, L=7 + a, d=10, G=1, dv=3, rope_width=4,
          rope_offset=11, rope_pairs="neighbours", **rope)
    write("sdpa_qk_norm_gqa", 117, B=1, H=4, G=2, L=6 + a, d=6, dv=4, norm=True, causal=True,
          epsilon=0.01)
    write("sdpa_qk_norm_rope", 118, L=6 + a, d=6, G=1, dv=4, norm=True, causal=True,
          rope_theta=10000.0)
    everything = dict(slopes=True, sinks=True, learned_scale=True, causal=True, magnitude=2.0,
                      softcap=3.0, scale=0.4)
    write("sdpa_everything", 119, H=4, G=2, L=6 + a, S=9 + a, d=4, dv=3, reach=2, pairs="BHLS",
          window=5, **everything)
    write("sdpa_everything_long", 120, B=1, G=1, L=116 + a, S=133 + a, d=8, dv=3, reach=9,
          pairs="LS", window=50, keep_weights=False, **everything)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
