"""Arms against a control at equal cost: intervals, robust means, and a verdict for each.

Intervals are over training seeds and problems (`statistics.means`). Where both arms have the same
seeds these count as pairs, since runs of one seed share the first policy, the order of prompts and
the noise of validation. An arm with one seed says nothing of other seeds: its intervals are over
problems alone. Those of IQM and P(better) are over seeds, the problems as given.

**Verdict** (`families.judge_rows`): `better` or `worse` where p after Holm's correction, within a
declared family or over all exploratory comparisons, is below 1 - level; else `not distinguishable`.
With fewer than `means.ENOUGH_SEEDS` seeds the verdict says how many there were; one has none.

**Columns**: arm, evaluation, measure, temperature, entropy, axis, cost, level, seeds, problems;
paired_problems, where the control lacks some of these; spent and against_spent, what the arm and
its control had cost where not every validation has k rollouts and the last one is taken as it is,
or entropies are matched there though there are others (at_the_end then is True); value, iqm (over
seeds and families of problems), difference to the control and improvement (the probability that a
run of the arm beats one of the control on a family), each with _low and _high; seed_share, what
seeds make of the variance of value; difference_error and difference_df, the difference's standard
error and degrees of freedom; by_seed; against, against_entropy and paired_seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import AND, Row, control_of
from e3rl.analysis.measures.costs import common_cost, known_cost
from e3rl.analysis.measures.evaluations import evaluation_names
from e3rl.analysis.measures.families import Family, judge_rows
from e3rl.analysis.measures.matched_control import (
    NO_ENTROPY,
    TOO_FEW,
    at_own_temperature,
    has_entropies,
    match_control,
    matching_columns,
)
from e3rl.analysis.measures.scores import (
    SHARED,
    Scores,
    mean_of_arms,
    measure_name,
    scores_at,
)
from e3rl.analysis.sources.runs import Arms
from e3rl.statistics.improvement import improvement_interval
from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.iqm import iqm_interval
from e3rl.statistics.means import limit_by_seeds, mean_over_seeds_and_problems
from e3rl.statistics.power import variance_components
from e3rl.statistics.shares import difference_of_shares, share_interval

KS = tuple(1 << power for power in range(9))  # of what an arm has, in words
Table = NDArray[np.float64]


def compare_arms(
    arms: Arms,
    control: str | None,
    ks: Sequence[int] = (1, 16),
    axis: str = "tokens",
    level: float = 0.95,
    at_equal_entropy: bool = False,
    cost: float | None = None,
    evaluations: Sequence[str] = (),
    measures: Sequence[str] = (),
) -> list[Row]:
    """Every arm at every evaluation and measure, at the cost that all runs reached.

    An arm at its own temperature (`live`) is compared with the control at the same entropy, and has
    no verdict where there is none (`matched_control`). Evaluations of the control alone serve that,
    and have no rows.

    Measures are pass@k for every k, and the mean of pass@1 over training: the area under its curve,
    which is compared where both arms were first validated at the same cost.

    Args:
        arms, control: runs by arm, from `runs.group_by_arm`, and what they are compared with.
        ks: of pass@k; those above the rollouts of some problem are left out.
        axis, cost, level: of the equal cost, as in `compare_family`; coverage of all intervals.
        at_equal_entropy: after the last step of each run, whatever it cost, with the control at the
            arm's entropy in every sampled evaluation, not in `live` alone; pass@k alone.
        evaluations: names of those to compare; all that more arms than the control have, if empty.
        measures: those to compare, such as pass@16; all, if empty.

    Returns:
        dicts with the columns that the head of this module lists, and what `families.judge_rows`
        adds, all comparisons being exploratory. What does not exist is None.

    Raises ValueError for a control without validation, a cost that some run did not record, or
    reach.
    """
    if control is not None and control not in arms:
        raise ValueError(f"control={control!r} is no arm; there are {', '.join(arms)}")
    cost = choose_cost(arms, axis, cost)
    end = math.inf if at_equal_entropy else cost
    found = score_arms(arms, ks, axis, end, evaluations or None, measures)
    scored = _without_rungs(found, control)
    common = (arms, control, named_scores(scored, control), level, axis, cost, at_equal_entropy)
    return judge_rows([_compare(item, *common) for item in scored])


def _compare(
    item: Scores,
    arms: Arms,
    other: str | None,
    scored: Mapping[str, Mapping[str, Scores]],
    level: float,
    axis: str,
    cost: float,
    at_equal_entropy: bool,
) -> Row:
    """One row, beside an arm whose scores are `scored`; an arm at its own temperature, or any where
    that is asked for, beside that arm at the same entropy."""
    named = control_of(item, scored.get(item.measure, {}))
    matched = at_own_temperature(item, named) or (at_equal_entropy and item.temperature > 0)
    why, found, early = TOO_FEW, None, Row()
    if matched and other is not None and other != item.arm:
        item, early = _at_the_end(item, arms, other, axis, cost)
        found = match_control(item, arms, other, axis)
        why = TOO_FEW if has_entropies(item, arms) else NO_ENTROPY
    against = found.scores if found else named
    if against is not None and against.start != item.start:
        against = None
    row = compare_scores(item, against, level, axis, cost)
    if row["comparison"] and at_equal_entropy and not matched:  # greedy: not at the equal cost
        row["comparison"] += ", after the last step"
    return row | matching_columns(item, row, found, matched, why) | early


def _at_the_end(
    item: Scores, arms: Arms, control: str, axis: str, cost: float
) -> tuple[Scores, Row]:
    """An arm that is matched with the control, which is read after its last validation, after its
    own one too, where these lie beyond `cost`; and a column that says so where it had others."""
    late = any(known_cost(run, axis) > cost for run in [*arms[item.arm], *arms[control]])
    if not late or item.measure.startswith("mean"):
        return item, {}
    k = int(item.measure.rpartition("@")[2])
    last = scores_at(arms[item.arm], item.name, k, axis, math.inf)
    assert last is not None  # what is there at `cost` is there at the end
    return last, {"at_the_end": True} if item.spent is None else {}


def compare_family(
    arms: Arms, family: Family, level: float = 0.95, cost: float | None = None
) -> list[Row]:
    """A row for every comparison and endpoint of a family, at the cost that all of `arms` reached.

    Columns are those of `compare_arms` but for what `families.judge_rows` adds. Where a side is the
    mean of several arms there is no IQM and no P(better): no run has that mean.

    Args:
        arms: runs by arm; those that the family does not compare count for the cost too.
        family: what to compare.
        level: coverage of all intervals.
        cost: a lower one at which to compare instead, in units of the family's axis; infinite:
            after each run's last step, whatever it had cost.

    Raises ValueError for an arm that lacks an endpoint, or a cost that some run did not reach.
    """
    cost = choose_cost(arms, family.axis, cost)
    ks = [int(measure.rpartition("@")[2]) for _, measure in family.endpoints]
    sides = list(chain.from_iterable(family.comparisons))
    named = {arm: arms[arm] for side in sides for arm in side.split(AND)}
    end = math.inf if family.at_equal_entropy else cost
    scored = score_arms(named, ks, family.axis, end, [name for name, _ in family.endpoints])
    scored = [*scored, *_means(scored, [side for side in sides if AND in side])]
    rows = []
    for (arm, other), (evaluation, measure) in family.pairs():
        mine = named_scores(scored, arm).get(measure, {}).get(evaluation)
        controls = named_scores(scored, other)
        if mine is None or evaluation not in controls[measure]:
            first = arm.split(AND)[0]
            every = score_arms({first: arms[first]}, [*ks, *KS], family.axis, cost)
            there = sorted({f"{each.name} {each.measure}" for each in every})
            raise ValueError(
                f"family {family.name}: {arm} or {other} has no {measure} of {evaluation}; {first} "
                f"has {', '.join(there)}"
            )
        about = (level, family.axis, cost, family.at_equal_entropy)
        row = _compare(mine, arms, other, controls, *about)
        if AND in arm + other:
            row |= interval_columns("iqm", None) | interval_columns("improvement", None)
        rows.append(row | ({"looks": family.looks} if family.looks > 1 else {}))
    return rows


def _means(scored: Sequence[Scores], sides: Sequence[str]) -> list[Scores]:
    """Of the arms that each side names, in every measure and evaluation that all of them have, from
    one cost on where it is the mean over a run."""
    found = []
    kinds = dict.fromkeys((each.name, each.measure) for each in scored)
    for side, kind in product(dict.fromkeys(sides), kinds):
        by_arm = {each.arm: each for each in scored if (each.name, each.measure) == kind}
        arms = side.split(AND)
        if by_arm.keys() >= set(arms) and len({by_arm[arm].start for arm in arms}) == 1:
            found.append(mean_of_arms([by_arm[arm] for arm in arms]))
    return found


def choose_cost(arms: Arms, axis: str, cost: float | None) -> float:
    """The cost that is asked for, or else that of the cheapest run. Raises ValueError for one below
    0, and for one that some run did not reach, but for an infinite one."""
    reached = common_cost([run for runs in arms.values() for run in runs], axis)
    if cost is not None and not cost >= 0:
        raise ValueError(f"cost={cost:g} {axis}: give a cost from 0 on, or .inf for the last step")
    if cost is not None and reached < cost < math.inf:
        raise ValueError(
            f"cost={cost:g} {axis}: the cheapest run was last validated at {reached:g}"
        )
    return reached if cost is None else cost


def named_scores(scored: Sequence[Scores], arm: str | None) -> dict[str, dict[str, Scores]]:
    """Scores of one arm by measure and evaluation; every measure is there."""
    found: dict[str, dict[str, Scores]] = {item.measure: {} for item in scored}
    for item in scored:
        if item.arm == arm:
            found[item.measure][item.name] = item
    return found


def _without_rungs(scored: Sequence[Scores], control: str | None) -> list[Scores]:
    """Scores of evaluations that some other arm has as well, where there are some; else all."""
    others = {item.name for item in scored if item.arm != control}
    kept = [item for item in scored if item.name in others]
    return kept if any(item.arm == control for item in kept) or control is None else list(scored)


def score_arms(
    arms: Arms,
    ks: Sequence[int],
    axis: str,
    cost: float,
    names: Sequence[str] | None = None,
    measures: Sequence[str] = (),
) -> list[Scores]:
    """Scores of every arm, evaluation (or those of `names`) and measure (or those of `measures`)
    that exist at this cost; at an infinite one, pass@k after each run's last step."""
    every = [(k, False) for k in dict.fromkeys(ks)] + [(1, True)] * math.isfinite(cost)
    wanted = [each for each in every if not measures or measure_name(*each) in measures]
    found = [
        scores_at(runs, name, each, axis, cost, whole)
        for runs in arms.values()
        for name in evaluation_names(arms)
        if names is None or name in names
        for each, whole in wanted
    ]
    return [item for item in found if item is not None]


