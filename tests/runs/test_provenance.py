"""What a run folder says of the run's start, and what a resumed run compares with it."""

from pathlib import Path

import pytest
from omegaconf import DictConfig

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.runs.provenance import check_same_run, find_edited_rewards, write_provenance

SCORE = "def score(completion, answer):\n    return {}\n"


def with_own_reward(file: Path, run_dir: Path) -> DictConfig:
    file.write_text(SCORE.format("1.0"))
    own = ("reward=function", f"reward.path={file}:score", f"paths.run_dir={run_dir}")
    cfg = composed("logger=ledger_only", *own)
    write_provenance(cfg, run_dir, None)
    return cfg


def test_a_reward_that_was_edited_since_the_run_began_is_told(tmp_path: Path) -> None:
    file = tmp_path / "paid_rewards.py"
    cfg = with_own_reward(file, tmp_path / "run")
    assert find_edited_rewards(cfg, tmp_path / "run") == []
    file.write_text(SCORE.format("0.0"))
    (told,) = find_edited_rewards(cfg, tmp_path / "run")
    assert told.startswith(f"{file}:score has been edited since this run began")


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ("engine.urls=[http://node5:8000]", True),  # the next job of a scheduler has other nodes
        ("engine.wait_s=900", True),
        ("module.settings.nonfinite_steps=10", True),
        ("module.optimizer.lr=1e-5", False),
        ("engine.max_temperature=1.5", False),
    ],
)
def test_a_resumed_run_may_move_and_bear_more_but_learns_as_it_did(
    tmp_path: Path, change: str, goes_on: bool
) -> None:
    given = ("logger=ledger_only", "engine=vllm_server", f"paths.run_dir={tmp_path}")
    given += ("engine.urls=[http://node2:8000]",)
    write_provenance(composed(*given), tmp_path, None)
    changed = composed(*given, f"++{change}")
    if goes_on:
        check_same_run(changed, tmp_path)
    else:
        with pytest.raises(ConfigurationError, match=change.partition("=")[0]):
            check_same_run(changed, tmp_path)


def test_a_run_of_an_earlier_version_is_not_compared(tmp_path: Path) -> None:
    cfg = with_own_reward(tmp_path / "paid_rewards.py", tmp_path / "run")
    (tmp_path / "run" / "environment.json").write_text("{}")
    assert find_edited_rewards(cfg, tmp_path / "run") == []
    (tmp_path / "run" / "environment.json").write_text("")  # as a full disk leaves it
    assert find_edited_rewards(cfg, tmp_path / "run") == []
