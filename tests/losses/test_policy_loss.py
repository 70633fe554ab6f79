import dataclasses
import math
from functools import partial

import pytest
import torch

from e3rl.functional.aggregation import Totals
from e3rl.functional.entropy import token_entropy
from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.mismatch import masked, truncated
from e3rl.functional.surrogates import Surrogate, clipped
from e3rl.losses.entropy_bonus import AdaptiveEntropyBonus
from e3rl.losses.exploration import ClipCov, HighEntropyMask, KLCov, TokenEffects
from e3rl.losses.micro_batch import MicroBatch
from e3rl.losses.policy_loss import PolicyLoss

TOTALS = Totals(tokens=8, rollouts=4)  # of a minibatch twice as large
TAUS = (0.5, 0.5, 2.0, 2.0)
LOGITS = ((1.0, 0.0, -1.0), (0.5, 0.5, 0.0), (2.0, -1.0, 0.0), (0.0, 3.0, 1.0))
TOKENS = (0, 1, 2, 1)
ADVANTAGES = (1.0, 1.0, -2.0, -2.0)


@dataclasses.dataclass(frozen=True)
class Scored(MicroBatch):
    """A micro-batch with the logits that its log-probs and entropies come from."""

    logits: torch.Tensor | None = None


def micro_batch() -> Scored:
    logits = torch.tensor(LOGITS, requires_grad=True)
    tokens, taus = torch.tensor(TOKENS), torch.tensor(TAUS)
    return Scored(
        logits=logits,
        logprobs=token_logprobs(logits, tokens, taus),
        entropies=token_entropy(logits, taus),
        tokens=tokens,
        temperatures=taus,
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


@pytest.mark.parametrize("term", ["bonus", "kl", "penalty"])
def test_terms_beside_the_surrogate_count_tokens_as_often_as_their_rollouts(term):
    """The first rollout was stopped, the second counts twice; the surrogate's factor is 0."""
    logprobs, entropies = by_hand()
    shifted = torch.tensor(logprobs) - torch.tensor([0.1, -0.1, 0.06, -0.05])
    penalty = 0.5 if term == "penalty" else 0.0
    settings = {"bonus": {"entropy_coef": 0.3}, "kl": {"kl_coef": 0.2}, "penalty": {}}[term]
    micro = micro_batch()
    parts = PolicyLoss(clipped, **settings)(
        micro,
        torch.ones(4) / 8,
        TOTALS,
        old_logprobs=shifted,
        reference_logprobs=shifted,
        effects=TokenEffects(torch.zeros(4), torch.full((4,), penalty)),
        counts=torch.tensor([0.0, 0.0, 2.0, 2.0]),
    )
    wanted = {
        "bonus": -0.3 * 2 * sum(entropies[2:]) / 8,
        "kl": 0.2 * 2 * sum(math.exp(d) - 1 - d for d in (-0.06, 0.05)) / 8,
        "penalty": 0.5 * 2 * (0.06 + 0.05) / 8,
    }[term]
    assert parts.loss.item() == pytest.approx(wanted, rel=1e-4)
    parts.loss.backward()
    assert bool((micro.logits.grad[:2] == 0).all())
    assert bool((micro.logits.grad[2:] != 0).any())


def test_clips_of_a_surrogate_that_does_not_say_are_told_apart_by_each_tokens_ratio():
    def silent(inputs):
        return Surrogate(inputs.log_ratios, torch.ones(len(inputs.log_ratios)).bool())

    old = torch.tensor(by_hand()[0]) - torch.tensor([0.1, -0.1, 0.0, 0.2])
    parts = PolicyLoss(silent)(micro_batch(), WEIGHTS, TOTALS, old)
    assert parts.clipped_above.tolist() == [True, False, False, True]


def test_a_kl_term_without_reference_is_an_error():
    with pytest.raises(RuntimeError, match="needs the reference policy's log-probs"):
        PolicyLoss(clipped, kl_coef=0.5)(micro_batch(), WEIGHTS, TOTALS)


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        *[({}, False), ({"entropy_coef": 1e-4}, True), ({"kl_coef": 1e-4}, True)],
        *[({"exploration": KLCov()}, True), ({"exploration": ClipCov()}, False)],
        ({"exploration": HighEntropyMask()}, False),
    ],
)
def test_which_losses_need_every_rollout(settings, every):
    assert PolicyLoss(clipped, **settings).needs_every_rollout is every


# -- correction of the mismatch between trainer and sampler

SAMPLER = (0.5, 0.3, 0.2)  # probabilities of the three tokens
REWARDS = (1.0, -2.0, 0.5)


