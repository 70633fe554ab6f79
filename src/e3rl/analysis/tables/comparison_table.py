"""The comparison of arms as a table of texts, with the rule of its verdicts in words."""

import math
from collections.abc import Sequence

from e3rl.analysis.measures.arms import AND, LIVE, Row, arm_label
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.families import (
    DAGGER,
    EXPLORATORY,
    POWER,
    fewest_seeds,
    hangs_on_problems,
)
from e3rl.analysis.tables.cells import (
    Cells,
    as_markdown,
    as_text,
    drop_empty_columns,
    interval_text,
    number_text,
)
from e3rl.statistics.means import ENOUGH_SEEDS
from e3rl.statistics.power import error_range
from e3rl.temperatures.matching import FEWEST_ROLLOUTS, MATCHED_WITHIN

WORDS = ("arm", "sampling", "measure", "against", "family", "verdict")  # columns of words
CONSTANTS = ("seeds", "problems")
MARKED = f" {DAGGER}: not distinguishable with the seeds' degrees of freedom alone."


def comparison_cells(rows: Sequence[Row]) -> Cells:
    """Header, rows and note; shares in percent, differences in points.

    Verdicts that `families.hangs_on_problems` tells of have a dagger.

    Raises ValueError for no rows.
    """
    if not rows:
        raise ValueError("no arm was validated at the common cost: validate first")
    marked = [hangs_on_problems(row) for row in rows]
    texts, sizes = move_constants([_texts(row) for row in rows])
    texts = [
        {**text, "verdict": text["verdict"] + DAGGER * mark}
        for text, mark in zip(texts, marked, strict=True)
    ]
    if len({row["family"] for row in rows if row["family"]}) == 1:
        texts = [{**row, "family": ""} for row in texts]
    return drop_empty_columns(texts, f"{comparison_note(rows)}{sizes}{MARKED * any(marked)}")


def judged_texts(row: Row, difference: str = "Δ points") -> dict[str, str]:
    """The cells of a difference, in points and under that name, and of its judgement, for tables
    of studies that read their runs by a script."""
    return {
        difference: interval_text(row, "difference", "+.1f", 100),
        "p": p_text(row["p_adjusted"]),
        "verdict": row["verdict"],
        "detectable": f"{100 * row['detectable']:.1f}",
    }


def move_constants(texts: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], str]:
    """Rows with empty columns `seeds` and `problems` where these say the same in every row, and the
    sentence that says it instead."""
    rows, notes = list(texts), []
    for name in CONSTANTS:
        if len({row[name] for row in rows}) == 1:
            notes.append(f"{rows[0][name]} {name if rows[0][name] != '1' else name[:-1]}")
            rows = [{**row, name: ""} for row in rows]
    return rows, f" {', '.join(notes).capitalize()}." if notes else ""


def comparison_text(rows: Sequence[Row]) -> str:
    """The table as plain text."""
    return as_text(comparison_cells(rows), WORDS)


def comparison_markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    return as_markdown(comparison_cells(rows), WORDS)


def comparison_note(rows: Sequence[Row]) -> str:
    """The note below the table: what was compared, at which cost, and when a verdict is given."""
    first = rows[0]
    few, most = (of(row["seeds"] for row in rows) for of in (min, max))
    has_runs = any(row["iqm"] is not None for row in rows)  # no mean of arms
    alone = ", of IQM and P(better) over seeds alone" if has_runs else ""
    text = (
        f"{cost_note(rows)}; {100 * first['level']:g} % intervals over seeds and problems (over "
        f"problems alone where an arm has one seed){alone}, each by itself."
    )
    if first.get("subset"):
        text += f" Problems {first['subset']}."
    if any(row["family"] for row in rows):
        text += (
            f" {correction_note(rows)} Better or worse, of Δ paired by problem: p below "
            f"{1 - first['level']:.2g}. Detectable: the smallest true difference that passes the "
            f"correction's strictest step in {100 * POWER:g} of 100 studies{error_note(rows)}."
        )
    if any(_is_matched(row) for row in rows):
        where = "own temperatures" if _at_own_temperatures(rows) else "equal entropy"
        text += (
            f" At {where}: against the control on a line in ln H between evaluations of "
            f"{FEWEST_ROLLOUTS} rollouts and more that enclose the arm's entropy (nats per token), "
            f"seed by seed; no verdict where these differ by more than {100 * MATCHED_WITHIN:g} %."
        )
    if any(_entropies(row) and not _is_matched(row) for row in rows):
        text += (
            " Entropies are of the last validation, nats per token: where they differ, a flatter "
            "policy may have less pass@1 and more pass@k by that alone."
        )
    if any("paired_problems" in row for row in rows):
        text += " Paired: problems that arm and control both have, which Δ, P(better) and p are of."
    if few < ENOUGH_SEEDS:
        where = "With" if few == most else "In rows of"
        text += f" {where} {few} seed{'s' * (few > 1)} an interval hardly knows how seeds differ."
    return text


