"""The rooms of the house: who may import whom, and how large a room, file or function may grow.

A room is a folder in src/e3rl (of `analysis`, a folder in it) or one of four files there; the other
files are commands, and `__main__`, which starts them. Imports lead from a room to rooms before it
in `ROOMS` alone, so there is no circle. Imports for type checkers count as much as others, except
where weight is meant: what is light must not load torch, directly or through what it imports.
"""

import ast
import graphlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "e3rl"

# Rooms from the ground up, and what lives there; a room imports from those before it alone.
ROOMS = {
    "process": "what a process is told before libraries load, and what it asks of other ranks",
    "seeds": "seeds derived from names and numbers",
    "statistics": "intervals, pass@k, apportionment",
    "functional": "mathematics of tensors",
    "checkpoints": "files that survive kills",
    "ledger": "the append-only record of a run and its mirrors",
    "rewards": "answers and what they earn",
    "budgets": "who gets how many rollouts",
    "batch": "the one type that travels through the pipeline",
    "advantages": "advantages of rollouts within their groups",
    "temperatures": "what is sampled at which temperature",
    "data": "problems and their order",
    "losses": "the objective of an update",
    "policy": "tokenizer and causal language model",
    "engines": "who samples tokens",
    "training": "the update, its passes and what is measured before it",
    "callbacks": "the slots of the pipeline",
    "config": "configurations: composed, checked, built",
    "planning": "what a run will take",
    "analysis.sources": "where recorded runs come from",
    "analysis.measures": "numbers made of recorded runs",
    "analysis.warnings": "what speaks against a comparison of recorded runs",
    "analysis.tables": "numbers as tables",
    "analysis.figures": "numbers as pictures",
    "analysis.page": "what is made public of recorded runs: the report's page, studies",
    "simulator": "budget rules on tables of pass rates",
    "evaluation": "models sampled on problem sets",
    "readiness": "whether a run is worth starting",
    "runs": "whole runs and sweeps of them",
}
COMMANDS = {
    *("train", "evaluate", "preflight", "simulate", "report", "study", "record", "export"),
    *("serve", "dataset_card", "warm_start"),
}
ENTRY = "__main__"  # runs commands by their names, and imports none
FLOOR = {room: floor for floor, room in enumerate(ROOMS)}
FLOOR |= dict.fromkeys((*COMMANDS, ENTRY), len(ROOMS))
STRANGERS = {frozenset({"training", "callbacks"})}
MAX_TOP_MODULES, MAX_TOP_FOLDERS, MAX_FILES = 16, 24, 24

