"""What README says is true, its commands, links, tree and numbers, and those of docs/results.md."""

import re
import subprocess

import pandas as pd
import pytest

from computed_values import with_interval
from e3rl.analysis.sources.runs import load_runs
from e3rl.analysis.tables.arm_table import arm_evaluations, arm_rows
from pages import ROOT, unproven
from test_architecture import ROOMS

README = (ROOT / "README.md").read_text(encoding="utf-8")
STUDIED = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
CORE = ROOT / "experiments" / "carries_core" / "results"


def test_a_newcomer_reads_it_in_one_go() -> None:
    assert len(README.splitlines()) <= 140
    assert "|---|" not in README  # tables are in the studies


@pytest.mark.end_to_end
def test_every_command_would_start() -> None:
    assert unproven(README) == []


def test_links_of_tracked_pages_lead_to_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    dead = [
        f"{page}: {link}"
        for page in listed.stdout.split()
        for link in re.findall(r"\]\(([^)#\s]+)\)", (ROOT / page).read_text(encoding="utf-8"))
        if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert dead == []


def test_the_tree_has_every_room() -> None:
    tree = README.split("\n## What lives where\n")[1].split("```")[1]
    shown = set(re.findall(r"(?m)(?:^  |  )(\w+)/", tree))
    folders = {room.split(".")[0] for room in ROOMS if (ROOT / "src" / "e3rl" / room).is_dir()}
    assert shown == folders | {"analysis"}


def flat(text: str) -> str:
    """Without line breaks, and with the words of links alone."""
    return re.sub(r"\s+", " ", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text))


RESULTS = (  # study, table, arm, the words before and after its number, seeds, whether it is told
    ("arithmetic_schedules", "primary", "ts", "TS is {} above it in pass@1", 5, True),
    ("arithmetic_schedules", "primary", "hot", "T = 1.2 just as well: {}.", 5, True),
    ("arithmetic_policies", "pass_at_1", "ts", "there, TS has {} of pass@1, open", 5, False),
    ("arithmetic_policies", "pass_at_16", "ts", "pass@1, open, and {} of pass@16", 5, True),
)


@pytest.mark.parametrize(
    ("text", "study", "table", "arm", "words", "seeds", "told"),
    [(flat(STUDIED), *each) for each in RESULTS],
)
def test_the_results_are_those_of_the_studies(
    text: str, study: str, table: str, arm: str, words: str, seeds: int, told: bool
) -> None:
    found = pd.read_csv(ROOT / "experiments" / study / "results" / f"{table}.csv")
    found = found[found["against"].str.startswith("grpo ")]
    (row,) = found[found["arm"] == arm].to_dict("records")
    p = f"{row['p_adjusted']:.3f}".removeprefix("0")
    assert words.format(with_interval(row, "difference"), p=p) in text
    assert (row["p_adjusted"] < 0.05) == told
    assert row["seeds"] == seeds
    assert row["problems"] == 1024 or isinstance(row.get("subset"), str)


@pytest.mark.parametrize(
    ("study", "table", "arm", "against", "words", "told"),
    [
        (
            *("carries_fresh_advantages", "pass_at_16", "maxrl", "grpo t1"),
            *("six fresh sets: {} over GRPO and", True),
        ),
        (
            *("carries_fresh_advantages", "beside_budget", "maxrl", "budget t1"),
            *("over GRPO and {} over the budget", True),
        ),
        (
            *("carries_fresh_advantages", "pass_at_1", "maxrl", "grpo t1"),
            *("the budget, with {} of pass@1 in all", False),
        ),
        (
            *("carries_fresh_advantages", "easy", "maxrl", "grpo t1"),
            *("of pass@1 in all and {} on easy problems.", True),
        ),
        (
            *("carries_fresh_parts", "schedule", "ts_an&e3", "grpo&budget t1"),
            *("cooling schedule lowers pass@1**, {} (p .044), declared", True),
        ),
        (
            *("carries_small_batches", "one_step", "grpo", "one_step t1"),
            *("a batch add {} of pass@1 at equal tokens", True),
        ),
        (
            *("carries_four_steps_fresh", "equal_tokens"),
            *("budget_tuned&both_tuned", "grpo&cool_tuned t1"),
            *("declared: pass@16 by {} on eight fresh sets of training problems", True),
        ),
    ],
)
def test_what_qualifies_a_line_is_what_its_study_has(
    study: str, table: str, arm: str, against: str, words: str, told: bool
) -> None:
    found = pd.read_csv(ROOT / "experiments" / study / "results" / f"{table}.csv")
    (row,) = found[(found["arm"] == arm) & (found["against"] == against)].to_dict("records")
    assert words.format(with_interval(row, "difference")) in flat(README)
    assert (row["p_adjusted"] < 0.05) == told


