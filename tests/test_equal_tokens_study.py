"""pass@16 at equal tokens: the costlier run of a seed is read before its end."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

STUDY = Path(__file__).parents[1] / "experiments" / "carries_other_problems"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "equal_tokens.py"))


def run(name: str, tokens_a_step: float, solved: int) -> SimpleNamespace:
    """A run of 128 even steps that solves `solved` of three problems in all its last rollouts."""
    counts = pd.DataFrame(
        {
            "problem_id": ["a", "b", "c"],
            "n": [16] * 3,
            "correct": [16 * (place < solved) for place in range(3)],
        }
    )
    train = pd.DataFrame(
        {"rollout_step": range(128), "cost/tokens": tokens_a_step * np.arange(1, 129)}
    )
    return SimpleNamespace(name=name, seed=7, train=train, counts={("t1", 128): counts})


def test_the_costlier_run_is_read_where_it_had_generated_as_many_tokens(
    study: dict[str, Any],
) -> None:
    # 128 steps of 100 tokens, and of 102.4: the latter had 12,800 after 125 steps, which is 5 of
    # the 8 steps between 120 and 128. It solved one problem after 120 steps and all three at last.
    pair = {"budget": run("budget", 102.4, 3), "grpo": run("grpo", 100, 2)}
    assert study["costlier_arm"](pair) == "budget"
    early = study["Sample"]("budget", 7, {"c": 0, "b": 0, "a": 16})
    read = study["read_pair"](pair, "budget", early)
    assert read.at == 12_800
    np.testing.assert_allclose(read.values["budget"][16], [1, 5 / 8, 5 / 8])
    np.testing.assert_array_equal(read.values["grpo"][16], [1, 1, 0])


def test_the_control_is_read_early_where_it_is_the_costlier_one(study: dict[str, Any]) -> None:
    pair = {"budget": run("budget", 100, 3), "grpo": run("grpo", 102.4, 2)}
    assert study["costlier_arm"](pair) == "grpo"
    early = study["Sample"]("grpo", 7, {"a": 16, "b": 0, "c": 0})
    read = study["read_pair"](pair, "grpo", early)
    np.testing.assert_array_equal(read.values["budget"][16], [1, 1, 1])
    np.testing.assert_allclose(read.values["grpo"][16], [1, 5 / 8, 0])


def test_a_seed_whose_costlier_run_had_generated_too_much_cannot_be_read(
    study: dict[str, Any],
) -> None:
    pair = {"budget": run("budget", 110, 3), "grpo": run("grpo", 100, 2)}  # 13,200 after 120 steps
    early = study["Sample"]("budget", 7, dict.fromkeys("abc", 0))
    assert study["read_pair"](pair, "budget", early) is None


def test_a_seed_that_lacks_an_arm_is_named(study: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"seeds \[7\] lack an arm"):
        study["pairs_of"]([run("budget", 100, 3), run("e3", 100, 3)])
