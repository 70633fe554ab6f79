"""Families that a study declares: what is corrected for what, and what stays exploratory."""

from typing import Any

import numpy as np
import pytest

from e3rl.analysis.measures.comparison import compare_arms, compare_family
from e3rl.analysis.measures.declared import declared_rows
from e3rl.analysis.measures.families import Family, hangs_on_problems, judge_rows, read_families
from e3rl.analysis.measures.reaching import costs_to_reach
from e3rl.analysis.measures.subsets import compare_on_problems, start_pass_rates
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.comparison_table import comparison_cells, correction_note
from e3rl.statistics.interval import Estimate
from e3rl.statistics.power import detectable_difference

Arms = dict[str, list[Run]]
ASKED: dict[str, Any] = {
    "endpoints": [{"evaluation": "t1", "measure": "pass@1"}],
    "comparisons": [["ts_an", "grpo"], ["e3", "ts_an"]],
}

REACH = {"evaluation": "t1", "reach": 0.3}


def row(comparison: str | None, p: float | None, difference: float = 0.1) -> dict[str, Any]:
    return {
        "measure": "pass@1",
        "seeds": 5,
        "comparison": comparison,
        "p": p,
        "difference": None if comparison is None else difference,
        "difference_error": 0.02,
        "difference_df": 4.0,
    }


def test_exploratory_comparisons_are_corrected_for_all_that_are_printed() -> None:
    judged = judge_rows([row("a", 0.01), row("b", 0.03, -0.1), row("c", 0.2), row(None, None)])
    assert [each["p_adjusted"] for each in judged] == [0.03, 0.06, 0.2, None]
    assert [each["verdict"] for each in judged] == [
        *("better", "not distinguishable", "not distinguishable", None)
    ]
    assert {each["family"] for each in judged[:3]} == {"exploratory"}
    assert judged[0]["family_size"] == 3


def test_a_declared_family_is_corrected_for_itself_alone() -> None:
    declared = {"primary": [row("b", 0.03, -0.1), row("d", 0.02)]}  # d is printed nowhere
    judged = judge_rows([row("a", 0.01), row("b", 0.03, -0.1), row("c", 0.2)], declared)
    assert [each["family"] for each in judged] == ["exploratory", "primary", "exploratory"]
    assert [each["p_adjusted"] for each in judged] == [0.02, 0.04, 0.2]
    assert judged[1]["verdict"] == "worse"


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [
        ({"seeds": 1}, None),
        ({"seeds": 5, "against_seeds": 1}, None),  # the control's one says as little
        ({"seeds": 5, "against_seeds": 2}, "better"),
    ],
)
def test_of_one_seed_on_either_side_there_is_no_verdict(
    seeds: dict[str, int], verdict: str | None
) -> None:
    (judged,) = judge_rows([row("a", 0.01) | seeds])
    assert judged["verdict"] == verdict
    assert (judged["detectable"] is None) == (verdict is None)


@pytest.mark.parametrize(
    ("changed", "hangs"),
    [
        ({"p_adjusted": 0.004}, True),  # .016 x 4 = .065
        ({"p_adjusted": 0.003}, False),  # .016 x 3 = .048
        ({"p_adjusted": 0.06}, False),  # is open anyway
        ({"p_adjusted": None}, False),
        ({"p": float("nan"), "p_adjusted": float("nan")}, False),  # as a file has it
        ({"p_adjusted": 0.003, "against_seeds": 4}, True),  # 3 degrees: .028 x 3 = .084
        ({"p_adjusted": 0.003, "against_seeds": float("nan")}, False),
        ({"p_adjusted": 0.004, "seeds": 10}, False),  # 9 degrees: .0031 x 4 = .012
        ({"p": 0.0, "p_adjusted": 0.0, "family_size": 2, "looks": 2}, True),  # .016 x 2 x 2
        ({"p": 0.0, "p_adjusted": 0.0, "family_size": 3}, False),
        ({"p_adjusted": 0.004, "seeds": 1}, False),
    ],
)
def test_what_hangs_on_the_problems_is_open_with_seeds_alone(
    changed: dict[str, Any], hangs: bool
) -> None:
    """t = .1/.025 = 4 of five seeds: with their four degrees of freedom p is .0161."""
    about = row("a", 0.001) | {"difference_error": 0.025, "difference_df": 40.0}
    assert hangs_on_problems(about | changed) == hangs


def test_a_second_look_counts_every_p_twice() -> None:
    rows = [row("a", 0.01) | {"looks": 2}, row("b", 0.03, -0.1) | {"looks": 2}]
    judged = judge_rows([*rows, row("c", 0.04)], {"primary": rows})
    assert [each["p_adjusted"] for each in judged] == [0.04, 0.06, 0.04]  # 2 x .01 x 2, 2 x .03
    assert [each["verdict"] for each in judged] == ["better", "not distinguishable", "better"]
    expected = detectable_difference(Estimate(0.0, 0.02, 4.0), level=1 - 0.05 / 4)
    assert judged[0]["detectable"] == pytest.approx(expected)
    (never,) = judge_rows([row("a", 0.6) | {"looks": 2}])
    assert never["p_adjusted"] == 1.0


