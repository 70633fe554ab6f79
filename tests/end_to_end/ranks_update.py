"""Run by test_update_on_two_ranks.py: `python ranks_update.py FOLDER` trains on two gloo ranks."""

import copy
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.tensor import DTensor

from e3rl.batch import RolloutBatch
from e3rl.functional.mismatch import truncated
from e3rl.losses.exploration import HighEntropyMask
from e3rl.policy.adapters import LoRA
from e3rl.policy.head import HeadSettings
from e3rl.policy.policy import Policy
from e3rl.training.fsdp2 import FSDP2Strategy
from e3rl.training.module import GRPOModule
from finished_batches import finished_batch
from update_harness import ADAMW, Fitted, exact_copy, fit, make_loss, make_module

SMALL_STEPS = partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01)
PROMPTS_OF_RANK = ([0, 1, 4], [2, 3])


def union_batches(policy: Policy) -> list[RolloutBatch]:
    """Ragged batches: ordinary; nothing to do for rank 1; for both; ordinary twice."""
    batches = [
        finished_batch(group_sizes=(5, 1, 2, 1, 4), policy=policy, seed=seed) for seed in range(5)
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


def exact(policy: Policy) -> GRPOModule:
    """In float64, where only a wrong formula could show, with much on that acts on tokens."""
    return make_module(
        exact_copy(policy),
        make_loss(
            prompt_weight="prompt",
            correction=partial(truncated, cap=1.05),
            exploration=HighEntropyMask(share=0.6),
        ),
        ADAMW,
        probe_rows=100,
        tokens_per_microbatch=60,
        inner_epochs=2,
        max_grad_norm=0.5,
    )


def single(policy: Policy) -> GRPOModule:
    """In float32 at the default learning rate, with a reference and activations recomputed."""
    own = Policy(gradient_checkpointing=True)
    own.load_state_dict(policy.state_dict())
    return make_module(
        own,
        make_loss(kl_coef=0.05),
        SMALL_STEPS,
        tokens_per_microbatch=60,
        max_grad_norm=1.0,
    )


def blocks(policy: Policy) -> GRPOModule:
    """Log-probs and entropies by blocks of the vocabulary, with gradients for both, in float64."""
    own = exact_copy(Policy(head=HeadSettings("chunked", block=16), gradient_checkpointing=True))
    return make_module(
        own, make_loss(entropy_coef=0.01, kl_coef=0.05), SMALL_STEPS, tokens_per_microbatch=60
    )


def adapters(policy: Policy) -> GRPOModule:
    """Low-rank adapters on a frozen base, in float32: one in bfloat16 rounds by the shape of its
    batches, and on some processors by several percent of what engines and policy differ in."""
    torch.manual_seed(0)
    base = {"head": HeadSettings("chunked", block=16, dtype="float32"), "share_prompts": False}
    own = Policy(**base, lora=LoRA(r=2), gradient_checkpointing=True)
    return make_module(own, make_loss(kl_coef=0.05), SMALL_STEPS, tokens_per_microbatch=60)


CASES: dict[str, Callable[[Policy], GRPOModule]] = {
    "exact": exact,
    "single": single,
    "blocks": blocks,
    "adapters": adapters,
}
STEPS = {"exact": 3, "single": 5, "blocks": 3, "adapters": 3}
STRATEGIES: dict[str, Callable[[], Any]] = {"ddp": DDPStrategy, "fsdp2": FSDP2Strategy}


def train(case: str, rank: int | None = None, strategy: str = "") -> Fitted:
    """On the whole batches (no rank) or, as one of two ranks, on that rank's part of them."""
    policy = Policy()
    batches = union_batches(policy)[: STEPS[case]]
    if rank is not None:
        batches = [share(batch, PROMPTS_OF_RANK[rank]) for batch in batches]
    trainer = {"devices": 2, "strategy": STRATEGIES[strategy]()} if strategy else {}
    return fit(CASES[case](policy), batches, **trainer)


def outcome(case: str, rank: int, strategy: str) -> dict[str, Any]:
    fitted = train(case, rank, strategy)
    packs = [fitted.module._packs(b, torch.arange(b.n_rollouts)) for b in fitted.batches]
    entropies = [batch.entropy for batch in fitted.batches]
    return {
        "weights": fitted.weights,
        "held": sum(
            p.to_local().numel() if isinstance(p, DTensor) else p.numel()
            for p in fitted.module.policy.parameters()
        ),
        "reports": fitted.reports,
        "entropies": [entropy.entropy_sum for entropy in entropies if entropy],
        "micro_batches": [len(pack) for pack in packs],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    found = {
        (case, strategy): outcome(case, rank, strategy) for case in CASES for strategy in STRATEGIES
    }
    torch.save(found, Path(sys.argv[1]) / f"rank{rank}.pt")
