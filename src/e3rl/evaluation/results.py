"""What an evaluation leaves in its folder: counts, tables, a comparison and curves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from e3rl.analysis.figures.run_figures import pass_at_k_of_models
from e3rl.analysis.measures.model_comparison import compare_models
from e3rl.analysis.measures.model_scores import ModelResult, model_rows
from e3rl.analysis.tables.arm_table import arm_rows, arm_table_text
from e3rl.analysis.tables.cells import Cells, as_latex, as_markdown, as_text
from e3rl.analysis.tables.model_table import WORDS, model_cells, model_comparison_cells
from e3rl.config.composition import ConfigurationError
from e3rl.evaluation.sampling import merge_rows, to_evaluation_result
from e3rl.ledger.files import CONFIG, METRICS, SUMMARY, VALIDATION
from e3rl.rewards.answer_reader import READ_ANSWERS
from e3rl.temperatures.matching import MATCHED_WITHIN

Row = dict[str, Any]
WRITTEN = ("results.csv", "comparison.csv", "table.md", "table.tex", "pass_at_k.png")


@dataclass(frozen=True)
class SampledSet:
    """One model on one problem set, all sampled."""

    model: str
    step: int
    problem_set: str
    rows: Sequence[Mapping[str, Any]]  # of the log
    entropies: Mapping[str, float] = field(default_factory=dict)  # asked for, by evaluation


@dataclass(frozen=True)
class TableSettings:
    """What tables show: k of the curves and of their columns, and whom models are compared with."""

    ks: Sequence[int]
    table_ks: Sequence[int]
    against: str
    latex: bool = False


def check_replaceable(out: Path) -> None:
    """Raise ConfigurationError where results would replace files that no evaluation has written:
    those of a run, whose counts have the same name, or somebody's own."""
    another = "which the results would replace: give another out=FOLDER"
    if (out / CONFIG).exists() or (out / METRICS).exists():
        raise ConfigurationError(f"out={out} is a run's folder, with a {VALIDATION}, {another}")
    counts = out / VALIDATION
    if counts.exists() and not _is_of_evaluation(counts):
        raise ConfigurationError(f"{counts} is of no evaluation, {another}")
    for name in () if counts.exists() else (SUMMARY, *WRITTEN):
        if (out / name).exists():
            raise ConfigurationError(f"{out / name} is of no evaluation, {another}")


def _is_of_evaluation(counts: Path) -> bool:
    """Whether every row says which model was sampled on which set."""
    try:
        rows = [json.loads(line) for line in counts.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        return False
    return all(isinstance(row, dict) and {"model", "set"} <= row.keys() for row in rows)


def write_results(
    found: Sequence[SampledSet], wanted: TableSettings, out: Path
) -> tuple[str, list[Row]]:
    """Write every file; returns what to print, and the rows of `summary.json`.

    A single model on a single set is printed as it always was; several as the table of a paper.
    """
    sampled = [s for f in found for s in ModelResult.of_rows(f.model, f.problem_set, f.rows)]
    write_counts(found, out)
    for name in WRITTEN:  # not all are written anew
        (out / name).unlink(missing_ok=True)
    summary = summary_rows(found, wanted)
    (out / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    rows = model_rows(sampled, wanted.ks)
    pd.DataFrame(rows).to_csv(out / "results.csv", index=False)
    tables = {"table": model_cells(rows, wanted.table_ks)}
    if len({each.model for each in sampled}) > 1:
        compared = compare_models(sampled, wanted.against, wanted.ks)
        pd.DataFrame(compared).to_csv(out / "comparison.csv", index=False)
        measures = {"avg@n", *(f"{name}@{k}" for name in ("pass", "maj") for k in wanted.table_ks)}
        shown = [row for row in compared if row["measure"] in measures]
        tables["comparison"] = model_comparison_cells(shown)
    write_tables(tables, out, wanted.latex)
    if any(each.n_samples > 1 for each in sampled):
        pass_at_k_of_models(sampled).savefig(out / "pass_at_k.png", dpi=200)
    texts = (as_text(cells, WORDS) for cells in tables.values())
    text = arm_table_text(summary) if len(found) == 1 else "\n\n".join(texts)
    return "\n\n".join([text, *missed_entropies(found), *warn_of_missing_answers(rows)]), summary


def missed_entropies(found: Sequence[SampledSet]) -> list[str]:
    """A line for every evaluation whose entropy is not the one that was asked for."""
    lines = []
    for each in found:
        for counts in merge_rows(each.rows):
            reached, asked = counts.entropy_sum / counts.tokens, each.entropies.get(counts.name)
            if asked is not None and abs(reached / asked - 1) > MATCHED_WITHIN:
                lines.append(
                    f"WARNING: {each.model} on {each.problem_set} has an entropy of {reached:.4f} "
                    f"in {counts.name}, {100 * (reached / asked - 1):+.1f} % of what was asked "
                    "for: it is no control at that entropy. More rollouts (n) are less noisy."
                )
    return lines


def warn_of_missing_answers(rows: Sequence[Row]) -> list[str]:
    """A line for every model and set most of whose completions have no answer to judge."""
    return [
        f"WARNING: {row['no_answer']:.0%} of the completions of {row['model']} on {row['set']} "
        f"({row['evaluation']}) have no answer that the reward can read. {READ_ANSWERS}"
        for row in rows
        if row["no_answer"] > 0.5
    ]


def write_counts(found: Sequence[SampledSet], out: Path) -> None:
    """`validation.jsonl`: per-problem counts of every evaluation, in the form of a run's."""
    lines = [
        json.dumps({"model": f.model, "set": f.problem_set, "rollout_step": f.step, **vars(counts)})
        for f in found
        for counts in merge_rows(f.rows)
    ]
    (out / VALIDATION).write_text("\n".join(lines) + "\n")


def summary_rows(found: Sequence[SampledSet], wanted: TableSettings) -> list[Row]:
    """Arms' rows of each problem set, with differences where there are several models."""
    rows: list[Row] = []
    control = wanted.against if len({each.model for each in found}) > 1 else None
    for problem_set in dict.fromkeys(each.problem_set for each in found):
        here = [each for each in found if each.problem_set == problem_set]
        arms = [
            to_evaluation_result(each.model, counts)
            for each in here
            for counts in merge_rows(each.rows)
        ]
        k = min(max(wanted.ks), max(arm.n_samples for arm in arms))
        rows += [{"set": problem_set, **row} for row in arm_rows(arms, control, k)]
    return rows


def write_tables(tables: Mapping[str, Cells], out: Path, latex: bool) -> None:
    """`table.md`, and with `latex` `table.tex`, which hold all tables one after the other."""
    markdown = "\n\n".join(as_markdown(cells, WORDS) for cells in tables.values())
    (out / "table.md").write_text(markdown + "\n", encoding="utf-8")
    if latex:
        text = "\n\n".join(as_latex(cells, WORDS) for cells in tables.values())
        (out / "table.tex").write_text(text + "\n", encoding="utf-8")
