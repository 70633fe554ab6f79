"""What does nothing in a configuration is said before the run, with the reason."""

import pytest
from omegaconf import DictConfig

import compositions
from e3rl.budgets.knapsack import Knapsack
from e3rl.config.cautions import find_cautions

pytestmark = pytest.mark.end_to_end


TWO_STEPS = "module.settings.minibatches=2"
BYPASS = "module.settings.old_logprobs=sampler"


class Own(Knapsack):
    """A rule of a user, known to nobody."""


def composed(*choices: str) -> DictConfig:
    common = ("paths.run_dir=x", "logger=ledger_only", "experiment=grpo")
    return compositions.composed(*common, *choices)


def told(*overrides: str) -> list[str]:
    """Cautions of a configuration."""
    return find_cautions(composed(*overrides))


@pytest.mark.parametrize("arm", ["grpo", "e3", "grpo_er"])
def test_the_arms_of_the_study_need_no_caution(arm: str) -> None:
    assert told(f"experiment={arm}") == []


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("loss=gspo", "loss.surrogate=gspo has the gradient of the clipped surrogate"),
        ("loss=cispo", "loss.surrogate=cispo has the gradient"),
        ("loss=dapo", "loss.surrogate.clip_high=0.28 (clip-higher) never acts"),
        ("loss/exploration=clip_higher", "loss.surrogate.clip_high=0.28 (clip-higher)"),
        ("loss/exploration=kl_cov", "loss.exploration=KLCov has neither value nor gradient"),
    ],
)
def test_what_acts_on_ratios_needs_several_steps_or_the_samplers_log_probs(
    option: str, what: str
) -> None:
    (line,) = told(option)
    assert line.startswith(what)
    assert "every importance ratio is 1: set module.settings.minibatches" in line
    assert told(option, TWO_STEPS) == told(option, BYPASS) == []


def test_a_bound_for_tokens_is_none_for_whole_rollouts() -> None:
    (line,) = told("loss=gspo", "loss/exploration=clip_higher", TWO_STEPS)
    assert line.startswith("loss.surrogate.clip_high=0.28 hardly ever acts: gspo")
    assert "clip_low=0.0003" in line


@pytest.mark.parametrize("option", ["clip_cov", "high_entropy_mask", "adaptive_entropy_bonus"])
def test_what_acts_on_tokens_needs_one_step_only(option: str) -> None:
    assert told(f"loss/exploration={option}") == []


def test_prompts_weigh_the_same_where_all_have_as_many_rollouts() -> None:
    (line,) = told("loss.prompt_weight=prompt")
    assert line.startswith("loss.prompt_weight=prompt changes nothing: budget=uniform")
    assert told("loss.prompt_weight=prompt", "budget=e3_rank") == []


@pytest.mark.parametrize(
    "option", ["e3_rank", "knapsack", "neyman", "hora", "cero", "mopps", "vcrl"]
)
def test_a_budget_that_learns_from_visits_needs_a_second_one(option: str) -> None:
    (line,) = told(f"budget={option}", "epochs=1")
    assert "with epochs=1: nothing is known of a prompt" in line
    assert told(f"budget={option}") == []


def test_a_budget_that_looks_at_the_step_needs_one_visit_only() -> None:
    assert told("budget=hora", "budget.mode=pilot", "epochs=1") == []
    (own,) = told("budget=knapsack", f"budget._target_={__name__}.Own", "epochs=1")
    assert own.startswith("budget=Own is uniform with epochs=1")
    for option in ("sequential", "pilot_commit", "dynamic_sampling"):
        assert told(f"budget={option}", "epochs=1") == []


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("knapsack", "n_low=8"),
        ("hora", "n_high=8"),
        ("sequential", "per_round=8"),
        ("pilot_commit", "pilot=8"),
        ("cero", "n_low=8"),
        ("e3_rank", "n_update=0"),
    ],
)
def test_bounds_that_leave_nothing_to_move_are_told(option: str, setting: str) -> None:
    (line,) = told(f"budget={option}", f"budget.{setting}")
    assert "is uniform" in line
    assert setting.split("=")[0] in line


MIXED = "temperature=multi_temperature"


def test_temperatures_by_difficulty_need_a_budget_that_ranks() -> None:
    by_difficulty = (MIXED, "temperature/spread=by_difficulty")
    (line,) = told(*by_difficulty)
    assert line.startswith("temperature.spread=ByDifficulty changes nothing: budget=Uniform")
    for budget in ("e3_rank", "knapsack", "neyman", "hora"):
        assert told(*by_difficulty, f"budget={budget}") == []
    *_, line = told(*by_difficulty, "budget=hora", "epochs=1")
    assert line.startswith("temperature.spread=ByDifficulty changes nothing with epochs=1")


