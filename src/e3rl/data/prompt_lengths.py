"""Prompts that do not fit: reported like any other bad row, once there is a tokenizer."""

from collections.abc import Callable

from tqdm import tqdm

from e3rl.data.bad_rows import BadRow, Fault, OnBadRow, raise_or_drop_bad_rows
from e3rl.data.problem import Problem
from e3rl.data.problems import ProblemSet

# A problem -> (the prompt as the model sees it, its token ids).
Encode = Callable[[Problem], tuple[str, list[int]]]

OTHER_POLICY = (
    "take a policy that can read it, such as policy=smollm2 (debug=tiny puts one that reads digits "
    "in the place of any: debug=short keeps yours)"
)


class UnknownTokensError(ValueError):
    """A prompt of which a tokenizer has no tokens for some pieces, which `detail` names."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"{detail}; {OTHER_POLICY}")
        self.detail = detail


def check_prompt_lengths(
    problems: ProblemSet, encode: Encode, max_prompt_tokens: int, on_bad_row: OnBadRow = "raise"
) -> tuple[ProblemSet, int]:
    """The problems whose prompts have 1 to `max_prompt_tokens` tokens, and the most that one has.

    Raises BadRowsError about all others, those included of which the tokenizer does not know every
    piece, unless these are to be dropped and counted; ValueError for a limit below 1.
    """
    if max_prompt_tokens < 1:
        raise ValueError(f"max_prompt_tokens is {max_prompt_tokens}: allow at least 1 token")
    remedy = "shorten it or raise max_prompt_tokens"
    bad, longest = find_bad_prompts(problems, encode, max_prompt_tokens, remedy)
    raise_or_drop_bad_rows(problems.origin, bad, len(problems), on_bad_row)
    return problems.without({b.row: b.faults[0].reason for b in bad}), longest


def find_bad_prompts(
    problems: ProblemSet, encode: Encode, most: float, remedy: str
) -> tuple[list[BadRow], int]:
    """Rows whose prompts have no token, more than `most` or unknown ones, and the most tokens that
    another one has; `remedy` is for those that are too long."""
    bad: list[BadRow] = []
    longest = 0
    bar = tqdm(problems, desc=f"tokenizing {problems.origin}", leave=False, delay=2.0)
    for row, problem in zip(problems.rows, bar, strict=True):
        try:
            length = len(encode(problem)[1])
        except UnknownTokensError as error:
            bad.append(BadRow(row, (Fault("unknown tokens", error.detail, OTHER_POLICY),)))
            continue
        if not 1 <= length <= most:
            bad.append(BadRow(row, (_fault(problem, length, most, remedy),)))
        else:
            longest = max(longest, length)
    return bad, longest


def _fault(problem: Problem, length: int, limit: float, remedy: str) -> Fault:
    if length == 0:
        return Fault("empty prompt", f"{problem.id!r} has no token", "check the chat template")
    return Fault(
        "over-long prompt", f"{problem.id!r} has {length} tokens, {limit} are allowed", remedy
    )
