import copy
import math
from functools import partial

import pytest
import torch
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.functional.mismatch import masked, truncated
from e3rl.functional.surrogates import Surrogate, SurrogateInput, cispo, clipped, gspo
from e3rl.ledger.clock import PhaseClock
from e3rl.losses.entropy_bonus import AdaptiveEntropyBonus, DifficultyEntropyBonus
from e3rl.losses.exploration import ClipCov, HighEntropyMask, KLCov, explore
from e3rl.policy.policy import Policy
from e3rl.training.update import split_rollouts
from finished_batches import reference_logprobs
from update_harness import (
    ADAMW,
    exact_copy,
    fit,
    gap,
    gradient,
    make_loss,
    make_module,
    measure_apart,
    size,
    weights_of,
)

GROUPS = (3, 1, 4, 2)
MODES = ("token_mean", "sequence_mean", "sequence_sum", "constant", "prompt_mean")
L_MAX = 16


@pytest.fixture(scope="module")
def exact(policy) -> Policy:
    return exact_copy(policy)


@pytest.fixture(scope="module")
def batch(exact, make_batch) -> RolloutBatch:
    return make_batch(group_sizes=GROUPS, policy=exact)


def permuted(batch: RolloutBatch, order: list[int]) -> RolloutBatch:
    """The same rollouts in another order."""
    other = copy.deepcopy(batch)
    for name, value in vars(other).items():
        if isinstance(value, Tensor):
            setattr(other, name, value[order])
    return other


def regrouped(batch: RolloutBatch, order: list[int]) -> RolloutBatch:
    """The same rollouts, their prompts in another order: prompt i becomes row order[i]."""
    other = copy.deepcopy(batch)
    other.group = torch.tensor(order)[batch.group]
    return other


def weights_by_hand(mode: str, batch: RolloutBatch, by_prompt: bool) -> Tensor:
    """(N,) token weights from the definitions, one rollout at a time."""
    lengths = batch.completion_mask.sum(dim=1).tolist()
    groups = batch.group.tolist()
    sizes = [groups.count(g) for g in groups]
    n, p = len(groups), len(set(groups))
    values = []
    for length, n_i in zip(lengths, sizes, strict=True):
        weight = {
            "token_mean": 1 / sum(lengths),
            "sequence_mean": 1 / n / length,
            "sequence_sum": 1 / n,
            "constant": 1 / n / L_MAX,
            "prompt_mean": 1 / p / n_i / length,
        }[mode]
        values.append(weight * (n / p / n_i if by_prompt and mode != "prompt_mean" else 1))
    return torch.tensor(values, dtype=torch.float32).double()  # as precise as the module's


# -- the gradient


@pytest.mark.end_to_end
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt_weight", ["sample", "prompt"])
def test_on_policy_gradient_is_reinforce_whatever_the_split_and_the_order(
    exact, batch, mode, prompt_weight
):
    logprobs = reference_logprobs(exact, batch)  # each at its own temperature
    weights = weights_by_hand(mode, batch, prompt_weight == "prompt")
    by_hand = gradient(exact, -(weights * batch.advantages * logprobs.sum(dim=1)).sum())
    turned = permuted(regrouped(batch, [2, 0, 3, 1]), [7, 2, 9, 0, 4, 1, 8, 3, 6, 5])
    for budget, own in [(10**6, batch), (50, turned)]:
        loss = make_loss(aggregation=mode, prompt_weight=prompt_weight, max_length=L_MAX)
        fitted = fit(make_module(exact, loss, tokens_per_microbatch=budget), [own])
        assert gap(fitted.gradients[0], by_hand) < 1e-7
    assert size(by_hand) > 1e-3


@pytest.mark.parametrize("aggregation", ["token_mean", "prompt_mean"])
def test_a_prompt_counts_by_its_group_in_the_batch_in_every_minibatch(exact, batch, aggregation):
    """Counted in each minibatch, a group of one would not count in those that it is not in."""
    loss = make_loss(aggregation=aggregation, prompt_weight="prompt")
    still = partial(torch.optim.SGD, lr=0.0)
    module = make_module(exact, loss, still, minibatches=2)
    parts = list(split_rollouts(batch, module.settings))
    fitted = fit(module, [batch])
    groups, lengths = batch.group.tolist(), batch.completion_mask.sum(dim=1)
    factors = torch.tensor([10 / 4 / GROUPS[group] for group in groups])
    for rows, found in zip(parts, fitted.gradients, strict=True):
        logprobs = reference_logprobs(exact, batch).sum(dim=1)
        own = lengths[rows].sum() if aggregation == "token_mean" else len(rows) * lengths[rows]
        weights = (factors[rows] / own).float().double()
        by_hand = gradient(exact, -(weights * batch.advantages[rows] * logprobs[rows]).sum())
        assert gap(found, by_hand) < 1e-5  # ratios are 1 up to the rounding of float32
        assert size(by_hand) > 1e-2


def test_the_temperature_of_each_rollout_is_part_of_its_gradient(exact, batch):
    other = copy.deepcopy(batch)
    other.temperatures = batch.temperatures.flip(0)
    module = make_module(exact)
    first, second = (fit(copy.deepcopy(module), [b]).gradients[0] for b in (batch, other))
    assert gap(first, second) > 1e-4


def test_single_precision_gradients_agree_too(policy, batch):
    gradients = [
        fit(make_module(policy, tokens_per_microbatch=budget), [batch]).gradients[0]
        for budget in (1, 10**6)
    ]
    # Either is some 3e-6 off what float64 gives.
    assert gap(*gradients) < 5e-6 * size(gradients[0])


