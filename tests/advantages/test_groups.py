import torch

from e3rl.advantages.groups import constant_groups


def test_a_group_is_constant_up_to_a_millionth():
    rewards = torch.tensor([0.7, 0.7 + 5e-7, 0.7, 0.7 + 1e-5, 1.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1, 2])
    assert constant_groups(rewards, group, 4).tolist() == [True, False, True, True]
