"""`PhaseClock`: which phase of a run every second of its main thread belongs to."""

import threading
import time
from typing import Any

from lightning import Trainer
from lightning.pytorch.profilers import PassThroughProfiler, Profiler

from e3rl.ledger.phases import phase_column
from e3rl.process.distributed import rank

# What slots and module say of their own work, beside the actions that Lightning announces.
SYNC, REWARD, PROBE, BACKWARD = "e3rl/sync", "e3rl/reward", "e3rl/probe", "e3rl/backward"
NORM = "e3rl/norm"  # of the gradient, which an optimiser step begins with
PHASE_OF_ACTION = {
    "[Callback]e3rl/rollout.on_train_batch_start": "rollout",
    "[Callback]e3rl/rollout.on_train_batch_end": "rollout",  # the rest of what is sampled ahead
    "[Callback]e3rl/metrics.on_train_batch_end": "logging",
    SYNC: "sync",
    REWARD: "reward",
    PROBE: "probe",
    BACKWARD: "backward",
    NORM: "optimizer",
    "optimizer_step": "optimizer",
    "save_checkpoint": "checkpoint",
}
VALIDATES = ("on_validation_", "validation_step", "val_next")  # in the names of actions


class PhaseClock(Profiler):
    """A profiler of Lightning that never loses a second, around one that the user may choose.

    At each moment one phase is on: the innermost action of the main thread that has one. A
    validation is one phase, whatever happens in it but the engine's start and checkpoints. So the
    seconds of all laps add up to the time since `began`. Other threads do not count: what they do
    is hidden behind the main thread's work.

    Args:
        inner: profiler that is told of the main thread's actions too; it writes its own files.
        began: `time.monotonic()` at which the phase `start` began; None: now.
    """

    def __init__(self, inner: Profiler | None = None, began: float | None = None) -> None:
        super().__init__()
        self.inner = inner or PassThroughProfiler()
        self._thread = threading.get_ident()
        # Under way, the innermost last; one without a phase is in that of the one around it.
        self._actions: list[tuple[str, str | None]] = [("", "start")]
        self._since = time.monotonic() if began is None else began
        self._seconds: dict[str, float] = {}
        self._engine_runs = False

    def start(self, action_name: str) -> None:
        if threading.get_ident() != self._thread:
            return
        phase = self._phase_of(action_name)
        if phase is not None:
            self._count()
            if self._actions[0][1] == "start":
                self._actions[0] = ("", "rest")
        self._actions.append((action_name, phase))
        self.inner.start(action_name)

    def stop(self, action_name: str) -> None:
        if threading.get_ident() != self._thread:
            return
        names = [name for name, _ in self._actions]
        last = len(names)
        if action_name in names[1:]:
            last -= 1 + names[::-1].index(action_name)
        for name in reversed(names[last:] or [action_name]):  # an error may have left inner ones
            self.inner.stop(name)
        self._count()
        self._engine_runs |= action_name == SYNC
        del self._actions[last:]

    def lap(self) -> dict[str, float]:
        """Seconds of every phase since the last lap, by `phase_column`; what took none is out."""
        found = self.look()
        self._seconds = {}
        return found

    def look(self) -> dict[str, float]:
        """What `lap` would return, in the midst of one."""
        self._count()
        return {phase_column(phase): s for phase, s in self._seconds.items() if s > 0}

    def finish(self) -> None:
        """Count what follows as the run's last phase."""
        self._count()
        self._actions = [("", "finish")]

    @property
    def _phase(self) -> str:
        return next(phase for _, phase in reversed(self._actions) if phase is not None)

    def _phase_of(self, action: str) -> str | None:
        """The phase that an action begins, None where it goes on with that around it."""
        if action == SYNC and not self._engine_runs:
            return "engine"
        if action == "save_checkpoint":
            return "checkpoint"
        if self._phase == "validation":
            return None
        if any(word in action for word in VALIDATES):
            return "validation"
        if action.startswith("[Strategy]") and action.endswith(".training_step"):
            return "forward"
        return PHASE_OF_ACTION.get(action)

    def _count(self) -> None:
        now = time.monotonic()
        phase = self._phase
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now

    # What a trainer asks of its profiler besides, for the one that the user chose.

    @property
    def _lightning_module(self) -> Any:
        return getattr(self.inner, "_lightning_module", None)

    @_lightning_module.setter
    def _lightning_module(self, module: Any) -> None:
        self.inner._lightning_module = module  # type: ignore[attr-defined]

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Files are named by the rank among all machines', which may share the run's folder."""
        self.inner.setup(stage, rank(), log_dir)

    def teardown(self, stage: str | None) -> None:
        self.inner.teardown(stage)

    def summary(self) -> str:
        return self.inner.summary()

    def describe(self) -> None:
        self.inner.describe()


def lap_of(trainer: Trainer) -> dict[str, float]:
    """The lap of a trainer that has a clock, nothing of another."""
    profiler = trainer.profiler  # type: ignore[attr-defined]
    return profiler.lap() if isinstance(profiler, PhaseClock) else {}
