"""Tables, comparisons and curves of models on problem sets, from the rows of a log."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from e3rl.analysis.figures.run_figures import pass_at_k_of_models
from e3rl.analysis.measures.model_comparison import compare_models
from e3rl.analysis.measures.model_scores import ALL_SETS, AVERAGE, ModelResult, model_rows
from e3rl.analysis.tables.cells import Cells, as_latex, as_markdown
from e3rl.analysis.tables.model_table import WORDS, model_cells, model_comparison_cells
from e3rl.statistics.means import mean_over_units
from e3rl.statistics.shares import share_interval

Ballot = Sequence[int | None]  # classes by sample, 0 the right one


def row(problem: str, ballot: Ballot, name: str = "t1", cut: int = 0) -> dict[str, Any]:
    """A finished problem with one evaluation; sample i has 10 (i + 1) tokens of half a nat."""
    lengths = [10 * (i + 1) for i in range(len(ballot))]
    counts = {
        "name": name,
        "temperature": 1.0,
        "problem_id": problem,
        "n": len(ballot),
        "correct": sum(each == 0 for each in ballot),
        "entropy_sum": 0.5 * sum(lengths),
        "tokens": sum(lengths),
        "truncated": cut,
        "right": [each == 0 for each in ballot],
        "classes": list(ballot),
        "lengths": lengths,
    }
    return {"problem_id": problem, "evaluations": [counts]}


def sampled(model: str, problem_set: str, *ballots: Ballot) -> ModelResult:
    rows = [row(f"{problem_set}{i}", ballot) for i, ballot in enumerate(ballots)]
    (found,) = ModelResult.of_rows(model, problem_set, rows)
    return found


def many(model: str, problem_set: str, right: Sequence[int], n: int = 8) -> ModelResult:
    """Problems by how many of n samples are right; the wrong ones all differ."""
    return sampled(model, problem_set, *[[0] * c + list(range(1, n - c + 1)) for c in right])


def test_measures_of_a_problem_are_those_of_its_votes() -> None:
    table = sampled("m", "s", [0, 0, 1, 1], [0, 1, 1, None]).measures([1, 2, 4, 8])
    assert list(table) == [AVERAGE, "pass@2", "pass@4", "maj@2", "maj@4"]
    assert table[AVERAGE].tolist() == [0.5, 0.25]
    assert table["pass@2"].tolist() == pytest.approx([5 / 6, 1 / 2])
    assert table["maj@4"].tolist() == pytest.approx([0.5, 0.0])
    # Of six pairs: right alone with an abstention wins, with a wrong one ties in two.
    assert table["maj@2"].iloc[1] == pytest.approx((1 + 0.5 + 0.5) / 6)


def test_a_row_has_means_intervals_lengths_and_truncation() -> None:
    one, two = row("a", [0, 0, 1, 2], cut=1), row("b", [1, 1, 2, 0])
    (found,) = ModelResult.of_rows("m", "s", [one, two])
    (only,) = model_rows([found], [2])
    interval = share_interval([0.5, 0.25])
    assert (only[AVERAGE], only[f"{AVERAGE}_low"]) == (interval.mean, interval.low)
    assert (only["problems"], only["samples"], only["entropy"]) == (2, 4, 0.5)
    assert (only["length_mean"], only["length_p50"]) == (25, 25)
    assert only["length_p95"] == pytest.approx(np.percentile([10, 20, 30, 40] * 2, 95))
    assert only["truncated"] == 1 / 8


def test_several_sets_are_averaged_with_equal_weights() -> None:
    few, lots = many("m", "few", [8, 4]), many("m", "lots", [0, 2, 2, 4, 0, 4])
    rows = model_rows([few, lots], [2])
    assert [each["set"] for each in rows] == ["few", "lots", ALL_SETS]
    assert rows[2][AVERAGE] == pytest.approx((rows[0][AVERAGE] + rows[1][AVERAGE]) / 2)
    assert rows[2]["pass@2"] == pytest.approx((rows[0]["pass@2"] + rows[1]["pass@2"]) / 2)
    assert rows[2][f"{AVERAGE}_low"] < rows[2][AVERAGE] < rows[2][f"{AVERAGE}_high"]
    assert (rows[2]["problems"], rows[2]["length_p50"]) == (8, None)


def test_sets_sampled_at_one_temperature_have_it_together_however_many_problems() -> None:
    """The mean of thirty times .6 is not .6 to the last digit."""
    found = []
    for name, problems in (("aime", 30), ("math", 40)):
        rows = [row(f"{name}{i}", [0, 1]) for i in range(problems)]
        for each in rows:
            each["evaluations"][0]["temperature"] = 0.6
        found += ModelResult.of_rows("m", name, rows)
    assert [each["temperature"] for each in model_rows(found, [1])] == [0.6] * 3


def test_models_are_compared_by_problem() -> None:
    hard = np.arange(40) % 5  # problems differ far more than the models do
    base, better = many("base", "s", hard), many("new", "s", hard + 1)
    rows = compare_models([base, better], "base", ks=[2])
    assert [(each["model"], each["measure"]) for each in rows] == [
        *(("new", AVERAGE), ("new", "pass@2"), ("new", "maj@2"))
    ]
    first = rows[0]
    expected = mean_over_units((hard + 1) / 8 - hard / 8).interval()
    assert first["difference"] == expected.mean == pytest.approx(1 / 8)
    assert (first["difference_low"], first["difference_high"]) == (expected.low, expected.high)
    assert (first["verdict"], first["problems"], first["against"]) == ("better", 40, "base")
    (back, *_) = compare_models([base, better], "new", ks=[2])
    assert (back["verdict"], back["difference"]) == ("worse", pytest.approx(-1 / 8))


def test_only_common_problems_are_compared_and_sets_together_last() -> None:
    found = [
        *(many("base", "a", [1, 2, 3]), many("base", "b", [4, 4])),
        *(many("new", "a", [3, 2]), many("new", "b", [4, 4])),
    ]
    rows = compare_models(found, "base", ks=[])
    assert [(each["set"], each["problems"]) for each in rows] == [("a", 2), ("b", 2), (ALL_SETS, 4)]
    assert [each["difference"] for each in rows] == pytest.approx([1 / 8, 0, 1 / 16])
    assert rows[1]["verdict"] == "not distinguishable"


def test_what_cannot_be_compared_is_named() -> None:
    base, other = many("base", "s", [1]), sampled("new", "s", [0])
    with pytest.raises(ValueError, match="against='grpo' is no model; there are base, new"):
        compare_models([base, other], "grpo", ks=[])
    (strange,) = ModelResult.of_rows("new", "s", [row("elsewhere", [0])])
    with pytest.raises(ValueError, match="new and base on s have no problem in common"):
        compare_models([base, strange], "base", ks=[])


def tables() -> tuple[Cells, Cells]:
    found = [
        *(many("base", "math_500", [1, 5, 3]), many("base", "aime", [0, 1])),
        *(many("e3", "math_500", [2, 6, 3]), many("e3", "aime", [1, 1])),
    ]
    cells = model_cells(model_rows(found, [2, 4]), ks=[4])
    return cells, model_comparison_cells(compare_models(found, "base", [4]))


def test_the_table_has_a_row_per_model_and_set() -> None:
    cells, _ = tables()
    assert cells.header == [
        *("model", "problems", "P", "avg@8", "pass@4", "maj@4"),
        *("tokens mean / p50 / p95", "truncated %", "no answer %"),
    ]
    assert [line[:3] for line in cells.body] == [
        *(["base", "math_500", "3"], ["base", "aime", "2"], ["base", ALL_SETS, "5"]),
        *(["E3", "math_500", "3"], ["E3", "aime", "2"], ["E3", ALL_SETS, "5"]),
    ]
    assert cells.body[0][3].startswith("37.5 [")
    assert cells.body[0][6] == "45 / 45 / 80"
    assert cells.body[2][6] == "45 / – / –"
    assert [line[-1] for line in cells.body[:2]] == ["0.0", "0.0"]
    assert "sampling t1; T = 1.00" in cells.note


def test_the_comparison_says_what_it_compares() -> None:
    _, cells = tables()
    assert cells.header[:3] == ["model", "problems", "measure"]
    # 1/8, 1/8 and 0: 1/12 ± 4.303 · 1/24.
    assert cells.body[0][3] == "+8.3 [-9.6, +26.3]"
    assert "exploratory, since none was declared before the runs: 9 comparisons" in cells.note
    assert as_markdown(cells, WORDS).startswith("| model | problems | measure |")


def test_latex_is_a_booktabs_table_with_special_letters_escaped() -> None:
    cells, comparison = tables()
    lines = as_latex(cells, WORDS).splitlines()
    assert lines[0].startswith("% 95 % intervals")
    assert lines[1] == r"\begin{tabular}{llrrrrrrr}"
    assert lines[3].startswith("model & problems & P & avg@8 & pass@4 & maj@4 & tokens mean")
    assert lines[3].endswith(r"truncated \% & no answer \% \\")
    assert lines[5].startswith(r"base & math\_500 & 3 & 37.5 [")
    assert lines[6].startswith(" & aime & 2 & ")  # the model once
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert r"$\Delta$ points" in as_latex(comparison, WORDS)


def test_curves_stand_in_a_panel_per_set_with_a_line_per_model() -> None:
    found = [many(m, s, [1, 3, 4]) for m in ("base", "new") for s in ("a", "b")]
    figure = pass_at_k_of_models(found)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b"]
    for ax in figure.axes:
        assert [line.get_label() for line in ax.lines] == ["base", "new"]
        assert ax.lines[0].get_xdata().tolist() == [1, 2, 4, 8]
        assert len(ax.collections) == 2  # bands
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2
    expected = found[0].measures([4])["pass@4"].mean()
    assert figure.axes[0].lines[0].get_ydata()[2] == pytest.approx(expected)


def test_a_single_sample_has_no_curve() -> None:
    with pytest.raises(ValueError, match="needs n > 1"):
        pass_at_k_of_models([sampled("m", "s", [0], [1])])