def interval_words(rows: Sequence[Row]) -> tuple[str, str]:
    """What intervals of differences are over, and by what these are paired: by seed where both arms
    have the same ones, which do not count where one has a single one."""
    compared = [row for row in rows if row.get("paired_seeds") is not None]
    several = [bool(row["paired_seeds"]) for row in compared if fewest_seeds(row) != 1]
    if compared and not several:
        return "over problems, of one seed", "paired by problem"
    alone = len(several) < len(compared)
    over = "over seeds and problems" + " (over problems where an arm has one seed)" * alone
    if all(several):
        return over, "paired by both"
    if any(several):
        return over, "paired by problem, and by seed where both arms have the same"
    return over, "paired by problem, not by seed"


def cost_note(rows: Sequence[Row]) -> str:
    """At which cost arms are compared, and which rows are not at that one."""
    first = rows[0]
    unit, ends = AXIS_UNITS[first["axis"]], math.isinf(first["cost"])
    equal = f"At equal cost ({first['cost']:,.0f} {unit})"
    if not any(_spent(row) for row in rows):
        return equal
    why = "the only one with k rollouts" if _at_own_temperatures(rows) else "at equal entropy"
    if any(row.get("at_the_end") for row in rows):
        why = "the only one with k rollouts or the one whose entropies are matched"
    why = "after as many steps" if ends and not any(_is_matched(row) for row in rows) else why
    last = f"by the last validation, {why}, {unit} less the control's in %"
    if ends or all(_spent(row) for row in rows):
        return f"Not at equal cost: {last}"
    return f"{equal}, or, where that is said, {last}"


def error_note(rows: Sequence[Row]) -> str:
    """How far off what is detectable may be, as the standard errors that it rests on."""
    dfs = [row["difference_df"] for row in rows if row.get("detectable") is not None]
    if not dfs:
        return ""
    low, high = error_range(min(dfs))
    return (
        ", if the row's standard error is the true one (which may be "
        f"{low:.1f} to {high:.1f} times as large)"
    )


def _spent(row: Row) -> str:
    """How much more an arm had cost than its control, in percent, where costs are not equal
    and there were any: the untrained policy has cost nothing."""
    spent, other = row.get("spent"), row.get("against_spent")
    return "" if spent is None or not other else f"{100 * (spent / other - 1):+.1f}"


def correction_note(rows: Sequence[Row]) -> str:
    """For how many comparisons the p values of these rows are corrected, family by family."""
    declared = {row["family"]: row for row in rows if row["family"]}
    texts = []
    for name, row in declared.items():
        size, looks = row["family_size"], row.get("looks", 1)
        many = f"{size} comparison{'s' * (size > 1)}" + f", times {looks} looks" * (looks > 1)
        if name == EXPLORATORY:
            texts.append(f"exploratory, since none was declared before the runs: {many}")
        else:
            texts.append(f"declared family {name}: {many}")
    return f"p after Holm's correction ({'; '.join(texts)})."


def p_text(p: float | None) -> str:
    """A p value to three digits after the point."""
    if p is None:
        return ""
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _texts(row: Row) -> dict[str, str]:
    return {
        "arm": arm_label(row["arm"]),
        "sampling": row["evaluation"],
        "T": f"{row['temperature']:.2f}",
        "measure": row["measure"],
        "%": interval_text(row, "value", ".1f", 100),
        "IQM %": interval_text(row, "iqm", ".1f", 100),
        "Δ points": interval_text(row, "difference", "+.1f", 100),
        "against": _against(row),
        "entropy / against": _entropies(row),
        "cost %": _spent(row),
        "P(better) %": interval_text(row, "improvement", ".0f", 100),
        "family": row["family"] or "",
        "p": p_text(row["p_adjusted"]),
        "verdict": verdict_text(row),
        "detectable": number_text(row["detectable"], ".1f", 100),
        "seeds": str(row["seeds"]),
        "problems": str(row["problems"]),
        "paired": str(row.get("paired_problems", "")),
    }


def _against(row: Row) -> str:
    """The control and its evaluation."""
    arm, _, name = (row["against"] or "").partition(" ")
    return f"{arm_label(arm)} {name}" if AND in arm else row["against"] or ""


def _entropies(row: Row) -> str:
    """Of the arm and of the control it is compared with, where accuracy depends on them."""
    if not row["against_entropy"]:
        return ""
    digits = 4 if _is_matched(row) else 3
    both = (row["entropy"], row["against_entropy"])
    return " / ".join("–" if math.isnan(each) else f"{each:.{digits}f}" for each in both)


def _is_matched(row: Row) -> bool:
    return row.get("entropy_gap") is not None or row.get("unmatched") is not None


def _at_own_temperatures(rows: Sequence[Row]) -> bool:
    """Whether no row but those at an arm's own temperature is matched in entropy."""
    return all(row["evaluation"] == LIVE for row in rows if _is_matched(row))


def verdict_text(row: Row) -> str:
    """The word, and what speaks against taking it at its face; or why there is none."""
    if row.get("unmatched"):
        return f"none: {row['unmatched']}"
    if row["verdict"] is None:
        return "none: 1 seed" if row["difference"] is not None and fewest_seeds(row) == 1 else ""
    remarks = []
    if (seeds := fewest_seeds(row) or 1) < ENOUGH_SEEDS:
        remarks.append(f"{seeds} seed{'s' * (seeds > 1)}")
    if (row.get("entropy_error") or 0) > MATCHED_WITHIN:
        remarks.append(f"entropies known to {100 * row['entropy_error']:.1f} %")
    return f"{row['verdict']} ({', '.join(remarks)})" if remarks else str(row["verdict"])
