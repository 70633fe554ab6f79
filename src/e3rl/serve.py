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

from omegaconf import DictConfig, OmegaConf

from e3rl.config.command import configured
from e3rl.config.composition import ConfigurationError, accept_new_keys


@dataclass(frozen=True)
class Serving:
    """The node `serve` of conf/serve.yaml."""

    host: str | None
    port: int
    start: bool

    def __post_init__(self) -> None:
        if not 0 < self.port < 2**16:
            raise ValueError(f"serve.port={self.port}: use a port in 1 ... 65535")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; under srun each task of a machine has a port of its own."""
        return self.host or "", self.port + int(os.environ.get("SLURM_LOCALID", "0"))


@configured("serve", OSError, ValueError, ModuleNotFoundError)
def main(cfg: DictConfig) -> None:
    """Become the server; ends with code 2 for a mistake."""
    from e3rl.engines.servers.launch import server_environment

    command = compose_command(cfg)
    print(f"VLLM_SERVER_DEV_MODE=1 {shlex.join(command)}", flush=True)
    if cfg.serve.start:
        os.execve(command[0], command, server_environment())


def compose_command(cfg: DictConfig) -> list[str]:
    """The command that starts a server for the policy and engine of a configuration.

    Raises ConfigurationError for mistakes in them, and for an engine without servers.
    """
    import torch

    from e3rl.config.build import build
    from e3rl.engines.servers.launch import plan_launch
    from e3rl.engines.vllm_build import check_installed
    from e3rl.engines.vllm_server import VLLMServerEngine
    from e3rl.policy.loading import load_without_weights
    from e3rl.policy.policy import resolve_path

    check_serving(cfg)
    engine = build(cfg, "engine")
    if not isinstance(engine, VLLMServerEngine):
        raise ConfigurationError(
            "serve: the run's engine has no servers that you start; give engine=vllm_server to both"
        )
    check_installed()
    path, trusted = resolve_path(cfg.policy.path), bool(cfg.policy.get("trust_remote_code"))
    model = load_without_weights(path, torch.float32, "sdpa", trusted)
    dtype, on_cpu = cfg.policy.get("dtype", "float32"), not torch.cuda.is_available()
    launch = plan_launch(model, dtype, engine.settings, engine.weights, on_cpu)
    return launch.command(*Serving(**cfg.serve).address)


def check_serving(cfg: DictConfig) -> None:
    """Raise ConfigurationError listing the mistakes in what matters of a configuration."""
    from e3rl.config.check import command_settings, node_mistakes

    known = command_settings("train") | {"serve"}
    if unknown := [str(key) for key in cfg if key not in known]:
        meant = [f"; did you mean serve.{key}?" if key in cfg.serve else "" for key in unknown]
        told = [f"{key} is no setting{of}" for key, of in zip(unknown, meant, strict=True)]
        raise ConfigurationError("\n".join(told))
    serving = {"_target_": "e3rl.serve.Serving", **cfg.serve}
    nodes = {"policy": cfg.policy, "engine": cfg.engine, "serve": OmegaConf.create(serving)}
    if mistakes := [each for name, node in nodes.items() for each in node_mistakes(node, name)]:
        raise ConfigurationError("\n".join(mistakes))


if __name__ == "__main__":
    sys.argv[1:] = accept_new_keys(sys.argv[1:])
    main()
