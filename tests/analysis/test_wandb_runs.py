"""W&B runs, offline and from a project, become what the run folder gives."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import wandb
import yaml

from e3rl.analysis.sources.runs import Run
from e3rl.analysis.sources.source import read_runs
from e3rl.analysis.sources.wandb_offline import load_offline_runs
from e3rl.analysis.sources.wandb_project import load_project
from e3rl.analysis.sources.wandb_run import run_from_wandb
from e3rl.analysis.tables.tidy import tidy_table
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.validation import lacking_counts
from e3rl.ledger.ledger import read_rows
from e3rl.ledger.wandb_mirror import WandbMirror

pytestmark = pytest.mark.end_to_end

NAN = float("nan")


def ledger_rows(run: Run) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl as the mirror gets them."""
    rows = read_rows(run.path / "metrics.jsonl")
    return [{k: NAN if v is None else v for k, v in row.items() if k != "kind"} for row in rows]


def mirrored(folder: Path, run: Run, rows: Sequence[dict[str, Any]], tables: bool) -> None:
    folder.mkdir()
    logger = WandbMirror(id="abc", project="e3rl", save_dir=str(folder), name="e3-seed1")
    logger.log_hyperparams(run.config)
    for row in rows:
        logger.log_metrics(row)
    if tables:
        logger.log_counts("validation", run.problems)
        logger.log_counts("prompts", run.prompts)
    logger.experiment.finish()


@pytest.fixture(scope="module")
def offline(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that was stopped after twelve rows and resumed from its eleventh."""
    root = tmp_path_factory.mktemp("offline")
    rows = ledger_rows(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        wrong = [*rows[:10], {**rows[10], "policy/entropy": 9.0}, *rows[11:12]]
        mirrored(root / "1", run, wrong, tables=False)
        mirrored(root / "2", run, rows[10:], tables=True)
        yield root
        wandb.teardown()


def assert_equal(found: Run, run: Run) -> None:
    ours, theirs = tidy_table([run]), tidy_table([found])
    assert set(ours) == set(theirs)
    columns = [name for name in ours if name != "run"]
    pd.testing.assert_frame_equal(theirs[columns], ours[columns], check_dtype=False)
    pd.testing.assert_frame_equal(found.problems, run.problems, check_dtype=False)
    pd.testing.assert_frame_equal(found.prompts, run.prompts, check_dtype=False)
    assert (found.name, found.seed, found.config) == (run.name, run.seed, run.config)


def test_an_offline_run_reads_like_its_ledger_also_after_a_resume(offline: Path, run: Run) -> None:
    (found,) = load_offline_runs(offline)
    assert_equal(found, run)


def test_a_torn_record_file_gives_the_rows_before_the_tear(
    offline: Path, run: Run, tmp_path: Path
) -> None:
    (whole,) = offline.glob("1/**/run-abc.wandb")
    torn = tmp_path / "offline-run-20250101_000000-abc" / "run-abc.wandb"
    torn.parent.mkdir()
    torn.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    (found,) = load_offline_runs(tmp_path)
    n = len(found.train)
    assert 0 < n < 11
    assert found.train["policy/entropy"].tolist() == run.train["policy/entropy"].tolist()[:n]
    assert found.problems.empty
    assert found.prompts.empty


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"W&B cannot read .*run-x\.wandb"):
        load_offline_runs(tmp_path)


class FakeRun:
    """What the public interface gives of one run."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.id, self.config, self._run, self._folder = "abc", run.config, run, folder

    def scan_history(self) -> Iterator[dict[str, Any]]:
        for i, row in enumerate(ledger_rows(self._run)):
            yield {"_step": i, "_timestamp": 1.5, "completions": None} | {
                key: "NaN" if value != value else value for key, value in row.items()
            }
        for name in ("validation", "prompts"):
            table = {"_type": "table-file", "path": f"media/table/{name}.table.json", "nrows": 4}
            yield {"_step": 99, "rollout_step": 23, name: table}

    def file(self, path: str) -> Any:
        frame = self._run.problems if "validation" in path else self._run.prompts
        data = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()

        def download(root: str, replace: bool) -> Any:
            target = Path(root) / Path(path).name
            target.write_text(json.dumps({"columns": list(frame), "data": data}))
            return target.open()

        return SimpleNamespace(download=download)


class FakeApi:
    def __init__(self, runs: list[FakeRun]) -> None:
        self.found, self.asked = runs, []

    def runs(self, path: str, filters: dict[str, Any]) -> list[FakeRun]:
        self.asked.append((path, filters))
        return self.found


def test_a_project_reads_like_the_ledgers_it_mirrors(run: Run, tmp_path: Path) -> None:
    api = FakeApi([FakeRun(run, tmp_path)])
    (found,) = load_project("me/e3rl", {"group": "study/e3"}, api)
    assert api.asked == [("me/e3rl", {"jobType": "train", "group": "study/e3"})]
    assert found.path == Path("me/e3rl/abc")
    assert_equal(found, run)


def test_a_project_without_training_runs_is_an_error() -> None:
    with pytest.raises(ValueError, match="me/empty has no run with job type train"):
        load_project("me/empty", api=FakeApi([]))


def test_without_a_key_it_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "Api", refuse)
    with pytest.raises(ValueError, match=r"wandb:me/x: No API key .* Or set WANDB_API_KEY"):
        load_project("me/x")