def compare_scores(
    item: Scores, control: Scores | None, level: float = 0.95, axis: str = "tokens", cost: float = 0
) -> Row:
    """One row: the arm by itself, and its difference to the control."""
    return {
        "arm": item.arm,
        "evaluation": item.name,
        "measure": item.measure,
        "temperature": item.temperature,
        "entropy": item.entropy,
        "axis": axis,
        "cost": cost,
        "spent": item.spent,
        "against_spent": None if control is None else control.spent,
        "level": level,
        "seeds": item.n_seeds,
        **_fewer_seeds(item, control),
        "problems": item.table.shape[1],
        **_fewer_problems(item, control),
        "by_seed": item.table.mean(axis="columns").tolist(),
        **interval_columns("value", share_interval(item.table.to_numpy(dtype=np.float64), level)),
        "seed_share": _seed_share(item.table.to_numpy(dtype=np.float64)),
        **interval_columns("iqm", iqm_interval(item.by_source(), level)),
        "against": None if control is None else f"{control.arm} {control.name}",
        "against_entropy": None if control is None else control.entropy,
        **_difference_columns(item, control, level, axis),
    }


def _fewer_problems(item: Scores, control: Scores | None) -> Row:
    """How many problems the difference is of, where that is not all of the arm's."""
    if control is None or set(item.table.columns) <= set(control.table.columns):
        return {}
    return {"paired_problems": len(_on_shared_problems(item, control)[0].columns)}


