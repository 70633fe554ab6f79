"""Where the time went, one panel (an `Axes`) each: by step, and of the whole run."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from e3rl.analysis.figures.style import INK, MUTED, draw_empty
from e3rl.analysis.measures.resources import phase_seconds, phases_by_step
from e3rl.analysis.sources.runs import Run

# Shades of one hue belong together: the engine's, the update's; what is not training is grey.
PHASE_COLOURS = {
    "start": "#4A5360",
    "engine": "#8A94A1",
    "sync": "#F6CFA0",
    "rollout": "#E69F00",
    "reward": "#9C5A00",
    "probe": "#BFE0F2",
    "forward": "#7CC0E5",
    "backward": "#2E8BC0",
    "optimizer": "#00507F",
    "validation": "#3FA37F",
    "checkpoint": "#B3A0D6",
    "logging": "#D8A7C4",
    "rest": "#D9DDE2",
    "finish": "#2C3540",
}

EMPTY = "no phases recorded"
SMALL = 0.004  # shares below it have no bar of their own in the list


def draw_time_by_step(ax: Axes, run: Run) -> None:
    """Stacked bars: seconds per step by phase, of steps or of means over stretches of them."""
    ax.set_title("Where the time of a step went")
    table = phases_by_step(run)
    if table.empty:
        return draw_empty(ax, EMPTY)
    starts = table.index.to_numpy(dtype=float)
    width = float(starts[1] - starts[0]) if len(starts) > 1 else 1.0
    base = starts * 0.0
    for phase in table:
        height = table[phase].to_numpy()
        colour = PHASE_COLOURS[str(phase)]
        ax.bar(starts, height, width * 0.86, base, align="edge", color=colour, label=phase)
        base = base + height
    ax.set_xlabel("rollout step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    ax.margins(x=0.01)
    note = f", means of {width:.0f} steps" if width > 1 else ""
    ax.set_ylabel(f"seconds per step{note}")
    ax.grid(False, axis="x")


def draw_time_of_run(ax: Axes, run: Run) -> None:
    """Bars: every phase's share of the run, from the start of its process to its figures."""
    found = phase_seconds(run)
    whole = sum(found.values())
    ax.set_title("Where the time of the run went")
    if not found:
        return draw_empty(ax, EMPTY)
    shown = {phase: seconds for phase, seconds in found.items() if seconds >= SMALL * whole}
    for place, (phase, seconds) in enumerate(shown.items()):
        ax.barh(place, seconds / whole, color=PHASE_COLOURS[phase], height=0.74)
        text = f" {100 * seconds / whole:.0f} %, {format_seconds(seconds)}"
        ax.text(seconds / whole, place, text, va="center", fontsize=8, color=INK)
    ax.set_yticks(range(len(shown)), list(shown))
    ax.invert_yaxis()
    ax.set_xlim(0, 1.32 * max(shown.values()) / whole)
    ax.xaxis.set_visible(False)
    ax.spines["bottom"].set_visible(False)
    ax.grid(False)
    rest = whole - sum(shown.values())
    note = f"{format_seconds(whole)} in all" + (
        f", {format_seconds(rest)} of it not shown" * (rest > 0)
    )
    ax.text(1.0, -0.06, note, transform=ax.transAxes, ha="right", fontsize=7.5, color=MUTED)


def format_seconds(seconds: float) -> str:
    """45.3 s, 12 min 5 s or 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
