"""Budget rules on a table of pass rates: `python -m e3rl.simulate [runs=[...]] [key=value ...]`.

Writes `figures.csv` (a row per rule and pass), `by_pass_rate.csv` and `histogram.csv`, and prints
the last pass of every rule.
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

from e3rl.configuration import conf_dir, register_resolvers
from e3rl.simulator.figures import by_pass_rate, figures, histogram
from e3rl.simulator.replay import Course, replay
from e3rl.simulator.table import PassRateTable, generated_table, recorded_table

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
    table = build_table(cfg)
    course = Course(table, cfg.prompts_per_step, cfg.seed)
    rows: list[dict[str, Any]] = []
    detail: dict[str, list[dict[str, Any]]] = {"by_pass_rate": [], "histogram": []}
    for name, node in cfg.budgets.items():
        budget = instantiate(node, _convert_="all")
        for passage in replay(budget, course, cfg.rollouts_per_prompt, cfg.epochs):
            head = {"budget": name, "epoch": passage.epoch}
            rows.append(head | figures(passage, cfg.rollouts_per_prompt))
            detail["by_pass_rate"] += [head | row for row in by_pass_rate(passage)]
            detail["histogram"] += [head | row for row in histogram(passage)]
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)
    for file, content in {"figures": rows, **detail}.items():
        pd.DataFrame(content).to_csv(out / f"{file}.csv", index=False)
    print(f"\n{render([row for row in rows if row['epoch'] == cfg.epochs - 1])}\n")
    clock, processor = time.monotonic() - started, time.process_time()
    print(
        f"{len(table)} prompts, pass {cfg.epochs} of {cfg.epochs}; in all {clock:.1f} s by the "
        f"clock, {processor:.1f} s of processor time, peak memory {peak_memory():.2f} GiB\n"
        f"all passes and histograms: {out}"
    )
    return rows


def build_table(cfg: DictConfig) -> PassRateTable:
    """Recorded where runs are given, else generated."""
    if cfg.runs:
        folders = [file.parent for path in cfg.runs for file in Path(path).rglob("prompts.jsonl")]
        if not folders:
            raise FileNotFoundError(f"runs={list(cfg.runs)}: no prompts.jsonl in these folders")
        return recorded_table(sorted(folders), cfg.learning)
    settings = dict(cfg.table) | {"shape": tuple(cfg.table.shape)}
    return generated_table(**settings, learning=cfg.learning, seed=cfg.seed)


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
