import pytest

from e3rl.functional.annealing import cosine_factor


@pytest.mark.parametrize(
    ("step", "target"),
    [(0, 0.76), (288, 0.76), (336, 0.74887), (384, 0.722), (432, 0.69513), (480, 0.684)],
)
def test_the_published_schedule_gives_the_golden_targets(step, target):
    assert 0.76 * cosine_factor(step, 288, 480, 0.9) == pytest.approx(target, abs=5e-6)


def test_it_never_rises_again():
    factors = [cosine_factor(step, 6, 10, 0.5) for step in range(40)]
    assert factors == sorted(factors, reverse=True)
    assert factors[:7] == [1.0] * 7
    assert factors[10:] == [0.5] * 30


@pytest.mark.parametrize("total", [-1, 288])
def test_an_unknown_horizon_is_refused(total):
    with pytest.raises(ValueError, match=f"288 to step {total} has no length"):
        cosine_factor(300, 288, total, 0.9)


@pytest.mark.parametrize("eta", [0.0, 1.1])
def test_eta_out_of_range_is_refused(eta):
    with pytest.raises(ValueError, match=f"eta={eta}"):
        cosine_factor(1, 0, 10, eta)
