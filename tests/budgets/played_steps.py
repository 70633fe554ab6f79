"""Steps played without a model: a prompt's rollouts are right or wrong by what they are named."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import NORMS, TRAITS, Allocation, Budget, Describable
from e3rl.seeds import derive_seed


class Board:
    """Rewards of a step by prompt; the j-th rollout of a prompt is the same in any order."""

    def __init__(self, prompt_ids: Sequence[str], rates: Mapping[str, float], step: int) -> None:
        self.prompt_ids = prompt_ids
        self.rates = rates
        self.step = step
        self.rewards: list[list[float]] = [[] for _ in prompt_ids]
        self.rounds: list[list[int]] = []
        self.metrics: dict[str, float] = {}  # of the allocation

    def tally(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return (
            np.array([len(x) for x in self.rewards], dtype=np.int64),
            np.array([sum(x) for x in self.rewards], dtype=np.float64),
        )

    def play(self, allocation: Allocation) -> None:
        while (counts := allocation.next(self)) is not None:
            assert len(counts) == len(self.prompt_ids)
            self.rounds.append(counts)
            for prompt_id, rewards, n in zip(self.prompt_ids, self.rewards, counts, strict=True):
                for _ in range(n):
                    draw = derive_seed(self.step, prompt_id, len(rewards)) / 2**63
                    rewards.append(float(draw < self.rates[prompt_id]))
        self.metrics = allocation.metrics()


def play(
    rule: Budget,
    prompt_ids: Sequence[str],
    rates: Mapping[str, float],
    total: int,
    step: int,
    epoch: int,
) -> Board:
    """One step of a rule, decided, sampled and learnt from."""
    board = Board(prompt_ids, rates, step)
    board.play(rule.decide(prompt_ids, total, step, epoch).allocation)
    finish(rule, board)
    return board


def finish(rule: Budget, board: Board) -> None:
    """Learn from a step; a prompt's traits depend on the prompt and the step."""
    ids = board.prompt_ids
    if isinstance(rule, Describable):
        drawn = {t: [1 + derive_seed(board.step, t, x) % 7 for x in ids] for t in TRAITS + NORMS}
        rule.describe(ids, {t: np.array(x, dtype=float) for t, x in drawn.items()})
    rule.observe(ids, [np.array(x) for x in board.rewards])
