from dataclasses import fields

import pytest
import torch

from e3rl.batch import (
    WRITERS,
    MeasuredEntropy,
    Rollout,
    RolloutBatch,
    RolloutScore,
    hold_prompts,
    join_columns,
    prompt_columns,
)

RIGHT, WRONG = RolloutScore(1.0, 0.75, "12"), RolloutScore(0.0, -0.25)


def empty_batch(n_prompts: int = 3) -> RolloutBatch:
    return RolloutBatch(
        prompt_ids=[f"p{i}" for i in range(n_prompts)],
        prompts=["?"] * n_prompts,
        answers=["1"] * n_prompts,
        sources=["made"] * n_prompts,
        prompt_tokens=[[5]] * n_prompts,
    )


def rollout(prompt: int, sample: int, prompt_tokens: tuple[int, ...], *tokens: int) -> Rollout:
    return Rollout(
        prompt=prompt,
        sample=sample,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        logprobs=tuple(-0.5 * (i + 1) for i in range(len(tokens))),
        temperature=0.5 + sample,
        truncated=len(tokens) > 2,
        text="".join(map(str, tokens)),
        policy_version=7,
    )


def test_one_round_is_stacked_with_right_padding_and_a_mask_on_sampled_tokens():
    batch = empty_batch()
    batch.extend([rollout(2, 0, (5, 6), 7), rollout(0, 0, (5,), 8, 9, 4)], [RIGHT, WRONG], pad=99)
    assert batch.tokens.tolist() == [[5, 6, 7, 99], [5, 8, 9, 4]]
    assert batch.completion_mask.tolist() == [
        [False, False, True, False],
        [False, True, True, True],
    ]
    assert batch.sampler_logprobs.tolist() == [[0, 0, -0.5, 0], [0, -0.5, -1.0, -1.5]]
    assert batch.lengths.tolist() == [3, 4]
    assert batch.group.tolist() == [2, 0]
    assert batch.correct.tolist() == [1.0, 0.0]
    assert batch.rewards.tolist() == [0.75, -0.25]
    assert batch.truncated.tolist() == [False, True]
    assert batch.policy_version.tolist() == [7, 7]
    assert batch.completions == ["7", "894"]
    assert batch.given_answers == ["12", None]


def test_later_rounds_widen_the_padding_of_earlier_ones_and_keep_their_rows():
    batch = empty_batch()
    batch.extend([rollout(0, 0, (5,), 7)], [RIGHT], pad=99)
    batch.extend([rollout(0, 1, (5,), 1, 2, 3), rollout(1, 0, (5, 6), 4)], [WRONG, RIGHT], pad=99)
    batch.extend([rollout(1, 1, (5, 6), 4)], [WRONG], pad=99)
    assert batch.tokens.tolist() == [[5, 7, 99, 99], [5, 1, 2, 3], [5, 6, 4, 99], [5, 6, 4, 99]]
    assert batch.completion_mask.sum(dim=1).tolist() == [1, 3, 1, 1]
    assert batch.completion_mask.dtype == torch.bool
    assert batch.sampler_logprobs[0].tolist() == [0.0, -0.5, 0.0, 0.0]
    assert batch.rounds == 3
    assert batch.group_sizes.tolist() == [2, 2, 0]
    assert batch.n_rollouts == 4
    assert len(batch.completions) == 4
    assert batch.given_answers == ["12", None, "12", None]


def test_an_empty_round_counts_as_a_round_and_adds_nothing():
    batch = empty_batch()
    batch.extend([rollout(0, 0, (5,), 7)], [RIGHT], pad=0)
    batch.extend([], [], pad=0)
    assert batch.tokens.tolist() == [[5, 7]]
    assert (batch.rounds, batch.n_rollouts) == (2, 1)


def test_the_tally_counts_rollouts_and_right_ones_of_all_rounds_by_prompt():
    batch = empty_batch()
    assert [x.tolist() for x in batch.tally()] == [[0, 0, 0], [0, 0, 0]]
    batch.extend([rollout(2, 0, (5,), 7), rollout(0, 0, (5,), 8)], [RIGHT, WRONG], pad=99)
    batch.extend([rollout(2, 1, (5,), 7)], [RIGHT], pad=99)
    assert [x.tolist() for x in batch.tally()] == [[1, 0, 2], [0, 0, 2]]


def test_a_batch_without_rollouts_has_groups_of_size_zero():
    assert empty_batch(2).group_sizes.tolist() == [0, 0]
    assert empty_batch(2).n_rollouts == 0


@pytest.mark.parametrize("tokens", [(), (1, 2)])
def test_extend_refuses_rollouts_without_one_log_prob_per_token(tokens):
    good = rollout(1, 4, (5,), 1)
    bad = Rollout(**(vars(good) | {"tokens": tokens}))
    with pytest.raises(ValueError, match=f"rollout 4 of prompt row 1: {len(tokens)} tokens with 1"):
        empty_batch().extend([bad], [RIGHT], pad=0)


def test_extend_refuses_another_number_of_scores_before_it_changes_anything():
    batch = empty_batch()
    with pytest.raises(ValueError, match="1 rollouts came with 2 scores"):
        batch.extend([rollout(0, 0, (5,), 1)], [RIGHT, WRONG], pad=0)
    assert batch.rounds == 0
    assert batch.tokens is None


