"""Tables and figures of studies; the command `e3rl.study` says what a study is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt

from e3rl.analysis.figures.saved import save_figure
from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.curves import without_short
from e3rl.analysis.measures.declared import declared_rows
from e3rl.analysis.measures.deviation_rows import deviation_rows
from e3rl.analysis.measures.families import Family, Side, judge_rows, read_families
from e3rl.analysis.measures.gain import gain_rows
from e3rl.analysis.measures.interaction import interaction_rows
from e3rl.analysis.measures.metric_rows import metric_rows
from e3rl.analysis.measures.power_table import power_table
from e3rl.analysis.measures.reaching import costs_to_reach
from e3rl.analysis.measures.resources import resource_rows
from e3rl.analysis.measures.step_response import LATE, response_rows
from e3rl.analysis.measures.subsets import compare_on_problems
from e3rl.analysis.page.figure_kinds import FIGURES, ROW_FIGURES
from e3rl.analysis.page.lacking import (
    check_ends,
    check_evaluations,
    check_measured,
    check_measures,
    lacking_seeds,
    named_ks,
)
from e3rl.analysis.page.study_file import naming, read_study_file
from e3rl.analysis.page.study_runs import (
    add_runs,
    check_control,
    choose_runs,
    missing_runs,
    named_arms,
    of_seeds,
    refuse_repeated,
)
from e3rl.analysis.page.unfinished import (
    begun_runs,
    default_axis,
    remarks,
    without_untrained,
)
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.analysis.tables.comparison_table import WORDS, comparison_cells
from e3rl.analysis.tables.study_cells import (
    deviation_cells,
    gain_cells,
    interaction_cells,
    metric_cells,
    power_cells,
    reaching_cells,
    resource_cells,
    response_cells,
)
from e3rl.checkpoints.durable import write_atomically
from e3rl.config.check import wrong_values

BEGIN, END = "<!-- table: {} -->", "<!-- end -->"
GIVEN = {"study", "arms", "rows", "control"}  # what options cannot be
LEFT = (*WORDS, "pass@1", "parts")  # columns of words


class TableDraft(NamedTuple):
    """Rows of a table, and how to show them once what they compare is corrected for all."""

    rows: Sequence[Row]
    show: Callable[[Sequence[Row]], Cells]
    notes: Sequence[str] = ()  # what it was asked for and lacks


@dataclass(frozen=True)
class Study:
    """What `study.yaml` says, with its runs."""

    folder: Path
    arms: dict[str, list[Run]]
    control: str | None
    figures: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, Any]]
    families: dict[str, Family]
    missing: list[str]

    @cached_property
    def declared(self) -> dict[str, list[Row]]:
        """The comparisons of every declared family, by its name; not yet judged."""
        return {name: declared_rows(self.arms, each) for name, each in self.families.items()}


def read_study(folder: Path) -> Study:
    """The study of a folder, of the runs that were validated since their training began.

    Raises ValueError for a file that is no YAML, unknown keys, tables, figures or arms, values of
    another kind than their key takes, several runs of one arm and seed, and where no arm has a run.
    """
    asked = read_study_file(folder / "study.yaml")
    tables, drawn = asked.get("tables") or {}, asked.get("figures") or {}
    check_entries(folder, tables, drawn)
    recorded = read_places(folder, asked["runs"])
    chosen = choose_runs(folder, recorded, asked.get("arms"), asked.get("seeds"))
    with naming(f"{folder}"):
        axis = default_axis(begun_runs(chosen))
        notes, known = remarks(chosen, axis), without_untrained(begun_runs(chosen), axis)
        arms = group_by_arm(known)
        wanted = asked.get("arms") or list(group_by_arm(chosen))
        arms = {arm: arms[arm] for arm in wanted if arm in arms}
        refuse_repeated(arms)
        check_control(asked, arms, recorded)
        families = {each.name: each for each in read_families(asked.get("families") or {}, arms)}
    missing = [*missing_runs(arms, wanted, asked.get("seeds") or ()), *notes]
    return Study(folder, arms, asked.get("control"), drawn, tables, families, missing)


def read_places(folder: Path, places: str | Sequence[str]) -> list[Run]:
    """The runs of one or several places, relative to the folder; each once, whatever place it is
    read from."""
    every = [places] if isinstance(places, str) else places
    found = chain.from_iterable(load_runs(folder / place) for place in every)
    return list({run.path.resolve(): run for run in found}.values())


def check_entries(folder: Path, tables: Mapping[str, Any], drawn: Mapping[str, Any]) -> None:
    """Raise ValueError for a kind of table or a figure that there is not, and for options that are
    not given by name."""
    for name, options in [*tables.items(), *((n, o) for n, o in drawn.items() if o is not None)]:
        if not isinstance(options, dict):
            raise ValueError(f"{folder}: {name}={options!r}: give its options by name")
    for name, known in ((table_kind(t), TABLES) for t in tables.values()):
        if name not in known:
            raise ValueError(f"{folder}: table kind {name!r} is none of {', '.join(known)}")
    pictures = FIGURES | ROW_FIGURES
    if unknown := drawn.keys() - pictures.keys():
        raise ValueError(f"{folder}: no figures {sorted(unknown)}; there are {', '.join(pictures)}")


def table_kind(table: Mapping[str, Any]) -> str:
    """What `study.yaml` names as the kind of a table, to look up in `TABLES`."""
    return str(table.get("kind"))


def write_study(study: Study) -> list[str]:
    """Write results/, figures/ and the tables of the README, once all of them are made; returns
    what tables were asked for and lack."""
    readme = study.folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    tables = judged_tables(study)
    for name, table in tables.items():
        with naming(f"{study.folder}: table {name}"):
            cells = table.show(table.rows)
        text = insert_table(text, name, as_markdown(cells, LEFT))
    drawn = draw_figures(study, [row for table in tables.values() for row in table.rows])
    for sub in ("results", "figures"):
        (study.folder / sub).mkdir(exist_ok=True)
    for name, table in tables.items():
        path = study.folder / "results" / f"{name}.csv"
        pd.DataFrame(table.rows).to_csv(path, index=False, float_format="%.6g")
    for name, figure in drawn.items():
        save_figure(figure, study.folder / "figures" / f"{name}.png", dpi=150)
    write_atomically(readme, text)
    notes = ((name, note) for name, table in tables.items() for note in table.notes)
    return [f"table {name}: {note}" for name, note in notes]


def draw_figures(study: Study, rows: Sequence[Row]) -> dict[str, Figure]:
    """All figures by name; those of comparisons show `rows` as the tables judge them, or all arms
    where no table compares."""
    compared = [
        row for row in rows if row.get("against") and row.get("measure") and not row.get("subset")
    ]
    drawn = {}
    for name, options in study.figures.items():
        given: Sequence[Any] = (study.arms, study.control)
        if name in ROW_FIGURES:
            given = (compared or compare_arms(study.arms, study.control), list(study.arms))
        make = (FIGURES | ROW_FIGURES)[name]
        drawn[name] = call_with_options(make, f"figure {name}", study, given, options or {})
    return drawn


def judged_tables(study: Study) -> dict[str, TableDraft]:
    """All tables by name, comparisons corrected within their family or for all exploratory ones."""
    drafts: dict[str, TableDraft] = {}
    for name, options in study.tables.items():
        given = {key: value for key, value in options.items() if key != "kind"}
        make = TABLES[table_kind(options)]
        drafts[name] = call_with_options(make, f"table {name}", study, (study,), given)
    judged = iter(judge_rows(list(chain(*(each.rows for each in drafts.values()))), study.declared))
    return {
        name: draft._replace(rows=[next(judged) for _ in draft.rows])
        for name, draft in drafts.items()
    }


def call_with_options(
    make: Callable[..., Any],
    what: str,
    study: Study,
    given: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """Call `make` with the options of `study.yaml`.

    Raises ValueError, which names the table or figure, for options that it lacks, or that are of
    another type than it takes, and for what it refuses itself.
    """
    takes = (make, PASSED_ON.get(make, make))
    own = {name: value for name, value in options.items() if name not in GIVEN}
    mistakes = dict.fromkeys(chain.from_iterable(wrong_values(own, each) for each in takes))
    with naming(f"{study.folder}: {what}"):
        if mistakes:
            raise ValueError("; ".join(mistakes))
        if "level" in own and not 0 < own["level"] < 1:
            raise ValueError(f"level={own['level']}: a level lies between 0 and 1, such as 0.95")
        try:
            return make(*given, **{str(name): value for name, value in options.items()})
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise ValueError(f"{dict(options)}: {error}") from error


def insert_table(text: str, name: str, table: str) -> str:
    """The README with a table in its place. Raises ValueError where it has no place for it."""
    begin = BEGIN.format(name)
    head, found, rest = text.partition(begin)
    between, ended, tail = rest.partition(END)
    if not found or not ended or BEGIN.partition("{")[0] in between:
        raise ValueError(f"README.md has no lines {begin} and {END} for the table to go between")
    return f"{head}{begin}\n\n{table}\n\n{END}{tail}"


def write_tables(readme: Path, tables: Mapping[str, str]) -> None:
    """Put tables in their places in a README. Raises ValueError as `insert_table`."""
    text = readme.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = insert_table(text, name, table)
    write_atomically(readme, text)


def _comparison(
    study: Study,
    evaluations: Sequence[str] = (),
    measures: Sequence[str] = (),
    untrained: tuple[float, float] | None = None,
    seeds: Sequence[int] = (),
    **options: Any,
) -> TableDraft:
    """With `untrained` [low, high], on the problems that the untrained policy solves so often; with
    `seeds`, of these alone."""
    arms, own = of_seeds(study.arms, seeds)
    check_evaluations(arms, evaluations)
    options |= {"evaluations": evaluations, "measures": measures}
    ks = named_ks(measures) or options.get("ks") or []
    options |= {"ks": ks} if ks else {}
    if untrained is None:
        found = compare_arms(arms, study.control, **options)
    else:
        found = compare_on_problems(arms, study.control, untrained, **options)
    own += [] if options.get("cost") is None else [f"at cost {options['cost']:g}"]
    notes = [*check_measured(arms, found, ks, evaluations), *lacking_seeds(arms, found)]
    check_measures(found, measures)
    return TableDraft(_name_apart(found, own), comparison_cells, notes)


def _name_apart(rows: Sequence[Row], words: Sequence[str]) -> Sequence[Row]:
    """The comparisons as ones of their own, which no family declares, where there are words."""
    return [
        row | {"comparison": row["comparison"] and ", ".join([row["comparison"], *words])}
        for row in rows
    ]


def _family(study: Study, name: str) -> TableDraft:
    if name not in study.families:
        there = ", ".join(study.families) or "none"
        raise ValueError(f"family {name!r} is not declared under `families`; there is {there}")
    if study.families[name].reach:
        raise ValueError(f"family {name!r} is of costs: a table of kind reaching shows them")
    rows = study.declared[name]
    return TableDraft(rows, comparison_cells, lacking_seeds(study.arms, rows))


def _pairs(
    study: Study,
    endpoints: list[dict[str, str | float]],
    comparisons: list[tuple[Side, Side]],
    axis: str = "tokens",
    cost: float | None = None,
    also: Sequence[str] = (),
    seeds: Sequence[int] = (),
    untrained: tuple[float, float] | None = None,
) -> TableDraft:
    """As a declared family, but exploratory; with `seeds`, of these alone; of the runs in the
    folders `also` as well, where these are of the study's arms or of others that are compared."""
    asked: dict[str, Any] = {"endpoints": endpoints, "comparisons": comparisons, "axis": axis}
    asked |= {} if untrained is None else {"untrained": untrained}
    more = read_places(study.folder, also)
    every = add_runs(study.arms, more, named_arms(comparisons), seeds)
    arms, own = of_seeds(every, seeds)
    (family,) = read_families({"pairs": asked}, arms)
    if family.reach:
        raise ValueError("pairs have measures; a table of kind reaching has accuracies to reach")
    rows = declared_rows(arms, family, cost)
    own += [] if cost is None else [f"at cost {cost:g}"]
    own += [f"with {', '.join(also)}"] if also else []
    return TableDraft(_name_apart(rows, own), comparison_cells, lacking_seeds(arms, rows))


