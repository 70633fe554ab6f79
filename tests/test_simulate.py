"""The command that tries budget rules on a table of pass rates."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from compositions import composed
from e3rl.config.composition import ConfigurationError, conf_dir
from e3rl.simulate import simulate

pytestmark = pytest.mark.end_to_end

SMALL = ("table.prompts=96", "prompts_per_step=24", "epochs=3")
STUDY = conf_dir().parent / "experiments/runs"
BUDGET, E3 = STUDY / "seed-1_experiment-budget", STUDY / "seed-1_experiment-e3"


def run(tmp_path: Path, *overrides: str) -> list[dict[str, Any]]:
    return simulate(composed(f"out={tmp_path}", *SMALL, *overrides, root="simulate"))


def test_every_budget_of_conf_is_simulated_at_the_same_cap(tmp_path: Path) -> None:
    rows = run(tmp_path)
    targets = {node._target_ for node in composed(root="simulate").budgets.values()}
    files = (conf_dir() / "budget").glob("*.yaml")
    assert {target.split(".")[-2] for target in targets} == {file.stem for file in files}
    assert [row["epoch"] for row in rows] == [0, 1, 2] * (len(rows) // 3)
    assert all(row["spent"] <= 8 * 96 for row in rows)
    spent = {row["budget"]: row["spent"] for row in rows if row["epoch"] == 2}
    exact = ("uniform", "e3_rank", "knapsack", "hora", "vip", "vip_drgrpo", "gvm", "cures")
    exact += ("mopps", "vcrl")
    assert {spent[name] for name in exact} == {8 * 96}


def test_tables_of_all_passes_are_written_and_the_last_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(tmp_path, "budgets.knapsack.n_high=12")
    summary = pd.read_csv(tmp_path / "summary.csv")
    assert summary["budget"].tolist() == [row["budget"] for row in rows]
    histogram = pd.read_csv(tmp_path / "histogram.csv")
    assert (histogram.groupby(["budget", "epoch"])["prompts"].sum() == 96).all()
    assert histogram.loc[histogram["budget"] == "knapsack", "n"].max() <= 12
    shares = pd.read_csv(tmp_path / "by_pass_rate.csv").groupby(["budget", "epoch"])["share"].sum()
    assert shares.to_numpy() == pytest.approx(1)
    printed = capsys.readouterr().out
    assert all(f"\n {name} " in printed for name in summary["budget"].unique())
    assert "pass 3 of 3" in printed


def test_pass_rates_come_from_recorded_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(
        tmp_path, f"runs=[{STUDY}/seed-1_experiment-budget]", "epochs=1", "prompts_per_step=32"
    )
    assert "2048 prompts, pass 1 of 1" in capsys.readouterr().out
    uniform = next(row for row in rows if row["budget"] == "uniform")
    assert uniform["spent"] == 8 * 2048
    assert 0 < uniform["all_wrong"] < uniform["mixed"]


def test_cells_of_arms_rules_and_losses_are_written_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(
        tmp_path,
        f"runs=[{BUDGET},{E3}]",
        "by_arm=true",
        "rules=[uniform,knapsack]",
        "epochs=2",
    )
    assert [(row["arm"], row["budget"], row["epoch"]) for row in rows] == [
        (arm, budget, epoch)
        for arm in ("budget", "e3")
        for budget in ("uniform", "knapsack")
        for epoch in (0, 1)
    ]
    table = pd.read_csv(tmp_path / "cells.csv")
    assert table["noise"].is_monotonic_increasing
    assert set(table.groupby(["arm", "budget"])["loss"].apply(frozenset)) == {
        frozenset({"grpo", "rloo_by_prompt"})
    }
    even = table[table["budget"] == "uniform"]
    assert len(even) == 4
    assert even["variance"].to_numpy() == pytest.approx(1)
    assert len((tmp_path / "cells.md").read_text().splitlines()) == 2 + 8 + 2
    assert "budget 2048, e3 2048 prompts" in capsys.readouterr().out


def test_arms_need_runs_and_rules_a_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="by_arm=true compares recorded arms"):
        run(tmp_path, "by_arm=true")
    with pytest.raises(ValueError, match=r"rules=\['best'\]: use some of uniform, e3_rank"):
        run(tmp_path, "rules=[uniform,best]")


def test_a_folder_without_prompts_among_others_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match=r"^runs=\['[^']*other'\]: no prompts\.jsonl in"):
        run(tmp_path, f"runs=[{BUDGET},{tmp_path / 'other'}]")


def test_a_setting_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^epoch is no setting: did you mean epochs\?$"):
        run(tmp_path, "+epoch=2")
    with pytest.raises(ConfigurationError, match=r"^budgets\.hora\.high is no .*\.hora\.n_high"):
        run(tmp_path, "+budgets.hora.high=2")


def test_folders_without_prompts_end_with_a_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e3rl.simulate", f"runs=[{tmp_path}]"]
    command += [f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: runs=[")
    assert "no prompts.jsonl" in done.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rollouts_per_prompt=4.5", "rollouts_per_prompt=4.5: input should be a valid integer"),
        ("epochs=0", "epochs=0: input should be greater than 0"),
        ("prompts_per_step=-1", "prompts_per_step=-1: input should be greater than 0"),
        ("seed=abc", "seed='abc': input should be a valid integer"),
        ("learning=fast", "learning='fast': input should be a valid number"),
        ("table.prompts=1e3", "table.prompts=1000.0: input should be a valid integer"),
        ("table.impossible=abc", "table.impossible='abc': input should be a valid number"),
        ("runs=nowhere", r"runs=nowhere is no list: write runs=\[nowhere\]"),
        ("rules=hora", r"rules=hora is no list: write rules=\[hora\]"),
    ],
)
def test_values_of_another_kind_are_named(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        run(tmp_path, setting)


def test_a_file_in_place_of_the_folder_is_named_before_anything_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("mine")
    with pytest.raises(ValueError, match=f"^out={file}: {file} is a file and no folder"):
        run(file)
    assert file.read_text() == "mine"
