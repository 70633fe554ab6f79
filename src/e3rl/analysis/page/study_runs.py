"""Which recorded runs a study is about: chosen, refused, and missing ones."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from e3rl.analysis.measures.costs import known_cost
from e3rl.analysis.measures.families import Side
from e3rl.analysis.sources.runs import Arms, Run, group_by_arm


def choose_runs(
    folder: Path, recorded: Sequence[Run], arms: Sequence[str] | None, seeds: Sequence[int] | None
) -> list[Run]:
    """The runs of these arms and seeds; of all where none are given. Raises ValueError for none."""
    found = [
        run
        for run in recorded
        if (not arms or run.name in arms) and (not seeds or run.seed in seeds)
    ]
    if not found:
        there = ", ".join(f"{run.name} {run.seed}" for run in recorded) or "none"
        asks = f"arms={arms or 'all'} and seeds={seeds or 'all'}"
        raise ValueError(f"{folder}: no recorded run is of {asks}; there is {there}")
    return found


def refuse_repeated(arms: Arms) -> None:
    """Raise ValueError for several runs of one arm and seed, which would count as many seeds."""
    for arm, runs in arms.items():
        for seed in (run.seed for run in runs):
            if len(same := [str(run.path) for run in runs if run.seed == seed]) > 1:
                raise ValueError(
                    f"{arm} has {len(same)} runs of seed {seed}: {', '.join(same)}; leave all but "
                    "one out, or give runs that differ names of their own"
                )


def check_control(asked: Mapping[str, Any], arms: Arms, recorded: Sequence[Run]) -> None:
    """Raise ValueError for a control that the study has no run of."""
    control, wanted = asked.get("control"), asked.get("arms")
    if control is None or control in arms:
        return
    if wanted and control not in wanted and control in {run.name for run in recorded}:
        raise ValueError(
            f"control={control!r} is recorded, but not among arms={wanted}: name it there too"
        )
    raise ValueError(
        f"control={control!r} has no recorded run, of these seeds, that was validated since its "
        "training began"
    )


def missing_runs(arms: Arms, wanted: Sequence[str], seeds: Sequence[int] = ()) -> list[str]:
    """Arms without a run, those that have fewer seeds than another, and seeds that none has."""
    lines = [f"not run: {arm}" for arm in wanted if arm not in arms]
    most = max((len(runs) for runs in arms.values()), default=0)
    few = {arm: len(runs) for arm, runs in arms.items() if len(runs) < most}
    lines += [f"{n} of {most} seeds: {arm}" for arm, n in few.items()]
    return [*lines, *(f"not run: seed {seed} of any arm" for seed in absent_seeds(arms, seeds))]


def absent_seeds(arms: Arms, seeds: Sequence[int]) -> list[int]:
    """Those of the seeds that no arm has a run of."""
    there = {run.seed for runs in arms.values() for run in runs}
    return [seed for seed in seeds if seed not in there]


def of_seeds(
    arms: dict[str, list[Run]], seeds: Sequence[int]
) -> tuple[dict[str, list[Run]], list[str]]:
    """The runs of these seeds alone, and words that say so; of no seeds: all runs.

    Raises ValueError for a seed that no arm has, and for an arm that has none of them.
    """
    if not seeds:
        return arms, []
    found = {arm: [run for run in runs if run.seed in seeds] for arm, runs in arms.items()}
    if absent := absent_seeds(found, seeds):
        there = sorted({run.seed for runs in arms.values() for run in runs})
        raise ValueError(
            f"seeds={list(seeds)}, of which no arm has {absent[0]}; there are "
            f"{', '.join(map(str, there))}"
        )
    if empty := [arm for arm, runs in found.items() if not runs]:
        raise ValueError(f"seeds={list(seeds)}, of which {empty[0]} has none")
    return found, [f"seeds {', '.join(map(str, seeds))} alone"]


def named_arms(comparisons: Sequence[tuple[Side, Side]]) -> set[str]:
    """The arms of comparisons, those of sides that are means of several among them."""
    sides = chain.from_iterable(comparisons)
    return {arm for side in sides for arm in ([side] if isinstance(side, str) else side)}


def add_runs(
    arms: Mapping[str, list[Run]], more: Sequence[Run], named: set[str], seeds: Sequence[int]
) -> dict[str, list[Run]]:
    """The arms with `more` runs that are of these arms or of named ones, and of these seeds, if
    there are any.

    Raises ValueError for a run among these that cannot be compared, and as `refuse_repeated`.
    """
    there = {run.path.resolve() for runs in arms.values() for run in runs}
    new = [
        run
        for run in more
        if run.name in {*arms, *named}
        and run.path.resolve() not in there
        and run.seed in (seeds or [run.seed])
    ]
    if early := [run.path for run in new if run.train.empty or known_cost(run, "steps") == 0]:
        raise ValueError(
            f"{early[0]} was not validated since its training began: move it away, or name `seeds` "
            "without its own"
        )
    added = group_by_arm(new)
    found = {arm: [*arms.get(arm, []), *added.get(arm, [])] for arm in {**arms, **added}}
    refuse_repeated(found)
    return found