# -- rollouts without advantage


def kept_tokens(batch: RolloutBatch) -> float:
    return float(batch.completion_mask[batch.advantages != 0].sum())


@pytest.mark.end_to_end
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt_weight", ["sample", "prompt"])
def test_skipping_rollouts_of_advantage_0_leaves_the_step_as_it_is(
    exact, batch, mode, prompt_weight
):
    loss = make_loss(aggregation=mode, prompt_weight=prompt_weight, max_length=L_MAX)
    off, on = (
        fit(make_module(exact, loss, ADAMW, skip_zero_advantage=skip), [batch])
        for skip in ("off", "exact")
    )
    assert gap(off.weights[0], on.weights[0]) < 1e-7
    assert off.reports[0]["policy/skipped"] == 0
    assert on.reports[0]["policy/skipped"] == 0.3  # 3 of 10 rollouts
    assert on.reports[0]["policy/loss"] == pytest.approx(off.reports[0]["policy/loss"], abs=1e-6)


@pytest.mark.end_to_end
@pytest.mark.parametrize("surrogate", [clipped, gspo, cispo])
def test_skipping_is_exact_for_every_surrogate_over_several_steps(exact, batch, surrogate):
    loss = make_loss(surrogate=surrogate, aggregation="sequence_mean")
    off, on = (
        fit(
            make_module(
                exact, loss, ADAMW, skip_zero_advantage=skip, minibatches=2, inner_epochs=2
            ),
            [batch],
        )
        for skip in ("off", "exact")
    )
    assert gap(off.weights[0], on.weights[0]) < 1e-7
    assert on.reports[0]["policy/skipped"] > 0


def test_renormalising_scales_the_step_by_all_over_kept_tokens(exact, batch):
    kept, renormalised = (
        fit(make_module(exact, skip_zero_advantage=skip), [batch]).gradients[0]
        for skip in ("exact", "renormalise")
    )
    ratio = float(batch.completion_mask.sum()) / kept_tokens(batch)
    assert ratio > 1.1
    assert gap({k: v * ratio for k, v in kept.items()}, renormalised) < 1e-7


def test_renormalising_by_prompts_counts_only_kept_rollouts(exact, batch):
    loss = make_loss(aggregation="prompt_mean")
    rows = (batch.advantages != 0).nonzero()[:, 0].tolist()
    kept = permuted(batch, rows)
    renormalised = fit(make_module(exact, loss, skip_zero_advantage="renormalise"), [batch])
    weights = weights_by_hand("prompt_mean", kept, by_prompt=False)
    logprobs = reference_logprobs(exact, kept).sum(dim=1)
    by_hand = gradient(exact, -(weights * kept.advantages * logprobs).sum())
    assert gap(renormalised.gradients[0], by_hand) < 1e-7


@pytest.mark.parametrize("term", ["entropy_coef", "kl_coef"])
def test_terms_on_every_rollout_switch_skipping_off(policy, batch, term):
    loss = make_loss(**{term: 0.1})
    report = fit(make_module(policy, loss, skip_zero_advantage="exact"), [batch]).reports[0]
    assert report["policy/skipped"] == 0


def test_an_empty_batch_steps_like_the_unskipped_update_or_leaves_everything_alone(exact, batch):
    empty = copy.deepcopy(batch)
    empty.advantages = torch.zeros_like(batch.advantages)
    off, step, skip = (
        fit(make_module(exact, optimizer=ADAMW, **settings), [batch, empty])
        for settings in (
            {"skip_zero_advantage": "off"},
            {"empty_batch": "step"},
            {"empty_batch": "skip"},
        )
    )
    assert gap(step.weights[0], step.weights[1]) > 1e-5  # momentum and weight decay
    assert gap(step.weights[1], off.weights[1]) < 1e-7
    assert gap(skip.weights[0], skip.weights[1]) == 0
    assert (step.global_step, skip.global_step) == (2, 1)
    assert [f.reports[1]["policy/optimizer_steps"] for f in (step, skip)] == [1, 0]
    assert skip.reports[1]["policy/loss"] == skip.reports[1]["policy/grad_norm"] == 0
    assert skip.reports[1]["policy/skipped"] == 1


def test_an_empty_batch_is_passed_over_also_where_no_rollout_is_skipped(exact, batch):
    empty = copy.deepcopy(batch)
    empty.advantages = torch.zeros_like(batch.advantages)
    settings = {"empty_batch": "skip", "skip_zero_advantage": "off"}
    fitted = fit(make_module(exact, optimizer=ADAMW, **settings), [batch, empty])
    assert gap(fitted.weights[0], fitted.weights[1]) == 0
    assert fitted.global_step == 1
    bonus = make_loss(entropy_coef=0.1)  # acts on every rollout: there is something to learn
    fitted = fit(make_module(exact, bonus, optimizer=ADAMW, **settings), [batch, empty])
    assert gap(fitted.weights[0], fitted.weights[1]) > 1e-5


# -- further terms of the loss


def summed_entropies(policy: Policy, batch: RolloutBatch) -> Tensor:
    """(N,) exact entropies, summed over the sampled tokens of each rollout."""
    sums = []
    for row in range(batch.n_rollouts):
        end, tau = int(batch.lengths[row]), float(batch.temperatures[row])
        logits = policy.model(input_ids=batch.tokens[row : row + 1, :end]).logits[0]
        probs = torch.softmax(logits / tau, dim=-1)
        entropies = -(probs * probs.log()).sum(dim=-1)
        sums.append(entropies[:-1][batch.completion_mask[row, 1:end]].sum())
    return torch.stack(sums)


