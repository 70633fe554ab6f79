"""Figures of one run or of several arms with seed bands, and the pictures beside a ledger.

Every function takes runs by arm (`runs.group_by_arm`; one run is `{run.name: [run]}`) and returns a
`Figure` of its own, without pyplot: nothing is shown, no backend is chosen, no state is left.
Lines of training are means over seeds, their bands the range from the smallest to the largest
seed; lines of validation have 95 % intervals over seeds and problems. Seeds that are far behind
others of their arm are left out, and a note names them (`curves.without_short`). `axis` is one of
`axes.AXES`: what several arms are drawn against. A single run is drawn against its steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from e3rl.analysis.figures import (
    budget_panel,
    response_panel,
    time_panels,
    training_panels,
    validation_panels,
)
from e3rl.analysis.figures.difference_panels import draw_pass_at_k_less_control
from e3rl.analysis.figures.small_multiples import draw_multiples
from e3rl.analysis.figures.style import (
    SHORTER,
    arm_colour,
    draw_shared_legend,
    make_panels,
    name_left_out,
    note_below,
    with_style,
)
from e3rl.analysis.figures.training_panels import (
    ACCURACY,
    ALL_WRONG,
    ENTROPY_AT_ONE,
    ENTROPY_AT_TAU,
    TEMPERATURE,
    Quantity,
)
from e3rl.analysis.figures.validation_panels import INTERVALS, draw_pass_at_k, evaluation_title
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.curves import smoothing_window, without_short
from e3rl.analysis.measures.evaluations import evaluation_names, has_groups, split_by_end
from e3rl.analysis.measures.model_scores import ModelResult
from e3rl.analysis.measures.resources import SINCE_LAST_ROW
from e3rl.analysis.sources.runs import Arms, Run, load_run

# Arms that one panel can hold, more have a panel each: with intervals over problems, that are wide,
# and with ranges of seeds.
FEW, MANY = 3, 6


@with_style
def entropy_figure(
    arms: Arms, control: str | None = None, window: int | None = None, axis: str = "steps"
) -> Figure:
    """Sampled entropy at tau with its target, and the exact entropy at T = 1, on one scale.

    Several arms have a panel for each of the two, many arms a pair of panels each; a single run has
    both in one panel.
    """
    single = _only_run(arms)
    if single is not None:
        figure, (ax,) = make_panels(1)
        training_panels.draw_entropy_of_run(ax, single, _window(arms, window))
        return figure
    return _training_figure(arms, control, [ENTROPY_AT_TAU, ENTROPY_AT_ONE], window, axis)


@with_style
def temperature_figure(arms: Arms, control: str | None = None, axis: str = "steps") -> Figure:
    """Sampling temperature."""
    return _training_figure(arms, control, [TEMPERATURE], 1, axis)


@with_style
def reward_figure(
    arms: Arms, control: str | None = None, window: int | None = None, axis: str = "steps"
) -> Figure:
    """Training accuracy as the mean over prompts; `window` steps are averaged."""
    return _training_figure(arms, control, [ACCURACY], window, axis)


@with_style
def all_wrong_figure(
    arms: Arms, control: str | None = None, window: int | None = None, axis: str = "steps"
) -> Figure:
    """Share of prompts whose rollouts are all wrong; a single run shows all three outcomes."""
    single = _only_run(arms)
    if single is not None:
        figure, (ax,) = make_panels(1)
        training_panels.draw_outcomes_of_run(ax, single, _window(arms, window))
        return figure
    return _training_figure(arms, control, [ALL_WRONG], window, axis)


@with_style
def budget_figure(arms: Arms) -> Figure:
    """Rollouts per prompt by epoch, a panel per arm, up to three in a row.

    Arms that give every prompt the same number are left out where others do not.
    """
    uneven = {arm: runs for arm, runs in arms.items() if budget_panel.is_uneven(runs)}
    shown = uneven or dict(list(arms.items())[:1])
    figure, axes = make_panels(len(shown), columns=3)
    for ax, (arm, runs) in zip(axes, shown.items(), strict=True):
        colour = arm_colour(arm, list(arms))
        budget_panel.draw_rollout_counts(ax, runs, arm_label(arm), colour)
    note_below(figure, "bars: share of prompts, each epoch to its own peak; seeds pooled")
    return figure


@with_style
def pass_at_k_figure(
    arms: Arms, control: str | None = None, name: str = "t1", less_control: bool = False
) -> Figure:
    """pass@k against k with 95 % intervals.

    A few arms have a panel per evaluation; many have a panel each, in the evaluation `name`, beside
    the control (the first arm where none is given). With `less_control`, for curves that are alike,
    panels show differences to the control.
    """
    if less_control:
        return draw_pass_at_k_less_control(arms, control or next(iter(arms)), name)
    single = _only_run(arms)
    names = [name for name in evaluation_names(arms) if has_groups(arms, name)]
    early = [run for runs in arms.values() for run in split_by_end(runs)[1]]
    if len(arms) > FEW:
        shown = validation_panels.pass_at_k_panels(arms, name)
        figure = draw_multiples(arms, control, [shown], evaluation_title(name))
        return name_left_out(figure, early, "validated last before other seeds")
    if single is not None or not names:
        figure, (ax,) = make_panels(1)
        validation_panels.draw_pass_at_k_of_run(ax, single or next(iter(arms.values()))[0])
        return figure
    figure, axes = make_panels(len(names), columns=3, share_y=True)
    for ax, name in zip(axes, names, strict=True):
        validation_panels.draw_pass_at_k_of_arms(ax, arms, name)
    for ax in axes[1:]:
        ax.set_ylabel("")
    draw_shared_legend(figure, axes[0], arms, f"; {INTERVALS}")
    return name_left_out(figure, early, "validated last before other seeds")


@with_style
def pass_at_1_figure(
    arms: Arms, control: str | None = None, name: str = "t1", axis: str = "steps"
) -> Figure:
    """pass@1 over training: arms in one evaluation, or all evaluations of a single run.

    Many arms have a panel each, beside the control (the first arm where none is given).
    """
    single = _only_run(arms)
    arms, short = without_short(arms)
    if len(arms) > FEW:
        shown = validation_panels.pass_at_1_panels(arms, name, axis)
        figure = draw_multiples(arms, control, [shown], evaluation_title(name))
        return name_left_out(figure, short, SHORTER)
    figure, (ax,) = make_panels(1)
    if single is not None:
        validation_panels.draw_pass_at_1_of_run(ax, single)
        return figure
    validation_panels.draw_pass_at_1_of_arms(ax, arms, name, axis)
    draw_shared_legend(figure, ax, arms, f"; {INTERVALS}")
    return name_left_out(figure, short, SHORTER)


@with_style
def difficulty_figure(arms: Arms, control: str | None = None) -> Figure:
    """Rollouts per prompt in the last epoch against the prompt's difficulty rank."""
    arms, short = without_short(arms)
    if len(arms) > MANY:
        shown = budget_panel.difficulty_panels(arms)
        figure = draw_multiples(arms, control, [shown], "Rollouts by difficulty")
        return name_left_out(figure, short, SHORTER)
    figure, (ax,) = make_panels(1)
    budget_panel.draw_by_difficulty(ax, arms)
    draw_shared_legend(figure, ax, arms)
    return name_left_out(figure, short, SHORTER)


