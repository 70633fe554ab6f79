"""The safetensors files of a model: where its weights are, and values of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

Files = Mapping[str, Path]  # by parameter, and by buffer that checkpoints hold


def find_files(path: str, model: Any) -> Files | None:
    """The file that holds each parameter, and each persistent buffer, of a model, under its own
    name and in its own shape.

    None where one is not to be found so, as in other formats, in quantised models, and where
    transformers makes one parameter of several: these are for transformers to load.
    """
    from safetensors import safe_open

    if getattr(model.config, "quantization_config", None) is not None:
        return None
    index, single = (find_file(path, name) for name in (INDEX, SINGLE))
    if index is not None:
        place_of = json.loads(index.read_text())["weight_map"]
        holds = {name: index.parent / file for name, file in place_of.items()}
    elif single is not None:
        with safe_open(single, framework="pt") as file:
            holds = dict.fromkeys(file.keys(), single)
    else:
        return None
    files = {}
    for name, value in named_values(model):
        if name not in holds:
            return None
        if not holds[name].is_file():  # a hub's, which transformers fetches
            return None
        with safe_open(holds[name], framework="pt") as file:
            if tuple(file.get_slice(name).get_shape()) != tuple(value.shape):
                return None
        files[name] = holds[name]
    return files


def named_values(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What of a model its configuration does not give: parameters, then `persistent_buffers`."""
    yield from model.named_parameters()
    yield from persistent_buffers(model)


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that checkpoints hold, such as the biases of a router of experts."""
    for owner, module in model.named_modules():
        for name, buffer in module.named_buffers(owner, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name, buffer


def find_file(path: str, name: str) -> Path | None:
    """A file of a local folder, or of a hub's model that was downloaded before."""
    from transformers.utils.hub import cached_file

    found = cached_file(
        path,
        name,
        local_files_only=True,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def read_values(path: Path, name: str, places: Sequence[int]) -> Tensor:
    """Some values of a parameter, (n,), by where they are in it when it is flat."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        whole = file.get_slice(name)
        shape = whole.get_shape()
        corners = zip(*np.unravel_index(list(places), shape), strict=True)
        return torch.cat([whole[*(slice(i, i + 1) for i in at)].reshape(1) for at in corners])
