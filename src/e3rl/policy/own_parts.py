"""Weights of which each rank reads its own parts, from safetensors files.

Where ranks share a policy, none of them needs all of it, and a whole copy on each, in float32, is
more than most machines have. So the model is made without weights, shared out, and filled: every
rank reads, of every parameter, the rows that are its own. What is to be found out by a forward pass
before that is found out on a small model of the same kind.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from e3rl.policy.adapters import base_weights
from e3rl.policy.weight_files import Files, persistent_buffers
from e3rl.process.distributed import is_sharded

WORDS, LAYERS = 64, 2  # of the small model
PIECE = 16 * 2**20  # bytes that are read at once: they take memory twice, in the file and as a copy


@contextmanager
def without_storage() -> Iterator[None]:
    """Parameters of modules that are made meanwhile have shapes and no values; buffers have."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # a tied one stays the same object
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def read_own_parts(model: Any, root: nn.Module, files: Files, device: torch.device) -> None:
    """Give parameters without storage a place on a device, and fill them and the buffers that
    checkpoints hold, which each rank has whole.

    Args:
        model: whose parameters and buffers `files` names, as they are called without adapters.
        root: the module that holds it, and that ranks share as a whole.
        files: where they are.
        device: of this rank.
    """
    from safetensors import safe_open

    def place(value: Tensor) -> Tensor:
        return torch.empty_like(value, device=device) if value.is_meta else value.to(device)

    root._apply(place)
    if not is_sharded(model):
        model.tie_weights()  # each side has got a place of its own
    with torch.no_grad():
        for name, weight in base_weights(model.named_parameters(), model).items():
            own, first = _own_rows(weight.value)
            if own.numel() == 0:
                continue
            rows = max(1, PIECE * len(own) // own.nbytes)
            for start in range(0, len(own), rows):
                piece = own[start : start + rows]
                # Opened for each anew: pages of a file that stays open would count as memory.
                with safe_open(files[name], framework="pt") as file:
                    piece.copy_(file.get_slice(name)[first + start : first + start + len(piece)])
        for name, buffer in base_weights(persistent_buffers(model), model).items():
            with safe_open(files[name], framework="pt") as file:
                buffer.value.copy_(file.get_tensor(name))


def _own_rows(parameter: Tensor) -> tuple[Tensor, int]:
    """This rank's part of a parameter, and at which row it begins."""
    if not isinstance(parameter, DTensor):
        return parameter, 0
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    assert tuple(shape[1:]) == tuple(parameter.shape[1:])  # shared by rows
    return parameter.to_local(), offset[0]


def small_model(model: Any) -> Any:
    """A model of the same kind with random weights, of few layers and words, none of which takes
    another's keys and values."""
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    layers = text.num_hidden_layers
    text.num_hidden_layers = min(LAYERS, layers)
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == layers:  # one for each layer
            setattr(text, name, value[: text.num_hidden_layers])
    if getattr(text, "num_kv_shared_layers", None):
        text.num_kv_shared_layers = 0
    for name in ("vocab_size", "vocab_size_per_layer_input"):
        if (words := getattr(text, name, None)) is not None:
            setattr(text, name, min(WORDS, words))
    text.pad_token_id = None
    with torch.random.fork_rng(devices=[]):
        return type(model)(config).eval()
