"""The ledgers as a Lightning logger: which rows are taken, and every row once over a resume."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.profilers import PassThroughProfiler

from e3rl.ledger import logger as ledger_logger_file
from e3rl.ledger.ledger import read_rows
from e3rl.ledger.logger import FILES, LedgerLogger, ledgers, log_row


def train(logger: LedgerLogger, step: int) -> None:
    logger.log_metrics({"rollout_step": step, "epoch": 0, "policy/entropy": 0.5}, step=step)
    logger.log_row("prompts", {"rollout_step": step, "n": [2, 2]})


def steps(folder: Path, file: str = "metrics.jsonl") -> list[int]:
    return [row["rollout_step"] for row in read_rows(folder / file)]


def test_kind_tells_training_rows_from_validation_rows(tmp_path: Path) -> None:
    logger = LedgerLogger(str(tmp_path))
    logger.log_metrics({"rollout_step": 0, "epoch": 0, "val/t1/pass@1": 0.5})
    logger.log_metrics({"rollout_step": 0, "epoch": 0, "budget/rank_drift": float("nan")})
    assert read_rows(tmp_path / "metrics.jsonl") == [
        {"kind": "validation", "rollout_step": 0, "epoch": 0, "val/t1/pass@1": 0.5},
        {"kind": "train", "rollout_step": 0, "epoch": 0, "budget/rank_drift": None},
    ]


def test_what_lightning_logs_by_itself_is_left_out(tmp_path: Path) -> None:
    logger = LedgerLogger(str(tmp_path))
    logger.log_metrics({"epoch": 0, "accuracy": 0.5}, step=3)
    logger.log_hyperparams({"lr": 0.1})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_finalized_logger_goes_on_when_it_is_used_again(tmp_path: Path) -> None:
    logger = LedgerLogger(str(tmp_path))
    train(logger, 0)
    logger.finalize("success")  # as Lightning does after the baseline
    train(logger, 1)
    logger.finalize("success")
    logger.finalize("success")
    assert steps(tmp_path) == [0, 1]
    assert logger.rows() == {"metrics": 2, "prompts": 2, "validation": 0, "completions": 0}


def test_a_resumed_run_moves_later_rows_aside_and_goes_on(tmp_path: Path) -> None:
    logger = LedgerLogger(str(tmp_path))
    for step in range(5):
        train(logger, step)
        if step == 1:
            saved = logger.rows()
    resumed = LedgerLogger(str(tmp_path))  # the first one was killed: not finalized
    resumed.rewind(saved)
    assert steps(tmp_path) == [0, 1]
    assert steps(tmp_path, "metrics.jsonl.superseded") == [2, 3, 4]
    assert steps(tmp_path, "prompts.jsonl.superseded") == [2, 3, 4]
    train(resumed, 2)
    assert steps(tmp_path) == [0, 1, 2]


def test_every_row_stands_once_over_many_crashes(tmp_path: Path) -> None:
    rng = random.Random(0)
    saved, done = {}, 0
    for _ in range(12):
        logger = LedgerLogger(str(tmp_path))
        logger.rewind(saved)
        step = done
        for _ in range(rng.randrange(1, 6)):
            train(logger, step)
            step += 1
            if rng.random() < 0.4:
                saved, done = logger.rows(), step
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"kind":"tr')  # killed in the middle of a row
    logger = LedgerLogger(str(tmp_path))
    logger.rewind(saved)
    assert steps(tmp_path) == steps(tmp_path, "prompts.jsonl") == list(range(done))
    assert done > 5


def test_a_checkpoint_may_be_continued_in_an_empty_folder(tmp_path: Path) -> None:
    logger = LedgerLogger(str(tmp_path / "new"))
    logger.rewind(dict.fromkeys(FILES, 9))
    train(logger, 9)
    assert steps(tmp_path / "new") == [9]


def test_other_ranks_leave_the_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_logger_file, "rank", lambda: 1)
    assert LedgerLogger(str(tmp_path / "run")).rows() == {}
    assert not (tmp_path / "run").exists()


def test_a_row_reaches_every_logger_at_once(tmp_path: Path) -> None:
    class Other:
        seen: list[Any]

        def log_metrics(self, metrics: Any, step: int) -> None:
            self.seen = [step, metrics]

    ledger, other = LedgerLogger(str(tmp_path)), Other()
    trainer: Any = SimpleNamespace(
        loggers=[ledger, other], current_epoch=2, profiler=PassThroughProfiler()
    )
    log_row(trainer, {"policy/loss": 0.25}, 7)
    row = {"rollout_step": 7, "epoch": 2, "policy/loss": 0.25}
    assert other.seen == [7, row]
    assert read_rows(tmp_path / "metrics.jsonl") == [{"kind": "train", **row}]
    assert ledgers(trainer) == [ledger]
