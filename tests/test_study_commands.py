"""The commands that the pages of studies give would start: nothing in them is refused."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e3rl.config.composition import conf_dir
from pages import ROOT, UNCHECKED, blocks, mistake, own_command

PAGES = sorted((ROOT / "experiments").glob("*/README.md"))
ASSIGNED = re.compile(r"(\w+)=(\"[^\"]*\"|\S*)\s*(.*)")
LOOP = re.compile(r"for (\w+) in ([^;\s]+)[^;]*; do\b ?(.*)")
RANGE = re.compile(r"\{(\w+)\.\.\w+\}")


def command_lines(block: str) -> Iterator[str]:
    """Commands of a block of shell, with its variables put in; loops with their first value. What
    asks for the output of another command is left out."""
    known: dict[str, str] = {}
    for line in block.replace("\\\n", " ").splitlines():
        rest = line.strip()
        while loop := LOOP.fullmatch(rest):
            name, first, rest = loop.groups()
            known[name] = RANGE.sub(r"\1", first)
        while assigned := ASSIGNED.fullmatch(rest):
            name, value, rest = assigned.groups()
            known[name] = _put_in(value.strip('"'), known)
        for part in re.split(r"; | \| ", _put_in(rest, known)):
            if "$" not in part.replace("$'", ""):
                yield part


def _put_in(text: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known.get(found[1], found[0]), text)


def with_sweep(words: list[str]) -> list[str]:
    """The command with what its sweep varies, where it does not give that itself."""
    names = [word.removeprefix("sweep=") for word in words if word.startswith("sweep=")]
    if "-m" not in words or not names:
        return words
    text = (conf_dir() / "sweep" / f"{names[0]}.yaml").read_text(encoding="utf-8")
    varied = yaml.safe_load(text).get("hydra", {}).get("sweeper", {}).get("params") or {}
    given = {word.partition("=")[0].lstrip("+") for word in words}
    more = [f"{k}={v}" for k, v in varied.items() if k.lstrip("+") not in given]
    return [*words, *more, *(["name=x"] if "name" not in given else [])]  # sweeps may ask Hydra


def test_variables_and_loops_are_put_in() -> None:
    block = (
        'options="a=1 b=$c"\nfor seed in {236..245}; do for gain in paper solve; do\n'
        "  e3rl train seed=$seed \\\n    gain=${gain}_x $options\ndone; done\n"
        "next | xargs -L 1 e3rl x"
    )
    found = [shlex.split(line) for line in command_lines(block) if "e3rl" in line]
    assert found == [["xargs", "-L", "1", "e3rl", "x"]]  # $c is nowhere given
    found = [shlex.split(line) for line in command_lines(f"c=2\n{block}") if "e3rl" in line]
    assert found[0] == ["e3rl", "train", "seed=236", "gain=paper_x", "a=1", "b=2"]


def test_no_command_of_ours_is_left_out_but_in_functions_of_the_shell() -> None:
    ours, left_out = re.compile(r"(?:^|[ /])e3rl "), set()
    for path in PAGES:
        for block in blocks(path.read_text(encoding="utf-8"), "bash"):
            written = sum(map(bool, map(ours.search, block.text.replace("\\\n", " ").splitlines())))
            if written > sum(map(bool, map(ours.search, command_lines(block.text)))):
                left_out.add(path.parent.name)
                assert '"$@"' in block.text
    assert left_out == {"carries_more_policies", "carries_policies"}


def test_what_a_sweep_varies_belongs_to_its_command() -> None:
    words = ["e3rl", "train", "-m", "sweep=carries", "++seed=7"]
    arms = "experiment=grpo,grpo_er,hot,ts,ts_an,budget,e3,dapo"
    assert with_sweep(words) == [*words, arms, "name=x"]
    assert with_sweep(words[:2]) == words[:2]


def test_a_command_that_the_start_of_a_run_would_refuse_is_found() -> None:
    disturbed = "e3rl train experiment=smollm2/ts policy/lora=linear callbacks=disturbed"
    assert "adapters freeze" in (mistake(shlex.split(disturbed)) or "")
    assert mistake(shlex.split(disturbed.replace("linear", "none"))) is None


@pytest.mark.end_to_end
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_no_command_of_a_study_is_refused(path: Path) -> None:
    faults = []
    for block in blocks(path.read_text(encoding="utf-8"), "bash"):
        for line in command_lines(block.text):
            words = with_sweep(shlex.split(line.replace("$'", "'"), comments=True))
            if "FOLDER" in line or not own_command(words):  # a place that the reader has
                continue
            if (fault := mistake(words)) not in (None, UNCHECKED):
                faults.append(f"{shlex.join(words)}: {fault}")
    assert faults == []
