"""Rollouts of one prompt share its keys and values, also where it is shorter than a block.

vLLM finds a shared prefix by full blocks of 32 tokens and more on CPUs, so a group with a shorter
prompt would compute it once a rollout. vLLM can also begin a request in the middle of a block, on
a copy of another request's, but looks for such a beginning in some kinds of models only. Here one
rollout of a group goes first; the others look it up, begin on copies of its last block, and have
the last token of the prompt left to compute.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from e3rl.engines.base import RolloutRequest

LEAD = 8  # groups by which the first rollout of a group precedes the others


class PrefixSharing:
    """Looks up prompts among the requests that an engine is running.

    Args:
        scheduler: of a vLLM engine whose layers all keep keys and values of all tokens.
    """

    def __init__(self, scheduler: Any) -> None:
        self._manager = scheduler.kv_cache_manager
        self._requests = scheduler.requests  # by name
        blocks = self._manager.coordinator.single_type_managers[0]
        self._blocks: Mapping[str, Sequence[Any]] = blocks.req_to_blocks
        self._block_size: int = blocks.block_size
        self._find_full_blocks = self._manager.get_computed_blocks
        self._names: dict[tuple[int, ...], dict[str, None]] = {}  # of requests, by prompt
        self.at_once: int = scheduler.max_num_running_reqs
        self._manager.get_computed_blocks = self.find

    def find(self, request: Any) -> tuple[Any, int, int]:
        """Blocks with the beginning of a request, how many tokens they hold, and 0; in the place
        of vLLM's `KVCacheManager.get_computed_blocks`."""
        found: tuple[Any, int, int] = self._find_full_blocks(request)
        names = self._names.setdefault(tuple(request.prompt_token_ids), {})
        length = request.num_prompt_tokens - 1  # the last token's logits must be computed
        if found[1] < length and (blocks := self._blocks_of_another(names, length)):
            found = self._manager.create_kv_cache_blocks((blocks,)), length, 0
        names[request.request_id] = None
        return found

    def forget(self) -> None:
        """Forget the prompts of earlier calls."""
        self._names.clear()

    def _blocks_of_another(self, names: dict[str, None], length: int) -> Sequence[Any]:
        """The blocks of a running request that has computed `length` tokens, or none."""
        for name in list(names):
            request = self._requests.get(name)
            if request is None:
                del names[name]
            elif request.num_computed_tokens >= length:  # in a step before this one
                return self._blocks[name][: -(-length // self._block_size)]
        return ()


def leaders_first(
    requests: Sequence[RolloutRequest], at_once: int
) -> tuple[list[RolloutRequest], list[RolloutRequest]]:
    """An order in which each prompt's first rollout is a step ahead of the others.

    Args:
        at_once: requests that an engine runs together.

    Returns:
        What to run a step of before the rest is added, and the rest.
    """
    groups: dict[tuple[int, ...], list[RolloutRequest]] = {}
    for request in requests:
        groups.setdefault(request.prompt_tokens, []).append(request)
    if len(groups) == len(requests):
        return list(requests), []
    ordered = list(groups.values())
    ahead, room = 0, at_once
    while ahead < len(ordered) and room > 0:
        room -= len(ordered[ahead])
        ahead += 1
    leaders = [group[0] for group in ordered]
    first, rest = leaders[:ahead], []
    for place, group in enumerate(ordered):
        rest += leaders[ahead : place + LEAD + 1]
        ahead = max(ahead, place + LEAD + 1)
        rest += group[1:]
    return first, rest
