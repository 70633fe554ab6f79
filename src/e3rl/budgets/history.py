"""What is known about every prompt seen so far: its rewards and its rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.posterior import BetaPosterior
from e3rl.checkpoints.strict_state import require_keys

DIGITS = 9  # of means that are ranked: discounted ones that are equal may differ in the last


@dataclass(frozen=True)
class VisitCounts:
    """Rewards and rollouts of B prompts, discounted or of one visit."""

    rewards: NDArray[np.float64]  # (B,)
    rollouts: NDArray[np.float64]  # (B,)

    @property
    def never_solved(self) -> NDArray[np.bool_]:
        """(B,) True for prompts that were seen and never earned a reward."""
        unsolved: NDArray[np.bool_] = (self.rewards == 0) & (self.rollouts > 0)
        return unsolved

    @property
    def always_solved(self) -> NDArray[np.bool_]:
        """(B,) True for prompts that were seen and whose every rollout earned its reward."""
        solved: NDArray[np.bool_] = (self.rewards == self.rollouts) & (self.rollouts > 0)
        return solved

    def posterior(self, prior: tuple[float, float]) -> BetaPosterior:
        """Beliefs about the pass rates; the prior (a₀, b₀) itself for prompts never seen."""
        return BetaPosterior(prior[0] + self.rewards, prior[1] + self.rollouts - self.rewards)


class CountedRewards(Sequence[NDArray[np.float64]]):
    """The 0/1 rewards of B prompts, known by their counts; arrays, right ones first, on demand.

    Where nobody asks for the single rewards, as in a simulation, there are none.

    Args:
        right: (B,) right rollouts.
        rollouts: (B,) all of them.
    """

    def __init__(self, right: NDArray[np.float64], rollouts: NDArray[np.int64]) -> None:
        if right.shape != rollouts.shape or not ((right >= 0) & (right <= rollouts)).all():
            raise ValueError(
                f"right={right[:8].tolist()} ... of rollouts={rollouts[:8].tolist()} ...: every "
                "prompt needs 0 to as many right ones as it has rollouts"
            )
        self.sums = VisitCounts(right.astype(np.float64), rollouts.astype(np.float64))

    def __len__(self) -> int:
        return self.sums.rollouts.size

    @overload
    def __getitem__(self, index: int) -> NDArray[np.float64]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NDArray[np.float64]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> NDArray[np.float64] | Sequence[NDArray[np.float64]]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        n, right = int(self.sums.rollouts[index]), int(self.sums.rewards[index])
        return (np.arange(n) < right).astype(np.float64)


class RewardHistory:
    """Discounted reward and rollout counts by prompt id, the one statistic of all budget rules.

        Rᵢ ← λ·Rᵢ + Σⱼ rᵢⱼ,   Cᵢ ← λ·Cᵢ + nᵢ,   mean = Rᵢ/Cᵢ

    at every visit of prompt i. λ = 1 is the published lifetime mean (arXiv 2505.18573 section
    3.1), which grows stale and, where the budgets differ, weighs later visits by their rollouts;
    λ < 1 forgets old visits. The same two numbers make the Beta posterior of the pass rate.

    Counts lie in arrays, one row per prompt in the order of first sight, so that a million prompts
    are a matter of a second.

    Args:
        decay: λ in (0, 1].
    """

    def __init__(self, decay: float = 1.0) -> None:
        if not 0 < decay <= 1:
            raise ValueError(
                f"decay={decay} must lie in (0, 1]; 1 keeps every visit, 0.5 halves their weight"
            )
        self.decay = decay
        self._row: dict[str, int] = {}
        self._counts = np.zeros((2, 0))  # R and C by row; there may be more rows than prompts
        self._asked: tuple[list[str], NDArray[np.int64]] = ([], np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        """Prompts seen."""
        return len(self._row)

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Add one visit per prompt; prompts without a rollout were not visited.

        Raises ValueError as `reward_sums` does.
        """
        self.add(prompt_ids, reward_sums(prompt_ids, rewards))

    def add(self, prompt_ids: Sequence[str], visits: VisitCounts) -> None:
        """`observe`, of values that are summed already, be they rewards or not."""
        visited = visits.rollouts > 0
        ids = prompt_ids if visited.all() else np.array(prompt_ids, dtype=object)[visited].tolist()
        rows = self.rows(ids)
        if (unseen := np.flatnonzero(rows < 0)).size:
            new = [ids[i] for i in unseen.tolist()]
            known, fresh = len(self), dict.fromkeys(new)  # once each, in order
            self._row.update(zip(fresh, count(known), strict=False))
            rows[unseen] = np.arange(known, known + len(new))
            if len(fresh) < len(new):
                rows[unseen] = [self._row[prompt_id] for prompt_id in new]
        self._add(rows, np.stack([visits.rewards, visits.rollouts])[:, visited])

    def rows(self, prompt_ids: Sequence[str]) -> NDArray[np.int64]:
        """(B,) places of prompts in the order of first sight, -1 for those never seen; not to be
        written to."""
        ids = list(prompt_ids)
        if ids != self._asked[0]:  # a step asks for the same prompts two or three times
            found = map(self._row.get, ids, repeat(-1))
            self._asked = ids, np.fromiter(found, dtype=np.int64, count=len(ids))
        return self._asked[1]

    def _add(self, rows: NDArray[np.int64], visits: NDArray[np.float64]) -> None:
        missing = len(self) - self._counts.shape[1]
        if missing > 0:
            room = np.zeros((2, max(missing, self._counts.shape[1])))
            self._counts = np.concatenate([self._counts, room], axis=1)
        while rows.size:  # a second time only where a prompt occurs twice: one visit after another
            position = np.arange(rows.size)
            earliest = np.empty(len(self), dtype=np.int64)
            earliest[rows[::-1]] = position[::-1]
            first = earliest[rows] == position
            now = rows[first]
            self._counts[:, now] = self.decay * self._counts[:, now] + visits[:, first]
            rows, visits = rows[~first], visits[:, ~first]

    def means(self, prior: tuple[float, float] = (0.0, 0.0)) -> dict[str, float]:
        """`mean_by_row`, by prompt id."""
        return dict(zip(self._row, self.mean_by_row(prior).tolist(), strict=True))

    def mean_by_row(self, prior: tuple[float, float] = (0.0, 0.0)) -> NDArray[np.float64]:
        """(S,) mean of every prompt seen, in the order of first sight; with a Beta prior, the mean
        of its posterior."""
        rewards, rollouts = self._counts[:, : len(self)]
        means: NDArray[np.float64] = (prior[0] + rewards) / (prior[0] + prior[1] + rollouts)
        return means

    def expected(self, prompt_ids: Sequence[str]) -> NDArray[np.float64]:
        """(B,) means, the mean prompt's for those never seen, and 1 where none was seen."""
        known = self.of(prompt_ids)
        rewards, rollouts = self._counts[:, : len(self)]
        seen = known.rollouts > 0
        expected = np.full(seen.size, (rewards / rollouts).mean() if len(self) else 1.0)
        expected[seen] = known.rewards[seen] / known.rollouts[seen]
        return expected

    def of(self, prompt_ids: Sequence[str]) -> VisitCounts:
        """What is known of some prompts now, 0 for those never seen."""
        rows = self.rows(prompt_ids)
        found = np.zeros((2, rows.size))
        found[:, rows >= 0] = self._counts[:, rows[rows >= 0]]
        return VisitCounts(*found)

    def ranks(self, counted: VisitCounts) -> NDArray[np.float64]:
        """(B,) difficulty ranks by mean reward among all prompts seen so far, NaN if unseen."""
        means = np.round(self.mean_by_row(), DIGITS)
        values, prompts = np.unique(means, return_counts=True)
        not_better = np.concatenate([[0], np.cumsum(prompts)])
        seen = counted.rollouts > 0
        own = np.round(counted.rewards[seen] / counted.rollouts[seen], DIGITS)
        as_bad = not_better[np.searchsorted(values, own, "right")]
        worse = not_better[np.searchsorted(values, own, "left")]
        ranks = np.full(seen.size, np.nan)
        ranks[seen] = (means.size - as_bad + (as_bad - worse - 1) / 2) / max(means.size, 1)
        return ranks

    def state_dict(self) -> dict[str, Any]:
        rewards, rollouts = self._counts[:, : len(self)].tolist()
        return {
            "rewards": dict(zip(self._row, rewards, strict=True)),
            "rollouts": dict(zip(self._row, rollouts, strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("RewardHistory", state, ("rewards", "rollouts"))
        rollouts = state["rollouts"]
        self._row = {prompt_id: row for row, prompt_id in enumerate(rollouts)}
        self._asked = ([], np.zeros(0, dtype=np.int64))
        self._counts = np.array(
            [[state["rewards"][x] for x in rollouts], list(rollouts.values())], dtype=np.float64
        ).reshape(2, len(rollouts))


def reward_sums(prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> VisitCounts:
    """Sum and number of the rewards of every prompt.

    Raises ValueError for rewards outside [0, 1] (NaN included), and where the number of ids
    differs from the number of reward arrays.
    """
    if len(prompt_ids) != len(rewards):
        raise ValueError(f"{len(prompt_ids)} prompts with {len(rewards)} arrays of rewards")
    if isinstance(rewards, CountedRewards):
        return rewards.sums
    sizes = np.fromiter(map(len, rewards), dtype=np.int64, count=len(rewards))
    sums = np.zeros(sizes.size)
    if sizes.any():
        flat = np.concatenate(rewards, dtype=np.float64)
        starts = np.cumsum(sizes) - sizes
        bad = ~((flat >= 0) & (flat <= 1))
        if bad.any():
            i = int(np.searchsorted(starts, bad.argmax(), "right")) - 1
            raise ValueError(
                f"prompt {prompt_ids[i]}: rewards {list(rewards[i])} outside [0, 1]; budgets learn "
                "from the verifier's raw 0/1, not from shaped rewards"
            )
        sums[sizes > 0] = np.add.reduceat(flat, starts[sizes > 0])
    return VisitCounts(sums, sizes.astype(np.float64))


def trait_visits(values: NDArray[np.float64]) -> VisitCounts:
    """A visit to each prompt whose value (B,) is known, of weight 1; NaN is no visit."""
    known = ~np.isnan(values)
    return VisitCounts(np.where(known, values, 0.0), known.astype(np.float64))
