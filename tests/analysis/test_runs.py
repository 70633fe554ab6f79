import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from recorded_runs import Size, write_run

from e3rl.analysis.sources.runs import (
    Run,
    group_by_arm,
    kept_with_run,
    load_run,
    load_runs,
    rows_of_kind,
)
from e3rl.analysis.sources.source import read_runs
from e3rl.ledger.ledger import Ledger, pack, read_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The smallest run folder, written by hand."""
    (tmp_path / "config.yaml").write_text("name: grpo\nseed: 3\n")
    with Ledger(tmp_path / "metrics.jsonl") as ledger:
        ledger.append({"kind": "validation", "rollout_step": 0, "epoch": 0, "val/t1/pass@1": 0.25})
        ledger.append({"kind": "train", "rollout_step": 0, "epoch": 0, "policy/loss": 0.5})
        ledger.append({"kind": "train", "rollout_step": 1, "epoch": 0, "policy/loss": None})
    with Ledger(tmp_path / "validation.jsonl") as ledger:
        row = {"problem_id": ["a", "b"], "source": ["x", "y"], "n": [4, 4], "correct": [1, 3]}
        totals = {"entropy_sum": 3.0, "tokens": 12}
        ledger.append({"rollout_step": 0, "name": "t1", "temperature": 1.0, **row, **totals})
        nothing = {"entropy_sum": None, "tokens": 12}
        ledger.append({"rollout_step": 0, "name": "live", "temperature": 1.2, **row, **nothing})
    with Ledger(tmp_path / "prompts.jsonl") as ledger:
        row = {"prompt_id": ["p", "q"], "source": ["x", "x"], "n": [6, 10], "correct": [0, 9]}
        ledger.append({"rollout_step": 0, "epoch": 0, **row, "rank": [None, 0.5]})
    return tmp_path


def test_what_is_made_of_a_run_is_made_once_and_anew_where_its_tables_are_others(
    folder: Path,
) -> None:
    asked = []

    @kept_with_run
    def rows_of(run: Run, name: str) -> int:
        asked.append(name)
        return int((run.problems["name"] == name).sum())

    run = load_run(folder)
    assert [rows_of(run, "t1"), rows_of(run, "t1"), rows_of(run, "live")] == [2, 2, 2]
    assert asked == ["t1", "live"]
    assert rows_of(replace(run, problems=run.problems.iloc[:1]), "t1") == 1
    assert rows_of(run, "t1") == 2


@pytest.mark.end_to_end
def test_analysis_loads_neither_torch_nor_lightning() -> None:
    script = (
        "import sys, e3rl.analysis.sources.runs, e3rl.analysis.figures.run_figures\n"
        "import e3rl.analysis.tables.arm_table\n"
        "print({'torch', 'lightning', 'transformers', 'matplotlib.pyplot'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"


def test_tables_hold_what_the_files_say(folder: Path) -> None:
    run = load_run(folder)
    assert (run.name, run.seed, run.path, run.summary) == ("grpo", 3, folder, None)
    assert run.config == {"name": "grpo", "seed": 3}
    assert list(run.train.columns) == ["rollout_step", "epoch", "policy/loss"]
    assert run.train["policy/loss"].isna().tolist() == [False, True]
    assert run.validation["val/t1/pass@1"].tolist() == [0.25]
    assert run.evaluations["name"].tolist() == ["t1", "live"]
    assert run.evaluations["entropy"].tolist()[0] == 0.25  # 3 nats over 12 tokens
    assert run.evaluations["entropy"].isna().tolist() == [False, True]
    problems = run.problems[run.problems["name"] == "t1"]
    columns = ["problem_id", "source", "n", "correct"]
    assert problems[columns].values.tolist() == [["a", "x", 4, 1], ["b", "y", 4, 3]]
    assert run.prompts["n"].tolist() == [6, 10]
    assert run.prompts["rank"].isna().tolist() == [True, False]


def test_packed_ledgers_give_the_same_tables(folder: Path) -> None:
    plain = load_run(folder)
    for name in ("metrics", "validation", "prompts"):
        pack(folder / f"{name}.jsonl", read_rows(folder / f"{name}.jsonl"))
    assert not list(folder.glob("*.jsonl"))
    (packed,) = load_runs(folder)
    for table in ("train", "validation", "evaluations", "problems", "prompts"):
        assert_frame_equal(getattr(packed, table), getattr(plain, table), check_exact=True)
    assert read_runs(folder)[0].path == folder


def test_repeated_validation_of_a_step_counts_once_and_the_last_stands(folder: Path) -> None:
    row = {"problem_id": ["a"], "source": ["x"], "n": [4], "correct": [2]}
    totals = {"entropy_sum": 1.0, "tokens": 2}
    with Ledger(folder / "validation.jsonl") as ledger:
        ledger.append({"rollout_step": 0, "name": "t1", "temperature": 1.0, **row, **totals})
    run = load_run(folder)
    assert run.problems.query("name == 't1'")["correct"].tolist() == [2]
    assert run.evaluations.query("name == 't1'")["entropy"].tolist() == [0.5]


def test_run_without_validation_has_empty_tables(folder: Path) -> None:
    (folder / "validation.jsonl").unlink()
    (folder / "prompts.jsonl").unlink()
    run = load_run(folder)
    assert run.problems.empty
    assert run.prompts.empty
    assert {"name", "n", "correct"} <= set(run.problems.columns)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        load_run(folder)


def test_config_without_arm_is_refused(folder: Path) -> None:
    (folder / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(ValueError, match="top-level keys `name` and `seed`"):
        load_run(folder)


@pytest.mark.parametrize("seed", ["null", "first", "1.7", "true"])
def test_a_seed_that_is_no_whole_number_is_named_with_its_file(folder: Path, seed: str) -> None:
    (folder / "config.yaml").write_text(f"name: grpo\nseed: {seed}\n")
    with pytest.raises(ValueError, match=r"config\.yaml: seed=.* is to be a whole number"):
        load_run(folder)


def test_a_name_that_reads_like_a_mean_of_arms_is_refused(folder: Path) -> None:
    (folder / "config.yaml").write_text("name: ts&an\nseed: 3\n")
    run = load_run(folder)
    message = rf"{folder} is called 'ts&an', and & stands between arms whose mean is compared: give"
    with pytest.raises(ValueError, match=message):
        group_by_arm([run])


def test_lists_of_unequal_length_are_named(folder: Path) -> None:
    row = {"prompt_id": ["p"], "source": ["x"], "n": [6, 10], "correct": [0], "rank": [None]}
    with Ledger(folder / "prompts.jsonl") as ledger:
        ledger.append({"rollout_step": 7, "epoch": 0, **row})
    with pytest.raises(ValueError, match=r"prompts\.jsonl, rollout_step 7: list lengths .*'n': 2"):
        load_run(folder)


def test_runs_below_a_root_come_in_the_order_of_the_arms(tmp_path: Path) -> None:
    size = Size(steps=2, prompts=2, problems=3, samples=2, every=1)
    for arm, seed in [("zeta", 1), ("e3", 2), ("e3", 1), ("grpo", 1), ("alpha", 1)]:
        write_run(tmp_path / arm / f"seed={seed}", arm, seed, size)
    runs = load_runs(tmp_path)
    assert [(run.name, run.seed) for run in runs] == [
        ("grpo", 1),
        ("e3", 1),
        ("e3", 2),
        ("alpha", 1),
        ("zeta", 1),
    ]
    arms = group_by_arm(list(reversed(runs)))
    assert list(arms) == ["grpo", "e3", "alpha", "zeta"]
    assert [run.seed for run in arms["e3"]] == [1, 2]
    picked = load_runs([tmp_path / "e3" / "seed=2", tmp_path / "grpo" / "seed=1"])
    assert [run.name for run in picked] == ["grpo", "e3"]


def test_a_run_that_two_sources_hold_counts_once(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"seed={seed}", "grpo", seed, Size(steps=8))
    within = tmp_path / "seed=2" / ".." / "seed=2"
    assert [run.seed for run in read_runs([tmp_path, within])] == [1, 2]


def test_root_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run folder"):
        load_runs(tmp_path)


def test_summary_is_read(run_folder: Path, run: Run, tmp_path: Path) -> None:
    assert run.summary == json.loads((run_folder / "summary.json").read_text())
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    assert load_run(copy).train.equals(run.train)


@pytest.mark.parametrize("text", ['{"name": "gr', "[1, 2]"])
def test_a_damaged_summary_is_named(run_folder: Path, tmp_path: Path, text: str) -> None:
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    (copy / "summary.json").write_text(text)
    with pytest.raises(ValueError, match=r"copy/summary\.json is damaged .* counts as unfinished"):
        load_run(copy)


def test_a_kind_of_which_there_is_no_row_has_steps_and_no_row() -> None:
    found = rows_of_kind(pd.DataFrame({"kind": ["train"], "rollout_step": [0]}), "validation")
    assert (list(found.columns), len(found)) == (["rollout_step"], 0)
