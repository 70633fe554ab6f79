"""What the embedded default is like before and after training, for README.md.

    .venv/bin/python experiments/carries_bed/measure.py           # the tables again
    .venv/bin/python experiments/carries_bed/measure.py --sample  # samples what is missing, first
    .venv/bin/python experiments/carries_bed/measure.py --clock RUN...  # adds what runs here took

Sampling takes some two hours on one core. The trained policies are the last ones of plain GRPO in
`../carries_core` (`e3rl train -m sweep=carries`), found in sweeps/carries.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_run, load_runs
from e3rl.data.carries import carry_problems
from e3rl.ledger.archive import open_runs
from e3rl.ledger.ledger import find_ledger, pack, read_rows
from e3rl.statistics.interval import Interval
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import difference_of_shares, gain_interval, share_interval

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = HERE.parent / "carries_core" / "runs"
MORE = HERE.parent / "carries_policies" / "runs"  # where the untrained policy is sampled more often
NAME = "seed-{}_experiment-grpo_engine-transformers"
SEEDS = (101, 102, 103)
ALL_SEEDS = range(101, 111)
TEMPERATURES = (0.0, 0.3, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3)
OFTEN = 256  # samples of a training problem, so that its pass@64 can be told from one half
EDGE = 1 - 0.5 ** (1 / 64)  # the chance of a right answer at which pass@64 is one half
CLOSER = (512, 1024, 4096)  # more samples, by round, of problems whose side is not settled
SETTLED = 0.02  # chance of the other side below which a problem's side is
CLOCK = HERE / "results" / "clock.csv"
UNDISTURBED = "nothing known"  # to have run beside what was timed
STEPS = 16  # at either end of a run, over which shares of groups are taken
Counts = dict[str, Any]  # of an evaluation, as in validation.jsonl


def evaluations() -> dict[str, list[str]]:
    """Arguments of `e3rl evaluate` by the name of what is kept."""
    common = ["problems=carries", "engine=transformers", "max_new_tokens=80"]
    temperatures = ",".join(map(str, TEMPERATURES))
    found = {
        "temperatures": ["problems.size=256", "n=16", f"temperatures=[{temperatures}]"],
        "untrained": ["problems.size=256", "n=64"],
        "training": ["problems.split=train", "problems.size=1024", f"n={OFTEN}", "seed=1"],
    }
    for seed in SEEDS:
        run = f"sweeps/carries/{NAME.format(seed)}"
        found[f"trained-{seed}"] = [f"ckpt_path={run}", "problems.size=256", "n=64"]
    return {name: [*common, *own] for name, own in found.items()}


def sample() -> None:
    """Run what is missing, and keep the counts alone."""
    for name, arguments in evaluations().items():
        kept = HERE / "results" / f"{name}.jsonl"
        if find_ledger(kept):
            continue
        out = ROOT / "build" / "carries_bed" / name
        ks = "ks=[1,4,16]" if name == "temperatures" else "ks=[1,4,16,64]"
        command = [sys.executable, "-m", "e3rl", "evaluate", *arguments, ks, f"out={out}"]
        subprocess.run(command, check=True, cwd=ROOT)
        kept.parent.mkdir(exist_ok=True)
        rows = read_rows(out / "validation.jsonl")
        keys = ("name", "temperature", "problem_id", "n", "correct", "entropy_sum", "tokens")
        pack(kept, ({key: row[key] for key in keys} for row in rows))
    for round, samples in enumerate(CLOSER, start=1):
        sample_closer(round, samples)


def sample_closer(round: int, samples: int) -> None:
    """Draw more of the training problems that are not on either side of one half by now."""
    kept = HERE / "results" / f"closer-{round}.jsonl"
    if find_ledger(kept):
        return
    names, n, right = training_counts(round - 1)
    chances = chances_below(n, right)
    unsettled = set(names[np.minimum(chances, 1 - chances) > SETTLED])
    out = ROOT / "build" / "carries_bed" / f"closer-{round}"
    out.mkdir(parents=True, exist_ok=True)
    problems = [each for each in carry_problems("train", 1024) if each.id in unsettled]
    rows = [{"id": each.id, "prompt": each.prompt, "answer": each.answer} for each in problems]
    (out / "unsettled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "e3rl", "evaluate", "problems=file", "engine=transformers"]
    command += [f"problems.path={out / 'unsettled.jsonl'}", f"n={samples}", f"seed={1 + round}"]
    command += ["ks=[1,64]", f"prompts_per_batch={8192 // samples}", "processes=2", f"out={out}"]
    subprocess.run(command, check=True, cwd=ROOT)
    [counts] = read_rows(out / "validation.jsonl")
    pack(kept, [{key: counts[key] for key in ("problem_id", "n", "correct")}])


def training_counts(rounds: int) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.int64]]:
    """Names of the training problems, their samples and right ones, up to a closer round."""
    [first] = read("training")
    names = np.asarray(first["problem_id"])
    n, right = (np.asarray(first[key]) for key in ("n", "correct"))
    place = {name: index for index, name in enumerate(names)}
    for round in range(1, rounds + 1):
        [more] = read(f"closer-{round}")
        where = [place[name] for name in more["problem_id"]]
        n[where] += more["n"]
        right[where] += more["correct"]
    return names, n, right


def chances_below(n: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
    """How surely the chance of a right answer lies below `EDGE`, for every problem: one less the
    mid-p value, P(X < c) + P(X = c)/2 of X right answers of n where each has that chance.

    That is the posterior of `EDGE` between the priors that are flat in p and in its logarithm.
    """
    return np.array([1 - mid_p(int(c), int(of)) for of, c in zip(n, right, strict=True)])


def mid_p(right: int, n: int) -> float:
    """P(X < c) + P(X = c)/2 for X of n trials with chance `EDGE` each."""
    log_chance, total = n * math.log1p(-EDGE), 0.0
    for j in range(right):
        total += math.exp(log_chance)
        log_chance += math.log(n - j) - math.log(j + 1) + math.log(EDGE) - math.log1p(-EDGE)
    return min(total + math.exp(log_chance) / 2, 1.0)


def hard_share(rounds: int = len(CLOSER)) -> Interval:
    """Share of these training problems whose pass@64 is below one half.

    Each problem is below with the chance that its samples leave; the interval holds 95 % of the
    distribution of the number of such problems. It is of these problems, not of others like them.
    """
    _, n, right = training_counts(rounds)
    return share_below(chances_below(n, right))


def share_below(chances: NDArray[np.float64]) -> Interval:
    """Mean and central 95 % of the share of events with these chances, each by itself."""
    number = np.ones(1)  # its distribution
    for chance in chances:
        number = np.convolve(number, [1 - chance, chance])
    low, high = (int(np.searchsorted(np.cumsum(number), tail)) for tail in (0.025, 0.975))
    return Interval(float(chances.mean()), low / len(chances), high / len(chances), 0.95)


def read(name: str) -> list[Counts]:
    return read_rows(HERE / "results" / f"{name}.jsonl")


def by_problem(counts: Counts, k: int) -> NDArray[np.float64]:
    """(P,) pass@k, problems in the order of their names."""
    order = np.argsort(counts["problem_id"])
    n, right = (np.asarray(counts[key])[order] for key in ("n", "correct"))
    return np.asarray(pass_at_k(n, right, k))


def percent(found: Interval, sign: str = "") -> str:
    mean, low, high = (100 * x for x in (found.mean, found.low, found.high))
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def temperature_rows() -> Iterator[list[str]]:
    """The untrained policy, colder and hotter."""
    yield ["T", "entropy, nats", "pass@1, %", "pass@16, %"]
    for counts in read("temperatures"):
        entropy = f"{counts['entropy_sum'] / counts['tokens']:.3f}"
        hot = counts["temperature"] > 0
        passes = [
            percent(share_interval(by_problem(counts, k))) if hot or k == 1 else "" for k in (1, 16)
        ]
        yield [f"{counts['temperature']:g}", entropy, *passes]


def hotter_rows() -> Iterator[list[str]]:
    """The untrained policy on all 1,024 problems, hotter and colder than T = 1."""
    yield ["T", "rollouts", "pass@1, %", "less T = 1, points", "pass@16, %", "less T = 1, points"]
    runs = load_runs(MORE)
    drawn = {each: start_counts(runs, f"t{each:g}") for each in (1.0, 0.7, 1.3)}
    for temperature, (n, right) in drawn.items():
        row = [f"{temperature:g}", str(n.min())]
        for k in (1, 16):
            mine, plain = (np.asarray(pass_at_k(*each, k)) for each in ((n, right), drawn[1.0]))
            gain = percent(difference_of_shares(mine, plain).interval(), "+")
            row += [percent(share_interval(mine)), "" if temperature == 1 else gain]
        yield row


def start_counts(runs: Sequence[Run], name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rollouts (P,) and right ones before training in an evaluation, of all draws there are; runs
    that drew the same count once."""
    drawn = {}
    for run in runs:
        table = run.problems[run.problems["name"] == name]
        table = table[table["rollout_step"] == 0].sort_values("problem_id")
        counts = table[["n", "correct"]].to_numpy()
        drawn[counts.tobytes()] = counts
    n, right = sum(drawn.values()).T
    return n, right


