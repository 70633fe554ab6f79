"""The progress bar that engines share."""

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
        disable=not enabled,
    )
