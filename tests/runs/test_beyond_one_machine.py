"""The README's commands for clusters: what they compose, and one folder for all processes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from compositions import composed_with_hydra
from e3rl.config.check import check
from e3rl.config.composition import (
    ConfigurationError,
    accept_new_keys,
    conf_dir,
    count_launched_processes,
    run_dir,
)
from e3rl.runs.sweep_hooks import explain_lone_processes, find_missing_plugin

pytestmark = pytest.mark.end_to_end


FILES = ("data.train.path=train_data.parquet", "data.validation.path=valid_data.parquet")
SHARDED = ("trainer=fsdp2", "trainer.devices=8", "trainer.num_nodes=2")
COMMANDS = {  # of the README's section "Beyond one machine", without e3rl.train -m
    "one job over two machines": (
        *("experiment=paper/7b/e3", *FILES, *SHARDED, "sweep.name=first"),
        *("hydra/launcher=slurm", "hydra.launcher.partition=gpu", "hydra.launcher.mem_gb=512"),
    ),
    "arms, a machine each": (
        *("experiment=paper/1_5b/grpo,paper/1_5b/e3", "seed=1,2", *FILES, "sweep.name=arms"),
        *("trainer=ddp", "trainer.devices=4", "hydra/launcher=slurm"),
    ),
    "within srun or torchrun": (*("experiment=paper/7b/e3", *FILES, *SHARDED, "sweep.name=first"),),
    "one GPU each on Ray": (
        *("experiment=grpo,e3", "seed=1,2", "sweep.name=ray", "hydra/launcher=ray_cluster"),
        *("hydra.launcher.ray.init.address=auto", "hydra.launcher.ray.remote.num_gpus=1"),
    ),
}
RESOURCES = {  # nodes, tasks and GPUs per node that Slurm is asked for
    "one job over two machines": (2, 8, 8),
    "arms, a machine each": (1, 4, 4),
}


def composed(overrides: Sequence[str]) -> DictConfig:
    """As Hydra composes a sweep before its jobs: without what is swept over."""
    lacking = [o for o in overrides if not (conf_dir() / f"{o.replace('=', '/')}.yaml").is_file()]
    if any(o in ("trainer=fsdp2", "trainer=ddp") for o in lacking):
        pytest.skip("this checkout has no trainer=fsdp2 and trainer=ddp")
    single = [o for o in overrides if "," not in o]
    return composed_with_hydra(*accept_new_keys(single))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_for_clusters_compose_and_pass_the_check(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "within srun or torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        monkeypatch.setenv("WORLD_SIZE", "16")
    cfg = composed(COMMANDS[command])
    if "Ray" not in command:
        assert explain_lone_processes(cfg) is None
    first = [override.split(",")[0] for override in COMMANDS[command]]
    job = composed([*first, "logger=ledger_only", "paths.run_dir=x"])
    check(OmegaConf.masked_copy(job, [key for key in job if key != "hydra"]))
    target = cfg.hydra.launcher._target_
    if find_missing_plugin(target) is None:
        made = Plugins.instance()._instantiate(cfg.hydra.launcher)
        assert type(made).__name__ == target.rsplit(".", 1)[1]


@pytest.mark.parametrize("command", RESOURCES)
def test_slurm_is_asked_for_what_the_trainer_is_told(command: str) -> None:
    cfg = composed(COMMANDS[command])
    launcher = cfg.hydra.launcher
    asked = (launcher.nodes, launcher.tasks_per_node, launcher.gpus_per_node)
    assert asked == RESOURCES[command]
    assert (cfg.trainer.get("num_nodes", 1), cfg.trainer.devices) == RESOURCES[command][:2]


def test_slurm_needs_a_number_of_devices() -> None:
    assert "trainer.devices=auto tells Slurm" in str(
        explain_lone_processes(composed(("hydra/launcher=slurm", "trainer.devices=auto")))
    )


SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16", "SLURM_JOB_NAME": "train"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "16"}


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        (SRUN, 16),
        (TORCHRUN, 16),
        ({"SLURM_NTASKS": "16", "SLURM_JOB_NAME": "train"}, 1),  # the batch script itself
        (SRUN | {"SLURM_JOB_NAME": "interactive"}, 1),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 1),  # started by Lightning
    ],
)
def test_processes_that_were_started_together_are_counted(
    variables: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {**SRUN, **TORCHRUN, "SLURM_NTASKS": ""}:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert count_launched_processes() == count


def test_processes_that_were_started_together_make_no_folders_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"16 processes .* sweep\.name=NAME"):
        run_dir(str(tmp_path), "e3", None)
    known = tmp_path / "e3" / "first"
    known.mkdir(parents=True)
    assert run_dir(str(tmp_path), "e3", str(known)) == str(known)
