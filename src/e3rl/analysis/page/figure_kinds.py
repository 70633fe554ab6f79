"""The figures that `study.yaml` may name, and the functions that draw them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from matplotlib.figure import Figure

from e3rl.analysis.figures import comparison_figures, frontier_figure, study_figures
from e3rl.analysis.figures import run_figures as figures
from e3rl.analysis.sources.runs import Arms


def _without_control(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A figure that compares with no control."""

    @wraps(draw)
    def wrapper(arms: Arms, control: str | None, **options: Any) -> Figure:
        return draw(arms, **options)

    return wrapper


FIGURES: dict[str, Callable[..., Figure]] = {
    "entropy": figures.entropy_figure,
    "temperature": figures.temperature_figure,
    "reward": figures.reward_figure,
    "all_wrong": figures.all_wrong_figure,
    "budget": _without_control(figures.budget_figure),
    "difficulty": figures.difficulty_figure,
    "pass_at_k": figures.pass_at_k_figure,
    "pass_at_1": figures.pass_at_1_figure,
    "frontier": _without_control(frontier_figure.frontier_figure),
    "response": _without_control(figures.response_figure),
    "length": study_figures.length_figure,
    "resources": _without_control(study_figures.resource_figure),
    "disturbance": _without_control(study_figures.disturbance_figure),
    "reaching": study_figures.reaching_figure,
}
ROW_FIGURES: dict[str, Callable[..., Figure]] = {"forest": comparison_figures.forest_figure}
