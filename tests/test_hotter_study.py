"""Arms at their best temperatures: chosen on one half of the problems, judged on the other."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "experiments/carries_hotter/compare.py"))


def test_each_half_is_read_at_the_best_temperature_of_the_other(study: dict[str, Any]) -> None:
    # Problems 0 and 2 do best at 1.2, problems 1 and 3 at 1.0.
    tables = {
        1.0: np.array([[0.1, 0.9, 0.1, 0.9], [0.1, 0.9, 0.3, 0.7]]),
        1.2: np.array([[0.6, 0.2, 0.6, 0.2], [0.6, 0.2, 0.8, 0.4]]),
    }
    chosen = study["choose_temperatures"](tables)
    assert chosen == (1.0, 1.2)  # of even and odd places, by what odd and even ones showed
    read = study["read_at"](tables, chosen)
    np.testing.assert_array_equal(read, [[0.1, 0.2, 0.1, 0.2], [0.1, 0.2, 0.3, 0.4]])


def test_of_equal_temperatures_the_lowest_is_chosen(study: dict[str, Any]) -> None:
    tables = {t: np.full((2, 4), 0.5) for t in (1.2, 1.0, 1.1)}
    assert study["choose_temperatures"](tables) == (1.0, 1.0)


def test_comparisons_are_of_the_policies_that_were_sampled(study: dict[str, Any]) -> None:
    samples = [
        study["Samples"](
            arm=arm,
            seed=seed,
            temperature=t,
            entropy=0.2 * t,
            right=np.full(1024, solved[arm] if t == 1.2 else 0),
            right_and_long=np.zeros(1024, int),
            long=np.zeros(1024, int),
        )
        for solved in ({"grpo": 0, "budget": 24},)
        for arm in ("grpo", "budget")
        for seed in range(141, 147)
        for t in (1.0, 1.1, 1.2, 1.4)
    ]
    at_one, _, at_best, _ = study["compare"](samples)
    assert (at_one["temperatures"], at_one["against_temperatures"]) == ("1.0", "1.0")
    assert (at_one["measure"], at_one["difference"]) == ("pass@16", 0)
    assert (at_best["temperatures"], at_best["difference"]) == ("1.2", 1)
    assert [row["family_size"] for row in (at_one, at_best)] == [1, 1]  # each declared alone
