"""How long each prompt's completions are expected to be, learned from finished rollouts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.checkpoints.strict_state import require_keys


class CompletionLengths:
    """Mean completion tokens by prompt id, where later visits count more.

        Lᵢ ← λ·Lᵢ + Σⱼ tᵢⱼ,   Cᵢ ← λ·Cᵢ + nᵢ,   expected = Lᵢ/Cᵢ

    at every visit of prompt i. A prompt that was never seen is expected to be like the rollouts of
    the last steps: the same sums over all prompts, where every step is a visit.

    Args:
        decay: λ in (0, 1]; completions grow and shrink while a policy learns.
        initial: tokens expected before anything was observed.
    """

    def __init__(self, decay: float = 0.5, initial: float = 256.0) -> None:
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay} must lie in (0, 1]; 1 keeps every visit")
        if not 0 < initial < math.inf:
            raise ValueError(f"initial={initial}: use a number of tokens > 0")
        self.decay = decay
        self.initial = initial
        self._tokens: dict[str, float] = {}
        self._rollouts: dict[str, float] = {}
        self._overall = (0.0, 0.0)  # tokens and rollouts

    def expect(self, prompt_ids: Sequence[str]) -> NDArray[np.float64]:
        """(B,) expected tokens of one completion of each prompt."""
        tokens, rollouts = self._overall
        unseen = tokens / rollouts if rollouts else self.initial
        return np.array(
            [
                self._tokens[i] / self._rollouts[i] if i in self._rollouts else unseen
                for i in prompt_ids
            ]
        )

    def observe(self, prompt_ids: Sequence[str], lengths: Sequence[ArrayLike]) -> None:
        """Learn from a finished step: the lengths of each prompt's completions, possibly none.

        Raises ValueError where the number of ids differs from the number of arrays.
        """
        step_tokens = step_rollouts = 0.0
        for prompt_id, values in zip(prompt_ids, map(np.asarray, lengths), strict=True):
            if values.size == 0:
                continue
            tokens = float(values.sum())
            self._tokens[prompt_id] = self.decay * self._tokens.get(prompt_id, 0.0) + tokens
            old = self.decay * self._rollouts.get(prompt_id, 0.0)
            self._rollouts[prompt_id] = old + values.size
            step_tokens += tokens
            step_rollouts += values.size
        before = self._overall
        self._overall = (
            self.decay * before[0] + step_tokens,
            self.decay * before[1] + step_rollouts,
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "tokens": dict(self._tokens),
            "rollouts": dict(self._rollouts),
            "overall": list(self._overall),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("CompletionLengths", state, ("tokens", "rollouts", "overall"))
        self._tokens = dict(state["tokens"])
        self._rollouts = dict(state["rollouts"])
        tokens, rollouts = state["overall"]
        self._overall = (tokens, rollouts)
