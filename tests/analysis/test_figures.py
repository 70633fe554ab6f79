import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from e3rl.analysis.figures import run_figures as figures
from e3rl.analysis.figures import study_figures
from e3rl.analysis.figures.budget_panel import is_uneven, select_epochs
from e3rl.analysis.figures.style import INK, arm_colour
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.step_response import measure_response
from e3rl.analysis.sources.runs import Run, load_run

pytestmark = pytest.mark.end_to_end


DRAWERS: list[Callable[[dict[str, list[Run]]], Figure]] = [
    figures.entropy_figure,
    figures.temperature_figure,
    figures.reward_figure,
    figures.all_wrong_figure,
    figures.budget_figure,
    figures.pass_at_k_figure,
    figures.pass_at_1_figure,
]


def lines(figure: Figure, panel: int = 0) -> dict[str, np.ndarray]:
    """Labelled lines of a panel, as (points, 2)."""
    found = figure.axes[panel].get_lines()
    return {str(x.get_label()): x.get_xydata() for x in found if x.get_label()[:1] != "_"}


def texts(figure: Figure) -> str:
    return " ".join(text.get_text() for ax in figure.axes for text in ax.texts)


@pytest.mark.parametrize("draw", DRAWERS)
def test_figures_of_a_study_have_labelled_axes_and_leave_no_settings(
    draw: Callable[[dict[str, list[Run]]], Figure], arms: dict[str, list[Run]]
) -> None:
    before = dict(matplotlib.rcParams)
    figure = draw(arms)
    assert dict(matplotlib.rcParams) == before
    assert all(ax.get_xlabel() for ax in figure.axes)
    assert all(ax.get_title(loc="left") for ax in figure.axes)


def test_entropy_of_a_study_shows_every_arm_its_target_and_the_annealing(
    arms: dict[str, list[Run]],
) -> None:
    figure = figures.entropy_figure(arms, window=1)
    left, right = lines(figure, 0), lines(figure, 1)
    assert set(left) == {"GRPO", "GRPO + TS + AN", "E3", "target", "annealing starts"}
    assert set(right) == {"GRPO", "GRPO + TS + AN", "E3"}
    expected = np.mean([run.train["policy/entropy"] for run in arms["e3"]], axis=0)
    np.testing.assert_allclose(left["E3"][:, 1], expected)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


@pytest.mark.parametrize(
    ("draw", "label"),
    [
        (figures.entropy_figure, "tokens generated"),
        (figures.temperature_figure, "tokens generated"),
        (figures.reward_figure, "tokens generated"),
        (figures.all_wrong_figure, "tokens generated"),
        (figures.pass_at_1_figure, "tokens generated"),
        (figures.reward_figure, "seconds of training"),
    ],
)
def test_arms_can_be_drawn_against_their_cost(
    draw: Callable[..., Figure], label: str, arms: dict[str, list[Run]]
) -> None:
    axis = label.split()[0]
    figure = draw(arms, axis=axis)
    assert {ax.get_xlabel() for ax in figure.axes} == {label}
    at = -1 if draw is figures.pass_at_1_figure else -2  # a validation is after the last step
    last = min(run.train[f"cost/{axis}"].iloc[at] for run in arms["e3"])
    ends = [x for x in figure.axes[0].get_lines() if x.get_label() == "E3"]
    if ends:
        assert ends[0].get_xdata()[-1] == pytest.approx(last)
    else:  # validation ends after the last step; the middle one of three arms is not moved aside
        middle = figure.axes[0].get_lines()[1].get_xdata()
        spent = [run.train[f"cost/{axis}"].iloc[-1] for run in arms["ts_an"]]
        assert middle[-1] == pytest.approx(np.mean(spent))


def test_entropy_of_one_run_shows_all_three_in_one_panel(run: Run) -> None:
    figure = figures.entropy_figure({run.name: [run]}, window=5)
    assert len(figure.axes) == 1
    assert set(lines(figure)) == {"while sampling", "at T = 1", "target", "annealing starts"}
    assert figure.axes[0].get_ylabel() == "entropy, nats per token (5-step mean)"


