"""A summary says that a run has ended: it stays where that is so, and is set aside elsewhere."""

from pathlib import Path

import pytest
from scripted import Fit, slots

from compositions import composed
from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.ledger.files import SUMMARY, read_summary
from e3rl.ledger.ledger import Ledger, read_rows
from e3rl.runs.run import begin_folder

ASIDE = f"{SUMMARY}.superseded"


def fit(folder: Path, start: int | None = None) -> None:
    """Three steps, or what is left of them."""
    saved = folder / "checkpoints"
    slot = RunCheckpoint(str(saved), every=1, keep=9)
    path = None if start is None else saved / f"step-{start:06d}.ckpt"
    Fit({**slots(), "checkpoint": slot}, folder).fit(path)


def test_going_on_from_an_earlier_checkpoint_sets_the_summary_aside(tmp_path: Path) -> None:
    fit(tmp_path)
    (tmp_path / SUMMARY).write_text('{"pass@1": 0.5}')
    (tmp_path / ASIDE).write_text("that of an earlier course")
    fit(tmp_path, start=2)
    assert read_summary(tmp_path) is None
    assert (tmp_path / ASIDE).read_text() == '{"pass@1": 0.5}'


def test_it_is_aside_before_any_row_leaves_the_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path)
    (tmp_path / SUMMARY).write_text("{}")

    def killed(self: Ledger, rows: int) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(Ledger, "rewind", killed)
    with pytest.raises(RuntimeError, match="killed"):
        fit(tmp_path, start=2)
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 3
    assert read_summary(tmp_path) is None


def test_a_finished_run_that_has_nothing_to_do_keeps_its_summary(tmp_path: Path) -> None:
    fit(tmp_path)
    (tmp_path / SUMMARY).write_text('{"pass@1": 0.5}')
    fit(tmp_path, start=3)
    assert read_summary(tmp_path) == {"pass@1": 0.5}
    assert not (tmp_path / ASIDE).exists()


def test_a_run_that_starts_over_in_its_folder_is_unfinished(tmp_path: Path) -> None:
    cfg = composed("logger=ledger_only", f"paths.run_dir={tmp_path}")
    (tmp_path / "config.yaml").write_text("name: e3\npolicy: {path: embedded}\n")
    (tmp_path / SUMMARY).write_text('{"pass@1": 0.5}')
    begin_folder(cfg, tmp_path, None, [])
    assert read_summary(tmp_path) is None
    assert (tmp_path / ASIDE).read_text() == '{"pass@1": 0.5}'
    begin_folder(cfg, tmp_path, None, [])  # there is no other
    assert (tmp_path / ASIDE).exists()
