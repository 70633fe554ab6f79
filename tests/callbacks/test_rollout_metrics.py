"""The metrics slot: metrics by hand, costs over a resume, rows before checkpoints."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import SEED, Fit, ScriptedEngine, scored_batch, slots

from e3rl.callbacks import metrics as metrics_file
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.callbacks.metrics import (
    RolloutMetrics,
    prompt_rows,
    resources,
    rollout_metrics,
    sample_completions,
)
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.ledger.ledger import read_rows

RIGHT, WRONG = (1.0, [-1.0] * 2), (0.0, [-1.0] * 4)
RAGGED = [
    [RIGHT] * 2,  # all right
    [WRONG] * 6,  # all wrong
    [RIGHT, WRONG, WRONG, WRONG],  # a quarter
    [],  # left out by the plan
]


def test_accuracy_over_prompts_and_over_rollouts_differ_for_ragged_groups() -> None:
    row = rollout_metrics(scored_batch(RAGGED))
    assert row["rollout/accuracy"] == pytest.approx((1 + 0 + 1 / 4) / 3)
    assert row["rollout/accuracy_rollouts"] == pytest.approx(3 / 12)


def test_shares_of_constant_and_mixed_groups_leave_out_unsampled_prompts() -> None:
    row = rollout_metrics(scored_batch(RAGGED))
    for kind in ("all_right", "all_wrong", "mixed"):
        assert row[f"rollout/{kind}"] == pytest.approx(1 / 3)
        assert row[f"rollout/{kind}_n"] == 1
    assert row["budget/spent"] == 12
    assert row["budget/effective"] == 4  # rollouts of mixed groups


def test_lengths_truncation_and_rewards_are_means_over_rollouts() -> None:
    batch = scored_batch([[RIGHT, (0.0, [-1.0] * 9)], [RIGHT]])
    batch.rewards = torch.tensor([0.5, 0.0, 0.25])
    row = rollout_metrics(batch)
    assert (row["rollout/n"], row["rollout/tokens"], row["rollout/n_rounds"]) == (3, 13, 1)
    assert row["rollout/length"] == pytest.approx(13 / 3)
    assert row["rollout/length_max"] == 9
    assert row["rollout/truncated"] == pytest.approx(1 / 3)
    assert row["rollout/reward"] == pytest.approx(0.25)
    assert row["rollout/accuracy"] == pytest.approx((1 / 2 + 1) / 2)  # from raw correctness


def test_figures_are_summed_over_ranks_before_they_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, other = scored_batch([[RIGHT] * 2]), scored_batch([[WRONG] * 6])
    kept: list[tuple[list[float], list[float]]] = []

    def keep(*values: list[float]) -> tuple[list[float], ...]:
        kept.append((list(values[0]), list(values[1])))
        return values

    def both(sums: list[float], largest: list[float]) -> tuple[list[float], list[float]]:
        return [a + b for a, b in zip(sums, kept[0][0], strict=True)], [
            max(a, b) for a, b in zip(largest, kept[0][1], strict=True)
        ]

    monkeypatch.setattr(metrics_file, "all_sum_and_max", keep)
    rollout_metrics(other)
    monkeypatch.setattr(metrics_file, "all_sum_and_max", both)
    row = rollout_metrics(own)
    assert row["rollout/accuracy"] == pytest.approx(1 / 2)
    assert row["rollout/accuracy_rollouts"] == pytest.approx(2 / 8)
    assert row["rollout/length"] == pytest.approx((2 * 2 + 6 * 4) / 8)
    assert row["rollout/length_max"] == 4


def test_a_step_says_what_it_took_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = scored_batch(RAGGED)
    batch.born_cpu = 10.0
    monkeypatch.setattr(metrics_file.time, "process_time", lambda: 12.5)
    row = resources(batch, torch.device("cpu"))
    assert row["resources/cpu_s"] == 2.5
    # This process holds torch, which is more than a tenth of a GiB, and has not used a tebibyte.
    assert 0.1 < row["resources/memory_gib"] < 1024
    assert "resources/gpu_memory_gib" not in row


def test_rows_per_prompt_hold_counts_and_ranks() -> None:
    batch = scored_batch(RAGGED)
    batch.ranks = torch.tensor([0.0, 0.75, 0.5, float("nan")])
    row = prompt_rows(batch)
    assert row["prompt_id"] == ["p0", "p1", "p2", "p3"]
    assert row["n"] == [2, 6, 4, 0]
    assert row["correct"] == [2, 0, 1, 0]
    assert row["rank"][:3] == [0.0, 0.75, 0.5]


def test_rows_per_prompt_hold_the_mean_temperature_of_its_rollouts() -> None:
    batch = scored_batch(RAGGED)
    batch.temperatures = torch.tensor([0.5, 0.75, *[1.5] * 6, 1.0, 1.0, 1.0, 2.0])
    row = prompt_rows(batch)
    assert row["temperature"][:3] == [0.625, 1.5, 1.25]
    assert math.isnan(row["temperature"][3])  # without rollouts


def test_measured_gradients_are_reported_by_prompt_and_by_outcome() -> None:
    batch = scored_batch(RAGGED)
    assert "grad_norm" not in prompt_rows(batch)
    assert "rollout/grad_norm_right" not in rollout_metrics(batch)
    batch.grad_norms = torch.tensor([1.0, 3.0, *[2.0] * 6, 5.0, 1.0, 2.0, 3.0])
    row = prompt_rows(batch)
    assert row["grad_norm"][:3] == [2, 2, 11 / 4]
    assert (row["grad_norm_right"][0], row["grad_norm_right"][2]) == (2, 5)
    assert row["grad_norm_wrong"][1:3] == [2, 2]
    assert math.isnan(row["grad_norm_right"][1])  # never right
    assert math.isnan(row["grad_norm"][3])  # without rollouts
    assert "grad_norm_right_squared" not in row
    metrics = rollout_metrics(batch)
    assert metrics["rollout/grad_norm_right"] == pytest.approx((1 + 3 + 5) / 3)
    assert metrics["rollout/grad_norm_wrong"] == pytest.approx((6 * 2 + 1 + 2 + 3) / 9)


def test_completions_are_spread_over_the_batch() -> None:
    batch = scored_batch(RAGGED)
    chosen = sample_completions(batch, 3)
    assert [row["prompt_id"] for row in chosen] == ["p0", "p1", "p2"]
    assert chosen[-1] == {
        "prompt_id": "p2",
        "prompt": "question 2",
        "completion": "wrong",
        "answer": "gold",
        "reward": 0.0,
        "advantage": -0.5,
        "temperature": 1.0,
        "tokens": 4,
        "truncated": False,
    }
    assert sample_completions(batch, 0) == []
    assert len(sample_completions(batch, 99)) == 12


def test_a_step_writes_one_row_to_each_ledger(tmp_path: Path) -> None:
    Fit(slots(), tmp_path, epochs=2).fit()
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["rollout_step"], row["epoch"]) for row in rows] == [
        ("train", step, step // 3) for step in range(6)
    ]
    wanted = {"budget/n_min", "temperature/value", "policy/entropy", "reward/correct"}
    assert wanted | {"time/rollout_s", "time/step_s", "cost/seconds"} <= set(rows[0])
    prompts = read_rows(tmp_path / "prompts.jsonl")
    assert [row["rollout_step"] for row in prompts] == list(range(6))
    assert prompts[0]["rank"] == [None, None]  # never seen
    assert [row["epoch"] for row in prompts] == [0, 0, 0, 1, 1, 1]
    completions = read_rows(tmp_path / "completions.jsonl")
    assert [row["rollout_step"] for row in completions] == list(range(6))


def test_costs_add_up_and_go_on_over_a_resume(tmp_path: Path) -> None:
    first = Fit(slots(), tmp_path / "a", epochs=2).fit()
    rows = read_rows(tmp_path / "a" / "metrics.jsonl")
    tokens = [row["rollout/tokens"] for row in rows]
    assert [row["cost/rollouts"] for row in rows] == [8 * (i + 1) for i in range(6)]
    assert [row["cost/tokens"] for row in rows] == [sum(tokens[: i + 1]) for i in range(6)]
    seconds = [row["time/step_s"] for row in rows]
    assert all(x > 0 for x in seconds)
    assert rows[-1]["cost/seconds"] == pytest.approx(sum(seconds))

    resumed = slots()
    resumed["metrics"].load_state_dict(first.stack["metrics"].state_dict())
    Fit(resumed, tmp_path / "b").fit()
    later = read_rows(tmp_path / "b" / "metrics.jsonl")
    assert later[0]["cost/rollouts"] == 56
    assert later[0]["cost/seconds"] == pytest.approx(sum(seconds) + later[0]["time/step_s"])


def test_the_row_of_a_step_is_written_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, list[Any]]] = []
    save = AtomicCheckpointIO.save_checkpoint

    def watched(self: Any, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        rows = read_rows(tmp_path / "metrics.jsonl")
        steps = [(row["kind"], row["rollout_step"]) for row in rows]
        seen.append((Path(path).stem, steps[-2:]))
        assert checkpoint["e3rl"]["rows"]["metrics"] == len(rows)
        save(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", watched)
    stack = {"checkpoint": RunCheckpoint(str(tmp_path / "checkpoints"), every=1), **slots()}
    Fit(stack, tmp_path, validate_every=3).fit()
    assert seen == [
        ("step-000001", [("train", 0)]),
        ("step-000002", [("train", 0), ("train", 1)]),
        ("step-000003", [("train", 1), ("train", 2)]),  # before its validation
        ("step-000003", [("train", 2), ("validation", 3)]),  # and after it
    ]


def test_a_step_of_several_rounds_is_counted_once(tmp_path: Path) -> None:
    class Twice:
        def __init__(self) -> None:
            self.rounds = iter([[1, 2], [3, 0]])

        def next(self, batch: Any) -> list[int] | None:
            return next(self.rounds, None)

        def metrics(self) -> dict[str, float]:
            return {}

    class Rounds(RolloutBudget):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            super().on_train_batch_start(trainer, module, batch, index)
            batch.allocation = Twice()

    base = slots()["budget"]
    assert isinstance(base, RolloutBudget)
    engine = ScriptedEngine()
    stack = slots(budget=Rounds(base.strategy, 4), rollout=RolloutSampler(engine, 3, SEED))
    Fit(stack, tmp_path, n_prompts=2).fit()
    (row,) = read_rows(tmp_path / "metrics.jsonl")
    assert (row["rollout/n"], row["rollout/n_rounds"], row["budget/spent"]) == (6, 2, 6)
    assert read_rows(tmp_path / "prompts.jsonl")[0]["n"] == [4, 2]


def test_all_completions_of_a_step_that_was_not_finite_are_kept() -> None:
    batch, slot = scored_batch(RAGGED), RolloutMetrics(completions_per_step=1)
    assert len(slot._completions(batch)) == 1
    batch.metrics["policy/nonfinite_steps"] = 1.0
    kept = slot._completions(batch)
    assert kept == sample_completions(batch, batch.n_rollouts)
    assert len(kept) == 12
    assert {row["prompt_id"] for row in kept} == set(batch.prompt_ids[:3])


def test_a_negative_number_of_completions_is_refused() -> None:
    with pytest.raises(ValueError, match="completions_per_step=-1"):
        RolloutMetrics(-1)
