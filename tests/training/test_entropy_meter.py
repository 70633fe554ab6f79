import copy
import math

import pytest
import torch

from e3rl.batch import MeasuredEntropy, RolloutBatch
from e3rl.policy.policy import Policy
from e3rl.training.entropy_meter import EntropyMeter
from e3rl.training.forward import measure_entropy
from update_harness import measure_apart

FACTORS = (0.5, 1.0, 2.0)


@pytest.fixture(scope="module")
def batch(make_batch) -> RolloutBatch:
    return make_batch(group_sizes=(3, 1, 4))


def by_hand(policy: Policy, batch: RolloutBatch, rows: list[int]) -> MeasuredEntropy:
    """The probe's sums token by token, from one unpadded forward pass per rollout."""
    sums = torch.zeros(5 + len(FACTORS), dtype=torch.float64)
    for row in rows:
        end, tau = int(batch.lengths[row]), float(batch.temperatures[row])
        ids = batch.tokens[row : row + 1, :end]
        with torch.no_grad():
            logits = policy.model(input_ids=ids).logits[0].double()
        for place in range(1, end):
            if not batch.completion_mask[row, place]:
                continue
            at_tau, at_one, *curve = (
                torch.distributions.Categorical(logits=logits[place - 1] / t)
                for t in (tau, 1.0, *(tau * f for f in FACTORS))
            )
            token = ids[0, place]
            surprise = -at_tau.logits
            varentropy = (at_tau.probs * (surprise - at_tau.entropy()) ** 2).sum()
            weight = (at_one.log_prob(token) - at_tau.log_prob(token)).exp()
            values = [1.0, at_tau.entropy(), at_one.entropy(), varentropy]
            values += [-weight * at_one.log_prob(token), *(c.entropy() for c in curve)]
            sums += torch.tensor([float(v) for v in values], dtype=torch.float64)
    return MeasuredEntropy(float(sums[0]), *sums[1:5].tolist(), FACTORS, tuple(sums[5:].tolist()))


@pytest.mark.parametrize("budget", [1, 10**6])
def test_with_rows_for_all_it_is_the_exact_entropy_of_every_sampled_token(policy, batch, budget):
    probe = measure_apart(EntropyMeter(8, 1.0, FACTORS), policy, batch, budget)
    wanted = by_hand(policy, batch, list(range(8)))
    assert probe.tokens == wanted.tokens == int(batch.completion_mask.sum())
    for name in ("entropy_sum", "entropy_t1_sum", "varentropy_sum", "sampled_t1_sum"):
        assert getattr(probe, name) == pytest.approx(getattr(wanted, name), rel=1e-4), name
    assert probe.factors == FACTORS
    assert probe.curve_sums == pytest.approx(wanted.curve_sums, rel=1e-4)
    assert probe.curve_sums[1] == pytest.approx(probe.entropy_sum, rel=1e-5)
    assert probe.curve_sums[0] < probe.curve_sums[1] < probe.curve_sums[2]


def test_with_fewer_rows_it_measures_the_rows_it_chose(policy, batch):
    probe = EntropyMeter(3, 1.0, FACTORS)
    rows = probe.choose(batch).tolist()
    assert len(set(rows)) == 3
    measured = measure_apart(probe, policy, batch)
    wanted = by_hand(policy, batch, rows)
    assert measured.tokens == wanted.tokens
    assert measured.entropy_sum == pytest.approx(wanted.entropy_sum, rel=1e-4)


def test_the_choice_repeats_for_a_stream_and_changes_with_it(batch):
    probe, other = EntropyMeter(4, 1.0), copy.deepcopy(batch)
    assert torch.equal(probe.choose(batch), probe.choose(batch))
    choices = set()
    for step in range(20):
        other.stream = (0, "train", step)
        choices.add(tuple(probe.choose(other).sort().values.tolist()))
    assert len(choices) > 10


def test_every_rollout_is_chosen_equally_often(batch):
    probe, other, n = EntropyMeter(rows=2), copy.deepcopy(batch), 2000
    counts = torch.zeros(8)
    for step in range(n):
        other.stream = (0, "train", step)
        counts[probe.choose(other)] += 1
    expected = n * 2 / 8
    deviation = (n * 0.25 * 0.75) ** 0.5
    assert counts.sum() == 2 * n
    assert (counts - expected).abs().max() < 4 * deviation


def test_rollouts_without_advantage_are_measured_too(policy, batch):
    still = copy.deepcopy(batch)
    still.advantages = torch.zeros_like(batch.advantages)
    probe = EntropyMeter(8, 1.0)
    found = (measure_apart(probe, policy, each, 100) for each in (still, batch))
    assert next(found) == next(found)


def skipping(batch: RolloutBatch) -> torch.Tensor:
    """An update that forwards the first three rollouts of eight."""
    return torch.arange(batch.n_rollouts) < 3


