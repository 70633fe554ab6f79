import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.lengths import CompletionLengths


def test_later_visits_count_more_and_unseen_prompts_are_like_the_last_steps():
    lengths = CompletionLengths(decay=0.5, initial=100.0)
    assert lengths.expect(["a", "b"]).tolist() == [100.0, 100.0]
    lengths.observe(["a", "b"], [[10, 20], [60]])
    assert lengths.expect(["a", "b", "c"]).tolist() == [15.0, 60.0, 30.0]
    lengths.observe(["a", "b"], [np.array([30.0]), []])
    # a: (0.5 * 30 + 30) / (0.5 * 2 + 1); b was not visited; c: (0.5 * 90 + 30) / (0.5 * 3 + 1)
    assert lengths.expect(["a", "b", "c"]).tolist() == [22.5, 60.0, 30.0]


def test_a_step_without_rollouts_leaves_every_expectation():
    lengths = CompletionLengths(initial=7.0)
    lengths.observe(["a"], [[]])
    assert lengths.expect(["a"]).tolist() == [7.0]
    lengths.observe(["a"], [[3]])
    lengths.observe(["a"], [[]])
    assert lengths.expect(["a", "b"]).tolist() == [3.0, 3.0]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(1, 500), max_size=4), min_size=1, max_size=6))
def test_expectations_lie_between_shortest_and_longest_in_any_order_of_prompts(visits):
    ids = [f"p{i}" for i in range(len(visits))]
    one, other = CompletionLengths(), CompletionLengths()
    one.observe(ids, visits)
    other.observe(ids[::-1], visits[::-1])
    assert one.expect([*ids, "new"]).tolist() == other.expect([*ids, "new"]).tolist()
    for expected, values in zip(one.expect(ids), visits, strict=True):
        if values:
            assert min(values) <= expected <= max(values)


def test_state_survives_a_weights_only_file_and_other_keys_are_refused():
    lengths = CompletionLengths()
    lengths.observe(["a", "b"], [np.array([4, 5]), np.array([9])])
    file = io.BytesIO()
    torch.save(lengths.state_dict(), file)
    file.seek(0)
    other = CompletionLengths()
    other.load_state_dict(torch.load(file, weights_only=True))
    for each in (lengths, other):
        each.observe(["a"], [[100]])
    assert other.expect(["a", "b", "c"]).tolist() == lengths.expect(["a", "b", "c"]).tolist()
    with pytest.raises(ValueError, match="missing keys \\['overall'\\]"):
        other.load_state_dict({"tokens": {}, "rollouts": {}})


@pytest.mark.parametrize("wrong", [{"decay": 0.0}, {"decay": 1.5}, {"initial": 0.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        CompletionLengths(**wrong)
