"""Verdicts out of raw ledgers, by code of their own.

Nothing of e3rl is imported: ledgers come out of their archives as JSON, pass@k is a product, the
two-way layout is a sum over cells, Student's t is integrated, and Holm's steps are counted.
"""

import json
import math
import sys
import tarfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

ROOT = Path(__file__).parents[1] / "experiments"
Reals = np.ndarray[Any, np.dtype[np.float64]]


METRICS = {  # columns that tables of training show
    *("policy/entropy", "policy/entropy_exact_t1", "policy/grad_norm", "rollout/accuracy"),
    *("rollout/all_wrong", "rollout/length", "rollout/mixed", "rollout/temperature"),
    *("budget/effective", "policy/clip_fraction"),
}


KEPT: dict[tuple[int, int], tuple[int, int]] = {}


class RawRun(NamedTuple):
    arm: str
    seed: int
    costs: dict[str, list[float]]  # steps, tokens and rollouts up to and with each step
    metrics: dict[str, dict[int, float]]  # by step
    validations: dict[str, dict[int, dict[str, tuple[int, int]]]]  # (n, right) by problem
    entropies: dict[str, dict[int, float]]  # nats per token, of the same


Runs = dict[str, dict[int, RawRun]]  # by arm and seed


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
    lines = files["config.yaml"].splitlines()
    config = yaml.safe_load("\n".join(x for x in lines if x.startswith(("name:", "seed:"))))
    metrics = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    steps = [row for row in metrics if row["kind"] == "train"]
    costs = {axis: [float(row[f"cost/{axis}"]) for row in steps] for axis in ("tokens", "rollouts")}
    costs["steps"] = [float(row["rollout_step"] + 1) for row in steps]
    measured: dict[str, dict[int, float]] = {}
    for row in steps:
        for column in METRICS & row.keys():
            if row[column] is not None:
                measured.setdefault(column, {})[row["rollout_step"]] = float(row[column])
    validations: dict[str, dict[int, dict[str, tuple[int, int]]]] = {}
    entropies: dict[str, dict[int, float]] = {}
    for line in files["validation.jsonl"].splitlines():
        row = json.loads(line)
        # Thousands of rows share their problems and counts: one object of each is kept.
        counts = (
            KEPT.setdefault(cell, cell) for cell in zip(row["n"], row["correct"], strict=True)
        )
        problems = map(sys.intern, row["problem_id"])
        at = validations.setdefault(row["name"], {})
        at[row["rollout_step"]] = dict(zip(problems, counts, strict=True))
        nats = row["entropy_sum"] / row["tokens"]
        entropies.setdefault(row["name"], {})[row["rollout_step"]] = nats
    return RawRun(config["name"], config["seed"], costs, measured, validations, entropies)


def untrained(runs: Runs) -> dict[str, tuple[int, int]]:
    """(n, right) by problem before training at temperature 1; equal draws count once."""
    starts: list[dict[str, tuple[int, int]]] = []
    for run in (run for seeds in runs.values() for run in seeds.values()):
        start = run.validations["t1"].get(0)
        if start and start not in starts:
            starts.append(start)
    return {
        problem: (sum(s[problem][0] for s in starts), sum(s[problem][1] for s in starts))
        for problem in starts[0]
    }


def solved_untrained(runs: Runs, low: float, high: float) -> set[str]:
    """The problems that the untrained policy solves in such a share of its rollouts."""
    rates = {problem: right / n for problem, (n, right) in untrained(runs).items()}
    return {problem for problem, rate in rates.items() if low <= rate <= high}


@cache
def pass_at(k: int, n: int, right: int) -> float:
    """1 - C(n-c, k)/C(n, k), factor by factor."""
    missed = 1.0
    for place in range(k):
        missed *= max(0, n - right - place) / (n - place)
    return 1 - missed


def score(run: RawRun, evaluation: str, k: int, axis: str, budget: float) -> dict[str, float]:
    """pass@k by problem at a budget, or of the last step, if only that has k rollouts."""
    found = run.validations[evaluation]
    steps = sorted(found)
    if len(steps) == 1 or min(n for step in steps for n, _ in found[step].values()) < k:
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


class Judged(NamedTuple):
    mean: float
    p: float
    low: float  # of the 95 % interval
    high: float


def judge(differences: Reals) -> Judged:
    """(S, P) paired differences of shares. Where nearly all problems agree one is added that only
    the arm solves, and one that only the control does."""
    of_problems = differences.mean(axis=0)
    alike = max(int((abs(of_problems - edge) < 1e-12).sum()) for edge in (-1, 0, 1))
    if len(of_problems) - alike >= min(10, alike):
        return judge_all(differences)
    ends = np.tile([1.0, -1.0], (len(differences), 1))
    wider = judge_all(np.hstack([differences, ends]))
    return wider._replace(mean=float(differences.mean()))


def judge_all(differences: Reals) -> Judged:
    n_seeds, n_problems = differences.shape
    mean = float(differences.sum()) / differences.size
    seeds = [float(row.sum()) / n_problems - mean for row in differences]
    problems = [float(column.sum()) / n_seeds - mean for column in differences.T]
    rest = math.fsum(
        (cell - mean - seed - problem) ** 2
        for row, seed in zip(differences.tolist(), seeds, strict=True)
        for cell, problem in zip(row, problems, strict=True)
    )
    dfs = (n_seeds - 1, n_problems - 1, (n_seeds - 1) * (n_problems - 1))
    squares = (
        n_problems * math.fsum(x * x for x in seeds) / dfs[0],
        n_seeds * math.fsum(x * x for x in problems) / dfs[1],
        rest / dfs[2],
    )
    variance = squares[0] + max(squares[1] - squares[2], 0)
    spread = sum(square**2 / each for square, each in zip(squares, dfs, strict=True))
    df = max(1.0, variance**2 / spread)
    error = math.sqrt(variance / differences.size)
    of_test = df if n_seeds >= 5 else min(df, n_seeds - 1)  # few seeds: by their number alone
    half = quantile(df) * error
    return Judged(mean, two_sided_p(mean / error, of_test), mean - half, mean + half)


@cache
def quantile(df: float) -> float:
    """How many errors the 95 % interval reaches to each side, by halving."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, df) > 0.05 else (low, middle)
    return high


def adjusted(p_values: list[float]) -> list[float]:
    """Holm's: the i-th smallest times what is left, never below the one before it."""
    found, floor = [0.0] * len(p_values), 0.0
    for left, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, p_values[place] * (len(p_values) - left)))
        found[place] = floor
    return found


def judge_units(differences: Reals) -> Judged:
    """(S,) paired differences."""
    n = len(differences)
    mean = math.fsum(differences) / n
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in differences) / (n - 1) / n)
    if not error:  # all alike
        return Judged(mean, float(mean == 0), mean, mean)
    half = quantile(n - 1) * error
    return Judged(mean, two_sided_p(mean / error, n - 1), mean - half, mean + half)


def mean_score(run: RawRun, evaluation: str, k: int, axis: str, budget: float) -> dict[str, float]:
    """pass@k by problem, its mean over all costs up to a budget: trapezia between validations."""
    found = run.validations[evaluation]
    steps = sorted(found)
    known = [(run.costs[axis][step - 1] if step else 0.0, found[step]) for step in steps]
    end = score(run, evaluation, k, axis, budget)
    area = {}
    for problem in end:
        curve = [(cost, pass_at(k, *cells[problem])) for cost, cells in known if cost < budget]
        curve.append((min(budget, known[-1][0]), end[problem]))
        parts = pairwise(curve)
        total = math.fsum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in parts)
        area[problem] = total / curve[-1][0]
    return area
