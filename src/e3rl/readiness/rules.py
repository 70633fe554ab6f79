"""Which budget rule makes most of these pass rates, played on them before anything is trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Budget
from e3rl.budgets.posterior import BetaPosterior
from e3rl.readiness.pass_rates import drawn_rates
from e3rl.seeds import derive_seed
from e3rl.simulator.gradient import noise
from e3rl.simulator.replay import Course, replay
from e3rl.simulator.table import PassRateTable

Reals = NDArray[np.float64]
MakeBudget = Callable[[], Budget]


@dataclass(frozen=True)
class Setting:
    """What rules are compared under.

    Args:
        loss: whose gradient's noise is compared, see `e3rl.simulator.gradient.LOSSES`.
        prompts: of a table. prompts_per_step, rollouts_per_prompt: as in training.
        epochs: passes over the table; the last one counts, when rules have learnt.
        tables: that are drawn; each rule plays on all of them.
    """

    loss: str
    prompts: int
    prompts_per_step: int
    rollouts_per_prompt: int
    epochs: int
    tables: int
    seed: int = 0


class Played(NamedTuple):
    """The last pass of every rule over every table."""

    noise: Reals  # (tables, rules) of the gradient; NaN where there is no signal
    reached: Reals  # (tables, rules) share of the prompts that got rollouts


@dataclass(frozen=True)
class Worth:
    """Rollouts a rule needs, beside those of another one on the same tables."""

    rule: str
    noise: float  # N·variance/signal², median over tables, see `e3rl.simulator.gradient.noise`
    ratio: float  # to the other rule's, median; below 1 is better
    low: float  # 2.5 % of the tables lie below
    high: float
    reached: float  # share of the prompts that it gives rollouts to, mean over tables


def play(rules: Mapping[str, MakeBudget], posterior: BetaPosterior, setting: Setting) -> Played:
    """Take every rule through the same tables, in the same orders and with the same seeds.

    Every table holds pass rates drawn anew from what is believed of them.
    """
    found = Played(*(np.full((setting.tables, len(rules)), np.nan) for _ in Played._fields))
    ids = [f"prompt-{i}" for i in range(setting.prompts)]
    for row in range(setting.tables):
        seed = derive_seed(setting.seed, "preflight", "table", row)
        rates = drawn_rates(posterior, setting.prompts, np.random.default_rng(seed))
        course = Course(PassRateTable(ids, rates), setting.prompts_per_step, seed)
        for column, make in enumerate(rules.values()):
            *_, last = replay(make(), course, setting.rollouts_per_prompt, setting.epochs)
            sampled = last.rollouts > 0
            rates, rollouts = last.rates[sampled], last.rollouts[sampled]
            found.noise[row, column] = noise(setting.loss, rates, rollouts)
            found.reached[row, column] = sampled.mean()
    return found


def ranked(names: list[str], played: Played, beside: str) -> list[Worth]:
    """Rules from the least noise to the most, each beside the rule `beside`.

    Tables without a signal for all of them are left out; where none is left there is no order.
    """
    has_signal = np.isfinite(played.noise) & (played.noise > 0)
    noises = played.noise[has_signal.all(axis=1)]
    if not len(noises):
        return []
    medians = np.median(noises, axis=0)
    ratios = noises / noises[:, [names.index(beside)]]
    low, middle, high = np.quantile(ratios, [0.025, 0.5, 0.975], axis=0)
    found = [
        Worth(name, *map(float, row))
        for name, *row in zip(
            names, medians, middle, low, high, played.reached.mean(axis=0), strict=True
        )
    ]
    return sorted(found, key=lambda worth: worth.noise)
