"""Several engines, each of several ranks."""

from pathlib import Path

import pytest
from ranks_sharing import share_on_four_ranks, wanted


@pytest.mark.slow  # four processes that load torch
def test_two_engines_of_two_ranks_each_have_requests_of_their_own(tmp_path: Path) -> None:
    ranks = share_on_four_ranks(tmp_path)
    for first in (0, 2):
        (every, own), (other, others) = ranks[first], ranks[first + 1]
        assert every == other  # both take the same steps
        assert {tokens[0] for _, tokens in every} == {first, first + 1}
        assert len({prompt for prompt, _ in every}) == len(every) == 3
        for rank, mine in ((first, own), (first + 1, others)):
            assert mine == [(r.prompt, r.prompt_tokens) for r in wanted(rank)]
