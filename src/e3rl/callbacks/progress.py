"""What a run shows while it runs: a bar in a terminal, and a line per validation anywhere."""

import sys
import time
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from e3rl.callbacks.pass_at_k import EvaluationCounts, PassAtK


def progress_callbacks(enabled: bool, total_steps: int) -> list[Callback]:
    """None at all, lines for a log, or lines above a bar for a terminal."""
    if not enabled:
        return []
    lines = Lines(total_steps)
    return [lines, Bar(leave=False)] if sys.stdout.isatty() else [lines]


class Bar(RichProgressBar):
    """Lightning's bar without the version number, which is no news to anybody."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        shown = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in shown.items() if name != "v_num"}


class Lines(Callback):
    """A line per validation: `step 64/192   pass@1 t1 45.1 %, greedy 48.0 %   tau 1.01   2:10`."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._started = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            print(self._line(trainer), flush=True)

    def _line(self, trainer: Trainer) -> str:
        results = next(c.results for c in trainer.callbacks if isinstance(c, PassAtK))  # type: ignore[attr-defined]
        shares = ", ".join(f"{r.name} {100 * mean_share(r):.1f} %" for r in results)
        finished = trainer.fit_loop.total_batch_idx + 1
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        parts = [f"step {finished:>{len(str(self._total))}}/{self._total}", f"pass@1 {shares}"]
        if (tau := trainer.progress_bar_metrics.get("tau")) is not None:
            parts.append(f"tau {tau:.2f}")
        return "   ".join([*parts, f"{minutes}:{seconds:02}"])


def mean_share(counts: EvaluationCounts) -> float:
    """pass@1: the mean over problems of the share of right answers."""
    shares = [c / n for c, n in zip(counts.correct, counts.n, strict=True)]
    return float(sum(shares) / len(shares))