def test_of_what_the_update_skips_two_in_three_are_measured_and_weigh_half_more(batch):
    weights = EntropyMeter(7, 0.99).begin(batch, skipping(batch)).weights
    drawn = EntropyMeter(7, 0.99).choose(batch)
    skipped = int((drawn >= 3).sum())  # 4 or 5 of 5
    kept = {4: 3, 5: 4}[skipped]  # 8/3 and 10/3, rounded up
    assert weights[:3].sum() == len(drawn) - skipped
    assert (weights[3:] > 0).sum() == kept
    assert weights[3:].sum() == pytest.approx(skipped)
    assert set(weights[3:].tolist()) <= {0.0, skipped / kept}


def test_where_all_are_drawn_all_are_measured(batch):
    assert EntropyMeter(8, 1.0).begin(batch, skipping(batch)).weights.tolist() == [1.0] * 8


def test_weights_are_one_in_the_mean_whatever_the_update_skips(batch):
    meter, other, n = EntropyMeter(6, 0.8), copy.deepcopy(batch), 2000
    totals = torch.zeros(8, dtype=torch.float64)
    for step in range(n):
        other.stream = (0, "train", step)
        totals += meter.begin(other, skipping(other)).weights
    # 6 of 8: each draw of a rollout counts 6/8 in the mean, with a deviation below 0.7 a step
    assert (totals / n - 0.75).abs().max() < 4 * 0.7 / n**0.5


def test_sums_count_a_rollout_by_its_weight(policy, batch):
    meter = EntropyMeter(6, 0.8, FACTORS)
    probe = meter.begin(batch, skipping(batch))
    measure_entropy(policy, batch, torch.arange(8), 100, probe)
    found = probe.result()
    apart = [by_hand(policy, batch, [row]) for row in range(8)]
    weights = probe.weights.tolist()
    assert 0 < min(w for w in weights if w) < max(weights)
    for name in ("tokens", "entropy_sum", "varentropy_sum"):
        wanted = sum(w * getattr(each, name) for w, each in zip(weights, apart, strict=True))
        assert getattr(found, name) == pytest.approx(wanted, rel=1e-4), name


@pytest.mark.parametrize("counts", [[2.0, 0, 1, 3, 0, 0, 1, 1], [0.0] * 8])
def test_sums_count_a_rollout_for_those_that_it_goes_on_for(policy, batch, counts):
    other = copy.deepcopy(batch)
    other.weights = torch.tensor(counts)
    found = measure_apart(EntropyMeter(8, 1.0, FACTORS), policy, other)
    apart = [by_hand(policy, batch, [row]) for row in range(8)]
    for name in ("tokens", "entropy_sum", "varentropy_sum"):
        alike = counts if any(counts) else [1.0] * 8
        wanted = sum(w * getattr(each, name) for w, each in zip(alike, apart, strict=True))
        assert getattr(found, name) == pytest.approx(wanted, rel=1e-4), name


def test_where_none_that_was_drawn_counts_all_of_them_do(policy, batch):
    """Of the eight one counts, which is not among the two that are drawn."""
    meter, other = EntropyMeter(2, 1.0, FACTORS), copy.deepcopy(batch)
    rows = meter.choose(batch).tolist()
    other.weights = torch.zeros(8)
    other.weights[next(row for row in range(8) if row not in rows)] = 8.0
    assert measure_apart(meter, policy, other).tokens == by_hand(policy, batch, rows).tokens


def test_each_rank_measures_its_share_of_the_rows(batch, monkeypatch):
    monkeypatch.setattr(
        "e3rl.training.entropy_meter.all_sum", lambda values: [32.0]
    )  # 24 rollouts elsewhere
    assert len(EntropyMeter(16, 1.0).choose(batch)) == 4
    assert len(EntropyMeter(rows=1).choose(batch)) == 1
    assert len(EntropyMeter(32, 1.0).choose(batch)) == 8


def test_of_few_rollouts_a_share_is_measured(batch):
    assert len(EntropyMeter(rows=64).choose(batch)) == 2  # a quarter of 8
    assert len(EntropyMeter(rows=64, share=0.3).choose(batch)) == 3
    assert len(EntropyMeter(rows=1, share=0.3).choose(batch)) == 1


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match=r"probe\.rows=-1"):
        EntropyMeter(rows=-1)
    for share in (0, 1.1):
        with pytest.raises(ValueError, match=rf"probe\.share={share}"):
            EntropyMeter(share=share)
    for factors in ((1.0, 0.0), (1.0, math.inf), (1.0, math.nan), (0.7, 1.0, 1.0)):
        with pytest.raises(ValueError, match=r"module\.probe\.factors=.*> 0 and finite, .* once"):
            EntropyMeter(factors=factors)
