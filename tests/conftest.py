"""What tests of several parts share: the embedded policy, and hand-made finished batches."""

import os

# Before torch loads: the cores are shared by every test process.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging
from collections.abc import Callable, Iterator

import pytest
from torch import distributed

from e3rl.batch import RolloutBatch
from e3rl.policy.policy import Policy
from finished_batches import finished_batch

MakeBatch = Callable[..., RolloutBatch]

# An object that is collected after its test may log to an output that pytest has closed. `logging`
# would print that mistake with a traceback, which parses source, and Python 3.11 then fails the
# parse that the collection came into the middle of (SystemError: AST constructor recursion depth
# mismatch, CPython issue 106905). Wrong arguments of a message still fail: pytest's handler raises.
logging.raiseExceptions = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of the longest tests first: what is left for the end is short and shared out evenly."""
    marked = {item.path for item in items if item.get_closest_marker("end_to_end")}

    def place(item: pytest.Item) -> int:
        if item.path.parent.name == "end_to_end" or item.path.name.startswith("test_vllm_"):
            return 0
        return 1 if item.path in marked else 2

    items.sort(key=place)


@pytest.fixture(scope="session")
def policy() -> Policy:
    """The embedded policy, shared: tests that train or alter it take `copy.deepcopy(policy)`."""
    return Policy("embedded_arithmetic")


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Builder of finished batches; see `finished_batch`."""
    return finished_batch


@pytest.fixture
def rank_of_its_own() -> Iterator[None]:
    """For tests that train in this process as one of several ranks might: afterwards neither the
    process group nor what Lightning tells its ranks by the environment is left."""
    before = dict(os.environ)
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
