"""Effects over all seeds, and whether the sets agree, follow from the raw ledgers by other code."""

import itertools
import math
import runpy

import numpy as np
import pandas as pd
import pytest

from raw_ledgers import ROOT, RawRun, Reals, at_the_end, judge, read_archive, score

pytestmark = pytest.mark.end_to_end
STUDY = ROOT / "carries_all_seeds"
EFFECTS = list(pd.read_csv(STUDY / "results" / "sets.csv").groupby(["arm", "less", "measure"]))
SETS = {  # studies in whose archives the seeds of a set are
    "carries_weights": ("carries_weights", "carries_core"),
    "carries_core": ("carries_core",),
    "carries_tuned": ("carries_tuned",),
    "carries_first_policies": ("carries_first_policies",),
    "carries_budget": ("carries_budget",),
    "carries_factorial": ("carries_factorial",),
    "carries_confirmation": ("carries_confirmation",),
}
TOKENS = 1_145_860


def runs_of(name: str, arm: str) -> dict[int, RawRun]:
    every = (run for of in SETS[name] for run in read_archive(ROOT / of / "runs.tar.xz"))
    return {run.seed: run for run in every if run.arm == arm}


def differences(name: str, arms: str, less: str, measure: str) -> dict[int, Reals]:
    """By seed; problems in order."""
    k = int(measure.removeprefix("pass@"))

    def side(names: str) -> dict[int, Reals]:
        tables = []
        for arm in names.split("&"):
            runs = runs_of(name, arm)
            found = {
                seed: at_the_end(run, "t1", k) if k == 16 else score(run, "t1", k, "tokens", TOKENS)
                for seed, run in runs.items()
            }
            tables.append({s: np.array([x[p] for p in sorted(x)]) for s, x in found.items()})
        return {seed: np.mean([table[seed] for table in tables], axis=0) for seed in tables[0]}

    first, second = side(arms), side(less)
    return {seed: first[seed] - second[seed] for seed in sorted(first)}


@pytest.mark.parametrize(("about", "rows"), EFFECTS, ids=lambda x: " ".join(x) * (type(x) is tuple))
def test_an_effect_of_each_set_and_of_all_is_that_of_the_ledgers(
    about: tuple[str, str, str], rows: pd.DataFrame
) -> None:
    parts = {name: differences(name, *about) for name in rows["set"] if not name.startswith("all")}
    for row in rows.to_dict("records"):
        left_out = row["set"].removeprefix("all but ")
        names = [row["set"]] if row["set"] in parts else [x for x in parts if x != left_out]
        table = [gaps for name in names for gaps in parts[name].values()]
        found = judge(np.array(table))
        said = (row["difference"], row["difference_low"], row["difference_high"])
        assert np.allclose((found.mean, found.low, found.high), said, atol=6e-6)
        assert row["seeds"] == len(table)
    by_set = [np.array([gaps.mean() for gaps in part.values()]) for part in parts.values()]
    assert shuffled_p(by_set) == pytest.approx(rows["p_of_agreement"].dropna().item(), abs=0.02)


def shuffled_p(groups: list[Reals]) -> float:
    """Of squares between groups, which are all but a constant those of their sums."""
    every, rng = np.concatenate(groups), np.random.default_rng(7)
    edges = [0, *itertools.accumulate(map(len, groups))]

    def between(values: Reals) -> float:
        parts = [values[a:b] for a, b in itertools.pairwise(edges)]
        return math.fsum(part.sum() ** 2 / len(part) for part in parts)

    drawn = [between(rng.permuted(every)) for _ in range(4000)]
    return float(np.mean(np.array(drawn) >= between(every) - 1e-15))


def test_sets_that_cannot_be_told_apart_agree_and_others_do_not() -> None:
    p = runpy.run_path(str(STUDY / "sets.py"))["p_of_agreement"]
    assert p([np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])]) == 1.0
    # Of the 20 divisions into threes, two set 0, 0, 0 against 1, 1, 1.
    assert p([np.zeros(3), np.ones(3)]) == pytest.approx(2 / 20, abs=0.01)


def test_no_seed_is_in_two_sets() -> None:
    sets = runpy.run_path(str(STUDY / "sets.py"))["SETS"]
    seeds = [seed for part in sets.values() for seed in part]
    assert len(seeds) == len(set(seeds)) == 47


def test_the_spread_between_runs_of_grpo_is_that_of_the_ledgers() -> None:
    for row in pd.read_csv(STUDY / "results" / "spread.csv").to_dict("records"):
        runs = runs_of(row["set"], "grpo")
        ends = [np.mean(list(at_the_end(run, "t1", 1).values())) for run in runs.values()]
        assert (len(ends), min(ends), max(ends)) == pytest.approx(
            (row["seeds"], row["least"], row["greatest"]), abs=6e-6
        )
        assert np.mean(ends) == pytest.approx(row["mean"], abs=6e-6)
        # The noise of 16 and more samples of 1,024 problems is small beside what seeds make.
        assert np.std(ends, ddof=1) == pytest.approx(row["sd"], abs=0.004)


def test_first_policies_spread_runs_as_fisher_says() -> None:
    """Variances 9 and, within two sets, (2 + 2) / (2 + 2): F = 9, a ratio of 3. With 2 and 4
    degrees of freedom F is below f with a chance of 1 - (1 + f/2)^-2, so that its quantiles are
    2 ((1 - q)^-.5 - 1): 10.649 at .975 and .025479 at .025."""
    found = runpy.run_path(str(STUDY / "sets.py"))["ratio_of_spreads"](
        np.array([0.0, 3.0, 6.0]), [np.array([0.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0])]
    )
    assert found["ratio"] == pytest.approx(3)
    assert found["ratio_low"] == pytest.approx((9 / 10.649) ** 0.5, rel=1e-4)
    assert found["ratio_high"] == pytest.approx((9 / 0.025479) ** 0.5, rel=1e-4)
    assert found["p"] == pytest.approx(2 * 5.5**-2)


def test_the_ratio_of_spreads_is_that_of_the_ledgers() -> None:
    table = pd.read_csv(STUDY / "results" / "spread.csv").set_index("set")
    squares = {}
    for name in table.index:
        ends = [
            np.mean(list(at_the_end(r, "t1", 1).values())) for r in runs_of(name, "grpo").values()
        ]
        squares[name] = (float(np.sum((ends - np.mean(ends)) ** 2)), len(ends) - 1)
    own, df = squares.pop("carries_first_policies")
    rest = sum(x for x, _ in squares.values()) / sum(n for _, n in squares.values())
    [(name, ratio)] = table["ratio"].dropna().items()
    assert name == "carries_first_policies"
    assert ratio == pytest.approx((own / df / rest) ** 0.5, rel=1e-5)
