"""The commands of the page on clusters, with small models, on processes that stand for machines.

What is run is the page's own text: sizes, data and names of machines are exchanged, nothing else.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import slurm_stand_in
from tiny_runs import E3, TINY
from vllm_servers import free_port

from e3rl.engines.vllm_build import INSTALL
from e3rl.ledger.ledger import read_rows
from pages import ROOT, blocks

pytestmark = pytest.mark.slow
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=INSTALL)
SMOKE = ROOT / "experiments" / "gpu_smoke"
PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
# What stands for what. A machine with eight GPUs is one process, one with four is two.
SIZES = {
    "experiment=paper/7b/e3": "experiment=e3",
    "experiment=paper/1_5b/grpo,paper/1_5b/e3": "experiment=grpo,e3",
    "trainer.devices=8": "trainer.devices=1",
    "trainer.devices=4": "trainer.devices=2",
    "--ntasks-per-node=8": "--ntasks-per-node=1",
    "--ntasks-per-node=4": "--ntasks-per-node=2",
    "--nproc-per-node=8": "--nproc-per-node=1",
    "engine=vllm_server_gpu": "engine=vllm_server",
    "engine=vllm_ray_gpu": "engine=vllm_ray",
    "engine.placement.servers=4": "engine.placement.servers=2",
    "data.train.path=train_data.parquet": "",
    "data.validation.path=valid_data.parquet": "",
}
SMALL = [each for each in TINY if not each.startswith("sweep.name")]
ARMS = ("rollouts_per_prompt=6",)  # between E3's fewest and most; GRPO has no such settings


def block(word: str) -> str:
    """The commands of the page that mention a word."""
    (found,) = (each.text for each in blocks(PAGE, "bash") if word in each.text)
    return found


def scaled(text: str, changes: Mapping[str, str] | None = None) -> str:
    """The page's commands with sizes exchanged."""
    for old, new in {**SIZES, **(changes or {})}.items():
        text = re.sub(rf"{re.escape(old)}(?=[ \n\\]|$)", new, text)
    return text


def small(text: str, more: Sequence[str] = ()) -> str:
    """Every run of the commands with what makes it a short one; what the command says itself goes
    before."""
    lines = text.replace("\\\n", " ").splitlines()
    return "\n".join(_small(line, more) for line in lines)


def _small(line: str, more: Sequence[str]) -> str:
    found = re.search(r"e3rl(?:\.| )train(?: -m)? ", line)
    if found is None:
        return line
    said = {word.partition("=")[0] for word in shlex.split(line[found.end() :], comments=True)}
    usual = [each for each in (*SMALL, *more) if each.partition("=")[0] not in said]
    return line[: found.end()] + shlex.join(usual) + " " + line[found.end() :]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder, and the environment in which its commands are found there."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "MASTER_"))}
    environment |= slurm_stand_in.install(tmp_path / "slurm")
    environment["OMP_NUM_THREADS"] = "1"
    environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    for name, module in (("e3rl", "e3rl"), ("torchrun", "torch.distributed.run")):
        command = tmp_path / "slurm" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        command.chmod(0o755)
    yield tmp_path, environment
    slurm_stand_in.end_all(Path(environment[slurm_stand_in.STATES]))


