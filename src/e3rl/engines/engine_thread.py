"""The one thread in which an engine is built, takes weights and samples.

vLLM keeps the CUDA stream of the thread that it is built in, and some of its kernels the device; a
thread that came later would queue work on others, and race with what it reads. So all of it is
done in one thread, which has a stream of its own on a GPU: the trainer's kernels do not queue
behind the engine's, and look-ahead overlaps with the update.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
END: Any = object()


class EngineThread:
    """Runs calls one after the other, in the order in which other threads make them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "engine", initializer=self._begin)
        self._ident: int | None = None  # of the thread, which the first call starts
        self._open = True

    def _begin(self) -> None:
        self._ident = threading.get_ident()

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises in the thread; the caller waits for it.

        Calls from the thread itself, as when a generator is collected there, and those after
        `close`, are made where they are.
        """
        if not self._open or threading.get_ident() == self._ident:
            return work(*args, **kwargs)
        return self._pool.submit(work, *args, **kwargs).result()

    def iterate(self, items: Generator[T, None, None]) -> Iterator[T]:
        """The items of a generator that runs in the thread, up to the item that is asked for."""
        try:
            while (item := self.call(next, items, END)) is not END:
                yield item
        finally:
            self.call(items.close)

    def close(self) -> None:
        """Let the thread end when it has done what it was given; safe to call twice."""
        self._open = False
        self._pool.shutdown()
