"""Parameters and widths of models, from their configurations alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from e3rl.policy.adapters import LoRA
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.policy.shape import ModelShape

EMBEDDED = ModelShape(
    # 3 layers: queries and output 2 x 128², keys and values 2 x 128 x 64, three matrices of
    # 128 x 320, biases 128 + 2 x 64, norms 2 x 128; a last norm; embedding and head 2 x 34 x 128
    parameters=3 * (2 * 128**2 + 2 * 128 * 64 + 3 * 128 * 320 + 256 + 256) + 128 + 2 * 34 * 128,
    layers=3,
    hidden=128,
    intermediate=320,
    query=128,
    key_value=64,
    vocabulary=34,
)


def test_the_embedded_policy_has_the_shape_of_its_configuration(policy: Policy) -> None:
    for shape in (ModelShape.of_policy(policy), ModelShape.of_path("embedded")):
        assert shape == EMBEDDED
    assert ModelShape.of_path("random") == EMBEDDED


@pytest.mark.parametrize(
    ("size", "parameters", "hidden", "query", "key_value", "vocabulary"),
    [
        ("1.5B", 1_777_088_000, 1536, 1536, 256, 151_936),
        ("7B", 7_615_616_512, 3584, 3584, 512, 152_064),
    ],
)
def test_the_models_of_the_presets_are_known_without_a_hub(
    size: str, parameters: int, hidden: int, query: int, key_value: int, vocabulary: int
) -> None:
    shape = ModelShape.of_path(f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size}")
    assert (shape.parameters, shape.layers, shape.hidden) == (parameters, 28, hidden)
    assert (shape.query, shape.key_value, shape.vocabulary) == (query, key_value, vocabulary)


def test_a_configuration_file_goes_before_the_name_and_tied_heads_count_once(
    tmp_path: Path,
) -> None:
    config = json.loads((embedded_folder() / "config.json").read_text())
    tied = tmp_path / "config.json"
    tied.write_text(json.dumps(config | {"tie_word_embeddings": True}))
    shape = ModelShape.of_path("nobody/has-this", config=str(tied))
    assert shape.parameters == EMBEDDED.parameters - 34 * 128


def test_where_there_is_no_configuration_that_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        ModelShape.of_path(str(tmp_path))


def test_adapters_are_counted_beside_the_parameters() -> None:
    lora = LoRA(r=2, target_modules=("q_proj", "v_proj"))
    shape = ModelShape.of_path("embedded", lora=lora)
    # 3 layers: 2 x (128 + 128) and 2 x (128 + 64)
    assert shape == replace(EMBEDDED, adapters=3 * (512 + 384))
    assert (shape.trained, EMBEDDED.trained) == (2688, EMBEDDED.parameters)
    pytest.importorskip("peft")
    assert ModelShape.of_policy(Policy(lora=lora)) == shape
