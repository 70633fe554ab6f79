import numpy as np
import pytest

from e3rl.analysis.measures.power_table import power_table
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Run
from e3rl.statistics.power import detectable_difference, seeds_needed, variance_components

Arms = dict[str, list[Run]]


def test_rows_hold_what_the_variances_of_the_paired_difference_need(arms: Arms) -> None:
    table = power_table(arms, "grpo", differences=(0.05,), axis="steps")
    assert table["arm"].tolist() == ["ts_an", "e3"]
    e3, grpo = (scores_at(arms[arm], "t1", 1, "steps", 24) for arm in ("e3", "grpo"))
    assert e3 is not None
    assert grpo is not None
    parts = variance_components(e3.table - grpo.table)
    row = table.iloc[1]
    assert (row["seeds"], row["problems"]) == (2, 30)
    assert row["sd problem"] == pytest.approx(np.sqrt(parts.problem))
    assert row["detectable"] == pytest.approx(detectable_difference(parts, 2, 30))
    needed = seeds_needed(parts, 0.05, 30)
    assert np.isnan(row["seeds for 0.05"]) if needed is None else row["seeds for 0.05"] == needed


def test_arms_without_two_common_seeds_have_no_row(arms: Arms) -> None:
    table = power_table({"grpo": arms["grpo"], "e3": arms["e3"][:1]}, "grpo")
    assert table.empty


def test_a_control_without_the_evaluation_is_named(arms: Arms) -> None:
    with pytest.raises(ValueError, match="control='dapo' has no evaluation t1"):
        power_table(arms, "dapo")
