from threading import Thread

import pytest
import torch
import torch.distributed as dist

from e3rl.process import distributed
from e3rl.process.distributed import (
    all_gather,
    all_max,
    all_sum,
    all_sum_and_max,
    from_rank_0,
    on_group,
    rank,
    world_size,
)


def test_without_a_process_group_everything_is_what_this_process_has():
    assert (world_size(), rank()) == (1, 0)
    assert all_sum([1, 2.5]) == [1.0, 2.5]
    assert all_max(-3) == -3.0
    assert all_sum_and_max([1, 2.5], [-3]) == ([1.0, 2.5], [-3.0])
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


def test_sums_and_largest_values_go_in_one_message(monkeypatch):
    sent = []

    def gather(places, own, group):
        sent.append(own.tolist())
        for place, values in zip(places, ([1.0, 2.0, -5.0], own.tolist()), strict=True):
            place.copy_(torch.tensor(values))

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(dist, "all_gather", gather)
    assert all_sum_and_max([10.0, 20.0], [-7.0]) == ([11.0, 22.0], [-5.0])
    assert sent == [[10.0, 20.0, -7.0]]


def test_what_rank_0_makes_every_rank_gets(monkeypatch):
    assert from_rank_0(lambda: 7) == 7
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    for place in (0, 1):
        made = []
        monkeypatch.setattr(distributed, "rank", lambda place=place: place)
        other = (7, None) if place else (None, None)
        gathered = lambda mine, place=place, other=other: [other, mine] if place else [mine, other]  # noqa: E731
        monkeypatch.setattr(distributed, "all_gather", gathered)
        assert from_rank_0(lambda made=made: made.append(0) or 7) == 7
        assert len(made) == 1 - place


def test_where_rank_0_fails_all_ranks_do(monkeypatch):
    def fail():
        raise RuntimeError("no server")

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    sent = []
    monkeypatch.setattr(
        distributed, "all_gather", lambda mine: sent.append(mine) or [sent[0], mine]
    )
    for place in (0, 1):
        monkeypatch.setattr(distributed, "rank", lambda place=place: place)
        with pytest.raises(RuntimeError, match="no server"):
            from_rank_0(fail)
    assert sent[1] == (None, None)


def test_a_thread_may_have_a_group_of_its_own_for_a_while(monkeypatch):
    asked, here = [], object()
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, operation, group: asked.append(group))

    def beside() -> None:
        with on_group(here):
            all_sum([1.0])
        all_sum([1.0])

    with on_group(other := object()):
        thread = Thread(target=beside)
        thread.start()
        thread.join()
        all_sum([1.0])
    all_sum([1.0])
    assert asked == [here, None, other, None]
