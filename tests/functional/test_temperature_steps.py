import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.entropy import measure_tokens, token_entropy
from e3rl.functional.temperature import (
    elasticity_step,
    paper_step,
    solve_step,
    vocabulary_factor,
)


@pytest.mark.parametrize(
    ("vocabulary", "expected"), [(64, 5.584), (128, 6.431), (32000, 12.713), (151936, 14.410)]
)
def test_vocabulary_factor_has_its_golden_values(vocabulary, expected):
    assert vocabulary_factor(vocabulary) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("tau", "target", "entropy", "vocabulary", "expected"),
    [
        (1.0, 0.76, 0.60, 151936, 1.016404),
        (1.2, 0.76, 0.60, 151936, 1.223622),
        (1.0, 0.5, 0.25, 128, 1.107775),
        (1.0, 0.25, 0.5, 128, 0.892225),
    ],
)
def test_the_paper_step_has_its_golden_values(tau, target, entropy, vocabulary, expected):
    step = paper_step(tau, math.log(target / entropy), vocabulary)
    assert step == pytest.approx(expected, abs=5e-7)


@given(st.floats(0.3, 3.0), st.integers(3, 200_000), st.floats(0.05, 5.0))
@settings(deadline=None, max_examples=50)
def test_every_step_rests_where_the_entropy_is_on_target(tau, vocabulary, elasticity):
    assert paper_step(tau, 0.0, vocabulary) == tau
    assert elasticity_step(tau, 0.0, elasticity, 0.5) == tau


def test_the_elasticity_step_worked_by_hand():
    # ln τ moves by 0.5 · 0.2 / 0.4 = 0.25.
    assert elasticity_step(2.0, 0.2, 0.4, 0.5) == pytest.approx(2 * math.exp(0.25))


@pytest.mark.parametrize(("log_alpha", "moved"), [(7.0, 0.5), (-math.inf, -0.5)])
def test_the_elasticity_step_clips_the_error(log_alpha, moved):
    assert elasticity_step(1.0, log_alpha, 1.0, 1.0) == pytest.approx(math.exp(moved))


def test_full_elasticity_steps_are_newtons_method_on_a_real_distribution():
    logits = 3 * torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).double()
    tau, target = 1.0, 1.5
    for _ in range(6):
        taus = torch.full((50,), tau, dtype=torch.float64)
        entropy, slope = (
            token_entropy(logits, taus).sum(),
            measure_tokens(logits, torch.zeros(len(taus), dtype=torch.int64), taus)[2].sum(),
        )
        log_alpha = math.log(target / (float(entropy) / 50))
        tau = elasticity_step(tau, log_alpha, float(slope / entropy), 1.0)
    assert float(token_entropy(logits, taus).mean()) == pytest.approx(target, rel=1e-6)


@pytest.mark.parametrize(
    ("elasticity", "mu", "message"),
    [(0.0, 0.5, "elasticity=0.0"), (math.nan, 0.5, "elasticity=nan"), (1.0, 2.0, "mu=2.0")],
)
def test_an_elasticity_step_that_cannot_work_is_refused(elasticity, mu, message):
    with pytest.raises(ValueError, match=message):
        elasticity_step(1.0, 0.1, elasticity, mu)


POWER_LAW = [(tau, 0.5 * tau**1.4) for tau in (0.5, 0.8, 1.0, 1.3, 2.0)]


@given(st.floats(0.5, 2.0))
@settings(deadline=None, max_examples=50)
def test_solving_is_exact_on_a_power_law(tau):
    assert solve_step(POWER_LAW, 0.5 * tau**1.4) == pytest.approx(tau)


def test_solving_stays_within_the_measured_temperatures():
    assert solve_step(POWER_LAW, 0.01) == 0.5
    assert solve_step(POWER_LAW, 5.0) == 2.0
    assert solve_step([(1.1, 0.7)], 0.6) == 1.1


def test_solving_copes_with_flat_ends():
    assert solve_step([(0.1, 0.0), (0.2, 0.0), (0.4, 1.0)], 1e-13) == 0.1
    flat = [(1.0, 0.5), (2.0, 2.0), (4.0, 2.0 - 1e-7)]
    assert 1.0 < solve_step(flat, 1.9) < 2.0
    assert solve_step(flat, 3.0) == 4.0


@pytest.mark.parametrize(
    ("curve", "target", "message"),
    [
        ([], 1.0, "ascending"),
        ([(1.0, 0.5), (1.0, 0.6)], 0.55, "ascending"),
        ([(0.0, 0.5), (1.0, 0.6)], 0.55, "above 0"),
        ([(1.0, 0.6), (2.0, 0.5)], 0.55, "must not fall"),
        ([(1.0, 0.6)], 0.0, "target=0.0"),
    ],
)
def test_senseless_curves_are_refused(curve, target, message):
    with pytest.raises(ValueError, match=message):
        solve_step(curve, target)


def test_a_vocabulary_of_one_is_refused():
    with pytest.raises(ValueError, match="vocabulary=1"):
        vocabulary_factor(1)
