"""Two groups of two ranks, each group with a copy of the policy in two parts (HSDP)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_replicas import RANKS, REPLICAS, STEPS

from update_harness import gap, size

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("ranks_replicas.py")
GROUPS = 3 + 1  # of weights that are shared together: the policy's blocks, and all others
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ranks")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "PYTEST"))}
    sources = [str(SCRIPT.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(made)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sources)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return made


def found(folder: Path, work: str, ranks: int) -> Ranks:
    return [torch.load(folder / f"{work}{rank}.pt", weights_only=False) for rank in range(ranks)]


@pytest.fixture(scope="module")
def learned(folder: Path) -> Ranks:
    return found(folder, "on_four", RANKS)


def test_gradients_and_weights_are_those_of_whole_copies(learned: Ranks) -> None:
    for rank in learned:
        for what in ("gradients", "weights"):
            for own, other in zip(rank["replicas"][what], rank["ddp"][what], strict=True):
                assert size(other) > 0.1
                assert gap(own, other) < 1e-12
        for own, other, first in zip(
            *(rank[saved]["weights"] for saved in ("replicas saved", "ddp saved")),
            learned[0]["replicas saved"]["weights"],
            strict=True,
        ):
            assert gap(own, other) < 1e-6  # in float32
            assert gap(own, first) == 0


def test_groups_sum_up_each_part_of_the_gradient_once_in_an_optimiser_step(
    learned: Ranks,
) -> None:
    micro_batches = [rank["replicas"]["micro_batches"] for rank in learned]
    assert len({of[0] for of in micro_batches}) > 1  # some ranks wait for others
    assert min(max(of[step] for of in micro_batches) for step in range(STEPS)) > 1
    for rank in learned:
        assert rank["replicas"]["sums"].count(REPLICAS) == GROUPS * STEPS


def test_each_rank_holds_half_of_the_weights_and_sends_all_of_them(learned: Ranks) -> None:
    whole = learned[0]["ddp"]["held"]
    for rank in learned:
        assert rank["replicas"]["held"] == pytest.approx(whole / 2, rel=0.01)
        saved = rank["replicas saved"]
        assert gap(saved["sent"], saved["weights"][-1]) == 0


def test_checkpoints_go_on_with_other_ranks_and_groups(folder: Path, learned: Ranks) -> None:
    saved = learned[0]["replicas saved"]["weights"]
    assert gap(saved[0], saved[1]) > 8e-5
    resumed = [
        *(rank[start] for rank in learned for start in ("from ddp", "from replicas")),
        *(rank["from replicas"] for rank in found(folder, "on_two", 2)),
    ]
    for after in resumed:
        assert len(after["weights"]) == STEPS - 1
        assert gap(after["weights"][0], saved[1]) < 1e-6
