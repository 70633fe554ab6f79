from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e3rl.analysis.sources.code_versions import commit_of, commits_of, settings_of_versions
from e3rl.analysis.sources.runs import Run


@pytest.fixture
def recorded(run: Run, tmp_path: Path) -> Any:
    """A run with some settings, recorded by a commit."""

    def make(commit: str, **config: Any) -> list[Run]:
        folder = tmp_path / (commit or "none")
        folder.mkdir(exist_ok=True)
        (folder / "environment.json").write_text(f'{{"commit": "{commit}"}}')
        return [replace(run, path=folder, config=config)]

    return make


def test_a_run_tells_its_commit_or_does_not(recorded: Any, tmp_path: Path, run: Run) -> None:
    (old,), (new,), (none,) = recorded("old"), recorded("new"), recorded("")
    assert [commit_of(each) for each in (old, none, run)] == ["old", None, None]
    assert commits_of([old, new]) == {"old", "new"}
    assert commits_of([old, none]) == frozenset()
    (tmp_path / "new" / "environment.json").write_text("torn {")
    assert commit_of(new) is None


def test_a_setting_of_other_commits_that_no_arm_chose_is_of_versions(recorded: Any) -> None:
    newer = {"stall_s": 60, "module": {"offload": False}}
    rank, mask = {"_target_": "x.Rank"}, {"_target_": "x.Mask", "share": 0.2}
    arms = {"grpo": recorded("old", loss={"mask": None}), "a": recorded("new", **newer)}
    assert settings_of_versions(arms, "grpo") == set()  # of one arm it may be what it tries
    arms |= dict.fromkeys("bc", recorded("new", budget=rank, loss={"mask": mask}, **newer))
    found = settings_of_versions(arms, "grpo")  # what replaces null in two arms is their own
    assert found == {"module.offload", "stall_s"}
    assert settings_of_versions(arms | {"d": arms["grpo"]}, "a") == found
    arms["d"] = recorded("new", stall_s=30)
    assert settings_of_versions(arms, "grpo") == set()  # two values, and new runs without offload


def test_seeds_of_one_arm_with_a_setting_and_without_are_of_versions(recorded: Any) -> None:
    old, new = recorded("old"), recorded("new", stall_s=60)
    assert settings_of_versions({"grpo": [*old, *new], "a": new}, "grpo") == {"stall_s"}


@pytest.mark.parametrize("commit", ["old", ""])
def test_a_setting_that_commits_do_not_tell_apart_is_the_arms_own(
    recorded: Any, commit: str
) -> None:
    arms = {"grpo": recorded("old")} | dict.fromkeys("ab", recorded(commit, stall_s=60))
    assert settings_of_versions(arms, "grpo") == set()


def test_a_node_with_a_class_is_a_choice_whoever_recorded_it(recorded: Any) -> None:
    callbacks = {"disturbance": {"_target_": "x.Disturbance", "step": 96}}
    arms = {"grpo": recorded("old")} | dict.fromkeys("ab", recorded("new", callbacks=callbacks))
    assert settings_of_versions(arms, "grpo") == set()
