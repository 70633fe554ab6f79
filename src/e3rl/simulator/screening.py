"""Cells of a grid of arms, budget rules and losses, from the least noisy gradient to the most."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from e3rl.analysis.tables.cells import Cells
from e3rl.simulator.gradient import LOSSES, noise, relative_variance
from e3rl.simulator.replay import Passage

WORDS = ("arm", "budget", "loss")
SHARES = ("effective", "all_wrong", "hits", "reached", "spent_share")
NOTE = (
    "Sorted by noise: N·variance/signal², the rollouts that make noise and signal of the gradient "
    "equal. variance: beside even groups under the same loss. Shares in percent; all but `reached` "
    "are of the prompts that were sampled."
)


def cells(
    figures: Mapping[str, Any], passage: Passage, rollouts_per_prompt: int
) -> list[dict[str, Any]]:
    """A row per loss: what the figures of a pass say, and how noisy that loss's gradient is."""
    sampled = passage.rollouts > 0
    rates, rollouts = passage.rates[sampled], passage.rollouts[sampled]
    head = {name: figures[name] for name in ("arm", "budget")}
    return [
        head
        | {
            "loss": loss,
            "noise": noise(loss, rates, rollouts),
            "variance": relative_variance(loss, rates, rollouts, rollouts_per_prompt),
        }
        | {name: figures[name] for name in SHARES}
        for loss in LOSSES
    ]


def ordered(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """All cells by falling worth: noise, and of equal ones the larger effective share; NaN last."""
    table = pd.DataFrame(list(rows))
    return table.sort_values(
        ["noise", "effective"], ascending=[True, False], kind="stable", ignore_index=True
    )


def as_cells(table: pd.DataFrame) -> Cells:
    """The ordered table as texts, numbered from 1."""
    header = ["#", *WORDS, "noise", "variance", *(f"{name} %" for name in SHARES)]
    body = [
        [
            str(number),
            *(str(row[name]) for name in WORDS),
            f"{row['noise']:.1f}",
            f"{row['variance']:.2f}",
            *(f"{100 * row[name]:.1f}" for name in SHARES),
        ]
        for number, row in enumerate(table.to_dict("records"), start=1)
    ]
    return Cells([title.replace("_share", "").replace("_", " ") for title in header], body, NOTE)
