"""Pages of the project as tests read them: their blocks, tables, links and commands."""

import argparse
import importlib
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException

import e3rl.budgets
from compositions import composed
from e3rl.config.check import check, node_mistakes
from e3rl.config.composition import accept_new_keys, conf_dir, register_resolvers
from e3rl.evaluation.settings import check_settings, evaluations_of
from e3rl.ledger.archive import open_run
from e3rl.planning.agreement import check_agreement
from e3rl.serve import check_serving

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
NOT_RUN = re.compile(r'title="not run here: [^"]+"')
LINK = re.compile(r"\]\(([^()\s]+)\)")
LAUNCHED = re.compile(r"(?:\.venv/bin/)?e3rl")


class Block(NamedTuple):
    """A fenced block: its language, what else its first line says, and its text."""

    language: str
    info: str
    text: str


def blocks(page: str, language: str | None = None) -> list[Block]:
    found = re.findall(r"^```(\w+) *(.*)\n((?:.*\n)*?)```$", page, flags=re.M)
    return [Block(*each) for each in found if language in (None, each[0])]


def without_blocks(page: str) -> str:
    return re.sub(r"^```(?:.*\n)*?```$|`[^`\n]*`", "", page, flags=re.M)


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, its first line left out."""
    below = page.split(f"\n## {heading}\n")[1]
    table = re.search(r"^\|.*\n\|[-:| ]+\|\n((?:\|.*\n?)+)", below, flags=re.M)
    assert table is not None, heading
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# -- links


def dead_links(path: Path) -> list[str]:
    """Links of a page that lead nowhere in the repository, or are no address of the web."""
    return [link for link in LINK.findall(without_blocks(path.read_text())) if _dead(link, path)]


def _dead(link: str, path: Path) -> bool:
    if ":" in link:
        return re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[\w.~%/#?=&+-]*)?", link) is None
    name, _, anchor = link.partition("#")
    goal = path.parent / name if name else path
    return not goal.exists() or bool(anchor and anchor not in anchors(goal.read_text()))


def anchors(page: str) -> set[str]:
    """Of all headings, as MkDocs and GitHub name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```(?:.*\n)*?```$", "", page, flags=re.M), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


# -- commands


def commands(block: str) -> list[list[str]]:
    """The words of every command line, comments left out."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def own_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Name and arguments of a command of ours, whatever starts it."""
    for place, word in enumerate(words[:-1]):
        if LAUNCHED.fullmatch(word):
            return words[place + 1], list(words[place + 2 :])
        if word == "-m" and words[place + 1].startswith("e3rl."):
            return words[place + 1].removeprefix("e3rl."), list(words[place + 2 :])
    return None


def unproven(page: str) -> list[str]:
    """Command lines of a page that nothing checks and nobody marks as not run, and wrong ones."""
    found = []
    for block in blocks(page, "bash"):
        for words in commands(block.text):
            fault = mistake(words)
            if fault is not None and not (fault == UNCHECKED and NOT_RUN.fullmatch(block.info)):
                found.append(f"{shlex.join(words)}: {fault}")
    return found


UNCHECKED = 'no test knows this command: run it in one, or give the block title="not run here: ..."'


def mistake(words: Sequence[str]) -> str | None:
    """What is wrong with a command line; None where it would start as it stands."""
    own = own_command(words)
    if own is not None:
        return _mistake_of_ours(*own)
    if words[0] == "make":
        known = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), flags=re.M)
        return None if set(words[1:]) <= set(known) else "no such target"
    if words[0] == "bash":
        return None if (ROOT / words[1]).is_file() else "no such script"
    return UNCHECKED


def _mistake_of_ours(name: str, arguments: list[str]) -> str | None:
    if not (ROOT / "src" / "e3rl" / f"{name}.py").is_file():
        return f"there is no command {name}"
    try:
        CHECKS.get(name, lambda given: _parse(name, given))(arguments)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return str(error)
    return None


class _ParsedError(Exception):
    """The arguments were understood; what would be done with them is not."""


