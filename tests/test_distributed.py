import pytest
import torch.distributed as dist

from e3rl.distributed import all_gather, all_max, all_sum, rank, world_size


def test_without_a_process_group_everything_is_what_this_process_has():
    assert (world_size(), rank()) == (1, 0)
    assert all_sum([1, 2.5]) == [1.0, 2.5]
    assert all_max(-3) == -3.0
    item = {"a": [1]}
    assert all_gather(item) == [item]


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_needs_no_exchange():
    assert (world_size(), rank()) == (1, 0)
    assert all_sum([2.0**53 + 2]) == [2.0**53 + 2]
