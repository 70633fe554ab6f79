"""What is said of GRPO beside TRL's is what was recorded, judged as it was declared."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
import yaml

from e3rl.ledger.ledger import read_rows
from pages import ROOT
from study_scripts import study_modules

pytestmark = pytest.mark.end_to_end

STUDY = ROOT / "experiments" / "parity"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    with study_modules(STUDY, "replay", "run") as found:
        yield found


@pytest.fixture(scope="module")
def replayed() -> list[dict[str, Any]]:
    return read_rows(STUDY / "results" / "replay.jsonl")


def text() -> str:
    return (STUDY / "README.md").read_text(encoding="utf-8")


def test_the_families_are_those_that_were_declared_and_all_their_seeds_have_run() -> None:
    declared = yaml.safe_load((STUDY / "study.declared.yaml").read_text(encoding="utf-8"))
    asked = yaml.safe_load((STUDY / "study.yaml").read_text(encoding="utf-8"))
    assert asked == declared
    for name in declared["families"]:
        (row,) = pd.read_csv(STUDY / "results" / f"{name}.csv").to_dict("records")
        assert (row["arm"], row["against"].split()[0]) == ("trl", "grpo")
        assert (row["family"], row["axis"], row["seeds"]) == (name, "rollouts", 10)


def test_the_table_of_the_same_rollouts_is_that_of_the_results(
    modules: dict[str, Any], replayed: list[dict[str, Any]]
) -> None:
    assert modules["replay"].table(replayed).strip() in text()


def test_updates_agree_until_rounding_has_grown(replayed: list[dict[str, Any]]) -> None:
    as_it_is = [row for row in replayed if row["setting"] == "e3rl as it is"]
    same_eps = [row for row in replayed if row["setting"] == "e3rl with TRL's ε"]
    assert len(as_it_is) == len(same_eps) == 128
    assert max(abs(row["e3rl"] / row["trl"] - 1) for row in as_it_is[:64]) < 1e-3
    assert max(abs(row["e3rl"] / row["trl"] - 1) for row in same_eps[:16]) < 1e-5
    assert as_it_is[63]["to_trl"] < 1e-3 * as_it_is[63]["moved"]


def test_every_update_from_trls_weights_is_trls_as_declared(modules: dict[str, Any]) -> None:
    rows = read_rows(STUDY / "results" / "every_step.jsonl")
    assert modules["replay"].table_of_steps(rows).strip() in text()
    most = {"e3rl as it is": 1e-3, "e3rl with TRL's ε": 1e-5}  # declared: 1e-3 for both
    for setting, norm in most.items():
        mine = [row for row in rows if row["setting"] == setting]
        assert [row["step"] for row in mine] == list(range(1, 129))
        assert max(abs(row["e3rl"] / row["trl"] - 1) for row in mine) < norm
        assert max(row["to_trl"] / row["moved"] for row in mine) < 0.01


def test_rows_of_trl_are_put_into_the_names_of_a_ledger(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of two prompts, two rollouts each."""
    run = modules["run"]
    monkeypatch.setattr(run, "PROMPTS", 2)
    monkeypatch.setattr(run, "GROUP", 2)
    logged = [
        {"completions/mean_length": length, "completions/clipped_ratio": 0.25, "grad_norm": 0.5}
        | {"seconds": 2.0, "entropy": 0.3}
        for length in (10.0, 20.0)
    ]
    rewards = [("a", 0), ("a", 1), ("b", 0), ("b", 0), ("c", 1), ("c", 1), ("d", 1), ("d", 0)]
    seen = [{"prompt": prompt, "reward": float(reward)} for prompt, reward in rewards]
    first, second = run.training_rows(logged, seen)
    assert first["rollout/accuracy"] == 0.25
    assert (first["rollout/all_wrong"], first["rollout/all_right"]) == (0.5, 0.0)
    assert second["rollout/accuracy"] == 0.75
    assert (second["rollout/all_wrong"], second["rollout/all_right"]) == (0.0, 0.5)
    assert (first["cost/tokens"], second["cost/tokens"]) == (40.0, 120.0)
    assert (second["cost/rollouts"], second["cost/seconds"]) == (8.0, 4.0)
    mixed = [seen[0], seen[2], *seen[2:]]
    with pytest.raises(ValueError, match="step 0: a group of TRL has several prompts"):
        list(run.training_rows(logged, mixed))


def test_a_verdict_that_differs_ends_the_run(modules: dict[str, Any]) -> None:
    rows = [
        {"prompt": "2+2=?", "completion": r"\boxed{4}", "answer": "4", "reward": 1.0},
        {"prompt": "2+2=?", "completion": r"\boxed{5}", "answer": "4", "reward": 0.0},
    ]
    modules["run"].judge_again(rows)
    with pytest.raises(ValueError, match=r"TRL was told 0\.0"):
        modules["run"].judge_again([rows[0] | {"reward": 0.0}])
