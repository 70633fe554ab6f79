"""Do the findings with four optimiser steps hold on validation problems that no page has used?

    python experiments/carries_other_validation/compare.py sample RUNS   # goes on
    python experiments/carries_other_validation/compare.py report        # the table of README.md

`sample` draws `ROLLOUTS` completions of other validation problems from the policies of
`../carries_four_steps`, whose sweep with its checkpoints is RUNS, and `FIRST` from the untrained
one, and writes how many were right to `samples.json.xz`. `report` compares by them.
"""

import argparse
import json
import lzma
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.comparison import compare_tables
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns
from e3rl.analysis.tables.comparison_table import judged_texts
from e3rl.data.carries import carry_problems
from e3rl.ledger.ledger import read_rows
from e3rl.statistics.pass_at_k import pass_at_k

FOLDER = Path(__file__).parent
RUNS = FOLDER.parent / "carries_four_steps" / "runs"
SCRIPT = FOLDER.parent / "carries_other_problems" / "equal_tokens.py"
SAMPLES = FOLDER / "samples.json.xz"
ARMS, CONTROL = ("budget", "e3"), "grpo"
STEPS, EARLY = 128, 120
SIZE, PROBLEMS_SEED = 1024, 1  # of the set; all other pages have seed 0
ROLLOUTS, FIRST, LIMIT = 16, 40, 80  # FIRST: of the untrained policy; LIMIT: tokens
UNTRAINED = "untrained"
Table = NDArray[np.float64]  # (S, P)


@dataclass(frozen=True)
class Sample:
    """Of one policy: right completions (P,), problems in the order of the set."""

    arm: str
    seed: int
    steps: int
    right: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    sampling = actions.add_parser("sample")
    sampling.add_argument("runs", type=Path, help="folder of the sweep, with its checkpoints")
    sampling.add_argument("--out", type=Path, default=Path("sampled"), help="of completions")
    actions.add_parser("report")
    options = parser.parse_args()
    if options.action == "sample":
        samples = sample(load_runs(options.runs), options.out)
        text = json.dumps([asdict(each) for each in samples])
        SAMPLES.write_bytes(lzma.compress(text.encode(), preset=9))
    else:
        write_report(load_runs(RUNS), read_samples())


def policies_of(runs: Sequence[Run]) -> Iterator[tuple[str, int, int, Path]]:
    """Arm, seed, steps and checkpoint of what is sampled: the last policies of both arms and the
    control, and the budget's after `EARLY` steps."""
    for run in sorted(runs, key=lambda run: run.seed):
        if run.name in (CONTROL, *ARMS):
            for steps in (EARLY, STEPS) if run.name == ARMS[0] else (STEPS,):
                yield run.name, run.seed, steps, run.path / f"checkpoints/step-{steps:06}.ckpt"


def sample(runs: Sequence[Run], out: Path) -> list[Sample]:
    """Draw all completions, of a seed's policies with the same random numbers, those of no other
    seed; what is there is not drawn again."""
    policies, found = list(policies_of(runs)), []
    for seed in sorted({seed for _, seed, _, _ in policies}):
        mine = [each for each in policies if each[1] == seed]
        models = ",".join(f"{arm}_{steps}:{path.resolve()}" for arm, _, steps, path in mine)
        draw(f"models={{{models}}}", ROLLOUTS, seed, out / str(seed))
        for arm, _, steps, _ in mine:
            right = counts_in(out / str(seed) / f"{arm}_{steps}", ROLLOUTS)
            found.append(Sample(arm, seed, steps, right))
    draw("policy=embedded", FIRST, 0, out / UNTRAINED)
    return [Sample(UNTRAINED, 0, 0, counts_in(out / UNTRAINED, FIRST)), *found]


def draw(models: str, n: int, seed: int, out: Path) -> None:
    command = [
        *(sys.executable, "-m", "e3rl", "evaluate", models, "problems=carries"),
        *(f"problems.size={SIZE}", f"problems.seed={PROBLEMS_SEED}", f"n={n}", "ks=[1,16]"),
        *("engine=transformers", f"max_new_tokens={LIMIT}", f"seed={seed}"),
        *("prompts_per_batch=256", f"processes={len(os.sched_getaffinity(0))}", f"out={out}"),
    ]
    subprocess.run(command, check=True)


def counts_in(folder: Path, n: int) -> list[int]:
    """Right completions of every problem. Raises ValueError where some lacks."""
    files = sorted(folder.rglob("problems.jsonl"))
    rows = [row for file in files for row in read_rows(file) if "problem_id" in row]
    evaluations = {row["problem_id"]: row["evaluations"][0] for row in rows}
    order = [problem.id for problem in carry_problems("validation", SIZE, PROBLEMS_SEED)]
    if evaluations.keys() != set(order):
        raise ValueError(f"{folder}: {len(evaluations)} of {SIZE} problems")
    assert all(each["n"] == n for each in evaluations.values())
    return [sum(evaluations[problem]["right"]) for problem in order]


