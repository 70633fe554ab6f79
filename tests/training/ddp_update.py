"""Run by test_update_on_two_ranks.py: `python ddp_update.py FOLDER` trains on two gloo ranks."""

import copy
import os
import sys
from functools import partial
from pathlib import Path

import torch

from e3rl.batch import RolloutBatch
from e3rl.functional.mismatch import truncated
from e3rl.losses.exploration import HighEntropyMask
from e3rl.policy import Policy
from finished_batches import finished_batch
from update_harness import ADAMW, Fitted, exact_copy, fit, make_loss, make_module

PROMPTS_OF_RANK = ([0, 1, 4], [2, 3])


def union_batches(policy: Policy) -> list[RolloutBatch]:
    """Ragged batches: ordinary; nothing to do for rank 1; for both; ordinary again."""
    batches = [
        finished_batch(group_sizes=(5, 1, 2, 1, 4), policy=policy, seed=seed) for seed in range(4)
    ]
    for batch in batches:  # sampled by an engine that is a little off
        places = torch.arange(batch.tokens.shape[1])[None] + batch.sample[:, None]
        gaps = 0.1 * torch.sin(places + batch.group[:, None])
        batch.sampler_logprobs = torch.where(
            batch.completion_mask, batch.sampler_logprobs - gaps, 0.0
        )
    batches[1].advantages[torch.isin(batches[1].group, torch.tensor(PROMPTS_OF_RANK[1]))] = 0
    batches[2].advantages[:] = 0
    return batches


def share(batch: RolloutBatch, prompts: list[int]) -> RolloutBatch:
    """A rank's part of a batch: some prompts with all of their rollouts."""
    own = copy.deepcopy(batch)
    rows = torch.isin(batch.group, torch.tensor(prompts))
    for name, value in vars(own).items():
        if isinstance(value, torch.Tensor):
            setattr(own, name, value[rows])
        elif isinstance(value, list) and len(value) == batch.n_prompts:
            setattr(own, name, [value[prompt] for prompt in prompts])
    own.group = torch.tensor([prompts.index(g) for g in own.group.tolist()])
    return own


def train(rank: int | None) -> Fitted:
    """On the whole batches (None) or, as one of two ranks, on that rank's part of them."""
    policy = exact_copy(Policy())
    batches = union_batches(policy)
    if rank is not None:
        batches = [share(batch, PROMPTS_OF_RANK[rank]) for batch in batches]
    module = make_module(
        policy,
        make_loss(
            prompt_weight="prompt",
            correction=partial(truncated, cap=1.05),
            exploration=HighEntropyMask(share=0.6),
        ),
        ADAMW,
        probe_rows=100,
        tokens_per_microbatch=30,
        inner_epochs=2,
        max_grad_norm=0.5,
    )
    trainer = {} if rank is None else {"devices": 2, "strategy": "ddp"}
    return fit(module, batches, **trainer)


if __name__ == "__main__":
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    fitted = train(rank)
    packs = [fitted.module._packs(b, torch.arange(b.n_rollouts)) for b in fitted.batches]
    result = {
        "weights": fitted.weights,
        "reports": fitted.reports,
        "entropies": [batch.entropy.entropy_sum for batch in fitted.batches],
        "micro_batches": [len(pack) for pack in packs],
    }
    torch.save(result, Path(sys.argv[1]) / f"rank{rank}.pt")
