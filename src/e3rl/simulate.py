"""Compare budget rules on tables of pass rates, without a model.

    e3rl simulate [runs=[FOLDER,...]] [by_arm=true] [KEY=VALUE ...]

Writes `figures.csv` (a row per rule and pass), `by_pass_rate.csv` and `histogram.csv`, and prints
the last pass of every rule. With `by_arm=true` every arm among the runs has a table of its own, and
`cells.csv` and `cells.md` order all cells of arm, rule and loss by the noise of their gradients.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.table import Table

from e3rl.analysis.tables.cells import as_markdown, as_text
from e3rl.config.composition import conf_dir, register_resolvers
from e3rl.simulator.figures import by_pass_rate, figures, histogram
from e3rl.simulator.replay import Course, replay
from e3rl.simulator.rules import chosen_rules
from e3rl.simulator.screening import WORDS, as_cells, cells, ordered
from e3rl.simulator.table import PassRateTable, generated_table, recorded_table, recorded_tables

register_resolvers()
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


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="simulate")
def main(cfg: DictConfig) -> None:
    """Simulate and print."""
    try:
        simulate(cfg)
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def simulate(cfg: DictConfig) -> list[dict[str, Any]]:
    """Every rule over the same table; returns and writes a row per rule and pass."""
    from hydra.utils import instantiate

    started = time.monotonic()
    tables, nodes = build_tables(cfg), chosen_rules(cfg)
    rows: list[dict[str, Any]] = []
    grid: list[dict[str, Any]] = []
    detail: dict[str, list[dict[str, Any]]] = {"by_pass_rate": [], "histogram": []}
    for arm, table in tables.items():
        course = Course(table, cfg.prompts_per_step, cfg.seed)
        for name, node in nodes.items():
            budget = instantiate(node, _convert_="all")
            for passage in replay(budget, course, cfg.rollouts_per_prompt, cfg.epochs):
                head: dict[str, Any] = {"arm": arm} if cfg.by_arm else {}
                head |= {"budget": name, "epoch": passage.epoch}
                rows.append(head | figures(passage, cfg.rollouts_per_prompt))
                detail["by_pass_rate"] += [head | row for row in by_pass_rate(passage)]
                detail["histogram"] += [head | row for row in histogram(passage)]
            if cfg.by_arm:
                grid += cells(rows[-1], passage, cfg.rollouts_per_prompt)
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)
    for file, content in {"figures": rows, **detail}.items():
        pd.DataFrame(content).to_csv(out / f"{file}.csv", index=False)
    last = [row for row in rows if row["epoch"] == cfg.epochs - 1]
    print(f"\n{write_cells(grid, out) if cfg.by_arm else render(last)}\n")
    prompts = ", ".join(f"{arm} {len(table)}".strip() for arm, table in tables.items())
    clock, processor = time.monotonic() - started, time.process_time()
    print(
        f"{prompts} prompts, pass {cfg.epochs} of {cfg.epochs}; in all {clock:.1f} s by the "
        f"clock, {processor:.1f} s of processor time, peak memory {peak_memory():.2f} GiB\n"
        f"all passes and histograms: {out}"
    )
    return rows


def build_tables(cfg: DictConfig) -> dict[str, PassRateTable]:
    """Recorded where runs are given, one per arm if by_arm, else generated; by the arm's name."""
    if cfg.runs:
        folders = [file.parent for path in cfg.runs for file in Path(path).rglob("prompts.jsonl")]
        if not folders:
            raise FileNotFoundError(f"runs={list(cfg.runs)}: no prompts.jsonl in these folders")
        if cfg.by_arm:
            return recorded_tables(sorted(folders), cfg.learning)
        return {"": recorded_table(sorted(folders), cfg.learning)}
    if cfg.by_arm:
        raise FileNotFoundError("by_arm=true compares recorded arms: give runs=[FOLDER,...]")
    settings = dict(cfg.table) | {"shape": tuple(cfg.table.shape)}
    return {"": generated_table(**settings, learning=cfg.learning, seed=cfg.seed)}


def write_cells(grid: Sequence[dict[str, Any]], out: Path) -> str:
    """Write all cells in order as csv and Markdown; returns them as plain text."""
    table = ordered(grid)
    table.to_csv(out / "cells.csv", index=False)
    found = as_cells(table)
    (out / "cells.md").write_text(f"{as_markdown(found, WORDS)}\n", encoding="utf-8")
    return as_text(found, WORDS)


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The figures as plain text, shares in percent."""
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


def peak_memory() -> float:
    """GiB that this process held at most."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(used / (2**30 if sys.platform == "darwin" else 2**20))


if __name__ == "__main__":
    main()
