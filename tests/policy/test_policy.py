import copy
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoConfig

from e3rl.config.composition import register_resolvers
from e3rl.data.problem import Problem
from e3rl.data.prompt_lengths import UnknownTokensError
from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.packing import Pack
from e3rl.policy.loading import set_checkpointing
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.training.forward import forward
from finished_batches import reference_logprobs
from small_models import with_model

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}({{ m['content'] }}){% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)


def problem(prompt) -> Problem:
    return Problem(id="a", prompt=prompt, answer="3", source="made")


def saved(folder: Path, tokenizer=None, **config) -> str:
    """A tiny untrained policy on disk, its configuration altered."""
    policy = Policy()
    for name, value in config.items():
        setattr(policy.model.config, name, value)
    if config:
        torch.manual_seed(0)
        policy.model = type(policy.model)(policy.model.config)
    policy.tokenizer = tokenizer or policy.tokenizer
    policy.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory) -> str:
    """A tokenizer that writes its beginning-of-sequence token itself, and a chat template."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = copy.deepcopy(Policy().tokenizer)
    tokenizer.add_special_tokens({"bos_token": "x"})
    bos = tokenizer.convert_tokens_to_ids("x")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="x $A", special_tokens=[("x", bos)]
    )
    tokenizer.chat_template = TEMPLATE
    return saved(tmp_path_factory.mktemp("chat"), tokenizer)


# -- logits


def test_forward_gives_the_logits_of_the_models_own_forward_at_the_sampled_tokens(
    policy, make_batch
):
    batch = make_batch(group_sizes=(3, 2))
    tokens, lengths = batch.tokens, batch.lengths
    with torch.no_grad():
        logits = policy(tokens, batch.completion_mask)
        wanted = [
            policy.model(input_ids=tokens[row : row + 1, :end]).logits[0, t - 1]
            for row, end in enumerate(lengths.tolist())
            for t in range(1, end)
            if batch.completion_mask[row, t]
        ]
    assert logits.shape == (int(batch.completion_mask.sum()), policy.vocabulary_size)
    assert torch.allclose(logits, torch.stack(wanted), atol=1e-5)


def test_log_probs_of_a_padded_micro_batch_are_those_of_each_rollout_alone(policy, make_batch):
    batch = make_batch(group_sizes=(3, 2, 2))
    rows = torch.tensor([4, 0, 6, 2])
    micro = forward(policy, batch, Pack(rows))
    wanted = reference_logprobs(policy, batch)[rows][batch.completion_mask[rows]].float()
    assert torch.allclose(micro.logprobs, wanted, atol=1e-5)
    assert micro.tokens.tolist() == batch.tokens[rows][batch.completion_mask[rows]].tolist()
    assert micro.rollout.unique().tolist() == [0, 1, 2, 3]
    for name in ("temperatures", "advantages"):
        assert torch.equal(getattr(micro, name), getattr(batch, name)[rows][micro.rollout])


def test_the_contents_of_the_padding_do_not_matter(policy, make_batch):
    batch = make_batch(group_sizes=(3, 2))
    other = batch.tokens.clone()
    other[torch.arange(other.shape[1]) >= batch.lengths[:, None]] = 17
    with torch.no_grad():
        first, second = (policy(tokens, batch.completion_mask) for tokens in (batch.tokens, other))
    assert not torch.equal(batch.tokens, other)
    assert torch.equal(first, second)


class Scaled(torch.nn.Module):
    """A model that alters its logits after the head, as some families do."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.config, self.generation_config = model.config, model.generation_config

    def get_decoder(self) -> torch.nn.Module:
        return self.inner.get_decoder()

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.inner.get_output_embeddings()

    def forward(self, **inputs):
        out = self.inner(**inputs)
        out.logits = 0.25 * out.logits
        return out


def test_a_model_that_scales_its_logits_is_run_whole(policy, make_batch):
    batch = make_batch(group_sizes=(2, 1))
    scaled = copy.deepcopy(policy)
    scaled.model, scaled._adjustment = Scaled(scaled.model), None
    with torch.no_grad():
        plain = policy(batch.tokens, batch.completion_mask)
        logits = scaled(batch.tokens, batch.completion_mask)
    assert torch.allclose(logits, 0.25 * plain, atol=1e-5)


