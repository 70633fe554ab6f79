"""Whether sets of seeds, each of another study, agree on an effect.

    .venv/bin/python experiments/carries_all_seeds/sets.py    # the tables `sets` and `spread`

An effect is a difference of arms, the mean of several on either side, paired by seed and problem.
Sets that agree differ in it by the luck of their seeds alone: p is the share of 20,000 random
divisions of all the seeds into sets of these sizes whose means differ as much or more.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from e3rl.analysis.measures.arms import AND, Row
from e3rl.analysis.measures.scores import Scores, mean_of_arms, scores_at
from e3rl.analysis.page.study import read_study, write_tables
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.analysis.tables.comparison_table import p_text
from e3rl.statistics.means import mean_over_seeds_and_problems
from e3rl.statistics.power import seed_variance_interval
from e3rl.statistics.student import f_bound, incomplete_beta

FOLDER = Path(__file__).parent
SETS = {
    "carries_core": range(101, 111),
    "carries_tuned": range(111, 116),
    "carries_first_policies": range(131, 141),
    "carries_budget": range(141, 147),
    "carries_factorial": range(151, 157),
    "carries_confirmation": range(171, 181),
}
POLICIES = "carries_first_policies"  # every seed from a first policy of its own
CURVES = (  # with validations on the way
    *("carries_core", "carries_tuned", POLICIES),
    "carries_confirmation",
)
BONUS = tuple(name for name in CURVES if name != POLICIES)
COMMON_TOKENS = 1_145_860
HALVES = ("carries_weights", "carries_factorial")  # studies of a budget's rollouts and its weight


class Effect(NamedTuple):
    """Arms of either side, k of pass@k at T = 1, where it is read, and of which sets."""

    arms: tuple[str, ...]
    less: tuple[str, ...]
    k: int
    tokens: float  # infinite: after the last step
    sets: tuple[str, ...] = CURVES


EFFECTS = (
    Effect(("budget",), ("grpo",), 16, math.inf, tuple(SETS)),
    Effect(("budget",), ("grpo",), 4, COMMON_TOKENS),
    Effect(("e3",), ("grpo",), 1, COMMON_TOKENS),
    Effect(("ts_an",), ("grpo",), 1, COMMON_TOKENS),
    Effect(("grpo_er",), ("grpo",), 16, math.inf, BONUS),
    Effect(("budget", "budget_by_prompt"), ("weight_by_rank", "grpo"), 16, math.inf, HALVES),
    Effect(("budget", "weight_by_rank"), ("budget_by_prompt", "grpo"), 16, math.inf, HALVES),
)
DIVISIONS = 20_000
studies = cache(read_study)  # four of the sets are of one


@cache
def runs_of(name: str) -> dict[str, list[Run]]:
    """Runs of a set by arm."""
    home = name if name in HALVES else "carries_all_seeds"
    seeds = SETS.get(name, SETS["carries_core"])
    return {
        arm: [run for run in runs if run.seed in seeds]
        for arm, runs in studies(FOLDER.parent / home).arms.items()
    }


def differences(effect: Effect, name: str) -> pd.DataFrame:
    """(S, P) of an effect, of one set."""
    first, second = (
        mean_of_arms([scores_of(arm, effect, name) for arm in side]).table
        for side in (effect.arms, effect.less)
    )
    return first - second


def scores_of(arm: str, effect: Effect, name: str) -> Scores:
    found = scores_at(runs_of(name)[arm], "t1", effect.k, "tokens", effect.tokens)
    if found is None:
        raise ValueError(f"{name} has no pass@{effect.k} of {arm} at T = 1")
    return found


def disagreement(groups: Sequence[np.ndarray]) -> float:
    """Sum of squares between the groups' means."""
    every = np.concatenate(groups)
    return float(sum(len(x) * (x.mean() - every.mean()) ** 2 for x in groups))


def p_of_agreement(groups: Sequence[np.ndarray]) -> float:
    """Of the hypothesis that the groups differ by luck alone, by divisions at random."""
    every, ends = np.concatenate(groups), np.cumsum([len(x) for x in groups])[:-1]
    draw, seen = np.random.default_rng(0), disagreement(groups) * (1 - 1e-12)
    as_much = sum(
        disagreement(np.split(draw.permutation(every), ends)) >= seen for _ in range(DIVISIONS)
    )
    return (1 + as_much) / (1 + DIVISIONS)


