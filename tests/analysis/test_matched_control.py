"""The control at the entropy of an arm."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.comparison import compare_arms, compare_family
from e3rl.analysis.measures.families import BETTER, Family
from e3rl.analysis.measures.matched_control import (
    MATCHED,
    NEAREST,
    NO_ENTROPY,
    TOO_FEW,
    match_control,
)
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import EVALUATION_COLUMNS, PROBLEM_COLUMNS, Run
from e3rl.analysis.tables.comparison_table import comparison_cells
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.validation import unmatched_entropies

N_PROBLEMS = 40
RATES = np.linspace(0.05, 0.95, N_PROBLEMS)


def made_up(arm: str, seed: int, evaluations: Mapping[str, Mapping[str, Any]]) -> Run:
    """A run of one validation; an evaluation has temperature, entropy, correct (P,) and n."""
    facts, problems = [], []
    for name, given in evaluations.items():
        n = given.get("n", 64)
        facts.append({"rollout_step": 10, "name": name, "tokens": 1000, **given})
        problems += [
            {
                "rollout_step": 10,
                "name": name,
                "temperature": given["temperature"],
                "problem_id": f"p{i}",
                "source": "x",
                "n": n,
                "correct": int(correct),
            }
            for i, correct in enumerate(given["correct"])
        ]
    train = pd.DataFrame({"rollout_step": range(10), "cost/tokens": np.arange(1, 11) * 100.0})
    return Run(
        path=Path(f"{arm}-{seed}"),
        name=arm,
        seed=seed,
        config={},
        train=train,
        validation=pd.DataFrame({"rollout_step": [10]}),
        evaluations=pd.DataFrame(facts, columns=list(EVALUATION_COLUMNS)),
        problems=pd.DataFrame(problems, columns=list(PROBLEM_COLUMNS)),
        prompts=pd.DataFrame(),
        summary=None,
    )


def at(temperature: float, entropy: float, mean: float, **more: Any) -> dict[str, Any]:
    """An evaluation whose pass@1 is `mean`, harder problems less."""
    n = more.get("n", 64)
    correct = np.clip(np.rint(n * (RATES + mean - RATES.mean())), 0, n)
    return {"temperature": temperature, "entropy": entropy, "correct": correct, **more}


def study(control: Mapping[str, Any], live: Mapping[str, Any], seeds: int = 2) -> dict[str, Any]:
    return {
        "grpo": [made_up("grpo", seed, control) for seed in range(1, seeds + 1)],
        "ts": [made_up("ts", seed, {"live": live}) for seed in range(1, seeds + 1)],
    }


def row_of(arms: dict[str, list[Run]], measure: str = "pass@1") -> dict[str, Any]:
    rows = compare_arms(arms, "grpo", [1, 16])
    return next(r for r in rows if (r["arm"], r["measure"]) == ("ts", measure))


def test_the_control_is_read_on_the_line_between_what_encloses_the_arm() -> None:
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50)}
    row = row_of(study(control, at(1.3, 0.31, 0.58)))
    share = math.log(0.31 / 0.30) / math.log(0.32 / 0.30)
    table = {name: np.mean(each["correct"]) / 64 for name, each in control.items()}
    expected = (1 - share) * table["t1"] + share * table["t1.05"]
    assert row["value"] - row["difference"] == pytest.approx(expected)
    assert (row["against"], row["against_entropy"]) == (f"grpo {MATCHED}", pytest.approx(0.31))
    assert row["entropy_gap"] == pytest.approx(0)
    assert row["unmatched"] is None
    assert row["verdict"] == BETTER


def test_each_seed_is_read_at_the_entropy_of_its_own_arm() -> None:
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50)}
    arms = study(control, at(1.3, 0.30, 0.55))
    arms["ts"][1] = made_up("ts", 2, {"live": at(1.3, 0.32, 0.55)})
    item = scores_at(arms["ts"], "live", 1, "tokens", 1000.0)
    assert item is not None
    found = match_control(item, arms, "grpo")
    assert found is not None
    ends = [np.mean(control[name]["correct"]) / 64 for name in ("t1", "t1.05")]
    assert found.scores.table.mean(axis="columns").tolist() == pytest.approx(ends)


@pytest.mark.parametrize(
    ("entropy", "words"),
    [(0.33, "entropies differ by -3.0 %"), (0.29, "entropies differ by +3.4 %")],
)
def test_an_entropy_that_nothing_encloses_has_no_verdict(entropy: float, words: str) -> None:
    control = {"t1": at(1.0, 0.30, 0.40), "t1.05": at(1.05, 0.32, 0.30)}
    row = row_of(study(control, at(1.3, entropy, 0.60)))
    assert row["difference_low"] > 0.1
    assert (row["verdict"], row["unmatched"]) == (None, words)
    assert row["against"] == f"grpo {NEAREST}"


def test_one_seed_that_is_off_takes_the_verdict_of_all() -> None:
    control = {"t1": at(1.0, 0.30, 0.40), "t1.05": at(1.05, 0.32, 0.30)}
    arms = study(control, at(1.3, 0.31, 0.60))
    arms["ts"][1] = made_up("ts", 2, {"live": at(1.3, 0.35, 0.60)})
    row = row_of(arms)
    assert row["verdict"] is None
    assert row["entropy_gap"] == pytest.approx(0.32 / 0.35 - 1)


def test_entropies_too_far_apart_are_no_line() -> None:
    control = {"t1": at(1.0, 0.30, 0.40), "t1.1": at(1.1, 0.34, 0.30)}
    assert row_of(study(control, at(1.3, 0.32, 0.60)))["verdict"] is None


def test_an_evaluation_within_half_a_per_cent_will_do() -> None:
    row = row_of(study({"t1": at(1.0, 0.30, 0.40)}, at(1.3, 0.3014, 0.60)))
    assert (row["verdict"], row["entropy_gap"]) == (BETTER, pytest.approx(-0.0014 / 0.3014))


def test_evaluations_of_few_rollouts_match_nothing() -> None:
    few = {"live": at(1.0, 0.31, 0.40, n=16)}
    row = row_of(study(few, at(1.3, 0.31, 0.60)))
    assert (row["verdict"], row["unmatched"]) == (None, TOO_FEW)
    assert row["difference"] is not None  # is shown, and not judged


@pytest.mark.parametrize("entropy", [0.0, math.nan])
def test_an_entropy_of_0_or_none_is_matched_with_nothing(entropy: float) -> None:
    arms = study({"t1": at(1.0, 0.30, 0.40)}, at(1.3, 0.30, 0.60))
    arms["ts"][1] = made_up("ts", 2, {"live": at(1.3, entropy, 0.60)})
    rows = compare_arms(arms, "grpo", [1])
    row = next(each for each in rows if each["arm"] == "ts")
    assert (row["verdict"], row["p"], row["unmatched"]) == (None, None, NO_ENTROPY)
    (warned,) = unmatched_entropies(Compared(arms, "grpo", rows))
    assert "GRPO + TS (its entropy is 0 or not recorded)" in warned


@pytest.mark.parametrize("gone", [(1, 2), (2,)])
def test_an_arm_without_samples_at_its_end_is_matched_with_nothing(gone: tuple[int, ...]) -> None:
    """Of these seeds `live` was sampled at steps 2 and 5, and not at step 10, their last one."""
    arms = study({"t1": at(1.0, 0.30, 0.40)}, at(1.3, 0.30, 0.60))

    def thrice(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([rows.assign(rollout_step=step) for step in (2, 5, 10)], ignore_index=True)

    for runs in arms.values():
        runs[:] = [
            replace(run, evaluations=thrice(run.evaluations), problems=thrice(run.problems))
            for run in runs
        ]
    for run in (run for run in arms["ts"] if run.seed in gone):
        for rows in (run.evaluations, run.problems):
            rows.loc[rows["rollout_step"] == 10, "name"] = "other"
    rows = compare_arms(arms, "grpo", [1], cost=math.inf)
    (live,) = [row for row in rows if row["evaluation"] == "live"]
    assert (live["seeds"], live["value"]) == (2, pytest.approx(0.6, abs=0.01))
    assert (live["verdict"], live["p"], live["unmatched"]) == (None, None, NO_ENTROPY)


def test_greedy_answers_are_compared_with_greedy_ones_where_entropies_are_to_be_equal() -> None:
    greedy = {"greedy": at(0.0, 0.0, 0.40)}
    arms = study({"t1": at(1.0, 0.30, 0.40)} | greedy, at(1.3, 0.3, 0.6))
    arms["ts"] = [made_up("ts", s, {"t1": at(1.0, 0.30, 0.6)} | greedy) for s in (1, 2)]
    rows = compare_arms(arms, "grpo", [1], at_equal_entropy=True)
    found = {row["evaluation"]: row for row in rows if row["arm"] == "ts"}
    assert found["t1"]["against"] == f"grpo {MATCHED}"
    assert found["greedy"]["against"] == "grpo greedy"
    assert (found["greedy"]["difference"], found["greedy"]["unmatched"]) == (0.0, None)
    assert found["greedy"]["comparison"].endswith(", after the last step")


def test_a_truncated_or_greedy_evaluation_is_no_control() -> None:
    control = {
        "t1": at(1.0, 0.30, 0.40),
        "nucleus": at(1.05, 0.32, 0.40, top_p=0.9),
        "greedy": at(0.0, 0.0, 0.40),
    }
    assert row_of(study(control, at(1.3, 0.31, 0.60)))["verdict"] is None


def test_a_sampler_of_the_likeliest_tokens_is_no_control() -> None:
    control = {"t1": at(1.0, 0.30, 0.40), "cut": at(1.05, 0.32, 0.40, top_k=20)}
    assert row_of(study(control, at(1.3, 0.31, 0.60)))["verdict"] is None
    whole = control | {"cut": at(1.05, 0.32, 0.40)}
    assert row_of(study(whole, at(1.3, 0.31, 0.60)))["verdict"] is not None


def test_a_control_of_other_seeds_is_read_at_the_mean_entropy_of_the_arm() -> None:
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50)}
    arms = study(control, at(1.3, 0.30, 0.58))
    arms["grpo"] = [replace(run, seed=run.seed + 2) for run in arms["grpo"]]
    arms["ts"][1] = made_up("ts", 2, {"live": at(1.3, 0.32, 0.58)})
    item = scores_at(arms["ts"], "live", 1, "tokens", math.inf)
    assert item is not None
    found = match_control(item, arms, "grpo")
    assert found is not None
    share = math.log(0.31 / 0.30) / math.log(0.32 / 0.30)  # .508
    low, high = (np.mean(each["correct"]) / 64 for each in control.values())
    assert found.scores.table.to_numpy().mean() == pytest.approx((1 - share) * low + share * high)


def test_noise_of_the_entropies_is_told() -> None:
    control = {
        "t1": at(1.0, 0.30, 0.60, entropy_error=0.003),
        "t1.05": at(1.05, 0.32, 0.50, entropy_error=0.0032),
    }
    middle = math.sqrt(0.30 * 0.32)
    row = row_of(study(control, at(1.3, middle, 0.58, entropy_error=middle / 100)))
    # 1 % on either side, the control's halved by two evaluations; two seeds.
    expected = 1.96 * 0.01 * math.sqrt(1 + 0.5) / math.sqrt(2)
    assert row["entropy_error"] == pytest.approx(expected)


def test_what_the_control_alone_was_sampled_at_has_no_rows() -> None:
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50), "live": at(1.0, 0.3, 0.6)}
    rows = compare_arms(study(control, at(1.3, 0.31, 0.58)), "grpo", [1])
    assert [(r["arm"], r["evaluation"]) for r in rows] == [("grpo", "live"), ("ts", "live")]


def test_where_a_study_asks_all_arms_are_judged_at_equal_entropy_after_their_last_step() -> None:
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50)}
    arms = study(control, at(1.3, 0.31, 0.58))
    flatter = at(1.0, 0.31, 0.58)
    arms["ts"] = [made_up("ts", seed, {"t1": flatter}) for seed in (1, 2)]
    family = Family("entropy", (("t1", "pass@1"),), (("ts", "grpo"),), at_equal_entropy=True)
    (row,) = compare_family(arms, family)
    share = math.log(0.31 / 0.30) / math.log(0.32 / 0.30)
    ends = [np.mean(control[name]["correct"]) / 64 for name in ("t1", "t1.05")]
    expected = np.mean(flatter["correct"]) / 64 - ((1 - share) * ends[0] + share * ends[1])
    assert row["difference"] == pytest.approx(expected)
    assert (row["against"], row["spent"], row["against_spent"]) == ("grpo matched", 1000, 1000)
    (same,) = [
        each
        for each in compare_arms(arms, "grpo", [1], at_equal_entropy=True)
        if each["arm"] == "ts"
    ]
    assert same["comparison"] == row["comparison"]
    assert same["difference"] == row["difference"]


def test_at_equal_entropy_an_earlier_validation_counts_for_nothing() -> None:
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50)}
    arms = study(control, at(1.3, 0.31, 0.58))
    arms["ts"] = [made_up("ts", seed, {"t1": at(1.0, 0.31, 0.58)}) for seed in (1, 2)]
    family = Family("entropy", (("t1", "pass@1"),), (("ts", "grpo"),), at_equal_entropy=True)
    (alone,) = compare_family(arms, family)
    for runs in arms.values():  # before training, with as many rollouts
        runs[:] = [
            replace(
                run,
                evaluations=pd.concat([run.evaluations.assign(rollout_step=0), run.evaluations]),
                problems=pd.concat([run.problems.assign(rollout_step=0, correct=0), run.problems]),
            )
            for run in runs
        ]
    arms["grpo"] = [  # the control went on for longer, at more cost
        replace(run, train=run.train.assign(**{"cost/tokens": run.train["cost/tokens"] * 2}))
        for run in arms["grpo"]
    ]
    (row,) = compare_family(arms, family)
    assert row["difference"] == pytest.approx(alone["difference"])
    assert (row["spent"], row["against_spent"]) == (1000, 2000)


def test_an_arm_at_its_own_temperature_is_read_at_its_end_like_the_control() -> None:
    """At half the cost both had solved nothing yet; the control is matched after its last step."""
    control = {"t1": at(1.0, 0.30, 0.60), "t1.05": at(1.05, 0.32, 0.50)}
    arms = study(control, at(1.3, 0.31, 0.58))
    whole = row_of(arms)
    half = {"rollout_step": 5, "correct": 0}
    for runs in arms.values():
        runs[:] = [
            replace(
                run,
                evaluations=pd.concat([run.evaluations.assign(rollout_step=5), run.evaluations]),
                problems=pd.concat([run.problems.assign(**half), run.problems]),
            )
            for run in runs
        ]
    rows = compare_arms(arms, "grpo", [1], cost=500)
    (row,) = [each for each in rows if (each["arm"], each["measure"]) == ("ts", "pass@1")]
    for column in ("value", "difference", "verdict", "comparison", "p"):
        assert row[column] == whole[column]
    assert (row["cost"], row["spent"], row["against_spent"]) == (500, 1000, 1000)
    assert comparison_cells(rows).note.startswith(
        "At equal cost (500 tokens generated), or, where that is said, by the last validation, the "
        "only one with k rollouts or the one whose entropies are matched, tokens generated less"
    )
    at_end = row_of(arms)  # where that is the equal cost
    assert (at_end["difference"], at_end["spent"]) == (whole["difference"], None)


def test_other_evaluations_have_nothing_to_match() -> None:
    arms = study({"t1": at(1.0, 0.30, 0.60)}, at(1.3, 0.31, 0.58))
    arms["ts"] = [made_up("ts", seed, {"t1": at(1.0, 0.26, 0.70)}) for seed in (1, 2)]
    row = row_of(arms)
    assert row["verdict"] is not None
    assert (row["entropy_gap"], row["unmatched"]) == (None, None)


def test_an_arm_at_its_controls_temperature_is_beside_the_control_there() -> None:
    control = {"t1": at(1.0, 0.30, 0.60, n=16), "live": at(1.0, 0.30, 0.60, n=16)}
    arms = study(control, at(1.0, 0.31, 0.55, n=16))
    row = row_of(arms)
    assert (row["against"], row["unmatched"]) == ("grpo live", None)
    assert row["difference"] == pytest.approx(-0.05, abs=0.005)
    assert unmatched_entropies(Compared(arms, "grpo", [row])) == []
