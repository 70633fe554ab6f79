"""What a command says of mistakes in its settings, and of bugs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import CompactHydraException

from compositions import composed
from e3rl.config.command import explain_number_as_choice, explain_refusal

SOURCE = Path(__file__).parents[2] / "src"
# A command that knows Mistake as a mistake, and raises what CASE says.
COMMAND = """
import os
from e3rl.config.command import configured
from e3rl.config.composition import ConfigurationError

class Mistake(Exception): ...

@configured("simulate", Mistake)
def main(cfg):
    print("inherited:", os.environ.get("HYDRA_FULL_ERROR"))
    if cfg.seed == 7:
        return
    raise {"refused": ConfigurationError, "mistake": Mistake, "bug": ValueError}[
        os.environ["CASE"]]("n=0: use 1 or more")

main()
"""


def call(folder: Path, case: str, *overrides: str, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "command.py").write_text(COMMAND)
    environment = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
    return subprocess.run(
        [sys.executable, "command.py", *overrides],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(SOURCE), "CASE": case} | more,
        cwd=folder,
        timeout=120,
    )


def refusal(*overrides: str, root: str = "train") -> str:
    """What is said of overrides that cannot be composed."""
    with pytest.raises(CompactHydraException) as caught:
        composed(*overrides, root=root)
    return explain_refusal(caught.value, overrides)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("budget=knapsak", "budget=knapsack"),
        ("experiment=grpoo", "experiment=grpo"),
        ("experiment=cells/hoter", "experiment=cells/hotter"),
        ("experiment=hotter", "experiment=cells/hotter"),
        ("experiment=paper/7b/e33", "experiment=paper/7b/e3"),
        ("experiment=papr/7b/e3", "experiment=paper/7b/e3"),
        ("policy/lora=lineaar", "policy/lora=linear"),
        ("hydra/sweeper=tpee", "hydra/sweeper=tpe"),
        ("+problems@data.sets.x=e3_trainn", "+problems@data.sets.x=e3_train"),
    ],
)
def test_a_choice_that_there_is_none_of_is_told_with_the_nearest_one(
    given: str, meant: str
) -> None:
    key, _, choice = given.partition("=")
    found = refusal(given)
    assert found.startswith(f"{key}={choice} is no choice: did you mean {meant}? There are ")
    assert "search path" not in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defaults:\n  - override /budget: hora\n", "begins with the line `# @package _global_`"),
        ("name: x\n", "experiment is no setting: a file of conf/experiment begins with the line"),
        (
            "# @package _global_\ndefaults:\n  - budget: hora\n",
            "another group is chosen by `- override /budget: hora`",
        ),
        (
            "# @package _global_\ndefaults:\n  - override budget: hora\n",
            "In a file of conf/experiment, write `- override /budget: NAME`",
        ),
    ],
)
@pytest.mark.end_to_end
def test_what_an_experiment_file_lacks_is_said(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(text)
    command = [sys.executable, "-m", "e3rl.train", "--config-dir", str(tmp_path)]
    command += ["experiment=own", "debug=plan", "engine=transformers"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_choices_are_those_of_the_folder_that_was_named() -> None:
    assert "are paper/7b/base, paper/7b/budget, " in refusal("experiment=paper/7b/e33")
    folders = "cells, losses, paper, shootout, smollm2"
    assert f", ts, ts_an, and more in {folders}" in refusal("experiment=xyz")


def test_groups_in_the_folder_of_a_group_are_none_of_its_choices() -> None:
    found = refusal("temperature=papr")
    assert found.endswith("entropy_target_annealed, fixed, multi_temperature, piecewise")


def test_a_choice_like_no_other_gets_them_all() -> None:
    found = refusal("budget=qqq")
    assert found.startswith("budget=qqq is no choice: there are cero, ")
    assert "did you mean" not in found


def test_the_choice_that_is_wrong_is_named_among_several() -> None:
    found = refusal("budget=knapsack", "policy/lora=linear", "loss=grppo", "policy=embedded")
    assert found.startswith("loss=grppo is no choice: did you mean loss=grpo? ")


def test_a_group_that_there_is_none_of_is_told_with_the_nearest_one() -> None:
    expected = "policy/loraa is no group of settings: did you mean policy/lora?"
    assert refusal("policy/loraa=linear") == expected
    assert "there are advantage, budget, " in refusal("zzz/yyy=1")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("table.promts=64", "table.promts is no setting: did you mean table.prompts?"),
        (
            "budgets.gvm.weigth=vip",
            "budgets.gvm.weigth is no setting: did you mean budgets.gvm.wei",
        ),
        ("promts_per_step=3", "promts_per_step is no setting: did you mean prompts_per_step?"),
        ("table.zzzz=3", "table.zzzz is no setting: there are prompts, impossible, trivial, shape"),
    ],
)
def test_a_setting_that_there_is_none_of_is_told_with_the_nearest_one(
    given: str, told: str, tmp_path: Path
) -> None:
    done = call(tmp_path, "bug", given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {told}")
    assert done.stderr.count("\n") == 1


def test_a_number_is_no_choice_of_a_group() -> None:
    found = explain_number_as_choice(["seed=1", "budget=knapsack", "temperature=0.8"], "train")
    assert found is not None
    assert found.startswith("temperature=0.8: temperature is a group, of which a file is chosen by")
    assert "there are entropy_target, entropy_target_annealed, fixed, multi_temperature, " in found
    found = explain_number_as_choice(["temperature=1"], "evaluate")
    assert found is not None
    assert "did you mean the setting temperatures? There are" in found
    assert explain_number_as_choice(["seed=1", "budget=knapsack"], "train") is None


def test_a_number_as_a_choice_is_told_alone(tmp_path: Path) -> None:
    done = call(tmp_path, "bug", "hydra/sweeper=3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: hydra/sweeper=3: hydra/sweeper is a group, of which a ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("case", ["refused", "mistake"])
def test_a_mistake_is_told_alone(case: str, tmp_path: Path) -> None:
    done = call(tmp_path, case)
    assert (done.returncode, done.stderr) == (2, "error: n=0: use 1 or more\n")
    assert done.stdout == "inherited: None\n"


def test_what_cannot_be_composed_is_told_alone(tmp_path: Path) -> None:
    done = call(tmp_path, "bug", "hydra/sweeper=tpee")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: hydra/sweeper=tpee is no choice: did you mean hydra/sweeper=tpe")


def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    done = call(tmp_path, "bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert 'command.py", line' in done.stderr
    assert "ValueError: n=0: use 1 or more" in done.stderr


def test_who_asks_for_them_gets_tracebacks_of_mistakes_too(tmp_path: Path) -> None:
    done = call(tmp_path, "mistake", HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Mistake: n=0: use 1 or more" in done.stderr
    assert "Traceback" in done.stderr
    assert done.stdout == "inherited: 1\n"


@pytest.mark.parametrize("case", ["refused", "mistake", "bug"])
def test_a_job_of_a_sweep_that_fails_stops_no_other_and_is_not_hidden(
    case: str, tmp_path: Path
) -> None:
    done = call(tmp_path, case, "-m", "seed=5,6,7", "hydra.sweep.dir=sweep")
    assert done.returncode == 1
    assert done.stdout.count("inherited: None\n") == 3
    assert "n=0: use 1 or more" in done.stderr
    assert ("Traceback" in done.stderr) == (case == "bug")


def test_what_a_file_does_not_write_is_given_with_a_plus() -> None:
    """`Columns` has a level, which conf/data does not mention."""
    given = ("data=problem_files", "data.train.path=a.jsonl", "data.validation.path=b.jsonl")
    told = refusal(*given, "data.train.columns.level=null")
    plus = told.partition("given with a plus, ")[2].replace("...", "null")
    assert plus == "+data.train.columns.level=null"
    assert composed(*given, plus).data.train.columns.level is None
