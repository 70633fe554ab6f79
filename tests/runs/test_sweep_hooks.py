"""Before a sweep: missing packages, jobs and hours, launchers and sweepers that compose."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from compositions import composed_with_hydra
from e3rl.config.check import check
from e3rl.config.composition import conf_dir, job_folder_name
from e3rl.runs import sweep_hooks as sweep_start
from e3rl.runs.sweep_hooks import (
    SweepStart,
    expand_grid,
    explain_borrowed_name,
    explain_lone_processes,
    explain_nameless_experiments,
    explain_shared_name,
    find_missing_plugin,
    forecast_sweep,
    seconds_of_finished,
)

pytestmark = pytest.mark.end_to_end


CHOICES = [
    *(("launcher", path.stem) for path in sorted((conf_dir() / "hydra" / "launcher").glob("*"))),
    *(("sweeper", path.stem) for path in sorted((conf_dir() / "hydra" / "sweeper").glob("*"))),
]


def composed(*overrides: str, swept: tuple[str, ...] = ()) -> DictConfig:
    """A sweep's configuration; `swept` holds overrides that only `-m` allows."""
    cfg = composed_with_hydra(*overrides, "sweep.name=mine")
    OmegaConf.set_readonly(cfg, False)
    cfg.hydra.overrides.task = [*overrides, *swept]
    return cfg


def told(cfg: DictConfig, tmp_path: Path) -> str:
    cfg.hydra.sweep.dir = str(tmp_path)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return forecast_sweep(cfg)


def jobs(*overrides: str, swept: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    cfg = composed(*overrides, swept=swept)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return expand_grid(cfg)


def finish(folder: Path, overrides: tuple[str, ...], seconds: float) -> None:
    run = folder / job_folder_name(overrides)
    run.mkdir()
    (run / "summary.json").write_text(json.dumps({"costs": {"cost/seconds": seconds}}))


def test_the_seconds_of_a_run_are_all_of_its_seconds(tmp_path: Path) -> None:
    for name, given in (("new", {"seconds": 300.5}), ("old", {})):
        (tmp_path / name).mkdir()
        summary = given | {"costs": {"cost/seconds": 200.0}}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    assert seconds_of_finished(tmp_path) == {"new": 300.5, "old": 200.0}


@pytest.mark.parametrize(("part", "name"), CHOICES)
def test_every_launcher_and_sweeper_composes_without_its_package(part: str, name: str) -> None:
    cfg = composed(f"hydra/{part}={name}")
    node = OmegaConf.to_container(cfg.hydra[part], resolve=False)
    assert isinstance(node, dict)
    assert node["_target_"].startswith("hydra_plugins.hydra_")
    assert node["_target_"].split(".")[1] in sweep_start.INSTALL
    assert len(node) > 1


@pytest.mark.parametrize(("part", "name"), CHOICES)
def test_every_launcher_and_sweeper_is_made_by_its_package(part: str, name: str) -> None:
    cfg = composed(f"hydra/{part}={name}")
    target = cfg.hydra[part]._target_
    if lacking := find_missing_plugin(target):
        pytest.skip(f"{target.split('.')[1]} is not installed: pip install '{lacking}'")
    made = Plugins.instance()._instantiate(cfg.hydra[part])
    assert f"{type(made).__module__}.{type(made).__name__}" == target


def test_a_missing_package_ends_the_sweep_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_start, "_found", lambda module: False)
    with pytest.raises(SystemExit, match=r"hydra/launcher=local .* pip install 'e3rl\[sweeps\]'"):
        SweepStart().on_multirun_start(composed("hydra/launcher=local"))
    with pytest.raises(SystemExit, match=r"hydra/sweeper=tpe .* pip install 'e3rl\[sweeps\]'"):
        SweepStart().on_multirun_start(composed("hydra/sweeper=tpe"))
    with pytest.raises(SystemExit, match=r"ray_cluster .* pip install 'e3rl\[ray\]'"):
        SweepStart().on_multirun_start(composed("hydra/launcher=ray_cluster"))


@pytest.mark.parametrize("launcher", ["basic", "local", "slurm_here", "ray_cluster"])
def test_several_devices_need_a_launcher_that_starts_their_processes(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_start, "_found", lambda module: True)
    cfg = composed(f"hydra/launcher={launcher}", "trainer.devices=2")
    with pytest.raises(SystemExit, match=r"trainer\.devices=2 and .*num_nodes=1 in a sweep need"):
        SweepStart().on_multirun_start(cfg)
    several = composed(f"hydra/launcher={launcher}", "+trainer.num_nodes=2")
    assert "num_nodes=2" in str(explain_lone_processes(several))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert explain_lone_processes(cfg) is None
    assert explain_lone_processes(composed(f"hydra/launcher={launcher}")) is None
    assert explain_lone_processes(composed("hydra/launcher=slurm", "trainer.devices=2")) is None


