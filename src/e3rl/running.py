"""One run from a composed configuration to a finished run folder."""

import json
import logging
import os
import platform
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning import Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from e3rl.analysis.evaluations import Evaluation as Measured
from e3rl.analysis.figures import save_figures
from e3rl.analysis.runs import Run, load_run
from e3rl.analysis.summary import arm_evaluations, arm_rows, render
from e3rl.callbacks.validation_plan import Evaluation
from e3rl.checkpoint_files import newest_sound
from e3rl.checkpoint_io import AtomicCheckpointIO
from e3rl.configuration import ConfigurationError, check, resolved, run_of
from e3rl.data.datamodule import PromptDataModule
from e3rl.evaluating import evaluate_policy, measured
from e3rl.ledger import export, read_rows
from e3rl.plan import derive_plan
from e3rl.policy import Policy
from e3rl.rewards.golds import check_golds
from e3rl.wandb_mirror import WandbMirror

CONFIG = "config.yaml"
RESUMABLE = ("ckpt_path", "checkpoint_every", "control", "paths", "trainer", "logger", "sweep")
PACKAGES = ("torch", "lightning", "transformers", "hydra-core", "math-verify", "wandb", "numpy")


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves."""

    run_dir: Path
    evaluations: list[Measured]
    control: str | None  # arm name of the control among the evaluations
    figures: list[Path]
    pass_at_1: float


def execute(cfg: DictConfig) -> Outcome:
    """Check, build, validate, train, and write everything a run folder holds.

    Raises ConfigurationError (every mistake at once) and FileNotFoundError before any work.
    """
    check(cfg)
    quiet()
    run_dir = Path(cfg.paths.run_dir)
    resume = newest_sound(_checkpoints_of(cfg.ckpt_path, run_dir)) if cfg.ckpt_path else None
    seed_everything(cfg.seed, verbose=False)
    policy: Policy = instantiate(cfg.policy)
    cfg.vocabulary_size = policy.vocabulary_size
    data: PromptDataModule = instantiate(cfg.data, _convert_="all")
    data.bind(policy.encode)
    check_golds(
        [(p.id, p.answer) for p in [*data.train_problems, *data.validation_problems]],
        cfg.reward.answer_format,
    )
    plan = derive_plan(cfg, data, policy)
    if resume:
        check_same_run(cfg, run_dir)
    record(cfg, run_dir)
    rank_zero_only(print)(plan.render(run_dir, resume))
    module = instantiate(cfg.module, policy=policy, _convert_="all")
    callbacks = [instantiate(c, _convert_="all") for c in cfg.callbacks.values() if c]
    loggers = [instantiate(logger, _convert_="all") for logger in cfg.logger.values() if logger]
    for logger in loggers:
        if isinstance(logger, WandbMirror):
            logger.log_hyperparams(resolved(cfg))
    trainer: Trainer = instantiate(
        cfg.trainer,
        callbacks=callbacks,
        logger=loggers,
        plugins=[AtomicCheckpointIO()],
        _convert_="all",
    )
    if resume is None:
        trainer.validate(module, datamodule=data, verbose=False)  # the baseline, step 0
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
    return finish(cfg, run_dir, loggers)


def finish(cfg: DictConfig, run_dir: Path, loggers: Sequence[Any] = ()) -> Outcome:
    """Export the ledger, draw the figures, compare with the control, write the summary."""
    export(run_dir)
    figures = save_figures(run_dir)
    run = load_run(run_dir)
    evaluations = arm_evaluations({run.name: [run]})
    control = control_evaluations(cfg, run, evaluations)
    evaluations += control
    pass_at_1 = next(
        (e.pass_at_k([1])[0].mean for e in evaluations if e.name == "t1"), float("nan")
    )
    arm = control[0].arm if control else None
    rows = arm_rows(evaluations, control=arm)
    summary = {"pass@1": pass_at_1, "evaluations": rows, "costs": _costs(run)}
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for logger in loggers:
        if isinstance(logger, WandbMirror):
            logger.log_completions(read_rows(run_dir / "completions.jsonl"))
            logger.experiment.finish()
    return Outcome(run_dir, evaluations, arm, figures, pass_at_1)


def report(outcome: Outcome) -> str:
    """The summary table and where everything is."""
    table = render(arm_rows(outcome.evaluations, control=outcome.control))
    paths = "\n".join(f"  {path}" for path in outcome.figures)
    return f"\n{table}\n\nrun folder: {outcome.run_dir}\nfigures:\n{paths}"


def control_evaluations(
    cfg: DictConfig, run: Run, evaluations: Sequence[Measured]
) -> list[Measured]:
    """The recorded control's last validation, and the control sampled at this run's entropy.

    Empty where no control is configured, or where it was validated on other problems.
    """
    if cfg.control is None or not Path(cfg.control).is_dir():
        return []
    recorded = load_run(cfg.control)
    problems = set(run.problems["problem_id"])
    if not problems or not problems <= set(recorded.problems["problem_id"]):
        return []
    arm = f"{recorded.name} (recorded)"
    found = arm_evaluations({arm: [recorded]})
    live = next((e for e in evaluations if e.name == "live"), None)
    weights = Path(cfg.control) / "policy"
    if live is None or not weights.is_dir():
        return found
    policy = Policy(str(weights))
    data = instantiate(cfg.data, _convert_="all")
    counts = evaluate_policy(
        policy,
        data.validation_problems,
        [Evaluation("matched", n=live.n_samples, entropy=live.entropy)],
        instantiate(cfg.engine),
        instantiate(cfg.reward),
        cfg.max_new_tokens,
        prompts_per_batch=data.validation_prompts_per_batch,
        progress=bool(cfg.trainer.get("enable_progress_bar", True)),
    )
    return [*found, *(measured(arm, c) for c in counts)]


def check_same_run(cfg: DictConfig, run_dir: Path) -> None:
    """Raise ConfigurationError where a resumed run is not configured as it was started."""
    saved = yaml.safe_load((run_dir / CONFIG).read_text())
    now = resolved(cfg)
    changed = [
        f"  - {path}: {before!r} at the start, {after!r} now"
        for key in sorted(saved.keys() | now.keys())
        if key not in RESUMABLE
        for path, before, after in _differences(saved.get(key), now.get(key), str(key))
        if not path.endswith((".folder", "every"))
    ]
    if changed:
        listed = "\n".join(changed)
        raise ConfigurationError(
            f"{run_dir} was started with other settings; repeat those overrides, or start a new "
            f"run without ckpt_path:\n{listed}"
        )


def _differences(before: Any, after: Any, path: str) -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for key in sorted(before.keys() | after.keys())
            for found in _differences(before.get(key), after.get(key), f"{path}.{key}")
        ]
    return [] if before == after else [(path, before, after)]


def record(cfg: DictConfig, run_dir: Path) -> None:
    """Write the resolved configuration and the environment; a resumed run keeps the first ones."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if not (run_dir / CONFIG).exists():
        (run_dir / CONFIG).write_text(OmegaConf.to_yaml(OmegaConf.create(resolved(cfg))))
        facts = json.dumps(environment(), indent=1)
        (run_dir / "environment.json").write_text(facts + "\n")


def environment() -> dict[str, Any]:
    """Versions, machine, command and state of the checkout."""
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []
    return {
        "e3rl": version("e3rl"),
        "python": platform.python_version(),
        "packages": {package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "overrides": overrides,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain")),
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine without git
        return ""
    return done.stdout.strip()


def quiet() -> None:
    """Leave out what libraries say about choices that are made on purpose here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for pattern in (
        ".*does not have many workers.*",
        ".*`IterableDataset` has `__len__` defined.*",
        ".*exists and is not empty.*",
        ".*in eval mode at the start of training.*",
        ".*LeafSpec.*is deprecated.*",
    ):
        warnings.filterwarnings("ignore", pattern)


def _checkpoints_of(ckpt_path: str, run_dir: Path) -> Path:
    if ckpt_path == "last" or Path(ckpt_path).suffix != ".ckpt":
        return run_of(run_dir) / "checkpoints"
    return Path(ckpt_path)


def _costs(run: Run) -> dict[str, float]:
    if run.train.empty:
        return {}
    last = run.train.iloc[-1]
    return {key: float(last[key]) for key in run.train.columns if key.startswith("cost/")}
