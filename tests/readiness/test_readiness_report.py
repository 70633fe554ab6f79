"""What a preflight prints and writes."""

import json

import numpy as np
from samples import sample

from e3rl.readiness.finding import Finding
from e3rl.readiness.pass_rates import believed, dead_groups
from e3rl.readiness.report import as_values, bars, render, verdict
from e3rl.readiness.rules import Worth

FINE = Finding("signal", "ok", "70% mixed")
DOUBT = Finding("budget", "warn", "hora is better", "take it")
WORTHS = [
    Worth("hora", 2.0, 1.0, 1.0, 1.0, 1.0),
    Worth("uniform", 3.0, 1.5, 1.2, 1.9, 0.6),
]


def test_the_verdict_names_what_failed_or_else_what_is_doubtful() -> None:
    bad = Finding("memory", "fail", "90 GiB", "shard it")
    assert verdict([FINE]) == "GO"
    assert verdict([FINE, DOUBT]) == "GO, with 1 warnings: budget"
    assert verdict([FINE, DOUBT, bad]) == "NO-GO: memory"


def test_the_longest_bar_is_the_fullest_heap() -> None:
    lines = bars(sample(right=np.array([0, 0, 0, 2]))).splitlines()[1:]
    assert lines[0].split() == ["never", "#" * 32, "3"]
    assert lines[3].split() == ["50", "to", "75", "%", "#" * 11, "1"]
    assert lines[-1].split() == ["always", "0"]


def test_everything_is_shown_and_remedies_follow() -> None:
    shown = render(sample(), [FINE, DOUBT], WORTHS)
    assert "16 rollouts of 4 training prompts at temperature 1: 50.0% right" in shown
    assert "hora is better. Remedy: take it" in shown
    assert "1.20-1.90" in shown
    assert shown.endswith("GO, with 1 warnings: budget")


def test_the_file_has_counts_by_prompt_and_is_json() -> None:
    seen = sample()
    dead = dead_groups(believed(seen.right, seen.rollouts), 8)
    values = json.loads(json.dumps(as_values(seen, dead, [FINE], WORTHS, {"time": "1 h"})))
    assert values["go"] is True
    assert values["prompts"][1] == {"prompt_id": "b", "n": 4, "correct": 2}
    assert values["lengths"]["p50"] == 10
    assert values["groups"]["mixed"]["mean"] == dead.mixed.mean
    assert values["rules"][1]["ratio"] == 1.5
