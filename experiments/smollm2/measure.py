"""What SmolLM2 learned: accuracy before, in the middle of and after `experiment=smollm2/grpo`.

    .venv/bin/python experiments/smollm2/measure.py

Reads the recorded run beside this file. Differences are paired by problem, and so are intervals.
"""

from pathlib import Path

from e3rl.analysis.measures.evaluations import (
    EvaluationResult,
    find_evaluation,
    pass_at_k_difference,
)
from e3rl.analysis.sources.runs import Run, load_run
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.statistics.interval import Interval

RUN = Path(__file__).parent / "run"
MEASURES = (("t1", 1), ("t1", 8), ("greedy", 1))


def main() -> None:
    print(table(load_run(RUN)))


def table(run: Run) -> str:
    """A row for each validation, in percent, and one for the last less the first."""
    steps = sorted({int(step) for step in run.evaluations["rollout_step"]})
    body = [[str(step), *(level(run, name, k, step) for name, k in MEASURES)] for step in steps]
    gains = [f"{text(gain(run, name, k), '+.1f')} points" for name, k in MEASURES]
    body += [["last less first", *gains]]
    header = ["rollout step", "pass@1, T = 1", "pass@8, T = 1", "greedy"]
    return as_markdown(Cells(header, body, "95 % intervals over problems; one seed."), header[:1])


def level(run: Run, name: str, k: int, step: int) -> str:
    return text(found(run, name, step).pass_at_k([k])[0], ".1f")


def gain(run: Run, name: str, k: int) -> Interval:
    """pass@k of the last validation less that of the first, paired by problem."""
    steps = run.evaluations["rollout_step"]
    first, last = found(run, name, int(steps.min())), found(run, name, int(steps.max()))
    difference, problems = pass_at_k_difference(last, first, k)
    assert difference is not None
    assert problems == last.n_problems
    return difference


def found(run: Run, name: str, step: int) -> EvaluationResult:
    evaluation = find_evaluation([run], name, step)
    assert evaluation is not None, f"no evaluation {name} at step {step}"
    return evaluation


def text(interval: Interval, form: str) -> str:
    mean, low, high = (f"{100 * x:{form}}" for x in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


if __name__ == "__main__":
    main()
