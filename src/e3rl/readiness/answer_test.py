"""Does every gold answer score in usual spellings, and only on its own problem?"""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from e3rl.data.problem import Problem
from e3rl.rewards.answer_formats import compact
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Scorer
from e3rl.rewards.verdict import Verdict

PLAINEST = ("box", "plain")


class AnswerCase(NamedTuple):
    """One completion to be judged."""

    problem: Problem
    kind: str  # of spelling, or the id of the problem whose answer is given
    completion: str


def own_spellings(problems: Iterable[Problem], scorer: Scorer) -> list[AnswerCase]:
    """Every problem's own answer in all spellings that the scorer knows."""
    return [
        AnswerCase(problem, kind, completion)
        for problem in problems
        for kind, completion in scorer.spell(problem.answer).items()
    ]


def answers_of_others(
    problems: Sequence[Problem], scorer: Scorer, per_problem: int
) -> list[AnswerCase]:
    """For each problem the answers of random others, spelled differently from its own."""
    draw = random.Random(0)
    cases = []
    for problem in problems:
        own = compact(problem.answer)
        drawn = draw.sample(problems, min(4 * per_problem, len(problems)))
        others = [p for p in drawn if compact(p.answer) != own]
        for other in others[:per_problem]:
            plainest = next(iter(scorer.spell(other.answer).values()), None)
            if plainest is not None:
                cases.append(AnswerCase(problem, other.id, plainest))
    return cases


def judge(pool: RewardPool, cases: Sequence[AnswerCase]) -> list[Verdict]:
    """Submit every completion to the pool and wait; the verdicts come in the order of the cases."""
    for case in cases:
        pool.submit(case.completion, case.problem.question())
    return pool.collect()


class AnswerTestResult(NamedTuple):
    """How many completions of known standing there were, and those judged otherwise."""

    own: int
    others: int
    lost: list[str]  # own answers without a reward, "id: spelling, status"
    plain_lost: list[str]  # of them the ids whose plainest spelling has none
    gained: list[str]  # answers of others with one, "id: answer of OTHER"


def run_answer_test(
    pool: RewardPool, problems: Sequence[Problem], per_problem: int = 1
) -> AnswerTestResult:
    """Judge every gold answer in its own spellings, and on other problems.

    Args:
        pool: the reward workers; left open.
        problems: with their gold answers.
        per_problem: answers of other problems that are tried on each.
    """
    own = own_spellings(problems, pool.scorer)
    others = answers_of_others(problems, pool.scorer, per_problem)
    right = list(zip(own, judge(pool, own), strict=True))
    wrong = list(zip(others, judge(pool, others), strict=True))
    missed = [(case, verdict) for case, verdict in right if not verdict.reward]
    return AnswerTestResult(
        own=len(own),
        others=len(others),
        lost=[f"{case.problem.id}: {case.kind}, {verdict.status}" for case, verdict in missed],
        plain_lost=[case.problem.id for case, _ in missed if case.kind in PLAINEST],
        gained=[f"{c.problem.id}: answer of {c.kind}" for c, verdict in wrong if verdict.reward],
    )
