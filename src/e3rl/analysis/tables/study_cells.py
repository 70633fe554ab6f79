"""Rows of the tables of a study as texts: metrics, costs to reach, resources, step responses."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.families import BETTER, POWER, WORSE
from e3rl.analysis.measures.step_response import BAND, LATE, WINDOW
from e3rl.analysis.tables.cells import Cells, drop_empty_columns, interval_text, number_text
from e3rl.analysis.tables.comparison_table import (
    correction_note,
    error_note,
    move_constants,
    p_text,
    verdict_text,
)

NO_ROWS = "no arm has what this table is about"
ERROR = 0.05  # that a star allows


def interaction_cells(rows: Sequence[Row]) -> Cells:
    """Of each factorial what both changes do together, their sum, and the rest, in points."""
    if not rows:
        raise ValueError(NO_ROWS)
    words = {BETTER: "more than the sum", WORSE: "less than the sum"}
    texts, sizes = move_constants(
        [
            {
                "arm": arm_label(row["arm"]),
                "parts": f"{arm_label(row['first'])}; {arm_label(row['second'])}",
                "against": arm_label(row["neither"]),
                "sampling": row["evaluation"],
                "measure": row["measure"],
                "together Δ": interval_text(row, "together", "+.1f", 100),
                "sum of parts Δ": interval_text(row, "parts", "+.1f", 100),
                "interaction": interval_text(row, "difference", "+.1f", 100),
                "p": p_text(row["p_adjusted"]),
                "verdict": verdict_text(
                    row | {"verdict": words.get(row["verdict"], row["verdict"])}
                ),
                "detectable": number_text(row["detectable"], ".1f", 100),
                "seeds": str(row["seeds"]),
                "problems": str(row["problems"]),
            }
            for row in rows
        ]
    )
    level = rows[0]["level"]
    note = (
        f"Points, {_where_equal(rows)}; {100 * level:g} % intervals over seeds and problems, each "
        "by itself. Interaction: what both do together less the sum of what each does alone; more "
        f"or less where p is below {1 - level:.2g}. {correction_note(rows)} Detectable: the "
        "smallest true interaction that passes the correction's strictest step in "
        f"{100 * POWER:g} of 100 studies{error_note(rows)}.{sizes}"
    )
    return drop_empty_columns(texts, note)


def _where_equal(rows: Sequence[Row]) -> str:
    """At which cost the arms of factorials are compared."""
    first = rows[0]
    last = ", ".join(sorted({row["measure"] for row in rows if row["spent"]}))
    ending = "after each run's last step, whatever it had cost and at its own entropy"
    if math.isinf(first["cost"]):
        return ending
    equal = f"at equal cost ({first['cost']:,.0f} {AXIS_UNITS[first['axis']]})"
    return f"{equal}, but for {last}: {ending}" if last else equal


def metric_cells(rows: Sequence[Row], percent: bool = False, digits: int = 1) -> Cells:
    """A row per arm, two columns per window: the mean and its difference to the control.

    Args:
        rows: of one metric, from `metric_rows`.
        percent: show shares in percent.
        digits: after the point.
    """
    if not rows:
        raise ValueError("no arm has recorded the metric")
    windows, arms = (list(dict.fromkeys(row[key] for row in rows)) for key in ("window", "arm"))
    found = {(row["arm"], row["window"]): row for row in rows}
    unit = " %" if percent else ""
    header = ["arm", *(title for w in windows for title in (f"{w}{unit}", f"Δ {w}"))]
    body = []
    for arm in arms:
        cells = [arm_label(arm)]
        for window in windows:
            row = found.get((arm, window), {})
            scale = 100 if percent else 1
            cells.append(interval_text(row, "value", f".{digits}f", scale))
            cells.append(interval_text(row, "difference", f"+.{digits}f", scale) + _star(row))
        body.append(cells)
    note = f"`{rows[0]['metric']}`, mean over steps; {_seeds_note(rows)}{_star_note(rows)}"
    return Cells(header, body, note)


def _seeds_note(rows: Sequence[Row]) -> str:
    """What intervals of metrics are over, and whether differences are of pairs of seeds."""
    seeds = sorted({row["seeds"] for row in rows})
    if seeds == [1]:
        return "1 seed, without intervals; Δ to the control."
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    every = len(seeds) == 1 and not any(row.get("paired_seeds") is False for row in rows)
    alike = "paired by seed" if every else "paired by seed where both have the same"
    return f"95 % intervals over seeds, each by itself; Δ to the control, {alike}; {count} seeds."


def reaching_cells(rows: Sequence[Row]) -> Cells:
    """Costs (of rollouts and tokens in thousands), ratios to the control; `never` where the runs
    did not get there."""
    if not rows:
        raise ValueError(NO_ROWS)
    many = rows[0]["axis"] in ("rollouts", "tokens")
    title, scale = ("cost, thousands", 1e-3) if many else ("cost", 1.0)
    texts = [
        {
            "pass@1": f"{100 * row['target']:g} %",
            "arm": arm_label(row["arm"]),
            title: interval_text(row, "cost", ".1f", scale),
            "of the control's": interval_text(row, "ratio", ".2f") + _star(row),
            "seeds": str(row["seeds"]),
        }
        for row in rows
    ]
    note = (
        f"Cost in {AXIS_UNITS[rows[0]['axis']]} until the mean curve first reaches the accuracy; "
        f"{100 * rows[0]['level']:g} % intervals over seeds and problems, each by itself. `never`: "
        "not at the cost that all runs reached; no ratio where the control is not there by then."
        f"{_star_note(rows)}"
    )
    return drop_empty_columns(texts, note)


def gain_cells(rows: Sequence[Row]) -> Cells:
    """Before and after training in percent, the gain in points."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts, sizes = move_constants(
        [
            {
                "arm": arm_label(row["arm"]),
                "seed": "all" if row["seed"] is None else str(row["seed"]),
                "sampling": row["evaluation"],
                "measure": row["measure"],
                "before training %": interval_text(row, "before", ".1f", 100),
                "after the last step %": interval_text(row, "after", ".1f", 100),
                "gain, points": interval_text(row, "gain", "+.1f", 100),
                "seeds": _seeds_of_gain(row, rows),
                "problems": str(row["problems"]),
            }
            for row in rows
        ]
    )
    note = (
        f"{100 * rows[0]['level']:g} % intervals over seeds and problems, of one seed over "
        f"problems alone, each by itself.{sizes}"
    )
    note += _left_out_note(rows)
    return drop_empty_columns(texts, note)


