"""Compare budget rules on tables of pass rates, without a model.

    e3rl simulate [runs=[FOLDER,...]] [by_arm=true] [KEY=VALUE ...]

Writes `summary.csv` (a row per rule and pass), `by_pass_rate.csv` and `histogram.csv`, and prints
the last pass of every rule. With `by_arm=true` every arm among the runs has a table of its own, and
`cells.csv` and `cells.md` order all cells of arm, rule and loss by the noise of their gradients.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig
from pydantic import FiniteFloat, PositiveInt
from rich import box
from rich.console import Console
from rich.table import Table

from e3rl.analysis.tables.cells import as_markdown, as_text
from e3rl.config.command import check_own_settings, configured
from e3rl.config.composition import ConfigurationError
from e3rl.ledger.archive import ledger_folders
from e3rl.ledger.files import PROMPTS
from e3rl.process.environment import peak_memory_gib
from e3rl.process.output import check_folder
from e3rl.simulator.replay import Workload, replay, select_rules
from e3rl.simulator.screening import WORDS, screening_cells, screening_rows, sort_by_noise
from e3rl.simulator.summary import count_prompts_by_rollouts, summarize_by_pass_rate, summarize_pass
from e3rl.simulator.table import PassRateTable, generate_table, load_table, load_tables_by_arm

SHARES = {
    "all_wrong": "all wrong %",
    "all_right": "all right %",
    "mixed": "mixed %",
    "effective": "effective %",
    "hits": "hits %",
}
TITLES = (
    "budget",
    "n",
    "reached %",
    "spent %",
    *SHARES.values(),
    "variance",
    "first solved",
    "n 5-95 %, max",
    "s",
)


@dataclass(frozen=True)
class Replay:
    """What the settings of this command that are no nodes hold."""

    rules: list[str]
    runs: list[str]
    learning: FiniteFloat
    prompts_per_step: PositiveInt
    rollouts_per_prompt: PositiveInt
    epochs: PositiveInt
    seed: int


@configured("simulate", FileNotFoundError, ValueError)
def main(cfg: DictConfig) -> None:
    """Replay the rules, print a table, and end with code 2 where the runs have no prompts."""
    simulate(cfg)


def simulate(cfg: DictConfig) -> list[dict[str, Any]]:
    """Replay every rule on the same table; writes the files, returns the rows of `summary.csv`."""
    from hydra.utils import instantiate

    from e3rl.config.check import check_command, wrong_values

    check_command(cfg, "simulate")
    check_own_settings(cfg, Replay)
    made_up = dict(cfg.table) | {"shape": tuple(cfg.table.shape)}
    if mistakes := list(wrong_values(made_up, generate_table, "table.")):
        raise ConfigurationError("\n".join(mistakes))
    check_folder("out=", Path(cfg.out))
    started = time.monotonic()
    tables, nodes = build_tables(cfg), select_rules(cfg.budgets, list(cfg.rules))
    rows: list[dict[str, Any]] = []
    grid: list[dict[str, Any]] = []
    detail: dict[str, list[dict[str, Any]]] = {"by_pass_rate": [], "histogram": []}
    for arm, table in tables.items():
        workload = Workload(table, cfg.prompts_per_step, cfg.seed)
        for name, node in nodes.items():
            budget = instantiate(node, _convert_="all")
            for result in replay(budget, workload, cfg.rollouts_per_prompt, cfg.epochs):
                head: dict[str, Any] = {"arm": arm} if cfg.by_arm else {}
                head |= {"budget": name, "epoch": result.epoch}
                rows.append(head | summarize_pass(result, cfg.rollouts_per_prompt))
                detail["by_pass_rate"] += [head | row for row in summarize_by_pass_rate(result)]
                detail["histogram"] += [head | row for row in count_prompts_by_rollouts(result)]
            if cfg.by_arm:
                grid += screening_rows(rows[-1], result, cfg.rollouts_per_prompt)
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)
    for file, content in {"summary": rows, **detail}.items():
        pd.DataFrame(content).to_csv(out / f"{file}.csv", index=False)
    last = [row for row in rows if row["epoch"] == cfg.epochs - 1]
    print(f"\n{write_cells(grid, out) if cfg.by_arm else render_summary(last)}\n")
    prompts = ", ".join(f"{arm} {len(table)}".strip() for arm, table in tables.items())
    clock, processor = time.monotonic() - started, time.process_time()
    print(
        f"{prompts} prompts, pass {cfg.epochs} of {cfg.epochs}; in all {clock:.1f} s by the "
        f"clock, {processor:.1f} s of processor time, peak memory {peak_memory_gib():.2f} GiB\n"
        f"all passes and histograms: {out}"
    )
    return rows


def build_tables(cfg: DictConfig) -> dict[str, PassRateTable]:
    """Tables by arm: recorded where `runs` are given, else a generated one; "" without `by_arm`.

    Raises FileNotFoundError where any of the runs has recorded no prompts, or by_arm has no runs.
    """
    if cfg.runs:
        found = [(path, ledger_folders(path, PROMPTS)) for path in cfg.runs]
        if empty := [path for path, folders in found if not folders]:
            raise FileNotFoundError(f"runs={empty}: no {PROMPTS} in these folders, leave them out")
        folders = sorted(each for _, folders in found for each in folders)
        if cfg.by_arm:
            return load_tables_by_arm(folders, cfg.learning)
        return {"": load_table(folders, cfg.learning)}
    if cfg.by_arm:
        raise FileNotFoundError("by_arm=true compares recorded arms: give runs=[FOLDER,...]")
    settings = dict(cfg.table) | {"shape": tuple(cfg.table.shape)}
    return {"": generate_table(**settings, learning=cfg.learning, seed=cfg.seed)}


def write_cells(grid: Sequence[dict[str, Any]], out: Path) -> str:
    """Write `cells.csv` and `cells.md`, sorted by noise; returns the table as plain text."""
    table = sort_by_noise(grid)
    table.to_csv(out / "cells.csv", index=False)
    found = screening_cells(table)
    (out / "cells.md").write_text(f"{as_markdown(found, WORDS)}\n", encoding="utf-8")
    return as_text(found, WORDS)


def render_summary(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `summarize_pass` as plain text, shares in percent."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in TITLES:
        table.add_column(title, justify="left" if title == "budget" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["budget"],
            f"{row['per_prompt']:.2f}",
            f"{100 * row['reached']:.1f}",
            f"{100 * row['spent_share']:.1f}",
            *(f"{100 * row[name]:.1f}" for name in SHARES),
            f"{row['gradient_variance']:.2f}",
            f"{row['first_solved']:.0f}",
            f"{row['n_05']:.0f}-{row['n_95']:.0f}, {row['n_max']:.0f}",
            f"{row['seconds']:.2f}",
        )
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


if __name__ == "__main__":
    main()