def every_token(trainer_logits: torch.Tensor) -> MicroBatch:
    """Rollouts of one token, each token once: weights of SAMPLER make sums over it expectations."""
    return MicroBatch(
        logprobs=token_logprobs(trainer_logits.repeat(3, 1), torch.arange(3), torch.ones(3)),
        tokens=torch.arange(3),
        temperatures=torch.ones(3),
        advantages=torch.tensor(REWARDS),
        rollout=torch.arange(3),
        sampler_logprobs=torch.tensor(SAMPLER).log(),
        positions=torch.ones(3, 1, dtype=torch.bool),
    )


def expected_gradient(weights: list[float], trainer: list[float]) -> list[float]:
    """d/dz of -E_sampler[w r ln p] with w fixed: -sum_v mu_v w_v r_v (1[v = j] - p_j)."""
    terms = [mu * w * r for mu, w, r in zip(SAMPLER, weights, REWARDS, strict=True)]
    return [-sum(term * ((v == j) - trainer[j]) for v, term in enumerate(terms)) for j in range(3)]


@pytest.mark.parametrize(
    ("correction", "bounded"),
    [
        (partial(truncated, cap=1e6), lambda w: w),
        (partial(truncated, cap=1.2), lambda w: min(w, 1.2)),
        (partial(masked, low=0.5, high=1.2), lambda w: w if 0.5 <= w <= 1.2 else 0.0),
        (None, lambda w: 1.0),
    ],
)
def test_tokens_of_another_sampler_give_the_on_policy_gradient_up_to_the_bound(correction, bounded):
    logits = torch.tensor([0.2, 0.7, -1.0], requires_grad=True)
    trainer = torch.softmax(logits, dim=0).tolist()
    ratios = [p / mu for p, mu in zip(trainer, SAMPLER, strict=True)]  # 0.69, 1.89, 0.52
    loss = PolicyLoss(clipped, correction=correction)
    parts = loss(every_token(logits), torch.tensor(SAMPLER), TOTALS)
    parts.loss.backward()
    wanted = expected_gradient([bounded(w) for w in ratios], trainer)
    assert logits.grad.tolist() == pytest.approx(wanted, abs=1e-6)


def test_without_a_bound_the_sampler_does_not_matter():
    logits = torch.tensor([0.2, 0.7, -1.0], requires_grad=True)
    loss = PolicyLoss(clipped, correction=partial(truncated, cap=1e6))
    loss(every_token(logits), torch.tensor(SAMPLER), TOTALS).loss.backward()
    probs = torch.softmax(logits, dim=0)
    (on_policy,) = torch.autograd.grad(-(probs * torch.tensor(REWARDS)).sum(), logits)
    torch.testing.assert_close(logits.grad, on_policy)


def test_the_correction_compares_the_policy_before_the_first_step_not_the_present_one():
    micro = micro_batch()
    old = torch.tensor(by_hand()[0]) - 0.1  # every importance ratio is e^0.1
    sampler = old - torch.tensor([0.5, -0.5, 0.0, 2.0])
    micro = dataclasses.replace(micro, sampler_logprobs=sampler)
    parts = PolicyLoss(clipped, correction=truncated)(micro, WEIGHTS, TOTALS, old)
    weights = [math.exp(0.5), math.exp(-0.5), 1.0, 2.0]
    assert parts.correction.weights.tolist() == pytest.approx(weights, rel=1e-5)
    assert parts.correction.cut.tolist() == [False, False, False, True]
    share = [float(w) for w in WEIGHTS]
    wanted = -math.exp(0.1) * sum(
        s * w * a for s, w, a in zip(share, weights, ADVANTAGES, strict=True)
    )
    assert parts.loss.item() == pytest.approx(wanted, rel=1e-5)


def test_a_masked_token_has_no_gradient_and_the_others_keep_theirs():
    sampler = torch.tensor(by_hand()[0]) - torch.tensor([0.0, 3.0, 0.0, -3.0])
    micro = dataclasses.replace(micro_batch(), sampler_logprobs=sampler)
    PolicyLoss(clipped, correction=masked)(micro, WEIGHTS, TOTALS).loss.backward()
    plain = micro_batch()
    PolicyLoss(clipped)(plain, WEIGHTS, TOTALS).loss.backward()
    assert bool((micro.logits.grad[[1, 3]] == 0).all())
    assert torch.allclose(micro.logits.grad[[0, 2]], plain.logits.grad[[0, 2]], atol=1e-6)


def test_a_correction_leaves_the_other_terms_alone():
    sampler = torch.tensor(by_hand()[0]) - 3.0  # every token is masked
    micro = dataclasses.replace(micro_batch(), sampler_logprobs=sampler)
    parts = PolicyLoss(clipped, entropy_coef=0.3, correction=masked)(micro, WEIGHTS, TOTALS)
    assert parts.loss.item() == pytest.approx(-0.3 * sum(by_hand()[1]) / 8, rel=1e-5)


