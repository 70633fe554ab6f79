"""How often an interval over seeds of several first policies holds the truth, by simulation.

    .venv/bin/python experiments/coverage/pooled.py --draws 500    # ten minutes on one core

`../carries_all_seeds` puts 37 seeds of one first policy together with ten that have one each, all
seeds alike. `models.Model` is fitted to a control and an arm of the core study (`as_studies.py`),
and every first policy then has a level of its own, as far apart as `../carries_first_policies` has
them, and a gain of its own, whose standard deviation between first policies is a multiple of that
between the seeds of one. The truth is asked for twice: of the first policies that are there, each
with the weight of its seeds, and of first policies at large. Writes pooled.json and the table
`pooled` of README.md.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from as_studies import ROLLOUTS, STUDIES, fit, level_of, moments_of, table_of
from models import Model, Reals, logistic
from simulate import Draw, Truths, list_hits

from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import group_by_arm, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.statistics.interval import Interval
from e3rl.statistics.power import variance_components
from e3rl.statistics.shares import difference_of_shares

FOLDER = Path(__file__).parent
ARMS = ("budget", "e3")
SEEDS_OF_POLICIES = (37, *[1] * 10)  # how many seeds each first policy has
MULTIPLES = (0.0, 0.5, 1.0, 2.0)  # of the seeds' standard deviation of a gain
KS = (1, 16)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
WORDS = ("interval", "truth")  # columns of words
HERE, AT_LARGE = "these first policies", "first policies at large"


def differences_at(model: Model, levels: Reals, gains: Reals) -> dict[int, Reals]:
    """Expected pass@k of the arm less the control's, by k, where a first policy moves the level
    and the gain by so much."""
    moved = [
        replace(model, mean=model.mean + level, gain=model.gain + gain)
        for level, gain in zip(levels, gains, strict=True)
    ]
    return {k: np.array([each.truth(1, k) - each.truth(0, k) for each in moved]) for k in KS}


def draw_pooled(
    model: Model, level_sd: float, gain_sd: float, policies: Sequence[int] = SEEDS_OF_POLICIES
) -> Draw:
    """pass@1 and pass@16 of the arm less the control's over all seeds, as a table has them."""
    shares, which = np.array(policies) / sum(policies), np.repeat(range(len(policies)), policies)
    at_large = expected_at_large(model, level_sd, gain_sd)

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        levels, gains = (sd * rng.normal(size=len(policies)) for sd in (level_sd, gain_sd))
        right = draw_runs_of(model, levels[which], gains[which], rng)
        here = differences_at(model, levels, gains)
        found, truths = {}, Truths()
        for k in KS:
            control, arm = model.score(right, k)
            interval = difference_of_shares(arm, control, True).interval()
            for words, truth in ((HERE, float(here[k] @ shares)), (AT_LARGE, at_large[k])):
                found[f"Δ pass@{k}|{words}"] = interval
                truths[f"Δ pass@{k}|{words}"] = truth
        return found, truths

    return draw


def draw_runs_of(
    model: Model, levels: Reals, gains: Reals, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(2, S, P) right answers of both arms; levels and gains (S,) of the seeds' first policies."""
    logits = model.draw_problems(rng)[:, None] + model.draw_luck(rng, len(levels))
    logits += np.stack([levels, levels + gains])[:, :, None]
    return rng.binomial(model.rollouts, logistic(logits))


def expected_at_large(model: Model, level_sd: float, gain_sd: float) -> dict[int, float]:
    """The expected difference of a first policy that nobody has seen, by k."""
    levels, gains = (each.ravel() for each in np.meshgrid(level_sd * NODES, gain_sd * NODES))
    weights = np.outer(WEIGHTS, WEIGHTS).ravel()
    found = differences_at(model, levels, gains)
    return {k: float(values @ weights) for k, values in found.items()}


def sd_of_levels(model: Model, apart: float) -> float:
    """On the scale of logits, for first policies whose pass@1 has this standard deviation."""
    middle = model.truth(0, 1)
    return (level_of(model, 0, middle + apart) - level_of(model, 0, middle - apart)) / 2


def sd_of_gains(model: Model) -> float:
    """Between the seeds of one first policy, on the scale of logits: both arms' luck less what
    they share."""
    return model.seed * float(np.sqrt(2 * (1 - model.correlation)))


def spread_of_policies(one: Reals, several: Reals) -> float:
    """Standard deviation of pass@1 that first policies add to seeds, from (S, P) of one and of a
    first policy for each seed."""
    seeds, both = (variance_components(table).seed for table in (one, several))
    return float(np.sqrt(max(0.0, both - seeds)))


def simulate(draws: int) -> list[dict[str, Any]]:
    core = {name: table_of(runs) for name, runs in group_by_arm(runs_of("carries_core")).items()}
    several = table_of(group_by_arm(runs_of("carries_first_policies"))["grpo"])
    apart = spread_of_policies(core["grpo"], several)
    rows = []
    for arm in ARMS:
        control = core["grpo"]
        model = fit(moments_of(control, core[arm]), ROLLOUTS, control.shape[1])
        level_sd, gain_sd = sd_of_levels(model, apart), sd_of_gains(model)
        print(arm, model, f"sd of levels {level_sd:.3f}, of gains {gain_sd:.3f}", flush=True)
        for multiple in MULTIPLES:
            draw = draw_pooled(model, level_sd, multiple * gain_sd)
            for name, held in list_hits(draw, draws).items():
                measure, truth = name.split("|")
                facts = {"measure": measure, "truth": truth, "arm": arm, "multiple": multiple}
                rows.append(facts | {"draws": draws, "covered": float(np.mean(held))})
                print(*rows[-1].values(), flush=True)
    return rows


def runs_of(study: str) -> list[Any]:
    return load_runs(STUDIES / study / "runs")


def table_cells(rows: list[dict[str, Any]]) -> Cells:
    """A row per interval and truth, a column per arm and multiple."""
    found = {(r["measure"], r["truth"], r["arm"], r["multiple"]): r["covered"] for r in rows}
    columns = list(dict.fromkeys((r["arm"], r["multiple"]) for r in rows))
    body = [
        [*kind, *(f"{100 * found[*kind, *column]:.0f}" for column in columns)]
        for kind in dict.fromkeys((r["measure"], r["truth"]) for r in rows)
    ]
    (draws,) = {row["draws"] for row in rows}
    note = (
        "How many of 100 drawn 95 % intervals of a paired difference hold the truth, over 37 seeds "
        "of one first policy and ten of ten others, in studies from models fitted to the core "
        "study; in the columns the standard deviation of an effect between first policies by "
        f"that between the seeds of one. {draws:,} studies a cell."
    )
    return Cells([*WORDS, *(f"{arm}, {multiple:g}" for arm, multiple in columns)], body, note)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count in studies of several first policies.")
    parser.add_argument("--draws", type=int, default=1000)
    rows = simulate(parser.parse_args().draws)
    (FOLDER / "pooled.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    readme = FOLDER / "README.md"
    table = as_markdown(table_cells(rows), WORDS)
    write_tables(readme, {"pooled": table})


if __name__ == "__main__":
    main()
