"""Forest plots and frontiers."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from recorded_runs import Size, write_run
from test_matched_control import at, made_up

from e3rl.analysis.figures import comparison_figures as figures
from e3rl.analysis.figures.difference_panels import draw_pass_at_k_less_control
from e3rl.analysis.figures.style import BEYOND, arm_colour
from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs

Arms = dict[str, list[Run]]


@pytest.fixture(scope="module")
def made() -> Arms:
    """A control, an arm that is better, one that is not, and one at another entropy."""
    control = {"t1": at(1.0, 0.30, 0.50), "live": at(1.0, 0.30, 0.50)}
    arms = {"grpo": [made_up("grpo", seed, control) for seed in (1, 2)]}
    arms["e3"] = [made_up("e3", s, {"t1": at(1.0, 0.30, 0.60)}) for s in (1, 2)]
    arms["mine"] = [made_up("mine", s, {"t1": at(1.0, 0.30, 0.50)}) for s in (1, 2)]
    arms["hot"] = [made_up("hot", s, {"live": at(1.4, 0.40, 0.70)}) for s in (1, 2)]
    return arms


def rows_of(arms: Arms) -> list[Row]:
    return compare_arms(arms, "grpo", [1])


def marks(figure: Figure, panel: int) -> dict[str, tuple[float, bool]]:
    """Place and whether it is filled, of every arm's mark in a panel."""
    ax = figure.axes[panel]
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    found = {}
    for line in ax.get_lines():
        if line.get_marker() == "o":
            (x,), (y,) = line.get_data()
            filled = to_rgba(line.get_markerfacecolor()) != to_rgba("white")
            found[names[int(y)]] = (float(x), filled)
    return found


def test_a_forest_has_a_row_per_arm_and_a_panel_per_endpoint(made: Arms) -> None:
    figure = figures.forest_figure(rows_of(made), list(made), ["pass@1"], ["t1", "live"])
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["pass@1 at T = 1", "pass@1 at each arm's training temperature"]
    first = marks(figure, 0)
    rows = {row["arm"]: row for row in compare_arms(made, "grpo", [1]) if row["difference"]}
    assert first["E3"] == (pytest.approx(100 * rows["e3"]["difference"]), True)
    assert first["mine"] == (pytest.approx(0), False)
    assert marks(figure, 1)["hot"][1] is False  # better by far, at another entropy


def test_a_forest_says_what_its_marks_mean_and_what_the_paper_has(made: Arms) -> None:
    figure = figures.forest_figure(rows_of(made), list(made), paper={"e3": {"pass@1": 2.2}})
    diamonds = [line.get_data() for line in figure.axes[0].get_lines() if line.get_marker() == "D"]
    assert [(x.tolist(), y.tolist()) for x, y in diamonds] == [([2.2], [0])]
    assert figure._supxlabel is not None
    note = " ".join(figure._supxlabel.get_text().split())
    assert "95 % intervals over seeds and problems, paired by both" in note
    assert note.endswith("diamonds: the paper")


def test_a_pair_stands_below_the_others_with_what_the_paper_has_of_it(made: Arms) -> None:
    pair = compare_arms({arm: made[arm] for arm in ("mine", "e3")}, "mine", [1])
    both = [*rows_of(made), *pair]
    paper = {"e3": {"pass@1": 2.2}, "e3 - mine": {"pass@1": 0.6}}
    figure = figures.forest_figure(both, list(made), paper=paper, also=[("e3", "mine")])
    (ax,) = figure.axes
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["E3", "mine", "E3 \u2212 mine"]
    (row,) = [row for row in pair if row["arm"] == "e3"]
    assert marks(figure, 0)["E3 \u2212 mine"][0] == pytest.approx(100 * row["difference"])
    diamonds = [line.get_data() for line in ax.get_lines() if line.get_marker() == "D"]
    assert [(x.tolist(), y.tolist()) for x, y in diamonds] == [([2.2], [0]), ([0.6], [2])]
    assert "where no other arm is named" in ax.get_xlabel()
    assert "mine" not in [text.get_text() for text in figures.forest_figure(both, list(made)).texts]
    with pytest.raises(ValueError, match="no table compares e3 with hot"):
        figures.forest_figure(both, list(made), also=[("e3", "hot")])


def test_a_forest_of_nothing_is_refused(made: Arms) -> None:
    with pytest.raises(ValueError, match="no arm has"):
        figures.forest_figure(rows_of(made), list(made), ["pass@1"], ["greedy"])


def test_no_two_arms_share_a_colour_and_those_without_one_are_grey() -> None:
    names = ["grpo", "ts", *(f"arm {i}" for i in range(14))]
    colours = [arm_colour(name, names) for name in names]
    own = [colour for colour in colours if colour != BEYOND]
    assert len(own) == len(set(own)) == 10
    assert colours[-6:] == [BEYOND] * 6


def test_a_forest_names_the_endpoints_that_are_not_at_equal_cost(made: Arms) -> None:
    rows = [row for row in rows_of(made) if row["difference"] is not None]
    assert "costs unlike" not in figures.forest_note(rows)
    late = [row | {"measure": "pass@16", "spent": 2.0, "against_spent": 1.9} for row in rows]
    note = figures.forest_note(rows + late)
    assert "(pass@16: after the last validation, costs unlike)" in note


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([(2, True), (2, True)], "over seeds and problems, paired by both"),
        ([(2, False)], "over seeds and problems, paired by problem, not by seed"),
        (
            [(2, True), (3, False)],
            "over seeds and problems, paired by problem, and by seed where both arms have the same",
        ),
        ([(1, False)], "over problems, of one seed, paired by problem"),
        (
            [(2, True), (1, False)],
            "over seeds and problems (over problems where an arm has one seed), paired by both",
        ),
    ],
)
def test_a_forest_says_what_its_intervals_are_over(
    made: Arms, seeds: list[tuple[int, bool]], words: str
) -> None:
    first = next(row for row in rows_of(made) if row["difference"] is not None)
    rows = [first | {"seeds": n, "paired_seeds": paired} for n, paired in seeds]
    assert figures.forest_note(rows).startswith(f"95 % intervals {words}, at ")


def test_pass_at_k_less_the_control_says_that_nothing_is_paired_where_it_is_not(
    tmp_path: Path,
) -> None:
    for arm, seeds in (("grpo", (1, 2)), ("e3", (3, 4))):
        for seed in seeds:
            size = Size(steps=4, prompts=4, problems=6, samples=4, every=4)
            write_run(tmp_path / f"{arm}-{seed}", arm, seed, size)
    figure = draw_pass_at_k_less_control(group_by_arm(load_runs(tmp_path)), "grpo", "t1")
    assert figure._supxlabel is not None
    note = " ".join(figure._supxlabel.get_text().split())
    assert "differences paired by problem, not by seed; after the last step" in note


def test_pass_at_k_less_the_control_asks_for_no_cost(arms: Arms) -> None:
    without = {
        arm: [replace(run, train=run.train.drop(columns="cost/tokens")) for run in runs]
        for arm, runs in arms.items()
    }
    figure = draw_pass_at_k_less_control(without, "grpo", "t1")
    assert figure.axes[0].get_lines()


def test_the_other_arm_of_a_pair_has_brackets_where_its_label_is_of_several_words() -> None:
    assert figures.pair_label("e3 - ts_an") == "E3 \u2212 (GRPO + TS + AN)"
    assert figures.pair_label("e3 - mine") == "E3 \u2212 mine"
    assert figures.pair_label("ts_an") == "GRPO + TS + AN"
