"""A study: tables in their places in the README, figures, and what is missing."""

import json
import math
import runpy
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from e3rl.analysis.page import study
from e3rl.ledger.ledger import read_rows
from e3rl.study import main

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[1]
README = """# A study

<!-- table: at_equal_tokens -->
old
<!-- end -->

Words that stay.

<!-- table: reached -->
<!-- end -->
"""
ASKED = {
    "runs": "../runs",
    "arms": ["grpo", "ts_an", "e3", "ts"],
    "control": "grpo",
    "figures": {"entropy": {}, "reaching": {"targets": [0.3]}},
    "tables": {
        "at_equal_tokens": {"kind": "comparison", "evaluations": ["t1"], "measures": ["pass@16"]},
        "reached": {"kind": "reaching", "targets": [0.3], "axis": "tokens"},
    },
}
FAMILY = {
    "endpoints": [{"evaluation": "t1", "measure": "pass@1"}],
    "comparisons": [["ts_an", "grpo"], ["ts_an", "e3"]],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    recorded_runs["write_study"](tmp_path / "runs", ["grpo", "ts_an"])
    recorded_runs["write_study"](tmp_path / "runs", ["e3"], seeds=(1,))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text(README)
    return tmp_path / "mine"


def asked(folder: Path, **changed: Any) -> Path:
    (folder / "study.yaml").write_text(yaml.safe_dump({**ASKED, **changed}))
    return folder


def test_pairs_at_another_cost_are_no_comparison_of_a_family(folder: Path) -> None:
    early = {"kind": "pairs", "cost": 6000.0} | FAMILY
    tables = {"at_equal_tokens": {"kind": "family", "name": "primary"}, "reached": early}
    asked(folder, families={"primary": FAMILY}, tables=tables, figures={})
    judged = study.judged_tables(study.read_study(folder))
    rows = {name: table.rows for name, table in judged.items()}
    for declared, other in zip(rows["at_equal_tokens"], rows["reached"], strict=True):
        assert (declared["family"], other["family"]) == ("primary", "exploratory")
        assert other["comparison"] == f"{declared['comparison']}, at cost 6000"
        assert other["p"] != declared["p"]
        assert other["p_adjusted"] >= other["p"]


def test_pairs_may_be_of_some_problems_alone(folder: Path) -> None:
    pairs = {"kind": "pairs"} | FAMILY
    tables = {"at_equal_tokens": pairs, "reached": pairs | {"untrained": [0.5, 1]}}
    asked(folder, tables=tables, figures={})
    judged = study.judged_tables(study.read_study(folder))
    every, easy = (judged[name].rows for name in tables)
    for row, other in zip(every, easy, strict=True):
        assert (row["arm"], row["against"]) == (other["arm"], other["against"])
        assert "subset" not in row
        assert other["subset"].startswith("solved by the untrained policy in 50 to 100 %")
        assert 0 < other["problems"] < row["problems"]
        assert (other["family"], other["family_size"]) == ("exploratory", 4)


def test_two_windows_of_one_name_are_refused(folder: Path) -> None:
    windows = ({"end": [-2, 0]}, {"end": [0, 2]})
    names = ("at_equal_tokens", "reached")
    metric = {"kind": "metric", "column": "policy/entropy"}
    tables = {name: metric | {"windows": each} for name, each in zip(names, windows, strict=True)}
    asked(folder, tables=tables, figures={})
    with pytest.raises(ValueError, match=r"policy/entropy, end'.*names that tell them apart"):
        study.judged_tables(study.read_study(folder))


def test_a_study_writes_tables_figures_and_what_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(asked(folder))])
    text = (folder / "README.md").read_text()
    assert "Words that stay." in text
    assert "old" not in text
    table = text.split("<!-- table: at_equal_tokens -->")[1].split("<!-- end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| GRPO") or "E3" in line]
    assert len(rows) == 3
    assert all("pass@16" in row for row in rows)
    assert "pass@1 |" not in table
    recorded = pd.read_csv(folder / "results" / "reached.csv")
    assert recorded["arm"].tolist() == ["grpo", "ts_an", "e3"]
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "entropy.png",
        "reaching.png",
    }
    printed = capsys.readouterr().out
    assert "not run: ts" in printed
    assert "1 of 2 seeds: e3" in printed


