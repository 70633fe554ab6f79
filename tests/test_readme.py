"""What the README says is true: its commands, its links, its tree and its numbers."""

import importlib.util
import re
import subprocess
from types import ModuleType

import pandas as pd
import pytest

from pages import ROOT, rows, unproven
from test_architecture import ROOMS

README = (ROOT / "README.md").read_text(encoding="utf-8")
ARMS = {
    "GRPO": "grpo",
    "+ entropy bonus (ER)": "grpo_er",
    "+ temperature schedule (TS)": "ts",
    "+ TS + annealing (AN)": "ts_an",
    "+ rollout budget": "budget",
    "E3 (budget + TS + AN)": "e3",
    "constant T = 1.2": "hot",
    "DAPO": "dapo",
}
CORE = ROOT / "experiments" / "carries_core" / "results"
ENDPOINTS = ("primary", "many_tries")  # tables of the core study, in the order of the README's


def test_a_newcomer_reads_it_in_one_go() -> None:
    assert len(README.splitlines()) <= 140
    assert README.index("make train") < README.index("|---|")  # no table before the first run


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


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d*\.\d+", text)]


def test_the_results_are_those_of_the_core_study() -> None:
    tables = {name: pd.read_csv(CORE / f"{name}.csv") for name in ("entropy", *ENDPOINTS)}
    shown = rows(README, "What it shows so far")
    assert [name for name, *_ in shown] == list(ARMS)
    for name, entropy, *differences in shown:
        arm = ARMS[name]
        ends = tables["entropy"].query("arm == @arm")["value"]
        assert numbers(entropy) == pytest.approx(ends.tolist(), abs=0.00051)
        for table, difference in zip(ENDPOINTS, differences, strict=True):
            if arm == "grpo":
                assert difference == ""
                continue
            row = tables[table].query("arm == @arm").iloc[0]
            wanted = [100 * row[f"difference{end}"] for end in ("", "_low", "_high")]
            assert numbers(difference) == pytest.approx(wanted, abs=0.051)
            assert difference.startswith("**") == (row["p_adjusted"] < 0.05)


@pytest.mark.end_to_end
def test_what_is_said_of_the_older_bed_is_what_was_recorded_there() -> None:
    own = contrasts()
    arms = own.group_by_arm(own.load_runs(own.open_runs(own.RUNS).glob("*_experiment-*")))
    ts, below = own.at_equal_tokens(arms)["ts"], own.between(arms["e3"], arms["ts_an"])
    for found in (ts.interval(), below.interval()):
        text = f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        assert text.replace("+0", "+").replace("-0", "-") in README
