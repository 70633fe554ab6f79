"""Cells of a grid of arms, budget rules and losses, from the least noisy gradient to the most."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from e3rl.analysis.tables.cells import Cells
from e3rl.simulator.gradient import LOSSES, gradient_noise_scale, relative_variance
from e3rl.simulator.replay import PassResult

WORDS = ("arm", "budget", "loss")
SHARES = ("effective", "all_wrong", "hits", "reached", "spent_share")
NOTE = (
    "Sorted by noise: N·variance/signal², the rollouts that make noise and signal of the gradient "
    "equal. variance: beside even groups under the same loss. Shares in percent; all but `reached` "
    "are of the prompts that were sampled."
)


def screening_rows(
    summary: Mapping[str, Any], result: PassResult, rollouts_per_prompt: int
) -> list[dict[str, Any]]:
    """A row per loss for one arm and rule: how noisy the gradient of that loss would be.

    Args:
        summary: of the pass, from `summarize_pass`, with arm and budget beside it.
        result: of the pass itself.
        rollouts_per_prompt: size of the even groups that the variance is compared with.
    """
    rates, rollouts, right = result.sampled_groups()
    head = {name: summary[name] for name in ("arm", "budget")}
    return [
        head
        | {
            "loss": loss,
            "noise": gradient_noise_scale(loss, rates, rollouts, right),
            "variance": relative_variance(loss, rates, rollouts, rollouts_per_prompt, right),
        }
        | {name: summary[name] for name in SHARES}
        for loss in LOSSES
    ]


def sort_by_noise(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """From the least noise to the most, of equals the larger effective share first; NaN last."""
    table = pd.DataFrame(list(rows))
    return table.sort_values(
        ["noise", "effective"], ascending=[True, False], kind="stable", ignore_index=True
    )


def screening_cells(table: pd.DataFrame) -> Cells:
    """The sorted table as texts, rows numbered from 1."""
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
