import torch

from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.packing import Pack, microbatches
from e3rl.training.forward import forward, per_token
from finished_batches import reference_logprobs


def test_log_probs_of_all_rollouts_stand_at_their_tokens_whatever_the_packs(policy, make_batch):
    batch = make_batch(group_sizes=(3, 1, 2))
    wanted = reference_logprobs(policy, batch).float()
    for budget in (1, 40, 10**6):
        packs = microbatches(batch.lengths, torch.arange(6), budget)
        values = per_token(policy, batch, packs, token_logprobs)
        assert torch.allclose(values, wanted, atol=1e-5)
        assert bool((values[~batch.completion_mask] == 0).all())
        assert not values.requires_grad


def test_rows_outside_the_packs_stay_0(policy, make_batch):
    batch = make_batch(group_sizes=(2, 1))
    values = per_token(policy, batch, [Pack(torch.tensor([2]))], token_logprobs)
    assert bool((values[:2] == 0).all())
    assert bool((values[2] != 0).any())


def test_a_micro_batch_is_cut_to_its_own_longest_rollout(policy, make_batch):
    batch = make_batch(group_sizes=(3, 2))
    shortest = int(batch.lengths.argmin())
    micro = forward(policy, batch, Pack(torch.tensor([shortest])))
    assert micro.positions.shape == (1, int(batch.lengths[shortest]))
    assert micro.logprobs.shape == (int(batch.completion_mask[shortest].sum()),)
    own = batch.sampler_logprobs[shortest][batch.completion_mask[shortest]]
    assert torch.equal(micro.sampler_logprobs, own)
