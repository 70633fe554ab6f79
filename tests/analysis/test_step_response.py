"""The answer to a step disturbance: dip, settling, what remains."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from e3rl.analysis.measures.step_response import measure_response, response_rows
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.study_cells import response_cells

CONFIG = {"callbacks": {"disturbance": {"step": 20, "factor": 1.25}}}


def run_of(errors: list[float], taus: list[float] | None = None, seed: int = 1) -> Run:
    """A run whose entropy misses its target of .5 by these shares."""
    train = pd.DataFrame(
        {
            "rollout_step": range(len(errors)),
            "policy/entropy": [0.5 * (1 + e) for e in errors],
            "temperature/target": 0.5,
            "rollout/temperature": taus or [1.0] * len(errors),
        }
    )
    empty = pd.DataFrame()
    return Run(Path("x"), "gain_paper", seed, CONFIG, train, empty, empty, empty, empty, None)


def test_a_disturbance_that_is_made_good_has_a_dip_and_a_time() -> None:
    # Before: +-2 %. From step 20 on -20, -18, ..., -2 %, then 0 for 20 steps.
    after = [-0.2 + 0.02 * i for i in range(10)] + [0.0] * 20
    taus = [1.0] * 20 + [1.25] * 30
    found = measure_response(run_of([0.02, -0.02] * 10 + after, taus))
    assert found["before"] == pytest.approx(0.02)
    assert found["dip"] == pytest.approx(-0.2)
    # The 5-step mean is -16 % first and rises by 2 points a step: -6 % at the sixth mean, -4 % at
    # the seventh, which begins six steps after the disturbance.
    assert found["settling"] == 6
    assert found["steady"] == 0
    assert found["rise"] == pytest.approx(1.25)
    assert found["wanted"] == 1.25


def test_errors_before_are_a_root_mean_square_and_the_dip_is_the_farthest_of_five() -> None:
    after = [-0.1, 0.05, -0.3, 0.0, 0.0, *[0.0] * 25]
    taus = [3.0] * 15 + [1.0] * 5 + [1.25] * 30  # the last five before count
    found = measure_response(run_of([0.0, 0.04] * 10 + after, taus))
    assert found["before"] == pytest.approx(0.04 / 2**0.5)
    assert found["dip"] == pytest.approx(-0.3)
    assert found["rise"] == pytest.approx(1.25)


def test_a_loop_that_never_settles_has_all_steps_that_were_left() -> None:
    assert measure_response(run_of([0.0] * 20 + [-0.2] * 30))["settling"] == 30


def test_a_loop_that_nothing_disturbs_has_settled_at_once() -> None:
    assert measure_response(run_of([0.0] * 50))["settling"] == 0


def test_what_remains_is_read_once_a_loop_has_settled() -> None:
    # Settled 12 steps before the end, as the 5-step mean is within 5 % from step 28 on.
    after = [-0.2] * 8 + [-0.04, 0.0] * 6
    run = run_of([0.0] * 20 + after)
    assert measure_response(run, last=8)["settling"] == 8
    assert measure_response(run, last=8)["steady"] == pytest.approx(-0.02)
    assert measure_response(run, last=12)["noise"] == pytest.approx(0.02)
    with pytest.raises(
        ValueError, match=r"settles at step 28, .* last 13 steps, .*last=12 or fewer"
    ):
        measure_response(run, last=13)
    with pytest.raises(ValueError, match="last 16 steps"):
        response_rows({"gain_paper": [run]})
    (row,) = response_rows({"gain_paper": [run]}, last=12)
    assert response_cells([row], last=12).note.endswith("over the last 12 steps.")


def test_rows_are_means_over_seeds() -> None:
    runs = [run_of([0.0] * 20 + [-0.2] * 30), run_of([0.0] * 50, seed=2)]
    (row,) = response_rows({"gain_paper": runs})
    assert (row["seeds"], row["settling"], row["settling_by_seed"]) == (2, 15, [30, 0])


def test_a_run_without_disturbance_or_schedule_is_an_error() -> None:
    run = run_of([0.0] * 50)
    with pytest.raises(ValueError, match="callbacks=disturbed"):
        measure_response(dataclasses.replace(run, config={}))
    with pytest.raises(ValueError, match="no policy/entropy or temperature/target"):
        measure_response(dataclasses.replace(run, train=run.train[["rollout_step"]]))
