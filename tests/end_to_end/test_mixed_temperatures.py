"""Whole tiny runs with several temperatures in a step: what is recorded of them."""

import math
from pathlib import Path

import pytest
from tiny_runs import STEPS, only_train, run

from e3rl.ledger.ledger import read_rows

MIXED = (
    *("temperature=multi_temperature", "temperature/spread=by_difficulty", "budget=e3_rank"),
    *("temperature@temperature.rule=entropy_target", "temperature.rule.init_steps=2"),
    *("temperature.spread.kappa=0.25", "budget.n_low=2", "budget.n_high=4"),
)


def test_prompts_are_sampled_by_their_rank_around_the_rules_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    run(tmp_path, *MIXED)
    trained = [row for row in read_rows(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    taus = [1.0, *(row["temperature/value"] for row in trained)]  # of step 0, then decided
    departed = 0
    for tau, row in zip(taus, read_rows(tmp_path / "prompts.jsonl"), strict=False):
        ranks = [math.nan if rank is None else rank for rank in row["rank"]]
        seen = [rank for rank in ranks if not math.isnan(rank)]
        above = [0.0 if math.isnan(k) else k - sum(seen) / len(seen) for k in ranks]
        expected = [tau * (1 + 0.5 * each) for each in above]
        assert row["temperature"] == pytest.approx(expected, rel=1e-6)
        departed += any(above)
    assert departed == STEPS // 2  # the second pass: before it nothing has a rank
    assert len(set(taus)) > 2
