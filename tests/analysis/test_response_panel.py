import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from e3rl.analysis.figures.response_panel import (
    controller_steps,
    first_entropy,
    logit_gap,
    two_level_elasticity,
    two_level_entropy,
)
from e3rl.analysis.figures.run_figures import difficulty_figure, response_figure
from e3rl.analysis.sources.runs import Run
from e3rl.functional.temperature import paper_step

Arms = dict[str, list[Run]]


def explicit(gap: float, tau: float, vocabulary: int) -> float:
    logits = np.array([gap] + [0.0] * (vocabulary - 1)) / tau
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return float(-(p * np.log(p)).sum())


@pytest.mark.parametrize(
    ("gap", "tau", "vocabulary"), [(3.0, 1.0, 10), (5.0, 1.3, 50), (8, 0.7, 4)]
)
def test_entropy_of_the_model_is_that_of_its_distribution(
    gap: float, tau: float, vocabulary: int
) -> None:
    assert two_level_entropy(gap, tau, vocabulary) == pytest.approx(explicit(gap, tau, vocabulary))
    step = 1e-5
    up, down = (math.log(explicit(gap, tau * math.exp(s), vocabulary)) for s in (step, -step))
    slope = (up - down) / (2 * step)
    assert two_level_elasticity(gap, tau, vocabulary) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("vocabulary", [34, 151_936])
def test_the_gap_gives_the_entropy_back(vocabulary: int) -> None:
    assert two_level_entropy(logit_gap(0.76, vocabulary), 1.0, vocabulary) == pytest.approx(0.76)


@pytest.mark.parametrize("entropy", [0.0, 3.6])
def test_an_entropy_that_no_temperature_has_is_refused(entropy: float) -> None:
    with pytest.raises(ValueError, match=r"between 0 and ln 34 = 3\.53"):
        logit_gap(entropy, 34)


def lines(figure: Figure, panel: int) -> dict[str, np.ndarray]:
    return {str(x.get_label()): x.get_xydata() for x in figure.axes[panel].get_lines()}


def test_the_figure_shows_the_rules_and_what_would_be_needed() -> None:
    figure = response_figure(vocabularies=(34, 128))
    entropy, temperature = lines(figure, 0), lines(figure, 1)
    names = {"paper, V = 34", "paper, V = 128", "measured elasticity, μ = 0.4", "all at once"}
    assert set(entropy) == set(temperature) == names
    alpha, tau = temperature["paper, V = 128"][-1]
    assert (alpha, tau) == pytest.approx((2.0, 1.107775), abs=1e-6)
    assert tau == pytest.approx(paper_step(1.0, math.log(2), 128))
    # At alpha = 1 nothing moves, and what is needed gives what was asked for.
    for curves in (entropy, temperature):
        for curve in curves.values():
            assert curve[60] == pytest.approx((1, 1))
    gap = logit_gap(0.76, 128)
    for alpha, tau in temperature["all at once"][::30]:
        assert two_level_entropy(gap, tau, 128) == pytest.approx(0.76 * alpha)
    # On the model that it was derived from the paper's step nearly does what it asks for.
    paper, measured = entropy["paper, V = 128"], entropy["measured elasticity, μ = 0.4"]
    assert paper[-1, 1] == pytest.approx(2, rel=0.2)
    assert measured[66, 1] == pytest.approx(measured[66, 0] ** 0.4, rel=0.01)


def test_recorded_steps_are_dots_beside_the_lines(arms: Arms) -> None:
    figure = response_figure(arms)
    labels = [str(dots.get_label()) for dots in figure.axes[0].collections]
    assert labels == ["GRPO + TS + AN, steps", "E3, steps"]
    assert figure._supxlabel is not None
    note = " ".join(figure._supxlabel.get_text().split())
    assert note.endswith("recorded elasticity, not the entropy of the next batch")
    assert response_figure()._supxlabel is None  # which has no dots
    steps = controller_steps(arms["e3"])
    assert len(steps) == 2 * 24
    np.testing.assert_allclose(
        figure.axes[1].collections[1].get_offsets(), steps[["alpha", "ratio"]]
    )
    assert controller_steps(arms["grpo"]).empty


def test_a_recorded_step_has_the_ratio_of_temperatures_and_its_effect(run: Run) -> None:
    train = run.train.head(1).assign(
        **{
            "temperature/log_alpha": math.log(1.2),
            "temperature/value": 1.1,
            "rollout/temperature": 1.0,
            "policy/varentropy": 0.4,
            "policy/entropy_exact": 0.5,
        }
    )
    (row,) = controller_steps([replace(run, train=train)]).to_dict("records")
    assert row == pytest.approx({"alpha": 1.2, "ratio": 1.1, "scaling": 1.1**0.8})


def test_the_entropy_of_the_model_is_the_recorded_one(arms: Arms) -> None:
    first = arms["grpo"][0].train["policy/entropy_exact_t1"].iloc[0]
    assert first_entropy(arms) == first
    assert first_entropy({}) == 0.76
    taus = lines(response_figure(arms), 1)["all at once"]
    alpha, tau = taus[-1]
    model = two_level_entropy(logit_gap(first, 151_936), tau, 151_936)
    assert model == pytest.approx(first * alpha)


def test_rollouts_by_difficulty_are_drawn_for_every_arm(arms: Arms) -> None:
    (ax,) = difficulty_figure(arms).axes
    assert [line.get_label() for line in ax.get_lines()] == ["GRPO", "GRPO + TS + AN", "E3"]
    e3 = ax.get_lines()[2].get_ydata()
    assert e3[0] < 8 < e3[-1]


def test_without_recorded_prompts_the_panel_says_so(run: Run) -> None:
    bare = replace(run, prompts=run.prompts.head(0))
    (ax,) = difficulty_figure({"e3": [bare]}).axes
    assert [text.get_text() for text in ax.texts] == ["no prompts.jsonl recorded"]
