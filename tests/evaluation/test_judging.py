"""What decides verdicts: the settings of a reward, and the code of the user's functions."""

from pathlib import Path

import pytest

from e3rl.evaluation.judging import reward_identity


def test_settings_that_change_no_verdict_do_not_count() -> None:
    slow = {"_target_": "x", "answer_format": "math_box", "workers": 2, "memory_limit_mb": None}
    assert reward_identity(slow) == reward_identity(slow | {"workers": 8, "memory_limit_mb": 512})
    assert reward_identity(slow) != reward_identity(slow | {"answer_format": "hashes"})
    assert "code" not in reward_identity(slow)


def test_a_function_that_was_edited_is_another_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "paid_rewards.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    ways = (
        {"path": f"{file}:score"},
        {"path": None, "functions": {"own": {"path": f"{file}:score"}}},
        {"path": "paid_rewards.score"},
    )
    found = []
    for pays in ("1.0", "0.0", "1.0"):
        file.write_text(f"def score(completion, answer):\n    return {pays}\n")
        found.append([reward_identity(way) for way in ways])
    for before, edited, restored in zip(*found, strict=True):
        assert before != edited
        assert before == restored


def test_code_that_is_not_there_is_told_elsewhere() -> None:
    assert "code" not in reward_identity({"path": "no_such_package.module.score"})
    assert "code" not in reward_identity({"path": "no_such_file.py:score"})
