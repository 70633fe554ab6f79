"""The command `e3rl`: what it lists, how it runs commands, and what it completes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e3rl import __version__
from e3rl.__main__ import COMMANDS, overview, unknown

pytestmark = pytest.mark.end_to_end


SOURCE = Path(__file__).parents[1] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE)}
# A module that tells how it was started: what ranks, workers and launchers start again from.
PROBE = """
import json, pickle, sys
def task(): ...
told = [__name__, __spec__.name, sys.modules["__main__"].__spec__.name, sys.argv[1:], sys.path[0]]
print(json.dumps([*told, pickle.loads(pickle.dumps(task)) is task]))
sys.exit(7)
"""


def e3rl(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "e3rl", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT | options, timeout=120
    )


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_the_overview_has_a_line_for_every_command(arguments: tuple[str, ...]) -> None:
    done = e3rl(*arguments)
    assert done.returncode == 0
    assert done.stdout == overview() + "\n"
    lines = re.findall(r"^  (\w+) +(\w.+\.)$", done.stdout, re.M)
    assert tuple(name for name, _ in lines) == COMMANDS
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_every_module_that_is_a_main_program_is_a_command() -> None:
    folder = SOURCE / "e3rl"
    mains = {p.stem for p in folder.glob("*.py") if 'if __name__ == "__main__"' in p.read_text()}
    assert mains - {"__main__"} == set(COMMANDS)


def test_help_on_a_command_says_how_it_is_called() -> None:
    done = e3rl("help", "record")
    assert done.returncode == 0
    assert done.stdout.startswith("Record finished runs for studies.\n\n    e3rl record RUNS OUT")
    assert "\nusage: e3rl record [-h] [--control CONTROL]" in done.stdout
    assert e3rl("record", "--help").stdout in done.stdout


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_the_packages(flag: str) -> None:
    assert e3rl(flag).stdout == f"e3rl {__version__}\n"


@pytest.mark.parametrize("arguments", [("trian", "seed=1"), ("help", "trian")])
def test_an_unknown_command_is_a_mistake(arguments: tuple[str, ...]) -> None:
    done = e3rl(*arguments)
    assert done.returncode == 2
    assert done.stderr == ("error: e3rl has no command 'trian'; the nearest is train (e3rl help)\n")


def test_a_name_like_no_command_gets_them_all() -> None:
    assert "there are train, evaluate, " in unknown("xyz")
    assert "the nearest is dataset_card" in unknown("dataset-card")


def test_a_command_passes_its_exit_code_on() -> None:
    done = e3rl("export", "nowhere", "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert e3rl("record").returncode == 2


@pytest.mark.parametrize(
    "arguments", [("--help",), ("train", "--help"), ("simulate", "rules=[vcrl]")]
)
def test_a_command_ends_silently_where_nobody_reads_it(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "e3rl", *arguments]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path, timeout=120
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 128 + signal.SIGPIPE


def test_other_broken_pipes_keep_their_traceback(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("raise BrokenPipeError('of a worker')")
    program = (
        f"import sys, e3rl, e3rl.__main__ as it; e3rl.__path__.append({str(tmp_path)!r}); "
        "it.COMMANDS = ('probe',); sys.argv[1:] = ['probe']; it.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert done.stderr.endswith("BrokenPipeError: of a worker\n")


def test_a_command_runs_as_python_m_has_it(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    here = tmp_path / "here"
    here.mkdir()
    program = (
        f"import sys, e3rl, e3rl.__main__ as it; e3rl.__path__.append({str(tmp_path)!r}); "
        "sys.path[0] = 'bin'; it.run('probe', ['-m', 'seed=1,2'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, cwd=here
    )
    assert done.returncode == 7
    assert json.loads(done.stdout) == [
        *("__main__", "e3rl.probe", "e3rl.probe", ["-m", "seed=1,2"], str(here), True),
    ]


@pytest.fixture
def console_script(tmp_path: Path) -> Path:
    """A folder with `e3rl` as pip writes it."""
    script = tmp_path / "bin" / "e3rl"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom e3rl.__main__ import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return script


COMPLETED = {
    "e3rl tr": ["train"],
    "e3rl train experiment=gr": ["experiment=grpo", "experiment=grpo_er"],
    "e3rl train -m seed=1,2 temperature/g": ["temperature/gain="],
    "e3rl report ru": [],  # files, by the shell
}
SHELL = """
eval "$(e3rl train -sc install=bash)"
complete -p e3rl
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE} COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    hydra_bash_completion
    echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_and_settings(console_script: Path, tmp_path: Path) -> None:
    path = f"{console_script.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", SHELL],
        input="".join(f"{line}\n" for line in COMPLETED),
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"PATH": path},
        cwd=tmp_path,
        timeout=120,
    )
    registered, *answers = done.stdout.splitlines()
    assert registered.endswith("-F hydra_bash_completion e3rl")
    assert dict(zip(COMPLETED, map(str.split, answers), strict=True)) == COMPLETED
    assert done.stderr == ""
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


def test_fish_is_answered_line_by_line() -> None:
    done = e3rl("-sc", "query=fish", COMP_LINE="e3rl train shaping=")
    assert done.stdout.split("\n") == ["shaping=length", "shaping=none", "shaping=overlong", ""]
