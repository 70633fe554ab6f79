"""The verdicts of declared families follow from the raw ledgers, by code of their own
(`raw_ledgers.py`)."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from raw_curves import POINTS, cost_ratio, curve
from raw_ledgers import (
    ROOT,
    Runs,
    adjusted,
    at_entropy,
    at_the_end,
    judge,
    read_archive,
    score,
    solved_untrained,
)

STUDIES = sorted(f.parent.name for f in ROOT.glob("*/study.declared.yaml"))
JUDGED = [name for name in STUDIES if (ROOT / name / "study.yaml").is_file()]
pytestmark = pytest.mark.end_to_end


def runs_of(name: str, asked: dict[str, Any]) -> Runs:
    """Those that a study asks for, by arm and seed."""
    folders = [asked["runs"]] if isinstance(asked["runs"], str) else asked["runs"]
    runs: Runs = {}
    for folder in folders:
        for run in read_archive((ROOT / name / f"{folder}.tar.xz").resolve()):
            if run.arm in asked["arms"] and run.seed in asked.get("seeds", [run.seed]):
                runs.setdefault(run.arm, {})[run.seed] = run
    return runs


def families(
    name: str, cost: float | None = None, wanted: str = ""
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Comparisons of every declared family of pass@k at a cost, or at that of the page's cheapest
    run; of those alone that have the wanted measure throughout."""
    asked = yaml.safe_load((ROOT / name / "study.yaml").read_text())
    runs = runs_of(name, asked)
    for family, node in asked["families"].items():
        measures = {end.get("measure") for end in node["endpoints"]}
        if None in measures or (wanted and measures != {wanted}):
            continue
        kept = solved_untrained(runs, *node["untrained"]) if "untrained" in node else None
        rows, axis = [], node.get("axis", "tokens")
        reached = min(run.costs[axis][-1] for seeds in runs.values() for run in seeds.values())
        budget = reached if cost is None else cost
        for end in node["endpoints"]:
            k = int(end["measure"].rpartition("@")[2])
            for arm, control in node["comparisons"]:
                sides = [[side] if isinstance(side, str) else side for side in (arm, control)]
                both = sorted(set.intersection(*(set(runs[x]) for side in sides for x in side)))
                table = []
                for seed in both:
                    if max(map(len, sides)) > 1:  # the mean of several arms
                        own = [
                            [score(runs[x][seed], end["evaluation"], k, axis, budget) for x in side]
                            for side in sides
                        ]
                        pair = [
                            {x: math.fsum(each[x] for each in side) / len(side) for x in side[0]}
                            for side in own
                        ]
                        these = [x for x in pair[0] if kept is None or x in kept]
                        table.append([pair[0][x] - pair[1][x] for x in these])
                        continue
                    mine, other = runs[arm][seed], runs[control][seed]
                    if node.get("at_equal_entropy"):
                        own = mine.entropies[end["evaluation"]]
                        matched = at_entropy(other, own[max(own)], k)
                        pair = [at_the_end(mine, end["evaluation"], k), matched]
                    else:
                        pair = [score(x, end["evaluation"], k, axis, budget) for x in (mine, other)]
                    mine_there = [x for x in pair[0] if kept is None or x in kept]
                    table.append([pair[0][x] - pair[1][x] for x in mine_there])
                found = judge(np.array(table))._asdict()
                names = dict(
                    zip(("arm", "against"), ("&".join(side) for side in sides), strict=True)
                )
                row = {**names, "evaluation": end["evaluation"], "k": k}
                rows.append({**row, **found, "cost": budget})
        for row, p in zip(rows, adjusted([row["p"] for row in rows]), strict=True):
            row["p_adjusted"] = min(1.0, p * node.get("looks", 1))
        yield family, rows


