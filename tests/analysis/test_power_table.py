import pytest

from e3rl.analysis.measures.power_table import power_table
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.study_cells import power_cells
from e3rl.statistics.means import limit_by_seeds, mean_over_seeds_and_problems
from e3rl.statistics.power import (
    detectable_difference,
    seed_variance_interval,
    seeds_needed,
    variance_components,
)

Arms = dict[str, list[Run]]


def test_rows_hold_what_the_variances_of_the_paired_difference_need(arms: Arms) -> None:
    rows = power_table(arms, "grpo", differences=(0.05,), axis="steps")
    assert [row["arm"] for row in rows] == ["ts_an", "e3"]
    e3, grpo = (scores_at(arms[arm], "t1", 1, "steps", 24) for arm in ("e3", "grpo"))
    assert e3 is not None
    assert grpo is not None
    gaps = (e3.table - grpo.table).to_numpy()
    parts, row = variance_components(gaps), rows[1]
    assert (row["seeds"], row["problems"]) == (2, 30)
    assert row["problem_variance"] == pytest.approx(parts.problem)
    assert row["seed_variance_low"] == pytest.approx(seed_variance_interval(gaps).low)
    detectable = detectable_difference(limit_by_seeds(mean_over_seeds_and_problems(gaps), 2))
    assert row["detectable"] == pytest.approx(detectable)
    assert row["seeds_for_0.05"] == seeds_needed(parts, 0.05, 30)


def test_cells_say_where_a_variance_is_estimated_below_0() -> None:
    row = {
        "arm": "ts",
        "seeds": 5,
        "problems": 256,
        "seed_variance": -1e-6,
        "seed_variance_low": -2e-6,
        "seed_variance_high": 0.0004,
        "problem_variance": 0.0036,
        "rest_variance": 0.01,
        "detectable": 0.0123,
        "seeds_for_0.01": None,
        "problems_for_0.01": 1234,
    }
    cells = power_cells([row], [0.01])
    assert dict(zip(cells.header, cells.body[0], strict=True)) == {
        "arm": "GRPO + TS",
        "seeds": "5",
        "problems": "256",
        "sd of seeds": "< 0 [< 0, 2.00]",
        "sd of problems": "6.00",
        "sd of the rest": "10.00",
        "detectable": "1.2",
        "seeds for 1": "none",
        "problems for 1": "1,234",
    }


def test_arms_without_two_common_seeds_have_no_row(arms: Arms) -> None:
    assert not power_table({"grpo": arms["grpo"], "e3": arms["e3"][:1]}, "grpo")


def test_a_control_without_the_evaluation_is_named(arms: Arms) -> None:
    with pytest.raises(ValueError, match="control='dapo' has no evaluation t1"):
        power_table(arms, "dapo")
