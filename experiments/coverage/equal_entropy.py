"""How often intervals of differences at equal entropy hold the truth, by simulation.

    .venv/bin/python experiments/coverage/equal_entropy.py       # half an hour on one core

The control is read at an arm's entropy as studies do it: sampled at temperatures that
`EntropyMatcher` asks for, by the entropies that were measured, and put on the line between the two
evaluations next to the arm's. `models.Model` is fitted to what a study has at equal entropy, and
`Heat` to how the recorded control's entropy and success answer to temperature. The truth is what
the control has exactly at the arm's entropy. Evaluations of a run are drawn by random numbers of
their own, or all by the same ones, as recorded ones are. Writes equal_entropy.json and a table of
README.md.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from as_studies import by_kind, fit, moments_of
from models import Model, Reals, logistic
from simulate import Draw, Truths, count_hits

from e3rl.analysis.measures.matched_control import Sampled, match_control, sampled_at_end
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.statistics.interval import Interval
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import difference_of_shares
from e3rl.temperatures.matching import EntropyMatcher

FOLDER = Path(__file__).parent
STUDIES = FOLDER.parent
SEEDS, KS, ROLLOUTS = (5, 10), (1, 16, 64), 64
FITTED = (
    *(("carries_policies", arm) for arm in ("grpo_er", "budget")),
    *(("carries_breadth", arm) for arm in ("pass_at_4", "positive")),
)
HOT_AND_COOL = "carries_policies"  # whose control is sampled at .7 and 1.3 as well
NUMBERS = {"own": False, "shared": True}  # random numbers of a run's evaluations
TELLING = (0.02, 0.98)  # pass rates between which a problem's logit can be told
COUNTS = np.arange(ROLLOUTS + 1)
PASS = {k: pass_at_k(np.full_like(COUNTS, ROLLOUTS), COUNTS, k) for k in KS}  # by right answers


@dataclass(frozen=True)
class Heat:
    """How a control's last policy answers to its temperature τ.

    ln H = ln H₁ + elasticity·ln τ + bend·ln² τ, with a spread of ln H₁ over seeds; an arm's ln H at
    τ = 1 is that of the control and a gap that spreads over seeds too. Where ln H is x above the
    arm's, a problem's logit is (slope + slope_by_logit·logit + slope_sd·z)·x + curve·x² more.
    """

    level: float  # ln H₁
    level_sd: float
    elasticity: float
    bend: float
    gap: float
    gap_sd: float
    slope: float
    slope_by_logit: float
    slope_sd: float
    curve: float
    error: float  # relative standard error of a measured entropy

    def entropy(self, level: float, temperature: float) -> float:
        """H, nats per token, of a run whose ln H₁ is `level`."""
        x = np.log(temperature)
        return float(np.exp(level + self.elasticity * x + self.bend * x * x))


def draw_matched(model: Model, heat: Heat, n_seeds: int, shared: bool) -> Draw:
    """pass@k of an arm less that of the control at the arm's entropy, seeds paired."""
    truths: Truths = {f"Δ pass@{k}": model.truth(1, k) - model.truth(0, k) for k in KS}

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        problems = model.draw_problems(rng)
        logits = problems[:, None, :] + model.draw_luck(rng, n_seeds)
        slopes = heat.slope + heat.slope_by_logit * problems[0]
        slopes = slopes + heat.slope_sd * rng.normal(size=model.n_problems)
        arm = score(rng.binomial(ROLLOUTS, logistic(logits[1])))
        control = [read_control(heat, base, slopes, rng, shared) for base in logits[0]]
        return {
            f"Δ pass@{k}": difference_of_shares(
                arm[k], np.array([each[k] for each in control]), True
            ).interval()
            for k in KS
        }, truths

    return draw


def read_control(
    heat: Heat, logits: Reals, slopes: Reals, rng: np.random.Generator, shared: bool
) -> Mapping[int, Reals]:
    """pass@k (P,) by k of one control run at its arm's entropy; `logits` (P,) are those it has
    there."""
    level = heat.level + heat.level_sd * rng.normal()
    target = np.exp(level + heat.gap + heat.gap_sd * rng.normal())
    matcher = EntropyMatcher(target * (1 + heat.error * rng.normal()))
    numbers = rng.random((ROLLOUTS, len(logits)), np.float32) if shared else None
    scores = {}
    while (temperature := matcher.next()) is not None:
        entropy = heat.entropy(level, temperature)
        matcher.observe(temperature, entropy * (1 + heat.error * rng.normal()))
        x = np.log(entropy / target)
        rates = logistic(logits + slopes * x + heat.curve * x * x)
        if numbers is None:
            scores[temperature] = score(rng.binomial(ROLLOUTS, rates))
        else:
            scores[temperature] = score((numbers < rates.astype(np.float32)).sum(axis=0))
    weights = matcher.reading.weights
    return {k: np.sum([w * scores[tau][k] for tau, w in weights.items()], axis=0) for k in KS}


