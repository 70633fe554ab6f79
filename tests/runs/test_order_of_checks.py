"""What is told before a model is loaded, which may take long: mistakes in problem files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from omegaconf import DictConfig

from compositions import composed
from e3rl.config.build import bind_data, build_data
from e3rl.config.composition import ConfigurationError, conf_dir
from e3rl.policy.policy import Policy
from e3rl.readiness.preflight import run_preflight
from e3rl.runs.run import execute

GOOD = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(12)]
MISTAKES = {
    "a row": (
        [*GOOD, {"prompt": "", "answer": "1"}],
        r"^data: .*train.jsonl: 1 of 13 rows are bad",
    ),
    "a gold answer": ([*GOOD, {"prompt": "1+1", "answer": "two"}], "^data: 1 gold answers cannot"),
    "too few": (GOOD[:3], "^data: prompts_per_step=4 must lie between 1 and the 3 training"),
    "also validated on": ([*GOOD, {"prompt": "77+1=", "answer": "78"}], "^data: 1 problems of"),
}


def of_files(
    folder: Path, rows: list[dict[str, str]], *overrides: str, root: str = "train"
) -> DictConfig:
    """A tiny run on `rows`, validated on one problem."""
    for name, each in (("train", rows), ("validation", [{"prompt": "77+1=", "answer": "78"}])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, each)))
    return composed(
        *("debug=tiny", "data=problem_files", "logger=ledger_only", "trainer.accelerator=cpu"),
        *(f"data.{name}.path={folder / name}.jsonl" for name in ("train", "validation")),
        *(f"paths.run_dir={folder / 'run'}", "sweep.name=test", *overrides),
        root=root,
    )


@pytest.mark.parametrize("case", MISTAKES)
@pytest.mark.parametrize("begin", [execute, run_preflight])
def test_a_mistake_in_a_problem_file_is_told_before_the_model_is_loaded(
    begin: Callable[[DictConfig], Any], case: str, tmp_path: Path
) -> None:
    rows, words = MISTAKES[case]
    root = "train" if begin is execute else "preflight"
    cfg = of_files(tmp_path, rows, "policy.path=/nowhere", root=root)
    hydra = initialize_config_dir(version_base="1.3", config_dir=str(conf_dir()))
    with hydra, pytest.raises(ConfigurationError, match=words):
        begin(cfg)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("validate_every=7", r"^validate_every=7 does not divide the run's 9 steps"),
        ("+trainer.max_steps=3", "max_steps"),
        ("rollouts_per_prompt=99", "^rollouts_per_prompt=99 must lie between"),
    ],
)
@pytest.mark.parametrize("begin", [execute, run_preflight])
def test_a_run_that_would_not_come_to_its_end_is_refused_before_the_model_is_loaded(
    begin: Callable[[DictConfig], Any], setting: str, words: str, tmp_path: Path
) -> None:
    root = "train" if begin is execute else "preflight"
    cfg = of_files(tmp_path, GOOD, "policy.path=/nowhere", setting, root=root)
    hydra = initialize_config_dir(version_base="1.3", config_dir=str(conf_dir()))
    with hydra, pytest.raises(ConfigurationError, match=words):
        begin(cfg)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("begin", [execute, run_preflight])
def test_rollouts_beyond_the_models_positions_are_refused_before_anything_is_sampled(
    begin: Callable[[DictConfig], Any], tmp_path: Path
) -> None:
    root = "train" if begin is execute else "preflight"
    rows = [*GOOD, {"prompt": "1+" * 20 + "1=", "answer": "21"}]  # 42 tokens of 256
    words = (
        r"^policy\.path=embedded: max_new_tokens=300 behind the longest prompt of 42 tokens goes "
        r"beyond the 256 positions .*; use max_new_tokens=214 or less, or leave out long prompts"
    )
    cfg = of_files(tmp_path, rows, "policy=embedded", "max_new_tokens=300", root=root)
    hydra = initialize_config_dir(version_base="1.3", config_dir=str(conf_dir()))
    with hydra, pytest.raises(ConfigurationError, match=words):
        begin(cfg)
    assert not (tmp_path / "run").exists()


def test_what_the_tokenizer_leaves_of_the_problems_may_be_too_few(
    tmp_path: Path, policy: Policy
) -> None:
    rows = [*GOOD[:3], *({"prompt": "1+" * n + "1=", "answer": "1"} for n in range(40, 50))]
    data = build_data(of_files(tmp_path, rows, "data.on_bad_row=skip", "data.max_prompt_tokens=30"))
    words = "^data: prompts_per_step=4 must lie between 1 and the 3 training problems"
    with (
        pytest.warns(UserWarning, match="over-long"),
        pytest.raises(ConfigurationError, match=words),
    ):
        bind_data(data, policy)
