"""Every check at its limits, on numbers made by hand."""

import math

import numpy as np
import pytest
from samples import sample

from e3rl.readiness import checks
from e3rl.readiness.answer_test import AnswerTestResult
from e3rl.readiness.checks import Finding, grade, is_go
from e3rl.readiness.pass_rates import GroupOutcomes
from e3rl.readiness.rule_ranking import RuleScore
from e3rl.readiness.sample import Mismatch
from e3rl.statistics.interval import Interval


def groups(wrong: float, right: float) -> GroupOutcomes:
    return GroupOutcomes(
        *(Interval(x, x - 0.02, x + 0.02, 0.95) for x in (wrong, right, 1 - wrong - right))
    )


def test_levels_follow_the_limits_and_a_figure_that_is_none_fails() -> None:
    levels = [grade("x", value, 1.0, 2.0, "", "").level for value in (1.0, 1.1, 2.0, 2.1, math.nan)]
    assert levels == ["ok", "warn", "warn", "fail", "fail"]


def test_warnings_let_a_run_start_and_failures_do_not() -> None:
    ok, warn, fail = (Finding("x", level, "") for level in ("ok", "warn", "fail"))
    assert is_go([ok, warn])
    assert not is_go([ok, warn, fail])


def test_signal_needs_mixed_groups() -> None:
    found = checks.check_signal(sample(), groups(0.2, 0.1), 8)
    assert found.level == "ok"
    assert found.says == (
        "70% [68%, 72%] of groups of 8 will be mixed, 20% all wrong, 10% all right"
    )
    assert checks.check_signal(sample(), groups(0.75, 0.05), 8).level == "warn"
    hard, easy = (
        checks.check_signal(sample(), each, 8) for each in (groups(0.96, 0), groups(0, 0.96))
    )
    assert (hard.level, easy.level) == ("fail", "fail")
    assert "easier problems" in hard.remedy
    assert "harder problems" in easy.remedy


@pytest.mark.parametrize("right", [0, 4])
def test_a_sample_without_right_or_without_wrong_rollouts_is_no_go(right: int) -> None:
    found = checks.check_signal(sample(right=np.full(4, right)), groups(0.3, 0.3), 8)
    assert found.level == "fail"


def test_truncation_is_counted_over_rollouts() -> None:
    levels = []
    for cut in (1, 3, 9):
        found = checks.check_truncation(sample(truncated=np.arange(16) < cut), 48)
        levels.append(found.level)
    assert levels == ["ok", "warn", "fail"]
    assert found.says == "56.2% of completions reach max_new_tokens=48"


def test_format_looks_at_completions_that_end() -> None:
    cut = np.arange(16) < 8
    levels = []
    for silent in (8, 10, 16):  # of the eight that end: 0, 2 and 8
        found = checks.check_format(sample(truncated=cut, answered=np.arange(16) >= silent))
        levels.append(found.level)
    assert levels == ["ok", "warn", "fail"]
    assert checks.check_format(sample(truncated=np.ones(16, dtype=bool))).level == "ok"


def test_verdicts_must_be_judgements_and_come_in_time() -> None:
    assert checks.check_verdicts(sample()).level == "ok"
    lost = {"correct": 8, "wrong": 7, "timeout": 1}
    assert checks.check_verdicts(sample(statuses=lost)).level == "warn"
    assert checks.check_verdicts(sample(statuses={"wrong": 13, "error": 3})).level == "fail"
    slow = checks.check_verdicts(sample(generation_s=3.0, reward_s=1.0))
    assert slow.level == "warn"
    assert "takes 25%" in slow.says


def test_answers_fail_where_a_boxed_gold_does_not_score() -> None:
    good = AnswerTestResult(own=40, others=100, lost=[], plain_lost=[], gained=[])
    assert checks.check_answers(good, 10).level == "ok"
    spelled = good._replace(lost=["a: slashes, wrong"])
    found = checks.check_answers(spelled, 10)
    assert (found.level, "a: slashes, wrong" in found.remedy) == ("warn", True)
    assert "39 of 40 spellings of 10 gold answers" in found.says
    assert checks.check_answers(good._replace(gained=["a: answer of b"]), 10).level == "warn"
    assert checks.check_answers(good._replace(gained=["a: answer of b"] * 3), 10).level == "fail"
    boxed = good._replace(lost=["a: box, wrong"], plain_lost=["a"])
    assert checks.check_answers(boxed, 10).level == "fail"
    assert checks.check_answers(good._replace(others=0), 10).level == "ok"


@pytest.mark.parametrize(("ess", "level"), [(0.999, "ok"), (0.9, "warn"), (0.4, "fail")])
def test_mismatch_is_judged_by_the_effective_share(ess: float, level: str) -> None:
    found = checks.check_mismatch(sample(mismatch=Mismatch(160, 0.01, 0.3, ess)))
    assert found.level == level


def test_a_clearly_better_rule_is_a_warning_and_a_close_one_is_none() -> None:
    best = RuleScore("hora", 2.0, 1.0, 1.0, 1.0, 1.0)
    other = RuleScore("knapsack", 2.4, 1.2, 0.98, 1.4, 1.0)
    mine = RuleScore("uniform", 3.0, 1.5, 1.3, 1.9, 1.0)
    found = checks.check_rule("uniform", [best, other, mine], "grpo")
    assert found.level == "warn"
    assert found.says == (
        "hora needs the fewest rollouts for the same noise of a grpo gradient, the next, "
        "knapsack, 20% [-2%, 40%] more; uniform, as configured, 50% [30%, 90%] more"
    )
    assert checks.check_rule("knapsack", [best, other, mine], "grpo").level == "ok"
    assert checks.check_rule("hora", [best, other, mine], "grpo").level == "ok"
    assert checks.check_rule("hora", [best], "grpo").level == "ok"
    assert checks.check_rule("hora", [], "grpo").level == "warn"


def test_memory_that_does_not_fit_is_no_go_with_the_forecasts_remedy() -> None:
    assert checks.check_memory("3.0 GiB per device of 80.0 GiB", "does not fit").level == "ok"
    found = checks.check_memory(
        "90 GiB per device of 80 GiB: does not fit; shard it", "does not fit"
    )
    assert (found.level, found.remedy) == ("fail", "shard it")


def test_time_is_limited_only_where_a_limit_is_given() -> None:
    assert checks.check_time(100.0, "t", None).level == "ok"
    assert checks.check_time(10.0, "t", 10.0).level == "ok"
    assert checks.check_time(10.1, "t", 10.0).level == "fail"


def test_speeds_of_sampling_and_updating_add_up_in_seconds() -> None:
    # 160 tokens in 4 s are 1/40 s each, and 0.05 s of update: 0.075 s.
    assert sample().tokens_per_s == pytest.approx(40)
    assert sample().trained_tokens_per_s == pytest.approx(1 / 0.075)
