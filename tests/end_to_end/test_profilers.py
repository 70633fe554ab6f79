"""Profilers write into the run's folder, and phases are in every row whichever is chosen."""

import gc
import gzip
import json
from pathlib import Path

import pytest
from tiny_runs import E3, only_train, run

from e3rl.ledger.ledger import read_rows
from e3rl.training.trace import StepTrace

pytestmark = pytest.mark.end_to_end


@pytest.mark.slow
def test_torchs_profiler_traces_two_steps_and_writes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    run(tmp_path / "run", "profiler=torch", *E3)
    folder = tmp_path / "run" / "profile"
    events = json.loads(gzip.decompress((folder / "trace-0.json.gz").read_bytes()))["traceEvents"]
    spans = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert spans.count("[Strategy]SingleDeviceStrategy.training_step") == 2
    assert spans.count("e3rl/sync") >= 2
    assert "aten::mm" in (folder / "operators-0.txt").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["operators-0.txt", "trace-0.json.gz"]


def test_lightnings_profiler_has_a_table_and_rows_have_phases_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    run(tmp_path / "run", "profiler=simple", *E3)
    table = (tmp_path / "run" / "profile" / "fit-simple-0.txt").read_text()
    assert "e3rl/sync" in table
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    steps = [row for row in rows if row["kind"] == "train"]
    for phase in ("rollout", "probe", "forward", "optimizer"):
        assert all(row[f"phase/{phase}_s"] > 0 for row in steps)
    assert sum(row.get("phase/backward_s", 0.0) for row in steps) > 0
    # The probe forwards alone what it has chosen of the rollouts that do not teach.
    assert sum(row["update/tokens_trained"] for row in steps) > 0
    assert sum(row["update/tokens_forwarded"] for row in steps) > 0
    assert all(row["speed/mfu"] > 0 for row in steps)


def test_a_run_that_ends_within_the_traced_steps_has_a_trace(tmp_path: Path) -> None:
    trace = StepTrace(str(tmp_path), first=1, steps=9)
    for _ in range(3):
        with trace.profile("[_TrainingEpochLoop].train_dataloader_next"):
            pass
        trace.start("left open")
    trace.teardown("fit")
    assert (tmp_path / "trace-0.json.gz").is_file()
    trace.teardown("fit")  # nothing is left to write


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_trace_of_no_step_is_refused_and_nothing_else_is_said() -> None:
    with pytest.raises(ValueError, match="steps=0"):
        StepTrace("x", steps=0)
    gc.collect()
