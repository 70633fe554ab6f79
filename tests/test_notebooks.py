"""Every notebook runs from top to bottom on recorded runs and shows its figures."""

import json
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def recorded_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    folder: Path = recorded_runs["write_study"](
        tmp_path_factory.mktemp("study"), ["grpo", "ts_an", "e3"]
    )
    return folder


def figures_of(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.end_to_end
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_draws_every_figure_it_asks_for(
    path: Path, recorded_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E3RL_RUNS", str(recorded_study))
    notebook = nbformat.read(path, as_version=4)
    asked = sum(cell.source.count("figures.") for cell in notebook.cells)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    assert figures_of(notebook) == asked > 0


def run_cells(path: Path) -> dict[str, Any]:
    """What the cells of a notebook leave behind, in this process."""
    found: dict[str, Any] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
            exec(compile("\n".join(lines), str(path), "exec"), found)
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_comes_to_its_end_where_there_is_little_to_show(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run, of which fewer metrics were recorded."""
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    folder = recorded_runs["write_study"](tmp_path / "study", ["e3"], seeds=(1,))
    (ledger,) = folder.rglob("metrics.jsonl")
    ledger.write_text(ledger.read_text().replace('"rollout/all_right"', '"rollout/other"'))
    monkeypatch.setenv("E3RL_RUNS", str(folder))
    assert [run.seed for run in run_cells(path)["arms"]["e3"]] == [1]


def test_a_run_that_has_just_begun_is_left_out_of_the_comparison_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    folder = recorded_runs["write_study"](tmp_path / "study", ["grpo", "e3"])
    begun = recorded_runs["write_study"](tmp_path / "study", ["e3"], seeds=(3,)) / "e3" / "seed=3"
    for name, last in (("validation", 0), ("metrics", 3)):
        file = begun / f"{name}.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["rollout_step"] <= last]
        file.write_text("".join(kept))
    monkeypatch.setenv("E3RL_RUNS", str(folder))
    rows = run_cells(ROOT / "notebooks" / "compare_arms.ipynb")["rows"]
    assert all(row["cost"] > 0 for row in rows)
    printed = capsys.readouterr().out
    assert "not compared" in printed
    assert "seed=3" in printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_a_parameters_cell(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert "E3RL_RUNS" in tagged[0].source
