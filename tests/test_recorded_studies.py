"""Every table and figure of every study, in its README and beside it, is made again from the
recorded runs."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.figures.saved import digest_figure, read_digest
from e3rl.analysis.page import study
from e3rl.analysis.tables.cells import as_markdown
from pages import ROOT

STUDIES = sorted(file.parent.name for file in ROOT.glob("experiments/*/study.yaml"))
pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def load_runs() -> Callable[[Path], Any]:
    """Many studies draw on the same runs."""
    loaded = cache(study.load_runs)
    return lambda folder: loaded(folder.resolve())


def assert_same(found: Any, recorded: Any, place: str) -> None:
    """A value that is no number, as a table has it and as its file does."""
    if isinstance(found, list | tuple | np.ndarray):
        np.testing.assert_allclose(
            np.array(found, dtype=float), json.loads(recorded), rtol=1e-4, atol=1e-6, err_msg=place
        )
    elif found is None or pd.isna(found):
        assert pd.isna(recorded), place
    else:
        assert str(found) == str(recorded), place


@pytest.mark.parametrize("name", STUDIES)
def test_tables_and_figures_are_those_of_the_recorded_runs(
    name: str, load_runs: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "load_runs", load_runs)
    item = study.read_study(ROOT / "experiments" / name)
    text = (item.folder / "README.md").read_text(encoding="utf-8")
    for figure in item.figures:
        assert f"figures/{figure}.png" in text
        assert (item.folder / "figures" / f"{figure}.png").is_file()
    tables = study.judged_tables(item)
    rows = [row for made in tables.values() for row in made.rows]
    for figure, drawn in study.draw_figures(item, rows).items():
        assert read_digest(item.folder / "figures" / f"{figure}.png") == digest_figure(drawn), (
            figure
        )
    for table, made in tables.items():
        assert (
            study.insert_table(text, table, as_markdown(made.show(made.rows), study.LEFT)) == text
        )
        recorded = pd.read_csv(item.folder / "results" / f"{table}.csv")
        found = pd.DataFrame(made.rows)
        assert list(found.columns) == list(recorded.columns)
        numbers = recorded.select_dtypes("number").columns
        for column in recorded.columns.difference(numbers):
            for mine, theirs in zip(found[column], recorded[column], strict=True):
                assert_same(mine, theirs, f"{name}: {table}, {column}")
        np.testing.assert_allclose(
            found[numbers].astype(float), recorded[numbers].astype(float), rtol=1e-4, atol=1e-6
        )
