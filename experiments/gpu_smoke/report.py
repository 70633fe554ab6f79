"""The table and the picture of a smoke run, made from its results alone.

python experiments/gpu_smoke/report.py build/gpu_smoke
python experiments/gpu_smoke/report.py experiments/gpu_smoke/h200 --short   # the table of the page
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from e3rl.analysis.figures.style import with_style

PHASES = {"rollout s": "#0072B2", "update s": "#E69F00"}
FIGURE = "smoke.png"
SHORT = ("s/step", "rollout s", "update s", "largest sampler gap", "canary quartile")


def write_report(results: dict[str, Any], folder: Path) -> None:
    """README.md and, where a stage trained, smoke.png in the folder."""
    lines = [
        f"{results['device']}; torch {results['torch']}, Python {results['python']}.",
        "",
        "| stage | outcome | seconds | figures |",
        "|---|---|---:|---|",
        *map(table_row, results["stages"]),
    ]
    timed = [row for row in results["stages"] if "rollout s" in row.get("figures", {})]
    if timed:
        draw(timed).savefig(folder / FIGURE)
        lines += ["", f"![seconds of a step by stage]({FIGURE})"]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def table_row(row: dict[str, Any]) -> str:
    figures = "; ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.get("figures", {}).items()
    )
    why = row.get("why", "").splitlines()
    outcome = f"{row['status']}: {why[0]}" if why else row["status"]
    return f"| {row['name']} | {outcome} | {row.get('seconds', '')} | {figures} |"


def short_table(results: dict[str, Any]) -> str:
    """What is told of a kept run: outcome, what ran beside it, and some figures of each stage."""
    head = ("stage", "outcome", "beside", *SHORT)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * 3}{'---:|' * len(SHORT)}"]
    for row in results["stages"]:
        found = [row.get("figures", {}).get(name) for name in SHORT]
        cells = ["" if value is None else f"{value:.3g}" for value in found]
        lines.append(f"| {' | '.join([row['name'], row['status'], row['beside'], *cells])} |")
    return "\n".join(lines)


@with_style
def draw(rows: list[dict[str, Any]]) -> Figure:
    """Stacked bars: seconds of a step by stage."""
    figure = Figure(figsize=(7, 0.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = [row["name"] for row in rows][::-1]
    left = [0.0] * len(rows)
    whole = [row["figures"]["s/step"] for row in rows][::-1]
    for phase, colour in PHASES.items():
        values = [row["figures"][phase] for row in rows][::-1]
        axes.barh(names, values, left=left, color=colour, label=phase.removesuffix(" s"))
        left = [a + b for a, b in zip(left, values, strict=True)]
    rest = [max(0.0, total - done) for total, done in zip(whole, left, strict=True)]
    axes.barh(names, rest, left=left, color="#BBBBBB", label="rest")
    axes.set_xlabel("seconds of a step, median")
    axes.legend(loc="best")
    return figure


if __name__ == "__main__":
    place = Path(sys.argv[1])
    read = json.loads((place / "results.json").read_text())
    if "--short" in sys.argv:
        print(short_table(read))
    else:
        write_report(read, place)
