"""What a configuration amounts to: the quantities that follow from it, shown before a run."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from e3rl.configuration import ConfigurationError
from e3rl.data.datamodule import PromptDataModule
from e3rl.policy import Policy


@dataclass(frozen=True)
class RunPlan:
    """Derived quantities by label, in the order they are shown."""

    quantities: dict[str, str]
    total_steps: int

    def render(self, run_dir: Path, resume: Path | None) -> str:
        """A small table as text."""
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        for label, value in self.quantities.items():
            table.add_row(label, value)
        table.add_row("run folder", str(run_dir))
        if resume:
            table.add_row("resumes", str(resume))
        console = Console(width=120 + len(str(run_dir)), color_system=None)
        with console.capture() as captured:
            console.print(table)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def derive_plan(cfg: Any, data: PromptDataModule, policy: Policy) -> RunPlan:
    """Work out steps, rollouts and annealing start of a run.

    Raises ConfigurationError where the last step would not be validated, or the budget cannot
    give prompts what it is asked to.
    """
    per_epoch = data.steps_per_epoch
    limit = cfg.trainer.get("limit_train_batches")
    if isinstance(limit, int):
        per_epoch = min(per_epoch, limit)
    total = per_epoch * cfg.epochs
    _check_validation(total, cfg.validate_every)
    _check_group_size(cfg)
    if cfg.budget.get("difficulty") == "prior":
        _check_priors(data)
    rollouts = cfg.prompts_per_step * cfg.rollouts_per_prompt
    updates = cfg.module.settings.minibatches * cfg.module.settings.inner_epochs
    parameters = sum(p.numel() for p in policy.parameters())
    quantities = {
        "arm": f"{cfg.name}, seed {cfg.seed}",
        "policy": f"{parameters / 1e6:.2f} M parameters, vocabulary {policy.vocabulary_size}",
        "problems": f"{len(data.train_problems)} to train on, "
        f"{len(data.validation_problems)} to validate on",
        "a rollout step": f"{cfg.prompts_per_step} prompts x {cfg.rollouts_per_prompt} = "
        f"{rollouts} rollouts, {updates} optimiser step{'s' if updates > 1 else ''}",
        "the run": f"{cfg.epochs} epochs x {per_epoch} = {total} steps, "
        f"{total * rollouts} rollouts",
        "validation": f"before training and every {cfg.validate_every} steps",
    }
    rule = cfg.temperature.get("rule", cfg.temperature)  # of several temperatures, or of one
    annealing = rule.get("annealing")
    if annealing:
        start = math.floor((1 - annealing.ratio) * total + 1e-9)  # as CosineAnnealing.start
        quantities["annealing"] = f"from step {start} on, to {annealing.eta} of the target entropy"
    return RunPlan(quantities, total)


def _check_validation(total: int, every: int) -> None:
    if total % every:
        near = [n for n in range(1, total + 1) if total % n == 0]
        best = min(near, key=lambda n: abs(n - every))
        raise ConfigurationError(
            f"validate_every={every} does not divide the run's {total} steps, so the last step "
            f"would not be validated: use for instance validate_every={best}"
        )


def _check_group_size(cfg: Any) -> None:
    lowest = "per_round" if "per_round" in cfg.budget else "n_low"
    low, high = cfg.budget.get(lowest, 1), cfg.budget.get("n_high", math.inf)
    if not low <= cfg.rollouts_per_prompt <= high:
        raise ConfigurationError(
            f"rollouts_per_prompt={cfg.rollouts_per_prompt} must lie between budget.{lowest}={low} "
            f"and budget.n_high={high}: change one of the three"
        )


def _check_priors(data: PromptDataModule) -> None:
    without = sum(problem.prior is None for problem in data.train_problems)
    if without:
        raise ConfigurationError(
            f"budget.difficulty=prior: {without} of {len(data.train_problems)} training problems "
            "have no difficulty rank; give the data a rank column, or use difficulty=reward"
        )
