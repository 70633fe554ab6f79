"""Start a vLLM server for runs with engine=vllm_server.

    e3rl serve [the run's own arguments] [serve.port=8001] [serve.host=]

The server has the architecture of the run's policy; weights come from the run. It is vLLM's own
OpenAI API server in its development mode: whoever reaches its port can change its weights, so keep
it to a network that you trust. Ctrl-C ends it.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from typing import Annotated

import hydra
from omegaconf import DictConfig
from pydantic import Field

from e3rl.config.composition import (
    ConfigurationError,
    accept_new_keys,
    conf_dir,
    register_resolvers,
)

register_resolvers()


@dataclass(frozen=True)
class Serving:
    """The node `serve` of conf/serve.yaml."""

    host: str | None
    port: Annotated[int, Field(gt=0, lt=2**16)]
    start: bool


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="serve")
def main(cfg: DictConfig) -> None:
    """Become the server; ends with code 2 for a mistake."""
    from e3rl.engines.servers.launch import server_environment

    try:
        command = compose_command(cfg)
    except (ConfigurationError, OSError, ValueError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    print(f"VLLM_SERVER_DEV_MODE=1 {shlex.join(command)}", flush=True)
    if cfg.serve.start:
        os.execve(command[0], command, server_environment())


def compose_command(cfg: DictConfig) -> list[str]:
    """The command that starts a server for the policy and engine of a configuration.

    Raises ConfigurationError for mistakes in them, and for an engine without servers.
    """
    import torch

    from e3rl.config.build import build
    from e3rl.config.check import node_mistakes
    from e3rl.engines.servers.launch import served_name, server_command
    from e3rl.engines.vllm_build import check_installed
    from e3rl.engines.vllm_server import VLLMServerEngine
    from e3rl.engines.weight_checks import expected_shapes
    from e3rl.policy.loading import empty_model
    from e3rl.policy.policy import resolve_path

    mistakes = [*node_mistakes(cfg.policy, "policy"), *node_mistakes(cfg.engine, "engine")]
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    engine = build(cfg, "engine")
    if not isinstance(engine, VLLMServerEngine):
        raise ConfigurationError(
            "serve: the run's engine has no servers; give engine=vllm_server to both"
        )
    check_installed()
    model = empty_model(resolve_path(cfg.policy.path), bool(cfg.policy.get("trust_remote_code")))
    return server_command(
        model,
        served_name(type(model).__name__, expected_shapes(model)),
        cfg.policy.get("dtype", "float32"),
        engine.settings,
        engine.weights,
        (cfg.serve.host or "", int(cfg.serve.port)),
        on_cpu=not torch.cuda.is_available(),
    )


if __name__ == "__main__":
    sys.argv[1:] = accept_new_keys(sys.argv[1:])
    main()