def test_shaping_by_length_needs_a_budget_that_ranks() -> None:
    (line,) = told("shaping=length")
    assert line.startswith("shaping=length changes nothing: budget=Uniform does not rank")
    assert told("experiment=short") == []
    *_, line = told("experiment=short", "epochs=1")
    assert "no prompt has a rank before its second visit" in line


def test_a_ladder_needs_a_rollout_for_each_rung() -> None:
    assert told(MIXED) == []
    (line,) = told(MIXED, "rollouts_per_prompt=2")
    assert "3 rungs, and a group of 2 uses the first ones only" in line


def test_pass_at_k_of_pairs_is_grpo() -> None:
    (line,) = told("advantage=pass_at_k", "rollouts_per_prompt=2")
    assert "k=4 and groups of 2" in line
    assert told("advantage=pass_at_k") == []
    rising = ("advantage=pass_at_k", "advantage.k=1", "advantage.final_k=4")
    assert told(*rising) == []


@pytest.mark.parametrize(
    "option", ["advantage=grpo", "advantage=pass_at_k", f"{MIXED} advantage=grpo"]
)
def test_groups_of_a_selector_are_larger_than_its_mean(option: str) -> None:
    """A quarter of the prompts with 2 rollouts each on average: groups of 8."""
    selector = ("budget=mopps", "budget.selected_share=0.25", "epochs=2")
    assert told(*selector, "rollouts_per_prompt=2", *option.split()) == []
    assert told(*selector, "rollouts_per_prompt=1", "advantage=grpo") == []


def test_groups_of_one_have_no_baseline_of_their_own() -> None:
    one = ("rollouts_per_prompt=1", "advantage=reinforce_pp")
    assert told(*one) == []
    (line,) = told(*one, "advantage.baseline=group")
    assert line.startswith("rollouts_per_prompt=1 trains nothing: advantage=BatchNormalized")


def test_a_bound_for_whole_rollouts_is_none_for_tokens() -> None:
    assert told("experiment=losses/gspo") == []
    (line,) = told("experiment=losses/gspo", "loss=grpo")
    assert line.startswith("loss.surrogate.clip_high=0.004 is a bound for the mean of a whole")


def test_a_correction_needs_something_to_correct() -> None:
    same_model = ("loss/correction=tis", "engine=transformers")
    (line,) = told(*same_model)
    assert line.startswith("loss.correction changes nothing: engine=transformers")
    (other,) = told(*same_model, "rollout.lookahead=1")
    assert other.startswith("rollout.lookahead=1 saves no time: engine=transformers")
    assert told("loss/correction=tis", "engine=vllm") == []
    assert told(*same_model, "trainer.precision=bf16-mixed") == []


def test_older_rollouts_need_a_correction_or_the_samplers_log_probs() -> None:
    (line,) = told("rollout.lookahead=1")
    assert "rollouts of an older policy as if they were its own" in line
    assert told("rollout.lookahead=1", BYPASS) == []


def test_looking_ahead_keeps_an_engine_awake() -> None:
    ahead = ("rollout.lookahead=1", "loss/correction=tis", "engine=vllm")
    assert told(*ahead) == []
    (line,) = told(*ahead, "engine.settings.sleep_level=1")
    assert "sleep_level=1 frees no memory for the update" in line


def test_several_steps_ahead_pay_with_servers_alone() -> None:
    ahead = ("rollout.lookahead=3", "loss/correction=tis")
    (line,) = told(*ahead, "engine=vllm")
    assert line.startswith("rollout.lookahead=3 saves no more time than 1 does")
    assert told(*ahead, "engine=vllm_server", "experiment=grpo") == []


@pytest.mark.parametrize("engine", ["engine=vllm_server", "engine=vllm_ray"])
def test_servers_sample_up_to_a_temperature(engine: str) -> None:
    (line,) = told(engine, "experiment=ts")
    assert "temperature.bounds ends at 3.0, and vLLM's server samples at up to 2" in line
    assert told(engine, "experiment=ts", "temperature.bounds=[0.3,2.0]") == []
    assert told(engine, "experiment=grpo") == []
    (line,) = told(engine, "experiment=grpo", "temperature.temperature=2.5")
    assert line.startswith("temperature.temperature goes up to 2.5, and vLLM's server samples")
    ladder = (engine, "temperature=multi_temperature")  # rungs up to 1.3
    (line,) = told(*ladder, "temperature.rule.temperature=1.6")
    assert line.startswith("temperature.rule.temperature goes up to 2.08")
    assert told(*ladder, "temperature.rule.temperature=1.5") == []


