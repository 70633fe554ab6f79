"""The head of the report page: verdicts in words, warnings, and paired differences as a picture.

All of it is there without a script.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from e3rl.analysis.figures.comparison_figures import control_name, forest_note
from e3rl.analysis.figures.style import arm_colour
from e3rl.analysis.figures.validation_panels import evaluation_title
from e3rl.analysis.measures.arms import LIVE, Row, arm_label
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.families import (
    BETTER,
    DAGGER,
    NEITHER,
    WORSE,
    hangs_on_problems,
)

WIDTH, ROW, TOP, BOTTOM = 660, 22, 8, 34
PLOT = (168, 372)  # from where to where the scale goes
FENCE, FLATTENED = 2.0, 1.5  # interquartile ranges; times the scale without what is far off
ARROW = "arrow"
LETTERS = 20  # of an arm's name that fit beside it
UNFOLDED = 6  # warnings that stand above the differences
SPENT = ("spent", "against_spent")  # columns of costs, where the last validation is what was taken
NEAR = 0.0005  # of the equal cost, within which a cost is that one
NO_VERDICT = "no verdict"
WORDS = {BETTER: "better", WORSE: "worse", NEITHER: "not distinguishable"}


def verdict_lines(rows: Sequence[Row], control: str | None = None) -> str:
    """A line per endpoint, with the arms that are better, worse and neither; where there is none,
    a line that says why."""
    lines = []
    for end, found in first_endpoints(rows).items():
        told = []
        for word in (BETTER, WORSE, NEITHER, None):
            arms = [_with_points(row) for row in found if row["verdict"] == word]
            if arms:
                name = NO_VERDICT if word is None else WORDS[word]
                told.append(f'<b class="{name.split()[0]}">{name}</b> {", ".join(arms)}')
        lines.append(
            f'<p class="verdict"><span>{escape(title_of(end))}</span>, '
            f"{escape(_read_at(found))}: {'; '.join(told)}.</p>"
        )
    if lines:
        return "\n".join(lines)
    names = [
        sorted({row["evaluation"] for row in rows if (row["arm"] == control) == its})
        for its in (True, False)
    ]
    why = "No control to compare with."
    if all(names):
        own, other = (escape(", ".join(found)) for found in names)
        label = escape(arm_label(control or ""))
        why = f"No evaluation of {label} ({own}) is one of another arm ({other}): none is compared."
    return f'<p class="note">{why}</p>'


def _read_at(rows: Sequence[Row]) -> str:
    """What the arms of one endpoint are less, and at which cost both are read."""
    first, unit = rows[0], AXIS_UNITS[rows[0]["axis"]]
    control = arm_label(control_name(first))
    matched = any(row.get("entropy_gap") is not None for row in rows)
    less = f"less {control}" + " at each arm's entropy, by its last validation," * matched
    equal = f"at {first['cost']:,.0f} {unit}"
    late = [row for row in rows if _is_off_cost(row)]
    if not late:
        return f"{less} {equal}"
    own, other = (_span([row[name] or row["cost"] for row in late]) for name in SPENT)
    ends = f"after the last validation ({own} {unit}, {control} {other})"
    if len(late) == len(rows):
        return f"{less} {ends}"
    return f"{less} {equal}, but {', '.join(arm_label(row['arm']) for row in late)} {ends}"


def _is_off_cost(row: Row) -> bool:
    """Whether an arm or its control is read at another cost than the equal one."""
    spent = [row.get(name) for name in SPENT]
    return any(x is not None and abs(x - row["cost"]) > NEAR * row["cost"] for x in spent)


def _span(costs: Sequence[float]) -> str:
    low, high = f"{min(costs):,.0f}", f"{max(costs):,.0f}"
    return low if low == high else f"{low} to {high}"


def warning_list(warnings: Sequence[str]) -> str:
    """What speaks against taking the verdicts at their face; of many, those after the first ones
    unfold."""
    if not warnings:
        return ""
    items = [f"<li>{escape(each)}</li>" for each in warnings]
    shown, more = (
        (items, []) if len(items) <= UNFOLDED + 1 else (items[:UNFOLDED], items[UNFOLDED:])
    )
    folded = f"<ul>{''.join(more)}</ul>" if more else ""
    if folded:
        folded = f"<li><details><summary>{len(more)} more</summary>{folded}</details></li>"
    return '<ul class="warnings">\n' + "\n".join(shown) + f"{folded}\n</ul>"


def forests(rows: Sequence[Row], arms: Sequence[str]) -> str:
    """A picture per endpoint: an arm a row, its difference to the control with the interval."""
    found, first = endpoints(rows), first_endpoints(rows)
    if not found:
        return ""
    rest = {end: each for end, each in found.items() if end not in first}
    note = forest_note([row for each in found.values() for row in each])
    grid = _grid(first, list(arms))
    if f'class="{ARROW}"' in grid:
        note += "; arrows: off the scale"
    parts = [grid, f'<p class="note">{escape(note)}.</p>']
    if rest:
        names = ", ".join(title_of(end) for end in rest)
        grid = _grid(rest, list(arms))
        parts.append(f"<details><summary>Also: {escape(names)}</summary>{grid}</details>")
    return "\n".join(parts)


def _grid(found: Mapping[tuple[str, str], Sequence[Row]], arms: Sequence[str]) -> str:
    drawn = "\n".join(
        f'<div class="forest"><h3>{escape(title_of(end))}</h3>{_forest(each, arms)}</div>'
        for end, each in found.items()
    )
    return f'<div class="forests">\n{drawn}\n</div>'


def endpoints(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows with a difference by evaluation and measure: pass@1 first, greedy and others last."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["difference"] is not None:
            found.setdefault((row["evaluation"], row["measure"]), []).append(row)
    known = ["t1", LIVE]
    place = {name: known.index(name) if name in known else len(known) for name, _ in found}
    return {end: found[end] for end in sorted(found, key=lambda end: place[end[0]])}


def first_endpoints(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Endpoints that a page opens with: pass@k at temperature 1, and at the arms' own; where none
    is there the first one."""
    found = endpoints(rows)
    first = [end for end in found if end[0] in ("t1", LIVE) and not end[1].startswith("mean")]
    return {end: found[end] for end in first or list(found)[:1]}