def _seeds_of_gain(row: Row, rows: Sequence[Row]) -> str:
    """Seeds of the row, or for one that is of a single seed those of the row of all."""
    alike = ("arm", "evaluation", "measure")
    same = (each for each in rows if all(each[key] == row[key] for key in alike))
    return str(max(each["seeds"] for each in same))


def deviation_cells(rows: Sequence[Row]) -> Cells:
    """Mean, least and greatest run of each arm, their standard deviation, and its ratio."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "sampling": row["evaluation"],
            "measure": row["of"],
            "seeds": str(row["seeds"]),
            "mean %": number_text(row["mean"], ".1f", 100),
            "least": number_text(row["least"], ".1f", 100),
            "greatest": number_text(row["greatest"], ".1f", 100),
            "sd, points": interval_text(row, "deviation", ".1f", 100),
            "against": row["against"] or "",
            "pairs": "" if row["paired_seeds"] is None else str(row["paired_seeds"]),
            "ratio of sd": interval_text(row, "ratio", ".2f"),
            "p": p_text(row["p_adjusted"]),
        }
        for row in rows
    ]
    note = (
        "Of runs after their last step, the noise of their validation included; "
        f"{100 * rows[0]['level']:g} % intervals over seeds, each by itself, exact where scores "
        "are normal; ratios over the seeds that both have, paired. "
    )
    return drop_empty_columns(texts, note + correction_note(rows) + _left_out_note(rows))


def _left_out_note(rows: Sequence[Row]) -> str:
    """Which runs do not count since they ended before others of their arm."""
    short = dict.fromkeys(path for row in rows for path in row.get("left_out", ()))
    if not short:
        return ""
    return f" Left out, validated last before other runs of their arm: {', '.join(short)}."


def power_cells(rows: Sequence[Row], differences: Sequence[float]) -> Cells:
    """Standard deviations and detectable differences in points, and the numbers needed."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "seeds": str(row["seeds"]),
            "problems": str(row["problems"]),
            "sd of seeds": _spread_text(row),
            "sd of problems": _root_text(row["problem_variance"]),
            "sd of the rest": _root_text(row["rest_variance"]),
            "detectable": number_text(row["detectable"], ".1f", 100),
            **{
                f"{unit} for {100 * wanted:g}": "none"
                if row[f"{unit}_for_{wanted:g}"] is None
                else f"{row[f'{unit}_for_{wanted:g}']:,}"
                for wanted in differences
                for unit in ("seeds", "problems")
            },
        }
        for row in rows
    ]
    note = (
        "Of paired differences, in points; 95 % interval of the sd of seeds, `< 0` where the "
        "variance is estimated below 0. Detectable with 80 % power by a single comparison at the "
        "5 % level; `none`: no number does."
    )
    return drop_empty_columns(texts, note)


