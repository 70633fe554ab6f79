"""A check of a whole configuration that names every mistake at once, before a run starts.

The constructors are the schema. Each node with a `_target_` is compared with the signature it is
going to be called with: unknown keys (with the nearest right one), missing keys, wrong types. A
value that is interpolated is checked where it is written.
"""

import difflib
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import yaml
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaError

from e3rl.config.composition import GLOBAL_GROUPS, ConfigurationError, conf_dir, to_plain_dict

HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_convert_", "_recursive_"}
GROUPS = (
    *("data", "policy", "engine", "budget", "temperature", "reward", "shaping", "advantage"),
    *("loss", "callbacks", "module", "trainer", "logger", "profiler", "paths"),
)
COLLECTIONS = ("callbacks", "logger")  # groups of objects by name
GIVEN = {"module.policy"}  # settings that the entry point fills in
DISTORTING = {
    *("top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "logit_bias"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
}
UNDISTORTED = (
    "training samples from the policy's whole distribution, since log-probs of a truncated or "
    "penalised one are not the policy's and the gradient would be wrong; validation may truncate: "
    "set top_p or top_k of an evaluation in callbacks.pass_at_k.evaluations, or of e3rl evaluate"
)
MISSING = "???"
SECRET = re.compile(
    "password|passphrase|secret|token|(api|access|auth|hf|hub|wandb)_?(key|token)", re.IGNORECASE
)
LEAKING = (
    "looks like a secret, and settings are written into the run folder and to W&B: leave it out, "
    "and give it by the environment (WANDB_API_KEY, HF_TOKEN). Where it was on the command line, "
    "remove .hydra of the run folder as well"
)


@dataclass(frozen=True)
class Sweep:
    """What a sweep's runs have in common."""

    name: str
    seconds_per_job: float | None = None


@dataclass(frozen=True)
class Paths:
    """Where runs go."""

    root: str
    runs: str
    sweeps: str
    run_dir: str


@dataclass(frozen=True)
class RolloutSampling:
    """When rollouts are sampled, and which of them are stopped early."""

    lookahead: Annotated[int, Field(ge=0)]
    abort: dict[str, Any] | None


Above0 = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Planning:
    """What debug=plan reckons with."""

    only: bool
    tokens_per_s: Above0 | None
    mean_tokens: Above0 | None
    mean_prompt_tokens: Above0
    gpu: str | None
    gpu_gib: Above0 | None
    train_problems: PositiveInt | None
    validation_problems: PositiveInt | None
    model_config: str | None


@dataclass(frozen=True)
class TopLevel:
    """The scalars of conf/train.yaml; every other top-level key is a group."""

    name: str
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    ckpt_path: str | None
    prompts_per_step: PositiveInt
    rollouts_per_prompt: PositiveInt
    max_new_tokens: PositiveInt
    epochs: PositiveInt
    validate_every: PositiveInt
    checkpoint_every: PositiveInt
    stall_s: Above0 | None
    figures: bool
    control: str | None
    vocabulary_size: NonNegativeInt
    sweep: Sweep
    rollout: RolloutSampling
    plan: Planning


SECTIONS = {"paths": Paths, "sweep": Sweep, "rollout": RolloutSampling, "plan": Planning}


def check(cfg: DictConfig, also: Mapping[str, type] | None = None) -> None:
    """Raise ConfigurationError listing every unknown key, missing key and wrong type.

    `also` are sections of values that a command has beside those of a run: a class with annotated
    fields each.
    """
    try:
        plain = to_plain_dict(cfg)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"the configuration does not resolve: {error}") from error
    written = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    settings = _Settings(plain, written, also or {})
    if mistakes := settings.mistakes():
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        count = f"{len(mistakes)} mistake{'s' if len(mistakes) > 1 else ''}"
        raise ConfigurationError(f"the configuration has {count}:\n{listed}")


def check_command(cfg: DictConfig, command: str, elsewhere: Sequence[str] = ()) -> None:
    """Raise ConfigurationError listing settings that conf/COMMAND.yaml and its groups do not have,
    and mistakes in nodes with a `_target_`; for commands that are not given a run's settings.

    Nodes named by `elsewhere` are checked by others."""
    plain, written = to_plain_dict(cfg), OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(written, dict)
    settings = _Settings(plain, written, {})

    def mistakes() -> Iterator[str]:
        yield from settings._unknown(plain, sorted(command_settings(command)), "")
        for key in sorted(plain.keys() - set(elsewhere)):
            yield from settings._node(plain[key], written[key], key)

    list(mistakes())  # finds the unknown settings, as in `_Settings.mistakes`
    if found := list(mistakes()):
        raise ConfigurationError("\n".join(found))


