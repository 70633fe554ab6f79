"""The run folder's ledgers as a Lightning logger: the source of truth that W&B mirrors.

Row counts travel in every checkpoint. On resume the rows written after it move to `.superseded`
files, so over any number of crashes each row stands in the ledger exactly once.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from e3rl.ledger.clock import lap_of
from e3rl.ledger.ledger import Ledger
from e3rl.process.distributed import rank

FILES = ("metrics", "prompts", "validation", "completions")


class LedgerLogger(Logger):
    """Writes `metrics.jsonl` and the per-prompt ledgers beside it; only rank zero has files.

    Args:
        run_dir: folder of the run.
    """

    def __init__(self, run_dir: str) -> None:
        super().__init__()
        self.run_dir = Path(run_dir)
        self._ledgers: dict[str, Ledger] = {}

    @property
    def name(self) -> str:
        return "ledger"

    @property
    def version(self) -> str:
        return self.run_dir.name

    @property
    def save_dir(self) -> str:
        return str(self.run_dir)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kw: Any) -> None:
        """The resolved configuration is saved as config.yaml by the entry point."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """One row of metrics.jsonl; validation rows are those with a `val/` metric."""
        if "rollout_step" not in metrics:  # what Lightning logs by itself repeats our rows
            return
        kind = "validation" if any(name.startswith("val/") for name in metrics) else "train"
        self._ledger("metrics").append({"kind": kind, **metrics})

    @rank_zero_only
    def log_row(self, file: str, row: Mapping[str, Any]) -> None:
        """One row of `<file>.jsonl`, file being prompts, validation or completions."""
        self._ledger(file).append(row)

    def rows(self) -> dict[str, int]:
        """Complete rows of every ledger, for the checkpoint, which must not outlive them.

        Empty on other ranks than zero.
        """
        if rank() != 0:  # opening a ledger repairs it, so only one process may
            return {}
        return {file: self._ledger(file).sync() for file in FILES}

    @rank_zero_only
    def rewind(self, rows: Mapping[str, int]) -> None:
        """Set aside what was written after the checkpoint that had these counts."""
        for file in FILES:
            self._ledger(file).rewind(int(rows.get(file, 0)))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        for ledger in self._ledgers.values():
            ledger.close()
        self._ledgers.clear()  # Lightning finalizes after the baseline too; rows go on after it

    def _ledger(self, file: str) -> Ledger:
        if file not in self._ledgers:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._ledgers[file] = Ledger(self.run_dir / f"{file}.jsonl")
        return self._ledgers[file]


def ledgers(trainer: Trainer) -> list[LedgerLogger]:
    """The ledger loggers of a trainer: usually one, none in bare test trainers."""
    return [logger for logger in trainer.loggers if isinstance(logger, LedgerLogger)]


def log_row(trainer: Trainer, row: Mapping[str, float], step: int) -> None:
    """Hand one complete row to every logger, at once, with the seconds since the row before.

    Lightning itself would pass rows on only after the checkpoint callback has run; a run killed
    in between would then have saved a step whose row was never written.
    """
    whole = {"rollout_step": step, "epoch": trainer.current_epoch, **row, **lap_of(trainer)}
    for logger in trainer.loggers:
        logger.log_metrics(whole, step=step)