def _fewer_seeds(item: Scores, control: Scores | None) -> Row:
    """The control's seeds, where they are fewer than the arm's; verdicts go by the fewer."""
    if control is None or control.n_seeds >= item.n_seeds:
        return {}
    return {"against_seeds": control.n_seeds}


def _difference_columns(item: Scores, control: Scores | None, level: float, axis: str) -> Row:
    if control is None:
        return {
            **difference_columns(None, None, level),
            **interval_columns("improvement", None),
            "paired_seeds": None,
        }
    mine, other = _on_shared_problems(item, control)
    pairs = same_seeds(mine, other)
    found = difference_of_shares(mine.to_numpy(), other.to_numpy(), pairs)
    name = f"{item.arm} - {control.arm} {control.name}: {item.measure}, {item.name}, {axis}"
    families = control.sources | item.sources  # one label a problem, so that families are pairs
    ours, theirs = (replace(item, table=t, sources=families).by_source() for t in (mine, other))
    won = improvement_interval(ours, theirs, level, pairs)
    return {
        **difference_columns(name, found, level, min(len(mine), len(other))),
        **interval_columns("improvement", won),
        "paired_seeds": pairs,
    }


def compare_tables(mine: Table, other: Table, comparison: str, level: float = 0.95) -> Row:
    """Columns of pass@k tables (S, P), `mine` less `other`, paired by seed and problem, for studies
    that read their runs by a script; named as those of `compare_arms`."""
    found = difference_of_shares(mine, other, paired_seeds=True)
    return {
        "level": level,
        "seeds": len(mine),
        "problems": mine.shape[1],
        "paired_seeds": True,
        "value": mine.mean(),
        "against_value": other.mean(),
        **difference_columns(comparison, found, level, len(mine)),
    }


