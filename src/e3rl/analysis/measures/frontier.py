"""The frontier of an arm: what pass@1 costs in pass@k as the same policy is sampled hotter.

Cooling a policy moves it along its frontier: pass@1 rises, pass@k falls. An arm has gained where
its frontier lies above another's, not where it stands elsewhere on the same one.
"""

from collections.abc import Sequence
from typing import Literal

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.measures.evaluations import EvaluationResult, evaluation_names, find_evaluation
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.shares import share_interval

UNTRAINED = "untrained"
When = Literal["first", "last"]


def frontier_rows(arms: Arms, k: int | None = None, level: float = 0.95) -> list[Row]:
    """A row per arm and temperature of its last validation, and of the policy before training.

    Of evaluations at one temperature the one with the most rollouts counts; greedy ones, and those
    with fewer than k rollouts, have no pass@k. An evaluation that not all seeds of the arm have is
    left out where another one has more: its point would be of other runs than the next one.

    Args:
        arms: runs by arm.
        k: of pass@k; None: the largest power of two up to 16 that every arm has somewhere.
        level: coverage of the intervals.

    Returns:
        dicts with arm (`untrained` for the policy before training), evaluation, temperature,
        entropy, samples, seeds, k; pass@1 and pass@k with _low and _high. By rising temperature.

    Raises:
        ValueError: no arm was sampled more than once per problem, or none k times, or k is below 1.
    """
    found = {arm: _by_temperature(runs, arms, "last") for arm, runs in arms.items()}
    before = [_by_temperature(runs, arms, "first") for runs in arms.values()]
    found[UNTRAINED] = _most_sampled([item for items in before for item in items])
    known = {arm: items for arm, items in found.items() if items}
    if not known:
        raise ValueError("no problem was sampled more than once: a frontier needs n > 1")
    most = [max(item.n_samples for item in items) for items in known.values()]
    if k is not None and not 1 <= k <= max(most):
        raise ValueError(
            f"k={k}: a frontier takes 1 to {max(most)}, as often as a problem was sampled at most; "
            "lower k, or sample more (e3rl record --n)"
        )
    chosen = k or min(16, 1 << (min(most).bit_length() - 1))
    return [
        _row(arm, item, chosen, level)
        for arm, items in known.items()
        for item in items
        if item.n_samples >= chosen
    ]


def _by_temperature(runs: Sequence[Run], arms: Arms, when: When) -> list[EvaluationResult]:
    found = [find_evaluation(runs, name, when) for name in evaluation_names(arms)]
    sampled = [item for item in found if item and item.temperature > 0 and item.n_samples > 1]
    most = max((len(item.seeds) for item in sampled), default=0)
    return _most_sampled([item for item in sampled if len(item.seeds) == most])


def _most_sampled(items: Sequence[EvaluationResult]) -> list[EvaluationResult]:
    """One of each temperature, by rising temperature."""
    best: dict[float, EvaluationResult] = {}
    for item in items:
        key = round(item.temperature, 2)
        best[key] = max(best.get(key, item), item, key=lambda each: each.n_samples)
    return [best[key] for key in sorted(best)]


def _row(arm: str, item: EvaluationResult, k: int, level: float) -> Row:
    row: Row = {
        "arm": arm,
        "evaluation": item.name,
        "temperature": item.temperature,
        "entropy": item.entropy,
        "samples": item.n_samples,
        "seeds": len(item.seeds),
        "k": k,
    }
    for each in (1, k):
        interval = share_interval(item.by_seed_and_problem(each), level)
        row |= interval_columns("pass@1" if each == 1 else "pass@k", interval)
    return row


def frontier_sources(rows: Sequence[Row]) -> str:
    """Which evaluations the points of a frontier are, in a sentence."""
    spans = []
    for name in dict.fromkeys(row["evaluation"] for row in rows):
        mine = [row for row in rows if row["evaluation"] == name]
        samples, seeds = (_span(sorted({row[key] for row in mine})) for key in ("samples", "seeds"))
        spans.append(f"{name} (n = {samples}, {seeds} seed{'s' * (seeds != '1')})")
    return f"Evaluations: {', '.join(spans)}."


def _span(numbers: Sequence[int]) -> str:
    """The smallest to the largest of sorted numbers, or the only one."""
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