@with_style
def response_figure(
    arms: Arms | None = None,
    entropy: float | None = None,
    vocabularies: Sequence[int] = (34, 151_936),
) -> Figure:
    """The controller's answer to an entropy error: entropy and temperature after one step.

    Lines: rules on the two-level model of the paper's appendix A with this entropy (nats) at
    temperature 1, by default that of the first recorded step, or the paper's 0.76; dots: steps of
    the given arms that had a schedule (figure 2 of the paper), their entropies by elasticity.
    """
    shown = arms or {}
    level = response_panel.first_entropy(shown) if entropy is None else entropy
    figure, (left, right) = make_panels(2)
    response_panel.draw_entropy_scaling(left, shown, level, vocabularies)
    response_panel.draw_next_temperature(right, shown, level, vocabularies)
    handles, labels = left.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside upper left", ncols=4, columnspacing=1.4)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    if left.collections:
        note_below(figure, response_panel.DOTS)
    return figure


@with_style
def overview_figure(run: Run) -> Figure:
    """One run at a glance: entropy, temperature, pass@1; outcomes, budget, pass@k; where the time
    went, step by step and in all."""
    arms = {run.name: [run]}
    window = smoothing_window([run.train])
    figure = Figure(figsize=(12.6, 10.4), layout="constrained")
    grid = figure.add_gridspec(3, 3)
    top, bottom = ([figure.add_subplot(grid[row, column]) for column in range(3)] for row in (0, 1))
    training_panels.draw_entropy_of_run(top[0], run, window)
    training_panels.draw_quantity(top[1], TEMPERATURE, arms)
    validation_panels.draw_pass_at_1_of_run(top[2], run)
    training_panels.draw_outcomes_of_run(bottom[0], run, window)
    budget_panel.draw_rollout_counts(bottom[1], [run])
    validation_panels.draw_pass_at_k_of_run(bottom[2], run)
    time_panels.draw_time_by_step(figure.add_subplot(grid[2, :2]), run)
    time_panels.draw_time_of_run(figure.add_subplot(grid[2, 2]), run)
    figure.suptitle(f"{arm_label(run.name)}, seed {run.seed}", x=0.01, ha="left", weight="bold")
    return figure


