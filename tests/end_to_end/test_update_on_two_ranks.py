import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_update import CASES, STRATEGIES, train

from update_harness import Fitted, gap, share_apart

SCRIPT = Path(__file__).with_name("ranks_update.py")
EXACT = ("exact", "blocks")  # cases in float64
STEP = 1e-4  # the learning rate: what AdamW moves a weight by at most
SAME = (
    *("loss", "clip_fraction", "approx_kl", "mismatch_kl", "skipped", "grad_norm"),
    *("mismatch_weight", "mismatch_weight_max", "mismatch_ess", "mismatch_chi2"),
)
CORRECTED = (
    "correction_weight",
    "correction_weight_max",
    "correction_ess",
    "correction_cut",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], Any]]:
    """What both ranks saw and ended with, by case and strategy."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "PYTEST"))}
    sources = [str(SCRIPT.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sources)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Fitted]:
    """What one process sees and ends with."""
    return {case: train(case) for case in CASES}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_with_ragged_groups_train_like_one_process_on_all_of_them(
    case: str, strategy: str, ranks: list[dict[tuple[str, str], Any]], alone: dict[str, Fitted]
) -> None:
    own, other = (found[case, strategy] for found in ranks)
    assert own["micro_batches"][0] != other["micro_batches"][0]
    for step, weights in enumerate(alone[case].weights):
        assert gap(own["weights"][step], other["weights"][step]) == 0
        assert gap(own["weights"][step], weights) < (1e-12 if case in EXACT else STEP)
        assert share_apart(own["weights"][step], weights, STEP / 50) < 2e-4
    weights = alone[case].weights
    moved = [gap(a, b) for a, b in pairwise(weights)]
    assert min(moved) > 8e-5
    names = [*SAME, *(CORRECTED if case == "exact" else ())]
    for found in (own, other):
        for step, report in enumerate(alone[case].reports):
            for name in (f"policy/{name}" for name in names):
                expected = pytest.approx(report[name], rel=1e-4, abs=1e-6)
                assert found["reports"][step][name] == expected, name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_measured_of_all_tokens_is_the_same_on_two_ranks(
    strategy: str, ranks: list[dict[tuple[str, str], Any]], alone: dict[str, Fitted]
) -> None:
    reports = alone["exact"].reports
    assert 0 < reports[0]["policy/correction_cut"] < 1
    assert reports[0]["exploration/share"] == pytest.approx(0.6, abs=0.02)
    for found in (rank["exact", strategy] for rank in ranks):
        for step, batch in enumerate(alone["exact"].batches):
            assert batch.entropy is not None
            assert found["entropies"][step] == pytest.approx(batch.entropy.entropy_sum, rel=1e-6)
            for name in ("exploration/share", "exploration/entropy_threshold"):
                assert found["reports"][step][name] == pytest.approx(reports[step][name], rel=1e-5)


def test_ranks_of_fsdp2_hold_half_of_the_weights_each(
    ranks: list[dict[tuple[str, str], Any]], alone: dict[str, Fitted]
) -> None:
    whole = sum(weight.numel() for weight in alone["single"].weights[0].values())
    for found in ranks:
        assert found["single", "ddp"]["held"] == whole
        assert found["single", "fsdp2"]["held"] == pytest.approx(whole / 2, rel=0.01)
