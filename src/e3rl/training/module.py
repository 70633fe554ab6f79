"""`GRPOModule`: the policy update, and nothing else.

It receives a finished batch (tokens, temperatures, advantages), takes one clipped step per
minibatch, and does not know where rollouts come from.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from e3rl.batch import RolloutBatch
from e3rl.functional.aggregation import Totals, prompt_factors
from e3rl.functional.grad_norms import logit_grad_norm_squared
from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.packing import Pack
from e3rl.functional.precision import float32_by_default
from e3rl.functional.predictions import Measure
from e3rl.ledger.clock import BACKWARD, NORM, PROBE
from e3rl.losses.exploration import TokenEffects, explore
from e3rl.losses.policy_loss import PolicyLoss
from e3rl.policy.policy import Policy
from e3rl.policy.sharding import idle_packs
from e3rl.process.distributed import all_sum, gather_full, world_size
from e3rl.training.entropy_bonus_inputs import observe_entropy, share_bonus
from e3rl.training.entropy_meter import EntropyMeter, EntropyProbe
from e3rl.training.forward import cut, entropies, forward, measure_entropy, per_token
from e3rl.training.fsdp2 import FSDP2Strategy
from e3rl.training.offload import HOST, move_states, states_on_device
from e3rl.training.update import (
    TokenInputs,
    UpdateSettings,
    UpdateStatistics,
    split_rollouts,
    unequal_counts,
)

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]


class GRPOModule(LightningModule):
    """Manual optimisation of a policy on rollouts (GRPO, arXiv 2402.03300, and relatives).

    Args:
        policy: what is trained.
        loss: the objective.
        optimizer: parameters -> optimiser.
        settings: minibatches, micro-batches, clipping, skipping.
        probe: what is measured without gradient before the update.
        scheduler: optimiser -> learning-rate schedule, stepped once per optimiser step.
    """

    def __init__(
        self,
        policy: Policy,
        loss: PolicyLoss,
        optimizer: MakeOptimizer,
        settings: UpdateSettings,
        probe: EntropyMeter,
        scheduler: MakeScheduler | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.loss = loss
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.settings = settings
        self.probe = probe
        settings.check(loss)
        self._skips = settings.skips(loss)
        _ = policy.sharing  # found out while the weights are whole
        # In a list: the reference is neither trained nor saved, it is the policy's own start.
        self._reference = [policy.reference()] if loss.kl_coef else []
        self._statistics = UpdateStatistics(self.loss.corrects)
        self.nonfinite_in_a_row = 0  # optimiser steps left out since the last one that was taken
        self._last_nonfinite = ""
        self._norm = torch.zeros(())  # of the gradient of the optimiser step under way

    def configure_model(self) -> None:
        """Share policy and reference among ranks under FSDP2; read weights that are missing.

        Lightning calls it before every validation and fit, and then gives the policy the precision
        of bf16-true and its like, which the reference gets here.
        """
        strategy = self.trainer.strategy
        if not isinstance(strategy, FSDP2Strategy) and self.device_mesh is not None:
            name = type(strategy).__name__
            raise TypeError(f"trainer.strategy={name} shares no policy: use trainer=fsdp2")
        for policy in (self.policy, *self._reference):
            if not isinstance(policy, Policy):
                continue  # a base under adapters is a part of the policy
            if isinstance(strategy, FSDP2Strategy):
                strategy.share(policy)
            else:
                policy.read_weights(strategy.root_device)
            if policy is not self.policy:
                strategy.precision_plugin.convert_module(policy)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(p for p in self.policy.parameters() if p.requires_grad)
        if self.make_scheduler is None:
            return optimizer
        return [optimizer], [self.make_scheduler(optimizer)]

    @float32_by_default()
    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """Update on a finished batch; reports under `policy/` and `time/update_s`.

        Raises FloatingPointError, the weights as they were before, for one step too many with a
        gradient that is not finite.
        """
        started = time.monotonic()
        batch.check()
        self._statistics = UpdateStatistics(self.loss.corrects)
        parts = [rows.to(self.device) for rows in split_rollouts(batch, self.settings)]
        probe = None
        if self.probe.rows:
            with self.trainer.profiler.profile(PROBE):  # type: ignore[attr-defined]
                probe = self._begin_probe(batch, parts[0])
        if batch.wants_grad_norms:
            with self.trainer.profiler.profile(PROBE):  # type: ignore[attr-defined]
                self._measure_grad_norms(batch)
        observe_entropy(self.loss, batch)
        given = TokenInputs(
            self._old_logprobs(batch),
            self._effects(batch),
            share_bonus(self.loss, batch),
            unequal_counts(batch),
        )
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        learning_rate = float(optimizer.param_groups[0]["lr"])  # before the schedule moves on
        factors = self._prompt_factors(batch) if self.loss.by_prompt else None
        sizes = all_sum([len(rows) for rows in parts])
        for number, rows in enumerate(parts):
            if sizes[number] == 0:  # on all ranks: a step would be one of momentum alone
                continue
            seen = number == 0 and self._counts_on_forward
            self._step(batch, rows, given, factors, probe if seen else None)
            if self._gives_up:
                break
        if probe is not None:
            batch.entropy = probe.result()
        batch.metrics |= self._statistics.metrics(learning_rate)
        batch.metrics["time/update_s"] = time.monotonic() - started

    def validation_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """Callbacks validate; Lightning runs its validation loop only where this exists."""

    @property
    def _counts_on_forward(self) -> bool:
        """Whether the first minibatch shows the probe its rollouts; a step that may be passed over
        as a whole does not."""
        return self._skips or not self.settings.passes_over_empty(self.loss)

    def _begin_probe(self, batch: RolloutBatch, first: Tensor) -> EntropyProbe:
        """Measure what it has chosen of the rollouts that the first minibatch does not forward."""
        passed = torch.zeros_like(batch.tensor("lengths"), dtype=torch.bool)
        if self._counts_on_forward:
            passed[self._active(batch, first)] = True
        probe = self.probe.begin(batch, passed)
        rows, budget = (~passed).nonzero()[:, 0], self.settings.tokens_per_microbatch
        measure_entropy(self.policy, batch, rows, budget, probe)
        return probe

    def _old_logprobs(self, batch: RolloutBatch) -> Tensor | None:
        """(N, T) before the first step, 0 where nothing is forwarded.

        None where a single step makes every ratio 1.
        """
        if self.settings.old_logprobs == "sampler":
            return batch.sampler_logprobs
        if self.settings.steps_per_batch == 1:
            return None
        return self._measure_before_update(batch, token_logprobs)

    def _effects(self, batch: RolloutBatch) -> TokenEffects | None:
        """(N, T) what the loss's exploration rule does to each token, if it has one."""
        rule = self.loss.exploration
        if rule is None:
            return None
        measured = None
        if rule.needs_entropy != "none":
            every = rule.needs_entropy == "all"
            measured = self._measure_before_update(batch, entropies, every)
        effects, metrics = explore(rule, batch, measured)
        batch.metrics |= {f"exploration/{name}": value for name, value in metrics.items()}
        return effects

    def _measure_grad_norms(self, batch: RolloutBatch) -> None:
        """Write the norm of every rollout's gradient with respect to the logits."""
        started = time.monotonic()
        squares = self._measure_before_update(batch, logit_grad_norm_squared, every=True)
        batch.grad_norms = squares.sum(dim=1).sqrt()
        batch.metrics["time/grad_norms_s"] = time.monotonic() - started

    def _measure_before_update(
        self, batch: RolloutBatch, wanted: Measure, every: bool = False
    ) -> Tensor:
        """(N, T) by a forward pass over the rollouts that are trained on, or over `every` one; 0
        elsewhere."""
        rows = torch.arange(batch.n_rollouts, device=self.device)
        packs = self._packs(batch, rows if every else self._active(batch, rows))
        return per_token(self.policy, batch, packs, wanted)

    def _active(self, batch: RolloutBatch, rows: Tensor) -> Tensor:
        """Those of `rows` that are forwarded."""
        return rows[batch.tensor("advantages")[rows] != 0] if self._skips else rows

    def _packs(self, batch: RolloutBatch, rows: Tensor) -> list[Pack]:
        return cut(self.policy, batch, rows, self.settings.tokens_per_microbatch)

    def _step(
        self,
        batch: RolloutBatch,
        rows: Tensor,
        given: TokenInputs,
        factors: Tensor | None,
        probe: EntropyProbe | None,
    ) -> None:
        """One optimiser step on a minibatch; a probe sees its rollouts before it."""
        active = self._active(batch, rows)
        weights, totals = self._weights(batch, active if self._renormalises else rows, factors)
        self._statistics.rollouts += len(rows)
        self._statistics.skipped += len(rows) - len(active)
        taught = int((batch.tensor("advantages")[rows] != 0).sum())
        if self.settings.passes_over_empty(self.loss) and all_sum([taught])[0] == 0:
            return
        if self._statistics.steps == 0 and self.settings.old_logprobs == "trainer":
            # It is this policy: no rounding between two passes moves ratios off 1.
            given = replace(given, old_logprobs=None)
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        before = copy.deepcopy(self._statistics)
        self._backward(batch, active, weights, totals, given, probe)
        norm = self._measure_norm()
        if not math.isfinite(norm):
            optimizer.zero_grad()
            self._statistics = before
            self._statistics.nonfinite += 1
            self.nonfinite_in_a_row += 1
            self._last_nonfinite = f"gradient norm is {norm} at optimiser step {self.global_step}"
            return
        with self._states_at_hand():
            optimizer.step()
        self.nonfinite_in_a_row = 0
        self._statistics.steps += 1
        self._statistics.grad_norm += norm
        if isinstance(scheduler, LRScheduler):
            scheduler.step()

    def on_train_start(self) -> None:
        """Once a checkpoint's states are there."""
        if self.settings.offload_optimizer:
            move_states(self.trainer.optimizers[0], HOST)

    def _states_at_hand(self) -> AbstractContextManager[None]:
        if self.settings.offload_optimizer:
            return states_on_device(self.trainer.optimizers[0])
        return nullcontext()

    def on_train_batch_end(self, outputs: Any, batch: RolloutBatch, batch_idx: int) -> None:
        """After the slots, so that the rollouts which led here are recorded by then.

        Raises FloatingPointError.
        """
        if self._gives_up:
            raise FloatingPointError(
                f"{self._last_nonfinite}, the last of {self.nonfinite_in_a_row} such steps in a "
                "row; the weights are those before them, and completions.jsonl has the rollouts: "
                "lower module.optimizer.lr, resume an earlier checkpoint, or allow more of them by "
                "module.settings.nonfinite_steps"
            )

    @property
    def _gives_up(self) -> bool:
        """Whether more optimiser steps in a row were left out than may be."""
        return self.nonfinite_in_a_row > self.settings.nonfinite_steps

    @property
    def _renormalises(self) -> bool:
        return self.settings.skip_zero_advantage == "renormalise"

    def _prompt_factors(self, batch: RolloutBatch) -> Tensor:
        """(N,) mean group size over own group size, of the whole batch: a small group is in few
        minibatches. Rollouts that are left out of the mean are left out of sizes."""
        rows, group = torch.arange(batch.n_rollouts, device=self.device), batch.tensor("group")
        counted = group[self._active(batch, rows)] if self._renormalises else group
        sizes = torch.bincount(counted, minlength=batch.n_prompts)
        rollouts, prompts = all_sum([len(counted), int((sizes > 0).sum())])
        return prompt_factors(sizes[group].clamp(min=1), max(1, rollouts) / max(1, prompts))

    def _weights(
        self, batch: RolloutBatch, rows: Tensor, factors: Tensor | None
    ) -> tuple[Tensor, Totals]:
        """(N,) token weights, 0 outside `rows`, and the counts of all ranks they are made from."""
        lengths = batch.tensor("completion_mask")[rows].sum(dim=1)
        counts = [float(lengths.sum()), len(rows)]
        tokens, rollouts = (max(1, int(n)) for n in all_sum(counts))
        totals = Totals(tokens=tokens, rollouts=rollouts)
        weights = torch.zeros(batch.n_rollouts, device=self.device)
        mine = None if factors is None else factors[rows]
        weights[rows] = self.loss.weights(lengths, totals, mine)
        return weights, totals

    def _backward(
        self,
        batch: RolloutBatch,
        rows: Tensor,
        weights: Tensor,
        totals: Totals,
        given: TokenInputs,
        probe: EntropyProbe | None,
    ) -> None:
        """Accumulate a minibatch's gradient; ranks meet in the last backward only, or in every
        one where the policy is sharded, groups of ranks then in the last."""
        packs = self._packs(batch, rows)
        idle = idle_packs(self.policy, batch, len(packs), least=1)
        last, first = len(packs) + len(idle) - 1, self._statistics.steps == 0
        for number, pack in enumerate(packs):
            with nullcontext() if number == last else self._no_sync():
                micro = forward(self.policy, batch, pack, self.loss.entropy_coef > 0, probe)
                told = given.at(pack.rows, micro)
                parts = self.loss(
                    micro,
                    weights[pack.rows][micro.rollout],
                    totals,
                    told.old_logprobs,
                    self._reference_logprobs(batch, pack),
                    told.effects,
                    told.bonus_shares,
                    told.counts,
                )
                # DDP averages over ranks, and the weights already divide by global counts.
                with self.trainer.profiler.profile(BACKWARD):  # type: ignore[attr-defined]
                    self.manual_backward(parts.loss * world_size())
            self._statistics.add(parts, micro.sampler_logprobs, first)
        for number, pack in enumerate(idle, start=len(packs)):
            with nullcontext() if number == last else self._no_sync():
                micro = forward(self.policy, batch, pack)
                self._reference_logprobs(batch, pack)
                self.manual_backward(micro.logprobs.sum() * 0.0)
        if not packs and not idle:  # no gradient here, but other ranks wait for its reduction
            zero = torch.stack([p.sum() for p in self.policy.parameters() if p.requires_grad])
            self.manual_backward(zero.sum() * 0.0)

    def _reference_logprobs(self, batch: RolloutBatch, pack: Pack) -> Tensor | None:
        if not self._reference:
            return None
        reference = self._reference[0]
        with torch.no_grad():
            if self.device_mesh is None:
                reference.to(self.device)
            return forward(reference, batch, pack).logprobs

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["loss"] = self.loss.state_dict()
        checkpoint["nonfinite_in_a_row"] = self.nonfinite_in_a_row

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Strict about a loss that has state; one without has nothing to miss."""
        self.loss.load_state_dict(checkpoint.get("loss", {}))
        self.nonfinite_in_a_row = int(checkpoint.get("nonfinite_in_a_row", 0))

    def _no_sync(self) -> AbstractContextManager[Any]:
        strategy = self.trainer.strategy
        return (
            strategy.block_backward_sync()
            if isinstance(strategy, ParallelStrategy)
            else nullcontext()
        )

    def _measure_norm(self) -> float:
        """L2 norm of the gradient, which is reduced over ranks by now."""
        with self.trainer.profiler.profile(NORM):  # type: ignore[attr-defined]
            grads = [p.grad for p in self.policy.parameters() if p.grad is not None]
            self._norm = torch.nn.utils.get_total_norm(grads)
            return float(gather_full(self._norm))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip here: callbacks have seen the gradient as it is."""
        parameters = [p for p in self.policy.parameters() if p.grad is not None]
        bound = self.settings.max_grad_norm
        torch.nn.utils.clip_grads_with_norm_(parameters, bound, self._norm)
