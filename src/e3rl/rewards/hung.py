"""`HungTasks`: what used up the deadline before, and is not waited for again."""

import threading
from collections import OrderedDict
from collections.abc import Hashable

from e3rl.rewards.scorer import Task

LONGEST_MEMORY = 65_536  # tasks remembered, the latest ones
OF_A_GROUP = 8  # of these are compared with a new one
ALIKE_CHARS = 12  # texts that begin alike have so many characters in common, and half of each
ALIKE_TEXTS = 2  # so many have to have hung before another is taken for one of their kind


class HungTasks:
    """Tasks that took the whole deadline of processor time; may be used from several threads.

    The same task is known at once. One of the same group is known as soon as two have hung that
    begin like it: a policy that has fallen for `9^{9^{9^{9}}}+1` goes on with `9^{9^{9^{9}}}+2`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: OrderedDict[Hashable, None] = OrderedDict()
        self._texts: OrderedDict[Hashable, list[str]] = OrderedDict()

    def add(self, task: Task) -> None:
        with self._lock:
            self._keys[task.key] = None
            if task.text:
                self._texts.setdefault(task.group, []).append(task.text)
                del self._texts[task.group][:-OF_A_GROUP]
            for kept in (self._keys, self._texts):
                if len(kept) > LONGEST_MEMORY:
                    kept.popitem(last=False)

    def knows(self, task: Task) -> bool:
        with self._lock:
            if task.key in self._keys:
                return True
            texts = self._texts.get(task.group, ()) if task.text else ()
            return sum(_begin_alike(task.text, text) for text in texts) >= ALIKE_TEXTS


def _begin_alike(one: str, other: str) -> bool:
    letters = enumerate(zip(one, other, strict=False))
    shared = next((n for n, (a, b) in letters if a != b), min(len(one), len(other)))
    return shared >= max(ALIKE_CHARS, len(one) / 2, len(other) / 2)
