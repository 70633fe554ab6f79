"""The declared comparisons of all pages on carries again, at two other costs than their own.

    .venv/bin/python experiments/equal_cost/compare.py    # some minutes; results/, README.md and
                                                          # the table `other_costs` of each page

Each page compares at the tokens that its own cheapest run had generated. Here the same comparisons
are made at `COMMON_TOKENS`, and after every run's last step, whatever it had cost. Endpoints that
only the last validation has, or that are read at equal entropy, are at no equal cost anyway and are
left out.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.declared import declared_rows
from e3rl.analysis.measures.families import Family, judge_rows
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.page.study import Study, read_study, write_tables
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.analysis.tables.comparison_table import p_text

FOLDER = Path(__file__).parent
AXIS, MEASURE = "tokens", "pass@1"
COMMON_TOKENS = 1_145_860  # where the cheapest run of the first 25 pages ended
OWN, COMMON, END = "own", "common", "end"  # the page's own cost, that of all pages, the last step
KEPT = ("cost", "difference", "difference_low", "difference_high", "p_adjusted", "verdict")
IDENTITY = ("family", "arm", "against", "evaluation")
OTHERS = "other_costs"  # the table that every page has of its own comparisons
PLACES = ("its own", "common", "end")  # of costs, in words
WORDS = ("page", "family", "arm", "against", *(f"verdict, {place}" for place in PLACES))


def declared_pages() -> list[Study]:
    """Every page on carries that compares arms at equal tokens by families declared before."""
    folders = sorted(path.parent for path in FOLDER.parent.glob("carries_*/study.declared.yaml"))
    studies = [read_study(each) for each in folders if (each / "study.yaml").is_file()]
    return [each for each in studies if any(families_at_cost(each))]


def own_cost(page: Study) -> float:
    """Tokens that all runs of a page generated."""
    return common_cost([run for runs in page.arms.values() for run in runs], AXIS)


def common_or_own(page: Study, common: float) -> float:
    """The common cost, or the page's own where one of its runs ended before."""
    return min(common, own_cost(page))


def families_at_cost(page: Study) -> Iterator[Family]:
    """Families of a page all of whose endpoints are compared at equal tokens: of others a part
    alone would be corrected."""
    for family in page.families.values():
        costed = family.endpoints and all(end[1] == MEASURE for end in family.endpoints)
        if costed and family.axis == AXIS and not family.at_equal_entropy:
            yield family


def compare_page(page: Study, common: float) -> list[Row]:
    """Every declared comparison of a page, with what is said of it at each cost."""
    costs = {OWN: own_cost(page), COMMON: common_or_own(page, common), END: math.inf}
    found: list[Row] = []
    for family in families_at_cost(page):
        judged = {}
        for name, cost in costs.items():
            rows = declared_rows(page.arms, family, cost=cost)
            judged[name] = judge_rows(rows, {family.name: rows})
        for place, row in enumerate(judged[OWN]):
            facts: Row = {"page": page.folder.name} | {name: row[name] for name in IDENTITY}
            for name in costs:
                facts |= {f"{name}_{column}": judged[name][place][column] for column in KEPT}
            facts[f"{END}_cost"] = None
            found.append(facts)
    return found


def control_levels(page: Study, common: float) -> tuple[int, list[float]]:
    """How many seeds the page's control has, and its mean pass@1 at T = 1 at each cost."""
    assert page.control is not None
    levels, seeds = [], 0
    for cost in (own_cost(page), common_or_own(page, common), math.inf):
        scores = scores_at(page.arms[page.control], "t1", 1, AXIS, cost)
        assert scores is not None
        seeds = scores.n_seeds
        levels.append(float(scores.table.to_numpy().mean()))
    return seeds, levels


def page_row(page: Study, common: float, rows: Sequence[Row]) -> Row:
    """What other costs change on one page."""
    seeds, levels = control_levels(page, common)
    facts: Row = {"page": page.folder.name, "cost": own_cost(page), "seeds": seeds}
    facts |= dict(zip(("own_level", "common_level", "end_level"), levels, strict=True))
    facts["comparisons"] = len(rows)
    for name in (COMMON, END):
        facts[f"{name}_shift"] = max(
            abs(row[f"{name}_difference"] - row[f"{OWN}_difference"]) for row in rows
        )
        facts[f"{name}_changed"] = sum(
            row[f"{name}_verdict"] != row[f"{OWN}_verdict"] for row in rows
        )
    return facts


