"""Every number in the prose of every study's page is one that its tables have, or explained."""

import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import prose_cells
import prose_numbers as prose
from computed_numbers import COMPUTED, Computed
from pages import ROOT
from prose_numbers import STUDIES

PAGES = sorted(path.parent.name for path in STUDIES.glob("*/README.md"))
TABLE = """| arm | Δ points | p | detectable |
|---|---|---|---|
| a | +2.2 [+1.4, +3.1] | .012 | 4.5 |
| b | +0.1 [-1.0, +1.2] | .900 | 5.1 |
"""


def text_of(name: str) -> str:
    """A page without the table that repeats its comparisons at other costs: among so many numbers
    another last digit would be one of them."""
    text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(?s)<!-- table: other_costs -->.*?<!-- end -->", "", text)


@cache
def explained_of(name: str) -> tuple[str, ...]:
    reasons = prose.explanations()
    computed = [each.words.format(*each.numbers()) for each in COMPUTED if each.page == name]
    of_cells = [prose_cells.said(name, words) for words in prose_cells.cells().get(name, ())]
    return (*computed, *of_cells, *reasons["every page"], *reasons.get(name, ()))


@pytest.mark.parametrize("name", PAGES)
def test_the_prose_says_no_number_that_nothing_knows(name: str) -> None:
    found = prose.unknown(text_of(name), STUDIES / name, explained_of(name))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_another_last_digit_of_any_number_would_be_found(name: str) -> None:
    found = prose.unnoticed(text_of(name), STUDIES / name, explained_of(name))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("computed", COMPUTED, ids=lambda each: f"{each.page}: {each.words}")
def test_what_is_computed_stands_in_the_page(computed: Computed) -> None:
    words = computed.words.format(*computed.numbers())
    assert any(words in prose.bare(each) for each in prose.sentences(text_of(computed.page))), words


def test_no_explanation_is_of_words_that_are_not_there() -> None:
    stale = [
        f"{name}: {words}"
        for name, reasons in prose.explanations().items()
        for words, reason in reasons.items()
        if not (name == "every page" or words in whole(name)) or not reason
    ]
    assert stale == []


def whole(name: str) -> str:
    return "\n".join(map(prose.bare, prose.sentences(text_of(name))))


@pytest.mark.parametrize(
    "said",
    [
        "It raises pass@16 by +2.2 points [+1.4, +3.1] (p .012).",
        "It raises pass@16 by 2.2 points of pass@16 [1.4, 3.1].",
        "It is +2.2 above; 4.5 points would have been found.",
        "T = 1.5 is hot.",
        "`lr=0.3` [gives](page-0.4.md) +2.2.",
        "| 7.7 |",
    ],
)
def test_known_numbers_pass(said: str, tmp_path: Path) -> None:
    assert prose.unknown(f"{TABLE}\n\n{said}\n", tmp_path, ("T = 1.5",)) == []


@pytest.mark.parametrize(
    "said",
    [
        "It raises pass@16 by +2.1 points [+1.4, +3.1].",
        "It raises pass@16 by +2.2 points of pass@16 [+1.4, +3.2].",
        "It raises pass@16 by +2.2 % in all [+1.5, +3.1].",
        "It raises pass@16 by 2 points [+1.4, +3.1].",
        "It lowers pass@16 by -2.2 [-3.1, -1.4].",
        "It is +2.2 (p .013).",
        "It raises it by 2.2 points [1.4, 3.1] in pass@16 (p .900).",  # that of another row
        "It is +2.2; 4.4 points would have been found.",
        "It is 1.4 above.",  # a bound is no number by itself
        "It is +4.5 above.",
        "T = 1.6 is hot.",
        "An interval [+1.4, +3.1] of nothing.",
    ],
)
def test_unknown_numbers_are_found(said: str, tmp_path: Path) -> None:
    assert prose.unknown(f"{TABLE}\n\n{said}\n", tmp_path, ("T = 1.5",))


def test_a_last_digit_that_could_be_another_without_notice_is_found(tmp_path: Path) -> None:
    page = f"{TABLE.replace('+0.1 [', '+2.3 [')}\n\nIt is +2.2.\n"
    (found,) = prose.unnoticed(page, tmp_path)
    assert found.startswith("+2.2, or +2.3, in: ")
    assert prose.unnoticed(page, tmp_path, ("It is +2.2",)) == []
    assert prose.unnoticed(f"{TABLE}\n\nIt is +2.2.\n", tmp_path) == []


