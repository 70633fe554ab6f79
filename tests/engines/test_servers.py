"""What servers are started with, and what is said to them about NCCL."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from e3rl.engines.memory_errors import EngineMemoryError
from e3rl.engines.servers.client import (
    Server,
    ServerFacts,
    ServerLostError,
    UnfitServerError,
    read_facts,
)
from e3rl.engines.servers.files import FileTransfer, common_dtype
from e3rl.engines.servers.launch import as_options, plan_launch, served_name, server_environment
from e3rl.engines.servers.nccl import FanOut, NCCLTransfer, Source, address_towards
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.engines.weight_checks import expected_shapes, named_weights
from small_models import with_model

FACTS = ServerFacts("m", "bfloat16", False, 16, 4096, 1, "bfloat16")


def server(url: str, **facts) -> Server:
    made = Server(url, None)  # nothing is asked of it
    made.facts = replace(FACTS, **facts)
    return made


def command(policy, weights=None, on_cpu=True, **settings):
    model = copy.deepcopy(policy.model)
    settings = VLLMSettings(**settings)
    launch = plan_launch(model, "float32", settings, weights or FileTransfer(), on_cpu)
    return launch.command("node7", 8001)


def value(words, option):
    return words[words.index(option) + 1]


def test_a_server_starts_from_the_configuration_alone(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("E3RL_CACHE", str(tmp_path))
    words = command(policy, dtype="bfloat16", max_model_len=200)
    config = json.loads((tmp_path / value(words, "--model") / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["vocab_size"] == policy.vocabulary_size
    assert value(words, "--load-format") == "dummy"
    assert value(words, "--logprobs-mode") == "processed_logprobs"
    assert (value(words, "--host"), value(words, "--port")) == ("node7", "8001")
    assert (value(words, "--dtype"), value(words, "--max-model-len")) == ("bfloat16", "200")
    assert {"--enable-scale-out", "--tokens-only", "--no-enable-chunked-prefill"} <= set(words)
    assert "--weight-transfer-config" not in words
    assert json.loads(
        value(command(policy, NCCLTransfer(), on_cpu=False), "--weight-transfer-config")
    ) == {"backend": "nccl"}


def test_options_are_written_as_vllm_reads_them():
    options = as_options({"enforce_eager": True, "enable_prefix_caching": False, "block_size": 32})
    assert options == ["--enforce-eager", "--no-enable-prefix-caching", "--block-size", "32"]


def test_servers_do_not_sleep(policy):
    with pytest.raises(ValueError, match=r"sleep_level=1: servers do not sleep"):
        command(policy, on_cpu=False, sleep_level=1)


def test_a_server_has_a_core_of_its_own_and_the_routes_that_take_weights(monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    environment = server_environment()
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


def test_models_have_one_name_where_they_take_the_same_weights(policy):
    def name(of):
        return served_name(type(of.model).__name__, expected_shapes(of.model))

    other = copy.deepcopy(policy)
    other.model.config.rms_norm_eps = 1e-3
    assert name(other) == name(policy)
    names = {
        name(policy),
        name(with_model(policy, "qwen2")),
        name(with_model(policy, "llama")),
        name(with_model(policy, "qwen2", vocab_size=35)),
    }
    assert len(names) == 4


def test_weights_are_sent_in_the_precision_that_all_servers_have():
    assert common_dtype([server("a"), server("b")]) == torch.bfloat16
    assert common_dtype([server("a"), server("b", dtype="float32")]) is None


def test_facts_are_read_from_the_configuration_that_a_server_tells():
    config = {
        "model_config": {
            "dtype": "torch.bfloat16",
            "logprobs_mode": "processed_logprobs",
            "max_model_len": 4096,
        },
        "cache_config": {"block_size": 16},
        "scheduler_config": {"enable_chunked_prefill": True},  # fine on a GPU
        "device_config": {"device": "cuda"},
    }
    assert read_facts("u", "m", config, 1) == FACTS
    config["device_config"] = {"device": "cpu"}
    with pytest.raises(UnfitServerError, match="in parts"):
        read_facts("u", "m", config, 1)


@pytest.mark.parametrize(
    ("quantization", "cache_dtype", "rounding"),
    [
        (None, "auto", "bfloat16"),
        ("fp8", "auto", "float8"),
        ("fp8_per_block", "fp8_e4m3", "float8"),
        (None, "fp8_e5m2", "float8"),
    ],
)
def test_servers_of_8_bits_round_more_and_others_of_few_bits_are_refused(
    quantization: str | None, cache_dtype: str, rounding: str
) -> None:
    settings = {
        "dtype": "torch.bfloat16",
        "logprobs_mode": "processed_logprobs",
        "max_model_len": 4096,
        "quantization": quantization,
    }
    config = {
        "model_config": settings,
        "cache_config": {"block_size": 16, "cache_dtype": cache_dtype},
        "device_config": {"device": "cuda"},
    }
    assert read_facts("u", "m", config, 1) == replace(FACTS, rounding=rounding)
    settings["quantization"] = "gptq_marlin"
    with pytest.raises(UnfitServerError, match="quantized by gptq_marlin"):
        read_facts("u", "m", config, 1)


def test_processes_meet_at_the_address_that_servers_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_towards(["http://127.0.0.1:8000"]) == "127.0.0.1"
    asked = []

    class Socket:
        def __init__(self, *kind: int) -> None: ...
        def __enter__(self) -> "Socket":
            return self

        def __exit__(self, *error: object) -> None: ...
        def connect(self, place: tuple[str, int]) -> None:
            asked.append(place)

        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1", 1) if asked[-1][0] == "localhost" else ("10.0.0.7", 1)

    monkeypatch.setattr("e3rl.engines.servers.nccl.socket.socket", Socket)
    assert address_towards(["http://localhost:1", "http://node2:2"]) == "10.0.0.7"
    assert asked == [("localhost", 1), ("node2", 2)]


class Recorder:
    """In the place of vLLM's client for a server."""

    def __init__(self, url, calls):
        self.url, self.calls = url, calls

    def __getattr__(self, name):
        return lambda *given: self.calls.append((self.url, name, *given))


