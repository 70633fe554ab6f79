"""LoRA on the embedded policy: what is trained, saved, sampled from and sent to engines."""

import builtins
import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.engines.weight_checks import check_shapes, expected_shapes, named_weights
from e3rl.evaluation.sampling import load_weights
from e3rl.functional.packing import Pack
from e3rl.policy.adapters import (
    DIGEST,
    LoRA,
    UnknownTargetError,
    add_adapters,
    without_adapters,
)
from e3rl.policy.head import HeadSettings
from e3rl.policy.policy import Policy
from e3rl.training.forward import forward
from finished_batches import reference_logprobs
from update_harness import ADAMW, fit, gap, make_loss, make_module, weights_of

pytestmark = pytest.mark.end_to_end


if importlib.util.find_spec("peft") is None:
    pytest.skip("peft is not installed: pip install 'e3rl[lora]'", allow_module_level=True)

ATTENTION = ("q_proj", "v_proj")


def adapted(**settings) -> Policy:
    torch.manual_seed(0)
    return Policy("embedded_arithmetic", lora=LoRA(**({"r": 2, "alpha": 4} | settings)))


def moved(policy: Policy) -> Policy:
    """The policy after something like an update of its adapters."""
    other = copy.deepcopy(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return other


@pytest.fixture(scope="module")
def lora() -> Policy:
    return adapted()


def logits(policy: Policy, batch) -> torch.Tensor:
    with torch.no_grad():
        return policy(batch.tokens, batch.completion_mask)


# -- the layers


def test_it_starts_as_its_base(policy, lora, make_batch):
    batch = make_batch(group_sizes=(2, 1))
    assert torch.equal(logits(lora, batch), logits(policy, batch))
    assert not torch.equal(logits(moved(lora), batch), logits(policy, batch))


def test_adapters_add_the_scaled_product_of_two_factors(policy):
    other = moved(adapted(r=3, alpha=6, target_modules=ATTENTION))
    layer = other.model.get_decoder().layers[1].self_attn.q_proj
    x = torch.randn(5, layer.in_features, dtype=torch.float32)
    own = policy.model.get_decoder().layers[1].self_attn.q_proj
    a, b = (next(iter(part.values())).weight for part in (layer.lora_A, layer.lora_B))
    assert a.shape == (3, layer.in_features)
    torch.testing.assert_close(layer(x), own(x) + 6 / 3 * (x @ a.T @ b.T))


def test_every_linear_layer_but_the_output_layer_is_adapted_unless_named(policy, lora):
    def owners(policy: Policy) -> set[str]:
        names = [name for name, p in policy.named_parameters() if p.requires_grad]
        return {name.split(".lora_")[0].split(".")[-1] for name in names}

    assert owners(lora) == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    }
    assert owners(adapted(target_modules=ATTENTION)) == set(ATTENTION)
    for targets in (("q_proj",), "all-linear"):
        made = adapted(target_modules=targets)
        numbers = [p.numel() for p in made.parameters() if p.requires_grad]
        assert sum(numbers) == made.lora.parameters(policy.model) > 0


