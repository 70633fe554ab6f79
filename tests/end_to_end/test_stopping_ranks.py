"""Ranks that a signal ends: started by us and by torchrun, with the signal at the parent alone, or
at one rank at a chosen moment; and a rank that dies, or fails, alone.

Ranks as srun starts them, every signal, every rank and `kill -9`: experiments/faults.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tiny_runs import E3, TINY, assert_same, final_state, ledger_rows, sound

pytestmark = pytest.mark.slow
LAUNCHERS = {
    "us": ("-m", "e3rl", "train", "trainer.devices=2"),
    "us, four": ("-m", "e3rl", "train", "trainer.devices=4"),
    "torchrun": (
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "e3rl.train", "trainer.devices=2"),
    ),
}
DISTURBED = {
    "us": (str(Path(__file__).with_name("train_until.py")), "trainer.devices=2"),
    "torchrun": (
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *(str(Path(__file__).with_name("train_until.py")), "trainer.devices=2"),
    ),
}
# Where one of two ranks is disturbed: what is called then, and at which call. The first three calls
# of `generate` validate before training.
MOMENTS = {
    "rollout": "e3rl.engines.transformers:TransformersEngine.generate 5",
    "reward": "e3rl.callbacks.reward:PooledScorer.collect 6",
    "update": "e3rl.training.module:GRPOModule._backward 3",
    "checkpoint": "e3rl.callbacks.checkpoint:RunCheckpoint._save 3",
    "validation": "e3rl.callbacks.pass_at_k:PassAtK.on_validation_batch_start 8",
}
SETTINGS = (*TINY, *E3, "trainer=ddp", "checkpoint_every=1", "epochs=6")
STEPS = 18
BOUND_S = 30


def start(
    launcher: str, folder: Path, *settings: str, disturbed: str = ""
) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "PYTEST"))}
    source = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "AT": disturbed}
    command = (DISTURBED if disturbed else LAUNCHERS)[launcher]
    return subprocess.Popen(
        [sys.executable, *command, *SETTINGS, f"hydra.run.dir={folder}", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=kept | source,
    )


def processes(session: int) -> list[str]:
    """What of a session still runs."""
    listed = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return [row[2] for row in rows if int(row[0]) == session and not row[1].startswith("Z")]


def wait_for_steps(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    ledger = folder / "prompts.jsonl"
    while not ledger.is_file() or ledger.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def finish(process: subprocess.Popen[str]) -> str:
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 0, shown
    return shown


@pytest.fixture(scope="module")
def make_whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run that nobody stops, on two ranks or on four; made once."""

    @cache
    def make(launcher: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        finish(start(launcher, folder))
        return folder

    return lambda launcher: make("us" if launcher == "torchrun" else launcher)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_signal_to_the_parent_ends_all_ranks_with_a_checkpoint(
    launcher: str, tmp_path: Path, make_whole: Callable[[str], Path]
) -> None:
    whole, folder = make_whole(launcher), tmp_path / "run"
    process = start(launcher, folder)
    wait_for_steps(process, folder, 3)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    shown, _ = process.communicate(timeout=120)
    assert time.monotonic() - began < BOUND_S
    assert process.returncode not in (0, None)
    if launcher != "torchrun":
        assert process.returncode == 128 + signal.SIGTERM
    steps = int(sound(folder)[-1].stem.split("-")[1])
    assert 3 <= steps < STEPS
    assert f"stopped; go on after rollout step {steps} by the same command" in shown
    assert processes(process.pid) == []
    finish(start(launcher, folder, f"ckpt_path={folder}"))
    assert ledger_rows(folder) == ledger_rows(whole)
    assert_same(final_state(folder, STEPS), final_state(whole, STEPS))


def test_a_rank_that_dies_alone_is_named_and_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("us, four", folder)
    wait_for_steps(process, folder, 3)
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    ranks = sorted(
        int(row[0]) for row in rows if int(row[1]) == process.pid and "trainer.devices=4" in row[2]
    )
    assert len(ranks) == 3
    began = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    shown, _ = process.communicate(timeout=120)
    assert time.monotonic() - began < 2 * BOUND_S
    assert process.returncode not in (0, None)
    assert f"(process {ranks[1]}) was ended by SIGKILL, and the run cannot go on" in shown
    assert processes(process.pid) == []
    assert len(sound(folder)) >= 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_to_one_rank_at_any_moment_ends_both_with_a_checkpoint(
    moment: str, rank: int, tmp_path: Path, make_whole: Callable[[str], Path]
) -> None:
    whole, folder = make_whole("us"), tmp_path / "run"
    process = start("us", folder, disturbed=f"{rank} {MOMENTS[moment]} SIGUSR1")
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGUSR1, shown
    steps = int(sound(folder)[-1].stem.split("-")[1])
    assert 1 <= steps < STEPS
    assert f"stopped; go on after rollout step {steps} by the same command" in shown
    assert processes(process.pid) == []
    finish(start("us", folder, f"ckpt_path={folder}"))
    assert ledger_rows(folder) == ledger_rows(whole)
    assert_same(final_state(folder, STEPS), final_state(whole, STEPS))


def test_a_signal_to_one_rank_before_the_first_step_ends_both(tmp_path: Path) -> None:
    process = start(
        "us",
        tmp_path / "run",
        disturbed="1 e3rl.engines.transformers:TransformersEngine.sync 1 SIGUSR1",
    )
    began = time.monotonic()
    shown, _ = process.communicate(timeout=120)
    assert process.returncode not in (0, None), shown
    assert time.monotonic() - began < 3 * BOUND_S  # its start among it
    assert processes(process.pid) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("launcher", DISTURBED)
def test_a_rank_that_fails_alone_shows_its_error_and_ends_the_run(
    launcher: str, rank: int, tmp_path: Path
) -> None:
    process = start(
        launcher,
        tmp_path / "run",
        disturbed=f"{rank} e3rl.training.module:GRPOModule._backward 3 raise",
    )
    wait_for_steps(process, tmp_path / "run", 2)
    began = time.monotonic()
    shown, _ = process.communicate(timeout=120)
    assert time.monotonic() - began < 2 * BOUND_S
    assert process.returncode not in (0, None)
    assert f"RuntimeError: mine, on rank {rank}" in shown
    assert processes(process.pid) == []
    assert len(sound(tmp_path / "run")) >= 1


def test_the_parent_of_ranks_that_is_killed_takes_them_with_it(tmp_path: Path) -> None:
    process = start("us", tmp_path / "run")
    wait_for_steps(process, tmp_path / "run", 3)
    process.kill()
    process.communicate(timeout=120)
    end = time.monotonic() + BOUND_S
    while processes(process.pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes(process.pid) == []
    assert len(sound(tmp_path / "run")) >= 1