def test_a_number_that_is_said_of_a_cell_is_that_of_the_cell() -> None:
    words = "generates {} % more tokens and with an entropy of {} nats against {};"
    assert prose_cells.said("carries_core", words) == words.format("+2.5", "0.239", "0.235")
    rows = prose_cells.rows_at(prose_cells.path_of("carries_core"))
    (budget,) = (
        row.cells
        for row in rows
        if row.table == "many_tries" and row.cells["arm"] == "GRPO + budget"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(budget, "cost %", "+2.4")
        with pytest.raises(ValueError, match=r"has \['\+2\.4', .* not \[\('\+2\.5'"):
            prose_cells.said("carries_core", words)


@pytest.mark.parametrize("wanted", ["many_tries | cost % | nobody", "many_tries | cost % | t1"])
def test_a_cell_is_of_one_row(wanted: str) -> None:
    with pytest.raises(ValueError, match="rows have all of"):
        prose_cells.cell("carries_core", wanted)


def test_the_least_and_the_greatest_of_a_column_are_cells_too() -> None:
    assert prose_cells.cell("carries_core", "many_tries | cost % | least") == ["-10.6"]
    assert prose_cells.cell("carries_core", "many_tries | cost % | greatest") == ["+2.5"]


def test_a_number_of_a_page_counts_in_the_sentence_that_links_to_it(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(TABLE)
    assert prose.unknown("It is +2.2 [there](other.md). More.\n", tmp_path) == []
    assert prose.unknown("See [there](other.md). It is +2.2.\n", tmp_path)


@pytest.mark.end_to_end
def test_contrasts_are_those_of_the_recorded_runs() -> None:
    found = runpy.run_path(str(STUDIES / "contrasts.py"))["page"]()
    assert found == (STUDIES / "contrasts.md").read_text(encoding="utf-8")


@pytest.mark.end_to_end
def test_tables_at_equal_entropy_and_of_cooling_are_those_of_the_recorded_counts() -> None:
    tables = runpy.run_path(str(STUDIES / "entropy_control" / "interpolate.py"))["tables"]()
    for name, table in tables.items():
        assert f"<!-- table: {name} -->\n\n{table}\n\n<!-- end -->" in text_of("entropy_control")


SUMMARIES = ("README.md", "docs/results.md", "docs/studies.md")
CORE = (  # what a paragraph may draw on that links to no page of a study
    *("carries_bed", "carries_core", "carries_confirmation"),
    *("carries_first_policies", "carries_ten_seeds"),
)
HELD_ELSEWHERE = {  # by the tests of test_readme.py, or no numbers of a study
    "arXiv 2505.18573": "an address",
    "Python 3.11 to 3.13": "versions",
    "vLLM (0.24)": "a version",
    "ten seeds have 45.7 to 57.9 %": "of the control's file",
    "by -3.0 [-5.7, -0.4] points after as many": "of equal_cost",
    "to T = .74": "of the first run",
    "stages of T = 1 to 1.1": "settings",
    "A bonus of .1 loses": "a setting",
    "an entropy bonus of .1 loses": "a setting",
    "0.53 M parameters": "the size of a policy",
    "a constant T = 1.2 do": "a setting",
    "(p .032, uncorrected": "of a table of agreement",
    "1.5B parameters, mean": "the size of the paper's model",
    "to hold more, .27 nats": "a setting",
    "+3.8 [+1.4, +6.1] of pass@1 on easy problems beside E3": "as near at another cost",
}


def paragraphs(name: str) -> Iterator[tuple[str, list[prose.Tables]]]:
    """Each paragraph, item of a list and row of studies, and the tables of the studies that it
    links to. Tables of results are held by test_findings.py and the averages' test."""
    page = prose.BLOCKS.sub("", (ROOT / name).read_text(encoding="utf-8"))
    page = re.sub(r"(?s)<!-- table: .*?<!-- end -->", "", page)
    for words in HELD_ELSEWHERE:
        page = page.replace(words, "")
    for part in re.split(r"\n(?=- |\d\. |\n|\| \[)", page):
        linked = [path.resolve() for path in prose.links(part, (ROOT / name).parent)]
        studies = [path for path in linked if path.is_relative_to(STUDIES)]
        core = [STUDIES / each / "README.md" for each in CORE]
        yield part.strip("\n| "), [prose.tables_at(path) for path in dict.fromkeys(studies or core)]


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_says_no_number_that_no_page_of_its_paragraph_has(name: str) -> None:
    found = [
        f"{number} in: {sentence}"
        for part, tables in paragraphs(name)
        for sentence in prose.sentences(part)
        for number in prose.unknown_of(prose.bare(sentence), tables)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", SUMMARIES[:2])  # the list of studies has no intervals
def test_another_last_digit_of_any_number_in_a_summary_would_be_found(name: str) -> None:
    """But for temperatures, which are settings, p below a bound, and what a cell or test holds."""
    of_cells = [prose_cells.said(name, words) for words in prose_cells.cells().get(name, ())]
    checked, missed = 0, []
    for part, tables in paragraphs(name):
        for sentence in map(prose.bare, prose.sentences(part)):
            for words in of_cells:
                sentence = sentence.replace(words, "")
            sentence = re.sub(r"T = \.?\d[\d.]*|p < \.001", "", sentence)
            for match in prose.NUMBERS.finditer(sentence):
                if "." not in match[0]:
                    continue
                other = f"{match[0][:-1]}{(int(match[0][-1]) + 1) % 10}"
                checked += 1
                if not prose.unknown_of(prose.replaced(sentence, match, other), tables):
                    missed.append(f"{match[0]} in: {sentence}")
    assert checked > 20
    assert missed == []


def test_what_is_held_elsewhere_stands_in_a_summary() -> None:
    whole = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in SUMMARIES)
    assert [words for words in HELD_ELSEWHERE if words not in whole] == []
