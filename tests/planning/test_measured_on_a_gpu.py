"""Forecasts beside what was measured on a GPU; experiments/gpu_smoke has the measurement."""

import pytest

from run_on_a_gpu import figures, forecast_gib, forecast_update


def test_the_update_of_a_run_on_an_h200_is_forecast() -> None:
    measured = figures("large")
    assert forecast_gib() == pytest.approx(measured["torch GiB"], rel=0.05)
    found = forecast_update(2048)
    assert found["total"] == found["launches"] == pytest.approx(measured["update s"], rel=0.2)
