"""Around runs and sweeps: what a sweep lacks and how long it will take, and which runs one would
take for another arm's, told before; what failed, at once."""

import importlib.util
import itertools
import json
import logging
import math
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from e3rl.config.composition import (
    ConfigurationError,
    count_launched_processes,
    job_folder_name,
)
from e3rl.ledger.files import SECONDS

log = logging.getLogger(__name__)

PLUGINS = "hydra_plugins"
INSTALL = {  # what brings a plugin's module
    "hydra_joblib_launcher": "e3rl[sweeps]",
    "hydra_submitit_launcher": "e3rl[sweeps]",
    "hydra_optuna_sweeper": "e3rl[sweeps]",
    "hydra_ray_launcher": "e3rl[ray]",
}
STARTS_TASKS = {"hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"}
OF_NO_ARM = ("seed", "experiment")  # a seed makes no other arm, an experiment has its own name
RULES = ("budget", "temperature", "advantage", "loss", "shaping")  # what arms differ in
GRID = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class SweepStart(Callback):
    """Hydra callback: ends a sweep whose plugin is missing or that cannot run, else prints its
    planned hours, and puts in order what a launcher's processes lack; warns of a single run that
    has another arm's name."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        first = os.environ.get("LOCAL_RANK", "0") == "0"  # of the processes of a run
        if first and (caution := explain_borrowed_name(config)):
            print(caution)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        for part in ("launcher", "sweeper"):
            target = str(config.hydra[part]._target_)
            if lacking := find_missing_plugin(target):
                # Hydra turns exceptions of callbacks into warnings, but not this one.
                raise SystemExit(
                    f"hydra/{part}={config.hydra.runtime.choices[f'hydra/{part}']} needs a package "
                    f"that is not installed: pip install '{lacking}'"
                )
        if reason := explain_lone_processes(config):
            raise SystemExit(reason)
        print(forecast_sweep(config))
        if caution := explain_shared_name(config):
            print(caution)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Joblib's processes have a start method of its own, which those that they start lack."""
        known = (None, *multiprocessing.get_all_start_methods())
        if multiprocessing.get_start_method(allow_none=True) not in known:
            multiprocessing.set_start_method(None, force=True)


class FailedJobs(Callback):
    """Hydra callback: logs the error of every job of a sweep, to the console and the job's log.

    Hydra itself shows only the first error, after the last job.
    """

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status is not JobStatus.FAILED or config.hydra.mode is not RunMode.MULTIRUN:
            return
        error = job_return._return_value  # the public name raises it
        trace = None if isinstance(error, CompactHydraException) else error
        log.error("%s: %s", " ".join(job_return.overrides or ()), error, exc_info=trace)


def explain_lone_processes(config: DictConfig) -> str | None:
    """Why jobs over several devices cannot run with the launcher; None where they can.

    Lightning starts the other processes of a run by the run's command, which here is the sweep's.
    """
    devices, nodes = config.trainer.devices, config.trainer.get("num_nodes", 1)
    if config.hydra.launcher._target_ in STARTS_TASKS:
        if str(devices).isdigit():
            return None
        return f"trainer.devices={devices} tells Slurm no number of tasks per node: give one"
    if count_launched_processes() > 1 or (devices in (1, "1") and nodes == 1):
        return None
    from e3rl.planning.processes import count_processes

    try:
        if count_processes(config) == 1:
            return None
    except ConfigurationError as error:  # which Hydra would turn into a warning
        return str(error)
    return (
        f"trainer.devices={devices} and trainer.num_nodes={nodes} in a sweep need something that "
        "starts the processes of a job: hydra/launcher=slurm, srun or torchrun; or make single runs"
    )


def find_missing_plugin(target: str) -> str | None:
    """What to install for a launcher or sweeper of that name; None where nothing is missing."""
    package, *names = target.split(".")
    if package != PLUGINS or _found(f"{package}.{names[0]}"):
        return None
    return INSTALL.get(names[0], names[0].replace("_", "-"))


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # no plugin is installed at all
        return False


def forecast_sweep(config: DictConfig) -> str:
    """Jobs of a sweep, how many are finished, and the hours of the others one after another.

    The seconds of a job are `sweep.seconds_per_job`, or the mean of all jobs finished before.
    """
    folder = Path(config.hydra.sweep.dir)
    took = seconds_of_finished(folder)
    if config.hydra.sweeper._target_ == GRID:
        names = {job_folder_name(overrides) for overrides in expand_grid(config)}
        jobs, finished = len(names), len(names & took.keys())
    else:  # a search, whose jobs are not known beforehand
        jobs, finished = int(config.hydra.sweeper.n_trials), len(took)
    each = config.sweep.get("seconds_per_job")
    if each is None and took:
        each = math.fsum(took.values()) / len(took)
    line = f"sweep {config.sweep.name}: {jobs} jobs, {finished} finished, in {folder}"
    if each is None:
        return f"{line}; planned hours: give sweep.seconds_per_job to know them"
    left = max(jobs - finished, 0)
    return f"{line}; planned: {left} x {each:.0f} s = {left * each / 3600:.1f} hours in a row"