def difference_columns(
    comparison: str | None, found: Estimate | None, level: float, n_seeds: int = 1
) -> Row:
    """A difference as columns, with all that `families.judge_rows` wants to know of it.

    `comparison` names it, alike wherever it is printed. The test, whose degrees of freedom and p
    the columns hold, is that of `limit_by_seeds`. Without bounds there is no p to judge by.
    """
    columns = interval_columns("difference", None if found is None else found.interval(level))
    if found is None or math.isnan(found.standard_error):
        absent = ("difference_error", "difference_df", "comparison", "p")
        return columns | dict.fromkeys(absent)
    test = limit_by_seeds(found, n_seeds)
    return columns | {
        "difference_error": test.standard_error,
        "difference_df": test.df,
        "comparison": comparison,
        "p": test.p_value,
    }


def interval_columns(name: str, interval: Interval | None) -> Row:
    """An interval as columns `name`, `name_low` and `name_high`; None for what does not exist."""
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    low, high = (None if math.isnan(x) else x for x in (interval.low, interval.high))
    return {name: interval.mean, f"{name}_low": low, f"{name}_high": high}


def _seed_share(table: NDArray[np.float64]) -> float | None:
    """What training seeds make of the variance of the mean of (S, P) scores; None for one seed."""
    error = mean_over_seeds_and_problems(table).standard_error
    if min(table.shape) == 1 or not error > 0:
        return None
    return max(variance_components(table).seed, 0.0) / len(table) / error**2


def _on_shared_problems(item: Scores, control: Scores) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables on the problems that both have, seeds in order.

    Raises ValueError where these are fewer than `SHARED` of the smaller table's.
    """
    a, b = item.table, control.table
    common = a.columns.intersection(b.columns, sort=False)
    fewest = min(a.shape[1], b.shape[1])
    if len(common) < SHARED * fewest:
        raise ValueError(
            f"the arm {item.arm} and its control {control.arm} were validated on different "
            f"problems; give both runs the same data.validation ({len(common)} of {fewest} are "
            "alike)"
        )
    return a[common].sort_index(), b[common].sort_index()


def same_seeds(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Whether two tables with a row per seed are of the same seeds, more than one, in one order."""
    return len(a) > 1 and a.index.is_unique and a.index.tolist() == b.index.tolist()
