"""What a moving entropy bonus goes by, from a batch before it is trained on."""

import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.functional.entropy import sampled_entropy
from e3rl.losses.policy_loss import PolicyLoss
from e3rl.process.distributed import all_sum


def observe_entropy(loss: PolicyLoss, batch: RolloutBatch) -> None:
    """Show a loss that adapts the sampled entropy of a batch on all ranks; reports under
    `policy/`."""
    if loss.adapts:
        found = sampled_entropy(
            batch.tensor("sampler_logprobs"), batch.tensor("completion_mask"), batch.counts()
        )
        surprisal, tokens = all_sum(found)
        metrics = loss.observe(surprisal / tokens)
        batch.metrics |= {f"policy/{name}": value for name, value in metrics.items()}


def share_bonus(loss: PolicyLoss, batch: RolloutBatch) -> Tensor | None:
    """(N,) parts of the entropy bonus's weight, where it depends on a group's accuracy."""
    if not loss.adapts:
        return None
    group, correct = batch.tensor("group"), batch.tensor("correct")
    sizes = torch.bincount(group, minlength=batch.n_prompts)
    right = torch.zeros(batch.n_prompts, device=group.device).index_add_(0, group, correct)
    return loss.bonus_shares((right / sizes)[group])
