"""Optimiser states that are on the device in optimiser steps alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import AdamW, Optimizer

from e3rl.batch import RolloutBatch
from e3rl.functional.surrogates import Surrogate, SurrogateInput
from e3rl.policy.policy import Policy
from e3rl.training import module as updating
from e3rl.training import offload
from e3rl.training.fsdp2 import FSDP2Strategy
from update_harness import ADAMW, fit, make_loss, make_module


def places(optimizer: Optimizer) -> dict[str, str]:
    (states,) = optimizer.state.values()
    return {name: value.device.type for name, value in states.items()}


def test_states_come_for_a_step_and_leave_again_but_for_the_count_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload, "HOST", torch.device("meta"))  # another device than the weight's
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([weight])
    weight.grad = torch.ones(3)
    with offload.states_on_device(optimizer):
        optimizer.step()
        assert places(optimizer) == {"step": "cpu", "exp_avg": "cpu", "exp_avg_sq": "cpu"}
    assert places(optimizer) == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}

    elsewhere = torch.nn.Parameter(torch.ones(3, device="meta"))
    other = AdamW([elsewhere])
    other.state[elsewhere] = {"exp_avg": torch.zeros(3)}
    offload.move_states(other)
    assert places(other) == {"exp_avg": "meta"}  # where its weight is


@pytest.mark.usefixtures("rank_of_its_own")
@pytest.mark.parametrize("trainer", [{}, {"strategy": FSDP2Strategy}], ids=["alone", "fsdp2"])
def test_training_learns_the_same(
    trainer: dict[str, Any], policy: Policy, make_batch: Callable[..., RolloutBatch]
) -> None:
    batches = [make_batch(policy=policy, seed=seed) for seed in range(2)]
    found = []
    for offloaded in (False, True):
        module = make_module(policy, optimizer=ADAMW, offload_optimizer=offloaded, minibatches=2)
        made = {name: kind() for name, kind in trainer.items()}
        found.append(fit(module, batches, **made).weights[-1])
    assert all(torch.equal(value, found[0][name]) for name, value in found[1].items())


def test_states_leave_before_the_first_rollouts_and_come_for_steps_that_are_taken_alone(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, make_batch: Callable[..., RolloutBatch]
) -> None:
    moves: list[str] = []
    armed: list[float] = []  # losses are tried out when they are made

    def recorded(optimizer: Optimizer, to: torch.device | None = None) -> None:
        moves.append("come" if to is None else f"go to {to}")

    def broken_once(inputs: SurrogateInput) -> Surrogate:
        value = -inputs.logprobs * inputs.advantages
        return Surrogate(value * (armed.pop() if armed else 1.0), inputs.advantages < 0)

    monkeypatch.setattr(updating, "move_states", recorded)
    monkeypatch.setattr(offload, "move_states", recorded)
    module = make_module(
        policy, make_loss(surrogate=broken_once), ADAMW, offload_optimizer=True, nonfinite_steps=1
    )
    armed.append(torch.nan)
    fitted = fit(module, [make_batch(policy=policy, seed=seed) for seed in range(2)])
    assert [report["policy/nonfinite_steps"] for report in fitted.reports] == [1, 0]
    assert moves == ["go to cpu", "come", "go to cpu"]
