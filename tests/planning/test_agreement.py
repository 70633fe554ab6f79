"""Settings that contradict each other are refused before any work, with what to give instead."""

import pytest
from omegaconf import OmegaConf

from compositions import composed
from e3rl.config.cautions import decides_in_rounds
from e3rl.config.composition import ConfigurationError
from e3rl.planning.agreement import check_agreement, read_bounds
from e3rl.planning.processes import count_processes

pytestmark = pytest.mark.end_to_end

TINY = ("debug=tiny", "paths.run_dir=x", "experiment=grpo", "trainer.accelerator=cpu")
SHARED = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


def agree(*overrides: str) -> None:
    check_agreement(composed(*TINY, *overrides))


@pytest.mark.parametrize(
    ("copy", "source"),
    [
        ("data.prompts_per_step=8", "prompts_per_step=4"),
        ("data.lookahead=1", "rollout.lookahead=0"),
        ("callbacks.temperature.lookahead=2", "rollout.lookahead=0"),
        ("callbacks.budget.rollouts_per_prompt=4", "rollouts_per_prompt=8"),
        ("callbacks.rollout.max_new_tokens=10", "max_new_tokens=80"),
    ],
)
def test_a_copy_that_is_another_number_than_its_source_is_refused(copy: str, source: str) -> None:
    name, number = source.split("=")[0], copy.split("=")[1]
    words = rf"^{copy} is another number than {source}, which .* goes by: use {name}={number}$"
    with pytest.raises(ConfigurationError, match=words):
        agree(copy)
    agree(copy, f"{name}={number}")


def test_a_callback_that_is_left_out_has_no_copy() -> None:
    cfg = composed(*TINY, "callbacks.temperature=null", "rollout.lookahead=1")
    assert OmegaConf.select(cfg, "callbacks.temperature.lookahead") != cfg.rollout.lookahead
    check_agreement(cfg)  # does not raise


def test_prompts_that_processes_cannot_share_are_refused() -> None:
    words = (
        r"^prompts_per_step=5 cannot be shared equally by 2 processes \(trainer.devices x "
        r"trainer.num_nodes\): use a multiple of 2$"
    )
    with pytest.raises(ConfigurationError, match=words):
        agree(*SHARED, "prompts_per_step=5")
    with pytest.raises(ConfigurationError, match=r"by 4 processes .* a multiple of 4"):
        agree(*SHARED, "trainer.num_nodes=2", "prompts_per_step=6")
    agree(*SHARED, "prompts_per_step=6")
    agree("prompts_per_step=5")


@pytest.mark.parametrize(
    "rule",
    [
        ["budget=sequential"],
        ["budget=pilot_commit"],
        ["budget=dynamic_sampling"],
        ["budget=hora", "budget.mode=pilot"],
    ],
)
def test_a_rule_that_decides_in_rounds_is_one_process_alone(rule: list[str]) -> None:
    words = "decides round by round .* 2 processes cannot share: use trainer.devices=1 or a budget"
    with pytest.raises(ConfigurationError, match=words):
        agree(*SHARED, *rule)
    agree(*rule)


@pytest.mark.parametrize("budget", ["uniform", "hora", "knapsack", "mopps", "e3_rank"])
def test_a_rule_with_all_counts_known_beforehand_is_shared(budget: str) -> None:
    cfg = composed(*TINY, *SHARED, f"budget={budget}")
    assert (count_processes(cfg), decides_in_rounds(cfg.budget)) == (2, False)
    check_agreement(cfg)  # does not raise


def test_a_selection_of_fewer_prompts_than_processes_is_refused() -> None:
    share = ("budget=vcrl", "budget.selected_share=0.3")
    with pytest.raises(ConfigurationError, match="rollouts to 1 of 4 prompts, which leaves some"):
        agree(*SHARED, *share)
    agree(*SHARED, *share, "prompts_per_step=8")
    agree(*share)


def test_a_selection_whose_prompts_would_get_single_rollouts_is_refused() -> None:
    one = ("budget=mopps", "rollouts_per_prompt=1")
    words = r"^rollouts_per_prompt=1 makes fewer than two .*selected_share=0.8 .* of 4: use .*=2 or"
    with pytest.raises(ConfigurationError, match=words):
        agree(*one, "budget.selected_share=0.8")
    agree(*one, "budget.selected_share=0.5")
    agree("budget=mopps", "rollouts_per_prompt=2", "budget.selected_share=0.8")


@pytest.mark.parametrize(
    ("rule", "lowest"),
    [
        (["budget=uniform"], 1),
        (["budget=knapsack"], 2),
        (["budget=sequential"], 4),
        (["budget=pilot_commit", "budget.pilot=3"], 3),
        (["budget=dynamic_sampling"], 2),
        (["budget=mopps"], 1),
        (["budget=vcrl", "budget.selected_share=0.1"], 0.5),
    ],
)
def test_rules_accept_groups_from_their_smallest_one_on(rule: list[str], lowest: float) -> None:
    _, low, high = read_bounds(composed(*TINY, *rule).budget, prompts_per_step=4)
    assert low == lowest
    assert high > 8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["rollout.abort.horizon=80"], "horizon=80 is not below max_new_tokens=80"),
        (["rollout.abort.keep=2"], r"keep=2 must lie in \(0, 1\]"),
        (["+policy.stop=[x]"], r"the policy has stop strings \['x'\]"),
        (["+policy.prefill='so \\boxed'"], "no rollout would be stopped"),
    ],
)
def test_a_rule_for_stopping_that_cannot_work_is_refused(settings: list[str], words: str) -> None:
    abort = ("experiment=shootout/abort", "debug=tiny", "paths.run_dir=x")
    check_agreement(composed(*abort))
    with pytest.raises(ConfigurationError, match=rf"^[a-z.]+: .*{words}"):
        check_agreement(composed(*abort, *settings))


def test_a_disturbance_of_weights_that_adapters_freeze_is_refused() -> None:
    agree("callbacks=disturbed")
    with pytest.raises(ConfigurationError, match=r"adapters freeze, .* use policy/lora=none"):
        agree("callbacks=disturbed", "policy/lora=linear")
