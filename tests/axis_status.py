"""What is known of each choice of each axis, derived from recorded runs, simulations and tests.

`python tests/axis_status.py > docs/what_was_tried.md` writes the page; a test holds it to this.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf import OmegaConf

from compositions import composed
from e3rl.budgets.e3_rank import DifficultyMeasure
from e3rl.budgets.neyman import Weight
from e3rl.config.composition import conf_dir
from e3rl.ledger.archive import open_runs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "what_was_tried.md"
# Axis in words -> groups of conf/, or settings of one, that choose on it.
AXES = {
    "rollouts per prompt": ("budget", "budget.difficulty", "budget.weight"),
    "sampling temperature": ("temperature", "temperature/gain", "temperature/spread"),
    "advantage": ("advantage",),
    "objective": ("loss",),
    "exploration by the loss": ("loss/exploration",),
    "engine mismatch": ("loss/correction",),
    "answers": ("reward",),
    "reward shaping": ("shaping",),
    "problems": ("data",),
    "model": ("policy", "policy/template", "policy/head", "policy/lora"),
    "who samples": ("engine", "engine/weights", "rollout.lookahead"),
    "processes": ("trainer",),
    "where the time goes": ("profiler",),
}
SETTINGS = {  # values of settings, and the choice of a group that has them
    "budget.difficulty": (get_args(DifficultyMeasure), "budget=e3_rank"),
    "budget.weight": (get_args(Weight), "budget=neyman"),
    "rollout.lookahead": (("0", "1", "3"), "experiment=grpo"),
}
# What a group needs to be there at all. A template is for chat models: embedded runs have none.
PARENTS = {
    "temperature/gain": ("temperature=entropy_target",),
    "temperature/spread": ("temperature=multi_temperature",),
    "policy/template": ("policy=pretrained", "policy.path=x"),
    "engine/weights": ("engine=vllm_server",),
}
# A setting that tells a choice by itself, whatever else of the group an experiment then changes.
IDENTITIES = {"policy": "policy.path", "policy/template": "policy.render"}
# Of the tests in end_to_end: no step is trained, or with others in the place of what is named.
SAMPLING_ALONE = {"test_preflight.py", "test_cluster_page.py"}
HEAD = """# What was tried

One row per group of `conf/` (or setting of one), every choice with its mark:

- **trained**: recorded runs of a study in this repository chose it; the studies are named.
- *simulated*: no run chose it, but the budget simulator replayed it
  ([budget_simulator](../experiments/budget_simulator/README.md)).
- *tested*: neither, but a test in `tests/end_to_end` trains a few steps with it.
- untried: none of these. Unit tests and the check of every file in `conf/` say that it does what it
  says; nothing here says what it is good for.

The studies named are those in which arms differ by the choice, where there are such.

