"""Two machines, each of them a process here, started as torchrun and srun start them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import E3, TINY, final_state, ledger_rows, only_train, run

from update_harness import gap

MACHINES = 2
SHARDED = ("trainer=fsdp2", "trainer.devices=1", f"trainer.num_nodes={MACHINES}")
Start = Callable[[int, int], tuple[list[str], dict[str, str]]]
FIGURES = ("rollout_step", "name", "problem_id", "n", "correct", "tokens", "truncated")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def by_torchrun(machine: int, port: int) -> tuple[list[str], dict[str, str]]:
    """The command in front of the module, and what there is in the environment."""
    settings = (
        *(f"--nnodes={MACHINES}", "--nproc-per-node=1", f"--node-rank={machine}"),
        *("--master-addr=127.0.0.1", f"--master-port={port}"),
    )
    return [sys.executable, "-m", "torch.distributed.run", *settings], {}


def by_srun(machine: int, port: int) -> tuple[list[str], dict[str, str]]:
    """As `by_torchrun`; srun itself only sets these and starts the command on each machine."""
    told = {
        "JOB_ID": 77,
        "JOB_NAME": "e3",
        "STEP_ID": 0,
        "STEP_NUM_TASKS": MACHINES,
        "NTASKS": MACHINES,
        "NTASKS_PER_NODE": 1,
        "NNODES": MACHINES,
        "NODELIST": "127.0.0.1",
        "PROCID": machine,
        "LOCALID": 0,
        "NODEID": machine,
    }
    variables = {f"SLURM_{name}": str(value) for name, value in told.items()}
    return [sys.executable], variables | {"MASTER_PORT": str(port)}


@pytest.mark.slow
@pytest.mark.parametrize("start", [by_torchrun, by_srun])
def test_two_machines_make_one_run_in_one_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*TINY, *E3, *SHARDED, "sweep.name=first", f"paths.sweeps={tmp_path}"]
    port, inherited = free_port(), {k: v for k, v in os.environ.items() if k[:6] != "PYTEST"}
    machines = []
    for machine in range(MACHINES):
        command, variables = start(machine, port)
        machines.append(
            subprocess.Popen(
                [*command, "-m", "e3rl.train", "-m", *settings],
                cwd=tmp_path,
                env=inherited | variables | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
    try:
        shown = [machine.communicate(timeout=300)[0] for machine in machines]
    finally:
        for machine in machines:  # torchrun's own processes would outlive it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
    assert [machine.returncode for machine in machines] == [0, 0], "\n".join(shown)
    assert ["run folder:" in text for text in shown] == [True, False]
    (folder,) = (tmp_path / "first").glob("*/")
    only_train(monkeypatch)
    run(tmp_path / "alone", *E3)
    compare(folder, tmp_path / "alone")


def compare(folder: Path, alone: Path) -> None:
    """Both hold the same rollouts, and policies that differ by rounding."""
    rows, expected = ledger_rows(folder), ledger_rows(alone)
    for row, other in zip(rows["prompts"], expected["prompts"], strict=True):
        assert sorted(row["prompt_id"]) == sorted(other["prompt_id"])
    for row, other in zip(rows["validation"], expected["validation"], strict=True):
        assert {name: row[name] for name in FIGURES} == {name: other[name] for name in FIGURES}
    states = [final_state(path)["state_dict"] for path in (folder, alone)]
    assert gap(*states) < 1e-5
