"""Budget rules of conf/ beside the one of a run, on the pass rates that a sample suggests."""

from functools import partial

from hydra import compose
from hydra.utils import instantiate
from omegaconf import DictConfig

from e3rl.config.composition import ConfigurationError
from e3rl.planning.plan import bounds_of
from e3rl.readiness.checks import check_rule
from e3rl.readiness.finding import Finding
from e3rl.readiness.pass_rates import believed
from e3rl.readiness.rules import MakeBudget, Setting, Worth, play, ranked
from e3rl.readiness.sample import Sample
from e3rl.simulator.replay import UNTOLD, unknown_to_a_table
from e3rl.simulator.rules import chosen_rules

TABLE_PROMPTS = 512  # at most, of a table that rules are compared on
PASSES = 3  # at most
OWN = "this run's"


def rules_of(cfg: DictConfig) -> tuple[dict[str, MakeBudget], str]:
    """How to make every rule that can keep the run's group size, and the name of the run's own.

    Left out are rules that go by gradient norms or by traits of the prompts, of which a table of
    pass rates has none.

    Raises ConfigurationError for a name in `preflight.rules` that is no rule.
    """
    found = compose("simulate")
    found.rules = cfg.preflight.rules
    try:
        nodes = chosen_rules(found)
    except ValueError as error:
        raise ConfigurationError(f"preflight.{error}") from error
    known = {name: node for name, node in nodes.items() if _fits(node, cfg.rollouts_per_prompt)}
    own = next((name for name, node in known.items() if node == cfg.budget), OWN)
    makers = {
        name: partial(instantiate, node, _convert_="all")
        for name, node in {**known, own: cfg.budget}.items()
    }
    return {name: make for name, make in makers.items() if not unknown_to_a_table(make())}, own


def compared(
    rules: dict[str, MakeBudget], own: str, sample: Sample, cfg: DictConfig, prompts: int
) -> tuple[list[Worth], Finding]:
    """The rules beside the best, least noisy first, and what that says of the run's own.

    `own` is the name of the run's rule; `prompts` are those to train on.
    """
    if own not in rules:
        unknown = unknown_to_a_table(instantiate(cfg.budget, _convert_="all"))
        said = f"{cfg.budget._target_} {unknown}, {UNTOLD}: not compared"
        return [], Finding("budget", "ok", said)
    loss = loss_of(cfg)
    if not sample.has_signal:
        return [], check_rule(own, [], loss)
    setting = Setting(
        loss=loss,
        prompts=max(cfg.prompts_per_step, min(prompts, TABLE_PROMPTS)),
        prompts_per_step=cfg.prompts_per_step,
        rollouts_per_prompt=cfg.rollouts_per_prompt,
        epochs=min(cfg.epochs, PASSES),
        tables=cfg.preflight.tables,
        seed=cfg.seed,
    )
    posterior = believed(sample.right, sample.rollouts)
    names, played = list(rules), play(rules, posterior, setting)
    beside_own = ranked(names, played, own)
    worths = ranked(names, played, beside_own[0].rule) if beside_own else []
    return worths, check_rule(own, worths, loss)


def loss_of(cfg: DictConfig) -> str:
    """The loss of the simulator that is nearest to the run's: advantages over their deviation, or
    not."""
    return "grpo" if cfg.advantage._target_.endswith(".GroupNormalized") else "rloo_by_prompt"


def _fits(node: DictConfig, group_size: int) -> bool:
    _, low, high = bounds_of(node)
    return bool(low <= group_size <= high)
