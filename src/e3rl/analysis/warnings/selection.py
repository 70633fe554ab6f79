"""Warnings about validation problems that settings may have been chosen by."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from e3rl.analysis.sources.config_differences import TARGET
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.sweeps import Sweep
from e3rl.config.differences import flatten

# Where a run took place, what is drawn by chance, and what is told elsewhere.
NOT_TUNED = ("callbacks", "data", "paths", "logger", "seed", "engine", "trainer.enable", "figures")
GRID = 3  # values of one number: two are any arm and its control
HANDFUL = 5  # arms, or rules of one slot: a study of a few things has no more


def tuned_on_validation(compared: Compared) -> list[str]:
    """Validation problems by which a sweep beside the runs chose its settings."""
    return [
        f"The sweep {sweep.folder.name} was tuned on these validation problems: its choice fits "
        "them. Compare on problems that nothing was chosen by."
        for sweep in compared.sweeps
        if sweep.proposes
    ]


def tried_on_validation(compared: Compared) -> list[str]:
    """Numbers of which the arms, or the runs of a sweep beside them, try several values on these
    validation problems, and rules of which a sweep beside them tries many: whoever takes the best
    of them has tuned on what it is judged by."""
    lines = [
        f"These arms try {len(values)} values of {key} ({_listed(values)}) on the same validation "
        "problems: the best of them is flattered. Run it again with seeds and problems "
        "(data.validation.seed) that it was not chosen by."
        for key, values in values_tried(run.config for run in compared.runs).items()
    ]
    for sweep in compared.sweeps:
        if not sweep.is_own:
            lines += _tried_beside(sweep, rules_of(compared))
    return lines


def _tried_beside(sweep: Sweep, own: Mapping[str, set[str]]) -> Iterator[str]:
    """What a sweep tries; rules alone where one is among the arms' `own`, by slot."""
    for key, values in values_tried(sweep.configs).items():
        yield (
            f"The sweep {sweep.folder.name} tries {len(values)} values of {key} on these "
            "validation problems: if a setting of these arms was chosen by it, the choice fits "
            "them."
        )
    for slot, rules in rules_tried(sweep.configs).items():
        used = sorted(rules & own.get(slot, set()))
        if len(rules) > HANDFUL and used:
            names = ", ".join(rule.rsplit(".", 1)[-1] for rule in used)
            yield (
                f"The sweep {sweep.folder.name} tries {len(rules)} rules of {slot} on these "
                f"validation problems, {names} among them: if it was chosen by how it did there, "
                "the choice fits them."
            )


def many_arms(compared: Compared) -> list[str]:
    """More arms than a handful, the best of which is flattered by being the best."""
    judged = [arm for arm, runs in compared.arms.items() if any(len(r.problems) for r in runs)]
    if len(judged) <= HANDFUL:
        return []
    return [
        f"{len(judged)} arms were judged by the same validation problems: whoever takes the "
        "best of them has selected on these, and its difference is flattered. The correction of p "
        "is for verdicts, not for sizes: run the best again with seeds and problems that it was "
        "not chosen by."
    ]


def rules_of(compared: Compared) -> dict[str, set[str]]:
    """Classes that arms have in a slot and their control has not, by the slot."""
    found = rules_tried(run.config for runs in compared.others.values() for run in runs)
    if compared.control is None:
        return rules_tried(run.config for run in compared.runs)
    base = rules_tried(run.config for run in compared.arms[compared.control])
    return {slot: rules - base.get(slot, set()) for slot, rules in found.items()}


def rules_tried(configs: Iterable[Any]) -> dict[str, set[str]]:
    """The classes of each slot in some configurations."""
    found: dict[str, set[str]] = {}
    for key, value, _ in _own_leaves(configs):
        node, _, leaf = key.rpartition(".")
        if leaf == TARGET and node:
            found.setdefault(node, set()).add(str(value))
    return found


def values_tried(configs: Iterable[Any]) -> dict[str, list[float]]:
    """Settings that are numbers and have `GRID` values and more in these configurations.

    Values of one mechanism (the `_target_` of the node) are one setting's, those of another are
    not. A setting that stands in a second place, by interpolation, counts at its shorter key.
    """
    found: dict[tuple[str, str], set[float]] = {}
    for key, value, leaves in _own_leaves(configs):
        if not isinstance(value, bool) and isinstance(value, int | float):
            found.setdefault((key, _mechanism(key, leaves)), set()).add(value)
    tried = [(key, sorted(values)) for (key, _), values in found.items() if len(values) >= GRID]
    return dict(sorted(tried, key=lambda each: (each[0], len(each[1]))))


def _own_leaves(configs: Iterable[Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Settings that arms try, by dotted key, and all of that configuration; once each."""
    for config in configs:
        leaves = flatten(config) if isinstance(config, Mapping) else {}
        for key, value in leaves.items():
            tail = key.partition(".")[2]
            if not key.startswith(NOT_TUNED) and not (tail and leaves.get(tail) == value):
                yield key, value, leaves


def _mechanism(key: str, leaves: Mapping[str, Any]) -> str:
    """The `_target_` of the node that a setting belongs to; empty where there is none."""
    node, _, _ = key.rpartition(".")
    return str(leaves.get(f"{node}.{TARGET}", ""))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