def effect_rows() -> Iterator[Row]:
    for effect in EFFECTS:
        tables = {name: differences(effect, name) for name in effect.sets}
        p = p_of_agreement([table.mean(axis=1).to_numpy() for table in tables.values()])
        about: Row = {
            "arm": AND.join(effect.arms),
            "less": AND.join(effect.less),
            "measure": f"pass@{effect.k}",
        }
        every = {"all": pd.concat(tables.values())}
        if len(tables) > 2:  # the first set is that which the others were asked after
            every[f"all but {effect.sets[0]}"] = pd.concat(list(tables.values())[1:])
        for name, table in {**every, **tables}.items():
            found = mean_over_seeds_and_problems(table.to_numpy()).interval()
            yield {
                **about,
                "set": name,
                "seeds": len(table),
                "difference": found.mean,
                "difference_low": found.low,
                "difference_high": found.high,
                "p_of_agreement": p if name == "all" else None,
            }


def spread_rows() -> Iterator[Row]:
    """How much GRPO's own pass@1 after its last step differs between seeds of a set, and beside
    the seeds of the sets that have one first policy."""
    parts = {}
    for page in SETS:
        scores = scores_at(runs_of(page)["grpo"], "t1", 1, "tokens", math.inf)
        assert scores is not None
        parts[page] = scores.table.to_numpy(dtype=np.float64)
    ends_of = {page: part.mean(axis=1) for page, part in parts.items()}
    alike = [ends for page, ends in ends_of.items() if page != POLICIES]
    for page, part in parts.items():
        found = seed_variance_interval(part)
        sds = [math.sqrt(max(0.0, x)) for x in (found.mean, found.low, found.high)]
        ends = part.mean(axis=1)
        yield {
            "set": page,
            "seeds": len(part),
            "mean": float(ends.mean()),
            "least": float(ends.min()),
            "greatest": float(ends.max()),
            **dict(zip(("sd", "sd_low", "sd_high"), sds, strict=True)),
            **(ratio_of_spreads(ends, alike) if page == POLICIES else {}),
        }


def ratio_of_spreads(ends: np.ndarray, others: Sequence[np.ndarray]) -> Row:
    """Standard deviation of `ends` by that within `others`, pooled, with its 95 % interval and the
    two-sided p of Fisher's F, exact where scores are normal."""
    own, df = len(ends) - 1, sum(len(x) - 1 for x in others)
    pooled = sum(((x - x.mean()) ** 2).sum() for x in others) / df
    f = float(ends.var(ddof=1) / pooled)
    low, high = (f / f_bound(q, own, df) for q in (0.975, 0.025))
    below = incomplete_beta(own / 2, df / 2, own * f / (own * f + df))
    p = 2 * min(below, 1 - below)
    names = ("ratio", "ratio_low", "ratio_high")
    return {**dict(zip(names, map(math.sqrt, (f, low, high)), strict=True)), "p": p}


def effect_cells(rows: Sequence[Row]) -> Cells:
    header = ["arm", "less", "measure", "set", "seeds", "Δ points", "p of agreement"]
    body = []
    for row in rows:
        mean, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
        p = row["p_of_agreement"]
        body.append(
            [
                *(str(row[name]) for name in ("arm", "less", "measure", "set", "seeds")),
                f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]",
                "" if p is None else f"{p:.3f}".removeprefix("0"),
            ]
        )
    note = (
        "95 % intervals over seeds and problems, each by itself. pass@16 after the last step, "
        f"pass@1 and pass@4 at {COMMON_TOKENS:,} tokens. p of agreement: that sets differ as much "
        "by the luck of their seeds; uncorrected."
    )
    return Cells(header, body, note)


def spread_cells(rows: Sequence[Row]) -> Cells:
    body = [
        [
            *(row["set"], str(row["seeds"])),
            *(f"{100 * row[name]:.1f}" for name in ("mean", "least", "greatest")),
            f"{100 * row['sd']:.1f} [{100 * row['sd_low']:.1f}, {100 * row['sd_high']:.1f}]",
            ratio_cell(row),
            p_text(row["p"]) if "p" in row else "",
        ]
        for row in rows
    ]
    header = ["set", "seeds", "mean %", "least", "greatest", "sd of seeds", "by the others'", "p"]
    note = (
        "GRPO's pass@1 at T = 1 after the last step; 95 % intervals of the standard deviation, the "
        "noise of validation taken out. By the others': the ratio to the standard deviation within "
        "the sets of one first policy, that noise left in, and its p, by Fisher's F, exact where "
        "scores are normal; uncorrected."
    )
    return Cells(header, body, note)


def ratio_cell(row: Row) -> str:
    if "ratio" not in row:
        return ""
    ratio, low, high = (row[f"ratio{end}"] for end in ("", "_low", "_high"))
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    readme, results = FOLDER / "README.md", FOLDER / "results"
    tables = (
        ("sets", list(effect_rows()), effect_cells, ("arm", "less", "measure", "set")),
        ("spread", list(spread_rows()), spread_cells, ("set",)),
    )
    for name, rows, cells, words in tables:
        pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False, float_format="%.6g")
        write_tables(readme, {name: as_markdown(cells(rows), words)})


if __name__ == "__main__":
    main()