def test_adapters_are_float32_beside_a_bfloat16_base(make_batch):
    half = Policy("embedded_arithmetic", dtype="bfloat16", lora=LoRA(r=2))
    kinds = {p.requires_grad: p.dtype for p in half.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    batch = make_batch(group_sizes=(2,))
    forward(half, batch, Pack(torch.arange(2))).logprobs.sum().backward()
    grads = [p.grad for p in half.parameters() if p.requires_grad]
    assert {g.dtype for g in grads} == {torch.float32}


# -- updates


@torch.no_grad()
def test_a_bfloat16_policy_computes_what_engines_get_although_that_is_rounded(make_batch):
    """Updates of the size of the rounding: beside W x, B A x would be another policy's."""
    torch.manual_seed(0)
    half = Policy("embedded_arithmetic", dtype="bfloat16", lora=LoRA(r=2))
    for name, parameter in half.named_parameters():
        if "lora_B" in name:
            parameter.copy_(1e-3 * torch.randn_like(parameter))
    sent = Policy("embedded_arithmetic", dtype="bfloat16")
    base = logits(sent, batch := make_batch(group_sizes=(2, 1)))
    sent.model.load_state_dict(dict(named_weights(half.model, tied_head=False)))
    assert torch.equal(logits(half, batch), logits(sent, batch))
    assert not torch.equal(logits(half, batch), base)
    with without_adapters(half.model):
        assert torch.equal(logits(half, batch), base)


def test_gradients_beside_a_bfloat16_base_are_those_without_rounding():
    torch.manual_seed(0)
    half = Policy("embedded_arithmetic", dtype="bfloat16", lora=LoRA(r=2, alpha=6))
    layer = half.model.get_decoder().layers[0].self_attn.q_proj
    a, b = (next(iter(part.values())).weight for part in (layer.lora_A, layer.lora_B))
    with torch.no_grad():
        b.normal_(std=1e-3)
    x = torch.randn(5, layer.in_features, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    slope = torch.randn(y.shape).to(y.dtype)
    y.backward(slope)
    rounded = (layer.base_layer.weight.float() + 3 * b @ a).bfloat16()
    torch.testing.assert_close(x.grad, slope @ rounded)
    s, inputs = slope.float(), x.detach().float()
    torch.testing.assert_close(a.grad, 3 * b.T @ s.T @ inputs)
    torch.testing.assert_close(b.grad, 3 * s.T @ (inputs @ a.T))


@pytest.mark.parametrize("head", [HeadSettings(), HeadSettings("chunked", block=7)])
def test_an_update_changes_adapters_only(lora, make_batch, head):
    own = copy.deepcopy(lora)
    own.head = head
    batch = make_batch(group_sizes=(3, 2))
    before = weights_of(own)
    fitted = fit(make_module(own, optimizer=ADAMW), [batch, batch])
    after = weights_of(fitted.module.policy)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name, p in own.named_parameters() if p.requires_grad}
    assert changed == trained
    assert all(".lora_" in name for name in trained)
    assert set(fitted.gradients[0]) == trained
    frozen = [p for p in fitted.module.policy.parameters() if not p.requires_grad]
    assert all(p.grad is None for p in frozen)
    (optimizer,) = fitted.module.trainer.optimizers
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(trained)


def test_recomputed_activations_give_the_same_gradients(make_batch):
    batch = make_batch(group_sizes=(3, 2))
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        own = moved(
            Policy("embedded_arithmetic", lora=LoRA(r=2), gradient_checkpointing=checkpointing)
        )
        forward(own, batch, Pack(torch.arange(5))).logprobs.sum().backward()
        found.append({n: p.grad for n, p in own.named_parameters() if p.grad is not None})
    assert len(found[0]) > 0
    assert gap(*found) == 0


def test_the_reference_is_the_base_and_no_second_copy(policy, lora, make_batch):
    batch, other = make_batch(group_sizes=(2, 1)), moved(lora)
    reference = other.reference()
    assert not list(reference.parameters())
    before = logits(other, batch)
    with torch.no_grad():
        found = forward(reference, batch, Pack(torch.arange(3))).logprobs
    torch.testing.assert_close(found, forward(policy, batch, Pack(torch.arange(3))).logprobs)
    assert torch.equal(logits(other, batch), before)  # adapters are on again
    with pytest.raises(RuntimeError, match="no rollouts"), without_adapters(other.model):
        raise RuntimeError("no rollouts today")
    assert torch.equal(logits(other, batch), before)


def test_a_divergence_from_the_base_pulls_the_policy_back(lora, make_batch):
    batch = make_batch(group_sizes=(3, 2))
    batch.advantages = torch.zeros_like(batch.advantages)
    far = moved(lora)
    fitted = fit(make_module(far, make_loss(kl_coef=1.0)), [batch])
    loss = fitted.reports[0]["policy/loss"]
    logprobs, reference = (
        reference_logprobs(p, batch)[batch.completion_mask]
        for p in (far, Policy("embedded_arithmetic"))
    )
    gaps = reference - logprobs
    assert loss == pytest.approx((gaps.exp() - 1 - gaps).mean().item(), rel=1e-3)
    assert any(bool((g != 0).any()) for g in fitted.gradients[0].values())
    at_base = fit(make_module(lora, make_loss(kl_coef=1.0)), [batch])
    assert at_base.reports[0]["policy/loss"] == pytest.approx(0, abs=1e-6)


# -- engines


def test_what_is_sent_is_the_merged_model_and_the_policy_stays_as_it_is(lora, make_batch):
    batch, other = make_batch(group_sizes=(3, 2)), moved(lora)
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    check_shapes(other.model, expected_shapes(other.model))
    plain = Policy("embedded_arithmetic")
    names = [name for name, _ in plain.model.named_parameters()]
    sent = dict(named_weights(other.model, tied_head=True))
    assert list(sent) == names
    plain.model.load_state_dict(sent)
    torch.testing.assert_close(logits(plain, batch), logits(other, batch), atol=1e-4, rtol=1e-4)
    after = other.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_one_weight_is_merged_at_a_time(lora):
    iterator = named_weights(moved(lora).model, tied_head=False)
    kept = [next(iterator) for _ in range(2)]
    assert [name.split(".")[-2] for name, _ in kept] == ["embed_tokens", "q_proj"]
    assert not any(weight.requires_grad for _, weight in kept)


def test_a_saved_policy_is_the_merged_one(lora, tmp_path, make_batch):
    batch, other = make_batch(group_sizes=(2,)), moved(lora)
    other.save(tmp_path)
    again = Policy(str(tmp_path))
    assert not any(".lora_" in name for name in again.state_dict())
    torch.testing.assert_close(logits(again, batch), logits(other, batch), atol=1e-4, rtol=1e-4)


# -- checkpoints


def saved(policy: Policy, path: Path) -> Path:
    state = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    AtomicCheckpointIO().save_checkpoint({"state_dict": state}, path)
    return path


def test_a_checkpoint_holds_adapters_only_and_is_loaded_onto_the_base(lora, tmp_path, make_batch):
    other = moved(lora)
    state = other.state_dict()
    trained = {name for name, p in other.named_parameters() if p.requires_grad}
    assert set(state) == {*trained, DIGEST}
    fresh = adapted()
    load_weights(fresh, saved(other, tmp_path / "step-000001.ckpt"))
    batch = make_batch(group_sizes=(2,))
    assert torch.equal(logits(fresh, batch), logits(other, batch))
    module = make_module(other)
    again = make_module(lora)
    again.load_state_dict(module.state_dict())
    assert gap(weights_of(again.policy), weights_of(other)) == 0


def test_a_tied_head_is_left_out_under_both_its_names(tmp_path):
    from test_policy import saved as saved_model

    tied = Policy(saved_model(tmp_path / "tied", tie_word_embeddings=True), lora=LoRA(r=2))
    assert all(".lora_" in name for name in tied.state_dict() if name != DIGEST)
    tied.load_state_dict(tied.state_dict())
    sent = dict(named_weights(tied.model, tied_head=True))
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])


