import sys

import pytest
from transformers import PretrainedConfig

from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_settings import VLLMSettings, check_in_process


def test_without_vllm_the_engine_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # what an import finds where it is missing
    with pytest.raises(ModuleNotFoundError) as caught:
        VLLMEngine()
    for remedy in (
        "make setup",
        "pip install 'e3rl[vllm]'",
        "engine=transformers",
        "ENGINE=transformers",
    ):
        assert remedy in str(caught.value)


def test_values_out_of_range_are_named_with_their_remedy():
    for given, remedy in (
        ({"dtype": "float64"}, "dtype='float64': choose one of"),
        ({"gpu_memory_utilization": 1.5}, "utilization=1.5: use a share"),
        ({"sleep_level": 3}, "sleep_level=3: use 0, 1 or 2"),
        ({"max_num_seqs": 0}, "max_num_seqs=0: use at least 1"),
        ({"block_size": 0}, "block_size=0: use at least 1"),
    ):
        with pytest.raises(ValueError, match=r"engine\.settings") as caught:
            VLLMSettings(**given)
        assert remedy in str(caught.value)


def test_vllm_gets_the_policys_precision_unless_another_one_is_set():
    assert VLLMSettings().arguments("float32", on_cpu=True)["dtype"] == "float32"
    assert VLLMSettings(dtype="bfloat16").arguments("float32", on_cpu=True)["dtype"] == "bfloat16"


def test_more_rollouts_are_decoded_at_once_on_a_cpu_unless_a_number_is_set():
    for settings, on_cpu, on_gpu in (
        (VLLMSettings(), 1024, 256),
        (VLLMSettings(max_num_seqs=7), 7, 7),
    ):
        assert settings.arguments("float32", on_cpu=True)["max_num_seqs"] == on_cpu
        assert settings.arguments("float32", on_cpu=False)["max_num_seqs"] == on_gpu


def test_what_is_left_open_is_left_to_vllm():
    arguments = VLLMSettings(kv_cache_memory_bytes=None, block_size=None).arguments(
        "float16", False
    )
    assert not {"kv_cache_memory_bytes", "block_size"} & arguments.keys()
    assert arguments["max_model_len"] == -1  # vLLM: the longest that fits
    assert not arguments["enable_sleep_mode"]


@pytest.mark.parametrize(
    ("given", "on_cpu", "longest", "planned"),
    [
        ({}, False, 7000, 7168),  # 28 x 256
        ({}, True, 7168, 7168),
        ({}, False, None, None),
        ({}, True, None, 2**15),
        ({}, True, 40_000, 40_192),  # 157 x 256
        ({"max_model_len": 9000}, False, 7000, None),  # what is asked for goes to vLLM as it is
    ],
)
def test_the_longest_rollout_is_planned_for_where_no_length_is_set(given, on_cpu, longest, planned):
    config = PretrainedConfig()
    VLLMSettings(**given).limit_length(config, on_cpu, longest)
    assert getattr(config, "max_seq_length", None) == planned
    own = PretrainedConfig(max_seq_length=512)
    VLLMSettings(**given).limit_length(own, on_cpu, longest)
    assert own.max_seq_length == 512  # a model's own limit, where it is lower


def test_on_a_cpu_the_cache_is_small_unless_its_size_is_set():
    name = "kv_cache_memory_bytes"
    assert VLLMSettings().arguments("float32", on_cpu=True)[name] == 256 * 2**20
    assert name not in VLLMSettings().arguments("float32", on_cpu=False)
    for on_cpu in (True, False):
        given = VLLMSettings(kv_cache_memory_bytes=10**9).arguments("float32", on_cpu)
        assert given[name] == 10**9


def test_sleep_is_for_gpus():
    sleeping = VLLMSettings(sleep_level=1)
    assert sleeping.arguments("float32", on_cpu=False)["enable_sleep_mode"]
    with pytest.raises(ValueError, match="sleeps on GPUs only"):
        sleeping.arguments("float32", on_cpu=True)


def test_a_core_in_another_process_is_refused(monkeypatch):
    check_in_process()
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(RuntimeError, match="unset VLLM_ENABLE_V1_MULTIPROCESSING"):
        check_in_process()
