"""Is the budget's breadth more than a hotter sampler gives? Policies of carries_budget, sampled.

    .venv/bin/python experiments/carries_hotter/compare.py sample    # goes on when started again
    .venv/bin/python experiments/carries_hotter/compare.py report    # tables of README.md

`sample` draws `ROLLOUTS` completions of every validation problem at the temperatures of `ROUNDS`
from the twelve policies that `../carries_budget/policies` keeps, and at all of them from the policy
before training, and writes how many were right to `samples.json.xz`; what is there is not drawn
again. `report` compares by them, and draws the frontier.

**Cross-fitting.** An arm at its best temperature is judged on problems that had no part in the
choice: problems are two halves, by their place in the set; on each half the arm is read at the
temperature whose mean pass@16 over all seeds and the problems of the other half is highest (the
lowest such temperature, if several).
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from e3rl.analysis.figures.frontier_figure import draw_frontier
from e3rl.analysis.figures.saved import save_figure
from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_tables, interval_columns
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.measures.frontier import UNTRAINED
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns, interval_text
from e3rl.analysis.tables.comparison_table import judged_texts
from e3rl.data.carries import carry_problems
from e3rl.ledger.ledger import read_rows
from e3rl.statistics.interval import Interval
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import difference_of_shares, share_interval

FOLDER = Path(__file__).parent
POLICIES = FOLDER.parent / "carries_budget" / "policies"
SAMPLES = FOLDER / "samples.json.xz"
ARMS, SEEDS = ("grpo", "budget"), range(141, 147)
ROUNDS = {1: (1.0, 1.1, 1.2, 1.4), 2: (1.6, 1.8, 2.0)}  # by the seed of the noise
LADDER = tuple(temperature for temperatures in ROUNDS.values() for temperature in temperatures)
PROBLEMS, ROLLOUTS, LIMIT = 1024, 24, 80  # LIMIT: tokens of a completion
LONG = 64  # tokens, where DAPO's penalty for completions near the limit begins
KS = (1, 16)
LOOKS = 2  # a round of temperatures each
AT_ONE, AT_BEST = "at T = 1", "at its best temperature"  # where the budget is read
Table = NDArray[np.float64]  # (S, P)


@dataclass(frozen=True)
class Samples:
    """Of one policy at one temperature; per problem where it is an array (P,)."""

    arm: str
    seed: int
    temperature: float
    entropy: float  # nats per token
    right: NDArray[np.int64]
    right_and_long: NDArray[np.int64]  # right with more than LONG tokens; at T = 1, else empty
    long: NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("sample", "report"))
    parser.add_argument("--out", type=Path, default=Path("sampled"), help="of completions")
    options = parser.parse_args()
    if options.action == "sample":
        known = read_samples() if SAMPLES.exists() else []
        there = {each.temperature for each in known}
        for seed, temperatures in ROUNDS.items():
            if not there.issuperset(temperatures):
                out = options.out / f"round_{seed}"
                policies = {(arm, run): out / f"{arm}_{run}" for arm in ARMS for run in SEEDS}
                sample(out, trained_policies(), seed, temperatures)
                known += gather(policies, temperatures)
        if UNTRAINED not in {each.arm for each in known}:
            out = options.out / UNTRAINED
            sample(out, [], 1, LADDER)
            known += gather({(UNTRAINED, 0): out}, LADDER)
        write_samples(known)
    else:
        write_report(read_samples())


def trained_policies() -> list[str]:
    """Which policies `e3rl evaluate` samples; the one before training where it is not told."""
    models = ",".join(
        f"{arm}_{run}:{POLICIES.resolve()}/seed-{run}_experiment-{arm}_engine-transformers"
        for run in SEEDS
        for arm in ARMS
    )
    return [f"models={{{models}}}"]


def sample(out: Path, policies: Sequence[str], seed: int, temperatures: Sequence[float]) -> None:
    """Draw completions into a folder per policy; what is there is not drawn again."""
    command = [
        *(sys.executable, "-m", "e3rl", "evaluate", *policies, "problems=carries"),
        *(f"problems.size={PROBLEMS}", f"n={ROLLOUTS}", "ks=[1,16]", "engine=transformers"),
        *(f"temperatures={list(temperatures)}", f"max_new_tokens={LIMIT}", f"seed={seed}"),
        *(f"processes={len(os.sched_getaffinity(0))}", f"out={out}"),
    ]
    subprocess.run(command, check=True)


def gather(
    policies: Mapping[tuple[str, int], Path], temperatures: Sequence[float]
) -> list[Samples]:
    """What was drawn of policies, by arm and seed from their folders, problems in the order of the
    set. Raises ValueError where some lacks."""
    order, found = [problem.id for problem in carry_problems("validation", PROBLEMS)], []
    for (arm, seed), folder in policies.items():
        files = sorted(folder.rglob("problems.jsonl"))
        rows = [row for file in files for row in read_rows(file) if "problem_id" in row]
        by_id = {row["problem_id"]: row["evaluations"] for row in rows}
        if by_id.keys() != set(order):
            raise ValueError(f"{arm} of seed {seed}: {len(by_id)} of {PROBLEMS} problems")
        found += [
            _samples(arm, seed, temperature, [by_id[problem] for problem in order])
            for temperature in temperatures
        ]
    return found


def _samples(
    arm: str, seed: int, temperature: float, evaluations: Sequence[Sequence[Mapping]]
) -> Samples:
    at = [next(e for e in every if e["temperature"] == temperature) for every in evaluations]
    assert all(each["n"] == ROLLOUTS for each in at)
    right = np.array([each["right"] for each in at])
    long = np.array([each["lengths"] for each in at]) > LONG
    entropy = sum(each["entropy_sum"] for each in at) / sum(each["tokens"] for each in at)
    counted = slice(None) if temperature == 1 else slice(0)
    lengths = ((right & long).sum(axis=1)[counted], long.sum(axis=1)[counted])
    return Samples(arm, seed, temperature, entropy, right.sum(axis=1), *lengths)


def write_samples(samples: Sequence[Samples]) -> None:
    rows = [{key: _plain(value) for key, value in vars(each).items()} for each in samples]
    SAMPLES.write_bytes(lzma.compress(json.dumps(rows).encode(), preset=9))


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


def read_samples() -> list[Samples]:
    rows = json.loads(lzma.decompress(SAMPLES.read_bytes()))
    arrays = ("right", "right_and_long", "long")
    return [Samples(**(row | {key: np.array(row[key]) for key in arrays})) for row in rows]


def tables_of(samples: Sequence[Samples], arm: str, k: int) -> dict[float, Table]:
    """pass@k (S, P) of an arm at each temperature, seeds in order."""
    return {
        temperature: np.array(
            [
                pass_at_k(np.full(len(each.right), ROLLOUTS), each.right, k)
                for each in sorted(samples, key=lambda each: each.seed)
                if (each.arm, each.temperature) == (arm, temperature)
            ]
        )
        for temperature in temperatures_of(samples)
    }


def temperatures_of(samples: Sequence[Samples]) -> list[float]:
    """All at which some policy was sampled, the coldest first."""
    return sorted({each.temperature for each in samples})


def choose_temperatures(tables: Mapping[float, Table]) -> tuple[float, float]:
    """The temperature at which problems of even place are read, and those of odd place: the best
    one of the other half."""
    evens, odds = (min(tables, key=lambda t: (-tables[t][:, half::2].mean(), t)) for half in (0, 1))
    return odds, evens


def read_at(tables: Mapping[float, Table], chosen: tuple[float, float]) -> Table:
    """(S, P), problems of even and odd place at their temperatures."""
    found = tables[chosen[0]].copy()
    found[:, 1::2] = tables[chosen[1]][:, 1::2]
    return found


def compare(samples: Sequence[Samples]) -> list[Row]:
    """The two declared comparisons, a family each, and their pass@1, which is exploratory."""
    best = {arm: choose_temperatures(tables_of(samples, arm, 16)) for arm in ARMS}
    rows = [
        _compare(samples, name, k, own, best["grpo"])
        for name, own in ((AT_ONE, (1.0, 1.0)), (AT_BEST, best["budget"]))
        for k in reversed(KS)
    ]
    at_one, at_best = (row for row in rows if row["measure"] == "pass@16")
    for row in (at_one, at_best):
        row["looks"] = LOOKS
    return judge_rows(rows, {"at_one": [at_one], "at_best": [at_best]})


def _compare(
    samples: Sequence[Samples],
    name: str,
    k: int,
    own: tuple[float, float],
    against: tuple[float, float],
) -> Row:
    """The budget read at `own` temperatures less GRPO at others; columns as a study's table has."""
    mine = read_at(tables_of(samples, "budget", k), own)
    other = read_at(tables_of(samples, "grpo", k), against)
    return {
        "arm": "budget",
        "against": "grpo at its best temperature",
        "evaluation": name,
        "measure": f"pass@{k}",
        "temperatures": _temperatures(own),
        "against_temperatures": _temperatures(against),
        **compare_tables(mine, other, f"budget - grpo, {name}: pass@{k}"),
    }


