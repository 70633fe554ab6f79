"""The table of arms at their last validation, at every temperature, beside a control.

A difference of sampling temperatures alone moves pass@k a lot, so a row says at which temperature
and entropy it was measured, and an arm at its own temperature is compared with the control at equal
entropy, or at the nearest that there is: both entropies are in the row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from e3rl.analysis.measures.arms import LIVE, Row, arm_label, control_of
from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.measures.evaluations import (
    EvaluationResult,
    evaluation_names,
    find_evaluation,
    pass_at_k_difference,
)
from e3rl.analysis.measures.matched_control import at_entropy
from e3rl.analysis.sources.runs import Arms
from e3rl.analysis.tables.cells import (
    Cells,
    as_markdown,
    as_text,
    drop_empty_columns,
    interval_text,
)
from e3rl.statistics.interval import Interval

LEFT = ("arm", "sampling", "against")  # columns of words
CONSTANTS = ("problems", "seeds")  # columns that become a note where all rows agree


def arm_evaluations(arms: Arms) -> list[EvaluationResult]:
    """Last validation of every arm in every evaluation, arm by arm, without the seeds that have
    not got there."""
    names = evaluation_names(arms)
    found = [(arm, find_evaluation(runs, name)) for arm, runs in arms.items() for name in names]
    return [replace(item, arm=arm) for arm, item in found if item is not None]


def arm_rows(
    evaluations: Sequence[EvaluationResult],
    control: str | None = None,
    k: int = 16,
    level: float = 0.95,
) -> list[Row]:
    """One row per evaluation: pass@1 and pass@k with intervals, and paired differences.

    Args:
        evaluations: from `arm_evaluations`, or made from per-problem counts.
        control: arm whose evaluations the others are compared with, by problem: each with the
            one of the same name, but `live` with the control at its entropy
            (`matched_control.at_entropy`).
        k: the larger k; None where a problem has fewer rollouts.
        level: coverage of all intervals.

    Returns:
        dicts with arm, evaluation, temperature, entropy (nats per token), problems, samples,
        seeds, level, pass@1 and pass@<k> with _low and _high, pass@1_by_seed; and against,
        against_entropy, paired_problems, pass@1_difference and pass@<k>_difference with _low and
        _high; where seeds were left out, the paths of these as left_out. Numbers that do not exist
        are None.

    Raises ValueError for a control that is not among the evaluations.
    """
    controls = {item.name: item for item in evaluations if item.arm == control}
    if control is not None and not controls:
        arms = sorted({item.arm for item in evaluations})
        raise ValueError(f"control={control!r} has no evaluation; there are {arms}")
    return [_row(item, _control_of(item, controls), k, level) for item in evaluations]


def _control_of(
    item: EvaluationResult, controls: Mapping[str, EvaluationResult]
) -> EvaluationResult | None:
    same = control_of(item, controls)
    if item.name != LIVE or item.arm in {control.arm for control in controls.values()}:
        return same
    return at_entropy(list(controls.values()), item.entropy) or same


def arm_table_text(rows: Sequence[Row], width: int | None = None) -> str:
    """Rows of `arm_rows` as plain text, shares in percent; wrapped to `width`, where given."""
    return as_text(_arm_table_cells(rows), LEFT, width)


def arm_table_markdown(rows: Sequence[Row]) -> str:
    """Rows of `arm_rows` as Markdown, followed by a note."""
    return as_markdown(_arm_table_cells(rows), LEFT)


def _row(item: EvaluationResult, control: EvaluationResult | None, k: int, level: float) -> Row:
    row: Row = {
        "arm": item.arm,
        "evaluation": item.name,
        "temperature": item.temperature,
        "entropy": item.entropy,
        "problems": item.n_problems,
        "samples": item.n_samples,
        "seeds": len(item.seeds),
        "no_answer": item.no_answer,
        "pass@1_by_seed": item.by_seed(1).tolist(),
        "level": level,
        "against": f"{control.arm} {control.name}" if control else None,
        "against_entropy": control.entropy if control else None,
        "paired_problems": None,
    }
    for each in dict.fromkeys((1, k)):
        enough = item.n_samples >= each
        row |= interval_columns(
            f"pass@{each}", item.pass_at_k([each], level)[0] if enough else None
        )
        pair: Interval | None = None
        if control is not None and enough and control.n_samples >= each:
            pair, row["paired_problems"] = pass_at_k_difference(item, control, each, level)
        row |= interval_columns(f"pass@{each}_difference", pair)
    return row | ({"left_out": list(item.left_out)} if item.left_out else {})


def _arm_table_cells(rows: Sequence[Row]) -> Cells:
    """Header, rows and note as texts, without columns that are empty in every row."""
    if not rows:
        raise ValueError("no evaluation to show: validate first")
    table = [_texts(row) for row in rows]
    notes = [f"{100 * rows[0]['level']:g} % intervals over problems"]
    if any(row["against"] for row in rows):
        notes.append("Δ paired by problem")
    for name in CONSTANTS:
        if len({cells[name] for cells in table}) == 1:
            notes.append(f"{table[0][name]} {name if table[0][name] != '1' else name[:-1]}")
            table = [{**cells, name: ""} for cells in table]
    short = dict.fromkeys(path for row in rows for path in row.get("left_out", ()))
    if short:
        notes.append(
            f"left out, validated last before other seeds of their arm: {', '.join(short)}"
        )
    return drop_empty_columns(table, "; ".join([*notes, *_seed_notes(rows)]))


def _seed_notes(rows: Sequence[Row]) -> list[str]:
    """How far seeds of a control are apart, where an arm of one seed is held against several."""
    several = {f"{row['arm']} {row['evaluation']}": row for row in rows if row["seeds"] > 1}
    alone = [row["against"] for row in rows if row["seeds"] == 1 and row["against"] in several]
    if not alone:
        return []
    shares = [100 * share for share in several[alone[0]]["pass@1_by_seed"]]
    return [
        f"one seed is one draw: pass@1 of {alone[0]} lies between {min(shares):.1f} and "
        f"{max(shares):.1f} % over its {len(shares)} seeds, which Δ does not count"
    ]


def _texts(row: Row) -> dict[str, str]:
    shares = [name for name in row if f"{name}_low" in row]
    plain = [name for name in shares if not name.endswith("_difference")]
    return {
        "arm": arm_label(row["arm"]),
        "sampling": row["evaluation"],
        "T": f"{row['temperature']:.2f}",
        "entropy": "" if math.isnan(row["entropy"]) else f"{row['entropy']:.3f}",
        **{f"{name} %": interval_text(row, name, ".1f", 100) for name in plain},
        **{f"Δ {name}": interval_text(row, f"{name}_difference", "+.1f", 100) for name in plain},
        "no answer %": "" if row["no_answer"] is None else f"{100 * row['no_answer']:.1f}",
        "against": _against(row),
        "problems": str(row["problems"]),
        "paired": ""
        if row["paired_problems"] in (None, row["problems"])
        else f"{row['paired_problems']}",
        "seeds": str(row["seeds"]),
    }


def _against(row: Row) -> str:
    """The control's evaluation, with its entropy where that is to be the arm's."""
    text = row["against"] or ""
    if row["evaluation"] != LIVE or row["against"] is None or math.isnan(row["against_entropy"]):
        return text
    return f"{text}, entropy {row['against_entropy']:.3f}"
