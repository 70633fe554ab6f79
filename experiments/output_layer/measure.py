"""What log-probs and entropies by blocks cost and save: peak memory and time of one update.

    python experiments/output_layer/measure.py [--tokens 1024] [--hidden 128] [--repeats 3]

Each case runs in a process of its own, whose peak memory is that of the case; times are medians.
Writes results.json beside this file, and the table in README.md; --table only the latter.
"""

import argparse
import itertools
import json
import resource
import statistics
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from e3rl.functional.head import Adjustment, Head
from e3rl.functional.predictions import LogitBlocks, WholeLogits

VOCABULARIES = (34, 8192, 49152, 151936)
BLOCKS = (None, 64, 128, 256, 512)
HERE = Path(__file__).resolve().parent
MIB = 2**20


class Case(NamedTuple):
    """One cell of the table."""

    vocabulary: int
    block: int | None  # tokens whose logits exist at a time; None: all
    entropies: bool  # trained on as well
    tokens: int
    hidden: int
    repeats: int


def measure(case: Case) -> dict[str, float]:
    """MiB above what weights and states take, and CPU seconds of forward and backward pass."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    hidden = torch.randn(case.tokens, case.hidden, requires_grad=True)
    weight = torch.randn(case.vocabulary, case.hidden, requires_grad=True)
    tokens = torch.randint(case.vocabulary, (case.tokens,))
    taus = torch.ones(case.tokens)
    head = Head(weight, None, Adjustment(), torch.float32)
    weight.grad, hidden.grad = torch.zeros_like(weight), torch.zeros_like(hidden)
    before, seconds = peak_mib(), []
    for _ in range(case.repeats):
        started = time.process_time()
        whole = case.block is None
        made = WholeLogits(head.logits(hidden)) if whole else LogitBlocks(hidden, head, case.block)
        logprobs, entropies = made.scores(tokens, taus, case.entropies)
        total = logprobs.sum() if entropies is None else (logprobs + entropies).sum()
        total.backward()
        del made, logprobs, entropies, total
        seconds.append(time.process_time() - started)
    return {"mib": peak_mib() - before, "seconds": statistics.median(seconds)}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        measure_all(args)
    write_table(json.loads((HERE / "results.json").read_text()))


def measure_all(args: argparse.Namespace) -> None:
    rows = []
    for vocabulary, entropies, block in itertools.product(VOCABULARIES, (False, True), BLOCKS):
        case = Case(vocabulary, block, entropies, args.tokens, args.hidden, args.repeats)
        with get_context("fork").Pool(1) as pool:
            rows.append(case._asdict() | pool.apply(measure, (case,)))
        print(rows[-1], flush=True)
    (HERE / "results.json").write_text(json.dumps(rows, indent=1) + "\n")


def write_table(rows: list[dict[str, Any]]) -> None:
    """Ratios to whole logits, a row for each vocabulary and what is trained on."""
    head = ["vocabulary", "trained on", "whole: MiB", "whole: s"]
    head += [f"block {block}: memory, time" for block in BLOCKS[1:]]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for vocabulary, entropies in itertools.product(VOCABULARIES, (False, True)):
        own = [
            row for row in rows if (row["vocabulary"], row["entropies"]) == (vocabulary, entropies)
        ]
        by_block = {row["block"]: row for row in own}
        whole = by_block[None]
        cells = [f"{vocabulary:,}", "log-probs and entropies" if entropies else "log-probs"]
        cells += [f"{whole['mib']:.0f}", f"{whole['seconds']:.3g}"]
        for block in BLOCKS[1:]:
            ratios = [by_block[block][key] / whole[key] for key in ("mib", "seconds")]
            cells.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
        lines.append(f"| {' | '.join(cells)} |")
    before, _, rest = (HERE / "README.md").read_text().partition("<!-- table: blocks -->")
    after = rest.partition("<!-- end -->")[2]
    text = "\n".join(lines)
    (HERE / "README.md").write_text(
        f"{before}<!-- table: blocks -->\n\n{text}\n\n<!-- end -->{after}"
    )


if __name__ == "__main__":
    main()
