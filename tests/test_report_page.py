"""`python -m e3rl.report`: from folders to a table and one page."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from e3rl.analysis.page import report
from e3rl.ledger.ledger import Ledger, read_rows
from e3rl.report import main

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms with two seeds."""
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    folder: Path = recorded_runs["write_study"](tmp_path_factory.mktemp("study"), ["grpo", "e3"])
    return folder


def test_the_command_prints_the_table_and_writes_the_page_without_torch(
    study: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pages" / "two.html"
    program = (
        "import sys; from e3rl.report import main; main(sys.argv[1:]); "
        "print({'torch', 'lightning', 'wandb'} & sys.modules.keys())"
    )
    arguments = [str(study), "--out", str(out), "--k", "8", "--title", "Two arms"]
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    *_, page, heavy = done.stdout.splitlines()
    assert (page, heavy) == (f"page: {out}", "set()")
    assert "grpo t1" in done.stdout  # the control where none is named
    assert "tokens generated" in done.stdout
    assert "<title>Two arms</title>" in out.read_text()


@pytest.mark.parametrize(
    ("option", "place", "words"),
    [
        ("--out", "", "--out HERE is a folder: give the file a name in it"),
        ("--out", "file/page.html", "--out HERE/file/page.html: HERE/file is a file and no folder"),
        ("--table", "file/a/x.csv", "--table HERE/file/a/x.csv: HERE/file is a file and no folder"),
        ("--table", "folder.csv", "--table HERE/folder.csv is a folder: give the file a name in"),
        ("--table", "all.xlsx", "--table HERE/all.xlsx: give a name that ends in .csv or .parquet"),
        ("--table", "all", "--table HERE/all: give a name that ends in .csv or .parquet"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_a_run_is_read(
    option: str,
    place: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.setattr(report, "read_runs", None)
    monkeypatch.chdir(tmp_path / "folder.csv")
    with pytest.raises(SystemExit) as ended:
        main(["runs", option, str(tmp_path / place)])
    assert ended.value.code == 2
    assert words.replace("HERE", str(tmp_path)) in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    assert list(Path.cwd().iterdir()) == []


def test_runs_that_did_not_record_their_tokens_are_compared_by_steps(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "old"))
    for file in folder.rglob("metrics.jsonl"):
        rows = [{k: v for k, v in r.items() if "cost/" not in k} for r in read_rows(file)]
        file.unlink()
        with Ledger(file) as ledger:
            for row in rows:
                ledger.append(row)
    main([str(folder), "--out", str(tmp_path / "page.html"), "--k", "4"])
    assert "At equal cost (24 rollout steps)" in capsys.readouterr().out
    assert '<option value="tokens">' not in (tmp_path / "page.html").read_text()


def test_runs_without_validation_have_curves_only(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study / "e3", tmp_path / "e3"))
    for file in folder.rglob("validation.jsonl"):
        file.unlink()
    main([str(folder), "--out", str(tmp_path / "page.html")])
    assert capsys.readouterr().out.startswith("no run was validated")
    assert 'id="entropy"' in (tmp_path / "page.html").read_text()


def test_runs_that_have_not_started_or_ended_early_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "now"))
    for run, keep in (("grpo/seed=1", 1), ("e3/seed=2", 20)):
        file = folder / run / "metrics.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in read_rows(file)[:keep]))
    main([str(folder), "--out", str(tmp_path / "page.html"), "--k", "4"])
    output = capsys.readouterr().out
    assert f"left out, no training step yet: {folder / 'grpo' / 'seed=1'}" in output
    short = (
        f"where {folder / 'e3' / 'seed=2'} was last validated; leave it out to compare them later"
    )
    assert short in output
    assert short in (tmp_path / "page.html").read_text()


def test_runs_that_were_validated_before_training_alone_are_not_compared(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "now"))
    for seed in (1, 2):
        run = folder / "e3" / f"seed={seed}"
        for name, keep in (("metrics", 5), ("validation", 1)):
            file = run / f"{name}.jsonl"
            file.write_text("".join(f"{json.dumps(row)}\n" for row in read_rows(file)[:keep]))
    main([str(folder), "--out", str(tmp_path / "page.html"), "--k", "4"])
    output = capsys.readouterr().out
    assert f"not compared, not validated since its training began: {run}" in output
    assert not any(line.startswith(" E3 ") for line in output.splitlines())
    assert (
        '<p class="facts">1 arm, 2 seeds each. 24 rollout steps each.</p>'
        in (tmp_path / "page.html").read_text()
    )


