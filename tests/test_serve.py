import os
import sys

import pytest

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.serve import check_serving, compose_command

pytest.importorskip("vllm")


def serve(*overrides: str) -> list[str]:
    return compose_command(composed(*overrides, "++paths.run_dir=x", root="serve"))


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("E3RL_CACHE", str(tmp_path))
    monkeypatch.delenv("SLURM_LOCALID", raising=False)


def test_a_server_fits_the_run_whose_arguments_it_is_given():
    words = serve(
        *("experiment=grpo", "++policy.dtype=bfloat16", "serve.port=8003", "serve.host="),
        *("engine.settings.max_num_seqs=7",),
    )
    assert words[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert value(words, "--dtype") == "bfloat16"
    assert value(words, "--max-num-seqs") == "7"
    assert (value(words, "--host"), value(words, "--port")) == ("0.0.0.0", "8003")
    assert value(serve("engine/weights=nccl"), "--weight-transfer-config") == '{"backend": "nccl"}'


def test_tasks_of_a_machine_listen_at_ports_of_their_own(monkeypatch):
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert value(serve(), "--port") == "8003"


def test_the_name_says_which_weights_fit(policy):
    from e3rl.engines.servers.launch import served_name
    from e3rl.engines.weight_checks import expected_shapes

    name = value(serve("policy=embedded_arithmetic"), "--served-model-name")
    assert name == served_name(type(policy.model).__name__, expected_shapes(policy.model))
    lora = value(serve("policy/lora=linear"), "--served-model-name")
    assert lora == value(serve(), "--served-model-name")  # merged when they are sent


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine=vllm"], "give engine=vllm_server to both"),
        (["serve.port=0"], r"serve\.port=0"),
        (["serve.port=many"], r"serve\.port"),
        (["+engine.nodes=3"], "engine"),
        (["engine.settings.sleep_level=1"], "sleep_level=1"),
    ],
)
def test_mistakes_are_said_before_anything_starts(overrides, message):
    with pytest.raises((ConfigurationError, ValueError), match=message):
        serve(*overrides)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("++port=8001", r"^port is no setting; did you mean serve\.port\?$"),
        ("++foo=3", "^foo is no setting$"),
    ],
)
def test_a_setting_that_there_is_not_is_named(setting: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        compose_command(composed(setting, root="serve"))


def test_what_is_open_in_a_run_does_not_keep_a_server_from_starting():
    check_serving(composed("experiment=paper/7b/e3", "++paths.run_dir=x", root="serve"))
    assert os.environ.get("VLLM_SERVER_DEV_MODE") is None
