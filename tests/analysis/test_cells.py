"""Numbers and intervals as texts of a table."""

import math

from e3rl.analysis.tables.cells import (
    Cells,
    as_latex,
    as_markdown,
    as_text,
    drop_empty_columns,
    interval_text,
    number_text,
)

ROW = {"value": 0.4125, "value_low": 0.38, "value_high": 0.4449}


def test_an_interval_has_its_middle_before_its_bounds() -> None:
    assert interval_text(ROW, "value", ".1f", 100) == "41.2 [38.0, 44.5]"
    assert interval_text(ROW, "value", "+.2f") == "+0.41 [+0.38, +0.44]"


def test_what_does_not_exist_is_left_out() -> None:
    assert interval_text({**ROW, "value_low": None, "value_high": None}, "value", ".2f") == "0.41"
    assert interval_text({**ROW, "value": None}, "value", ".2f") == ""
    assert interval_text(ROW, "difference", ".2f") == ""
    assert number_text(None, ".1f") == ""


def test_an_infinite_cost_is_never_reached() -> None:
    row = {"cost": 12_345.0, "cost_low": 11_000.0, "cost_high": math.inf}
    assert interval_text(row, "cost", ".1f", 1e-3) == "12.3 [11.0, never]"


def test_columns_without_a_text_are_dropped() -> None:
    cells = drop_empty_columns(
        [{"arm": "E3", "T": "", "n": ""}, {"arm": "TS", "T": "", "n": "2"}], ""
    )
    assert cells.header == ["arm", "n"]
    assert cells.body == [["E3", ""], ["TS", "2"]]


def test_what_looks_like_markup_in_a_name_is_printed_as_it_is() -> None:
    names = ["e3[a]", "e3[/a]", ":warning:"]
    text = as_text(Cells(["arm", "[x]"], [[name, "1"] for name in names], "of [b]"), ("arm",))
    assert all(word in text for word in [*names, "[x]", "of [b]"])


def test_a_bar_in_a_name_ends_no_cell_of_markdown() -> None:
    lines = as_markdown(Cells(["arm", "x"], [["lr|1e-5", "1"]], ""), ("arm",)).splitlines()
    assert lines[2] == r"| lr\|1e-5 | 1 |"


def test_signs_that_latex_fonts_lack_are_formulas() -> None:
    text = as_latex(Cells(["p"], [["< .001"], ["> .9"], ["a|b"]], ""), ("p",))
    assert "$<$ .001" in text
    assert "$>$ .9" in text
    assert r"a\textbar{}b" in text
