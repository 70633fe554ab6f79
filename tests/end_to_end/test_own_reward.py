"""A reward of five lines trains, is resumed, evaluates and shows up in the report."""

import json
import math
from pathlib import Path

import pytest
from tiny_runs import E3, TINY

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.evaluate import evaluate
from e3rl.ledger.ledger import read_rows
from e3rl.report import main as report
from e3rl.runs import run as running

OWN = r"""
from e3rl.rewards.functions import Score

def score(completion, answer, level, **row):
    right = completion.rstrip().endswith("\\boxed{" + answer + "}")
    return Score(right * (1 - 0.001 * len(completion)), right, {"letters": len(completion)})
"""
FILE = r"""
def score(completion, answer, unit):
    raise RuntimeError("never called")
"""


def test_a_reward_of_the_user_goes_through_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    reward = ("reward=function", "reward.path=mine.py:score", "reward.deadline_s=60")
    folder = tmp_path / "runs" / "own" / "1"
    running.execute(composed(*TINY, *E3, *reward, f"paths.run_dir={folder}", "name=own"))
    steps = read_rows(folder / "metrics.jsonl")
    trained = [row for row in steps if "reward/correct" in row]
    assert len(trained) == 6
    for row in trained:
        assert row["reward/correct"] + row["reward/wrong"] == 12
        assert 1 < row["reward/part/letters"] < 100
        assert row["reward/no_answer"] == 0
    # A right answer earns a little less than 1, and counts as right all the same.
    validated = read_rows(folder / "validation.jsonl")
    earned = [r for row in validated for own in row.get("rewards", []) for r in own]
    assert any(0.9 < r < 1 for r in earned)
    assert sum(sum(row["correct"]) for row in validated if "rewards" in row) == sum(
        r > 0 for r in earned
    )
    last = next(row for row in reversed(steps) if "val/t1/pass@1" in row)
    if "val/t1/max@1" in last:
        assert math.isclose(last["val/t1/max@1"], last["val/t1/reward"])

    out = tmp_path / "evaluated"
    evaluate(
        composed(
            *(*reward, f"ckpt_path={folder}", "engine=transformers", f"out={out}"),
            *("problems.size=2", "n=2", "ks=[1,2]", "max_new_tokens=20"),
            root="evaluate",
        )
    )
    (row,) = json.loads((out / "summary.json").read_text())
    assert row["no_answer"] == 0.0
    (counts,) = [r for r in read_rows(out / "validation.jsonl") if r["name"] == "t1"]
    assert row["pass@1"] == sum(counts["correct"]) / sum(counts["n"])

    report([str(folder), "--out", str(tmp_path / "page.html")])
    assert "own" in (tmp_path / "page.html").read_text()


def test_a_column_that_the_problems_lack_is_named_before_anything_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    settings = ("reward=function", "reward.path=mine.py:score", f"paths.run_dir={tmp_path / 'r'}")
    with pytest.raises(ConfigurationError, match=r"(?s)data: .*wants unit.* are level, prob"):
        running.execute(composed(*TINY, *E3, *settings))