def test_the_halves_of_a_budget_are_said_as_they_were_found() -> None:
    results = ROOT / "experiments" / "carries_factorial" / "results"
    both = pd.read_csv(results / "sixteen_seeds.csv").to_dict("records")
    assert {(each["seeds"], each["verdict"]) for each in both} == {(16, "better")}
    assert "Both count, by all sixteen seeds together" in flat(STUDIED)
    told = [
        pd.read_csv(results / f"{name}.csv")["p_adjusted"].item() < 0.05
        for name in ("rollouts", "weight")
    ]
    assert told == [True, False]
    assert "that one is told in a study and the other is not does not show" in flat(STUDIED)


def test_where_grpo_ends_from_other_first_policies_is_what_their_page_has() -> None:
    table = pd.read_csv(ROOT / "experiments" / "carries_first_policies" / "results/by_policy.csv")
    ends = 100 * table[table["seed"].notna()]["after"]
    assert len(ends) == 10
    assert f"end between {ends.min():.1f} and {ends.max():.1f} % of pass@1" in flat(STUDIED)


def test_no_loss_of_e3_over_all_problems_outlives_the_last_step_in_one_study() -> None:
    table = pd.read_csv(ROOT / "experiments" / "equal_cost" / "results" / "comparisons.csv")
    others = table.query("arm == 'e3' and against == 'grpo t1' and family != 'easy'")
    told = others[others["own_p_adjusted"] < 0.05]
    assert set(told["page"]) == {"carries_core", "carries_first_policies"}
    assert (others["end_p_adjusted"] > 0.05).all()
    assert "its loss of pass@1 is told in two studies, and on average" in flat(STUDIED)


def test_what_rules_do_without_the_weight_of_their_rollouts_is_said() -> None:
    results = ROOT / "experiments" / "carries_more_weights" / "results"
    (mean,) = pd.read_csv(results / "weight.csv").to_dict("records")
    assert f"until a prompt is mixed) {with_interval(mean, 'difference')}: open" in flat(STUDIED)
    assert mean["verdict"] == "not distinguishable"
    found = pd.read_csv(results / "pass_at_1.csv").query("arm == 'balanced_by_prompt'")
    (row,) = found.to_dict("records")
    assert f"have {with_interval(row, 'difference')} of pass@1 without it" in flat(STUDIED)
    assert row["verdict"] == "better"


def test_what_all_seeds_say_together_is_what_their_page_has() -> None:
    results = ROOT / "experiments" / "carries_all_seeds" / "results"
    sets = pd.read_csv(results / "sets.csv")
    three = pd.read_csv(results / "four_sets.csv")
    beside = three[three["against"] == "grpo t1"].set_index(["arm", "measure"])
    assert 0.05 / 3 < beside.loc[("e3", "pass@16"), "p_adjusted"] < 0.05
    assert beside.loc[("ts_an", "pass@1"), "verdict"] == "worse"
    end = pd.read_csv(results / "after_as_many_steps.csv").set_index("arm")["p_adjusted"]
    assert (3 * end[["ts_an", "e3"]] > 0.05).all()
    assert "the earlier looks at the 35 seeds would leave their pass@16 and their loss" in flat(
        STUDIED
    )
    (halves,) = sets.query("arm == 'budget&budget_by_prompt' and set == 'all'").to_dict("records")
    p = f"(p .{1000 * halves['p_of_agreement']:03.0f}, uncorrected"
    assert f"disagree about the rollouts' half {p}" in flat(STUDIED)
    spread = pd.read_csv(results / "spread.csv").set_index("set")
    policies, seeds = (
        "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * spread.loc[page, ["sd", "sd_low", "sd_high"]]))
        for page in ("carries_first_policies", "carries_core")
    )
    assert f"of {policies} points, where ten seeds of one policy have {seeds}" in flat(STUDIED)


