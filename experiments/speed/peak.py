"""How fast this machine multiplies matrices of an update's sizes.

    python experiments/speed/peak.py SIZES.json

The sizes are those of a policy (layers, hidden, inner, heads, key_value_heads, vocabulary), the
`tokens` of a pass, the number of them that the output layer is applied to (`sampled`), `precision`
and `device`. Prints GFLOP/s over all products of one forward and backward pass, each timed alone,
its matrices made before. No update can be faster than these products.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

REPEATS = 5
LEAST_S = 0.02  # of one timing


def products(size: dict[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """(times, rows, inputs, outputs) of the linear layers."""
    layers, hidden, inner, tokens = (size[k] for k in ("layers", "hidden", "inner", "tokens"))
    width = hidden // size["heads"] * size["key_value_heads"]
    yield layers * 2, tokens, hidden, hidden  # queries and output
    yield layers * 2, tokens, hidden, width  # keys and values
    yield layers * 2, tokens, hidden, inner
    yield layers, tokens, inner, hidden
    yield 1, size["sampled"], hidden, size["vocabulary"]


def seconds(rows: int, inputs: int, outputs: int, device: str, dtype: torch.dtype) -> float:
    """Of y = x W, and of the two products that make the gradients of x and of W."""
    shapes = ((rows, inputs), (inputs, outputs), (rows, outputs))
    x, w, y = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
    out, dx, dw = torch.empty_like(y), torch.empty_like(x), torch.empty_like(w)

    def once() -> None:
        torch.mm(x, w, out=out)
        torch.mm(y, w.T, out=dx)
        torch.mm(x.T, y, out=dw)
        if device == "cuda":
            torch.cuda.synchronize()

    once()
    started = time.perf_counter()
    once()
    calls = max(1, round(LEAST_S / (time.perf_counter() - started)))
    taken = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(calls):
            once()
        taken.append((time.perf_counter() - started) / calls)
    return statistics.median(taken)


def main() -> None:
    taken, flops = 0.0, 0.0
    size = json.loads(Path(sys.argv[1]).read_text())
    dtype = getattr(torch, size["precision"])
    for times, rows, inputs, outputs in products(size):
        taken += times * seconds(rows, inputs, outputs, size["device"], dtype)
        flops += times * 6.0 * rows * inputs * outputs
    print(json.dumps({"gflops": flops / taken / 1e9, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
