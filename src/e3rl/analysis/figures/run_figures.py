"""Figures of one run or of several arms with seed bands, and the pictures beside a ledger.

Every function takes runs by arm (`runs.by_arm`; one run is `{run.name: [run]}`) and returns a
`Figure` of its own, without pyplot: nothing is shown, no backend is chosen, no state is left.
Lines of training are means over seeds, their bands the range from the smallest to the largest
seed; lines of validation have 95 % bootstrap intervals over problems. `axis` is one of
`costs.AXES`: what several arms are drawn against. A single run is drawn against its steps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from e3rl.analysis.figures import budget_panel, response_panel, training_panels, validation_panels
from e3rl.analysis.figures.style import MUTED, styled
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.curves import fitting_window
from e3rl.analysis.measures.evaluations import evaluation, evaluation_names
from e3rl.analysis.sources.runs import Run, load_run

Arms = Mapping[str, Sequence[Run]]

NARROW, WIDE, PANEL_HEIGHT = 6.4, 9.2, 3.7  # inches
SEED_BANDS = ", bands: smallest to largest seed"
INTERVALS = ", intervals: problems resampled"


@styled
def entropy_figure(arms: Arms, window: int | None = None, axis: str = "steps") -> Figure:
    """Sampled entropy at tau with its target, and the exact entropy at T = 1.

    Several arms have a panel for each, with one scale; a single run has both in one panel.
    """
    steps = _window(arms, window)
    single = _only_run(arms)
    if single is not None:
        figure, (ax,) = panels(1)
        training_panels.entropy_of_run(ax, single, steps)
        return figure
    figure, (left, right) = panels(2, share_y=True)
    training_panels.entropy_at_tau(left, arms, steps, axis)
    training_panels.entropy_at_one(right, arms, steps, axis)
    right.set_ylabel("")
    shared_legend(figure, left, arms)
    return figure


@styled
def temperature_figure(arms: Arms, axis: str = "steps") -> Figure:
    """Sampling temperature."""
    figure, (ax,) = panels(1)
    training_panels.temperature(ax, arms, axis)
    shared_legend(figure, ax, arms)
    return figure


@styled
def reward_figure(arms: Arms, window: int | None = None, axis: str = "steps") -> Figure:
    """Training accuracy as the mean over prompts; `window` steps are averaged."""
    figure, (ax,) = panels(1)
    training_panels.accuracy(ax, arms, _window(arms, window), axis)
    shared_legend(figure, ax, arms)
    return figure


@styled
def all_wrong_figure(arms: Arms, window: int | None = None, axis: str = "steps") -> Figure:
    """Share of prompts whose rollouts are all wrong; a single run shows all three outcomes."""
    figure, (ax,) = panels(1)
    single = _only_run(arms)
    if single is not None:
        training_panels.outcomes_of_run(ax, single, _window(arms, window))
        return figure
    training_panels.all_wrong(ax, arms, _window(arms, window), axis)
    shared_legend(figure, ax, arms)
    return figure


@styled
def budget_figure(arms: Arms) -> Figure:
    """Rollouts per prompt by epoch, a panel per arm, up to three in a row.

    Arms that give every prompt the same number are left out where others do not.
    """
    uneven = {arm: runs for arm, runs in arms.items() if budget_panel.is_uneven(runs)}
    shown = uneven or dict(list(arms.items())[:1])
    figure, axes = panels(len(shown), columns=3, share_x=True)
    for ax, (arm, runs) in zip(axes, shown.items(), strict=True):
        budget_panel.budgets(ax, runs, f"Rollouts per prompt: {arm_label(arm)}")
    return figure


@styled
def pass_at_k_figure(arms: Arms) -> Figure:
    """pass@k against k with 95 % intervals, a panel per temperature name for several arms."""
    single = _only_run(arms)
    names = [name for name in evaluation_names(arms) if _has_groups(arms, name)]
    if single is not None or not names:
        figure, (ax,) = panels(1)
        validation_panels.pass_at_k_of_run(ax, single or next(iter(arms.values()))[0])
        return figure
    figure, axes = panels(len(names), columns=3, share_y=True)
    for ax, name in zip(axes, names, strict=True):
        validation_panels.pass_at_k_of_arms(ax, arms, name)
    for ax in axes[1:]:
        ax.set_ylabel("")
    shared_legend(figure, axes[0], arms, INTERVALS)
    return figure


@styled
def pass_at_1_figure(arms: Arms, name: str = "t1", axis: str = "steps") -> Figure:
    """pass@1 over training: arms at one temperature name, or all names of a single run."""
    figure, (ax,) = panels(1)
    single = _only_run(arms)
    if single is not None:
        validation_panels.pass_at_1_of_run(ax, single)
        return figure
    validation_panels.pass_at_1_of_arms(ax, arms, name, axis)
    shared_legend(figure, ax, arms, INTERVALS)
    return figure


@styled
def difficulty_figure(arms: Arms) -> Figure:
    """Rollouts per prompt in the last epoch against the prompt's difficulty rank."""
    figure, (ax,) = panels(1)
    budget_panel.by_difficulty(ax, arms)
    shared_legend(figure, ax, arms)
    return figure


