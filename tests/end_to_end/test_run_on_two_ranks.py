import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks_run import Steps, train
from tiny_runs import final_state, ledger_rows

from e3rl.engines.vllm_build import INSTALL
from update_harness import gap

SCRIPT = Path(__file__).with_name("ranks_run.py")
Alone = Callable[..., tuple[Path, Steps]]


def run_on_ranks(folder: Path, *overrides: str, ranks: int = 2) -> list[Steps]:
    """Every rank's temperatures and rollouts of every step."""
    folder.mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "PYTEST"))}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), f"trainer.devices={ranks}", *overrides],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def check_one_course(ranks: list[Steps], alone: Steps) -> None:
    """Ranks decide alike and share out what one process samples."""
    for (heat, mine), (other_heat, others), (expected, rollouts) in zip(*ranks, alone, strict=True):
        assert heat == other_heat
        assert heat == pytest.approx(expected, rel=1e-6)
        assert mine | others == rollouts
        assert mine
        assert others
        assert not mine.keys() & others.keys()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The folder and the steps of a run in one process."""
    made: dict[tuple[str, ...], tuple[Path, Steps]] = {}

    def run(*settings: str) -> tuple[Path, Steps]:
        if settings not in made:
            folder = tmp_path_factory.mktemp("alone")
            made[settings] = folder / "run", train(folder, *settings)
        return made[settings]

    return run


WITH_VLLM = (
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason=f"vLLM is not installed: {INSTALL}"
    ),
)
TRANSFORMERS = ("engine=transformers",)
VLLM_AHEAD = ("engine=vllm", "rollout.lookahead=1")
VLLM_TOGETHER = ("engine=vllm", "engine.settings.tensor_parallel_size=2", "rollout.lookahead=1")
SETTINGS = [
    pytest.param("fsdp2", TRANSFORMERS, id="fsdp2-transformers"),
    pytest.param("ddp", VLLM_AHEAD, id="ddp-vllm-ahead", marks=WITH_VLLM),
    pytest.param("fsdp2", VLLM_AHEAD, id="fsdp2-vllm-ahead", marks=WITH_VLLM),
    pytest.param("fsdp2", VLLM_TOGETHER, id="fsdp2-one-vllm-ahead", marks=WITH_VLLM),
]


@pytest.mark.parametrize(("strategy", "settings"), SETTINGS)
def test_two_ranks_sample_and_learn_what_one_process_does(
    strategy: str, settings: tuple[str, ...], tmp_path: Path, alone: Alone
) -> None:
    ranks = run_on_ranks(tmp_path, f"trainer={strategy}", *settings)
    apart = [each for each in settings if "tensor_parallel" not in each]
    reference, steps = alone(*apart)
    assert len(steps) == 6
    assert len({heat for heat, _ in steps}) > 2
    check_one_course(ranks, steps)
    states = [final_state(folder) for folder in (tmp_path / "run", reference)]
    assert gap(*(state["state_dict"] for state in states)) < 1e-5
    assert states[0]["callbacks"]["e3rl/budget"] == states[1]["callbacks"]["e3rl/budget"]
    rows, expected = (ledger_rows(folder) for folder in (tmp_path / "run", reference))
    check_ledgers(rows, expected, [set(rollouts) for _, rollouts in steps])
    if settings == TRANSFORMERS:  # what is sampled ahead is so again on other ranks
        saved = tmp_path / "run" / "checkpoints" / "step-000003.ckpt"
        assert saved.is_dir() == (strategy == "fsdp2")
        resumed = train(tmp_path, *settings, f"ckpt_path={saved}")
        assert [rollouts for _, rollouts in resumed] == [rollouts for _, rollouts in steps[3:]]


def check_ledgers(rows: Any, expected: Any, prompts: list[set[str]]) -> None:
    """Ledgers of two ranks say what those of one process do, and how the two shared the work."""
    assert [set(row["prompt_id"]) for row in rows["prompts"]] == prompts
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


PLACES = [
    ("a file", 2, "fsdp2"),
    ("a folder of two ranks", 1, "fsdp2"),
    ("a folder of one rank", 2, "fsdp2"),
    ("a folder of two ranks, once more", 1, "default"),
]


@pytest.mark.slow
def test_checkpoints_go_on_with_other_numbers_of_ranks(tmp_path: Path, alone: Alone) -> None:
    settings = (*TRANSFORMERS, "checkpoint_every=1", "callbacks.checkpoint.keep=9")
    reference, steps = alone(*settings)
    expected = final_state(reference)
    shutil.copytree(reference, tmp_path / "run")
    for at, (source, count, strategy) in enumerate(PLACES, start=1):
        start = tmp_path / "run" / "checkpoints" / f"step-{at:06d}.ckpt"
        assert start.is_file() == (source == "a file")
        resumed = run_on_ranks(
            tmp_path, f"trainer={strategy}", *settings, f"ckpt_path={start}", ranks=count
        )
        found = [
            dict(ChainMap(*(rollouts for _, rollouts in step)))
            for step in zip(*resumed, strict=True)
        ]
        assert found == [rollouts for _, rollouts in steps[at:]], source
        heats = [heat for heat, _ in resumed[0]]
        assert heats == pytest.approx([heat for heat, _ in steps[at:]], rel=1e-6), source
        final = final_state(tmp_path / "run")
        assert gap(final["state_dict"], expected["state_dict"]) < 1e-5, source
        check_optimizers(final, expected)


def check_optimizers(final: Any, expected: Any) -> None:
    (own,), (other,) = final["optimizer_states"], expected["optimizer_states"]
    assert own["state"].keys() == other["state"].keys()
    for number, state in own["state"].items():
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert gap(state, other["state"][number]) < 1e-5
    assert own["param_groups"][0]["params"] == other["param_groups"][0]["params"]
    assert own["param_groups"][0]["lr"] == other["param_groups"][0]["lr"]