def test_a_run_that_was_never_validated_cuts_no_comparison_and_is_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "now"))
    run = Path(shutil.copytree(folder / "e3" / "seed=2", folder / "e3" / "seed=3"))
    (run / "validation.jsonl").unlink()
    file = run / "metrics.jsonl"
    rows = [row for row in read_rows(file) if row["kind"] == "train"][:3]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = ["--out", str(tmp_path / "page.html"), "--k", "4", "--axis", "steps"]
    main([str(folder), *out])
    output = capsys.readouterr().out
    assert "At equal cost (24 rollout steps)" in output
    assert f"not compared, not validated since its training began: {run}" in output
    assert "all arms are compared at" not in output


def test_a_seed_behind_others_or_on_fewer_problems_is_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "now"))
    behind, fewer = folder / "e3" / "seed=2", folder / "grpo" / "seed=1"
    for file in (behind / "metrics.jsonl", behind / "validation.jsonl"):
        kept = [
            row
            for row in read_rows(file)
            if row["rollout_step"] < 16 + (row.get("kind") != "train")
        ]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    file = fewer / "validation.jsonl"
    lists = ("problem_id", "source", "n", "correct")
    rows = [row | {name: row[name][:20] for name in lists} for row in read_rows(file)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    main([str(folder), "--out", str(tmp_path / "page.html"), "--k", "4"])
    output = capsys.readouterr().out
    for what in ("last validations", "curves over training"):
        assert f"not in {what}, since other seeds of its arm got farther: {behind}" in output
    words = "validated on 20 problems, others of its arm on 30, which is compared on those that all"
    assert f"{words} have: {fewer}" in output


def test_a_k_above_the_rollouts_of_every_validation_is_told(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    main([str(study), "--out", str(out), "--k", "64"])
    for told in (capsys.readouterr().out, out.read_text()):
        for arm in ("GRPO", "E3"):
            words = f"no pass@64 of {arm}: it was validated with 16 rollouts per problem at most"
            assert words in told


def test_a_control_that_is_not_there_is_named_though_no_run_was_validated(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "now"))
    for file in folder.rglob("validation.jsonl"):
        file.unlink()
    with pytest.raises(SystemExit):
        main([str(folder), "--out", str(tmp_path / "page.html"), "--control", "grpoo"])
    assert "error: control='grpoo' is no arm; there are grpo, e3" in capsys.readouterr().err


def test_arms_without_a_control_are_told_how_to_be_compared(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm in ("base", "first_hit"):
        runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))["write_study"](
            tmp_path / "runs", [arm]
        )
    main([str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")])
    told = "no arm is called grpo, so none is compared with another: give --control and one of"
    assert f"{told} base, first_hit" in capsys.readouterr().out


def test_runs_before_their_first_validation_within_training_are_reported(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    young = tmp_path / "young"
    shutil.copytree(study, young)
    for path in young.rglob("*.jsonl"):
        until = 1 if path.name == "validation.jsonl" else 3
        rows = [row for row in read_rows(path) if row["rollout_step"] < until]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    main([str(young), "--out", str(tmp_path / "page.html")])
    assert "pass@1" in capsys.readouterr().out
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_control_of_one_seed_gives_no_verdict(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study, tmp_path / "now"))
    shutil.rmtree(folder / "grpo" / "seed=2")
    main([str(folder), "--out", str(tmp_path / "page.html"), "--k", "4"])
    output = capsys.readouterr().out
    assert "none: 1 seed" in output
    assert not any(word in output for word in ("not distinguishable  ", " better  ", " worse  "))


def test_nothing_is_reported_before_the_first_step(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(study / "e3" / "seed=1", tmp_path / "new"))
    file = folder / "metrics.jsonl"
    file.write_text(f"{json.dumps(read_rows(file)[0])}\n")
    with pytest.raises(SystemExit):
        main([str(folder), "--out", str(tmp_path / "page.html")])
    assert "none of 1 runs has finished a training step" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_all_numbers_can_be_had_as_one_table(study: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "tables" / name
    main([str(study / "e3"), "--out", str(tmp_path / "page.html"), "--table", str(file)])
    table = pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
    assert set(table["arm"]) == {"e3"}
    assert len(table) == 2 * (24 + 4)
    assert table["tokens"].notna().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no run folder"),
        (["STUDY", "--control", "dapo"], "control='dapo' is no arm"),
        (["STUDY", "--table", "all.xlsx"], "all.xlsx: give a name that ends in .csv"),
    ],
)
def test_mistakes_are_told_in_a_line(
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    given = [str(study) if argument == "STUDY" else argument for argument in arguments]
    with pytest.raises(SystemExit) as stop:
        main([*given, "--out", str(tmp_path / "page.html")])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
