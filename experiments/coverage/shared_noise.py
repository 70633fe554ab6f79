"""How much of the validation's noise two arms of a seed share, measured.

    .venv/bin/python experiments/coverage/shared_noise.py

Both arms of a seed validate with the same random numbers, which `simulate.py` lets cost nothing.
The final policies of `../carries_budget` were sampled twice at T = 1: by their own last validation,
both arms of a seed alike, and again for `../carries_hotter`, all policies alike. The difference of
the two readings of a policy is noise alone. It is correlated over problems between the arms of one
seed, and between arms of different seeds, which share the random numbers of the second reading
only; what the former is more comes from the validation, whose share of the noise's variance `OWN`
is. Writes the table `noise` of README.md.
"""

from collections.abc import Sequence
from pathlib import Path
from runpy import run_path

import numpy as np
from numpy.typing import NDArray

from e3rl.analysis.page.study import write_tables
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.data.carries import carry_problems
from e3rl.ledger.archive import open_runs
from e3rl.ledger.ledger import read_rows
from e3rl.statistics.interval import Interval
from e3rl.statistics.means import mean_over_units

FOLDER = Path(__file__).parent
RUNS = FOLDER.parent / "carries_budget" / "runs"
ARMS = ("grpo", "budget")
ROLLOUTS = 16  # of a validation
OWN = (1 / ROLLOUTS) / (1 / ROLLOUTS + 1 / 24)  # 24 later
Reals = NDArray[np.float64]


def read_noise() -> dict[str, Reals]:
    """(S, P) of each arm: the share that was right in the last validation less that of the later
    samples, seeds and problems in one order."""
    hotter = run_path(str(FOLDER.parent / "carries_hotter" / "compare.py"))
    later, noise = hotter["read_samples"](), {}
    order = [problem.id for problem in carry_problems("validation", hotter["PROBLEMS"])]
    for arm in ARMS:
        own = [read_validation(arm, seed, order) for seed in hotter["SEEDS"]]
        noise[arm] = np.array(own) - hotter["tables_of"](later, arm, 1)[1.0]
    return noise


def read_validation(arm: str, seed: int, order: Sequence[str]) -> Reals:
    """(P,) right of the 16 rollouts of a run's own last validation at T = 1. Rows that were sampled
    later stand behind it in the ledger, with more rollouts and other random numbers."""
    run = open_runs(RUNS) / f"seed-{seed}_experiment-{arm}_engine-transformers"
    rows = read_rows(run / "validation.jsonl")
    row = next(row for row in rows if row["name"] == "t1" and set(row["n"]) == {ROLLOUTS})
    right = dict(zip(row["problem_id"], row["correct"], strict=True))
    return np.array([right[problem] for problem in order]) / ROLLOUTS


def correlations(first: Reals, second: Reals) -> tuple[Reals, Reals]:
    """Over problems, of (S, P) and (S, P): of the same seed (S,), and of two others (S,), the mean
    over all other seeds of the second for each of the first."""
    n = len(first)
    table = np.array([[np.corrcoef(first[i], second[j])[0, 1] for j in range(n)] for i in range(n)])
    others = np.array([np.delete(row, i).mean() for i, row in enumerate(table)])
    return np.diag(table), others


def noise_cells() -> Cells:
    """A row for arms of one seed, one for arms of two, and one for what a validation has of it."""
    noise, body = read_noise(), []
    same, other = correlations(*(noise[arm] for arm in ARMS))
    for words, found in (
        ("one seed: both readings", same),
        ("two seeds: the second reading", other),
        ("one seed: its validation, by the two above", (same - other) / OWN),
    ):
        each: Interval = mean_over_units(found).interval()
        shown = f"{each.mean:+.3f} [{each.low:+.3f}, {each.high:+.3f}]"
        body.append([words, shown, f"{found.min():+.3f} to {found.max():+.3f}"])
    return Cells(
        ["arms of, and shared", "correlation", "by seed"],
        body,
        f"Of noise in pass@1, over {noise['grpo'].shape[1]:,} problems, between GRPO and the "
        f"budget; 95 % intervals over {len(noise['grpo'])} seeds.",
    )


def main() -> None:
    table = as_markdown(noise_cells(), ("arms of, and shared", "by seed"))
    write_tables(FOLDER / "README.md", {"noise": table})


if __name__ == "__main__":
    main()
