"""What pages of documentation say of studies is what their tables hold."""

import json
import re
import runpy

import numpy as np
import pandas as pd
import pytest

from computed_values import csv, one, with_interval
from e3rl.analysis.measures.families import hangs_on_problems
from pages import ROOT
from test_readme import STUDIED, flat

STUDIES = ROOT / "experiments"


def page(name: str) -> str:
    return flat((ROOT / name).read_text(encoding="utf-8"))


def test_the_budgets_of_the_older_task_are_said_as_they_were_judged() -> None:
    table = csv("rollout_budget", "accuracy")
    assert not (table["verdict"] == "better").any()
    at_one = table.query("evaluation == 't1' and measure == 'pass@1'").set_index("arm")
    verdicts = at_one["verdict"].dropna().to_dict()
    assert {arm for arm, verdict in verdicts.items() if verdict == "worse"} == {"hora"}
    words = f"in pass@1 at T = 1, {with_interval(at_one.loc['hora'].to_dict(), 'difference')}"
    assert f"{words} (open with the degrees of freedom of the five seeds alone)" in flat(STUDIED)
    assert hangs_on_problems(at_one.loc["hora"].to_dict())
    for k in (16, 64):
        told = table.query(f"evaluation == 't1' and measure == 'pass@{k}'")["verdict"].dropna()
        assert set(told) == {"not distinguishable"}


def test_what_the_studies_show_says_what_entropies_there_were() -> None:
    text = flat(STUDIED)
    for arm, share, words in (
        ("smollm2_grpo", 0.2, "GRPO loses four fifths of its entropy"),
        ("smollm2_ts", 0.9, "and the schedule holds the sampler's"),
    ):
        first, *_, last = entropies("smollm2_schedules", arm)
        assert last / first == pytest.approx(share, abs=0.03)
        assert words in text
    first, *_, last = entropies("entropy_control", "ts_an")
    assert last / first == pytest.approx(0.9, abs=0.01)
    assert "annealing lets it end at nine tenths" in text
    for arm in ("ts", "ts_an"):
        row = one("entropy_control", "accuracy", arm=arm, evaluation="t1", measure="pass@1")
        assert f"{100 * row['difference']:.1f}" == "1.2"
        assert row["p_adjusted"] < 0.05
    row = one("entropy_control", "accuracy", arm="ts", evaluation="t1", measure="pass@1")
    assert f"ends {with_interval(row)} points of pass@1 above plain GRPO" in text


def entropies(study: str, arm: str) -> list[float]:
    table = pd.read_csv(STUDIES / study / "results" / "entropy.csv")
    return table[table["arm"] == arm]["value"].tolist()


def test_no_rule_of_the_shoot_out_is_better_and_what_five_seeds_find_is_said() -> None:
    tables = ("budgets", "budgets_many_tries", "exploration", "exploration_many_tries")
    found = {
        name: pd.read_csv(STUDIES / "carries_shootout" / "results" / f"{name}.csv")
        for name in tables
    }
    assert not any((table["verdict"] == "better").any() for table in found.values())
    assert len(found["budgets"]) + len(found["exploration"]) == 24
    assert "24 other rules, none of them tuned, none is better" in flat(STUDIED)
    finds = {name: found_by_five_seeds(rows) for name, rows in found.items()}
    assert 7 < finds["budgets"] < 8
    assert "from 7 to 8 points on" in page("experiments/carries_shootout/README.md")
    assert (round(min(finds.values())), round(max(finds.values()))) == (8, 12)
    assert "which find differences of 8 to 12 points" in flat(STUDIED)


def found_by_five_seeds(rows: pd.DataFrame) -> float:
    """Points that a family's seeds find by the mean of its squared standard errors; what a row
    finds is its error times one factor, for rows of equal freedom. Without the arm of which one
    seed lost the task."""
    rows = rows[rows["arm"] != "er_strong"]
    pooled = (rows["difference_error"] ** 2).mean() ** 0.5
    return float(100 * pooled * (rows["detectable"] / rows["difference_error"]).median())


def test_where_intervals_are_less_sure_than_they_say_is_said() -> None:
    text = page("docs/comparing_arms.md")
    plain = json.loads((STUDIES / "coverage" / "results.json").read_text())
    shares = [100 * row["covered"] for row in plain if row["n_seeds"] in (5, 10)]
    assert f"{min(shares):.0f} to {max(shares):.0f} of 100 do, of every measure" in text
    fitted = json.loads((STUDIES / "coverage" / "studies.json").read_text())
    for luck, measures, words in (
        ("normal", None, "problems and rollouts, {} to {} of 100 do"),
        (
            "failures",
            ("pass@1", "pass@16"),
            "intervals of shares hold the truth in {} to {} of 100",
        ),
        ("failures", ("IQM",), "of IQM in {} to {}"),
    ):
        held = [
            100 * row["covered"]
            for row in fitted
            if row["luck"] == luck and (measures is None or row["measure"] in measures)
        ]
        assert words.format(f"{min(held):.0f}", f"{max(held):.0f}") in text
    lost = [r for r in fitted if r["luck"] == "failures" and r["measure"].startswith("Δ")]
    assert min(row["covered"] for row in lost) >= 0.97
    assert "those of differences still in 97 and more" in text