def test_a_study_may_be_about_some_seeds(folder: Path) -> None:
    item = study.read_study(asked(folder, seeds=[2]))
    assert {arm: [run.seed for run in runs] for arm, runs in item.arms.items()} == {
        "grpo": [2],
        "ts_an": [2],
    }
    assert item.missing == ["not run: e3", "not run: ts"]


def test_a_table_may_be_of_some_seeds_and_of_the_last_step(folder: Path) -> None:
    some = {**ASKED["tables"]["at_equal_tokens"], "measures": ["pass@1"]}
    tables = {"all": some, "one": {**some, "seeds": [1]}, "end": {**some, "cost": math.inf}}
    item = study.read_study(asked(folder, tables=tables))
    made = study.judged_tables(item)
    seeds = {name: {row["arm"]: row["seeds"] for row in made[name].rows} for name in tables}
    assert seeds["all"] == seeds["end"] == {"grpo": 2, "ts_an": 2, "e3": 1}
    assert seeds["one"] == {"grpo": 1, "ts_an": 1, "e3": 1}
    names = [row["comparison"] for name in ("all", "one") for row in made[name].rows]
    assert len({name for name in names if name}) == 4  # comparisons of their own
    assert made["end"].rows[0]["spent"] >= made["all"].rows[0]["cost"]
    assert "Not at equal cost" in made["end"].show(made["end"].rows).note


def test_what_is_declared_at_one_cost_is_not_declared_at_another(folder: Path) -> None:
    ends = [{"evaluation": "t1", "measure": "pass@1"}]
    families = {"primary": {"endpoints": ends, "comparisons": [["ts_an", "grpo"]]}}
    table = {"kind": "comparison", "evaluations": ["t1"], "measures": ["pass@1"]}
    tables = {"own": table, "early": {**table, "cost": 1000}}
    made = study.judged_tables(study.read_study(asked(folder, families=families, tables=tables)))
    found = {
        name: next(row["family"] for row in made[name].rows if row["arm"] == "ts_an")
        for name in tables
    }
    assert found == {"own": "primary", "early": "exploratory"}


def test_a_study_may_draw_on_several_places(folder: Path) -> None:
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    recorded_runs["write_study"](folder / "own", ["budget"])
    item = study.read_study(asked(folder, runs=["../runs", "own"], arms=["grpo", "budget"]))
    assert {arm: [run.seed for run in runs] for arm, runs in item.arms.items()} == {
        "grpo": [1, 2],
        "budget": [1, 2],
    }
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        study.read_study(asked(folder, runs=["../runs", "elsewhere"]))


def test_a_run_that_several_places_hold_counts_once(folder: Path) -> None:
    places = ["../runs", "../runs/../runs", "../runs/grpo"]
    item = study.read_study(asked(folder, runs=places))
    assert [run.seed for run in item.arms["grpo"]] == [1, 2]
    pairs = {"kind": "pairs", "also": ["../mine/../runs"]} | FAMILY
    whole = study.judged_tables(study.read_study(asked(folder, tables={"x": pairs})))["x"].rows
    del pairs["also"]
    alone = study.judged_tables(study.read_study(asked(folder, tables={"x": pairs})))["x"].rows
    columns = ("arm", "seeds", "value", "p")
    assert [[row[c] for c in columns] for row in whole] == [[r[c] for c in columns] for r in alone]


def test_a_copied_run_folder_is_refused(folder: Path) -> None:
    shutil.copytree(folder.parent / "runs" / "e3" / "seed=1", folder.parent / "copy" / "e3")
    message = r"e3 has 2 runs of seed 1: .*e3.*, .*e3.*; leave all but one out, or"
    with pytest.raises(ValueError, match=message):
        study.read_study(asked(folder, runs=["../runs", "../copy"]))
    pairs = {"kind": "pairs", "also": ["../copy"]} | FAMILY
    item = study.read_study(asked(folder, tables={"x": pairs}))
    with pytest.raises(ValueError, match=message):
        study.judged_tables(item)


