"""What preflight's few rollouts say of the time of an update."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from e3rl.callbacks.reward import count_verdicts
from e3rl.policy.policy import Policy
from e3rl.readiness.sampling import SamplingModule, gather
from e3rl.rewards.verdict import Verdict


@pytest.mark.parametrize(("recomputes", "expected"), [(False, 0.6), (True, 0.8)])
def test_a_token_costs_three_passes_and_one_more_where_activations_are_recomputed(
    recomputes: bool, expected: float
) -> None:
    module = SamplingModule(Policy(gradient_checkpointing=recomputes), tokens_per_microbatch=64)
    module.passes = [(10, 9.0), (10, 1.0), (10, 3.0)]  # the first warms up: 4 s for 20 tokens
    assert module.update_s() == pytest.approx(expected)


def test_statuses_are_those_of_verdicts_and_add_up_to_the_rollouts() -> None:
    verdicts = [
        Verdict(1.0, "correct", "7", {"format": 0.5}),
        Verdict(0.0, "wrong", "8", {"format": 0.5}),
        *[Verdict(0.0, "unparsed", None)] * 2,
    ]
    clocks = {"time/reward_s": 0.1, "time/rollout_s": 1.0, "time/sync_s": 0.1}
    tensors = {
        "completion_mask": torch.ones(4, 3, dtype=torch.bool),
        "truncated": torch.zeros(4, dtype=torch.bool),
        "sampler_logprobs": -torch.ones(4, 3),
    }
    batch = SimpleNamespace(
        metrics=count_verdicts(verdicts) | clocks,
        prompt_ids=["a"],
        given_answers=[each.answer for each in verdicts],
        tally=lambda: (np.array([4]), np.array([1.0])),
        tensor=tensors.get,
    )
    module = SimpleNamespace(batches=[batch], update_s=lambda: 0.1, gaps=[torch.zeros(12)])
    found = gather(cast(Any, module))
    assert +found.statuses == {"correct": 1, "wrong": 1, "unparsed": 2}  # type: ignore[operator]