def test_all_gpus_of_a_machine_are_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = composed("trainer=ddp")
    assert cfg.trainer.devices == "auto"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert "trainer.devices=auto and trainer.num_nodes=1" in str(explain_lone_processes(cfg))
    assert explain_lone_processes(composed("trainer=ddp", "trainer.accelerator=cpu")) is None
    assert explain_lone_processes(composed("trainer.devices=[2]")) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert explain_lone_processes(cfg) is None


def test_jobs_on_no_device_end_the_sweep() -> None:
    with pytest.raises(SystemExit, match=r"^trainer\.devices=0 names no device: use"):
        SweepStart().on_multirun_start(composed("trainer.devices=0"))


def test_hydras_own_parts_need_no_package_and_others_are_named_by_their_module() -> None:
    cfg = composed()
    assert find_missing_plugin(cfg.hydra.launcher._target_) is None
    assert find_missing_plugin(cfg.hydra.sweeper._target_) is None
    assert find_missing_plugin("hydra_plugins.hydra_none_launcher.x.Y") == "hydra-none-launcher"


def test_a_plugin_that_is_there_is_found(tmp_path: Path) -> None:
    # In a process of its own: the search for plugins remembers what it found.
    (tmp_path / "hydra_plugins" / "hydra_none_launcher").mkdir(parents=True)
    module = "from e3rl.runs.sweep_hooks import find_missing_plugin as find"
    code = f"{module}; print(find('hydra_plugins.{{}}.x.Y'))"
    for name, expected in (("hydra_none_launcher", "None"), ("hydra_other", "hydra-other")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
        )
        assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    ("sweep", "count"),
    [
        *(("arms", 8), ("entropy_control", 20), ("budgets", 20), ("core", 40), ("grid", 96)),
        *(("length", 6), ("gain_modes", 9), ("grid_best", 12)),
    ],
)
def test_the_composed_sweeps_have_their_jobs(sweep: str, count: int) -> None:
    found = jobs(f"sweep={sweep}")
    assert len(set(found)) == len(found) == count


def test_the_command_line_replaces_the_choices_of_a_composed_sweep() -> None:
    found = jobs("sweep=arms", swept=("++seed=7,8,9",))
    assert len(found) == 4 * 3
    assert {o for job in found for o in job if "seed" in o} == {"++seed=7", "++seed=8", "++seed=9"}
    assert len(jobs("sweep=arms", "experiment=ts")) == 2


def test_jobs_are_counted_as_hydra_makes_them() -> None:
    swept = ("experiment=glob(grpo*)", "++seed=range(1,4)", "++x=choice(1,2)")
    found = jobs(swept=swept)
    assert len(found) == 2 * 3 * 2
    assert found[0] == ("experiment=grpo", "++seed=1", "++x=1")


def test_planned_hours_are_those_of_the_jobs_that_are_not_finished(tmp_path: Path) -> None:
    cfg = composed("sweep=arms")
    assert told(cfg, tmp_path).startswith("sweep mine: 8 jobs, 0 finished")
    assert "give sweep.seconds_per_job" in told(cfg, tmp_path)
    first, second, *_ = jobs("sweep=arms")
    finish(tmp_path, first, 3000.0)
    finish(tmp_path, second, 4200.0)
    assert told(cfg, tmp_path).endswith("planned: 6 x 3600 s = 6.0 hours in a row")
    assert "8 jobs, 2 finished" in told(cfg, tmp_path)
    cfg.sweep.seconds_per_job = 600
    assert told(cfg, tmp_path).endswith("planned: 6 x 600 s = 1.0 hours in a row")
    # Jobs that another start of the sweep finished do not make this one shorter.
    finish(tmp_path, ("experiment=other",), 600.0)
    assert "8 jobs, 2 finished" in told(cfg, tmp_path)


def test_a_search_has_as_many_jobs_as_trials(tmp_path: Path) -> None:
    cfg = composed("sweep=tuning", "hydra.sweeper.n_trials=5", "sweep.seconds_per_job=720.0")
    finish(tmp_path, ("++module.optimizer.lr=0.1",), 9.0)
    assert told(cfg, tmp_path).endswith("planned: 4 x 720 s = 0.8 hours in a row")


