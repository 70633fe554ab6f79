"""Modules beside a study's script, as tests import them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd


@contextmanager
def study_modules(folder: Path, *names: str) -> Iterator[dict[str, ModuleType]]:
    """Modules of a study's folder by name, importable while this lasts as its script has them.

    Several studies have modules of the same name, so none of them stays behind.
    """
    own = {path.stem for path in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        yield {name: import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(others)


@contextmanager
def rules_of_tuning(study: Path) -> Iterator[ModuleType]:
    """`next_runs` of a study that tunes by the rule of carries_tuned."""
    with (
        study_modules(study.parent / "carries_tuned", "tuning"),
        study_modules(study, "next_runs") as modules,
    ):
        yield modules["next_runs"]


def tuned_scores(table: pd.DataFrame) -> dict[str, dict[int, float]]:
    """pass@1 by name and seed, as `tuning.read_scores` finds it, from a study's recorded table,
    whose coefficients are read as they are written."""
    scores: dict[str, dict[int, float]] = {}
    for row in table.to_dict("records"):
        middle = "" if pd.isna(row["coefficient"]) else f"_{row['coefficient']}"
        seen = {seed: row[f"seed {seed}"] for seed in (51, 52)}
        name = f"{row['arm']}{middle}_lr_{row['learning rate']:g}"
        scores[name] = {seed: score for seed, score in seen.items() if not pd.isna(score)}
    return scores


def chosen_points(tuning: ModuleType, study: Path) -> dict[str, Any]:
    """By arm, the point that the rule of `tuning` takes from the study's recorded scores; its table
    must mark these, and no others."""
    table = pd.read_csv(study / "results" / "tuning.csv", dtype={"coefficient": str})
    best = {arm: choice.best for arm, choice in tuning.tune_all(tuned_scores(table)).items()}
    chosen = table[table["chosen"]].fillna({"coefficient": ""})
    for row in chosen.to_dict("records"):
        point = best[row["arm"]]
        assert (point.value, point.rate) == (row["coefficient"], row["learning rate"])
    assert chosen["arm"].is_unique
    return best
