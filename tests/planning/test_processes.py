"""How many devices a configuration asks for, in all the ways in which Lightning lets it be said."""

from typing import Any

import pytest
import torch
from lightning.fabric.utilities import device_parser
from omegaconf import DictConfig, OmegaConf

from e3rl.config.composition import ConfigurationError
from e3rl.planning.processes import count_processes


def trained_on(devices: Any, accelerator: str = "auto", **more: Any) -> DictConfig:
    return OmegaConf.create({"trainer": {"devices": devices, "accelerator": accelerator, **more}})


@pytest.mark.parametrize(
    ("devices", "count"),
    [(1, 1), (3, 3), ("3", 3), ("0,", 1), ("1,", 1), ("0,2", 2), ("0, 2,", 2), ([2], 1)],
)
def test_devices_are_counted_as_lightning_counts_them(
    devices: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count_processes(trained_on(devices)) == count
    assert count_processes(trained_on(devices, num_nodes=2)) == 2 * count
    monkeypatch.setattr(device_parser, "_get_all_available_gpus", lambda *_, **__: [0, 1, 2])
    parsed = device_parser._parse_gpu_ids(devices, include_cuda=True)
    assert parsed is not None
    assert len(parsed) == count


@pytest.mark.parametrize("devices", ["auto", -1, "-1"])
def test_all_devices_are_the_gpus_or_one(devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert count_processes(trained_on(devices)) == 4
    assert count_processes(trained_on(devices, "cpu")) == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert count_processes(trained_on(devices)) == 1


@pytest.mark.parametrize("devices", [0, "0", -2, ",", [], None, "two"])
def test_no_device_at_all_is_refused(devices: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^trainer\.devices=.* names no device: use"):
        count_processes(trained_on(devices))


def test_no_machine_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^trainer\.num_nodes=0: use at least 1"):
        count_processes(trained_on(2, num_nodes=0))
