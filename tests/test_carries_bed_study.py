"""What is said of the embedded default is what was sampled and recorded of it."""

import math
import runpy
from functools import cache
from typing import Any

import numpy as np
import pytest

from pages import ROOT

STUDY = ROOT / "experiments" / "carries_bed"


@pytest.fixture(scope="module")
def measure() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "measure.py"))


@pytest.fixture(scope="module")
def tables(measure: dict[str, Any]) -> dict[str, str]:
    return dict(measure["tables"]())


def test_the_tables_are_those_of_the_recorded_counts(tables: dict[str, str]) -> None:
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    for name, table in tables.items():
        between = text.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
        assert between.strip() == table.strip(), name


def test_draws_that_several_runs_have_alike_count_once(measure: dict[str, Any]) -> None:
    recorded = measure["open_runs"](measure["RUNS"])
    names = [measure["NAME"].format(seed) for seed in measure["ALL_SEEDS"]]
    runs = [measure["load_run"](recorded / name) for name in names]
    n, _ = measure["start_counts"](runs, "t1")
    assert set(n) == {44}  # 16 of seeds 101 to 103, and 4 of each of the seven others


def test_closer_rounds_took_the_problems_that_were_open_and_no_others(
    measure: dict[str, Any],
) -> None:
    for round, samples in enumerate(measure["CLOSER"], start=1):
        names, n, right = measure["training_counts"](round - 1)
        chances = measure["chances_below"](n, right)
        open_ones = np.minimum(chances, 1 - chances) > measure["SETTLED"]
        [more] = measure["read"](f"closer-{round}")
        assert sorted(more["problem_id"]) == sorted(names[open_ones])
        assert set(more["n"]) == {samples}
    _, n, _ = measure["training_counts"](3)
    text = " ".join((STUDY / "README.md").read_text(encoding="utf-8").split())
    said = [f"for {(n > 256).sum()} of them", f"the {(n > 768).sum()} still open"]
    assert all(words in text for words in (*said, f"last {(n > 1792).sum()} another 4,096"))
    assert f"({n.sum() / 1e6:.1f} million in all)" in text
    [first] = measure["read"]("training")
    assert f"was {100 * (measure['by_problem'](first, 64) < 0.5).mean():.1f} %" in text
    assert f"below {100 * measure['EDGE']:.2f} %" in text


def test_a_mid_p_value_is_that_of_the_binomial(measure: dict[str, Any]) -> None:
    edge = measure["EDGE"]
    assert (1 - edge) ** 64 == pytest.approx(0.5)
    assert measure["mid_p"](0, 1) == pytest.approx((1 - edge) / 2)
    assert measure["mid_p"](1, 2) == pytest.approx((1 - edge) ** 2 + edge * (1 - edge))
    for right, n in ((0, 256), (3, 256), (70, 5888)):
        exact = sum(
            math.comb(n, j) * edge**j * (1 - edge) ** (n - j) / (1 + (j == right))
            for j in range(right + 1)
        )
        assert measure["mid_p"](right, n) == pytest.approx(exact)


def test_the_number_of_uncertain_events_has_its_own_distribution(measure: dict[str, Any]) -> None:
    found = measure["share_below"](np.array([1.0, 0.0, 0.5, 0.5]))
    assert (found.mean, found.low, found.high) == (0.5, 0.25, 0.75)
    found = measure["share_below"](np.array([1.0, 1.0, 0.0, 0.01]))
    assert (found.low, found.high) == (0.5, 0.5)


def test_the_share_of_hard_problems_is_found_by_sampling_some_more_closely(
    measure: dict[str, Any],
) -> None:
    """Made-up problems whose chances are known: the interval holds the true share in nine of ten
    studies at least, and is not half as wide as without the closer rounds."""
    rng, mid_p = np.random.default_rng(0), cache(measure["mid_p"])
    held, widths = [], {"first": [], "closer": []}
    for _ in range(60):
        chance = np.exp(rng.normal(np.log(0.03), 2.2, 256)).clip(1e-5, 0.99)
        n = np.full(256, measure["OFTEN"])
        right = rng.binomial(n, chance)
        for name, rounds in (("first", ()), ("closer", measure["CLOSER"])):
            for samples in rounds:
                below = 1 - np.array(list(map(mid_p, right.tolist(), n.tolist())))
                unsettled = np.minimum(below, 1 - below) > measure["SETTLED"]
                right[unsettled] += rng.binomial(samples, chance[unsettled])
                n[unsettled] += samples
            below = 1 - np.array(list(map(mid_p, right.tolist(), n.tolist())))
            found = measure["share_below"](below)
            widths[name].append(found.high - found.low)
        held.append(found.low <= (chance < measure["EDGE"]).mean() <= found.high)
    assert sum(held) >= 54
    assert np.mean(widths["closer"]) < np.mean(widths["first"]) / 2
