"""What a comparison was asked for and has no row or no seed of, since validations had too few
rollouts."""

from collections.abc import Iterator, Sequence
from typing import Any

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.evaluations import evaluation_names
from e3rl.analysis.sources.runs import Arms, Run

CALLED = "they are called pass@k, such as pass@16, and mean pass@1"


def lacking_rollouts(
    arms: Arms, rows: Sequence[Row], k: int, evaluations: Sequence[str] = ()
) -> list[str]:
    """Arms that were validated in one of `evaluations` (in any, if empty) and have no row of
    pass@k, since none of these has so many rollouts at its last validation."""
    has = {row["arm"] for row in rows if row["measure"] == f"pass@{k}"}
    most = {
        arm: [n for run in runs for n in _last_rollouts(run, evaluations)]
        for arm, runs in arms.items()
        if arm not in has
    }
    return [
        f"no pass@{k} of {arm_label(arm)}: it was validated with {max(found)} rollouts per problem "
        "at most"
        for arm, found in most.items()
        if found
    ]


def _last_rollouts(run: Run, evaluations: Sequence[str]) -> Iterator[int]:
    """Of the problem that has fewest, in each evaluation at the run's last validation."""
    last = max((step for _, step in run.counts), default=0)
    for (name, step), table in run.counts.items():
        if step == last and (not evaluations or name in evaluations):
            yield int(table["n"].min())


def lacking_seeds(arms: Arms, rows: Sequence[Row]) -> list[str]:
    """Arms of which a row counts fewer seeds than have run, so that differences may not be paired:
    some run's last validation had fewer than k rollouts, or lay beyond the cost that is compared
    at, or the run lacks the evaluation."""
    return [
        f"{row['measure']} of {arm_label(row['arm'])} in {row['evaluation']} counts "
        f"{row['seeds']} of {len(arms[row['arm']])} seeds: the others lack that evaluation, or "
        "rollouts in their last validation, or had their first one later"
        for row in rows
        if row["arm"] in arms and row["seeds"] < len(arms[row["arm"]])
    ]


def check_evaluations(arms: Arms, names: Sequence[str]) -> None:
    """Raises ValueError for the name of an evaluation that no arm has."""
    there = evaluation_names(arms)
    if unknown := [name for name in names if name not in there]:
        raise ValueError(
            f"evaluations: no arm has {unknown[0]!r}; there are {', '.join(there) or 'none'}"
        )


def check_measured(
    arms: Arms, rows: Sequence[Row], ks: Sequence[int], evaluations: Sequence[str]
) -> list[str]:
    """Arms without a pass@k that a table names. Raises ValueError for one that no arm has."""
    there = {row["measure"] for row in rows}
    if none := [k for k in ks if f"pass@{k}" not in there]:
        words = ", ".join(f"pass@{k}" for k in none)
        raise ValueError(f"{words}: no validation has so many rollouts of every problem")
    return [note for k in ks for note in lacking_rollouts(arms, rows, k, evaluations)]


def check_ends(
    arms: Arms,
    rows: Sequence[Row],
    why: str,
    evaluations: Sequence[str] = ("t1",),
    ks: Sequence[int] = (1,),
    **_: Any,
) -> None:
    """Raises ValueError for an evaluation or a pass@k that a table of runs' ends names and has no
    row of, and says `why` there is none."""
    check_evaluations(arms, evaluations)
    there = {row[key] for row in rows for key in ("evaluation", "measure", "of") if key in row}
    if none := [each for each in (*evaluations, *(f"pass@{k}" for k in ks)) if each not in there]:
        raise ValueError(f"{', '.join(none)}: {why}")


def named_ks(measures: Sequence[str]) -> list[int]:
    """The k of those measures that are pass@k. Raises ValueError for one that is no number."""
    named = [each.removeprefix("pass@") for each in measures if each.startswith("pass@")]
    if wrong := [k for k in named if not k.isdecimal() or int(k) == 0]:
        raise ValueError(f"measures: 'pass@{wrong[0]}' is none; {CALLED}")
    return [int(k) for k in named]


def check_measures(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Raises ValueError for the name of a measure that no arm has."""
    there = {row["measure"] for row in rows}
    if unknown := [name for name in names if name not in there]:
        raise ValueError(f"measures: no arm has {unknown[0]!r}; {CALLED}")
