"""Averages over sets of seeds follow from the raw ledgers by other code, and hold what they say."""

import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.figures.saved import digest_figure, read_digest
from raw_ledgers import (
    ROOT,
    Judged,
    RawRun,
    Reals,
    adjusted,
    at_the_end,
    judge_all,
    quantile,
    read_archive,
    score,
    two_sided_p,
    untrained,
)
from study_scripts import study_modules

STUDY = ROOT / "carries_across_sets"
ROWS = pd.read_csv(STUDY / "results" / "averages.csv").to_dict("records")
VARIANTS = pd.read_csv(STUDY / "results" / "variants.csv").to_dict("records")
BY_SET = pd.read_csv(STUDY / "results" / "sets.csv")
LAST = "carries_four_steps_fresh"
ARCHIVES = {  # where an arm and its control of a set are
    ("carries_four_steps", "dapo"): ["carries_four_steps_more"],
    ("carries_four_steps", "grpo_er"): ["carries_four_steps_more", "carries_four_steps_left_out"],
}
TOKENS = 1_145_860
LAST_DIGIT = 6e-6  # tables have six digits


def runs_of(name: str, arm: str, called: str | None = None) -> dict[int, RawRun]:
    places = ARCHIVES.get((name, arm), [name])
    every = [run for place in places for run in read_archive(ROOT / place / "runs.tar.xz")]
    return {run.seed: run for run in every if run.arm == (called or arm)}


@cache
def easy() -> frozenset[str]:
    runs: dict[str, dict[int, RawRun]] = {}
    for name in BY_SET["set"].unique():
        for run in read_archive(ROOT / name / "runs.tar.xz"):
            if name != "carries_first_policies" and 0 in run.validations["t1"]:
                runs.setdefault(f"{name}/{run.arm}", {})[run.seed] = run
    return frozenset(p for p, (n, right) in untrained(runs).items() if right / n >= 0.5)


def gaps(name: str, arm: str, measure: str) -> Reals:
    """(S, P) of a set: the arm less its control."""
    called = f"{arm}_tuned" if name == LAST and arm in ("budget", "dapo") else arm
    sides = [runs_of(name, arm, called), runs_of(name, arm, "grpo")]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    spent = [runs[seed].costs["tokens"][-1] for runs in sides for seed in seeds]
    tables = []
    for runs in sides:
        found = [
            at_the_end(runs[seed], "t1", 16 if measure == "pass@16" else 1)
            if measure in ("pass@16", "pass@1 at the end")
            else score(runs[seed], "t1", 1, "tokens", min(TOKENS, *spent))
            for seed in seeds
        ]
        kept = [p for p in sorted(found[0]) if "easy" not in measure or p in easy()]
        tables.append(np.array([[each[p] for p in kept] for each in found]))
    difference: Reals = tables[0] - tables[1]
    return difference


@cache
def tables_of(arm: str, measure: str) -> dict[str, Reals]:
    rows = BY_SET[(BY_SET["arm"] == arm) & (BY_SET["measure"] == measure)]
    return {name: gaps(name, arm, measure) for name in rows["set"]}


def luck_of(tables: list[Reals]) -> tuple[float, float]:
    """The variance that the seeds of sets make of one's mean, on average, and how free it is."""
    own = [(float(x.mean(axis=1).var(ddof=1)) / len(x), len(x) - 1) for x in tables]
    whole = math.fsum(value for value, _ in own)
    return whole / len(own), whole**2 / math.fsum(value**2 / df for value, df in own)


def judge_sets(tables: list[Reals]) -> Judged:
    """Sets as units, cell by cell; by the luck of their seeds where that is more than their
    spread."""
    means = [table.mean(axis=0).tolist() for table in tables]
    n, problems = len(means), len(means[0])
    mean = math.fsum(map(math.fsum, means)) / n / problems
    of_set = [math.fsum(row) / problems - mean for row in means]
    of_problem = [math.fsum(column) / n - mean for column in zip(*means, strict=True)]
    rest = math.fsum(
        (cell - mean - a - b) ** 2
        for row, a in zip(means, of_set, strict=True)
        for cell, b in zip(row, of_problem, strict=True)
    )
    between = (math.fsum(x * x for x in of_set) / (n - 1) / n, n - 1.0)
    luck, luck_df = luck_of(tables)
    spread = max(between, (luck / n, min(luck_df, n - 1.0)))
    cells = (n - 1) * (problems - 1)
    noise = (rest / cells / n / problems, cells)
    columns = (math.fsum(x * x for x in of_problem) / (problems - 1) / problems, problems - 1)
    variance = spread[0] + max(columns[0] - noise[0], 0)
    df = variance**2 / math.fsum(value**2 / free for value, free in (spread, columns, noise))
    df = max(df, 1.0)
    half = quantile(df) * math.sqrt(variance)
    of_test = df if n >= 5 else min(df, n - 1)
    p = two_sided_p(mean / math.sqrt(variance), of_test)
    return Judged(mean, p, mean - half, mean + half)


