"""Engines that stop to answer, have no memory, or raise, for commands of tests."""

import time
from collections.abc import Iterator, Sequence

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.transformers import TransformersEngine


class HangingEngine(TransformersEngine):
    """Answers in the validation before training, and hangs in the first rollout step."""

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        if self._version > 0:
            time.sleep(3600)
        return super().generate(requests)


class FullEngine(TransformersEngine):
    """Has memory for nothing."""

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        raise MemoryError("no room for 24 rollouts")


class BrokenEngine(TransformersEngine):
    """Raises."""

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        raise RuntimeError("broken")
