import pytest
import torch

from e3rl.batch import RolloutBatch, hold_prompts, join_columns, prompt_columns


def batch_of(*names: str, levels: bool = True) -> RolloutBatch:
    return RolloutBatch(
        prompt_ids=list(names),
        prompts=[f"{x}?" for x in names],
        answers=[f"{x}!" for x in names],
        sources=["s"] * len(names),
        prompt_tokens=[[ord(x), 1] for x in names],
        levels=[ord(x) for x in names] if levels else [],
        stream=("train", 3),
    )


@pytest.mark.parametrize("levels", [True, False])
def test_a_batch_that_takes_over_prompts_is_as_if_loaded_with_them(levels):
    mine, other = batch_of("a", "b", levels=levels), batch_of("c", levels=levels)
    columns = join_columns([prompt_columns(mine), prompt_columns(other)])
    hold_prompts(mine, columns, [2, 0])
    expected = batch_of("c", "a", levels=levels)
    assert prompt_columns(mine) == prompt_columns(expected)
    assert mine.stream == ("train", 3)
    assert other.prompt_ids == ["c"]


def test_prompts_that_something_refers_to_stay():
    batch = batch_of("a")
    batch.ranks = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"batch\.ranks refers to the prompts"):
        hold_prompts(batch, prompt_columns(batch), [0])