def test_the_looks_of_a_family_count_in_every_table_that_prints_its_comparisons() -> None:
    declared = {"primary": [row("a", 0.01) | {"looks": 2}, row("b", 0.03) | {"looks": 2}]}
    judged = judge_rows([row("a", 0.01), row("c", 0.04)], declared)
    assert [each["p_adjusted"] for each in judged] == [0.04, 0.04]  # 2 x .01 x 2, and once
    assert "looks" not in judged[1]


def test_a_declared_comparison_without_a_p_still_counts_for_the_correction() -> None:
    unmatched = row(None, None) | {"unmatched": "entropies differ by +1.0 %"}
    declared = [row("a", 0.02), row("b", 0.03), row("c", 0.04), unmatched]
    judged = judge_rows(declared, {"primary": declared})
    assert [each["p_adjusted"] for each in judged] == [0.08, 0.09, 0.09, None]  # 4 x .02, 3 x .03
    assert [each["family_size"] for each in judged] == [4, 4, 4, None]
    assert [each["verdict"] for each in judged][:3] == ["not distinguishable"] * 3


def test_each_row_is_judged_at_its_own_level() -> None:
    rows = [row("a", 0.04) | {"level": level} for level in (0.8, 0.95, 0.99)] + [row("b", 0.1)]
    judged = judge_rows(rows)
    assert [each["p_adjusted"] for each in judged] == [0.08, 0.08, 0.08, 0.1]  # 2 x .04
    assert [each["verdict"] for each in judged] == ["better", *["not distinguishable"] * 3]
    expected = detectable_difference(Estimate(0.0, 0.02, 4.0), level=1 - 0.2 / 2)
    assert judged[0]["detectable"] == pytest.approx(expected)
    assert hangs_on_problems(judged[0] | {"difference": 0.04})  # t = 2: p .116 x 2 = .23
    assert not hangs_on_problems(judged[0] | {"difference": 0.05})  # t = 2.5: p .067 x 2 = .13


def test_of_one_seed_there_is_no_verdict_however_small_its_p() -> None:
    (alone,) = judge_rows([row("a", 0.0001) | {"seeds": 1}])
    assert (alone["p_adjusted"], alone["verdict"], alone["detectable"]) == (0.0001, None, None)
    (two,) = judge_rows([row("a", 0.0001) | {"seeds": 2}])
    assert two["verdict"] == "better"


def test_a_comparison_that_is_printed_twice_counts_once() -> None:
    judged = judge_rows([row("a", 0.01), row("a", 0.01), row("b", 0.04)])
    assert [each["p_adjusted"] for each in judged] == [0.02, 0.02, 0.04]


def test_a_table_that_has_another_p_of_a_declared_comparison_is_refused() -> None:
    declared = {"primary": [row("a", 0.01), row("b", 0.03)]}
    message = r"'a' is declared in family primary with p = 0\.01, and a table has it with p = 0\.04"
    with pytest.raises(ValueError, match=message):
        judge_rows([row("a", 0.04)], declared)
    assert judge_rows([row("a", 0.01)], declared)[0]["p_adjusted"] == 0.02


def test_two_comparisons_of_one_name_are_refused_where_their_p_differ() -> None:
    with pytest.raises(ValueError, match=r"called 'a'.*p = 0\.01 and 0\.04.*names that tell"):
        judge_rows([row("a", 0.01), row("a", 0.04)])


def test_detectable_is_what_the_strictest_step_of_the_verdict_finds() -> None:
    judged = judge_rows([row(name, 0.5) for name in "abcde"])
    expected = detectable_difference(Estimate(0.0, 0.02, 4.0), level=1 - 0.05 / 5)
    assert judged[0]["detectable"] == pytest.approx(expected)
    alone = judge_rows([row("a", 0.5)])[0]["detectable"]
    assert alone == pytest.approx(0.02 * 3.7611, abs=1e-5)
    assert judged[0]["detectable"] > 1.5 * alone


def test_rows_without_a_measure_of_success_get_no_verdict() -> None:
    metric = {"metric": "policy/entropy", "comparison": "a", "p": 0.01, "difference": -0.1}
    (judged,) = judge_rows([metric])
    assert judged["p_adjusted"] == 0.01
    assert "verdict" not in judged
    assert judge_rows([{"arm": "grpo", "tokens": 3.0}]) == [{"arm": "grpo", "tokens": 3.0}]


