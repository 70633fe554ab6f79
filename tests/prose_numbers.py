"""Numbers that a study's page says in prose, and whether a table has them.

A number is known where a table has it, of the page or of one that its sentence links to; one with
an interval where a table has it with that very interval; one after `p` where a table has that p.
What no table has, a setting or a number of another paper, stands in prose_numbers.yaml in the
words that say it, with the reason. Where several cells have a number, prose_cells.yaml says which
one it is of, so that no other one stands in for it.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import yaml

from pages import LINK, ROOT

STUDIES = ROOT / "experiments"
VALUE = r"(?<![\w.@])[+-]?(?:\d*\.\d+|\d+(?:,\d{3})*)(?![\d@]|\.\d)"
NUMBERS = re.compile(VALUE)
BOUNDS = rf"\[({VALUE}|< 0), ({VALUE}|never)\]"
INTERVALS = re.compile(BOUNDS)
# The number before an interval, whatever words are between the two: "+2.2 points of pass@16 [".
WITH_INTERVAL = re.compile(rf"({VALUE})(?:[^\d\[\]]|@\d+)*{BOUNDS}")
BLOCKS = re.compile(r"^```(?:.*\n)*?```$", re.M)
TABLES = re.compile(r"<!-- table: [\w-]+ -->.*?<!-- end -->|(?:^\|[^\n]*\n?)+", re.S | re.M)
LINES = re.compile(r"(?:^\|.*\n?)+", re.M)
SENTENCES = re.compile(r"(?<=[.:?!])(?:\*\*)?\s+(?=[A-Z*`(\[])|\n(?=- |\n|#)")
# "+2.2 points [+1.4, +3.1] in pass@16 (p .012"
WITH_P = re.compile(
    rf"{WITH_INTERVAL.pattern}(?:[^\d()\[\]]|@\d+)*\([^()\d]*\bp (?:< )?(\.\d{{3}})(?! and)"
)
P_VALUE = re.compile(r"(?<!\d)\.\d{3}")  # in a sentence that has a p
OF_POWER = re.compile(r"80 of 100|have been found|detectable|(?:seeds|ten) find|80 % power")
Triple = tuple[str, str, str]
Numbers = frozenset[str]


class Tables(NamedTuple):
    """What tables have: numbers with intervals, p values, detectable differences, others."""

    intervals: frozenset[Triple] = frozenset()
    p_values: Numbers = frozenset()
    detectable: Numbers = frozenset()
    others: Numbers = frozenset()
    judged: frozenset[tuple[Triple, str]] = frozenset()  # intervals and p of one row


def plain(number: str) -> str:
    """As all pages' numbers are compared: no +, no thousands' commas, no 0 before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", number.replace(",", "").removeprefix("+"))


def negative(number: str) -> str:
    return number.removeprefix("-") if number.startswith("-") else f"-{number}"


def tables_of(page: str) -> Tables:
    """Of a page's text; bounds of intervals are no numbers by themselves."""
    found = Tables(set(), set(), set(), set(), set())
    for table in LINES.findall(BLOCKS.sub("", page).replace("*", "")):
        head, *rows = ([x.strip() for x in line.split("|")[1:-1]] for line in table.splitlines())
        for row in rows:
            triples, p_values = set(), set()
            for column, cell in zip(head, row, strict=False):
                triples |= {tuple(map(plain, x)) for x in WITH_INTERVAL.findall(cell)}
                numbers = set(map(plain, NUMBERS.findall(INTERVALS.sub("", cell))))
                kind = {"p": p_values, "detectable": found.detectable}
                kind.get(column.partition(",")[0], found.others).update(numbers)
            found.intervals.update(triples)
            found.p_values.update(p_values)
            found.judged.update(product(triples, p_values))
    return Tables(*map(frozenset, found))


@cache
def tables_at(path: Path) -> Tables:
    return tables_of(path.read_text(encoding="utf-8"))


def sentences(page: str) -> Iterator[str]:
    """Of the prose alone: no tables, no blocks of code, no comments."""
    text = TABLES.sub("", BLOCKS.sub("", page))
    for part in SENTENCES.split(text):
        yield " ".join(part.split())


