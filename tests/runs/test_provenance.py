"""What a run folder says of the run's start, and what a resumed run compares with it."""

from pathlib import Path

from omegaconf import DictConfig

from compositions import composed
from e3rl.runs.provenance import find_edited_rewards, write_provenance

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


def test_a_run_of_an_earlier_version_is_not_compared(tmp_path: Path) -> None:
    cfg = with_own_reward(tmp_path / "paid_rewards.py", tmp_path / "run")
    (tmp_path / "run" / "environment.json").write_text("{}")
    assert find_edited_rewards(cfg, tmp_path / "run") == []
