"""W&B as a mirror of the ledger: same rows, on axes of our own, with tables of the counts."""

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from e3rl.ledger.files import METRICS, VALIDATION
from e3rl.ledger.ledger import find_ledger, read_rows

if TYPE_CHECKING:
    import pandas as pd

STEP = "rollout_step"
COSTS = "cost/"
COMPLETIONS = "completions"
COMPLETION_COLUMNS = (
    *("rollout_step", "prompt_id", "prompt", "completion", "answer", "reward", "advantage"),
    *("temperature", "tokens", "truncated"),
)
COUNTS = "validation"  # the table of counts by problem
COUNT_COLUMNS = ("rollout_step", "name", "temperature", "problem_id", "source", "n", "correct")
TABLE_ROWS = 50_000  # what the browser still filters

# What the list of runs shows of a metric beside its last value, so that arms can be sorted by it.
SUMMARIES = {"val": "max,last", "rollout": "min,max,last", "policy": "min,max,last"}


class WandbMirror(WandbLogger):
    """Lightning's W&B logger with axes of our own; offline unless `WANDB_MODE` says otherwise.

    W&B's step counts calls and restarts at 0 when a run is resumed offline, so every row carries
    `rollout_step` and is drawn against it. Validation is drawn against `validation_axis`; rows of
    validation carry what training had cost by then, so that any cost can be an axis.

    Args:
        tags: words to filter runs by.
        validation_axis: `rollout_step`, or a running sum: `cost/rollouts`, `cost/tokens`,
            `cost/seconds`.
        **settings: of Lightning's `WandbLogger` and of `wandb.init`.

    Raises ValueError for another axis.
    """

    def __init__(
        self, tags: Sequence[str] = (), validation_axis: str = STEP, **settings: Any
    ) -> None:
        if validation_axis != STEP and not validation_axis.startswith(COSTS):
            raise ValueError(
                f"validation_axis={validation_axis!r}: use {STEP}, or a cost such as cost/tokens"
            )
        super().__init__(tags=list(tags), **settings)
        self._wandb_init.pop("anonymous", None)  # Lightning sets it, W&B warns that it is obsolete
        self.validation_axis = validation_axis
        self._defined: set[str] = set()
        self._costs: dict[str, float] = {}

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of W&B; raises ConnectionError where it is to be live and nobody answers, or is
        logged in."""
        from wandb.errors import CommError, UsageError

        try:
            return WandbLogger.experiment.fget(self)  # type: ignore[attr-defined]
        except CommError as error:
            raise ConnectionError(
                f"W&B does not answer: {error}\nWith WANDB_MODE=offline the run keeps everything "
                "on the disk, and `wandb sync` sends it later."
            ) from error
        except UsageError as error:
            raise ConnectionError(
                f"W&B takes no run: {error}\nLog in with `wandb login`, or leave WANDB_MODE out: "
                "the run then keeps everything on the disk, and `wandb sync` sends it later."
            ) from error

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if STEP not in metrics and not _is_table(metrics):
            return  # what Lightning logs by itself repeats our rows
        self._define(metrics.keys() - self._defined)
        self.experiment.log({**self._costs_of(metrics), **metrics})
        if any(name.startswith("val/") for name in metrics):
            self._log_validation(int(metrics[STEP]))

    @rank_zero_only
    def log_completions(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of sampled completions."""
        data = [[row[column] for column in COMPLETION_COLUMNS] for row in rows[-TABLE_ROWS:]]
        self.log_table(COMPLETIONS, columns=list(COMPLETION_COLUMNS), data=data)

    @rank_zero_only
    def log_counts(self, name: str, table: "pd.DataFrame") -> None:
        """A table of per-prompt or per-problem counts, a row each; missing numbers are empty.

        What is longer than `TABLE_ROWS` becomes several tables of whole rollout steps, the latest
        steps, which the browser shows, last.
        """
        if table.empty:
            return
        for part in _parts(table):
            shown = part.astype(object)
            data = shown.where(shown.notna(), None).to_numpy().tolist()
            self.log_table(name, columns=[str(column) for column in table], data=data)

    def _log_validation(self, step: int) -> None:
        """The counts of one validation, which the ledger in `save_dir` has by now: a run that is
        killed leaves them too."""
        file = Path(self.save_dir or ".") / VALIDATION
        if find_ledger(file) is None:
            return
        found = {row["name"]: row for row in read_rows(file) if row[STEP] == step}
        data = [
            [step, name, row["temperature"], *each]
            for name, row in found.items()
            for each in zip(*(row[column] for column in COUNT_COLUMNS[3:]), strict=True)
        ]
        if data:
            self.log_table(COUNTS, columns=list(COUNT_COLUMNS), data=data)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """After a crash the run is closed, or the next one of a sweep would write into it."""
        super().finalize(status)
        if status == "failed":
            self.close(exit_code=1)

    @rank_zero_only
    def close(self, exit_code: int = 0) -> None:
        """End the run of W&B, waiting no longer than `settings.finish_timeout` seconds for it.

        What W&B has not taken by then stays on the disk, and a warning says how to send it.
        """
        if self._experiment is None:
            return
        run, self._experiment = self._experiment, None
        folder = Path(run.dir).parent
        try:
            run.finish(exit_code=exit_code)
        except TimeoutError:
            rank_zero_warn(
                "W&B did not answer at the end of the run. Nothing is lost: "
                f"`wandb sync {folder}` sends it, whenever W&B is there again"
            )

    def _define(self, names: Set[str]) -> None:
        """Tell W&B about metrics that it has not seen yet.

        By their names, since of several patterns that fit W&B takes any one, and Lightning
        defines `*`.
        """
        run = self.experiment
        if not self._defined:
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
        for name in sorted(names):
            space = name.split("/")[0]
            if space in SUMMARIES:
                axis = self.validation_axis if space == "val" else STEP
                run.define_metric(name, step_metric=axis, summary=SUMMARIES[space])
        self._defined |= names

    def _costs_of(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Costs up to a row of validation; nothing for other rows, or where they are unknown."""
        own = {name: value for name, value in metrics.items() if name.startswith(COSTS)}
        self._costs |= own
        validation = any(name.startswith("val/") for name in metrics)
        if validation and metrics.get(STEP) == 0:
            return {f"{COSTS}{name}": 0.0 for name in ("rollouts", "tokens", "seconds")}
        if validation and not self._costs:  # resumed, and no step has been trained yet
            self._costs = self._recorded_costs(int(metrics[STEP]))
        return dict(self._costs) if validation else {}

    def _recorded_costs(self, step: int) -> dict[str, float]:
        """What the ledger in `save_dir` has of the costs before a rollout step."""
        file = Path(self.save_dir or ".") / METRICS
        rows = read_rows(file) if find_ledger(file) else []
        before = [row for row in rows if row[STEP] < step and any(COSTS in name for name in row)]
        last = max(before, key=lambda row: row[STEP], default={})
        return {name: value for name, value in last.items() if name.startswith(COSTS)}


def _is_table(metrics: Mapping[str, Any]) -> bool:
    return any(not isinstance(value, int | float | str) for value in metrics.values())


def _parts(table: "pd.DataFrame") -> Iterator["pd.DataFrame"]:
    """Whole rollout steps of a table, oldest first, in parts of up to `TABLE_ROWS` rows: as many
    of the latest steps as fit are in the last one. A longer step is a part of its own."""
    part_of: dict[int, int] = {}
    part, room = 0, TABLE_ROWS
    for step, size in table[STEP].value_counts().sort_index(ascending=False).items():
        if size > room and room < TABLE_ROWS:
            part, room = part - 1, TABLE_ROWS
        part_of[step], room = part, room - size
    for _, rows in table.groupby(table[STEP].map(part_of)):
        yield rows
