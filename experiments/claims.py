"""The ledger of claims: what papers say, what the recorded runs here say, and a computed verdict.

    .venv/bin/python experiments/claims.py         # writes docs/claims.md from claims.yaml

A verdict follows from the interval of the difference: *holds* where all of it lies on the side that
is claimed, *contradicted* where all of it lies on the other, else *open*. Where the table carries a
corrected p, all of the interval does not count unless that is below .05 as well. A dagger marks
what would be open if the test counted the seeds' degrees of freedom alone, a double dagger what is
open at the tokens that the runs of nearly all pages reach.
"""

import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from e3rl.analysis.measures import families
from e3rl.statistics.holm import adjust_holm
from e3rl.statistics.means import mean_over_units
from e3rl.statistics.student import t_p_value

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "claims.md"
HEAD = """# Claims

What is claimed of rollout budgets and exploration, and what the recorded runs of this repository
say. Every number and verdict is computed from a study's table by
`.venv/bin/python experiments/claims.py`, and a test holds this page to it.

*holds*, *contradicted*: the whole 95 % interval lies on the side that is claimed, or on the other;
*open*: it contains 0, or the difference is not significant after the correction for the number of
comparisons; *untried*: nobody here has run it; †: open as well where the test counts the degrees of
freedom of its seeds alone ([few seeds](#how-to-read-these-verdicts)); ‡: open at the tokens that
nearly all pages on carries reach ([costs](#how-to-read-these-verdicts)). The scope of a row is what
was trained, how often, and whether the comparison was declared before its runs or is exploratory:
a verdict says nothing beyond its scope, and *open* is not *false*. Studies correct each for their
own comparisons: of {comparisons} declared ones {told} are told, and one correction for all would
leave {left}.
[How to read these verdicts](#how-to-read-these-verdicts) stands below the table.

"""
AIMS = """
## Figures that were aimed at

Not differences of arms, but what a bed, an interval, a control, an update or a step was to be like,
and what was measured. *reached*: all of the interval, or of what runs or cells have, is within
the aim; *not reached*: all of it is outside, or one cell of a simulation is by more than twice the
simulation's error; *open*: a part of it is outside. Of speed the median is judged alone. The aims
of parity are those of its protocols; the others stand in `experiments/aims.py`, which this page's
command runs, and no commit shows that they came before the numbers.

"""
TAIL = """
## How to read these verdicts

- **Costs.** pass@16 and pass@64 on carries, and what is at the same entropy, are after the same
  number of steps, as is pass@1 whose scope says so; other pass@1 on carries is at the tokens that
  the runs of its page reach. [At those that the runs of all pages but {later}
  reach](../experiments/equal_cost/README.md) a verdict with ‡ is open, and the others are the same.
  After the same number of steps {changed} of {costed} verdicts are others.
  Open then: {opened}. Told then: {told_then}.
- **Few seeds.** Problems and seeds both make a difference's variance, and the test counts the
  degrees of freedom of both. Five seeds hardly know how seeds differ: where p is far below .05, as
  after a correction, it may be two to four times too small
  ([simulated](../experiments/coverage/README.md)). A verdict with † is open with the seeds' degrees
  of freedom alone, corrected within its family or, where it is exploratory, its p taken times the
  factor of its correction.
- **Shared noise.** On the older task's run matrix all runs share one noise of validation, which
  counts as the problems'.
- **Corrections** keep 5 % within each of {families} declared families, {comparisons} comparisons in
  all, or within the exploratory comparisons of a page, not over all pages. {told} of the declared
  comparisons are told; one correction by Holm's method for all {comparisons} would leave {left}:
  {kept}. What compares two windows of one arm is *uncorrected*, and says so.
- **Shared starts.** Runs of a task start from one first policy, but for those of
  carries_first_policies and carries_constants. Pages on the same seeds share their control, but for
  carries_four_steps_more and carries_four_steps_left_out, which share one of their own, made on
  another make of processor.
"""
ALPHA = 0.05
SUBSETS = {"easy": "on easy problems", "unsolved": "on problems never solved"}


