"""Rounds of a validation batch: named evaluations, and pilots that look for a temperature."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from e3rl.batch import RolloutBatch
from e3rl.distributed import all_sum
from e3rl.temperatures.matching import EntropyMatcher

PILOT_ROLLOUTS = 256  # of a pilot round, as far as no prompt gets more than
PILOT_ROLLOUTS_PER_PROMPT = 4


@dataclass(frozen=True)
class Evaluation:
    """One way of sampling the validation problems.

    With a top-p or top-k the entropy measured is that of the truncated distribution, and so is the
    one that is matched. Training never truncates.

    Args:
        name: part of the metric names, `val/<name>/pass@k`.
        n: rollouts per problem (pass@k wants n >= 4 k to be quiet).
        temperature: 0 = greedy; None = the live training temperature (the step's own, where a rule
            lets single rollouts depart from it), or the matched one.
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
        if self.temperature is not None and self.temperature < 0:
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

    evaluation: str  # "" = pilot
    start: int
    n: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    shared_with: str | None = None  # the evaluation whose rollouts these are


class ValidationSchedule:
    """One validation run; `begin` starts each of its batches. Fits `batch.allocation`.

    The first round holds every evaluation whose temperature is known. One that would be sampled
    like another of as many rollouts takes the other's. Temperatures to be matched are searched for
    on the first batch, in pilot rounds, and kept for the others.
    """

    def __init__(self, evaluations: Sequence[Evaluation]) -> None:
        self._fixed = [e for e in evaluations if e.entropy is None]
        self._matched = [e for e in evaluations if e.entropy is not None]
        self._matchers = {e.name: EntropyMatcher(e.entropy or 0.0) for e in self._matched}
        self.segments: list[Segment] = []
        self._live = 1.0
        self._rounds = 0

    def begin(self, batch: RolloutBatch, live: float) -> "ValidationSchedule":
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
                self._add(e, e.n, self._live if e.temperature is None else e.temperature)
        waiting = [e for e in self._matched if not self._has(e.name)]
        for e in waiting:
            matcher = self._matchers[e.name]
            if matcher.done:
                self._add(e, e.n, matcher.temperature)
            else:
                fitting = PILOT_ROLLOUTS // max(1, batch.n_prompts)
                n = max(1, min(PILOT_ROLLOUTS_PER_PROMPT, fitting))
                self._add(e, n, matcher.temperature, pilot=True)
                break  # one search at a time: a pilot's result belongs to the first waiting
        count = sum(s.n for s in self.segments[before:] if s.shared_with is None)
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

    def _add(self, e: Evaluation, n: int, temperature: float, pilot: bool = False) -> None:
        if not pilot and (same := self._sampled_alike(e, n, temperature)):
            self.segments.append(replace(same, evaluation=e.name, n=n, shared_with=same.evaluation))
            return
        start = max((segment.start + segment.n for segment in self.segments), default=0)
        name = "" if pilot else e.name
        self.segments.append(Segment(name, start, n, temperature, e.top_p, e.top_k))

    def _sampled_alike(self, e: Evaluation, n: int, temperature: float) -> Segment | None:
        """An evaluation of as many rollouts and more from the same distribution."""
        wanted = temperature, e.top_p, e.top_k
        for s in self.segments:
            alike = (s.temperature, s.top_p, s.top_k) == wanted and s.n >= n
            if alike and s.evaluation and s.shared_with is None:
                return s
        return None