def test_far_tails_are_said_as_they_are_drawn() -> None:
    rates = runpy.run_path(str(STUDIES / "coverage" / "tails.py"))["tail_rates"]
    worst = {n: [rates(n, share)[-1] for share in (0.0, 0.3, 0.6, 0.9)] for n in (3, 5, 10)}
    words = (
        f"comes {min(worst[10]):.1f} to {max(worst[10]):.1f} times as often as it says with 10 "
        f"seeds, {min(worst[5]):.1f} to {max(worst[5]):.1f} times with 5 and {min(worst[3]):.1f} "
        f"to {max(worst[3]):.1f} times with 3"
    )
    assert words in page("experiments/coverage/README.md")
    words = (
        f"up to {max(worst[10]):.1f} times as frequent as it says, with 5 up to "
        f"{max(worst[5]):.1f} times, with 3 up to {max(worst[3]):.0f} times"
    )
    assert words in page("docs/comparing_arms.md")


def by_seeds_alone(study: str, name: str) -> pd.Series:
    """p of a declared family after Holm's correction, by arm and what it is compared with, with the
    degrees of freedom of its seeds alone."""
    from e3rl.statistics.holm import adjust_holm
    from e3rl.statistics.student import t_p_value

    table = pd.read_csv(STUDIES / study / "results" / f"{name}.csv")
    t = table["difference"] / table["difference_error"]
    p = adjust_holm([t_p_value(*each) for each in zip(t, table["seeds"] - 1, strict=True)])
    looks = table.get("looks", 1)
    index = pd.MultiIndex.from_frame(table[["arm", "against"]])
    return pd.Series(np.minimum(1, np.array(p) * looks)).set_axis(index)


def test_the_ledger_marks_the_declared_verdicts_that_hang_on_problems() -> None:
    module = runpy.run_path(str(STUDIES / "claims.py"))
    marked = []
    for test in (test for claim in module["load_ledger"]()["claims"] for test in claim["tests"]):
        row = module["find_row"](test["study"], test["table"], test["row"])
        if row.get("family") in (np.nan, None, "exploratory") or module["decide"](test) == "open":
            continue
        p = by_seeds_alone(test["study"], test["table"])[row["arm"], row["against"]]
        assert module["hangs_on_problems"](test) == (p >= 0.05), test
        marked.append(p >= 0.05)
    assert len(marked) > sum(marked) > 0


def test_what_seeds_alone_leave_of_the_policies_of_the_older_task_is_said() -> None:
    policies = page("experiments/arithmetic_policies/README.md")
    p = by_seeds_alone("arithmetic_policies", "pass_at_16")
    hotter, ts = (f"{p[arm].item():.3f}".removeprefix("0") for arm in ("hotter", "ts"))
    assert (
        f"in pass@16 and corrected, {hotter} for `hotter` and {ts} for `ts`, and no other"
        in policies
    )
    assert (by_seeds_alone("arithmetic_policies", "pass_at_1") > 0.05).all()


def test_what_would_not_stand_if_two_looks_counted_is_said() -> None:
    text = page("experiments/carries_breadth/README.md")
    found = {}
    for name in ("pass_at_16", "pass_at_64", "pass_at_1"):
        table = pd.read_csv(STUDIES / "carries_breadth" / "results" / f"{name}.csv")
        better = table[(table["verdict"] == "better") & (2 * table["p_adjusted"] >= 0.05)]
        found |= {(name, row["arm"]): 2 * row["p_adjusted"] for row in better.to_dict("records")}
    assert found.keys() == {("pass_at_16", "positive"), ("pass_at_64", "maxrl")}
    one, other = (f"{p:.3f}".removeprefix("0") for p in found.values())
    assert f"`positive` in pass@16 (p {one}) and `maxrl` in pass@64 (p {other}) would be" in text


def test_what_the_schedules_protocol_says_of_data_and_temperatures_is_so() -> None:
    """Products whose factors training has exchanged, and what the older runs sampled at."""
    from e3rl.analysis.sources.runs import group_by_arm, load_runs
    from e3rl.data.arithmetic import arithmetic_problems

    def ordered(prompt: str) -> str:
        return re.sub(r"(\d+)\*(\d+)", lambda m: "*".join(sorted(m.groups())), prompt)

    text = page("experiments/arithmetic_schedules/README.md")
    known = {ordered(problem.prompt) for problem in arithmetic_problems("train", 2048)}
    validation = [problem.prompt for problem in arithmetic_problems("validation", 1024)]
    twins = sum(ordered(prompt) in known for prompt in validation)
    assert f"at least {twins} of these are products" in text
    assert {x.prompt for x in arithmetic_problems("validation", 256)} <= set(validation)
    runs = group_by_arm(load_runs(STUDIES / "runs"))["ts"]
    taus = np.array([run.train["rollout/temperature"] for run in runs]).mean(axis=0)
    assert f"came to {taus.mean():.2f} on average over all steps" in text
    assert f"to {taus[20:115].mean():.2f} from step 20 to 115" in text


def test_how_often_the_complete_method_gains_pass_at_16_is_counted() -> None:
    """Of the declared families on carries that ask it, each less GRPO at T = 1."""
    tables = {
        "carries_core": "many_tries",
        "carries_confirmation": "many_tries",
        "carries_tuned": "many_tries",
        "carries_first_policies": "pass_at_16",
        "carries_other_problems": "pass_at_16",
        "carries_four_steps": "pass_at_16",
        "carries_other_validation": "pass_at_16",
        "carries_budget_constants": "breadth",
        "carries_fresh_parts": "pass_at_16",
    }
    asked = "arm == 'e3' and measure == 'pass@16' and against in ('grpo', 'grpo t1')"
    told = [csv(study, table).query(asked)["verdict"].item() for study, table in tables.items()]
    assert (told.count("better"), told.count("not distinguishable")) == (3, 6)
    said = "gains pass@16, as its budget alone does, in three of nine declared families, and is"
    assert said in flat(STUDIED)
    assert "open in six; the three are of two sets of runs" in flat(STUDIED)