@with_style
def pass_at_k_of_models(found: Sequence[ModelResult]) -> Figure:
    """pass@k against k for models, a panel per problem set, with 95 % intervals over problems.

    Evaluations of a single sample per problem, such as greedy ones, have no curve.

    Raises ValueError where nothing has several samples.
    """
    drawn = [each for each in found if each.n_samples > 1]
    if not drawn:
        raise ValueError("no problem set was sampled more than once: pass@k against k needs n > 1")
    models = list(dict.fromkeys(each.model for each in drawn))
    keys = list(dict.fromkeys((each.problem_set, each.evaluation) for each in drawn))
    ways = {evaluation for _, evaluation in keys}
    figure, axes = make_panels(len(keys), columns=3)
    for ax, key in zip(axes, keys, strict=True):
        ax.set_title(f"{key[0]}, {key[1]}" if len(ways) > 1 else key[0])
        for each in drawn:
            if (each.problem_set, each.evaluation) == key:
                label = arm_label(each.model)
                draw_pass_at_k(
                    ax, each.as_evaluation_result(), arm_colour(each.model, models), label
                )
    for ax in axes[1:]:
        ax.set_ylabel("")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(4, len(labels)))
    least = min(each.n_samples for each in drawn)
    note_below(figure, f"n = {least} samples per problem or more; bands: 95 % over problems")
    return figure


def save_figures(
    run_dir: str | Path, since_last_row: Callable[[], Mapping[str, float]] | None = None
) -> list[Path]:
    """Write every figure of a run as PNG to RUN/figures; returns the paths, the overview's first.

    A quantity that the run did not record is an empty panel that says so. The overview is drawn
    last: `since_last_row` then tells the seconds of a run that has no summary yet.
    """
    run = load_run(run_dir)
    arms = {run.name: [run]}
    folder = Path(run_dir) / "figures"
    folder.mkdir(exist_ok=True)
    figures: dict[str, Callable[[Arms], Figure]] = {
        "entropy": entropy_figure,
        "temperature": temperature_figure,
        "reward": reward_figure,
        "all_wrong": all_wrong_figure,
        "budget": budget_figure,
        "pass_at_k": pass_at_k_figure,
        "pass_at_1": pass_at_1_figure,
    }
    paths = [folder / f"{name}.png" for name in ("overview", *figures)]
    for path, draw in zip(paths[1:], figures.values(), strict=True):
        draw(arms).savefig(path, dpi=200)
    if since_last_row is not None:
        run = replace(run, summary={SINCE_LAST_ROW: since_last_row()})
    overview_figure(run).savefig(paths[0], dpi=200)
    return paths


def _training_figure(
    arms: Arms,
    control: str | None,
    quantities: Sequence[Quantity],
    window: int | None,
    axis: str,
) -> Figure:
    """A panel per quantity; of many arms, a panel per arm and quantity."""
    arms, short = without_short(arms)
    steps = _window(arms, window)
    if len(arms) > MANY:
        shown = [training_panels.quantity_panels(each, arms, steps, axis) for each in quantities]
        title = "; beside it: ".join(each.title for each in quantities)
        return name_left_out(draw_multiples(arms, control, shown, title), short, SHORTER)
    figure, axes = make_panels(len(quantities), share_y=True)
    for ax, each in zip(axes, quantities, strict=True):
        training_panels.draw_quantity(ax, each, arms, steps, axis)
    for ax in axes[1:]:
        ax.set_ylabel("")
    draw_shared_legend(figure, axes[0], arms)
    return name_left_out(figure, short, SHORTER)


def _only_run(arms: Arms) -> Run | None:
    runs = [run for group in arms.values() for run in group]
    return runs[0] if len(runs) == 1 else None


def _window(arms: Arms, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    return smoothing_window([run.train for runs in arms.values() for run in runs])
