from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_arms, compare_scores
from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.families import BETTER, NEITHER, judge_rows
from e3rl.analysis.measures.scores import Scores
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.comparison_table import (
    comparison_cells,
    comparison_markdown,
    comparison_text,
)
from e3rl.statistics.improvement import probability_of_improvement
from e3rl.statistics.iqm import interquartile_mean
from e3rl.statistics.means import mean_over_seeds_and_problems, mean_over_units
from e3rl.statistics.power import detectable_difference

pytestmark = pytest.mark.end_to_end

UNASKED = dict.fromkeys(("entropy_gap", "entropy_error", "unmatched"))


def scores(
    arm: str, values: np.ndarray, seeds: list[int] | None = None, ids: str = "p", **facts: object
) -> Scores:
    problems = [f"{ids}{i}" for i in range(values.shape[1])]
    table = pd.DataFrame(values, index=seeds or range(1, len(values) + 1), columns=problems)
    families = {problem: f"family {i % 2}" for i, problem in enumerate(problems)}
    made = Scores(arm, "t1", "pass@1", 1.0, 0.5, table, families)
    return replace(made, **facts)


def judged(item: Scores, control: Scores | None, axis: str = "tokens", cost: float = 1000) -> Row:
    """The row of one comparison that is printed alone."""
    return judge_rows([compare_scores(item, control, axis=axis, cost=cost)])[0]


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(0).uniform(0.2, 0.6, (6, 40))


def test_all_columns_of_a_difference_are_of_the_problems_that_both_have(noise: np.ndarray) -> None:
    """The control has a family more."""
    families = [f"family {i % 2}" for i in range(30)] + ["family 2"] * 10
    names = [f"p{i}" for i in range(40)]
    control = scores("grpo", noise, sources=dict(zip(names, families, strict=True)))
    part = scores("e3", noise[:, :30] + 0.1)
    row = judged(part, control)
    same = judged(part, scores("grpo", noise[:, :30]))
    for column in ("difference", "difference_low", "improvement", "improvement_low"):
        assert row[column] == pytest.approx(same[column])


@pytest.mark.parametrize("names", [("family 1", "family 0"), ("all", "all")])
def test_families_of_problems_are_paired_whatever_the_arm_calls_them(
    noise: np.ndarray, names: tuple[str, str]
) -> None:
    """The arm, .1 better throughout, beats the control in either family, one hard and one easy."""
    hard = np.where(np.arange(40) % 2, -0.2, 0.3) + noise / 10
    control, arm = scores("grpo", hard + 0.3), scores("e3", hard + 0.4)
    renamed = {problem: names[int(of[-1])] for problem, of in arm.sources.items()}
    row = judged(replace(arm, sources=renamed), control)
    assert row["improvement"] == judged(arm, control)["improvement"] == 1.0


def test_a_control_of_two_seeds_leaves_one_degree_of_freedom() -> None:
    """As few seeds hardly know how seeds differ; every problem alike, so that seeds are all."""
    mine = np.repeat([[0.1], [0.2], [0.3], [0.4], [0.5]], 40, axis=1)
    control = scores("grpo", np.full((2, 40), 0.2), seeds=[8, 9])
    row = judged(scores("e3", mine), control)
    assert row["difference_df"] == 1
    assert row["against_seeds"] == 2


def test_what_seeds_make_of_the_variance_is_all_of_it_where_problems_are_alike() -> None:
    assert judged(scores("e3", np.repeat([[0.2], [0.5], [0.8]], 40, axis=1)), None)[
        "seed_share"
    ] == pytest.approx(1)
    alike = np.tile(np.linspace(0.1, 0.9, 40), (3, 1))
    assert judged(scores("e3", alike), None)["seed_share"] == 0


def test_a_row_has_the_statistics_of_its_tables(noise: np.ndarray) -> None:
    control = scores("grpo", noise)
    gain = 0.1 + 0.05 * np.random.default_rng(1).normal(size=noise.shape)
    row = judged(scores("e3", noise + gain), control)
    estimate = mean_over_seeds_and_problems(gain)
    paired = estimate.interval()
    assert row["value"] == pytest.approx((noise + gain).mean())
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(
        (paired.low, paired.high)
    )
    assert row["paired_seeds"] is True
    assert row["verdict"] == BETTER
    assert (row["seeds"], row["problems"], row["against"]) == (6, 40, "grpo t1")
    families = [
        np.stack([t[:, ::2].mean(axis=1), t[:, 1::2].mean(axis=1)], axis=1)
        for t in (noise + gain, noise)
    ]
    assert row["iqm"] == pytest.approx(interquartile_mean(families[0]))
    assert row["improvement"] == pytest.approx(probability_of_improvement(*families))
    assert row["p"] == row["p_adjusted"] == pytest.approx(estimate.p_value)
    assert row["detectable"] == pytest.approx(detectable_difference(estimate))
    assert row["by_seed"] == pytest.approx((noise + gain).mean(axis=1).tolist())


