"""What the README says is true: its commands, its links, its tree and its numbers."""

import importlib.util
import re
import subprocess
from types import ModuleType

import pandas as pd
import pytest

from pages import ROOT, unproven
from test_architecture import ROOMS

README = (ROOT / "README.md").read_text(encoding="utf-8")
CORE = ROOT / "experiments" / "carries_core" / "results"


def test_a_newcomer_reads_it_in_one_go() -> None:
    assert len(README.splitlines()) <= 140
    assert "|---|" not in README  # tables are in the studies


@pytest.mark.end_to_end
def test_every_command_would_start() -> None:
    assert unproven(README) == []


def test_links_of_tracked_pages_lead_to_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    dead = [
        f"{page}: {link}"
        for page in listed.stdout.split()
        for link in re.findall(r"\]\(([^)#\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))
        if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert dead == []


def test_the_tree_has_every_room() -> None:
    tree = README.split("\n## What lives where\n")[1].split("```")[1]
    shown = set(re.findall(r"(?m)(?:^  |  )(\w+)/", tree))
    folders = {room.split(".")[0] for room in ROOMS if (ROOT / "src" / "e3rl" / room).is_dir()}
    assert shown == folders | {"analysis"}


def contrasts() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "contrasts", ROOT / "experiments" / "contrasts.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("table", "arm", "words"),
    [
        ("many_tries", "budget", "pass@16 {}, on [five fresh seeds]"),
        ("primary", "e3", "is below GRPO in pass@1, {}"),
    ],
)
def test_the_results_are_those_of_the_core_study(table: str, arm: str, words: str) -> None:
    row = pd.read_csv(CORE / f"{table}.csv").query("arm == @arm").iloc[0]
    mean, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
    assert words.format(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]") in README
    assert row["p_adjusted"] < 0.05
    assert row["seeds"] == 10
    assert row["problems"] == 1024


@pytest.mark.parametrize(
    ("study", "table", "arm", "words"),
    [
        ("carries_tuned", "many_tries", "budget", "on [five fresh seeds]({}) "),
        (
            "carries_replication",
            "primary",
            "pass_at_4",
            "[fresh ones]({}), pass@4's advantages by ",
        ),
    ],
)
def test_what_was_found_again_is_what_the_fresh_seeds_have(
    study: str, table: str, arm: str, words: str
) -> None:
    results = ROOT / "experiments" / study / "results"
    row = pd.read_csv(results / f"{table}.csv").query("arm == @arm").iloc[0]
    mean, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
    said = words.format(f"experiments/{study}/README.md")
    assert f"{said}{mean:+.1f} [{low:+.1f}, {high:+.1f}]" in README
    assert row["p_adjusted"] < 0.05
    assert row["seeds"] == 5


def test_what_is_not_told_at_equal_entropy_is_said_beside_it() -> None:
    table = ROOT / "experiments" / "carries_policies" / "results" / "pass_at_16.csv"
    row = pd.read_csv(table).query("arm == 'budget'").iloc[0]
    mean, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
    assert f"six seeds, {mean:+.1f} [{low:+.1f}, {high:+.1f}], not told" in README
    assert row["p_adjusted"] > 0.05
    assert row["seeds"] == 6


@pytest.mark.parametrize("measure", ["pass@1", "pass@16"])
def test_what_grpo_learns_is_what_the_bed_has(measure: str) -> None:
    bed = (ROOT / "experiments" / "carries_bed" / "README.md").read_text(encoding="utf-8")
    (gain,) = re.findall(rf"^\| {measure} \|[^|]+\|[^|]+\| (\S+) (\[.+\]) \|$", bed, flags=re.M)
    assert f"{measure} {gain[0]}" in README
    assert gain[1] in README


def test_no_schedule_is_told_from_its_control_where_that_is_said() -> None:
    primary = pd.read_csv(CORE / "primary.csv")
    assert (primary[primary["arm"].isin(["ts", "ts_an"])]["p_adjusted"] > 0.05).all()
    entropy = pd.read_csv(CORE / "entropy.csv").query("arm == 'grpo'")["value"].tolist()
    assert entropy[-1] >= entropy[0]


@pytest.mark.end_to_end
def test_what_is_said_of_the_older_bed_is_what_was_recorded_there() -> None:
    own = contrasts()
    arms = own.group_by_arm(own.load_runs(own.open_runs(own.RUNS).glob("*_experiment-*")))
    found = own.at_equal_tokens(arms)["ts"].interval()
    text = f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
    assert text.replace("+0", "+") in README
