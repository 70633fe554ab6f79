"""Policies whose weights are shared among ranks (FSDP2), and how ranks keep in step with them.

Every rank holds a part of each parameter. A block's weights are gathered for its forward pass and
again for its backward pass, and its gradient is averaged over ranks as soon as there is one: all
of this are collective operations, so all ranks must make equally many passes. Gradients are shared
out after every micro-batch, since keeping them for the last one would take a whole copy on each
rank. Where groups of ranks have a copy each (HSDP, arXiv 2304.11277, section 3.2.2), that goes on
within groups, and groups add up their parts of the gradient once, in the last of the passes.
"""

from typing import Literal

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from e3rl.batch import RolloutBatch
from e3rl.functional.packing import Pack
from e3rl.policy.policy import DTYPES, Policy
from e3rl.process.distributed import all_max, is_sharded

# Lightning's precision -> what blocks compute in. Autocast alone would gather float32.
COMPUTED_IN = {"bf16-mixed": "bfloat16"}

Replicas = int | Literal["machines"]


def count_shards(replicas: Replicas, ranks: int, machines: int) -> int:
    """How many of `ranks` share one copy of a policy, of which there are `replicas`, or one on
    each machine.

    Raises ValueError where the groups would not be equal.
    """
    copies = machines if replicas == "machines" else replicas
    if copies < 1 or ranks % copies:
        fitting = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        raise ValueError(
            f"trainer.strategy.replicas={replicas}: {ranks} ranks do not make {copies} groups of "
            f"the same size; use one of {fitting}, or change trainer.devices or trainer.num_nodes"
        )
    return ranks // copies


def shard(policy: Policy, mesh: DeviceMesh, precision: str = "32-true") -> None:
    """Give each rank of `mesh` its part of the policy, block by block, in place.

    What is not in a block (embedding, last normalisation, head) is gathered for the whole forward
    pass of the policy. Outside of forward and backward passes nothing is whole. A policy that is
    sharded already stays as it is.

    Args:
        policy: whole on every rank, with the same weights.
        mesh: the ranks: (n,), of which each has another part, or (replicas, n), of which each row
            has a copy.
        precision: the trainer's; with bf16-mixed, blocks gather and compute in bfloat16, and
            gradients are summed in float32.

    Raises ValueError for an architecture that does not say what its blocks are.
    """
    if is_sharded(policy.model):
        return
    names = set(getattr(policy.model, "_no_split_modules", None) or ())
    blocks = [module for module in policy.model.modules() if type(module).__name__ in names]
    if not blocks:
        kind = policy.model.config.model_type
        raise ValueError(
            f"trainer=fsdp2 shares a policy block by block, and transformers does not say which "
            f"modules of model type {kind!r} are its blocks: use trainer=ddp"
        )
    policy.computed_in = COMPUTED_IN.get(precision)
    mixed = MixedPrecisionPolicy()
    if policy.computed_in is not None:
        mixed = MixedPrecisionPolicy(DTYPES[policy.computed_in], reduce_dtype=torch.float32)
    # The policy, not policy.model, whose forward nobody calls.
    for module in (*blocks, policy):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=mixed)


def idle_packs(policy: Policy, batch: RolloutBatch, own: int, least: int = 0) -> list[Pack]:
    """Micro-batches that a rank goes through after its own, for the sake of ranks that have more.

    Each is this rank's shortest rollout, to be counted as nothing. All ranks must ask for them,
    before their first pass.

    Args:
        policy: the policy that makes the passes; one that is not sharded needs none.
        batch: this rank's rollouts.
        own: micro-batches of this rank.
        least: passes that all ranks make at least.
    """
    if not is_sharded(policy.model):
        return []
    missing = max(least, int(all_max(own))) - own
    return [Pack(batch.tensor("lengths").argmin()[None])] * missing