def _interaction(study: Study, of: Sequence[Sequence[str]], **options: Any) -> TableDraft:
    own = [] if options.get("cost") is None else [f"at cost {options['cost']:g}"]
    rows = interaction_rows(study.arms, of, **options)
    return TableDraft(_name_apart(rows, own), interaction_cells)


def _metric(
    study: Study,
    column: str,
    windows: Mapping[str, Sequence[int]],
    percent: bool = False,
    digits: NonNegativeInt = 1,
) -> TableDraft:
    for name, window in windows.items():
        if len(window) != 2:
            raise ValueError(
                f"window {name!r} is {window}: give its first step and the one after its last"
            )
    spans = {name: (start, stop) for name, (start, stop) in windows.items()}
    rows = metric_rows(study.arms, study.control, column, spans)
    return TableDraft(rows, lambda judged: metric_cells(judged, percent, digits))


def _reaching(study: Study, **options: Any) -> TableDraft:
    return TableDraft(costs_to_reach(study.arms, study.control, **options), reaching_cells)


def _gain(study: Study, **options: Any) -> TableDraft:
    rows = gain_rows(study.arms, **options)
    why = "no arm was validated so before training and at its end, with so many rollouts"
    check_ends(study.arms, rows, why, **options)
    return TableDraft(rows, gain_cells)


