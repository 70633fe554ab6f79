"""Figures that were aimed at, what was found, and whether that reaches the aim.

The second table of the ledger of claims (`claims.py`). Every number comes from what a study
recorded, none stands here but the aims.
"""

import json
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from e3rl.ledger.ledger import read_rows
from e3rl.statistics.interval import Interval
from e3rl.statistics.means import mean_over_units

HERE = Path(__file__).parent
REACHED, MISSED, OPEN = "*reached*", "*not reached*", "*open*"


class Aim(NamedTuple):
    """A row: what, the aim, what was found, of what, whether it is reached, and its page."""

    what: str
    aim: str
    found: str
    scope: str
    verdict: str
    study: str
    command: str


def judge(low: float, high: float, least: float = -np.inf, most: float = np.inf) -> str:
    """Whether all between `low` and `high` lies from `least` to `most`, none of it, or some.

    Raises:
        ValueError: if an end is no number, or the ends are the wrong way round.
    """
    if not low <= high:
        raise ValueError(f"from {low} to {high} is no range")
    if least <= low and high <= most:
        return REACHED
    return MISSED if high < least or low > most else OPEN


def as_text(found: Interval, digits: int = 1, scale: float = 100) -> str:
    mean, low, high = (scale * x for x in (found.mean, found.low, found.high))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def of_the_bed() -> Iterator[Aim]:
    """The embedded default, on which GRPO is to learn what no temperature gives."""
    bed = runpy.run_path(str(HERE / "carries_bed" / "measure.py"))
    command = ".venv/bin/python experiments/carries_bed/measure.py"

    def aim(what: str, asked: str, found: str, scope: str, verdict: str) -> Aim:
        return Aim(what, asked, found, scope, verdict, "carries_bed", command)

    [untrained], trained = (
        bed["read"]("untrained"),
        [bed["read"](f"trained-{seed}")[0] for seed in bed["SEEDS"]],
    )
    after = np.array([bed["by_problem"](x, 64) for x in trained])
    pairs = {
        "pass@1": (*bed["start_and_end"](bed["ALL_SEEDS"], "t1", 1), 15),
        "pass@16": (*bed["start_and_end"](bed["ALL_SEEDS"], "t1", 16), 10),
        "pass@64": (bed["by_problem"](untrained, 64), after, 10),
        "pass@1, greedy,": (*bed["start_and_end"](bed["ALL_SEEDS"], "greedy", 1), 18),
    }
    for what, (first, last, least) in pairs.items():
        gain = bed["gain_interval"](last, np.tile(first, (len(last), 1)))
        scope = f"{len(last)} seeds, {last.shape[1]:,} problems"
        verdict = judge(100 * gain.low, 100 * gain.high, least)
        said = f"GRPO gains in {what} in 128 steps, points"
        yield aim(said, f"at least {least}", as_text(gain), scope, verdict)
        if what == "pass@64":
            yield _with_ten_seeds(said, least)

    colder = {x["temperature"]: bed["by_problem"](x, 1) for x in bed["read"]("temperatures")}
    gains = {
        t: bed["difference_of_shares"](mine, colder[1.0]).interval()
        for t, mine in colder.items()
        if t != 1
    }
    best = max(gains, key=lambda t: gains[t].mean)
    verdict = judge(100 * gains[best].low, 100 * gains[best].high, most=3)
    said = f"best of {len(gains)} other temperatures (T = {best:g}) gains in pass@1, points"
    scope = f"untrained, {len(colder[1.0])} problems"
    yield aim(said, "at most 3", as_text(gains[best]), scope, verdict)

    _, n, right = bed["training_counts"](len(bed["CLOSER"]))
    hard = bed["share_interval"](bed["chances_below"](n, right))  # of others like them, the wider
    verdict = judge(100 * hard.low, 100 * hard.high, 25, 40)
    scope = f"untrained, {len(n):,} training problems, {n.min()} to {n.max():,} samples each"
    yield aim("problems whose pass@64 is below .5, %", "25 to 40", as_text(hard), scope, verdict)

    runs = [
        bed["load_run"](bed["open_runs"](bed["RUNS"]) / bed["NAME"].format(seed)).train
        for seed in bed["ALL_SEEDS"]
    ]
    scope = f"{len(runs)} seeds, the least and the greatest"
    steps = bed["STEPS"]
    for part, least, most in (("first", 45, 60), ("last", -np.inf, 40)):
        ends = [run.head(steps) if part == "first" else run.tail(steps) for run in runs]
        shares = [100 * float(end["rollout/all_wrong"].mean()) for end in ends]
        asked = f"at most {most}" if np.isinf(least) else f"{least} to {most}"
        said = f"groups of which every answer is wrong, {part} {steps} steps, %"
        yield aim(
            said, asked, spread(shares, 1), scope, judge(min(shares), max(shares), least, most)
        )
    seconds = [float(run["resources/cpu_s"].median()) for run in runs]
    verdict = judge(min(seconds), max(seconds), most=2.0)
    yield aim("processor seconds a step", "at most 2.0", spread(seconds, 2), scope, verdict)
    timed = pd.read_csv(bed["CLOCK"])
    for processes, mine in timed.groupby("processes"):
        clean = mine["beside"] == bed["UNDISTURBED"]
        clock, others = mine.loc[clean, "seconds"], mine.loc[~clean, "seconds"]
        how = "as it is" if processes == 1 else f"in {processes} processes"
        scope = f"`make train` {how}, {len(clock)} runs, two cores of one make"
        if len(others):
            scope += f"; {len(others)} beside which other work ran took up to {others.max():.2f}"
        said = "seconds a step by the clock, validations left out"
        verdict = judge(clock.min(), clock.max(), most=2.0)
        yield aim(said, "at most 2.0", spread(clock, 2), scope, verdict)


