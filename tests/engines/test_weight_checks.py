import copy

import pytest
import torch

from e3rl.engines.weight_checks import (
    check_finite,
    check_shapes,
    expected_shapes,
    named_shapes,
    named_weights,
)
from small_models import with_router_biases


def test_a_sound_policy_passes_every_check(policy):
    shapes = expected_shapes(policy.model)
    assert shapes == {name: tuple(p.shape) for name, p in policy.model.named_parameters()}
    check_shapes(policy.model, shapes)
    check_finite(policy.model, 0)


def test_missing_unknown_and_misshapen_parameters_are_named(policy):
    expected = dict(expected_shapes(policy.model))
    expected["lora"] = (2, 2)
    name = "model.norm.weight"
    del expected[name]
    expected["lm_head.weight"] = (1, 1)
    with pytest.raises(ValueError, match="merge adapters") as caught:
        check_shapes(policy.model, expected)
    for part in ("missing: lora", f"unknown: {name}", "of another shape: lm_head.weight"):
        assert part in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_first_parameter_that_is_not_finite_is_named(policy, value):
    broken = copy.deepcopy(policy.model)
    with torch.no_grad():
        broken.get_decoder().layers[1].mlp.up_proj.weight[2, 3] = value
        broken.get_output_embeddings().weight[0, 0] = value
    with pytest.raises(FloatingPointError, match=r"layers\.1\.mlp\.up_proj.* policy version 6"):
        check_finite(broken, 6)


def test_a_tied_head_is_sent_under_its_own_name_where_asked(policy):
    config = copy.deepcopy(policy.model.config)
    config.tie_word_embeddings = True
    tied = type(policy.model)(config)
    assert "lm_head.weight" not in dict(named_weights(tied, tied_head=False))
    sent = dict(named_weights(tied, tied_head=True))
    assert sent["lm_head.weight"].data_ptr() == sent["model.embed_tokens.weight"].data_ptr()
    names = [name for name, _ in named_weights(policy.model, tied_head=True)]
    assert sorted(names) == sorted(name for name, _ in policy.model.named_parameters())
    assert not any(w.requires_grad for w in sent.values())


def test_buffers_that_checkpoints_hold_are_sent_and_others_are_not(policy):
    model = with_router_biases(policy).model
    sent, expected = dict(named_weights(model, tied_head=False)), expected_shapes(model)
    check_shapes(model, expected)
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        assert torch.equal(sent[name], model.get_buffer(name))
        assert expected[name] == (8,)
    assert not any("inv_freq" in name for name in sent)
    assert list(sent) == list(named_shapes(model, expected, tied_head=False))


def test_a_missing_buffer_is_named(policy):
    model = with_router_biases(policy).model
    expected = dict(expected_shapes(model))
    model.model.layers[1].mlp.gate.e_score_correction_bias = torch.zeros(4)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    with pytest.raises(ValueError, match=f"of another shape: {name}"):
        check_shapes(model, expected)
