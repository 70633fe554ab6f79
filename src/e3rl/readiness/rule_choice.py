"""The budget rule of a run compared with those of conf/, on the pass rates of a sample."""

from functools import partial

from hydra import compose
from hydra.utils import instantiate
from omegaconf import DictConfig

from e3rl.config.composition import ConfigurationError
from e3rl.planning.agreement import read_bounds
from e3rl.readiness.checks import Finding, check_rule
from e3rl.readiness.pass_rates import draw_rates
from e3rl.readiness.rule_ranking import (
    ComparisonSettings,
    MakeBudget,
    RuleScore,
    rank_rules,
    replay_rules,
)
from e3rl.readiness.sample import Sample
from e3rl.simulator.replay import NOT_IN_TABLE, describe_missing_input, select_rules

TABLE_PROMPTS = 512  # at most, of a table that rules are compared on
PASSES = 3  # at most
OWN_RULE = "this run's"


def find_comparable_rules(cfg: DictConfig) -> tuple[dict[str, MakeBudget], str]:
    """How to make every rule that can keep the run's group size, and the name of the run's own.

    Left out are rules that go by gradient norms or by traits of the prompts, of which a table of
    pass rates has none.

    Raises ConfigurationError for a name in `preflight.rules` that is no rule.
    """
    try:
        nodes = select_rules(compose("simulate").budgets, list(cfg.preflight.rules))
    except ValueError as error:
        raise ConfigurationError(f"preflight.{error}") from error
    known = {name: node for name, node in nodes.items() if _accepts_group_size(node, cfg)}
    own = next((name for name, node in known.items() if node == cfg.budget), OWN_RULE)
    makers = {
        name: partial(instantiate, node, _convert_="all")
        for name, node in {**known, own: cfg.budget}.items()
    }
    return {name: make for name, make in makers.items() if not describe_missing_input(make())}, own


def compare_rules(
    rules: dict[str, MakeBudget], own: str, sample: Sample, cfg: DictConfig, prompts: int
) -> tuple[list[RuleScore], Finding]:
    """Rank the rules, and judge the run's own.

    Args:
        rules, own: from `find_comparable_rules`.
        sample: whose pass rates the rules are replayed on.
        cfg: the composed run.
        prompts: number of training problems.

    Returns:
        scores beside the best rule, least noise first (empty where nothing can be compared), and
        the finding.
    """
    if own not in rules:
        unknown = describe_missing_input(instantiate(cfg.budget, _convert_="all"))
        said = f"{cfg.budget._target_} {unknown}, {NOT_IN_TABLE}: not compared"
        return [], Finding("budget", "ok", said)
    loss = nearest_loss(cfg)
    if not sample.has_signal:
        return [], check_rule(own, [], loss)
    settings = ComparisonSettings(
        loss=loss,
        prompts=max(cfg.prompts_per_step, min(prompts, TABLE_PROMPTS)),
        prompts_per_step=cfg.prompts_per_step,
        rollouts_per_prompt=cfg.rollouts_per_prompt,
        epochs=min(cfg.epochs, PASSES),
        tables=cfg.preflight.tables,
        seed=cfg.seed,
    )
    draw = partial(draw_rates, sample.right, sample.rollouts)
    names, replays = list(rules), replay_rules(rules, draw, settings)
    beside_own = rank_rules(names, replays, own)
    scores = rank_rules(names, replays, beside_own[0].rule) if beside_own else []
    return scores, check_rule(own, scores, loss)


def nearest_loss(cfg: DictConfig) -> str:
    """Which of `simulator.gradient.LOSSES` is nearest to the run's: whether advantages are divided
    by their standard deviation."""
    return "grpo" if cfg.advantage._target_.endswith(".GroupNormalized") else "rloo_by_prompt"


def _accepts_group_size(node: DictConfig, cfg: DictConfig) -> bool:
    _, low, high = read_bounds(node, cfg.prompts_per_step)
    return bool(low <= cfg.rollouts_per_prompt <= high)
