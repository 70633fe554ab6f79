"""Lightning's other ranks, started from the command `e3rl train`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import TINY, ledger_rows

pytestmark = pytest.mark.slow
SHORT = ("epochs=1", "validate_every=3", "data.train.size=12", "max_new_tokens=8")
RANKS = ("experiment=grpo", "trainer=ddp", "trainer.devices=2", "hydra.run.dir=mine")
# As pip writes it: a script, where `python -m` would leave the name of a module.
SCRIPT = "import sys\nfrom e3rl.__main__ import main\nsys.exit(main())\n"


def test_both_ranks_train(tmp_path: Path) -> None:
    script = tmp_path / "e3rl"
    script.write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, str(script), "train", *TINY, *SHORT, *RANKS],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("run folder: ") == 1
    rows = [row for row in ledger_rows(tmp_path / "mine")["metrics"] if row["kind"] == "train"]
    assert len(rows) == 3  # 12 problems, 4 a step over both ranks
    # Measured between ranks alone.
    assert all(1 <= row["rollout/rank_imbalance"] < 2 for row in rows)
