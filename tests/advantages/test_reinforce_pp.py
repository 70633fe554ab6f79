from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident

import pytest
import torch

from e3rl.advantages import reinforce_pp
from e3rl.advantages.reinforce_pp import BatchNormalized

REWARDS = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
GROUP = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3])  # all right, mixed, mixed, one wrong


def test_rewards_are_normalised_over_the_batch():
    # Mean 1/2, deviation 1/2.
    assert BatchNormalized()(REWARDS, GROUP, 4).tolist() == [1, 1, 1, -1, -1, 1, -1, -1]


def test_centred_rewards_are_scaled_by_one_deviation_and_constant_groups_stay_0():
    centred = torch.tensor([0, 0, 2 / 3, -1 / 3, -1 / 3, 0.5, -0.5, 0])
    spread = ((4 / 9 + 2 / 9 + 0.5) / 8) ** 0.5
    found = BatchNormalized("group")(REWARDS, GROUP, 4)
    torch.testing.assert_close(found, centred / spread)
    assert bool((found[[0, 1, 7]] == 0).all())


@pytest.mark.parametrize("baseline", ["batch", "group"])
def test_equal_rewards_give_exactly_0(baseline):
    rewards = torch.full((6,), 0.7)
    rewards[2] += 5e-7
    found = BatchNormalized(baseline)(rewards, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    assert torch.equal(found, torch.zeros(6))


class Ranks:
    """Sums over threads that stand for ranks."""

    def __init__(self, n: int) -> None:
        self.barrier = Barrier(n)
        self.given: dict[int, list[float]] = {}

    def all_sum(self, values):
        self.given[get_ident()] = list(values)
        self.barrier.wait(timeout=10)
        total = [sum(column) for column in zip(*self.given.values(), strict=True)]
        self.barrier.wait(timeout=10)
        return total


@pytest.mark.parametrize("baseline", ["batch", "group"])
def test_sums_are_taken_over_all_ranks(baseline, monkeypatch):
    whole = BatchNormalized(baseline)(REWARDS, GROUP, 4)
    monkeypatch.setattr(reinforce_pp, "all_sum", Ranks(2).all_sum)
    shares = [slice(0, 5), slice(5, 8)]
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda s: BatchNormalized(baseline)(REWARDS[s], GROUP[s], 4), shares)
        torch.testing.assert_close(torch.cat(list(parts)), whole)


@pytest.mark.parametrize("baseline", ["batch", "group"])
def test_permuting_the_rollouts_permutes_the_advantages(baseline):
    order = torch.tensor([5, 3, 0, 7, 1, 6, 2, 4])
    estimator = BatchNormalized(baseline)
    shuffled = estimator(REWARDS[order], GROUP[order], 4)
    torch.testing.assert_close(shuffled, estimator(REWARDS, GROUP, 4)[order])


def test_a_rank_without_rollouts_is_no_error():
    assert BatchNormalized()(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 2).shape == (0,)


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match=r"baseline='prompt': choose one of"):
        BatchNormalized("prompt")


def test_rewards_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="rewards must be finite"):
        BatchNormalized()(torch.tensor([0.0, torch.nan]), torch.tensor([0, 0]), 1)
