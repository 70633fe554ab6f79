"""Tie-breakers between prompts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from e3rl.seeds import derive_seeds


def prompt_keys(seed: int, step: int, prompt_ids: Sequence[str]) -> NDArray[np.uint64]:
    """(B,) hashes of (seed, step, prompt id): who wins a tie changes with the step, but not with
    the order of the prompts."""
    return derive_seeds((seed, "budget", step), prompt_ids)
