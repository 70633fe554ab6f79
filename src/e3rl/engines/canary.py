"""The canary: does an engine sample from the policy that it was given?

A few tokens are generated from fixed prompts and their log-probs compared with the policy's own
forward pass, which catches whatever makes the two differ: weights that did not arrive, a prefix
cache that outlived them, a temperature that is ignored. *Generated* tokens are compared because
log-probs of prompt tokens are taken at temperature 1 and bypass vLLM's prefix cache.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed

TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.15}  # nats, by the coarser precision
FIXED_TEMPERATURE = 0.7  # beside the live one, which may be 1 and then hides a temperature ignored
NEW_TOKENS = 4
TAIL = 8  # prompt tokens behind the cached blocks


class EngineMismatchError(RuntimeError):
    """An engine samples from another distribution than the policy's."""


def canary_requests(
    policy: Policy, block_size: int, max_length: int, temperature: float
) -> list[RolloutRequest]:
    """One rollout at `temperature` and one at a fixed temperature, always from the same prompts.

    Where rollouts are going to be greedy (0), the first one is sampled at temperature 1, by which
    engines score a greedy choice: two policies may well agree on the likeliest token.

    The prompts span more than two blocks of the KV cache where `max_length` has room for them, so
    that the second canary of a run would read a stale cache.
    """
    length = max(1, min(2 * block_size + TAIL, max_length - NEW_TOKENS))
    requests = []
    for prompt, tau in enumerate((temperature or 1.0, FIXED_TEMPERATURE)):
        seed = derive_seed("canary", prompt)
        ids = np.random.default_rng(seed).integers(policy.vocabulary_size, size=length)
        requests.append(
            RolloutRequest(
                prompt=prompt,
                sample=0,
                prompt_tokens=tuple(ids.tolist()),
                temperature=tau,
                seed=seed,
                max_new_tokens=NEW_TOKENS,
            )
        )
    return requests


@torch.no_grad()
def canary_gaps(policy: Policy, rollouts: Sequence[Rollout]) -> Tensor:
    """(M,) |log-prob of the engine - log-prob of the policy| of all sampled tokens, nats."""
    lengths = torch.tensor([len(r.prompt_tokens) + len(r.tokens) for r in rollouts])
    starts = torch.tensor([len(r.prompt_tokens) for r in rollouts])
    width = int(lengths.max())
    tokens = torch.full((len(rollouts), width), policy.pad_id)
    for row, r in enumerate(rollouts):
        tokens[row, : lengths[row]] = torch.tensor(r.prompt_tokens + r.tokens)
    column = torch.arange(width)
    sampled = (column >= starts[:, None]) & (column < lengths[:, None])  # (n, t)
    taus = torch.tensor([r.temperature for r in rollouts])[sampled.nonzero()[:, 0]]
    device = policy.device
    logits = policy(tokens.to(device), sampled.to(device)).float().cpu()
    own = torch.log_softmax(logits / taus[:, None], dim=-1)
    own = own.gather(1, tokens[sampled][:, None])[:, 0]
    return (own - torch.tensor([value for r in rollouts for value in r.logprobs])).abs()


def check_canary(gaps: Tensor, tolerance: float, version: int) -> None:
    """Raise EngineMismatchError where the largest gap exceeds `tolerance` or is not a number."""
    if float(gaps.max()) <= tolerance:
        return
    raise EngineMismatchError(
        f"engine and policy disagree at policy version {version}: log-probs of tokens that the "
        f"engine sampled differ by up to {float(gaps.max()):.3g} nats, {float(gaps.mean()):.3g} in "
        f"the mean (tolerance {tolerance:g}). Check in this order: weights that did not arrive "
        "(tied heads, adapters); a prefix cache kept over a sync (try "
        "engine.settings.enable_prefix_caching=false); log-probs not taken at the sampling "
        "temperature; engine.settings.dtype against policy.dtype. Rounding alone calls for a "
        "higher engine.canary_tolerance; engine=transformers trains meanwhile."
    )
