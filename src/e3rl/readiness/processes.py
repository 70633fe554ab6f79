"""A preflight's rollouts by as many processes as the run trains with on a machine."""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from e3rl.config.build import bind_data, build, build_data, silence_libraries
from e3rl.config.composition import to_plain_dict
from e3rl.data.datamodule import PromptDataModule
from e3rl.data.problem import Problem
from e3rl.engines.canary import EngineMismatchError
from e3rl.evaluation.processes import count_processes as check_processes
from e3rl.evaluation.processes import run_parts, visible_devices
from e3rl.planning.processes import count_processes, has_servers, split_over_ranks
from e3rl.policy.policy import Policy
from e3rl.readiness.partial_sample import PartialSample, combine
from e3rl.readiness.sample import Sample
from e3rl.readiness.sampling import sample_rollouts
from e3rl.seeds import derive_seed

PART, FAILURE = "part-{}.npz", "part-{}.json"
FAILURES = {"EngineMismatchError": EngineMismatchError, "MemoryError": MemoryError}


def choose_processes(cfg: DictConfig, problems: int) -> int:
    """How many sample at once: `preflight.processes`, or as many as engines sample for those that
    train on this machine.

    One where servers sample, which serve one as fast as several, and no more than problems.

    Raises ConfigurationError where there are GPUs, but not enough of them.
    """
    asked = cfg.preflight.processes
    if asked == "auto":
        here = count_processes(cfg) // int(cfg.trainer.get("num_nodes", 1))
        asked = 1 if has_servers(cfg) else max(1, here // split_over_ranks(cfg))
    devices = [] if cfg.trainer.accelerator == "cpu" else visible_devices()
    return check_processes(min(int(asked), problems), devices, _devices_of_each(cfg))


def _devices_of_each(cfg: DictConfig) -> int:
    return OmegaConf.select(cfg, "engine.settings.tensor_parallel_size") or 1


def build_policy(cfg: DictConfig) -> Policy:
    """The run's; fresh weights are the same in all processes."""
    torch.manual_seed(cfg.seed)
    policy: Policy = build(cfg, "policy")
    return policy


def sample_in_processes(
    cfg: DictConfig, count: int, problems: Sequence[Problem], temperature: float
) -> Sample:
    """The same rollouts as one process samples, by `count` that share the problems.

    Raises EngineMismatchError and MemoryError where a process does, ChildProcessError where one
    ends otherwise.
    """
    each = _devices_of_each(cfg)
    with tempfile.TemporaryDirectory(prefix="preflight-") as name:
        folder = Path(name)
        work = partial(sample_part, folder=folder, temperature=temperature)
        try:
            run_parts(work, to_plain_dict(cfg), count, visible_devices(), each)
        except ChildProcessError as error:
            for path in sorted(folder.glob(FAILURE.format("*"))):
                told = json.loads(path.read_text())
                raise FAILURES[told["kind"]](told["text"]) from error
            raise
        parts = [PartialSample.read(folder / PART.format(i + 1)) for i in range(count)]
    return combine(parts, [problem.id for problem in problems], temperature)


def sample_part(settings: dict[str, Any], folder: Path, temperature: float) -> None:
    """What each process does: every `count`-th problem, into a file of the folder."""
    silence_libraries()
    index, count = map(int, settings.pop("part").split("/"))
    del settings["processes"]
    cfg = OmegaConf.create(settings)
    try:
        data, policy = build_data(cfg), build_policy(cfg)
        bind_data(data, policy)
        problems = draw_problems(data, cfg)[index - 1 :: count]
        found = sample_once(cfg, policy, problems, temperature)
    except (EngineMismatchError, MemoryError, torch.OutOfMemoryError) as error:
        kind = "EngineMismatchError" if isinstance(error, EngineMismatchError) else "MemoryError"
        told = json.dumps({"kind": kind, "text": str(error)})
        (folder / FAILURE.format(index)).write_text(told)
        raise SystemExit(1) from error
    found.write(folder / PART.format(index))


def sample_once(
    cfg: DictConfig, policy: Policy, problems: Sequence[Problem], temperature: float
) -> PartialSample:
    """In this process; starts and closes engine and reward workers."""
    engine, pool = build(cfg, "engine"), build(cfg, "reward")
    try:
        return sample_rollouts(cfg, policy, problems, temperature, engine, pool)
    finally:
        engine.close()
        pool.close()


def draw_problems(data: PromptDataModule, cfg: DictConfig) -> list[Problem]:
    """`preflight.prompts` training problems drawn by the seed, without repeats, in their order."""
    problems = data.train_problems
    generator = np.random.default_rng(derive_seed(cfg.seed, "preflight", "problems"))
    count = min(cfg.preflight.prompts, len(problems))
    return [problems[row] for row in sorted(generator.permutation(len(problems))[:count].tolist())]