def page_cells(rows: Sequence[Row], common: float) -> Cells:
    """A row per page."""
    header = [
        *(
            "page",
            "its tokens",
            "seeds",
            "its control there %",
            "at the common cost %",
            "at the end %",
        ),
        *("comparisons", "shift, common", "shift, end", "changed, common", "changed, end"),
    ]
    body = [
        [
            *(row["page"], f"{row['cost']:,.0f}", str(row["seeds"])),
            *(f"{100 * row[f'{name}_level']:.1f}" for name in (OWN, COMMON, END)),
            str(row["comparisons"]),
            *(f"{100 * row[f'{name}_shift']:.1f}" for name in (COMMON, END)),
            *(str(row[f"{name}_changed"]) for name in (COMMON, END)),
        ]
        for row in rows
    ]
    note = (
        f"The common cost is {common:,.0f} tokens, or the page's own where one of its runs ended "
        "before, the end 128 steps, of an arm with small batches 512. pass@1 of the control at "
        "T = 1, which is GRPO, in carries_bounds and the pages on four steps with four optimiser "
        "steps a batch. Of all declared comparisons of pass@1, greedy ones too: the largest shift "
        "of a difference in points, and how many verdicts change; Holm's correction within each "
        "family at each cost."
    )
    return Cells(header, body, note)


def changed_cells(rows: Sequence[Row]) -> Cells:
    """A row for every comparison whose verdict is not the same at all three costs."""
    header = ["page", "family", "arm", "against"]
    header += headers_of_costs()
    changed = [row for row in rows if len({row[f"{n}_verdict"] for n in (OWN, COMMON, END)}) > 1]
    body = [
        [
            *(str(row[name]) for name in ("page", "family", "arm", "against")),
            *(cell for name in (OWN, COMMON, END) for cell in _said(row, name)),
        ]
        for row in changed
    ]
    note = "The other comparisons have one verdict at all three; `results/comparisons.csv` has all."
    return Cells(header, body, note)


def headers_of_costs() -> list[str]:
    return [f"{what}, {where}" for where in PLACES for what in ("Δ points", "p", "verdict")]


def cells_of_page(rows: Sequence[Row]) -> Cells:
    """A row for every comparison of one page, for that page."""
    body = [
        [
            *(arm_label(str(row["arm"])), str(row["family"]), str(row["against"])),
            *(cell for name in (OWN, COMMON, END) for cell in _said(row, name)),
        ]
        for row in rows
    ]
    own, common = (rows[0][f"{name}_cost"] for name in (OWN, COMMON))
    place = (
        f"at the common {common:,.0f}"
        if common == COMMON_TOKENS
        else f"(not all of its runs reach the {COMMON_TOKENS:,} of other pages: the same again)"
    )
    note = (
        f"pass@1 at this page's {own:,.0f} tokens, {place}, and after the last step, whatever they "
        "had cost; Holm's correction within the declared family at each cost. Made by "
        "[equal_cost](../equal_cost/README.md), and not declared."
    )
    return Cells(["arm", "family", "against", *headers_of_costs()], body, note)


def write_into_page(folder: Path, rows: Sequence[Row]) -> None:
    """The table of a page's own comparisons at all three costs, into that page."""
    readme = folder / "README.md"
    table = as_markdown(cells_of_page(rows), WORDS)
    write_tables(readme, {OTHERS: table})


def _said(row: Row, cost: str) -> list[str]:
    mean, low, high = (100 * row[f"{cost}_difference{end}"] for end in ("", "_low", "_high"))
    p = p_text(row[f"{cost}_p_adjusted"])
    return [f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]", p, row[f"{cost}_verdict"]]


def main() -> None:
    studies = declared_pages()
    by_page = {page.folder.name: compare_page(page, COMMON_TOKENS) for page in studies}
    pages = [page_row(page, COMMON_TOKENS, by_page[page.folder.name]) for page in studies]
    every = [row for rows in by_page.values() for row in rows]
    results, readme = FOLDER / "results", FOLDER / "README.md"
    results.mkdir(exist_ok=True)
    for name, table in (("pages", pages), ("comparisons", every)):
        pd.DataFrame(table).to_csv(results / f"{name}.csv", index=False, float_format="%.6g")
    shown = as_markdown(page_cells(pages, COMMON_TOKENS), ("page",))
    write_tables(readme, {"pages": shown, "changed": as_markdown(changed_cells(every), WORDS)})
    for page in studies:
        write_into_page(page.folder, by_page[page.folder.name])


if __name__ == "__main__":
    main()