@styled
def response_figure(
    arms: Arms | None = None,
    entropy: float | None = None,
    vocabularies: Sequence[int] = (34, 151_936),
) -> Figure:
    """The controller's answer to an entropy error: entropy and temperature after one step.

    Lines: rules on the two-level model of the paper's appendix A with this entropy (nats) at
    temperature 1, by default that of the first recorded step, or the paper's 0.76; dots: steps of
    the given arms that had a schedule (figure 2 of the paper).
    """
    shown = arms or {}
    level = response_panel.first_entropy(shown) if entropy is None else entropy
    figure, (left, right) = panels(2)
    response_panel.entropy_scaling(left, shown, level, vocabularies)
    response_panel.next_temperature(right, shown, level, vocabularies)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, columnspacing=1.4)
    return figure


@styled
def overview_figure(run: Run) -> Figure:
    """One run at a glance: entropy, temperature, pass@1; outcomes, budget, pass@k."""
    arms = {run.name: [run]}
    window = fitting_window([run.train])
    figure = Figure(figsize=(12.6, 7.0), layout="constrained")
    top, bottom = figure.subplots(2, 3)
    training_panels.entropy_of_run(top[0], run, window)
    training_panels.temperature(top[1], arms)
    validation_panels.pass_at_1_of_run(top[2], run)
    training_panels.outcomes_of_run(bottom[0], run, window)
    budget_panel.budgets(bottom[1], [run])
    validation_panels.pass_at_k_of_run(bottom[2], run)
    figure.suptitle(f"{arm_label(run.name)}, seed {run.seed}", x=0.01, ha="left", weight="bold")
    return figure


def save_figures(run_dir: str | Path) -> list[Path]:
    """Write every figure of a run, and the overview first, as PNG to RUN/figures.

    Returns the paths. A quantity that the run did not record is an empty panel that says so.
    """
    run = load_run(run_dir)
    arms = {run.name: [run]}
    figures = {
        "overview": overview_figure(run),
        "entropy": entropy_figure(arms),
        "temperature": temperature_figure(arms),
        "reward": reward_figure(arms),
        "all_wrong": all_wrong_figure(arms),
        "budget": budget_figure(arms),
        "pass_at_k": pass_at_k_figure(arms),
        "pass_at_1": pass_at_1_figure(arms),
    }
    folder = Path(run_dir) / "figures"
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=200)
        paths.append(path)
    return paths


def panels(
    count: int, columns: int = 2, share_x: bool = False, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows of `columns`."""
    columns = min(count, columns)
    rows = -(-count // columns)
    size = (NARROW if columns == 1 else WIDE, PANEL_HEIGHT * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def shared_legend(figure: Figure, ax: Axes, arms: Arms, bands: str = SEED_BANDS) -> None:
    """The legend of `ax` above the panels, and below them what lines and bands mean."""
    most = max(len(runs) for runs in arms.values())
    if most > 1:
        note = f"lines: mean of up to {most} seeds{bands}"
        figure.supxlabel(note, x=0.99, ha="right", fontsize=7.5, color=MUTED)
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        for columns in range(len(labels), 0, -1):  # as many as fit
            legend = figure.legend(
                handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.4
            )
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()


def _only_run(arms: Arms) -> Run | None:
    runs = [run for group in arms.values() for run in group]
    return runs[0] if len(runs) == 1 else None


def _window(arms: Arms, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    return fitting_window([run.train for runs in arms.values() for run in runs])


def _has_groups(arms: Arms, name: str) -> bool:
    """Whether some arm has several rollouts per problem at this temperature name."""
    items = [evaluation(runs, name) for runs in arms.values()]
    return any(item is not None and item.n_samples > 1 for item in items)
