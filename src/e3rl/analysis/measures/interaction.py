"""Interactions: whether two changes do together what they do one by one.

In a factorial of two changes, of which one arm has both, two have one each and one has neither,

    interaction = (both - neither) - ((first - neither) + (second - neither))
                = (both - first) - (second - neither),

in points of success: above 0 the two do more together than the sum of what each does alone.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import (
    choose_cost,
    difference_columns,
    interval_columns,
    score_arms,
)
from e3rl.analysis.measures.scores import Scores, measure_name, shared_tables
from e3rl.analysis.sources.runs import Arms
from e3rl.statistics.shares import difference_of_shares

CELLS = ("both", "first", "second", "neither")


def interaction_rows(
    arms: Arms,
    factorials: Sequence[Sequence[str]],
    evaluations: Sequence[str] = ("t1",),
    ks: Sequence[int] = (1,),
    axis: str = "tokens",
    level: float = 0.95,
    cost: float | None = None,
) -> list[Row]:
    """A row for every factorial, evaluation and k, at the cost that all of `arms` reached.

    Args:
        arms: runs by arm; those in no factorial count for the cost too.
        factorials: four arms each: with both changes, the first, the second, neither.
        evaluations: names, such as t1.
        ks: of pass@k; where not every validation has k rollouts, the last one is taken.
        axis: of the equal cost: steps, rollouts, tokens or seconds.
        level: coverage of all intervals.
        cost: as in `comparison.compare_family`.

    Returns:
        dicts with arm (the one with both), first, second, neither, evaluation, measure, axis, cost,
        spent (the mean cost of the last validation of each of the four, where that was taken),
        level, seeds, problems; together (both less neither), parts (the sum of each alone) and
        difference (the interaction), each with _low and _high; difference_error, difference_df,
        comparison and p; and what `families.judge_rows` adds, all being exploratory.

    Raises:
        ValueError: not four arms, one that is not there, one without the evaluation, arms of
            different or single seeds, or as `compare_family`.
    """
    cost = choose_cost(arms, axis, cost)
    rows = []
    for cells in factorials:
        _check(cells, arms)
        scored = score_arms({arm: arms[arm] for arm in cells}, ks, axis, cost, evaluations)
        found = {(each.arm, each.name, each.measure): each for each in scored}
        for name, k in product(evaluations, ks):
            keys = [(arm, name, measure_name(k, whole=False)) for arm in cells]
            if lacking := [key for key in keys if key not in found]:
                arm, _, measure = lacking[0]
                raise ValueError(f"interaction: {arm} lacks {measure} of {name}")
            rows.append(interaction_between([found[key] for key in keys], level, axis, cost))
    return rows


def _check(cells: Sequence[str], arms: Arms) -> None:
    if len(cells) != len(CELLS) or len(set(cells)) != len(CELLS):
        raise ValueError(f"interaction of {list(cells)}: name four arms, {', '.join(CELLS)}")
    for arm in cells:
        if arm not in arms:
            raise ValueError(f"interaction: no recorded arm {arm!r}; there are {', '.join(arms)}")


def interaction_between(
    four: Sequence[Scores], level: float = 0.95, axis: str = "tokens", cost: float = 0
) -> Row:
    """One row, of the scores of the arms with both changes, the first, the second and neither."""
    names = [each.arm for each in four]
    both, first, second, neither = (
        table.to_numpy(dtype=np.float64) for table in shared_tables(four, "interaction")
    )
    if len(both) < 2:
        raise ValueError("interaction: the arms have one seed, and two are the fewest")
    spent = [each.spent for each in four]
    found = difference_of_shares(both - first, second - neither, paired_seeds=True, largest=2.0)
    title = f"({names[0]} - {names[1]}) - ({names[2]} - {names[3]})"
    words = f"{title}: {four[0].measure}, {four[0].name}, {axis}"
    return {
        "arm": names[0],
        **dict(zip(CELLS[1:], names[1:], strict=True)),
        "evaluation": four[0].name,
        "measure": four[0].measure,
        "axis": axis,
        "cost": cost,
        "spent": None if None in spent else spent,
        "level": level,
        "seeds": len(both),
        "problems": both.shape[1],
        **interval_columns(
            "together", difference_of_shares(both, neither, paired_seeds=True).interval(level)
        ),
        **interval_columns(
            "parts",
            difference_of_shares(
                first - neither, neither - second, paired_seeds=True, largest=2.0
            ).interval(level),
        ),
        **difference_columns(words, found, level, len(both)),
    }