def test_a_column_of_the_second_seed_alone_is_drawn(arms: dict[str, list[Run]]) -> None:
    first, second = arms["grpo"]
    column = "policy/entropy_exact_t1"
    old = replace(first, train=first.train.drop(columns=column))
    figure = figures.entropy_figure({"grpo": [old, second]}, window=5)
    drawn = [line.get_ydata() for ax in figure.axes for line in ax.get_lines()]
    raw = second.train[column].to_numpy()
    assert any(len(each) == len(raw) and np.allclose(each, raw) for each in drawn)


def test_bands_span_the_seeds(arms: dict[str, list[Run]]) -> None:
    figure = figures.reward_figure({"grpo": arms["grpo"]}, window=1)
    values = np.array([run.train["rollout/accuracy"] for run in arms["grpo"]])
    low, high = values.min(axis=0).min(), values.max(axis=0).max()
    extent = figure.axes[0].collections[0].get_paths()[0].get_extents()
    assert (extent.ymin, extent.ymax) == (pytest.approx(low), pytest.approx(high))


def test_arms_keep_their_colour_whatever_is_beside_them(arms: dict[str, list[Run]]) -> None:
    def colour(shown: dict[str, list[Run]]) -> str:
        handles = figures.reward_figure(shown).axes[0].get_lines()
        return next(str(x.get_color()) for x in handles if x.get_label() == "E3")

    assert colour(arms) == colour({"e3": arms["e3"], "other": arms["grpo"]})


def test_unknown_arms_get_distinct_colours(arms: dict[str, list[Run]]) -> None:
    shown = {f"mine {i}": runs for i, runs in enumerate(arms.values())}
    handles = figures.temperature_figure(shown).axes[0].get_lines()
    assert len({x.get_color() for x in handles if x.get_label() in shown}) == 3


def test_budget_shows_the_bounds_of_every_epoch(run: Run) -> None:
    figure = figures.budget_figure({run.name: [run]})
    text = texts(figure)
    assert all(bounds in text for bounds in ("8 to 8", "6 to 10", "4 to 12"))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "epoch 1",
        "epoch 2",
        "epoch 3",
    ]


def test_budget_leaves_out_arms_with_equal_budgets(arms: dict[str, list[Run]]) -> None:
    assert [is_uneven(runs) for runs in arms.values()] == [False, False, True]
    assert len(figures.budget_figure(arms).axes) == 1
    assert len(figures.budget_figure({"grpo": arms["grpo"]}).axes) == 1


def test_many_epochs_are_thinned_to_four(run: Run) -> None:
    epochs = run.prompts["epoch"].repeat(2).reset_index(drop=True)
    assert select_epochs(epochs) == [0, 1, 2]
    epochs[: len(epochs)] = np.arange(len(epochs)) % 11
    assert select_epochs(epochs) == [0, 3, 7, 10]


def test_pass_at_k_has_a_panel_per_sampled_temperature(arms: dict[str, list[Run]]) -> None:
    figure = figures.pass_at_k_figure(arms)
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        "at T = 1",
        "at each arm's training temperature",
        "matched",
    ]
    shown = lines(figure)
    assert set(shown) == {"before training", "GRPO", "GRPO + TS + AN", "E3"}
    assert shown["E3"][:, 0].tolist() == [1, 2, 4, 8, 16]
    assert (np.diff(shown["E3"][:, 1]) > 0).all()


def test_legends_of_many_arms_stay_within_the_figure(arms: dict[str, list[Run]]) -> None:
    many = {f"a_long_name_of_arm_{number}": arms["e3"] for number in range(6)}
    for draw in (figures.temperature_figure, figures.entropy_figure):
        figure = draw(many)
        (legend,) = figure.legends
        assert len(legend.get_texts()) >= 6
        assert legend.get_window_extent().width <= figure.bbox.width


def test_many_arms_have_a_panel_each(arms: dict[str, list[Run]]) -> None:
    many = {"grpo": arms["grpo"], "e3": arms["e3"], **{f"arm {i}": arms["ts_an"] for i in range(3)}}
    for figure in (figures.pass_at_k_figure(many), figures.pass_at_1_figure(many)):
        titles = [ax.get_title(loc="left") for ax in figure.axes]
        assert titles == ["E3", "arm 0", "arm 1", "arm 2"]
        drawn = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
        colours = [line.get_color() for line in drawn]
        assert colours[-2:] == [INK, arm_colour("e3")]
        assert figure._supxlabel is not None
        note = " ".join(figure._supxlabel.get_text().split())
        assert "95 % intervals over seeds and problems" in note


