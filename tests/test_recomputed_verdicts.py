"""The verdicts of declared families follow from the raw ledgers, by code of their own.

Nothing of e3rl is imported: ledgers come out of their archives as JSON, pass@k is a product, the
two-way layout is a sum over cells, Student's t is integrated, and Holm's steps are counted.
"""

import json
import math
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[1] / "experiments"
STUDIES = sorted(f.parent.name for f in ROOT.glob("*/study.declared.yaml"))
JUDGED = [name for name in STUDIES if (ROOT / name / "study.yaml").is_file()]
Reals = np.ndarray[Any, np.dtype[np.float64]]
pytestmark = pytest.mark.end_to_end


class RawRun(NamedTuple):
    arm: str
    seed: int
    costs: dict[str, list[float]]  # tokens and rollouts up to and with each step
    validations: dict[str, dict[int, dict[str, tuple[int, int]]]]  # (n, right) by problem
    entropies: dict[str, dict[int, float]]  # nats per token, of the same


@cache
def read_archive(archive: Path) -> tuple[RawRun, ...]:
    parts: dict[str, dict[str, str]] = {}
    with tarfile.open(archive) as packed:
        for member in packed:
            folder, _, name = member.name.rpartition("/")
            opened = packed.extractfile(member)
            if opened and name in ("config.yaml", "metrics.jsonl", "validation.jsonl"):
                parts.setdefault(folder, {})[name] = opened.read().decode()
    return tuple(raw_run(files) for files in parts.values())


def raw_run(files: dict[str, str]) -> RawRun:
    config = yaml.load(files["config.yaml"], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    metrics = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    steps = [row for row in metrics if row["kind"] == "train"]
    costs = {axis: [float(row[f"cost/{axis}"]) for row in steps] for axis in ("tokens", "rollouts")}
    validations: dict[str, dict[int, dict[str, tuple[int, int]]]] = {}
    entropies: dict[str, dict[int, float]] = {}
    for line in files["validation.jsonl"].splitlines():
        row = json.loads(line)
        counts = zip(row["n"], row["correct"], strict=True)
        at = validations.setdefault(row["name"], {})
        at[row["rollout_step"]] = dict(zip(row["problem_id"], counts, strict=True))
        nats = row["entropy_sum"] / row["tokens"]
        entropies.setdefault(row["name"], {})[row["rollout_step"]] = nats
    return RawRun(config["name"], config["seed"], costs, validations, entropies)


def pass_at(k: int, n: int, right: int) -> float:
    """1 - C(n-c, k)/C(n, k), factor by factor."""
    missed = 1.0
    for place in range(k):
        missed *= max(0, n - right - place) / (n - place)
    return 1 - missed


def score(run: RawRun, evaluation: str, k: int, axis: str, budget: float) -> dict[str, float]:
    """pass@k by problem at a budget, or of the last step where only that has k rollouts."""
    found = run.validations[evaluation]
    steps = sorted(found)
    if min(n for step in steps for n, _ in found[step].values()) < k:
        return {problem: pass_at(k, *cell) for problem, cell in found[steps[-1]].items()}
    costs = [run.costs[axis][step - 1] if step else 0.0 for step in steps]
    place = next(i for i in range(1, len(costs)) if budget <= costs[i] or i == len(costs) - 1)
    share = min(1.0, (budget - costs[place - 1]) / (costs[place] - costs[place - 1]))
    before, after = (found[steps[i]] for i in (place - 1, place))
    return {
        problem: (1 - share) * pass_at(k, *before[problem]) + share * pass_at(k, *after[problem])
        for problem in before
    }


def at_the_end(run: RawRun, evaluation: str, k: int) -> dict[str, float]:
    """pass@k by problem of the last validation."""
    found = run.validations[evaluation]
    return {problem: pass_at(k, *cell) for problem, cell in found[max(found)].items()}


def at_entropy(run: RawRun, nats: float, k: int) -> dict[str, float]:
    """pass@k by problem of the last policy, on the line in the logarithm of its entropy between the
    two evaluations of 32 rollouts or more that are next to `nats`, one on each side."""
    last = max(step for steps in run.validations.values() for step in steps)
    known = {
        name: math.log(run.entropies[name][last] / nats)
        for name, steps in run.validations.items()
        if last in steps and run.entropies[name][last] > 0
        if min(n for n, _ in steps[last].values()) >= 32
    }
    low = max((name for name in known if known[name] <= 0), key=known.__getitem__)
    high = min((name for name in known if known[name] >= 0), key=known.__getitem__)
    width = known[high] - known[low]
    assert width < math.log(1.1)
    share = -known[low] / width if width else 0.0
    ends = at_the_end(run, low, k), at_the_end(run, high, k)
    return {place: (1 - share) * ends[0][place] + share * ends[1][place] for place in ends[0]}


def two_sided_p(t: float, df: float) -> float:
    """Of Student's t, by Simpson's rule on the density."""
    edges = np.linspace(0.0, abs(t), 20_001)
    front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    density = np.exp(front - (df + 1) / 2 * np.log1p(edges**2 / df))
    weights = np.full(len(edges), 2.0)
    weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0
    return 1 - 2 * float(weights @ density) * abs(t) / 20_000 / 3


def judge(differences: Reals) -> tuple[float, float, float]:
    """Mean, p, and half the width of the 95 % interval, of (S, P) paired differences."""
    n_seeds, n_problems = differences.shape
    mean = float(differences.sum()) / differences.size
    seeds = [float(row.sum()) / n_problems - mean for row in differences]
    problems = [float(column.sum()) / n_seeds - mean for column in differences.T]
    rest = sum(
        (float(differences[s, p]) - mean - seeds[s] - problems[p]) ** 2
        for s in range(n_seeds)
        for p in range(n_problems)
    )
    dfs = (n_seeds - 1, n_problems - 1, (n_seeds - 1) * (n_problems - 1))
    squares = (
        n_problems * math.fsum(x * x for x in seeds) / dfs[0],
        n_seeds * math.fsum(x * x for x in problems) / dfs[1],
        rest / dfs[2],
    )
    variance = squares[0] + max(squares[1] - squares[2], 0)
    df = variance**2 / sum(square**2 / each for square, each in zip(squares, dfs, strict=True))
    error = math.sqrt(variance / differences.size)
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, df) > 0.05 else (low, middle)
    of_test = df if n_seeds >= 5 else min(df, n_seeds - 1)  # few seeds: by their number alone
    return mean, two_sided_p(mean / error, of_test), high * error