def title_of(end: tuple[str, str]) -> str:
    """An endpoint in words."""
    return f"{end[1]} {evaluation_title(end[0])}"


def _with_points(row: Row) -> str:
    """An arm and its difference, with a dagger where its verdict hangs on the problems."""
    mark = DAGGER * hangs_on_problems(row)
    return f"{escape(arm_label(row['arm']))} ({100 * row['difference']:+.1f}){mark}"


def _forest(rows: Sequence[Row], arms: Sequence[str]) -> str:
    height = TOP + ROW * len(rows) + BOTTOM
    low, high = _scale([100 * x for row in rows for x in _bounds(row) if x is not None])
    bottom = TOP + ROW * len(rows)

    def across(value: float) -> float:
        return PLOT[0] + (value - low) / (high - low) * (PLOT[1] - PLOT[0])

    parts = [
        f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{TOP}" '
        f'y2="{bottom}"/><text x="{across(tick):.1f}" y="{bottom + 14}" text-anchor="middle">'
        f"{tick:g}</text>"
        for tick in ticks(low, high)
    ]
    parts.append(
        f'<line class="zero" x1="{across(0):.1f}" x2="{across(0):.1f}" y1="{TOP}" y2="{bottom}"/>'
    )
    parts += [_row(row, arms, TOP + ROW * (i + 0.5), across) for i, row in enumerate(rows)]
    middle = (PLOT[0] + PLOT[1]) / 2
    parts.append(f'<text x="{middle:.0f}" y="{bottom + 28}" text-anchor="middle">points</text>')
    label = escape(f"differences of {rows[0]['measure']}", quote=True)
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
    return f"{head}{''.join(parts)}</svg>"


def _scale(ends: Sequence[float]) -> tuple[float, float]:
    """From where to where the scale goes: 0 and the ends of intervals, without those of few arms so
    far off, by quartiles, that the others would be flattened."""
    first, third = np.quantile(ends, (0.25, 0.75))
    fence = FENCE * (third - first)
    near = [0.0, *(x for x in ends if first - fence <= x <= third + fence)]
    every = [0.0, *ends]
    worth = max(every) - min(every) > FLATTENED * (max(near) - min(near))
    low, high = (of(near if worth else every) for of in (min, max))
    room = 0.04 * (high - low or 1.0)
    return low - room, high + room


def _row(row: Row, arms: Sequence[str], y: float, across: object) -> str:
    assert callable(across)
    places = [across(100 * x) for x in _bounds(row) if x is not None]
    low, high = np.clip((min(places), max(places)), *PLOT)  # one point where all is off the scale
    mean = across(100 * row["difference"])
    name = arm_label(row["arm"])
    shown = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
    colour = arm_colour(row["arm"], arms)
    judged = row["verdict"] in (BETTER, WORSE)
    dashes = ' stroke-dasharray="3 3"' if row.get("unmatched") else ""
    marks = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke-width="2"{dashes}/>'
    if PLOT[0] <= mean <= PLOT[1]:
        full = "full" if judged else "open"
        marks += f'<circle cx="{mean:.1f}" cy="{y}" r="4.5" class="{full}"/>'
    marks += _arrow(PLOT[0], y, -7) * (min(places) < PLOT[0])
    marks += _arrow(PLOT[1], y, 7) * (max(places) > PLOT[1])
    text = f"{100 * row['difference']:+.1f}"
    if row["difference_low"] is not None:
        text += f" [{100 * row['difference_low']:+.1f}, {100 * row['difference_high']:+.1f}]"
    word = NO_VERDICT if row["verdict"] is None else WORDS[row["verdict"]]
    return (
        f'<g class="curve" data-arm="{list(arms).index(row["arm"])}" style="--c: {colour}">'
        f"<title>{escape(row['unmatched'] or name)}</title>"
        f'<text class="name" x="{PLOT[0] - 12}" y="{y + 4}" text-anchor="end">'
        f"{escape(shown)}</text>"
        f"{marks}"
        f'<text class="name" x="{PLOT[1] + 14}" y="{y + 4}">{text}</text>'
        f'<text class="{word.split()[0]}" x="{PLOT[1] + 146}" y="{y + 4}">{word}'
        f"{DAGGER * hangs_on_problems(row)}</text></g>"
    )


def _arrow(x: float, y: float, length: float) -> str:
    """What leaves the scale, at its edge."""
    return f'<path class="{ARROW}" d="M{x} {y - 5}l{length} 5l{-length} 5z"/>'


def _bounds(row: Row) -> tuple[float | None, float | None, float | None]:
    return row["difference_low"], row["difference"], row["difference_high"]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high, `count` steps or fewer."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]