def test_a_run_that_is_not_of_e3rl_is_named(run: Run, tmp_path: Path) -> None:
    foreign = FakeRun(run, tmp_path)
    foreign.config = {"lr": 1}
    with pytest.raises(ValueError, match="me/x/abc has no `name` and `seed`"):
        load_project("me/x", api=FakeApi([foreign]))


def test_rows_that_a_killed_process_wrote_after_its_checkpoint_are_gone(run: Run) -> None:
    """Killed after step 19, resumed from step 8, and at step 10 by now."""
    rows = ledger_rows(run)
    killed = [row for row in rows if row["rollout_step"] < 20]
    again = [row for row in rows if 8 <= row["rollout_step"] < 11 and not is_validation(row)]
    tables = {"validation": [run.problems], "prompts": [run.prompts]}
    found = run_from_wandb(run.path, run.config, [*killed, *again], tables)
    assert found.train["rollout_step"].tolist() == list(range(11))
    assert found.validation["rollout_step"].tolist() == [0, 8]
    assert set(found.problems["rollout_step"]) == {0, 8}
    assert set(found.prompts["rollout_step"]) == set(range(11))


def is_validation(row: dict[str, Any]) -> bool:
    return any(key.startswith("val/") for key in row)


def test_a_validation_whose_table_was_cut_has_no_counts(run: Run) -> None:
    """Of four validations the table lacks the first, and three problems of the second. pass@1 of
    greedy was not asked for."""
    rows = []
    for row in ledger_rows(run):
        if is_validation(row):
            row["val/t1/temperature"], row["val/greedy/temperature"] = 1.0, 0.0
            row["val/greedy/mean@1"] = row.pop("val/greedy/pass@1")
        rows.append(row)
    second = run.problems["rollout_step"] == 8
    lost = second & (run.problems["name"] == "t1") & run.problems["problem_id"].isin(SOLVED)
    cut = run.problems[(run.problems["rollout_step"] > 0) & ~lost]
    found = run_from_wandb(run.path, run.config, rows, {"validation": [cut]})
    kept = {step for name, step in found.counts if name == "t1"}
    assert kept == {16, 24}
    assert {step for name, step in found.counts if name == "greedy"} == {8, 16, 24}
    (line,) = lacking_counts(Compared({"e3": [found]}, None, []))
    assert f"E3 seed {run.seed} ({run.path}): after steps 0, 8. No comparison" in line
    assert lacking_counts(Compared({"e3": [run]}, None, [])) == []


SOLVED = ("problem-0", "problem-1", "problem-2")


def test_counts_come_from_all_tables_and_the_latest_one_of_a_step_stands(run: Run) -> None:
    by_step = [table for _, table in run.problems.groupby("rollout_step")]
    wrong = by_step[1].assign(correct=0)
    rows = ledger_rows(run)
    tables = {"validation": [by_step[0], wrong, by_step[1], by_step[2], by_step[3]]}
    found = run_from_wandb(run.path, run.config, rows, tables)
    pd.testing.assert_frame_equal(found.problems, run.problems, check_dtype=False)


@pytest.fixture
def copied(run_folder: Path, tmp_path: Path) -> Path:
    """The run folder alone below a root."""
    return Path(shutil.copytree(run_folder, tmp_path / "runs" / "e3"))


def test_sources_are_told_apart(
    offline: Path, copied: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_runs([offline / "2", copied, copied.parent])
    assert [(run.path == copied, run.name) for run in found] == [(False, "e3"), (True, "e3")]
    monkeypatch.setattr(wandb, "Api", lambda: FakeApi([FakeRun(run, copied)]))
    assert [found.path for found in read_runs("wandb:me/e3rl")] == [Path("me/e3rl/abc")]


def test_a_ledger_is_preferred_to_the_mirror_beside_it(offline: Path, copied: Path) -> None:
    shutil.copytree(offline / "2", copied, dirs_exist_ok=True)
    assert [found.path for found in read_runs(copied.parent)] == [copied]


def test_beside_ledgers_a_run_that_has_none_is_read_from_wandb(offline: Path, copied: Path) -> None:
    root = copied.parent
    shutil.copytree(offline / "2", root / "only_mirrored")
    assert sorted(found.path == copied for found in read_runs(root)) == [False, True]
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["logger"] = {"wandb": {"id": "abc"}}  # the ledger is of that very run
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    assert [found.path for found in read_runs(root)] == [copied]


def test_beside_ledgers_what_wandb_cannot_read_is_passed_over_and_named(copied: Path) -> None:
    (copied.parent / "run-x.wandb").write_bytes(b"nothing of the kind")
    with pytest.warns(UserWarning, match=r"passing over a W&B run .*run-x\.wandb"):
        assert [found.path for found in read_runs(copied.parent)] == [copied]


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run folder"):
        read_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match="no offline W&B run"):
        load_offline_runs(tmp_path)