@pytest.mark.end_to_end
@pytest.mark.parametrize("budget", [1, 10**6])
def test_entropy_bonus_has_the_gradient_of_the_exact_entropy_of_every_token(exact, batch, budget):
    still = copy.deepcopy(batch)
    still.advantages = torch.zeros_like(batch.advantages)
    total = summed_entropies(exact, batch).sum()
    by_hand = gradient(exact, -0.3 * total / int(batch.completion_mask.sum()))
    module = make_module(exact, make_loss(entropy_coef=0.3), tokens_per_microbatch=budget)
    fitted = fit(module, [still])
    assert gap(fitted.gradients[0], by_hand) < 1e-6
    assert size(by_hand) > 1e-3


def test_kl_term_pulls_back_to_where_the_policy_started(exact, batch):
    still = copy.deepcopy(batch)
    still.advantages = torch.zeros_like(batch.advantages)
    module = make_module(exact, make_loss(kl_coef=0.2), tokens_per_microbatch=60)
    with torch.no_grad():
        head = module.policy.model.get_output_embeddings().weight
        head += 0.02 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))
    moved = copy.deepcopy(module.policy)
    mask = batch.completion_mask
    d = reference_logprobs(exact, batch).detach()[mask] - reference_logprobs(moved, batch)[mask]
    by_hand = gradient(moved, 0.2 * (d.exp() - d - 1).mean())
    fitted = fit(module, [still])
    assert gap(fitted.gradients[0], by_hand) < 1e-7
    assert size(by_hand) > 1e-3


@pytest.mark.end_to_end
@pytest.mark.parametrize("term", ["entropy_coef", "kl_coef"])
@pytest.mark.parametrize("budget", [1, 10**6])
def test_rollouts_that_were_stopped_have_no_part_in_the_terms_beside_the_surrogate(
    exact, batch, term, budget
):
    """Those that went on count for them too."""
    still = copy.deepcopy(batch)
    still.advantages = torch.zeros_like(batch.advantages)
    still.weights = torch.tensor([0.0, 0.0, 3.0, 1.0, 0.0, 4.0, 0.0, 0.0, 1.0, 1.0])
    module = make_module(exact, make_loss(**{term: 0.2}), tokens_per_microbatch=budget)
    with torch.no_grad():
        head = module.policy.model.get_output_embeddings().weight
        head += 0.02 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))
    moved, mask = copy.deepcopy(module.policy), batch.completion_mask
    if term == "entropy_coef":
        sums = -summed_entropies(moved, batch)
    else:
        d = reference_logprobs(exact, batch).detach() - reference_logprobs(moved, batch)
        sums = torch.where(mask, d.exp() - d - 1, 0.0).sum(dim=1)
    by_hand = gradient(moved, 0.2 * (still.weights.double() * sums).sum() / int(mask.sum()))
    assert gap(fit(module, [still]).gradients[0], by_hand) < 1e-6
    assert size(by_hand) > 1e-3


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(HalfPrecision("bf16-true"), torch.bfloat16), (DoublePrecision(), torch.float64)],
    ids=["bf16-true", "64-true"],
)
def test_the_reference_has_the_policys_precision_and_pulls_nowhere_at_first(
    policy, batch, precision, dtype
):
    still = copy.deepcopy(batch)
    still.advantages = torch.zeros_like(batch.advantages)
    precision.convert_input = lambda data: data  # as runs have it
    module = make_module(policy, make_loss(kl_coef=1.0))
    report = fit(module, [still], plugins=[precision]).reports[0]
    assert {p.dtype for p in module.policy.parameters()} == {dtype}
    assert {p.dtype for p in module._reference[0].parameters()} == {dtype}
    assert report["policy/loss"] == report["policy/grad_norm"] == 0


def test_the_reference_is_neither_trained_nor_saved(policy, batch):
    module = make_module(policy, make_loss(kl_coef=0.5))
    names = set(module.state_dict())
    assert names == {f"policy.{name}" for name in policy.state_dict()}
    start = weights_of(policy)
    fitted = fit(module, [batch, batch])
    assert gap(weights_of(module._reference[0]), start) == 0
    assert gap(fitted.weights[-1], start) > 0


# -- correction of the mismatch between trainer and sampler


def sampled_elsewhere(batch: RolloutBatch) -> tuple[RolloutBatch, Tensor]:
    """The batch with log-probs of another sampler, and (N, T) ln trainer - ln sampler."""
    own = copy.deepcopy(batch)
    noise = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(5))
    gaps = torch.where(batch.completion_mask, 0.5 * noise, 0.0)
    own.sampler_logprobs = batch.sampler_logprobs - gaps
    return own, gaps.double()


def corrections_by_hand(level: str, gaps: Tensor, mask: Tensor) -> Tensor:
    """(N, T) weights: of the token, product over the rollout, geometric mean of the rollout."""
    logs = {
        "token": gaps,
        "sequence": gaps.sum(dim=1, keepdim=True),
        "geometric": gaps.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True),
    }[level]
    return torch.where(mask, logs.exp(), 0.0)