def _parse(name: str, arguments: Sequence[str]) -> None:
    """Let a command's own parser read its arguments, and end there."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        parse(parser, list(arguments))
        raise _ParsedError

    with patch.object(argparse.ArgumentParser, "parse_args", parse_only):
        try:
            importlib.import_module(f"e3rl.{name}").main()
        except _ParsedError:
            return
        except SystemExit as error:
            raise ValueError(f"e3rl {name} does not take {shlex.join(arguments)}") from error


def _jobs(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Overrides of the first and the last job that a command starts."""
    single = [each for each in arguments if each != "-m"]
    if len(single) == len(arguments):
        yield single
        return
    parsed = OverridesParser.create().parse_overrides(single)
    (found,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    yield from {str(job): job for job in (found[0], found[-1])}.values()


def _check_train(arguments: Sequence[str]) -> None:
    for overrides in _jobs(accept_new_keys(arguments)):
        _check_job(tuple(overrides))


@cache
def _check_job(overrides: tuple[str, ...]) -> None:
    given = [*overrides, "logger=ledger_only", "++paths.run_dir=x"]
    if not any(each.startswith("hydra.") for each in overrides):
        cfg = composed(*given)
        check(cfg)
        check_agreement(cfg)
        return
    register_resolvers()  # settings of Hydra's own are known to nobody but Hydra
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        cfg = compose("train", given)
    check(cfg)
    check_agreement(cfg)


def _check_preflight(arguments: Sequence[str]) -> None:
    own = [each for each in arguments if each.startswith("preflight.")]  # Hydra knows their names
    others = accept_new_keys([each for each in arguments if each not in own])
    cfg = composed(*own, *others, "logger=ledger_only", "++paths.run_dir=x", root="preflight")
    with open_dict(cfg):
        del cfg.preflight
    check(cfg)


def _check_serve(arguments: Sequence[str]) -> None:
    own = [each for each in arguments if each.startswith("serve.")]  # Hydra knows their names
    others = accept_new_keys([each for each in arguments if each not in own])
    check_serving(composed(*own, *others, "++paths.run_dir=x", root="serve"))


def _check_evaluate(arguments: Sequence[str]) -> None:
    cfg = composed(*arguments, root="evaluate")
    check_settings(cfg)
    assert evaluations_of(cfg)
    _check_nodes({"policy": cfg.policy, "engine": cfg.engine, "reward": cfg.reward})


def _check_simulate(arguments: Sequence[str]) -> None:
    cfg = composed(*arguments, root="simulate")
    _check_nodes({f"budgets.{name}": node for name, node in cfg.budgets.items()})
    if unknown := set(cfg.rules) - set(cfg.budgets):
        raise ValueError(f"there are no rules {sorted(unknown)}")
    if missing := [path for path in cfg.runs if not open_run(ROOT / path).is_dir()]:
        raise ValueError(f"there are no runs in {missing}")


def _check_dataset_card(arguments: Sequence[str]) -> None:
    cfg = composed(*arguments, root="dataset_card")
    _check_nodes({f"sets.{name}": node for name, node in cfg.sets.items()})


def _check_nodes(nodes: dict[str, object]) -> None:
    if found := [each for name, node in nodes.items() for each in node_mistakes(node, name)]:
        raise ValueError("; ".join(found))


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "train": _check_train,
    "preflight": _check_preflight,
    "serve": _check_serve,
    "evaluate": _check_evaluate,
    "simulate": _check_simulate,
    "dataset_card": _check_dataset_card,
}


# -- the example of a rule


def check_example_of_a_rule(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of a page passes the page's test, the page's configuration makes it, and its
    experiment chooses it; `folder` is for files."""
    put_in_place(page, monkeypatch)
    test = blocks(page, "python")[1].text
    conf, experiment = (block.text for block in blocks(page, "yaml"))
    names: dict[str, object] = {}
    exec(test, names)
    (example,) = (value for name, value in names.items() if name.startswith("test_"))
    assert callable(example)
    example()
    rule = instantiate(yaml.safe_load(conf))
    assert sum(rule.decide(["a", "b", "c"], total=24, step=0, epoch=0).allocation.counts) == 24
    for group, text in (("budget", conf), ("experiment", experiment)):
        (folder / group).mkdir()
        (folder / group / "first_hit.yaml").write_text(text)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        cfg = compose("train", ["experiment=first_hit", f"hydra.searchpath=[file://{folder}]"])
    assert (cfg.name, cfg.budget._target_) == ("first_hit", yaml.safe_load(conf)["_target_"])


def put_in_place(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the rule of a page a module of the package, as its file would be."""
    module = types.ModuleType("e3rl.budgets.first_hit")
    exec(blocks(page, "python")[0].text, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(e3rl.budgets, "first_hit", module, raising=False)
