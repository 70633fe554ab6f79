"""Arms against a control at equal cost: intervals, robust means, and a verdict for each.

Intervals resample training seeds and problems (`statistics.bootstrap`). Where both arms have the
same seeds these are drawn as pairs, since runs of one seed share the first policy, the order of
prompts and the noise of validation. An arm with one seed says nothing of other seeds: its
intervals are over problems alone. Where problems tell too little (none solved, or all), intervals
are wider than resampling says (`statistics.shares`).

**Verdict**: `better` where the interval of the paired difference lies above 0, `worse` where it
lies below, else `not distinguishable`. With fewer than `ENOUGH_SEEDS` seeds the interval hardly
knows how seeds differ, and the verdict says how many there were: where seeds make all of the
variance, the interval of S = 2 or 3 of them is the range of their means, which holds the truth in
1 - 2·2^-S of studies, 50 and 75 %, and that of 5 is still too narrow. Noise that seeds share, as
that of validation, no number of seeds shows. Each comparison stands by itself: of twenty without
any true difference one is expected to look like one.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import LIVE, Row, control_of
from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.evaluations import evaluation_names
from e3rl.analysis.measures.matched_control import match_control, matching_columns
from e3rl.analysis.measures.scores import Scores, scores_at
from e3rl.analysis.sources.runs import Arms
from e3rl.statistics.bootstrap import (
    Interval,
    cluster_bootstrap,
    hierarchical_bootstrap,
    hierarchical_difference,
    paired_difference,
)
from e3rl.statistics.improvement import improvement_interval
from e3rl.statistics.iqm import iqm_interval
from e3rl.statistics.power import detectable_difference, variance_components
from e3rl.statistics.shares import share_interval, widen_difference

BETTER, WORSE, NEITHER = "better", "worse", "not distinguishable"
ENOUGH_SEEDS = 5


def compare_arms(
    arms: Arms,
    control: str | None,
    ks: Sequence[int] = (1, 16),
    axis: str = "tokens",
    level: float = 0.95,
) -> list[Row]:
    """Every arm at every evaluation and measure, at the cost that all runs reached.

    An arm at its own temperature (`live`) is compared with the control at the same entropy, and has
    no verdict where there is none (`matched_control`). Evaluations of the control alone serve that,
    and have no rows.

    Measures are pass@k for every k, and the mean of pass@1 over training: the area under its curve.

    Args:
        arms: runs by arm, from `runs.group_by_arm`.
        control: arm that the others are compared with, None for none.
        ks: of pass@k; those above the rollouts of some problem are left out.
        axis: of the equal cost: steps, rollouts, tokens or seconds.
        level: coverage of all intervals.

    Returns:
        dicts with arm, evaluation, measure, temperature, entropy, axis, cost, level, seeds,
        problems; value, iqm (over seeds and families of problems), difference to the control and
        improvement (the probability that a run of the arm beats one of the control on a family),
        each with _low and _high; by_seed; against, against_entropy, paired_seeds, verdict;
        detectable (smallest
        difference found with 80 % power). What does not exist is None.

    Raises:
        ValueError: a control without validation, or a cost that some run did not record.
    """
    if control is not None and control not in arms:
        raise ValueError(f"control={control!r} is no arm; there are {', '.join(arms)}")
    cost = common_cost([run.train for runs in arms.values() for run in runs], axis)
    scored = _without_rungs(score_arms(arms, ks, axis, cost), control)
    facts = {"axis": axis, "cost": cost, "level": level}
    controls: dict[str, dict[str, Scores]] = {item.measure: {} for item in scored}
    for item in scored:
        if item.arm == control:
            controls[item.measure][item.name] = item
    rows = []
    for item in scored:
        judged = item.name == LIVE and control is not None and item.arm != control
        found = match_control(item, arms, control) if judged and control is not None else None
        other = found.scores if found else control_of(item, controls[item.measure])
        row = compare_scores(item, other, level) | facts
        rows.append(row | matching_columns(item, row, found))
    return rows


def _without_rungs(scored: Sequence[Scores], control: str | None) -> list[Scores]:
    """Scores of evaluations that some other arm has as well, where there are other arms."""
    others = {item.name for item in scored if item.arm != control}
    return [item for item in scored if item.name in others or not others]


def score_arms(arms: Arms, ks: Sequence[int], axis: str, cost: float) -> list[Scores]:
    """Scores of every arm, evaluation and measure that exist at this cost."""
    wanted = [*((k, False) for k in dict.fromkeys(ks)), (1, True)]
    found = [
        scores_at(runs, name, each, axis, cost, whole)
        for runs in arms.values()
        for name in evaluation_names(arms)
        for each, whole in wanted
    ]
    return [item for item in found if item is not None]


def compare_scores(item: Scores, control: Scores | None, level: float = 0.95) -> Row:
    """One row: the arm by itself, and its difference to the control."""
    row: Row = {
        "arm": item.arm,
        "evaluation": item.name,
        "measure": item.measure,
        "temperature": item.temperature,
        "entropy": item.entropy,
        "seeds": item.n_seeds,
        "problems": item.table.shape[1],
        "by_seed": item.table.mean(axis="columns").tolist(),
        **interval_columns("value", share_interval(item.table.to_numpy(dtype=np.float64), level)),
        **interval_columns("iqm", iqm_interval(item.by_source(), level)),
        "against": None if control is None else f"{control.arm} {control.name}",
        "against_entropy": None if control is None else control.entropy,
    }
    if control is None:
        absent = {"paired_seeds": None, "verdict": None, "detectable": None}
        return (
            row
            | interval_columns("difference", None)
            | interval_columns("improvement", None)
            | absent
        )
    mine, other = _on_shared_problems(item.table, control.table)
    pairs = _same_seeds(mine, other)
    interval = widen_difference(difference_interval(mine, other, level), mine.mean() - other.mean())
    return row | {
        **interval_columns("difference", interval),
        **interval_columns(
            "improvement", improvement_interval(item.by_source(), control.by_source(), level)
        ),
        "paired_seeds": pairs,
        "verdict": verdict(interval),
        "detectable": _detectable_difference(mine, other, level) if pairs else None,
    }


def verdict(difference: Interval) -> str:
    """`better`, `worse` or `not distinguishable` by the interval of a difference."""
    if difference.low > 0:
        return BETTER
    return WORSE if difference.high < 0 else NEITHER


def mean_interval(scores: NDArray[np.float64], level: float = 0.95) -> Interval:
    """Mean of (S, P) scores over seeds and problems, or over problems where there is one seed."""
    if len(scores) == 1:
        return cluster_bootstrap(scores[0], level)
    return hierarchical_bootstrap(scores, level)


def difference_interval(a: pd.DataFrame, b: pd.DataFrame, level: float) -> Interval:
    """Mean difference of two (S, P) tables of the same problems; see the module for seeds."""
    first, second = a.to_numpy(dtype=np.float64), b.to_numpy(dtype=np.float64)
    if min(len(first), len(second)) == 1:
        return paired_difference(first.mean(axis=0), second.mean(axis=0), level)
    return hierarchical_difference(first, second, level, paired_seeds=_same_seeds(a, b))


def interval_columns(name: str, interval: Interval | None) -> Row:
    """An interval as columns `name`, `name_low` and `name_high`; None for what does not exist."""
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    low, high = (None if math.isnan(x) else x for x in (interval.low, interval.high))
    return {name: interval.mean, f"{name}_low": low, f"{name}_high": high}


def _on_shared_problems(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables on the problems that both have, seeds in order."""
    common = a.columns.intersection(b.columns, sort=False)
    if common.empty:
        raise ValueError(
            "the arm and its control were validated on different problems; give both runs the "
            "same data.validation"
        )
    return a[common].sort_index(), b[common].sort_index()


def _same_seeds(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    return len(a) > 1 and a.index.is_unique and a.index.tolist() == b.index.tolist()


def _detectable_difference(a: pd.DataFrame, b: pd.DataFrame, level: float) -> float | None:
    table = (a - b).to_numpy(dtype=np.float64)
    if min(table.shape) < 2:
        return None
    n_seeds, n_problems = table.shape
    return detectable_difference(variance_components(table), n_seeds, n_problems, level)
