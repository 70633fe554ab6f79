"""Every file in conf/ composes, passes the check and makes its object; experiments differ only."""

import copy
import json
import re
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from compositions import composed, composed_with_hydra
from e3rl.analysis.sources.runs import ARM_ORDER
from e3rl.callbacks.slot import Slot, check_order
from e3rl.config.check import GROUPS, check
from e3rl.config.composition import conf_dir, to_plain_dict
from e3rl.data.problems import Columns
from e3rl.engines.servers import ray_actors
from e3rl.policy.policy import Policy
from e3rl.rewards.pool import RewardPool

pytestmark = pytest.mark.end_to_end

FILES = {str(path.relative_to(conf_dir()).with_suffix("")) for path in conf_dir().rglob("*.yaml")}
ROOTS = {"train", "evaluate", "simulate", "dataset_card", "preflight", "serve"}
GLOBAL = {name for name in FILES if name.split("/")[0] in {"experiment", "debug", "sweep"}}
HYDRA = {name for name in FILES if name.split("/")[0] == "hydra"}
PARENTS = {  # of sub-groups not in every run
    "temperature/spread": "temperature=multi_temperature",
    "engine/weights": "engine=vllm_server",
}
FIXED = ("debug=tiny", "engine=transformers", "logger=ledger_only", "paths.run_dir=x")
GENERATED = ("carries", "arithmetic", "reasoning_gym")
OPTIONS = sorted(FILES - ROOTS - GLOBAL - HYDRA)


def plain(name: str) -> Any:
    return yaml.safe_load((conf_dir() / f"{name}.yaml").read_text()) or {}


@cache
def experiment(name: str) -> DictConfig:
    choice = f"experiment={name}" if name else "~experiment"
    return composed(choice, "logger=ledger_only", "paths.run_dir=x")


@cache
def chosen(choice: str) -> DictConfig:
    """A short run with one choice of a group, or the default's."""
    common = ("logger=ledger_only", "paths.run_dir=x", "vocabulary_size=34", "debug=short")
    return composed(*common, choice)


@pytest.fixture(scope="module")
def tiny() -> DictConfig:
    common = ("logger=ledger_only", "paths.run_dir=x", "vocabulary_size=34")
    return composed("debug=tiny", "engine=transformers", *common)


@pytest.fixture(scope="module")
def hydra_of_a_job() -> DictConfig:
    """What logger=default asks Hydra for."""
    return composed_with_hydra("hydra.runtime.output_dir=x")


DAPO = plain("problems/dapo")["strip"]  # what a file of that format has around its questions


def published(number: int, split: str) -> dict[str, Any]:
    """A row with the columns of every format that conf/problems knows."""
    question = f"{split} {number}?"
    return {
        "id": f"{split}{number}",
        "prompt": question.join(DAPO) if split == "dapo" else question,
        "problem": question,
        "question": question,
        "answer": "It is 1.\n#### 1" if split.startswith("gsm8k") else "1",
        "reward_model": {"ground_truth": "1"},
        "source": ["aime", "amc", "math", "olympiad_bench"][number % 4],
        "data_source": "mine",
        "rank": 0.5,
        "subject": "Algebra",
        "level": 3,
        "unique_id": f"{split}/{number}",
    }


