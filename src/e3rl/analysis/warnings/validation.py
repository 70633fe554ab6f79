"""Warnings about how arms were validated: entropies, noise, and how often."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.matched_control import NO_ENTROPY, WHOLE_RUN
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.warnings.compared import Compared
from e3rl.temperatures.matching import FEWEST_ROLLOUTS

FLATTER = 0.01  # of the control's entropy; .3 points of pass@1 in experiments/carries_ten_seeds
FARTHER = 1.01  # than the equal cost, where a run's last validation is off it
NOISE = 0  # the seed of validation noise where none is given


def unmatched_entropies(compared: Compared) -> list[str]:
    """An arm whose own temperature is compared with a control at another entropy."""
    gaps: dict[str, str] = {}
    for row in compared.rows:
        if row.get("unmatched") and row["unmatched"] != WHOLE_RUN:
            gaps.setdefault(row["arm"], _gap_words(row))
    if not gaps:
        return []
    alike = {words: [arm_label(a) for a in gaps if gaps[a] == words] for words in gaps.values()}
    named = "; ".join(
        f"{', '.join(arms)} ({words}{' each' * (len(arms) > 1)})" for words, arms in alike.items()
    )
    return [
        f"No control at the entropy that these arms have at their own temperature: {named}. Their "
        "rows have no verdict; e3rl record samples what one takes."
    ]


def _gap_words(row: Row) -> str:
    """How far the control's entropy is off, or why none was read."""
    if row["unmatched"] == NO_ENTROPY:
        return NO_ENTROPY
    gap = row["entropy_gap"]
    return f"fewer than {FEWEST_ROLLOUTS} rollouts" if gap is None else f"{100 * gap:+.1f} %"


def unequal_entropies(compared: Compared) -> list[str]:
    """pass@1 and pass@k, at one temperature, of arms that are flatter or sharper than the control,
    or of which that is not known. Entropies are of the last validations where these are after as
    many steps, else between validations at the cost at which accuracies are compared."""
    gaps: dict[str, str] = {}
    unknown: dict[str, None] = {}
    for row in compared.rows:
        if not _is_at_one_temperature(row):
            continue
        own, other, place = _compared_entropies(row, compared)
        if not (math.isfinite(own) and math.isfinite(other)):
            unknown.setdefault(row["arm"])
        elif other and abs(own / other - 1) > FLATTER:
            gaps.setdefault(row["arm"], f"{100 * (own / other - 1):+.1f} %{place}")
    lines = []
    if gaps:
        named = ", ".join(f"{arm_label(arm)} ({gap})" for arm, gap in gaps.items())
        lines.append(
            f"At equal temperature these policies have another entropy than the control: {named}. "
            "There a sharper policy has more pass@1, and a flatter one more pass@k, whatever "
            "either has learned; compare at equal entropy (e3rl record) before saying that one "
            "learned more."
        )
    if unknown:
        named = ", ".join(arm_label(arm) for arm in unknown)
        lines.append(
            f"No entropy is recorded of {named}, or of the control: whether one of them is only "
            "flatter or sharper is not known."
        )
    return lines


def _is_at_one_temperature(row: Row) -> bool:
    """Whether a row compares samples of arms at one temperature, whatever their entropies."""
    if row.get("difference") is None or row.get("unmatched") or row.get("temperature") == 0:
        return False
    return row.get("entropy_gap") is None


def _compared_entropies(row: Row, compared: Compared) -> tuple[float, float, str]:
    """Of an arm and of its control, NaN where not recorded, and where they were read, if that is
    not after the last validations."""
    control, _, theirs = str(row.get("against") or "").rpartition(" ")
    sides = [
        (compared.arms.get(row["arm"], ()), str(row.get("evaluation"))),
        (compared.arms.get(control, ()), theirs),
    ]
    steps = {step for runs, name in sides for step in _last_steps(runs, name)}
    if len(steps) < 2 or row.get("spent") is not None or not math.isfinite(row["cost"]):
        own, other = row.get("entropy"), row.get("against_entropy")
        return _or_nan(own), _or_nan(other), ""
    own, other = (_entropy_at(runs, name, row["axis"], row["cost"]) for runs, name in sides)
    return own, other, " at the equal cost"


def _last_steps(runs: Sequence[Run], name: str) -> set[int]:
    """After how many steps runs had an evaluation last."""
    found = (run.evaluations[run.evaluations["name"] == name]["rollout_step"] for run in runs)
    return {int(steps.max()) for steps in found if len(steps)}


