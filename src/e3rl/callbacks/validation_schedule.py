"""What is sampled of a validation batch: named evaluations, side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from e3rl.batch import RolloutBatch


@dataclass(frozen=True)
class Evaluation:
    """One way of sampling the validation problems.

    With a top-p or top-k the entropy measured is that of the truncated distribution, and so is the
    one that is matched. Training never truncates. An entropy to match takes evaluations of all
    problems to find its temperature (`evaluation.matching`), which a validation in training does
    not do.

    Args:
        name: part of the metric names, `val/<name>/pass@k`.
        n: rollouts per problem (pass@k wants n >= 4 k to be quiet).
        temperature: 0 = greedy; None = the live training temperature (the step's own, where a rule
            lets single rollouts depart from it).
        entropy: sample at the temperature that gives this entropy (nats per token).
        last_only: leave it to the last validation of a run.
        last_n: rollouts per problem in the last validation of a run; None = n as well.
        top_p: sample from the likeliest tokens that hold this probability together; 1 = all.
        top_k: sample from this many likeliest tokens; 0 = all.

    Raises ValueError for a name that metrics cannot carry, n or last_n < 1, a negative temperature,
    more than one greedy rollout, an entropy that is not positive, both a temperature and an
    entropy, a top-p outside (0, 1], a negative top-k, or either of them beside temperature 0.
    """

    name: str
    n: int = 16
    temperature: float | None = None
    entropy: float | None = None
    last_only: bool = False
    last_n: int | None = None
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        self._check_truncation()
        if not self.name or "/" in self.name:
            raise ValueError(f"evaluation name {self.name!r}: use a word without slashes")
        for name, n in (("n", self.n), ("last_n", self.n if self.last_n is None else self.last_n)):
            if n < 1:
                raise ValueError(f"evaluation {self.name}: {name}={n}, use at least 1")
            if self.temperature == 0 and n > 1:
                raise ValueError(
                    f"evaluation {self.name}: {name}={n} greedy rollouts are all alike, use 1"
                )
        if self.entropy is not None and not self.entropy > 0:
            raise ValueError(
                f"evaluation {self.name}: entropy={self.entropy}, use more than 0 nats per token"
            )
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"evaluation {self.name}: temperature={self.temperature}, use 0 (greedy) or more"
            )
        if self.temperature is not None and self.entropy is not None:
            raise ValueError(
                f"evaluation {self.name}: give a temperature or an entropy to match, not both"
            )

    def at_last(self) -> "Evaluation":
        """What the last validation of a run samples."""
        return self if self.last_n is None else replace(self, n=self.last_n)

    def _check_truncation(self) -> None:
        where = f"evaluation {self.name}"
        if not 0 < self.top_p <= 1:
            raise ValueError(f"{where}: top_p={self.top_p}, use more than 0 and at most 1 (all)")
        if self.top_k < 0:
            raise ValueError(f"{where}: top_k={self.top_k}, use a number of tokens, or 0 (all)")
        if self.temperature == 0 and (self.top_p < 1 or self.top_k > 0):
            raise ValueError(
                f"{where}: a greedy choice takes the likeliest token whatever top_p and top_k "
                "are; leave them out, or use a temperature above 0"
            )


@dataclass(frozen=True)
class Segment:
    """Sample indices [start, start + n) of every prompt, and how they are sampled."""

    evaluation: str
    start: int
    n: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    shared_with: str | None = None  # the evaluation whose rollouts these are


class ValidationSchedule:
    """One validation run; `begin` starts each of its batches. Fits `batch.allocation`.

    One round holds every evaluation. One that would be sampled like another of as many rollouts
    takes the other's. Sample indices, and so the noise, go to evaluations with a temperature of
    their own first: whether a live one takes another's rollouts differs between arms, and by step.
    """

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self._evaluations = list(evaluations)
        self._numbered = sorted(self._evaluations, key=lambda each: each.temperature is None)
        self.segments: list[Segment] = []
        self._live = 1.0

    def begin(self, batch: RolloutBatch, live: float) -> "ValidationSchedule":
        """Start a batch; `live` is the training temperature of the moment."""
        self.segments, self._live = [], live
        return self

    def next(self, batch: RolloutBatch) -> list[int] | None:
        """Counts of the round, the same for every prompt; None when all is sampled."""
        if self.segments:
            return None
        for each in self._numbered:
            self._add(each, self._live if each.temperature is None else each.temperature)
        order = [each.name for each in self._evaluations]
        self.segments.sort(key=lambda segment: order.index(segment.evaluation))
        count = sum(s.n for s in self.segments if s.shared_with is None)
        return [count] * batch.n_prompts if count else None

    def metrics(self) -> dict[str, float]:
        """None: a validation has no budget to report."""
        return {}

    def temperature_of(self, prompts: Sequence[int], samples: Sequence[int]) -> list[float]:
        """Temperature by sample index; fits `batch.temperature_of`."""
        return [self._segment_of(j).temperature for j in samples]

    def truncation_of(
        self, prompts: Sequence[int], samples: Sequence[int]
    ) -> list[tuple[float, int]]:
        """(top-p, top-k) by sample index; fits `batch.truncation_of`."""
        segments = [self._segment_of(j) for j in samples]
        return [(segment.top_p, segment.top_k) for segment in segments]

    def _segment_of(self, sample: int) -> Segment:
        return next(s for s in self.segments if s.start <= sample < s.start + s.n)

    def _add(self, e: Evaluation, temperature: float) -> None:
        if same := self._sampled_alike(e, temperature):
            shared = replace(same, evaluation=e.name, n=e.n, shared_with=same.evaluation)
            self.segments.append(shared)
            return
        start = max((segment.start + segment.n for segment in self.segments), default=0)
        self.segments.append(Segment(e.name, start, e.n, temperature, e.top_p, e.top_k))

    def _sampled_alike(self, e: Evaluation, temperature: float) -> Segment | None:
        """An evaluation of as many rollouts and more from the same distribution."""
        wanted = temperature, e.top_p, e.top_k
        for s in self.segments:
            alike = (s.temperature, s.top_p, s.top_k) == wanted and s.n >= e.n
            if alike and s.shared_with is None:
                return s
        return None
