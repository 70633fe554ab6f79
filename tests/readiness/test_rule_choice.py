"""Which budget rules a preflight compares, and what it says of those that it cannot."""

import pytest
from hydra import initialize_config_dir
from samples import sample

from compositions import composed
from e3rl.config.composition import conf_dir
from e3rl.readiness.checks import Finding
from e3rl.readiness.rule_choice import compare_rules, find_comparable_rules
from e3rl.readiness.rule_ranking import RuleScore

pytestmark = pytest.mark.end_to_end


FEW = ("preflight.rules=[uniform,knapsack,gvm]", "preflight.tables=2", "prompts_per_step=4")


def choice(*overrides: str) -> tuple[set[str], list[RuleScore], Finding]:
    """Names of the rules to compare, and what came of it, over two passes or more."""
    cfg = composed(*FEW, *overrides, "paths.run_dir=x", root="preflight")
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        rules, own = find_comparable_rules(cfg)
    return set(rules), *compare_rules(rules, own, sample(), cfg, prompts=16)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        *(
            (["budget=e3_rank", f"budget.difficulty={trait}"], f"goes by the prompts' {trait}")
            for trait in ("prior", "length", "entropy", "disagreement")
        ),
        (["budget=knapsack", "budget.cost=tokens"], "goes by the prompts' length"),
        (["budget=neyman", "budget.weight=gvm"], "weighs by gradient norms"),
    ],
)
def test_a_rule_that_goes_by_more_than_rewards_is_not_compared(
    overrides: list[str], reason: str
) -> None:
    rules, scores, finding = choice("experiment=grpo", "epochs=2", *overrides)
    assert {"uniform", "knapsack"} <= rules
    assert "this run's" not in rules
    assert scores == []
    assert (finding.check, finding.level) == ("budget", "ok")
    assert finding.says.endswith(
        f" {reason}, of which a table of pass rates has none: not compared"
    )


def test_rules_that_need_larger_groups_than_the_run_has_are_left_out() -> None:
    rules, scores, _ = choice(
        "experiment=grpo", "rollouts_per_prompt=1", "preflight.rules=[]", "prompts_per_step=5"
    )
    assert "uniform" in rules
    assert rules.isdisjoint({"dynamic_sampling", "knapsack", "sequential", "pilot_commit"})
    assert {score.rule for score in scores} <= rules


def test_a_selection_that_has_two_rollouts_for_each_of_its_prompts_is_compared() -> None:
    one = ("experiment=grpo", "rollouts_per_prompt=1", "preflight.rules=[]")
    assert {"mopps", "vcrl"} <= choice(*one, "prompts_per_step=4")[0]
    assert choice(*one, "prompts_per_step=3")[0].isdisjoint({"mopps", "vcrl"})  # 3 for two of them


@pytest.mark.parametrize("difficulty", ["reward", "posterior"])
def test_a_rule_that_goes_by_rewards_is_compared(difficulty: str) -> None:
    rules, scores, finding = choice(
        "experiment=grpo", "epochs=2", "budget=e3_rank", f"budget.difficulty={difficulty}"
    )
    assert rules == {score.rule for score in scores}
    assert "this run's" in rules
    assert "not compared" not in finding.says