def test_processes_of_each_server_follow_those_of_the_servers_before_it():
    calls = []
    servers = [server("a", devices=2), server("b", devices=4), server("c", devices=1)]
    client = FanOut(servers, lambda url: Recorder(url, calls))
    assert client.devices == 7
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 8})
    assert sorted((url, given["rank_offset"], given["world_size"]) for url, _, given in calls) == [
        ("a", 1, 8),
        ("b", 3, 8),
        ("c", 7, 8),
    ]
    calls.clear()
    client.start_weight_update()
    client.update_weights({"names": ["w"]})
    client.finish_weight_update()
    client.shutdown_weight_transfer_engine()
    assert [call for call in calls if call[0] == "b"] == [
        ("b", "start_weight_update"),
        ("b", "update_weights", {"names": ["w"]}),
        ("b", "finish_weight_update", None),
        ("b", "shutdown_weight_transfer_engine"),
    ]
    assert len(calls) == 12


def test_an_error_of_one_server_is_not_lost():
    def connect(url):
        return Recorder(url, []) if url == "a" else None

    client = FanOut([server("a"), server("b")], connect)
    with pytest.raises(AttributeError):
        client.start_weight_update()


def test_what_is_declared_to_nccl_is_what_is_sent(policy):
    pytest.importorskip("vllm")
    shapes = expected_shapes(policy.model)
    weights = named_weights(policy.model, tied_head=False)
    source = Source(weights, shapes, torch.bfloat16)
    declared = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    sent = [(name, value.dtype, tuple(value.shape)) for name, value in source]
    assert declared == sent
    assert len(sent) == len(shapes)