def test_every_field_that_a_slot_fills_in_names_that_slot_when_it_is_missing():
    late = {item.name for item in fields(RolloutBatch) if item.default is None}
    late -= {"under_way", "truncation_of"}  # written by nobody whom one could ask for
    assert late == set(WRITERS)
    for name in late:
        with pytest.raises(RuntimeError, match=rf"batch\.{name} is missing: the `{WRITERS[name]}`"):
            empty_batch().require(name)


def test_require_passes_over_present_fields_and_tensor_returns_them():
    batch = empty_batch()
    batch.rewards = torch.ones(2)
    batch.require("rewards", "prompt_ids")
    assert batch.tensor("rewards") is batch.rewards
    with pytest.raises(RuntimeError, match="`advantage` slot"):
        batch.tensor("advantages")


def test_moving_a_batch_keeps_its_identity_and_moves_every_tensor(make_batch):
    batch = make_batch()
    prompts = batch.prompts
    assert batch.to("meta") is batch
    tensors = [getattr(batch, item.name) for item in fields(batch)]
    assert {t.device.type for t in tensors if isinstance(t, torch.Tensor)} == {"meta"}
    assert batch.prompts is prompts


def test_a_finished_batch_passes_its_check(make_batch):
    batch = make_batch()
    batch.check()
    batch.advantages = None
    with pytest.raises(RuntimeError, match=r"batch\.advantages is missing"):
        batch.check()  # one field less, and it is none any more


def test_check_names_the_slot_of_a_missing_field(make_batch):
    batch = make_batch()
    batch.advantages = None
    with pytest.raises(RuntimeError, match="`advantage` slot"):
        batch.check()


@pytest.mark.parametrize(
    "name",
    [
        *("group", "sample", "temperatures", "lengths", "completion_mask", "sampler_logprobs"),
        *("truncated", "policy_version", "correct", "rewards", "advantages"),
    ],
)
@pytest.mark.parametrize("damage", [lambda x: x[1:], lambda x: x.to(torch.float64)])
def test_check_refuses_any_field_of_another_shape_or_type(make_batch, name, damage):
    batch = make_batch()
    setattr(batch, name, damage(getattr(batch, name)))
    # The number of rollouts is that of `group`, so a shortened one shows in the next field.
    named = "sample" if name == "group" and batch.group.dtype == torch.int64 else name
    with pytest.raises(ValueError, match=rf"batch\.{named}: expected .*, got"):
        batch.check()


@pytest.mark.parametrize("name", ["sampler_logprobs", "temperatures", "rewards", "advantages"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_check_refuses_numbers_that_are_not_finite(make_batch, name, value):
    batch = make_batch()
    getattr(batch, name).view(-1)[-1] = value
    with pytest.raises(ValueError, match=rf"batch\.{name} must be finite"):
        batch.check()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_check_refuses_temperatures_that_have_no_density(make_batch, temperature):
    batch = make_batch()
    batch.temperatures[-1] = temperature
    with pytest.raises(ValueError, match=r"batch\.temperatures must be above 0: greedy rollouts"):
        batch.check()


def test_check_refuses_log_probs_off_the_mask(make_batch):
    batch = make_batch()
    batch.sampler_logprobs[0, 0] = -1.0
    with pytest.raises(ValueError, match="must be 0 off the completion mask"):
        batch.check()


def test_check_refuses_a_rollout_without_sampled_tokens(make_batch):
    batch = make_batch()
    batch.completion_mask[2] = False
    batch.sampler_logprobs[2] = 0.0
    with pytest.raises(ValueError, match="no sampled token"):
        batch.check()


def test_check_refuses_a_mask_on_the_first_token_and_beyond_the_length(make_batch):
    first, beyond = make_batch(), make_batch()
    first.completion_mask[0, 0] = True
    shortest = int(beyond.lengths.argmin())
    beyond.completion_mask[shortest, int(beyond.lengths[shortest])] = True
    for batch in (first, beyond):
        with pytest.raises(ValueError, match=r"follow a prompt and lie within batch\.lengths"):
            batch.check()


def test_a_probe_without_a_curve_is_complete():
    probe = MeasuredEntropy(2, 1.0, 1.5, 0.5, 1.2)
    assert probe.factors == probe.curve_sums == ()


def named_batch(*names: str, levels: bool = True) -> RolloutBatch:
    return RolloutBatch(
        prompt_ids=list(names),
        prompts=[f"{x}?" for x in names],
        answers=[f"{x}!" for x in names],
        sources=["s"] * len(names),
        prompt_tokens=[[ord(x), 1] for x in names],
        levels=[ord(x) for x in names] if levels else [],
        stream=("train", 3),
    )


@pytest.mark.parametrize("levels", [True, False])
def test_a_batch_that_takes_over_prompts_is_as_if_loaded_with_them(levels):
    mine, other = named_batch("a", "b", levels=levels), named_batch("c", levels=levels)
    columns = join_columns([prompt_columns(mine), prompt_columns(other)])
    hold_prompts(mine, columns, [2, 0])
    expected = named_batch("c", "a", levels=levels)
    assert prompt_columns(mine) == prompt_columns(expected)
    assert mine.stream == ("train", 3)
    assert other.prompt_ids == ["c"]


def test_prompts_that_something_refers_to_stay():
    batch = named_batch("a")
    batch.ranks = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"batch\.ranks refers to the prompts"):
        hold_prompts(batch, prompt_columns(batch), [0])
