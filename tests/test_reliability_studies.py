"""What is said of ended runs and of a long one is what was recorded of them."""

import json
import re
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pages import ROOT
from study_scripts import study_modules

FAULTS = ROOT / "experiments" / "faults"
LONG = ROOT / "experiments" / "long_run"
RANKS = {"one process": 1, "two ranks": 2, "four ranks": 4}


@pytest.fixture(scope="module")
def measure() -> Iterator[ModuleType]:
    with study_modules(FAULTS, "measure") as modules:
        yield modules["measure"]


@pytest.fixture(scope="module")
def faults() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FAULTS / "results.jsonl").read_text().splitlines()]


def test_the_table_of_faults_is_that_of_the_results(measure: ModuleType) -> None:
    assert f"\n{measure.table()}\n" in (FAULTS / "README.md").read_text()


def test_every_run_that_was_ended_went_on_as_the_one_that_nobody_ended(
    measure: ModuleType, faults: list[dict[str, Any]]
) -> None:
    assert {fault["equal"] for fault in faults} == {"yes"}
    assert -999 not in {code for fault in faults for code in fault["codes"]}
    kills = [fault for fault in faults if fault["sent"] == "SIGKILL"]
    assert len(kills) >= 30
    assert {fault["way"] for fault in kills} == set(measure.WAYS)
    for ranks in RANKS.values():
        signals = [
            fault
            for fault in faults
            if fault["sent"] != "SIGKILL" and len(fault["codes"]) == ranks and measure.good(fault)
        ]
        assert len(signals) >= 20
        assert max(fault["gone_s"] for fault in signals) < 30


def test_what_is_not_as_it_should_be_is_told(
    measure: ModuleType, faults: list[dict[str, Any]]
) -> None:
    wrong = [fault for fault in faults if not measure.good(fault)]
    readme = (FAULTS / "README.md").read_text()
    assert f"{len(wrong)} of {len(faults)}" in readme
    assert all(name.startswith("pymp-") for fault in wrong for name in fault["left"])


def test_an_open_port_counts_as_left(measure: ModuleType, monkeypatch: Any, tmp_path: Any) -> None:
    before = measure.shared()
    monkeypatch.setattr(measure.time, "monotonic", iter([0.0, 99.0]).__next__)
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = measure.leftovers(tmp_path, before, [])
        assert f"port {server.getsockname()[1]}" in left


FAULT = {"way": "two ranks, ddp", "sent": "SIGTERM", "rank": 0, "step": 2, "left": []}


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({"codes": [143, 143]}, True),
        ({"codes": [143, -15]}, True),
        ({"codes": [143, 0]}, False),
        ({"codes": [143, 0], "step": 6}, True),
        ({"codes": [0, 0], "step": 6}, True),
        ({"codes": [143, 1]}, False),
        ({"codes": [143, 1], "step": 0}, True),
        ({"codes": [143, -999]}, False),
        ({"codes": [143, 143], "left": ["pymp-a"]}, False),
        ({"codes": [143, 143], "equal": "ledgers differ"}, False),
        ({"codes": [-9, 1], "sent": "SIGKILL"}, True),
        ({"codes": [1, 1], "sent": "SIGKILL"}, False),
        ({"codes": [-9, 143], "sent": "SIGKILL", "rank": -1}, False),
    ],
)
def test_how_a_run_should_end(changed: dict[str, Any], good: bool, measure: ModuleType) -> None:
    assert measure.good({**FAULT, "equal": "yes", **changed}) == good


def test_every_promise_of_the_reliability_page_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)`", page)
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []
    for title in ("Faults", "What fails loudly"):
        section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
        assert len(rows) > 8
        assert [row for row in rows if not re.search(r"`[\w/]*test_\w+\.py`[^|]*\|$", row)] == []


def test_ten_thousand_hostile_answers_were_judged_within_a_minute() -> None:
    found = json.loads((ROOT / "experiments" / "answer_verification" / "hostile.json").read_text())
    assert found["answers"] == sum(found["statuses"].values()) == 10_000
    assert found["executed"] == []
    assert not found["statuses"].keys() & {"correct", "error"}
    assert found["clock_s"] <= 60
    assert found["peak_mib"] < 1024


def test_long_runs_keep_their_memory_their_handles_and_their_pace() -> None:
    results = json.loads((LONG / "results.json").read_text())
    readme = (LONG / "README.md").read_text()
    with study_modules(LONG, "measure") as modules:
        assert f"\n{modules['measure'].table(results)}\n" in readme
    for found in results.values():
        assert found["steps"] >= 2000
        assert found["memory"][2] < 1  # all of the interval
        assert found.get("others", [0, 0, 0])[2] < 1
        for name in ("handles", "threads", "children"):
            assert found[name][1] - found[name][0] <= found["steps"] // 8000
        first, last = found["step_s"]
        assert last < 1.05 * first