def _spread_text(row: Row) -> str:
    middle, low, high = (row[f"seed_variance{end}"] for end in ("", "_low", "_high"))
    return f"{_root_text(middle)} [{_root_text(low)}, {_root_text(high)}]"


def _root_text(variance: float) -> str:
    return "< 0" if variance < 0 else f"{100 * math.sqrt(variance):.2f}"


def _star(row: Mapping[str, Any]) -> str:
    """A star for a comparison whose corrected p is below 5 %."""
    return " *" if row.get("p_adjusted") is not None and row["p_adjusted"] < ERROR else ""


def _star_note(rows: Sequence[Row]) -> str:
    if not any(row.get("family") for row in rows):
        return ""
    return f" A star: p below {ERROR:g}; {correction_note(rows)}"


def resource_cells(rows: Sequence[Row]) -> Cells:
    """Totals of training and shares of its seconds."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "rollouts": number_text(row["rollouts"], ",.0f"),
            "tokens, millions": number_text(row["tokens"], ".2f", 1e-6),
            "seconds": number_text(row["seconds"], ",.0f"),
            "CPU seconds": number_text(row["cpu_seconds"], ",.0f"),
            "tokens / s": number_text(row["tokens_per_second"], ",.0f"),
            "rollouts %": number_text(row["rollouts_share"], ".0f", 100),
            "update %": number_text(row["update_share"], ".0f", 100),
            "other %": number_text(row["other_share"], ".0f", 100),
            "memory, GiB": number_text(row["memory_gib"], ".2f"),
            "GPU memory, GiB": number_text(row["gpu_memory_gib"], ".2f"),
            "seeds": str(row["seeds"]),
        }
        for row in rows
    ]
    note = "Means over seeds; training alone, without start and validation; memory at its peak."
    return drop_empty_columns(texts, note)


def response_cells(rows: Sequence[Row], last: int = LATE) -> Cells:
    """Errors in percent of the target, settling in steps; `last` as in `response_rows`."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "error before %": number_text(row["before"], ".1f", 100),
            "dip %": number_text(row["dip"], "+.1f", 100),
            "steps to settle": number_text(row["settling"], ".1f"),
            "by seed": ", ".join(f"{each:.0f}" for each in row["settling_by_seed"]),
            "steady error %": number_text(row["steady"], "+.1f", 100),
            "noise %": number_text(row["noise"], ".1f", 100),
            "temperature rose by": number_text(row["rise"], ".2f"),
            "logits were multiplied by": number_text(row["wanted"], ".2f"),
        }
        for row in rows
    ]
    note = (
        f"Means over {rows[0]['seeds']} seeds. Settled: the {WINDOW}-step mean of the entropy "
        f"stays within {100 * BAND:g} % of its target, counted to the first of these steps; a run "
        "that never does counts with all steps that were left. Steady error and noise: mean and "
        f"standard deviation over the last {last} steps."
    )
    return drop_empty_columns(texts, note)
