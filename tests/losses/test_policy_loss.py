import math
from functools import partial

import pytest
import torch

from e3rl.functional.aggregation import Totals
from e3rl.functional.surrogates import clipped
from e3rl.losses.micro_batch import MicroBatch
from e3rl.losses.policy_loss import PolicyLoss

TOTALS = Totals(tokens=8, rollouts=4, prompts=2)  # of a minibatch twice as large
TAUS = (0.5, 0.5, 2.0, 2.0)
LOGITS = ((1.0, 0.0, -1.0), (0.5, 0.5, 0.0), (2.0, -1.0, 0.0), (0.0, 3.0, 1.0))
TOKENS = (0, 1, 2, 1)
ADVANTAGES = (1.0, 1.0, -2.0, -2.0)


def micro_batch() -> MicroBatch:
    return MicroBatch(
        logits=torch.tensor(LOGITS, requires_grad=True),
        tokens=torch.tensor(TOKENS),
        temperatures=torch.tensor(TAUS),
        advantages=torch.tensor(ADVANTAGES),
        rollout=torch.tensor([0, 0, 1, 1]),
        sampler_logprobs=torch.zeros(4),
        positions=torch.tensor([[False, True, True], [False, True, True]]),
    )


def by_hand() -> tuple[list[float], list[float]]:
    """Log-probs of the tokens and entropies, in plain Python."""
    logprobs, entropies = [], []
    for row, tau, token in zip(LOGITS, TAUS, TOKENS, strict=True):
        weights = [math.exp(z / tau) for z in row]
        probs = [w / sum(weights) for w in weights]
        logprobs.append(math.log(probs[token]))
        entropies.append(-sum(p * math.log(p) for p in probs))
    return logprobs, entropies


WEIGHTS = torch.tensor([0.125, 0.125, 0.25, 0.25])


def test_on_policy_the_loss_is_minus_the_weighted_advantages():
    parts = PolicyLoss(clipped)(micro_batch(), WEIGHTS, TOTALS)
    assert parts.loss.item() == pytest.approx(-(0.125 * 2 * 1.0 + 0.25 * 2 * -2.0))
    assert parts.log_ratios.tolist() == [0, 0, 0, 0]
    assert parts.clipped.tolist() == [False] * 4
    assert parts.logprobs.tolist() == pytest.approx(by_hand()[0], abs=1e-6)
    assert not parts.logprobs.requires_grad


def test_its_gradient_is_advantage_times_softmax_minus_token_over_temperature():
    micro = micro_batch()
    PolicyLoss(clipped)(micro, WEIGHTS, TOTALS).loss.backward()
    for place in range(4):
        scaled = [math.exp(z / TAUS[place]) for z in LOGITS[place]]
        probs = [w / sum(scaled) for w in scaled]
        factor = -ADVANTAGES[place] * float(WEIGHTS[place]) / TAUS[place]
        wanted = [factor * ((v == TOKENS[place]) - p) for v, p in enumerate(probs)]
        assert micro.logits.grad[place].tolist() == pytest.approx(wanted, abs=1e-6)


def test_old_log_probs_make_ratios_and_the_clip_stops_the_gradient_of_what_left_the_range():
    micro = micro_batch()
    shifts = torch.tensor([0.5, 0.1, -0.5, -0.1])  # ratios 1.65, 1.11, 0.61, 0.90
    old = torch.tensor(by_hand()[0]) - shifts
    parts = PolicyLoss(clipped)(micro, WEIGHTS, TOTALS, old)
    assert parts.log_ratios.tolist() == pytest.approx(shifts.tolist(), abs=1e-6)
    assert parts.clipped.tolist() == [True, False, True, False]
    wanted = -0.125 * (1.2 + math.exp(0.1)) + 0.25 * 2 * (0.8 + math.exp(-0.1))
    assert parts.loss.item() == pytest.approx(wanted, rel=1e-5)
    parts.loss.backward()
    moved = micro.logits.grad.abs().sum(dim=1) > 0
    assert moved.tolist() == [False, True, False, True]


def test_entropy_bonus_is_a_mean_over_all_tokens_of_the_minibatch_at_their_temperatures():
    plain = PolicyLoss(clipped)(micro_batch(), WEIGHTS, TOTALS).loss
    bonus = PolicyLoss(clipped, entropy_coef=0.3)(micro_batch(), WEIGHTS, TOTALS).loss
    assert (plain - bonus).item() == pytest.approx(0.3 * sum(by_hand()[1]) / 8, rel=1e-5)


def test_kl_term_is_a_mean_of_k3_over_all_tokens_of_the_minibatch():
    reference = torch.tensor(by_hand()[0]) + torch.tensor([0.2, -0.3, 0.0, 0.1])
    plain = PolicyLoss(clipped)(micro_batch(), WEIGHTS, TOTALS).loss
    pulled = PolicyLoss(clipped, kl_coef=0.5)(
        micro_batch(), WEIGHTS, TOTALS, reference_logprobs=reference
    ).loss
    k3 = sum(math.exp(d) - d - 1 for d in (0.2, -0.3, 0.0, 0.1))
    assert (pulled - plain).item() == pytest.approx(0.5 * k3 / 8, abs=1e-6)


def test_a_kl_term_without_reference_is_an_error():
    with pytest.raises(RuntimeError, match="needs the reference policy's log-probs"):
        PolicyLoss(clipped, kl_coef=0.5)(micro_batch(), WEIGHTS, TOTALS)


@pytest.mark.parametrize(
    ("settings", "every"),
    [({}, False), ({"entropy_coef": 1e-4}, True), ({"kl_coef": 1e-4}, True)],
)
def test_which_losses_need_every_rollout(settings, every):
    assert PolicyLoss(clipped, **settings).needs_every_rollout is every


def test_bounds_of_the_surrogate_are_checked_at_construction_too():
    with pytest.raises(ValueError, match=r"clip_low=1\.5"):
        PolicyLoss(partial(clipped, clip_low=1.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropy_coef": -0.1}, r"loss\.entropy_coef=-0\.1"),
        ({"kl_coef": -1.0}, r"loss\.kl_coef=-1\.0"),
        ({"aggregation": "constant"}, r"needs loss\.max_length .*None"),
        ({"aggregation": "constant", "max_length": 0}, r"needs loss\.max_length .*0"),
        ({"aggregation": "mean"}, r"loss\.aggregation='mean'.*token_mean"),
        ({"prompt_weight": "both"}, r"loss\.prompt_weight='both'.*sample"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        PolicyLoss(clipped, **settings)
