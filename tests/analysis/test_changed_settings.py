"""What the report says of settings that arms differ in, of code and of first policies."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from recorded_runs import write_run
from warned_runs import BASE, HOTTER, SMALL, compared, configure, folder, recorded_by

from e3rl.analysis.warnings.changed_settings import (
    other_base_policy,
    repeated_seeds,
    several_settings,
    unlike_runs,
    weighty_rollouts,
)
from e3rl.analysis.warnings.rewards import edited_rewards


def test_an_arm_that_differs_in_one_slot_is_a_clean_comparison(tmp_path: Path) -> None:
    assert several_settings(compared(folder(tmp_path))) == []


def test_settings_that_an_arm_differs_in_are_named(tmp_path: Path) -> None:
    changed = {"budget": {"_target_": "E3Rank", "n_low": 4}, "loss": {"clip_high": 0.28}}
    (line,) = several_settings(compared(folder(tmp_path, changed=changed)))
    assert line.startswith(
        "mine differs from GRPO in 3 settings: budget, loss.clip_high, temperature"
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, False),
        ({"budget": {"_target_": "e3rl.budgets.e3_rank.E3Rank", "n_low": 4}}, True),
        ({"budget": {"_target_": "MyOwn"}}, True),
        ({"budget": {"_target_": "E3Rank", "spend": "weight"}}, False),
        ({"budget": {"_target_": "E3Rank"}, "loss": {"prompt_weight": "prompt"}}, False),
        ({"budget": {"_target_": "E3Rank"}, "loss": {"aggregation": "prompt_mean"}}, False),
        ({"budget": {"_target_": "DynamicSampling"}}, False),
    ],
)
def test_rollouts_that_are_also_weight_are_told(
    changed: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    lines = weighty_rollouts(compared(folder(tmp_path, changed=changed)))
    assert [line.startswith("mine has more rollouts for some prompts") for line in lines] == (
        [True] * told
    )


def test_weight_that_the_control_has_too_is_not_told(tmp_path: Path) -> None:
    root = folder(tmp_path, changed={"budget": {"_target_": "E3Rank"}})
    for run in root.glob("grpo-*"):
        configure(run, budget={"_target_": "E3Rank"})
    assert weighty_rollouts(compared(root)) == []


def test_a_setting_that_came_with_a_later_version_is_no_difference(tmp_path: Path) -> None:
    runs = folder(tmp_path, changed={"module": {"nonfinite_steps": 3}})
    assert "module.nonfinite_steps" in several_settings(compared(runs))[0]
    configure(runs / "grpo-2", module={"nonfinite_steps": 3})  # the control's first seed lacks it
    assert "module.nonfinite_steps" in several_settings(compared(runs))[0]  # nobody knows why
    for run in runs.iterdir():
        recorded_by(run, "old" if run.name == "grpo-1" else "new")
    assert several_settings(compared(runs)) == []


def test_settings_of_another_version_are_told_once_for_all_arms(tmp_path: Path) -> None:
    newer = {"stall_s": 60, "module": {"offload": False}}
    commits = {"grpo": "old", "mine": "new", "yours": "newer"}
    (line,) = several_settings(compared(three_arms(tmp_path, newer, commits)))
    assert line.startswith(
        "Recorded by other commits of the code than GRPO (old): mine (new); yours (newer). What "
        "came with it (module.offload, stall_s) counts as no change of an arm."
    )


def test_runs_of_one_name_that_differ_in_more_than_their_seed_are_told(tmp_path: Path) -> None:
    root = folder(tmp_path)
    assert unlike_runs(compared(root)) == []
    configure(root / "mine-2", budget={"_target_": "Hora"})
    (line,) = unlike_runs(compared(root))
    assert line.startswith("Runs that are called mine differ in more than their seed: budget. ")
    assert "names of their own" in line


def test_two_runs_of_one_arm_and_seed_are_named(tmp_path: Path) -> None:
    root = folder(tmp_path)
    assert repeated_seeds(compared(root)) == []
    again = write_run(root / "mine-again", "mine", 2, SMALL)
    (line,) = repeated_seeds(compared(root))
    assert line.startswith("mine has 2 runs of seed 2, which count as 2 seeds: ")
    assert str(again) in line
    assert str(root / "mine-1") not in line
    config = yaml.safe_load((again / "config.yaml").read_text())
    config["budget"] = {"_target_": "e3rl.budgets.uniform.Other"}
    (again / "config.yaml").write_text(yaml.safe_dump(config))
    (line,) = repeated_seeds(compared(root))
    assert "They differ in budget, " in line


def test_another_first_policy_is_told(tmp_path: Path) -> None:
    other = {"policy": {"path": "elsewhere", "head": None}}
    (line,) = other_base_policy(compared(folder(tmp_path, changed=other)))
    assert line.startswith("mine starts from another policy than GRPO")


def test_a_policy_that_only_trains_otherwise_starts_the_same(tmp_path: Path) -> None:
    other = {"policy": {"path": "embedded", "head": {"mode": "chunked"}, "lora": {"rank": 4}}}
    assert other_base_policy(compared(folder(tmp_path, changed=other))) == []


ADAPTERS = {"_target_": "LoRA", "r": 4}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"policy": BASE["policy"] | {"lora": ADAPTERS}}, "policy.lora, temperature"),
        ({"policy": {"path": "elsewhere"}}, "policy, temperature"),
        ({"policy": BASE["policy"] | {"head": {"mode": "chunked"}}}, None),
        ({"engine": BASE["engine"] | {"dtype": "bfloat16"}}, "engine.dtype, temperature"),
        ({"engine": {"_target_": "VLLM", "dtype": "bfloat16"}}, "engine, temperature"),
        ({"engine": BASE["engine"] | {"rows_per_call": 8}}, None),
        ({"data": BASE["data"] | {"seed": 7}}, "data.seed, temperature"),
        ({"shaping": None, "plans": {"mean_tokens": None}}, None),  # null is as good as absent
    ],
)
def test_what_decides_numbers_is_a_setting_wherever_it_stands(
    tmp_path: Path, changed: dict[str, Any], names: str | None
) -> None:
    found = several_settings(compared(folder(tmp_path, changed=changed)))
    assert len(found) == (names is not None)
    assert names is None or f"2 settings: {names}." in found[0]


def test_the_seed_of_a_run_is_no_setting_that_arms_differ_in(tmp_path: Path) -> None:
    """Of the control's three seeds the arm has two; the order of prompts follows the seed."""
    runs = [*folder(tmp_path).iterdir(), write_run(tmp_path / "grpo-3", "grpo", 3, SMALL)]
    configure(runs[-1], **BASE)
    for run in runs:
        seed = yaml.safe_load((run / "config.yaml").read_text())["seed"]
        configure(run, data=BASE["data"] | {"seed": seed})
    assert several_settings(compared(tmp_path)) == []
    configure(tmp_path / "mine-2", data=BASE["data"] | {"seed": 1})  # that of another run
    assert "data.seed, temperature" in several_settings(compared(tmp_path))[0]


