"""What a configuration amounts to: the quantities that follow from it, shown before a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from e3rl.config.cautions import goes_by_history, target_name
from e3rl.config.composition import ConfigurationError
from e3rl.data.datamodule import PromptDataModule
from e3rl.planning.agreement import check_agreement
from e3rl.policy.shape import ModelShape
from e3rl.temperatures.annealing import annealing_start

SCALES_THE_LOSS = ("16-mixed", "16", 16)  # precisions
# Arguments of lightning.Trainer that are made of configuration groups, and those to use.
MADE_OF_GROUPS = {
    "callbacks": "use +callbacks.NAME._target_=..., and its place in the order",
    "logger": "use logger=... or +logger.NAME._target_=...",
    "profiler": "use profiler=...",
    "plugins": "they are those of checkpoints; strategies come with trainer=...",
}
# What Lightning refuses beside an update that steps by itself, where it does not, what to use.
OF_THE_UPDATE = {
    "gradient_clip_val": (None, "module.settings.max_grad_norm"),
    "gradient_clip_algorithm": (None, "module.settings.max_grad_norm"),
    "accumulate_grad_batches": (1, "module.settings.tokens_per_microbatch"),
}
# Arguments that end a run by themselves, and the value at which they do not.
NO_END = {"max_steps": -1, "max_time": None, "fast_dev_run": False, "overfit_batches": 0}


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

    Raises ConfigurationError as `check_plan`.
    """
    per_epoch = check_plan(cfg, problems)
    total = per_epoch * cfg.epochs
    rollouts = cfg.prompts_per_step * cfg.rollouts_per_prompt
    updates = cfg.module.settings.minibatches * cfg.module.settings.inner_epochs
    validated = count_validated(cfg, problems.validation)
    of_all = f" of {problems.validation}" if validated < problems.validation else ""
    quantities = {
        "arm": f"{cfg.name}, seed {cfg.seed}",
        "rules": name_rules(cfg),
        "policy": f"{shape.parameters / 1e6:.2f} M parameters, vocabulary {shape.vocabulary}",
        "problems": f"{problems.train} to train on, {validated}{of_all} to validate on",
        "a rollout step": f"{cfg.prompts_per_step} prompts x {cfg.rollouts_per_prompt} = "
        f"{rollouts} rollouts, {updates} optimiser step{'s' if updates > 1 else ''}",
        "the run": f"{cfg.epochs} epochs x {per_epoch} = {total} steps, "
        f"{total * rollouts} rollouts",
        "validation": f"before training and every {cfg.validate_every} steps",
    }
    visited = total * cfg.prompts_per_step
    if cfg.epochs > 1 and visited <= problems.train and goes_by_history(cfg.budget):
        quantities["budget"] = (
            f"uniform all along: {visited} of {problems.train} problems are visited, once each, "
            "and the rule goes by what earlier visits showed; use more epochs, or fewer problems"
        )
    return RunPlan(quantities | _temperature_plan(cfg, total), total)


def check_plan(cfg: Any, problems: ProblemCounts) -> int:
    """The steps of an epoch, where a run on so many problems would come to its end.

    Raises ConfigurationError where the run would end elsewhere than at its last step, this would
    not be validated, settings contradict each other (`check_agreement`), a step has fewer rollouts
    than minibatches, the advantage cannot take the rewards, or the temperature goes by an entropy
    that nothing measures.
    """
    check_agreement(cfg)
    _check_trainer(cfg.trainer, cfg.epochs)
    _check_validations(cfg.trainer, cfg.validate_every)
    limit = cfg.trainer.get("limit_train_batches")
    per_epoch = problems.train // cfg.prompts_per_step
    per_epoch = min(per_epoch, limit) if type(limit) is int else per_epoch
    _check_validation(per_epoch * cfg.epochs, cfg.validate_every)
    _check_minibatches(cfg)
    _check_rewards(cfg)
    _check_gain(cfg)
    if cfg.budget.get("difficulty") == "prior":
        _check_priors(problems)
    return int(per_epoch)


def count_validated(cfg: Any, problems: int) -> int:
    """How many of the validation problems a validation takes: its first batches, where
    `trainer.limit_val_batches` is a number of them."""
    limit = cfg.trainer.get("limit_val_batches")
    if type(limit) is not int:
        return problems
    return int(min(problems, limit * cfg.data.get("validation_prompts_per_batch", 1024)))


def check_before_policy(cfg: Any, data: PromptDataModule) -> None:
    """`check_plan` before a policy is fetched and loaded.

    Not where its tokenizer may change how many problems there are, by leaving out long prompts.
    """
    if data.on_bad_row == "raise":
        check_plan(cfg, ProblemCounts.of(data))


def _temperature_plan(cfg: Any, total: int) -> dict[str, str]:
    """When the temperature follows an entropy, and when that is annealed."""
    rule = rule_of(cfg.temperature)
    if rule.get("unit") == "step" and rule.starts[-1] >= total:
        return {
            "temperature": f"not all stages: the last begins at step {rule.starts[-1]:g} "
            f"(temperature.starts), and the run has {total}"
        }
    measured = rule.get("init_steps", 0) if rule.get("target") is None else 0
    ahead = cfg.rollout.lookahead
    if measured and measured + ahead >= total:
        late = f", {ahead} more are sampled before it is known (rollout.lookahead)" if ahead else ""
        return {
            "temperature": f"never moves: it is {measured} steps (temperature.init_steps) that "
            f"measure the target entropy{late}, and the run has {total}"
        }
    annealing = rule.get("annealing")
    if not annealing:
        return {}
    start = annealing_start(annealing.ratio, total)
    late = f"; the target is measured until step {measured}" if measured > start else ""
    return {"annealing": f"from step {start} on, to {annealing.eta} of the target entropy{late}"}


