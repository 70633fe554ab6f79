"""What a preflight prints and writes."""

import json

import numpy as np
from samples import sample

from e3rl.readiness.checks import Finding
from e3rl.readiness.pass_rates import predict_group_outcomes
from e3rl.readiness.rendering import (
    preflight_values,
    render_preflight,
    render_solve_rates,
    render_verdict,
)
from e3rl.readiness.rule_ranking import RuleScore

FINE = Finding("signal", "ok", "70% mixed")
DOUBT = Finding("budget", "warn", "hora is better", "take it")
SCORES = [
    RuleScore("hora", 2.0, 1.0, 1.0, 1.0, 1.0),
    RuleScore("uniform", 3.0, 1.5, 1.2, 1.9, 0.6),
]


def test_the_verdict_names_what_failed_or_else_what_is_doubtful() -> None:
    bad = Finding("memory", "fail", "90 GiB", "shard it")
    assert render_verdict([FINE]) == "GO"
    assert render_verdict([FINE, DOUBT]) == "GO, with 1 warnings: budget"
    assert render_verdict([FINE, DOUBT, bad]) == "NO-GO: memory"


def test_the_longest_bar_is_the_fullest_heap() -> None:
    lines = render_solve_rates(sample(right=np.array([0, 0, 0, 2]))).splitlines()[1:]
    assert lines[0].split() == ["never", "#" * 32, "3"]
    assert lines[3].split() == ["50", "to", "75", "%", "#" * 11, "1"]
    assert lines[-1].split() == ["always", "0"]


def test_everything_is_shown_and_remedies_follow() -> None:
    shown = render_preflight(sample(), [FINE, DOUBT], SCORES)
    assert "16 rollouts of 4 training prompts at temperature 1: 50.0% right" in shown
    assert "hora is better. Remedy: take it" in shown
    assert "1.20-1.90" in shown
    assert shown.endswith("GO, with 1 warnings: budget")


def test_the_file_has_counts_by_prompt_and_is_json() -> None:
    seen = sample()
    groups = predict_group_outcomes(seen.right, seen.rollouts, 8)
    values = json.loads(json.dumps(preflight_values(seen, groups, [FINE], SCORES, {"time": "1 h"})))
    assert values["go"] is True
    assert values["prompts"][1] == {"prompt_id": "b", "n": 4, "correct": 2}
    assert values["lengths"]["p50"] == 10
    assert values["groups"]["mixed"]["mean"] == groups.mixed.mean
    assert values["rules"][1]["ratio"] == 1.5
