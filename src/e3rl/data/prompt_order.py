"""Which prompts a step gets: passes over the data, and prompts that are handed back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from e3rl.checkpoints.strict_state import require_keys
from e3rl.seeds import derive_seed


class PromptOrder:
    """Rows of a data set in steps of P: one permutation after the other, cut to whole steps.

    Rows that are handed back come first in the next step, older ones before newer ones, and the
    others move back by as much. So a pass over the data takes more steps than the ⌊D/P⌋ that it
    has when nothing comes back, and no row is lost at its end. A row that still waits when the
    next pass brings it again comes once, so a step never holds a prompt twice.

    Args:
        n_rows: D, at least P.
        per_step: P, at least 1.
        seed: what the permutations derive from.
    """

    def __init__(self, n_rows: int, per_step: int, seed: int) -> None:
        self.n_rows = n_rows
        self.per_step = per_step
        self.seed = seed
        self._taken = 0  # rows of all passes that were given out or skipped
        self._waiting: list[int] = []  # handed back
        self._pass: tuple[int, list[int]] = (-1, [])  # the current pass and its order

    def peek(self) -> list[int]:
        """The rows of the next step, all different; uses up nothing."""
        return self._next()[0]

    def take(self) -> list[int]:
        """The rows of the next step, used up."""
        rows, self._taken = self._next()
        self._waiting = self._waiting[self.per_step :]
        return rows

    def hand_back(self, rows: Sequence[int]) -> None:
        """Have rows that were taken come again, behind those that wait already."""
        self._waiting = list(dict.fromkeys([*self._waiting, *rows]))

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken, "waiting": list(self._waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("PromptOrder", state, ("taken", "waiting"))
        self._taken, self._waiting = int(state["taken"]), list(state["waiting"])

    def _next(self) -> tuple[list[int], int]:
        """The next step's rows, and the rows of all passes that are taken with them."""
        rows, taken = dict.fromkeys(self._waiting[: self.per_step]), self._taken
        in_a_pass = self.n_rows - self.n_rows % self.per_step
        while len(rows) < self.per_step:
            epoch, place = divmod(taken, in_a_pass)
            end = min(place + self.per_step - len(rows), in_a_pass)
            rows |= dict.fromkeys(self._order(epoch)[place:end])  # what waits keeps its place
            taken += end - place
        return list(rows), taken

    def _order(self, epoch: int) -> list[int]:
        if self._pass[0] != epoch:
            generator = np.random.default_rng(derive_seed(self.seed, "order", epoch))
            self._pass = (epoch, generator.permutation(self.n_rows).tolist())
        return self._pass[1]
