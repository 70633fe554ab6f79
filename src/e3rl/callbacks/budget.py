"""Slot `budget`: how many rollouts each prompt of the step gets, and which rank samples it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from numpy.typing import NDArray

from e3rl.batch import Columns, RolloutBatch, hold_prompts, join_columns, prompt_columns
from e3rl.budgets.base import Allocation, Budget, Describable, NeedsGradNorms, SingleRound
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.lengths import CompletionLengths
from e3rl.budgets.metrics import spearman
from e3rl.callbacks.grad_norms import norm_moments
from e3rl.callbacks.slot import Slot, batches_to_decide
from e3rl.checkpoints.strict_state import require_keys
from e3rl.process.distributed import all_gather, rank
from e3rl.statistics.balance import balance, imbalance


class RolloutBudget(Slot):
    """Decides over the prompts of all ranks, learns from the rewards of all ranks.

    Ranks wait for each other in every update, and budgets are uneven on purpose. So once the
    counts are known, whole groups are given to ranks anew, such that all have the same number of
    tokens to expect. Rollouts do not depend on who samples them: their seeds derive from the
    prompt.

    Args:
        strategy: the allocation rule (`budgets/`).
        rollouts_per_prompt: mean group size G; a step spends G times its prompts.
    """

    slot = "budget"
    writes = ("allocation", "ranks", "always_right", "prompt_weights", "wants_grad_norms")

    def __init__(self, strategy: Budget, rollouts_per_prompt: int) -> None:
        if rollouts_per_prompt < 1:
            raise ValueError(f"rollouts_per_prompt={rollouts_per_prompt}: use at least 1")
        self.strategy = strategy
        self.rollouts_per_prompt = rollouts_per_prompt
        self.lengths = CompletionLengths()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        for each, step in batches_to_decide(trainer, batch):
            # The epoch is an argument, never a hook: a resumed run may skip epoch-start hooks.
            self._decide(each, step, int(step // trainer.num_training_batches))
        rule = self.strategy
        batch.wants_grad_norms = isinstance(rule, NeedsGradNorms) and rule.needs_grad_norms

    def _decide(self, batch: RolloutBatch, step: int, epoch: int) -> None:
        """Write allocation and ranks; with several ranks, exchange the prompts they are about."""
        started = time.monotonic()
        shards = all_gather(prompt_columns(batch))
        columns = join_columns(shards)
        ids = columns["prompt_ids"]
        decision = self.strategy.decide(ids, self.rollouts_per_prompt * len(ids), step, epoch)
        allocation, rows = decision.allocation, list(range(len(ids)))
        if len(shards) > 1:
            counts = _known_counts(allocation, len(shards))
            load = counts * self._tokens_of_a_rollout(columns)
            holder = balance(load, len(shards), prompt_keys(0, step, ids))
            rows = np.flatnonzero(holder == rank()).tolist()
            hold_prompts(batch, columns, rows)
            allocation = SingleRound(counts[rows], allocation.metrics())
            shares = np.bincount(holder, weights=load, minlength=len(shards))
            batch.metrics["budget/rank_imbalance"] = imbalance(shares)
        batch.allocation, batch.requeue = allocation, decision.requeue
        batch.ranks = torch.from_numpy(decision.ranks[rows].copy())
        if decision.always_right is not None:
            batch.always_right = torch.from_numpy(decision.always_right[rows].copy())
        if decision.weights is not None:
            batch.prompt_weights = torch.from_numpy(decision.weights[rows].astype(np.float32))
        batch.metrics["time/budget_s"] = time.monotonic() - started

    def _tokens_of_a_rollout(self, columns: Columns) -> NDArray[np.float64]:
        """(B,) tokens to expect, prompt and completion.

        The prompt counts for every rollout: an engine may compute it once a group, but the
        update, which takes longer, goes over it with each of them.
        """
        prompts = np.array([len(tokens) for tokens in columns["prompt_tokens"]])
        return prompts + self.lengths.expect(columns["prompt_ids"])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        rewards = _by_prompt(batch, "correct")
        lengths = _by_prompt(batch, "completion_mask")
        tokens = float(batch.tensor("lengths").sum())
        shards = all_gather((batch.prompt_ids, rewards, lengths, tokens))
        ids = [prompt_id for shard in shards for prompt_id in shard[0]]
        if isinstance(self.strategy, Describable):
            parts = all_gather(traits(batch))
            self.strategy.describe(
                ids, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            )
        self.strategy.observe(ids, [array for shard in shards for array in shard[1]])
        lengths = [array for shard in shards for array in shard[2]]
        self.lengths.observe(ids, lengths)
        sampled = [array for array in lengths if len(array)]
        together = spearman([len(x) for x in sampled], [x.mean() for x in sampled])
        batch.metrics["budget/length_correlation"] = np.nan if together is None else together
        batch.metrics |= {f"budget/{name}": x for name, x in self.strategy.metrics().items()}
        if len(shards) > 1:
            batch.metrics["rollout/rank_imbalance"] = imbalance([each for *_, each in shards])

    def state_dict(self) -> dict[str, Any]:
        return {"strategy": self.strategy.state_dict(), "lengths": self.lengths.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        require_keys("RolloutBudget", state_dict, ("strategy", "lengths"))
        self.strategy.load_state_dict(state_dict["strategy"])
        self.lengths.load_state_dict(state_dict["lengths"])


def _known_counts(allocation: Allocation[RolloutBatch], n_ranks: int) -> NDArray[np.int64]:
    """(B,) rollouts per prompt; ValueError where they are not known, or too few prompts get any."""
    if not isinstance(allocation, SingleRound):
        raise ValueError(
            f"{type(allocation).__name__} decides round by round over all prompts, which {n_ranks} "
            "ranks cannot share: use trainer.devices=1 or a budget with all counts known beforehand"
        )
    counts = np.array(allocation.counts, dtype=np.int64)
    if (sampled := int((counts > 0).sum())) < n_ranks:
        raise ValueError(
            f"the budget gives rollouts to {sampled} prompts, which leaves some of {n_ranks} ranks "
            "without any: use a budget with a minimum per prompt, or fewer trainer.devices"
        )
    return counts


def _by_prompt(batch: RolloutBatch, name: str) -> Sequence[NDArray[np.float64]]:
    """Per prompt the values of its rollouts; those of (N, T) fields are summed over tokens."""
    values, group = batch.tensor(name).double().cpu(), batch.tensor("group").cpu()
    values = values.flatten(1).sum(dim=1) if values.ndim > 1 else values
    return [values[group == row].numpy() for row in range(batch.n_prompts)]


def traits(batch: RolloutBatch) -> dict[str, NDArray[np.float64]]:
    """What a finished batch shows of this rank's prompts, as `Describable` wants it."""
    mask, group = batch.tensor("completion_mask").cpu(), batch.tensor("group").cpu()
    counts = batch.counts().cpu()
    tokens, surprise, rollouts = torch.zeros(3, batch.n_prompts, dtype=torch.float64)
    rollouts.index_add_(0, group, counts)
    tokens.index_add_(0, group, mask.sum(dim=1) * counts)
    logprobs = batch.tensor("sampler_logprobs").cpu().double().sum(dim=1)
    surprise.index_add_(0, group, -logprobs * counts)
    priors = batch.priors or [None] * batch.n_prompts
    return {
        "prior": np.array([np.nan if x is None else x for x in priors], dtype=np.float64),
        # 0 / 0 is NaN: a prompt without rollouts that count shows nothing.
        "length": (tokens / rollouts).numpy(),
        "entropy": (surprise / tokens).numpy(),
        "disagreement": _disagreement(batch),
        **norm_moments(batch),
    }


def _disagreement(batch: RolloutBatch) -> NDArray[np.float64]:
    """(P,) 1 - Σₖ mₖ(mₖ - 1)/(n(n - 1)) over the different answers k of n completions.

    A completion without an answer agrees with no other one. NaN for fewer than two completions.
    """
    batch.require("given_answers")
    given = zip(batch.tensor("group").tolist(), batch.given_answers or [], strict=True)
    classes = Counter((row, answer) for row, answer in given if answer is not None)
    alike = np.zeros(batch.n_prompts)
    for (row, _), m in classes.items():
        alike[row] += m * (m - 1)
    n = batch.group_sizes.cpu().numpy().astype(np.float64)
    several = n > 1
    found = np.full(n.size, np.nan)
    found[several] = 1 - (alike / (n * (n - 1)).clip(1))[several]
    return found