def comparison_cells(rows: Sequence[Row]) -> Cells:
    """A row for each comparison."""
    cells = [
        {
            "budget at": row["temperatures"],
            "GRPO at": row["against_temperatures"],
            "measure": row["measure"],
            "budget %": f"{100 * row['value']:.1f}",
            "GRPO %": f"{100 * row['against_value']:.1f}",
            **judged_texts(row),
        }
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        "95 % intervals over seeds and problems, paired by both. p of pass@16 is of a declared "
        f"family of one each, times {LOOKS} looks, that of pass@1 exploratory, corrected for two. "
        "Detectable: as in other studies. Temperatures of problems of even and of odd place, "
        "where they differ, each chosen on the other half.",
    )


def frontier_rows(samples: Sequence[Samples]) -> list[Row]:
    """Every arm, and the policy before training, at every temperature, as `draw_frontier` asks."""
    rows = []
    for arm in (*ARMS, UNTRAINED):
        tables = {k: tables_of(samples, arm, k) for k in KS}
        for temperature in temperatures_of(samples):
            here = [s for s in samples if (s.arm, s.temperature) == (arm, temperature)]
            row = {"arm": arm, "temperature": temperature, "k": KS[-1]}
            row["entropy"] = float(np.mean([each.entropy for each in here]))
            for name, k in zip(("pass@1", "pass@k"), KS, strict=True):
                row |= interval_columns(name, share_interval(tables[k][temperature]))
            rows.append(row)
    return rows


