"""`experiment=paper/...`: the published numbers, and arms that differ in what the tables vary."""

from functools import cache
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import compositions
from e3rl.config.cautions import find_cautions
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError, conf_dir, to_plain_dict

pytestmark = pytest.mark.end_to_end

SIZES = ("1_5b", "7b")
ARMS = {  # arm: the groups that it changes against plain GRPO
    "grpo": set(),
    "grpo_er": {"loss"},
    "ts": {"temperature"},
    "ts_an": {"temperature"},
    "budget": {"budget"},
    "e3": {"budget", "temperature"},
}
FILES = ("data.train.path=train.parquet", "data.validation.path=valid.parquet")
E3 = "paper/1_5b/e3"

PUBLISHED = {  # arXiv 2505.18573, section 4, and the scripts of its code
    "prompts_per_step": 64,
    "rollouts_per_prompt": 8,
    "epochs": 3,
    "max_new_tokens": 6144,
    "data.max_prompt_tokens": 2048,
    "module.optimizer._target_": "torch.optim.AdamW",
    "module.optimizer.weight_decay": 0.01,
    "module.settings.minibatches": 1,
    "module.settings.inner_epochs": 1,
    "module.settings.max_grad_norm": 1.0,
    "loss.surrogate.clip_low": 0.2,
    "loss.surrogate.clip_high": 0.2,
    "loss.surrogate.dual_clip": 3.0,
    "loss.kl_coef": 0.0,
    "validate_every": 10,
    "checkpoint_every": 80,
    "policy.dtype": "float32",
    "trainer.precision": "bf16-mixed",
    "engine.settings.dtype": "bfloat16",
    "reward.answer_format": "math_box",
}
CHOSEN = {  # where paper and code differ
    "loss.aggregation": "token_mean",
    "advantage.ddof": 1,
    "policy.instruction": "",
    "temperature.init_steps": 1,
    "budget.mode": "corrected",
}
BY_SIZE = {
    "1_5b": {
        "policy.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "module.optimizer.lr": 5e-6,
        "trainer.devices": 4,
        "paths.runs": "runs/paper_1_5b",
    },
    "7b": {
        "policy.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "module.optimizer.lr": 2e-6,
        "trainer.devices": 8,
        "trainer.strategy._target_": "e3rl.training.fsdp2.FSDP2Strategy",
        "paths.runs": "runs/paper_7b",
    },
}


def composed(*overrides: str) -> DictConfig:
    common = ("logger=ledger_only", "paths.run_dir=x")
    return compositions.composed(*common, *overrides)


@cache
def preset(size: str, arm: str) -> DictConfig:
    return composed(f"experiment=paper/{size}/{arm}", *FILES)


def assert_settings(cfg: DictConfig, wanted: dict[str, Any]) -> None:
    assert {key: OmegaConf.select(cfg, key) for key in wanted} == wanted


def test_every_arm_has_a_file_at_every_size() -> None:
    for size in SIZES:
        found = {path.stem for path in (conf_dir() / f"experiment/paper/{size}").glob("*.yaml")}
        assert found == {*ARMS, "base"}


def test_a_validation_of_the_papers_problems_is_one_batch() -> None:
    """Eight batches would wait eight times for a longest completion of 6,144 tokens."""
    cfg = compositions.composed(f"experiment={E3}", "paths.run_dir=x", *FILES)
    assert cfg.data.validation_prompts_per_batch >= cfg.plan.validation_problems == 512


@pytest.mark.parametrize("size", SIZES)
def test_the_settings_are_those_of_the_paper(size: str) -> None:
    assert_settings(preset(size, "e3"), PUBLISHED | CHOSEN | BY_SIZE[size])


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("size", SIZES)
def test_an_arm_passes_the_check_and_differs_in_its_own_groups_alone(size: str, arm: str) -> None:
    cfg, control = preset(size, arm), preset(size, "grpo")
    check(cfg)
    own, other = to_plain_dict(cfg), to_plain_dict(control)
    copies = {"callbacks", "module"}  # hold interpolations of the groups
    changed = {key for key in own if own[key] != other[key]} - copies
    assert changed - {"name"} == ARMS[arm]
    assert own["name"] == arm