def learned_rows() -> Iterator[list[str]]:
    """Before and after GRPO, three seeds."""
    yield ["what", "untrained, %", "after 128 steps of GRPO, %", "gain, points"]
    [untrained], trained = read("untrained"), [read(f"trained-{seed}")[0] for seed in SEEDS]
    for k in (1, 4, 16, 64):
        before, after = by_problem(untrained, k), np.array([by_problem(x, k) for x in trained])
        yield [f"pass@{k}", *three(before, after)]
    yield ["greedy", *greedy()]
    for carries in range(4):
        mine = [name.startswith(f"carries-{carries}") for name in sorted(untrained["problem_id"])]
        before = by_problem(untrained, 1)[mine]
        after = np.array([by_problem(x, 1)[mine] for x in trained])
        yield [f"pass@1, {carries} carries", *three(before, after)]


def three(before: NDArray[np.float64], after: NDArray[np.float64]) -> list[str]:
    gain = gain_interval(after, np.tile(before, (len(after), 1)))
    return [percent(share_interval(before)), percent(share_interval(after)), percent(gain, "+")]


def greedy() -> list[str]:
    """By the runs' own validations, of 1,024 problems."""
    return three(*start_and_end(SEEDS, "greedy", 1))


def ten_seed_rows() -> Iterator[list[str]]:
    """Before and after GRPO in the runs' own validations, all ten seeds."""
    yield ["what", "untrained, %", "after 128 steps of GRPO, %", "gain, points"]
    for k in (1, 4, 16):
        yield [f"pass@{k}", *three(*start_and_end(ALL_SEEDS, "t1", k))]
    yield ["greedy", *three(*start_and_end(ALL_SEEDS, "greedy", 1))]


