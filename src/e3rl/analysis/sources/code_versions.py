"""Which code recorded a run, and which settings only came with a version of it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from e3rl.analysis.sources.config_differences import ABSENT, NULL, TARGET, settings_by_run
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.ledger.files import read_environment


class Recorded(NamedTuple):
    """What is known of a run: its arm, the commit that recorded it, its settings."""

    arm: str
    commit: str | None
    settings: dict[str, str]


def commit_of(run: Run) -> str | None:
    """The commit of the code that recorded a run; None where the run does not tell."""
    return str(read_environment(run.path).get("commit") or "") or None


def commits_of(runs: Iterable[Run]) -> frozenset[str]:
    """The commits that recorded some runs; none where one of them does not tell."""
    return _all_known([commit_of(run) for run in runs])


def settings_of_versions(arms: Arms, control: str) -> set[str]:
    """Settings, by dotted key, that a version of the code brought and no arm chose.

    Runs have such a setting at one value or not at all, and the commits that recorded those with it
    are others than the commits of those without. Either one arm has runs of both kinds, or several
    arms are of another kind than the control: what one arm alone has may be what it tries. A node
    with a class, as a callback is, and what is below it, is always a choice.
    """
    recorded = [
        Recorded(arm, commit_of(run), settings)
        for arm, runs in arms.items()
        for run, settings in zip(runs, settings_by_run(runs), strict=True)
    ]
    keys = {key for each in recorded for key in each.settings}
    chosen = _chosen_nodes(recorded, keys)
    return {
        key
        for key in keys
        if _came_with_code(key, recorded)
        and _is_of_no_arm(key, recorded, control)
        and not any(_are_nested(key, node) for node in chosen)
    }


def _chosen_nodes(recorded: Sequence[Recorded], keys: Iterable[str]) -> set[str]:
    """Nodes whose class is not the same in all runs, or that some runs do not have."""
    ends = [key for key in keys if key.endswith(f".{TARGET}")]
    found = {key: {each.settings.get(key, ABSENT) for each in recorded} for key in ends}
    return {key.removesuffix(f".{TARGET}") for key in ends if len(found[key]) > 1}


def _are_nested(key: str, node: str) -> bool:
    return f"{key}.".startswith(f"{node}.") or node.startswith(f"{key}.")


def _came_with_code(key: str, recorded: Sequence[Recorded]) -> bool:
    """Whether commits, which are all known, tell the runs that have a setting from the others."""
    having = [each for each in recorded if key in each.settings]
    lacking = [each for each in recorded if key not in each.settings]
    values = {each.settings[key] for each in having}
    if len(values) != 1 or NULL in values or not lacking:  # null is as good as absent
        return False
    new, old = (_all_known([each.commit for each in side]) for side in (having, lacking))
    return bool(new and old) and not new & old


def _is_of_no_arm(key: str, recorded: Sequence[Recorded], control: str) -> bool:
    """Whether an arm has runs with a setting and without it, or several arms are not like the
    control."""
    kinds: dict[str, set[bool]] = {}
    for each in recorded:
        kinds.setdefault(each.arm, set()).add(key in each.settings)
    mixed = any(len(kind) > 1 for kind in kinds.values())
    return mixed or sum(kind != kinds[control] for kind in kinds.values()) > 1


def _all_known(commits: Iterable[str | None]) -> frozenset[str]:
    found = set(commits)
    return frozenset() if None in found else frozenset(each for each in found if each)
