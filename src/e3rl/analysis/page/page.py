"""The report page: one HTML file with everything in it, readable without a network."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from e3rl.analysis.figures.style import arm_colour
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.families import BETTER, DAGGER, NEITHER, WORSE
from e3rl.analysis.page.forest import forests, verdict_lines, warning_list
from e3rl.analysis.page.page_figures import FigureData, axes_of, far_arms, page_figures
from e3rl.analysis.page.time_bars import time_bars
from e3rl.analysis.sources.config_differences import config_differences
from e3rl.analysis.sources.runs import Arms
from e3rl.analysis.tables.cells import Cells
from e3rl.analysis.tables.comparison_table import WORDS, comparison_cells
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.run_warnings import find_warnings

# Whatever a name in the data says, nothing is fetched and nothing but the page's own script runs.
MANY = 6  # arms that a figure shows together; more have panels of their own
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render_report(
    arms: Arms,
    rows: Sequence[Row],
    title: str,
    notes: Sequence[str] = (),
    control: str | None = None,
) -> str:
    """The whole page: verdicts, what speaks against them and the differences that they are of;
    curves; the table of arms; where the time went; what the configurations differ in.

    Args:
        arms: runs by arm.
        rows: from `compare_arms`; none where nothing was validated.
        title: of the page.
        notes: sentences below the title.
        control: arm that the others are compared with.
    """
    figures = page_figures(arms)
    axes = axes_of(figures)
    # "<" could end the script element early.
    numbers = json.dumps(_data(arms, figures, axes, control), allow_nan=False).replace(
        "<", "\\u003c"
    )
    parts = {
        "policy": POLICY,
        "title": escape(title),
        "style": _read_part("page.css"),
        "facts": _facts(arms, notes),
        "verdicts": verdict_lines(rows, control),
        "warnings": warning_list(find_warnings(Compared(arms, control, rows))),
        "forests": forests(rows, list(arms)),
        "options": _options(axes),
        "buttons": _buttons(arms),
        "figures": _figures(figures),
        "comparison": _comparison(rows, len(arms) > MANY),
        "time": time_bars(arms),
        "differences": _differences(arms, control),
        "data": numbers,
        "script": _read_part("page.js"),
    }
    return Template(_read_part("page.html")).substitute(parts)


def _read_part(name: str) -> str:
    return files("e3rl.analysis.page").joinpath("parts", name).read_text(encoding="utf-8")


def _data(
    arms: Arms, figures: Sequence[FigureData], axes: Mapping[str, str], control: str | None
) -> dict[str, Any]:
    shown = [{"label": arm_label(arm), "colour": arm_colour(arm, list(arms))} for arm in arms]
    drawn = ("id", "title", "y", "percent", "percent_x", "log", "points", "marks", "curves")
    base = None if control is None or control not in arms else list(arms).index(control)
    parts = [
        {name: figure[name] for name in drawn}
        | {"far": {axis: far_arms(curves, base) for axis, curves in figure["curves"].items()}}
        for figure in figures
    ]
    return {"arms": shown, "axes": axes, "figures": parts, "control": base, "many": MANY}


def _facts(arms: Arms, notes: Sequence[str]) -> str:
    seeds = sorted({len(runs) for runs in arms.values()})
    span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    counts = f"{len(arms)} arm{'s' * (len(arms) != 1)}, {span} seed{'s' * (seeds[-1] != 1)} each"
    steps = sorted({len(run.train) for runs in arms.values() for run in runs})
    length = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    sentences = [f"{counts}. {length} rollout steps each.", *notes]
    return "\n".join(f'<p class="facts">{escape(text)}</p>' for text in sentences)


def _options(axes: Mapping[str, str]) -> str:
    return "".join(
        f'<option value="{axis}">{escape(label)}</option>' for axis, label in axes.items()
    )


def _buttons(arms: Arms) -> str:
    return "\n".join(
        f'<button type="button" aria-pressed="false" title="{len(runs)} '
        f'seed{"s" * (len(runs) != 1)}" style="--arm: {arm_colour(arm, list(arms))}">'
        f"<i></i>{escape(arm_label(arm))}</button>"
        for arm, runs in arms.items()
    )


def _figures(figures: Sequence[FigureData]) -> str:
    return "\n".join(
        f'<figure id="{escape(figure["id"])}"><h3>{escape(figure["title"])}</h3>'
        f'<figcaption>{escape(figure["note"])}</figcaption><div class="tip"></div></figure>'
        for figure in figures
    )


def _comparison(rows: Sequence[Row], folded: bool) -> str:
    if not rows:
        return '<p class="note">No run was validated.</p>'
    table = _table(comparison_cells(rows), WORDS)
    return f"<details><summary>{len(rows)} rows</summary>{table}</details>" if folded else table


def _differences(arms: Arms, control: str | None) -> str:
    if control in arms and len(arms) > MANY:
        return "\n".join(_difference(arms, arm, str(control)) for arm in arms if arm != control)
    found = config_differences(arms)
    if not found:
        return '<p class="note">Nothing.</p>'
    header = ["setting", *(arm_label(arm) for arm in arms)]
    body = [[key, *values.values()] for key, values in found.items()]
    return _table(Cells(header, body, ""), header)


def _difference(arms: Arms, arm: str, control: str) -> str:
    """One arm against the control, a line a setting."""
    found = config_differences({control: arms[control], arm: arms[arm]})
    items = "".join(
        f"<li><code>{escape(key)}</code>: {escape(values[control])} → {escape(values[arm])}</li>"
        for key, values in found.items()
    )
    head = f"{escape(arm_label(arm))} ({len(found)})"
    return f'<details class="settings"><summary>{head}</summary><ul>{items}</ul></details>'


def _table(cells: Cells, words: Sequence[str]) -> str:
    """A table; columns named in `words` to the left, verdicts in colour."""
    sides = ['class="word"' if title in words else "" for title in cells.header]
    head = "".join(
        f"<th {side}>{escape(title)}</th>" for side, title in zip(sides, cells.header, strict=True)
    )
    lines = [
        "".join(
            f"<td {_cell_attributes(text, side)}>{escape(text)}</td>"
            for text, side in zip(row, sides, strict=True)
        )
        for row in cells.body
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    note = f'<p class="note">{escape(cells.note)}</p>' if cells.note else ""
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>{note}'


def _cell_attributes(text: str, side: str) -> str:
    word = text.removesuffix(DAGGER).split(" (")[0]
    if text.startswith("none: "):
        return 'class="word none"'
    judged = word in (BETTER, WORSE, NEITHER)
    return f'class="word {word.split()[0]}"' if judged else side