@pytest.mark.end_to_end
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("steps", [1, 2])
def test_corrected_gradients_are_weighted_ones_whatever_the_split(exact, batch, level, steps):
    own, gaps = sampled_elsewhere(batch)
    weights = corrections_by_hand(level, gaps, batch.completion_mask)
    cut = batch.completion_mask & (weights > 1.3)
    logprobs = reference_logprobs(exact, batch)
    terms = weights.clamp(max=1.3) * batch.advantages[:, None] * logprobs
    by_hand = gradient(exact, -terms.sum() / batch.completion_mask.sum())
    for budget in (50, 10**6):
        loss = make_loss(correction=partial(truncated, level=level, cap=1.3))
        settings = {"tokens_per_microbatch": budget, "inner_epochs": steps}
        fitted = fit(make_module(exact, loss, **settings), [own])
        assert gap(fitted.gradients[0], by_hand) < 1e-6
        kept = batch.completion_mask & (batch.advantages != 0)[:, None]
        share = float((cut & kept).sum() / kept.sum())
        assert fitted.reports[0]["policy/correction_cut"] == pytest.approx(share)
    assert 0 < share < 1
    assert size(by_hand) > 1e-3


def test_skipping_stays_exact_under_a_correction(exact, batch):
    own, _ = sampled_elsewhere(batch)
    loss = make_loss(correction=partial(masked, level="geometric", low=0.9, high=1.1))
    off, on = (
        fit(make_module(exact, loss, skip_zero_advantage=skip, minibatches=2), [own])
        for skip in ("off", "exact")
    )
    for first, second in zip(off.gradients, on.gradients, strict=True):
        assert gap(first, second) < 1e-7


def test_what_the_sampler_did_differently_is_reported_by_weights(exact, batch):
    own, gaps = sampled_elsewhere(batch)
    module = make_module(exact, skip_zero_advantage="off", tokens_per_microbatch=50)
    report = fit(module, [own]).reports[0]
    weights = gaps[batch.completion_mask].exp()
    assert report["policy/mismatch_weight"] == pytest.approx(float(weights.mean()), rel=1e-4)
    assert report["policy/mismatch_weight_max"] == pytest.approx(float(weights.max()), rel=1e-4)
    chi2 = float(weights.square().mean()) - 1
    assert report["policy/mismatch_chi2"] == pytest.approx(chi2, rel=1e-3)
    ess = float(weights.sum().square() / weights.square().sum()) / len(weights)
    assert report["policy/mismatch_ess"] == pytest.approx(ess, rel=1e-4)


def test_a_correction_together_with_the_samplers_ratios_is_refused_at_construction(policy):
    with pytest.raises(ValueError, match="would count them twice"):
        make_module(policy, make_loss(correction=truncated), old_logprobs="sampler")


# -- exploration by single tokens


def entropies_by_hand(policy: Policy, batch: RolloutBatch) -> Tensor:
    """(N, T) entropies at the sampling temperatures, 0 off the mask."""
    rows = []
    for row in range(batch.n_rollouts):
        tau = float(batch.temperatures[row])
        logits = policy.model(input_ids=batch.tokens[row : row + 1]).logits[0] / tau
        logprobs = torch.log_softmax(logits, dim=-1)
        own = -(logprobs.exp() * logprobs).sum(dim=-1).roll(1)
        rows.append(torch.where(batch.completion_mask[row], own, 0.0))
    return torch.stack(rows).detach()


@pytest.mark.end_to_end
@pytest.mark.parametrize("skip", ["off", "exact"])
def test_the_mask_trains_on_the_most_uncertain_tokens_whatever_the_split(exact, batch, skip):
    mask = batch.completion_mask
    teaching = mask & (batch.advantages != 0)[:, None]
    entropies = entropies_by_hand(exact, batch)
    number = math.ceil(0.3 * int(teaching.sum()))
    threshold = entropies[teaching].sort(descending=True).values[number - 1]
    kept = teaching & (entropies >= threshold)
    assert int(kept.sum()) == number
    terms = kept * batch.advantages[:, None] * reference_logprobs(exact, batch)
    by_hand = gradient(exact, -terms.sum() / mask.sum() * int(teaching.sum()) / number)
    quota = math.ceil(0.3 * int(mask.sum()))
    top = mask & (entropies >= entropies[mask].sort(descending=True).values[quota - 1])
    right = teaching & (batch.correct > 0)[:, None]
    for budget in (50, 10**6):
        loss = make_loss(exploration=HighEntropyMask(share=0.3, overlap=True))
        module = make_module(exact, loss, tokens_per_microbatch=budget, skip_zero_advantage=skip)
        fitted = fit(module, [batch])
        assert gap(fitted.gradients[0], by_hand) < 1e-6
        report = fitted.reports[0]
        assert report["exploration/share"] == pytest.approx(number / int(teaching.sum()))
        assert report["exploration/entropy_threshold"] == pytest.approx(float(threshold), rel=1e-5)
        overlap = int((top & ~teaching).sum()) / quota
        assert report["exploration/overlap"] == pytest.approx(overlap)
        of_right = int((kept & right).sum()) / int(right.sum())
        assert report["exploration/share_right"] == pytest.approx(of_right)


def test_clip_cov_takes_the_same_tokens_out_whatever_the_split(exact, batch):
    rule = ClipCov(share=0.1, low=0.2, high=9.0)
    effects, figures = explore(rule, batch, None)
    assert 0 < figures["share"] <= 0.1
    terms = effects.factor * batch.advantages[:, None] * reference_logprobs(exact, batch)
    by_hand = gradient(exact, -terms.sum() / batch.completion_mask.sum())
    for budget, skip in ((1, "exact"), (50, "off"), (10**6, "exact")):
        settings = {"tokens_per_microbatch": budget, "skip_zero_advantage": skip}
        fitted = fit(make_module(exact, make_loss(exploration=rule), **settings), [batch])
        assert gap(fitted.gradients[0], by_hand) < 1e-7


