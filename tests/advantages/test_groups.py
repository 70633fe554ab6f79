import torch

from e3rl.advantages.groups import constant_groups, group_counts, group_means


def test_counts_and_means_of_ragged_groups_with_an_empty_one():
    values, group = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([2, 0, 2])
    assert group_counts(group, 4).tolist() == [1, 0, 2, 0]
    assert group_means(values, group, 4).tolist() == [2.0, 0.0, 3.5, 0.0]


def test_a_group_is_constant_up_to_a_millionth():
    rewards = torch.tensor([0.7, 0.7 + 5e-7, 0.7, 0.7 + 1e-5, 1.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1, 2])
    assert constant_groups(rewards, group, 4).tolist() == [True, False, True, True]