def study_of(count: int, arms: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """GRPO, E3 and as many others with a schedule as make `count` arms."""
    others = {f"arm {i}": arms["ts_an"] for i in range(count - 2)}
    return {"grpo": arms["grpo"], "e3": arms["e3"], **others}


@pytest.mark.parametrize(
    ("draw", "panels"),
    [
        (figures.entropy_figure, 2),
        (figures.temperature_figure, 1),
        (figures.reward_figure, 1),
        (figures.all_wrong_figure, 1),
        (figures.difficulty_figure, 1),
    ],
)
def test_training_of_more_than_six_arms_has_panels_for_each_beside_the_control(
    draw: Callable[..., Figure], panels: int, arms: dict[str, list[Run]]
) -> None:
    assert len(draw(study_of(6, arms)).axes) == panels
    assert len(draw(study_of(7, arms)).axes) == 6 * panels
    figure = draw(study_of(9, arms))
    assert len(figure.axes) == 8 * panels
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[::panels] == ["E3", *(f"arm {i}" for i in range(7))]
    assert not figure.legends
    whole = [line for line in figure.axes[0].get_lines() if not line.is_dashed()]
    assert len(whole) == 9
    assert [line.get_color() for line in whole[-2:]] == [INK, arm_colour("e3")]


def test_both_entropies_of_an_arm_stand_side_by_side(arms: dict[str, list[Run]]) -> None:
    figure = figures.entropy_figure(study_of(9, arms), window=1)
    assert [ax.get_title(loc="left") for ax in figure.axes[:4]] == [
        *("E3", "at T = 1"),
        *("arm 0", "at T = 1"),
    ]
    pair = zip(figure.axes, ("policy/entropy", "policy/entropy_exact_t1"), strict=False)
    for ax, column in pair:
        expected = np.mean([run.train[column] for run in arms["e3"]], axis=0)
        np.testing.assert_allclose(ax.get_lines()[-1].get_ydata(), expected)


def test_a_panel_of_an_arm_has_its_own_target_and_annealing(arms: dict[str, list[Run]]) -> None:
    plain = {f"arm {i}": arms["grpo"] for i in range(7)}
    figure = figures.entropy_figure({"grpo": arms["grpo"], "e3": arms["e3"], **plain})
    broken = [sum(line.is_dashed() for line in ax.get_lines()) for ax in figure.axes]
    assert broken == [2] + [0] * 15
    assert figure._supxlabel is not None
    note = " ".join(figure._supxlabel.get_text().split())
    assert note.endswith("largest seed; dashed: target; dotted: annealing starts; 3-step means")


def test_the_black_curve_of_every_panel_is_the_controls(arms: dict[str, list[Run]]) -> None:
    figure = figures.reward_figure(study_of(9, arms), "e3", window=1)
    assert figure.axes[0].get_title(loc="left") == "GRPO"
    expected = np.mean([run.train["rollout/accuracy"] for run in arms["e3"]], axis=0)
    for ax in figure.axes:
        (black,) = [line for line in ax.get_lines() if line.get_color() == INK]
        np.testing.assert_allclose(black.get_ydata(), expected)


def test_rollouts_by_difficulty_of_an_arm_without_prompts_were_not_measured(
    arms: dict[str, list[Run]],
) -> None:
    bare = [replace(run, prompts=run.prompts.head(0)) for run in arms["ts_an"]]
    figure = figures.difficulty_figure({**study_of(8, arms), "bare": bare})
    e3 = figure.axes[0].get_lines()[-1].get_ydata()
    assert e3[0] < 8 < e3[-1]
    assert [text.get_text() for text in figure.axes[-1].texts] == ["not measured"]


def test_what_an_arm_has_no_curve_of_was_not_measured(arms: dict[str, list[Run]]) -> None:
    """Nor was an arm that was validated before training alone: its curve is the first policy's."""

    def until(last: int, run: Run) -> Run:
        rows = {name: getattr(run, name) for name in ("evaluations", "problems")}
        return replace(run, **{k: t[t["rollout_step"] <= last] for k, t in rows.items()})

    few = {
        **study_of(3, arms),
        **{f"{last}": [until(last, run) for run in arms["ts_an"]] for last in (-1, 0, 8)},
    }
    for figure in (figures.pass_at_k_figure(few), figures.pass_at_1_figure(few)):
        said = {ax.get_title(loc="left"): [t.get_text() for t in ax.texts] for ax in figure.axes}
        nothing = ["not measured"]
        assert said == {"E3": [], "arm 0": [], "-1": nothing, "0": nothing, "8": []}
        assert all(len(ax.get_lines()) == 0 for ax in figure.axes[2:4])
        assert figure.axes[0].get_xticks().size > 1  # which all panels share

    def without(run: Run) -> Run:
        return replace(run, train=run.train.drop(columns="policy/entropy_exact_t1"))

    figure = figures.entropy_figure(
        {**study_of(8, arms), "bare": [without(run) for run in arms["e3"]]}
    )
    assert [[t.get_text() for t in ax.texts] for ax in figure.axes[-2:]] == [[], ["not measured"]]


def test_curves_stand_where_their_validations_were(arms: dict[str, list[Run]]) -> None:
    for name, curve in lines(figures.pass_at_1_figure(arms)).items():
        assert curve[:, 0].tolist() == [0, 8, 16, 24], name


def test_budgets_of_two_arms_have_two_colours(arms: dict[str, list[Run]]) -> None:
    figure = figures.budget_figure({"mine": arms["e3"], "yours": arms["e3"]})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["mine", "yours"]
    first, second = (ax.patches[0].get_facecolor() for ax in figure.axes)
    assert first != second


def test_costs_stay_within_their_axes(arms: dict[str, list[Run]]) -> None:
    figure = study_figures.reaching_figure(arms, "grpo", [0.3, 0.4], "rollouts")
    limits = {ax.get_xlim() for ax in figure.axes}
    assert len(limits) == 1
    ((_, right),) = limits
    drawn = [x for ax in figure.axes for line in ax.get_lines() for x in line.get_xdata()]
    assert max(drawn) < right


def test_a_disturbance_is_drawn_as_deep_as_it_was(arms: dict[str, list[Run]]) -> None:
    def disturbed(run: Run) -> Run:
        train = run.train.copy()
        share = np.ones(len(train))
        share[12], share[13] = 0.6 + 0.02 * run.seed, 0.9
        train["policy/entropy"] = share * train["temperature/target"]
        node = {"disturbance": {"step": 12, "factor": 1.2}}
        return replace(run, train=train, config={**run.config, "callbacks": node})

    runs = [disturbed(run) for run in arms["e3"]]
    figure = study_figures.disturbance_figure({"e3": runs})
    (line,) = [each for each in figure.axes[0].get_lines() if each.get_label() == "E3"]
    drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    dip = np.mean([measure_response(run, last=8)["dip"] for run in runs])
    assert drawn[12] == pytest.approx(1 + dip) == pytest.approx(0.63)
    assert (drawn[11], drawn[13], drawn[14]) == pytest.approx((1.0, 0.9, 1.0))
    assert figure.axes[0].get_ylabel() == "entropy / target, each step"


def test_lengths_that_coincide_are_drawn_less_the_controls(arms: dict[str, list[Run]]) -> None:
    def longer(run: Run) -> Run:
        train = run.train.assign(**{"rollout/length": run.train["rollout/length"] + 0.1 * run.seed})
        return replace(run, train=train)

    shown = {"grpo": arms["grpo"], "mine": [longer(run) for run in reversed(arms["grpo"])]}
    left, right = study_figures.length_figure(shown, "grpo", window=1).axes
    expected = np.mean([run.train["rollout/length"] for run in arms["grpo"]], axis=0)
    np.testing.assert_allclose(left.get_lines()[0].get_ydata(), expected)
    assert len(left.get_lines()) == 1
    (line,) = [each for each in right.get_lines() if each.get_label() == "mine"]
    np.testing.assert_allclose(line.get_ydata(), 0.15)  # of seeds 1 and 2
    extent = right.collections[0].get_paths()[0].get_extents()
    assert (extent.ymin, extent.ymax) == (pytest.approx(0.1), pytest.approx(0.2))
    assert len(study_figures.length_figure(shown).axes[0].get_lines()) == 2


def test_pass_at_k_less_the_control_is_what_tables_have(arms: dict[str, list[Run]]) -> None:
    names = ("evaluations", "problems")
    bare = [
        replace(run, **{name: getattr(run, name).head(0) for name in names})
        for run in arms["ts_an"]
    ]
    figure = figures.pass_at_k_figure({**arms, "bare": bare}, "grpo", less_control=True)
    first, *others = figure.axes
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        *("GRPO, at T = 1", "GRPO + TS + AN", "E3", "bare"),
    ]
    assert set(lines(figure)) == {"before training", "GRPO"}
    assert len({ax.get_ylim() for ax in others}) == 1
    assert first.get_ylim() != others[0].get_ylim()
    drawn = others[1].get_lines()[-1].get_xydata()
    assert drawn[:, 0].tolist() == [1, 2, 4, 8, 16]
    rows = compare_arms(arms, "grpo", [16], evaluations=["t1"], measures=["pass@16"])
    (wanted,) = [row for row in rows if row["arm"] == "e3"]
    assert drawn[-1, 1] == pytest.approx(100 * wanted["difference"])
    assert [text.get_text() for text in others[-1].texts] == ["not measured"]


