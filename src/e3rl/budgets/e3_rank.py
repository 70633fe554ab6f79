"""E3's rollout budget: more rollouts for prompts that rank as harder."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import TRAITS, Decision, SingleRound, Traits
from e3rl.budgets.history import DIGITS, RewardHistory, trait_visits
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.metrics import allocation_metrics, spearman
from e3rl.budgets.strict_reference import published_counts
from e3rl.checkpoints.strict_state import require_keys
from e3rl.statistics.apportion import water_fill
from e3rl.statistics.ranks import mid_ranks

DifficultyMeasure = Literal["reward", "posterior", "prior", "length", "entropy", "disagreement"]
# Weight of a prompt that was not ranked: the middle of the ranks.
UNSEEN = 0.5


class E3Rank:
    """nᵢ = n_min + λ·kᵢ under the cap n_max, with bounds that widen at every rank update.

        n_min = max(n_low, ⌊G⌋ - e·n_update),   n_max = min(n_high, ⌈G⌉ + e·n_update),

    where G = total/B, e counts rank updates, and kᵢ in [0, 1) is the difficulty rank of prompt i
    by mean reward among *all* prompts seen (arXiv 2505.18573, algorithm 1 and section 3.1). e = 0
    is uniform. Ranks are a snapshot taken when e changes, and frozen until it changes again;
    prompts that it lacks weigh as the middle of the ranks.

    Mode `corrected` has an exact sum and hard bounds (water-filling, largest remainder) and does
    not depend on the order of the prompts. Mode `strict_reference` splits as the published code
    does, which overshoots n_max, treats unseen prompts as the easiest and breaks ties by position
    (`budgets/strict_reference.py`); its ranks are the same mid-ranks as those of `corrected`.

    The measure of difficulty is an axis of its own, the paper's named limitation: `reward` as
    published; `posterior`, the mean reward with one right and one wrong rollout more, so that two
    misses rank below twenty; `prior`, the rank that the data bring; `length` and `entropy`, mean
    tokens and mean surprise per token of the completions, and `disagreement`, the share of pairs
    of them with different final answers, which needs no gold answer; larger being harder. A prompt
    that all completions answer alike and wrong counts as easy by disagreement.

    Under a token mean a prompt with more rollouts also weighs more. `spend="weight"` is a control
    that tells the two apart: every prompt gets the same number of rollouts, and weighs in the
    update as much as the rollouts that it would have had.

    Args:
        n_low: smallest lower bound, at least 2.
        n_high: largest upper bound.
        n_update: how much both bounds move per update.
        rank_update: e is the epoch, or ⌊step/m⌋ for a number of rollout steps m.
        mode: `corrected` or `strict_reference`.
        decay: of old visits in the measure of difficulty; 1 is the published lifetime mean.
        difficulty: `reward`, `posterior`, `prior`, `length`, `entropy` or `disagreement`.
        seed: what tie-breaks derive from.
        spend: `rollouts`, or `weight` at even rollouts.
    """

    def __init__(
        self,
        n_low: int = 4,
        n_high: int = 12,
        n_update: int = 2,
        rank_update: Literal["epoch"] | int = "epoch",
        mode: Literal["corrected", "strict_reference"] = "corrected",
        decay: float = 1.0,
        difficulty: DifficultyMeasure = "reward",
        seed: int = 0,
        spend: Literal["rollouts", "weight"] = "rollouts",
    ) -> None:
        if difficulty not in get_args(DifficultyMeasure):
            choices = ", ".join(get_args(DifficultyMeasure))
            raise ValueError(f"difficulty={difficulty!r}: use one of {choices}")
        if spend not in ("rollouts", "weight"):
            raise ValueError(f"spend={spend!r}: use 'rollouts' or 'weight'")
        _check(n_low, n_high, n_update, rank_update, mode)
        self.n_low = n_low
        self.n_high = n_high
        self.n_update = n_update
        self.rank_update = rank_update
        self.mode = mode
        self.seed = seed
        self.difficulty = difficulty
        self.spend = spend
        self._history = RewardHistory(decay)
        self._trait = RewardHistory(decay) if difficulty in TRAITS else None
        self._ranks = np.zeros(0)  # by row of the history of the measure; those seen later lack it
        self._update: int | None = None  # e of the snapshot
        self._rank_drift: float | None = None

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step, with the metrics of `allocation_metrics` and:

        unsolved_share: share of its rollouts on prompts seen before and never solved until then;
        rank_drift: Spearman correlation of the last two rank snapshots over the prompts in both,
            NaN before there are two.

        Raises ValueError where the mean group size lies outside [n_low, n_high].
        """
        # Compared here rather than in an epoch hook: a resumed run may skip those hooks.
        update = epoch if self.rank_update == "epoch" else step // int(self.rank_update)
        if update != self._update:
            self._refresh(update)
        n_min, n_max = self.bounds(total, len(prompt_ids), update)
        rows = self._measured.rows(prompt_ids)
        ranked = (rows >= 0) & (rows < self._ranks.size)
        ranks = np.full(rows.size, np.nan)
        ranks[ranked] = self._ranks[rows[ranked]]
        keys, weights = prompt_keys(self.seed, step, prompt_ids), None
        counts = self._split(ranks, total, n_min, n_max, keys)
        if self.spend == "weight":
            weights = counts * len(prompt_ids) / counts.sum()
            n_min, n_max = self.bounds(total, len(prompt_ids), 0)
            counts = water_fill(np.full(rows.size, UNSEEN), total, n_min, n_max, keys)
        known = self._history.of(prompt_ids)
        unsolved = counts[known.never_solved].sum()
        metrics = allocation_metrics(counts, n_min, n_max) | {
            "unsolved_share": float(unsolved / total),
            "rank_drift": math.nan if self._rank_drift is None else self._rank_drift,
        }
        always = ranked & known.always_solved if self._trait is None else None
        return Decision(SingleRound(counts, metrics), ranks, False, always, weights)

    def bounds(self, total: int, n_prompts: int, update: int) -> tuple[int, int]:
        """(n_min, n_max) after `update` rank updates; they always hold the total."""
        low, high = total // n_prompts, -(-total // n_prompts)
        if low < self.n_low or high > self.n_high:
            raise ValueError(
                f"{total} rollouts for {n_prompts} prompts are {total / n_prompts:g} each, outside "
                f"n_low={self.n_low} and n_high={self.n_high}: change rollouts_per_prompt, or "
                "move n_low below it and n_high above it"
            )
        widening = update * self.n_update
        return max(self.n_low, low - widening), min(self.n_high, high + widening)

    @property
    def needed_traits(self) -> tuple[str, ...]:
        return () if self._trait is None else (self.difficulty,)

    def describe(self, prompt_ids: Sequence[str], traits: Traits) -> None:
        """Learn the trait that difficulty is measured by, if it is one."""
        if self._trait is not None:
            self._trait.add(prompt_ids, trait_visits(traits[self.difficulty]))

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Add a step's rewards; ranks follow at the next update."""
        self._history.observe(prompt_ids, rewards)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "history": self._history.state_dict(),
            "ranks": dict(zip(self._measured.means(), self._ranks.tolist(), strict=False)),
            "update": self._update,
            "rank_drift": self._rank_drift,
        }
        return state if self._trait is None else state | {"trait": self._trait.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("E3Rank", state, self.state_dict())
        self._history.load_state_dict(state["history"])
        if self._trait is not None:
            self._trait.load_state_dict(state["trait"])
        seen = islice(self._measured.means(), len(state["ranks"]))
        self._ranks = np.array([state["ranks"][prompt_id] for prompt_id in seen])
        self._update = state["update"]
        self._rank_drift = state["rank_drift"]

    def metrics(self) -> dict[str, float]:
        """seen: prompts seen so far."""
        return {"seen": float(len(self._history))}

    def _refresh(self, update: int) -> None:
        new = mid_ranks(self._easiness())
        self._rank_drift = spearman(self._ranks, new[: self._ranks.size])
        self._ranks, self._update = new, update

    @property
    def _measured(self) -> RewardHistory:
        """The history that difficulty is measured by."""
        return self._history if self._trait is None else self._trait

    def _easiness(self) -> NDArray[np.float64]:
        """(S,) the measure of difficulty by row of its history, larger where easier."""
        if self._trait is None:
            prior = (1.0, 1.0) if self.difficulty == "posterior" else (0.0, 0.0)
            return np.round(self._history.mean_by_row(prior), DIGITS)
        if len(self._history) > 0 and len(self._trait) == 0:
            raise ValueError(
                f"difficulty={self.difficulty}: no prompt seen so far has one, so all would get "
                "the same; use difficulty=reward, or data and a pipeline that bring it"
            )
        return -np.round(self._trait.mean_by_row(), DIGITS)

    def _split(
        self,
        ranks: NDArray[np.float64],
        total: int,
        n_min: int,
        n_max: int,
        keys: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        if self.mode == "strict_reference":
            return np.array(published_counts(ranks.tolist(), total, n_min, n_max), dtype=np.int64)
        return water_fill(np.nan_to_num(ranks, nan=UNSEEN), total, n_min, n_max, keys)


def _check(n_low: int, n_high: int, n_update: int, rank_update: object, mode: str) -> None:
    if n_low < 2:
        raise ValueError(f"n_low={n_low}: use at least 2, a single rollout has no advantage")
    if n_high < n_low:
        raise ValueError(f"n_high={n_high} lies below n_low={n_low}; raise it")
    if n_update < 0:
        raise ValueError(f"n_update={n_update} must not be negative; 0 keeps the budget uniform")
    if rank_update != "epoch" and not (isinstance(rank_update, int) and rank_update >= 1):
        raise ValueError(f"rank_update={rank_update!r}: use 'epoch' or a number of steps >= 1")
    if mode not in ("corrected", "strict_reference"):
        raise ValueError(f"mode={mode!r}: use 'corrected' or 'strict_reference'")
