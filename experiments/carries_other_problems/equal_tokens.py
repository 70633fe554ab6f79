"""pass@16 of the budget and of GRPO where both had generated as many tokens, seed by seed.

    python experiments/carries_other_problems/equal_tokens.py sample RUNS [--study FOLDER]
    python experiments/carries_other_problems/equal_tokens.py report [--study FOLDER]

Runs of as many steps generate unlike numbers of tokens. In each seed the run that generated less is
read at its end, the other one where it had generated as many: on the line, problem by problem,
between `EARLY` steps and its end. `sample` draws what that needs, `ROLLOUTS` completions of
every validation problem from the policy after `EARLY` steps of each seed's costlier run, and writes
how many were right to `early.json.xz`; started again, it goes on. `report` compares, by these and
the recorded runs, and writes the tables of README.md. FOLDER is the study's, this one if not said.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.comparison import compare_tables
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns
from e3rl.analysis.tables.comparison_table import judged_texts
from e3rl.ledger.ledger import read_rows
from e3rl.statistics.pass_at_k import pass_at_k

FOLDER = Path(__file__).parent
SAMPLES = "early.json.xz"
ARM, CONTROL = "budget", "grpo"
EVALUATION = "t1"
STEPS, EARLY = 128, 120
ROLLOUTS, LIMIT = 16, 80  # LIMIT: tokens of a completion
NOISE = 1  # seed of the samples' random numbers
KS = (1, 16)
Table = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Of one run's policy after `EARLY` steps."""

    arm: str
    seed: int
    right: dict[str, int]  # of ROLLOUTS, by problem


@dataclass(frozen=True)
class Reading:
    """Both runs of a seed at the tokens of the cheaper one."""

    seed: int
    tokens: dict[str, float]  # in all, by arm
    at: float  # tokens at which both are read
    values: dict[str, dict[int, Table]]  # pass@k (P,) by arm and k


def read_options(about: str, study: Path) -> argparse.Namespace:
    """Of the command, for a study that has its own samples and tables."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    sampling = actions.add_parser("sample")
    sampling.add_argument("runs", type=Path, help="folder of the sweep, with its checkpoints")
    sampling.add_argument("--out", type=Path, default=Path("sampled"), help="of completions")
    reporting = actions.add_parser("report")
    for action in (sampling, reporting):
        action.add_argument("--study", type=Path, default=study, help="folder of the study")
    return parser.parse_args()


def main() -> None:
    options = read_options(__doc__, FOLDER)
    if options.action == "sample":
        runs = costlier_runs(pairs_of(load_runs(options.runs)))
        draw(runs, options.out)
        write_samples(options.study, gather(runs, options.out))
    else:
        runs = load_runs(options.study / "runs")
        write_report(options.study, read_pairs(runs, read_samples(options.study)))


def pairs_of(runs: Sequence[Run], arm: str = ARM, control: str = CONTROL) -> list[dict[str, Run]]:
    """Both runs of each seed, by arm. Raises ValueError for a seed that lacks one."""
    arms = {name: {run.seed: run for run in runs if run.name == name} for name in (arm, control)}
    if arms[arm].keys() != arms[control].keys():
        raise ValueError(f"seeds {sorted(arms[arm].keys() ^ arms[control].keys())} lack an arm")
    return [{name: arms[name][seed] for name in arms} for seed in sorted(arms[arm])]


def tokens_after(run: Run, steps: int) -> float:
    """Tokens that a run had generated after so many steps."""
    return float(cost_before(run.train, [steps], "tokens")[0])


def costlier_arm(pair: Mapping[str, Run]) -> str:
    return max(pair, key=lambda name: tokens_after(pair[name], STEPS))


def costlier_runs(pairs: Sequence[Mapping[str, Run]]) -> list[Run]:
    return [pair[costlier_arm(pair)] for pair in pairs]


def label_of(run: Run) -> str:
    return f"{run.name}_{run.seed}"


def draw(runs: Sequence[Run], out: Path) -> None:
    """Draw all completions into a folder per policy; what is there is not drawn again."""
    checkpoint = f"checkpoints/step-{EARLY:06}.ckpt"
    models = ",".join(f"{label_of(run)}:{run.path.resolve() / checkpoint}" for run in runs)
    command = [
        *(sys.executable, "-m", "e3rl", "evaluate", f"models={{{models}}}", "problems=carries"),
        *("problems.size=1024", f"n={ROLLOUTS}", "ks=[1,16]", "engine=transformers"),
        *(f"max_new_tokens={LIMIT}", f"seed={NOISE}", "prompts_per_batch=256"),
        *(f"processes={len(os.sched_getaffinity(0))}", f"out={out}"),
    ]
    subprocess.run(command, check=True)


def gather(runs: Sequence[Run], out: Path) -> list[Sample]:
    """What was drawn. Raises ValueError where a problem of the run's last validation lacks."""
    found = []
    for run in runs:
        files = sorted((out / label_of(run)).rglob("problems.jsonl"))
        rows = [row for file in files for row in read_rows(file) if "problem_id" in row]
        right = {row["problem_id"]: sum(row["evaluations"][0]["right"]) for row in rows}
        assert all(row["evaluations"][0]["n"] == ROLLOUTS for row in rows)
        if lacking := set(last_counts(run)["problem_id"]) ^ set(right):
            raise ValueError(f"{label_of(run)}: {len(lacking)} problems are not in both")
        found.append(Sample(run.name, run.seed, right))
    return found


