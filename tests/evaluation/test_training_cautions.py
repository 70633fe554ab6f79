"""What runs were trained with and are not evaluated with is told."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import compositions
from e3rl.config.composition import to_plain_dict
from e3rl.evaluation.cautions import find_cautions
from e3rl.evaluation.targets import Model


def composed(*overrides: str) -> DictConfig:
    return compositions.composed("out=x", *overrides, root="evaluate")


def trained(folder: str = "run", **changes: Any) -> Model:
    """A run that was trained with what is evaluated with by default, but for some settings."""
    cfg = to_plain_dict(composed())
    own = {key: cfg[key] for key in ("policy", "reward", "max_new_tokens")}
    source = OmegaConf.create(own | {"data": {"validation": cfg["problems"]}})
    for path, value in changes.items():
        OmegaConf.update(source, path.replace("__", "."), value, merge=False)
    return Model(folder, source, Path(folder, "checkpoints", "step-000008.ckpt"))


def test_a_run_that_is_evaluated_as_it_was_trained_has_no_caution() -> None:
    other = trained(reward__deadline_s=9, reward__workers=1, reward__answer_pattern=None)
    assert find_cautions(composed(), [trained(), other]) == []
    bare = Model("bare", OmegaConf.create({"policy": {}}), Path("a/checkpoints/b.ckpt"))
    assert find_cautions(composed(), [bare]) == []
    model = Model("model", OmegaConf.create({"max_new_tokens": 9}))
    assert find_cautions(composed(), [model]) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_new_tokens": 1024}, "max_new_tokens=80, and it was 1024 in the training of run"),
        (
            {"reward__answer_format": "math_box"},
            "reward.answer_format=integer_box, and it was math_box in the training of run",
        ),
        (
            {"data__validation__size": 1024},
            "problems.size=256, and it was 1024 in the training of run",
        ),
        (
            {"data__validation": {"_target_": "e3rl.data.problems.load_problems", "path": "a"}},
            "problems.path=null, and it was a in the training of run",
        ),
    ],
)
def test_every_setting_of_the_training_that_is_another_here_is_told(
    changes: dict[str, Any], told: str
) -> None:
    cautions = find_cautions(composed(), [trained(**changes)])
    assert any(each.startswith(told) for each in cautions), cautions
    assert len(cautions) == 1 + ("data__validation" in changes)  # a file has a kind and a path


def test_runs_of_one_difference_share_its_line() -> None:
    models = [trained(name, max_new_tokens=1024) for name in ("a", "b")]
    (caution,) = find_cautions(composed(), models)
    assert "in the training of a, b: give the same to compare with" in caution


def test_sets_that_are_named_are_not_compared_with_the_validation() -> None:
    other = trained(data__validation__size=9)
    assert len(find_cautions(composed(), [other])) == 1
    assert find_cautions(composed("sets=[arithmetic]"), [other]) == []


def test_defaults_of_problem_files_are_no_difference() -> None:
    node = {
        "_target_": "e3rl.data.problems.load_problems",
        "path": "mine.jsonl",
        "columns": {"_target_": "e3rl.data.problems.Columns", "answer": "answer"},
        "strip": [],
        "size": None,
    }
    cfg = composed("problems=file", "problems.path=mine.jsonl")
    assert find_cautions(cfg, [trained(data__validation=node)]) == []
    assert find_cautions(cfg, [trained(data__validation=node | {"size": 3})]) != []


def test_generated_tasks_of_a_run_are_compared_with_those_of_an_evaluation() -> None:
    gym = compositions.composed(
        "++paths.run_dir=x", "data=reasoning_gym", "data.tasks=[gcd]", "+data.levels.gcd=3"
    )
    run = trained(data=OmegaConf.to_container(gym.data, resolve=True))
    here = ("problems=reasoning_gym", "problems.tasks=[gcd]", "+problems.levels.gcd=3")
    assert find_cautions(composed(*here), [run]) == []
    told = find_cautions(composed("problems=reasoning_gym"), [run])
    assert any(each.startswith("problems.tasks=chain_sum, and it was ['gcd'] in") for each in told)
