"""Slurm's commands for a test: machines are processes here, jobs run at once, and nobody waits.

`install` puts `sbatch`, `srun`, `sacct` into a folder, which are this file by other names.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

QUEUE_S = 2.0  # before a job starts: submitit makes folders once it knows the job's number
STATES = "E3RL_TEST_SLURM"  # a folder with a file for each job: its state


def install(folder: Path) -> dict[str, str]:
    """What an environment needs so that the commands are found; `folder` is made."""
    folder.mkdir(parents=True)
    for name in ("sbatch", "srun", "sacct"):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        command.chmod(0o755)
    states = folder / "states"
    states.mkdir()
    return {"PATH": f"{folder}:{os.environ['PATH']}", STATES: str(states)}


def directives(script: str) -> dict[str, str]:
    """What the `#SBATCH` lines of a script say, by name."""
    found: dict[str, str] = {}
    for line in re.findall(r"^#SBATCH (.*?)(?: +# .*)?$", script, flags=re.M):
        for flag in line.split():
            name, _, value = flag.lstrip("-").partition("=")
            found[name] = value
    return found


def shape(told: Mapping[str, str]) -> dict[str, str]:
    """Slurm's variables of a job with such directives."""
    nodes, tasks = int(told.get("nodes", "1")), int(told.get("ntasks-per-node", "1"))
    return {
        "SLURM_JOB_NAME": told.get("job-name", "job"),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(nodes * tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NODELIST": "localhost",
        "SLURM_JOB_NODELIST": "localhost",
    }


def sbatch(*arguments: str) -> int:
    """Run a script, or each job of its array, beside this process; says its number."""
    folder = Path(os.environ[STATES])
    place = next(place for place, word in enumerate(arguments) if not word.startswith("-"))
    command = ["bash", *arguments[place:]]
    script = Path(arguments[place]).read_text()
    told, number = directives(script), str(os.getpid())
    first, last = map(int, told.get("array", "0-0").partition("%")[0].split("-"))
    for index in range(first, last + 1):
        own = {"SLURM_JOB_ID": str(int(number) + index), "SLURM_SUBMIT_DIR": os.getcwd()}
        name = number
        if "array" in told:
            own |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(index)}
            name = f"{number}_{index}"
        (folder / name).write_text("RUNNING")
        if os.fork() == 0:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):  # whoever reads what is said must not wait for the job
                os.dup2(nowhere, stream)
            time.sleep(QUEUE_S)
            state = folder / name
            output = state.with_suffix(".out").open("w")
            done = subprocess.run(
                command,
                env={**os.environ, **shape(told), **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            state.write_text("COMPLETED" if done.returncode == 0 else "FAILED")
            os._exit(0)
    print(f"Submitted batch job {number}")
    return 0


def srun(*arguments: str) -> int:
    """Start a command for each task of the job; the largest of their exit codes."""
    words, output = list(arguments), None
    while words[0].startswith("-"):
        flag = words.pop(0)
        if flag in ("--output", "--error"):
            output = words.pop(0) if flag == "--output" else (words.pop(0) and output)
    per_node = int(os.environ["SLURM_NTASKS_PER_NODE"])
    tasks = []
    for task in range(int(os.environ["SLURM_NTASKS"])):
        own = {
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": os.environ["SLURM_NTASKS"],
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % per_node),
            "SLURM_NODEID": str(task // per_node),
        }
        place = None
        if output is not None:
            place = os.open(filled(output, task), os.O_WRONLY | os.O_CREAT)
        tasks.append(subprocess.Popen(words, env={**os.environ, **own}, stdout=place))
    codes = [task.wait() for task in tasks]
    return max(abs(code) for code in codes)


def filled(pattern: str, task: int) -> str:
    """The name of an output file."""
    told = os.environ
    values = {
        "%j": told["SLURM_JOB_ID"],
        "%A": told.get("SLURM_ARRAY_JOB_ID", ""),
        "%a": told.get("SLURM_ARRAY_TASK_ID", ""),
        "%t": str(task),
    }
    for mark, value in values.items():
        pattern = pattern.replace(mark, value)
    return pattern


def sacct(*arguments: str) -> int:
    """The states of all jobs, in the form that was asked for."""
    print("JobID|State|NodeList")
    for state in sorted(Path(os.environ[STATES]).iterdir()):
        if not state.suffix:
            print(f"{state.name}|{state.read_text()}|localhost")
    return 0


def wait_for(states: Path, seconds: float) -> dict[str, str]:
    """The states of jobs once all have ended, or when the time is up."""
    end = time.monotonic() + seconds
    while True:
        found = {each.name: each.read_text() for each in states.iterdir() if not each.suffix}
        if "RUNNING" not in found.values() or time.monotonic() > end:
            return found
        time.sleep(0.2)


def end_all(states: Path) -> None:
    """Kill whatever the commands have started, wherever it is by now."""
    own = f"{STATES}={states}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if own in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


if __name__ == "__main__":
    called = {"sbatch": sbatch, "srun": srun, "sacct": sacct}[sys.argv[1]]
    raise SystemExit(called(*sys.argv[2:]))