def cut_short(run: Path, steps: int) -> None:
    """Let a run be killed after these steps."""
    for file in (run / "metrics.jsonl", run / "validation.jsonl"):
        rows = [
            row
            for row in read_rows(file)
            if row["rollout_step"] < max(steps, row.get("kind") != "train")
        ]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (0, "left out, no training step yet"),
        (5, "not compared, not validated since its training began"),
    ],
)
def test_a_run_that_was_killed_early_is_left_out_and_named(
    steps: int, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 24 steps, with a validation after every eighth."""
    run = folder.parent / "runs" / "ts_an" / "seed=2"
    cut_short(run, steps)
    item = study.read_study(asked(folder))
    rows = study.judged_tables(item)["at_equal_tokens"].rows
    assert {row["arm"]: row["seeds"] for row in rows} == {"grpo": 2, "ts_an": 1, "e3": 1}
    assert all(row["cost"] > 0 for row in rows)
    assert f"{words}: {folder / '../runs/ts_an/seed=2'}" in item.missing
    main([str(folder)])
    assert words in capsys.readouterr().out
    pairs = {"kind": "pairs", "also": ["../runs"]} | FAMILY
    again = study.read_study(asked(folder, tables={"x": pairs}))
    with pytest.raises(ValueError, match=r"seed=2 was not validated since its training began: mov"):
        study.judged_tables(again)
    pairs["seeds"] = [1]
    again = study.read_study(asked(folder, tables={"x": pairs}))
    assert len(study.judged_tables(again)["x"].rows) == 2


def test_a_run_of_half_the_length_is_named(folder: Path) -> None:
    cut_short(folder.parent / "runs" / "ts_an" / "seed=2", 12)
    item = study.read_study(asked(folder))
    (said,) = [line for line in item.missing if "all arms are compared at" in line]
    assert "ts_an/seed=2 was last validated; leave it out to compare them later" in said


def test_a_study_none_of_whose_runs_has_begun_is_refused(folder: Path) -> None:
    for run in (folder.parent / "runs" / "e3").iterdir():
        cut_short(run, 0)
    with pytest.raises(ValueError, match=r"mine: none of 1 runs has finished a training step yet"):
        study.read_study(asked(folder, arms=["e3"], control=None))
    with pytest.raises(ValueError, match=r"control='e3' has no recorded run, of these seeds, that"):
        study.read_study(asked(folder, control="e3"))


def test_seeds_that_were_asked_for_and_are_not_there_are_named(folder: Path) -> None:
    item = study.read_study(asked(folder, seeds=[1, 2, 99]))
    assert "not run: seed 99 of any arm" in item.missing
    some = {**ASKED["tables"]["at_equal_tokens"], "seeds": [1, 99]}
    item = study.read_study(asked(folder, tables={"x": some}))
    with pytest.raises(
        ValueError, match=r"seeds=\[1, 99\], of which no arm has 99; there are 1, 2"
    ):
        study.judged_tables(item)


def test_a_table_judges_by_the_level_that_its_note_names(folder: Path) -> None:
    def judged(level: float) -> tuple[dict[str, Any], str]:
        table = {**ASKED["tables"]["at_equal_tokens"], "measures": ["pass@1"], "level": level}
        made = study.judged_tables(study.read_study(asked(folder, tables={"x": table})))["x"]
        note = made.show(made.rows).note
        return next(row for row in made.rows if row["arm"] == "ts_an"), note

    p = judged(0.95)[0]["p_adjusted"]
    row, note = judged(1 - 1.01 * p)
    assert row["verdict"] in ("better", "worse")
    assert f"p below {1.01 * p:.2g}" in note
    assert judged(1 - 0.99 * p)[0]["verdict"] == "not distinguishable"


def lower_rollouts(run: Path, n: int) -> None:
    """Let the last validation of a run have `n` rollouts of every problem."""
    rows = read_rows(run / "validation.jsonl")
    last = max(row["rollout_step"] for row in rows)
    short = [
        row | {"n": [n] * len(row["n"]), "correct": [min(n, c) for c in row["correct"]]}
        if row["rollout_step"] == last
        else row
        for row in rows
    ]
    (run / "validation.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in short))


def test_an_arm_or_a_seed_without_the_rollouts_of_a_table_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lower_rollouts(folder.parent / "runs" / "ts_an" / "seed=2", 4)
    lower_rollouts(folder.parent / "runs" / "e3" / "seed=1", 4)
    main([str(asked(folder))])
    told = capsys.readouterr().out.splitlines()
    which = "table at_equal_tokens: "
    assert which + "no pass@16 of E3: it was validated with 4 rollouts per problem at most" in told
    (seeds,) = [line for line in told if "counts 1 of 2 seeds" in line]
    assert seeds.startswith(f"{which}pass@16 of GRPO + TS + AN in t1 ")


def test_a_k_that_a_table_names_is_measured_or_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"kind": "comparison", "evaluations": ["t1"], "measures": ["pass@4"]}
    asked(folder, tables=ASKED["tables"] | {"at_equal_tokens": table})
    rows = study.judged_tables(study.read_study(folder))["at_equal_tokens"].rows
    assert {row["measure"] for row in rows} == {"pass@4"}
    asked(folder, tables=ASKED["tables"] | {"at_equal_tokens": table | {"measures": ["pass@64"]}})
    with pytest.raises(SystemExit):
        main([str(folder)])
    assert "table at_equal_tokens: pass@64: no validation has so many" in capsys.readouterr().err


def test_made_again_it_is_the_same(folder: Path) -> None:
    main([str(asked(folder))])
    first = (folder / "README.md").read_text()
    main([str(folder)])
    assert (folder / "README.md").read_text() == first


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tabels": {}}, "has no place for ['tabels']; there are runs, arms, seeds"),
        ({"runs": 3}, "study.yaml: runs=3: input should be a valid string"),
        ({"arms": "grpo"}, "study.yaml: arms='grpo': input should be a valid list"),
        ({"arms": ["ppo"]}, "no recorded run is of arms=['ppo'] and seeds=all; there is grpo 1, "),
        ({"seeds": 1}, "study.yaml: seeds=1: input should be a valid list"),
        ({"seeds": [9]}, "and seeds=[9]; there is grpo 1, grpo 2, ts_an 1, ts_an 2, e3 1"),
        ({"tables": ["x"]}, "study.yaml: tables=['x']: input should be an object"),
        ({"tables": {"x": "comparison"}}, "x='comparison': give its options by name"),
        ({"figures": ["entropy"]}, "study.yaml: figures=['entropy']: input should be an object"),
        ({"figures": {"entropy": 3}}, "entropy=3: give its options by name"),
        ({"figures": {"entropy": {1: 2}}}, "figure entropy: {1: 2}: "),
        ({"families": ["main"]}, "study.yaml: families=['main']: input should be an object"),
        ({"tables": {"x": {"kind": "pie"}}}, "table kind 'pie' is none of comparison"),
        ({"figures": {"pie": {}}}, r"no figures \['pie'\]; there are entropy"),
        ({"control": "ts"}, "control='ts' has no recorded run"),
        (
            {"arms": ["e3"]},
            "control='grpo' is recorded, but not among arms=['e3']: name it there too",
        ),
        (
            {"families": {"main": {**FAMILY, "comparisons": [["ppo", "grpo"]]}}},
            "family main: no recorded arm 'ppo'; there are grpo, ts_an, e3",
        ),
        (
            {"families": {"main": {**FAMILY, "comparisons": [["ts_an"]]}}},
            "family main: comparisons[0][1]=['ts_an']: field required",
        ),
        (
            {"families": {"main": {**FAMILY, "endpoints": [{"evaluation": "t1"}]}}},
            "family main: endpoint {'evaluation': 't1'}: give {evaluation: t1, measure: pass@1}",
        ),
        (
            {"families": {"main": {**FAMILY, "endpoints": [{"evaluation": "t1", "measure": "x"}]}}},
            "family main: endpoint {'evaluation': 't1', 'measure': 'x'}: give",
        ),
        (
            {"tables": {"x": {"kind": "family", "name": "main"}}},
            "family 'main' is not declared under `families`; there is none",
        ),
        ({"tables": {"x": {"kind": "resources"}}}, "no lines <!-- table: x --> and <!-- end -->"),
        ({"tables": {"x": {"kind": "resources", "k": 3}}}, "mine: table x: {'k': 3}: "),
        ({"tables": {"x": {"kind": "resources", "study": 3}}}, "table x: {'study': 3}: "),
        ({"tables": {"x": {"kind": "comparison", "ks": 16}}}, "table x: ks=16: input should be"),
        ({"tables": {"x": {"kind": "reaching", "targets": 0.3}}}, "table x: targets=0.3: input"),
        (
            {"tables": {"x": {"kind": "comparison", "untrained": [0.1]}}},
            "table x: untrained[1]=[0.1]: field required",
        ),
        (
            {"tables": {"x": {"kind": "metric", "column": "rollout/n", "windows": [0, 8]}}},
            "table x: windows=[0, 8]: input should be an object",
        ),
        (
            {"tables": {"x": {"kind": "metric", "column": "rollout/n", "windows": {"end": [8]}}}},
            "window 'end' is [8]: give its first step and the one after its last",
        ),
        ({"figures": {"entropy": {"colour": 1}}}, "figure entropy: {'colour': 1}: "),
        ({"figures": {"entropy": {"window": "a"}}}, "figure entropy: window='a': input should be"),
        (
            {"tables": {"x": {"kind": "comparison", "level": 95}}},
            "mine: table x: level=95: a level lies between 0 and 1, such as 0.95",
        ),
        (
            {"tables": {"at_equal_tokens": {"kind": "comparison", "measures": ["pass@99"]}}},
            "mine: table at_equal_tokens: pass@99: no validation has so many rollouts",
        ),
        (
            {"tables": {"x": {"kind": "comparison", "measures": ["pass@x"]}}},
            "table x: measures: 'pass@x' is none; they are called pass@k, such as pass@16",
        ),
        (
            {"tables": {"x": {"kind": "comparison", "untrained": [0, 10]}}},
            "table x: comparison: untrained=[0, 10]: give shares, the lower first",
        ),
        (
            {"tables": {"x": {"kind": "comparison", "untrained": [0.5, 0.1]}}},
            "table x: comparison: untrained=[0.5, 0.1]: give shares, the lower first",
        ),
        (
            {"tables": {"x": {"kind": "gain", "evaluations": ["t1", "liev"]}}},
            "table x: evaluations: no arm has 'liev'; there are t1, greedy, live, matched",
        ),
        (
            {"tables": {"x": {"kind": "deviation", "evaluations": ["t1", "liev"]}}},
            "table x: evaluations: no arm has 'liev'; there are t1, greedy, live, matched",
        ),
        (
            {"tables": {"x": {"kind": "gain", "evaluations": ["t1", "greedy"], "ks": [16, 64]}}},
            "greedy, pass@64: no arm was validated so before training and at its end, with so many",
        ),
        (
            {"tables": {"x": {"kind": "deviation", "ks": [1, 64]}}},
            "table x: pass@64: no two seeds of an arm were validated so at their end, with so many",
        ),
        (
            {"tables": {"x": {"kind": "deviation", "of": ["e3"]}}},
            "table x: t1, pass@1: no two seeds of an arm were validated so at their end",
        ),
        (
            {"tables": {"x": {"kind": "comparison", "seeds": [2]}}},
            "seeds=[2], of which e3 has none",
        ),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(
    folder: Path, changed: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(asked(folder, **changed))])
    assert stopped.value.code == 2
    assert message.replace("\\", "") in capsys.readouterr().err
    assert (folder / "README.md").read_text() == README


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "study.yaml must have `runs`, and else of arms, seeds"),
        (b"- runs", "study.yaml must have `runs`, and else of arms, seeds"),
        (b"runs: [", "study.yaml cannot be read as YAML: while parsing a flow node"),
        (b"runs: \xff", "study.yaml cannot be read as YAML: 'utf-8' codec"),
    ],
)
def test_what_is_no_study_is_told_without_a_traceback(
    folder: Path, text: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "study.yaml").write_bytes(text)
    with pytest.raises(SystemExit) as stopped:
        main([str(folder)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_declared_comparisons_are_corrected_among_themselves_and_others_are_exploratory(
    folder: Path,
) -> None:
    tables = {
        "a": {"kind": "family", "name": "main"},
        "b": {"kind": "comparison", "ks": [1, 16], "evaluations": ["t1"]},
        "c": {"kind": "metric", "column": "rollout/all_wrong", "windows": {"all": [0, 0]}},
    }
    (folder / "README.md").write_text(
        "".join(f"<!-- table: {n} -->\n<!-- end -->\n" for n in "abc")
    )
    main([str(asked(folder, families={"main": FAMILY}, tables=tables, figures={}))])
    found = {name: pd.read_csv(folder / "results" / f"{name}.csv") for name in "abc"}
    assert found["a"]["family"].tolist() == ["main", "main"]
    assert found["a"]["family_size"].tolist() == [2, 2]
    by_arm = found["b"].dropna(subset="comparison").set_index(["arm", "measure"])
    # Two arms at three measures and two at a metric, but for the one that is declared.
    assert by_arm.loc[("ts_an", "pass@1"), "family"] == "main"
    assert by_arm["family"].value_counts().to_dict() == {"exploratory": 5, "main": 1}
    assert set(found["c"]["family_size"].dropna()) == {7 - found["c"]["p"].isna().sum() + 1}
    once = found["a"].set_index("comparison")["p_adjusted"]
    twice = by_arm.reset_index().set_index("comparison")["p_adjusted"]
    assert twice[once.index[0]] == once.iloc[0]
    text = (folder / "README.md").read_text()
    assert "declared family main: 2 comparisons" in text
    assert "exploratory, since none was declared before the runs: " in text


def test_every_kind_of_table_and_figure_that_fits_the_runs_is_made(folder: Path) -> None:
    fitting = set(study.FIGURES) - {"disturbance", "reaching"}
    tables = {
        "a": {"kind": "metric", "column": "rollout/all_wrong", "windows": {"all": [0, 0]}},
        "b": {"kind": "resources"},
        "c": {"kind": "power"},
    }
    for each in tables:
        text = (folder / "README.md").read_text()
        (folder / "README.md").write_text(f"{text}<!-- table: {each} -->\n<!-- end -->\n")
    main([str(asked(folder, figures={name: {} for name in fitting}, tables=tables))])
    assert {path.stem for path in (folder / "figures").iterdir()} == fitting
    text = (folder / "README.md").read_text()
    assert text.count("| GRPO ") + text.count("| grpo ") >= 2


def test_what_is_no_study_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(SystemExit) as stopped:
            main([str(place)])
        assert stopped.value.code == 2
        told = f"error: {place} has no study.yaml: give the folder of a study, as experiments/NAME"
        assert capsys.readouterr().err == f"{told}\n"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"evaluations": ["t1", "gredy"]}, "no arm has 'gredy'; there are t1"),
        ({"evaluations": ["t1"], "measures": ["pass@1", "mean pas@1"]}, "no arm has 'mean pas@1'"),
    ],
)
def test_a_name_that_no_arm_has_is_refused(
    folder: Path, named: dict[str, list[str]], words: str
) -> None:
    tables = {"at_equal_tokens": {"kind": "comparison", **named}}
    with pytest.raises(ValueError, match=words):
        study.judged_tables(study.read_study(asked(folder, tables=tables)))
