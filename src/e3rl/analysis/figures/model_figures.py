"""pass@k against k, a panel per problem set and a line with its band per model."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from e3rl.analysis.figures.run_figures import panels
from e3rl.analysis.figures.style import MUTED, arm_colour, styled
from e3rl.analysis.figures.validation_panels import draw_pass_at_k
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.model_scores import Sampled


@styled
def pass_at_k_of_models(found: Sequence[Sampled]) -> Figure:
    """Bands are 95 % intervals over problems. Single samples, such as greedy ones, have no curve.

    Raises ValueError where nothing has several samples.
    """
    drawn = [each for each in found if each.n_samples > 1]
    if not drawn:
        raise ValueError("no problem set was sampled more than once: pass@k against k needs n > 1")
    models = list(dict.fromkeys(each.model for each in drawn))
    keys = list(dict.fromkeys((each.problem_set, each.evaluation) for each in drawn))
    ways = {evaluation for _, evaluation in keys}
    figure, axes = panels(len(keys), columns=3)
    for ax, key in zip(axes, keys, strict=True):
        ax.set_title(f"{key[0]}, {key[1]}" if len(ways) > 1 else key[0])
        for each in drawn:
            if (each.problem_set, each.evaluation) == key:
                label = arm_label(each.model)
                draw_pass_at_k(ax, each.as_evaluation(), arm_colour(each.model, models), label)
    for ax in axes[1:]:
        ax.set_ylabel("")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(4, len(labels)))
    note = f"n = {min(each.n_samples for each in drawn)} samples per problem or more"
    figure.supxlabel(note, x=0.99, ha="right", fontsize=7.5, color=MUTED)
    return figure
