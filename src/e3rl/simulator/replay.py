"""Passes of a budget rule over a table of pass rates: what training would do, rewards drawn."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Budget, StepPlan
from e3rl.seeds import derive_seed
from e3rl.simulator.table import PassRateTable

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Passage:
    """One pass over all prompts, in the order of the table."""

    epoch: int
    rates: Reals  # (N,) pass rates that the rewards were drawn from
    rollouts: Counts  # (N,), 0 for prompts that a rule left out
    right: Reals  # (N,)
    first_solved: int  # prompts solved now that earlier passes had sampled in vain
    cap: int  # rollouts that the rule might have spent
    seconds: float  # of processor time, for the rule alone: deciding and learning


class SimulatedStep:
    """The rollouts of a step as numbers; the tally that plans of several rounds look at."""

    def __init__(self, rates: Reals, generator: np.random.Generator) -> None:
        self.rates = rates
        self._generator = generator
        self.rollouts = np.zeros(rates.size, dtype=np.int64)
        self.right = np.zeros(rates.size)

    def tally(self) -> tuple[Counts, Reals]:
        return self.rollouts, self.right

    def add(self, counts: Counts) -> None:
        """Sample `counts` (B,) more rollouts."""
        self.rollouts = self.rollouts + counts
        self.right = self.right + self._generator.binomial(counts, self.rates)

    def rewards(self) -> list[Reals]:
        """B arrays of 0/1 rewards, right ones first."""
        ends = np.cumsum(self.rollouts)
        position = np.arange(ends[-1]) - np.repeat(ends - self.rollouts, self.rollouts)
        flat = (position < np.repeat(self.right, self.rollouts)).astype(np.float64)
        starts = (ends - self.rollouts).tolist()
        return [flat[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


def replay(
    budget: Budget,
    table: PassRateTable,
    prompts_per_step: int,
    rollouts_per_prompt: int,
    epochs: int,
    seed: int = 0,
) -> Iterator[Passage]:
    """Take `budget` through `epochs` passes over the table, step by step as training would.

    Prompts come in an order that depends on the seed and the pass alone, so that all rules see
    the same steps; like the loader, a pass leaves out what does not fill a step.

    Raises ValueError where a step is larger than the table.
    """
    if not 1 <= prompts_per_step <= len(table):
        raise ValueError(
            f"prompts_per_step={prompts_per_step} for a table of {len(table)} prompts: use 1 to "
            f"{len(table)}"
        )
    ids = np.array(table.prompt_ids, dtype=object)
    tried, solved = np.zeros(len(table), dtype=bool), np.zeros(len(table), dtype=bool)
    steps = len(table) // prompts_per_step
    for epoch in range(epochs):
        order = np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(len(table))
        rates = table.at(epoch)
        rollouts, right = np.zeros(len(table), dtype=np.int64), np.zeros(len(table))
        seconds = 0.0
        for index in range(steps):
            rows = order[index * prompts_per_step : (index + 1) * prompts_per_step]
            number = epoch * steps + index
            generator = np.random.default_rng(derive_seed(seed, "rewards", number))
            step = SimulatedStep(rates[rows], generator)
            total = rollouts_per_prompt * rows.size
            seconds += take_step(budget, ids[rows].tolist(), step, total, number, epoch)
            rollouts[rows], right[rows] = step.rollouts, step.right
        first_solved = int((tried & ~solved & (right > 0)).sum())
        cap = rollouts_per_prompt * prompts_per_step * steps
        yield Passage(epoch, rates, rollouts, right, first_solved, cap, seconds)
        tried |= rollouts > 0
        solved |= right > 0


def take_step(
    budget: Budget, prompt_ids: list[str], step: SimulatedStep, total: int, number: int, epoch: int
) -> float:
    """Decide, sample round by round, learn; returns the processor seconds of the rule."""
    started = time.process_time()
    plan = budget.decide(prompt_ids, total, number, epoch).plan
    spent = time.process_time() - started + _sampled(plan, step)
    rewards = step.rewards()
    started = time.process_time()
    budget.observe(prompt_ids, rewards)
    return spent + time.process_time() - started


def _sampled(plan: StepPlan, step: SimulatedStep) -> float:
    """Sample all rounds of a plan; returns the processor seconds of the plan."""
    spent = 0.0
    while True:
        started = time.process_time()
        counts = plan.next(step)
        spent += time.process_time() - started
        if counts is None:
            return spent
        step.add(np.array(counts, dtype=np.int64))