def load_ledger() -> dict[str, Any]:
    """`scopes`, and `caveats` of what was declared, by study, where and when tables are read, and
    `claims`."""
    found = yaml.safe_load((HERE / "claims.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def find_row(study: str, table: str, wanted: Mapping[str, Any]) -> pd.Series:
    """The one row of a study's table. Raises ValueError where there is none, or more than one."""
    rows = pd.read_csv(HERE / study / "results" / f"{table}.csv")
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    if len(rows) != 1:
        raise ValueError(f"{study}/{table} has {len(rows)} rows with {dict(wanted)}: name one")
    return rows.iloc[0]


def difference(test: Mapping[str, Any]) -> tuple[float, float, float]:
    """Mean and interval of a difference: the row's own, a gain or what a ratio is off 1 among them,
    or of two rows' values by seed."""
    row = find_row(test["study"], test["table"], test["row"])
    if "less" not in test:
        (name,) = {"difference", "gain", "ratio"} & set(row.index)
        mean, low, high = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
        none = float(name == "ratio")
        return mean - none, low - none, high - none
    other = find_row(test["study"], test["table"], test["less"])
    pairs = zip(yaml.safe_load(row["by_seed"]), yaml.safe_load(other["by_seed"]), strict=True)
    found = mean_over_units([a - b for a, b in pairs]).interval()
    return found.mean, found.low, found.high


def decide(test: Mapping[str, Any]) -> str:
    """holds, contradicted or open."""
    _, low, high = difference(test)
    if test["expect"] not in ("above", "below"):
        raise ValueError(f"expect: {test['expect']!r} is neither above nor below")
    row = find_row(test["study"], test["table"], test["row"])
    corrected = None if "less" in test else row.get("p_adjusted")
    if low <= 0 <= high or (corrected is not None and not corrected < ALPHA):
        return "open"
    return "holds" if (low > 0) == (test["expect"] == "above") else "contradicted"


def hangs_on_problems(test: Mapping[str, Any]) -> bool:
    """Whether a verdict would be open with the seeds' degrees of freedom alone, as the report page
    marks them too."""
    row = find_row(test["study"], test["table"], test["row"])
    if "less" in test or "difference_df" not in row or decide(test) == "open":
        return False
    if not is_declared(row):  # others of its correction may stand in other tables
        return families.hangs_on_problems(row.to_dict())
    table = pd.read_csv(HERE / test["study"] / "results" / f"{test['table']}.csv")
    family = table[table["family"] == row["family"]]
    t = family["difference"] / family["difference_error"]
    alone = [t_p_value(*each) for each in zip(t, family["seeds"] - 1, strict=True)]
    looks = _times_looked_at(row)
    found = dict(zip(family.index, adjust_holm(alone), strict=True))[row.name]
    return min(1.0, looks * found) >= ALPHA


def is_declared(row: pd.Series) -> bool:
    family = row.get("family")
    return isinstance(family, str) and family not in ("", families.EXPLORATORY)


def _times_looked_at(row: pd.Series) -> float:
    looks = row.get("looks")
    return 1.0 if looks is None or pd.isna(looks) else float(looks)


def hangs_on_cost(test: Mapping[str, Any]) -> bool:
    """Whether a declared verdict is open at the tokens that the runs of nearly all pages reach."""
    row = find_row(test["study"], test["table"], test["row"])
    if row.get("measure") != "pass@1" or decide(test) == "open":
        return False
    table = pd.read_csv(HERE / "equal_cost" / "results" / "comparisons.csv")
    same = table["page"] == test["study"]
    for column in ("family", "arm", "against", "evaluation"):
        same &= table[column] == row.get(column)
    return bool((table[same]["common_p_adjusted"] >= ALPHA).any())


def cells(test: Mapping[str, Any], ledger: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """What was found, on what, the verdict, and the command that makes its table."""
    unit = test.get("unit", "points")
    scale, digits = (100, 2) if unit == "points" or unit.startswith("%") else (1, 3)
    mean, low, high = (scale * x for x in difference(test))
    found = f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}] {unit}"
    row = find_row(test["study"], test["table"], test["row"])
    if "target" in row:
        found += f" to {100 * row['target']:g} % of pass@1"
    declared = is_declared(row)
    scope = f"{ledger['scopes'][test['study']]}, {name_units(row)}, "
    scope += "declared" if declared else "exploratory"
    if declared and test["study"] in ledger["caveats"]:
        scope += f" ({ledger['caveats'][test['study']]})"
    scope += ", after as many steps" * (
        test["table"] in ledger["at_the_end"].get(test["study"], [])
    )
    scope += ", uncorrected" * ("less" in test or "p_adjusted" not in row)
    page = f"[{test['table']}](../experiments/{test['study']}/README.md)"
    command = f"`{test.get('command', 'e3rl study experiments/' + test['study'])}`: {page}"
    marks = "†" * hangs_on_problems(test) + "‡" * hangs_on_cost(test)
    return found, scope, f"*{decide(test)}*{marks}", command


def name_units(row: pd.Series) -> str:
    """How many seeds a comparison has; of averages over sets, how many of both."""
    if "seeds_of_sets" not in row:
        return f"{int(row['seeds'])} seeds"
    return f"{int(row['seeds_of_sets'])} seeds in {int(row['seeds'])} sets"


def rows(ledger: Mapping[str, Any]) -> Iterator[str]:
    yield "| claim | said by | its number | found here | scope | verdict | command: table |"
    yield "|---|---|---|---|---|---|---|"
    for claim in ledger["claims"]:
        said = [claim["claim"], claim["source"], claim["paper"]]
        tried = [cells(test, ledger) for test in claim["tests"]]
        tried = tried or [("", "", "untried", "")]
        for place, found in enumerate(tried):
            yield "| " + " | ".join([*(said if place == 0 else [""] * 3), *found]) + " |"


def load_declared() -> pd.DataFrame:
    """Every comparison of every study's declared families, with its `page`, and whether it is
    `told`. Its p counts as often as the family was looked at."""
    found = []
    for path in sorted(HERE.glob("*/study.yaml")):
        plan = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, family in plan.get("families", {}).items():
            rows = declared_table(path.parent, plan, name).dropna(subset="p")
            looks = family.get("looks", 1)
            page = {"page": path.parent.name, "control": plan.get("control")}
            found.append(
                rows.assign(
                    **page,
                    told=rows["p_adjusted"] < ALPHA,
                    p=(looks * rows["p"]).clip(upper=1),
                )
            )
    for page, names in load_ledger()["scripted"].items():
        for name in names:
            rows = pd.read_csv(HERE / page / "results" / f"{name}.csv")
            found.append(rows.assign(page=page, told=rows["p_adjusted"] < ALPHA))
    return pd.concat(found, ignore_index=True)


def declared_table(folder: Path, plan: Mapping[str, Any], family: str) -> pd.DataFrame:
    """The rows of a declared family, of the one table that prints it: as a family, or, where it is
    of accuracies to reach, among others. Raises ValueError where none does."""
    for name, table in plan["tables"].items():
        if table["kind"] == "reaching" or table.get("name") == family:
            rows = pd.read_csv(folder / "results" / f"{name}.csv")
            if (rows["family"] == family).any():
                return rows[rows["family"] == family]
    raise ValueError(f"{folder.name}: no table prints the family {family}")


def name_declared(row: Mapping[str, Any]) -> str:
    """What a comparison is of, and its page."""
    if pd.notna(row["ratio"]):
        what = f"`{row['arm']}` by `{row['control']}` in {row['axis']} to {100 * row['target']:g} %"
    else:
        what = f"`{row['arm']}` less `{row['against'].split()[0]}` in {row['measure']}"
        what += " greedily" * (row["evaluation"] == "greedy")
    if isinstance(row.get("subset"), str):
        what += f" on problems {row['subset'].split(' of its')[0]}"
    elif row["family"] in SUBSETS:  # scripts name no subset in their tables
        what += f" {SUBSETS[row['family']]}"
    return f"{what} ({row['page']})"


def count_declared() -> dict[str, Any]:
    """How many comparisons were declared and told, and which of them one correction would leave."""
    declared = load_declared()
    adjusted = pd.Series(adjust_holm(declared["p"].to_list()))
    kept = declared[declared["told"] & (adjusted < ALPHA)]
    return {
        "families": declared.groupby(["page", "family"]).ngroups,
        "comparisons": len(declared),
        "told": int(declared["told"].sum()),
        "left": len(kept),
        "kept": "; ".join(map(name_declared, kept.to_dict("records"))),
    }


def list_changes() -> dict[str, Any]:
    """Verdicts about pass@1 at equal tokens that are others after as many steps, and how many pages
    end before the common cost."""
    results = HERE / "equal_cost" / "results"
    table, pages = (pd.read_csv(results / f"{name}.csv") for name in ("comparisons", "pages"))
    told, at_the_end = (table[f"{at}_p_adjusted"] < ALPHA for at in ("own", "end"))
    return {
        "costed": len(table),
        "later": int((pages["cost"] < table["common_cost"].max()).sum()),
        "changed": int((told != at_the_end).sum()),
        "opened": _list_costed(table[told & ~at_the_end]),
        "told_then": _list_costed(table[~told & at_the_end]),
    }


def _list_costed(rows: pd.DataFrame) -> str:
    """Comparisons of `equal_cost` in words."""
    said = [
        f"`{row['arm']}` less `{row['against'].split()[0]}`"
        f"{' greedily' * (row['evaluation'] == 'greedy')} "
        f"({row['page']}{', easy problems' * (row['family'] == 'easy')})"
        for row in rows.to_dict("records")
    ]
    return "; ".join(said)


def render() -> str:
    aims = runpy.run_path(str(HERE / "aims.py"))["render"]()
    claims = "\n".join(rows(load_ledger())) + "\n"
    counted = count_declared()
    tail = TAIL.format(**counted, **list_changes())
    return HEAD.format(**counted) + claims + tail + AIMS + aims


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
