"""PyTorch's side of the training comparison: the model and the recipe of examples/char_gpt.

    python3 torch_char_gpt.py [--steps N] [--layers N] .. < TEXT   (or: python3 -c "$(cat ..)" .. < TEXT)

Trains on the text that it reads, and prints one line of JSON: seconds a step (median), the loss of the
last batch, and characters a second that it writes with a cache of keys and values. It needs torch and
nothing else.
"""
import argparse
import json
import math
import sys
import time

import torch
import torch.nn.functional as F


def arguments():
    parser = argparse.ArgumentParser()
    for name, value in {"steps": 2000, "layers": 4, "heads": 4, "width": 128, "context": 64,
                        "batch": 12, "sample": 0, "seed": 0}.items():
        parser.add_argument("--" + name, type=int, default=value)
    return parser.parse_args()


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width, bias=False)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.proj = torch.nn.Linear(width, width, bias=False)
        self.norm2 = torch.nn.LayerNorm(width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cache=None, at=0):
        """x [B, L, D]. With a cache (keys, values) x is the one token at position `at`."""
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = heads[0], heads[1], heads[2]
        if cache is not None:
            cache[0][:, :, at], cache[1][:, :, at] = k[:, :, 0], v[:, :, 0]
            k, v = cache[0][:, :, :at + 1], cache[1][:, :, :at + 1]
        context = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.proj(context.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    def __init__(self, o, vocabulary):
        super().__init__()
        self.token = torch.nn.Embedding(vocabulary, o.width)
        self.position = torch.nn.Embedding(o.context, o.width)
        self.blocks = torch.nn.ModuleList(Block(o.width, o.heads) for _ in range(o.layers))
        self.norm = torch.nn.LayerNorm(o.width, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends_a_branch = name.endswith(("proj.weight", "down.weight"))
                scale = 1 / math.sqrt(2 * o.layers) if ends_a_branch else 1
                torch.nn.init.normal_(weight, std=0.02 * scale)

    def forward(self, tokens, caches=None, at=0):
        length = tokens.shape[1]
        h = self.token(tokens) + self.position.weight[at:at + length]
        for n, block in enumerate(self.blocks):
            h = block(h, None if caches is None else caches[n], at)
        return self.norm(h) @ self.token.weight.T


def learning_rate(step, steps):
    if step < 100:
        return 1e-3 * (step + 1) / 100
    return 1e-4 + 0.5 * 9e-4 * (1 + math.cos(math.pi * (step - 100) / max(1, steps - 100)))


def train(model, tokens, o):
    """Seconds of each step, and the last loss."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.99))
    seconds, loss = [], torch.tensor(math.nan)
    for step in range(o.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, o.steps)
        begin = time.perf_counter()
        starts = torch.randint(len(tokens) - o.context, (o.batch,)).tolist()
        inputs = torch.stack([tokens[at:at + o.context] for at in starts])
        targets = torch.stack([tokens[at + 1:at + 1 + o.context] for at in starts])
        optimizer.zero_grad(set_to_none=True)
        logits = model(inputs)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds, loss.item()


@torch.no_grad()
def write(model, first, o):
    """Characters a second: one at a time from a cache, which is begun anew when it is full."""
    shape = (1, o.heads, o.context, o.width // o.heads)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(o.layers)]
    token, written, begin = first.view(1, 1), 0, time.perf_counter()
    while written < o.sample:
        for at in range(min(o.context, o.sample - written)):
            chances = F.softmax(model(token, caches, at)[0, -1], dim=-1)
            token = torch.multinomial(chances, 1).view(1, 1)
            written += 1
    return written / (time.perf_counter() - begin)


def main():
    o = arguments()
    torch.manual_seed(o.seed)
    text = sys.stdin.buffer.read().decode()
    number = {character: n for n, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[character] for character in text])[:int(0.9 * len(text))]
    model = Gpt(o, len(number))
    seconds, loss = train(model, tokens, o)
    print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(),
                      "parameters": sum(p.numel() for p in model.parameters()),
                      "last_train_loss": loss,
                      "step_s": sorted(seconds)[len(seconds) // 2] if seconds else None,
                      "tokens_s": write(model, tokens[0], o) if o.sample else None}))


if __name__ == "__main__":
    main()
