import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.engines.truncation import truncate

CHANCES = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])


LOGITS = CHANCES.log()


def kept(top_p: float, top_k: int, logits: torch.Tensor = LOGITS) -> list[int]:
    cut = truncate(logits[None], torch.tensor([top_p]), torch.tensor([top_k]))[0]
    stays = torch.isfinite(cut)
    assert torch.equal(cut[stays], logits[stays])  # what stays keeps its place and its value
    return stays.nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("top_p", "top_k", "expected"),
    [
        (1.0, 0, [0, 1, 2, 3, 4]),
        (0.39, 0, [1]),  # the likeliest holds it alone
        (0.5, 0, [1, 3]),  # 0.4 + 0.25
        (0.8, 0, [1, 3, 4]),
        (1e-6, 0, [1]),
        (1.0, 1, [1]),
        (1.0, 3, [1, 3, 4]),
        (1.0, 99, [0, 1, 2, 3, 4]),
        (0.6, 2, [1]),  # 0.4 of 0.65 is 0.62
        (0.63, 2, [1, 3]),
    ],
)
def test_the_likeliest_tokens_stay(top_p: float, top_k: int, expected: list[int]) -> None:
    assert kept(top_p, top_k) == expected


def test_tokens_as_likely_as_the_last_one_stay_too() -> None:
    assert kept(1.0, 2, torch.tensor([0.0, 3.0, 2.0, 2.0])) == [1, 2, 3]


def test_each_row_has_its_own() -> None:
    rows = truncate(
        CHANCES.log().repeat(3, 1), torch.tensor([1.0, 0.5, 1.0]), torch.tensor([0, 0, 1])
    )
    assert torch.isfinite(rows).sum(dim=1).tolist() == [5, 2, 1]


@settings(deadline=None, max_examples=60)
@given(
    logits=st.lists(st.floats(-8, 8), min_size=1, max_size=12),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 15),
)
def test_the_smallest_set_of_the_likeliest_that_holds_top_p_stays(
    logits: list[float], top_p: float, top_k: int
) -> None:
    values = torch.tensor(logits)
    places = kept(top_p, top_k, values)
    outside = [i for i in range(len(logits)) if i not in places]
    least = min(values[places])
    assert int(values.argmax()) in places or values[places].max() == values.max()
    assert all(values[i] <= least for i in outside)
    if top_k == 0 or top_k >= len(logits):
        chances = torch.softmax(values.double(), dim=0)
        assert chances[places].sum() >= top_p - 1e-5
        without = [i for i in places if values[i] > least]
        assert chances[without].sum() < top_p + 1e-5
