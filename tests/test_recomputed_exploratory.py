"""What studies print without having declared it follows from the raw ledgers too, by code of its
own: differences of pass@k, on easy and hard problems as well, of metrics of training, and ratios of
costs, with the correction for all of a study."""

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from raw_curves import POINTS, cost_ratio, curve
from raw_ledgers import (
    ROOT,
    Judged,
    RawRun,
    Reals,
    Runs,
    adjusted,
    at_entropy,
    at_the_end,
    judge,
    judge_units,
    mean_score,
    quantile,
    read_archive,
    score,
    solved_untrained,
    two_sided_p,
    untrained,
)

pytestmark = pytest.mark.end_to_end
Row = dict[str, Any]
LAST_DIGIT = 6e-6  # tables have six digits


@cache
def asked_of(study: str) -> Any:
    return yaml.safe_load((ROOT / study / "study.yaml").read_text())


def tables_of(study: str) -> dict[str, list[Row]]:
    """Rows that are compared with something, by table; a script's own table has its own test."""
    found, asked = {}, asked_of(study)["tables"]
    for path in sorted((ROOT / study / "results").glob("*.csv")):
        table = pd.read_csv(path)
        if "comparison" in table and path.stem in asked:
            found[path.stem] = table[table["comparison"].notna()].to_dict("records")
    return found


def exploratory(study: str) -> list[tuple[str, Row]]:
    rows = [(name, row) for name, part in tables_of(study).items() for row in part]
    return [(name, row) for name, row in rows if row["family"] == "exploratory"]


STUDIES = sorted(f.parent.name for f in ROOT.glob("*/study.yaml") if exploratory(f.parent.name))


@cache
def runs_of(study: str, table: str = "") -> Runs:
    """Of a study, and what one of its tables adds."""
    asked = asked_of(study)
    folders = [asked["runs"]] if isinstance(asked["runs"], str) else asked["runs"]
    runs: Runs = {}
    own = len(folders)
    for place, folder in enumerate([*folders, *asked["tables"].get(table, {}).get("also", ())]):
        for run in read_archive((ROOT / study / f"{folder}.tar.xz").resolve()):
            arms, seeds = asked.get("arms", [run.arm]), asked.get("seeds", [run.seed])
            compared = str(asked["tables"].get(table, {}).get("comparisons", ()))
            if (run.arm in arms or f"'{run.arm}'" in compared) and (
                run.seed in seeds or place >= own  # what a table adds is of any seed
            ):
                runs.setdefault(run.arm, {})[run.seed] = run
    return runs


def problems_of(study: str, table: str) -> set[str] | None:
    bounds = asked_of(study)["tables"][table].get("untrained")
    if bounds is None:
        return None
    return solved_untrained(runs_of(study), *bounds)


def differences(study: str, table: str, row: Row) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(S, P) of pass@k, or (S,) of a metric, arm less control, seeds and problems in one order."""
    runs, asked = runs_of(study, table), asked_of(study)["tables"][table]
    if "metric" in row:
        mine, other = runs[row["arm"]], runs[asked_of(study)["control"]]
        first, last = asked["windows"][row["window"]]
        return np.array([window(mine[s], other[s], row["metric"], first, last) for s in mine])
    if isinstance(row.get("neither"), str):
        return interaction(runs, row)
    control, against = row["against"].split()
    kept, k = problems_of(study, table), int(row["measure"].rpartition("@")[2])
    budget = min(
        run.costs[row["axis"]][-1]
        for seeds in runs.values()
        for seed, run in seeds.items()
        if seed in asked.get("seeds", [seed])
    )
    if math.isfinite(given := float(asked.get("cost", math.inf))):
        assert given <= budget  # what a table names is what all its runs reach
        budget = given
    ends = math.isinf(row["cost"])
    sides = [row["arm"].split("&"), control.split("&")]
    if max(map(len, sides)) > 1:
        return between_means(runs, sides, row, budget, k)
    assert ends or budget == pytest.approx(row["cost"], rel=1e-5)
    found = []
    both = runs[row["arm"]].keys() & runs[control].keys()
    for seed in sorted(both & set(asked.get("seeds", both))):
        pair = runs[row["arm"]][seed], runs[control][seed]
        if against == "matched":
            own = pair[0].entropies[row["evaluation"]]
            sides = [at_the_end(pair[0], row["evaluation"], k)]
            sides.append(at_entropy(pair[1], own[max(own)], k))
        elif ends:
            sides = [at_the_end(run, row["evaluation"], k) for run in pair]
        else:
            how = mean_score if row["measure"].startswith("mean") else score
            sides = [how(run, row["evaluation"], k, row["axis"], budget) for run in pair]
        found.append([sides[0][x] - sides[1][x] for x in sides[0] if kept is None or x in kept])
    return np.array(found)


def between_means(
    runs: Runs, sides: list[list[str]], row: Row, budget: float, k: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(S, P) of the mean of several arms less that of others."""
    found = []
    for seed in sorted(set.intersection(*(set(runs[arm]) for side in sides for arm in side))):
        means = []
        for side in sides:
            own = [score(runs[x][seed], row["evaluation"], k, row["axis"], budget) for x in side]
            means.append({x: math.fsum(each[x] for each in own) / len(own) for x in own[0]})
        found.append([means[0][x] - means[1][x] for x in means[0]])
    return np.array(found)


