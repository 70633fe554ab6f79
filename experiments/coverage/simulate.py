"""How often the intervals that tables print hold the truth, by simulation.

    .venv/bin/python experiments/coverage/simulate.py            # some minutes on one core
    .venv/bin/python experiments/coverage/simulate.py --draws 100

Draws studies from the model of `models.py`, makes the intervals as the tables do, counts, and
writes results.json and the table of README.md.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from models import Model, Reals, logistic, with_seed_share

from e3rl.analysis.page.study import write_tables
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.statistics.crossing import crossing_interval, crossing_ratio
from e3rl.statistics.improvement import improvement_interval, probability_of_improvement
from e3rl.statistics.interval import Interval
from e3rl.statistics.iqm import interquartile_mean, iqm_interval
from e3rl.statistics.means import mean_over_units
from e3rl.statistics.power import seed_variance_interval
from e3rl.statistics.shares import difference_of_shares, gain_interval, share_interval

FOLDER = Path(__file__).parent
LEVELS = {".5": Model(0.2), ".02": Model(-5.0), ".98": Model(5.0)}  # by the mean pass rate
SEED_SHARES = (0.0, 0.5, 0.99)
SEEDS = (5, 10, 3)
FAMILIES = 16  # of 8 problems each
COSTS = np.array([0.0, 1.0, 2.0, 3.0, 4.0])  # of the validations of a run
POINTS = np.linspace(0.0, 4.0, 9)
SPEED = 1.3  # of the arm, by the control's
MOSTLY_ALIKE = 0.5  # share of studies with one interval, from which cells are marked
HEAD_START = 1.5  # of a trained policy, on the scale of logits

Truths = dict[str, float]  # by what is estimated
Draw = Callable[[np.random.Generator], tuple[dict[str, Interval], Truths]]


def count_hits(draw: Draw, draws: int, seed: int = 0) -> dict[str, float]:
    """Share of drawn intervals that hold their truth, by what they estimate."""
    return {name: float(np.mean(held)) for name, held in list_hits(draw, draws, seed).items()}


def list_hits(draw: Draw, draws: int, seed: int = 0) -> dict[str, list[bool]]:
    """Whether each drawn interval holds its truth, by what it estimates."""
    return {
        name: [each.low <= truth <= each.high for each, truth in drawn]
        for name, drawn in list_intervals(draw, draws, seed).items()
    }


def list_intervals(
    draw: Draw, draws: int, seed: int = 0
) -> dict[str, list[tuple[Interval, float]]]:
    """Drawn intervals and their truths, by what they estimate; fewer than `draws` where a table
    would print none."""
    rng, found = np.random.default_rng(seed), dict[str, list[tuple[Interval, float]]]()
    for _ in range(draws):
        intervals, truths = draw(rng)
        for name, each in intervals.items():
            found.setdefault(name, []).append((each, truths[name]))
    return found


def share_alike(intervals: Sequence[Interval]) -> float:
    """Share of intervals that have the commonest bounds: near 1 where most studies see the same, so
    that an interval holds its truth in nearly all of them or in nearly none."""
    bounds = Counter((round(each.low, 9), round(each.high, 9)) for each in intervals)
    return max(bounds.values()) / len(intervals)


def draw_means(model: Model, n_seeds: int) -> Draw:
    """pass@1 and pass@16 of the control, and the arm's less the control's, seeds paired."""
    truths = {f"pass@{k}": model.truth(0, k) for k in (1, 16)}
    truths |= {f"Δ pass@{k}": model.truth(1, k) - model.truth(0, k) for k in (1, 16)}

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        right = model.draw_runs(rng, model.draw_problems(rng), n_seeds)
        found = {}
        for k in (1, 16):
            control, arm = model.score(right, k)
            found[f"pass@{k}"] = share_interval(control)
            found[f"Δ pass@{k}"] = difference_of_shares(arm, control, True).interval()
        return found, truths

    return draw


def draw_alike(model: Model, n_seeds: int) -> Draw:
    """The arm's pass@1 and pass@16 less the control's, of runs whose validations share their random
    numbers by seed, as those of most studies do."""
    truths = {f"Δ pass@{k}, noise shared": model.truth(1, k) - model.truth(0, k) for k in (1, 16)}

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        right = model.draw_runs_alike(rng, model.draw_problems(rng), n_seeds)
        pairs = zip(truths, (1, 16), strict=True)
        scores = {name: model.score(right, k) for name, k in pairs}
        found = {
            name: difference_of_shares(arm, control, True).interval()
            for name, (control, arm) in scores.items()
        }
        return found, truths

    return draw


def draw_unpaired(model: Model, n_seeds: int) -> Draw:
    """The arm's pass@1 less the control's, of seeds that have nothing in common."""
    apart = replace(model, correlation=0.0)
    truths = {"Δ pass@1, seeds not paired": model.truth(1, 1) - model.truth(0, 1)}

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        control, arm = apart.draw_scores(rng, n_seeds, 1)
        return dict.fromkeys(truths, difference_of_shares(arm, control).interval()), truths

    return draw


def draw_factorial(model: Model, n_seeds: int) -> Draw:
    """The main effect of the first of two changes and their interaction, of four arms where the
    second change does nothing; and the gain of an arm over the policy that its seeds share."""
    start = replace(model, mean=model.mean - HEAD_START, seed=0.0, rest=0.0)
    truths = {
        "main effect": model.truth(1, 1) - model.truth(0, 1),
        "interaction": 0.0,
        "gain over the untrained": model.truth(0, 1) - start.truth(0, 1),
    }

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        problems = model.draw_problems(rng)
        neither, first = model.score(model.draw_runs(rng, problems, n_seeds), 1)
        second, both = model.score(model.draw_runs(rng, problems, n_seeds), 1)
        rates = logistic(problems[0] - HEAD_START)
        before = rng.binomial(model.rollouts, rates, (n_seeds, model.n_problems)) / model.rollouts
        pairs = {
            "main effect": ((both + first) / 2, (second + neither) / 2),
            "interaction": (both - first, second - neither),
        }
        found = {name: difference_of_shares(*pair, True).interval() for name, pair in pairs.items()}
        return found | {"gain over the untrained": gain_interval(neither, before)}, truths

    return draw


def draw_robust(model: Model, n_seeds: int, sets: int = 4) -> Draw:
    """IQM and P(better), over seeds alone, on one of some fixed sets of problems."""
    rng, known = np.random.default_rng(1), []
    for _ in range(sets):
        problems = sort_into_families(model.draw_problems(rng))
        control, arm = by_family(model.score(model.draw_runs(rng, problems, 1000), 1))
        better = probability_of_improvement(arm, control)
        known.append((problems, {"IQM": interquartile_mean(control), "P(better)": better}))

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        problems, truths = known[rng.integers(sets)]
        control, arm = by_family(model.score(model.draw_runs(rng, problems, n_seeds), 1))
        found = {
            "IQM": iqm_interval(control),
            "P(better)": improvement_interval(arm, control, paired_runs=True),
        }
        return found, truths

    return draw


def by_family(scores: Reals) -> Reals:
    """(..., FAMILIES) mean over the problems of each family."""
    return scores.reshape(*scores.shape[:-1], FAMILIES, -1).mean(axis=-1)


def sort_into_families(problems: Reals) -> Reals:
    """Problems with like ones in one family, half of their order being chance."""
    rng = np.random.default_rng(0)
    order = np.argsort(problems[0] + problems[0].std() * rng.normal(size=problems.shape[1]))
    return problems[:, order]


def draw_costs(model: Model, n_seeds: int) -> Draw:
    """The control's cost to come half of its way up, and the arm's cost over that."""
    model = replace(model, gain=0.0)
    ends = [replace(model, mean=model.mean + rise(cost)).truth(0, 1) for cost in COSTS[[0, -1]]]
    target = sum(ends) / 2
    control = true_cost(model, 1.0, target, 0)
    truths = {"cost": control, "ratio of costs": true_cost(model, SPEED, target, 1) / control}

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        base, arm = draw_curves(model, rng, n_seeds)
        found = {"cost": crossing_interval(POINTS, base, target)}
        ratio = crossing_ratio(POINTS, arm, base, target, paired_seeds=True)
        return found | ({"ratio of costs": ratio.interval} if ratio else {}), truths

    return draw


def draw_curves(model: Model, rng: np.random.Generator, n_seeds: int) -> Reals:
    """(2, S, X, P) pass@1 of a control and of an arm that rises faster."""
    problems, rounds = model.draw_problems(rng), []
    luck = model.draw_luck(rng, n_seeds)  # a run's luck lasts, its rollouts are drawn anew
    for cost in COSTS:
        moved = problems + np.array([rise(cost), rise(SPEED * cost)])[:, None]
        rates = logistic(moved[:, None] + luck)
        rounds.append(rng.binomial(model.rollouts, rates) / model.rollouts)
    table = np.stack(rounds, axis=2)
    right = np.clip(np.searchsorted(COSTS, POINTS), 1, len(COSTS) - 1)
    share = ((POINTS - COSTS[right - 1]) / (COSTS[right] - COSTS[right - 1]))[:, None]
    mixed: Reals = (1 - share) * table[:, :, right - 1] + share * table[:, :, right]
    return mixed


def rise(cost: float) -> float:
    """Gain on the scale of logits after a cost."""
    return float(1.6 * (1 - np.exp(-0.5 * cost)))


def true_cost(model: Model, speed: float, target: float, arm: int) -> float:
    """Where the expected curve, linear between validations, is at the target."""
    means = [model.mean + rise(speed * cost) for cost in COSTS]
    return float(np.interp(target, [replace(model, mean=m).truth(arm, 1) for m in means], COSTS))


def draw_metric(n_seeds: int) -> Draw:
    """The mean of a metric of training that has a trend, and noise that lasts some steps."""

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        noise = rng.normal(size=(n_seeds, 60))
        for step in range(1, 60):
            noise[:, step] += 0.8 * noise[:, step - 1]
        values = np.linspace(-1, 1, 60) + 0.2 * noise + 0.3 * rng.normal(size=(n_seeds, 1))
        found = mean_over_units(values.mean(axis=1)).interval()
        return {"metric of training": found}, {"metric of training": 0.0}

    return draw


def draw_seed_variance(n_seeds: int, share: float) -> Draw:
    """The variance between seeds, the rest's being 1 for each of 128 problems."""
    seed = share / (1 - share) / 128

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        table = np.sqrt(seed) * rng.normal(size=(n_seeds, 1)) + rng.normal(size=(n_seeds, 128))
        return {"seed variance": seed_variance_interval(table)}, {"seed variance": seed}

    return draw


