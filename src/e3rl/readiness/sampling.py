"""A few rollouts of a configured policy without an update, and what they show."""

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.callbacks.pass_at_k import PassAtK
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.config.build import build
from e3rl.config.cautions import mean_group_size
from e3rl.data.problem import Problem
from e3rl.engines.base import RolloutEngine
from e3rl.evaluation.sampling import PolicyHolder, validate
from e3rl.functional.logprobs import token_logprobs
from e3rl.planning.hours import FORWARDS
from e3rl.policy.policy import Policy
from e3rl.readiness.partial_sample import PartialSample
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.verdict import STATUSES
from e3rl.training.forward import cut, measure

ROWS_COMPARED = 32  # rollouts per batch that the trainer scores as well


class SamplingModule(PolicyHolder):
    """Keeps the sampled batches of a validation, and scores some of their rollouts.

    It scores them as an update would, in its validation step, where the trainer's precision holds.

    Args:
        policy: that is sampled.
        tokens_per_microbatch: most tokens of a forward pass, as in training.
    """

    def __init__(self, policy: Policy, tokens_per_microbatch: int) -> None:
        super().__init__(policy)
        self.tokens_per_microbatch = tokens_per_microbatch
        self.batches: list[RolloutBatch] = []
        self.gaps: list[Tensor] = []  # trainer's log-prob - sampler's of the tokens compared
        self.passes: list[tuple[int, float]] = []  # sampled tokens and seconds of each

    def validation_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """Score some of the rollouts as the update would."""
        n = batch.n_rollouts
        batch.advantages = torch.zeros_like(batch.tensor("rewards"))  # nothing is updated
        rows = torch.linspace(0, n - 1, min(n, ROWS_COMPARED)).long().unique().to(self.device)
        for pack in cut(self.policy, batch, rows, self.tokens_per_microbatch):
            started = time.monotonic()
            sampled, own = measure(self.policy, batch, pack, token_logprobs)
            self.gaps.append((own.float() - sampled.sampler_logprobs).double().cpu())
            self.passes.append((own.numel(), time.monotonic() - started))
        self.batches.append(batch.to("cpu"))

    def update_s(self) -> float:
        """Seconds of a pass forwards and backwards per sampled token, without the first, which
        warms up.

        Where activations are recomputed, the backward pass takes one more forward pass.
        """
        forwards = FORWARDS + bool(self.policy.model.is_gradient_checkpointing)
        passes = self.passes[1:] or self.passes
        seconds = sum(seconds for _, seconds in passes)
        return forwards * seconds / sum(tokens for tokens, _ in passes)


def sample_rollouts(
    cfg: DictConfig,
    policy: Policy,
    problems: Sequence[Problem],
    temperature: float,
    engine: RolloutEngine,
    pool: RewardPool,
) -> PartialSample:
    """Rollouts of `problems` as a step of training samples them, on one device, without an update,
    all at one temperature: a `temperature.spread` is left out, as in validation.

    Args:
        cfg: a composed preflight; `preflight.rollouts` of each problem, or the run's mean group
            size.
        policy: that is sampled.
        problems: what it is asked.
        temperature: that it is sampled at.
        engine, pool: who samples and who scores; the caller closes both.
    """
    count = cfg.preflight.rollouts or round(mean_group_size(cfg))
    module = SamplingModule(policy, cfg.module.settings.tokens_per_microbatch)
    validate(
        module,
        problems,
        PassAtK([Evaluation("preflight", count, temperature=temperature)], (1,), cfg.seed),
        RolloutSampler(engine, cfg.max_new_tokens, cfg.seed),
        pool,
        prompts_per_batch=min(cfg.prompts_per_step, len(problems)),
        progress=False,
        temperature=temperature,
        # The run's trainer on one device: its precision and accelerator decide what is measured.
        make_trainer=partial(
            build, cfg, "trainer", num_nodes=1, strategy="auto", limit_val_batches=None
        ),
    )
    return gather(module)


def gather(module: SamplingModule) -> PartialSample:
    """What all batches that the module has been given say."""
    batches = module.batches
    metrics = [batch.metrics for batch in batches]
    waited = sum(each["time/reward_s"] for each in metrics)
    rolled = sum(each["time/rollout_s"] - each["time/sync_s"] for each in metrics)
    statuses: Counter[str] = Counter()
    for each in metrics:
        statuses.update({name: int(each.get(f"reward/{name}", 0)) for name in STATUSES})
    tallies = [batch.tally() for batch in batches]
    masks = [batch.tensor("completion_mask").sum(dim=1).numpy() for batch in batches]
    answers = [answer for batch in batches for answer in batch.given_answers or []]
    return PartialSample(
        prompt_ids=[name for batch in batches for name in batch.prompt_ids],
        right=np.concatenate([right for _, right in tallies]).astype(np.int64),
        rollouts=np.concatenate([n for n, _ in tallies]),
        lengths=np.concatenate(masks),
        truncated=np.concatenate([batch.tensor("truncated").numpy() for batch in batches]),
        answered=np.array([answer is not None for answer in answers]),
        statuses=statuses,
        surprise=-sum(float(b.tensor("sampler_logprobs").double().sum()) for b in batches),
        generation_s=rolled - waited,
        reward_s=waited,
        update_s=module.update_s(),
        gaps=torch.cat(module.gaps).numpy(),
    )
