"""What an evaluation may write over, and what it may not."""

import json
from pathlib import Path

import pytest

from e3rl.config.composition import ConfigurationError
from e3rl.evaluation.results import check_replaceable

ROW = {"model": "embedded", "set": "carry", "rollout_step": 0}


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_folder_of_results_or_without_any_is_written_to(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "new")
    check_replaceable(tmp_path)
    write(tmp_path, validation__jsonl=json.dumps(ROW) + "\n", summary__json="[]", table__md="| a |")
    check_replaceable(tmp_path)


@pytest.mark.parametrize("name", ["config__yaml", "metrics__jsonl"])
def test_a_run_keeps_its_counts_and_its_summary(tmp_path: Path, name: str) -> None:
    write(tmp_path, validation__jsonl=json.dumps(ROW) + "\n", **{name: ""})
    with pytest.raises(ConfigurationError, match=r"is a run's folder.*give another out=FOLDER"):
        check_replaceable(tmp_path)


@pytest.mark.parametrize("text", ['{"question": "1+1", "answer": "2"}\n', "no json\n", "[1]\n"])
def test_somebodys_problems_are_not_replaced(tmp_path: Path, text: str) -> None:
    write(tmp_path, validation__jsonl=text)
    with pytest.raises(ConfigurationError, match=r"validation\.jsonl is of no evaluation"):
        check_replaceable(tmp_path)


@pytest.mark.parametrize("name", ["summary.json", "results.csv", "table.tex", "pass_at_k.png"])
def test_no_file_of_a_results_name_is_replaced_beside_no_results(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"{name} is of no evaluation"):
        check_replaceable(tmp_path)
