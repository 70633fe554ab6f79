"""A whole copy of a policy whose weights are shared among ranks.

Ranks sample different numbers of tokens, so they cannot sample with a policy whose every forward
pass takes all of them.
"""

import copy

import torch
from torch import nn

from e3rl.engines.randomness import preserve_torch_rng
from e3rl.engines.weight_checks import check_shapes, named_weights
from e3rl.policy.policy import Policy
from e3rl.policy.weight_files import named_values, persistent_buffers

TEXT_SIDE = ("path", "tokenizer", "render", "instruction", "system", "prefill", "stop")


class WholeCopy:
    """A policy of its own on each rank, which follows a sharded one."""

    def __init__(self, policy: Policy) -> None:
        """Make room; `follow` fills it.

        Raises ValueError for weights that are not those of the policy's configuration.
        """
        model = policy.model
        weight = next(model.parameters())
        with torch.device(weight.device), preserve_torch_rng():
            fresh = type(model)(copy.deepcopy(model.config))
        for parameter in fresh.parameters():  # and not rotary frequencies, which need their bits
            parameter.data = parameter.data.to(weight.dtype)
        check_shapes(model, {name: tuple(value.shape) for name, value in named_values(fresh)})
        own = dict(persistent_buffers(model))
        for name, buffer in persistent_buffers(fresh):
            buffer.data = buffer.data.to(own[name].dtype)
        fresh.generation_config = copy.deepcopy(model.generation_config)
        self.policy = Policy.__new__(Policy)
        nn.Module.__init__(self.policy)
        for name in TEXT_SIDE:
            setattr(self.policy, name, getattr(policy, name))
        self.policy.model = fresh.requires_grad_(False).eval()

    @torch.no_grad()
    def follow(self, policy: Policy) -> None:
        """Gather the sharded policy's weights, one at a time; all ranks must call it."""
        own = dict(named_values(self.policy.model))
        for name, weight in named_weights(policy.model, tied_head=False):
            own[name].copy_(weight)
