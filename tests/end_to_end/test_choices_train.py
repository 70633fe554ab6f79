"""Tiny runs of choices of `conf/` that no study trains with."""

import math
from pathlib import Path

import pytest
from tiny_runs import STEPS, Finished, whole_run

from e3rl.ledger.ledger import read_rows


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return whole_run(tmp_path_factory.mktemp("plain"), "experiment=grpo")


def test_the_reward_for_real_mathematics_pays_integers_as_that_for_integers_does(
    tmp_path: Path, plain: Finished
) -> None:
    digests, rows, _ = whole_run(tmp_path, "experiment=grpo", "reward=math_box")
    assert digests == plain[0]
    assert rows["validation"] == plain[1]["validation"]
    assert any(row.get("reward/correct", 0) > 0 for row in rows["metrics"])


@pytest.mark.parametrize(
    "choice",
    [
        "loss=cispo",
        "loss=gspo",
        "loss/correction=mis",
        "loss/correction=mis_sequence",
        "loss/correction=tis_sequence",
        "reward=last_number",
        "policy/lora=attention",
    ],
)
def test_a_choice_trains(choice: str, tmp_path: Path, plain: Finished) -> None:
    steps = "module.settings.minibatches=2"  # so that ratios of importance leave 1
    digests, _, _ = whole_run(tmp_path, "experiment=grpo", steps, choice)
    assert len(digests) == STEPS
    assert digests[0] == plain[0][0] or choice.startswith(("policy", "reward"))
    rows = [row for row in read_rows(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    norms = [row["policy/grad_norm"] for row in rows]
    assert all(map(math.isfinite, norms))
    assert max(norms) > 0
