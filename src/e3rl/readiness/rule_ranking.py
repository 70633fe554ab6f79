"""Budget rules ranked by replaying them on estimated pass rates, before anything is trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Budget
from e3rl.seeds import derive_seed
from e3rl.simulator.gradient import gradient_noise_scale
from e3rl.simulator.replay import Workload, replay
from e3rl.simulator.table import PassRateTable

Reals = NDArray[np.float64]
MakeBudget = Callable[[], Budget]
DrawRates = Callable[[int, np.random.Generator], Reals]  # so many pass rates


@dataclass(frozen=True)
class ComparisonSettings:
    """What rules are compared under.

    Args:
        loss: whose gradient's noise is compared, see `e3rl.simulator.gradient.LOSSES`.
        prompts: of a table. prompts_per_step, rollouts_per_prompt: as in training.
        epochs: passes over the table; the last one counts, when rules have learnt.
        tables: that are drawn; each rule is replayed on all of them.
    """

    loss: str
    prompts: int
    prompts_per_step: int
    rollouts_per_prompt: int
    epochs: int
    tables: int
    seed: int = 0


class ReplayScores(NamedTuple):
    """The last pass of every rule over every table."""

    noise: Reals  # (tables, rules) of the gradient; NaN where there is no signal
    reached: Reals  # (tables, rules) share of the prompts that got rollouts


@dataclass(frozen=True)
class RuleScore:
    """How many rollouts a rule needs, as a multiple of what a reference rule needs."""

    rule: str
    noise: float  # the gradient noise scale (`simulator.gradient`), median over tables
    ratio: float  # of its noise scale to the reference's, median; below 1 is better
    low: float  # 2.5 % of the tables lie below
    high: float
    reached: float  # share of the prompts that it gives rollouts to, mean over tables


def replay_rules(
    rules: Mapping[str, MakeBudget], draw: DrawRates, settings: ComparisonSettings
) -> ReplayScores:
    """Take every rule through the same tables, in the same orders and with the same seeds.

    The noise of a rule that decides in rounds is that of the rewards drawn for it, see
    `simulator.gradient`, and so differs between small tables by these as well.

    Args:
        rules: what makes each rule, by name. draw: the pass rates of a table, anew for each.
        settings: of the comparison.
    """
    found = ReplayScores(
        *(np.full((settings.tables, len(rules)), np.nan) for _ in ReplayScores._fields)
    )
    ids = [f"prompt-{i}" for i in range(settings.prompts)]
    for row in range(settings.tables):
        seed = derive_seed(settings.seed, "preflight", "table", row)
        rates = draw(settings.prompts, np.random.default_rng(seed))
        workload = Workload(PassRateTable(ids, rates), settings.prompts_per_step, seed)
        for column, make in enumerate(rules.values()):
            *_, last = replay(make(), workload, settings.rollouts_per_prompt, settings.epochs)
            groups = last.sampled_groups()
            found.noise[row, column] = gradient_noise_scale(settings.loss, *groups)
            found.reached[row, column] = (last.rollouts > 0).mean()
    return found


def rank_rules(names: list[str], replays: ReplayScores, reference: str) -> list[RuleScore]:
    """Rules from the least noise to the most, each compared with the rule `reference`.

    Tables without a signal for all of them are left out; where none is left there is no order.
    """
    has_signal = np.isfinite(replays.noise) & (replays.noise > 0)
    noises = replays.noise[has_signal.all(axis=1)]
    if not len(noises):
        return []
    medians = np.median(noises, axis=0)
    ratios = noises / noises[:, [names.index(reference)]]
    low, middle, high = np.quantile(ratios, [0.025, 0.5, 0.975], axis=0)
    found = [
        RuleScore(name, *map(float, row))
        for name, *row in zip(
            names, medians, middle, low, high, replays.reached.mean(axis=0), strict=True
        )
    ]
    return sorted(found, key=lambda score: score.noise)
