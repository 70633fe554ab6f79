"""The advantage slot: shaped rewards, ragged groups, pooled over rounds."""

import pytest
import torch
from scripted import scored_batch

from e3rl.advantages.centred import Centred
from e3rl.advantages.grpo import GroupNormalized
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
