"""A checkpoint of a run, evaluated by the command, gives what the run's last validation gave."""

from pathlib import Path

import pytest
from tiny_runs import ENGINE, needs_engine

from compositions import composed
from e3rl.analysis.sources.runs import load_run
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.evaluate import evaluate
from e3rl.ledger.ledger import read_rows
from e3rl.rewards.pool import RewardPool
from e3rl.runs import run as running
from e3rl.runs.recording import sample_policy

AT_ONE = Evaluation("t1", n=4, temperature=1.0)
TINY = (
    *("debug=tiny", "logger=ledger_only", "max_new_tokens=20", "rollouts_per_prompt=4"),
    *("figures=false", "data=arithmetic", "policy=embedded_arithmetic"),
    *("epochs=1", "data.train.size=8", "data.validation.size=6", "validate_every=2"),
    *("budget=uniform", "temperature=fixed", "module.optimizer.lr=0.01", "sweep.name=test"),
    *("trainer.enable_progress_bar=false", "callbacks.pass_at_k.evaluations.0.n=4"),
    *("callbacks.pass_at_k.evaluations.2.n=1", "callbacks.pass_at_k.ks=[1,2]"),
)
EVALUATION = (
    "seed=1",
    "problems=arithmetic",
    *("problems.size=6", "n=4", "ks=[1,2]", "max_new_tokens=20", "temperatures=[1.0,0]"),
)


@pytest.mark.parametrize(
    "engine", ["transformers", pytest.param(ENGINE, marks=[needs_engine, pytest.mark.slow])]
)
def test_a_checkpoint_gives_the_counts_of_its_validation(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RewardPool, "self_test", lambda _: None)  # integers need no worker
    monkeypatch.setattr(running, "finish", lambda *_: None)
    run, out = tmp_path / "run", tmp_path / "out"
    running.execute(composed(*TINY, f"engine={engine}", f"paths.run_dir={run}"))
    evaluate(
        composed(*EVALUATION, f"engine={engine}", f"ckpt_path={run}", f"out={out}", root="evaluate")
    )
    validations = read_rows(run / "validation.jsonl")
    by_step = {(row["rollout_step"], row["name"]): row for row in validations}
    last = [by_step[2, name] for name in ("t1", "greedy")]
    assert [row["correct"] for row in read_rows(out / "validation.jsonl")] == [
        row["correct"] for row in last
    ]
    assert [row["rollout_step"] for row in read_rows(out / "validation.jsonl")] == [2, 2]
    # The learning rate is so large that another policy answers otherwise.
    assert last[0]["entropy_sum"] != by_step[0, "t1"]["entropy_sum"]
    assert last[0]["correct"] != by_step[0, "t1"]["correct"]
    recorded = {
        trained: sample_policy(load_run(run), [AT_ONE], trained)[0] for trained in (True, False)
    }
    assert recorded[True].correct == last[0]["correct"]
    assert recorded[False].correct == by_step[0, "t1"]["correct"]