class Trainer:
    """In the place of vLLM's side of the trainer: what it was made with, and what it has sent."""

    def __init__(self, meeting, client, source):
        self.meeting, self.client, self.source = meeting, client, source
        self.sent, self.ended = [], False

    def send_weights(self):
        declared = [meta.name for meta in self.source.metadata()]
        self.sent.append([(name, value.dtype) for name, value in self.source])
        assert declared == [name for name, _ in self.sent[-1]]

    def shutdown(self):
        self.ended = True


@pytest.fixture
def trainers(monkeypatch):
    """Trainers that were made; clients are recorders of what those of vLLM really have."""
    pytest.importorskip("vllm")
    from vllm.distributed.weight_transfer import clients, factory

    made = []

    def trainer_init(meeting, client, source):
        made.append(Trainer(meeting, client, source))
        return made[-1]

    real = clients.HTTPVLLMWeightSyncClient

    class Known(Recorder):
        def __init__(self, url):
            super().__init__(url, [])

        def __getattr__(self, name):
            assert callable(getattr(real, name)), name
            return super().__getattr__(name)

    monkeypatch.setattr(clients, "HTTPVLLMWeightSyncClient", Known)
    monkeypatch.setattr(factory.WeightTransferTrainerFactory, "trainer_init", trainer_init)
    return made


def weights_of(names):
    return iter([(name, torch.zeros(2)) for name in names])


def test_nccl_keeps_its_group_while_servers_stay_and_makes_another_for_others(trainers):
    transfer = NCCLTransfer(port=29999, address="node1")
    servers, shapes = [server("a", devices=2), server("b")], {"w": (2,), "v": (2,)}
    transfer.send(None, servers, weights_of("wv"), shapes)
    transfer.send(None, servers, weights_of("wv"), shapes)
    (first,) = trainers
    assert (first.meeting.master_address, first.meeting.master_port) == ("node1", 29999)
    assert (first.meeting.world_size, first.meeting.rank) == (4, 0)
    assert first.sent == [[("w", torch.bfloat16), ("v", torch.bfloat16)]] * 2
    transfer.send(None, servers[:1], weights_of("wv"), shapes)
    assert first.ended
    assert trainers[1].meeting.world_size == 3
    transfer.close()
    transfer.close()
    assert trainers[1].ended


def test_a_group_of_nccl_that_broke_is_made_anew_and_named(trainers, monkeypatch):
    def breaks(self):
        raise RuntimeError("NCCL error: remote process exited")

    transfer, servers = NCCLTransfer(address="node1"), [server("a")]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "send_weights", breaks)
        with pytest.raises(ServerLostError, match="over NCCL: NCCL error"):
            transfer.send(None, servers, weights_of("w"), {"w": (2,)})
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "send_weights", lambda self: (_ for _ in ()).throw(short()))
        with pytest.raises(EngineMemoryError, match="sent to servers"):
            transfer.send(None, servers, weights_of("w"), {"w": (2,)})
    transfer.send(None, servers, weights_of("w"), {"w": (2,)})
    assert len(trainers) == 3
    assert len(trainers[2].sent) == 1


def short() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_weights_that_are_held_for_nccl_are_copies_in_the_servers_precision():
    weight = torch.ones(2)
    held = NCCLTransfer().hold(torch.bfloat16, iter([("w", weight)]))
    weight.zero_()
    ((name, value),) = held.tensors
    assert (name, value.dtype, value.tolist()) == ("w", torch.bfloat16, [1.0, 1.0])
    held.discard()
    assert held.tensors == []


def test_nccl_is_for_servers_with_gpus_and_one_precision():
    for servers in ([server("a", on_cpu=True)], [server("a"), server("b", dtype="float32")]):
        with pytest.raises(UnfitServerError, match="engine/weights=files takes any"):
            NCCLTransfer().send(None, servers, iter(()), {})
    with pytest.raises(ValueError, match=r"engine\.weights\.port=0"):
        NCCLTransfer(port=0)
    NCCLTransfer().close()