def test_kl_cov_pulls_the_chosen_tokens_back_in_the_second_step(exact, batch):
    rule = KLCov(share=0.1, coef=2.0)
    free = partial(clipped, clip_low=1.0, clip_high=1e9, dual_clip=None)
    fitted = fit(
        make_module(exact, make_loss(surrogate=free, exploration=rule), inner_epochs=2),
        [batch],
    )
    plain = fit(make_module(exact, make_loss(surrogate=free), inner_epochs=2), [batch])
    assert gap(fitted.gradients[0], plain.gradients[0]) < 1e-7  # inert while the ratio is 1
    moved = copy.deepcopy(exact)
    once = fit(make_module(exact, make_loss(surrogate=free)), [batch])
    moved.load_state_dict(once.module.policy.state_dict())
    old, new = reference_logprobs(exact, batch).detach(), reference_logprobs(moved, batch)
    effects, _ = explore(rule, batch, None)
    ratio = (new - old).exp() * batch.completion_mask
    terms = -ratio * batch.advantages[:, None] + effects.penalty * (new - old).abs()
    by_hand = gradient(moved, terms.sum() / batch.completion_mask.sum())
    assert gap(fitted.gradients[1], by_hand) < 1e-5  # old log-probs are kept in float32
    assert gap(fitted.gradients[1], plain.gradients[1]) > 1e-3


@pytest.mark.end_to_end
@pytest.mark.parametrize("budget", [1, 10**6])
def test_a_bonus_by_difficulty_weighs_each_token_by_the_accuracy_of_its_group(exact, batch, budget):
    still = copy.deepcopy(batch)
    still.advantages = torch.zeros_like(batch.advantages)
    # Groups of 3, 1, 4 and 2 rollouts with accuracies of 1/3, 0, 1/4 and 1/2.
    assert batch.group.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
    still.correct = torch.tensor([1.0, 0, 0, 0, 0, 0, 1, 0, 1, 0])
    shares = torch.tensor([1 / 3, 1.0, 1 / 2, 0.0]).double()[batch.group]  # 1 - p/.5
    bonus = DifficultyEntropyBonus(anchor=2.0, delta=0.4, highest=1.0)
    module = make_module(exact, make_loss(entropy_coef=bonus), tokens_per_microbatch=budget)
    fitted = fit(module, [still])
    assert fitted.reports[0]["policy/entropy_coef"] == pytest.approx(
        0.2
    )  # half the target is missing
    total = (shares * summed_entropies(exact, batch)).sum()
    by_hand = gradient(exact, -0.2 * total / int(batch.completion_mask.sum()))
    assert gap(fitted.gradients[0], by_hand) < 1e-6
    assert size(by_hand) > 1e-3


def test_the_weight_of_the_bonus_is_reported_saved_and_resumed(policy, batch, tmp_path):
    def module():
        bonus = AdaptiveEntropyBonus(target=99.0, delta=0.1, highest=1.0)
        return make_module(policy, make_loss(entropy_coef=bonus))

    fitted = fit(module(), [batch, batch])
    assert [r["policy/entropy_coef"] for r in fitted.reports] == pytest.approx([0.1, 0.2])
    assert [r["policy/entropy_target"] for r in fitted.reports] == [99.0, 99.0]
    fitted.module.trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    later = module()
    later.on_load_checkpoint(saved)
    assert later.loss.entropy_coef == pytest.approx(0.2)
    with pytest.raises(ValueError, match="state of loss: unknown keys"):
        make_module(policy).on_load_checkpoint(saved)


def test_the_bonus_observes_the_entropy_of_all_sampled_tokens(policy, batch):
    bonus = AdaptiveEntropyBonus()
    report = fit(make_module(policy, make_loss(entropy_coef=bonus)), [batch]).reports[0]
    mean = -float(batch.sampler_logprobs.sum() / batch.completion_mask.sum())
    assert report["policy/entropy_target"] == pytest.approx(mean, rel=1e-5)


# -- several steps per batch


class Recording:
    """A surrogate that keeps what it is given."""

    def __init__(self) -> None:
        self.inputs: list[SurrogateInput] = []

    def __call__(self, inputs: SurrogateInput) -> Surrogate:
        self.inputs.append(inputs)
        return clipped(inputs)


@pytest.mark.end_to_end
@pytest.mark.parametrize(("minibatches", "inner_epochs"), [(2, 1), (1, 2), (3, 2)])
def test_ratios_compare_with_the_policy_before_the_first_step(
    exact, batch, minibatches, inner_epochs
):
    surrogate = Recording()
    module = make_module(
        exact,
        make_loss(surrogate=surrogate),
        ADAMW,
        minibatches=minibatches,
        inner_epochs=inner_epochs,
        tokens_per_microbatch=60,
        skip_zero_advantage="off",
    )
    surrogate.inputs.clear()  # of the check at construction
    fitted = fit(module, [batch])
    old = torch.cat([i.logprobs.detach() - i.log_ratios.detach() for i in surrogate.inputs])
    before = reference_logprobs(exact, batch).detach()[batch.completion_mask]
    wanted = before.repeat(inner_epochs).sort().values
    assert torch.allclose(old.sort().values, wanted, atol=1e-5)  # kept in float32
    moved = torch.cat([i.log_ratios.detach() for i in surrogate.inputs]).abs()
    assert moved.max() > 1e-3
    assert fitted.global_step == minibatches * inner_epochs
    assert fitted.reports[0]["policy/optimizer_steps"] == minibatches * inner_epochs


