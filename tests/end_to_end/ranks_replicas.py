"""Run by test_update_on_four_ranks.py: `python ranks_replicas.py FOLDER` trains on gloo ranks.

Ranks are forks of a process that has loaded the libraries, and say where they are as `torchrun`
would.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from ranks_update import share, union_batches
from torch import distributed
from torch.distributed.tensor import DTensor

from e3rl.batch import RolloutBatch
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.engines.whole_copy import WholeCopy
from e3rl.policy.policy import Policy
from e3rl.training.fsdp2 import FSDP2Strategy
from e3rl.training.module import GRPOModule
from update_harness import (
    QUIET,
    Batches,
    Recorder,
    exact_copy,
    make_loss,
    make_module,
    weights_of,
)

RANKS, REPLICAS, STEPS = 4, 2, 2
PROMPTS_OF_RANK = {2: ([0, 1, 4], [2, 3]), 4: ([0], [1, 4], [2], [3])}
SETTINGS = {"tokens_per_microbatch": 30, "max_grad_norm": 1.0}
OPTIMIZER = partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01)
Found = dict[str, Any]


class SaveEveryStep(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:06d}.ckpt")


@contextmanager
def count_sums() -> Iterator[list[int]]:
    """Sizes of the groups of ranks that sum up gradients, one a call."""
    sizes: list[int] = []
    all_reduce = distributed.all_reduce

    def counted(tensor: Any, *args: Any, group: Any = None, **options: Any) -> Any:
        if group is not None:
            sizes.append(group.size())
        return all_reduce(tensor, *args, group=group, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "all_reduce", counted)
        yield sizes


@cache
def batches() -> list[RolloutBatch]:
    return union_batches(Policy())[:STEPS]


def exact() -> GRPOModule:
    """In float64, where only a wrong formula could show."""
    return make_module(exact_copy(Policy()), make_loss(), **SETTINGS)


def with_reference(in_parts: bool = False) -> GRPOModule:
    """Each rank reads policy and reference whole, or its own parts of both."""
    own = Policy(in_parts=in_parts, gradient_checkpointing=True)
    return make_module(own, make_loss(kl_coef=0.05), OPTIMIZER, **SETTINGS)


def train(
    module: GRPOModule,
    rank: int,
    ranks: int = RANKS,
    folder: Path | None = None,
    start: Path | None = None,
    **trainer: Any,
) -> Found:
    """What a rank sees of updates, with checkpoints in `folder`, or from one on."""
    own = [share(batch, PROMPTS_OF_RANK[ranks][rank]) for batch in batches()]
    if start is not None:  # a loader without state starts over, and ends a batch early
        own = [*own[1:], own[0]]
    recorder = Recorder()
    runner = Trainer(
        **(QUIET | {"devices": ranks, "plugins": [AtomicCheckpointIO()]} | trainer),
        callbacks=[recorder, *([] if folder is None else [SaveEveryStep(folder)])],
    )
    with count_sums() as sizes:
        runner.fit(module, Batches(own), ckpt_path=start, weights_only=True)
    parameters = list(module.policy.parameters())
    parts = [p.to_local() for p in parameters if isinstance(p, DTensor)]
    return {
        "gradients": recorder.gradients,
        "weights": recorder.weights,
        "sums": sizes,
        "micro_batches": [len(module._packs(b, torch.arange(b.n_rollouts))) for b in own],
        "held": sum(part.numel() for part in parts or parameters),
        "sent": sent(module.policy) if parts else None,
    }


def sent(policy: Policy) -> dict[str, torch.Tensor]:
    """What an engine of this rank's gets."""
    copy = WholeCopy(policy)
    copy.follow(policy)
    return weights_of(copy.policy)


def on_four(rank: int, folder: Path) -> Found:
    """Whole copies and two groups, and from checkpoints of each on: as two groups, as one."""
    replicas, ddp, places = partial(FSDP2Strategy, REPLICAS), DDPStrategy, _checkpoints(folder)
    return {
        "ddp": train(exact(), rank, strategy=ddp()),
        "replicas": train(exact(), rank, strategy=replicas()),
        "ddp saved": train(with_reference(), rank, folder=folder / "ddp", strategy=ddp()),
        "replicas saved": train(
            with_reference(in_parts=True), rank, folder=folder / "replicas", strategy=replicas()
        ),
        "from ddp": train(with_reference(), rank, start=places["ddp"], strategy=replicas()),
        "from replicas": train(
            with_reference(), rank, start=places["replicas"], strategy=FSDP2Strategy()
        ),
    }


def on_two(rank: int, folder: Path) -> Found:
    """Each rank a group of its own."""
    start = _checkpoints(folder)["replicas"]
    return {
        "from replicas": train(
            with_reference(), rank, ranks=2, start=start, strategy=FSDP2Strategy(2)
        )
    }


def _checkpoints(folder: Path) -> dict[str, Path]:
    return {kind: folder / kind / "step-000001.ckpt" for kind in ("ddp", "replicas")}


def _be_rank(
    rank: int, work: Callable[[int, Path], Found], ranks: int, port: int, folder: str
) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.save(work(rank, Path(folder)), Path(folder) / f"{work.__name__}{rank}.pt")


def on_ranks(work: Callable[[int, Path], Found], ranks: int, folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.start_processes(
        _be_rank, args=(work, ranks, port, folder), nprocs=ranks, start_method="fork"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    batches()  # for all ranks
    on_ranks(on_four, RANKS, sys.argv[1])
    on_ranks(on_two, 2, sys.argv[1])