def command_settings(command: str) -> set[str]:
    """The top-level settings and groups of conf/COMMAND.yaml."""
    path = conf_dir() / f"{command}.yaml"
    own = yaml.safe_load(path.read_text(encoding="utf-8"))
    groups = {
        key.split("@")[0] for entry in own["defaults"] if isinstance(entry, dict) for key in entry
    }
    return (set(own) | groups) - {"defaults", "hydra"}


def node_mistakes(node: DictConfig, path: str) -> list[str]:
    """The mistakes in a node that has a `_target_`, which is called `path`."""
    plain, written = (OmegaConf.to_container(node, resolve=resolve) for resolve in (True, False))
    settings = _Settings({path: plain}, {path: written}, {})
    list(settings._node(plain, written, path))  # finds the unknown settings, as in `mistakes`
    return list(settings._node(plain, written, path))


class _Settings:
    """The mistakes in a configuration, node by node."""

    def __init__(
        self, plain: dict[str, Any], written: dict[Any, Any], also: Mapping[str, type]
    ) -> None:
        self.plain = plain
        self.written = written
        self.also = also
        self.unknown: set[str] = set()  # paths

    def mistakes(self) -> list[str]:
        if wrong := [*self._shapes(), *_targets(self.plain)]:
            return wrong  # nothing else can be looked at
        list(self._all())  # finds the unknown settings, which are no advice to each other
        return list(self._all())

    def _shapes(self) -> Iterator[str]:
        """What is a plain value or a list where settings by name belong."""
        for name in (*SECTIONS, *self.also):
            if not isinstance(self.plain.get(name, {}), dict):
                yield f"{name}={self.plain[name]!r}: give its settings by name"
        for name in (*GROUPS, *COLLECTIONS):
            if not isinstance(self.plain.get(name) or {}, dict):
                yield f"{name}={self.plain[name]!r}: choose a file of conf/{name}, or give a node"

    def _all(self) -> Iterator[str]:
        yield from self._top_level()
        yield from _secrets(self.written)
        for group in (*GROUPS, "rollout"):
            yield from self._node(self.plain.get(group), self.written.get(group), group)
        for group in COLLECTIONS:
            for name, child in (self.plain.get(group) or {}).items():
                if child is not None and not (isinstance(child, dict) and "_target_" in child):
                    yield f"{group}.{name}={child!r}: give a node with a _target_, or null"
        abort = self.plain.get("rollout", {}).get("abort")
        if isinstance(abort, dict) and "_target_" not in abort:
            yield f"rollout.abort={abort!r}: give a node with a _target_, or null"

    def _top_level(self) -> Iterator[str]:
        hints = typing.get_type_hints(TopLevel, include_extras=True)
        yield from self._unknown(self.plain, [*hints, *GROUPS, *self.also], "")
        for name, hint in hints.items():
            if name not in self.plain:
                yield f"{name} is missing"
            elif not isinstance(self.plain[name], dict):
                yield from _wrong_type(self.plain[name], hint, name)
        for group, fields_of in {**SECTIONS, **self.also}.items():
            values = self.plain.get(group, {})
            hints = typing.get_type_hints(fields_of, include_extras=True)
            yield from self._unknown(values, list(hints), f"{group}.")
            yield from wrong_values(values, fields_of, f"{group}.")

    def _node(self, node: Any, written: Any, path: str) -> Iterator[str]:
        if isinstance(written, str):  # an interpolation, or a plain value
            return
        if isinstance(node, list):
            for number, child in enumerate(node):
                yield from self._node(child, written[number], f"{path}[{number}]")
        elif isinstance(node, dict):
            if "_target_" in node:
                yield from self._call(node, written, path)
            for key, child in node.items():
                yield from self._node(child, written[key], f"{path}.{key}")

    def _call(self, node: dict[str, Any], written: dict[str, Any], path: str) -> Iterator[str]:
        try:
            target = get_object(node["_target_"])
        except (ImportError, AttributeError) as error:
            yield f"{path}._target_={node['_target_']}: {' '.join(str(error).split())}"
            return
        parameters = inspect.signature(target).parameters.values()
        hints = _parameter_types(target.__init__ if inspect.isclass(target) else target)
        given = {key: value for key, value in node.items() if key not in HYDRA_KEYS}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            known = [p.name for p in parameters]
            first = _required_names(parameters)[: bool(node.get("_partial_"))]  # the caller's
            known = [name for name in known if name in given or name not in first]
            yield from self._unknown(given, known, f"{path}.", f" of {node['_target_']}")
        wanted = [] if node.get("_partial_") else _required_names(parameters)
        for name in dict.fromkeys([*wanted, *given]):
            place = f"{path}.{name}"
            if given.get(name, MISSING) == MISSING and not self._given_later(place):
                yield f"{place} is missing: {node['_target_']} needs it, give {place}=..."
            elif name in hints and name in given and not _is_interpolated(written[name]):
                yield from _wrong_type(given[name], hints[name], place)

    def _given_later(self, place: str) -> bool:
        """Whether a setting is filled in by the entry point, or is a file that a plan can lack."""
        plan = self.plain.get("plan", {})
        counted = plan.get("train_problems") and plan.get("validation_problems")
        planned = plan.get("only") and counted and place.startswith("data.")
        return place in GIVEN or bool(planned)

    def _unknown(
        self, given: dict[str, Any], known: list[str], path: str, owner: str = ""
    ) -> Iterator[str]:
        for key, value in given.items():
            if key not in known and DISTORTING.intersection([key, *_keys(value)]):
                self.unknown.add(f"{path}{key}")
                yield f"{path}{key} is no setting{owner}: {UNDISTORTED}"
            elif key not in known:
                self.unknown.add(f"{path}{key}")
                meant = self._nearest(key, known, path)
                hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
                if not known:
                    hint = f"it takes none; where a file of conf/ sets it, add ~{path}{key}"
                if not path and key in GLOBAL_GROUPS:
                    hint = f"a file of conf/{key} begins with the line `# @package _global_`"
                yield f"{path}{key} is no setting{owner}: {hint}"

    def _nearest(self, key: str, known: list[str], path: str) -> str | None:
        """The setting beside an unknown one, or else anywhere, whose name is most like its."""
        if beside := difflib.get_close_matches(key, known, n=1):
            return path + beside[0]
        elsewhere = {p.split(".")[-1]: p for p in _paths(self.written) if p not in self.unknown}
        near = difflib.get_close_matches(key, elsewhere, n=1)
        return elsewhere[near[0]] if near else None