@pytest.mark.parametrize("name", JUDGED)
def test_declared_differences_and_verdicts_follow_from_the_raw_ledgers(name: str) -> None:
    seen = 0
    for family, rows in families(name):
        table = pd.read_csv(ROOT / name / "results" / f"{family}.csv")
        for row in rows:
            alike = (table["arm"] == row["arm"]) & (table["measure"] == f"pass@{row['k']}")
            control = table["against"].str.split().str[0]
            (said,) = table[alike & (control == row["against"])].to_dict("records")
            assert row["mean"] == pytest.approx(said["difference"], abs=2e-6)
            assert row["low"] == pytest.approx(said["difference_low"], abs=5e-6)
            assert row["high"] == pytest.approx(said["difference_high"], abs=5e-6)
            assert row["p_adjusted"] == pytest.approx(said["p_adjusted"], rel=1e-3, abs=1e-6)
            word = "better" if row["mean"] > 0 else "worse"
            found = word if row["p_adjusted"] < 0.05 else "not distinguishable"
            assert found == said["verdict"]
            seen += 1
    assert seen


def ratios(name: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Comparisons of every declared family of accuracies to reach."""
    asked = yaml.safe_load((ROOT / name / "study.yaml").read_text())
    runs = runs_of(name, asked)
    for family, node in asked["families"].items():
        rows, axis = [], node.get("axis", "tokens")
        last = min(run.costs[axis][-1] for seeds in runs.values() for run in seeds.values())
        points = np.linspace(0.0, last, POINTS)
        for end in (end for end in node["endpoints"] if "reach" in end):
            assert end["evaluation"] == "t1"
            for pair in node["comparisons"]:
                curves = [
                    np.array([curve(runs[x][seed], axis, points) for seed in sorted(runs[x])])
                    for x in pair
                ]
                assert runs[pair[0]].keys() == runs[pair[1]].keys()
                found = cost_ratio(*curves, points, end["reach"])
                assert found is not None
                rows.append({"arm": pair[0], "target": end["reach"]} | found._asdict())
        for row, p in zip(rows, adjusted([row["p"] for row in rows]), strict=True):
            row["p_adjusted"] = min(1.0, p * node.get("looks", 1))
        if rows:
            yield family, rows


def test_declared_ratios_of_costs_follow_from_the_raw_ledgers() -> None:
    seen = 0
    for name in JUDGED:
        for family, rows in ratios(name):
            table = pd.read_csv(ROOT / name / "results" / f"{family}.csv")
            for row in rows:
                alike = (table["arm"] == row["arm"]) & (table["target"] == row["target"])
                (said,) = table[alike].to_dict("records")
                assert said["family"] == family
                for mine, column in (("mean", ""), ("low", "_low"), ("high", "_high")):
                    assert row[mine] == pytest.approx(said[f"ratio{column}"], rel=2e-5)
                assert row["p_adjusted"] == pytest.approx(said["p_adjusted"], rel=2e-3, abs=1e-6)
                seen += 1
    assert seen


@pytest.mark.parametrize("cost", ["own", "common", "end"])
def test_verdicts_at_other_costs_follow_from_the_raw_ledgers_too(cost: str) -> None:
    every = pd.read_csv(ROOT / "equal_cost" / "results" / "comparisons.csv")
    common = every["common_cost"].max()
    assert (every["common_cost"] == every["own_cost"].clip(upper=common)).all()
    seen = 0
    for page, said in every.groupby("page"):
        asked_cost = {"own": None, "common": said["common_cost"].iloc[0], "end": math.inf}[cost]
        found = dict(families(str(page), asked_cost, "pass@1"))
        for row in said.to_dict("records"):
            control, evaluation = row["against"].split()[0], row["evaluation"]
            asked = {"arm": row["arm"], "against": control, "evaluation": evaluation, "k": 1}
            (own,) = [x for x in found[row["family"]] if {key: x[key] for key in asked} == asked]
            assert own["mean"] == pytest.approx(row[f"{cost}_difference"], abs=2e-6)
            assert own["p_adjusted"] == pytest.approx(row[f"{cost}_p_adjusted"], rel=2e-3, abs=1e-6)
            assert (row[f"{cost}_verdict"] == "not distinguishable") == (own["p_adjusted"] >= 0.05)
            seen += 1
    assert seen == len(every)
