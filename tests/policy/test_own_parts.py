"""Weights that ranks read in parts: the same bits, and no more memory than a part takes."""

import sys
from pathlib import Path

import pytest
import torch
from ranks_reading import CPU, read_on_two_ranks
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from e3rl.policy.adapters import LoRA
from e3rl.policy.head import HeadSettings
from e3rl.policy.policy import Policy, embedded_folder

MIB = 2**20


def random_folder(folder: Path, pieces: str = "10GB", **sizes: int) -> Path:
    """A folder of a random policy with the embedded one's tokenizer."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(embedded_folder())
    for name, value in sizes.items():
        setattr(config, name, value)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = [1, 7]
    model.save_pretrained(folder, max_shard_size=pieces)
    Policy().tokenizer.save_pretrained(folder)
    return folder


def assert_same(own: Policy, other: Policy) -> None:
    """Every bit of weights and buffers, and all that was found out about the model."""
    for kind in ("named_parameters", "named_buffers"):
        found, expected = (dict(getattr(p.model, kind)()) for p in (own, other))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name
    assert own.stop_ids == other.stop_ids
    assert own.sharing == other.sharing
    tokens = torch.arange(8)[None] + 2
    assert torch.equal(own(tokens, tokens > 4), other(tokens, tokens > 4))
    assert own._adjustment == other._adjustment
    assert own.model.training == other.model.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_what_is_read_in_parts_is_what_transformers_loads(dtype, mode):
    head = HeadSettings(mode, block=8)
    own = Policy(dtype=dtype, head=head, in_parts=True)
    assert all(parameter.is_meta for parameter in own.parameters())
    own.read_weights(CPU)
    assert_same(own, Policy(dtype=dtype, head=head))
    before = own.model.get_input_embeddings().weight
    own.read_weights(CPU)  # they are there
    assert own.model.get_input_embeddings().weight is before


@pytest.mark.parametrize("tied", [False, True])
def test_weights_may_be_in_several_files_and_heads_tied(tmp_path, tied):
    path = random_folder(tmp_path, pieces="400KB", tie_word_embeddings=tied)
    assert len(list(path.glob("*.safetensors"))) > 2
    own = Policy(str(path), in_parts=True)
    own.read_weights(CPU)
    assert (own.model.lm_head.weight is own.model.model.embed_tokens.weight) == tied
    assert_same(own, Policy(str(path)))


SHARED = {"num_hidden_layers": 10, "num_kv_shared_layers": 4, "hidden_size_per_layer_input": 4}


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gemma4_text", {"num_hidden_layers": 2, "hidden_size_per_layer_input": 0}),
        ("gemma4_text", SHARED),
        ("gemma3n_text", SHARED | {"laurel_rank": 2, "activation_sparsity_pattern": [0.0] * 10}),
    ],
)
def test_buffers_and_layers_that_share_keys_are_read_in_parts_too(tmp_path, family, sizes):
    """Gemma 4 keeps a factor of each layer in a buffer; 1 is what a new one has."""
    torch.manual_seed(0)
    words = len(Policy().tokenizer)
    config = AutoConfig.for_model(
        family,
        vocab_size=words,
        vocab_size_per_layer_input=words,
        **{"hidden_size": 16, "intermediate_size": 24, "head_dim": 4, "pad_token_id": 0},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "global_head_dim": 4},
        **sizes,
    )
    model = AutoModelForCausalLM.from_config(config)
    factors = [b for name, b in model.named_buffers() if name.endswith("layer_scalar")]
    assert len(factors) == (config.num_hidden_layers if family == "gemma4_text" else 0)
    for factor in factors:
        factor.fill_(0.5)
    model.save_pretrained(tmp_path)
    Policy().tokenizer.save_pretrained(tmp_path)
    own = Policy(str(tmp_path), in_parts=True)
    assert own.device.type == "meta"
    own.read_weights(CPU)
    assert_same(own, Policy(str(tmp_path)))


def test_what_cannot_be_read_in_parts_is_loaded_at_once(tmp_path):
    path = random_folder(tmp_path, num_hidden_layers=1)
    weights = load_file(path / "model.safetensors")
    assert Policy(str(path), in_parts=True).device.type == "meta"
    renamed = {f"transformer.{name}": value for name, value in weights.items()}
    save_file(renamed, path / "model.safetensors", {"format": "pt"})
    assert Policy(str(path), in_parts=True).device.type == "cpu"
    assert Policy("random", in_parts=True).device.type == "cpu"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_there_before_their_base_and_are_the_same(tmp_path, dtype):
    pytest.importorskip("peft")
    path = str(random_folder(tmp_path, pieces="400KB"))
    policies = []
    for in_parts in (True, False):
        torch.manual_seed(4)
        policies.append(Policy(path, dtype=dtype, lora=LoRA(r=2), in_parts=in_parts))
    own, other = policies
    assert {p.is_meta for n, p in own.named_parameters() if "lora" in n} == {False}
    assert {p.is_meta for n, p in own.named_parameters() if "lora" not in n} == {True}
    own.read_weights(CPU)
    assert_same(own, other)
    assert [p.requires_grad for p in own.parameters()] == [
        p.requires_grad for p in other.parameters()
    ]
    torch.manual_seed(5)
    third = Policy(path, dtype=dtype, lora=LoRA(r=2), in_parts=True)
    third.read_weights(CPU)
    third.load_state_dict(other.state_dict())  # knows its base
    assert_same(third, other)


def check_two_ranks(tmp_path: Path, lora: LoRA | None = None, **sizes: int) -> None:
    path = random_folder(tmp_path / "model", tie_word_embeddings=False, **sizes)
    ranks = read_on_two_ranks(tmp_path, path, lora)
    weights = load_file(path / "model.safetensors")
    expected = {}
    for name, value in weights.items():
        bits = value.view(torch.int32).long().flatten()
        expected[name] = int((bits * torch.arange(1, len(bits) + 1)).sum())
    whole = sum(value.nbytes for value in weights.values())
    block = sum(value.nbytes for name, value in weights.items() if ".layers.0." in name)
    largest = max(value.nbytes for value in weights.values())
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["weights"] == rank["reference"] == expected
        assert rank["own"] == pytest.approx(whole / 2, rel=0.01)
        for peak in (rank["peak"], rank["peak of reference"]):
            assert peak <= whole / 2 + block + 8 * MIB
            assert peak < 0.75 * whole
        # Beside the weights, which are there: a part's bytes in the file, and as a tensor.
        assert rank["restored"] <= max(block, largest) + 8 * MIB
    peaks = [[r[name] / MIB for r in ranks] for name in ("peak", "peak of reference", "restored")]
    print(f"whole {whole / MIB:.0f} MiB, peaks {peaks}")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize("adapters", [False, True])
def test_two_ranks_read_half_each_and_take_memory_for_half(tmp_path, adapters):
    """38 M parameters, 144 MiB."""
    if adapters:
        pytest.importorskip("peft")
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    lora = LoRA(r=1) if adapters else None
    check_two_ranks(tmp_path, lora, **sizes, vocab_size=4096)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_two_ranks_read_half_of_450_million_weights(tmp_path):
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    check_two_ranks(tmp_path, **sizes, vocab_size=32000)