def _entropy_at(runs: Sequence[Run], name: str, axis: str, cost: float) -> float:
    """Mean over runs of the entropy at a cost, on a line between validations; NaN where unknown."""
    values = []
    for run in runs:
        here = run.evaluations[run.evaluations["name"] == name].sort_values("rollout_step")
        costs = cost_before(run.train, here["rollout_step"], axis)
        known = ~np.isnan(costs)
        if known.any():
            values.append(np.interp(cost, costs[known], here["entropy"].to_numpy()[known]))
    return float(np.mean(values)) if values else math.nan


def _or_nan(entropy: float | None) -> float:
    return math.nan if entropy is None else entropy


def lines_from_the_start(compared: Compared) -> list[str]:
    """Arms that are read, at equal cost, on a line from the untrained policy to the last one."""
    found: dict[str, None] = {}
    for row in compared.rows:
        if row.get("spent") is not None or not row.get("cost"):  # read where it is
            continue
        for run in compared.arms.get(row["arm"], ()):
            here = run.evaluations[run.evaluations["name"] == row["evaluation"]]
            steps = sorted(set(here["rollout_step"]))
            costs = cost_before(run.train, steps, row["axis"])
            if len(steps) == 2 and steps[0] == 0 and costs[1] > FARTHER * row["cost"]:
                found.setdefault(row["arm"])
    if not found:
        return []
    named = ", ".join(arm_label(arm) for arm in found)
    return [
        f"Validated before training and at the end alone, and more expensive than the others: "
        f"{named}. At equal cost they are read on a straight line from the untrained policy, below "
        "a curve that flattens; validate in between (validate_every)."
    ]


def late_starts(compared: Compared) -> list[str]:
    """Arms that were validated within training, but not before."""
    found = [
        arm_label(arm)
        for arm, runs in compared.arms.items()
        if any(_first_of_several(run) > 0 for run in runs)
    ]
    if not found:
        return []
    return [
        f"Not validated before training: {', '.join(found)}. The mean over their runs is compared "
        "with none that begins elsewhere, and at a cost below a run's first validation it is not "
        "read."
    ]


def _first_of_several(run: Run) -> int:
    """The step of a run's first validation; 0 where there is no other, which is no curve."""
    steps = set(run.evaluations["rollout_step"])
    return int(min(steps)) if len(steps) > 1 else 0


def lacking_counts(compared: Compared) -> list[str]:
    """Runs of W&B that were validated without leaving counts by problem, or not whole ones."""
    told = []
    for run in compared.runs:
        names = zip(run.evaluations["name"], run.evaluations["rollout_step"], strict=True)
        validated = {(str(name), int(step)) for name, step in names}
        if lacking := validated - run.counts.keys():
            steps = ", ".join(map(str, sorted({step for _, step in lacking})))
            which = "all" if lacking == validated else f"after steps {steps}"
            told.append(f"{arm_label(run.name)} seed {run.seed} ({run.path}): {which}")
    if not told:
        return []
    return [
        f"W&B has no whole counts by problem of some validations: {'; '.join(told)}. No comparison "
        "has these; report on the run folders, whose ledgers have them."
    ]


def shared_validation_noise(compared: Compared) -> list[str]:
    """Runs that draw their validation from the same random numbers, or do not tell from which."""
    drawn: dict[Any, set[int]] = {}
    silent: dict[str, set[int]] = {}
    for arm, runs in compared.arms.items():
        for run in filter(_is_sampled, runs):
            node = (run.config.get("callbacks") or {}).get("pass_at_k")
            if node is None:
                silent.setdefault(arm, set()).add(run.seed)
            else:
                drawn.setdefault(node.get("seed") or NOISE, set()).add(run.seed)
    lines = []
    if any(len(seeds) > 1 for seeds in drawn.values()):
        lines.append(
            "Runs of several seeds validate with the same random numbers: their luck is alike, and "
            "no number of seeds averages it out. Runs with callbacks.pass_at_k.seed of their own "
            "have luck of their own."
        )
    if unknown := [arm_label(arm) for arm, seeds in silent.items() if len(seeds) > 1]:
        lines.append(
            f"No random numbers of the validation are recorded of {', '.join(unknown)}: if all "
            "seeds had the same, their luck is alike, and no number of seeds averages it out."
        )
    return lines


def _is_sampled(run: Run) -> bool:
    """Whether some validation of a run is by chance."""
    return bool((run.evaluations["temperature"] != 0).any())
