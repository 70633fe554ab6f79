"""Models on problem sets as the table of a paper, and their comparison as another one."""

from collections.abc import Sequence

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.model_scores import AVERAGE
from e3rl.analysis.tables.cells import Cells, drop_empty_columns, interval_text
from e3rl.analysis.tables.comparison_table import correction_note, p_text

WORDS = ("model", "problems", "sampling", "measure", "against", "verdict")  # columns of words


def model_cells(rows: Sequence[Row], ks: Sequence[int]) -> Cells:
    """Header, rows and note from `model_rows`; shares in percent, lengths in tokens.

    `ks` are the k of pass@k and maj@k that are shown. What is the same in all rows is a note.

    Raises ValueError for no rows.
    """
    if not rows:
        raise ValueError("nothing was sampled: give at least one model and one problem set")
    texts = [_texts(row, ks) for row in rows]
    samples = {row["samples"] for row in rows}
    average = f"avg@{samples.pop()}" if len(samples) == 1 else "avg@n (n samples)"
    notes = [
        f"{100 * rows[0]['level']:g} % intervals over problems",
        f"{average} is pass@1 as well",
        "maj@k: votes of k samples over equal answers, ties shared",
    ]
    for name, words in (("sampling", "sampling {}"), ("T", "T = {}")):
        if len({text[name] for text in texts}) == 1:
            notes.append(words.format(texts[0][name]))
            texts = [{**text, name: ""} for text in texts]
    renamed = [{average if k == AVERAGE else k: v for k, v in text.items()} for text in texts]
    return drop_empty_columns(renamed, "; ".join(notes) + ".")


def model_comparison_cells(rows: Sequence[Row]) -> Cells:
    """Header, rows and note from `compare_models`; differences in points."""
    texts = [
        {
            "model": arm_label(row["model"]),
            "problems": row["set"],
            "sampling": row["evaluation"],
            "measure": row["measure"],
            "Δ points": interval_text(row, "difference", "+.1f", 100),
            "against": arm_label(row["against"]),
            "p": p_text(row["p_adjusted"]),
            "verdict": row["verdict"] or "none: entropies differ",
            "paired": str(row["problems"]),
        }
        for row in rows
    ]
    note = (
        f"Δ paired by problem, {100 * rows[0]['level']:g} % intervals, each by itself; "
        f"{correction_note(rows).removesuffix('.')}; better or worse: p below "
        f"{1 - rows[0]['level']:.2g}"
    )
    if len({text["sampling"] for text in texts}) == 1:
        note += f"; sampling {texts[0]['sampling']}"
        texts = [{**text, "sampling": ""} for text in texts]
    return drop_empty_columns(texts, f"{note}.")


def _texts(row: Row, ks: Sequence[int]) -> dict[str, str]:
    measures = [AVERAGE, *(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in ks)]
    lengths = [row[f"length_{name}"] for name in ("mean", "p50", "p95")]
    return {
        "model": arm_label(row["model"]),
        "problems": row["set"],
        "sampling": row["evaluation"],
        "T": "" if row["temperature"] is None else f"{row['temperature']:.2f}",
        "entropy": _entropy(row),
        "P": str(row["problems"]),
        **{name: interval_text(row, name, ".1f", 100) for name in dict.fromkeys(measures)},
        "tokens mean / p50 / p95": " / ".join("–" if x is None else f"{x:.0f}" for x in lengths),
        "truncated %": f"{100 * row['truncated']:.1f}",
        "no answer %": f"{100 * row['no_answer']:.1f}",
    }


def _entropy(row: Row) -> str:
    """What was reached, where an entropy was asked for (`h0.35`)."""
    known = row["evaluation"].startswith("h") and row["entropy"] is not None
    return f"{row['entropy']:.4f}" if known else ""
