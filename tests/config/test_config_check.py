"""Every mistake of a configuration is named at once, with the setting that was probably meant."""

import copy
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import compositions
from e3rl.config.check import check
from e3rl.config.composition import (
    ConfigurationError,
    accept_new_keys,
    conf_dir,
)

pytestmark = pytest.mark.end_to_end


def composed(*overrides: str) -> DictConfig:
    common = ("paths.run_dir=x", "logger=ledger_only")
    return compositions.composed(*accept_new_keys([*common, *overrides]))


@pytest.fixture(scope="module")
def default() -> DictConfig:
    return composed()


def listed(cfg: DictConfig) -> list[str]:
    """The mistakes that the check finds."""
    try:
        check(cfg)
    except ConfigurationError as error:
        header, *lines = str(error).splitlines()
        assert header == (
            f"the configuration has {len(lines)} mistake{'s' if len(lines) > 1 else ''}:"
        )
        return [line.removeprefix("  - ") for line in lines]
    return []


def altered(cfg: DictConfig, *settings: str) -> DictConfig:
    """A copy with other values; much faster than composing anew."""
    changed = copy.deepcopy(cfg)
    for setting in settings:
        key, value = setting.split("=", 1)
        OmegaConf.update(changed, key, yaml.safe_load(value), force_add=True)
    return changed


def test_the_default_has_no_mistake(default: DictConfig) -> None:
    assert listed(default) == []


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("rollouts_per_promt=3", "rollouts_per_prompt"),  # beside it
        ("module.optimizer.lrr=3", "module.optimizer.lr"),
        ("temperature.init_stepz=3", "temperature.init_steps"),
        ("lr=3", "module.optimizer.lr"),  # elsewhere
        ("loss.clip_low=3", "loss.surrogate.clip_low"),
        ("paths.sweep=x", "paths.sweeps"),
        ("sweep.nam=x", "sweep.name"),
    ],
)
def test_an_unknown_key_is_named_with_the_one_that_was_meant(
    setting: str, meant: str, default: DictConfig
) -> None:
    (found,) = listed(altered(default, setting))
    assert found.startswith(f"{setting.split('=')[0]} is no setting")
    assert found.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_on_the_command_line_it_is_named_however_it_is_given(prefix: str) -> None:
    (found,) = listed(composed(f"{prefix}loss.clip_low=3"))
    assert found.endswith("did you mean loss.surrogate.clip_low?")


def test_an_unknown_key_that_resembles_nothing_lists_what_there_is(default: DictConfig) -> None:
    (found,) = listed(altered(default, "reward.zzz=1"))
    assert (
        "reward.zzz is no setting of e3rl.rewards.maths.build_math_rewards: there are answer_format"
        in (found)
    )


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("rollouts_per_prompt=many", "rollouts_per_prompt='many': input should be a valid integer"),
        ("epochs=0", "epochs=0: input should be greater than 0"),
        ("epochs=1.5", "epochs=1.5: input should be a valid integer"),
        ("seed=-1", "seed=-1: input should be greater than or equal to 0"),
        ("name=null", "name=None: input should be a valid string"),
        ("loss.surrogate.clip_low=low", "loss.surrogate.clip_low='low': input should be a valid n"),
        ("loss.aggregation=mean", "loss.aggregation='mean': input should be 'token_mean', "),
        ("module.settings.minibatches='2'", "module.settings.minibatches='2': input should be a "),
        ("callbacks.pass_at_k.ks=[1,x]", "callbacks.pass_at_k.ks[1]='x': input should be a valid"),
        ("temperature.bounds=[0.3]", "temperature.bounds[1]=[0.3]: field required"),
        ("policy.gradient_checkpointing=1", "policy.gradient_checkpointing=1: input should be a v"),
        ("budget._target_=e3rl.budgets.Uniform", "budget._target_=e3rl.budgets.Uniform: Error loa"),
        ("engine.settings=null", "engine.settings=None: input should be an instance of VLLMSett"),
        ("callbacks.mine=3", "callbacks.mine=3: give a node with a _target_, or null"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_and_what_it_should_be(
    setting: str, reason: str, default: DictConfig
) -> None:
    (found,) = listed(altered(default, setting))
    assert found.startswith(reason)


@pytest.mark.parametrize(
    "setting",
    [
        *("engine.top_p=0.9", "engine.settings.top_k=20", "callbacks.rollout.top_p=0.9"),
        *("rollout.top_p=0.9", "top_p=0.9", "temperature.min_p=0.1"),
        *("policy.repetition_penalty=1.1", "engine.sampling.top_p=0.9"),
    ],
)
def test_what_truncates_or_penalises_is_refused_with_the_reason(
    default: DictConfig, setting: str
) -> None:
    (mistake,) = listed(altered(default, setting))
    assert "are not the policy's and the gradient would be wrong" in mistake
    assert "callbacks.pass_at_k.evaluations" in mistake


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("share=0.1", "share is no setting of e3rl.engines.abort.MarkerGatedAbort: "),
        ("keeep=0.1", "keeep is no setting of e3rl.engines.abort.MarkerGatedAbort: did you mean "),
        ("horizon=soon", "horizon='soon': input should be a valid integer"),
        ("marker=null", "marker=None: input should be a valid string"),
        ("_target_=e3rl.engines.Abort", "_target_=e3rl.engines.Abort: Error loading"),
    ],
)
def test_the_rule_that_stops_rollouts_is_looked_at_as_other_nodes_are(
    setting: str, reason: str
) -> None:
    cfg = composed("experiment=shootout/abort")
    assert listed(cfg) == []
    (found,) = listed(altered(cfg, f"rollout.abort.{setting}"))
    assert found.startswith(f"rollout.abort.{reason}")


