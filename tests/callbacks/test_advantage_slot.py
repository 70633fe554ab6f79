"""The advantage slot: shaped rewards, ragged groups, pooled over rounds."""

from types import SimpleNamespace

import pytest
import torch
from scripted import scored_batch

from e3rl.advantages.centred import Centred
from e3rl.advantages.grpo import GroupNormalized
from e3rl.advantages.pass_at_k import PassAtKAdvantage
from e3rl.callbacks.advantage import Advantage

GROUPS = [[(1.0, [-1.0]), (0.0, [-1.0]), (0.0, [-1.0])], [(1.0, [-1.0])], [(0.0, [-1.0])] * 2]


def test_advantages_are_made_from_rewards_within_each_group() -> None:
    batch = scored_batch(GROUPS)
    batch.rewards = batch.tensor("correct") * 0.9
    Advantage(Centred()).on_train_batch_start(None, None, batch, 0)  # type: ignore[arg-type]
    assert batch.tensor("advantages").tolist() == pytest.approx([0.6, -0.3, -0.3, 0, 0, 0])


def test_constant_groups_and_singletons_get_exactly_zero() -> None:
    batch = scored_batch(GROUPS)
    Advantage(GroupNormalized()).on_train_batch_start(None, None, batch, 0)  # type: ignore[arg-type]
    assert batch.tensor("advantages")[3:].tolist() == [0.0, 0.0, 0.0]
    assert batch.tensor("advantages").dtype == torch.float32
    assert batch.tensor("advantages")[0] > 1


def test_the_share_of_prompts_that_teach_nothing_is_reported() -> None:
    batch = scored_batch(GROUPS)
    Advantage(Centred()).on_train_batch_start(None, None, batch, 0)  # type: ignore[arg-type]
    assert batch.metrics["advantage/silent"] == pytest.approx(2 / 3)


def test_a_schedule_is_told_the_step_and_the_length_of_the_run() -> None:
    batch = scored_batch(GROUPS)
    loop = SimpleNamespace(total_batch_idx=3)
    trainer = SimpleNamespace(fit_loop=loop, max_epochs=2, num_training_batches=2)
    slot = Advantage(PassAtKAdvantage(k=7, final_k=1))
    slot.on_train_batch_start(trainer, None, batch, 0)  # type: ignore[arg-type]
    assert batch.metrics["advantage/k"] == 1


def test_stopped_rollouts_are_in_no_baseline_and_others_count_by_their_weights() -> None:
    batch = scored_batch([[(1.0, [-1.0]), (0.0, [-1.0]), (0.0, [-1.0]), (0.0, [-1.0])]])
    batch.weights = torch.tensor([1.0, 0.0, 4.0, 1.0])
    Advantage(Centred()).on_train_batch_start(None, None, batch, 0)  # type: ignore[arg-type]
    third = 1 / 3  # the mean of the three that count
    wanted = [1 - third, 0.0, -4 * third, -third]
    assert batch.tensor("advantages").tolist() == pytest.approx(wanted)


def test_advantages_count_by_the_weight_of_their_prompt() -> None:
    batch = scored_batch([[(1.0, [-1.0]), (0.0, [-1.0])], [(1.0, [-1.0]), (0.0, [-1.0])]])
    batch.prompt_weights = torch.tensor([0.5, 1.5])
    Advantage(Centred()).on_train_batch_start(None, None, batch, 0)  # type: ignore[arg-type]
    assert batch.tensor("advantages").tolist() == pytest.approx([0.25, -0.25, 0.75, -0.75])


def test_rollouts_are_whole_and_count_once_unless_told() -> None:
    assert scored_batch(GROUPS).tensor("weights").tolist() == [1.0] * 6
