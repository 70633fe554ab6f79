"""Settings that only their object, or the machine, can refuse."""

import pytest
import torch

from compositions import composed
from e3rl.config.build import check_devices, check_optimizer
from e3rl.config.composition import ConfigurationError


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.accelerator=gpu", "trainer.accelerator=gpu: .* finds no GPU here; use"),
        ("engine=vllm_gpu", "enforce_eager=false: without a GPU .*; use engine=vllm"),
    ],
)
def test_settings_for_a_gpu_are_refused_where_there_is_none(
    no_gpu: None, override: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_devices(composed(override))


@pytest.mark.parametrize("override", ["trainer.accelerator=gpu", "engine=vllm_gpu"])
def test_they_pass_where_there_is_one(monkeypatch: pytest.MonkeyPatch, override: str) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    check_devices(composed(override))


@pytest.mark.parametrize("override", ["engine=vllm", "engine=transformers", "engine=vllm_server"])
def test_settings_for_a_cpu_pass_without_a_gpu(no_gpu: None, override: str) -> None:
    check_devices(composed(override))


def test_an_optimiser_refuses_its_settings_before_a_run() -> None:
    check_optimizer(composed())
    with pytest.raises(ConfigurationError, match=r"module.optimizer: Invalid learning rate: -1"):
        check_optimizer(composed("module.optimizer.lr=-1"))