def test_arms_that_solve_nothing_are_known_by_their_problems_alone() -> None:
    nothing = np.zeros((3, 64))
    row = judged(scores("e3", nothing), scores("grpo", nothing))
    assert (row["value_low"], row["value_high"]) == pytest.approx((0, 0.0566), abs=1e-4)
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(
        (-0.0431, 0.0431), abs=1e-3
    )
    assert row["verdict"] == NEITHER


def test_the_control_itself_is_not_judged(noise: np.ndarray) -> None:
    row = judged(scores("grpo", noise), None)
    assert row["verdict"] is row["difference"] is row["improvement"] is row["against"] is None
    assert row["value_low"] < row["value"] < row["value_high"]


def test_other_seeds_are_not_paired(noise: np.ndarray) -> None:
    luck = np.linspace(0, 0.4, 6)[:, None]
    control, arm = scores("grpo", noise + luck), scores("e3", noise + luck - 0.01)
    paired = compare_scores(arm, control)
    assert paired["difference_high"] - paired["difference_low"] == pytest.approx(0)
    other = scores("e3", noise + luck - 0.01, seeds=[7, 8, 9, 10, 11, 12])
    row = judged(other, control)
    assert row["paired_seeds"] is False
    assert row["difference_high"] - row["difference_low"] > 0.1
    # Pairs are matched by seed, whatever the order of the rows.
    reordered = replace(arm, table=arm.table.iloc[::-1])
    assert compare_scores(reordered, control)["difference_low"] == paired["difference_low"]


def test_one_seed_has_intervals_over_problems_alone(noise: np.ndarray) -> None:
    control, arm = scores("grpo", noise), scores("e3", noise[:1] + 0.2)
    row = judged(arm, control)
    expected = mean_over_units(noise[0] + 0.2 - noise.mean(axis=0)).interval()
    assert (row["difference_low"], row["difference_high"]) == (expected.low, expected.high)
    assert row["iqm_low"] is None
    assert row["detectable"] is None


def test_only_problems_of_both_arms_are_compared(noise: np.ndarray) -> None:
    control = scores("grpo", noise[:, :30])
    row = judged(scores("e3", noise + np.where(np.arange(40) < 30, 0.1, 0.4)), control)
    assert row["difference"] == pytest.approx(0.1)
    header, (body,), note = comparison_cells([row])
    assert dict(zip(header, body, strict=True))["paired"] == "30"
    assert "Paired: problems that arm and control both have, which Δ, P(better) and p" in note
    assert note.endswith("6 seeds, 40 problems.")
    whole = judged(scores("e3", noise[:, :30]), scores("grpo", noise))  # which has all of them
    assert "paired_problems" not in whole


def test_arms_with_less_than_a_quarter_of_their_problems_in_common_are_refused(
    noise: np.ndarray,
) -> None:
    """The columns of the control are problems 0 to 39, those of the arm start later."""
    control = scores("grpo", noise)

    def starting(at: int) -> Scores:
        table = scores("e3", noise).table
        return replace(
            control, arm="e3", table=table.set_axis([f"p{i + at}" for i in range(40)], axis=1)
        )

    assert compare_scores(starting(30), control)["paired_problems"] == 10
    message = r"e3 and its control grpo were .* different problems; give .* \({} of 40 are alike\)"
    for start, alike in ((31, 9), (40, 0)):
        with pytest.raises(ValueError, match=message.format(alike)):
            compare_scores(starting(start), control)


def test_recorded_arms_are_compared_at_the_tokens_that_all_spent(
    arms: dict[str, list[Run]],
) -> None:
    rows = compare_arms(arms, control="grpo", ks=(1, 8))
    spent = common_cost([run for runs in arms.values() for run in runs], "tokens")
    assert {row["cost"] for row in rows} == {spent}
    keys = [(row["arm"], row["evaluation"], row["measure"]) for row in rows]
    assert len(set(keys)) == len(keys) == 3 * (3 + 2 + 3 + 3)
    assert [arm for arm, *_ in keys] == sorted((arm for arm, *_ in keys), key=list(arms).index)
    assert keys[:3] == [("grpo", "t1", m) for m in ("pass@1", "pass@8", "mean pass@1")]
    judged = {row["arm"] for row in rows if row["verdict"]}
    assert judged == {"ts_an", "e3"}


def test_a_control_that_does_not_exist_is_named(arms: dict[str, list[Run]]) -> None:
    with pytest.raises(ValueError, match="control='dapo' is no arm; there are grpo, ts_an, e3"):
        compare_arms(arms, control="dapo")


