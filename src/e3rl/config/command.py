"""Commands with settings of conf/, and how mistakes in what they are given are told."""

import difflib
import functools
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from e3rl.config.check import wrong_values
from e3rl.config.composition import (
    GLOBAL_GROUPS,
    ConfigurationError,
    conf_dir,
    register_resolvers,
    to_plain_dict,
)
from e3rl.process.output import is_unread, leave_unread

Task = Callable[[DictConfig], Any]

IN_FOLDERS = {"experiment"}  # groups with choices in folders too
AS_RAISED = "HYDRA_FULL_ERROR"  # has Hydra raise exceptions in place of its own account of them


def configured(name: str, *mistakes: type[Exception]) -> Callable[[Task], Callable[[], None]]:
    """Make a function the command with the settings of conf/NAME.yaml, which `hydra.main` runs.

    What a user can mend is told on standard error without a traceback, and the process ends with
    code 2: what cannot be composed, ConfigurationError, and the `mistakes` of this command. Other
    exceptions keep their traceback; with HYDRA_FULL_ERROR=1 all do. What a job of a sweep raises is
    left to Hydra, which goes on with the others and ends with code 1.
    """
    register_resolvers()

    def decorate(task: Task) -> Callable[[], None]:
        lent = False  # whether AS_RAISED is set by this command, and not by the user

        @functools.wraps(task)
        def job(cfg: DictConfig) -> Any:
            if lent:  # processes that the job starts inherit what the user has set
                os.environ.pop(AS_RAISED, None)
            if os.environ.get(AS_RAISED) == "1":
                return task(cfg)
            with telling_mistakes(mistakes):
                return task(cfg)

        main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=name)(job)

        @functools.wraps(task)
        def command() -> None:
            nonlocal lent
            if os.environ.get(AS_RAISED) == "1":
                main()
                return
            lent, os.environ[AS_RAISED] = True, "1"
            try:
                with telling_refusals(name):
                    main()
            finally:
                os.environ.pop(AS_RAISED, None)

        return command

    return decorate


@contextmanager
def telling_mistakes(mistakes: Sequence[type[Exception]]) -> Iterator[None]:
    """End the process with a user's mistake in plain words; a job of a sweep fails of it."""
    told: tuple[type[Exception], ...] = (ConfigurationError, *mistakes)
    try:
        yield
    except BrokenPipeError:
        if not is_unread():
            raise
        leave_unread()
    except told as error:
        if is_sweeping():
            raise ConfigurationError(str(error)) from error
        end_with_mistake(str(error))


@contextmanager
def telling_refusals(command: str) -> Iterator[None]:
    """End the process, in plain words, where Hydra refuses the command line of a command."""
    try:
        yield
    except ValueError:  # what Hydra raises for a number in place of a choice
        if told := explain_number_as_choice(sys.argv[1:], command):
            end_with_mistake(told)
        raise
    except (CompactHydraException, OmegaConfBaseException) as error:
        end_with_mistake(explain_refusal(error, sys.argv[1:]))


def check_own_settings(cfg: DictConfig, kinds: type) -> None:
    """Raise ConfigurationError for settings of a command that are not what the fields of `kinds`
    say, and for a single value where a list is meant."""
    hints = typing.get_type_hints(kinds)
    values = to_plain_dict(OmegaConf.masked_copy(cfg, list(hints)))  # others resolve when they run
    for name in (name for name, hint in hints.items() if "list[" in str(hint)):
        value = values[name]
        optional = value is None and type(None) in typing.get_args(hints[name])
        if not (isinstance(value, list) or optional):
            inside = "" if value is None else value
            raise ConfigurationError(f"{name}={value} is no list: write {name}=[{inside}]")
    if mistakes := list(wrong_values(values, kinds)):
        raise ConfigurationError("; ".join(mistakes))


def is_sweeping() -> bool:
    """Whether what runs now is a job of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN


def end_with_mistake(message: str) -> NoReturn:
    """Tell the user what is wrong, and end the process."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def explain_refusal(error: Exception, arguments: Sequence[str]) -> str:
    """What is wrong with a command line that cannot be composed.

    Interpolations wrap what their resolvers raise; Hydra says what it wanted, and OmegaConf why
    that cannot be.
    """
    if isinstance(error, MissingConfigException):
        return explain_missing_choice(error, arguments)
    cause = error.__cause__
    if isinstance(cause, ConfigurationError):
        return str(cause)
    packaged = re.search(r"Could not override '[\w/]+@(\w+)\.", str(error))
    if packaged and packaged[1] in GLOBAL_GROUPS:
        return f"{error}\nA file of conf/{packaged[1]} begins with the line `# @package _global_`"
    if nested := re.search(r"Could not override '(\w+)/([\w/]+)@", str(error)):
        return f"{error}\nIn a file of conf/{nested[1]}, write `- override /{nested[2]}: NAME`"
    for key in filter(None, map(_key_of, arguments)):
        if "/" in key[2] and key[2] in str(error) and not key[2].startswith("hydra/"):
            return explain_missing_group(key[2])
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return explain_missing_setting(cause)
    return f"{error}\n{cause}" if isinstance(cause, OmegaConfBaseException) else str(error)


