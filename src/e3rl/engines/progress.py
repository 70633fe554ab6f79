"""The progress bars that engines share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

BAR_DELAY_S = 3.0  # only what takes longer gets a bar


def rollout_bar(total: int, enabled: bool) -> Any:
    """A bar over `total` rollouts that leaves nothing behind."""
    return tqdm(
        total=total,
        desc="rollouts",
        unit="rollout",
        leave=False,
        delay=BAR_DELAY_S,
        disable=None if enabled else True,  # None: only in a terminal
    )


@contextmanager
def show_notice(text: str, enabled: bool) -> Iterator[None]:
    """A line that stands while something takes its time."""
    hidden = None if enabled else True
    with tqdm(total=0, desc=text, bar_format="{desc}", leave=False, disable=hidden):
        yield