def test_what_e3_has_without_its_weight_is_said_as_it_was_judged() -> None:
    results = ROOT / "experiments" / "carries_parts" / "results"
    table = pd.read_csv(results / "easy.csv").set_index("against")
    e3, schedule = (table.loc[f"{arm} t1"].to_dict() for arm in ("e3", "ts_an"))
    p = f"{e3['p_adjusted']:.3f}".removeprefix("0")
    said = f"has {with_interval(e3, 'difference')} of pass@1 on easy problems beside E3 (p {p}; at"
    assert said in flat(STUDIED)
    assert f"and {with_interval(schedule, 'difference')} beside its schedule" in flat(STUDIED)
    assert (e3["verdict"], schedule["verdict"]) == ("better", "not distinguishable")


@pytest.mark.parametrize(
    ("arm", "measure", "words", "sets", "told"),
    [
        ("budget", "pass@16", "raise pass@16, by {} after as many steps", 11, True),
        (
            "budget",
            "pass@1, easy",
            "cost pass@1 on easy problems, {} at equal tokens, on average",
            8,
            True,
        ),
        ("e3", "pass@16", "cools the sampler, has {} of pass@16 as well", 8, True),
        ("e3", "pass@1", "and {} of pass@1 at equal tokens, on average over eight", 8, True),
        ("ts_an", "pass@1", "over six sets the schedule alone has {}, open", 6, False),
    ],
)
def test_averages_over_sets_are_said_as_they_were_judged(
    arm: str, measure: str, words: str, sets: int, told: bool
) -> None:
    table = pd.read_csv(ROOT / "experiments" / "carries_across_sets" / "results" / "averages.csv")
    (row,) = table[(table["arm"] == arm) & (table["measure"] == measure)].to_dict("records")
    assert words.format(with_interval(row, "difference")) in flat(README).replace("**", "")
    assert (row["p_adjusted"] < 0.05, row["seeds"]) == (told, sets)
    (at_the_end,) = table.query("arm == 'e3' and measure == 'pass@1 at the end'")["p_adjusted"]
    assert at_the_end > 0.05


def test_every_set_has_the_sign_that_is_said_of_it() -> None:
    table = pd.read_csv(ROOT / "experiments" / "carries_across_sets" / "results" / "sets.csv")
    budget = table[table["arm"] == "budget"].groupby("measure")["difference"]
    assert (budget.min()["pass@16"] > 0, budget.max()["pass@1, easy"] < 0) == (True, True)
    assert budget.size()[["pass@16", "pass@1, easy"]].tolist() == [11, 8]
    assert "by its estimate on every set where it was read: eleven, and eight." in flat(STUDIED)


def test_what_the_budget_has_beside_a_hotter_sampler_is_said_as_it_was_judged() -> None:
    results = ROOT / "experiments" / "carries_hotter" / "results"
    (at_one,), (at_best,) = (
        pd.read_csv(results / f"{name}.csv").to_dict("records") for name in ("at_one", "at_best")
    )
    open_ = with_interval(at_one, "difference")
    assert f"sampled at T = 1.4, the best of seven, {open_}." in flat(README)
    assert "and with each at its best temperature, the budget has more" in flat(STUDIED)
    assert (at_one["verdict"], at_best["verdict"]) == ("not distinguishable", "better")


@pytest.mark.parametrize("measure", ["pass@1", "pass@16"])
def test_what_grpo_learns_is_what_the_bed_has(measure: str) -> None:
    bed = (ROOT / "experiments" / "carries_bed" / "README.md").read_text(encoding="utf-8")
    table = bed.split("<!-- table: ten_seeds -->")[1].split("<!-- end -->")[0]
    (gain,) = re.findall(rf"^\| {measure} \|[^|]+\|[^|]+\| (\S+) (\[.+\]) \|$", table, flags=re.M)
    assert all(" ".join(gain) in flat(text) for text in (README, STUDIED))


