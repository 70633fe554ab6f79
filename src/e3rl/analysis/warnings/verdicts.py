"""Warnings about verdicts: how many seeds they rest on, and what they could not have found."""

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.families import (
    BETTER,
    DAGGER,
    NEITHER,
    WORSE,
    fewest_seeds,
    hangs_on_problems,
)
from e3rl.analysis.warnings.compared import Compared
from e3rl.statistics.means import ENOUGH_SEEDS

COARSE = 0.05  # of a pass rate, from which on "not distinguishable" hides differences that matter


def few_seeds(compared: Compared) -> list[str]:
    """Comparisons of fewer than `ENOUGH_SEEDS` seeds, and verdicts that rest on so few, or that
    more would not bear either if seeds alone counted."""
    compares = [row for row in compared.rows if row["difference"] is not None]
    counts: dict[str, int] = {}  # by arm, of the row that has fewest
    for row in compares:
        counts[row["arm"]] = min(fewest_seeds(row) or 1, counts.get(row["arm"], ENOUGH_SEEDS))
    few = {arm: n for arm, n in counts.items() if n < ENOUGH_SEEDS}
    lines = []
    if few:
        sizes = {fewest_seeds(row) or 1 for row in compares}
        named = ", ".join(f"{arm_label(a)} {n}" for a, n in few.items())
        told = f"{sizes.pop()} each" if len(sizes) == 1 else named
        lines.append(
            f"Fewer than {ENOUGH_SEEDS} seeds ({told}): an interval hardly knows how seeds differ, "
            "and a verdict may not repeat; of one seed there is none."
        )
    sure = [row for row in compared.rows if row.get("verdict") in (BETTER, WORSE)]
    if judged := [row for row in sure if (fewest_seeds(row) or 1) < ENOUGH_SEEDS]:
        lines.append(
            f"Verdicts that rest on fewer than {ENOUGH_SEEDS} seeds: {_told(judged)}. Run more "
            "seeds before they are told to anybody."
        )
    if hanging := [row for row in compared.rows if hangs_on_problems(row)]:
        lines.append(
            f"Verdicts that would be open with the seeds' degrees of freedom alone ({DAGGER}): "
            f"{_told(hanging)}. Few seeds hardly know how seeds differ; run more of them."
        )
    return lines


def _told(rows: list[Row]) -> str:
    """Arms and what each is judged in, those of one measure together."""
    by_measure: dict[str, list[str]] = {}
    for row in rows:
        words = f"{row['verdict']} in {row['measure']}"
        by_measure.setdefault(words, []).append(arm_label(row["arm"]))
    return ", ".join(
        f"{' and '.join(dict.fromkeys(arms))} {words}" for words, arms in by_measure.items()
    )


def coarse_verdicts(compared: Compared) -> list[str]:
    """Arms that are not told apart where only large differences could have been."""
    least: dict[str, float] = {}
    for row in compared.rows:
        if row.get("verdict") == NEITHER and (size := _detectable(row)) > COARSE:
            least[row["arm"]] = max(least.get(row["arm"], 0.0), size)
    if not least:
        return []
    named = ", ".join(f"{arm_label(arm)} ({100 * size:.0f} points)" for arm, size in least.items())
    return [
        "Not distinguishable does not mean equal: these seeds and problems find only differences "
        f"as large as {named}, each by its coarsest row."
    ]


def _detectable(row: Row) -> float:
    """The smallest difference that a row's test finds, 1 where it finds none that there can be."""
    if row.get("detectable") is not None:
        return float(row["detectable"])
    return 1.0 if row.get("comparison") and row.get("difference_error") else 0.0
