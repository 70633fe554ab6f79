"""The floors of the house: who may import whom, and how long a file or a function may grow.

A unit is a file or folder directly in src/e3rl. Imports point to the same floor or a lower one and
never in a circle. Imports for type checkers count as much as others, except where weight is meant:
a light unit must not load torch, directly or through what it imports.
"""

import ast
import graphlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "e3rl"

FLOORS = (
    {
        "batch",
        "entropy_probe",
        "batch_prompts",
        "batch_state",
        "seeds",
        "environment",
        "state",
        "ledger",
        "checkpoint_files",
        "evaluation_log",
        "durable",
        "closing",
        "statistics",
    },
    {"functional", "advantages", "reduce"},
    {"losses", "budgets", "temperatures", "data", "rewards", "engines", "policy", "checkpoint_io"}
    | {"update", "probe", "model_shape", "head_settings", "sharding", "sharded_checkpoints"}
    | {"adapters", "model_loading"},
    {"module", "callbacks", "ledger_logger", "wandb_mirror", "analysis", "simulator", "fsdp2"}
    | {"readiness"},
    {"train", "evaluate", "simulate", "warm_start", "report", "preflight", "record", "study"}
    | {"sync"}
    | {"configuration", "configuration_check", "run_record", "plan", "progress", "running"}
    | {"cautions", "dataset_card", "evaluating", "evaluation_results"}
    | {"evaluation_settings", "evaluation_targets", "failed_jobs", "forecast"}
    | {"memory", "policy_check", "recording", "sweep_jobs"}
    | {"sweep_start"}
    | {"trial", "rule_choice", "flight_check", "export"},
)
FLOOR = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}
STRANGERS = {frozenset({"module", "callbacks"})}
LIGHT = {"statistics", "budgets", "rewards", "analysis", "simulator", "readiness", "ledger"} | {
    "evaluation_log",
    # Worker processes import the main module again, and what it imports.
    *("checkpoint_files", "configuration"),
}
HEAVY = {"torch", "lightning", "transformers"}
ENTRY_POINTS = FLOORS[-1]  # commands, and the parts they are made of
# Where alone a package may be imported: units, or modules below e3rl.
HOMES: Mapping[str, set[str]] = {
    "vllm": {"engines.vllm_build"},
    "math_verify": {"rewards.verifier"},
    "peft": {"adapters"},
    "wandb": {"analysis.wandb_project"},  # training logs through Lightning's logger
    "hydra": ENTRY_POINTS,
    "omegaconf": ENTRY_POINTS,
    "lightning": {*ENTRY_POINTS, "module", "callbacks", "data.datamodule", "checkpoint_io"}
    | {"ledger_logger", "wandb_mirror", "fsdp2"},
    "rich": {*ENTRY_POINTS, "analysis.tables"},  # the latter returns its tables as text
}
# So slow to import, and so rarely needed, that only a function may.
LAZY = {"vllm", "wandb", "peft"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 45


@dataclass(frozen=True)
class Import:
    """One imported name: e3rl.batch.Rollout of `from e3rl.batch import Rollout`."""

    name: str
    line: int
    lazy: bool  # inside a function
    typing: bool  # under `if TYPE_CHECKING`

    @property
    def package(self) -> str:
        return self.name.split(".")[0]


@dataclass(frozen=True)
class Module:
    """A source file, by its dotted name below e3rl ("" is the package itself)."""

    name: str
    text: str
    is_package: bool = False

    @property
    def unit(self) -> str:
        return self.name.split(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> list[Import]:
        home = ["e3rl", *(self.name.split(".") if self.name else [])]
        return list(_imports(self.tree, home if self.is_package else home[:-1]))


def _imports(
    node: ast.AST, home: list[str], lazy: bool = False, typing: bool = False
) -> Iterator[Import]:
    """Every import below `node`; `home` is the package that relative imports start from."""
    for name in _imported_names(node, home):
        yield Import(name, node.lineno, lazy, typing)
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    guarded = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in _words(node.test) else []
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, home, lazy, typing or child in guarded)


def _imported_names(node: ast.AST, home: list[str]) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            start = home[: len(home) - level + 1] if level else []
            return [".".join([*start, *filter(None, [module]), alias.name]) for alias in names]
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
            return [name] if _words(func) & {"import_module", "__import__"} else []
    return []


def _words(node: ast.AST) -> set[str]:
    """The identifiers in an expression."""
    names = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
    return names | {item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)}


