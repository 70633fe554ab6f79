"""Low-rank adapters on a frozen model (LoRA, arXiv 2106.09685), through peft.

Of an adapted linear layer with weights W (out, in) only A (r, in) and B (out, r) are trained:

    y = W x + (α / r) B A x,    B = 0 at first, so that the policy starts as its base

Checkpoints hold A and B, and a digest of what they belong to; the base is read from its path again.
Adapters are float32 beside a base of any precision, so small updates are not rounded away.

An engine gets the sum of both, in the precision of W. In half a precision its rounding is of the
size of the update: the policy would be another one than what samples. So there the forward pass is
that of the rounded sum, and gradients are those of the formula above, as if nothing were rounded
(the straight-through estimator, arXiv 1308.3432):

    y = round(W + (α / r) B A) x,    ∂y/∂A and ∂y/∂B of (α / r) B A x
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from e3rl.policy.weight_files import Files, read_values
from e3rl.process.distributed import gather_full

ALL_LINEAR = "all-linear"
DIGEST = "adapted_base"  # buffer of a policy with adapters
ADAPTER = ".lora_"  # in the names of their parameters
SAMPLED = 64  # values of each parameter that the digest is made from


class UnknownTargetError(ValueError):
    """A name of `target_modules` that a model has no fitting layer for."""


@dataclass(frozen=True)
class LoRA:
    """Which layers get adapters, and how large.

    There is no dropout: importance ratios and probes need the very function that sampled.

    Args:
        r: rank.
        alpha: α; the update is scaled by α / r.
        target_modules: last parts of the names of linear layers, such as q_proj, or "all-linear":
            all but the output layer.
    """

    r: int = 16
    alpha: int = 32
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"policy.lora.r={self.r}: use a rank of at least 1")
        if self.alpha < 1:
            raise ValueError(f"policy.lora.alpha={self.alpha}: use at least 1")
        targets = self.target_modules
        if not targets or (isinstance(targets, str) and targets != ALL_LINEAR):
            raise ValueError(
                f"policy.lora.target_modules={targets!r}: give a list of layer names such as "
                f"[q_proj, v_proj], or {ALL_LINEAR}"
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.r

    def layers(self, model: Any) -> dict[str, nn.Linear]:
        """The layers of a model without adapters that get one, by name.

        Raises UnknownTargetError naming targets that are not there, are not linear, or are the
        output layer, which blocks of logits are made from as it is; and the kind of a model without
        any linear layer.
        """
        head = model.get_output_embeddings()
        modules = model.named_modules()
        linear = {n: m for n, m in modules if isinstance(m, nn.Linear) and m is not head}
        if not linear:
            raise UnknownTargetError(
                f"policy.lora: the {model.config.model_type} model has no linear layer but its "
                "output layer, so none can get an adapter: train without policy.lora"
            )
        if self.target_modules == ALL_LINEAR:
            return linear
        found: dict[str, nn.Linear] = {}
        for target in self.target_modules:
            own = {n: m for n, m in model.named_modules() if n.split(".")[-1] == target}
            if not own or any(not isinstance(m, nn.Linear) or m is head for m in own.values()):
                raise UnknownTargetError(
                    f"policy.lora.target_modules: {target} names no linear layer inside the "
                    f"{model.config.model_type} model: choose from {_last_parts(linear)}"
                )
            found |= own
        return found

    def parameters(self, model: Any) -> int:
        """Numbers that adapters of a model without any would have."""
        layers = self.layers(model).values()
        return sum(self.r * (layer.in_features + layer.out_features) for layer in layers)


def _last_parts(names: Iterable[str]) -> str:
    return ", ".join(sorted({name.split(".")[-1] for name in names}))


def add_adapters(model: Any, lora: LoRA) -> None:
    """Put adapters into a model's linear layers and freeze everything else.

    They have values also where the model has none yet, and the same ones.

    Raises UnknownTargetError as `LoRA.layers`, and ModuleNotFoundError, with the command that
    installs it, where peft is missing.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "policy.lora needs the package peft: pip install 'e3rl[lora]'", name="peft"
        ) from error
    names = list(lora.layers(model))
    settings = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=names, bias="none")
    inject_adapter_in_model(settings, model)
    for layer in _adapted_layers(model).values():
        _initialize(layer)
        layer.forward = MethodType(_forward, layer)


def _initialize(layer: Any) -> None:
    """A as peft draws it, which puts it where the layer's weights are, and B = 0."""
    for side in (layer.lora_A, layer.lora_B):
        if any(parameter.is_meta for parameter in side.parameters()):
            side.to_empty(device="cpu")
        side.float()
    for adapter in layer.lora_A:
        nn.init.kaiming_uniform_(layer.lora_A[adapter].weight, a=math.sqrt(5))
        nn.init.zeros_(layer.lora_B[adapter].weight)


