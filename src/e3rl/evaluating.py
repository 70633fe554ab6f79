"""Sampling a policy on problems outside of training, by the same slots that validate in it."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from lightning import LightningModule, Trainer

from e3rl.analysis.evaluations import Evaluation as Measured
from e3rl.batch import RolloutBatch
from e3rl.callbacks.pass_at_k import Counts, PassAtK
from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.callbacks.validation_plan import Evaluation
from e3rl.checkpoint_io import AtomicCheckpointIO
from e3rl.data.loader import ValidationLoader
from e3rl.data.problem import Problem
from e3rl.engines.base import RolloutEngine
from e3rl.policy import Policy
from e3rl.rewards.pool import RewardPool
from e3rl.temperatures.fixed import Fixed

POLICY_PREFIX = "policy."


class PolicyHolder(LightningModule):
    """What Lightning's validation loop needs of a module: a policy and a `validation_step`."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def validation_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """The slots do the work."""


def evaluate_policy(
    policy: Policy,
    problems: Sequence[Problem],
    evaluations: Sequence[Evaluation],
    engine: RolloutEngine,
    pool: RewardPool,
    max_new_tokens: int,
    ks: Sequence[int] = (1,),
    prompts_per_batch: int = 64,
    progress: bool = True,
) -> list[Counts]:
    """Per-problem counts of every evaluation; closes engine and pool, also after an error."""
    pass_at_k = PassAtK(evaluations, ks)
    trainer = Trainer(
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=progress and sys.stdout.isatty(),
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[
            TemperatureScheduler(Fixed()),
            pass_at_k,
            RewardScorer(pool),
            RolloutSampler(engine, max_new_tokens, seed=0),
        ],
    )
    loader = ValidationLoader(problems, policy.encode, prompts_per_batch)
    try:
        trainer.validate(PolicyHolder(policy), dataloaders=loader, verbose=False)
    finally:
        engine.close()
        pool.close()
    return pass_at_k.results


def load_weights(policy: Policy, checkpoint: Path) -> None:
    """Put the weights of a run's checkpoint into a policy of the same architecture.

    Raises DamagedCheckpointError for a damaged file and RuntimeError naming the parameters that
    do not fit.
    """
    state = AtomicCheckpointIO().load_checkpoint(checkpoint)["state_dict"]
    own = {
        name.removeprefix(POLICY_PREFIX): value
        for name, value in state.items()
        if name.startswith(POLICY_PREFIX)
    }
    with torch.no_grad():
        policy.load_state_dict(own, strict=True)


def measured(arm: str, counts: Counts) -> Measured:
    """Counts in the form that tables and figures take."""
    table = pd.DataFrame(
        {"problem_id": counts.problem_id, "n": counts.n, "correct": counts.correct}
    )
    entropy = counts.entropy_sum / counts.tokens
    return Measured(arm, counts.name, counts.temperature, entropy, (table,))
