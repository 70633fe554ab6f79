"""Hand-made samples."""

from typing import Any

import numpy as np

from e3rl.readiness.sample import Mismatch, Sample


def sample(**changes: Any) -> Sample:
    """Four prompts with four rollouts each, half of them right, on an engine that agrees."""
    values: dict[str, Any] = {
        "prompt_ids": ["a", "b", "c", "d"],
        "right": np.array([0, 2, 2, 4]),
        "rollouts": np.full(4, 4),
        "lengths": np.full(16, 10),
        "truncated": np.zeros(16, dtype=bool),
        "answered": np.ones(16, dtype=bool),
        "statuses": {"correct": 8, "wrong": 8},
        "temperature": 1.0,
        "entropy": 0.5,
        "generation_s": 4.0,
        "reward_s": 0.0,
        "update_s": 0.05,
        "mismatch": Mismatch(tokens=160, kl=1e-9, largest=1e-5, ess=1.0),
    }
    return Sample(**(values | changes))
