"""A recorded study: light copies, the control at equal entropy, both tables."""

import json
import runpy
from pathlib import Path

import pandas as pd
import pytest

from e3rl import study
from e3rl.analysis.runs import Run, by_arm, load_runs
from e3rl.analysis.summary import arm_evaluations
from e3rl.callbacks.pass_at_k import Counts
from e3rl.ledger import read_rows

ROOT = Path(__file__).parents[1]
Arms = dict[str, list[Run]]


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    folder = recorded_runs["write_study"](tmp_path_factory.mktemp("study"), ["grpo", "ts_an", "e3"])
    for file in folder.rglob("validation.jsonl"):  # as training leaves them: nothing is matched
        rows = [row for row in read_rows(file) if row["name"] != "matched"]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return by_arm(load_runs(folder))


def test_arms_at_nearly_one_entropy_share_a_matched_control(arms: Arms) -> None:
    names = study.entropies_to_match(arm_evaluations(arms), "grpo")
    assert set(names) == {"matched ts_an"}  # E3 has the same entropy in the recorded runs
    (found,) = [e for e in arm_evaluations(arms) if (e.arm, e.name) == ("ts_an", "live")]
    assert names["matched ts_an"] == found.entropy


def test_arms_that_sample_at_one_need_no_control_of_another_entropy(arms: Arms) -> None:
    assert study.entropies_to_match(arm_evaluations({"grpo": arms["grpo"]}), "e3") == {}


def test_the_control_is_recorded_at_the_entropy_of_the_others_and_compared_there(
    arms: Arms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(run: Run, entropies: dict[str, float]) -> list[Counts]:
        problems = [f"problem-{i}" for i in range(30)]
        return [
            Counts(name, 1.3, problems, ["x"] * 30, [16] * 30, [8] * 30, 1000 * entropy, 1000, 0)
            for name, entropy in entropies.items()
        ]

    monkeypatch.setattr(study, "evaluate_at", sampled)
    study.record(arms, tmp_path / "runs")
    study.record_matched(arms, "grpo", tmp_path / "runs")
    recorded = by_arm(load_runs(tmp_path / "runs"))
    printed = study.tell(recorded, "grpo", tmp_path)
    assert "matched ts_an" in printed
    compared = pd.read_csv(tmp_path / "comparison.csv")
    live = compared.query("arm == 'e3' and evaluation == 'live' and measure == 'pass@1'")
    assert set(live["against"]) == {"grpo matched ts_an"}
    (matched,) = [e for e in arm_evaluations(recorded) if e.name == "matched ts_an"]
    assert (matched.arm, len(matched.seeds), matched.temperature) == ("grpo", 2, 1.3)
    assert matched.by_seed(1).tolist() == [0.5, 0.5]
    assert "P(better)" in (tmp_path / "comparison.md").read_text()
    assert "grpo matched ts_an" in (tmp_path / "results.md").read_text()


def test_copies_hold_budgets_only_where_they_differ_and_no_paths(
    arms: Arms, tmp_path: Path
) -> None:
    study.record(arms, tmp_path)
    assert (tmp_path / "e3" / "seed-1" / "prompts.jsonl").is_file()
    assert not (tmp_path / "grpo" / "seed-1" / "prompts.jsonl").exists()
    number = read_rows(tmp_path / "e3" / "seed-2" / "metrics.jsonl")[-2]["policy/entropy"]
    assert number == float(f"{number:.6g}")
