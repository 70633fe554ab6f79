"""Weights on their way from the policy to an engine: what is checked, and in what form they go."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from e3rl.policy.adapters import Weight, base_weights
from e3rl.policy.weight_files import named_values
from e3rl.process.distributed import all_sum

HEAD = "lm_head.weight"
SHOWN = 3  # names that a message lists

Shapes = Mapping[str, tuple[int, ...]]


def dtype_name(model: Any) -> str:
    """Precision of a model's weights, such as "float32"."""
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def expected_shapes(model: Any) -> Shapes:
    """Names and shapes of the `named_values` of a model of this configuration; allocates nothing.

    An engine is built from the configuration alone, so this is what it has room for.
    """
    with torch.device("meta"):
        fresh = type(model)(copy.deepcopy(model.config))
    return {name: tuple(value.shape) for name, value in named_values(fresh)}


def check_shapes(model: Any, expected: Shapes) -> None:
    """Raise ValueError naming weights that are missing, unknown or of another shape.

    vLLM takes an incomplete set of weights without a word, and one of a wrong shape breaks it.
    """
    weights = base_weights(named_values(model), model)
    given = {name: tuple(weight.value.shape) for name, weight in weights.items()}
    kinds = {
        "missing": sorted(expected.keys() - given.keys()),
        "unknown": sorted(given.keys() - expected.keys()),
        "of another shape": sorted(n for n in given if expected.get(n, given[n]) != given[n]),
    }
    found = [
        f"{kind}: {', '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"
        for kind, names in kinds.items()
        if names
    ]
    if found:
        raise ValueError(
            f"the policy's weights are not those of its configuration ({'; '.join(found)}): "
            "merge adapters, undo renamings, and give model.config the new sizes before rollouts"
        )


def check_finite(model: Any, version: int) -> None:
    """Raise FloatingPointError, on all ranks, naming the first parameter not finite on any rank."""
    names = [name for name, _ in model.named_parameters()]
    flags = [~torch.isfinite(_own_part(p)).all() for p in model.parameters()]
    if not flags:
        return
    broken = all_sum(torch.stack(flags).tolist())  # one transfer from the device
    if any(broken):
        name = next(name for name, ranks in zip(names, broken, strict=True) if ranks)
        raise FloatingPointError(
            f"weights of {name} are not finite at policy version {version}: the last "
            "update diverged; lower the learning rate or resume an earlier checkpoint"
        )


def named_weights(model: Any, tied_head: bool) -> Iterator[tuple[str, Tensor]]:
    """The `named_values`, whole, one at a time; sharded ones are gathered on all ranks.

    Adapters are merged on the way, in what is sent only.

    Args:
        tied_head: send a head that shares the embedding's weights under its own name too. Where
            an engine keeps a packed copy of the head (vLLM on CPU does), it would go stale.
    """
    for name, weight in base_weights(named_values(model), model).items():
        yield name, weight.whole()
    if tied_head and model.config.get_text_config().tie_word_embeddings:
        yield HEAD, Weight(model.get_output_embeddings().weight).whole()


def named_shapes(model: Any, expected: Shapes, tied_head: bool) -> Shapes:
    """Shapes of what `named_weights` is going to yield."""
    if not (tied_head and model.config.get_text_config().tie_word_embeddings):
        return expected
    return {**expected, HEAD: tuple(model.get_output_embeddings().weight.shape)}


def _own_part(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
