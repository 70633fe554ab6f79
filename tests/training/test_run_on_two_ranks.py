import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_run import Steps, train
from tiny_runs import final_state, ledger_rows

from e3rl.engines.vllm_build import INSTALL
from update_harness import gap

SCRIPT = Path(__file__).with_name("ddp_run.py")


def run_on_two_ranks(folder: Path, *overrides: str) -> list[Steps]:
    """Both ranks' rollouts of every step."""
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "PYTEST"))}
    run = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), str(folder)),
            *("trainer.devices=2", "+trainer.strategy=ddp", *overrides),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


WITH_VLLM = (
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason=f"vLLM is not installed: {INSTALL}"
    ),
)
SETTINGS = [
    pytest.param(("engine=transformers",), id="transformers"),
    pytest.param(("engine=vllm", "rollout.lookahead=1"), id="vllm-ahead", marks=WITH_VLLM),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_two_ranks_sample_and_learn_what_one_process_does(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    ranks = run_on_two_ranks(tmp_path / "ranks", *settings)
    alone = train(tmp_path / "alone", *settings)
    assert len(alone) == 6
    assert [a | b for a, b in zip(*ranks, strict=True)] == alone
    assert all(a and b and not a.keys() & b.keys() for a, b in zip(*ranks, strict=True))
    states = [final_state(tmp_path / name / "run") for name in ("ranks", "alone")]
    assert gap(*(state["state_dict"] for state in states)) < 1e-5
    assert states[0]["callbacks"]["e3rl/budget"] == states[1]["callbacks"]["e3rl/budget"]
    rows, expected = (ledger_rows(tmp_path / name / "run") for name in ("ranks", "alone"))
    assert [set(row["prompt_id"]) for row in rows["prompts"]] == [set(step) for step in alone]
    figures = ("rollout_step", "name", "problem_id", "n", "correct", "tokens", "truncated")
    for row, other in zip(rows["validation"], expected["validation"], strict=True):
        assert {name: row[name] for name in figures} == {name: other[name] for name in figures}
    trained, reference = (
        [row for row in each["metrics"] if row["kind"] == "train"] for each in (rows, expected)
    )
    for row, other in zip(trained, reference, strict=True):
        for name in ("rollout/accuracy", "rollout/tokens", "policy/entropy", "budget/std"):
            assert row[name] == pytest.approx(other[name], rel=1e-6), name
        assert 1 <= row["budget/rank_imbalance"] < 1.3
        assert 1 <= row["rollout/rank_imbalance"] < 2
        assert not [name for name in other if "imbalance" in name]
    assert len({row["budget/rank_imbalance"] for row in trained}) > 1
    if "rollout.lookahead=1" not in settings:  # what is sampled ahead is so again on other ranks
        saved = tmp_path / "ranks" / "run" / "checkpoints" / "step-000003.ckpt"
        assert train(tmp_path / "ranks", *settings, f"ckpt_path={saved}") == alone[3:]
