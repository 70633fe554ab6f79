"""One run from a composed configuration to a finished run folder."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig
from torch import distributed

from e3rl.callbacks.checkpoint import RunCheckpoint, set_aside, set_summary_aside
from e3rl.callbacks.progress import progress_callbacks
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.stall import StallGuard
from e3rl.callbacks.stopping import Stopped, StopRequest
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import checkpoints, find_damage, step_of
from e3rl.config.build import (
    bind_data,
    build,
    build_callbacks,
    build_data,
    check_devices,
    check_optimizer,
    silence_libraries,
)
from e3rl.config.cautions import find_cautions
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError, to_plain_dict
from e3rl.config.saved import is_run_configuration
from e3rl.data.datamodule import PromptDataModule
from e3rl.evaluation.policy_check import check_positions
from e3rl.ledger.clock import PhaseClock
from e3rl.ledger.files import CONFIG, ENVIRONMENT, METRICS, PROMPTS, SUMMARY, VALIDATION
from e3rl.ledger.logger import LedgerLogger
from e3rl.ledger.wandb_mirror import WandbMirror
from e3rl.planning.plan import ProblemCounts, check_before_policy, derive_plan
from e3rl.planning.processes import count_processes, is_sharded
from e3rl.policy.policy import Policy
from e3rl.policy.shape import ModelShape
from e3rl.process.environment import claim_start
from e3rl.runs.control import check_control
from e3rl.runs.provenance import find_edited_rewards, write_provenance
from e3rl.runs.ranks import Ranks, watch_parent
from e3rl.runs.sweep_jobs import check_resumed_settings, find_resume_checkpoint, is_job

if TYPE_CHECKING:
    from e3rl.runs.outcome import Outcome

WRITTEN = (CONFIG, ENVIRONMENT, SUMMARY, METRICS, PROMPTS, VALIDATION, "metrics.csv")


def execute(cfg: DictConfig) -> "Outcome | None":
    """Check, build, validate, train, and write everything a run folder holds.

    Returns None on other ranks than zero. Raises ConfigurationError, with every mistake that can
    be known by then, before any work.
    """
    with StopRequest() as stop:
        return _execute(cfg, stop)


def _execute(cfg: DictConfig, stop: StopRequest) -> "Outcome | None":
    began = claim_start()
    watch_parent()
    check(cfg)
    check_control(cfg)
    check_devices(cfg)
    check_optimizer(cfg)
    silence_libraries()
    run_dir = Path(cfg.paths.run_dir)
    resume = find_resume_checkpoint(cfg)
    data = build_data(cfg)
    if resume is None:  # else settings that changed since the start are told first
        check_before_policy(cfg, data)
    seed_everything(cfg.seed, verbose=False)
    policy: Policy = build(cfg, "policy", in_parts=count_processes(cfg) > 1 or is_sharded(cfg))
    cfg.vocabulary_size = policy.vocabulary_size
    check_resumed_settings(cfg, resume)
    bind_data(data, policy)
    check_positions(cfg, policy, data.longest_prompt)
    plan = derive_plan(cfg, ProblemCounts.of(data), ModelShape.of_policy(policy))
    module = build(cfg, "module", policy=policy)
    clock = PhaseClock(build(cfg, "profiler") if cfg.profiler else None, began)
    trainer = build_trainer(cfg, plan.total_steps, clock)
    connect(trainer, stop, data)
    if resume is None:
        check_folder_is_free(run_dir)  # on every rank, or some would wait for those that refuse
    with claim_folder(run_dir, trainer), telling_how_to_go_on(cfg, trainer), Ranks(trainer):
        if trainer.is_global_zero:
            begin_folder(cfg, run_dir, resume, trainer.loggers)
            print(plan.render(run_dir, resume))
            edited = find_edited_rewards(cfg, run_dir) if resume else []
            for caution in [*find_cautions(cfg), *edited]:
                print(f"caution: {caution}")
        if resume is None:
            trainer.validate(module, datamodule=data, verbose=False)  # the baseline, step 0
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        if distributed.is_initialized():  # rank zero finishes alone, and may sample once more
            distributed.destroy_process_group()
        if not trainer.is_global_zero:
            return None
        clock.finish()
        return finish(cfg, run_dir, clock, trainer.loggers)


@contextmanager
def claim_folder(run_dir: Path, trainer: Trainer) -> Iterator[None]:
    """Let no other run write into the folder meanwhile; the claim ends with the process at latest.

    Raises ConfigurationError where one does.
    """
    if not trainer.is_global_zero:
        yield
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(folder)
        raise ConfigurationError(
            f"another process is writing a run into {run_dir}: wait for its end, or choose another "
            "folder"
        ) from error
    try:
        yield
    finally:
        os.close(folder)


@contextmanager
def telling_how_to_go_on(cfg: DictConfig, trainer: Trainer) -> Iterator[None]:
    """Where a signal ends the run, say by which command it goes on."""
    try:
        yield
    except Stopped:
        if trainer.is_global_zero:
            print(resume_hint(cfg))
        raise


def build_trainer(cfg: DictConfig, total_steps: int, clock: PhaseClock) -> Trainer:
    """The trainer with callbacks, loggers, atomic checkpoints and progress.

    Raises ConfigurationError where a callback lacks another whose work it needs.
    """
    callbacks: list[Callback] = build_callbacks(cfg)
    loggers: list[Logger] = [
        build(cfg, f"logger.{name}") for name, node in cfg.logger.items() if node
    ]
    for logger in loggers:
        if isinstance(logger, WandbMirror):
            logger.log_hyperparams(to_plain_dict(cfg))
    progress = progress_callbacks(cfg.trainer.enable_progress_bar, total_steps)
    trainer: Trainer = build(
        cfg,
        "trainer",
        callbacks=[*callbacks, StallGuard(cfg.stall_s), *progress],
        logger=loggers,
        plugins=[AtomicCheckpointIO()],
        profiler=clock,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in progress),
    )
    # At true half and double precision Lightning would train on a converted copy of the batch; the
    # loader, what is sampled ahead and what is handed back hold on to the batch itself.
    trainer.precision_plugin.convert_input = lambda data: data  # type: ignore[method-assign]
    return trainer


def connect(trainer: Trainer, stop: StopRequest, data: PromptDataModule) -> None:
    """Tell callbacks what is known only now: who asks for a stop, and how long prompts are."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, RunCheckpoint):
            callback.stop = stop
        elif isinstance(callback, RolloutSampler):
            callback.plan_for(data.longest_prompt)


