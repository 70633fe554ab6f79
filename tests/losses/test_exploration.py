import pytest
import torch

from e3rl.losses.exploration import (
    BatchTokens,
    ClipCov,
    HighEntropyMask,
    KLCov,
    TokenEffects,
    explore,
)

# Deviations of A: 2, 0, -2, 0; of ln p: 1.5, 0.5, -2.5, 0.5; products 3, 0, 5, 0.
ADVANTAGES = [3.0, 1.0, -1.0, 1.0]
LOGPROBS = [0.0, -1.0, -4.0, -1.0]


def tokens(
    entropies=None,
    advantages=ADVANTAGES,
    draws=(0.1, 0.2, 0.3, 0.4),
    right=(True, False, False, False),
) -> BatchTokens:
    return BatchTokens(
        advantages=torch.tensor(advantages),
        right=torch.tensor(right),
        logprobs=torch.tensor(LOGPROBS),
        draws=torch.tensor(draws, dtype=torch.float64),
        entropies=None if entropies is None else torch.tensor(entropies),
    )


# -- covariance


def test_clip_cov_silences_one_of_the_tokens_in_the_band():
    effects, figures = ClipCov(share=0.25, low=1.0, high=5.5)(tokens())
    assert effects.factor.tolist() == [1, 1, 0, 1]  # of tokens 0 and 2 the one that was drawn
    effects, _ = ClipCov(share=0.25, low=1.0, high=5.5)(tokens(draws=(0.9, 0.2, 0.3, 0.4)))
    assert effects.factor.tolist() == [0, 1, 1, 1]
    assert effects.penalty.tolist() == [0] * 4
    assert figures == {"covariance": 2.0, "covariance_max": 5.0, "share": 0.25, "eligible": 0.5}


@pytest.mark.parametrize("rule", [ClipCov(share=0.3, low=-1.0, high=9.0), KLCov(share=0.3)])
def test_a_share_of_little_more_than_a_token_is_one(rule):
    assert rule(tokens())[1]["share"] == 0.25


@pytest.mark.parametrize("rule", [ClipCov(share=0.7, low=-1.0, high=9.0), KLCov(share=0.7)])
def test_a_share_of_tokens_is_rounded_down(rule):
    effects, figures = rule(tokens())
    assert figures["share"] == 0.5  # two of four, not 2.8
    touched = (effects.factor == 0).sum() + (effects.penalty > 0).sum()
    assert int(touched) == 2


def test_the_band_of_clip_cov_is_open_above_and_below():
    effects, figures = ClipCov(share=0.5, low=3.0, high=5.0)(tokens())
    assert effects.factor.tolist() == [1] * 4
    assert figures["eligible"] == figures["share"] == 0


def test_kl_cov_holds_the_tokens_of_highest_covariance():
    effects, figures = KLCov(share=0.25, coef=2.0)(tokens())
    assert effects.penalty.tolist() == [0, 0, 2, 0]
    assert effects.factor.tolist() == [1] * 4
    assert figures["share"] == 0.25
    effects, _ = KLCov(share=0.5)(tokens())
    assert effects.penalty.tolist() == [1, 0, 1, 0]


def test_a_small_share_is_at_least_one_token():
    for rule, name in ((ClipCov(share=1e-6, high=9.0), "factor"), (KLCov(share=1e-6), "penalty")):
        effects, _ = rule(tokens())
        values = getattr(effects, name).tolist()
        assert sorted(values).count(values[2]) == 1


# -- entropy


def test_the_mask_keeps_the_tokens_of_highest_entropy_and_gives_them_the_others_weight():
    effects, figures = HighEntropyMask(share=0.5, overlap=True)(tokens([0.1, 0.9, 0.4, 0.2]))
    assert effects.factor.tolist() == [0, 2, 2, 0]
    assert effects.penalty.tolist() == [0] * 4
    expected = {"share": 0.5, "entropy_threshold": 0.4, "overlap": 0}
    assert figures == pytest.approx(expected | {"share_right": 0, "share_wrong": 2 / 3})


def test_the_quota_is_rounded_up_and_holds_no_token_without_advantage():
    effects, figures = HighEntropyMask(share=0.2, overlap=True)(
        tokens([0.1, 0.9, 0.4, 0.2], advantages=[1.0, 0.0, -1.0, 1.0])
    )
    assert effects.factor.tolist() == [0, 0, 3, 0]  # one of three
    assert figures["share"] == pytest.approx(1 / 3)


