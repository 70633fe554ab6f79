"""What a run was trained with and is not evaluated with, told before it is sampled."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from e3rl.config.composition import run_folder_of, to_plain_dict
from e3rl.config.differences import ABSENT, differences
from e3rl.evaluation.judging import IRRELEVANT
from e3rl.evaluation.targets import Model

PATIENCE = {"deadline_s", "batch_size"}  # of a reward, which the machine asks for
LABELS = {"name"}  # of problems
WHICH = ("_target_", "path")  # where these differ, what else does is of no interest
REASONING_GYM = "e3rl.data.reasoning_gym.reasoning_gym_problems"
LONGEST = 60  # characters of a value
Difference = tuple[str, Any, Any]  # setting, its value in the run, and here


def find_cautions(cfg: DictConfig, models: Sequence[Model]) -> list[str]:
    """One line per setting that runs were trained or validated with and that is another here.

    Problems are compared where `sets` names none: who names sets wants others.
    """
    runs: dict[tuple[str, str], list[str]] = {}
    for model in models:
        if model.checkpoint is None:
            continue
        run = OmegaConf.to_container(model.source)
        assert isinstance(run, dict)
        for name, there, here in _differences_from(run, cfg):
            key = (f"{name}={_shown(here)}", _shown(there))
            runs.setdefault(key, []).append(str(run_folder_of(model.checkpoint)))
    return [
        f"{here}, and it was {there} in the training of {', '.join(folders)}: give the same to "
        "compare with its own validations"
        for (here, there), folders in runs.items()
    ]


def _differences_from(run: Mapping[Any, Any], cfg: DictConfig) -> Iterator[Difference]:
    """Settings that a run has, and has otherwise."""
    if run.get("max_new_tokens") not in (None, cfg.max_new_tokens):
        yield "max_new_tokens", run["max_new_tokens"], cfg.max_new_tokens
    if run.get("reward"):
        yield from _of_nodes("reward", run["reward"], cfg.reward, IRRELEVANT | PATIENCE)
    validation = _validation_of(run.get("data") or {})
    if validation and not cfg.sets:
        yield from _of_nodes("problems", validation, cfg.problems, LABELS)


def _validation_of(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What makes the validation problems of a run, as conf/problems writes it; None where the run
    does not say."""
    if not str(data.get("_target_")).endswith(".ReasoningGymData"):
        return data.get("validation")
    kept = {name: data[name] for name in ("tasks", "knobs", "levels") if name in data}
    named = {"split": "validation", "size": "validation_size", "seed": "problems_seed"}
    taken = {name: data.get(there, there) for name, there in named.items()}
    return {"_target_": REASONING_GYM, **taken, **kept}


def _of_nodes(
    name: str, there: Mapping[str, Any], here: DictConfig, ignored: set[str]
) -> Iterator[Difference]:
    nodes = [_spelled_out(node) for node in (there, to_plain_dict(here))]
    before, after = ({k: v for k, v in node.items() if k not in ignored} for node in nodes)
    found = list(differences(before, after))
    for path, old, new in [each for each in found if each[0] in WHICH] or found:
        yield f"{name}.{path}", old, new


def _spelled_out(value: Any) -> Any:
    """A node with the defaults of what it makes, and None for what is empty."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        return {"_target_": f"{kind.__module__}.{kind.__qualname__}"} | asdict(value)
    if not isinstance(value, Mapping):
        return None if value in ((), [], "") else list(value) if type(value) is tuple else value
    given = {str(key): _spelled_out(each) for key, each in value.items()}
    return (_defaults_of(given.get("_target_")) | given) or None


def _defaults_of(target: Any) -> dict[str, Any]:
    """The defaults of a function or class, by argument; none where it is not there."""
    try:
        arguments = inspect.signature(get_object(target)).parameters if target else {}
    except (ImportError, ValueError, TypeError):
        return {}
    return {
        name: _spelled_out(each.default)
        for name, each in arguments.items()
        if each.default is not each.empty
    }


def _shown(value: Any) -> str:
    text = "null" if value is None or value is ABSENT else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