def _with_ten_seeds(said: str, least: float) -> Aim:
    """The gain in pass@64 of all seeds, on all problems, as their own study has it."""
    table = pd.read_csv(HERE / "carries_ten_seeds" / "results" / "gains.csv")
    row = table[table["measure"] == "pass@64"].iloc[0]
    gain = Interval(row["gain"], row["gain_low"], row["gain_high"], row["level"])
    scope = f"{row['seeds']} seeds, {row['problems']:,} problems"
    verdict = judge(100 * gain.low, 100 * gain.high, least)
    study = "carries_ten_seeds"
    command = f"e3rl study experiments/{study}"
    return Aim(said, f"at least {least}", as_text(gain), scope, verdict, study, command)


def spread(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def of_intervals() -> Iterator[Aim]:
    """Simulated coverage with 5 and 10 seeds."""
    for name, script in (("results", "simulate"), ("studies", "as_studies")):
        rows = json.loads((HERE / "coverage" / f"{name}.json").read_text())
        cells = [r for r in rows if r["n_seeds"] in (5, 10) and r.get("luck", "normal") == "normal"]
        yield from _of_cells(cells, name, script)
        unlike = [r for r in cells if r.get("alike", 0) < 0.5]
        if len(unlike) < len(cells):
            words = ", where fewer than half of the studies have one and the same interval"
            yield from _of_cells(unlike, name, script, words)


def _of_cells(
    cells: Sequence[dict[str, Any]], name: str, script: str, words: str = ""
) -> Iterator[Aim]:
    """Whether coverage lies within two points of 95, above and below."""
    held = np.array([row["covered"] for row in cells])
    draws = np.array([row["draws"] for row in cells])
    what = "95 % intervals that hold the truth, of 100"
    what += ", in studies like the recorded ones" * (name == "studies") + words
    for bound, over, edge in (
        ("at least 93", 0.93 - held, 0.93),
        ("at most 97", held - 0.97, 0.97),
    ):
        beyond = over > 1e-9
        surely = over > 2 * np.sqrt(edge * (1 - edge) / draws)
        extreme = 100 * float(held.min() if bound.startswith("at least") else held.max())
        end = "least" if bound.startswith("at least") else "most"
        found = f"{end} {extreme:.1f}; {beyond.sum()} of {len(held)} cells beyond the aim"
        found += f", {surely.sum()} by more than twice the simulation's error"
        verdict = OPEN if beyond.any() and not surely.any() else REACHED
        yield Aim(
            what,
            bound,
            found,
            "simulated, 5 and 10 seeds",
            MISSED if surely.any() else verdict,
            "coverage",
            f".venv/bin/python experiments/coverage/{script}.py",
        )


def of_matched_entropies() -> Iterator[Aim]:
    """Rows of studies in which a control is sampled at an arm's own entropy."""
    errors: dict[str, float] = {}
    rows = 0
    for path in sorted(HERE.glob("*/results/*.csv")):
        table = pd.read_csv(path)
        if "entropy_error" in table:
            found = table["entropy_error"].dropna().abs()
            rows += len(found)
            if len(found):
                study = path.parents[1].name
                errors[study] = max(errors.get(study, 0.0), 100 * float(found.max()))
    worst = max(errors, key=lambda study: errors[study])
    yield Aim(
        "a control's entropy beside that of the arm to which it is matched, % apart, where it is "
        "judged",
        "at most 0.5",
        f"at most {errors[worst]:.2f}",
        f"{rows} rows of {len(errors)} studies, many of one match",
        judge(0.0, errors[worst], most=0.5),
        worst,
        f"e3rl study experiments/{worst}",
    )


def of_parity() -> Iterator[Aim]:
    """e3rl's update on TRL's rollouts, as both protocols asked."""
    results = HERE / "parity" / "results"
    command = ".venv/bin/python experiments/parity/replay.py --tables"
    whole = [r for r in read_rows(results / "replay.jsonl") if r["setting"] == "e3rl as it is"]
    steps = read_rows(results / "every_step.jsonl")
    last = max(whole, key=lambda row: row["step"])
    for rows, words in ((whole, "a whole run from e3rl's own weights"), (steps, "single steps")):
        norms = max(abs(row["e3rl"] / row["trl"] - 1) for row in rows)
        of = [last] if rows is whole else rows
        weights = max(row["to_trl"] / row["moved"] for row in of)
        seed = 101 if rows is whole else 111
        which = "declared" if rows is whole else "declared after the first had failed"
        kinds = len({row["setting"] for row in rows})
        scope = f"{which}, seed {seed}, {len(rows) // kinds} steps"
        scope += f", with {kinds} ε" * (kinds > 1)
        for what, worst, most, text in (
            ("gradient norms apart from TRL's, in parts", norms, 1e-3, f"at most {norms:.1e}"),
            ("weights apart, % of TRL's way", 100 * weights, 1.0, f"at most {100 * weights:.2f}"),
        ):
            said = f"{what}, on TRL's rollouts: {words}"
            verdict = REACHED if worst <= most else MISSED
            yield Aim(said, f"at most {most:g}", text, scope, verdict, "parity", command)


def of_speed() -> Iterator[Aim]:
    """What a step was to cost, beside TRL's and beside the machine: by the fastest way there is,
    and in seconds by the default too, where that is another."""
    report = runpy.run_path(str(HERE / "speed" / "report.py"))
    results = json.loads((HERE / "speed" / "results.json").read_text())
    command = ".venv/bin/python experiments/speed/measure.py"
    for aim in report["aims"](results):
        found = f"{aim.found:.{aim.digits}f}"
        verdict = REACHED if aim.reached else MISSED
        what = f"{aim.what}, {aim.of}"
        scope = "two cores, median of runs, the fastest way"
        yield Aim(what, f"{aim.bound} {aim.aim:g}", found, scope, verdict, "speed", command)
    for name, entry, sides in report["works_of"](results):
        default = report["ratios"](sides["vllm"], sides["trl"], "seconds")
        if median(default) > min(
            median(report["ratios"](runs, sides["trl"], "seconds"))
            for side, runs in sides.items()
            if side != "trl"
        ):
            most = entry["work"]["aim"]["seconds"]
            yield Aim(
                f"{name}, vLLM, one process: seconds, of TRL's",
                f"at most {most:g}",
                f"{median(default):.2f}",
                "two cores, median of runs, the default",
                REACHED if median(default) <= most else MISSED,
                "speed",
                command,
            )


def of_the_controller() -> Iterator[Aim]:
    """Steps in which a gain mode is back at its target after a disturbance."""
    table = pd.read_csv(HERE / "gain_modes" / "results" / "response.csv").set_index("arm")
    steps = {arm: json.loads(row) for arm, row in table["settling_by_seed"].items()}
    for arm in ("gain_elasticity", "gain_solve"):
        fewer = [a - b for a, b in zip(steps["gain_paper"], steps[arm], strict=True)]
        mean = mean_over_units(fewer).interval() if len(set(fewer)) > 1 else None
        found = spread(fewer, 0) if mean is None else as_text(mean, scale=1)
        low, high = (min(fewer), max(fewer)) if mean is None else (mean.low, mean.high)
        yield Aim(
            f"steps by which `{arm.removeprefix('gain_')}` is back at its target before the "
            "paper's rule",
            "above 0",
            found,
            f"arithmetic (older bed), {len(fewer)} seeds",
            judge(low, high, np.nextafter(0, 1)),
            "gain_modes",
            "bash experiments/run_matrix.sh gain_modes",
        )


def rows() -> Iterator[Aim]:
    """All of them, in the order of the page."""
    for part in (
        of_the_bed,
        of_intervals,
        of_matched_entropies,
        of_parity,
        of_the_controller,
        of_speed,
    ):
        yield from part()


def render() -> str:
    """The table in markdown."""
    head = ["what", "aim", "found here", "scope", "verdict", "command: page"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows():
        page = f"`{row.command}`: [{row.study}](../experiments/{row.study}/README.md)"
        lines.append("| " + " | ".join([*row[:5], page]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