def check_folder_is_free(run_dir: Path) -> None:
    """Raise ConfigurationError where the folder holds a run that can be resumed, or files that a
    run writes and no run has written, which would be lost."""
    if not all(find_damage(path) for path in checkpoints(run_dir / "checkpoints")):
        raise ConfigurationError(
            f"{run_dir} holds a run already: go on with it by ckpt_path={run_dir}, or choose "
            "another folder"
        )
    there = [name for name in WRITTEN if (run_dir / name).exists()]
    if there and not is_run_configuration(run_dir / CONFIG):
        raise ConfigurationError(
            f"{run_dir} has a {there[0]} and is no run's folder: the run would replace it; choose "
            "another folder"
        )


def begin_folder(
    cfg: DictConfig, run_dir: Path, resume: Path | None, loggers: Sequence[Logger]
) -> None:
    """Write what the run is, and set aside what an unfinished one left in its folder.

    The configuration comes before any ledger, since other ranks tell a run's folder by it. Raises
    ConfigurationError where another run has come before the claim.
    """
    if resume is None:
        check_folder_is_free(run_dir)
        set_summary_aside(run_dir)
    write_provenance(cfg, run_dir, resume)
    if resume is None:
        clear_unfinished_run(run_dir, loggers)


def clear_unfinished_run(run_dir: Path, loggers: Sequence[Logger]) -> None:
    """Set aside what a run left that has no whole checkpoint: killed before its first one was, or
    finished, and its checkpoints removed."""
    set_aside(run_dir / "checkpoints", finished=0)
    for logger in loggers:
        if isinstance(logger, LedgerLogger):
            logger.rewind({})


def resume_hint(cfg: DictConfig) -> str:
    """What to tell somebody who stopped a run."""
    run_dir = Path(cfg.paths.run_dir)
    if is_job(cfg):
        return (
            f"\nstopped; go on with the sweep by the same command and sweep.name={cfg.sweep.name}"
        )
    saved = checkpoints(run_dir / "checkpoints")
    if not saved:
        return f"\nstopped before the first checkpoint; what there is: {run_dir}"
    step = step_of(saved[-1])
    return f"\nstopped; go on after rollout step {step} by the same command and ckpt_path={run_dir}"


def finish(
    cfg: DictConfig, run_dir: Path, clock: PhaseClock, loggers: Sequence[Logger] = ()
) -> "Outcome":
    """See `conclude`; what that takes is loaded when a run has ended, and not before it begins."""
    from e3rl.runs.outcome import conclude

    return conclude(cfg, run_dir, clock, loggers)
