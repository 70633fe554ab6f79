"""A table of texts as plain text, as Markdown and as LaTeX."""

import math
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

SPECIAL = str.maketrans(
    {char: f"\\{char}" for char in "#$%&_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"Δ": r"$\Delta$", "τ": r"$\tau$", "×": r"$\times$", "·": r"$\cdot$"}
    | {"<": "$<$", ">": "$>$", "|": r"\textbar{}"}
)  # of LaTeX, and letters of tables that its usual fonts lack


class Cells(NamedTuple):
    """A header, rows of the same length, and a note that stands below."""

    header: list[str]
    body: list[list[str]]
    note: str


def number_text(value: float | None, form: str, scale: float = 1.0) -> str:
    """A number times `scale` in a format such as `+.1f`; empty for None, `never` for infinity.

    Infinite is the cost of what no run reached.
    """
    if value is None:
        return ""
    return "never" if math.isinf(value) else f"{scale * value:{form}}"


def interval_text(row: Mapping[str, Any], name: str, form: str, scale: float = 1.0) -> str:
    """`41.2 [38.0, 44.5]`: the column `name` of a row of numbers with its bounds.

    Args:
        row: with the columns `name`, `name_low` and `name_high`.
        form: format of each of the three, such as `+.1f`.
        scale: that they are multiplied by, 100 for percent.

    Returns:
        the number alone where its bounds are None; empty where it is None or there is no such
        column.
    """
    if row.get(name) is None:
        return ""
    middle, low, high = (
        number_text(row[f"{name}{end}"], form, scale) for end in ("", "_low", "_high")
    )
    return f"{middle} [{low}, {high}]" if low else middle


def drop_empty_columns(rows: Sequence[dict[str, str]], note: str) -> Cells:
    """Rows of texts by column title, without the columns that are empty in every row."""
    titles = [title for title in rows[0] if any(row[title] for row in rows)]
    return Cells(titles, [[row[title] for title in titles] for row in rows], note)


def as_text(cells: Cells, words: Sequence[str], width: int | None = None) -> str:
    """Plain text, as wide as needed or wrapped to `width`; columns named in `words` to the left.

    A first cell that repeats the one above stays empty.
    """
    header, body, note = cells
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=note, caption_justify="left")
    for title in header:
        side: Literal["left", "right"] = "left" if title in words else "right"
        table.add_column(title, justify=side, overflow="fold")
    for row in _without_repeats(body):
        table.add_row(*row)
    wide = width or sum(max(map(len, column)) + 3 for column in zip(header, *body, strict=True))
    plain: dict[str, Any] = {"color_system": None, "markup": False, "emoji": False}
    console = Console(file=StringIO(), width=max(wide, len(note)), **plain)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def as_markdown(cells: Cells, words: Sequence[str]) -> str:
    """Markdown, followed by the note; columns named in `words` to the left."""
    header, body, note = cells
    rule = [":---" if title in words else "---:" for title in header]
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in (header, rule, *body)]
    return "\n".join([*lines, "", note])


def _escaped(cell: str) -> str:
    """A text that does not end its cell."""
    return cell.replace("|", r"\|")


def as_latex(cells: Cells, words: Sequence[str]) -> str:
    """A `tabular` with the rules of booktabs, and the note as a comment; columns as above.

    A first cell that repeats the one above stays empty.
    """
    header, body, note = cells
    columns = "".join("l" if title in words else "r" for title in header)
    shown = _without_repeats(body)
    lines = [" & ".join(cell.translate(SPECIAL) for cell in row) + r" \\" for row in shown]
    head = " & ".join(title.translate(SPECIAL) for title in header) + r" \\"
    return "\n".join(
        [
            *(f"% {line}" for line in note.splitlines()),
            rf"\begin{{tabular}}{{{columns}}}",
            *(r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"),
        ]
    )


def _without_repeats(body: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows, a first cell empty where it is that of the row above."""
    return [
        ["" if before is not None and before[0] == row[0] else row[0], *row[1:]]
        for before, row in zip([None, *body], body, strict=False)
    ]
