import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ddp_update import train

from update_harness import gap

SCRIPT = Path(__file__).with_name("ddp_update.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What both ranks saw and ended with."""
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


def test_two_ranks_with_ragged_groups_train_like_one_process_on_all_of_them(ranks):
    alone = train(rank=None)
    assert ranks[0]["micro_batches"][0] != ranks[1]["micro_batches"][0]
    for step, weights in enumerate(alone.weights):
        assert gap(ranks[0]["weights"][step], ranks[1]["weights"][step]) == 0
        assert gap(ranks[0]["weights"][step], weights) < 1e-6
    assert 0 < alone.reports[0]["policy/correction_cut"] < 1
    assert alone.reports[0]["exploration/share"] == pytest.approx(0.6, abs=0.02)
    moved = [gap(a, b) for a, b in zip(alone.weights, alone.weights[1:], strict=False)]
    assert min(moved) > 1e-4
    same = (
        *("loss", "clip_fraction", "approx_kl", "mismatch_kl", "skipped", "grad_norm"),
        *("mismatch_weight", "mismatch_weight_max", "mismatch_ess", "mismatch_chi2"),
        *("correction_weight", "correction_weight_max", "correction_ess", "correction_cut"),
    )
    for rank in ranks:
        for step, report in enumerate(alone.reports):
            for name in same:
                own = rank["reports"][step][f"policy/{name}"]
                assert own == pytest.approx(report[f"policy/{name}"], rel=1e-5, abs=1e-7), name
            for name in ("exploration/share", "exploration/entropy_threshold"):
                assert rank["reports"][step][name] == pytest.approx(report[name], rel=1e-5), name
            entropy = alone.batches[step].entropy.entropy_sum
            assert rank["entropies"][step] == pytest.approx(entropy, rel=1e-6)
