"""What preflight's few rollouts say of the time of an update."""

import pytest

from e3rl.policy.policy import Policy
from e3rl.readiness.sampling import SamplingModule


@pytest.mark.parametrize(("recomputes", "expected"), [(False, 0.6), (True, 0.8)])
def test_a_token_costs_three_passes_and_one_more_where_activations_are_recomputed(
    recomputes: bool, expected: float
) -> None:
    module = SamplingModule(Policy(gradient_checkpointing=recomputes), tokens_per_microbatch=64)
    module.passes = [(10, 9.0), (10, 1.0), (10, 3.0)]  # the first warms up: 4 s for 20 tokens
    assert module.update_s() == pytest.approx(expected)