def explain_missing_setting(error: OmegaConfBaseException) -> str:
    """That a node has no such setting, and the nearest one that it has, or all."""
    path = str(error.full_key)
    known = [str(key) for key in error.parent_node or ()]
    near = difflib.get_close_matches(path.rpartition(".")[2], known, n=1)
    beside = path.rpartition(".")[0]
    meant = f"did you mean {beside}{'.' if beside else ''}{near[0]}?" if near else ""
    there = f"there are {', '.join(known)}"
    if "_target_" in known and not near:  # what it makes may take more than its file says
        there += f"; one that is not written there is given with a plus, +{path}=..."
    return f"{path} is no setting: {meant or there}"


def explain_number_as_choice(arguments: Sequence[str], command: str) -> str | None:
    """What to write in place of `temperature=0.8`, where temperature is a group of conf/."""
    own = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    for key in filter(None, map(_key_of, arguments)):
        given = yaml.safe_load(key.string.partition("=")[2])
        if isinstance(given, bool | int | float) and (conf_dir() / key[2]).is_dir():
            settings = [name for name in own if name not in ("defaults", "hydra")]
            near = difflib.get_close_matches(key[2], settings, n=1, cutoff=0.8)
            meant = f"did you mean the setting {near[0]}? There" if near else "there"
            return (
                f"{key.string}: {key[2]} is a group, of which a file is chosen by its name; "
                f"{meant} are {', '.join(sorted(list_choices(key[2])))}, and {key[2]}.KEY=VALUE "
                "for a setting of the one that is chosen"
            )
    return None


def explain_missing_group(group: str) -> str:
    """That conf/ has no such folder, and the nearest one, or all that files lie in."""
    folders = {path.parent.relative_to(conf_dir()) for path in conf_dir().rglob("*.yaml")}
    known = sorted(str(folder) for folder in folders if folder.name)
    near = difflib.get_close_matches(group, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{group} is no group of settings: {hint}"


def explain_missing_choice(error: MissingConfigException, arguments: Sequence[str]) -> str:
    """Which choice of a group there is none of, the nearest one, and all that there are."""
    missing = error.missing_cfg_file or ""
    group, _, nested = missing.partition("/")
    if group in GLOBAL_GROUPS and (conf_dir() / nested.partition("/")[0]).is_dir():
        axis, _, choice = nested.rpartition("/")
        return (
            f"{missing} is no choice: in the defaults of a file of conf/{group}, another group is "
            f"chosen by `- override /{axis}: {choice}`"
        )
    keys = [key for each in arguments if (key := _key_of(each))]
    keys = [key for key in keys if missing.startswith(f"{key[2]}/")]
    if not keys or error.options is None:  # a file of conf/, or of the user, is wrong
        return str(error).partition("\nConfig search path:")[0]
    key = max(keys, key=lambda found: len(found[2]))
    choice = missing.removeprefix(f"{key[2]}/")
    known = sorted({*error.options, *list_choices(key[2])})
    nearest = find_nearest_choice(choice, known)
    hint = f"did you mean {key[0]}{nearest}? There" if nearest else "there"
    folder = choice.rpartition("/")[0]
    beside = [each for each in known if each.rpartition("/")[0] == folder] or known
    folders = sorted({each.partition("/")[0] for each in known if "/" in each})
    more = f", and more in {', '.join(folders)}" if folders and not folder else ""
    return f"{key[0]}{choice} is no choice: {hint} are {', '.join(beside)}{more}"


def _key_of(argument: str) -> re.Match[str] | None:
    """The key of an override with its equals sign: its prefix, its group, and its package."""
    return re.match(r"([+~]*)([\w/]+)(@[\w.]*)?=", argument)


def list_choices(group: str) -> list[str]:
    """The files of conf/GROUP, as they are chosen; folders in it may be groups of their own."""
    folder = conf_dir() / group
    files = folder.rglob("*.yaml") if group in IN_FOLDERS else folder.glob("*.yaml")
    return [str(path.relative_to(folder).with_suffix("")) for path in files]


def find_nearest_choice(choice: str, known: Sequence[str]) -> str | None:
    """The choice that was meant: by its own name, and of those so called the likest as a whole."""
    by_name: dict[str, list[str]] = {}
    for each in known:
        by_name.setdefault(each.rpartition("/")[2], []).append(each)
    names = difflib.get_close_matches(choice.rpartition("/")[2], by_name, n=1)
    alike = by_name[names[0]] if names else []
    return next(iter(difflib.get_close_matches(choice, alike, n=1, cutoff=0.0)), None)