def test_rollouts_of_advantage_0_are_not_scored_for_old_log_probs_that_nobody_reads(
    exact, batch, monkeypatch
):
    module = make_module(exact, minibatches=2)
    rows = torch.arange(batch.n_rollouts)
    wanted = reference_logprobs(exact, batch)
    wanted[batch.advantages == 0] = 0
    assert torch.allclose(module._old_logprobs(batch), wanted.float(), atol=1e-5)
    assert module._active(batch, rows).tolist() == [0, 1, 3, 4, 6, 7, 9]


def test_a_single_step_compares_with_nothing_and_has_ratio_1(exact, batch):
    surrogate = Recording()
    module = make_module(exact, make_loss(surrogate=surrogate))
    surrogate.inputs.clear()
    fit(module, [batch])
    assert all(bool((i.log_ratios == 0).all()) for i in surrogate.inputs)
    assert all(i.log_ratios.requires_grad for i in surrogate.inputs)


def test_minibatches_are_shuffled_by_the_batchs_seed_and_cover_every_rollout_once(policy, batch):
    settings = make_module(policy, minibatches=3, inner_epochs=2).settings
    parts = [rows.tolist() for rows in split_rollouts(batch, settings)]
    again = [rows.tolist() for rows in split_rollouts(batch, settings)]
    assert parts == again
    assert [len(part) for part in parts] == [4, 3, 3] * 2
    for epoch in (parts[:3], parts[3:]):
        assert sorted(row for part in epoch for row in part) == list(range(10))
    assert parts[:3] != parts[3:]
    other = copy.deepcopy(batch)
    other.stream = (1, "train", 0)
    assert parts != [rows.tolist() for rows in split_rollouts(other, settings)]


def test_a_minibatch_without_rollouts_is_no_step_of_optimiser_and_schedule(policy, make_batch):
    tiny = make_batch(group_sizes=(2,), advantages=[1.0, -1.0])
    schedule = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (step + 1))
    found = []
    for minibatches in (2, 3):
        module = make_module(policy, None, ADAMW, schedule, minibatches=minibatches)
        found.append(fit(module, [tiny]))
        assert module.lr_schedulers().last_epoch == 2
    assert [f.global_step for f in found] == [2, 2]
    assert [f.reports[0]["policy/optimizer_steps"] for f in found] == [2, 2]
    assert gap(found[0].weights[0], found[1].weights[0]) == 0


def test_the_clip_takes_tokens_out_of_the_gradient_where_the_ratio_left_the_range(exact, batch):
    own = copy.deepcopy(batch)
    current = reference_logprobs(exact, batch)
    shift = torch.where(torch.arange(batch.n_rollouts) % 2 == 0, 0.5, -0.5)[:, None]
    mask = batch.completion_mask
    own.sampler_logprobs = torch.where(mask, current.detach().float() - shift, 0.0)
    ratio = torch.where(mask, torch.exp(current - own.sampler_logprobs), 0.0)  # e^0.5 or e^-0.5
    up, down = batch.advantages > 0, batch.advantages < 0
    high = (shift > 0)[:, 0]
    kept = ((up & ~high) | (down & high)).double()[:, None]
    by_hand = gradient(exact, -(kept * batch.advantages[:, None] * ratio).sum() / mask.sum())
    fitted = fit(make_module(exact, old_logprobs="sampler"), [own])
    assert gap(fitted.gradients[0], by_hand) < 1e-6
    cut = mask[(up & high) | (down & ~high)].sum()
    share = float(cut) / kept_tokens(batch)
    assert fitted.reports[0]["policy/clip_fraction"] == pytest.approx(share)
    assert 0 < share < 1


def test_what_gspo_cuts_of_right_rollouts_it_cuts_from_above(policy, make_batch):
    """Though some of their tokens became less likely."""
    right = make_batch(group_sizes=(4, 4), policy=policy, advantages=[1.0] * 8)
    loss = make_loss(surrogate=gspo, aggregation="sequence_mean")
    report = fit(make_module(policy, loss, inner_epochs=4), [right]).reports[0]
    assert report["policy/clip_fraction_high"] == report["policy/clip_fraction"] > 0
    assert report["policy/clip_fraction_low"] == 0


# -- optimiser, schedule, clipping, failures


def test_the_schedule_moves_once_per_optimiser_step_and_the_rate_used_is_reported(policy, batch):
    schedule = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (step + 1))
    module = make_module(policy, scheduler=schedule, minibatches=2)
    fitted = fit(module, [batch, batch])
    assert module.lr_schedulers().last_epoch == 4
    assert [r["policy/lr"] for r in fitted.reports] == pytest.approx([1e-3, 1e-3 / 3])


