"""`PassRateTable`: prompts and how often a policy solves them, made up or recorded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.seeds import derive_seed

LARGEST = 700.0  # change of log-odds whose exponential, and that of its negative, is a number


@dataclass(frozen=True)
class PassRateTable:
    """N prompts with their pass rates in the first pass over them.

    `learning` is what the log-odds of every pass rate gain from one pass to the next; rates of 0
    and 1 stay. It is the same for every rule, since a table cannot know what a rule teaches.
    """

    prompt_ids: list[str]
    rates: NDArray[np.float64]  # (N,) in [0, 1]
    learning: float = 0.0

    def __post_init__(self) -> None:
        if len(self.prompt_ids) != len(self.rates) or not len(self.rates):
            raise ValueError(
                f"{len(self.prompt_ids)} prompts with {len(self.rates)} pass rates: give one each"
            )
        if not ((self.rates >= 0) & (self.rates <= 1)).all():
            raise ValueError("pass rates must lie in [0, 1]")

    def __len__(self) -> int:
        return len(self.rates)

    def rates_at(self, epoch: int) -> NDArray[np.float64]:
        """(N,) pass rates during pass `epoch`, counted from 0."""
        if self.learning * epoch == 0:
            return self.rates
        odds = np.exp(np.clip(self.learning * epoch, -LARGEST, LARGEST))
        shifted: NDArray[np.float64] = self.rates * odds / (1 - self.rates + self.rates * odds)
        return shifted


def generate_table(
    prompts: int,
    impossible: float = 0.15,
    trivial: float = 0.1,
    shape: tuple[float, float] = (0.7, 0.9),
    learning: float = 0.0,
    seed: int = 0,
) -> PassRateTable:
    """Pass rates of a mixture: never solved, always solved, and Beta(`shape`) for the others.

    The defaults give a U-shaped distribution with peaks at 0 and 1 and a flat middle, as seen
    early in training on problems of mixed difficulty.

    Args:
        prompts: size of the table.
        impossible, trivial: shares of the prompts with pass rate 0 and 1.
        shape: a and b of the Beta distribution of the others.
        learning: what log-odds gain from pass to pass, see `PassRateTable`.
        seed: of the draw.

    Raises ValueError for no prompts, shares below 0 or above 1 together, or a `shape` that is not
    two numbers above 0.
    """
    if len(shape) != 2 or not min(shape) > 0:
        raise ValueError(f"shape={list(shape)}: give a and b of a Beta distribution, both above 0")
    if prompts < 1 or not (impossible >= 0 and trivial >= 0 and impossible + trivial <= 1):
        raise ValueError(
            f"prompts={prompts}, impossible={impossible}, trivial={trivial}: use at least one "
            "prompt, and shares that add up to at most 1"
        )
    generator = np.random.default_rng(derive_seed(seed, "pass rates"))
    kind = generator.random(prompts)
    rates = generator.beta(*shape, prompts)
    rates = np.where(kind < impossible, 0.0, np.where(kind > 1 - trivial, 1.0, rates))
    return PassRateTable([f"prompt-{i}" for i in range(prompts)], rates, learning)


def load_table(runs: Iterable[str | Path], learning: float = 0.0) -> PassRateTable:
    """Pass rates of the prompts in the prompts.jsonl of finished runs: all right rollouts over all.

    Give several runs or seeds: from 8 rollouts a prompt with a pass rate of 5 % looks impossible
    in two cases of three.

    Raises FileNotFoundError where a folder is no run or recorded no prompts.
    """
    return _pool_runs(load_runs(runs), learning)


def load_tables_by_arm(
    runs: Iterable[str | Path], learning: float = 0.0
) -> dict[str, PassRateTable]:
    """`load_table` of every arm: runs that differ in the seed only share their `name`."""
    return {
        arm: _pool_runs(found, learning) for arm, found in group_by_arm(load_runs(runs)).items()
    }


def _pool_runs(found: Sequence[Run], learning: float) -> PassRateTable:
    counts = pd.concat([run.prompts[["prompt_id", "n", "correct"]] for run in found])
    if counts.empty:
        raise FileNotFoundError(
            f"no prompts.jsonl in {', '.join(str(run.path) for run in found)}: give folders of "
            "runs that recorded their prompts"
        )
    sums = counts.astype({"n": "int64", "correct": "float64"}).groupby("prompt_id").sum()
    sums = sums[sums["n"] > 0].sort_index()
    return PassRateTable(
        [str(x) for x in sums.index], (sums["correct"] / sums["n"]).to_numpy(), learning
    )