@pytest.mark.parametrize("cost", [-5.0, float("nan")])
def test_a_cost_below_0_or_none_is_refused(cost: float, arms: dict[str, list[Run]]) -> None:
    with pytest.raises(ValueError, match=r"cost=.* tokens: give a cost from 0 on, or \.inf for"):
        compare_arms(arms, control="grpo", cost=cost)


def test_the_table_says_what_speaks_against_a_verdict(noise: np.ndarray) -> None:
    control = scores("grpo", noise[:2], name="live")
    hotter = compare_scores(scores("e3", noise[:2] + 0.1, name="live", entropy=0.6), control)
    words = "entropies differ by -16.7 %"
    gap = {"entropy_gap": -1 / 6, "unmatched": words, "comparison": None, "p": None}
    close = {"entropy_gap": 0.001, "entropy_error": 0.012}
    rows = [compare_scores(control, None), hotter | gap, hotter | close]
    rows = judge_rows([row | {"cost": 1000.0} for row in rows])
    header, body, note = comparison_cells(rows)
    _, second, third = (dict(zip(header, line, strict=True)) for line in body)
    assert second["arm"] == "E3"
    assert second["Δ points"] == "+10.0 [+10.0, +10.0]"
    assert second["verdict"] == "none: entropies differ by -16.7 %"
    assert second["p"] == ""
    assert second["entropy / against"] == "0.6000 / 0.5000"
    assert third["verdict"] == "better (2 seeds, entropies known to 1.2 %)"
    assert third["p"] == "< .001"
    assert "1,000 tokens generated" in note
    assert "exploratory, since none was declared before the runs: 1 comparison)" in note
    assert "no verdict where these differ by more than 0.5 %" in note
    assert "With 2 seeds" in note
    markdown = comparison_markdown(rows)
    assert markdown.count("| E3 |") == 2
    assert markdown.endswith(note)
    assert note.endswith("2 seeds, 40 problems.")
    assert not {"seeds", "family"} & set(header)
    assert "better (2 seeds, entropies known to 1.2 %)" in comparison_text(rows)


def test_enough_seeds_at_equal_entropy_need_no_remark(noise: np.ndarray) -> None:
    control = scores("grpo", noise)
    rows = [judged(scores("e3", noise - 0.1), control, "steps", 24)]
    header, body, note = comparison_cells(rows)
    assert dict(zip(header, body[0], strict=True))["verdict"] == "worse"
    assert "24 rollout steps" in note
    assert "hardly knows" not in note
    fewer = judged(scores("ts", noise[:3]), control)
    header, body, _ = comparison_cells([*rows, fewer])
    assert [row[header.index("seeds")] for row in body] == ["6", "3"]
    least = judged(scores("ts", noise[:2]), control)
    assert "In rows of 2 seeds an interval hardly knows" in comparison_cells([*rows, least])[-1]


def test_verdicts_that_hang_on_the_problems_are_marked(
    noise: np.ndarray,
) -> None:
    """t = 4 of five seeds is p .016 with their four degrees of freedom, and times 4 .065."""
    row = judged(scores("e3", noise + 0.1), scores("grpo", noise))
    row |= {"difference": 0.1, "difference_error": 0.025, "seeds": 5, "p": 0.001}
    row |= {"p_adjusted": 0.004, "verdict": "better"}
    header, (body,), note = comparison_cells([row])
    assert dict(zip(header, body, strict=True))["verdict"] == "better†"
    assert note.endswith(" †: not distinguishable with the seeds' degrees of freedom alone.")
    assert "better†" in comparison_text([row])
    assert "better†" in comparison_markdown([row])
    assert "†" not in comparison_text([row | {"p_adjusted": 0.003}])


def test_a_table_of_several_families_marks_every_row(noise: np.ndarray) -> None:
    control = scores("grpo", noise)
    rows = [compare_scores(scores(arm, noise + 0.1), control, cost=9.0) for arm in ("e3", "ts")]
    header, body, note = comparison_cells(judge_rows(rows, {"primary": rows[:1]}))
    assert [row[header.index("family")] for row in body] == ["primary", "exploratory"]
    assert "declared family primary: 1 comparison; exploratory" in note


def test_no_rows_are_no_table() -> None:
    with pytest.raises(ValueError, match="validate first"):
        comparison_cells([])


def test_the_interval_of_an_interquartile_mean_is_within_what_a_share_can_be() -> None:
    two = np.array([[0.5] * 40, [0.6] * 40])  # two runs of which each is a tenth from the other
    row = compare_scores(scores("grpo", two), None)
    assert row["iqm"] == pytest.approx(0.55)
    assert 0 < row["iqm_low"] < 0.01
    assert 0.99 < row["iqm_high"] < 1
