"""How noisy gradients are, beside all outcomes of small batches."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from e3rl.simulator.gradient import (
    LOSSES,
    gradient_noise_scale,
    grpo,
    relative_variance,
    rloo_by_prompt,
)

RATES, ROLLOUTS = np.array([0.3, 0.8, 0.5, 1.0]), np.array([3, 2, 1, 2])


def normalized(rewards: Sequence[int]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    squares = sum((r - mean) ** 2 for r in rewards)
    return [(r - mean) / math.sqrt(squares / (len(rewards) - 1)) if squares else 0 for r in rewards]


def leave_one_out(rewards: Sequence[int]) -> list[float]:
    n = len(rewards)
    return [r - (sum(rewards) - r) / (n - 1) if n > 1 else 0 for r in rewards]


def sampled_gradients(
    advantages: Callable[[Sequence[int]], list[float]], weights: Sequence[float], apart: float
) -> tuple[float, float]:
    """E[g] and E[g²] over all rewards and all noises of ±1, where scores differ by `apart`."""
    prompts = [(p, n) for p, n in zip(RATES.tolist(), ROLLOUTS.tolist(), strict=True)]
    ends = np.cumsum(ROLLOUTS).tolist()
    first = second = 0.0
    for rewards in itertools.product((0, 1), repeat=ends[-1]):
        groups = [rewards[end - n : end] for end, (_, n) in zip(ends, prompts, strict=True)]
        chance = math.prod(
            p ** sum(group) * (1 - p) ** (n - sum(group))
            for group, (p, n) in zip(groups, prompts, strict=True)
        )
        if chance == 0:
            continue
        parts = [
            (w * a, (r - p) * apart)
            for group, (p, _), w in zip(groups, prompts, weights, strict=True)
            for r, a in zip(group, advantages(group), strict=True)
        ]
        signs = np.array(list(itertools.product((-1, 1), repeat=len(parts))))
        found = (signs + [score for _, score in parts]) @ [factor for factor, _ in parts]
        first += chance * float(found.mean())
        second += chance * float((found**2).mean())
    return first, second


CASES = {
    "grpo": (normalized, [1 / 8] * 4),  # eight rollouts, each of the same weight
    "rloo_by_prompt": (leave_one_out, [1 / (4 * n) for n in ROLLOUTS.tolist()]),  # four prompts
}


@pytest.mark.parametrize("loss", LOSSES)
def test_moments_are_those_of_all_outcomes_of_a_batch(loss: str) -> None:
    advantages, weights = CASES[loss]
    found = LOSSES[loss](RATES, ROLLOUTS, None)
    mean, square = sampled_gradients(advantages, weights, apart=0.0)
    assert mean == pytest.approx(0, abs=1e-12)
    assert found.variance == pytest.approx(square)
    assert found.signal == pytest.approx(sampled_gradients(advantages, weights, apart=1.0)[0])


def pilots_and_more(p: float) -> list[tuple[float, list[int]]]:
    """Chances and rewards of a group of two rollouts, with a third where they differ."""
    found = []
    for rewards in itertools.product((0, 1), repeat=3):
        group = list(rewards) if rewards[0] != rewards[1] else list(rewards[:2])
        chance = math.prod(p if r else 1 - p for r in group)
        if len(group) == 3 or rewards[2]:
            found.append((chance, group))
    return found


@pytest.mark.parametrize("loss", LOSSES)
def test_moments_of_groups_that_stop_by_their_rewards_are_those_of_all_outcomes(loss: str) -> None:
    rates, advantages = np.array([0.8, 0.3]), CASES[loss][0]
    expected, found, fixed = (np.zeros(2) for _ in range(3))
    total = 0.0
    for (one, first), (other, second) in itertools.product(*map(pilots_and_more, rates.tolist())):
        groups, chance = (first, second), one * other
        n = np.array([len(group) for group in groups])
        weights = 1 / (2 * n) if loss == "rloo_by_prompt" else np.full(2, 1 / n.sum())
        for group, p, w in zip(groups, rates, weights, strict=True):
            a = np.array(advantages(group))
            expected += chance * np.array([w**2 * (a**2).sum(), w * (a * (group - p)).sum()])
        right = np.array([float(sum(group)) for group in groups])
        found += chance * np.array(LOSSES[loss](rates, n, right))
        fixed += chance * np.array(LOSSES[loss](rates, n, None))
        total += chance
    assert total == pytest.approx(1)
    assert found == pytest.approx(expected)
    assert fixed != pytest.approx(expected, rel=0.01)  # a group of 3 is mixed for sure


def test_groups_of_two_are_the_same_under_both_losses() -> None:
    rates, rollouts = np.array([0.5, 0.2]), np.array([2, 2])
    # The normalised advantage of a mixed pair is ±1/√2, the other's ±1.
    one, other = grpo(rates, rollouts), rloo_by_prompt(rates, rollouts)
    assert other.signal == pytest.approx(one.signal * math.sqrt(2))
    assert other.variance == pytest.approx(one.variance * 2)
    assert gradient_noise_scale("grpo", rates, rollouts) == pytest.approx(
        gradient_noise_scale("rloo_by_prompt", rates, rollouts)
    )


def test_noise_counts_rollouts_whatever_the_number_of_prompts() -> None:
    # 1/(P·7)·pq over (pq)² and times 8P rollouts: 8/7/pq.
    for prompts in (1, 50):
        rates, rollouts = np.full(prompts, 0.5), np.full(prompts, 8)
        assert gradient_noise_scale("rloo_by_prompt", rates, rollouts) == pytest.approx(
            8 / 7 / 0.25
        )


def test_silent_prompts_waste_the_rollouts_that_they_get() -> None:
    rates = np.array([0.0, 0.5])
    for loss in LOSSES:
        alone, even = (
            gradient_noise_scale(loss, rates[1:], np.array([8])),
            gradient_noise_scale(loss, rates, np.array([8, 8])),
        )
        assert even == pytest.approx(2 * alone)
        assert gradient_noise_scale(loss, rates, np.array([2, 14])) < even


@pytest.mark.parametrize("loss", LOSSES)
def test_without_signal_nothing_is_known(loss: str) -> None:
    for rates, rollouts in [(np.array([0.0, 1.0]), np.array([8, 8])), (RATES, np.ones(4, int))]:
        assert math.isnan(gradient_noise_scale(loss, rates, rollouts))
        assert math.isnan(relative_variance(loss, rates, rollouts, even=1))


def test_variance_is_beside_even_groups_of_the_same_loss() -> None:
    rates = np.array([0.5, 0.5])
    found = np.array([3, 5])
    assert relative_variance("rloo_by_prompt", rates, found, 4) == pytest.approx(
        (1 / 2 + 1 / 4) / (2 / 3)
    )
    # Mixed groups of 3, 4 and 5: 3/4, 7/8 and 15/16.
    expected = (2 * 3 / 4 + 4 * 15 / 16) / (2 * 3 * 7 / 8)
    assert relative_variance("grpo", rates, found, 4) == pytest.approx(expected)