def expand_grid(config: DictConfig) -> list[tuple[str, ...]]:
    """Overrides of each job: the product of the choices in `hydra.sweeper.params` and, instead of
    those of the same keys, on the command line."""
    return list(itertools.product(*read_grid(config).values()))


def read_grid(config: DictConfig) -> dict[str, list[str]]:
    """Overrides of the jobs, a list for each key.

    Values are those that were written: interpolations in them are of a job, not of the sweep.
    """
    sweeper, given = (
        OmegaConf.to_container(node, resolve=False)
        for node in (config.hydra.sweeper, config.hydra.overrides.task)
    )
    assert isinstance(sweeper, dict)
    assert isinstance(given, list)
    params = [f"{key}={value}" for key, value in (sweeper["params"] or {}).items()]
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    overrides = parser.parse_overrides([*params, *map(str, given)])
    return {override.get_key_element(): _each(override) for override in overrides}


def explain_shared_name(config: DictConfig) -> str | None:
    """A caution where jobs of a grid differ in more than their seed and have one name, by which
    reports would take them for seeds of one arm; None where there is nothing to say.
    """
    if config.hydra.sweeper._target_ != GRID:
        return None
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    swept = [key.lstrip("+") for key, each in read_grid(config).items() if len(each) > 1]
    differing = [key for key in swept if key not in OF_NO_ARM]
    if "name" in swept or "${" in str(plain["name"]):
        return None
    if not differing:
        return explain_nameless_experiments(config)
    values = [
        f"${{hydra:runtime.choices.{key}}}"
        if key in config.hydra.runtime.choices
        else f"${{{key}}}"
        for key in differing
    ]
    name = "-".join(["${hydra:runtime.choices.experiment}", *values])
    return (
        f"caution: jobs differ in {', '.join(differing)} and have one name, by which reports take "
        f"them for seeds of one arm: give 'name={name}', or an experiment file to each"
    )


def explain_nameless_experiments(
    config: DictConfig, name_of: Callable[[str], str] | None = None
) -> str | None:
    """A caution where experiments of a grid have one name, as those do whose file says none.

    `name_of` tells the name of an experiment's arm; else each is composed.
    """
    grid = read_grid(config)
    choices = [each.partition("=")[2] for each in grid.get("experiment", ())]
    if len(choices) < 2:
        return None
    by_name: dict[str, list[str]] = {}
    for choice in choices:
        name = name_of(choice) if name_of else _composed_name(config, choice)
        by_name.setdefault(name, []).append(choice)
    shared = [f"{', '.join(each)} ({name})" for name, each in by_name.items() if len(each) > 1]
    if not shared:
        return None
    return (
        "caution: experiments have one name, by which reports take them for seeds of one arm: "
        f"{'; '.join(shared)}. Give each file a `name:` of its own"
    )


def explain_borrowed_name(config: DictConfig) -> str | None:
    """A caution where a single run has other rules than its experiment, and the experiment's name,
    by which reports would take it for a seed of that arm; None where there is nothing to say.
    """
    grid = read_grid(config)
    touched = {key.lstrip("+").partition(".")[0].partition("/")[0] for key in grid}
    changed = [rule for rule in RULES if rule in touched]
    experiment = config.hydra.runtime.choices.get("experiment")
    if not changed or not experiment or "name" in grid or config.hydra.job.config_name != "train":
        return None
    own = compose("train", [f"experiment={experiment}"])
    plain = {rule: (_plain(config[rule]), _plain(own[rule])) for rule in changed}
    other = [rule for rule, (mine, theirs) in plain.items() if mine != theirs]
    if not other or config.name != own.name:
        return None
    return (
        f"caution: this run is called {own.name}, as experiment={experiment} is, but has another "
        f"{' and '.join(other)}: reports take it for a seed of that arm. Give name=..."
    )


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def _composed_name(config: DictConfig, experiment: str) -> str:
    return str(compose(config.hydra.job.config_name, [f"experiment={experiment}"]).name)


def _each(override: Override) -> list[str]:
    """A swept override as one for each of its values."""
    key = override.get_key_element()
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [f"{key}={override.get_value_element_as_str()}"]


def seconds_of_finished(folder: Path) -> dict[str, float]:
    """Seconds of every finished job in a sweep's folder by its name, as the runs counted them: from
    the start of the process on, or, in older summaries, of training steps alone."""
    found = {
        path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/summary.json")
    }
    return {
        name: float(found[name].get(SECONDS) or found[name]["costs"].get("cost/seconds", 0.0))
        for name in sorted(found)
    }
