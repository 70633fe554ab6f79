"""Does every gold answer score in usual spellings, and only on its own problem? At what cost?

    .venv/bin/python experiments/answer_verification/measure.py FOLDER [--others 3]

FOLDER holds files of the E3 release: parquet as published for training, jsonl or json for testing.
Writes results.json beside this file.
"""

import argparse
import json
import random
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from e3rl.data.problem import Problem
from e3rl.data.problems import E3_COLUMNS, PLAIN_COLUMNS, load_problems
from e3rl.data.questions import question_text
from e3rl.readiness.answer_test import AnswerCase, answers_of_others, judge, own_spellings
from e3rl.rewards.answer_reader import AnswerReader
from e3rl.rewards.maths import MathScorer, build_math_rewards
from e3rl.rewards.verdict import Verdict
from e3rl.rewards.verifier import compare_answers, judge_by_text

DEADLINE_S = 40.0  # by the clock: a busy machine should not turn into time-outs
TOKENS, LETTERS_PER_TOKEN = 6000, 4
MAX_CHARS = 300


def read(folder: Path) -> list[Problem]:
    """All problems of a folder; repeats are kept, since each is verified by itself."""
    problems: list[Problem] = []
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("*.json*")]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns = E3_COLUMNS if path.suffix == ".parquet" else PLAIN_COLUMNS
            problems += load_problems(path, columns)
    return problems


def exceptions(
    cases: Sequence[AnswerCase], verdicts: Sequence[Verdict], wanted: float
) -> dict[str, list[str]]:
    """Ids of problems by what happened: another reward than wanted, a time-out or a crash."""
    found: dict[str, list[str]] = {}
    for case, verdict in zip(cases, verdicts, strict=True):
        if verdict.reward != wanted or verdict.status in ("timeout", "error"):
            found.setdefault(f"{case.kind}, {verdict.status}", []).append(case.problem.id)
            print(
                f"{verdict.status}: {case.problem.id}, gold {case.problem.answer!r}, "
                f"{case.kind}: {case.completion!r}"
            )
    return found


def throughput(cases: Sequence[AnswerCase]) -> dict[str, float]:
    """CPU seconds of one process, without a cache: reading answers and judging them."""
    reading, judging, compared = 0.0, 0.0, 0
    reader = AnswerReader("math_box", max_chars=MAX_CHARS)
    for case in cases:
        prompt, gold = question_text(case.problem), case.problem.answer
        start = time.process_time()
        answer = reader.read(case.completion)
        read_at = time.process_time()
        verdict = None if answer is None else judge_by_text(answer, gold, prompt)
        if answer is not None and verdict is None:
            compare_answers(gold, answer)
            compared += 1
        judging += time.process_time() - read_at
        reading += read_at - start
    return {
        "answers": len(cases),
        "compared": compared / len(cases),
        "ms_per_answer": 1e3 * (reading + judging) / len(cases),
        "answers_per_s": len(cases) / (reading + judging),
        "reading_share": reading / (reading + judging),
    }


def through_pool(cases: Sequence[AnswerCase], workers: int) -> dict[str, float]:
    """Seconds by the clock from the first submission to the last verdict, workers warmed up."""
    with build_math_rewards("math_box", workers=workers, deadline_s=DEADLINE_S) as pool:
        pool.self_test()
        start = time.perf_counter()
        judge(pool, cases)
        seconds = time.perf_counter() - start
    return {"workers": workers, "seconds": seconds, "answers_per_s": len(cases) / seconds}


def long(case: AnswerCase, letters: int) -> AnswerCase:
    """The same completion behind a train of thought of so many letters."""
    step = r"Then $\frac{x}{2}+3 = 7$, which is \(x = 8\), so we go on with the next case. "
    return case._replace(completion=(step * (letters // len(step) + 1))[:letters] + case.completion)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--others", type=int, default=3)
    parser.add_argument("--sample", type=int, default=400, help="answers that are timed")
    args = parser.parse_args()
    problems = read(args.folder)
    scorer = MathScorer(AnswerReader("math_box", max_chars=MAX_CHARS))
    own = own_spellings(problems, scorer)
    foreign = answers_of_others(problems, scorer, args.others)
    with build_math_rewards("math_box", workers=1, deadline_s=DEADLINE_S) as pool:
        right, wrong = judge(pool, own), judge(pool, foreign)
    sample = random.Random(0).sample(own + foreign, args.sample)
    behind_thoughts = [long(case, TOKENS * LETTERS_PER_TOKEN) for case in sample]
    results = {
        "problems": len(problems),
        "own": {"cases": len(own), "kinds": dict(Counter(case.kind for case in own))},
        "own_exceptions": exceptions(own, right, wanted=1),
        "others": {"cases": len(foreign)},
        "others_exceptions": exceptions(foreign, wrong, wanted=0),
        "short": throughput(sample),
        "long": throughput(behind_thoughts),
        "pool_short": [through_pool(sample, workers) for workers in (1, 2)],
        "pool_long": [through_pool(behind_thoughts, workers) for workers in (1, 2)],
    }
    (Path(__file__).parent / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for name in ("own", "others"):
        found = sum(map(len, results[f"{name}_exceptions"].values()))
        print(f"{name}: {found} exceptions among {results[name]['cases']}")
    costs = ("short", "long", "pool_short", "pool_long")
    print(json.dumps({name: results[name] for name in costs}, indent=1))


if __name__ == "__main__":
    main()
