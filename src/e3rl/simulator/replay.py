"""Passes of a budget rule over a table of pass rates: what training would do, rewards drawn."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Allocation, Budget, NeedsGradNorms, NeedsTraits, SingleRound
from e3rl.budgets.history import CountedRewards
from e3rl.budgets.keys import SharedIds
from e3rl.data.prompt_order import PromptOrder
from e3rl.seeds import derive_seed
from e3rl.simulator.table import PassRateTable

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]
T = TypeVar("T")

USES_GRADIENT_NORMS = "weighs by gradient norms"
NOT_IN_TABLE = "of which a table of pass rates has none"


@dataclass(frozen=True)
class PassResult:
    """One pass over all prompts, in the order of the table."""

    epoch: int
    rates: Reals  # (N,) pass rates that the rewards were drawn from
    rollouts: Counts  # (N,), 0 for prompts that a rule left out
    right: Reals  # (N,)
    first_solved: int  # prompts solved now that earlier passes had sampled in vain
    cap: int  # rollouts that the rule might have spent
    seconds: float  # of processor time, for the rule alone: deciding and learning
    fixed: bool  # every step's numbers of rollouts were known before its first reward

    def sampled_groups(self) -> tuple[Reals, Counts, Reals | None]:
        """Rates, rollouts and right ones of the prompts that were sampled, (P,) each.

        They are what `simulator.gradient` takes; right ones are None where numbers were fixed.
        """
        sampled = self.rollouts > 0
        right = None if self.fixed else self.right[sampled]
        return self.rates[sampled], self.rollouts[sampled], right


class SimulatedStep:
    """Rollouts and right ones of the prompts of one step, as far as it has been sampled.

    It stands in for a batch: budget rules that decide in rounds read its `tally`.

    Args:
        rates: (B,) pass rates of the prompts. generator: that rewards are drawn with.
    """

    def __init__(self, rates: Reals, generator: np.random.Generator) -> None:
        self.rates = rates
        self._generator = generator
        self.rollouts = np.zeros(rates.size, dtype=np.int64)
        self.right = np.zeros(rates.size)

    def tally(self) -> tuple[Counts, Reals]:
        """(B,) rollouts so far, and (B,) right ones among them."""
        return self.rollouts, self.right

    def add(self, counts: Counts) -> None:
        """Sample `counts` (B,) more rollouts."""
        self.rollouts = self.rollouts + counts
        self.right = self.right + self._generator.binomial(counts, self.rates)

    def rewards(self) -> CountedRewards:
        """0/1 rewards of every prompt."""
        return CountedRewards(self.right, self.rollouts)


class Workload:
    """What every rule is replayed on: the steps of passes over a table, made once for all rules.

    Prompts come as from the training loader, in an order that depends on the seed and the pass
    alone; like the loader, a pass leaves out what does not fill a step.

    Raises ValueError where a step is larger than the table.
    """

    def __init__(self, table: PassRateTable, prompts_per_step: int, seed: int = 0) -> None:
        if not 1 <= prompts_per_step <= len(table):
            raise ValueError(
                f"prompts_per_step={prompts_per_step} for a table of {len(table)} prompts: use 1 "
                f"to {len(table)}"
            )
        self.table = table
        self.seed = seed
        self.steps_per_pass = len(table) // prompts_per_step
        self.prompts_per_step = prompts_per_step
        self._ids = np.array(table.prompt_ids, dtype=object)
        self._passes: dict[int, list[tuple[Counts, SharedIds]]] = {}

    def steps(self, epoch: int) -> list[tuple[Counts, SharedIds]]:
        """Rows in the table (B,) and prompt ids of the steps of pass `epoch`."""
        if epoch not in self._passes:
            generator = np.random.default_rng(derive_seed(self.seed, "order", epoch))
            order = generator.permutation(len(self.table))
            order = order[: self.steps_per_pass * self.prompts_per_step]
            parts = np.split(order, self.steps_per_pass)
            self._passes[epoch] = [(rows, self.prompt_ids_of(rows)) for rows in parts]
        return self._passes[epoch]

    def prompt_ids_of(self, rows: Counts) -> SharedIds:
        """Prompt ids of rows of the table."""
        return SharedIds(self._ids[rows].tolist())

    def order_after(self, number: int) -> PromptOrder:
        """The loader's order after step `number`, for a rule that handed prompts back in it."""
        order = PromptOrder(len(self.table), self.prompts_per_step, self.seed)
        order.load_state_dict({"taken": (number + 1) * self.prompts_per_step, "waiting": []})
        return order

    def generator(self, number: int) -> np.random.Generator:
        """What the rewards of step `number`, counted over all passes, are drawn with."""
        return np.random.default_rng(derive_seed(self.seed, "rewards", number))


