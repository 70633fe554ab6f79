"""The command that starts a vLLM server for a policy, from its configuration alone."""

import copy
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e3rl.engines.servers.transfer import WeightTransfer
from e3rl.engines.vllm_build import config_files, config_folder
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.engines.weight_checks import Shapes, expected_shapes

MODULE = "vllm.entrypoints.openai.api_server"
FIXED = (
    *("--load-format", "dummy", "--generation-config", "vllm"),
    *("--enable-scale-out", "--tokens-only", "--logprobs-mode", "processed_logprobs"),
    *("--disable-uvicorn-access-log", "--no-enable-log-requests"),
)


def served_name(family: str, shapes: Shapes) -> str:
    """A name for models that take the same weights.

    Args:
        family: class of the model, such as "Qwen2ForCausalLM".
        shapes: of its parameters.
    """
    content = repr((family, sorted(shapes.items()))).encode()
    return f"{family}-{hashlib.blake2b(content, digest_size=6).hexdigest()}"


@dataclass(frozen=True)
class Launch:
    """What a machine has to know to start a server; it can be sent there.

    Attributes:
        files: the model's configuration, of `config_files`.
        options: of the server, but for its model and address.
    """

    files: dict[str, str]
    options: tuple[str, ...]

    def command(self, host: str, port: int) -> list[str]:
        """What starts the server on this machine; an empty host stands for all its addresses."""
        return [
            *(sys.executable, "-m", MODULE, "--model", str(config_folder(self.files))),
            *("--host", host or "0.0.0.0", "--port", str(port), *self.options),
        ]


def plan_launch(
    model: Any,
    dtype: str,
    settings: VLLMSettings,
    weights: WeightTransfer,
    on_cpu: bool,
    longest: int | None = None,
) -> Launch:
    """What starts servers that fit a policy.

    Args:
        model: of the policy; weights are not needed, nor looked at.
        dtype: the policy's precision.
        weights: how weights are going to get there.
        on_cpu: whether servers run on CPUs.
        longest: tokens of the longest rollout, where that is known.

    Raises ValueError for a setting that servers do not have.
    """
    if settings.sleep_level:
        raise ValueError(
            f"engine.settings.sleep_level={settings.sleep_level}: servers do not sleep; use 0"
        )
    config, family = copy.deepcopy(model.config), type(model).__name__
    config.architectures = [family]
    settings.limit_length(config, on_cpu, longest)
    arguments = settings.arguments(dtype, on_cpu)
    del arguments["enable_sleep_mode"]
    name = served_name(family, expected_shapes(model))
    options = (*FIXED, *as_options(arguments), *weights.server_arguments)
    return Launch(config_files(config), ("--served-model-name", name, *options))


def as_options(arguments: Mapping[str, Any]) -> Sequence[str]:
    """Keyword arguments of `vllm.LLM` as options of the server."""
    options = []
    for name, value in arguments.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{dashed}" if value else f"--no-{dashed}")
        else:
            options += [f"--{dashed}", str(value)]
    return options


def server_environment() -> dict[str, str]:
    """The environment of a server: this process's, with the routes that take weights.

    vLLM's core is a process of its own there.
    """
    kept = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return kept | {"VLLM_SERVER_DEV_MODE": "1"}
