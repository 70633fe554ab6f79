"""Whole runs with what saves memory: chunked heads, recomputed activations, bfloat16, adapters."""

import importlib.util
import math
import warnings
from pathlib import Path

import pytest
import torch
from tiny_runs import (
    STEPS,
    assert_same,
    every_state_of_the_disk,
    final_state,
    last_before_each_checkpoint,
    ledger_rows,
    only_train,
    run,
)

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.evaluate import evaluate
from e3rl.ledger.ledger import read_rows
from e3rl.policy.adapters import DIGEST

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft: pip install 'e3rl[lora]'"
)
CHUNKED = ("policy/head=chunked", "policy.head.block=16")
ADAPTERS = ("policy/lora=linear", "policy.lora.r=2", "module.optimizer.lr=0.01")


@pytest.fixture(autouse=True)
def _only_train(monkeypatch: pytest.MonkeyPatch) -> None:
    only_train(monkeypatch)


def metrics(run_dir: Path) -> list[dict[str, float]]:
    return [row for row in read_rows(run_dir / "metrics.jsonl") if "policy/loss" in row]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", "float32"), ("bf16-true", "bfloat16")]
)
def test_bfloat16_trains_with_recomputed_activations_and_a_float32_head(
    tmp_path: Path, precision: str, dtype: str
) -> None:
    common = ("experiment=grpo_er", "loss.kl_coef=0.1", "epochs=1", "validate_every=3")
    run(
        tmp_path / "half",
        *(*common, *CHUNKED, "policy.head.dtype=float32", "+policy.gradient_checkpointing=true"),
        *(f"+policy.dtype={dtype}", f"trainer.precision={precision}"),
    )
    run(tmp_path / "full", *common)
    half, full = metrics(tmp_path / "half"), metrics(tmp_path / "full")
    assert len(half) == 3
    values = [value for row in half for value in row.values() if isinstance(value, float)]
    assert len(values) > 100
    assert all(math.isfinite(value) for value in values)
    # The first step's gradient is of other rollouts, and yet of the same size.
    for name in ("policy/entropy_probe", "policy/grad_norm"):
        if name in full[0]:
            assert half[0][name] == pytest.approx(full[0][name], rel=0.5), name
    # Sampler and trainer are one model, but round in different places.
    assert half[0]["policy/mismatch_kl"] < 1e-2
    state = final_state(tmp_path / "half", 3)["state_dict"]
    assert {value.dtype for value in state.values()} == {getattr(torch, dtype)}


@needs_peft
def test_a_run_with_adapters_resumes_bit_for_bit_and_is_evaluated(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    overrides = ["experiment=grpo", "loss.kl_coef=0.1", *CHUNKED, *ADAPTERS, "checkpoint_every=1"]
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        digests = run(whole, *overrides)
    rows, state = ledger_rows(whole), final_state(whole)
    names = set(state["state_dict"])
    assert f"policy.{DIGEST}" in names
    assert all(".lora_" in name for name in names - {f"policy.{DIGEST}"})
    left = last_before_each_checkpoint(states)[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "passing over checkpoint")  # one being written
        resumed = run(left, *overrides, f"ckpt_path={left}")
    assert resumed == {step: digests[step] for step in range(2, STEPS)}
    assert_same(final_state(left), state)
    assert ledger_rows(left) == rows
    evaluated_as_validated(whole, tmp_path / "out")
    with pytest.raises(ConfigurationError, match=r"policy\.lora\.r: 2 at the start, 4 now"):
        run(whole, *overrides, "policy.lora.r=4", f"ckpt_path={whole}")


def evaluated_as_validated(run_dir: Path, out: Path) -> None:
    settings = (
        "problems=arithmetic",
        "seed=1",
        "problems.size=2",
        "n=2",
        "ks=[1,2]",
        "max_new_tokens=20",
        "temperatures=[1.0]",
    )
    given = (*settings, "engine=transformers", f"ckpt_path={run_dir}", f"out={out}")
    cfg = composed(*given, root="evaluate")
    evaluate(cfg)
    rows = [row for row in read_rows(run_dir / "validation.jsonl") if row["name"] == "t1"]
    sums = {row["rollout_step"]: row["entropy_sum"] for row in rows}
    (found,) = read_rows(out / "validation.jsonl")
    assert found["entropy_sum"] == pytest.approx(sums[STEPS], rel=1e-5)  # other padding
    assert abs(sums[STEPS] - sums[0]) > 0.1
