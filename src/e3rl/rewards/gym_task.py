"""`GymTask`: a task of reasoning-gym with its settings. The only file that knows the package.

reasoning-gym (https://github.com/open-thought/reasoning-gym, arXiv 2505.24760) generates problems
of about a hundred tasks and scores answers to them.
"""

import ast
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

import numpy as np

PACKAGE = "reasoning-gym==0.1.25"
BLOCK = 500  # problems of one seed; some tasks have no more
GIVEN = ("seed", "size")  # of a task's configuration, not for the user to set
COMPOSITE = "composite"  # its own mixture, which takes objects of Python as settings


def require_reasoning_gym() -> None:
    """Raise ModuleNotFoundError, with the command that installs it, where it is not there."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ModuleNotFoundError(
            f"reasoning-gym is not installed: pip install '{PACKAGE}' (or e3rl[tasks])"
        )


@cache
def list_tasks() -> tuple[str, ...]:
    """The names of all tasks, sorted."""
    from reasoning_gym.factory import DATASETS

    return tuple(sorted(set(DATASETS) - {COMPOSITE}))


@dataclass(frozen=True)
class GymTask:
    """A task by its name, and how its problems are to be.

    Args:
        name: as reasoning-gym has it: `chain_sum`, `gcd`, ...
        level: of the task's curriculum, 0 = easiest; None leaves its own defaults.
        knobs: fields of the task's configuration, which have precedence over the level.
    """

    name: str
    level: int | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """Level and knobs as JSON, in one spelling."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "name"}, sort_keys=True)

    @property
    def digest(self) -> str:
        """Eight letters that stand for the settings in ids of problems."""
        return hashlib.blake2b(self.settings.encode(), digest_size=4).hexdigest()

    def dataset(self, seed: int = 0) -> Any:
        """The `ProceduralDataset` of `BLOCK` problems; entry i of it depends on the seed and i.

        Raises ValueError for an unknown task, level or knob, with those there are, and for values
        that the task refuses.
        """
        from reasoning_gym.factory import DATASETS

        if self.name not in list_tasks():
            near = get_close_matches(self.name, list_tasks(), n=5) or list_tasks()
            raise ValueError(f"reasoning-gym has no task {self.name!r}; it has {', '.join(near)}")
        make, config = DATASETS[self.name]
        knobs = {f.name: f for f in fields(config) if f.name not in GIVEN}
        if unknown := sorted(set(self.knobs) - set(knobs)):
            raise ValueError(
                f"task {self.name} has no knob {', '.join(unknown)}; it has {', '.join(knobs)}"
            )
        start = config() if self.level is None else self._config_of_level()
        given = {key: _like(getattr(start, key), value) for key, value in self.knobs.items()}
        try:
            return make(config=replace(start, **given, seed=seed, size=BLOCK))
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"task {self.name} refuses {self.settings}: {error}") from error

    def _config_of_level(self) -> Any:
        from reasoning_gym.factory import create_curriculum, has_curriculum

        if not has_curriculum(self.name):
            raise ValueError(f"task {self.name} has no levels; use its knobs")
        curriculum = create_curriculum(self.name)
        count = max(len(attribute.levels) for attribute in curriculum.attributes.values())
        if self.level not in range(count):
            raise ValueError(f"task {self.name} has levels 0 to {count - 1}, not {self.level!r}")
        curriculum.set_global_level(self.level)
        return curriculum.generate_configuration()


def write_entry(entry: Mapping[str, Any]) -> str:
    """An entry of a dataset as text that `read_entry` turns into the same one.

    JSON would not: entries hold tuples and whole numbers as keys. NumPy's scalars become Python's.
    """
    text = repr(_plain(entry))
    if ast.literal_eval(text) != _plain(entry):
        raise TypeError(f"an entry of reasoning-gym cannot be written as text: {text[:400]}")
    return text


def read_entry(text: str) -> dict[str, Any]:
    """The entry that `write_entry` has written."""
    entry: dict[str, Any] = ast.literal_eval(text)
    return entry


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return type(value)(map(_plain, value)) if isinstance(value, list | tuple | set) else value


def _like(default: Any, value: Any) -> Any:
    """The value, a list as a tuple where the task has one; YAML knows lists alone."""
    return tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value
