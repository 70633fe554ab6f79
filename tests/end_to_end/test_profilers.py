"""Profilers write into the run's folder, and phases are in every row whichever is chosen."""

import json
from pathlib import Path

import pytest
from tiny_runs import E3, only_train, run

from e3rl.ledger.ledger import read_rows

pytestmark = pytest.mark.end_to_end


def test_torchs_profiler_traces_two_steps_and_writes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    run(tmp_path / "run", "profiler=torch", *E3)
    (trace,) = (tmp_path / "run" / "profile").glob("fit-torch-0-*.pt.trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    step = "[pl][profile][Strategy]SingleDeviceStrategy.training_step"
    assert names.count(step) in (1, 2)  # one began before the window
    assert any("e3rl/backward" in name for name in names)
    table = (tmp_path / "run" / "profile" / "fit-torch-0.txt").read_text()
    assert "aten::mm" in table


def test_lightnings_profiler_has_a_table_and_rows_have_phases_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    run(tmp_path / "run", "profiler=simple", *E3)
    table = (tmp_path / "run" / "profile" / "fit-simple-0.txt").read_text()
    assert "e3rl/sync" in table
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    steps = [row for row in rows if row["kind"] == "train"]
    for phase in ("rollout", "probe", "forward", "backward", "optimizer"):
        assert all(row[f"phase/{phase}_s"] > 0 for row in steps)
    assert all(row["speed/mfu"] > 0 for row in steps)
    # The probe forwards all of these few rollouts, the update those that teach.
    assert all(0 < row["update/tokens_trained"] <= row["update/tokens_forwarded"] for row in steps)
