"""The first run of the documentation: what it leaves, and the commands that it is handed to."""

from pathlib import Path

import pytest

from compositions import composed
from e3rl import export, report
from e3rl.runs.run import execute
from pages import ROOT, code, rows


def test_the_tiny_run_leaves_what_the_page_says_and_other_commands_take_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page, model = tmp_path / "run", tmp_path / "report.html", tmp_path / "model"
    settings = ("trainer.enable_progress_bar=false", "logger=ledger_only", "sweep.name=x")
    execute(composed("debug=tiny", f"paths.run_dir={run}", *settings))
    told = rows((ROOT / "docs" / "first_run.md").read_text(encoding="utf-8"), "What a run leaves")
    files = [name for row in told for name in code(row[0])]
    assert len(files) > 7
    assert [name for name in files if not (run / name).exists()] == []
    shown = capsys.readouterr().out
    for line in ("4 prompts x 8 = 32 rollouts, 1 optimiser step", "3 epochs x 4 = 12 steps"):
        assert line in shown
    report.main([str(run), "--out", str(page)])
    assert "<html" in page.read_text(encoding="utf-8")
    export.main([str(run), str(model)])
    assert (model / "model.safetensors").is_file()
