"""What problem sets hold, what they lost on the way, and what they share."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations

from e3rl.data.problem import Problem
from e3rl.data.problems import UNSELECTED, ProblemSet
from e3rl.data.questions import group_by_question, have_same_answer, question_key, question_text
from e3rl.rewards.answer_formats import INTEGER, is_number

Lengths = Callable[[Problem], int]  # tokens of a rendered prompt
EXAMPLES = 3


def set_row(name: str, problems: ProblemSet, tokens: Lengths | None, limit: int) -> dict[str, str]:
    """A row of the card; counts "left" are problems after all filters, over-long ones included.

    `tokens` None leaves the columns about token lengths empty.
    """
    groups = group_by_question(problems).values()
    letters = [len(question_text(problem)) for problem in problems]
    lengths = sorted(map(tokens, problems)) if tokens else []
    lost = {reason: n for reason, n in problems.dropped.items() if reason != UNSELECTED}
    priors = [problem.prior for problem in problems if problem.prior is not None]
    return {
        "set": name,
        "rows": str(len(problems) + sum(problems.dropped.values())),
        "selected": str(len(problems) + sum(lost.values())),
        "dropped": format_counts(lost),
        "left": str(len(problems)),
        "repeated": str(len(problems) - len(groups)),
        "contradicted": str(sum(not have_same_answer(group) for group in groups)),
        "sources": format_counts(Counter(problem.source for problem in problems)),
        "answers": format_counts(Counter(answer_kind(problem.answer) for problem in problems)),
        "with prior": str(len(priors)),
        "letters, median and most": f"{statistics.median(letters):.0f}, {max(letters)}",
        "tokens, median and most": (
            f"{statistics.median(lengths):.0f}, {lengths[-1]}" if lengths else ""
        ),
        "over-long": str(sum(length > limit for length in lengths)) if lengths else "",
    }


def answer_kind(answer: str) -> str:
    """`integer`, another `number` (a fraction, a decimal, one with a unit), or `other`."""
    if INTEGER.fullmatch(answer):
        return "integer"
    return "number" if is_number(answer) else "other"


def overlap_rows(sets: Mapping[str, ProblemSet]) -> list[dict[str, str]]:
    """A row per pair of sets that share questions, exact after normalisation (`question_key`)."""
    keyed = {name: {question_key(p): p for p in problems} for name, problems in sets.items()}
    rows = []
    for one, other in combinations(keyed, 2):
        shared = [key for key in keyed[one] if key in keyed[other]]
        if shared:
            pairs = [(keyed[one][key].id, keyed[other][key].id) for key in shared[:EXAMPLES]]
            rows.append(
                {
                    "set": one,
                    "shares with": other,
                    "questions": str(len(shared)),
                    "e.g.": ", ".join(f"{mine} = {theirs}" for mine, theirs in pairs),
                }
            )
    return rows


def format_counts(counts: Mapping[str, int]) -> str:
    """`aime: 3, math: 2`, most first."""
    return ", ".join(f"{name}: {n}" for name, n in Counter(counts).most_common())