def test_gradients_are_clipped_to_the_given_norm_and_the_norm_before_is_reported(policy, batch):
    free = fit(make_module(policy), [batch])
    norm = torch.cat([g.flatten() for g in free.gradients[0].values()]).norm().item()
    assert free.reports[0]["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
    start = weights_of(policy)
    bound = fit(make_module(policy, max_grad_norm=norm / 4), [batch])
    assert bound.reports[0]["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert gap(bound.gradients[0], free.gradients[0]) == 0  # callbacks see it as it was
    for name, weight in bound.weights[0].items():
        step = (free.weights[0][name] - start[name]) / 4
        assert torch.allclose(weight - start[name], step, atol=1e-6), name


def broken(inputs: SurrogateInput) -> Surrogate:
    return Surrogate(inputs.logprobs * torch.nan, inputs.advantages < 0)


@pytest.mark.parametrize("allowed", [0, 2])
def test_gradients_that_are_not_finite_stop_the_run_and_leave_the_weights(policy, batch, allowed):
    module = make_module(
        policy, make_loss(surrogate=broken), ADAMW, minibatches=1, nonfinite_steps=allowed
    )
    message = rf"gradient norm is nan at optimiser step 0, the last of {allowed + 1} such steps"
    with pytest.raises(FloatingPointError, match=message):
        fit(module, [copy.deepcopy(batch) for _ in range(5)])
    assert gap(weights_of(module.policy), weights_of(policy)) == 0


class BrokenFor:
    """A surrogate whose losses are no numbers in the first `left` micro-batches with a gradient."""

    def __init__(self) -> None:
        self.left = 0  # losses are tried out when they are made

    def __call__(self, inputs: SurrogateInput) -> Surrogate:
        found = clipped(inputs)
        if not self.left or not inputs.log_ratios.requires_grad:
            return found
        self.left -= 1
        return found._replace(loss=found.loss * torch.nan)


@pytest.mark.parametrize(("minibatches", "bad", "allowed"), [(2, 1, 0), (8, 5, 3)])
def test_a_healthy_minibatch_does_not_undo_one_step_too_many_that_was_left_out(
    policy, batch, minibatches, bad, allowed
):
    surrogate = BrokenFor()
    module = make_module(
        policy,
        make_loss(surrogate=surrogate),
        ADAMW,
        minibatches=minibatches,
        nonfinite_steps=allowed,
        skip_zero_advantage="off",
    )
    surrogate.left = bad
    with pytest.raises(FloatingPointError, match=rf"the last of {allowed + 1} such steps"):
        fit(module, [batch])
    assert gap(weights_of(module.policy), weights_of(policy)) == 0


def test_what_is_reported_is_that_of_the_steps_that_were_taken(policy, batch):
    """The second half of a batch, where the first was left out, is all that was learned from."""
    surrogate = BrokenFor()
    module = make_module(policy, make_loss(surrogate=surrogate), minibatches=2)
    rows = list(split_rollouts(batch, module.settings))[1]
    surrogate.left = 1
    report = fit(module, [batch]).reports[0]
    assert (report["policy/optimizer_steps"], report["policy/nonfinite_steps"]) == (1, 1)
    half = fit(make_module(policy), [permuted(batch, rows.tolist())]).reports[0]
    for name in ("loss", "approx_kl", "mismatch_kl", "mismatch_max", "grad_norm"):
        wanted = pytest.approx(half[f"policy/{name}"], rel=1e-4, abs=1e-9)
        assert report[f"policy/{name}"] == wanted, name
    surrogate.left = 2
    none = fit(module, [batch]).reports[0]
    assert none["policy/optimizer_steps"] == none["policy/loss"] == 0


@pytest.mark.parametrize("wrap", [PhaseClock, lambda inner: inner])
def test_a_users_profiler_goes_on_after_a_step_that_was_left_out(policy, batch, wrap):
    surrogate, profiler = BrokenFor(), SimpleProfiler()
    module = make_module(policy, make_loss(surrogate=surrogate), minibatches=2)
    surrogate.left = 1
    fitted = fit(module, [batch, batch], profiler=wrap(profiler))
    assert [r["policy/optimizer_steps"] for r in fitted.reports] == [1, 2]
    assert len(profiler.recorded_durations["optimizer_step"]) == 3


def test_a_gradient_that_is_not_finite_once_costs_its_step_alone(policy, batch):
    armed: list[float] = []  # losses are tried out when they are made

    def broken_once(inputs: SurrogateInput) -> Surrogate:
        value = -inputs.logprobs * inputs.advantages
        return Surrogate(value * (armed.pop() if armed else 1.0), inputs.advantages < 0)

    module = make_module(policy, make_loss(surrogate=broken_once), ADAMW, nonfinite_steps=1)
    armed.append(torch.nan)
    fitted = fit(module, [copy.deepcopy(batch) for _ in range(3)])
    assert [r["policy/nonfinite_steps"] for r in fitted.reports] == [1, 0, 0]
    assert [r["policy/optimizer_steps"] for r in fitted.reports] == [0, 1, 1]
    assert all(math.isfinite(r["policy/grad_norm"]) for r in fitted.reports)
    assert module.nonfinite_in_a_row == 0
    assert gap(fitted.weights[0], weights_of(policy)) == 0
    assert gap(fitted.weights[1], weights_of(policy)) > 0


def test_a_batch_that_misses_a_slot_is_refused_by_name(policy, batch):
    unfinished = copy.deepcopy(batch)
    unfinished.advantages = None
    with pytest.raises(RuntimeError, match="`advantage` slot"):
        fit(make_module(policy), [unfinished])


def test_renormalising_together_with_an_entropy_bonus_is_refused_at_construction(policy):
    with pytest.raises(ValueError, match="renormalise drops rollouts"):
        make_module(policy, make_loss(entropy_coef=1e-3), skip_zero_advantage="renormalise")


# -- what is reported


def test_the_engines_log_probs_are_compared_with_the_trainers_before_the_first_step(exact, batch):
    own = copy.deepcopy(batch)
    own.sampler_logprobs[own.completion_mask] -= 0.1
    for minibatches in (1, 2):
        report = fit(make_module(exact, minibatches=minibatches, optimizer=ADAMW), [own]).reports[0]
        # KL(sampler || trainer) by k3 with ln trainer - ln sampler = 0.1 everywhere
        assert report["policy/mismatch_kl"] == pytest.approx(math.exp(0.1) - 1.1, rel=1e-3)
        assert report["policy/mismatch_max"] == pytest.approx(0.1, abs=1e-5)
    agreeing = fit(make_module(exact), [batch]).reports[0]
    assert agreeing["policy/mismatch_max"] < 1e-5


def test_approximate_kl_is_that_of_the_old_policy_from_the_new_one(exact, batch):
    own = copy.deepcopy(batch)
    own.sampler_logprobs[own.completion_mask] -= 0.1  # every log ratio is 0.1
    report = fit(make_module(exact, old_logprobs="sampler"), [own]).reports[0]
    assert report["policy/approx_kl"] == pytest.approx(math.exp(0.1) - 1.1, rel=1e-3)
    on_policy = fit(make_module(exact), [batch]).reports[0]
    assert on_policy["policy/approx_kl"] == on_policy["policy/clip_fraction"] == 0


def test_the_reported_loss_is_that_of_the_whole_batch(exact, batch):
    weights = weights_by_hand("sequence_mean", batch, by_prompt=False)
    lengths = batch.completion_mask.sum(dim=1)
    wanted = -float((weights * lengths * batch.advantages).sum())  # every ratio is 1
    module = make_module(exact, make_loss(aggregation="sequence_mean"), tokens_per_microbatch=50)
    report = fit(module, [batch]).reports[0]
    assert report["policy/loss"] == pytest.approx(wanted, rel=1e-5)
    assert report["time/update_s"] > 0


@pytest.mark.end_to_end
@pytest.mark.parametrize("budget", [1, 10**6])
def test_gradient_norms_are_those_of_autograd_for_every_rollout_and_only_where_wanted(
    exact, batch, budget
):
    wanting = copy.deepcopy(batch)
    wanting.wants_grad_norms = True
    module = make_module(exact, tokens_per_microbatch=budget, minibatches=2)
    without, done = fit(module, [batch, wanting]).batches
    assert without.grad_norms is None
    assert "time/grad_norms_s" not in without.metrics
    fresh = fit(make_module(exact, tokens_per_microbatch=budget), [wanting]).batches[0]
    assert not torch.equal(done.grad_norms, fresh.grad_norms)  # of a policy that had moved
    for row in range(batch.n_rollouts):  # advantages of 0 included
        ids = batch.tokens[row : row + 1, : int(batch.lengths[row])]
        mask = batch.completion_mask[row, 1 : ids.shape[1]]
        logits = exact.model(input_ids=ids).logits[0, :-1][mask].detach().requires_grad_()
        scaled = torch.log_softmax(logits / float(batch.temperatures[row]), dim=1)
        logprob = scaled.gather(1, ids[0, 1:][mask][:, None]).sum()
        (gradient_,) = torch.autograd.grad(logprob, logits)
        assert float(fresh.grad_norms[row]) == pytest.approx(float(gradient_.norm()), rel=1e-5)


def test_the_probe_measures_the_policy_before_the_update_and_only_when_it_has_rows(policy, batch):
    module = make_module(policy, probe_rows=batch.n_rollouts, optimizer=ADAMW, minibatches=2)
    before = measure_apart(module.probe, policy, batch)
    fitted = fit(module, [batch])
    assert fitted.batches[0].entropy.entropy_sum == pytest.approx(before.entropy_sum, rel=1e-5)
    after = measure_apart(module.probe, module.policy, batch)
    assert after.entropy_sum != pytest.approx(before.entropy_sum, rel=1e-4)
    assert fit(make_module(policy), [batch]).batches[0].entropy is None


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_probe_counts_once_where_a_step_may_be_passed_over(policy, batch, minibatches):
    module = make_module(
        policy,
        probe_rows=batch.n_rollouts,
        minibatches=minibatches,
        skip_zero_advantage="off",
        empty_batch="skip",
    )
    apart = measure_apart(module.probe, policy, batch)
    found = fit(module, [batch]).batches[0].entropy
    assert found.tokens == apart.tokens
    assert found.entropy_sum == pytest.approx(apart.entropy_sum, rel=1e-5)


def test_the_probe_forwards_only_what_the_first_step_does_not(policy, batch):
    """Tokens that go through the decoder, all rollouts measured."""
    tokens = int((batch.lengths).sum())
    skipped = int(batch.lengths[batch.advantages == 0].sum())
    apart = copy.deepcopy(policy)
    apart.share_prompts = False  # so that tokens can be added up
    apart(batch.tokens, batch.completion_mask)  # settles how the head is called
    settings = {"tokens_per_microbatch": 1}  # and nothing is padded
    for skip, probe_rows, forwarded in (
        ("exact", 0, tokens - skipped),
        ("exact", batch.n_rollouts, tokens),
        ("off", batch.n_rollouts, tokens),
    ):
        module = make_module(apart, probe_rows=probe_rows, skip_zero_advantage=skip, **settings)
        seen: list[int] = []
        module.policy.model.get_decoder().register_forward_pre_hook(
            lambda _, args, kwargs, seen=seen: seen.append(kwargs["input_ids"].numel()),
            with_kwargs=True,
        )
        fit(module, [batch])
        assert sum(seen) == forwarded