def start_and_end(
    seeds: Sequence[int], name: str, k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """pass@k (P,) of the untrained policy, by the first validations of all seeds together, and
    (S, P) of the last ones."""
    recorded = open_runs(RUNS)
    runs = [load_run(recorded / NAME.format(seed)) for seed in seeds]
    last = []
    for run in runs:
        table = run.problems[run.problems["name"] == name].sort_values("problem_id")
        last.append(table[table["rollout_step"] == table["rollout_step"].max()])
    first = np.asarray(pass_at_k(*start_counts(runs, name), k))
    return first, np.array([pass_at_k(each["n"], each["correct"], k) for each in last])


def group_rows() -> Iterator[list[str]]:
    """What the update gets, by run."""
    yield [
        *("seed", f"all wrong, first {STEPS} steps, %", f"last {STEPS}, %"),
        *("mixed, first, %", "last, %", "tokens per rollout, first", "last"),
        "processor seconds a step",
    ]
    for seed in SEEDS:
        train = load_run(open_runs(RUNS) / NAME.format(seed)).train
        ends = train.head(STEPS), train.tail(STEPS)
        shares = [
            f"{100 * float(end[name].mean()):.1f}"
            for name in ("rollout/all_wrong", "rollout/mixed")
            for end in ends
        ]
        lengths = [f"{float(end['rollout/length'].mean()):.1f}" for end in ends]
        seconds = f"{float(train['resources/cpu_s'].median()):.2f}"
        yield [str(seed), *shares, *lengths, seconds]


def add_clock(folders: Sequence[Path], beside: str) -> None:
    """Add to results/clock.csv what finished runs of this machine took by the clock."""
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next(line.partition(":")[2].strip() for line in cpus if line.startswith("model name"))
    rows = [] if not CLOCK.exists() else pd.read_csv(CLOCK).to_dict("records")
    for folder in folders:
        run = load_run(folder)
        rows.append(
            {
                "processor": model,
                "processes": int(run.config["trainer"]["devices"]),
                "arm": run.config["name"],
                "seed": int(run.config["seed"]),
                "steps": len(run.train),
                "seconds": round(float(run.train["cost/seconds"].iloc[-1]) / len(run.train), 3),
                "beside": beside,
            }
        )
    pd.DataFrame(rows).to_csv(CLOCK, index=False)


def clock_rows() -> Iterator[list[str]]:
    """Seconds a step by the clock of two cores, validations left out."""
    yield ["processor", "processes", "what ran beside", "runs", "seconds a step, by run"]
    groups = pd.read_csv(CLOCK).groupby(["processor", "processes", "beside"], sort=False)
    for about, mine in groups:
        seconds = ", ".join(f"{each:.2f}" for each in mine["seconds"])
        yield [*map(str, about), str(len(mine)), seconds]


def training_rows() -> Iterator[list[str]]:
    """Training problems that the untrained policy does not solve."""
    yield ["training problems", "share, %"]
    [counts] = read("training")
    right = np.asarray(counts["correct"])
    _, n, more = training_counts(len(CLOSER))
    yield [f"no right answer among {OFTEN}", percent(share_interval((right == 0).astype(float)))]
    yield ["pass@64 below one half, of these", percent(hard_share())]
    yield ["the same, of others like them", percent(share_interval(chances_below(n, more)))]
    known = by_problem(counts, 8) < 0.5
    yield ["pass@8 below one half", percent(share_interval(known.astype(float)))]


def markdown(rows: Iterator[list[str]]) -> str:
    head, *rest = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rest))


def tables() -> Mapping[str, str]:
    makers = {
        "temperatures": temperature_rows,
        "hotter": hotter_rows,
        "learned": learned_rows,
        "ten_seeds": ten_seed_rows,
        "groups": group_rows,
        "clock": clock_rows,
        "training": training_rows,
    }
    return {name: markdown(make()) for name, make in makers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", action="store_true", help="sample what is missing first")
    parser.add_argument("--clock", nargs="+", type=Path, metavar="RUN", help="finished runs")
    parser.add_argument("--beside", default=UNDISTURBED, help="what ran beside them, if known")
    options = parser.parse_args()
    if options.sample:
        sample()
    if options.clock:
        add_clock(options.clock, options.beside)
    write_tables(HERE / "README.md", tables())


if __name__ == "__main__":
    main()
