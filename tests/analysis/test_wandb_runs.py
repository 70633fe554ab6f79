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

from e3rl.analysis.sources.runs import Run
from e3rl.analysis.sources.source import read_runs
from e3rl.analysis.sources.wandb_offline import load_offline_runs
from e3rl.analysis.sources.wandb_project import load_project
from e3rl.analysis.tables.tidy import tidy_table
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


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run folder"):
        read_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match="no offline W&B run"):
        load_offline_runs(tmp_path)
