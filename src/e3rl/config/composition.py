"""Configurations and the folders they lead to: resolvers of conf/, the command line, resuming."""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from e3rl.checkpoints.files import DamagedCheckpointError, checkpoints, newest_sound
from e3rl.rewards.answer_reader import answer_instruction
from e3rl.seeds import derive_seed

GLOBAL_GROUPS = ("experiment", "sweep", "debug")  # whose files speak of the whole configuration
UNTOLD = ("paths.", "logger", "sweep", "hydra")  # overrides that say nothing about what is run
# Tokens of a forward and backward pass: what the caches of a CPU core hold; on a GPU the kernels of
# so few wait for their launches (experiments/gpu_smoke).
TOKENS_PER_PASS = {"cpu": 2048, "gpu": 16384}
MAX_SUBDIR = 200  # bytes; file systems end at 255
_BEGAN = re.compile(r"\d{4}-\d\d-\d\d_[\d-]+$")  # as a run's folder is called


class ConfigurationError(CompactHydraException):
    """What is wrong with a configuration; Hydra shows the message without a traceback."""


def conf_dir() -> Path:
    """The copy of conf/ inside an installed package, or the checkout's."""
    installed = Path(__file__).parents[1] / "conf"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "conf"


def register_resolvers() -> None:
    """Make the `${e3rl.*}` interpolations of conf/ known; safe to call again."""
    functions: dict[str, Callable[..., Any]] = {
        "root": lambda *_: str(conf_dir().parent),
        "run_id": run_id,
        "sweep_name": lambda *_: sweep_name(),
        "subdir": job_folder_name,
        "group": wandb_group,
        "answer_instruction": answer_instruction,
        "tokens_per_pass": tokens_per_pass,
    }
    for name, function in functions.items():
        OmegaConf.register_new_resolver(f"e3rl.{name}", function, replace=True)
    # One configuration has one folder, however often it is asked for.
    OmegaConf.register_new_resolver("e3rl.run_dir", run_dir, replace=True, use_cache=True)


def tokens_per_pass(accelerator: str, plan: Any = None, preflight: Any = None) -> int:
    """`TOKENS_PER_PASS` of the device that a trainer takes, or of a GPU that `plan` names where
    nothing is trained: with `plan.only`, or in a preflight."""
    import torch

    planned = OmegaConf.is_dict(plan) and (plan.get("gpu") or plan.get("gpu_gib"))
    planned = planned and (plan.get("only") or preflight is not None)
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    return TOKENS_PER_PASS["gpu" if on_gpu or planned else "cpu"]


def accept_new_keys(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments with every `key=value` as `++key=value`; groups stay as they are.

    Hydra refuses keys that no YAML file mentions, whether or not the constructor knows them, and
    advises `+key`. This way `check` judges all of them, and names the key that was meant. What is
    removed by `key=null` must exist.
    """
    keys = [re.match(r"[\w.]+(?==(?!null$))", argument) for argument in arguments]
    return [
        f"++{argument}" if key and not _is_group(key[0]) else argument
        for argument, key in zip(arguments, keys, strict=True)
    ]


def _is_group(key: str) -> bool:
    return key.split(".")[0] == "hydra" or os.path.isdir(conf_dir() / key)  # of any length


def run_dir(runs: str, name: str, ckpt_path: str | None) -> str:
    """Folder of a single run: the one that `ckpt_path` continues, else a new one.

    Where `ckpt_path` leads nowhere it is a new one too; `checkpoint_to_resume` says so then.

    Raises ConfigurationError where processes that were started together would each make a folder
    of their own, and where `ckpt_path` is empty.
    """
    check_given("ckpt_path", ckpt_path)
    if ckpt_path == "last":  # by their names, which say when they began; a copy has another
        found = [p for p in Path(runs, name).glob("*") if checkpoints(p / "checkpoints")]
        if found:
            return str(max(found, key=lambda p: (bool(_BEGAN.match(p.name)), p.name)))
    elif ckpt_path is not None and run_folder_of(Path(ckpt_path)).is_dir():
        return str(run_folder_of(Path(ckpt_path)))
    if (count := count_launched_processes()) > 1:
        raise ConfigurationError(
            f"{count} processes were started together and need one folder, which the clock does "
            "not give them: make a sweep of one job (-m ... sweep.name=NAME), which also goes on "
            "when it is started again, or give hydra.run.dir=FOLDER"
        )
    return str(Path(runs) / name / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")


def check_given(setting: str, value: object) -> None:
    """Raise ConfigurationError for a setting that is given without a value, as by a variable of a
    shell that is not set: it would mean this folder, or what is so by default."""
    if value == "" or value == []:
        raise ConfigurationError(f"{setting}= is empty: give it a value, or leave it out")


def count_launched_processes() -> int:
    """Processes of this run that srun or torchrun has started; 1 where none of them has."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    # A shell that waits in an allocation has these variables too, and starts one process.
    if "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_JOB_NAME") != "interactive":
        return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return 1


