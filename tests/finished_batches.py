"""Hand-made finished batches, and log-probs by the plainest route."""

from collections.abc import Sequence

import torch

from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed

CHARACTERS = 20  # ids 3..22 of the embedded vocabulary are digits and signs


def finished_batch(
    group_sizes: Sequence[int] = (3, 1, 2),
    advantages: Sequence[float] | None = None,
    temperatures: Sequence[float] | None = None,
    policy: Policy | None = None,
    seed: int = 0,
) -> RolloutBatch:
    """A batch of random tokens with ragged groups, prompts and completions, ready for an update.

    The default temperatures differ from rollout to rollout and the default advantages hold
    positive, negative and zero ones. With a policy, `sampler_logprobs` are its own.
    """
    n = sum(group_sizes)
    generator = torch.Generator().manual_seed(derive_seed("test batch", seed))

    def ids(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple((3 + torch.randint(CHARACTERS, (length,), generator=generator)).tolist())

    prompts = [ids(3, 9) for _ in group_sizes]
    taus = temperatures or [(0.6, 1.0, 1.4)[i % 3] for i in range(n)]
    rollouts = []
    for prompt, size in enumerate(group_sizes):
        for sample in range(size):
            tokens = ids(2, 12)
            rollouts.append(
                Rollout(
                    prompt=prompt,
                    sample=sample,
                    prompt_tokens=prompts[prompt],
                    tokens=tokens,
                    logprobs=tuple(-1.0 for _ in tokens),
                    temperature=taus[len(rollouts)],
                    truncated=False,
                    text="",
                    policy_version=0,
                )
            )
    values = advantages or [(1.5, -0.5, 0.0)[i % 3] for i in range(n)]
    batch = RolloutBatch(
        prompt_ids=[f"p{i}" for i in range(len(group_sizes))],
        prompts=["" for _ in group_sizes],
        answers=["1" for _ in group_sizes],
        sources=["made" for _ in group_sizes],
        prompt_tokens=[list(prompt) for prompt in prompts],
        stream=(seed, "train", 0),
    )
    batch.extend(rollouts, [RolloutScore(float(a > 0), float(a > 0)) for a in values], pad=0)
    batch.advantages = torch.tensor(values, dtype=torch.float32)
    if policy is not None:
        batch.sampler_logprobs = reference_logprobs(policy, batch).detach().float()
    return batch


def reference_logprobs(policy: Policy, batch: RolloutBatch) -> torch.Tensor:
    """(N, T) float64 log-probs by the plainest route: one rollout at a time, no padding."""
    width = batch.tensor("tokens").shape[1]
    rows = []
    for row in range(batch.n_rollouts):
        end = int(batch.tensor("lengths")[row])
        tokens = batch.tensor("tokens")[row, :end]
        tau = float(batch.tensor("temperatures")[row])
        logits = policy.model(input_ids=tokens[None], use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits.double() / tau, dim=-1)
        chosen = logprobs[:-1].gather(1, tokens[1:, None])[:, 0]
        own = torch.nn.functional.pad(chosen, (1, width - end))
        rows.append(torch.where(batch.tensor("completion_mask")[row], own, 0.0))
    return torch.stack(rows)
