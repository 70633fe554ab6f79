"""Whole runs as commands: what they leave, what they show, and how they stop."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tiny_runs import (
    E3,
    ENGINE,
    TINY,
    assert_same,
    configuration,
    final_state,
    ledger_rows,
    needs_engine,
    only_train,
    sound,
)
from tiny_runs import run as train_here

from e3rl.checkpoints.files import checkpoints, find_damage
from e3rl.ledger.ledger import read_rows
from e3rl.report import main as report
from e3rl.runs import run as running

QUICK = ("max_new_tokens=8", "data.validation.size=2")


def command(tmp_path: Path, *overrides: str) -> list[str]:
    folders = [f"paths.runs={tmp_path / 'runs'}", f"paths.sweeps={tmp_path / 'sweeps'}"]
    flags = [override for override in overrides if override.startswith("-")]
    settings = [override for override in overrides if not override.startswith("-")]
    if not any(setting.startswith("engine=") for setting in settings):
        settings.append(f"engine={ENGINE}")
    return [sys.executable, "-m", "e3rl.train", *flags, *folders, *settings]


def finished(tmp_path: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(tmp_path, *overrides), capture_output=True, text=True, check=False, timeout=300
    )


def started(tmp_path: Path, *overrides: str) -> subprocess.Popen[str]:
    """A run in a process group of its own, as a terminal starts it: what a shell has in the
    background ignores SIGINT, and so does what that starts."""
    terminal = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); "
    terminal += "os.execv(sys.argv[1], sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", terminal, *command(tmp_path, *overrides)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_step(process: subprocess.Popen[str], tmp_path: Path, step: int) -> Path:
    """The run folder, once that many rollout steps have their row."""
    for _ in range(12_000):
        for ledger in tmp_path.glob("runs/*/*/prompts.jsonl"):
            if ledger.read_bytes().count(b"\n") >= step:
                return ledger.parent
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    raise AssertionError(f"no step {step} within two minutes")


def alive(group: int) -> list[str]:
    """Processes of a group that still run."""
    listing = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listing.stdout.splitlines()]
    return [row[2] for row in rows if int(row[0]) == group and not row[1].startswith("Z")]


def wait_until_none_is_alive(group: int) -> None:
    for _ in range(300):
        if not alive(group):
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {alive(group)}")


@needs_engine
def test_a_run_leaves_a_complete_folder_and_says_nothing_but_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567", "HF_TOKEN": "hf_keepthisone"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    done = finished(tmp_path, "debug=tiny")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    (folder,) = (tmp_path / "runs" / "e3").iterdir()
    for expected in (
        r"annealing +from step 7 on, to 0\.9 of the target entropy; .* until step 8\n",
        r"a rollout step +4 prompts x 8 = 32 rollouts, 1 optimiser step\n",
        r"step  0/12   pass@1 t1 [\d.]+ %, greedy [\d.]+ %   0:\d\d\n",
        r"step 12/12   pass@1 t1 .*, live [\d.]+ %   tau \d\.\d\d   ",
        rf"run folder: {re.escape(str(folder))}\n",
    ):
        assert re.search(expected, done.stdout), expected
    assert len(done.stdout.splitlines()) < 40
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["name"], config["vocabulary_size"], config["epochs"]) == ("e3", 34, 3)
    assert (folder / ".hydra" / "overrides.yaml").is_file()
    facts = json.loads((folder / "environment.json").read_text())
    assert "debug=tiny" in facts["overrides"]
    assert facts["packages"]["torch"]
    metrics = read_rows(folder / "metrics.jsonl")
    assert [row["rollout_step"] for row in metrics if row["kind"] == "train"] == list(range(12))
    assert [r["rollout_step"] for r in metrics if r["kind"] == "validation"] == [0, 4, 8, 12]
    assert len(read_rows(folder / "prompts.jsonl")) == 12
    assert [row["name"] for row in read_rows(folder / "validation.jsonl")] == [
        *(["t1", "greedy"] * 4),
        "live",
    ]
    assert len(read_rows(folder / "completions.jsonl")) == 12 * 4
    assert len(pd.read_csv(folder / "metrics.csv")) == len(metrics)
    assert len(pd.read_parquet(folder / "metrics.parquet")) == len(metrics)
    saved = checkpoints(folder / "checkpoints")
    assert [path.stem for path in saved] == ["step-000011", "step-000012"]
    assert not any(map(find_damage, saved))
    summary = json.loads((folder / "summary.json").read_text())
    assert 0 <= summary["pass@1"] <= 1
    assert summary["costs"]["cost/rollouts"] == 12 * 32
    pictures = sorted((folder / "figures").glob("*.png"))
    assert len(pictures) >= 6
    assert all(str(path) in done.stdout for path in pictures)
    assert list(folder.glob("wandb/offline-run-*"))
    report([str(folder), "--out", str(tmp_path / "page.html"), "--k", "4"])
    (tmp_path / "terminal.txt").write_text(done.stdout)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        held = path.read_bytes()
        assert not [name for name, value in secrets.items() if value.encode() in held], path


@pytest.mark.slow
def test_a_run_killed_at_some_moment_is_resumed_as_the_last_of_its_name(tmp_path: Path) -> None:
    choice = random.Random(20_250_518)
    settings = [*TINY, *E3, "epochs=4", "checkpoint_every=2"]
    process = started(tmp_path, *settings)
    folder = wait_for_step(process, tmp_path, choice.randint(3, 8))
    time.sleep(choice.uniform(0.0, 0.2))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    wait_until_none_is_alive(process.pid)
    done = finished(tmp_path, *settings, "ckpt_path=last")
    assert done.returncode == 0, done.stderr
    assert "resumes" in done.stdout
    assert [path.name for path in (tmp_path / "runs" / "e3").iterdir()] == [folder.name]
    with pytest.MonkeyPatch.context() as patch:
        only_train(patch)
        train_here(tmp_path / "whole", *settings[len(TINY) :])
    assert ledger_rows(folder) == ledger_rows(tmp_path / "whole")
    assert_same(final_state(folder, 12), final_state(tmp_path / "whole", 12))


@pytest.mark.parametrize(
    ("sent", "code", "engine"),
    [
        (signal.SIGINT, 130, "transformers"),
        pytest.param(signal.SIGTERM, 143, ENGINE, marks=[needs_engine, pytest.mark.slow]),
    ],
)
def test_a_run_refuses_a_second_command_and_once_stopped_leaves_no_process_and_says_how_to_go_on(
    sent: signal.Signals, code: int, engine: str, tmp_path: Path
) -> None:
    given = (*QUICK, "epochs=999", "validate_every=3996", f"engine={engine}")
    process = started(tmp_path, "debug=tiny", *given)
    folder = wait_for_step(process, tmp_path, 2)
    second = finished(tmp_path, "debug=tiny", *given, f"ckpt_path={folder}")
    assert process.poll() is None
    assert second.returncode != 0
    assert "another process is writing a run into" in second.stdout + second.stderr
    os.killpg(process.pid, sent)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == code, shown
    wait_until_none_is_alive(process.pid)
    newest = checkpoints(folder / "checkpoints")[-1]
    assert find_damage(newest) == ""
    steps = int(newest.stem.split("-")[1])
    assert shown.endswith(
        f"stopped; go on after rollout step {steps} by the same command and ckpt_path={folder}\n"
    )
    assert "Traceback" not in shown
    sampled = [row["rollout_step"] for row in read_rows(folder / "prompts.jsonl")]
    assert sampled == list(range(len(sampled)))


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["trainer=ddp", "trainer=fsdp2"])
def test_two_ranks_write_one_folder_and_resume_together(trainer: str, tmp_path: Path) -> None:
    settings = [*TINY, *E3, "callbacks.checkpoint.keep=9", "checkpoint_every=1"]
    ranks = (trainer, "trainer.devices=2")
    done = finished(tmp_path, *settings, *ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder:") == 1
    (folder,) = (tmp_path / "runs" / "e3").iterdir()
    rows, state = ledger_rows(folder), final_state(folder)
    assert [row["rollout_step"] for row in rows["prompts"]] == list(range(6))
    earlier = folder / "checkpoints" / "step-000003.ckpt"
    again = finished(tmp_path, *settings, *ranks, f"ckpt_path={earlier}")
    assert again.returncode == 0, again.stderr
    assert ledger_rows(folder) == rows
    assert_same(final_state(folder), state)


@pytest.mark.slow
def test_a_run_whose_engine_hangs_ends_with_the_stacks_of_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    settings = [*TINY, *E3, "engine=transformers", "checkpoint_every=1", "stall_s=8"]
    done = finished(tmp_path, *settings, "engine._target_=hanging_engine.HangingEngine")
    assert done.returncode == 1
    assert "nothing has happened for 8 seconds (stall_s), so the run ends" in done.stdout
    assert "hanging_engine.py" in done.stderr  # where it hangs
    (folder,) = (tmp_path / "runs" / "e3").iterdir()
    assert len(sound(folder)) == 1  # of the step before it hung


def test_a_job_that_fails_does_not_stop_the_others_and_is_told_at_once(tmp_path: Path) -> None:
    settings = [*TINY, *QUICK, "epochs=1", "validate_every=3", "engine=transformers"]
    done = finished(tmp_path, "-m", "module.settings.minibatches=0,-1,1", *E3, *settings)
    assert done.returncode == 1
    finished_jobs = list(tmp_path.glob("sweeps/*/*/summary.json"))
    assert ["minibatches-1_" in path.parent.name for path in finished_jobs] == [True]
    for wrong in (0, -1):
        assert f"module: settings.minibatches={wrong}: use at least 1" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_mistake_ends_with_its_name_and_no_traceback(tmp_path: Path) -> None:
    done = finished(tmp_path, "debug=tiny", "loss.clip_low=0.1")
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == "error: the configuration has 1 mistake:"
    assert second.endswith("did you mean loss.surrogate.clip_low?")


def test_runs_in_one_process_leave_no_workers_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "finish", lambda *_: None)
    counts = []
    for name in ("first", "second", "third"):
        running.execute(configuration(tmp_path / name, *E3, "epochs=1", "validate_every=3"))
        assert multiprocessing.active_children() == []
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
    assert counts[1] == counts[2]


def test_the_main_module_is_light_for_the_worker_processes_that_import_it_again() -> None:
    heavy = "{'torch', 'lightning', 'transformers', 'pandas', 'matplotlib'}"
    for module in ("e3rl.train", "e3rl.evaluate"):
        code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_a_run_begins_without_what_its_end_alone_needs() -> None:
    """Tables and figures are made when it has ended, engines and mirrors where asked for."""
    late = "{'pandas', 'vllm', 'wandb', 'math_verify', 'e3rl.analysis'}"
    code = f"import sys, e3rl.runs.run; print(sorted({late} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
