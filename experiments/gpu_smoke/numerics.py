"""How far a device's log-probs and gradients are from float64 on the processor.

    python experiments/gpu_smoke/numerics.py cuda

Prints JSON: for every precision of the device the gap of log-probs in nats that one token in fifty
exceeds, the largest one, and the relative error of the gradient of the mean log-prob.
"""

import json
import sys

import torch
from torch import Tensor

from e3rl.policy.policy import Policy

ROWS, WIDTH = 32, 64


def log_probs(policy: Policy, tokens: Tensor) -> Tensor:
    """Of every token but the first, (rows x (width - 1),), at temperature 1."""
    sampled = torch.ones_like(tokens, dtype=torch.bool)
    sampled[:, 0] = False
    logits = policy(tokens, sampled)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits.log_softmax(-1).gather(1, tokens[sampled][:, None])[:, 0]


def probe(policy: Policy, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and the gradient of their mean, on the processor in float64."""
    policy.zero_grad()
    values = log_probs(policy, tokens)
    values.mean().backward()
    parts = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return values.detach().cpu().double(), torch.cat(parts).cpu().double()


def main() -> None:
    device = sys.argv[1]
    exact = Policy("embedded")
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(exact.vocabulary_size, (ROWS, WIDTH), generator=draw)
    wanted, slope = probe(exact.double(), tokens)
    policy, on_device = Policy("embedded").to(device), tokens.to(device)
    found = {}
    for name in ("float32", "tf32", "bfloat16") if device == "cuda" else ("float32", "bfloat16"):
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        half = name == "bfloat16"
        with torch.autocast(device, torch.bfloat16, enabled=half):
            values, gradient = probe(policy, on_device)
        gaps = (values - wanted).abs()
        found[name] = {
            "usual": float(gaps.quantile(0.98)),
            "largest": float(gaps.max()),
            "gradient": float((gradient - slope).norm() / slope.norm()),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
