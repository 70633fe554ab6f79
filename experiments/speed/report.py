"""Tables, verdict and figure of the benchmark, made from results.json alone.

.venv/bin/python experiments/speed/report.py
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from e3rl.analysis.figures.saved import save_figure
from e3rl.analysis.figures.style import (
    BASELINE,
    MUTED,
    OTHER_COLOURS,
    WIDE,
    with_style,
)
from e3rl.analysis.tables.cells import Cells, as_markdown

HERE = Path(__file__).parent
FIGURE = "speed.png"
TRL = "trl"
TITLES = {TRL: "TRL", "vllm": "e3rl, vLLM", "transformers": "e3rl, transformers"}
TITLES |= {f"{side}:2": f"{TITLES[side]}, two processes" for side in ("vllm", "transformers")}
PHASES = {"rollout": "#0072B2", "update": "#E69F00", "rest": BASELINE}
FLAT = 0.15  # seconds per token may differ by this share from those of the smallest size
BOOKKEEPING = 0.01  # of a step
OVERHEAD = 0.03  # of a step: neither rollout nor update

Results = Mapping[str, Any]
Entry = Mapping[str, Any]


def write_report(results: Results, folder: Path) -> None:
    """Fill in the tables of the README in a folder, made where there is none, and draw the
    figure."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    save_figure(draw(results), figures / FIGURE, 150)
    readme = folder / "README.md"
    made = tables(results)
    text = readme.read_text() if readme.is_file() else _empty(made)
    for name, table in made.items():
        text = insert(text, name, table)
    readme.write_text(text)


def insert(text: str, name: str, table: str) -> str:
    """`text` with the table between its marks; raises ValueError where there are none."""
    begin, end = f"<!-- table: {name} -->", "<!-- end -->"
    before, found, after = text.partition(begin)
    if not found or end not in after:
        raise ValueError(f"the README has no place for the table {name}: add {begin} and {end}")
    return f"{before}{begin}\n\n{table.strip()}\n\n{end}{after.partition(end)[2]}"


def _empty(names: Mapping[str, str]) -> str:
    return "".join(f"<!-- table: {name} -->\n<!-- end -->\n\n" for name in names)


def tables(results: Results) -> dict[str, str]:
    """Markdown by the names of their places in the README."""
    return {
        "machine": machine_line(results),
        "figure": f"![Phases of a step, and seconds per token as work grows](figures/{FIGURE})",
        "work": work_table(results),
        "update": update_table(results),
        "growth": growth_table(results),
        "tuning": tuning_table(results),
        "verdict": verdict(results),
    }


def machine_line(results: Results) -> str:
    machine = results["machine"]
    others = [
        f", {name} at {entry['commit']}"
        for name, entry in results.get("works", {}).items()
        if entry.get("commit", machine["commit"]) != machine["commit"]
    ]
    ours = machine["commit"] + "".join(others)
    threads = machine["threads"] or machine["trl"]["threads"]
    packages = ", ".join(f"{name} {found}" for name, found in machine["e3rl"].items())
    trl = machine.get("trl", {})  # absent where e3rl alone was measured
    theirs = ", ".join(f"{k} {v}" for k, v in trl.items() if k != "threads")
    return (
        f"{machine['cpu']}, {machine['cpus']} cores, {machine['ram_gib']:g} GiB, "
        f"{machine['platform']}, Python {machine['python']}; {machine['device']}, "
        f"{machine['precision']}, {threads} threads of OpenMP. e3rl at {ours} with "
        f"{packages}. TRL's side: {theirs or 'not measured'}."
    )


def works_of(results: Results) -> Iterator[tuple[str, Entry, dict[str, list[Any]]]]:
    """Every work that was measured, and its runs by side, TRL's first."""
    for name, entry in results.get("works", {}).items():
        yield name, entry, {side: runs for side, runs in entry["runs"].items() if runs}


