"""What the report says of entropies, noise and how often arms were validated."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from recorded_runs import write_run
from warned_runs import SMALL, compared, configure, folder, row

from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.validation import (
    late_starts,
    lines_from_the_start,
    shared_validation_noise,
    unequal_entropies,
    unmatched_entropies,
)


def matched(runs: list[Run], entropy: float) -> list[Run]:
    """Runs whose `live` has a temperature of its own and this entropy."""
    found = []
    for run in runs:
        table = run.evaluations.copy()
        table.loc[table["name"] == "live", ["temperature", "entropy"]] = 1.2, entropy
        found.append(replace(run, evaluations=table))
    return found


def with_entropies(run: Run, ends: tuple[float, float]) -> pd.DataFrame:
    """Evaluations whose entropies at the first and the last validation are these."""
    first = run.evaluations["rollout_step"] == 0
    return run.evaluations.assign(entropy=np.where(first, *ends))


@pytest.mark.parametrize(("entropy", "words"), [(0.60, "mine (-10.0 %)"), (0.5408, None)])
def test_a_control_at_another_entropy_is_named(
    tmp_path: Path, entropy: float, words: str | None
) -> None:
    arms = dict(compared(folder(tmp_path)).arms)
    arms["mine"] = matched(list(arms["mine"]), entropy)  # the control has one at .54
    found = unmatched_entropies(Compared(arms, "grpo", compare_arms(arms, "grpo", [1])))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.parametrize("own", [True, False])
def test_random_numbers_that_all_validations_share_are_told(tmp_path: Path, own: bool) -> None:
    found = shared_validation_noise(compared(folder(tmp_path, own_noise=own)))
    assert len(found) == (not own)


def test_one_seed_shares_its_validation_with_nobody(tmp_path: Path) -> None:
    assert shared_validation_noise(compared(folder(tmp_path, seeds=1))) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "mine (+13.2 %)"),  # .266 nats against .235
        ({"entropy": 0.237}, None),  # .9 % is near enough
        ({"entropy": 0.2375}, "mine (+1.1 %)"),
        ({"measure": "pass@1"}, "mine (+13.2 %)"),  # loses by it
        ({"entropy_gap": 0.001}, None),  # compared at equal entropy
        ({"temperature": 0.0}, None),  # has none
        ({"difference": None}, None),  # the control itself
    ],
)
def test_pass_at_k_of_a_flatter_policy_is_told(changed: dict[str, Any], words: str | None) -> None:
    rows = [row(**({"entropy": 0.266, "against_entropy": 0.235} | changed))]
    found = unequal_entropies(Compared({}, "grpo", rows))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.parametrize(
    ("entropy", "words"), [((0.6, 0.4), None), ((0.6, 0.45), "mine (+12.5 % at the equal cost)")]
)
def test_entropies_after_unlike_steps_are_read_at_the_equal_cost(
    tmp_path: Path, entropy: tuple[float, float], words: str | None
) -> None:
    """The control falls from .6 to .2 over four steps, and has .4 on the line after the two
    that the other arm has run, which has as much, or .45."""
    for arm, steps in (("grpo", 4), ("mine", 2)):
        write_run(tmp_path / arm, arm, 1, replace(SMALL, steps=steps, every=steps))
    arms = group_by_arm(load_runs(tmp_path))
    arms["grpo"], arms["mine"] = (
        [replace(arms[arm][0], evaluations=with_entropies(arms[arm][0], ends))]
        for arm, ends in (("grpo", (0.6, 0.2)), ("mine", entropy))
    )
    rows = [
        each
        for each in compare_arms(arms, "grpo", [1], axis="steps", evaluations=["t1"])
        if each["arm"] == "mine"
    ]
    assert {each["cost"] for each in rows} == {2.0}
    found = unequal_entropies(Compared(arms, "grpo", rows))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.parametrize(
    ("every", "longer", "told"), [(4, 2, True), (4, 1, True), (2, 2, False), (4, 0, False)]
)
def test_what_is_read_on_a_line_from_the_untrained_policy_is_told(
    tmp_path: Path, every: int, longer: int, told: bool
) -> None:
    size = replace(SMALL, steps=4 + longer, every=every + longer if every == 4 else every)
    for arm, mine in (("grpo", SMALL), ("mine", size)):
        write_run(tmp_path / arm, arm, 1, mine)
    arms = group_by_arm(load_runs(tmp_path))
    rows = compare_arms(arms, "grpo", [1], axis="steps")
    found = lines_from_the_start(Compared(arms, "grpo", rows))
    assert len(found) == told
    assert not told or "than the others: mine. At" in found[0]
    ends = compare_arms(arms, "grpo", [1], axis="steps", cost=math.inf)
    assert lines_from_the_start(Compared(arms, "grpo", ends)) == []


@pytest.mark.parametrize(
    ("starts", "told"),
    [
        ([[0, 4], [2, 4]], True),  # one seed of two is enough
        ([[0, 4], [0, 4]], False),
        ([[4], [4]], False),  # no curve
    ],
)
def test_an_arm_of_which_a_seed_was_not_validated_before_training_is_told(
    starts: list[list[int]], told: bool
) -> None:
    empty = pd.DataFrame()
    runs = [
        Run(Path("x"), "mine", seed, {}, empty, empty, table, empty, empty, None)
        for seed, steps in enumerate(starts)
        for table in [pd.DataFrame({"rollout_step": steps})]
    ]
    found = late_starts(Compared({"mine": runs}, None, []))
    assert len(found) == told
    assert not told or found[0].startswith("Not validated before training: mine. The mean")


def test_both_measures_of_flatter_and_sharper_policies_are_told_in_one_line() -> None:
    sharper = {"arm": "e3", "entropy": 0.188, "against_entropy": 0.235}
    rows = [row(measure=each, **sharper) for each in ("pass@1", "pass@16")]
    rows += [row(entropy=0.266, against_entropy=0.235)]
    (line,) = unequal_entropies(Compared({}, "grpo", rows))
    named = "than the control: E3 (-20.0 %), mine (+13.2 %)."
    assert f"{named} There a sharper policy has more pass@1" in line


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_entropies_that_are_not_recorded_are_told(unknown: float | None) -> None:
    rows = [row(entropy=unknown, against_entropy=0.235, temperature=t) for t in (1.0, 0.0)]
    (line,) = unequal_entropies(Compared({}, "grpo", rows))
    assert line.startswith("No entropy is recorded of mine, or of the control")
    assert unequal_entropies(Compared({}, "grpo", rows[1:])) == []  # greedily there is none


@pytest.mark.parametrize(("seeds", "told"), [(2, True), (1, False)])
def test_noise_that_is_not_recorded_is_told(tmp_path: Path, seeds: int, told: bool) -> None:
    runs = folder(tmp_path, seeds=seeds, own_noise=True)
    for run in runs.glob("mine-*"):
        configure(run, callbacks=None)
    found = shared_validation_noise(compared(runs))
    assert len(found) == told
    assert not told or "recorded of mine: " in found[0]


def test_what_is_validated_greedily_alone_shares_no_noise(tmp_path: Path) -> None:
    arms = compared(folder(tmp_path)).arms
    greedy = {
        arm: [
            replace(r, evaluations=r.evaluations[r.evaluations["name"] == "greedy"]) for r in runs
        ]
        for arm, runs in arms.items()
    }
    assert len(shared_validation_noise(Compared(arms, "grpo", []))) == 1
    assert shared_validation_noise(Compared(greedy, "grpo", [])) == []


def test_a_seed_of_noise_that_is_not_given_is_the_one_that_is_taken(tmp_path: Path) -> None:
    """Seed 1 names the noise 0, seed 2 names none and has it too."""
    runs = folder(tmp_path)
    for run in runs.glob("*-1"):
        configure(run, callbacks={"pass_at_k": {"seed": 0}})
    assert len(shared_validation_noise(compared(runs))) == 1