def test_a_model_with_tied_embeddings_trains_and_comes_back_from_disk(tmp_path, make_batch):
    policy = Policy(saved(tmp_path / "tied", tie_word_embeddings=True))
    model = policy.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    batch = make_batch()
    micro = forward(policy, batch, Pack(torch.arange(batch.n_rollouts)))
    wanted = reference_logprobs(policy, batch)[batch.completion_mask].float()
    assert torch.allclose(micro.logprobs, wanted, atol=1e-5)
    wanted.sum().backward()
    by_hand = model.get_input_embeddings().weight.grad.clone()
    policy.zero_grad()
    micro.logprobs.sum().backward()
    assert torch.allclose(model.get_input_embeddings().weight.grad, by_hand, rtol=1e-3, atol=1e-4)
    policy.save(tmp_path / "again")
    again = Policy(str(tmp_path / "again"))
    assert torch.equal(again.model.get_output_embeddings().weight, model.lm_head.weight)


# -- text


def test_plain_prompts_are_encoded_as_they_are_with_the_instruction_behind(policy):
    assert policy.render == "plain"
    text, ids = policy.encode(problem("12+3=?"))
    assert text == "12+3=?"
    assert policy.decode(ids) == text
    told = copy.copy(policy)
    told.instruction = "=?"
    assert told.write_prompt(problem("1+2")) == "1+2=?"


def test_a_chat_is_joined_where_there_is_no_template(policy):
    chat = ({"role": "system", "content": "1"}, {"role": "user", "content": "2"})
    assert policy.write_prompt(problem(chat)) == "1\n\n2"


def test_the_prefill_is_sampled_from_and_belongs_to_the_answer(policy, chat_folder):
    one, five = policy.tokenizer("(1")["input_ids"], policy.tokenizer("5)")["input_ids"]
    for path in ("embedded", chat_folder):
        plain, begun = Policy(path), Policy(path, prefill="(1", stop=[")"])
        text, ids = plain.encode(problem("1+2"))
        assert begun.encode(problem("1+2")) == (text, [*ids, *one])
        assert begun.answer([*ids, *one], five) == "(15)"
        assert plain.answer(ids, five) == "5)"


def test_a_prompt_that_the_tokenizer_cannot_spell_is_refused_and_its_pieces_are_named(policy):
    with pytest.raises(
        UnknownTokensError, match=r"no tokens for ' ', 'W', 'h'.* in the prompt of 'a'"
    ):
        policy.encode(problem("12+3=? Wh"))


def test_an_unknown_token_that_also_begins_prompts_says_nothing():
    policy = Policy()
    policy.tokenizer.bos_token = policy.tokenizer.unk_token
    assert policy.tokenizer.unk_token_id in policy.encode(problem("What?"))[1]


def test_a_prefill_that_the_tokenizer_cannot_spell_is_refused():
    with pytest.raises(ValueError, match=r"policy\.prefill='box': the tokenizer of .* no tokens"):
        Policy(prefill="box")


def test_the_chat_template_writes_the_beginning_once(chat_folder):
    policy = Policy(chat_folder, instruction="=?")
    bos = policy.tokenizer.bos_token_id
    assert policy.render == "chat"
    text, ids = policy.encode(problem("1+2"))
    assert text == "x(1+2=?)="
    assert ids.count(bos) == 1
    assert ids[0] == bos
    chat = ({"role": "system", "content": "9"}, {"role": "user", "content": "3"})
    assert policy.write_prompt(problem(chat)) == "x(9)(3=?)="
    assert chat[1]["content"] == "3"  # the problem itself is left alone


TEMPLATES = Path(__file__).parents[2] / "conf" / "policy" / "template"
ASK = "Please reason step by step, and put your final answer within \\boxed{}."


