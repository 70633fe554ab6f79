"""What is known about every prompt seen so far: its rewards and its rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.posterior import BetaPosterior
from e3rl.state import require_keys


@dataclass(frozen=True)
class Counted:
    """Rewards and rollouts of B prompts, discounted or of one visit."""

    rewards: NDArray[np.float64]  # (B,)
    rollouts: NDArray[np.float64]  # (B,)

    @property
    def never_solved(self) -> NDArray[np.bool_]:
        """(B,) True for prompts that were seen and never earned a reward."""
        unsolved: NDArray[np.bool_] = (self.rewards == 0) & (self.rollouts > 0)
        return unsolved

    def posterior(self, prior: tuple[float, float]) -> BetaPosterior:
        """Beliefs about the pass rates; the prior (a₀, b₀) itself for prompts never seen."""
        return BetaPosterior(prior[0] + self.rewards, prior[1] + self.rollouts - self.rewards)


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

    def add(self, prompt_ids: Sequence[str], visits: Counted) -> None:
        """`observe`, of values that are summed already, be they rewards or not."""
        visited = visits.rollouts > 0
        ids = prompt_ids if visited.all() else np.array(prompt_ids, dtype=object)[visited].tolist()
        rows = self._rows(ids)
        unseen = np.flatnonzero(rows < 0).tolist()
        fresh = dict.fromkeys(ids[i] for i in unseen)  # once each, in order
        self._row.update(zip(fresh, count(len(self)), strict=False))
        rows[unseen] = [self._row[ids[i]] for i in unseen]
        self._add(rows, np.stack([visits.rewards, visits.rollouts])[:, visited])

    def _rows(self, prompt_ids: Sequence[str]) -> NDArray[np.int64]:
        """(B,) rows of prompts, -1 for those never seen."""
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
            _, first = np.unique(rows, return_index=True)
            now = rows[first]
            self._counts[:, now] = self.decay * self._counts[:, now] + visits[:, first]
            rows, visits = np.delete(rows, first), np.delete(visits, first, axis=1)

    def means(self, prior: tuple[float, float] = (0.0, 0.0)) -> dict[str, float]:
        """Mean of every prompt seen; with a Beta prior, the mean of its posterior."""
        rewards, rollouts = self._counts[:, : len(self)]
        means = (prior[0] + rewards) / (prior[0] + prior[1] + rollouts)
        return dict(zip(self._row, means.tolist(), strict=True))

    def of(self, prompt_ids: Sequence[str]) -> Counted:
        """What is known of some prompts now, 0 for those never seen."""
        rows = self._rows(prompt_ids)
        found = np.zeros((2, rows.size))
        found[:, rows >= 0] = self._counts[:, rows[rows >= 0]]
        return Counted(*found)

    def ranks(self, counted: Counted) -> NDArray[np.float64]:
        """(B,) difficulty ranks by mean reward among all prompts seen so far, NaN if unseen."""
        means = np.sort(self._counts[0, : len(self)] / self._counts[1, : len(self)])
        seen = counted.rollouts > 0
        own = counted.rewards[seen] / counted.rollouts[seen]
        better = means.size - np.searchsorted(means, own, "right")
        as_good = means.size - np.searchsorted(means, own, "left") - better
        ranks = np.full(seen.size, np.nan)
        ranks[seen] = (better + (as_good - 1) / 2) / max(means.size, 1)
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


def reward_sums(prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> Counted:
    """Sum and number of the rewards of every prompt.

    Raises ValueError for rewards outside [0, 1] (NaN included), and where the number of ids
    differs from the number of reward arrays.
    """
    if len(prompt_ids) != len(rewards):
        raise ValueError(f"{len(prompt_ids)} prompts with {len(rewards)} arrays of rewards")
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
    return Counted(sums, sizes.astype(np.float64))


def trait_visits(values: NDArray[np.float64]) -> Counted:
    """A visit to each prompt whose value (B,) is known, of weight 1; NaN is no visit."""
    known = ~np.isnan(values)
    return Counted(np.where(known, values, 0.0), known.astype(np.float64))
