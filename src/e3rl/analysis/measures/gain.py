"""What training gained over the policy that it started from."""

from collections.abc import Sequence

import numpy as np

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.measures.evaluations import find_evaluation, pass_table, split_by_end
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.shares import gain_interval, share_interval


def gain_rows(
    arms: Arms,
    evaluations: Sequence[str] = ("t1",),
    ks: Sequence[int] = (1,),
    by_seed: bool = False,
    of: Sequence[str] = (),
    level: float = 0.95,
) -> list[Row]:
    """pass@k before training and after the last step of every run, whatever it had cost.

    Intervals are over seeds and problems, of one seed over problems alone; the gain is paired by
    both. Seeds that start from policies of their own make it one over first policies too. Runs that
    were last validated at an earlier step than others of their arm are left out.

    Args:
        arms: runs by arm.
        evaluations: names, such as t1.
        ks: of pass@k; those for which either end has too few rollouts have no row.
        by_seed: a row for every seed besides.
        of: names of arms, without any all of them.
        level: coverage of all intervals.

    Returns:
        dicts with arm, seed (None for all together), evaluation, measure, level, seeds, problems,
        and before, after and gain with _low and _high; where runs were left out, their paths as
        left_out.

    Raises:
        ValueError: `of` names an arm that is not there.
    """
    if unknown := [arm for arm in of if arm not in arms]:
        raise ValueError(f"gain of {unknown[0]!r}: no recorded arm; there are {', '.join(arms)}")
    rows = []
    for every in [arms[arm] for arm in of or arms]:
        runs, early = split_by_end(every)
        short = {"left_out": [str(run.path) for run in early]} if early else {}
        groups: list[tuple[int | None, Sequence[Run]]] = [(None, runs)]
        if by_seed:
            groups += [(run.seed, [run]) for run in sorted(runs, key=lambda run: run.seed)]
        for name in evaluations:
            for k in ks:
                found = (_row(part, seed, name, k, level) for seed, part in groups)
                rows += [row | short for row in found if row is not None]
    return rows


def _row(runs: Sequence[Run], seed: int | None, name: str, k: int, level: float) -> Row | None:
    pairs = [
        (first.seeds[0], last.seeds[0])
        for run in runs
        if (first := find_evaluation([run], name, "first"))
        and (last := find_evaluation([run], name, "last"))
    ]
    if not pairs or any(int(table["n"].min()) < k for pair in pairs for table in pair):
        return None
    tables = [[pass_table(table, [k])[k] for table in pair] for pair in pairs]
    common = tables[0][0].index
    for table in (table for pair in tables for table in pair):
        common = common.intersection(table.index, sort=False)
    if common.empty:
        return None
    before, after = (np.array([pair[end][common] for pair in tables]) for end in (0, 1))
    return {
        "arm": runs[0].name,
        "seed": seed,
        "evaluation": name,
        "measure": f"pass@{k}",
        "level": level,
        "seeds": len(pairs),
        "problems": len(common),
        **interval_columns("before", share_interval(before, level)),
        **interval_columns("after", share_interval(after, level)),
        **interval_columns("gain", gain_interval(after, before, level)),
    }