def test_a_comparison_belongs_to_one_family() -> None:
    with pytest.raises(ValueError, match="a is in the families one and two"):
        judge_rows([], {"one": [row("a", 0.1)], "two": [row("a", 0.1)]})


def test_families_are_read_and_know_their_size(arms: Arms) -> None:
    greedy = {"evaluation": "greedy", "measure": "pass@1"}
    both = {**ASKED, "endpoints": [*ASKED["endpoints"], greedy]}
    (family,) = read_families({"primary": both}, arms)
    assert (family.name, family.axis, len(family)) == ("primary", "tokens", 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"comparisons": [["dapo", "grpo"]]},
            "primary: no recorded arm 'dapo'; there are grpo, ts_an, e3",
        ),
        (
            {"comparisons": [["e3", "ppo"]]},
            "primary: no recorded arm 'ppo'; there are grpo, ts_an, e3",
        ),
        ({"comparisons": []}, "compares nothing"),
        ({"arms": ["e3"]}, "must have endpoints and comparisons"),
        ({"comparisons": [["e3", "e3"]]}, "primary: e3 beside itself: name two arms"),
        (
            {"comparisons": [[["e3", "ts_an"], ["ts_an", "e3"]]]},
            "primary: e3&ts_an beside itself: name two arms",
        ),
        (
            {"comparisons": [*ASKED["comparisons"], ["ts_an", "grpo"]]},
            r"primary: comparison \['ts_an', 'grpo'\] is there twice: drop one",
        ),
        (
            {"comparisons": [[["e3", "ts_an"], "grpo"], [["ts_an", "e3"], "grpo"]]},
            r"comparison \['e3&ts_an', 'grpo'\] is there twice",
        ),
        (
            {"endpoints": ASKED["endpoints"] * 2},
            r"primary: endpoint \['t1', 'pass@1'\] is there twice: drop one",
        ),
        ({"endpoints": [REACH, REACH]}, r"endpoint \['t1', 0\.3\] is there twice"),
        ({"looks": 0}, "primary: looks=0 is to be a whole number from 1 on"),
        ({"looks": True}, "looks=True is to be"),
        ({"comparisons": [[["e3", "ppo"], "grpo"]]}, "no recorded arm 'ppo'"),
        ({"comparisons": [[["e3"], "grpo"]]}, r"a mean of \['e3'\]: name two arms or more"),
        ({"comparisons": [[["e3", "e3"], "grpo"]]}, "each once"),
        (
            {
                "comparisons": [[["e3", "ts_an"], "grpo"]],
                "endpoints": [{"evaluation": "live", "measure": "pass@1"}],
            },
            "has no entropy to be matched at",
        ),
        (
            {"comparisons": [[["e3", "ts_an"], "grpo"]], "at_equal_entropy": True},
            "has no entropy to be matched at",
        ),
        ({"untrained": [0.5, 0.1]}, r"untrained=\[0.5, 0.1\]: give shares, the lower first"),
        ({"untrained": [0, 10]}, r"untrained=\[0, 10\]: give shares"),
        ({"untrained": 0.5}, "primary: untrained=0.5"),
        ({"endpoints": [{"evaluation": "t1", "reach": 40}]}, "give {evaluation: t1, reach: 0.4}"),
        ({"endpoints": [{"reach": 0.4}]}, "give {evaluation: t1, reach: 0.4}"),
        ({"endpoints": [*ASKED["endpoints"], REACH]}, "a family of their own"),
        ({"endpoints": [REACH], "untrained": [0, 1]}, "a family of their own, on all problems"),
        ({"endpoints": [REACH], "at_equal_entropy": True}, "not at equal entropy"),
        (
            {"endpoints": [REACH], "comparisons": [[["e3", "ts_an"], "grpo"]]},
            "e3&ts_an is a mean, which has no curve",
        ),
    ],
)
def test_a_family_of_arms_that_are_not_there_is_an_early_error(
    arms: Arms, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_families({"primary": {**ASKED, **changed}}, arms)
    with pytest.raises(ValueError, match="name it otherwise"):
        read_families({"exploratory": ASKED}, arms)


def test_a_pair_may_be_compared_either_way(arms: Arms) -> None:
    """At equal entropy the second arm is read at the first one's, so these are two questions."""
    both = {**ASKED, "comparisons": [["e3", "grpo"], ["grpo", "e3"]]}
    assert len(read_families({"primary": both}, arms)[0]) == 2


def test_the_looks_of_a_family_are_said_below_its_table(arms: Arms) -> None:
    (family,) = read_families({"primary": {**ASKED, "looks": 2}}, arms)
    rows = compare_family(arms, family)
    note = correction_note(judge_rows(rows, {"primary": rows}))
    assert (
        note == "p after Holm's correction (declared family primary: 2 comparisons, times 2 looks)."
    )


def test_a_family_compares_any_two_arms_as_tables_do(arms: Arms) -> None:
    (family,) = read_families({"primary": ASKED}, arms)
    rows = compare_family(arms, family)
    assert [(each["arm"], each["against"]) for each in rows] == [
        *(("ts_an", "grpo t1"), ("e3", "ts_an t1"))
    ]
    (same,) = [
        each
        for each in compare_arms(arms, "grpo", ks=(1,))
        if each["comparison"] == rows[0]["comparison"]
    ]
    assert (same["difference"], same["p"]) == (rows[0]["difference"], rows[0]["p"])


def test_an_endpoint_that_was_not_measured_is_named(arms: Arms) -> None:
    family = Family("primary", (("t2", "pass@1"),), (("e3", "grpo"),))
    with pytest.raises(ValueError, match=r"no pass@1 of t2; e3 has .*t1 pass@1"):
        compare_family(arms, family)


def test_a_side_in_brackets_is_the_mean_of_its_arms(arms: Arms) -> None:
    """The mean of two arms differs from a third by the mean of what each differs by."""
    mean = [["ts_an", "e3"], "grpo"]
    single = [["ts_an", "grpo"], ["e3", "grpo"]]
    asked = {"mean": {**ASKED, "comparisons": [mean]}, "single": {**ASKED, "comparisons": single}}
    (whole,), parts = (compare_family(arms, family) for family in read_families(asked, arms))
    assert whole["difference"] == pytest.approx(sum(row["difference"] for row in parts) / 2)
    assert whole["value"] == pytest.approx(sum(row["value"] for row in parts) / 2)
    assert whole["by_seed"] == pytest.approx(np.mean([row["by_seed"] for row in parts], axis=0))
    assert whole["p"] not in {row["p"] for row in parts}
    assert whole["iqm"] is None
    assert whole["improvement"] is None
    cells = comparison_cells(judge_rows([whole], {"mean": [whole]}))
    (texts,) = cells.body
    assert "mean of GRPO + TS + AN and E3" in texts
    assert "grpo t1" in texts
    assert "IQM" not in cells.note


def test_a_mean_of_arms_with_other_seeds_is_refused(arms: Arms) -> None:
    fewer = {**arms, "e3": arms["e3"][:1]}
    (family,) = read_families({"a": {**ASKED, "comparisons": [[["ts_an", "e3"], "grpo"]]}}, fewer)
    with pytest.raises(ValueError, match=r"mean of ts_an&e3: .* same seeds: ts_an 1, 2; e3 1"):
        compare_family(fewer, family)


def test_a_family_of_some_problems_is_judged_as_declared_on_these_alone(arms: Arms) -> None:
    """As the table of these problems has it, which then is of the family and no more."""
    rates = start_pass_rates(arms)
    hard = [0.0, float(rates.median())]
    (family,) = read_families({"hard": {**ASKED, "untrained": hard}}, arms)
    declared = declared_rows(arms, family)
    assert [each["problems"] for each in declared] == [int((rates <= hard[1]).sum())] * 2
    printed = [
        each
        for each in compare_on_problems(
            arms, "grpo", hard, ks=(1,), evaluations=["t1"], measures=["pass@1"]
        )
        if each["arm"] == "ts_an"
    ]
    assert [(x["comparison"], x["p"], x["subset"]) for x in printed] == [
        (x["comparison"], x["p"], x["subset"]) for x in declared[:1]
    ]
    (whole,) = read_families({"whole": ASKED}, arms)
    families = {"hard": declared, "whole": declared_rows(arms, whole)}
    judged = judge_rows([*printed, *families["whole"]], families)
    assert [each["family"] for each in judged] == ["hard", "whole", "whole"]
    first, second = (each["p"] for each in declared)
    expected = 2 * first if first <= second else max(2 * second, first)
    assert judged[0]["p_adjusted"] == min(1.0, expected)


def test_a_family_of_accuracies_to_reach_is_what_its_table_prints(arms: Arms) -> None:
    rates = [0.35, 0.4]
    ends = [{"evaluation": "t1", "reach": target} for target in rates]
    asked = {"endpoints": ends, "comparisons": [["e3", "grpo"]], "axis": "rollouts", "looks": 2}
    (family,) = read_families({"rollouts_to": asked}, arms)
    assert len(family) == 2
    declared = declared_rows(arms, family)
    assert [(each["arm"], each["target"], each["looks"]) for each in declared] == [
        ("e3", target, 2) for target in rates
    ]
    table = costs_to_reach(arms, "grpo", rates)
    judged = judge_rows(table, {"rollouts_to": declared})
    found = {each["comparison"]: each["family"] for each in judged if each["comparison"]}
    own = {each["comparison"] for each in declared if each["comparison"]}
    assert own
    assert found == {name: "rollouts_to" if name in own else "exploratory" for name in found}
    assert all(each.get("looks") == 2 for each in judged if each["comparison"] in own)
