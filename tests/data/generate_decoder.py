"""Writes decoder_steps.json: a decoder of char_gpt's form and what PyTorch makes of it in double.

    python3 tests/data/generate_decoder.py tests/data/decoder_steps.json

Two pre-LN blocks without biases, learned positions, tied embedding and head. Weights are [in, out]
here and transposed for PyTorch's Linear. Kept: the loss and every gradient of the first step, and
the parameters after five steps of AdamW (0.9, 0.99) at 1e-3, decay 0.1 on matrices, gradients
clipped at norm 0.5, which all five exceed.
"""
import json
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
V, D, H, T, B, LAYERS = 11, 12, 3, 7, 2, 2


def weight(*shape):
    return torch.nn.Parameter(torch.randn(*shape) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1))


p = {"token": weight(V, D), "position": weight(T, D)}
for n in range(LAYERS):
    p |= {f"blocks.{n}.norm1": weight(D), f"blocks.{n}.qkv": weight(D, 3 * D), f"blocks.{n}.proj": weight(D, D),
          f"blocks.{n}.norm2": weight(D), f"blocks.{n}.up": weight(D, 4 * D), f"blocks.{n}.down": weight(4 * D, D)}
p["norm"] = weight(D)


def forward(x):
    h = F.embedding(x, p["token"]) + p["position"][: x.shape[1]]
    for n in range(LAYERS):
        w = {name.split(".")[-1]: value for name, value in p.items() if name.startswith(f"blocks.{n}.")}
        qkv = F.linear(F.layer_norm(h, [D], w["norm1"]), w["qkv"].T)
        q, k, v = (t.view(*t.shape[:2], H, D // H).transpose(1, 2) for t in qkv.split(D, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
        h = h + F.linear(a, w["proj"].T)
        h = h + F.linear(F.gelu(F.linear(F.layer_norm(h, [D], w["norm2"]), w["up"].T)), w["down"].T)
    return F.linear(F.layer_norm(h, [D], p["norm"]), p["token"])


def values():
    return {name: value.detach().flatten().tolist() for name, value in p.items()}


out = {"vocabulary": V, "width": D, "heads": H, "context": T, "layers": LAYERS, "start": values(), "losses": [],
       "inputs": [], "targets": []}
matrices = [w for w in p.values() if w.dim() > 1]
vectors = [w for w in p.values() if w.dim() == 1]
optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                              lr=1e-3, betas=(0.9, 0.99))
for step in range(5):
    tokens = torch.randint(V, (B, T + 1))
    x, y = tokens[:, :-1], tokens[:, 1:]
    out["inputs"].append(x.tolist())
    out["targets"].append(y.tolist())
    optimizer.zero_grad()
    loss = F.cross_entropy(forward(x).reshape(-1, V), y.reshape(-1))
    loss.backward()
    if step == 0:
        out["gradients"] = {name: value.grad.flatten().tolist() for name, value in p.items()}
    assert torch.nn.utils.clip_grad_norm_(list(p.values()), 0.5) > 0.5
    optimizer.step()
    out["losses"].append(loss.item())
out["end"] = values()
with open(sys.argv[1], "w", encoding="ascii") as file:
    json.dump(out, file)
    file.write("\n")
