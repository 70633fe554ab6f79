"""Forecasts beside the run on a GPU that experiments/gpu_smoke kept.

What launches take was read off this run, so of its time this holds the formula alone.
"""

import pytest

from run_on_a_gpu import figures, forecast_gib, forecast_update


def test_the_update_of_a_run_on_an_h200_is_forecast() -> None:
    measured = figures("large")
    assert forecast_gib() == pytest.approx(measured["torch GiB"], rel=0.05)
    found = forecast_update(2048)
    assert found["total"] == found["launches"] == pytest.approx(measured["update s"], rel=0.2)
