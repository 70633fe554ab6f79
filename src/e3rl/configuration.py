"""Reading configurations: resolvers, and a check that names every mistake before a run starts.

The constructors are the schema. Each node with a `_target_` is compared with the signature it is
going to be called with: unknown keys (with the nearest right one), missing keys, wrong types.
"""

import difflib
import inspect
import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from e3rl.checkpoint_files import checkpoints
from e3rl.seeds import derive_seed

HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_convert_", "_recursive_"}
GROUPS = (
    *("data", "policy", "engine", "budget", "temperature", "reward", "shaping", "advantage"),
    *("loss", "callbacks", "module", "trainer", "logger", "paths"),
)
MAX_SUBDIR = 200  # file systems end at 255 bytes


@dataclass(frozen=True)
class Sweep:
    """What a sweep's runs have in common."""

    name: str


@dataclass(frozen=True)
class Paths:
    """Where runs go."""

    root: str
    runs: str
    sweeps: str
    run_dir: str


@dataclass(frozen=True)
class TopLevel:
    """The scalars of conf/train.yaml; every other top-level key is a group."""

    name: str
    seed: int
    ckpt_path: str | None
    prompts_per_step: int
    rollouts_per_prompt: int
    max_new_tokens: int
    epochs: int
    validate_every: int
    checkpoint_every: int
    control: str | None
    vocabulary_size: int
    sweep: Sweep


class ConfigurationError(ValueError):
    """Every mistake of a configuration in one message."""


def conf_dir() -> Path:
    """The checkout's conf/, or the copy inside an installed package."""
    checkout = Path(__file__).parents[2] / "conf"
    return checkout if checkout.is_dir() else Path(__file__).parent / "conf"


def register_resolvers() -> None:
    """Make the `${e3rl.*}` interpolations of conf/ known; safe to call again."""
    functions: dict[str, Callable[..., Any]] = {
        "root": lambda *_: str(conf_dir().parent),
        "run_dir": run_dir,
        "run_id": run_id,
        "sweep_name": lambda *_: sweep_name(),
        "subdir": subdir,
    }
    for name, function in functions.items():
        OmegaConf.register_new_resolver(f"e3rl.{name}", function, replace=True)


@cache
def run_dir(runs: str, name: str, ckpt_path: str | None) -> str:
    """Folder of a single run: a new one, or the one that `ckpt_path` continues.

    Raises FileNotFoundError where `ckpt_path=last` finds no run with a checkpoint.
    """
    if ckpt_path is None:
        return str(Path(runs) / name / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")
    if ckpt_path == "last":
        found = [p for p in Path(runs, name).glob("*") if checkpoints(p / "checkpoints")]
        if not found:
            raise FileNotFoundError(
                f"ckpt_path=last: no run with a checkpoint in {Path(runs, name)}; name the run by "
                "name=..., give a path, or leave ckpt_path out to start a new run"
            )
        return str(max(found, key=lambda p: p.name))
    return str(run_of(Path(ckpt_path)))


def run_of(path: Path) -> Path:
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


def subdir(overrides: str) -> str:
    """Overrides as one folder name that needs no quotes as a value on the command line."""
    name = overrides.replace("/", ".").replace("=", "-").replace(",", "_")
    return name[:MAX_SUBDIR] or "default"


def check(cfg: DictConfig) -> None:
    """Raise ConfigurationError listing every unknown key, missing key and wrong type."""
    plain = resolved(cfg)
    mistakes = list(_top_level(plain))
    for group in GROUPS:
        mistakes += _node(plain.get(group), group)
    if mistakes:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        raise ConfigurationError(f"the configuration has {len(mistakes)} mistakes:\n{listed}")


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, Hydra's own part left out."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items() if key != "hydra"}


def _top_level(plain: dict[str, Any]) -> Iterator[str]:
    hints = typing.get_type_hints(TopLevel)
    known = [*hints, *GROUPS]
    yield from _unknown(plain, known, "")
    for name, hint in hints.items():
        if name not in plain:
            yield f"{name} is missing"
        elif not isinstance(plain[name], dict):
            yield from _wrong_type(plain[name], hint, name)
    paths = [field.name for field in fields(Paths)]
    yield from _unknown(plain.get("paths", {}), paths, "paths.")
    yield from _unknown(plain.get("sweep", {}), ["name"], "sweep.")


def _node(node: Any, path: str) -> Iterator[str]:
    if isinstance(node, list):
        for number, child in enumerate(node):
            yield from _node(child, f"{path}[{number}]")
    elif isinstance(node, dict):
        if "_target_" in node:
            yield from _call(node, path)
        for key, child in node.items():
            yield from _node(child, f"{path}.{key}")


def _call(node: dict[str, Any], path: str) -> Iterator[str]:
    target = get_object(node["_target_"])
    parameters = inspect.signature(target).parameters
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    given = {key: value for key, value in node.items() if key not in HYDRA_KEYS}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not open_ended:
        yield from _unknown(given, list(parameters), f"{path}.", f" of {node['_target_']}")
    if not node.get("_partial_"):
        for name, parameter in parameters.items():
            required = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            )
            if required and name not in given and (path, name) != ("module", "policy"):
                yield f"{path}.{name} is missing: {node['_target_']} needs it"
    for name, value in given.items():
        if name in hints and not _holds_nodes(value):
            yield from _wrong_type(value, hints[name], f"{path}.{name}")


def _unknown(given: dict[str, Any], known: list[str], path: str, owner: str = "") -> Iterator[str]:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            yield f"{path}{key} is no setting{owner}: {hint}"


def _wrong_type(value: Any, hint: Any, path: str) -> Iterator[str]:
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError as error:
        if isinstance(error, PydanticSchemaGenerationError):
            return  # a type that YAML cannot write, such as a callable
        adapter = TypeAdapter(hint)
    try:
        adapter.validate_python(value, strict=not isinstance(value, list))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        yield f"{path}={value!r}: {reason[0].lower()}{reason[1:]}"


def _holds_nodes(value: Any) -> bool:
    """Whether a value contains objects to be instantiated, whose types are their own."""
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(_holds_nodes(item) for item in value)
