import torch

from e3rl.functional.ragged import group_counts, group_means, group_sums


def test_counts_sums_and_means_of_ragged_groups_with_an_empty_one():
    values, group = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([2, 0, 2])
    assert group_counts(group, 4).tolist() == [1, 0, 2, 0]
    assert group_sums(values, group, 4).tolist() == [2.0, 0.0, 7.0, 0.0]
    assert group_means(values, group, 4).tolist() == [2.0, 0.0, 3.5, 0.0]


def test_a_mean_hands_its_gradient_to_its_members_in_equal_parts():
    values = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    group_means(values, torch.tensor([1, 0, 1]), 2)[1].backward()
    assert values.grad.tolist() == [0.5, 0.0, 0.5]
