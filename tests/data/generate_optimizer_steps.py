#!/usr/bin/env python3
"""Writes optimizer_steps.json: what torch.optim.AdamW and SGD make of two parameters, step by step, in float64 on the CPU.

Needs PyTorch (2.6 wrote the file that is kept). Numbers are printed so that reading them gives the same bits.
"""
import json
import math
import pathlib

import torch

STEPS = 8
generator = torch.Generator().manual_seed(20)


def normal(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


START = {"w": normal(3, 7), "b": normal(7)}
GRADIENTS = [{name: normal(*x.shape) * 10 ** (step % 3 - 1) for name, x in START.items()} for step in range(STEPS)]
RATES = [1e-2 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)]


def run(optimizer, options, matrix=None, vector=None, rates=None, max_norm=None):
    """Values after each step; options of the matrix and of the vector may differ."""
    values = {name: torch.nn.Parameter(x.clone()) for name, x in START.items()}
    groups = [dict(params=[values["w"]], **(matrix or {})), dict(params=[values["b"]], **(vector or {}))]
    made = optimizer(groups, **options)
    case = dict(optimizer=optimizer.__name__, options=options, matrix=matrix or {}, vector=vector or {}, steps=[])
    for step, gradients in enumerate(GRADIENTS):
        if rates:
            for group in made.param_groups:
                group["lr"] = rates[step]
        for name, value in values.items():
            value.grad = gradients[name].clone()
        after = {}
        if max_norm:
            after["norm"] = torch.nn.utils.clip_grad_norm_(list(values.values()), max_norm).item()
        made.step()
        case["steps"].append(after | {name: value.detach().flatten().tolist() for name, value in values.items()})
    return case | (dict(rates=rates) if rates else {}) | (dict(max_norm=max_norm) if max_norm else {})


AdamW, SGD = torch.optim.AdamW, torch.optim.SGD
cases = {
    "AdamW by default": run(AdamW, {}),
    "AdamW with decay of matrices alone": run(AdamW, dict(lr=1e-2, betas=(0.9, 0.99)), dict(weight_decay=0.1), dict(weight_decay=0.0)),
    "AdamW with a large epsilon": run(AdamW, dict(lr=0.1, eps=1e-2)),
    "AdamW that forgets fast": run(AdamW, dict(lr=1e-2, betas=(0.3, 0.5))),
    "AdamW at one half": run(AdamW, dict(lr=1e-2, betas=(0.5, 0.9))),
    "AdamW without memory": run(AdamW, dict(lr=1e-2, betas=(0.0, 0.0))),
    "AdamW with a schedule": run(AdamW, {}, rates=RATES),
    "AdamW with clipped gradients": run(AdamW, dict(lr=1e-2), max_norm=1.0),
    "SGD": run(SGD, dict(lr=0.1)),
    "SGD with decay": run(SGD, dict(lr=0.1, weight_decay=0.05)),
    "SGD with momentum": run(SGD, dict(lr=0.1, momentum=0.9)),
    "SGD with momentum, dampening and decay": run(SGD, dict(lr=0.1, momentum=0.8, dampening=0.3, weight_decay=0.05)),
    "SGD with Nesterov's momentum": run(SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
    "SGD with Nesterov's momentum, decay and clipped gradients": run(
        SGD, dict(lr=0.1, momentum=0.9, nesterov=True), dict(weight_decay=0.1), max_norm=0.5),
}
flat = {name: x.flatten().tolist() for name, x in START.items()}
document = dict(made_by="torch " + torch.__version__, start=flat,
                gradients=[{name: x.flatten().tolist() for name, x in step.items()} for step in GRADIENTS], cases=cases)
path = pathlib.Path(__file__).with_name("optimizer_steps.json")
path.write_text(json.dumps(document, separators=(",", ":")).replace('"start"', '\n"start"').replace('{"optimizer"', '\n{"optimizer"') + "\n")
print(path, path.stat().st_size, "bytes by torch", torch.__version__)