def test_where_nothing_teaches_nothing_is_kept_and_the_figures_are_finite():
    effects, figures = HighEntropyMask(overlap=True)(
        tokens([0.1, 0.9, 0.4, 0.2], advantages=[0.0] * 4)
    )
    assert effects.factor.tolist() == [0] * 4
    shares = dict.fromkeys(("share", "share_right", "share_wrong"), 0.0)
    assert figures == shares | {"entropy_threshold": 0.0, "overlap": 1.0}


def test_shares_of_right_and_wrong_tokens_leave_those_without_advantage_out():
    # Kept: token 2 of the three that teach, of which 0 and 2 are right and 3 is wrong.
    _, figures = HighEntropyMask(share=0.2)(
        tokens([0.1, 0.9, 0.4, 0.2], [1.0, 0.0, -1.0, 1.0], right=(True, True, True, False))
    )
    assert (figures["share_right"], figures["share_wrong"]) == (1 / 2, 0)


@pytest.mark.parametrize(("share", "overlap"), [(0.2, 1), (0.5, 1 / 2), (1.0, 1 / 4)])
def test_the_overlap_is_what_tokens_without_advantage_would_take_of_the_quota(share, overlap):
    # A mask over all four would keep tokens 1 | 1, 2 | all; 1 has no advantage.
    given = tokens([0.1, 0.9, 0.4, 0.2], advantages=[1.0, 0.0, -1.0, 1.0])
    assert HighEntropyMask(share, overlap=True)(given)[1]["overlap"] == overlap
    rule = HighEntropyMask(share)
    assert "overlap" not in rule(given)[1]
    assert (rule.needs_entropy, HighEntropyMask(overlap=True).needs_entropy) == ("trained", "all")


def test_a_share_of_1_changes_nothing():
    effects, _ = HighEntropyMask(share=1.0)(tokens([0.1, 0.9, 0.4, 0.2]))
    assert effects.factor.tolist() == [1] * 4


def test_the_mask_without_entropies_is_an_error():
    with pytest.raises(RuntimeError, match="needs the entropies"):
        HighEntropyMask()(tokens())


# -- batches


def test_effects_stand_at_their_tokens(make_batch):
    batch = make_batch(group_sizes=(2, 1), advantages=[2.0, -1.0, 0.5])
    mask = batch.completion_mask
    batch.sampler_logprobs = torch.where(mask, -torch.rand(mask.shape), 0.0)
    effects, figures = explore(KLCov(share=0.3), batch, None)
    advantages = batch.advantages[:, None].expand(mask.shape)[mask].double()
    logprobs = batch.sampler_logprobs[mask].double()
    cov = (advantages - advantages.mean()) * (logprobs - logprobs.mean())
    top = cov >= cov.sort(descending=True).values[int(0.3 * len(cov)) - 1]
    assert torch.equal(effects.penalty[mask] > 0, top)
    assert bool((effects.penalty[~mask] == 0).all())
    assert figures["covariance"] == pytest.approx(float(cov.mean()), rel=1e-6)
    rows = torch.tensor([2, 0])
    width = int(batch.lengths[rows].max())
    positions = mask[rows, :width]
    cut = effects.at(rows, positions)
    assert torch.equal(cut.penalty, effects.penalty[rows, :width][positions])
    assert isinstance(cut, TokenEffects)


@pytest.mark.parametrize(
    ("rule", "settings", "message"),
    [
        (ClipCov, {"share": 0.0}, r"exploration\.share=0\.0 of all tokens must lie in \(0, 1\)"),
        (ClipCov, {"low": 5.0}, r"exploration\.low=5\.0 must lie below exploration\.high=5\.0"),
        (KLCov, {"share": 1.0}, r"exploration\.share=1\.0"),
        (KLCov, {"coef": 0.0}, r"exploration\.coef=0\.0"),
        (KLCov, {"coef": float("nan")}, r"exploration\.coef=nan"),
        (ClipCov, {"low": float("nan")}, r"exploration\.low=nan"),
        (HighEntropyMask, {"share": 1.2}, r"exploration\.share=1\.2 must lie in \(0, 1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(rule, settings, message):
    with pytest.raises(ValueError, match=message):
        rule(**settings)
