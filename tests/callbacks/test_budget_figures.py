"""What a row says about its step's budget is true of that very step, also when looking ahead."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import SEED, Fit, ScriptedEngine, slots

from e3rl.batch import Rollout, RolloutBatch
from e3rl.budgets.base import Budget
from e3rl.budgets.cero import Cero
from e3rl.budgets.dynamic_sampling import DynamicSampling
from e3rl.budgets.e3_rank import E3Rank
from e3rl.budgets.history import RewardHistory
from e3rl.budgets.hora import Hora, hit_utility
from e3rl.budgets.knapsack import Knapsack
from e3rl.budgets.metrics import gini
from e3rl.budgets.mopps import Mopps
from e3rl.budgets.neyman import Neyman
from e3rl.budgets.pilot_commit import PilotCommit
from e3rl.budgets.posterior_budget import PosteriorBudget
from e3rl.budgets.selection import SelectionBudget
from e3rl.budgets.sequential import Sequential
from e3rl.budgets.uniform import Uniform
from e3rl.budgets.utility import UtilityBudget
from e3rl.budgets.vcrl import Vcrl
from e3rl.callbacks.budget import RolloutBudget, traits
from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.engines.base import RolloutRequest

pytestmark = pytest.mark.end_to_end


PROMPTS, STEPS_PER_EPOCH, EPOCHS, MEAN = 4, 2, 3, 4
CAP = PROMPTS * MEAN
BOUNDS = {"n_low": 2, "n_high": 9}
# By name: the rule, and its (n_min, n_max) in an epoch.
RULES: dict[str, tuple[Callable[[], Budget], Callable[[int], tuple[int, int]]]] = {
    "uniform": (Uniform, lambda _: (4, 4)),
    "e3_rank": (lambda: E3Rank(**BOUNDS), lambda epoch: (2 if epoch else 4, min(9, 4 + 2 * epoch))),
    "e3_rank by length": (
        lambda: E3Rank(**BOUNDS, difficulty="length"),
        lambda epoch: (2 if epoch else 4, min(9, 4 + 2 * epoch)),
    ),
    "knapsack": (lambda: Knapsack(**BOUNDS), lambda _: (2, 9)),
    "knapsack in tokens": (
        lambda: Knapsack(**BOUNDS, decay=0.5, cost="tokens"),
        lambda _: (2, 9),
    ),
    "neyman": (lambda: Neyman(**BOUNDS), lambda _: (2, 9)),
    "hora": (lambda: Hora(**BOUNDS), lambda _: (2, 9)),
    "cero": (lambda: Cero(**BOUNDS), lambda _: (2, 9)),
    "hora in tokens": (lambda: Hora(**BOUNDS, cost="tokens"), lambda _: (2, 9)),
    "hora with a pilot": (lambda: Hora("pilot", **BOUNDS), lambda _: (2, 9)),
    "mopps": (Mopps, lambda _: (8, 8)),
    "vcrl": (Vcrl, lambda _: (8, 8)),
    "balanced": (lambda: Sequential(per_round=2, wanted=2), lambda _: (2, 8)),
    "positive": (lambda: Sequential("positive", per_round=2), lambda _: (2, 8)),
    "pilot_commit": (lambda: PilotCommit(2, 6), lambda _: (2, 8)),
    "dynamic_sampling": (DynamicSampling, lambda _: (0, 4)),
}
SEVERAL_ROUNDS = ("hora with a pilot", "balanced", "positive", "pilot_commit", "dynamic_sampling")
every = pytest.mark.parametrize("name", RULES)


def uneven(request: RolloutRequest) -> tuple[str, list[float]]:
    """Never, rarely, often or always right by the place in the batch; one to three tokens."""
    right = request.seed % 100 < (0, 20, 60, 100)[request.prompt % 4]
    return ("right" if right else "wrong"), [-1.0] * (1 + request.seed % 3)


@dataclass
class CountingEngine(ScriptedEngine):
    """Writes down the prompt rows of every round."""

    rounds: list[list[int]] = field(default_factory=list)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        self.rounds.append([request.prompt for request in requests])
        return super().generate(requests)


def fit_of(name: str, lookahead: int, folder: Path | None = None, **engine: Any) -> Fit:
    stack = slots(
        budget=RolloutBudget(RULES[name][0](), MEAN),
        rollout=RolloutSampler(CountingEngine(script=uneven, **engine), 3, SEED),
    )
    if folder:
        stack["checkpoint"] = RunCheckpoint(str(folder / "checkpoints"), every=1, keep=9)
    prompts = PROMPTS * STEPS_PER_EPOCH
    sizes = {"n_prompts": prompts, "per_step": PROMPTS, "epochs": EPOCHS}
    return Fit(stack, folder, lookahead=lookahead, **sizes)  # type: ignore[arg-type]


def reported(fit: Fit) -> list[dict[str, float]]:
    """Figures of the budget by step, without their prefix."""
    return [
        {k.removeprefix("budget/"): x for k, x in b.metrics.items() if k.startswith("budget/")}
        for b in fit.watcher.trained
    ]


def of_counts(sizes: np.ndarray, n_min: int, n_max: int) -> dict[str, float]:
    return {
        "n_min": n_min,
        "n_max": n_max,
        "std": sizes.std(),
        "gini": gini(sizes),
        "at_min": (sizes <= n_min).mean(),
        "at_max": (sizes >= n_max).mean(),
    }


def of_rounds(batch: RolloutBatch, rounds: list[list[int]], rule: Budget) -> dict[str, float]:
    sizes, right = batch.tally()
    first = len(rounds[0])
    group = batch.tensor("group")[:first].numpy()
    hits = np.bincount(group, batch.tensor("correct")[:first].numpy(), PROMPTS)
    shares = hits[np.unique(group)] / np.bincount(group, minlength=PROMPTS)[np.unique(group)]
    mixed = (right > 0) & (right < sizes)
    found = {
        "cap": CAP,
        "spent_share": sizes.sum() / CAP,
        "rounds": batch.rounds,
        "last_active": len(set(rounds[-1])) / PROMPTS,
        "first_accuracy": shares.mean(),
    }
    if isinstance(rule, DynamicSampling):
        found |= {"reached": (sizes > 0).mean(), "kept": mixed.sum() / (sizes > 0).sum()}
    if isinstance(rule, PilotCommit):
        found["committed"] = (sizes > 2).mean()
    if isinstance(rule, Sequential):
        done = mixed if rule.exit_rule == "balanced" else right > 0  # wanted=2 is one of both
        found["unresolved"] = (~done).mean()
    return found


def beliefs(batches: Sequence[RolloutBatch], decay: float) -> RewardHistory:
    """What is known after some steps."""
    history = RewardHistory(decay)
    for batch in batches:
        group, correct = batch.tensor("group"), batch.tensor("correct").double()
        history.observe(batch.prompt_ids, [correct[group == i].numpy() for i in range(PROMPTS)])
    return history


def of_beliefs(
    batch: RolloutBatch, decided: list[RolloutBatch], before: list[RolloutBatch], name: str
) -> dict[str, float]:
    """Figures of a believing rule that knew the steps `decided`, and `before` when it learnt."""
    rule, (sizes, right) = RULES[name][0](), batch.tally()
    assert isinstance(rule, PosteriorBudget)
    decay = rule._history.decay
    then = beliefs(decided, decay).of(batch.prompt_ids)
    late = beliefs(before, decay).of(batch.prompt_ids)
    p = late.posterior((1.0, 1.0)).mean
    found = {
        "brier": (right * (1 - p) ** 2 + (sizes - right) * p**2).sum() / sizes.sum(),
        "first_solved": (late.never_solved & (right > 0)).sum(),
    }
    if isinstance(rule, Hora):
        found["hits"] = (right > 0).mean()
    if isinstance(rule, Hora) and rule.mode == "pilot":
        return found
    found["unsolved_share"] = sizes[then.never_solved].sum() / sizes.sum()
    if isinstance(rule, SelectionBudget):
        found["selected_unseen"] = (then.rollouts == 0)[sizes > 0].mean()
    if isinstance(rule, Hora):
        found["expected_hits"] = hit_utility(then.posterior((1.0, 1.0)), sizes).mean()
    if isinstance(rule, UtilityBudget) and name.endswith("in tokens"):
        for earlier in decided:
            rule.describe(earlier.prompt_ids, traits(earlier))
        costs = rule.expected_tokens(batch.prompt_ids)
        assert costs is not None
        cap = CAP * costs.mean()
        found |= {"token_cap": cap, "tokens_share": sizes @ costs / cap}
    return found


@pytest.mark.parametrize("lookahead", [0, 1])
@every
def test_a_row_speaks_about_the_step_that_was_trained_on(name: str, lookahead: int) -> None:
    fit, (make, bounds) = fit_of(name, lookahead).fit(), RULES[name]
    batches, rule, engine = fit.watcher.trained, make(), fit.engine
    assert isinstance(engine, CountingEngine)
    rounds = iter(engine.rounds)
    for step, (batch, row) in enumerate(zip(batches, reported(fit), strict=True)):
        sizes = batch.tally()[0]
        expected = of_counts(sizes, *bounds(step // STEPS_PER_EPOCH))
        own = [next(rounds) for _ in range(batch.rounds)]
        if name in SEVERAL_ROUNDS:
            expected |= of_rounds(batch, own, rule)
        before, decided = batches[:step], batches[: max(step - lookahead, 0)]
        if isinstance(rule, PosteriorBudget):
            expected |= of_beliefs(batch, decided, before, name)
        if isinstance(rule, E3Rank):
            unsolved = beliefs(decided, rule._history.decay).of(batch.prompt_ids).never_solved
            expected["unsolved_share"] = sizes[unsolved].sum() / CAP
            expected["seen"] = len({x for b in batches[: step + 1] for x in b.prompt_ids})
            assert np.isnan(row["rank_drift"]) == (step < 2 * STEPS_PER_EPOCH)  # of two snapshots
        assert {k: row[k] for k in expected} == pytest.approx(expected)
        others = row.keys() - expected.keys()
        assert others <= {"length_correlation", "rank_drift", "calibration_error"}


@every
def test_a_run_resumed_ahead_reports_the_same_of_every_step(name: str, tmp_path: Path) -> None:
    whole = fit_of(name, 1, tmp_path, holds_weights=True).fit()  # sampled beside the update
    rest = fit_of(name, 1)
    rest.fit(tmp_path / "checkpoints" / "step-000003.ckpt")
    # NaN is not equal to itself, its text is.
    assert [repr(sorted(row.items())) for row in reported(rest)] == [
        repr(sorted(row.items())) for row in reported(whole)[3:]
    ]
