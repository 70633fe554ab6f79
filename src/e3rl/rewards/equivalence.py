r"""Classes of equal answers to one problem: what a majority is counted over.

Two answers are in one class where the verifier says that they are equal, not where their texts
are: `\frac12`, `0.5` and `x = 1/2` are one vote. All right answers are one class, since all are
equal to the gold answer. Wrong ones are compared with each other, each of two as the gold answer,
because the verifier is not symmetric; either verdict is enough.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from e3rl.rewards.pool import RewardPool

RIGHT = "the right answer"  # no answer in one spelling has spaces
Answered = tuple[str | None, bool]  # what `RewardPool.read` returns, and whether it is right


@dataclass
class _Ballot:
    """One problem: class of each text so far, and the texts without one, most frequent first."""

    forms: list[str | None]  # N, the answers in one spelling, all right ones alike
    spellings: dict[str, str]  # as first written, which is what is compared
    waiting: list[str]
    leaders: dict[str, str]  # form -> form that stands for its class


def answer_classes(
    pool: RewardPool, problems: Sequence[Sequence[Answered]], progress: bool = False
) -> list[list[int | None]]:
    """Class of every answer of every problem, counting from 0 in order of appearance.

    A text joins the class whose most frequent text it equals, the most frequent class first;
    equality by an algebra system with tolerances need not be transitive. The problems' comparisons
    are made together, in the workers of the pool.

    Args:
        pool: the verifier that judged the answers.
        problems: of each problem its samples' answers, with what the verifier found them.

    Returns:
        the classes, None where a sample has no answer; equal answers of different problems may
        have different numbers. Raises as `RewardPool.collect` does.
    """
    ballots = [_ballot(samples, pool.scorer.normalize) for samples in problems]
    while open_ones := [ballot for ballot in ballots if ballot.waiting]:
        heads = [(ballot, ballot.waiting.pop(0)) for ballot in open_ones]
        pairs = [
            pair
            for ballot, head in heads
            for other in ballot.waiting
            for pair in _both_ways(ballot.spellings[head], ballot.spellings[other])
        ]
        verdicts = iter(pool.equal(pairs, progress))
        for ballot, head in heads:
            equal = {head} | {o for o in ballot.waiting if any([next(verdicts), next(verdicts)])}
            ballot.leaders |= dict.fromkeys(equal, head)
            ballot.waiting = [other for other in ballot.waiting if other not in equal]
    return [_numbered(ballot) for ballot in ballots]


def _ballot(samples: Sequence[Answered], normalize: Callable[[str], str]) -> _Ballot:
    forms = [None if a is None else RIGHT if right else normalize(a) for a, right in samples]
    spellings: dict[str, str] = {}
    for form, (answer, right) in zip(forms, samples, strict=True):
        if form is not None and answer is not None and not right:
            spellings.setdefault(form, answer)
    counts = Counter(form for form in forms if form in spellings)
    waiting = [form for form, _ in counts.most_common() if form is not None]
    return _Ballot(forms, spellings, waiting, {RIGHT: RIGHT})


def _both_ways(a: str, b: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (a, b), (b, a)


def _numbered(ballot: _Ballot) -> list[int | None]:
    leaders = [None if form is None else ballot.leaders[form] for form in ballot.forms]
    numbers = {form: i for i, form in enumerate(dict.fromkeys(f for f in leaders if f is not None))}
    return [None if leader is None else numbers[leader] for leader in leaders]
