"""pass@16 at equal tokens: the costlier run of a seed is read before its end."""

import csv
import json
import lzma
import runpy
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SEEDS = {"carries_other_problems": range(211, 221), "carries_four_steps": range(236, 246)}


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(EXPERIMENTS / "carries_other_problems" / "equal_tokens.py"))


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


@pytest.mark.parametrize("page", SEEDS)
def test_the_page_has_the_tables_of_the_samples(study: dict[str, Any], page: str) -> None:
    folder = EXPERIMENTS / page
    readings = study["read_pairs"](
        study["load_runs"](folder / "runs"), study["read_samples"](folder)
    )
    assert [each.seed for each in readings] == list(SEEDS[page])
    text = (folder / "README.md").read_text(encoding="utf-8")
    for name, cells in (
        ("equal_tokens", study["comparison_cells"](study["compare"](readings))),
        ("seeds", study["seed_cells"](readings)),
    ):
        between = text.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
        made = study["as_markdown"](cells, ("arm", "measure", "verdict"))
        assert between.strip() == made.strip(), name


@pytest.mark.parametrize("page", SEEDS)
def test_the_difference_is_what_other_code_finds_in_the_ledgers(page: str) -> None:
    folder = EXPERIMENTS / page
    gaps = gaps_of(folder, SEEDS[page])
    with (folder / "results" / "equal_tokens.csv").open(encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    assert float(found["difference"]) == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)


def test_the_main_effect_is_what_other_code_finds_in_the_ledgers() -> None:
    folder = EXPERIMENTS / "carries_four_steps_fresh"
    pairs = {
        "budget_tuned": ("budget_name-budget_tuned_", "grpo_"),
        "both_tuned": ("budget_name-both_tuned_", "shootout.cool_name-cool_tuned_"),
    }
    gaps = [
        gaps_of(folder, range(256, 264), {arm: places[0], "control": places[1]})
        for arm, places in pairs.items()
    ]
    with (folder / "results" / "equal_tokens.csv").open(encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    assert float(found["difference"]) == pytest.approx(float(np.mean(gaps)), abs=1e-6)


def test_the_page_of_the_main_effect_has_the_tables_of_the_samples() -> None:
    folder = EXPERIMENTS / "carries_four_steps_fresh"
    fresh = runpy.run_path(str(folder / "equal_tokens.py"))
    shared = fresh["SHARED"]
    both = fresh["read_both"](shared["load_runs"](folder / "runs"), shared["read_samples"](folder))
    assert list(both[0]) == list(range(256, 264))
    text = (folder / "README.md").read_text(encoding="utf-8")
    for name, cells in (
        ("equal_tokens", fresh["comparison_cells"](fresh["compare"](both))),
        ("seeds", fresh["seed_cells"](both)),
    ):
        between = text.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
        made = fresh["as_markdown"](cells, ("arm", "measure", "verdict", "pair"))
        assert between.strip() == made.strip(), name


BUDGET = {"budget": "budget_engine", "grpo": "grpo_engine"}  # arms, and how their folders begin


def gaps_of(study: Path, seeds: Sequence[int], pair: Mapping[str, str] = BUDGET) -> list[float]:
    """The first arm's share of solved problems less the second's at equal tokens, by seed. The
    costlier of both must have samples before its end."""
    early = json.loads(lzma.decompress((study / "early.json.xz").read_bytes()))
    right = {(row["arm"], row["seed"]): row["right"] for row in early}
    gaps = []
    with tarfile.open(study / "runs.tar.xz") as archive:
        for seed in seeds:
            tokens, solved = {}, {}
            for arm, place in pair.items():
                run = f"seed-{seed}_experiment-{place}"
                steps = {
                    row["rollout_step"]: row["cost/tokens"]
                    for row in rows_of(archive, run, "metrics.jsonl")
                    if "cost/tokens" in row
                }
                tokens[arm] = steps[119], steps[127]
                (last,) = (
                    row
                    for row in rows_of(archive, run, "validation.jsonl")
                    if (row["rollout_step"], row["name"]) == (128, "t1")
                )
                assert set(last["n"]) == {16}  # so pass@16 is whether any was right
                solved[arm] = sum(count > 0 for count in last["correct"]) / 1024
            cheap, dear = sorted(tokens, key=lambda arm: tokens[arm][1])
            before = sum(count > 0 for count in right[dear, seed].values()) / 1024
            first, whole = tokens[dear]
            share = (tokens[cheap][1] - first) / (whole - first)
            assert 0 < share < 1
            solved[dear] = before + share * (solved[dear] - before)
            first_arm, second_arm = pair
            gaps.append(solved[first_arm] - solved[second_arm])
    return gaps


def rows_of(archive: tarfile.TarFile, run: str, name: str) -> list[dict[str, Any]]:
    """Rows of a run's ledger in the archive, packed or not, wherever its root is."""
    (member,) = (each for each in archive.getnames() if run in each and f"/{name}" in each)
    file = archive.extractfile(member)
    assert file is not None
    data = file.read()
    text = lzma.decompress(data) if member.endswith(".xz") else data
    return [json.loads(line) for line in text.splitlines()]


def test_a_main_effect_is_the_mean_of_both_pairs_read_each_at_its_own_tokens() -> None:
    """`both_tuned` solves all of its last rollouts of three problems, `budget_tuned` of two, and
    their controls of one and of two. Both budgets generate 102.4 tokens a step beside 100, so that
    they are read 5 of 8 steps after step 120, where they solved nothing yet."""
    fresh = runpy.run_path(str(EXPERIMENTS / "carries_four_steps_fresh" / "equal_tokens.py"))
    runs = [
        *(run("budget_tuned", 102.4, 2), run("grpo", 100, 1)),
        *(run("both_tuned", 102.4, 3), run("cool_tuned", 100, 2)),
    ]
    assert [each.name for each in fresh["costlier_runs"](runs)] == ["budget_tuned", "both_tuned"]
    sample = fresh["SHARED"]["Sample"]
    nothing = dict.fromkeys("abc", 0)
    both = fresh["read_both"](runs, [sample(x, 7, nothing) for x in ("budget_tuned", "both_tuned")])
    rows = [
        fresh["compare_sides"](both, fresh["PAIRS"], 16),
        *(fresh["compare_sides"](both, [pair], 16) for pair in fresh["PAIRS"]),
    ]
    assert [row["value"] for row in rows] == pytest.approx([25 / 48, 10 / 24, 15 / 24])
    assert [row["against_value"] for row in rows] == pytest.approx([1 / 2, 1 / 3, 2 / 3])
    assert [row["difference"] for row in rows] == pytest.approx([1 / 48, 1 / 12, -1 / 24])


def test_a_seed_of_which_one_pair_cannot_be_read_is_left_out_of_both() -> None:
    fresh = runpy.run_path(str(EXPERIMENTS / "carries_four_steps_fresh" / "equal_tokens.py"))
    runs = [
        *(run("budget_tuned", 110, 2), run("grpo", 100, 1)),  # 13,200 after 120 steps
        *(run("both_tuned", 102.4, 3), run("cool_tuned", 100, 2)),
    ]
    sample, nothing = fresh["SHARED"]["Sample"], dict.fromkeys("abc", 0)
    both = fresh["read_both"](runs, [sample(x, 7, nothing) for x in ("budget_tuned", "both_tuned")])
    assert both == [{}, {}]
