import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e3rl.statistics.student import (
    detectable_shift,
    f_bound,
    incomplete_beta,
    t_bound,
    t_p_value,
    t_power,
)


@pytest.mark.parametrize(
    ("df", "bound"),
    [(1, 12.706205), (2, 4.302653), (4, 2.776445), (9, 2.262157), (30, 2.042272), (1e7, 1.959964)],
)
def test_bounds_are_those_of_printed_tables(df, bound):
    assert t_bound(0.95, df) == pytest.approx(bound, abs=1e-6)


@given(st.floats(0.5, 0.9999), st.floats(1, 1e4))
def test_a_bound_and_its_p_value_belong_together(level, df):
    assert t_p_value(t_bound(level, df), df) == pytest.approx(1 - level, rel=1e-9)


def test_the_distributions_in_closed_form():
    # One degree is Cauchy's, two have P(|T| > t) = 1 - t/√(2 + t²).
    assert t_p_value(1.0, 1) == pytest.approx(0.5)
    assert t_p_value(3.0, 2) == pytest.approx(1 - 3 / math.sqrt(11))
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248)  # 6x² - 8x³ + 3x⁴
    assert [incomplete_beta(2, 3, x) for x in (0.0, 1.0)] == [0.0, 1.0]
    assert t_p_value(math.inf, 3) == 0.0


def test_quantiles_of_f_are_those_of_printed_tables():
    assert f_bound(0.95, 4, 10) == pytest.approx(3.478050, abs=1e-6)
    # Two degrees of χ² are exponential: -2 ln .025 / 2.
    assert f_bound(0.975, 2, 1e7) == pytest.approx(-math.log(0.025), rel=1e-5)


def test_power_is_the_error_without_a_shift_and_that_of_a_normal_with_endless_degrees():
    assert t_power(0.0, 4, 0.95) == pytest.approx(0.05, abs=1e-4)
    assert detectable_shift(1e6, 0.95, 0.8) == pytest.approx(1.959964 + 0.841621, abs=1e-4)
    # Noncentral t of four degrees, two-sided at 5 %.
    assert detectable_shift(4, 0.95, 0.8) == pytest.approx(3.7611, abs=1e-3)
    strict = 1 - 0.05 / 160  # two seeds, and many comparisons to correct for
    assert t_power(detectable_shift(1, strict, 0.8), 1, strict) == pytest.approx(0.8)
    assert t_power(detectable_shift(1.5, 0.99, 0.8), 1.5, 0.99) == pytest.approx(0.8)
    assert t_power(detectable_shift(1.5, 0.99, 0.8), 1.5, 0.99) == pytest.approx(0.8, abs=1e-3)
    # Where the bound is far out power is that of U: t·√(χ² at 80 % of one degree), 1.2816·t.
    far = t_bound(0.9992, 1)
    assert detectable_shift(1, 0.9992, 0.8) == pytest.approx(1.2816 * far, rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: t_bound(1.0, 4), "level=1.0"),
        (lambda: t_bound(0.95, 0), "df=0"),
        (lambda: detectable_shift(4, 0.95, 1.0), "power=1.0"),
        (lambda: detectable_shift(4, 0.95, 0.01), "no more than the error"),
    ],
)
def test_senseless_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