def bare(sentence: str) -> str:
    """Without code, and without the targets of links."""
    return re.sub(r"`[^`]*`|\]\([^()]*\)", "", sentence)


def links(sentence: str, folder: Path) -> list[Path]:
    found = [folder / link.partition("#")[0] for link in LINK.findall(sentence)]
    return [path for path in found if path.suffix == ".md" and path.is_file()]


class Checked(NamedTuple):
    """A sentence with numbers, what of it is not explained, and the tables it may draw on."""

    sentence: str
    text: str
    tables: list[Tables]


def checked(page: str, folder: Path, explained: tuple[str, ...] = ()) -> Iterator[Checked]:
    own = tables_of(page)
    for sentence in sentences(page):
        if not re.search(r"\.\d|\[[+-]?\d", sentence):
            continue
        text = bare(sentence)
        for words in explained:
            text = text.replace(words, "")
        yield Checked(sentence, text, [own, *map(tables_at, links(sentence, folder))])


def unknown(page: str, folder: Path, explained: tuple[str, ...] = ()) -> list[str]:
    """Numbers of a page's prose that are known from nowhere, each with its sentence."""
    return [
        f"{number} in: {each.sentence}"
        for each in checked(page, folder, explained)
        for number in unknown_of(each.text, each.tables)
    ]


def unnoticed(page: str, folder: Path, explained: tuple[str, ...] = ()) -> list[str]:
    """Numbers that could have another last digit without being unknown, each with its sentence."""
    return [
        f"{match[0]}, or {other}, in: {each.sentence}"
        for each in checked(page, folder, explained)
        for match in NUMBERS.finditer(each.text)
        if "." in match[0]
        for other in (f"{match[0][:-1]}{(int(match[0][-1]) + step) % 10}" for step in (1, -1))
        if not unknown_of(replaced(each.text, match, other), each.tables)
    ]


def replaced(text: str, match: re.Match[str], other: str) -> str:
    return f"{text[: match.start()]}{other}{text[match.end() :]}"


def unknown_of(sentence: str, tables: list[Tables]) -> list[str]:
    known = Tables(*(frozenset().union(*kind) for kind in zip(*tables, strict=True)))
    missing = []

    def with_interval(match: re.Match[str]) -> str:
        if not any(each in known.intervals for each in versions(match.groups())):
            missing.append(match[0])
        return ""

    for *triple, p in WITH_P.findall(sentence):
        if not any((each, p) in known.judged for each in versions(triple)):
            missing.append(f"p {p} of {' '.join(triple)}")
    rest = WITH_INTERVAL.sub(with_interval, sentence)
    missing += [match[0] for match in INTERVALS.finditer(rest)]
    if re.search(r"\bp\b", rest):
        missing += [p for p in P_VALUE.findall(rest) if p not in known.p_values]
        rest = P_VALUE.sub("", rest)
    missing += [
        number for number in singles(rest) if not has(found_in(known, rest, number), number)
    ]
    return missing


def singles(text: str) -> list[str]:
    return [number for number in NUMBERS.findall(text) if "." in number]


def found_in(known: Tables, sentence: str, number: str) -> Numbers:
    """Where a sentence is of what could have been found, its numbers without a sign are that."""
    of_power = OF_POWER.search(sentence) and number[0] not in "+-"
    return known.detectable if of_power else known.others


def versions(said: Sequence[str]) -> list[Triple]:
    """As a table may have it; without signs it may be by how much something is below."""
    mean, low, high = map(plain, said)
    if any(each.startswith(("+", "-")) for each in said):
        return [(mean, low, high)]
    return [(mean, low, high), (negative(mean), negative(high), negative(low))]


def has(numbers: frozenset[str], said: str) -> bool:
    """A number without a sign may be how far below something is."""
    signed = said.startswith(("+", "-"))
    return plain(said) in numbers or (not signed and negative(plain(said)) in numbers)


@cache
def explanations() -> dict[str, dict[str, str]]:
    """Reasons by page, and by the words that say a number."""
    found: dict[str, dict[str, str]] = yaml.safe_load(
        (Path(__file__).parent / "prose_numbers.yaml").read_text(encoding="utf-8")
    )
    return found