def draw_samples(samples: Sequence[Samples]) -> Figure:
    """The frontiers of both arms and of the policy before training."""
    sources = f"{ROLLOUTS} rollouts a problem, {len(SEEDS)} seeds an arm, one untrained policy."
    return draw_frontier(frontier_rows(samples), ARMS, sources)


def temperature_cells(samples: Sequence[Samples]) -> Cells:
    """The frontier in numbers, with the budget's difference to GRPO at the same temperature."""
    cells = []
    tables = {k: {arm: tables_of(samples, arm, k) for arm in ARMS} for k in KS}
    for row in frontier_rows(samples):
        temperature = row["temperature"]
        cell = {"arm": row["arm"], "T": f"{temperature:.1f}", "entropy": f"{row['entropy']:.3f}"}
        for name, k in zip(("pass@1", "pass@k"), KS, strict=True):
            cell[f"pass@{k} %"] = interval_text(row, name, ".1f", 100)
            cell[f"Δ pass@{k}"] = ""
            if row["arm"] == "budget":
                mine, other = (tables[k][arm][temperature] for arm in ("budget", "grpo"))
                found = difference_of_shares(mine, other, paired_seeds=True).interval()
                cell[f"Δ pass@{k}"] = _points(found)
        cells.append(cell)
    return drop_empty_columns(
        cells,
        "Entropies in nats per token; 95 % intervals over seeds and problems (over problems alone "
        "before training); Δ to GRPO at the same temperature, paired by seed and problem, in "
        "points. Not declared, not corrected.",
    )


def length_cells(samples: Sequence[Samples]) -> Cells:
    """How many completions at T = 1 are longer than LONG tokens, of all and of the right ones, and
    how many solved problems are solved by such ones alone."""
    cells = []
    for arm in ARMS:
        here = [s for s in samples if (s.arm, s.temperature) == (arm, 1.0)]
        shares = [
            (
                each.long.sum() / (ROLLOUTS * PROBLEMS),
                each.right_and_long.sum() / each.right.sum(),
                ((each.right > 0) & (each.right == each.right_and_long)).sum()
                / (each.right > 0).sum(),
            )
            for each in here
        ]
        of_all, of_right, alone = (f"{100 * x:.1f}" for x in np.mean(shares, axis=0))
        cells.append({"arm": arm, "of all %": of_all, "of right %": of_right, "alone %": alone})
    note = (
        f"Completions at T = 1 with more than {LONG} tokens: of all; of the right ones; and "
        f"problems solved by such ones alone, of those solved in {ROLLOUTS} rollouts. Means of "
        "seeds."
    )
    return drop_empty_columns(cells, note)


def _temperatures(chosen: tuple[float, float]) -> str:
    return " and ".join(f"{t:.1f}" for t in dict.fromkeys(chosen))


def _points(interval: Interval) -> str:
    return interval_text(interval_columns("x", interval), "x", "+.1f", 100)


def write_report(samples: Sequence[Samples]) -> None:
    """The tables and the figure of README.md, and a file of results for each family."""
    readme, rows = FOLDER / "README.md", compare(samples)
    (FOLDER / "results").mkdir(exist_ok=True)
    for family, mine in pd.DataFrame(rows).groupby("family"):
        path = FOLDER / "results" / f"{family}.csv"
        mine.to_csv(path, index=False, float_format="%.6g")
    tables = {
        "hotter": comparison_cells(rows),
        "temperatures": temperature_cells(samples),
        "lengths": length_cells(samples),
    }
    (FOLDER / "figures").mkdir(exist_ok=True)
    save_figure(draw_samples(samples), FOLDER / "figures" / "frontier.png", dpi=150)
    words = ("arm", "measure", "verdict")
    write_tables(readme, {name: as_markdown(cells, words) for name, cells in tables.items()})


if __name__ == "__main__":
    main()