def read_source() -> dict[str, Module]:
    modules = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return {module.name: module for module in modules}


def target(name: str, modules: Mapping[str, Module]) -> str | None:
    """The module of ours that an import loads, None for a package of others."""
    head, *parts = name.split(".")
    if head != "e3rl":
        return None
    lengths = range(len(parts), -1, -1)
    return next(known for n in lengths if (known := ".".join(parts[:n])) in modules)


def unit_problems(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    if module.name and module.unit not in FLOOR:
        yield f"e3rl.{module.unit}: give it a floor in FLOORS"
        return
    for item in module.imports:
        other = (target(item.name, modules) or module.unit).split(".")[0]
        where = f"e3rl.{module.name}:{item.line} imports {item.name}"
        if FLOOR.get(other, 0) > FLOOR.get(module.unit, 0):
            yield f"{where}, which is on a higher floor"
        if {module.unit, other} in STRANGERS:
            yield f"{where}, but module and callbacks meet on the batch alone"


def package_problems(module: Module) -> Iterator[str]:
    for item in module.imports:
        where = f"e3rl.{module.name}:{item.line} imports {item.name}"
        homes = HOMES.get(item.package)
        if homes is not None and not {module.name, module.unit} & homes:
            yield f"{where}; allowed in: {', '.join(sorted(homes)) or 'no file'}"
        if item.package in LAZY and not (item.lazy or item.typing):
            yield f"{where} when it is loaded; import it in the function that needs it"


def weight_problems(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """Heavy packages that loading a light module would load, with the path that leads there."""
    paths = {module.name: f"e3rl.{module.name}"} if module.unit in LIGHT else {}
    queue = list(paths)
    for name in queue:
        for item in modules[name].imports:
            if item.lazy or item.typing:
                continue
            if item.package in HEAVY:
                yield f"{paths[name]} -> {item.name}: a light unit must not load {item.package}"
            following = target(item.name, modules)
            if following is not None and following not in paths:
                paths[following] = f"{paths[name]} -> e3rl.{following}"
                queue.append(following)


def circle_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        others = {target(item.name, modules) for item in module.imports} - {None, ""}
        graph.setdefault(module.unit, set()).update(other.split(".")[0] for other in others)
    for unit, others in graph.items():
        others.discard(unit)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"units import each other in a circle: {' <- '.join(error.args[1])}"


def style_problems(module: Module) -> Iterator[str]:
    where = f"e3rl.{module.name}"
    if (lines := len(module.text.splitlines())) > MAX_FILE_LINES:
        yield f"{where}: {lines} lines; split it by concept (at most {MAX_FILE_LINES})"
    if module.tree.body and not ast.get_docstring(module.tree):
        yield f"{where}: the module has no docstring"
    if module.is_package and module.name and module.tree.body[1:]:
        yield f"{where}: keep __init__ empty and import from the file that defines a name"
    for node in ast.walk(module.tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if (lines := _code_lines(node)) > MAX_FUNCTION_LINES:
                    yield f"{where}: {node.name} has {lines} lines (at most {MAX_FUNCTION_LINES})"
            case ast.ExceptHandler(type=caught):
                if caught is None or _words(caught) & {"Exception", "BaseException"}:
                    yield f"{where}:{node.lineno} catches everything; name the error"
            case ast.Call(func=ast.Name(id="print")) if module.unit not in ENTRY_POINTS:
                yield f"{where}:{node.lineno} prints; only entry points write to the console"


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, so that explaining is never too long."""
    lines = node.end_lineno - node.lineno + 1
    docstring = node.body[0]
    return lines - (docstring.end_lineno - docstring.lineno + 1) * bool(ast.get_docstring(node))


def problems(modules: Mapping[str, Module]) -> list[str]:
    found = [*circle_problems(modules)]
    for module in modules.values():
        found += [*unit_problems(module, modules), *package_problems(module)]
        found += [*weight_problems(module, modules), *style_problems(module)]
    return found


def test_source_keeps_the_floors_and_the_house_style() -> None:
    found = problems(read_source())
    assert not found, "\n" + "\n".join(found)


def made_up(**sources: str) -> dict[str, Module]:
    """Modules with a docstring and these statements; `data__loader` stands for data.loader."""
    names = {name: name.replace("__", ".") for name in sources}
    modules = [Module(names[name], f'"""D."""\n{text}\n') for name, text in sources.items()]
    return {module.name: module for module in [Module("", "", True), *modules]}


GUARD = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
VIOLATIONS = {
    "upwards": ({"batch": "from e3rl.policy import x", "policy": ""}, "higher floor"),
    "upwards, relative": ({"data__a": "from ..train import x", "train": ""}, "higher floor"),
    "upwards, for types": ({"losses__a": GUARD + "import e3rl.train", "train": ""}, "higher floor"),
    "strangers": ({"callbacks__a": "import e3rl.module", "module": ""}, "meet on the batch"),
    "circle": ({"data__a": "import e3rl.policy", "policy": "import e3rl.data.a"}, "circle"),
    "no floor": ({"helpers": ""}, "give it a floor"),
    "vllm elsewhere": ({"engines__base": "def f():\n    import vllm"}, "engines.vllm_build"),
    "vllm by name": (
        {"train": "from x import import_module\nf = lambda: import_module('vllm')"},
        "vllm",
    ),
    "vllm at once": ({"engines__vllm_build": "from vllm import LLM"}, "in the function"),
    "math_verify": ({"rewards__pool": "from math_verify import parse"}, "rewards.verifier"),
    "wandb": ({"train": "def f():\n    import wandb"}, "analysis.wandb_project"),
    "hydra": ({"callbacks__a": "from hydra.utils import get_class"}, "allowed in"),
    "omegaconf": ({"policy": "import omegaconf"}, "allowed in"),
    "lightning": ({"losses__a": "import lightning.pytorch as pl"}, "allowed in"),
    "rich": ({"callbacks__a": "from rich.console import Console"}, "allowed in"),
    "torch in a light unit": ({"budgets__a": "from torch import Tensor"}, "not load torch"),
    "torch further down": (
        {"rewards__a": "from e3rl.batch import Rollout", "batch": "import torch"},
        "e3rl.rewards.a -> e3rl.batch -> torch",
    ),
    "print": ({"losses__a": "print(1)"}, "prints"),
    "long file": ({"seeds": "x = 1\n" * 300}, "at most 300"),
    "long function": ({"seeds": "def f():\n" + "    x = 1\n" * 45}, "at most 45"),
    "except Exception": ({"seeds": "try: f()\nexcept Exception: g()"}, "name the error"),
    "in a tuple": ({"seeds": "try: f()\nexcept (OSError, BaseException): g()"}, "name the error"),
    "bare except": ({"seeds": "try: f()\nexcept: g()"}, "name the error"),
}


@pytest.mark.parametrize("case", VIOLATIONS)
def test_checker_finds(case: str) -> None:
    sources, message = VIOLATIONS[case]
    found = problems(made_up(**sources))
    assert len(found) == 1
    assert message in found[0]


def test_checker_finds_a_missing_docstring() -> None:
    modules = {"": Module("", "", True), "seeds": Module("seeds", "x = 1\n")}
    assert problems(modules) == ["e3rl.seeds: the module has no docstring"]


def test_checker_finds_a_package_that_gathers_names() -> None:
    package = Module("data", '"""D."""\nfrom e3rl.seeds import derive_seed\n', True)
    assert problems({**made_up(seeds=""), "data": package}) == [
        "e3rl.data: keep __init__ empty and import from the file that defines a name"
    ]


def test_checker_accepts_what_the_contract_allows() -> None:
    modules = made_up(
        batch="import torch",
        budgets__e3=GUARD + "import torch\n    from e3rl.batch import Rollout",
        analysis__plots="def table():\n    import torch",
        engines__vllm_build="from e3rl.policy import P\ndef start():\n    from vllm import LLM",
        policy="from e3rl.batch import Rollout",
        rewards__verifier="import math_verify",
        data__datamodule="import lightning",
        callbacks__a="import lightning\nfrom e3rl.budgets import e3",
        train="import hydra, rich\nfrom e3rl.callbacks.a import x\nprint(1)",
        seeds="try: f()\nexcept OSError: g()",
        functional__a='def f():\n    """D.\n' + "\n" * 40 + '    """\n' + "    x = 1\n" * 44,
    )
    assert problems(modules) == []