def run(text: str, place: tuple[Path, dict[str, str]], seconds: float = 500) -> str:
    """What commands have said; they must end well."""
    folder, environment = place
    (folder / "script").write_text(text)
    done = subprocess.run(
        ["bash", "-e", "script"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def submit(text: str, place: tuple[Path, dict[str, str]]) -> Path:
    """The folder of states of jobs, of which this script is one more."""
    folder, environment = place
    script = folder / f"job-{len(list(folder.glob('job-*')))}"
    script.write_text(text)
    subprocess.run(["sbatch", str(script)], cwd=folder, env=environment, check=True)
    return Path(environment[slurm_stand_in.STATES])


def ended(states: Path, seconds: float = 500) -> None:
    """Wait for all jobs, which must end well."""
    found = slurm_stand_in.wait_for(states, seconds)
    said = "\n".join(path.read_text()[-3000:] for path in states.glob("*.out"))
    assert set(found.values()) == {"COMPLETED"}, said


def finished(folder: Path) -> dict[str, int]:
    """Training steps of each job of a sweep, by its folder."""
    return {
        path.parent.name: sum(row["kind"] == "train" for row in read_rows(path))
        for path in folder.glob("*/metrics.jsonl")
    }


def test_several_processes_of_one_machine_train(place: tuple[Path, dict[str, str]]) -> None:
    found = [blk.text for blk in blocks(PAGE, "bash") if "not run here" not in blk.info]
    commands = [line for text in found for line in text.splitlines()]
    assert len(commands) == 3  # ddp, fsdp2, and groups of fsdp2
    for number, command in enumerate(commands):
        run(small(command, (*E3, f"name=one{number}")), place)
        (path,) = (place[0] / "runs" / f"one{number}").glob("*/metrics.jsonl")
        assert sum(row["kind"] == "train" for row in read_rows(path)) == 6


def test_slurms_launcher_runs_one_job_on_two_machines_and_four_on_one_each(
    place: tuple[Path, dict[str, str]],
) -> None:
    pytest.importorskip("submitit", reason='pip install -e ".[sweeps]"')
    text = block("hydra/launcher=slurm ")
    first, second = scaled(text).split("e3rl train")[1:]
    run(small(f"e3rl train{first}", E3), place)
    (steps,) = finished(place[0] / "sweeps" / "first").values()
    assert steps == 6
    run(small(f"e3rl train{second}", ARMS), place)
    assert set(finished(place[0] / "sweeps" / "arms").values()) == {6}
    assert len(finished(place[0] / "sweeps" / "arms")) == 4


def test_srun_and_torchrun_start_two_machines(place: tuple[Path, dict[str, str]]) -> None:
    by_srun, by_torchrun = scaled(block("torchrun")).split("# without Slurm, on each machine:\n")
    ended(submit("#!/bin/bash\n" + small(by_srun, E3), place))
    assert list(finished(place[0] / "sweeps" / "first").values()) == [6]
    (place[0] / "sweeps" / "first").rename(place[0] / "sweeps" / "by_srun")
    command = small(by_torchrun, E3).replace("HOST:29500", f"127.0.0.1:{free_port()}")
    run(f"({command}) & ({command}); wait $!", place)
    assert list(finished(place[0] / "sweeps" / "first").values()) == [6]


@needs_vllm
def test_one_machine_samples_for_another(place: tuple[Path, dict[str, str]]) -> None:
    servers, trainer = re.split(r"(?=^#SBATCH)", scaled(block("e3rl serve")), flags=re.M)[1:]
    port = free_port()
    while free_port() == port + 1:
        port = free_port()
    urls = f"'[http://127.0.0.1:{port},http://127.0.0.1:{port + 1}]'"
    trainer = re.sub(r"engine\.urls='[^']*'", f"engine.urls={urls}", trainer)
    servers = servers.replace("serve.port=8000", f"serve.port={port} policy=embedded_arithmetic")
    states = submit("#!/bin/bash\n" + servers, place)
    (serving,) = states.glob("[0-9]*")
    submit("#!/bin/bash\n" + small(trainer, E3), place)
    end = time.monotonic() + 500
    while "RUNNING" in {x.read_text() for x in states.glob("*[0-9]") if x != serving}:
        assert time.monotonic() < end
        assert serving.read_text() == "RUNNING", serving.with_suffix(".out").read_text()[-3000:]
        time.sleep(0.5)
    (rows,) = (read_rows(path) for path in (place[0] / "sweeps").glob("apart/*/metrics.jsonl"))
    rows = [row for row in rows if row["kind"] == "train"]
    assert [row["policy/age"] for row in rows] == [0, 1, 1, 1, 1, 1]
    assert {row["engine/servers"] for row in rows} == {2}


def test_the_smoke_run_asks_slurm_for_a_machine(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    (folder / "experiments").symlink_to(SMOKE.parent)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    command = ["sbatch", str(SMOKE / "slurm.sh"), "--only", "machine", "numerics"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    ended(Path(environment[slurm_stand_in.STATES]))
    (table,) = (folder / "build").glob("gpu_smoke-*/README.md")
    assert "| numerics | passed |" in table.read_text()


@pytest.fixture
def cluster(place: tuple[Path, dict[str, str]]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Where `ray` is a command that knows of no cluster but the test's own."""
    pytest.importorskip("ray", reason='pip install -e ".[ray]"')
    folder, environment = place
    port = free_port()
    command = folder / "slurm" / "ray"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ray.scripts.scripts "$@"\n')
    command.chmod(0o755)
    environment |= {"RAY_ADDRESS": f"127.0.0.1:{port}", "E3RL_TEST_RAY": str(port)}
    environment |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    yield place
    subprocess.run(["ray", "stop", "--force"], env=environment, check=False, capture_output=True)


def test_rays_launcher_runs_a_job_on_each_gpu(cluster: tuple[Path, dict[str, str]]) -> None:
    """Ray counts the GPUs that it is told of; the jobs train on CPUs."""
    port = cluster[1]["E3RL_TEST_RAY"]
    run(f"ray start --head --num-gpus=2 --num-cpus=2 --port={port}", cluster)
    run(small(scaled(block("hydra/launcher=ray_cluster")), ARMS), cluster)
    found = finished(cluster[0] / "sweeps" / "ray")
    assert len(found) == 4
    assert set(found.values()) == {6}


def test_the_smoke_run_asks_ray_for_a_gpu(cluster: tuple[Path, dict[str, str]]) -> None:
    folder, environment = cluster
    run(
        f"ray start --head --num-gpus=1 --num-cpus=1 --port={environment['E3RL_TEST_RAY']}", cluster
    )
    out = folder / "smoke"
    run(f"{sys.executable} {SMOKE / 'on_ray.py'} --only machine numerics --out {out}", cluster)
    assert "| numerics | passed |" in (out / "README.md").read_text()


@needs_vllm
def test_ray_starts_servers_on_other_machines(cluster: tuple[Path, dict[str, str]]) -> None:
    port = cluster[1]["E3RL_TEST_RAY"]
    head, machine, trainer = scaled(block("ray start --head")).split("\n", maxsplit=2)
    run(f"{head.partition('#')[0]} --num-cpus=0 --port={port}", cluster)
    run(
        f"{machine.partition('#')[0].replace('HEAD:6379', f'127.0.0.1:{port}')} --num-cpus=2",
        cluster,
    )
    run(small(trainer, (*E3, "engine.placement.cpus=1")), cluster)
    (path,) = (cluster[0] / "runs").glob("*/*/metrics.jsonl")
    rows = [row for row in read_rows(path) if row["kind"] == "train"]
    assert [row["policy/age"] for row in rows] == [0, 1, 1, 1, 1, 1]
    assert {row["engine/servers"] for row in rows} == {2}
