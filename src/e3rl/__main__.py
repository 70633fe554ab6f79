"""The command line: `e3rl COMMAND ...` runs exactly what `python -m e3rl.COMMAND ...` does.

A command is a module of this folder. It runs as the main module, as `python -m` has it, for others
start it again from there: Lightning the other ranks of a run, multiprocessing its workers, and
launchers their jobs. So nothing but the standard library is loaded here.
"""

import ast
import difflib
import importlib
import os
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from e3rl import __version__
from e3rl.process.output import ending_with_its_reader

# In the order in which one meets them; each is the name of its module.
COMMANDS = (
    *("train", "evaluate", "preflight", "simulate", "report", "study", "record", "export"),
    *("serve", "dataset_card", "warm_start"),
)
COMPLETION = {"-sc", "--shell-completion"}  # Hydra's option


def main() -> int:
    """Run the command that the command line names; returns 2 where it names none of them.

    Raises SystemExit with the command's own exit code.
    """
    with ending_with_its_reader():
        return answer(sys.argv[1:])


def answer(arguments: list[str]) -> int:
    """See `main`; these are the words behind `e3rl`."""
    if COMPLETION & set(arguments):
        complete(arguments)
        return 0
    match arguments:
        case [] | ["help" | "-h" | "--help"]:
            print(overview())
        case ["-V" | "--version"]:
            print(f"e3rl {__version__}")
        case ["help", name, *_] if name in COMMANDS:
            print(f"{docstring(name)}\n", flush=True)
            run(name, ["--help"])
        case [name, *rest] if name in COMMANDS:
            run(name, rest)
        case ["help", name, *_] | [name, *_]:
            print(unknown(name), file=sys.stderr)
            return 2
    return 0


def overview() -> str:
    """Every command with the first line of its module's docstring."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {docstring(name).splitlines()[0]}" for name in COMMANDS]
    return "\n".join(
        [
            "usage: e3rl COMMAND ...      (or: python -m e3rl.COMMAND ...)\n",
            *lines,
            "\ne3rl help COMMAND says more of a command, e3rl --version the version;",
            'eval "$(e3rl -sc install=bash)" completes commands and settings (or fish).',
        ]
    )


def docstring(name: str) -> str:
    """What a command's module says of itself, which loading it would take seconds to tell."""
    path = Path(__file__).with_name(f"{name}.py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def unknown(name: str) -> str:
    """What to tell somebody who asks for a command that does not exist."""
    nearest = difflib.get_close_matches(name, COMMANDS, n=1)
    remedy = f"the nearest is {nearest[0]}" if nearest else f"there are {', '.join(COMMANDS)}"
    return f"error: e3rl has no command {name!r}; {remedy} (e3rl help)"


def run(name: str, arguments: Sequence[str]) -> None:
    """Run a command as the main module."""
    if not sys.flags.safe_path:  # where `python -m`, and so every other rank, looks first
        sys.path[0] = str(Path.cwd())
    sys.argv[1:] = arguments
    runpy.run_module(f"e3rl.{name}", run_name="__main__", alter_sys=True)


def complete(arguments: Sequence[str]) -> None:
    """Answer Hydra's shell completion, which knows an executable and its overrides alone.

    Its shell function calls `e3rl -sc query=SHELL` with the line in COMP_LINE. The command is
    completed here; without it the line is one that Hydra understands.
    """
    words = [word for word in arguments if word not in COMMANDS]
    name = "train"  # installs for all
    if any(word.startswith("query=") for word in words):
        line = re.fullmatch(r"\s*\S+\s+(\S*)(\s.*)?", os.environ.get("COMP_LINE", ""))
        if line is None or line[2] is None:
            typed = line[1] if line else ""
            print("\n".join(each for each in (*COMMANDS, "help") if each.startswith(typed)))
            return
        name, os.environ["COMP_LINE"] = line[1], f"e3rl{line[2]}"
    if name in COMMANDS and is_configured(name):
        sys.argv = ["e3rl", *words]
        importlib.import_module(f"e3rl.{name}").main()


def is_configured(name: str) -> bool:
    """Whether a command takes settings of conf/; the others take files, which shells complete."""
    from e3rl.config.composition import conf_dir

    return (conf_dir() / f"{name}.yaml").is_file()


if __name__ == "__main__":
    sys.exit(main())