def checkpoint_to_resume(ckpt_path: str, run_dir: Path) -> Path:
    """The checkpoint that `ckpt_path` means: the newest sound one, if it names no file.

    Raises ConfigurationError where there is none, or none that is sound.
    """
    if ckpt_path == "last" and not checkpoints(run_dir / "checkpoints"):
        raise ConfigurationError(
            f"ckpt_path=last: no run with a checkpoint in {run_dir.parent}; name the run by "
            "name=..., give a path, or leave ckpt_path out to start a new run"
        )
    path = run_dir if ckpt_path == "last" else Path(ckpt_path)
    try:
        return newest_sound(path if path.suffix == ".ckpt" else run_folder_of(path) / "checkpoints")
    except FileNotFoundError as error:
        anew = "or leave ckpt_path out to start a new run"
        raise ConfigurationError(f"ckpt_path={ckpt_path}: {error}, {anew}") from error
    except DamagedCheckpointError as error:
        raise ConfigurationError(f"ckpt_path={ckpt_path}: {error}") from error


def run_folder_of(path: Path) -> Path:
    """The run folder of a checkpoint file, a checkpoints folder, or a run folder."""
    if path.suffix == ".ckpt":
        return path.parent.parent
    return path.parent if path.name == "checkpoints" else path


def run_id(folder: str) -> str:
    """W&B id of a run folder: the same when the run is resumed."""
    return f"{derive_seed('run', str(Path(folder).resolve())):x}"


def sweep_name() -> str:
    """A unique name for runs started together; child processes inherit it."""
    unique = f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    return os.environ.setdefault("E3RL_SWEEP", unique)


def wandb_group(sweep: str, name: str) -> str:
    """What the seeds of an arm are called together in W&B: of one sweep, or of all single runs."""
    in_sweep = HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN
    return f"{sweep}/{name}" if in_sweep else name


def job_folder_name(overrides: Sequence[str]) -> str:
    """Overrides of a job as one folder name that needs no quotes on the command line.

    What gets lost of them, at the end of a long name or of a value that has other signs than names
    may have, lives on in a digest, so that other jobs have other names.
    """
    given = [override.lstrip("+") for override in overrides]
    given = [each for each in given if not each.replace("/", ".").startswith(UNTOLD)]
    told = [each.replace("=", "-").replace("/", ".") for each in given]
    name = re.sub(r"[^\w.-]", "_", "_".join(told))
    replaced = any(map(_has_other_signs, given))
    if replaced or len(name.encode()) > MAX_SUBDIR:
        whole = "\n".join(given) if replaced else name
        digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:8]
        name = f"{name.encode()[: MAX_SUBDIR - 9].decode(errors='ignore')}_{digest}"
    return name or "default"


def _has_other_signs(override: str) -> bool:
    """Whether the value of an override has signs that a name may not have.

    The choice of a group has slashes, and no other choice has its name with dots instead.
    """
    key, _, value = override.partition("=")
    if "/" in value and _is_group(key.partition("@")[0]):
        value = value.replace("/", "")
    return re.fullmatch(r"[\w.-]*", value) is None


def to_plain_dict(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, Hydra's own part left out."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items() if key != "hydra"}