def read_samples() -> list[Sample]:
    return [Sample(**row) for row in json.loads(lzma.decompress(SAMPLES.read_bytes()))]


def is_new() -> NDArray[np.bool_]:
    """(P,) whether a problem is in no validation of other pages."""
    used = {problem.prompt for problem in carry_problems("validation", SIZE)}
    fresh = carry_problems("validation", SIZE, PROBLEMS_SEED)
    return np.array([problem.prompt not in used for problem in fresh])


def table_of(samples: Sequence[Sample], arm: str, k: int, steps: int = STEPS) -> Table:
    """pass@k (S, P) of an arm's policies, seeds in order."""
    mine = sorted((x for x in samples if (x.arm, x.steps) == (arm, steps)), key=lambda x: x.seed)
    return np.array([pass_at_k(np.full(SIZE, ROLLOUTS), np.array(x.right), k) for x in mine])


def at_equal_tokens(runs: Sequence[Run], samples: Sequence[Sample], k: int) -> Table:
    """pass@k (S, P) of the budget's policies, each where it had generated as many tokens as its
    seed's control in all: on the line between `EARLY` steps and the end.

    Raises ValueError where that is not between them."""
    script = runpy.run_path(str(SCRIPT))
    pairs, tokens_after = script["pairs_of"](runs), script["tokens_after"]
    shares = []
    for pair in pairs:
        first, last = (tokens_after(pair[ARMS[0]], steps) for steps in (EARLY, STEPS))
        share = (tokens_after(pair[CONTROL], STEPS) - first) / (last - first)
        if not 0 <= share <= 1:
            raise ValueError(f"seed {pair[CONTROL].seed}: its runs cannot be read at equal tokens")
        shares.append(share)
    before, after = (table_of(samples, ARMS[0], k, steps) for steps in (EARLY, STEPS))
    return np.asarray(script["between"](before, after, np.array(shares)[:, None]))


def compare(runs: Sequence[Run], samples: Sequence[Sample]) -> dict[str, list[Row]]:
    """Rows of the declared families, by name."""
    new = is_new()
    (untrained,) = (np.array(each.right) / FIRST for each in samples if each.arm == UNTRAINED)
    easy, unsolved = new & (untrained >= 0.5), new & (untrained == 0)
    tables = {(arm, k): table_of(samples, arm, k) for arm in (CONTROL, *ARMS) for k in (1, 16)}

    def row(arm: str, k: int, mine: Table, where: NDArray[np.bool_], words: str) -> Row:
        named = f"{arm} - {CONTROL}, pass@{k}, {words}"
        columns = compare_tables(mine[:, where], tables[CONTROL, k][:, where], named)
        return {"arm": arm, "against": CONTROL, "measure": f"pass@{k}", "of": words, **columns}

    def both(k: int, where: NDArray[np.bool_], words: str) -> list[Row]:
        return [row(arm, k, tables[arm, k], where, words) for arm in ARMS]

    equal = at_equal_tokens(runs, samples, 16)
    families = {
        "equal_tokens": [row(ARMS[0], 16, equal, new, "equal tokens")],
        "pass_at_16": both(16, new, "128 steps"),
        "pass_at_1": both(1, new, "128 steps"),
        "easy": both(1, easy, "mostly solved untrained"),
        "unsolved": both(16, unsolved, "never solved untrained"),
    }
    judged = iter(judge_rows([x for rows in families.values() for x in rows], families))
    return {name: [next(judged) for _ in rows] for name, rows in families.items()}


def comparison_cells(families: Mapping[str, Sequence[Row]]) -> Cells:
    """A row for each comparison."""
    cells = [
        {
            "arm": arm_label(row["arm"]),
            "family": name,
            "measure": row["measure"],
            "problems": f"{row['problems']}",
            "%": f"{100 * row['value']:.1f}",
            "GRPO %": f"{100 * row['against_value']:.1f}",
            **judged_texts(row),
        }
        for name, rows in families.items()
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        "At T = 1, after 128 steps but `equal_tokens`, less GRPO; 95 % intervals over seeds and "
        "problems, paired by both. p after Holm's correction within the declared family. Better "
        "or worse: p below 0.05. Detectable: as in other studies. "
        f"{families['equal_tokens'][0]['seeds']} seeds.",
    )


def write_report(runs: Sequence[Run], samples: Sequence[Sample]) -> None:
    """The table of README.md, and the files of results."""
    families, readme = compare(runs, samples), FOLDER / "README.md"
    (FOLDER / "results").mkdir(exist_ok=True)
    for name, rows in families.items():
        path = FOLDER / "results" / f"{name}.csv"
        pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
    text = as_markdown(comparison_cells(families), ("arm", "family", "measure", "verdict"))
    write_tables(readme, {"comparisons": text})


if __name__ == "__main__":
    main()