def middle(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """The median over runs; `update` and such are phases."""
    return median(run[key] if key in run else run["phases"][key] for run in runs)


def ratios(runs: Sequence[Any], other: Sequence[Any], key: str) -> list[float]:
    """Quotients of the pairs, sorted."""
    return sorted(a[key] / b[key] for a, b in zip(runs, other, strict=False))


def ratio_text(quotients: Sequence[float]) -> str:
    return f"{median(quotients):.2f} [{quotients[0]:.2f}, {quotients[-1]:.2f}]"


def work_table(results: Results) -> str:
    header = ["work", "side", "s per step", "rollout + update + rest", "CPU-s", "peak GiB"]
    header += ["tokens", "dead", "seconds, of TRL's", "CPU-s, of TRL's", "memory, of TRL's"]
    body = []
    for name, entry, sides in works_of(results):
        for side, runs in sides.items():
            parts = " + ".join(f"{middle(runs, phase):.2f}" for phase in PHASES)
            row = [f"({entry['work']['kind']}) {name}" if side == TRL else "", TITLES[side]]
            row += [f"{middle(runs, 'seconds'):.2f}", parts, f"{middle(runs, 'cpu_s'):.2f}"]
            row += [f"{middle(runs, 'peak_gib'):.2f}", f"{middle(runs, 'tokens'):.0f}"]
            row += [f"{middle(runs, 'dead'):.2f}"]
            keys = ("seconds", "cpu_s", "peak_gib")
            row += [
                "" if side == TRL else ratio_text(ratios(runs, sides[TRL], key)) for key in keys
            ]
            body.append(row)
    note = (
        "Medians over pairs of runs; ratios of the runs of a pair, with the least and the greatest."
        " Tokens: sampled per step. Dead: share of groups whose rewards are all the same. Of the "
        "processor's time something else took "
        f"{100 * disturbance(results):.0f} % in the worst run."
    )
    return as_markdown(Cells(header, body, note), header[:2])


def disturbance(results: Results) -> float:
    """Largest share of the machine's processor time that went to neither side during its steps."""
    runs = [run for _, _, sides in works_of(results) for runs in sides.values() for run in runs]
    cpus = results["machine"]["cpus"]
    return max((run["others_cpu_s"] / run["seconds"] / cpus for run in runs), default=0.0)


def update_flops(size: Mapping[str, Any], work: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """Floating point operations that the update of a step is worth.

    A forward pass takes 2 per weight and token in the linear layers, 2 per weight of the output
    layer for every sampled token, and 4 x width per layer for every pair of tokens that attention
    compares; a backward pass twice as much. Counted is what is needed: every prompt once, not once
    per completion, and nothing of dead groups.
    """
    layers, hidden, heads = size["layers"], size["hidden"], size["heads"]
    width = hidden // heads * size["key_value_heads"]
    weights = layers * (2 * hidden**2 + 2 * hidden * width + 3 * hidden * size["inner"])
    prompts = work["prompts"] * (1 - run["dead"])
    rollouts, prompt = prompts * work["group"], size["prompt"]
    length = run["tokens"] / (work["prompts"] * work["group"])
    sampled = rollouts * length
    pairs = prompts * prompt**2 / 2 + rollouts * (length * prompt + length**2 / 2)
    forward = 2 * weights * (prompts * prompt + sampled)
    forward += 2 * hidden * size["vocabulary"] * sampled + 4 * hidden * layers * pairs
    return 3 * forward


def utilization(entry: Entry, runs: Sequence[Any]) -> tuple[float, float]:
    """GFLOP/s of the update that were of use, and their share of the matmul rate; medians."""
    rates = [
        update_flops(entry["size"], entry["work"], run) / run["phases"]["update"] / 1e9
        for run in runs
    ]
    shares = [rate / peak for rate, peak in zip(rates, entry["peak"], strict=False)]
    return median(rates), median(shares)


def overhead(run: Mapping[str, Any]) -> float:
    """Share of a step for rest, the engine's check after a sync, and exact entropies."""
    own = run["phases"]["rest"] + run["phases"].get("probe", 0.0)
    return float((own + run.get("times", {}).get("engine/canary_s", 0.0)) / run["seconds"])


def update_table(results: Results) -> str:
    header = ["work", "side", "update, s", "useful GFLOP/s", "matmul GFLOP/s", "share"]
    header += ["rest of the step", "with checks and entropies"]
    body = []
    for name, entry, sides in works_of(results):
        for side, runs in sides.items():
            rate, share = utilization(entry, runs)
            rest = median(run["phases"]["rest"] / run["seconds"] for run in runs)
            row = [name if side == TRL else "", TITLES[side], f"{middle(runs, 'update'):.2f}"]
            row += [f"{rate:.0f}", f"{median(entry['peak']):.0f}", f"{100 * share:.0f} %"]
            own = "" if side == TRL else f"{100 * median(map(overhead, runs)):.1f} %"
            body.append([*row, f"{100 * rest:.1f} %", own])
    note = (
        "Useful: 6 per weight and token, the output layer for sampled tokens only, attention "
        "counted, every prompt once per group and nothing of dead groups, whatever a side "
        "computes. Matmul: the products of such an update alone, measured before each pair. Rest: "
        "neither rollout nor update; then with the engine's check after each sync, which is "
        "counted as rollout, and the exact entropies, which are counted as update."
    )
    return as_markdown(Cells(header, body, note), header[:2])


def growth_rows(results: Results) -> Iterator[dict[str, Any]]:
    """A size of a kind by one engine: seconds per step and token, beside the smallest size's."""
    first: dict[tuple[str, str], float] = {}
    for entry in results.get("growth", []):
        for engine in (name for name in TITLES if entry.get(name)):
            runs = entry[engine]
            per_token = median(run["seconds"] / run["tokens"] for run in runs)
            smallest = first.setdefault((entry["kind"], engine), per_token)
            budget = median(run["times"].get("time/budget_s", 0) / run["seconds"] for run in runs)
            yield {
                **{key: entry[key] for key in ("kind", "size", "prompts", "group")},
                "engine": engine,
                "seconds": middle(runs, "seconds"),
                "per_token": per_token,
                "of_first": per_token / smallest,
                "peak_gib": middle(runs, "peak_gib"),
                "start_s": middle(runs, "start_s"),
                "budget": budget,
                "rest": median(run["phases"]["rest"] / run["seconds"] for run in runs),
            }


def growth_table(results: Results) -> str:
    header = ["what grows", "size", "engine", "s per step", "µs per token", "of the smallest's"]
    header += ["budget", "rest", "peak GiB", "start, s"]
    body = [
        [
            *(row["kind"], f"{row['size']:,}", TITLES[row["engine"]].removeprefix("e3rl, ")),
            *(f"{row['seconds']:.2f}", f"{1e6 * row['per_token']:.0f}", f"{row['of_first']:.2f}"),
            *(f"{100 * row['budget']:.2f} %", f"{100 * row['rest']:.1f} %"),
            *(f"{row['peak_gib']:.2f}", f"{row['start_s']:.0f}"),
        ]
        for row in growth_rows(results)
    ]
    note = (
        "Medians over runs. Budget: share of a step in which the budget rule decides and learns; "
        "rest: neither rollout nor update, the budget's part included. Start: from the command to "
        "the first step."
    )
    return as_markdown(Cells(header, body, note), (header[0], header[2]))


def tuning_table(results: Results) -> str:
    header = ["work", "TRL's rows at a time", "s per step", "of them update", "peak GiB"]
    body = [
        [work if name == next(iter(tries)) else "", name, *figures]
        for work, tries in results.get("tuning", {}).items()
        for name, run in tries.items()
        for figures in [[f"{middle([run], k):.2f}" for k in ("seconds", "update", "peak_gib")]]
    ]
    return as_markdown(
        Cells(header, body, "One run each; static: with the static cache."), header[:2]
    )


class Aim(NamedTuple):
    """A figure that was aimed at: what was found of what, and its bound."""

    what: str
    found: float
    of: str
    bound: str  # at most, at least
    aim: float
    digits: int = 2

    @property
    def reached(self) -> bool:
        return self.found <= self.aim if self.bound == "at most" else self.found >= self.aim

    def __str__(self) -> str:
        reached = "reached" if self.reached else "**not reached**"
        found = f"{self.what} {self.found:.{self.digits}f} {self.of}"
        return f"- {found} (aim: {self.bound} {self.aim:g}): {reached}."


def verdict(results: Results) -> str:
    """A sentence for every figure that was aimed at, by the faster engine."""
    return "\n".join(map(str, aims(results)))


def aims(results: Results) -> Iterator[Aim]:
    for name, entry, sides in works_of(results):
        ours = [side for side in sides if side != TRL]
        if TRL not in sides or not ours:
            continue
        fast = min(ours, key=lambda side: median(ratios(sides[side], sides[TRL], "seconds")))
        aim, by = entry["work"]["aim"], f"{name}, {TITLES[fast].removeprefix('e3rl, ')}"
        found = median(ratios(sides[fast], sides[TRL], "seconds"))
        yield Aim(f"{by}: seconds", found, "of TRL's", "at most", aim["seconds"])
        if tries := results.get("tuning", {}).get(name):
            best = min(tries, key=lambda rows: tries[rows]["seconds"])
            found = middle(sides[fast], "seconds") / tries[best]["seconds"]
            told = f"of TRL's with {best} rows at a time, its fastest"
            yield Aim(f"{by}: seconds", found, told, "at most", aim["seconds"])
        if aim["memory"] is not None:
            found = median(ratios(sides[fast], sides[TRL], "peak_gib"))
            yield Aim(f"{by}: peak memory", found, "of TRL's", "at most", aim["memory"])
        if aim["utilization"] is not None:
            share, of = utilization(entry, sides[fast])[1], "of the matmul rate"
            yield Aim(f"{by}: update at", share, of, "at least", aim["utilization"])
        rest = median(run["phases"]["rest"] / run["seconds"] for run in sides[fast])
        yield Aim(f"{by}: rest", rest, "of a step", "at most", OVERHEAD, digits=3)
    yield from _aims_of_growth(list(growth_rows(results)))


def _aims_of_growth(rows: Sequence[Mapping[str, Any]]) -> Iterator[Aim]:
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for engine in dict.fromkeys(row["engine"] for row in rows):
            found = [row for row in rows if row["kind"] == kind and row["engine"] == engine]
            worst = max(row["of_first"] for row in found)
            name = f"{kind}, {TITLES[engine].removeprefix('e3rl, ')}"
            what, of = f"{name}: seconds per token", "of the smallest's"
            yield Aim(what, worst, of, "at most", 1 + FLAT)
            if kind == "problems":
                share = found[-1]["budget"]
                yield Aim(f"{name}: budget", share, "of a step", "at most", BOOKKEEPING, digits=4)


@with_style
def draw(results: Results) -> Figure:
    """Where the seconds of a step go on each side, and how they grow."""
    rows = list(growth_rows(results))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    figure = Figure(figsize=(WIDE, 7.6 if kinds else 5.0), layout="constrained")
    heights = (1.9, 1) if kinds else (1.9,)
    grid = figure.add_gridspec(len(heights), 3, height_ratios=heights)
    _draw_phases(figure.add_subplot(grid[0, :]), results)
    for place, kind in enumerate(kinds):
        _draw_growth(
            figure.add_subplot(grid[1, place]), kind, [row for row in rows if row["kind"] == kind]
        )
    return figure


def _draw_phases(ax: Axes, results: Results) -> None:
    places: list[tuple[float, str]] = []
    at = 0.0
    for name, _entry, sides in works_of(results):
        whole = middle(sides[TRL], "seconds") if TRL in sides else 1.0
        ax.text(0.0, at - 0.74, name, va="center", fontsize=8.5, weight="bold")
        for side, runs in sides.items():
            left = 0.0
            for phase, colour in PHASES.items():
                share = middle(runs, phase) / whole
                ax.barh(at, share, left=left, height=0.8, color=colour)
                left += share
            ax.text(left + 0.01, at, f"{middle(runs, 'seconds'):.2f} s", va="center", fontsize=8)
            places.append((at, TITLES[side]))
            at += 1
        at += 0.9
    ax.axvline(1.0, color=MUTED, linewidth=0.8, linestyle=":")
    ax.margins(x=0.06)
    ax.set_title("A step, in shares of TRL's seconds", pad=18)
    ax.set_yticks([place for place, _ in places], [title for _, title in places])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    handles = [ax.barh(0, 0, color=colour) for colour in PHASES.values()]
    ax.legend(handles, list(PHASES), loc="lower right", bbox_to_anchor=(1, 1), ncols=len(PHASES))


def _draw_growth(ax: Axes, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for colour, engine in zip(OTHER_COLOURS, TITLES, strict=False):
        found = [row for row in rows if row["engine"] == engine]
        if found:
            xs, ys = [row["size"] for row in found], [row["of_first"] for row in found]
            ax.plot(xs, ys, "o-", color=colour, label=TITLES[engine].removeprefix("e3rl, "))
    ax.axhspan(1 - FLAT, 1 + FLAT, color=MUTED, alpha=0.12, linewidth=0)
    ax.set_xscale("log")
    sizes = sorted({row["size"] for row in rows})
    shown = EngFormatter(sep="")
    ax.set_xticks(sizes, [shown(size) for size in sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0, max(1.4, 1.05 * max(row["of_first"] for row in rows)))
    ax.set_title(f"Growing {kind}")
    ax.set_ylabel("seconds per token, of the smallest's")
    ax.legend(loc="lower left")


def main() -> None:
    write_report(json.loads((HERE / "results.json").read_text()), HERE)


if __name__ == "__main__":
    main()
