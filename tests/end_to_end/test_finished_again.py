"""A finished run that goes on from an earlier checkpoint counts as unfinished when it is killed."""

from pathlib import Path

import pytest
from tiny_runs import E3, every_state_of_the_disk, ledger_rows, only_train, run, sound

from e3rl.analysis.sources.runs import load_run
from e3rl.ledger.files import SUMMARY


def test_a_kill_at_any_moment_leaves_no_summary_beside_a_shorter_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    whole, overrides = tmp_path / "whole", (*E3, "callbacks.checkpoint.keep=9")
    run(whole, *overrides)
    (whole / SUMMARY).write_text('{"pass@1": 0.5}')
    rows = ledger_rows(whole)
    earlier = whole / "checkpoints" / "step-000004.ckpt"
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        run(whole, *overrides, f"ckpt_path={earlier}")
    shorter = [left for left in states if ledger_rows(left) != rows or len(sound(left)) < 6]
    assert shorter
    assert all(load_run(left).summary is None for left in shorter)
    assert (whole / f"{SUMMARY}.superseded").read_text() == '{"pass@1": 0.5}'
