"""Every preset of the paper's scale, with random weights of a tiny policy in place of its own."""

import json
from pathlib import Path

import pytest
from tiny_runs import ENGINE, ledger_rows, needs_engine

from compositions import composed
from e3rl.analysis.sources.runs import ARM_ORDER
from e3rl.checkpoints.files import checkpoints, find_damage
from e3rl.runs import run as running

QUICK = {("1_5b", "e3"), ("7b", "grpo_er")}  # with every part that differs between arms
# What samples is the same for all arms: they take what debug=tiny has, and a sharded one also the
# engine of the make commands.
PRESETS = [
    *(
        pytest.param(size, arm, "", marks=() if (size, arm) in QUICK else pytest.mark.slow)
        for size in ("1_5b", "7b")
        for arm in ARM_ORDER
    ),
    pytest.param("7b", "grpo_er", f"engine={ENGINE}", marks=[needs_engine, pytest.mark.slow]),
]


@pytest.mark.usefixtures("rank_of_its_own")
@pytest.mark.parametrize(("size", "arm", "engine"), PRESETS)
def test_a_preset_takes_two_steps(size: str, arm: str, engine: str, tmp_path: Path) -> None:
    cfg = composed(
        *(f"experiment=paper/{size}/{arm}", "debug=tiny", *filter(None, [engine])),
        *("logger=ledger_only", f"paths.run_dir={tmp_path}", "sweep.name=test"),
        *("trainer.accelerator=cpu", "trainer.enable_progress_bar=false"),
        *("engine.progress=false", "figures=false"),
    )
    outcome = running.execute(cfg)
    assert outcome is not None
    assert cfg.policy.path == "random"
    rows = ledger_rows(tmp_path)
    trained = [row for row in rows["metrics"] if row["kind"] == "train"]
    assert [row["rollout_step"] for row in trained] == [0, 1]
    assert [sum(row["n"]) for row in rows["prompts"]] == [32, 32]
    assert all(row["rollout/length"] <= 64 for row in trained)
    validated = [(row["rollout_step"], row["name"]) for row in rows["validation"]]
    assert validated == [(0, "greedy"), (2, "greedy"), (2, "t1")]
    assert trained[-1]["policy/lr"] == {"1_5b": 5e-6, "7b": 2e-6}[size]
    last = checkpoints(tmp_path / "checkpoints")[-1]
    assert (last.name, find_damage(last)) == ("step-000002.ckpt", "")
    assert last.is_dir() == (size == "7b")  # of shards, under trainer=fsdp2
    assert json.loads((tmp_path / "summary.json").read_text())["costs"]["cost/rollouts"] == 64
