"""How many rollouts a prompt got: a histogram per epoch in rows of one panel, and by difficulty."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from e3rl.analysis.figures.small_multiples import Panels, explain_ranges
from e3rl.analysis.figures.style import INK, MUTED, arm_colour, draw_empty, name_line, tint
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.difficulty import budget_by_difficulty
from e3rl.analysis.sources.runs import Arms, Run

MAX_ROWS = 4
ROW_HEIGHT = 0.62


def draw_rollout_counts(
    ax: Axes, runs: Sequence[Run], title: str = "Rollouts per prompt", colour: str | None = None
) -> None:
    """Histogram of rollouts per prompt, epochs from top to bottom, seeds pooled.

    Every row is scaled to its own peak, since a uniform epoch is a single tall bar; the bounds
    that occurred, the mean, and the share of prompts in the tallest bar stand at the right edge.
    """
    ax.set_title(title)
    prompts = pd.concat([run.prompts[["epoch", "n"]] for run in runs], ignore_index=True)
    if prompts.empty:
        return draw_empty(ax, "no prompts.jsonl recorded")
    rows = select_epochs(prompts["epoch"])
    right = int(prompts["n"].max())
    for level, epoch in enumerate(rows):
        n = prompts.loc[prompts["epoch"] == epoch, "n"].astype("int64")
        shares = n.value_counts(normalize=True).sort_index()
        ax.bar(
            shares.index,
            shares / shares.max() * ROW_HEIGHT,
            bottom=-level,
            width=0.82,
            color=tint(colour or arm_colour(runs[0].name), 0.45 + 0.55 * (level + 1) / len(rows)),
            linewidth=0,
        )
        note = f"{n.min()} to {n.max()}\nmean {n.mean():.1f}\npeak {shares.max():.0%}"
        ax.text(
            0.99,
            -level + ROW_HEIGHT + 0.06,
            note,
            transform=ax.get_yaxis_transform(),
            ha="right",
            va="top",
            fontsize=7.5,
            color=MUTED,
            linespacing=1.3,
        )
    _label_rows(ax, rows, right, low=int(prompts["n"].min()))


def draw_by_difficulty(ax: Axes, arms: Arms, title: str = "Rollouts by difficulty") -> None:
    """Mean rollouts per prompt in the last epoch over the difficulty rank, with seed ranges."""
    ax.set_title(title)
    bands = {arm: budget_by_difficulty(runs) for arm, runs in arms.items()}
    for arm, band in bands.items():
        if band is not None:
            colour = arm_colour(arm, list(arms))
            ax.fill_between(band.x, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
            (line,) = ax.plot(band.x, band.mean, color=colour, marker="o", markersize=3.5)
            name_line(ax, line, arm_label(arm), colour)
    if not any(bands.values()):
        return draw_empty(ax, "no prompts.jsonl recorded")
    _label_difficulty(ax)


def difficulty_panels(arms: Arms) -> Panels:
    """Rollouts by difficulty for a panel per arm; an arm that recorded no prompts has none."""
    bands = {arm: budget_by_difficulty(runs) for arm, runs in arms.items()}
    curves = {arm: band for arm, band in bands.items() if band is not None}

    def label(ax: Axes) -> None:
        _label_difficulty(ax)
        ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])

    return Panels(curves, label, dots=True, notes=explain_ranges(curves))


def is_uneven(runs: Sequence[Run]) -> bool:
    """Whether prompts of one rollout step ever got different numbers of rollouts."""
    return any(bool((run.prompts.groupby("rollout_step")["n"].nunique() > 1).any()) for run in runs)


def select_epochs(epochs: pd.Series) -> list[int]:
    """All epochs, or `MAX_ROWS` of them spread from the first to the last."""
    every = sorted(int(epoch) for epoch in epochs.unique())
    if len(every) <= MAX_ROWS:
        return every
    return [every[i] for i in np.linspace(0, len(every) - 1, MAX_ROWS).round().astype(int)]


def _label_difficulty(ax: Axes) -> None:
    ax.set_xlim(0, 1)
    ax.set_xlabel("difficulty rank, 0 = easiest")
    ax.set_ylabel("rollouts per prompt, last epoch")


def _label_rows(ax: Axes, rows: Sequence[int], right: int, low: int) -> None:
    ax.set_yticks([0.5 * ROW_HEIGHT - level for level in range(len(rows))])
    ax.set_yticklabels([f"epoch {epoch + 1}" for epoch in rows], color=INK)
    for level in range(len(rows)):
        ax.axhline(-level, color=MUTED, linewidth=0.5)
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    ax.set_ylim(1 - len(rows) - 0.04, ROW_HEIGHT + 0.12)
    ax.set_xlim(low - 0.8, right + 0.8 + 0.35 * (right - low + 1))  # room for the notes
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    ax.set_xlabel("rollouts per prompt")
