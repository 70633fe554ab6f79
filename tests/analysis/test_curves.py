from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.analysis.measures.curves import (
    annealing_start,
    seed_band,
    smooth,
    smoothing_window,
    without_short,
)
from e3rl.analysis.sources.runs import Run


def train(values: list[float | None], column: str = "x") -> pd.DataFrame:
    steps = range(len(values))
    return pd.DataFrame({"rollout_step": steps, column: np.array(values, dtype=float)})


def test_smoothing_is_a_centred_mean_that_shrinks_at_the_ends() -> None:
    values = pd.Series([0.0, 3.0, 6.0, 0.0])
    assert smooth(values, 3).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert smooth(values, 1).tolist() == values.tolist()


def test_missing_steps_stay_missing_and_do_not_pull_their_neighbours() -> None:
    smoothed = smooth(pd.Series([2.0, np.nan, 4.0]), 3)
    assert smoothed.isna().tolist() == [False, True, False]
    assert smoothed.tolist()[::2] == [2.0, 4.0]


def test_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="window=0"):
        smooth(pd.Series([1.0]), 0)


def test_band_is_mean_and_range_over_the_steps_all_seeds_have() -> None:
    band = seed_band([train([1, 2, 3]), train([3, 6])], "x")
    assert band is not None
    assert band.x.tolist() == [0, 1]
    assert band.mean.tolist() == [2, 4]
    assert band.low.tolist() == [1, 2]
    assert band.high.tolist() == [3, 6]
    assert band.n_seeds == 2


def test_band_leaves_out_steps_without_any_value_and_seeds_without_the_metric() -> None:
    band = seed_band([train([1, None, 3]), train([5, None, None]), train([9], "y")], "x")
    assert band is not None
    assert band.x.tolist() == [0, 2]
    assert band.mean.tolist() == [3, 3]
    assert band.n_seeds == 2
    assert seed_band([train([1], "y")], "x") is None
    assert seed_band([train([None, None])], "x") is None


def with_costs(values: list[float], tokens: list[float]) -> pd.DataFrame:
    return train(list(values)).assign(**{"cost/tokens": np.cumsum(tokens)})


def test_band_on_a_cost_axis_interpolates_seeds_at_costs_that_all_reached() -> None:
    fast = with_costs([0.0, 1.0, 2.0], [10, 10, 10])  # at 0, 10 and 20 tokens
    slow = with_costs([0.0, 4.0, 8.0], [40, 40, 40])  # at 0, 40 and 80
    band = seed_band([fast, slow], "x", axis="tokens")
    assert band is not None
    assert band.x.tolist() == [0, 10, 20]
    assert band.low.tolist() == [0, 1, 2]
    assert band.mean.tolist() == [0, 1, 2]  # both gain 0.1 a token
    late = with_costs([np.nan, 1.0, 2.0], [10, 10, 10])
    shorter = seed_band([fast, late], "x", axis="tokens")
    assert shorter is not None
    assert shorter.x.tolist() == [10, 20]


def test_band_on_a_cost_that_was_not_recorded_does_not_exist() -> None:
    assert seed_band([train([1, 2, 3])], "x", axis="tokens") is None
    apart = with_costs([1.0, 2.0], [10, 10]), with_costs([np.nan, 2.0, 3.0], [50, 10, 10])
    assert seed_band(apart, "x", axis="tokens") is None


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_mean_lies_in_the_band(seeds: list[list[float]], window: int) -> None:
    band = seed_band([train(list(values)) for values in seeds], "x", window)
    assert band is not None
    assert (band.low <= band.mean + 1e-12).all()
    assert (band.mean <= band.high + 1e-12).all()


def test_annealing_starts_where_the_factor_on_the_target_leaves_one() -> None:
    column = "temperature/annealing"
    assert annealing_start(train([1, 1, 0.99, 0.9], column)) == 2
    assert annealing_start(train([1, 1], column)) is None
    assert annealing_start(train([0.9, 0.9], "other")) is None


@pytest.mark.parametrize(("steps", "window"), [(0, 1), (8, 1), (24, 3), (64, 9), (500, 9)])
def test_window_fits_the_run(steps: int, window: int) -> None:
    assert smoothing_window([train([0.0] * steps), train([0.0] * 1000)]) == window


def test_curves_are_without_runs_that_trained_far_less_than_others_of_their_arm(run: Run) -> None:
    def after(steps: int, seed: int) -> Run:
        return replace(run, seed=seed, train=run.train[run.train["rollout_step"] < steps])

    mine = [after(24, 1), after(2, 2), after(20, 3), after(0, 4)]  # 0.8 of 24 steps are 19.2
    drawn, short = without_short({"e3": mine, "grpo": [after(2, 1)], "new": [after(0, 1)]})
    assert {arm: [item.seed for item in runs] for arm, runs in drawn.items()} == {
        "e3": [1, 3],
        "grpo": [1],
        "new": [1],
    }
    assert [item.seed for item in short] == [2, 4]