def test_a_foreign_start_method_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[Any, bool]] = []
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "loky")
    monkeypatch.setattr(
        multiprocessing, "set_start_method", lambda method, force: chosen.append((method, force))
    )
    SweepStart().on_job_start(composed())
    assert chosen == [(None, True)]
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "spawn")
    SweepStart().on_job_start(composed())
    assert len(chosen) == 1


@pytest.mark.end_to_end
@pytest.mark.parametrize("sweep", ["core", "grid", "grid_best", "length", "gain_modes"])
def test_the_cells_of_a_composed_sweep_are_whole_and_arms_of_their_own(sweep: str) -> None:
    names = set()
    cells = [job for job in jobs(f"sweep={sweep}") if "++seed=1" in job][
        :: 5 if sweep == "grid" else 1
    ]
    for cell in cells:
        cfg = composed(*cell, "paths.run_dir=x", "hydra.runtime.output_dir=x")
        HydraConfig.instance().set_config(cfg)
        names.add(cfg.name)
        check(cfg)
    assert len(names) == len(cells)


def shared_name(*overrides: str, swept: tuple[str, ...] = ()) -> str | None:
    cfg = composed(*overrides, swept=swept)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return explain_shared_name(cfg)


def test_jobs_that_differ_in_a_rule_under_one_name_are_told_with_a_name_that_tells_them_apart(
    tmp_path: Path,
) -> None:
    swept = ("budget=uniform,e3_rank", "rollouts_per_prompt=8,16", "seed=1,2")
    told_name = "${hydra:runtime.choices.experiment}-${hydra:runtime.choices.budget}"
    told_name += "-${rollouts_per_prompt}"
    assert shared_name("experiment=grpo", swept=swept) == (
        "caution: jobs differ in budget, rollouts_per_prompt and have one name, by which reports "
        f"take them for seeds of one arm: give 'name={told_name}', or an experiment file to each"
    )
    named = composed("experiment=grpo", f"name={told_name}", swept=swept)
    named.hydra.sweep.dir = str(tmp_path)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        assert explain_shared_name(named) is None
        assert forecast_sweep(named).startswith("sweep mine: 8 jobs, 0 finished")


@pytest.mark.parametrize(
    "swept",
    [("experiment=grpo,e3", "seed=1,2"), ("seed=1,2",), ("budget=uniform,hora", "name=a,b")],
)
def test_jobs_that_have_names_of_their_own_or_differ_by_seed_alone_are_not_warned_of(
    swept: tuple[str, ...],
) -> None:
    assert shared_name("experiment=grpo", swept=swept) is None


def test_experiments_of_one_name_are_told() -> None:
    cfg = composed("experiment=grpo", swept=("experiment=hora,knapsack,ts", "seed=1,2"))
    names = {"hora": "e3", "knapsack": "e3", "ts": "ts"}
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        assert explain_nameless_experiments(cfg) is None
        found = explain_nameless_experiments(cfg, names.__getitem__)
    assert found is not None
    assert "for seeds of one arm: hora, knapsack (e3). Give each file" in found


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "sweep").glob("*")))
def test_arms_of_every_sweep_of_conf_have_names(name: str) -> None:
    assert shared_name(f"sweep={name}") is None


def borrowed_name(*overrides: str) -> str | None:
    cfg = composed(*overrides)
    cfg.hydra.job.config_name = "train"
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return explain_borrowed_name(cfg)


@pytest.mark.parametrize(
    ("overrides", "other"),
    [
        (("experiment=grpo", "budget=knapsack"), "budget"),
        (("experiment=grpo", "loss/exploration=entropy_bonus"), "loss"),
        (
            ("experiment=grpo", "budget=knapsack", "temperature.temperature=1.3"),
            "budget and temperature",
        ),
    ],
)
def test_a_run_with_other_rules_than_its_experiment_and_that_name_is_told(
    overrides: tuple[str, ...], other: str
) -> None:
    assert borrowed_name(*overrides) == (
        "caution: this run is called grpo, as experiment=grpo is, but has another "
        f"{other}: reports take it for a seed of that arm. Give name=..."
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment=grpo", "seed=3", "engine=transformers", "rollouts_per_prompt=16"),
        ("experiment=grpo", "budget=knapsack", "name=knapsack"),
        ("experiment=grpo", "budget=uniform"),
        ("experiment=budget", "budget=e3_rank"),
    ],
)
def test_a_run_as_its_experiment_or_with_a_name_of_its_own_is_not_warned_of(
    overrides: tuple[str, ...],
) -> None:
    assert borrowed_name(*overrides) is None
