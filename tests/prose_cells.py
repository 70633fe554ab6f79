"""Cells of tables that numbers in prose are of, as prose_cells.yaml names them."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from prose_numbers import BLOCKS, INTERVALS, LINES, NUMBERS, STUDIES, VALUE, bare, sentences


class Row(NamedTuple):
    """Of a named table, or of the first one below a heading (`#Heading`); cells by column."""

    table: str
    heading: str
    cells: dict[str, str]


def rows_of(page: str) -> Iterator[Row]:
    """Of all tables, an empty first cell being that above it."""
    text = re.sub(r"[*`]", "", BLOCKS.sub("", page))
    for match in LINES.finditer(text):
        before = text[: match.start()]
        named = re.search(r"<!-- table: ([\w-]+) -->\s*\Z", before)
        heading = re.findall(r"^#+ (.*)$", before, re.M)
        head, *rows = ([x.strip() for x in x.split("|")[1:-1]] for x in match[0].splitlines())
        first = ""
        for row in rows[1:]:
            first = row[0] or first
            cells = dict(zip(head, [first, *row[1:]], strict=True))
            yield Row(named[1] if named else "", heading[-1] if heading else "", cells)


@cache
def rows_at(path: Path) -> tuple[Row, ...]:
    return tuple(rows_of(path.read_text(encoding="utf-8")))


def cell(page: str, wanted: str) -> list[str]:
    """The numbers of one cell, intervals left out; prose_cells.yaml says how it is named."""
    table, column, *keys = wanted.split(" | ")
    page, _, table = table.rpartition(":") if ":" in table else (page, "", table)
    column, _, nth = column.partition(" #")
    of_all = keys[-1] if keys and keys[-1] in ("least", "greatest") else None
    rows = [row.cells for row in rows_at(path_of(page)) if is_of(row, table)]
    rows = [row for row in rows if {*keys} - {of_all} <= {*row.values()}]
    if not of_all and len(rows) != 1:
        raise ValueError(f"{page}: {len(rows)} rows have all of: {wanted}")
    numbers = [NUMBERS.findall(INTERVALS.sub("", row[column])) for row in rows]
    if of_all:
        choose = min if of_all == "least" else max
        return [choose((x for each in numbers for x in each), key=value)]
    return numbers[0] if not nth else [numbers[0][int(nth) - 1]]


def is_of(row: Row, table: str) -> bool:
    if table.startswith("#"):
        return row.heading.startswith(table.removeprefix("#"))
    return row.table == table


def path_of(page: str) -> Path:
    if page == "README.md" or page.startswith("docs/"):
        return STUDIES.parent / page
    study = STUDIES / page / "README.md"
    return study if study.is_file() else STUDIES / f"{page}.md"


def value(number: str) -> float:
    return float(number.replace(",", ""))


@cache
def cells() -> dict[str, dict[str, list[str]]]:
    """The cells that numbers are of, by page and by the words that say them."""
    found: dict[str, dict[str, list[str]]] = yaml.safe_load(
        (Path(__file__).parent / "prose_cells.yaml").read_text(encoding="utf-8")
    )
    return found


def said(page: str, words: str) -> str:
    """These words as the page says them, every number being that of its cell.

    Raises ValueError where the page does not say them, or says another number.
    """
    pattern = f"({VALUE})".join(map(re.escape, words.split("{}")))
    text = "\n".join(map(bare, sentences(path_of(page).read_text(encoding="utf-8"))))
    matches = list(re.finditer(pattern, text))
    numbers = [number for each in cells()[page][words] for number in cell(page, each)]
    for match in matches:
        if len(numbers) == len(match.groups()) and all(map(is_number, match.groups(), numbers)):
            return match[0]
    raise ValueError(f"{page}: {words!r} has {numbers}, not {[x.groups() for x in matches]}")


def is_number(said: str, of_the_cell: str) -> bool:
    """A number without a sign may be how far below something is."""
    found = value(of_the_cell)
    return value(said) == found or (said[0] not in "+-" and value(said) == -found)