def replay(
    budget: Budget, workload: Workload, rollouts_per_prompt: int, epochs: int
) -> Iterator[PassResult]:
    """Take `budget` through `epochs` passes over the table, step by step as training would.

    A pass is as many steps as the table fills: one over all prompts, or part of it where a rule
    hands prompts back to come again; the rollouts of those that come twice are added up.

    Raises ValueError for a rule that goes by more than rewards, see `describe_missing_input`.
    """
    if unknown := describe_missing_input(budget):
        remedy = (
            "unit_norms=true"
            if unknown == USES_GRADIENT_NORMS
            else "difficulty=reward or cost=rollouts"
        )
        raise ValueError(f"{type(budget).__name__} {unknown}, {NOT_IN_TABLE}: set {remedy}")
    n = len(workload.table)
    tried, solved = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    own: PromptOrder | None = None  # of a rule that has handed prompts back
    for epoch in range(epochs):
        rates = workload.table.rates_at(epoch)
        rollouts, right = np.zeros(n, dtype=np.int64), np.zeros(n)
        seconds, fixed = 0.0, True
        for index, (rows, prompt_ids) in enumerate(workload.steps(epoch)):
            number = epoch * workload.steps_per_pass + index
            if own is not None:
                rows = np.array(own.take())
                prompt_ids = workload.prompt_ids_of(rows)
            step = SimulatedStep(rates[rows], workload.generator(number))
            total = rollouts_per_prompt * rows.size
            played = simulate_step(budget, prompt_ids, step, total, number, epoch)
            seconds += played.seconds
            fixed &= played.fixed
            rollouts[rows] += step.rollouts
            right[rows] += step.right
            unreached = rows[step.rollouts == 0]
            if played.requeue and unreached.size:
                own = own or workload.order_after(number)
                own.hand_back(unreached.tolist())
        first_solved = int((tried & ~solved & (right > 0)).sum())
        cap = rollouts_per_prompt * workload.prompts_per_step * workload.steps_per_pass
        yield PassResult(epoch, rates, rollouts, right, first_solved, cap, seconds, fixed)
        tried |= rollouts > 0
        solved |= right > 0


def select_rules(known: Mapping[str, T], names: Sequence[str]) -> dict[str, T]:
    """The rules of these names; all that are known where no name is given.

    Raises ValueError for a name that is not known.
    """
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"rules={unknown}: use some of {', '.join(known)}")
    return {name: known[name] for name in names or known}


def describe_missing_input(budget: Budget) -> str:
    """What a rule needs beside rewards, which a table does not have; "" where it needs no more."""
    if isinstance(budget, NeedsGradNorms) and budget.needs_grad_norms:
        return USES_GRADIENT_NORMS
    traits = budget.needed_traits if isinstance(budget, NeedsTraits) else ()
    return f"goes by the prompts' {' and '.join(traits)}" if traits else ""


class PlayedStep(NamedTuple):
    """What a rule did in a step beside the rollouts."""

    seconds: float  # of processor time of the rule
    requeue: bool  # prompts without rollouts are to come again
    fixed: bool  # numbers of rollouts were known before the first reward


def simulate_step(
    budget: Budget,
    prompt_ids: Sequence[str],
    step: SimulatedStep,
    total: int,
    number: int,
    epoch: int,
) -> PlayedStep:
    """Let a rule decide, sample its rounds, and let it observe the rewards, as in training.

    Args:
        budget: the rule. prompt_ids: (B,) of the step. step: what is sampled.
        total: rollouts that the rule may spend. number, epoch: of the step.
    """
    started = time.process_time()
    decision = budget.decide(prompt_ids, total, number, epoch)
    spent = time.process_time() - started + _sample_rounds(decision.allocation, step)
    rewards = step.rewards()
    started = time.process_time()
    budget.observe(prompt_ids, rewards)
    spent += time.process_time() - started
    return PlayedStep(spent, decision.requeue, isinstance(decision.allocation, SingleRound))


def _sample_rounds(allocation: Allocation[SimulatedStep], step: SimulatedStep) -> float:
    """Sample all rounds of an allocation; returns the processor seconds of the allocation."""
    spent = 0.0
    while True:
        started = time.process_time()
        counts = allocation.next(step)
        spent += time.process_time() - started
        if counts is None:
            return spent
        step.add(np.array(counts, dtype=np.int64))
