"""Sweeps as commands: common random numbers, starting again, and jobs side by side."""

import importlib.util
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import yaml
from tiny_runs import TINY, assert_same, final_state, ledger_rows

from e3rl.checkpoints.files import checkpoints
from e3rl.ledger.ledger import read_rows

pytestmark = pytest.mark.slow
SHORT = ("epochs=1", "validate_every=3", "data.train.size=12", "max_new_tokens=8")
ARMS = ("experiment=grpo,ts", "seed=1,2")


def swept(sweeps: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "e3rl", "train", "-m", *overrides, f"paths.sweeps={sweeps}"]
    return subprocess.run(
        [*command, *TINY, *SHORT], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep over two arms and two seeds."""
    sweeps = tmp_path_factory.mktemp("sweeps")
    done = swept(sweeps, *ARMS)
    assert done.returncode == 0, done.stderr
    assert "sweep test: 4 jobs, 0 finished" in done.stdout
    return sweeps


def job(sweeps: Path, arm: str, seed: int) -> Path:
    (found,) = (sweeps / "test").glob(f"experiment-{arm}_seed-{seed}_*")
    return found


def test_a_sweep_makes_a_folder_for_every_job(first: Path) -> None:
    folders = sorted(path for path in (first / "test").iterdir() if path.is_dir())
    kinds = [path.name.split("_debug")[0] for path in folders]
    assert kinds == [f"experiment-{arm}_seed-{seed}" for arm in ("grpo", "ts") for seed in (1, 2)]
    configs = [yaml.safe_load((path / "config.yaml").read_text()) for path in folders]
    assert [(c["name"], c["seed"]) for c in configs] == [
        *(("grpo", 1), ("grpo", 2), ("ts", 1), ("ts", 2)),
    ]
    assert {c["sweep"]["name"] for c in configs} == {"test"}
    assert all((path / "summary.json").is_file() for path in folders)


def test_arms_of_one_seed_share_problems_their_order_and_the_noise(first: Path) -> None:
    def prompts(arm: str, seed: int) -> list[list[str]]:
        return [row["prompt_id"] for row in read_rows(job(first, arm, seed) / "prompts.jsonl")]

    def sampled(arm: str, seed: int) -> list[str]:
        rows = read_rows(job(first, arm, seed) / "completions.jsonl")
        return [row["completion"] for row in rows if row["rollout_step"] == 0]

    for seed in (1, 2):
        assert len(prompts("grpo", seed)) == 3
        assert prompts("grpo", seed) == prompts("ts", seed)
        assert sampled("grpo", seed) == sampled("ts", seed)  # while the policies are the same
    assert prompts("grpo", 1) != prompts("grpo", 2)
    one, other = (sorted(chain(*prompts("grpo", seed))) for seed in (1, 2))
    assert one == other

    def baseline(arm: str, seed: int) -> list[dict]:
        rows = ledger_rows(job(first, arm, seed))["validation"]
        return [row for row in rows if not row["rollout_step"]]

    assert baseline("grpo", 1) == baseline("ts", 1) != []
    assert baseline("grpo", 2) == baseline("ts", 2) != baseline("grpo", 1)  # a run's own noise


def test_a_sweep_that_is_started_again_skips_resumes_and_refuses(first: Path) -> None:
    done, broken, empty, changed = (
        job(first, arm, seed) for arm in ("grpo", "ts") for seed in (1, 2)
    )
    whole = {path: (ledger_rows(path), final_state(path, 3)) for path in (broken, empty)}
    stamp = (done / "summary.json").stat().st_mtime_ns

    (broken / "summary.json").unlink()  # killed in the last step
    checkpoints(broken / "checkpoints")[-1].unlink()
    (empty / "summary.json").unlink()  # killed in the first step
    shutil.rmtree(empty / "checkpoints")
    config = changed / "config.yaml"
    config.write_text(config.read_text().replace("seed: 2\n", "seed: 3\n"))
    again = swept(first, *ARMS)

    assert again.returncode == 1  # one is refused, and stops none of the others
    assert "sweep test: 4 jobs, 2 finished" in again.stdout
    assert again.stdout.count("finished before, skipped") == 1
    assert f"finished before, skipped: {done}" in again.stdout
    assert (done / "summary.json").stat().st_mtime_ns == stamp
    assert f"{changed} was started with other settings" in again.stdout
    assert "seed: 3 at the start, 2 now" in again.stdout
    assert again.stdout.count(" resumes ") == 1  # the other one had no checkpoint
    assert str(broken / "checkpoints" / "step-000002.ckpt") in again.stdout
    for path, (rows, state) in whole.items():
        assert (path / "summary.json").is_file()
        assert ledger_rows(path) == rows
        assert_same(final_state(path, 3), state)


@pytest.mark.skipif(
    importlib.util.find_spec("joblib") is None,
    reason="joblib is not installed: pip install 'e3rl[sweeps]'",
)
def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    done = swept(tmp_path, "experiment=grpo", "seed=1,2", "hydra/launcher=local")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("test/*/summary.json"))) == 2
