import numpy as np
import pytest

from e3rl.budgets.posterior import BetaPosterior, check_prior


def test_moments_are_those_of_the_beta_distribution() -> None:
    # Beta(2, 1) has density 2p: E[p] = 2/3, E[p²] = 1/2.
    posterior = BetaPosterior(np.array([2.0, 1.0]), np.array([1.0, 1.0]))
    assert posterior.mean == pytest.approx([2 / 3, 1 / 2])
    assert posterior.variance == pytest.approx([1 / 2 - 4 / 9, 1 / 12])
    assert posterior.reward_variance == pytest.approx([2 / 3 - 1 / 2, 1 / 6])


def test_reward_variance_agrees_with_draws() -> None:
    p = np.random.default_rng(0).beta(3.0, 5.5, 400_000)
    posterior = BetaPosterior(np.array([3.0]), np.array([5.5]))
    assert posterior.reward_variance[0] == pytest.approx((p * (1 - p)).mean(), abs=2e-4)
    assert posterior.variance[0] == pytest.approx(p.var(), abs=2e-4)


@pytest.mark.parametrize("prior", [(0.0, 1.0), (1.0, -1.0), (1.0, float("nan")), (1.0, 1.0, 1.0)])
def test_a_prior_that_is_no_distribution_is_refused(prior: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="prior="):
        check_prior(prior)  # type: ignore[arg-type]


def test_distinct_beliefs_are_numbered() -> None:
    a, b = np.array([1.0, 2.0, 1.0, 2.0, 1.0]), np.array([3.0, 3.0, 4.0, 3.0, 3.0])
    distinct, kinds = BetaPosterior(a, b).distinct()
    assert sorted(zip(distinct.a.tolist(), distinct.b.tolist(), strict=True)) == [
        (1, 3),
        (1, 4),
        (2, 3),
    ]
    assert distinct.a[kinds].tolist() == a.tolist()
    assert distinct.b[kinds].tolist() == b.tolist()
    assert BetaPosterior(a[:0], b[:0]).distinct()[1].size == 0
