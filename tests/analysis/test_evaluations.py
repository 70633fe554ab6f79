from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.evaluations import (
    EvaluationResult,
    evaluation_names,
    find_evaluation,
    pass_at_k_difference,
    split_by_end,
    validation_steps,
)
from e3rl.analysis.sources.runs import Run


def counts(n: list[int], correct: list[int], ids: str = "abcdefgh") -> pd.DataFrame:
    return pd.DataFrame({"problem_id": list(ids[: len(n)]), "n": n, "correct": correct})


def item(*seeds: pd.DataFrame, arm: str = "e3", name: str = "t1") -> EvaluationResult:
    return EvaluationResult(arm, name, 1.0, 0.5, seeds)


def test_a_seed_whose_counts_are_not_written_yet_is_left_out(run: Run) -> None:
    bare = replace(run, problems=run.problems.head(0))
    found = find_evaluation([bare, run], "t1")
    assert found is not None
    assert len(found.seeds) == 1
    assert find_evaluation([bare], "t1") is None


def test_seeds_are_averaged_per_problem() -> None:
    both = item(counts([4, 4], [2, 0]), counts([4, 4], [4, 1]))
    table = both.per_problem([1, 4])
    assert table[1].tolist() == [0.75, 0.125]
    assert table[4].tolist() == [1.0, 0.5]
    assert both.pass_at_k([1])[0].mean == pytest.approx(0.4375)
    assert both.by_seed(1).tolist() == [0.25, 0.625]
    assert both.n_problems == 2


def test_seeds_are_joined_by_problem_and_not_by_position() -> None:
    both = item(counts([2, 2, 2], [0, 1, 2], "abc"), counts([2, 2], [2, 0], "cb"))
    assert both.per_problem([1])[1].to_dict() == {"b": 0.25, "c": 1.0}
    with pytest.raises(ValueError, match="seeds of e3/t1 have no validation problem"):
        item(counts([1], [0], "a"), counts([1], [0], "b")).per_problem([1])


def test_golden_pass_at_k_with_sixteen_samples_and_three_right() -> None:
    values = [interval.mean for interval in item(counts([16], [3])).pass_at_k([1, 4, 8])]
    assert values == pytest.approx([0.1875, 0.607143, 0.9], abs=1e-6)


@pytest.mark.parametrize(
    ("n", "ks"), [([1], [1]), ([16], [1, 2, 4, 8, 16]), ([12, 9], [1, 2, 4, 8])]
)
def test_ks_are_powers_of_two_up_to_the_fewest_samples(n: list[int], ks: list[int]) -> None:
    assert item(counts(n, [0] * len(n))).ks() == ks


def test_difference_pairs_by_problem_whatever_the_order() -> None:
    a = item(counts([4, 4, 4], [4, 2, 0], "abc"))
    b = item(counts([4, 4, 4], [0, 3, 1], "cab"))
    pair, shared = pass_at_k_difference(a, b, 1)
    assert shared == 3
    assert pair is not None
    assert pair.mean == pytest.approx((0.25 + 0.25 + 0.0) / 3)
    assert pair.low <= pair.mean <= pair.high


def test_constant_difference_has_an_interval_without_width() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 5, 8).tolist()
    a = item(counts([8] * 8, [c + 2 for c in base]))
    pair, _ = pass_at_k_difference(a, item(counts([8] * 8, base)), 1)
    assert pair is not None
    assert (pair.low, pair.high) == (pytest.approx(0.25), pytest.approx(0.25))


def test_difference_without_shared_problems_is_none() -> None:
    assert pass_at_k_difference(item(counts([1], [1], "a")), item(counts([1], [1], "b")), 1) == (
        None,
        0,
    )


def test_first_and_last_validation_are_found(run: Run) -> None:
    first, last = find_evaluation([run], "live", "first"), find_evaluation([run], "live")
    assert first is not None
    assert last is not None
    assert first.temperature == 1.0
    assert last.temperature > 1.3
    steps = run.problems["rollout_step"]
    rows = run.problems[(steps == steps.max()) & (run.problems["name"] == "live")]
    assert last.seeds[0]["correct"].tolist() == rows["correct"].tolist()
    assert last.pass_at_k([1])[0].mean == pytest.approx((rows["correct"] / rows["n"]).mean())
    assert find_evaluation([run], "live", 8) is not None
    assert find_evaluation([run], "live", 5) is None
    assert find_evaluation([run], "nothing") is None


def test_names_and_steps_of_a_study(arms: dict[str, list[Run]]) -> None:
    assert evaluation_names(arms) == ["t1", "greedy", "live", "matched"]
    assert validation_steps(arms["grpo"]) == [0, 8, 16, 24]
    both = find_evaluation(arms["e3"], "t1")
    assert both is not None
    assert len(both.seeds) == 2


def ended_at(run: Run, step: int, seed: int) -> Run:
    """The run as it was after its validation at this step."""
    tables = {name: getattr(run, name) for name in ("evaluations", "problems")}
    kept = {name: table[table["rollout_step"] <= step] for name, table in tables.items()}
    train = run.train[run.train["rollout_step"] < max(step, 1)]
    return replace(run, path=Path(f"seed-{seed}"), seed=seed, train=train, **kept)


def test_the_last_validation_is_without_seeds_that_have_not_got_there(run: Run) -> None:
    """A seed that has begun was validated before training alone."""
    begun, half = ended_at(run, 0, 2), ended_at(run, 16, 3)
    bare = replace(run, problems=run.problems.head(0))
    found, alone = find_evaluation([begun, run, half, bare], "t1"), find_evaluation([run], "t1")
    assert found is not None
    assert alone is not None
    assert found.by_seed(1).tolist() == alone.by_seed(1).tolist()
    assert (found.left_out, alone.left_out) == (("seed-2", "seed-3"), ())
    kept, early = split_by_end([begun, run, half, bare])
    assert [item.seed for item in kept] == [run.seed]
    assert [item.seed for item in early] == [2, 3]
    assert split_by_end([bare]) == ([], [])


def test_a_seed_that_was_never_validated_has_no_say_at_which_steps_others_were(run: Run) -> None:
    bare = replace(run, problems=run.problems.head(0))
    assert validation_steps([run, bare]) == [0, 8, 16, 24]
    assert validation_steps([bare]) == []


def test_a_run_without_a_validation_before_training_has_no_first_one(run: Run) -> None:
    found = find_evaluation([run], "t1", "first")
    assert found is not None
    step = min(step for name, step in run.counts if name == "t1")
    assert step == 0
    late = replace(run, problems=run.problems[run.problems["rollout_step"] > 0])
    assert len({step for _, step in late.counts}) > 1
    assert find_evaluation([late], "t1", "first") is None