def write_samples(study: Path, samples: Sequence[Sample]) -> None:
    text = json.dumps([asdict(each) for each in samples])
    (study / SAMPLES).write_bytes(lzma.compress(text.encode(), preset=9))


def read_samples(study: Path) -> list[Sample]:
    return [Sample(**row) for row in json.loads(lzma.decompress((study / SAMPLES).read_bytes()))]


def last_counts(run: Run) -> pd.DataFrame:
    """problem_id, n and correct of a run's last validation."""
    return run.counts[EVALUATION, STEPS]


def read_pairs(
    runs: Sequence[Run], samples: Sequence[Sample], arm: str = ARM, control: str = CONTROL
) -> list[Reading]:
    """All seeds that can be read at equal tokens."""
    early = {(each.arm, each.seed): each for each in samples}
    found = []
    for pair in pairs_of(runs, arm, control):
        costlier = costlier_arm(pair)
        sample = early[costlier, pair[costlier].seed]
        if (reading := read_pair(pair, costlier, sample)) is not None:
            found.append(reading)
    return found


def read_pair(pair: Mapping[str, Run], costlier: str, sample: Sample) -> Reading | None:
    """Both runs of a seed; None where the costlier one had spent too much after `EARLY` steps."""
    tokens = {name: tokens_after(run, STEPS) for name, run in pair.items()}
    at, early = min(tokens.values()), tokens_after(pair[costlier], EARLY)
    if early > at:
        return None
    share = (at - early) / (tokens[costlier] - early)
    *_, control = pair.values()
    order = last_counts(control)["problem_id"].astype(str).tolist()
    values = {}
    for name, run in pair.items():
        counts = last_counts(run).astype({"problem_id": str}).set_index("problem_id").loc[order]
        last = {k: pass_at_k(counts["n"].to_numpy(), counts["correct"].to_numpy(), k) for k in KS}
        if name == costlier:
            right = np.array([sample.right[problem] for problem in order])
            before = {k: pass_at_k(np.full(len(right), ROLLOUTS), right, k) for k in KS}
            last = {k: between(before[k], last[k], share) for k in KS}
        values[name] = last
    return Reading(sample.seed, tokens, at, values)


def between(before: Table, after: Table, share: float) -> Table:
    """The point of the line that lies that share of the way from `before` to `after`."""
    return (1 - share) * before + share * after


def compare(readings: Sequence[Reading]) -> list[Row]:
    """The declared comparison, a family of one, and its pass@1, which is exploratory."""
    rows = [_compare(readings, k) for k in reversed(KS)]
    return judge_rows(rows, {"equal_tokens": rows[:1]})


def _compare(readings: Sequence[Reading], k: int) -> Row:
    mine, other = (np.array([each.values[name][k] for each in readings]) for name in (ARM, CONTROL))
    return {
        "arm": ARM,
        "against": f"{CONTROL} {EVALUATION}",
        "evaluation": EVALUATION,
        "measure": f"pass@{k}",
        **compare_tables(mine, other, f"{ARM} - {CONTROL}, pass@{k}"),
    }


def comparison_cells(rows: Sequence[Row]) -> Cells:
    """A row for each measure."""
    cells = [
        {
            "arm": arm_label(ARM),
            "measure": row["measure"],
            "budget %": f"{100 * row['value']:.1f}",
            "GRPO %": f"{100 * row['against_value']:.1f}",
            **judged_texts(row),
        }
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        "At T = 1, in each seed at the tokens of its cheaper run; 95 % intervals over seeds and "
        "problems, paired by both. pass@16 is a declared family of one, pass@1 exploratory. "
        f"Detectable: as in other studies. {rows[0]['seeds']} seeds, {rows[0]['problems']} "
        "problems.",
    )


def seed_cells(readings: Sequence[Reading]) -> Cells:
    """A row for each seed: where both are read, and what they have there."""
    cells = []
    for each in readings:
        row = {"seed": str(each.seed), "read at tokens": f"{each.at:,.0f}"}
        row["budget's tokens / GRPO's, %"] = f"{100 * each.tokens[ARM] / each.tokens[CONTROL]:.1f}"
        for name, label in ((ARM, "budget"), (CONTROL, "GRPO")):
            row[f"pass@16 {label} %"] = f"{100 * each.values[name][16].mean():.1f}"
        cells.append(row)
    return drop_empty_columns(cells, "Tokens generated in training, of whole runs but where read.")


def write_report(study: Path, readings: Sequence[Reading]) -> None:
    """The tables of a study's README.md, and its file of results."""
    readme, rows = study / "README.md", compare(readings)
    (study / "results").mkdir(exist_ok=True)
    table = pd.DataFrame(rows[:1])
    table.to_csv(study / "results" / "equal_tokens.csv", index=False, float_format="%.6g")
    tables = {"equal_tokens": comparison_cells(rows), "seeds": seed_cells(readings)}
    words = ("arm", "measure", "verdict")
    write_tables(readme, {name: as_markdown(cells, words) for name, cells in tables.items()})


if __name__ == "__main__":
    main()