def rule_of(temperature: Any) -> Any:
    """The rule that decides the step's temperature, be it one or several around it."""
    return temperature.get("rule", temperature)


def name_rules(cfg: Any) -> str:
    """Which rules a configuration has for budget, temperature, advantage and loss, by their
    classes or functions."""
    nodes = {name: cfg[name] for name in ("budget", "temperature", "advantage")}
    nodes["surrogate"] = cfg.loss.surrogate
    named = {name: target_name(node) for name, node in nodes.items()}
    return ", ".join(f"{name} {rule}" for name, rule in named.items())


def _check_validation(total: int, every: int) -> None:
    if total % every:
        near = [n for n in range(1, total + 1) if total % n == 0]
        best = min(near, key=lambda n: abs(n - every))
        raise ConfigurationError(
            f"validate_every={every} does not divide the run's {total} steps, so the last step "
            f"would not be validated: use for instance validate_every={best}"
        )


def _check_minibatches(cfg: Any) -> None:
    minibatches, rollouts = cfg.module.settings.minibatches, cfg.rollouts_per_prompt
    total = cfg.prompts_per_step * rollouts
    if minibatches > total:
        raise ConfigurationError(
            f"module.settings.minibatches={minibatches} is more than a step has rollouts, "
            f"{cfg.prompts_per_step} x {rollouts} = {total}: use at most {total}, or raise "
            "prompts_per_step or rollouts_per_prompt"
        )


def _check_rewards(cfg: Any) -> None:
    rules = (target_name(cfg.get("shaping")), target_name(cfg.advantage))
    if rules == ("OverlongPenalty", "MaximumLikelihood"):
        raise ConfigurationError(
            "advantage=maximum_likelihood divides by the mean reward of a group, and "
            "shaping=overlong makes rewards below 0: use shaping=none, or advantage=centred"
        )


def _check_gain(cfg: Any) -> None:
    gain = target_name(rule_of(cfg.temperature).get("gain"))
    if gain in ("ElasticityGain", "SolveGain") and cfg.module.probe.rows == 0:
        raise ConfigurationError(
            f"temperature.gain={gain} goes by exact entropies, and module.probe.rows=0 measures "
            "none: use module.probe.rows=64, or temperature/gain=paper"
        )
    if gain == "SolveGain" and not cfg.module.probe.factors:
        raise ConfigurationError(
            "temperature/gain=solve goes by the entropy at several temperatures, and "
            "module.probe.factors=[] measures one: use module.probe.factors=[0.7,0.85,1.0,1.2,1.4]"
        )


def _check_trainer(trainer: Any, epochs: int) -> None:
    """Refuse what ends a run at another step than schedules and validation go by."""
    remedy = (
        "validation, annealing and the report go by the last step of the plan: use epochs=N and "
        "+trainer.limit_train_batches=STEPS_PER_EPOCH, a whole number"
    )
    for name, idle in (NO_END | {"max_epochs": epochs}).items():
        if trainer.get(name, idle) not in (None, idle):
            raise ConfigurationError(
                f"trainer.{name}={trainer[name]} ends the run elsewhere; {remedy}"
            )
    for name, instead in MADE_OF_GROUPS.items():
        if name in trainer:
            raise ConfigurationError(f"trainer.{name} would be ignored; {instead}")
    for name, (idle, instead) in OF_THE_UPDATE.items():
        if trainer.get(name, idle) not in (None, idle):
            raise ConfigurationError(
                f"trainer.{name}={trainer[name]}: the update takes its own steps; use {instead}"
            )
    if trainer.get("precision") in SCALES_THE_LOSS:
        raise ConfigurationError(
            f"trainer.precision={trainer.precision} multiplies the loss, and gradients would be "
            "clipped and judged by their multiplied norm; use bf16-mixed or 32-true"
        )
    limit = trainer.get("limit_train_batches")
    if not _limits_batches(limit):
        raise ConfigurationError(
            f"trainer.limit_train_batches={limit} is no number of steps; {remedy}"
        )


def _limits_batches(limit: Any) -> bool:
    """Whether it is a whole number of batches from 1 on, or none: null, or Lightning's 1.0."""
    whole_pass = limit is None or (type(limit) is float and limit == 1)
    return whole_pass or (type(limit) is int and limit >= 1)


def _check_validations(trainer: Any, every: int) -> None:
    """Refuse validations at other steps than `validate_every` says, and of nothing."""
    interval = trainer.get("val_check_interval")
    if type(interval) is not int or interval != every:
        raise ConfigurationError(
            f"trainer.val_check_interval={interval} is another rhythm than validate_every={every}, "
            "which the plan goes by: leave the former out, and use validate_every=N"
        )
    epochs = trainer.get("check_val_every_n_epoch", 1)  # Lightning's default
    if epochs is not None:
        raise ConfigurationError(
            f"trainer.check_val_every_n_epoch={epochs} validates by epochs, and the plan goes by "
            "steps: use trainer.check_val_every_n_epoch=null and validate_every=N"
        )
    limit = trainer.get("limit_val_batches")
    if not _limits_batches(limit):
        raise ConfigurationError(
            f"trainer.limit_val_batches={limit} is no number of batches: use a whole one of at "
            "least 1, of data.validation_prompts_per_batch problems each, or null for all problems"
        )


def _check_priors(problems: ProblemCounts) -> None:
    if problems.unranked:
        raise ConfigurationError(
            f"budget.difficulty=prior: {problems.unranked} of {problems.train} training problems "
            "have no difficulty rank; give the data a rank column, or use difficulty=reward"
        )