def test_what_a_hotter_sampler_does_to_the_untrained_policy_is_what_was_sampled() -> None:
    bed = (ROOT / "experiments" / "carries_bed" / "README.md").read_text(encoding="utf-8")
    table = bed.split("<!-- table: hotter -->")[1].split("<!-- end -->")[0]
    (hot,) = re.findall(r"^\| 1.3 \| .+$", table, flags=re.M)
    cells = [cell.strip() for cell in hot.split("|")]
    assert f"of that in pass@16, {cells[6]}, and loses {cells[4]} of pass@1" in flat(STUDIED)
    gained = bed.split("<!-- table: ten_seeds -->")[1].split("| pass@16 |")[1].split("|")[2]
    assert float(cells[6].split()[0]) / float(gained.split()[0]) == pytest.approx(1 / 5, abs=0.02)


def test_the_recorded_control_is_the_last_row_of_the_first_table() -> None:
    runs = load_runs(ROOT / "experiments" / "carries_core" / "control")
    rows = arm_rows(arm_evaluations({"grpo (recorded)": runs}))
    (row,) = [each for each in rows if each["evaluation"] == "t1"]
    shares = [f"{100 * row[f'pass@1{end}']:.1f}" for end in ("", "_low", "_high")]
    cells = ["grpo (recorded)", "t1", "1.00", f"{row['entropy']:.3f}"]
    cells += ["{} [{}, {}]".format(*shares), str(row["seeds"])]
    assert re.search(r"\s+".join(re.escape(cell) for cell in cells), README)
    by_seed = [100 * share for share in row["pass@1_by_seed"]]
    assert f"have {min(by_seed):.1f} to {max(by_seed):.1f} %" in flat(README)
    table = pd.read_csv(ROOT / "experiments" / "equal_cost" / "results" / "comparisons.csv")
    (e3,) = table.query("page == 'carries_core' and family == 'primary' and arm == 'e3'").to_dict(
        "records"
    )
    difference = with_interval(e3, "end_difference")
    assert f"ten of E3 differ from them by {difference} points after as many steps" in flat(README)


def test_the_first_run_is_one_whose_ledger_is_kept() -> None:
    (run,) = load_runs(ROOT / "experiments" / "carries_bed" / "first_run")
    first, last = (run.validation.set_index("rollout_step").loc[step] for step in (0, 128))

    def said(step: pd.Series, *names: str) -> str:
        return ", ".join(
            f"{label} {100 * step[f'val/{name}/pass@1']:.1f} %"
            for label, name in zip(("pass@1 t1", "greedy", "live"), names, strict=False)
        )

    tau = run.train["rollout/temperature"].iloc[-1]
    assert re.search(rf"step +0/128 +{re.escape(said(first, 't1', 'greedy'))} ", README)
    ended = f"{said(last, 't1', 'greedy', 'live')}   tau {tau:.2f} "
    assert re.search(rf"step 128/128 +{re.escape(ended)}", README)
    assert run.summary is not None
    (row,) = [r for r in run.summary["evaluations"] if (r["arm"], r["evaluation"]) == ("e3", "t1")]
    own = with_interval(row, "pass@1").replace("+", "")
    cells = ["E3", "t1", "1.00", f"{row['entropy']:.3f}", own]
    cells += [with_interval(row, "pass@1_difference"), r"grpo (recorded) t1"]
    assert re.search(r"\s+".join(re.escape(cell) for cell in cells), README)


def test_the_one_study_that_tells_a_schedule_alone_is_said() -> None:
    told = set()
    for path in (ROOT / "experiments").glob("carries_*/results/*.csv"):
        rows = pd.read_csv(path)
        if {"arm", "against", "p_adjusted"} <= set(rows.columns):
            over_all = rows["subset"].isna() if "subset" in rows else True
            alone = rows["arm"].isin(["ts", "ts_an"]) & (rows["against"] == "grpo t1")
            found = rows[alone & over_all & (rows["p_adjusted"] < 0.05)]
            told |= {(path.parents[1].name, arm) for arm in found["arm"]}
    pooled, alone_there = ("carries_all_seeds", "ts_an"), ("carries_fresh_parts", "ts_an")
    assert told == {pooled, alone_there}
    assert "and alone there as well, and by the estimate in all other studies" in flat(STUDIED)
    entropy = pd.read_csv(CORE / "entropy.csv").query("arm == 'grpo'")["value"].tolist()
    assert entropy[-1] >= entropy[0]
