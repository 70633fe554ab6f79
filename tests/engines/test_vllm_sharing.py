"""The order in which the rollouts of groups go to vLLM, and what they find of each other there."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from e3rl.engines.base import RolloutRequest
from e3rl.engines.vllm_sharing import LEAD, PrefixSharing, leaders_first

Places = list[tuple[int, int]]


def groups(*sizes: int) -> list[RolloutRequest]:
    return [
        RolloutRequest(p, s, (p, 7), 1.0, 10 * p + s, 4)
        for p, size in enumerate(sizes)
        for s in range(size)
    ]


def places(requests: list[RolloutRequest]) -> Places:
    return [(r.prompt, r.sample) for r in requests]


def test_the_first_rollout_of_every_group_goes_a_step_ahead() -> None:
    first, rest = leaders_first(groups(3, 1, 2), at_once=100)
    assert places(first) == [(0, 0), (1, 0), (2, 0)]
    assert places(rest) == [(0, 1), (0, 2), (2, 1)]


def test_prompts_that_nobody_shares_start_together() -> None:
    requests = groups(1, 1, 1)
    assert leaders_first(requests, at_once=2) == (requests, [])


def test_equal_prompts_of_several_rows_are_one_group() -> None:
    requests = [*groups(2), RolloutRequest(5, 0, (0, 7), 1.0, 99, 4)]
    first, rest = leaders_first(requests, at_once=10)
    assert (places(first), places(rest)) == ([(0, 0)], [(0, 1), (5, 0)])


def test_groups_that_have_to_wait_are_led_by_their_first_rollout_a_few_groups_ahead() -> None:
    requests = groups(*[4] * 20)
    first, rest = leaders_first(requests, at_once=10)
    assert places(first) == [(0, 0), (1, 0), (2, 0)]  # the groups that begin at once
    assert sorted(places(first) + places(rest)) == places(requests)
    order = places(rest)
    for group in range(3, 20):
        between = order[order.index((group, 0)) : order.index((group, 1))]
        ahead = sum(sample == 3 for _, sample in between)
        assert ahead == min(LEAD, group)


@dataclass
class Manager:
    """vLLM's cache manager, which knows no full blocks of these prompts."""

    coordinator: Any
    found: int = 0
    looked_up: list[str] = field(default_factory=list)

    def get_computed_blocks(self, request: Any) -> tuple[Any, int, int]:
        self.looked_up.append(request.request_id)
        return "full blocks", self.found, 0

    def create_kv_cache_blocks(self, blocks: tuple[Any, ...]) -> tuple[Any, ...]:
        return blocks


def running(name: str, prompt: list[int], computed: int) -> Any:
    return SimpleNamespace(
        request_id=name,
        prompt_token_ids=prompt,
        num_prompt_tokens=len(prompt),
        num_computed_tokens=computed,
    )


def sharing_of(requests: list[Any], blocks: dict[str, list[str]]) -> PrefixSharing:
    held = SimpleNamespace(req_to_blocks=blocks, block_size=4)
    return PrefixSharing(
        SimpleNamespace(
            kv_cache_manager=Manager(SimpleNamespace(single_type_managers=[held])),
            requests={each.request_id: each for each in requests},
            max_num_running_reqs=8,
        )
    )


def test_a_request_begins_on_the_blocks_of_one_that_has_computed_the_prompt() -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    leader, other = running("leader", prompt, 0), running("other", prompt, 0)
    sharing = sharing_of([leader, other], {"leader": ["a", "b", "c"]})
    assert sharing.find(leader) == ("full blocks", 0, 0)
    assert sharing.find(other) == ("full blocks", 0, 0)  # it is scheduled in the same step
    leader.num_computed_tokens = 6
    assert sharing.find(other) == ((["a", "b"],), 5, 0)  # the last token is left to compute
    assert sharing.find(running("stranger", [1, 2, 3], 0)) == ("full blocks", 0, 0)


def test_requests_that_have_ended_or_lost_their_blocks_are_passed_over() -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    gone, evicted, there = (running(name, prompt, 6) for name in ("gone", "evicted", "there"))
    sharing = sharing_of([evicted, there], {"there": ["a", "b"]})
    for request in (gone, evicted, there):
        request.num_computed_tokens = 0
        sharing.find(request)
    there.num_computed_tokens = 6
    assert sharing.find(running("new", prompt, 0)) == ((["a", "b"],), 5, 0)
    sharing.forget()
    assert sharing.find(running("newer", prompt, 0)) == ("full blocks", 0, 0)


def test_full_blocks_of_the_whole_prompt_are_taken_as_vllm_finds_them() -> None:
    prompt = [1, 2, 3, 4, 5]
    leader = running("leader", prompt, 5)
    sharing = sharing_of([leader], {"leader": ["a", "b"]})
    sharing.find(leader)
    sharing._manager.found = 4
    assert sharing.find(running("other", prompt, 0)) == ("full blocks", 4, 0)
