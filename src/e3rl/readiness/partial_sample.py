"""What each of several processes measured of a sample, and the sample of all of them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from e3rl.functional.kl import k3
from e3rl.functional.mismatch import WeightSums, summarize_weights
from e3rl.readiness.sample import Counts, Mismatch, Sample

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class PartialSample:
    """What one process measured, on a device of its own; see `Sample`.

    surprise: -Σ log p of the sampled tokens, nats; gaps: trainer's log-prob - sampler's of the
    tokens that both scored.
    """

    prompt_ids: list[str]
    right: Counts
    rollouts: Counts
    lengths: Counts
    truncated: NDArray[np.bool_]
    answered: NDArray[np.bool_]
    statuses: Mapping[str, int]
    surprise: float
    generation_s: float
    reward_s: float
    update_s: float
    gaps: Reals

    def write(self, path: Path) -> None:
        """As a .npz without pickle."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: value for key, value in values.items() if not isinstance(value, np.ndarray)}
        arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
        np.savez(path, allow_pickle=False, plain=np.array(json.dumps(plain)), **arrays)

    @staticmethod
    def read(path: Path) -> "PartialSample":
        """What `write` wrote."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key != "plain"}
            return PartialSample(**json.loads(str(file["plain"])), **arrays)


def combine(parts: Sequence[PartialSample], order: Sequence[str], temperature: float) -> Sample:
    """One sample of several parts, its prompts in this order of ids.

    The slowest part says how long it took.
    """
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("right", "rollouts", "lengths", "truncated", "answered", "gaps")
    }
    names = [name for part in parts for name in part.prompt_ids]
    places = {name: place for place, name in enumerate(order)}
    rows = sorted(range(len(names)), key=lambda row: places[names[row]])
    return Sample(
        prompt_ids=[names[row] for row in rows],
        right=joined["right"][rows],
        rollouts=joined["rollouts"][rows],
        lengths=joined["lengths"],
        truncated=joined["truncated"],
        answered=joined["answered"],
        statuses=sum((Counter(part.statuses) for part in parts), Counter()),
        temperature=temperature,
        entropy=sum(part.surprise for part in parts) / float(joined["lengths"].sum()),
        generation_s=max(part.generation_s for part in parts),
        reward_s=max(part.reward_s for part in parts),
        update_s=float(np.mean([part.update_s for part in parts])),
        mismatch=find_mismatch(joined["gaps"]),
        processes=len(parts),
    )


def find_mismatch(gaps: Reals) -> Mismatch:
    """From the trainer's log-prob - the sampler's of each token (M,)."""
    found, weights = torch.from_numpy(gaps), WeightSums()
    weights.add(found.exp())
    kl, largest = float(k3(found * 0, found).mean()), float(found.abs().max())
    return Mismatch(found.numel(), kl, largest, summarize_weights(weights).ess)
