"""How the temperature controller answers an entropy error: asked for, and what its steps do.

The model is the one behind the paper's step (arXiv 2505.18573, appendix A): one leading token, and
V - 1 others that are equal, a logit gap D below it. At temperature τ

    p = 1/(1 + (V-1)·e^(-D/τ)),   q = (1-p)/(V-1),   H = -p ln p - (V-1)·q ln q
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from e3rl.analysis.figures.style import INK, OTHER_COLOURS, arm_colour
from e3rl.analysis.figures.training_panels import EXACT_AT_ONE
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.functional.temperature import elasticity_step, paper_step

REACHES = (1.1, 2.0)  # largest α shown, around recorded steps at least and at most
POINTS = 121
PAPER_ENTROPY = 0.76  # nats, of the first step of its runs
MU = 0.4  # gain of the measured-elasticity rule
DOTS = (
    "dots: steps of runs; right: their recorded temperatures τ', τ; left: computed, (τ'/τ) to the "
    "power of the recorded elasticity, not the entropy of the next batch"
)
GAPS, BISECTIONS = (1e-6, 200.0), 80


def two_level_entropy(gap: float, tau: float, vocabulary: int) -> float:
    """Entropy of the model in nats; D in logits at τ = 1."""
    others = (vocabulary - 1) * math.exp(-gap / tau)
    lead = 1 / (1 + others)
    return math.log1p(others) + (1 - lead) * gap / tau


def two_level_elasticity(gap: float, tau: float, vocabulary: int) -> float:
    """d ln H/d ln τ = Var[ln p]/H = p(1-p)·(D/τ)²/H of the model."""
    others = (vocabulary - 1) * math.exp(-gap / tau)
    lead = 1 / (1 + others)
    return lead * (1 - lead) * (gap / tau) ** 2 / two_level_entropy(gap, tau, vocabulary)


def logit_gap(entropy: float, vocabulary: int) -> float:
    """The gap D in logits at which the model has this entropy (nats) at τ = 1, by bisection.

    Raises ValueError for an entropy outside (0, ln V).
    """
    if not 0 < entropy < math.log(vocabulary):
        raise ValueError(
            f"entropy={entropy} must lie between 0 and ln {vocabulary} = {math.log(vocabulary):.3g}"
        )
    low, high = GAPS
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if two_level_entropy(middle, 1.0, vocabulary) > entropy:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def controller_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """What temperature controllers did, a row per step.

    Columns are alpha, ratio = τ'/τ and scaling = (τ'/τ)^ε.

    The scaling is what the step does to the entropy at fixed states, by the measured elasticity
    ε = varentropy/entropy; the entropy of the next batch differs by its noise and by learning.
    Empty where a run has no schedule or no varentropy.
    """
    needed = {"temperature/log_alpha", "policy/varentropy", "policy/entropy_exact"}
    parts = []
    for run in runs:
        if not needed <= set(run.train):
            continue
        rows = run.train.dropna(subset=sorted(needed))
        ratio = rows["temperature/value"] / rows["rollout/temperature"]
        elasticity = rows["policy/varentropy"] / rows["policy/entropy_exact"]
        alpha = np.exp(rows["temperature/log_alpha"])
        parts.append(pd.DataFrame({"alpha": alpha, "ratio": ratio, "scaling": ratio**elasticity}))
    columns = ["alpha", "ratio", "scaling"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def first_entropy(arms: Arms) -> float:
    """Entropy at temperature 1 of the first step that any run recorded; the paper's without one."""
    for run in (run for runs in arms.values() for run in runs):
        known = run.train.get(EXACT_AT_ONE, pd.Series(dtype="float64")).dropna()
        if not known.empty:
            return float(known.iloc[0])
    return PAPER_ENTROPY


def draw_entropy_scaling(ax: Axes, arms: Arms, entropy: float, vocabularies: Sequence[int]) -> None:
    """The factor that one step puts on the entropy, against the factor asked for."""
    ax.set_title("Entropy after one step, computed")
    alphas = alpha_grid(arms)
    for (label, colour, gap, vocabulary), taus in _rules(alphas, entropy, vocabularies):
        scaling = [two_level_entropy(gap, tau, vocabulary) / entropy for tau in taus]
        ax.plot(alphas, scaling, color=colour, label=label)
    ax.plot(alphas, alphas, color=INK, linewidth=1.0, dashes=(4, 2.5), label="all at once")
    _draw_dots(ax, arms, "scaling")
    _format_alpha_axis(ax)
    ax.set_ylabel("entropy, as a multiple of before")


def draw_next_temperature(
    ax: Axes, arms: Arms, entropy: float, vocabularies: Sequence[int]
) -> None:
    """The temperature after one step, as a multiple of the one before, from τ = 1."""
    ax.set_title("Temperature after one step")
    alphas = alpha_grid(arms)
    for (label, colour, _, _), taus in _rules(alphas, entropy, vocabularies):
        ax.plot(alphas, taus, color=colour, label=label)
    gap = logit_gap(entropy, vocabularies[-1])
    # The model depends on D/τ alone.
    most = math.log(vocabularies[-1]) * (1 - 1e-9)
    exact = [gap / logit_gap(min(alpha * entropy, most), vocabularies[-1]) for alpha in alphas]
    ax.plot(alphas, exact, color=INK, linewidth=1.0, dashes=(4, 2.5), label="all at once")
    _draw_dots(ax, arms, "ratio")
    _format_alpha_axis(ax)
    ax.set_ylabel("temperature, as a multiple of before")


def alpha_grid(arms: Arms) -> list[float]:
    """Factors to ask for, evenly spaced in ln α, as far as recorded steps go; to 2 without any."""
    steps = [controller_steps(runs)["alpha"] for runs in arms.values()]
    errors = [abs(math.log(alpha)) for column in steps for alpha in column]
    least, most = (math.log(reach) for reach in REACHES)
    reach = min(max(1.2 * max(errors), least), most) if errors else most
    return [float(alpha) for alpha in np.exp(np.linspace(-reach, reach, POINTS))]


def _rules(
    alphas: Sequence[float], entropy: float, vocabularies: Sequence[int]
) -> list[tuple[tuple[str, str, float, int], list[float]]]:
    """Label, colour and model of every rule, with its next temperatures over α."""
    errors = [math.log(alpha) for alpha in alphas]
    rules = []
    for colour, vocabulary in zip(OTHER_COLOURS, vocabularies, strict=False):
        gap = logit_gap(entropy, vocabulary)
        taus = [paper_step(1.0, error, vocabulary) for error in errors]
        rules.append(((f"paper, V = {vocabulary:,}", colour, gap, vocabulary), taus))
    last = vocabularies[-1]
    gap = logit_gap(entropy, last)
    elasticity = two_level_elasticity(gap, 1.0, last)
    taus = [elasticity_step(1.0, error, elasticity, MU, limit=math.inf) for error in errors]
    rules.append(((f"measured elasticity, μ = {MU}", OTHER_COLOURS[3], gap, last), taus))
    return rules


def _draw_dots(ax: Axes, arms: Arms, column: str) -> None:
    for arm, runs in arms.items():
        steps = controller_steps(runs)
        if not steps.empty:
            colour, label = arm_colour(arm, list(arms)), f"{arm_label(arm)}, steps"
            ax.scatter(
                *(steps["alpha"], steps[column]),
                s=9,
                color=colour,
                alpha=0.35,
                linewidths=0,
                label=label,
            )


def _format_alpha_axis(ax: Axes) -> None:
    ax.set_xlabel("α = target entropy / entropy")
    ax.margins(x=0)