@dataclass(frozen=True)
class Case:
    """A setting, and how often it is drawn of a thousand."""

    level: str  # of pass rates
    seed_share: float
    n_seeds: int
    share_of_draws: float
    make: Callable[[], Draw]


def cases() -> Iterator[Case]:
    """All that is simulated."""
    for n in SEEDS:
        for share in SEED_SHARES:
            for level, plain in LEVELS.items():
                model = with_seed_share(plain, share, n)
                for part, draw in (
                    *((1.0, draw_means), (0.5, draw_unpaired)),
                    *((1.0, draw_robust), (0.4, draw_costs)),
                ):
                    yield Case(level, share, n, part, lambda m=model, n=n, draw=draw: draw(m, n))
            yield Case("", share, n, 1.0, lambda n=n, share=share: draw_seed_variance(n, share))
        yield Case("", 1.0, n, 1.0, lambda n=n: draw_metric(n))
    for level, plain in LEVELS.items():
        few = replace(plain, n_problems=64)
        yield Case(level, 0.0, 1, 1.0, lambda few=few: draw_means(few, 1))
    for draw in (draw_factorial, draw_alike):
        for n, share in product(SEEDS, SEED_SHARES):
            for level, plain in LEVELS.items():
                model = with_seed_share(plain, share, n)
                yield Case(level, share, n, 0.5, lambda m=model, n=n, draw=draw: draw(m, n))


