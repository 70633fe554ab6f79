"""The policy's output layer in blocks: same numbers, same gradients, and never the whole logits."""

import copy
from pathlib import Path

import pytest
import torch

from e3rl.functional.entropy import token_entropy
from e3rl.functional.packing import Pack
from e3rl.functional.surrogates import clipped
from e3rl.losses.entropy_bonus import AdaptiveEntropyBonus
from e3rl.losses.exploration import ClipCov, HighEntropyMask, KLCov
from e3rl.policy.head import HeadSettings, adjustments
from e3rl.policy.policy import Policy
from e3rl.training.entropy_meter import EntropyMeter
from e3rl.training.forward import forward, per_token
from finished_batches import reference_logprobs
from update_harness import exact_copy, fit, gap, make_loss, make_module, measure_apart, size

pytestmark = pytest.mark.end_to_end


CHUNKED = HeadSettings("chunked", block=5)


def with_head(policy: Policy, head: HeadSettings) -> Policy:
    other = copy.deepcopy(policy)
    other.head = head
    return other


@pytest.fixture(scope="module")
def exact(policy) -> Policy:
    return exact_copy(policy)


# -- one update


LOSSES = {
    "grpo": {},
    "entropy bonus": {"entropy_coef": 0.3},
    "adaptive bonus and divergence": {
        "entropy_coef": AdaptiveEntropyBonus(target=9.0, delta=0.1, highest=0.2),
        "kl_coef": 0.5,
    },
    "clip-cov": {"exploration": ClipCov(share=0.1, low=-9.0, high=9.0)},
    "kl-cov": {"exploration": KLCov(share=0.1)},
    "high-entropy mask": {"exploration": HighEntropyMask(share=0.4)},
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_update_is_the_same_by_blocks_whatever_the_loss(exact, make_batch, name):
    batch = make_batch(group_sizes=(3, 2, 2))
    batch.wants_grad_norms = True
    found = []
    for head in (HeadSettings(), CHUNKED):
        module = make_module(
            with_head(exact, head),
            make_loss(surrogate=clipped, **copy.deepcopy(LOSSES[name])),
            probe_rows=4,
            minibatches=2,
            tokens_per_microbatch=40,
        )
        found.append(fit(module, [batch]))
    full, chunked = found
    assert len(full.gradients) == len(chunked.gradients) == 2
    for one, other in zip(full.gradients, chunked.gradients, strict=True):
        assert size(one) > 1e-4
        assert gap(one, other) < 1e-7 * size(one) + 1e-12
    one, other = full.batches[0], chunked.batches[0]
    torch.testing.assert_close(one.grad_norms, other.grad_norms)
    for name in ("entropy_sum", "entropy_t1_sum", "varentropy_sum", "sampled_t1_sum"):
        assert getattr(one.entropy, name) == pytest.approx(getattr(other.entropy, name), rel=1e-5)
    figures = {k: v for k, v in one.metrics.items() if not k.startswith("time/")}
    assert {k: other.metrics[k] for k in figures} == pytest.approx(figures, rel=1e-5, abs=1e-6)


def test_log_probs_and_entropies_are_those_of_the_model(policy, make_batch):
    batch = make_batch(group_sizes=(3, 2))
    chunked = with_head(policy, CHUNKED)
    micro = forward(chunked, batch, Pack(torch.arange(5)), entropies=True)
    wanted = reference_logprobs(policy, batch)[batch.completion_mask].float()
    torch.testing.assert_close(micro.logprobs, wanted, atol=1e-5, rtol=1e-5)
    logits = policy(batch.tokens, batch.completion_mask)
    torch.testing.assert_close(logits, chunked(batch.tokens, batch.completion_mask))
    entropies = token_entropy(logits, micro.temperatures)
    torch.testing.assert_close(micro.entropies, entropies, atol=1e-5, rtol=1e-5)
    assert forward(chunked, batch, Pack(torch.arange(5))).entropies is None


def test_the_probe_is_the_same_by_blocks(policy, make_batch):
    batch = make_batch(group_sizes=(3, 2))
    probe = EntropyMeter(5, 1.0, (0.5, 2.0))
    one, other = (
        vars(measure_apart(probe, with_head(policy, head), batch))
        for head in (HeadSettings(), CHUNKED)
    )
    assert other["curve_sums"] == pytest.approx(one["curve_sums"], rel=1e-5)
    assert other["varentropy_sum"] == pytest.approx(one["varentropy_sum"], rel=1e-4)


def test_logits_of_bfloat16_weights_are_float32_where_that_is_asked_for(make_batch):
    batch = make_batch(group_sizes=(2,))
    coarse, fine = (
        Policy(dtype="bfloat16", head=HeadSettings(mode, 5, dtype))
        for mode, dtype in (("full", "compute"), ("full", "float32"))
    )
    with torch.no_grad():
        rounded, logits = (p(batch.tokens, batch.completion_mask) for p in (coarse, fine))
        hidden = fine.model.get_decoder()(input_ids=batch.tokens).last_hidden_state
    assert rounded.dtype == torch.bfloat16
    weight = fine.model.get_output_embeddings().weight
    before = torch.roll(batch.completion_mask, -1, 1)
    assert torch.equal(logits, hidden[before].float() @ weight.float().T)
    assert not torch.equal(logits.bfloat16().float(), logits)
    chunked = with_head(fine, HeadSettings("chunked", 5, "float32"))
    for policy in (fine, chunked):
        values = per_token(policy, batch, [Pack(torch.arange(2))], lambda z, *_: z.logsumexp(dim=1))
        found = values[batch.completion_mask]
        torch.testing.assert_close(found, logits.logsumexp(dim=1), atol=1e-5, rtol=1e-5)


# -- models that alter their logits


def saved(folder: Path, family: str, **options) -> str:
    """An untrained model of a family with the embedded tokenizer, on disk."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = Policy().tokenizer
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        **options,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # far enough from 0 for a cap to be felt
        model.get_output_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


FAMILIES = {
    "gemma2": {"final_logit_softcapping": 3.0},
    "cohere": {"logit_scale": 0.0625},
    "granite": {"logits_scaling": 6.0},
    "phi": {},  # a head with a bias
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_scale_cap_or_shift_their_logits_are_known(tmp_path, make_batch, family):
    options = FAMILIES[family]
    policy = Policy(saved(tmp_path, family, **options), head=CHUNKED)
    layer = policy.model.get_output_embeddings()
    assert (layer.bias is not None) == (family == "phi")
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    batch = make_batch(group_sizes=(2, 1))
    wanted = reference_logprobs(policy, batch)[batch.completion_mask].float()
    names = [name for name, _ in policy.named_parameters()]
    by_hand = torch.autograd.grad(wanted.sum(), list(policy.parameters()), retain_graph=True)
    for head in (CHUNKED, HeadSettings()):
        micro = forward(with_head(policy, head), batch, Pack(torch.arange(3)))
        torch.testing.assert_close(micro.logprobs, wanted, atol=1e-5, rtol=1e-5)
    found = forward(policy, batch, Pack(torch.arange(3))).logprobs.sum()
    gradients = torch.autograd.grad(found, list(policy.parameters()))
    for name, one, other in zip(names, gradients, by_hand, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3, msg=name)


def test_a_model_that_alters_its_logits_in_an_unknown_way_is_refused_and_runs_whole(
    monkeypatch, make_batch
):
    from transformers import Qwen2ForCausalLM

    own = Qwen2ForCausalLM.forward

    def shifted(self, **inputs):
        out = own(self, **inputs)
        out.logits = out.logits + torch.linspace(0, 1, out.logits.shape[-1])
        return out

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", shifted)
    for head in (CHUNKED, HeadSettings("full", dtype="float32")):
        with pytest.raises(
            ValueError, match=r"model type 'qwen2' alters .* policy\.head\.mode=full"
        ):
            Policy(head=head)
    batch = make_batch(group_sizes=(2,))
    policy = Policy()
    wanted = reference_logprobs(policy, batch)[batch.completion_mask].float()
    micro = forward(policy, batch, Pack(torch.arange(2)))
    torch.testing.assert_close(micro.logprobs, wanted, atol=1e-5, rtol=1e-5)


def test_known_adjustments_do_nothing_where_the_configuration_names_none(policy):
    assert len(list(adjustments(policy.model.config))) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "fused"}, r"policy\.head\.mode='fused': choose one of \('full', 'chunked'\)"),
        ({"dtype": "bfloat16"}, r"policy\.head\.dtype='bfloat16'"),
        ({"block": 0}, r"policy\.head\.block=0: use at least 1 token"),
    ],
)
def test_settings_that_cannot_work_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        HeadSettings(**given)
