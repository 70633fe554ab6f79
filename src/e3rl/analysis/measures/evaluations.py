"""`EvaluationResult`: what an evaluation of an arm gave, by problem, and what that estimates.

Seeds of an arm are averaged per problem first; intervals are then over problems. They say how
sure the mean is for problems of this kind, given these seeds; how much seeds differ is shown
beside them (two or three seeds carry no interval of their own).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.interval import Interval
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import differences_of_shares, share_intervals

EVALUATION_ORDER = ("t1", "greedy", "live", "matched")
MEASURED = ("temperature", "entropy")
NO_COMMON_PROBLEM = (
    "have no validation problem in common: runs on different data have one name; give them names "
    "of their own, or report them apart"
)


@dataclass(frozen=True)
class EvaluationResult:
    """What one evaluation of an arm gave: per-problem counts, a table per training seed.

    `seeds` tables have the columns problem_id, n and correct. Entropy is in nats per token.
    """

    arm: str
    name: str
    temperature: float
    entropy: float
    seeds: tuple[pd.DataFrame, ...]
    no_answer: float | None = None  # share of completions without an answer, where counted
    left_out: tuple[str, ...] = field(default=(), kw_only=True)  # paths, see `split_by_end`

    @property
    def n_problems(self) -> int:
        """Problems that all seeds have."""
        return len(self.per_problem([1]))

    @property
    def n_samples(self) -> int:
        """Fewest rollouts of any problem: the largest k of pass@k."""
        return min(int(table["n"].min()) for table in self.seeds)

    def ks(self) -> list[int]:
        """Powers of two up to the number of rollouts."""
        return [1 << i for i in range(self.n_samples.bit_length())]

    def per_problem(self, ks: Sequence[int]) -> pd.DataFrame:
        """pass@k averaged over seeds: a row per problem that all seeds have, a column per k."""
        tables = [pass_table(table, ks) for table in self.seeds]
        common = tables[0].index
        for table in tables[1:]:
            common = common.intersection(table.index, sort=False)
        if common.empty:
            raise ValueError(f"seeds of {self.arm}/{self.name} {NO_COMMON_PROBLEM}")
        return sum((table.loc[common] for table in tables[1:]), tables[0].loc[common]) / len(tables)

    def pass_at_k(self, ks: Sequence[int], level: float = 0.95) -> list[Interval]:
        """Mean over problems with its interval (`statistics.shares`), one for each k."""
        return share_intervals(self.per_problem(ks).to_numpy(), level)

    def by_seed_and_problem(self, k: int) -> NDArray[np.float64]:
        """(S, P) pass@k of every seed on the problems that all seeds have."""
        common = self.per_problem([k]).index
        return np.array([pass_table(table, [k])[k][common] for table in self.seeds])

    def by_seed(self, k: int) -> NDArray[np.float64]:
        """(S,) mean pass@k of each seed."""
        return np.array([pass_table(table, [k])[k].mean() for table in self.seeds])


def pass_at_k_difference(
    a: EvaluationResult, b: EvaluationResult, k: int, level: float = 0.95
) -> tuple[Interval | None, int]:
    """pass@k of `a` minus that of `b`, paired by problem, and the number of problems they share.

    None where they share no problem.
    """
    pair = pd.concat([a.per_problem([k]), b.per_problem([k])], axis="columns", join="inner")
    if pair.empty:
        return None, 0
    left, right = pair.to_numpy().T
    return differences_of_shares((left - right)[:, None])[0].interval(level), len(pair)


def find_evaluation(
    runs: Sequence[Run], name: str, when: Literal["first", "last"] | int = "last"
) -> EvaluationResult | None:
    """The result of evaluation `name` for the seeds of one arm; None where no seed has it.

    `when` is a rollout step, or the arm's last validation, without the seeds that have not got
    there (`split_by_end`), or first: each seed's own before training, if it has another one later.
    """
    kept, early = split_by_end(runs) if when == "last" else (runs, [])
    tables, facts = [], []
    for run in kept:
        step = _step(validated_steps(run), when)
        rows = run.evaluations
        here = rows[(rows["rollout_step"] == step) & (rows["name"] == name)]
        counts = None if here.empty or step is None else run.counts.get((name, step))
        if counts is None:  # not validated so, or counts that are not written yet
            continue
        tables.append(counts)
        facts.append(here.iloc[0])
    if not tables:
        return None
    temperature, entropy = (float(np.mean([f[key] for f in facts])) for key in MEASURED)
    counted = [fact.get("no_answer", np.nan) for fact in facts]
    shares = [n / table["n"].sum() for n, table in zip(counted, tables, strict=True)]
    without = None if np.isnan(shares).any() else float(np.mean(shares))
    about = runs[0].name, name, temperature, entropy, tuple(tables), without
    return EvaluationResult(*about, left_out=tuple(str(run.path) for run in early))


def split_by_end(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs that were validated at the latest step at which any of them was, and those that were
    last validated before; neither has runs without counts."""
    ends = [max(validated_steps(run), default=-1) for run in runs]
    last = max(ends, default=-1)
    kept = [run for run, end in zip(runs, ends, strict=True) if end == last >= 0]
    return kept, [run for run, end in zip(runs, ends, strict=True) if 0 <= end < last]


def validated_steps(run: Run) -> list[int]:
    """Rollout steps of a run's validations that have counts."""
    return [] if run.problems.empty else sorted({step for _, step in run.counts})


def evaluation_names(arms: Arms) -> list[str]:
    """Names of the evaluations that any run has, in a fixed order."""
    found = {
        str(name) for runs in arms.values() for run in runs for name in run.evaluations["name"]
    }
    known = [name for name in EVALUATION_ORDER if name in found]
    return known + sorted(found - set(known))


def has_groups(arms: Arms, name: str) -> bool:
    """Whether some arm has several rollouts per problem in this evaluation."""
    items = [find_evaluation(runs, name) for runs in arms.values()]
    return any(item is not None and item.n_samples > 1 for item in items)


def validation_steps(runs: Sequence[Run]) -> list[int]:
    """Rollout steps at which every seed was validated that was at all."""
    steps = [set(own) for run in runs if (own := validated_steps(run))]
    return sorted(set.intersection(*steps)) if steps else []


def _step(steps: Sequence[int], when: Literal["first", "last"] | int) -> int | None:
    if isinstance(when, int):
        return when
    if when == "last":
        return steps[-1] if steps else None
    return 0 if len(steps) > 1 and steps[0] == 0 else None


def pass_table(table: pd.DataFrame, ks: Sequence[int]) -> pd.DataFrame:
    """pass@k of one validation: a row per problem, a column per k.

    `table` has the columns problem_id, n and correct; every k is at most the smallest n.
    """
    columns = {k: pass_at_k(table["n"], table["correct"], k) for k in ks}
    return pd.DataFrame(columns, index=pd.Index(table["problem_id"].astype(str)))
