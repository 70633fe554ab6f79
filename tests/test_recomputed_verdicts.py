"""The verdicts of declared families follow from the raw ledgers, by code of their own
(`raw_ledgers.py`)."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from raw_ledgers import ROOT, RawRun, adjusted, at_entropy, at_the_end, judge, read_archive, score

STUDIES = sorted(f.parent.name for f in ROOT.glob("*/study.declared.yaml"))
JUDGED = [name for name in STUDIES if (ROOT / name / "study.yaml").is_file()]
pytestmark = pytest.mark.end_to_end


def runs_of(name: str, asked: dict[str, Any]) -> dict[str, dict[int, RawRun]]:
    """Those that a study asks for, by arm and seed."""
    folders = [asked["runs"]] if isinstance(asked["runs"], str) else asked["runs"]
    runs: dict[str, dict[int, RawRun]] = {}
    for folder in folders:
        for run in read_archive((ROOT / name / f"{folder}.tar.xz").resolve()):
            if run.arm in asked["arms"] and run.seed in asked.get("seeds", [run.seed]):
                runs.setdefault(run.arm, {})[run.seed] = run
    return runs


def families(
    name: str, cost: float | None = None, wanted: str = ""
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Comparisons of every declared family at a cost, or at that of the page's cheapest run; of
    those alone that have the wanted measure throughout."""
    asked = yaml.safe_load((ROOT / name / "study.yaml").read_text())
    runs = runs_of(name, asked)
    for family, node in asked["families"].items():
        if wanted and {end["measure"] for end in node["endpoints"]} != {wanted}:
            continue
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
                        table.append([pair[0][x] - pair[1][x] for x in pair[0]])
                        continue
                    mine, other = runs[arm][seed], runs[control][seed]
                    if node.get("at_equal_entropy"):
                        own = mine.entropies[end["evaluation"]]
                        matched = at_entropy(other, own[max(own)], k)
                        pair = [at_the_end(mine, end["evaluation"], k), matched]
                    else:
                        pair = [score(x, end["evaluation"], k, axis, budget) for x in (mine, other)]
                    table.append([pair[0][problem] - pair[1][problem] for problem in pair[0]])
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
            control = table["against"].str.split().str[0]
            (said,) = table[(table["arm"] == row["arm"]) & (control == row["against"])].to_dict(
                "records"
            )
            assert row["mean"] == pytest.approx(said["difference"], abs=2e-6)
            assert row["low"] == pytest.approx(said["difference_low"], abs=5e-6)
            assert row["high"] == pytest.approx(said["difference_high"], abs=5e-6)
            assert row["p_adjusted"] == pytest.approx(said["p_adjusted"], rel=1e-3, abs=1e-6)
            word = "better" if row["mean"] > 0 else "worse"
            found = word if row["p_adjusted"] < 0.05 else "not distinguishable"
            assert found == said["verdict"]
            seen += 1
    assert seen


@pytest.mark.parametrize("cost", ["own", "common", "end"])
def test_verdicts_at_other_costs_follow_from_the_raw_ledgers_too(cost: str) -> None:
    every = pd.read_csv(ROOT / "equal_cost" / "results" / "comparisons.csv")
    common = every["common_cost"].iloc[0]
    assert common == every["own_cost"].min()
    seen = 0
    for page, said in every.groupby("page"):
        asked_cost = {"own": None, "common": common, "end": math.inf}[cost]
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
