"""Several processes of one machine that sample an evaluation together, each with its devices."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from e3rl.config.composition import ConfigurationError
from e3rl.process.parent import watch_over_parent

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOK_S = 0.2
END_S = 30.0  # for a process to end after it was told to
Work = Callable[[dict[str, Any]], None]


def count_processes(asked: int | str, devices: Sequence[str], each: int) -> int:
    """How many processes `processes=...` means: `auto` is one for every `each` devices.

    Raises ConfigurationError for what is neither a number above 0 nor `auto`, and where there are
    GPUs, but not `each` for every process.
    """
    if asked == "auto":
        asked = max(1, len(devices) // each)
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise ConfigurationError(f"processes={asked}: use a number above 0, or auto")
    if asked > 1 and devices and asked * each > len(devices):
        raise ConfigurationError(
            f"processes={asked} with {each} GPUs each: there are {len(devices)}; lower processes "
            "or engine.settings.tensor_parallel_size"
        )
    return asked


def visible_devices() -> list[str]:
    """Names of the GPUs that this process may use; none without CUDA."""
    from torch import cuda  # it asks the driver, and leaves CUDA to those who use it

    count = cuda.device_count()
    named = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    return named[:count] if named else [str(i) for i in range(count)]


def run_parts(
    work: Work, cfg: Mapping[str, Any], count: int, devices: Sequence[str], each: int
) -> None:
    """`work` on the settings with `part=i/count` in `count` processes, each with `each` GPUs.

    Raises ChildProcessError where one fails, after the others have been ended: what is finished is
    in their logs.
    """
    context, running = get_context("spawn"), list[BaseProcess]()
    try:
        for i in range(count):
            settings = {**cfg, "part": f"{i + 1}/{count}", "processes": 1}
            process = context.Process(target=_work, args=(work, settings, os.getpid()))
            with _devices(devices[i * each : (i + 1) * each]):
                process.start()
            running.append(process)
        wait_for(running)
    finally:
        _end(running)


def _work(work: Work, settings: dict[str, Any], parent: int) -> None:
    watch_over_parent(parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        work(settings)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


class _devices:
    """What a process that is started inside of it takes for all GPUs there are."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = ",".join(names)
        self.before = os.environ.get(VISIBLE)

    def __enter__(self) -> None:
        if self.names:
            os.environ[VISIBLE] = self.names

    def __exit__(self, *error: object) -> None:
        if self.before is not None:
            os.environ[VISIBLE] = self.before
        else:
            os.environ.pop(VISIBLE, None)


def wait_for(running: Sequence[BaseProcess]) -> None:
    """Raises ChildProcessError where one ends with another exit code than 0."""
    while any(process.is_alive() for process in running):
        time.sleep(LOOK_S)
        _look(running)
    _look(running)  # at those that ended after the last look


def _look(running: Sequence[BaseProcess]) -> None:
    for i, process in enumerate(running, start=1):
        if process.exitcode:
            raise ChildProcessError(
                f"process {i} of {len(running)} ended with exit code {process.exitcode}: what "
                "it said stands above. The same command goes on with what is finished"
            )


def _end(running: Sequence[BaseProcess]) -> None:
    for process in running:
        process.terminate()
    until = time.monotonic() + END_S
    for process in running:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
