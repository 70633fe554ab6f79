"""What tests of several parts share: the embedded policy, and hand-made finished batches."""

import os

# Before torch loads: the cores are shared by every test process.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable

import pytest

from e3rl.batch import RolloutBatch
from e3rl.policy import Policy
from finished_batches import finished_batch

MakeBatch = Callable[..., RolloutBatch]


@pytest.fixture(scope="session")
def policy() -> Policy:
    """The embedded policy, shared: tests that train or alter it take `copy.deepcopy(policy)`."""
    return Policy()


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Builder of finished batches; see `finished_batch`."""
    return finished_batch