def score(right: Any) -> dict[int, Reals]:
    """pass@k of every cell, by k."""
    return {k: of_counts[right] for k, of_counts in PASS.items()}


def fit_study(study: str, arm: str) -> tuple[Model, Heat]:
    """The model of one comparison at equal entropy, and its control's answer to temperature."""
    arms = group_by_arm(load_runs(STUDIES / study / "runs"))
    item = scores_at(arms[arm], "t1", 1, "tokens", np.inf, False)
    assert item is not None
    found = match_control(item, arms, "grpo")
    assert found is not None
    control = found.scores.table.sort_index()
    other = item.table.loc[control.index, control.columns]
    model = fit(moments_of(control.to_numpy(), other.to_numpy()), ROLLOUTS, control.shape[1])
    levels, own = (
        np.log([sampled_at_end(run, ROLLOUTS)["t1"].entropy for run in sort_by_seed(arms[name])])
        for name in ("grpo", arm)
    )
    gaps = own - levels
    facts = (levels.mean(), levels.std(ddof=1), gaps.mean(), gaps.std(ddof=1))
    hot = group_by_arm(load_runs(STUDIES / HOT_AND_COOL / "runs"))["grpo"]
    return model, fit_heat([sampled_at_end(run, 16) for run in sort_by_seed(hot)], *facts)


def sort_by_seed(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.seed or 0)


def fit_heat(
    runs: Sequence[Mapping[str, Sampled]],
    level: float,
    level_sd: float,
    gap: float,
    gap_sd: float,
) -> Heat:
    """How entropy and success answer to temperature, of runs sampled at .7, 1 and 1.3 and more."""
    x, y = np.array(
        [
            (np.log(each.temperature), np.log(each.entropy / run["t1"].entropy))
            for run in runs
            for each in run.values()
        ]
    ).T
    elasticity, bend = np.linalg.lstsq(np.stack([x, x * x], axis=1), y, rcond=None)[0]
    cool, middle, hot = (
        np.mean([run[name].table.sort_index() for run in runs], axis=0)
        for name in ("t0.7", "t1", "t1.3")
    )
    low, high = (
        float(np.mean([np.log(run[name].entropy / run["t1"].entropy) for run in runs]))
        for name in ("t0.7", "t1.3")
    )
    telling = np.all([(TELLING[0] < r) & (r < TELLING[1]) for r in (cool, middle, hot)], axis=0)
    a, b, c = (np.log(r[telling] / (1 - r[telling])) for r in (cool, middle, hot))
    # On a parabola through the three: logit = b + s·x + q·x²
    slope = ((c - b) * low / high - (a - b) * high / low) / (low - high)
    curve = ((a - b) / low - (c - b) / high) / (low - high)
    by_logit, at_zero = np.polyfit(b, slope, 1)
    rest = slope - at_zero - by_logit * b
    errors = [run["t1"].error / run["t1"].entropy for run in runs]
    return Heat(
        *(level, level_sd, float(elasticity), float(bend), gap, gap_sd),
        *(float(at_zero), float(by_logit), float(rest.std())),
        *(float(np.mean(curve)), float(np.mean(errors))),
    )


def table_cells(rows: list[dict[str, Any]]) -> Cells:
    """A row per measure and kind of random numbers, a column per study, arm and seeds."""
    columns = list(dict.fromkeys((r["study"], r["arm"], r["n_seeds"]) for r in rows))
    header, body = by_kind(rows, "numbers", list(NUMBERS), columns)
    note = (
        "How many of 100 drawn 95 % intervals of the difference at equal entropy hold the truth, "
        "in studies from models fitted to recorded ones; a run's evaluations at several "
        f"temperatures with random numbers of their own, or shared. {rows[0]['draws']:,} studies a "
        "cell."
    )
    return Cells(header, body, note)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count for differences at equal entropy.")
    parser.add_argument("--draws", type=int, default=1000)
    draws, rows = parser.parse_args().draws, []
    for study, arm in FITTED:
        model, heat = fit_study(study, arm)
        print(study, arm, model, heat, flush=True)
        for n in SEEDS:
            for kind, shared in NUMBERS.items():
                facts = {"study": study, "arm": arm, "n_seeds": n, "numbers": kind, "draws": draws}
                held = count_hits(draw_matched(model, heat, n, shared), draws)
                rows += [facts | {"measure": name, "covered": each} for name, each in held.items()]
                print(study, arm, n, kind, held, flush=True)
    (FOLDER / "equal_entropy.json").write_text(
        json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    )
    readme = FOLDER / "README.md"
    table = as_markdown(table_cells(rows), ("interval", "numbers"))
    write_tables(readme, {"equal_entropy": table})


if __name__ == "__main__":
    main()