def filled(name: str, tmp_path: Path) -> dict[str, Any]:
    """What a file leaves to the user to give, and local files in place of those on the hub."""
    if name in ("policy/pretrained", "policy/smollm2"):
        return {"path": "embedded"}
    if name == "reward/function":
        (tmp_path / "own.py").write_text("def score(completion, answer): return 1.0\n")
        return {"path": f"{tmp_path / 'own.py'}:score"}
    if name == "reward/pattern":
        return {"answer_pattern": "is (.*)"}
    group, option = name.split("/")[:2]
    if group not in ("data", "problems") or option in GENERATED:
        return {}
    splits = ("train" if option != "dapo" else "dapo", "validation")
    if option == "gsm8k":
        splits = ("gsm8k train", "gsm8k validation")
    paths = []
    for split in splits:
        rows = (published(i, split) for i in range(4))
        paths.append(tmp_path / f"{split}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    if group == "problems":
        return {"path": str(paths[0])}
    return dict(zip(("train", "validation"), ({"path": str(path)} for path in paths), strict=True))


@pytest.mark.parametrize("name", [name for name in OPTIONS if not name.startswith("problems/")])
def test_every_option_of_every_group_passes_the_check_and_makes_its_object(
    name: str,
    tiny: DictConfig,
    hydra_of_a_job: DictConfig,
    tmp_path: Path,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name.startswith("engine/vllm"):
        pytest.importorskip("vllm")
    if name.startswith("engine/vllm_ray"):
        monkeypatch.setattr(ray_actors, "find_spec", lambda package: True)
    if name.endswith("/reasoning_gym"):
        pytest.importorskip("reasoning_gym", reason="pip install 'reasoning-gym==0.1.25'")
    *groups, option = name.split("/")
    path = ".".join(groups)
    if path == "policy.template":
        cfg, path = composed("policy=pretrained", f"policy/template={option}", *FIXED), "policy"
        cfg.policy.path = "embedded"
    elif "defaults" in plain(name) or "# @package" in (conf_dir() / f"{name}.yaml").read_text():
        cfg = copy.deepcopy(chosen(f"{'/'.join(groups)}={option}"))
    else:
        parent = PARENTS.get("/".join(groups))
        group = (parent or "").split("=")[0]
        others = [each for each in FIXED if not each.startswith(f"{group}=")]
        cfg = composed(*others, parent) if parent else copy.deepcopy(tiny)
        OmegaConf.update(cfg, path, plain(name), merge=False)
    if left_open := filled(name, tmp_path):
        OmegaConf.update(cfg, path, left_open, merge=True)
    HydraConfig.instance().set_config(hydra_of_a_job)
    check(cfg)
    given = {"module": {"policy": policy}, "trainer": {"logger": False}}.get(path, {})
    node = OmegaConf.select(cfg, path)
    made = None if node is None else instantiate(node, _convert_="all", **given)
    if node is not None and "_target_" in node and not node.get("_partial_"):
        target = get_object(node._target_)
        assert isinstance(made, target if isinstance(target, type) else RewardPool)


@pytest.mark.parametrize("option", sorted(n.split("/")[1] for n in OPTIONS if "problems/" in n))
def test_evaluations_find_their_problems(option: str, tmp_path: Path) -> None:
    if option == "reasoning_gym":
        pytest.importorskip("reasoning_gym", reason="pip install 'reasoning-gym==0.1.25'")
    cfg = composed(f"problems={option}", "out=x", root="evaluate")
    OmegaConf.update(cfg, "problems", filled(f"problems/{option}", tmp_path))
    problems = instantiate(cfg.problems, _convert_="all")
    assert len(problems) == (256 if option in GENERATED else 4)


def test_no_file_is_left_out() -> None:
    groups = {name.split("/")[0] for name in OPTIONS}
    assert groups == {*GROUPS, "problems"}
    assert {"experiment/" + arm for arm in ARM_ORDER} | {
        f"debug/{name}" for name in ("none", "plan", "short", "tiny")
    } <= GLOBAL


@pytest.mark.parametrize("name", sorted(n for n in GLOBAL if re.fullmatch(r"experiment/\w+", n)))
def test_an_experiment_holds_differences_only(name: str) -> None:
    option = name.split("/")[1]
    own = plain(name)
    without, with_it = to_plain_dict(experiment("")), to_plain_dict(experiment(option))
    assert with_it["name"] == option
    overridden = [key.split("/")[1] for d in own.pop("defaults", []) for key in d]
    for group in overridden:
        assert with_it[group] != without[group]
    for key, value in own.items():
        if key != "name":
            assert with_it[key] != without[key]
            assert set(value) <= set(with_it[key])
    copies = {"callbacks", "module"}  # hold interpolations of the groups
    changed = {key for key in with_it if with_it[key] != without[key]} - copies - {"sweep"}
    along = groups_along(plain(f"loss/{loss}")) if (loss := loss_of(name)) else set()
    assert changed - {"name"} - along == {*overridden, *(set(own) - {"name"} - copies)}


def loss_of(name: str) -> str | None:
    """The preset of the objective that an experiment chooses; None where it stays."""
    defaults = plain(name).get("defaults", [])
    return next((str(d[key]) for d in defaults for key in d if key == "override /loss"), None)


def groups_along(node: dict[str, Any]) -> set[str]:
    """Other groups that a preset chooses."""
    keys = [key for d in node.get("defaults", []) if isinstance(d, dict) for key in d]
    return {key.split("@")[0].split("/")[1] for key in keys if key.startswith("override /")}


@pytest.mark.parametrize(
    ("arm", "budget", "temperature", "annealed", "bonus"),
    [
        ("grpo", "Uniform", "Fixed", False, False),
        ("grpo_er", "Uniform", "Fixed", False, True),
        ("ts", "Uniform", "EntropyTarget", False, False),
        ("ts_an", "Uniform", "EntropyTarget", True, False),
        ("budget", "E3Rank", "Fixed", False, False),
        ("e3", "E3Rank", "EntropyTarget", True, False),
    ],
)
def test_the_arms_are_the_rows_of_the_papers_tables(
    arm: str, budget: str, temperature: str, annealed: bool, bonus: bool
) -> None:
    cfg = experiment(arm)
    assert cfg.budget._target_.endswith(f".{budget}")
    assert cfg.temperature._target_.endswith(f".{temperature}")
    assert bool(cfg.temperature.get("annealing")) == annealed
    assert (cfg.loss.entropy_coef > 0) == bonus


def test_an_experiment_can_be_altered_on_the_command_line() -> None:
    cfg = composed(
        *("experiment=e3", "temperature=fixed", "budget=uniform", "loss.entropy_coef=0.5"),
        *("name=mine", "logger=ledger_only", "paths.run_dir=x"),
    )
    check(cfg)
    assert cfg.temperature._target_.endswith(".Fixed")
    assert cfg.budget._target_.endswith(".Uniform")
    assert (cfg.loss.entropy_coef, cfg.name) == (0.5, "mine")


def test_a_short_run_on_ones_own_files_is_whole(tmp_path: Path) -> None:
    files = filled("data/problem_files", tmp_path)
    paths = [f"data.{split}.path={node['path']}" for split, node in files.items()]
    cfg = composed(
        "data=problem_files", *paths, "debug=short", "logger=ledger_only", "paths.run_dir=x"
    )
    check(cfg)
    data = instantiate(cfg.data, _convert_="all")
    assert len(data.train_problems) == len(data.validation_problems) == 4


def test_validation_reads_ones_own_files_as_training_does(tmp_path: Path) -> None:
    paths = [f"data.{split}.path={tmp_path / split}.jsonl" for split in ("train", "validation")]
    for split, question in (("train", "1+1"), ("validation", "2+2")):
        row = {"prompt": f"Q: {question}", "answer": "we add\n#### 7"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    cfg = composed(
        *(
            "data=problem_files",
            *paths,
            "data.train.answer_after='####'",
            "data.train.strip=['Q: ']",
        ),
        *("logger=ledger_only", "paths.run_dir=x"),
    )
    check(cfg)
    for split in (cfg.data.train, cfg.data.validation):
        (problem,) = instantiate(split, _convert_="all").problems
        assert problem.answer == "7"
        assert "Q:" not in str(problem.prompt)


@pytest.mark.parametrize(
    ("overrides", "train", "validation"),
    [
        ([], {}, {}),
        (["answer=truth", "+id=key"], {"answer": "truth", "id": "key"}, {}),
        (["+prior=null"], {"prior": None}, {}),
        (["answer=truth"], {"answer": "truth"}, {"answer": "gold", "source": "topic"}),
    ],
)
def test_columns_of_a_validation_file_are_those_of_training_but_for_what_is_given(
    overrides: list[str], train: dict[str, str | None], validation: dict[str, str | None]
) -> None:
    of_training = [
        f"{'+' * (o[0] == '+')}data.train.columns.{o.removeprefix('+')}" for o in overrides
    ]
    own = [f"data.validation.columns.{key}={value}" for key, value in validation.items()]
    cfg = composed("data=problem_files", *of_training, *own)
    assert instantiate(cfg.data.train.columns) == Columns(**train)
    assert instantiate(cfg.data.validation.columns) == Columns(**(train | validation))


def test_debugging_wins_over_the_experiment_and_the_command_line_over_both() -> None:
    cfg = composed("experiment=e3", "debug=tiny", "epochs=2", "logger=ledger_only")
    assert (cfg.prompts_per_step, cfg.validate_every, cfg.epochs) == (4, 4, 2)


@pytest.mark.parametrize(
    ("option", "function", "level"),
    [
        ("tis", "truncated", "token"),
        ("tis_sequence", "truncated", "sequence"),
        ("mis", "masked", "token"),
        ("mis_sequence", "masked", "geometric"),
    ],
)
def test_a_correction_is_chosen_on_the_command_line(option: str, function: str, level: str) -> None:
    cfg = chosen(f"loss/correction={option}")
    check(cfg)
    correction = instantiate(cfg.loss, _convert_="all").correction
    assert correction.func.__name__ == function
    assert correction.keywords["level"] == level


LOSSES = {
    "grpo": ("GroupNormalized", "clipped", "token_mean"),
    "dr_grpo": ("Centred", "clipped", "constant"),
    "dapo": ("GroupNormalized", "clipped", "token_mean"),
    "rloo": ("LeaveOneOut", "clipped", "sequence_sum"),
    "rloo_by_prompt": ("LeaveOneOut", "clipped", "sequence_sum"),
    "gspo": ("GroupNormalized", "gspo", "sequence_mean"),
    "cispo": ("GroupNormalized", "cispo", "token_mean"),
    "reinforce_pp": ("BatchNormalized", "clipped", "token_mean"),
}


@pytest.mark.parametrize("option", LOSSES)
def test_a_loss_brings_its_advantage_surrogate_and_aggregation(option: str) -> None:
    cfg = chosen(f"loss={option}")
    loss = instantiate(cfg.loss, _convert_="all")
    estimator = type(instantiate(cfg.advantage, _convert_="all")).__name__
    assert (estimator, loss.surrogate.func.__name__, loss.aggregation) == LOSSES[option]
    assert (cfg.shaping is not None) == (option == "dapo")
    assert loss.max_length == (cfg.max_new_tokens if option == "dr_grpo" else None)


EXPLORATIONS = {
    "none": None,
    "entropy_bonus": None,
    "adaptive_entropy_bonus": None,
    "difficulty_entropy_bonus": None,
    "clip_higher": None,
    "clip_cov": "ClipCov",
    "kl_cov": "KLCov",
    "high_entropy_mask": "HighEntropyMask",
}


@pytest.mark.parametrize("option", EXPLORATIONS)
def test_exploration_by_the_loss_is_chosen_on_the_command_line(option: str) -> None:
    cfg = chosen(f"loss/exploration={option}")
    check(cfg)
    loss = instantiate(cfg.loss, _convert_="all")
    rule = loss.exploration
    assert (None if rule is None else type(rule).__name__) == EXPLORATIONS[option]
    assert loss.adapts == (option in ("adaptive_entropy_bonus", "difficulty_entropy_bonus"))
    assert (loss.entropy_coef > 0) == (option == "entropy_bonus")
    upper = {"clip_higher": 0.28, "kl_cov": 1e9}.get(option, 0.2)
    assert loss.surrogate.keywords["clip_high"] == upper


def test_every_loss_and_exploration_is_in_those_tables() -> None:
    assert set(LOSSES) == {n.split("/")[1] for n in OPTIONS if re.fullmatch(r"loss/\w+", n)}
    explorations = {n.split("/")[2] for n in OPTIONS if n.startswith("loss/exploration/")}
    assert set(EXPLORATIONS) == explorations


def test_several_temperatures_stand_around_the_one_of_any_rule() -> None:
    common = ("experiment=grpo", "logger=ledger_only", "paths.run_dir=x", "vocabulary_size=34")
    cfg = composed(
        *common,
        *("temperature=multi_temperature", "temperature/spread=by_difficulty", "budget=e3_rank"),
        "temperature@temperature.rule=entropy_target_annealed",
        "temperature/gain@temperature.rule.gain=elasticity",
        *("temperature.spread.kappa=0.1", "temperature.rule.init_steps=3"),
    )
    check(cfg)
    made = instantiate(cfg.temperature, _convert_="all")
    assert (type(made.rule.gain).__name__, made.rule.init_steps) == ("ElasticityGain", 3)
    assert made.rule.annealing is not None
    assert made.spread.kappa == 0.1


def test_the_advantage_of_the_command_line_wins_over_that_of_the_loss() -> None:
    cfg = composed("loss=rloo", "advantage=centred", "logger=ledger_only", "paths.run_dir=x")
    assert cfg.advantage._target_.endswith(".Centred")


def test_the_study_of_arms_sweeps_them_over_seeds() -> None:
    cfg = composed_with_hydra("sweep=arms")
    assert cfg.hydra.sweeper.params == {"experiment": "grpo,grpo_er,ts,ts_an", "++seed": "1,2"}


def test_the_list_of_callbacks_is_a_pipeline_in_order(tiny: DictConfig) -> None:
    cfg = copy.deepcopy(tiny)
    stack = [instantiate(node, _convert_="all") for node in cfg.callbacks.values()]
    slots = [callback for callback in stack if isinstance(callback, Slot)]
    assert [slot.slot for slot in slots] == list(cfg.callbacks)[:-1]
    for slot in slots:
        check_order(slot, slots)


def test_every_strategy_is_in_one_callback_alone() -> None:
    text = (conf_dir() / "callbacks" / "default.yaml").read_text()
    for group in ("budget", "temperature", "reward", "shaping", "engine", "advantage"):
        assert text.count(f"${{{group}}}") == 1


def test_no_configuration_runs_the_code_of_strangers() -> None:
    texts = [path.read_text(encoding="utf-8") for path in conf_dir().rglob("*.yaml")]
    said = re.findall(r"^ *trust_remote_code: *(\w+)", "\n".join(texts), re.M)
    assert said
    assert set(said) == {"false"}
    assert signature(Policy).parameters["trust_remote_code"].default is False
