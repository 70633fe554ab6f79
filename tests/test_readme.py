"""What the README says is true: its commands, its links, its tree and its numbers."""

import importlib.util
import re
import subprocess
from types import ModuleType

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
}


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


@pytest.mark.end_to_end
def test_the_results_are_those_of_the_recorded_runs() -> None:
    own = contrasts()
    arms = own.group_by_arm(own.load_runs(own.RUNS.glob("*_experiment-*")))
    levels, differences = own.levels_at_equal_tokens(arms), own.at_equal_tokens(arms)
    for name, entropy, level, difference in rows(README, "What it shows so far"):
        arm = ARMS[name]
        train = [run.train["policy/entropy"] for run in arms[arm]]
        ends = [sum(x.iloc[part].mean() for x in train) / len(train) for part in FIRST_AND_LAST]
        assert numbers(entropy) == pytest.approx(ends, abs=0.0051)
        found = levels[arm]
        shown = [100 * each for each in (found.mean, found.low, found.high)]
        assert numbers(level) == pytest.approx(shown, abs=0.051)
        if arm != "grpo":
            found = differences[arm].interval()
            shown = [found.mean, found.low, found.high]
            assert numbers(difference) == pytest.approx(shown, abs=0.0051)
    below = own.between(arms["e3"], arms["ts_an"]).interval()
    assert f"{below.mean:.2f} [{below.low:.2f}, {below.high:.2f}]".replace("-0", "-") in README
    corrected = {arm: p for (arm, _), _, p in own.holm(differences)}
    assert (round(corrected["ts_an"], 3), round(corrected["ts"], 3)) == (0.008, 0.008)


FIRST_AND_LAST = (slice(0, 8), slice(-10, None))  # rollout steps