def test_a_rule_that_stops_rollouts_needs_a_class(default: DictConfig) -> None:
    (found,) = listed(altered(default, "rollout.abort={horizon: 5}"))
    assert found.endswith(": give a node with a _target_, or null")


def test_validation_may_truncate() -> None:
    evaluation = "callbacks.pass_at_k.evaluations.0"
    cfg = composed(f"{evaluation}.top_p=0.9", f"{evaluation}.top_k=20")
    assert cfg.callbacks.pass_at_k.evaluations[0].top_p == 0.9
    assert listed(cfg) == []


def test_a_number_may_be_whole_and_a_tuple_is_written_as_a_list(default: DictConfig) -> None:
    settings = ("module.optimizer.lr=1", "temperature.bounds=[1,2]", "epochs=7")
    assert listed(altered(default, *settings)) == []


def test_several_mistakes_are_told_together_and_copies_of_them_are_not(
    default: DictConfig,
) -> None:
    settings = ("seed=x", "loss.entropy_coeff=1", "max_new_tokens=0", "data.train.size=a")
    found = listed(altered(default, *settings))
    assert [line.split("=")[0].split(" ")[0] for line in found] == [
        *("seed", "max_new_tokens", "data.train.size", "loss.entropy_coeff"),
    ]


def test_what_has_to_be_given_is_asked_for() -> None:
    assert listed(composed("policy=pretrained")) == [
        "policy.path is missing: e3rl.policy.policy.Policy needs it, give policy.path=..."
    ]
    paths = [line.split(" ")[0] for line in listed(composed("data=problem_files"))]
    assert paths == ["data.train.path", "data.validation.path"]


def test_an_interpolation_that_leads_nowhere_is_an_error(default: DictConfig) -> None:
    with pytest.raises(ConfigurationError, match=r"does not resolve: .*'nothing' not found"):
        check(altered(default, "budget.n_low=${nothing}"))


def test_a_mistyped_key_in_a_yaml_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nloss:\n  entropy_coeff: 0.1\nrollout_per_prompt: 4\n"
    )
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        cfg = compose(
            "train",
            [
                *(f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine", "paths.run_dir=x"),
                "logger=ledger_only",
            ],
        )
    with pytest.raises(ConfigurationError) as error:
        check(cfg)
    assert "rollout_per_prompt is no setting: did you mean rollouts_per_prompt?" in str(error.value)
    assert "loss.entropy_coeff is no setting of" in str(error.value)


@pytest.mark.parametrize(
    "name", ["logger.wandb.settings.api_key", "policy.token", "reward.hf_token", "data.password"]
)
def test_a_secret_in_the_configuration_is_refused_without_its_value(
    name: str, default: DictConfig
) -> None:
    cfg = copy.deepcopy(default)
    OmegaConf.update(cfg, name, "hunter2", force_add=True)
    with pytest.raises(ConfigurationError, match=f"{name} looks like a secret") as caught:
        check(cfg)
    told = [line for line in str(caught.value).splitlines() if "looks like" in line]
    assert len(told) == 1
    assert "hunter2" not in told[0]
    assert "WANDB_API_KEY" in told[0]


@pytest.mark.parametrize("name", ["eos_token", "max_new_tokens", "prompt_key", "monkey"])
def test_a_name_that_only_sounds_like_a_secret_is_none(name: str, default: DictConfig) -> None:
    cfg = copy.deepcopy(default)
    OmegaConf.update(cfg, f"policy.{name}", "x", force_add=True)
    assert not [line for line in listed(cfg) if "looks like a secret" in line]


def test_what_takes_no_setting_says_how_to_leave_one_out() -> None:
    (found,) = listed(composed("advantage=centred", "advantage.ddof=1"))
    assert found == (
        "advantage.ddof is no setting of e3rl.advantages.centred.Centred: it takes none; where a "
        "file of conf/ sets it, add ~advantage.ddof"
    )


def test_what_a_caller_fills_in_is_no_setting_that_was_meant() -> None:
    found = listed(composed("loss=gspo", "loss/exploration=kl_cov"))
    assert "there are clip_low, clip_high" in found[0]


def test_what_a_partial_call_needs_beside_what_its_caller_fills_in_is_a_setting() -> None:
    scheduler = "_target_:torch.optim.lr_scheduler.CosineAnnealingLR,_partial_:true,T_max:8"
    assert listed(composed(f"module.scheduler={{{scheduler}}}")) == []