def _forward(layer: Any, x: Tensor) -> Tensor:
    """What an adapted layer makes of its inputs (..., in): (..., out)."""
    base = layer.base_layer
    if base.weight.itemsize >= torch.float32.itemsize:
        plain: Tensor = type(layer).forward(layer, x)
        return plain
    weight = _adapted_weight(layer, base.weight)
    y = functional.linear(x, weight.whole(), base.bias)
    assert weight.down is not None
    assert weight.up is not None
    inputs = x.detach().to(weight.down.dtype)  # gradients of x are those of the rounded sum
    update = weight.scale * functional.linear(functional.linear(inputs, weight.down), weight.up)
    return y + (update - update.detach()).to(y.dtype)  # adds nothing but gradients


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers with adapters, by the name that the layer without has."""
    return {name: m for name, m in model.named_modules() if hasattr(m, "lora_A")}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model computes as its base does."""
    layers = _adapted_layers(model).values()
    try:
        for layer in layers:
            for adapter in layer.lora_A:
                layer.set_scale(adapter, 0.0)
        yield
    finally:
        for layer in layers:
            for adapter in layer.lora_A:
                layer.set_scale(adapter, 1.0)


class AdaptersOff(nn.Module):
    """The base of a policy with adapters, called as the policy is."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self._policy = (policy,)  # in a tuple: not a part of this module

    @property
    def model(self) -> Any:
        return self._policy[0].model

    def forward(self, *arguments: Any) -> Any:
        (policy,) = self._policy
        with without_adapters(policy.model):
            return policy(*arguments)


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of the model without adapters, and what adapters add to it."""

    value: Tensor
    down: Tensor | None = None  # A
    up: Tensor | None = None  # B
    scale: float = 1.0

    def whole(self) -> Tensor:
        """The value with its update, of the value's precision; the model's own stays as it is.

        Parts on other ranks are gathered, which takes all ranks.
        """
        value = gather_full(self.value.detach())
        if self.down is None or self.up is None:
            return value
        update = gather_full(self.up.detach()).float() @ gather_full(self.down.detach()).float()
        return (value.float() + self.scale * update).to(value.dtype)


def _adapted_weight(layer: Any, value: Tensor) -> Weight:
    (adapter,) = layer.lora_A
    a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    return Weight(value, a, b, layer.scaling[adapter])


def base_weights(named: Iterator[tuple[str, Tensor]], model: nn.Module) -> dict[str, Weight]:
    """Parameters (or a whole state dict) of a model by the names that it has without adapters."""
    layers, found = _adapted_layers(model), {}
    for name, value in named:
        owner, _, kind = name.rpartition(".base_layer.")
        if not owner and ADAPTER not in name:
            found[name] = Weight(value)
        elif kind == "weight":
            found[f"{owner}.weight"] = _adapted_weight(layers[owner], value)
        elif owner:
            found[f"{owner}.{kind}"] = Weight(value)
    return found


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model without adapters that computes the same."""
    named = iter(model.state_dict().items())
    return {name: weight.whole() for name, weight in base_weights(named, model).items()}


# -- checkpoints


def keep_adapters_only(policy: nn.Module, unread: Files | None = None) -> None:
    """Leave frozen parameters out of a policy's state dict, and check on loading whose it is.

    Args:
        policy: with adapters.
        unread: where values are of parameters that have none yet, by their names without adapters.
    """
    digest = torch.frombuffer(bytearray(_digest(policy, unread or {})), dtype=torch.uint8)
    policy.register_buffer(DIGEST, digest)
    policy.register_state_dict_post_hook(_drop_frozen)
    policy.register_load_state_dict_pre_hook(_fill_in_frozen)


def _digest(policy: Any, unread: Files) -> bytes:
    """SHA-256 of names, shapes and some values of the frozen parameters, and of the scales."""
    digest = hashlib.sha256()
    for name, layer in sorted(_adapted_layers(policy).items()):
        digest.update(f"{name} {sorted(layer.scaling.items())}".encode())
    plain = base_weights(policy.model.named_parameters(), policy.model).items()
    plain_names = {id(weight.value): name for name, weight in plain}
    for name, parameter in policy.named_parameters():
        if ADAPTER not in name:
            places = range(0, parameter.numel(), max(1, parameter.numel() // SAMPLED))[:SAMPLED]
            if parameter.is_meta:
                plain_name = plain_names[id(parameter)]
                values = read_values(unread[plain_name], plain_name, places).to(parameter.dtype)
            else:
                values = parameter.detach().reshape(-1)[places.start : places.stop : places.step]
            values = values.float().cpu()
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            digest.update(values.numpy().tobytes())
    return digest.digest()


def _frozen_weights(policy: nn.Module) -> Mapping[str, Tensor]:
    own = policy.named_parameters(remove_duplicate=False)  # a tied head under both its names
    return {name: parameter for name, parameter in own if ADAPTER not in name}


def _drop_frozen(policy: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _frozen_weights(policy):
        del state[prefix + name]


def _fill_in_frozen(policy: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    given = state.get(prefix + DIGEST)
    if given is None:
        raise ValueError(
            "the checkpoint has no adapters: it is of a run without policy.lora; load it with the "
            "policy settings in the config.yaml of its run folder"
        )
    if not torch.equal(given.cpu(), policy.get_buffer(DIGEST).cpu()):
        raise ValueError(
            "the checkpoint's adapters belong to another base: policy.path, policy.dtype and "
            "policy.lora must name what they were trained on, as the config.yaml of their run "
            "folder does"
        )
    for name, parameter in _frozen_weights(policy).items():
        state[prefix + name] = parameter.detach()