# Rooms and modules that must not load torch: they are opened by notebooks, by worker processes
# (which import the main module again), or on machines that only plan.
LIGHT = {
    *("statistics", "ledger.ledger", "rewards", "budgets", "checkpoints.files"),
    *(
        "checkpoints.strict_state",
        "analysis",
        "simulator",
        "config.command",
        "config.composition",
        "config.differences",
    ),
    "evaluation.log",
    *("readiness.answer_test", "readiness.checks", "readiness.pass_rates"),
    *("readiness.rendering", "readiness.rule_ranking", "readiness.sample"),
    *COMMANDS,
    ENTRY,
}
HEAVY = {"torch", "lightning", "transformers"}
# Who may import e3rl inside a function, and why.
LAZY_IMPORTS = {
    **dict.fromkeys(
        COMMANDS, "worker processes import the main module again, and answers to --help are quick"
    ),
    ENTRY: "the list of commands is there at once",
    "runs.run": "what the end of a run needs would make its beginning slower",
    "runs.outcome": "runs without figures need no matplotlib",
    "runs.sweep_hooks": "Hydra loads it in every process, also where no sweep is planned",
}
# Where alone a package may be imported: rooms, or modules.
HYDRA = {*COMMANDS, "config", "planning", "runs", "evaluation", "readiness"}
HOMES: Mapping[str, set[str]] = {
    "vllm": {"engines.vllm_build", "engines.servers.nccl"},
    "ray": {"engines.servers.ray_actors"},
    "math_verify": {"rewards.verifier"},
    "reasoning_gym": {"rewards.gym_task"},
    "peft": {"policy.adapters"},
    "wandb": {"analysis.sources.wandb_project", "ledger.wandb_mirror"},
    "hydra": HYDRA,
    "omegaconf": HYDRA,
    "lightning": {*COMMANDS, "training", "callbacks", "data.datamodule", "checkpoints.atomic"}
    | {"ledger.logger", "ledger.clock", "ledger.wandb_mirror", "evaluation", "runs.run"}
    | {"runs.ranks", "runs.outcome"},
    "rich": {*COMMANDS, "analysis.tables.cells", "planning.plan", "planning.forecast"},
}
CONSOLE = {
    *COMMANDS,
    ENTRY,
    "config.command",
    "runs",
    "planning.forecast",
    "callbacks.progress",
}  # who may print
CONSOLE |= {"policy.packaged", "policy.warm_start"}  # nobody waits for these without being told
# So slow to import, and so rarely needed, that only a function may.
LAZY = {"vllm", "ray", "wandb", "peft", "reasoning_gym"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 45


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
    def room(self) -> str:
        return room_of(self.name)

    def is_one_of(self, names: Iterable[str]) -> bool:
        """Whether the module, or a folder that it is in, is named."""
        return any(f"{self.name}.".startswith(f"{name}.") for name in names)

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


def room_of(name: str) -> str:
    """`budgets` of budgets.uniform, `analysis.tables` of analysis.tables.cells."""
    return ".".join(name.split(".")[: 2 if name.startswith("analysis.") else 1])


def room_problems(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    if module.name == "" or (module.is_package and module.name == "analysis"):
        return
    if module.room not in FLOOR:
        yield f"e3rl.{module.room}: give it a place in ROOMS or COMMANDS"
        return
    for item in module.imports:
        name = target(item.name, modules) or module.name
        other, where = room_of(name), f"e3rl.{module.name}:{item.line} imports {item.name}"
        if other != module.room and FLOOR.get(other, 0) >= FLOOR[module.room]:
            yield f"{where}; e3rl.{other} comes after e3rl.{module.room}"
        if {module.room, other} in STRANGERS:
            yield f"{where}, but training and callbacks meet on the batch alone"
        if item.lazy and name != module.name and not module.is_one_of(LAZY_IMPORTS):
            yield f"{where} inside a function; LAZY_IMPORTS has no reason for that"


def circle_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    """Modules that import each other in a circle, within a room too."""
    graph = {
        module.name: {target(item.name, modules) for item in module.imports}
        - {None, "", module.name}
        for module in modules.values()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"modules import each other in a circle: {' <- '.join(error.args[1])}"


def crowding_problems(modules: Mapping[str, Module]) -> Iterator[str]:
    """What makes a folder hard to see through."""
    files = Counter(name.rpartition(".")[0] for name, m in modules.items() if not m.is_package)
    files += Counter(name for name, module in modules.items() if module.is_package)
    folders = sum(m.is_package for name, m in modules.items() if name and "." not in name)
    if files[""] > MAX_TOP_MODULES:
        yield f"e3rl: {files['']} files at the top (at most {MAX_TOP_MODULES})"
    if folders > MAX_TOP_FOLDERS:
        yield f"e3rl: {folders} folders at the top (at most {MAX_TOP_FOLDERS})"
    for folder, count in files.items():
        if count > MAX_FILES:
            yield f"e3rl.{folder}: {count} files (at most {MAX_FILES})"


def package_problems(module: Module) -> Iterator[str]:
    for item in module.imports:
        where = f"e3rl.{module.name}:{item.line} imports {item.name}"
        homes = HOMES.get(item.package)
        if homes is not None and not module.is_one_of(homes):
            yield f"{where}; allowed in: {', '.join(sorted(homes)) or 'no file'}"
        if item.package in LAZY and not (item.lazy or item.typing):
            yield f"{where} when it is loaded; import it in the function that needs it"


def weight_problems(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """Heavy packages that loading a light module would load, with the path that leads there."""
    paths = {module.name: f"e3rl.{module.name}"} if module.is_one_of(LIGHT) else {}
    queue = list(paths)
    for name in queue:
        for item in modules[name].imports:
            if item.lazy or item.typing:
                continue
            if item.package in HEAVY:
                yield f"{paths[name]} -> {item.name}: what is light must not load {item.package}"
            following = target(item.name, modules)
            if following is not None and following not in paths:
                paths[following] = f"{paths[name]} -> e3rl.{following}"
                queue.append(following)


def style_problems(module: Module) -> Iterator[str]:
    where = f"e3rl.{module.name}"
    if (lines := len(module.text.splitlines())) > MAX_FILE_LINES:
        yield f"{where}: {lines} lines; split it by concept (at most {MAX_FILE_LINES})"
    if module.tree.body and not ast.get_docstring(module.tree):
        yield f"{where}: the module has no docstring"
    if module.is_package and module.name and module.tree.body[1:]:
        yield f"{where}: keep __init__ to a docstring, import from the file that defines a name"
    for node in ast.walk(module.tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if (lines := _code_lines(node)) > MAX_FUNCTION_LINES:
                    yield f"{where}: {node.name} has {lines} lines (at most {MAX_FUNCTION_LINES})"
            case ast.ExceptHandler(type=caught):
                if caught is None or _words(caught) & {"Exception", "BaseException"}:
                    yield f"{where}:{node.lineno} catches everything; name the error"
            case ast.Call(func=ast.Name(id="print")) if not module.is_one_of(CONSOLE):
                yield f"{where}:{node.lineno} prints; only commands and runs write to the console"


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, so that explaining is never too long."""
    lines = node.end_lineno - node.lineno + 1
    docstring = node.body[0]
    return lines - (docstring.end_lineno - docstring.lineno + 1) * bool(ast.get_docstring(node))


def problems(modules: Mapping[str, Module]) -> list[str]:
    found = [*crowding_problems(modules), *circle_problems(modules)]
    for module in modules.values():
        found += [*room_problems(module, modules), *package_problems(module)]
        found += [*weight_problems(module, modules), *style_problems(module)]
    return found


def test_source_keeps_the_rooms_and_the_house_style() -> None:
    found = problems(read_source())
    assert not found, "\n" + "\n".join(found)


def made_up(**sources: str) -> dict[str, Module]:
    """Modules with a docstring and these statements; `data__loader` stands for data.loader."""
    names = {name: name if name == ENTRY else name.replace("__", ".") for name in sources}
    modules = [Module(names[name], f'"""D."""\n{text}\n') for name, text in sources.items()]
    return {module.name: module for module in [Module("", "", True), *modules]}


GUARD = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
VIOLATIONS = {
    "upwards": ({"batch": "from e3rl.policy.a import x", "policy__a": ""}, "comes after"),
    "upwards, relative": ({"data__a": "from ..train import x", "train": ""}, "comes after"),
    "upwards, for types": ({"losses__a": GUARD + "import e3rl.train", "train": ""}, "comes after"),
    "upwards in a function": (
        {"train": "", "record": "def f():\n    import e3rl.train"},
        "e3rl.train comes after e3rl.record",
    ),
    "upwards between rooms of analysis": (
        {"analysis__tables__a": "import e3rl.analysis.figures.b", "analysis__figures__b": ""},
        "e3rl.analysis.figures comes after e3rl.analysis.tables",
    ),
    "strangers": ({"callbacks__a": "import e3rl.training.b", "training__b": ""}, "meet on"),
    "lazy without a reason": (
        {"engines__a": "def f():\n    import e3rl.batch", "batch": ""},
        "inside a function",
    ),
    "circle in a room": (
        {"data__a": "import e3rl.data.b", "data__b": "import e3rl.data.a"},
        "in a circle",
    ),
    "no room": ({"helpers": ""}, "give it a place"),
    "too many files": ({f"data__f{n}": "" for n in range(25)}, "25 files (at most 24)"),
    "vllm elsewhere": ({"engines__base": "def f():\n    import vllm"}, "engines.vllm_build"),
    "vllm by name": (
        {"train": "from x import import_module\nf = lambda: import_module('vllm')"},
        "vllm",
    ),
    "vllm at once": ({"engines__vllm_build": "from vllm import LLM"}, "in the function"),
    "math_verify": ({"rewards__pool": "from math_verify import parse"}, "rewards.verifier"),
    "wandb": ({"study": "def f():\n    import wandb"}, "analysis.sources.wandb_project"),
    "hydra": ({"callbacks__a": "from hydra.utils import get_class"}, "allowed in"),
    "omegaconf": ({"policy__a": "import omegaconf"}, "allowed in"),
    "lightning": ({"losses__a": "import lightning.pytorch as pl"}, "allowed in"),
    "rich": ({"callbacks__a": "from rich.console import Console"}, "allowed in"),
    "torch in a light room": ({"budgets__a": "from torch import Tensor"}, "not load torch"),
    "torch in a light module": ({"evaluation__log": "import torch"}, "not load torch"),
    "torch further down": (
        {"budgets__a": "from e3rl.functional.b import c", "functional__b": "import torch"},
        "e3rl.budgets.a -> e3rl.functional.b -> torch",
    ),
    "a command in the entry": ({"train": "", "__main__": "import e3rl.train"}, "comes after"),
    "torch in the entry": ({"__main__": "import torch"}, "not load torch"),
    "print": ({"losses__a": "print(1)"}, "prints"),
    "long file": ({"seeds": "x = 1\n" * 400}, "at most 400"),
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


def test_checker_finds_a_crowded_top() -> None:
    modules = {name: Module(name, '"""D."""\n') for name in [*COMMANDS, "seeds", "batch"]}
    more = {f"x{n}": Module(f"x{n}", '"""D."""\n') for n in range(5)}
    found = problems({"": Module("", "", True), **modules, **more})
    assert "e3rl: 19 files at the top (at most 16)" in found


def test_checker_finds_a_missing_docstring() -> None:
    modules = {"": Module("", "", True), "seeds": Module("seeds", "x = 1\n")}
    assert problems(modules) == ["e3rl.seeds: the module has no docstring"]


def test_checker_finds_a_package_that_gathers_names() -> None:
    package = Module("data", '"""D."""\nfrom e3rl.seeds import derive_seed\n', True)
    assert problems({**made_up(seeds=""), "data": package}) == [
        "e3rl.data: keep __init__ to a docstring, import from the file that defines a name"
    ]


def test_checker_accepts_what_the_contract_allows() -> None:
    modules = made_up(
        batch="import torch",
        advantages__e3=GUARD + "import torch\n    from e3rl.batch import Rollout",
        analysis__figures__plots="def table():\n    import torch",
        engines__vllm_build="from e3rl.policy.a import P\ndef start():\n    from vllm import LLM",
        policy__a="from e3rl.batch import Rollout",
        rewards__verifier="import math_verify",
        data__datamodule="import lightning",
        callbacks__a="import lightning\nfrom e3rl.advantages import e3",
        train="import hydra, rich\ndef f():\n    from e3rl.callbacks.a import x\nprint(1)",
        seeds="try: f()\nexcept OSError: g()",
        functional__a='def f():\n    """D.\n' + "\n" * 40 + '    """\n' + "    x = 1\n" * 44,
    )
    assert problems(modules) == []


def test_every_room_says_what_lives_there() -> None:
    modules = read_source()
    rooms = [name for name in ROOMS if name in modules and modules[name].is_package]
    assert len(rooms) > 20
    assert [name for name in rooms if not ast.get_docstring(modules[name].tree)] == []
    assert [name for name in ROOMS if name not in modules] == []