def test_adapters_of_another_base_scale_or_kind_are_refused(lora, policy, tmp_path):
    state = lora.state_dict()
    torch.manual_seed(3)
    for other in (Policy("random", lora=LoRA(r=2, alpha=4)), adapted(alpha=8)):
        with pytest.raises(ValueError, match=r"belong to another base: policy\.path"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"no adapters: it is of a run without policy\.lora"):
        adapted().load_state_dict(policy.state_dict())
    missing = {name: value for name, value in state.items() if "layers.0" not in name}
    with pytest.raises(RuntimeError, match=r"Missing key.*layers\.0.*lora_A"):
        adapted().load_state_dict(missing)


# -- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"r": 0}, r"policy\.lora\.r=0: use a rank of at least 1"),
        ({"alpha": 0}, r"policy\.lora\.alpha=0: use at least 1"),
        ({"target_modules": ()}, r"policy\.lora\.target_modules=\(\): give a list"),
        ({"target_modules": "q_proj"}, r"policy\.lora\.target_modules='q_proj': give a list"),
    ],
)
def test_settings_that_cannot_work_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        LoRA(**given)


@pytest.mark.parametrize("target", ["qproj", "lm_head", "embed_tokens", "self_attn"])
def test_targets_that_are_no_inner_linear_layers_are_refused_by_name(target):
    with pytest.raises(ValueError, match=rf"{target} names no linear layer .* down_proj, gate"):
        adapted(target_modules=("q_proj", target))


@pytest.mark.parametrize("targets", ["all-linear", ("c_attn",)])
def test_a_model_without_linear_layers_is_refused_with_a_remedy(targets):
    config = AutoConfig.for_model("gpt2", vocab_size=34, n_embd=16, n_layer=1, n_head=2)
    model = AutoModelForCausalLM.from_config(config)
    message = r"policy\.lora: the gpt2 model has no linear layer .*: train without policy\.lora"
    with pytest.raises(UnknownTargetError, match=message):
        add_adapters(model, LoRA(target_modules=targets))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    own = builtins.__import__

    def without_peft(name, *args, **kwargs):
        if name == "peft":
            raise ModuleNotFoundError("No module named 'peft'", name="peft")
        return own(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'e3rl\[lora\]'"):
        adapted()