def test_a_loss_says_whether_it_corrects():
    assert PolicyLoss(clipped, correction=truncated).corrects
    assert not PolicyLoss(clipped).corrects


def test_bounds_of_the_correction_are_checked_at_construction_too():
    with pytest.raises(ValueError, match=r"cap=0\.5"):
        PolicyLoss(clipped, correction=partial(truncated, cap=0.5))


# -- exploration


def test_effects_multiply_the_surrogate_and_add_to_it():
    micro = micro_batch()
    shifts = torch.tensor([0.1, -0.1, 0.05, -0.05])
    old = torch.tensor(by_hand()[0]) - shifts
    effects = TokenEffects(torch.tensor([2.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.5, 3.0]))
    parts = PolicyLoss(clipped)(micro, WEIGHTS, TOTALS, old, effects=effects)
    wanted = -0.125 * 2 * math.exp(0.1)
    wanted += 0.25 * (2 * math.exp(0.05) + 0.5 * 0.05)
    wanted += 0.25 * (2 * math.exp(-0.05) + 3 * 0.05)
    assert parts.loss.item() == pytest.approx(wanted, rel=1e-5)
    parts.loss.backward()
    moved = micro.logits.grad.abs().sum(dim=1) > 0
    assert moved.tolist() == [True, False, True, True]


def test_holding_a_token_has_no_gradient_while_the_policy_has_not_moved():
    held, plain = micro_batch(), micro_batch()
    effects = TokenEffects(torch.ones(4), torch.full((4,), 5.0))
    PolicyLoss(clipped)(held, WEIGHTS, TOTALS, effects=effects).loss.backward()
    PolicyLoss(clipped)(plain, WEIGHTS, TOTALS).loss.backward()
    torch.testing.assert_close(held.logits.grad, plain.logits.grad)


# -- a weight of the entropy bonus that moves


def test_the_weight_of_the_bonus_follows_what_was_observed():
    loss = PolicyLoss(clipped, entropy_coef=AdaptiveEntropyBonus(0.5, delta=0.1, highest=1.0))
    assert loss.adapts
    assert loss.needs_every_rollout
    plain = PolicyLoss(clipped)(micro_batch(), WEIGHTS, TOTALS).loss
    assert loss(micro_batch(), WEIGHTS, TOTALS).loss.item() == plain.item()
    assert loss.observe(0.4)["entropy_coef"] == loss.entropy_coef == 0.1
    bonus = loss(micro_batch(), WEIGHTS, TOTALS).loss
    assert (plain - bonus).item() == pytest.approx(0.1 * sum(by_hand()[1]) / 8, rel=1e-5)
    loss.observe(0.6)
    assert loss(micro_batch(), WEIGHTS, TOTALS).loss.item() == plain.item()


def test_a_fixed_weight_neither_moves_nor_has_state():
    loss = PolicyLoss(clipped, entropy_coef=0.3)
    assert loss.observe(0.1) == {}
    assert (loss.entropy_coef, loss.adapts, loss.state_dict()) == (0.3, False, {})
    loss.load_state_dict({})


def test_state_of_a_loss_belongs_to_that_loss():
    moving = PolicyLoss(clipped, entropy_coef=AdaptiveEntropyBonus())
    moving.observe(0.7)
    other = PolicyLoss(clipped, entropy_coef=AdaptiveEntropyBonus())
    other.load_state_dict(moving.state_dict())
    assert other.state_dict() == moving.state_dict()
    with pytest.raises(ValueError, match=r"state of loss: .*missing keys \['entropy_coef'\]"):
        other.load_state_dict({})
    with pytest.raises(ValueError, match=r"state of loss: unknown keys \['entropy_coef'\]"):
        PolicyLoss(clipped).load_state_dict(moving.state_dict())


def test_bounds_of_the_surrogate_are_checked_at_construction_too():
    with pytest.raises(ValueError, match=r"clip_low=1\.5"):
        PolicyLoss(partial(clipped, clip_low=1.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropy_coef": -0.1}, r"loss\.entropy_coef=-0\.1"),
        ({"kl_coef": -1.0}, r"loss\.kl_coef=-1\.0"),
        ({"entropy_coef": float("nan")}, r"loss\.entropy_coef=nan"),
        ({"aggregation": "constant"}, r"needs loss\.max_length .*None"),
        ({"aggregation": "constant", "max_length": 0}, r"needs loss\.max_length .*0"),
        ({"aggregation": "mean"}, r"loss\.aggregation='mean'.*token_mean"),
        ({"prompt_weight": "both"}, r"loss\.prompt_weight='both'.*sample"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        PolicyLoss(clipped, **settings)