def interaction(runs: Runs, row: Row) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(S, P) of what both changes do less what each does, all against the arm with neither."""
    together, parts = together_and_parts(runs, row)
    return together - parts


def together_and_parts(runs: Runs, row: Row) -> tuple[Reals, Reals]:
    """(S, P) of what both changes do, and of what each does in sum."""
    k = int(row["measure"].rpartition("@")[2])
    every = [run for seeds in runs.values() for run in seeds.values()]
    budget = min(run.costs[row["axis"]][-1] for run in every)
    if math.isinf(row["cost"]):  # after the last step, whatever it had cost
        budget = math.inf
    four = [runs[row[cell]] for cell in ("arm", "first", "second", "neither")]
    found: tuple[list[list[float]], list[list[float]]] = [], []
    for seed in sorted(four[0]):
        both, first, second, neither = (
            score(arm[seed], row["evaluation"], k, row["axis"], budget) for arm in four
        )
        found[0].append([both[x] - neither[x] for x in both])
        found[1].append([first[x] - neither[x] + second[x] - neither[x] for x in both])
    return np.array(found[0]), np.array(found[1])


def window(mine: RawRun, other: RawRun, column: str, first: int, last: int) -> float:
    """Difference of the means over steps; negative ones count from the end, 0 as `last` is it."""
    return mean_of_steps(mine, column, first, last) - mean_of_steps(other, column, first, last)


def mean_of_steps(run: RawRun, column: str, first: int, last: int) -> float:
    values = run.metrics[column]
    end = max(values) + 1
    start, stop = (step + end if step < 0 else step for step in (first, last))
    steps = range(start, end if last == 0 else stop)
    return math.fsum(values[step] for step in steps) / len(steps)


@cache
def curves_of(study: str, axis: str) -> tuple[Reals, dict[str, Reals]]:
    """Costs up to that which all runs reached, and pass@1 at them by arm."""
    runs = runs_of(study)
    last = min(run.costs[axis][-1] for seeds in runs.values() for run in seeds.values())
    points = np.linspace(0.0, last, POINTS)
    return points, {
        arm: np.array([curve(seeds[seed], axis, points) for seed in sorted(seeds)])
        for arm, seeds in runs.items()
    }


def is_ratio(row: Row) -> bool:
    return "ratio" in row


def ratio(study: str, row: Row) -> Judged:
    return deviations(study, row) if "deviation" in row else ratio_of_costs(study, row)


def deviations(study: str, row: Row) -> Judged:
    """The ratio of standard deviations of runs of the same seeds. A ratio x is where sum and
    difference of one score and x times the other do not correlate, and its interval holds all x
    at which a t test of that correlation finds nothing."""
    k = int(row["of"].rpartition("@")[2])
    mine, other = (runs_of(study)[row[side]] for side in ("arm", "against"))
    seeds = sorted(mine.keys() & other.keys())
    assert len(seeds) == row["paired_seeds"]
    one, two = (
        np.array([np.mean([*at_the_end(arm[s], row["evaluation"], k).values()]) for s in seeds])
        for arm in (mine, other)
    )

    def t_of(x: float) -> float:
        r = float(np.corrcoef(one + x * two, one - x * two)[0, 1])
        return r * math.sqrt((len(seeds) - 2) / (1 - r * r))

    def where(t: float) -> float:
        low, high = -12.0, 12.0  # logarithms; t falls as x grows
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if t_of(math.exp(middle)) > t else (low, middle)
        return math.exp(low)

    bound = quantile(len(seeds) - 2)
    return Judged(where(0.0), two_sided_p(t_of(1.0), len(seeds) - 2), where(bound), where(-bound))


def ratio_of_costs(study: str, row: Row) -> Judged:
    points, curves = curves_of(study, row["axis"])
    control = asked_of(study)["control"]
    assert runs_of(study)[row["arm"]].keys() == runs_of(study)[control].keys()  # pairs
    found = cost_ratio(curves[row["arm"]], curves[control], points, row["target"])
    assert found is not None
    return found


def recomputed(study: str) -> Iterator[tuple[Row, Judged]]:
    for table, row in exploratory(study):
        if is_ratio(row):
            yield row, ratio(study, row)
            continue
        given = differences(study, table, row)
        yield row, judge(given) if given.ndim == 2 else judge_units(given)


@pytest.mark.parametrize("study", STUDIES)
def test_exploratory_differences_follow_from_the_raw_ledgers(study: str) -> None:
    every = list(recomputed(study))
    p_values: dict[str, float] = {}
    for row, found in every:
        p_values[row["comparison"]] = found.p
    corrected = dict(zip(p_values, adjusted(list(p_values.values())), strict=True))
    for row, found in every:
        p = corrected[row["comparison"]]
        assert p == pytest.approx(row["p_adjusted"], rel=2e-3, abs=2e-6), row["comparison"]
        name = "ratio" if is_ratio(row) else "difference"
        close = {"rel": 1e-5, "abs": LAST_DIGIT * max(1.0, min(abs(found.mean), 1e6))}
        assert found.mean == pytest.approx(row[name], **close), row["comparison"]
        assert found.low == pytest.approx(row[f"{name}_low"], **close), row["comparison"]
        assert found.high == pytest.approx(row[f"{name}_high"], **close), row["comparison"]
        assert found.p == pytest.approx(row["p"], rel=2e-3, abs=2e-6), row["comparison"]
        if isinstance(row.get("verdict"), str):
            word = "better" if found.mean > 0 else "worse"
            assert row["verdict"] == (word if p < 0.05 else "not distinguishable")


def test_what_changes_do_together_and_in_sum_follows_too() -> None:
    seen = 0
    for study in STUDIES:
        for _, row in exploratory(study):
            if isinstance(row.get("neither"), str):
                found = together_and_parts(runs_of(study), row)
                for name, judged in zip(("together", "parts"), map(judge, found), strict=True):
                    said = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
                    assert [judged.mean, judged.low, judged.high] == pytest.approx(said, rel=1e-5)
                    seen += 1
    assert seen >= 12


def test_subsets_name_the_rollouts_that_they_rest_on() -> None:
    seen = 0
    for study in STUDIES:
        for table, row in exploratory(study):
            if isinstance(row.get("subset"), str):
                fewest = min(n for n, _ in untrained(runs_of(study)).values())
                assert re.search(rf" {fewest} rollouts$", row["subset"])
                assert row["problems"] == len(problems_of(study, table) or ())
                seen += 1
    assert seen > 20


def test_ratios_of_costs_are_among_what_is_recomputed() -> None:
    """Some of them with no other end, since it is not known that the arm gets there."""
    every = [row for study in STUDIES for _, row in exploratory(study) if is_ratio(row)]
    found = [row for row in every if "deviation" not in row]
    assert len(every) - len(found) == 18
    assert len(found) >= 60
    assert any(math.isinf(row["ratio_high"]) for row in found)