@cache
def average(arm: str, measure: str) -> Judged:
    return judge_sets(list(tables_of(arm, measure).values()))


@pytest.mark.end_to_end
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['arm']} {row['measure']}")
def test_an_average_over_sets_is_that_of_the_ledgers(row: dict[str, Any]) -> None:
    about = row["arm"], row["measure"]
    tables, found = tables_of(*about), average(*about)
    said = (row["difference"], row["difference_low"], row["difference_high"])
    assert np.allclose((found.mean, found.low, found.high), said, atol=LAST_DIGIT)
    assert (row["seeds"], row["seeds_of_sets"]) == (len(tables), sum(map(len, tables.values())))
    for name, table in tables.items():
        of_set = BY_SET.set_index(["arm", "measure", "set"]).loc[(*about, name)]
        own = judge_all(table)
        told = tuple(of_set[f"difference{end}"] for end in ("", "_low", "_high"))
        assert np.allclose((own.mean, own.low, own.high), told, atol=LAST_DIGIT)
    by_set = [float(table.mean()) for table in tables.values()]
    luck, free = luck_of(list(tables.values()))
    spreads = (float(np.std(by_set, ddof=1)), len(by_set) - 1.0), (math.sqrt(luck), free)
    found_sds = spreads[0][0], spreads[1][0]
    assert found_sds == pytest.approx((row["sd_of_sets"], row["sd_by_seeds"]), abs=LAST_DIGIT)
    sd = max(spreads)[0]
    half = quantile(min(max(spreads)[1], len(by_set) - 1)) * sd * math.sqrt(1 + 1 / len(by_set))
    assert row["further_high"] - row["further"] == pytest.approx(half, abs=2 * LAST_DIGIT)


@pytest.mark.end_to_end
@pytest.mark.parametrize("row", VARIANTS, ids=lambda row: " ".join(map(str, row.values()))[:60])
def test_averages_over_some_of_the_sets_are_those_of_the_ledgers(row: dict[str, Any]) -> None:
    tables = [gaps(name, row["arm"], row["measure"]) for name in row["names"].split("&")]
    found = judge_sets(tables) if len(tables) > 1 else judge_all(tables[0])
    said = tuple(row[f"difference{end}"] for end in ("", "_low", "_high"))
    assert np.allclose((found.mean, found.low, found.high), said, atol=LAST_DIGIT)
    assert (row["sets"], row["seeds"]) == (len(tables), sum(map(len, tables)))


@pytest.mark.end_to_end
def test_verdicts_are_corrected_for_all_of_the_page() -> None:
    found = [average(row["arm"], row["measure"]) for row in ROWS]
    p_values = adjusted([each.p for each in found])
    assert np.allclose(p_values, [row["p_adjusted"] for row in ROWS], atol=LAST_DIGIT)
    for row, each, p in zip(ROWS, found, p_values, strict=True):
        side = "better" if each.mean > 0 else "worse"
        assert row["verdict"] == (side if p < 0.05 else "not distinguishable")


def test_every_seed_counts_once_and_every_set_that_the_page_names() -> None:
    with study_modules(STUDY, "compare") as modules:
        study = modules["compare"]
        pairs = {name: study.pair_of(name, "budget") for name in study.SETS}
    seeds = [run.seed for pair in pairs.values() for run in pair.control]
    assert len(seeds) == len(set(seeds))
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    named = [line.split("]")[0][3:] for line in page.splitlines() if line.startswith("| [carries_")]
    assert tuple(named) == tuple(pairs)


@pytest.mark.end_to_end
def test_pages_and_picture_are_made_of_these_numbers() -> None:
    """The tables of the study's page and of the findings, and what the picture shows."""
    with study_modules(STUDY, "compare") as modules:
        study = modules["compare"]
        averages, sets, variants = study.measure_all()
        tables = study.page_tables(averages, variants)
        pages = [(STUDY / "README.md", name, table) for name, table in tables.items()]
        pages.append((study.FINDINGS, "averages", study.summary_table(averages)))
        drawn = digest_figure(study.draw(averages, sets))
    for page, name, table in pages:
        text = page.read_text(encoding="utf-8")
        between = text.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
        assert between.strip() == table.strip(), (page.name, name)
    assert read_digest(STUDY / "figures" / "sets.png") == drawn