def _deviation(study: Study, to: str | None = None, **options: Any) -> TableDraft:
    rows = deviation_rows(study.arms, to or study.control, **options)
    why = "no two seeds of an arm were validated so at their end, with so many rollouts"
    check_ends(study.arms, rows, why, **options)
    return TableDraft(rows, deviation_cells)


def _resources(study: Study) -> TableDraft:
    _, short = without_short(study.arms)
    notes = [f"far shorter than others of its arm, left out: {run.path}" for run in short]
    return TableDraft(resource_rows(study.arms), resource_cells, notes)


def _response(study: Study, last: PositiveInt = LATE) -> TableDraft:
    return TableDraft(response_rows(study.arms, last), lambda rows: response_cells(rows, last))


def _power(study: Study, differences: Sequence[float] = (0.01, 0.02), **options: Any) -> TableDraft:
    if study.control is None:
        raise ValueError("a power table needs a control")
    rows = power_table(study.arms, study.control, differences, **options)
    return TableDraft(rows, lambda judged: power_cells(judged, differences))


TABLES: dict[str, Callable[..., TableDraft]] = {
    "comparison": _comparison,
    "deviation": _deviation,
    "family": _family,
    "gain": _gain,
    "interaction": _interaction,
    "metric": _metric,
    "pairs": _pairs,
    "reaching": _reaching,
    "resources": _resources,
    "response": _response,
    "power": _power,
}

# What takes the options that the function of a table passes on.
PASSED_ON: dict[Callable[..., Any], Callable[..., Any]] = {
    _comparison: compare_arms,
    _deviation: deviation_rows,
    _gain: gain_rows,
    _interaction: interaction_rows,
    _power: power_table,
    _reaching: costs_to_reach,
}
