"""A whole tiny run of a budget that weighs by gradient norms: what is recorded of them."""

from pathlib import Path

import pytest
from tiny_runs import STEPS, only_train, run

from e3rl.ledger.ledger import read_rows


def test_norms_are_measured_for_every_prompt_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    neyman = ("budget=neyman", "budget.weight=cures", "budget.n_low=2", "budget.n_high=4")
    run(tmp_path, *neyman, "temperature=fixed")
    rows = read_rows(tmp_path / "prompts.jsonl")
    trained = [row for row in read_rows(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    assert len(rows) == len(trained) == STEPS
    for row, step in zip(rows, trained, strict=True):
        assert min(row["grad_norm"]) > 0
        for i, (n, right) in enumerate(zip(row["n"], row["correct"], strict=True)):
            assert (row["grad_norm_right"][i] is None) == (right == 0)
            assert (row["grad_norm_wrong"][i] is None) == (right == n)
        total = sum(g * n for g, n in zip(row["grad_norm"], row["n"], strict=True))
        right = sum(row["correct"])
        parts = ((step["rollout/grad_norm_right"], right),)
        parts += ((step["rollout/grad_norm_wrong"], sum(row["n"]) - right),)
        assert total == pytest.approx(sum(g * n for g, n in parts if n), rel=1e-5)
        assert step["time/grad_norms_s"] > 0
