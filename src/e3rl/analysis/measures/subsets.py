"""Easy and hard problems: arms on those that the untrained policy solves so often."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.families import check_pass_rates
from e3rl.analysis.sources.runs import Arms, Run, kept_with_run

START = "t1"  # the evaluation whose rollouts say how hard a problem is


def compare_on_problems(
    arms: Arms, control: str | None, untrained: Sequence[float], **options: Any
) -> list[Row]:
    """Rows of `compare_arms` on the problems whose pass rate before training is in [low, high].

    `subset` says so in words, with how many rollouts of a problem that rests on. They are
    comparisons of their own, exploratory unless a family declares them on these problems.

    Raises ValueError as `check_pass_rates`, `keep_problems` and `compare_arms`.
    """
    check_pass_rates("comparison", *untrained)
    rows = compare_arms(keep_problems(arms, untrained), control, **options)
    return name_subset(rows, arms, untrained)


def name_subset(rows: Sequence[Row], arms: Arms, untrained: Sequence[float]) -> list[Row]:
    """Rows of `keep_problems` as comparisons of their own; `subset` says of which problems."""
    low, high = untrained
    share = f"{100 * low:g} to {100 * high:g} %" if low < high else f"{100 * low:g} %"
    fewest = start_counts(arms)["n"].min()
    words = f"solved by the untrained policy in {share} of its {fewest} rollouts"
    return [
        row
        | {"subset": words}
        | {"comparison": row["comparison"] and f"{row['comparison']}, {words}"}
        for row in rows
    ]


def start_counts(arms: Arms) -> pd.DataFrame:
    """Rollouts (`n`) and right ones (`correct`) of each problem before training, at temperature 1,
    over all runs; runs that drew the same ones, as arms of one seed do, count once, and so do
    draws that happen to be alike, as where nobody solves anything: fewer rollouts are claimed then
    than there were.

    Raises ValueError where no run was validated before its first step.
    """
    drawn = dict(_drawn(run) for runs in arms.values() for run in runs)
    sums = pd.concat(drawn.values()).groupby("problem_id").sum()
    if sums.empty:
        raise ValueError(f"no run has an evaluation {START} before its first step")
    return sums


@kept_with_run
def _drawn(run: Run) -> tuple[bytes, pd.DataFrame]:
    """The counts of one run before training, and what tells them from other ones: they themselves,
    since runs may share a draw whatever their seeds."""
    rows = run.problems[(run.problems["rollout_step"] == 0) & (run.problems["name"] == START)]
    counts = rows.set_index("problem_id")[["n", "correct"]].sort_index()
    return counts.to_csv().encode(), counts


def start_pass_rates(arms: Arms) -> pd.Series:
    """Share of right rollouts of each problem in `start_counts`."""
    counts = start_counts(arms)
    return counts["correct"] / counts["n"]


def keep_problems(arms: Arms, untrained: Sequence[float]) -> Arms:
    """The arms, validated on the problems whose pass rate before training is in [low, high] alone.

    Start and end of a run are sampled apart, so choosing by the one does not bend the other.

    Raises ValueError where no problem is left.
    """
    low, high = untrained
    rates = start_pass_rates(arms)
    kept = set(rates.index[(rates >= low) & (rates <= high)])
    if not kept:
        raise ValueError(f"untrained=[{low}, {high}]: no problem has such a pass rate")
    return {
        arm: [
            replace(run, problems=run.problems[run.problems["problem_id"].isin(kept)])
            for run in runs
        ]
        for arm, runs in arms.items()
    }