def test_servers_sample_down_to_a_temperature() -> None:
    cold = ("engine=vllm_server", "experiment=ts")
    (line,) = told(*cold, "temperature.bounds=[0.005,2.0]")
    assert "temperature.bounds begins at 0.005, and vLLM's server samples at 0.01 and more" in line
    assert told(*cold, "temperature.bounds=[0.01,2.0]") == []


def test_servers_sample_up_to_a_temperature_around_another_rule_too() -> None:
    mixed = ("engine=vllm_server", "experiment=grpo", "temperature=multi_temperature")
    (line,) = told(*mixed, "temperature@temperature.rule=entropy_target")
    assert "temperature.rule.bounds ends at 3.0" in line
    assert told(*mixed) == []
    staged = ("engine=vllm_server", "experiment=grpo", "temperature=piecewise")
    assert told(*staged) == []
    (line,) = told(*staged, "temperature.temperatures=[1.0,1.5,2.5]")
    assert "temperature.temperatures goes up to 2.5" in line


def test_a_disturbance_comes_late_for_what_is_sampled_ahead() -> None:
    assert told("callbacks=disturbed") == []
    (line,) = told("callbacks=disturbed", "rollout.lookahead=1", BYPASS)
    assert line.startswith("callbacks=disturbed shows 1 step late")


def test_trained_weights_of_few_bits_lose_updates() -> None:
    (line,) = told("trainer.precision=bf16-true")
    assert line.startswith("trainer.precision=bf16-true trains weights of 16 bits: updates below")
    assert line.endswith("use policy.dtype=float32 and trainer.precision=bf16-mixed")
    (line,) = told("trainer.precision=16-true")
    assert "below 1/4096 of a weight" in line
    (line,) = told("policy=random", "+policy.dtype=bfloat16")
    assert line.startswith("policy.dtype=bfloat16 trains weights of 16 bits")
    assert told("trainer.precision=bf16-mixed") == []


def test_adapters_stay_precise_beside_a_base_of_few_bits() -> None:
    adapted = ("policy=random", "+policy.dtype=bfloat16", "policy/lora=linear")
    assert told(*adapted, "trainer.precision=bf16-mixed") == []
    (line,) = told(*adapted, "trainer.precision=bf16-true")
    assert "trains adapters of 16 bits" in line
    assert line.endswith("; use trainer.precision=bf16-mixed")


MODEL = ("policy=pretrained", "policy.path=some/model", "experiment=grpo")
ON_GPU = "trainer.accelerator=gpu"


def test_what_a_gpu_takes_long_for_is_said_of_models_that_take_time() -> None:
    update, samples, launches = told(*MODEL, ON_GPU)
    assert update.startswith("trainer.precision=32-true computes the update in float32")
    assert "use trainer.precision=bf16-mixed" in update
    assert samples.startswith("engine.settings.dtype=auto samples in float32, as the weights are")
    assert launches.startswith("engine.settings.enforce_eager=true launches every kernel")
    quick = ("trainer.precision=bf16-mixed", "engine.settings.dtype=bfloat16")
    assert told(*MODEL, ON_GPU, *quick) == [launches]
    assert told(*MODEL, ON_GPU, *quick, "engine.settings.enforce_eager=false") == []
    assert told(*MODEL, ON_GPU, "engine=transformers") == [update]
    assert told(*MODEL, "trainer.accelerator=cpu") == told(ON_GPU) == []
    assert len(told(*MODEL, "plan.gpu=h100")) == 3  # a plan for a GPU, wherever it is made


@pytest.mark.parametrize("there", [True, False])
def test_where_the_accelerator_is_left_open_the_machine_decides(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    assert len(told(*MODEL)) == 3 * there


def test_states_that_are_on_the_cpu_cannot_leave_for_it() -> None:
    offload = "module.settings.offload_optimizer=true"
    (line,) = told(offload, "trainer.accelerator=cpu")
    assert line.startswith(f"{offload} changes nothing on a CPU")
    assert told(offload, "trainer.accelerator=gpu", "engine=transformers") == []
