"""Frontiers: pass@k against pass@1 over sampling temperatures."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from test_matched_control import at, made_up

from e3rl.analysis.figures import frontier_figure as figures
from e3rl.analysis.measures.frontier import UNTRAINED, frontier_rows, frontier_sources
from e3rl.analysis.sources.runs import Run

Arms = dict[str, list[Run]]


def test_a_frontier_has_a_point_per_temperature_with_the_most_rollouts() -> None:
    evaluations = {
        "t1": at(1.0, 0.30, 0.60),
        "live": at(1.0, 0.30, 0.50, n=16),  # the same temperature, fewer rollouts
        "t0.5": at(0.5, 0.10, 0.70),
        "greedy": at(0.0, 0.0, 0.75, n=1),
    }
    rows = frontier_rows({"grpo": [made_up("grpo", s, evaluations) for s in (1, 2)]}, k=4)
    assert [(row["evaluation"], row["temperature"]) for row in rows] == [("t0.5", 0.5), ("t1", 1.0)]
    assert rows[0]["pass@1"] > rows[1]["pass@1"]
    assert all(row["pass@1"] < row["pass@k"] <= 1 for row in rows)
    assert frontier_sources(rows) == "Evaluations: t0.5 (n = 64, 2 seeds), t1 (n = 64, 2 seeds)."


@pytest.mark.parametrize("k", [0, -1, 65])
def test_a_frontier_of_more_tries_than_were_sampled_is_refused(k: int) -> None:
    runs = {"grpo": [made_up("grpo", 1, {"t1": at(1.0, 0.30, 0.60)})]}
    with pytest.raises(ValueError, match=f"k={k}: a frontier takes 1 to 64, .*lower k, or sample"):
        frontier_rows(runs, k)


def test_a_point_of_fewer_seeds_is_on_no_frontier() -> None:
    both = {"t1": at(1.0, 0.30, 0.60), "t0.5": at(0.5, 0.10, 0.70)}
    runs = [made_up("grpo", 1, both | {"t1.05": at(1.05, 0.31, 0.2)}), made_up("grpo", 2, both)]
    rows = frontier_rows({"grpo": runs}, k=4)
    assert [row["evaluation"] for row in rows] == ["t0.5", "t1"]
    alone = frontier_rows({"grpo": runs[:1]}, k=4)
    assert [row["evaluation"] for row in alone] == ["t0.5", "t1", "t1.05"]


def test_the_policy_before_training_has_a_frontier_too(arms: Arms) -> None:
    rows = frontier_rows(arms)
    before = [row for row in rows if row["arm"] == UNTRAINED]
    assert before
    assert min(r["pass@1"] for r in rows if r["arm"] == "e3") > min(r["pass@1"] for r in before)
    assert {row["k"] for row in rows} == {16}
    figure = figures.frontier_figure(arms)  # it lies below all arms: a second panel without it
    labels = [sorted(ax.get_legend_handles_labels()[1]) for ax in figure.axes]
    trained = ["E3", "GRPO", "GRPO + TS + AN"]
    assert labels == [[*trained, "before training"], trained]
    both, closer = (ax.get_xlim() for ax in figure.axes)
    assert both[0] < closer[0] < closer[1] <= both[1]


def test_every_point_of_a_frontier_has_its_intervals() -> None:
    ladder = {f"t{t}": at(t, 0.3, 0.75 - 0.1 * t) for t in (0.5, 1.0, 1.5)}
    arms = {"grpo": [made_up("grpo", s, ladder) for s in (1, 2)]}
    rows = frontier_rows(arms, k=4)
    (ax,) = figures.frontier_figure(arms, k=4).axes
    drawn = [np.array(bars.get_segments()) for bars in ax.collections]
    across, upright = (next(x for x in drawn if np.ptp(x[0, :, i]) == 0) for i in (1, 0))
    for segments, name, axis in ((across, "pass@1", 0), (upright, "pass@k", 1)):
        ends = [(row[f"{name}_low"], row[f"{name}_high"]) for row in rows]
        np.testing.assert_allclose(segments[:, :, axis], ends)
    note = figures.frontier_figure(arms, k=4)._supxlabel
    assert note is not None
    assert "bars: 95 % intervals" in " ".join(note.get_text().split())


@pytest.mark.parametrize(
    ("before", "beyond"),
    [((0.2, 0.5), True), ((0.45, 0.7), False), ((0.7, 0.9), True), ((0.45, 0.5), True)],
)
def test_a_first_policy_is_beyond_where_it_has_less_or_more_than_all(
    before: tuple[float, float], beyond: bool
) -> None:
    points = [("grpo", 0.4, 0.8), ("e3", 0.5, 0.6), (UNTRAINED, *before)]
    rows = [{"arm": arm, "pass@1": x, "pass@k": y} for arm, x, y in points]
    assert figures.is_beyond(rows) == beyond
    assert not figures.is_beyond(rows[:2])
    assert not figures.is_beyond(rows[2:])


def test_single_samples_have_no_frontier() -> None:
    run = made_up("grpo", 1, {"greedy": at(0.0, 0.0, 0.5, n=1)})
    with pytest.raises(ValueError, match="a frontier needs n > 1"):
        frontier_rows({"grpo": [run]})


def test_temperatures_stand_beside_their_points_and_not_upon_others() -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    ax = figure.subplots()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    # The second has the first one's label on its right above, and its own below.
    points = [(0.5, 0.5, 1.0), (0.5, 0.505, 0.7), (0.9, 0.5, 1.3)]
    rows = [{"arm": "grpo", "temperature": t, "pass@1": x, "pass@k": y} for x, y, t in points]
    figures.write_temperatures(ax, rows, ["grpo"])
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [
        *(("1", figures.SIDES[0]), ("0.7", figures.SIDES[1]), ("1.3", figures.SIDES[0])),
    ]


def test_a_point_without_room_on_any_side_has_no_temperature() -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    ax = figure.subplots()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    rows = [{"arm": "grpo", "temperature": 1 + i, "pass@1": 0.5, "pass@k": 0.5} for i in range(5)]
    figures.write_temperatures(ax, rows, ["grpo"])
    assert [text.get_text() for text in ax.texts] == ["1", "2", "3", "4"]


def test_every_curve_of_a_frontier_has_the_temperatures_of_its_ends() -> None:
    ladder = {f"t{t}": at(t, 0.3, 0.75 - 0.1 * t) for t in (0.5, 1.0, 1.5)}
    arms = {
        "grpo": [made_up("grpo", s, ladder) for s in (1, 2)],
        "e3": [made_up("e3", s, {"t1.0": at(1.0, 0.3, 0.7, n=32)}) for s in (1, 2)],
    }
    figure = figures.frontier_figure(arms, k=4)
    assert figure.axes[0].get_legend_handles_labels()[1] == ["GRPO"]
    assert [text.get_text() for text in figure.axes[0].texts][:2] == ["0.5", "1.5"]
    assert figure._supxlabel is not None
    note = " ".join(figure._supxlabel.get_text().split())
    assert note.endswith("At one temperature, and left out: E3.")
    alone = figures.frontier_figure({"e3": arms["e3"]}, k=4)
    assert alone.axes[0].get_legend_handles_labels()[1] == ["E3"]


def test_an_evaluation_with_several_numbers_of_rollouts_is_named_once() -> None:
    arms = {
        name: [made_up(name, s, {"t1": at(1.0, 0.3, 0.6, n=n)}) for s in (1, 2)]
        for name, n in (("grpo", 64), ("e3", 32))
    }
    assert frontier_sources(frontier_rows(arms, k=4)) == "Evaluations: t1 (n = 32 to 64, 2 seeds)."
