"""What the tests have in common holds: here, what conftest.py sets for all of them."""

import ast
import gc
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


class LogsWhenCollected:
    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.cycle = self

    def __del__(self) -> None:
        self.logger.warning("collected")


@pytest.fixture
def collected_often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collected_often")
def test_source_is_parsed_while_objects_are_collected_that_log_to_a_closed_output() -> None:
    closed = io.StringIO()
    logger = logging.Logger("of a test that is over")
    logger.addHandler(logging.StreamHandler(closed))
    closed.close()
    source = Path(ast.__file__).read_text()
    for _ in range(3):
        LogsWhenCollected(logger)
        assert ast.parse(source).body
