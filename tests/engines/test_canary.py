import dataclasses

import pytest
import torch
from engine_requests import many, trainer_logprobs

from e3rl.engines.canary import EngineMismatchError, canary_gaps, canary_requests, check_canary
from e3rl.engines.transformers import TransformersEngine


def test_prompts_are_fixed_and_span_two_blocks_and_more(policy):
    first = canary_requests(policy, 32, 256, temperature=1.3)
    assert first == canary_requests(policy, 32, 256, temperature=1.3)
    assert all(len(r.prompt_tokens) > 64 for r in first)
    assert all(0 <= t < policy.vocabulary_size for r in first for t in r.prompt_tokens)
    assert [r.temperature for r in first] == [1.3, 0.7]
    assert first[0].prompt_tokens != first[1].prompt_tokens


def test_greedy_rollouts_are_checked_at_the_temperature_that_scores_them(policy):
    greedy = canary_requests(policy, 32, 256, temperature=0.0)
    assert greedy == canary_requests(policy, 32, 256, temperature=1.0)


def test_prompts_fit_into_a_short_model(policy):
    for r in canary_requests(policy, 128, 40, temperature=1.0):
        assert len(r.prompt_tokens) + r.max_new_tokens == 40


def test_gaps_are_distances_to_the_policys_own_log_probs(policy):
    engine = TransformersEngine(progress=False)
    engine.sync(policy, 0)
    rollouts = [r for tau in (0.7, 1.2) for r in engine.generate(many(policy, 1, tau=tau))]
    assert canary_gaps(policy, rollouts).max() < 1e-4
    shifted = [
        dataclasses.replace(r, logprobs=tuple(x - 0.25 for x in r.logprobs)) for r in rollouts
    ]
    gaps = canary_gaps(policy, shifted)
    assert len(gaps) == sum(len(trainer_logprobs(policy, r)) for r in rollouts)
    assert torch.allclose(gaps, torch.tensor(0.25), atol=1e-4)


def test_a_gap_above_the_tolerance_or_no_number_is_an_error():
    check_canary(torch.tensor([0.0, 1e-3]), 1e-2, 4)
    with pytest.raises(EngineMismatchError, match=r"version 4.* up to 0\.5 nats, 0\.25 in"):
        check_canary(torch.tensor([0.0, 0.5]), 1e-2, 4)
    with pytest.raises(EngineMismatchError, match="up to nan"):
        check_canary(torch.tensor([0.0, torch.nan]), 1e-2, 4)
