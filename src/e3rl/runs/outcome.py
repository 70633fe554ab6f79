"""What a run that has ended is worth: tables, figures, comparison with its control, summary."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.evaluations import EvaluationResult
from e3rl.analysis.measures.resources import SINCE_LAST_ROW, phase_seconds
from e3rl.analysis.sources.runs import Run, load_run, load_runs
from e3rl.analysis.tables.arm_table import arm_evaluations, arm_rows, arm_table_text
from e3rl.checkpoints.durable import write_atomically
from e3rl.ledger.clock import PhaseClock
from e3rl.ledger.files import SECONDS, SUMMARY
from e3rl.ledger.ledger import export, read_rows
from e3rl.ledger.wandb_mirror import WandbMirror
from e3rl.runs.control import control_folders, unlike_control


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves."""

    run_dir: Path
    evaluations: list[EvaluationResult]
    control: str | None  # arm name of the control among the evaluations
    figures: list[Path]
    pass_at_1: float | None  # at temperature 1, where that was validated
    not_compared: str | None = None  # why not, with a control that is there


def conclude(
    cfg: DictConfig,
    run_dir: Path,
    clock: PhaseClock,
    loggers: Sequence[Logger] = (),
) -> Outcome:
    """Export the ledger, compare with the control, draw the figures, write the summary.

    The summary has the seconds since the ledger's last row, by phase; the figures go without those
    that it takes to draw the last of them.
    """
    export(run_dir)
    run = load_run(run_dir)
    evaluations = arm_evaluations({run.name: [run]})
    pass_at_1 = next((e.pass_at_k([1])[0].mean for e in evaluations if e.name == "t1"), None)
    unlike = unlike_control(cfg)
    control = [] if unlike else control_evaluations(cfg, run)
    evaluations += control
    arm = control[0].arm if control else None
    rows = outcome_rows(evaluations, arm)
    figures = _draw(run_dir, clock) if cfg.figures else []
    summary: dict[str, Any] = {"pass@1": pass_at_1, "evaluations": rows, "costs": _costs(run)}
    since_last_row = clock.lap()
    seconds = math.fsum([*phase_seconds(run).values(), *since_last_row.values()])
    summary |= {SINCE_LAST_ROW: since_last_row, SECONDS: seconds}
    write_atomically(
        run_dir / SUMMARY, json.dumps(summary, indent=1) + "\n"
    )  # it says finished: what comes after it may fail, or be killed
    for logger in loggers:
        if isinstance(logger, WandbMirror):
            logger.log_completions(read_rows(run_dir / "completions.jsonl"))
            logger.log_counts("validation", run.problems)
            logger.log_counts("prompts", run.prompts)
            logger.close()
    return Outcome(run_dir, evaluations, arm, figures, pass_at_1, unlike)


def render_outcome(outcome: Outcome) -> str:
    """The summary table and where everything is."""
    table = arm_table_text(outcome_rows(outcome.evaluations, outcome.control))
    lines = [f"run folder: {outcome.run_dir}", *["figures:"] * bool(outcome.figures)]
    lines += [f"  {path}" for path in outcome.figures]
    remarks = [outcome.not_compared, ""] if outcome.not_compared else []
    return "\n".join(["", table, "", *remarks, *lines])


def outcome_rows(evaluations: Sequence[EvaluationResult], control: str | None) -> list[Row]:
    """Rows of the run, and of the control in the evaluations that the run has too."""
    own = {each.name for each in evaluations if each.arm != control}
    rows = arm_rows(evaluations, control=control)
    return [row for row in rows if row["arm"] != control or row["evaluation"] in own]


def _draw(run_dir: Path, clock: PhaseClock) -> list[Path]:
    from e3rl.analysis.figures.run_figures import save_figures  # loads matplotlib

    return save_figures(run_dir, clock.look)


def _costs(run: Run) -> dict[str, float]:
    if run.train.empty:
        return {}
    last = run.train.iloc[-1]
    return {key: float(last[key]) for key in run.train.columns if key.startswith("cost/")}


def control_evaluations(cfg: DictConfig, run: Run) -> list[EvaluationResult]:
    """The last validation of the recorded control's runs, at several entropies.

    Empty where no control is configured or there, or where it was validated on other problems.
    """
    folders = control_folders(cfg)
    recorded = load_runs(folders) if folders else []
    problems = set(run.problems["problem_id"])
    if not problems or any(not problems <= set(each.problems["problem_id"]) for each in recorded):
        return []
    return arm_evaluations({f"{each.name} (recorded)": recorded for each in recorded[:1]})
