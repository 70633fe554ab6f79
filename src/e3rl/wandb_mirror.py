"""W&B as a mirror of the ledger: same rows, on the axis of rollout steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

AXIS = "rollout_step"
COMPLETIONS = "completions"
COMPLETION_COLUMNS = ("rollout_step", "prompt", "completion", "answer", "reward", "temperature")


class WandbMirror(WandbLogger):
    """Lightning's W&B logger with an axis of our own; offline unless `WANDB_MODE` says otherwise.

    W&B's step counts calls and restarts at 0 when a run is resumed offline, so every row carries
    `rollout_step` and all metrics are drawn against it.
    """

    def __init__(self, tags: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(tags=list(tags), **settings)
        self._wandb_init.pop("anonymous", None)  # Lightning sets it, W&B warns that it is obsolete
        self._axis_defined = False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if AXIS not in metrics and COMPLETIONS not in metrics:
            return  # what Lightning logs by itself repeats our rows
        run = self.experiment
        if not self._axis_defined:
            run.define_metric(AXIS)
            run.define_metric("*", step_metric=AXIS)
            self._axis_defined = True
        run.log(dict(metrics))

    @rank_zero_only
    def log_completions(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of sampled completions."""
        data = [[row[column] for column in COMPLETION_COLUMNS] for row in rows]
        self.log_table(COMPLETIONS, columns=list(COMPLETION_COLUMNS), data=data)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """After a crash the run is closed, or the next one of a sweep would write into it."""
        super().finalize(status)
        if status == "failed" and self._experiment is not None:
            self._experiment.finish(exit_code=1)
            self._experiment = None
