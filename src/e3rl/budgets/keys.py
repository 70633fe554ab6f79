"""Tie-breakers between prompts."""

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from e3rl.seeds import derive_seeds


class SharedIds(tuple[str, ...]):
    """Prompt ids of a step that several rules are asked about; their keys are made only once."""

    made: dict[tuple[int, int], NDArray[np.uint64]]

    def __new__(cls, prompt_ids: Iterable[str]) -> Self:
        ids = super().__new__(cls, prompt_ids)
        ids.made = {}
        return ids

    def keys(self, seed: int, step: int) -> NDArray[np.uint64]:
        """(B,) `prompt_keys`, not to be written to."""
        if (seed, step) not in self.made:
            keys = derive_seeds((seed, "budget", step), self)
            keys.flags.writeable = False
            self.made[seed, step] = keys
        return self.made[seed, step]


def prompt_keys(seed: int, step: int, prompt_ids: Sequence[str]) -> NDArray[np.uint64]:
    """(B,) hashes of (seed, step, prompt id): who wins a tie changes with the step, but not with
    the order of the prompts."""
    if isinstance(prompt_ids, SharedIds):
        return prompt_ids.keys(seed, step)
    return derive_seeds((seed, "budget", step), prompt_ids)