Derived from `experiments/` and `tests/` by `python tests/axis_status.py > docs/what_was_tried.md`;
a test fails where this page and the recordings differ. A choice is looked up in a run by its
classes, or the path of a policy, where they tell it from the other choices of its group, or else by
all settings in which these differ.
"""
Flat = dict[str, Any]


def page() -> str:
    """The whole of docs/what_was_tried.md."""
    lines = ["| axis | group | choices |", "|---|---|---|"]
    for axis, groups in AXES.items():
        for group in groups:
            marks = ", ".join(f"`{name}` {mark}" for name, mark in status(group).items())
            lines.append(f"| {axis} | `{group}` | {marks} |")
    named = sorted({*_arms(), *map(study_of, _own_runs())})
    links = [f"[{name}]: ../experiments/{name}/README.md" for name in named]
    return "\n".join([HEAD, *lines, "", *links]) + "\n"


@cache
def status(group: str) -> dict[str, str]:
    """The mark of every choice of a group, by name."""
    looks = _looks(group)
    found = {name: studies(each) for name, each in looks.items()}
    return {name: _mark(group, name, found) for name in looks}


def _mark(group: str, name: str, found: Mapping[str, set[str]]) -> str:
    """Where the choice was trained: of all its studies those in which arms differ by it."""
    here = found[name]
    others = set().union(*(names for other, names in found.items() if other != name))
    if here:
        told = sorted(here & others or here)
        everywhere = not here & others and here >= set(_arms())
        where = "the run matrix" if everywhere else ", ".join(f"[{x}]" for x in told)
        return f"**trained** ({where})"
    if name in simulated().get(group, ()):
        return "*simulated*"
    return "*tested*" if _is_tested(group, name) else "untried"


def studies(looks: Mapping[str, Any]) -> set[str]:
    """Names of the studies with a run that has all of these settings; an absent one is None."""
    return {
        study
        for config, names in _runs()
        if all(config.get(key) == value for key, value in looks.items())
        for study in names
    }


@cache
def _arms() -> dict[str, Any]:
    """The plan of every study that draws on the run matrix, by name."""
    plans = {path.parent.name: _yaml(path) for path in ROOT.glob("experiments/*/study.yaml")}
    return {name: plan for name, plan in plans.items() if plan["runs"] == "../runs"}


@cache
def _runs() -> tuple[tuple[Flat, tuple[str, ...]], ...]:
    """The settings of every recorded run, and the studies that it is part of."""
    found = []
    for path in sorted(open_runs(ROOT / "experiments" / "runs").glob("*/config.yaml")):
        config = _yaml(path)
        if config["budget"].get("n_update") == 0:  # it ranks prompts and leaves groups even
            config["budget"] = _yaml(conf_dir() / "budget" / "uniform.yaml")
        names = [
            name
            for name, plan in _arms().items()
            if config["name"] in plan["arms"]
            and config["seed"] in plan.get("seeds", [config["seed"]])
        ]
        found.append((dict(_flat(config)), tuple(names)))
    found += [(dict(_flat(_yaml(path))), (study_of(path),)) for path in _own_runs()]
    return tuple(found)


def _own_runs() -> list[Path]:
    """Configurations of runs that belong to one study."""
    single = ROOT.glob("experiments/*/run/config.yaml")
    for archive in ROOT.glob("experiments/*/runs.tar.xz"):
        open_runs(archive.with_name("runs"))
    return sorted([*single, *ROOT.glob("experiments/*/runs/*/config.yaml")])


def study_of(path: Path) -> str:
    return path.relative_to(ROOT / "experiments").parts[0]


def _looks(group: str) -> dict[str, Flat]:
    """Per choice of a group, the settings by which a run is known to have it."""
    if group in SETTINGS:
        values, parent = SETTINGS[group]
        section = group.split(".")[0]
        found = _section(parent, section=section)
        target = {k: v for k, v in found.items() if k == f"{section}._target_"}
        return {str(value): {**target, group: yaml.safe_load(str(value))} for value in values}
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    settings = {name: _own(group, name) for name in names}
    return {name: _telling(name, settings, IDENTITIES.get(group)) for name in names}


def _telling(name: str, settings: Mapping[str, Flat], identity: str | None = None) -> Flat:
    """The settings that tell a choice from all others: its identity or classes where they do, or
    whatever differs.

    Raises ValueError where none do.
    """
    keys = sorted({key for each in settings.values() for key in each})
    differing = [k for k in keys if len({str(each.get(k)) for each in settings.values()}) > 1]
    classes = [key for key in differing if key.endswith("_target_")]
    for kind in ([identity] if identity else [], classes, differing):
        looks = {each: {key: own.get(key) for key in kind} for each, own in settings.items()}
        if all(looks[name] != look for other, look in looks.items() if other != name):
            return looks[name]
    raise ValueError(f"{name} has the settings of another choice of its group")


def _own(group: str, name: str) -> Flat:
    """The settings of a choice, without those that groups within it choose."""
    section = group.split("/")[0]
    within = [f"{group}/{p.name}".replace("/", ".") for p in (conf_dir() / group).glob("*/")]
    if group == "temperature":
        within.append("temperature.rule")  # a temperature in a temperature
    flat = _section(*PARENTS.get(group, ()), f"{group}={name}", section=section)
    return {k: v for k, v in flat.items() if not any(f"{k}.".startswith(f"{w}.") for w in within)}


def _section(*overrides: str, section: str) -> Flat:
    fixed = ("logger=ledger_only", "paths.run_dir=x", "vocabulary_size=34", "experiment=grpo")
    given = [o for o in fixed if o.split("=")[0] not in {each.split("=")[0] for each in overrides}]
    node = composed(*given, *overrides)[section]
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return dict(_flat({section: plain}))


@cache
def simulated() -> dict[str, set[str]]:
    """Choices by group that the simulator's recorded tables have rows of."""
    plan = _yaml(conf_dir() / "simulate.yaml")
    files = {
        key.removeprefix("budget@budgets."): choice
        for each in plan["defaults"]
        if isinstance(each, dict)
        for key, choice in each.items()
    }
    replayed = {
        row.split(",")[0]
        for path in ROOT.glob("experiments/budget_simulator/results/*/summary.csv")
        for row in path.read_text(encoding="utf-8").splitlines()[1:]
    }
    neyman = {name for name in replayed if files[name] == "neyman"}
    weights = {plan["budgets"].get(name, {}).get("weight", "sqrt_pq") for name in neyman}
    return {"budget": {files[name] for name in replayed}, "budget.weight": weights}


def _is_tested(group: str, name: str) -> bool:
    """Whether a test of whole runs has this choice on a command line."""
    pattern = re.compile(rf"\"{re.escape(group)}(@[\w.]+)?={re.escape(name)}\"")
    files = (ROOT / "tests" / "end_to_end").glob("*.py")
    sources = (p.read_text(encoding="utf-8") for p in files if p.name not in SAMPLING_ALONE)
    return any(pattern.search(source) for source in sources)


def _flat(node: Any, path: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, (*path, str(key)))
    else:
        yield ".".join(path), node


def _yaml(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


if __name__ == "__main__":
    print(page(), end="")
