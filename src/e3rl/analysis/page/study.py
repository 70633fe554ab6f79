"""Tables and figures of studies; the command `e3rl.study` says what a study is."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from matplotlib.figure import Figure

from e3rl.analysis.figures import comparison_figures, study_figures
from e3rl.analysis.figures import run_figures as figures
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.metric_rows import metric_rows
from e3rl.analysis.measures.power_table import power_table
from e3rl.analysis.measures.reaching import costs_to_reach
from e3rl.analysis.measures.resource_rows import resource_rows
from e3rl.analysis.measures.step_response import response_rows
from e3rl.analysis.sources.runs import Arms, Run, group_by_arm, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.analysis.tables.comparison_table import WORDS, comparison_cells
from e3rl.analysis.tables.study_cells import (
    frame_cells,
    metric_cells,
    reaching_cells,
    resource_cells,
    response_cells,
)
from e3rl.checkpoints.durable import write_atomically

TableResult = tuple[pd.DataFrame, Cells]

KEYS = {"runs", "arms", "seeds", "control", "figures", "tables"}
BEGIN, END = "<!-- table: {} -->", "<!-- end -->"
LEFT = (*WORDS, "pass@1")  # columns of words


class Study(NamedTuple):
    """What `study.yaml` says, with its runs."""

    folder: Path
    arms: dict[str, list[Run]]
    control: str | None
    figures: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, Any]]
    missing: list[str]


def read_study(folder: Path) -> Study:
    """The study of a folder. Raises ValueError for unknown keys, tables, figures or control."""
    asked = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))
    if not isinstance(asked, dict) or not {"runs"} <= asked.keys() <= KEYS:
        raise ValueError(f"{folder / 'study.yaml'} must have `runs`, and else of {sorted(KEYS)}")
    tables, drawn = asked.get("tables") or {}, asked.get("figures") or {}
    for name, known in ((table_kind(t), TABLES) for t in tables.values()):
        if name not in known:
            raise ValueError(f"{folder}: table kind {name!r} is none of {', '.join(known)}")
    if unknown := drawn.keys() - FIGURES.keys():
        raise ValueError(f"{folder}: no figures {sorted(unknown)}; there are {', '.join(FIGURES)}")
    seeds = asked.get("seeds")
    runs = [run for run in load_runs(folder / asked["runs"]) if not seeds or run.seed in seeds]
    found = group_by_arm(runs)
    wanted = asked.get("arms") or list(found)
    arms = {arm: found[arm] for arm in wanted if arm in found}
    control = asked.get("control")
    if control is not None and control not in arms:
        raise ValueError(f"{folder}: control={control!r} has no recorded run")
    return Study(folder, arms, control, drawn, tables, missing_runs(arms, wanted))


def table_kind(table: Mapping[str, Any]) -> str:
    """What `study.yaml` names as the kind of a table, to look up in `TABLES`."""
    return str(table.get("kind"))


def missing_runs(arms: Arms, wanted: Sequence[str]) -> list[str]:
    """Arms without a run, and those that have fewer seeds than another."""
    lines = [f"not run: {arm}" for arm in wanted if arm not in arms]
    most = max((len(runs) for runs in arms.values()), default=0)
    few = {arm: len(runs) for arm, runs in arms.items() if len(runs) < most}
    return [*lines, *(f"{n} of {most} seeds: {arm}" for arm, n in few.items())]


def write_study(study: Study) -> None:
    """Write results/, figures/ and the tables of the README, once all of them are made."""
    readme = study.folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    tables: dict[str, pd.DataFrame] = {}
    for name, options in study.tables.items():
        given = {key: value for key, value in options.items() if key != "kind"}
        tables[name], cells = call_with_options(
            TABLES[table_kind(options)], f"table {name}", study, given
        )
        text = insert_table(text, name, as_markdown(cells, LEFT))
    drawn: dict[str, Figure] = {
        name: call_with_options(FIGURES[name], f"figure {name}", study, options or {})
        for name, options in study.figures.items()
    }
    for sub in ("results", "figures"):
        (study.folder / sub).mkdir(exist_ok=True)
    for name, table in tables.items():
        table.to_csv(study.folder / "results" / f"{name}.csv", index=False, float_format="%.6g")
    for name, figure in drawn.items():
        figure.savefig(study.folder / "figures" / f"{name}.png", dpi=150)
    write_atomically(readme, text)


def call_with_options(
    make: Callable[..., Any], what: str, study: Study, options: Mapping[str, Any]
) -> Any:
    """Call `make` with the options of `study.yaml`. Raises ValueError for options it lacks."""
    try:
        return make(study.arms, study.control, **options)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ValueError(f"{study.folder}: {what} with {dict(options)}: {error}") from error


def insert_table(text: str, name: str, table: str) -> str:
    """The README with a table in its place. Raises ValueError where it has no place for it."""
    begin = BEGIN.format(name)
    head, found, rest = text.partition(begin)
    between, ended, tail = rest.partition(END)
    if not found or not ended or BEGIN.partition("{")[0] in between:
        raise ValueError(f"README.md has no lines {begin} and {END} for the table to go between")
    return f"{head}{begin}\n\n{table}\n\n{END}{tail}"


def _comparison(
    arms: Arms,
    control: str | None,
    evaluations: Sequence[str] = (),
    measures: Sequence[str] = (),
    **options: Any,
) -> TableResult:
    rows = compare_arms(arms, control, **options)
    shown = [
        row
        for row in rows
        if (not evaluations or row["evaluation"] in evaluations)
        and (not measures or row["measure"] in measures)
    ]
    return pd.DataFrame(rows), comparison_cells(shown)


def _metric(
    arms: Arms,
    control: str | None,
    column: str,
    windows: Mapping[str, Sequence[int]],
    percent: bool = False,
    digits: int = 1,
) -> TableResult:
    spans = {name: (int(start), int(stop)) for name, (start, stop) in windows.items()}
    rows = metric_rows(arms, control, column, spans)
    return pd.DataFrame(rows), metric_cells(rows, percent, digits)


def _reaching(arms: Arms, control: str | None, **options: Any) -> TableResult:
    rows = costs_to_reach(arms, control, **options)
    return pd.DataFrame(rows), reaching_cells(rows)


def _resources(arms: Arms, control: str | None) -> TableResult:
    rows = resource_rows(arms)
    return pd.DataFrame(rows), resource_cells(rows)


def _response(arms: Arms, control: str | None) -> TableResult:
    rows = response_rows(arms)
    return pd.DataFrame(rows), response_cells(rows)


def _power(arms: Arms, control: str | None, **options: Any) -> TableResult:
    if control is None:
        raise ValueError("a power table needs a control")
    table = power_table(arms, control, **options)
    note = "Shares of pass@1; detectable with 80 % power at the 5 % level; empty: no number does."
    return table, frame_cells(table, note)


TABLES: dict[str, Callable[..., TableResult]] = {
    "comparison": _comparison,
    "metric": _metric,
    "reaching": _reaching,
    "resources": _resources,
    "response": _response,
    "power": _power,
}


def _without_control(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A figure that compares with no control."""
    return lambda arms, control, **options: draw(arms, **options)


FIGURES: dict[str, Callable[..., Figure]] = {
    "entropy": _without_control(figures.entropy_figure),
    "temperature": _without_control(figures.temperature_figure),
    "reward": _without_control(figures.reward_figure),
    "all_wrong": _without_control(figures.all_wrong_figure),
    "budget": _without_control(figures.budget_figure),
    "difficulty": _without_control(figures.difficulty_figure),
    "pass_at_k": figures.pass_at_k_figure,
    "pass_at_1": figures.pass_at_1_figure,
    "forest": comparison_figures.forest_figure,
    "frontier": _without_control(comparison_figures.frontier_figure),
    "response": _without_control(figures.response_figure),
    "length": _without_control(study_figures.length_figure),
    "resources": _without_control(study_figures.resource_figure),
    "disturbance": _without_control(study_figures.disturbance_figure),
    "reaching": study_figures.reaching_figure,
}
