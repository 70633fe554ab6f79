"""A step disturbance, to see how a temperature rule answers it."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from transformers import PreTrainedModel

from e3rl.batch import RolloutBatch
from e3rl.callbacks.rollout import policy_of
from e3rl.callbacks.slot import rollout_step
from e3rl.policy.own_parts import small_model


class Disturbance(Callback):
    """Makes the policy sharper at once: all its logits are multiplied by a factor.

    What samples at temperature τ then does what sampled at τ/factor before, so a rule that held
    the entropy has to find factor·τ. Done by the gain of the last normalisation, in which logits
    are linear. For runs without look-ahead, which would sample that step one update earlier.

    Args:
        step: rollout step, the first that is sampled from the sharper policy.
        factor: of all logits; below 1 it makes the policy flatter.

    Raises:
        ValueError: step < 1, a factor that is not positive; at the start, a policy whose last
            normalisation is not `model.norm` or is frozen, as with adapters, whose checkpoints
            leave it out, or whose logits are not linear in its gain.
    """

    def __init__(self, step: int, factor: float) -> None:
        if step < 1:
            raise ValueError(f"step={step}: use 1 or more, the steps before it are undisturbed")
        if not factor > 0:
            raise ValueError(f"factor={factor}: use a positive multiple of the logits")
        self.step = step
        self.factor = factor
        self._done = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not last_norm(pl_module).requires_grad:
            raise ValueError(
                "the disturbance scales model.norm of the policy, which is frozen here, so that "
                "checkpoints would not have it: train the weights (policy/lora=none), or leave it "
                "out (callbacks=default)"
            )
        check_linear(policy_of(pl_module).model)
        # The checkpoint of the step that is disturbed has the disturbed weights, and says so.
        self._disturb(rollout_step(trainer) + 1, pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        self._disturb(rollout_step(trainer) + 1, pl_module)

    def _disturb(self, coming: int, pl_module: LightningModule) -> None:
        if coming == self.step and not self._done:
            with torch.no_grad():
                last_norm(pl_module).mul_(self.factor)
            self._done = True

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._done = bool(state_dict["done"])


def last_norm(pl_module: LightningModule) -> torch.nn.Parameter:
    """The gain (hidden,) of the last normalisation before the logits."""
    body = getattr(policy_of(pl_module).model, "model", None)
    weight = getattr(getattr(body, "norm", None), "weight", None)
    if not isinstance(weight, torch.nn.Parameter):
        raise ValueError(
            "the disturbance scales model.norm of the policy, which this one does not have; "
            "leave it out (callbacks=default)"
        )
    return weight


def check_linear(model: Any) -> None:
    """Raise ValueError where twice the gain of the last normalisation does not make logits twice as
    large, as where its gain is 1 + w, it has a bias, or logits are capped; found on a small model
    of the same kind."""
    if not isinstance(model, PreTrainedModel):
        return
    small = small_model(model)
    words = torch.arange(2, 6)[None]
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in small.model.norm.parameters():
            values.copy_(0.5 + torch.rand(values.shape, generator=random))
        before = small(words).logits
        small.model.norm.weight.mul_(2)
        after = small(words).logits
    if not torch.allclose(after, 2 * before, rtol=1e-3, atol=1e-6):
        raise ValueError(
            f"the disturbance multiplies logits by the gain of model.norm, in which those of "
            f"{type(model).__name__} are not linear; leave it out (callbacks=default)"
        )
