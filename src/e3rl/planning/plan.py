"""What a configuration amounts to: the quantities that follow from it, shown before a run."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from e3rl.config.composition import ConfigurationError
from e3rl.data.datamodule import PromptDataModule
from e3rl.policy.shape import ModelShape


@dataclass(frozen=True)
class ProblemCounts:
    """Numbers of problems: all that a plan needs of the data."""

    train: int
    validation: int
    unranked: int = 0  # of those to train on, without a difficulty of their own

    @staticmethod
    def of(data: PromptDataModule) -> "ProblemCounts":
        unranked = sum(problem.prior is None for problem in data.train_problems)
        return ProblemCounts(len(data.train_problems), len(data.validation_problems), unranked)


@dataclass(frozen=True)
class RunPlan:
    """Derived quantities by label, in the order they are shown."""

    quantities: dict[str, str]
    total_steps: int

    def render(self, run_dir: Path | None = None, resume: Path | None = None) -> str:
        """A small table as text, without a run folder where none is made."""
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        for label, value in self.quantities.items():
            table.add_row(label, value)
        if run_dir:
            table.add_row("run folder", str(run_dir))
        if resume:
            table.add_row("resumes", str(resume))
        console = Console(width=160 + len(str(run_dir)), color_system=None)
        with console.capture() as captured:
            console.print(table)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def derive_plan(cfg: Any, problems: ProblemCounts, shape: ModelShape) -> RunPlan:
    """Work out steps, rollouts and annealing start of a run.

    Raises ConfigurationError where the last step would not be validated, or the budget cannot
    give prompts what it is asked to.
    """
    per_epoch = problems.train // cfg.prompts_per_step
    limit = cfg.trainer.get("limit_train_batches")
    if isinstance(limit, int):
        per_epoch = min(per_epoch, limit)
    total = per_epoch * cfg.epochs
    _check_validation(total, cfg.validate_every)
    _check_group_size(cfg)
    if cfg.budget.get("difficulty") == "prior":
        _check_priors(problems)
    rollouts = cfg.prompts_per_step * cfg.rollouts_per_prompt
    updates = cfg.module.settings.minibatches * cfg.module.settings.inner_epochs
    quantities = {
        "arm": f"{cfg.name}, seed {cfg.seed}",
        "rules": name_rules(cfg),
        "policy": f"{shape.parameters / 1e6:.2f} M parameters, vocabulary {shape.vocabulary}",
        "problems": f"{problems.train} to train on, {problems.validation} to validate on",
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


def name_rules(cfg: Any) -> str:
    """Which rules a configuration has for budget, temperature, advantage and loss, by their
    classes or functions."""
    nodes = {name: cfg[name] for name in ("budget", "temperature", "advantage")}
    nodes["surrogate"] = cfg.loss.surrogate
    named = {name: str(node["_target_"]).rpartition(".")[2] for name, node in nodes.items()}
    return ", ".join(f"{name} {rule}" for name, rule in named.items())


def _check_validation(total: int, every: int) -> None:
    if total % every:
        near = [n for n in range(1, total + 1) if total % n == 0]
        best = min(near, key=lambda n: abs(n - every))
        raise ConfigurationError(
            f"validate_every={every} does not divide the run's {total} steps, so the last step "
            f"would not be validated: use for instance validate_every={best}"
        )


def read_bounds(budget: Any) -> tuple[str, float, float]:
    """The setting that bounds a rule's mean group size from below, and both bounds."""
    lowest = "per_round" if "per_round" in budget else "n_low"
    return lowest, budget.get(lowest, 1), budget.get("n_high", math.inf)


def _check_group_size(cfg: Any) -> None:
    lowest, low, high = read_bounds(cfg.budget)
    if not low <= cfg.rollouts_per_prompt <= high:
        raise ConfigurationError(
            f"rollouts_per_prompt={cfg.rollouts_per_prompt} must lie between budget.{lowest}={low} "
            f"and budget.n_high={high}: change one of the three"
        )


def _check_priors(problems: ProblemCounts) -> None:
    if problems.unranked:
        raise ConfigurationError(
            f"budget.difficulty=prior: {problems.unranked} of {problems.train} training problems "
            "have no difficulty rank; give the data a rank column, or use difficulty=reward"
        )