def templated(name, path="embedded", answer_format="math_box"):
    """A policy with one of the templates in conf/policy/template, beside a reward."""
    register_resolvers()
    template = OmegaConf.load(TEMPLATES / f"{name}.yaml")
    cfg = OmegaConf.create({"reward": {"answer_format": answer_format}, "policy": template})
    return Policy(path, **OmegaConf.to_container(cfg.policy, resolve=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own", "1+2"),
        ("asked", f"1+2\n{ASK}"),
        ("plain", f"1+2\n{ASK}\n"),
        ("r1_distill", f"<bos><｜User｜>1+2\n{ASK}<｜Assistant｜><think>\n"),
        (
            "qwen_instruct",
            f"<|im_start|>system\n{ASK}<|im_end|>\n<|im_start|>user\n1+2<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
    ],
)
def test_a_tokenizer_without_a_template_takes_the_chosen_one(name, text):
    policy = templated(name)
    policy.tokenizer.bos_token = "<bos>"
    assert policy.write_prompt(problem("1+2")) == text


@pytest.mark.parametrize("name", ["asked", "plain", "r1_distill", "qwen_instruct"])
def test_an_instruction_asks_for_the_form_that_the_reward_reads(name):
    text = templated(name, answer_format="hashes").write_prompt(problem("1+2"))
    assert "####" in text
    assert "boxed" not in text


def test_a_chosen_template_keeps_the_turns_and_the_system_message_of_a_chat():
    chat = tuple(
        {"role": role, "content": content}
        for role, content in [("system", "s"), ("user", "1"), ("assistant", "2"), ("user", "3")]
    )
    policy = templated("r1_distill")
    policy.tokenizer.bos_token, policy.tokenizer.eos_token = "<bos>", "<eos>"
    assert policy.write_prompt(problem(chat)) == (
        f"<bos>s<｜User｜>1<｜Assistant｜>2<eos><｜User｜>3\n{ASK}<｜Assistant｜><think>\n"
    )
    text = templated("qwen_instruct").write_prompt(problem(chat))
    assert text.startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n1<|im_end|>")


def test_the_tokenizers_own_template_wins_over_the_chosen_one(chat_folder):
    assert templated("r1_distill", chat_folder).write_prompt(problem("1+2")) == f"x(1+2\n{ASK})="
    assert templated("qwen_instruct", chat_folder).write_prompt(problem("3")) == f"x({ASK})(3)="


def test_plain_rendering_uses_the_tokenizers_own_beginning(chat_folder):
    policy = Policy(chat_folder, render="plain")
    text, ids = policy.encode(problem("1+2"))
    assert text == "1+2"
    assert ids[0] == policy.tokenizer.bos_token_id
    assert ids.count(ids[0]) == 1


def test_completions_are_decoded_without_special_tokens(policy):
    ids = policy.tokenizer("12 \\boxed{3}")["input_ids"]
    assert policy.decode([*ids, policy.eos_id, policy.pad_id]) == "12 \\boxed{3}"


# -- construction


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"render": "chat"},
            r"policy\.render=chat, but .* has no chat template: use policy.render=plain",
        ),
        ({"render": "markdown"}, r"policy\.render='markdown': choose auto, chat or plain"),
        ({"dtype": "int8"}, r"policy\.dtype='int8': choose one of"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        Policy(**settings)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path):
    tokenizer = copy.deepcopy(Policy().tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        Policy(saved(tmp_path, tokenizer))


def test_a_tokenizer_of_ones_own_is_not_replaced_by_that_of_the_models_family(policy):
    ids = policy.tokenizer(" so 1 \\boxed{3}")["input_ids"]
    assert policy.tokenizer.convert_ids_to_tokens(ids) == [" so ", "1", " \\boxed{", "3", "}"]


def test_a_path_that_does_not_exist_is_an_error_from_the_outside_world(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Policy(str(tmp_path / "nowhere"))


def test_a_policy_without_a_padding_token_pads_with_the_end_token(tmp_path):
    tokenizer = copy.deepcopy(Policy().tokenizer)
    tokenizer.pad_token = None
    policy = Policy(saved(tmp_path, tokenizer))
    assert policy.pad_id == policy.eos_id == 1


def test_stop_tokens_join_the_tokenizers_and_the_generation_configs(policy):
    assert policy.stop_ids == [policy.eos_id]
    other = copy.deepcopy(policy)
    for configured, wanted in ((None, [1]), (7, [1, 7]), ([1, 9], [1, 9])):
        other.model.generation_config.eos_token_id = configured
        assert other.stop_ids == wanted


def test_a_saved_policy_comes_back_with_equal_weights_and_the_same_text_side(policy, tmp_path):
    policy.save(tmp_path)
    again = Policy(str(tmp_path))
    for (name, weight), (_, other) in zip(
        policy.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert torch.equal(weight, other), name
    assert again.encode(problem("12+3=?")) == policy.encode(problem("12+3=?"))
    assert (again.pad_id, again.stop_ids) == (policy.pad_id, policy.stop_ids)
    assert (tmp_path / "model.safetensors").stat().st_size > 0


def test_random_weights_follow_torchs_seed_and_are_not_the_trained_ones(policy):
    torch.manual_seed(5)
    first = Policy(random_weights=True)
    torch.manual_seed(5)
    second = Policy("random")
    weights = [p.model.get_output_embeddings().weight for p in (policy, first, second)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])
    assert second.encode(problem("12+3=?")) == policy.encode(problem("12+3=?"))


def test_half_precision_weights_give_logits_near_the_full_ones(policy, make_batch):
    half = Policy("embedded_arithmetic", dtype="bfloat16")
    batch = make_batch(group_sizes=(2,))
    with torch.no_grad():
        full = policy(batch.tokens, batch.completion_mask)
        logits = half(batch.tokens, batch.completion_mask)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - full).abs().max() < 0.5
    ones = torch.ones(len(logits))
    assert token_logprobs(logits, torch.zeros(len(logits), dtype=torch.int64), ones).dtype == (
        torch.float32
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("random_weights", [False, True])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_dropout_is_off_however_the_policy_is_built(
    tmp_path, make_batch, random_weights, gradient_checkpointing
):
    policy = Policy(
        saved(tmp_path, attention_dropout=0.5),
        random_weights=random_weights,
        gradient_checkpointing=gradient_checkpointing,
    )
    batch = make_batch(group_sizes=(2,))
    first, second = (policy(batch.tokens, batch.completion_mask).detach() for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("family", "noise"),
    [
        ("mixtral", {"router_jitter_noise": 0.5, "num_local_experts": 4}),
        ("phimoe", {"router_jitter_noise": 0.5, "input_jitter_noise": 0.5, "num_local_experts": 4}),
    ],
)
def test_routers_do_not_jitter_where_activations_are_recomputed(policy, make_batch, family, noise):
    own = with_model(policy, family, **noise)
    set_checkpointing(own.model, True)
    batch = make_batch(group_sizes=(2, 1))
    calls = []
    own.model.get_decoder().layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    first, second = (own(batch.tokens, batch.completion_mask) for _ in range(2))
    assert torch.equal(first, second)
    calls.clear()
    second.sum().backward()
    assert calls == [1]  # computed once more


def test_no_layer_is_left_out_at_random_where_activations_are_recomputed(tmp_path, make_batch):
    config = AutoConfig.for_model(
        *("opt",),
        **{"vocab_size": 34, "hidden_size": 16, "ffn_dim": 24, "word_embed_proj_dim": 16},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "layerdrop": 0.9, "eos_token_id": 1},
    )
    saved(tmp_path)
    config.save_pretrained(tmp_path)
    own = Policy(str(tmp_path), random_weights=True, gradient_checkpointing=True)
    batch = make_batch(group_sizes=(2, 1))
    for mode in (False, True):  # whoever puts all of it in train mode
        own.model.train(mode)
        first, *others = (own(batch.tokens, batch.completion_mask) for _ in range(4))
        assert all(torch.equal(first, other) for other in others)


def test_what_is_without_layers_to_recompute_in_says_itself_whether_it_does():
    class OfAHub(torch.nn.Module):
        gradient_checkpointing = False

        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.config = object.__new__(type("Config", (), {}))

        def gradient_checkpointing_enable(self, options):
            self.gradient_checkpointing = True

    model = OfAHub()
    set_checkpointing(model, True)
    assert (model.training, model.inner.training) == (True, False)
    set_checkpointing(model, False)
    assert not model.training


def test_gradient_checkpointing_recomputes_and_leaves_the_gradient_as_it_is(policy, make_batch):
    batch = make_batch(group_sizes=(2, 1))
    rows = torch.arange(batch.n_rollouts)
    gradients, calls = [], []
    for checkpointing in (False, True):
        own = Policy("embedded_arithmetic", gradient_checkpointing=checkpointing)
        attention = own.model.get_decoder().layers[0].self_attn
        attention.register_forward_hook(lambda *_: calls.append(checkpointing))  # noqa: B023
        forward(own, batch, Pack(rows))  # settles how the head is called
        calls.clear()
        forward(own, batch, Pack(rows)).logprobs.sum().backward()
        gradients.append({name: p.grad for name, p in own.named_parameters()})
        assert calls == [checkpointing] * (2 if checkpointing else 1)
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-5), name


def test_the_reference_is_a_copy_that_shares_nothing_and_cannot_be_trained(policy):
    frozen = policy.reference()
    assert not any(p.requires_grad for p in frozen.parameters())
    assert all(p.requires_grad for p in policy.parameters())
    shared = {p.data_ptr() for p in frozen.parameters()} & {
        p.data_ptr() for p in policy.parameters()
    }
    assert not shared


def test_the_embedded_policy_ships_with_the_package_and_has_a_narrow_vocabulary(policy):
    assert (embedded_folder() / "model.safetensors").is_file()
    assert policy.vocabulary_size == len(policy.tokenizer)


def test_casting_to_half_precision_leaves_the_rotary_frequencies_as_they_are(policy):
    cast, loaded = (
        copy.deepcopy(policy).to(torch.bfloat16),
        Policy("embedded_arithmetic", dtype="bfloat16"),
    )
    buffers = dict(loaded.named_buffers())
    assert any("inv_freq" in name for name in buffers)
    for name, value in cast.named_buffers():
        assert value.dtype == torch.float32
        assert torch.equal(value, buffers[name]), name
    assert {p.dtype for p in cast.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in cast.double().buffers()} == {torch.float64}
