"""Rounds of a validation batch: named evaluations, and pilots that look for a temperature."""

from collections.abc import Sequence
from dataclasses import dataclass

from e3rl.batch import RolloutBatch
from e3rl.reduce import all_sum
from e3rl.temperatures.matching import EntropyMatcher

PILOT_ROLLOUTS = 4  # per prompt and pilot round


@dataclass(frozen=True)
class Evaluation:
    """One way of sampling the validation problems.

    Args:
        name: part of the metric names, `val/<name>/pass@k`.
        n: rollouts per problem (pass@k wants n >= 4 k to be quiet).
        temperature: 0 = greedy; None = the live training temperature (of a group's first rollout,
            where a rule gives each its own), or the matched one.
        entropy: sample at the temperature that gives this entropy (nats per token).
        last_only: leave it to the last validation of a run.

    Raises ValueError for a name that metrics cannot carry, n < 1, a negative temperature, more than
    one greedy rollout, an entropy that is not positive, or both a temperature and an entropy.
    """

    name: str
    n: int = 16
    temperature: float | None = None
    entropy: float | None = None
    last_only: bool = False

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(f"evaluation name {self.name!r}: use a word without slashes")
        if self.n < 1:
            raise ValueError(f"evaluation {self.name}: n={self.n}, use at least 1")
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"evaluation {self.name}: n={self.n} greedy rollouts are all alike, use n=1"
            )
        if self.entropy is not None and not self.entropy > 0:
            raise ValueError(
                f"evaluation {self.name}: entropy={self.entropy}, use more than 0 nats per token"
            )
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(
                f"evaluation {self.name}: temperature={self.temperature}, use 0 (greedy) or more"
            )
        if self.temperature is not None and self.entropy is not None:
            raise ValueError(
                f"evaluation {self.name}: give a temperature or an entropy to match, not both"
            )


@dataclass(frozen=True)
class Segment:
    """Sample indices [start, start + n) of every prompt, and how they are sampled."""

    evaluation: str  # "" = pilot
    start: int
    n: int
    temperature: float


class ValidationPlan:
    """One validation run; `begin` starts each of its batches. Fits `batch.plan`.

    The first round holds every evaluation whose temperature is known. Temperatures to be matched
    are searched for on the first batch, in pilot rounds, and kept for the others.
    """

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self._fixed = [e for e in evaluations if e.entropy is None]
        self._matched = [e for e in evaluations if e.entropy is not None]
        self._matchers = {e.name: EntropyMatcher(e.entropy or 0.0) for e in self._matched}
        self.segments: list[Segment] = []
        self._live = 1.0
        self._rounds = 0

    def begin(self, batch: RolloutBatch, live: float) -> "ValidationPlan":
        """Start a batch; `live` is the training temperature of the moment."""
        self.segments, self._live, self._rounds = [], live, 0
        return self

    def next(self, batch: RolloutBatch) -> list[int] | None:
        """Counts of the next round, the same for every prompt; None when all is sampled."""
        first, self._rounds = self._rounds == 0, self._rounds + 1
        if not first:
            self._learn(batch)
        before = len(self.segments)
        if first:
            for e in self._fixed:
                self._add(e.name, e.n, self._live if e.temperature is None else e.temperature)
        waiting = [e for e in self._matched if not self._has(e.name)]
        for e in waiting:
            matcher = self._matchers[e.name]
            if matcher.done:
                self._add(e.name, e.n, matcher.temperature)
            else:
                self._add("", PILOT_ROLLOUTS, matcher.temperature)
                break  # one search at a time: a pilot's result belongs to the first waiting
        new = self.segments[before:]
        return [sum(s.n for s in new)] * batch.n_prompts if new else None

    def temperature_of(self, prompts: Sequence[int], samples: Sequence[int]) -> list[float]:
        """Temperature by sample index; fits `batch.temperature_of`."""
        return [
            next(s.temperature for s in self.segments if s.start <= j < s.start + s.n)
            for j in samples
        ]

    def _learn(self, batch: RolloutBatch) -> None:
        pilot = self.segments[-1]
        waiting = [e for e in self._matched if not self._has(e.name)]
        if pilot.evaluation or not waiting:
            return
        rows = batch.tensor("sample") >= pilot.start
        surprisal, tokens = all_sum(
            [
                -float(batch.tensor("sampler_logprobs")[rows].double().sum()),
                float(batch.tensor("completion_mask")[rows].sum()),
            ]
        )
        self._matchers[waiting[0].name].observe(pilot.temperature, surprisal / tokens)

    def _has(self, name: str) -> bool:
        return any(segment.evaluation == name for segment in self.segments)

    def _add(self, evaluation: str, n: int, temperature: float) -> None:
        start = sum(segment.n for segment in self.segments)
        self.segments.append(Segment(evaluation, start, n, temperature))
