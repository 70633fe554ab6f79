"""What it takes to sample a run's policy again: what it was made of, its problems, its weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from e3rl.analysis.sources.runs import Run
from e3rl.checkpoints.files import DamagedCheckpointError, checkpoints, newest_sound, step_of
from e3rl.config.build import bind_data, build
from e3rl.config.composition import ConfigurationError
from e3rl.data.datamodule import PromptDataModule
from e3rl.data.problems import ProblemSet
from e3rl.engines.randomness import preserve_torch_rng
from e3rl.evaluation.policy_check import check_policy
from e3rl.planning.plan import count_validated
from e3rl.policy.policy import Policy
from e3rl.rewards.pool import RewardPool


def rebuild(run: Run, part: str) -> Any:
    """A part of what a run was made of, by its configuration.

    Raises ConfigurationError where what it takes is gone.
    """
    with telling_run(run), preserve_torch_rng():
        torch.manual_seed(run.seed)  # fresh weights, also below adapters, follow it
        return build(OmegaConf.create(run.config), part)


def check_parts(run: Run, parts: Sequence[str]) -> None:
    """Raise ConfigurationError where a run's policy could not be made, as far as can be known
    without its weights, or one of these parts of its configuration cannot."""
    cfg = OmegaConf.create(run.config)
    path = OmegaConf.select(cfg, "policy.path")
    absent = f"policy.path={path} is no model folder or hub name within reach"
    with telling_run(run):
        check_policy(cfg, "policy", absent, cfg.max_new_tokens)
    for part in parts:
        made = rebuild(run, part)
        if isinstance(made, RewardPool):
            made.close()


@contextmanager
def telling_run(run: Run) -> Iterator[None]:
    """Say of which run something is gone, and what may be done."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{run.path} was trained with what is gone or has changed: bring it back, or leave out "
            f"what needs its policy (--n 0, and no --keep-policies)\n{error}"
        ) from error


def validation_problems(run: Run, policy: Policy) -> ProblemSet:
    """What a run was validated on: without problems that are trained on, or too long.

    Raises ConfigurationError where these are gone, ValueError where the ledger has others.
    """
    data: PromptDataModule = rebuild(run, "data")
    with telling_run(run):
        bind_data(data, policy)
    whole = data.validation_problems
    taken = count_validated(OmegaConf.create(run.config), len(whole))
    found = whole.without(dict.fromkeys(whole.rows[taken:], "not validated"))
    known = next(reversed(run.counts.values()))["problem_id"]
    if sorted(known) != sorted(problem.id for problem in found):
        raise ValueError(
            f"{run.path} was validated on {len(known)} problems, and its settings now give "
            f"{len(found)} that are not the same: bring back the files that it read"
        )
    return found


def last_weights(run: Run) -> Path:
    """The checkpoint of a run's last validation.

    Raises DamagedCheckpointError where only earlier ones are sound: what they sample is not what
    the run ended with.
    """
    step = last_step(run)
    found = newest_sound(run.path / "checkpoints")
    if step_of(found) != step:
        raise DamagedCheckpointError(
            f"{run.path}: validated last at step {step}, and its newest sound checkpoint is "
            f"{found.name}; remove the run to make it again"
        )
    return found


def last_step(run: Run) -> int:
    """Of the validations of a run."""
    return int(run.evaluations["rollout_step"].max())


def has_weights(run: Run) -> bool:
    """Whether there is a checkpoint of a run's last validation."""
    return last_step(run) in map(step_of, checkpoints(run.path / "checkpoints"))