def _targets(node: Any, path: str = "") -> Iterator[str]:
    """Classes whose name is no text."""
    if isinstance(node, dict):
        target = node.get("_target_", "")
        if not isinstance(target, str):
            yield f"{path}._target_={target!r}: give the name of a class or function"
        for key, child in node.items():
            yield from _targets(child, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from _targets(child, f"{path}[{number}]")


def _keys(node: Any) -> list[str]:
    """Names of all settings below a node."""
    return [path.split(".")[-1] for path in _paths(node)]


def _secrets(node: Any, path: str = "") -> Iterator[str]:
    """Settings whose name is that of a secret, without their values."""
    if isinstance(node, dict):
        for key, child in node.items():
            place = f"{path}.{key}" if path else str(key)
            if isinstance(child, str) and child and SECRET.fullmatch(str(key)):
                yield f"{place} {LEAKING}"
            yield from _secrets(child, place)
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from _secrets(child, f"{path}[{number}]")


def _paths(node: Any, path: str = "") -> Iterator[str]:
    """Dotted paths of all settings below a node."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _paths(child, f"{path}.{key}" if path else str(key))
    if path:
        yield path


def _required_names(parameters: typing.Iterable[inspect.Parameter]) -> list[str]:
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def wrong_values(
    values: Mapping[str, Any], fields_of: Callable[..., Any], path: str = ""
) -> Iterator[str]:
    """Plain values that are not what the annotations of a class's fields, or of a function's
    parameters, say, each in a line."""
    hints = typing.get_type_hints(fields_of, include_extras=True)
    for name in (name for name in hints if name in values):
        yield from _wrong_type(values[name], hints[name], f"{path}{name}")


def _parameter_types(function: Any) -> dict[str, Any]:
    """Types of what a function takes; what it returns may be known to type checkers alone."""
    function = inspect.unwrap(function)
    own = {k: v for k, v in getattr(function, "__annotations__", {}).items() if k != "return"}
    known = getattr(function, "__globals__", {})
    return typing.get_type_hints(SimpleNamespace(__annotations__=own), known)


def _is_interpolated(written: Any) -> bool:
    return isinstance(written, str) and "${" in written


def _wrong_type(value: Any, hint: Any, path: str) -> Iterator[str]:
    if _holds_nodes(value):
        return
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError as error:
        if isinstance(error, PydanticSchemaGenerationError):
            return  # a type that YAML cannot write, such as a callable
        adapter = TypeAdapter(hint)
    except SchemaError:  # a protocol, which only objects have
        if value is not None or type(None) not in typing.get_args(hint):
            yield f"{path}={value!r}: give a node with a _target_"
        return
    try:
        if isinstance(value, list):  # strict JSON knows that tuples are written as lists
            adapter.validate_json(json.dumps(value, default=str), strict=True)
        else:
            adapter.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
        yield f"{path}{place}={first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _holds_nodes(value: Any) -> bool:
    """Whether a value contains objects to be instantiated, whose types are their own."""
    if isinstance(value, dict):
        return "_target_" in value or any(map(_holds_nodes, value.values()))
    return isinstance(value, list) and any(map(_holds_nodes, value))
