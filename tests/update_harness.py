"""One way to run the module's updates in tests: a real Trainer over hand-made batches."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from e3rl.batch import MeasuredEntropy, RolloutBatch
from e3rl.functional.surrogates import clipped
from e3rl.losses.policy_loss import PolicyLoss
from e3rl.policy.policy import Policy
from e3rl.process.distributed import gather_full
from e3rl.training.entropy_meter import EntropyMeter
from e3rl.training.forward import measure_entropy
from e3rl.training.module import GRPOModule
from e3rl.training.update import UpdateSettings

Named = dict[str, Tensor]
SGD = partial(torch.optim.SGD, lr=1e-3)
ADAMW = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01)
NO_CLIP = 1e9  # gradient clipping out of the way
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}


def exact_copy(policy: Policy) -> Policy:
    """The policy in float64 throughout, so that nothing but a wrong formula makes a difference."""
    exact = copy.deepcopy(policy).double()
    for module in exact.modules():
        if isinstance(module, Qwen2RMSNorm):  # it would go through float32
            module.forward = MethodType(_exact_norm, module)
    return exact


def _exact_norm(self: Qwen2RMSNorm, hidden: Tensor) -> Tensor:
    mean_square = hidden.square().mean(-1, keepdim=True)
    return self.weight * hidden * torch.rsqrt(mean_square + self.variance_epsilon)


class Recorder(Callback):
    """Gradients of every optimiser step, before they are clipped, and weights after each batch."""

    def __init__(self) -> None:
        self.gradients: list[Named] = []
        self.weights: list[Named] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        named = pl_module.policy.named_parameters()
        found = {name: p.grad for name, p in named if p.grad is not None}
        self.gradients.append({name: gather_full(grad).clone() for name, grad in found.items()})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.weights.append(weights_of(pl_module.policy))


def measure_apart(
    meter: EntropyMeter, policy: Policy, batch: RolloutBatch, budget: int = 10**6
) -> MeasuredEntropy:
    """What the meter finds without an update, by passes of its own."""
    probe = meter.begin(batch, torch.ones(batch.n_rollouts, dtype=torch.bool))
    measure_entropy(policy, batch, torch.arange(batch.n_rollouts), budget, probe)
    return probe.result()


class Batches:
    """A loader; a plain list would be taken for several loaders."""

    def __init__(self, batches: Sequence[RolloutBatch]) -> None:
        self.batches = list(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[RolloutBatch]:
        return iter(self.batches)


@dataclass
class Fitted:
    module: GRPOModule
    gradients: list[Named]  # per optimiser step
    weights: list[Named]  # after each batch
    batches: list[RolloutBatch]
    global_step: int

    @property
    def reports(self) -> list[dict[str, float]]:
        return [batch.metrics for batch in self.batches]


def weights_of(policy: Policy) -> Named:
    return {name: gather_full(p.detach()).clone() for name, p in policy.named_parameters()}


def make_loss(**settings: Any) -> PolicyLoss:
    return PolicyLoss(**({"surrogate": clipped} | settings))


def make_module(
    policy: Policy,
    loss: PolicyLoss | None = None,
    optimizer: Any = SGD,
    scheduler: Any = None,
    probe_rows: int = 0,
    **settings: Any,
) -> GRPOModule:
    """A module on a copy of `policy`, without gradient clipping unless asked."""
    return GRPOModule(
        policy=copy.deepcopy(policy),
        loss=loss or make_loss(),
        optimizer=optimizer,
        settings=UpdateSettings(**({"max_grad_norm": NO_CLIP} | settings)),
        probe=EntropyMeter(rows=probe_rows, share=1.0),
        scheduler=scheduler,
    )


def fit(module: GRPOModule, batches: Sequence[RolloutBatch], **trainer: Any) -> Fitted:
    """Train on the batches, one rollout step each; the batches themselves are left alone."""
    own = [copy.deepcopy(batch) for batch in batches]
    recorder = Recorder()
    runner = Trainer(**(QUIET | {"devices": 1} | trainer), callbacks=[recorder])
    runner.fit(module, train_dataloaders=Batches(own))
    return Fitted(module, recorder.gradients, recorder.weights, own, runner.global_step)


def gap(first: Named, second: Named) -> float:
    """Largest absolute difference of any entry."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def share_apart(first: Named, second: Named, bound: float) -> float:
    """Share of all entries that differ by more than this.

    AdamW divides a gradient by its size, so that one which is nothing but rounding, of one entry in
    thousands, moves its weight by as much as any other; how that rounds is the processor's.
    """
    assert first.keys() == second.keys()
    apart = sum(int(((first[name] - second[name]).abs() > bound).sum()) for name in first)
    return apart / sum(value.numel() for value in first.values())


def size(values: Named) -> float:
    return max(float(value.abs().max()) for value in values.values())


def gradient(policy: Policy, scalar: Tensor) -> Named:
    """d scalar / d weights."""
    named = dict(policy.named_parameters())
    found = torch.autograd.grad(scalar, list(named.values()))
    return dict(zip(named, found, strict=True))
