import pytest

from e3rl.temperatures.annealing import CosineAnnealing, cosine_factor


@pytest.mark.parametrize(
    ("step", "target"),
    [(0, 0.76), (288, 0.76), (336, 0.74887), (384, 0.722), (432, 0.69513), (480, 0.684)],
)
def test_golden_targets_of_the_published_run(step: int, target: float) -> None:
    annealing = CosineAnnealing()
    annealing.bind(480)
    assert annealing.start == 288
    assert 0.76 * annealing.factor(step) == pytest.approx(target, abs=5e-6)


def test_factor_stays_at_eta_after_the_end() -> None:
    annealing = CosineAnnealing(eta=0.8, ratio=1.0)
    annealing.bind(10)
    assert annealing.factor(0) == 1
    assert annealing.factor(11) == annealing.factor(10) == pytest.approx(0.8)


def test_start_is_exact_where_floating_point_falls_short() -> None:
    annealing = CosineAnnealing(ratio=0.9)
    annealing.bind(10)
    assert annealing.start == 1  # (1 - 0.9)·10 = 0.9999999999999998


@pytest.mark.parametrize(("ratio", "total", "start"), [(0.4, 128, 76), (0.25, 10, 7), (0.3, 5, 3)])
def test_start_is_the_last_whole_step_before_the_part_that_anneals(
    ratio: float, total: int, start: int
) -> None:
    annealing = CosineAnnealing(ratio=ratio)
    annealing.bind(total)
    assert annealing.start == start  # of 76.8, 7.5 and 3.5
    assert annealing.factor(start) == 1 > annealing.factor(start + 1)


@pytest.mark.parametrize("ratio", [1e-3, 1e-12])
def test_the_smallest_part_of_a_run_is_its_last_step(ratio: float) -> None:
    annealing = CosineAnnealing(0.9, ratio)
    annealing.bind(128)
    assert annealing.start == 127  # (1 - 1e-12)·128 is 128 up to rounding
    assert [annealing.factor(step) for step in (0, 127, 128)] == [1, 1, pytest.approx(0.9)]


def test_factor_before_bind_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="bind"):
        CosineAnnealing().factor(0)


def test_length_of_the_run_must_be_known() -> None:
    with pytest.raises(ValueError, match="total_steps=-1"):
        CosineAnnealing().bind(-1)


@pytest.mark.parametrize(
    ("eta", "ratio", "name"), [(0, 0.4, "eta=0"), (1.1, 0.4, "eta=1.1"), (0.9, 0, "ratio=0")]
)
def test_values_out_of_range_are_refused(eta: float, ratio: float, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        CosineAnnealing(eta, ratio)


def test_the_factor_never_rises_again() -> None:
    factors = [cosine_factor(step, 6, 10, 0.5) for step in range(40)]
    assert factors == sorted(factors, reverse=True)
    assert factors[:7] == [1.0] * 7
    assert factors[10:] == [0.5] * 30


@pytest.mark.parametrize("total", [-1, 288])
def test_an_unknown_horizon_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match=f"288 to step {total} has no length"):
        cosine_factor(300, 288, total, 0.9)


def test_a_factor_to_an_eta_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="eta=0"):
        cosine_factor(1, 0, 10, 0.0)