def adjusted(p_values: list[float]) -> list[float]:
    """Holm's: the i-th smallest times what is left, never below the one before it."""
    found, floor = [0.0] * len(p_values), 0.0
    for left, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, p_values[place] * (len(p_values) - left)))
        found[place] = floor
    return found


def families(name: str, cost: float | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Comparisons of every declared family at a cost, or at that of the page's cheapest run."""
    asked = yaml.safe_load((ROOT / name / "study.yaml").read_text())
    folders = [asked["runs"]] if isinstance(asked["runs"], str) else asked["runs"]
    runs: dict[str, dict[int, RawRun]] = {}
    for folder in folders:
        for run in read_archive((ROOT / name / f"{folder}.tar.xz").resolve()):
            if run.arm in asked["arms"] and run.seed in asked.get("seeds", [run.seed]):
                runs.setdefault(run.arm, {})[run.seed] = run
    for family, node in asked["families"].items():
        rows, axis = [], node.get("axis", "tokens")
        reached = min(run.costs[axis][-1] for seeds in runs.values() for run in seeds.values())
        budget = reached if cost is None else cost
        for end in node["endpoints"]:
            k = int(end["measure"].rpartition("@")[2])
            for arm, control in node["comparisons"]:
                both = sorted(runs[arm].keys() & runs[control].keys())
                table = []
                for seed in both:
                    mine, other = runs[arm][seed], runs[control][seed]
                    if node.get("at_equal_entropy"):
                        own = mine.entropies[end["evaluation"]]
                        matched = at_entropy(other, own[max(own)], k)
                        pair = [at_the_end(mine, end["evaluation"], k), matched]
                    else:
                        pair = [score(x, end["evaluation"], k, axis, budget) for x in (mine, other)]
                    table.append([pair[0][problem] - pair[1][problem] for problem in pair[0]])
                mean, p, half = judge(np.array(table))
                row = {"arm": arm, "against": control, "evaluation": end["evaluation"], "k": k}
                rows.append({**row, "mean": mean, "p": p, "half": half, "cost": budget})
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
            assert row["mean"] - row["half"] == pytest.approx(said["difference_low"], abs=5e-6)
            assert row["mean"] + row["half"] == pytest.approx(said["difference_high"], abs=5e-6)
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
        found = dict(families(str(page), {"own": None, "common": common, "end": math.inf}[cost]))
        for row in said.to_dict("records"):
            control, evaluation = row["against"].split()[0], row["evaluation"]
            asked = {"arm": row["arm"], "against": control, "evaluation": evaluation, "k": 1}
            (own,) = [x for x in found[row["family"]] if {key: x[key] for key in asked} == asked]
            assert own["mean"] == pytest.approx(row[f"{cost}_difference"], abs=2e-6)
            assert own["p_adjusted"] == pytest.approx(row[f"{cost}_p_adjusted"], rel=2e-3, abs=1e-6)
            assert (row[f"{cost}_verdict"] == "not distinguishable") == (own["p_adjusted"] >= 0.05)
            seen += 1
    assert seen == 85
