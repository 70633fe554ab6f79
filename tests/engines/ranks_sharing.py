"""What four gloo ranks do of which two share an engine each; see test_vllm_split.py."""

from pathlib import Path

import torch
import torch.distributed as dist

from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import FinishedRequest
from e3rl.engines.vllm_split import SharedRequests
from e3rl.process.environment import prepare

Asked = tuple[int, tuple[int, ...]]  # number and tokens of a prompt


def wanted(rank: int) -> list[RolloutRequest]:
    """One prompt on even ranks, two on odd ones, of tokens that tell whose they are."""
    return [
        RolloutRequest(prompt, 0, (rank, prompt), 1.0, seed=rank, max_new_tokens=1)
        for prompt in range(1 + rank % 2)
    ]


def share_on_four_ranks(folder: Path) -> list[tuple[list[Asked], list[Asked]]]:
    """On each rank: what its engine is asked for, and what the rank gets of it, twice."""
    torch.multiprocessing.spawn(_meet, args=(str(folder),), nprocs=4)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(4)]


def _meet(rank: int, folder: str) -> None:
    prepare()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    try:
        shared = SharedRequests(2)
        for _ in range(2):
            every = shared.gather(wanted(rank))
            finished = (FinishedRequest(each, [1], [0.0]) for each in every)
            own = [each.request for each in shared.own(finished)]
        seen = tuple([(r.prompt, r.prompt_tokens) for r in each] for each in (every, own))
        torch.save(seen, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
