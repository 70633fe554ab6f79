"""`StepTrace`: torch's profiler over a few rollout steps, switched on and off by the trainer."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.profilers import Profiler

from e3rl.process.distributed import rank

NEXT_STEP = ".train_dataloader_next"  # how the action ends that a rollout step begins with


class StepTrace(Profiler):
    """Traces whole rollout steps, sampling and update; all others run as they always do.

    Lightning's own `PyTorchProfiler` profiles validations too and loses its table with a schedule.

    Leaves `trace-RANK.json.gz`, for https://ui.perfetto.dev, and `operators-RANK.txt`, a table of
    what took longest. Hooks and phases have their names in the trace.

    Args:
        dirpath: folder of the files.
        first: steps of this process that go before; the first ones warm caches up.
        steps: that are traced.
        rows: of the table.
        options: of `torch.profiler.profile`, such as with_stack or profile_memory.

    Raises ValueError for a negative `first`, or less than one step or row.
    """

    def __init__(
        self, dirpath: str, first: int = 2, steps: int = 2, rows: int = 40, **options: Any
    ) -> None:
        super().__init__()
        self._begun = 0  # rollout steps
        # Before anything is refused: Lightning tears down what it finds, also what was refused.
        self._profiler: torch.profiler.profile | None = None
        self._open: dict[str, Any] = {}  # names in the trace, of actions under way
        if first < 0 or steps < 1 or rows < 1:
            raise ValueError(
                f"profiler first={first}, steps={steps}, rows={rows}: use 0 or more, and at "
                "least 1 of the others"
            )
        self.folder = Path(dirpath)
        self.first, self.steps, self.rows, self.options = first, steps, rows, options

    def start(self, action_name: str) -> None:
        if action_name.endswith(NEXT_STEP):
            if self._begun == self.first:
                self._profiler = torch.profiler.profile(**self.options)
                self._profiler.start()
            elif self._begun == self.first + self.steps:
                self._write()
            self._begun += 1
        if self._profiler is not None:
            self._open[action_name] = torch.profiler.record_function(action_name).__enter__()

    def stop(self, action_name: str) -> None:
        if name := self._open.pop(action_name, None):
            name.__exit__(None, None, None)

    def teardown(self, stage: str | None) -> None:
        """Write what there is, where the run ends within the steps that are traced."""
        self._write()
        super().teardown(stage)

    def _write(self) -> None:
        if self._profiler is None:
            return
        for action in list(self._open):
            self.stop(action)
        found, self._profiler = self._profiler, None
        found.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(self.folder / f"trace-{rank()}.json.gz"))
        where = "cuda" if torch.cuda.is_available() else "cpu"
        table = found.key_averages().table(sort_by=f"self_{where}_time_total", row_limit=self.rows)
        (self.folder / f"operators-{rank()}.txt").write_text(table, encoding="utf-8")