def test_pass_at_1_of_one_run_has_every_temperature_name(run: Run) -> None:
    figure = figures.pass_at_1_figure({run.name: [run]})
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "T = 1",
        "greedy",
        "live",
        "matched",
    ]


@pytest.mark.end_to_end
def test_saved_figures_are_pictures(run_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    paths = figures.save_figures(folder)
    assert paths[0] == folder / "figures" / "overview.png"
    assert len(paths) == 8
    for path in paths:
        picture = imread(path)
        assert picture.shape[1] >= 1200
        assert picture[..., :3].std() > 0.02


def test_run_without_validation_draws_and_says_so(run_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    (folder / "validation.jsonl").unlink()
    (folder / "prompts.jsonl").unlink()
    text = texts(figures.overview_figure(load_run(folder)))
    assert text.count("no validation recorded") == 2
    assert "no prompts.jsonl recorded" in text


def test_run_that_only_validated_draws(run_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "run")
    (folder / "metrics.jsonl").write_text("")
    text = texts(figures.overview_figure(load_run(folder)))
    assert "no policy/entropy recorded" in text
    assert "no rollout/temperature recorded" in text


def after(run: Run, steps: int, seed: int) -> Run:
    """The run as it was after these steps."""
    tables = {name: getattr(run, name) for name in ("evaluations", "problems", "train")}
    kept = {name: t[t["rollout_step"] < steps + (name != "train")] for name, t in tables.items()}
    return replace(run, seed=seed, **kept)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (figures.entropy_figure, "left out, trained far less than other seeds: E3 seed 9"),
        (figures.pass_at_1_figure, "left out, trained far less than other seeds: E3 seed 9"),
        (study_figures.length_figure, "left out, trained far less than other seeds: E3 seed 9"),
        (
            partial(study_figures.length_figure, control="grpo"),
            "left out, trained far less than other seeds: E3 seed 9",
        ),
        (figures.pass_at_k_figure, "left out, validated last before other seeds: E3 seed 9"),
    ],
)
def test_a_seed_that_has_just_begun_changes_no_curve_and_is_named(
    draw: Callable[[dict[str, list[Run]]], Figure], words: str, arms: dict[str, list[Run]]
) -> None:
    others = [replace(run, name=f"arm {i}") for i in range(6) for run in arms["grpo"][:1]]
    for more in ({}, {run.name: [run] for run in others}):  # a panel for all, and one for each
        begun = {**arms, **more, "e3": [*arms["e3"], after(arms["e3"][0], 1, 9)]}
        with_it, without = draw(begun), draw({**arms, **more})
        assert words in with_it.get_supxlabel().replace("\n", " ")
        assert "left out" not in without.get_supxlabel()
        for ax, other in zip(with_it.axes, without.axes, strict=True):
            for line, same in zip(ax.lines, other.lines, strict=True):
                np.testing.assert_array_equal(line.get_xydata(), same.get_xydata())
