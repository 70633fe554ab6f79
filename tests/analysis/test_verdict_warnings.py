"""What the report says of verdicts: their seeds, and what they could not have found."""

from pathlib import Path

import pytest
from warned_runs import compared, folder, row

from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.run_warnings import find_warnings
from e3rl.analysis.warnings.verdicts import coarse_verdicts, few_seeds


@pytest.mark.parametrize(("seeds", "told"), [(2, True), (5, False)])
def test_verdicts_of_few_seeds_are_told(tmp_path: Path, seeds: int, told: bool) -> None:
    rows = [
        {"arm": "mine", "seeds": seeds, "difference": 0.1},
        {"arm": "grpo", "seeds": 1, "difference": None},
    ]
    found = few_seeds(Compared({}, "grpo", rows))
    assert len(found) == told
    assert not told or "(2 each)" in found[0]


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_verdict_of_few_seeds_is_named(seeds: int) -> None:
    rows = [row(seeds=seeds, verdict="better"), row(seeds=seeds, verdict="not distinguishable")]
    found = few_seeds(Compared({}, "grpo", rows))
    assert len(found) == (2 if seeds == 3 else 0)
    assert seeds == 5 or "mine better in pass@16." in found[1]


def test_seeds_of_the_control_count_where_they_are_fewer() -> None:
    rows = [row(seeds=8, against_seeds=3, verdict="not distinguishable")]
    (few,) = few_seeds(Compared({}, "grpo", rows))
    assert "(3 each)" in few
    both = [*rows, row(arm="other", seeds=2, verdict="not distinguishable")]
    (few,) = few_seeds(Compared({}, "grpo", both))
    assert "(mine 3, other 2)" in few


def test_the_row_of_fewest_seeds_is_told_whichever_comes_last() -> None:
    """pass@16 of three of five seeds, then pass@1 of all."""
    rows = [row(seeds=3, verdict="worse"), row(seeds=5, verdict="better", measure="pass@1")]
    few, verdicts = few_seeds(Compared({}, "grpo", rows))
    assert "(mine 3)" in few
    assert "seeds: mine worse in pass@16. Run" in verdicts


@pytest.mark.parametrize(
    ("verdict", "detectable", "told"),
    [
        ("not distinguishable", 0.061, True),
        ("not distinguishable", 0.04, False),
        ("better", 0.2, False),
    ],
)
def test_what_could_not_have_been_found_is_told(
    verdict: str, detectable: float, told: bool
) -> None:
    rows = [row(verdict=verdict, detectable=detectable), row(verdict=verdict, detectable=0.01)]
    found = coarse_verdicts(Compared({}, "grpo", rows))
    assert len(found) == told
    assert not told or "mine (6 points)" in found[0]


def test_a_row_that_could_find_no_difference_at_all_is_the_coarsest() -> None:
    rows = [
        row(verdict="not distinguishable", detectable=0.3),
        row(verdict="not distinguishable", detectable=None, comparison="x", difference_error=0.2),
    ]
    (found,) = coarse_verdicts(Compared({}, "grpo", rows))
    assert "mine (100 points)" in found
    without_error = row(verdict="not distinguishable", detectable=None, comparison="x")
    assert coarse_verdicts(Compared({}, "grpo", [without_error])) == []


def test_without_a_control_arms_are_not_judged_by_it(tmp_path: Path) -> None:
    arms = compared(folder(tmp_path, seeds=1)).arms
    assert find_warnings(Compared(arms, None, [])) == []


@pytest.mark.parametrize(("factor", "told"), [(3, False), (4, True)])
def test_verdicts_that_hang_on_the_problems_are_told(factor: int, told: bool) -> None:
    """t = 4 of five seeds is p .016 with their four degrees; times 3 that is .048, times 4 .065."""
    judged = row(verdict="better", difference_error=0.025, p=0.001, p_adjusted=factor / 1e3)
    found = few_seeds(Compared({}, "grpo", [judged, judged | {"measure": "pass@1"}]))
    assert len(found) == told
    assert not told or "(†): mine better in pass@16, mine better in pass@1. Few" in found[0]