def table_cells(rows: list[dict[str, Any]]) -> Cells:
    """A row per estimate and level of pass rates, a column per number and share of seeds."""
    columns = [(1, 0.0), *((n, share) for n in (3, 5, 10) for share in SEED_SHARES)]
    header = [
        "interval",
        "pass rate",
        *(f"{n} seed{'s' * (n > 1)}, {100 * s:g} %" for n, s in columns),
    ]
    found = {(r["measure"], r["level"], r["n_seeds"], r["seed_share"]): r for r in rows}
    body = []
    for measure, level in dict.fromkeys((r["measure"], r["level"]) for r in rows):
        shown = [_cell_text(found.get((measure, level, *column))) for column in columns]
        if any(shown):
            body.append([measure, level, *shown])
    note = (
        "How many of 100 drawn 95 % intervals hold the truth; in the columns the share of the "
        "variance of a mean difference that seeds make; one seed: over 64 problems alone. Ratios "
        "of costs where there is one: the control's mean curve reaches the accuracy. In brackets: "
        "half of the studies or more have one and the same interval."
    )
    return Cells(header, body, note)


def _cell_text(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    held = f"{100 * row['covered']:.0f}"
    return f"({held})" if row["alike"] >= MOSTLY_ALIKE else held


def main() -> None:
    parser = argparse.ArgumentParser(description="Count how often printed intervals are right.")
    parser.add_argument("--draws", type=int, default=1000)
    draws, rows = parser.parse_args().draws, []
    for case in cases():
        wanted = max(2, round(draws * case.share_of_draws))
        facts = {"level": case.level, "seed_share": case.seed_share, "n_seeds": case.n_seeds}
        for measure, drawn in list_intervals(case.make(), wanted).items():
            held = float(np.mean([each.low <= truth <= each.high for each, truth in drawn]))
            alike = round(share_alike([each for each, _ in drawn]), 4)
            found = {"draws": len(drawn), "covered": held, "alike": alike}
            rows.append({"measure": measure, **facts, **found})
            print(*rows[-1].values(), flush=True)
    (FOLDER / "results.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    readme = FOLDER / "README.md"
    table = as_markdown(table_cells(rows), ("interval",))
    write_tables(readme, {"coverage": table})


if __name__ == "__main__":
    main()