@pytest.mark.parametrize("size", SIZES)
def test_the_arms_have_the_published_strengths(size: str) -> None:
    assert preset(size, "grpo_er").loss.entropy_coef == 1e-4
    assert preset(size, "grpo").loss.entropy_coef == 0
    for arm in ("budget", "e3"):
        budget = preset(size, arm).budget
        assert (budget.n_low, budget.n_high, budget.n_update) == (4, 12, 2)
    for arm in ("ts", "ts_an", "e3"):
        rule = preset(size, arm).temperature
        assert rule.gain._target_.endswith(".PaperGain")
        assert (rule.initial, rule.init_steps) == (1.0, 1)
        annealing = None if rule.annealing is None else (rule.annealing.eta, rule.annealing.ratio)
        assert annealing == (None if arm == "ts" else (0.9, 0.4))


def test_validation_is_greedy_and_the_last_one_samples_16_at_temperature_1() -> None:
    found = preset("7b", "grpo").callbacks.pass_at_k
    told = [(e.name, e.n, e.temperature, e.get("last_only", False)) for e in found.evaluations]
    assert told == [("greedy", 1, 0.0, False), ("t1", 16, 1.0, True)]
    assert found.ks == [1, 16]


def test_only_the_data_files_are_left_to_be_given() -> None:
    with pytest.raises(ConfigurationError, match=r"has 2 mistakes") as found:
        check(composed(f"experiment={E3}"))
    assert "data.train.path is missing" in str(found.value)
    assert "data.validation.path is missing" in str(found.value)


def test_nothing_in_a_preset_is_inert() -> None:
    for arm in ARMS:
        assert find_cautions(preset("1_5b", arm)) == []


def test_a_tiny_preset_has_random_weights_and_everything_else_of_its_own() -> None:
    cfg = composed(f"experiment={E3}", "debug=tiny")
    check(cfg)
    assert cfg.policy.path == "random"
    assert cfg.data.train._target_.endswith(".carry_problems")
    assert (cfg.prompts_per_step, cfg.rollouts_per_prompt, cfg.trainer.devices) == (4, 8, 1)
    assert cfg.epochs * cfg.data.train.size // cfg.prompts_per_step == 2
    kept = ("module.optimizer.lr", "loss.aggregation", "trainer.precision", "reward.answer_format")
    assert_settings(
        cfg, {k: v for k, v in (PUBLISHED | CHOSEN | BY_SIZE["1_5b"]).items() if k in kept}
    )
    assert cfg.engine._target_.endswith(".TransformersEngine")
    given = composed(f"experiment={E3}", "debug=tiny", "policy.path=mine", "engine=vllm")
    check(given)
    assert given.policy.path == "mine"
    assert (given.engine._target_[-10:], given.engine.settings.dtype) == ("VLLMEngine", "auto")


def test_the_embedded_policy_stays_itself_in_a_tiny_run() -> None:
    assert composed("debug=tiny").policy.path == "embedded"


@pytest.mark.parametrize("loss", ["dr_grpo", "gspo", "reinforce_pp", "rloo"])
def test_another_loss_brings_all_that_its_file_says(loss: str) -> None:
    cfg = composed("experiment=paper/1_5b/grpo", *FILES, f"loss={loss}")
    own = composed("experiment=grpo", f"loss={loss}")
    check(cfg)
    assert (cfg.loss.aggregation, cfg.advantage) == (own.loss.aggregation, own.advantage)


def test_another_template_brings_its_instruction() -> None:
    asked = composed("experiment=paper/1_5b/grpo", "policy/template=asked", *FILES)
    assert "boxed" in asked.policy.instruction
    assert preset("1_5b", "grpo").policy.instruction == ""
