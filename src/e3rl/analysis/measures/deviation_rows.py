"""How much the seeds of an arm differ from each other, beside those of a control."""

import math
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.measures.evaluations import split_by_end
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.deviation import (
    FEWEST_PAIRS,
    deviation_interval,
    differ,
    ratio_of_deviations,
)


def deviation_rows(
    arms: Arms,
    control: str | None,
    evaluations: Sequence[str] = ("t1",),
    ks: Sequence[int] = (1,),
    of: Sequence[str] = (),
    level: float = 0.95,
) -> list[Row]:
    """What pass@k after the last step of every run comes to from seed to seed.

    The standard deviation is that of the runs' own scores, the noise of their validation included;
    the ratio to the control's is of the seeds that both have, paired, where these are three or
    more and not all alike in either arm. Runs that were last validated at an earlier step than
    others of their arm are left out.

    Args:
        arms: runs by arm, of which those with one seed have no row.
        control: arm that the others are compared with, None for none.
        evaluations, ks: names, such as t1, and of pass@k; too few rollouts make no row.
        of: names of arms, without any all of them.
        level: coverage of all intervals.

    Returns:
        dicts with arm, evaluation, of (such as pass@1), level, seeds, mean, least, greatest,
        deviation, against, paired_seeds and ratio (None for the control), deviation and ratio with
        _low and _high, comparison and p of a ratio of 1, for `families.judge_rows`, and left_out,
        the paths of runs that were.

    Raises ValueError where the control, or a name in `of`, is no arm.
    """
    names = list(of or arms)
    wanted = dict.fromkeys([*names, *([] if control is None else [control])])
    _require_recorded(wanted, arms)
    kept = {arm: split_by_end(arms[arm]) for arm in wanted}
    rows = []
    for evaluation, k in product(evaluations, ks):
        scores = {arm: _ends(runs, evaluation, k) for arm, (runs, _) in kept.items()}
        base = scores.get(control or "", {})
        for arm in (name for name in names if len(scores[name]) > 1):
            other = {} if arm == control else base
            label = f"{arm} - {control}: deviation of pass@{k}, {evaluation}"
            found: Row = {"arm": arm, "evaluation": evaluation, "of": f"pass@{k}", "level": level}
            found |= {"against": control if len(other) > 1 else None}
            rows.append(found | _row(scores[arm], other, label, level) | _left_out(kept[arm][1]))
    return rows


def _left_out(early: Sequence[Run]) -> Row:
    """The runs that ended before others, where there are some."""
    return {"left_out": [str(run.path) for run in early]} if early else {}


def _require_recorded(wanted: Iterable[str], arms: Arms) -> None:
    if unknown := [arm for arm in wanted if arm not in arms]:
        there = ", ".join(arms)
        raise ValueError(f"deviation of {unknown[0]!r}: no recorded arm; there are {there}")


def _ends(runs: Sequence[Run], evaluation: str, k: int) -> dict[int, float]:
    """The score of every seed after its last step."""
    found = scores_at(runs, evaluation, k, "steps", math.inf)
    if found is None:
        return {}
    means = found.table.mean(axis="columns")
    return {int(seed): float(mean) for seed, mean in means.items()}


def _row(mine: dict[int, float], other: dict[int, float], label: str, level: float) -> Row:
    values = np.array(list(mine.values()))
    row: Row = {
        "seeds": len(values),
        "mean": float(values.mean()),
        "least": float(values.min()),
        "greatest": float(values.max()),
        **interval_columns("deviation", deviation_interval(values, level)),
        **dict.fromkeys(("paired_seeds", "ratio", "ratio_low", "ratio_high", "comparison", "p")),
    }
    shared = [seed for seed in mine if seed in other]
    pairs = [mine[seed] for seed in shared], [other[seed] for seed in shared]
    if len(shared) < FEWEST_PAIRS or not all(map(differ, pairs)):  # such as where all are lost
        return row
    found = ratio_of_deviations(*pairs, level)
    ratio = interval_columns("ratio", found.interval)
    return row | ratio | {"paired_seeds": len(shared), "comparison": label, "p": found.p_value}