def three_arms(root: Path, yours: dict[str, Any], commits: dict[str, str]) -> Path:
    """One run each of the control, of `mine` and of `yours`, both with settings of `yours`."""
    folder(root, seeds=1, changed=yours)
    configure(write_run(root / "yours-1", "yours", 1, SMALL), **(BASE | yours))
    for arm, commit in commits.items():
        recorded_by(root / f"{arm}-1", commit)
    return root


def test_a_callback_that_two_arms_share_is_a_setting_of_theirs(tmp_path: Path) -> None:
    more = {"callbacks": HOTTER["callbacks"] | {"disturbance": {"_target_": "Disturbance"}}}
    commits = {"grpo": "a" * 40, "mine": "b" * 40, "yours": "b" * 40}
    lines = several_settings(compared(three_arms(tmp_path, more, commits)))
    assert lines[0].startswith("Recorded by other commits of the code than GRPO (aaaaaaa): all ")
    assert lines[0].endswith("(bbbbbbb). A commit may change more than settings tell.")
    assert lines[1].startswith("mine differs from GRPO in 2 settings: callbacks.disturbance, temp")


@pytest.mark.parametrize("commits", [{}, {"grpo": "a", "mine": "a", "yours": "b"}])
def test_without_commits_that_tell_them_apart_settings_are_the_arms_own(
    tmp_path: Path, commits: dict[str, str]
) -> None:
    lines = several_settings(compared(three_arms(tmp_path, {"stall_s": 60}, commits)))
    assert "mine differs from GRPO in 2 settings: stall_s, temperature." in lines[-1]


def test_an_arm_that_records_no_policy_is_not_said_to_differ(tmp_path: Path) -> None:
    runs = folder(tmp_path, seeds=1)
    configure(runs / "mine-1", policy=None, loss=None, budget=None)
    assert other_base_policy(compared(runs)) == []
    (line,) = several_settings(compared(runs))
    assert line.startswith("mine records no settings of a policy: ")


def test_first_policies_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Each seed starts from a policy of its own, and the arm has not run the third."""
    runs = [*folder(tmp_path).iterdir(), write_run(tmp_path / "grpo-3", "grpo", 3, SMALL)]
    for run in runs:
        configure(run, policy={"path": f"policy-{run.name[-1]}"})
    assert other_base_policy(compared(tmp_path)) == []
    configure(tmp_path / "mine-2", policy={"path": "policy-1"})
    assert len(other_base_policy(compared(tmp_path))) == 1


def test_a_reward_that_was_edited_between_runs_is_told(tmp_path: Path) -> None:
    root = folder(tmp_path)
    for run, digest in zip(sorted(root.iterdir()), ("aa", "aa", "aa", "bb"), strict=True):
        (run / "environment.json").write_text(json.dumps({"reward_code": {"my.py:score": digest}}))
    (line,) = edited_rewards(compared(root))
    assert line.startswith("my.py:score was edited between these runs, of which 2 versions judged")
    assert "GRPO, mine; mine" in line
    for run in root.iterdir():
        (run / "environment.json").write_text(json.dumps({"reward_code": {"my.py:score": "aa"}}))
    assert edited_rewards(compared(root)) == []
